/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the verbs transport share: verbs.c, verbs_tx.c and verbs_rx.c move messages (owning core),
 * verbs_pool.c has the receive slots, verbs_arena.c their memory, verbs_pair.c the queue pairs, verbs_setup.c makes the
 * transport and its queues, verbs_signal.c, verbs_join.c and verbs_dial.c its connections, verbs_path.c finds the way
 * to peers. Included by these and their tests alone.
 *
 * A push is one SEND with immediate: the payload, then a trailer of 88 bytes, into a receive slot of the job. A result
 * is one RDMA WRITE with immediate to where the push said, or, when the worker cannot derive its header from that push,
 * a WRITE and a SEND with the header spelled out. Grants are such SENDs. A connection has a rail (a queue pair) per
 * pair of ports that it takes (rails.h).
 *
 *      immediate of a push      the chunk
 *      immediate of a result    the chunk in the low chunk_bits, the low bits of the credit above
 *      trailer                  wire header 64, landing address 8, its rkey 4, its bytes 4, order 4, zero 4
 *      spelled out              wire header 64, messages before it 4, zero 4
 *
 * To compare, a box may let workers write pushes, with their trailers, into a buffer of their own for each chunk, by
 * RDMA WRITE with immediate, as the paper's did: that takes a job's size of memory for each worker, and remote access
 * to it.
 *
 * The end of a connection is told by a datagram (the bell), because a queue pair in error can say nothing more.
 */
#ifndef PHUB_TRANSPORT_VERBS_INTERNAL_H
#define PHUB_TRANSPORT_VERBS_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/clock.h"
#include "phub/base/list.h"
#include "phub/base/mem.h"
#include "transport/handshake.h"
#include "transport/rails.h"
#include "transport/signal.h"
#include "transport/transport.h"
#include "transport/verbs_device.h"

enum {
	VERBS_DEVICES_MAX = RAILS_PORTS_MAX, /* ports that are opened */
	VERBS_RAILS_MAX = RAILS_MAX,         /* of a connection */
	VERBS_QUEUES_MAX = 256,              /* whose node a box tells workers of */
	VERBS_SEND_SLOTS = 128,              /* of a rail: messages that are not known to be done; a power of 2 */
	VERBS_SEND_BYTES = 2 << 20,          /* of a connection, when the configuration names no other bound */
	VERBS_SIGNAL_EVERY = 16,
	VERBS_WCS = 32,        /* completions of one ibv_poll_cq() */
	VERBS_SPARE_SLOTS = 2, /* of a rail: for nudges, which take no credit */
	VERBS_REPOST = 16,     /* receive slots that are given back at once */
	VERBS_TRAILER_BYTES = 88,
	VERBS_SPELLED_BYTES = 72, /* a header that is spelled out, and how many messages were before it, of all rails */
	VERBS_WORKER_RECVS = 32,  /* of a worker's rail, beside one for each chunk: grants, and the last word */
	VERBS_BELL_RECVS = 128,
	VERBS_BELL_BYTES = 40 + 16, /* global route header, then the datagram */
	VERBS_HOLD_MAX = 128,       /* slots that a core may keep */
	VERBS_CONNS = 1024,         /* of a queue, when the configuration names no other bound */
	VERBS_STRANGERS_MAX = 4096,
	VERBS_DIALS_MAX = 256, /* of one session at a time */
	VERBS_HANDSHAKE_MS = 5000,
	VERBS_CQES_MIN = 1024,
	VERBS_TIMEOUT = 17,  /* 4.096 us * 2^17 = 0.54 s for an acknowledgement: a port may be away for three seconds */
	VERBS_RETRIES = 6,   /* 7 is for ever with some devices */
	VERBS_RNR_TIMER = 6, /* 0.08 ms until a receiver that had no slot is asked again */
	VERBS_RNR_RETRIES = 7, /* for ever: this peer is alive */
};

