/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job's workers come to a standby: it goes on there with the bits that it would have had, without those that were
 * lost, and not before all others have come.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/mirror_rig.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregation/convert.h"
#include "phub/base/log.h"

/* ---- going on ---- */

static void check_start(const struct standby *s, const struct feed *f)
{
	const Phub__Start *start = f->a.last->start;

	assert_true(start->moved && !start->joined);
	assert_int_equal(start->generation, s->shape.generation);
	assert_int_equal(start->hyper, s->hyper);
	assert_int_equal(start->n_groups, 1);
	assert_true(start->groups[0]->lr == (s->hyper ? 0.25 : 0.01));
	assert_int_equal(start->barrier, 17);
	assert_int_equal(start->n_chunk_rounds, s->chunks);
	assert_int_equal(start->chunk_rounds_from, 0);
	for (uint32_t i = 0; i < s->chunks; i++) {
		assert_int_equal(start->chunk_rounds[i], mirror_chunk(s->g, i)->round);
		assert_int_equal(start->core_of_chunk.data[i], s->g->core_of_chunk[i]);
	}
}

static void check_takeover(const struct mirror_shape *shape)
{
	struct standby s;

	standby_open(&s, shape, shape->encrypt ? mirror_secret : NULL);
	for (uint32_t i = 0; i < 2 * s.chunks; i++)
		standby_run(&s, i % s.chunks, false);
	standby_mirror(&s);
	for (uint32_t i = 0; i < s.chunks; i++)
		standby_run(&s, i, true);
	if (shape->optimizer != OPTIMIZER_NONE) {
		actor_hyper(&s.steady[0].a, 1, 0.25);
		actor_hyper(&s.steady[1].a, 1, 0.25);
		actor_hyper(&s.box.a, 1, 0.25);
		s.hyper = 1;
	}
	/* Some chunks are rounds ahead of others. */
	for (uint32_t i = 0; i < s.chunks; i += 3)
		standby_run(&s, i, true);
	for (uint32_t i = 0; i < s.chunks; i += 6)
		standby_run(&s, i, true);
	mirror_say_state(&s.box.a, true, NULL, 0, 17);
	feed_close(&s.box);
	rig_wait(&s.rig, 1000);
	actor_heartbeat(&s.steady[0].a);
	assert_true(mirror_job(&s.rig, "job", true)->mirror->lost_ns > 0);
	standby_move(&s);
	assert_null(mirror_job(&s.rig, "job", true));
	for (uint32_t rank = 0; rank < MIRROR_WORLD; rank++)
		check_start(&s, &s.moved[rank]);
	/* Who has not got the result of the round before asks once more. */
	for (uint32_t i = 0; i < s.chunks; i++) {
		const struct chunk_span *span = &s.g->spec.plan.chunks[i];
		const struct wire_header h = {.type = WIRE_PUSH, .round = mirror_chunk(s.g, i)->round - 1, .count = 1};

		feed_send(&s.moved[1], i, &h, s.moved[1].results);
		assert_int_equal(s.moved[1].rounds[i], h.round);
		assert_memory_equal(s.moved[1].results + span->offset, s.steady[1].results + span->offset, span->bytes);
	}
	for (uint32_t i = 0; i < 2 * s.chunks; i++)
		standby_check_next(&s, i % s.chunks);
	standby_close_moved(&s);
}

static void test_takeover(void **state)
{
	static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

	for (int kind = 0; kind < OPTIMIZER_COUNT; kind++)
		for (int d = 0; d < 3; d++)
			for (int mean = 0; mean < 2; mean++)
				check_takeover(&(struct mirror_shape){
					(enum optimizer_kind)kind, dtypes[d], mean, LOST_FAIL, SYNC_BSP, 1, 0, false});
}

/* All of it is encrypted: images, sums, the standby's answers, and what the workers push and get there. */
static void test_takeover_encrypted(void **state)
{
	struct mirror_shape shape = mirror_plain;

	shape.generation = 1;
	shape.encrypt = true;
	for (int d = 0; d < 2; d++) {
		shape.dtype = d ? DTYPE_BF16 : DTYPE_F32;
		shape.optimizer = OPTIMIZER_ADAM;
		check_takeover(&shape);
		shape.optimizer = OPTIMIZER_NONE;
		check_takeover(&shape);
	}
}

