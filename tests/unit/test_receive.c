/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a core does with messages that do not fit: old ones are dropped and counted, impossible ones end their
 * connection and nothing else. None of them gets into a sum.
 */
#include "phub/core.h"
#include "phub/link.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/header_add.h"
#include "tests/unit/core_rig.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

/* Both push chunk 0 of round 1 as they should: it holds that sum and nothing else. */
static void check_sum(struct stand *s)
{
	const float *result;

	s->data[0] = 3;
	stand_push(s, 0, 0, false);
	assert_int_equal(stand_sent(s, 1, WIRE_RESULT, 1), 0);
	stand_push(s, 1, 0, false);
	assert_int_equal(stand_sent(s, 0, WIRE_RESULT, 1), 1);
	assert_int_equal(stand_sent(s, 1, WIRE_RESULT, 1), 1);
	result = (const float *)(const void *)s->shard->chunks[0].result;
	assert_true(result[0] == 6);
}

static void finish(struct stand *s)
{
	stand_mail(s, (struct mail){.kind = MAIL_DETACH});
	stand_steps(s, 2);
	assert_true(stand_is_home(s));
	stand_close(s);
}

static void test_old_messages_are_dropped(void **state)
{
	struct stand *s = stand_open(2, 8, false);
	struct event *e;

	s->data[0] = 1000;
	e = stand_message(s, 0, 0, 1, true);
	e->header.epoch--;
	e = stand_message(s, 1, 0, 1, true);
	e->header.generation--;
	e = stand_message(s, 1, 0, 1, false); /* of another table: its length says nothing */
	e->header.generation--;
	e->header.length += 4;
	event_whole(e);
	stand_steps(s, 1);
	assert_int_equal(s->shard->counters.dropped[DROP_EPOCH], 3);
	assert_int_equal(s->shard->counters.messages, 0);
	assert_int_equal(s->script.released, 2);
	assert_int_equal(s->shard->links[0].held, 0);
	for (uint32_t rank = 0; rank < STAND_WORLD; rank++) {
		assert_false(s->script.dropped[rank]);
		assert_int_equal(s->shard->links[rank].seq_max, s->seq[rank]);
	}
	check_sum(s);
	finish(s);
}

/* ---- what no worker may send ---- */

static void test_impossible_messages_end_their_connection(void **state)
{
	static const struct {
		const char *what;
		struct wire_header add; /* to a push of rank 1: chunk 0, round 1, one gradient, seq 1 */
		int error;
	} cases[] = {
		{"a result", {.type = TYPE_ADD(WIRE_PUSH, WIRE_RESULT)}, -EPROTO},
		{"another job", {.job = 1}, -EPROTO},
		{"another rank", {.rank = -1u}, -EPROTO},
		{"the chunk behind the last one", {.chunk = 2}, -ENOENT},
		{"the last number of a chunk", {.chunk = UINT32_MAX}, -ENOENT},
		{"the next epoch", {.epoch = 1}, -EPROTO},
		{"the next generation", {.generation = 1}, -EPROTO},
		/* The newer of the two decides: no table of before can have an epoch of the future. */
		{"the last generation, the next epoch", {.generation = -1u, .epoch = 1}, -EPROTO},
		{"an element less", {.length = -4u}, -EPROTO},
		{"an element more", {.length = 4}, -EPROTO},
		{"a pull with a payload", {.type = TYPE_ADD(WIRE_PUSH, WIRE_PULL), .count = -1u}, -EPROTO},
		{"no gradient", {.count = -1u}, -EPROTO},
		{"two gradients", {.count = 1}, -EPROTO},
		{"the last seq", {.seq = -1u}, -EPROTO},
		{"the seq after the next", {.seq = 1}, -EPROTO},
		{"the next round", {.round = 1}, -EPROTO},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct stand *s = stand_open(2, 8, false);
		struct event *e;
		struct mail mail;

		print_message("%s\n", cases[i].what);
		e = stand_message(s, 1, 0, 1, true);
		header_add(&e->header, &cases[i].add);
		event_whole(e);
		stand_steps(s, 1);
		assert_true(s->script.dropped[1]);
		assert_false(s->script.dropped[0]);
		assert_int_equal(s->script.released, 1);
		assert_int_equal(s->core->counters.protocol_errors, 1);
		assert_int_equal(s->shard->chunks[0].arrived, 0);
		assert_int_equal(mailbox_receive(s->control, &mail), 0);
		assert_int_equal(mail.kind, MAIL_LINK_CLOSED);
		assert_int_equal(mail.job, 7);
		assert_int_equal(mail.generation, 3);
		assert_int_equal(mail.rank, 1);
		assert_int_equal(mail.value, cases[i].error);
		finish(s);
	}
}

