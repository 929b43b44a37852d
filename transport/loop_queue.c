/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hot half of the transport in memory. A NIC is modelled: send() keeps the payload's address, the
 * bytes are read at flush() or, where the plan says so, later, and SENT is yielded by a later poll();
 * whoever rewrites a buffer too early is found out by wrong sums. Called by the owner of the queue.
 */
#include "transport/loop_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { LOOP_SEND_BYTES = 4 << 20, LOOP_QUEUE_CONNS = 1024 };

static struct loop_queue *loop_queue_of(const struct loop_conn *c)
{
	return (struct loop_queue *)c->head.queue;
}

/* Where what is to be yielded waits: of the queue, or of the connection before it has one. */
static struct loop_list *loop_conn_inbox(struct loop_conn *c)
{
	return c->head.queue ? &loop_queue_of(c)->ready : &c->early;
}

/* Ends a connection from our side of it: the owner is told by EVENT_CLOSED. */
static void loop_conn_fail(struct loop_conn *c, int error)
{
	if (c->closed)
		return;
	c->closed = true;
	c->closing.error = error;
	loop_list_push(loop_conn_inbox(c), &c->closing);
}

void loop_conn_break(void *owner)
{
	loop_conn_fail(owner, -ECONNRESET);
}

/* ---- sending ---- */

static size_t loop_unsent_size(const struct loop_item *item)
{
	return item->bytes + WIRE_HEADER_BYTES;
}

static size_t loop_send_bound(const struct loop_conn *c)
{
	unsigned bound = loop_queue_of(c)->transport->config.send_bytes_max;

	return bound ? bound : LOOP_SEND_BYTES;
}

static void loop_conn_tell_writable(struct loop_conn *c)
{
	if (!c->refused_bytes || (c->unsent_bytes && c->unsent_bytes + c->refused_bytes > loop_send_bound(c)))
		return;
	c->refused_bytes = 0;
	if (!c->writable.next)
		loop_list_push(&loop_queue_of(c)->ready, &c->writable);
}

static int loop_queue_send(
	struct queue *head, struct conn *conn, const struct wire_header *header, const void *payload, void *cookie)
{
	struct loop_queue *q = (struct loop_queue *)head;
	struct loop_conn *c = (struct loop_conn *)conn;
	size_t size = header->length + WIRE_HEADER_BYTES;
	struct loop_item *item;

	assert(conn->queue == head && header->length <= WIRE_PAYLOAD_MAX && (payload || !header->length));
	if (c->closed || !loop_link_alive(c->link, c->side))
		return -EPIPE;
	if (c->unsent_bytes && c->unsent_bytes + size > loop_send_bound(c)) {
		c->refused_bytes = size;
		return -EAGAIN;
	}
	item = loop_item_new(c->link, LOOP_SENT, c->side);
	if (!item) {
		loop_conn_fail(c, -ENOMEM);
		return -EPIPE;
	}
	wire_encode(header, item->header);
	item->payload = payload;
	item->bytes = header->length;
	item->cookie = cookie;
	loop_list_push(&c->unsent, item);
	c->unsent_bytes += size;
	if (!c->dirty) {
		c->dirty = true;
		c->dirty_next = q->dirty;
		q->dirty = c;
	}
	return 0;
}

