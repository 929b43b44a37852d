/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes that sum for each other: three of them, of one core each, whose messages this test carries in an order of its
 * own. Whatever way a chunk takes (to one box, to a home of its own, along a chain), all workers get what they would
 * get from one box that they all share.
 */
#include "phub/lift.h"

#include "phub/association.h"
#include "phub/core.h"
#include "phub/link.h"
#include "phub/members.h"
#include "phub/rehome.h"
#include "phub/receive.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/lift_rig.h"
#include "transport/transport.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void run(const struct shape *shape)
{
	struct rack *r = rack_open(shape);
	uint64_t round = shape->optimizer == OPTIMIZER_NONE;

	rack_round(r, round++, true);
	for (unsigned i = 0; i < ROUNDS; i++)
		rack_round(r, round++, false);
	rack_close(r);
}

static void test_same_as_one_box(void **state)
{
	static const enum optimizer_kind optimizers[] = {
		OPTIMIZER_NONE, OPTIMIZER_SGD, OPTIMIZER_NESTEROV, OPTIMIZER_ADAMW};

	for (unsigned i = 0; i < 400; i++) {
		const struct shape shape = {.plan = (enum plan)(i % PLAN_COUNT),
			.optimizer = optimizers[i / 3 % 4],
			.mean = i / 12 % 2,
			.sinks = i / 24 % 2,
			.hold_max = i / 48 % 2 ? 8 : 0,
			.seed = i};

		run(&shape);
	}
}

/*
 * The membership changes at boxes in mid-round, while sums are collected, on their way, and answered: what was lifted
 * counts once, with all that is in it.
 */
static void test_changes(void **state)
{
	for (unsigned i = 0; i < 300; i++) {
		const struct shape shape = {.plan = (enum plan)(i % PLAN_COUNT),
			.optimizer = i / 3 % 2 ? OPTIMIZER_NESTEROV : OPTIMIZER_NONE,
			.mean = i / 6 % 2,
			.sinks = i / 12 % 2,
			.hold_max = i / 24 % 2 ? 8 : 0,
			.changes = true,
			.seed = i};

		run(&shape);
	}
}

/* Who joins takes part after a round that is lifted, and who is lost there is still in it. */
static void test_lost_when_lifted(void **state)
{
	const struct shape shape = {.plan = PLAN_TREE, .mean = true};
	struct rack *r = rack_open(&shape);
	struct place *p = &r->places[2];
	uint64_t rounds[CHUNKS], lost[MAIL_RANK_WORDS] = {2};
	struct members m = {.epoch = 2, .repair = true, .rounds = rounds, .from = rounds};
	const struct chunk *chunk = &p->b->shard->chunks[0];

	rack_round(r, 1, true);
	for (uint32_t slot = 0; slot < 3; slot++) {
		fill(p->b, slot, rack_rank(2, slot), 2);
		rack_push(r, 2, slot, 0, WIRE_PUSH, 2);
		if (slot > 0)
			rack_push(r, 2, slot, 1, WIRE_PUSH, 2);
	}
	assert_true(chunk_is_up(chunk));
	memcpy(m.awaited, lost, sizeof(lost));
	members_hold(p->b->shard, &m);
	assert_int_equal(rounds[0], 3);
	assert_int_equal(rounds[1], 2);
	assert_int_equal(m.lifted, 3);
	rounds[1] = 3;
	members_go(p->b->shard, &m, ++r->now);
	assert_int_equal(p->b->shard->chunks[1].needed, 2);
	assert_int_equal(r->pending_count, 1);
	assert_int_equal(r->pending[0].header.count, 3); /* as it came */
	for (uint32_t slot = 0; slot < 3; slot += 2)
		rack_push(r, 2, slot, 1, WIRE_PUSH, 2);
	assert_int_equal(r->pending_count, 2);
	assert_int_equal(r->pending[1].header.count, 2); /* without the one that was lost */
	for (unsigned box = 0; box < 2; box++)
		for (uint32_t slot = 0; slot < rack_workers[box]; slot++)
			for (unsigned i = 0; i < 2; i++) {
				fill(r->places[box].b, slot, rack_rank(box, slot), 2);
				rack_push(r, box, slot, i, WIRE_PUSH, 2);
			}
	while (r->pending_count > 0)
		rack_carry_up(r);
	assert_int_equal(r->places[0].b->shard->chunks[0].round, 3);
	rack_drop(r);
}

