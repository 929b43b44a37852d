/* SPDX-License-Identifier: Apache-2.0 */
/* One chunk after the other, from its first weights (if the job has any) to the last result that a worker got. */
#include "tests/sim/census.h"

#include "aggregation/kernels.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A state that explains all rounds of a chunk so far. */
struct state {
	uint64_t steps;
	float *weight, *slots[OPTIMIZER_STATE_MAX];
};

/* A chunk that is looked at. */
struct look {
	struct census *census;
	const struct chunk_span *span;
	uint32_t chunk, elements;
	size_t size;
	float *values[CENSUS_SHARES]; /* of the round's shares */
	float *sum;
	void *out;
	struct state states[CENSUS_STATES], next[CENSUS_STATES];
	unsigned count, next_count;
	bool overflow;
	const struct census_run *run; /* that is looked at, */
	bool resumed;                 /* it goes on from one before it */
	bool unseen;                  /* in a round of which nobody got anything */
	/* [run][round] what it may have had after it, for runs that go on from there. */
	struct kept {
		struct state *states;
		unsigned count;
	} kept[CENSUS_RUNS][CENSUS_ROUNDS];
	bool open; /* some run had more than is kept here */
};

int census_init(
	struct census *c, const struct world_plan *plan, const struct oracle *oracle, struct oracle_key *const *keys)
{
	struct chunk_key table[WORLD_KEYS_MAX];

	*c = (struct census){.plan = plan, .oracle = oracle};
	for (unsigned k = 0; k < plan->key_count; k++) {
		c->keys[k] = keys[k];
		table[k] = world_plan_key(plan, k);
	}
	if (chunking_plan(table, plan->key_count, WORLD_CHUNK_BYTES, &c->chunks, NULL) < 0)
		return -ENOMEM;
	return 0;
}

void census_close(struct census *c)
{
	for (unsigned run = 0; run < c->run_count; run++) {
		struct census_round *rounds = c->runs[run].rounds;

		for (size_t i = 0; i < (size_t)c->chunks.chunk_count * CENSUS_ROUNDS; i++) {
			free(rounds[i].result);
			free(rounds[i].had);
		}
		free(rounds);
	}
	chunking_plan_fini(&c->chunks);
	*c = (struct census){0};
}

/* NULL: there are too many of them. It is valid until another one is asked for. */
static struct census_run *census_run(struct census *c, uint64_t id)
{
	unsigned at = 0;

	while (at < c->run_count && c->runs[at].id < id)
		at++;
	if (at < c->run_count && c->runs[at].id == id)
		return &c->runs[at];
	if (c->run_count == CENSUS_RUNS)
		return NULL;
	memmove(&c->runs[at + 1], &c->runs[at], (c->run_count++ - at) * sizeof(c->runs[0]));
	c->runs[at] = (struct census_run){
		.id = id,
		.rounds = calloc((size_t)c->chunks.chunk_count * CENSUS_ROUNDS, sizeof(struct census_round)),
	};
	return &c->runs[at];
}

static struct census_round *census_round(const struct census_run *run, uint32_t chunk, uint64_t round)
{
	return &run->rounds[(size_t)chunk * CENSUS_ROUNDS + round];
}

/* Of a push or a result. NULL: there is no room for it, and it is counted. */
static struct census_round *census_find(struct census *c, uint64_t id, uint32_t chunk, uint64_t round)
{
	struct census_run *run = round < CENSUS_ROUNDS ? census_run(c, id) : NULL;

	c->unseen += !run;
	return run ? census_round(run, chunk, round) : NULL;
}

static struct census_share *census_share(struct census_round *r, unsigned who)
{
	for (unsigned i = 0; i < r->count; i++)
		if (r->shares[i].who == who)
			return &r->shares[i];
	return NULL;
}

void census_push(struct census *c, uint64_t run, unsigned who, uint32_t chunk, uint64_t round, uint64_t version)
{
	struct census_round *r = census_find(c, run, chunk, round);
	struct census_share *share = r ? census_share(r, who) : NULL;

	if (!r)
		return;
	if (!share && r->count < CENSUS_SHARES) {
		share = &r->shares[r->count++];
		*share = (struct census_share){.who = who, .version = version};
	}
	if (share)
		share->keys++;
	else
		c->unseen++;
}

