/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a queue of the tcp transport promises its owner: bounds of sending, waking from sleep, dropping, turns between
 * connections.
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

static uint8_t *pattern_new(size_t bytes, uint64_t salt)
{
	uint8_t *p = malloc(bytes ? bytes : 1);

	assert_non_null(p);
	tcp_rig_fill(p, bytes, salt);
	return p;
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

	tcp_rig_open(&rig, &config, 1, BYTES);
	fd = tcp_rig_raw_worker(&rig, &c);
	do { /* The kernel's buffers fill, then ours. */
		while ((rc = rig.box_queue->ops->send(rig.box_queue, c, &h, payload, (void *)(sent + 1))) == 0)
			sent++;
		assert_int_equal(rc, -EAGAIN);
		if (tcp_rig_poll(&rig, rig.box_queue, 100) == 0)
			break;
		for (unsigned i = 0; i < TCP_RIG_EVENTS && rig.events[i].type == EVENT_SENT; i++)
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

static int readable_in(int fd, int timeout_ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, timeout_ms);
}

static int readable(int fd)
{
	return readable_in(fd, 5000);
}

static int quiet(int fd)
{
	return readable_in(fd, 20) == 0;
}

static void test_arm(void **state)
{
	struct wire_header h = tcp_rig_header(WIRE_PULL, 0, 0, 0);
	struct tcp_rig rig;
	struct conn *box;
	struct conn *worker;
	struct queue *q;
	int fd;

	tcp_rig_open(&rig, NULL, 1, 1024);
	q = rig.box_queue;
	fd = q->ops->arm(q);
	assert_true(fd >= 0);
	assert_true(quiet(fd));
	tcp_rig_connect(&rig, &box, &worker);
	tcp_rig_expect_none(&rig, q);
	assert_int_equal(q->ops->arm(q), fd);
	assert_true(quiet(fd));
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
	assert_true(quiet(fd));
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
	struct tcp_rig rig;
	struct conn *c;
	struct queue *q;
	size_t left = 0;
	unsigned wakes = 0;
	int fd;
	int armed;

	tcp_rig_open(&rig, NULL, 1, BYTES);
	fd = tcp_rig_raw_worker(&rig, &c);
	q = rig.box_queue;
	do {
		while (q->ops->send(q, c, &h, payload, NULL) == 0)
			left += WIRE_HEADER_BYTES + BYTES;
	} while (tcp_rig_poll(&rig, q, 100));
	armed = q->ops->arm(q);
	assert_true(armed >= 0);
	assert_true(quiet(armed));
	while (left) { /* The queue is polled only when it wakes us. */
		struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = armed, .events = POLLIN}};
		static uint8_t drain[BYTES];

		if (q->ops->arm(q) >= 0)
			assert_true(poll(p, 2, 5000) > 0);
		else
			p[1].revents = POLLIN;
		if (p[0].revents)
			left -= (size_t)recv(fd, drain, sizeof(drain), 0);
		if (p[1].revents) {
			(void)q->ops->poll(q, 0, rig.events, TCP_RIG_EVENTS);
			wakes++;
		}
	}
	assert_true(wakes > 0);
	q->ops->drop(q, c);
	close(fd);
	tcp_rig_close(&rig);
	free(payload);
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

	tcp_rig_open(&rig, &config, 1, 1024);
	for (int i = 0; i < 2; i++)
		tcp_rig_connect(&rig, &box[i], &worker[i]);
	assert_int_equal(rig.worker->ops->connect(rig.worker, rig.address, 7, 2, tcp_rig_key, NULL, &worker[2], &e), 0);
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
	/* Served in turn it is a handful; behind the floods, which fill their sockets, it would be thousands. */
	assert_in_range(worst, 1, 100);
	for (int i = 0; i < FLOODS; i++) {
		rig.box_queue->ops->drop(rig.box_queue, c[i]);
		close(fd[i]);
		free(flood[i]);
	}
	rig.box_queue->ops->drop(rig.box_queue, box);
	rig.worker_queue->ops->drop(rig.worker_queue, worker);
	tcp_rig_close(&rig);
}

TEST_PROGRAM(test_tcp_queue)
{
	const struct CMUnitTest tests[] = {
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
