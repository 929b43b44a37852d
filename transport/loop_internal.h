/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the network in memory, shared by loop*.c alone.
 *
 * A link joins two ends: side 0 dialled, side 1 listened. All that passes is an item; items wait for
 * their time in one heap and are then handed to the owner of the end they are for: a data connection
 * (loop.c, loop_queue.c) or a stream (loop_stream.c). Order among items of equal time is the order in
 * which they were made, so that a run depends on the seed and the calls alone.
 */
#ifndef PHUB_TRANSPORT_LOOP_INTERNAL_H
#define PHUB_TRANSPORT_LOOP_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "transport/handshake.h"
#include "transport/loop.h"
#include "transport/transport.h"
#include "transport/wire.h"

enum loop_kind {
	LOOP_DIAL,     /* somebody wants to talk to the listener at `port` */
	LOOP_OPEN,     /* the listener's answer to a stream's dialler */
	LOOP_BYTES,    /* of a handshake or a stream */
	LOOP_MESSAGE,  /* a data message */
	LOOP_END,      /* the other end is no more; `error` as in EVENT_CLOSED */
	LOOP_READ,     /* own end: the NIC reads the next payload */
	LOOP_SENT,     /* own end: says so */
	LOOP_WRITABLE, /* own end, never in the heap */
	LOOP_DATAGRAM, /* for the port `port` of that end's host */
};

/* A payload's copy. Shared by the items that carry it. */
struct loop_buf {
	struct loop_buf *next; /* free ones */
	unsigned refs;
	unsigned size_class;
	_Alignas(64) unsigned char bytes[];
};

struct loop_item {
	struct loop_item *prev, *next; /* in the list that has it; both NULL in none */
	struct loop_link *link;
	uint64_t at, order; /* when it comes due; ties go to the older */
	enum loop_kind kind;
	uint8_t to;            /* the side of the link it is for */
	bool embedded;         /* part of its connection: nobody's to free */
	bool counted;          /* in the pipe of that end */
	bool passes;           /* reordered: may come before older ones */
	bool flushed;          /* unsent: flush() has seen it */
	bool held;             /* yielded with a slot that was not released yet */
	uint16_t port;         /* LOOP_DIAL, LOOP_DATAGRAM */
	uint16_t from;         /* LOOP_DATAGRAM: the sender's */
	int error;             /* LOOP_END */
	uint32_t bytes, taken; /* in buf; of which a stream's reader has had so many */
	struct loop_buf *buf;
	const void *payload; /* unsent: the sender's memory */
	void *cookie;
	uint8_t header[WIRE_HEADER_BYTES];
};

/* A ring with a head that carries nothing. */
struct loop_list {
	struct loop_item head;
};

struct loop_end {
	struct loop_host *host;
	unsigned life;     /* of the host when this end was made */
	void *owner;       /* loop_conn or loop_stream; NULL before it is there and after it is closed */
	uint64_t last_at;  /* nothing reliable comes earlier than this */
	size_t pipe_bytes; /* on the way here or not polled yet */
	bool ended;        /* has sent its LOOP_END, or never will */
};

/* What the owners of a link's ends are. */
struct loop_class {
	const char *name;
	/* An item came due for this owner, who takes it. */
	void (*deliver)(void *owner, struct loop_item *item);
	bool streams; /* their faults are those that the plan has for streams */
	/* The owner on the other side may send again: the pipe to `side` has room. NULL when it asks by itself. */
	void (*room)(void *owner);
};

struct loop_link {
	struct loop_link *prev, *next; /* on the net */
	struct loop_net *net;
	const struct loop_class *class;
	unsigned refs; /* owners and items */
	bool lossy;
	bool broken; /* no message comes through any more: loop_net_break() */
	struct loop_end ends[2];
};

struct loop_listener {
	struct loop_listener *prev, *next; /* on the net */
	struct loop_host *host;
	unsigned life;
	uint16_t port;
	const struct loop_class *class;
	/* A dialler is here; makes an owner for side 1. 0, or a negative errno that the dialler gets. */
	int (*arrive)(struct loop_listener *l, struct loop_link *link);
};

/* Where datagrams come and go. Side 0 of its links, which nobody has the other side of. */
struct loop_port {
	struct loop_port *prev, *next; /* on the net */
	struct loop_host *host;
	unsigned life;
	uint16_t number;
	size_t inbox_bytes;
	struct loop_list inbox, lent; /* came, and given out by the last receive() */
	void (*wake)(void *user);
	void *user;
	struct loop_link *links[]; /* [plan.hosts] to each host, made when something is sent there */
};

struct loop_pair {
	uint64_t delay_min_ns, delay_max_ns;
	bool own_delay, lossy, cut, streams_cut;
	bool deaf[2]; /* the smaller number hears nothing of the other; the larger one */
};

enum { LOOP_SIZE_CLASSES = 17 }; /* 64 bytes .. 4 MiB */

struct loop_net {
	struct loop_plan plan;
	uint64_t now, order;
	uint64_t random[4];
	struct loop_host *hosts; /* [plan.hosts] */
	uint16_t *next_port;     /* [plan.hosts] */
	struct loop_pair *pairs; /* [plan.hosts * plan.hosts], the smaller number first */
	struct loop_item **heap;
	size_t heap_count, heap_room;
	struct loop_list parked; /* held up by partitions */
	struct loop_item *free_items;
	size_t item_count; /* made so far; the heap has room for all of them */
	struct loop_buf *free_bufs[LOOP_SIZE_CLASSES];
	size_t buf_bytes;
	struct loop_link *links;
	struct loop_listener *listeners;
	struct loop_port *ports;
	struct loop_stats stats;
	loop_relies_fn relies; /* or NULL */
	void *relies_arg;
	FILE *trace;
};

