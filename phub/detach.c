/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drains and closes. A link is not ended as soon as its last result was given to the transport: over TCP, closing a
 * socket to which the worker still pushes resets it, and what lies in its send buffer is lost. So the worker is told
 * that nothing more comes (on lossy links it sees that nothing is missing), and ends the connection itself; one that
 * does not has until the deadline.
 */
#include "phub/detach.h"

#include "phub/link.h"
#include "phub/reply.h"
#include "phub/uplink.h"

static void detach_close(struct shard *shard)
{
	shard->stage = SHARD_CLOSING;
	uplink_drop(shard);
	for (uint32_t rank = 0; rank < shard->spec->world; rank++)
		link_close(&shard->links[rank]);
	shard->sweep_at = 0;
	shard->sweep_left = shard->chunk_count;
	shard->sums_used = 0;
}

void detach_begin(struct shard *shard, uint64_t drain_ns, bool patient, uint64_t now_ns)
{
	uint64_t until_ns = now_ns + drain_ns;

	shard->failed = true;
	if (shard->stage == SHARD_LIVE) {
		shard->stage = SHARD_DRAINING;
		shard->drain_until_ns = until_ns;
		shard->drain_more_ns = patient ? drain_ns : 0;
		shard->drain_sends = shard->counters.sends_done;
	}
	if (!patient)
		shard->drain_more_ns = 0;
	if (until_ns < shard->drain_until_ns)
		shard->drain_until_ns = until_ns;
}

/* Who reads slowly reads. */
static void detach_extend(struct shard *shard, uint64_t now_ns)
{
	if (!shard->drain_more_ns || shard->counters.sends_done == shard->drain_sends)
		return;
	shard->drain_sends = shard->counters.sends_done;
	shard->drain_until_ns = now_ns + shard->drain_more_ns;
}

/* Is anybody left who may get something? */
static bool detach_drain(struct shard *shard, uint64_t now_ns)
{
	bool left = false;

	detach_extend(shard, now_ns);
	if (now_ns >= shard->drain_until_ns)
		return false;
	for (uint32_t rank = 0; rank < shard->spec->world; rank++) {
		struct link *link = &shard->links[rank];

		if (!link->conn)
			continue;
		left = true;
		/* Where messages overtake each other, the last word waits until all before it are there. */
		if (!link->finished && !link->queue->lossy && link->reply_count == 0 &&
			(!link->queue->unordered || link->sends == 0) && !uplink_waits(shard, link))
			link->finished = reply_finish(link) == 0;
	}
	return left;
}

bool detach_step(struct shard *shard, uint64_t now_ns)
{
	if (shard->stage == SHARD_DRAINING) {
		if (detach_drain(shard, now_ns))
			return false;
		detach_close(shard);
	}
	return link_sweep(shard);
}
