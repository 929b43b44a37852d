/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages in parts, on one core without a network: whatever the order and the sizes of the parts, and whoever else
 * comes whole, the sum is that of a serial oracle. Accumulators and their maps hold rubbish before each round.
 */
#include "phub/chunk.h"
#include "phub/link.h"
#include "phub/parts.h"
#include "tests/unit/chunk_rig.h"
#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECES_MAX = BENCH_WORLD_MAX * (CHUNK_ELEMENTS * 4 / TRANSPORT_PART_ALIGN) };

static void spoil_free(struct bench *b)
{
	struct shard *shard = b->shard;

	for (uint32_t i = 0; i < shard->sum_free; i++) {
		memset(shard->sums[i], 0xff, b->elements * sizeof(float)); /* a NaN in each */
		if (shard->maps)
			memset(shard->maps[i], 0xa5, parts_map_words(b->chunk->bytes) * sizeof(uint64_t));
	}
}

static int part(struct bench *b, uint32_t rank, uint32_t seq, uint32_t offset, uint32_t bytes, bool last)
{
	const struct part p = {.rank = rank, .seq = seq, .offset = offset, .bytes = bytes, .last = last};

	return bench_part(b, WIRE_PUSH, b->chunk->round, &p);
}

static struct bench *open_parts(uint32_t world)
{
	struct bench *b = bench_new();

	bench_open(b, world, 0);
	b->fake.queue.unordered = true;
	bench_fill(b, 1);
	spoil_free(b);
	return b;
}

static void check_result(const struct bench *b)
{
	for (uint32_t i = 0; i < CHUNK_ELEMENTS; i++)
		assert_true(bench_result(b, i) == bench_sum(b, i));
}

/* ---- any order ---- */

/* A worker that sends in parts, or one message that comes at once. */
struct sender {
	uint32_t bytes, seq; /* of its message that have come */
	bool parts, slot;
};

struct order {
	uint64_t random;
	struct sender senders[BENCH_WORLD_MAX];
	struct part pieces[PIECES_MAX];
	unsigned count;
};

static uint32_t order_random(struct order *o, uint32_t below)
{
	o->random = o->random * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(o->random >> 33) % below;
}

static float order_value(uint32_t rank, uint64_t round, uint32_t i)
{
	return (float)((rank * 5 + round * 3 + i * 7) % 15) - 7; /* sums of these are exact in all dtypes */
}

static void order_fill(struct bench *b, uint64_t round)
{
	float values[CHUNK_ELEMENTS];

	for (uint32_t rank = 0; rank < b->spec.world; rank++) {
		for (uint32_t i = 0; i < b->elements; i++)
			values[i] = order_value(rank, round, i);
		convert_from_f32(b->data[rank], b->dtype, values, b->elements);
	}
}

/* Each worker has fragments of its own size, or comes whole; shuffled. */
static void order_make(struct order *o, const struct bench *b)
{
	o->count = 0;
	for (uint32_t rank = 0; rank < b->spec.world; rank++) {
		struct sender *s = &o->senders[rank];
		uint32_t size;

		*s = (struct sender){.parts = order_random(o, 4) > 0, .slot = order_random(o, 2) > 0};
		size = s->parts ? (1 + order_random(o, 24)) * TRANSPORT_PART_ALIGN : b->chunk->bytes;
		for (uint32_t at = 0; at < b->chunk->bytes; at += size)
			o->pieces[o->count++] = (struct part){.rank = rank,
				.offset = at,
				.bytes = b->chunk->bytes - at < size ? b->chunk->bytes - at : size};
	}
	for (unsigned i = o->count; i > 1; i--) {
		unsigned j = order_random(o, i);
		struct part swapped = o->pieces[j];

		o->pieces[j] = o->pieces[i - 1];
		o->pieces[i - 1] = swapped;
	}
}

static void order_push(struct order *o, struct bench *b, struct part *p, uint64_t round)
{
	struct sender *s = &o->senders[p->rank];

	if (p->bytes == b->chunk->bytes) {
		bench_push(b, p->rank, WIRE_PUSH, round, 0, s->slot && b->fake.queue.hold_max > 0);
		return;
	}
	if (s->bytes == 0)
		s->seq = ++b->seq[p->rank];
	s->bytes += p->bytes;
	p->seq = s->seq;
	p->last = s->bytes == b->chunk->bytes;
	assert_int_equal(bench_part(b, WIRE_PUSH, round, p), 0);
	if (p->last)
		assert_int_equal(link_count(&b->shard->links[p->rank], p->seq), 0);
}

