/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport suite: what becomes of one connection's messages: contents, order, completions, bounds,
 * sinks, and its end.
 */
#include "tests/suite/transport_cases.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "tests/suite/transport_rig.h"

static const struct rig_options usual;

static struct lane *first_lane(struct rig *rig)
{
	return rig_join(rig, rig_box_end(rig, 0), rig_worker_end(rig, 0), 3);
}

/*
 * All messages of the end were intact; and in the order of (round, chunk), where the transport keeps order; results
 * that take several ports at least in that of rounds, for each chunk.
 */
static void check_log(const struct rig_end *end, bool ordered)
{
	uint64_t rounds[RIG_CHUNKS] = {0};
	const struct record *last = NULL;
	unsigned i;

	for (i = 0; i < end->count; i++) {
		const struct record *r = &end->log[i];

		if (r->type != EVENT_MESSAGE)
			continue;
		assert_true(r->intact);
		if (ordered && end->apart) {
			assert_true(r->header.round > rounds[r->header.chunk]);
			rounds[r->header.chunk] = r->header.round;
		} else if (last && ordered)
			assert_true(r->header.round > last->header.round ||
				    (r->header.round == last->header.round && r->header.chunk > last->header.chunk));
		last = r;
	}
}

static void pushes_of_every_size_arrive(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig);
	struct rig_end *box = lane->box_end;
	uint32_t i;

	for (i = 0; i < RIG_CHUNKS; i++)
		assert_int_equal(pair_push(lane, i, 1, NULL), 0);
	pair_flush_worker(lane);
	RIG_UNTIL(rig, end_count(box, EVENT_MESSAGE, lane->box) == RIG_CHUNKS);
	check_log(box, !box->q->lossy);
	for (i = 0; i < RIG_CHUNKS; i++) {
		const struct record *r = end_record(box, EVENT_MESSAGE, lane->box, i);

		assert_int_equal(r->header.type, WIRE_PUSH);
		assert_int_equal(r->header.length, lane->spans[r->header.chunk].bytes);
		assert_int_equal(r->header.rank, 3);
	}
	rig_destroy(rig);
}

static void results_of_every_size_come_where_they_are_wanted(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig);
	struct rig_end *worker = lane->worker_end;
	uint32_t i;

	for (i = 0; i < RIG_CHUNKS; i++)
		assert_int_equal(pair_answer(lane, i, 1, NULL), 0);
	pair_flush_box(lane);
	RIG_UNTIL(rig, end_count(worker, EVENT_MESSAGE, lane->worker) == RIG_CHUNKS);
	check_log(worker, !worker->q->lossy);
	for (i = 0; i < RIG_CHUNKS; i++) {
		const struct record *r = end_record(worker, EVENT_MESSAGE, lane->worker, i);
		uint32_t chunk = r->header.chunk;
		const uint8_t *base = lane->worker->result ? lane->worker->result : lane->wanted;

		assert_int_equal(r->header.type, WIRE_RESULT);
		assert_ptr_equal(r->payload, base + lane->spans[chunk].offset);
		assert_true(rig_matches(r->payload, lane->spans[chunk].bytes, 3, 1, chunk));
	}
	rig_destroy(rig);
}

static void the_largest_chunk_goes_both_ways(void **state)
{
	const struct rig_options options = {.payload_max = WIRE_PAYLOAD_MAX};
	struct rig *rig = rig_create(*state, &options);
	struct lane *lane = first_lane(rig);
	uint32_t last = RIG_CHUNKS - 1;

	assert_int_equal(lane->spans[last].bytes, WIRE_PAYLOAD_MAX);
	assert_int_equal(pair_push(lane, last, 1, lane), 0);
	RIG_UNTIL(rig, end_count(lane->box_end, EVENT_MESSAGE, NULL) == 1);
	assert_int_equal(pair_answer(lane, last, 1, lane), 0);
	RIG_UNTIL(rig, end_count(lane->worker_end, EVENT_MESSAGE, NULL) == 1);
	RIG_UNTIL(rig, end_count(lane->worker_end, EVENT_SENT, NULL) == 1);
	RIG_UNTIL(rig, end_count(lane->box_end, EVENT_SENT, NULL) == 1);
	check_log(lane->box_end, true);
	check_log(lane->worker_end, true);
	rig_destroy(rig);
}

