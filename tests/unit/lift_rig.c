/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/lift_rig.h"

#include "phub/link.h"
#include "phub/members.h"
#include "phub/receive.h"
#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const uint32_t rack_workers[BOXES] = {2, 1, 3};

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
uint32_t rack_slot(unsigned at, unsigned box)
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
	c->queue = q;
	return 0;
}

static unsigned up_poll(struct queue *q, uint64_t now_ns, struct event *events, unsigned max)
{
	struct place *p = place_of(q);
	unsigned count = p->event_count;

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

void place_connect(struct place *p, unsigned to)
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

/* Box and Muller's, of two numbers that the key is mixed to (splitmix64). */
static double normal_of(uint64_t key)
{
	double uniform[2];

	for (unsigned i = 0; i < 2; i++) {
		uint64_t z = (2 * key + i + 1) * UINT64_C(0x9e3779b97f4a7c15);

		z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
		z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
		uniform[i] = ((double)((z ^ z >> 31) >> 11) + 0.5) * 0x1p-53;
	}
	return sqrt(-2 * log(uniform[0])) * cos(2 * M_PI * uniform[1]);
}

static void fill_as(struct bench *b, uint32_t slot, uint32_t rank, uint64_t round, const struct shape *s)
{
	float plain[CHUNK_ELEMENTS];

	for (uint32_t i = 0; i < b->elements; i++) {
		uint64_t number = rank * 7919 + round * 104729 + i * 31;

		if (s->scale > 0)
			plain[i] = (float)(s->scale *
					   normal_of(((s->seed * 64 + round) * 64 + rank) * CHUNK_ELEMENTS + i));
		else
			plain[i] = s->rounds ? 1 / (float)(3 + number % 1009) : (float)(number % 13) - 5;
	}
	convert_from_f32(b->data[slot], b->dtype, plain, b->elements);
}

void fill(struct bench *b, uint32_t slot, uint32_t rank, uint64_t round)
{
	fill_as(b, slot, rank, round, &(struct shape){0});
}

struct rack *rack_open(const struct shape *shape)
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

void rack_close(struct rack *r)
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
void rack_drop(struct rack *r)
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

struct event *place_event(struct place *p, unsigned from, enum event_type type)
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

/* What a link up may add to this sum: lift.h. */
static double link_error(enum dtype lift, double sum)
{
	if (lift == DTYPE_F16)
		return fmax(0x1p-11 * sum, 0x1p-25);
	return lift == DTYPE_BF16 ? 0x1p-8 * sum : 0;
}

/* The exact result of this element, and how far one may be from it that has gone the chunk's ways to its home. */
static double rack_bound(const struct rack *r, unsigned chunk, uint32_t element, double *bound)
{
	double sum[BOXES] = {0}, error[BOXES] = {0}, magnitudes = 0;
	uint32_t world = r->flat->spec.world;
	unsigned home = rack_home(&r->shape, chunk);
	double scale = r->shape.mean ? 1.0 / world : 1;

	for (unsigned i = 1; i <= BOXES; i++) { /* each before that above it */
		unsigned box = (home + i) % BOXES, next = rack_next(&r->shape, box, chunk);

		for (uint32_t slot = 0; slot < rack_workers[box]; slot++) {
			double g = (double)r->flat->data[rack_rank(box, slot)][element];

			sum[box] += g;
			magnitudes += fabs(g);
		}
		if (box == home)
			continue;
		sum[next] += sum[box];
		error[next] += error[box] + link_error(r->shape.lift, fabs(sum[box]) + error[box]);
	}
	*bound = (error[home] + 0x1p-24 * world * magnitudes) * scale + 0x1p-23 * fabs(sum[home]) * scale;
	return sum[home] * scale;
}

static void rack_check(struct rack *r, unsigned chunk, const float *result)
{
	for (uint32_t i = 0; i < r->flat->elements; i++) {
		double bound, exact = rack_bound(r, chunk, i, &bound), error = fabs((double)result[i] - exact);

		if (!(error <= bound))
			fail_msg("chunk %u, element %u: %a, and %a exactly: %.3f of what is allowed", chunk, i,
				(double)result[i], exact, error / bound);
		r->worst = fmax(r->worst, error / bound);
	}
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
			if (p->rack->bounded)
				rack_check(p->rack, sent.header.chunk, sent.payload);
			else
				assert_memory_equal(sent.payload, flat->result, flat->bytes);
			p->got[sent.header.chunk]++;
		}
		if (sent.cookie)
			chunk_sent(sent.cookie, sent.conn->user, p->rack->now);
	}
	b->fake.sent_count = 0;
}

/* One of the messages that are under way, but never one before another of its connection. */
void rack_carry_up(struct rack *r)
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

void rack_settle(struct rack *r)
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
void rack_push(struct rack *r, unsigned box, uint32_t slot, unsigned chunk, enum wire_type type, uint64_t round)
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
uint32_t rack_rank(unsigned box, uint32_t slot)
{
	return box == 1 ? 0 : slot + (box == 0 ? 1 : 1 + rack_workers[0]);
}

void flat_push(struct rack *r, uint64_t round, bool broadcast)
{
	for (uint32_t rank = 0; rank < r->flat->spec.world; rank++)
		fill_as(r->flat, rank, rank, round, &r->shape);
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
void rack_round(struct rack *r, uint64_t round, bool broadcast)
{
	bool done[BOXES][BENCH_WORLD_MAX][CHUNKS] = {0};
	unsigned left = 0;

	r->bounded = r->shape.scale > 0 && !broadcast;
	flat_push(r, round, broadcast);
	for (unsigned box = 0; box < BOXES; box++) {
		memset(r->places[box].got, 0, sizeof(r->places[box].got));
		left += rack_workers[box] * CHUNKS;
		for (uint32_t slot = 0; slot < rack_workers[box]; slot++)
			fill_as(r->places[box].b, slot, rack_rank(box, slot), round, &r->shape);
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