/* Where the key's bytes are, in the key and in the chunk. */
static size_t census_part(const struct census *c, unsigned key, uint32_t chunk, size_t *in_key, size_t *in_chunk)
{
	const struct chunk_span *span = &c->chunks.chunks[chunk];
	uint64_t key_bytes = c->plan->elements[key] * dtype_size(c->plan->dtypes[key]);
	uint64_t offset = c->chunks.key_offset[key];
	uint64_t from = offset > span->offset ? offset : span->offset;
	uint64_t to = offset + key_bytes < span->offset + span->bytes ? offset + key_bytes : span->offset + span->bytes;

	*in_key = from - offset;
	*in_chunk = from - span->offset;
	return to - from;
}

bool census_got(struct census *c, uint64_t run, unsigned who, unsigned key, uint32_t chunk, uint64_t round,
	const void *got, bool share)
{
	const struct chunk_span *span = &c->chunks.chunks[chunk];
	struct census_round *r = census_find(c, run, chunk, round);
	struct census_share *mine = r ? census_share(r, who) : NULL;
	size_t in_key, in_chunk, bytes = census_part(c, key, chunk, &in_key, &in_chunk);

	if (!r)
		return true;
	if (!r->result) {
		r->result = calloc(1, span->bytes);
		r->had = calloc(1, span->key_count);
		r->before = c->dead == 0;
	}
	if (share && mine)
		mine->got = true;
	if (!r->had[key - span->key_first]) {
		r->had[key - span->key_first] = 1;
		memcpy(r->result + in_chunk, (const uint8_t *)got + in_key, bytes);
		return true;
	}
	if (memcmp(r->result + in_chunk, (const uint8_t *)got + in_key, bytes) == 0)
		return true;
	snprintf(c->text, sizeof(c->text),
		"rank %u key %u chunk %u: its result of round %llu is not the one that another worker got",
		who % WORLD_WORKERS_MAX, key, chunk, (unsigned long long)round);
	return false;
}

/* ---- the search ---- */

static void look_values(struct look *l, const struct census_share *share, float *out)
{
	struct census *c = l->census;

	for (unsigned key = l->span->key_first; key < l->span->key_first + l->span->key_count; key++) {
		size_t in_key, in_chunk, bytes = census_part(c, key, l->chunk, &in_key, &in_chunk);
		uint8_t *payload = calloc(c->plan->elements[key], l->size);

		oracle_fill(c->oracle, c->keys[key], share->who, share->version, payload);
		convert_to_f32(out + in_chunk / l->size, payload + in_key, (enum dtype)l->span->dtype, bytes / l->size);
		free(payload);
	}
}

static void look_copy(struct look *l, const struct state *from, struct state *to)
{
	size_t bytes = l->elements * sizeof(float);

	to->steps = from->steps;
	to->weight = malloc(bytes);
	memcpy(to->weight, from->weight, bytes);
	for (unsigned i = 0; i < optimizer_state_count(l->census->plan->optimizer); i++) {
		to->slots[i] = malloc(bytes);
		memcpy(to->slots[i], from->slots[i], bytes);
	}
}

static void look_drop(struct state *s)
{
	free(s->weight);
	for (unsigned i = 0; i < OPTIMIZER_STATE_MAX; i++)
		free(s->slots[i]);
	*s = (struct state){0};
}

static bool look_same(const struct look *l, const struct state *a, const struct state *b)
{
	size_t bytes = l->elements * sizeof(float);
	bool same = a->steps == b->steps && memcmp(a->weight, b->weight, bytes) == 0;

	for (unsigned i = 0; same && i < optimizer_state_count(l->census->plan->optimizer); i++)
		same = memcmp(a->slots[i], b->slots[i], bytes) == 0;
	return same;
}

/* Is what these shares make of the state what was got? Where nobody got it: it may have been. */
static bool look_explains(const struct look *l, const struct census_round *r)
{
	for (unsigned k = 0; r->result && k < l->span->key_count; k++) {
		size_t in_key, in_chunk,
			bytes = census_part(l->census, l->span->key_first + k, l->chunk, &in_key, &in_chunk);

		if (r->had[k] && memcmp(r->result + in_chunk, (uint8_t *)l->out + in_chunk, bytes) != 0)
			return false;
	}
	return true;
}

