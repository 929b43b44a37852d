/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The study's generator: streams that differ, and distributions with the moments that they should have.
 */
#include "tests/bench/skew_random.h"

#include "tests/unit/cmocka_shim.h"

#include <math.h>

enum { DRAWS = 20000 };

static void test_streams(void **state)
{
	struct skew_random a, b;
	const struct {
		uint64_t seed;
		enum skew_stream use;
		uint64_t index;
	} others[] = {{2, SKEW_FEED, 0}, {1, SKEW_WEIGHTS, 0}, {1, SKEW_FEED, 1}};

	skew_random_init(&a, 1, SKEW_FEED, 0);
	skew_random_init(&b, 1, SKEW_FEED, 0);
	for (int i = 0; i < 10; i++)
		assert_true(skew_random_next(&a) == skew_random_next(&b));
	for (int o = 0; o < 3; o++) {
		skew_random_init(&a, 1, SKEW_FEED, 0);
		skew_random_init(&b, others[o].seed, others[o].use, others[o].index);
		for (int i = 0; i < 10; i++)
			assert_true(skew_random_next(&a) != skew_random_next(&b));
	}
}

static void test_below(void **state)
{
	unsigned counts[7] = {0};
	struct skew_random r;

	skew_random_init(&r, 3, SKEW_FEED, 0);
	for (int i = 0; i < DRAWS; i++)
		counts[skew_random_below(&r, 7)]++;
	for (int i = 0; i < 7; i++)
		assert_true(fabs(counts[i] - DRAWS / 7.0) < 5 * sqrt(DRAWS / 7.0));
	assert_int_equal(skew_random_below(&r, 1), 0);
	for (int i = 0; i < 100; i++)
		assert_true(skew_random_below(&r, UINT32_MAX) < UINT32_MAX);
}

/* Mean and variance of `draw` are these, to within five standard errors. */
static void moments(double (*draw)(struct skew_random *r), double mean, double variance)
{
	double sum = 0, squares = 0;
	struct skew_random r;

	skew_random_init(&r, 4, SKEW_FEED, 0);
	for (int i = 0; i < DRAWS; i++) {
		double x = draw(&r);

		sum += x;
		squares += (x - mean) * (x - mean);
	}
	if (fabs(sum / DRAWS - mean) > 5 * sqrt(variance / DRAWS) || fabs(squares / DRAWS / variance - 1) > 0.15)
		fail_msg("mean %g, variance %g, not %g and %g", sum / DRAWS, squares / DRAWS, mean, variance);
}

static double gamma_small(struct skew_random *r)
{
	return skew_random_gamma(r, 0.5);
}

static double gamma_large(struct skew_random *r)
{
	return skew_random_gamma(r, 9);
}

static void test_moments(void **state)
{
	moments(skew_random_unit, 0.5, 1.0 / 12);
	moments(skew_random_normal, 0, 1);
	moments(gamma_small, 0.5, 0.5);
	moments(gamma_large, 9, 9);
}

static void test_shuffle(void **state)
{
	unsigned first[5] = {0};
	struct skew_random r;

	skew_random_init(&r, 5, SKEW_FEED, 0);
	for (int i = 0; i < DRAWS; i++) {
		uint32_t values[5] = {0, 1, 2, 3, 4}, seen = 0;

		skew_random_shuffle(&r, values, 5);
		for (int v = 0; v < 5; v++)
			seen |= 1u << values[v];
		assert_int_equal(seen, 31);
		first[values[0]]++;
	}
	for (int i = 0; i < 5; i++)
		assert_true(fabs(first[i] - DRAWS / 5.0) < 5 * sqrt(DRAWS / 5.0));
	skew_random_shuffle(&r, NULL, 0);
}

TEST_PROGRAM(test_skew_random)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_streams),
		cmocka_unit_test(test_below),
		cmocka_unit_test(test_moments),
		cmocka_unit_test(test_shuffle),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
