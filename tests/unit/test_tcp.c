/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp transport's hot half over loopback: contents of every size both ways at once, sinks, broken and hostile
 * peers, bounds of sending, sleeping, dropping. Handshakes are test_tcp_setup.c.
 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "phub/base/clock.h"
#include "tests/unit/tcp_rig.h"
#include "transport/tcp_internal.h"

static uint8_t *pattern_new(size_t bytes, uint64_t salt)
{
	uint8_t *p = malloc(bytes ? bytes : 1);

	assert_non_null(p);
	tcp_rig_fill(p, bytes, salt);
	return p;
}

/* --- contents ---------------------------------------------------------------------------------- */

struct side {
	struct queue *q;
	struct conn *c;
	enum wire_type type;
	uint64_t sent, received, completed;
};

/* One step of a side that sends `count` messages of `bytes` and takes as many. */
static void side_step(struct tcp_rig *rig, struct side *s, const uint8_t *payloads, uint32_t bytes, uint64_t count)
{
	unsigned n;

	while (s->sent < count) {
		struct wire_header h = tcp_rig_header(s->type, (uint32_t)(s->sent % 4), bytes, s->sent);
		int rc = s->q->ops->send(s->q, s->c, &h, payloads + s->sent % 4 * bytes, (void *)(uintptr_t)(s->sent + 1));

		if (rc == -EAGAIN)
			break;
		assert_int_equal(rc, 0);
		s->sent++;
	}
	s->q->ops->flush(s->q);
	n = s->q->ops->poll(s->q, 0, rig->events, TCP_RIG_EVENTS);
	for (unsigned i = 0; i < n; i++) {
		const struct event *event = &rig->events[i];

		assert_ptr_equal(event->conn, s->c);
		switch (event->type) {
		case EVENT_MESSAGE:
			assert_int_equal(event->header.round, s->received);
			assert_int_equal(event->header.length, bytes);
			assert_null(event->slot);
			assert_true(tcp_rig_holds(event->payload, bytes, s->received % 4));
			if (s->type == WIRE_RESULT)
				assert_int_equal((uintptr_t)event->payload % 64, 0);
			s->received++;
			break;
		case EVENT_SENT:
			assert_int_equal((uintptr_t)event->cookie, ++s->completed);
			break;
		case EVENT_WRITABLE:
			break;
		case EVENT_CLOSED:
			fail_msg("closed: %s", strerror(-event->error));
		}
	}
}

static void exchange(uint32_t bytes, uint64_t count, int sinks)
{
	struct tcp_rig rig;
	struct side box = {.type = WIRE_RESULT};
	struct side worker = {.type = WIRE_PUSH};
	uint8_t *payloads = malloc(4 * (size_t)bytes);
	uint8_t *results = malloc(4 * (size_t)bytes);

	for (uint64_t i = 0; i < 4; i++)
		tcp_rig_fill(payloads + i * bytes, bytes, i);
	tcp_rig_open(&rig, NULL, 4, bytes);
	for (int i = 0; sinks && i < 4; i++) {
		rig.sinks[i].addr = results + (size_t)i * bytes;
		rig.sinks[i].bytes = bytes;
		rig.worker_spec.sinks = rig.sinks;
	}
	tcp_rig_connect(&rig, &box.c, &worker.c);
	box.q = rig.box_queue;
	worker.q = rig.worker_queue;
	while (box.received < count || worker.received < count || box.completed < count || worker.completed < count) {
		side_step(&rig, &box, payloads, bytes, count);
		side_step(&rig, &worker, payloads, bytes, count);
	}
	box.q->ops->drop(box.q, box.c);
	worker.q->ops->drop(worker.q, worker.c);
	tcp_rig_close(&rig);
	free(payloads);
	free(results);
}

static void test_exchange_sizes(void **state)
{
	static const uint32_t sizes[] = {1, 2, 63, 64, 65, 1000, 4095, 4096, 4097, 16384, 20000, 32768};

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		exchange(sizes[i], 600, 0);
		exchange(sizes[i], 600, 1);
	}
}

static void test_exchange_large(void **state)
{
	(void)state;
	exchange(2 << 20, 24, 0);
	exchange(2 << 20, 24, 1);
}

static void test_exchange_many_small(void **state)
{
	(void)state;
	exchange(4, 50000, 0);
	exchange(256, 20000, 1);
}

/*
 * Messages of all types and sizes in one byte stream, cut at random: the same messages come out whatever the cuts,
 * at the box and (with and without sinks) at the worker.
 */
