/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel TCP sockets: names, listening, connecting, options. Who the peer on this host is, is
 * sock_peer.c. Control thread, or in libphub whoever connects.
 */
#include "transport/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	SOCK_BACKLOG = 256,
	SOCK_TRY_MS = 250,            /* for each address of a name but the last */
	SOCK_USER_TIMEOUT_MS = 30000, /* sent bytes that nobody acknowledges */
	SOCK_KEEP_IDLE_S = 10,
	SOCK_KEEP_INTERVAL_S = 5,
	SOCK_KEEP_COUNT = 4,
};

/* What getaddrinfo() says, as errno. */
static int sock_resolve_errno(int rc)
{
	switch (rc) {
	case EAI_MEMORY:
		return -ENOMEM;
	case EAI_AGAIN:
		return -EHOSTUNREACH;
	case EAI_SYSTEM:
		return errno ? -errno : -EIO;
	default:
		return -ENOENT;
	}
}

static int sock_resolve(const char *host, uint16_t port, bool passive, struct addrinfo **out, struct err *e)
{
	struct addrinfo hints = {
		.ai_family = AF_UNSPEC,
		.ai_socktype = SOCK_STREAM,
		.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0),
	};
	char service[8];
	int rc;

	snprintf(service, sizeof(service), "%u", port);
	rc = getaddrinfo(host[0] ? host : NULL, service, &hints, out);
	if (rc == 0)
		return 0;
	return err_set(e, sock_resolve_errno(rc),
		"cannot look up host \"%.128s\": %s; give a name that resolves, or an address", host, gai_strerror(rc));
}

/* Ties a socket to one network interface. */
static int sock_bind_interface(int fd, const char *interface, struct err *e)
{
	int rc;

	if (!interface)
		return 0;
	if (if_nametoindex(interface) == 0)
		return err_set(e, -ENODEV, "there is no network interface \"%.32s\"; `ip link` lists them", interface);
	if (setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, interface, (socklen_t)strlen(interface)) == 0)
		return 0;
	rc = -errno;
	return err_set(e, rc, "cannot bind to network interface %.32s: %s; kernels before 5.7 need CAP_NET_RAW for it",
		interface, strerror(-rc));
}

static int sock_open(int family, int type, const char *interface, struct err *e)
{
	int fd = socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int rc;

	if (fd < 0) {
		rc = -errno;
		return err_set(
			e, rc, "cannot make a socket: %s%s", strerror(-rc), rc == -EMFILE ? "; raise `ulimit -n`" : "");
	}
	rc = sock_bind_interface(fd, interface, e);
	if (rc < 0) {
		close(fd);
		return rc;
	}
	return fd;
}

static void sock_set_port(struct sockaddr *address, uint16_t port)
{
	if (address->sa_family == AF_INET6)
		((struct sockaddr_in6 *)(void *)address)->sin6_port = htons(port);
	else
		((struct sockaddr_in *)(void *)address)->sin_port = htons(port);
}

/*
 * Binds and, for streams, listens; the fd, or a negative errno, for which the caller finds words. An address that was
 * used a moment ago is free for streams; with datagrams, two could have it at once.
 */
