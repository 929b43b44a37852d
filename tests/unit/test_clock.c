/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/base/clock.h"

#include <limits.h>
#include <time.h>

#include "tests/unit/cmocka_shim.h"

static void test_now_never_goes_back(void **state)
{
	uint64_t last_ns = clock_now_ns();

	for (int i = 0; i < 100000; i++) {
		uint64_t now_ns = clock_now_ns();

		assert_true(now_ns >= last_ns);
		last_ns = now_ns;
	}
}

/* Nor does the other, and while nothing is suspended it goes as the first does. */
static void test_outside_goes_on(void **state)
{
	uint64_t begin_ns = clock_now_ns(), first_ns = clock_outside_ns(), last_ns = first_ns;

	while (last_ns < first_ns + 20 * NS_PER_MS) {
		uint64_t now_ns = clock_outside_ns();

		assert_true(now_ns >= last_ns);
		last_ns = now_ns;
	}
	assert_true(clock_now_ns() - begin_ns >= 20 * NS_PER_MS);
}

/* Counts what this thread computes, and no time in which it sleeps. */
static void test_thread_cpu(void **state)
{
	uint64_t begin_ns = clock_now_ns(), cpu_ns = clock_thread_cpu_ns(), slept_ns;

	nanosleep(&(struct timespec){.tv_nsec = 50 * NS_PER_MS}, NULL);
	slept_ns = clock_now_ns() - begin_ns;
	assert_true(slept_ns >= 50 * NS_PER_MS);
	assert_true(clock_thread_cpu_ns() - cpu_ns < slept_ns / 2);
	cpu_ns = clock_thread_cpu_ns();
	for (begin_ns = cpu_ns; cpu_ns < begin_ns + 2 * NS_PER_MS;) {
		uint64_t later_ns = clock_thread_cpu_ns();

		assert_true(later_ns >= cpu_ns);
		cpu_ns = later_ns;
	}
}

static void test_deadline(void **state)
{
	assert_int_equal(clock_deadline_ns(5, 0), 5);
	assert_int_equal(clock_deadline_ns(5, 3), 5 + 3 * NS_PER_MS);
	assert_true(clock_deadline_ns(5, -1) == CLOCK_NEVER);
	assert_true(clock_deadline_ns(5, INT64_MAX) == CLOCK_NEVER);
	assert_true(clock_deadline_ns(UINT64_MAX - 1, 1) == CLOCK_NEVER);
}

static void test_timeout(void **state)
{
	assert_int_equal(clock_timeout_ms(5, CLOCK_NEVER), -1);
	assert_int_equal(clock_timeout_ms(5, 5), 0);
	assert_int_equal(clock_timeout_ms(5, 4), 0);
	assert_int_equal(clock_timeout_ms(5, 6), 1);
	assert_int_equal(clock_timeout_ms(0, NS_PER_MS), 1);
	assert_int_equal(clock_timeout_ms(0, NS_PER_MS + 1), 2);
	assert_int_equal(clock_timeout_ms(0, CLOCK_NEVER - 1), INT_MAX);
}

TEST_PROGRAM(test_clock)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_now_never_goes_back),
		cmocka_unit_test(test_outside_goes_on),
		cmocka_unit_test(test_thread_cpu),
		cmocka_unit_test(test_deadline),
		cmocka_unit_test(test_timeout),
	};

	return cmocka_run_group_tests_name("clock", tests, NULL, NULL);
}
