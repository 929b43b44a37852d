/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunking: the rules of the header one by one, every error of its contract, and random key tables in which every byte
 * of every key is covered exactly once.
 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"
#include "topology/chunking.h"

#define KIB   1024u
#define CHUNK (32 * KIB)

static struct chunk_key key_f32(uint64_t bytes)
{
	return (struct chunk_key){.elements = bytes / 4, .dtype = CHUNK_F32};
}

/* Every byte of every key lies in exactly one chunk, chunks and keys follow each other without overlap, and a chunk
 * holds one dtype and group. */
static void check_plan(const struct chunk_key *keys, const struct chunk_plan *plan)
{
	uint64_t payload = 0, sparse = 0;
	uint64_t end = 0;
	uint32_t key = 0;
	uint64_t key_done = 0; /* bytes of `key` that earlier chunks cover */

	for (uint32_t c = 0; c < plan->chunk_count; c++) {
		const struct chunk_span *chunk = &plan->chunks[c];
		uint64_t at = chunk->offset;

		assert_int_equal(chunk->offset % CHUNKING_ALIGN_BYTES, 0);
		assert_true(chunk->offset >= end && chunk->offset - end < CHUNKING_ALIGN_BYTES);
		assert_true(chunk->bytes > 0 && chunk->bytes <= plan->chunk_bytes);
		assert_int_equal(chunk->key_first, key);
		assert_true(chunk->key_count >= 1);
		for (uint32_t i = 0; i < chunk->key_count; i++) {
			uint64_t key_bytes = keys[key].elements * chunking_dtype_bytes(keys[key].dtype);
			uint64_t room = chunk->offset + chunk->bytes - at;
			uint64_t piece = key_bytes - key_done < room ? key_bytes - key_done : room;

			assert_int_equal(chunk->dtype, keys[key].dtype);
			assert_int_equal(chunk->group, keys[key].group);
			assert_int_equal(chunk->sparse, keys[key].sparse);
			assert_true(plan->key_offset[key] + key_done == at);
			if (key_done == 0)
				assert_int_equal(plan->key_chunk[key], c);
			if (chunk->key_count > 1)
				assert_true(piece == key_bytes && !keys[key].alone);
			at += piece;
			key_done += piece;
			if (key_done == key_bytes) {
				assert_int_equal(c - plan->key_chunk[key] + 1,
					chunking_key_chunk_count(plan, keys[key].elements, keys[key].dtype));
				payload += key_bytes;
				key_done = 0;
				key++;
			}
		}
		assert_true(at == chunk->offset + chunk->bytes);
		sparse += chunking_sparse_bytes(chunk);
		assert_int_equal(chunking_sparse_bytes(chunk), chunk->sparse ? (chunk->bytes + 63) / 64 * 64 : 0);
		end = at;
	}
	assert_int_equal(key, plan->key_count);
	assert_true(payload == plan->payload_bytes);
	assert_true(sparse == plan->sparse_bytes);
	assert_true(plan->region_bytes >= end && plan->region_bytes - end < CHUNKING_ALIGN_BYTES);
	assert_true(plan->region_bytes % CHUNKING_ALIGN_BYTES == 0);
}

static struct chunk_plan plan_ok(const struct chunk_key *keys, uint32_t key_count, uint32_t chunk_bytes)
{
	struct chunk_plan plan;
	struct err e = {0};

	assert_int_equal(chunking_plan(keys, key_count, chunk_bytes, &plan, &e), 0);
	check_plan(keys, &plan);
	return plan;
}

static void test_ten_thousand_small_keys(void **state)
{
	struct chunk_key *keys = calloc(10000, sizeof(*keys));

	for (uint32_t i = 0; i < 10000; i++)
		keys[i] = key_f32(KIB);

	struct chunk_plan plan = plan_ok(keys, 10000, CHUNK);
	assert_int_equal(plan.chunk_count, 313);
	assert_int_equal(plan.chunks[0].key_count, 32);
	assert_int_equal(plan.chunks[312].key_count, 16);
	assert_true(plan.region_bytes == 10000u * KIB);
	chunking_plan_fini(&plan);
	free(keys);
}

static void test_large_key_shares_nothing(void **state)
{
	struct chunk_key keys[] = {key_f32(100), key_f32(3 * CHUNK + 8), key_f32(100), key_f32(CHUNK), key_f32(4)};
	struct chunk_plan plan = plan_ok(keys, 5, CHUNK);

	/* 100 | 32K 32K 32K 8 | 100 | 32K | 4 */
	assert_int_equal(plan.chunk_count, 8);
	assert_int_equal(plan.chunks[0].bytes, 100);
	assert_int_equal(plan.key_chunk[1], 1);
	assert_true(plan.key_offset[1] == 128);
	assert_int_equal(plan.chunks[4].bytes, 8);
	assert_int_equal(plan.key_chunk[2], 5);
	assert_int_equal(plan.key_chunk[3], 6);
	assert_int_equal(plan.key_chunk[4], 7);
	assert_int_equal(chunking_key_chunk_count(&plan, keys[1].elements, keys[1].dtype), 4);
	chunking_plan_fini(&plan);
}

