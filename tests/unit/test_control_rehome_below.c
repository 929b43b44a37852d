/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box below the top one of a chain of three changes homes as it is told (peers_move.h), against boxes that the test
 * plays: what it answers, what it refuses, and what it ends the job for; and a box that carries to it and lifts
 * nothing.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/scene_rig.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/crc.h"
#include "phub/control/job.h"
#include "phub/control/job_below.h"
#include "phub/control/peers_carry.h"
#include "phub/control/peers_move.h"
#include "transport/call.h"

enum { SELF = 1, EXCHANGE = 4711 };

/* ---- a job of three, of which the second is here ---- */

/* Of so many chunks of one size, by these rates: at the start, or of those that the job has. */
static uint32_t homes_of(const double rates[BOXES], const struct job *job)
{
	struct ways_box boxes[BOXES] = {{0}};
	uint32_t bytes[REHOME_KEYS];
	uint16_t home[REHOME_KEYS];
	struct err e;

	if (job)
		memcpy(home, job->peers->home, sizeof(home));

	for (unsigned i = 0; i < REHOME_KEYS; i++)
		bytes[i] = ELEMENTS * sizeof(float);
	for (unsigned i = 0; i < BOXES; i++)
		boxes[i] = (struct ways_box){.workers = 1, .rate_bytes_s = rates[i]};
	assert_int_equal(job ? ways_rehome(boxes, BOXES, bytes, REHOME_KEYS, home, &e)
			     : ways_homes(WAYS_CHAIN, boxes, BOXES, 0, bytes, REHOME_KEYS, home, &e),
		0);
	return crc_32c(0, home, sizeof(home));
}

static void below_start(struct scene *s)
{
	static const double rates[BOXES] = {100, 100, 100};
	char hosts[BOXES][16] = {"", "10.9.9.1", "10.9.9.2"};
	struct said said;

	said_init(&said);
	phub__exchange__init(&said.exchange);
	for (unsigned i = 0; i < BOXES; i++) {
		phub__exchange_box__init(&said.boxes[i]);
		said.each[i] = &said.boxes[i];
		said.ranks[i] = i;
		said.boxes[i].host = hosts[i];
		said.boxes[i].port = i ? REHOME_PORT + i : 0;
		said.boxes[i].ranks = &said.ranks[i];
		said.boxes[i].n_ranks = 1;
		said.boxes[i].rate = 100;
	}
	said.exchange.hierarchy = PHUB__HIERARCHY__HIERARCHY_CHAIN;
	said.exchange.number = EXCHANGE;
	said.exchange.boxes = said.each;
	said.exchange.n_boxes = BOXES;
	said.exchange.box = SELF;
	said.exchange.cores = 1;
	said.exchange.homes = homes_of(rates, NULL);
	said.start.rank = REHOME_WORLD;
	said.start.core_of_chunk.len = REHOME_KEYS;
	said.start.exchange = &said.exchange;
	upper_start(s, &said);
}

static void below_open(struct scene *s)
{
	static const char *const settings[] = {"uplink=10.9.9.9:7077", NULL};

	scene_begin(s, 1, REHOME_WORLD, settings);
	scene_join(s, 0, 1, REHOME_WORLD);
	actor_table(&s->worker[0], NULL, REHOME_KEYS, ELEMENTS);
	rig_wait(&s->rig, 20);
	below_start(s);
	actor_expect(&s->worker[0], 0, "");
	assert_int_equal(rig_job(&s->rig)->state, JOB_RUNNING);
	assert_true(rig_job(&s->rig)->peers->each[2].target);
	rig_job(&s->rig)->peers->each[2].state = PEER_LIFTING; /* as if connections of cores were made */
}

/* ---- what the top box says ---- */

/* The last one's link is slower now; of every second number as fast as the others. */
static void tell_hold(struct scene *s, uint32_t number, unsigned boxes, uint32_t wrong)
{
	const double rates[BOXES] = {100, 100, number % 2 ? 10 : 100};
	uint64_t said[BOXES] = {100, 100, number % 2 ? 10 : 100};
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Rehome m = PHUB__REHOME__INIT;

	m.step = STEP(HOLD);
	m.number = number;
	m.rates = said;
	m.n_rates = boxes;
	m.homes = homes_of(rates, rig_job(&s->rig)) + wrong;
	control.message_case = PHUB__CONTROL__MESSAGE_REHOME;
	control.rehome = &m;
	above_say(s, &control);
}

static void tell_step(struct scene *s, Phub__RehomeStep step, uint32_t number, uint64_t round)
{
	uint64_t rounds[REHOME_KEYS] = {0};
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Rehome m = PHUB__REHOME__INIT;

	m.step = step;
	m.number = number;
	m.rounds = rounds;
	m.n_rounds = step == STEP(STOP) ? REHOME_KEYS : 0;
	m.rounds_from = round;
	control.message_case = PHUB__CONTROL__MESSAGE_REHOME;
	control.rehome = &m;
	above_say(s, &control);
}

