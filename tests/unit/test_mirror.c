/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chunk's copy at a standby: a job, the mirror that gets what its box would send, and the job that goes on from that
 * have the same bits; what no box sends changes nothing.
 */
#include "phub/mirror.h"
#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "aggregation/convert.h"
#include "aggregation/kernels.h"
#include "phub/commit.h"
#include "phub/link.h"
#include "phub/reply.h"
#include "tests/unit/chunk_rig.h"

enum { WORLD = 3 };

/* ---- what a box sends ---- */

struct message {
	enum wire_type type;
	uint64_t round;
	uint32_t hyper, count;
};

static int tell(struct bench *b, const struct message *m, const void *payload)
{
	struct wire_header h = {
		.type = m->type,
		.length = b->chunk->bytes,
		.chunk = chunk_local(b->shard, b->chunk),
		.round = m->round,
		.hyper = m->hyper,
		.count = m->count,
		.seq = ++b->seq[0],
		.epoch = 1,
	};
	struct contribution c = {
		.link = &b->shard->links[0],
		.header = &h,
		.payload = payload,
		.bytes = h.length,
		.last = true,
		.now_ns = ++b->now,
	};

	if (m->type == WIRE_PULL)
		h.length = c.bytes = 0;
	if (m->type != WIRE_PULL && !mirror_takes(b->chunk, &h, 0))
		return -EPROTO;
	return chunk_add(b->chunk, &c);
}

static int tell_array(struct bench *b, uint64_t round, uint32_t steps, uint16_t index, const void *values)
{
	const struct message m = {WIRE_INIT, round, steps, index + 1u};

	return tell(b, &m, values);
}

static int tell_sum(struct bench *b, uint64_t round, uint32_t hyper, uint32_t count, const float *sum)
{
	const struct message m = {WIRE_PUSH, round, hyper, count};

	return tell(b, &m, sum);
}

/* All of a chunk, as it is at its box. */
static void tell_image(struct bench *mirror, const struct chunk *from, const struct spec *spec)
{
	static float wide[CHUNK_ELEMENTS];
	const float *first = from->weight;

	if (!first) {
		convert_to_f32(wide, from->result, (enum dtype)from->dtype, from->elements);
		first = wide;
	}
	for (uint16_t i = 0; i <= optimizer_state_count(spec->optimizer); i++)
		assert_int_equal(
			tell_array(mirror, from->round, (uint32_t)from->steps, i, i ? from->state[i - 1] : first), 0);
	for (unsigned i = 0; i < mirror->fake.sent_count; i++) {
		assert_int_equal(mirror->fake.sent[i].header.type, WIRE_RESULT);
		assert_int_equal(mirror->fake.sent[i].header.length, 0);
		assert_int_equal(mirror->fake.sent[i].header.round, from->round);
	}
	assert_int_equal(mirror->fake.sent_count, 1 + optimizer_state_count(spec->optimizer));
	bench_complete(mirror);
}

/* ---- bits ---- */

struct shape {
	enum optimizer_kind optimizer;
	enum dtype dtype;
	bool mean;
	uint32_t quorum;
};

static struct bench *open_job(const struct shape *shape, bool mirror)
{
	struct bench *b = bench_new();

	b->spec.optimizer = shape->optimizer;
	b->spec.mean = shape->mean;
	b->spec.quorum = shape->quorum;
	b->spec.mirror = mirror;
	b->dtype = shape->dtype;
	b->spec.groups[0].momentum = 0.9;
	b->spec.groups[0].lr = 0.01;
	b->spec.groups[0].weight_decay = 0.1;
	bench_open(b, mirror ? 1 : WORLD, UINT_MAX);
	return b;
}

static void fill(struct bench *b, uint32_t seed)
{
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		float values[CHUNK_ELEMENTS];

		for (uint32_t i = 0; i < CHUNK_ELEMENTS; i++) {
			seed = seed * 1664525u + 1013904223u;
			values[i] = (float)(int32_t)seed / 3e8f;
		}
		convert_from_f32(b->data[rank], b->dtype, values, CHUNK_ELEMENTS);
	}
}