static void order_check(const struct bench *b, uint64_t round)
{
	float got[CHUNK_ELEMENTS];

	convert_to_f32(got, b->chunk->result, b->dtype, b->elements);
	for (uint32_t i = 0; i < b->elements; i++) {
		float want = 0;

		for (uint32_t rank = 0; rank < b->spec.world; rank++)
			want += order_value(rank, round, i);
		if (got[i] != want)
			fail_msg("round %u element %u: %g, not %g", (unsigned)round, i, (double)got[i], (double)want);
	}
}

static void check_order(uint64_t seed)
{
	static const uint32_t sizes[] = {CHUNK_ELEMENTS, CHUNK_ELEMENTS - 3, 777, 33, 1};
	static const unsigned holds[] = {0, 2, UINT_MAX};
	static struct order o;
	struct bench *b = bench_new();

	o.random = seed;
	b->dtype = (enum dtype)order_random(&o, DTYPE_COUNT);
	b->elements = sizes[order_random(&o, 5)];
	bench_open(b, 1 + order_random(&o, BENCH_WORLD_MAX), holds[order_random(&o, 3)]);
	b->fake.queue.unordered = true;
	for (uint64_t round = 1; round <= 3; round++) {
		order_fill(b, round);
		order_make(&o, b);
		spoil_free(b);
		for (unsigned i = 0; i < o.count; i++) {
			assert_int_equal(b->fake.sent_count, 0);
			order_push(&o, b, &o.pieces[i], round);
		}
		assert_int_equal(b->fake.sent_count, b->spec.world);
		order_check(b, round);
		bench_complete(b);
	}
	assert_int_equal(b->shard->counters.rounds, 3);
	bench_close(b);
}

static unsigned order_seed;

static void test_any_order_is_the_serial_sum(void **state)
{
	for (order_seed = 1; order_seed <= 600; order_seed++)
		check_order(order_seed);
}

/* Also after a failure. */
static int order_tell(void **state)
{
	printf("seed %u is the last one that was tried\n", order_seed > 600 ? 600 : order_seed);
	return 0;
}

/* ---- who comes whole, before and after parts ---- */

static void test_whole_ones_between_parts(void **state)
{
	struct bench *b = open_parts(4);
	uint32_t bytes = b->chunk->bytes;

	part(b, 0, 1, 640, 640, false);
	bench_push(b, 1, WIRE_PUSH, 1, 0, false); /* to stored and to empty blocks */
	assert_int_equal(b->chunk->stored, bytes);
	part(b, 0, 1, 0, 640, false);
	assert_int_equal(b->chunk->arrived, 1);
	bench_push(b, 2, WIRE_PUSH, 1, 0, false);
	part(b, 3, 1, 64, bytes - 64, false);
	part(b, 0, 1, 1280, bytes - 1280, true);
	assert_int_equal(b->chunk->arrived, 3);
	assert_int_equal(b->fake.sent_count, 0);
	part(b, 3, 1, 0, 64, true);
	assert_int_equal(b->fake.sent_count, 4);
	assert_int_equal(b->shard->counters.added, 4);
	check_result(b);
	bench_close(b);
}

/* The payload that lies where it came is read at the commit, which somebody's last part makes; or the reverse. */
static void test_held_ones_meet_parts_at_the_commit(void **state)
{
	for (unsigned held_last = 0; held_last < 2; held_last++) {
		struct bench *b = open_parts(2);
		uint32_t bytes = b->chunk->bytes;

		b->fake.queue.hold_max = 8;
		part(b, 0, 1, 64, bytes - 64, false);
		if (!held_last)
			assert_int_equal(bench_push(b, 1, WIRE_PUSH, 1, 0, true), 1);
		part(b, 0, 1, 0, 64, true);
		if (held_last)
			assert_int_equal(bench_push(b, 1, WIRE_PUSH, 1, 0, true), 0);
		assert_int_equal(b->fake.sent_count, 2);
		check_result(b);
		bench_close(b);
	}
}

/* ---- first weights ---- */

static void init_part(struct bench *b, uint32_t rank, uint32_t offset, uint32_t bytes, bool last)
{
	const struct part p = {.rank = rank, .seq = 1, .offset = offset, .bytes = bytes, .last = last};

	assert_int_equal(bench_part(b, WIRE_INIT, b->chunk->round, &p), 0);
}