static int sock_listen_port(const struct addrinfo *at, int type, uint16_t port, const char *interface, struct err *e)
{
	int fd = sock_open(at->ai_family, type, interface, e);
	bool stream = type == SOCK_STREAM;
	int on = 1;
	int off = 0;
	int rc;

	if (fd < 0)
		return fd;
	if (stream)
		(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (at->ai_family == AF_INET6) /* "any" means IPv4 too, whatever the host's default. */
		(void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	sock_set_port(at->ai_addr, port);
	if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && (!stream || listen(fd, SOCK_BACKLOG) == 0))
		return fd;
	rc = -errno;
	close(fd);
	return err_set(e, rc, "cannot listen on port %u: %s", port, strerror(-rc));
}

static bool sock_is_any(const struct sockaddr *address)
{
	if (address->sa_family == AF_INET6)
		return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
	return ((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr == htonl(INADDR_ANY);
}

static bool sock_same_address(const struct sockaddr *a, const struct sockaddr *b)
{
	if (a->sa_family != b->sa_family)
		return false;
	if (a->sa_family == AF_INET6)
		return memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
			       &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr,
			       sizeof(struct in6_addr)) == 0;
	return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr ==
	       ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr;
}

/* Adds "10.0.0.5" to a list of addresses. */
static void sock_list_address(const struct sockaddr *address, char *list, size_t bytes)
{
	socklen_t length = address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
	size_t at = strlen(list);
	char text[SOCK_ADDRESS_BYTES];

	if (getnameinfo(address, length, text, sizeof(text), NULL, 0, NI_NUMERICHOST) == 0)
		snprintf(list + at, bytes - at, "%s%s", at ? ", " : "", text);
}

/*
 * Who is bound to an interface hears only what comes in by it. The kernel takes an address of another one all the same,
 * and nobody would ever get through.
 */
static int sock_check_interface(const struct sockaddr *address, const char *interface, const char *host, struct err *e)
{
	struct ifaddrs *all;
	char list[256] = "";
	bool found = false;

	if (!interface || sock_is_any(address) || if_nametoindex(interface) == 0 || getifaddrs(&all) < 0)
		return 0;
	for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
		if (!i->ifa_addr || strcmp(i->ifa_name, interface) != 0 ||
			(i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6))
			continue;
		/* All of 127.0.0.0/8 is lo's, which lists 127.0.0.1. */
		found = found || sock_same_address(address, i->ifa_addr) ||
			(sock_is_loopback(address) && sock_is_loopback(i->ifa_addr));
		sock_list_address(i->ifa_addr, list, sizeof(list));
	}
	freeifaddrs(all);
	if (found)
		return 0;
	return err_set(e, -EADDRNOTAVAIL,
		"%s is not an address of interface %s, so nobody could reach it; listen on %s%s*, or leave interface "
		"empty",
		host, interface, list, list[0] ? ", or on " : "");
}

/* The first free port of first..last on the first address of `host`. Returns the fd. */
static int sock_listen_range(
	const char *host, int type, uint16_t first, uint16_t last, const char *interface, struct err *e)
{
	struct addrinfo *list;
	int rc = sock_resolve(host, first, true, &list, e);

	if (rc < 0)
		return rc;
	rc = sock_check_interface(list->ai_addr, interface, host, e);
	if (rc == 0)
		rc = -EADDRINUSE;
	for (uint32_t port = first; port <= last && rc == -EADDRINUSE; port++)
		rc = sock_listen_port(list, type, (uint16_t)port, interface, e);
	freeaddrinfo(list);
	if (rc == -EADDRINUSE)
		return err_set(e, rc, "every port of %u..%u is taken on \"%.128s\"; stop who has it, or choose others",
			first, last, host);
	return rc;
}

static int sock_bind_any(
	const char *host, int type, uint16_t first, uint16_t last, const char *interface, int *fd, struct err *e)
{
	int rc;

	if (last < first)
		return err_set(e, -EINVAL, "the range of ports %u..%u is empty", first, last);
	/* "::" takes IPv4 callers too; a host without IPv6 has 0.0.0.0 to fall back to. */
	rc = sock_listen_range(host[0] ? host : "::", type, first, last, interface, e);
	if (!host[0] && (rc == -EAFNOSUPPORT || rc == -EADDRNOTAVAIL))
		rc = sock_listen_range("0.0.0.0", type, first, last, interface, e);
	if (rc < 0)
		return rc;
	*fd = rc;
	return 0;
}

int sock_listen(const char *host, uint16_t first, uint16_t last, const char *interface, int *fd, struct err *e)
{
	return sock_bind_any(host, SOCK_STREAM, first, last, interface, fd, e);
}

int sock_bind(const char *host, uint16_t first, uint16_t last, const char *interface, int *fd, struct err *e)
{
	return sock_bind_any(host, SOCK_DGRAM, first, last, interface, fd, e);
}

/*
 * Begins with one address, waits `wait_ms` for it to be decided, and returns the fd, or a negative errno when it has
 * failed (or, with wait_ms, is not decided by then).
 */
static int sock_connect_at(const struct addrinfo *at, const char *interface, int wait_ms, struct err *e)
{
	struct pollfd wait = {.fd = sock_open(at->ai_family, SOCK_STREAM, interface, e), .events = POLLOUT};
	int rc = 0;

	if (wait.fd < 0)
		return wait.fd;
	if (connect(wait.fd, at->ai_addr, at->ai_addrlen) < 0 && errno != EINPROGRESS && errno != EINTR) {
		rc = -errno;
	} else if (wait_ms) {
		(void)poll(&wait, 1, wait_ms);
		rc = sock_connected(wait.fd);
	}
	if (rc == 0)
		return wait.fd;
	close(wait.fd);
	return err_set(e, rc, "cannot connect: %s", strerror(-rc));
}

int sock_connect(const char *host, uint16_t port, const char *interface, int *fd, struct err *e)
{
	struct addrinfo *list;
	int rc = sock_resolve(host, port, false, &list, e);

	if (rc < 0)
		return rc;
	rc = -EHOSTUNREACH;
	for (struct addrinfo *at = list; at && rc < 0; at = at->ai_next)
		rc = sock_connect_at(at, interface, at->ai_next ? SOCK_TRY_MS : 0, e);
	freeaddrinfo(list);
	if (rc >= 0) {
		*fd = rc;
		return 0;
	}
	if (rc == -ENODEV || rc == -EMFILE || rc == -EPERM) /* sock_open() has said it better. */
		return rc;
	return err_set(e, rc, "cannot connect to \"%.128s\" port %u: %s; is a box listening there?", host, port,
		strerror(-rc));
}

int sock_addresses(const char *host, struct sockaddr_storage *out, unsigned max, struct err *e)
{
	struct addrinfo *list;
	unsigned count = 0;
	int rc = sock_resolve(host, 0, false, &list, e);

	if (rc < 0)
		return rc;
	for (const struct addrinfo *at = list; at && count < max; at = at->ai_next, count++) {
		memset(&out[count], 0, sizeof(out[count]));
		memcpy(&out[count], at->ai_addr, at->ai_addrlen);
	}
	freeaddrinfo(list);
	return (int)count;
}

int sock_toward(const struct sockaddr_storage *peer, const char *interface, struct sockaddr_storage *own, uint32_t *mtu)
{
	socklen_t bytes = peer->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
	bool six = peer->ss_family == AF_INET6;
	int fd = sock_open(peer->ss_family, SOCK_DGRAM, interface, NULL);
	socklen_t length = sizeof(int);
	int value = 0;
	int rc = 0;

	if (fd < 0)
		return fd;
	if (connect(fd, (const struct sockaddr *)peer, bytes) < 0 ||
		getsockopt(fd, six ? IPPROTO_IPV6 : IPPROTO_IP, six ? IPV6_MTU : IP_MTU, &value, &length) < 0)
		rc = -errno;
	length = sizeof(*own);
	memset(own, 0, sizeof(*own));
	if (rc == 0 && getsockname(fd, (struct sockaddr *)own, &length) < 0)
		rc = -errno;
	close(fd);
	*mtu = value > 0 ? (uint32_t)value : 0;
	return rc;
}

int sock_connected(int fd)
{
	struct pollfd wait = {.fd = fd, .events = POLLOUT};
	socklen_t bytes = sizeof(int);
	int error = 0;

	if (poll(&wait, 1, 0) <= 0)
		return -EAGAIN;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) < 0)
		return -errno;
	if (error)
		return -error;
	return wait.revents & POLLHUP ? -ECONNREFUSED : 0;
}