static void mixed_stream(int worker_end, int sinks, unsigned seed)
{
	enum { COUNT = 300, PAYLOAD_MAX = 9000 };
	uint8_t *stream = malloc(COUNT * (PAYLOAD_MAX + WIRE_HEADER_BYTES));
	uint8_t *result = malloc(PAYLOAD_MAX);
	struct wire_header headers[COUNT];
	struct tcp_rig rig;
	struct queue *q;
	struct conn *c;
	size_t bytes = 0;
	size_t written = 0;
	unsigned got = 0;
	int fd;

	srand(seed);
	tcp_rig_open(&rig, NULL, COUNT, PAYLOAD_MAX);
	for (unsigned i = 0; i < COUNT; i++) {
		static const uint32_t most[] = {8, 64, 700, PAYLOAD_MAX};
		uint32_t length = 1 + (uint32_t)rand() % most[rand() % 4];
		enum wire_type type = rand() % 4 ? (worker_end ? WIRE_RESULT : WIRE_PUSH) : (worker_end ? WIRE_CREDIT : WIRE_PULL);

		if (type == WIRE_CREDIT || type == WIRE_PULL)
			length = 0;
		headers[i] = tcp_rig_header(type, i, length, i);
		rig.sinks[i].addr = result;
		rig.sinks[i].bytes = length;
		wire_encode(&headers[i], stream + bytes);
		tcp_rig_fill(stream + bytes + WIRE_HEADER_BYTES, length, i);
		bytes += WIRE_HEADER_BYTES + length;
	}
	if (sinks)
		rig.worker_spec.sinks = rig.sinks;
	fd = worker_end ? tcp_rig_raw_box(&rig, &c) : tcp_rig_raw_worker(&rig, &c);
	q = worker_end ? rig.worker_queue : rig.box_queue;
	while (got < COUNT) {
		size_t step = 1 + (size_t)rand() % (rand() % 3 ? 200 : 20000);
		unsigned max = 1 + (unsigned)rand() % TCP_RIG_EVENTS;
		unsigned n;

		if (step > bytes - written)
			step = bytes - written;
		tcp_rig_write(fd, stream + written, step);
		written += step;
		/* One result buffer for all: each is looked at before the next poll, so only one may come at a time. */
		n = q->ops->poll(q, 0, rig.events, sinks ? 1 : max);
		for (unsigned i = 0; i < n; i++, got++) {
			const struct event *event = &rig.events[i];

			assert_int_equal(event->type, EVENT_MESSAGE);
			assert_int_equal(event->header.round, got);
			assert_int_equal(event->header.type, headers[got].type);
			assert_int_equal(event->header.length, headers[got].length);
			if (sinks && event->header.type == WIRE_RESULT)
				assert_ptr_equal(event->payload, result);
			assert_true(tcp_rig_holds(event->payload, headers[got].length, got));
		}
	}
	assert_int_equal(written, bytes);
	q->ops->drop(q, c);
	close(fd);
	tcp_rig_close(&rig);
	free(stream);
	free(result);
}

static void test_mixed_stream(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= 12; seed++) {
		mixed_stream(0, 0, seed);
		mixed_stream(1, 0, seed);
		mixed_stream(1, 1, seed);
	}
}

static void test_byte_by_byte(void **state)
{
	struct wire_header h = tcp_rig_header(WIRE_PUSH, 0, 37, 3);
	uint8_t bytes[WIRE_HEADER_BYTES + 37];
	struct tcp_rig rig;
	struct event event;
	struct conn *c;
	int fd;

	(void)state;
	tcp_rig_open(&rig, NULL, 1, 64);
	fd = tcp_rig_raw_worker(&rig, &c);
	wire_encode(&h, bytes);
	tcp_rig_fill(bytes + WIRE_HEADER_BYTES, 37, 9);
	for (int again = 0; again < 2; again++) {
		for (size_t i = 0; i < sizeof(bytes); i++) {
			assert_int_equal(rig.box_queue->ops->poll(rig.box_queue, 0, rig.events, TCP_RIG_EVENTS), 0);
			tcp_rig_write(fd, bytes + i, 1);
		}
		event = tcp_rig_expect(&rig, rig.box_queue, EVENT_MESSAGE);
		assert_true(tcp_rig_holds(event.payload, 37, 9));
	}
	rig.box_queue->ops->drop(rig.box_queue, c);
	close(fd);
	tcp_rig_close(&rig);
}

/* --- sinks ------------------------------------------------------------------------------------- */

#define SINK_BYTES 50000u

/* A worker's end with one sink, and a raw box that sends one result: first `cut` bytes of it. */
struct sink_rig {
	struct tcp_rig rig;
	struct conn *c;
	int fd;
	uint8_t *message; /* header and payload */
	uint8_t *target;
};

