/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The top box of a sharded job changes the homes of its chunks (peers_move.h), against two boxes that the test plays:
 * what it tells them and when, whom it waits for, and what it takes from nobody.
 */
#include "tests/unit/control_rig.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "phub/control/job.h"
#include "phub/control/job_below.h"
#include "phub/control/peers_carry.h"
#include "phub/control/peers_move.h"
#include "phub/control/peers_outcome.h"
#include "transport/call.h"

#define ERROR_OF(name) PHUB__ERROR_CODE__ERROR_##name
#define STEP(name)     PHUB__REHOME_STEP__REHOME_##name

enum { BOXES = 3, WORLD = 3, KEYS = 12, ELEMENTS = 8192, PORT = 7100 };

/* ---- the sessions by which the top box lifts to the others ---- */

struct call_peer {
	unsigned box;
	bool full; /* it has no room for more */
	uint32_t carried, last;
	uint8_t key[PROOF_KEY];
};

static struct call_peer played[BOXES];
static unsigned opened, closed;

static int played_open(void *ctx, const struct call_target *target, struct call_peer **out, struct err *e)
{
	(void)ctx;
	(void)e;
	assert_in_range(target->port, PORT + 1, PORT + BOXES - 1);
	*out = &played[target->port - PORT];
	opened++;
	return 0;
}

static int played_step(struct call_peer *p, uint64_t now_ns, struct err *e)
{
	(void)p;
	(void)now_ns;
	(void)e;
	return 1;
}

static int played_say(struct call_peer *p, const Phub__Control *m)
{
	if (p->full)
		return -EAGAIN;
	p->carried += m->message_case == PHUB__CONTROL__MESSAGE_CARRY;
	p->last = m->message_case == PHUB__CONTROL__MESSAGE_CARRY ? m->carry->chunk : p->last;
	return 0;
}

static void played_session(const struct call_peer *p, uint64_t *session, const uint8_t **key, uint32_t *cores)
{
	*session = 5;
	*key = p->key;
	*cores = 1;
}

static int played_address(const struct call_peer *p, const char *transport, char *out, size_t bytes, struct err *e)
{
	(void)p;
	(void)transport;
	(void)out;
	(void)bytes;
	return err_set(e, -ENOTSUP, "it is played");
}

static int played_fd(const struct call_peer *p, bool *write)
{
	(void)p;
	*write = false;
	return -1;
}

static void played_close(struct call_peer *p)
{
	(void)p;
	closed++;
}

static const struct call_ops played_ops = {
	.open = played_open,
	.step = played_step,
	.say = played_say,
	.session = played_session,
	.address = played_address,
	.fd = played_fd,
	.close = played_close,
};

/* ---- a job of three, one worker at each ---- */

struct scene {
	struct rig rig;
	struct actor worker, box[BOXES]; /* of which the first is not there: it is the top box */
	char said[200];
	uint32_t number;
	struct err e;
};

static struct job *the_job(const struct scene *s)
{
	assert_non_null(s->rig.box->control.jobs);
	return s->rig.box->control.jobs;
}

static const struct rig_job summed = {.generation = 1};
static const struct rig_job trained = {.generation = 1, .optimizer = OPTIMIZER_MOMENTUM};

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
	gather.port = PORT + rank;
	gather.cores = 1;
	control.message_case = PHUB__CONTROL__MESSAGE_GATHER;
	control.gather = &gather;
	actor_say(a, &control);
}

