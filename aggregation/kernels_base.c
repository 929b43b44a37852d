/* SPDX-License-Identifier: Apache-2.0
 *
 * The base kernels: plain C, the specification of every other table, and the fallback of machines without one. They
 * also finish the last elements of the vector kernels (kernels_internal.h). Work goes block by block through small
 * local arrays, so that unaligned arrays stay legal C and compilers vectorize what they can; the bits of an element
 * do not depend on its block. Built with -ffp-contract=off: a fused multiply-add would round differently.
 */
#include "aggregation/kernels.h"

#include <math.h>

#include "aggregation/kernels_internal.h"

#define BASE_BLOCK 64 /* elements; the local arrays of a step fit L1 */

static void base_load(float *block, const void *src, enum dtype dtype, size_t first, size_t n)
{
	convert_to_f32(block, kernels_at(src, first, dtype_size(dtype)), dtype, n);
}

static void base_write(void *dst, enum dtype dtype, size_t first, const float *block, size_t n)
{
	convert_from_f32(kernels_at_mut(dst, first, dtype_size(dtype)), dtype, block, n);
}

static void base_accumulate(float *sum, const void *src, enum dtype dtype, size_t first, size_t n)
{
	float term[BASE_BLOCK];

	base_load(term, src, dtype, first, n);
	for (size_t i = 0; i < n; i++)
		sum[i] = sum[i] + term[i];
}

/* The scaled sum of elements first..first+n-1. */
static void base_sum_block(const struct sum_args *args, float *sum, size_t first, size_t n)
{
	size_t s = 0;

	if (args->acc)
		base_load(sum, args->acc, DTYPE_F32, first, n);
	else
		base_load(sum, args->src[s++], args->src_dtype, first, n);
	for (; s < args->src_count; s++)
		base_accumulate(sum, args->src[s], args->src_dtype, first, n);
	for (size_t i = 0; i < n; i++)
		sum[i] = sum[i] * args->scale;
}

void kernels_base_store_from(float *acc, const void *src, enum dtype src_dtype, size_t count, size_t first)
{
	convert_to_f32(kernels_at_mut(acc, first, sizeof(*acc)), kernels_at(src, first, dtype_size(src_dtype)),
		src_dtype, count - first);
}

void kernels_base_add_from(float *acc, const void *src, enum dtype src_dtype, size_t count, size_t first)
{
	float sum[BASE_BLOCK];

	for (size_t i = first; i < count; i += BASE_BLOCK) {
		size_t n = count - i < BASE_BLOCK ? count - i : BASE_BLOCK;

		base_load(sum, acc, DTYPE_F32, i, n);
		base_accumulate(sum, src, src_dtype, i, n);
		base_write(acc, DTYPE_F32, i, sum, n);
	}
}

void kernels_base_sum_from(const struct sum_args *args, size_t first)
{
	float sum[BASE_BLOCK];

	for (size_t i = first; i < args->count; i += BASE_BLOCK) {
		size_t n = args->count - i < BASE_BLOCK ? args->count - i : BASE_BLOCK;

		base_sum_block(args, sum, i, n);
		base_write(args->out, args->out_dtype, i, sum, n);
	}
}

/* One element of each optimizer, exactly as struct optimizer_coef writes it. */

static inline float base_decay(const struct optimizer_coef *c, float g, float w)
{
	return c->weight_decay != 0.0f ? g + c->weight_decay * w : g;
}

static inline float base_momentum(const struct optimizer_coef *c, float g, float s0)
{
	return c->first ? g : c->decay0 * s0 + c->gain0 * g;
}

static inline void base_adam(const struct optimizer_coef *c, float g, float *w, float *s0, float *s1)
{
	*s0 = c->decay0 * *s0 + c->gain0 * g;
	*s1 = c->decay1 * *s1 + (c->gain1 * g) * g;
	*w = *w + (c->rate * *s0) / (c->correct1 * sqrtf(*s1) + c->eps);
}

static void base_update(const struct optimizer_coef *c, const float *sum, float *w, float *s0, float *s1, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		float g = base_decay(c, sum[i], w[i]); /* weight_decay is 0 for adamw */

		switch (c->kind) {
		case OPTIMIZER_NONE:
			break;
		case OPTIMIZER_SGD:
			w[i] = w[i] + c->rate * g;
			break;
		case OPTIMIZER_MOMENTUM:
			s0[i] = base_momentum(c, g, s0[i]);
			w[i] = w[i] + c->rate * s0[i];
			break;
		case OPTIMIZER_NESTEROV:
			s0[i] = base_momentum(c, g, s0[i]);
			w[i] = w[i] + c->rate * (g + c->decay0 * s0[i]);
			break;
		case OPTIMIZER_ADAGRAD:
			s0[i] = s0[i] + g * g;
			w[i] = w[i] + (c->rate * g) / (sqrtf(s0[i]) + c->eps);
			break;
		case OPTIMIZER_ADAM:
			base_adam(c, g, &w[i], &s0[i], &s1[i]);
			break;
		case OPTIMIZER_ADAMW:
			w[i] = c->shrink * w[i];
			base_adam(c, g, &w[i], &s0[i], &s1[i]);
			break;
		}
	}
}

void kernels_base_step_from(const struct step_args *args, size_t first)
{
	const struct sum_args *sum = &args->sum;
	unsigned states = optimizer_state_count(args->coef->kind);
	float g[BASE_BLOCK], w[BASE_BLOCK], state[OPTIMIZER_STATE_MAX][BASE_BLOCK];

	for (size_t i = first; i < sum->count; i += BASE_BLOCK) {
		size_t n = sum->count - i < BASE_BLOCK ? sum->count - i : BASE_BLOCK;

		base_sum_block(sum, g, i, n);
		base_load(w, args->weight, DTYPE_F32, i, n);
		for (unsigned s = 0; s < states; s++)
			base_load(state[s], args->state[s], DTYPE_F32, i, n);
		base_update(args->coef, g, w, state[0], state[1], n);
		base_write(args->weight, DTYPE_F32, i, w, n);
		for (unsigned s = 0; s < states; s++)
			base_write(args->state[s], DTYPE_F32, i, state[s], n);
		if (sum->out != args->weight)
			base_write(sum->out, sum->out_dtype, i, w, n);
	}
}

static void base_store(float *acc, const void *src, enum dtype src_dtype, size_t count)
{
	kernels_base_store_from(acc, src, src_dtype, count, 0);
}

static void base_add(float *acc, const void *src, enum dtype src_dtype, size_t count)
{
	kernels_base_add_from(acc, src, src_dtype, count, 0);
}

static void base_sum(const struct sum_args *args)
{
	kernels_base_sum_from(args, 0);
}

static void base_step(const struct step_args *args)
{
	kernels_base_step_from(args, 0);
}

static ptrdiff_t base_find_nonfinite(const void *src, enum dtype dtype, size_t count)
{
	return kernels_find_nonfinite(src, dtype, count);
}

static size_t base_zero_nonfinite(void *dst, const void *src, enum dtype dtype, size_t count)
{
	return kernels_zero_nonfinite(dst, src, dtype, count);
}

const struct kernels kernels_base = {
	.name = "base",
	.isa = ISA_BASE,
	.store = base_store,
	.add = base_add,
	.sum = base_sum,
	.step = base_step,
	.find_nonfinite = base_find_nonfinite,
	.zero_nonfinite = base_zero_nonfinite,
};
