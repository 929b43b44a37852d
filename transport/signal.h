/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of signals (transport.h), and those that wait: what transports share whose handshakes the control session
 * carries. Control thread; pure but for memory.
 */
#ifndef PHUB_TRANSPORT_SIGNAL_H
#define PHUB_TRANSPORT_SIGNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/handshake.h"
#include "transport/transport.h"

/* A cursor over a signal's bytes. */
struct signal_reader {
	const uint8_t *at;
	size_t left;
	bool broken;
};

/* At the first byte; broken when it says to be longer than one can be. */
struct signal_reader signal_reader(const struct signal *s);
/* The next `bytes` of them, or as many zeros when there are not so many: then it is broken. */
const uint8_t *signal_read(struct signal_reader *r, size_t bytes);
/* Was it whole, and is nothing left? */
bool signal_read_all(const struct signal_reader *r);
/* Room for `bytes` more at its end; there is enough. */
uint8_t *signal_write(struct signal *s, size_t bytes);
/* The handshake's next message, whole: there is room for it. */
void signal_write_handshake(struct signal *s, struct handshake *h);

/* Signals that wait, oldest first. Zeroed memory is an empty one. */
struct signal_list {
	struct signal_said *first, *last;
};

/* A copy at the end. It, or NULL: no memory; the other end will find out by waiting. */
struct signal *signal_list_add(struct signal_list *list, const struct signal *signal);
/* Takes the oldest: 0, or -EAGAIN. */
int signal_list_take(struct signal_list *list, struct signal *out);
void signal_list_clear(struct signal_list *list);

#endif
