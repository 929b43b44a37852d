/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Public addresses by the registries of IANA: what is left when networks of one's own are taken away.
 */
#include "phub/control/exposure.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "transport/sock.h"
#include "transport/stream.h"

enum { EXPOSURE_ADDRESSES = 8 }; /* of a name */

static bool exposure_is_public_four(uint32_t a)
{
	static const struct {
		uint32_t network, bits;
	} own[] = {
		{0x7f000000, 8},                                      /* 127: loopback */
		{0x0a000000, 8},                                      /* 10, 172.16, 192.168: private, RFC 1918 */
		{0xac100000, 12}, {0xc0a80000, 16}, {0x64400000, 10}, /* 100.64: shared, RFC 6598 */
		{0xa9fe0000, 16},                                     /* 169.254: link-local */
	};

	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		if ((a ^ own[i].network) >> (32 - own[i].bits) == 0)
			return false;
	return a != 0;
}

bool exposure_is_public(const struct sockaddr *address)
{
	const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
	uint32_t four;

	if (address->sa_family == AF_INET)
		return exposure_is_public_four(ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr));
	if (address->sa_family != AF_INET6)
		return false;
	if (IN6_IS_ADDR_V4MAPPED(six)) {
		memcpy(&four, six->s6_addr + 12, sizeof(four));
		return exposure_is_public_four(ntohl(four));
	}
	return !IN6_IS_ADDR_LOOPBACK(six) && !IN6_IS_ADDR_UNSPECIFIED(six) && !IN6_IS_ADDR_LINKLOCAL(six) &&
	       (six->s6_addr[0] & 0xfe) != 0xfc; /* fc00::/7: unique local */
}

static void exposure_name(const struct sockaddr *address, char *out, size_t bytes)
{
	const void *at = address->sa_family == AF_INET ? (const void *)&((const struct sockaddr_in *)address)->sin_addr
						       : &((const struct sockaddr_in6 *)address)->sin6_addr;

	if (!inet_ntop(address->sa_family, at, out, (socklen_t)bytes))
		snprintf(out, bytes, "?");
}

static bool exposure_is_any(const struct sockaddr *address)
{
	return address->sa_family == AF_INET
		       ? ((const struct sockaddr_in *)address)->sin_addr.s_addr == htonl(INADDR_ANY)
		       : IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

/* The first public address of this machine, as text. */
static bool exposure_find_here(char *out, size_t bytes)
{
	struct ifaddrs *all = NULL;
	bool found = false;

	if (getifaddrs(&all) < 0)
		return false;
	for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
		found = i->ifa_addr && (i->ifa_flags & IFF_UP) && exposure_is_public(i->ifa_addr);
		if (found)
			exposure_name(i->ifa_addr, out, bytes);
	}
	freeifaddrs(all);
	return found;
}

static bool exposure_find(const char *host, char *out, size_t bytes)
{
	struct sockaddr_storage addresses[EXPOSURE_ADDRESSES];
	struct err e;
	int count;

	if (!host[0])
		return exposure_find_here(out, bytes);
	count = sock_addresses(host, addresses, EXPOSURE_ADDRESSES, &e);
	for (int i = 0; i < count; i++) {
		const struct sockaddr *address = (const struct sockaddr *)&addresses[i];

		if (exposure_is_any(address)) /* 0.0.0.0, [::]: all of this machine's, as an empty host */
			return exposure_find_here(out, bytes);
		if (!exposure_is_public(address))
			continue;
		exposure_name(address, out, bytes);
		return true;
	}
	return false;
}

void exposure_describe(const struct config *config, char *out, size_t bytes)
{
	static const char *const data[] = {
		[CONFIG_ENCRYPTION_OFF] =
			"reads gradients and weights, which are not encrypted (data_encryption: off), "
			"and over tcp and verbs changes them",
		[CONFIG_ENCRYPTION_ALLOW] = "reads gradients and weights of jobs that do not ask for encryption "
					    "(data_encryption: allow), and over tcp and verbs changes them",
		[CONFIG_ENCRYPTION_REQUIRE] = NULL,
	};
	static const char *const control[] = {
		[CONFIG_TLS_OFF] = "reads and changes control sessions (tls: off)",
		[CONFIG_TLS_ALLOW] = "reads and changes control sessions of workers without TLS (tls: allow)",
		[CONFIG_TLS_REQUIRE] = NULL,
	};
	const char *what = control[config->tls], *which = data[config->data_encryption];
	char address[INET6_ADDRSTRLEN];
	bool found = false;

	out[0] = '\0';
	for (unsigned i = 0; i < config->listen_count && !found && (what || which); i++)
		found = exposure_find(config->listen[i].host, address, sizeof(address));
	if (found)
		snprintf(out, bytes, "%s is a public address, and whoever is on the way to it %s%s%s; set %s%s%s",
			address, what ? what : "", what && which ? ", and " : "", which ? which : "",
			what ? "tls: require" : "", what && which ? " and " : "",
			which ? "data_encryption: require, or keep data ports within a network that you trust" : "");
}

struct exposure_names {
	char *out;
	size_t bytes;
	unsigned count;
};

static void exposure_add_secret(struct exposure_names *names, const struct config_secret *secret, const char *whose)
{
	size_t length = strlen(names->out);

	if (!secret->bytes || secret->length >= CONFIG_SECRET_BYTES_GOOD)
		return;
	names->count++;
	snprintf(names->out + length, names->bytes - length, "%s%s (%zu bytes)", length ? ", " : "", whose,
		secret->length);
}

void exposure_describe_secrets(const struct config *config, char *out, size_t bytes)
{
	char text[320] = "", whose[SPEC_NAME_BYTES + 16];
	struct exposure_names names = {text, sizeof(text), 0};
	bool near = true;

	out[0] = '\0';
	for (unsigned i = 0; i < config->listen_count && near; i++)
		near = stream_host_is_loopback(config->listen[i].host) == 1;
	if (near)
		return;
	exposure_add_secret(&names, &config->create_secret, "create_secret");
	exposure_add_secret(&names, &config->admin_secret, "admin_secret");
	for (unsigned i = 0; i < config->job_count; i++) {
		snprintf(whose, sizeof(whose), "that of job '%s'", config->jobs[i].name);
		exposure_add_secret(&names, &config->jobs[i].secret, whose);
	}
	if (names.count > 0)
		snprintf(out, bytes,
			"%u secret%s short enough to be guessed: %s; who overhears a session without TLS tries "
			"guesses at home. Take %u bytes or more: openssl rand -hex 32",
			names.count, names.count == 1 ? " is" : "s are", text, CONFIG_SECRET_BYTES_GOOD);
}
