/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker's end of encryption, over a queue that only remembers: no nonce comes twice, whatever is sent again; the
 * caller's memory is only read; a result that is not good changes nothing that may still be needed.
 */
#include <stddef.h>
#include <stdint.h>

#include <errno.h>
#include <string.h>

#include "client/sealed.h"
#include "tests/unit/cmocka_shim.h"

enum { CHUNKS = 3, BYTES = 256, SENT_MAX = 64, CORE = 2, WINDOW = 2 };

struct rig {
	struct queue queue;
	struct conn conn;
	struct lane_group group;
	struct lane lane;
	struct flight flights[CHUNKS];
	struct chunk_plan plan;
	struct chunk_span chunks[CHUNKS];
	struct sealed sealed;
	uint64_t counter;
	uint8_t src[CHUNKS][BYTES];
	struct wire_header sent[SENT_MAX];
	const uint8_t *at[SENT_MAX];
	uint8_t bytes[SENT_MAX][BYTES + WIRE_TRAILER_BYTES];
	unsigned sent_count, refused;
	bool full;
	struct crypt *opener, *sealer; /* the box's */
};

static const uint8_t session_key[PROOF_KEY] = "of a session", data_key[PROOF_KEY] = "of the results";
static struct rig rig;

static int rig_send(struct queue *q, struct conn *c, const struct wire_header *h, const void *payload, void *cookie)
{
	assert_non_null(cookie);
	if (rig.full) {
		rig.refused++;
		rig.at[SENT_MAX - rig.refused] = payload;
		memcpy(rig.bytes[SENT_MAX - rig.refused], payload, h->length);
		return -EAGAIN;
	}
	rig.sent[rig.sent_count] = *h;
	rig.at[rig.sent_count] = payload;
	memcpy(rig.bytes[rig.sent_count++], payload, h->length);
	return 0;
}

static void rig_drop(struct queue *q, struct conn *c)
{
}

static const struct queue_ops rig_ops = {.send = rig_send, .drop = rig_drop};

static int setup(void **state)
{
	struct rig *r = &rig;
	uint8_t key[PROOF_KEY];
	struct err e;

	memset(r, 0, sizeof(*r));
	r->queue.ops = &rig_ops;
	r->conn.queue = &r->queue;
	r->group = (struct lane_group){
		.queue = &r->queue, .job = 1, .generation = 2, .epoch = 3, .rank = 4, .cookies = true};
	assert_int_equal(lane_init(&r->lane, &r->group, CORE, CHUNKS), 0);
	for (uint32_t i = 0; i < CHUNKS; i++) {
		r->chunks[i] = (struct chunk_span){.offset = i * BYTES, .bytes = BYTES, .key_count = 1};
		r->lane.spans[i] = (struct span){.offset = i * BYTES, .bytes = BYTES};
		r->lane.flights[i] = &r->flights[i];
		memset(r->src[i], (int)i + 1, BYTES);
		r->flights[i] = (struct flight){.lane = &r->lane,
			.local = i,
			.span = &r->chunks[i],
			.type = WIRE_PUSH,
			.payload = r->src[i],
			.round = 1};
	}
	r->plan = (struct chunk_plan){.chunks = r->chunks, .chunk_count = CHUNKS, .region_bytes = CHUNKS * BYTES};
	r->sealed.counter = &r->counter;
	assert_int_equal(sealed_open(&r->sealed, session_key, data_key, &r->plan, &r->lane, 1, WINDOW, &e), 0);
	r->lane.conn = &r->conn;
	assert_int_equal(lane_open(&r->lane, 1000), 0);
	assert_int_equal(crypt_create(true, &r->opener, &e), 0);
	assert_int_equal(crypt_create(false, &r->sealer, &e), 0);
	assert_int_equal(proof_push_key(session_key, key), 0);
	assert_int_equal(crypt_take_key(r->opener, key), 1);
	assert_int_equal(crypt_take_key(r->sealer, data_key), 1);
	return 0;
}

