/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many strangers may knock: exactly what the buckets hold, whatever the others do, and with more sources than there
 * are buckets.
 */
#include <stddef.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"
#include "transport/rate.h"

#define S 1000000000ull

static const uint8_t *four(uint32_t address)
{
	static uint8_t source[16] = {[10] = 0xff, [11] = 0xff};

	for (int i = 0; i < 4; i++)
		source[12 + i] = (uint8_t)(address >> (24 - 8 * i));
	return source;
}

static unsigned takes(struct rate *r, const uint8_t *source, uint64_t now_ns, unsigned tries)
{
	unsigned got = 0;

	for (unsigned i = 0; i < tries; i++)
		got += rate_take(r, source, now_ns);
	return got;
}

static void test_one_source(void **state)
{
	struct rate *r = rate_create(0, 10);

	assert_int_equal(takes(r, four(1), 5, 1000), 10 * RATE_BURST_S);
	assert_int_equal(takes(r, four(2), 5, 1000), 10 * RATE_BURST_S);
	assert_int_equal(takes(r, four(1), 5 + S / 10 - 1, 1000), 0);
	assert_int_equal(takes(r, four(1), 5 + S / 10, 1000), 1);
	assert_int_equal(takes(r, four(1), 5 + S + S / 10, 1000), 10);
	/* However long nobody came, no more than a burst. */
	assert_int_equal(takes(r, four(1), UINT64_MAX / 2, 1000), 10 * RATE_BURST_S);
	/* In steps that bring less than a token each, nothing gets lost. */
	for (uint64_t i = 0, got = 0; i <= 1000; i++) {
		got += rate_take(r, four(1), UINT64_MAX / 2 + i * S / 1000);
		if (i == 1000)
			assert_int_equal(got, 10);
	}
	/* Who is not known counts among all alone. */
	assert_int_equal(takes(r, NULL, UINT64_MAX / 2 + 2 * S, 1000), 1000);
	rate_destroy(r);
}

static void test_all(void **state)
{
	struct rate *r = rate_create(20, 10);
	unsigned got = 0;

	for (uint32_t i = 0; i < 100; i++)
		got += takes(r, four(i), 5, 3);
	assert_int_equal(got, 20 * RATE_BURST_S);
	assert_int_equal(takes(r, NULL, 5, 10), 0);
	/* One that is over its own limit takes nothing from the others. */
	rate_destroy(r);
	r = rate_create(20, 1);
	assert_int_equal(takes(r, four(1), 5, 1000), RATE_BURST_S);
	assert_int_equal(takes(r, NULL, 5, 1000), 20 * RATE_BURST_S - RATE_BURST_S);
	rate_destroy(r);
	r = rate_create(0, 0);
	assert_int_equal(takes(r, four(1), 5, 1000), 1000);
	rate_destroy(r);
}

static void test_given_back(void **state)
{
	struct rate *r = rate_create(2, 1);

	for (int i = 0; i < 100; i++) {
		assert_true(rate_take(r, four(1), 5));
		rate_give_back(r, four(1));
	}
	/* Never more than it held. */
	rate_give_back(r, four(1));
	rate_give_back(r, NULL);
	assert_int_equal(takes(r, four(1), 5, 100), RATE_BURST_S);
	assert_int_equal(takes(r, NULL, 5, 100), 2 * RATE_BURST_S - RATE_BURST_S);
	rate_give_back(r, four(77)); /* that nobody knows */
	rate_destroy(r);
}

static void test_networks(void **state)
{
	uint8_t six[16] = {0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 1};
	struct rate *r = rate_create(0, 5);
	unsigned got = 0;

	for (unsigned i = 0; i < 1000; i++) {
		six[15] = (uint8_t)i;
		six[9] = (uint8_t)(i >> 2);
		got += rate_take(r, six, 5);
	}
	assert_int_equal(got, 5 * RATE_BURST_S);
	six[7] = 2;
	assert_true(rate_take(r, six, 5));
	rate_destroy(r);
}

/* More sources than buckets do not make anybody's empty one full. */
static void test_crowd(void **state)
{
	struct rate *r = rate_create(0, 1);
	unsigned again = 0;

	assert_int_equal(takes(r, four(1), 5, 1000), RATE_BURST_S);
	for (uint32_t i = 2; i < 20000; i++) {
		rate_take(r, four(i), 5);
		again += rate_take(r, four(1), 5);
	}
	assert_int_equal(again, 0);
	rate_destroy(r);
}

TEST_PROGRAM(test_rate)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_source),
		cmocka_unit_test(test_all),
		cmocka_unit_test(test_given_back),
		cmocka_unit_test(test_networks),
		cmocka_unit_test(test_crowd),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
