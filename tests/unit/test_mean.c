/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mean model: what sites have in common, with the mean of what each keeps to itself.
 */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "client/scout/mean.h"
#include "tests/unit/cmocka_shim.h"

enum { SITES = 3, ELEMENTS = 4, TENSORS = 2 };

/* Sites of a tensor that is trained, and one of statistics. */
struct rig {
	struct site sites[SITES];
	float weights[SITES][TENSORS][ELEMENTS];
};

static void rig_open(struct rig *r, enum site_algorithm algorithm)
{
	static const double shares[SITES] = {0.25, 0, 0.75};
	struct err e;

	for (unsigned k = 0; k < SITES; k++) {
		const struct site_tensor tensors[TENSORS] = {
			{r->weights[k][0], ELEMENTS, true}, {r->weights[k][1], ELEMENTS, false}};
		const struct site_config config = {.algorithm = algorithm,
			.tensors = tensors,
			.tensor_count = TENSORS,
			.theta = algorithm == SITE_GAIA ? 100 : 1,
			.share = shares[k],
			.sites = SITES,
			.rate_first = 1};

		for (unsigned i = 0; i < ELEMENTS; i++) {
			r->weights[k][0][i] = 1;
			r->weights[k][1][i] = (float)(k + 1);
		}
		assert_int_equal(site_init(&r->sites[k], &config, &e), 0);
	}
}

static void rig_close(struct rig *r)
{
	for (unsigned k = 0; k < SITES; k++)
		site_fini(&r->sites[k]);
}

static void test_bytes(void **state)
{
	struct rig r;

	for (unsigned a = 0; a < SITE_LOCAL; a++) {
		rig_open(&r, (enum site_algorithm)a);
		assert_int_equal(mean_bytes(&r.sites[0]), 4 * ELEMENTS);
		rig_close(&r);
	}
	rig_open(&r, SITE_LOCAL);
	assert_int_equal(mean_bytes(&r.sites[0]), 0);
	rig_close(&r);
}

/* By shares, whatever these are; nobody's own changes. */
static void test_mean(void **state)
{
	float sum[ELEMENTS] = {0}, shown[ELEMENTS], room[ELEMENTS];
	double shares = 0;
	struct rig r;

	rig_open(&r, SITE_BSP);
	for (unsigned k = 0; k < SITES; k++) {
		const double share = mean_show(&r.sites[k], 1, shown);

		assert_true(share == r.sites[k].config.share);
		for (unsigned i = 0; i < ELEMENTS; i++)
			sum[i] += shown[i];
		shares += share;
	}
	for (unsigned k = 0; k < SITES; k++) {
		assert_ptr_equal(mean_tensor(&r.sites[k], 1, sum, shares, room), room);
		for (unsigned i = 0; i < ELEMENTS; i++)
			assert_true(room[i] == 2.5f && r.weights[k][1][i] == (float)(k + 1));
	}
	rig_close(&r);
}

/* Who has there what is no number says nothing, and the mean is the others'; of what nobody has shown each has its own.
 */
static void test_silent(void **state)
{
	static const float bad[] = {NAN, INFINITY, -INFINITY};
	float shown[ELEMENTS], room[ELEMENTS];
	struct rig r;

	rig_open(&r, SITE_GAIA);
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		r.weights[2][1][3] = bad[i];
		memset(shown, 1, sizeof(shown));
		assert_true(mean_show(&r.sites[2], 1, shown) == 0);
		for (unsigned k = 0; k < ELEMENTS; k++)
			assert_true(shown[k] == 0);
	}
	assert_true(mean_show(&r.sites[0], 1, shown) == 0.25);
	assert_ptr_equal(mean_tensor(&r.sites[2], 1, shown, 0.25, room), room);
	for (unsigned k = 0; k < ELEMENTS; k++)
		assert_true(room[k] == 1);
	memset(shown, 0, sizeof(shown));
	assert_ptr_equal(mean_tensor(&r.sites[2], 1, shown, 0, room), r.weights[2][1]);
	rig_close(&r);
}

/* What a site of Gaia has moved by itself is no part of it; of the others weights are what all have. */
static void test_common(void **state)
{
	static const float gradient[ELEMENTS] = {1, 2, 3, 4};
	const float *gradients[TENSORS] = {gradient, NULL};
	float room[ELEMENTS];
	struct rig r;

	for (unsigned a = 0; a <= SITE_LOCAL; a++) {
		const float *mean;

		rig_open(&r, (enum site_algorithm)a);
		assert_int_equal(site_step(&r.sites[0], gradients, 0.5), 0);
		mean = mean_tensor(&r.sites[0], 0, NULL, 0, room);
		assert_ptr_equal(mean, a == SITE_GAIA ? room : r.weights[0][0]);
		for (unsigned i = 0; a == SITE_GAIA && i < ELEMENTS; i++)
			assert_true(room[i] == 1 && r.weights[0][0][i] < 1);
		rig_close(&r);
	}
}

TEST_PROGRAM(test_mean)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_mean),
		cmocka_unit_test(test_silent),
		cmocka_unit_test(test_common),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
