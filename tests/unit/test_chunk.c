/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunk's way on one core, without a network: a fake queue records what the core replies. Sums are checked
 * against a serial oracle for payloads that are held, added and staged, in every order of arrival.
 */
#include "aggregation/kernels.h"
#include "phub/chunk.h"
#include "phub/commit.h"
#include "phub/link.h"
#include "phub/stepwise.h"
#include "tests/unit/chunk_rig.h"
#include "tests/unit/cmocka_shim.h"

#include <stddef.h>
#include <stdint.h>

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void check_sums(struct bench *b, unsigned hold_max, bool reproducible)
{
	static const uint32_t orders[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}, {1, 3, 0, 2}};

	b->spec.reproducible = reproducible;
	bench_open(b, 4, hold_max);
	for (uint64_t round = 1; round <= 4; round++) {
		bench_fill(b, round);
		for (unsigned k = 0; k < 4; k++) {
			int kept = bench_push(b, orders[round - 1][k], WIRE_PUSH, round, 0, hold_max > 0);

			assert_true(kept == 0 || (k < 3 && hold_max > 0));
			assert_int_equal(b->fake.sent_count, k == 3 ? 4 : 0);
		}
		for (uint32_t i = 0; i < CHUNK_ELEMENTS; i++)
			assert_true(bench_sent(b, 0, i) == bench_sum(b, i));
		for (unsigned k = 0; k < 4; k++) {
			assert_int_equal(b->fake.sent[k].header.round, round);
			assert_int_equal(b->fake.sent[k].header.rank, k);
		}
		bench_complete(b);
	}
	bench_close(b);
}

static void test_sum_added(void **state)
{
	check_sums(bench_new(), 0, false);
}

static void test_sum_held(void **state)
{
	check_sums(bench_new(), UINT_MAX, false);
}

static void test_sum_two_slots(void **state)
{
	check_sums(bench_new(), 2, false);
}

static void test_sum_staged(void **state)
{
	check_sums(bench_new(), 0, true);
}

/* Values whose sum depends on the order: reproducible jobs sum by rank whatever comes first. */
static void test_reproducible_order(void **state)
{
	static const uint32_t orders[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {1, 0, 2}, {2, 0, 1}};

	for (unsigned hold = 0; hold < 3; hold++) {
		struct bench *b = bench_new();

		b->spec.reproducible = true;
		bench_open(b, 3, hold == 2 ? UINT_MAX : hold);
		b->data[0][0] = 1e8f;
		b->data[1][0] = 1.0f;
		b->data[2][0] = -1e8f;
		for (uint64_t round = 1; round <= 5; round++) {
			for (unsigned k = 0; k < 3; k++)
				bench_push(b, orders[round - 1][k], WIRE_PUSH, round, 0, hold > 0);
			assert_true(bench_sent(b, 0, 0) == (1e8f + 1.0f) + -1e8f);
			bench_complete(b);
		}
		bench_close(b);
	}
}

static void test_mean(void **state)
{
	struct bench *b = bench_new();

	b->spec.mean = true;
	bench_open(b, 4, 0);
	bench_fill(b, 1);
	bench_push_all(b, 1, 0, false);
	assert_true(bench_sent(b, 0, 5) == bench_sum(b, 5) * 0.25f);
	bench_close(b);
}

/* A commit waits while a queue still reads the last result, and goes on when it has read it. */
static void test_result_not_rewritten_before_sent(void **state)
{
	struct bench *b = bench_new();
	float first;

	bench_open(b, 2, 0);
	bench_fill(b, 1);
	bench_push_all(b, 1, 0, false);
	first = bench_sent(b, 0, 0);
	bench_fill(b, 2);
	bench_push_all(b, 2, 0, false);
	assert_true(b->chunk->parked);
	assert_int_equal(b->fake.sent_count, 2);
	assert_true(bench_sent(b, 0, 0) == first);
	bench_complete(b);
	assert_false(b->chunk->parked);
	assert_true(bench_result(b, 0) == bench_sum(b, 0));
	bench_close(b);
}