static void check_header(const struct wire_header *a, const struct wire_header *b)
{
	assert_int_equal(a->type, b->type);
	assert_int_equal(a->length, b->length);
	assert_int_equal(a->job, b->job);
	assert_int_equal(a->generation, b->generation);
	assert_int_equal(a->epoch, b->epoch);
	assert_int_equal(a->chunk, b->chunk);
	assert_int_equal(a->rank, b->rank);
	assert_int_equal(a->round, b->round);
	assert_int_equal(a->hyper, b->hyper);
	assert_int_equal(a->count, b->count);
	assert_int_equal(a->seq, b->seq);
	assert_int_equal(a->credit, b->credit);
	assert_int_equal(a->priority, b->priority);
}

static void headers_come_unchanged(void **state)
{
	static const struct wire_header full = {.job = RIG_JOB,
		.generation = 0x21222324,
		.epoch = 0x31323334,
		.chunk = 5,
		.rank = 1000,
		.round = 0x4142434445464748,
		.hyper = 0x51525354,
		.count = 900,
		.credit = 0x71727374,
		.priority = 0x8182};
	static const enum wire_type types[] = {WIRE_PUSH, WIRE_INIT, WIRE_PULL, WIRE_RESULT, WIRE_CREDIT};
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = rig_join(rig, rig_box_end(rig, 0), rig_worker_end(rig, 0), full.rank);
	unsigned i;

	for (i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		bool down = types[i] == WIRE_RESULT || types[i] == WIRE_CREDIT;
		bool empty = types[i] == WIRE_PULL || types[i] == WIRE_CREDIT;
		struct rig_end *from = down ? lane->box_end : lane->worker_end;
		struct rig_end *to = down ? lane->worker_end : lane->box_end;
		uint8_t *payload = down ? pair_result_at(lane, 5) : pair_payload_at(lane, 5);
		struct wire_header h = full, sent;

		h.type = types[i];
		h.length = empty ? 0 : lane->spans[5].bytes;
		h.seq = down ? i - 2 : i + 1; /* as it has to be, up; and what a box that numbers them writes, down */
		sent = h;
		rig_fill(payload, lane->spans[5].bytes, h.rank, h.round, h.chunk);
		assert_int_equal(
			from->q->ops->send(from->q, down ? lane->box : lane->worker, &h, empty ? NULL : payload, NULL),
			0);
		memset(&h, 0xff, sizeof(h)); /* send() has a copy. */
		to->count = 0;
		RIG_UNTIL(rig, end_count(to, EVENT_MESSAGE, NULL) == 1);
		check_header(&end_record(to, EVENT_MESSAGE, NULL, 0)->header, &sent);
		check_log(to, true);
	}
	rig_destroy(rig);
}

static void many_rounds_stay_exact_and_in_order(void **state)
{
	enum { ROUNDS = 60 };
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig);
	struct rig_end *box = lane->box_end, *worker = lane->worker_end;
	unsigned round, i;

	for (round = 1; round <= ROUNDS; round++) {
		unsigned want = round * RIG_CHUNKS;

		for (i = 0; i < RIG_CHUNKS; i++)
			assert_int_equal(pair_push(lane, i, round, &lane->spans[i]), 0);
		RIG_UNTIL(rig, end_count(box, EVENT_MESSAGE, NULL) == want);
		for (i = 0; i < RIG_CHUNKS; i++)
			assert_int_equal(pair_answer(lane, i, round, &lane->spans[i]), 0);
		RIG_UNTIL(rig, end_count(worker, EVENT_MESSAGE, NULL) == want);
		RIG_UNTIL(rig, end_count(worker, EVENT_SENT, NULL) == want && end_count(box, EVENT_SENT, NULL) == want);
	}
	check_log(box, !box->q->lossy);
	check_log(worker, !worker->q->lossy);
	rig_destroy(rig);
}