static void scene_form(struct scene *s, const struct rig_job *job, const char *const *settings)
{
	memset(s, 0, sizeof(*s));
	memset(played, 0, sizeof(played));
	opened = closed = 0;
	rig_calls = &played_ops;
	rig_open(&s->rig, 1, settings);
	actor_dial(&s->rig, &s->worker, 1);
	assert_true(actor_join(&s->worker, "wide", 0, WORLD, NULL));
	actor_table(&s->worker, job, KEYS, ELEMENTS);
	for (uint32_t i = 1; i < BOXES; i++) {
		actor_dial(&s->rig, &s->box[i], i + 1);
		s->box[i].below = true;
		assert_true(actor_join(&s->box[i], "wide", 0, WORLD, NULL));
		box_gather(&s->box[i], i);
		actor_table(&s->box[i], job, KEYS, ELEMENTS);
	}
	rig_wait(&s->rig, 20);
	assert_int_equal(the_job(s)->state, JOB_RUNNING);
	for (uint32_t i = 1; i < BOXES; i++)
		assert_int_equal(actor_hear(&s->box[i]), PHUB__CONTROL__MESSAGE_START);
}

/* Connections between cores are not made here: it counts as if they were. */
static void scene_open(struct scene *s, const struct rig_job *job)
{
	static const char *const settings[] = {"hierarchy=sharded", "lost_ms=8000", NULL};

	scene_form(s, job, settings);
	for (unsigned i = 1; i < BOXES; i++)
		the_job(s)->peers->each[i].state = PEER_LIFTING;
}

static void scene_close(struct scene *s)
{
	if (s->worker.rig)
		actor_hang_up(&s->worker);
	for (unsigned i = 1; i < BOXES; i++)
		if (s->box[i].rig)
			actor_hang_up(&s->box[i]);
	rig_wait(&s->rig, 6000);
	assert_null(s->rig.box->control.jobs);
	assert_int_equal(s->rig.box->control.memory_used, 0);
	assert_int_equal(opened, closed);
	assert_true(box_balanced(s->rig.box));
	rig_close(&s->rig);
	rig_calls = NULL;
}

static void expect(struct actor *a, int code, const char *text)
{
	actor_hear(a);
	if (!strstr(a->error, text))
		fail_msg("'%s' is not in '%s'", text, a->error);
	assert_int_equal(a->error_code, code);
}

/* The link of the last box is this much slower than the others now, and the operator says so. */
static int scene_rebalance(struct scene *s, double slower)
{
	struct job *job = the_job(s);

	for (unsigned i = 0; job->peers && i < BOXES; i++)
		job->peers->boxes[i].rate_bytes_s = i + 1 < BOXES ? 1e9 : 1e9 / slower;
	return job_operate(&s->rig.box->control, "rebalance", "wide", "", s->said, sizeof(s->said), &s->number, &s->e);
}

static void expect_error(struct scene *s, int rc, int wanted, const char *text)
{
	if (rc != wanted || !strstr(s->e.text, text))
		fail_msg("%d ('%s') is not %d, or has no '%s'", rc, s->e.text, wanted, text);
}

/* A box says a step; rounds as `round` for all chunks, from 1 on. */
static void box_say(struct scene *s, unsigned box, Phub__RehomeStep step, uint32_t number, uint64_t round)
{
	uint64_t rounds[KEYS] = {0};
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Rehome m = PHUB__REHOME__INIT;
	char why[] = "it has no room";

	m.step = step;
	m.number = number;
	m.rounds = rounds;
	m.n_rounds = step == STEP(HELD) ? KEYS : 0;
	m.why = why;
	m.rounds_from = round;
	control.message_case = PHUB__CONTROL__MESSAGE_REHOME;
	control.rehome = &m;
	actor_say(&s->box[box], &control);
	rig_wait(&s->rig, 20);
}

static void boxes_say(struct scene *s, Phub__RehomeStep step, uint32_t number)
{
	for (unsigned i = 1; i < BOXES; i++)
		box_say(s, i, step, number, 1);
}

/* The last that both have heard. */
static void expect_step(struct scene *s, Phub__RehomeStep step, uint32_t number)
{
	for (unsigned i = 1; i < BOXES; i++) {
		struct actor *a = &s->box[i];

		assert_int_equal(actor_hear(a), PHUB__CONTROL__MESSAGE_REHOME);
		assert_int_equal(a->last->rehome->step, step);
		assert_int_equal(a->last->rehome->number, number);
	}
}

