/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One exchange for each job that takes part in one. Number 0 is the top box everywhere.
 */
#include "phub/control/peers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/control/box.h"
#include "phub/control/job.h"
#include "phub/control/job_below.h"
#include "phub/control/parent.h"
#include "phub/control/peers_move.h"
#include "phub/control/session.h"

#define PEERS_BACKOFF_NS     20000000ull
#define PEERS_BACKOFF_MAX_NS 1000000000ull
#define PEERS_REASON_NS      NS_PER_S /* so long after a session has ended the others may still say why */
#define PEERS_WINDOW_MAX     (1u << 20)

/* ---- sessions that others have with us ---- */

static int peers_refuse(struct session *s, Phub__ErrorCode code, int rc, const char *why)
{
	session_refuse(s, code, "job '%s': %s", s->name, why);
	return rc;
}

/* It lifts nothing to this box: what belongs to chunks may come by it. */
static int peers_admit_route(struct session *s, struct job *job, struct peer *t)
{
	if (t->session)
		return peers_refuse(s, PHUB__ERROR_CODE__ERROR_BUSY, -EBUSY,
			"the session by which that box carried to this one before has not ended; it may try again in a "
			"moment");
	t->session = s;
	s->carries = true;
	s->rank = 0;
	s->job = job;
	return 0;
}

int peers_admit(struct session *s)
{
	struct job *job = job_find(s->control, s->name);
	struct peers *p = job ? job->peers : NULL;
	struct peer *t = p && s->peer <= p->count ? &p->each[s->peer - 1] : NULL;

	if (!p || p->number != s->exchange || job->state == JOB_FORMING)
		return peers_refuse(s, PHUB__ERROR_CODE__ERROR_BUSY, -EBUSY,
			"it does not run here yet with the box that calls; it may try again in a moment");
	if (t && t != &p->each[p->self] && !peers_is_source(p, s->peer - 1))
		return peers_admit_route(s, job, t);
	if (!t || t->slot == JOB_AT_OTHER || !job_is_box(job, t->slot) || job->members[t->slot].session || t->session)
		return peers_refuse(s, PHUB__ERROR_CODE__ERROR_TAKEN, -EADDRINUSE,
			"no box of that number lifts chunks to this one, or another does");
	t->session = s;
	t->told = 0;
	s->rank = t->slot;
	s->job = job;
	memcpy(job->members[t->slot].transport, s->peer_transport, sizeof(s->peer_transport));
	job->control->again = true;
	log_info("job '%s': %s lifts chunks to this box", job->name, t->name);
	return 0;
}

static struct peer *peers_of(const struct session *s)
{
	return &s->job->peers->each[s->peer - 1];
}

/* The session is nobody's any more. */
static struct peer *peers_part(struct session *s)
{
	struct peer *t = peers_of(s);

	t->session = NULL;
	s->job = NULL;
	return t;
}

const char *peers_session_name(const struct session *s)
{
	return peers_of(s)->name;
}

struct session *peers_find_session(const struct job *job, uint32_t member)
{
	for (unsigned i = 0; job->peers && i < job->peers->count; i++)
		if (job->peers->each[i].slot == member)
			return job->peers->each[i].session;
	return NULL;
}

void peers_lost(struct session *s, const char *why)
{
	struct job *job = s->job;
	bool route = s->carries && s->state != SESSION_DONE; /* which was not refused */
	struct peer *t = peers_part(s);

	/* Whose route it is sees that itself, and where it needs it says so; else the rebalance was given up. */
	if (route || t->left || t->lost_ns)
		return;
	/* It may have ended the job before it had a word for us, and the top box says why. */
	t->dropped = true;
	t->lost_ns = job->control->now_ns ? job->control->now_ns : 1;
	snprintf(t->why, sizeof(t->why), "%s", why);
}

