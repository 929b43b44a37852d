/* SPDX-License-Identifier: Apache-2.0
 *
 * The vector kernels, written once. Each kernels_<isa>.c defines the type `vec` of SIMD_WIDTH floats, the functions
 * simd_load_{f32,f16}(), simd_unpack_bf16() to and simd_pack_{f16,bf16}() of two vectors,
 * simd_{store,stream}_{f32,pair}(), simd_stream_end(), simd_{set,add,mul,div,sqrt}(), the macros SIMD_TABLE, SIMD_NAME,
 * SIMD_ISA and SIMD_PREFETCH, and then includes this file, which defines the table. Loads and stores take unaligned
 * pointers; streams go past the caches and want lines.
 *
 * A loop works on SIMD_UNROLL vectors at a time, with all sources' sums in registers: each source is read once, in
 * order, the result is written once, nothing else touches memory. Then two vectors at a time; the elements that do not
 * fill these go through the base kernels, which have the same bits.
 */
#include "aggregation/kernels_internal.h"

#define SIMD_UNROLL 4
#define SIMD_PAIR   2
#define SIMD_BLOCK  (SIMD_UNROLL * SIMD_WIDTH)
#define SIMD_LINE   64 /* bytes of a cache line */

/* dtype is a constant at each call, or a branch that is the same for the whole chunk. */
KERNELS_INLINE void simd_load_two(const void *src, enum dtype dtype, size_t index, vec value[SIMD_PAIR])
{
	const void *at = kernels_at(src, index, dtype_size(dtype));

	if (dtype == DTYPE_F32) {
		value[0] = simd_load_f32(at);
		value[1] = simd_load_f32(kernels_at(at, SIMD_WIDTH, sizeof(float)));
	} else if (dtype == DTYPE_F16) {
		value[0] = simd_load_f16(at);
		value[1] = simd_load_f16(kernels_at(at, SIMD_WIDTH, sizeof(uint16_t)));
	} else {
		simd_unpack_bf16(at, &value[0], &value[1]);
	}
}

KERNELS_INLINE void simd_store_two(void *at, enum dtype dtype, const vec *value)
{
	if (dtype == DTYPE_F32) {
		simd_store_f32(at, value[0]);
		simd_store_f32(kernels_at_mut(at, SIMD_WIDTH, sizeof(float)), value[1]);
	} else {
		simd_store_pair(at,
			dtype == DTYPE_F16 ? simd_pack_f16(value[0], value[1]) : simd_pack_bf16(value[0], value[1]));
	}
}

KERNELS_INLINE void simd_stream_two(void *at, enum dtype dtype, const vec *value)
{
	if (dtype == DTYPE_F32) {
		simd_stream_f32(at, value[0]);
		simd_stream_f32(kernels_at_mut(at, SIMD_WIDTH, sizeof(float)), value[1]);
	} else {
		simd_stream_pair(at,
			dtype == DTYPE_F16 ? simd_pack_f16(value[0], value[1]) : simd_pack_bf16(value[0], value[1]));
	}
}

/* Writes n vectors, an even number, from element index on. */
KERNELS_INLINE void simd_write(void *dst, enum dtype dtype, size_t index, const vec *value, size_t n, int stream)
{
	for (size_t u = 0; u < n; u += SIMD_PAIR) {
		void *at = kernels_at_mut(dst, index + u * SIMD_WIDTH, dtype_size(dtype));

		if (stream)
			simd_stream_two(at, dtype, value + u);
		else
			simd_store_two(at, dtype, value + u);
	}
}

