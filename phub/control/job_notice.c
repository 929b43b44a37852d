/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is missing, about once a second to all who wait: nobody hangs in silence. Also the timers of a job: broken data
 * connections that nothing has explained, samples for rates.
 */
#include "phub/control/job.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/base/ranks.h"
#include "phub/control/box.h"
#include "phub/control/job_below.h"
#include "phub/control/job_mirror.h"
#include "phub/control/parent.h"
#include "phub/control/peers.h"
#include "phub/control/session.h"

#define JOB_MISSING_MAX 64u /* ranks that a Notice names */

struct job_missing {
	uint32_t ranks[JOB_MISSING_MAX];
	uint32_t known, count;
};

struct job_notice {
	Phub__About about;
	uint64_t round;
	uint32_t chunk;
	struct job_missing missing;
	char text[1024 + ERR_TEXT_MAX];
};

static void job_miss(const struct job *job, struct job_missing *m, uint32_t member)
{
	uint32_t first = member, last = member;

	if (job_is_box(job, member)) { /* who of them is missing, that box tells */
		first = 0;
		last = job->ranks - 1;
	}
	for (uint32_t i = first; i <= last; i++) {
		if (i != member && !job_stands_for(job, member, i))
			continue;
		if (m->known < JOB_MISSING_MAX)
			m->ranks[m->known++] = i;
		m->count++;
	}
}

static void job_list_ranks(const struct job_missing *m, char *out, size_t bytes)
{
	ranks_write(m->ranks, m->known, m->count, out, bytes);
}

static Phub__Notice job_fill_notice(const struct job_notice *n)
{
	Phub__Notice notice = PHUB__NOTICE__INIT;

	notice.about = n->about;
	notice.round = n->round;
	notice.chunk = n->chunk;
	notice.text = (char *)(uintptr_t)n->text;
	notice.missing = (uint32_t *)(uintptr_t)n->missing.ranks;
	notice.n_missing = n->missing.known;
	notice.missing_count = n->missing.count;
	return notice;
}

static void job_write_notice(struct session *s, const struct job_notice *n)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Notice notice = job_fill_notice(n);

	control.message_case = PHUB__CONTROL__MESSAGE_NOTICE;
	control.notice = &notice;
	session_write(s, &control);
}

/* Tells every rank but one (or none: UINT32_MAX). A write that fails may end the job. */
static void job_notice_all(struct job *job, uint32_t except, const struct job_notice *n)
{
	for (uint32_t i = 0; i < job->world && job->state != JOB_ENDING; i++)
		if (i != except && job->members[i].session)
			job_write_notice(job->members[i].session, n);
}

void job_tell_silent(struct session *s, uint64_t silent_ms)
{
	struct job *job = s->job;
	const struct config *config = s->control->config;
	struct job_notice n = {.about = PHUB__ABOUT__ABOUT_RANK, .chunk = UINT32_MAX};
	char who[240];

	snprintf(n.text, sizeof(n.text), "%s silent for %.1f s; declared lost in %.1f s",
		job_member_name(job, s->rank, who, sizeof(who)), (double)silent_ms / 1e3,
		(double)(config->lost_ms - silent_ms) / 1e3);
	log_warn("job '%s': %s", job->name, n.text);
	job_notice_all(job, s->rank, &n);
}

void job_tell_heard(struct session *s)
{
	struct job_notice n = {.about = PHUB__ABOUT__ABOUT_RANK, .chunk = UINT32_MAX};
	char who[240];

	snprintf(n.text, sizeof(n.text), "%s is heard again", job_member_name(s->job, s->rank, who, sizeof(who)));
	log_info("job '%s': %s", s->job->name, n.text);
	job_notice_all(s->job, s->rank, &n);
}

/* ---- waiting for the start, or at a barrier ---- */

/* It was called, and is not reached yet. */
static bool job_lacks_above(const struct parent_report *above)
{
	return above->state == PARENT_DIALLING && above->why[0];
}

