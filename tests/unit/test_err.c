/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/base/err.h"

#include <errno.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"

static void test_set_returns_the_code(void **state)
{
	struct err e = {0};

	assert_int_equal(err_set(&e, -ENOENT, "job %s: key %d", "mnist", 7), -ENOENT);
	assert_int_equal(e.code, -ENOENT);
	assert_string_equal(e.text, "job mnist: key 7");
	assert_int_equal(err_set(NULL, -EINVAL, "nobody asks"), -EINVAL);
}

static void test_long_text_is_cut(void **state)
{
	char longest[ERR_TEXT_MAX + 1];
	struct err e;

	memset(longest, 'x', sizeof(longest));
	longest[ERR_TEXT_MAX - 1] = '\0';
	err_set(&e, -EINVAL, "%s", longest);
	assert_string_equal(e.text, longest);

	longest[ERR_TEXT_MAX - 1] = 'x';
	longest[ERR_TEXT_MAX] = '\0';
	err_set(&e, -EINVAL, "%s", longest);
	assert_int_equal(strlen(e.text), ERR_TEXT_MAX - 1);
	assert_string_equal(e.text + ERR_TEXT_MAX - 5, "x...");
}

static void test_own_text_may_be_an_argument(void **state)
{
	struct err e;

	err_set(&e, -EIO, "disk full");
	assert_int_equal(err_set(&e, e.code, "job a: %s", e.text), -EIO);
	assert_string_equal(e.text, "job a: disk full");
}

TEST_PROGRAM(test_err)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_set_returns_the_code),
		cmocka_unit_test(test_long_text_is_cut),
		cmocka_unit_test(test_own_text_may_be_an_argument),
	};

	return cmocka_run_group_tests_name("err", tests, NULL, NULL);
}
