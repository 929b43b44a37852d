/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes of membership on one core, without a network and without control: ranks are taken out and let in between the
 * two steps, as phub/members.h says, and what comes too early, again or never is looked at.
 */
#include "phub/link.h"
#include "phub/members.h"
#include "phub/snapshot.h"
#include "phub/stepwise.h"
#include "tests/unit/chunk_rig.h"
#include "tests/unit/cmocka_shim.h"

#include <stddef.h>
#include <stdint.h>

enum { PUSH_WHILE_HELD = 77 }; /* bench.priority: rank 0 pushes between the two steps */

/*
 * One change: masks of the ranks that are lost, and of those that take part from `from` on; in both are those that are
 * lost and awaited. Returns the results sent.
 */
static unsigned change(struct bench *b, uint64_t lost, uint64_t awaited, uint64_t from)
{
	unsigned results = 0;
	uint64_t rounds[BENCH_CHUNKS_MAX] = {0};
	struct members m = {.epoch = 1, .repair = lost != 0, .rounds = rounds, .from = rounds};

	m.lost[0] = lost & ~awaited;
	m.awaited[0] = awaited;
	members_hold(b->shard, &m);
	if (b->priority == PUSH_WHILE_HELD)
		bench_push(b, 0, WIRE_PUSH, from, 0, false);
	for (uint32_t i = 0; i < b->chunk_count; i++)
		rounds[i] = from;
	members_go(b->shard, &m, ++b->now);
	for (unsigned i = 0; i < b->fake.sent_count; i++) /* others are credits */
		results += b->fake.sent[i].header.type == WIRE_RESULT;
	bench_complete(b);
	for (uint32_t rank = 0; rank < b->spec.world; rank++) {
		struct link *link = &b->shard->links[rank];

		if (!(awaited >> rank & 1))
			continue;
		link->serial++; /* another connection than that of the one before */
		b->chunk->arrivals[rank].serial = (uint8_t)link->serial;
	}
	return results;
}

/* What the next change says besides: who is not there, and whether the job drains. */
static void go(struct bench *b, struct members *m, uint64_t awaited, uint64_t absent)
{
	m->awaited[0] = awaited;
	m->absent[0] = absent;
	members_hold(b->shard, m);
	members_go(b->shard, m, ++b->now);
	bench_complete(b);
}

/* A job that waits for another in place of a rank drains: rounds that need it are not waited for, others are. */
static void test_drain_leaves_out_who_is_lost(void **state)
{
	uint64_t rounds[BENCH_CHUNKS_MAX], stops[BENCH_CHUNKS_MAX];
	struct members lost = {.epoch = 1, .repair = true, .rounds = rounds, .from = rounds};
	struct members drain = {.epoch = 1, .drain = true, .rounds = stops, .from = stops};

	for (unsigned when = 0; when < 3; when++) { /* lost before the drain, after it, never */
		struct bench *b = bench_new();

		bench_open(b, 3, 0);
		bench_fill(b, 1);
		if (when == 0)
			go(b, &lost, 1 << 2, 1 << 2);
		bench_push(b, 0, WIRE_PUSH, 1, 0, false);
		go(b, &drain, 0, when == 0 ? 1 << 2 : 0);
		assert_int_equal(b->shard->stop_left, when == 0 ? 0 : 1);
		if (when == 1)
			go(b, &lost, 1 << 2, 1 << 2);
		if (when < 2) {
			assert_int_equal(b->shard->stop_left, 0);
			assert_int_equal(stops[0], 1);
		} else {
			bench_push(b, 1, WIRE_PUSH, 1, 0, false);
			assert_int_equal(b->shard->stop_left, 1);
			bench_push(b, 2, WIRE_PUSH, 1, 0, false);
			assert_int_equal(b->shard->stop_left, 0);
			bench_complete(b);
		}
		bench_push(b, 0, WIRE_PUSH, when == 2 ? 2 : 1, 0, false);
		assert_int_equal(b->fake.sent_count, 0);
		bench_close(b);
	}
}

