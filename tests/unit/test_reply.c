/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes back to the workers, and in which order: replies that find no room wait by priority, not by the chunk's
 * place in the table, and credits are cumulative.
 */
#include "phub/chunk.h"
#include "phub/link.h"
#include "phub/reply.h"
#include "tests/unit/chunk_rig.h"
#include "tests/unit/cmocka_shim.h"

#include <stddef.h>
#include <stdint.h>

#include <errno.h>
#include <limits.h>

/* ---- the order ---- */

enum { WAITING = BENCH_CHUNKS_MAX };

/* Each rank's own, as its pushes say; equal ones go in the order of the chunks. */
static const uint16_t priorities[2][WAITING] = {
	{5, 0, 65535, 3, 300, 1, 7, 3},
	{0, 65535, 4, 9, 2, 300, 2, 8},
};
static const uint32_t orders[2][WAITING] = {
	{1, 5, 3, 7, 0, 6, 4, 2},
	{0, 4, 6, 2, 7, 3, 5, 1},
};

/* One rank's chunks, from the k-th reply on. */
static void check_order(const struct bench *b, uint32_t rank, unsigned k, unsigned first, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		const struct wire_header *h = &b->fake.sent[k + i].header;
		uint32_t chunk = orders[rank][first + i];

		assert_int_equal(h->rank, rank);
		assert_int_equal(h->chunk, chunk);
		assert_int_equal(h->priority, priorities[rank][chunk]);
	}
}

static void push_with_priorities(struct bench *b, uint32_t chunk, uint64_t round)
{
	b->chunk = &b->shard->chunks[chunk];
	for (uint32_t rank = 0; rank < 2; rank++) {
		b->priority = priorities[rank][chunk];
		bench_push(b, rank, WIRE_PUSH, round, 0, false);
	}
}

static struct bench *bench_waiting(void)
{
	struct bench *b = bench_new();

	b->chunk_count = WAITING;
	b->conn_spec.window = 64;
	bench_open(b, 2, 0);
	b->fake.room = 0;
	return b;
}

static void test_the_urgent_go_first(void **state)
{
	struct bench *b = bench_waiting();

	for (uint32_t chunk = 0; chunk < WAITING; chunk++)
		push_with_priorities(b, chunk, 1);
	assert_int_equal(b->fake.sent_count, 0);
	b->fake.room = 3;
	reply_writable(&b->shard->links[1]);
	check_order(b, 1, 0, 0, 3);
	reply_writable(&b->shard->links[1]); /* no room: nothing is lost or sent twice */
	assert_int_equal(b->fake.sent_count, 3);
	b->fake.room = UINT_MAX;
	reply_writable(&b->shard->links[0]);
	check_order(b, 0, 3, 0, WAITING);
	reply_writable(&b->shard->links[1]);
	check_order(b, 1, 3 + WAITING, 3, WAITING - 3);
	assert_int_equal(b->fake.sent_count, 2 * WAITING);
	bench_close(b);
}

/* One that is committed while others wait takes its place among them, also when there is room again. */
static void test_none_overtakes_the_waiting(void **state)
{
	struct bench *b = bench_waiting();

	for (uint32_t i = 0; i + 1 < WAITING; i++)
		push_with_priorities(b, orders[0][WAITING - 1 - i], 1);
	b->fake.room = UINT_MAX;
	push_with_priorities(b, orders[0][0], 1);
	assert_int_equal(b->fake.sent_count, 0);
	for (uint32_t rank = 0; rank < 2; rank++) {
		reply_writable(&b->shard->links[rank]);
		check_order(b, rank, rank * WAITING, 0, WAITING);
	}
	/* Nobody waits any more: the next goes at once, and may wait again. */
	bench_complete(b);
	push_with_priorities(b, 3, 2);
	assert_int_equal(b->fake.sent_count, 2);
	assert_int_equal(b->fake.sent[0].header.round, 2);
	b->fake.room = 0;
	push_with_priorities(b, 4, 2);
	b->fake.room = UINT_MAX;
	reply_writable(&b->shard->links[0]);
	assert_int_equal(b->fake.sent_count, 3);
	assert_int_equal(b->fake.sent[2].header.chunk, 4);
	bench_close(b);
}

/* ---- room and credits ---- */

/* Replies that have no room wait; credits are cumulative. */
static void test_reply_waits_for_room(void **state)
{
	struct bench *b = bench_new();

	bench_open(b, 2, 0);
	b->fake.room = 1;
	bench_push_all(b, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 1);
	assert_int_equal(b->shard->links[1].reply_count, 1);
	b->fake.room = 2;
	reply_writable(&b->shard->links[1]);
	assert_int_equal(b->fake.sent_count, 2);
	assert_int_equal(b->fake.sent[1].header.rank, 1);
	assert_int_equal(b->fake.sent[1].header.credit, 5);
	bench_close(b);
}

/* Lossy: a worker that asks again while its reply waits for room, and then goes on, is owed one reply, not two. */
static void test_reply_owed_once(void **state)
{
	struct bench *b = bench_new();

	bench_open(b, 2, 0);
	b->fake.queue.lossy = true;
	bench_push_all(b, 1, 0, false);
	bench_complete(b);
	b->fake.room = 0;
	bench_push(b, 1, WIRE_PUSH, 1, 0, false);
	assert_int_equal(b->shard->links[1].reply_count, 1);
	bench_push_all(b, 2, 0, false);
	assert_int_equal(b->shard->links[1].reply_count, 1);
	b->fake.room = 1;
	reply_writable(&b->shard->links[1]);
	assert_int_equal(b->fake.sent_count, 1);
	assert_int_equal(b->fake.sent[0].header.round, 2);
	bench_close(b);
}

