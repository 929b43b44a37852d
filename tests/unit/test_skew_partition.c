/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partitions: whatever the kind, each sample is at one site; and the counts are those that the kind says.
 */
#include "tests/bench/skew_partition.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/skew_data.h"

enum { COUNT = 6007 };

static uint8_t labels[COUNT];
static unsigned members[SKEW_CLASSES];               /* of each class */
static unsigned found[SKEW_SITES_MAX][SKEW_CLASSES]; /* of each class at each site */

static int make_labels(void **state)
{
	struct skew_random r;

	skew_random_init(&r, 9, SKEW_PROBE, 0);
	for (int i = 0; i < COUNT; i++) {
		labels[i] = (uint8_t)skew_random_below(&r, SKEW_CLASSES);
		members[labels[i]]++;
	}
	return 0;
}

/* Makes it, checks that each sample is at one site, and counts classes into `found`. */
static struct skew_partition deal(const struct skew_partition_config *config)
{
	static bool seen[COUNT];
	struct skew_partition p;
	struct err e = {0};

	if (skew_partition_init(&p, config, labels, COUNT, &e) < 0)
		fail_msg("%s", e.text);
	memset(seen, 0, sizeof(seen));
	memset(found, 0, sizeof(found));
	assert_int_equal(p.sites, config->sites);
	assert_int_equal(p.begin[0], 0);
	assert_int_equal(p.begin[p.sites], COUNT);
	for (unsigned k = 0; k < p.sites; k++) {
		assert_true(p.begin[k] <= p.begin[k + 1]);
		assert_int_equal(skew_partition_count(&p, k), p.begin[k + 1] - p.begin[k]);
		for (uint32_t i = p.begin[k]; i < p.begin[k + 1]; i++) {
			assert_true(p.samples[i] < COUNT && !seen[p.samples[i]]);
			seen[p.samples[i]] = true;
			found[k][labels[p.samples[i]]]++;
		}
	}
	return p;
}

static unsigned count_of(unsigned site)
{
	unsigned sum = 0;

	for (unsigned c = 0; c < SKEW_CLASSES; c++)
		sum += found[site][c];
	return sum;
}

/* ---- by label ---- */

static void test_label(void **state)
{
	static const unsigned sites[] = {1, 2, 3, 5, 10, 64};

	for (int s = 0; s < 6; s++) {
		for (unsigned percent = 0; percent <= 100; percent += 20) {
			const unsigned k_count = sites[s], dealt = (unsigned)(COUNT * percent / 100.0 + 0.5);
			const double stray = (COUNT - dealt) * (1 - 1.0 / k_count);
			struct skew_partition p =
				deal(&(struct skew_partition_config){.sites = k_count, .percent = percent, .seed = s});
			unsigned away = 0;

			for (unsigned k = 0; k < k_count; k++)
				for (unsigned c = 0; c < SKEW_CLASSES; c++)
					away += c % k_count == k ? 0 : found[k][c];
			/* Of those dealt round-robin the share of other sites is away, to within five deviations. */
			if (fabs(away - stray) > 5 * sqrt(stray / k_count))
				fail_msg("%u sites, %u %%: %u away from home, not %g", k_count, percent, away, stray);
			for (unsigned k = 0; percent == 0 && k < k_count; k++)
				assert_true(abs((int)(count_of(k) * k_count) - COUNT) < (int)k_count);
			for (unsigned c = 0; percent == 100 && c < SKEW_CLASSES; c++)
				assert_int_equal(found[c % k_count][c], members[c]);
			skew_partition_fini(&p);
		}
	}
}

