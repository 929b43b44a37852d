/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A change of homes, at the top box and at every other.
 */
#include "phub/control/peers_move.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/crc.h"
#include "phub/base/log.h"
#include "phub/control/box.h"
#include "phub/control/job.h"
#include "phub/control/job_below.h"
#include "phub/control/parent.h"
#include "phub/control/peers_carry.h"
#include "phub/control/session.h"
#include "phub/members.h"
#include "phub/rehome.h"

#define MOVE_ROUNDS_BYTES 1000000u /* of all rounds in a message */

bool peers_moves(const struct job *job)
{
	return job->peers && job->peers->move;
}

static void move_free(struct generation *g, struct box *box, struct peers *p)
{
	struct peers_move *m = p->move;

	p->move = NULL;
	if (!m)
		return;
	generation_drop_ways(g, box, &m->memory);
	free(m->rounds);
	free(m->home);
	free(m->ways);
	free(m);
}

void peers_move_forget(struct peers *p)
{
	move_free(NULL, p->job->control->box, p); /* its generation is gone, and what was counted with it */
}

/* ---- what is said ---- */

static void move_next(struct job *job);
static void move_note(struct job *job, unsigned box, Phub__RehomeStep step, const uint64_t *rounds);

/* Fills in the rounds, which fit a message, or are freed. The caller frees said->rounds. */
static bool move_say_rounds(const uint64_t *rounds, uint32_t count, Phub__Rehome *said)
{
	uint64_t from = UINT64_MAX;
	size_t bytes = count;

	for (uint32_t i = 0; i < count; i++)
		from = rounds[i] < from ? rounds[i] : from;
	for (uint32_t i = 0; i < count; i++)
		for (uint64_t number = rounds[i] - from; number >= 128; number >>= 7)
			bytes++;
	said->rounds = bytes <= MOVE_ROUNDS_BYTES ? malloc(count * sizeof(*said->rounds)) : NULL;
	if (!said->rounds)
		return false;
	for (uint32_t i = 0; i < count; i++)
		said->rounds[i] = rounds[i] - from;
	said->n_rounds = count;
	said->rounds_from = from;
	return true;
}

/* This box is done: the top box hears of it when there is room. */
static void move_done(struct job *job, Phub__RehomeStep step)
{
	struct peers_move *m = job->peers->move;

	if (peers_is_top(job->peers)) {
		move_note(job, 0, step, m->rounds);
		return;
	}
	m->owes = true;
	m->says = step;
	job->control->again = true;
}

static void move_say(struct job *job)
{
	struct peers_move *m = job->peers->move;
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Rehome said = PHUB__REHOME__INIT;
	int rc;

	said.step = m->says;
	said.number = m->number;
	said.why = m->why;
	if (m->says == PHUB__REHOME_STEP__REHOME_HELD && !move_say_rounds(m->rounds, carry_count(job), &said)) {
		said.step = PHUB__REHOME_STEP__REHOME_REFUSED;
		snprintf(m->why, sizeof(m->why), "the rounds of its keys are too far apart, or it has no memory");
	}
	control.message_case = PHUB__CONTROL__MESSAGE_REHOME;
	control.rehome = &said;
	rc = parent_call(job) ? box_call_say(job->control, parent_call(job), &control) : -EAGAIN;
	free(said.rounds);
	m->owes = rc == -EAGAIN;
	job->control->soon = job->control->soon || m->owes;
	if (rc < 0 && rc != -EAGAIN)
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1,
			"this box could not say to the top box how far it is with other homes for its chunks: %s",
			strerror(-rc));
}

/* The top box, to all others. */
static void move_tell(struct job *job, Phub__Rehome *said)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	const struct peers *p = job->peers;

	said->number = p->move->number;
	control.message_case = PHUB__CONTROL__MESSAGE_REHOME;
	control.rehome = said;
	p->move->said = 0;
	memset(p->move->who, 0, sizeof(p->move->who));
	for (unsigned i = 1; i < p->count && job->state == JOB_RUNNING; i++) {
		struct session *s = job->members[p->each[i].slot].session;

		if (s) /* else the job is about to end */
			session_write(s, &control);
	}
}

/* ---- the beginning ---- */