/* A round at the box, and what it sends of it before it answers. */
static void run_round(struct bench *job, struct bench *mirror, uint64_t round)
{
	static float lift[CHUNK_ELEMENTS];
	const void *sources[WORLD];
	struct sum_args sum = {.src = sources,
		.src_count = WORLD,
		.src_dtype = job->dtype,
		.out_dtype = DTYPE_F32,
		.scale = 1,
		.count = CHUNK_ELEMENTS,
		.out = lift};

	fill(job, (uint32_t)round * 77);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		sources[rank] = job->data[rank];
	job->shard->kernels->sum(&sum);
	bench_push_all(job, round, 0, true);
	bench_complete(job);
	assert_int_equal(job->chunk->round, round + 1);
	if (!mirror)
		return;
	assert_int_equal(tell_sum(mirror, round, 0, WORLD, lift), 0);
	assert_int_equal(mirror->fake.sent_count, 1);
	assert_int_equal(mirror->fake.sent[0].header.round, round);
	assert_int_equal(mirror->fake.sent[0].header.length, 0);
	bench_complete(mirror);
}

static void check_equal(const struct bench *a, const struct bench *b)
{
	size_t bytes = CHUNK_ELEMENTS * sizeof(float);

	assert_int_equal(a->chunk->round, b->chunk->round);
	assert_int_equal(a->chunk->steps, b->chunk->steps);
	if (!a->spec.quorum)
		assert_memory_equal(a->chunk->result, b->chunk->result, a->chunk->bytes);
	for (unsigned i = 0; i < optimizer_state_count(a->spec.optimizer); i++)
		assert_memory_equal(a->chunk->state[i], b->chunk->state[i], bytes);
	if (a->chunk->weight)
		assert_memory_equal(a->chunk->weight, b->chunk->weight, bytes);
}

/* Two rounds at the box, an image, three more, then the standby goes on; beside a box that nothing befalls. */
static void check_bits(const struct shape *shape)
{
	struct bench *job = open_job(shape, false), *mirror = open_job(shape, true), *next = open_job(shape, false);
	uint64_t round = 1;

	fill(job, 5);
	if (shape->optimizer != OPTIMIZER_NONE)
		bench_set_weights(job);
	while (round < 3)
		run_round(job, NULL, round++);
	assert_int_equal(mirror_is_whole(mirror->shard), shape->optimizer == OPTIMIZER_NONE); /* needs no weights */
	tell_image(mirror, job->chunk, &job->spec);
	assert_true(mirror_is_whole(mirror->shard));
	while (round < 6)
		run_round(job, mirror, round++);
	mirror_restore(next->chunk, next->shard, mirror->chunk);
	check_equal(job, next);
	run_round(job, NULL, round);
	run_round(next, NULL, round);
	check_equal(job, next);
	bench_close(job);
	bench_close(mirror);
	bench_close(next);
}

static void test_bits(void **state)
{
	static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

	for (int kind = 0; kind < OPTIMIZER_COUNT; kind++)
		for (int d = 0; d < 3; d++)
			for (int mean = 0; mean < 2; mean++)
				check_bits(&(struct shape){(enum optimizer_kind)kind, dtypes[d], mean, 0});
}

static void test_bits_quorum(void **state)
{
	check_bits(&(struct shape){OPTIMIZER_ADAM, DTYPE_BF16, true, WORLD});
}

/* ---- order, hyper-parameters, answers ---- */

static const float values[CHUNK_ELEMENTS] = {1, 2, 3}, others[CHUNK_ELEMENTS] = {5, 6, 7};

static struct bench *open_mirror(enum optimizer_kind optimizer)
{
	return open_job(&(struct shape){optimizer, DTYPE_F32, false, 0}, true);
}