static void sink_open(struct sink_rig *s, size_t cut)
{
	struct wire_header h = tcp_rig_header(WIRE_RESULT, 1, SINK_BYTES, 4);

	tcp_rig_open(&s->rig, NULL, 2, SINK_BYTES);
	s->target = calloc(1, SINK_BYTES);
	s->message = malloc(WIRE_HEADER_BYTES + SINK_BYTES);
	s->rig.sinks[1].addr = s->target;
	s->rig.sinks[1].bytes = SINK_BYTES;
	s->rig.worker_spec.sinks = s->rig.sinks;
	s->fd = tcp_rig_raw_box(&s->rig, &s->c);
	wire_encode(&h, s->message);
	tcp_rig_fill(s->message + WIRE_HEADER_BYTES, SINK_BYTES, 6);
	tcp_rig_write(s->fd, s->message, cut);
}

static void sink_rest(struct sink_rig *s, size_t cut)
{
	tcp_rig_write(s->fd, s->message + cut, WIRE_HEADER_BYTES + SINK_BYTES - cut);
}

static void sink_close(struct sink_rig *s)
{
	s->rig.worker_queue->ops->drop(s->rig.worker_queue, s->c);
	close(s->fd);
	tcp_rig_close(&s->rig);
	free(s->message);
	free(s->target);
}

/* Cleared in mid-message: not one byte more goes to the old place, and the next message is right. */
static void test_sink_cleared(void **state)
{
	static const size_t cuts[] = {0, 10, 64, 65, 100, 4000, 20000, WIRE_HEADER_BYTES + SINK_BYTES - 1};

	(void)state;
	for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
		struct sink_rig s;
		struct event event;

		sink_open(&s, cuts[i]);
		tcp_rig_expect_none(&s.rig, s.rig.worker_queue);
		if (cuts[i] > WIRE_HEADER_BYTES)
			assert_true(tcp_rig_holds(s.target, cuts[i] - WIRE_HEADER_BYTES, 6));
		s.rig.sinks[1].addr = NULL;
		memset(s.target, 0xcc, SINK_BYTES);
		sink_rest(&s, cuts[i]);
		event = tcp_rig_expect(&s.rig, s.rig.worker_queue, EVENT_MESSAGE);
		assert_null(event.payload);
		assert_int_equal(event.header.length, SINK_BYTES);
		for (size_t k = 0; k < SINK_BYTES; k++)
			assert_int_equal(s.target[k], 0xcc);
		s.rig.sinks[1].addr = s.target;
		sink_rest(&s, 0);
		event = tcp_rig_expect(&s.rig, s.rig.worker_queue, EVENT_MESSAGE);
		assert_ptr_equal(event.payload, s.target);
		assert_true(tcp_rig_holds(s.target, SINK_BYTES, 6));
		sink_close(&s);
	}
}

/* Moved in mid-message, as when a new round uses other memory: the old round's rest goes to neither. */
static void test_sink_moved(void **state)
{
	uint8_t *other = calloc(1, SINK_BYTES);
	struct sink_rig s;
	struct event event;

	(void)state;
	sink_open(&s, 10000);
	tcp_rig_expect_none(&s.rig, s.rig.worker_queue);
	s.rig.sinks[1].addr = other;
	sink_rest(&s, 10000);
	event = tcp_rig_expect(&s.rig, s.rig.worker_queue, EVENT_MESSAGE);
	assert_null(event.payload);
	for (size_t k = 0; k < SINK_BYTES; k++)
		assert_int_equal(other[k], 0);
	sink_close(&s);
	free(other);
}

static void assert_closed(struct tcp_rig *rig, struct queue *q, struct conn *c, int error)
{
	struct event event = tcp_rig_expect(rig, q, EVENT_CLOSED);
	struct wire_header h = tcp_rig_header(WIRE_PULL, 0, 0, 0);

	assert_ptr_equal(event.conn, c);
	assert_int_equal(event.error, error);
	assert_int_equal(q->ops->send(q, c, &h, NULL, NULL), -EPIPE);
	tcp_rig_expect_none(rig, q);
}

static void test_sink_of_other_length(void **state)
{
	struct sink_rig s;

	(void)state;
	sink_open(&s, 0);
	s.rig.sinks[1].bytes = SINK_BYTES - 1;
	sink_rest(&s, 0);
	assert_closed(&s.rig, s.rig.worker_queue, s.c, -EPROTO);
	sink_close(&s);
}

static void test_sink_of_no_chunk(void **state)
{
	struct wire_header h = tcp_rig_header(WIRE_RESULT, 2, 100, 4);
	struct sink_rig s;

	(void)state;
	sink_open(&s, 0);
	wire_encode(&h, s.message);
	tcp_rig_write(s.fd, s.message, WIRE_HEADER_BYTES);
	assert_closed(&s.rig, s.rig.worker_queue, s.c, -EPROTO);
	sink_close(&s);
}

/* --- broken peers ------------------------------------------------------------------------------ */

