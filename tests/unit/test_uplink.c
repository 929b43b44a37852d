/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shard whose rounds go to a standby: against a standby that the test plays, message by message.
 */
#include "phub/uplink.h"

#include "aggregation/kernels.h"
#include "phub/commit.h"
#include "phub/core.h"
#include "tests/unit/chunk_rig.h"
#include "tests/unit/cmocka_shim.h"
#include "transport/crypt.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { STANDBY_JOB = 41, STANDBY_GENERATION = 5, STANDBY_EPOCH = 2, STANDBY_SENT = 64, STANDBY_EVENTS = 64 };

/* The core's queue for uplinks, and what was sent by it. */
struct standby {
	struct queue queue;
	struct conn conn;
	struct uplink_spec spec;
	struct core core;
	struct bench *b;
	struct wire_header sent[STANDBY_SENT];
	const float *payloads[STANDBY_SENT];
	void *cookies[STANDBY_SENT];
	unsigned sent_count, acked;
	struct event events[STANDBY_EVENTS];
	unsigned event_count;
	unsigned room; /* sends before -EAGAIN */
	bool dropped;
	uint64_t serial;
	/* Encrypted: what was sent is opened to `plain`, and answers are sealed to `trailers`. */
	struct crypt *opener, *sealer;
	uint64_t opened, sealed;
	float plain[STANDBY_SENT][CHUNK_ELEMENTS];
	uint8_t trailers[STANDBY_EVENTS][WIRE_TRAILER_BYTES];
};

static int standby_adopt(struct queue *q, struct conn *c, const struct conn_spec *spec)
{
	c->queue = q;
	return 0;
}

static unsigned standby_poll(struct queue *q, uint64_t now_ns, struct event *events, unsigned max)
{
	struct standby *s = (struct standby *)q;
	unsigned count = s->event_count;

	assert_true(count <= max);
	memcpy(events, s->events, count * sizeof(*events));
	s->event_count = 0;
	return count;
}

/* No nonce comes twice. */
static const float *standby_open(struct standby *s, const struct wire_header *h, const uint8_t *payload)
{
	uint8_t *out = (uint8_t *)s->plain[s->sent_count];
	uint64_t counter = crypt_counter(payload, h->length);

	assert_true(counter > s->opened);
	s->opened = counter;
	assert_int_equal(crypt_open(s->opener, h, 0, payload, out), 0);
	return s->plain[s->sent_count];
}

static int standby_send(struct queue *q, struct conn *c, const struct wire_header *h, const void *payload, void *cookie)
{
	struct standby *s = (struct standby *)q;

	assert_false(s->dropped);
	if (s->room == 0)
		return -EAGAIN;
	s->room--;
	assert_true(s->sent_count < STANDBY_SENT);
	assert_int_equal(h->seq, s->b->shard->replica->seq + 1);
	s->sent[s->sent_count] = *h;
	s->payloads[s->sent_count] = s->opener ? standby_open(s, h, payload) : payload;
	s->sent[s->sent_count].length -= s->opener ? WIRE_TRAILER_BYTES : 0;
	s->cookies[s->sent_count++] = cookie;
	return 0;
}

static void standby_drop(struct queue *q, struct conn *c)
{
	((struct standby *)q)->dropped = true;
}

static const struct queue_ops standby_ops = {
	.adopt = standby_adopt, .poll = standby_poll, .send = standby_send, .drop = standby_drop};

static struct standby *standby_new(struct bench *b)
{
	struct standby *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	s->b = b;
	s->queue.ops = &standby_ops;
	s->room = UINT_MAX;
	s->core.uplinks[0] = &s->queue;
	s->core.uplink_count = 1;
	s->spec = (struct uplink_spec){.conn = {.queue = &s->queue, .window = STANDBY_SENT},
		.job = STANDBY_JOB,
		.generation = STANDBY_GENERATION,
		.epoch = STANDBY_EPOCH};
	return s;
}

