/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunking: one walk over the key table, done twice: once to check and count (chunking_size), once to fill the tables
 * (chunking_plan). A large key costs one step in the first walk, so a hostile table cannot buy time or memory with it.
 */
#include "topology/chunking.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

/* The state of a walk. `plan` is NULL while sizes are counted. */
struct chunking_walk {
	struct chunk_plan *plan;
	uint64_t end_bytes; /* end of the last chunk in the region */
	uint64_t payload_bytes;
	uint32_t chunk_bytes;
	uint32_t chunk_count;
	uint32_t open_bytes; /* bytes in the chunk that smaller keys may still join; 0: none is open */
	uint16_t open_group;
	uint8_t open_dtype;
	bool open_sparse;
};

uint32_t chunking_dtype_bytes(uint8_t dtype)
{
	switch (dtype) {
	case CHUNK_F32:
		return 4;
	case CHUNK_F16:
	case CHUNK_BF16:
		return 2;
	default:
		return 0;
	}
}

const char *chunking_dtype_name(uint8_t dtype)
{
	static const char *const names[CHUNK_DTYPE_COUNT] = {"f32", "f16", "bf16"};

	return dtype < CHUNK_DTYPE_COUNT ? names[dtype] : "?";
}

static uint64_t chunking_align(uint64_t offset)
{
	return (offset + CHUNKING_ALIGN_BYTES - 1) & ~(uint64_t)(CHUNKING_ALIGN_BYTES - 1);
}

static uint64_t chunking_pieces(uint64_t bytes, uint32_t chunk_bytes)
{
	return bytes / chunk_bytes + (bytes % chunk_bytes != 0);
}

static int chunking_check_key(const struct chunk_key *key, uint32_t index, struct err *e)
{
	uint32_t element_bytes = chunking_dtype_bytes(key->dtype);

	if (element_bytes == 0)
		return err_set(e, -EINVAL, "key %" PRIu32 " has dtype %u; allowed are 0 (f32), 1 (f16) and 2 (bf16)",
			index, key->dtype);
	if (key->elements == 0)
		return err_set(
			e, -EINVAL, "key %" PRIu32 " has 0 elements; leave empty tensors out of the key table", index);
	if (key->elements > UINT64_MAX / element_bytes)
		return err_set(e, -EOVERFLOW,
			"key %" PRIu32 " has %" PRIu64 " elements, whose bytes do not fit 64 bits", index,
			key->elements);
	return 0;
}

/* Put a key into the open chunk. The caller made sure that it fits. */
static void chunking_join(struct chunking_walk *walk, uint32_t index, uint32_t bytes)
{
	struct chunk_plan *plan = walk->plan;

	if (plan) {
		struct chunk_span *chunk = &plan->chunks[walk->chunk_count - 1];

		chunk->bytes += bytes;
		chunk->key_count++;
		plan->key_offset[index] = walk->end_bytes;
		plan->key_chunk[index] = walk->chunk_count - 1;
	}
	walk->open_bytes += bytes;
	walk->end_bytes += bytes;
}

/* Start `pieces` chunks, the last one maybe shorter, that hold one key from its first byte to its last. */
static void chunking_start(
	struct chunking_walk *walk, const struct chunk_key *key, uint32_t index, uint64_t bytes, uint32_t pieces)
{
	struct chunk_plan *plan = walk->plan;
	uint64_t start = chunking_align(walk->end_bytes);

	if (plan) {
		uint64_t left = bytes;

		plan->key_offset[index] = start;
		plan->key_chunk[index] = walk->chunk_count;
		for (uint32_t i = 0; i < pieces; i++) {
			uint32_t piece = left < walk->chunk_bytes ? (uint32_t)left : walk->chunk_bytes;

			plan->chunks[walk->chunk_count + i] = (struct chunk_span){
				.offset = start + (bytes - left),
				.bytes = piece,
				.key_first = index,
				.key_count = 1,
				.group = key->group,
				.dtype = key->dtype,
				.sparse = key->sparse,
			};
			left -= piece;
		}
	}
	walk->chunk_count += pieces;
	walk->end_bytes = start + bytes;
	walk->open_bytes = 0;
	if (bytes < walk->chunk_bytes && !key->alone) {
		walk->open_bytes = (uint32_t)bytes;
		walk->open_dtype = key->dtype;
		walk->open_group = key->group;
		walk->open_sparse = key->sparse;
	}
}

static int chunking_walk_key(struct chunking_walk *walk, const struct chunk_key *key, uint32_t index, struct err *e)
{
	int rc = chunking_check_key(key, index, e);
	if (rc < 0)
		return rc;

	uint64_t bytes = key->elements * chunking_dtype_bytes(key->dtype);
	bool joins = walk->open_bytes > 0 && !key->alone && key->dtype == walk->open_dtype &&
		     key->group == walk->open_group && key->sparse == walk->open_sparse &&
		     bytes <= walk->chunk_bytes - walk->open_bytes;

	if (joins) {
		chunking_join(walk, index, (uint32_t)bytes);
	} else {
		uint64_t pieces = chunking_pieces(bytes, walk->chunk_bytes);

		if (pieces > UINT32_MAX - walk->chunk_count)
			return err_set(e, -EOVERFLOW,
				"key %" PRIu32 " of %" PRIu64 " bytes brings the chunks beyond 32 bits; "
				"use chunks larger than %" PRIu32 " bytes or fewer keys",
				index, bytes, walk->chunk_bytes);
		chunking_start(walk, key, index, bytes, (uint32_t)pieces);
	}
	/* At most 2^32 chunks of 2 MiB: no sum of bytes comes near 64 bits from here on. */
	walk->payload_bytes += bytes;
	return 0;
}

