/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte streams over the network in memory, for the control sessions of a simulation: reliable and in
 * order like TCP, with delays, partitions, deaths, full windows, and reads and writes cut short.
 */
#include "transport/loop.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/loop_internal.h"

struct loop_stream {
	struct stream head;
	struct loop_stream *next; /* not accepted yet */
	struct loop_link *link;
	unsigned side;
	bool open;  /* the far end has been reached */
	bool ended; /* nothing comes after what is in the inbox */
	int error;  /* what read() says then; 0: an orderly end */
	struct loop_list inbox;
};

struct loop_stream_listener {
	struct loop_listener head;
	struct loop_stream *waiting, **waiting_tail;
	unsigned waiting_count;
};

static const struct stream_ops loop_stream_ops;

static void loop_stream_corrupt(struct loop_net *net, struct loop_item *item)
{
	if (!loop_chance(net, net->plan.stream_corrupt))
		return;
	item->buf->bytes[loop_between(net, 0, item->bytes - 1)] ^= (uint8_t)(1u << loop_between(net, 0, 7));
	net->stats.streams_corrupted++;
}

static void loop_stream_deliver(void *owner, struct loop_item *item)
{
	struct loop_stream *s = owner;

	switch (item->kind) {
	case LOOP_BYTES:
		if (s->ended) /* it broke, and the other end did not know */
			break;
		s->link->net->stats.stream_bytes += item->bytes;
		loop_stream_corrupt(s->link->net, item);
		loop_list_push(&s->inbox, item);
		return;
	case LOOP_END:
		s->ended = true;
		s->error = item->error;
		break;
	case LOOP_OPEN:
		s->open = true;
		break;
	default:
		break;
	}
	loop_item_free(item);
}

static const struct loop_class loop_stream_class = {.name = "stream", .deliver = loop_stream_deliver, .streams = true};

static struct loop_stream *loop_stream_new(struct loop_link *link, unsigned side)
{
	const struct loop_host *peer = link->ends[!side].host;
	struct loop_stream *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->head.ops = &loop_stream_ops;
	s->head.peer_uid = peer->remote ? -1 : peer->uid;
	s->head.peer_is_local = !peer->remote;
	snprintf(s->head.peer, sizeof(s->head.peer), "loop:%u", peer->endpoint);
	s->link = link;
	s->side = side;
	loop_list_init(&s->inbox);
	loop_link_join(link, side, s);
	return s;
}

static size_t loop_stream_cut(struct loop_stream *s, size_t bytes)
{
	struct loop_net *net = s->link->net;

	if (bytes > 1 && loop_chance(net, net->plan.split))
		return (size_t)loop_between(net, 1, bytes - 1);
	return bytes;
}

static ssize_t loop_stream_read(struct stream *head, void *buf, size_t bytes)
{
	struct loop_stream *s = (struct loop_stream *)head;
	struct loop_item *item;
	size_t got = 0, want;

	if (!loop_link_alive(s->link, s->side))
		return -ENETDOWN;
	item = loop_list_first(&s->inbox);
	if (!item && s->ended)
		return s->error;
	if (!item)
		return -EAGAIN;
	want = loop_stream_cut(s, bytes);
	while (got < want && (item = loop_list_first(&s->inbox)) != NULL) {
		size_t n = item->bytes - item->taken;

		n = n < want - got ? n : want - got;
		memcpy((char *)buf + got, item->buf->bytes + item->taken, n);
		got += n;
		item->taken += (uint32_t)n;
		if (item->taken == item->bytes) {
			loop_list_remove(item);
			loop_item_free(item);
		}
	}
	return (ssize_t)got;
}

static ssize_t loop_stream_write(struct stream *head, const void *buf, size_t bytes)
{
	struct loop_stream *s = (struct loop_stream *)head;
	size_t used = s->link->ends[!s->side].pipe_bytes;
	int rc;

	if (!loop_link_alive(s->link, s->side))
		return -ENETDOWN;
	if (s->ended)
		return -EPIPE;
	if (!s->open || used >= LOOP_STREAM_BYTES)
		return -EAGAIN;
	if (bytes > LOOP_STREAM_BYTES - used)
		bytes = LOOP_STREAM_BYTES - used;
	bytes = loop_stream_cut(s, bytes);
	if (bytes == 0)
		return 0;
	rc = loop_link_send_bytes(s->link, !s->side, buf, bytes);
	if (rc == 0 && loop_chance(s->link->net, s->link->net->plan.stream_break)) {
		s->link->net->stats.streams_broken++;
		loop_link_end(s->link, s->side, -ECONNRESET);
		loop_link_end(s->link, !s->side, -ECONNRESET);
	}
	return rc < 0 ? rc : (ssize_t)bytes;
}