/* A version that has not come yet: the sum waits, and is not answered. */
static void test_waits_for_hyper(void **state)
{
	struct bench *b = open_mirror(OPTIMIZER_SGD);
	struct hyper_table *table = bench_table(0, 8, 0.25);

	hypers_begin(&b->shard->hypers, 7, true, b->spec.groups);
	assert_int_equal(tell_array(b, 4, 3, 0, values), 0);
	bench_complete(b);
	assert_int_equal(tell_sum(b, 4, 8, 2, others), 0);
	assert_true(b->chunk->parked);
	assert_int_equal(b->fake.sent_count, 0);
	assert_int_equal(hypers_take(&b->shard->hypers, table), 0);
	commit_retry(b->shard, ++b->now);
	assert_int_equal(b->fake.sent_count, 1);
	assert_true(bench_result(b, 1) == 2 - 0.25f * 6);
	assert_int_equal(b->chunk->steps, 4);
	bench_complete(b);
	/* The one before is there, too. */
	assert_int_equal(tell_sum(b, 5, 7, 2, others), 0);
	assert_int_equal(b->fake.sent_count, 1);
	free(table);
	bench_close(b);
}

/* One answer for each message, also when the connection had no room for any. */
static void test_each_is_answered(void **state)
{
	struct bench *b = open_mirror(OPTIMIZER_ADAM);

	b->fake.room = 0;
	for (uint16_t i = 0; i < 3; i++)
		assert_int_equal(tell_array(b, 4, 3, i, values), 0);
	assert_int_equal(b->fake.sent_count, 0);
	b->fake.room = 2;
	reply_writable(&b->shard->links[0]);
	assert_int_equal(b->fake.sent_count, 2);
	b->fake.room = UINT_MAX;
	reply_writable(&b->shard->links[0]);
	assert_int_equal(b->fake.sent_count, 3);
	reply_writable(&b->shard->links[0]);
	assert_int_equal(b->fake.sent_count, 3);
	bench_complete(b);
	assert_int_equal(tell_sum(b, 4, 0, 2, others), 0);
	assert_int_equal(b->fake.sent_count, 1);
	bench_close(b);
}

/* Until its last array is there, a chunk is not; an image at the same step again changes nothing before its end. */
static void test_image_in_part(void **state)
{
	struct bench *b = open_mirror(OPTIMIZER_MOMENTUM);

	assert_int_equal(tell_array(b, 4, 3, 0, values), 0);
	assert_false(mirror_is_whole(b->shard));
	assert_int_equal(tell_array(b, 4, 3, 1, others), 0);
	assert_true(mirror_is_whole(b->shard));
	bench_complete(b);
	assert_int_equal(tell_array(b, 6, 3, 0, values), 0);
	assert_true(mirror_is_whole(b->shard));
	assert_int_equal(b->chunk->round, 4);
	assert_int_equal(tell_array(b, 6, 3, 1, others), 0);
	assert_int_equal(b->chunk->round, 6);
	bench_complete(b);
	assert_int_equal(tell_array(b, 7, 4, 0, others), 0);
	assert_false(mirror_is_whole(b->shard));
	bench_complete(b);
	bench_close(b);
}

static void test_sum_before_image(void **state)
{
	struct bench *b = open_mirror(OPTIMIZER_ADAM);

	assert_int_equal(tell_sum(b, 1, 0, 2, values), 0);
	assert_int_equal(bench_mail(b).value, SHARD_FAIL_NO_WEIGHTS);
	assert_true(b->shard->failed);
	assert_int_equal(b->fake.sent_count, 0);
	bench_close(b);
}

