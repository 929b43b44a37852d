/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport suite: many connections and several queues: limits, fairness, sleeping and waking, and
 * what comes before a connection is adopted.
 */
#include "tests/suite/transport_cases.h"

#include <errno.h>
#include <poll.h>

#include "phub/base/clock.h"
#include "tests/suite/transport_rig.h"

static const struct rig_options usual;

static struct lane *join(struct rig *rig, unsigned box_queue, uint32_t rank)
{
	return rig_join(rig, rig_box_end(rig, box_queue), rig_worker_end(rig, 0), rank);
}

static void a_queue_has_a_limit(void **state)
{
	const struct rig_options options = {.conns_max = 2, .payload_max = 4096};
	struct rig *rig = rig_create(*state, &options);
	struct lane *one = join(rig, 0, 1), *two = join(rig, 0, 2);
	struct lane *three = rig_lane(rig, rig_box_end(rig, 0), rig_worker_end(rig, 1), 3);
	struct queue *q = one->box_end->q;

	rig_admit(rig, three);
	assert_int_equal(rig_established(rig, three), 0);
	rig_adopt_worker(three);
	assert_int_equal(q->ops->adopt(q, three->box, &three->box_spec), -ENOSPC);
	assert_null(three->box->queue);
	rig_drop_box(two);
	rig_adopt_box(three);
	assert_int_equal(pair_push(three, 5, 1, NULL), 0);
	RIG_UNTIL(rig, end_count(three->box_end, EVENT_MESSAGE, three->box) == 1);
	rig_destroy(rig);
}

/* Workers 0..3, each with a connection to each queue; every push and every answer must be the right one's. */
static void check_queues(void **state, unsigned queues)
{
	enum { WORKERS = 4 };
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lanes[WORKERS * RIG_ENDS];
	unsigned i, j, count = WORKERS * queues;

	for (i = 0; i < count; i++)
		lanes[i] = rig_join(rig, rig_box_end(rig, i % queues), rig_worker_end(rig, i / queues), i);
	for (j = 0; j < RIG_CHUNKS; j++) {
		for (i = 0; i < count; i++)
			assert_int_equal(pair_push(lanes[i], j, 1, NULL), 0);
	}
	for (i = 0; i < count; i++) {
		RIG_UNTIL(rig, end_count(lanes[i]->box_end, EVENT_MESSAGE, lanes[i]->box) == RIG_CHUNKS);
		for (j = 0; j < RIG_CHUNKS; j++) {
			const struct record *r = end_record(lanes[i]->box_end, EVENT_MESSAGE, lanes[i]->box, j);

			assert_int_equal(r->header.rank, i);
			assert_true(r->intact);
			assert_int_equal(pair_answer(lanes[i], r->header.chunk, 1, NULL), 0);
		}
	}
	for (i = 0; i < count; i++) {
		RIG_UNTIL(rig, end_count(lanes[i]->worker_end, EVENT_MESSAGE, lanes[i]->worker) == RIG_CHUNKS);
		for (j = 0; j < RIG_CHUNKS; j++)
			assert_true(end_record(lanes[i]->worker_end, EVENT_MESSAGE, lanes[i]->worker, j)->intact);
	}
	rig_destroy(rig);
}

static void one_queue_at_the_box(void **state)
{
	check_queues(state, 1);
}

static void two_queues_at_the_box(void **state)
{
	check_queues(state, 2);
}

static void four_queues_at_the_box(void **state)
{
	check_queues(state, 4);
}

static void many_connections(void **state)
{
	enum { MANY = 64 };
	const struct rig_options options = {.payload_max = 4096};
	struct rig *rig = rig_create(*state, &options);
	struct rig_end *box = rig_box_end(rig, 0);
	struct lane *lanes[MANY];
	unsigned i, round;

	for (i = 0; i < MANY; i++)
		lanes[i] = rig_join(rig, box, rig_worker_end(rig, i % RIG_ENDS), i);
	for (round = 1; round <= 3; round++) {
		for (i = 0; i < MANY; i++)
			assert_int_equal(pair_push(lanes[i], 6, round, lanes[i]), 0);
		RIG_UNTIL(rig, end_count(box, EVENT_MESSAGE, NULL) == round * MANY);
		for (i = 0; i < MANY; i++)
			assert_int_equal(pair_answer(lanes[i], 6, round, lanes[i]), 0);
		for (i = 0; i < MANY; i++) {
			RIG_UNTIL(rig, end_count(lanes[i]->worker_end, EVENT_MESSAGE, lanes[i]->worker) == round);
			RIG_UNTIL(rig, end_count(lanes[i]->worker_end, EVENT_SENT, lanes[i]->worker) == round);
			RIG_UNTIL(rig, end_count(box, EVENT_SENT, lanes[i]->box) == round);
		}
	}
	for (i = 0; i < MANY; i++) {
		for (round = 0; round < 3; round++) {
			assert_true(end_record(box, EVENT_MESSAGE, lanes[i]->box, round)->intact);
			assert_true(end_record(lanes[i]->worker_end, EVENT_MESSAGE, lanes[i]->worker, round)->intact);
		}
	}
	rig_destroy(rig);
}

