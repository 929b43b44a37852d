/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The top box changes the homes of a job's chunks (peers_move.h): what it tells the others and when, for whom it waits
 * and for how long, and what it refuses its operator.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/scene_rig.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- it moves ---- */

/* All are waited for, to the last one who goes on: before, there is no next one. */
static void test_moves(void **state)
{
	struct scene s;

	rehome_open(&s, &rehome_summed, "sharded");
	for (uint32_t number = 1; number < 4; number++) {
		assert_int_equal(rehome_begin(&s, number % 2 ? 10 : 1), 0);
		assert_non_null(strstr(s.said, " get other homes"));
		rehome_expect_error(&s, rehome_begin(&s, 1), -EBUSY, "is being rebalanced");
		rehome_move(&s, number);
		assert_string_equal(rehome_state(&s), "moves");
		rehome_expect_error(&s, rehome_begin(&s, 1), -EBUSY, "is being rebalanced");
		rehome_say(&s, 2, STEP(RESUMED), number, 0);
		assert_string_equal(rehome_state(&s), "moves");
		rehome_expect_stage(&s, "resuming", 2, "box 10.9.9.9:7101");
		rehome_expect_error(&s, rehome_begin(&s, 1), -EBUSY, "is being rebalanced");
		rehome_say(&s, 1, STEP(RESUMED), number, 0);
		assert_string_equal(rehome_state(&s), "running");
		rehome_expect_outcome(&s, number, "moved", "");
		assert_int_equal(
			rig_job(&s.rig)->generation->store.bytes, store_bytes(&rig_job(&s.rig)->generation->spec));
		assert_int_equal(rig_job(&s.rig)->peers->outcome->carried, 0); /* there is no optimizer */
	}
	assert_int_equal(rehome_begin(&s, 10), 0);
	assert_int_equal(s.number, 0);
	assert_non_null(strstr(s.said, "nothing to do: all boxes count the same here, for there is no rack file"));
	assert_int_equal(rehome_begin(&s, 4), 0);
	assert_string_equal(s.said, "1 of 12 chunks, 32768 of 393216 bytes, gets another home");
	rehome_move(&s, 4);
	rehome_say_all(&s, STEP(RESUMED), 4);
	assert_string_equal(rehome_state(&s), "running");
	scene_close(&s);
}

/* So many boxes that what goes from each to each other does not fit a reply: it has the first ones, and says how many.
 */
static void test_many_flows(void **state)
{
	const unsigned count = 20000;
	const Phub__RebalanceInfo *info;
	struct peers_outcome *o;
	struct scene s;
	struct actor admin;

	rehome_open(&s, &rehome_summed, "sharded");
	assert_int_equal(rehome_begin(&s, 10), 0);
	o = realloc(rig_job(&s.rig)->peers->outcome, sizeof(*o) + count * sizeof(o->flows[0]));
	assert_non_null(o);
	rig_job(&s.rig)->peers->outcome = o;
	for (o->flow_count = 0; o->flow_count < count; o->flow_count++)
		o->flows[o->flow_count] = (struct peers_flow){.from = 1, .to = 2, .chunks = 1, .bytes = 4};
	actor_dial(&s.rig, &admin, 9);
	assert_true(actor_join_admin(&admin, NULL));
	actor_ask(&admin, "jobs");
	assert_int_equal(actor_hear(&admin), PHUB__CONTROL__MESSAGE_ADMIN_REPLY);
	assert_int_equal(admin.last->admin_reply->n_jobs, 1);
	info = admin.last->admin_reply->jobs[0]->rebalance;
	assert_int_equal(info->flow_count, count);
	assert_int_equal(info->n_flows, 1024);
	assert_string_equal(info->flows[1023]->to, "10.9.9.9:7102");
	actor_hang_up(&admin);
	scene_close(&s);
}

/* Their next tables are not begun with before all go on. */
static void test_tables_wait(void **state)
{
	struct rig_job next = rehome_summed;
	struct scene s;

	rehome_open(&s, &rehome_summed, "sharded");
	assert_int_equal(rehome_begin(&s, 10), 0);
	rehome_move(&s, 1);
	next.generation = 2;
	actor_table(&s.worker[0], &next, REHOME_KEYS, ELEMENTS);
	for (unsigned i = 1; i < BOXES; i++) {
		if (i == 2)
			rehome_say(&s, 1, STEP(RESUMED), 1, 0);
		actor_table(&s.box[i], &next, REHOME_KEYS, ELEMENTS);
	}
	rig_wait(&s.rig, 20);
	assert_int_equal(rig_job(&s.rig)->generation->spec.generation, 1);
	rehome_say(&s, 2, STEP(RESUMED), 1, 0);
	assert_int_equal(rig_job(&s.rig)->generation->spec.generation, 2);
	scene_close(&s);
}

/* ---- it does not, and all go on ---- */

