/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How payloads get into a chunk's accumulator: whole, or in the parts that datagrams carry, of several ranks at a time
 * and in any order. What is stored first needs no zeroing: a map says which blocks of TRANSPORT_PART_ALIGN bytes have
 * a value to add to. A payload that comes whole, to an accumulator with all of its values or with none, reads no map.
 * Owning core only.
 */
#ifndef PHUB_PARTS_H
#define PHUB_PARTS_H

#include "phub/chunk.h"

/* Is this a part of a message, and not all of it? */
static inline bool parts_is(const struct contribution *c)
{
	return c->bytes < c->header->length;
}

/* Words of a map for payloads of so many bytes: a bit for each block. */
static inline uint64_t parts_map_words(uint32_t bytes)
{
	const uint64_t word_bytes = UINT64_C(64) * TRANSPORT_PART_ALIGN;

	return (bytes + word_bytes - 1) / word_bytes;
}

/*
 * Of a part, or of what comes when parts of its rank did. 1: a part of a message of which others were taken. 0: another
 * message, or the first of its parts, to be judged as a whole one is. -EPROTO: no transport gives parts so.
 */
int parts_check(const struct chunk *chunk, const struct contribution *c);

/* Takes a part that belongs to the round; `payload`: it, or what the job's policy on NaN made of it. The last part of
 * the last contribution commits. */
void parts_add(struct chunk *chunk, const struct contribution *c, const void *payload);

/* Takes an accumulator for the chunk, which has none. `whole`: what is put there first has all values. */
void parts_take(struct chunk *chunk, struct shard *shard, bool whole);

/*
 * Adds so many bytes at this offset of a payload to the chunk's accumulator, and takes that when there is none yet.
 * What is broadcast is only put there.
 */
void parts_sum(struct chunk *chunk, struct shard *shard, const void *payload, uint32_t offset, uint32_t bytes);

/* The same of all of a payload of another type than the chunk's, in a job without parts. */
void parts_sum_as(struct chunk *chunk, struct shard *shard, const void *payload, enum dtype dtype);

/* Gives the accumulator back, if there is one. */
void parts_release(struct chunk *chunk, struct shard *shard);

#endif
