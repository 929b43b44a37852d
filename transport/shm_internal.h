/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the rooms of the shared-memory transport share: shm.c (hot, the queue's owner), shm_setup.c (cold, the box),
 * shm_join.c (cold, the worker). Nobody else includes this but tests that play a hostile worker.
 */
#ifndef PHUB_TRANSPORT_SHM_INTERNAL_H
#define PHUB_TRANSPORT_SHM_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "phub/base/err.h"
#include "phub/base/mem.h"
#include "transport/handshake.h"
#include "transport/shm_parcel.h"
#include "transport/shm_ring.h"
#include "transport/transport.h"

enum {
	SHM_STRANGERS_MAX = 256, /* handshakes under way at once; one more ends the oldest */
	SHM_HANDSHAKE_MS = 5000, /* when the configuration names no time */
	SHM_QUEUE_CONNS = 1024,  /* when the configuration names no bound */
	SHM_MAPS_MAX = 64,       /* regions that one worker's transport has mapped */
	SHM_ADDRESS_BYTES = 108, /* "@" and a name of at most 106 bytes, NUL */
};

/* A region of the box in a worker: which file it is, and where it is mapped. */
struct shm_map {
	dev_t dev;
	ino_t ino;
	struct mem_region region;
	bool writable;
};

TAILQ_HEAD(shm_list, shm_conn);

struct shm_transport {
	struct transport head;
	unsigned queue_conns_max;
	uint64_t handshake_ns;
	unsigned queue_count;
	bool apart;
	int epoll;                 /* the listener, strangers, and a worker's connections under way */
	int listener;              /* -1: none */
	uint64_t listen_again_ns;  /* listening rests until then, for want of descriptors; 0: it does not */
	struct shm_list strangers; /* handshakes under way, oldest first */
	struct shm_list complete;  /* hellos that accept() has not returned yet */
	unsigned stranger_count;   /* in both */
	/*
	 * The box's regions that a worker has mapped, each once for all of its connections. They stay until the
	 * transport is closed: the user's gradients may lie there, and outlive the connections. None where the
	 * transport is `apart`: then they are each connection's own, which another thread may end.
	 */
	struct shm_map maps[SHM_MAPS_MAX];
	unsigned map_count;
};

enum shm_stage {
	SHM_DIALING,   /* worker: the box's backlog was full, to be tried again */
	SHM_SHAKING,   /* either end: the handshake is under way */
	SHM_ASKING,    /* box: accept() has returned its hello */
	SHM_UNPACKING, /* worker: welcomed, the parcel has not come */
	SHM_READY,     /* set up, not adopted */
	SHM_OPEN,      /* in a queue */
	SHM_ENDING,    /* in a queue; the peer is gone, what it had published is still yielded */
	SHM_FAILED,    /* in a queue; nothing is yielded any more but EVENT_CLOSED */
	SHM_CLOSED,    /* EVENT_CLOSED was yielded: waits for drop() */
};

struct shm_conn {
	struct conn head;

	/* hot: the queue's owner, once it is adopted */
	struct shm_ring ring;
	enum shm_stage stage;
	bool box;     /* this end is the box's */
	bool dirty;   /* in the queue's list of connections to publish */
	bool blocked; /* a send() said -EAGAIN and EVENT_WRITABLE has not followed */
	const struct span *spans;
	uint32_t chunk_count;
	bool shorter;      /* conn_spec's */
	const uint8_t *in; /* where the peer's payloads lie: box: the push region, worker: the result region */
	uint64_t in_bytes;
	const uint8_t *out; /* where ours lie */
	uint64_t out_bytes;
	struct shm_slots slots; /* in the push region */
	void **cookies;         /* [capacity] of sends, in order, until EVENT_SENT */
	uint32_t cookie_head, cookie_published, cookie_tail;
	uint64_t slots_held; /* yielded and not released */
	int error;           /* for EVENT_CLOSED */
	unsigned index;      /* in the queue's list */

	/* cold */
	int socket;
	int bell_in;              /* rung by the peer: box: an eventfd, worker: a pipe's read end */
	int bell_out;             /* rung by us: box: the pipe's write end, worker: the eventfd */
	int bell_keep;            /* box: the pipe's read end, so that ringing a dead worker raises no SIGPIPE */
	struct mem_region memory; /* the rings */
	struct mem_region own[2]; /* worker, apart: the push and the result region; else none */
	uint32_t capacity;
	struct handshake hands;
	uint32_t core;                   /* worker: for messages */
	char address[SHM_ADDRESS_BYTES]; /* worker: the box's */
	uint64_t deadline_ns;
	bool watched;               /* by the transport's epoll set */
	TAILQ_ENTRY(shm_conn) link; /* in one of the transport's lists */
};

extern const struct queue_ops shm_queue_ops;

/* shm.c: a queue, owned by whoever polls it. */
int shm_queue_create(struct transport *t, int node, struct queue **out, struct err *e);
void shm_queue_destroy(struct transport *t, struct queue *q);

/* shm_setup.c: a connection around a socket, which becomes its own; NULL when memory is short. */
struct shm_conn *shm_conn_create(struct shm_transport *t, int socket, bool box);

/* Ends and frees it, whatever its stage; no queue knows it any more. Any thread that owns it. */
void shm_conn_free(struct shm_conn *c);

/* Takes the rings in c->memory into use, with this capacity. 0 or -ENOMEM. */
int shm_conn_attach(struct shm_conn *c, uint32_t capacity);

/*
 * Moves the handshake on as far as the socket allows. 0 when this end wants nothing more from the peer, -EAGAIN, or
 * the error that ended it.
 */
int shm_conn_shake(struct shm_conn *c);

/* Has the transport's epoll set watch the connection's socket, or no longer. Watching: 0 or a negative errno. */
int shm_conn_watch(struct shm_transport *t, struct shm_conn *c);
void shm_conn_unwatch(struct shm_transport *t, struct shm_conn *c);

/* Do all chunks lie within `bytes`? */
bool shm_spans_fit(const struct span *spans, uint32_t chunk_count, uint64_t bytes);

/* Fills conn.peer from the socket's credentials; the peer's uid in `uid`. 0 or a negative errno. */
int shm_conn_identify(struct shm_conn *c, uid_t *uid);

/* shm_join.c: the worker's part of the cold table. */
int shm_connect(struct transport *t, const char *address, uint64_t session, uint32_t core, const uint8_t *key,
	const struct conn_spec *spec, struct conn **out, struct err *e);
int shm_established(struct transport *t, struct conn *c, struct err *e);
void shm_join_close(struct shm_transport *t);

#endif