/* A box stops where all others do (members.firm). It is not there before what it has lifted is answered, though its
 * only worker is lost meanwhile, and nobody needs the answer any more. */
static void test_stops_when_lifted(void **state)
{
	const struct shape shape = {.plan = PLAN_TREE};
	struct rack *r = rack_open(&shape);
	struct shard *shard = r->places[1].b->shard;
	uint64_t stops[CHUNKS], rounds[CHUNKS];
	struct members stop = {.epoch = 1, .drain = true, .firm = true, .rounds = stops, .from = stops};
	struct members lose = {.epoch = 2, .repair = true, .rounds = rounds, .from = rounds, .lost = {1}};

	rack_round(r, 1, true);
	for (unsigned box = 0; box < BOXES; box++)
		for (uint32_t slot = 0; slot < rack_workers[box]; slot++) {
			fill(r->places[box].b, slot, rack_rank(box, slot), 2);
			rack_push(r, box, slot, 0, WIRE_PUSH, 2);
		}
	stop.epoch = shard->epoch;
	lose.epoch = shard->epoch + 1;
	members_hold(shard, &stop);
	assert_int_equal(stops[0], 3);
	assert_int_equal(stops[1], 2);
	members_go(shard, &stop, ++r->now);
	assert_int_equal(shard->stop_left, 1);
	members_hold(shard, &lose);
	members_go(shard, &lose, ++r->now);
	assert_int_equal(shard->chunks[0].needed, 0);
	assert_int_equal(shard->stop_left, 1);
	flat_push(r, 2, false);
	rack_settle(r);
	assert_int_equal(shard->chunks[0].round, 3);
	assert_int_equal(shard->stop_left, 0);
	rack_drop(r);
}

/* As it is laid out. */
static void take_homes(const struct shard *shard, struct rehome_chunk *chunks, struct rehome_way *ways)
{
	for (unsigned i = 0; i < CHUNKS; i++) {
		const struct chunk *c = &shard->chunks[i];

		chunks[i] = (struct rehome_chunk){.way = c->way,
			.way_at = c->way_at,
			.weight = c->weight,
			.below = c->way == SPEC_HOME,
			.round = c->round};
	}
	for (unsigned i = 0; i < shard->uplink_count; i++) {
		const struct uplink *up = &shard->uplinks[i];

		ways[i] = (struct rehome_way){up->chunks, up->line, up->chunk_count};
	}
}

/*
 * Chunks get other homes (rehome.h). One that was lifted, and of which all had come, has its home here now: it lacks
 * the others. Of one that had its home here the open round lacks this box's only worker, in whose place another has
 * come for the rounds after it. That did not matter before; now it would be a sum of nobody that this box had to lift,
 * and all others would wait for that.
 */
static void test_other_homes(void **state)
{
	const struct shape shape = {.plan = PLAN_SHARDED};
	struct rack *r = rack_open(&shape);
	struct shard *shard = r->places[1].b->shard;
	struct chunk *comes = &shard->chunks[0], *goes = &shard->chunks[1];
	const uint32_t slots[] = {rack_slot(1, 0), rack_slot(1, 2)};
	struct rehome_chunk chunks[CHUNKS];
	struct rehome_way ways[BOXES];
	const struct rehome homes = {.chunks = chunks, .ways = ways, .slots = slots, .slot_count = 2};
	uint64_t stops[CHUNKS] = {2, 2, 2, 2, 2}, rounds[CHUNKS];
	struct members lose = {.repair = true, .rounds = rounds, .from = rounds, .awaited = {1}};

	rack_round(r, 1, true);
	lose.epoch = shard->epoch; /* what others push is of it still */
	members_hold(shard, &lose);
	rounds[1]++;
	members_go(shard, &lose, ++r->now);
	shard->stops = stops;
	fill(r->places[1].b, 0, rack_rank(1, 0), 2);
	rack_push(r, 1, 0, 0, WIRE_PUSH, 2);
	assert_true(comes->parked);
	take_homes(shard, chunks, ways);
	chunks[0].way = SPEC_HOME;
	chunks[0].below = true;
	chunks[1].way = comes->way;
	chunks[1].below = false;
	rehome_apply(shard, &homes);
	assert_int_equal(comes->needed, 3);
	assert_false(comes->parked);
	assert_int_equal(shard->parked_count, 0);
	assert_int_equal(goes->needed, 0);
	shard->holds = true; /* the membership changes meanwhile: then that sees to it */
	rehome_resume(shard, ++r->now);
	assert_false(shard->failed);
	shard->holds = false;
	rehome_resume(shard, ++r->now);
	assert_true(shard->failed);
	assert_int_equal(shard->failure.value, SHARD_FAIL_ALONE);
	assert_int_equal(shard->failure.chunk, goes->index);
	assert_int_equal(shard->failure.round, 2);
	rack_drop(r);
}

