/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What cores tell control, and what that means for a job: shards that come back, connections that end, failures with a
 * rank and a chunk, of which users know only keys.
 */
#include "phub/control/job.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "phub/base/log.h"
#include "phub/chunk.h"
#include "phub/control/box.h"
#include "phub/control/door.h"
#include "phub/control/job_below.h"
#include "phub/control/job_mirror.h"
#include "phub/control/parent.h"
#include "phub/control/peers.h"
#include "phub/control/peers_move.h"
#include "phub/control/session.h"
#include "phub/control/standby.h"

/* The key that holds this byte of the region, among those of the chunk. */
static uint32_t job_key_at(const struct generation *g, const struct chunk_span *span, uint64_t offset)
{
	uint32_t key = span->key_first;

	while (key + 1 < span->key_first + span->key_count && g->spec.plan.key_offset[key + 1] <= offset)
		key++;
	return key;
}

void job_chunk_keys(const struct job *job, uint32_t chunk, uint32_t at, char *out, size_t bytes)
{
	const struct generation *g = job->generation;
	const struct chunk_span *span;

	if (!g || chunk >= g->spec.plan.chunk_count) {
		snprintf(out, bytes, "chunk %u", chunk);
		return;
	}
	span = &g->spec.plan.chunks[chunk];
	if (at != UINT32_MAX)
		snprintf(out, bytes, "key '%.100s'", table_key_name(g->table, job_key_at(g, span, span->offset + at)));
	else if (span->key_count == 1)
		snprintf(out, bytes, "key '%.100s'", table_key_name(g->table, span->key_first));
	else
		snprintf(out, bytes, "key '%.100s' (and %u more of its chunk)",
			table_key_name(g->table, span->key_first), span->key_count - 1);
}

/* Which element of its key a chunk's element is. */
static uint64_t job_key_element(const struct generation *g, const struct mail *mail, uint32_t at)
{
	const struct chunk_span *span = &g->spec.plan.chunks[mail->chunk];
	uint32_t key = job_key_at(g, span, span->offset + at);

	return (span->offset + at - g->spec.plan.key_offset[key]) / chunking_dtype_bytes(span->dtype);
}

static void job_failed_nan(struct job *job, const struct mail *mail)
{
	const struct generation *g = job->generation;
	uint32_t at = UINT32_MAX;
	char keys[160], who[240];

	if (mail->chunk < g->spec.plan.chunk_count)
		at = (uint32_t)mail->detail * chunking_dtype_bytes(g->spec.plan.chunks[mail->chunk].dtype);
	job_chunk_keys(job, mail->chunk, at, keys, sizeof(keys));
	job_fail(job, PHUB__ERROR_CODE__ERROR_NAN, (int)mail->rank,
		"%s pushed NaN or infinity: element %" PRIu64 " of %s in round %" PRIu64 ", and the nan policy is fail",
		job_member_name(job, mail->rank, who, sizeof(who)),
		at == UINT32_MAX ? mail->detail : job_key_element(g, mail, at), keys, mail->round);
}

static void job_failed(struct job *job, const struct mail *mail)
{
	char keys[160], who[240];

	job_chunk_keys(job, mail->chunk, UINT32_MAX, keys, sizeof(keys));
	job_member_name(job, mail->rank, who, sizeof(who));
	switch ((enum shard_failure)mail->value) {
	case SHARD_FAIL_NAN:
		job_failed_nan(job, mail);
		return;
	case SHARD_FAIL_NO_WEIGHTS:
		job_fail(job, PHUB__ERROR_CODE__ERROR_NO_WEIGHTS, (int)mail->rank,
			"%s pushed a gradient of %s before it has first weights; let rank 0 broadcast them "
			"first",
			who, keys);
		return;
	case SHARD_FAIL_KIND:
		job_fail(job, PHUB__ERROR_CODE__ERROR_MISMATCH, (int)mail->rank,
			"%s sent a '%s' of %s in round %" PRIu64
			", in which others do something else; all ranks must make the same calls with the same root",
			who, wire_type_name((enum wire_type)mail->detail), keys, mail->round);
		return;
	case SHARD_FAIL_HYPER:
		job_fail(job, PHUB__ERROR_CODE__ERROR_MISMATCH, (int)mail->rank,
			"%s pushed %s in round %" PRIu64 " with version %" PRIu64
			" of the hyper-parameters, others with another; all ranks must set them before the same round",
			who, keys, mail->round, mail->detail);
		return;
	case SHARD_FAIL_HYPER_OLD:
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, (int)mail->rank,
			"%s pushed %s in round %" PRIu64 " with version %" PRIu64
			" of the hyper-parameters, and the last %u are kept",
			who, keys, mail->round, mail->detail, HYPER_VERSIONS);
		return;
	case SHARD_FAIL_ALONE:
		job->deserted = true;
		job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, -1,
			"of this box's workers all that had to push %s in round %" PRIu64
			" were lost, and others have come for rounds after it. They must start again",
			keys, mail->round);
		return;
	case SHARD_FAIL_SEALING:
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1,
			"libcrypto in the box does not encrypt the result of %s in round %" PRIu64, keys, mail->round);
		return;
	}
	job_fail(job, PHUB__ERROR_CODE__ERROR_PROTOCOL, (int)mail->rank, "core %u reports failure %lld of %s",
		mail->core, (long long)mail->value, who);
}