/* A raw worker sends `bytes`, hangs up if told to, and the box closes that connection alone. */
static void broken(const void *data, size_t bytes, int hang_up, int error, unsigned messages)
{
	struct tcp_rig rig;
	struct conn *bad;
	struct conn *good_box;
	struct conn *good_worker;
	struct wire_header h = tcp_rig_header(WIRE_PULL, 0, 0, 77);
	int fd;

	tcp_rig_open(&rig, NULL, 1, 1024);
	tcp_rig_connect(&rig, &good_box, &good_worker);
	fd = tcp_rig_raw_worker(&rig, &bad);
	tcp_rig_write(fd, data, bytes);
	if (hang_up)
		shutdown(fd, SHUT_WR);
	for (unsigned i = 0; i < messages;) {
		unsigned n = tcp_rig_poll(&rig, rig.box_queue, 1000);

		assert_true(n > 0);
		for (unsigned k = 0; k < n; k++, i++)
			assert_int_equal(rig.events[k].type, EVENT_MESSAGE);
	}
	assert_closed(&rig, rig.box_queue, bad, error);
	rig.box_queue->ops->drop(rig.box_queue, bad);
	assert_int_equal(rig.worker_queue->ops->send(rig.worker_queue, good_worker, &h, NULL, NULL), 0);
	rig.worker_queue->ops->flush(rig.worker_queue);
	assert_int_equal(tcp_rig_expect(&rig, rig.box_queue, EVENT_MESSAGE).header.round, 77);
	rig.box_queue->ops->drop(rig.box_queue, good_box);
	rig.worker_queue->ops->drop(rig.worker_queue, good_worker);
	close(fd);
	tcp_rig_close(&rig);
}

static void test_malformed(void **state)
{
	uint8_t bytes[3 * WIRE_HEADER_BYTES];
	struct wire_header h = tcp_rig_header(WIRE_PUSH, 0, 1025, 0);

	(void)state;
	wire_encode(&h, bytes);
	broken(bytes, WIRE_HEADER_BYTES, 0, -EMSGSIZE, 0); /* more than this connection's payload_max */
	h.length = WIRE_PAYLOAD_MAX + 1;
	wire_encode(&h, bytes);
	broken(bytes, WIRE_HEADER_BYTES, 0, -EMSGSIZE, 0);
	h.length = 1;
	h.rank = WIRE_WORLD_MAX;
	wire_encode(&h, bytes);
	broken(bytes, WIRE_HEADER_BYTES, 0, -ERANGE, 0);
	h.rank = 0;
	wire_encode(&h, bytes);
	bytes[0] = 'p';
	broken(bytes, WIRE_HEADER_BYTES, 0, -EPROTO, 0);
	wire_encode(&h, bytes);
	bytes[4] = 2;
	broken(bytes, WIRE_HEADER_BYTES, 0, -EPROTONOSUPPORT, 0);
	wire_encode(&h, bytes);
	bytes[5] = 9;
	broken(bytes, WIRE_HEADER_BYTES, 0, -EBADMSG, 0);
	/* Messages in front of the nonsense are yielded, also when all came in one read. */
	h = tcp_rig_header(WIRE_PULL, 0, 0, 0);
	wire_encode(&h, bytes);
	wire_encode(&h, bytes + WIRE_HEADER_BYTES);
	memset(bytes + 2 * WIRE_HEADER_BYTES, 'x', WIRE_HEADER_BYTES);
	broken(bytes, sizeof(bytes), 0, -EPROTO, 2);
	broken(bytes, sizeof(bytes), 1, -EPROTO, 2);
}

static void test_ends(void **state)
{
	uint8_t bytes[WIRE_HEADER_BYTES + 1000] = {0};
	struct wire_header h = tcp_rig_header(WIRE_PUSH, 0, 1000, 0);

	(void)state;
	wire_encode(&h, bytes);
	broken(bytes, 0, 1, 0, 0);
	broken(bytes, sizeof(bytes), 1, 0, 1);
	broken(bytes, 1, 1, -ECONNRESET, 0);
	broken(bytes, WIRE_HEADER_BYTES, 1, -ECONNRESET, 0);
	broken(bytes, sizeof(bytes) - 1, 1, -ECONNRESET, 0);
}

static void test_random_bytes(void **state)
{
	uint8_t noise[5000];

	(void)state;
	for (unsigned seed = 1; seed <= 20; seed++) {
		srand(seed);
		for (size_t i = 0; i < sizeof(noise); i++)
			noise[i] = (uint8_t)(rand() >> 7);
		broken(noise, sizeof(noise), 0, -EPROTO, 0);
	}
}