/* l->sum and its number become l->out, and the state after it. */
static void look_apply(struct look *l, struct state *s, uint64_t round, unsigned number)
{
	const struct world_plan *plan = l->census->plan;
	struct optimizer_hyper hyper = world_plan_hyper(plan, round);
	struct optimizer_coef coef;
	struct step_args step = {
		.sum = {.acc = l->sum,
			.out_dtype = (enum dtype)l->span->dtype,
			.scale = plan->mean ? (float)(1.0 / number) : 1,
			.count = l->elements,
			.out = l->out},
		.coef = &coef,
		.weight = s->weight,
		.state = {s->slots[0], s->slots[1]},
	};

	if (number == 0) { /* left out */
		convert_from_f32(l->out, (enum dtype)l->span->dtype, s->weight, l->elements);
		return;
	}
	if (plan->optimizer == OPTIMIZER_NONE) {
		kernels_base.sum(&step.sum);
		return;
	}
	optimizer_prepare(plan->optimizer, &hyper, ++s->steps, &coef);
	kernels_base.step(&step);
}

static void look_keep(struct look *l, struct state *s)
{
	for (unsigned i = 0; i < l->next_count; i++) {
		if (look_same(l, &l->next[i], s)) {
			look_drop(s);
			return;
		}
	}
	if (l->next_count == CENSUS_STATES) {
		l->overflow = true;
		look_drop(s);
		return;
	}
	l->next[l->next_count++] = *s;
}

/* Sums the shares of the set in the order of their ranks: how many, or -1, there cannot be such a set. */
static int look_sum(struct look *l, const struct census_round *r, unsigned set)
{
	int number = 0;

	for (unsigned rank = 0; rank < WORLD_WORKERS_MAX; rank++) {
		unsigned of_rank = 0;

		for (unsigned i = 0; i < r->count; i++) {
			if (!(set >> i & 1) || r->shares[i].who % WORLD_WORKERS_MAX != rank)
				continue;
			for (uint32_t e = 0; e < l->elements; e++)
				l->sum[e] = number ? l->sum[e] + l->values[i][e] : l->values[i][e];
			number++;
			of_rank++;
		}
		if (of_rank > 1)
			return -1; /* one life of a rank, or another */
	}
	return number;
}

/* May this set be the one? All that got the result for their push are in it, and none that did not push all of it. */
static bool look_may(const struct look *l, const struct census_round *r, unsigned set)
{
	const struct world_plan *plan = l->census->plan;
	unsigned number = 0, quorum = plan->quorum;
	bool fails = plan->deaths > 0 && plan->lost == LOST_FAIL && !quorum && !world_plan_dies(plan);
	bool dead = true;

	for (unsigned i = 0; i < r->count; i++) {
		bool in = set >> i & 1;

		number += in;
		dead = dead && l->census->dead >> r->shares[i].who & 1;
		if (in && r->shares[i].keys < l->span->key_count)
			return false;
		if (!in && r->shares[i].got && !quorum)
			return false;
		if (!in && (l->unseen || l->census->overdue) && !quorum && !fails &&
			!(l->census->dead >> r->shares[i].who & 1))
			return false; /* who lives is waited for */
	}
	/* A job that ends with the first that is lost, and does not go on from a checkpoint, has rounds of all, and at
	 * its end one of nobody. */
	if (fails)
		return number == plan->workers || (set == 0 && l->unseen && plan->optimizer != OPTIMIZER_NONE);
	/* From the first that is lost on there may be fewer than the quorum. */
	return number >= (quorum && (plan->deaths == 0 || r->before) ? quorum : 1) ||
	       (set == 0 && dead && plan->optimizer != OPTIMIZER_NONE);
}

static void look_round(struct look *l, uint64_t round)
{
	const struct census_round *r = census_round(l->run, l->chunk, round);

	l->next_count = 0;
	for (unsigned i = 0; i < r->count; i++)
		look_values(l, &r->shares[i], l->values[i]);
	for (unsigned set = 0; set < 1u << r->count && !l->overflow; set++) {
		int number = look_may(l, r, set) ? look_sum(l, r, set) : -1;

		for (unsigned i = 0; number >= 0 && i < l->count; i++) {
			struct state s = {0};

			look_copy(l, &l->states[i], &s);
			look_apply(l, &s, round, (unsigned)number);
			if (look_explains(l, r))
				look_keep(l, &s);
			else
				look_drop(&s);
		}
	}
	for (unsigned i = 0; i < l->count; i++)
		look_drop(&l->states[i]);
	memcpy(l->states, l->next, l->next_count * sizeof(l->next[0]));
	l->count = l->next_count;
}

