/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a transport is: bytes in, bytes out. It moves 64-byte headers with payloads between a worker
 * and a core of a box, and knows nothing of gradients.
 *
 * Two tables, split by heat. `transport_ops` belongs to the control thread: open, listen, accept,
 * connect, close. `queue_ops` belongs to the core that owns the queue: adopt, poll, send, flush,
 * release, arm, drop. A transport never calls upward: poll() yields events.
 *
 * A worker has one connection per core that it talks to. Setting one up:
 *
 *      worker                                     box
 *      connect() ------------------------------> listen(), accept() begins
 *                <------- fresh 16-byte nonce ---
 *                --- hello {session, core, MAC} -> accept() returns it; the session's owner checks the MAC
 *                                                 admit() (or reject()), then mail to the core
 *      established() returns 0 <---- welcome ----
 *      queue adopt()                              the core's queue adopt()
 *
 * Both ends adopt the connection into one queue; from then on only that queue's owner touches it. Where a transport
 * has no byte stream of its own for this (verbs), the same messages are signals, which the control session carries.
 *
 * A connection that breaks (event.broken) while the session lives is made anew in the same way where the transport
 * says so (transport_ops.reconnects): the worker drops its end, connects once more, and pushes again what was not
 * answered; the box's core drops the old one, if it has not yet, and adopts the new one in its place. Credits and
 * sequence numbers begin again; rounds go on.
 */
#ifndef PHUB_TRANSPORT_TRANSPORT_H
#define PHUB_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/base/mem.h"
#include "transport/proof.h"
#include "transport/wire.h"

struct queue;
struct rate;
struct reliable_counters;
struct transport;

#define TRANSPORT_PART_ALIGN 64u

/* Where the chunk with a core-local index lies in a region: both ends compute the same table. */
struct span {
	uint64_t offset; /* bytes from the start of the region */
	uint32_t bytes;  /* of its payload on the wire, with the trailer of one that is encrypted */
};

/*
 * Where the worker wants the result of a chunk. The owner of a worker's queue fills it in before it
 * pushes, and may set addr to NULL at any time between two calls of poll(): what still comes for that
 * chunk is then read and thrown away. On a one-sided queue it is read when the push is sent, and from then on the box
 * may write there until the result came or drop() returned, whatever addr is by then. On a lossy queue a late or
 * doubled result of an earlier round would be written there too: its owner gives no sinks, and copies what it believes.
 * Transports that map the results (shm) ignore it.
 */
struct sink {
	void *addr;
	uint32_t bytes;
};

/* Has the result the length that the sink awaits? One that is coded is shorter. */
static inline bool sink_fits(const struct sink *sink, const struct wire_header *h)
{
	return h->length == sink->bytes || (h->coded && h->length < sink->bytes);
}

/* Memory that payloads and sinks lie in. */
struct conn_memory {
	void *base;
	uint64_t bytes;
};

#define CONN_MEMORY_MAX 2

/* Memory of a device, as another device can reach it. */
struct dmabuf {
	int fd;
	uint64_t offset; /* of its first byte */
};

/*
 * What both ends of a connection know before the first message. Everything here outlives the
 * connection and belongs to whoever filled it in.
 */
struct conn_spec {
	uint32_t chunk_count;     /* chunks that the box's core owns */
	const struct span *spans; /* [chunk_count] where a chunk lies in the regions */
	struct sink *sinks;       /* worker: [chunk_count]; NULL at the box */
	/*
	 * The largest chunk, bytes. A message with more ends the connection; but one that anybody may have sent
	 * (datagrams that no key seals) is dropped and counted.
	 */
	uint32_t payload_max;
	bool shorter;              /* where it is mapped, a payload may be shorter than its span: sums between boxes */
	uint32_t window;           /* messages the worker may have in flight at first (a credit) */
	struct mem_region *push;   /* box: memory the worker writes its pushes to, when it is mapped; else NULL */
	uint64_t slot_offset;      /* box: where in `push` the slots of this connection lie: */
	uint32_t slot_count;       /* so many, 0: none */
	uint32_t slot_bytes;       /* of one; at least payload_max */
	struct mem_region *result; /* box: the region that all results are sent from */
	struct queue *queue;       /* that will adopt the connection */
	const void *group;         /* box: connections with the same share receive slots (a job's, at one core) */
	uint32_t group_conns;      /* box: so many have it; 0: this one alone */
	/*
	 * Box: messages may come in parts, as the datagrams do that carry them, where the transport would have to put
	 * them together. Each byte comes once, but the parts of a message in any order, and those of others between
	 * them. They begin and end at multiples of TRANSPORT_PART_ALIGN, or where the message does; each has the header
	 * of the whole message and no slot.
	 */
	bool parts;
	/* What this connection's messages name. Where anybody can send (datagrams), all else is dropped and counted. */
	uint32_t job, rank;
	/*
	 * Where datagrams are not a stream's bytes (udp, dpdk): the session's key (PROOF_KEY bytes), which makes
	 * the seal that each of them carries (seal.h); and may a job on a trusted rack do with a checksum, or without?
	 */
	const uint8_t *key;
	unsigned seal; /* enum seal_kind */
	/*
	 * Worker, likewise: the connection ends when nothing at all came from the box for so long, though it was asked;
	 * but not within some seconds. 0: never. What is not polled meanwhile does not count.
	 */
	uint64_t silent_ns;
	/*
	 * Worker, one-sided and apart (transport_config): its payloads and sinks lie in this memory, and not in what
	 * mem_register() knows. It is registered from connect() on for as long as a connection is there that names it.
	 */
	struct conn_memory memory[CONN_MEMORY_MAX];
	uint32_t memory_count;
	uint64_t carrier; /* worker: the caller's word for the session that carries its handshake (signal.carrier) */
};

