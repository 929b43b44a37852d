/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A change of homes: what the operator, the top box and the others say of it.
 */
#include "phub/control/peers_move.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/crc.h"
#include "phub/base/log.h"
#include "phub/base/stats.h"
#include "phub/control/box.h"
#include "phub/control/job.h"
#include "phub/control/job_below.h"
#include "phub/control/parent.h"
#include "phub/control/peers_outcome.h"
#include "phub/control/peers_steps.h"
#include "phub/control/session.h"
#include "phub/members.h"

#define MOVE_ROUNDS_BYTES 1000000u      /* of all rounds in a message */
#define MOVE_HOLD_NS      5000000000ull /* all must hold by then, or half of lost_ms if that is less */
#define MOVE_AHEAD        2u            /* so many rounds after the one that this box collects others can be at */
#define MOVE_EVERY        UINT_MAX      /* instead of a box: rounds of all chunks count */

bool peers_moves(const struct job *job)
{
	return job->peers && job->peers->move;
}

/* ---- what is said ---- */

static void move_next(struct job *job);
static void move_note(struct job *job, unsigned box, Phub__RehomeStep step, const uint64_t *rounds);

/* Does what this box says of the chunk's rounds count? */
static bool move_counts(const struct job *job, unsigned box, uint32_t chunk)
{
	return box == MOVE_EVERY || peers_take_part(job->peers, box, chunk);
}

/* Fills in the rounds, which fit a message, or are freed. The caller frees said->rounds. */
static bool move_say_rounds(const struct job *job, unsigned box, const uint64_t *rounds, Phub__Rehome *said)
{
	uint32_t count = carry_count(job);
	uint64_t from = UINT64_MAX;
	size_t bytes = count;

	said->rounds = calloc(count, sizeof(*said->rounds));
	for (uint32_t i = 0; i < count; i++)
		from = move_counts(job, box, i) && rounds[i] < from ? rounds[i] : from;
	from = from == UINT64_MAX ? 0 : from;
	for (uint32_t i = 0; said->rounds && i < count; i++)
		said->rounds[i] = move_counts(job, box, i) ? rounds[i] - from : 0;
	for (uint32_t i = 0; said->rounds && i < count; i++)
		for (uint64_t number = said->rounds[i]; number >= 128; number >>= 7)
			bytes++;
	if (!said->rounds || bytes > MOVE_ROUNDS_BYTES) {
		free(said->rounds);
		said->rounds = NULL;
		return false;
	}
	said->n_rounds = count;
	said->rounds_from = from;
	return true;
}

void peers_move_done(struct job *job, Phub__RehomeStep step)
{
	struct peers_move *m = job->peers->move;

	if (peers_is_top(job->peers)) {
		move_note(job, 0, step, NULL);
		return;
	}
	m->owes = true; /* the top box hears of it when there is room */
	m->says = step;
	job->control->again = true;
}