/* Another box has ended it. `m` NULL: in good order. */
static void peers_hear_end(struct job *job, struct peer *t, const Phub__Error *m)
{
	char text[ERR_TEXT_MAX];

	if (!m) {
		t->left = true;
		if (t->slot == JOB_AT_OTHER)
			return;
		job->members[t->slot].left = true;
		job->members[t->slot].finished = true; /* whether it is, its workers tell the top box */
		return;
	}
	job_below_copy_reason(job, text, sizeof(text), m->text);
	job_fail(job, m->code ? (Phub__ErrorCode)m->code : PHUB__ERROR_CODE__ERROR_LOST,
		m->rank >= 0 && (uint32_t)m->rank < job->ranks ? m->rank : -1,
		strstr(text, JOB_TOLD) ? "%s" : "%s" JOB_TOLD "%s)", text, t->name + 4);
}

void peers_hear(struct session *s, const Phub__Control *m)
{
	struct job *job = s->job;
	struct peer *t;

	switch (m->message_case) {
	case PHUB__CONTROL__MESSAGE_HEARTBEAT:
		session_write_heartbeat(s, m->heartbeat->stamp);
		break;
	case PHUB__CONTROL__MESSAGE_CARRY:
		peers_move_take(s, m->carry);
		break;
	case PHUB__CONTROL__MESSAGE_LEAVE:
		t = peers_part(s);
		session_write_left(s);
		session_flush(s);
		if (m->leave->error || !s->carries)
			peers_hear_end(job, t, m->leave->error);
		break;
	default:
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "message %d is not for a box beside to send",
			(int)m->message_case);
	}
}

/* ---- sessions that we have with others ---- */

static void peer_hear_start(struct peer *t, const Phub__Start *m)
{
	const struct job *job = t->all->job;
	bool same = m->core_of_chunk.len == job->placement_count;

	for (uint32_t i = 0; same && i < job->placement_count; i++)
		same = m->core_of_chunk.data[i] == job->placement[i];
	if (m->window < 1 || m->window > PEERS_WINDOW_MAX || (!same && m->generation == job->started)) {
		t->code = PHUB__ERROR_CODE__ERROR_PROTOCOL;
		snprintf(t->why, sizeof(t->why), "it starts the job on other cores, or grants %u messages", m->window);
		return;
	}
	t->place = (struct box_place){
		.job = m->job, .generation = m->generation, .epoch = m->epoch, .window = m->window, .rank = m->rank};
}

static void peer_hear(void *arg, const Phub__Control *m)
{
	struct peer *t = arg;
	struct job *job = t->all->job;

	switch (m->message_case) {
	case PHUB__CONTROL__MESSAGE_START:
		peer_hear_start(t, m->start);
		break;
	case PHUB__CONTROL__MESSAGE_ERROR:
		if (t->lost_ns && m->error->code == PHUB__ERROR_CODE__ERROR_BUSY)
			break; /* no news of it */
		t->code = m->error->code;
		t->rank = m->error->rank;
		job_below_copy_reason(job, t->why, sizeof(t->why), m->error->text);
		break;
	case PHUB__CONTROL__MESSAGE_LEFT:
		peers_hear_end(job, t, NULL);
		break;
	case PHUB__CONTROL__MESSAGE_NOTICE:
		job_pass_notice(job, m->notice);
		break;
	case PHUB__CONTROL__MESSAGE_BROKEN:
		box_uplinks_hear_broken(job, &t->uplinks, m->broken->core);
		break;
	default:
		break;
	}
}

static int peer_dial(struct peer *t, struct err *e)
{
	const struct peers *p = t->all;
	const struct config_secret *secret = box_call_secret(p->job);
	const struct call_target target = {
		.what = "uplink",
		.below = p->job->ranks,
		.peer = p->self + 1,
		.exchange = p->number,
		.host = t->host,
		.port = t->port,
		.tls = t->tls,
		.job = p->job->name,
		.secret = secret->bytes,
		.secret_bytes = secret->length,
		.hear = peer_hear,
		.arg = t,
	};

	t->code = 0;
	t->dialled_ns = p->job->control->now_ns;
	return box_call_open(p->job->control, &target, &t->call, e);
}