static void test_label_sizes(void **state)
{
	static const double sizes[] = {1, 4, 0, 2, 3};

	for (unsigned percent = 0; percent <= 100; percent += 20) {
		struct skew_partition p = deal(
			&(struct skew_partition_config){.sites = 5, .percent = percent, .sizes = sizes, .seed = 3});
		unsigned last = 0;

		for (unsigned k = 0; k < 5; k++) /* two roundings, one for each way of dealing */
			assert_true(fabs(count_of(k) - COUNT * sizes[k] / 10) <= 2);
		assert_int_equal(count_of(2), 0);
		/* All by label: the classes 0 5 1 6 2 7 3 8 4 9 in a row. */
		for (unsigned k = 0; percent == 100 && k < 5; k++) {
			for (unsigned i = 0; i < SKEW_CLASSES; i++) {
				if (found[k][i / 2 + i % 2 * 5] == 0)
					continue;
				assert_true(i >= last);
				last = i;
			}
		}
		skew_partition_fini(&p);
	}
}

/* ---- by Dirichlet ---- */

/* Over classes, the mean share of the site that has most of it. */
static double concentration(unsigned sites)
{
	double sum = 0;

	for (unsigned c = 0; c < SKEW_CLASSES; c++) {
		unsigned most = 0;

		for (unsigned k = 0; k < sites; k++)
			most = found[k][c] > most ? found[k][c] : most;
		sum += (double)most / members[c];
	}
	return sum / SKEW_CLASSES;
}

static void test_dirichlet(void **state)
{
	/* Of uniform to all but one; at 1e-6 every gamma is 0. */
	static const struct {
		double alpha, least, most;
	} cases[] = {
		{1e6, 0.2, 0.21}, {1, 0.35, 0.6}, {0.5, 0.45, 0.75}, {0.1, 0.7, 0.99}, {1e-3, 0.97, 1}, {1e-6, 1, 1}};

	for (int i = 0; i < 6; i++) {
		struct skew_partition p = deal(&(struct skew_partition_config){
			.sites = 5, .kind = SKEW_BY_DIRICHLET, .alpha = cases[i].alpha, .seed = 1});
		double found_now = concentration(5);

		if (found_now < cases[i].least || found_now > cases[i].most)
			fail_msg("alpha %g: the largest share is %g", cases[i].alpha, found_now);
		skew_partition_fini(&p);
	}
}

static void test_dirichlet_sizes(void **state)
{
	static const double sizes[] = {1, 0, 3};
	struct skew_partition p = deal(&(struct skew_partition_config){
		.sites = 3, .kind = SKEW_BY_DIRICHLET, .alpha = 1e5, .sizes = sizes, .seed = 2});

	for (unsigned k = 0; k < 3; k++)
		assert_true(fabs(count_of(k) - COUNT * sizes[k] / 4) < 0.02 * COUNT);
	assert_int_equal(count_of(1), 0);
	skew_partition_fini(&p);
}

/* ---- both ---- */

static void test_seeds(void **state)
{
	static const enum skew_kind kinds[] = {SKEW_BY_LABEL, SKEW_BY_DIRICHLET};

	for (int i = 0; i < 2; i++) {
		struct skew_partition_config config = {
			.sites = 4, .kind = kinds[i], .percent = 50, .alpha = 1, .seed = 7};
		struct skew_partition a = deal(&config), b = deal(&config), other;

		config.seed = 8;
		other = deal(&config);
		assert_memory_equal(a.samples, b.samples, COUNT * sizeof(*a.samples));
		assert_memory_equal(a.begin, b.begin, sizeof(a.begin));
		assert_true(memcmp(a.samples, other.samples, COUNT * sizeof(*a.samples)) != 0);
		skew_partition_fini(&a);
		skew_partition_fini(&b);
		skew_partition_fini(&other);
	}
}

static void refused(struct skew_partition_config config, const char *text)
{
	struct skew_partition p = {.sites = 42};
	struct err e = {0};

	assert_int_equal(skew_partition_init(&p, &config, labels, COUNT, &e), -EINVAL);
	if (!strstr(e.text, text))
		fail_msg("\"%s\" does not say \"%s\"", e.text, text);
	assert_int_equal(p.sites, 42);
}