/* A key table that was replaced at the box, and its next one. */
static void test_takeover_generation(void **state)
{
	struct mirror_shape shape = mirror_plain, next = mirror_plain;
	struct standby s;

	shape.generation = 5;
	next.generation = 6;
	standby_open(&s, &shape, NULL);
	standby_mirror(&s);
	feed_close(&s.box);
	standby_move(&s);
	assert_int_equal(s.moved[0].a.last->start->generation, 5);
	standby_check_next(&s, 0);
	for (uint32_t rank = 0; rank < MIRROR_WORLD; rank++) {
		mirror_say_job(&s.moved[rank].a, &next);
		mirror_say_keys(&s.moved[rank].a, &next);
	}
	rig_wait(&s.rig, 100);
	assert_int_equal(actor_hear(&s.moved[0].a), PHUB__CONTROL__MESSAGE_START);
	assert_int_equal(s.moved[0].a.last->start->generation, 6);
	assert_false(s.moved[0].a.last->start->moved);
	standby_close_moved(&s);
}

/* The box lives, but its workers cannot reach it: it hears of it, and its session is over. */
static void test_box_is_told(void **state)
{
	struct standby s;

	standby_open(&s, &mirror_plain, NULL);
	standby_mirror(&s);
	s.shape.generation = 1;
	standby_move(&s);
	feed_turn(&s.box);
	assert_true(s.box.ended);
	assert_int_equal(actor_hear(&s.box.a), PHUB__CONTROL__MESSAGE_LEFT);
	standby_check_next(&s, 1);
	/* It may not mirror the job to where it runs. */
	feed_close(&s.box);
	actor_dial(&s.rig, &s.box.a, 9);
	s.box.a.mirror = true;
	assert_false(actor_join(&s.box.a, "job", 0, 1, NULL));
	actor_expect(&s.box.a, ERROR_OF(TAKEN), "runs here itself");
	actor_hang_up(&s.box.a);
	standby_close_moved(&s);
}

/* What was under way is not in it: a sum that waits for its hyper-parameters, and arrays of an image. */
static void test_takeover_in_midround(void **state)
{
	struct wire_header h = {.type = WIRE_PUSH, .hyper = 3, .count = MIRROR_WORLD};
	static float sum[MIRROR_ELEMENTS_MAX];
	struct standby s;

	standby_open(&s, &mirror_plain, NULL);
	standby_mirror(&s);
	s.shape.generation = 1;
	h.round = mirror_chunk(s.g, 0)->round;
	feed_send(&s.box, 0, &h, sum);
	assert_int_equal(
		mirror_job(&s.rig, "job", true)->generation->store.shards[s.g->core_of_chunk[0]]->parked_count, 1);
	h = (struct wire_header){
		.type = WIRE_INIT, .round = h.round + 1, .hyper = (uint32_t)mirror_chunk(s.g, 1)->steps, .count = 1};
	feed_send(&s.box, 1, &h, mirror_chunk(s.g, 1)->weight);
	feed_close(&s.box);
	standby_move(&s);
	for (uint32_t i = 0; i < s.chunks; i++)
		assert_int_equal(s.moved[0].a.last->start->chunk_rounds[i], mirror_chunk(s.g, i)->round);
	for (uint32_t i = 0; i < s.chunks; i++)
		standby_check_next(&s, i);
	standby_close_moved(&s);
}

/* A job that its box's operator paused is paused here, until it is resumed here. */
static void test_paused_moves(void **state)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__MirrorState paused = PHUB__MIRROR_STATE__INIT;
	struct standby s;
	struct job *job;
	struct err e;

	standby_open(&s, &mirror_plain, NULL);
	standby_mirror(&s);
	paused.whole = true;
	paused.paused = true;
	paused.reason = (char *)(uintptr_t) "a switch\033 is changed";
	control.message_case = PHUB__CONTROL__MESSAGE_MIRROR_STATE;
	control.mirror_state = &paused;
	actor_say(&s.box.a, &control);
	feed_close(&s.box);
	standby_move(&s);
	job = mirror_job(&s.rig, "job", false);
	assert_true(job->paused);
	assert_string_equal(job->reason, "a switch? is changed");
	for (unsigned core = 0; core < MIRROR_CORES; core++)
		assert_true(job->generation->store.shards[core]->paused);
	assert_int_equal(job_operate(&s.rig.box->control, "resume", "job", "", NULL, 0, NULL, &e), 0);
	rig_wait(&s.rig, 1);
	standby_check_next(&s, 0);
	standby_close_moved(&s);
}

