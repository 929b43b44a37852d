/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the tcp transport share: tcp.c and tcp_rx.c move messages (owning core),
 * tcp_setup.c makes connections (control thread). Included by these and their tests alone.
 */
#ifndef PHUB_TRANSPORT_TCP_INTERNAL_H
#define PHUB_TRANSPORT_TCP_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "phub/base/list.h"
#include "transport/handshake.h"
#include "transport/transport.h"

enum {
	TCP_STRANGERS_MAX = 256,       /* handshakes in progress; one more ends the oldest */
	TCP_HANDSHAKE_MS = 5000,       /* when the configuration names no other */
	TCP_QUEUE_CONNS = 1024,        /* likewise */
	TCP_SEND_BYTES = 256 << 10,    /* likewise: unsent bytes of one connection */
	TCP_SEND_SLOTS = 256,          /* unsent or unreported messages of one connection; a power of 2 */
	TCP_GATHER = 32,               /* messages of one sendmsg() */
	TCP_BATCH = 16,                /* messages that one connection yields in one poll() */
	TCP_SMALL = 4 << 10,           /* a payload up to this is small: the read goes on past the next header, */
	TCP_READ_AHEAD_SINK = 4 << 10, /* so far, where payloads belong in sinks and would be copied twice */
	TCP_READ_BYTES = 128 << 10,    /* payloads of one read, where they belong in none */
	TCP_EVENTS = 64,               /* of one epoll_wait() */
};

/* One message that send() took. */
struct tcp_slot {
	uint8_t header[WIRE_HEADER_BYTES];
	const void *payload;
	void *cookie;
	uint32_t length;
};

/*
 * Bytes that came, and the message they belong to. The unparsed ones are buf[start..end). While
 * `known`, they are the payload of `header`; else they begin with a header.
 */
struct tcp_rx {
	uint8_t *buf;
	uint32_t room; /* of buf: at least the largest payload and two headers */
	uint32_t start, end;
	uint32_t payload_max;
	uint32_t last; /* payload bytes of the message before: the next one is likely as long */
	uint32_t sunk; /* direct: payload bytes that are where they belong, or were thrown away */
	bool known;    /* `header` is the current message's */
	bool direct;   /* its payload goes to `sink`, or nowhere once `sink` is NULL */
	uint8_t *sink;
	struct wire_header header;
};

/*
 * Messages to be sent, a ring of TCP_SEND_SLOTS: free-running indexes, head <= next <= tail.
 * [head, next) were taken by the kernel and wait to be reported, [next, tail) wait to be taken.
 */
struct tcp_tx {
	struct tcp_slot *slots;
	uint32_t head, next, tail;
	uint32_t partial; /* bytes of slots[next], header included, that the kernel has already */
	uint64_t unsent;  /* bytes, headers included */
	uint64_t unsent_max;
	bool blocked; /* the socket is full: nothing is tried before EPOLLOUT */
	bool wanted;  /* a send() said -EAGAIN: EVENT_WRITABLE is owed */
	bool broken;  /* no byte will go out any more; what came in is still read */
};

enum tcp_state {
	TCP_CONNECTING, /* worker: connect() is under way */
	TCP_SHAKING,    /* the handshake is under way */
	TCP_ADMITTED,   /* welcomed, in no queue yet */
	TCP_OPEN,       /* in a queue */
	TCP_CLOSED,     /* over: EVENT_CLOSED was yielded or is about to be */
};

struct tcp_conn {
	struct conn conn;
	int fd;
	enum tcp_state state;
	const struct conn_spec *spec;
	struct tcp_rx rx;
	struct tcp_tx tx;
	struct list_link ready;  /* tcp_queue.ready; before adoption: tcp.strangers or tcp.complete */
	struct list_link dirty;  /* tcp_queue.dirty */
	struct list_link report; /* tcp_queue.report */
	bool hung_up;            /* epoll told of an end or an error: read until it shows */
	bool close_owed;         /* EVENT_CLOSED is not yielded yet */
	int error;               /* of EVENT_CLOSED */
	/* Before adoption only. */
	bool is_box;
	uint64_t deadline_ns; /* box: 0 until accept() has seen it once */
	uint8_t source[16];   /* box: rate.h */
	struct handshake handshake;
};

struct tcp_queue {
	struct queue queue;
	int epoll_fd;
	unsigned conns, conns_max;
	unsigned send_bytes_max; /* of connections made here; 0: default */
	unsigned ready_count;    /* length of `ready` */
	unsigned blocked_count;  /* connections with tx.blocked */
	unsigned polls;          /* since the last epoll_wait() */
	struct list_link ready;  /* may have bytes to read */
	struct list_link dirty;  /* send() was called since the last flush() */
	struct list_link report; /* owe EVENT_SENT, EVENT_WRITABLE or EVENT_CLOSED */
	struct epoll_event events[TCP_EVENTS];
};

/* The hot table, for tcp_setup.c. */
extern const struct queue_ops tcp_queue_ops;

/* Gives `c` its buffers for `spec`. Either thread, before adoption. 0 or -ENOMEM, or -EINVAL for a payload_max of 0 or
 * above the wire's. */
int tcp_conn_prepare(struct tcp_conn *c, const struct conn_spec *spec, unsigned send_bytes_max);
/* Ends the socket and frees everything. Either thread; `c` is in no list. */
void tcp_conn_free(struct tcp_conn *c);

/*
 * Looks again where the current payload goes, before bytes are written: the owner may have cleared or moved the sink
 * between two polls.
 */
void tcp_rx_aim_again(struct tcp_rx *rx, const struct conn_spec *spec);

/* Yields the messages that lie in the buffer; `*error` is set when what follows them breaks the protocol. */
unsigned tcp_rx_parse(struct tcp_conn *c, struct event *events, unsigned max, int *error);

/*
 * Reads, by one system call. No message yielded may lie in the buffer any more. Returns 1 when the socket may hold
 * more, 0 when it is empty, -EAGAIN when it was empty, or another negative errno; an orderly end is -ESHUTDOWN.
 */
int tcp_rx_fill(struct tcp_conn *c);

#endif