/* Its session has ended, or cannot be begun. */
static void peer_broke(struct peer *t, const char *text)
{
	struct control *c = t->all->job->control;
	bool busy = t->code == PHUB__ERROR_CODE__ERROR_BUSY || !t->code;

	box_call_hang_up(c, t->call);
	t->call = NULL;
	if ((!t->code && !t->lost_ns) || !t->why[0])
		snprintf(t->why, sizeof(t->why), "%s", box_call_trim(text));
	if (t->state == PEER_DIALLING && busy && c->now_ns - t->since_ns < c->config->lost_ms * NS_PER_MS) {
		t->backoff_ns = t->backoff_ns ? 2 * t->backoff_ns : PEERS_BACKOFF_NS;
		t->backoff_ns = t->backoff_ns > PEERS_BACKOFF_MAX_NS ? PEERS_BACKOFF_MAX_NS : t->backoff_ns;
		t->retry_ns = c->now_ns + t->backoff_ns;
		t->code = 0;
		return;
	}
	t->code = busy ? 0 : t->code; /* that it may be tried again is no reason */
	if (!t->lost_ns)
		t->lost_ns = c->now_ns ? c->now_ns : 1;
}

/* Nobody has said why. True when the job has failed. */
static bool peer_fail(struct peer *t)
{
	struct job *job = t->all->job;
	Phub__ErrorCode code = t->code ? (Phub__ErrorCode)t->code : PHUB__ERROR_CODE__ERROR_LOST;

	if (!t->code && job->control->now_ns - t->lost_ns <= PEERS_REASON_NS)
		return false;
	if (t->code)
		job_fail(job, code, t->rank >= 0 && (uint32_t)t->rank < job->ranks ? t->rank : -1,
			strstr(t->why, JOB_TOLD) ? "%s" : "%s" JOB_TOLD "%s)", t->why, t->name + 4);
	else if (t->dropped)
		job_fail(job, code, -1, "%s was lost: %s. The job ends here; look at that box", t->name, t->why);
	else if (t->state == PEER_DIALLING)
		job_fail(job, code, -1,
			"%s, to which chunks of it are lifted, cannot be reached from here: %s. Look at the network "
			"between "
			"the boxes, or set advertise there",
			t->name, t->why);
	else
		job_fail(job, code, -1,
			"%s, to which chunks of it are lifted, was lost: %s. The job ends here; look at "
			"that box",
			t->name, t->why);
	return true;
}

/* ---- uplinks ---- */

static struct box_call *peer_call(const struct peer *t)
{
	return t == &t->all->each[0] ? parent_call(t->all->job) : t->call;
}

/* What is next with one that has a session with us? 0, or why it is lost. */
static int peer_advance(struct peer *t, struct err *e)
{
	struct job *job = t->all->job;
	int rc = 0;

	if (t->state == PEER_WAITING && job->state == JOB_RUNNING &&
		t->place.generation == job->generation->spec.generation) {
		rc = box_uplinks_begin(job, peer_call(t), &t->place, t->first, t->all->cores, true, &t->uplinks, e);
		t->state = PEER_CONNECTING;
	}
	if (rc == 0 && t->state == PEER_CONNECTING) {
		rc = box_uplinks_give(job, &t->uplinks, e);
		if (rc == 0)
			t->state = PEER_LIFTING;
	}
	if (rc < 0 && rc != -EAGAIN)
		return rc;
	return box_uplinks_check(job, &t->uplinks, e);
}

/* Its session goes on. As box_call_step(); who says nothing from the beginning is lost as one that says nothing later
 * on. */
static int peer_step(struct peer *t, struct err *e)
{
	struct control *c = t->all->job->control;
	int rc = box_call_step(c, t->call, e);

	if (rc == 0 && t->state == PEER_DIALLING && c->now_ns - t->dialled_ns >= c->config->lost_ms * NS_PER_MS)
		return err_set(
			e, -ETIMEDOUT, "it has not answered for %.1f s", (double)(c->now_ns - t->dialled_ns) / 1e9);
	return rc;
}

