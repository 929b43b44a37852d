/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What workers push, and what must come back. Gradients are integers of -8..7 that depend on rank, round and index, so
 * that sums of up to a million workers are exact in fp32 whatever the order of additions; a step from exact sums has
 * the same bits in the box and here, where base kernels replay the rounds serially. Every worker replays its share of
 * the elements.
 */
#include <string.h>

#include "aggregation/convert.h"
#include "aggregation/kernels.h"
#include "phub/cli/trial.h"

enum { DATA_BLOCK = 1024 }; /* elements, a constant so that compilers vectorize the loops */

/* ---- gradients ---- */

static uint32_t data_salt(uint32_t rank, uint32_t round, uint32_t high)
{
	uint32_t x = rank * 0x9e3779b1u + round * 0x85ebca77u + high * 0xc2b2ae3du + 0x27d4eb2fu;

	x = (x ^ x >> 16) * 0x7feb352du;
	x = (x ^ x >> 15) * 0x846ca68bu;
	return x ^ x >> 16;
}

static inline int32_t data_element(uint32_t salt, uint32_t index)
{
	uint32_t x = index * 0x9e3779b1u ^ salt;

	x = (x ^ x >> 15) * 0x85ebca77u;
	x = (x ^ x >> 13) * 0xc2b2ae3du;
	return (int32_t)(x >> 28) - 8;
}

/* A block that no 4 Gi boundary of indexes runs through: blocks are aligned to their size. */
static void data_block(uint32_t rank, uint32_t round, uint64_t block, int32_t out[DATA_BLOCK], bool add)
{
	uint32_t salt = data_salt(rank, round, (uint32_t)(block * DATA_BLOCK >> 32));
	uint32_t first = (uint32_t)(block * DATA_BLOCK);

	if (!add)
		memset(out, 0, DATA_BLOCK * sizeof(*out));
	for (uint32_t i = 0; i < DATA_BLOCK; i++)
		out[i] += data_element(salt, first + i);
}

static void data_to_float(const int32_t in[DATA_BLOCK], float out[DATA_BLOCK], float scale)
{
	for (uint32_t i = 0; i < DATA_BLOCK; i++)
		out[i] = (float)in[i] * scale;
}

static void data_fill(
	uint32_t rank, uint32_t round, uint64_t first, uint64_t count, uint8_t dtype, float scale, void *out)
{
	unsigned char *at = out;

	while (count) {
		int32_t numbers[DATA_BLOCK];
		float values[DATA_BLOCK];
		uint64_t skip = first % DATA_BLOCK, take = DATA_BLOCK - skip;

		take = take < count ? take : count;
		data_block(rank, round, first / DATA_BLOCK, numbers, false);
		data_to_float(numbers, values, scale);
		convert_from_f32(at, dtype, values + skip, take);
		at += take * dtype_size(dtype);
		first += take;
		count -= take;
	}
}

void trial_fill(unsigned rank, unsigned round, uint64_t first, uint64_t count, uint8_t dtype, void *out)
{
	data_fill(rank, round, first, count, dtype, 1.0f, out);
}

/* Eighths, exact in every dtype. */
void trial_fill_weights(uint64_t first, uint64_t count, uint8_t dtype, void *out)
{
	data_fill(UINT32_MAX, 0, first, count, dtype, 0.125f, out);
}

/* ---- rounds ---- */

bool trial_is_fresh(const struct trial_plan *p, unsigned round)
{
	unsigned last = p->warmup + p->rounds - 1;

	if (p->block)
		return round % p->block == 0;
	/* The round behind a checked one is fresh: there the workers have waited for each other's checks. */
	return p->check == TRIAL_ALL || round == 0 || round == p->warmup || round == p->warmup + 1 || round == last;
}

bool trial_is_checked(const struct trial_plan *p, unsigned round)
{
	return p->check == TRIAL_ALL || round == p->warmup || round == p->warmup + p->rounds - 1;
}

/* Whose gradients are pushed in a round that is not fresh. */
static unsigned data_round(const struct trial_plan *p, unsigned round)
{
	while (!trial_is_fresh(p, round))
		round--;
	return round;
}

/* ---- what must come back ---- */

