/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts are added as they come. Their blocks are looked up in the map only until each has been stored once, by
 * whichever rank's part was the first there: what comes then is one call of the kernel for each part.
 */
#include "phub/parts.h"

#include "phub/base/stats.h"
#include "aggregation/kernels.h"
#include "phub/commit.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

int parts_check(const struct chunk *chunk, const struct contribution *c)
{
	const struct arrival *a = &chunk->arrivals[c->link->rank];
	const struct wire_header *h = c->header;
	bool more = a->state == ARRIVAL_PARTIAL && h->seq == a->seq;
	uint32_t left;

	/*
	 * What an earlier connection left in the sum cannot be taken out again, nor told from what comes anew. So
	 * transports with parts do not reconnect (transport_ops.reconnects); if one did, its worker would end here.
	 */
	if (c->link->again)
		return -EPROTO;
	if (!parts_is(c) || h->round != chunk->round || (a->state != ARRIVAL_NONE && !more))
		return 0;
	left = chunk->bytes - (more ? a->bytes : 0);
	if (c->bytes > left || (c->bytes == left) != c->last)
		return -EPROTO;
	/* The first part was judged: the others say the same. */
	if (more && (h->hyper != a->hyper || (h->type == WIRE_PUSH) != (chunk->kind == ROUND_GRADIENT)))
		return -EPROTO;
	return more;
}

void parts_add(struct chunk *chunk, const struct contribution *c, const void *payload)
{
	struct shard *shard = c->link->shard;
	struct arrival *a = &chunk->arrivals[c->link->rank];

	if (a->state == ARRIVAL_NONE) {
		a->state = ARRIVAL_PARTIAL;
		a->seq = c->header->seq;
		a->bytes = 0;
	}
	parts_sum(chunk, shard, payload, c->offset, c->bytes);
	a->bytes += c->bytes;
	if (a->bytes < chunk->bytes)
		return;
	a->state = ARRIVAL_SUMMED;
	chunk->summed++;
	stats_add(&shard->counters.added, 1);
	chunk->arrived++;
	commit_check(chunk, shard);
}

/* Up to where do blocks, from the first on, say the same of whether they are stored? */
static uint32_t parts_run(const uint64_t *map, uint32_t first, uint32_t end, bool stored)
{
	uint32_t at = first;

	while (at < end) {
		uint64_t differ = (stored ? ~map[at / 64] : map[at / 64]) >> (at % 64);

		if (differ) {
			at += (uint32_t)__builtin_ctzll(differ);
			break;
		}
		at = (at / 64 + 1) * 64;
	}
	return at < end ? at : end;
}

static void parts_mark(uint64_t *map, uint32_t first, uint32_t end)
{
	while (first < end) {
		uint32_t bit = first % 64;
		uint32_t count = end - first < 64 - bit ? end - first : 64 - bit;

		map[first / 64] |= UINT64_MAX >> (64 - count) << bit;
		first += count;
	}
}

/* Some of the accumulator has values: stores where there are none yet, and adds elsewhere. */
static void parts_mix(
	struct chunk *chunk, const struct shard *shard, const uint8_t *payload, uint32_t from, uint32_t to)
{
	enum dtype dtype = (enum dtype)chunk->dtype;
	uint32_t size = (uint32_t)dtype_size(dtype);
	uint32_t end = (to + TRANSPORT_PART_ALIGN - 1) / TRANSPORT_PART_ALIGN, next;

	for (uint32_t block = from / TRANSPORT_PART_ALIGN; block < end; block = next) {
		bool stored = chunk->map[block / 64] >> (block % 64) & 1;
		uint32_t at = block * TRANSPORT_PART_ALIGN, upto;
		float *sum = chunk->sum + at / size;

		next = parts_run(chunk->map, block, end, stored);
		upto = next < end ? next * TRANSPORT_PART_ALIGN : to;
		if (stored) {
			shard->kernels->add(sum, payload + (at - from), dtype, (upto - at) / size);
			continue;
		}
		shard->kernels->store(sum, payload + (at - from), dtype, (upto - at) / size);
		parts_mark(chunk->map, block, next);
		chunk->stored += upto - at;
	}
}

void parts_take(struct chunk *chunk, struct shard *shard, bool whole)
{
	assert(shard->sum_free > 0); /* one for every chunk */
	shard->sum_free--;
	chunk->sum = shard->sums[shard->sum_free];
	chunk->stored = 0;
	if (!shard->maps)
		return;
	chunk->map = shard->maps[shard->sum_free];
	if (!whole)
		memset(chunk->map, 0, parts_map_words(chunk->bytes) * sizeof(*chunk->map));
}

void parts_sum(struct chunk *chunk, struct shard *shard, const void *payload, uint32_t offset, uint32_t bytes)
{
	enum dtype dtype = (enum dtype)chunk->dtype;
	uint32_t size = (uint32_t)dtype_size(dtype);
	bool whole = bytes == chunk->bytes;

	if (!chunk->sum)
		parts_take(chunk, shard, whole);
	if (chunk->kind == ROUND_BROADCAST) {
		memcpy((uint8_t *)chunk->sum + offset, payload, bytes); /* the only one: as it is, not as floats */
		chunk->stored += bytes;
	} else if (chunk->stored == chunk->bytes) {
		shard->kernels->add(chunk->sum + offset / size, payload, dtype, bytes / size);
	} else if (whole && chunk->stored == 0) {
		shard->kernels->store(chunk->sum, payload, dtype, chunk->elements);
		chunk->stored = bytes;
	} else {
		parts_mix(chunk, shard, payload, offset, offset + bytes);
	}
}

void parts_sum_as(struct chunk *chunk, struct shard *shard, const void *payload, enum dtype dtype)
{
	if (chunk->sum) {
		shard->kernels->add(chunk->sum, payload, dtype, chunk->elements);
		return;
	}
	parts_take(chunk, shard, true);
	shard->kernels->store(chunk->sum, payload, dtype, chunk->elements);
	chunk->stored = chunk->bytes;
}

void parts_release(struct chunk *chunk, struct shard *shard)
{
	if (!chunk->sum)
		return;
	shard->sums[shard->sum_free] = chunk->sum;
	if (shard->maps)
		shard->maps[shard->sum_free] = chunk->map;
	shard->sum_free++;
	chunk->sum = NULL;
	chunk->map = NULL;
}
