/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of other boxes' jobs: made, fed, kept, and thrown away.
 */
#include "phub/control/job_mirror.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/base/stats.h"
#include "phub/control/box.h"
#include "phub/control/session.h"
#include "phub/hyper.h"
#include "transport/crypt.h"

struct job *job_find_mirror(struct control *c, const char *name)
{
	for (struct job *job = c->jobs; job; job = job->next)
		if (job->mirror && job->state != JOB_ENDING && !job->mirror->taker && strcmp(job->name, name) == 0)
			return job;
	return NULL;
}

void job_mirror_forget(struct job *job)
{
	if (!job->mirror)
		return;
	if (job->mirror->taker)
		job->mirror->taker->takes = NULL;
	free(job->mirror->hypers);
	free(job->mirror);
	job->mirror = NULL;
}

void job_mirror_end(struct job *job, Phub__ErrorCode code, const char *why)
{
	struct job *mover = job_find(job->control, job->name);
	struct session *s = job->members[0].session;

	log_info("mirror of job '%s' (box %s) ends: %s", job->name, job->mirror->box, why);
	job_end(job, 0);
	if (s)
		session_refuse(s, code, "its copy ends: %s", why);
	if (mover && mover->moves && mover->state == JOB_FORMING)
		job_fail(mover, PHUB__ERROR_CODE__ERROR_NO_JOB, -1, "it cannot go on here, for its copy is no more: %s",
			why);
}

/* ---- a box comes, and goes ---- */

static struct job *job_mirror_create(struct session *s)
{
	struct control *c = s->control;
	struct mirror *m = calloc(1, sizeof(*m));
	struct job *job = m ? job_create(c, s->name, 1) : NULL;

	if (!job) {
		free(m);
		session_refuse(s, PHUB__ERROR_CODE__ERROR_LIMIT, "no memory in the standby for job '%s'", s->name);
		return NULL;
	}
	m->since_ns = c->now_ns;
	snprintf(m->box, sizeof(m->box), "%s", s->stream->peer);
	job->mirror = m;
	return job;
}

/* The furthest round of a whole copy whose box was lost; 0: it is none such. What comes late by a link that was
 * lost may still change it. */
static uint64_t job_mirror_round(const struct job *job)
{
	const struct generation *g = job->generation;
	uint64_t furthest = 0;

	if (!job->mirror->lost_ns || job->mirror->bereaved || job->state != JOB_RUNNING)
		return 0;
	for (uint32_t i = 0; i < g->spec.plan.chunk_count; i++) {
		uint64_t round = stats_read(&chunk_find(g->store.shards[g->core_of_chunk[i]], i)->round);

		furthest = round > furthest ? round : furthest;
	}
	return furthest;
}

int job_mirror_join(struct session *s)
{
	struct control *c = s->control;
	const struct job *own = job_find(c, s->name);
	struct job *old = job_find_mirror(c, s->name), *job;
	uint64_t before = old ? job_mirror_round(old) : 0;

	if (own) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_TAKEN, "job '%s' %s here itself, with workers of its own",
			s->name, own->moves ? "goes on" : "runs");
		return -EADDRINUSE;
	}
	if (before)
		log_warn("job '%s': box %s comes again with it; the copy that was kept here, at round %" PRIu64
			 ", goes, and if that box has begun anew or from a checkpoint, the rounds since are lost",
			s->name, old->mirror->box, before);
	if (old)
		job_mirror_end(old, PHUB__ERROR_CODE__ERROR_TAKEN, "its box begins another");
	if (c->job_count >= c->config->jobs_max) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_LIMIT,
			"no room for job '%s': the standby runs %u jobs; raise jobs_max there", s->name, c->job_count);
		return -ENOSPC;
	}
	if (!job_admits_beside(s))
		return -ENOSPC;
	job = job_mirror_create(s);
	if (!job)
		return -ENOMEM;
	job->members[0].session = s;
	memcpy(job->members[0].peer, s->stream->peer, sizeof(job->members[0].peer));
	job->present = 1;
	job->mirror->before = before;
	s->job = job;
	log_info("job '%s' of box %s is to be mirrored here", job->name, s->stream->peer);
	return 0;
}

