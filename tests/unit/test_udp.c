/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The udp transport's mover of datagrams: several as one that the kernel cuts and joins, a kernel that is full or
 * refuses, sleeping and waking. Calls of sendmmsg() go through here, to fail when a case wants them to.
 */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/libc_rig.h"
#include "transport/datagram_internal.h"
#include "transport/udp_internal.h"

enum { HEAD = 40, BATCH = 64, WAIT_MS = 2000 };

/* ---- a kernel that fails ---- */

static int fail_with;           /* errno; 0: none */
static bool fail_cut, fail_all; /* messages that are to be cut alone, or all; else only the next one */
static unsigned failed;

static int failing_sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
	bool cut = messages[0].msg_hdr.msg_controllen > 0;

	if (fail_with && (!fail_cut || cut)) {
		errno = fail_with;
		if (!fail_all && !fail_cut)
			fail_with = 0;
		failed++;
		return -1;
	}
	return (int)syscall(SYS_sendmmsg, fd, messages, count, flags);
}

/* ---- two ports ---- */

static struct transport *transports[2];
static struct queue *queues[2];
static struct udp_port *a, *b;
static struct datagram_in in[BATCH];

static void begin(void)
{
	const struct transport_config config = {.queue_conns_max = 4, .quiet = true};
	char address[128];
	struct err e;

	fail_with = 0;
	fail_cut = fail_all = false;
	failed = 0;
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(transport_udp.open(&config, &transports[i], &e), 0);
		assert_int_equal(transport_udp.listen(transports[i], "127.0.0.1", address, sizeof(address), &e), 0);
		assert_int_equal(transport_udp.queue_create(transports[i], MEM_NODE_ANY, &queues[i], &e), 0);
	}
	a = (struct udp_port *)((struct datagram_queue *)queues[0])->port;
	b = (struct udp_port *)((struct datagram_queue *)queues[1])->port;
}

static void end(void)
{
	for (unsigned i = 0; i < 2; i++) {
		transport_udp.queue_destroy(transports[i], queues[i]);
		transport_udp.close(transports[i]);
	}
}

static uint8_t rest_of[1 << 16];

/* One datagram from a, with its number in front. What room() says. */
static int put_to(const struct datagram_address *to, uint32_t number, uint32_t bytes, const void *conn)
{
	struct reliable_outgoing out = {0};
	int rc = a->port.ops->room(&a->port, to, &out);

	if (rc < 0)
		return rc;
	memset(out.head, (int)number, HEAD);
	memcpy(out.head, &number, sizeof(number));
	out.head_bytes = HEAD;
	out.rest = rest_of;
	out.rest_bytes = bytes - HEAD;
	out.conn = (struct reliable_conn *)(uintptr_t)conn;
	a->port.ops->send(&a->port, NULL, &out);
	return 0;
}

static void put(uint32_t number, uint32_t bytes)
{
	assert_int_equal(put_to(&b->port.address, number, bytes, NULL), 0);
}

static void flush(void)
{
	a->port.ops->flush(&a->port);
}

/* The next datagrams at b have these numbers and this size. */
static void expect(uint32_t first, uint32_t count, uint32_t bytes)
{
	uint64_t until_ns = clock_now_ns() + WAIT_MS * NS_PER_MS;

	while (count > 0 && clock_now_ns() < until_ns) {
		unsigned n = b->port.ops->receive(&b->port, in, count < BATCH ? count : BATCH);

		for (unsigned i = 0; i < n; i++, first++, count--) {
			uint32_t number;

			memcpy(&number, in[i].bytes, sizeof(number));
			assert_int_equal(number, first);
			assert_int_equal(in[i].length, bytes);
			assert_memory_equal(in[i].bytes + HEAD, rest_of, bytes - HEAD);
			assert_int_equal(in[i].from.port, a->port.address.port);
			assert_memory_equal(&in[i].from.ip, &a->port.address.ip, 16);
		}
	}
	assert_int_equal(count, 0);
}

static void expect_nothing(void)
{
	assert_int_equal(b->port.ops->receive(&b->port, in, BATCH), 0);
}

/* As it is told outside. */
static uint64_t counted(const char *what)
{
	const char *name;
	uint64_t value;

	for (unsigned i = 0; (name = datagram_count(queues[0], i, &value)); i++)
		if (strcmp(name, what) == 0)
			return value;
	fail_msg("nobody counts %s", what);
	return 0;
}

/* ---- cases ---- */

