/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a committed chunk back to its contributors: one result buffer, a header for each. What a connection cannot
 * take now waits in its link's heap, lowest priority number first, so that a big layer does not stand in a small
 * one's way. Owning core only.
 */
#ifndef PHUB_REPLY_H
#define PHUB_REPLY_H

#include <stdint.h>

struct chunk;
struct link;
struct core;

/* Owes `link` the result of `round` of this chunk: sent now if the connection has room. */
void reply_result(struct chunk *chunk, struct link *link);

/* Sends what was owed to this link, as far as it has room: after EVENT_WRITABLE. */
void reply_writable(struct link *link);

/*
 * Tells the worker its new credit when it is worth a message or the worker could not go on without. At the end of a
 * batch.
 */
void reply_credit(struct link *link);

/*
 * Tells the worker that no result comes behind those it was sent. Only where messages stay in order. 0, -EAGAIN or
 * -EPIPE.
 */
int reply_finish(struct link *link);

#endif
