/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seeded worlds of messages over bad wires: workers push chunks, a box answers each, and each worker then pushes that
 * chunk's next round. Every byte must come exactly once and right, SENT before the next message about its chunk, all
 * within bounds of memory and of virtual time. RELIABLE_SEEDS says how many seeds; the first is RELIABLE_FROM.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"
#include "tests/unit/reliable_rig.h"

enum { ROUNDS_MAX = 8, BLOCK = TRANSPORT_PART_ALIGN, SEEDS = 100, LOG_MAX = 4096 };
#define DEADLINE_NS (60 * UINT64_C(1000000000))

/* One direction of one chunk. */
struct side {
	uint8_t *buffer;   /* what is sent */
	uint64_t round;    /* worker: to be pushed next, or awaited; box: expected */
	bool busy;         /* worker: pushed, no result yet; box: pushed here, not answered */
	bool sent_pending; /* SENT is owed */
	uint64_t ready_at; /* box: answers then */
	uint8_t *came;     /* box: of each block */
	uint32_t bytes_came;
};

struct member {
	struct side worker[WIRED_CHUNKS_MAX], box[WIRED_CHUNKS_MAX];
	uint32_t seq, credit;    /* worker */
	uint32_t taken, box_seq; /* box: whole messages; what was sent, */
	bool credit_owed;        /* ... a WIRE_CREDIT among it */
	uint32_t seen;           /* worker: messages that came whole */
	uint32_t ahead[LOG_MAX]; /* [seq] of box messages: so many were sent before it */
	bool stuck[2];           /* send() said -EAGAIN at worker, at box */
	uint64_t results;
};

struct play {
	struct wired rig;
	struct member members[WIRED_WORKERS_MAX];
	uint64_t rounds, left; /* results to come */
	uint64_t sent_left;    /* SENT to come */
	unsigned writable;
};

static uint8_t content(unsigned worker, unsigned chunk, uint64_t round, bool from_box, uint32_t at)
{
	uint32_t x = at / 4 * 2654435761u + worker * 97 + chunk * 1009 + (uint32_t)round * 31 + from_box * 7919;

	return (uint8_t)((x ^ x >> 15) >> (8 * (at % 4)));
}

static void fill(uint8_t *out, unsigned worker, unsigned chunk, uint64_t round, bool from_box, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i++)
		out[i] = content(worker, chunk, round, from_box, i);
}

static void check(const uint8_t *got, unsigned worker, unsigned chunk, uint64_t round, bool from_box, uint32_t offset,
	uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i++)
		if (got[i] != content(worker, chunk, round, from_box, offset + i))
			fail_msg("worker %u chunk %u round %llu: byte %u is wrong", worker, chunk,
				(unsigned long long)round, offset + i);
}

/* The first round of some chunks has values, others only take part. */
static enum wire_type kind_of(unsigned worker, unsigned chunk, uint64_t round)
{
	if (round > 0)
		return WIRE_PUSH;
	return worker == chunk % 2 ? WIRE_INIT : WIRE_PULL;
}

/* ---- what comes ---- */

static void box_part(struct play *p, unsigned w, const struct event *e)
{
	unsigned chunk = e->header.chunk;
	struct side *s = &p->members[w].box[chunk];
	uint32_t bytes = e->header.type == WIRE_PULL ? 0 : p->rig.spans[chunk].bytes;
	const uint32_t step = BLOCK;

	assert_false(s->sent_pending); /* SENT of the result before comes first */
	assert_false(s->busy);
	assert_int_equal(e->header.round, s->round);
	assert_int_equal(e->header.type, kind_of(w, chunk, s->round));
	assert_int_equal(e->header.rank, w);
	assert_int_equal(e->header.job, WIRED_JOB);
	assert_int_equal(e->header.length, bytes);
	assert_null(e->slot);
	assert_true(e->offset % step == 0 && e->offset + e->bytes <= bytes);
	assert_true(e->bytes % step == 0 || e->offset + e->bytes == bytes);
	assert_true(e->bytes > 0 || bytes == 0);
	if (e->bytes)
		check(e->payload, w, chunk, s->round, false, e->offset, e->bytes);
	for (uint32_t i = e->offset / step; i < (e->offset + e->bytes + step - 1) / step; i++) {
		assert_false(s->came[i]);
		s->came[i] = 1;
	}
	s->bytes_came += e->bytes;
	assert_int_equal(e->last, s->bytes_came == bytes);
	if (!e->last)
		return;
	memset(s->came, 0, bytes / step + 1);
	s->bytes_came = 0;
	s->busy = true;
	s->ready_at = p->rig.now + wired_between(&p->rig, 0, 100000);
	p->members[w].taken++;
	p->members[w].credit_owed |= wired_chance(&p->rig) < 0.1;
}

