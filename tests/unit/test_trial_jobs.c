/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How phub bench exchange --jobs counts the rounds of jobs that shared a box, from made-up clocks; and medians.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "phub/cli/trial.h"
#include "tests/unit/cmocka_shim.h"

enum { JOBS = 2, WARMUP = 1, ROUNDS = 10, SECOND = 1000000000 };

/* One worker a job; rounds of `step_ns` from `begin_ns` on. With all results checked every round is a stretch. */
struct fake {
	struct trial_plan plan;
	struct trial_shared shared[JOBS], *jobs[JOBS];
	struct trial_time times[JOBS][WARMUP + ROUNDS];
};

static void fake_init(struct fake *f)
{
	memset(f, 0, sizeof(*f));
	f->plan = (struct trial_plan){.workers = 1, .jobs = JOBS, .warmup = WARMUP, .rounds = ROUNDS};
	for (unsigned job = 0; job < JOBS; job++) {
		f->shared[job].times = f->times[job];
		f->jobs[job] = &f->shared[job];
	}
}

static void fake_run(struct fake *f, unsigned job, unsigned first, unsigned last, uint64_t begin_ns, uint64_t step_ns)
{
	for (unsigned round = first; round <= last; round++) {
		f->times[job][round].begin_ns = begin_ns;
		begin_ns += step_ns;
		f->times[job][round].end_ns = begin_ns;
	}
}

/* The stretches are: the first timed round, those between, the last. */
static void test_only_while_all_run(void **state)
{
	double rounds[JOBS];
	struct fake f;

	fake_init(&f);
	for (unsigned job = 0; job < JOBS; job++) {
		fake_run(&f, job, WARMUP, WARMUP, SECOND, SECOND);
		fake_run(&f, job, ROUNDS, ROUNDS, 100ull * SECOND, SECOND);
	}
	/* Eight rounds: 10 s to 18 s, and 12 s to 28 s: both from 12 s to 18 s. */
	fake_run(&f, 0, WARMUP + 1, ROUNDS - 1, 10ull * SECOND, SECOND);
	fake_run(&f, 1, WARMUP + 1, ROUNDS - 1, 12ull * SECOND, 2ull * SECOND);
	assert_float_equal((float)trial_share(&f.plan, f.jobs, rounds), 1 + 6 + 1, 1e-6);
	assert_float_equal((float)rounds[0], 1 + 6 + 1, 1e-6);
	assert_float_equal((float)rounds[1], 1 + 3 + 1, 1e-6);
}

/* A round that a window cuts counts for the part inside. */
static void test_parts_of_rounds(void **state)
{
	double rounds[JOBS];
	struct fake f;

	fake_init(&f);
	f.plan.rounds = 1;
	fake_run(&f, 0, WARMUP, WARMUP, 0, 4ull * SECOND);
	fake_run(&f, 1, WARMUP, WARMUP, 3ull * SECOND, 2ull * SECOND);
	assert_float_equal((float)trial_share(&f.plan, f.jobs, rounds), 1, 1e-6);
	assert_float_equal((float)rounds[0], 0.25, 1e-6);
	assert_float_equal((float)rounds[1], 0.5, 1e-6);
}

static void test_never_together(void **state)
{
	double rounds[JOBS];
	struct fake f;

	fake_init(&f);
	f.plan.check = TRIAL_ALL;
	fake_run(&f, 0, WARMUP, ROUNDS, 0, SECOND);
	fake_run(&f, 1, WARMUP, ROUNDS, 100ull * SECOND, SECOND);
	assert_float_equal((float)trial_share(&f.plan, f.jobs, rounds), 0, 1e-6);
	assert_float_equal((float)(rounds[0] + rounds[1]), 0, 1e-6);
}

static void test_median(void **state)
{
	double odd[] = {3, -1, 2}, even[] = {4, 1, 3, 2}, one[] = {7};

	assert_true(trial_median(odd, 3) == 2);
	assert_true(odd[0] == -1 && odd[2] == 3);
	assert_true(trial_median(even, 4) == 2.5);
	assert_true(trial_median(one, 1) == 7);
}

TEST_PROGRAM(test_trial_jobs)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_median),
		cmocka_unit_test(test_only_while_all_run),
		cmocka_unit_test(test_parts_of_rounds),
		cmocka_unit_test(test_never_together),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