int sock_accept(int listen_fd, struct sockaddr_storage *peer)
{
	/* Bounded: each turn takes one caller off the kernel's queue. */
	for (int i = 0; i < SOCK_BACKLOG; i++) {
		socklen_t bytes = sizeof(*peer);
		int fd = accept4(listen_fd, (struct sockaddr *)peer, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd >= 0)
			return fd;
		/* accept(2): errors of the new connection's network come out here too. */
		switch (errno) {
		case EAGAIN:
		case EMFILE:
		case ENFILE:
		case ENOBUFS:
		case ENOMEM:
		case EBADF:
		case EINVAL:
		case ENOTSOCK:
			return -errno;
		default:
			break;
		}
	}
	return -EAGAIN;
}

static void sock_set_int(int fd, int level, int option, int value)
{
	(void)setsockopt(fd, level, option, &value, sizeof(value));
}

int sock_tune(int fd, const char *congestion)
{
	const char *name = congestion ? congestion : "cubic";

	sock_set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	sock_set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, SOCK_USER_TIMEOUT_MS);
	sock_set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	sock_set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, SOCK_KEEP_IDLE_S);
	sock_set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, SOCK_KEEP_INTERVAL_S);
	sock_set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, SOCK_KEEP_COUNT);
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) < 0)
		return -errno;
	return 0;
}

