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
#include "phub/receive.h"
#include "tests/unit/chunk_rig.h"
#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { BOXES = 3, CHUNKS = 5, PENDING = 256, ROUNDS = 4, JOB = 9, LIFT_EVENTS = 64 };

/* So many workers at each. */
static const uint32_t rack_workers[BOXES] = {2, 1, 3};

enum plan { PLAN_TREE, PLAN_SHARDED, PLAN_CHAIN, PLAN_COUNT };

struct shape {
	enum plan plan;
	enum optimizer_kind optimizer;
	enum dtype dtype, lift;
	bool mean, reproducible, sinks;
	bool rounds;  /* numbers whose sum depends on the order */
	bool changes; /* now and then the membership of a box does, in mid-round */
	unsigned hold_max;
	uint64_t seed;
};

/* What was sent up, until it is carried. */
struct message {
	unsigned from, to;
	struct wire_header header;
	const void *payload;
	void *cookie;
};

struct place {
	struct rack *rack;
	struct bench *b;
	unsigned number;
	uint16_t way_of_chunk[CHUNKS];
	uint32_t names[BENCH_WORLD_MAX];
	struct core core;
	/* Up: */
	struct queue queue;
	struct conn conns[BOXES];
	struct uplink_spec specs[BOXES];
	struct sink sinks[BOXES][CHUNKS];
	struct event events[LIFT_EVENTS];
	unsigned event_count;
	unsigned room; /* sends before -EAGAIN */
	bool dropped;
	/* Down: what this box's workers got in this round. */
	unsigned got[CHUNKS];
};

struct rack {
	struct shape shape;
	struct place places[BOXES];
	struct bench *flat;
	struct association *association; /* of it */
	struct message pending[PENDING];
	unsigned pending_count;
	uint64_t random, now;
};

static uint64_t rack_random(struct rack *r, uint64_t below)
{
	r->random = r->random * 6364136223846793005u + 1442695040888963407u;
	return (r->random >> 33) % below;
}

/* ---- ways ---- */

static unsigned rack_home(const struct shape *s, unsigned chunk)
{
	return s->plan == PLAN_TREE ? 0 : chunk % BOXES;
}

/* The box that this one lifts it to; its own number: this is the home. */
static unsigned rack_next(const struct shape *s, unsigned box, unsigned chunk)
{
	unsigned home = rack_home(s, chunk);

	return box == home || s->plan != PLAN_CHAIN ? home : (box + 1) % BOXES;
}

/* Its contributor that `box` is at `at`. */
static uint32_t rack_slot(unsigned at, unsigned box)
{
	return rack_workers[at] + (box > at ? box - 1 : box);
}

/* The number of the uplink that leads from one to the other. */
static uint16_t rack_way(unsigned from, unsigned to)
{
	return (uint16_t)(to > from ? to - 1 : to);
}

/* ---- the queue that leads up ---- */

static struct place *place_of(struct queue *q)
{
	return (struct place *)((char *)q - offsetof(struct place, queue));
}

static int up_adopt(struct queue *q, struct conn *c, const struct conn_spec *spec)
{
	(void)spec;
	c->queue = q;
	return 0;
}

static unsigned up_poll(struct queue *q, uint64_t now_ns, struct event *events, unsigned max)
{
	struct place *p = place_of(q);
	unsigned count = p->event_count;

	(void)now_ns;
	assert_true(count <= max);
	memcpy(events, p->events, count * sizeof(*events));
	p->event_count = 0;
	return count;
}

static int up_send(struct queue *q, struct conn *c, const struct wire_header *h, const void *payload, void *cookie)
{
	struct place *p = place_of(q);
	struct rack *r = p->rack;
	unsigned way = (unsigned)(c - p->conns);

	if (p->room == 0)
		return -EAGAIN;
	p->room--;
	assert_true(r->pending_count < PENDING);
	r->pending[r->pending_count++] =
		(struct message){p->number, way < p->number ? way : way + 1, *h, payload, cookie};
	return 0;
}

static void up_drop(struct queue *q, struct conn *c)
{
	(void)c;
	place_of(q)->dropped = true;
}

