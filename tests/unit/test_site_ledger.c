/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger of a site: all that was said plus what is still to be said is all that was learned, whatever theta, the
 * shares and the number of sites do on the way. Exact on whole numbers; else within 1 ulp an update of a float64
 * ledger.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "client/scout/site.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/site_rig.h"

enum { STEPS = 120, SEEDS = 20 };

/* What site k learned in float64, and how far the arithmetic of fp32 may have taken the residual from it. */
struct ledger {
	double updates[RIG_SITES][RIG_ELEMENTS];
	double allowed[RIG_SITES][RIG_ELEMENTS];
};

static double random_theta(struct site_rig *rig, enum site_algorithm algorithm)
{
	double x = (double)(rig_random(rig) >> 11) / 9007199254740992.0;

	switch (algorithm) {
	case SITE_GAIA:
		return rig_random(rig) % 4 ? x : 0;
	case SITE_LOCAL:
		return 1 + floor(x * 6);
	case SITE_DGC:
		return rig_random(rig) % 4 ? 0.01 + x * 0.5 : 1;
	default:
		return 1;
	}
}

/* Any of these between any two calls: theta, and shares that need not even sum to 1 (powers of two keep sums whole). */
static void disturb(struct site_rig *rig, struct site *site, enum site_algorithm algorithm, bool whole)
{
	if (rig_random(rig) % 3 == 0)
		assert_int_equal(site_set_theta(site, random_theta(rig, algorithm)), 0);
	if (algorithm != SITE_LOCAL && rig_random(rig) % 5 == 0) {
		double share = whole ? ldexp(1, -(int)(rig_random(rig) % 3)) : (double)(rig_random(rig) % 100) / 100;

		assert_int_equal(site_set_share(site, share, 1 + (unsigned)(rig_random(rig) % 9)), 0);
	}
	if (rig_random(rig) % 20 == 0)
		assert_int_equal(site_flush(site), 0);
}

static double ulp(float x)
{
	return nextafterf(fabsf(x), INFINITY) - fabsf(x);
}

/* What the step added, as the algorithm's formula has it in fp32, and one ulp of where it was added. */
static void enter(struct ledger *l, struct site_rig *rig, unsigned k, const float *weights, const float *residual)
{
	const struct site *site = &rig->sites[k];
	float share = (float)site->config.share, rate = (float)(site->rate * site->config.share);

	for (unsigned i = 0; i < RIG_TRAINED; i++) {
		float g = rig->gradients[k][i], update;

		if (site->config.algorithm == SITE_BSP)
			update = share * g;
		else if (site->config.algorithm == SITE_GAIA)
			update = -rate * site->velocity[i];
		else if (site->config.algorithm == SITE_DGC)
			update = site->velocity[i];
		else
			update = -(float)site->rate * site->velocity[i];
		if (site->config.algorithm == SITE_LOCAL) {
			l->updates[k][i] += site->config.share * update;
			l->allowed[k][i] +=
				site->config.share * ulp(fmaxf(fabsf(weights[i]), fabsf(rig->weights[k][i])));
		} else {
			l->updates[k][i] += update;
			l->allowed[k][i] += ulp(fmaxf(fabsf(residual[i]), fabsf(site->residual[i])));
		}
	}
}

static void check(const struct ledger *l, const struct site_rig *rig, unsigned k, bool whole)
{
	const struct site *site = &rig->sites[k];

	for (unsigned i = 0; i < RIG_TRAINED; i++) {
		double left = site->residual ? site->residual[i]
					     : site->config.share * ((double)rig->weights[k][i] - site->anchor[i]);
		double off = fabs(rig->said[k][i] + left - l->updates[k][i]);

		if (off > (whole ? 0 : l->allowed[k][i]))
			fail_msg("%s, seed at %" PRIu64 ": element %u of site %u: off by %g, allowed %g",
				site_algorithm_name(site->config.algorithm), rig->seed, i, k, off,
				whole ? 0 : l->allowed[k][i]);
	}
}

/* As course_finish() has it. */
static void rig_finish(struct site_rig *rig)
{
	for (unsigned k = 0; k < 4; k++) {
		assert_int_equal(site_flush(&rig->sites[k]), 0);
		site_extra(&rig->sites[k]);
	}
	rig_exchange(rig);
}

