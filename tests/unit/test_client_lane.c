/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One lane over a queue that only remembers: credits, priorities, and repetition where messages get lost.
 */
#include <stddef.h>
#include <stdint.h>

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "client/lane.h"
#include "tests/unit/cmocka_shim.h"

enum { SLOTS = 4, CHUNKS = 64, SENT_MAX = 1024 };
#define MS 1000000ull

struct rig {
	struct queue queue;
	struct conn conn;
	struct lane_group group;
	struct lane lane;
	struct flight flights[CHUNKS];
	struct wire_header sent[SENT_MAX];
	const uint8_t *payloads[SENT_MAX];
	uint8_t push[CHUNKS * 100], slots[SLOTS * 128], src[CHUNKS * 100];
	unsigned sent_count;
	unsigned room;
	int refuse;
	unsigned drops;
};

static int rig_send(struct queue *q, struct conn *c, const struct wire_header *h, const void *payload, void *cookie)
{
	struct rig *r = (struct rig *)q;

	if (r->refuse)
		return r->refuse;
	if (r->room == 0)
		return -EAGAIN;
	r->room--;
	r->payloads[r->sent_count] = payload;
	r->sent[r->sent_count++] = *h;
	return 0;
}

static void rig_drop(struct queue *q, struct conn *c)
{
	((struct rig *)q)->drops++;
}

static const struct queue_ops rig_ops = {.send = rig_send, .drop = rig_drop};

static void rig_open(struct rig *r, uint32_t window, bool lossy)
{
	memset(r, 0, sizeof(*r));
	r->queue.ops = &rig_ops;
	r->queue.lossy = lossy;
	r->conn.queue = &r->queue;
	r->room = UINT_MAX;
	r->group = (struct lane_group){
		.queue = &r->queue, .job = 1, .generation = 2, .epoch = 3, .rank = 4, .lossy = lossy};
	assert_int_equal(lane_init(&r->lane, &r->group, 5, CHUNKS), 0);
	r->lane.conn = &r->conn;
	for (uint32_t i = 0; i < CHUNKS; i++) {
		r->lane.flights[i] = &r->flights[i];
		r->lane.spans[i].bytes = 100;
		r->flights[i].lane = &r->lane;
		r->flights[i].local = i;
		r->flights[i].payload = (const uint8_t *)"x";
	}
	assert_int_equal(lane_open(&r->lane, window), 0);
}

static void rig_close(struct rig *r)
{
	lane_drop(&r->lane);
	assert_int_equal(r->drops, 1);
	lane_fini(&r->lane);
}

static void rig_push(struct rig *r, uint32_t chunk, uint16_t priority, uint64_t now)
{
	struct flight *f = &r->flights[chunk];

	f->state = FLIGHT_QUEUED;
	f->type = WIRE_PUSH;
	f->priority = priority;
	lane_push(&r->lane, f);
	lane_pump(&r->lane, now);
}

static void rig_answer(struct rig *r, uint32_t chunk)
{
	lane_answered(&r->lane, &r->flights[chunk]);
	r->flights[chunk].state = FLIGHT_IDLE;
	r->flights[chunk].round++;
}

/* A lane with slots: every payload is copied when it is sent. */
static void rig_open_slots(struct rig *r)
{
	rig_open(r, 1000, false);
	lane_drop(&r->lane);
	r->drops = 0;
	r->conn.slots = r->slots;
	r->conn.slot_count = SLOTS;
	r->conn.slot_bytes = 128;
	r->lane.conn = &r->conn;
	r->lane.push = r->push;
	for (unsigned i = 0; i < sizeof(r->src); i++)
		r->src[i] = (uint8_t)(i * 7 + i / 100);
	for (uint32_t i = 0; i < CHUNKS; i++)
		r->lane.spans[i].offset = i * 100;
	assert_int_equal(lane_open(&r->lane, 1000), 0);
	assert_true(lane_stages(&r->lane));
}

static void rig_push_src(struct rig *r, uint32_t chunk, uint64_t now)
{
	r->flights[chunk].payload = NULL;
	r->flights[chunk].src = r->src + chunk * 100;
	rig_push(r, chunk, 0, now);
}