/* ---- messages in parts ---- */

enum { PART = TRANSPORT_PART_ALIGN };

static struct stand *stand_open_parts(uint32_t chunks)
{
	struct stand *s = stand_open(chunks, 0, false);

	assert_int_equal(sizeof(s->data), 3 * PART);
	s->script.queue.unordered = true;
	return s;
}

/* One part of rank 1's message with this seq comes. */
static struct event *stand_part_of(struct stand *s, uint32_t chunk, uint32_t seq, uint32_t part, bool last)
{
	struct event *e = stand_message(s, 1, chunk, 1, false);

	e->header.seq = seq;
	stand_part(e, part * PART, PART, last);
	return e;
}

/* They count as one message, when it has come, in whatever order; their bytes as they come. */
static void test_parts_are_one_message(void **state)
{
	struct stand *s = stand_open_parts(3);
	struct link *link = &s->shard->links[1];
	const float *result = (const float *)(const void *)s->shard->chunks[1].result;

	for (unsigned i = 0; i < STAND_ELEMENTS; i++)
		s->data[i] = (float)i;
	stand_part_of(s, 0, 1, 2, false);
	stand_part_of(s, 1, 2, 1, false);
	stand_part_of(s, 1, 2, 0, false);
	stand_steps(s, 1);
	assert_int_equal(s->shard->counters.messages, 0);
	assert_int_equal(s->shard->counters.bytes, 3 * PART);
	assert_int_equal(link->seq_max, 0);
	stand_part_of(s, 1, 2, 2, true);
	stand_steps(s, 1);
	assert_int_equal(s->shard->counters.messages, 1);
	assert_int_equal(link->pushes, 1);
	assert_int_equal(link->seq_max, 2);
	assert_int_equal(s->shard->chunks[0].arrived, 0);
	assert_int_equal(s->shard->chunks[1].arrived, 1);
	stand_part_of(s, 0, 1, 1, false);
	stand_part_of(s, 0, 1, 0, true);
	stand_steps(s, 1);
	assert_int_equal(s->shard->counters.messages, 2);
	assert_int_equal(s->shard->counters.bytes, 6 * PART);
	assert_int_equal(link->seq_max, 2);
	assert_false(s->script.dropped[1]);
	stand_push(s, 0, 1, false);
	for (unsigned i = 0; i < STAND_ELEMENTS; i++)
		assert_true(result[i] == 2 * (float)i);
	finish(s);
}

/* In any order, but not beyond what it was told that it may. */
static void test_credits_bound_what_has_no_order(void **state)
{
	static const uint32_t seqs[] = {8, 3, 1, 9};
	struct stand *s = stand_open_parts(4);

	for (uint32_t i = 0; i < 4; i++) {
		s->shard->links[1].credit_told = 8;
		assert_false(s->script.dropped[1]);
		stand_message(s, 1, i, 1, false)->header.seq = seqs[i];
		stand_steps(s, 1);
		assert_int_equal(s->script.dropped[1], i == 3);
	}
	assert_int_equal(s->shard->counters.messages, 3);
	assert_int_equal(s->shard->links[1].seq_max, 8);
	assert_int_equal(s->core->counters.protocol_errors, 1);
	finish(s);
}