static void test_duplicates(void **state)
{
	struct bench *b = bench_new();

	bench_open(b, 2, 0);
	b->fake.queue.lossy = true;
	bench_fill(b, 1);
	bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	assert_int_equal(b->chunk->arrived, 1);
	bench_push(b, 1, WIRE_PUSH, 1, 0, false);
	assert_true(bench_result(b, 3) == bench_sum(b, 3));
	bench_complete(b);
	bench_push(b, 1, WIRE_PUSH, 1, 0, false); /* its result was lost: told again */
	assert_int_equal(b->fake.sent_count, 1);
	assert_int_equal(b->fake.sent[0].header.round, 1);
	assert_int_equal(b->shard->counters.dropped[DROP_DUPLICATE], 2);
	assert_int_equal(bench_push(b, 1, WIRE_PUSH, 3, 0, false), -EPROTO);
	bench_close(b);
}

static void test_nan_policies(void **state)
{
	struct bench *b = bench_new();
	struct mail mail;

	b->spec.nan = NAN_ZERO;
	bench_open(b, 2, UINT_MAX);
	bench_fill(b, 1);
	b->data[1][7] = NAN;
	bench_push(b, 0, WIRE_PUSH, 1, 0, true);
	assert_int_equal(bench_push(b, 1, WIRE_PUSH, 1, 0, true), 0);
	assert_true(bench_result(b, 7) == b->data[0][7]);
	assert_int_equal(b->shard->counters.nonfinite, 1);
	bench_close(b);

	b = bench_new();
	b->spec.nan = NAN_FAIL;
	bench_open(b, 2, 0);
	bench_fill(b, 1);
	b->data[1][9] = INFINITY;
	bench_push(b, 1, WIRE_PUSH, 1, 0, false);
	mail = bench_mail(b);
	assert_int_equal(mail.kind, MAIL_FAILED);
	assert_int_equal(mail.value, SHARD_FAIL_NAN);
	assert_int_equal(mail.rank, 1);
	assert_int_equal(mail.detail, 9);
	assert_true(b->shard->failed);
	bench_close(b);
}

/* First weights, then steps; a gradient before them is refused by name. */
static void test_weights_first(void **state)
{
	struct bench *b = bench_new();
	float w0;

	b->spec.optimizer = OPTIMIZER_SGD;
	bench_open(b, 2, 0);
	bench_fill(b, 0);
	w0 = b->data[0][4];
	bench_push(b, 1, WIRE_PULL, 0, 0, false);
	bench_push(b, 0, WIRE_INIT, 0, 0, false);
	assert_int_equal(b->fake.sent_count, 2);
	assert_memory_equal(b->fake.sent[1].payload, b->data[0], b->chunk->bytes);
	bench_complete(b);
	bench_push_all(b, 1, 0, false);
	assert_true(bench_result(b, 4) == w0 + -0.5f * bench_sum(b, 4));
	bench_close(b);

	b = bench_new();
	b->spec.optimizer = OPTIMIZER_SGD;
	bench_open(b, 2, 0);
	bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	assert_int_equal(bench_mail(b).value, SHARD_FAIL_NO_WEIGHTS);
	bench_close(b);
}

static void test_hyper_parks(void **state)
{
	struct bench *b = bench_new();
	struct hyper_table *t = bench_table(0, 1, 0.25);
	float w0;

	w0 = bench_open_sgd(b, 2);
	bench_push_all(b, 1, 1, false);
	assert_int_equal(b->fake.sent_count, 0);
	assert_int_equal(b->shard->parked_count, 1);
	assert_int_equal(hypers_take(&b->shard->hypers, t), 0);
	commit_retry(b->shard, b->now);
	assert_int_equal(b->fake.sent_count, 2);
	assert_true(bench_result(b, 4) == w0 + -0.25f * bench_sum(b, 4));
	bench_complete(b);
	bench_push(b, 0, WIRE_PUSH, 2, 1, false);
	bench_push(b, 1, WIRE_PUSH, 2, 0, false);
	assert_int_equal(bench_mail(b).value, SHARD_FAIL_HYPER);
	assert_int_equal(hypers_take(&b->shard->hypers, t), -EPROTO);
	free(t);
	bench_close(b);
}

