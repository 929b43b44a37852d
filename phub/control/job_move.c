/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers come whose box was lost, and their job goes on here from its copy: nothing of that is handed out before all
 * of them have come, so that no two boxes go on with one job.
 */
#include "phub/control/job_mirror.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/base/ranks.h"
#include "phub/control/box.h"
#include "phub/control/session.h"
#include "phub/control/standby.h"
#include "phub/members.h"
#include "phub/mirror.h"

#define MOVE_RANKS_MAX 64u /* that a message names */

/* ---- who may come ---- */

/* It names a job that another box runs, and does not say that it comes from there. */
static bool job_move_turns_away(struct session *s)
{
	const struct job *mirror = job_find_mirror(s->control, s->name);

	if (!mirror)
		return false;
	session_refuse(s, PHUB__ERROR_CODE__ERROR_NO_JOB,
		"job '%s' runs at box %s, of which this is the standby%s; name that box, or, should its job be over "
		"for "
		"good, end the copy here with phub jobs evict",
		s->name, mirror->mirror->box, mirror->mirror->lost_ns ? " (and that was lost)" : "");
	return true;
}

static bool job_move_refuse(struct session *s, const char *why)
{
	session_refuse(s, PHUB__ERROR_CODE__ERROR_NO_JOB, "job '%s' cannot go on here: %s", s->name, why);
	return false;
}

bool job_move_admits(struct session *s, const struct job *job)
{
	const struct job *mirror = job_find_mirror(s->control, s->name);

	if (!s->moves && job && job->moves) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_TAKEN,
			"job '%s' is moving here from another box with the workers that it has; try again in a moment",
			s->name);
		return false;
	}
	if (!s->moves)
		return job || !job_move_turns_away(s);
	if (job && (!job->moves || job->state != JOB_FORMING))
		return job_move_refuse(s, "it runs here already, without this rank");
	if (!mirror)
		return job_move_refuse(s, "there is no copy of it");
	if (!mirror->mirror->whole)
		return job_move_refuse(s, "the copy of it is not whole yet");
	if (mirror->mirror->world != s->world)
		return job_move_refuse(s, "the copy has another world");
	if (members_have(mirror->mirror->left, s->rank))
		return job_move_refuse(s, "this rank has left it");
	if (members_have(mirror->mirror->lost, s->rank))
		return job_move_refuse(s, "its box had lost this rank, and goes on without");
	return true;
}

void job_move_begin(struct job *job)
{
	const struct job *mirror = job_find_mirror(job->control, job->name);

	job->moves = true;
	job->started = mirror->generation->spec.generation - 1;
	log_warn("job '%s': its workers come from box %s, to go on here", job->name, mirror->mirror->box);
	job_move_recount(job);
}

void job_move_recount(struct job *job)
{
	const struct job *mirror = job_find_mirror(job->control, job->name);

	for (uint32_t i = 0; mirror && i < job->world; i++)
		if (!job->members[i].session) {
			job->members[i].gone =
				members_have(mirror->mirror->lost, i) || members_have(mirror->mirror->left, i);
			job->members[i].gone_ns = job->control->now_ns;
		}
}

uint64_t job_move_wait_ns(const struct control *c)
{
	uint64_t lost_ns = 3 * c->config->lost_ms * NS_PER_MS;

	return lost_ns > MIRROR_MOVE_NS ? lost_ns : MIRROR_MOVE_NS;
}

void job_move_tick(struct job *job)
{
	uint64_t wait_ns = job_move_wait_ns(job->control);
	uint32_t ranks[MOVE_RANKS_MAX] = {0}, count = 0;
	char text[160];

	if (job->state != JOB_FORMING || job->control->now_ns - job->created_ns < wait_ns)
		return;
	for (uint32_t i = 0; i < job->world; i++)
		if (!job->members[i].tabled && !job->members[i].gone) {
			if (count < MOVE_RANKS_MAX)
				ranks[count] = i;
			count++;
		}
	ranks_write(ranks, count < MOVE_RANKS_MAX ? count : MOVE_RANKS_MAX, count, text, sizeof(text));
	job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, count ? (int)ranks[0] : -1,
		"rank%s %s of %u did not come here from the job's box within %.0f s, so that it cannot go on; look at "
		"them, "
		"and at that box",
		count == 1 ? "" : "s", text, job->world, (double)wait_ns / 1e9);
}