/* One copy of what the NIC has read leaves the host. */
static void loop_wire_put(struct loop_conn *c, const struct loop_item *sent, struct loop_buf *buf)
{
	struct loop_net *net = c->link->net;
	struct loop_item *item = loop_item_new(c->link, LOOP_MESSAGE, !c->side);

	if (!item) {
		loop_conn_fail(c, -ENOMEM);
		return;
	}
	memcpy(item->header, sent->header, sizeof(item->header));
	item->bytes = sent->bytes;
	item->buf = buf;
	if (buf)
		buf->refs++;
	if (loop_chance(net, net->plan.corrupt)) {
		uint64_t bit = loop_between(net, 0, 8 * WIRE_HEADER_BYTES - 1);

		item->header[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		net->stats.corrupted++;
	}
	if (c->link->lossy && loop_chance(net, net->plan.reorder)) {
		item->passes = true;
		net->stats.reordered++;
	}
	loop_pipe_enter(item);
	loop_link_send(item);
}

static bool loop_pipe_full(const struct loop_conn *c, const struct loop_item *item)
{
	const struct loop_end *peer = &c->link->ends[!c->side];

	return peer->pipe_bytes && peer->pipe_bytes + loop_unsent_size(item) > c->link->net->plan.pipe_bytes_max;
}

/* The NIC reads the payload; then its fate on the wire is decided. */
static void loop_nic_read(struct loop_conn *c, struct loop_item *sent)
{
	struct loop_net *net = c->link->net;
	struct loop_buf *buf = NULL;

	net->stats.sent++;
	if (sent->bytes) {
		buf = loop_buf_new(net, sent->bytes);
		if (!buf) {
			loop_conn_fail(c, -ENOMEM);
			return;
		}
		memcpy(buf->bytes, sent->payload, sent->bytes);
	}
	if (c->link->lossy && (loop_pipe_full(c, sent) || loop_chance(net, net->plan.drop))) {
		if (loop_pipe_full(c, sent))
			net->stats.overflowed++;
		else
			net->stats.dropped++;
		loop_trace(net, "lose", sent);
	} else {
		loop_wire_put(c, sent, buf);
		if (c->link->lossy && loop_chance(net, net->plan.duplicate)) {
			net->stats.duplicated++;
			loop_wire_put(c, sent, buf);
		}
	}
	if (buf)
		loop_buf_put(net, buf);
}

/* The payload was read: it is the owner's again as soon as SENT is yielded. */
static void loop_nic_done(struct loop_conn *c, struct loop_item *sent)
{
	struct loop_net *net = c->link->net;

	sent->payload = NULL;
	if (!sent->cookie) {
		loop_item_free(sent);
		return;
	}
	if (c->link->lossy && loop_chance(net, net->plan.sent_late)) { /* else SENT comes before any answer */
		sent->at = net->now + loop_between(net, 0, net->plan.late_max_ns);
		loop_heap_push(net, sent);
		return;
	}
	loop_list_push(&loop_queue_of(c)->ready, sent);
}

static void loop_nic_wait(struct loop_conn *c, uint64_t at)
{
	struct loop_item *timer;

	if (c->reading)
		return;
	timer = loop_item_new(c->link, LOOP_READ, c->side);
	if (!timer) {
		loop_conn_fail(c, -ENOMEM);
		return;
	}
	timer->at = at;
	c->reading = true;
	loop_heap_push(c->link->net, timer);
}

/* Reads, in order, what was flushed and whose time has come, as far as the pipe has room. */
static void loop_nic_run(struct loop_conn *c)
{
	struct loop_net *net = c->link->net;
	struct loop_item *item;

	c->stalled = false;
	while ((item = loop_list_first(&c->unsent)) != NULL && item->flushed && !c->closed) {
		if (item->at > net->now) {
			loop_nic_wait(c, item->at);
			break;
		}
		if (!c->link->lossy && loop_pipe_full(c, item)) {
			c->stalled = true;
			break;
		}
		loop_list_remove(item);
		c->unsent_bytes -= loop_unsent_size(item);
		loop_nic_read(c, item);
		loop_nic_done(c, item);
	}
	loop_conn_tell_writable(c);
}

/* The peer has polled: the NIC goes on by itself. */
void loop_conn_room(void *owner)
{
	struct loop_conn *c = owner;

	if (c->stalled)
		loop_nic_wait(c, c->link->net->now);
}

static void loop_conn_flush(struct loop_conn *c)
{
	struct loop_net *net = c->link->net;
	struct loop_item *item = loop_list_first(&c->unsent);

	for (; item; item = loop_list_next(&c->unsent, item)) {
		if (item->flushed)
			continue;
		item->flushed = true;
		item->at = net->now;
		if (loop_chance(net, net->plan.late)) {
			item->at += loop_between(net, 0, net->plan.late_max_ns);
			net->stats.late++;
		}
	}
	loop_nic_run(c);
}

static void loop_queue_flush(struct queue *head)
{
	struct loop_queue *q = (struct loop_queue *)head;
	struct loop_conn *c, *dirty = NULL;

	/* In the order of the first send(): the list is last in, first out. */
	while ((c = q->dirty) != NULL) {
		q->dirty = c->dirty_next;
		c->dirty_next = dirty;
		dirty = c;
	}
	while ((c = dirty) != NULL) {
		dirty = c->dirty_next;
		c->dirty = false;
		if (loop_link_alive(c->link, c->side))
			loop_conn_flush(c);
	}
}

/* ---- receiving ---- */

void loop_conn_deliver(void *owner, struct loop_item *item)
{
	struct loop_conn *c = owner;

	if (item->kind == LOOP_READ) {
		loop_item_free(item);
		c->reading = false;
		loop_nic_run(c);
		return;
	}
	if (item->kind == LOOP_MESSAGE && item->link->broken) {
		item->link->net->stats.dropped++;
		loop_item_free(item);
		return;
	}
	if (item->kind == LOOP_MESSAGE)
		item->link->net->stats.delivered++;
	if (item->kind == LOOP_END) {
		loop_conn_fail(c, item->error);
	} else if (!c->closed || item->kind == LOOP_SENT) {
		loop_list_push(loop_conn_inbox(c), item);
		return;
	}
	loop_item_free(item);
}

/* What any transport checks. Whether the worker's claims are true is for receive.c. */
static int loop_message_check(const struct loop_conn *c, const struct loop_item *item, struct wire_header *h)
{
	int rc = wire_decode(item->header, h);

	if (rc < 0)
		return rc;
	if (h->length != item->bytes)
		return -EBADMSG;
	return h->length > c->spec->payload_max ? -EMSGSIZE : 0;
}

/*
 * A result goes where the worker wants it. 1 when it did or is not wanted, 0 when there are no sinks here,
 * or -EPROTO when there is no such chunk or it has another length.
 */
static int loop_message_sink(const struct loop_conn *c, const struct loop_item *item, struct event *event)
{
	const struct sink *sink;

	if (event->header.type != WIRE_RESULT || !c->spec->sinks)
		return 0;
	if (event->header.chunk >= c->spec->chunk_count)
		return -EPROTO;
	sink = &c->spec->sinks[event->header.chunk];
	event->payload = sink->addr;
	if (!sink->addr)
		return 1;
	if (!sink_fits(sink, &event->header))
		return -EPROTO;
	memcpy(sink->addr, item->buf->bytes, item->bytes);
	return 1;
}

static void loop_message_lend(struct loop_queue *q, struct loop_item *item, struct event *event)
{
	event->payload = item->buf->bytes;
	if (q->held_count < q->head.hold_max) {
		q->held_count++;
		item->held = true;
		event->slot = item;
		loop_list_push(&q->held, item);
	} else {
		loop_list_push(&q->lent, item);
	}
}

static unsigned loop_yield_message(
	struct loop_queue *q, struct loop_conn *c, struct loop_item *item, struct event *event)
{
	struct loop_net *net = c->link->net;
	int rc = loop_message_check(c, item, &event->header);

	loop_pipe_leave(item);
	if (rc == 0)
		rc = loop_message_sink(c, item, event);
	if (rc < 0) {
		loop_trace(net, "refuse", item);
		loop_item_free(item);
		if (c->link->lossy)
			return 0; /* As a bad checksum would have it. */
		c->deaf = true;
		loop_conn_fail(c, rc);
		return 0;
	}
	if (rc == 0 && item->bytes)
		loop_message_lend(q, item, event);
	else
		loop_item_free(item);
	event_whole(event);
	return 1;
}

/* 1 when the item became an event. */
static unsigned loop_queue_yield(struct loop_queue *q, struct loop_item *item, struct event *event)
{
	struct loop_conn *c = item->link->ends[item->to].owner;

	memset(event, 0, sizeof(*event));
	event->conn = &c->head;
	switch (item->kind) {
	case LOOP_MESSAGE:
		if (c->deaf)
			break;
		return loop_yield_message(q, c, item, event);
	case LOOP_SENT:
		event->type = EVENT_SENT;
		event->cookie = item->cookie;
		loop_item_free(item);
		return 1;
	case LOOP_WRITABLE:
		event->type = EVENT_WRITABLE;
		return !c->closed;
	case LOOP_END:
		event->type = EVENT_CLOSED;
		event->why = NULL;
		event->error = item->error;
		event->broken = item->link->broken;
		c->deaf = true;
		return 1;
	default:
		break;
	}
	loop_item_free(item);
	return 0;
}

static unsigned loop_queue_poll(struct queue *head, uint64_t now_ns, struct event *events, unsigned max)
{
	struct loop_queue *q = (struct loop_queue *)head;
	struct loop_net *net = q->transport->host->net;
	struct loop_item *item;
	unsigned count = 0;

	(void)now_ns; /* The net has a clock of its own. */
	loop_list_purge(&q->lent, NULL, 0);
	if (!loop_host_alive(q->transport->host, q->transport->life))
		return 0;
	loop_net_advance(net, net->now);
	while (count < max && (item = loop_list_first(&q->ready)) != NULL) {
		loop_list_remove(item);
		count += loop_queue_yield(q, item, &events[count]);
	}
	return count;
}

static void loop_queue_release(struct queue *head, void *slot)
{
	struct loop_queue *q = (struct loop_queue *)head;
	struct loop_item *item = slot;

	assert(item && item->held && q->held_count > 0);
	item->held = false;
	loop_list_remove(item);
	loop_item_free(item);
	q->held_count--;
}

/* ---- coming and going ---- */

static int loop_queue_adopt(struct queue *head, struct conn *conn, const struct conn_spec *spec)
{
	struct loop_queue *q = (struct loop_queue *)head;
	struct loop_conn *c = (struct loop_conn *)conn;
	unsigned max = q->transport->config.queue_conns_max;
	struct loop_item *item;

	assert(!conn->queue && c->hands.state == HANDSHAKE_DONE && conn->transport == &q->transport->head);
	if (q->conn_count >= (max ? max : LOOP_QUEUE_CONNS))
		return -ENOSPC;
	q->conn_count++;
	conn->queue = head;
	c->spec = spec;
	c->prev = NULL;
	c->next = q->conns;
	if (c->next)
		c->next->prev = c;
	q->conns = c;
	while ((item = loop_list_first(&c->early)) != NULL) {
		loop_list_remove(item);
		loop_list_push(&q->ready, item);
	}
	return 0;
}

static void loop_queue_forget(struct loop_queue *q, struct loop_conn *c)
{
	struct loop_conn **at = &q->dirty;

	while (*at && *at != c)
		at = &(*at)->dirty_next;
	if (*at)
		*at = c->dirty_next;
	if (c->prev)
		c->prev->next = c->next;
	else
		q->conns = c->next;
	if (c->next)
		c->next->prev = c->prev;
	q->conn_count--;
}

static void loop_queue_drop(struct queue *head, struct conn *conn)
{
	struct loop_queue *q = (struct loop_queue *)head;
	struct loop_conn *c = (struct loop_conn *)conn;

	assert(conn->queue == head);
	c->stalled = false;
	loop_list_purge(&q->ready, c->link, c->side);
	loop_list_purge(&q->lent, c->link, c->side);
	q->held_count -= loop_list_purge(&q->held, c->link, c->side);
	loop_list_purge(&c->unsent, NULL, 0);
	loop_queue_forget(q, c);
	loop_link_leave(c->link, c->side, 0);
	free(c);
}

static int loop_queue_arm(struct queue *head)
{
	(void)head;
	return -ENOTSUP;
}

const struct queue_ops loop_queue_ops = {
	.adopt = loop_queue_adopt,
	.poll = loop_queue_poll,
	.send = loop_queue_send,
	.flush = loop_queue_flush,
	.release = loop_queue_release,
	.arm = loop_queue_arm,
	.drop = loop_queue_drop,
};