/* The first weights are those of a life of rank 0 that has sent all of the chunk. */
static void look_weights(struct look *l)
{
	const struct world_plan *plan = l->census->plan;
	const struct census_round *r = census_round(l->run, l->chunk, 0);
	struct optimizer_hyper hyper = world_plan_hyper(plan, 0);

	l->next_count = 0;
	for (unsigned i = 0; i < r->count; i++) {
		struct state s = {.weight = malloc(l->elements * sizeof(float))};

		for (unsigned k = 0; k < optimizer_state_count(plan->optimizer); k++) {
			s.slots[k] = malloc(l->elements * sizeof(float));
			optimizer_state_init(plan->optimizer, &hyper, k, s.slots[k], l->elements);
		}
		look_values(l, &r->shares[i], s.weight);
		convert_from_f32(l->out, (enum dtype)l->span->dtype, s.weight, l->elements);
		if (r->shares[i].keys == l->span->key_count && look_explains(l, r))
			look_keep(l, &s);
		else
			look_drop(&s);
	}
	memcpy(l->states, l->next, l->next_count * sizeof(l->next[0]));
	l->count = l->next_count;
}

static void look_forget(struct look *l)
{
	for (unsigned i = 0; i < l->count; i++)
		look_drop(&l->states[i]);
	l->count = 0;
}

/* What it may have after this round, for runs to come. */
static void look_store(struct look *l, unsigned run, uint64_t round)
{
	struct kept *kept = &l->kept[run][round];

	kept->states = calloc(l->count, sizeof(*kept->states));
	for (kept->count = 0; kept->count < l->count; kept->count++)
		look_copy(l, &l->states[kept->count], &kept->states[kept->count]);
}

/* The run goes on from what some run before it had after this round. */
static void look_resume(struct look *l, unsigned run, uint64_t round)
{
	l->next_count = 0;
	for (unsigned before = 0; before < run; before++) {
		const struct kept *kept = &l->kept[before][round];

		for (unsigned i = 0; i < kept->count && !l->overflow; i++) {
			struct state s = {0};

			look_copy(l, &kept->states[i], &s);
			look_keep(l, &s);
		}
	}
	memcpy(l->states, l->next, l->next_count * sizeof(l->next[0]));
	l->count = l->next_count;
}

static void look_begin(struct look *l, struct census *c, uint32_t chunk)
{
	memset(l, 0, sizeof(*l));
	l->census = c;
	l->chunk = chunk;
	l->span = &c->chunks.chunks[chunk];
	l->size = dtype_size((enum dtype)l->span->dtype);
	l->elements = (uint32_t)(l->span->bytes / l->size);
	l->sum = calloc(l->elements, sizeof(float));
	l->out = calloc(l->elements, l->size);
	for (unsigned i = 0; i < CENSUS_SHARES; i++)
		l->values[i] = calloc(l->elements, sizeof(float));
}

static void look_end(struct look *l)
{
	look_forget(l);
	for (unsigned i = 0; i < CENSUS_RUNS * CENSUS_ROUNDS; i++) {
		struct kept *kept = &l->kept[i / CENSUS_ROUNDS][i % CENSUS_ROUNDS];

		while (kept->count > 0)
			look_drop(&kept->states[--kept->count]);
		free(kept->states);
	}
	for (unsigned i = 0; i < CENSUS_SHARES; i++)
		free(l->values[i]);
	free(l->sum);
	free(l->out);
}

static int look_last(const struct look *l)
{
	int last = CENSUS_ROUNDS - 1;

	while (last >= 0 && !census_round(l->run, l->chunk, (uint64_t)last)->result)
		last--;
	return last;
}