static void polls_of_one_event_lose_nothing(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig);
	uint32_t i;

	lane->box_end->batch = lane->worker_end->batch = 1;
	for (i = 0; i < RIG_CHUNKS; i++) {
		assert_int_equal(pair_push(lane, i, 1, lane), 0);
		assert_int_equal(pair_answer(lane, i, 1, lane), 0);
	}
	RIG_UNTIL(rig, end_count(lane->box_end, EVENT_MESSAGE, NULL) == RIG_CHUNKS);
	RIG_UNTIL(rig, end_count(lane->worker_end, EVENT_MESSAGE, NULL) == RIG_CHUNKS);
	RIG_UNTIL(rig, end_count(lane->worker_end, EVENT_SENT, NULL) == RIG_CHUNKS);
	RIG_UNTIL(rig, end_count(lane->box_end, EVENT_SENT, NULL) == RIG_CHUNKS);
	check_log(lane->box_end, !lane->box_end->q->lossy);
	check_log(lane->worker_end, !lane->worker_end->q->lossy);
	rig_destroy(rig);
}

static void check_cookies(const struct rig_end *end, const uint8_t *cookies, unsigned count)
{
	unsigned i;

	assert_int_equal(end_count(end, EVENT_SENT, NULL), count);
	for (i = 0; i < end->count; i++) {
		const uint8_t *cookie = end->log[i].cookie;
		unsigned j;

		if (end->log[i].type != EVENT_SENT)
			continue;
		assert_true(cookie >= cookies && cookie < cookies + count);
		for (j = 0; j < i; j++)
			assert_true(end->log[j].type != EVENT_SENT || end->log[j].cookie != cookie);
	}
}

static void each_cookie_comes_back_once(void **state)
{
	uint8_t cookies[2 * RIG_CHUNKS];
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig);
	unsigned i;

	for (i = 0; i < RIG_CHUNKS; i++) {
		/* Those without a cookie are not told of. */
		assert_int_equal(pair_push(lane, i, 1, i % 2 ? &cookies[i / 2] : NULL), 0);
		assert_int_equal(pair_answer(lane, i, 1, &cookies[i]), 0);
	}
	RIG_UNTIL(rig, end_count(lane->box_end, EVENT_MESSAGE, NULL) == RIG_CHUNKS);
	RIG_UNTIL(rig, end_count(lane->worker_end, EVENT_MESSAGE, NULL) == RIG_CHUNKS);
	RIG_UNTIL(rig, end_count(lane->worker_end, EVENT_SENT, NULL) >= RIG_CHUNKS / 2);
	RIG_UNTIL(rig, end_count(lane->box_end, EVENT_SENT, NULL) >= RIG_CHUNKS);
	rig_turns(rig, 100);
	check_cookies(lane->worker_end, cookies, RIG_CHUNKS / 2);
	check_cookies(lane->box_end, cookies, RIG_CHUNKS);
	rig_destroy(rig);
}

static int send_again(struct lane *lane, bool down)
{
	return down ? pair_answer_again(lane, 11, 1, NULL) : pair_push_again(lane, 11, 1, NULL);
}

/*
 * Sends to a peer that does not read until nothing helps any more, neither time nor a flush; how many went.
 * Each -EAGAIN is answered by at most one EVENT_WRITABLE.
 */
static unsigned fill_up(struct rig *rig, struct lane *lane, bool down)
{
	struct rig_end *from = down ? lane->box_end : lane->worker_end;
	unsigned sent = 0;
	int rc;

	for (;;) {
		rc = send_again(lane, down);
		if (rc == 0) {
			assert_true(++sent < 100000);
			rig_turn(rig);
			continue;
		}
		assert_int_equal(rc, -EAGAIN);
		rig_turns(rig, 200);
		if (end_count(from, EVENT_WRITABLE, NULL) == 0)
			return sent;
		assert_int_equal(end_count(from, EVENT_WRITABLE, NULL), 1);
		from->count = 0;
	}
}