int chunking_size(
	const struct chunk_key *keys, uint32_t key_count, uint32_t chunk_bytes, struct chunk_size *out, struct err *e)
{
	struct chunking_walk walk = {.chunk_bytes = chunk_bytes};
	bool power = chunk_bytes != 0 && (chunk_bytes & (chunk_bytes - 1)) == 0;

	if (!power || chunk_bytes < CHUNKING_CHUNK_BYTES_MIN || chunk_bytes > CHUNKING_CHUNK_BYTES_MAX)
		return err_set(e, -EINVAL, "a chunk of %" PRIu32 " bytes; allowed are powers of two from %u to %u",
			chunk_bytes, CHUNKING_CHUNK_BYTES_MIN, CHUNKING_CHUNK_BYTES_MAX);
	if (key_count == 0)
		return err_set(e, -EINVAL, "the key table is empty; a job needs at least one key");
	for (uint32_t i = 0; i < key_count; i++) {
		int rc = chunking_walk_key(&walk, &keys[i], i, e);

		if (rc < 0)
			return rc;
	}
	*out = (struct chunk_size){
		.chunk_count = walk.chunk_count,
		.region_bytes = chunking_align(walk.end_bytes),
		.payload_bytes = walk.payload_bytes,
	};
	return 0;
}

int chunking_plan(
	const struct chunk_key *keys, uint32_t key_count, uint32_t chunk_bytes, struct chunk_plan *out, struct err *e)
{
	struct chunk_size size;
	int rc = chunking_size(keys, key_count, chunk_bytes, &size, e);
	if (rc < 0)
		return rc;

	struct chunk_plan plan = {
		.chunks = calloc(size.chunk_count, sizeof(*plan.chunks)),
		.key_offset = calloc(key_count, sizeof(*plan.key_offset)),
		.key_chunk = calloc(key_count, sizeof(*plan.key_chunk)),
		.region_bytes = size.region_bytes,
		.payload_bytes = size.payload_bytes,
		.chunk_count = size.chunk_count,
		.key_count = key_count,
		.chunk_bytes = chunk_bytes,
	};
	if (!plan.chunks || !plan.key_offset || !plan.key_chunk) {
		chunking_plan_fini(&plan);
		return err_set(e, -ENOMEM, "no memory for the table of %" PRIu32 " chunks and %" PRIu32 " keys",
			size.chunk_count, key_count);
	}

	struct chunking_walk walk = {.plan = &plan, .chunk_bytes = chunk_bytes};
	for (uint32_t i = 0; i < key_count; i++) {
		rc = chunking_walk_key(&walk, &keys[i], i, e);
		assert(rc == 0 && "the second walk sees what the first one checked");
	}
	assert(walk.chunk_count == plan.chunk_count);
	for (uint32_t i = 0; i < plan.chunk_count; i++)
		plan.sparse_bytes += chunking_sparse_bytes(&plan.chunks[i]);
	*out = plan;
	return 0;
}

void chunking_plan_fini(struct chunk_plan *plan)
{
	free(plan->chunks);
	free(plan->key_offset);
	free(plan->key_chunk);
	*plan = (struct chunk_plan){0};
}

int chunking_widen(struct chunk_plan *plan)
{
	uint32_t key = 0;
	uint64_t end = 0;

	for (uint32_t i = 0; i < plan->chunk_count; i++)
		if (plan->chunks[i].bytes / chunking_dtype_bytes(plan->chunks[i].dtype) > CHUNKING_CHUNK_BYTES_MAX / 4)
			return -EMSGSIZE;
	plan->payload_bytes = 0;
	for (uint32_t i = 0; i < plan->chunk_count; i++) {
		struct chunk_span *chunk = &plan->chunks[i];
		uint32_t times = 4 / chunking_dtype_bytes(chunk->dtype);
		uint64_t start = chunking_align(end);

		/* Keys that begin in this chunk. */
		for (; key < plan->key_count && plan->key_chunk[key] == i; key++)
			plan->key_offset[key] = start + (plan->key_offset[key] - chunk->offset) * times;
		chunk->offset = start;
		chunk->bytes *= times;
		chunk->dtype = CHUNK_F32;
		plan->payload_bytes += chunk->bytes;
		end = start + chunk->bytes;
	}
	plan->region_bytes = chunking_align(end);
	return 0;
}

uint64_t chunking_sparse_bytes(const struct chunk_span *span)
{
	return span->sparse ? chunking_align(span->bytes) : 0;
}

uint32_t chunking_key_chunk_count(const struct chunk_plan *plan, uint64_t elements, uint8_t dtype)
{
	return (uint32_t)chunking_pieces(elements * chunking_dtype_bytes(dtype), plan->chunk_bytes);
}
