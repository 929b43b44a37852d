/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One standby for each generation that has one. A session with it is a call: it may outlive the generation until the
 * other end has said Left. What a core was given of a connection is the generation's until that core has told its end.
 */
#include "phub/control/standby.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/base/ranks.h"
#include "phub/base/stats.h"
#include "phub/control/box.h"
#include "phub/control/calls.h"
#include "phub/control/job.h"
#include "phub/control/job_below.h"
#include "phub/control/standby_say.h"
#include "phub/uplink.h"
#include "transport/crypt.h"

#define STANDBY_BACKOFF_NS     1000000000ull
#define STANDBY_BACKOFF_MAX_NS 30000000000ull
#define STANDBY_RANKS_MAX      64u /* that a message names */

const char *standby_state_name(enum standby_state state)
{
	static const char *const names[] = {
		"off", "broken", "dialling", "agreeing", "connecting", "mirroring", "whole", "leaving"};

	return names[state];
}

static void standby_enter(struct standby *s, enum standby_state state)
{
	if ((state == STANDBY_WHOLE) != (s->state == STANDBY_WHOLE))
		s->since_ns = s->control->now_ns;
	s->state = state;
}

static const struct call_ops *standby_ops(const struct standby *s)
{
	return s->control->box->env.calls;
}

/* How the job is now goes out as soon as there is room. 0, or why it has not. */
static int standby_pay_state(struct standby *s)
{
	int rc = s->state_owed ? standby_say_state(s) : 0;

	if (rc == 0)
		s->state_owed = false;
	else
		s->control->soon = true;
	return rc;
}

static void standby_tell_state(struct standby *s)
{
	s->state_owed = true;
	(void)standby_pay_state(s); /* what fails is tried again by standby_advance(), which knows what to do then */
}

/* ---- calls ---- */

/* The standby kept the job from a time before this box was started: what has come of these rounds? */
static void standby_warn_lost(const struct standby *s, const Phub__Start *start)
{
	const struct job *job = s->job;
	uint64_t round;
	char from[64] = "anew";

	if (start->n_rounds != 1 || s->able_ns || job->started > 1)
		return;
	if (job_kept(job, &round))
		snprintf(from, sizeof(from), "from its checkpoint before round %" PRIu64, round);
	log_warn(
		"job '%s' has begun here %s, but its standby %s had it at round %" PRIu64
		" from before this box was lost, and drops that: the rounds between are LOST. Workers go on there only "
		"when all of them come, and not by shm",
		job->name, from, s->control->config->standby_told, start->rounds[0]);
}

static void standby_hear_start(struct standby *s, const Phub__Start *start)
{
	const uint8_t *key;
	uint64_t session;
	uint32_t cores;

	standby_ops(s)->session(s->call->peer, &session, &key, &cores);
	if (s->generation->spec.encrypt &&
		(start->data_key.len != CRYPT_WRAPPED_BYTES ||
			crypt_unwrap(key, start->job, start->generation, start->data_key.data, s->result_key) < 0)) {
		s->broken = true;
		snprintf(s->broken_why, sizeof(s->broken_why),
			"it says no key of its answers, which are to be encrypted");
		return;
	}
	standby_warn_lost(s, start);
	s->started = true;
	s->job_there = start->job;
	s->epoch_there = start->epoch;
	s->window = start->window;
}

static void standby_hear(void *arg, const Phub__Control *m)
{
	struct standby *s = arg;

	if (m->message_case == PHUB__CONTROL__MESSAGE_START && s->state == STANDBY_AGREEING) {
		standby_hear_start(s, m->start);
	} else if (m->message_case == PHUB__CONTROL__MESSAGE_MIRROR_STATE) {
		s->barrier_echoed = m->mirror_state->barrier;
		s->state_echoed = m->mirror_state->number;
	} else if (m->message_case == PHUB__CONTROL__MESSAGE_MIRROR_TAKEN) {
		s->taken = true;
		snprintf(s->why, sizeof(s->why), "%s", m->mirror_taken->text ? m->mirror_taken->text : "");
	}
}

static void standby_hang_up(struct standby *s)
{
	box_call_hang_up(s->control, s->call);
	s->call = NULL;
}