/* The public head of a connection; each transport's own struct begins with it. */
struct conn {
	struct transport *transport;
	struct queue *queue; /* set by adopt() */
	void *user;          /* whoever adopted it: the box's link, libphub's lane */
	/*
	 * Worker: start of the mapped push and result region, or NULL when payloads are sent from anywhere. Set when
	 * established() returns 0, the same for all connections that were given the same regions; they stay mapped
	 * until the transport's close(), so that what lies there outlives the connections. Where the transport was
	 * opened `apart`, each connection maps them for itself, until it is dropped or abandoned.
	 */
	void *push;
	const void *result;
	/*
	 * Worker, where push is mapped: memory in it that this connection alone writes, slot_count times slot_bytes. A
	 * push may lie in any of them, so that memory which is in a cache is used again and again.
	 */
	void *slots;
	uint32_t slot_count, slot_bytes;
	char peer[80]; /* for messages: "127.0.0.1:40312", "pid 4711 uid 0" */
};

enum event_type {
	EVENT_MESSAGE,  /* header and payload came in */
	EVENT_SENT,     /* the payload of a send with a cookie is no longer read by the transport */
	EVENT_WRITABLE, /* a send() that said -EAGAIN may be tried again */
	EVENT_CLOSED,   /* the peer is gone or broke the protocol; the owner calls drop() next */
};

struct event {
	enum event_type type;
	int error; /* EVENT_CLOSED: 0 for an orderly end, else a negative errno */
	/* EVENT_CLOSED: what the device said, a constant text, or NULL; the connection's `peer` says of whom. */
	const char *why;
	bool broken; /* EVENT_CLOSED: the way to the peer failed, or the peer says so; it broke no protocol */
	struct conn *conn;
	struct wire_header header; /* EVENT_MESSAGE: decoded; well-formed, but not yet believed */
	/*
	 * EVENT_MESSAGE: header.length bytes, valid until the next poll(), or, with a slot, until release(). At a
	 * worker it is the sink's address when the payload was put there, and NULL when the sink had none, or got
	 * another while the payload came: then the bytes were thrown away, and the header still counts. A result whose
	 * length does not fit its sink (sink_fits()) ends the connection with -EPROTO. NULL also when the length is 0.
	 * Mapped memory (shm) may change while it is read: read each byte once. All other is the receiver's to write
	 * to, too, as long as it is valid: what is encrypted is opened where it lies.
	 */
	const void *payload;
	/*
	 * EVENT_MESSAGE: the payload is these bytes of the message's, and whether all others came before. A message
	 * that comes whole (all of them, unless conn_spec.parts) has 0, header.length and true.
	 */
	uint32_t offset, bytes;
	bool last;
	void *slot;   /* EVENT_MESSAGE: non-NULL when the payload may be held; to be released */
	void *cookie; /* EVENT_SENT: as given to send() */
};

/*
 * The hot table. Every function is called by the thread that owns the queue, none blocks, none
 * allocates, none logs.
 */