static void connections_come_and_go(void **state)
{
	const struct rig_options options = {.conns_max = 2, .payload_max = 4096};
	struct rig *rig = rig_create(*state, &options);
	struct lane *stays = join(rig, 0, 1);
	unsigned i;

	for (i = 1; i <= 60; i++) {
		struct lane *lane = join(rig, 0, 2);

		assert_int_equal(pair_push(lane, 6, i, NULL), 0);
		assert_int_equal(pair_push(stays, 6, i, NULL), 0);
		RIG_UNTIL(rig, end_count(stays->box_end, EVENT_MESSAGE, stays->box) == i);
		if (i % 2)
			rig_drop_worker(lane);
		else
			rig_drop_box(lane);
		if (lane->worker)
			rig_drop_worker(lane);
		if (lane->box)
			rig_drop_box(lane);
	}
	rig_turns(rig, 20);
	/* The workers that were dropped may have been the address of the next: only the one that stays counts. */
	for (i = 0; i < 60; i++)
		assert_true(end_record(stays->box_end, EVENT_MESSAGE, stays->box, i)->intact);
	rig_destroy(rig);
}

static void refill(struct lane *lane)
{
	unsigned i;

	for (i = 0; i < 64 && pair_push_again(lane, 6, 1, NULL) == 0; i++)
		;
}

static void a_flood_starves_nobody(void **state)
{
	const struct rig_options options = {.payload_max = 4096};
	struct rig *rig = rig_create(*state, &options);
	struct lane *flood = join(rig, 0, 1), *quiet = join(rig, 0, 2);
	struct rig_end *box = flood->box_end;
	unsigned i, round;

	box->batch = 8;
	rig_fill(pair_payload_at(flood, 6), flood->spans[6].bytes, 1, 1, 6);
	for (i = 0; i < 100; i++) {
		refill(flood);
		rig_turn(rig);
	}
	for (round = 1; round <= 10; round++) {
		box->count = 0;
		assert_int_equal(pair_push(quiet, 5, round, NULL), 0);
		rig_deadline_set(rig);
		while (end_count(box, EVENT_MESSAGE, quiet->box) == 0) {
			unsigned before;

			refill(flood);
			rig_turn(rig);
			before = end_count(box, EVENT_MESSAGE, flood->box);
			/* What lay in buffers before it may come first, an unlimited stream may not. */
			if (before > 5000 || rig_deadline_passed(rig))
				fail_msg("%s: %u messages of a flood came first", rig->fixture->label, before);
		}
	}
	rig_destroy(rig);
}

/* ---- before adoption ---- */

static void what_comes_before_the_box_adopts_is_not_lost(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = rig_lane(rig, rig_box_end(rig, 0), rig_worker_end(rig, 0), 1);
	uint32_t i;

	rig_admit(rig, lane);
	assert_int_equal(rig_established(rig, lane), 0);
	rig_adopt_worker(lane);
	for (i = 0; i < RIG_CHUNKS; i++)
		assert_int_equal(pair_push(lane, i, 1, lane), 0);
	rig_turns(rig, 30);
	assert_int_equal(lane->box_end->count, 0);
	rig_adopt_box(lane);
	RIG_UNTIL(rig, end_count(lane->box_end, EVENT_MESSAGE, NULL) == RIG_CHUNKS);
	for (i = 0; i < RIG_CHUNKS; i++)
		assert_true(end_record(lane->box_end, EVENT_MESSAGE, NULL, i)->intact);
	rig_destroy(rig);
}

static void what_comes_before_the_worker_adopts_is_not_lost(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = rig_lane(rig, rig_box_end(rig, 0), rig_worker_end(rig, 0), 1);
	uint32_t i, results;

	rig_admit(rig, lane);
	rig_adopt_box(lane);
	assert_int_equal(pair_credit(lane, 1), 0);
	/* Where a result must answer something, the worker has not asked yet. */
	for (i = 0; i < RIG_CHUNKS && !lane->box_end->q->one_sided; i++)
		assert_int_equal(pair_answer(lane, i, 1, lane), 0);
	rig_turns(rig, 30);
	assert_int_equal(rig_established(rig, lane), 0);
	rig_turns(rig, 30);
	rig_adopt_worker(lane);
	results = i;
	RIG_UNTIL(rig, end_count(lane->worker_end, EVENT_MESSAGE, NULL) == results + 1);
	for (i = 0; i <= results; i++)
		assert_true(end_record(lane->worker_end, EVENT_MESSAGE, NULL, i)->intact);
	rig_destroy(rig);
}

