/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks come, leave, and are lost; jobs begin and end with them.
 */
#include "phub/control/job.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/control/above.h"
#include "phub/control/box.h"
#include "phub/control/job_below.h"
#include "phub/control/job_mirror.h"
#include "phub/control/parent.h"
#include "phub/control/peers.h"
#include "phub/control/session.h"
#include "phub/control/standby.h"

const char *job_state_name(enum job_state state)
{
	static const char *const names[] = {"forming", "running", "loading", "taking over", "rekeying", "ending"};

	return names[state];
}

struct job *job_find(struct control *c, const char *name)
{
	for (struct job *job = c->jobs; job; job = job->next)
		if (job->state != JOB_ENDING && !job->concludes_ns && !job->mirror && strcmp(job->name, name) == 0)
			return job;
	return NULL;
}

struct job *job_create(struct control *c, const char *name, uint32_t world)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->members = calloc(world, sizeof(*job->members));
	if (!job->members) {
		free(job);
		return NULL;
	}
	job->control = c;
	memcpy(job->name, name, strlen(name) + 1);
	job->id = ++c->job_last;
	job->ranks = world;
	job->world = world;
	job->lift = c->config->uplink_type;
	job->created_ns = c->now_ns;
	job->noticed_ns = c->now_ns;
	job->next = c->jobs;
	c->jobs = job;
	c->job_count++;
	return job;
}

/* Jobs, and copies of other boxes' jobs, under this entry of the operator's list that are beside the one that it names.
 */
static unsigned job_count_beside(const struct control *c, const struct config_job *listed)
{
	unsigned count = 0;

	for (const struct job *job = c->jobs; job; job = job->next)
		count += job->state != JOB_ENDING && strcmp(job->name, listed->name) != 0 &&
			 config_find_job(c->config, job->name) == listed;
	return count;
}

bool job_admits_beside(struct session *s)
{
	const struct config_job *listed = config_find_job(s->control->config, s->name);

	if (!listed || strcmp(listed->name, s->name) == 0 || s->moves || /* whose mirror has a place */
		job_count_beside(s->control, listed) < JOB_BESIDE_MAX)
		return true;
	session_refuse(s, PHUB__ERROR_CODE__ERROR_LIMIT,
		"no room for job '%s': there are %u beside job '%s', and no more may be; list it at the box", s->name,
		JOB_BESIDE_MAX, listed->name);
	return false;
}

struct job *job_found(struct session *s)
{
	struct control *c = s->control;
	const struct config_job *listed = config_find_job(c->config, s->name);
	struct job *job;

	if (listed && listed->world && listed->world != s->world) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_MISMATCH,
			"job '%s' has a world of %u in the box's list, rank %u says %u", s->name, listed->world,
			s->rank, s->world);
		return NULL;
	}
	if (!job_admits_beside(s))
		return NULL;
	if (c->job_count >= c->config->jobs_max && !s->moves) { /* whose mirror has a place */
		session_refuse(s, PHUB__ERROR_CODE__ERROR_LIMIT,
			"no room for job '%s': the box runs %u jobs; raise jobs_max there", s->name, c->job_count);
		return NULL;
	}
	job = job_create(c, s->name, s->world);
	if (!job) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_LIMIT, "no memory in the box for job '%s'", s->name);
		return NULL;
	}
	log_info("job '%s' forms: a world of %u", s->name, s->world);
	if (s->moves)
		job_move_begin(job);
	return job;
}

/* Where ranks may come again this one may be lost, and this box not have heard of it yet: so it is to ask again. */
static void job_refuse_elsewhere(struct session *s, const struct job *job)
{
	bool may_come = job->state == JOB_RUNNING && job->generation->spec.lost != LOST_FAIL && !job->peers;

	session_refuse(s, may_come ? PHUB__ERROR_CODE__ERROR_BUSY : PHUB__ERROR_CODE__ERROR_TAKEN,
		"rank %u of job '%s' is at another box%s; give every worker its own rank, or the job another name",
		s->rank, s->name, may_come ? ", and not lost there as far as is known here" : "");
}