static void test_small_keys_fill_a_chunk_to_the_last_byte(void **state)
{
	struct chunk_key keys[] = {
		key_f32(CHUNK - 8), key_f32(4), key_f32(4), key_f32(4), key_f32(CHUNK - 4), key_f32(8)};
	struct chunk_plan plan = plan_ok(keys, 6, CHUNK);

	assert_int_equal(plan.chunk_count, 3);
	assert_int_equal(plan.chunks[0].bytes, CHUNK);
	assert_int_equal(plan.chunks[0].key_count, 3);
	assert_int_equal(plan.chunks[1].bytes, CHUNK);
	assert_int_equal(plan.chunks[1].key_count, 2);
	assert_int_equal(plan.chunks[2].bytes, 8);
	chunking_plan_fini(&plan);
}

static void test_dtype_group_and_alone_open_a_chunk(void **state)
{
	struct chunk_key keys[] = {
		{.elements = 3, .dtype = CHUNK_F16},
		{.elements = 5, .dtype = CHUNK_F16},
		{.elements = 5, .dtype = CHUNK_BF16},
		{.elements = 5, .dtype = CHUNK_BF16, .group = 1},
		{.elements = 7, .dtype = CHUNK_BF16, .group = 1, .alone = true},
		{.elements = 7, .dtype = CHUNK_BF16, .group = 1},
		{.elements = 7, .dtype = CHUNK_BF16, .group = 1},
	};
	struct chunk_plan plan = plan_ok(keys, 7, CHUNK);
	const uint32_t first[] = {0, 0, 1, 2, 3, 4, 4};

	assert_memory_equal(plan.key_chunk, first, sizeof(first));
	assert_true(plan.key_offset[1] == 6);
	assert_true(plan.key_offset[2] == 64);
	chunking_plan_fini(&plan);
}

static void test_alone_and_large(void **state)
{
	struct chunk_key keys[] = {key_f32(4), key_f32(CHUNK + 4), key_f32(4)};
	keys[1].alone = true;
	struct chunk_plan plan = plan_ok(keys, 3, CHUNK);

	assert_int_equal(plan.chunk_count, 4);
	chunking_plan_fini(&plan);
}

static void test_key_of_five_gib(void **state)
{
	struct chunk_key keys[] = {key_f32(12), key_f32((UINT64_C(5) << 30) + 4), key_f32(12)};
	struct chunk_plan plan = plan_ok(keys, 3, CHUNK);

	assert_int_equal(plan.chunk_count, 1 + 163840 + 1 + 1);
	assert_true(plan.key_offset[2] > UINT64_C(5) << 30);
	assert_true(plan.payload_bytes == (UINT64_C(5) << 30) + 28);
	chunking_plan_fini(&plan);
}

static void test_dtypes(void **state)
{
	assert_int_equal(chunking_dtype_bytes(CHUNK_F32), 4);
	assert_int_equal(chunking_dtype_bytes(CHUNK_F16), 2);
	assert_int_equal(chunking_dtype_bytes(CHUNK_BF16), 2);
	assert_int_equal(chunking_dtype_bytes(CHUNK_DTYPE_COUNT), 0);
	assert_string_equal(chunking_dtype_name(CHUNK_BF16), "bf16");
	assert_string_equal(chunking_dtype_name(200), "?");
}

static void refuse(const struct chunk_key *keys, uint32_t key_count, uint32_t chunk_bytes, int code, const char *part)
{
	struct chunk_plan plan = {.chunk_count = 77};
	struct chunk_size size = {.chunk_count = 77};
	struct err e = {0};

	assert_int_equal(chunking_plan(keys, key_count, chunk_bytes, &plan, &e), code);
	assert_int_equal(plan.chunk_count, 77);
	assert_int_equal(chunking_size(keys, key_count, chunk_bytes, &size, &e), code);
	assert_int_equal(size.chunk_count, 77);
	assert_int_equal(e.code, code);
	if (!strstr(e.text, part))
		fail_msg("\"%s\" does not say \"%s\"", e.text, part);
}

