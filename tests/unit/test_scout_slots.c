/* SPDX-License-Identifier: Apache-2.0 */
/* What sites tell each other goes through sums of fp32 unchanged, and what is none of it says nothing. */
#include "client/scout/slots.h"

#include "tests/unit/cmocka_shim.h"

#include <math.h>
#include <string.h>

enum { WORLD = 4, TENSORS = 2 };

static void sum_into(float *sum, const float *part, size_t count)
{
	for (size_t i = 0; i < count; i++)
		sum[i] += part[i];
}

static void test_words(void **state)
{
	const uint64_t words[] = {0, 1, (1u << 24) - 1, 1u << 24, UINT32_MAX, UINT64_C(1) << 48, UINT64_MAX,
		scout_word_of(NAN), scout_word_of(-INFINITY), scout_word_of(0.1), scout_word_of(-0.0)};
	float packed[SCOUT_WORD_FLOATS];
	uint64_t word;

	for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		scout_word_pack(words[i], packed);
		for (unsigned k = 0; k < SCOUT_WORD_FLOATS; k++)
			assert_true(packed[k] >= 0 && packed[k] < 16777216);
		assert_true(scout_word_unpack(packed, &word));
		assert_int_equal(word, words[i]);
	}
	assert_true(isnan(scout_word_double(scout_word_of(NAN))));
	assert_int_equal(scout_word_of(0.0), 0);
}

/* Not whole, not 24 bits, below 0, no number, more than 64 bits. */
static void test_no_words(void **state)
{
	const float bad[][SCOUT_WORD_FLOATS] = {
		{0.5f, 0, 0}, {16777216, 0, 0}, {0, -1, 0}, {0, NAN, 0}, {INFINITY, 0, 0}, {0, 0, 65536}};
	uint64_t word = 7;

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_false(scout_word_unpack(bad[i], &word));
		assert_int_equal(word, 0);
	}
}

static void test_bytes(void **state)
{
	uint8_t in[100], out[100];
	float packed[SCOUT_BYTES_FLOATS(100)];

	for (unsigned i = 0; i < sizeof(in); i++)
		in[i] = (uint8_t)(i * 37 + 255);
	for (size_t bytes = 0; bytes <= sizeof(in); bytes++) {
		memset(out, 0xee, sizeof(out));
		scout_bytes_pack(in, bytes, packed);
		assert_true(scout_bytes_unpack(packed, bytes, out));
		assert_memory_equal(in, out, bytes);
		assert_true(bytes == sizeof(out) || out[bytes] == 0xee);
	}
	packed[3] = NAN;
	assert_false(scout_bytes_unpack(packed, sizeof(out), out));
}

/* Whoever owns the model and whoever has tried it each write their part. */
static void test_report_of_two(void **state)
{
	const struct scout_report owner = {.home = 0.9,
		.bytes = UINT64_C(123456789012345),
		.within = 77,
		.unfit = SCOUT_STRANGE,
		.called = 3,
		.host = 4};
	const struct scout_report host = {.away = 1.0 / 3, .samples = 400, .alike = true};
	float sum[SCOUT_REPORT_FLOATS], part[SCOUT_REPORT_FLOATS];
	struct scout_report both;

	scout_report_pack(&owner, sum);
	scout_report_pack(&host, part);
	sum_into(sum, part, SCOUT_REPORT_FLOATS);
	scout_report_unpack(sum, &both);
	assert_true(both.home == owner.home && both.away == host.away);
	assert_int_equal(both.samples, 400);
	assert_int_equal(both.bytes, owner.bytes);
	assert_int_equal(both.within, 77);
	assert_true(both.alike);
	assert_int_equal(both.unfit, SCOUT_STRANGE);
	assert_true(both.called == 0 && both.host == 0); /* are not said */
	scout_word_pack(UINT64_C(1) << 40, sum + SCOUT_REPORT_FLOATS - SCOUT_WORD_FLOATS);
	scout_report_unpack(sum, &both);
	assert_int_equal(both.unfit, SCOUT_BROKEN); /* of what reasons are not known */
	sum[0] = NAN;
	scout_report_unpack(sum, &both);
	assert_int_equal(both.samples, 0);
	assert_int_equal(both.bytes, 0);
}