/* A peer that resets: an error, no matter whether reading or sending finds it out. */
static void test_reset(void **state)
{
	struct linger linger = {.l_onoff = 1};
	struct tcp_rig rig;
	struct conn *c;
	struct event event;

	(void)state;
	for (int sends = 0; sends < 2; sends++) {
		struct wire_header h = tcp_rig_header(WIRE_RESULT, 0, 1024, 0);
		static const uint8_t payload[1024];
		int fd;

		tcp_rig_open(&rig, NULL, 1, 1024);
		fd = tcp_rig_raw_worker(&rig, &c);
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
		close(fd);
		if (sends) {
			assert_int_equal(rig.box_queue->ops->send(rig.box_queue, c, &h, payload, (void *)1), 0);
			rig.box_queue->ops->flush(rig.box_queue);
		}
		event = tcp_rig_expect(&rig, rig.box_queue, EVENT_CLOSED);
		assert_true(event.error == -ECONNRESET || event.error == -EPIPE);
		assert_int_equal(rig.box_queue->ops->send(rig.box_queue, c, &h, payload, NULL), -EPIPE);
		rig.box_queue->ops->drop(rig.box_queue, c);
		tcp_rig_close(&rig);
	}
}

/* What a peer sent before it went away is read even when sending to it has failed first. */
static void test_messages_before_reset(void **state)
{
	struct wire_header h = tcp_rig_header(WIRE_PULL, 0, 0, 0);
	struct wire_header reply = tcp_rig_header(WIRE_RESULT, 0, 1024, 0);
	static const uint8_t payload[1024];
	uint8_t bytes[WIRE_HEADER_BYTES];
	struct tcp_rig rig;
	struct conn *c;
	unsigned messages = 0;
	int closed = 0;
	int fd;

	(void)state;
	tcp_rig_open(&rig, NULL, 1, 1024);
	fd = tcp_rig_raw_worker(&rig, &c);
	wire_encode(&h, bytes);
	for (int i = 0; i < 3; i++)
		tcp_rig_write(fd, bytes, sizeof(bytes));
	close(fd);
	for (int i = 0; i < 50; i++) { /* The first is answered by a reset, a later one finds the pipe broken. */
		int rc = rig.box_queue->ops->send(rig.box_queue, c, &reply, payload, NULL);

		assert_true(rc == 0 || rc == -EPIPE);
		rig.box_queue->ops->flush(rig.box_queue);
		poll(NULL, 0, 1);
	}
	while (!closed) {
		unsigned n = tcp_rig_poll(&rig, rig.box_queue, 1000);

		assert_true(n > 0);
		for (unsigned i = 0; i < n; i++) {
			messages += rig.events[i].type == EVENT_MESSAGE;
			closed |= rig.events[i].type == EVENT_CLOSED;
		}
	}
	assert_int_equal(messages, 3);
	rig.box_queue->ops->drop(rig.box_queue, c);
	tcp_rig_close(&rig);
}

/* --- bounds of sending ------------------------------------------------------------------------- */

/* A reader that rests: -EAGAIN at the bound, then WRITABLE, and SENT for every cookie in order. */
static void test_again_and_writable(void **state)
{
	enum { BYTES = 32768 };
	struct transport_config config = {.send_bytes_max = 4 * (BYTES + WIRE_HEADER_BYTES)};
	struct wire_header h = tcp_rig_header(WIRE_RESULT, 0, BYTES, 0);
	uint8_t *payload = pattern_new(BYTES, 1);
	struct tcp_rig rig;
	struct conn *c;
	uint8_t *drain = malloc(BYTES + WIRE_HEADER_BYTES);
	uintptr_t sent = 0;
	uintptr_t completed = 0;
	uintptr_t read = 0;
	int writable = 0;
	int rc;
	int fd;

	(void)state;
	tcp_rig_open(&rig, &config, 1, BYTES);
	fd = tcp_rig_raw_worker(&rig, &c);
	do { /* The kernel's buffers fill, then ours. */
		while ((rc = rig.box_queue->ops->send(rig.box_queue, c, &h, payload, (void *)(sent + 1))) == 0)
			sent++;
		assert_int_equal(rc, -EAGAIN);
		if (tcp_rig_poll(&rig, rig.box_queue, 100) == 0)
			break;
		for (unsigned i = 0; rig.events[i].type == EVENT_SENT && i < TCP_RIG_EVENTS; i++)
			if ((uintptr_t)rig.events[i].cookie == completed + 1)
				completed++;
	} while (sent < 10000);
	assert_true(sent < 10000);
	assert_int_equal(sent - completed, 4);
	assert_int_equal(rig.box_queue->ops->send(rig.box_queue, c, &h, payload, NULL), -EAGAIN);
	while (completed < sent) {
		unsigned n;

		tcp_rig_read(fd, drain, BYTES + WIRE_HEADER_BYTES);
		assert_true(tcp_rig_holds(drain + WIRE_HEADER_BYTES, BYTES, 1));
		read++;
		n = tcp_rig_poll(&rig, rig.box_queue, 0);
		for (unsigned i = 0; i < n; i++) {
			if (rig.events[i].type == EVENT_SENT)
				assert_int_equal((uintptr_t)rig.events[i].cookie, ++completed);
			else
				assert_int_equal(rig.events[i].type, EVENT_WRITABLE);
			writable += rig.events[i].type == EVENT_WRITABLE;
		}
	}
	for (; read < sent; read++)
		tcp_rig_read(fd, drain, BYTES + WIRE_HEADER_BYTES);
	assert_int_equal(writable, 1);
	assert_int_equal(rig.box_queue->ops->send(rig.box_queue, c, &h, payload, NULL), 0);
	rig.box_queue->ops->flush(rig.box_queue);
	tcp_rig_read(fd, drain, BYTES + WIRE_HEADER_BYTES);
	rig.box_queue->ops->drop(rig.box_queue, c);
	close(fd);
	tcp_rig_close(&rig);
	free(drain);
	free(payload);
}

