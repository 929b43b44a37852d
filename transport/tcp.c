/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp transport's hot half: what a queue's owner calls. Sockets are non-blocking and watched by one
 * edge-triggered epoll per queue; a connection that has had bytes stays in `ready` until a read comes
 * back short, so that a busy queue makes few system calls: the read that fetches a payload fetches the
 * next header too, and at the box more messages, into a buffer that stays in L2 (tcp_rx.c).
 * Sends are gathered per connection by flush(). Making connections is tcp_setup.c.
 */
#include "transport/tcp_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
	/*
	 * epoll_wait() once in so many polls while connections are ready anyway: sooner when others may
	 * be waiting, because a round needs all its workers.
	 */
	TCP_POLLS_ALL_READY = 32,
	TCP_POLLS_SOME_READY = 2,
};

/* --- lists ------------------------------------------------------------------------------------- */

static void tcp_conn_set_ready(struct tcp_queue *q, struct tcp_conn *c)
{
	if (!list_alone(&c->ready))
		return;
	list_append(&q->ready, &c->ready);
	q->ready_count++;
}

static void tcp_conn_unset_ready(struct tcp_queue *q, struct tcp_conn *c)
{
	if (list_alone(&c->ready))
		return;
	list_remove(&c->ready);
	q->ready_count--;
}

static void tcp_conn_set_report(struct tcp_queue *q, struct tcp_conn *c)
{
	if (list_alone(&c->report))
		list_append(&q->report, &c->report);
}

static void tcp_conn_set_dirty(struct tcp_queue *q, struct tcp_conn *c)
{
	if (list_alone(&c->dirty))
		list_append(&q->dirty, &c->dirty);
}

static void tcp_conn_set_blocked(struct tcp_queue *q, struct tcp_conn *c, bool blocked)
{
	if (c->tx.blocked == blocked)
		return;
	c->tx.blocked = blocked;
	q->blocked_count += blocked ? 1u : -1u;
}

/* Nothing more is read or sent; the owner is told once and then drops the connection. */
static void tcp_conn_end(struct tcp_queue *q, struct tcp_conn *c, int error)
{
	c->state = TCP_CLOSED;
	c->error = error;
	c->close_owed = true;
	tcp_conn_unset_ready(q, c);
	list_remove(&c->dirty);
	tcp_conn_set_blocked(q, c, false);
	tcp_conn_set_report(q, c);
}

/* --- receiving --------------------------------------------------------------------------------- */

/* What EVENT_CLOSED says when reading ended with `rc`. */
static int tcp_conn_close_reason(const struct tcp_conn *c, int rc)
{
	if (rc != -ESHUTDOWN)
		return rc;
	if (c->tx.broken)
		return c->error;
	/* The end of the stream in the middle of a message is no orderly end. */
	return c->rx.known || c->rx.end != c->rx.start ? -ECONNRESET : 0;
}

/*
 * One turn of a ready connection: at most one read and TCP_BATCH messages. The buffer is not touched while messages of
 * this call lie in it.
 */
static unsigned tcp_conn_receive(struct tcp_queue *q, struct tcp_conn *c, struct event *events, unsigned max)
{
	unsigned limit = max < TCP_BATCH ? max : TCP_BATCH;
	bool more = true;
	int error = 0;
	unsigned n;

	if (c->rx.known && c->rx.direct)
		tcp_rx_aim_again(&c->rx, c->spec);
	n = tcp_rx_parse(c, events, limit, &error);
	if (n == 0 && error == 0) {
		int rc = tcp_rx_fill(c);

		more = rc > 0;
		if (rc < 0 && rc != -EAGAIN) {
			tcp_conn_end(q, c, tcp_conn_close_reason(c, rc));
			return 0;
		}
		n = tcp_rx_parse(c, events, limit, &error);
	}
	/* It stays when its buffer may hold more messages, or its socket more bytes; behind the others. */
	tcp_conn_unset_ready(q, c);
	if (error < 0)
		tcp_conn_end(q, c, error);
	else if (more || n == limit)
		tcp_conn_set_ready(q, c);
	return n;
}

/* --- sending ----------------------------------------------------------------------------------- */

static struct tcp_slot *tcp_tx_slot(const struct tcp_tx *tx, uint32_t index)
{
	return &tx->slots[index % TCP_SEND_SLOTS];
}

