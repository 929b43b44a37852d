/* SPDX-License-Identifier: Apache-2.0 */
/* The serial run: one key, one rank after the other, scalar arithmetic. */
#include "tests/sim/oracle.h"

#include "aggregation/kernels.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t oracle_random(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15ull);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

int oracle_key_init(const struct oracle *o, struct oracle_key *key, uint32_t index, uint32_t elements, enum dtype dtype)
{
	*key = (struct oracle_key){.index = index, .elements = elements, .dtype = dtype};
	key->expected = calloc(elements, dtype_size(dtype));
	key->scratch = calloc(elements, sizeof(float));
	key->weight = calloc(elements, sizeof(float));
	key->exact = calloc(elements, sizeof(double));
	for (unsigned i = 0; i < optimizer_state_count(o->optimizer); i++)
		key->state[i] = calloc(elements, sizeof(float));
	return key->expected && key->scratch && key->weight && key->exact ? 0 : -ENOMEM;
}

void oracle_key_fini(struct oracle_key *key)
{
	free(key->expected);
	free(key->scratch);
	free(key->weight);
	free(key->exact);
	for (unsigned i = 0; i < OPTIMIZER_STATE_MAX; i++)
		free(key->state[i]);
	*key = (struct oracle_key){0};
}

/* Sum of four uniforms: near enough to a normal for sums whose order matters. */
static float oracle_normal(uint64_t *state)
{
	float sum = 0;

	for (int i = 0; i < 4; i++)
		sum += (float)(int32_t)(oracle_random(state) >> 40) * 0x1p-24f - 0.5f;
	return sum;
}

/* One in so many values is not zero; 0: none is. */
static uint32_t oracle_one_in(const struct oracle *o, const struct oracle_key *key, uint64_t round)
{
	static const uint32_t one_in[] = {40, 1, 8, 0, 400};

	return o->sparse >> key->index & 1 ? one_in[(round + key->index) % 5] : 1;
}

void oracle_fill(const struct oracle *o, const struct oracle_key *key, uint32_t rank, uint64_t round, void *out)
{
	uint64_t state = o->seed ^ (uint64_t)rank << 56 ^ round << 32 ^ key->index;
	uint32_t one_in = oracle_one_in(o, key, round);

	for (uint32_t i = 0; i < key->elements; i++)
		key->scratch[i] = o->values == ORACLE_NORMALS ? oracle_normal(&state)
							      : (float)((int)(oracle_random(&state) % 13) - 6);
	for (uint32_t i = 0; one_in != 1 && i < key->elements; i++)
		if (one_in == 0 || (uint32_t)oracle_random(&state) % one_in != 0)
			key->scratch[i] = 0;
	convert_from_f32(out, key->dtype, key->scratch, key->elements);
}

void oracle_set_weights(const struct oracle *o, struct oracle_key *key, const struct optimizer_hyper *hyper)
{
	oracle_fill(o, key, 0, 0, key->expected);
	convert_to_f32(key->weight, key->expected, key->dtype, key->elements);
	for (unsigned i = 0; i < optimizer_state_count(o->optimizer); i++)
		optimizer_state_init(o->optimizer, hyper, i, key->state[i], key->elements);
	key->steps = 0;
}

static void oracle_apply(const struct oracle *o, struct oracle_key *key, const float *sum, float scale,
	const struct optimizer_hyper *hyper)
{
	struct optimizer_coef coef;
	struct step_args step = {
		.sum = {.acc = sum,
			.out_dtype = key->dtype,
			.scale = scale,
			.count = key->elements,
			.out = key->expected},
		.coef = &coef,
		.weight = key->weight,
	};

	memcpy(step.state, key->state, sizeof(step.state));
	if (o->optimizer == OPTIMIZER_NONE) {
		kernels_base.sum(&step.sum);
		return;
	}
	optimizer_prepare(o->optimizer, hyper, ++key->steps, &coef);
	kernels_base.step(&step);
}

void oracle_round(const struct oracle *o, struct oracle_key *key, uint64_t round, const struct optimizer_hyper *hyper)
{
	float *sum = calloc(key->elements, sizeof(float));
	void *payload = calloc(key->elements, dtype_size(key->dtype));

	memset(key->exact, 0, key->elements * sizeof(double));
	for (uint32_t rank = 0; rank < o->world; rank++) {
		oracle_fill(o, key, rank, round, payload);
		convert_to_f32(key->scratch, payload, key->dtype, key->elements);
		for (uint32_t i = 0; i < key->elements; i++) {
			sum[i] = rank == 0 ? key->scratch[i] : sum[i] + key->scratch[i];
			key->exact[i] += key->scratch[i];
		}
	}
	for (uint32_t i = 0; o->mean && i < key->elements; i++)
		key->exact[i] /= o->world;
	oracle_apply(o, key, sum, o->mean ? (float)(1.0 / o->world) : 1, hyper);
	free(sum);
	free(payload);
}

void oracle_step(const struct oracle *o, struct oracle_key *key, uint32_t rank, uint64_t round,
	const struct optimizer_hyper *hyper)
{
	void *payload = calloc(key->elements, dtype_size(key->dtype));
	float *sum = calloc(key->elements, sizeof(float));

	oracle_fill(o, key, rank, round, payload);
	convert_to_f32(sum, payload, key->dtype, key->elements);
	oracle_apply(o, key, sum, 1, hyper);
	free(sum);
	free(payload);
}

void oracle_broadcast(const struct oracle *o, struct oracle_key *key, uint64_t round, uint32_t root)
{
	oracle_fill(o, key, root, round, key->expected);
	convert_to_f32(key->scratch, key->expected, key->dtype, key->elements);
	for (uint32_t i = 0; i < key->elements; i++)
		key->exact[i] = key->scratch[i];
}

int64_t oracle_compare(const struct oracle *o, const struct oracle_key *key, const void *got, bool exact)
{
	size_t size = dtype_size(key->dtype);
	double unit = key->dtype == DTYPE_F32 ? 0x1p-23 : key->dtype == DTYPE_F16 ? 0x1p-10 : 0x1p-7;

	if (exact && memcmp(got, key->expected, key->elements * size) == 0)
		return -1;
	convert_to_f32(key->scratch, got, key->dtype, key->elements);
	for (uint32_t i = 0; i < key->elements; i++) {
		const uint8_t *a = (const uint8_t *)got + i * size, *b = (const uint8_t *)key->expected + i * size;

		/* Every partial sum is below 2 * world, and is rounded once: world roundings of half a unit there. */
		if (exact ? memcmp(a, b, size) != 0
			  : !(fabs(key->scratch[i] - key->exact[i]) <= unit * o->world * o->world))
			return i;
	}
	return -1;
}