#define VERBS_SLOT_ALIGN   64u
#define VERBS_NUDGE_NS     100000000ull  /* completions that nobody asked for are asked for after so long */
#define VERBS_PING_NS      1000000000ull /* a connection that was quiet so long is asked whether it is there */
#define VERBS_SHUN_LAST_NS 3000000000ull
#define VERBS_SHUN_NS      60000000000ull /* a pair of ports that led nowhere is not taken while others are there */
#define VERBS_DRAIN_NS     100000000ull   /* the longest that a queue pair in error is waited for */
#define VERBS_STUCK_NS     30000000000ull /* a device that has not answered that for so long does not answer any more */

/* What a completion belongs to: the low bits of wr_id; the rest is a pointer. */
enum verbs_work {
	VERBS_RECV = 0,      /* struct verbs_recv */
	VERBS_SEND = 1,      /* struct verbs_slot */
	VERBS_NUDGE = 2,     /* struct verbs_rail */
	VERBS_BELL_RECV = 3, /* struct verbs_recv */
	VERBS_BELL_SEND = 4, /* struct verbs_port */
	VERBS_DRAIN = 5,     /* struct verbs_rail */
	VERBS_WORK_MASK = 7,
};

/* A posted receive, and the message that came into it until it is given back. */
struct verbs_recv {
	struct ibv_recv_wr wr;
	struct ibv_sge sge;
	struct verbs_recv *next; /* in a queue's inbox or strays, or a pool's free ones */
	struct verbs_pool *pool; /* box: that it is of */
	struct verbs_rail *rail; /* that the message came by; worker: that it is posted to */
	uint32_t device;         /* that it is posted to: index in the transport's */
	uint32_t qpn;            /* of the message, while its rail is not known */
	uint32_t imm, bytes;
	bool written; /* by RDMA WRITE: `imm` is all there is */
	bool out;     /* with the owner of the queue, or in its inbox: not posted */
};

/*
 * Memory for receive slots: a piece is cut from an extent of an arena, of which there is one for each NUMA node that
 * has queues. Control thread.
 */
struct verbs_extent {
	struct verbs_extent *next; /* of the arena's */
	struct mem_region memory;
	struct ibv_mr *mr[VERBS_DEVICES_MAX]; /* NULL where nobody uses it */
	struct list_link pieces;              /* in the order of their places */
};

struct verbs_piece {
	struct list_link link;       /* verbs_extent.pieces */
	struct verbs_extent *extent; /* NULL: given back */
	size_t at, bytes;
};

struct verbs_arena {
	struct verbs_arena *next; /* of the transport's */
	int node;
	struct verbs_extent *extents;
	struct verbs_extent *first; /* made at start, and stays; NULL: none was */
};

/* Slots that were taken at once, for one more connection at one device. */
struct verbs_batch {
	struct verbs_batch *next; /* of the pool's */
	struct verbs_piece piece;
	uint32_t count;
	struct verbs_recv recvs[]; /* [count] */
};

/* Receive slots that the connections of one job share at one core: at each device those for the ones that use it. */
struct verbs_pool {
	struct verbs *verbs;
	const void *group; /* NULL: of one connection */
	struct queue *queue;
	struct verbs_pool *next; /* of the transport's; control thread */
	unsigned refs;           /* connections; 0: dead, control frees it; under verbs.lock */
	unsigned devices;
	uint32_t count; /* on each device, at most */
	uint32_t bytes; /* of a slot */
	/* Owner of the queue, but for the SRQ, which control makes before the first connection uses the device. */
	struct {
		struct ibv_srq *srq;
		struct verbs_recv *free; /* to be posted by the next flush, or when there are VERBS_REPOST */
		uint32_t free_count;
		uint32_t posted; /* by the owner, less those that are known to be consumed: modulo 2^32 */
	} on[VERBS_DEVICES_MAX];
	struct list_link dirty; /* verbs_queue.pools, while anything is free: the owner's alone */
	atomic_bool listed;     /* in that list: control does not free it; released with all that the owner wrote */
	/* Control adds to it, the owner looks. */
	_Atomic(struct verbs_batch *) batches;
	/* Control; `wanted` under verbs.lock. */
	struct {
		uint32_t wanted; /* slots for the connections that use it */
		uint32_t given;  /* that were made and posted */
		uint32_t cqes;   /* reserved */
	} made[VERBS_DEVICES_MAX];
};

