/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks of jobs with sync ssp or async: each push is one optimizer step, taken in order of arrival. async answers
 * it at once; ssp(s) answers round r when every rank that takes part has pushed round r - s. Every rank has a result
 * row of its own, rewritten only after its next push has said that it no longer reads it. Owning core only; called by
 * chunk.c.
 *
 * When a rank is lost, its steps stay. The slowest of those who take part, the lost one still among them, has then
 * stepped round r: who comes in its place begins with round r + 1, of all chunks of the key the furthest. That is the
 * slowest round at which no answer was given that the bound forbids; of a lost rank that was further it does some
 * rounds once more. Until it comes the rank stands at r where the job waits, and nobody is answered beyond r + s; where
 * the job shrinks it does not take part, and r is that of the others when somebody comes.
 */
#ifndef PHUB_STEPWISE_H
#define PHUB_STEPWISE_H

#include "phub/chunk.h"

/* As chunk_add(), for a chunk that has its first weights. */
int stepwise_add(struct chunk *chunk, const struct contribution *c);

/* Tries the parked pushes of this chunk again. */
void stepwise_retry(struct chunk *chunk, struct shard *shard, uint64_t now_ns);

/* Where the results of `rank` lie. */
uint8_t *stepwise_row(const struct chunk *chunk, const struct shard *shard, uint32_t rank);

/* Is this rank what an owed answer waits for? For the report on stalls. */
bool stepwise_missing(const struct chunk *chunk, const struct shard *shard, uint32_t rank);

/* The last round that all who take part have stepped; if nobody does, of those who did last (chunk->round). */
uint64_t stepwise_slowest(const struct chunk *chunk, const struct shard *shard);
/* Answers all whose turn has come: with the weights as they are now. */
void stepwise_answer(struct chunk *chunk, struct shard *shard);
/* The chunk has got its first weights: answers those who asked for them and take part only in later rounds. */
void stepwise_begin(struct chunk *chunk, struct shard *shard);
/* The rank is gone: forgets what of it is parked or owed. */
void stepwise_withdraw(struct chunk *chunk, struct shard *shard, uint32_t rank);

#endif