struct queue_ops {
	/*
	 * Takes an established connection into the queue. `spec` outlives it. 0, or -ENOSPC when the
	 * queue is full, or -EINVAL when the chunks do not lie within the mapped push region, or -ENOMEM (the worker's
	 * end, which had no spec before, may allocate here; nothing else in this table does). After success the
	 * connection is the queue's until drop().
	 */
	int (*adopt)(struct queue *q, struct conn *c, const struct conn_spec *spec);
	/*
	 * Yields up to max events, oldest first; returns how many. A message without a slot has its payload
	 * valid until the next poll(); one with a slot until release() of that slot, which the owner calls
	 * exactly once for each slot it saw: before the next poll() when it does not hold the payload, later
	 * when it does. At most q->hold_max slots may be held over a poll(). `now_ns` is monotonic time. Unless the
	 * queue is lossy, messages of a connection come in the order in which they were sent; but where it has several
	 * ports (verbs), or sends datagrams (udp, dpdk), only chunk by chunk.
	 */
	unsigned (*poll)(struct queue *q, uint64_t now_ns, struct event *events, unsigned max);
	/*
	 * Queues one message. A worker's header has its seq (wire.h): where datagrams are sent any other is -EINVAL,
	 * and a box's are numbered here. The header is copied; the payload
	 * (header->length bytes) belongs to the transport until EVENT_SENT with `cookie` (no event when cookie is NULL:
	 * then the caller must know otherwise that the payload stays put) or until drop(). Unless the queue is lossy,
	 * EVENT_SENT comes before any message (datagrams: any about the same chunk; but at a worker later, where a
	 * device still reads the payload) that the peer sent after it had the payload. 0, or -EAGAIN when the
	 * connection has its bound of unsent bytes (EVENT_WRITABLE follows), or -EPIPE when it is closed.
	 *
	 * Where regions are mapped (shm) the peer reads the payload where it lies. SENT comes at once and says nothing
	 * of the peer, which reads a push until its result is there, and a result until the chunk's next push. A
	 * payload is spans[chunk].bytes long; a worker's lies at push + spans[chunk].offset or at the start of one of
	 * the connection's slots, the box's anywhere in spec->result. -EINVAL when it does not.
	 */
	int (*send)(
		struct queue *q, struct conn *c, const struct wire_header *header, const void *payload, void *cookie);
	/* Pushes out all that send() queued since the last flush, as far as the peers take it. */
	void (*flush)(struct queue *q);
	/* Gives back a slot, in any order. */
	void (*release)(struct queue *q, void *slot);
	/*
	 * Before sleeping: returns an fd that becomes readable when poll() would yield something, and asks
	 * for one such wake-up; or -EAGAIN when something came meanwhile (poll again, do not sleep); or
	 * -ENOTSUP (this queue can only be polled). The fd stays the same over the queue's life. Where datagrams are
	 * sent it also becomes readable when some are to be sent again: poll() does so, and yields nothing. That
	 * becomes rarer while nothing is acknowledged, and ends soon after all is.
	 */
	int (*arm)(struct queue *q);
	/*
	 * Ends and frees the connection: unsent messages are forgotten without EVENT_SENT, kept slots of
	 * this connection count as released, no later poll() names it (the rest of the last one's events may), and on
	 * return nothing reads or writes the memory that was given to it.
	 */
	void (*drop)(struct queue *q, struct conn *c);
};

/* The payload of this message, at event->payload, is all of it. */
static inline void event_whole(struct event *event)
{
	event->type = EVENT_MESSAGE;
	event->offset = 0;
	event->bytes = event->header.length;
	event->last = true;
}

/* What a device was asked to do, where send() does not end in a system call. Owner's; read with stats_read(). */
struct queue_counters {
	uint64_t messages;    /* that send() took */
	uint64_t posts;       /* work requests to send, */
	uint64_t doorbells;   /* handed over by so many calls, */
	uint64_t signalled;   /* so many of which ask for a completion */
	uint64_t completions; /* of either direction that came */
	uint64_t recv_posts, recv_doorbells;
	uint64_t nudges; /* among the posts: see verbs.c */
};

/* The public head of a queue. */
struct queue {
	const struct queue_ops *ops;
	unsigned hold_max; /* slots that may be kept at once; 0: none; UINT_MAX: payloads stay put by themselves */
	bool lossy;        /* messages may be lost, doubled or reordered: the worker pushes again */
	bool anywhere;     /* worker: payloads are sent from any memory as they lie, and results read into any */
	bool stirred;      /* who can only be polled: the last poll() did something, whatever it yielded */
	bool unordered;    /* box: messages of a connection come in any order, once each (datagrams) */
	/*
	 * The device moves payloads by itself: those of a worker, and its sinks, lie in memory that mem_register() was
	 * given, or spec->memory, the box's in spec->result; and a WIRE_RESULT answers the last message of its chunk
	 * that came on its connection, once. send() says -EINVAL to anything else.
	 */
	bool one_sided;
	struct queue_counters counters;
	const struct reliable_counters *datagrams; /* what became of them (reliable.h), where it sends any; else NULL */
	unsigned held; /* the owner's own count of slots it holds; the transport does not touch it */
};

