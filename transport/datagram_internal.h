/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of transports over datagrams share: datagram.c is the queue (its owner), datagram_join.c the box's end
 * of how connections come about and datagram_dial.c the worker's (control thread). Four signals that the control
 * session carries, as for verbs:
 *
 *      worker                                        box
 *      dial     type 1, port that was dialled 2
 *                                                    nonce    type 2, handshake 24
 *      hello    type 3, handshake 56, place 32
 *                                                    welcome  type 4, handshake 16, and when it is one:
 *                                                             seal 1, place 32
 *      gone     type 5, code 4: from either end, at any time
 *
 *      place    connection's name 4, port 2, zero 2, largest datagram 4, IPv6 scope 4, address 16 (mapped IPv4; a
 *               box's may be zeros: as dialled)
 *
 * The worker's place is a first guess, to which no message is sent: its probes tell where it is, and are followed when
 * the worker has shown that it receives there (wire.h, way).
 */
#ifndef PHUB_TRANSPORT_DATAGRAM_INTERNAL_H
#define PHUB_TRANSPORT_DATAGRAM_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/list.h"
#include "transport/datagram.h"
#include "transport/signal.h"

enum datagram_signal {
	DATAGRAM_DIAL = 1,
	DATAGRAM_NONCE = 2,
	DATAGRAM_HELLO = 3,
	DATAGRAM_WELCOME = 4,
	DATAGRAM_GONE = 5
};

enum {
	DATAGRAM_PLACE_BYTES = 32,
	DATAGRAM_QUEUES_MAX = 1024,
	DATAGRAM_STRANGERS_MAX = 1024, /* handshakes in progress */
	DATAGRAM_DIALS_MAX = 256,      /* of one session */
	DATAGRAM_HANDSHAKE_MS = 5000,  /* when the configuration names no other */
	DATAGRAM_QUEUE_CONNS = 1024,   /* likewise */
	DATAGRAM_BATCH = 64,           /* that are taken from the port at once */
	DATAGRAM_RECEIVES = 4,         /* so often in one poll, at most */
	DATAGRAM_SIZES = 4,            /* that are tried */
};

enum datagram_state {
	DATAGRAM_DIALLED,  /* worker: no nonce yet */
	DATAGRAM_SHAKING,  /* the handshake is under way */
	DATAGRAM_ADMITTED, /* welcomed, in no queue yet */
	DATAGRAM_OPEN,     /* in a queue */
	DATAGRAM_CLOSED,   /* worker: the attempt has failed */
};

struct datagram;
struct datagram_queue;

/* Which datagrams come through: a worker's first question. */
struct datagram_trial {
	struct list_link link; /* datagram_queue.trials, while it goes on */
	uint32_t sizes[DATAGRAM_SIZES];
	unsigned count;
	uint32_t best;     /* the largest that came back; 0: none */
	bool told;         /* the box is being told: by two at a time, which the kernel may hand over as one, */
	bool alone;        /* or, where that does not come through, by one */
	uint64_t told_ns;  /* since when */
	uint64_t began_ns; /* 0: not begun */
	uint64_t heard_ns; /* when the first came back; 0: none did */
	uint64_t next_ns;  /* when to ask again */
	uint64_t pause_ns; /* and how long after that */
};

/* Does anything still come through? A worker asks when it has heard nothing for a while; the box sees where it is. */
struct datagram_watch {
	struct list_link link; /* datagram_queue.watched */
	uint64_t since_ns;     /* that it asks; 0: it does not */
	bool small;            /* small datagrams came back since */
	uint64_t heard_ns;     /* when something came last, as it was seen then, */
	uint64_t looked_ns;    /* and when it was looked */
	uint64_t quiet_ns;     /* so long nothing came, as far as it looked */
};