static void test_refused_by_one(void **state)
{
	struct scene s;

	rehome_open(&s, &rehome_summed, "sharded");
	assert_int_equal(rehome_begin(&s, 10), 0);
	rehome_say(&s, 1, STEP(REFUSED), 1, 0);
	rehome_expect_step(&s, STEP(HOLD), 1);
	rehome_say(&s, 2, STEP(HELD), 1, 1);
	rehome_expect_step(&s, STEP(GO), 1);
	rehome_say_all(&s, STEP(RESUMED), 1);
	assert_string_equal(rehome_state(&s), "running");
	rehome_expect_outcome(&s, 1, "kept", "box 10.9.9.9:7101 cannot have others: it has no room");
	assert_int_equal(rehome_begin(&s, 10), 0);
	rehome_expect_stage(&s, "holding", 0, "the top box");
	rehome_move(&s, 2);
	rehome_say_all(&s, STEP(RESUMED), 2);
	assert_string_equal(rehome_state(&s), "running");
	scene_close(&s);
}

/* One does not hold in time; it may do so yet before it hears that all go on. */
static void test_too_late(void **state)
{
	struct scene s;

	for (unsigned says = 0; says < 3; says++) {
		rehome_open(&s, &rehome_summed, "sharded");
		assert_int_equal(rehome_begin(&s, 10), 0);
		rehome_say(&s, 1, STEP(HELD), 1, 1);
		rig_wait(&s.rig, 3800);
		rehome_expect_step(&s, STEP(HOLD), 1);
		rig_wait(&s.rig, 300);
		rehome_expect_step(&s, STEP(GO), 1);
		rehome_expect_outcome(&s, 1, "kept", "box 10.9.9.9:7102 has not held its rounds within 4.0 s");
		for (unsigned i = 0; i < says; i++)
			rehome_say(&s, 2, STEP(HELD), 1, 1);
		if (says == 2) {
			actor_expect(&s.box[2], ERROR_OF(PROTOCOL), "step 1 of a change of homes is not next");
			scene_close(&s);
			continue;
		}
		rehome_say(&s, 2, STEP(RESUMED), 1, 0);
		assert_string_equal(rehome_state(&s), "moves");
		rehome_say(&s, 1, STEP(RESUMED), 1, 0);
		assert_string_equal(rehome_state(&s), "running");
		actor_heartbeat(&s.worker[0]);
		actor_expect(&s.worker[0], 0, "");
		scene_close(&s);
	}
}

/* The top box's own cores are those that do not hold: whoever has, goes on, and they as soon as they do. */
static void test_too_late_itself(void **state)
{
	struct scene s;

	rehome_open(&s, &rehome_summed, "sharded");
	assert_int_equal(rehome_begin(&s, 10), 0);
	rig_turn_control(&s.rig);
	assert_int_equal(rig_job(&s.rig)->peers->move->stage, MOVE_HELD);
	scene_close(&s);
	rehome_open(&s, &rehome_summed, "sharded");
	s.rig.cores_rest = true;
	assert_int_equal(rehome_begin(&s, 10), 0);
	rehome_say_all(&s, STEP(HELD), 1);
	rehome_expect_step(&s, STEP(HOLD), 1);
	rig_wait(&s.rig, 4100);
	rehome_expect_step(&s, STEP(GO), 1);
	rehome_expect_outcome(&s, 1, "kept", "the top box has not held its rounds within 4.0 s");
	rehome_say_all(&s, STEP(RESUMED), 1);
	assert_string_equal(rehome_state(&s), "running");
	assert_int_equal(rehome_begin(&s, 10), 0); /* waits for the hold of the one before */
	rig_wait(&s.rig, 20);
	assert_int_equal(rig_job(&s.rig)->peers->move->stage, MOVE_WAITS);
	s.rig.cores_rest = false;
	rig_wait(&s.rig, 20);
	assert_int_equal(rig_job(&s.rig)->peers->move->stage, MOVE_HELD);
	rehome_move(&s, 2);
	rehome_say_all(&s, STEP(RESUMED), 2);
	assert_string_equal(rehome_state(&s), "running");
	scene_close(&s);
}

/* ---- a box dies ---- */

/* In whatever step: the job ends, and the error names it. */
static void test_dies(void **state)
{
	static const Phub__RehomeStep steps[] = {STEP(HELD), STEP(CARRIED), STEP(SWITCHED), STEP(RESUMED)};
	struct scene s;

	for (unsigned at = 0; at < 8; at++) {
		rehome_open(&s, &rehome_summed, "sharded");
		assert_int_equal(rehome_begin(&s, 10), 0);
		for (unsigned i = 0; i < at / 2; i++)
			rehome_say_all(&s, steps[i], 1);
		if (at % 2)
			rehome_say(&s, 1, steps[at / 2], 1, 1);
		assert_string_equal(rehome_state(&s), "moves");
		actor_hang_up(&s.box[2]);
		memset(&s.box[2], 0, sizeof(s.box[2]));
		rig_wait(&s.rig, 1100);
		actor_expect(&s.worker[0], ERROR_OF(LOST), "(rank 2) was lost");
		scene_close(&s);
	}
}