/* Where a quorum of those that are there closes the round, it is closed. */
static void test_drain_waits_for_a_quorum(void **state)
{
	uint64_t rounds[BENCH_CHUNKS_MAX], stops[BENCH_CHUNKS_MAX];
	struct members lost = {.epoch = 1, .repair = true, .rounds = rounds, .from = rounds};
	struct members drain = {.epoch = 1, .drain = true, .rounds = stops, .from = stops};
	struct bench *b = bench_new();

	b->spec.optimizer = OPTIMIZER_SGD;
	b->spec.quorum = 2;
	bench_open(b, 3, 0);
	bench_fill(b, 1);
	bench_push(b, 0, WIRE_INIT, 0, 0, false);
	bench_push(b, 1, WIRE_PULL, 0, 0, false);
	bench_push(b, 2, WIRE_PULL, 0, 0, false);
	bench_complete(b);
	go(b, &lost, 1 << 2, 1 << 2);
	bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	go(b, &drain, 0, 1 << 2);
	assert_int_equal(b->shard->stop_left, 1);
	bench_push(b, 1, WIRE_PUSH, 1, 0, false);
	assert_int_equal(b->shard->stop_left, 0);
	bench_complete(b);
	bench_close(b);
}

/* Who is lost is not missed, and what it had pushed is in no sum. */
static void test_share_is_withdrawn(void **state)
{
	struct bench *b = bench_new();

	bench_open(b, 3, 0);
	bench_fill(b, 1);
	bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	bench_push(b, 1, WIRE_PUSH, 1, 0, false);
	change(b, 1 << 1, 0, 0);
	bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 0);
	bench_push(b, 2, WIRE_PUSH, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 2);
	assert_true(bench_sent(b, 0, 4) == b->data[0][4] + b->data[2][4]);
	bench_complete(b);
	bench_close(b);
}

/* Also without an optimizer who comes can ask for the result before its first round, and gets it when it is there. */
static void test_visit_waits_for_its_round(void **state)
{
	struct bench *b = bench_new();

	bench_open(b, 3, 0);
	bench_fill(b, 1);
	change(b, 1 << 2, 0, 0);
	change(b, 0, 1 << 2, 2);
	assert_int_equal(bench_push(b, 2, WIRE_PULL, 1, 0, false), 0);
	bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 0);
	bench_push(b, 1, WIRE_PUSH, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 3);
	assert_int_equal(b->fake.sent[2].header.rank, 2);
	assert_int_equal(b->fake.sent[2].header.round, 1);
	bench_complete(b);
	bench_push_all(b, 2, 0, false); /* it takes part */
	assert_int_equal(b->fake.sent_count, 3);
	bench_complete(b);
	bench_close(b);
}

/* It asks again because the membership has changed: where nothing is lost, one answer is enough. */
static void test_visit_is_answered_once(void **state)
{
	struct bench *b = bench_new();

	bench_open(b, 3, 0);
	bench_fill(b, 1);
	bench_push_all(b, 1, 0, false);
	bench_complete(b);
	change(b, 1 << 2, 0, 0);
	change(b, 0, 1 << 2, 2);
	bench_push(b, 2, WIRE_PULL, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 1);
	bench_complete(b);
	bench_push(b, 2, WIRE_PULL, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 0);
	b->fake.queue.lossy = true;
	bench_push(b, 2, WIRE_PULL, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 1);
	bench_complete(b);
	bench_close(b);
}

/* Chunks of one key begin with one round: one of them may have no first weights yet. */
static void test_visit_before_first_weights(void **state)
{
	struct bench *b = bench_new();

	b->spec.optimizer = OPTIMIZER_SGD;
	bench_open(b, 3, 0);
	bench_fill(b, 1);
	change(b, 1 << 2, 0, 0);
	change(b, 0, 1 << 2, 1);
	assert_int_equal(bench_push(b, 2, WIRE_PULL, 0, 0, false), 0);
	bench_push(b, 1, WIRE_PULL, 0, 0, false);
	assert_int_equal(b->fake.sent_count, 0);
	bench_push(b, 0, WIRE_INIT, 0, 0, false);
	assert_int_equal(b->fake.sent_count, 3);
	assert_true(bench_sent(b, 2, 4) == b->data[0][4]);
	bench_complete(b);
	bench_close(b);
}