/* Whether the result goes past the caches: where the caller wants it and lines are written whole. */
KERNELS_INLINE int simd_streams(const struct sum_args *args)
{
	return args->stores == STORES_STREAMED && (uintptr_t)args->out % SIMD_LINE == 0;
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

/* The scaled sum of n vectors from element i on. */
KERNELS_INLINE void simd_gather(
	const struct sum_args *args, enum dtype dtype, vec scale, size_t i, vec *sum, size_t n, int prefetch)
{
	size_t s = args->acc ? 0 : 1;
	const void *head = args->acc ? args->acc : args->src[0];
	enum dtype head_dtype = args->acc ? DTYPE_F32 : dtype;

	if (prefetch)
		simd_prefetch(head, head_dtype, i);
	for (size_t u = 0; u < n; u += SIMD_PAIR)
		simd_load_two(head, head_dtype, i + u * SIMD_WIDTH, sum + u);
	for (; s < args->src_count; s++) {
		const void *src = args->src[s];

		if (prefetch)
			simd_prefetch(src, dtype, i);
		for (size_t u = 0; u < n; u += SIMD_PAIR) {
			vec term[SIMD_PAIR];

			simd_load_two(src, dtype, i + u * SIMD_WIDTH, term);
			sum[u] = simd_add(sum[u], term[0]);
			sum[u + 1] = simd_add(sum[u + 1], term[1]);
		}
	}
	for (size_t u = 0; u < n; u++)
		sum[u] = simd_mul(sum[u], scale);
}

KERNELS_INLINE void simd_sum_loop(const struct sum_args *args, enum dtype in, enum dtype out, int stream)
{
	const struct sum_args a = *args; /* a private copy: no store to out can change it */
	const vec scale = simd_set(a.scale);
	size_t i = 0;

	for (; i + SIMD_BLOCK <= a.count; i += SIMD_BLOCK) {
		vec sum[SIMD_UNROLL];

		simd_gather(&a, in, scale, i, sum, SIMD_UNROLL, 1);
		if (!stream)
			simd_prefetch(a.out, out, i);
		simd_write(a.out, out, i, sum, SIMD_UNROLL, stream);
	}
	if (stream)
		simd_stream_end();
	for (; i + SIMD_PAIR * SIMD_WIDTH <= a.count; i += SIMD_PAIR * SIMD_WIDTH) {
		vec sum[SIMD_PAIR];

		simd_gather(&a, in, scale, i, sum, SIMD_PAIR, 0);
		simd_write(a.out, out, i, sum, SIMD_PAIR, 0);
	}
	kernels_base_sum_from(args, i);
}

KERNELS_INLINE void simd_sum_to(const struct sum_args *args, enum dtype in, enum dtype out)
{
	if (simd_streams(args))
		simd_sum_loop(args, in, out, 1);
	else
		simd_sum_loop(args, in, out, 0);
}

KERNELS_INLINE void simd_sum_from(const struct sum_args *args, enum dtype in)
{
	if (args->out_dtype == DTYPE_F32)
		simd_sum_to(args, in, DTYPE_F32);
	else if (args->out_dtype == DTYPE_F16)
		simd_sum_to(args, in, DTYPE_F16);
	else
		simd_sum_to(args, in, DTYPE_BF16);
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

/* A sum that is added to next: it stays in the cache. */
static void simd_kernel_store(float *acc, const void *src, enum dtype src_dtype, size_t count)
{
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

/* struct optimizer_coef and the sum's scale, each scalar in all lanes. */
struct simd_coef {
	int decays, first;
	vec scale, rate, weight_decay, shrink, decay0, gain0, decay1, gain1, correct1, eps;
};

KERNELS_INLINE struct simd_coef simd_coef_set(const struct step_args *args)
{
	const struct optimizer_coef *coef = args->coef;

	return (struct simd_coef){
		.decays = coef->weight_decay != 0.0f,
		.first = coef->first,
		.scale = simd_set(args->sum.scale),
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
		buffer = simd_add(simd_mul(c->decay0, simd_load_f32(args->state[0] + i)), simd_mul(c->gain0, g));
	simd_store_f32(args->state[0] + i, buffer);
	return buffer;
}

KERNELS_INLINE vec simd_adagrad(const struct step_args *args, const struct simd_coef *c, vec g, size_t i)
{
	vec squares = simd_add(simd_load_f32(args->state[0] + i), simd_mul(g, g));

	simd_store_f32(args->state[0] + i, squares);
	return simd_div(simd_mul(c->rate, g), simd_add(simd_sqrt(squares), c->eps));
}

KERNELS_INLINE vec simd_adam(const struct step_args *args, const struct simd_coef *c, vec g, size_t i)
{
	vec s0 = simd_load_f32(args->state[0] + i);
	vec s1 = simd_load_f32(args->state[1] + i);

	s0 = simd_add(simd_mul(c->decay0, s0), simd_mul(c->gain0, g));
	s1 = simd_add(simd_mul(c->decay1, s1), simd_mul(simd_mul(c->gain1, g), g));
	simd_store_f32(args->state[0] + i, s0);
	simd_store_f32(args->state[1] + i, s1);
	return simd_div(simd_mul(c->rate, s0), simd_add(simd_mul(c->correct1, simd_sqrt(s1)), c->eps));
}

/* One vector of the formulas of struct optimizer_coef; sum is scaled. kind is a constant at each call. */
/* The new weights of one vector, which are written too. */
KERNELS_INLINE vec simd_update(
	const struct step_args *args, enum optimizer_kind kind, const struct simd_coef *c, vec sum, size_t i)
{
	vec w = simd_load_f32(args->weight + i), g = sum;

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
	simd_store_f32(args->weight + i, w);
	return w;
}

KERNELS_INLINE void simd_prefetch_arrays(const struct step_args *args, enum optimizer_kind kind, size_t i)
{
	simd_prefetch(args->weight, DTYPE_F32, i);
	if (kind != OPTIMIZER_SGD)
		simd_prefetch(args->state[0], DTYPE_F32, i);
	if (kind == OPTIMIZER_ADAM || kind == OPTIMIZER_ADAMW)
		simd_prefetch(args->state[1], DTYPE_F32, i);
}

/* n vectors from element i on, an even number. */
KERNELS_INLINE void simd_step_some(const struct step_args *args, enum optimizer_kind kind, enum dtype in,
	const struct simd_coef *coef, size_t i, size_t n, int stream)
{
	vec value[SIMD_UNROLL];

	simd_gather(&args->sum, in, coef->scale, i, value, n, n == SIMD_UNROLL);
	if (n == SIMD_UNROLL)
		simd_prefetch_arrays(args, kind, i);
	for (size_t u = 0; u < n; u++)
		value[u] = simd_update(args, kind, coef, value[u], i + u * SIMD_WIDTH);
	if (args->sum.out == args->weight)
		return;
	if (n == SIMD_UNROLL && !stream)
		simd_prefetch(args->sum.out, args->sum.out_dtype, i);
	simd_write(args->sum.out, args->sum.out_dtype, i, value, n, stream);
}

KERNELS_INLINE void simd_step_loop(const struct step_args *args, enum optimizer_kind kind, enum dtype in)
{
	const struct step_args a = *args; /* a private copy: no store can change it */
	const struct simd_coef coef = simd_coef_set(args);
	const int stream = simd_streams(&a.sum);
	size_t i = 0;

	for (; i + SIMD_BLOCK <= a.sum.count; i += SIMD_BLOCK)
		simd_step_some(&a, kind, in, &coef, i, SIMD_UNROLL, stream);
	if (stream)
		simd_stream_end();
	for (; i + SIMD_PAIR * SIMD_WIDTH <= a.sum.count; i += SIMD_PAIR * SIMD_WIDTH)
		simd_step_some(&a, kind, in, &coef, i, SIMD_PAIR, 0);
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