/* Small integers are the same in all of these types. */
static void test_types(void **state)
{
	static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

	for (unsigned i = 0; i < 27; i++) {
		const struct shape shape = {.plan = (enum plan)(i % 3),
			.dtype = types[i / 3 % 3],
			.lift = types[i / 9],
			.hold_max = i % 2 ? 8 : 0,
			.seed = i};

		run(&shape);
	}
}

/* Sums that are rounded on their way are as near to exact ones as lift.h says, and not much nearer. */
static void test_bound(void **state)
{
	/* The first of f16's are below its normal ones. */
	static const double scales[][5] = {{1e-6, 1e-4, 1, 100, 3000}, {1e-30, 1e-4, 1, 1e5, 1e30}};

	for (unsigned i = 0; i < 2 * 5 * PLAN_COUNT * 4; i++) {
		const struct shape shape = {.plan = (enum plan)(i % PLAN_COUNT),
			.lift = i / 3 % 2 ? DTYPE_BF16 : DTYPE_F16,
			.scale = scales[i / 3 % 2][i / 6 % 5],
			.mean = i / 30 % 2,
			.sinks = i / 60 % 2,
			.hold_max = i / 30 % 2 ? 8 : 0,
			.seed = i};
		struct rack *r = rack_open(&shape);

		for (uint64_t round = 1; round <= 1 + ROUNDS; round++)
			rack_round(r, round, round == 1);
		if (r->worst < 0.5)
			fail_msg("plan %u, %s, numbers of %g: no error above %.3f of what is allowed", shape.plan,
				dtype_name(shape.lift), shape.scale, r->worst);
		rack_close(r);
	}
}

/* From where on sums go up as infinity, and below that as the largest number. */
static void test_overflow(void **state)
{
	static const struct {
		enum dtype lift;
		float most, half_step; /* the largest number, and what is infinite when it is added */
		uint16_t bits;
	} types[] = {{DTYPE_F16, 65504, 16, 0x7bff}, {DTYPE_BF16, 0x1.fep127f, 0x1p119f, 0x7f7f}};

	for (unsigned i = 0; i < 2; i++) {
		const struct shape shape = {.plan = PLAN_TREE, .lift = types[i].lift};
		struct rack *r = rack_open(&shape);
		struct place *p = &r->places[2];
		const uint16_t *sum;

		memset(p->b->data, 0, sizeof(p->b->data));
		p->b->data[0][0] = p->b->data[0][1] = types[i].most;
		p->b->data[1][0] = nextafterf(types[i].most + types[i].half_step, 0) - types[i].most;
		p->b->data[1][1] = types[i].half_step;
		for (uint32_t slot = 0; slot < rack_workers[2]; slot++)
			rack_push(r, 2, slot, 0, WIRE_PUSH, 1);
		assert_int_equal(r->pending_count, 1);
		sum = r->pending[0].payload;
		assert_int_equal(sum[0], types[i].bits);
		assert_int_equal(sum[1], types[i].bits + 1);
		rack_drop(r);
	}
}

/* ---- sums of which each bit is fixed ---- */

/* One box that is told the tree's association makes the tree's bits, whatever the types and the order of arrival. */
static void test_association(void **state)
{
	static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

	for (unsigned i = 0; i < 72; i++) {
		const struct shape shape = {.plan = PLAN_TREE,
			.reproducible = true,
			.rounds = true,
			.dtype = types[i % 3],
			.optimizer = i / 3 % 2 ? OPTIMIZER_ADAMW : OPTIMIZER_NONE,
			.mean = i / 6 % 2,
			.hold_max = i / 12 % 2 ? 8 : 0,
			.seed = i};

		run(&shape);
	}
}

/* ---- one box that lifts, and what goes wrong ---- */

static const struct shape plain = {.plan = PLAN_TREE, .hold_max = 8};

/* All workers of the third box have pushed the first chunk. */
static struct place *push_third(struct rack *r)
{
	for (uint32_t slot = 0; slot < rack_workers[2]; slot++) {
		fill(r->places[2].b, slot, slot, 1);
		rack_push(r, 2, slot, 0, WIRE_PUSH, 1);
	}
	return &r->places[2];
}

