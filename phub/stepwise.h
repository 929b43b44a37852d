/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks of jobs with sync ssp or async: each push is one optimizer step, taken in order of arrival. async answers
 * it at once; ssp(s) answers round r when every rank has pushed round r - s. Every rank has a result row of its
 * own, rewritten only after its next push has said that it no longer reads it. Owning core only; called by chunk.c.
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

/* The last round that all who take part have stepped. */
uint64_t stepwise_slowest(const struct chunk *chunk, const struct shard *shard);
/* Answers all whose turn has come: with the weights as they are now. */
void stepwise_answer(struct chunk *chunk, struct shard *shard);
/* The rank is gone: forgets what of it is parked or owed. */
void stepwise_withdraw(struct chunk *chunk, struct shard *shard, uint32_t rank);

#endif
