/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links between two ends of the network in memory, the items that pass on them, and the recycled
 * memory of both. The parts of the net that data connections and streams share.
 */
#include "transport/loop_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- lists ---- */

void loop_list_init(struct loop_list *list)
{
	list->head.prev = list->head.next = &list->head;
}

void loop_list_push(struct loop_list *list, struct loop_item *item)
{
	assert(!item->next);
	item->prev = list->head.prev;
	item->next = &list->head;
	item->prev->next = item;
	list->head.prev = item;
}

struct loop_item *loop_list_first(const struct loop_list *list)
{
	return list->head.next == &list->head ? NULL : list->head.next;
}

struct loop_item *loop_list_next(const struct loop_list *list, const struct loop_item *item)
{
	return item->next == &list->head ? NULL : item->next;
}

void loop_list_remove(struct loop_item *item)
{
	item->prev->next = item->next;
	item->next->prev = item->prev;
	item->prev = item->next = NULL;
}

unsigned loop_list_purge(struct loop_list *list, const struct loop_link *link, unsigned side)
{
	struct loop_item *item = loop_list_first(list), *next;
	unsigned count = 0;

	for (; item; item = next) {
		next = loop_list_next(list, item);
		if (link && (item->link != link || item->to != side))
			continue;
		loop_list_remove(item);
		loop_item_free(item);
		count++;
	}
	return count;
}

/* ---- buffers ---- */

struct loop_buf *loop_buf_new(struct loop_net *net, size_t bytes)
{
	unsigned size_class = 0;
	struct loop_buf *buf;
	size_t room;

	while (((size_t)64 << size_class) < bytes)
		size_class++;
	assert(size_class < LOOP_SIZE_CLASSES);
	room = (size_t)64 << size_class;
	buf = net->free_bufs[size_class];
	if (buf) {
		net->free_bufs[size_class] = buf->next;
	} else {
		buf = aligned_alloc(64, sizeof(*buf) + room);
		if (!buf)
			return NULL;
		buf->size_class = size_class;
	}
	buf->refs = 1;
	net->buf_bytes += room;
	if (net->buf_bytes > net->stats.bytes_peak)
		net->stats.bytes_peak = net->buf_bytes;
	return buf;
}

void loop_buf_put(struct loop_net *net, struct loop_buf *buf)
{
	size_t room = (size_t)64 << buf->size_class;

	if (--buf->refs > 0)
		return;
	if (net->plan.poison)
		memset(buf->bytes, 0xa5, room);
	net->buf_bytes -= room;
	buf->next = net->free_bufs[buf->size_class];
	net->free_bufs[buf->size_class] = buf;
}

/* ---- items ---- */

/* Every item can be in the heap at once, so that a push to it never fails. */
static struct loop_item *loop_item_make(struct loop_net *net)
{
	if (net->item_count == net->heap_room) {
		size_t room = net->heap_room ? 2 * net->heap_room : 256;
		struct loop_item **heap = realloc(net->heap, room * sizeof(*heap));

		if (!heap)
			return NULL;
		net->heap = heap;
		net->heap_room = room;
	}
	net->item_count++;
	return malloc(sizeof(struct loop_item));
}

struct loop_item *loop_item_new(struct loop_link *link, enum loop_kind kind, unsigned to)
{
	struct loop_net *net = link->net;
	struct loop_item *item = net->free_items;

	if (item)
		net->free_items = item->next;
	else
		item = loop_item_make(net);
	if (!item)
		return NULL;
	memset(item, 0, offsetof(struct loop_item, header));
	item->link = link;
	item->kind = kind;
	item->to = (uint8_t)to;
	item->order = net->order++;
	link->refs++;
	return item;
}

void loop_item_free(struct loop_item *item)
{
	struct loop_link *link = item->link;
	struct loop_net *net = link->net;

	if (item->embedded)
		return;
	loop_pipe_leave(item);
	if (item->buf)
		loop_buf_put(net, item->buf);
	item->buf = NULL;
	item->next = net->free_items;
	net->free_items = item;
	loop_link_put(link);
}

/* ---- links ---- */

struct loop_link *loop_link_new(struct loop_host *from, struct loop_host *to, const struct loop_class *class)
{
	struct loop_net *net = from->net;
	struct loop_link *link = calloc(1, sizeof(*link));

	if (!link)
		return NULL;
	link->net = net;
	link->class = class;
	link->lossy = net->plan.lossy || loop_pair(net, from->endpoint, to->endpoint)->lossy;
	link->ends[0].host = from;
	link->ends[1].host = to;
	link->ends[0].life = from->life;
	link->ends[1].life = to->life;
	link->next = net->links;
	if (link->next)
		link->next->prev = link;
	net->links = link;
	return link;
}

void loop_link_join(struct loop_link *link, unsigned side, void *owner)
{
	link->ends[side].owner = owner;
	link->ends[side].life = link->ends[side].host->life;
	link->refs++;
}

void loop_link_put(struct loop_link *link)
{
	if (--link->refs > 0)
		return;
	if (link->prev)
		link->prev->next = link->next;
	else
		link->net->links = link->next;
	if (link->next)
		link->next->prev = link->prev;
	free(link);
}

