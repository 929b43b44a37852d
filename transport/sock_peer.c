/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is at the other end of a socket: its address in words, whether it is on this host, and then whose
 * process it is. Control thread.
 */
#include "transport/sock.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

enum {
	PROC_BYTES_MAX = 4 << 20, /* of one table: some 28,000 sockets */
	PROC_ESTABLISHED = 1,     /* TCP_ESTABLISHED as the kernel prints it */
	PROC_LINE_BYTES = 512,
};

static bool sock_is_mapped(const struct sockaddr *address)
{
	const struct sockaddr_in6 *in6 = (const void *)address;

	return address->sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr);
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

static bool sock_is_any(const struct sockaddr_storage *address)
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
	if (sock_is_any(&plain))
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

/* An address as /proc/net/tcp writes it: 32-bit words of the network's bytes, printed in host order, then the port. */
static void sock_proc_format(const struct sockaddr_storage *address, bool six, char out[48])
{
	const struct sockaddr_in *in = (const void *)address;
	const struct sockaddr_in6 *in6 = (const void *)address;
	uint32_t word[4] = {0};
	unsigned port;

	if (address->ss_family == AF_INET6) {
		memcpy(word, &in6->sin6_addr, sizeof(word));
		port = ntohs(in6->sin6_port);
	} else {
		word[2] = htonl(0xffff); /* For six: as an IPv6 socket that talks to IPv4. */
		word[3] = in->sin_addr.s_addr;
		port = ntohs(in->sin_port);
	}
	if (six)
		snprintf(out, 48, "%08" PRIX32 "%08" PRIX32 "%08" PRIX32 "%08" PRIX32 ":%04X", word[0], word[1],
			word[2], word[3], port);
	else
		snprintf(out, 48, "%08" PRIX32 ":%04X", word[3], port);
}

/*
 * The uid in one line when it is the socket `local` connected to `remote`, else -1. Only an established socket
 * that a process still has (its inode is not 0) counts: of a closed one the kernel prints uid 0.
 */
static int64_t sock_proc_line(const char *line, const char *local, const char *remote)
{
	char at_local[48];
	char at_remote[48];
	unsigned state;
	unsigned uid;
	unsigned long inode;

	if (sscanf(line, " %*u: %47s %47s %x %*s %*s %*s %u %*d %lu", at_local, at_remote, &state, &uid, &inode) != 5)
		return -1;
	if (state != PROC_ESTABLISHED || inode == 0 || strcmp(at_local, local) != 0 || strcmp(at_remote, remote) != 0)
		return -1;
	return uid;
}

static int64_t sock_proc_find(const char *path, const char *local, const char *remote)
{
	FILE *file = fopen(path, "re");
	char line[PROC_LINE_BYTES];
	int64_t uid = -1;
	size_t bytes = 0;

	if (!file)
		return -1;
	while (uid < 0 && bytes < PROC_BYTES_MAX && fgets(line, sizeof(line), file)) {
		bytes += strlen(line);
		uid = sock_proc_line(line, local, remote);
	}
	fclose(file);
	return uid;
}

/* Looks in both tables: an IPv4 connection may have been made by an IPv6 socket. */
static int64_t sock_proc_uid(const struct sockaddr_storage *local, const struct sockaddr_storage *remote)
{
	char at_local[48];
	char at_remote[48];
	int64_t uid = -1;

	if (local->ss_family == AF_INET) {
		sock_proc_format(local, false, at_local);
		sock_proc_format(remote, false, at_remote);
		uid = sock_proc_find("/proc/net/tcp", at_local, at_remote);
	}
	if (uid >= 0)
		return uid;
	sock_proc_format(local, true, at_local);
	sock_proc_format(remote, true, at_remote);
	return sock_proc_find("/proc/net/tcp6", at_local, at_remote);
}

int64_t sock_peer_uid(int fd)
{
	struct sockaddr_storage us = {0};
	struct sockaddr_storage them = {0};
	socklen_t bytes = sizeof(us);
	int64_t uid;

	if (getsockname(fd, (struct sockaddr *)&us, &bytes) < 0)
		return -1;
	bytes = sizeof(them);
	if (getpeername(fd, (struct sockaddr *)&them, &bytes) < 0 || !sock_is_loopback((struct sockaddr *)&them))
		return -1;
	us = sock_unmap(&us);
	them = sock_unmap(&them);
	uid = sock_proc_uid(&them, &us);
	/*
	 * The kernel reads a row's state and uid without a lock: a peer that closes in between shows as established,
	 * with uid 0. A closed socket stays closed, so a second look that agrees is the proof.
	 */
	return uid >= 0 && sock_proc_uid(&them, &us) == uid ? uid : -1;
}