/* All that began the round are gone: it will never be whole, and who comes takes part only in the next. */
static void test_round_without_ranks_is_left_out(void **state)
{
	struct bench *b = bench_new();
	float weight;

	weight = bench_open_sgd(b, 3);
	bench_fill(b, 1);
	bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	change(b, 1 << 2, 0, 0);
	change(b, 0, 1 << 2, 2);
	bench_push(b, 2, WIRE_PULL, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 0);
	assert_int_equal(change(b, 1 << 0, 0, 0), 0);
	assert_int_equal(b->chunk->round, 1);
	assert_int_equal(change(b, 1 << 1, 0, 0), 1);
	assert_int_equal(b->chunk->round, 2);
	assert_true(((const float *)b->chunk->result)[4] == weight);
	bench_push(b, 2, WIRE_PUSH, 2, 0, false);
	assert_int_equal(b->fake.sent_count, 1);
	assert_int_equal(b->fake.sent[0].header.round, 2);
	bench_complete(b);
	bench_close(b);
}

/* One alone is needed, and what it sends is no root's: there is nothing to give to anybody. */
static void test_pull_alone_is_no_broadcast(void **state)
{
	struct bench *b = bench_new();

	bench_open(b, 2, 0);
	change(b, 1 << 0, 0, 0);
	bench_push(b, 1, WIRE_PULL, 1, 0, false);
	assert_true(b->shard->failed);
	assert_int_equal(bench_mail(b).value, SHARD_FAIL_KIND);
	bench_close(b);
}

/* Who came too late for a quorum got the weights after a later round; the answer was lost, and it asks again. */
static void test_late_answer_again(void **state)
{
	struct bench *b = bench_new();

	b->spec.quorum = 2;
	bench_open_sgd(b, 3);
	b->fake.queue.lossy = true;
	for (uint64_t round = 1; round <= 2; round++) {
		bench_fill(b, round);
		bench_push(b, 0, WIRE_PUSH, round, 0, false);
		bench_push(b, 1, WIRE_PUSH, round, 0, false);
		assert_int_equal(b->fake.sent_count, 2);
		bench_complete(b);
	}
	for (unsigned i = 0; i < 2; i++) {
		bench_push(b, 2, WIRE_PUSH, 1, 0, false);
		assert_int_equal(b->fake.sent_count, 1);
		assert_int_equal(b->fake.sent[0].header.round, 1);
		assert_int_equal(b->fake.sent[0].header.hyper, 1); /* rounds after it */
		bench_complete(b);
	}
	assert_int_equal(b->shard->counters.dropped[DROP_LATE], 1);
	bench_close(b);
}

/* The quorum went on while it came: it gets what the others have, and is told which round that is; also twice. */
static void test_visit_after_its_round(void **state)
{
	struct bench *b = bench_new();

	b->spec.quorum = 2;
	bench_open_sgd(b, 3);
	b->fake.queue.lossy = true;
	change(b, 1 << 2, 0, 0);
	change(b, 0, 1 << 2, 1);
	for (uint64_t round = 1; round <= 2; round++) {
		bench_push(b, 0, WIRE_PUSH, round, 0, false);
		bench_push(b, 1, WIRE_PUSH, round, 0, false);
		bench_complete(b);
	}
	for (unsigned i = 0; i < 2; i++) {
		bench_push(b, 2, WIRE_PULL, 0, 0, false);
		assert_int_equal(b->fake.sent_count, 1);
		assert_int_equal(b->fake.sent[0].header.round, 0);
		assert_int_equal(b->fake.sent[0].header.hyper, 2);
		bench_complete(b);
	}
	bench_close(b);
}

