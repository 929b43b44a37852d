/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops over gradient data, one table of them per instruction set; dispatch.h picks a table at start.
 *
 * kernels_base.c is the specification: plain C, the same bits on every machine. Every other table equals it bit for
 * bit at every length, alignment and input (any NaN equals any NaN). Sums are in fp32, left to right in the order of
 * the pointers, each addition rounded once: a chunk summed in one pass over held payloads, and the same chunk added
 * payload by payload in that order, have the same bits.
 *
 * All kernels: any thread, never block, no state. Pointers may be unaligned and counts may be 0. Kernels check
 * nothing; the caller answers for dtypes, counts and pointers. Fp32 arrays that are typed float * may still be
 * unaligned. Two arrays of one call either are the same array of the same dtype, where a comment allows it, or do not
 * overlap.
 */
#ifndef AGGREGATION_KERNELS_H
#define AGGREGATION_KERNELS_H

#include <stddef.h>

#include "aggregation/convert.h"
#include "aggregation/optimizer.h"

enum isa {
	ISA_BASE,   /* plain C: any machine */
	ISA_AVX2,   /* AVX2 and F16C */
	ISA_AVX512, /* AVX-512 F, BW, DQ, VL */
	ISA_NEON,   /* aarch64 */
};

/*
 * How a result is written. The rule: streamed, past the caches, when nobody reads the result before it would have left
 * this core's cache anyway, else cached. phub/chunk.c applies it: results that workers map, of rounds larger than the
 * second-level cache, are streamed; what a send reads next is not. Streaming saves reading the lines that are
 * overwritten (2 sources: a quarter of all traffic) and costs a reader on this core a miss. It is a wish: a result that
 * is not aligned to a cache line, the last elements, and base and NEON write as ever. The bits are the same.
 */
enum stores {
	STORES_CACHED,
	STORES_STREAMED,
};

/*
 * result[i] = ([acc[i] +] src[0][i] + src[1][i] + ...) * scale for i in 0..count-1, written as out_dtype.
 * With a mean, scale is (float)(1.0 / workers): one multiplication after the sum, not a division. A scale of 1 changes
 * no bit. acc and src_count may not be missing both; src_count 0 with acc converts acc. out may be acc (DTYPE_F32) or
 * one of the sources (of the same dtype): then it is overwritten. Folding held payloads into an accumulator
 * is out = acc, out_dtype = DTYPE_F32, scale = 1.
 */
struct sum_args {
	const void *const *src; /* src_count arrays, all of src_dtype; unused when src_count is 0 */
	size_t src_count;
	enum dtype src_dtype;
	enum dtype out_dtype;
	const float *acc; /* NULL, or the partial sum that comes first */
	float scale;
	size_t count; /* elements of each array */
	void *out;
	enum stores stores; /* of out; streamed only where out is no other array of the call */
};

/*
 * The gradient is what sum_args says, kept in registers; then one optimizer step (see struct optimizer_coef) updates
 * weight and state in place, and out receives the new weight as out_dtype. out may be weight with DTYPE_F32: then
 * nothing is written twice; it may be one of the sources, as above. coef->kind is not OPTIMIZER_NONE. state[] beyond
 * optimizer_state_count() is not touched.
 */
struct step_args {
	struct sum_args sum;
	const struct optimizer_coef *coef;
	float *weight;
	float *state[OPTIMIZER_STATE_MAX];
};

struct kernels {
	const char *name; /* "base", "avx2", "avx512", "neon": what PHUB_ISA takes and benches print */
	enum isa isa;

	/* acc[i] = src[i]: the first arrival stores and converts; nothing needs zeroing. */
	void (*store)(float *acc, const void *src, enum dtype src_dtype, size_t count);

	/* acc[i] = acc[i] + src[i]: a later arrival. */
	void (*add)(float *acc, const void *src, enum dtype src_dtype, size_t count);

	/* N-way sum in one pass, also fold and conversion; see struct sum_args. */
	void (*sum)(const struct sum_args *args);

	/* N-way sum, optimizer and result in one pass; see struct step_args. */
	void (*step)(const struct step_args *args);

	/* Index of the first element that is NaN or infinite, or -1. */
	ptrdiff_t (*find_nonfinite)(const void *src, enum dtype dtype, size_t count);

	/*
	 * dst[i] = src[i], or +0 where src[i] is NaN or infinite; other bits are kept. dst may be src. Returns how many
	 * elements were replaced.
	 */
	size_t (*zero_nonfinite)(void *dst, const void *src, enum dtype dtype, size_t count);
};

extern const struct kernels kernels_base;
/* Declared everywhere, defined only where the compiler targets that architecture; reach them through dispatch.h. */
extern const struct kernels kernels_avx2;
extern const struct kernels kernels_avx512;
extern const struct kernels kernels_neon;

#endif
