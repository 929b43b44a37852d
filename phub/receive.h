/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a message to its chunk: checks the header against the connection it came by, finds the chunk, drops what is
 * old, counts credits. Owning core only.
 */
#ifndef PHUB_RECEIVE_H
#define PHUB_RECEIVE_H

#include <stdint.h>

#include "transport/transport.h"

struct core;

/*
 * Works off `count` events that `queue` yielded. Message payloads may be overwritten after it returns, but for
 * those kept.
 */
void receive_batch(struct core *core, struct queue *queue, struct event *events, unsigned count, uint64_t now_ns);

#endif
