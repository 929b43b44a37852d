/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link is one worker's connection to one core, for one job: its credits, the slots held of it, the replies it
 * has still to get. Owning core only.
 */
#ifndef PHUB_LINK_H
#define PHUB_LINK_H

#include "phub/chunk.h"

/*
 * Takes the connection into the queue. 0, or -EEXIST when the rank has one, or the queue's -ENOSPC: then `conn` is
 * still the caller's.
 */
int link_open(struct link *link, struct queue *queue, struct conn *conn, const struct conn_spec *spec);

/* Ends the connection, if there is one, and settles what was out on it: slots held, replies being sent. */
void link_close(struct link *link);

/* Gives a held slot back and renews the worker's credit. */
void link_release(struct link *link, void *slot);

/*
 * A message with this seq came: 0, or -EPROTO when the worker sends beyond its credit (or again) where nothing gets
 * lost.
 */
int link_count(struct link *link, uint32_t seq);

/* Messages up to this seq may be sent, as things stand. */
uint32_t link_credit(const struct link *link);

#endif