/* What came from below is given back when it is in the sum; who pushes once more is not counted twice. */
static void test_lifted(void **state)
{
	struct rack *r = rack_open(&plain);
	struct place *p = push_third(r);
	const struct chunk *chunk = &p->b->shard->chunks[0];

	assert_int_equal(r->pending_count, 1);
	assert_int_equal(r->pending[0].to, 0);
	assert_int_equal(r->pending[0].header.type, WIRE_PUSH);
	assert_int_equal(r->pending[0].header.count, rack_workers[2]);
	assert_int_equal(r->pending[0].header.rank, r->places[0].names[rack_slot(0, 2)]);
	assert_true(chunk->lifted);
	assert_int_equal(chunk->round, 1);
	assert_int_equal(p->b->fake.queue.held, 0);
	assert_int_equal(p->b->shard->links[0].held, 0);
	assert_int_equal(p->b->shard->sum_free, p->b->shard->sum_count);
	rack_push(r, 2, 0, 0, WIRE_PUSH, 1);
	assert_int_equal(r->pending_count, 1);
	assert_int_equal(p->b->shard->counters.dropped[DROP_DUPLICATE], 1);
	assert_true(uplink_waits(p->b->shard, &p->b->shard->links[0]));
	rack_drop(r);
}

/* No room on the way up: it goes when there is. */
static void test_no_room(void **state)
{
	struct rack *r = rack_open(&plain);
	struct place *p = &r->places[2];

	p->room = 0;
	push_third(r);
	assert_int_equal(r->pending_count, 0);
	p->room = 1;
	place_event(p, 0, EVENT_WRITABLE);
	uplink_poll(&p->core, p->core.uplinks[0], 1);
	assert_int_equal(r->pending_count, 1);
	rack_drop(r);
}

/* The way up has ended: what is complete stays, until control ends the job. */
static void test_after_the_end(void **state)
{
	struct rack *r = rack_open(&plain);
	struct place *p = &r->places[2];

	place_event(p, 0, EVENT_CLOSED)->error = -ECONNRESET;
	uplink_poll(&p->core, p->core.uplinks[0], 1);
	assert_true(p->dropped);
	assert_int_equal(bench_mail(p->b).kind, MAIL_UPLINK_ENDED);
	push_third(r);
	assert_int_equal(r->pending_count, 0);
	assert_true(p->b->shard->chunks[0].lifted);
	assert_int_equal(p->b->fake.sent_count, 0);
	assert_false(uplink_waits(p->b->shard, &p->b->shard->links[0])); /* who drains has nothing to wait for */
	rack_drop(r);
}

/* A connection that breaks says whether a result came by it: only then another has all the time again. */
static void test_breaks(void **state)
{
	struct transport reconnects = {.ops = &transport_loop};
	struct rack *r = rack_open(&plain);
	struct place *p = push_third(r);

	for (unsigned turn = 0; turn < 3; turn++) {
		struct event *e;
		struct mail mail;

		p->conns[0].transport = &reconnects;
		if (turn == 1) {
			e = place_event(p, 0, EVENT_MESSAGE);
			e->header = (struct wire_header){.type = WIRE_RESULT,
				.job = JOB,
				.epoch = 1,
				.round = 1,
				.length = p->b->shard->chunks[0].bytes};
			e->payload = p->b->data[0];
			event_whole(e);
		}
		e = place_event(p, 0, EVENT_CLOSED);
		e->error = -ECONNRESET;
		e->broken = true;
		uplink_poll(&p->core, p->core.uplinks[0], 1);
		mail = bench_mail(p->b);
		assert_int_equal(mail.kind, MAIL_UPLINK_ENDED);
		assert_true(mail.broken);
		assert_int_equal(mail.answered, turn == 1);
		place_connect(p, 0);
	}
	rack_drop(r);
}