/* ---- sleeping ---- */

/* Polls until there is nothing, then arms: the fd, or -ENOTSUP. */
static int arm_quietly(struct rig *rig, struct rig_end *end)
{
	unsigned tries;
	int rc = -EAGAIN;

	for (tries = 0; rc == -EAGAIN && tries < 1000; tries++) {
		rig_turns(rig, 3);
		rc = end->q->ops->arm(end->q);
	}
	assert_true(rc >= 0 || rc == -ENOTSUP);
	return rc;
}

static bool readable(int fd, int timeout_ms)
{
	struct pollfd wait = {.fd = fd, .events = POLLIN};
	int rc = poll(&wait, 1, timeout_ms);

	assert_true(rc >= 0);
	return rc == 1;
}

enum { SLEEP_MS = 30 };

/*
 * An end that is armed, and to which nothing comes: it sleeps, but for what arm() lets it do of its own, which yields
 * nothing and becomes rarer.
 */
static void check_sleep(struct rig *rig, struct rig_end *end, int fd)
{
	enum { WAKES_MAX = 10 };
	uint64_t until = clock_now_ns() + SLEEP_MS * NS_PER_MS;
	unsigned wakes = 0, events = end->count;

	for (uint64_t now = clock_now_ns(); now < until; now = clock_now_ns()) {
		if (!readable(fd, (int)((until - now) / NS_PER_MS) + 1))
			continue;
		assert_non_null(end->q->datagrams);
		assert_in_range(++wakes, 1, WAKES_MAX);
		assert_int_equal(arm_quietly(rig, end), fd);
	}
	assert_int_equal(end->count, events);
}

/* An end with nothing to do sleeps; where datagrams are sent it may be woken to find that out, but not again and again.
 */
static void check_settled(struct rig *rig, struct rig_end *end)
{
	enum { WAKES_MAX = 4 };
	unsigned wakes = 0, events = end->count;

	while (readable(arm_quietly(rig, end), SLEEP_MS)) {
		assert_non_null(end->q->datagrams);
		assert_in_range(++wakes, 1, WAKES_MAX);
	}
	assert_int_equal(end->count, events);
}

/* A queue that can only be polled ends the case; the others begin it asleep. */
static int sleep_or_skip(struct rig *rig, struct rig_end *end)
{
	int fd = arm_quietly(rig, end);

	if (fd == -ENOTSUP) {
		rig_destroy(rig);
		skip_because("this transport only polls: it has no arm()");
	}
	assert_false(readable(fd, SLEEP_MS));
	return fd;
}

static void a_sleeper_is_woken_by_a_message(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = join(rig, 0, 1);
	int fd = sleep_or_skip(rig, lane->box_end);
	unsigned round;

	for (round = 1; round <= 20; round++) {
		assert_int_equal(pair_push(lane, round % RIG_CHUNKS, round, lane), 0);
		pair_flush_worker(lane);
		assert_true(readable(fd, 5000));
		RIG_UNTIL(rig, end_count(lane->box_end, EVENT_MESSAGE, NULL) == round);
		RIG_UNTIL(rig, end_count(lane->worker_end, EVENT_SENT, NULL) == round);
		assert_int_equal(arm_quietly(rig, lane->box_end), fd);
		assert_false(readable(fd, 0));
	}
	rig_destroy(rig);
}

static void a_sleeping_worker_is_woken_by_a_result(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = join(rig, 0, 1);
	int fd = sleep_or_skip(rig, lane->worker_end);

	assert_int_equal(pair_answer(lane, 9, 1, NULL), 0);
	pair_flush_box(lane);
	assert_true(readable(fd, 5000));
	RIG_UNTIL(rig, end_count(lane->worker_end, EVENT_MESSAGE, NULL) == 1);
	rig_destroy(rig);
}

