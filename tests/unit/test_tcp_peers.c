/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp transport against peers that break the protocol, hang up in the middle, or reset: their connection ends with
 * the errno that fits, and no other does.
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
	tcp_rig_expect_closed(&rig, rig.box_queue, bad, error);
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
	uint64_t seed = 1;

	for (int i = 0; i < 20; i++) {
		for (size_t at = 0; at < sizeof(noise); at++)
			noise[at] = (uint8_t)tcp_rig_random(&seed);
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

TEST_PROGRAM(test_tcp_peers)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_malformed),
		cmocka_unit_test(test_ends),
		cmocka_unit_test(test_random_bytes),
		cmocka_unit_test(test_reset),
		cmocka_unit_test(test_messages_before_reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