/* First weights want the version that their root names, whoever comes first: who pulls may be ahead of it. */
static void test_pull_names_no_hyper(void **state)
{
	for (int sync = SYNC_BSP; sync <= SYNC_ASYNC; sync++) {
		struct bench *b = bench_new();

		b->spec.optimizer = OPTIMIZER_SGD;
		b->spec.sync = (enum spec_sync)sync;
		bench_open(b, 3, 0);
		bench_fill(b, 0);
		bench_push(b, 1, WIRE_PULL, 0, 1, false);
		bench_push(b, 0, WIRE_INIT, 0, 0, false);
		bench_push(b, 2, WIRE_PULL, 0, 3, false);
		assert_int_equal(b->shard->parked_count, 0);
		assert_int_equal(b->fake.sent_count, 3);
		bench_close(b);
	}
}

/* A slot's memory goes with its connection: no commit reads it, and the round is as if it had not come. */
static void check_held_payload_goes(bool mean)
{
	struct bench *b = bench_new();
	struct conn_spec again = {.window = 4};

	b->spec.mean = mean;
	bench_open(b, 3, 8);
	bench_fill(b, 1);
	assert_int_equal(bench_push(b, 1, WIRE_PUSH, 1, 0, true), 1);
	link_close(&b->shard->links[1]);
	memset(b->data[1], 0xff, sizeof(b->data[1]));
	assert_int_equal(b->chunk->arrived, 0);
	assert_int_equal(b->shard->open_oldest, CHUNK_NONE);
	bench_push(b, 0, WIRE_PUSH, 1, 0, true);
	bench_push(b, 2, WIRE_PUSH, 1, 0, true);
	assert_int_equal(b->fake.sent_count, 0);
	bench_fill(b, 1);
	b->seq[1] = 0;
	assert_int_equal(link_open(&b->shard->links[1], &b->fake.queue, &b->fake.conns[1], &again), 0);
	bench_push(b, 1, WIRE_PUSH, 1, 0, true);
	assert_int_equal(b->fake.sent_count, 3);
	assert_true(bench_result(b, 4) == bench_sum(b, 4) * (mean ? (float)(1.0 / 3) : 1));

	/* Also out of a commit that is parked: the last results are still being sent. */
	bench_fill(b, 2);
	bench_push_all(b, 2, 0, true);
	assert_int_equal(b->shard->parked_count, 1);
	link_close(&b->shard->links[1]);
	assert_int_equal(b->shard->parked_count, 0);
	for (unsigned i = 0; i < 3; i++)
		if (b->fake.sent[i].header.rank != 1)
			chunk_sent(b->chunk, &b->shard->links[b->fake.sent[i].header.rank], b->now);
	assert_int_equal(b->chunk->round, 2);
	assert_int_equal(b->chunk->arrived, 2);
	bench_close(b);
}

/* A quorum has more than enough, and waits: one whose connection goes leaves enough, and the round is not forgotten. */
static void test_a_quorum_outlives_one_of_it(void **state)
{
	struct bench *b = bench_new();
	struct hyper_table *t = bench_table(0, 1, 0.25);

	b->spec.quorum = 2;
	b->spec.optimizer = OPTIMIZER_SGD;
	bench_open(b, 4, 8);
	bench_set_weights(b);
	bench_fill(b, 1);
	for (uint32_t rank = 0; rank < 3; rank++)
		bench_push(b, rank, WIRE_PUSH, 1, 1, true);
	assert_int_equal(b->shard->parked_count, 1); /* for hyper-parameters that are on their way */
	link_close(&b->shard->links[1]);
	assert_int_equal(b->chunk->arrived, 2);
	assert_int_equal(b->shard->parked_count, 1);
	assert_int_equal(hypers_take(&b->shard->hypers, t), 0);
	commit_retry(b->shard, b->now);
	assert_int_equal(b->chunk->round, 2);
	free(t);
	bench_close(b);
}

static void test_held_payload_goes_with_its_connection(void **state)
{
	check_held_payload_goes(false);
	check_held_payload_goes(true);
}

/* Without an optimizer any rank may be the root of a broadcast, but one. */
static void test_one_root(void **state)
{
	static const enum wire_type types[][3] = {
		{WIRE_PULL, WIRE_INIT, WIRE_PULL},
		{WIRE_INIT, WIRE_PULL, WIRE_INIT},
		{WIRE_PULL, WIRE_PULL, WIRE_PULL},
		{WIRE_PULL, WIRE_INIT, WIRE_PUSH},
	};

	for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		struct bench *b = bench_new();
		struct mail mail;

		bench_open(b, 3, 0);
		bench_fill(b, 1);
		for (uint32_t rank = 0; rank < 3; rank++)
			bench_push(b, rank, types[i][rank], 1, 0, false);
		if (i == 0) {
			assert_int_equal(b->fake.sent_count, 3);
			assert_true(bench_sent(b, 2, 4) == b->data[1][4]);
		} else {
			assert_int_equal(b->fake.sent_count, 0);
			mail = bench_mail(b);
			assert_int_equal(mail.kind, MAIL_FAILED);
			assert_int_equal(mail.value, SHARD_FAIL_KIND);
			assert_int_equal(mail.rank, 2);
			assert_int_equal(mail.detail, types[i][2]);
		}
		bench_close(b);
	}
}

