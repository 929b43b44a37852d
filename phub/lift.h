/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box that is not a chunk's home lifts its rounds: when all who are below have come, their sum goes up an uplink,
 * like the push of a worker of the box above, and what comes back is the result for all of them:
 *
 *      collecting ---- all have come: one pass reads what came, and writes their sum, not divided by anything
 *          |
 *       lifted    ---- PUSH with `count` gradients, of type spec.lift; or, in a broadcast, INIT with the bytes of
 *          |           the one who has them, PULL where nobody below does
 *      committed  ---- the RESULT came, straight into the chunk's own: all below are answered
 *
 * When a rank below is lost, what is lifted stays as it is: it had come whole, and is counted. Only what is collected
 * still is taken back (members.h). When the membership changes above, the sum is sent again (uplink.h). So a change is
 * the business of the box where it happens; all others go on, each with a sum and the number of gradients in it. A box
 * that comes to a job that runs begins with a PULL of the round before its first, for the results of that: until then
 * its chunks are lifted.
 *
 * What came from below is given back when it is in the sum, so that no credit waits for the box above. The box above
 * may be the chunk's home, which runs the optimizer, or lift it further. Which uplink a chunk takes (spec.way_of_chunk)
 * is fixed for a key table; all chunks of one uplink are of one core above, and here.
 * Owning core only; nothing blocks, allocates or logs.
 */
#ifndef PHUB_LIFT_H
#define PHUB_LIFT_H

#include "phub/uplink.h"

struct sum_args;

extern const struct uplink_use lift_use;

/* For commit.c: all of the round has come, `sum` is what a commit would read and write. */
void lift_round(struct chunk *chunk, struct shard *shard, const struct sum_args *sum);

/* Control, before the shard goes to its core, of a box that comes to a job that runs, all of whose chunks are lifted:
 * who takes part does so from these rounds on, one for each chunk of the plan. */
void lift_join(struct shard *shard, const uint64_t *from, uint64_t now_ns);

/* Control, before the shard goes to its core: where the chunk at `at` is in its core above, whose index headers name.
 */
static inline void lift_place(struct uplink *up, uint32_t at, uint32_t index)
{
	up->chunks[at].index = index;
}

#endif
