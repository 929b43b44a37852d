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
 *
 * Sums are made in fp32, and rounded to nearest as spec.lift once on each link that they go up. What comes down is of
 * the job's own type, and so are first weights on their way up: no bit of these changes. A link adds to a sum s an
 * error of at most half of the last of the type's bits, or of its smallest step:
 *
 *      f32     0
 *      f16     2^-11 |s|, or 2^-25 where that is more;   infinity from 65520 on (65504 is the largest number)
 *      bf16    2^-8 |s|, or 2^-134 where that is more;   infinity from 0x1.ffp127 on (fp32: 0x1.ffffffp127)
 *
 * So the sum that its home makes of a round differs from the exact one by what all the links add that sums went up,
 * and fp32's own rounding: 2^-24 of the sum of all magnitudes for each gradient; a mean by that over the number of
 * gradients, and 2^-23 of itself. With at most L links between a worker and the home that is about L 2^-11 or L 2^-8 of
 * the sum of all magnitudes. test_lift.c holds trees, shards and chains against this. A job whose own type is f16 or
 * bf16 has its results rounded to that besides. Infinity stays that, or becomes NaN, whatever is added further up, and
 * spec.nan does not see it: that looks at what workers push.
 *
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
