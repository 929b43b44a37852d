/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Datagrams on the network in memory: ports of hosts, and what passes between them, without any promise. Called by
 * whoever owns the port.
 */
#include "transport/loop.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/loop_internal.h"

/* The only thing that is delivered to a link's owner here is the wake-up that it asked for. */
static void loop_port_deliver(void *owner, struct loop_item *item)
{
	struct loop_port *p = owner;

	assert(item->kind == LOOP_READ);
	loop_item_free(item);
	p->wake(p->user);
}

static const struct loop_class loop_port_class = {
	.name = "port",
	.deliver = loop_port_deliver,
};

struct loop_port *loop_port_find(const struct loop_net *net, const struct loop_host *host, uint16_t number)
{
	for (struct loop_port *p = net->ports; p; p = p->next)
		if (p->host == host && p->number == number && loop_host_alive(host, p->life))
			return p;
	return NULL;
}

int loop_port_bind(struct loop_host *host, uint16_t port, struct loop_port **out)
{
	struct loop_net *net = host->net;
	struct loop_port *p;

	if (!host->up)
		return -ENETDOWN;
	if (port == 0)
		port = loop_number_free(net, host);
	if (port == 0 || loop_port_find(net, host, port))
		return -EADDRINUSE;
	p = calloc(1, sizeof(*p) + net->plan.hosts * sizeof(p->links[0]));
	if (!p)
		return -ENOMEM;
	p->host = host;
	p->life = host->life;
	p->number = port;
	loop_list_init(&p->inbox);
	loop_list_init(&p->lent);
	p->next = net->ports;
	if (p->next)
		p->next->prev = p;
	net->ports = p;
	*out = p;
	return 0;
}

uint16_t loop_port_number(const struct loop_port *p)
{
	return p->number;
}

static struct loop_link *loop_port_link(struct loop_port *p, unsigned endpoint)
{
	struct loop_link *link = p->links[endpoint];

	if (link)
		return link;
	link = loop_link_new(p->host, loop_net_host(p->host->net, endpoint), &loop_port_class);
	if (!link)
		return NULL;
	loop_link_join(link, 0, p);
	link->ends[0].life = p->life;
	link->ends[0].ended = link->ends[1].ended = true; /* nobody is told of the end of a port */
	p->links[endpoint] = link;
	return link;
}

/* ---- sending ---- */

/* One copy of it, on its way or lost. */
static void loop_port_put(struct loop_item *item, bool lost)
{
	struct loop_net *net = item->link->net;

	if (lost) {
		net->stats.dropped++;
		loop_trace(net, "lose", item);
		loop_item_free(item);
		return;
	}
	if (item->bytes && loop_chance(net, net->plan.corrupt)) {
		uint64_t bit = loop_between(net, 0, 8 * (uint64_t)item->bytes - 1);

		item->buf->bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		net->stats.corrupted++;
	}
	if (item->link->lossy && loop_chance(net, net->plan.reorder)) {
		item->passes = true;
		net->stats.reordered++;
	}
	loop_link_send(item);
}

static struct loop_item *loop_datagram_new(struct loop_link *link, uint16_t from, uint16_t port, const void *head,
	size_t head_bytes, const void *rest, size_t rest_bytes)
{
	struct loop_item *item = loop_item_new(link, LOOP_DATAGRAM, 1);

	if (!item)
		return NULL;
	item->buf = loop_buf_new(link->net, head_bytes + rest_bytes);
	if (!item->buf) {
		loop_item_free(item);
		return NULL;
	}
	if (head_bytes)
		memcpy(item->buf->bytes, head, head_bytes);
	if (rest_bytes)
		memcpy(item->buf->bytes + head_bytes, rest, rest_bytes);
	item->bytes = (uint32_t)(head_bytes + rest_bytes);
	item->from = from;
	item->port = port;
	return item;
}

void loop_port_send(struct loop_port *p, unsigned endpoint, uint16_t port, const void *head, size_t head_bytes,
	const void *rest, size_t rest_bytes)
{
	struct loop_net *net = p->host->net;
	const struct loop_plan *plan = &net->plan;
	size_t bytes = head_bytes + rest_bytes;
	bool large = plan->path_max && bytes > plan->path_max;
	struct loop_link *link;
	unsigned copies = 1;

	assert(bytes <= LOOP_DATAGRAM_MAX);
	link = loop_host_alive(p->host, p->life) ? loop_port_link(p, endpoint) : NULL;
	if (!link)
		return;
	net->stats.sent++;
	if (!large && link->lossy && loop_chance(net, plan->duplicate)) {
		net->stats.duplicated++;
		copies++;
	}
	while (copies--) {
		struct loop_item *item = loop_datagram_new(link, p->number, port, head, head_bytes, rest, rest_bytes);

		if (item)
			loop_port_put(item, large || (link->lossy && loop_chance(net, plan->drop)));
	}
}

/* ---- receiving ---- */

void loop_port_arrive(struct loop_item *item)
{
	struct loop_net *net = item->link->net;
	struct loop_port *p = loop_port_find(net, item->link->ends[1].host, item->port);

	if (!p) {
		net->stats.dropped++;
		loop_trace(net, "miss", item);
		loop_item_free(item);
	} else if (p->inbox_bytes + item->bytes > net->plan.pipe_bytes_max) {
		net->stats.overflowed++;
		loop_trace(net, "overflow", item);
		loop_item_free(item);
	} else {
		net->stats.delivered++;
		loop_trace(net, "arrive", item);
		p->inbox_bytes += item->bytes;
		loop_list_push(&p->inbox, item);
	}
}

unsigned loop_port_receive(struct loop_port *p, struct loop_datagram *in, unsigned max)
{
	struct loop_item *item;
	unsigned count = 0;

	loop_list_purge(&p->lent, NULL, 0);
	if (!loop_host_alive(p->host, p->life))
		return 0;
	loop_net_advance(p->host->net, p->host->net->now);
	while (count < max && (item = loop_list_first(&p->inbox)) != NULL) {
		loop_list_remove(item);
		loop_list_push(&p->lent, item);
		p->inbox_bytes -= item->bytes;
		in[count++] = (struct loop_datagram){.bytes = item->buf->bytes,
			.length = item->bytes,
			.endpoint = item->link->ends[0].host->endpoint,
			.port = item->from};
	}
	return count;
}

/* ---- the rest ---- */

void loop_port_wake(struct loop_port *p, uint64_t at_ns, void (*wake)(void *user), void *user)
{
	struct loop_link *link = loop_port_link(p, p->host->endpoint);
	struct loop_item *item = link ? loop_item_new(link, LOOP_READ, 0) : NULL;

	if (!item)
		return;
	p->wake = wake;
	p->user = user;
	item->at = at_ns;
	loop_heap_push(p->host->net, item);
}

void loop_port_close(struct loop_port *p)
{
	struct loop_net *net = p->host->net;

	loop_list_purge(&p->lent, NULL, 0);
	loop_list_purge(&p->inbox, NULL, 0);
	for (unsigned i = 0; i < net->plan.hosts; i++)
		if (p->links[i])
			loop_link_leave(p->links[i], 0, 0);
	if (p->prev)
		p->prev->next = p->next;
	else
		net->ports = p->next;
	if (p->next)
		p->next->prev = p->prev;
	free(p);
}