/* Each session has keys of its own. */
static void standby_take_keys(struct standby *s)
{
	struct uplink *up = s->b->shard->replica;

	if (!s->b->spec.encrypt)
		return;
	if (!s->opener) {
		assert_int_equal(crypt_create(true, &s->opener, NULL), 0);
		assert_int_equal(crypt_create(false, &s->sealer, NULL), 0);
		assert_int_equal(crypt_create(false, &up->sealer, NULL), 0);
		assert_int_equal(crypt_create(true, &up->opener, NULL), 0);
	}
	memset(s->spec.push_key, (int)s->serial + 1, PROOF_KEY);
	memset(s->spec.result_key, (int)s->serial + 101, PROOF_KEY);
	assert_int_equal(crypt_take_key(s->opener, s->spec.push_key), 1);
	assert_int_equal(crypt_take_key(s->sealer, s->spec.result_key), 1);
	s->sealed = 0;
}

static void standby_connect(struct standby *s)
{
	const struct mail mail = {
		.kind = MAIL_UPLINK, .shard = s->b->shard, .conn = &s->conn, .uplink = &s->spec, .detail = ++s->serial};

	s->dropped = false;
	s->sent_count = 0;
	s->acked = 0;
	standby_take_keys(s);
	assert_int_equal(uplink_open(&mail), 0);
}

static struct event *standby_event(struct standby *s, enum event_type type)
{
	struct event *e = &s->events[s->event_count++];

	assert_true(s->event_count <= STANDBY_EVENTS);
	*e = (struct event){.type = type, .conn = &s->conn};
	return e;
}

/* What it says of the message it got as the `i`th. */
static struct wire_header *standby_result(struct standby *s, unsigned i)
{
	struct event *e = standby_event(s, EVENT_MESSAGE);

	e->header = (struct wire_header){.type = WIRE_RESULT,
		.job = STANDBY_JOB,
		.generation = STANDBY_GENERATION,
		.epoch = STANDBY_EPOCH,
		.chunk = s->sent[i].chunk,
		.round = s->sent[i].round,
		.credit = s->sent[i].seq + s->spec.conn.window};
	event_whole(e);
	return &e->header;
}

/* Makes this event's answer that of a standby. */
static struct event *standby_seal(struct standby *s, unsigned i)
{
	struct event *e = &s->events[i];
	struct wire_header bound;

	e->header.length = WIRE_TRAILER_BYTES;
	e->payload = s->trailers[i];
	event_whole(e);
	bound = crypt_result(&e->header, false);
	assert_int_equal(crypt_seal(s->sealer, &bound, 0, ++s->sealed, s->trailers[i], s->trailers[i]), 0);
	return e;
}

static void standby_go(struct standby *s)
{
	for (unsigned i = 0; s->sealer && i < s->event_count; i++)
		if (!s->events[i].payload && s->events[i].header.type == WIRE_RESULT)
			standby_seal(s, i);
	uplink_poll(&s->core, &s->queue, ++s->b->now);
}

/* Acknowledges all that came, and what comes because of that. */
static void standby_ack(struct standby *s)
{
	while (s->acked < s->sent_count) {
		for (unsigned last = s->sent_count; s->acked < last; s->acked++) {
			standby_event(s, EVENT_SENT)->cookie = s->cookies[s->acked];
			standby_result(s, s->acked);
		}
		standby_go(s);
	}
}

/* Connects, and takes all images. */
static void standby_mirror(struct standby *s)
{
	standby_connect(s);
	do {
		standby_ack(s);
	} while (uplink_step(s->b->shard) || s->acked < s->sent_count);
}

static void standby_close(struct standby *s)
{
	uplink_drop(s->b->shard);
	if (s->opener) {
		crypt_destroy(s->opener);
		crypt_destroy(s->sealer);
		crypt_destroy(s->b->shard->replica->sealer);
		crypt_destroy(s->b->shard->replica->opener);
	}
	bench_close(s->b);
	free(s);
}

static struct bench *mirrored(enum optimizer_kind optimizer)
{
	struct bench *b = bench_new();

	b->spec.optimizer = optimizer;
	b->spec.standby = true;
	return b;
}

/* ---- the same bits, at the box without a standby, with one, and at the standby ---- */

