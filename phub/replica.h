/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The replica that a standby box keeps of a shard: what any worker has got, the standby has, too. Only shards of jobs
 * that are mirrored (spec.standby) have one, by an uplink to the same core there. First the standby gets an image of
 * each chunk; from then on a commit of it is lifted:
 *
 *      the chunk's sum is written to memory of its own, fp32, and sent as a PUSH with `count` gradients in it;
 *      the step runs with that as its only source: the bits are those of the pass that sums and steps at once;
 *      its contributors are answered when the standby's RESULT came. Until then nothing of the chunk is committed.
 *
 * A commit that is broadcast sends a new image in place of a sum. A chunk of which the standby has no image yet commits
 * and answers as if there were no standby. When the connection breaks, all that waits is answered: the standby takes
 * the job over only when all who live have come to it, and then none of them is here. wire.h says what the messages
 * are, mirror.h what becomes of them there.
 *
 * Owning core only; nothing blocks, allocates or logs.
 */
#ifndef PHUB_REPLICA_H
#define PHUB_REPLICA_H

#include "phub/uplink.h"

struct sum_args;

/* Sends images, some a tick. MAIL_UPLINK_WHOLE is told when all are there. */
extern const struct uplink_use replica_use;

/*
 * For chunk.c, of a shard with a replica. Before a commit that steps or sums: if the standby has the chunk, writes the
 * sum, sends it, and makes it the only source.
 */
void replica_lift(struct chunk *chunk, struct shard *shard, struct sum_args *sum);
/* The round that the chunk collects is another than the standby thinks, by a broadcast or without a commit: if it has
 * the chunk, sends a new image. `written`: as for uplink_chunk. */
void replica_renew(struct chunk *chunk, struct shard *shard, bool written);

#endif