/* Each push is a step, answered at once from the pusher's own row; the oracle is the same steps in order. */
static void test_async_is_serial(void **state)
{
	static const uint32_t arrivals[] = {1, 0, 1, 1, 2, 0, 2, 1};
	struct bench *b = bench_new();
	uint64_t rounds[3] = {0};
	float w;

	b->spec.sync = SYNC_ASYNC;
	w = bench_open_sgd(b, 3);
	for (unsigned k = 0; k < sizeof(arrivals) / sizeof(arrivals[0]); k++) {
		uint32_t rank = arrivals[k];

		bench_push(b, rank, WIRE_PUSH, ++rounds[rank], 0, false);
		w = w + -0.5f * b->data[rank][4];
		assert_int_equal(b->fake.sent_count, 1);
		assert_ptr_equal(b->fake.sent[0].conn, &b->fake.conns[rank]);
		assert_int_equal(b->fake.sent[0].header.round, rounds[rank]);
		assert_true(bench_sent(b, 0, 4) == w);
		bench_complete(b);
	}
	bench_close(b);
}

static void test_async_parks_in_its_row(void **state)
{
	struct bench *b = bench_new();
	struct hyper_table *t = bench_table(1, 1, 0.25);
	float w;

	b->spec.sync = SYNC_ASYNC;
	w = bench_open_sgd(b, 2);
	bench_push(b, 1, WIRE_PUSH, 1, 1, false);
	assert_int_equal(b->fake.sent_count, 0);
	bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 1);
	w += -0.5f * b->data[0][4];
	assert_int_equal(hypers_take(&b->shard->hypers, t), 0);
	commit_retry(b->shard, b->now);
	assert_int_equal(b->fake.sent_count, 2);
	assert_true(bench_sent(b, 1, 4) == w + -0.25f * b->data[1][4]);
	free(t);
	bench_close(b);
}

/* ssp(1): a rank that is two rounds ahead waits for the slowest. */
static void test_ssp_waits(void **state)
{
	struct bench *b = bench_new();
	float w;

	b->spec.sync = SYNC_SSP;
	b->spec.staleness = 1;
	w = bench_open_sgd(b, 2);
	bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 1);
	bench_complete(b);
	bench_push(b, 0, WIRE_PUSH, 2, 0, false);
	assert_int_equal(b->fake.sent_count, 0);
	bench_push(b, 1, WIRE_PUSH, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 2);
	w = w + -0.5f * b->data[0][4];
	w = w + -0.5f * b->data[0][4];
	w = w + -0.5f * b->data[1][4];
	for (unsigned k = 0; k < 2; k++)
		assert_true(bench_sent(b, k, 4) == w);
	bench_close(b);
}

/* Who is behind is told by name; who keeps the bound is not, nor who waits. And nobody pushes while it waits. */
static void test_ssp_names_the_slow(void **state)
{
	struct bench *b = bench_new();

	b->spec.sync = SYNC_SSP;
	b->spec.staleness = 1;
	b->conn_spec.window = 64;
	bench_open_sgd(b, 3);
	for (uint64_t round = 1; round <= 2; round++) {
		bench_push(b, 2, WIRE_PUSH, round, 0, false);
		bench_complete(b);
	}
	assert_true(stepwise_missing(b->chunk, b->shard, 0));
	bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	bench_complete(b);
	assert_false(stepwise_missing(b->chunk, b->shard, 0));
	assert_true(stepwise_missing(b->chunk, b->shard, 1));
	assert_false(stepwise_missing(b->chunk, b->shard, 2));
	assert_true(b->chunk->arrivals[2].owed);
	assert_int_equal(bench_push(b, 2, WIRE_PUSH, 3, 0, false), -EPROTO);
	assert_int_equal(b->chunk->steps, 3);
	bench_close(b);
}