static int tcp_send(
	struct queue *head, struct conn *conn, const struct wire_header *header, const void *payload, void *cookie)
{
	struct tcp_queue *q = (struct tcp_queue *)head;
	struct tcp_conn *c = (struct tcp_conn *)conn;
	struct tcp_tx *tx = &c->tx;
	uint64_t bytes = WIRE_HEADER_BYTES + (uint64_t)header->length;
	struct tcp_slot *slot;

	if (c->state != TCP_OPEN || tx->broken)
		return -EPIPE;
	/* A message larger than the bound goes when nothing else waits. */
	if (tx->tail - tx->head == TCP_SEND_SLOTS || (tx->unsent && tx->unsent + bytes > tx->unsent_max)) {
		tx->wanted = true;
		return -EAGAIN;
	}
	slot = tcp_tx_slot(tx, tx->tail++);
	wire_encode(header, slot->header);
	slot->payload = payload;
	slot->cookie = cookie;
	slot->length = header->length;
	tx->unsent += bytes;
	if (!tx->blocked)
		tcp_conn_set_dirty(q, c);
	return 0;
}

/* Lists the bytes of up to TCP_GATHER messages. Returns the number of vectors. */
static unsigned tcp_tx_gather(const struct tcp_tx *tx, struct iovec *iov, size_t *bytes)
{
	uint32_t skip = tx->partial;
	unsigned n = 0;

	*bytes = 0;
	for (uint32_t i = tx->next; i != tx->tail && i - tx->next < TCP_GATHER; i++) {
		struct tcp_slot *slot = tcp_tx_slot(tx, i);

		if (skip < WIRE_HEADER_BYTES) {
			iov[n].iov_base = slot->header + skip;
			iov[n].iov_len = WIRE_HEADER_BYTES - skip;
			*bytes += iov[n++].iov_len;
			skip = WIRE_HEADER_BYTES;
		}
		if (slot->length) {
			/* iovec is not const because it serves reading too; sendmsg() only reads. */
			iov[n].iov_base = (void *)((uintptr_t)slot->payload + (skip - WIRE_HEADER_BYTES));
			iov[n].iov_len = slot->length - (skip - WIRE_HEADER_BYTES);
			*bytes += iov[n++].iov_len;
		}
		skip = 0;
	}
	return n;
}

/* The kernel took `bytes`. */
static void tcp_tx_taken(struct tcp_tx *tx, size_t bytes)
{
	tx->unsent -= bytes;
	bytes += tx->partial;
	while (tx->next != tx->tail) {
		size_t whole = WIRE_HEADER_BYTES + (size_t)tcp_tx_slot(tx, tx->next)->length;

		if (bytes < whole)
			break;
		bytes -= whole;
		tx->next++;
	}
	tx->partial = (uint32_t)bytes;
}

/* Forgets completed messages at the head that nobody waits for. Is there anything to report? */
static bool tcp_tx_owes(struct tcp_tx *tx)
{
	while (tx->head != tx->next && !tcp_tx_slot(tx, tx->head)->cookie)
		tx->head++;
	return tx->head != tx->next;
}

/* Half the bound and half the ring are free again: a sender that is told sooner comes back for one message each time.
 */
static bool tcp_tx_writable(const struct tcp_tx *tx)
{
	return tx->wanted && tx->unsent <= tx->unsent_max / 2 && tx->tail - tx->head <= TCP_SEND_SLOTS / 2;
}

/* Nothing goes out any more. What the peer sent before is still read; that reading ends the connection. */
static void tcp_conn_break(struct tcp_queue *q, struct tcp_conn *c, int error)
{
	c->tx.broken = true;
	c->error = error;
	c->hung_up = true;
	tcp_conn_set_blocked(q, c, false);
	(void)shutdown(c->fd, SHUT_RDWR);
	tcp_conn_set_ready(q, c);
}

