/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Associations: what is one as text, and that sums are made by it, whatever comes first.
 */
#include "phub/association.h"

#include "phub/members.h"
#include "tests/unit/chunk_rig.h"
#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static void test_text(void **state)
{
	static const struct {
		const char *text, *written;
		uint32_t world, depth;
	} cases[] = {
		{"[0]", "[0]", 1, 0},
		{"[0-3]", "[0-3]", 4, 0},
		{"[3,2,1,0]", "[3,2,1,0]", 4, 0},
		{"[ [0 ,1], [2 , 3 ] ]", "[[0,1],[2,3]]", 4, 1},
		{"[[0,1,2,3],[4-7]]", "[[0-3],[4-7]]", 8, 1},
		{"[3,[0,1,[2,4]]]", "[3,[0,1,[2,4]]]", 5, 2},
		{"[[[[[[[[[0]]]]]]]],1]", "[[[[[[[[[0]]]]]]]],1]", 2, 8},
	};
	char text[64];

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct association *a = NULL;
		struct err e = {0};

		assert_int_equal(association_parse(cases[i].text, cases[i].world, &a, &e), 0);
		assert_string_equal(association_write(a, text, sizeof(text)), cases[i].written);
		assert_int_equal(a->depth, cases[i].depth);
		free(a);
	}
}

static void test_no_room(void **state)
{
	struct association *a = NULL;
	char text[12];

	assert_int_equal(association_parse("[[0,2],[1,3],[4,6],[5,7]]", 8, &a, NULL), 0);
	assert_string_equal(association_write(a, text, sizeof(text)), "[[0,2],[...");
	free(a);
}

static void test_wrong_text(void **state)
{
	static const struct {
		const char *text, *says;
	} cases[] = {
		{"", "no list at character 1"},
		{"0,1,2,3", "no list at character 1"},
		{"[0-3", "a list without an end at character 5"},
		{"[0-3]]", "more than one list"},
		{"[0-3],", "more than one list"},
		{"[0,1,2]", "rank 3 is missing"},
		{"[0-3,2]", "rank 2 is in it twice"},
		{"[0-4]", "rank 4 of a world of 4"},
		{"[0-99999999999999999999]", "of a world of 4"},
		{"[3-0]", "a range that goes down"},
		{"[0-3,]", "nothing behind a comma"},
		{"[,0-3]", "nothing before a comma"},
		{"[0,,1]", "nothing before a comma"},
		{"[0 1]", "a comma is missing"},
		{"[[0][1]]", "a comma is missing"},
		{"[[],0-3]", "an empty list"},
		{"[]", "an empty list"},
		{"[0-3;]", "a comma is missing"},
		{"[-1]", "no rank"},
		{"[[[[[[[[[[0]]]]]]]]],1-3]", "more than 8 lists in each other"},
	};
	char *long_text = malloc(ASSOCIATION_TEXT_BYTES + 1);
	struct association *a = NULL;
	struct err e = {0};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(association_parse(cases[i].text, 4, &a, &e), -EINVAL);
		if (!strstr(e.text, cases[i].says))
			fail_msg("%s: %s", cases[i].text, e.text);
		assert_null(a);
	}
	memset(long_text, '[', ASSOCIATION_TEXT_BYTES);
	long_text[ASSOCIATION_TEXT_BYTES] = '\0';
	assert_int_equal(association_parse(long_text, 4, &a, &e), -EINVAL);
	assert_non_null(strstr(e.text, "longer than"));
	free(long_text);
}

/* Numbers of which each order of adding has a sum of its own. */
static const float numbers[] = {1e8f, 5.0f, -1e8f, 2.0f};

static float opened(const char *text, unsigned hold_max, const uint32_t order[4], uint32_t lost)
{
	struct bench *b = bench_new();
	struct association *a = NULL;
	float sum;

	assert_int_equal(association_parse(text, 4, &a, NULL), 0);
	b->spec.reproducible = true;
	b->spec.association = a;
	bench_open(b, 4, hold_max);
	if (lost < 4)
		members_await(b->shard, (const uint64_t[]){UINT64_C(1) << lost}, NULL);
	for (uint32_t rank = 0; rank < 4; rank++)
		b->data[rank][0] = numbers[rank];
	for (unsigned k = 0; k < 4; k++)
		if (order[k] != lost)
			bench_push(b, order[k], WIRE_PUSH, 1, 0, hold_max > 0);
	sum = bench_result(b, 0);
	assert_true(b->chunk->round == 2);
	assert_int_equal(b->shard->stage_free, b->shard->stage_count);
	assert_int_equal(b->shard->sum_free, b->shard->sum_count);
	bench_complete(b);
	bench_close(b);
	free(a);
	return sum;
}

static void test_sums(void **state)
{
	static const uint32_t orders[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}};
	const float *n = numbers;

	for (unsigned i = 0; i < 4; i++) {
		for (unsigned hold = 0; hold < 3; hold++) {
			unsigned hold_max = hold == 2 ? UINT_MAX : hold;

			assert_true(opened("[[0,1],[2,3]]", hold_max, orders[i], 4) == (n[0] + n[1]) + (n[2] + n[3]));
			assert_true(opened("[[0,2],[1,3]]", hold_max, orders[i], 4) == (n[0] + n[2]) + (n[1] + n[3]));
			assert_true(opened("[3,[1,[0,2]]]", hold_max, orders[i], 4) == n[3] + (n[1] + (n[0] + n[2])));
			assert_true(opened("[2,1,0,3]", hold_max, orders[i], 4) == ((n[2] + n[1]) + n[0]) + n[3]);
			/* Of a list whose ranks are all lost nothing is added. */
			assert_true(opened("[[0,1],[2],3]", hold_max, orders[i], 2) == (n[0] + n[1]) + n[3]);
		}
	}
	assert_true((n[0] + n[1]) + (n[2] + n[3]) != (n[0] + n[2]) + (n[1] + n[3]));
}

TEST_PROGRAM(test_association)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_no_room),
		cmocka_unit_test(test_wrong_text),
		cmocka_unit_test(test_sums),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
