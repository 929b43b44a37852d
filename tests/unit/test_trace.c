/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/base/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"

static const char *name_of(uint64_t id)
{
	return id == 1 ? "push" : NULL;
}

/* The dump as a string, for the caller to free; `count` is what trace_dump() returned. */
static char *dump(const struct trace *trace, uint64_t *count)
{
	char *text = NULL;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);

	assert_non_null(out);
	*count = trace_dump(trace, out, name_of);
	fclose(out);
	return text;
}

static void check_dump(const struct trace *trace, const char *wanted)
{
	uint64_t count, lines = 0;
	char *text = dump(trace, &count);

	for (const char *c = wanted; *c; c++)
		lines += *c == '\n';
	assert_string_equal(text, wanted);
	assert_int_equal(count, lines);
	free(text);
}

static void test_off(void **state)
{
	struct trace trace = {.events = NULL};

	trace_add(&trace, 1, 1, 2, 3, 4);
	check_dump(&trace, "");
	assert_int_equal(trace_init(&trace, 0), 0);
	trace_add(&trace, 1, 1, 2, 3, 4);
	check_dump(&trace, "");
	trace_fini(&trace);
}

static void test_init_errors(void **state)
{
	struct trace trace;

	assert_int_equal(trace_init(&trace, TRACE_EVENTS_MAX + 1), -EINVAL);
	trace_add(&trace, 1, 1, 2, 3, 4); /* a trace that failed is off */
	trace_fini(&trace);
}

static void test_dump(void **state)
{
	struct trace trace;

	assert_int_equal(trace_init(&trace, 4), 0);
	check_dump(&trace, "");
	trace_add(&trace, 1000, 1, 2, 3, 4);
	trace_add(&trace, UINT64_MAX, 9, 0, 0, UINT64_MAX);
	check_dump(&trace, "1000 push 2 3 4\n18446744073709551615 9 0 0 18446744073709551615\n");
	trace_fini(&trace);
	check_dump(&trace, "");
}

static void test_ring_keeps_the_newest(void **state)
{
	struct trace trace;

	assert_int_equal(trace_init(&trace, 3), 0); /* rounded up to 4, of which the dump trusts 3 once it is full */
	for (uint64_t i = 0; i < 3; i++)
		trace_add(&trace, i, 1, 0, 0, 0);
	check_dump(&trace, "0 push 0 0 0\n1 push 0 0 0\n2 push 0 0 0\n");
	for (uint64_t i = 3; i < 100; i++)
		trace_add(&trace, i, 1, 0, 0, 0);
	check_dump(&trace, "97 push 0 0 0\n98 push 0 0 0\n99 push 0 0 0\n");
	trace_fini(&trace);
}

#define EVENTS 200000

static struct trace shared;
static _Atomic bool writer_done;

static void *write_events(void *ctx)
{
	for (uint64_t i = 0; i < EVENTS; i++)
		trace_add(&shared, i, i ^ 1, i ^ 2, i ^ 3, i ^ 4);
	atomic_store(&writer_done, true);
	return NULL;
}

/* A dump beside a writer holds whole events only, in order. */
static void test_dump_while_written(void **state)
{
	pthread_t writer;
	bool done;

	assert_int_equal(trace_init(&shared, 64), 0);
	assert_int_equal(pthread_create(&writer, NULL, write_events, NULL), 0);
	do {
		uint64_t count, last = 0, w[TRACE_WORDS];

		done = atomic_load(&writer_done);
		char *text = dump(&shared, &count);
		char *at = text;
		for (uint64_t line = 0; line < count; line++) {
			for (int i = 0; i < TRACE_WORDS; i++) {
				if (i == 1 && strncmp(at, " push", 5) == 0) {
					w[i] = 1;
					at += 5;
				} else {
					w[i] = strtoull(at, &at, 10);
				}
			}
			assert_true(
				w[1] == (w[0] ^ 1) && w[2] == (w[0] ^ 2) && w[3] == (w[0] ^ 3) && w[4] == (w[0] ^ 4));
			assert_true(line == 0 || w[0] > last);
			last = w[0];
		}
		free(text);
		assert_true(!done || last == EVENTS - 1);
	} while (!done);
	pthread_join(writer, NULL);
	trace_fini(&shared);
}

TEST_PROGRAM(test_trace)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_off),
		cmocka_unit_test(test_init_errors),
		cmocka_unit_test(test_dump),
		cmocka_unit_test(test_ring_keeps_the_newest),
		cmocka_unit_test(test_dump_while_written),
	};

	return cmocka_run_group_tests_name("trace", tests, NULL, NULL);
}