/* ---- what encryption leaves open ---- */

static void count_warnings(void *ctx, enum log_level level, const char *line)
{
	*(unsigned *)ctx += level == LOG_LEVEL_WARN && strstr(line, "its control sessions are not (rank");
}

/* Data is encrypted and control is plain: once for each job, where that goes over a network. */
static void test_plain_control_is_told(void **state)
{
	struct mirror_shape shape = mirror_plain;

	shape.encrypt = true;
	for (unsigned remote = 0; remote < 2; remote++) {
		unsigned told = 0;
		struct rig rig;
		struct feed f[MIRROR_WORLD];

		assert_int_equal(setenv("PHUB_TEST_SECRET", MIRROR_SECRET, 1), 0);
		rig_open(&rig, MIRROR_CORES, mirror_secret);
		for (unsigned host = 1; host <= 8; host++)
			loop_net_host(rig.net, host)->remote = remote;
		log_set_sink(count_warnings, &told);
		for (uint32_t rank = 0; rank < MIRROR_WORLD; rank++)
			feed_join(&rig, &f[rank], "job", rank, false, &shape);
		for (uint32_t rank = 0; rank < MIRROR_WORLD; rank++)
			assert_int_equal(actor_hear(&f[rank].a), PHUB__CONTROL__MESSAGE_START);
		log_set_sink(NULL, NULL);
		assert_int_equal(told, remote);
		for (uint32_t rank = 0; rank < MIRROR_WORLD; rank++)
			feed_close(&f[rank]);
		rig_wait(&rig, 200);
		rig_close(&rig);
	}
}

/* One that drains at its box drains here. */
static void test_draining_moves(void **state)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__MirrorState draining = PHUB__MIRROR_STATE__INIT;
	struct standby s;

	standby_open(&s, &mirror_plain, NULL);
	standby_mirror(&s);
	draining.whole = true;
	draining.draining = true;
	draining.reason = (char *)(uintptr_t) "a rack is moved";
	control.message_case = PHUB__CONTROL__MESSAGE_MIRROR_STATE;
	control.mirror_state = &draining;
	actor_say(&s.box.a, &control);
	feed_close(&s.box);
	standby_move(&s);
	for (uint32_t i = 0; i < s.chunks; i++) /* not at once: some had no result of their last round yet */
		standby_check_next(&s, i);
	for (int i = 0; i < 6; i++) {
		rig_wait(&s.rig, 1000);
		for (uint32_t rank = 0; rank < MIRROR_WORLD; rank++)
			actor_heartbeat(&s.moved[rank].a);
		actor_heartbeat(&s.steady[0].a);
		actor_heartbeat(&s.steady[1].a);
	}
	actor_expect(&s.moved[0].a, ERROR_OF(OPERATOR), "operator drained it: a rack is moved");
	standby_close_moved(&s);
}

/*
 * The box has lost workers, and ends the job. They may have lost that box alone: the copy waits for them for as long as
 * they wait for each other, and no longer.
 */
static void test_bereaved_box(void **state)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Leave leave = PHUB__LEAVE__INIT;
	char text[400];
	struct standby s;

	leave.bereaved = true;
	control.message_case = PHUB__CONTROL__MESSAGE_LEAVE;
	control.leave = &leave;
	for (int come = 0; come < 2; come++) {
		standby_open(&s, &mirror_plain, NULL);
		standby_mirror(&s);
		actor_say(&s.box.a, &control);
		feed_close(&s.box);
		rig_wait(&s.rig, 100);
		job_mirror_describe(mirror_job(&s.rig, "job", true), text, sizeof(text));
		assert_non_null(strstr(text, "which lost some of them 0 s ago: the copy is whole, and kept for 30 s"));
		if (come) {
			standby_move(&s);
			standby_check_next(&s, 0);
			standby_close_moved(&s);
			continue;
		}
		for (int i = 0; i < 30; i++) {
			assert_non_null(mirror_job(&s.rig, "job", true));
			rig_wait(&s.rig, 1000);
			actor_heartbeat(&s.steady[0].a);
			actor_heartbeat(&s.steady[1].a);
		}
		assert_null(mirror_job(&s.rig, "job", true));
		standby_close(&s);
	}
}