static const char *state_of(const struct scene *s)
{
	return peers_moves(the_job(s)) ? "moves" : job_state_name(the_job(s)->state);
}

/* How it ended, as the operator hears it. */
static void expect_outcome(const struct scene *s, uint32_t number, const char *stage, const char *why)
{
	const struct peers *p = the_job(s)->peers;
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
static void expect_stage(const struct scene *s, const char *stage, unsigned done, const char *waits_for)
{
	const struct peers *p = the_job(s)->peers;
	const char *box;

	assert_string_equal(peers_outcome_stage(p), stage);
	assert_int_equal(peers_outcome_done(p, &box), done);
	assert_string_equal(box ? box : "", waits_for);
}

/* Up to Go, which both have heard, and the top box has gone on. */
static void scene_move(struct scene *s, uint32_t number)
{
	expect_step(s, STEP(HOLD), number);
	assert_int_equal(s->box[1].last->rehome->n_rates, BOXES);
	boxes_say(s, STEP(HELD), number);
	expect_step(s, STEP(STOP), number);
	for (unsigned i = 0; i < KEYS; i++)
		assert_int_equal(s->box[1].last->rehome->rounds[i] + s->box[1].last->rehome->rounds_from, 1);
	boxes_say(s, STEP(CARRIED), number);
	expect_step(s, STEP(SWITCH), number);
	boxes_say(s, STEP(SWITCHED), number);
	expect_step(s, STEP(GO), number);
}

/* ---- it moves ---- */

/* All are waited for, to the last one who goes on: before, there is no next one. */
static void test_moves(void **state)
{
	struct scene s;

	(void)state;
	scene_open(&s, &summed);
	for (uint32_t number = 1; number < 4; number++) {
		assert_int_equal(scene_rebalance(&s, number % 2 ? 10 : 1), 0);
		assert_non_null(strstr(s.said, " get other homes"));
		expect_error(&s, scene_rebalance(&s, 1), -EBUSY, "is being rebalanced");
		scene_move(&s, number);
		assert_string_equal(state_of(&s), "moves");
		expect_error(&s, scene_rebalance(&s, 1), -EBUSY, "is being rebalanced");
		box_say(&s, 2, STEP(RESUMED), number, 0);
		assert_string_equal(state_of(&s), "moves");
		expect_stage(&s, "resuming", 2, "box 10.9.9.9:7101");
		expect_error(&s, scene_rebalance(&s, 1), -EBUSY, "is being rebalanced");
		box_say(&s, 1, STEP(RESUMED), number, 0);
		assert_string_equal(state_of(&s), "running");
		expect_outcome(&s, number, "moved", "");
		assert_int_equal(the_job(&s)->peers->outcome->carried, 0); /* there is no optimizer */
	}
	assert_int_equal(scene_rebalance(&s, 10), 0);
	assert_int_equal(s.number, 0);
	assert_non_null(strstr(s.said, "nothing to do"));
	scene_close(&s);
}

/* Their next tables are not begun with before all go on. */
static void test_tables_wait(void **state)
{
	struct rig_job next = summed;
	struct scene s;

	(void)state;
	scene_open(&s, &summed);
	assert_int_equal(scene_rebalance(&s, 10), 0);
	scene_move(&s, 1);
	next.generation = 2;
	actor_table(&s.worker, &next, KEYS, ELEMENTS);
	for (unsigned i = 1; i < BOXES; i++) {
		if (i == 2)
			box_say(&s, 1, STEP(RESUMED), 1, 0);
		actor_table(&s.box[i], &next, KEYS, ELEMENTS);
	}
	rig_wait(&s.rig, 20);
	assert_int_equal(the_job(&s)->generation->spec.generation, 1);
	box_say(&s, 2, STEP(RESUMED), 1, 0);
	assert_int_equal(the_job(&s)->generation->spec.generation, 2);
	scene_close(&s);
}

/* ---- it does not, and all go on ---- */

static void test_refused_by_one(void **state)
{
	struct scene s;

	(void)state;
	scene_open(&s, &summed);
	assert_int_equal(scene_rebalance(&s, 10), 0);
	box_say(&s, 1, STEP(REFUSED), 1, 0);
	expect_step(&s, STEP(HOLD), 1);
	box_say(&s, 2, STEP(HELD), 1, 1);
	expect_step(&s, STEP(GO), 1);
	boxes_say(&s, STEP(RESUMED), 1);
	assert_string_equal(state_of(&s), "running");
	expect_outcome(&s, 1, "kept", "box 10.9.9.9:7101 cannot have others: it has no room");
	assert_int_equal(scene_rebalance(&s, 10), 0);
	expect_stage(&s, "holding", 0, "the top box");
	scene_move(&s, 2);
	boxes_say(&s, STEP(RESUMED), 2);
	assert_string_equal(state_of(&s), "running");
	scene_close(&s);
}

/* One does not hold in time; it may do so yet before it hears that all go on. */
static void test_too_late(void **state)
{
	struct scene s;

	(void)state;
	for (unsigned says = 0; says < 3; says++) {
		scene_open(&s, &summed);
		assert_int_equal(scene_rebalance(&s, 10), 0);
		box_say(&s, 1, STEP(HELD), 1, 1);
		rig_wait(&s.rig, 3800);
		expect_step(&s, STEP(HOLD), 1);
		rig_wait(&s.rig, 300);
		expect_step(&s, STEP(GO), 1);
		expect_outcome(&s, 1, "kept", "box 10.9.9.9:7102 has not held its rounds within 4.0 s");
		for (unsigned i = 0; i < says; i++)
			box_say(&s, 2, STEP(HELD), 1, 1);
		if (says == 2) {
			expect(&s.box[2], ERROR_OF(PROTOCOL), "step 1 of a change of homes is not next");
			scene_close(&s);
			continue;
		}
		box_say(&s, 2, STEP(RESUMED), 1, 0);
		assert_string_equal(state_of(&s), "moves");
		box_say(&s, 1, STEP(RESUMED), 1, 0);
		assert_string_equal(state_of(&s), "running");
		actor_heartbeat(&s.worker);
		expect(&s.worker, 0, "");
		scene_close(&s);
	}
}

/* The top box's own cores are those that do not hold: whoever has, goes on, and they as soon as they do. */
static void test_too_late_itself(void **state)
{
	struct scene s;

	(void)state;
	scene_open(&s, &summed);
	assert_int_equal(scene_rebalance(&s, 10), 0);
	rig_turn_control(&s.rig);
	assert_int_equal(the_job(&s)->peers->move->stage, MOVE_HELD);
	scene_close(&s);
	scene_open(&s, &summed);
	s.rig.cores_rest = true;
	assert_int_equal(scene_rebalance(&s, 10), 0);
	boxes_say(&s, STEP(HELD), 1);
	expect_step(&s, STEP(HOLD), 1);
	rig_wait(&s.rig, 4100);
	expect_step(&s, STEP(GO), 1);
	expect_outcome(&s, 1, "kept", "the top box has not held its rounds within 4.0 s");
	boxes_say(&s, STEP(RESUMED), 1);
	assert_string_equal(state_of(&s), "running");
	assert_int_equal(scene_rebalance(&s, 10), 0); /* waits for the hold of the one before */
	rig_wait(&s.rig, 20);
	assert_int_equal(the_job(&s)->peers->move->stage, MOVE_WAITS);
	s.rig.cores_rest = false;
	rig_wait(&s.rig, 20);
	assert_int_equal(the_job(&s)->peers->move->stage, MOVE_HELD);
	scene_move(&s, 2);
	boxes_say(&s, STEP(RESUMED), 2);
	assert_string_equal(state_of(&s), "running");
	scene_close(&s);
}

/* ---- what is wrong with what they say ---- */

/* Rounds at which a box cannot be: it is told so, and the others hear which box it was. */
static void test_wrong_rounds(void **state)
{
	static const uint64_t rounds[] = {0, 4, 99, UINT64_MAX / 8};
	struct scene s;

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		scene_open(&s, &summed);
		assert_int_equal(scene_rebalance(&s, 10), 0);
		box_say(&s, 2, STEP(HELD), 1, rounds[i]);
		expect(&s.box[2], ERROR_OF(PROTOCOL), "it holds chunk 0 before round ");
		expect(&s.worker, ERROR_OF(LOST), "(rank 2) was lost: it holds chunk 0 before round ");
		scene_close(&s);
	}
	/* A round ahead is well: it has lifted one that others have not. */
	scene_open(&s, &summed);
	assert_int_equal(scene_rebalance(&s, 10), 0);
	box_say(&s, 1, STEP(HELD), 1, 1);
	box_say(&s, 2, STEP(HELD), 1, 2);
	expect_step(&s, STEP(STOP), 1);
	assert_int_equal(s.box[1].last->rehome->rounds[0] + s.box[1].last->rehome->rounds_from, 2);
	scene_close(&s);
}

