/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse chunks: what comes coded, plain or is held makes the same bits, and what is malformed reaches no sum. */
#include "phub/coding.h"

#include "aggregation/sparse.h"
#include "phub/association.h"
#include "phub/commit.h"
#include "phub/link.h"
#include "tests/unit/chunk_rig.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/core_rig.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a job without a network ---- */

static struct bench *sparse_bench(void)
{
	struct bench *b = bench_new();

	b->keys[0].sparse = true;
	return b;
}

/* Few elements are not zero; all ranks have -0 at 5, and element 6 cancels out. */
static void sparse_fill(struct bench *b, unsigned every)
{
	memset(b->data, 0, sizeof(b->data));
	for (uint32_t rank = 0; rank < b->spec.world; rank++) {
		for (uint32_t i = rank; i < CHUNK_ELEMENTS; i += every)
			b->data[rank][i] = (float)(rank + 1) * 0x1p-3f + (float)i * 0x1.1p-7f;
		b->data[rank][5] = -0.0f;
		b->data[rank][6] = rank == 0 ? 7 : rank == 1 ? -7 : 0;
	}
}

/* A push of data[rank], coded. */
static int push_coded(struct bench *b, uint32_t rank, uint64_t round)
{
	static uint8_t code[CHUNK_ELEMENTS * sizeof(float)];
	size_t bytes = sparse_encode(code, b->data[rank], b->dtype, b->elements);
	struct wire_header h = {
		.type = WIRE_PUSH,
		.length = (uint32_t)bytes,
		.rank = rank,
		.round = round,
		.count = 1,
		.seq = ++b->seq[rank],
		.epoch = 1,
		.coded = true,
	};
	struct contribution c = {
		.link = &b->shard->links[rank],
		.header = &h,
		.payload = code,
		.bytes = h.length,
		.last = true,
		.slot = code, /* which is never kept */
		.now_ns = ++b->now,
	};
	struct event e;
	int rc;

	assert_true(bytes > 0);
	e = (struct event){.header = h, .payload = code, .bytes = h.length};
	assert_int_equal(coding_receive(b->chunk, c.link, &e), 0);
	assert_int_equal(link_count(c.link, h.seq), 0);
	rc = chunk_add(b->chunk, &c);
	memset(code, 0xff, sizeof(code)); /* nobody reads it any more */
	return rc;
}

/* The sum of all ranks from 0 on, in the order of ranks, bit by bit. */
static void check_sum(const struct bench *b)
{
	for (uint32_t i = 0; i < CHUNK_ELEMENTS; i++) {
		float sum = 0, got = bench_result(b, i);

		for (uint32_t rank = 0; rank < b->spec.world; rank++)
			sum += b->data[rank][i];
		assert_memory_equal(&got, &sum, sizeof(sum));
	}
}

/* Ways of three pushes to come: coded, plain, or plain and held. */
static void test_all_ways_make_the_same_bits(void **state)
{
	for (unsigned ways = 0; ways < 3 * 3 * 3; ways++) {
		for (unsigned fixed = 0; fixed < 2; fixed++) {
			struct bench *b = sparse_bench();
			unsigned way[3] = {ways % 3, ways / 3 % 3, ways / 9};

			b->spec.reproducible = fixed;
			bench_open(b, 3, 8);
			for (uint64_t round = 1; round <= 2; round++) {
				sparse_fill(b, 50);
				for (uint32_t i = 0; i < 3; i++) {
					uint32_t rank = fixed ? 2 - i : i; /* a fixed order: the last first */

					if (way[rank] == 0)
						assert_int_equal(push_coded(b, rank, round), 0);
					else
						bench_push(b, rank, WIRE_PUSH, round, 0, way[rank] == 2);
				}
				check_sum(b);
				assert_int_equal(b->fake.sent_count, 3);
				bench_complete(b);
			}
			bench_close(b);
		}
	}
}

