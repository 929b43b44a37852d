/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network in memory with a virtual clock: transport_loop's messages, datagrams, and the control sessions'
 * streams between hosts that are small integers. One seed decides every delay, loss, doubling and
 * late read of a payload, so that a run can be replayed bit by bit. Nothing happens by itself: time
 * moves in loop_net_advance() alone, and what came due is seen by the next poll(), read() or accept().
 *
 * A plan of zeros is a reliable, ordered transport without delay, good for measuring in one thread.
 * One net and all that lives on it belong to one thread; nothing here blocks.
 */
#ifndef PHUB_TRANSPORT_LOOP_H
#define PHUB_TRANSPORT_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "phub/base/err.h"
#include "transport/stream.h"
#include "transport/wire.h"

struct loop_listener;
struct loop_net;
struct loop_port;

enum {
	LOOP_HOSTS = 64,               /* when the plan names no number */
	LOOP_PIPE_BYTES = 4 << 20,     /* when the plan names no bound */
	LOOP_STREAM_BYTES = 256 << 10, /* bytes on the way and unread in one direction of a stream */
	LOOP_STRANGERS_MAX = 1024,     /* connections that one transport has not accepted yet */
	LOOP_ADDRESS_BYTES = 128,
	LOOP_DATAGRAM_MAX = 65507, /* when the plan names no bound */
};

/* What goes wrong, and how often. Probabilities are 0..1; zeroed memory is a perfect network. */
struct loop_plan {
	uint64_t seed;
	unsigned hosts;        /* endpoints are 0..hosts-1; 0: LOOP_HOSTS */
	uint64_t delay_min_ns; /* everything takes this long... */
	uint64_t delay_max_ns; /* ...to this long, evenly; order is kept per connection and direction */

	/*
	 * Only data messages and datagrams between hosts that are lossy to each other; streams, handshakes and ends of
	 * connections always arrive.
	 */
	bool lossy; /* all pairs are lossy; else those of loop_net_lossy() */
	double drop, duplicate;
	double reorder;      /* comes late by up to reorder_ns, others pass it */
	uint64_t reorder_ns; /* 0: four times delay_max_ns, or 1 us */

	/*
	 * On every pair: one bit of the header is turned over, as by a broken or hostile peer. No sum
	 * means anything then; for tests that nothing crashes or reaches another job. Of a datagram it is any bit,
	 * which its seal tells.
	 */
	double corrupt;

	double late;      /* the NIC reads this payload only after flush(), by up to late_max_ns; */
	double sent_late; /* lossy pairs: and says SENT later than it read, by up to late_max_ns */
	uint64_t late_max_ns;
	double split; /* a read() or write() of a stream is cut short at a random byte */

	/*
	 * Streams: one bit of what was written turns over; the stream breaks after a write; what was written comes late
	 * by up to stream_late_ns.
	 */
	double stream_corrupt, stream_break, stream_late;
	uint64_t stream_late_ns;

	unsigned hold_max; /* of every queue */
	/* Unpolled bytes per connection and direction; then senders wait (lossy: loss). Per port: then loss. */
	size_t pipe_bytes_max;
	uint32_t datagram_max; /* bytes of one that a host sends at most; 0: LOOP_DATAGRAM_MAX */
	uint32_t path_max;     /* larger ones are lost on the way; 0: none is */
	bool poison;           /* overwrite received payloads as soon as they are no longer valid */
};

struct loop_stats {
	uint64_t sent;      /* data messages and datagrams that left a sender */
	uint64_t delivered; /* reached a live connection or port */
	uint64_t dropped, duplicated, reordered, corrupted;
	uint64_t overflowed; /* lossy: lost to a full pipe; datagrams: to a full port */
	uint64_t late;       /* payloads read after their flush() */
	uint64_t torn; /* payloads in datagrams that were not the same any more when they were read, and not known to
			  have come; and relied on */
	uint64_t stream_bytes; /* delivered on streams */
	uint64_t streams_corrupted, streams_broken;
	size_t bytes_peak; /* of payload copies in memory at once */
};

/*
 * One endpoint; its address goes to transport_config.loop. The fields may be assigned before streams
 * or transports are opened on it.
 */
struct loop_host {
	struct loop_net *net;
	unsigned endpoint;
	int64_t uid;   /* what its peers are told (stream.peer_uid); this process's at first */
	bool remote;   /* its peers see an address that is not loopback (stream.peer_is_local 0) */
	bool up;       /* read only: false after loop_net_kill() */
	unsigned life; /* read only: times it was killed */
};

/* A net of its own; NULL when memory is short. `plan` is copied. */
struct loop_net *loop_net_create(const struct loop_plan *plan);

/* All transports, streams and listeners on it were closed; what is still on the way is forgotten. */
void loop_net_destroy(struct loop_net *net);

/* The host with this number (below plan.hosts). The net's; lives as long as it. */
struct loop_host *loop_net_host(struct loop_net *net, unsigned endpoint);

uint64_t loop_net_now(const struct loop_net *net);

/*
 * When the next thing comes due (at least now), or UINT64_MAX when nothing is on the way. What came
 * due and was not polled yet is not counted, nor what a partition holds up.
 */
uint64_t loop_net_next(const struct loop_net *net);