/* Where the top box has no part, boxes that do are compared with each other. */
static void test_wrong_rounds_of_others(void **state)
{
	struct scene s;

	(void)state;
	scene_open(&s, &summed);
	the_job(&s)->peers->boxes[0].workers = 0;
	assert_int_equal(scene_rebalance(&s, 10), 0);
	for (uint32_t i = 0; i < KEYS; i++)
		the_job(&s)->peers->home[i] = 1;
	box_say(&s, 1, STEP(HELD), 1, 70);
	box_say(&s, 2, STEP(HELD), 1, 72);
	expect(&s.box[2], ERROR_OF(PROTOCOL), "it holds chunk 0 before round 72");
	scene_close(&s);
}

/* What is said out of turn, or as nobody honest says it. */
static void test_wrong_steps(void **state)
{
	static const struct {
		Phub__RehomeStep steps[2];
		uint32_t number;
		const char *text;
	} cases[] = {
		{{STEP(HELD), STEP(HELD)}, 1, "step 1 of a change of homes is not next"},
		{{STEP(HELD), STEP(REFUSED)}, 1, "step 7 of a change of homes is not next"},
		{{STEP(CARRIED)}, 1, "step 3 of a change of homes is not next"},
		{{STEP(HELD), STEP(CARRIED)}, 1, "step 3 of a change of homes is not next"},
		{{STEP(SWITCHED)}, 1, "step 5 of a change of homes is not next"},
		{{STEP(RESUMED)}, 1, "step 8 of a change of homes is not next"},
		{{STEP(GO)}, 1, "step 6 of a change of homes is not next"},
		{{STEP(HELD)}, 2, "no homes are to be others, or not so"},
	};
	struct scene s;

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		scene_open(&s, &summed);
		assert_int_equal(scene_rebalance(&s, 10), 0);
		for (unsigned k = 0; k < 2 && (k == 0 || cases[i].steps[k]); k++)
			box_say(&s, 2, cases[i].steps[k], cases[i].number, 1);
		expect(&s.box[2], ERROR_OF(PROTOCOL), cases[i].text);
		expect(&s.worker, ERROR_OF(LOST), "(rank 2) was lost");
		scene_close(&s);
	}
}

