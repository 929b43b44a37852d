/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which model is tried: for each theta, period and algorithm the one of the middle of the interval that ends a window,
 * and no other.
 */
#include <stddef.h>
#include <string.h>

#include "client/scout/midway.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/site_rig.h"

static const struct site_config local = {.algorithm = SITE_LOCAL, .theta = 1, .momentum = 0.9};
static const struct site_config gaia = {.algorithm = SITE_GAIA, .theta = 0.1, .momentum = 0.9, .rate_first = 0.05};
static const struct site_config bsp = {.algorithm = SITE_BSP, .theta = 1, .momentum = 0.9};
static const struct site_config dgc = {.algorithm = SITE_DGC, .theta = 0.1, .momentum = 0.9};

static struct site_rig rig;
static struct midway kept[RIG_SITES];
static float copies[RIG_SITES][RIG_ELEMENTS];

static void begin(unsigned count, const struct site_config *config)
{
	rig_init(&rig, count, config, NULL, 3);
	for (unsigned k = 0; k < count; k++)
		kept[k] = (struct midway){.weights = copies[k]};
	memset(copies, 0, sizeof(copies));
}

/* At all sites, between two steps; true: it was kept now. */
static bool rest(uint64_t end)
{
	bool now = midway_due(&kept[0], &rig.sites[0], end);

	for (unsigned k = 0; k < rig.count; k++) {
		assert_int_equal(midway_due(&kept[k], &rig.sites[k], end), now);
		if (now)
			midway_keep(&kept[k], &rig.sites[k]);
		assert_false(midway_due(&kept[k], &rig.sites[k], end)); /* once */
	}
	return now;
}

static bool step(void)
{
	for (unsigned k = 0; k < rig.count; k++)
		rig_step(&rig, k, false, 0.05);
	return site_due(&rig.sites[0]);
}

static void close_window(void)
{
	for (unsigned k = 0; k < rig.count; k++)
		kept[k].kept = false;
}

/* In 60 steps of windows of `period`, at `theta`: where the middle was, beside the windows' ends. */
static void follow(double theta, unsigned period)
{
	struct site_config config = local;
	float middle[RIG_ELEMENTS];
	uint64_t began = 0, at = 0;
	unsigned windows = 0;

	config.theta = theta;
	begin(2, &config);
	for (unsigned i = 0; i < 60; i++) {
		if (rest(began + period)) {
			at = rig.sites[0].counts.steps;
			memcpy(middle, rig.weights[0], sizeof(middle));
		}
		if (!step())
			continue;
		if (i + 1 - began >= period) {
			assert_int_equal(at, i + 1 - (unsigned)theta + (unsigned)theta / 2);
			assert_true(kept[0].kept);
			for (unsigned t = 0; t < RIG_TENSORS; t++)
				assert_memory_equal(midway_tensor(&kept[0], &rig.sites[0], t), middle + rig_offset[t],
					rig_elements[t] * sizeof(float));
			began = i + 1;
			windows++;
			close_window();
		} else {
			assert_false(kept[0].kept); /* of an interval that ends none */
		}
		rig_exchange(&rig);
	}
	assert_true(windows > 0 && windows >= 60 / (period + (unsigned)theta));
	rig_fini(&rig);
}

/* Windows that are shorter than an interval, no multiple of it, and longer. */
static void test_intervals(void **state)
{
	static const unsigned thetas[] = {1, 2, 3, 7, 20};

	for (unsigned i = 0; i < sizeof(thetas) / sizeof(thetas[0]); i++)
		for (unsigned period = 1; period <= 21; period++)
			follow(thetas[i], period);
}

/* Where sites talk at each step models are equal, though just before the exchange they are not. */
static void test_tightest(void **state)
{
	begin(3, &local);
	for (unsigned i = 0; i < 10; i++) {
		assert_true(rest(0));
		assert_true(step());
		assert_true(memcmp(rig.weights[0], rig.weights[1], RIG_TRAINED * sizeof(float)) != 0);
		for (unsigned k = 1; k < 3; k++)
			assert_memory_equal(copies[k], copies[0], sizeof(copies[0]));
		close_window();
		rig_exchange(&rig);
	}
	rig_fini(&rig);
}

/* Of Gaia with a threshold of 0 and of the others that talk at each step too; of Gaia with another one they differ by
 * what is still to be said. */
static void test_each_step(void **state)
{
	struct site_config all = gaia;

	all.theta = 0;
	for (unsigned i = 0; i < 4; i++) {
		const struct site_config *const configs[] = {&gaia, &all, &bsp, &dgc};
		double apart = 0;

		begin(2, configs[i]);
		assert_int_equal(site_interval(&rig.sites[0]), 1);
		for (unsigned n = 0; n < 10; n++) {
			assert_true(rest(n + 1));
			assert_true(step());
			for (unsigned e = 0; e < RIG_TRAINED; e++) {
				const double gap = (double)copies[0][e] - copies[1][e];

				apart += gap * gap;
			}
			close_window();
			rig_exchange(&rig);
		}
		if (i == 0)
			assert_true(apart > 1e-4);
		else
			assert_true(apart < 1e-10);
		for (unsigned e = 0; i == 0 && e < RIG_TRAINED; e++) {
			const double own = (double)rig.weights[0][e] - rig.sites[0].residual[e];

			assert_float_equal(own, (double)rig.weights[1][e] - rig.sites[1].residual[e], 1e-5);
		}
		rig_fini(&rig);
	}
}

/* Theta changes between two windows. */
static void test_other_theta(void **state)
{
	begin(2, &local);
	for (unsigned k = 0; k < 2; k++)
		assert_int_equal(site_set_theta(&rig.sites[k], 6), 0);
	for (unsigned i = 0; i < 3; i++) {
		assert_false(rest(6));
		assert_false(step());
	}
	assert_true(rest(6));
	while (!step())
		assert_false(rest(6));
	close_window();
	rig_exchange(&rig);
	for (unsigned k = 0; k < 2; k++)
		assert_int_equal(site_set_theta(&rig.sites[k], 1), 0);
	assert_true(rest(7));
	rig_fini(&rig);
}

/* Whoever comes when the middle has passed, and one to whom no model travels, have none: it is as it is. */
static void test_missed(void **state)
{
	struct site_config config = local;

	config.theta = 8;
	begin(1, &config);
	for (unsigned i = 0; i < 5; i++)
		step(); /* the process was not there, or began anew */
	assert_false(rest(8));
	assert_ptr_equal(midway_tensor(&kept[0], &rig.sites[0], 1), rig.sites[0].tensors[1].weights);
	assert_int_equal(site_join(&rig.sites[0], 100), 0);
	for (unsigned i = 0; i < 4; i++)
		assert_false(rest(108)), step();
	assert_true(rest(108)); /* of the next interval again, by the steps of the run */
	assert_ptr_equal(midway_tensor(&kept[0], &rig.sites[0], 1), copies[0] + rig_offset[1]);
	kept[0] = (struct midway){0};
	assert_false(rest(108));
	rig_fini(&rig);
}

TEST_PROGRAM(test_midway)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_intervals),
		cmocka_unit_test(test_tightest),
		cmocka_unit_test(test_each_step),
		cmocka_unit_test(test_other_theta),
		cmocka_unit_test(test_missed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