static int teardown(void **state)
{
	lane_drop(&rig.lane);
	lane_fini(&rig.lane);
	sealed_close(&rig.sealed);
	crypt_destroy(rig.opener);
	crypt_destroy(rig.sealer);
	return 0;
}

static void push(uint32_t chunk)
{
	rig.flights[chunk].state = FLIGHT_QUEUED;
	lane_push(&rig.lane, &rig.flights[chunk]);
	lane_pump(&rig.lane, 1);
}

static uint64_t counter_of(unsigned i)
{
	return crypt_counter(rig.bytes[i], BYTES + WIRE_TRAILER_BYTES);
}

/* What was sent i-th opens to this chunk's payload, at the box. */
static void expect_sent(unsigned i, uint32_t chunk)
{
	uint8_t out[BYTES];

	assert_true(i < rig.sent_count);
	assert_int_equal(rig.sent[i].chunk, chunk);
	assert_int_equal(rig.sent[i].length, BYTES + WIRE_TRAILER_BYTES);
	assert_memory_not_equal(rig.bytes[i], rig.src[chunk], BYTES);
	assert_int_equal(crypt_open(rig.opener, &rig.sent[i], CORE, rig.bytes[i], out), 0);
	assert_memory_equal(out, rig.src[chunk], BYTES);
}

static void pushes_are_sealed_in_few_cells(void **state)
{
	for (uint32_t i = 0; i < CHUNKS; i++)
		push(i);
	assert_int_equal(rig.sent_count, WINDOW); /* as many cells */
	expect_sent(0, 0);
	expect_sent(1, 1);
	lane_read(&rig.lane, &rig.flights[1]);
	lane_pump(&rig.lane, 1);
	expect_sent(2, 2);
	assert_ptr_equal(rig.at[2], rig.at[1]);
	assert_memory_not_equal(rig.bytes[2], rig.bytes[1], BYTES);
	for (uint32_t i = 0; i < BYTES; i++)
		assert_int_equal(rig.src[0][i], 1);
}

static void what_is_refused_is_not_sealed_again(void **state)
{
	rig.full = true;
	push(0);
	assert_int_equal(rig.refused, 1);
	rig.full = false;
	rig.lane.full = false;
	lane_pump(&rig.lane, 1);
	assert_int_equal(rig.sent_count, 1);
	expect_sent(0, 0);
	assert_memory_equal(rig.bytes[0], rig.bytes[SENT_MAX - 1], BYTES + WIRE_TRAILER_BYTES);
	assert_int_equal(rig.counter, 1);
}

/* The result came while the push waited to be sent once more: the next round's is another. */
static void what_waits_for_room_ends_with_its_round(void **state)
{
	rig.full = true;
	push(0);
	rig.full = false;
	rig.lane.full = false;
	lane_answered(&rig.lane, &rig.flights[0]);
	memset(rig.src[0], 77, BYTES);
	rig.flights[0].round = 2;
	push(0);
	assert_int_equal(rig.sent[0].round, 2);
	expect_sent(0, 0);
	assert_int_equal(rig.counter, 2);
}

/* Another epoch while the transport still reads the push: it is sealed anew when it does not any more. */
static void another_epoch_is_another_nonce(void **state)
{
	push(0);
	lane_raise(&rig.lane, 4);
	lane_pump(&rig.lane, 1);
	assert_int_equal(rig.sent_count, 1);
	lane_read(&rig.lane, &rig.flights[0]);
	lane_pump(&rig.lane, 1);
	assert_int_equal(rig.sent_count, 2);
	assert_int_equal(rig.sent[1].epoch, 4);
	expect_sent(1, 0);
	assert_true(counter_of(1) > counter_of(0));
	/* Refused, and then of another epoch. */
	rig.full = true;
	push(1);
	rig.full = false;
	rig.lane.full = false;
	lane_raise(&rig.lane, 5);
	lane_read(&rig.lane, &rig.flights[0]);
	lane_pump(&rig.lane, 1);
	for (unsigned i = 2; i < rig.sent_count; i++) {
		expect_sent(i, rig.sent[i].chunk);
		assert_int_equal(rig.sent[i].epoch, 5);
		assert_true(counter_of(i) > counter_of(i - 1) &&
			    counter_of(i) > crypt_counter(rig.bytes[SENT_MAX - 1], BYTES + WIRE_TRAILER_BYTES));
	}
	assert_int_equal(rig.sent_count, 4);
}

