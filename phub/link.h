/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link is one worker's connection to one core, for one job: its credits, the slots held of it, the replies it
 * has still to get. Owning core only.
 */
#ifndef PHUB_LINK_H
#define PHUB_LINK_H

#include <limits.h>

#include "phub/chunk.h"

/*
 * Takes the connection into the queue. 0, or -EEXIST when the rank has one, -EBUSY while what was out on its last one
 * is not settled, or the queue's -ENOSPC: then `conn` is still the caller's.
 */
int link_open(struct link *link, struct queue *queue, struct conn *conn, const struct conn_spec *spec);

/*
 * Ends the connection, if there is one. No later commit reads what it lent; that it reads no results any more is
 * settled here for the shards of small jobs, else by later calls of link_sweep().
 */
void link_close(struct link *link);

/*
 * Settles what is out on links that ended (slots held, replies being sent), of a bounded number of chunks: a large job
 * must not stop its neighbours on the core. Returns whether chunks are left.
 */
bool link_sweep(struct shard *shard);

/* Do its worker and this box have the same memory? Then payloads lie there as they are, and may change at any time. */
static inline bool link_is_mapped(const struct link *link)
{
	return link->queue->hold_max == UINT_MAX;
}

/* Gives a held slot back and renews the worker's credit. */
void link_release(struct link *link, void *slot);

/*
 * All of a message with this seq came: 0, or -EPROTO when the worker sends beyond its credit where nothing gets lost,
 * or not in its order where there is one.
 */
int link_count(struct link *link, uint32_t seq);

/* Messages up to this seq may be sent, as things stand. */
uint32_t link_credit(const struct link *link);

#endif