static void check_bound(void **state, bool down)
{
	const struct rig_options options = {.send_bytes_max = 200000};
	struct rig *rig = rig_create(*state, &options);
	struct lane *lane = first_lane(rig);
	struct rig_end *from = down ? lane->box_end : lane->worker_end;
	struct rig_end *to = down ? lane->worker_end : lane->box_end;
	unsigned sent;

	/* Where results are written into the worker's memory, it need not do anything for them to go. */
	if (from->q->lossy || (down && from->q->one_sided)) {
		rig_destroy(rig);
		skip_because("this transport may lose messages, or writes them into the peer's memory");
	}
	rig_fill(down ? pair_result_at(lane, 11) : pair_payload_at(lane, 11), lane->spans[11].bytes, 3, 1, 11);
	to->mute = true;
	sent = fill_up(rig, lane, down);
	assert_true(sent > 0);
	to->mute = false;
	RIG_UNTIL(rig, end_count(from, EVENT_WRITABLE, NULL) == 1);
	assert_int_equal(send_again(lane, down), 0);
	RIG_UNTIL(rig, end_count(to, EVENT_MESSAGE, NULL) == sent + 1);
	rig_turns(rig, 20);
	/* It was refused once, so it was told once. */
	assert_int_equal(end_count(from, EVENT_WRITABLE, NULL), 1);
	assert_int_equal(end_count(to, EVENT_MESSAGE, NULL), sent + 1);
	check_log(to, false);
	rig_destroy(rig);
}

static void a_full_worker_is_told_when_it_may_go_on(void **state)
{
	check_bound(state, false);
}

static void a_full_box_is_told_when_it_may_go_on(void **state)
{
	check_bound(state, true);
}

/* ---- slots ---- */

/* Pushes `count` chunks from `first` on, and waits until the box has them. */
static void push_some(struct rig *rig, struct lane *lane, uint32_t first, uint32_t count, uint64_t round)
{
	unsigned before = end_count(lane->box_end, EVENT_MESSAGE, lane->box);
	uint32_t i;

	for (i = first; i < first + count; i++)
		assert_int_equal(pair_push(lane, i, round, NULL), 0);
	RIG_UNTIL(rig, end_count(lane->box_end, EVENT_MESSAGE, lane->box) == before + count);
}

static void check_kept(const struct rig_end *end, uint64_t round)
{
	unsigned i;

	for (i = 0; i < end->count; i++) {
		const struct record *r = &end->log[i];

		if (r->slot)
			assert_true(rig_matches(r->payload, r->header.length, r->header.rank, round, r->header.chunk));
	}
}

static void kept_payloads_stay_until_released(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig);
	struct rig_end *box = lane->box_end;
	unsigned most = box->q->hold_max < 8 ? box->q->hold_max : 8;
	unsigned round, i;

	box->keeps = true;
	for (round = 1; round <= 20; round++) {
		push_some(rig, lane, 0, most, round);
		assert_int_equal(box->kept, most);
		box->keeps = false;
		push_some(rig, lane, 8, 8, round); /* These come and go meanwhile. */
		box->keeps = true;
		check_kept(box, round);
		for (i = 0; i < box->count; i += 2) { /* Not in the order in which they came. */
			if (box->log[i].slot)
				end_release(box, i);
		}
		check_kept(box, round);
		for (i = 1; i < box->count; i += 2) {
			if (box->log[i].slot)
				end_release(box, i);
		}
		assert_int_equal(box->kept, 0);
	}
	check_log(box, !box->q->lossy);
	rig_destroy(rig);
}

static void nothing_is_kept_where_nothing_can_be(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig);
	struct rig_end *box = lane->box_end;
	struct event events[RIG_CHUNKS];
	unsigned i, n, got = 0;

	for (i = 0; i < RIG_CHUNKS; i++)
		assert_int_equal(pair_push(lane, i, 1, NULL), 0);
	box->mute = true;
	rig_deadline_set(rig);
	while (got < RIG_CHUNKS && !rig_deadline_passed(rig)) {
		rig_turn(rig);
		n = box->q->ops->poll(box->q, rig_now(rig), events, RIG_CHUNKS);
		for (i = 0; i < n; i++) {
			assert_int_equal(events[i].type, EVENT_MESSAGE);
			if (box->q->hold_max == 0)
				assert_null(events[i].slot);
			else if (events[i].slot)
				box->q->ops->release(box->q, events[i].slot);
		}
		got += n;
	}
	assert_int_equal(got, RIG_CHUNKS);
	rig_destroy(rig);
}

