/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel sockets for the control sessions (stream.c) and the tcp and udp transports (tcp_setup.c, udp.c): names,
 * listening, connecting and options. All sockets made here are non-blocking and close-on-exec.
 * Control thread, or in libphub whoever connects.
 */
#ifndef PHUB_TRANSPORT_SOCK_H
#define PHUB_TRANSPORT_SOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "phub/base/err.h"

enum {
	SOCK_ADDRESS_BYTES = 80, /* "[" 45 digits, "%" 15 of a scope, "]:65535" and NUL */
	SOCK_HOST_BYTES = 256,   /* a DNS name and NUL */
};

/*
 * Listens on host ("" for any address, IPv4 and IPv6) and the first free port of first..last (0, 0: any
 * free one), through `interface` when it is not NULL: -EADDRNOTAVAIL when the address is none of it. The fd is the
 * caller's. 0 or a negative errno with the reason in `e`. Looking up a name may block.
 */
int sock_listen(const char *host, uint16_t first, uint16_t last, const char *interface, int *fd, struct err *e);

/* The same for datagrams: binds, and listens to nobody in particular. */
int sock_bind(const char *host, uint16_t first, uint16_t last, const char *interface, int *fd, struct err *e);

/* Up to `max` addresses of a name, best first: how many, or a negative errno. Looking up a name may block. */
int sock_addresses(const char *host, struct sockaddr_storage *out, unsigned max, struct err *e);

/* From which address a datagram to `peer` goes, and the MTU of the way. 0 or a negative errno. Never blocks. */
int sock_toward(
	const struct sockaddr_storage *peer, const char *interface, struct sockaddr_storage *own, uint32_t *mtu);

/*
 * Begins to connect; sock_connected() tells when it is done. A name with several addresses has all but the
 * last tried for a moment each, so "localhost" finds a box that listens on 127.0.0.1 alone. The fd is the
 * caller's. 0 or a negative errno with the reason in `e`. Looking up a name may block.
 */
int sock_connect(const char *host, uint16_t port, const char *interface, int *fd, struct err *e);

/* 0 when connected, -EAGAIN while it is under way, else why it failed. Never blocks. */
int sock_connected(int fd);

/*
 * The next caller of a listening fd: its fd, or -EAGAIN, or -EMFILE and the like. Callers that hung up meanwhile are
 * passed over. `peer` is written on success. Never blocks.
 */
int sock_accept(int listen_fd, struct sockaddr_storage *peer);

/*
 * The options of every connection: no delay, dead peers noticed after about half a minute, and the congestion control
 * (NULL: "cubic"). Returns 0, or the negative errno with which the kernel refused the congestion
 * control: the connection then has the host's default, which is slower but right.
 */
int sock_tune(int fd, const char *congestion);

/* "127.0.0.1:7077", "[::1]:7077"; an IPv4 address inside an IPv6 one is shown as IPv4; `any` addresses as "*:7077". */
void sock_format(const struct sockaddr_storage *address, char *out, size_t bytes);

/* What rate.h calls a source: the address in 16 bytes, IPv4 as IPv6 writes it. */
void sock_source(const struct sockaddr_storage *address, uint8_t source[16]);

/* Splits "host:port" or "[host]:port"; `host` has at least SOCK_HOST_BYTES. 0 or -EINVAL. */
int sock_split(const char *address, char *host, uint16_t *port);

/* Is it 127.0.0.0/8 or ::1? */
bool sock_is_loopback(const struct sockaddr *address);

/* Is the other end of this connection on this host, as far as addresses tell? Who calls an address of his own host does
 * so from that one, but for loopback, which has many. */
bool sock_peer_is_here(int fd);

/* Is it an address (or ""), for which no name has to be looked up? Never blocks. */
bool sock_host_is_numeric(const char *host);

/* Are all addresses of `host` loopback addresses? 1, 0 (also for ""), or a negative errno. May block on a name. */
int sock_host_is_loopback(const char *host);

/* Does one who listens at `own` ("": any address of this machine) hear callers of `host`? 1, 0, or a negative errno: a
 * name has no address. May block on names. */
int sock_host_is_heard(const char *own, const char *host);

/*
 * The uid of the process at the other end of a connection on this very host, or -1 when it cannot be told.
 * Asks the kernel for this one socket (sock_diag, as ss does), however many there are. Never blocks.
 */
int64_t sock_peer_uid(int fd);

#endif