static int standby_dial(struct standby *s, struct err *e)
{
	const struct config *config = s->control->config;
	const struct config_secret *secret = box_call_secret(s->job);
	const struct call_target target = {
		.what = "standby",
		.host = config->standby_at.host,
		.port = config->standby_at.port,
		.tls = config->standby_tls,
		.job = s->job->name,
		.secret = secret->bytes,
		.secret_bytes = secret->length,
		.encrypt = s->generation->spec.encrypt,
		.hear = standby_hear,
		.arg = s,
	};
	int rc = box_call_open(s->control, &target, &s->call, e);

	if (rc < 0)
		return rc;
	s->begun_ns = s->control->now_ns;
	s->started = false;
	s->keys_said = 0;
	s->wholes = 0;
	s->state_owed = false;
	standby_enter(s, STANDBY_DIALLING);
	return 0;
}

/* ---- the end of a call ---- */

/* `leave`: as for MAIL_UPLINK_END. */
static void standby_drop_links(struct standby *s, bool leave)
{
	box_dials_drop(s->control, s->generation, s->dials, s->core_count, s->serial, leave);
}

/* Nobody waits for its echo any more. */
static void standby_free_barrier(struct standby *s)
{
	if (!s->barrier_waits)
		return;
	s->barrier_waits = false;
	s->barrier_echoed = s->barrier_asked;
	job_barrier_recount(s->job);
}

static void standby_break(struct standby *s, const char *why)
{
	bool news = s->state == STANDBY_WHOLE || strcmp(why, s->why) != 0;

	if (s->state == STANDBY_WHOLE)
		s->able_ns = s->control->now_ns;
	s->backoff_ns = s->state == STANDBY_WHOLE || !s->backoff_ns ? STANDBY_BACKOFF_NS : 2 * s->backoff_ns;
	if (s->backoff_ns > STANDBY_BACKOFF_MAX_NS)
		s->backoff_ns = STANDBY_BACKOFF_MAX_NS;
	s->retry_ns = s->control->now_ns + s->backoff_ns;
	if (s->control->box->env.plant == SHARD_PLANT_UNMENDED)
		s->retry_ns = UINT64_MAX;
	if (news)
		log_warn("job '%s' goes on WITHOUT a standby: %s; tried again in %.0f s, and so on", s->job->name, why,
			(double)s->backoff_ns / 1e9);
	snprintf(s->why, sizeof(s->why), "%s", why);
	standby_hang_up(s);
	standby_drop_links(s, false);
	standby_enter(s, STANDBY_BROKEN);
	standby_free_barrier(s);
}

/* The job's workers are at the standby, and none of them is here. */
static void standby_lose_job(struct standby *s)
{
	char text[sizeof(s->why)];

	snprintf(text, sizeof(text), "%s", s->why);
	standby_end(s->generation, STANDBY_KEEPS);
	job_fail(s->job, PHUB__ERROR_CODE__ERROR_TAKEN, -1, "the standby has taken it over: %s", text);
}

static void standby_part(struct standby *s, bool bereaved)
{
	Phub__Leave leave = PHUB__LEAVE__INIT;

	leave.bereaved = bereaved;
	box_call_part(s->control, s->call, &leave);
	s->call = NULL;
}

void standby_end(struct generation *g, enum standby_fate fate)
{
	struct standby *s = g->standby;

	if (!s || s->state == STANDBY_OFF || s->state == STANDBY_LEAVING)
		return;
	if (fate == STANDBY_WAITS && s->state != STANDBY_WHOLE)
		fate = STANDBY_FORGETS;
	standby_drop_links(s, fate != STANDBY_FORGETS && s->state == STANDBY_WHOLE);
	/* Its end must not come before the cores know: what waits for the standby is answered there alone. */
	s->bereaved = fate == STANDBY_WAITS;
	if (fate == STANDBY_FORGETS) {
		if (s->call && s->state >= STANDBY_AGREEING)
			standby_part(s, false);
		standby_hang_up(s);
	}
	standby_enter(s, STANDBY_LEAVING);
}

void standby_destroy(struct standby *s)
{
	if (!s)
		return;
	if (s->bereaved && s->call && !s->control->stopping)
		standby_part(s, true);
	standby_hang_up(s);
	for (unsigned core = 0; core < s->core_count; core++)
		free(s->dials[core].spec.conn.sinks);
	for (unsigned i = 0; i < STANDBY_KEPT_MAX; i++)
		free(s->kept[i]);
	explicit_bzero(s->dials, s->core_count * sizeof(*s->dials));
	free(s->dials);
	explicit_bzero(s, sizeof(*s));
	free(s);
}

/* ---- data connections ---- */

