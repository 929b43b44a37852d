/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be told of results when ranks are lost, come, or do not wait for each other: whose sum it is, and what all
 * steps together must give.
 */
#include "tests/system/worker.h"

#include <stdlib.h>
#include <string.h>

#define SOME_SETS        (1u << WORKER_SOME_WORLD)
#define SOME_CHUNK_BYTES 32768u /* the box's default */

/* sums[S] is what the ranks of S give together in this round. */
static void some_sums(uint32_t world, uint64_t round, float sums[SOME_SETS][WORKER_PERIOD])
{
	float values[WORKER_PERIOD];

	memset(sums[0], 0, sizeof(sums[0]));
	for (uint32_t rank = 0; rank < world; rank++) {
		worker_integers(rank, round, values);
		for (uint32_t set = 0; set < 1u << rank; set++)
			for (uint32_t i = 0; i < WORKER_PERIOD; i++)
				sums[set | 1u << rank][i] = sums[set][i] + values[i];
	}
}

/* A key's round as numbers: its sum, or the step that it made. */
static float some_value(const struct worker_options *o, const struct worker_key *key, const void *result, uint64_t i)
{
	float now = worker_widen(key->dtype, result, i);

	return o->phub.optimizer ? key->before[i] - now : now;
}

/* Elements first..i are the sum of this set? */
static bool some_fits(const float *sum, const float *values, uint64_t first, uint64_t i, unsigned phase)
{
	for (;; i--) {
		float differs = values[i] - sum[(i + phase) % WORKER_PERIOD];

		if (differs < 0 || differs > 0)
			return false;
		if (i == first)
			return true;
	}
}

/* The next set from `set` on that fits; 0: none. Nobody is no set: a round that nobody pushed is none. */
static uint32_t some_find(float sums[SOME_SETS][WORKER_PERIOD], uint32_t sets, const float *values, uint64_t first,
	uint64_t i, unsigned phase)
{
	for (uint32_t set = sets - 1; set > 0; set--)
		if (some_fits(sums[set], values, first, i, phase))
			return set;
	return 0;
}

uint64_t worker_check_some(const struct worker_options *o, unsigned index, uint64_t round, const void *result)
{
	static float sums[SOME_SETS][WORKER_PERIOD];
	static uint64_t made;
	struct worker_key *key = &o->keys[index];
	uint32_t sets = 1u << o->phub.world, set = sets - 1, chunk = o->phub.chunk_bytes;
	uint64_t wrong = 0, first = 0, runs = 1, most = key->bytes / (chunk ? chunk : SOME_CHUNK_BYTES) + 2;
	float *values = malloc(key->elements * sizeof(*values));

	if (!values || (!key->before && !(key->before = calloc(key->elements, sizeof(*key->before)))))
		abort();
	if (round && made != round) {
		made = round;
		some_sums((uint32_t)o->phub.world, round, sums);
	}
	for (uint64_t i = 0; round && i < key->elements; i++) {
		unsigned phase = worker_phase(index);

		values[i] = some_value(o, key, result, i);
		if (set && some_fits(sums[set], values, i, i, phase))
			continue;
		set = some_find(sums, sets, values, first, i, phase);
		if (set)
			continue;
		first = i;
		runs++;
		set = some_find(sums, sets, values, i, i, phase);
		wrong += set == 0;
	}
	for (uint64_t i = 0; i < key->elements; i++)
		key->before[i] = worker_widen(key->dtype, result, i);
	free(values);
	return wrong + (runs > most ? runs - most : 0);
}

void worker_oracle_total(struct worker_oracle *oracle, uint64_t rounds)
{
	float values[WORKER_PERIOD];

	worker_oracle_init(oracle, oracle->options);
	for (uint64_t round = 1; round <= rounds; round++) {
		for (uint32_t rank = 0; rank < (uint32_t)oracle->options->phub.world; rank++) {
			worker_integers(rank, round, values);
			for (uint32_t i = 0; i < WORKER_PERIOD; i++)
				oracle->weight[i] -= values[i];
		}
	}
}
