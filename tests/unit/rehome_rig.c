/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/rehome_rig.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- the sessions by which the top box lifts to the others ---- */

struct call_peer rehome_played[REHOME_BOXES];
static unsigned opened, closed;

static int played_open(void *ctx, const struct call_target *target, struct call_peer **out, struct err *e)
{
	assert_in_range(target->port, REHOME_PORT + 1, REHOME_PORT + REHOME_BOXES - 1);
	*out = &rehome_played[target->port - REHOME_PORT];
	(*out)->hear = target->hear;
	(*out)->arg = target->arg;
	opened++;
	return 0;
}

static int played_step(struct call_peer *p, uint64_t now_ns, struct err *e)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Error error = PHUB__ERROR__INIT;
	char text[] = "job 'wide': the session before has not ended";

	if (p->busy) {
		p->busy--;
		error.code = ERROR_OF(BUSY);
		error.text = text;
		control.message_case = PHUB__CONTROL__MESSAGE_ERROR;
		control.error = &error;
		p->hear(p->arg, &control);
		return err_set(e, -EBUSY, "%s", text);
	}
	return p->lost ? err_set(e, p->lost, "box 10.9.9.9:1 cannot be reached: its cable is out") : 1;
}

static int played_say(struct call_peer *p, const Phub__Control *m)
{
	if (p->full)
		return -EAGAIN;
	p->carried += m->message_case == PHUB__CONTROL__MESSAGE_CARRY;
	return 0;
}

static void played_session(const struct call_peer *p, uint64_t *session, const uint8_t **key, uint32_t *cores)
{
	*session = 5;
	*key = p->key;
	*cores = 1;
}

static void played_close(struct call_peer *p)
{
	closed++;
}

static const struct call_ops played_ops = {
	.open = played_open,
	.step = played_step,
	.say = played_say,
	.session = played_session,
	.address = rig_call_address,
	.fd = rig_call_fd,
	.close = played_close,
};

/* ---- a job of three, one worker at each ---- */

const struct rig_job rehome_summed = {.generation = 1};
const struct rig_job rehome_trained = {.generation = 1, .optimizer = OPTIMIZER_MOMENTUM};

/* With the rank of its number, where nobody calls. */
static void box_gather(struct actor *a, uint32_t rank)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Gather gather = PHUB__GATHER__INIT;
	char host[] = "10.9.9.9";

	gather.ranks = &rank;
	gather.n_ranks = 1;
	gather.number = 1;
	gather.host = host;
	gather.port = REHOME_PORT + rank;
	gather.cores = 1;
	control.message_case = PHUB__CONTROL__MESSAGE_GATHER;
	control.gather = &gather;
	actor_say(a, &control);
}

void rehome_form(struct rehome_scene *s, const struct rig_job *job, const char *const *settings)
{
	memset(s, 0, sizeof(*s));
	memset(rehome_played, 0, sizeof(rehome_played));
	opened = closed = 0;
	rig_calls = &played_ops;
	rig_open(&s->rig, 1, settings);
	actor_dial(&s->rig, &s->worker, 1);
	assert_true(actor_join(&s->worker, "wide", 0, REHOME_WORLD, NULL));
	actor_table(&s->worker, job, REHOME_KEYS, REHOME_ELEMENTS);
	for (uint32_t i = 1; i < REHOME_BOXES; i++) {
		actor_dial(&s->rig, &s->box[i], i + 1);
		s->box[i].below = true;
		assert_true(actor_join(&s->box[i], "wide", 0, REHOME_WORLD, NULL));
		box_gather(&s->box[i], i);
		actor_table(&s->box[i], job, REHOME_KEYS, REHOME_ELEMENTS);
	}
	rig_wait(&s->rig, 20);
	assert_int_equal(rig_job(&s->rig)->state, JOB_RUNNING);
	for (uint32_t i = 1; i < REHOME_BOXES; i++)
		assert_int_equal(actor_hear(&s->box[i]), PHUB__CONTROL__MESSAGE_START);
}

void rehome_open(struct rehome_scene *s, const struct rig_job *job, const char *hierarchy)
{
	const char *settings[] = {NULL, "lost_ms=8000", NULL};
	char text[64];

	snprintf(text, sizeof(text), "hierarchy=%s", hierarchy);
	settings[0] = text;
	rehome_form(s, job, settings);
	for (unsigned i = 1; i < REHOME_BOXES; i++)
		if (rig_job(&s->rig)->peers->each[i].target)
			rig_job(&s->rig)->peers->each[i].state = PEER_LIFTING;
}

void rehome_close(struct rehome_scene *s)
{
	if (s->worker.rig)
		actor_hang_up(&s->worker);
	for (unsigned i = 1; i < REHOME_BOXES; i++)
		if (s->box[i].rig)
			actor_hang_up(&s->box[i]);
	rig_wait(&s->rig, 6000);
	rig_expect_empty(&s->rig);
	assert_int_equal(opened, closed);
	rig_close(&s->rig);
	rig_calls = NULL;
}

