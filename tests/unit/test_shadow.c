/* SPDX-License-Identifier: Apache-2.0 */
/* Shadow accumulators: at the run's own theta they count what was sent; at others what runs at those would send, where
 * weights do not depend on theta. */
#include "client/scout/shadow.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "tests/unit/site_rig.h"

enum { STEPS = 120, SEEDS = 8, THETAS_MAX = 5 };

static const struct {
	unsigned count;
	double at[THETAS_MAX];
} grids[SITE_ALGORITHM_COUNT] = {
	[SITE_BSP] = {1, {1}},
	[SITE_GAIA] = {5, {0, 0.01, 0.05, 0.3, 2}},
	[SITE_LOCAL] = {4, {1, 3, 7, 50}},
	[SITE_DGC] = {4, {1, 0.3, 0.1, 0.01}},
};

static struct site_config config_of(enum site_algorithm algorithm, double theta)
{
	return (struct site_config){.algorithm = algorithm,
		.theta = theta,
		.momentum = 0.9,
		.weight_decay = 1e-3,
		.rate_first = 0.1,
		.clip = 4,
		.warmup = algorithm == SITE_DGC ? 7 : 0};
}

/* A step of site k, at times without samples, with gradients that have zeros; then the shadow's. */
static void step(struct site_rig *rig, unsigned k, struct shadow *shadow, unsigned n)
{
	const float *gradients[RIG_TENSORS] = {rig->gradients[k], rig->gradients[k] + rig_offset[1], NULL};
	bool any = rig_random(rig) % 9 != 0;

	for (unsigned i = 0; i < RIG_TRAINED; i++)
		rig->gradients[k][i] = i % 3 == 0 ? 0 : rig_real(rig);
	assert_int_equal(site_step(&rig->sites[k], any ? gradients : NULL, n < STEPS / 2 ? 0.1 : 0.01), 0);
	if (shadow)
		shadow_step(shadow, &rig->sites[k], any ? gradients : NULL);
}

/* Bytes that the first of `sites` sends in all; `shadow` (or NULL) goes with it. */
static uint64_t run(enum site_algorithm algorithm, double theta, unsigned sites, uint64_t seed, struct shadow *shadow)
{
	struct site_config config = config_of(algorithm, theta);
	struct site_rig rig;
	uint64_t bytes;
	struct err e;

	rig_init(&rig, sites, &config, NULL, seed);
	if (shadow)
		assert_int_equal(
			shadow_init(shadow, &rig.sites[0], grids[algorithm].at, grids[algorithm].count, &e), 0);
	for (unsigned n = 0; n < STEPS; n++) {
		if (n + 1 == STEPS)
			assert_int_equal(site_flush(&rig.sites[0]), 0);
		for (unsigned k = 0; k < sites; k++)
			step(&rig, k, k == 0 ? shadow : NULL, n);
		if (site_due(&rig.sites[0]))
			rig_exchange(&rig);
	}
	bytes = rig.sites[0].counts.bytes_paper;
	rig_fini(&rig);
	return bytes;
}

static void test_it_counts_what_the_run_sends(void **state)
{
	for (unsigned a = 0; a < SITE_ALGORITHM_COUNT; a++) {
		for (uint64_t seed = 1; seed <= SEEDS; seed++) {
			for (unsigned i = 0; i < grids[a].count; i++) {
				struct shadow shadow;
				uint64_t sent = run(a, grids[a].at[i], RIG_SITES, seed, &shadow);

				if (sent != shadow.bytes[i])
					fail_msg("%s at %g, seed %" PRIu64 ": %" PRIu64
						 " bytes, and the shadow has %" PRIu64,
						site_algorithm_name(a), grids[a].at[i], seed, sent, shadow.bytes[i]);
				shadow_fini(&shadow);
			}
		}
	}
}

/* One site alone has its own weights whatever it would say, and here gradients do not come of weights. */
static void test_others_are_what_runs_at_them_send(void **state)
{
	for (unsigned a = 0; a < SITE_ALGORITHM_COUNT; a++) {
		unsigned sites = a == SITE_GAIA ? 1 : RIG_SITES;
		struct shadow shadow;
		uint64_t last = 0;

		run(a, grids[a].at[0], sites, 3, &shadow);
		for (unsigned i = 0; i < grids[a].count; i++) {
			uint64_t sent = run(a, grids[a].at[i], sites, 3, NULL);

			assert_int_equal(sent, shadow.bytes[i]);
			assert_int_not_equal(sent, last); /* thetas differ, or this shows nothing */
			last = sent;
		}
		shadow_fini(&shadow);
	}
}

/* A shadow takes nothing from the run, and does not touch it. */
static void test_the_run_does_not_know(void **state)
{
	for (unsigned a = 0; a < SITE_ALGORITHM_COUNT; a++) {
		struct shadow shadow;

		assert_int_equal(
			run(a, grids[a].at[0], RIG_SITES, 5, &shadow), run(a, grids[a].at[0], RIG_SITES, 5, NULL));
		shadow_fini(&shadow);
	}
}