static void expect_said(Phub__RehomeStep step, uint32_t number, unsigned said)
{
	assert_int_equal(above.step, step);
	assert_int_equal(above.number, number);
	assert_int_equal(above.said, said);
}

/* ---- all as it should be ---- */

static void test_moves(void **state)
{
	struct scene s;

	below_open(&s);
	for (unsigned number = 1; number < 3; number++) {
		tell_hold(&s, number, BOXES, 0);
		expect_said(STEP(HELD), number, 4 * number - 3);
		assert_int_equal(above.round, 1);
		tell_step(&s, STEP(STOP), number, 1);
		expect_said(STEP(CARRIED), number, 4 * number - 2);
		tell_step(&s, STEP(SWITCH), number, 0);
		expect_said(STEP(SWITCHED), number, 4 * number - 1);
		above.full = true; /* it goes on, and cannot say so yet */
		tell_step(&s, STEP(GO), number, 0);
		assert_true(peers_moves(rig_job(&s.rig)));
		above.full = false;
		rig_wait(&s.rig, 50);
		expect_said(STEP(RESUMED), number, 4 * number);
		assert_false(peers_moves(rig_job(&s.rig)));
	}
	actor_expect(&s.worker[0], 0, "");
	scene_close(&s);
}

/* The top box gives it up: this one goes on as it was, and says that, too. */
static void test_given_up(void **state)
{
	struct scene s;

	below_open(&s);
	tell_hold(&s, 1, BOXES, 0);
	tell_step(&s, STEP(GO), 1, 0);
	expect_said(STEP(RESUMED), 1, 2);
	assert_false(peers_moves(rig_job(&s.rig)));
	assert_null(rig_job(&s.rig)->change);
	/* Before it has held: it says nothing else, and its cores go on as soon as they do. */
	s.rig.cores_rest = true;
	tell_hold(&s, 3, BOXES, 0);
	tell_step(&s, STEP(GO), 3, 0);
	expect_said(STEP(RESUMED), 3, 3);
	s.rig.cores_rest = false;
	rig_wait(&s.rig, 20);
	assert_null(rig_job(&s.rig)->change);
	tell_hold(&s, 5, BOXES, 0);
	expect_said(STEP(HELD), 5, 4);
	scene_close(&s);
}

/* ---- it refuses ---- */

static void test_refuses(void **state)
{
	static const char *const words[] = {"the operator of this box drains the job",
		"the operator of this box paused the job", "it does not run here yet",
		"bytes more while its chunks get other homes, and 0 are available"};
	struct scene s;

	for (unsigned i = 0; i < 4; i++) {
		uint64_t memory;

		below_open(&s);
		memory = s.rig.config.memory_max;
		rig_job(&s.rig)->draining = i == 0;
		rig_job(&s.rig)->paused = i == 1;
		rig_job(&s.rig)->state = i == 2 ? JOB_REKEYING : JOB_RUNNING;
		if (i == 3)
			s.rig.config.memory_max = s.rig.box->control.memory_used;
		tell_hold(&s, 1, BOXES, 0);
		expect_said(STEP(REFUSED), 1, 1);
		if (!strstr(above.why, words[i]))
			fail_msg("'%s' is not in '%s'", words[i], above.why);
		rig_job(&s.rig)->draining = rig_job(&s.rig)->paused = false;
		rig_job(&s.rig)->state = JOB_RUNNING;
		s.rig.config.memory_max = memory;
		tell_step(&s, STEP(GO), 1, 0);
		expect_said(STEP(RESUMED), 1, 2);
		assert_false(peers_moves(rig_job(&s.rig)));
		tell_hold(&s, 3, BOXES, 0);
		expect_said(STEP(HELD), 3, 3);
		scene_close(&s);
	}
}

/* ---- what the top box cannot say ---- */

static void test_wrong(void **state)
{
	enum { TWICE, COUNT, HOMES, SAME, NUMBER, EARLY, BEHIND, SWITCH_EARLY, GO_LATE, UNASKED, CASES };
	static const char *const words[CASES] = {
		[TWICE] = "and 3 exchange; it has not done with the ones before",
		[COUNT] = "other homes for the chunks of 2 boxes, and 3 exchange",
		[HOMES] = "the top box has other homes for its chunks than this one would choose",
		[SAME] = "the top box wants other homes for its chunks, and names those that they have",
	};
	struct scene s;

	for (int i = 0; i < CASES; i++) {
		below_open(&s);
		s.rig.cores_rest = i == EARLY; /* it has not held */
		if (i != UNASKED)
			tell_hold(&s, i == SAME ? 2 : 1, i == COUNT ? 2 : BOXES, i == HOMES);
		if (i == TWICE)
			tell_hold(&s, 2, BOXES, 0);
		else if (i == GO_LATE)
			tell_step(&s, STEP(STOP), 1, 1);
		if (i == SWITCH_EARLY)
			tell_step(&s, STEP(SWITCH), 1, 0);
		else if (i == GO_LATE || i == UNASKED)
			tell_step(&s, STEP(GO), 1, 0);
		else if (i > SAME)
			tell_step(&s, STEP(STOP), i == NUMBER ? 2 : 1, i == BEHIND ? 0 : 1);
		s.rig.cores_rest = false;
		actor_expect(&s.worker[0], ERROR_OF(PROTOCOL),
			words[i] ? words[i] : "of a change of homes, which this box is not at");
		scene_close(&s);
	}
}