static int loop_stream_fd(struct stream *head)
{
	(void)head;
	return -1;
}

static void loop_stream_close(struct stream *head)
{
	struct loop_stream *s = (struct loop_stream *)head;

	loop_list_purge(&s->inbox, NULL, 0);
	loop_link_leave(s->link, s->side, 0);
	free(s);
}

static const struct stream_ops loop_stream_ops = {
	.read = loop_stream_read,
	.write = loop_stream_write,
	.fd = loop_stream_fd,
	.close = loop_stream_close,
};

int loop_stream_pair(struct loop_host *a, struct loop_host *b, struct stream **a_out, struct stream **b_out)
{
	struct loop_link *link = loop_link_new(a, b, &loop_stream_class);
	struct loop_stream *one, *two;

	if (!link)
		return -ENOMEM;
	link->refs++; /* Ours, so that it outlives a half-made pair. */
	one = loop_stream_new(link, 0);
	two = one ? loop_stream_new(link, 1) : NULL;
	if (!two && one)
		loop_stream_close(&one->head);
	loop_link_put(link);
	if (!two)
		return -ENOMEM;
	one->open = two->open = true;
	*a_out = &one->head;
	*b_out = &two->head;
	return 0;
}

static int loop_stream_arrive(struct loop_listener *head, struct loop_link *link)
{
	struct loop_stream_listener *l = (struct loop_stream_listener *)head;
	struct loop_stream *s;
	struct loop_item *open;

	if (l->waiting_count >= LOOP_STRANGERS_MAX)
		return -ECONNREFUSED;
	open = loop_item_new(link, LOOP_OPEN, 0);
	if (!open)
		return -ENOMEM;
	s = loop_stream_new(link, 1);
	if (!s) {
		loop_item_free(open);
		return -ENOMEM;
	}
	loop_link_send(open);
	s->open = true;
	*l->waiting_tail = s;
	l->waiting_tail = &s->next;
	l->waiting_count++;
	return 0;
}

int loop_stream_listen(struct loop_host *host, uint16_t port, struct loop_listener **out)
{
	struct loop_stream_listener *l = calloc(1, sizeof(*l));
	int rc;

	if (!l)
		return -ENOMEM;
	l->waiting_tail = &l->waiting;
	l->head.class = &loop_stream_class;
	l->head.arrive = loop_stream_arrive;
	rc = loop_listener_open(&l->head, host, port);
	if (rc < 0) {
		free(l);
		return rc;
	}
	*out = &l->head;
	return 0;
}

uint16_t loop_listener_port(const struct loop_listener *l)
{
	return l->port;
}

int loop_stream_accept(struct loop_listener *head, struct stream **out)
{
	struct loop_stream_listener *l = (struct loop_stream_listener *)head;
	struct loop_stream *s = l->waiting;

	if (!loop_host_alive(head->host, head->life))
		return -ENETDOWN;
	if (!s)
		return -EAGAIN;
	l->waiting = s->next;
	if (!l->waiting)
		l->waiting_tail = &l->waiting;
	l->waiting_count--;
	*out = &s->head;
	return 0;
}

void loop_stream_unlisten(struct loop_listener *head)
{
	struct loop_stream_listener *l = (struct loop_stream_listener *)head;
	struct loop_stream *s;

	while ((s = l->waiting) != NULL) {
		l->waiting = s->next;
		loop_list_purge(&s->inbox, NULL, 0);
		loop_link_leave(s->link, s->side, -ECONNRESET);
		free(s);
	}
	loop_listener_close(head);
	free(l);
}

int loop_stream_dial(struct loop_host *from, unsigned endpoint, uint16_t port, struct stream **out)
{
	struct loop_link *link;
	struct loop_stream *s;
	int rc;

	if (!from->up)
		return -ENETDOWN;
	link = loop_link_new(from, loop_net_host(from->net, endpoint), &loop_stream_class);
	if (!link)
		return -ENOMEM;
	link->refs++; /* Ours, until all is made. */
	s = loop_stream_new(link, 0);
	rc = s ? loop_link_dial(link, port) : -ENOMEM;
	if (rc < 0 && s)
		loop_stream_close(&s->head);
	loop_link_put(link);
	if (rc == 0)
		*out = &s->head;
	return rc;
}
