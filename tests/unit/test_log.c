/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/cmocka_shim.h"

struct heard {
	unsigned count;
	enum log_level level;
	char line[LOG_LINE_MAX];
};

static void hear(void *ctx, enum log_level level, const char *line)
{
	struct heard *heard = ctx;

	heard->count++;
	heard->level = level;
	strncpy(heard->line, line, sizeof(heard->line) - 1);
	errno = EIO;
}

/* What `say` writes to stderr; the number of bytes. */
static size_t stderr_of(void (*say)(void), char text[LOG_LINE_MAX])
{
	ssize_t length;
	int ends[2], saved = dup(STDERR_FILENO);

	assert_int_equal(pipe(ends), 0);
	dup2(ends[1], STDERR_FILENO);
	say();
	dup2(saved, STDERR_FILENO);
	close(saved);
	close(ends[1]);
	length = read(ends[0], text, LOG_LINE_MAX - 1);
	close(ends[0]);
	assert_true(length >= 0);
	text[length] = '\0';
	return (size_t)length;
}

static void say_to_nobody(void)
{
	log_error("nobody hears %d", 1);
}

static void test_silent_without_sink(void **state)
{
	struct heard heard = {0};
	char text[LOG_LINE_MAX];

	log_set_sink(hear, &heard);
	log_set_sink(NULL, NULL);
	assert_int_equal(stderr_of(say_to_nobody, text), 0);
	assert_int_equal(heard.count, 0);
	assert_false(log_has_warned());
}

/* Once a line of warn or above was written; the one before went to nobody. */
static void test_says_that_it_has_warned(void **state)
{
	struct heard heard = {0};

	log_set_sink(hear, &heard);
	log_info("all is well");
	log_set_level(LOG_LEVEL_ERROR);
	log_warn("nobody wants to know");
	log_set_level(LOG_LEVEL_INFO);
	assert_int_equal(heard.count, 1);
	assert_false(log_has_warned());
	log_warn("look");
	assert_true(log_has_warned());
	log_info("all is well");
	assert_true(log_has_warned());
	log_set_sink(NULL, NULL);
}

static void test_line_reaches_the_sink(void **state)
{
	struct heard heard = {0};

	log_set_sink(hear, &heard);
	errno = ENOENT;
	log_warn("job %s: %d", "mnist", 3);
	assert_int_equal(errno, ENOENT);
	assert_int_equal(heard.count, 1);
	assert_int_equal(heard.level, LOG_LEVEL_WARN);
	assert_string_equal(heard.line, "job mnist: 3");
	log_set_sink(NULL, NULL);
}

static void test_level_filters(void **state)
{
	struct heard heard = {0};

	log_set_sink(hear, &heard);
	assert_int_equal(log_level(), LOG_LEVEL_INFO);
	log_debug("not now");
	assert_int_equal(heard.count, 0);
	log_set_level(LOG_LEVEL_DEBUG);
	log_debug("now");
	assert_int_equal(heard.count, 1);
	log_set_level(LOG_LEVEL_ERROR);
	log_warn("not now");
	assert_int_equal(heard.count, 1);
	log_set_level(LOG_LEVEL_INFO);
	log_set_sink(NULL, NULL);
}

static void test_level_by_name(void **state)
{
	struct err e;

	assert_int_equal(log_set_level_name("warn", &e), 0);
	assert_int_equal(log_level(), LOG_LEVEL_WARN);
	assert_int_equal(log_set_level_name("loud", &e), -EINVAL);
	assert_string_equal(e.text, "log level \"loud\": use error, warn, info or debug");
	assert_int_equal(log_level(), LOG_LEVEL_WARN);

	setenv("PHUB_LOG", "debug", 1);
	assert_int_equal(log_set_level_from_env(&e), 0);
	assert_int_equal(log_level(), LOG_LEVEL_DEBUG);
	setenv("PHUB_LOG", "7", 1);
	assert_int_equal(log_set_level_from_env(&e), -EINVAL);
	setenv("PHUB_LOG", "", 1);
	assert_int_equal(log_set_level_from_env(&e), 0);
	unsetenv("PHUB_LOG");
	assert_int_equal(log_set_level_from_env(&e), 0);
	assert_int_equal(log_level(), LOG_LEVEL_DEBUG);
	log_set_level(LOG_LEVEL_INFO);
}

