/* SPDX-License-Identifier: Apache-2.0
 *
 * Choosing a table of kernels: by name, by PHUB_ISA, the best one, and both errors with their texts.
 */
#include <errno.h>

#include "tests/unit/test_aggregation.h"

static void test_tables_are_selectable(void **state)
{
	const struct kernels *kernels, *chosen, *best = &kernels_base;
	char error[256] = "untouched";

	for (size_t i = 0; (kernels = dispatch_at(i)); i++) {
		assert_int_equal(dispatch_select(kernels->name, &chosen, error, sizeof(error)), 0);
		assert_true(chosen == kernels);
		assert_true(i > 0 || kernels == &kernels_base);
		best = kernels;
	}
	for (size_t i = 0; i < 3; i++) {
		static const char *const names[] = {NULL, "", "auto"};

		chosen = NULL;
		assert_int_equal(dispatch_select(names[i], &chosen, error, sizeof(error)), 0);
		assert_true(chosen == best);
	}
	assert_string_equal(error, "untouched");
	printf("best: %s\n", best->name);
}

static void test_unknown_name(void **state)
{
	const struct kernels *kernels = &kernels_base;
	char error[256];

	assert_int_equal(dispatch_select("sse9", &kernels, error, sizeof(error)), -EINVAL);
	assert_true(strstr(error, "\"sse9\"") && strstr(error, "auto base"));
	assert_true(kernels == &kernels_base);      /* written only on success */
	for (size_t size = 0; size < 100; size++) { /* never past the end */
		memset(error, 'x', sizeof(error));
		assert_int_equal(dispatch_select("sse9", &kernels, error, size), -EINVAL);
		assert_int_equal(error[size], 'x');
		assert_true(size == 0 || memchr(error, 0, size));
	}
}

static void test_unsupported_name(void **state)
{
	static const char *const names[] = {"avx2", "avx512", "neon"};
	int unsupported = 0;

	for (size_t n = 0; n < 3; n++) {
		const struct kernels *kernels;
		char error[256];
		int there = 0;

		for (size_t i = 0; (kernels = dispatch_at(i)); i++)
			there |= strcmp(kernels->name, names[n]) == 0;
		if (there)
			continue;
		unsupported++;
		assert_int_equal(dispatch_select(names[n], &kernels, error, sizeof(error)), -ENOTSUP);
		assert_true(strstr(error, names[n]) && strstr(error, "does not run"));
	}
	assert_true(unsupported > 0); /* no machine is both x86 and Arm */
}

static void test_environment(void **state)
{
	const struct kernels *kernels = NULL;
	char error[256];

	assert_int_equal(setenv("PHUB_ISA", "base", 1), 0);
	assert_int_equal(dispatch_from_env(&kernels, error, sizeof(error)), 0);
	assert_true(kernels == &kernels_base);
	assert_int_equal(setenv("PHUB_ISA", "BASE", 1), 0);
	assert_int_equal(dispatch_from_env(&kernels, error, sizeof(error)), -EINVAL);
	assert_true(strstr(error, "PHUB_ISA") != NULL);
	assert_int_equal(unsetenv("PHUB_ISA"), 0);
	assert_int_equal(dispatch_from_env(&kernels, error, sizeof(error)), 0);
}

TEST_PROGRAM(test_aggregation_dispatch)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tables_are_selectable),
		cmocka_unit_test(test_unknown_name),
		cmocka_unit_test(test_unsupported_name),
		cmocka_unit_test(test_environment),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
