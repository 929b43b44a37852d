/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What other boxes say to the top box while homes change (peers_move.h): rounds, steps and what they carry, right and
 * wrong.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/scene_rig.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/control/peers_routes.h"
#include "phub/members.h"

/* ---- what is wrong with what they say ---- */

/* Rounds at which a box cannot be: it is told so, and the others hear which box it was. */
static void test_wrong_rounds(void **state)
{
	static const uint64_t rounds[] = {0, 4, 99, UINT64_MAX / 8};
	struct scene s;

	for (unsigned i = 0; i < 4; i++) {
		rehome_open(&s, &rehome_summed, "sharded");
		assert_int_equal(rehome_begin(&s, 10), 0);
		rehome_say(&s, 2, STEP(HELD), 1, rounds[i]);
		actor_expect(&s.box[2], ERROR_OF(PROTOCOL), "it holds chunk 0 before round ");
		actor_expect(&s.worker[0], ERROR_OF(LOST), "(rank 2) was lost: it holds chunk 0 before round ");
		scene_close(&s);
	}
	/* A round ahead is well: it has lifted one that others have not. */
	rehome_open(&s, &rehome_summed, "sharded");
	assert_int_equal(rehome_begin(&s, 10), 0);
	rehome_say(&s, 1, STEP(HELD), 1, 1);
	rehome_say(&s, 2, STEP(HELD), 1, 2);
	rehome_expect_step(&s, STEP(STOP), 1);
	assert_int_equal(s.box[1].last->rehome->rounds[0] + s.box[1].last->rehome->rounds_from, 2);
	scene_close(&s);
}

/* Where the top box has no part, boxes that do are compared with each other. */
static void test_wrong_rounds_of_others(void **state)
{
	struct scene s;

	rehome_open(&s, &rehome_summed, "sharded");
	rig_job(&s.rig)->peers->boxes[0].workers = 0;
	assert_int_equal(rehome_begin(&s, 10), 0);
	for (uint32_t i = 0; i < REHOME_KEYS; i++)
		rig_job(&s.rig)->peers->home[i] = 1;
	rehome_say(&s, 1, STEP(HELD), 1, 70);
	rehome_say(&s, 2, STEP(HELD), 1, 72);
	actor_expect(&s.box[2], ERROR_OF(PROTOCOL), "it holds chunk 0 before round 72");
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

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		rehome_open(&s, &rehome_summed, "sharded");
		assert_int_equal(rehome_begin(&s, 10), 0);
		for (unsigned k = 0; k < 2 && (k == 0 || cases[i].steps[k]); k++)
			rehome_say(&s, 2, cases[i].steps[k], cases[i].number, 1);
		actor_expect(&s.box[2], ERROR_OF(PROTOCOL), cases[i].text);
		actor_expect(&s.worker[0], ERROR_OF(LOST), "(rank 2) was lost");
		scene_close(&s);
	}
}

/* Rounds that are none: another count, or beyond all rounds. */
static void test_no_rounds(void **state)
{
	uint64_t rounds[REHOME_KEYS] = {0};
	struct scene s;

	for (unsigned i = 0; i < 3; i++) {
		Phub__Control control = PHUB__CONTROL__INIT;
		Phub__Rehome m = PHUB__REHOME__INIT;

		rehome_open(&s, &rehome_summed, "sharded");
		assert_int_equal(rehome_begin(&s, 10), 0);
		m.step = STEP(HELD);
		m.number = 1;
		m.rounds = rounds;
		m.n_rounds = REHOME_KEYS - (i == 0);
		m.rounds_from = i == 1 ? UINT64_MAX / 2 : 1;
		rounds[3] = i == 2 ? UINT64_MAX / 2 : 0;
		control.message_case = PHUB__CONTROL__MESSAGE_REHOME;
		control.rehome = &m;
		actor_say(&s.box[2], &control);
		actor_expect(&s.box[2], ERROR_OF(PROTOCOL), "step 1 of a change of homes is not next");
		scene_close(&s);
	}
}