/* The link of the last box is this much slower than the others now, and the operator says so. */
int rehome_begin(struct rehome_scene *s, double slower)
{
	struct job *job = rig_job(&s->rig);

	for (unsigned i = 0; job->peers && i < REHOME_BOXES; i++)
		job->peers->boxes[i].rate_bytes_s = i + 1 < REHOME_BOXES ? 1e9 : 1e9 / slower;
	return job_operate(&s->rig.box->control, "rebalance", "wide", "", s->said, sizeof(s->said), &s->number, &s->e);
}

void rehome_expect_error(struct rehome_scene *s, int rc, int wanted, const char *text)
{
	if (rc != wanted || !strstr(s->e.text, text))
		fail_msg("%d ('%s') is not %d, or has no '%s'", rc, s->e.text, wanted, text);
}

/* A box says a step; rounds as `round` for all chunks, from 1 on. */
void rehome_say(struct rehome_scene *s, unsigned box, Phub__RehomeStep step, uint32_t number, uint64_t round)
{
	uint64_t rounds[REHOME_KEYS] = {0};
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Rehome m = PHUB__REHOME__INIT;
	char why[] = "it has no room";

	m.step = step;
	m.number = number;
	m.rounds = rounds;
	m.n_rounds = step == STEP(HELD) ? REHOME_KEYS : 0;
	m.why = why;
	m.rounds_from = round;
	control.message_case = PHUB__CONTROL__MESSAGE_REHOME;
	control.rehome = &m;
	actor_say(&s->box[box], &control);
	rig_wait(&s->rig, 20);
}

void rehome_say_all(struct rehome_scene *s, Phub__RehomeStep step, uint32_t number)
{
	for (unsigned i = 1; i < REHOME_BOXES; i++)
		rehome_say(s, i, step, number, 1);
}

/* The last that both have heard. */
void rehome_expect_step(struct rehome_scene *s, Phub__RehomeStep step, uint32_t number)
{
	for (unsigned i = 1; i < REHOME_BOXES; i++) {
		struct actor *a = &s->box[i];

		assert_int_equal(actor_hear(a), PHUB__CONTROL__MESSAGE_REHOME);
		assert_int_equal(a->last->rehome->step, step);
		assert_int_equal(a->last->rehome->number, number);
	}
}

const char *rehome_state(const struct rehome_scene *s)
{
	return peers_moves(rig_job(&s->rig)) ? "moves" : job_state_name(rig_job(&s->rig)->state);
}

/* How it ended, as the operator hears it. */
void rehome_expect_outcome(const struct rehome_scene *s, uint32_t number, const char *stage, const char *why)
{
	const struct peers *p = rig_job(&s->rig)->peers;
	const struct peers_outcome *o = p->outcome;
	uint32_t chunks = 0;
	uint64_t bytes = 0;

	assert_non_null(o);
	assert_int_equal(s->number, number);
	assert_int_equal(o->number, number);
	assert_string_equal(peers_outcome_stage(p), stage);
	if (!strstr(o->why, why))
		fail_msg("'%s' is not in '%s'", why, o->why);
	assert_true(o->ended_ns >= o->begun_ns);
	for (unsigned i = 0; i < o->flow_count; i++) {
		assert_true(o->flows[i].from != o->flows[i].to);
		chunks += o->flows[i].chunks;
		bytes += o->flows[i].bytes;
	}
	assert_true(chunks > 0);
	assert_int_equal(chunks, o->chunks);
	assert_int_equal(bytes, o->bytes);
}

/* How far it is. */
void rehome_expect_stage(const struct rehome_scene *s, const char *stage, unsigned done, const char *waits_for)
{
	const struct peers *p = rig_job(&s->rig)->peers;
	const char *box;

	assert_string_equal(peers_outcome_stage(p), stage);
	assert_int_equal(peers_outcome_done(p, &box), done);
	assert_string_equal(box ? box : "", waits_for);
}

/* Up to Go, which both have heard, and the top box has gone on. */
void rehome_move(struct rehome_scene *s, uint32_t number)
{
	rehome_expect_step(s, STEP(HOLD), number);
	assert_int_equal(s->box[1].last->rehome->n_rates, REHOME_BOXES);
	rehome_say_all(s, STEP(HELD), number);
	rehome_expect_step(s, STEP(STOP), number);
	for (unsigned i = 0; i < REHOME_KEYS; i++)
		assert_int_equal(s->box[1].last->rehome->rounds[i] + s->box[1].last->rehome->rounds_from, 1);
	rehome_say_all(s, STEP(CARRIED), number);
	rehome_expect_step(s, STEP(SWITCH), number);
	rehome_say_all(s, STEP(SWITCHED), number);
	rehome_expect_step(s, STEP(GO), number);
}