/* Rounds that are none: another count, or beyond all rounds. */
static void test_no_rounds(void **state)
{
	uint64_t rounds[KEYS] = {0};
	struct scene s;

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		Phub__Control control = PHUB__CONTROL__INIT;
		Phub__Rehome m = PHUB__REHOME__INIT;

		scene_open(&s, &summed);
		assert_int_equal(scene_rebalance(&s, 10), 0);
		m.step = STEP(HELD);
		m.number = 1;
		m.rounds = rounds;
		m.n_rounds = KEYS - (i == 0);
		m.rounds_from = i == 1 ? UINT64_MAX / 2 : 1;
		rounds[3] = i == 2 ? UINT64_MAX / 2 : 0;
		control.message_case = PHUB__CONTROL__MESSAGE_REHOME;
		control.rehome = &m;
		actor_say(&s.box[2], &control);
		expect(&s.box[2], ERROR_OF(PROTOCOL), "step 1 of a change of homes is not next");
		scene_close(&s);
	}
}

/* Nobody asked, or it is not theirs to say. */
static void test_nobody_asked(void **state)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Rehome m = PHUB__REHOME__INIT;
	struct scene s;

	(void)state;
	scene_open(&s, &summed);
	box_say(&s, 2, STEP(RESUMED), 1, 0);
	expect(&s.box[2], ERROR_OF(PROTOCOL), "no homes are to be others, or not so");
	scene_close(&s);
	scene_open(&s, &summed);
	assert_int_equal(scene_rebalance(&s, 10), 0);
	m.number = 1;
	control.message_case = PHUB__CONTROL__MESSAGE_REHOME;
	control.rehome = &m;
	actor_say(&s.worker, &control);
	expect(&s.worker, ERROR_OF(PROTOCOL), "no homes are to be others, or not so");
	scene_close(&s);
}