/* One message that send() took. */
struct verbs_slot {
	struct verbs_rail *rail;
	void *cookie;
	uint32_t index; /* free-running: of this message on its rail */
	uint32_t bytes; /* of its payload */
};

/*
 * One queue pair. Messages are a ring of VERBS_SEND_SLOTS with free-running indexes: reported <= done <= rung <= tail
 * and reclaimed <= done. What is done is no longer read by the device: its completion came, or the completion of a
 * later one, or the peer answered it. What is reclaimed has left the device's own queue.
 */
struct verbs_rail {
	struct verbs_conn *conn;
	struct verbs_port *port; /* of the queue */
	struct verbs_device *device;
	struct ibv_qp *qp;
	struct ibv_ah *ah; /* to the peer's bell */
	struct verbs_rail *next_hash;
	uint32_t device_index;
	uint32_t qpn; /* also when the pair is gone */
	uint32_t inline_max;
	uint32_t psn;
	uint32_t unsignalled; /* messages since the last one that asked for a completion */
	uint64_t unsignalled_bytes;
	uint32_t tail, rung, done, reported, reclaimed;
	uint32_t nudged;  /* `tail` when a completion without a message was asked for */
	uint32_t cqes;    /* that it has reserved */
	uint32_t wants;   /* box: slots of its pool that are there for it */
	bool nudging;     /* that is under way */
	bool led_nowhere; /* worker: the device gave up asking the peer */
	uint64_t nudged_ns;
	bool drained;
	/* What the peer said. */
	union ibv_gid peer_gid;
	uint32_t peer_qpn, peer_psn, peer_bell;
	uint16_t peer_lid;
	uint8_t peer_mtu;
	uint8_t peer_port; /* index among the peer's */
	uint32_t rate_mbps;
	struct ibv_send_wr *wrs; /* [2 * VERBS_SEND_SLOTS] two for each message: a result that is spelled out has two */
	struct ibv_sge *sges;    /* [2 * VERBS_SEND_SLOTS] likewise */
	struct verbs_slot *slots; /* [VERBS_SEND_SLOTS] */
	uint8_t *trailers;        /* [VERBS_SEND_SLOTS] of VERBS_TRAILER_BYTES, registered */
	struct ibv_mr *fixed_mr;  /* box, fixed pushes: of verbs_conn.fixed */
	uint32_t fixed_rkey;      /* worker: the box's */
	struct ibv_mr *small_mr;  /* of trailers, and the worker's receives */
	struct mem_region small;
	struct verbs_recv *recvs; /* worker: [recv_count] */
	uint32_t recv_count;
	struct ibv_recv_wr *recv_first, *recv_last; /* worker: to be posted again */
	uint32_t recv_waiting;
};

/* What a chunk's last message said: its result is derived from it. */
struct verbs_asked {
	uint64_t round;
	uint64_t addr;  /* box: landing */
	uint32_t rkey;  /* box */
	uint32_t bytes; /* of the landing; 0: the payload is not wanted */
	void *sink;     /* worker */
	uint32_t hyper;
	uint32_t sent; /* box: index on its rail behind the last result of this chunk; worker: behind the last push */
	uint16_t priority;
	bool open;
};

enum verbs_state {
	VERBS_DIALLED,  /* worker: waits for the nonce */
	VERBS_SHAKING,  /* the handshake is under way */
	VERBS_ADMITTED, /* in no queue yet */
	VERBS_OPEN,     /* in a queue */
	VERBS_CLOSED,   /* over: EVENT_CLOSED was yielded or is about to be */
};

