/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hot half of the shared-memory transport: headers through a ring per direction, payloads where they lie. The
 * same code runs at both ends: the box's core and whoever drives libphub, each the owner of its queue. While both
 * poll, nothing here is a system call but one epoll_wait() a millisecond, to notice peers that died.
 *
 * EVENT_SENT follows as soon as the entry is published. For a push that does not mean that the box has read it: the
 * memory is shared, and the box reads it until its result of that round is there. For a result, the worker reads it
 * in place until it pushes the next round. Both are what the rules above the transport say anyway.
 *
 * Bells. The peer may hold the other end of whatever wakes us and is not to be trusted with it. The worker rings an
 * eventfd that the box never reads (edge-triggered, so every ring counts): a read could be made to block, because
 * O_NONBLOCK belongs to the open file, which both share. For the same reason the box does not write to an eventfd
 * (a full one blocks) but to a pipe of which only the box has the write end. A round trip of such bells takes 3.2 us
 * (p50) on a 2-core virtual machine, of two eventfds 3.4, of bytes on the Unix socket 5.5 (test_shm_sleep --measure).
 */
#include "transport/shm_internal.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	SHM_BATCH = 16,        /* events of one connection before the next has its turn */
	SHM_LOOK_NS = 1000000, /* the sockets are looked at this often... */
	SHM_LOOK_POLLS = 4096, /* ...or after this many polls, should the clock stand still */
	SHM_LOOK_BATCH = 64,
};

struct shm_queue {
	struct queue head;
	struct shm_transport *transport;
	struct shm_conn **conns; /* [conn_count], any order */
	struct shm_conn **dirty; /* [dirty_count] with unpublished entries */
	unsigned conn_count, conns_max, dirty_count;
	unsigned turn;  /* whose it is in the next poll */
	unsigned polls; /* since the sockets were looked at */
	uint64_t looked_ns;
	int epoll; /* sockets and bells of all connections */
	bool armed;
};

/* In epoll's data, beside the connection: it is the bell that was rung. */
#define SHM_TAG_BELL 1u

static struct shm_queue *shm_queue_of(const struct conn *c)
{
	return (struct shm_queue *)c->queue;
}

/* ---- the life of a queue and of its connections ---- */

int shm_queue_create(struct transport *t, int node, struct queue **out, struct err *e)
{
	struct shm_transport *shm = (struct shm_transport *)t;
	struct shm_queue *q = calloc(1, sizeof(*q));

	(void)node; /* rings are memory of both ends */
	if (!q)
		return err_set(e, -ENOMEM, "shm: no memory for a queue");
	q->head.ops = &shm_queue_ops;
	q->head.hold_max = UINT_MAX;
	q->transport = shm;
	q->conns_max = shm->queue_conns_max;
	q->conns = calloc(q->conns_max, sizeof(struct shm_conn *));
	q->dirty = calloc(q->conns_max, sizeof(struct shm_conn *));
	q->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (!q->conns || !q->dirty || q->epoll < 0) {
		int rc = q->epoll < 0 ? -errno : -ENOMEM;

		if (q->epoll >= 0)
			close(q->epoll);
		free(q->conns);
		free(q->dirty);
		free(q);
		return err_set(e, rc, "shm: cannot make a queue of %u connections: raise `ulimit -n` or `ulimit -v`",
			shm->queue_conns_max);
	}
	shm->queue_count++;
	*out = &q->head;
	return 0;
}

void shm_queue_destroy(struct transport *t, struct queue *head)
{
	struct shm_queue *q = (struct shm_queue *)head;

	assert(q->conn_count == 0);
	((struct shm_transport *)t)->queue_count--;
	close(q->epoll);
	free(q->conns);
	free(q->dirty);
	free(q);
}

static int shm_queue_watch(struct shm_queue *q, struct shm_conn *c)
{
	/* The worker's bell is a pipe and is read; the box's is an eventfd and never is. */
	struct epoll_event bell = {
		.events = EPOLLIN | (c->box ? EPOLLET : 0u), .data.u64 = (uint64_t)(uintptr_t)c | SHM_TAG_BELL};
	struct epoll_event socket = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = (uint64_t)(uintptr_t)c};

	if (epoll_ctl(q->epoll, EPOLL_CTL_ADD, c->socket, &socket) < 0)
		return -ENOSPC;
	if (epoll_ctl(q->epoll, EPOLL_CTL_ADD, c->bell_in, &bell) < 0) {
		epoll_ctl(q->epoll, EPOLL_CTL_DEL, c->socket, NULL);
		return -ENOSPC;
	}
	return 0;
}

