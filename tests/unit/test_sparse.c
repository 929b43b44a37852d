/* SPDX-License-Identifier: Apache-2.0 */
/* The coding of chunks with zeros: what is coded comes back bit by bit, is the shortest of three, and nothing else is
 * taken. */
#include "aggregation/sparse.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ELEMENTS 9000u

static uint64_t seed = 1;

static uint32_t draw(uint32_t below)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(seed >> 33) % below;
}

/* Elements of which each is something with a chance of `in_1000`; -0, NaN and infinity are among them. */
static void fill(uint8_t *data, enum dtype dtype, size_t count, uint32_t in_1000)
{
	static const uint32_t odd[] = {0x80000000u, 0x7fc00001u, 0x7f800000u, 1u};
	size_t size = dtype_size(dtype);

	memset(data, 0, count * size);
	for (size_t i = 0; i < count; i++) {
		uint32_t value = draw(8) == 0 ? odd[draw(4)] : draw(0x7fffffff) + 1;

		if (size == 2)
			value = value >> 16 ? value >> 16 : 1;
		if (draw(1000) < in_1000)
			memcpy(data + i * size, &value, size);
	}
}

static size_t filled(const uint8_t *data, enum dtype dtype, size_t count)
{
	static const uint8_t zero[4];
	size_t size = dtype_size(dtype), n = 0;

	for (size_t i = 0; i < count; i++)
		n += memcmp(data + i * size, zero, size) != 0;
	return n;
}

static void one_way_and_back(enum dtype dtype, size_t count, uint32_t in_1000)
{
	size_t size = dtype_size(dtype), values = 0, bytes;
	uint8_t *data = malloc(count * size + 1), *coded = malloc(count * size + 1), *back = malloc(count * size + 1);
	float *sum = calloc(count + 1, sizeof(*sum)), *dense = malloc((count + 1) * sizeof(*dense));

	assert_true(data && coded && back && sum && dense);
	fill(data, dtype, count, in_1000);
	memset(coded, 0xa5, count * size + 1);
	bytes = sparse_encode(coded, data, dtype, count);
	assert_int_equal(coded[count * size], 0xa5); /* nothing behind its room */
	if (bytes > 0) {
		assert_true(bytes < count * size);
		assert_int_equal(sparse_check(coded, bytes, dtype, count, &values), 0);
		assert_int_equal(values, filled(data, dtype, count));
		sparse_decode(back, coded, dtype, count);
		assert_memory_equal(back, data, count * size);
		for (size_t i = 0; i < count; i++)
			sum[i] = (float)i;
		convert_to_f32(dense, data, dtype, count);
		sparse_add(sum, coded, dtype, count);
		for (size_t i = 0; i < count; i++) {
			float wanted = (float)i + dense[i];

			assert_true(sum[i] == wanted || (sum[i] != sum[i] && wanted != wanted));
		}
	} else {
		assert_int_equal(coded[0], count ? 0xa5 : coded[0]); /* as it was */
		assert_true(filled(data, dtype, count) * (size + 1) + SPARSE_HEAD_BYTES + 3 >= count * size);
	}
	free(data);
	free(coded);
	free(back);
	free(sum);
	free(dense);
}

static void test_there_and_back(void **state)
{
	static const uint32_t shares[] = {0, 1, 4, 30, 120, 300, 600, 900, 1000};
	static const size_t counts[] = {0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 127, 128, 1000, 8192, ELEMENTS};

	for (unsigned d = 0; d < DTYPE_COUNT; d++)
		for (unsigned s = 0; s < sizeof(shares) / sizeof(shares[0]); s++)
			for (unsigned c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
				one_way_and_back((enum dtype)d, counts[c], shares[s]);
}

/* The shorter index is taken: gaps up to an element in some eight, then the bitmap, then none. */
static void test_form(void **state)
{
	static float data[8192];
	static uint8_t coded[sizeof(data)];
	size_t bytes;

	memset(data, 0, sizeof(data));
	for (unsigned i = 0; i < 8192; i += 16)
		data[i] = 1;
	bytes = sparse_encode(coded, data, DTYPE_F32, 8192);
	assert_int_equal(bytes, SPARSE_HEAD_BYTES + 512 * 4 + 512);
	assert_int_equal(coded[4], SPARSE_GAPS);
	for (unsigned i = 0; i < 8192; i += 4)
		data[i] = 1;
	bytes = sparse_encode(coded, data, DTYPE_F32, 8192);
	assert_int_equal(bytes, SPARSE_HEAD_BYTES + 2048 * 4 + 1024);
	assert_int_equal(coded[4], SPARSE_BITMAP);
	for (unsigned i = 0; i < 8192; i++)
		data[i] = 1;
	assert_int_equal(sparse_encode(coded, data, DTYPE_F32, 8192), 0);
}

/* Gaps of one, two and three bytes, at the lengths where these change. */
static void test_gaps(void **state)
{
	static const size_t gaps[] = {0, 127, 128, 16383, 16384, 100000};
	size_t count = 200000, bytes;
	uint8_t *data = calloc(count, 2), *coded = malloc(count * 2);
	size_t at = 0;

	assert_true(data && coded);
	for (unsigned i = 0; i < 6; i++) {
		at += gaps[i];
		data[at++ * 2] = 1;
	}
	bytes = sparse_encode(coded, data, DTYPE_BF16, count);
	assert_int_equal(bytes, SPARSE_HEAD_BYTES + 12 + 1 + 1 + 2 + 2 + 3 + 3);
	assert_int_equal(sparse_check(coded, bytes, DTYPE_BF16, count, NULL), 0);
	free(data);
	free(coded);
}

/* What is not what sparse_encode() would have written is refused: each byte that is changed in turn, and each length.
 */
static void test_refused(void **state)
{
	static float data[100];
	static uint8_t coded[sizeof(data)], other[sizeof(data)];
	size_t bytes;

	for (unsigned form = 0; form < 2; form++) {
		memset(data, 0, sizeof(data));
		for (unsigned i = 3; i < 100; i += form == SPARSE_BITMAP ? 3 : 31)
			data[i] = 1.0f + (float)i;
		bytes = sparse_encode(coded, data, DTYPE_F32, 100);
		assert_true(bytes > 0);
		assert_int_equal(coded[4], form);
		for (size_t length = 0; length < sizeof(coded); length++)
			assert_int_equal(
				sparse_check(coded, length, DTYPE_F32, 100, NULL), length == bytes ? 0 : -EBADMSG);
		for (size_t i = 0; i < bytes; i++) {
			for (unsigned bit = 0; bit < 8; bit++) {
				static float back[100];
				static uint8_t again[sizeof(data)];

				memcpy(other, coded, bytes);
				other[i] ^= (uint8_t)(1u << bit);
				if (sparse_check(other, bytes, DTYPE_F32, 100, NULL) < 0)
					continue;
				sparse_decode(back, other, DTYPE_F32, 100); /* another chunk, and its one coding */
				assert_int_equal(sparse_encode(again, back, DTYPE_F32, 100), bytes);
				assert_memory_equal(again, other, bytes);
			}
		}
	}
}

TEST_PROGRAM(test_sparse)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_there_and_back),
		cmocka_unit_test(test_form),
		cmocka_unit_test(test_gaps),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
