/* SPDX-License-Identifier: Apache-2.0 */
/* One chunk at a time: its weights, its steps in the order of the trace, its answers. */
#include "tests/sim/replay.h"

#include "aggregation/kernels.h"
#include "phub/chunk.h"
#include "phub/members.h"
#include "topology/chunking.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct step {
	uint64_t at_ns;
	enum shard_trace kind;
	uint32_t chunk, rank;
	uint64_t round;
};

/* A chunk in the replay. */
struct state {
	const struct chunk_span *span;
	struct oracle_key *key;
	uint32_t first_element, count; /* of the key */
	uint64_t steps;
	struct {
		bool out; /* does not take part */
		uint64_t round;
		bool owed;
		uint64_t begins; /* the round whose weights it begins with, */
		unsigned judged; /* so many lives of it were */
		bool early;      /* before any step: they may be the first, whatever it is given once more, */
		bool given;      /* these the trace says it was given, */
		bool right;      /* and it has what it was given */
	} ranks[WORLD_WORKERS_MAX];
	unsigned changes;           /* so many ranks were lost or came: others may be answered now. Before that */
	uint64_t slowest, furthest; /* of those that took part; of all */
	float *weight, *slots[OPTIMIZER_STATE_MAX], *gradient;
	void *payload; /* of the whole key */
	void *first;   /* the first weights, of the chunk */
};

/* Events by their numbers. */
static const char *replay_number(uint64_t id)
{
	return NULL;
}

static size_t replay_read(const struct trace *trace, struct step **out)
{
	char *text = NULL, *line, *rest;
	size_t bytes = 0, count = 0;
	FILE *file = open_memstream(&text, &bytes);

	trace_dump(trace, file, replay_number);
	fclose(file);
	*out = calloc(bytes / 8 + 1, sizeof(**out));
	for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		unsigned long long time, id, a, b, c;

		if (sscanf(line, "%llu %llu %llu %llu %llu", &time, &id, &a, &b, &c) == 5 && id != TRACE_COMMIT)
			(*out)[count++] = (struct step){time, (enum shard_trace)id, (uint32_t)a, (uint32_t)b, c};
	}
	free(text);
	return count;
}

/* Whose values the first weights are: rank 0 may have died, and come again, before the job started. */
static uint32_t replay_root(const struct replay *r)
{
	unsigned life = 0;

	while (life + 1 < FATE_LIVES && !r->lives[0][life].begun)
		life++;
	return life * WORLD_WORKERS_MAX;
}

static void replay_begin(struct replay *r, const struct chunk_plan *plan, uint32_t chunk, struct state *s)
{
	const struct chunk_span *span = &plan->chunks[chunk];
	size_t size;

	*s = (struct state){.span = span, .key = r->keys[span->key_first]};
	size = dtype_size(s->key->dtype);
	s->first_element = (uint32_t)((span->offset - plan->key_offset[span->key_first]) / size);
	s->count = (uint32_t)(span->bytes / size);
	s->weight = calloc(s->count, sizeof(float));
	s->gradient = calloc(s->count, sizeof(float));
	s->payload = calloc(s->key->elements, size);
	oracle_fill(r->oracle, s->key, replay_root(r), 0, s->payload);
	convert_to_f32(s->weight, (uint8_t *)s->payload + s->first_element * size, s->key->dtype, s->count);
	s->first = malloc(s->count * size);
	convert_from_f32(s->first, s->key->dtype, s->weight, s->count);
	for (unsigned i = 0; i < optimizer_state_count(r->oracle->optimizer); i++) {
		s->slots[i] = calloc(s->count, sizeof(float));
		optimizer_state_init(r->oracle->optimizer, &r->hyper, i, s->slots[i], s->count);
	}
}

static void replay_end(struct state *s)
{
	free(s->weight);
	free(s->gradient);
	free(s->payload);
	free(s->first);
	for (unsigned i = 0; i < OPTIMIZER_STATE_MAX; i++)
		free(s->slots[i]);
}

/* The life that this rank was in. */
static unsigned replay_life(const struct replay *r, uint32_t rank, uint64_t at_ns)
{
	unsigned life = 0;

	for (unsigned i = 1; i < FATE_LIVES; i++)
		if (r->lives[rank][i].begun && r->lives[rank][i].begun_ns <= at_ns)
			life = i;
	return life;
}

static void replay_apply(const struct replay *r, struct state *s, const struct step *step)
{
	uint32_t who = replay_life(r, step->rank, step->at_ns) * WORLD_WORKERS_MAX + step->rank;
	size_t size = dtype_size(s->key->dtype);
	struct optimizer_coef coef;
	struct step_args args = {
		.sum = {.acc = s->gradient, .out_dtype = DTYPE_F32, .scale = 1, .count = s->count, .out = s->weight},
		.coef = &coef,
		.weight = s->weight,
		.state = {s->slots[0], s->slots[1]},
	};

	oracle_fill(r->oracle, s->key, who, step->round, s->payload);
	convert_to_f32(s->gradient, (uint8_t *)s->payload + s->first_element * size, s->key->dtype, s->count);
	optimizer_prepare(r->oracle->optimizer, &r->hyper, ++s->steps, &coef);
	kernels_base.step(&args);
	s->ranks[step->rank].round = step->round;
}