static void nobody_sleeps_on_a_message(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = join(rig, 0, 1);
	unsigned round;
	int rc;

	(void)sleep_or_skip(rig, lane->box_end);
	for (round = 1; round <= 20; round++) {
		lane->box_end->mute = true;
		assert_int_equal(pair_push(lane, 9, round, lane), 0);
		pair_flush_worker(lane);
		rig_turns(rig, 5);
		rc = lane->box_end->q->ops->arm(lane->box_end->q);
		assert_true(rc == -EAGAIN || readable(rc, 5000));
		lane->box_end->mute = false;
		RIG_UNTIL(rig, end_count(lane->box_end, EVENT_MESSAGE, NULL) == round);
		RIG_UNTIL(rig, end_count(lane->worker_end, EVENT_SENT, NULL) == round);
	}
	rig_destroy(rig);
}

static void who_has_all_its_answers_sleeps(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = join(rig, 0, 1);
	struct rig_end *box = lane->box_end, *worker = lane->worker_end;
	uint32_t i;

	(void)sleep_or_skip(rig, box);
	for (i = 0; i < RIG_CHUNKS; i++)
		assert_int_equal(pair_push(lane, i, 1, lane), 0);
	RIG_UNTIL(rig, end_count(box, EVENT_MESSAGE, NULL) == RIG_CHUNKS);
	for (i = 0; i < RIG_CHUNKS; i++)
		assert_int_equal(pair_answer(lane, i, 1, lane), 0);
	RIG_UNTIL(rig, end_count(worker, EVENT_MESSAGE, NULL) == RIG_CHUNKS);
	RIG_UNTIL(rig, end_count(worker, EVENT_SENT, NULL) == RIG_CHUNKS);
	RIG_UNTIL(rig, end_count(box, EVENT_SENT, NULL) == RIG_CHUNKS);
	check_settled(rig, worker);
	check_settled(rig, box);
	rig_destroy(rig);
}

static void a_sleeper_is_woken_by_the_end(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *one = join(rig, 0, 1), *two = join(rig, 1, 2);
	int fd = sleep_or_skip(rig, one->box_end);

	rig_drop_worker(one);
	assert_true(readable(fd, 5000));
	RIG_UNTIL(rig, end_count(one->box_end, EVENT_CLOSED, one->box) == 1);
	fd = arm_quietly(rig, two->worker_end);
	rig_drop_box(two);
	assert_true(readable(fd, 5000));
	RIG_UNTIL(rig, end_count(two->worker_end, EVENT_CLOSED, two->worker) == 1);
	rig_destroy(rig);
}

static void a_sleeper_is_woken_when_it_may_send_again(void **state)
{
	const struct rig_options options = {.send_bytes_max = 200000};
	struct rig *rig = rig_create(*state, &options);
	struct lane *lane = join(rig, 0, 1);
	int fd = sleep_or_skip(rig, lane->worker_end);
	unsigned sent = 0;

	lane->box_end->mute = true;
	rig_fill(pair_payload_at(lane, 11), lane->spans[11].bytes, 1, 1, 11);
	while (pair_push_again(lane, 11, 1, NULL) == 0 && sent++ < 100000)
		rig_turn(rig);
	assert_int_equal(arm_quietly(rig, lane->worker_end), fd);
	check_sleep(rig, lane->worker_end, fd);
	lane->worker_end->mute = true;
	lane->box_end->mute = false;
	rig_deadline_set(rig);
	while (!readable(fd, 0) && !rig_deadline_passed(rig))
		rig_turn(rig);
	assert_true(readable(fd, 0));
	lane->worker_end->mute = false;
	RIG_UNTIL(rig, end_count(lane->worker_end, EVENT_WRITABLE, NULL) == 1);
	rig_destroy(rig);
}

const struct CMUnitTest transport_queue_cases[] = {
	cmocka_unit_test(a_queue_has_a_limit),
	cmocka_unit_test(one_queue_at_the_box),
	cmocka_unit_test(two_queues_at_the_box),
	cmocka_unit_test(four_queues_at_the_box),
	cmocka_unit_test(many_connections),
	cmocka_unit_test(connections_come_and_go),
	cmocka_unit_test(a_flood_starves_nobody),
	cmocka_unit_test(what_comes_before_the_box_adopts_is_not_lost),
	cmocka_unit_test(what_comes_before_the_worker_adopts_is_not_lost),
	cmocka_unit_test(a_sleeper_is_woken_by_a_message),
	cmocka_unit_test(a_sleeping_worker_is_woken_by_a_result),
	cmocka_unit_test(nobody_sleeps_on_a_message),
	cmocka_unit_test(who_has_all_its_answers_sleeps),
	cmocka_unit_test(a_sleeper_is_woken_by_the_end),
	cmocka_unit_test(a_sleeper_is_woken_when_it_may_send_again),
};
const size_t transport_queue_count = sizeof(transport_queue_cases) / sizeof(transport_queue_cases[0]);