static void fill(struct bench *b, uint64_t round)
{
	static float plain[CHUNK_ELEMENTS];

	for (uint32_t rank = 0; rank < b->spec.world; rank++) {
		for (uint32_t i = 0; i < b->elements; i++)
			plain[i] = (float)((rank * 7919 + round * 104729 + i * 31) % 2003) / 1000.7f - 0.9f;
		convert_from_f32(b->data[rank], b->dtype, plain, b->elements);
	}
}

static void begin(struct bench *b, uint32_t world)
{
	b->elements = 509; /* no multiple of a vector */
	b->spec.groups[0].momentum = 0.9;
	b->spec.groups[0].weight_decay = 0.01;
	bench_open(b, world, 0);
	if (b->spec.optimizer == OPTIMIZER_NONE)
		return;
	fill(b, 1000);
	bench_push(b, 0, WIRE_INIT, 0, 0, false);
	for (uint32_t rank = 1; rank < world; rank++)
		bench_push(b, rank, WIRE_PULL, 0, 0, false);
	bench_complete(b);
}

/* A box of `world` ranks and its standby, which has all that the box has. */
static struct standby *standby_begin(enum optimizer_kind optimizer, uint32_t world)
{
	struct standby *s = standby_new(mirrored(optimizer));

	begin(s->b, world);
	standby_mirror(s);
	return s;
}

/* Likewise; control has heard that, and all ranks of a job of SGD have pushed round 1. */
static struct standby *standby_push(uint32_t world)
{
	struct standby *s = standby_begin(OPTIMIZER_SGD, world);

	bench_mail(s->b);
	bench_push_all(s->b, 1, 0, false);
	return s;
}

/* The standby's chunk: takes the image as it is, then the sums. */
static void play(struct bench *at, const struct standby *s, unsigned i)
{
	const struct wire_header *h = &s->sent[i];
	struct chunk *chunk = at->chunk;
	struct wire_header push = *h;
	struct contribution c = {.link = &at->shard->links[0],
		.header = &push,
		.payload = s->payloads[i],
		.bytes = h->length,
		.last = true,
		.now_ns = ++at->now};
	float *array = h->count > 1 ? chunk->state[h->count - 2] : chunk->weight;

	assert_int_equal(h->length, at->elements * sizeof(float));
	if (h->type == WIRE_INIT) {
		memcpy(array ? (void *)array : chunk->result, s->payloads[i], h->length);
		chunk->round = h->round;
		chunk->steps = h->hyper;
		chunk->weights = true;
		return;
	}
	assert_int_equal(h->round, chunk->round);
	assert_int_equal(chunk_add(chunk, &c), 0);
	assert_int_equal(chunk->round, h->round + 1);
	bench_complete(at);
}

static void same(const struct bench *a, const struct bench *b)
{
	size_t bytes = a->elements * sizeof(float);

	if (a->dtype == b->dtype)
		assert_memory_equal(a->chunk->result, b->chunk->result, a->chunk->bytes);
	assert_int_equal(a->chunk->steps, b->chunk->steps);
	if (a->spec.optimizer == OPTIMIZER_NONE)
		return;
	assert_memory_equal(a->chunk->weight, b->chunk->weight, bytes);
	for (unsigned i = 0; i < optimizer_state_count(a->spec.optimizer); i++)
		assert_memory_equal(a->chunk->state[i], b->chunk->state[i], bytes);
}

