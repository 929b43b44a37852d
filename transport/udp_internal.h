/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the udp transport share: udp.c moves datagrams (owner of the queue), udp_setup.c opens sockets
 * (control thread). Included by these and their tests alone.
 */
#ifndef PHUB_TRANSPORT_UDP_INTERNAL_H
#define PHUB_TRANSPORT_UDP_INTERNAL_H

#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "transport/datagram.h"

enum {
	UDP_OUTS = 256,             /* datagrams that wait for the kernel */
	UDP_SEGMENTS = 64,          /* of one that the kernel cuts (UDP_MAX_SEGMENTS of old kernels) */
	UDP_CUT_BYTES = 65000,      /* and its bytes */
	UDP_MESSAGES = 32,          /* of one system call, either way */
	UDP_READ_BYTES = 65536,     /* the largest one, or several that the kernel has joined */
	UDP_BUFFER_BYTES = 8 << 20, /* asked for, for the socket */
	UDP_BUFFER_LOW = 1 << 20,   /* less than this is worth a warning */
	UDP_ROOM_SHARE = 3,         /* see udp_setup.c */
	UDP_AGAIN_MS = 1000,        /* so long after it would not cut, the kernel is asked again */
	UDP_HEADERS_V4 = 28,
	UDP_HEADERS_V6 = 48, /* IP and UDP */
};

/* A datagram that the kernel has not taken yet. */
struct udp_out {
	uint8_t head[RELIABLE_HEAD_BYTES];
	uint32_t head_bytes, rest_bytes;
	bool alone; /* no piece of a larger one */
	const void *rest;
	struct reliable_message *message; /* held, or NULL */
	const struct reliable_conn *conn;
	struct datagram_address to;
};

/* Control data of one message: the size of its datagrams. */
union udp_control {
	struct cmsghdr head;
	uint8_t bytes[CMSG_SPACE(sizeof(int))];
};

struct udp_counters {     /* read by others with relaxed loads, but for the first */
	uint64_t calls;   /* of sendmmsg() */
	uint64_t cut;     /* datagrams that went as pieces of larger ones */
	uint64_t uncut;   /* times that the kernel refused to cut one */
	uint64_t lost;    /* that the kernel refused: no route, too large */
	uint64_t joined;  /* that came as pieces of larger ones */
	uint64_t blocked; /* times that the socket was full */
};

struct udp_port {
	struct datagram_port port;
	int fd, epoll_fd, timer_fd;
	bool six;                  /* the socket is an IPv6 one */
	bool cuts;                 /* the kernel cuts (UDP_SEGMENT) */
	uint64_t uncut_ns;         /* it refused to, then; 0: it is not asked again */
	bool wants_out;            /* epoll watches for room to send */
	struct reliable *reliable; /* whose datagrams are sent */
	struct udp_counters counters;
	/* Sending: outs[first..count) wait. */
	unsigned first, count;
	struct udp_out outs[UDP_OUTS];
	struct iovec out_iov[2 * UDP_OUTS];
	union udp_control out_control[UDP_MESSAGES];
	struct sockaddr_storage out_to[UDP_MESSAGES];
	struct mmsghdr out_messages[UDP_MESSAGES];
	unsigned out_datagrams[UDP_MESSAGES]; /* of each */
	/* Receiving: messages in[at..came), of the first what lies behind `skip`. */
	unsigned at, came;
	uint32_t skip;
	uint8_t *memory;
	struct iovec in_iov[UDP_MESSAGES];
	union udp_control in_control[UDP_MESSAGES];
	struct sockaddr_storage in_from[UDP_MESSAGES];
	struct mmsghdr in_messages[UDP_MESSAGES];
};

/* A bound socket's port; `fd` and a few options are its own from now on. 0 or a negative errno, then fd is closed. */
int udp_port_create(int fd, struct udp_port **out);

#endif