int job_join(struct session *s)
{
	struct job *job = job_find(s->control, s->name);
	struct member *m;

	if (s->mirror)
		return job_mirror_join(s);
	if (s->peer)
		return peers_admit(s);
	if (s->below)
		return job_below_join(s);
	if (!job_move_admits(s, job))
		return -ENOENT;
	if (!job)
		job = job_found(s);
	if (!job)
		return -ENOENT;
	if (job->ranks != s->world) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_MISMATCH, "job '%s' has a world of %u, rank %u says %u",
			s->name, job->ranks, s->rank, s->world);
		return -EBADMSG;
	}
	if (above_holds(job)) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_BUSY, "job '%s': " ABOVE_DOUBTS, s->name);
		return -EBUSY;
	}
	m = &job->members[s->rank];
	if (m->elsewhere && !job_below_admits(job, s->rank)) {
		job_refuse_elsewhere(s, job);
		return -EADDRINUSE;
	}
	if (m->session || (m->left && !m->gone)) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_TAKEN,
			"rank %u of job '%s' is taken by %s%s; give every worker its own rank, or the job another name",
			s->rank, s->name, m->peer, m->left ? ", which has left a job that still runs" : "");
		return -EADDRINUSE;
	}
	*m = (struct member){.session = s,
		.gone = m->gone,
		.newcomer = m->newcomer,
		.at = m->at,
		.quit = m->quit,
		.gone_ns = m->gone_ns,
		.hyper = m->hyper};
	memcpy(m->peer, s->stream->peer, sizeof(m->peer));
	s->job = job;
	job->present++;
	log_info("job '%s' rank %u (%s) joined: %u of %u are here", job->name, s->rank, m->peer, job->present,
		job->ranks);
	return 0;
}

/* `patient`: as detach_begin() has it. */
static void job_over(struct job *job, uint64_t drain_ns, bool patient)
{
	if (job->state == JOB_ENDING)
		return;
	job->state = JOB_ENDING;
	job->control->job_count--;
	job_drop_reference(job);
	job_hyper_forget(job);
	job_move_forget(job);
	peers_end(job);
	parent_end(job);
	if (job->generation) {
		/* A box that goes down leaves its jobs to the standby. */
		standby_end(job->generation, job->control->stopping ? STANDBY_KEEPS
					     : job->bereaved        ? STANDBY_WAITS
								    : STANDBY_FORGETS);
		generation_detach(job->generation, job->control->box, drain_ns, patient);
	}
	log_info(job->mirror ? "job '%s': the copy of it that was kept here is over" : "job '%s' ended", job->name);
}

void job_end(struct job *job, uint64_t drain_ns)
{
	job_over(job, drain_ns, false);
}

void job_hurry(struct job *job)
{
	if (job->state == JOB_ENDING && job->generation)
		generation_detach(job->generation, job->control->box, 0, false);
}

/*
 * How long results may go out after a failure. They are owed: what a rank waits for may have been committed with the
 * last push of the very one that was lost. Not when the box goes down: it has no time.
 */
static uint64_t job_drain_ns(const struct job *job, Phub__ErrorCode code)
{
	uint64_t lost_ns = job->control->config->lost_ms * NS_PER_MS;

	if (code == PHUB__ERROR_CODE__ERROR_SHUTDOWN)
		return 0;
	return lost_ns < JOB_DRAIN_NS ? lost_ns : JOB_DRAIN_NS;
}

/* Takes the session out of the job. */
static struct member *job_remove(struct job *job, struct session *s)
{
	struct member *m = &job->members[s->rank];

	m->session = NULL;
	s->job = NULL;
	session_drop_table(s);
	job->present--;
	return m;
}

void job_fail(struct job *job, Phub__ErrorCode code, int rank, const char *format, ...)
{
	char text[ERR_TEXT_MAX];
	int at = snprintf(text, sizeof(text), "job '%s': ", job->name);
	va_list args;

	if (job->state == JOB_ENDING)
		return;
	va_start(args, format);
	vsnprintf(text + at, sizeof(text) - (size_t)at, format, args);
	va_end(args);
	log_warn("%s", text);
	if (rank >= (int)job->ranks)
		rank = -1; /* it is a box */
	parent_blame(job, code, rank, text + at);
	peers_fail(job, code, rank, text + at);
	for (uint32_t i = 0; i < job->world; i++) {
		struct session *s = job->members[i].session;

		if (!s) {
			if (job->generation &&
				!(job->peers && job_is_box(job, i))) /* results are owed to boxes beside */
				generation_unlink(job->generation, job->control->box, i);
			continue;
		}
		job_remove(job, s);
		session_write_error(s, code, rank, text);
		session_flush(s); /* before its data connections end: the reason should be there first */
	}
	job->bereaved = code == PHUB__ERROR_CODE__ERROR_LOST;
	job_end(job, job_drain_ns(job, code));
}

