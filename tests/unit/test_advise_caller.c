/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Callers of phub scout advise that do not read: what is kept for them comes in order, and is bounded for each, for
 * all, and in time.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/cli/advise_caller.h"
#include "tests/unit/cmocka_shim.h"

enum { PIECE = 1000, ANSWERS_MAX = 100000 };

/* A caller, and its other end. */
static int open_caller(struct advise_caller *c, size_t *kept)
{
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	advise_caller_open(c, ends[0], kept);
	return ends[1];
}

/* Number `i` of what it is told. */
static void send_answer(struct advise_caller *c, unsigned i, size_t most)
{
	char answer[PIECE];

	memset(answer, (int)('a' + i % 26), sizeof(answer));
	advise_caller_send(c, answer, sizeof(answer), most);
}

/* Until its socket is full and some is kept; returns how many. */
static unsigned fill(struct advise_caller *c, size_t most)
{
	unsigned count = 0;

	while (c->fd >= 0 && c->out_have == 0 && count < ANSWERS_MAX)
		send_answer(c, count++, most);
	assert_true(c->out_have > 0);
	return count;
}

static void reads_late(void **state)
{
	struct advise_caller c;
	size_t kept = 0, got = 0;
	char bytes[PIECE];
	int end = open_caller(&c, &kept);
	unsigned count = fill(&c, 10 * PIECE);

	for (unsigned i = 0; i < 5; i++)
		send_answer(&c, count++, 10 * PIECE);
	assert_int_equal(kept, c.out_room);
	assert_true(c.out_room >= c.out_have && c.out_have > 5 * PIECE);
	c.ended = true;
	assert_false(advise_caller_is_done(&c));
	while (got < (size_t)count * PIECE) {
		ssize_t some = recv(end, bytes, PIECE - got % PIECE, MSG_DONTWAIT);

		if (some < 0) {
			assert_true(c.out_have > 0);
			advise_caller_flush(&c);
			continue;
		}
		assert_true(some > 0);
		for (ssize_t i = 0; i < some; i++)
			assert_int_equal(bytes[i], 'a' + got / PIECE % 26);
		got += (size_t)some;
	}
	assert_true(advise_caller_is_done(&c));
	assert_null(c.out); /* nothing is kept for who has read all */
	assert_int_equal(kept, 0);
	advise_caller_drop(&c);
	close(end);
}

static void reads_nothing(void **state)
{
	struct advise_caller c;
	size_t kept = 0;
	int end = open_caller(&c, &kept);

	fill(&c, 10 * PIECE);
	while (c.out_have + PIECE <= 10 * PIECE)
		send_answer(&c, 0, 10 * PIECE);
	assert_true(c.fd >= 0 && kept > 9 * PIECE);
	send_answer(&c, 0, 10 * PIECE);
	assert_int_equal(c.fd, -1);
	assert_int_equal(kept, 0);
	close(end);
}

/* The others have not read nearly all that may be kept. */
static void others_read_nothing(void **state)
{
	struct advise_caller one, two;
	size_t kept = 0;
	int end = open_caller(&one, &kept), other = open_caller(&two, &kept);

	fill(&one, SIZE_MAX);
	kept += ADVISE_KEPT_BYTES - one.out_room - PIECE;
	send_answer(&one, 0, SIZE_MAX); /* to the last byte */
	assert_true(one.fd >= 0);
	assert_int_equal(kept, ADVISE_KEPT_BYTES);
	for (unsigned i = 0; two.fd >= 0 && i < ANSWERS_MAX; i++) {
		send_answer(&two, i, SIZE_MAX);
		assert_int_equal(two.out_have, 0);
	}
	assert_int_equal(two.fd, -1);
	assert_int_equal(kept, ADVISE_KEPT_BYTES);
	kept = one.out_room;
	advise_caller_drop(&one);
	assert_int_equal(kept, 0);
	close(end);
	close(other);
}

static void has_ten_seconds(void **state)
{
	const uint64_t long_ns = ADVISE_CALLER_MS * UINT64_C(1000000);
	struct advise_caller c;
	size_t kept = 0;
	char bytes[64 * PIECE];
	int end = open_caller(&c, &kept);
	uint64_t before_ns, after_ns;

	c.end_ns = CLOCK_NEVER; /* it has said a whole line */
	assert_true(advise_caller_next_ns(&c) == CLOCK_NEVER);
	before_ns = clock_now_ns();
	fill(&c, SIZE_MAX);
	after_ns = clock_now_ns();
	assert_in_range(advise_caller_next_ns(&c), before_ns + long_ns, after_ns + long_ns);
	c.out_end_ns = 1; /* what is kept besides gives it no time, */
	send_answer(&c, 0, SIZE_MAX);
	advise_caller_flush(&c);
	assert_true(advise_caller_next_ns(&c) == 1);
	for (unsigned i = 0; i < 1000; i++)
		send_answer(&c, 0, SIZE_MAX);
	assert_true(recv(end, bytes, sizeof(bytes), MSG_DONTWAIT) > 0); /* and that it reads some does */
	advise_caller_flush(&c);
	assert_true(c.out_have > 0);
	assert_true(advise_caller_next_ns(&c) >= after_ns + long_ns);
	close(end);
	advise_caller_flush(&c);
	assert_int_equal(c.fd, -1);
	assert_int_equal(kept, 0);
}

TEST_PROGRAM(test_advise_caller)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_late),
		cmocka_unit_test(reads_nothing),
		cmocka_unit_test(others_read_nothing),
		cmocka_unit_test(has_ten_seconds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