/* No bit changes, not even of a signalling NaN, also when it comes whole and waits in the accumulator. */
static void check_first_weights(enum dtype dtype, bool parts)
{
	static const uint32_t odd[] = {0x80000000, 0x7f800001, 0xff800001, 1, 0x807fffff, 0x7c017c01, 0xffffff81};
	struct bench *b = bench_new();
	uint32_t bytes;

	b->dtype = dtype;
	b->spec.optimizer = OPTIMIZER_SGD;
	bench_open(b, 2, 0);
	bytes = b->chunk->bytes;
	b->fake.queue.unordered = true;
	spoil_free(b);
	bench_fill(b, 0);
	memcpy(b->data[0], odd, sizeof(odd));
	memcpy((uint8_t *)b->data[0] + bytes / 2, odd, sizeof(odd));
	if (parts) {
		init_part(b, 0, 512, bytes - 512, false);
		bench_push(b, 1, WIRE_PULL, 0, 0, false);
		assert_int_equal(b->fake.sent_count, 0);
		init_part(b, 0, 0, 512, true);
	} else {
		bench_push(b, 0, WIRE_INIT, 0, 0, false);
		bench_push(b, 1, WIRE_PULL, 0, 0, false);
	}
	assert_int_equal(b->fake.sent_count, 2);
	assert_memory_equal(b->chunk->result, b->data[0], bytes);
	bench_close(b);
}

static void test_first_weights_are_copied(void **state)
{
	for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
		check_first_weights((enum dtype)dtype, true);
		check_first_weights((enum dtype)dtype, false);
	}
}

static void test_a_step_by_parts(void **state)
{
	struct bench *b = bench_new();
	uint32_t bytes;
	float w;

	w = bench_open_sgd(b, 2);
	bytes = b->chunk->bytes;
	b->fake.queue.unordered = true;
	spoil_free(b);
	bench_fill(b, 1);
	for (uint32_t rank = 0; rank < 2; rank++) {
		part(b, rank, 2, 256, bytes - 256, false);
		part(b, rank, 2, 0, 256, true);
	}
	assert_int_equal(b->fake.sent_count, 2);
	assert_true(bench_result(b, 4) == w + -0.5f * bench_sum(b, 4));
	bench_close(b);
}

static void test_two_roots_by_parts(void **state)
{
	struct bench *b = open_parts(3);
	struct mail mail;

	init_part(b, 0, 0, 64, false);
	init_part(b, 2, 128, 64, false);
	mail = bench_mail(b);
	assert_int_equal(mail.kind, MAIL_FAILED);
	assert_int_equal(mail.value, SHARD_FAIL_KIND);
	assert_int_equal(mail.rank, 2);
	bench_close(b);
}

/* ---- what does not belong to it ---- */

static void test_other_messages_of_the_rank_are_dropped(void **state)
{
	struct bench *b = open_parts(2);
	const uint64_t *dropped = b->shard->counters.dropped;
	uint32_t bytes = b->chunk->bytes;
	struct part late = {.rank = 0, .seq = 9, .bytes = 64};

	part(b, 0, 1, 0, 1024, false);
	bench_push(b, 0, WIRE_PUSH, 1, 0, false); /* whole */
	assert_int_equal(dropped[DROP_DUPLICATE], 1);
	part(b, 0, 7, 1024, 1024, false); /* and in parts, which count as one */
	part(b, 0, 7, 0, 1024, false);
	part(b, 0, 7, 2048, bytes - 2048, true);
	assert_int_equal(dropped[DROP_DUPLICATE], 2);
	assert_int_equal(b->chunk->arrived, 0);
	assert_int_equal(b->chunk->gradients, 1);
	assert_int_equal(b->chunk->arrivals[0].bytes, 1024);
	part(b, 0, 1, 1024, bytes - 1024, true);
	assert_int_equal(b->chunk->arrived, 1);
	part(b, 0, 8, 0, 64, false);
	part(b, 0, 8, 64, bytes - 64, true);
	assert_int_equal(dropped[DROP_DUPLICATE], 3);
	bench_push(b, 1, WIRE_PUSH, 1, 0, false);
	check_result(b);
	bench_complete(b);
	assert_int_equal(bench_part(b, WIRE_PUSH, 1, &late), 0); /* of the round before */
	late.offset = 64;
	late.bytes = bytes - 64;
	late.last = true;
	assert_int_equal(bench_part(b, WIRE_PUSH, 1, &late), 0);
	assert_int_equal(dropped[DROP_DUPLICATE], 4);
	assert_int_equal(b->shard->open_oldest, CHUNK_NONE);
	bench_close(b);
}

