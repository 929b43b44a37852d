/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of the tcp transport over loopback: contents of every size both ways at once, any cut of the byte stream,
 * and sinks. Broken peers are test_tcp_peers.c, bounds and sleep test_tcp_queue.c, handshakes test_tcp_setup.c.
 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/tcp_rig.h"
#include "transport/tcp_internal.h"

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
		int rc = s->q->ops->send(
			s->q, s->c, &h, payloads + s->sent % 4 * bytes, (void *)(uintptr_t)(s->sent + 1));

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

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		exchange(sizes[i], 600, 0);
		exchange(sizes[i], 600, 1);
	}
}

static void test_exchange_large(void **state)
{
	exchange(2 << 20, 24, 0);
	exchange(2 << 20, 24, 1);
}

static void test_exchange_many_small(void **state)
{
	exchange(4, 50000, 0);
	exchange(256, 20000, 1);
}

/*
 * Messages of all types and sizes in one byte stream, cut at random: the same messages come out whatever the cuts,
 * at the box and (with and without sinks) at the worker.
 */
static void mixed_stream(int worker_end, int sinks, uint64_t seed)
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

	tcp_rig_open(&rig, NULL, COUNT, PAYLOAD_MAX);
	for (unsigned i = 0; i < COUNT; i++) {
		static const uint32_t most[] = {8, 64, 700, PAYLOAD_MAX};
		uint32_t length = 1 + tcp_rig_random(&seed) % most[tcp_rig_random(&seed) % 4];
		enum wire_type type = tcp_rig_random(&seed) % 4 ? (worker_end ? WIRE_RESULT : WIRE_PUSH)
								: (worker_end ? WIRE_CREDIT : WIRE_PULL);

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
		size_t step = 1 + tcp_rig_random(&seed) % (tcp_rig_random(&seed) % 3 ? 200 : 20000);
		unsigned max = 1 + tcp_rig_random(&seed) % TCP_RIG_EVENTS;
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
	for (uint64_t seed = 1; seed <= 12; seed++) {
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

static void test_sink_of_other_length(void **state)
{
	struct sink_rig s;

	sink_open(&s, 0);
	s.rig.sinks[1].bytes = SINK_BYTES - 1;
	sink_rest(&s, 0);
	tcp_rig_expect_closed(&s.rig, s.rig.worker_queue, s.c, -EPROTO);
	sink_close(&s);
}

static void test_sink_of_no_chunk(void **state)
{
	struct wire_header h = tcp_rig_header(WIRE_RESULT, 2, 100, 4);
	struct sink_rig s;

	sink_open(&s, 0);
	wire_encode(&h, s.message);
	tcp_rig_write(s.fd, s.message, WIRE_HEADER_BYTES);
	tcp_rig_expect_closed(&s.rig, s.rig.worker_queue, s.c, -EPROTO);
	sink_close(&s);
}

TEST_PROGRAM(test_tcp)
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
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
