/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/mirror_rig.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "aggregation/convert.h"

const char *const mirror_secret[] = {"create=secret", "create_secret_env=PHUB_TEST_SECRET", NULL};

/* ---- messages ---- */

static struct rig_job mirror_job_of(const struct mirror_shape *shape)
{
	return (struct rig_job){.generation = shape->generation ? shape->generation : 1,
		.optimizer = shape->optimizer,
		.reduce = shape->mean ? PHUB__REDUCE__MEAN : PHUB__REDUCE__SUM,
		.sync = shape->sync,
		.lost = shape->lost,
		.quorum = shape->quorum,
		.chunk_bytes = 4096,
		.lr = 0.01,
		.weight_decay = 0.1};
}

void mirror_say_job(struct actor *a, const struct mirror_shape *shape)
{
	const struct rig_job job = mirror_job_of(shape);

	actor_job(a, &job, MIRROR_KEYS);
}

void mirror_say_keys(struct actor *a, const struct mirror_shape *shape)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Keys message = PHUB__KEYS__INIT;
	Phub__Key keys[MIRROR_KEYS], *pointers[MIRROR_KEYS];
	char names[MIRROR_KEYS][16];

	for (uint32_t i = 0; i < MIRROR_KEYS; i++) {
		phub__key__init(&keys[i]);
		snprintf(names[i], sizeof(names[i]), "key%u", i);
		keys[i].name = names[i];
		keys[i].elements = i + 1 < MIRROR_KEYS ? MIRROR_ELEMENTS : 13;
		keys[i].dtype = i + 1 < MIRROR_KEYS ? (Phub__Dtype)shape->dtype : PHUB__DTYPE__F32;
		pointers[i] = &keys[i];
	}
	message.generation = shape->generation ? shape->generation : 1;
	message.keys = pointers;
	message.n_keys = MIRROR_KEYS;
	control.message_case = PHUB__CONTROL__MESSAGE_KEYS;
	control.keys = &message;
	actor_say(a, &control);
}

void mirror_say_mirror(struct actor *a, const struct mirror_shape *shape, const struct generation *like)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Mirror message = PHUB__MIRROR__INIT;
	const struct rig_job job = mirror_job_of(shape);
	struct rig_job_message said;
	uint8_t cores[256];

	rig_job_fill(&job, MIRROR_KEYS, &said);
	assert_true(like->spec.plan.chunk_count <= sizeof(cores));
	for (uint32_t i = 0; i < like->spec.plan.chunk_count; i++)
		cores[i] = (uint8_t)like->core_of_chunk[i];
	message.job = &said.job;
	message.world = MIRROR_WORLD;
	message.core_of_chunk.data = cores;
	message.core_of_chunk.len = like->spec.plan.chunk_count;
	message.cores = like->spec.core_count;
	message.box = (char *)(uintptr_t) "10.0.0.1:7077";
	control.message_case = PHUB__CONTROL__MESSAGE_MIRROR;
	control.mirror = &message;
	actor_say(a, &control);
}

void mirror_say_state(struct actor *a, bool whole, const uint32_t *lost, size_t lost_count, uint64_t barrier)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__MirrorState state = PHUB__MIRROR_STATE__INIT;

	state.whole = whole;
	state.lost = (uint32_t *)(uintptr_t)lost;
	state.n_lost = lost_count;
	state.barrier = barrier;
	control.message_case = PHUB__CONTROL__MESSAGE_MIRROR_STATE;
	control.mirror_state = &state;
	actor_say(a, &control);
}

/* ---- parties ---- */

void feed_join(
	struct rig *rig, struct feed *f, const char *job, uint32_t rank, bool moves, const struct mirror_shape *shape)
{
	static unsigned host;

	memset(f, 0, sizeof(*f));
	actor_dial(rig, &f->a, 1 + host++ % 8);
	f->a.moves = moves;
	f->a.encrypt = shape->encrypt;
	if (!actor_join(&f->a, job, rank, MIRROR_WORLD, shape->encrypt ? MIRROR_SECRET : NULL))
		fail_msg("%s", f->a.error);
	mirror_say_job(&f->a, shape);
	mirror_say_keys(&f->a, shape);
}