int sock_split(const char *address, char *host, uint16_t *port)
{
	const char *colon = strrchr(address, ':');
	const char *first = address;
	const char *last = colon;
	char *end;
	long number;

	if (!colon || colon[1] < '0' || colon[1] > '9')
		return -EINVAL;
	number = strtol(colon + 1, &end, 10);
	if (*end || number < 1 || number > 65535)
		return -EINVAL;
	if (*first == '[') {
		first++;
		last--;
		if (last < first || *last != ']')
			return -EINVAL;
	} else if (memchr(first, ':', (size_t)(last - first))) {
		return -EINVAL; /* An IPv6 address needs its brackets. */
	}
	if (last == first || last - first >= SOCK_HOST_BYTES)
		return -EINVAL;
	memcpy(host, first, (size_t)(last - first));
	host[last - first] = '\0';
	*port = (uint16_t)number;
	return 0;
}

bool sock_host_is_numeric(const char *host)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
	struct addrinfo *list;

	if (!host[0])
		return true;
	if (getaddrinfo(host, NULL, &hints, &list) != 0)
		return false;
	freeaddrinfo(list);
	return true;
}

int sock_host_is_loopback(const char *host)
{
	struct addrinfo *list;
	struct err ignored;
	int all = 1;
	int rc;

	if (!host[0])
		return 0;
	rc = sock_resolve(host, 0, false, &list, &ignored);
	if (rc < 0)
		return rc;
	for (const struct addrinfo *at = list; at; at = at->ai_next)
		all &= sock_is_loopback(at->ai_addr);
	freeaddrinfo(list);
	return all;
}

/* One of this machine's: it can be bound. */
static bool sock_is_here(const struct addrinfo *address)
{
	struct sockaddr_storage at = {0};
	int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool here;

	if (fd < 0)
		return false;
	memcpy(&at, address->ai_addr, address->ai_addrlen);
	here = bind(fd, (const struct sockaddr *)&at, address->ai_addrlen) == 0;
	close(fd);
	return here;
}

int sock_host_is_heard(const char *own, const char *host)
{
	struct addrinfo *list, *mine;
	struct err ignored;
	uint8_t theirs[16], ours[16], any[16];
	struct sockaddr_storage at = {0};
	int rc = sock_resolve(host, 0, false, &list, &ignored), heard = 0;

	if (rc < 0)
		return rc;
	rc = sock_resolve(own, 0, true, &mine, &ignored);
	for (const struct addrinfo *a = list; rc == 0 && a; a = a->ai_next)
		for (const struct addrinfo *b = mine; b; b = b->ai_next) {
			memcpy(&at, a->ai_addr, a->ai_addrlen);
			sock_source(&at, theirs);
			memcpy(&at, b->ai_addr, b->ai_addrlen);
			sock_source(&at, ours);
			sock_source(&(struct sockaddr_storage){.ss_family = b->ai_family}, any);
			heard |= memcmp(ours, any, sizeof(any)) == 0 ? sock_is_here(a)
								     : memcmp(ours, theirs, sizeof(ours)) == 0;
		}
	freeaddrinfo(list);
	if (rc == 0)
		freeaddrinfo(mine);
	return rc < 0 ? rc : heard;
}