/* A round was complete while the change held it, and is not any more: who came takes part in it. */
static void test_held_round_waits_for_who_came(void **state)
{
	struct bench *b = bench_new();

	bench_open(b, 2, 0);
	bench_fill(b, 1);
	change(b, 1 << 1, 0, 0);
	b->priority = PUSH_WHILE_HELD;
	assert_int_equal(change(b, 0, 1 << 1, 1), 0);
	assert_int_equal(b->chunk->round, 1);
	bench_push(b, 1, WIRE_PUSH, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 2);
	assert_true(bench_sent(b, 0, 4) == b->data[0][4] + b->data[1][4]);
	bench_complete(b);
	bench_close(b);
}

/* ---- ssp, async ---- */

/* ssp(1) of three ranks, with first weights; all have done round 1. Returns element 4 of the weights. */
static float open_ssp(struct bench *b, enum spec_sync sync)
{
	float w;

	b->spec.sync = sync;
	b->spec.staleness = sync == SYNC_SSP;
	b->conn_spec.window = 64;
	w = bench_open_sgd(b, 3);
	bench_fill(b, 1);
	for (uint32_t rank = 0; rank < 3; rank++) {
		bench_push(b, rank, WIRE_PUSH, 1, 0, false);
		w += -0.5f * b->data[rank][4];
	}
	bench_complete(b);
	return w;
}

/* Who is lost is waited for no more: whoever had to wait for it is answered, with the weights of today, once. */
static void test_ssp_shrinks(void **state)
{
	struct bench *b = bench_new();
	float w;

	w = open_ssp(b, SYNC_SSP);
	for (uint64_t round = 2; round <= 3; round++) {
		bench_push(b, 0, WIRE_PUSH, round, 0, false);
		w += -0.5f * b->data[0][4];
		bench_push(b, 1, WIRE_PUSH, round, 0, false);
		w += -0.5f * b->data[1][4];
		assert_int_equal(b->fake.sent_count, round == 2 ? 2 : 0);
		bench_complete(b);
	}
	assert_int_equal(change(b, 1 << 2, 0, 2), 2);
	assert_true(((const float *)b->chunk->weight)[4] == w);
	bench_push(b, 0, WIRE_PUSH, 4, 0, false);
	assert_int_equal(b->fake.sent_count, 1);
	bench_complete(b);
	assert_false(stepwise_missing(b->chunk, b->shard, 2));
	bench_close(b);
}

/* Where the job waits the others get a round further than the lost one was, and no more until another has come. */
static void test_ssp_waits_for_another(void **state)
{
	struct bench *b = bench_new();
	float w;

	w = open_ssp(b, SYNC_SSP);
	change(b, 1 << 2, 1 << 2, 2);
	bench_push(b, 0, WIRE_PUSH, 2, 0, false);
	bench_push(b, 1, WIRE_PUSH, 2, 0, false);
	assert_int_equal(b->fake.sent_count, 2);
	bench_complete(b);
	bench_push(b, 0, WIRE_PUSH, 3, 0, false);
	assert_int_equal(b->fake.sent_count, 0);
	assert_true(stepwise_missing(b->chunk, b->shard, 2));
	w += -0.5f * b->data[0][4];
	w += -0.5f * b->data[1][4];
	w += -0.5f * b->data[0][4];
	assert_int_equal(change(b, 0, 1 << 2, 2), 0);
	bench_push(b, 2, WIRE_PULL, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 1);
	assert_int_equal(b->fake.sent[0].header.round, 1);
	assert_true(bench_sent(b, 0, 4) == w);
	bench_complete(b);
	bench_push(b, 2, WIRE_PUSH, 2, 0, false);
	w += -0.5f * b->data[2][4];
	assert_int_equal(b->fake.sent_count, 2);
	assert_int_equal(b->fake.sent[0].header.round + b->fake.sent[1].header.round, 3 + 2);
	assert_true(bench_sent(b, 0, 4) == w && bench_sent(b, 1, 4) == w);
	bench_complete(b);
	bench_close(b);
}