void feed_mirror(struct rig *rig, struct feed *f, const char *job, const struct mirror_shape *shape,
	const struct generation *like)
{
	memset(f, 0, sizeof(*f));
	actor_dial(rig, &f->a, 9);
	f->a.mirror = true;
	f->a.encrypt = shape->encrypt;
	if (!actor_join(&f->a, job, 0, 1, shape->encrypt ? MIRROR_SECRET : NULL))
		fail_msg("%s", f->a.error);
	mirror_say_mirror(&f->a, shape, like);
	mirror_say_keys(&f->a, shape);
	if (actor_hear(&f->a) != PHUB__CONTROL__MESSAGE_START)
		fail_msg("%s", f->a.error);
	feed_connect(f, mirror_job(rig, job, true)->generation);
}

static void feed_take_keys(struct feed *f)
{
	const Phub__Start *start = f->a.last->start;
	uint8_t key[PROOF_KEY];

	f->opened = calloc(f->g->spec.plan.chunk_count, sizeof(*f->opened));
	assert_int_equal(crypt_create(false, &f->sealer, NULL), 0);
	assert_int_equal(crypt_create(true, &f->opener, NULL), 0);
	assert_int_equal(proof_push_key(f->a.key, key), 0);
	assert_int_equal(crypt_take_key(f->sealer, key), 1);
	assert_int_equal(start->data_key.len, CRYPT_WRAPPED_BYTES);
	assert_int_equal(crypt_unwrap(f->a.key, start->job, start->generation, start->data_key.data, key), 0);
	assert_int_equal(crypt_take_key(f->opener, key), 1);
}

void feed_connect(struct feed *f, const struct generation *g)
{
	struct err e = {0};

	f->g = g;
	f->epoch = f->a.last->start->epoch;
	assert_int_equal(f->a.last->start->job, g->spec.id);
	f->results = calloc(1, g->spec.plan.region_bytes);
	f->rounds = calloc(g->spec.plan.chunk_count, sizeof(*f->rounds));
	f->counts = calloc(g->spec.plan.chunk_count, sizeof(*f->counts));
	assert_int_equal(g->spec.encrypt, f->a.encrypt);
	if (f->a.encrypt)
		feed_take_keys(f);
	for (unsigned core = 0; core < MIRROR_CORES; core++) {
		const struct shard *shard = g->store.shards[core];

		if (!shard)
			continue;
		assert_int_equal(actor_connect(&f->a, core, f->a.key, &f->conns[core]), 0);
		if (!f->queue)
			assert_int_equal(transport_loop.queue_create(f->a.transport, -1, &f->queue, &e), 0);
		f->specs[core] = (struct conn_spec){.chunk_count = shard->chunk_count,
			.spans = shard->spans,
			.payload_max = WIRE_PAYLOAD_MAX,
			.window = f->a.last->start->window,
			.job = g->spec.id,
			.rank = f->a.rank};
		assert_int_equal(f->queue->ops->adopt(f->queue, f->conns[core], &f->specs[core]), 0);
	}
	rig_turn_control(f->a.rig);
}

void feed_close(struct feed *f)
{
	for (unsigned core = 0; f->queue && core < MIRROR_CORES; core++)
		if (f->conns[core])
			f->queue->ops->drop(f->queue, f->conns[core]);
	if (f->queue)
		transport_loop.queue_destroy(f->a.transport, f->queue);
	actor_hang_up(&f->a);
	free(f->results);
	free(f->rounds);
	free(f->counts);
	free(f->opened);
	crypt_destroy(f->sealer);
	crypt_destroy(f->opener);
	f->opened = NULL;
	f->sealer = f->opener = NULL;
	f->queue = NULL;
}