static struct site_config config_of(enum site_algorithm algorithm, bool whole)
{
	struct site_config c = {.algorithm = algorithm, .theta = 1, .rate_first = 1};

	if (!whole) {
		c.momentum = 0.9;
		c.weight_decay = 5e-4;
		c.clip = 2;
	}
	return c;
}

static void run(enum site_algorithm algorithm, bool whole, uint64_t seed)
{
	struct site_config config = config_of(algorithm, whole);
	struct ledger *l = calloc(1, sizeof(*l));
	struct site_rig rig;

	assert_non_null(l);
	rig_init(&rig, 4, &config, NULL, seed);
	for (unsigned step = 0; step < STEPS; step++) {
		for (unsigned k = 0; k < 4; k++) {
			float weights[RIG_ELEMENTS], residual[RIG_ELEMENTS] = {0};

			disturb(&rig, &rig.sites[k], algorithm, whole);
			memcpy(weights, rig.weights[k], sizeof(weights));
			if (rig.sites[k].residual)
				memcpy(residual, rig.sites[k].residual, sizeof(residual));
			rig_step(&rig, k, whole, whole ? 1 : 0.05);
			enter(l, &rig, k, weights, residual);
			check(l, &rig, k, whole);
		}
		/* Not at every chance, and now and then before it is due. */
		bool exchange = site_due(&rig.sites[0]) ? rig_random(&rig) % 4 != 0 : rig_random(&rig) % 16 == 0;

		if (exchange)
			rig_exchange(&rig);
		/* What local SGD said is rounded as well, by half an ulp of something smaller than the weight. */
		for (unsigned k = 0; k < 4; k++) {
			for (unsigned i = 0; exchange && algorithm == SITE_LOCAL && i < RIG_TRAINED; i++)
				l->allowed[k][i] += ulp(rig.offers[k][i]);
			check(l, &rig, k, whole);
		}
	}
	rig_finish(&rig);
	for (unsigned k = 0; k < 4; k++) {
		for (unsigned i = 0; algorithm == SITE_LOCAL && i < RIG_TRAINED; i++)
			l->allowed[k][i] += ulp(rig.offers[k][i]);
		check(l, &rig, k, whole);
		for (unsigned t = 0; t < RIG_TENSORS; t++)
			assert_true(site_residual_square(&rig.sites[k], t) == 0);
	}
	rig_fini(&rig);
	free(l);
}

static void test_whole(void **state)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		for (int algorithm = 0; algorithm < SITE_ALGORITHM_COUNT; algorithm++)
			run(algorithm, true, seed);
	}
}

static void test_real(void **state)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		for (int algorithm = 0; algorithm < SITE_ALGORITHM_COUNT; algorithm++)
			run(algorithm, false, seed);
	}
}

/* Where the others have other common weights, what a site has moved by itself stays on top; alike, no bit moves. */
static void test_rebase(void **state)
{
	for (int algorithm = 0; algorithm < SITE_ALGORITHM_COUNT; algorithm++) {
		const struct site_config config = config_of(algorithm, true);
		float common[60], moved[60], before[60];
		struct site_rig rig;
		struct site *site = &rig.sites[0];

		rig_init(&rig, 2, &config, NULL, 3);
		rig_step(&rig, 0, true, 1);
		memcpy(before, rig.weights[0], sizeof(before));
		site_common(site, 0, common);
		assert_int_equal(site_rebase(site, 0, common), 0);
		assert_memory_equal(rig.weights[0], before, sizeof(before));
		for (unsigned i = 0; i < 60; i++)
			moved[i] = common[i] + (float)i;
		assert_int_equal(site_rebase(site, 0, moved), 0);
		for (unsigned i = 0; i < 60; i++)
			assert_true(rig.weights[0][i] == before[i] + (float)i);
		site_common(site, 0, common);
		assert_memory_equal(common, moved, sizeof(common));
		assert_int_equal(site_rebase(site, RIG_TENSORS, moved), -EINVAL);
		assert_int_equal(site_offer(site, 0, before), 0);
		assert_int_equal(site_rebase(site, 0, moved), -EBUSY);
		rig_fini(&rig);
	}
}

TEST_PROGRAM(test_site_ledger)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whole),
		cmocka_unit_test(test_real),
		cmocka_unit_test(test_rebase),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
