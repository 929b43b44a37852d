/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The statistics that scout+ stands on: what intervals leave out, and when watches raise an alarm.
 */
#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#include "client/scout/sequence.h"
#include "tests/unit/chance.h"
#include "tests/unit/cmocka_shim.h"

static void test_exact(void **state)
{
	for (double x = -699; x < 700; x += 0.7310) {
		if (fabs(exact_exp(x) / exp(x) - 1) > 1e-12)
			fail_msg("e^%g: %.17g", x, exact_exp(x));
	}
	for (double x = 1e-300; x < 1e300; x *= 1.73) {
		if (fabs(exact_log(x) - log(x)) > 1e-12 * fmax(1, fabs(log(x))))
			fail_msg("log %g: %.17g", x, exact_log(x));
	}
	assert_true(exact_exp(-701) == 0 && isinf(exact_exp(701)) && isnan(exact_exp(NAN)));
	assert_true(isinf(exact_log(0)) && isnan(exact_log(-1)) && isnan(exact_log(NAN)) && isinf(exact_log(INFINITY)));
}

static void test_sequence(void **state)
{
	struct sequence s = {0};

	assert_true(isinf(sequence_deviation(&s)));
	sequence_add(&s, 2);
	assert_true(isinf(sequence_deviation(&s)) && isinf(sequence_radius(&s, 0.05, 16)));
	sequence_add(&s, 4);
	sequence_add(&s, 9);
	assert_true(s.mean == 5 && fabs(sequence_deviation(&s) - sqrt(13)) < 1e-12);
	sequence_add(&s, 5);
	sequence_add(&s, 5);
	assert_true(s.count == 5 && isinf(sequence_radius(&s, 0.025, 16)));
	sequence_add(&s, 5);
	assert_true(isfinite(sequence_radius(&s, 0.025, 16)));
	s = (struct sequence){0};
	for (unsigned i = 0; i < 5; i++) {
		sequence_add(&s, 7); /* of which the deviation is 0 */
		assert_true(isinf(sequence_radius(&s, 0.025, 16)));
	}
}

/* Looked at after each of 500 numbers, from the first on, the interval leaves out the true mean in no more than about
 * alpha of 4,000 runs, and is not wide for nothing: three times what one look would need. */
static void test_coverage(void **state)
{
	static const struct {
		double alpha;
		uint64_t best;
		unsigned most;
	} cases[] = {{0.05, 64, 200}, {0.025, 16, 100}, {0.025, 64, 100}};

	chance_seed = 1;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		unsigned left_out = 0;

		for (unsigned run = 0; run < 4000; run++) {
			struct sequence s = {0};
			bool out = false;

			for (unsigned n = 0; n < 500; n++) {
				sequence_add(&s, 0.3 + normal());
				out |= fabs(s.mean - 0.3) > sequence_radius(&s, cases[i].alpha, cases[i].best);
			}
			left_out += out;
			assert_true(sequence_radius(&s, cases[i].alpha, cases[i].best) < 3 * 2.24 / sqrt(500));
		}
		if (left_out > cases[i].most)
			fail_msg("alpha %g: the mean was left out in %u of 4000 runs", cases[i].alpha, left_out);
	}
}

static void test_watch(void **state)
{
	chance_seed = 2;
	for (unsigned run = 0; run < 100; run++) {
		struct watch w = {0};
		unsigned after = 0;

		for (unsigned i = 0; i < 300; i++)
			if (watch_add(&w, 3 + 0.1 * normal(), 0.1, 0.7) != WATCH_QUIET)
				fail_msg("run %u: an alarm after %u numbers", run, i);
		while (watch_add(&w, (run & 1 ? 3.5 : 2.5) + 0.1 * normal(), 0.1, 0.7) == WATCH_QUIET)
			after++;
		assert_true(after < 5);
		assert_int_equal(watch_add(&w, run & 1 ? 3.5 : 2.5, 0.1, 0.7), run & 1 ? WATCH_RISEN : WATCH_FALLEN);
	}
}

/* A level that changes slowly is followed, and numbers that are further apart than slack are not taken for another
 * level; one that they leave by four deviations is still seen soon. */
static void test_watch_in_noise(void **state)
{
	unsigned alarms = 0, late = 0;

	chance_seed = 12;
	for (unsigned run = 0; run < 500; run++) {
		struct watch w = {0};
		unsigned after = 0;

		for (unsigned i = 0; i < 300; i++)
			alarms += watch_add(&w, 3 - 0.004 * i + 0.2 * normal(), 0.1, 0.5) != WATCH_QUIET;
		while (after < 10 && watch_add(&w, 1.8 + 0.8 + 0.2 * normal(), 0.1, 0.5) == WATCH_QUIET)
			after++;
		late += after == 10;
	}
	assert_true(alarms <= 45); /* of 150,000; one that is raised goes on for some */
	assert_true(late <= 5);
}

/* Is a change seen within so many numbers, that comes in the midst of the second number, when nothing is known yet? */
static bool seen_soon(double change, double deviation, unsigned within)
{
	struct watch w = {0};

	watch_add(&w, deviation * normal(), 0.1, 0.5);
	watch_add(&w, 0.3 * change + deviation * normal(), 0.1, 0.5);
	for (unsigned i = 0; i < within; i++)
		if (watch_add(&w, change + deviation * normal(), 0.1, 0.5) != WATCH_QUIET)
			return true;
	return false;
}

/* Data that drift soon after a series has begun are seen at once, as r shows them (log r falls by 1.4 where skew goes
 * from 0 to 100 %); what chance raises for that is bounded. */
static void test_watch_begins(void **state)
{
	static const struct {
		double deviation;
		unsigned most;
	} cases[] = {{0.1, 2}, {0.2, 60}, {0.3, 300}};
	unsigned seen = 0;

	chance_seed = 7;
	for (unsigned run = 0; run < 2000; run++)
		seen += seen_soon(run & 1 ? 1.4 : -1.4, 0.1, 2);
	if (seen < 1980)
		fail_msg("%u of 2000 changes are seen", seen);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		unsigned series = 0;

		for (unsigned run = 0; run < 2000; run++) {
			struct watch w = {0};
			bool alarm = false;

			for (unsigned n = 0; n < 100; n++)
				alarm |= watch_add(&w, cases[i].deviation * normal(), 0.1, 0.5) != WATCH_QUIET;
			series += alarm;
		}
		if (series > cases[i].most)
			fail_msg("deviation %g: chance raises an alarm in %u of 2000 series", cases[i].deviation,
				series);
	}
}

TEST_PROGRAM(test_sequence)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_exact),
		cmocka_unit_test(test_sequence),
		cmocka_unit_test(test_coverage),
		cmocka_unit_test(test_watch),
		cmocka_unit_test(test_watch_in_noise),
		cmocka_unit_test(test_watch_begins),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