void loop_link_leave(struct loop_link *link, unsigned side, int error)
{
	if (loop_link_alive(link, side))
		loop_link_end(link, side, error);
	link->ends[side].owner = NULL;
	loop_link_put(link);
}

void loop_link_end(struct loop_link *link, unsigned side, int error)
{
	struct loop_item *item;

	if (link->ends[side].ended)
		return;
	link->ends[side].ended = true;
	item = loop_item_new(link, LOOP_END, !side);
	if (!item)
		return; /* The peer sees a silent host, as after a power cut. */
	item->error = error;
	loop_link_send(item);
}

bool loop_link_alive(const struct loop_link *link, unsigned side)
{
	return loop_host_alive(link->ends[side].host, link->ends[side].life);
}

void loop_link_send(struct loop_item *item)
{
	struct loop_link *link = item->link;
	struct loop_net *net = link->net;
	struct loop_end *end = &link->ends[item->to];
	struct loop_pair *pair = loop_pair(net, link->ends[0].host->endpoint, link->ends[1].host->endpoint);
	uint64_t min = pair->own_delay ? pair->delay_min_ns : net->plan.delay_min_ns;
	uint64_t max = pair->own_delay ? pair->delay_max_ns : net->plan.delay_max_ns;

	item->at = net->now + loop_between(net, min, max);
	if (link->class->streams && loop_chance(net, net->plan.stream_late))
		item->at += loop_between(net, 0, net->plan.stream_late_ns);
	if (item->passes) {
		item->at += loop_between(net, 1, net->plan.reorder_ns);
	} else {
		if (item->at < end->last_at)
			item->at = end->last_at;
		end->last_at = item->at;
	}
	loop_trace(net, "send", item);
	loop_heap_push(net, item);
}

int loop_link_send_bytes(struct loop_link *link, unsigned to, const void *data, size_t bytes)
{
	struct loop_item *item = loop_item_new(link, LOOP_BYTES, to);

	if (!item)
		return -ENOMEM;
	item->buf = loop_buf_new(link->net, bytes);
	if (!item->buf) {
		loop_item_free(item);
		return -ENOMEM;
	}
	memcpy(item->buf->bytes, data, bytes);
	item->bytes = (uint32_t)bytes;
	loop_pipe_enter(item);
	loop_link_send(item);
	return 0;
}

int loop_link_dial(struct loop_link *link, uint16_t port)
{
	struct loop_item *item = loop_item_new(link, LOOP_DIAL, 1);

	if (!item)
		return -ENOMEM;
	item->port = port;
	loop_link_send(item);
	return 0;
}

/* ---- pipes ---- */

static size_t loop_item_size(const struct loop_item *item)
{
	return item->bytes + (item->kind == LOOP_MESSAGE ? WIRE_HEADER_BYTES : 0);
}

void loop_pipe_enter(struct loop_item *item)
{
	item->counted = true;
	item->link->ends[item->to].pipe_bytes += loop_item_size(item);
}

void loop_pipe_leave(struct loop_item *item)
{
	struct loop_link *link = item->link;
	void *sender = link->ends[!item->to].owner;

	if (!item->counted)
		return;
	item->counted = false;
	link->ends[item->to].pipe_bytes -= loop_item_size(item);
	if (sender && link->class->room && loop_link_alive(link, !item->to))
		link->class->room(sender);
}

/* ---- arrival ---- */

static void loop_link_arrive(struct loop_link *link, uint16_t port)
{
	struct loop_listener *l;
	int rc = -ECONNREFUSED;

	if (!link->ends[0].owner)
		return; /* Gave up meanwhile. */
	l = loop_listener_find(link->net, link->ends[1].host, port);
	if (l && l->class == link->class)
		rc = l->arrive(l, link);
	if (rc < 0)
		loop_link_end(link, 1, rc);
}

static bool loop_link_stopped(struct loop_item *item)
{
	struct loop_link *link = item->link;
	struct loop_net *net = link->net;
	unsigned to = link->ends[item->to].host->endpoint, from = link->ends[!item->to].host->endpoint;
	const struct loop_pair *pair;

	if (item->kind == LOOP_READ || item->kind == LOOP_SENT)
		return false;
	pair = loop_pair(net, from, to);
	if (!pair->cut && !pair->deaf[to > from] && !(pair->streams_cut && link->class->streams))
		return false;
	if (item->kind == LOOP_DATAGRAM || (link->lossy && item->kind == LOOP_MESSAGE)) {
		net->stats.dropped++;
		loop_trace(net, "cut", item);
		loop_item_free(item);
	} else {
		loop_list_push(&net->parked, item);
	}
	return true;
}

void loop_link_fire(struct loop_item *item)
{
	struct loop_link *link = item->link;
	struct loop_end *end = &link->ends[item->to];

	if (loop_link_stopped(item))
		return;
	if (item->kind == LOOP_DIAL) {
		loop_trace(link->net, "arrive", item);
		loop_link_arrive(link, item->port);
		loop_item_free(item);
	} else if (item->kind == LOOP_DATAGRAM) {
		loop_port_arrive(item);
	} else if (!end->owner || !loop_link_alive(link, item->to)) {
		loop_item_free(item);
	} else {
		if (item->kind != LOOP_READ)
			loop_trace(link->net, "arrive", item);
		link->class->deliver(end->owner, item);
	}
}
