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

/* Arrivals that one turn looks at: 64 us, when none of them is in a cache. */
#define LINK_SWEEP_ARRIVALS 2048u

int link_open(struct link *link, struct queue *queue, struct conn *conn, const struct conn_spec *spec)
{
	int rc;

	if (link->conn)
		return -EEXIST;
	if (link->queue && link->shard->sweep_left > 0)
		return -EBUSY;
	rc = queue->ops->adopt(queue, conn, spec);
	if (rc < 0)
		return rc;
	conn->user = link;
	link->conn = conn;
	link->shard->share.links++;
	link->again = (link->queue != NULL || link->moved) && !link->fresh;
	link->fresh = false;
	link->queue = queue;
	link->window = spec->window;
	link->credit_told = spec->window;
	link->credit_due = false;
	link->seq_max = 0;
	return 0;
}

static void link_settle_slot(struct link *link, struct arrival *a)
{
	a->slot = NULL;
	link->queue->held--;
	link->held--;
	stats_add(&link->shard->counters.slots_released, 1);
}

/* Payloads in slots are gone with the connection. Their chunks are open, and the first to come were held first. */
static void link_forget_held(struct link *link)
{
	struct shard *shard = link->shard;
	uint32_t next;

	for (uint32_t i = shard->open_oldest; i != CHUNK_NONE && link->held > 0; i = next) {
		struct chunk *chunk = &shard->chunks[i];
		struct arrival *a = &chunk->arrivals[link->rank];

		next = chunk->newer;
		if (a->state != ARRIVAL_HELD || !a->slot)
			continue;
		link_settle_slot(link, a);
		chunk_forget(chunk, link);
	}
}

static void link_settle(struct link *link, struct chunk *chunk)
{
	struct shard *shard = link->shard;
	struct arrival *a = &chunk->arrivals[link->rank];

	if (a->state == ARRIVAL_HELD && a->slot)
		link_settle_slot(link, a);
	a->due = false;
	if (a->sends == 0)
		return;
	stats_add(&shard->counters.sends_done, a->sends);
	link->sends -= a->sends;
	chunk->sends -= a->sends;
	a->sends = 0;
	/* Nobody else will say that the result may be written to. */
	if (chunk->parked && chunk->sends == 0)
		shard->retry_due = true;
}

bool link_sweep(struct shard *shard)
{
	uint32_t world = shard->spec->world, budget = LINK_SWEEP_ARRIVALS;

	for (; budget > 0 && shard->sweep_left > 0; shard->sweep_left--) {
		struct chunk *chunk = &shard->chunks[shard->sweep_at];

		for (uint32_t rank = 0; rank < world; rank++)
			if (!shard->links[rank].conn && shard->links[rank].queue)
				link_settle(&shard->links[rank], chunk);
		budget -= budget < world ? budget : world;
		shard->sums_used += chunk->sum != NULL;
		shard->sweep_at = shard->sweep_at + 1 < shard->chunk_count ? shard->sweep_at + 1 : 0;
	}
	return shard->sweep_left > 0;
}

void link_close(struct link *link)
{
	struct shard *shard = link->shard;
	bool out;

	if (!link->conn)
		return;
	link->queue->ops->drop(link->queue, link->conn);
	link->conn = NULL;
	shard->share.links--;
	out = link->reply_count > 0 || link->sends > 0;
	link->reply_count = 0;
	if (shard->stage == SHARD_CLOSING)
		return; /* all chunks are swept now */
	/*
	 * Mapped memory stays until the shard is detached: what lies there still counts. Parts that came stay in their
	 * sums, which are never committed: the rest of them does not come, by this connection or another (parts.c).
	 */
	if (!link_is_mapped(link))
		link_forget_held(link);
	if (!out && link->held == 0)
		return;
	shard->sweep_left = shard->chunk_count;
	link_sweep(shard);
}

void link_release(struct link *link, void *slot)
{
	assert(link->held > 0 && link->queue->held > 0);
	if (link->conn) /* else it went with the connection */
		link->queue->ops->release(link->queue, slot);
	link->queue->held--;
	link->held -= link->shard->plant != SHARD_PLANT_CREDIT || link->held < 2;
	stats_add(&link->shard->counters.slots_released, 1);
}

uint32_t link_credit(const struct link *link)
{
	uint32_t held = link_is_mapped(link) ? 0 : link->held;
	uint32_t room = link->window - held, share = fair_window(link);
	uint32_t limit = link->seq_max + (share < room ? share : room);

	return wire_after(limit, link->credit_told) ? limit : link->credit_told;
}

int link_count(struct link *link, uint32_t seq)
{
	const struct queue *q = link->queue;

	if (!q->lossy && !q->unordered) {
		if (seq != link->seq_max + 1 || wire_after(seq, link->credit_told))
			return -EPROTO;
		link->seq_max = seq;
		return 0;
	}
	if (wire_after(seq, link->credit_told)) {
		if (!q->lossy)
			return -EPROTO;
		link->credit_due = true; /* a probe: a grant of ours was lost */
	}
	if (wire_after(seq, link->seq_max))
		link->seq_max = seq;
	return 0;
}
