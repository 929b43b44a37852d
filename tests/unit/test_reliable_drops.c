/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is dropped, and counted: whoever made it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"
#include "tests/unit/reliable_log.h"

static bool pass_to_box(struct wired *w, const struct wired_packet *p)
{
	return p->to == WIRED_BOX;
}

struct forged {
	struct wire_datagram d;
	struct wire_header h;
	uint32_t bytes; /* of payload */
	bool from_box;
};

/* A datagram that has the right seal, whatever it says. */
static enum reliable_took give(const struct forged *f)
{
	struct seal *seal = wired_seal(&rig, 0, f->from_box);
	uint8_t *bytes = calloc(1, WIRE_DATA_BYTES + f->bytes);
	enum reliable_took took;

	wire_encode_datagram(&f->d, bytes);
	wire_encode(&f->h, bytes + WIRE_DATAGRAM_BYTES);
	memcpy(bytes + WIRE_DATA_BYTES, payload, f->bytes);
	assert_int_equal(seal_make(seal, f->d.number, bytes, WIRE_DATA_BYTES, bytes + WIRE_DATA_BYTES, f->bytes), 0);
	took = wired_input(&rig, f->from_box ? 0 : WIRED_BOX, bytes, WIRE_DATA_BYTES + f->bytes);
	seal_destroy(seal);
	free(bytes);
	return took;
}

static struct forged forged_push(uint32_t chunk, uint32_t seq, uint64_t number)
{
	return (struct forged){.d = {.kind = WIRE_DATA, .conn = wired_name(0, true), .number = number},
		.h = wired_header(WIRE_PUSH, chunk, seq),
		.bytes = rig.options.chunk_bytes[chunk]};
}

static void dropped_as(enum reliable_drop why, const struct forged *f)
{
	uint64_t before = wired_drops(&rig, WIRED_BOX, why);

	assert_int_equal(give(f), RELIABLE_NOTHING);
	assert_int_equal(wired_drops(&rig, WIRED_BOX, why), before + 1);
}

static void what_is_no_datagram_of_ours_is_dropped(void **state)
{
	struct forged f;
	uint8_t bytes[200] = {WIRE_DATA, 99};

	wired_begin(0);
	wired_input(&rig, WIRED_BOX, bytes, 39);
	assert_int_equal(wired_drops(&rig, WIRED_BOX, RELIABLE_RUNT), 1);
	wired_input(&rig, WIRED_BOX, NULL, 0);
	assert_int_equal(wired_drops(&rig, WIRED_BOX, RELIABLE_RUNT), 2);
	wired_input(&rig, WIRED_BOX, bytes, sizeof(bytes));
	assert_int_equal(wired_drops(&rig, WIRED_BOX, RELIABLE_FOREIGN), 1);
	f = forged_push(0, 1, 1);
	f.d.conn++;
	dropped_as(RELIABLE_STRANGER, &f);
	f = forged_push(0, 1, 1);
	f.from_box = true; /* the other direction's seal, at the right place */
	{
		struct seal *seal = wired_seal(&rig, 0, true);
		uint8_t whole[WIRE_DATA_BYTES + 100] = {0};

		wire_encode_datagram(&f.d, whole);
		wire_encode(&f.h, whole + WIRE_DATAGRAM_BYTES);
		assert_int_equal(seal_make(seal, 1, whole, WIRE_DATA_BYTES, whole + WIRE_DATA_BYTES, 100), 0);
		whole[WIRE_DATA_BYTES + 50] ^= 4;
		wired_input(&rig, WIRED_BOX, whole, sizeof(whole));
		seal_destroy(seal);
	}
	assert_int_equal(wired_drops(&rig, WIRED_BOX, RELIABLE_FORGED), 1);
	for (enum reliable_drop why = 0; why < RELIABLE_DROPS; why++)
		assert_true(strlen(reliable_drop_name(why)) > 2);
	assert_int_equal(wired_event_count, 0);
	wired_finish();
}