/* Old ones, and those of a job that has failed. */
static void test_parts_are_dropped_as_one_message(void **state)
{
	struct stand *s = stand_open_parts(1);

	for (uint32_t i = 0; i < 3; i++)
		stand_part_of(s, 0, 1, i, i == 2)->header.epoch--;
	stand_steps(s, 1);
	assert_int_equal(s->shard->counters.dropped[DROP_EPOCH], 1);
	assert_int_equal(s->shard->links[1].seq_max, 1);
	stand_part_of(s, 0, 2, 0, false);
	stand_steps(s, 1);
	s->shard->failed = true;
	stand_part_of(s, 0, 2, 1, false);
	stand_part_of(s, 0, 2, 2, true);
	stand_steps(s, 1);
	assert_int_equal(s->shard->counters.dropped[DROP_FAILED], 1);
	assert_int_equal(s->shard->counters.messages, 0);
	assert_int_equal(s->shard->links[1].seq_max, 2);
	assert_false(s->script.dropped[1]);
	finish(s);
}

static void test_impossible_parts_end_their_connection(void **state)
{
	static const struct {
		uint32_t offset, bytes;
		bool last, slot, ordered_sum;
	} cases[] = {
		{32, PART, false, false, false},              /* begins between blocks */
		{0, PART + 32, false, false, false},          /* ends there, and the message goes on */
		{3 * PART, PART, false, false, false},        /* behind its end */
		{2 * PART, 2 * PART, false, false, false},    /* beyond it */
		{UINT32_MAX - 63, PART, false, false, false}, /* far */
		{PART, UINT32_MAX - 63, false, false, false}, {PART, 0, false, false, false}, /* nothing */
		{PART, 3 * PART, true, false, false}, /* all of it, but not where it begins */
		{0, 3 * PART, false, false, false},   /* and more to come */
		{0, 4 * PART, true, false, false}, {0, PART, true, false, false}, /* the last part comes first */
		{0, PART, false, true, false},                                    /* to be held */
		{0, PART, false, false, true},                                    /* to a job that sums in order */
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct stand *s = stand_open_parts(1);
		struct event *e;

		s->spec.reproducible = cases[i].ordered_sum;
		e = stand_message(s, 1, 0, 1, cases[i].slot);
		stand_part(e, cases[i].offset, cases[i].bytes, cases[i].last);
		e->payload = s->data;
		stand_steps(s, 1);
		assert_true(s->script.dropped[1]);
		assert_int_equal(s->script.released, cases[i].slot);
		assert_int_equal(s->core->counters.protocol_errors, 1);
		assert_null(s->shard->chunks[0].sum);
		assert_int_equal(s->shard->open_oldest, CHUNK_NONE);
		finish(s);
	}
}

/* A worker is lost in mid-message: its parts hold up nobody's way home, also when the job has failed for it. */
static void test_an_end_between_parts_balances(void **state)
{
	struct stand *s = stand_open_parts(2);

	stand_part_of(s, 0, 1, 1, false);
	stand_part_of(s, 1, 2, 0, false);
	stand_push(s, 0, 0, false);
	stand_event(s, 1, EVENT_CLOSED);
	stand_steps(s, 2);
	assert_true(s->script.dropped[1]);
	assert_int_equal(s->shard->sum_free, 0);
	assert_int_equal(s->shard->chunks[0].arrived, 1);
	assert_int_equal(stand_sent(s, 0, WIRE_RESULT, 1), 0);
	finish(s);
}

/* More came of the connection in the same batch: it is gone, and what the others sent is not. */
static void test_nothing_is_taken_behind_the_end(void **state)
{
	struct stand *s = stand_open(3, 0, false);

	stand_message(s, 1, 2, 1, false);
	stand_message(s, 1, 0, 1, false)->header.type = WIRE_RESULT;
	stand_message(s, 0, 1, 1, false);
	stand_message(s, 1, 1, 1, false);
	stand_event(s, 1, EVENT_CLOSED);
	stand_steps(s, 1);
	assert_int_equal(s->core->counters.protocol_errors, 1);
	assert_int_equal(s->shard->chunks[2].arrived, 1);
	assert_int_equal(s->shard->chunks[0].arrived, 0);
	assert_int_equal(s->shard->chunks[1].arrived, 1);
	assert_int_equal(s->shard->counters.messages, 2);
	finish(s);
}