static void worker_message(struct play *p, unsigned w, const struct event *e)
{
	struct member *m = &p->members[w];
	unsigned chunk = e->header.chunk;
	struct side *s = &m->worker[chunk];

	assert_in_range(e->header.seq, 1, m->box_seq);
	if (wire_after(e->header.credit, m->credit))
		m->credit = e->header.credit;
	if (e->header.type == WIRE_CREDIT) /* a fence: all that was sent before it is here */
		assert_true(m->seen >= m->ahead[e->header.seq]);
	m->seen++;
	if (e->header.type == WIRE_CREDIT)
		return;
	assert_int_equal(e->header.type, WIRE_RESULT);
	assert_true(s->busy);
	if (p->rig.options.wire.late <= 0) /* else a device may read the push still, as a repetition */
		assert_false(s->sent_pending);
	assert_int_equal(e->header.round, s->round);
	assert_true(e->last && e->offset == 0 && e->bytes == p->rig.spans[chunk].bytes);
	assert_ptr_equal(e->payload, p->rig.sinks[w][chunk].addr);
	check(e->payload, w, chunk, s->round, true, 0, e->bytes);
	memset(p->rig.sinks[w][chunk].addr, 0x5a, e->bytes);
	s->busy = false;
	s->round++;
	p->left--;
}

static void play_event(struct wired *rig, struct wired_end *end, unsigned w, const struct event *e)
{
	struct play *p = rig->user;
	bool box = end->who == WIRED_BOX;

	if (e->type == EVENT_MESSAGE && box) {
		box_part(p, w, e);
	} else if (e->type == EVENT_MESSAGE) {
		worker_message(p, w, e);
	} else if (e->type == EVENT_SENT) {
		struct side *s = e->cookie;

		assert_true(s->sent_pending);
		s->sent_pending = false;
		p->sent_left--;
		/* It is ours again: whoever still reads it will be found out. */
		memset(s->buffer, 0xee, rig->spans[s - (box ? p->members[w].box : p->members[w].worker)].bytes);
	} else {
		assert_int_equal(e->type, EVENT_WRITABLE);
		assert_true(p->members[w].stuck[box]);
		p->members[w].stuck[box] = false;
		p->writable++;
	}
}

/* ---- what is sent ---- */

static bool play_send(struct play *p, unsigned w, bool box, const struct wire_header *h, struct side *s)
{
	struct wired_end *end = &p->rig.ends[box ? WIRED_BOX : w];
	int rc = reliable_send(end->r, end->conns[w], h, s ? s->buffer : NULL, s);

	if (rc == -EAGAIN) {
		p->members[w].stuck[box] = true;
		return false;
	}
	assert_int_equal(rc, 0);
	if (s) {
		s->sent_pending = true;
		p->sent_left++;
	}
	return true;
}

static void worker_push(struct play *p, unsigned w, unsigned chunk)
{
	struct member *m = &p->members[w];
	struct side *s = &m->worker[chunk];
	struct wire_header h = {.type = kind_of(w, chunk, s->round),
		.job = WIRED_JOB,
		.chunk = chunk,
		.rank = w,
		.round = s->round,
		.count = 1,
		.seq = m->seq + 1};

	h.length = h.type == WIRE_PULL ? 0 : p->rig.spans[chunk].bytes;
	fill(s->buffer, w, chunk, s->round, false, h.length);
	if (!play_send(p, w, false, &h, s))
		return;
	s->busy = true;
	m->seq++;
}