/* Without the box nothing more comes. */
static void job_mirror_unlink(struct job *job)
{
	if (job->generation)
		generation_unlink(job->generation, job->control->box, 0);
}

static void job_mirror_keep(struct job *job)
{
	job->mirror->lost_ns = job->control->now_ns ? job->control->now_ns : 1;
	job_mirror_unlink(job);
}

void job_mirror_lost(struct job *job, const char *why)
{
	struct mirror *m = job->mirror;

	if (job->state == JOB_ENDING || m->taker)
		return;
	if (job->state != JOB_RUNNING || !m->whole) {
		job_mirror_end(job, PHUB__ERROR_CODE__ERROR_LOST, "its box was lost before all of it was here");
		return;
	}
	m->keep_ms = job->control->config->standby_keep_ms;
	job_mirror_keep(job);
	log_warn("job '%s': its box %s was lost: %s. Its copy here is whole, and kept for %.0f s, for its workers",
		job->name, m->box, why, (double)m->keep_ms / 1e3);
}

/*
 * The box has lost workers, and ended the job. If it is they who have lost the box, all of them come here soon; if not,
 * those that were left have heard of the end, and none comes.
 */
static void job_mirror_await(struct job *job)
{
	uint64_t wait_ms = job_move_wait_ns(job->control) / NS_PER_MS, keep_ms = job->control->config->standby_keep_ms;
	struct mirror *m = job->mirror;

	m->keep_ms = wait_ms < keep_ms ? wait_ms : keep_ms;
	job_mirror_keep(job);
	log_warn("job '%s': its box %s has ended it because workers of it were lost there. Its copy here is kept for "
		 "%.0f s: they may come here",
		job->name, m->box, (double)m->keep_ms / 1e3);
}

void job_mirror_left(struct job *job)
{
	if (job->state == JOB_ENDING || job->mirror->taker)
		return;
	if (job->mirror->bereaved && job->mirror->whole && job->state == JOB_RUNNING)
		job_mirror_await(job);
	else
		job_mirror_end(job, PHUB__ERROR_CODE__ERROR_NONE, "the job is over at its box");
}

/* Are workers here for it, and wait for others? They do not for long. */
static bool job_mirror_is_sought(const struct job *job)
{
	const struct job *mover = job_find(job->control, job->name);

	return mover && mover->moves;
}

void job_mirror_tick(struct job *job)
{
	const struct mirror *m = job->mirror;
	const struct control *c = job->control;

	if (m->lost_ns && !m->taker && c->now_ns - m->lost_ns >= m->keep_ms * NS_PER_MS && !job_mirror_is_sought(job))
		job_mirror_end(job, PHUB__ERROR_CODE__ERROR_LOST,
			m->bereaved ? "its box had lost workers of it, and they have not come"
				    : "its box was lost, and its workers have not come within standby_keep_ms");
	else if (job->room_ns && c->now_ns - job->room_ns >= JOB_ROOM_NS)
		job_start_waiting(job->control);
}

void job_mirror_describe(const struct job *job, char *out, size_t bytes)
{
	const struct mirror *m = job->mirror;
	const struct control *c = job->control;
	uint64_t lost_ms = (c->now_ns - m->lost_ns) / NS_PER_MS;

	if (m->lost_ns)
		snprintf(out, bytes,
			"for the workers of box %s, which %s %.0f s ago: the copy is whole, and kept for %.0f s more",
			m->box, m->bereaved ? "lost some of them" : "was lost", (double)lost_ms / 1e3,
			m->keep_ms > lost_ms ? (double)(m->keep_ms - lost_ms) / 1e3 : 0.0);
	else
		snprintf(out, bytes, "for box %s, of whose job this is %s copy", m->box,
			m->whole ? "the whole" : "a growing");
}

/* ---- what it is ---- */