/* The i-th push that was sent lies in a slot (true) or at its chunk's own place, and is what it should be. */
static bool rig_in_slot(const struct rig *r, unsigned i)
{
	const uint8_t *at = r->payloads[i];
	uint32_t chunk = r->sent[i].chunk;

	assert_memory_equal(at, r->src + chunk * 100, 100);
	if (at == r->push + chunk * 100)
		return false;
	assert_true(at >= r->slots && at < r->slots + sizeof(r->slots) && (at - r->slots) % 128 == 0);
	return true;
}

static void slots_are_used_again_when_answered(void **state)
{
	struct rig r;

	rig_open_slots(&r);
	for (uint32_t i = 0; i < 20; i++)
		rig_push_src(&r, i, 0);
	assert_int_equal(r.sent_count, SLOTS);
	for (uint32_t i = 0; i < 20; i++) {
		assert_true(rig_in_slot(&r, i));
		assert_true(i == 0 || r.sent[i].chunk == i);
		rig_answer(&r, r.sent[i].chunk);
		lane_pump(&r.lane, 1);
		assert_int_equal(r.sent_count, i + 1 + SLOTS < 20 ? i + 1 + SLOTS : 20);
	}
	assert_int_equal(r.group.copied_bytes, 2000);
	assert_int_equal(r.lane.slots_free_count, SLOTS);
	rig_close(&r);
}

/* What was placed before waits for no slot of its own, but keeps its turn. */
static void payloads_in_place_need_no_slot(void **state)
{
	struct rig r;

	rig_open_slots(&r);
	for (uint32_t i = 0; i < SLOTS; i++)
		rig_push_src(&r, i, 0);
	rig_push(&r, 10, 0, 0);
	rig_push(&r, 11, 0, 0);
	assert_int_equal(r.sent_count, SLOTS + 2);
	rig_push_src(&r, 12, 0);
	rig_push(&r, 13, 0, 0);
	assert_int_equal(r.sent_count, SLOTS + 2);
	rig_answer(&r, 10); /* frees no slot */
	lane_pump(&r.lane, 0);
	assert_int_equal(r.sent_count, SLOTS + 2);
	rig_answer(&r, 0);
	lane_pump(&r.lane, 0);
	assert_int_equal(r.sent_count, SLOTS + 4);
	rig_close(&r);
}

/* Nothing comes: twice as many, and again, at the chunks' own places. Each answer lets another one out. */
static void a_stuck_lane_takes_more_than_its_slots(void **state)
{
	struct rig r;
	uint64_t due;

	rig_open_slots(&r);
	for (uint32_t i = 0; i < 40; i++)
		rig_push_src(&r, i, 10 * MS);
	assert_int_equal(r.sent_count, SLOTS);
	due = lane_due(&r.lane);
	assert_true(due > 10 * MS && due <= 20 * MS);
	lane_pump(&r.lane, due - 1);
	assert_int_equal(r.sent_count, SLOTS);
	lane_pump(&r.lane, due);
	assert_int_equal(r.sent_count, 2 * SLOTS);
	assert_true(lane_due(&r.lane) <= due); /* may be asked again */
	lane_pump(&r.lane, due);
	assert_int_equal(r.sent_count, 2 * SLOTS);
	due = lane_due(&r.lane);
	while (lane_pump(&r.lane, due) > 0)
		;
	assert_int_equal(r.sent_count, 4 * SLOTS);
	for (unsigned i = SLOTS; i < r.sent_count; i++)
		assert_false(rig_in_slot(&r, i));
	/* The last ones first, as from workers that push in the opposite order. */
	for (uint32_t i = 4 * SLOTS; i-- > SLOTS;) {
		unsigned sent = r.sent_count;

		rig_answer(&r, i);
		lane_pump(&r.lane, due);
		assert_int_equal(r.sent_count, sent + 1);
		assert_false(rig_in_slot(&r, sent));
	}
	rig_close(&r);
}

static void an_idle_lane_has_its_slots_again(void **state)
{
	struct rig r;
	uint64_t due;

	rig_open_slots(&r);
	for (uint32_t i = 0; i < 2 * SLOTS; i++)
		rig_push_src(&r, i, MS);
	due = lane_due(&r.lane);
	lane_pump(&r.lane, due);
	assert_int_equal(r.sent_count, 2 * SLOTS);
	for (uint32_t i = 0; i < 2 * SLOTS; i++)
		rig_answer(&r, i);
	assert_true(lane_due(&r.lane) == UINT64_MAX);
	for (uint32_t i = 0; i < 2 * SLOTS; i++)
		rig_push_src(&r, i, due);
	assert_int_equal(r.sent_count, 3 * SLOTS);
	for (unsigned i = 2 * SLOTS; i < 3 * SLOTS; i++)
		assert_true(rig_in_slot(&r, i));
	rig_close(&r);
}