/* Nobody waits for this box any more. */
static void move_end(struct job *job)
{
	peers_steps_free(job->generation, job->peers);
	job_try_start(job); /* all may have sent their next tables */
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
	if (m->says == PHUB__REHOME_STEP__REHOME_HELD && !move_say_rounds(job, job->peers->self, m->rounds, &said)) {
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
	else if (rc == 0 && m->says == PHUB__REHOME_STEP__REHOME_RESUMED)
		move_end(job);
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

/* Is it a job whose homes may move, and this the box to say so? */
static int move_check(const struct job *job, struct err *e)
{
	const struct peers *p = job->peers;

	if (!p)
		return err_set(e, -EINVAL,
			"job '%s' has %s: only a sharded or chained one has homes of chunks at several boxes, which "
			"rebalance "
			"gives "
			"them anew",
			job->name, job_is_spread(job) ? "a tree of boxes" : "all of its workers at this box");
	if (!peers_is_top(p))
		return err_set(e, -EINVAL,
			"the homes of job '%s' are its top box's to choose, which has the rack file: ask %s", job->name,
			p->each[0].name);
	if (p->move)
		return err_set(e, -EBUSY, "job '%s' is being rebalanced; see phub jobs", job->name);
	if (job->paused || job->draining)
		return err_set(e, -EBUSY, "job '%s' %s", job->name,
			job->paused ? "is paused; resume it first" : "drains, and is about to end");
	if (above_holds(job))
		return err_set(e, -EBUSY,
			"job '%s' is held: this box's lease in etcd may be over; try again when it is not", job->name);
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

static void move_say_nothing(const struct job *job, char *said, size_t bytes)
{
	unsigned self;

	if (box_racks(job->control->box, &self))
		snprintf(said, bytes, "nothing to do: by the rack file each of its %u chunks has its home",
			carry_count(job));
	else
		snprintf(said, bytes,
			"nothing to do: all boxes count the same here, for there is no rack file with their rates; "
			"set racks");
}

int peers_move_begin(struct job *job, char *said, size_t said_bytes, uint32_t *number, struct err *e)
{
	struct peers *p = job->peers;
	struct peers_move *m;
	int rc = move_check(job, e);

	if (rc < 0)
		return rc;
	if (number)
		*number = 0;
	peers_take_rates(p);
	rc = peers_steps_create(job, p->moves + 1, e);
	if (rc < 0)
		return rc;
	m = p->move;
	if (m->moved == 0) {
		peers_steps_free(job->generation, p);
		move_say_nothing(job, said, said_bytes);
		return 0;
	}
	rc = peers_outcome_begin(job);
	if (rc < 0 || move_tell_hold(job) < 0) {
		if (rc == 0) {
			peers_outcome_end(p, "there was no memory for it");
			p->moves++;
		}
		peers_steps_free(job->generation, p);
		return err_set(e, -ENOMEM, "no memory for other homes of its chunks");
	}
	p->moves++;
	if (number)
		*number = p->moves;
	snprintf(said, said_bytes, "%u of %u chunks, %" PRIu64 " of %" PRIu64 " bytes, %s", m->moved, carry_count(job),
		m->moved_bytes, job->generation->spec.plan.payload_bytes,
		m->moved == 1 ? "gets another home" : "get other homes");
	log_info("job '%s': the operator says rebalance: %s", job->name, said);
	job->control->again = true;
	return 0;
}

/* ---- what the top box says, to another ---- */

static int move_take_hold(struct job *job, const Phub__Rehome *said, struct err *e)
{
	if (job->draining || job->paused)
		return err_set(e, -EBUSY, "the operator of this box %s the job", job->draining ? "drains" : "paused");
	if (job->state != JOB_RUNNING || !job->generation)
		return err_set(e, -EBUSY, "it does not run here yet with its next key table");
	return peers_steps_create(job, said->number, e);
}

static void move_hear_hold(struct job *job, const Phub__Rehome *said)
{
	struct peers *p = job->peers;
	struct err e = {.code = 0};

	if (said->n_rates != p->count || p->move) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_PROTOCOL, -1,
			"the top box wants other homes for the chunks of %zu boxes, and %u exchange%s", said->n_rates,
			p->count, p->move ? "; it has not done with the ones before" : "");
		return;
	}
	for (unsigned i = 0; i < p->count; i++)
		p->boxes[i].rate_bytes_s = said->rates[i] ? (double)said->rates[i] : 1;
	if (move_take_hold(job, said, &e) < 0) {
		p->move = calloc(1, sizeof(*p->move)); /* until the top box says that all go on */
		if (!p->move) {
			job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1, "%s", e.text);
			return;
		}
		log_warn("job '%s': its chunks keep their homes: %s", job->name, e.text);
		p->move->number = said->number;
		p->move->stage = MOVE_HELD;
		snprintf(p->move->why, sizeof(p->move->why), "%s", e.text);
		peers_move_done(job, PHUB__REHOME_STEP__REHOME_REFUSED);
		return;
	}
	if (crc_32c(0, p->move->home, carry_count(job) * sizeof(*p->move->home)) != said->homes)
		job_fail(job, PHUB__ERROR_CODE__ERROR_PROTOCOL, -1,
			"the top box has other homes for its chunks than this one would choose; "
			"install the same release at both");
	else if (p->move->moved == 0)
		job_fail(job, PHUB__ERROR_CODE__ERROR_PROTOCOL, -1,
			"the top box wants other homes for its chunks, and names those that they have");
	job->control->again = true;
}