/* A rank that had left at the box has left here as well, with the training finished or not. */
static void test_left_before(void **state)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	uint32_t rank = 1;

	control.message_case = PHUB__CONTROL__MESSAGE_MIRROR_STATE;
	for (int finished = 0; finished < 2; finished++) {
		Phub__MirrorState said = PHUB__MIRROR_STATE__INIT;
		struct standby s;
		struct job *job;

		standby_open(&s, &mirror_plain, NULL);
		standby_mirror(&s);
		said.whole = true;
		said.left = said.unfinished = &rank;
		said.n_left = 1;
		said.n_unfinished = !finished;
		control.mirror_state = &said;
		actor_say(&s.box.a, &control);
		feed_close(&s.box);
		feed_join(&s.rig, &s.moved[0], "job", 0, true, &s.shape);
		rig_wait(&s.rig, 100);
		assert_int_equal(actor_hear(&s.moved[0].a), PHUB__CONTROL__MESSAGE_START);
		job = mirror_job(&s.rig, "job", false);
		assert_true(job->members[1].left);
		assert_int_equal(job->members[1].finished, finished);
		feed_connect(&s.moved[0], job->generation);
		feed_close(&s.moved[0]);
		rig_turn_control(&s.rig);
		standby_close(&s);
	}
}

/* ---- those who are lost ---- */

/* Rank 0 hears that the job goes on, without rank 1, and does its next round as the policy says. */
static void check_goes_on_without(struct standby *s, enum spec_lost policy)
{
	const struct wire_header push = {.type = WIRE_PUSH, .round = 1, .count = 1};

	if (actor_hear(&s->moved[0].a) != PHUB__CONTROL__MESSAGE_START)
		fail_msg("%s", s->moved[0].a.error);
	feed_connect(&s->moved[0], mirror_job(&s->rig, "job", false)->generation);
	assert_int_equal(mirror_chunk(s->moved[0].g, 0)->needed, policy == LOST_SHRINK ? 1 : 2);
	feed_send(&s->moved[0], 0, &push, s->moved[0].results);
	assert_int_equal(s->moved[0].counts[0], policy == LOST_SHRINK);
}

/* Another rank 1 joins; with `wait` the round was held open for it. */
static void check_takes_its_place(struct standby *s, enum spec_lost policy)
{
	const struct wire_header push = {.type = WIRE_PUSH, .round = 1, .count = 1};

	feed_join(&s->rig, &s->moved[1], "job", 1, false, &s->shape);
	rig_wait(&s->rig, 100);
	if (actor_hear(&s->moved[1].a) != PHUB__CONTROL__MESSAGE_START)
		fail_msg("%s", s->moved[1].a.error);
	assert_true(s->moved[1].a.last->start->joined);
	feed_connect(&s->moved[1], mirror_job(&s->rig, "job", false)->generation);
	if (policy == LOST_WAIT) {
		feed_send(&s->moved[1], 0, &push, s->moved[1].results);
		feed_turn(&s->moved[0]);
		assert_int_equal(s->moved[0].counts[0], 1);
	}
}

static void test_lost_are_not_awaited(void **state)
{
	struct mirror_shape shape = mirror_plain;
	const uint32_t lost[] = {1};
	struct actor late;
	struct standby s;

	for (int policy = LOST_SHRINK; policy <= LOST_WAIT; policy++) {
		shape.lost = (enum spec_lost)policy;
		standby_open(&s, &shape, NULL);
		standby_mirror(&s);
		mirror_say_state(&s.box.a, true, lost, 1, 0);
		feed_close(&s.box);
		assert_int_equal(actor_move(&s.rig, &late, 5, 1, MIRROR_WORLD), ERROR_OF(NO_JOB));
		actor_expect(&late, ERROR_OF(NO_JOB), "had lost this rank");
		actor_hang_up(&late);
		feed_join(&s.rig, &s.moved[0], "job", 0, true, &s.shape);
		rig_wait(&s.rig, 100);
		check_goes_on_without(&s, (enum spec_lost)policy);
		check_takes_its_place(&s, (enum spec_lost)policy);
		standby_close_moved(&s);
	}
}

