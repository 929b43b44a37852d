/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A core of an encrypted job: what is forged, changed or said again is no push, ends its own connection and nothing
 * else; results are sealed once for all, and no nonce comes twice, whatever happens to connections and membership.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/core_rig.h"

#include <errno.h>
#include <string.h>

enum { SEALED_BYTES = STAND_ELEMENTS * sizeof(float) + WIRE_TRAILER_BYTES, MESSAGES_MAX = 16 };

static uint8_t data_key[PROOF_KEY] = "the key of the results of a job.";
static uint8_t push_keys[STAND_WORLD][PROOF_KEY] = {
	"rank 0's key, 32 bytes as it is.", "rank 1's key, 32 bytes as it is."};

/* The workers' side: what they sealed stays, to be said again. */
static struct crypt *sealers[STAND_WORLD], *opener;
static uint64_t counters[STAND_WORLD];
static uint8_t sealed[MESSAGES_MAX][SEALED_BYTES];
static unsigned sealed_count;

static struct stand *begin(uint32_t chunks, unsigned hold_max, bool lossy)
{
	for (unsigned rank = 0; rank < STAND_WORLD; rank++) {
		assert_int_equal(crypt_create(false, &sealers[rank], NULL), 0);
		assert_int_equal(crypt_take_key(sealers[rank], push_keys[rank]), 1);
		counters[rank] = 0;
	}
	assert_int_equal(crypt_create(true, &opener, NULL), 0);
	assert_int_equal(crypt_take_key(opener, data_key), 1);
	sealed_count = 0;
	return stand_open_encrypted(chunks, hold_max, lossy, data_key, push_keys);
}

static void finish(struct stand *s)
{
	stand_mail(s, (struct mail){.kind = MAIL_DETACH});
	stand_steps(s, 3);
	assert_true(stand_is_home(s));
	stand_close(s);
	for (unsigned rank = 0; rank < STAND_WORLD; rank++)
		crypt_destroy(sealers[rank]);
	crypt_destroy(opener);
}

/* A push as an honest worker sends it; not handled yet. */
static struct event *send_push(struct stand *s, uint32_t rank, uint32_t chunk, uint64_t round, bool slot)
{
	struct event *e = stand_message(s, rank, chunk, round, slot);
	uint8_t *to = sealed[sealed_count++];

	assert_true(sealed_count <= MESSAGES_MAX);
	e->header.epoch = s->shard->epoch;
	e->header.length = SEALED_BYTES;
	assert_int_equal(crypt_seal(sealers[rank], &e->header, 0, ++counters[rank], s->data, to), 0);
	e->payload = to;
	event_whole(e);
	return e;
}

static void push(struct stand *s, uint32_t rank, uint32_t chunk, uint64_t round)
{
	send_push(s, rank, chunk, round, false);
	stand_steps(s, 1);
}

/* What was sent to this rank last. */
static unsigned last_of(const struct stand *s, uint32_t rank)
{
	unsigned i = s->script.sent_count;

	while (i-- > 0)
		if (s->script.sent[i].rank == rank && s->script.sent[i].type == WIRE_RESULT)
			return i;
	fail_msg("rank %u has no result", rank);
	return 0;
}

/* Opens the result that this rank got last: the counter that it was sealed with. */
static uint64_t open_result(const struct stand *s, uint32_t rank, float *out)
{
	unsigned i = last_of(s, rank);
	struct wire_header bound = crypt_result(&s->script.sent[i], false);

	assert_int_equal(bound.length, SEALED_BYTES);
	assert_int_equal(crypt_open(opener, &bound, 0, s->script.payloads[i], (uint8_t *)out), 0);
	return crypt_counter(s->script.payloads[i], SEALED_BYTES);
}

static void rounds_are_summed_and_sealed_once(void **state)
{
	struct stand *s = begin(2, 8, false);
	float out[STAND_ELEMENTS];
	uint64_t last = 0;

	for (uint64_t round = 1; round <= 3; round++) {
		s->data[5] = (float)round;
		send_push(s, 0, 1, round, true);
		stand_steps(s, 1);
		push(s, 1, 1, round);
		assert_ptr_equal(s->script.payloads[last_of(s, 0)], s->script.payloads[last_of(s, 1)]);
		assert_memory_not_equal(s->script.payloads[last_of(s, 0)], s->shard->chunks[1].result, sizeof(out));
		assert_true(open_result(s, 0, out) > last);
		last = open_result(s, 1, out);
		assert_true(out[5] == 2 * (float)round);
	}
	assert_int_equal(s->shard->sealing->counter, 3);
	assert_int_equal(s->shard->counters.dropped[DROP_FORGED], 0);
	assert_int_equal(s->shard->counters.bytes, 6 * sizeof(s->data));
	finish(s);
}