static void box_send(struct play *p, unsigned w, unsigned chunk, bool credit)
{
	struct member *m = &p->members[w];
	struct side *s = credit ? NULL : &m->box[chunk];
	struct wire_header h = {.type = credit ? WIRE_CREDIT : WIRE_RESULT,
		.job = WIRED_JOB,
		.rank = w,
		.count = credit ? 0 : 1,
		.credit = m->taken + p->rig.options.window};

	if (s) {
		h.chunk = chunk;
		h.round = s->round;
		h.length = p->rig.spans[chunk].bytes;
		fill(s->buffer, w, chunk, s->round, true, h.length);
	}
	if (!play_send(p, w, true, &h, s))
		return;
	assert_true(++m->box_seq < LOG_MAX);
	m->ahead[m->box_seq] = m->box_seq - 1;
	if (!s) {
		m->credit_owed = false;
		return;
	}
	s->busy = false;
	s->round++;
}

static void play_act(struct play *p, unsigned w)
{
	struct member *m = &p->members[w];

	for (unsigned c = 0; c < p->rig.options.chunks; c++) {
		struct side *s = &m->worker[c];

		if (!m->stuck[0] && !s->busy && !s->sent_pending && s->round < p->rounds &&
			!wire_after(m->seq + 1, m->credit))
			worker_push(p, w, c);
		s = &m->box[c];
		if (!m->stuck[1] && s->busy && s->ready_at <= p->rig.now)
			box_send(p, w, c, false);
		if (!m->stuck[1] && m->credit_owed)
			box_send(p, w, 0, true);
	}
}

static uint64_t play_next(const struct play *p)
{
	uint64_t next = UINT64_MAX;

	for (unsigned w = 0; w < p->rig.options.workers; w++) {
		const struct member *m = &p->members[w];

		for (unsigned c = 0; c < p->rig.options.chunks; c++)
			if (m->box[c].busy && !m->stuck[1] && m->box[c].ready_at < next)
				next = m->box[c].ready_at;
	}
	return next;
}

/* ---- a world ---- */

static uint32_t draw_bytes(struct wired *rig)
{
	switch (wired_between(rig, 0, 5)) {
	case 0:
		return (uint32_t)wired_between(rig, 1, 300);
	case 1:
		return (uint32_t)wired_between(rig, 20000, 200000);
	default:
		return (uint32_t)wired_between(rig, 1, 20000);
	}
}

static void play_draw(uint64_t seed, struct wired_options *o, uint64_t *rounds)
{
	static const uint32_t sizes[] = {1232, 1472, 8972, WIRE_DATAGRAM_MAX};
	struct wired dice = {.random = seed * 0x2545f4914f6cdd1du};

	*o = (struct wired_options){.seed = seed};
	o->workers = (unsigned)wired_between(&dice, 1, 5);
	o->chunks = (unsigned)wired_between(&dice, 1, 20);
	for (unsigned i = 0; i < o->chunks; i++)
		o->chunk_bytes[i] = draw_bytes(&dice);
	o->window = (uint32_t)wired_between(&dice, 1, 70);
	o->datagram_max = sizes[wired_between(&dice, 0, 3)];
	o->room_bytes = wired_between(&dice, 0, 2) ? 1 << 20 : 256 << 10;
	o->send_bytes_max = wired_between(&dice, 0, 2) ? 0 : (uint32_t)wired_between(&dice, 1000, 300000);
	o->seal = wired_between(&dice, 0, 3) ? SEAL_CRC : SEAL_GMAC;
	o->wire = (struct wired_wire){.delay_min_ns = 1000 * wired_between(&dice, 0, 20),
		.reorder = (double)wired_between(&dice, 0, 20) / 100,
		.reorder_ns = 1000 * wired_between(&dice, 1, 1000),
		.drop = (double)wired_between(&dice, 0, 20) / 100,
		.duplicate = (double)wired_between(&dice, 0, 10) / 100,
		.corrupt = (double)wired_between(&dice, 0, 5) / 100,
		.late = (double)wired_between(&dice, 0, 20) / 100,
		.late_ns = 50000};
	o->wire.delay_max_ns = o->wire.delay_min_ns + 1000 * wired_between(&dice, 0, 100);
	*rounds = wired_between(&dice, 2, ROUNDS_MAX);
}

static void side_init(struct side *s, uint32_t bytes)
{
	s->buffer = malloc(bytes);
	s->came = calloc(1, bytes / BLOCK + 1);
}