/* Before the box's word that a rank is lost, and after. */
static void test_lost_later(void **state)
{
	struct mirror_shape shape = mirror_plain;
	const uint32_t lost[] = {1};
	struct standby s;

	shape.lost = LOST_SHRINK;
	standby_open(&s, &shape, NULL);
	standby_mirror(&s);
	feed_join(&s.rig, &s.moved[0], "job", 0, true, &s.shape);
	rig_wait(&s.rig, 1500);
	assert_int_not_equal(actor_hear(&s.moved[0].a), PHUB__CONTROL__MESSAGE_START);
	assert_int_equal(s.moved[0].a.missing_count, 1);
	assert_int_equal(s.moved[0].a.missing[0], 1);
	mirror_say_state(&s.box.a, true, lost, 1, 0);
	rig_wait(&s.rig, 100);
	assert_int_equal(actor_hear(&s.moved[0].a), PHUB__CONTROL__MESSAGE_START);
	feed_close(&s.box);
	feed_close(&s.moved[0]);
	standby_close(&s);
}

/* A rank is lost while the copy's shards are on their way back from the cores. */
static void test_lost_while_taking(void **state)
{
	struct mirror_shape shape = mirror_plain;

	for (int policy = LOST_FAIL; policy <= LOST_WAIT; policy++) {
		struct standby s;

		shape.lost = (enum spec_lost)policy;
		standby_open(&s, &shape, NULL);
		standby_mirror(&s);
		feed_close(&s.box);
		s.rig.cores_rest = true;
		for (uint32_t rank = 0; rank < MIRROR_WORLD; rank++)
			feed_join(&s.rig, &s.moved[rank], "job", rank, true, &s.shape);
		assert_int_equal(mirror_job(&s.rig, "job", false)->state, JOB_TAKING);
		feed_close(&s.moved[1]);
		rig_turn_control(&s.rig);
		s.rig.cores_rest = false;
		rig_wait(&s.rig, 100);
		if (policy == LOST_FAIL) {
			actor_expect(&s.moved[0].a, ERROR_OF(LOST), "rank 1");
			feed_close(&s.moved[0]);
			standby_close(&s);
			continue;
		}
		check_goes_on_without(&s, (enum spec_lost)policy);
		check_takes_its_place(&s, (enum spec_lost)policy);
		standby_close_moved(&s);
	}
}

/* Not all come. */
static void test_some_do_not_come(void **state)
{
	struct standby s;

	standby_open(&s, &mirror_plain, NULL);
	standby_mirror(&s);
	feed_close(&s.box);
	feed_join(&s.rig, &s.moved[1], "job", 1, true, &s.shape);
	for (int i = 0; i < 30; i++) {
		rig_wait(&s.rig, 1000);
		actor_heartbeat(&s.steady[0].a);
		actor_heartbeat(&s.steady[1].a);
		actor_heartbeat(&s.moved[1].a);
	}
	actor_expect(&s.moved[1].a, ERROR_OF(LOST), "rank 0 of 2 did not come here");
	feed_close(&s.moved[1]);
	/* The copy is still there: they may all come now. */
	s.shape.generation = 1;
	standby_move(&s);
	standby_check_next(&s, 2);
	standby_close_moved(&s);
}

TEST_PROGRAM(test_control_move)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_takeover),
		cmocka_unit_test(test_takeover_encrypted),
		cmocka_unit_test(test_takeover_generation),
		cmocka_unit_test(test_box_is_told),
		cmocka_unit_test(test_takeover_in_midround),
		cmocka_unit_test(test_paused_moves),
		cmocka_unit_test(test_plain_control_is_told),
		cmocka_unit_test(test_draining_moves),
		cmocka_unit_test(test_bereaved_box),
		cmocka_unit_test(test_left_before),
		cmocka_unit_test(test_lost_are_not_awaited),
		cmocka_unit_test(test_lost_later),
		cmocka_unit_test(test_lost_while_taking),
		cmocka_unit_test(test_some_do_not_come),
	};

	return cmocka_run_group_tests_name("control_move", tests, NULL, NULL);
}