static bool job_is_protocol(int error)
{
	return error == -EPROTO || error == -EBADMSG || error == -EMSGSIZE || error == -ERANGE ||
	       error == -EPROTONOSUPPORT || error == -ENOENT || error == -EILSEQ;
}

/* The worker can make it anew, and is told in case it has not noticed. */
static void job_link_broken(struct job *job, const struct mail *mail, const char *text)
{
	struct member *m = &job->members[mail->rank];
	char who[240];

	log_warn("job '%s' %s: its %s connection to core %u broke: %s; it has %.1f s to connect again", job->name,
		job_member_name(job, mail->rank, who, sizeof(who)), m->transport, mail->core, text,
		(double)job->control->config->lost_ms / 1e3);
	session_write_broken(m->session ? m->session : peers_find_session(job, mail->rank), mail->core, text);
}

/* What the worker says of its own end is true for the worker alone: it ends nothing. */
void job_hear_broken(struct session *s, uint32_t core, const char *text)
{
	static struct log_limit limit;
	struct job *job = s->job;
	struct member *m = &job->members[s->rank];
	struct generation_link *link;
	char more[LOG_QUIET_BYTES], who[240];
	uint64_t quiet;

	if (job->state != JOB_RUNNING || core >= job->generation->spec.core_count)
		return;
	link = generation_link(job->generation, s->rank, core);
	if (link->serial == 0)
		return;
	if (link->ended_ns == 0)
		link->ended_ns = job->control->now_ns;
	m->link_renewed = false;
	m->link_ended_ns = job->control->now_ns;
	m->link_core = core;
	m->link_error = -ECONNRESET;
	snprintf(m->link_text, sizeof(m->link_text), "%s", text);
	for (char *at = m->link_text; *at; at++)
		*at = isprint((unsigned char)*at) ? *at : '?';
	if (log_limit_pass(&limit, job->control->now_ns, 100000000ull, &quiet))
		log_warn("job '%s' %s says that its %s connection to core %u broke: %s; it has %.1f s to connect "
			 "again%s",
			job->name, job_member_name(job, s->rank, who, sizeof(who)), m->transport, core, m->link_text,
			(double)job->control->config->lost_ms / 1e3, log_quiet(quiet, more));
}

static void job_link_closed(struct job *job, const struct mail *mail)
{
	struct generation_link *link = generation_link(job->generation, mail->rank, mail->core);
	struct member *m = &job->members[mail->rank];
	int error = (int)mail->value;
	char who[240], keys[160], malformed[200];
	const char *text = mail->text[0]      ? mail->text
			   : error == -ENOENT ? "a chunk beyond the job's"
			   : error == -EILSEQ ? malformed
					      : strerror(-error);

	if (job->state != JOB_RUNNING || m->left)
		return;
	if (!m->session && !(mail->broken && peers_find_session(job, mail->rank)))
		return;
	if (mail->detail != link->serial)
		return; /* another has taken its place */
	job_chunk_keys(job, mail->chunk, UINT32_MAX, keys, sizeof(keys));
	snprintf(malformed, sizeof(malformed), "a malformed coding of %s", keys);
	log_debug("job '%s' %s: connection to core %u closed: %s", job->name,
		job_member_name(job, mail->rank, who, sizeof(who)), mail->core, error ? text : "orderly");
	if (job_is_protocol(error) && !mail->broken) {
		job_blame(job, PHUB__ERROR_CODE__ERROR_PROTOCOL, mail->rank,
			"%s sent core %u what no worker may send (%s); its connection was closed",
			job_member_name(job, mail->rank, who, sizeof(who)), mail->core, text);
		return;
	}
	if (link->ended_ns == 0)
		link->ended_ns = job->control->now_ns;
	if (mail->broken)
		job_link_broken(job, mail, text);
	if (m->link_ended_ns && m->link_error && !m->link_renewed)
		return;
	m->link_renewed = false;
	m->link_ended_ns = job->control->now_ns;
	m->link_core = mail->core;
	m->link_error = error;
	snprintf(m->link_text, sizeof(m->link_text), "%.120s", error ? text : "");
}