void feed_send(struct feed *f, uint32_t chunk, const struct wire_header *header, const void *payload)
{
	unsigned core = f->g->core_of_chunk[chunk];
	const struct shard *shard = f->g->store.shards[core];
	static uint8_t sealed[MIRROR_ELEMENTS_MAX * sizeof(float) + WIRE_TRAILER_BYTES];
	struct wire_header h = *header;

	h.job = f->g->spec.id;
	h.generation = f->g->spec.generation;
	h.epoch = f->epoch;
	h.rank = f->a.rank;
	h.chunk = chunk_local(shard, mirror_chunk(f->g, chunk));
	h.seq = ++f->seq[core];
	h.length = h.type == WIRE_PULL ? 0 : f->g->spec.plan.chunks[chunk].bytes;
	if (f->sealer && h.length) {
		h.length += WIRE_TRAILER_BYTES;
		assert_int_equal(crypt_seal(f->sealer, &h, core, ++f->counter, payload, sealed), 0);
		payload = sealed;
	}
	assert_int_equal(f->queue->ops->send(f->queue, f->conns[core], &h, h.length ? payload : NULL, NULL), 0);
	f->queue->ops->flush(f->queue);
	feed_turn(f);
}

static void feed_open(struct feed *f, unsigned core, const struct chunk *chunk, const struct event *e)
{
	struct wire_header bound = crypt_result(&e->header, spec_rows(&f->g->spec));
	uint64_t counter = crypt_counter(e->payload, e->header.length);

	assert_int_equal(e->header.length, chunk->answer_bytes + WIRE_TRAILER_BYTES);
	if (f->a.mirror)
		assert_true(counter > f->opened[chunk->index]);
	f->opened[chunk->index] = counter;
	assert_int_equal(crypt_open(f->opener, &bound, core, e->payload,
				 f->results + f->g->spec.plan.chunks[chunk->index].offset),
		0);
}

static void feed_take(struct feed *f, const struct event *e)
{
	unsigned core = 0;
	const struct chunk *chunk;

	while (f->conns[core] != e->conn)
		core++;
	if (e->type == EVENT_CLOSED) {
		f->queue->ops->drop(f->queue, e->conn);
		f->conns[core] = NULL;
		f->ended = true;
		return;
	}
	if (e->type != EVENT_MESSAGE || e->header.type != WIRE_RESULT)
		return;
	chunk = &f->g->store.shards[core]->chunks[e->header.chunk];
	f->rounds[chunk->index] = e->header.round;
	f->counts[chunk->index]++;
	if (f->opener)
		feed_open(f, core, chunk, e);
	else if (e->header.length)
		memcpy(f->results + f->g->spec.plan.chunks[chunk->index].offset, e->payload, e->header.length);
}

void feed_turn(struct feed *f)
{
	struct event events[32];
	unsigned count;

	for (int quiet = 0; quiet < 2; quiet++) {
		rig_turn_control(f->a.rig);
		while (f->queue && (count = f->queue->ops->poll(f->queue, f->a.rig->now_ns, events, 32)) > 0) {
			for (unsigned i = 0; i < count; i++) {
				feed_take(f, &events[i]);
				if (events[i].type == EVENT_MESSAGE && events[i].slot)
					f->queue->ops->release(f->queue, events[i].slot);
			}
			f->queue->ops->flush(f->queue);
			quiet = 0;
		}
	}
}

/* ---- what is there ---- */

struct job *mirror_job(struct rig *rig, const char *name, bool mirror)
{
	return mirror ? job_find_mirror(&rig->box->control, name) : job_find(&rig->box->control, name);
}

const struct chunk *mirror_chunk(const struct generation *g, uint32_t index)
{
	return chunk_find(g->store.shards[g->core_of_chunk[index]], index);
}