static void compare(enum optimizer_kind optimizer, enum dtype dtype, bool mean, bool reproducible, bool encrypt)
{
	struct bench *alone = bench_new(), *b = mirrored(optimizer), *there = bench_new();
	struct standby *s = standby_new(b);

	alone->spec.optimizer = there->spec.optimizer = optimizer;
	alone->dtype = b->dtype = dtype;
	alone->spec.mean = b->spec.mean = there->spec.mean = mean;
	alone->spec.reproducible = b->spec.reproducible = reproducible;
	b->spec.encrypt = encrypt;
	begin(alone, 3);
	begin(b, 3);
	begin(there, 1);
	standby_mirror(s);
	for (unsigned i = 0; i < s->sent_count; i++)
		play(there, s, i);
	for (uint64_t round = 1; round < 5; round++) {
		unsigned first = s->sent_count;

		fill(alone, round);
		fill(b, round);
		for (uint32_t k = 0; k < 3; k++) {
			uint32_t rank = (k + (uint32_t)round) % 3;

			bench_push(alone, rank, WIRE_PUSH, round, 0, false);
			bench_push(b, rank, WIRE_PUSH, round, 0, false);
		}
		assert_int_equal(s->sent_count, first + 1);
		assert_int_equal(s->sent[first].count, 3);
		play(there, s, first);
		assert_int_equal(b->fake.sent_count, 0);
		standby_ack(s);
		assert_int_equal(b->fake.sent_count, 3);
		same(alone, b);
		same(b, there);
		bench_complete(alone);
		bench_complete(b);
	}
	bench_close(alone);
	bench_close(there);
	standby_close(s);
}

static void test_bits(void **state)
{
	for (unsigned optimizer = 0; optimizer < OPTIMIZER_COUNT; optimizer++)
		for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++)
			for (unsigned bits = 0; bits < 8; bits++)
				compare((enum optimizer_kind)optimizer, (enum dtype)dtype, bits & 1, bits & 2,
					bits & 4);
}

/* ---- who is answered when ---- */

static void test_answers_wait(void **state)
{
	struct standby *s = standby_begin(OPTIMIZER_SGD, 2);
	struct bench *b = s->b;

	assert_int_equal(bench_mail(b).kind, MAIL_UPLINK_WHOLE);
	bench_push_all(b, 1, 0, false);
	assert_true(b->chunk->lifted);
	assert_true(uplink_waits(b->shard, &b->shard->links[0]));
	assert_int_equal(b->chunk->round, 2);
	assert_int_equal(b->fake.sent_count, 0);
	/* A message that the queue still reads is not over when its answer is there. */
	standby_result(s, s->sent_count - 1);
	standby_go(s);
	assert_true(b->chunk->lifted);
	standby_event(s, EVENT_SENT)->cookie = s->cookies[s->sent_count - 1];
	standby_go(s);
	assert_false(b->chunk->lifted);
	assert_int_equal(b->fake.sent_count, 2);
	s->acked = s->sent_count;
	bench_complete(b);
	standby_close(s);
}

/* Repeats of a worker that connected again are no way around the standby. */
static void test_again_waits(void **state)
{
	struct standby *s = standby_begin(OPTIMIZER_SGD, 2);
	struct bench *b = s->b;

	bench_push_all(b, 1, 0, false);
	b->shard->links[0].again = true;
	b->shard->links[0].serial = 3;
	b->chunk->arrivals[0].serial = 3;
	bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 0);
	standby_ack(s);
	assert_int_equal(b->fake.sent_count, 2);
	bench_complete(b);
	standby_close(s);
}

/* Late pushes of a round that its quorum closed wait with the others. */
static void test_late_waits(void **state)
{
	struct bench *b = mirrored(OPTIMIZER_SGD);
	struct standby *s = standby_new(b);

	b->spec.quorum = 2;
	begin(b, 3);
	standby_mirror(s);
	bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	bench_push(b, 1, WIRE_PUSH, 1, 0, false);
	bench_push(b, 2, WIRE_PUSH, 1, 0, false);
	assert_int_equal(b->shard->counters.dropped[DROP_LATE], 1);
	assert_int_equal(b->fake.sent_count, 0);
	standby_ack(s);
	assert_int_equal(b->fake.sent_count, 3);
	bench_complete(b);
	standby_close(s);
}