static bool job_mirror_keep_placement(struct session *s, const Phub__Mirror *message)
{
	struct job *job = s->job;
	size_t count = message->core_of_chunk.len;

	if (count == 0 || count > MIRROR_CHUNKS_MAX) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_LIMIT,
			"a standby takes jobs of 1 to %u chunks, and this one has %zu; choose larger chunk_bytes",
			MIRROR_CHUNKS_MAX, count);
		return false;
	}
	job->placement = malloc(count * sizeof(*job->placement));
	if (!job->placement) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_LIMIT, "no memory in the standby to place %zu chunks", count);
		return false;
	}
	for (size_t i = 0; i < count; i++)
		job->placement[i] = message->core_of_chunk.data[i];
	job->placement_count = (uint32_t)count;
	return true;
}

static bool job_mirror_keep_hypers(struct session *s, const Phub__Mirror *message)
{
	struct mirror *m = s->job->mirror;
	const struct spec *spec = &s->table->spec;
	struct err e;

	if (message->n_hypers > HYPER_VERSIONS) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL,
			"%zu versions of the hyper-parameters, and %u are kept", message->n_hypers, HYPER_VERSIONS);
		return false;
	}
	m->hypers = calloc(message->n_hypers + 1, spec->group_count * sizeof(*m->hypers));
	if (!m->hypers) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_LIMIT, "no memory in the standby for hyper-parameters");
		return false;
	}
	m->hyper_count = (uint32_t)message->n_hypers;
	m->hyper_first = m->hyper_count ? message->hypers[0]->version : 0;
	for (uint32_t i = 0; i < m->hyper_count; i++) {
		if (job_hyper_check(spec, message->hypers[i], m->hyper_first + i, &e) < 0) {
			session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "%s", e.text);
			return false;
		}
		for (uint32_t g = 0; g < spec->group_count; g++)
			table_hyper(message->hypers[i]->groups[g], &m->hypers[i * spec->group_count + g]);
	}
	return true;
}

/* Can it be mirrored here at all? False when it was refused. */
static bool job_mirror_check(struct session *s, const Phub__Mirror *message)
{
	const struct control *c = s->control;

	if (message->cores != c->box->core_count) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_UNSUPPORTED,
			"box %s has %u cores and this standby %u; set cores to the same number at both",
			s->stream->peer, message->cores, c->box->core_count);
		return false;
	}
	if (spec_stepwise(&s->table->spec)) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_UNSUPPORTED,
			"jobs with sync %s are not mirrored; bsp alone is", spec_sync_name(s->table->spec.sync));
		return false;
	}
	if (job_seal_is_weak(c->config, s->table->spec.seal)) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_UNSUPPORTED,
			"seal %s is less than the standby takes; see its datagram_seal option",
			seal_name(s->table->spec.seal));
		return false;
	}
	return true;
}

static void job_mirror_hear_mirror(struct session *s, const Phub__Mirror *message)
{
	const struct config *config = s->control->config;
	struct job *job = s->job;
	struct mirror *m = job->mirror;
	struct err e;
	int rc;

	if (job->state != JOB_FORMING || s->table || job->reference || !message->job) {
		session_refuse(
			s, PHUB__ERROR_CODE__ERROR_PROTOCOL, message->job ? "a second mirror" : "a mirror of no job");
		return;
	}
	rc = table_create(message->job, message->world, (uint32_t)config->chunk_bytes, config->keys_max, &s->table, &e);
	if (rc < 0) {
		session_refuse(s, job_code(rc), "%s", e.text);
		return;
	}
	s->table->spec.encrypt = s->encrypt;
	s->table_ns = s->control->now_ns;
	m->world = message->world;
	if (message->box[0])
		snprintf(m->box, sizeof(m->box), "%s", message->box);
	for (char *at = m->box; *at; at++)
		*at = isprint((unsigned char)*at) ? *at : '?';
	if (job_mirror_check(s, message) && job_mirror_keep_placement(s, message))
		job_mirror_keep_hypers(s, message);
}

static void job_mirror_hear_keys(struct session *s, const Phub__Keys *message)
{
	struct job *job = s->job;

	if (!job_add_keys(s, message))
		return;
	job->reference = s->table;
	job->reference_counted = s->table_counted;
	s->table = NULL;
	s->table_counted = 0;
	job_mirror_start(job);
}