static void tcp_conn_flush(struct tcp_queue *q, struct tcp_conn *c)
{
	struct iovec iov[2 * TCP_GATHER];
	struct tcp_tx *tx = &c->tx;

	while (tx->next != tx->tail) {
		struct msghdr message = {.msg_iov = iov};
		size_t bytes;
		ssize_t sent;

		message.msg_iovlen = tcp_tx_gather(tx, iov, &bytes);
		sent = sendmsg(c->fd, &message, MSG_NOSIGNAL);
		if (sent < 0) {
			if (errno == EINTR)
				continue;
			if (errno == EAGAIN)
				tcp_conn_set_blocked(q, c, true);
			else
				tcp_conn_break(q, c, -errno);
			break;
		}
		tcp_tx_taken(tx, (size_t)sent);
		if ((size_t)sent < bytes) { /* Full: the kernel has noted that it owes an EPOLLOUT. */
			tcp_conn_set_blocked(q, c, true);
			break;
		}
	}
	if (tcp_tx_owes(tx) || tcp_tx_writable(tx))
		tcp_conn_set_report(q, c);
}

static void tcp_flush(struct queue *head)
{
	struct tcp_queue *q = (struct tcp_queue *)head;

	while (!list_alone(&q->dirty)) {
		struct tcp_conn *c = LIST_OF(q->dirty.next, struct tcp_conn, dirty);

		list_remove(&c->dirty);
		tcp_conn_flush(q, c);
	}
}

/* --- polling ----------------------------------------------------------------------------------- */

static void tcp_event_fill(struct event *event, enum event_type type, struct tcp_conn *c)
{
	event->type = type;
	event->error = 0;
	event->conn = &c->conn;
	event->payload = NULL;
	event->slot = NULL;
	event->cookie = NULL;
}

/* What one connection owes its owner beside messages. Leaves the list when all is told. */
static unsigned tcp_conn_report(struct tcp_conn *c, struct event *events, unsigned max)
{
	struct tcp_tx *tx = &c->tx;
	unsigned n = 0;

	while (tcp_tx_owes(tx)) {
		if (n == max)
			return n;
		tcp_event_fill(&events[n], EVENT_SENT, c);
		events[n++].cookie = tcp_tx_slot(tx, tx->head++)->cookie;
	}
	if (c->state == TCP_OPEN && !tx->broken && tcp_tx_writable(tx)) {
		if (n == max)
			return n;
		tx->wanted = false;
		tcp_event_fill(&events[n++], EVENT_WRITABLE, c);
	}
	if (c->close_owed) {
		if (n == max)
			return n;
		c->close_owed = false;
		tcp_event_fill(&events[n], EVENT_CLOSED, c);
		events[n].why = NULL;
		events[n].broken = false; /* what breaks over tcp takes the session along */
		events[n++].error = c->error;
	}
	list_remove(&c->report);
	return n;
}