static void test_credit(void **state)
{
	struct bench *b = bench_new();
	struct link *link;

	bench_open(b, 2, 0);
	link = &b->shard->links[0];
	assert_int_equal(link_credit(link), 4);
	assert_int_equal(link_count(link, 1), 0);
	reply_credit(link);
	assert_int_equal(b->fake.sent_count, 0); /* one more is not worth a message */
	assert_int_equal(link_count(link, 2), 0);
	reply_credit(link);
	assert_int_equal(b->fake.sent_count, 1);
	assert_int_equal(b->fake.sent[0].header.type, WIRE_CREDIT);
	assert_int_equal(b->fake.sent[0].header.credit, 6);
	assert_int_equal(link_count(link, 2), -EPROTO);
	assert_int_equal(link_count(link, 4), -EPROTO);
	for (uint32_t seq = 3; seq <= 6; seq++)
		assert_int_equal(link_count(link, seq), 0);
	assert_int_equal(link_count(link, 7), -EPROTO); /* beyond what it was told */
	bench_close(b);
}

/* A slot that is held takes its credit with it, and the worker always has one left. */
static void test_held_slots_leave_a_credit(void **state)
{
	struct bench *b = bench_new();
	struct link *link;

	b->chunk_count = BENCH_CHUNKS_MAX;
	bench_open(b, 2, 100);
	link = &b->shard->links[0];
	for (uint32_t i = 0; i < BENCH_CHUNKS_MAX; i++) {
		b->chunk = &b->shard->chunks[i];
		assert_int_equal(bench_push(b, 0, WIRE_PUSH, 1, 0, true), i < 3);
		reply_credit(link);
		assert_int_equal(link->held, i < 3 ? i + 1 : 3);
		assert_int_equal(link_credit(link), i < 3 ? 4 : i + 2);
		assert_int_equal(link->credit_told, i < 3 ? 4 : i + 2); /* else it could not go on */
	}
	/* The other one's pushes commit: the slots are free again. */
	for (uint32_t i = 0; i < BENCH_CHUNKS_MAX; i++) {
		b->chunk = &b->shard->chunks[i];
		bench_push(b, 1, WIRE_PUSH, 1, 0, false);
	}
	assert_int_equal(link->held, 0);
	assert_int_equal(b->fake.released, 3);
	assert_int_equal(link_credit(link), BENCH_CHUNKS_MAX + 4);
	bench_close(b);
}

/* The transport's slots are bounded too, over all its connections. */
static void test_held_slots_are_bounded_per_queue(void **state)
{
	struct bench *b = bench_new();

	b->chunk_count = BENCH_CHUNKS_MAX;
	b->conn_spec.window = 64;
	bench_open(b, 3, 3);
	for (uint32_t i = 0; i < BENCH_CHUNKS_MAX; i++) {
		b->chunk = &b->shard->chunks[i];
		for (uint32_t rank = 0; rank < 2; rank++)
			assert_int_equal(bench_push(b, rank, WIRE_PUSH, 1, 0, true), 2 * i + rank < 3);
		assert_int_equal(b->fake.queue.held, i == 0 ? 2 : 3);
	}
	bench_close(b);
}

/* Lossy: a message beyond the credit says that a grant was lost. It is given again, however little it is worth. */
static void test_a_lost_grant_is_given_again(void **state)
{
	struct bench *b = bench_new();
	struct link *link;

	b->conn_spec.window = 64;
	bench_open(b, 2, 0);
	b->fake.queue.lossy = true;
	link = &b->shard->links[0];
	assert_int_equal(link_count(link, 1), 0);
	reply_credit(link);
	assert_int_equal(b->fake.sent_count, 0); /* 65 instead of 64 */
	link->held = 40;
	assert_int_equal(link_count(link, 65), 0);
	reply_credit(link);
	assert_int_equal(b->fake.sent_count, 1);
	assert_int_equal(b->fake.sent[0].header.credit, 65 + 64 - 40);
	reply_credit(link);
	assert_int_equal(b->fake.sent_count, 1);
	link->held = 0;
	bench_close(b);
}

/* A reply that waited when the connection ended went with it: the next connection is answered like the first. */
static void test_a_new_connection_is_answered(void **state)
{
	struct bench *b = bench_new();
	struct link *link;

	bench_open(b, 2, 0);
	link = &b->shard->links[1];
	b->fake.room = 1;
	bench_push_all(b, 1, 0, false);
	assert_int_equal(link->reply_count, 1);
	link_close(link);
	b->fake.room = UINT_MAX;
	bench_complete(b);
	b->seq[1] = 0;
	assert_int_equal(link_open(link, &b->fake.queue, &b->fake.conns[1], &b->conn_spec), 0);
	bench_push_all(b, 2, 0, false);
	assert_int_equal(b->fake.sent_count, 2);
	assert_int_equal(b->fake.sent[1].header.rank, 1);
	assert_int_equal(b->fake.sent[1].header.round, 2);
	bench_close(b);
}

TEST_PROGRAM(test_reply)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_urgent_go_first),
		cmocka_unit_test(test_none_overtakes_the_waiting),
		cmocka_unit_test(test_reply_waits_for_room),
		cmocka_unit_test(test_reply_owed_once),
		cmocka_unit_test(test_credit),
		cmocka_unit_test(test_held_slots_leave_a_credit),
		cmocka_unit_test(test_held_slots_are_bounded_per_queue),
		cmocka_unit_test(test_a_lost_grant_is_given_again),
		cmocka_unit_test(test_a_new_connection_is_answered),
	};

	return cmocka_run_group_tests_name("reply", tests, NULL, NULL);
}