static void job_mirror_write_start(struct job *job)
{
	const struct generation *g = job->generation;
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Start start = PHUB__START__INIT;
	uint8_t wrapped[CRYPT_WRAPPED_BYTES];

	if (!job_wrap_key(job->members[0].session, g, wrapped, &start))
		return;
	start.generation = g->spec.generation;
	start.job = g->spec.id;
	start.epoch = g->spec.epoch;
	start.window = g->window;
	start.hyper = job->hyper;
	start.rounds = &job->mirror->before;
	start.n_rounds = job->mirror->before > 0;
	control.message_case = PHUB__CONTROL__MESSAGE_START;
	control.start = &start;
	session_write(job->members[0].session, &control);
}

/* The versions that its box's cores have. */
static void job_mirror_seed_hypers(struct job *job)
{
	const struct mirror *m = job->mirror;
	const struct generation *g = job->generation;
	uint32_t groups = g->spec.group_count;
	uint32_t last = m->hyper_count ? m->hyper_count - 1 : 0;

	memcpy(job->groups, m->hyper_count ? &m->hypers[last * groups] : g->spec.groups, groups * sizeof(*m->hypers));
	job->hyper = m->hyper_first + last;
	for (unsigned core = 0; core < g->spec.core_count; core++) {
		struct shard *shard = g->store.shards[core];

		for (uint32_t i = 0; shard && i < m->hyper_count; i++)
			hypers_begin(&shard->hypers, m->hyper_first + i, i == 0, &m->hypers[i * groups]);
	}
}

void job_mirror_start(struct job *job)
{
	struct control *c = job->control;
	struct generation *g;
	struct err e;
	int rc = generation_create(job, &g, &e);

	if (rc == -ENOMEM && job_await_room(job))
		return;
	job->room_ns = 0;
	if (rc < 0) {
		session_refuse(job->members[0].session, job_code(rc), "the standby cannot mirror it: %s", e.text);
		return;
	}
	c->table_bytes -= job->reference_counted;
	job->reference_counted = 0;
	job->generation = g;
	job->started = g->spec.generation;
	job->epoch = g->spec.epoch;
	job->state = JOB_RUNNING;
	job_mirror_seed_hypers(job);
	log_info("job '%s' of box %s is mirrored: a world of %u, %u chunks, optimizer %s, generation %u, %" PRIu64
		 " bytes with those for going on here",
		job->name, job->mirror->box, job->mirror->world, g->spec.plan.chunk_count,
		spec_optimizer_name(g->spec.optimizer), g->spec.generation, g->memory);
	generation_attach(g, c->box);
	job_mirror_write_start(job);
}

/* ---- how it is ---- */

static void job_mirror_echo(struct session *s, const Phub__MirrorState *state)
{
	Phub__Control control = PHUB__CONTROL__INIT;

	control.message_case = PHUB__CONTROL__MESSAGE_MIRROR_STATE;
	control.mirror_state = (Phub__MirrorState *)(uintptr_t)state;
	session_write(s, &control);
}

/* 0, or -EPROTO after refusing the box. */
static int job_mirror_read_ranks(struct session *s, const uint32_t *ranks, size_t count, uint64_t *out)
{
	uint32_t world = s->job->mirror->world;

	for (size_t i = 0; i < count; i++) {
		if (ranks[i] >= world) {
			session_refuse(
				s, PHUB__ERROR_CODE__ERROR_RANK, "rank %u of a world of %u is lost", ranks[i], world);
			return -EPROTO;
		}
		out[ranks[i] / 64] |= UINT64_C(1) << (ranks[i] % 64);
	}
	return 0;
}