/* Asks the kernel which sockets have something, without waiting. */
static void tcp_queue_ask(struct tcp_queue *q)
{
	int n = epoll_wait(q->epoll_fd, q->events, TCP_EVENTS, 0);

	q->polls = 0;
	for (int i = 0; i < n; i++) {
		struct tcp_conn *c = q->events[i].data.ptr;
		uint32_t what = q->events[i].events;

		if (c->state != TCP_OPEN)
			continue;
		if (what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
			c->hung_up = true;
		if (what & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
			tcp_conn_set_ready(q, c);
		if ((what & (EPOLLOUT | EPOLLHUP | EPOLLERR)) && c->tx.blocked) {
			tcp_conn_set_blocked(q, c, false);
			tcp_conn_flush(q, c);
		}
	}
}

static bool tcp_queue_must_ask(const struct tcp_queue *q)
{
	if (q->conns == 0) /* nothing can come: a core's second way up, mostly */
		return false;
	if (q->ready_count == 0)
		return true;
	if (q->ready_count == q->conns && q->blocked_count == 0)
		return q->polls >= TCP_POLLS_ALL_READY;
	return q->polls >= TCP_POLLS_SOME_READY;
}

static unsigned tcp_poll(struct queue *head, uint64_t now_ns, struct event *events, unsigned max)
{
	struct tcp_queue *q = (struct tcp_queue *)head;
	unsigned turns;
	unsigned n = 0;

	(void)now_ns;
	q->polls++;
	if (tcp_queue_must_ask(q))
		tcp_queue_ask(q);
	while (n < max && !list_alone(&q->report))
		n += tcp_conn_report(LIST_OF(q->report.next, struct tcp_conn, report), events + n, max - n);
	/* Each ready connection has one turn; one that stays ready goes behind the others. */
	turns = q->ready_count;
	while (turns-- > 0 && n < max && !list_alone(&q->ready))
		n += tcp_conn_receive(q, LIST_OF(q->ready.next, struct tcp_conn, ready), events + n, max - n);
	return n;
}

static int tcp_arm(struct queue *head)
{
	struct tcp_queue *q = (struct tcp_queue *)head;

	if (!list_alone(&q->ready) || !list_alone(&q->report))
		return -EAGAIN;
	return q->epoll_fd;
}

static void tcp_release(struct queue *head, void *slot)
{
	(void)head;
	(void)slot;
	assert(!"tcp lends no slots");
}

/* --- life -------------------------------------------------------------------------------------- */

int tcp_conn_prepare(struct tcp_conn *c, const struct conn_spec *spec, unsigned send_bytes_max)
{
	struct tcp_rx *rx = &c->rx;
	uint32_t messages = 1;
	void *buf;

	if (spec->payload_max == 0 || spec->payload_max > WIRE_PAYLOAD_MAX)
		return -EINVAL;
	rx->payload_max = spec->payload_max;
	if (!spec->sinks && messages < TCP_READ_BYTES / spec->payload_max)
		messages = TCP_READ_BYTES / spec->payload_max;
	rx->room = messages * (spec->payload_max + WIRE_HEADER_BYTES) + WIRE_HEADER_BYTES;
	if (rx->room < TCP_READ_AHEAD_SINK + WIRE_HEADER_BYTES)
		rx->room = TCP_READ_AHEAD_SINK + WIRE_HEADER_BYTES;
	if (posix_memalign(&buf, 4096, rx->room) != 0)
		return -ENOMEM;
	c->tx.slots = malloc(TCP_SEND_SLOTS * sizeof(*c->tx.slots));
	if (!c->tx.slots) {
		free(buf);
		return -ENOMEM;
	}
	rx->buf = buf;
	c->tx.unsent_max = send_bytes_max ? send_bytes_max : TCP_SEND_BYTES;
	return 0;
}

void tcp_conn_free(struct tcp_conn *c)
{
	if (c->fd >= 0) {
		/* A forked child may hold the socket too: without this the peer would see no end. */
		(void)shutdown(c->fd, SHUT_RDWR);
		(void)close(c->fd);
	}
	free(c->rx.buf);
	free(c->tx.slots);
	explicit_bzero(&c->handshake, sizeof(c->handshake));
	free(c);
}

static int tcp_adopt(struct queue *head, struct conn *conn, const struct conn_spec *spec)
{
	struct tcp_queue *q = (struct tcp_queue *)head;
	struct tcp_conn *c = (struct tcp_conn *)conn;
	/* Edges cost nothing while nobody waits for them, so EPOLLOUT is never switched on and off. */
	struct epoll_event interest = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
	int rc;

	assert(c->state == TCP_ADMITTED);
	if (q->conns == q->conns_max)
		return -ENOSPC;
	if (!c->rx.buf) { /* The worker's end: admit() has done it at the box's. */
		rc = tcp_conn_prepare(c, spec, q->send_bytes_max);
		if (rc < 0)
			return rc;
	}
	if (epoll_ctl(q->epoll_fd, EPOLL_CTL_ADD, c->fd, &interest) < 0)
		return -errno;
	c->spec = spec;
	c->state = TCP_OPEN;
	conn->queue = head;
	q->conns++;
	return 0;
}

static void tcp_drop(struct queue *head, struct conn *conn)
{
	struct tcp_queue *q = (struct tcp_queue *)head;
	struct tcp_conn *c = (struct tcp_conn *)conn;

	tcp_conn_unset_ready(q, c);
	tcp_conn_set_blocked(q, c, false);
	list_remove(&c->dirty);
	list_remove(&c->report);
	/* Not left to close(): the registration would outlive it in a forked child. */
	(void)epoll_ctl(q->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
	q->conns--;
	tcp_conn_free(c);
}

const struct queue_ops tcp_queue_ops = {
	.adopt = tcp_adopt,
	.poll = tcp_poll,
	.send = tcp_send,
	.flush = tcp_flush,
	.release = tcp_release,
	.arm = tcp_arm,
	.drop = tcp_drop,
};