/* First weights: the image goes before the answers. */
static void test_broadcast(void **state)
{
	struct bench *b = mirrored(OPTIMIZER_ADAM);
	struct standby *s = standby_new(b);
	struct mail mail;

	bench_open(b, 2, 0);
	standby_mirror(s);
	assert_int_equal(s->sent_count, 0); /* there is nothing to send yet */
	fill(b, 0);
	bench_push(b, 0, WIRE_INIT, 0, 0, false);
	bench_push(b, 1, WIRE_PULL, 0, 0, false);
	assert_int_equal(b->fake.sent_count, 0);
	assert_int_equal(s->sent_count, 3);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(s->sent[i].type, WIRE_INIT);
		assert_int_equal(s->sent[i].round, 1);
		assert_int_equal(s->sent[i].count, i + 1);
	}
	assert_memory_equal(s->payloads[0], b->data[0], b->chunk->bytes);
	assert_int_equal(mailbox_receive(b->control, &mail), -EAGAIN);
	standby_ack(s);
	assert_int_equal(bench_mail(b).kind, MAIL_UPLINK_WHOLE);
	assert_int_equal(b->fake.sent_count, 2);
	bench_complete(b);
	standby_close(s);
}

/* ---- images ---- */

/* A commit waits while the chunk's arrays are read; before that, it does not care. */
static void test_image_parks(void **state)
{
	struct bench *b = mirrored(OPTIMIZER_MOMENTUM);
	struct standby *s = standby_new(b);

	begin(b, 2);
	standby_connect(s);
	fill(b, 1);
	bench_push_all(b, 1, 0, false);
	assert_int_equal(b->fake.sent_count, 2); /* as without a standby */
	bench_complete(b);
	uplink_step(b->shard);
	assert_int_equal(s->sent_count, 2);
	assert_int_equal(s->sent[0].round, 2);
	assert_int_equal(s->sent[0].hyper, 1); /* step */
	bench_push_all(b, 2, 0, false);
	assert_true(b->chunk->parked);
	assert_int_equal(b->chunk->round, 2);
	standby_ack(s); /* both arrays; then the round commits, and its sum is acknowledged, too */
	assert_int_equal(s->sent_count, 3);
	assert_int_equal(s->sent[2].type, WIRE_PUSH);
	assert_int_equal(b->chunk->round, 3);
	assert_int_equal(b->fake.sent_count, 2);
	bench_complete(b);
	standby_close(s);
}

/* Where there is no optimizer the image is the last result, as fp32. */
static void test_image_of_sums(void **state)
{
	struct bench *b = mirrored(OPTIMIZER_NONE);
	struct standby *s = standby_new(b);
	float expected[CHUNK_ELEMENTS];

	b->dtype = DTYPE_F16;
	begin(b, 2);
	fill(b, 1);
	bench_push_all(b, 1, 0, false);
	bench_complete(b);
	standby_mirror(s);
	assert_int_equal(s->sent_count, 1);
	assert_int_equal(s->sent[0].round, 2);
	convert_to_f32(expected, b->chunk->result, DTYPE_F16, b->elements);
	assert_memory_equal(s->payloads[0], expected, b->elements * sizeof(float));
	standby_close(s);
}

/* A round that nobody is left for is skipped: the standby gets another image, also when a sum was just on its way. */
static void test_skip(void **state)
{
	struct standby *s = standby_begin(OPTIMIZER_SGD, 2);
	struct bench *b = s->b;

	bench_push_all(b, 1, 0, false);
	b->chunk->arrivals[0].from = b->chunk->arrivals[1].from = 4;
	commit_count_needed(b->chunk, b->shard);
	commit_skip(b->chunk, b->shard);
	assert_int_equal(b->chunk->round, 4);
	standby_ack(s);
	assert_int_equal(s->sent[s->sent_count - 1].type, WIRE_INIT);
	assert_int_equal(s->sent[s->sent_count - 1].round, 4);
	assert_false(b->chunk->lifted);
	b->chunk->arrivals[0].from = b->chunk->arrivals[1].from = 6;
	commit_count_needed(b->chunk, b->shard);
	commit_skip(b->chunk, b->shard);
	assert_true(b->chunk->lifted);
	assert_int_equal(s->sent[s->sent_count - 1].round, 6);
	bench_complete(b);
	standby_close(s);
}

/* ---- the way there ---- */