/* ---- the copy's shards come back ---- */

static void job_move_tell_box(struct job *mirror)
{
	struct session *s = mirror->members[0].session;
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__MirrorTaken taken = PHUB__MIRROR_TAKEN__INIT;

	if (!s)
		return;
	taken.text = (char *)(uintptr_t) "its workers have moved to the standby, and go on there";
	control.message_case = PHUB__CONTROL__MESSAGE_MIRROR_TAKEN;
	control.mirror_taken = &taken;
	session_write(s, &control);
	session_write_left(s);
	session_flush(s);
	mirror->members[0].session = NULL;
	mirror->present = 0;
	s->job = NULL;
}

/* What it is from now on, whoever is lost meanwhile. */
void job_move_take(struct job *job)
{
	struct job *mirror = job_find_mirror(job->control, job->name);
	struct err e;

	if (!mirror || mirror->state != JOB_RUNNING || !mirror->mirror->whole) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_NO_JOB, -1, "it cannot go on here: the copy of it %s",
			mirror ? "is not whole" : "is gone");
		return;
	}
	if (job_compare_tables(
		    job, mirror->generation->table, job_first_live(job), job->reference, job->reference_rank, &e) < 0) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_MISMATCH, (int)job->reference_rank,
			"it cannot go on here with what its workers say now, and said otherwise at their box: %s",
			e.text);
		return;
	}
	job->state = JOB_TAKING;
	job->takes = mirror;
	mirror->mirror->taker = job;
	job_move_tell_box(mirror);
	generation_detach(mirror->generation, job->control->box, 0, false);
}

void job_move_taken(struct job *mirror)
{
	struct generation *g = mirror->generation;
	struct job *job = mirror->mirror->taker;

	for (unsigned core = 0; core < g->spec.core_count; core++)
		if (g->store.shards[core] && !mirror_is_whole(g->store.shards[core])) {
			job_fail(job, PHUB__ERROR_CODE__ERROR_NO_JOB, -1,
				"it cannot go on here: the copy of it is not whole, though its box said so");
			return;
		}
	generation_give_reserved(g, job->control->box);
	job->placement = mirror->placement;
	job->placement_count = mirror->placement_count;
	mirror->placement = NULL;
	job_start(job);
}

bool job_move_loses(struct job *job, struct member *m, const char *why)
{
	if (job->state != JOB_TAKING || job->takes->generation->table->spec.lost == LOST_FAIL || job->present == 0)
		return false;
	log_warn("job '%s' rank %u (%s) was lost while it moved here: %s", job->name, (uint32_t)(m - job->members),
		m->peer, why);
	m->gone = true;
	m->gone_ns = job->control->now_ns;
	return true;
}

/* ---- what is in them ---- */

void job_move_fill(struct job *job)
{
	job->state = JOB_TAKING;
	job->control->again = true;
}

/* One chunk. Returns the bytes that were copied. */
static uint64_t job_move_chunk(struct job *job, uint32_t index)
{
	struct generation *to = job->generation, *from = job->takes->generation;
	unsigned core = to->core_of_chunk[index];
	struct chunk *chunk = chunk_find(to->store.shards[core], index);

	mirror_restore(chunk, to->store.shards[core], chunk_find(from->store.shards[core], index));
	return (uint64_t)chunk->elements * sizeof(float) * (1 + optimizer_state_count(to->spec.optimizer));
}

/* Who is lost takes no part, or from the next round on, in which the job waits for another. */
static void job_move_exclude(struct job *job, struct shard *shard, const uint64_t *level)
{
	uint64_t gone[MAIL_RANK_WORDS] = {0};

	for (uint32_t rank = 0; rank < job->world; rank++)
		if (job->members[rank].gone)
			members_add(gone, rank);
	members_await(shard, gone, job->generation->spec.lost == LOST_WAIT ? level : NULL);
}

static void job_move_set_shard(struct job *job, unsigned core, const uint64_t *level)
{
	struct shard *shard = job->generation->store.shards[core];

	if (!shard)
		return;
	hypers_copy(&shard->hypers, &job->takes->generation->store.shards[core]->hypers);
	for (uint32_t rank = 0; rank < job->world; rank++)
		shard->links[rank].moved = true;
	shard->paused = job->paused || job->control->above.doubt_ns;
	job_move_exclude(job, shard, level);
}