/* NULL: they are not those of its chunks. To be freed. */
static uint64_t *move_read_rounds(const struct job *job, const Phub__Rehome *m)
{
	uint32_t count = job->generation ? carry_count(job) : 0;
	uint64_t *rounds = count > 0 && m->n_rounds == count ? malloc(count * sizeof(*rounds)) : NULL;
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

	if (control->message_case != PHUB__CONTROL__MESSAGE_REHOME || !job->peers || job->state == JOB_ENDING)
		return;
	if (m->step == PHUB__REHOME_STEP__REHOME_HOLD) {
		move_hear_hold(job, m);
		return;
	}
	rounds = move_read_rounds(job, m);
	if (!job->peers->move || job->peers->move->number != m->number || !peers_steps_obey(job, m->step, rounds))
		job_fail(job, PHUB__ERROR_CODE__ERROR_PROTOCOL, -1,
			"the top box says step %d of a change of homes, which this box is not at", (int)m->step);
	free(rounds);
}

/* ---- what others say, to the top box ---- */

/* They keep their homes. Who has not said yet that it holds may be about to. */
static void move_give_up(struct job *job, const char *why)
{
	struct peers_move *m = job->peers->move;
	Phub__Rehome said = PHUB__REHOME__INIT;

	for (unsigned i = 0; i < job->peers->count; i++)
		if (!members_have(m->who, i))
			members_add(m->late, i);
	m->given_up = true;
	log_warn("job '%s': its chunks keep their homes: %s", job->name, why);
	peers_outcome_end(job->peers, why);
	said.step = PHUB__REHOME_STEP__REHOME_GO;
	move_tell(job, &said);
	if (job->state == JOB_RUNNING)
		peers_steps_obey(job, said.step, NULL);
}

/* All boxes are done with what they were told. */
static void move_next(struct job *job)
{
	struct peers_move *m = job->peers->move;
	Phub__Rehome said = PHUB__REHOME__INIT;

	if (m->stage == MOVE_RESUMED) {
		peers_outcome_end(job->peers, NULL);
		move_end(job);
		return;
	}
	said.step = m->stage == MOVE_CARRIED ? PHUB__REHOME_STEP__REHOME_SWITCH : PHUB__REHOME_STEP__REHOME_GO;
	if (m->stage == MOVE_HELD && !m->refused && move_say_rounds(job, MOVE_EVERY, m->rounds, &said))
		said.step = PHUB__REHOME_STEP__REHOME_STOP;
	if (m->stage == MOVE_HELD && said.step == PHUB__REHOME_STEP__REHOME_GO) {
		move_give_up(job, m->refused ? m->why
					     : "the rounds of its keys are too far apart for a message, or the top box "
					       "has no memory");
		return;
	}
	move_tell(job, &said);
	free(said.rounds);
	if (job->state == JOB_RUNNING)
		peers_steps_obey(job, said.step, m->rounds);
}

/* A box, maybe this one, is done. */
static void move_note(struct job *job, unsigned box, Phub__RehomeStep step, const uint64_t *rounds)
{
	struct peers_move *m = job->peers->move;

	for (uint32_t i = 0; rounds && i < carry_count(job); i++)
		if (move_counts(job, box, i) && rounds[i] > m->rounds[i])
			m->rounds[i] = rounds[i];
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
	if (m->stage <= MOVE_SWITCHED)
		return step == PHUB__REHOME_STEP__REHOME_SWITCHED;
	return step == PHUB__REHOME_STEP__REHOME_RESUMED;
}

/*
 * It holds before a round at which it cannot be? No round is committed that a box with sums of the chunk has not
 * lifted, and none is lifted before the results of the one before have come. Returns the chunk; carry_count(): none.
 */
