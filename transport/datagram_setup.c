/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transports over datagrams as a whole: opening, queues with their ports, listening, closing. Control thread.
 */
#include "transport/datagram_internal.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"

int datagram_open(const struct datagram_class *class, void *owner, const struct transport_config *config,
	struct transport **out, struct err *e)
{
	struct datagram *t = calloc(1, sizeof(*t));

	if (!t)
		return err_set(e, -ENOMEM, "%s: no memory for the transport", class->ops->name);
	if (proof_nonce(t->names_key) < 0 || proof_nonce(t->ways_key) < 0 ||
		proof_nonce(t->ways_key + PROOF_NONCE) < 0) {
		free(t);
		return err_set(e, -EIO, "%s: no random numbers", class->ops->name);
	}
	t->transport.ops = class->ops;
	t->class = class;
	t->owner = owner;
	t->conns_max = config->queue_conns_max ? config->queue_conns_max : DATAGRAM_QUEUE_CONNS;
	t->send_bytes_max = config->send_bytes_max;
	t->apart = config->apart;
	t->handshake_ns = (config->handshake_ms ? config->handshake_ms : DATAGRAM_HANDSHAKE_MS) * NS_PER_MS;
	list_init(&t->strangers);
	list_init(&t->complete);
	list_init(&t->asked);
	list_init(&t->dialled);
	*out = &t->transport;
	return 0;
}

void *datagram_owner(const struct transport *head)
{
	return ((const struct datagram *)head)->owner;
}

struct datagram_address datagram_address_of(const struct sockaddr_storage *from)
{
	const struct sockaddr_in *in = (const void *)from;
	const struct sockaddr_in6 *in6 = (const void *)from;
	struct datagram_address a = {0};

	if (from->ss_family == AF_INET6) {
		a.ip = in6->sin6_addr;
		a.scope = in6->sin6_scope_id;
		a.port = ntohs(in6->sin6_port);
		return a;
	}
	if (in->sin_addr.s_addr != htonl(INADDR_ANY)) {
		a.ip.s6_addr[10] = a.ip.s6_addr[11] = 0xff;
		memcpy(a.ip.s6_addr + 12, &in->sin_addr, 4);
	}
	a.port = ntohs(in->sin_port);
	return a;
}

/* ---- queues ---- */

static int datagram_queue_port(struct datagram *t, int node, struct datagram_port **out, struct err *e)
{
	if (t->queue_count > 0 || !t->first)
		return t->class->port_open(t->owner, t->queue_count, node, t->listens ? t->host : NULL, out, e);
	*out = t->first;
	t->first = NULL;
	return 0;
}

int datagram_queue_create(struct transport *head, int node, struct queue **out, struct err *e)
{
	struct datagram *t = (struct datagram *)head;
	struct datagram_queue *q = calloc(1, sizeof(*q));
	int rc;

	if (!q)
		return err_set(e, -ENOMEM, "%s: no memory for a queue", head->ops->name);
	rc = datagram_queue_port(t, node, &q->port, e);
	if (rc < 0) {
		free(q);
		return rc;
	}
	q->config = (struct reliable_config){
		.conns_max = t->conns_max,
		.room_bytes = q->port->room_bytes,
		.send_bytes_max = t->send_bytes_max,
		.is_box = t->listens,
	};
	rc = reliable_create(&q->config, &q->reliable);
	if (rc < 0) {
		q->port->ops->close(q->port);
		free(q);
		return err_set(e, rc, "%s: no memory for a queue of %u connections", head->ops->name, t->conns_max);
	}
	q->queue.ops = &datagram_queue_ops;
	q->queue.datagrams = reliable_counters(q->reliable);
	q->queue.anywhere = true;
	q->queue.unordered = t->listens;
	q->transport = t;
	list_init(&q->trials);
	list_init(&q->watched);
	t->queue_count++;
	*out = &q->queue;
	return 0;
}

void datagram_queue_destroy(struct transport *head, struct queue *queue)
{
	struct datagram_queue *q = (struct datagram_queue *)queue;

	(void)head;
	assert(list_alone(&q->trials));
	reliable_destroy(q->reliable);
	q->port->ops->close(q->port);
	free(q);
}

const char *datagram_count(const struct queue *queue, unsigned index, uint64_t *value)
{
	const struct datagram_port *port = ((const struct datagram_queue *)queue)->port;

	return port->ops->count ? port->ops->count(port, index, value) : NULL;
}

/* ---- listening ---- */

/* Of a box with several addresses "10.0.0.1,10.0.1.1:7150", as many as fit: the welcome names the right one. */
static bool datagram_names(const struct datagram *t, char *out, size_t bytes)
{
	char host[INET6_ADDRSTRLEN] = "", port[8];
	size_t at = 0, room;
	struct in6_addr ip;

	snprintf(port, sizeof(port), ":%u", t->port);
	room = bytes - strlen(port);
	for (unsigned i = 0; t->class->name && t->class->name(t->owner, i, &ip) == 0; i++) {
		if (!IN6_IS_ADDR_V4MAPPED(&ip) || !inet_ntop(AF_INET, ip.s6_addr + 12, host, sizeof(host)) ||
			at + strlen(host) + 2 > room)
			break;
		at += (size_t)snprintf(out + at, room - at, "%s%s", i ? "," : "", host);
	}
	if (at > 0)
		snprintf(out + at, bytes - at, "%s", port);
	return at > 0;
}

/* What a worker's connect() takes: the first port stands for all. */
static void datagram_name(const struct datagram_port *port, char *out, size_t bytes)
{
	const struct in6_addr *ip = &port->address.ip;
	char host[INET6_ADDRSTRLEN] = "";

	if (IN6_IS_ADDR_UNSPECIFIED(ip))
		snprintf(out, bytes, "*:%u", port->address.port);
	else if (IN6_IS_ADDR_V4MAPPED(ip) && inet_ntop(AF_INET, ip->s6_addr + 12, host, sizeof(host)))
		snprintf(out, bytes, "%s:%u", host, port->address.port);
	else if (inet_ntop(AF_INET6, ip, host, sizeof(host)) && port->address.scope)
		snprintf(out, bytes, "[%s%%%u]:%u", host, port->address.scope, port->address.port);
	else
		snprintf(out, bytes, "[%s]:%u", host, port->address.port);
}

int datagram_listen(struct transport *head, const char *host, char *address, size_t address_bytes, struct err *e)
{
	struct datagram *t = (struct datagram *)head;
	int rc;

	if (t->listens || t->queue_count > 0)
		return err_set(e, -EALREADY, "%s: this transport listens already", head->ops->name);
	if ((size_t)snprintf(t->host, sizeof(t->host), "%s", host) >= sizeof(t->host))
		return err_set(e, -EINVAL, "%s: host \"%.64s...\" is too long", head->ops->name, host);
	rc = t->class->port_open(t->owner, 0, MEM_NODE_ANY, t->host, &t->first, e);
	if (rc < 0)
		return rc;
	t->listens = true;
	t->port = t->first->address.port;
	if (!datagram_names(t, address, address_bytes))
		datagram_name(t->first, address, address_bytes);
	return 0;
}

int datagram_fd(struct transport *head)
{
	(void)head;
	return -1;
}

void datagram_close(struct transport *head)
{
	struct datagram *t = (struct datagram *)head;

	datagram_strangers_end(t);
	assert(list_alone(&t->dialled));
	signal_list_clear(&t->said);
	if (t->first)
		t->first->ops->close(t->first);
	if (t->class->fini)
		t->class->fini(t->owner);
	explicit_bzero(t->names_key, sizeof(t->names_key));
	free(t);
}