static void equal_ones_go_as_one(void **state)
{
	begin();
	for (uint32_t i = 0; i < 100; i++)
		put(i, 1448);
	put(100, 500); /* the last may be smaller */
	for (uint32_t i = 101; i < 103; i++)
		put(i, 900);
	flush();
	assert_int_equal(a->counters.calls, 1);
	assert_int_equal(a->counters.cut, 44 + 44 + 13 + 2);
	expect(0, 100, 1448);
	expect(100, 1, 500);
	expect(101, 2, 900);
	expect_nothing();
	/* Loopback hands them on as they are: the kernel told where the pieces are. */
	assert_true(b->counters.joined > 100);
	end();
}

static void each_goes_its_own_way(void **state)
{
	static const uint8_t other_memory[1];
	struct datagram_address elsewhere;

	begin();
	elsewhere = a->port.address; /* to itself */
	for (uint32_t i = 0; i < 60; i++)
		assert_int_equal(put_to(i % 3 == 2 ? &elsewhere : &b->port.address, i % 3 == 2 ? i : i / 3 * 2 + i % 3,
					 200 + i % 3, other_memory),
			0);
	flush();
	for (uint32_t i = 0; i < 20; i++) {
		expect(2 * i, 1, 200);
		expect(2 * i + 1, 1, 201);
	}
	assert_int_equal(a->port.ops->receive(&a->port, in, BATCH), 20);
	end();
}

static void large_and_small_ones_come_whole(void **state)
{
	begin();
	put(0, WIRE_DATAGRAM_MAX);
	put(1, HEAD);
	put(2, WIRE_DATAGRAM_MAX);
	flush();
	expect(0, 1, WIRE_DATAGRAM_MAX);
	expect(1, 1, HEAD);
	expect(2, 1, WIRE_DATAGRAM_MAX);
	end();
}

static void few_at_a_time_are_all(void **state)
{
	begin();
	for (uint32_t i = 0; i < 50; i++)
		put(i, 1000);
	flush();
	for (uint32_t i = 0; i < 50; i++)
		expect(i, 1, 1000);
	end();
}

/* A kernel, or a way, that does not cut. */
static void one_by_one_where_nothing_is_cut(void **state)
{
	static const int errors[] = {EIO, EINVAL};

	for (unsigned k = 0; k < 2; k++) {
		begin();
		fail_with = errors[k];
		fail_cut = true;
		for (uint32_t i = 0; i < 100; i++)
			put(i, 700);
		flush();
		expect(0, 100, 700);
		assert_int_equal(failed, 1); /* it is not tried again */
		assert_false(a->cuts);
		assert_int_equal(a->counters.lost, 0);
		assert_int_equal(counted("uncut"), 1);
		/* But after a second, when it may cut again. */
		fail_with = 0;
		for (uint32_t again = 0; again < 2; again++) {
			a->port.now_ns = clock_now_ns() + (again ? UDP_AGAIN_MS * NS_PER_MS : 0);
			for (uint32_t i = 0; i < 20; i++)
				put(i, 700);
			flush();
			expect(0, 20, 700);
			assert_int_equal(a->cuts, again);
		}
		end();
	}
}