void mirror_image(struct feed *box, const struct generation *like, uint32_t index)
{
	const struct chunk *from = mirror_chunk(like, index);
	static float wide[MIRROR_ELEMENTS_MAX];
	const float *arrays[1 + OPTIMIZER_STATE_MAX] = {from->weight, from->state[0], from->state[1]};
	uint32_t before = box->counts[index];

	if (!from->weight) {
		convert_to_f32(wide, from->result, (enum dtype)from->dtype, from->elements);
		arrays[0] = wide;
	}
	for (uint16_t i = 0; i <= optimizer_state_count(like->spec.optimizer); i++) {
		const struct wire_header h = {
			.type = WIRE_INIT, .round = from->round, .hyper = (uint32_t)from->steps, .count = i + 1u};

		feed_send(box, index, &h, arrays[i]);
	}
	assert_int_equal(box->counts[index], before + 1 + optimizer_state_count(like->spec.optimizer));
	assert_int_equal(box->rounds[index], from->round);
}

const struct mirror_shape mirror_plain = {OPTIMIZER_MOMENTUM, DTYPE_F32, true, LOST_FAIL, SYNC_BSP, 0, 0, false};

/* ---- rounds ---- */

/* What a rank has to push; `wide`: as fp32. */
static void fill(const struct chunk *chunk, uint32_t rank, uint64_t round, void *narrow, float *wide)
{
	uint32_t seed = (uint32_t)(chunk->index * 7919 + rank * 104729 + round * 15485863);
	float values[MIRROR_ELEMENTS_MAX];

	for (uint32_t i = 0; i < chunk->elements; i++) {
		seed = seed * 1664525u + 1013904223u;
		values[i] = (float)(int32_t)seed / 3e8f;
	}
	convert_from_f32(narrow, (enum dtype)chunk->dtype, values, chunk->elements);
	convert_to_f32(wide, narrow, (enum dtype)chunk->dtype, chunk->elements);
}

/* All of `team` push this chunk's next round, each after the other. */
static void push_round(struct standby *s, struct feed *team, uint32_t chunk, uint64_t round)
{
	static uint8_t narrow[MIRROR_WORLD][MIRROR_ELEMENTS_MAX * 4];
	static float wide[MIRROR_ELEMENTS_MAX];

	for (uint32_t rank = 0; rank < MIRROR_WORLD; rank++) {
		const struct wire_header h = {.type = WIRE_PUSH, .round = round, .hyper = s->hyper, .count = 1};

		fill(mirror_chunk(team[rank].g, chunk), rank, round, narrow[rank], wide);
		feed_send(&team[rank], chunk, &h, narrow[rank]);
	}
	for (uint32_t rank = 0; rank < MIRROR_WORLD; rank++) {
		feed_turn(&team[rank]);
		assert_int_equal(team[rank].rounds[chunk], round);
	}
}

/* What the box sends of a round before it answers. */
static void lift_round(struct standby *s, uint32_t chunk, uint64_t round)
{
	static float sum[MIRROR_ELEMENTS_MAX], other[MIRROR_ELEMENTS_MAX];
	static uint8_t narrow[MIRROR_ELEMENTS_MAX * 4];
	const struct chunk *c = mirror_chunk(s->g, chunk);
	const struct wire_header h = {.type = WIRE_PUSH, .round = round, .hyper = s->hyper, .count = MIRROR_WORLD};
	uint32_t before = s->box.counts[chunk];

	fill(c, 0, round, narrow, sum);
	fill(c, 1, round, narrow, other);
	for (uint32_t i = 0; i < c->elements; i++)
		sum[i] += other[i];
	feed_send(&s->box, chunk, &h, sum);
	assert_int_equal(s->box.counts[chunk], before + 1);
	assert_int_equal(s->box.rounds[chunk], round);
}

static void first_weights(struct standby *s)
{
	static uint8_t narrow[MIRROR_ELEMENTS_MAX * 4];
	static float wide[MIRROR_ELEMENTS_MAX];

	for (uint32_t i = 0; i < s->chunks; i++) {
		fill(mirror_chunk(s->g, i), 9, 0, narrow, wide);
		feed_send(&s->steady[0], i, &(struct wire_header){.type = WIRE_INIT, .count = 1}, narrow);
		feed_send(&s->steady[1], i, &(struct wire_header){.type = WIRE_PULL}, NULL);
	}
}

