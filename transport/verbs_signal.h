/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How connections come about: four signals that the control session carries; their bytes, and what both ends make of
 * them (verbs_signal.c). The box's end is verbs_join.c, the worker's verbs_dial.c. Control thread.
 *
 *      worker                                        box
 *      dial     type 1, name of the box's transport
 *                                                    nonce    type 2, handshake 24, ports 1, ports * 24
 *      hello    type 3, handshake 56, token 8,
 *               zero 8, rails 1, rails * 40
 *                                                    welcome  type 4, handshake 16, and when it is one:
 *                                                             token 8, address of fixed buffers 8 or
 *                                                             zero, rails 1, rails * 40
 *      gone     type 5, code 4, rails that lead nowhere (a bit for each) 1: from either end, at any time
 *
 *      port     GID 16, rate in Mbit/s 4, LID 2, MTU 1, distance from the core 1 (10: near, 0: down; see rails.h)
 *      rail     GID 16, rate 4, LID 2, MTU 1, box's port 1, queue pair 4, PSN 4, bell 4, rkey of fixed buffers 4 or
 * zero
 */
#ifndef PHUB_TRANSPORT_VERBS_SIGNAL_H
#define PHUB_TRANSPORT_VERBS_SIGNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/signal.h"
#include "transport/verbs_internal.h"

enum verbs_signal { VERBS_DIAL = 1, VERBS_NONCE = 2, VERBS_HELLO = 3, VERBS_WELCOME = 4, VERBS_GONE = 5 };

enum {
	VERBS_PORT_BYTES = 24,
	VERBS_RAIL_BYTES = 40,
	VERBS_GID_BYTES = RAILS_GID_BYTES,
};

_Static_assert(1 + HANDSHAKE_NONCE_BYTES + 1 + VERBS_DEVICES_MAX * VERBS_PORT_BYTES <= SIGNAL_BYTES_MAX &&
		       1 + HANDSHAKE_HELLO_BYTES + 17 + VERBS_RAILS_MAX * VERBS_RAIL_BYTES <= SIGNAL_BYTES_MAX,
	"every signal has to fit");

/* Begins a signal of this connection. NULL: no memory; the other end will find out by waiting. */
struct signal *verbs_say(struct verbs *v, const struct verbs_conn *c, enum verbs_signal type);
/* This is the end, and why: a negative errno. */
void verbs_say_gone(struct verbs *v, const struct verbs_conn *c, int error);
/* What this end has to say of its rails. */
void verbs_say_rails(struct signal *s, const struct verbs_conn *c);
/* What the peer says of its rails. 0, or -EPROTO for what cannot be. */
int verbs_hear_rails(struct signal_reader *in, struct verbs_conn *c);
/* The connection's `peer`, for messages, by one of its rails. */
void verbs_name_peer(struct verbs_conn *c, uint32_t rail);
/* NULL: no memory. */
struct verbs_conn *verbs_conn_create(struct verbs *v, bool is_box);
/* What both ends need before the first message. 0, or a negative errno. */
int verbs_conn_prepare(struct verbs_conn *c, struct err *e);
/* Ends and frees what no queue has adopted. `owner`: the queue whose owner calls, or NULL. */
void verbs_conn_undo(struct verbs_conn *c, struct verbs_queue *owner);

#endif