/* Lossy: the next push came before the completion of the answer, whose row is still read. It comes again. */
static void test_async_busy_row(void **state)
{
	struct bench *b = bench_new();
	float w;

	b->spec.sync = SYNC_ASYNC;
	w = bench_open_sgd(b, 2);
	b->fake.queue.lossy = true;
	b->priority = 9;
	bench_push(b, 1, WIRE_PUSH, 1, 0, false);
	assert_int_equal(b->fake.sent[0].header.priority, 9);
	assert_int_equal(bench_push(b, 1, WIRE_PUSH, 2, 0, false), 0);
	assert_int_equal(b->shard->counters.dropped[DROP_BUSY], 1);
	assert_int_equal(b->fake.sent_count, 1);
	w += -0.5f * b->data[1][4];
	assert_true(bench_sent(b, 0, 4) == w);
	bench_complete(b);
	bench_push(b, 1, WIRE_PUSH, 2, 0, false);
	assert_int_equal(b->fake.sent_count, 1);
	assert_true(bench_sent(b, 0, 4) == w + -0.5f * b->data[1][4]);
	bench_close(b);
}

/* ---- the scalars of a step are kept for the other chunks of its round, and for no others ---- */

static struct bench *bench_two_chunks(enum optimizer_kind kind, enum spec_sync sync)
{
	struct bench *b = bench_new();

	b->chunk_count = 2;
	b->conn_spec.window = 64;
	b->spec.optimizer = kind;
	b->spec.sync = sync;
	return b;
}

static float bench_step(struct bench *b, uint32_t chunk, uint64_t round, uint32_t hyper)
{
	b->chunk = &b->shard->chunks[chunk];
	bench_push_all(b, round, hyper, false);
	bench_complete(b);
	return bench_result(b, 4);
}

/* A learning rate that is set between two keys of a round holds for the second, and not for the first. */
static void test_step_of_another_version(void **state)
{
	struct bench *b = bench_two_chunks(OPTIMIZER_SGD, SYNC_BSP);
	struct hyper_table *t = bench_table(0, 1, 0.125);
	float w, g;

	bench_open(b, 2, 0);
	bench_set_weights(b);
	w = b->data[0][4];
	bench_fill(b, 1);
	g = bench_sum(b, 4);
	assert_true(bench_step(b, 0, 1, 0) == w + -0.5f * g);
	assert_int_equal(hypers_take(&b->shard->hypers, t), 0);
	assert_true(bench_step(b, 1, 1, 1) == w + -0.125f * g);
	/* Back to an old one that is still kept. */
	assert_true(bench_step(b, 0, 2, 1) == w + -0.5f * g + -0.125f * g);
	assert_true(bench_step(b, 1, 2, 0) == w + -0.125f * g + -0.5f * g);
	free(t);
	bench_close(b);
}

static void test_step_of_another_group(void **state)
{
	struct bench *b = bench_two_chunks(OPTIMIZER_ADAGRAD, SYNC_BSP);
	float w, g, root;

	b->spec.group_count = 2;
	b->spec.groups[1] = bench_sgd;
	b->spec.groups[0].eps = 0;
	b->spec.groups[1].eps = 0;
	b->spec.groups[1].lr = 0.125;
	b->spec.groups[1].initial_accumulator_value = 9;
	b->keys[1].group = 1;
	bench_open(b, 2, 0);
	bench_set_weights(b);
	w = b->data[0][4];
	for (uint32_t i = 0; i < CHUNK_ELEMENTS; i++) {
		b->data[0][i] = 1;
		b->data[1][i] = 3;
	}
	g = 4;
	assert_true(bench_step(b, 0, 1, 0) == w + -0.5f * (g / sqrtf(0 + g * g)));
	root = sqrtf(9 + g * g);
	assert_true(root == 5);
	assert_true(fabsf(bench_step(b, 1, 1, 0) - (w + -0.125f * (g / root))) < 1e-5f);
	bench_close(b);
}