/* ---- a box that carries, and lifts nothing ---- */

static void box_come(struct scene *s, struct actor *a, uint32_t number)
{
	static uint8_t nonce[PROOF_NONCE] = {1, 2, 3};
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Hello hello = PHUB__HELLO__INIT;

	actor_dial(&s->rig, a, 5);
	hello.version = hello.version_min = WIRE_VERSION;
	hello.software = (char *)(uintptr_t) "rig";
	hello.job = (char *)(uintptr_t) "wide";
	hello.world = REHOME_WORLD;
	hello.nonce.data = nonce;
	hello.nonce.len = sizeof(nonce);
	hello.below = true;
	hello.peer = number + 1;
	hello.exchange = EXCHANGE;
	control.message_case = PHUB__CONTROL__MESSAGE_HELLO;
	control.hello = &hello;
	actor_say(a, &control);
	assert_int_equal(actor_hear(a), PHUB__CONTROL__MESSAGE_CHALLENGE);
	actor_prove(a, "wide", 0, REHOME_WORLD, NULL);
}

static void test_carrier(void **state)
{
	Phub__Control signal = PHUB__CONTROL__INIT, carry = PHUB__CONTROL__INIT;
	Phub__Signal m = PHUB__SIGNAL__INIT;
	Phub__Carry c = PHUB__CARRY__INIT;
	struct actor other;
	struct conn *conn;
	struct scene s;

	signal.message_case = PHUB__CONTROL__MESSAGE_SIGNAL;
	signal.signal = &m;
	carry.message_case = PHUB__CONTROL__MESSAGE_CARRY;
	carry.carry = &c;
	below_open(&s);
	box_come(&s, &s.box[0], 2);
	assert_true(actor_welcomed(&s.box[0]));
	box_come(&s, &other, 2); /* one is enough: of the next change it may come when the last one's has ended */
	assert_false(actor_welcomed(&other));
	actor_expect(&other, ERROR_OF(BUSY), "by which that box carried to this one before has not ended");
	actor_hang_up(&other);
	box_come(&s, &other, SELF);
	assert_false(actor_welcomed(&other));
	actor_expect(&other, ERROR_OF(TAKEN), "no box of that number lifts chunks to this one, or another does");
	actor_hang_up(&other);
	assert_true(actor_connect(&s.box[0], 0, s.box[0].key, &conn) < 0);
	if (conn)
		transport_loop.abandon(s.box[0].transport, conn);
	/* It leaves, and may come again; the job is as before. */
	actor_leave(&s.box[0]);
	assert_int_equal(actor_hear(&s.box[0]), PHUB__CONTROL__MESSAGE_LEFT);
	assert_false(rig_job(&s.rig)->peers->each[2].left);
	actor_hang_up(&s.box[0]);
	/* Likewise where it goes without a word: it gave the rebalance up before it knew that it was let in. */
	box_come(&s, &s.box[0], 2);
	assert_true(actor_welcomed(&s.box[0]));
	actor_hang_up(&s.box[0]);
	rig_wait(&s.rig, 1200);
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	box_come(&s, &s.box[0], 2);
	assert_true(actor_welcomed(&s.box[0]));
	actor_say(&s.box[0], &signal);
	actor_expect(&s.box[0], ERROR_OF(PROTOCOL), "a signal of a box that lifts nothing to this one");
	rig_wait(&s.rig, 1200);
	actor_expect(&s.worker[0], ERROR_OF(LOST), "box 10.9.9.2:7102");
	scene_close(&s);
	below_open(&s);
	box_come(&s, &s.box[0], 2);
	assert_true(actor_welcomed(&s.box[0]));
	actor_say(&s.box[0], &carry);
	actor_expect(&s.box[0], ERROR_OF(PROTOCOL), "it carries chunk 0 here, whose next home this is not, or not so");
	scene_close(&s);
}

TEST_PROGRAM(test_control_rehome_below)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_moves),
		cmocka_unit_test(test_given_up),
		cmocka_unit_test(test_refuses),
		cmocka_unit_test(test_wrong),
		cmocka_unit_test(test_carrier),
	};

	return cmocka_run_group_tests_name("control_rehome_below", tests, NULL, NULL);
}