static void headers(void **state)
{
	struct rig r;

	rig_open(&r, 4, false);
	r.flights[9].round = 77;
	r.flights[9].hyper = 6;
	rig_push(&r, 9, 12, 0);
	assert_int_equal(r.sent_count, 1);
	assert_int_equal(r.sent[0].type, WIRE_PUSH);
	assert_int_equal(r.sent[0].length, 100);
	assert_int_equal(r.sent[0].job, 1);
	assert_int_equal(r.sent[0].generation, 2);
	assert_int_equal(r.sent[0].epoch, 3);
	assert_int_equal(r.sent[0].rank, 4);
	assert_int_equal(r.sent[0].chunk, 9);
	assert_int_equal(r.sent[0].round, 77);
	assert_int_equal(r.sent[0].hyper, 6);
	assert_int_equal(r.sent[0].count, 1);
	assert_int_equal(r.sent[0].seq, 1);
	assert_int_equal(r.sent[0].priority, 12);
	rig_close(&r);
}

static void credits_bound_what_is_sent(void **state)
{
	struct rig r;

	rig_open(&r, 4, false);
	for (uint32_t i = 0; i < 10; i++)
		rig_push(&r, i, 0, 0);
	assert_int_equal(r.sent_count, 4);
	lane_grant(&r.lane, 3); /* older than what we know */
	lane_pump(&r.lane, 0);
	assert_int_equal(r.sent_count, 4);
	lane_grant(&r.lane, 6);
	lane_grant(&r.lane, 6);
	lane_pump(&r.lane, 1000 * MS);
	assert_int_equal(r.sent_count, 6);
	lane_grant(&r.lane, 100);
	lane_pump(&r.lane, 1000 * MS);
	assert_int_equal(r.sent_count, 10);
	for (uint32_t i = 0; i < 10; i++) {
		assert_int_equal(r.sent[i].chunk, i);
		assert_int_equal(r.sent[i].seq, i + 1);
	}
	assert_true(lane_due(&r.lane) == UINT64_MAX);
	rig_close(&r);
}

static void credits_wrap(void **state)
{
	struct rig r;

	rig_open(&r, 0, false);
	r.lane.seq = UINT32_MAX - 1;
	r.lane.credit = UINT32_MAX - 1;
	for (uint32_t i = 0; i < 4; i++)
		rig_push(&r, i, 0, 0);
	assert_int_equal(r.sent_count, 0);
	lane_grant(&r.lane, 1);
	lane_pump(&r.lane, 0);
	assert_int_equal(r.sent_count, 3);
	assert_int_equal(r.sent[0].seq, UINT32_MAX);
	assert_int_equal(r.sent[2].seq, 1);
	rig_close(&r);
}

static void urgent_ones_overtake(void **state)
{
	struct rig r;

	rig_open(&r, 1, false);
	rig_push(&r, 0, 0, 0);
	for (uint32_t i = 1; i < CHUNKS; i++)
		rig_push(&r, i, (uint16_t)(i * 37 % 11), 0);
	lane_grant(&r.lane, 1000);
	lane_pump(&r.lane, 0);
	assert_int_equal(r.sent_count, CHUNKS);
	for (uint32_t i = 2; i < CHUNKS; i++) {
		assert_true(r.sent[i - 1].priority <= r.sent[i].priority);
		if (r.sent[i - 1].priority == r.sent[i].priority)
			assert_true(r.sent[i - 1].chunk < r.sent[i].chunk);
	}
	rig_close(&r);
}

static void a_full_transport_is_waited_for(void **state)
{
	struct rig r;

	rig_open(&r, 100, false);
	r.room = 2;
	for (uint32_t i = 0; i < 4; i++)
		rig_push(&r, i, 0, 0);
	assert_int_equal(r.sent_count, 2);
	assert_true(r.lane.full);
	r.room = 10;
	lane_pump(&r.lane, 0);
	assert_int_equal(r.sent_count, 2);
	r.lane.full = false; /* EVENT_WRITABLE */
	lane_pump(&r.lane, 0);
	assert_int_equal(r.sent_count, 4);
	rig_close(&r);
}