struct verbs_conn {
	struct conn conn;
	struct verbs *verbs;
	struct verbs_queue *queue;
	enum verbs_state state;
	bool is_box;
	const struct conn_spec *spec;
	struct verbs_pool *pool;                      /* box */
	struct verbs_region *result;                  /* box */
	struct verbs_region *memory[CONN_MEMORY_MAX]; /* worker apart: [memory_count] */
	uint32_t memory_count;
	struct verbs_rail rails[VERBS_RAILS_MAX];
	uint32_t rail_count;
	/*
	 * Fixed pushes, as in the paper: each chunk of each worker has its own place at the box, to which the worker
	 * writes. NULL otherwise.
	 */
	uint64_t *fixed_at;        /* [chunk_count] from the beginning of: */
	struct mem_region fixed;   /* box */
	uint64_t fixed_base;       /* worker: its address there; 0: pushes are sent */
	uint8_t *rail_of;          /* [chunk_count], NULL with one rail */
	struct verbs_asked *asked; /* [chunk_count] */
	uint32_t chunk_bits;
	uint32_t credit;         /* box: told last; worker: heard last */
	struct wire_header last; /* job, generation, epoch and rank of the last message of the worker */
	uint64_t token;          /* by which the peer's bell is known */
	uint64_t peer_token;
	uint64_t unsent; /* bytes of messages that are not done */
	uint64_t unsent_max;
	/*
	 * Rails overtake each other: the box takes messages in the order in which they were sent, the worker what is
	 * spelled out when as many have come as were before it. With two rails these are the same; with more, a later
	 * one of a third rail may stand for one that is missing, which nobody minds: the results of one chunk share a
	 * rail, credits only grow, and behind the last word of a membership there are no results.
	 */
	uint32_t order_out, order_in;
	struct verbs_recv *early; /* came before their turn */
	uint32_t early_count;
	uint32_t inbox;  /* messages that are in the queue's inbox, or early */
	bool deaf;       /* what still comes is thrown away */
	bool wanted;     /* a send() said -EAGAIN: EVENT_WRITABLE is owed */
	bool pressed;    /* and it waits for what nobody asked for: the next flush() does */
	bool close_owed; /* EVENT_CLOSED is not yielded yet */
	bool bell_owed;  /* the peer is told of the end */
	int error;       /* of EVENT_CLOSED */
	const char *why;
	uint64_t sent_ns;        /* when the device was last given something */
	struct list_link ring;   /* verbs_queue.dirty: rails have messages that the device was not told of */
	struct list_link report; /* verbs_queue.report: owes events that are no message */
	struct list_link quiet;  /* verbs_queue.tails or .idle */
	struct list_link list;   /* before adoption: verbs.strangers, .complete or .asked; worker: verbs.dialled */
	/* Before adoption only. */
	uint64_t session;
	uint32_t core, number;
	uint64_t deadline_ns;
	bool gone; /* box: the worker has given up */
	struct handshake handshake;
	struct signal_list heard; /* worker: signals that were not yet looked at */
	struct verbs_path *path;  /* ways are being looked for */
	uint8_t dead_rails;       /* box: to which none was found, a bit for each */
	struct verbs_conn *next_grave;
};

/* What a queue has of one device. */
struct verbs_port {
	struct verbs_queue *queue;
	struct verbs_device *device;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_pd *pd; /* the device's, or a parent domain of it in which this queue's pairs need no locks */
	struct ibv_td *td;
	unsigned cqes;         /* room of `cq`; control thread */
	atomic_uint cqes_used; /* of it may be owed at once, at most */
	unsigned rails;        /* of adopted connections */
	unsigned events;       /* wake-ups that were not acknowledged */
	unsigned stray_count;  /* of verbs_queue.stray_bells */
	struct ibv_qp *bell;
	struct ibv_mr *bell_mr;
	uint8_t *bell_memory;
	struct verbs_recv *bell_recvs;
	uint32_t bell_key;
};

