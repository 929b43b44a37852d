/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of a change of homes, as one box takes them.
 */
#include "phub/control/peers_steps.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/log.h"
#include "phub/control/box.h"
#include "phub/control/peers_move.h"
#include "phub/control/peers_routes.h"
#include "phub/members.h"

/* ---- what is to be ---- */

void peers_steps_free(struct generation *g, struct peers *p)
{
	struct peers_move *m = p->move;

	p->move = NULL;
	if (!m)
		return;
	peers_routes_end(p->job->control, m);
	generation_drop_ways(g, p->job->control->box, &m->memory);
	free(m->rounds);
	free(m->home);
	free(m->ways);
	free(m);
}

void peers_move_forget(struct peers *p)
{
	peers_steps_free(NULL, p);
}

static int steps_take(struct job *job, struct peers_move *m, struct err *e)
{
	const struct peers *p = job->peers;
	uint32_t count = carry_count(job);
	int rc;

	m->home = calloc(count, sizeof(*m->home));
	m->ways = calloc(count, sizeof(*m->ways));
	m->rounds = calloc(count, sizeof(*m->rounds));
	if (!m->home || !m->ways || !m->rounds)
		return err_set(e, -ENOMEM, "no memory for other homes of %u chunks", count);
	rc = peers_plan_homes(job, m->home, m->ways, e);
	for (uint32_t i = 0; rc == 0 && i < count; i++) {
		bool moves = m->home[i] != p->home[i];

		m->moved += moves;
		m->moved_bytes += moves ? job->generation->chunk_bytes[i] : 0;
		m->awaited += moves && m->home[i] == p->self && job->generation->spec.optimizer != OPTIMIZER_NONE;
	}
	for (unsigned i = 0; i < p->count; i++)
		if (peers_is_source(p, i) && (p->kind == WAYS_CHAIN || p->boxes[i].workers > 0))
			m->slots[m->slot_count++] = p->each[i].slot;
	return rc < 0 ? rc : peers_routes_take(job, e);
}

int peers_steps_create(struct job *job, uint32_t number, struct err *e)
{
	struct peers *p = job->peers;
	struct peers_move *m = calloc(1, sizeof(*m));
	int rc;

	if (!m)
		return err_set(e, -ENOMEM, "no memory for other homes of its chunks");
	m->number = number;
	m->begun_ns = job->control->now_ns;
	p->move = m;
	rc = steps_take(job, m, e);
	if (rc == 0 && m->moved > 0)
		rc = generation_take_ways(job, m->ways, &m->memory, e);
	if (rc < 0)
		peers_steps_free(job->generation, p);
	return rc;
}

/* ---- hold and stop ---- */

static void steps_hold(struct job *job)
{
	const struct peers *p = job->peers;
	struct err e;
	int rc = peers_routes_step(job, &e);

	if (rc < 0 && rc != -EAGAIN) {
		snprintf(p->move->why, sizeof(p->move->why), "%s", e.text);
		p->move->stage = MOVE_HELD;
		peers_routes_end(job->control, p->move);
		peers_move_done(job, PHUB__REHOME_STEP__REHOME_REFUSED);
	}
	if (rc < 0)
		return;
	if (job->state != JOB_RUNNING || job->change || job->next_change)
		return;
	for (unsigned i = 0; i < p->count; i++)
		if (p->each[i].target && !peers_call(job, i))
			return;
	if (job_members_hold(job))
		p->move->stage = MOVE_HOLDS;
}

void peers_move_held(struct job *job, const uint64_t *rounds)
{
	struct peers_move *m = job->peers ? job->peers->move : NULL;

	if (!m || m->stage != MOVE_HOLDS) { /* the top box says that all go on */
		job_members_stop(job, NULL);
		return;
	}
	for (uint32_t i = 0; i < carry_count(job); i++)
		if (peers_take_part(job->peers, job->peers->self, i) && rounds[i] > m->rounds[i])
			m->rounds[i] = rounds[i];
	m->stage = MOVE_HELD;
	peers_move_done(job, PHUB__REHOME_STEP__REHOME_HELD);
}

static unsigned steps_shards(const struct job *job)
{
	unsigned count = 0;

	for (unsigned core = 0; core < job->generation->spec.core_count; core++)
		count += job->generation->store.shards[core] != NULL;
	return count;
}

/* All boxes stop before the same rounds. */
static void steps_stop(struct job *job, const uint64_t *rounds)
{
	struct peers_move *m = job->peers->move;

	m->stage = MOVE_STOPS;
	m->cores_left = steps_shards(job);
	job_members_stop(job, rounds);
}

/* With the homes that it has. Cores that are about to hold go on as soon as they do. */
static void steps_cancel(struct job *job)
{
	struct peers_move *m = job->peers->move;
	bool held = m->stage == MOVE_HELD && job->change && job->change->firm;

	m->stage = MOVE_RESUMED;
	peers_routes_end(job->control, m);
	if (held)
		job_members_stop(job, NULL);
	log_info("job '%s' goes on: its chunks keep their homes", job->name);
	peers_move_done(job, PHUB__REHOME_STEP__REHOME_RESUMED);
}

bool peers_move_stopped(struct job *job)
{
	struct peers_move *m = job->peers ? job->peers->move : NULL;

	if (!m || m->stage != MOVE_STOPS)
		return false;
	if (--m->cores_left == 0)
		m->stage = MOVE_CARRIES;
	job->control->again = true;
	return true;
}

