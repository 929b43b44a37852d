/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunk's way on one core, without a network: a fake queue records what the core replies. Sums are checked
 * against a serial oracle for payloads that are held, added and staged, in every order of arrival.
 */
#include "aggregation/dispatch.h"
#include "phub/chunk.h"
#include "phub/link.h"
#include "phub/mailbox.h"
#include "phub/reply.h"
#include "phub/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD_MAX = 8, CHUNK_ELEMENTS = 1024, SENT_MAX = 256 };

/* ---- a queue that remembers ---- */

struct sent {
	struct conn *conn;
	struct wire_header header;
	const void *payload;
	void *cookie;
};

struct fake {
	struct queue queue;
	struct conn conns[WORLD_MAX];
	struct sent sent[SENT_MAX];
	unsigned sent_count;
	unsigned room; /* sends before -EAGAIN */
	unsigned released;
};

static struct fake *fake_of(struct queue *q)
{
	return (struct fake *)q;
}

static int fake_adopt(struct queue *q, struct conn *c, const struct conn_spec *spec)
{
	(void)spec;
	c->queue = q;
	return 0;
}

static int fake_send(struct queue *q, struct conn *c, const struct wire_header *h, const void *payload, void *cookie)
{
	struct fake *f = fake_of(q);

	if (f->room == 0)
		return -EAGAIN;
	f->room--;
	assert_true(f->sent_count < SENT_MAX);
	f->sent[f->sent_count++] = (struct sent){c, *h, payload, cookie};
	return 0;
}

static void fake_release(struct queue *q, void *slot)
{
	(void)slot;
	fake_of(q)->released++;
}

static void fake_drop(struct queue *q, struct conn *c)
{
	(void)q;
	(void)c;
}

static const struct queue_ops fake_ops = {
	.adopt = fake_adopt, .send = fake_send, .release = fake_release, .drop = fake_drop};

/* ---- a job of one chunk on one core ---- */

struct bench {
	struct fake fake;
	struct spec spec;
	struct chunk_key key;
	uint16_t core_of_chunk[1];
	struct store store;
	struct shard *shard;
	struct chunk *chunk;
	struct mailbox *control;
	struct conn_spec conn_spec;
	uint32_t seq[WORLD_MAX];
	uint64_t now;
	float data[WORLD_MAX][CHUNK_ELEMENTS];
};

static const struct optimizer_hyper sgd = {.lr = 0.5, .eps = 1e-8, .beta1 = 0.9, .beta2 = 0.999};

static void bench_open(struct bench *b, uint32_t world, unsigned hold_max)
{
	static const int node = -1;
	struct store_config config = {.core_node = &node};
	struct err e = {0};
	char text[200];

	b->key = (struct chunk_key){.elements = CHUNK_ELEMENTS, .dtype = DTYPE_F32};
	b->spec.world = world;
	b->spec.core_count = 1;
	b->spec.core_of_chunk = b->core_of_chunk;
	b->spec.group_count = 1;
	b->spec.epoch = 1;
	b->spec.groups[0] = sgd;
	memcpy(b->spec.name, "test", 5);
	assert_int_equal(chunking_plan(&b->key, 1, 32768, &b->spec.plan, &e), 0);
	assert_int_equal(mailbox_create(64, &b->control), 0);
	assert_int_equal(dispatch_from_env(&config.kernels, text, sizeof(text)), 0);
	config.control = b->control;
	assert_int_equal(store_create(&b->spec, &config, &b->store, &e), 0);
	assert_true(store_bytes(&b->spec) == b->store.bytes);
	b->shard = b->store.shards[0];
	b->chunk = &b->shard->chunks[0];

	b->fake.queue = (struct queue){.ops = &fake_ops, .hold_max = hold_max};
	b->fake.room = UINT_MAX;
	b->conn_spec.window = 4;
	for (uint32_t rank = 0; rank < world; rank++)
		assert_int_equal(
			link_open(&b->shard->links[rank], &b->fake.queue, &b->fake.conns[rank], &b->conn_spec), 0);
}

static void bench_close(struct bench *b)
{
	for (uint32_t rank = 0; rank < b->spec.world; rank++)
		link_close(&b->shard->links[rank]);
	assert_true(b->shard->counters.slots_kept == b->shard->counters.slots_released);
	assert_true(b->shard->counters.sends == b->shard->counters.sends_done);
	store_destroy(&b->store);
	mailbox_destroy(b->control);
	chunking_plan_fini(&b->spec.plan);
	free(b);
}

static struct bench *bench_new(void)
{
	struct bench *b = calloc(1, sizeof(*b));

	assert_non_null(b);
	return b;
}

/* Completes all that was sent, as a queue would at its next poll. */
static void bench_complete(struct bench *b)
{
	for (unsigned i = 0; i < b->fake.sent_count; i++)
		if (b->fake.sent[i].cookie)
			chunk_sent(b->fake.sent[i].cookie, b->fake.sent[i].conn->user, b->now);
	b->fake.sent_count = 0;
}

static int bench_push(struct bench *b, uint32_t rank, enum wire_type type, uint64_t round, uint32_t hyper, bool slot)
{
	struct wire_header h = {
		.type = type,
		.length = type == WIRE_PULL ? 0 : b->chunk->bytes,
		.rank = rank,
		.round = round,
		.hyper = hyper,
		.count = type != WIRE_PULL,
		.seq = ++b->seq[rank],
		.epoch = 1,
	};
	struct contribution c = {
		.link = &b->shard->links[rank],
		.header = &h,
		.payload = type == WIRE_PULL ? NULL : b->data[rank],
		.slot = slot ? b->data[rank] : NULL,
		.now_ns = ++b->now,
	};

	assert_int_equal(link_count(c.link, h.seq), 0);
	return chunk_add(b->chunk, &c);
}