/* It leaves, all of its workers being done: nobody waits for what it does not say. */
static void test_leaves(void **state)
{
	struct scene s;

	rehome_open(&s, &rehome_summed, "sharded");
	assert_int_equal(rehome_begin(&s, 10), 0);
	rig_job(&s.rig)->peers->each[2].left = true;
	rehome_say(&s, 1, STEP(HELD), 1, 1);
	assert_int_equal(actor_hear(&s.box[1]), PHUB__CONTROL__MESSAGE_REHOME);
	assert_int_equal(s.box[1].last->rehome->step, STEP(GO));
	rehome_expect_outcome(&s, 1, "kept", "box 10.9.9.9:7102 has left the job");
	rig_job(&s.rig)->peers->each[2].left = false;
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
	struct rig_job waits = rehome_summed;
	struct scene s;

	rehome_open(&s, &rehome_summed, "sharded");
	assert_int_equal(operate(&s, "pause"), 0);
	rehome_expect_error(&s, rehome_begin(&s, 10), -EBUSY, "job 'wide' is paused; resume it first");
	assert_int_equal(operate(&s, "resume"), 0);
	s.rig.box->control.above.doubt_ns = 1;
	rehome_expect_error(
		&s, rehome_begin(&s, 10), -EBUSY, "job 'wide' is held: this box's lease in etcd may be over");
	s.rig.box->control.above.doubt_ns = 0;
	rig_job(&s.rig)->peers->each[1].state = PEER_CONNECTING;
	rehome_expect_error(&s, rehome_begin(&s, 10), -EBUSY, "job 'wide' is not under way at box 10.9.9.9:7101 yet");
	rig_job(&s.rig)->peers->each[1].state = PEER_LIFTING;
	assert_int_equal(rehome_begin(&s, 10), 0);
	rehome_expect_error(&s, operate(&s, "pause"), -EBUSY, "is being rebalanced");
	rehome_expect_error(&s, operate(&s, "drain"), -EBUSY, "is being rebalanced");
	scene_close(&s);
	rehome_open(&s, &rehome_summed, "sharded");
	rig_job(&s.rig)->draining = true; /* it would end at once here, where no round is open */
	rehome_expect_error(&s, rehome_begin(&s, 10), -EBUSY, "job 'wide' drains, and is about to end");
	scene_close(&s);
	rehome_open(&s, &rehome_summed, "sharded");
	rig_job(&s.rig)->left = 1;
	rehome_expect_error(&s, rehome_begin(&s, 10), -EBUSY, "job 'wide' is about to end");
	rig_job(&s.rig)->left = 0;
	rig_job(&s.rig)->state = JOB_REKEYING;
	rehome_expect_error(&s, rehome_begin(&s, 10), -EBUSY, "job 'wide' does not run yet");
	rig_job(&s.rig)->state = JOB_RUNNING;
	scene_close(&s);
	waits.lost = LOST_WAIT;
	rehome_form(&s, &waits, sharded);
	for (unsigned i = 1; i < BOXES; i++)
		rig_job(&s.rig)->peers->each[i].state = PEER_LIFTING;
	rig_job(&s.rig)->members[0].gone = true;
	rehome_expect_error(
		&s, rehome_begin(&s, 10), -EBUSY, "waits for another in the place of rank 0, which was lost");
	rig_job(&s.rig)->members[0].gone = false;
	scene_close(&s);
}

static void test_no_homes(void **state)
{
	static const char *const tree[] = {"hierarchy=tree", NULL}, *const tight[] = {"hierarchy=sharded",
									    "memory_max=4194304", NULL};
	struct scene s;

	rehome_form(&s, &rehome_summed, tree);
	rehome_expect_error(&s, rehome_begin(&s, 10), -EINVAL, "job 'wide' has a tree of boxes");
	scene_close(&s);
	rehome_form(&s, &rehome_trained, tight);
	for (unsigned i = 1; i < BOXES; i++)
		rig_job(&s.rig)->peers->each[i].state = PEER_LIFTING;
	s.rig.config.memory_max = s.rig.box->control.memory_used + 1000;
	rehome_expect_error(&s, rehome_begin(&s, 10), -ENOMEM, "and 1000 are available (memory_max)");
	assert_string_equal(rehome_state(&s), "running");
	rehome_expect_error(&s,
		job_operate(&s.rig.box->control, "rebalance", "none", "", s.said, sizeof(s.said), &s.number, &s.e),
		-ENOENT, "no job 'none' is here");
	scene_close(&s);
}

TEST_PROGRAM(test_control_rehome)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_moves),
		cmocka_unit_test(test_many_flows),
		cmocka_unit_test(test_tables_wait),
		cmocka_unit_test(test_refused_by_one),
		cmocka_unit_test(test_too_late),
		cmocka_unit_test(test_too_late_itself),
		cmocka_unit_test(test_dies),
		cmocka_unit_test(test_leaves),
		cmocka_unit_test(test_not_now),
		cmocka_unit_test(test_no_homes),
	};

	return cmocka_run_group_tests_name("control_rehome", tests, NULL, NULL);
}
