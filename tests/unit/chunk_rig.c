/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue's calls, and a job made by the product's own store.
 */
#include "tests/unit/chunk_rig.h"

#include "aggregation/dispatch.h"
#include "phub/core.h"
#include "phub/link.h"
#include "phub/mirror.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- the queue ---- */

static struct fake *fake_of(struct queue *q)
{
	return (struct fake *)q;
}

static int fake_adopt(struct queue *q, struct conn *c, const struct conn_spec *spec)
{
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
	fake_of(q)->released++;
}

static void fake_drop(struct queue *q, struct conn *c)
{
}

static const struct queue_ops fake_ops = {
	.adopt = fake_adopt, .send = fake_send, .release = fake_release, .drop = fake_drop};

/* ---- the job ---- */

const struct optimizer_hyper bench_sgd = {.lr = 0.5, .eps = 1e-8, .beta1 = 0.9, .beta2 = 0.999};

struct bench *bench_new(void)
{
	struct bench *b = calloc(1, sizeof(*b));

	assert_non_null(b);
	b->chunk_count = 1;
	b->elements = CHUNK_ELEMENTS;
	b->spec.group_count = 1;
	b->conn_spec.window = 4;
	b->spec.groups[0] = bench_sgd;
	return b;
}

void bench_open(struct bench *b, uint32_t world, unsigned hold_max)
{
	static const int node = -1;
	struct store_config config = {.core_node = &node, .results = b->results};
	struct err e = {0};
	char text[200];

	for (uint32_t i = 0; i < b->chunk_count; i++) {
		b->keys[i].elements = b->elements;
		b->keys[i].dtype = (uint8_t)b->dtype;
		b->keys[i].alone = true;
	}
	b->spec.world = world;
	b->spec.core_count = 1;
	b->spec.core_of_chunk = b->core_of_chunk;
	b->spec.epoch = 1;
	memcpy(b->spec.name, "test", 5);
	assert_int_equal(chunking_plan(b->keys, b->chunk_count, 32768, &b->spec.plan, &e), 0);
	if (b->spec.mirror)
		assert_int_equal(mirror_spec(&b->spec), 0);
	assert_int_equal(mailbox_create(64, &b->control), 0);
	assert_int_equal(dispatch_from_env(&config.kernels, text, sizeof(text)), 0);
	config.control = b->control;
	assert_int_equal(store_create(&b->spec, &config, &b->store, &e), 0);
	assert_true(store_bytes(&b->spec) == b->store.bytes);
	b->shard = b->store.shards[0];
	assert_int_equal(b->shard->chunk_count, b->chunk_count);
	b->chunk = &b->shard->chunks[0];

	b->fake.queue = (struct queue){.ops = &fake_ops, .hold_max = hold_max};
	b->fake.room = UINT_MAX;
	for (uint32_t rank = 0; rank < world; rank++)
		assert_int_equal(
			link_open(&b->shard->links[rank], &b->fake.queue, &b->fake.conns[rank], &b->conn_spec), 0);
}

void bench_close(struct bench *b)
{
	for (uint32_t rank = 0; rank < b->spec.world; rank++) {
		link_close(&b->shard->links[rank]);
		assert_int_equal(b->shard->links[rank].sends, 0);
		assert_int_equal(b->shard->links[rank].held, 0);
	}
	assert_int_equal(b->fake.queue.held, 0);
	assert_int_equal(core_balance(b->shard, NULL), 0);
	assert_true(b->shard->counters.slots_kept == b->shard->counters.slots_released);
	assert_true(b->shard->counters.sends == b->shard->counters.sends_done);
	store_destroy(&b->store);
	mailbox_destroy(b->control);
	chunking_plan_fini(&b->spec.plan);
	free(b);
}

void bench_complete(struct bench *b)
{
	for (unsigned i = 0; i < b->fake.sent_count; i++)
		if (b->fake.sent[i].cookie)
			chunk_sent(b->fake.sent[i].cookie, b->fake.sent[i].conn->user, b->now);
	b->fake.sent_count = 0;
	for (uint32_t rank = 0; rank < b->spec.world; rank++)
		assert_int_equal(b->shard->links[rank].sends, 0);
}