static void a_refusal_loses_the_lane(void **state)
{
	struct rig r;

	rig_open(&r, 100, false);
	r.refuse = -EPIPE;
	rig_push(&r, 0, 0, 0);
	assert_int_equal(r.lane.state, LANE_UP); /* EVENT_CLOSED is to come */
	r.lane.full = false;
	r.refuse = -EINVAL;
	lane_pump(&r.lane, 0);
	assert_int_equal(r.lane.state, LANE_LOST);
	assert_int_equal(r.lane.error, -EINVAL);
	rig_close(&r);
}

/* By the next connection goes again what was not answered, the most urgent first, and what had not gone yet. */
static void a_lane_rests_between_connections(void **state)
{
	struct rig r;

	rig_open(&r, 3, false);
	for (uint32_t i = 0; i < 5; i++)
		rig_push(&r, i, (uint16_t)(9 - i), 0);
	assert_int_equal(r.sent_count, 3); /* 0, 1 and 2: its credit */
	r.flights[2].sends = 1;
	rig_answer(&r, 0);
	lane_rest(&r.lane);
	assert_int_equal(r.drops, 1);
	assert_int_equal(r.lane.state, LANE_BROKEN);
	assert_int_equal(r.flights[2].sends, 0);
	assert_int_equal(lane_pump(&r.lane, 0), 0);
	assert_int_equal(r.group.resent, 0);

	r.lane.conn = &r.conn;
	r.drops = 0;
	assert_int_equal(lane_open(&r.lane, 3), 0);
	assert_int_equal(lane_pump(&r.lane, 0), 3);
	assert_int_equal(r.group.resent, 1); /* 2; 3 and 4 had not gone, 1 has no credit yet */
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(r.sent[3 + i].chunk, 4 - i);
		assert_int_equal(r.sent[3 + i].seq, 1 + i);
	}
	lane_grant(&r.lane, 4);
	assert_int_equal(lane_pump(&r.lane, 0), 1);
	assert_int_equal(r.sent[6].chunk, 1);
	assert_int_equal(r.group.pushes, 5);
	rig_close(&r);
}

static void lost_pushes_are_repeated(void **state)
{
	struct rig r;
	uint64_t now = 1, due;

	rig_open(&r, 100, true);
	rig_push(&r, 0, 0, now);
	rig_push(&r, 1, 0, now);
	due = lane_due(&r.lane);
	assert_true(due == now + 20 * MS);
	lane_tick(&r.lane, due - 1);
	lane_pump(&r.lane, due - 1);
	assert_int_equal(r.sent_count, 2);
	rig_answer(&r, 0);
	lane_tick(&r.lane, due);
	lane_pump(&r.lane, due);
	assert_int_equal(r.sent_count, 3);
	assert_int_equal(r.sent[2].chunk, 1);
	assert_int_equal(r.sent[2].seq, 3);
	assert_int_equal(r.group.resent, 1);
	/* Twice as patient each time, up to a bound. */
	for (unsigned i = 1; i < 9; i++) {
		uint64_t wait = 20 * MS << (i < 5 ? i : 5);

		now = due;
		due = lane_due(&r.lane);
		assert_true(due == now + wait);
		lane_tick(&r.lane, due);
		lane_pump(&r.lane, due);
		assert_int_equal(r.sent_count, 3 + i);
	}
	rig_answer(&r, 1);
	lane_tick(&r.lane, due + 100000 * MS);
	assert_true(lane_due(&r.lane) == UINT64_MAX);
	rig_close(&r);
}

static void no_repetition_while_the_payload_is_read(void **state)
{
	struct rig r;

	rig_open(&r, 100, true);
	rig_push(&r, 0, 0, 1);
	r.flights[0].sends = 1;
	lane_tick(&r.lane, 21 * MS);
	lane_pump(&r.lane, 21 * MS);
	assert_int_equal(r.sent_count, 1);
	r.flights[0].sends = 0;
	lane_tick(&r.lane, 41 * MS);
	lane_pump(&r.lane, 41 * MS);
	assert_int_equal(r.sent_count, 2);
	rig_close(&r);
}

static void an_answer_makes_a_queued_repetition_pointless(void **state)
{
	struct rig r;

	rig_open(&r, 1, true);
	rig_push(&r, 0, 0, 1);
	lane_tick(&r.lane, 30 * MS); /* queued again, but there is no credit */
	lane_pump(&r.lane, 30 * MS);
	assert_int_equal(r.sent_count, 1);
	rig_answer(&r, 0);
	lane_grant(&r.lane, 10);
	lane_pump(&r.lane, 31 * MS);
	assert_int_equal(r.sent_count, 1);
	assert_int_equal(r.lane.heap_count, 0);
	/* One that is still queued when the next round begins becomes that round's. */
	rig_push(&r, 0, 0, 32 * MS);
	assert_int_equal(r.sent_count, 2);
	assert_int_equal(r.sent[1].round, 1);
	rig_close(&r);
}

