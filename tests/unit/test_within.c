/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sites in sites without a job: two racks of two, exchanges are loops over arrays, and both ledgers are held: within,
 * what was said plus what is still to be said is all that the site has learned, though exchanges across have moved its
 * weights; across, it is all that what the sites within have in common has moved by exchanges within. Exact on whole
 * numbers, whatever the thetas do.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "client/scout/within.h"
#include "tests/unit/cmocka_shim.h"

enum { RACKS = 2, MEMBERS = 2, WORKERS = RACKS * MEMBERS, TENSORS = 2, ELEMENTS = 40, STEPS = 90, SEEDS = 12 };

static const uint32_t sizes[TENSORS] = {33, 7};

struct worker {
	struct phub_site within, around;
	struct site_tensor tensors[2][TENSORS];
	float weights[ELEMENTS], common[ELEMENTS], gradient[ELEMENTS], offer[ELEMENTS];
	double learned[ELEMENTS], said[ELEMENTS];      /* within */
	double moved[ELEMENTS], said_across[ELEMENTS]; /* of what is common, over the share across */
	float before[ELEMENTS];
};

static struct worker workers[WORKERS];
static uint64_t seed;

static uint64_t draw(void)
{
	uint64_t z = seed += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static void place_init(struct phub_site *s, struct site_tensor *tensors, float *weights, struct site_config config)
{
	struct err e;
	uint32_t at = 0;

	for (unsigned t = 0; t < TENSORS; at += sizes[t++])
		tensors[t] = (struct site_tensor){weights + at, sizes[t], true};
	config.tensors = s->tensors = tensors;
	config.tensor_count = TENSORS;
	config.momentum = 0;
	config.rate_first = 1;
	s->config = config;
	assert_int_equal(site_init(&s->site, &config, &e), 0);
}

static void init(enum site_algorithm algorithm)
{
	float first[ELEMENTS];

	memset(workers, 0, sizeof(workers));
	for (unsigned i = 0; i < ELEMENTS; i++)
		first[i] = (float)(draw() % 17) - 8;
	for (unsigned k = 0; k < WORKERS; k++) {
		struct worker *w = &workers[k];

		memcpy(w->weights, first, sizeof(first));
		memcpy(w->common, first, sizeof(first));
		place_init(&w->within, w->tensors[0], w->weights,
			(struct site_config){
				.algorithm = algorithm, .theta = 1, .share = 1.0 / MEMBERS, .sites = MEMBERS});
		place_init(&w->around, w->tensors[1], w->common,
			(struct site_config){
				.algorithm = SITE_LOCAL, .theta = 1, .share = 1.0 / WORKERS, .sites = WORKERS});
		w->around.within = &w->within;
		w->within.around = &w->around;
	}
}

static void fini(void)
{
	for (unsigned k = 0; k < WORKERS; k++) {
		site_fini(&workers[k].within.site);
		site_fini(&workers[k].around.site);
	}
}

/* Of `count` workers from `first` on, at the one level or the other. */
static void exchange(unsigned first, unsigned count, bool across)
{
	uint32_t at = 0;

	for (unsigned t = 0; t < TENSORS; at += sizes[t++]) {
		float sum[ELEMENTS] = {0};

		for (unsigned k = first; k < first + count; k++) {
			struct worker *w = &workers[k];

			assert_int_equal(site_offer(across ? &w->around.site : &w->within.site, t, w->offer), 0);
			for (uint32_t i = 0; i < sizes[t]; i++) {
				sum[i] += w->offer[i];
				(across ? w->said_across : w->said)[at + i] += w->offer[i];
			}
		}
		for (unsigned k = first; k < first + count; k++)
			assert_int_equal(
				site_accept(across ? &workers[k].around.site : &workers[k].within.site, t, sum), 0);
	}
}

static void common_of(struct worker *w, float *out)
{
	uint32_t at = 0;

	for (unsigned t = 0; t < TENSORS; at += sizes[t++])
		site_common(&w->within.site, t, out + at);
}

/* What the step added to what is to be said within. */
static void learn(struct worker *w)
{
	const struct site *site = &w->within.site;
	const float *gradients[TENSORS] = {w->gradient, w->gradient + sizes[0]};

	for (unsigned i = 0; i < ELEMENTS; i++)
		w->gradient[i] = (float)(draw() % 9) - 4;
	common_of(w, w->before);
	assert_int_equal(site_step(&w->within.site, gradients, 1), 0);
	for (unsigned i = 0; i < ELEMENTS; i++)
		w->learned[i] += site->config.algorithm == SITE_DGC   ? site->velocity[i]
				 : site->config.algorithm == SITE_BSP ? site->config.share * w->gradient[i]
								      : -site->config.share * w->gradient[i];
}

static void check(unsigned k, const char *when)
{
	const struct worker *w = &workers[k];
	const struct site *within = &w->within.site, *around = &w->around.site;

	for (unsigned i = 0; i < ELEMENTS; i++) {
		double left = within->residual ? within->residual[i]
					       : within->config.share * ((double)w->weights[i] - within->anchor[i]);
		double across = around->config.share * ((double)w->common[i] - around->anchor[i]);

		if (w->said[i] + left != w->learned[i])
			fail_msg("%s, %s, seed at %" PRIu64 ": within, worker %u, element %u: %g and %g are not %g",
				site_algorithm_name(within->config.algorithm), when, seed, k, i, w->said[i], left,
				w->learned[i]);
		if (w->said_across[i] + across != w->moved[i] / WORKERS)
			fail_msg("%s, %s, seed at %" PRIu64 ": across, worker %u, element %u: %g and %g are not %g",
				site_algorithm_name(within->config.algorithm), when, seed, k, i, w->said_across[i],
				across, w->moved[i] / WORKERS);
	}
}

static void step_within(void)
{
	for (unsigned k = 0; k < WORKERS; k++)
		learn(&workers[k]);
	for (unsigned rack = 0; rack < RACKS; rack++)
		if (site_due(&workers[rack * MEMBERS].within.site))
			exchange(rack * MEMBERS, MEMBERS, false);
	for (unsigned k = 0; k < WORKERS; k++) {
		float after[ELEMENTS];

		common_of(&workers[k], after);
		for (unsigned i = 0; i < ELEMENTS; i++)
			workers[k].moved[i] += (double)after[i] - workers[k].before[i];
		within_take(&workers[k].around);
		check(k, "after a step");
	}
}

static void step_across(void)
{
	float common[WORKERS][ELEMENTS];

	for (unsigned k = 0; k < WORKERS; k++)
		assert_int_equal(site_step(&workers[k].around.site, NULL, 1), 0);
	if (!site_due(&workers[0].around.site))
		return;
	exchange(0, WORKERS, true);
	for (unsigned k = 0; k < WORKERS; k++) {
		within_give(&workers[k].around);
		common_of(&workers[k], common[k]);
		assert_memory_equal(common[k], workers[k].common, sizeof(common[k]));
		assert_memory_equal(common[k], common[0], sizeof(common[k]));
		check(k, "after an exchange across");
	}
}

static double theta_of(enum site_algorithm algorithm)
{
	double x = (double)(draw() >> 11) * 0x1p-53;

	return algorithm == SITE_LOCAL ? 1 + floor(5 * x)
	       : algorithm == SITE_DGC ? 0.02 + 0.9 * x
	       : algorithm == SITE_BSP ? 1
				       : x;
}

/* Thetas of each rack, and of all across, change whenever they like. */
static void disturb(enum site_algorithm algorithm)
{
	for (unsigned rack = 0; rack < RACKS; rack++) {
		const double theta = theta_of(algorithm);
		const bool changes = draw() % 4 == 0, flushes = draw() % 16 == 0;

		for (unsigned k = rack * MEMBERS; k < (rack + 1) * MEMBERS; k++) {
			if (changes)
				assert_int_equal(site_set_theta(&workers[k].within.site, theta), 0);
			if (flushes)
				assert_int_equal(site_flush(&workers[k].within.site), 0);
		}
	}
	if (draw() % 5 == 0) {
		const double theta = theta_of(SITE_LOCAL);

		for (unsigned k = 0; k < WORKERS; k++)
			assert_int_equal(site_set_theta(&workers[k].around.site, theta), 0);
	}
}

static void test_ledgers(void **state)
{
	for (unsigned n = 1; n <= SEEDS; n++) {
		for (int algorithm = 0; algorithm < SITE_ALGORITHM_COUNT; algorithm++) {
			seed = n;
			init((enum site_algorithm)algorithm);
			for (unsigned step = 0; step < STEPS; step++) {
				disturb((enum site_algorithm)algorithm);
				step_within();
				step_across();
			}
			assert_true(workers[0].around.site.counts.exchanges > 10);
			fini();
		}
	}
}

/* Whoever of the two is closed first; and without a site within nothing is done. */
static void test_close(void **state)
{
	struct phub_site around = {.within = NULL}, within = {.around = &around};

	within_take(&around);
	within_give(&around);
	assert_int_equal(within_bytes(&around), 0);
	around.within = &within;
	within.site.counts.bytes_paper = 7;
	within.bytes_travel = 5;
	assert_int_equal(within_bytes(&around), 12);
	within_close(&within);
	assert_true(around.orphan && !around.within);
	within_close(&around);
	around = (struct phub_site){.within = &within};
	within_close(&around);
	assert_null(within.around);
	assert_false(around.orphan);
}

TEST_PROGRAM(test_within)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ledgers),
		cmocka_unit_test(test_close),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
