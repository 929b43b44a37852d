/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each tests/unit/test_*.c includes first: cmocka with the headers that cmocka.h wants, and TEST_PROGRAM(). With
 * -DPHUB_NO_CMOCKA, for cross-built tests, the part of cmocka that those tests use, because no cross package has
 * cmocka.
 */
#ifndef TESTS_UNIT_CMOCKA_SHIM_H
#define TESTS_UNIT_CMOCKA_SHIM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/*
 * All test files are linked into one program, tests/unit/units.c, and each run of it is one file's:
 * TEST_PROGRAM(test_wire) heads the body of the function that `units test_wire ARGUMENT...` calls. argv[0] is the
 * file's name; the result is the exit status, 77 for skipped.
 */
struct test_program {
	const char *name;
	int (*run)(int argc, char **argv);
	struct test_program *next;
};

/* Called before main(), by each file's constructor. */
void test_program_add(struct test_program *program);

#define TEST_PROGRAM(file)                                                     \
	static int file##_run(int argc, char **argv);                          \
	static struct test_program file##_program = {#file, file##_run, NULL}; \
	__attribute__((constructor)) static void file##_add(void)              \
	{                                                                      \
		test_program_add(&file##_program);                             \
	}                                                                      \
	static int file##_run(int argc, char **argv)

#ifndef PHUB_NO_CMOCKA
#include <cmocka.h>
#else

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct CMUnitTest {
	const char *name;
	void (*test)(void **state);
	int (*setup)(void **state);
	int (*teardown)(void **state);
	void *state;
};

enum { SHIM_PASSED, SHIM_FAILED, SHIM_SKIPPED };

static jmp_buf shim_end; /* a failed assertion leaves the test from any depth */

__attribute__((noreturn)) static inline void shim_leave(int how, const char *what, const char *file, int line)
{
	if (how == SHIM_FAILED)
		fprintf(stderr, "%s\n%s:%d: error: Failure!\n", what, file, line);
	longjmp(shim_end, how);
}

static inline void shim_check(bool ok, const char *what, const char *file, int line)
{
	if (!ok)
		shim_leave(SHIM_FAILED, what, file, line);
}

static inline void shim_check_int(bool want_equal, uintmax_t a, uintmax_t b, const char *file, int line)
{
	char what[96];

	if ((a == b) == want_equal) /* millions of times, under emulation */
		return;
	snprintf(what, sizeof(what), "%#" PRIxMAX " %s %#" PRIxMAX, a, want_equal ? "!=" : "==", b);
	shim_leave(SHIM_FAILED, what, file, line);
}

__attribute__((unused)) static void shim_check_string(const char *a, const char *b, const char *file, int line)
{
	if (strcmp(a, b) != 0)
		fprintf(stderr, "\"%s\" != \"%s\"\n", a, b);
	shim_check(strcmp(a, b) == 0, "strings differ", file, line);
}

/* clang-format off */
#define assert_true(c) shim_check(!!(c), #c, __FILE__, __LINE__)
#define assert_false(c) shim_check(!(c), "!(" #c ")", __FILE__, __LINE__)
#define assert_null(p) shim_check((p) == NULL, #p " == NULL", __FILE__, __LINE__)
#define assert_non_null(p) shim_check((p) != NULL, #p " != NULL", __FILE__, __LINE__)
#define assert_ptr_equal(a, b) shim_check((a) == (b), #a " == " #b, __FILE__, __LINE__)
#define assert_int_equal(a, b) shim_check_int(true, (uintmax_t)(a), (uintmax_t)(b), __FILE__, __LINE__)
#define assert_int_not_equal(a, b) shim_check_int(false, (uintmax_t)(a), (uintmax_t)(b), __FILE__, __LINE__)
#define assert_in_range(v, low, high) \
	shim_check((uintmax_t)(v) >= (uintmax_t)(low) && (uintmax_t)(v) <= (uintmax_t)(high), \
		#v " in " #low ".." #high, __FILE__, __LINE__)
#define assert_memory_equal(a, b, n) shim_check(memcmp(a, b, n) == 0, #a " and " #b " differ", __FILE__, __LINE__)
#define assert_string_equal(a, b) shim_check_string(a, b, __FILE__, __LINE__)
#define fail() shim_leave(SHIM_FAILED, "fail()", __FILE__, __LINE__)
#define fail_msg(...) (fprintf(stderr, __VA_ARGS__), shim_leave(SHIM_FAILED, "", __FILE__, __LINE__))
#define skip() shim_leave(SHIM_SKIPPED, "skip()", __FILE__, __LINE__)
#define print_message(...) fprintf(stderr, __VA_ARGS__)

#define cmocka_unit_test(f) {#f, f, NULL, NULL, NULL}
#define cmocka_unit_test_setup_teardown(f, setup, teardown) {#f, f, setup, teardown, NULL}
/* clang-format on */
#define cmocka_run_group_tests(tests, setup, teardown) cmocka_run_group_tests_name(#tests, tests, setup, teardown)
#define cmocka_run_group_tests_name(group, tests, setup, teardown) \
	shim_run_group(group, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)

static inline int shim_run_test(const struct CMUnitTest *test, void *group_state)
{
	void *state = test->state ? test->state : group_state;

	if (test->setup && test->setup(&state) != 0)
		return SHIM_FAILED;
	int how = setjmp(shim_end);
	if (how == SHIM_PASSED)
		test->test(&state);
	if (test->teardown && test->teardown(&state) != 0)
		return SHIM_FAILED;
	return how;
}

static inline int shim_run_group(const char *group, const struct CMUnitTest *tests, size_t count, int (*setup)(void **),
	int (*teardown)(void **))
{
	static const char *const marks[] = {"[       OK ]", "[  FAILED  ]", "[  SKIPPED ]"};
	size_t total[3] = {0};
	void *state = NULL;

	fprintf(stderr, "[==========] %s: Running %zu test(s).\n", group, count);
	if (setup && setup(&state) != 0) {
		fprintf(stderr, "[  FAILED  ] GROUP SETUP\n");
		return 1;
	}
	for (size_t i = 0; i < count; i++) {
		fprintf(stderr, "[ RUN      ] %s\n", tests[i].name);
		int how = shim_run_test(&tests[i], state);
		fprintf(stderr, "%s %s\n", marks[how], tests[i].name);
		total[how]++;
	}
	if (teardown && teardown(&state) != 0) {
		fprintf(stderr, "[  FAILED  ] GROUP TEARDOWN\n");
		total[SHIM_FAILED]++;
	}
	fprintf(stderr, "[==========] %s: %zu test(s) run.\n", group, count);
	fprintf(stderr, "[  PASSED  ] %zu test(s).\n", total[SHIM_PASSED]);
	if (total[SHIM_SKIPPED])
		fprintf(stderr, "[  SKIPPED ] %zu test(s).\n", total[SHIM_SKIPPED]);
	if (total[SHIM_FAILED])
		fprintf(stderr, "[  FAILED  ] %zu test(s).\n", total[SHIM_FAILED]);
	return (int)total[SHIM_FAILED];
}

#endif

/* Ends the case as skipped, and says why: tests/run.py groups the reasons. */
#define skip_because(why) (print_message("%s\n", why), skip())

#endif