/* The core says of this rank that its connection ended for what came over it. */
static void expect_ended(struct stand *s, uint32_t rank)
{
	struct mail mail = {.kind = MAIL_STOP};

	assert_true(s->script.dropped[rank]);
	assert_false(s->script.dropped[1 - rank]);
	assert_false(s->shard->failed);
	while (mail.kind != MAIL_LINK_CLOSED)
		assert_int_equal(mailbox_receive(s->control, &mail), 0);
	assert_int_equal(mail.rank, rank);
	assert_true(mail.broken);
	assert_int_equal(mail.value, -EBADMSG);
	assert_non_null(strstr(mail.text, "forged or changed on its way"));
	assert_int_equal(s->core->counters.protocol_errors, 1);
}

/* Both do the round all over; rank 1 connects again. */
static void expect_goes_on(struct stand *s, uint32_t chunk, uint64_t round)
{
	float out[STAND_ELEMENTS];

	stand_link(s, 1);
	stand_steps(s, 1);
	s->data[0] = 21;
	push(s, 0, chunk, round);
	push(s, 1, chunk, round);
	open_result(s, 1, out);
	assert_true(out[0] == 42);
}

enum spoil { SPOIL_TAG, SPOIL_BYTE, SPOIL_COUNTER, SPOIL_TYPE, SPOIL_CHUNK, SPOIL_ROUND, SPOIL_HYPER, SPOIL_COUNT };

static void spoil(struct event *e, enum spoil what)
{
	uint8_t *payload = (uint8_t *)(uintptr_t)e->payload, *trailer = payload + SEALED_BYTES - WIRE_TRAILER_BYTES;

	switch (what) {
	case SPOIL_TAG:
		trailer[8] ^= 1;
		break;
	case SPOIL_BYTE:
		payload[7] ^= 0x80;
		break;
	case SPOIL_COUNTER:
		trailer[0] ^= 2;
		break;
	case SPOIL_TYPE:
		e->header.type = WIRE_INIT; /* alone it would end the job: SHARD_FAIL_KIND */
		break;
	case SPOIL_CHUNK:
		e->header.chunk = 0;
		break;
	case SPOIL_ROUND:
		e->header.round = 2;
		break;
	case SPOIL_HYPER:
		e->header.hyper = 9; /* likewise: SHARD_FAIL_HYPER */
		break;
	case SPOIL_COUNT:
		break;
	}
}

static void what_is_changed_ends_its_connection(void **state)
{
	for (enum spoil what = 0; what < SPOIL_COUNT; what++) {
		struct stand *s = begin(2, 8, false);

		push(s, 0, 0, 1);
		spoil(send_push(s, 1, 1, 1, true), what);
		stand_steps(s, 1);
		assert_int_equal(s->shard->counters.dropped[DROP_FORGED], 1);
		expect_ended(s, 1);
		assert_int_equal(s->shard->chunks[1].arrived, 0);
		expect_goes_on(s, 1, 1);
		finish(s);
	}
}

/* Also by a connection of the same session that is made later. */
static void what_was_said_before_is_refused(void **state)
{
	struct stand *s = begin(1, 8, false);
	struct event *e;
	uint8_t copy[SEALED_BYTES];

	e = send_push(s, 1, 0, 1, false);
	memcpy(copy, e->payload, sizeof(copy));
	stand_steps(s, 1);
	assert_int_equal(s->shard->chunks[0].arrived, 1);
	stand_event(s, 1, EVENT_CLOSED);
	stand_steps(s, 1);
	stand_link(s, 1);
	stand_steps(s, 1);
	e = stand_message(s, 1, 0, 1, false);
	e->header.length = SEALED_BYTES;
	e->payload = copy;
	event_whole(e);
	stand_steps(s, 1);
	assert_int_equal(s->shard->counters.dropped[DROP_FORGED], 1);
	assert_true(s->script.dropped[1]);
	stand_link(s, 1);
	stand_steps(s, 1);
	push(s, 1, 0, 1); /* sealed anew: the box has it already, and says nothing against it */
	assert_int_equal(s->shard->counters.dropped[DROP_DUPLICATE], 1);
	assert_int_equal(s->shard->counters.dropped[DROP_FORGED], 1);
	finish(s);
}