/* Not left to close(): a forked child may hold copies of the descriptors, and epoll would go on watching them. */
static void shm_queue_unwatch(struct shm_queue *q, struct shm_conn *c)
{
	epoll_ctl(q->epoll, EPOLL_CTL_DEL, c->socket, NULL);
	epoll_ctl(q->epoll, EPOLL_CTL_DEL, c->bell_in, NULL);
}

static int shm_adopt(struct queue *head, struct conn *conn, const struct conn_spec *spec)
{
	struct shm_queue *q = (struct shm_queue *)head;
	struct shm_conn *c = (struct shm_conn *)conn;
	int rc;

	assert(c->stage == SHM_READY);
	if (q->conn_count == q->conns_max)
		return -ENOSPC;
	if (!shm_spans_fit(spec->spans, spec->chunk_count, c->box ? c->in_bytes : c->out_bytes))
		return -EINVAL;
	if (c->slots.count > 0 && spec->payload_max > c->slots.bytes)
		return -EINVAL;
	rc = shm_queue_watch(q, c);
	if (rc < 0)
		return rc;
	c->spans = spec->spans;
	c->chunk_count = spec->chunk_count;
	c->shorter = spec->shorter;
	c->stage = SHM_OPEN;
	c->index = q->conn_count;
	conn->queue = head;
	q->conns[q->conn_count++] = c;
	/* Whatever came before may have rung no bell: the next arm() finds it in the ring. */
	return 0;
}

static void shm_queue_forget(struct shm_queue *q, struct shm_conn *c)
{
	struct shm_conn *moved = q->conns[--q->conn_count];

	q->conns[c->index] = moved;
	moved->index = c->index;
	for (unsigned i = 0; c->dirty && i < q->dirty_count; i++)
		if (q->dirty[i] == c) {
			q->dirty[i] = q->dirty[--q->dirty_count];
			c->dirty = false;
		}
}

static void shm_drop(struct queue *head, struct conn *conn)
{
	struct shm_queue *q = (struct shm_queue *)head;
	struct shm_conn *c = (struct shm_conn *)conn;

	assert(conn->queue == head);
	shm_queue_forget(q, c);
	shm_queue_unwatch(q, c);
	shm_conn_free(c);
}

/* Ends the connection from this side: nothing more is read from its ring. */
static void shm_conn_fail(struct shm_conn *c, int error)
{
	if (c->stage >= SHM_FAILED)
		return;
	c->stage = SHM_FAILED;
	c->error = error;
}

/* ---- bells and sockets ---- */

static void shm_bell_ring(struct shm_conn *c)
{
	const uint64_t one = 1;

	/* No room: it is ringing already. Any other failure: the peer is gone, and its socket says so. */
	if (write(c->bell_out, &one, c->box ? 1 : sizeof(one)) < 0)
		return;
}

static void shm_bell_quieten(struct shm_conn *c)
{
	char rings[64];

	/* One read is enough: the box rings once for each time that we armed. */
	if (!c->box && read(c->bell_in, rings, sizeof(rings)) < 0)
		return;
}