/* All grants were lost: one message beyond the credit asks for the next. */
static void starved_lanes_probe(void **state)
{
	struct rig r;
	uint64_t due;

	rig_open(&r, 1, true);
	rig_push(&r, 0, 0, 1);
	rig_answer(&r, 0);
	rig_push(&r, 1, 0, 2);
	rig_push(&r, 2, 0, 2);
	assert_int_equal(r.sent_count, 1);
	due = 2 + 20 * MS;
	assert_true(lane_due(&r.lane) <= due);
	lane_pump(&r.lane, due - 1);
	assert_int_equal(r.sent_count, 1);
	lane_pump(&r.lane, due);
	assert_int_equal(r.sent_count, 2);
	lane_pump(&r.lane, due + 39 * MS);
	assert_int_equal(r.sent_count, 2);
	lane_pump(&r.lane, due + 40 * MS);
	assert_int_equal(r.sent_count, 3);
	rig_close(&r);
}

/* A grant ends the starving: the next one is as long before it probes, and as patient, as the first. */
static void a_grant_ends_the_starving(void **state)
{
	struct rig r;
	uint64_t now = 2;

	rig_open(&r, 1, true);
	rig_push(&r, 0, 0, 1);
	rig_answer(&r, 0);
	rig_push(&r, 1, 0, now);
	now += 20 * MS;
	lane_pump(&r.lane, now);
	assert_int_equal(r.sent_count, 2);
	rig_answer(&r, 1);
	rig_push(&r, 2, 0, now);
	assert_int_equal(r.sent_count, 2);
	lane_grant(&r.lane, 3);
	lane_pump(&r.lane, now);
	assert_int_equal(r.sent_count, 3);
	rig_answer(&r, 2);
	now += 1000 * MS;
	rig_push(&r, 3, 0, now);
	assert_int_equal(r.sent_count, 3);
	lane_pump(&r.lane, now + 20 * MS - 1);
	assert_int_equal(r.sent_count, 3);
	lane_pump(&r.lane, now + 20 * MS);
	assert_int_equal(r.sent_count, 4);
	rig_close(&r);
}

/* A round that needed many tries leaves the next one as impatient as any. */
static void patience_begins_anew(void **state)
{
	struct rig r;
	uint64_t due = 1;

	rig_open(&r, 100, true);
	rig_push(&r, 0, 0, due);
	for (unsigned i = 0; i < 3; i++) {
		due = lane_due(&r.lane);
		lane_tick(&r.lane, due);
		lane_pump(&r.lane, due);
	}
	assert_int_equal(r.sent_count, 4);
	rig_answer(&r, 0);
	lane_tick(&r.lane, due + 10000 * MS);
	assert_true(lane_due(&r.lane) == UINT64_MAX);
	rig_push(&r, 0, 0, due);
	assert_true(lane_due(&r.lane) == due + 20 * MS);
	rig_close(&r);
}

TEST_PROGRAM(test_client_lane)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slots_are_used_again_when_answered),
		cmocka_unit_test(payloads_in_place_need_no_slot),
		cmocka_unit_test(a_stuck_lane_takes_more_than_its_slots),
		cmocka_unit_test(an_idle_lane_has_its_slots_again),
		cmocka_unit_test(headers),
		cmocka_unit_test(credits_bound_what_is_sent),
		cmocka_unit_test(credits_wrap),
		cmocka_unit_test(urgent_ones_overtake),
		cmocka_unit_test(a_full_transport_is_waited_for),
		cmocka_unit_test(a_refusal_loses_the_lane),
		cmocka_unit_test(a_lane_rests_between_connections),
		cmocka_unit_test(lost_pushes_are_repeated),
		cmocka_unit_test(no_repetition_while_the_payload_is_read),
		cmocka_unit_test(an_answer_makes_a_queued_repetition_pointless),
		cmocka_unit_test(starved_lanes_probe),
		cmocka_unit_test(a_grant_ends_the_starving),
		cmocka_unit_test(patience_begins_anew),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