static void slots_of_a_dropped_connection_are_free_again(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct rig_end *box = rig_box_end(rig, 0);
	unsigned most = box->q->hold_max < 8 ? box->q->hold_max : 8;
	unsigned i, turn;

	box->keeps = true;
	for (turn = 0; turn < 4; turn++) {
		struct lane *lane = rig_join(rig, box, rig_worker_end(rig, 0), turn);

		push_some(rig, lane, 0, most, 1);
		assert_int_equal(box->kept, most);
		rig_drop_box(lane);
		box->kept = 0;
		for (i = 0; i < box->count; i++)
			box->log[i].slot = NULL;
		RIG_UNTIL(rig, end_count(lane->worker_end, EVENT_CLOSED, lane->worker) == 1);
		rig_drop_worker(lane);
		lane->worker_end->count = box->count = 0;
	}
	rig_destroy(rig);
}

/* ---- sinks ---- */

static void results_that_nobody_wants_are_thrown_away(void **state)
{
	struct rig *rig;
	struct lane *lane;
	struct rig_end *worker;
	unsigned i;

	if (((const struct fixture *)*state)->mapped)
		skip_because("this transport maps gradients and copies none");
	rig = rig_create(*state, &usual);
	lane = first_lane(rig);
	worker = lane->worker_end;
	memset(lane->wanted + lane->spans[7].offset, 0xee, lane->spans[7].bytes);
	lane->sinks[7].addr = NULL;
	assert_int_equal(pair_answer(lane, 7, 1, NULL), 0);
	assert_int_equal(pair_answer(lane, 8, 1, NULL), 0);
	RIG_UNTIL(rig, worker->count == 2);
	for (i = 0; i < lane->spans[7].bytes; i++)
		assert_int_equal(lane->wanted[lane->spans[7].offset + i], 0xee);
	/* Its header tells the worker what it needs to know; its payload is nowhere. */
	i = worker->log[0].header.chunk == 7 ? 0 : 1;
	assert_true(i == 0 || worker->apart);
	assert_int_equal(worker->log[i].header.chunk, 7);
	assert_null(worker->log[i].payload);
	assert_int_equal(worker->log[1 - i].header.chunk, 8);
	assert_true(worker->log[1 - i].intact);
	lane->sinks[7].addr = lane->wanted + lane->spans[7].offset;
	assert_int_equal(pair_answer(lane, 7, 2, NULL), 0);
	RIG_UNTIL(rig, worker->count == 3);
	assert_true(worker->log[2].intact);
	rig_destroy(rig);
}

static void a_result_of_another_length_ends_the_connection(void **state)
{
	struct rig *rig;
	struct lane *lane;

	if (((const struct fixture *)*state)->mapped)
		skip_because("this transport maps gradients and copies none");
	rig = rig_create(*state, &usual);
	lane = first_lane(rig);
	lane->sinks[7].bytes /= 2;
	assert_int_equal(pair_answer(lane, 6, 1, NULL), 0);
	assert_int_equal(pair_answer(lane, 7, 1, NULL), 0);
	assert_int_equal(pair_answer(lane, 8, 1, NULL), 0);
	RIG_UNTIL(rig, end_count(lane->worker_end, EVENT_CLOSED, lane->worker) == 1);
	assert_true(end_record(lane->worker_end, EVENT_CLOSED, NULL, 0)->error < 0);
	for (unsigned i = 0; i < lane->worker_end->count; i++)
		assert_int_not_equal(lane->worker_end->log[i].header.chunk, 7);
	if (!lane->worker_end->apart)
		assert_int_equal(end_count(lane->worker_end, EVENT_MESSAGE, NULL), 1);
	rig_drop_worker(lane);
	RIG_UNTIL(rig, end_count(lane->box_end, EVENT_CLOSED, lane->box) == 1);
	rig_destroy(rig);
}