/* The job fails before a newcomer has been given weights: its row has those of who was there before it, not its own. */
static void test_ssp_fails_before_a_visit(void **state)
{
	struct bench *b = bench_new();
	struct link *newcomer;

	open_ssp(b, SYNC_SSP);
	b->fake.queue.lossy = true;
	change(b, 1 << 2, 1 << 2, 2);
	change(b, 0, 1 << 2, 2);
	newcomer = &b->shard->links[2];
	bench_push(b, 0, WIRE_PUSH, 2, 0, false);
	bench_complete(b);
	b->shard->failed = true;
	chunk_answer_again(b->chunk, newcomer, 1);
	assert_int_equal(b->fake.sent_count, 0);
	chunk_answer_again(
		b->chunk, &b->shard->links[0], 2); /* what is committed goes out, as often as it is asked for */
	assert_int_equal(b->fake.sent_count, 1);
	bench_complete(b);
	bench_close(b);
}

/* Likewise of bsp, where all have the same: the newcomer gets what it asks for, by the round of that. */
static void test_bsp_fails_before_a_visit(void **state)
{
	struct bench *b = bench_new();

	bench_open_sgd(b, 3);
	b->fake.queue.lossy = true;
	change(b, 1 << 2, 0, 0);
	bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	bench_push(b, 1, WIRE_PUSH, 1, 0, false);
	bench_complete(b);
	change(b, 0, 1 << 2, 2);
	b->shard->failed = true;
	chunk_answer_again(b->chunk, &b->shard->links[2], 1);
	assert_int_equal(b->fake.sent_count, 1);
	assert_int_equal(b->fake.sent[0].header.round, 1);
	bench_complete(b);
	bench_close(b);
}

/* async: nobody waits, and what was owed to the one that is gone is forgotten. */
static void test_async_goes_on(void **state)
{
	struct bench *b = bench_new();

	open_ssp(b, SYNC_ASYNC);
	for (uint64_t from = 2; from <= 3; from++) {
		change(b, 1 << 2, from == 2 ? 0 : 1 << 2, 2);
		for (uint64_t round = 2 * from - 2; round < 2 * from; round++) {
			bench_push(b, 0, WIRE_PUSH, round, 0, false);
			assert_int_equal(b->fake.sent_count, 1);
			bench_complete(b);
		}
	}
	bench_close(b);
}

/* Nothing is stepped while the membership changes: it is when all know who takes part, and then once. */
static void test_push_while_held_is_parked(void **state)
{
	struct bench *b = bench_new();
	float w;

	w = open_ssp(b, SYNC_ASYNC);
	b->priority = PUSH_WHILE_HELD;
	assert_int_equal(change(b, 1 << 2, 0, 2), 1);
	assert_int_equal(b->shard->counters.parked, 1);
	assert_int_equal(b->chunk->steps, 4);
	assert_true(((const float *)b->chunk->weight)[4] == w + -0.5f * b->data[0][4]);
	bench_close(b);
}

/* The push of the one that is gone waits for hyper-parameters: it is forgotten with it. */
static void test_parked_push_is_forgotten(void **state)
{
	struct bench *b = bench_new();

	open_ssp(b, SYNC_SSP);
	bench_push(b, 2, WIRE_PUSH, 2, 1, false);
	assert_int_equal(b->shard->parked_count, 1);
	change(b, 1 << 2, 1 << 2, 2);
	assert_int_equal(b->shard->parked_count, 0);
	assert_int_equal(b->shard->open_oldest, CHUNK_NONE);
	assert_int_equal(b->chunk->steps, 3);
	bench_close(b);
}