void job_blame(struct job *job, Phub__ErrorCode code, uint32_t rank, const char *format, ...)
{
	bool alone = job->state == JOB_RUNNING && job->generation->spec.lost != LOST_FAIL && job->members[rank].session;
	char text[ERR_TEXT_MAX];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (alone)
		session_refuse(job->members[rank].session, code, "%s", text);
	else
		job_fail(job, code, (int)rank, "%s", text);
}

/* A job that forms loses a rank: the place is free again. */
static void job_vacate(struct job *job, uint32_t rank)
{
	job_forget_table(job, rank);
	if (job->state == JOB_ENDING)
		return;
	if (job_is_box(job, rank))
		job_below_vacate(job, rank);
	else
		job->members[rank] = (struct member){0};
	if (job->present == 0)
		job_end(job, 0);
	else
		parent_changed(job);
}

const char *job_advice(const struct job *job, uint32_t member, char *out, size_t bytes)
{
	const char *there = job->control->config->standby_told;

	if (job_is_box(job, member))
		snprintf(out, bytes, "The job ends here; look at that box");
	else if (standby_is_able(job))
		snprintf(out, bytes,
			"The job ends here. Its standby %s had all of it: its workers may have gone on there (phub "
			"jobs %s). If not, look at that worker",
			there, there);
	else
		snprintf(out, bytes, "The job ends here; look at that worker");
	return out;
}

/*
 * A box beside may lack results, as its connection broke, which it may be the first to notice: it has a moment to ask
 * for them, and while a connection is known to be broken the time to make that anew. Who comes meanwhile finds no job
 * of this name, here or, as the place there is free at once, at the box above.
 */
static void job_conclude_late(struct job *job, bool broken)
{
	for (uint32_t i = 0; i < job->world; i++)
		job->members[i].left = job->members[i].left || !job_is_box(job, i);
	job->concludes_ns = job->control->now_ns ? job->control->now_ns : 1;
	job->whole_ns = broken ? 0 : job->concludes_ns;
	parent_end(job);
}

/* `last` leaves, and with it the job ends. Those whose places became free before took no part in its end. */
static void job_conclude(struct job *job, const struct member *last)
{
	bool finished = last->finished, broken;

	for (uint32_t i = 0; i < job->world; i++)
		finished = finished && (!job->members[i].left || job->members[i].finished);
	job->finished = finished;
	if (finished)
		job_keep_finished(job);
	if (job->state == JOB_RUNNING && job->peers && job_serves_beside(job, &broken))
		job_conclude_late(job, broken);
	else /* boxes beside may not have all results yet, and get them by links that are slow */
		job_over(job, job->peers ? JOB_DRAIN_NS : 0, true);
}

void job_conclude_tick(struct job *job)
{
	uint64_t now_ns = job->control->now_ns;
	bool broken, serves;

	if (job->state != JOB_RUNNING)
		return;
	serves = job_serves_beside(job, &broken);
	if (broken)
		job->whole_ns = 0;
	else if (job->whole_ns == 0)
		job->whole_ns = now_ns;
	if (!serves || now_ns - job->concludes_ns >= job->control->config->lost_ms * NS_PER_MS ||
		(job->whole_ns && now_ns - job->whole_ns >= JOB_ASKED_NS))
		job_over(job, JOB_DRAIN_NS, true);
}

/*
 * The last that was here had come in place of another, and is gone before it took part: so the job ends as it did for
 * those who took part, who have left it, or were lost.
 */
static void job_desert(struct job *job, const struct member *newcomer)
{
	const struct member *last = NULL;

	for (uint32_t i = 0; i < job->world; i++)
		if (job->members[i].quit && &job->members[i] != newcomer && (!last || !job->members[i].finished))
			last = &job->members[i];
	if (last)
		job_conclude(job, last);
	else
		job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, -1, "all of its workers were lost. The job ends here");
}

/* It was at another box before. */
static void job_part_newcomer(struct job *job, struct member *m)
{
	if (m->newcomer)
		*m = (struct member){.gone = true, .elsewhere = true, .at = m->at, .absent = true};
	m->joins = false;
	parent_changed(job);
}

