/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often checkpoints are taken: against numbers that were worked out by hand, and over a run whose costs change.
 */
#include "phub/control/checkpoint.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void rounds(struct checkpoint_pace *p, unsigned count, double seconds, bool snapped)
{
	for (unsigned i = 0; i < count; i++)
		checkpoint_pace_round(p, seconds, snapped);
}

static void test_by_hand(void **state)
{
	struct checkpoint_pace p;

	(void)state;
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

static void test_bad_samples(void **state)
{
	struct checkpoint_pace p;

	(void)state;
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

	(void)state;
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
		checkpoint_pace_round(p, seconds, snapping > 0);
		snapping -= snapping > 0;
		took += i >= half ? seconds : 0;
	}
	return took / (round_s * half) - 1;
}

static void test_drift(void **state)
{
	struct checkpoint_pace p;
	double lost;

	(void)state;
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_by_hand),
		cmocka_unit_test(test_bad_samples),
		cmocka_unit_test(test_a_pause),
		cmocka_unit_test(test_drift),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