/* More than the socket has room for, and nobody reads: the kernel throws away, and it shows. */
static void what_overflows_is_counted(void **state)
{
	int small = 0;

	begin();
	assert_int_equal(counted("overflowed"), 0);
	assert_int_equal(setsockopt(a->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
	for (uint32_t i = 0; i < 100; i++) {
		put_to(&a->port.address, i, 600, NULL);
		flush();
	}
	assert_in_range(counted("overflowed"), 1, 100);
	end();
}

static void a_full_kernel_gets_them_later(void **state)
{
	begin();
	fail_with = EAGAIN;
	fail_all = true;
	for (uint32_t i = 0; i < UDP_OUTS; i++) {
		put(i, 600);
		if (i % 50 == 0)
			flush();
	}
	assert_int_equal(put_to(&b->port.address, 0, 600, NULL), -EAGAIN);
	flush();
	assert_int_equal(put_to(&b->port.address, 0, 600, NULL), -EAGAIN);
	expect_nothing();
	assert_true(a->counters.blocked > 0 && a->counters.lost == 0);
	fail_with = 0;
	flush();
	put(UDP_OUTS, 600);
	flush();
	expect(0, UDP_OUTS + 1, 600);
	end();
}

static void a_way_that_is_gone_loses_one_and_goes_on(void **state)
{
	static const int errors[] = {EHOSTUNREACH, ENETDOWN, ENETUNREACH, ECONNREFUSED, EMSGSIZE, EPERM};

	for (unsigned k = 0; k < sizeof(errors) / sizeof(errors[0]); k++) {
		begin();
		put(0, 600);
		put(1, 601);
		put(2, 602);
		fail_with = errors[k];
		flush();
		assert_int_equal(a->counters.lost, 1);
		expect(1, 1, 601);
		expect(2, 1, 602);
		expect_nothing();
		end();
	}
}

static void an_interrupted_call_is_made_again(void **state)
{
	begin();
	put(0, 600);
	fail_with = EINTR;
	flush();
	expect(0, 1, 600);
	assert_int_equal(failed, 1);
	end();
}

/* What a dropped connection had waiting is read no more; the others' go. */
static void what_is_reclaimed_does_not_go(void **state)
{
	static const char gone[1], stays[1];
	uint32_t kept = 0;

	begin();
	fail_with = EAGAIN;
	fail_all = true;
	for (uint32_t i = 0; i < 90; i++)
		assert_int_equal(put_to(&b->port.address, i % 3 ? 1000 : kept++, 600, i % 3 ? gone : stays), 0);
	flush();
	a->port.ops->reclaim(&a->port, NULL, (const struct reliable_conn *)(const void *)gone);
	fail_with = 0;
	flush();
	expect(0, kept, 600);
	expect_nothing();
	a->port.ops->reclaim(&a->port, NULL, (const struct reliable_conn *)(const void *)stays);
	end();
}

static bool readable(int fd, int timeout_ms)
{
	struct pollfd wait = {.fd = fd, .events = POLLIN};

	return poll(&wait, 1, timeout_ms) == 1;
}

static void sleepers_wake(void **state)
{
	int fd;

	begin();
	fd = b->port.ops->arm(&b->port, 0);
	assert_true(fd >= 0 && !readable(fd, 20));
	put(0, 600);
	flush();
	assert_true(readable(fd, WAIT_MS));
	expect(0, 1, 600);
	assert_int_equal(b->port.ops->arm(&b->port, 0), fd);
	assert_false(readable(fd, 0));
	/* In time, and not again. */
	assert_int_equal(b->port.ops->arm(&b->port, clock_now_ns() + 30 * NS_PER_MS), fd);
	assert_false(readable(fd, 0));
	assert_true(readable(fd, WAIT_MS));
	assert_int_equal(b->port.ops->arm(&b->port, 0), fd);
	assert_false(readable(fd, 20));
	end();
}

static void nobody_sleeps_on_what_was_read(void **state)
{
	begin();
	for (uint32_t i = 0; i < 10; i++)
		put(i, 600);
	flush();
	expect(0, 3, 600); /* the kernel has given all of them */
	assert_int_equal(b->port.ops->arm(&b->port, 0), -EAGAIN);
	expect(3, 7, 600);
	assert_true(b->port.ops->arm(&b->port, 0) >= 0);
	end();
}

static void room_to_send_wakes(void **state)
{
	int fd;

	begin();
	fail_with = EAGAIN;
	put(0, 600);
	flush();
	fd = a->port.ops->arm(&a->port, 0);
	assert_true(fd >= 0 && readable(fd, WAIT_MS)); /* it was full for a moment only */
	flush();
	fd = a->port.ops->arm(&a->port, 0);
	assert_true(fd >= 0 && !readable(fd, 20));
	expect(0, 1, 600);
	end();
}

/* So much as is said to have room, has. */
static void what_is_promised_fits(void **state)
{
	static const uint32_t sizes[] = {1472, 8972, 65507};

	for (unsigned k = 0; k < 3; k++) {
		uint32_t count;

		begin();
		a->cuts = false; /* pieces that were never apart take less */
		count = (uint32_t)(b->port.room_bytes / sizes[k]);
		assert_true(count > 0);
		for (uint32_t i = 0; i < count; i++) {
			put(i, sizes[k]);
			flush();
		}
		expect(0, count, sizes[k]);
		end();
	}
}

TEST_PROGRAM(test_udp)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_ones_go_as_one),
		cmocka_unit_test(each_goes_its_own_way),
		cmocka_unit_test(large_and_small_ones_come_whole),
		cmocka_unit_test(few_at_a_time_are_all),
		cmocka_unit_test(one_by_one_where_nothing_is_cut),
		cmocka_unit_test(what_overflows_is_counted),
		cmocka_unit_test(a_full_kernel_gets_them_later),
		cmocka_unit_test(a_way_that_is_gone_loses_one_and_goes_on),
		cmocka_unit_test(an_interrupted_call_is_made_again),
		cmocka_unit_test(what_is_reclaimed_does_not_go),
		cmocka_unit_test(sleepers_wake),
		cmocka_unit_test(nobody_sleeps_on_what_was_read),
		cmocka_unit_test(room_to_send_wakes),
		cmocka_unit_test(what_is_promised_fits),
	};

	for (unsigned i = 0; i < sizeof(rest_of); i++)
		rest_of[i] = (uint8_t)(i * 7 + (i >> 8));
	libc_rig_sendmmsg = failing_sendmmsg;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