static void test_lists_of_an_association(void **state)
{
	struct bench *b = sparse_bench();
	struct association *a;
	struct err e;

	assert_int_equal(association_parse("[[0,1],[2,3]]", 4, &a, &e), 0);
	b->spec.reproducible = true;
	b->spec.association = a;
	bench_open(b, 4, 0);
	memset(b->data, 0, sizeof(b->data));
	for (uint32_t rank = 0; rank < 4; rank++) {
		b->data[rank][0] = -0.0f;
		b->data[rank][1] = (float)rank;
	}
	for (uint32_t rank = 0; rank < 4; rank++) {
		if (rank % 2)
			push_coded(b, rank, 1);
		else
			bench_push(b, rank, WIRE_PUSH, 1, 0, false);
	}
	check_sum(b);
	bench_complete(b);
	bench_close(b);
	free(a);
}

/* The only one that had come went with its connection, which leaves nothing. */
static void test_a_held_payload_is_forgotten(void **state)
{
	struct bench *b = sparse_bench();

	bench_open(b, 2, 8);
	sparse_fill(b, 50);
	assert_int_equal(bench_push(b, 0, WIRE_PUSH, 1, 0, true), 1);
	link_close(&b->shard->links[0]);
	assert_null(b->chunk->sum);
	assert_int_equal(b->chunk->kind, ROUND_OPEN);
	assert_int_equal(b->shard->open_oldest, CHUNK_NONE);
	assert_int_equal(b->shard->sum_free, b->shard->sum_count);
	bench_close(b);
}

/* ---- replies ---- */

static void check_reply(const struct bench *b, unsigned k, bool coded)
{
	const struct sent *sent = &b->fake.sent[k];
	static float plain[CHUNK_ELEMENTS];

	assert_int_equal(sent->header.coded, coded);
	if (!coded) {
		assert_int_equal(sent->header.length, b->chunk->bytes);
		assert_ptr_equal(sent->payload, b->chunk->result);
		return;
	}
	assert_true(sent->header.length < b->chunk->bytes);
	assert_int_equal(sparse_check(sent->payload, sent->header.length, b->dtype, b->elements, NULL), 0);
	sparse_decode(plain, sent->payload, b->dtype, b->elements);
	assert_memory_equal(plain, b->chunk->result, b->chunk->bytes);
}

static void test_results_go_coded_where_that_is_shorter(void **state)
{
	struct bench *b = sparse_bench();
	const struct coding_tally *tally;
	uint64_t bytes = 0;

	bench_open(b, 2, 0);
	for (uint64_t round = 1; round <= 6; round++) {
		bool few = round % 2;

		sparse_fill(b, few ? 64 : 1);
		bench_push(b, 0, WIRE_PUSH, round, 0, false);
		bench_push(b, 1, WIRE_PUSH, round, 0, false);
		assert_int_equal(b->fake.sent_count, 2);
		check_reply(b, 0, few);
		check_reply(b, 1, few);
		assert_ptr_equal(b->fake.sent[0].payload, b->fake.sent[1].payload); /* made once */
		bytes += 2 * b->fake.sent[0].header.length;
		bench_complete(b);
	}
	tally = &b->shard->counters.sparse_replies;
	assert_int_equal(tally->coded, 6);
	assert_int_equal(tally->bytes, bytes);
	assert_int_equal(tally->whole, 12 * b->chunk->bytes);
	bench_close(b);
}

/* Nothing would travel. */
static void test_results_that_are_mapped_are_plain(void **state)
{
	struct bench *b = sparse_bench();

	bench_open(b, 2, UINT_MAX);
	sparse_fill(b, 64);
	bench_push_all(b, 1, 0, true);
	check_sum(b);
	check_reply(b, 0, false);
	check_reply(b, 1, false);
	assert_int_equal(b->shard->counters.sparse_replies.whole, 0);
	bench_complete(b);
	bench_close(b);
}

/* ---- NaN and infinity ---- */