int bench_push(struct bench *b, uint32_t rank, enum wire_type type, uint64_t round, uint32_t hyper, bool slot)
{
	struct wire_header h = {
		.type = type,
		.length = type == WIRE_PULL ? 0 : b->chunk->bytes,
		.chunk = chunk_local(b->shard, b->chunk),
		.rank = rank,
		.round = round,
		.hyper = hyper,
		.count = type != WIRE_PULL,
		.seq = ++b->seq[rank],
		.epoch = 1,
		.priority = b->priority,
	};
	struct contribution c = {
		.link = &b->shard->links[rank],
		.header = &h,
		.payload = type == WIRE_PULL ? NULL : b->data[rank],
		.bytes = h.length,
		.last = true,
		.slot = slot ? b->data[rank] : NULL,
		.now_ns = ++b->now,
	};

	assert_int_equal(link_count(c.link, h.seq), 0);
	return chunk_add(b->chunk, &c);
}

int bench_part(struct bench *b, enum wire_type type, uint64_t round, const struct part *part)
{
	struct wire_header h = {
		.type = type,
		.length = b->chunk->bytes,
		.chunk = chunk_local(b->shard, b->chunk),
		.rank = part->rank,
		.round = round,
		.count = 1,
		.seq = part->seq,
		.epoch = 1,
		.priority = b->priority,
	};
	struct contribution c = {
		.link = &b->shard->links[part->rank],
		.header = &h,
		.payload = (const uint8_t *)b->data[part->rank] + part->offset,
		.offset = part->offset,
		.bytes = part->bytes,
		.last = part->last,
		.now_ns = ++b->now,
	};

	return chunk_add(b->chunk, &c);
}

void bench_push_all(struct bench *b, uint64_t round, uint32_t hyper, bool slot)
{
	for (uint32_t rank = 0; rank < b->spec.world; rank++)
		bench_push(b, rank, WIRE_PUSH, round, hyper, slot);
}

void bench_fill(struct bench *b, uint64_t round)
{
	for (uint32_t rank = 0; rank < b->spec.world; rank++)
		for (uint32_t i = 0; i < CHUNK_ELEMENTS; i++)
			b->data[rank][i] = (float)((rank + 1) * 3 + round * 7 + i % 11);
}

void bench_set_weights(struct bench *b)
{
	bench_fill(b, 0);
	for (uint32_t i = 0; i < b->chunk_count; i++) {
		b->chunk = &b->shard->chunks[i];
		bench_push(b, 0, WIRE_INIT, 0, 0, false);
		for (uint32_t rank = 1; rank < b->spec.world; rank++)
			bench_push(b, rank, WIRE_PULL, 0, 0, false);
		assert_int_equal(b->fake.sent_count, b->spec.world);
		bench_complete(b);
	}
	b->chunk = &b->shard->chunks[0];
}

float bench_open_sgd(struct bench *b, uint32_t world)
{
	b->spec.optimizer = OPTIMIZER_SGD;
	bench_open(b, world, 0);
	bench_set_weights(b);
	return b->data[0][4];
}

float bench_sum(const struct bench *b, uint32_t i)
{
	float sum = b->data[0][i];

	for (uint32_t rank = 1; rank < b->spec.world; rank++)
		sum += b->data[rank][i];
	return sum;
}

float bench_result(const struct bench *b, uint32_t i)
{
	return ((const float *)b->chunk->result)[i];
}

float bench_sent(const struct bench *b, unsigned k, uint32_t i)
{
	return ((const float *)b->fake.sent[k].payload)[i];
}

struct mail bench_mail(struct bench *b)
{
	struct mail mail = {0};

	assert_int_equal(mailbox_receive(b->control, &mail), 0);
	return mail;
}

struct hyper_table *bench_table(uint32_t rank, uint32_t version, double lr)
{
	struct hyper_table *t = calloc(1, sizeof(*t) + sizeof(t->groups[0]));

	assert_non_null(t);
	t->rank = rank;
	t->version = version;
	t->group_count = 1;
	t->groups[0] = bench_sgd;
	t->groups[0].lr = lr;
	return t;
}