static void look_complain(const struct look *l, uint64_t round)
{
	const struct census_round *r = census_round(l->run, l->chunk, round);
	struct census *c = l->census;
	int at = snprintf(c->text, sizeof(c->text),
		"chunk %u (key %u) round %llu%s: no set of ranks explains it; pushed:", l->chunk, l->span->key_first,
		(unsigned long long)round, l->run > c->runs ? " of a later run" : "");

	for (unsigned i = 0; i < r->count && at < (int)sizeof(c->text) - 32; i++)
		at += snprintf(c->text + at, sizeof(c->text) - (size_t)at, " %u.%u%s%s",
			r->shares[i].who % WORLD_WORKERS_MAX, r->shares[i].who / WORLD_WORKERS_MAX,
			r->shares[i].keys < l->span->key_count ? " in part" : "", r->shares[i].got ? " and got" : "");
}

/* Of the round: it may have been committed, but nobody got it before the job was lost. */
static void look_beyond(struct look *l, unsigned run, uint64_t round)
{
	if (l->count == 0 || run + 1 == l->census->run_count || round >= CENSUS_ROUNDS ||
		census_round(l->run, l->chunk, round)->count == 0)
		return;
	l->unseen = true;
	look_round(l, round);
	l->unseen = false;
	if (l->overflow)
		l->open = true;
	else
		look_store(l, run, round);
	l->overflow = false;
}

/* The first weights, or those of a run before it. Returns the round that it has then, or -1: nothing was seen of it. */
static int look_start(struct look *l, unsigned run)
{
	int first = 0;

	look_forget(l);
	l->resumed = false;
	if (l->census->plan->optimizer == OPTIMIZER_NONE) { /* each round explains itself */
		l->count = 1;
		l->states[0].weight = calloc(l->elements, sizeof(float));
		return 0;
	}
	while (first < CENSUS_ROUNDS && !census_round(l->run, l->chunk, (uint64_t)first)->result &&
		census_round(l->run, l->chunk, (uint64_t)first)->count == 0)
		first++;
	if (first == CENSUS_ROUNDS)
		return -1;
	l->resumed = first > 0 || census_round(l->run, l->chunk, 0)->count == 0;
	if (!l->resumed)
		look_weights(l);
	else
		look_resume(l, run, (uint64_t)first);
	return first;
}

/* One round. False: nothing explains it. */
static bool look_judge(struct look *l, unsigned run, int round, int last)
{
	/* Or it went on from what is not known any more. */
	if (l->overflow || (l->count == 0 && l->open && l->resumed)) {
		l->census->given_up += (uint64_t)(last - round + 1);
		l->overflow = l->open = true;
		return true;
	}
	if (l->count == 0) {
		look_complain(l, (uint64_t)round);
		return false;
	}
	l->census->judged++;
	if (run + 1 < l->census->run_count)
		look_store(l, run, (uint64_t)round);
	return true;
}

static bool look_run(struct look *l, unsigned run)
{
	bool optimizer = l->census->plan->optimizer != OPTIMIZER_NONE, good = true;
	int first, last;

	l->run = &l->census->runs[run];
	last = look_last(l);
	first = look_start(l, run);
	if (first < 0)
		return true;
	if (last < first) { /* weights that nobody got before the job was lost */
		if (first == 0 && optimizer)
			look_store(l, run, 0);
		return true;
	}
	for (int round = optimizer ? first : 1; round <= last && good && !l->overflow; round++) {
		if (!optimizer && !census_round(l->run, l->chunk, (uint64_t)round)->result)
			continue;
		if (l->count > 0 && (round > 0 || l->resumed))
			look_round(l, (uint64_t)round);
		good = look_judge(l, run, round, last);
	}
	if (good && !l->overflow && optimizer)
		look_beyond(l, run, (uint64_t)last + 1);
	l->overflow = false;
	return good;
}

bool census_check(struct census *c)
{
	struct look *l = malloc(sizeof(*l));
	bool good = c->unseen == 0;

	if (!good)
		snprintf(c->text, sizeof(c->text),
			"the census had no room for %llu pushes and results: at most %d runs, %d rounds, %d shares",
			(unsigned long long)c->unseen, CENSUS_RUNS, CENSUS_ROUNDS, CENSUS_SHARES);
	for (uint32_t chunk = 0; chunk < c->chunks.chunk_count && good; chunk++) {
		look_begin(l, c, chunk);
		for (unsigned run = 0; run < c->run_count && good; run++)
			good = look_run(l, run);
		look_end(l);
	}
	free(l);
	return good;
}