static void job_mirror_hear_state(struct session *s, const Phub__MirrorState *state)
{
	struct job *job = s->job, *mover;
	struct mirror *m = job->mirror;
	uint64_t lost[MAIL_RANK_WORDS] = {0}, left[MAIL_RANK_WORDS] = {0}, unfinished[MAIL_RANK_WORDS] = {0};

	if (job->state != JOB_RUNNING || state->barrier < m->barrier) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "the state of a mirror that %s",
			job->state != JOB_RUNNING ? "has not started" : "goes back behind its barrier");
		return;
	}
	if (job_mirror_read_ranks(s, state->lost, state->n_lost, lost) < 0 ||
		job_mirror_read_ranks(s, state->left, state->n_left, left) < 0 ||
		job_mirror_read_ranks(s, state->unfinished, state->n_unfinished, unfinished) < 0)
		return;
	if (state->whole && !m->whole)
		log_info("job '%s' of box %s: all of it is mirrored here, %.1f s after the beginning", job->name,
			m->box, (double)(job->control->now_ns - m->since_ns) / 1e9);
	m->whole = state->whole;
	m->barrier = state->barrier;
	m->paused = state->paused;
	m->draining = state->draining;
	snprintf(m->reason, sizeof(m->reason), "%s", state->reason);
	memcpy(m->lost, lost, sizeof(m->lost));
	memcpy(m->left, left, sizeof(m->left));
	memcpy(m->unfinished, unfinished, sizeof(m->unfinished));
	job_mirror_echo(s, state);
	mover = job_find(job->control, job->name);
	if (mover && mover->moves)
		job_try_start(mover);
}

static void job_mirror_hear_hyper(struct session *s, const Phub__Hyper *message)
{
	struct job *job = s->job;
	struct err e;

	if (job->state != JOB_RUNNING)
		session_refuse(
			s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "hyper-parameters of a mirror that has not started");
	else if (job_hyper_check(&job->generation->spec, message, job->hyper + 1, &e) < 0)
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "%s", e.text);
	else if (job_hyper_pass(job, message) < 0)
		session_refuse(s, PHUB__ERROR_CODE__ERROR_LIMIT, "no memory in the standby for hyper-parameters");
}

void job_mirror_hear(struct session *s, const Phub__Control *m)
{
	switch (m->message_case) {
	case PHUB__CONTROL__MESSAGE_MIRROR:
		job_mirror_hear_mirror(s, m->mirror);
		break;
	case PHUB__CONTROL__MESSAGE_KEYS:
		job_mirror_hear_keys(s, m->keys);
		break;
	case PHUB__CONTROL__MESSAGE_HYPER:
		job_mirror_hear_hyper(s, m->hyper);
		break;
	case PHUB__CONTROL__MESSAGE_MIRROR_STATE:
		job_mirror_hear_state(s, m->mirror_state);
		break;
	case PHUB__CONTROL__MESSAGE_BROKEN: /* the box begins another session */
		break;
	case PHUB__CONTROL__MESSAGE_HEARTBEAT:
		session_write_heartbeat(s, m->heartbeat->stamp);
		break;
	case PHUB__CONTROL__MESSAGE_LEAVE:
		s->job->mirror->bereaved = m->leave->bereaved;
		job_leave(s);
		break;
	default:
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL,
			"message %d is not for a box to send to its standby", (int)m->message_case);
	}
}

/*
 * What comes through one connection no longer comes: the copy falls behind, and the box must begin anew. One that ended
 * in good order is the box's own doing, and its session says why.
 */
void job_mirror_mail(struct job *job, const struct mail *mail)
{
	struct session *s = job->members[0].session;
	const char *text = mail->text[0] ? mail->text : strerror((int)-mail->value);

	if (!s || job->mirror->taker)
		return;
	if (mail->kind == MAIL_FAILED)
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL,
			"core %u was sent what fits no round of chunk %u (%" PRIu64 ")", mail->core, mail->chunk,
			mail->round);
	else if (mail->kind == MAIL_HYPER_TAKEN)
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL,
			"core %u of the standby did not take version %" PRIu32 " of the hyper-parameters", mail->core,
			mail->table->version);
	else if (mail->kind == MAIL_LINK_CLOSED && mail->value < 0)
		session_refuse(s,
			mail->broken || mail->value == -ECONNRESET || mail->value == -EPIPE
				? PHUB__ERROR_CODE__ERROR_LOST
				: PHUB__ERROR_CODE__ERROR_PROTOCOL,
			"its data connection to core %u ended: %s", mail->core, text);
}
