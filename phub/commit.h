/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a chunk's round: what must be there for it, the one pass that sums, steps and writes the result, and the
 * answers. chunk.c takes contributions in until they are enough. Owning core only; nothing blocks, allocates or logs.
 */
#ifndef PHUB_COMMIT_H
#define PHUB_COMMIT_H

#include "phub/chunk.h"

/* So many contributions make a round: those needed, or a quorum of them. */
uint32_t commit_enough(const struct chunk *chunk, const struct shard *shard);
/* Counts anew who is needed for the round that is collected. */
void commit_count_needed(struct chunk *chunk, const struct shard *shard);

/* Is the lease over under which this shard commits? What waits for it is tried again when it is renewed. */
bool commit_is_late(const struct shard *shard);
/* What the commit of a complete round needs besides the payloads: 0, or -EAGAIN (it comes), or -ESTALE (it never does).
 */
int commit_ready(const struct chunk *chunk, const struct shard *shard);
/* Commits the open round, of which all is there, and answers; or lets it wait until commit_retry(). */
void commit_round(struct chunk *chunk, struct shard *shard);
void commit_park(struct chunk *chunk, struct shard *shard);

/* The round is committed by the box above, and its result is here: the same, from there on. */
void commit_land(struct chunk *chunk, struct shard *shard);

/* The last contribution has come, and is in the sum: commits, or parks the commit. */
void commit_full(struct chunk *chunk, const struct link *link);
/* Commits the open round if nobody is missing any more. */
void commit_check(struct chunk *chunk, struct shard *shard);

/* Tries the parked commits again: after a hyper-parameter table or a completion of a reply came; all, or this one. */
void commit_retry(struct shard *shard, uint64_t now_ns);
void commit_retry_one(struct chunk *chunk, struct shard *shard);

/*
 * Answers those who have pushed the round that is committed, or, before they take part, asked for its weights.
 * `written`: their rows have it. Not while the standby does not have the round: then they are answered when it has.
 */
void commit_answer(struct chunk *chunk, struct shard *shard, bool written);
/* What was lifted is acknowledged, or the standby is gone: answers, and commits what waited. `written`: as for those
 * rows that are written already. */
void commit_landed(struct chunk *chunk, struct shard *shard, bool written);

/*
 * All whom the open round needs are gone, and who comes takes part only in later ones: goes on with the first of these.
 * What the others had got of that round in other chunks of the key was lost with them.
 */
void commit_skip(struct chunk *chunk, struct shard *shard);
/* Gives back what was collected of the open round, as if nobody had come; bsp. */
void commit_withdraw(struct chunk *chunk, struct shard *shard);

/* The scalars of the chunk's next step with a version that is there. */
const struct optimizer_coef *commit_coef(
	const struct chunk *chunk, struct shard *shard, uint32_t rank, uint32_t version);

#endif