static void test_refused(void **state)
{
	static const double none[2] = {0, 0}, below[2] = {1, -1}, nan[2] = {1, NAN}, much[2] = {1e308, 1e308};
	static const double alphas[] = {0, -1, 1e7, NAN, INFINITY};
	static const double percents[] = {-1, 100.5, NAN, INFINITY};
	const uint8_t wrong[] = {3, 10};
	struct skew_partition p;
	struct err e = {0};

	refused((struct skew_partition_config){.sites = 0}, "use 1 to 64");
	refused((struct skew_partition_config){.sites = 65}, "use 1 to 64");
	for (int i = 0; i < 4; i++)
		refused((struct skew_partition_config){.sites = 2, .percent = percents[i]}, "use 0 to 100");
	for (int i = 0; i < 5; i++)
		refused((struct skew_partition_config){.sites = 2, .kind = SKEW_BY_DIRICHLET, .alpha = alphas[i]},
			"an alpha of");
	refused((struct skew_partition_config){.sites = 2, .sizes = none}, "sum to 0");
	refused((struct skew_partition_config){.sites = 2, .sizes = much}, "sum to inf");
	refused((struct skew_partition_config){.sites = 2, .sizes = below}, "site 1 has a size of -1");
	refused((struct skew_partition_config){.sites = 2, .sizes = nan}, "site 1 has a size of");
	assert_int_equal(skew_partition_init(&p, &(struct skew_partition_config){.sites = 2}, wrong, 2, &e), -EINVAL);
	assert_non_null(strstr(e.text, "sample 1 is of class 10"));
}

static void test_nothing(void **state)
{
	struct skew_partition p;
	struct err e = {0};

	assert_int_equal(skew_partition_init(&p, &(struct skew_partition_config){.sites = 3}, NULL, 0, &e), 0);
	assert_int_equal(p.begin[3], 0);
	skew_partition_fini(&p);
	skew_partition_fini(&p);
}

/* ---- feeds ---- */

/* Each epoch has every sample of the site once, though batches reach over its end. */
static void test_feed(void **state)
{
	struct skew_partition p = deal(&(struct skew_partition_config){.sites = 11, .percent = 100, .seed = 5});
	const uint32_t count = skew_partition_count(&p, 4);
	struct skew_feed feed, twin, other;
	uint32_t batch[7], same[7], *times = calloc(COUNT, sizeof(*times));
	bool differ = false;

	assert_int_equal(skew_feed_init(&feed, &p, 4, 1), 0);
	assert_int_equal(skew_feed_init(&twin, &p, 4, 1), 0);
	assert_int_equal(skew_feed_init(&other, &p, 4, 2), 0);
	for (uint32_t taken = 0; taken < 7 * count; taken += 7) {
		assert_int_equal(skew_feed_next(&feed, 7, batch), 7);
		assert_int_equal(skew_feed_next(&twin, 7, same), 7);
		assert_memory_equal(batch, same, sizeof(batch));
		assert_int_equal(skew_feed_next(&other, 7, same), 7);
		differ |= memcmp(batch, same, sizeof(batch)) != 0;
		for (int i = 0; i < 7; i++) {
			assert_int_equal(labels[batch[i]], 4);
			times[batch[i]]++;
			assert_int_equal(times[batch[i]], (taken + (unsigned)i) / count + 1);
		}
	}
	assert_true(differ);
	/* Site 10 of 11 has no class. */
	assert_int_equal(skew_feed_move(&feed, &p, 10), 0);
	assert_int_equal(skew_feed_next(&feed, 7, batch), 0);
	assert_int_equal(skew_feed_move(&feed, &p, 6), 0);
	assert_int_equal(skew_feed_next(&feed, 7, batch), 7);
	for (int i = 0; i < 7; i++)
		assert_int_equal(labels[batch[i]], 6);
	skew_feed_fini(&feed);
	skew_feed_fini(&twin);
	skew_feed_fini(&other);
	skew_partition_fini(&p);
	free(times);
}

TEST_PROGRAM(test_skew_partition)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_label),
		cmocka_unit_test(test_label_sizes),
		cmocka_unit_test(test_dirichlet),
		cmocka_unit_test(test_dirichlet_sizes),
		cmocka_unit_test(test_seeds),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_nothing),
		cmocka_unit_test(test_feed),
	};

	return cmocka_run_group_tests(tests, make_labels, NULL);
}