static void test_errors(void **state)
{
	struct chunk_key keys[] = {key_f32(4), key_f32(4), key_f32(4)};
	const uint32_t not_allowed[] = {0, 1, 2 * KIB, 4 * KIB + 1, 3 * 16 * KIB, 4096 * KIB, 1u << 31, UINT32_MAX};

	for (size_t i = 0; i < sizeof(not_allowed) / sizeof(not_allowed[0]); i++)
		refuse(keys, 3, not_allowed[i], -EINVAL, "powers of two from 4096 to 2097152");
	refuse(keys, 0, CHUNK, -EINVAL, "empty");
	keys[2].elements = 0;
	refuse(keys, 3, CHUNK, -EINVAL, "key 2 has 0 elements");
	keys[2] = (struct chunk_key){.elements = 1, .dtype = 9};
	refuse(keys, 3, CHUNK, -EINVAL, "key 2 has dtype 9");
	keys[2] = (struct chunk_key){.elements = UINT64_MAX / 4 + 1, .dtype = CHUNK_F32};
	refuse(keys, 3, CHUNK, -EOVERFLOW, "key 2");
	keys[2].elements = UINT64_MAX / 4;
	refuse(keys, 3, CHUNK, -EOVERFLOW, "32 bits");
	/* 2^32 - 1 chunks are the most: one fits, one more byte in one more key does not. */
	keys[0] = (struct chunk_key){.elements = (uint64_t)UINT32_MAX * (CHUNK / 4), .dtype = CHUNK_F32};
	keys[1].elements = 1;
	refuse(keys, 2, CHUNK, -EOVERFLOW, "key 1");
}

static void test_size_of_a_plan_too_large_to_make(void **state)
{
	struct chunk_key key = {.elements = (uint64_t)UINT32_MAX * (CHUNKING_CHUNK_BYTES_MAX / 2), .dtype = CHUNK_F16};
	struct chunk_size size;
	struct err e = {0};

	assert_int_equal(chunking_size(&key, 1, CHUNKING_CHUNK_BYTES_MAX, &size, &e), 0);
	assert_true(size.chunk_count == UINT32_MAX);
	assert_true(size.region_bytes == (uint64_t)UINT32_MAX * CHUNKING_CHUNK_BYTES_MAX);
}

static uint64_t random_next(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

static uint64_t random_elements(uint64_t *seed, uint32_t chunk_bytes)
{
	switch (random_next(seed) % 8) {
	case 0:
		return 1 + random_next(seed) % (8 * chunk_bytes);
	case 1:
		return chunk_bytes / 4;
	case 2:
		return chunk_bytes / 4 + 1 - random_next(seed) % 3;
	default:
		return 1 + random_next(seed) % 700;
	}
}

static void test_random_plans(void **state)
{
	uint64_t seed = 20240607;
	struct chunk_key keys[300];

	print_message("seed %" PRIu64 "\n", seed);
	for (int round = 0; round < 300; round++) {
		uint32_t chunk_bytes = CHUNKING_CHUNK_BYTES_MIN << random_next(&seed) % 6;
		uint32_t key_count = 1 + (uint32_t)(random_next(&seed) % 300);
		uint32_t kinds = 1 + (uint32_t)(random_next(&seed) % 3);

		for (uint32_t i = 0; i < key_count; i++) {
			keys[i] = (struct chunk_key){
				.elements = random_elements(&seed, chunk_bytes),
				.dtype = (uint8_t)(random_next(&seed) % kinds),
				.group = (uint16_t)(random_next(&seed) % kinds),
				.alone = random_next(&seed) % 16 == 0,
				.sparse = random_next(&seed) % 4 == 0,
			};
		}

		struct chunk_plan plan = plan_ok(keys, key_count, chunk_bytes);
		struct chunk_plan again = plan_ok(keys, key_count, chunk_bytes);
		assert_memory_equal(plan.key_offset, again.key_offset, key_count * sizeof(*plan.key_offset));
		assert_int_equal(plan.chunk_count, again.chunk_count);
		chunking_plan_fini(&plan);
		chunking_plan_fini(&again);
	}
}

static void test_fini_of_nothing(void **state)
{
	struct chunk_plan plan = {0};

	chunking_plan_fini(&plan);
	assert_null(plan.chunks);
}

TEST_PROGRAM(test_chunking)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ten_thousand_small_keys),
		cmocka_unit_test(test_large_key_shares_nothing),
		cmocka_unit_test(test_small_keys_fill_a_chunk_to_the_last_byte),
		cmocka_unit_test(test_dtype_group_and_alone_open_a_chunk),
		cmocka_unit_test(test_alone_and_large),
		cmocka_unit_test(test_key_of_five_gib),
		cmocka_unit_test(test_dtypes),
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_size_of_a_plan_too_large_to_make),
		cmocka_unit_test(test_random_plans),
		cmocka_unit_test(test_fini_of_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