static const uint8_t *replay_got(const struct state *s, const struct replay_life *life, uint64_t round)
{
	void *const *results = life->results[s->span->key_first];
	const uint8_t *got = results && round < WORLD_ROUNDS_MAX ? results[round] : NULL;

	return got ? got + s->first_element * dtype_size(s->key->dtype) : NULL;
}

/* Are these the weights as they are now? */
static bool replay_is_now(const struct state *s, const uint8_t *got)
{
	convert_from_f32(s->payload, s->key->dtype, s->weight, s->count);
	return memcmp(got, s->payload, s->count * dtype_size(s->key->dtype)) == 0;
}

static int replay_wrong(struct replay *r, const struct state *s, uint32_t rank, uint64_t round, const char *what)
{
	snprintf(r->text, sizeof(r->text), "replay: rank %u key %u round %llu: %s (after %llu steps)", rank,
		s->span->key_first, (unsigned long long)round, what, (unsigned long long)s->steps);
	return -1;
}

/* Compares what `rank` got for its newest round with the weights as they are now. Who died may have got nothing. */
static int replay_compare(struct replay *r, struct state *s, uint32_t rank, uint64_t at_ns)
{
	const struct replay_life *life = &r->lives[rank][replay_life(r, rank, at_ns)];
	const uint8_t *got = replay_got(s, life, s->ranks[rank].round);

	if (got ? replay_is_now(s, got) : !life->whole)
		return 0;
	return replay_wrong(r, s, rank, s->ranks[rank].round, "not the weights of that time");
}

static uint64_t replay_slowest(const struct replay *r, const struct state *s)
{
	uint64_t slowest = UINT64_MAX;

	for (uint32_t rank = 0; rank < r->plan->workers; rank++)
		if (!s->ranks[rank].out && s->ranks[rank].round < slowest)
			slowest = s->ranks[rank].round;
	return slowest;
}

static uint64_t replay_furthest(const struct replay *r, const struct state *s)
{
	uint64_t furthest = 0;

	for (uint32_t rank = 0; rank < r->plan->workers; rank++)
		if (s->ranks[rank].round > furthest)
			furthest = s->ranks[rank].round;
	return furthest;
}

/* The answers that are due: returns how many, or -1. */
static int64_t replay_answer(struct replay *r, struct state *s, uint64_t at_ns)
{
	uint64_t slowest = replay_slowest(r, s);
	int64_t count = 0;

	for (uint32_t rank = 0; rank < r->plan->workers; rank++) {
		if (!s->ranks[rank].owed || s->ranks[rank].round > slowest + r->plan->staleness)
			continue;
		if (replay_compare(r, s, rank, at_ns) < 0)
			return -1;
		s->ranks[rank].owed = false;
		count++;
	}
	return count;
}

/* The weights that this life of a rank began with were given to it; without a word of the trace they are the first. */
static int replay_settle(struct replay *r, struct state *s, uint32_t rank, uint64_t at_ns)
{
	unsigned life = replay_life(r, rank, at_ns);
	const uint8_t *got = replay_got(s, &r->lives[rank][life], s->ranks[rank].begins);
	bool right = s->ranks[rank].right;

	if (!got || life < s->ranks[rank].judged)
		return 0;
	s->ranks[rank].judged = life + 1;
	if (!s->ranks[rank].given || s->ranks[rank].early)
		right = right || memcmp(got, s->first, s->count * dtype_size(s->key->dtype)) == 0;
	return right ? 0 : replay_wrong(r, s, rank, s->ranks[rank].begins, "began with other weights");
}

static int64_t replay_step(struct replay *r, struct state *s, const struct step *step)
{
	uint32_t rank = step->rank;

	if (step->round != s->ranks[rank].round + 1)
		return replay_wrong(r, s, rank, step->round, "was stepped out of order");
	if (replay_settle(r, s, rank, step->at_ns) < 0)
		return -1;
	replay_apply(r, s, step);
	if (r->plan->sync == SYNC_ASYNC)
		return replay_compare(r, s, rank, step->at_ns) < 0 ? -1 : 1;
	s->ranks[rank].owed = true;
	return replay_answer(r, s, step->at_ns);
}

/*
 * A rank is lost, or comes: then it begins with a round that holds nobody back, and is not further than another chunk
 * of its key, or another key that the job goes in step with, may be.
 */