static void peer_move(struct peer *t)
{
	struct job *job = t->all->job;
	struct control *c = job->control;
	bool above = t == &t->all->each[0];
	struct err e = {.code = 0};
	int rc = 0;

	if (t->left)
		return;
	if (t->lost_ns && (peer_fail(t) || !t->call))
		return;
	if (above) {
		rc = peer_call(t) ? peer_advance(t, &e) : 0;
	} else {
		if (!t->call && c->now_ns < t->retry_ns)
			return;
		if (!t->call)
			rc = peer_dial(t, &e);
		if (rc == 0)
			rc = peer_step(t, &e);
		if (t->left || job->state == JOB_ENDING)
			return;
		if (rc > 0 && t->state == PEER_DIALLING) {
			t->state = PEER_WAITING;
			t->why[0] = '\0';
		}
		if (rc > 0)
			rc = t->code ? -EPROTO : peer_advance(t, &e);
	}
	if (rc < 0)
		peer_broke(t, e.text);
}

void peers_connect(struct job *job)
{
	struct peers *p = job->peers;

	for (unsigned i = 0; p && i < p->count; i++) {
		struct peer *t = &p->each[i];

		if (!t->target)
			continue;
		box_uplinks_forget(&t->uplinks);
		t->since_ns = job->control->now_ns;
		if (t->state > PEER_WAITING || i == 0)
			t->state = PEER_WAITING;
		if (i == 0)
			t->place = parent_place_there(job);
	}
	job->control->again = true;
}

const struct box_uplinks *peers_uplinks(const struct job *job, const struct box_uplinks *mine)
{
	return job->peers ? &job->peers->each[0].uplinks : mine;
}

bool peers_mail(struct job *job, const struct mail *mail)
{
	struct peers *p = job->peers;

	for (unsigned i = 0; p && i < p->count; i++)
		if (p->each[i].target && box_uplinks_hear(job, &p->each[i].uplinks, mail))
			return true;
	return false;
}

void peers_step(struct job *job)
{
	struct peers *p = job->peers;

	for (unsigned i = 0; i < p->count && job->state != JOB_ENDING; i++) {
		struct peer *t = &p->each[i];

		if (t->session && !t->session->carries && job->state == JOB_RUNNING &&
			t->told != job->generation->spec.generation && t->session->state == SESSION_MEMBER) {
			t->told = job->generation->spec.generation;
			job_write_beside(job, t->slot, t->session);
		}
		if (job->state != JOB_ENDING && t->target && job->generation)
			peer_move(t);
		else if (job->state != JOB_ENDING && t->dropped && !t->left)
			peer_fail(t);
	}
	if (job->state != JOB_ENDING)
		peers_move_step(job);
}

/* ---- the end ---- */

void peers_pass(struct job *job, const Phub__Control *control)
{
	struct peers *p = job->peers;

	for (unsigned i = 0; p && i < p->count && job->state != JOB_ENDING; i++)
		if (p->each[i].session)
			session_write(p->each[i].session, control);
}

static void peers_close(struct job *job, const Phub__Error *error)
{
	struct peers *p = job->peers;

	for (unsigned i = 0; p && i < p->count; i++) {
		struct peer *t = &p->each[i];
		struct session *s = t->session;
		Phub__Leave leave = PHUB__LEAVE__INIT;

		leave.finished = job->finished;
		leave.error = (Phub__Error *)(uintptr_t)error;
		if (t->call && t->state == PEER_DIALLING)
			box_call_hang_up(job->control, t->call);
		else if (t->call)
			box_call_part(job->control, t->call, &leave);
		t->call = NULL;
		t->left = true;
		if (!s)
			continue;
		peers_part(s);
		if (error)
			session_write_error(s, (Phub__ErrorCode)error->code, error->rank, error->text);
		else
			session_write_left(s);
		session_flush(s);
	}
}

void peers_fail(struct job *job, Phub__ErrorCode code, int rank, const char *text)
{
	Phub__Error error = PHUB__ERROR__INIT;

	error.code = code;
	error.rank = rank;
	error.text = (char *)(uintptr_t)text;
	peers_close(job, &error);
}

void peers_end(struct job *job)
{
	peers_close(job, NULL);
}