/* The ring's bound, with messages that are small; and a message that alone is larger than the bound of bytes. */
static void test_send_slots(void **state)
{
	struct transport_config config = {.send_bytes_max = 40000};
	struct wire_header h = tcp_rig_header(WIRE_CREDIT, 0, 0, 0);
	struct wire_header large = tcp_rig_header(WIRE_RESULT, 0, 100000, 0);
	uint8_t *payload = pattern_new(100000, 1);
	struct tcp_rig rig;
	struct conn *box;
	struct conn *worker;
	struct queue *q;
	unsigned got = 0;

	(void)state;
	tcp_rig_open(&rig, &config, 1, 100000);
	tcp_rig_connect(&rig, &box, &worker);
	q = rig.box_queue;
	for (int i = 0; i < TCP_SEND_SLOTS; i++)
		assert_int_equal(q->ops->send(q, box, &h, NULL, NULL), 0);
	assert_int_equal(q->ops->send(q, box, &h, NULL, NULL), -EAGAIN);
	(void)tcp_rig_expect(&rig, q, EVENT_WRITABLE);
	assert_int_equal(q->ops->send(q, box, &large, payload, (void *)1), 0);
	assert_int_equal(q->ops->send(q, box, &h, NULL, NULL), -EAGAIN);
	while (got < TCP_SEND_SLOTS + 1) {
		unsigned n = tcp_rig_poll(&rig, rig.worker_queue, 10);

		for (unsigned i = 0; i < n; i++)
			assert_int_equal(rig.events[i].type, EVENT_MESSAGE);
		if (n && rig.events[n - 1].header.length)
			assert_true(tcp_rig_holds(rig.events[n - 1].payload, 100000, 1));
		got += n;
		(void)tcp_rig_poll(&rig, q, 0);
	}
	assert_int_equal(got, TCP_SEND_SLOTS + 1);
	q->ops->drop(q, box);
	rig.worker_queue->ops->drop(rig.worker_queue, worker);
	tcp_rig_close(&rig);
	free(payload);
}

/* --- sleeping, dropping, sharing --------------------------------------------------------------- */

static int readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 20);
}

static void test_arm(void **state)
{
	struct wire_header h = tcp_rig_header(WIRE_PULL, 0, 0, 0);
	struct tcp_rig rig;
	struct conn *box;
	struct conn *worker;
	struct queue *q;
	int fd;

	(void)state;
	tcp_rig_open(&rig, NULL, 1, 1024);
	q = rig.box_queue;
	fd = q->ops->arm(q);
	assert_true(fd >= 0);
	assert_int_equal(readable(fd), 0);
	tcp_rig_connect(&rig, &box, &worker);
	tcp_rig_expect_none(&rig, q);
	assert_int_equal(q->ops->arm(q), fd);
	assert_int_equal(readable(fd), 0);
	/* A message wakes. */
	for (int i = 0; i < 2 * TCP_BATCH; i++)
		assert_int_equal(rig.worker_queue->ops->send(rig.worker_queue, worker, &h, NULL, NULL), 0);
	rig.worker_queue->ops->flush(rig.worker_queue);
	assert_int_equal(readable(fd), 1);
	/* Some of what came is still in the buffer: no sleep. */
	assert_int_equal(q->ops->poll(q, 0, rig.events, 3), 3);
	assert_int_equal(q->ops->arm(q), -EAGAIN);
	for (unsigned got = 3; got < 2 * TCP_BATCH;)
		got += q->ops->poll(q, 0, rig.events, TCP_RIG_EVENTS);
	tcp_rig_expect_none(&rig, q);
	assert_int_equal(q->ops->arm(q), fd);
	assert_int_equal(readable(fd), 0);
	/* A completion that was not told yet: no sleep. */
	h = tcp_rig_header(WIRE_CREDIT, 0, 0, 0);
	assert_int_equal(q->ops->send(q, box, &h, NULL, (void *)1), 0);
	q->ops->flush(q);
	assert_int_equal(q->ops->arm(q), -EAGAIN);
	(void)tcp_rig_expect(&rig, q, EVENT_SENT);
	tcp_rig_expect_none(&rig, q);
	assert_int_equal(q->ops->arm(q), fd);
	/* The end wakes. */
	rig.worker_queue->ops->drop(rig.worker_queue, worker);
	assert_int_equal(readable(fd), 1);
	(void)tcp_rig_expect(&rig, q, EVENT_CLOSED);
	q->ops->drop(q, box);
	tcp_rig_close(&rig);
}