/* Nobody asked, or it is not theirs to say. */
static void test_nobody_asked(void **state)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Rehome m = PHUB__REHOME__INIT;
	struct scene s;

	rehome_open(&s, &rehome_summed, "sharded");
	rehome_say(&s, 2, STEP(RESUMED), 1, 0);
	actor_expect(&s.box[2], ERROR_OF(PROTOCOL), "no homes are to be others, or not so");
	scene_close(&s);
	rehome_open(&s, &rehome_summed, "sharded");
	assert_int_equal(rehome_begin(&s, 10), 0);
	m.number = 1;
	control.message_case = PHUB__CONTROL__MESSAGE_REHOME;
	control.rehome = &m;
	actor_say(&s.worker[0], &control);
	actor_expect(&s.worker[0], ERROR_OF(PROTOCOL), "no homes are to be others, or not so");
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
	const struct peers *p = rig_job(&s->rig)->peers;

	for (uint32_t i = 0; i < REHOME_KEYS; i++)
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

	for (int i = 0; i < CASES; i++) {
		Phub__Carry c = PHUB__CARRY__INIT;

		rehome_open(&s, &rehome_trained, "sharded");
		if (i != UNASKED)
			assert_int_equal(rehome_begin(&s, 10), 0);
		c.number = i == NUMBER ? 2 : 1;
		c.chunk = i == UNASKED ? 0 : i == CHUNK ? REHOME_KEYS : scene_comes(&s);
		c.offset = i == OFFSET ? 4 : 0;
		c.data.data = bytes;
		c.data.len = i == LONG ? sizeof(bytes) : i == SHORT ? 8 : i == EMPTY ? 0 : sizeof(bytes) - 4;
		c.last = i != EMPTY;
		c.weights = true;
		rig_wait(&s.rig, 20);
		box_carry(&s, i == NOT_YOURS ? 1 : 2, &c);
		if (i == GOOD || i == TWICE)
			actor_expect(&s.box[2], 0, "");
		if (i == TWICE)
			box_carry(&s, 2, &c);
		if (i != GOOD)
			actor_expect(&s.box[i == NOT_YOURS ? 1 : 2], ERROR_OF(PROTOCOL),
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

	rehome_open(&s, &rehome_trained, "sharded");
	assert_int_equal(rehome_begin(&s, 0.1), 0); /* box 2 gets more, from both */
	beside[2].full = true;
	for (unsigned i = 1; i < BOXES; i++)
		rehome_say(&s, i, STEP(HELD), 1, 0);
	rehome_expect_step(&s, STEP(STOP), 1);
	rehome_say_all(&s, STEP(CARRIED), 1);
	rehome_expect_step(&s, STEP(STOP), 1);
	assert_int_equal(beside[2].carried, 0);
	beside[2].full = false;
	rig_wait(&s.rig, 50);
	assert_true(beside[2].carried > 0);
	rehome_expect_step(&s, STEP(SWITCH), 1);
	rehome_say_all(&s, STEP(SWITCHED), 1);
	rehome_expect_step(&s, STEP(GO), 1);
	rehome_say_all(&s, STEP(RESUMED), 1);
	assert_string_equal(rehome_state(&s), "running");
	rehome_expect_outcome(&s, 1, "moved", "");
	/* Momentum alone: box 2 has the weights, of which its workers get each round. */
	assert_int_equal(rig_job(&s.rig)->peers->outcome->carried, rig_job(&s.rig)->peers->outcome->bytes);
	/* And back. */
	assert_int_equal(rehome_begin(&s, 1), 0);
	for (unsigned i = 1; i < BOXES; i++)
		rehome_say(&s, i, STEP(HELD), 2, 0);
	rehome_say_all(&s, STEP(CARRIED), 2);
	rehome_expect_step(&s, STEP(STOP), 2);
	c.number = 2;
	c.last = true;
	for (uint32_t i = 0; i < REHOME_KEYS; i++) {
		const struct peers *p = rig_job(&s.rig)->peers;

		if (!p->move->home || p->home[i] == 0 || p->move->home[i] != 0) /* NULL: all has come */
			continue;
		c.chunk = i;
		comes++;
		box_carry(&s, p->home[i], &c);
	}
	assert_true(comes > 0);
	rehome_expect_step(&s, STEP(SWITCH), 2);
	scene_close(&s);
}

/* ---- a chain: what goes to a box that is not the next one has a session of its own ---- */

/* From Hold to the end of what is carried: box 2 gets chunks of the top box, and of box 1. */
static void chain_hold(struct scene *s)
{
	rehome_open(s, &rehome_trained, "chain");
	assert_int_equal(rehome_begin(s, 0.1), 0);
	for (unsigned i = 1; i < BOXES; i++)
		rehome_say(s, i, STEP(HELD), 1, 0);
}

static void test_chain(void **state)
{
	struct scene s;

	chain_hold(&s);
	rehome_expect_step(&s, STEP(STOP), 1);
	assert_int_equal(rig_job(&s.rig)->peers->move->route_count, 1);
	assert_true(beside[2].carried > 0);
	assert_int_equal(beside[1].carried, 0);
	rehome_say_all(&s, STEP(CARRIED), 1);
	rehome_expect_step(&s, STEP(SWITCH), 1);
	assert_int_equal(rig_job(&s.rig)->peers->move->route_count, 0);
	rehome_say_all(&s, STEP(SWITCHED), 1);
	rehome_expect_step(&s, STEP(GO), 1);
	rehome_say_all(&s, STEP(RESUMED), 1);
	assert_string_equal(rehome_state(&s), "running");
	rehome_expect_outcome(&s, 1, "moved", "");
	/* Nobody lifts to this box what ends at the one before it; all else that one does. */
	for (uint32_t i = 0; i < REHOME_KEYS; i++) {
		const struct job *job = rig_job(&s.rig);
		const struct chunk *chunk = carry_chunk(job, i);

		assert_int_equal(
			chunk->arrivals[job->peers->each[2].slot].from == MEMBERS_NEVER, job->peers->home[i] == 2);
		assert_int_equal(chunk->way == SPEC_HOME, job->peers->home[i] == 0);
	}
	scene_close(&s);
}

/* A box without workers may have passed on no round since it came to do that: weights are carried to it. */
static void test_chain_passes_on(void **state)
{
	struct scene s;
	uint32_t seen = 0;
	struct job *job;
	uint64_t bytes;

	chain_hold(&s);
	job = rig_job(&s.rig);
	for (uint32_t at = 0; at < REHOME_KEYS; at++) {
		if (job->peers->home[at] != 2) /* what goes there passes box 1 */
			continue;
		bytes = carry_bytes(job, at, 1);
		job->peers->boxes[1].workers = 0;
		assert_true(peers_take_part(job->peers, 1, at));
		assert_int_equal(carry_bytes(job, at, 1), bytes + carry_chunk(job, at)->elements * sizeof(float));
		job->peers->boxes[1].workers = 1;
		seen++;
	}
	assert_true(seen > 0);
	scene_close(&s);
}

/* It cannot be reached, or refuses: all keep their homes. */
static void test_chain_unreached(void **state)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Error error = PHUB__ERROR__INIT;
	char text[] = "job 'wide': no box of that number lifts chunks to this one";
	struct scene s;

	error.code = ERROR_OF(TAKEN);
	error.text = text;
	control.message_case = PHUB__CONTROL__MESSAGE_ERROR;
	control.error = &error;
	for (unsigned refuses = 0; refuses < 2; refuses++) {
		rehome_open(&s, &rehome_trained, "chain");
		beside[2].lost = refuses ? 0 : -ECONNREFUSED;
		rig_wait(&s.rig, 20);
		s.rig.cores_rest = true; /* it does not hold at once */
		assert_int_equal(rehome_begin(&s, 0.1), 0);
		if (refuses) {
			struct peers_move *m = rig_job(&s.rig)->peers->move;
			struct err e;

			assert_int_equal(peers_routes_step(rig_job(&s.rig), &e), 0); /* it is dialled */
			assert_int_equal(m->stage, MOVE_WAITS);
			beside[2].hear(beside[2].arg, &control);
		}
		s.rig.cores_rest = false;
		for (unsigned i = 1; i < BOXES; i++)
			rehome_say(&s, i, STEP(HELD), 1, 0);
		rehome_expect_step(&s, STEP(GO), 1);
		rehome_expect_outcome(&s, 1, "kept",
			refuses ? "to which weights and state would go, was lost: no box of that number"
				: "box 10.9.9.9:7102, to which weights and state would go, cannot be reached from "
				  "here: "
				  "its cable is out");
		rehome_say_all(&s, STEP(RESUMED), 1);
		assert_string_equal(rehome_state(&s), "running");
		scene_close(&s);
	}
}