void job_lost(struct session *s, const char *why)
{
	struct job *job = s->job;
	struct member *m;
	char before[MAIL_TEXT_BYTES + 64] = "", advice[JOB_ADVICE_BYTES], name[240];

	if (s->peer) {
		peers_lost(s, why);
		return;
	}
	m = job_remove(job, s);
	if (job->mirror) {
		job_mirror_lost(job, why);
		return;
	}
	if (job->state == JOB_FORMING) {
		/* One that was refused will not do better by itself. */
		log_write(s->state == SESSION_DONE ? LOG_LEVEL_WARN : LOG_LEVEL_INFO,
			"job '%s' %s is gone before the start: %s", job->name,
			job_member_name(job, s->rank, name, sizeof(name)), why);
		job_vacate(job, s->rank);
		return;
	}
	if (m->gone) { /* it had come in place of another, and does not take part yet */
		log_info("job '%s' %s is gone before it took part: %s", job->name,
			job_member_name(job, s->rank, name, sizeof(name)), why);
		job_part_newcomer(job, m);
		if (job->present == 0)
			job_desert(job, m);
		return;
	}
	if (job_move_loses(job, m, why) || job_members_lose(job, s->rank, why))
		return;
	job->deserted = job->state == JOB_RUNNING && job->present == 0 && job->generation->spec.lost != LOST_FAIL;
	/* A worker whose network broke ends its session as soon as it knows: that is not the whole story. */
	if (m->link_ended_ns && m->link_error &&
		job->control->now_ns - m->link_ended_ns < 2 * job->control->config->lost_ms * NS_PER_MS)
		snprintf(before, sizeof(before), "; before that its %s connection to core %u broke: %s", m->transport,
			m->link_core, m->link_text);
	job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, (int)s->rank, "%s was lost: %s%s. %s",
		job_member_name(job, s->rank, name, sizeof(name)), why, before,
		job_advice(job, s->rank, advice, sizeof(advice)));
}

/* Does any rank wait for all others? Then nobody may leave. */
static bool job_is_awaited(const struct job *job)
{
	for (uint32_t i = 0; i < job->world; i++)
		if (job->members[i].waits || job->members[i].tabled)
			return true;
	return false;
}

void job_leave(struct session *s)
{
	struct job *job = s->job;
	uint32_t rank = s->rank;
	struct member *m = job_remove(job, s);
	char name[240];

	session_write_left(s);
	session_flush(s);
	log_info("job '%s' %s left%s", job->name, job_member_name(job, rank, name, sizeof(name)),
		m->finished || job->mirror ? "" : " before the training was finished");
	if (job->mirror) {
		job_mirror_left(job);
		return;
	}
	if (job->state == JOB_FORMING) {
		job_vacate(job, rank);
		return;
	}
	if (job->present == 0) {
		job_conclude(job, m);
		return;
	}
	if (m->gone) {
		job_part_newcomer(job, m);
		return;
	}
	if (job->state == JOB_RUNNING && job->generation->spec.lost == LOST_SHRINK && job_members_lose(job, rank, NULL))
		return;
	m->left = true;
	job->left++;
	if (job->left == job->world) {
		job_conclude(job, m);
	} else if (job_is_awaited(job) || job->state == JOB_REKEYING)
		job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, (int)rank,
			"%s left while others wait for it; all ranks must make the same calls",
			job_member_name(job, rank, name, sizeof(name)));
}

void job_add_dropped(const struct job *job, uint64_t sums[DROP_COUNT])
{
	for (unsigned why = 0; why < DROP_COUNT; why++)
		sums[why] += job->dropped[why];
	if (job->generation)
		generation_add_dropped(job->generation, sums);
}

static void job_destroy(struct job *job)
{
	job_keep_forget(job); /* and with it the generation, if that is being read into */
	job_add_dropped(job, job->control->dropped);
	generation_destroy(job->generation, job->control->box);
	job_drop_reference(job);
	job_hyper_forget(job);
	job_members_forget(job);
	job_mirror_forget(job);
	parent_forget(job);
	peers_forget(job);
	free(job->placement);
	free(job->stops);
	free(job->members);
	free(job);
}

void job_reap(struct control *c)
{
	struct job **at = &c->jobs;
	bool room = false;

	while (*at) {
		struct job *job = *at;

		if (job->state != JOB_ENDING || (job->generation && job->generation->attached > 0)) {
			at = &job->next;
			continue;
		}
		*at = job->next;
		room = room || job->generation;
		job_destroy(job);
	}
	if (room)
		job_start_waiting(c);
}