static int move_take(struct job *job, struct peers_move *m, struct err *e)
{
	const struct peers *p = job->peers;
	uint32_t count = carry_count(job);
	int rc;

	m->home = calloc(count, sizeof(*m->home));
	m->ways = calloc(count, sizeof(*m->ways));
	m->rounds = calloc(count, sizeof(*m->rounds));
	if (!m->home || !m->ways || !m->rounds)
		return err_set(e, -ENOMEM, "no memory for other homes of %u chunks", count);
	if (job->control->box->uplink->ops->mem_register) /* its sums would lie where its NIC does not reach */
		return err_set(e, -EOPNOTSUPP,
			"not where boxes speak %s (uplink_transport), whose connections know what memory they send "
			"from",
			job->control->box->uplink->ops->name);
	rc = peers_plan_homes(job, m->home, m->ways, e);
	for (uint32_t i = 0; rc == 0 && i < count; i++) {
		bool moves = m->home[i] != p->home[i];

		m->moved += moves;
		m->moved_bytes += moves ? job->generation->chunk_bytes[i] : 0;
		m->awaited += moves && m->home[i] == p->self && job->generation->spec.optimizer != OPTIMIZER_NONE;
	}
	for (unsigned i = 0; i < p->count; i++)
		if (i != p->self && ways_has_sum(p->kind, p->boxes, p->count, p->self, i))
			m->slots[m->slot_count++] = p->each[i].slot;
	return rc;
}

/* 0, or why there is none; nothing is left then. */
static int move_create(struct job *job, uint32_t number, struct err *e)
{
	struct peers *p = job->peers;
	struct peers_move *m = calloc(1, sizeof(*m));
	int rc;

	if (!m)
		return err_set(e, -ENOMEM, "no memory for other homes of its chunks");
	m->number = number;
	m->begun_ns = job->control->now_ns;
	p->move = m;
	rc = move_take(job, m, e);
	if (rc == 0 && m->moved > 0)
		rc = generation_take_ways(job, m->ways, &m->memory, e);
	if (rc < 0)
		move_free(job->generation, job->control->box, p);
	return rc;
}

/* Is it a job whose homes may move, and this the box to say so? */
static int move_check(const struct job *job, struct err *e)
{
	const struct peers *p = job->peers;

	if (!p)
		return err_set(e, -EINVAL,
			"job '%s' has %s: only a sharded one has homes of chunks at several boxes, which rebalance "
			"gives "
			"them anew",
			job->name, job_is_spread(job) ? "a tree of boxes" : "all of its workers at this box");
	if (p->kind != WAYS_SHARDED)
		return err_set(e, -EINVAL,
			"job '%s' is a chain, whose chunks keep their homes while it runs; its next key table, or the "
			"next job, goes by the rack file",
			job->name);
	if (!peers_is_top(p))
		return err_set(e, -EINVAL,
			"job '%s' is sharded, and its top box, which has the rack file, says so: ask %s", job->name,
			p->each[0].name);
	if (p->move)
		return err_set(e, -EBUSY, "job '%s' is being rebalanced; see phub jobs", job->name);
	if (job->paused || job->draining)
		return err_set(e, -EBUSY, "job '%s' %s", job->name,
			job->paused ? "is paused; resume it first" : "drains, and is about to end");
	if (job->state != JOB_RUNNING || job->left > 0)
		return err_set(e, -EBUSY, "job '%s' %s", job->name,
			job->left > 0 ? "is about to end" : "does not run yet; try again in a moment");
	for (unsigned i = 0; i < p->count; i++)
		if (p->each[i].target && !peers_call(job, i))
			return err_set(e, -EBUSY, "job '%s' is not under way at %s yet; try again in a moment",
				job->name, p->each[i].name);
	for (uint32_t i = 0; i < job->ranks; i++)
		if (job->generation->spec.lost == LOST_WAIT && job_is_lost(job, i))
			return err_set(e, -EBUSY,
				"job '%s' waits for another in the place of rank %u, which was lost; try again then",
				job->name, i);
	return 0;
}