/* Parts that no transport gives, and a header that changes from one to the next. */
static void test_parts_that_do_not_agree(void **state)
{
	for (unsigned i = 0; i < 6; i++) {
		struct bench *b = open_parts(2);
		uint32_t bytes = b->chunk->bytes;
		struct part other = {.rank = 0, .seq = 1, .offset = 64, .bytes = 64};
		float before;

		if (i == 0) {
			assert_int_equal(part(b, 0, 1, 0, 64, true), -EPROTO); /* there are others */
			assert_int_equal(b->shard->open_oldest, CHUNK_NONE);
			assert_int_equal(b->chunk->gradients, 0);
			bench_close(b);
			continue;
		}
		assert_int_equal(part(b, 0, 1, 0, 64, false), 0);
		before = b->chunk->sum[0];
		if (i == 1)
			assert_int_equal(part(b, 0, 1, 64, 64, true), -EPROTO); /* more are missing */
		if (i == 2)
			assert_int_equal(part(b, 0, 1, 64, bytes - 64, false), -EPROTO); /* none is */
		if (i == 3) {
			assert_int_equal(part(b, 0, 1, 128, bytes - 128, false), 0);
			assert_int_equal(part(b, 0, 1, 0, 128, true), -EPROTO); /* more than all */
		}
		if (i == 4)
			assert_int_equal(bench_part(b, WIRE_INIT, 1, &other), -EPROTO);
		if (i == 5)
			assert_int_equal(bench_part(b, WIRE_PUSH, 2, &other), -EPROTO);
		assert_true(b->chunk->sum[0] == before);
		assert_int_equal(b->chunk->arrived, 0);
		assert_int_equal(b->chunk->arrivals[0].state, ARRIVAL_PARTIAL);
		bench_close(b);
	}
}

/* ---- NaN ---- */

static void test_nan_in_parts(void **state)
{
	struct bench *b = open_parts(2);
	struct mail mail;

	b->spec.nan = NAN_ZERO;
	b->data[1][0] = NAN;
	b->data[1][35] = -INFINITY;
	b->data[1][1023] = NAN;
	bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	part(b, 1, 1, 128, 1024, false);
	part(b, 1, 1, 1152, b->chunk->bytes - 1152, false);
	part(b, 1, 1, 0, 128, true);
	assert_int_equal(b->shard->counters.nonfinite, 3);
	b->data[1][0] = b->data[1][35] = b->data[1][1023] = 0;
	check_result(b);
	bench_close(b);

	b = open_parts(2);
	b->spec.nan = NAN_FAIL;
	b->data[1][35] = INFINITY;
	part(b, 1, 1, 0, 128, false);
	assert_false(b->shard->failed);
	part(b, 1, 1, 128, 1024, false);
	mail = bench_mail(b);
	assert_int_equal(mail.value, SHARD_FAIL_NAN);
	assert_int_equal(mail.rank, 1);
	assert_int_equal(mail.detail, 35);
	assert_true(b->shard->failed);
	bench_close(b);
}

/* ---- commits that wait ---- */

static void test_a_parked_commit_by_parts(void **state)
{
	struct bench *b = open_parts(2);
	uint32_t bytes = b->chunk->bytes;
	float first;

	bench_push_all(b, 1, 0, false);
	first = bench_result(b, 0);
	bench_fill(b, 2);
	for (uint32_t rank = 0; rank < 2; rank++) {
		part(b, rank, 5, 64, bytes - 64, false);
		assert_false(b->chunk->parked);
		part(b, rank, 5, 0, 64, true);
	}
	assert_true(b->chunk->parked);
	assert_int_equal(b->shard->parked_count, 1);
	assert_true(bench_result(b, 0) == first); /* is still being sent */
	bench_complete(b);
	assert_false(b->chunk->parked);
	assert_int_equal(b->chunk->round, 3);
	check_result(b);
	bench_close(b);
}

/* ---- connections that end ---- */