/* Homes moved while there was no connection: by the next one nothing lands in chunks that have other ways now. */
static void test_sinks(void **state)
{
	const struct shape shape = {.plan = PLAN_SHARDED, .sinks = true};
	struct rack *r = rack_open(&shape);
	struct place *p = &r->places[2];
	const struct uplink *up = &p->b->shard->uplinks[0];
	unsigned others = 0;

	place_event(p, 0, EVENT_CLOSED)->error = -ECONNRESET;
	uplink_poll(&p->core, p->core.uplinks[0], 1);
	for (unsigned i = 0; i < CHUNKS; i++)
		p->sinks[0][i] = (struct sink){p->b->shard->chunks[i].result, p->b->shard->chunks[i].bytes};
	place_connect(p, 0);
	for (unsigned i = 0; i < CHUNKS; i++) {
		bool own = p->b->shard->chunks[i].way == 0;

		assert_true(p->sinks[0][i].addr == (own ? p->b->shard->chunks[i].result : NULL));
		assert_int_equal(p->sinks[0][i].bytes, own ? p->b->shard->chunks[i].bytes : 0);
		others += !own;
	}
	assert_int_equal(up->chunk_count + others, CHUNKS);
	assert_true(others > 0 && up->chunk_count > 0);
	rack_drop(r);
}

/* What no box above says ends the connection, and control hears which; nobody below is answered. */
static void test_wrong_results(void **state)
{
	for (unsigned wrong = 0; wrong < 6; wrong++) {
		struct rack *r = rack_open(&plain);
		struct place *p = push_third(r);
		struct event *e = place_event(p, 0, EVENT_MESSAGE);
		struct mail mail;

		e->header = (struct wire_header){.type = wrong == 0 ? WIRE_PUSH : WIRE_RESULT,
			.job = JOB + (wrong == 1),
			.epoch = 1,
			.chunk = wrong == 2   ? 1
				 : wrong == 3 ? CHUNKS
					      : 0,
			.round = wrong == 4 ? 2 : 1,
			.length = p->b->shard->chunks[0].bytes - (wrong == 5 ? 4 : 0)};
		e->payload = p->b->data[0];
		event_whole(e);
		uplink_poll(&p->core, p->core.uplinks[0], 1);
		assert_true(p->dropped);
		mail = bench_mail(p->b);
		assert_int_equal(mail.kind, MAIL_UPLINK_ENDED);
		assert_int_equal(mail.rank, 0);
		assert_int_equal(mail.value, -EPROTO);
		assert_int_equal(p->b->fake.sent_count, 0);
		assert_int_equal(p->b->shard->chunks[0].round, 1);
		rack_drop(r);
	}
}

/* Only a box may bring sums, and each must be of the length that its type has; only who has first weights sends them.
 */
static void test_wrong_pushes(void **state)
{
	for (unsigned wrong = 0; wrong < 4; wrong++) {
		const struct shape shape = {.plan = PLAN_TREE, .lift = DTYPE_BF16};
		struct rack *r = rack_open(&shape);
		struct place *p = &r->places[0];
		uint32_t slot = wrong == 0 ? 0 : rack_slot(0, 1);
		uint32_t bytes = p->b->shard->chunks[0].bytes;
		struct event e = {.type = EVENT_MESSAGE,
			.conn = &p->b->fake.conns[slot],
			.payload = p->b->data[slot],
			.header = {.type = wrong == 3 ? WIRE_INIT : WIRE_PUSH,
				.length = wrong == 1   ? bytes
					  : wrong == 0 ? bytes
					  : wrong == 3 ? bytes
						       : bytes / 2,
				.job = JOB,
				.epoch = 1,
				.rank = wrong == 2 ? p->names[slot] + 1 : p->names[slot],
				.round = 1,
				.count = 2,
				.seq = 1}};

		event_whole(&e);
		receive_batch(&p->core, &p->b->fake.queue, &e, 1, 1);
		assert_null(p->b->shard->links[slot].conn);
		assert_int_equal(bench_mail(p->b).kind, MAIL_LINK_CLOSED);
		rack_drop(r);
	}
}

TEST_PROGRAM(test_lift)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_as_one_box),
		cmocka_unit_test(test_changes),
		cmocka_unit_test(test_lost_when_lifted),
		cmocka_unit_test(test_stops_when_lifted),
		cmocka_unit_test(test_other_homes),
		cmocka_unit_test(test_types),
		cmocka_unit_test(test_bound),
		cmocka_unit_test(test_overflow),
		cmocka_unit_test(test_association),
		cmocka_unit_test(test_lifted),
		cmocka_unit_test(test_no_room),
		cmocka_unit_test(test_after_the_end),
		cmocka_unit_test(test_breaks),
		cmocka_unit_test(test_sinks),
		cmocka_unit_test(test_wrong_results),
		cmocka_unit_test(test_wrong_pushes),
	};

	return cmocka_run_group_tests_name("lift", tests, NULL, NULL);
}
