/* SPDX-License-Identifier: Apache-2.0
 *
 * The vector kernels, written once. Each kernels_<isa>.c defines the type `vec` of SIMD_WIDTH floats, the functions
 * simd_{load,store}_{f32,f16,bf16}(), simd_{set,add,mul,div,sqrt}(), the macros SIMD_TABLE, SIMD_NAME, SIMD_ISA and
 * SIMD_PREFETCH, and then includes this file, which defines the table. Loads and stores take unaligned pointers.
 *
 * A loop works on SIMD_UNROLL vectors at a time, with all sources' sums in registers: each source is read once, in
 * order, the result is written once, nothing else touches memory. The elements that fill no vector go through the
 * base kernels, which have the same bits.
 */
#include "aggregation/kernels_internal.h"

#define SIMD_UNROLL 4
#define SIMD_BLOCK  (SIMD_UNROLL * SIMD_WIDTH)
#define SIMD_LINE   64 /* bytes of a cache line */

/* dtype is a constant at each call, or a branch that is the same for the whole chunk. */
KERNELS_INLINE vec simd_load(const void *src, enum dtype dtype, size_t index)
{
	const void *at = kernels_at(src, index, dtype_size(dtype));

	if (dtype == DTYPE_F32)
		return simd_load_f32(at);
	return dtype == DTYPE_F16 ? simd_load_f16(at) : simd_load_bf16(at);
}

KERNELS_INLINE void simd_store(void *dst, enum dtype dtype, size_t index, vec value)
{
	void *at = kernels_at_mut(dst, index, dtype_size(dtype));

	if (dtype == DTYPE_F32)
		simd_store_f32(at, value);
	else if (dtype == DTYPE_F16)
		simd_store_f16(at, value);
	else
		simd_store_bf16(at, value);
}

/*
 * Asks for the cache lines of the block that comes SIMD_PREFETCH bytes later (0: none); past the end of an array that
 * is harmless, and in an arena it is often the next chunk.
 */
KERNELS_INLINE void simd_prefetch(const void *src, enum dtype dtype, size_t index)
{
	const size_t size = dtype_size(dtype);

	for (size_t at = 0; SIMD_PREFETCH && at < SIMD_BLOCK * size; at += SIMD_LINE)
		__builtin_prefetch(kernels_at(src, index * size + SIMD_PREFETCH + at, 1));
}

/* The unscaled sum of SIMD_UNROLL vectors from element i on. */
KERNELS_INLINE void simd_gather(const struct sum_args *args, enum dtype dtype, size_t i, vec sum[SIMD_UNROLL])
{
	size_t s = args->acc ? 0 : 1;
	const void *head = args->acc ? args->acc : args->src[0];
	enum dtype head_dtype = args->acc ? DTYPE_F32 : dtype;

	simd_prefetch(head, head_dtype, i);
	for (size_t u = 0; u < SIMD_UNROLL; u++)
		sum[u] = simd_load(head, head_dtype, i + u * SIMD_WIDTH);
	for (; s < args->src_count; s++) {
		const void *src = args->src[s];

		simd_prefetch(src, dtype, i);
		for (size_t u = 0; u < SIMD_UNROLL; u++)
			sum[u] = simd_add(sum[u], simd_load(src, dtype, i + u * SIMD_WIDTH));
	}
}

/* The same for one vector. */
KERNELS_INLINE vec simd_gather_one(const struct sum_args *args, enum dtype dtype, size_t i)
{
	size_t s = args->acc ? 0 : 1;
	vec sum = args->acc ? simd_load(args->acc, DTYPE_F32, i) : simd_load(args->src[0], dtype, i);

	for (; s < args->src_count; s++)
		sum = simd_add(sum, simd_load(args->src[s], dtype, i));
	return sum;
}

KERNELS_INLINE void simd_sum_loop(const struct sum_args *args, enum dtype in, enum dtype out)
{
	const struct sum_args a = *args; /* a private copy: no store to out can change it */
	const vec scale = simd_set(a.scale);
	size_t i = 0;

	for (; i + SIMD_BLOCK <= a.count; i += SIMD_BLOCK) {
		vec sum[SIMD_UNROLL];

		simd_gather(&a, in, i, sum);
		simd_prefetch(a.out, out, i);
		for (size_t u = 0; u < SIMD_UNROLL; u++)
			simd_store(a.out, out, i + u * SIMD_WIDTH, simd_mul(sum[u], scale));
	}
	for (; i + SIMD_WIDTH <= a.count; i += SIMD_WIDTH)
		simd_store(a.out, out, i, simd_mul(simd_gather_one(&a, in, i), scale));
	kernels_base_sum_from(args, i);
}