/* ---- a box dies ---- */

/* In whatever step: the job ends, and the error names it. */
static void test_dies(void **state)
{
	static const Phub__RehomeStep steps[] = {STEP(HELD), STEP(CARRIED), STEP(SWITCHED), STEP(RESUMED)};
	struct scene s;

	(void)state;
	for (unsigned at = 0; at < 8; at++) {
		scene_open(&s, &summed);
		assert_int_equal(scene_rebalance(&s, 10), 0);
		for (unsigned i = 0; i < at / 2; i++)
			boxes_say(&s, steps[i], 1);
		if (at % 2)
			box_say(&s, 1, steps[at / 2], 1, 1);
		assert_string_equal(state_of(&s), "moves");
		actor_hang_up(&s.box[2]);
		memset(&s.box[2], 0, sizeof(s.box[2]));
		rig_wait(&s.rig, 1100);
		expect(&s.worker, ERROR_OF(LOST), "(rank 2) was lost");
		scene_close(&s);
	}
}

/* It leaves, all of its workers being done: nobody waits for what it does not say. */
static void test_leaves(void **state)
{
	struct scene s;

	(void)state;
	scene_open(&s, &summed);
	assert_int_equal(scene_rebalance(&s, 10), 0);
	the_job(&s)->peers->each[2].left = true;
	box_say(&s, 1, STEP(HELD), 1, 1);
	assert_int_equal(actor_hear(&s.box[1]), PHUB__CONTROL__MESSAGE_REHOME);
	assert_int_equal(s.box[1].last->rehome->step, STEP(GO));
	expect_outcome(&s, 1, "kept", "box 10.9.9.9:7102 has left the job");
	the_job(&s)->peers->each[2].left = false;
	scene_close(&s);
}

/* ---- what is carried ---- */

static void box_carry(struct scene *s, unsigned box, const Phub__Carry *carry)
{
	Phub__Control control = PHUB__CONTROL__INIT;

	control.message_case = PHUB__CONTROL__MESSAGE_CARRY;
	control.carry = (Phub__Carry *)(uintptr_t)carry;
	actor_say(&s->box[box], &control);
	rig_wait(&s->rig, 20);
}

/* The first chunk whose home box 2 was, and the top box will be. */
static uint32_t scene_comes(const struct scene *s)
{
	const struct peers *p = the_job(s)->peers;

	for (uint32_t i = 0; i < KEYS; i++)
		if (p->home[i] == 2 && p->move->home[i] == 0)
			return i;
	fail_msg("none comes");
	return 0;
}

