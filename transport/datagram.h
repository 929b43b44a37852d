/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What udp, dpdk and the loop's datagrams share: a transport over reliable.h, whose packets are the same whoever moves
 * them. datagram.c is its queue, datagram_join.c how connections come about (signals, as for verbs); what moves packets
 * is a `datagram_port`, one for each queue.
 */
#ifndef PHUB_TRANSPORT_DATAGRAM_H
#define PHUB_TRANSPORT_DATAGRAM_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#include "phub/base/list.h"
#include "transport/handshake.h"
#include "transport/reliable.h"
#include "transport/transport.h"

/* Where a datagram goes to or came from. IPv4 is mapped into IPv6. Zeroed where it is not used. */
struct datagram_address {
	struct in6_addr ip;
	uint32_t scope; /* IPv6 link-local: interface index here; else 0 */
	uint16_t port;  /* host byte order */
	uint8_t mac[6]; /* dpdk: next hop, zero when it is not known yet */
	uint8_t link;   /* dpdk: 1 + number of the device by which it was heard; 0: not known */
};

/* A datagram that came. */
struct datagram_in {
	const uint8_t *bytes;
	uint32_t length;
	struct datagram_address from;
};

/*
 * The packet mover of one queue: begins each implementation's own struct. Owner of the queue, unless said otherwise;
 * nothing blocks.
 */
struct datagram_port {
	const struct datagram_port_ops *ops;
	struct datagram_address address; /* its own: what a peer sends to; ip zero when it is any of this host's */
	uint32_t datagram_max;           /* bytes of UDP payload that its link carries at most */
	uint64_t room_bytes;             /* of datagrams that may wait here before some are lost */
	bool unchecked;  /* there is a wire, and nobody checks the UDP checksum of what comes, or makes it of what goes:
			    SEAL_NONE becomes SEAL_CRC */
	uint64_t now_ns; /* when its queue polled last: for what may be that coarse */
	bool stirred;    /* the last receive() of who cannot arm(): something came, for others perhaps */
};

struct datagram_port_ops {
	/*
	 * Up to `max` datagrams that came, in order; they stay valid until the next receive(). 0: none. What is no UDP
	 * datagram for this port is not among them.
	 */
	unsigned (*receive)(struct datagram_port *p, struct datagram_in *in, unsigned max);
	/*
	 * Room for one more datagram to `to`: `out->head` is set, and send() follows at once, or abandon by calling
	 * room() again. -EAGAIN: no room before the next flush() or later; -EBUSY: likewise, but there may be for
	 * others; -EHOSTUNREACH, -ENETDOWN: it will be lost, go on.
	 */
	int (*room)(struct datagram_port *p, const struct datagram_address *to, struct reliable_outgoing *out);
	/* Takes the datagram that `out` describes; its payload is read at once, or held (reliable_hold()). */
	void (*send)(struct datagram_port *p, struct reliable *r, const struct reliable_outgoing *out);
	/* All that was taken goes out. What a full device does not take is kept, or lost. */
	void (*flush)(struct datagram_port *p);
	/* Payloads of this connection that are held are read no more when it returns; bounded. NULL: none ever is. */
	void (*reclaim)(struct datagram_port *p, struct reliable *r, const struct reliable_conn *c);
	/*
	 * As queue_ops.arm(), but also readable at due_ns (0: no such time). -ENOTSUP: can only be polled.
	 */
	int (*arm)(struct datagram_port *p, uint64_t due_ns);
	/* Monotonic time in ns. */
	uint64_t (*now)(struct datagram_port *p);
	/*
	 * What it has counted itself: the name of the index-th number, a constant text, or NULL: there are no more. Any
	 * thread. NULL: it counts nothing.
	 */
	const char *(*count)(const struct datagram_port *p, unsigned index, uint64_t *value);
	/* Control thread, when the owner has stopped. */
	void (*close)(struct datagram_port *p);
};

struct sockaddr_storage;

/* The address of a socket, of either family. */
struct datagram_address datagram_address_of(const struct sockaddr_storage *from);

/* What a transport over datagrams is made of, besides. */
struct datagram_class {
	const struct transport_ops *ops; /* of the transport as a whole; its open() calls datagram_open() */
	/*
	 * Opens the port of the queue_index-th queue. Control thread. `host`: to be reached at, a box's; "": any; NULL:
	 * a worker's. The first one of a box is opened by listen(), before there is a queue.
	 */
	int (*port_open)(void *owner, unsigned queue_index, int node, const char *host, struct datagram_port **out,
		struct err *e);
	/* The transport closes. NULL: nothing. */
	void (*fini)(void *owner);
	/*
	 * Own address with which `peer` is reached (its port is left alone), and what the way there carries at most:
	 * worker and box. Control thread. 0 or -errno. NULL: ports say both.
	 */
	int (*route)(
		void *owner, const struct datagram_address *peer, struct datagram_address *own, uint32_t *datagram_max);
	/* What a worker's user can do about this errno of route(). Any thread. NULL: its own text says all. */
	const char *(*no_way)(int code);
	/*
	 * Box: a connection sends results from this memory, until memory_end(). False: there is no room to note it, and
	 * no memory_end(). NULL: nothing to be done. Control thread; memory_end() any.
	 */
	bool (*memory_use)(void *owner, void *base, size_t bytes, bool huge);
	void (*memory_end)(void *owner, void *base);
	/* Box with several addresses: its index-th, or -ENOENT. NULL: that of its ports is all. Control thread. */
	int (*name)(void *owner, unsigned index, struct in6_addr *out);
};

/* transport_ops of all of them; each has a table with its own name and open(). */
int datagram_open(const struct datagram_class *class, void *owner, const struct transport_config *config,
	struct transport **out, struct err *e);
int datagram_queue_create(struct transport *t, int node, struct queue **out, struct err *e);
void datagram_queue_destroy(struct transport *t, struct queue *q);
int datagram_listen(struct transport *t, const char *host, char *address, size_t address_bytes, struct err *e);
int datagram_accept(struct transport *t, uint64_t now_ns, struct hello *out);
int datagram_admit(struct transport *t, struct conn *c, const struct conn_spec *spec, struct err *e);
void datagram_reject(struct transport *t, struct conn *c, int code);
int datagram_connect(struct transport *t, const char *address, uint64_t session, uint32_t core, const uint8_t *key,
	const struct conn_spec *spec, struct conn **out, struct err *e);
int datagram_established(struct transport *t, struct conn *c, struct err *e);
void datagram_abandon(struct transport *t, struct conn *c);
int datagram_fd(struct transport *t);
void datagram_close(struct transport *t);
int datagram_signal_take(struct transport *t, struct signal *out);
void datagram_signal_give(struct transport *t, const struct signal *in);

/* As datagram_open() was given it. */
void *datagram_owner(const struct transport *t);

/* Of a queue that sends datagrams, what its port has counted, as datagram_port_ops.count() has it. Any thread. */
const char *datagram_count(const struct queue *q, unsigned index, uint64_t *value);

/* The rows of a transport_ops that all of them have in common. */
#define DATAGRAM_OPS                                                                                                  \
	.queue_create = datagram_queue_create, .queue_destroy = datagram_queue_destroy, .listen = datagram_listen,    \
	.accept = datagram_accept, .admit = datagram_admit, .reject = datagram_reject, .connect = datagram_connect,   \
	.established = datagram_established, .abandon = datagram_abandon, .fd = datagram_fd, .close = datagram_close, \
	.signal_take = datagram_signal_take, .signal_give = datagram_signal_give

#endif
