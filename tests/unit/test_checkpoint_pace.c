/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often checkpoints are taken: against numbers that were worked out by hand, and over a run whose costs change.
 */
#include "phub/control/checkpoint.h"
#include "tests/unit/cmocka_shim.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>

static void rounds(struct checkpoint_pace *p, unsigned count, double seconds, bool snapped)
{
	for (unsigned i = 0; i < count; i++)
		checkpoint_pace_round(p, 1, seconds, snapped);
}

static void test_by_hand(void **state)
{
	struct checkpoint_pace p;

	checkpoint_pace_init(&p, 0.035);
	assert_int_equal(p.interval, 0);
	rounds(&p, 10, 0.1, false);
	assert_int_equal(p.interval, 0); /* what a checkpoint costs is not known */
	/* Three rounds of 170 ms instead of 100: 210 ms, which 60 rounds of 100 ms pay for with 3.5 %. */
	rounds(&p, 3, 0.17, true);
	checkpoint_pace_written(&p, 0.5);
	assert_int_equal(p.interval, 0); /* it may go on yet */
	rounds(&p, 1, 0.1, false);
	assert_true(fabs(p.snapshot_s - 0.21) < 1e-9);
	assert_true(fabs(p.round_s - 0.1) < 1e-9);
	assert_int_equal(p.interval, 60);

	/* A slow disk: 20 s are 200 rounds, and one more is left alone. */
	checkpoint_pace_init(&p, 0.035);
	rounds(&p, 10, 0.1, false);
	rounds(&p, 1, 0.11, true);
	rounds(&p, 1, 0.1, false);
	checkpoint_pace_written(&p, 20);
	assert_int_equal(p.interval, 201);

	/* Free of charge: every second round, so that there is one to compare with. */
	checkpoint_pace_init(&p, 0.035);
	rounds(&p, 10, 0.1, false);
	rounds(&p, 1, 0.09, true);
	rounds(&p, 1, 0.1, false);
	checkpoint_pace_written(&p, 0.05);
	assert_true(p.snapshot_s <= 0 && p.snapshot_s >= 0);
	assert_int_equal(p.interval, 2);
}

/* Quick rounds are seen many at a time, and parts of them. */
static void test_many_at_a_time(void **state)
{
	struct checkpoint_pace p;

	checkpoint_pace_init(&p, 0.035);
	for (int i = 0; i < 10; i++)
		checkpoint_pace_round(&p, 9.5, 0.095, false);
	assert_int_equal(p.clean, 10);
	/* In 200 ms 12.5 rounds instead of 20, then 17.5: 100 ms, which 286 rounds of 10 ms pay for with 3.5 %. */
	checkpoint_pace_round(&p, 12.5, 0.2, true);
	assert_int_equal(p.clean, 0);
	checkpoint_pace_round(&p, 17.5, 0.2, true);
	checkpoint_pace_round(&p, 10, 0.1, false);
	checkpoint_pace_written(&p, 0.4);
	assert_true(fabs(p.snapshot_s - 0.1) < 1e-9);
	assert_int_equal(p.interval, 286);
}

static void test_bad_samples(void **state)
{
	struct checkpoint_pace p;

	checkpoint_pace_init(&p, 0.035);
	rounds(&p, 3, 1.0, true); /* of a job that begins: nothing to compare with */
	assert_int_equal(p.snapshots, 0);
	rounds(&p, 1, NAN, false);
	rounds(&p, 1, -1, false);
	assert_int_equal(p.rounds, 0);
	checkpoint_pace_written(&p, NAN);
	assert_int_equal(p.writes, 0);
	rounds(&p, 4, 0, false); /* no time at all: no interval, and no division by it */
	rounds(&p, 1, 0.1, true);
	rounds(&p, 1, 0, false);
	checkpoint_pace_written(&p, 1);
	assert_int_equal(p.interval, 0);
}

/* A minute's wait for a worker counts as four rounds, and is forgotten. */
static void test_a_pause(void **state)
{
	struct checkpoint_pace p;

	checkpoint_pace_init(&p, 0.035);
	rounds(&p, 16, 0.1, false);
	rounds(&p, 1, 60, false);
	assert_true(fabs(p.round_s - (0.1 + 0.3 / 16)) < 1e-9);
	rounds(&p, 100, 0.1, false);
	assert_true(fabs(p.round_s - 0.1) < 1e-3);
}

