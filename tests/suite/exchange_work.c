/* SPDX-License-Identifier: Apache-2.0 */
/* The serial run: one key, one rank after the other, scalar arithmetic. */
#include "tests/suite/exchange_work.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "aggregation/kernels.h"
#include "tests/unit/cmocka_shim.h"

enum { WORK_BLOCK = 64 };

static uint32_t work_mix(uint32_t x)
{
	x = (x ^ (x >> 16)) * 0x7feb352du;
	x = (x ^ (x >> 15)) * 0x846ca68bu;
	return x ^ (x >> 16);
}

size_t work_bytes(const struct work *w, unsigned key)
{
	return w->keys[key].elements * dtype_size(w->keys[key].dtype);
}

/* One in so many elements of a sparse key is not zero; 0: none is. */
static uint32_t work_density(uint64_t round, unsigned key)
{
	static const uint32_t one_in[] = {1, 10, 1000, 0};

	return one_in[(round + key) % 4];
}

static float work_sparse_value(const struct work *w, unsigned key, uint64_t round, uint32_t bits, float value)
{
	uint32_t one_in = work_density(round, key);

	if (one_in == 0 || bits % one_in != 0)
		return 0;
	if (w->optimizer == PHUB_NONE && bits % 7000 == 0)
		return NAN;
	return value == 0 || bits % 300 == 0 ? -0.0f : value;
}

/* Whole numbers, or numbers of 24 bits over 16 powers of two. */
static float work_dense_value(const struct work *w, uint32_t bits)
{
	if (w->values == VALUES_INTEGERS)
		return (float)(bits % 13) - 6;
	return ((float)(bits >> 8) - 0x1p23f) * (1.0f / (float)(1u << (bits & 15)));
}

static float work_value(const struct work *w, unsigned key, uint64_t round, uint32_t salt, uint32_t index)
{
	uint32_t bits = work_mix(salt + index * 0x9e3779b9u);
	float value = work_dense_value(w, bits);

	return w->sparse >> key & 1 ? work_sparse_value(w, key, round, work_mix(bits), value) : value;
}

void work_fill(const struct work *w, unsigned rank, uint64_t round, unsigned key, void *out)
{
	uint32_t salt = work_mix((uint32_t)(w->seed * 0x10001 + round * 4096 + rank * 64 + key + 1));
	const struct shape *shape = &w->keys[key];

	if (shape->dtype == DTYPE_F32) {
		for (uint32_t i = 0; i < shape->elements; i++)
			((float *)out)[i] = work_value(w, key, round, salt, i);
		return;
	}
	for (uint32_t i = 0; i < shape->elements; i += WORK_BLOCK) {
		uint32_t count = shape->elements - i < WORK_BLOCK ? shape->elements - i : WORK_BLOCK;
		float block[WORK_BLOCK];

		for (uint32_t k = 0; k < count; k++)
			block[k] = work_value(w, key, round, salt, i + k);
		convert_from_f32((uint16_t *)out + i, shape->dtype, block, count);
	}
}

void work_hyper(const struct work *w, unsigned group, uint64_t round, struct phub_hyper *out)
{
	phub_hyper_init(w->optimizer, out);
	out->lr = (w->scheduled ? 0.25 / (double)(1 + round) : 0.125) / (1 + group);
	out->weight_decay = 0.01 * group;
	if (group == 2 && w->optimizer == PHUB_MOMENTUM)
		out->dampening = 0.5;
	if (w->optimizer == PHUB_ADAGRAD) {
		out->lr_decay = 0.125;
		out->initial_accumulator_value = 0.5;
	}
}

/* ---- the serial run ---- */

struct serial {
	const struct work *work;
	unsigned key;
	uint64_t steps;
	uint32_t elements;
	enum dtype dtype;
	float *weight, *state[OPTIMIZER_STATE_MAX], *sum, *gradient;
	void *payload;
};

static void *serial_alloc(size_t count, size_t size)
{
	void *p = calloc(count, size);

	assert_non_null(p);
	return p;
}

static void serial_hyper(const struct work *w, unsigned group, uint64_t round, struct optimizer_hyper *out)
{
	struct phub_hyper h;

	work_hyper(w, group, round, &h);
	*out = (struct optimizer_hyper){.lr = h.lr,
		.momentum = h.momentum,
		.dampening = h.dampening,
		.weight_decay = h.weight_decay,
		.lr_decay = h.lr_decay,
		.initial_accumulator_value = h.initial_accumulator_value,
		.beta1 = h.beta1,
		.beta2 = h.beta2,
		.eps = h.eps};
}

