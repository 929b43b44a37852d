/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credits are cumulative: "you may send up to message n", n = what came + the window - what is held. A lost or
 * doubled grant is harmless, and a slot that is summed gives its credit back at once, not when its round commits.
 */
#include "phub/link.h"

#include "phub/base/stats.h"
#include <assert.h>
#include <errno.h>
#include <limits.h>

int link_open(struct link *link, struct queue *queue, struct conn *conn, const struct conn_spec *spec)
{
	int rc;

	if (link->conn)
		return -EEXIST;
	rc = queue->ops->adopt(queue, conn, spec);
	if (rc < 0)
		return rc;
	conn->user = link;
	link->conn = conn;
	link->queue = queue;
	link->window = spec->window;
	link->credit_told = spec->window;
	link->seq_max = 0;
	return 0;
}

/* Chunks of which something of this link is out: held payloads, replies being read. They end with the connection. */
static void link_settle(struct link *link)
{
	struct shard *shard = link->shard;

	for (uint32_t i = 0; i < shard->chunk_count; i++) {
		struct chunk *chunk = &shard->chunks[i];
		struct arrival *a = &chunk->arrivals[link->rank];

		if (a->state == ARRIVAL_HELD && a->slot) {
			a->slot = NULL;
			stats_add(&shard->counters.slots_released, 1);
			link->queue->held--;
			link->held--;
			/* Mapped memory stays until the shard is detached; a slot's went with the connection. */
			if (link->queue->hold_max != UINT_MAX)
				chunk_forget(chunk, link);
		}
		stats_add(&shard->counters.sends_done, a->sends);
		chunk->sends -= a->sends;
		a->sends = 0;
		a->due = false;
	}
}

void link_close(struct link *link)
{
	if (!link->conn)
		return;
	link->queue->ops->drop(link->queue, link->conn);
	link->conn = NULL;
	link->reply_count = 0;
	link_settle(link);
}

void link_release(struct link *link, void *slot)
{
	assert(link->conn && link->held > 0 && link->queue->held > 0);
	link->queue->ops->release(link->queue, slot);
	link->queue->held--;
	link->held--;
	stats_add(&link->shard->counters.slots_released, 1);
}

uint32_t link_credit(const struct link *link)
{
	uint32_t held = link->queue->hold_max == UINT_MAX ? 0 : link->held;
	uint32_t limit = link->seq_max + link->window - held;

	return wire_after(limit, link->credit_told) ? limit : link->credit_told;
}

int link_count(struct link *link, uint32_t seq)
{
	if (!link->queue->lossy) {
		if (seq != link->seq_max + 1 || wire_after(seq, link->credit_told))
			return -EPROTO;
		link->seq_max = seq;
		return 0;
	}
	if (wire_after(seq, link->credit_told))
		link->credit_due = true; /* a probe: a grant of ours was lost */
	if (wire_after(seq, link->seq_max))
		link->seq_max = seq;
	return 0;
}