void peers_forget(struct job *job)
{
	struct peers *p = job->peers;

	if (!p)
		return;
	for (unsigned i = 0; i < p->count; i++) {
		box_call_hang_up(job->control, p->each[i].call);
		box_uplinks_forget(&p->each[i].uplinks);
	}
	peers_move_forget(p);
	free(p->outcome);
	free(p->home);
	free(p->ways);
	free(p->boxes);
	free(p);
	job->peers = NULL;
}

/* ---- for others ---- */

bool peers_ask(const struct job *job)
{
	return job->peers && !peers_is_top(job->peers);
}

bool peers_stand_for(const struct job *job, uint32_t member, uint32_t rank)
{
	const struct peers *p = job->peers;

	return p && p->kind == WAYS_CHAIN && peers_is_top(p) && p->each[p->count - 1].slot == member &&
	       peers_box_of(p, rank) > 0;
}

bool peers_have_own(const struct job *job, uint32_t but)
{
	const struct peers *p = job->peers;

	for (uint32_t i = 0; i < job->world; i++) {
		bool beside = false;

		for (unsigned n = 0; n < p->count; n++)
			beside = beside || p->each[n].slot == i;
		if (i != but && !beside && !job->members[i].gone)
			return true;
	}
	return false;
}

static struct peer *peers_find_next(const struct job *job, uint32_t chunk)
{
	struct peers *p = job->peers;

	if (!p || !p->home || !job->generation || chunk >= job->generation->spec.plan.chunk_count ||
		p->home[chunk] == p->self)
		return NULL;
	return &p->each[ways_next(p->kind, p->count, p->home[chunk], p->self)];
}

const char *peers_next(const struct job *job, uint32_t chunk)
{
	const struct peer *t = peers_find_next(job, chunk);

	return t ? t->name : NULL;
}

bool peers_next_is_done(const struct job *job, uint32_t chunk)
{
	struct peer *t = peers_find_next(job, chunk);
	const struct control *c = job->control;
	uint64_t results;

	if (!t || !t->left)
		return false;
	if (!box_uplinks_carry(&t->uplinks, spec_way(&job->generation->spec, chunk)))
		return true;
	results = box_uplinks_results(job, &t->uplinks);
	if (!t->results_ns || results != t->results) {
		t->results = results;
		t->results_ns = c->now_ns ? c->now_ns : 1;
	}
	return c->now_ns - t->results_ns > JOB_DRAIN_NS + c->config->lost_ms * NS_PER_MS;
}

struct box_call *peers_call(const struct job *job, unsigned number)
{
	const struct peer *t = &job->peers->each[number];

	return t->target && t->state == PEER_LIFTING && !t->left && !t->lost_ns ? peer_call(t) : NULL;
}

unsigned peers_count(const struct job *job)
{
	return job->peers ? job->peers->count : 0;
}

void peers_describe(const struct job *job, unsigned number, struct peers_report *out)
{
	static const char *const states[] = {"dialling", "waiting", "connecting", "lifting"};
	const struct peers *p = job->peers;
	const struct peer *t = &p->each[number];

	*out = (struct peers_report){
		.box = t->address,
		.name = number == 0 && peers_is_top(p) ? "" : names_find(job->control, t->host, t->port),
		.state = number == p->self ? "here"
			 : t->left         ? "left"
			 : t->target       ? states[t->state]
					   : "",
		.why = t->target && t->state == PEER_DIALLING ? t->why : "",
		.by = box_call_by(t->target ? peer_call(t) : NULL),
		.by_why = t->target && peer_call(t) ? peer_call(t)->by_why : "",
		.bytes = box_uplinks_bytes(job, &t->uplinks),
		.lifts = t->slot != JOB_AT_OTHER && peers_is_source(p, number),
	};
	for (uint32_t i = 0; p->home && job->generation && i < job->generation->spec.plan.chunk_count; i++) {
		out->homes += p->home[i] == number;
		out->home_bytes += p->home[i] == number ? job->generation->chunk_bytes[i] : 0;
	}
}