/* async: each rank has a schedule of its own. */
static void test_step_of_another_rank(void **state)
{
	struct bench *b = bench_two_chunks(OPTIMIZER_SGD, SYNC_ASYNC);
	struct hyper_table *t = bench_table(1, 1, 0.125), *other = bench_table(0, 1, 2);
	float w;

	bench_open(b, 2, 0);
	bench_set_weights(b);
	w = b->data[0][4];
	bench_fill(b, 1);
	assert_int_equal(hypers_take(&b->shard->hypers, t), 0);
	assert_int_equal(hypers_take(&b->shard->hypers, other), 0);
	for (uint32_t rank = 0; rank < 2; rank++) {
		b->chunk = &b->shard->chunks[rank];
		bench_push(b, rank, WIRE_PUSH, 1, 1, false);
		assert_true(bench_sent(b, rank, 4) == w + (rank == 0 ? -2.0f : -0.125f) * b->data[rank][4]);
	}
	free(t);
	free(other);
	bench_close(b);
}

/* ---- cached or streamed ---- */

static enum stores stores_seen;

static void stores_note(const struct sum_args *args)
{
	stores_seen = args->stores;
	kernels_base.sum(args);
}

/* How the result of a round is written. */
static enum stores stores_of(unsigned hold_max, bool beyond_cache, enum store_results results)
{
	struct kernels noting = kernels_base;
	struct bench *b = bench_new();

	noting.sum = stores_note;
	b->results = results;
	bench_open(b, 2, hold_max);
	if (results == STORE_RESULTS_AUTO) {
		/* Two payloads and a result of 4 KiB: any second-level cache has more. */
		assert_false(b->shard->beyond_cache);
		b->shard->beyond_cache = beyond_cache;
	}
	b->shard->kernels = &noting;
	bench_fill(b, 1);
	bench_push_all(b, 1, 0, hold_max > 0);
	assert_true(bench_sent(b, 0, 7) == bench_sum(b, 7));
	bench_complete(b);
	bench_close(b);
	return stores_seen;
}

static void test_only_mapped_results_beyond_the_cache_are_streamed(void **state)
{
	assert_int_equal(stores_of(UINT_MAX, true, STORE_RESULTS_AUTO), STORES_STREAMED);
	assert_int_equal(stores_of(UINT_MAX, false, STORE_RESULTS_AUTO), STORES_CACHED);
	assert_int_equal(stores_of(0, true, STORE_RESULTS_AUTO), STORES_CACHED);
	assert_int_equal(stores_of(2, true, STORE_RESULTS_AUTO), STORES_CACHED);
}

/* For measurements; what a send reads is cached even so. */
static void test_results_are_streamed_or_not_as_configured(void **state)
{
	assert_int_equal(stores_of(UINT_MAX, false, STORE_RESULTS_STREAMED), STORES_STREAMED);
	assert_int_equal(stores_of(UINT_MAX, false, STORE_RESULTS_CACHED), STORES_CACHED);
	assert_int_equal(stores_of(0, false, STORE_RESULTS_STREAMED), STORES_CACHED);
}

TEST_PROGRAM(test_chunk)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sum_added),
		cmocka_unit_test(test_sum_held),
		cmocka_unit_test(test_sum_two_slots),
		cmocka_unit_test(test_sum_staged),
		cmocka_unit_test(test_reproducible_order),
		cmocka_unit_test(test_mean),
		cmocka_unit_test(test_result_not_rewritten_before_sent),
		cmocka_unit_test(test_duplicates),
		cmocka_unit_test(test_nan_policies),
		cmocka_unit_test(test_weights_first),
		cmocka_unit_test(test_hyper_parks),
		cmocka_unit_test(test_pull_names_no_hyper),
		cmocka_unit_test(test_held_payload_goes_with_its_connection),
		cmocka_unit_test(test_a_quorum_outlives_one_of_it),
		cmocka_unit_test(test_one_root),
		cmocka_unit_test(test_async_is_serial),
		cmocka_unit_test(test_async_parks_in_its_row),
		cmocka_unit_test(test_ssp_waits),
		cmocka_unit_test(test_ssp_names_the_slow),
		cmocka_unit_test(test_async_busy_row),
		cmocka_unit_test(test_step_of_another_version),
		cmocka_unit_test(test_step_of_another_group),
		cmocka_unit_test(test_step_of_another_rank),
		cmocka_unit_test(test_only_mapped_results_beyond_the_cache_are_streamed),
		cmocka_unit_test(test_results_are_streamed_or_not_as_configured),
	};

	return cmocka_run_group_tests_name("chunk", tests, NULL, NULL);
}