struct verbs_queue {
	struct queue queue;
	struct verbs *verbs;
	int node; /* of its owner, or MEM_NODE_ANY */
	struct verbs_port ports[VERBS_DEVICES_MAX];
	unsigned port_count;
	uint32_t live;  /* bits: ports with rails, the only ones that poll() looks at */
	uint32_t armed; /* bits: ports that were asked for a wake-up */
	int epoll_fd;
	unsigned conns, conns_max;
	struct verbs_rail **hash; /* [hash_room] by number of the queue pair */
	uint32_t hash_room;
	struct verbs_recv *inbox_first, *inbox_last;
	struct verbs_recv *strays; /* messages whose connection is not adopted yet, newest first */
	struct verbs_recv *stray_bells;
	struct list_link dirty, report, tails, idle, pools;
	_Atomic(struct verbs_conn *) graves; /* connections that control gave up when the queue knew of them */
	uint64_t now_ns;
};

/* Registered memory: of the caller (worker), or that results are sent from (box). */
struct verbs_region {
	struct verbs_region *next;
	uintptr_t from, to;
	int access;
	struct ibv_mr *mr[VERBS_DEVICES_MAX]; /* NULL where no connection takes that port */
	unsigned uses; /* box, and worker apart: connections; 0: dead, control frees it; under verbs.lock */
	bool foreign;  /* memory of a device that the processor does not touch */
};

struct verbs {
	struct transport transport;
	struct verbs_device devices[VERBS_DEVICES_MAX];
	unsigned device_count;
	int queue_node[VERBS_QUEUES_MAX]; /* by number: a box's core has the queue of its own */
	unsigned queue_count;             /* that were made */
	/* Cores put what control gets: never on the way of a chunk. */
	pthread_mutex_t lock;
	struct verbs_region *regions;
	bool used[VERBS_DEVICES_MAX]; /* worker: devices that a connection takes */
	struct verbs_pool *pools;
	struct verbs_arena *arenas;
	uint64_t slots_taken; /* bytes of all extents */
	struct signal_list said;
	struct list_link strangers, complete, asked, dialled; /* asked: the owner of the session makes up its mind */
	unsigned stranger_count;
	unsigned paths;            /* connections for which ways are being looked for; control */
	unsigned path_threads;     /* that look for ways; under `lock` */
	pthread_cond_t path_ended; /* one less */
	/* Worker: when a pair of ports, its own and the box's, led nowhere; 0: it never did. */
	_Atomic(uint64_t) shunned_ns[VERBS_DEVICES_MAX][VERBS_DEVICES_MAX]; /* relaxed: apart, cores say so, too */
	bool apart;                                                         /* see transport_config */
	unsigned queue_conns_max, send_bytes_max;
	uint64_t slots_bytes, slots_bytes_max; /* box: see transport_config */
	bool fixed;                            /* box: workers write their pushes */
	uint8_t traffic_class;                 /* DSCP above, and two bits of ECN, which are the NIC's to set */
	uint64_t handshake_ns;
	uint32_t numbers;
	char address[64]; /* box: what is dialled; "" while it does not listen */
};

extern const struct queue_ops verbs_queue_ops;

/* Worker: this rail led nowhere. */
static inline void verbs_shun(struct verbs *v, const struct verbs_rail *r)
{
	atomic_store_explicit(&v->shunned_ns[r->device_index][r->peer_port], clock_now_ns(), memory_order_relaxed);
}

/* ---- verbs_setup.c ---- */

/* Gives room for `cqes` more completions at the queue's port. 0 or -ENOSPC. */
int verbs_port_reserve(struct verbs_port *p, unsigned cqes, struct err *e);
/* Memory that ports may learn of, or finds what was named before. NULL: `e` says why. */
struct verbs_region *verbs_region_get(struct verbs *v, void *addr, size_t bytes, int access, struct err *e);
/* Registers it on a device, unless it is. 0 or a negative errno. */
int verbs_region_cover(struct verbs *v, struct verbs_region *r, uint32_t device_index, struct err *e);
/* Worker: its connections take this device from now on, and all its memory is registered there. Likewise. */
int verbs_device_use(struct verbs *v, uint32_t device_index, struct err *e);
/* Worker apart: the memory of this connection, and at this device. Likewise. */
int verbs_memory_get(struct verbs_conn *c, struct err *e);
int verbs_memory_cover(const struct verbs_conn *c, uint32_t device_index, struct err *e);
void verbs_region_put(struct verbs *v, struct verbs_region *r);
/* Control: frees those that nobody uses any more. */
void verbs_regions_reap(struct verbs *v);