static int move_tell_hold(struct job *job)
{
	const struct peers *p = job->peers;
	Phub__Rehome said = PHUB__REHOME__INIT;

	said.rates = calloc(p->count, sizeof(*said.rates));
	if (!said.rates)
		return -ENOMEM;
	for (unsigned i = 0; i < p->count; i++)
		said.rates[i] = (uint64_t)p->boxes[i].rate_bytes_s;
	said.n_rates = p->count;
	said.step = PHUB__REHOME_STEP__REHOME_HOLD;
	said.homes = crc_32c(0, p->move->home, carry_count(job) * sizeof(*p->move->home));
	move_tell(job, &said);
	free(said.rates);
	return 0;
}

int peers_move_begin(struct job *job, char *said, size_t said_bytes, struct err *e)
{
	struct peers *p = job->peers;
	struct peers_move *m;
	int rc = move_check(job, e);

	if (rc < 0)
		return rc;
	peers_take_rates(p);
	rc = move_create(job, p->moves + 1, e);
	if (rc < 0)
		return rc;
	m = p->move;
	if (m->moved == 0) {
		move_free(job->generation, job->control->box, p);
		snprintf(said, said_bytes, "nothing to do: by the rack file each of its %u chunks has its home",
			carry_count(job));
		return 0;
	}
	if (move_tell_hold(job) < 0) {
		move_free(job->generation, job->control->box, p);
		return err_set(e, -ENOMEM, "no memory for other homes of its chunks");
	}
	p->moves++;
	snprintf(said, said_bytes, "%u of %u chunks, %" PRIu64 " of %" PRIu64 " bytes, get other homes", m->moved,
		carry_count(job), m->moved_bytes, job->generation->spec.plan.payload_bytes);
	log_info("job '%s': the operator says rebalance: %s", job->name, said);
	job->control->again = true;
	return 0;
}

/* Another box hears of it. */
static void move_hear_hold(struct job *job, const Phub__Rehome *said)
{
	struct peers *p = job->peers;
	struct err e = {.code = 0};

	if (said->n_rates != p->count || p->move || !job->generation) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_PROTOCOL, -1,
			"the top box wants other homes for the chunks of %zu boxes, and %u exchange%s", said->n_rates,
			p->count, p->move ? "; it has not done with the ones before" : "");
		return;
	}
	for (unsigned i = 0; i < p->count; i++)
		p->boxes[i].rate_bytes_s = said->rates[i] ? (double)said->rates[i] : 1;
	if ((job->draining ? err_set(&e, -EBUSY, "the operator of this box drains the job")
			   : move_create(job, said->number, &e)) < 0) {
		p->move = calloc(1, sizeof(*p->move)); /* until the top box says that all go on */
		if (!p->move) {
			job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1, "%s", e.text);
			return;
		}
		log_warn("job '%s': its chunks keep their homes: %s", job->name, e.text);
		p->move->number = said->number;
		p->move->stage = MOVE_HELD;
		snprintf(p->move->why, sizeof(p->move->why), "%s", e.text);
		move_done(job, PHUB__REHOME_STEP__REHOME_REFUSED);
		return;
	}
	if (crc_32c(0, p->move->home, carry_count(job) * sizeof(*p->move->home)) != said->homes)
		job_fail(job, PHUB__ERROR_CODE__ERROR_PROTOCOL, -1,
			"the top box has other homes for its chunks than this one would choose; "
			"install the same release at both");
	job->control->again = true;
}

/* ---- hold and stop ---- */

static void move_hold(struct job *job)
{
	const struct peers *p = job->peers;

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
		m->rounds[i] = rounds[i] > m->rounds[i] ? rounds[i] : m->rounds[i];
	m->stage = MOVE_HELD;
	move_done(job, PHUB__REHOME_STEP__REHOME_HELD);
}

static unsigned move_shards(const struct job *job)
{
	unsigned count = 0;

	for (unsigned core = 0; core < job->generation->spec.core_count; core++)
		count += job->generation->store.shards[core] != NULL;
	return count;
}

/* All boxes stop before the same rounds. */
static void move_stop(struct job *job, const uint64_t *rounds)
{
	struct peers_move *m = job->peers->move;

	m->stage = MOVE_STOPS;
	m->cores_left = move_shards(job);
	job_members_stop(job, rounds);
}