static void test_nan_is_zeroed(void **state)
{
	struct bench *b = sparse_bench();

	b->spec.nan = NAN_ZERO;
	bench_open(b, 2, 0);
	sparse_fill(b, 100);
	b->data[1][77] = NAN;
	b->data[1][78] = -INFINITY;
	push_coded(b, 1, 1);
	push_coded(b, 0, 1);
	b->data[1][77] = 0;
	b->data[1][78] = 0;
	check_sum(b);
	assert_int_equal(b->shard->counters.nonfinite, 2);
	bench_complete(b);
	bench_close(b);
}

static void test_nan_fails_and_is_named(void **state)
{
	struct bench *b = sparse_bench();
	struct mail mail;

	b->spec.nan = NAN_FAIL;
	bench_open(b, 2, 0);
	sparse_fill(b, 100);
	b->data[1][777] = NAN;
	push_coded(b, 0, 1);
	push_coded(b, 1, 1);
	mail = bench_mail(b);
	assert_int_equal(mail.kind, MAIL_FAILED);
	assert_int_equal(mail.value, SHARD_FAIL_NAN);
	assert_int_equal(mail.rank, 1);
	assert_int_equal(mail.detail, 777);
	assert_true(b->shard->failed);
	bench_close(b);
}

/* ---- each push a step ---- */

static void test_a_step_takes_a_coded_push(void **state)
{
	struct bench *b = sparse_bench();
	float weight[CHUNK_ELEMENTS];

	b->spec.optimizer = OPTIMIZER_SGD;
	b->spec.sync = SYNC_ASYNC;
	b->spec.nan = NAN_ZERO;
	bench_open(b, 2, 0);
	bench_set_weights(b);
	memcpy(weight, b->data[0], sizeof(weight));
	sparse_fill(b, 64);
	b->data[1][9] = NAN;
	push_coded(b, 1, 1);
	b->data[1][9] = 0;
	assert_int_equal(b->fake.sent_count, 1);
	assert_false(b->fake.sent[0].header.coded); /* weights, its own row */
	for (uint32_t i = 0; i < CHUNK_ELEMENTS; i++)
		assert_true(b->chunk->weight[i] == weight[i] - 0.5f * b->data[1][i]);
	bench_complete(b);
	bench_close(b);
}

/* ---- what no worker may send ---- */

static struct event *coded_message(struct stand *s, uint8_t *code, bool slot)
{
	struct event *e = stand_message(s, 1, 0, 1, slot);

	memset(s->data, 0, sizeof(s->data));
	s->data[3] = 1;
	s->data[40] = -2;
	e->header.length = (uint32_t)sparse_encode(code, s->data, DTYPE_F32, STAND_ELEMENTS);
	e->header.coded = true;
	e->payload = code;
	e->slot = slot ? code : NULL;
	event_whole(e);
	return e;
}

static void finish(struct stand *s)
{
	stand_mail(s, (struct mail){.kind = MAIL_DETACH});
	stand_steps(s, 2);
	assert_true(stand_is_home(s));
	stand_close(s);
}

static void spoil_values(struct wire_header *h, uint8_t *code)
{
	code[0]++;
}

static void spoil_form(struct wire_header *h, uint8_t *code)
{
	code[4] = 2;
}

static void spoil_gap(struct wire_header *h, uint8_t *code)
{
	code[h->length - 1] = 47; /* behind the last element */
}

static void spoil_zero(struct wire_header *h, uint8_t *code)
{
	memset(code + SPARSE_HEAD_BYTES, 0, sizeof(float));
}

static void spoil_short(struct wire_header *h, uint8_t *code)
{
	h->length--;
}

static void spoil_long(struct wire_header *h, uint8_t *code)
{
	code[h->length++] = 0;
}

static void spoil_tiny(struct wire_header *h, uint8_t *code)
{
	h->length = SPARSE_HEAD_BYTES - 1;
}

static void spoil_whole(struct wire_header *h, uint8_t *code)
{
	h->length = STAND_ELEMENTS * sizeof(float);
}

static void spoil_type(struct wire_header *h, uint8_t *code)
{
	h->type = WIRE_INIT;
}