/* Nor is it answered what it is owed: nothing is open then. */
static void test_owed_answer_is_forgotten(void **state)
{
	struct bench *b = bench_new();

	open_ssp(b, SYNC_SSP);
	for (uint64_t round = 2; round <= 3; round++) {
		bench_push(b, 2, WIRE_PUSH, round, 0, false);
		bench_complete(b);
	}
	assert_int_equal(b->shard->open_oldest, 0);
	assert_int_equal(change(b, 1 << 2, 0, 2), 0);
	assert_int_equal(b->shard->open_oldest, CHUNK_NONE);
	assert_int_equal(b->chunk->steps, 5);
	bench_close(b);
}

/* All are gone at once, and others come: rounds go on where they were. */
static void test_stepwise_without_ranks(void **state)
{
	struct bench *b = bench_new();
	uint64_t rounds[1];
	struct snapshot s = {.rounds = rounds};

	open_ssp(b, SYNC_SSP);
	change(b, 7, 0, 2);
	assert_int_equal(stepwise_slowest(b->chunk, b->shard), 1);
	snapshot_rounds(b->shard, &s);
	assert_int_equal(rounds[0], 2);
	change(b, 0, 1 << 1, 2);
	bench_push(b, 1, WIRE_PULL, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 1);
	bench_complete(b);
	bench_push(b, 1, WIRE_PUSH, 2, 0, false);
	assert_int_equal(b->fake.sent_count, 1);
	bench_complete(b);
	bench_close(b);
}

/* Other keys are rounds further than this one, which has no weights yet: who comes gets them when they are there. */
static void test_stepwise_visit_before_first_weights(void **state)
{
	struct bench *b = bench_new();

	b->spec.optimizer = OPTIMIZER_SGD;
	b->spec.sync = SYNC_ASYNC;
	bench_open(b, 3, 0);
	bench_fill(b, 1);
	change(b, 1 << 2, 0, 0);
	change(b, 0, 1 << 2, 2);
	assert_int_equal(bench_push(b, 2, WIRE_PULL, 1, 0, false), 0);
	bench_push(b, 1, WIRE_PULL, 0, 0, false);
	assert_int_equal(b->fake.sent_count, 0);
	bench_push(b, 0, WIRE_INIT, 0, 0, false);
	assert_int_equal(b->fake.sent_count, 3);
	assert_int_equal(b->fake.sent[2].header.rank, 2);
	assert_int_equal(b->fake.sent[2].header.round, 1);
	assert_true(bench_sent(b, 2, 4) == b->data[0][4]);
	bench_complete(b);
	bench_push(b, 2, WIRE_PUSH, 2, 0, false);
	bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 2);
	bench_complete(b);
	bench_close(b);
}

TEST_PROGRAM(test_members)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_drain_leaves_out_who_is_lost),
		cmocka_unit_test(test_drain_waits_for_a_quorum),
		cmocka_unit_test(test_share_is_withdrawn),
		cmocka_unit_test(test_visit_waits_for_its_round),
		cmocka_unit_test(test_visit_is_answered_once),
		cmocka_unit_test(test_visit_before_first_weights),
		cmocka_unit_test(test_round_without_ranks_is_left_out),
		cmocka_unit_test(test_pull_alone_is_no_broadcast),
		cmocka_unit_test(test_late_answer_again),
		cmocka_unit_test(test_visit_after_its_round),
		cmocka_unit_test(test_held_round_waits_for_who_came),
		cmocka_unit_test(test_ssp_shrinks),
		cmocka_unit_test(test_ssp_waits_for_another),
		cmocka_unit_test(test_ssp_fails_before_a_visit),
		cmocka_unit_test(test_bsp_fails_before_a_visit),
		cmocka_unit_test(test_async_goes_on),
		cmocka_unit_test(test_push_while_held_is_parked),
		cmocka_unit_test(test_parked_push_is_forgotten),
		cmocka_unit_test(test_owed_answer_is_forgotten),
		cmocka_unit_test(test_stepwise_without_ranks),
		cmocka_unit_test(test_stepwise_visit_before_first_weights),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