static void messages_that_cannot_be_are_dropped(void **state)
{
	struct forged f;

	wired_begin(0);
	f = forged_push(0, 1, 1);
	f.h.job++;
	dropped_as(RELIABLE_HEADER, &f);
	f = forged_push(0, 1, 1);
	f.h.rank++;
	dropped_as(RELIABLE_HEADER, &f);
	f = forged_push(0, 1, 1);
	f.h.chunk = 4;
	dropped_as(RELIABLE_HEADER, &f);
	f = forged_push(0, 1, 1);
	f.h.length = LARGE + 1;
	dropped_as(RELIABLE_HEADER, &f);
	f = forged_push(1, 1, 1); /* not as it is cut */
	f.bytes = 64;
	dropped_as(RELIABLE_PLACE, &f);
	f = forged_push(1, 1, 1);
	f.d.offset = 64;
	f.bytes = reliable_fragment(rig.ends[0].conns[0]);
	dropped_as(RELIABLE_PLACE, &f);
	f = forged_push(1, 1, 1);
	f.d.offset = 5056;
	f.bytes = 64;
	dropped_as(RELIABLE_PLACE, &f);
	f = forged_push(0, 1 + RELIABLE_MESSAGES_MAX, 1);
	dropped_as(RELIABLE_WINDOW, &f);
	assert_int_equal(wired_event_count, 0);
	/* None of them harmed anything. */
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 1, 1, &rig), 0);
	wired_run(&rig, 10 * MS);
	assert_true(wired_last(WIRED_BOX, EVENT_MESSAGE)->last);
	assert_int_equal(wired_count(WIRED_BOX, EVENT_CLOSED), 0);
	wired_finish();
}

/* With its seal it is the peer itself that sends what no peer may: it would do so for ever. */
static void what_the_peer_seals_and_may_not_send_ends_it(void **state)
{
	struct wired_options o = {.seed = 1, .seal = SEAL_GMAC};
	struct forged f;

	for (unsigned i = 0; i < 2; i++) {
		wired_begin_with(&o, 4, (const uint32_t[]){100, 5000, LARGE, 5000});
		wired_probe(&rig);
		f = forged_push(1, 1, 1);
		if (i == 0)
			f.h.rank++;
		else
			f.bytes = 64;
		dropped_as(i == 0 ? RELIABLE_HEADER : RELIABLE_PLACE, &f);
		wired_run(&rig, 1 * MS);
		assert_int_equal(wired_count(WIRED_BOX, EVENT_MESSAGE), 0);
		assert_int_equal(wired_count(WIRED_BOX, EVENT_CLOSED), 1);
		assert_int_equal(wired_last(WIRED_BOX, EVENT_CLOSED)->error, -EPROTO);
		wired_finish();
	}
}

static void acks_of_what_was_never_sent_are_dropped(void **state)
{
	struct wire_datagram d = {.kind = WIRE_ACK, .conn = wired_name(0, false), .number = WIRE_NUMBER_OTHER + 100};
	struct wire_ack ack = {.largest = 1000, .below = {UINT64_MAX}, .grant = 1 << 20};
	struct seal *seal;
	uint8_t bytes[WIRE_ACK_BYTES];

	wired_begin(0);
	seal = wired_seal(&rig, 0, true);
	wire_encode_datagram(&d, bytes);
	wire_encode_ack(&ack, bytes + WIRE_DATAGRAM_BYTES);
	assert_int_equal(seal_make(seal, d.number, bytes, sizeof(bytes), NULL, 0), 0);
	wired_input(&rig, 0, bytes, sizeof(bytes));
	assert_int_equal(wired_drops(&rig, 0, RELIABLE_ACK_BAD), 1);
	seal_destroy(seal);
	wired_finish();
}

static void repeats_are_acknowledged_for_their_sender_may_not_know(void **state)
{
	wired_begin(1000);
	rig.pass = pass_to_box;
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 0, 1, &rig), 0);
	wired_run(&rig, 500 * MS);
	assert_int_equal(wired_count(WIRED_BOX, EVENT_MESSAGE), 1);
	assert_int_equal(wired_count(0, EVENT_SENT), 0);
	assert_true(wired_drops(&rig, WIRED_BOX, RELIABLE_REPEAT) > 1);
	rig.pass = NULL;
	wired_run(&rig, 300 * MS);
	assert_int_equal(wired_count(0, EVENT_SENT), 1);
	assert_int_equal(wired_count(WIRED_BOX, EVENT_MESSAGE), 1);
	wired_finish();
}

TEST_PROGRAM(test_reliable_drops)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_no_datagram_of_ours_is_dropped),
		cmocka_unit_test(messages_that_cannot_be_are_dropped),
		cmocka_unit_test(what_the_peer_seals_and_may_not_send_ends_it),
		cmocka_unit_test(acks_of_what_was_never_sent_are_dropped),
		cmocka_unit_test(repeats_are_acknowledged_for_their_sender_may_not_know),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