static const struct queue_ops up_ops = {.adopt = up_adopt, .poll = up_poll, .send = up_send, .drop = up_drop};

/* ---- boxes ---- */

static void place_open(struct rack *r, unsigned number)
{
	struct place *p = &r->places[number];
	struct bench *b = p->b = bench_new();
	const struct shape *s = &r->shape;
	uint32_t world = rack_workers[number] + BOXES - 1;
	uint64_t from[CHUNKS];

	p->rack = r;
	p->number = number;
	p->room = UINT_MAX;
	b->chunk_count = CHUNKS;
	b->elements = 509; /* no multiple of a vector */
	b->dtype = s->dtype;
	b->conn_spec.window = 64;
	b->spec.id = JOB;
	b->spec.optimizer = s->optimizer;
	b->spec.mean = s->mean;
	b->spec.reproducible = s->reproducible;
	b->spec.boxes = BOXES - 1;
	b->spec.lift = s->lift;
	b->spec.root = number == 1 ? 0 : world; /* rank 0 is the second box's worker */
	b->spec.way_of_chunk = p->way_of_chunk;
	b->spec.way_count = BOXES - 1;
	b->spec.names = p->names;
	for (unsigned i = 0; i < CHUNKS; i++) {
		unsigned next = rack_next(s, number, i);

		p->way_of_chunk[i] = next == number ? SPEC_HOME : rack_way(number, next);
	}
	for (uint32_t i = 0; i < world; i++)
		p->names[i] = 100 * number + i;
	bench_open(b, world, s->hold_max);
	for (unsigned other = 0; other < BOXES; other++) {
		if (other == number)
			continue;
		for (unsigned i = 0; i < CHUNKS; i++)
			from[i] = other != rack_home(s, i) && rack_next(s, other, i) == number ? 0 : MEMBERS_NEVER;
		members_await(b->shard, (const uint64_t[]){UINT64_C(1) << rack_slot(number, other)}, from);
	}
	p->core.config.control = b->control;
	p->core.uplinks[0] = &p->queue;
	p->core.uplink_count = 1;
	p->queue.ops = &up_ops;
}

static void place_connect(struct place *p, unsigned to)
{
	uint16_t way = rack_way(p->number, to);
	struct uplink *up = &p->b->shard->uplinks[way];
	const struct mail mail = {.kind = MAIL_UPLINK,
		.shard = p->b->shard,
		.conn = &p->conns[way],
		.uplink = &p->specs[way],
		.rank = way};

	p->specs[way] = (struct uplink_spec){.conn = {.queue = &p->queue,
						     .window = 64,
						     .chunk_count = CHUNKS,
						     .sinks = p->rack->shape.sinks ? p->sinks[way] : NULL},
		.job = JOB,
		.epoch = 1,
		.rank = 100 * to + rack_slot(to, p->number)};
	for (uint32_t at = 0; at < up->chunk_count; at++)
		lift_place(up, at, up->chunks[at].local);
	assert_int_equal(uplink_open(&mail), 0);
}

static void fill_as(struct bench *b, uint32_t slot, uint32_t rank, uint64_t round, bool rounds)
{
	float plain[CHUNK_ELEMENTS];

	for (uint32_t i = 0; i < b->elements; i++) {
		uint64_t number = rank * 7919 + round * 104729 + i * 31;

		plain[i] = rounds ? 1 / (float)(3 + number % 1009) : (float)(number % 13) - 5;
	}
	convert_from_f32(b->data[slot], b->dtype, plain, b->elements);
}

static void fill(struct bench *b, uint32_t slot, uint32_t rank, uint64_t round)
{
	fill_as(b, slot, rank, round, false);
}

static struct rack *rack_open(const struct shape *shape)
{
	struct rack *r = calloc(1, sizeof(*r));
	uint32_t world = 0;

