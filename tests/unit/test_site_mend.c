/* SPDX-License-Identifier: Apache-2.0 */
/* Sites in need: of numbers, of the others' weights, of memory. */
#include "client/scout/site.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "tests/unit/site_rig.h"

static struct site_config config_of(enum site_algorithm algorithm)
{
	return (struct site_config){.algorithm = algorithm,
		.theta = algorithm == SITE_GAIA ? 0.1 : 1,
		.momentum = 0.9,
		.weight_decay = 1e-3,
		.rate_first = 0.1};
}

/* What is no number counts as zero on its way. */
static void exchange(struct site_rig *rig)
{
	float said[RIG_SITES][RIG_ELEMENTS];

	for (unsigned t = 0; t < RIG_TENSORS; t++) {
		if (!site_exchanges(&rig->sites[0], t))
			continue;
		memset(rig->sums, 0, sizeof(rig->sums));
		for (unsigned k = 0; k < rig->count; k++) {
			assert_int_equal(site_offer(&rig->sites[k], t, said[k]), 0);
			for (uint32_t i = 0; i < rig_elements[t]; i++)
				rig->sums[i] += isfinite(said[k][i]) ? said[k][i] : 0;
		}
		for (unsigned k = 0; k < rig->count; k++)
			assert_int_equal(site_accept(&rig->sites[k], t, rig->sums), 0);
	}
}

static void step(struct site_rig *rig, unsigned k, bool broken)
{
	const float *gradients[RIG_TENSORS] = {rig->gradients[k], rig->gradients[k] + rig_offset[1], NULL};

	for (unsigned i = 0; i < RIG_TRAINED; i++)
		rig->gradients[k][i] = rig_real(rig);
	rig->gradients[k][3] = broken ? NAN : rig->gradients[k][3];
	rig->gradients[k][4] = broken ? INFINITY : rig->gradients[k][4];
	assert_int_equal(site_step(&rig->sites[k], gradients, 0.1), 0);
}

static bool sound(const float *values, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (!isfinite(values[i]))
			return false;
	return true;
}

/* One bad gradient of one site: what it says afterwards is numbers, and all but Gaia's weights are, too. */
static void test_it_comes_out(void **state)
{
	for (unsigned a = 0; a < SITE_ALGORITHM_COUNT; a++) {
		const struct site_config config = config_of((enum site_algorithm)a);
		struct site_rig rig;
		struct site *bad = &rig.sites[1];
		float other;

		rig_init(&rig, 3, &config, NULL, 7);
		for (unsigned n = 0; n < 3; n++) {
			for (unsigned k = 0; k < 3; k++)
				step(&rig, k, n == 1 && k == 1);
			exchange(&rig);
			if (n == 1) {
				other = bad->velocity[9];
				assert_int_equal(site_mend(bad), a != SITE_GAIA);
				assert_true(bad->velocity[9] == other);
			}
			if (a == SITE_GAIA && n == 2) /* by its weights */
				break;
			assert_true(sound(bad->velocity, bad->elements));
			assert_true(!bad->residual || sound(bad->residual, bad->elements));
		}
		assert_true(sound(rig.weights[0], RIG_ELEMENTS) && sound(rig.weights[2], RIG_ELEMENTS));
		assert_true(sound(rig.weights[1], RIG_ELEMENTS) == (a != SITE_GAIA));
		rig_fini(&rig);
	}
}

static void test_not_amid_an_exchange(void **state)
{
	const struct site_config config = config_of(SITE_LOCAL);
	struct site_rig rig;
	float said[RIG_ELEMENTS];

	rig_init(&rig, 1, &config, NULL, 7);
	step(&rig, 0, true);
	assert_int_equal(site_offer(&rig.sites[0], 0, said), 0);
	assert_false(site_mend(&rig.sites[0]));
	assert_false(sound(rig.sites[0].velocity, RIG_ELEMENTS));
	assert_int_equal(site_withdraw(&rig.sites[0], 0, said), 0);
	rig_fini(&rig);
}

/* A mask that is neither trained nor exchanged may be infinite; where it is exchanged it may not. */
static void test_what_counts(void **state)
{
	for (unsigned a = 0; a < SITE_ALGORITHM_COUNT; a++) {
		const struct site_config config = config_of((enum site_algorithm)a);
		struct site_rig rig;

		rig_init(&rig, 1, &config, NULL, 7);
		assert_true(site_mend(&rig.sites[0]));
		rig.weights[0][rig_offset[2]] = -INFINITY;
		assert_int_equal(site_mend(&rig.sites[0]), a != SITE_LOCAL);
		rig_fini(&rig);
	}
}

/* What it has moved by itself is no number: it has what is common, and nothing on top. */
static void test_rebase_of_none(void **state)
{
	for (unsigned a = 0; a < SITE_ALGORITHM_COUNT; a++) {
		const struct site_config config = config_of((enum site_algorithm)a);
		float common[RIG_ELEMENTS];
		struct site_rig rig;

		rig_init(&rig, 1, &config, NULL, 7);
		site_common(&rig.sites[0], 0, common);
		rig.weights[0][5] = NAN;
		common[5] = 4.5f;
		assert_int_equal(site_rebase(&rig.sites[0], 0, common), 0);
		assert_memory_equal(rig.weights[0], common, rig_elements[0] * sizeof(float));
		rig_fini(&rig);
	}
}

/* 3 PB, which no machine has. */
static void test_memory_that_is_not_there(void **state)
{
	static struct site_tensor tensors[SITE_TENSORS_MAX];
	float weight = 0;
	struct err e = {0};

	for (unsigned t = 0; t < SITE_TENSORS_MAX; t++)
		tensors[t] = (struct site_tensor){&weight, UINT32_MAX, true};
	for (unsigned a = 0; a < SITE_ALGORITHM_COUNT; a++) {
		struct site_config config = config_of((enum site_algorithm)a);
		struct site site;

		config.tensors = tensors;
		config.tensor_count = SITE_TENSORS_MAX;
		config.share = config.sites = 1;
		e = (struct err){0};
		assert_int_equal(site_init(&site, &config, &e), -ENOMEM);
		assert_int_equal(e.code, -ENOMEM);
		assert_non_null(strstr(e.text, "of 281474976645120 floats"));
		site_fini(&site);
	}
}

TEST_PROGRAM(test_site_mend)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_it_comes_out),
		cmocka_unit_test(test_not_amid_an_exchange),
		cmocka_unit_test(test_what_counts),
		cmocka_unit_test(test_rebase_of_none),
		cmocka_unit_test(test_memory_that_is_not_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