/* What an operator may do comes first: a worker keeps the beginning of it. */
static const char *job_write_lack(const struct parent_report *above, char out[ERR_TEXT_MAX])
{
	snprintf(out, ERR_TEXT_MAX, "is not there: %.240s%s%.240s", above->advice, above->advice[0] ? "; " : "",
		above->why);
	return out;
}

/* All ranks are here: then it is the box above that is waited for. False: it is not. */
static bool job_describe_above(const struct job *job, struct job_notice *n)
{
	struct parent_report above;
	char box[NAMES_TEXT_BYTES], lack[ERR_TEXT_MAX];

	if (job->state != JOB_FORMING || !parent_describe(job, &above) || above.state >= PARENT_STARTED)
		return false;
	snprintf(n->text, sizeof(n->text), "all %u ranks of job '%s' are here, and the box above (uplink %s) %s",
		job->ranks, job->name, names_above(job->control, box, sizeof(box)),
		job_lacks_above(&above) ? job_write_lack(&above, lack) : "has not started it");
	return true;
}

/* What the start waits for. False: for nobody. */
static bool job_describe_start(const struct job *job, struct job_notice *n)
{
	struct parent_report above = {.why = ""};
	char ranks[160], joined[64] = "", lack[ERR_TEXT_MAX], box[ERR_TEXT_MAX + 32] = "";
	uint32_t here = 0;

	*n = (struct job_notice){
		.about = PHUB__ABOUT__ABOUT_START, .round = (uint64_t)job->started + 1, .chunk = UINT32_MAX};
	if (job->tabled == 0 || job->state == JOB_REKEYING)
		return false;
	for (uint32_t i = 0; i < job->world; i++) {
		if (!job->members[i].tabled && !job->members[i].gone) {
			here += job->members[i].session != NULL;
			job_miss(job, &n->missing, i);
		}
	}
	if (n->missing.count == 0)
		return job_describe_above(job, n);
	job_list_ranks(&n->missing, ranks, sizeof(ranks));
	if (parent_describe(job, &above) && job_lacks_above(&above))
		snprintf(box, sizeof(box), "; the box above (uplink) %s", job_write_lack(&above, lack));
	if (here > 0)
		snprintf(joined, sizeof(joined), "; %u of them joined but sent no keys", here);
	snprintf(n->text, sizeof(n->text), "job '%s' waits to start for rank%s %s of %u%s%s%s%s", job->name,
		n->missing.count == 1 ? "" : "s", ranks, job->ranks, joined, box,
		job->mismatch.code ? "; it will fail: " : "", job->mismatch.code ? job->mismatch.text : "");
	return true;
}

static bool job_describe_barrier(const struct job *job, struct job_notice *n)
{
	bool waits = false;
	char ranks[160];

	*n = (struct job_notice){.about = PHUB__ABOUT__ABOUT_BARRIER, .chunk = UINT32_MAX};
	for (uint32_t i = 0; i < job->world; i++) {
		waits = waits || job->members[i].waits;
		if (!job->members[i].waits && !job_is_let_go(job, i))
			job_miss(job, &n->missing, i);
	}
	if (!waits)
		return false;
	job_list_ranks(&n->missing, ranks, sizeof(ranks));
	snprintf(n->text, sizeof(n->text), "job '%s': the barrier waits for rank%s %s of %u", job->name,
		n->missing.count == 1 ? "" : "s", ranks, job->ranks);
	return true;
}

static void job_notice_start(struct job *job)
{
	uint64_t now_ns = job->control->now_ns;
	struct job_notice n;

	if (!job_describe_start(job, &n))
		return;
	for (uint32_t i = 0; i < job->world && job->state != JOB_ENDING; i++) {
		const struct member *m = &job->members[i];

		if (m->session && m->tabled && now_ns - m->waits_ns >= JOB_NOTICE_NS)
			job_write_notice(m->session, &n);
	}
}