void trial_expect_begin(const struct trial_plan *p, struct trial_shared *s, unsigned rank)
{
	struct optimizer_hyper hyper = {.initial_accumulator_value = p->hyper.initial_accumulator_value};

	if (p->optimizer == OPTIMIZER_NONE)
		return;
	for (uint64_t block = rank; block * DATA_BLOCK < p->elements; block += p->workers) {
		uint64_t first = block * DATA_BLOCK;
		uint64_t count = p->elements - first < DATA_BLOCK ? p->elements - first : DATA_BLOCK;

		trial_fill_weights(first, count, DTYPE_F32, s->expected + first);
		for (unsigned i = 0; i < optimizer_state_count(p->optimizer); i++)
			optimizer_state_init(p->optimizer, &hyper, i, s->state[i] + first, count);
	}
}

static struct optimizer_hyper data_hyper(const struct phub_hyper *h)
{
	return (struct optimizer_hyper){
		.lr = h->lr,
		.momentum = h->momentum,
		.dampening = h->dampening,
		.weight_decay = h->weight_decay,
		.lr_decay = h->lr_decay,
		.initial_accumulator_value = h->initial_accumulator_value,
		.beta1 = h->beta1,
		.beta2 = h->beta2,
		.eps = h->eps,
	};
}

/* One round of one block, from the sum of its gradients. */
static void data_step(const struct trial_plan *p, struct trial_shared *s, unsigned round, uint64_t first,
	uint64_t count, const float *sum)
{
	struct optimizer_hyper hyper = data_hyper(&p->hyper);
	struct optimizer_coef coef;
	struct step_args step = {
		.sum = {.src = (const void *const[]){sum},
			.src_count = 1,
			.src_dtype = DTYPE_F32,
			.out_dtype = DTYPE_F32,
			.scale = 1.0f,
			.count = count,
			.out = s->expected + first},
		.coef = &coef,
		.weight = s->expected + first,
	};

	optimizer_prepare(p->optimizer, &hyper, round + 1, &coef);
	for (unsigned i = 0; i < optimizer_state_count(p->optimizer); i++)
		step.state[i] = s->state[i] + first;
	kernels_base.step(&step);
}

/* A block goes through all its rounds while it is in cache. */
void trial_expect(const struct trial_plan *p, struct trial_shared *s, unsigned rank, unsigned from, unsigned to)
{
	if (p->optimizer == OPTIMIZER_NONE)
		from = to;
	for (uint64_t block = rank; block * DATA_BLOCK < p->elements; block += p->workers) {
		uint64_t first = block * DATA_BLOCK;
		uint64_t count = p->elements - first < DATA_BLOCK ? p->elements - first : DATA_BLOCK;
		float sum[DATA_BLOCK];

		for (unsigned round = from; round <= to; round++) {
			if (round == from || trial_is_fresh(p, round)) {
				int32_t numbers[DATA_BLOCK];

				data_block(s->salt, data_round(p, round), block, numbers, false);
				for (unsigned w = 1; w < trial_world(p); w++)
					data_block(s->salt + w, data_round(p, round), block, numbers, true);
				data_to_float(numbers, sum, 1.0f);
			}
			if (p->optimizer == OPTIMIZER_NONE)
				memcpy(s->expected + first, sum, count * sizeof(*sum));
			else
				data_step(p, s, round, first, count, sum);
		}
	}
}

float trial_value(const void *results, uint64_t index, uint8_t dtype)
{
	float value;

	convert_to_f32(&value, (const unsigned char *)results + index * dtype_size(dtype), dtype, 1);
	return value;
}

int64_t trial_compare(
	const struct trial_shared *s, uint64_t first, uint64_t count, uint8_t dtype, const void *results, float *right)
{
	size_t size = dtype_size(dtype);

	for (uint64_t at = 0; at < count; at += DATA_BLOCK) {
		uint64_t take = count - at < DATA_BLOCK ? count - at : DATA_BLOCK;
		const unsigned char *got = (const unsigned char *)results + at * size;
		unsigned char wanted[DATA_BLOCK * sizeof(float)];

		convert_from_f32(wanted, dtype, s->expected + first + at, take);
		if (memcmp(wanted, got, take * size) == 0)
			continue;
		for (uint64_t i = 0; i < take; i++) {
			if (memcmp(wanted + i * size, got + i * size, size) == 0)
				continue;
			*right = trial_value(wanted, i, dtype);
			return (int64_t)(at + i);
		}
	}
	return -1;
}