/* Nothing is said on the socket once the connection is set up: it is there to end. */
static void shm_socket_hear(struct shm_conn *c)
{
	char byte;
	ssize_t n = recv(c->socket, &byte, sizeof(byte), MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	/* The bell of a box that is gone would ring for ever. */
	shm_queue_unwatch(shm_queue_of(&c->head), c);
	if (n > 0 || shm_ring_close_peer(&c->ring) < 0) {
		shm_conn_fail(c, -EPROTO);
	} else if (c->stage == SHM_OPEN) {
		c->stage = SHM_ENDING;
		c->error = shm_ring_peer_said_bye(&c->ring) ? 0 : -ECONNRESET;
	}
}

static void shm_look(struct shm_queue *q, uint64_t now_ns)
{
	struct epoll_event events[SHM_LOOK_BATCH];
	int n = epoll_wait(q->epoll, events, SHM_LOOK_BATCH, 0);

	q->looked_ns = now_ns;
	q->polls = 0;
	for (int i = 0; i < n; i++) {
		struct shm_conn *c = (struct shm_conn *)(uintptr_t)(events[i].data.u64 & ~(uint64_t)SHM_TAG_BELL);

		if (events[i].data.u64 & SHM_TAG_BELL)
			shm_bell_quieten(c);
		else
			shm_socket_hear(c);
	}
}

static void shm_disarm(struct shm_queue *q)
{
	for (unsigned i = 0; i < q->conn_count; i++)
		shm_ring_disarm(&q->conns[i]->ring);
	q->armed = false;
}

/* ---- receiving ---- */

/* Where the payload of this message lies; NULL when it would lie outside of the region. */
static const void *shm_conn_payload(const struct shm_conn *c, const struct wire_header *header, uint64_t place)
{
	uint64_t offset = place;

	/* The box looks it up in its own tables; a worker is told, and checks. */
	if (c->box && shm_ring_find(&c->slots, header, c->spans, place, &offset) < 0)
		return NULL;
	if (offset > c->in_bytes || header->length > c->in_bytes - offset)
		return NULL;
	return c->in + offset;
}

/* 1 with the next message in `ev`, 0 when there is none; a broken one ends the connection. */
static int shm_conn_take(struct shm_conn *c, struct event *ev)
{
	uint64_t place;
	int rc = shm_ring_take(&c->ring, &ev->header, &place);

	if (rc <= 0) {
		if (rc < 0)
			shm_conn_fail(c, rc);
		return 0;
	}
	ev->payload = NULL;
	ev->slot = NULL;
	if (!shm_ring_chunk_ok(&ev->header, c->spans, c->chunk_count, c->shorter)) {
		shm_conn_fail(c, -EPROTO);
		return 0;
	}
	if (ev->header.length) {
		ev->payload = shm_conn_payload(c, &ev->header, place);
		if (!ev->payload) {
			shm_conn_fail(c, -EPROTO);
			return 0;
		}
		ev->slot = c;
		c->slots_held++;
	}
	event_whole(ev);
	ev->error = 0;
	ev->conn = &c->head;
	ev->cookie = NULL;
	return 1;
}

static unsigned shm_conn_yield_messages(struct shm_conn *c, struct event *events, unsigned max)
{
	unsigned n = 0;

	while (n < max && shm_conn_take(c, &events[n]))
		n++;
	if (n && shm_ring_give_back(&c->ring))
		shm_bell_ring(c);
	return n;
}

static void shm_event_simple(struct event *ev, struct shm_conn *c, enum event_type type)
{
	*ev = (struct event){.type = type, .conn = &c->head};
}

static unsigned shm_conn_yield_sent(struct shm_conn *c, struct event *events, unsigned max)
{
	unsigned n = 0;

	while (n < max && c->cookie_head != c->cookie_published) {
		shm_event_simple(&events[n], c, EVENT_SENT);
		events[n++].cookie = c->cookies[c->cookie_head++ & (c->capacity - 1)];
	}
	return n;
}

/* Room for another send()? The bound on what was sent and not yet said to be is that of the ring. 1, 0 or -EPROTO. */
static int shm_conn_room(struct shm_conn *c)
{
	return c->cookie_tail - c->cookie_head < c->capacity ? shm_ring_room(&c->ring) : 0;
}

static unsigned shm_conn_yield_writable(struct shm_conn *c, struct event *ev)
{
	int rc = shm_conn_room(c);

	if (rc < 0)
		shm_conn_fail(c, rc);
	if (rc <= 0)
		return 0;
	c->blocked = false;
	shm_event_simple(ev, c, EVENT_WRITABLE);
	return 1;
}

/* Is all yielded that was to come before the end? */
static bool shm_conn_over(const struct shm_conn *c)
{
	if (c->stage == SHM_ENDING)
		return shm_ring_quiet(&c->ring, 0) && c->cookie_head == c->cookie_published;
	return c->stage == SHM_FAILED;
}

/* What is rare: room, the end. */
static unsigned shm_conn_yield_rest(struct shm_conn *c, struct event *events, unsigned max)
{
	unsigned n = 0;

	if (c->blocked && c->stage == SHM_OPEN)
		n += shm_conn_yield_writable(c, events + n);
	if (n < max && shm_conn_over(c)) {
		shm_event_simple(&events[n], c, EVENT_CLOSED);
		events[n++].error = c->error;
		c->stage = SHM_CLOSED;
	}
	return n;
}

static unsigned shm_conn_poll(struct shm_conn *c, struct event *events, unsigned max)
{
	unsigned n = 0;

	/* Completions first: a message may be the answer to what they are about, and its reader counts on that. */
	if (c->stage <= SHM_ENDING) {
		n = shm_conn_yield_sent(c, events, max);
		n += shm_conn_yield_messages(c, events + n, max - n);
	}
	if (n < max && (c->stage != SHM_OPEN || c->blocked))
		n += shm_conn_yield_rest(c, events + n, max - n);
	return n;
}

static unsigned shm_poll(struct queue *head, uint64_t now_ns, struct event *events, unsigned max)
{
	struct shm_queue *q = (struct shm_queue *)head;
	unsigned n = 0;

	if (q->armed || ++q->polls >= SHM_LOOK_POLLS || now_ns - q->looked_ns >= SHM_LOOK_NS) {
		shm_look(q, now_ns);
		if (q->armed)
			shm_disarm(q);
	}
	for (unsigned i = 0; i < q->conn_count && n < max; i++) {
		unsigned room = max - n;

		if (q->turn >= q->conn_count)
			q->turn = 0;
		n += shm_conn_poll(q->conns[q->turn++], events + n, room < SHM_BATCH ? room : SHM_BATCH);
	}
	return n;
}

static void shm_release(struct queue *head, void *slot)
{
	struct shm_conn *c = slot;

	(void)head;
	assert(c->head.queue == head && c->slots_held > 0);
	c->slots_held--;
}

/* ---- sending ---- */

/*
 * Is the payload where the peer will look for it? A worker's at the chunk's place in the push region or in a slot; the
 * box's anywhere in the result region. `place` tells the peer.
 */
static bool shm_conn_placed(
	const struct shm_conn *c, const struct wire_header *header, const void *payload, uint64_t *place)
{
	uint64_t at = (uint64_t)((uintptr_t)payload - (uintptr_t)c->out), slot;

	*place = 0;
	if (!shm_ring_chunk_ok(header, c->spans, c->chunk_count, c->shorter))
		return false;
	if (header->length == 0)
		return true;
	/* A payload below the region makes `at` huge. */
	if (at > c->out_bytes || header->length > c->out_bytes - at)
		return false;
	if (c->box)
		*place = at;
	if (c->box || at == c->spans[header->chunk].offset)
		return true;
	if (at < c->slots.offset || c->slots.count == 0)
		return false;
	slot = (at - c->slots.offset) / c->slots.bytes;
	*place = slot + 1;
	return slot < c->slots.count && c->slots.offset + slot * c->slots.bytes == at;
}

static void shm_queue_mark(struct shm_queue *q, struct shm_conn *c)
{
	if (c->dirty)
		return;
	c->dirty = true;
	q->dirty[q->dirty_count++] = c;
}

static int shm_send(
	struct queue *head, struct conn *conn, const struct wire_header *header, const void *payload, void *cookie)
{
	struct shm_conn *c = (struct shm_conn *)conn;
	uint64_t place;
	int rc;

	if (c->stage != SHM_OPEN)
		return -EPIPE;
	if (!shm_conn_placed(c, header, payload, &place))
		return -EINVAL;
	rc = shm_conn_room(c);
	if (rc > 0)
		rc = shm_ring_put(&c->ring, header, place);
	else if (rc == 0)
		rc = -EAGAIN;
	if (rc == -EAGAIN)
		c->blocked = true;
	if (rc == -EPROTO) {
		shm_conn_fail(c, rc);
		return -EPIPE;
	}
	if (rc < 0)
		return rc;
	if (cookie)
		c->cookies[c->cookie_tail++ & (c->capacity - 1)] = cookie;
	shm_queue_mark((struct shm_queue *)head, c);
	return 0;
}

static void shm_flush(struct queue *head)
{
	struct shm_queue *q = (struct shm_queue *)head;

	for (unsigned i = 0; i < q->dirty_count; i++) {
		struct shm_conn *c = q->dirty[i];

		c->dirty = false;
		if (c->stage != SHM_OPEN)
			continue;
		c->cookie_published = c->cookie_tail;
		if (shm_ring_publish(&c->ring))
			shm_bell_ring(c);
	}
	q->dirty_count = 0;
}

/* ---- sleeping ---- */

static uint32_t shm_conn_wants(const struct shm_conn *c)
{
	return SHM_ARMED_DATA | (c->blocked ? SHM_ARMED_ROOM : 0u);
}

/* Has the connection something to yield that no bell will tell? */
static bool shm_conn_pending(struct shm_conn *c)
{
	if (c->stage != SHM_OPEN)
		return c->stage != SHM_CLOSED;
	return c->cookie_head != c->cookie_published || (c->blocked && shm_conn_room(c) != 0);
}

static int shm_arm(struct queue *head)
{
	struct shm_queue *q = (struct shm_queue *)head;
	bool quiet = true;

	for (unsigned i = 0; i < q->conn_count; i++)
		if (shm_conn_pending(q->conns[i]))
			return -EAGAIN;
	/* First all are armed, then all are looked at: see shm_ring.h for why this order loses no wake-up. */
	for (unsigned i = 0; i < q->conn_count; i++)
		shm_ring_arm(&q->conns[i]->ring, shm_conn_wants(q->conns[i]));
	q->armed = true;
	for (unsigned i = 0; i < q->conn_count && quiet; i++)
		quiet = q->conns[i]->stage == SHM_CLOSED ||
			shm_ring_quiet(&q->conns[i]->ring, shm_conn_wants(q->conns[i]));
	if (quiet)
		return q->epoll;
	shm_disarm(q);
	return -EAGAIN;
}

const struct queue_ops shm_queue_ops = {
	.adopt = shm_adopt,
	.poll = shm_poll,
	.send = shm_send,
	.flush = shm_flush,
	.release = shm_release,
	.arm = shm_arm,
	.drop = shm_drop,
};
