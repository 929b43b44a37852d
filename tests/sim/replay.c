/* SPDX-License-Identifier: Apache-2.0 */
/* One chunk at a time: its weights, its steps in the order of the trace, its answers. */
#include "tests/sim/replay.h"

#include "aggregation/kernels.h"
#include "phub/chunk.h"
#include "topology/chunking.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct step {
	uint32_t chunk, rank;
	uint64_t round;
};

/* A chunk in the replay. */
struct state {
	const struct chunk_span *span;
	struct oracle_key *key;
	uint32_t first, count; /* elements of the key */
	uint64_t steps;
	uint64_t rounds[WORLD_WORKERS_MAX];
	bool owed[WORLD_WORKERS_MAX];
	float *weight, *slots[OPTIMIZER_STATE_MAX], *gradient;
	void *payload; /* of the whole key */
};

/* Events by their numbers. */
static const char *replay_number(uint64_t id)
{
	(void)id;
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

		if (sscanf(line, "%llu %llu %llu %llu %llu", &time, &id, &a, &b, &c) == 5 && id == TRACE_STEP)
			(*out)[count++] = (struct step){(uint32_t)a, (uint32_t)b, c};
	}
	free(text);
	return count;
}

static void replay_begin(struct replay *r, const struct chunk_plan *plan, uint32_t chunk, struct state *s)
{
	const struct chunk_span *span = &plan->chunks[chunk];
	size_t size;

	*s = (struct state){.span = span, .key = r->keys[span->key_first]};
	size = dtype_size(s->key->dtype);
	s->first = (uint32_t)((span->offset - plan->key_offset[span->key_first]) / size);
	s->count = (uint32_t)(span->bytes / size);
	s->weight = calloc(s->count, sizeof(float));
	s->gradient = calloc(s->count, sizeof(float));
	s->payload = calloc(s->key->elements, size);
	oracle_fill(r->oracle, s->key, 0, 0, s->payload);
	convert_to_f32(s->weight, (uint8_t *)s->payload + s->first * size, s->key->dtype, s->count);
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
	for (unsigned i = 0; i < OPTIMIZER_STATE_MAX; i++)
		free(s->slots[i]);
}

static void replay_apply(const struct replay *r, struct state *s, const struct step *step)
{
	size_t size = dtype_size(s->key->dtype);
	struct optimizer_coef coef;
	struct step_args args = {
		.sum = {.acc = s->gradient, .out_dtype = DTYPE_F32, .scale = 1, .count = s->count, .out = s->weight},
		.coef = &coef,
		.weight = s->weight,
		.state = {s->slots[0], s->slots[1]},
	};

	oracle_fill(r->oracle, s->key, step->rank, step->round, s->payload);
	convert_to_f32(s->gradient, (uint8_t *)s->payload + s->first * size, s->key->dtype, s->count);
	optimizer_prepare(r->oracle->optimizer, &r->hyper, ++s->steps, &coef);
	kernels_base.step(&args);
	s->rounds[step->rank] = step->round;
}

/* Compares what `rank` got for its newest round with the weights as they are now. */
static int replay_compare(struct replay *r, struct state *s, uint32_t rank)
{
	size_t size = dtype_size(s->key->dtype);
	uint64_t round = s->rounds[rank];
	const uint8_t *got = r->results[rank][s->span->key_first][round];
	int wrong;

	convert_from_f32(s->payload, s->key->dtype, s->weight, s->count);
	wrong = !got || memcmp(got + s->first * size, s->payload, s->count * size) != 0;
	if (wrong)
		snprintf(r->text, sizeof(r->text),
			"replay: rank %u key %u round %llu: not the weights after %llu steps", rank, s->span->key_first,
			(unsigned long long)round, (unsigned long long)s->steps);
	return wrong ? -1 : 0;
}

/* The answers that are due after a step: returns how many, or -1. */
static int64_t replay_answer(struct replay *r, struct state *s, const struct step *step)
{
	uint64_t slowest = UINT64_MAX;
	int64_t count = 0;

	if (r->plan->sync == SYNC_ASYNC)
		return replay_compare(r, s, step->rank) < 0 ? -1 : 1;
	s->owed[step->rank] = true;
	for (uint32_t rank = 0; rank < r->plan->workers; rank++)
		if (s->rounds[rank] < slowest)
			slowest = s->rounds[rank];
	for (uint32_t rank = 0; rank < r->plan->workers; rank++) {
		if (!s->owed[rank] || s->rounds[rank] > slowest + r->plan->staleness)
			continue;
		if (replay_compare(r, s, rank) < 0)
			return -1;
		s->owed[rank] = false;
		count++;
	}
	return count;
}

static int64_t replay_chunk(
	struct replay *r, const struct chunk_plan *plan, const struct step *steps, size_t count, uint32_t chunk)
{
	struct state s;
	int64_t compared = 0;

	replay_begin(r, plan, chunk, &s);
	for (size_t i = 0; i < count && compared >= 0; i++) {
		int64_t more;

		if (steps[i].chunk != chunk)
			continue;
		if (steps[i].round != s.rounds[steps[i].rank] + 1) {
			snprintf(r->text, sizeof(r->text),
				"replay: rank %u key %u: round %llu was stepped after round %llu", steps[i].rank,
				s.span->key_first, (unsigned long long)steps[i].round,
				(unsigned long long)s.rounds[steps[i].rank]);
			compared = -1;
			break;
		}
		replay_apply(r, &s, &steps[i]);
		more = replay_answer(r, &s, &steps[i]);
		compared = more < 0 ? -1 : compared + more;
	}
	replay_end(&s);
	return compared;
}

int64_t replay_core(struct replay *r, const struct trace *trace)
{
	struct chunk_key keys[WORLD_KEYS_MAX];
	struct chunk_plan plan;
	struct step *steps;
	size_t count = replay_read(trace, &steps);
	int64_t compared = 0;

	for (unsigned k = 0; k < r->plan->key_count; k++)
		keys[k] = (struct chunk_key){.elements = r->plan->elements[k],
			.dtype = (uint8_t)r->plan->dtypes[k],
			.alone = r->plan->alone[k]};
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