	r->shape = *shape;
	r->random = shape->seed * 77 + 1;
	for (unsigned i = 0; i < BOXES; i++) {
		place_open(r, i);
		world += rack_workers[i];
	}
	for (unsigned i = 0; i < BOXES; i++)
		for (unsigned to = 0; to < BOXES; to++)
			if (to != i)
				place_connect(&r->places[i], to);
	r->flat = bench_new();
	r->flat->chunk_count = CHUNKS;
	r->flat->elements = r->places[0].b->elements;
	r->flat->dtype = shape->dtype;
	r->flat->spec.optimizer = shape->optimizer;
	r->flat->spec.mean = shape->mean;
	r->flat->spec.reproducible = shape->reproducible;
	/* What the tree of rack_rank() comes to: workers of the first box, which is its root, then the others' sums. */
	if (shape->rounds)
		assert_int_equal(association_parse("[1, 2, 0, [3-5]]", world, &r->association, NULL), 0);
	r->flat->spec.association = r->association;
	bench_open(r->flat, world, shape->seed % 3 ? 8 : 0);
	return r;
}

static void rack_close(struct rack *r)
{
	for (unsigned i = 0; i < BOXES; i++) {
		uplink_drop(r->places[i].b->shard);
		bench_close(r->places[i].b);
	}
	bench_close(r->flat);
	free(r->association);
	free(r);
}

/* The same in the middle of a round. */
static void rack_drop(struct rack *r)
{
	for (unsigned i = 0; i < BOXES; i++) {
		struct bench *b = r->places[i].b;

		b->fake.sent_count = 0;
		for (uint32_t slot = 0; slot < b->spec.world; slot++)
			link_close(&b->shard->links[slot]);
		while (link_sweep(b->shard))
			continue;
	}
	rack_close(r);
}

/* ---- what is carried ---- */

/* A message comes to contributor `slot` of this box. */
static void place_hear(struct place *p, uint32_t slot, const struct wire_header *h, const void *payload)
{
	struct event e = {.type = EVENT_MESSAGE,
		.conn = &p->b->fake.conns[slot],
		.header = *h,
		.payload = payload,
		.slot = p->b->fake.queue.hold_max > 0 && payload ? (void *)(uintptr_t)payload : NULL};

	event_whole(&e);
	receive_batch(&p->core, &p->b->fake.queue, &e, 1, ++p->rack->now);
	assert_non_null(p->b->shard->links[slot].conn);
}

static struct event *place_event(struct place *p, unsigned from, enum event_type type)
{
	struct event *e = &p->events[p->event_count++];

	assert_true(p->event_count <= LIFT_EVENTS);
	*e = (struct event){.type = type, .conn = &p->conns[rack_way(p->number, from)]};
	return e;
}

/* The box below gets what this one sent it: before its queue reads no more of it. */
static void place_answer(struct place *p, unsigned below, const struct sent *sent)
{
	struct place *to = &p->rack->places[below];
	struct event *e = place_event(to, p->number, EVENT_MESSAGE);
	struct sink *sinks = to->specs[rack_way(below, p->number)].conn.sinks;

	e->header = sent->header;
	e->payload = sent->payload;
	event_whole(e);
	if (sinks && sent->header.type == WIRE_RESULT) {
		assert_int_equal(sinks[sent->header.chunk].bytes, sent->header.length);
		memcpy(sinks[sent->header.chunk].addr, sent->payload, sent->header.length);
		e->payload = sinks[sent->header.chunk].addr;
	}
	uplink_poll(&to->core, to->core.uplinks[0], ++p->rack->now);
}

/* What this box sent down arrives. Results of its own workers are those of the one box. */
static void place_carry_down(struct place *p)
{
	struct bench *b = p->b;

	for (unsigned i = 0; i < b->fake.sent_count; i++) {
		struct sent sent = b->fake.sent[i];
		uint32_t slot = (uint32_t)(sent.conn - b->fake.conns);
		uint32_t other = slot - rack_workers[p->number];

		assert_int_equal(sent.header.rank, p->names[slot]);
		if (slot >= rack_workers[p->number]) {
			place_answer(p, other >= p->number ? other + 1 : other, &sent);
		} else if (sent.header.type == WIRE_RESULT) {
			const struct chunk *flat = &p->rack->flat->shard->chunks[sent.header.chunk];

			assert_int_equal(sent.header.round + 1, flat->round);
			assert_memory_equal(sent.payload, flat->result, flat->bytes);
			p->got[sent.header.chunk]++;
		}
		if (sent.cookie)
			chunk_sent(sent.cookie, sent.conn->user, p->rack->now);
	}
	b->fake.sent_count = 0;
}