static void test_credit_and_room(void **state)
{
	struct bench *b = mirrored(OPTIMIZER_NONE);
	struct standby *s = standby_new(b);

	b->chunk_count = BENCH_CHUNKS_MAX;
	b->conn_spec.window = 64;
	begin(b, 1);
	s->spec.conn.window = 3;
	standby_mirror(s);
	for (uint32_t i = 0; i < b->chunk_count; i++) {
		b->chunk = &b->shard->chunks[i];
		bench_push(b, 0, WIRE_PUSH, 1, 0, false);
	}
	assert_int_equal(s->sent_count, 3);
	s->room = 1;
	standby_event(s, EVENT_SENT)->cookie = s->cookies[0];
	standby_result(s, 0)->credit = 5;
	standby_go(s);
	assert_int_equal(s->sent_count, 4); /* of two that the credit is for */
	s->room = UINT_MAX;
	standby_event(s, EVENT_WRITABLE);
	standby_go(s);
	assert_int_equal(s->sent_count, 5);
	s->acked = 1;
	standby_ack(s);
	assert_int_equal(s->sent_count, 8);
	assert_int_equal(b->fake.sent_count, 8);
	assert_int_equal(b->shard->replica->counters.messages, 8);
	assert_int_equal(b->shard->replica->counters.results, 8);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(s->sent[i].chunk, i);
	bench_complete(b);
	standby_close(s);
}

/* ---- the end ---- */

static void test_break(void **state)
{
	struct standby *s = standby_push(2);
	struct bench *b = s->b;
	struct mail mail;

	standby_event(s, EVENT_CLOSED)->error = -ECONNRESET;
	standby_go(s);
	assert_true(s->dropped);
	assert_int_equal(b->fake.sent_count, 2); /* nobody waits for a standby that is gone */
	mail = bench_mail(b);
	assert_int_equal(mail.kind, MAIL_UPLINK_ENDED);
	assert_int_equal(mail.value, -ECONNRESET);
	assert_int_equal(mail.detail, s->serial);
	bench_complete(b);
	bench_push_all(b, 2, 0, false);
	assert_int_equal(b->fake.sent_count, 2);
	bench_complete(b);
	/* A new one gets it all anew. */
	standby_mirror(s);
	assert_int_equal(bench_mail(b).kind, MAIL_UPLINK_WHOLE);
	assert_int_equal(s->sent[0].round, 3);
	uplink_close(b->shard, 0, s->serial - 1, false);
	assert_false(s->dropped); /* of the one before */
	bench_push_all(b, 3, 0, false);
	uplink_close(b->shard, 0, s->serial, false);
	assert_true(s->dropped);
	assert_int_equal(b->fake.sent_count, 2);
	assert_int_equal(bench_mail(b).kind, MAIL_UPLINK_ENDED);
	bench_complete(b);
	standby_close(s);
}

/* The job goes on at the standby: a round that this may not have is answered there, by whoever has it, and not here. */
static void test_leave(void **state)
{
	struct standby *s = standby_push(2);
	struct bench *b = s->b;
	struct mail mail;

	uplink_leave(b->shard);
	assert_true(s->dropped);
	assert_true(b->shard->failed);
	assert_false(uplink_waits(b->shard, &b->shard->links[0]));
	assert_int_equal(b->fake.sent_count, 0);
	assert_int_equal(mailbox_receive(b->control, &mail), -EAGAIN);
	standby_close(s);
}

/* What no standby says ends the connection, and nothing else. */
static void test_hostile(void **state)
{
	for (unsigned what = 0; what < 6; what++) {
		struct standby *s = standby_push(2);
		struct bench *b = s->b;
		struct wire_header *h;

		h = standby_result(s, s->sent_count - 1);
		h->round += what == 0;
		h->chunk += what == 1;
		h->job += what == 2;
		h->generation += what == 3;
		if (what == 4)
			h->type = WIRE_PUSH;
		if (what == 5) {
			h->type = WIRE_CREDIT;
			h->round = WIRE_FINISHED;
		}
		standby_go(s);
		assert_true(s->dropped);
		assert_int_equal(bench_mail(b).value, what == 5 ? -ESHUTDOWN : -EPROTO);
		assert_int_equal(b->fake.sent_count, 2);
		bench_complete(b);
		standby_close(s);
	}
}

