/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy of a job that a standby keeps for another box (transport/wire.h says what comes). A mirror is a shard with
 * one contributor, rank 0, the job's box (spec.mirror); its chunks are those of the job with fp32 payloads, and lie on
 * the same cores.
 *
 *      INIT    sets one of the chunk's arrays; with the last of them the chunk is as its box had it: its round, the
 *              steps taken, weights and state, or, where there is no optimizer, the last sum
 *      PUSH    is the sum of all contributors of the round that the chunk collects: chunk.c takes it like that of a
 *              job with one worker, but that `count` gradients are in it. It waits for its hyper-parameters
 *
 * Each message is answered once, when it is done, by a RESULT of its chunk and round without payload: a box may send
 * all arrays of a chunk one behind the other. What no box sends ends the connection; what the chunk has stays as it
 * was.
 */
#ifndef PHUB_MIRROR_H
#define PHUB_MIRROR_H

#include "phub/chunk.h"

/* Makes a job's spec, with its plan, that of its mirror. 0, or -EMSGSIZE when some chunk is too large for the wire. */
int mirror_spec(struct spec *spec);

/* Owning core: what came is no PUSH. 0, or -EPROTO. */
int mirror_add(struct chunk *chunk, const struct contribution *c);
/* May a message of a mirror have this length, with its trailer, and this count? None is coded. */
bool mirror_takes(const struct chunk *chunk, const struct wire_header *h, uint32_t trailer);
/* One answer of the chunk went out from the link's heap: is another one due? */
bool mirror_owes(struct arrival *a);

/* Control, of a shard that no core has: is all of each chunk there? */
bool mirror_is_whole(const struct shard *shard);
/*
 * Control, before the job's own shard goes to its core: the chunk goes on where its mirror is. Its contributors may ask
 * for the result of the round before once more.
 */
void mirror_restore(struct chunk *chunk, struct shard *shard, const struct chunk *mirror);

#endif