static uint32_t move_find_wrong(const struct job *job, unsigned box, const uint64_t *rounds)
{
	const struct peers *p = job->peers;
	uint32_t count = carry_count(job);

	for (uint32_t i = 0; i < count; i++) {
		uint64_t least = p->move->rounds[i] ? p->move->rounds[i] - 1 : 0;
		uint64_t most = p->move->rounds[i] ? p->move->rounds[i] + 1 : UINT64_MAX;

		if (peers_take_part(p, p->self, i)) {
			least = stats_read(&carry_chunk(job, i)->round);
			most = least + MOVE_AHEAD;
		}
		if (move_counts(job, box, i) && (rounds[i] < least || rounds[i] > most))
			return i;
	}
	return count;
}

/* What the box says of the step that it is at. */
static void move_hear_step(struct session *s, const Phub__Rehome *said, const uint64_t *rounds)
{
	struct job *job = s->job;
	struct peers_move *m = job->peers->move;
	unsigned box = carry_from(s);
	bool holds = said->step == PHUB__REHOME_STEP__REHOME_HELD || said->step == PHUB__REHOME_STEP__REHOME_REFUSED;
	uint32_t wrong = carry_count(job);

	if (holds && m->given_up && members_have(m->late, box)) { /* before it heard that all go on */
		members_remove(m->late, box);
		return;
	}
	if (members_have(m->who, box) || !move_awaits(m, said->step, rounds)) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "step %d of a change of homes is not next",
			(int)said->step);
		return;
	}
	if (said->step == PHUB__REHOME_STEP__REHOME_HELD)
		wrong = move_find_wrong(job, box, rounds);
	if (wrong < carry_count(job))
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL,
			"it holds chunk %u before round %" PRIu64
			", at which it cannot be: this box collects round %" PRIu64,
			wrong, rounds[wrong], stats_read(&carry_chunk(job, wrong)->round));
	else
		move_note(job, box, said->step, rounds);
}

void peers_move_hear(struct session *s, const Phub__Rehome *m)
{
	struct job *job = s->job;
	char why[ERR_TEXT_MAX], box[NAMES_TEXT_BYTES];
	uint64_t *rounds;

	if (!job_is_box(job, s->rank) || !peers_moves(job) || !peers_is_top(job->peers) || job->state != JOB_RUNNING ||
		job->peers->move->number != m->number || carry_from(s) == job->peers->self) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "no homes are to be others, or not so");
		return;
	}
	if (m->step == PHUB__REHOME_STEP__REHOME_REFUSED && !job->peers->move->why[0]) {
		job_below_copy_reason(job, why, sizeof(why), m->why);
		snprintf(job->peers->move->why, sizeof(why), "%.160s cannot have others: %.320s",
			job_box_name(job, s->rank, box, sizeof(box)), why);
	}
	rounds = move_read_rounds(job, m);
	move_hear_step(s, m, rounds);
	free(rounds);
}

/* ---- in time ---- */

/* The top box: some have not held in time, or are not there any more. */
static void move_check_held(struct job *job)
{
	const struct peers *p = job->peers;
	const struct peers_move *m = p->move;
	uint64_t lost_ns = job->control->config->lost_ms * NS_PER_MS;
	uint64_t bound_ns = lost_ns / 2 < MOVE_HOLD_NS ? lost_ns / 2 : MOVE_HOLD_NS;
	bool late = job->control->now_ns - m->begun_ns > bound_ns;
	char why[ERR_TEXT_MAX];

	for (unsigned i = 0; m->stage <= MOVE_HELD && i < p->count; i++) {
		if (members_have(m->who, i) || !(late || p->each[i].left))
			continue;
		if (p->each[i].left)
			snprintf(why, sizeof(why), "%s has left the job", p->each[i].name);
		else
			snprintf(why, sizeof(why), "%s has not held its rounds within %.1f s", p->each[i].name,
				(double)bound_ns / 1e9);
		move_give_up(job, why);
		return;
	}
}

void peers_move_step(struct job *job)
{
	struct peers_move *m = job->peers->move;

	if (!m || job->state == JOB_ENDING)
		return;
	if (m->owes)
		move_say(job);
	if (job->peers->move && job->state == JOB_RUNNING)
		peers_steps_go_on(job);
	if (peers_moves(job) && job->state == JOB_RUNNING && peers_is_top(job->peers))
		move_check_held(job);
}