/* The ports as seen from a node: `out` has room for v->device_count. */
void verbs_ports_from(const struct verbs *v, int node, struct rails_port *out);

/* ---- verbs_join.c and verbs_dial.c: the box's and the worker's half of transport_ops ---- */

int verbs_connect(struct transport *head, const char *address, uint64_t session, uint32_t core, const uint8_t *key,
	const struct conn_spec *spec, struct conn **out, struct err *e);
int verbs_established(struct transport *head, struct conn *conn, struct err *e);
int verbs_accept(struct transport *head, uint64_t now_ns, struct hello *out);
int verbs_admit(struct transport *head, struct conn *conn, const struct conn_spec *spec, struct err *e);
void verbs_reject(struct transport *head, struct conn *conn, int code);
void verbs_abandon(struct transport *head, struct conn *conn);
int verbs_signal_take(struct transport *head, struct signal *out);
void verbs_signal_give(struct transport *head, const struct signal *in);
/* Ends all that is under way. */
void verbs_join_fini(struct verbs *v);

/* ---- verbs_pair.c: queue pairs and what belongs to them ---- */

/* Makes the rails' queue pairs on the queue's ports, in state INIT. 0 or a negative errno. */
int verbs_rail_create(struct verbs_conn *c, struct verbs_rail *r, uint32_t device_index, struct err *e);
/* Where it goes: the peer's port is known. */
struct ibv_ah_attr verbs_rail_path(const struct verbs_rail *r);
/* Brings it to where it sends and receives: the peer's numbers are known, and the way there was found. */
int verbs_rail_connect(struct verbs_rail *r, struct err *e);
/*
 * Ends the pair: on return the device reads and writes no memory for it. `owner`: the queue whose owner calls; NULL:
 * control, before adoption.
 */
void verbs_rail_destroy(struct verbs_rail *r, struct verbs_queue *owner);
/* Fixed pushes: where each chunk lies; returns the bytes of all, or 0 when there is no memory. */
uint64_t verbs_fixed_lay_out(struct verbs_conn *c);
/* Box: the place for them. 0 or a negative errno. */
int verbs_fixed_take(struct verbs_conn *c, struct err *e);
/* Spreads the chunks over the rails by their rates: both ends come to the same. 0 or -ENOMEM. */
int verbs_rails_spread(struct verbs_conn *c);
/* Frees what is left when its rails are gone. */
void verbs_conn_free(struct verbs_conn *c);
/* Tells the peer that this is the end. */
void verbs_bell_ring(struct verbs_conn *c, int code);

/* ---- verbs_path.c: where peers are ---- */

/* Looks for the ways of all rails: their devices and their peers' ports are known. 0 or a negative errno. */
int verbs_path_begin(struct verbs_conn *c);
/* 0 when the search is over: rails have their address handles, or errors[] says why not. -EAGAIN: not yet. */
int verbs_path_take(struct verbs_conn *c, int errors[VERBS_RAILS_MAX]);
/* Whatever it finds is not wanted any more. Harmless without a search. */
void verbs_path_forsake(struct verbs_conn *c);
/* Until no search runs: seconds, at the worst. */
void verbs_paths_wait(struct verbs *v);

/* ---- verbs_pool.c ---- */

