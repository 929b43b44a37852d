/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of others for when local SGD averages, on numbers worked out by hand.
 */
#include "tests/bench/skew_rivals.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static struct rival begun(enum rival_kind kind, double theta, const float *common, uint32_t elements)
{
	const struct rival_config config = {kind, theta, .base = 2, .every = 6, .elements = elements, .seed = 7};
	struct rival rival;
	struct err e = {0};

	if (rival_init(&rival, &config, common, &e) < 0)
		fail_msg("%s", e.text);
	return rival;
}

/* ---- FDA ---- */

static void test_variance(void **state)
{
	assert_true(rival_variance((const double[]){5, 1}) == 4);
	assert_true(rival_variance((const double[]){1, -1}) == 0);
}

/* The first direction is of norm 1 and the seed's. */
static void test_first_direction(void **state)
{
	const float zeros[3] = {0};
	struct rival a = begun(RIVAL_FDA, 1, zeros, 3), b = begun(RIVAL_FDA, 1, zeros, 3);
	double square = 0;

	for (int i = 0; i < 3; i++) {
		float moved[3] = {0};
		double of_a[2], of_b[2];

		moved[i] = 1;
		rival_state(&a, moved, of_a);
		rival_state(&b, moved, of_b);
		assert_true(of_a[0] == 1 && of_a[1] != 0 && of_a[1] == of_b[1]);
		square += of_a[1] * of_a[1];
	}
	assert_true(fabs(square - 1) < 1e-12);
	rival_fini(&a);
	rival_fini(&b);
}

/* After averages at (0, 0) and (3, 4) the direction is (.6, .8). */
static void test_state(void **state)
{
	const float first[] = {0, 0}, second[] = {3, 4}, site[] = {4, 4}, other[] = {2, 4};
	struct rival r = begun(RIVAL_FDA, 0.9, first, 2);
	double of_site[2], of_other[2];

	rival_averaged(&r, second);
	rival_state(&r, site, of_site);
	assert_true(of_site[0] == 1 && fabs(of_site[1] - 0.6) < 1e-12);
	/* Sites that moved apart by 1 each have a variance of 1, one that moved alike of what the direction misses. */
	rival_state(&r, other, of_other);
	assert_true(fabs(of_other[1] + 0.6) < 1e-12);
	assert_true(rival_step(&r, &(struct rival_news){.state = {1, (of_site[1] + of_other[1]) / 2}}));
	assert_false(rival_step(&r, &(struct rival_news){.state = {1, of_site[1]}})); /* .64 */
	/* An average that changed nothing leaves the direction. */
	rival_averaged(&r, second);
	rival_state(&r, site, of_site);
	assert_true(fabs(of_site[1] - 0.6) < 1e-12);
	rival_fini(&r);
}

static void test_fda(void **state)
{
	const float zero = 0;
	struct rival r = begun(RIVAL_FDA, 4, &zero, 1);

	assert_false(rival_step(&r, &(struct rival_news){.state = {5, 1}}));
	assert_true(rival_step(&r, &(struct rival_news){.state = {5.1, 1}}));
	assert_int_equal(r.bytes, 16); /* two floats a step */
	rival_fini(&r);
}

/* ---- QSR ---- */

static void test_qsr_rule(void **state)
{
	assert_int_equal(rival_qsr(0.1, 0.05, 1), 4);
	assert_int_equal(rival_qsr(0.125, 0.05, 1), 6); /* 6.25 */
	assert_int_equal(rival_qsr(0.1, 0.005, 1), 400);
	assert_int_equal(rival_qsr(0.02, 0.05, 3), 3);
	assert_int_equal(rival_qsr(0.1, 0, 3), 1000000000);
}