/* One thing of what it carries is wrong. */
static void test_wrong_carries(void **state)
{
	static uint8_t bytes[ELEMENTS * sizeof(float) + 4];
	enum { GOOD, UNASKED, NUMBER, CHUNK, NOT_YOURS, OFFSET, LONG, SHORT, EMPTY, TWICE, CASES };
	struct scene s;

	(void)state;
	for (int i = 0; i < CASES; i++) {
		Phub__Carry c = PHUB__CARRY__INIT;

		scene_open(&s, &trained);
		if (i != UNASKED)
			assert_int_equal(scene_rebalance(&s, 10), 0);
		c.number = i == NUMBER ? 2 : 1;
		c.chunk = i == UNASKED ? 0 : i == CHUNK ? KEYS : scene_comes(&s);
		c.offset = i == OFFSET ? 4 : 0;
		c.data.data = bytes;
		c.data.len = i == LONG ? sizeof(bytes) : i == SHORT ? 8 : i == EMPTY ? 0 : sizeof(bytes) - 4;
		c.last = i != EMPTY;
		c.weights = true;
		rig_wait(&s.rig, 20);
		box_carry(&s, i == NOT_YOURS ? 1 : 2, &c);
		if (i == GOOD || i == TWICE)
			expect(&s.box[2], 0, "");
		if (i == TWICE)
			box_carry(&s, 2, &c);
		if (i != GOOD)
			expect(&s.box[i == NOT_YOURS ? 1 : 2], ERROR_OF(PROTOCOL),
				"whose next home this is not, or not so");
		scene_close(&s);
	}
}

/* What goes waits for room, and Carried for what goes and comes. */
static void test_carries(void **state)
{
	Phub__Carry c = PHUB__CARRY__INIT;
	struct scene s;
	uint32_t comes = 0;

	(void)state;
	scene_open(&s, &trained);
	assert_int_equal(scene_rebalance(&s, 0.1), 0); /* box 2 gets more, from both */
	played[2].full = true;
	for (unsigned i = 1; i < BOXES; i++)
		box_say(&s, i, STEP(HELD), 1, 0);
	expect_step(&s, STEP(STOP), 1);
	boxes_say(&s, STEP(CARRIED), 1);
	expect_step(&s, STEP(STOP), 1);
	assert_int_equal(played[2].carried, 0);
	played[2].full = false;
	rig_wait(&s.rig, 50);
	assert_true(played[2].carried > 0);
	expect_step(&s, STEP(SWITCH), 1);
	boxes_say(&s, STEP(SWITCHED), 1);
	expect_step(&s, STEP(GO), 1);
	boxes_say(&s, STEP(RESUMED), 1);
	assert_string_equal(state_of(&s), "running");
	expect_outcome(&s, 1, "moved", "");
	/* Momentum alone: box 2 has the weights, of which its workers get each round. */
	assert_int_equal(the_job(&s)->peers->outcome->carried, the_job(&s)->peers->outcome->bytes);
	/* And back. */
	assert_int_equal(scene_rebalance(&s, 1), 0);
	for (unsigned i = 1; i < BOXES; i++)
		box_say(&s, i, STEP(HELD), 2, 0);
	boxes_say(&s, STEP(CARRIED), 2);
	expect_step(&s, STEP(STOP), 2);
	c.number = 2;
	c.last = true;
	for (uint32_t i = 0; i < KEYS; i++) {
		const struct peers *p = the_job(&s)->peers;

		if (!p->move->home || p->home[i] == 0 || p->move->home[i] != 0) /* NULL: all has come */
			continue;
		c.chunk = i;
		comes++;
		box_carry(&s, p->home[i], &c);
	}
	assert_true(comes > 0);
	expect_step(&s, STEP(SWITCH), 2);
	scene_close(&s);
}

/* ---- what the operator is refused ---- */

static int operate(struct scene *s, const char *command)
{
	return job_operate(&s->rig.box->control, command, "wide", "", s->said, sizeof(s->said), &s->number, &s->e);
}

