/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job's weights and optimizer state as they are between two rounds, taken chunk by chunk while rounds go on: after
 * CheckFreq's first phase (FAST'21). Control names for each chunk the first round that is not in it; the core copies
 * the chunk when it collects that round: at a quiet tick, or, copy on write, just before it commits it. What is copied
 * is the persisting thread's from then on.
 *
 * A chunk that has committed that round already cannot be in it: the core says so, and control tries again with a later
 * round. Where each push is a step (ssp, async) there is no such round: a chunk is copied as it is, and may have steps
 * of later rounds than those that it is said to have; who goes on from it does these once more.
 */
#ifndef PHUB_SNAPSHOT_H
#define PHUB_SNAPSHOT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "phub/chunk.h"

/* One chunk's place: weights, then each array of state, fp32 each, one behind the other. */
struct snapshot_chunk {
	uint64_t before; /* the first round that is not in it; ssp, async: from which on rounds may not all be in it */
	uint64_t steps;  /* optimizer steps that are; written by the core */
	uint64_t offset; /* in `base`, a multiple of 4096 */
	uint64_t bytes;  /* of all arrays together */
	_Atomic bool copied; /* set by the core when it is; read by the persisting thread */
};

struct snapshot {
	uint32_t job, generation;
	uint32_t chunk_count; /* of the job's plan */
	struct snapshot_chunk *chunks;
	uint64_t *rounds; /* [chunk_count] by MAIL_ROUNDS: the round that the chunk collects; ssp, async: the slowest
			     rank's next one */
	uint8_t *base;    /* page-aligned */
	uint64_t bytes;
	_Atomic uint32_t left; /* chunks that are not copied */
	_Atomic bool missed;   /* some core was too late: of no use */
	uint64_t copied_ns;    /* of all cores' time, together; atomic */
};

/* Bytes of a chunk's place. */
uint64_t snapshot_chunk_bytes(const struct spec *spec, uint32_t elements);

/* Owning core: which round does each chunk collect? (MAIL_ROUNDS) */
void snapshot_rounds(const struct shard *shard, struct snapshot *s);

/* Control, before the shard is given to its core: a chunk is as it was when it was copied. */
void snapshot_restore(struct chunk *chunk, struct shard *shard, const void *bytes, uint64_t before, uint64_t steps);

/* Owning core: begins with a snapshot (MAIL_SNAPSHOT), one at a time. Answers MAIL_SNAPPED when its last chunk is
 * copied, or the snapshot is missed, or given up by snapshot_end(). */
void snapshot_begin(struct shard *shard, struct snapshot *s);
/* Before a commit: copies the chunk if it is still to be. */
void snapshot_before_commit(struct chunk *chunk, struct shard *shard);
/* At tick: copies some of those that are due. Returns whether more can be copied at once. */
bool snapshot_step(struct shard *shard);
/* The shard is on its way back: gives up what is not copied. It keeps `snapshot` until control has heard. */
void snapshot_end(struct shard *shard);

#endif