/* Encrypted, what the standby did not say is no answer: made by another, of another round, or said before. */
static void test_forged(void **state)
{
	for (unsigned what = 0; what < 5; what++) {
		struct bench *b = mirrored(OPTIMIZER_SGD);
		struct standby *s = standby_new(b);
		struct event *e;

		b->spec.encrypt = true;
		begin(b, 2);
		standby_mirror(s);
		bench_mail(b);
		bench_push_all(b, 1, 0, false);
		standby_event(s, EVENT_SENT)->cookie = s->cookies[s->sent_count - 1];
		standby_result(s, s->sent_count - 1);
		if (what == 0) { /* in clear, as others have it */
			s->events[1].payload = NULL;
			s->events[1].header.length = 0;
			crypt_destroy(s->sealer);
			s->sealer = NULL;
		} else if (what == 1) { /* with another key */
			assert_int_equal(crypt_take_key(s->sealer, s->spec.push_key), 1);
		} else if (what == 2) { /* a trailer of nothing */
			s->events[1].payload = s->trailers[1];
			s->events[1].header.length = WIRE_TRAILER_BYTES;
			memset(s->trailers[1], 0, WIRE_TRAILER_BYTES);
		} else if (what == 3) { /* of another round, which then was changed */
			s->events[1].header.round++;
			e = standby_seal(s, 1);
			e->header.round--;
		} else { /* said before */
			s->sealed = 0;
		}
		standby_go(s);
		assert_true(s->dropped);
		assert_int_equal(bench_mail(b).value, -EBADMSG);
		assert_int_equal(b->fake.sent_count, 2);
		bench_complete(b);
		standby_close(s);
	}
}

/* An answer more than there are messages is none. */
static void test_doubled(void **state)
{
	struct standby *s = standby_push(1);
	struct bench *b = s->b;

	standby_result(s, s->sent_count - 1);
	standby_result(s, s->sent_count - 1);
	standby_go(s);
	assert_true(s->dropped);
	bench_complete(b);
	standby_close(s);
}

/* Control's mailbox is full: it hears later. */
static void test_untold(void **state)
{
	struct bench *b = mirrored(OPTIMIZER_SGD);
	struct standby *s = standby_new(b);
	struct mail mail = {.kind = MAIL_STALLED};
	unsigned whole = 0, ended = 0;

	begin(b, 1);
	while (mailbox_send(b->control, &mail) == 0)
		;
	standby_mirror(s);
	uplink_step(b->shard);
	while (mailbox_receive(b->control, &mail) == 0)
		assert_int_equal(mail.kind, MAIL_STALLED);
	uplink_step(b->shard);
	while (mailbox_receive(b->control, &mail) == 0)
		whole += mail.kind == MAIL_UPLINK_WHOLE;
	assert_int_equal(whole, 1);
	mail.kind = MAIL_STALLED;
	while (mailbox_send(b->control, &mail) == 0)
		;
	standby_event(s, EVENT_CLOSED);
	standby_go(s);
	while (mailbox_receive(b->control, &mail) == 0)
		assert_int_equal(mail.kind, MAIL_STALLED);
	uplink_step(b->shard);
	uplink_step(b->shard);
	while (mailbox_receive(b->control, &mail) == 0)
		ended += mail.kind == MAIL_UPLINK_ENDED;
	assert_int_equal(ended, 1);
	standby_close(s);
}

TEST_PROGRAM(test_uplink)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bits),
		cmocka_unit_test(test_answers_wait),
		cmocka_unit_test(test_again_waits),
		cmocka_unit_test(test_late_waits),
		cmocka_unit_test(test_broadcast),
		cmocka_unit_test(test_image_parks),
		cmocka_unit_test(test_image_of_sums),
		cmocka_unit_test(test_skip),
		cmocka_unit_test(test_credit_and_room),
		cmocka_unit_test(test_break),
		cmocka_unit_test(test_leave),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_forged),
		cmocka_unit_test(test_doubled),
		cmocka_unit_test(test_untold),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