static void play_open(struct play *p, uint64_t seed)
{
	struct wired_options o;

	play_draw(seed, &o, &p->rounds);
	wired_open(&p->rig, &o);
	p->rig.user = p;
	p->left = p->rounds * o.workers * o.chunks;
	for (unsigned w = 0; w < o.workers; w++) {
		p->members[w].credit = p->rig.options.window;
		for (unsigned c = 0; c < o.chunks; c++) {
			side_init(&p->members[w].worker[c], o.chunk_bytes[c]);
			side_init(&p->members[w].box[c], o.chunk_bytes[c]);
			p->rig.sinks[w][c] = (struct sink){.addr = malloc(o.chunk_bytes[c]), .bytes = o.chunk_bytes[c]};
		}
	}
	wired_probe(&p->rig);
	p->rig.event = play_event;
}

static void play_close(struct play *p)
{
	for (unsigned w = 0; w < p->rig.options.workers; w++) {
		for (unsigned c = 0; c < p->rig.options.chunks; c++) {
			free(p->members[w].worker[c].buffer);
			free(p->members[w].worker[c].came);
			free(p->members[w].box[c].buffer);
			free(p->members[w].box[c].came);
			free(p->rig.sinks[w][c].addr);
		}
	}
}

/* What neither loses nor damages anything tells the cores apart from the wire. */
static void play_books(const struct play *p, uint64_t seed)
{
	uint64_t forged = 0;

	for (unsigned who = 0; who <= WIRED_BOX; who++) {
		if (!p->rig.ends[who].r)
			continue;
		forged += wired_drops(&p->rig, who, RELIABLE_FORGED);
		for (enum reliable_drop why = 0; why < RELIABLE_DROPS; why++) {
			uint64_t count = wired_drops(&p->rig, who, why);

			/* What a device reads late, of a result that has come, may be the next one's: a torn
			 * repetition. */
			if (why == RELIABLE_FORGED && p->rig.options.wire.late > 0)
				continue;
			if (p->rig.damaged == 0 && why != RELIABLE_REPEAT && count)
				fail_msg("seed %llu: end %u dropped %llu as %s", (unsigned long long)seed, who,
					(unsigned long long)count, reliable_drop_name(why));
		}
	}
	assert_true(forged <= p->rig.damaged || p->rig.options.wire.late > 0);
}

static void play_seed(uint64_t seed)
{
	struct play *p = calloc(1, sizeof(*p));
	uint64_t begun;

	play_open(p, seed);
	begun = p->rig.now;
	while (p->left || p->sent_left) {
		unsigned work = wired_turn(&p->rig);
		uint64_t next;

		for (unsigned w = 0; w < p->rig.options.workers; w++)
			play_act(p, w);
		if (work)
			continue;
		next = play_next(p);
		next = next <= p->rig.now ? 1 : next == UINT64_MAX ? DEADLINE_NS : next - p->rig.now;
		wired_advance(&p->rig, next);
		if (p->rig.now > begun + DEADLINE_NS)
			fail_msg("seed %llu: %llu results and %llu SENT are missing", (unsigned long long)seed,
				(unsigned long long)p->left, (unsigned long long)p->sent_left);
	}
	if (getenv("RELIABLE_TELL"))
		print_message("seed %llu: %.3f s, %llu datagrams, %llu lost\n", (unsigned long long)seed,
			(double)(p->rig.now - begun) / 1e9, (unsigned long long)p->rig.put,
			(unsigned long long)p->rig.lost);
	p->rig.event = NULL;
	wired_run(&p->rig, 200000); /* what is late is let go */
	play_books(p, seed);
	wired_close(&p->rig);
	play_close(p);
	free(p);
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 0) : otherwise;
}

static void all_seeds_deliver_every_byte_once(void **state)
{
	uint64_t from = setting("RELIABLE_FROM", 1), count = setting("RELIABLE_SEEDS", SEEDS);

	for (uint64_t seed = from; seed < from + count; seed++) {
		if (getenv("RELIABLE_TELL"))
			print_message("seed %llu begins\n", (unsigned long long)seed);
		play_seed(seed);
	}
}

TEST_PROGRAM(test_reliable_seeds)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(all_seeds_deliver_every_byte_once)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