/* Lists. */
void loop_list_init(struct loop_list *list);
void loop_list_push(struct loop_list *list, struct loop_item *item);
struct loop_item *loop_list_first(const struct loop_list *list); /* NULL when empty */
struct loop_item *loop_list_next(const struct loop_list *list, const struct loop_item *item);
void loop_list_remove(struct loop_item *item);
/* Frees those of `link` that are for `side`; all of them when link is NULL. Returns how many. */
unsigned loop_list_purge(struct loop_list *list, const struct loop_link *link, unsigned side);

/* loop_net.c: time and chance */
bool loop_chance(struct loop_net *net, double probability);
uint64_t loop_between(struct loop_net *net, uint64_t min, uint64_t max);
void loop_heap_push(struct loop_net *net, struct loop_item *item);
bool loop_host_alive(const struct loop_host *host, unsigned life);
struct loop_pair *loop_pair(struct loop_net *net, unsigned a, unsigned b);
struct loop_listener *loop_listener_find(struct loop_net *net, const struct loop_host *host, uint16_t port);
int loop_listener_open(struct loop_listener *l, struct loop_host *host, uint16_t port);
void loop_listener_close(struct loop_listener *l);
/* A number for a listener or port of the host that none of either has; 0: none is left. */
uint16_t loop_number_free(struct loop_net *net, const struct loop_host *host);
/* One line of the trace, when it is on. */
void loop_trace(struct loop_net *net, const char *verb, const struct loop_item *item);

/* loop_link.c: links, items, buffers; those that make something return NULL when memory is short */
struct loop_item *loop_item_new(struct loop_link *link, enum loop_kind kind, unsigned to);
void loop_item_free(struct loop_item *item);
struct loop_buf *loop_buf_new(struct loop_net *net, size_t bytes);
void loop_buf_put(struct loop_net *net, struct loop_buf *buf);
struct loop_link *loop_link_new(struct loop_host *from, struct loop_host *to, const struct loop_class *class);
/* Joins an owner to a side; it is in the link's count until loop_link_leave(). */
void loop_link_join(struct loop_link *link, unsigned side, void *owner);
/* The owner is gone: the other side is told (with `error`), and nothing is delivered to this one any more. */
void loop_link_leave(struct loop_link *link, unsigned side, int error);
void loop_link_put(struct loop_link *link);
/* Sends the LOOP_END of this side, once. */
void loop_link_end(struct loop_link *link, unsigned side, int error);
/* Is the process at this end the one that made it? */
bool loop_link_alive(const struct loop_link *link, unsigned side);
/* Sends an item on its way to its side: reliable, in order. */
void loop_link_send(struct loop_item *item);
/* Makes and sends `bytes` as LOOP_BYTES. 0 or -ENOMEM. */
int loop_link_send_bytes(struct loop_link *link, unsigned to, const void *data, size_t bytes);
int loop_link_dial(struct loop_link *link, uint16_t port);
/* Counts an item into, and out of, the pipe of the end it is for. */
void loop_pipe_enter(struct loop_item *item);
void loop_pipe_leave(struct loop_item *item);
/* An item has come due. */
void loop_link_fire(struct loop_item *item);

/* loop_port.c: one has come to its host. */
void loop_port_arrive(struct loop_item *item);
struct loop_port *loop_port_find(const struct loop_net *net, const struct loop_host *host, uint16_t number);

/* One data connection's end. */
struct loop_conn {
	struct conn head;
	struct loop_conn *prev, *next; /* strangers of the transport, or connections of the queue */
	struct loop_conn *dirty_next;  /* of the queue: send() since the last flush() */
	bool dirty;
	bool closed;  /* `closing` is in the inbox or was yielded */
	bool deaf;    /* no message is yielded any more: EVENT_CLOSED was, or is the next */
	bool reading; /* a LOOP_READ is in the heap */
	bool stalled; /* ... is not, since the pipe is full */
	unsigned side;
	struct loop_link *link;
	const struct conn_spec *spec;
	struct handshake hands;
	int error;               /* before adopt(): why it is over */
	uint64_t since_ns;       /* stranger: when accept() first saw it, 0 before */
	struct loop_list early;  /* came before adopt() */
	struct loop_list unsent; /* the NIC has not read these payloads */
	size_t unsent_bytes;
	size_t refused_bytes;     /* what send() said -EAGAIN to; 0: nothing */
	struct loop_item closing; /* LOOP_END of our own making */
	struct loop_item writable;
};

struct loop_queue {
	struct queue head;
	struct loop_transport *transport;
	struct loop_conn *conns;
	struct loop_conn *dirty;
	unsigned conn_count, held_count;
	struct loop_list ready; /* to be yielded, oldest first */
	struct loop_list lent;  /* yielded by the last poll(), without a slot */
	struct loop_list held;  /* yielded with a slot */
};

struct loop_transport {
	struct transport head;
	struct transport_config config;
	struct loop_host *host;
	unsigned life;
	unsigned queue_count;
	bool listening;
	struct loop_listener listener;
	struct loop_conn *strangers, **strangers_tail;
	unsigned stranger_count;
};

extern const struct queue_ops loop_queue_ops;
extern const struct loop_class loop_conn_class;

/* loop_queue.c, for the class */
void loop_conn_deliver(void *owner, struct loop_item *item);
void loop_conn_room(void *owner);
/* This end of a connection sees that it is broken. Before it was adopted: nothing. */
void loop_conn_break(void *owner);

#endif