static void test_long_and_hostile_lines(void **state)
{
	char text[2 * LOG_LINE_MAX];
	struct heard heard = {0};

	log_set_sink(hear, &heard);
	memset(text, 'x', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	log_info("%s", text);
	assert_int_equal(strlen(heard.line), LOG_LINE_MAX - 1);
	assert_string_equal(heard.line + LOG_LINE_MAX - 5, "x...");
	log_info("peer \"%s\"", "a\nerror forged\x1b[2J\x7f");
	assert_string_equal(heard.line, "peer \"a?error forged?[2J?\"");
	log_set_sink(NULL, NULL);
}

static void say_that_disk_is_slow(void)
{
	log_sink_stderr(NULL, LOG_LEVEL_WARN, "disk is slow");
}

static void test_stderr_sink_writes_one_line(void **state)
{
	char text[LOG_LINE_MAX];

	assert_true(stderr_of(say_that_disk_is_slow, text) > 24);
	assert_true(text[10] == 'T' && text[23] == 'Z');
	assert_string_equal(text + 24, " warn  disk is slow\n");
}

static void test_limit(void **state)
{
	struct log_limit limit = {0};
	char more[LOG_QUIET_BYTES];
	uint64_t quiet = 99;

	assert_true(log_limit_pass(&limit, 1000, 100, &quiet));
	assert_int_equal(quiet, 0);
	quiet = 99;
	assert_false(log_limit_pass(&limit, 1000, 100, &quiet));
	assert_false(log_limit_pass(&limit, 1099, 100, &quiet));
	assert_int_equal(quiet, 99);
	assert_true(log_limit_pass(&limit, 1100, 100, &quiet));
	assert_int_equal(quiet, 2);
	assert_true(log_limit_pass(&limit, 1200, 100, &quiet));
	assert_int_equal(quiet, 0);
	assert_string_equal(log_quiet(0, more), "");
	assert_string_equal(log_quiet(1, more), " (1 more was not logged)");
	assert_string_equal(log_quiet(UINT64_MAX, more), " (18446744073709551615 more were not logged)");
}

#define LIMIT_TRIES 20000

static struct log_limit shared_limit;

static void *limit_try(void *ctx)
{
	uint64_t *sum = ctx; /* lines written, and lines told of as not written */
	uint64_t quiet;

	for (uint64_t now_ns = 1; now_ns <= LIMIT_TRIES; now_ns++) {
		if (log_limit_pass(&shared_limit, now_ns, 10, &quiet))
			*sum += 1 + quiet;
	}
	return NULL;
}

static void test_limit_loses_no_count_between_threads(void **state)
{
	uint64_t sum[2] = {0, 0};
	pthread_t threads[2];
	uint64_t quiet;

	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, limit_try, &sum[i]), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	assert_true(log_limit_pass(&shared_limit, 10 * LIMIT_TRIES, 10, &quiet));
	assert_int_equal(sum[0] + sum[1] + quiet, 2 * LIMIT_TRIES);
}

TEST_PROGRAM(test_log)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_silent_without_sink),
		cmocka_unit_test(test_says_that_it_has_warned),
		cmocka_unit_test(test_line_reaches_the_sink),
		cmocka_unit_test(test_level_filters),
		cmocka_unit_test(test_level_by_name),
		cmocka_unit_test(test_long_and_hostile_lines),
		cmocka_unit_test(test_stderr_sink_writes_one_line),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_limit_loses_no_count_between_threads),
	};

	return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