static void job_notice_barrier(struct job *job)
{
	uint64_t now_ns = job->control->now_ns;
	struct job_notice n;

	if (!job_describe_barrier(job, &n))
		return;
	for (uint32_t i = 0; i < job->world && job->state != JOB_ENDING; i++) {
		const struct member *m = &job->members[i];

		n.round = m->barrier;
		if (m->session && m->waits && now_ns - m->waits_ns >= JOB_NOTICE_NS)
			job_write_notice(m->session, &n);
	}
}

/* ---- rounds that do not close ---- */

static bool job_is_missing(const struct mail *mail, uint32_t rank)
{
	return (mail->missing[rank / 64] >> (rank % 64)) & 1;
}

/* Of those who are missing the first who has left; job->world: none has. */
static uint32_t job_find_left(const struct job *job, const struct mail *mail)
{
	uint32_t i = 0;

	while (i < job->world && !(job->members[i].left && job_is_missing(mail, i)))
		i++;
	return i;
}

/* The round would wait for ever. */
static void job_fail_left(struct job *job, const struct mail *mail, int rank, const char *who)
{
	char keys[160];

	job_chunk_keys(job, mail->chunk, UINT32_MAX, keys, sizeof(keys));
	job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, rank,
		"round %" PRIu64 " of %s waits for %s, which has left; all ranks must do the same rounds", mail->round,
		keys, who);
}

/* Who is missing from it? Asked by a session, or, 0, because a rank has left. */
static void job_ask(struct job *job, uint32_t chunk, uint64_t round, uint32_t rank, uint64_t session)
{
	const struct generation *g = job->generation;
	const struct mail mail = {.kind = MAIL_WHO,
		.core = g->core_of_chunk[chunk],
		.shard = g->store.shards[g->core_of_chunk[chunk]],
		.job = g->spec.id,
		.generation = g->spec.generation,
		.rank = rank,
		.chunk = chunk,
		.round = round,
		.detail = session};

	post_send(&job->control->box->posts[mail.core], &mail);
}

/*
 * A round waits for one that has left. What the core tells of a stall may be older than what has come since: the last
 * push of that rank, its results, and that it left. So the core is asked once more, and what it tells now counts. True
 * when the job has failed.
 */
static bool job_check_left(struct job *job, const struct mail *mail)
{
	if (job->left > 0 || job->peers) {
		if (job_find_left(job, mail) < job->world)
			job_ask(job, mail->chunk, mail->round, 0, 0);
		if (peers_next_is_done(job, mail->chunk))
			job_fail_left(job, mail, -1, peers_next(job, mail->chunk));
	}
	return job->state == JOB_ENDING;
}

/* What it tells now. */
static void job_answered_left(struct job *job, const struct mail *mail)
{
	uint32_t left = job_find_left(job, mail);
	char who[240];

	if (job->state == JOB_RUNNING && mail->value > 0 && left < job->world)
		job_fail_left(job, mail, (int)left, job_member_name(job, left, who, sizeof(who)));
}

/* The box below at which all of them are; JOB_AT_OTHER: there is none. */
static uint32_t job_find_box_of(const struct job *job, const struct job_missing *missing)
{
	uint32_t at = JOB_AT_OTHER;

	for (uint32_t i = 0; i < missing->known; i++) {
		const struct member *m = &job->members[missing->ranks[i]];

		if (!m->elsewhere || m->absent || (i > 0 && m->at != at))
			return JOB_AT_OTHER;
		at = m->at;
	}
	return at;
}