/* A round has the length that its first step's rate asks for. */
static void test_qsr(void **state)
{
	struct rival r = begun(RIVAL_QSR, 0.1, NULL, 0);
	static const struct {
		double rate;
		bool due;
	} steps[] = {{0.05, false}, {0.05, false}, {0.005, false}, {0.005, true}, /* 4 */
		{0.1, false}, {0.1, true},                                        /* base */
		{0.04, false}, {1, false}, {1, false}, {1, false}, {1, false}, {1, true}};

	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		assert_int_equal(rival_step(&r, &(struct rival_news){.rate = steps[i].rate}), steps[i].due);
		if (steps[i].due)
			rival_averaged(&r, NULL);
	}
	assert_int_equal(r.bytes, 0);
	rival_fini(&r);
}

/* ---- AdaComm ---- */

static void test_adacomm_rule(void **state)
{
	assert_int_equal(rival_adacomm(2, 0.5, 16, 16), 8);
	assert_int_equal(rival_adacomm(2, 1, 10, 10), 8);  /* 7.07 */
	assert_int_equal(rival_adacomm(2, 1.9, 10, 8), 4); /* 9.7: it would rise */
	assert_int_equal(rival_adacomm(2, 2, 5, 5), 3);    /* it would stay */
	assert_int_equal(rival_adacomm(2, 2, 1, 1), 1);
	assert_int_equal(rival_adacomm(2, 0, 9, 8), 4);
	assert_int_equal(rival_adacomm(2, NAN, 9, 8), 4);
}

/*
 * tau 4, looks after 6 steps or more: at the second average, that of step 8, the next loss is asked for. There 1 of 4
 * makes it 2, and at the step after the next look the same again makes it 1.
 */
static void test_adacomm(void **state)
{
	struct rival r = begun(RIVAL_ADACOMM, 4, NULL, 0);
	unsigned averages[16] = {0}, count = 0;

	for (unsigned step = 1; step <= 17; step++) {
		/* Losses that nobody asked for are far off. */
		const double loss = step == 1 ? 4 : step == 9 || step == 15 ? 1 : 1000;

		if (!rival_step(&r, &(struct rival_news){.loss = loss}))
			continue;
		averages[count++] = step;
		rival_averaged(&r, NULL);
	}
	assert_memory_equal(averages, ((const unsigned[]){4, 8, 10, 12, 14, 15, 16, 17}), 8 * sizeof(averages[0]));
	assert_int_equal(count, 8);
	assert_int_equal(r.bytes, 3 * 4); /* a float a look */
	rival_fini(&r);
}

/* ---- what is refused ---- */

static void test_refused(void **state)
{
	const struct rival_config good = {RIVAL_FDA, 1, .base = 1, .every = 1, .elements = 1};
	static const double thetas[] = {0, -1, NAN, INFINITY};
	const float zero = 0;
	struct rival r;
	struct err e;

	for (unsigned i = 0; i < 12; i++) {
		struct rival_config c = good;

		c.kind = (enum rival_kind)(i % 3);
		c.theta = thetas[i / 3];
		assert_int_equal(rival_init(&r, &c, &zero, &e), -EINVAL);
		assert_non_null(strstr(e.text, "theta"));
	}
	for (unsigned i = 0; i < 3; i++) {
		struct rival_config c = good;

		c.kind = (enum rival_kind)i;
		*(uint32_t *[]){&c.elements, &c.base, &c.every}[i] = 0;
		assert_int_equal(rival_init(&r, &c, &zero, &e), -EINVAL);
		assert_non_null(strstr(e.text, rival_name(c.kind)));
	}
	{
		struct rival_config c = good;

		c.kind = RIVAL_ADACOMM;
		c.theta = 1.5;
		assert_int_equal(rival_init(&r, &c, &zero, &e), -EINVAL);
		assert_non_null(strstr(e.text, "whole"));
	}
}

TEST_PROGRAM(test_skew_rivals)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_variance),
		cmocka_unit_test(test_first_direction),
		cmocka_unit_test(test_state),
		cmocka_unit_test(test_fda),
		cmocka_unit_test(test_qsr_rule),
		cmocka_unit_test(test_qsr),
		cmocka_unit_test(test_adacomm_rule),
		cmocka_unit_test(test_adacomm),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