/* Room in the socket wakes a sender that sleeps. */
static void test_arm_wakes_sender(void **state)
{
	enum { BYTES = 1 << 20 };
	struct wire_header h = tcp_rig_header(WIRE_RESULT, 0, BYTES, 0);
	uint8_t *payload = pattern_new(BYTES, 1);
	uint8_t *drain = malloc(BYTES + WIRE_HEADER_BYTES);
	struct tcp_rig rig;
	struct conn *c;
	struct queue *q;
	int sent = 0;
	int fd;
	int armed;

	(void)state;
	tcp_rig_open(&rig, NULL, 1, BYTES);
	fd = tcp_rig_raw_worker(&rig, &c);
	q = rig.box_queue;
	do {
		while (q->ops->send(q, c, &h, payload, NULL) == 0)
			sent++;
	} while (tcp_rig_poll(&rig, q, 100));
	armed = q->ops->arm(q);
	assert_true(armed >= 0);
	assert_int_equal(readable(armed), 0);
	for (; sent > 0; sent--)
		tcp_rig_read(fd, drain, BYTES + WIRE_HEADER_BYTES), (void)q->ops->poll(q, 0, rig.events, TCP_RIG_EVENTS);
	rig.box_queue->ops->drop(rig.box_queue, c);
	close(fd);
	tcp_rig_close(&rig);
	free(payload);
	free(drain);
}

/* Dropped in the middle of a message each way; the peer sees the end, and nothing is left behind. */
static void test_drop_in_mid_message(void **state)
{
	enum { BYTES = 2 << 20 };
	struct wire_header h = tcp_rig_header(WIRE_PUSH, 0, BYTES, 0);
	uint8_t *payload = pattern_new(BYTES, 1);
	struct tcp_rig rig;
	struct conn *box;
	struct conn *worker;

	(void)state;
	for (int which = 0; which < 2; which++) {
		tcp_rig_open(&rig, NULL, 1, BYTES);
		tcp_rig_connect(&rig, &box, &worker);
		for (int i = 0; i < 4; i++)
			(void)rig.worker_queue->ops->send(rig.worker_queue, worker, &h, payload, (void *)1);
		rig.worker_queue->ops->flush(rig.worker_queue);
		(void)rig.box_queue->ops->poll(rig.box_queue, 0, rig.events, 1);
		if (which) {
			rig.worker_queue->ops->drop(rig.worker_queue, worker);
			memset(payload, 0, BYTES); /* The payload is ours again. */
			do {
				assert_true(tcp_rig_poll(&rig, rig.box_queue, 1000) > 0);
			} while (rig.events[0].type == EVENT_MESSAGE);
			assert_int_equal(rig.events[0].type, EVENT_CLOSED);
			rig.box_queue->ops->drop(rig.box_queue, box);
		} else {
			rig.box_queue->ops->drop(rig.box_queue, box);
			do {
				assert_true(tcp_rig_poll(&rig, rig.worker_queue, 1000) > 0);
			} while (rig.events[0].type != EVENT_CLOSED);
			rig.worker_queue->ops->drop(rig.worker_queue, worker);
			assert_int_equal(rig.worker_queue->ops->poll(rig.worker_queue, 0, rig.events, 1), 0);
		}
		tcp_rig_close(&rig);
	}
	free(payload);
}