KERNELS_INLINE void simd_sum_from(const struct sum_args *args, enum dtype in)
{
	if (args->out_dtype == DTYPE_F32)
		simd_sum_loop(args, in, DTYPE_F32);
	else if (args->out_dtype == DTYPE_F16)
		simd_sum_loop(args, in, DTYPE_F16);
	else
		simd_sum_loop(args, in, DTYPE_BF16);
}

static void simd_kernel_sum(const struct sum_args *args)
{
	if (args->src_dtype == DTYPE_F32)
		simd_sum_from(args, DTYPE_F32);
	else if (args->src_dtype == DTYPE_F16)
		simd_sum_from(args, DTYPE_F16);
	else
		simd_sum_from(args, DTYPE_BF16);
}

static void simd_kernel_store(float *acc, const void *src, enum dtype src_dtype, size_t count)
{
	if (src_dtype == DTYPE_F32)
		kernels_base_store_from(acc, src, DTYPE_F32, count, 0); /* the C library's copy */
	else
		simd_kernel_sum(&(struct sum_args){.src = &src,
			.src_count = 1,
			.src_dtype = src_dtype,
			.out_dtype = DTYPE_F32,
			.scale = 1.0f,
			.count = count,
			.out = acc});
}

static void simd_kernel_add(float *acc, const void *src, enum dtype src_dtype, size_t count)
{
	simd_kernel_sum(&(struct sum_args){.src = &src,
		.src_count = 1,
		.src_dtype = src_dtype,
		.out_dtype = DTYPE_F32,
		.acc = acc,
		.scale = 1.0f,
		.count = count,
		.out = acc});
}

/* struct optimizer_coef, each scalar in all lanes. */
struct simd_coef {
	int decays, first;
	vec rate, weight_decay, shrink, decay0, gain0, decay1, gain1, correct1, eps;
};

KERNELS_INLINE struct simd_coef simd_coef_set(const struct optimizer_coef *coef)
{
	return (struct simd_coef){
		.decays = coef->weight_decay != 0.0f,
		.first = coef->first,
		.rate = simd_set(coef->rate),
		.weight_decay = simd_set(coef->weight_decay),
		.shrink = simd_set(coef->shrink),
		.decay0 = simd_set(coef->decay0),
		.gain0 = simd_set(coef->gain0),
		.decay1 = simd_set(coef->decay1),
		.gain1 = simd_set(coef->gain1),
		.correct1 = simd_set(coef->correct1),
		.eps = simd_set(coef->eps),
	};
}

KERNELS_INLINE vec simd_momentum(const struct step_args *args, const struct simd_coef *c, vec g, size_t i)
{
	vec buffer = g;

	if (!c->first)
		buffer = simd_add(simd_mul(c->decay0, simd_load(args->state[0], DTYPE_F32, i)), simd_mul(c->gain0, g));
	simd_store(args->state[0], DTYPE_F32, i, buffer);
	return buffer;
}

KERNELS_INLINE vec simd_adagrad(const struct step_args *args, const struct simd_coef *c, vec g, size_t i)
{
	vec squares = simd_add(simd_load(args->state[0], DTYPE_F32, i), simd_mul(g, g));

	simd_store(args->state[0], DTYPE_F32, i, squares);
	return simd_div(simd_mul(c->rate, g), simd_add(simd_sqrt(squares), c->eps));
}

KERNELS_INLINE vec simd_adam(const struct step_args *args, const struct simd_coef *c, vec g, size_t i)
{
	vec s0 = simd_load(args->state[0], DTYPE_F32, i);
	vec s1 = simd_load(args->state[1], DTYPE_F32, i);

	s0 = simd_add(simd_mul(c->decay0, s0), simd_mul(c->gain0, g));
	s1 = simd_add(simd_mul(c->decay1, s1), simd_mul(simd_mul(c->gain1, g), g));
	simd_store(args->state[0], DTYPE_F32, i, s0);
	simd_store(args->state[1], DTYPE_F32, i, s1);
	return simd_div(simd_mul(c->rate, s0), simd_add(simd_mul(c->correct1, simd_sqrt(s1)), c->eps));
}