/* One of the messages that are under way, but never one before another of its connection. */
static void rack_carry_up(struct rack *r)
{
	unsigned pick = (unsigned)rack_random(r, r->pending_count);
	struct message m;
	struct event *e;

	for (unsigned i = 0; i < pick; i++)
		if (r->pending[i].from == r->pending[pick].from && r->pending[i].to == r->pending[pick].to)
			pick = i;
	m = r->pending[pick];
	memmove(&r->pending[pick], &r->pending[pick + 1], (r->pending_count - pick - 1) * sizeof(m));
	r->pending_count--;
	place_hear(&r->places[m.to], rack_slot(m.to, m.from), &m.header, m.payload);
	e = place_event(&r->places[m.from], m.to, EVENT_SENT);
	e->cookie = m.cookie;
	if (rack_random(r, 2)) /* before the result, or with it */
		uplink_poll(&r->places[m.from].core, &r->places[m.from].queue, ++r->now);
}

static void rack_settle(struct rack *r)
{
	bool moved = true;

	while (moved) {
		moved = r->pending_count > 0;
		if (moved)
			rack_carry_up(r);
		for (unsigned i = 0; i < BOXES; i++) {
			moved = moved || r->places[i].b->fake.sent_count > 0 || r->places[i].event_count > 0;
			place_carry_down(&r->places[i]);
			uplink_poll(&r->places[i].core, &r->places[i].queue, ++r->now);
		}
	}
}

/* A worker's message about one chunk, here and at the one box. */
static void rack_push(struct rack *r, unsigned box, uint32_t slot, unsigned chunk, enum wire_type type, uint64_t round)
{
	struct place *p = &r->places[box];
	struct wire_header h = {.type = type,
		.length = type == WIRE_PULL ? 0 : p->b->shard->chunks[chunk].bytes,
		.job = JOB,
		.epoch = p->b->shard->epoch,
		.chunk = chunk,
		.rank = p->names[slot],
		.round = round,
		.count = type != WIRE_PULL,
		.seq = ++p->b->seq[slot]};

	place_hear(p, slot, &h, type == WIRE_PULL ? NULL : p->b->data[slot]);
}

/* Rank 0 is the second box's first worker. */
static uint32_t rack_rank(unsigned box, uint32_t slot)
{
	return box == 1 ? 0 : slot + (box == 0 ? 1 : 1 + rack_workers[0]);
}

static void flat_push(struct rack *r, uint64_t round, bool broadcast)
{
	for (uint32_t rank = 0; rank < r->flat->spec.world; rank++)
		fill_as(r->flat, rank, rank, round, r->shape.rounds);
	for (unsigned chunk = 0; chunk < CHUNKS; chunk++) {
		r->flat->chunk = &r->flat->shard->chunks[chunk];
		for (uint32_t rank = 0; rank < r->flat->spec.world; rank++)
			bench_push(r->flat, rank,
				!broadcast  ? WIRE_PUSH
				: rank == 0 ? WIRE_INIT
					    : WIRE_PULL,
				round, 0, false);
	}
	bench_complete(r->flat);
}

/* What this box has of open rounds is withdrawn: its workers push it again, and so do the boxes that lift to it. */
static void place_change(struct place *p)
{
	uint64_t rounds[CHUNKS];
	struct members m = {.epoch = p->b->shard->epoch + 1, .repair = true, .rounds = rounds, .from = rounds};

	members_hold(p->b->shard, &m);
	for (unsigned i = 0; i < CHUNKS; i++)
		assert_int_equal(rounds[i], p->b->shard->chunks[i].round + chunk_is_up(&p->b->shard->chunks[i]));
	members_go(p->b->shard, &m, ++p->rack->now);
}