/* ---- switch and go ---- */

/* Do others lift chunks of this home to this box? */
static bool steps_is_end(const struct peers *p, unsigned home)
{
	unsigned before = p->self > 0 ? p->self - 1 : p->count - 1;

	if (p->kind != WAYS_CHAIN)
		return home == p->self;
	return ways_is_below(p->kind, p->boxes, p->count, home, before, p->self);
}

static void steps_switch(struct job *job)
{
	const struct peers *p = job->peers;
	struct peers_move *m = p->move;
	const struct generation *g = job->generation;

	peers_routes_end(job->control, m);
	for (uint32_t i = 0; i < carry_count(job); i++) {
		struct rehome_chunk *to = carry_place(job, i);

		/* Where nothing is carried, too. */
		to->comes = p->home[i] != p->self && m->home[i] == p->self;
		to->below = steps_is_end(p, m->home[i]);
		/* The first round is the first weights. */
		to->weights = to->weights || g->spec.optimizer == OPTIMIZER_NONE || job->stops[i] > 0;
		to->round = job->stops[i];
	}
	m->stage = MOVE_SWITCHES;
	m->cores_left = steps_shards(job);
	for (unsigned core = 0; core < g->spec.core_count; core++) {
		struct mail mail = {.kind = MAIL_REHOME,
			.core = core,
			.shard = g->store.shards[core],
			.job = g->spec.id,
			.generation = g->spec.generation,
			.rehome = m->memory.regions[core].base};

		if (!mail.shard)
			continue;
		mail.rehome->slots = m->slots;
		mail.rehome->slot_count = m->slot_count;
		post_send(&job->control->box->posts[core], &mail);
	}
}

static void steps_go(struct job *job)
{
	const struct mail mail = {.kind = MAIL_REHOME};

	job->peers->move->stage = MOVE_RESUMES;
	job->peers->move->cores_left = generation_post(job->generation, job->control->box, &mail);
}

static void steps_switched(struct job *job)
{
	struct peers *p = job->peers;
	struct peers_move *m = p->move;

	generation_have_ways(job, m->ways, &m->memory);
	free(p->ways);
	free(p->home);
	p->ways = m->ways;
	p->home = m->home;
	m->ways = NULL;
	m->home = NULL;
	m->stage = MOVE_SWITCHED;
	peers_move_done(job, PHUB__REHOME_STEP__REHOME_SWITCHED);
}

static void steps_finish(struct job *job)
{
	struct peers_move *m = job->peers->move;

	log_info("job '%s' goes on: %u of its chunks, %" PRIu64 " bytes, have other homes, after %.0f ms", job->name,
		m->moved, m->moved_bytes, (double)(job->control->now_ns - m->begun_ns) / 1e6);
	free(job->stops);
	job->stops = NULL;
	m->stage = MOVE_RESUMED;
	peers_move_done(job, PHUB__REHOME_STEP__REHOME_RESUMED);
}

void peers_move_rehomed(struct job *job, const struct mail *mail)
{
	struct peers_move *m = job->peers ? job->peers->move : NULL;

	if (!m || job->state != JOB_RUNNING || --m->cores_left > 0)
		return;
	assert((m->stage == MOVE_SWITCHES) == (mail->rehome != NULL));
	if (m->stage == MOVE_SWITCHES)
		steps_switched(job);
	else
		steps_finish(job);
}

/* ---- each in its turn ---- */

/* No chunk stops before a round that this box has lifted already. */
static bool steps_is_ahead(const struct job *job, const uint64_t *rounds)
{
	for (uint32_t i = 0; rounds && i < carry_count(job); i++)
		if (rounds[i] < job->peers->move->rounds[i])
			return false;
	return rounds != NULL;
}

/* Each step comes when this box has said that it is done with the one before. */
bool peers_steps_obey(struct job *job, Phub__RehomeStep step, const uint64_t *rounds)
{
	enum move_stage stage = job->peers->move->stage;

	if (step == PHUB__REHOME_STEP__REHOME_GO && stage <= MOVE_HELD)
		steps_cancel(job);
	else if (step == PHUB__REHOME_STEP__REHOME_GO && stage == MOVE_SWITCHED)
		steps_go(job);
	else if (step == PHUB__REHOME_STEP__REHOME_STOP && stage == MOVE_HELD && job->change && job->change->firm &&
		 steps_is_ahead(job, rounds))
		steps_stop(job, rounds);
	else if (step == PHUB__REHOME_STEP__REHOME_SWITCH && stage == MOVE_CARRIED)
		steps_switch(job);
	else
		return false;
	return true;
}

void peers_steps_go_on(struct job *job)
{
	struct peers_move *m = job->peers->move;
	struct err e;
	int rc = 0;

	if (m->stage == MOVE_WAITS)
		steps_hold(job);
	else
		rc = peers_routes_step(job, &e);
	if (rc < 0 && rc != -EAGAIN)
		job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, -1, "%s. The job ends here; look at that box", e.text);
	if (job->state == JOB_RUNNING && m->stage == MOVE_CARRIES && carry_step(job)) {
		m->stage = MOVE_CARRIED;
		peers_move_done(job, PHUB__REHOME_STEP__REHOME_CARRIED);
	}
}