/* What no box sends. */
static void test_hostile(void **state)
{
	struct wire_header sum = {.type = WIRE_PUSH, .count = 2};
	static const struct message wrong[] = {
		{WIRE_PULL, 4, 3, 0},                       /* of a worker */
		{WIRE_PUSH, 5, 0, 2},                       /* from the future */
		{WIRE_PUSH, 4, 0, 0},                       /* of nobody */
		{WIRE_INIT, 5, 3, 0},                       /* no array */
		{WIRE_INIT, 5, 3, 3},                       /* one that is not the next */
		{WIRE_INIT, 5, 3, 4},                       /* that there is not */
		{WIRE_INIT, 5, 3, UINT32_MAX},              /* likewise */
		{WIRE_INIT, 3, 3, 1},                       /* of the past */
		{WIRE_INIT, 0, 3, 1},                       /* before the first weights */
		{WIRE_INIT, UINT64_MAX, 3, 1},              /* far beyond */
		{WIRE_INIT, (uint64_t)INT64_MAX + 2, 3, 1}, /* likewise */
	};
	struct bench *b = open_mirror(OPTIMIZER_ADAM);

	for (uint16_t i = 0; i < 3; i++)
		assert_int_equal(tell_array(b, 4, 3, i, values), 0);
	bench_complete(b);
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		if (tell(b, &wrong[i], others) != -EPROTO)
			fail_msg("message %u is taken", i);
	assert_memory_equal(b->chunk->weight, values, sizeof(values));
	assert_int_equal(b->chunk->round, 4);
	/* Arrays of two images. */
	assert_int_equal(tell_array(b, 5, 3, 0, values), 0);
	assert_int_equal(tell_array(b, 6, 3, 1, others), -EPROTO);
	sum.length = b->chunk->bytes;
	assert_true(mirror_takes(b->chunk, &sum, 0));
	sum.coded = true;
	assert_false(mirror_takes(b->chunk, &sum, 0));
	assert_int_equal(tell_array(b, 5, 4, 1, others), -EPROTO);
	/* An old sum is dropped. */
	assert_int_equal(tell_sum(b, 3, 0, 2, others), 0);
	assert_int_equal(b->fake.sent_count, 1);
	/* A flood of which no answer is read. */
	for (int i = 0; i < 5; i++)
		assert_int_equal(tell_array(b, 5, 3, 0, values), 0);
	assert_int_equal(tell_array(b, 5, 3, 0, values), -EPROTO);
	bench_complete(b);
	bench_close(b);
}

/* An image while a sum waits. */
static void test_image_over_parked(void **state)
{
	struct bench *b = open_mirror(OPTIMIZER_SGD);

	assert_int_equal(tell_array(b, 4, 3, 0, values), 0);
	bench_complete(b);
	assert_int_equal(tell_sum(b, 4, 9, 2, others), 0);
	assert_true(b->chunk->parked);
	assert_int_equal(tell_array(b, 5, 4, 0, others), -EPROTO);
	assert_memory_equal(b->chunk->weight, values, sizeof(values));
	bench_close(b);
}

/* ---- those who move ---- */

/* Who waits for the result of the round before is answered; the others' round is open. */
static void test_moved_are_answered(void **state)
{
	struct shape shape = {OPTIMIZER_SGD, DTYPE_BF16, false, 0};
	struct bench *mirror = open_job(&shape, true), *next = bench_new();

	assert_int_equal(tell_array(mirror, 6, 5, 0, values), 0);
	bench_complete(mirror);
	next->spec.optimizer = OPTIMIZER_SGD;
	next->dtype = DTYPE_BF16;
	bench_open(next, WORLD, 0);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		struct link *link = &next->shard->links[rank];

		link_close(link);
		link->queue = NULL; /* as before its first connection */
		link->moved = true;
		link->serial = 1;
		assert_int_equal(link_open(link, &next->fake.queue, &next->fake.conns[rank], &next->conn_spec), 0);
		next->chunk->arrivals[rank].serial = 1; /* receive.c */
	}
	mirror_restore(next->chunk, next->shard, mirror->chunk);
	memset(next->data, 0, sizeof(next->data));
	bench_push(next, 0, WIRE_PUSH, 5, 0, false);
	assert_int_equal(next->fake.sent_count, 1);
	assert_int_equal(next->fake.sent[0].header.round, 5);
	assert_int_equal(next->fake.sent[0].header.length, next->chunk->bytes);
	bench_push(next, 0, WIRE_PUSH, 5, 0, false); /* once */
	assert_int_equal(next->fake.sent_count, 1);
	bench_push(next, 1, WIRE_PUSH, 4, 0, false); /* long ago */
	assert_int_equal(next->fake.sent_count, 1);
	bench_complete(next);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		bench_push(next, rank, WIRE_PUSH, 6, 0, false);
	assert_int_equal(next->fake.sent_count, WORLD);
	bench_complete(next);
	bench_close(mirror);
	bench_close(next);
}