struct datagram_conn {
	struct conn conn;
	struct datagram *transport;
	/* Of strangers, complete, asked; worker: of dialled, until it is freed or, apart, handed over. */
	struct list_link link;
	enum datagram_state state;
	bool is_box;
	bool gone;        /* the peer has said that it is */
	bool reads;       /* box: spec->result may be read by a device: memory_end() is due */
	int error;        /* DATAGRAM_CLOSED */
	const char *why;  /* with EVENT_CLOSED */
	uint64_t session; /* of the control session that carries its signals */
	uint32_t core, number;
	uint64_t deadline_ns; /* box: 0 until accept() has seen it once */
	struct handshake handshake;
	uint8_t key[PROOF_KEY];   /* worker: wiped when the seals are made */
	struct signal_list heard; /* worker: not yet looked at */
	const struct conn_spec *spec;
	uint32_t here, there;         /* its names */
	struct datagram_address peer; /* the queue's owner's, once it is in one */
	struct datagram_address own;  /* with which the peer is reached; zero at a box that does not know */
	uint32_t datagram_max;        /* what the way to the peer carries */
	struct reliable_conn *reliable;
	struct datagram_trial trial;
	struct datagram_watch watch;
	bool shown;                     /* box: the peer was seen to receive at `peer` */
	struct datagram_address way_to; /* box: whose number this is, which shows that: */
	uint64_t way;                   /* 0: none was made yet */
	bool unchecked;                 /* nobody but the seal checks what comes at the peer's end, or what it sends */
};

struct datagram {
	struct transport transport;
	const struct datagram_class *class;
	void *owner;
	unsigned conns_max, send_bytes_max;
	uint64_t handshake_ns;
	struct datagram_port *first; /* box: opened by listen() for the first queue */
	bool listens;
	bool apart;     /* see transport_config */
	char host[256]; /* box: that its ports are opened for */
	uint16_t port;  /* box: that is dialled */
	unsigned queue_count;
	struct list_link strangers, complete, asked, dialled; /* asked: the owner of the session makes up its mind */
	unsigned stranger_count;
	struct signal_list said;
	uint32_t numbers; /* of connections that were begun here */
	uint32_t names;   /* that were given */
	uint8_t names_key[PROOF_NONCE];
	uint8_t ways_key[PROOF_KEY]; /* box: of the numbers that show where workers receive */
};

struct datagram_queue {
	struct queue queue;
	struct datagram *transport;
	struct datagram_port *port;
	struct reliable *reliable;
	struct reliable_config config;
	uint64_t now_ns;          /* the latest that was seen */
	bool full;                /* the port had no room left */
	struct list_link trials;  /* connections that are asking what comes through */
	struct list_link watched; /* worker: all connections */
	uint64_t watch_ns;        /* when to look at them */
	bool kept;                /* `event` found no room in the last poll */
	struct event event;
	unsigned at, count;  /* datagrams that were not looked at: in[at..count) */
	unsigned unanswered; /* that came since the last answers went out */
	struct datagram_in in[DATAGRAM_BATCH];
};

extern const struct queue_ops datagram_queue_ops;

/* ---- datagram_join.c, for both ends ---- */

/* Begins a signal of this connection. NULL: no memory; the other end will find out by waiting. */
struct signal *datagram_say(const struct datagram_conn *c, enum datagram_signal type);
/* This is the end, and why: an errno. */
void datagram_say_gone(const struct datagram_conn *c, int error);
/* Where this end of the connection is: `port` of its queue, and `own` address; and whether it checks what comes. */
void datagram_say_place(
	struct signal *s, const struct datagram_conn *c, const struct datagram_address *own, uint32_t datagram_max);
/* Where the peer is. 0, or -EPROTO for what cannot be. */
int datagram_hear_place(struct signal_reader *in, struct datagram_conn *c);
/* NULL: no memory, or no random number. */
struct datagram_conn *datagram_conn_create(struct datagram *t, bool is_box);
/* It is in no queue. */
void datagram_conn_free(struct datagram_conn *c);
/* What it needs before the first datagram: its seals, by `kind`, and room. 0, or a negative errno. */
int datagram_conn_prepare(struct datagram_conn *c, const uint8_t *key, unsigned kind, struct err *e);
/* A connection that is in this list, by the session, core and number of a signal, or NULL. */
struct datagram_conn *datagram_find(const struct list_link *list, const struct signal *s);
/* The transport closes: nobody is let in any more. */
void datagram_strangers_end(struct datagram *t);

/* ---- datagram_dial.c ---- */

/* Something for a connection that this end has begun. */
void datagram_hear_dialled(struct datagram_conn *c, const struct signal *s);

/* ---- datagram.c ---- */

/* Asks what comes through, from now on, until it is known. */
void datagram_trial_begin(struct datagram_queue *q, struct datagram_conn *c);

#endif
