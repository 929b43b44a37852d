/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of the tcp transport: a box and a worker in one thread over loopback, and raw sockets that
 * can play either's part badly.
 */
#ifndef PHUB_TESTS_UNIT_TCP_RIG_H
#define PHUB_TESTS_UNIT_TCP_RIG_H

#include <stddef.h>
#include <stdint.h>

#include "transport/handshake.h"
#include "transport/transport.h"

#define TCP_RIG_EVENTS 64

struct tcp_rig {
	struct transport *box, *worker;
	struct queue *box_queue, *worker_queue;
	char address[128];
	struct span *spans;
	struct sink *sinks;
	struct conn_spec box_spec, worker_spec;
	struct event events[TCP_RIG_EVENTS];
};

/* The key of every session here. */
extern const uint8_t tcp_rig_key[PROOF_KEY];

/* Chunks of payload_max bytes each. `config` may be NULL. The worker's spec has no sinks until a test sets them. */
void tcp_rig_open(
	struct tcp_rig *rig, const struct transport_config *config, uint32_t chunk_count, uint32_t payload_max);
/* The connections must have been dropped. */
void tcp_rig_close(struct tcp_rig *rig);

/* A connection from worker to box, both ends adopted. */
void tcp_rig_connect(struct tcp_rig *rig, struct conn **box_end, struct conn **worker_end);
/* The box's next hello; its MAC was checked. Fails the test after 5 s. */
struct conn *tcp_rig_accept(struct tcp_rig *rig);
/* established() until it says something else than -EAGAIN, while the box accepts (and drops) nobody. */
int tcp_rig_established(struct tcp_rig *rig, struct conn *c, struct err *e);

/* A raw socket, connected to the box; it blocks. From 127.0.0.1, or from 127.0.0.`last`. */
int tcp_rig_dial(const struct tcp_rig *rig);
int tcp_rig_dial_from(const struct tcp_rig *rig, uint8_t last);
/* The same with the handshake done: the box's end is adopted. */
int tcp_rig_raw_worker(struct tcp_rig *rig, struct conn **box_end);
/* A raw socket that has played the box: the worker's end is adopted. */
int tcp_rig_raw_box(struct tcp_rig *rig, struct conn **worker_end);

/* Polls and flushes `q` until there are events (in rig->events) or the time is over. Returns how many. */
unsigned tcp_rig_poll(struct tcp_rig *rig, struct queue *q, unsigned timeout_ms);
/* The one event that comes next; fails the test when there is none or another. */
struct event tcp_rig_expect(struct tcp_rig *rig, struct queue *q, enum event_type type);
/* The connection's end comes next, with this error, then nothing; nothing can be sent any more. */
void tcp_rig_expect_closed(struct tcp_rig *rig, struct queue *q, struct conn *c, int error);
/* No event comes for a moment. */
void tcp_rig_expect_none(struct tcp_rig *rig, struct queue *q);

/* Writes or reads all of it on a blocking fd; fails the test when that ends early. */
void tcp_rig_write(int fd, const void *data, size_t bytes);
void tcp_rig_read(int fd, void *data, size_t bytes);

/* A header of this type; a push counts one gradient. */
struct wire_header tcp_rig_header(enum wire_type type, uint32_t chunk, uint32_t length, uint64_t round);
/* The next number of a seeded sequence; any seed but 0. */
uint32_t tcp_rig_random(uint64_t *seed);
/* The bytes that message `salt` carries. */
void tcp_rig_fill(uint8_t *to, size_t bytes, uint64_t salt);
/* Are they? */
int tcp_rig_holds(const void *at, size_t bytes, uint64_t salt);

#endif