/* The pool of this connection, made when it is the first. NULL: `e` says why. */
struct verbs_pool *verbs_pool_get(struct verbs *v, const struct conn_spec *spec, struct err *e);
/* Makes the slots that this rail of the connection needs at a device. 0 or a negative errno. */
int verbs_pool_cover(struct verbs_conn *c, struct verbs_rail *r, uint32_t device_index, struct err *e);
/* The connection, which is gone, needs none any more. */
void verbs_pool_put(struct verbs_conn *c);
/* Control: frees those that nobody uses any more: memory is unpinned, which no core should wait for. */
void verbs_pools_reap(struct verbs *v);
/* The queue has no owner any more: none of its pools is in its list. */
void verbs_pools_leave(struct verbs_queue *q);
/* Owner of the queue: gives a slot back; it is posted with others. */
void verbs_pool_release(struct verbs_queue *q, struct verbs_recv *r);
/* Posts what is free, and counts that (n may be NULL). 0 or a negative errno. */
int verbs_pool_post(struct verbs_pool *p, struct queue_counters *n);

/* ---- verbs_arena.c ---- */

/* The first piece of the extent that is free. False: there is none so large. */
bool verbs_extent_take(struct verbs_extent *x, size_t bytes, struct verbs_piece *out);
/* Harmless on one that was given back, or is all zero. */
void verbs_piece_give(struct verbs_piece *p);
/* Box, at start: makes and registers the arena of this node. 0 or a negative errno. */
int verbs_arena_open(struct verbs *v, int node, struct err *e);
/* A piece of the node's arena that this device knows. 0, -ENOSPC (the bound), or another negative errno. */
int verbs_arena_take(struct verbs *v, int node, unsigned device, size_t bytes, struct verbs_piece *out, struct err *e);
/* Frees extents by which an arena had grown and that nobody uses any more. */
void verbs_arenas_trim(struct verbs *v);
void verbs_arenas_close(struct verbs *v);

/* ---- verbs.c ---- */

/* Takes in all completions that are there, of all ports. */
void verbs_collect(struct verbs_queue *q);
/* A connection's messages that were not yielded are forgotten, and no list knows it any more. */
void verbs_forget(struct verbs_queue *q, struct verbs_conn *c);
struct verbs_rail *verbs_find(const struct verbs_queue *q, uint32_t device_index, uint32_t qpn);
/* Frees connections that control gave up after they were admitted. */
void verbs_bury(struct verbs_queue *q);
/* Nothing more is sent; what came is still told, then the end, once. */
void verbs_end(struct verbs_queue *q, struct verbs_conn *c, int error, const char *why);
/* All messages before `index` are no longer read by the device. */
void verbs_done(struct verbs_queue *q, struct verbs_rail *r, uint32_t index);
/* Tells what the connection owes beside messages. True when it owes nothing more. */
bool verbs_report(struct verbs_conn *c, struct event *events, unsigned max, unsigned *n);
/* The rail that this chunk takes. */
uint32_t verbs_rail_index(const struct verbs_conn *c, uint32_t chunk);
/* The completion of the last message was asked for. */
void verbs_signalled(struct verbs_queue *q, struct verbs_rail *r);
/* What came is no longer looked at. */
void verbs_give_back(struct verbs_queue *q, struct verbs_recv *v);

/* ---- verbs_tx.c ---- */

/* The `send` of queue_ops. */
int verbs_send(
	struct queue *head, struct conn *conn, const struct wire_header *header, const void *payload, void *cookie);
/* Asks for the completion of what went before; judges the device when it was asked long ago. */
void verbs_rail_nudge(struct verbs_queue *q, struct verbs_rail *r);

/* ---- verbs_rx.c ---- */

/* Tells of the messages in the inbox, oldest first, from events[n] on. Returns the new n. */
unsigned verbs_tell_all(struct verbs_queue *q, struct event *events, unsigned max, unsigned n);

#define VERBS_PIECE_OF(pointer) ((struct verbs_piece *)(void *)((char *)(pointer)-offsetof(struct verbs_piece, link)))
static inline uint64_t verbs_wr_id(const void *at, enum verbs_work work)
{
	return (uint64_t)(uintptr_t)at | work;
}

#endif
