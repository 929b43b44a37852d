/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/base/stats.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "tests/unit/cmocka_shim.h"

static struct stats_histogram histogram;

/* One value: it must come back exactly, since a percentile never passes the maximum. */
static void check_single(uint64_t value)
{
	stats_histogram_init(&histogram);
	stats_histogram_add(&histogram, value);
	if (stats_histogram_percentile(&histogram, 50) != value)
		fail_msg("%llu came back as %llu", (unsigned long long)value,
			(unsigned long long)stats_histogram_percentile(&histogram, 50));
}

/* Beside a larger one: at most 1/32 too high, never too low. */
static void check_error(uint64_t value)
{
	stats_histogram_init(&histogram);
	stats_histogram_add(&histogram, value);
	stats_histogram_add(&histogram, UINT64_MAX);
	uint64_t got = stats_histogram_percentile(&histogram, 50);
	if (got < value || got - value > value / 32)
		fail_msg("%llu came back as %llu", (unsigned long long)value, (unsigned long long)got);
	if (value < 64)
		assert_int_equal(got, value);
}

static void test_every_power_of_two_and_its_neighbours(void **state)
{
	for (unsigned bit = 0; bit < 64; bit++) {
		uint64_t power = 1ull << bit;

		for (uint64_t value = power - 1; value <= power + 1; value++) {
			check_single(value);
			check_error(value);
		}
		check_error(power + power / 3);
	}
	check_single(UINT64_MAX);
}

static void test_empty(void **state)
{
	stats_histogram_init(&histogram);
	assert_int_equal(stats_histogram_count(&histogram), 0);
	assert_int_equal(stats_histogram_percentile(&histogram, 99), 0);
	assert_true(stats_histogram_mean(&histogram) == 0);
}

static void test_percentiles(void **state)
{
	stats_histogram_init(&histogram);
	for (uint64_t value = 1; value <= 1000; value++)
		stats_histogram_add(&histogram, value * 1000);
	assert_int_equal(stats_histogram_count(&histogram), 1000);
	assert_true(stats_histogram_mean(&histogram) == 500500.0);
	for (unsigned percent = 1; percent <= 100; percent++) {
		uint64_t exact = percent * 10000;
		uint64_t got = stats_histogram_percentile(&histogram, percent);

		assert_in_range(got, exact, exact + exact / 32);
	}
	assert_in_range(stats_histogram_percentile(&histogram, 0), 1000, 1031);
	assert_int_equal(stats_histogram_percentile(&histogram, 100), 1000000);
	assert_in_range(stats_histogram_percentile(&histogram, 99.9), 999000, 1000000);
}

static void test_merge(void **state)
{
	static struct stats_histogram other;

	stats_histogram_init(&histogram);
	stats_histogram_init(&other);
	for (uint64_t value = 0; value < 50; value++) {
		stats_histogram_add(&histogram, value);
		stats_histogram_add(&other, value + 1000000);
	}
	stats_histogram_merge(&histogram, &other);
	assert_int_equal(stats_histogram_count(&histogram), 100);
	assert_int_equal(stats_histogram_percentile(&histogram, 50), 49);
	assert_int_equal(stats_histogram_percentile(&histogram, 100), 1000049);
	assert_true(stats_histogram_mean(&histogram) == (49 * 50 + 1000000.0 * 50) / 100);
	assert_int_equal(stats_histogram_count(&other), 50);
}

#define ADDS 200000

static uint64_t counter;
static _Atomic bool writer_done;

static void *write_numbers(void *ctx)
{
	for (uint64_t i = 1; i <= ADDS; i++) {
		stats_add(&counter, 3);
		stats_histogram_add(&histogram, i);
	}
	atomic_store(&writer_done, true);
	return NULL;
}

/* Readers see numbers that only grow, and in the end all of them. */
static void test_read_while_written(void **state)
{
	static struct stats_histogram copy;
	uint64_t last = 0, last_count = 0;
	pthread_t writer;

	stats_histogram_init(&histogram);
	assert_int_equal(pthread_create(&writer, NULL, write_numbers, NULL), 0);
	while (!atomic_load(&writer_done)) {
		uint64_t now = stats_read(&counter);

		assert_true(now >= last && now % 3 == 0);
		last = now;
		stats_histogram_init(&copy);
		stats_histogram_merge(&copy, &histogram);
		assert_true(stats_histogram_count(&copy) >= last_count);
		last_count = stats_histogram_count(&copy);
		sched_yield();
	}
	pthread_join(writer, NULL);
	assert_int_equal(stats_read(&counter), 3 * ADDS);
	assert_int_equal(stats_histogram_count(&histogram), ADDS);
	assert_int_equal(stats_histogram_percentile(&histogram, 100), ADDS);
}

TEST_PROGRAM(test_stats)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_power_of_two_and_its_neighbours),
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_percentiles),
		cmocka_unit_test(test_merge),
		cmocka_unit_test(test_read_while_written),
	};

	return cmocka_run_group_tests_name("stats", tests, NULL, NULL);
}