/* What came of it cannot be taken out of the sum: no commit has it, however the others and its next try come. */
static void test_an_end_between_parts(void **state)
{
	struct bench *b = open_parts(2);
	uint32_t bytes = b->chunk->bytes;

	part(b, 0, 1, 0, 1024, false);
	part(b, 1, 1, 0, 64, false);
	link_close(&b->shard->links[0]);
	part(b, 1, 1, 64, bytes - 64, true);
	assert_int_equal(b->chunk->arrived, 1);
	assert_int_equal(b->fake.sent_count, 0);
	assert_int_equal(link_open(&b->shard->links[0], &b->fake.queue, &b->fake.conns[0], &b->conn_spec), 0);
	assert_int_equal(part(b, 0, 1, 1024, bytes - 1024, true), -EPROTO);
	assert_int_equal(part(b, 0, 2, 0, 64, false), -EPROTO);
	b->seq[0] = 0;
	assert_int_equal(bench_push(b, 0, WIRE_PUSH, 1, 0, false), -EPROTO);
	assert_int_equal(b->chunk->arrived, 1);
	assert_int_equal(b->fake.sent_count, 0);
	assert_true(b->chunk->sum != NULL);
	assert_int_equal(b->shard->sum_free, 0);
	bench_close(b);
}

/* A held payload goes with its connection: the chunk stays open for those of whom parts have come. */
static void test_the_others_parts_stay(void **state)
{
	struct bench *b = open_parts(2);
	uint32_t bytes = b->chunk->bytes;

	b->fake.queue.hold_max = 8;
	part(b, 0, 1, 0, 1024, false);
	assert_int_equal(bench_push(b, 1, WIRE_PUSH, 1, 0, true), 1);
	link_close(&b->shard->links[1]);
	assert_int_equal(b->chunk->arrived, 0);
	assert_int_equal(b->chunk->kind, ROUND_GRADIENT);
	assert_int_equal(b->shard->open_oldest, 0);
	assert_int_equal(link_open(&b->shard->links[1], &b->fake.queue, &b->fake.conns[1], &b->conn_spec), 0);
	b->seq[1] = 0;
	bench_push(b, 1, WIRE_PUSH, 1, 0, true);
	part(b, 0, 1, 1024, bytes - 1024, true);
	assert_int_equal(b->fake.sent_count, 2);
	check_result(b);
	bench_close(b);
}

/* ---- what it costs those who need it not ---- */

static void test_no_map_without_parts(void **state)
{
	static const struct {
		enum spec_sync sync;
		bool reproducible, maps;
	} cases[] = {
		{SYNC_BSP, false, true},
		{SYNC_BSP, true, false},
		{SYNC_SSP, false, false},
		{SYNC_ASYNC, false, false},
	};

	for (unsigned i = 0; i < 4; i++) {
		struct bench *b = bench_new();

		b->spec.sync = cases[i].sync;
		b->spec.reproducible = cases[i].reproducible;
		b->spec.optimizer = cases[i].sync == SYNC_BSP ? OPTIMIZER_NONE : OPTIMIZER_SGD;
		bench_open(b, 2, 0);
		assert_int_equal(spec_parts(&b->spec), cases[i].maps);
		assert_int_equal(b->shard->maps != NULL, cases[i].maps);
		bench_close(b);
	}
}

/* Payloads that come whole write and read none. */
static void test_whole_ones_touch_no_map(void **state)
{
	struct bench *b = open_parts(3);

	b->shard->maps[0] = NULL;
	for (uint64_t round = 1; round <= 3; round++) {
		bench_fill(b, round);
		bench_push_all(b, round, 0, false);
		check_result(b);
		bench_complete(b);
	}
	bench_close(b);
}

TEST_PROGRAM(test_parts)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_any_order_is_the_serial_sum, order_tell),
		cmocka_unit_test(test_whole_ones_between_parts),
		cmocka_unit_test(test_held_ones_meet_parts_at_the_commit),
		cmocka_unit_test(test_first_weights_are_copied),
		cmocka_unit_test(test_a_step_by_parts),
		cmocka_unit_test(test_two_roots_by_parts),
		cmocka_unit_test(test_other_messages_of_the_rank_are_dropped),
		cmocka_unit_test(test_parts_that_do_not_agree),
		cmocka_unit_test(test_nan_in_parts),
		cmocka_unit_test(test_a_parked_commit_by_parts),
		cmocka_unit_test(test_an_end_between_parts),
		cmocka_unit_test(test_the_others_parts_stay),
		cmocka_unit_test(test_no_map_without_parts),
		cmocka_unit_test(test_whole_ones_touch_no_map),
	};

	return cmocka_run_group_tests_name("parts", tests, NULL, NULL);
}