/* "rank 2 (127.0.0.1:4242, heard of 2.1 s ago)" for one, a list for more, and the box at which they are. */
static void job_describe_missing(const struct job *job, const struct job_missing *missing, char *out, size_t bytes)
{
	const struct session *s = missing->known == 1 ? job->members[missing->ranks[0]].session : NULL;
	uint32_t box = job_find_box_of(job, missing);
	char ranks[160], name[NAMES_TEXT_BYTES], heard[64] = "";

	if (missing->count == 1 && s) {
		snprintf(out, bytes, "rank %u (%s, heard of %.1f s ago)", missing->ranks[0], s->stream->peer,
			(double)(job->control->now_ns - s->heard_ns) / 1e9);
		return;
	}
	job_list_ranks(missing, ranks, sizeof(ranks));
	if (box == JOB_AT_OTHER) {
		snprintf(out, bytes, "rank%s %s", missing->count == 1 ? "" : "s", ranks);
		return;
	}
	s = job->members[box].session;
	if (s)
		snprintf(heard, sizeof(heard), ", heard of %.1f s ago",
			(double)(job->control->now_ns - s->heard_ns) / 1e9);
	snprintf(out, bytes, "rank%s %s (at %s%s%s%s)", missing->count == 1 ? "" : "s", ranks,
		job_box_name(job, box, name, sizeof(name)), heard, job->members[box].paused[0] ? "; there " : "",
		job->members[box].paused);
}

static void job_describe_round(const struct job *job, const struct mail *mail, const char *keys, struct job_notice *n)
{
	char who[NAMES_TEXT_BYTES + JOB_REASON_BYTES + JOB_PAUSED_BYTES + 224];
	const char *next = peers_next(job, mail->chunk);

	*n = (struct job_notice){.about = PHUB__ABOUT__ABOUT_ROUND, .round = mail->round, .chunk = mail->chunk};
	if (mail->value < 0) {
		snprintf(n->text, sizeof(n->text), "round %" PRIu64 " of %s is complete, and its result on the way",
			mail->round, keys);
		return;
	}
	job_operator_describe(job, who, sizeof(who));
	if (job->paused || (!job->parent && job->control->above.doubt_ns)) {
		snprintf(n->text, sizeof(n->text), "round %" PRIu64 " of %s is held: %s", mail->round, keys, who);
		return;
	}
	for (uint32_t i = 0; i < job->world; i++)
		if (job_is_missing(mail, i))
			job_miss(job, &n->missing, i);
	if (n->missing.count == 0 && next)
		snprintf(who, sizeof(who), "%s, to which its sum goes, or for hyper-parameters or replies", next);
	else if (n->missing.count == 0 && job->parent && !job->peers)
		snprintf(who, sizeof(who), "the box above (uplink), or for hyper-parameters or replies");
	else if (n->missing.count == 0)
		snprintf(who, sizeof(who), "hyper-parameters or replies");
	else
		job_describe_missing(job, &n->missing, who, sizeof(who));
	snprintf(n->text, sizeof(n->text), "round %" PRIu64 " of %s waits for %s", mail->round, keys, who);
}

/* Is it here or below, so that this box knows more of it than the one above? */
static bool job_knows(const struct job *job, uint32_t rank)
{
	const struct member *m = &job->members[rank];

	return m->session || (m->elsewhere && m->at != JOB_AT_OTHER);
}

static void job_keep_waiting(struct job *job, const struct job_notice *n, bool above)
{
	snprintf(job->waiting, sizeof(job->waiting), "%.*s", (int)sizeof(job->waiting) - 1, n->text);
	job->waiting_ns = job->control->now_ns;
	job->waiting_round = n->round;
	job->waiting_chunk = n->chunk;
	job->waiting_above = above;
}

/* What the box above tells of a round, in this one's words where it is about those here. False: it is about none. */
static bool job_take_notice(struct job *job, const Phub__Notice *m, struct job_notice *n)
{
	char who[NAMES_TEXT_BYTES + JOB_REASON_BYTES + JOB_PAUSED_BYTES + 224], keys[160];
	bool knows = true;

	*n = (struct job_notice){.about = m->about, .round = m->round, .chunk = m->chunk};
	if (m->about != PHUB__ABOUT__ABOUT_ROUND || job->state != JOB_RUNNING || m->n_missing == 0 ||
		m->n_missing > JOB_MISSING_MAX || m->chunk >= job->generation->spec.plan.chunk_count)
		return false;
	for (size_t i = 0; i < m->n_missing; i++) {
		if (m->missing[i] >= job->ranks)
			return false;
		knows = knows && job_knows(job, m->missing[i]);
		n->missing.ranks[n->missing.known++] = m->missing[i];
	}
	n->missing.count = m->missing_count > n->missing.known ? m->missing_count : n->missing.known;
	job_chunk_keys(job, m->chunk, UINT32_MAX, keys, sizeof(keys));
	job_describe_missing(job, &n->missing, who, sizeof(who));
	if (job->paused) {
		job_operator_describe(job, who, sizeof(who));
		snprintf(n->text, sizeof(n->text), "round %" PRIu64 " of %s is held: %s", m->round, keys, who);
	} else if (knows)
		snprintf(n->text, sizeof(n->text), "round %" PRIu64 " of %s waits for %s", m->round, keys, who);
	else
		job_below_copy(n->text, sizeof(n->text), m->text);
	return true;
}