/* 0, or -ENOMEM, -EIO. */
static int standby_fill_dial(struct standby *s, unsigned core, const struct shard *shard, struct err *e)
{
	struct box_dial *dial = &s->dials[core];
	struct sink *sinks = dial->spec.conn.sinks;
	bool encrypt = s->generation->spec.encrypt;
	uint32_t largest = 0;
	const uint8_t *key;
	uint64_t session;
	uint32_t cores;

	for (uint32_t i = 0; i < shard->chunk_count; i++)
		if (shard->chunks[i].elements > largest)
			largest = shard->chunks[i].elements;
	if (!sinks && !encrypt)
		sinks = calloc(shard->chunk_count, sizeof(*sinks));
	if (!sinks && !encrypt)
		return err_set(e, -ENOMEM, "no memory for a connection to it");
	dial->core = core;
	dial->there = core;
	dial->spec = (struct uplink_spec){
		.conn = {.chunk_count = shard->chunk_count,
			.spans = shard->spans,
			.sinks = sinks, /* all of nothing; none: trailers are looked at */
			.payload_max = largest * (uint32_t)sizeof(float) + (encrypt ? WIRE_TRAILER_BYTES : 0),
			.window = s->window,
			.job = s->job_there,
			.seal = SEAL_GMAC},
		.job = s->job_there,
		.generation = s->generation->spec.generation,
		.epoch = s->epoch_there,
	};
	memcpy(dial->spec.result_key, s->result_key, sizeof(s->result_key));
	standby_ops(s)->session(s->call->peer, &session, &key, &cores);
	if (encrypt && proof_push_key(key, dial->spec.push_key) < 0)
		return err_set(e, -EIO, "libcrypto makes no key for a connection to it");
	return 0;
}

static int standby_connect(struct standby *s, struct err *e)
{
	int rc = 0;

	for (unsigned core = 0; rc == 0 && core < s->core_count; core++) {
		const struct shard *shard = s->generation->store.shards[core];

		if (!shard)
			continue;
		rc = standby_fill_dial(s, core, shard, e);
		if (rc == 0)
			rc = box_dial_begin(s->control, s->call, &s->dials[core], e);
	}
	return rc;
}

/* ---- what cores tell ---- */

static void standby_is_whole(struct standby *s)
{
	struct standby_report report;

	standby_enter(s, STANDBY_WHOLE);
	s->why[0] = '\0';
	standby_describe(s->job, &report);
	standby_tell_state(s);
	log_info("job '%s': its standby %s:%u has all of it (%.1f MB in %.2f s)", s->job->name,
		s->control->config->standby_at.host, s->control->config->standby_at.port, (double)report.bytes / 1e6,
		(double)(s->control->now_ns - s->begun_ns) / 1e9);
}

void standby_mail(struct job *job, const struct mail *mail)
{
	struct standby *s = job->generation->standby;
	char why[ERR_TEXT_MAX];

	if (!s || mail->detail != s->serial)
		return;
	if (mail->kind == MAIL_UPLINK_ENDED) {
		s->dials[mail->core].out = false;
		if (s->state != STANDBY_MIRRORING && s->state != STANDBY_WHOLE)
			return;
		snprintf(why, sizeof(why), "the connection of core %u ended: %s", mail->core,
			mail->text[0] ? mail->text : strerror((int)-mail->value));
		s->broken = true; /* the session may know more */
		snprintf(s->broken_why, sizeof(s->broken_why), "%s", why);
	} else if (s->state == STANDBY_MIRRORING && ++s->wholes == s->shard_count) {
		standby_is_whole(s);
	}
}

/* ---- moving on ---- */

static int standby_agree(struct standby *s, struct err *e)
{
	int rc = standby_say_keys(s);

	if (rc < 0 && rc != -EAGAIN)
		return err_set(e, rc, "cannot tell it of the job: %s", strerror(-rc));
	if (!s->started)
		return 0;
	rc = standby_say_hypers(s);
	if (rc == 0)
		rc = standby_connect(s, e);
	if (rc < 0)
		return rc == -EAGAIN ? 0 : rc;
	standby_enter(s, STANDBY_CONNECTING);
	return 0;
}