/* Another session has another key, and begins to count anew. */
static void a_new_session_counts_anew(void **state)
{
	static const uint8_t again[] = "another session, another key: 32";
	struct stand *s = begin(1, 8, false);
	uint8_t before[PROOF_KEY];

	memcpy(before, push_keys[1], PROOF_KEY);
	counters[1] = 100;
	push(s, 0, 0, 1);
	push(s, 1, 0, 1);
	stand_event(s, 1, EVENT_CLOSED);
	stand_steps(s, 1);
	memcpy(push_keys[1], again, PROOF_KEY);
	assert_int_equal(crypt_take_key(sealers[1], push_keys[1]), 1);
	counters[1] = 0;
	stand_link(s, 1);
	stand_steps(s, 1);
	push(s, 0, 0, 2);
	push(s, 1, 0, 2);
	assert_int_equal(s->shard->counters.dropped[DROP_FORGED], 0);
	assert_int_equal(s->shard->chunks[0].round, 3);
	memcpy(push_keys[1], before, PROOF_KEY);
	finish(s);
}

/* Where messages may be damaged and doubled on their way they are only dropped. */
static void lossy_ones_are_dropped(void **state)
{
	struct stand *s = begin(1, 0, true);
	struct event *e;
	uint8_t copy[SEALED_BYTES];

	spoil(send_push(s, 1, 0, 1, false), SPOIL_BYTE);
	e = send_push(s, 1, 0, 1, false);
	memcpy(copy, e->payload, sizeof(copy));
	e = stand_message(s, 1, 0, 1, false);
	e->header.length = SEALED_BYTES;
	e->payload = copy;
	event_whole(e);
	stand_steps(s, 1);
	assert_int_equal(s->shard->counters.dropped[DROP_FORGED], 2);
	assert_int_equal(s->shard->chunks[0].arrived, 1);
	assert_false(s->script.dropped[1]);
	push(s, 0, 0, 1);
	assert_int_equal(s->shard->chunks[0].round, 2);
	finish(s);
}

static void plain_pushes_are_none(void **state)
{
	struct stand *s = begin(1, 8, false);

	stand_push(s, 0, 0, false);
	assert_true(s->script.dropped[0]);
	assert_int_equal(s->shard->chunks[0].arrived, 0);
	finish(s);
}

/* Results: each is sealed with a counter of its own, also over epochs and connections; a result said again is the same.
 */
static void no_nonce_comes_twice(void **state)
{
	struct stand *s = begin(1, 8, false);
	float out[STAND_ELEMENTS];
	uint64_t last = 0, counter;

	for (uint64_t round = 1; round <= 5; round++) {
		if (round == 3)
			s->shard->epoch++;
		push(s, 0, 0, round);
		push(s, 1, 0, round);
		counter = open_result(s, 0, out);
		assert_true(counter > last);
		last = counter;
		if (round != 4)
			continue;
		/* Rank 1's connection breaks with the result on it: it gets the same bytes again. */
		stand_event(s, 1, EVENT_CLOSED);
		stand_steps(s, 2);
		stand_link(s, 1);
		stand_steps(s, 1);
		s->shard->chunks[0].arrivals[1].answered--; /* of the one before */
		push(s, 1, 0, round);
		assert_int_equal(open_result(s, 1, out), last);
	}
	assert_int_equal(s->shard->sealing->counter, last);
	finish(s);
}

TEST_PROGRAM(test_sealing)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rounds_are_summed_and_sealed_once),
		cmocka_unit_test(what_is_changed_ends_its_connection),
		cmocka_unit_test(what_was_said_before_is_refused),
		cmocka_unit_test(a_new_session_counts_anew),
		cmocka_unit_test(lossy_ones_are_dropped),
		cmocka_unit_test(plain_pushes_are_none),
		cmocka_unit_test(no_nonce_comes_twice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