/* A connection that is made anew counts on, with all cells. */
static void another_connection_counts_on(void **state)
{
	uint64_t last;

	push(0);
	push(1);
	last = counter_of(1);
	lane_rest(&rig.lane);
	assert_int_equal(rig.lane.cells_free_count, WINDOW);
	rig.lane.conn = &rig.conn;
	assert_int_equal(lane_open(&rig.lane, 1000), 0);
	lane_pump(&rig.lane, 1);
	assert_int_equal(rig.sent_count, 4);
	assert_true(counter_of(2) > last && counter_of(3) > counter_of(2));
	expect_sent(2, 0);
	expect_sent(3, 1);
}

/* The result of chunk 0's round as it lies in our memory. */
static uint8_t *result_of(uint64_t counter, uint8_t fill, struct wire_header *h)
{
	uint8_t plain[BYTES], *at = sealed_place(&rig.sealed, &rig.plan, &rig.chunks[0]);
	struct wire_header bound;

	*h = (struct wire_header){.type = WIRE_RESULT,
		.length = BYTES + WIRE_TRAILER_BYTES,
		.job = 1,
		.generation = 2,
		.epoch = 3,
		.rank = 4,
		.round = 1,
		.count = 1};
	bound = crypt_result(h, false);
	memset(plain, fill, sizeof(plain));
	assert_int_equal(crypt_seal(rig.sealer, &bound, CORE, counter, plain, at), 0);
	return at;
}

static void results_rise_and_are_opened(void **state)
{
	uint8_t into[BYTES], *at;
	struct wire_header h;

	at = result_of(7, 70, &h);
	assert_int_equal(sealed_result(&rig.sealed, &rig.flights[0], &h, at, into), 0);
	assert_int_equal(into[9], 70);
	at = result_of(7, 71, &h);
	assert_int_equal(sealed_result(&rig.sealed, &rig.flights[0], &h, at, into), -EBADMSG);
	at = result_of(8, 72, &h);
	assert_int_equal(sealed_result(&rig.sealed, &rig.flights[0], &h, at, NULL), 0);
	assert_int_equal(at[9], 72);
}

/* The push may have to be sent again: what cannot be trusted does not overwrite it. */
static void a_bad_result_leaves_the_push(void **state)
{
	struct wire_header h;
	uint8_t *at = result_of(7, 70, &h);

	at[100] ^= 1;
	assert_int_equal(sealed_result(&rig.sealed, &rig.flights[0], &h, at, rig.src[0]), -EBADMSG);
	for (uint32_t i = 0; i < BYTES; i++)
		assert_int_equal(rig.src[0][i], 1);
	at = result_of(8, 80, &h);
	assert_int_equal(sealed_result(&rig.sealed, &rig.flights[0], &h, at, rig.src[0]), 0);
	assert_int_equal(rig.src[0][0], 80);
}

TEST_PROGRAM(test_client_sealed)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(pushes_are_sealed_in_few_cells, setup, teardown),
		cmocka_unit_test_setup_teardown(what_is_refused_is_not_sealed_again, setup, teardown),
		cmocka_unit_test_setup_teardown(what_waits_for_room_ends_with_its_round, setup, teardown),
		cmocka_unit_test_setup_teardown(another_epoch_is_another_nonce, setup, teardown),
		cmocka_unit_test_setup_teardown(another_connection_counts_on, setup, teardown),
		cmocka_unit_test_setup_teardown(results_rise_and_are_opened, setup, teardown),
		cmocka_unit_test_setup_teardown(a_bad_result_leaves_the_push, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