static void a_push_above_the_largest_chunk_ends_the_connection(void **state)
{
	struct rig *rig;
	struct lane *lane;

	if (((const struct fixture *)*state)->mapped)
		skip_because("this transport maps gradients and copies none");
	rig = rig_create(*state, &usual);
	lane = rig_lane(rig, rig_box_end(rig, 0), rig_worker_end(rig, 0), 3);
	lane->box_spec.payload_max = 1000;
	rig_admit(rig, lane);
	assert_int_equal(rig_established(rig, lane), 0);
	rig_adopt_box(lane);
	rig_adopt_worker(lane);
	assert_int_equal(pair_push(lane, 5, 1, NULL), 0);
	assert_int_equal(pair_push(lane, 6, 1, NULL), 0);
	assert_int_equal(pair_push(lane, 4, 1, NULL), 0);
	RIG_UNTIL(rig, end_count(lane->box_end, EVENT_CLOSED, lane->box) == 1);
	assert_true(end_record(lane->box_end, EVENT_CLOSED, NULL, 0)->error < 0);
	for (unsigned i = 0; i < lane->box_end->count; i++)
		assert_int_not_equal(lane->box_end->log[i].header.chunk, 6);
	if (!lane->box_end->apart)
		assert_int_equal(end_count(lane->box_end, EVENT_MESSAGE, NULL), 1);
	rig_destroy(rig);
}

/* ---- the end of a connection ---- */

static void an_orderly_end_is_told_once(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *one = first_lane(rig), *two = first_lane(rig);

	rig_drop_worker(one);
	rig_drop_box(two);
	RIG_UNTIL(rig, end_count(one->box_end, EVENT_CLOSED, one->box) == 1);
	RIG_UNTIL(rig, end_count(two->worker_end, EVENT_CLOSED, two->worker) == 1);
	rig_turns(rig, 50);
	assert_int_equal(one->box_end->count, 1);
	assert_int_equal(two->worker_end->count, 1);
	assert_int_equal(one->box_end->log[0].error, 0);
	assert_int_equal(two->worker_end->log[0].error, 0);
	rig_destroy(rig);
}

static void a_closed_connection_takes_nothing_more(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *one = first_lane(rig), *two = first_lane(rig);

	rig_drop_worker(one);
	rig_drop_box(two);
	RIG_UNTIL(rig, end_count(one->box_end, EVENT_CLOSED, one->box) == 1);
	RIG_UNTIL(rig, end_count(two->worker_end, EVENT_CLOSED, two->worker) == 1);
	assert_int_equal(pair_answer(one, 5, 1, NULL), -EPIPE);
	assert_int_equal(pair_push(two, 5, 1, NULL), -EPIPE);
	rig_turns(rig, 10);
	rig_destroy(rig);
}

/* A push whose memory goes away as soon as the connection was dropped. */
static int push_from_heap(struct lane *lane, void **payload)
{
	struct wire_header h = {
		.type = WIRE_PUSH, .length = lane->spans[11].bytes, .chunk = 11, .rank = 3, .round = 1, .count = 1};
	h.job = RIG_JOB;
	*payload = malloc(h.length);
	assert_non_null(*payload);
	memset(*payload, 1, h.length);
	rig_register(lane, *payload, h.length, true);
	return pair_send_up(lane, &h, lane->worker->push ? pair_payload_at(lane, 11) : *payload, lane);
}

static void check_drop_of_sender(void **state, bool flush)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig);
	struct conn *worker = lane->worker;
	struct rig_end *end = lane->worker_end;
	void *payloads[40];
	unsigned i, n;

	for (n = 0; n < 40 && push_from_heap(lane, &payloads[n]) == 0; n++)
		;
	if (n < 40) {
		rig_register(lane, payloads[n], 0, false);
		free(payloads[n]);
	}
	if (flush)
		pair_flush_worker(lane);
	rig_drop_worker(lane);
	for (i = 0; i < n; i++) { /* The address sanitizer sees whoever reads them now. */
		rig_register(lane, payloads[i], 0, false);
		free(payloads[i]);
	}
	RIG_UNTIL(rig, end_count(lane->box_end, EVENT_CLOSED, lane->box) == 1);
	rig_turns(rig, 50);
	for (i = 0; i < end->count; i++)
		assert_ptr_not_equal(end->log[i].conn, worker);
	rig_destroy(rig);
}