/* With a quorum a rank may be many rounds behind. */
static void test_moved_late(void **state)
{
	struct shape shape = {OPTIMIZER_SGD, DTYPE_F32, false, 2};
	struct bench *mirror = open_job(&shape, true), *next = open_job(&shape, false);

	assert_int_equal(tell_array(mirror, 6, 5, 0, values), 0);
	bench_complete(mirror);
	mirror_restore(next->chunk, next->shard, mirror->chunk);
	bench_push(next, 2, WIRE_PUSH, 3, 0, false);
	assert_int_equal(next->fake.sent_count, 1);
	assert_int_equal(next->fake.sent[0].header.round, 3);
	assert_int_equal(next->fake.sent[0].header.hyper, 2);
	assert_memory_equal(next->fake.sent[0].payload, values, sizeof(values));
	bench_complete(next);
	bench_push(next, 0, WIRE_PUSH, 6, 0, false);
	bench_push(next, 1, WIRE_PUSH, 6, 0, false);
	assert_int_equal(next->chunk->round, 7);
	bench_complete(next);
	bench_close(mirror);
	bench_close(next);
}

/* ---- the plan ---- */

static void test_wide_plan(void **state)
{
	const struct chunk_key keys[] = {{100, CHUNK_F16, 0, false, false}, {200, CHUNK_F16, 0, false, false},
		{5000, CHUNK_BF16, 1, false, true}, {7, CHUNK_F32, 1, false, true}};
	struct spec spec = {.world = 4, .nan = NAN_FAIL, .reproducible = true, .lost = LOST_WAIT};
	struct chunk_plan narrow;
	struct err e;

	assert_int_equal(chunking_plan(keys, 4, 4096, &narrow, &e), 0);
	assert_int_equal(chunking_plan(keys, 4, 4096, &spec.plan, &e), 0);
	assert_int_equal(mirror_spec(&spec), 0);
	assert_true(spec.mirror && spec.world == 1 && !spec.reproducible && spec.nan == NAN_PASS);
	assert_int_equal(spec.plan.chunk_count, narrow.chunk_count);
	assert_true(narrow.sparse_bytes > 0 && spec.plan.sparse_bytes == 0);
	for (uint32_t i = 0; i < narrow.chunk_count; i++) {
		const struct chunk_span *chunk = &spec.plan.chunks[i];

		assert_false(chunk->sparse);
		assert_int_equal(
			chunk->bytes / 4, narrow.chunks[i].bytes / chunking_dtype_bytes(narrow.chunks[i].dtype));
		assert_true(chunk->offset % 64 == 0 && chunk->offset + chunk->bytes <= spec.plan.region_bytes);
		assert_true(i == 0 || chunk->offset >= chunk[-1].offset + chunk[-1].bytes);
	}
	assert_int_equal(spec.plan.payload_bytes, 4 * (100 + 200 + 5000 + 7));
	assert_int_equal(spec.plan.key_offset[1], 400);
	assert_int_equal(spec.plan.key_offset[2], 1216);
	assert_int_equal(spec.plan.key_offset[3], spec.plan.chunks[narrow.chunk_count - 1].offset);
	chunking_plan_fini(&spec.plan);
	chunking_plan_fini(&narrow);
	/* Halves that fit the wire, and would not as fp32. */
	assert_int_equal(
		chunking_plan(&(struct chunk_key){2 << 20, CHUNK_F16, 0, false, false}, 1, 2 << 20, &spec.plan, &e), 0);
	assert_int_equal(mirror_spec(&spec), -EMSGSIZE);
	assert_int_equal(spec.plan.chunks[0].dtype, CHUNK_F16);
	chunking_plan_fini(&spec.plan);
}

TEST_PROGRAM(test_mirror)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bits),
		cmocka_unit_test(test_bits_quorum),
		cmocka_unit_test(test_waits_for_hyper),
		cmocka_unit_test(test_each_is_answered),
		cmocka_unit_test(test_image_in_part),
		cmocka_unit_test(test_sum_before_image),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_image_over_parked),
		cmocka_unit_test(test_moved_are_answered),
		cmocka_unit_test(test_moved_late),
		cmocka_unit_test(test_wide_plan),
	};

	return cmocka_run_group_tests_name("mirror", tests, NULL, NULL);
}