static void same_bits(enum site_algorithm algorithm)
{
	struct site_config config = config_of(algorithm, grids[algorithm].at[0]);
	struct site_rig with, without;
	struct shadow shadow;
	struct err e;

	rig_init(&with, 2, &config, NULL, 9);
	rig_init(&without, 2, &config, NULL, 9);
	assert_int_equal(shadow_init(&shadow, &with.sites[0], grids[algorithm].at, grids[algorithm].count, &e), 0);
	for (unsigned n = 0; n < STEPS; n++) {
		for (unsigned k = 0; k < 2; k++) {
			step(&with, k, k == 0 ? &shadow : NULL, n);
			step(&without, k, NULL, n);
		}
		rig_exchange(&with);
		rig_exchange(&without);
		assert_memory_equal(with.weights, without.weights, sizeof(with.weights));
	}
	shadow_fini(&shadow);
	rig_fini(&with);
	rig_fini(&without);
}

static void test_the_run_has_the_same_bits(void **state)
{
	for (unsigned a = 0; a < SITE_ALGORITHM_COUNT; a++)
		same_bits(a);
}

static void test_who_joins_begins_anew(void **state)
{
	struct site_config config = config_of(SITE_GAIA, 1e6);
	struct site_rig rig;
	struct shadow shadow;
	const double thetas[] = {1e6, 0};
	uint64_t before;
	struct err e;

	rig_init(&rig, 1, &config, NULL, 1);
	for (unsigned i = 0; i < RIG_ELEMENTS; i++)
		rig.weights[0][i] = 1;
	assert_int_equal(shadow_init(&shadow, &rig.sites[0], thetas, 2, &e), 0);
	step(&rig, 0, &shadow, 0);
	assert_int_equal(shadow.bytes[0], 0);
	before = shadow.bytes[1];
	assert_true(before > 0);
	assert_int_equal(site_join(&rig.sites[0], 10), 0);
	shadow_join(&shadow);
	for (size_t i = 0; i < 2 * shadow.elements; i++)
		assert_true(shadow.residual[i] == 0);
	assert_int_equal(shadow.bytes[1], before);
	shadow_fini(&shadow);
	rig_fini(&rig);
}

static void test_what_it_refuses(void **state)
{
	const double good[] = {1}, bad[] = {1, 0.5}, twice[] = {5, 1, 5};
	double many[SHADOW_THETAS_MAX + 1];
	struct site_config config = config_of(SITE_LOCAL, 1);
	struct site_rig rig;
	struct shadow shadow = {0};
	struct err e = {0};

	shadow_fini(&shadow);
	rig_init(&rig, 1, &config, NULL, 1);
	for (unsigned i = 0; i <= SHADOW_THETAS_MAX; i++)
		many[i] = i + 1;
	assert_int_equal(shadow_init(&shadow, &rig.sites[0], good, 0, &e), -EINVAL);
	assert_non_null(strstr(e.text, "1 to 64"));
	assert_int_equal(shadow_init(&shadow, &rig.sites[0], many, SHADOW_THETAS_MAX + 1, &e), -EINVAL);
	assert_int_equal(shadow_init(&shadow, &rig.sites[0], bad, 2, &e), -EINVAL);
	assert_non_null(strstr(e.text, "local cannot have a theta of 0.5"));
	assert_int_equal(shadow_init(&shadow, &rig.sites[0], twice, 3, &e), -EINVAL);
	assert_non_null(strstr(e.text, "theta 5 is there twice"));
	assert_int_equal(shadow_init(&shadow, &rig.sites[0], many, SHADOW_THETAS_MAX, &e), 0);
	shadow_fini(&shadow);
	rig_fini(&rig);
}

static void test_memory_that_is_not_there(void **state)
{
	const double thetas[] = {0.1, 0.2};
	struct site_config config = config_of(SITE_GAIA, 0.1);
	struct site_rig rig;
	struct shadow shadow;
	struct err e;

	rig_init(&rig, 1, &config, NULL, 1);
	rig.sites[0].elements = SIZE_MAX / 8;
	assert_int_equal(shadow_init(&shadow, &rig.sites[0], thetas, 2, &e), -ENOMEM);
	rig_fini(&rig);
}

TEST_PROGRAM(test_shadow)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_it_counts_what_the_run_sends),
		cmocka_unit_test(test_others_are_what_runs_at_them_send),
		cmocka_unit_test(test_the_run_does_not_know),
		cmocka_unit_test(test_the_run_has_the_same_bits),
		cmocka_unit_test(test_who_joins_begins_anew),
		cmocka_unit_test(test_what_it_refuses),
		cmocka_unit_test(test_memory_that_is_not_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