static void serial_init(struct serial *s, const struct work *w, unsigned key)
{
	const struct shape *shape = &w->keys[key];
	enum optimizer_kind kind = (enum optimizer_kind)w->optimizer;
	struct optimizer_hyper hyper;

	*s = (struct serial){.work = w, .key = key, .elements = shape->elements, .dtype = shape->dtype};
	s->weight = serial_alloc(s->elements, sizeof(float));
	s->sum = serial_alloc(s->elements, sizeof(float));
	s->gradient = serial_alloc(s->elements, sizeof(float));
	s->payload = serial_alloc(s->elements, sizeof(float));
	serial_hyper(w, shape->group, 0, &hyper);
	for (unsigned i = 0; i < optimizer_state_count(kind); i++) {
		s->state[i] = serial_alloc(s->elements, sizeof(float));
		optimizer_state_init(kind, &hyper, i, s->state[i], s->elements);
	}
}

static void serial_fini(struct serial *s)
{
	free(s->weight);
	free(s->sum);
	free(s->gradient);
	free(s->payload);
	for (unsigned i = 0; i < OPTIMIZER_STATE_MAX; i++)
		free(s->state[i]);
}

static void serial_add(struct serial *s, unsigned rank, uint64_t round)
{
	bool sparse = s->work->sparse >> s->key & 1;

	if (rank == 0)
		memset(s->sum, 0, s->elements * sizeof(*s->sum));
	work_fill(s->work, rank, round, s->key, s->payload);
	convert_to_f32(s->gradient, s->payload, s->dtype, s->elements);
	for (uint32_t i = 0; i < s->elements; i++)
		s->sum[i] = rank == 0 && !sparse ? s->gradient[i] : s->sum[i] + s->gradient[i];
}

static void serial_round(struct serial *s, uint64_t round, void *out)
{
	const struct work *w = s->work;
	struct optimizer_hyper hyper;
	struct optimizer_coef coef;
	struct step_args step = {
		.sum = {.acc = s->sum,
			.out_dtype = s->dtype,
			.scale = w->mean ? (float)(1.0 / w->world) : 1,
			.count = s->elements,
			.out = out},
		.coef = &coef,
		.weight = s->weight,
		.state = {s->state[0], s->state[1]},
	};

	for (unsigned rank = 0; rank < w->world; rank++)
		serial_add(s, rank, round);
	if (w->optimizer == PHUB_NONE) {
		kernels_base.sum(&step.sum);
		return;
	}
	serial_hyper(w, w->keys[s->key].group, round, &hyper);
	optimizer_prepare((enum optimizer_kind)w->optimizer, &hyper, ++s->steps, &coef);
	kernels_base.step(&step);
}

void ledger_open(struct ledger *ledger, const struct work *w)
{
	*ledger = (struct ledger){.work = w};
	assert_true(w->rounds <= WORK_ROUNDS_MAX && w->key_count <= WORK_KEYS_MAX);
	for (unsigned key = 0; key < w->key_count; key++) {
		struct serial s;

		serial_init(&s, w, key);
		for (uint64_t round = 0; round <= w->rounds; round++) {
			ledger->results[key][round] = serial_alloc(1, work_bytes(w, key));
			if (round > 0) {
				serial_round(&s, round, ledger->results[key][round]);
				continue;
			}
			work_fill(w, 0, 0, key, ledger->results[key][0]);
			convert_to_f32(s.weight, ledger->results[key][0], s.dtype, s.elements);
		}
		serial_fini(&s);
	}
}

void ledger_close(struct ledger *ledger)
{
	for (unsigned key = 0; key < ledger->work->key_count; key++)
		for (uint64_t round = 0; round <= ledger->work->rounds; round++)
			free(ledger->results[key][round]);
}

static int64_t work_compare(const void *got, const void *expected, size_t size, uint32_t elements)
{
	const uint8_t *a = got, *b = expected;

	if (memcmp(a, b, size * elements) == 0)
		return -1;
	for (uint32_t i = 0; i < elements; i++)
		if (memcmp(a + i * size, b + i * size, size) != 0)
			return i;
	return -1;
}

int64_t ledger_check(const struct ledger *ledger, unsigned key, uint64_t round, const void *got)
{
	const struct shape *shape = &ledger->work->keys[key];

	return work_compare(got, ledger->results[key][round], dtype_size(shape->dtype), shape->elements);
}

int64_t work_check_broadcast(const struct work *w, unsigned root, uint64_t round, unsigned key, const void *got)
{
	void *expected = malloc(work_bytes(w, key));
	int64_t wrong = 0;

	if (expected) {
		work_fill(w, root, round, key, expected);
		wrong = work_compare(got, expected, dtype_size(w->keys[key].dtype), w->keys[key].elements);
	}
	free(expected);
	return wrong;
}
