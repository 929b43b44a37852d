/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks of a job that runs get other homes (spec.rehomes), between two rounds that all of its boxes agree on:
 *
 *      stop    no round from a chunk's stop on is lifted or committed (members.firm), and all before it are done: then
 *              weights and state of a shard's chunks are control's, to be read and carried to their new homes
 *      apply   the core lays its shard out anew, with memory that control has filled: which uplink each chunk takes,
 *              what is of a home, and who lifts to it. The old memory is control's
 *      resume  rounds go on. Control says so when all boxes have applied: no sum comes to a box that is no home yet
 *
 * The same layout is what such a job's shards begin with. Owning core, but for the making (store.h); nothing blocks,
 * allocates or logs.
 */
#ifndef PHUB_REHOME_H
#define PHUB_REHOME_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/uplink.h"

struct rehome_chunk {
	uint16_t way; /* as in struct chunk */
	uint32_t way_at;
	float *weight, *state[OPTIMIZER_STATE_MAX];
	bool below;     /* `slots` lift it to this box */
	bool weights;   /* it has first weights */
	uint64_t round; /* that it collects: so far nobody may have pushed it here */
	/* Of one whose home this becomes; control's until it is applied. */
	bool comes;
	uint64_t got;   /* bytes of it that have come */
	uint64_t steps; /* optimizer steps taken, where its home was */
};

struct rehome_way {
	struct uplink_chunk *chunks;
	uint32_t *line;
	uint32_t chunk_count;
};

/* Lies at the beginning of the memory that it is about. */
struct rehome {
	struct rehome_chunk *chunks; /* [shard->chunk_count] */
	struct rehome_way *ways;     /* [spec.way_count] */
	const uint32_t *slots;       /* [slot_count] contributors that lift to this box; control's */
	uint32_t slot_count;
};

/* A shard that has stopped, or, by control, one that no core has yet. */
void rehome_apply(struct shard *shard, const struct rehome *r);
/* Commits what was complete meanwhile. */
void rehome_resume(struct shard *shard, uint64_t now_ns);

#endif