static int replay_change(struct replay *r, struct state *s, const struct step *step)
{
	uint32_t rank = step->rank;

	if (replay_settle(r, s, rank, step->at_ns) < 0)
		return -1;
	if (s->changes == 0) {
		s->slowest = replay_slowest(r, s);
		s->furthest = replay_furthest(r, s);
	}
	s->changes++;
	s->ranks[rank].out = step->round == MEMBERS_NEVER;
	s->ranks[rank].owed = false;
	s->ranks[rank].early = s->steps == 0;
	s->ranks[rank].given = false;
	s->ranks[rank].right = false;
	if (s->ranks[rank].out)
		return 0;
	s->ranks[rank].begins = step->round > 0 ? step->round - 1 : 0;
	s->ranks[rank].round = s->ranks[rank].begins;
	if ((s->slowest != UINT64_MAX && s->slowest > s->ranks[rank].begins) ||
		s->ranks[rank].begins > s->furthest + 2 * s->changes)
		return replay_wrong(r, s, rank, step->round, "begins too early or too late");
	return 0;
}

static void replay_give(struct replay *r, struct state *s, const struct step *step)
{
	const struct replay_life *life = &r->lives[step->rank][replay_life(r, step->rank, step->at_ns)];
	const uint8_t *got = replay_got(s, life, step->round);

	s->ranks[step->rank].given = true;
	s->ranks[step->rank].right |= got && replay_is_now(s, got);
}

/* Ranks are lost and come together: others are answered when all of them are known. */
static int64_t replay_event(struct replay *r, struct state *s, const struct step *step)
{
	int64_t count = 0, more;

	if (step->kind == TRACE_FROM)
		return replay_change(r, s, step);
	if (s->changes && r->plan->sync == SYNC_SSP)
		count = replay_answer(r, s, step->at_ns);
	s->changes = 0;
	if (count < 0)
		return -1;
	if (step->kind == TRACE_VISIT) {
		replay_give(r, s, step);
		return count;
	}
	more = replay_step(r, s, step);
	return more < 0 ? -1 : count + more;
}

/* Nothing more comes: who was answered before its time? */
static int64_t replay_finish(struct replay *r, struct state *s)
{
	int64_t count = s->changes && r->plan->sync == SYNC_SSP ? replay_answer(r, s, UINT64_MAX) : 0;

	for (uint32_t rank = 0; rank < r->plan->workers && count >= 0; rank++) {
		const struct replay_life *life = &r->lives[rank][replay_life(r, rank, UINT64_MAX)];

		if (s->ranks[rank].owed && replay_got(s, life, s->ranks[rank].round))
			count = replay_wrong(r, s, rank, s->ranks[rank].round, "was answered too early");
		else if (replay_settle(r, s, rank, UINT64_MAX) < 0)
			count = -1;
	}
	return count;
}

static int64_t replay_chunk(
	struct replay *r, const struct chunk_plan *plan, const struct step *steps, size_t count, uint32_t chunk)
{
	struct state s;
	int64_t compared = 0, more = 0;
	bool here = false; /* else it is another core's */

	replay_begin(r, plan, chunk, &s);
	for (size_t i = 0; i < count && more >= 0; i++) {
		if (steps[i].chunk != chunk)
			continue;
		here = true;
		more = replay_event(r, &s, &steps[i]);
		compared += more;
	}
	if (here && more >= 0) {
		more = replay_finish(r, &s);
		compared += more;
	}
	replay_end(&s);
	return more < 0 ? -1 : compared;
}

int64_t replay_core(struct replay *r, const struct trace *trace)
{
	struct chunk_key keys[WORLD_KEYS_MAX];
	struct chunk_plan plan;
	struct step *steps;
	size_t count = replay_read(trace, &steps);
	int64_t compared = 0;

	for (unsigned k = 0; k < r->plan->key_count; k++)
		keys[k] = world_plan_key(r->plan, k);
	if (chunking_plan(keys, r->plan->key_count, WORLD_CHUNK_BYTES, &plan, NULL) < 0)
		compared = -1;
	for (uint32_t chunk = 0; chunk < plan.chunk_count && compared >= 0; chunk++) {
		int64_t more = replay_chunk(r, &plan, steps, count, chunk);

		compared = more < 0 ? -1 : compared + more;
	}
	chunking_plan_fini(&plan);
	free(steps);
	return compared;
}

void replay_forget(struct replay_life (*lives)[FATE_LIVES])
{
	for (unsigned i = 0; i < WORLD_WORKERS_MAX * FATE_LIVES; i++) {
		struct replay_life *life = &lives[i / FATE_LIVES][i % FATE_LIVES];

		for (unsigned k = 0; k < WORLD_KEYS_MAX; k++) {
			for (unsigned round = 0; life->results[k] && round < WORLD_ROUNDS_MAX; round++)
				free(life->results[k][round]);
			free(life->results[k]);
		}
		*life = (struct replay_life){.begun = false};
	}
}