/* A connection that asks to be let in; the owner of the session checks the proof, then admits or rejects. */
struct hello {
	struct conn *conn;
	uint64_t session;           /* the control session it claims to belong to */
	uint32_t core;              /* the box core it wants */
	uint8_t nonce[PROOF_NONCE]; /* ours, made for this connection alone */
	uint8_t mac[PROOF_MAC];     /* theirs: proof_data(session key, nonce, session, core) */
};

/*
 * One message of a handshake that the control session carries from the worker's transport to the box's or back. The
 * session vouches for `session` and `core`; the bytes are the peer's.
 */
#define SIGNAL_BYTES_MAX 1024
struct signal {
	uint64_t session;
	uint32_t core;
	uint32_t number;  /* the worker's, one for each connection that it ever began */
	uint64_t carrier; /* from a worker's transport: of the connection's spec; not carried */
	uint32_t length;
	uint8_t bytes[SIGNAL_BYTES_MAX];
};

struct transport_config {
	unsigned queue_conns_max;       /* connections a queue can own */
	unsigned send_bytes_max;        /* unsent bytes per connection before send() says -EAGAIN; 0: default */
	const char *congestion;         /* tcp: congestion control, NULL for the default "cubic" */
	const char *interface;          /* bind to this network interface, or NULL */
	const char *rdma;               /* verbs: "DEVICE[:PORT][@GID],...", or NULL for all that are usable */
	bool quiet;                     /* opened to try it: what it finds is not logged */
	bool rdma_fixed;                /* verbs, box: workers write pushes into buffers of their own; to compare */
	uint64_t pinned_bytes;          /* verbs: memory that will be registered, as far as known; 0: not known */
	uint64_t slots_bytes;           /* verbs, box: receive slots registered at start for each NUMA node of queues */
	uint64_t slots_bytes_max;       /* ... and the most of all nodes together, as they grow; 0: no bound */
	unsigned rdma_dscp;             /* verbs over RoCE v2: of what is sent, 0 to 63 */
	uint16_t port_first, port_last; /* data ports that may be listened on; 0, 0: any */
	struct loop_host *loop;         /* loop only: where on the network in memory (loop_net_host()) */
	unsigned datagram_mtu;  /* udp, dpdk: of the network, bytes, where it is less than the link's; 0: that */
	const char *dpdk_ports; /* dpdk: DEVICE[@ADDRESS/PREFIX,...][;...] (dpdk.h) */
	const char *dpdk_eal;   /* dpdk: more arguments for EAL, separated by blanks; NULL: none */
	unsigned queue_count;   /* dpdk: queues that will be made, at most; 0: one */
	const int *queue_nodes; /* dpdk: [queue_count] as queue_create() will be told; NULL: not known */
	/* dpdk: another one, whose ports it shares, each with queues of its own on them; NULL: it opens them. */
	struct transport *beside;
	unsigned queue_sets;   /* dpdk: so many transports will share its ports, itself among them; 0: one */
	unsigned handshake_ms; /* a stranger that has not proved itself by then is dropped; 0: default */
	bool apart;            /* worker: queues are of other threads than the one that connects */
	struct rate *rate;     /* tcp, box: of those that come, by their addresses; outlives it. NULL: any */
};