/* ---- a stage ---- */

void standby_open(struct standby *s, const struct mirror_shape *shape, const char *const *settings)
{
	memset(s, 0, sizeof(*s));
	s->shape = *shape;
	assert_int_equal(setenv("PHUB_TEST_SECRET", MIRROR_SECRET, 1), 0);
	rig_open(&s->rig, MIRROR_CORES, settings);
	for (uint32_t rank = 0; rank < MIRROR_WORLD; rank++) {
		struct mirror_shape first = *shape;

		first.generation = 1;
		feed_join(&s->rig, &s->steady[rank], "steady", rank, false, &first);
	}
	for (uint32_t rank = 0; rank < MIRROR_WORLD; rank++) {
		if (actor_hear(&s->steady[rank].a) != PHUB__CONTROL__MESSAGE_START)
			fail_msg("%s", s->steady[rank].a.error);
		feed_connect(&s->steady[rank], mirror_job(&s->rig, "steady", false)->generation);
	}
	s->g = mirror_job(&s->rig, "steady", false)->generation;
	s->chunks = s->g->spec.plan.chunk_count;
	if (shape->optimizer != OPTIMIZER_NONE)
		first_weights(s);
}

/* Nothing may be left. */
void standby_close(struct standby *s)
{
	feed_close(&s->steady[0]);
	feed_close(&s->steady[1]);
	rig_wait(&s->rig, 200);
	rig_expect_empty(&s->rig);
	rig_close(&s->rig);
}

/* A whole copy named "job" of the steady one. */
void standby_mirror(struct standby *s)
{
	feed_mirror(&s->rig, &s->box, "job", &s->shape, s->g);
	for (uint32_t i = 0; i < s->chunks; i++)
		mirror_image(&s->box, s->g, i);
	mirror_say_state(&s->box.a, true, NULL, 0, 0);
	assert_int_equal(actor_hear(&s->box.a), PHUB__CONTROL__MESSAGE_MIRROR_STATE);
	assert_true(s->box.a.last->mirror_state->whole);
}

/* Says Hello.moves; what it is told. */
int actor_move(struct rig *rig, struct actor *a, unsigned host, uint32_t rank, uint32_t world)
{
	actor_dial(rig, a, host);
	a->moves = true;
	return actor_join(a, "job", rank, world, NULL) ? 0 : a->error_code;
}

void standby_move(struct standby *s)
{
	for (uint32_t rank = 0; rank < MIRROR_WORLD; rank++)
		feed_join(&s->rig, &s->moved[rank], "job", rank, true, &s->shape);
	rig_wait(&s->rig, 100);
	for (uint32_t rank = 0; rank < MIRROR_WORLD; rank++) {
		if (actor_hear(&s->moved[rank].a) != PHUB__CONTROL__MESSAGE_START)
			fail_msg("%s", s->moved[rank].a.error);
		feed_connect(&s->moved[rank], mirror_job(&s->rig, "job", false)->generation);
	}
}

void standby_close_moved(struct standby *s)
{
	feed_close(&s->moved[0]);
	feed_close(&s->moved[1]);
	standby_close(s);
}

/* Both jobs' next round of a chunk has the same bits. */
void standby_check_next(struct standby *s, uint32_t chunk)
{
	const struct chunk_span *span = &s->g->spec.plan.chunks[chunk];
	uint64_t round = mirror_chunk(s->g, chunk)->round;

	push_round(s, s->steady, chunk, round);
	push_round(s, s->moved, chunk, round);
	for (uint32_t rank = 0; rank < MIRROR_WORLD; rank++)
		assert_memory_equal(
			s->steady[rank].results + span->offset, s->moved[rank].results + span->offset, span->bytes);
}

void standby_run(struct standby *s, uint32_t chunk, bool mirrored)
{
	uint64_t round = mirror_chunk(s->g, chunk)->round;

	if (mirrored)
		lift_round(s, chunk, round);
	push_round(s, s->steady, chunk, round);
}