static void test_slots(void **state)
{
	static float sum[WORLD * SLOT_FLOATS + NEWS_FLOATS + TENSORS],
		part[WORLD * SLOT_FLOATS + NEWS_FLOATS + TENSORS];
	struct slots_news news = {.theta = 0.1, .window = 500, .run = UINT64_C(1) << 52, .since = 77, .rate = 0.05},
			  heard;
	struct scout_report report;
	struct slot slot;

	assert_int_equal(slots_floats(WORLD, TENSORS), sizeof(sum) / sizeof(sum[0]));
	memset(news.scout, 0xa5, sizeof(news.scout));
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		const struct slot own = {SLOT_HERE | rank * SLOT_HELLO, 1000 + rank, UINT64_C(1) << 40, 7 * rank,
			UINT32_MAX - rank, 1.5 + rank, 2 + rank, 9 * rank, UINT64_C(5) << 40, UINT64_C(6) << 40, rank,
			UINT64_MAX - rank, UINT64_C(7) << 40 | rank};

		memset(part, 0, sizeof(part));
		if (rank == 1)
			continue; /* it is not there */
		slots_put(part, rank, &own);
		slots_put_report(part, rank, &(struct scout_report){.home = 0.5 + rank});
		slots_put_report(part, (rank + 1) % WORLD, &(struct scout_report){.away = 0.25, .samples = 9});
		slots_put_said(part, WORLD, 1, 0.5 + rank);
		if (rank == 2)
			slots_put_news(part, WORLD, &news);
		sum_into(sum, part, sizeof(sum) / sizeof(sum[0]));
	}
	slots_get(sum, 1, &slot);
	assert_int_equal(slot.flags, 0);
	slots_get(sum, 3, &slot);
	assert_int_equal(slot.flags, SLOT_HERE | 3 * SLOT_HELLO);
	assert_int_equal(slot.steps, 1003);
	assert_int_equal(slot.exchanges, UINT64_C(1) << 40);
	assert_int_equal(slot.samples, 21);
	assert_int_equal(slot.check, UINT32_MAX - 3);
	assert_true(slot.said == 4.5);
	assert_int_equal(slot.alike, 5);
	assert_int_equal(slot.broken, 27);
	assert_true(slot.bytes == UINT64_C(5) << 40 && slot.within == UINT64_C(6) << 40 && slot.wire == 3);
	assert_true(slot.terms == UINT64_MAX - 3 && slot.around == (UINT64_C(7) << 40 | 3));
	slots_get_report(sum, 3, &report);
	assert_true(report.home == 3.5 && report.away == 0.25);
	assert_int_equal(report.samples, 9);
	assert_true(slots_get_news(sum, WORLD, &heard));
	assert_true(heard.theta == 0.1);
	assert_int_equal(heard.window, 500);
	assert_true(heard.run == UINT64_C(1) << 52 && heard.since == 77);
	assert_true(heard.rate == news.rate);
	assert_memory_equal(heard.scout, news.scout, sizeof(news.scout));
	assert_true(slots_get_said(sum, WORLD, 0) == 0 && slots_get_said(sum, WORLD, 1) == 0.5 + 2.5 + 3.5);
	sum[WORLD * SLOT_FLOATS] = 0.5f;
	assert_false(slots_get_news(sum, WORLD, &heard));
	sum[3 * SLOT_FLOATS + 1] = -1;
	slots_get(sum, 3, &slot);
	assert_int_equal(slot.flags, 0);
	sum[0] = 2 * SLOT_FLAGS;
	slots_get(sum, 0, &slot);
	assert_int_equal(slot.flags, 0);
}

/* Whatever is said of a tensor, a sum of it is a number, which a job that forbids others takes. */
static void test_what_is_no_number_is_not_said(void **state)
{
	const double bad[] = {NAN, INFINITY, -INFINITY, -1, 1e300};
	static float part[WORLD * SLOT_FLOATS + NEWS_FLOATS + TENSORS];
	float sum;

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		slots_put_said(part, WORLD, 1, bad[i]);
		sum = 0;
		for (unsigned rank = 0; rank < WORLD; rank++)
			sum += (float)slots_get_said(part, WORLD, 1);
		assert_true(isfinite(sum) && sum >= 0);
		assert_true((sum > 0) == (bad[i] > 1));
	}
}

TEST_PROGRAM(test_scout_slots)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_words),
		cmocka_unit_test(test_no_words),
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_report_of_two),
		cmocka_unit_test(test_slots),
		cmocka_unit_test(test_what_is_no_number_is_not_said),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