/* The cold table: control thread only; may allocate; none blocks. */
struct transport_ops {
	const char *name; /* "tcp", "shm", "loop", "verbs", "udp", "dpdk" */
	bool reconnects;  /* a worker may connect to a core again when its connection broke */
	bool by_name;     /* a worker takes it only where it was asked for by name */
	/* Makes the transport. Returns 0 or a negative errno with the reason and the cure in `e`. */
	int (*open)(const struct transport_config *config, struct transport **out, struct err *e);
	/*
	 * Makes a queue; its owner may be another thread from then on, which runs on NUMA node `node`, or anywhere
	 * (MEM_NODE_ANY). A box makes one for each core, in their order.
	 */
	int (*queue_create)(struct transport *t, int node, struct queue **out, struct err *e);
	/* All its connections were dropped. Called when its owner has stopped. */
	void (*queue_destroy)(struct transport *t, struct queue *q);
	/*
	 * Box: listens on host (numeric or name, "" for any; ignored by shm and loop). `address` (at least
	 * 128 bytes) receives what a worker's connect() takes, e.g. "127.0.0.1:7101" or "@phub-4711-1". tcp on any
	 * address gives "*:7101": the worker puts the host of its control session in place of "*".
	 */
	int (*listen)(struct transport *t, const char *host, char *address, size_t address_bytes, struct err *e);
	/*
	 * Box: drives strangers' handshakes; returns 0 with the next hello that is complete, or -EAGAIN.
	 * Strangers that are late, oversized or talk nonsense are closed and counted here.
	 */
	int (*accept)(struct transport *t, uint64_t now_ns, struct hello *out);
	/*
	 * Box: answers a hello. admit: sends the welcome (shm: with the memory of `spec`, which it seals if nobody
	 * has; -EINVAL or -EPERM when it cannot be) and leaves the connection ready for adopt() by a queue of this
	 * transport; on error the connection is freed. reject: sends the code (a positive errno) and frees it.
	 */
	int (*admit)(struct transport *t, struct conn *c, const struct conn_spec *spec, struct err *e);
	void (*reject)(struct transport *t, struct conn *c, int code);
	/*
	 * Worker: begins to connect to core `core` of session `session`; `key` (PROOF_KEY bytes) is the session's.
	 * `spec` outlives the connection; NULL: it will be abandoned, this is to see whether anybody listens.
	 *
	 * A worker's connect(), established() and abandon() are called by the owner of the queue. Where the transport
	 * was opened `apart`, as a box does that is a worker of others, they are the control thread's, like admit() and
	 * abandon() at a box: from connect() on the connection is control's, and when established() has returned 0 it
	 * may be handed over, once, to the owner of spec->queue, who adopts it, and drops it at the end; one that
	 * adopt() refuses goes back. What the peer still says of it by signals is then no longer looked at: its end
	 * is seen by the queue, or told by the session.
	 */
	int (*connect)(struct transport *t, const char *address, uint64_t session, uint32_t core, const uint8_t *key,
		const struct conn_spec *spec, struct conn **out, struct err *e);
	/*
	 * Worker: 0 when welcomed, -EAGAIN when not yet, else a negative errno with the reason in `e`; then, too, it is
	 * abandon() that frees the connection.
	 */
	int (*established)(struct transport *t, struct conn *c, struct err *e);
	/* Either end: ends and frees a connection that no queue has adopted. */
	void (*abandon)(struct transport *t, struct conn *c);
	/* An fd that is readable when accept() or established() may make progress; -1 if there is none. */
	int (*fd)(struct transport *t);
	/* All queues were destroyed. */
	void (*close)(struct transport *t);

	/* ---- NULL where handshakes need nobody to carry them ---- */

	/* The next signal to be carried to the other end: 0, or -EAGAIN. */
	int (*signal_take)(struct transport *t, struct signal *out);
	/* One that was carried here; what is wrong with it is answered, if at all, by another. */
	void (*signal_give)(struct transport *t, const struct signal *in);

	/* ---- NULL where queues are not one-sided ---- */

	/*
	 * Worker: payloads and sinks may lie in this memory from now on; it is pinned, and stays the caller's. Called
	 * by the owner of the queue. `dmabuf`, or NULL: it is a device's, which no processor touches; the fd is not
	 * needed any more on return. -EEXIST: overlaps another; -ENOMEM: beyond what may be pinned, with the cure in
	 * `e`; -ENOTSUP: this device's memory cannot be reached.
	 */
	int (*mem_register)(struct transport *t, void *addr, size_t bytes, const struct dmabuf *dmabuf, struct err *e);
	/* No message in flight uses it: on return no device knows it. */
	void (*mem_unregister)(struct transport *t, void *addr);
};

/* The public head of a transport. */
struct transport {
	const struct transport_ops *ops;
	uint64_t strangers_refused; /* handshakes ended by accept() itself or by reject() */
	uint64_t strangers_limited; /* of these: too many had come */
	uint64_t strangers_gone;    /* callers that hung up again, having said nothing wrong: not among those */
	bool soon;              /* accept() or established() may have an answer soon, of which no fd tells: ask often */
	uint64_t registrations; /* of memory, with all devices, so far */
	uint64_t slots_lost; /* receive slots that no connection had given back when the last of its job was gone: 0 */
};

extern const struct transport_ops transport_tcp;
extern const struct transport_ops transport_shm;
extern const struct transport_ops transport_loop;
extern const struct transport_ops transport_loop_datagram; /* for tests alone: transport_find() does not know it */
extern const struct transport_ops transport_udp;
extern const struct transport_ops transport_dpdk;  /* open() says so where there is no DPDK */
extern const struct transport_ops transport_verbs; /* only where the build found libibverbs */

/* The table with this name, or NULL. Any thread. */
const struct transport_ops *transport_find(const char *name);

#endif