/* The session lives: what is next? 0, or why it ends. */
static int standby_advance(struct standby *s, int welcomed, struct err *e)
{
	uint64_t patience_ns = s->control->config->lost_ms * NS_PER_MS;
	int rc = 0;

	if (s->state < STANDBY_MIRRORING) {
		s->control->soon = true;
		if (s->control->now_ns - s->begun_ns > patience_ns)
			return err_set(e, -ETIMEDOUT, "it is silent (%s)", standby_state_name(s->state));
	}
	switch (s->state) {
	case STANDBY_DIALLING:
		if (!welcomed)
			return 0;
		rc = standby_say_mirror(s);
		if (rc < 0)
			return err_set(e, rc, "cannot tell it of the job: %s", strerror(-rc));
		standby_enter(s, STANDBY_AGREEING);
		return 0;
	case STANDBY_AGREEING:
		return standby_agree(s, e);
	case STANDBY_CONNECTING:
		rc = box_dials_give(s->control, s->generation, s->dials, s->core_count, s->serial + 1, e);
		if (rc == 0) {
			s->serial++;
			standby_enter(s, STANDBY_MIRRORING);
		}
		return rc == -EAGAIN ? 0 : rc;
	case STANDBY_MIRRORING:
	case STANDBY_WHOLE:
		rc = standby_say_hypers(s);
		if (rc == 0)
			rc = standby_pay_state(s);
		s->control->soon = s->control->soon || rc == -EAGAIN;
		return rc == -EAGAIN || rc == 0 ? 0 : err_set(e, rc, "cannot tell it: %s", strerror(-rc));
	default:
		return 0;
	}
}

static void standby_move(struct standby *s)
{
	struct control *c = s->control;
	struct err e = {.code = 0};
	int rc = 0, welcomed;

	if (s->state == STANDBY_BROKEN) {
		if (c->now_ns < s->retry_ns || box_dials_are_out(s->dials, s->core_count) ||
			s->job->state != JOB_RUNNING)
			return;
		rc = standby_dial(s, &e);
	}
	welcomed = s->call ? box_call_step(c, s->call, &e) : rc;
	if (s->taken) {
		standby_lose_job(s);
		return;
	}
	rc = welcomed < 0 ? welcomed : standby_advance(s, welcomed, &e);
	if (rc == 0 && s->broken)
		rc = err_set(&e, -ECONNRESET, "%s", s->broken_why);
	s->broken = false;
	if (rc < 0) {
		standby_break(s, e.text);
		return;
	}
	if (s->barrier_echoed == s->barrier_asked)
		standby_free_barrier(s);
}

static void standby_let_leave(struct job *job);

static bool standby_runs(const struct standby *s)
{
	return s && s->state != STANDBY_OFF && s->state != STANDBY_LEAVING;
}

/* Until it is told why it is left, it hears that this box lives. */
static void standby_linger(struct standby *s)
{
	struct err e;

	if (s && s->bereaved && s->call && box_call_step(s->control, s->call, &e) < 0)
		standby_hang_up(s);
}

void standby_step(struct control *c)
{
	struct job *next;

	for (struct job *job = c->jobs; job; job = next) {
		next = job->next;
		if (job->state != JOB_ENDING && job->generation && standby_runs(job->generation->standby))
			standby_move(job->generation->standby);
		else if (job->state == JOB_ENDING && job->generation)
			standby_linger(job->generation->standby);
		if (job->state == JOB_RUNNING && job->generation->standby)
			standby_let_leave(job);
	}
}

/* ---- what the job tells ---- */

/* Why a job has no standby; NULL: it has one. */
static const char *standby_refuses(const struct generation *g)
{
	if (spec_stepwise(&g->spec))
		return "only jobs with sync bsp are mirrored";
	return g->spec.standby ? NULL
			       : "a chunk of it, as fp32, is more than a message may have; choose smaller chunk_bytes";
}

/* Whose rounds lie in this box's memory has nothing to go on with elsewhere: said once a job. */
static void standby_warn_stuck(struct job *job)
{
	uint32_t ranks[STANDBY_RANKS_MAX] = {0}, count = 0;
	char text[160];

	for (uint32_t i = 0; i < job->world && !job->stuck_told; i++) {
		const struct member *m = &job->members[i];

		if (!m->session || m->gone || strcmp(m->transport, "shm") != 0)
			continue;
		if (count < STANDBY_RANKS_MAX)
			ranks[count] = i;
		count++;
	}
	if (count == 0)
		return;
	job->stuck_told = true;
	ranks_write(ranks, count < STANDBY_RANKS_MAX ? count : STANDBY_RANKS_MAX, count, text, sizeof(text));
	log_warn(
		"job '%s' is lost with this box, though it has a standby: rank%s %s of %u, which asked for shm, cannot "
		"go on there; let them come by auto or tcp",
		job->name, count == 1 ? "" : "s", text, job->world);
}