/* With the homes that it has. */
static void move_cancel(struct job *job)
{
	bool held = job->peers->move->stage == MOVE_HELD && job->change && job->change->firm;

	move_free(job->generation, job->control->box, job->peers);
	if (held)
		job_members_stop(job, NULL);
	log_info("job '%s' goes on: its chunks keep their homes", job->name);
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

static void move_switch(struct job *job)
{
	struct peers_move *m = job->peers->move;
	const struct generation *g = job->generation;

	for (uint32_t i = 0; i < carry_count(job); i++) {
		struct rehome_chunk *to = carry_place(job, i);

		/* Where nothing is carried, too. */
		to->comes = job->peers->home[i] != job->peers->self && m->home[i] == job->peers->self;
		to->weights = to->weights || g->spec.optimizer == OPTIMIZER_NONE;
		to->round = job->stops[i];
	}
	m->stage = MOVE_SWITCHES;
	m->cores_left = move_shards(job);
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

static void move_go(struct job *job)
{
	const struct mail mail = {.kind = MAIL_REHOME};

	job->peers->move->stage = MOVE_RESUMES;
	job->peers->move->cores_left = generation_post(job->generation, job->control->box, &mail);
}

static void move_switched(struct job *job)
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
	move_done(job, PHUB__REHOME_STEP__REHOME_SWITCHED);
}

static void move_finish(struct job *job)
{
	struct peers_move *m = job->peers->move;

	log_info("job '%s' goes on: %u of its chunks, %" PRIu64 " bytes, have other homes, after %.0f ms", job->name,
		m->moved, m->moved_bytes, (double)(job->control->now_ns - m->begun_ns) / 1e6);
	free(job->stops);
	job->stops = NULL;
	move_free(job->generation, job->control->box, job->peers);
	job_try_start(job); /* all may have sent their next tables */
}

void peers_move_rehomed(struct job *job, const struct mail *mail)
{
	struct peers_move *m = job->peers ? job->peers->move : NULL;

	if (!m || job->state != JOB_RUNNING || --m->cores_left > 0)
		return;
	assert((m->stage == MOVE_SWITCHES) == (mail->rehome != NULL));
	if (m->stage == MOVE_SWITCHES)
		move_switched(job);
	else
		move_finish(job);
}

/* ---- what the top box says, and hears ---- */

/* No chunk stops before a round that this box has lifted already. */
static bool move_is_ahead(const struct job *job, const uint64_t *rounds)
{
	for (uint32_t i = 0; rounds && i < carry_count(job); i++)
		if (rounds[i] < job->peers->move->rounds[i])
			return false;
	return rounds != NULL;
}

/* Each step comes when this box has said that it is done with the one before. */
static bool move_obey(struct job *job, Phub__RehomeStep step, const uint64_t *rounds)
{
	enum move_stage stage = job->peers->move->stage;

	if (step == PHUB__REHOME_STEP__REHOME_GO && stage <= MOVE_HELD)
		move_cancel(job);
	else if (step == PHUB__REHOME_STEP__REHOME_GO && stage == MOVE_SWITCHED)
		move_go(job);
	else if (step == PHUB__REHOME_STEP__REHOME_STOP && stage == MOVE_HELD && job->change && job->change->firm &&
		 move_is_ahead(job, rounds))
		move_stop(job, rounds);
	else if (step == PHUB__REHOME_STEP__REHOME_SWITCH && stage == MOVE_CARRIED)
		move_switch(job);
	else
		return false;
	return true;
}

/* NULL: they are not those of its chunks. To be freed. */
static uint64_t *move_read_rounds(const struct job *job, const Phub__Rehome *m)
{
	uint64_t *rounds = m->n_rounds == carry_count(job) ? malloc(m->n_rounds * sizeof(*rounds)) : NULL;
	bool wrong = m->rounds_from > UINT64_MAX / 4;

	for (uint32_t i = 0; rounds && i < m->n_rounds; i++) {
		wrong = wrong || m->rounds[i] > UINT64_MAX / 4;
		rounds[i] = m->rounds_from + m->rounds[i];
	}
	if (!wrong)
		return rounds;
	free(rounds);
	return NULL;
}

void peers_move_obey(struct job *job, const Phub__Control *control)
{
	const Phub__Rehome *m = control->rehome;
	uint64_t *rounds;

	if (control->message_case != PHUB__CONTROL__MESSAGE_REHOME || !job->peers || job->state != JOB_RUNNING)
		return;
	if (m->step == PHUB__REHOME_STEP__REHOME_HOLD) {
		move_hear_hold(job, m);
		return;
	}
	rounds = move_read_rounds(job, m);
	if (!job->peers->move || job->peers->move->number != m->number || !move_obey(job, m->step, rounds))
		job_fail(job, PHUB__ERROR_CODE__ERROR_PROTOCOL, -1,
			"the top box says step %d of a change of homes, which this box is not at", (int)m->step);
	free(rounds);
}

/* All boxes are done with what they were told. */
static void move_next(struct job *job)
{
	struct peers_move *m = job->peers->move;
	Phub__Rehome said = PHUB__REHOME__INIT;

	said.step = m->stage == MOVE_CARRIED ? PHUB__REHOME_STEP__REHOME_SWITCH : PHUB__REHOME_STEP__REHOME_GO;
	if (m->stage == MOVE_HELD && !m->refused && move_say_rounds(m->rounds, carry_count(job), &said))
		said.step = PHUB__REHOME_STEP__REHOME_STOP;
	move_tell(job, &said);
	free(said.rounds);
	if (job->state == JOB_RUNNING)
		move_obey(job, said.step, m->rounds);
}

/* A box, maybe this one, is done. */
static void move_note(struct job *job, unsigned box, Phub__RehomeStep step, const uint64_t *rounds)
{
	struct peers_move *m = job->peers->move;

	for (uint32_t i = 0; rounds && i < carry_count(job); i++)
		m->rounds[i] = rounds[i] > m->rounds[i] ? rounds[i] : m->rounds[i];
	m->refused = m->refused || step == PHUB__REHOME_STEP__REHOME_REFUSED;
	members_add(m->who, box);
	if (++m->said == job->peers->count)
		move_next(job);
}

/* Which one does this stage end with? */
static bool move_awaits(const struct peers_move *m, Phub__RehomeStep step, const uint64_t *rounds)
{
	if (m->stage <= MOVE_HELD)
		return step == PHUB__REHOME_STEP__REHOME_REFUSED || (step == PHUB__REHOME_STEP__REHOME_HELD && rounds);
	if (m->stage <= MOVE_CARRIED)
		return step == PHUB__REHOME_STEP__REHOME_CARRIED;
	return m->stage <= MOVE_SWITCHED && step == PHUB__REHOME_STEP__REHOME_SWITCHED;
}

void peers_move_hear(struct session *s, const Phub__Rehome *m)
{
	struct job *job = s->job;
	char why[ERR_TEXT_MAX];
	uint64_t *rounds;

	if (!job_is_box(job, s->rank) || !peers_moves(job) || !peers_is_top(job->peers) || job->state != JOB_RUNNING ||
		job->peers->move->number != m->number || carry_from(s) == job->peers->self) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "no homes are to be others, or not so");
		return;
	}
	if (m->step == PHUB__REHOME_STEP__REHOME_REFUSED) {
		job_below_copy_reason(job, why, sizeof(why), m->why);
		log_warn("job '%s': box %s cannot have other homes for its chunks: %s", job->name,
			job->members[s->rank].peer, why);
	}
	rounds = move_read_rounds(job, m);
	if (!members_have(job->peers->move->who, carry_from(s)) && move_awaits(job->peers->move, m->step, rounds))
		move_note(job, carry_from(s), m->step, rounds);
	else
		session_refuse(
			s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "step %d of a change of homes is not next", (int)m->step);
	free(rounds);
}

void peers_move_step(struct job *job)
{
	struct peers_move *m = job->peers->move;

	if (!m || job->state != JOB_RUNNING)
		return;
	if (m->owes)
		move_say(job);
	if (job->state == JOB_RUNNING && m->stage == MOVE_WAITS)
		move_hold(job);
	if (job->state == JOB_RUNNING && m->stage == MOVE_CARRIES && carry_step(job)) {
		m->stage = MOVE_CARRIED;
		move_done(job, PHUB__REHOME_STEP__REHOME_CARRIED);
	}
}