/* What a job loses that obeys, in its last `count` rounds. */
static double run(struct checkpoint_pace *p, unsigned count, double round_s, double snapshot_s, double write_s)
{
	uint64_t since = 0;
	unsigned snapping = 0, half = count / 2;
	double took = 0;

	for (unsigned i = 0; i < count; i++) {
		uint64_t interval = p->interval ? p->interval : 10;
		bool begins = ++since >= interval;
		double seconds;

		if (begins) {
			since = 0;
			snapping = 2;
			checkpoint_pace_written(p, write_s);
		}
		seconds = round_s + (snapping ? snapshot_s / 2 : 0);
		checkpoint_pace_round(p, 1, seconds, snapping > 0);
		snapping -= snapping > 0;
		took += i >= half ? seconds : 0;
	}
	return took / (round_s * half) - 1;
}

static void test_drift(void **state)
{
	struct checkpoint_pace p;
	double lost;

	checkpoint_pace_init(&p, 0.035);
	lost = run(&p, 4000, 0.1, 0.21, 1);
	assert_int_equal(p.interval, 60);
	assert_true(lost > 0.03 && lost < 0.036);
	lost = run(&p, 8000, 0.1, 0.84, 1); /* copying becomes dearer */
	assert_true(p.interval >= 236 && p.interval <= 240);
	assert_true(lost < 0.036);
	lost = run(&p, 20000, 0.4, 0.84, 1); /* rounds become longer */
	assert_true(p.interval >= 59 && p.interval <= 61);
	assert_true(lost > 0.03 && lost < 0.036);
	lost = run(&p, 20000, 0.4, 0.84, 60); /* the disk becomes slower */
	assert_true(p.interval >= 149 && p.interval <= 151);
	assert_true(lost < 0.036);
	lost = run(&p, 60000, 0.01, 0.0, 0.05); /* and all is quick again */
	assert_true(p.interval >= 6 && p.interval <= 8);
	assert_true(lost < 0.036);
}

/* Rounds of 8 ms that waver by half, seen ten times a second; a checkpoint takes 40 ms of them, and 100 ms itself. */
static void test_noise(void **state)
{
	struct checkpoint_pace p;
	uint64_t seed = 1;
	double since = 0, all_s = 0, extra_s = 0;

	checkpoint_pace_init(&p, 0.035);
	for (unsigned i = 0; i < 100000; i++) {
		double noise, taken_s = 0;

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		noise = 0.5 + (double)(seed >> 40) / (1 << 24);
		if (checkpoint_pace_due(&p, (uint64_t)since)) {
			since = 0;
			taken_s = 0.04;
		}
		checkpoint_pace_round(&p, (0.1 - taken_s) / (0.008 * noise), 0.1, taken_s > 0);
		if (taken_s > 0)
			checkpoint_pace_written(&p, 0.1);
		since += (0.1 - taken_s) / (0.008 * noise);
		extra_s += i > 1000 ? taken_s : 0;
		all_s += i > 1000 ? 0.1 - taken_s : 0;
	}
	assert_true(extra_s / all_s < 0.037);
	assert_true(extra_s / all_s > 0.02); /* and not because there were none */
}

/* Nothing is known: some rounds are looked at first. */
static void test_due(void **state)
{
	struct checkpoint_pace p;

	checkpoint_pace_init(&p, 0.035);
	assert_false(checkpoint_pace_due(&p, 100));
	rounds(&p, 3, 0.1, false);
	assert_false(checkpoint_pace_due(&p, 100));
	rounds(&p, 1, 0.1, false);
	assert_true(checkpoint_pace_due(&p, 100));
	assert_false(checkpoint_pace_due(&p, 0));
	rounds(&p, 3, 0.17, true);
	checkpoint_pace_written(&p, 0.5);
	rounds(&p, 1, 0.1, false);
	assert_false(checkpoint_pace_due(&p, 60)); /* the last one was just now */
	rounds(&p, 3, 0.1, false);
	assert_true(checkpoint_pace_due(&p, 60));
	assert_false(checkpoint_pace_due(&p, 59));
}

TEST_PROGRAM(test_checkpoint_pace)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_by_hand),
		cmocka_unit_test(test_noise),
		cmocka_unit_test(test_due),
		cmocka_unit_test(test_many_at_a_time),
		cmocka_unit_test(test_bad_samples),
		cmocka_unit_test(test_a_pause),
		cmocka_unit_test(test_drift),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