void job_pass_notice(struct job *job, const Phub__Notice *notice)
{
	bool own = job->waiting_ns && !job->waiting_above && job->control->now_ns - job->waiting_ns < 2 * JOB_NOTICE_NS;
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Notice mine;
	struct job_notice n;

	control.message_case = PHUB__CONTROL__MESSAGE_NOTICE;
	control.notice = (Phub__Notice *)(uintptr_t)notice;
	if (job_take_notice(job, notice, &n)) {
		mine = job_fill_notice(&n);
		control.notice = &mine;
		if (!own) /* which says more: who of those at this box it is */
			job_keep_waiting(job, &n, true);
	}
	for (uint32_t i = 0; i < job->world && job->state != JOB_ENDING; i++)
		if (job->members[i].session)
			session_write(job->members[i].session, &control);
}

void job_stalled(struct job *job, const struct mail *mail)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	struct job_notice n;
	Phub__Notice notice;
	char keys[160];

	if (mail->value < 0) {
		if (mail->chunk == job->waiting_chunk && mail->round == job->waiting_round)
			job->waiting_ns = 0;
		return;
	}
	if (job_check_left(job, mail))
		return;
	job_chunk_keys(job, mail->chunk, UINT32_MAX, keys, sizeof(keys));
	job_describe_round(job, mail, keys, &n);
	job_keep_waiting(job, &n, false);
	log_debug("job '%s': %s", job->name, n.text);
	job_notice_all(job, UINT32_MAX, &n);
	control.message_case = PHUB__CONTROL__MESSAGE_NOTICE;
	control.notice = &notice;
	notice = job_fill_notice(&n);
	if (n.missing.count > 0)
		peers_pass(job, &control);
}

/* ---- who asks ---- */

/* Passes the question on to the chunk's core. False: there is nobody to ask. */
static bool job_ask_core(struct session *s, const Phub__Who *message)
{
	if (s->job->state != JOB_RUNNING || message->chunk >= s->job->generation->spec.plan.chunk_count)
		return false;
	if (s->asked)
		return true; /* one at a time: the answer to the first is on its way */
	s->asked = true;
	job_ask(s->job, message->chunk, message->round, s->rank, s->id);
	return true;
}

void job_hear_who(struct session *s, const Phub__Who *message)
{
	const struct member *m = &s->job->members[s->rank];
	struct job_notice n = {.about = message->about, .round = message->round, .chunk = UINT32_MAX};
	struct job_notice found;
	bool known = false;

	if (message->about == PHUB__ABOUT__ABOUT_ROUND) {
		if (job_ask_core(s, message))
			return;
		n.chunk = message->chunk;
	} else if (message->about == PHUB__ABOUT__ABOUT_START) {
		known = m->tabled && job_describe_start(s->job, &found) && found.round == message->round;
	} else if (message->about == PHUB__ABOUT__ABOUT_BARRIER) {
		known = m->waits && m->barrier == message->round && job_describe_barrier(s->job, &found);
		found.round = message->round;
	}
	/* Who waits for nobody is told so: it waits for our answer. */
	job_write_notice(s, known ? &found : &n);
}

