/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is at the other end of a socket: its address in words, whether it is on this host, and then whose
 * process it is. Control thread.
 */
#include "transport/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool sock_is_mapped(const struct sockaddr *address)
{
	const struct sockaddr_in6 *in6 = (const void *)address;

	return address->sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr);
}

void sock_source(const struct sockaddr_storage *address, uint8_t source[16])
{
	const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
	const struct sockaddr_in *four = (const struct sockaddr_in *)address;

	memset(source, 0, 16);
	if (address->ss_family == AF_INET6) {
		memcpy(source, &six->sin6_addr, 16);
	} else {
		memset(source + 10, 0xff, 2);
		memcpy(source + 12, &four->sin_addr, sizeof(four->sin_addr));
	}
}

/* The IPv4 address inside an IPv6 one; any other address as it is. */
static struct sockaddr_storage sock_unmap(const struct sockaddr_storage *address)
{
	const struct sockaddr_in6 *in6 = (const void *)address;
	struct sockaddr_storage out = *address;

	if (sock_is_mapped((const struct sockaddr *)address)) {
		struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = in6->sin6_port};

		memcpy(&in.sin_addr, in6->sin6_addr.s6_addr + 12, 4);
		memset(&out, 0, sizeof(out));
		memcpy(&out, &in, sizeof(in));
	}
	return out;
}

static bool sock_peer_is_any(const struct sockaddr_storage *address)
{
	if (address->ss_family == AF_INET6)
		return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
	return ((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr == htonl(INADDR_ANY);
}

void sock_format(const struct sockaddr_storage *address, char *out, size_t bytes)
{
	struct sockaddr_storage plain = sock_unmap(address);
	char host[NI_MAXHOST] = "?";
	char port[NI_MAXSERV] = "?";

	(void)getnameinfo((struct sockaddr *)&plain, sizeof(plain), host, sizeof(host), port, sizeof(port),
		NI_NUMERICHOST | NI_NUMERICSERV);
	if (sock_peer_is_any(&plain))
		snprintf(out, bytes, "*:%s", port);
	else
		snprintf(out, bytes, plain.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

bool sock_is_loopback(const struct sockaddr *address)
{
	const struct sockaddr_in *in = (const void *)address;
	const struct sockaddr_in6 *in6 = (const void *)address;

	if (address->sa_family == AF_INET)
		return ntohl(in->sin_addr.s_addr) >> 24 == 127;
	if (sock_is_mapped(address))
		return in6->sin6_addr.s6_addr[12] == 127;
	return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

bool sock_peer_is_here(int fd)
{
	struct sockaddr_storage us = {0}, them = {0};
	socklen_t us_bytes = sizeof(us), them_bytes = sizeof(them);
	uint8_t ours[16], theirs[16];

	if (getsockname(fd, (struct sockaddr *)&us, &us_bytes) < 0 ||
		getpeername(fd, (struct sockaddr *)&them, &them_bytes) < 0)
		return false;
	if (us.ss_family != AF_INET && us.ss_family != AF_INET6)
		return false;
	if (sock_is_loopback((struct sockaddr *)&us) && sock_is_loopback((struct sockaddr *)&them))
		return true;
	sock_source(&us, ours);
	sock_source(&them, theirs);
	return memcmp(ours, theirs, sizeof(ours)) == 0;
}

enum { LOOPBACK_IFINDEX = 1 }; /* in every network namespace */

/* What the kernel's table of TCP sockets (sock_diag) says of one of them. */
struct sock_diag_answer {
	struct nlmsghdr head;
	union {
		struct inet_diag_msg found;
		struct nlmsgerr error;
	} is;
};

/* Asks for the socket `local` connected to `remote`. */
static int sock_diag_ask(int fd, const struct sockaddr_storage *local, const struct sockaddr_storage *remote)
{
	struct {
		struct nlmsghdr head;
		struct inet_diag_req_v2 want;
	} request = {
		.head = {.nlmsg_len = sizeof(request), .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
		.want = {.sdiag_family = (uint8_t)local->ss_family, .sdiag_protocol = IPPROTO_TCP, .idiag_states = ~0U},
	};
	struct inet_diag_sockid *id = &request.want.id;

	id->idiag_cookie[0] = id->idiag_cookie[1] = INET_DIAG_NOCOOKIE;
	id->idiag_if = LOOPBACK_IFINDEX; /* also finds a socket that is bound to that interface */
	if (local->ss_family == AF_INET6) {
		const struct sockaddr_in6 *from = (const void *)local;
		const struct sockaddr_in6 *to = (const void *)remote;

		memcpy(id->idiag_src, &from->sin6_addr, sizeof(from->sin6_addr));
		memcpy(id->idiag_dst, &to->sin6_addr, sizeof(to->sin6_addr));
		id->idiag_sport = from->sin6_port;
		id->idiag_dport = to->sin6_port;
	} else {
		const struct sockaddr_in *from = (const void *)local;
		const struct sockaddr_in *to = (const void *)remote;

		id->idiag_src[0] = from->sin_addr.s_addr;
		id->idiag_dst[0] = to->sin_addr.s_addr;
		id->idiag_sport = from->sin_port;
		id->idiag_dport = to->sin_port;
	}
	return send(fd, &request, sizeof(request), 0) == (ssize_t)sizeof(request) ? 0 : -errno;
}

/*
 * The uid of the process that has the socket `local` connected to `remote`, else -1. Only an established socket that a
 * process still has (its inode is not 0) counts: of a closed one the kernel says uid 0.
 */
static int64_t sock_diag_uid(int fd, const struct sockaddr_storage *local, const struct sockaddr_storage *remote)
{
	struct sock_diag_answer answer = {0};
	ssize_t n;

	if (sock_diag_ask(fd, local, remote) < 0)
		return -1;
	n = recv(fd, &answer, sizeof(answer), MSG_DONTWAIT); /* the kernel has answered before send() came back */
	if (n < (ssize_t)(sizeof(answer.head) + sizeof(answer.is.found)) ||
		answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY)
		return -1;
	if (answer.is.found.idiag_state != TCP_ESTABLISHED || answer.is.found.idiag_inode == 0)
		return -1;
	return answer.is.found.idiag_uid;
}

int64_t sock_peer_uid(int fd)
{
	struct sockaddr_storage us = {0};
	struct sockaddr_storage them = {0};
	socklen_t bytes = sizeof(us);
	int64_t uid;
	int diag;

	if (getsockname(fd, (struct sockaddr *)&us, &bytes) < 0)
		return -1;
	bytes = sizeof(them);
	if (getpeername(fd, (struct sockaddr *)&them, &bytes) < 0 || !sock_is_loopback((struct sockaddr *)&them))
		return -1;
	diag = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	if (diag < 0)
		return -1;
	us = sock_unmap(&us);
	them = sock_unmap(&them);
	uid = sock_diag_uid(diag, &them, &us);
	/*
	 * The kernel reads state and uid without a lock: a peer that closes in between shows as established, with
	 * uid 0. A closed socket stays closed, so a second look that agrees is the proof.
	 */
	if (uid >= 0 && sock_diag_uid(diag, &them, &us) != uid)
		uid = -1;
	close(diag);
	return uid;
}
