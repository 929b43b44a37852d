/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The udp transport: sockets, their options and routes. Moving datagrams is udp.c, what is said with them datagram.h.
 * Control thread.
 */
#include "transport/udp_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/log.h"
#include "transport/sock.h"

struct udp {
	char interface[16];
	uint16_t port_first, port_last;
	uint32_t mtu; /* 0: the way's */
	bool quiet;
};

static const char *udp_interface(const struct udp *u)
{
	return u->interface[0] ? u->interface : NULL;
}

/* What packets of `mtu` bytes carry. */
static uint32_t udp_carries(uint32_t mtu, bool four)
{
	uint32_t headers = four ? UDP_HEADERS_V4 : UDP_HEADERS_V6;

	if (mtu <= headers)
		return 0;
	return mtu - headers < WIRE_DATAGRAM_MAX ? mtu - headers : WIRE_DATAGRAM_MAX;
}

/*
 * Asks for a large buffer; what the kernel gives, in bytes of datagrams. It counts all memory that a datagram takes: of
 * 1472 bytes 2304, of 8972 16640 (SO_MEMINFO, Linux 6.18, loopback), and a page and more where a network card's driver
 * takes one for each packet. A third is what fits then.
 */
static uint64_t udp_grow_buffer(int fd)
{
	int bytes = UDP_BUFFER_BYTES;
	socklen_t length = sizeof(bytes);

	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)) < 0)
		(void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes)) < 0)
		(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	if (getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, &length) < 0 || bytes < 0)
		return 0;
	return (uint64_t)bytes / UDP_ROOM_SHARE;
}

/* All of these are wishes: what a kernel does not know costs speed, or a fragmented packet, and nothing else. */
static void udp_tune(int fd)
{
	int probe = IP_PMTUDISC_PROBE, probe6 = IPV6_PMTUDISC_PROBE, on = 1;

	(void)setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &probe, sizeof(probe));
	(void)setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &probe6, sizeof(probe6));
	(void)setsockopt(fd, SOL_UDP, UDP_GRO, &on, sizeof(on));
}

static int udp_port_open(
	void *owner, unsigned queue_index, int node, const char *host, struct datagram_port **out, struct err *e)
{
	struct udp *udp = owner;
	struct udp_port *u;
	uint64_t room;
	int fd;
	int rc = sock_bind(
		host ? host : "", host ? udp->port_first : 0, host ? udp->port_last : 0, udp_interface(udp), &fd, e);

	(void)node; /* its owner touches what it reads into first */
	if (rc < 0)
		return rc;
	udp_tune(fd);
	room = udp_grow_buffer(fd);
	rc = udp_port_create(fd, &u);
	if (rc < 0)
		return err_set(e, rc, "udp: no socket for a queue: %s", strerror(-rc));
	u->port.room_bytes = room;
	if (udp->mtu)
		u->port.datagram_max = udp_carries(udp->mtu, true);
	if (host && queue_index == 0 && !udp->quiet && room * UDP_ROOM_SHARE < UDP_BUFFER_LOW)
		log_warn("udp: the kernel gives sockets %llu bytes to receive with, so that few datagrams may be on "
			 "their way; `sysctl -w net.core.rmem_max=%u` lets it give more",
			(unsigned long long)(room * UDP_ROOM_SHARE), (unsigned)UDP_BUFFER_BYTES);
	*out = &u->port;
	return 0;
}

static int udp_route(
	void *owner, const struct datagram_address *peer, struct datagram_address *own, uint32_t *datagram_max)
{
	struct udp *udp = owner;
	bool four = IN6_IS_ADDR_V4MAPPED(&peer->ip);
	struct sockaddr_storage to = {0}, from;
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(peer->port ? peer->port : 1)};
	struct sockaddr_in6 in6 = {.sin6_family = AF_INET6,
		.sin6_port = htons(peer->port ? peer->port : 1),
		.sin6_addr = peer->ip,
		.sin6_scope_id = peer->scope};
	uint32_t mtu;
	int rc;

	memcpy(&in.sin_addr, peer->ip.s6_addr + 12, 4);
	if (four)
		memcpy(&to, &in, sizeof(in));
	else
		memcpy(&to, &in6, sizeof(in6));
	rc = sock_toward(&to, udp_interface(udp), &from, &mtu);
	if (rc < 0)
		return rc;
	if (udp->mtu && udp->mtu < mtu)
		mtu = udp->mtu;
	*own = datagram_address_of(&from);
	*datagram_max = udp_carries(mtu, four);
	return 0;
}

static void udp_fini(void *owner)
{
	free(owner);
}

static const struct datagram_class udp_class = {
	.ops = &transport_udp,
	.port_open = udp_port_open,
	.fini = udp_fini,
	.route = udp_route,
};

static int udp_open(const struct transport_config *config, struct transport **out, struct err *e)
{
	struct udp *udp = calloc(1, sizeof(*udp));
	const char *interface = config->interface ? config->interface : "";
	int rc = 0;

	if (!udp)
		return err_set(e, -ENOMEM, "udp: no memory for the transport");
	if ((size_t)snprintf(udp->interface, sizeof(udp->interface), "%s", interface) >= sizeof(udp->interface))
		rc = err_set(e, -EINVAL, "udp: interface \"%.64s\" is longer than %zu characters", interface,
			sizeof(udp->interface) - 1);
	udp->port_first = config->port_first;
	udp->port_last = config->port_last ? config->port_last : config->port_first;
	udp->mtu = config->datagram_mtu;
	udp->quiet = config->quiet;
	if (rc == 0)
		rc = datagram_open(&udp_class, udp, config, out, e);
	if (rc < 0)
		free(udp);
	return rc;
}

const struct transport_ops transport_udp = {
	.name = "udp",
	.by_name = true,
	.open = udp_open,
	DATAGRAM_OPS,
};