static void job_detached(struct job *job, const struct mail *mail)
{
	struct control *c = job->control;

	if (mail->value < 0) {
		struct err e = {.text = ""};

		core_balance(mail->shard, &e);
		log_error("job '%s' generation %u core %u does not balance: %s", job->name, mail->generation,
			mail->core, e.text);
		c->unbalanced = true;
	}
	if (--job->generation->attached > 0)
		return;
	if (job->mirror && job->mirror->taker)
		job_move_taken(job);
	else if (job->state == JOB_REKEYING)
		job_restart(job);
}

static struct job *job_of(struct control *c, const struct mail *mail)
{
	for (struct job *job = c->jobs; job; job = job->next)
		if (job->id == mail->job)
			return job->generation && job->generation->spec.generation == mail->generation ? job : NULL;
	return NULL;
}

/* What was out on the connection before is not settled yet: the core gets this one once more. */
static bool job_link_refused(struct job *job, const struct mail *mail)
{
	if (mail->value != -EBUSY || job->state != JOB_RUNNING ||
		generation_link(job->generation, mail->rank, mail->core)->serial != mail->detail)
		return false;
	door_link(job->control, mail->rank, job, mail->core, mail->conn);
	return true;
}

/* Rounds that name this version would wait for it for ever. */
static void job_hyper_refused(struct job *job, const struct mail *mail)
{
	if (job->state != JOB_RUNNING)
		return;
	if (job->mirror)
		job_mirror_mail(job, mail);
	else
		job_fail(job, PHUB__ERROR_CODE__ERROR_PROTOCOL, -1,
			"core %u did not take version %" PRIu32
			" of the hyper-parameters: a fault of the box, please report it",
			mail->core, mail->table->version);
}

void job_mail(struct control *c, const struct mail *mail)
{
	struct job *job = job_of(c, mail);
	char who[240];

	switch (mail->kind) {
	case MAIL_HYPER_TAKEN:
		if (job && mail->value < 0)
			job_hyper_refused(job, mail);
		job_hyper_taken(c, job, mail->table);
		return;
	case MAIL_LINK_REFUSED:
		if (job && job_link_refused(job, mail))
			return;
		mail->conn->transport->ops->abandon(mail->conn->transport, mail->conn);
		if (job && job->state == JOB_RUNNING && mail->rank < job->world &&
			generation_link(job->generation, mail->rank, mail->core)->serial == mail->detail)
			job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, (int)mail->rank,
				"core %u cannot take the connection of %s: %s", mail->core,
				job_member_name(job, mail->rank, who, sizeof(who)), strerror((int)-mail->value));
		return;
	case MAIL_DETACHED:
		if (job)
			job_detached(job, mail);
		return;
	case MAIL_MISSING:
		job_missing(c, job, mail);
		return;
	case MAIL_SNAPPED:
		if (job)
			job_snapped(job, mail);
		return;
	case MAIL_UPLINK_WHOLE:
	case MAIL_UPLINK_ENDED:
		if (mail->conn)
			mail->conn->transport->ops->abandon(mail->conn->transport, mail->conn);
		if (job && job->peers)
			peers_mail(job, mail);
		else if (job && job->parent)
			parent_mail(job, mail);
		else if (job)
			standby_mail(job, mail);
		return;
	case MAIL_DRAINED:
		if (job && !peers_move_stopped(job))
			job_drained(job);
		return;
	case MAIL_REHOMED:
		if (job)
			peers_move_rehomed(job, mail);
		return;
	case MAIL_HELD:
	case MAIL_WENT:
		if (job)
			job_members_step(job, mail);
		return;
	default:
		break;
	}
	if (!job || job->state != JOB_RUNNING || mail->rank >= job->world)
		return;
	if (job->mirror)
		job_mirror_mail(job, mail);
	else if (mail->kind == MAIL_LINK_CLOSED)
		job_link_closed(job, mail);
	else if (mail->kind == MAIL_FAILED)
		job_failed(job, mail);
	else if (mail->kind == MAIL_STALLED)
		job_stalled(job, mail);
}