void job_missing(struct control *c, struct job *job, const struct mail *mail)
{
	struct session *s = session_find(c, mail->detail);
	struct job_notice n;
	char keys[160];

	if (job && mail->detail == 0)
		job_answered_left(job, mail);
	if (!s)
		return;
	s->asked = false;
	if (s->job != job)
		return;
	job_chunk_keys(job, mail->chunk, UINT32_MAX, keys, sizeof(keys));
	job_describe_round(job, mail, keys, &n);
	job_write_notice(s, &n);
}

/* ---- timers ---- */

/* Since when the oldest end among the rank's connections is not explained, and whose it is; 0: there is none. */
static uint64_t job_link_ended(const struct job *job, uint32_t rank, uint32_t *core)
{
	uint64_t oldest = 0;

	for (uint32_t i = 0; i < job->generation->spec.core_count; i++) {
		uint64_t ended_ns = generation_link(job->generation, rank, i)->ended_ns;

		if (ended_ns == 0 || (oldest && ended_ns >= oldest))
			continue;
		oldest = ended_ns;
		*core = i;
	}
	return oldest;
}

/*
 * A data connection ended and its session lives on: a worker about to leave or to send its next key table ends them
 * first, one whose connection broke makes it anew, and one that is in trouble ends its session itself. When nothing has
 * explained it by the deadline, the rank is lost.
 */
static void job_check_links(struct job *job)
{
	const struct control *c = job->control;

	for (uint32_t i = 0; i < job->world && job->state == JOB_RUNNING; i++) {
		struct member *m = &job->members[i];
		uint64_t ended_ns;
		uint32_t core = 0;
		char who[240];

		if (!m->link_ended_ns || m->left || m->gone || m->tabled || (m->session && m->session->table))
			continue;
		ended_ns = job_link_ended(job, i, &core);
		if (ended_ns == 0 || c->now_ns - ended_ns < c->config->lost_ms * NS_PER_MS)
			continue;
		job_blame(job, PHUB__ERROR_CODE__ERROR_LOST, i,
			"%s was lost: its %s connection to core %u %s%s; look at it and the network",
			job_member_name(job, i, who, sizeof(who)), m->transport, core,
			m->link_error ? "broke: " : "was closed", m->link_text);
	}
}

bool job_serves_beside(const struct job *job, bool *broken)
{
	bool serves = false;
	uint32_t core;

	*broken = false;
	for (uint32_t i = 0; i < job->world; i++) {
		if (!job_is_box(job, i) || job->members[i].left || !peers_find_session(job, i))
			continue;
		serves = true;
		*broken = *broken || job_link_ended(job, i, &core);
	}
	return serves;
}

static void job_sample(struct job *job)
{
	const struct control *c = job->control;
	const struct job_sample *last = &job->samples[(job->sample_count + JOB_SAMPLES - 1) % JOB_SAMPLES];
	struct generation_sums sums;

	if (job->sample_count > 0 && c->now_ns - last->at_ns < JOB_SAMPLE_NS)
		return;
	sums = generation_sums(job->generation);
	job->samples[job->sample_count++ % JOB_SAMPLES] = (struct job_sample){c->now_ns, sums.rounds, sums.bytes};
}

void job_tick(struct job *job)
{
	uint64_t now_ns = job->control->now_ns;

	if (job->mirror) {
		job_mirror_tick(job);
		return;
	}
	if (job->moves)
		job_move_tick(job);
	if (job->concludes_ns)
		job_conclude_tick(job);
	if (job->state == JOB_RUNNING) {
		job_sample(job);
		job_check_links(job);
		job_members_tick(job);
		job_operator_tick(job);
		job_keep_tick(job);
	}
	if (job->mismatch.code)
		job_try_start(job);
	if (job->state == JOB_FORMING)
		job_begin_tick(job);
	if (job->room_ns && now_ns - job->room_ns >= JOB_ROOM_NS)
		job_start_waiting(job->control);
	if (job->state == JOB_ENDING || now_ns - job->noticed_ns < JOB_NOTICE_NS)
		return;
	job->noticed_ns = now_ns;
	job_notice_start(job);
	if (job->state != JOB_ENDING)
		job_notice_barrier(job);
}