/* What the transport says of the end, and of whom, goes to control in words, later too when its mailbox is full. */
static void test_an_end_has_words(void **state)
{
	for (unsigned full = 0; full < 2; full++) {
		struct stand *s = stand_open(1, 0, false);
		struct mail mail = {.kind = MAIL_STALLED};

		while (full && mailbox_send(s->control, &mail) == 0)
			;
		stand_event(s, 1, EVENT_CLOSED);
		s->script.events[0].error = -ETIMEDOUT;
		s->script.events[0].why = "nobody answers";
		snprintf(s->script.events[0].conn->peer, sizeof(s->script.events[0].conn->peer), "a device");
		stand_steps(s, 1);
		while (mailbox_receive(s->control, &mail) == 0 && mail.kind == MAIL_STALLED)
			;
		stand_steps(s, 1);
		assert_true(mail.kind == MAIL_LINK_CLOSED || mailbox_receive(s->control, &mail) == 0);
		assert_int_equal(mail.value, -ETIMEDOUT);
		assert_string_equal(mail.text, "nobody answers (a device)");
		finish(s);
	}
}

/* Control's mailbox is full when the connection ends: it hears of it later. */
static void test_an_end_is_told_later(void **state)
{
	struct stand *s = stand_open(1, 0, false);
	struct mail mail = {.kind = MAIL_STALLED};
	unsigned filled = 0, ends = 0;

	while (mailbox_send(s->control, &mail) == 0)
		filled++;
	stand_message(s, 1, 0, 1, false)->header.type = WIRE_RESULT;
	stand_steps(s, 3);
	assert_int_equal(s->core->untold, 1);
	for (unsigned i = 0; i < filled; i++)
		assert_int_equal(mailbox_receive(s->control, &mail), 0);
	stand_steps(s, 3);
	assert_int_equal(s->core->untold, 0);
	while (mailbox_receive(s->control, &mail) == 0) {
		assert_int_equal(mail.kind, MAIL_LINK_CLOSED);
		assert_int_equal(mail.rank, 1);
		assert_int_equal(mail.value, -EPROTO);
		ends++;
	}
	assert_int_equal(ends, 1);
	finish(s);
}

/* The job goes home before control could be told of an end: the core forgets that it had to. */
static void test_an_untold_end_goes_with_its_job(void **state)
{
	struct stand *s = stand_open(1, 0, false);
	struct mail mail = {.kind = MAIL_STALLED};
	unsigned filled = 0;

	while (mailbox_send(s->control, &mail) == 0)
		filled++;
	stand_message(s, 1, 0, 1, false)->header.type = WIRE_RESULT;
	stand_mail(s, (struct mail){.kind = MAIL_DETACH});
	stand_steps(s, 3);
	assert_null(s->core->shards);
	assert_int_equal(s->core->untold, 0);
	assert_true(s->core->owes_mail);
	for (unsigned i = 0; i < filled; i++)
		assert_int_equal(mailbox_receive(s->control, &mail), 0);
	stand_steps(s, 1);
	assert_true(stand_is_home(s));
	stand_close(s);
}

TEST_PROGRAM(test_receive)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_old_messages_are_dropped),
		cmocka_unit_test(test_impossible_messages_end_their_connection),
		cmocka_unit_test(test_parts_are_one_message),
		cmocka_unit_test(test_credits_bound_what_has_no_order),
		cmocka_unit_test(test_parts_are_dropped_as_one_message),
		cmocka_unit_test(test_impossible_parts_end_their_connection),
		cmocka_unit_test(test_an_end_between_parts_balances),
		cmocka_unit_test(test_nothing_is_taken_behind_the_end),
		cmocka_unit_test(test_an_end_has_words),
		cmocka_unit_test(test_an_end_is_told_later),
		cmocka_unit_test(test_an_untold_end_goes_with_its_job),
	};

	return cmocka_run_group_tests_name("receive", tests, NULL, NULL);
}