/* All workers, in any order, with what is carried meanwhile. */
static void rack_round(struct rack *r, uint64_t round, bool broadcast)
{
	bool done[BOXES][BENCH_WORLD_MAX][CHUNKS] = {0};
	unsigned left = 0;

	flat_push(r, round, broadcast);
	for (unsigned box = 0; box < BOXES; box++) {
		memset(r->places[box].got, 0, sizeof(r->places[box].got));
		left += rack_workers[box] * CHUNKS;
		for (uint32_t slot = 0; slot < rack_workers[box]; slot++)
			fill_as(r->places[box].b, slot, rack_rank(box, slot), round, r->shape.rounds);
	}
	while (left > 0) {
		unsigned box = (unsigned)rack_random(r, BOXES), chunk = (unsigned)rack_random(r, CHUNKS);
		uint32_t slot = (uint32_t)rack_random(r, rack_workers[box]);
		bool root = box == 1 && slot == 0;

		if (!done[box][slot][chunk]) {
			rack_push(r, box, slot, chunk, !broadcast ? WIRE_PUSH : root ? WIRE_INIT : WIRE_PULL, round);
			done[box][slot][chunk] = true;
			left--;
		}
		if (r->shape.changes && rack_random(r, 12) == 0) {
			box = (unsigned)rack_random(r, BOXES);
			place_change(&r->places[box]);
			for (slot = 0; slot < rack_workers[box]; slot++)
				for (chunk = 0; chunk < CHUNKS; chunk++) {
					left += done[box][slot][chunk];
					done[box][slot][chunk] = false;
				}
		}
		if (r->pending_count > 0 && rack_random(r, 2))
			rack_carry_up(r);
		place_carry_down(&r->places[rack_random(r, BOXES)]);
	}
	rack_settle(r);
	for (unsigned box = 0; box < BOXES; box++)
		for (unsigned chunk = 0; chunk < CHUNKS; chunk++)
			assert_int_equal(r->places[box].got[chunk], rack_workers[box]);
}

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

	(void)state;
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
	(void)state;
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

	(void)state;
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

	(void)state;
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

/* Small integers are the same in all of these types. */
static void test_types(void **state)
{
	static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

	(void)state;
	for (unsigned i = 0; i < 27; i++) {
		const struct shape shape = {.plan = (enum plan)(i % 3),
			.dtype = types[i / 3 % 3],
			.lift = types[i / 9],
			.hold_max = i % 2 ? 8 : 0,
			.seed = i};

		run(&shape);
	}
}

/* ---- sums of which each bit is fixed ---- */

/* One box that is told the tree's association makes the tree's bits, whatever the types and the order of arrival. */
static void test_association(void **state)
{
	static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

	(void)state;
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

	(void)state;
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

	(void)state;
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

	(void)state;
	place_event(p, 0, EVENT_CLOSED)->error = -ECONNRESET;
	uplink_poll(&p->core, p->core.uplinks[0], 1);
	assert_true(p->dropped);
	assert_int_equal(bench_mail(p->b).kind, MAIL_UPLINK_ENDED);
	push_third(r);
	assert_int_equal(r->pending_count, 0);
	assert_true(p->b->shard->chunks[0].lifted);
	assert_int_equal(p->b->fake.sent_count, 0);
	rack_drop(r);
}

/* What no box above says ends the connection, and control hears which; nobody below is answered. */
static void test_wrong_results(void **state)
{
	(void)state;
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
	(void)state;
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_as_one_box),
		cmocka_unit_test(test_changes),
		cmocka_unit_test(test_lost_when_lifted),
		cmocka_unit_test(test_stops_when_lifted),
		cmocka_unit_test(test_types),
		cmocka_unit_test(test_association),
		cmocka_unit_test(test_lifted),
		cmocka_unit_test(test_no_room),
		cmocka_unit_test(test_after_the_end),
		cmocka_unit_test(test_wrong_results),
		cmocka_unit_test(test_wrong_pushes),
	};

	return cmocka_run_group_tests_name("lift", tests, NULL, NULL);
}