static void test_what_is_malformed_ends_its_connection(void **state)
{
	static const struct {
		void (*spoil)(struct wire_header *h, uint8_t *code);
		int error;
	} cases[] = {
		{spoil_values, -EILSEQ},
		{spoil_form, -EILSEQ},
		{spoil_gap, -EILSEQ},
		{spoil_zero, -EILSEQ},
		{spoil_short, -EILSEQ},
		{spoil_long, -EILSEQ},
		{spoil_tiny, -EPROTO},
		{spoil_whole, -EPROTO},
		{spoil_type, -EPROTO},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct stand *s = stand_open_sparse(2, 8);
		uint8_t code[STAND_ELEMENTS * sizeof(float)] = {0};
		struct event *e = coded_message(s, code, true);
		struct mail mail;

		cases[i].spoil(&e->header, code);
		event_whole(e);
		stand_steps(s, 1);
		assert_true(s->script.dropped[1]);
		assert_false(s->script.dropped[0]);
		assert_int_equal(s->script.released, 1);
		assert_int_equal(s->shard->chunks[0].arrived, 0);
		assert_int_equal(s->shard->counters.sparse_pushes.coded, 0);
		assert_int_equal(mailbox_receive(s->control, &mail), 0);
		assert_int_equal(mail.kind, MAIL_LINK_CLOSED);
		assert_int_equal(mail.rank, 1);
		assert_int_equal(mail.value, cases[i].error);
		assert_int_equal(mail.chunk, cases[i].error == -EILSEQ ? 0 : CHUNK_NONE);
		finish(s);
	}
}

/* Of a dense key; and where it could be changed after it was looked at. */
static void test_where_nothing_may_be_coded(void **state)
{
	for (unsigned i = 0; i < 2; i++) {
		struct stand *s = i == 0 ? stand_open(1, 8, false) : stand_open_sparse(1, UINT_MAX);
		uint8_t code[STAND_ELEMENTS * sizeof(float)];
		struct mail mail;

		coded_message(s, code, false);
		stand_steps(s, 1);
		assert_true(s->script.dropped[1]);
		assert_int_equal(mailbox_receive(s->control, &mail), 0);
		assert_int_equal(mail.value, -EPROTO);
		finish(s);
	}
}

static void test_a_slot_is_given_back_at_once(void **state)
{
	struct stand *s = stand_open_sparse(1, 8);
	const float *result = (const float *)(const void *)s->shard->chunks[0].result;
	const struct coding_tally *tally = &s->shard->counters.sparse_pushes;
	uint8_t code[STAND_ELEMENTS * sizeof(float)];

	coded_message(s, code, true);
	stand_steps(s, 1);
	assert_int_equal(s->script.released, 1);
	assert_int_equal(tally->coded, 1);
	assert_int_equal(tally->bytes, s->shard->counters.bytes);
	assert_true(tally->bytes < tally->whole); /* as it came */
	assert_int_equal(tally->whole, sizeof(s->data));
	stand_push(s, 0, 0, false);
	assert_int_equal(tally->coded, 1);
	assert_int_equal(tally->bytes, s->shard->counters.bytes);
	assert_int_equal(tally->whole, 2 * sizeof(s->data));
	assert_true(result[3] == 2 && result[40] == -4 && result[0] == 0);
	finish(s);
}

TEST_PROGRAM(test_coding)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_ways_make_the_same_bits),
		cmocka_unit_test(test_lists_of_an_association),
		cmocka_unit_test(test_a_held_payload_is_forgotten),
		cmocka_unit_test(test_results_go_coded_where_that_is_shorter),
		cmocka_unit_test(test_results_that_are_mapped_are_plain),
		cmocka_unit_test(test_nan_is_zeroed),
		cmocka_unit_test(test_nan_fails_and_is_named),
		cmocka_unit_test(test_a_step_takes_a_coded_push),
		cmocka_unit_test(test_what_is_malformed_ends_its_connection),
		cmocka_unit_test(test_where_nothing_may_be_coded),
		cmocka_unit_test(test_a_slot_is_given_back_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