static void test_not_now(void **state)
{
	static const char *const sharded[] = {"hierarchy=sharded", NULL};
	struct rig_job waits = summed;
	struct scene s;

	(void)state;
	scene_open(&s, &summed);
	assert_int_equal(operate(&s, "pause"), 0);
	expect_error(&s, scene_rebalance(&s, 10), -EBUSY, "job 'wide' is paused; resume it first");
	assert_int_equal(operate(&s, "resume"), 0);
	s.rig.box->control.above.doubt_ns = 1;
	expect_error(&s, scene_rebalance(&s, 10), -EBUSY, "job 'wide' is held: this box's lease in etcd may be over");
	s.rig.box->control.above.doubt_ns = 0;
	the_job(&s)->peers->each[1].state = PEER_CONNECTING;
	expect_error(&s, scene_rebalance(&s, 10), -EBUSY, "job 'wide' is not under way at box 10.9.9.9:7101 yet");
	the_job(&s)->peers->each[1].state = PEER_LIFTING;
	assert_int_equal(scene_rebalance(&s, 10), 0);
	expect_error(&s, operate(&s, "pause"), -EBUSY, "is being rebalanced");
	expect_error(&s, operate(&s, "drain"), -EBUSY, "is being rebalanced");
	scene_close(&s);
	scene_open(&s, &summed);
	the_job(&s)->draining = true; /* it would end at once here, where no round is open */
	expect_error(&s, scene_rebalance(&s, 10), -EBUSY, "job 'wide' drains, and is about to end");
	scene_close(&s);
	scene_open(&s, &summed);
	the_job(&s)->left = 1;
	expect_error(&s, scene_rebalance(&s, 10), -EBUSY, "job 'wide' is about to end");
	the_job(&s)->left = 0;
	the_job(&s)->state = JOB_REKEYING;
	expect_error(&s, scene_rebalance(&s, 10), -EBUSY, "job 'wide' does not run yet");
	the_job(&s)->state = JOB_RUNNING;
	scene_close(&s);
	waits.lost = LOST_WAIT;
	scene_form(&s, &waits, sharded);
	for (unsigned i = 1; i < BOXES; i++)
		the_job(&s)->peers->each[i].state = PEER_LIFTING;
	the_job(&s)->members[0].gone = true;
	expect_error(&s, scene_rebalance(&s, 10), -EBUSY, "waits for another in the place of rank 0, which was lost");
	the_job(&s)->members[0].gone = false;
	scene_close(&s);
}

static void test_no_homes(void **state)
{
	static const char *const tree[] = {"hierarchy=tree", NULL}, *const tight[] = {"hierarchy=sharded",
									    "memory_max=4194304", NULL};
	struct scene s;

	(void)state;
	scene_form(&s, &summed, tree);
	expect_error(&s, scene_rebalance(&s, 10), -EINVAL, "job 'wide' has a tree of boxes");
	scene_close(&s);
	scene_form(&s, &trained, tight);
	for (unsigned i = 1; i < BOXES; i++)
		the_job(&s)->peers->each[i].state = PEER_LIFTING;
	s.rig.config.memory_max = s.rig.box->control.memory_used + 1000;
	expect_error(&s, scene_rebalance(&s, 10), -ENOMEM, "and 1000 are available (memory_max)");
	assert_string_equal(state_of(&s), "running");
	expect_error(&s,
		job_operate(&s.rig.box->control, "rebalance", "none", "", s.said, sizeof(s.said), &s.number, &s.e),
		-ENOENT, "no job 'none' is here");
	scene_close(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_moves),
		cmocka_unit_test(test_tables_wait),
		cmocka_unit_test(test_refused_by_one),
		cmocka_unit_test(test_too_late),
		cmocka_unit_test(test_too_late_itself),
		cmocka_unit_test(test_wrong_rounds),
		cmocka_unit_test(test_wrong_rounds_of_others),
		cmocka_unit_test(test_wrong_steps),
		cmocka_unit_test(test_no_rounds),
		cmocka_unit_test(test_nobody_asked),
		cmocka_unit_test(test_dies),
		cmocka_unit_test(test_leaves),
		cmocka_unit_test(test_wrong_carries),
		cmocka_unit_test(test_carries),
		cmocka_unit_test(test_not_now),
		cmocka_unit_test(test_no_homes),
	};

	return cmocka_run_group_tests_name("control_rehome", tests, NULL, NULL);
}
