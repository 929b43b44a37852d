/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of boxes, by the rack file first: it is what operators have in front of them.
 */
#include "phub/control/names.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "phub/control/above.h"
#include "phub/control/box.h"
#include "phub/control/job_below.h"
#include "phub/control/session.h"
#include "topology/racks.h"
#include "transport/sock.h"

/* Are these one address, however it is written? Names are compared as such: a box that asked for each would wait. */
static bool names_is_host(const char *a, const char *b)
{
	static const char mapped[] = "::ffff:";
	struct in6_addr x, y;

	a += strncasecmp(a, mapped, strlen(mapped)) == 0 ? strlen(mapped) : 0;
	b += strncasecmp(b, mapped, strlen(mapped)) == 0 ? strlen(mapped) : 0;
	if (inet_pton(AF_INET6, a, &x) == 1 && inet_pton(AF_INET6, b, &y) == 1)
		return memcmp(&x, &y, sizeof(x)) == 0;
	return strcasecmp(a, b) == 0;
}

int names_find_box(const struct racks *racks, const char *host, uint16_t port)
{
	for (unsigned i = 0; racks && i < racks->box_count; i++)
		if (racks->boxes[i].port == port && names_is_host(racks->boxes[i].host, host))
			return (int)i;
	return RACKS_NONE;
}

const char *names_find(const struct control *c, const char *host, uint16_t port)
{
	unsigned self;
	const struct racks *racks = box_racks(c->box, &self);
	int at = names_find_box(racks, host, port);

	return at == RACKS_NONE ? "" : racks->boxes[at].name;
}

const char *names_write_address(const char *host, uint16_t port, char *out, size_t bytes)
{
	snprintf(out, bytes, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
	return out;
}

const char *names_write(const char *name, const char *address, char *out, size_t bytes)
{
	snprintf(out, bytes, name[0] ? "'%s' at %s" : "%s%s", name, address);
	return out;
}

/* The host of "10.0.0.3:5512" or "[::1]:5512". */
static void names_read_host(const char *peer, char *out, size_t bytes)
{
	const char *end = strrchr(peer, ':');
	size_t length = end ? (size_t)(end - peer) : strlen(peer);

	if (length >= 2 && peer[0] == '[' && peer[length - 1] == ']') {
		peer++;
		length -= 2;
	}
	snprintf(out, bytes, "%.*s", (int)length, peer);
}

void names_take(const struct control *c, const char *peer, const char *host, uint32_t port, const char *name,
	struct names_box *out)
{
	out->port = port <= UINT16_MAX ? (uint16_t)port : 0;
	job_below_copy(out->host, sizeof(out->host), host);
	if (!out->host[0])
		names_read_host(peer, out->host, sizeof(out->host));
	if (out->port)
		snprintf(out->address, sizeof(out->address), strchr(out->host, ':') ? "[%.64s]:%u" : "%.64s:%u",
			out->host, out->port);
	else
		snprintf(out->address, sizeof(out->address), "%.*s", (int)sizeof(out->address) - 1, out->host);
	job_below_copy(out->name, sizeof(out->name), names_find(c, out->host, out->port));
	if (!out->name[0])
		job_below_copy(out->name, sizeof(out->name), name);
}

const char *names_above(const struct control *c, char *out, size_t bytes)
{
	const struct above_place *place = &c->above.place;
	const char *name = c->above.known ? names_find(c, place->at.host, place->at.port) : "";
	char address[NAMES_TEXT_BYTES + 64];

	if (c->above.known && !name[0])
		name = place->box;
	return names_write(name, above_name(c, address, sizeof(address)), out, bytes);
}

const char *names_own(const struct session *s, char *out, size_t bytes)
{
	const struct control *c = s->control;
	const struct config_listen *told = &c->config->advertise_at;
	struct sockaddr_storage here = {0};
	socklen_t length = sizeof(here);
	char address[CONFIG_HOST_BYTES + 16];
	unsigned self;
	const struct racks *racks = box_racks(c->box, &self);
	int fd = s->stream->ops->fd(s->stream);

	if (racks)
		names_write_address(racks->boxes[self].host, racks->boxes[self].port, address, sizeof(address));
	else if (told->port)
		names_write_address(told->host, told->port, address, sizeof(address));
	else if (fd >= 0 && getsockname(fd, (struct sockaddr *)&here, &length) == 0)
		sock_format(&here, address, sizeof(address));
	else /* it came by no socket */
		names_write_address(c->config->listen[0].host, c->config->listen[0].port, address, sizeof(address));
	return names_write(racks ? racks->boxes[self].name : c->config->box, address, out, bytes);
}