/* Moves time to `to_ns` (not back) and makes due what is due. */
void loop_net_advance(struct loop_net *net, uint64_t to_ns);

/* Moves time to the next thing due. False when there is none. */
bool loop_net_step(struct loop_net *net);

/* Are messages between a and b exposed to the plan's losses? Decide before queues are created on them. */
void loop_net_lossy(struct loop_net *net, unsigned a, unsigned b, bool on);

/* Delays between a and b other than the plan's, from now on. */
void loop_net_delay(struct loop_net *net, unsigned a, unsigned b, uint64_t min_ns, uint64_t max_ns);

/*
 * While on, nothing passes between a and b: lossy messages are lost, all else waits and comes when
 * it is off again. Nobody is told.
 */
void loop_net_partition(struct loop_net *net, unsigned a, unsigned b, bool on);

/* The same of one way alone: nothing of `from` comes to `to`, which `from` hears as before. */
void loop_net_deafen(struct loop_net *net, unsigned from, unsigned to, bool on);

/* As loop_net_partition(), for streams alone: what passes on them waits. */
void loop_net_partition_streams(struct loop_net *net, unsigned a, unsigned b, bool on);

/*
 * The process at the endpoint dies: what it queued and the net has not read yet is never read, what was on
 * the way arrives, then peers see EVENT_CLOSED, or -ECONNRESET after the last byte of a stream. Its
 * transports, streams and listeners stay to be freed by their owner in the usual ways, but do nothing any more.
 */
void loop_net_kill(struct loop_net *net, unsigned endpoint);

/*
 * Data connections between a and b break: what is on the way is lost, and one end, or both, as chance has it, sees
 * EVENT_CLOSED with `broken`; the other one when its peer has dropped it. New ones can be made at once.
 */
void loop_net_break(struct loop_net *net, unsigned a, unsigned b);

/* A new process starts at the endpoint: opens everything afresh. */
void loop_net_revive(struct loop_net *net, unsigned endpoint);

/* Prints every send, delivery, loss and fault with its virtual time to `file`; NULL: off. */
void loop_net_trace(struct loop_net *net, FILE *file);

/*
 * Who sends a message again may know that it has an answer already, and change its payload while the repetition is
 * read: nobody takes it. Tells whether this endpoint still relies on the message; NULL, as at first: on all of them.
 */
typedef bool (*loop_relies_fn)(void *arg, unsigned endpoint, const void *cookie, const struct wire_header *header);
void loop_net_relies(struct loop_net *net, loop_relies_fn relies, void *arg);

const struct loop_stats *loop_net_stats(const struct loop_net *net);

/* A number of the net's own stream of random numbers: for choices of a test that the seed shall decide. */
uint64_t loop_net_random(struct loop_net *net);

/* Two ends of an open stream. 0 or -ENOMEM. */
int loop_stream_pair(struct loop_host *a, struct loop_host *b, struct stream **a_out, struct stream **b_out);

/* Listens on a port of the host (0: a free one, see loop_listener_port()). 0, -EADDRINUSE, -ENETDOWN or -ENOMEM. */
int loop_stream_listen(struct loop_host *host, uint16_t port, struct loop_listener **out);
uint16_t loop_listener_port(const struct loop_listener *l);

/* The next caller, or -EAGAIN, or -ENETDOWN (killed). */
int loop_stream_accept(struct loop_listener *l, struct stream **out);

/* Stops listening; callers that were not accepted are reset. */
void loop_stream_unlisten(struct loop_listener *l);

/*
 * Begins to connect. Writes say -EAGAIN until the far end has been reached; reads give -ECONNREFUSED when
 * nobody listens there. 0, -ENETDOWN or -ENOMEM.
 */
int loop_stream_dial(struct loop_host *from, unsigned endpoint, uint16_t port, struct stream **out);

/* A datagram that came. */
struct loop_datagram {
	const uint8_t *bytes; /* valid until the next loop_port_receive() */
	uint32_t length;
	unsigned endpoint; /* from where */
	uint16_t port;
};

/*
 * Takes a port of the host for datagrams (0: a free one, see loop_port_number()); streams' ports are others. 0,
 * -EADDRINUSE, -ENETDOWN or -ENOMEM.
 */
int loop_port_bind(struct loop_host *host, uint16_t port, struct loop_port **out);
uint16_t loop_port_number(const struct loop_port *p);

/*
 * Sends `head` and then `rest`, which are read at once, as one datagram. It is lost where memory is short, nobody is,
 * the port there is full, or it is larger than the plan's path_max; it waits for nothing, also not for the end of a
 * partition. A killed host sends and receives nothing.
 */
void loop_port_send(struct loop_port *p, unsigned endpoint, uint16_t port, const void *head, size_t head_bytes,
	const void *rest, size_t rest_bytes);

/* Up to `max` of those that came, oldest first; returns how many. */
unsigned loop_port_receive(struct loop_port *p, struct loop_datagram *in, unsigned max);

/* `wake` is called in loop_net_advance() at that time, unless the host is dead or the port closed by then. */
void loop_port_wake(struct loop_port *p, uint64_t at_ns, void (*wake)(void *user), void *user);

/* What was not received is lost. */
void loop_port_close(struct loop_port *p);

#endif
