/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of ranks: ranges, and what is left out is counted. And names of keys: found, or not there.
 */
#include "phub/base/ranks.h"
#include "tests/unit/cmocka_shim.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/keyring.h"

static void expect(const uint32_t *ranks, size_t known, size_t count, size_t bytes, const char *wanted)
{
	char *text = malloc(bytes); /* so that a sanitizer sees a byte too many */

	assert_non_null(text);
	ranks_write(ranks, known, count, text, bytes);
	assert_string_equal(text, wanted);
	free(text);
}

static void test_ranges(void **state)
{
	static const uint32_t some[] = {3, 64, 65, 66, 67, 99}, pair[] = {0, 1, 5, 6, 7, 1022, 1023};

	expect(some, 0, 0, 64, "");
	expect(some, 1, 1, 64, "3");
	expect(some, 6, 6, 64, "3, 64-67, 99");
	expect(some, 6, 18, 64, "3, 64-67, 99 and 12 more");
	expect(some + 1, 2, 2, 64, "64, 65");
	expect(pair, 7, 7, 64, "0, 1, 5-7, 1022, 1023");
	expect(some, 0, 5, 64, "5 of them");
}

static void test_bounds(void **state)
{
	uint32_t odd[512];
	char text[200];
	size_t listed = 1;
	unsigned more;

	for (uint32_t i = 0; i < 512; i++)
		odd[i] = 2 * i + 1;
	expect(odd, 512, 512, 32, "1, 3, 5 and 509 more");
	for (size_t bytes = 32; bytes <= sizeof(text); bytes++) {
		ranks_write(odd, 512, 600, text, bytes);
		assert_true(strlen(text) < bytes);
		listed = 1;
		for (const char *p = text; (p = strchr(p, ',')); p++)
			listed++;
		assert_int_equal(sscanf(strstr(text, " and "), " and %u more", &more), 1);
		assert_int_equal(listed + more, 600);
	}
	assert_true(listed > 30);
}

static void test_names(void **state)
{
	const struct chunk_key shape = {.elements = 1, .dtype = CHUNK_F32};
	struct keyring k = {.count = 0};
	struct err e = {0};
	char name[32];

	assert_int_equal(keyring_find(&k, "layer.0"), -1);
	for (int i = 0; i < 5000; i++) {
		snprintf(name, sizeof(name), "layer.%d", i);
		assert_int_equal(keyring_find(&k, name), -1);
		assert_int_equal(keyring_add(&k, "test", name, &shape, &e), i);
		assert_int_equal(keyring_find(&k, name), i);
	}
	for (int i = 0; i < 5000; i++) {
		snprintf(name, sizeof(name), "layer.%d", i);
		assert_int_equal(keyring_find(&k, name), i);
	}
	keyring_clear(&k);
	assert_int_equal(keyring_find(&k, "layer.0"), -1);
}

TEST_PROGRAM(test_client_ranks)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_bounds),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