static void bench_fill(struct bench *b, uint64_t round)
{
	for (uint32_t rank = 0; rank < b->spec.world; rank++)
		for (uint32_t i = 0; i < CHUNK_ELEMENTS; i++)
			b->data[rank][i] = (float)((rank + 1) * 3 + round * 7 + i % 11);
}

static float bench_sum(const struct bench *b, uint32_t i)
{
	float sum = b->data[0][i];

	for (uint32_t rank = 1; rank < b->spec.world; rank++)
		sum += b->data[rank][i];
	return sum;
}

static float bench_result(const struct bench *b, uint32_t i)
{
	return ((const float *)b->chunk->result)[i];
}

/* The same element of the k-th payload that was sent. */
static float bench_sent(const struct bench *b, unsigned k, uint32_t i)
{
	return ((const float *)b->fake.sent[k].payload)[i];
}

static void bench_push_all(struct bench *b, uint64_t round, uint32_t hyper, bool slot)
{
	for (uint32_t rank = 0; rank < b->spec.world; rank++)
		bench_push(b, rank, WIRE_PUSH, round, hyper, slot);
}

/* Opens a job with SGD and gives it first weights; returns element 4 of them. */
static float bench_open_sgd(struct bench *b, uint32_t world)
{
	b->spec.optimizer = OPTIMIZER_SGD;
	bench_open(b, world, 0);
	bench_fill(b, 0);
	bench_push(b, 0, WIRE_INIT, 0, 0, false);
	for (uint32_t rank = 1; rank < world; rank++)
		bench_push(b, rank, WIRE_PULL, 0, 0, false);
	assert_int_equal(b->fake.sent_count, world);
	bench_complete(b);
	return b->data[0][4];
}

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
	(void)state;
	check_sums(bench_new(), 0, false);
}

static void test_sum_held(void **state)
{
	(void)state;
	check_sums(bench_new(), UINT_MAX, false);
}

static void test_sum_two_slots(void **state)
{
	(void)state;
	check_sums(bench_new(), 2, false);
}

static void test_sum_staged(void **state)
{
	(void)state;
	check_sums(bench_new(), 0, true);
}

/* Values whose sum depends on the order: reproducible jobs sum by rank whatever comes first. */
static void test_reproducible_order(void **state)
{
	static const uint32_t orders[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {1, 0, 2}, {2, 0, 1}};
	(void)state;

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
	(void)state;

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
	(void)state;

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
	(void)state;

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

static struct mail bench_mail(struct bench *b)
{
	struct mail mail = {0};

	assert_int_equal(mailbox_receive(b->control, &mail), 0);
	return mail;
}

static void test_nan_policies(void **state)
{
	struct bench *b = bench_new();
	struct mail mail;
	(void)state;

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
	(void)state;

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

static struct hyper_table *bench_table(uint32_t rank, uint32_t version, double lr)
{
	struct hyper_table *t = calloc(1, sizeof(*t) + sizeof(t->groups[0]));

	assert_non_null(t);
	t->rank = rank;
	t->version = version;
	t->group_count = 1;
	t->groups[0] = sgd;
	t->groups[0].lr = lr;
	return t;
}

static void test_hyper_parks(void **state)
{
	struct bench *b = bench_new();
	struct hyper_table *t = bench_table(0, 1, 0.25);
	float w0;
	(void)state;

	w0 = bench_open_sgd(b, 2);
	bench_push_all(b, 1, 1, false);
	assert_int_equal(b->fake.sent_count, 0);
	assert_int_equal(b->shard->parked_count, 1);
	assert_int_equal(hypers_take(&b->shard->hypers, t), 0);
	chunk_retry(b->shard, b->now);
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
	(void)state;
}

/* A slot's memory goes with its connection: no commit reads it, and the round is as if it had not come. */
static void test_held_payload_goes_with_its_connection(void **state)
{
	struct bench *b = bench_new();
	struct conn_spec again = {.window = 4};
	(void)state;

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
	assert_true(bench_result(b, 4) == bench_sum(b, 4));

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

/* Each push is a step, answered at once from the pusher's own row; the oracle is the same steps in order. */
static void test_async_is_serial(void **state)
{
	static const uint32_t arrivals[] = {1, 0, 1, 1, 2, 0, 2, 1};
	struct bench *b = bench_new();
	uint64_t rounds[3] = {0};
	float w;
	(void)state;

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
	(void)state;

	b->spec.sync = SYNC_ASYNC;
	w = bench_open_sgd(b, 2);
	bench_push(b, 1, WIRE_PUSH, 1, 1, false);
	assert_int_equal(b->fake.sent_count, 0);
	bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 1);
	w += -0.5f * b->data[0][4];
	assert_int_equal(hypers_take(&b->shard->hypers, t), 0);
	chunk_retry(b->shard, b->now);
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
	(void)state;

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

/* Replies that have no room wait, and go in the order of priority; credits are cumulative. */
static void test_reply_waits_for_room(void **state)
{
	struct bench *b = bench_new();
	(void)state;

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
	(void)state;

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
	(void)state;

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

int main(void)
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
		cmocka_unit_test(test_async_is_serial),
		cmocka_unit_test(test_async_parks_in_its_row),
		cmocka_unit_test(test_ssp_waits),
		cmocka_unit_test(test_reply_waits_for_room),
		cmocka_unit_test(test_reply_owed_once),
		cmocka_unit_test(test_credit),
	};

	return cmocka_run_group_tests_name("chunk", tests, NULL, NULL);
}
