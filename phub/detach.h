/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shard's way back to control. A round that was committed belongs to every rank, also when one of them is gone
 * the moment after: so its results go out first, to those who still read. Then the connections end, and what was out
 * on them is settled some chunks at a time. Owning core only; nothing blocks.
 */
#ifndef PHUB_DETACH_H
#define PHUB_DETACH_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/chunk.h"

/*
 * From now on pushes are dropped and nothing is committed. Replies go on until `drain_ns` from now, or, `patient`, from
 * when the last of them went out; 0: the connections end at once. Again: only ever sooner.
 */
void detach_begin(struct shard *shard, uint64_t drain_ns, bool patient, uint64_t now_ns);

/*
 * At tick: goes on by a bounded amount. Returns whether more can be done at this very time; when it cannot, and the
 * stage is SHARD_CLOSING, the shard is done.
 */
bool detach_step(struct shard *shard, uint64_t now_ns);

#endif