/* One vector of the formulas of struct optimizer_coef; sum is scaled. kind is a constant at each call. */
KERNELS_INLINE void simd_update(
	const struct step_args *args, enum optimizer_kind kind, const struct simd_coef *c, vec sum, size_t i)
{
	vec w = simd_load(args->weight, DTYPE_F32, i), g = sum;

	if (c->decays)
		g = simd_add(g, simd_mul(c->weight_decay, w));
	if (kind == OPTIMIZER_SGD) {
		w = simd_add(w, simd_mul(c->rate, g));
	} else if (kind == OPTIMIZER_MOMENTUM) {
		w = simd_add(w, simd_mul(c->rate, simd_momentum(args, c, g, i)));
	} else if (kind == OPTIMIZER_NESTEROV) {
		g = simd_add(g, simd_mul(c->decay0, simd_momentum(args, c, g, i)));
		w = simd_add(w, simd_mul(c->rate, g));
	} else if (kind == OPTIMIZER_ADAGRAD) {
		w = simd_add(w, simd_adagrad(args, c, g, i));
	} else if (kind == OPTIMIZER_ADAM) {
		w = simd_add(w, simd_adam(args, c, g, i));
	} else if (kind == OPTIMIZER_ADAMW) {
		w = simd_add(simd_mul(c->shrink, w), simd_adam(args, c, g, i));
	}
	simd_store(args->weight, DTYPE_F32, i, w);
	if (args->sum.out != args->weight)
		simd_store(args->sum.out, args->sum.out_dtype, i, w);
}

KERNELS_INLINE void simd_prefetch_arrays(const struct step_args *args, enum optimizer_kind kind, size_t i)
{
	simd_prefetch(args->weight, DTYPE_F32, i);
	if (kind != OPTIMIZER_SGD)
		simd_prefetch(args->state[0], DTYPE_F32, i);
	if (kind == OPTIMIZER_ADAM || kind == OPTIMIZER_ADAMW)
		simd_prefetch(args->state[1], DTYPE_F32, i);
	if (args->sum.out != args->weight)
		simd_prefetch(args->sum.out, args->sum.out_dtype, i);
}

KERNELS_INLINE void simd_step_loop(const struct step_args *args, enum optimizer_kind kind, enum dtype in)
{
	const struct step_args a = *args; /* a private copy: no store can change it */
	const struct simd_coef coef = simd_coef_set(args->coef);
	const vec scale = simd_set(a.sum.scale);
	size_t i = 0;

	for (; i + SIMD_BLOCK <= a.sum.count; i += SIMD_BLOCK) {
		vec sum[SIMD_UNROLL];

		simd_gather(&a.sum, in, i, sum);
		simd_prefetch_arrays(&a, kind, i);
		for (size_t u = 0; u < SIMD_UNROLL; u++)
			simd_update(&a, kind, &coef, simd_mul(sum[u], scale), i + u * SIMD_WIDTH);
	}
	for (; i + SIMD_WIDTH <= a.sum.count; i += SIMD_WIDTH)
		simd_update(&a, kind, &coef, simd_mul(simd_gather_one(&a.sum, in, i), scale), i);
	kernels_base_step_from(args, i);
}

KERNELS_INLINE void simd_step_from(const struct step_args *args, enum optimizer_kind kind)
{
	if (args->sum.src_dtype == DTYPE_F32)
		simd_step_loop(args, kind, DTYPE_F32);
	else if (args->sum.src_dtype == DTYPE_F16)
		simd_step_loop(args, kind, DTYPE_F16);
	else
		simd_step_loop(args, kind, DTYPE_BF16);
}

static void simd_kernel_step(const struct step_args *args)
{
	switch (args->coef->kind) {
	case OPTIMIZER_NONE:
		break;
	case OPTIMIZER_SGD:
		simd_step_from(args, OPTIMIZER_SGD);
		break;
	case OPTIMIZER_MOMENTUM:
		simd_step_from(args, OPTIMIZER_MOMENTUM);
		break;
	case OPTIMIZER_NESTEROV:
		simd_step_from(args, OPTIMIZER_NESTEROV);
		break;
	case OPTIMIZER_ADAGRAD:
		simd_step_from(args, OPTIMIZER_ADAGRAD);
		break;
	case OPTIMIZER_ADAM:
		simd_step_from(args, OPTIMIZER_ADAM);
		break;
	case OPTIMIZER_ADAMW:
		simd_step_from(args, OPTIMIZER_ADAMW);
		break;
	}
}

static ptrdiff_t simd_kernel_find_nonfinite(const void *src, enum dtype dtype, size_t count)
{
	return kernels_find_nonfinite(src, dtype, count);
}

static size_t simd_kernel_zero_nonfinite(void *dst, const void *src, enum dtype dtype, size_t count)
{
	return kernels_zero_nonfinite(dst, src, dtype, count);
}

const struct kernels SIMD_TABLE = {
	.name = SIMD_NAME,
	.isa = SIMD_ISA,
	.store = simd_kernel_store,
	.add = simd_kernel_add,
	.sum = simd_kernel_sum,
	.step = simd_kernel_step,
	.find_nonfinite = simd_kernel_find_nonfinite,
	.zero_nonfinite = simd_kernel_zero_nonfinite,
};
