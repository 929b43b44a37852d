/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunking: from a job's key table to its chunk table. Box and client both call it on the same keys and must get the
 * same chunks, so this is arithmetic on plain structs and the rules below are part of the protocol:
 *  1. Keys keep their order. A key is contiguous in the region; every chunk is contiguous and starts 64-byte aligned.
 *  2. A key of at least chunk_bytes, or an `alone` one, starts a chunk, is cut into pieces of chunk_bytes, and its tail
 *     is a chunk of its own: nothing else shares those chunks.
 *  3. A smaller key joins the open chunk when it is sparse or not as that is, dtype and group are equal and it fits
 *     entirely, else it opens the next.
 */
#ifndef PHUB_TOPOLOGY_CHUNKING_H
#define PHUB_TOPOLOGY_CHUNKING_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"

#define CHUNKING_CHUNK_BYTES_DEFAULT 32768u
#define CHUNKING_CHUNK_BYTES_MIN     4096u
#define CHUNKING_CHUNK_BYTES_MAX     (2u << 20)
#define CHUNKING_ALIGN_BYTES         64u

/* The values go on the wire in key tables; never renumber. */
enum chunk_dtype {
	CHUNK_F32 = 0,
	CHUNK_F16 = 1,
	CHUNK_BF16 = 2,
	CHUNK_DTYPE_COUNT = 3,
};

/* One tensor, as the framework knows it, in the job's order. */
struct chunk_key {
	uint64_t elements; /* at least 1 */
	uint8_t dtype;     /* enum chunk_dtype */
	uint16_t group;    /* parameter group: keys of different groups never share a chunk */
	bool alone;        /* never shares a chunk with another key */
	bool sparse;       /* its zeros need not travel: never shares a chunk with a key whose zeros do */
};

/* One chunk: `bytes` of the region at `offset`, holding keys key_first .. key_first + key_count - 1 (whole, or a piece
 * of one key when key_count is 1). */
struct chunk_span {
	uint64_t offset; /* bytes from the start of the job's region, 64-byte aligned */
	uint32_t bytes;  /* 1 .. chunk_bytes, a multiple of the element size */
	uint32_t key_first;
	uint32_t key_count;
	uint16_t group;
	uint8_t dtype;
	bool sparse; /* as its keys */
};

/* What a plan will need, known before any memory is taken. */
struct chunk_size {
	uint32_t chunk_count;
	uint64_t region_bytes;  /* where the last chunk ends, rounded up to 64 */
	uint64_t payload_bytes; /* sum of all keys, without the padding between chunks */
};

struct chunk_plan {
	struct chunk_span *chunks; /* chunk_count of them, ascending offset */
	uint64_t *key_offset;      /* key_count: bytes from the start of the region */
	uint32_t *key_chunk;       /* key_count: the first chunk that holds the key */
	uint64_t region_bytes;
	uint64_t payload_bytes;
	uint64_t sparse_bytes; /* of the sparse chunks, each rounded up to 64; 0: there are none */
	uint32_t chunk_count;
	uint32_t key_count;
	uint32_t chunk_bytes;
};

/* Bytes of one element, or 0 when `dtype` is none of enum chunk_dtype. Any thread. */
uint32_t chunking_dtype_bytes(uint8_t dtype);

/* "f32", "f16", "bf16", or "?". Any thread. */
const char *chunking_dtype_name(uint8_t dtype);

/* Check a key table and size its plan: O(key_count) whatever the keys claim, no memory taken, so that a box can refuse
 * a job whose plan would be too large. chunk_bytes is a power of two, 4 KiB .. 2 MiB. Any thread; does not block.
 * Returns 0 and fills *out, or a negative errno with *e naming the key index: -EINVAL (no keys, 0 elements, unknown
 * dtype, chunk_bytes not allowed), -EOVERFLOW (bytes beyond 64 bits or chunks beyond 32). */
int chunking_size(
	const struct chunk_key *keys, uint32_t key_count, uint32_t chunk_bytes, struct chunk_size *out, struct err *e);

/* Plan the chunks. On success *out owns its tables until chunking_plan_fini(); on failure it is untouched.
 * Errors: those of chunking_size(), and -ENOMEM. Any thread; may allocate, does not block. */
int chunking_plan(
	const struct chunk_key *keys, uint32_t key_count, uint32_t chunk_bytes, struct chunk_plan *out, struct err *e);

/* Free the tables of *plan and clear it. A zeroed plan is allowed. */
void chunking_plan_fini(struct chunk_plan *plan);

/* The same chunks of the same elements, with payloads of fp32. 0, or -EMSGSIZE and nothing is changed: a chunk would
 * have more than CHUNKING_CHUNK_BYTES_MAX. */
int chunking_widen(struct chunk_plan *plan);

/* What a sparse chunk adds to chunk_plan.sparse_bytes; another: 0. */
uint64_t chunking_sparse_bytes(const struct chunk_span *span);

/* How many consecutive chunks, from key_chunk[key] on, hold the key of `elements` elements and `dtype`. */
uint32_t chunking_key_chunk_count(const struct chunk_plan *plan, uint64_t elements, uint8_t dtype);

#endif