/* It has not done with the session of the change before this one: it is asked again. */
static void test_chain_busy(void **state)
{
	struct scene s;

	rehome_open(&s, &rehome_trained, "chain");
	beside[2].busy = 3;
	assert_int_equal(rehome_begin(&s, 0.1), 0);
	for (unsigned i = 1; i < BOXES; i++)
		rehome_say(&s, i, STEP(HELD), 1, 0);
	rig_wait(&s.rig, 200);
	assert_int_equal(beside[2].busy, 0);
	rehome_expect_step(&s, STEP(STOP), 1);
	assert_true(beside[2].carried > 0);
	scene_close(&s);
}

/* It is lost while all wait for what goes there: the job ends, and the error names it. */
static void test_chain_lost(void **state)
{
	struct scene s;

	rehome_open(&s, &rehome_trained, "chain");
	assert_int_equal(rehome_begin(&s, 0.1), 0);
	rig_wait(&s.rig, 20);
	beside[2].full = true;
	for (unsigned i = 1; i < BOXES; i++)
		rehome_say(&s, i, STEP(HELD), 1, 0);
	rehome_expect_step(&s, STEP(STOP), 1);
	beside[2].lost = -ECONNRESET;
	rig_wait(&s.rig, 20);
	actor_expect(&s.worker[0], ERROR_OF(LOST), "box 10.9.9.9:7102, to which weights and state would go, was lost");
	scene_close(&s);
}

TEST_PROGRAM(test_control_rehome_others)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wrong_rounds),
		cmocka_unit_test(test_wrong_rounds_of_others),
		cmocka_unit_test(test_wrong_steps),
		cmocka_unit_test(test_no_rounds),
		cmocka_unit_test(test_nobody_asked),
		cmocka_unit_test(test_wrong_carries),
		cmocka_unit_test(test_carries),
		cmocka_unit_test(test_chain),
		cmocka_unit_test(test_chain_passes_on),
		cmocka_unit_test(test_chain_unreached),
		cmocka_unit_test(test_chain_busy),
		cmocka_unit_test(test_chain_lost),
	};

	return cmocka_run_group_tests_name("control_rehome_others", tests, NULL, NULL);
}