/* What the box's operator wanted of it. */
static void job_move_set_wish(struct job *job, const struct mirror *m)
{
	if (job->paused || !(m->paused || m->draining))
		return;
	job->paused = m->paused; /* its shards are made so by job_move_set_shard() */
	job->draining = m->draining;
	if (job->draining) /* not before all have what was owed to them at their box */
		job->drain_ns = job->control->now_ns + JOB_DRAIN_NS;
	job_keep_reason(job, m->reason);
	log_info("job '%s' %s here as it %s at its box%s%s", job->name, m->paused ? "is paused" : "drains",
		m->paused ? "was" : "did", job->reason[0] ? ": " : "", job->reason);
}

static void job_move_set_members(struct job *job)
{
	const struct job *mirror = job->takes;

	job->hyper = mirror->hyper;
	memcpy(job->groups, mirror->groups, sizeof(job->groups));
	job->barrier = mirror->mirror->barrier;
	job_move_set_wish(job, mirror->mirror);
	for (uint32_t i = 0; i < job->world; i++) {
		struct member *m = &job->members[i];

		m->hyper = job->hyper;
		if (m->barrier < job->barrier) /* else it is at the next already */
			m->barrier = job->barrier;
		m->gone_ns = job->control->now_ns;
		/* Where the job does not go on without those who leave, it is as if they had done that here. */
		if (members_have(mirror->mirror->left, i) && job->generation->spec.lost != LOST_SHRINK) {
			m->gone = false;
			m->left = true;
			m->finished = !members_have(mirror->mirror->unfinished, i);
			job->left++;
		}
	}
}

static void job_move_finish(struct job *job)
{
	const struct generation *g = job->generation, *from = job->takes->generation;
	uint32_t count = g->spec.plan.chunk_count;
	uint64_t *rounds = malloc(2 * count * sizeof(*rounds)), *level, furthest;
	struct job *mirror = job->takes;

	if (!rounds) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1, "no memory in the standby to go on");
		return;
	}
	for (uint32_t i = 0; i < count; i++)
		rounds[i] = chunk_find(from->store.shards[g->core_of_chunk[i]], i)->round;
	level = rounds + count;
	memcpy(level, rounds, count * sizeof(*rounds));
	furthest = job_level_rounds(&g->spec.plan, level);
	job_move_set_members(job);
	for (unsigned core = 0; core < g->spec.core_count; core++)
		job_move_set_shard(job, core, level);
	log_warn("job '%s' goes on here with %u of %u workers, at round %" PRIu64 "; it was at box %s", job->name,
		job_live(job), job->world, furthest, mirror->mirror->box);
	job_restore(job); /* its checkpoints: from now on, and not what older ones of its name say */
	job->kept = true; /* ... and these are over with it, too: there may be none of its own when it ends */
	job->rounds = furthest - (g->spec.optimizer == OPTIMIZER_NONE && furthest > 0); /* these begin with round 1 */
	job->moves = false;
	job->takes = NULL;
	free(job->placement); /* the next key table is placed here */
	job->placement = NULL;
	job->placement_count = 0;
	mirror->mirror->taker = NULL;
	job_end(mirror, 0);
	job->state = JOB_RUNNING;
	generation_attach(job->generation, job->control->box);
	standby_begin(job);
	job_write_moved(job, rounds);
	free(rounds);
	if (job->state == JOB_RUNNING)
		job_barrier_recount(job);
}

static void job_move_copy(struct job *job)
{
	uint32_t count = job->generation->spec.plan.chunk_count;
	struct mirror *m = job->takes->mirror;
	uint64_t bytes = 0;

	while (m->taken < count && bytes < MIRROR_TAKE_BYTES)
		bytes += job_move_chunk(job, m->taken++);
	if (m->taken < count)
		job->control->again = true;
	else
		job_move_finish(job);
}

void job_move_step(struct control *c)
{
	for (struct job *job = c->jobs; job; job = job->next)
		if (job->state == JOB_TAKING && job->generation)
			job_move_copy(job);
}

void job_move_forget(struct job *job)
{
	struct job *mirror = job->takes;

	if (!mirror)
		return;
	job->takes = NULL;
	mirror->mirror->taker = NULL;
	job_end(mirror, 0);
}