void standby_begin(struct job *job)
{
	struct generation *g = job->generation;
	struct control *c = job->control;
	struct standby *s;
	const char *why;

	if (!c->config->standby[0] || !c->box->env.calls || job->mirror)
		return;
	if (job_is_spread(job)) {
		log_warn("job '%s' has no standby: its workers are at several boxes", job->name);
		return;
	}
	s = calloc(1, sizeof(*s));
	if (s)
		s->dials = calloc(g->spec.core_count, sizeof(*s->dials));
	if (!s || !s->dials) {
		free(s);
		log_warn("job '%s' has no standby: no memory for it in the box", job->name);
		return;
	}
	s->job = job;
	s->control = c;
	s->generation = g;
	s->core_count = g->spec.core_count;
	for (unsigned core = 0; core < s->core_count; core++)
		s->shard_count += g->store.shards[core] != NULL;
	g->standby = s;
	s->since_ns = c->now_ns;
	why = standby_refuses(g);
	standby_enter(s, why ? STANDBY_OFF : STANDBY_BROKEN);
	if (why) {
		snprintf(s->why, sizeof(s->why), "%s", why);
		log_warn("job '%s' has no standby: %s", job->name, why);
		return;
	}
	standby_warn_stuck(job);
	if (job->hyper) /* it came here from another box */
		standby_hyper(job, job->hyper, job->groups);
}

void standby_hyper(struct job *job, uint32_t version, const struct optimizer_hyper *groups)
{
	struct standby *s = job->generation->standby;
	size_t bytes = job->generation->spec.group_count * sizeof(*groups);
	struct standby_hypers *kept;

	if (!standby_runs(s))
		return;
	kept = malloc(sizeof(*kept) + bytes);
	free(s->kept[version % STANDBY_KEPT_MAX]);
	s->kept[version % STANDBY_KEPT_MAX] = kept;
	s->hyper = version;
	s->hyper_first = s->hyper_first ? s->hyper_first : version;
	if (!kept) { /* it can never be told */
		standby_end(job->generation, STANDBY_FORGETS);
		log_warn("job '%s' has no standby any more: no memory in the box for its hyper-parameters", job->name);
		return;
	}
	kept->version = version;
	memcpy(kept->groups, groups, bytes);
	if (s->state >= STANDBY_CONNECTING)
		standby_say_hypers(s);
}

void standby_members(struct job *job)
{
	struct standby *s = job->generation ? job->generation->standby : NULL;

	if (standby_runs(s))
		standby_warn_stuck(job); /* one may have come in place of another */
	if (standby_runs(s) && s->state == STANDBY_WHOLE)
		standby_tell_state(s);
}

bool standby_leaves(struct job *job, uint32_t rank)
{
	struct standby *s = job->state == JOB_RUNNING && job->generation ? job->generation->standby : NULL;
	struct member *m = &job->members[rank];

	if (!standby_runs(s) || s->state != STANDBY_WHOLE || m->leaves)
		return s && m->leaves;
	m->leaves = s->state_said + 1; /* the next that is said, at once or not */
	standby_tell_state(s);
	return true;
}

/* Who waited for that leaves. */
static void standby_let_leave(struct job *job)
{
	struct standby *s = job->generation->standby;

	for (uint32_t i = 0; i < job->world && job->state == JOB_RUNNING; i++) {
		struct member *m = &job->members[i];

		if (!m->leaves || (s->state == STANDBY_WHOLE && s->state_echoed < m->leaves))
			continue;
		m->leaves = 0;
		if (m->session)
			job_leave(m->session);
	}
}

bool standby_barrier(struct job *job, uint64_t id)
{
	struct standby *s = job->generation ? job->generation->standby : NULL;

	if (!standby_runs(s) || s->state != STANDBY_WHOLE || s->barrier_echoed == id)
		return true;
	if (s->barrier_asked != id) {
		s->barrier_asked = id;
		s->barrier_waits = true;
		standby_tell_state(s);
	}
	return false;
}

bool standby_is_able(const struct job *job)
{
	const struct standby *s = job->generation ? job->generation->standby : NULL;

	/* A box that was stopped finds all its sessions ended, in any order. */
	return s && (s->state == STANDBY_WHOLE ||
			    (s->able_ns && s->control->now_ns - s->able_ns <= s->control->config->lost_ms * NS_PER_MS));
}

const struct standby_report *standby_describe(const struct job *job, struct standby_report *out)
{
	const struct standby *s = job->generation ? job->generation->standby : NULL;

	if (!s)
		return NULL;
	*out = (struct standby_report){.state = s->state, .since_ns = s->since_ns, .why = s->why};
	for (unsigned core = 0; core < s->core_count; core++) {
		const struct shard *shard = job->generation->store.shards[core];
		const struct uplink_counters *n = shard && shard->replica ? &shard->replica->counters : NULL;

		if (!n)
			continue;
		out->bytes += stats_read(&n->bytes);
		out->behind += stats_read(&n->messages) - stats_read(&n->results);
	}
	return out;
}
