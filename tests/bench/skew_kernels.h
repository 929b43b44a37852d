/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of the study's model, on arrays of floats with the channel last; any thread, no memory of its own.
 *
 * Every sum has one order, whatever the instruction set: a run has the same bits on every machine with the same libm.
 * (So no multiply-add is fused: -ffp-contract=off.) Channels come in blocks of SKEW_LANES.
 */
#ifndef TESTS_BENCH_SKEW_KERNELS_H
#define TESTS_BENCH_SKEW_KERNELS_H

#include <stdbool.h>
#include <stddef.h>

enum { SKEW_LANES = 16 };

/* c[m][n] = (add: c +) the sum over p < k, in this order, of a[i * a_row + p * a_step] * b[p][j]. */
struct skew_gemm {
	unsigned m, n, k; /* n: a multiple of SKEW_LANES */
	const float *a;
	size_t a_row, a_step;
	const float *b; /* k x n */
	float *c;       /* m x n, none of the others */
	bool add;
};

void skew_gemm(const struct skew_gemm *g);

/* For tests: the same by the plain loop that every instruction set must equal bit for bit. */
void skew_gemm_base(const struct skew_gemm *g);

/* Images of side x side x channels. With a border of zeros around each they are `padded`: (side + 2) x (side + 2) x
 * channels. */
struct skew_shape {
	unsigned images, side, channels;
};

/* The 3x3 surroundings of each pixel of padded images, as a row of `col`: images * side^2 rows of 9 * channels. */
void skew_surroundings(const struct skew_shape *shape, const float *padded, float *col);

/* The opposite, for gradients: adds what each row says to the pixels that it came from, borders too. */
void skew_surroundings_back(const struct skew_shape *shape, const float *col, float *padded);

/*
 * ReLU and the largest of each 2x2, for images of `shape`, into images of side / 2 (a last odd row or column is left
 * out), padded or not; a border is not written.
 */
void skew_pool(const struct skew_shape *shape, const float *x, bool padded, float *out);

/* Its gradient: of `out` in, of x out. Among equals the first counts; where none is above 0, none does. */
void skew_pool_back(const struct skew_shape *shape, const float *x, bool padded, const float *d_out, float *d_x);

/* Over rows of `channels` floats each: sums by channel. */
void skew_column_sums(const float *x, size_t rows, unsigned channels, float *sums);
void skew_column_squares(const float *x, size_t rows, unsigned channels, const float *mean, float *sums);
void skew_column_products(
	const float *d, const float *x, size_t rows, unsigned channels, const float *mean, float *sums);

/* out = scale * x + shift, by channel; out may be x. */
void skew_affine(const float *x, size_t rows, unsigned channels, const float *scale, const float *shift, float *out);

/* d = p * d + q * x + r, by channel. */
void skew_affine_back(
	float *d, const float *x, size_t rows, unsigned channels, const float *p, const float *q, const float *r);

#endif