static void a_drop_forgets_what_was_queued(void **state)
{
	check_drop_of_sender(state, false);
}

static void a_drop_forgets_what_was_flushed(void **state)
{
	check_drop_of_sender(state, true);
}

static void a_drop_forgets_what_came(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig), *other = first_lane(rig);
	uint32_t i;

	lane->box_end->mute = true;
	for (i = 0; i < RIG_CHUNKS; i++) {
		assert_int_equal(pair_push(lane, i, 1, lane), 0);
		assert_int_equal(pair_push(other, i, 1, other), 0);
	}
	rig_turns(rig, 50);
	rig_drop_box(lane);
	lane->box_end->mute = false;
	RIG_UNTIL(rig, end_count(lane->worker_end, EVENT_CLOSED, lane->worker) == 1);
	RIG_UNTIL(rig, end_count(other->box_end, EVENT_MESSAGE, other->box) == RIG_CHUNKS);
	/* Nothing but the other's. */
	assert_int_equal(other->box_end->count, RIG_CHUNKS);
	check_log(other->box_end, !other->box_end->q->lossy);
	rig_destroy(rig);
}

static void results_under_way_touch_no_sink_after_drop(void **state)
{
	struct rig *rig = rig_create(*state, &usual);
	struct lane *lane = first_lane(rig);
	uint32_t i, bytes = lane->spans[RIG_CHUNKS - 1].offset + lane->spans[RIG_CHUNKS - 1].bytes;

	lane->worker_end->mute = true;
	for (i = 0; i < RIG_CHUNKS; i++)
		assert_int_equal(pair_answer(lane, i, 1, lane), 0);
	rig_turns(rig, 50);
	rig_drop_worker(lane);
	memset(lane->wanted, 0xee, bytes);
	lane->worker_end->mute = false;
	RIG_UNTIL(rig, end_count(lane->box_end, EVENT_CLOSED, lane->box) == 1);
	rig_turns(rig, 50);
	assert_int_equal(lane->worker_end->count, 0);
	for (i = 0; i < bytes; i++)
		assert_int_equal(lane->wanted[i], 0xee);
	rig_destroy(rig);
}

const struct CMUnitTest transport_message_cases[] = {
	cmocka_unit_test(pushes_of_every_size_arrive),
	cmocka_unit_test(results_of_every_size_come_where_they_are_wanted),
	cmocka_unit_test(the_largest_chunk_goes_both_ways),
	cmocka_unit_test(headers_come_unchanged),
	cmocka_unit_test(many_rounds_stay_exact_and_in_order),
	cmocka_unit_test(polls_of_one_event_lose_nothing),
	cmocka_unit_test(each_cookie_comes_back_once),
	cmocka_unit_test(a_full_worker_is_told_when_it_may_go_on),
	cmocka_unit_test(a_full_box_is_told_when_it_may_go_on),
	cmocka_unit_test(kept_payloads_stay_until_released),
	cmocka_unit_test(nothing_is_kept_where_nothing_can_be),
	cmocka_unit_test(slots_of_a_dropped_connection_are_free_again),
	cmocka_unit_test(results_that_nobody_wants_are_thrown_away),
	cmocka_unit_test(a_result_of_another_length_ends_the_connection),
	cmocka_unit_test(a_push_above_the_largest_chunk_ends_the_connection),
	cmocka_unit_test(an_orderly_end_is_told_once),
	cmocka_unit_test(a_closed_connection_takes_nothing_more),
	cmocka_unit_test(a_drop_forgets_what_was_queued),
	cmocka_unit_test(a_drop_forgets_what_was_flushed),
	cmocka_unit_test(a_drop_forgets_what_came),
	cmocka_unit_test(results_under_way_touch_no_sink_after_drop),
};
const size_t transport_message_count = sizeof(transport_message_cases) / sizeof(transport_message_cases[0]);