static void test_queue_full(void **state)
{
	struct transport_config config = {.queue_conns_max = 2};
	struct conn *box[3];
	struct conn *worker[3];
	struct tcp_rig rig;
	struct err e = {0};

	(void)state;
	tcp_rig_open(&rig, &config, 1, 1024);
	for (int i = 0; i < 2; i++)
		tcp_rig_connect(&rig, &box[i], &worker[i]);
	assert_int_equal(rig.worker->ops->connect(rig.worker, rig.address, 7, 2, tcp_rig_key, &worker[2], &e), 0);
	while (rig.worker->ops->established(rig.worker, worker[2], &e) == -EAGAIN) {
		struct hello hello;

		if (rig.box->ops->accept(rig.box, 0, &hello) == 0) {
			box[2] = hello.conn;
			assert_int_equal(rig.box->ops->admit(rig.box, box[2], &rig.box_spec, &e), 0);
		}
	}
	assert_int_equal(rig.box_queue->ops->adopt(rig.box_queue, box[2], &rig.box_spec), -ENOSPC);
	assert_int_equal(rig.worker_queue->ops->adopt(rig.worker_queue, worker[2], &rig.worker_spec), -ENOSPC);
	rig.box_queue->ops->drop(rig.box_queue, box[0]);
	assert_int_equal(rig.box_queue->ops->adopt(rig.box_queue, box[2], &rig.box_spec), 0);
	rig.worker->ops->abandon(rig.worker, worker[2]);
	(void)tcp_rig_expect(&rig, rig.box_queue, EVENT_CLOSED);
	rig.box_queue->ops->drop(rig.box_queue, box[1]);
	rig.box_queue->ops->drop(rig.box_queue, box[2]);
	rig.worker_queue->ops->drop(rig.worker_queue, worker[0]);
	rig.worker_queue->ops->drop(rig.worker_queue, worker[1]);
	tcp_rig_close(&rig);
}

/* Floods of large and of small messages take turns with a modest peer: it waits for a few polls at most. */
static void test_fairness(void **state)
{
	enum { FLOODS = 3, ROUNDS = 200 };
	struct wire_header h = tcp_rig_header(WIRE_PULL, 0, 0, 1);
	uint8_t *flood[FLOODS];
	size_t flood_bytes[FLOODS];
	size_t at[FLOODS] = {0};
	int fd[FLOODS];
	struct conn *c[FLOODS];
	struct conn *box;
	struct conn *worker;
	struct tcp_rig rig;
	unsigned worst = 0;

	(void)state;
	tcp_rig_open(&rig, NULL, 1, 32768);
	tcp_rig_connect(&rig, &box, &worker);
	for (int i = 0; i < FLOODS; i++) {
		struct wire_header f = tcp_rig_header(i ? WIRE_PULL : WIRE_PUSH, 0, i ? 0 : 32768, 0);

		fd[i] = tcp_rig_raw_worker(&rig, &c[i]);
		flood_bytes[i] = i ? WIRE_HEADER_BYTES : WIRE_HEADER_BYTES + 32768;
		flood[i] = calloc(1, flood_bytes[i]);
		wire_encode(&f, flood[i]);
	}
	for (int round = 0; round < ROUNDS; round++) {
		unsigned polls = 0;
		int answered = 0;

		assert_int_equal(rig.worker_queue->ops->send(rig.worker_queue, worker, &h, NULL, NULL), 0);
		rig.worker_queue->ops->flush(rig.worker_queue);
		while (!answered) {
			unsigned n;

			for (int i = 0; i < FLOODS; i++) { /* As much as the kernel takes. */
				ssize_t sent;

				while ((sent = send(fd[i], flood[i] + at[i], flood_bytes[i] - at[i], MSG_DONTWAIT)) > 0)
					at[i] = (at[i] + (size_t)sent) % flood_bytes[i];
			}
			n = rig.box_queue->ops->poll(rig.box_queue, 0, rig.events, TCP_RIG_EVENTS);
			polls++;
			for (unsigned i = 0; i < n; i++)
				answered |= rig.events[i].conn == box;
		}
		if (polls > worst)
			worst = polls;
	}
	assert_in_range(worst, 1, 8);
	for (int i = 0; i < FLOODS; i++) {
		rig.box_queue->ops->drop(rig.box_queue, c[i]);
		close(fd[i]);
		free(flood[i]);
	}
	rig.box_queue->ops->drop(rig.box_queue, box);
	rig.worker_queue->ops->drop(rig.worker_queue, worker);
	tcp_rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_exchange_sizes),
		cmocka_unit_test(test_exchange_large),
		cmocka_unit_test(test_exchange_many_small),
		cmocka_unit_test(test_mixed_stream),
		cmocka_unit_test(test_byte_by_byte),
		cmocka_unit_test(test_sink_cleared),
		cmocka_unit_test(test_sink_moved),
		cmocka_unit_test(test_sink_of_other_length),
		cmocka_unit_test(test_sink_of_no_chunk),
		cmocka_unit_test(test_malformed),
		cmocka_unit_test(test_ends),
		cmocka_unit_test(test_random_bytes),
		cmocka_unit_test(test_reset),
		cmocka_unit_test(test_messages_before_reset),
		cmocka_unit_test(test_again_and_writable),
		cmocka_unit_test(test_send_slots),
		cmocka_unit_test(test_arm),
		cmocka_unit_test(test_arm_wakes_sender),
		cmocka_unit_test(test_drop_in_mid_message),
		cmocka_unit_test(test_queue_full),
		cmocka_unit_test(test_fairness),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
