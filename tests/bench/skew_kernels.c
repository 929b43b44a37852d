/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loops that a compiler vectorizes over channels: a vector holds different sums, never parts of one.
 *
 * The matrix product is half of a run, what is below it a fifth. All is compiled for AVX2 too, without its fused
 * multiply-add, and chosen by what the CPU has.
 */
#include "tests/bench/skew_kernels.h"

#include <stdint.h>
#include <string.h>

enum {
	LANES = SKEW_LANES,
	WIDTH = 8, /* of a register of AVX2 */
	VECTORS = LANES / WIDTH,
	ROWS = 5, /* of c at once: 10 registers hold sums, enough for the time that an addition takes; measured beside
		     3, 4 */
};

/* A type of the compiler's: of arrays of floats gcc 12 keeps some sums in memory. */
typedef float vector __attribute__((vector_size(WIDTH * sizeof(float)), aligned(sizeof(float)), may_alias));

#define INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__) && !defined(__clang__)
#define FOR_EACH_CPU __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_CPU
#endif

/* ---- the matrix product ---- */

/* `rows` is a constant where this is inlined, or the sums would not stay in registers. */
INLINE void gemm_tile(const struct skew_gemm *g, unsigned i, unsigned j, const unsigned rows)
{
	const float *a = g->a + i * g->a_row, *b = g->b + j;
	float *c = g->c + (size_t)i * g->n + j;
	const size_t n = g->n, a_row = g->a_row, a_step = g->a_step;
	const unsigned k = g->k;
	vector sums[ROWS][VECTORS];

	for (unsigned r = 0; r < rows; r++)
		for (unsigned v = 0; v < VECTORS; v++)
			sums[r][v] = g->add ? ((const vector *)(c + r * n))[v] : (vector){0};
	for (unsigned p = 0; p < k; p++, a += a_step, b += n)
		for (unsigned r = 0; r < rows; r++)
			for (unsigned v = 0; v < VECTORS; v++)
				sums[r][v] += a[r * a_row] * ((const vector *)b)[v];
	for (unsigned r = 0; r < rows; r++)
		for (unsigned v = 0; v < VECTORS; v++)
			((vector *)(c + r * n))[v] = sums[r][v];
}

INLINE void gemm_tiles(const struct skew_gemm *g)
{
	const unsigned whole = g->m / ROWS * ROWS;

	for (unsigned j = 0; j < g->n; j += LANES) {
		for (unsigned i = 0; i < whole; i += ROWS)
			gemm_tile(g, i, j, ROWS);
		switch (g->m - whole) {
		case 4:
			gemm_tile(g, whole, j, 4);
			break;
		case 3:
			gemm_tile(g, whole, j, 3);
			break;
		case 2:
			gemm_tile(g, whole, j, 2);
			break;
		case 1:
			gemm_tile(g, whole, j, 1);
			break;
		default:;
		}
	}
}

void skew_gemm_base(const struct skew_gemm *g)
{
	gemm_tiles(g);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void gemm_avx2(const struct skew_gemm *g)
{
	gemm_tiles(g);
}
#endif

void skew_gemm(const struct skew_gemm *g)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2")) {
		gemm_avx2(g);
		return;
	}
#endif
	gemm_tiles(g);
}

/* ---- surroundings ---- */

void skew_surroundings(const struct skew_shape *shape, const float *padded, float *col)
{
	const size_t side = shape->side, line = (side + 2) * shape->channels, three = 3 * (size_t)shape->channels;

	for (unsigned image = 0; image < shape->images; image++, padded += (side + 2) * line) {
		for (size_t y = 0; y < side; y++) {
			for (size_t x = 0; x < side; x++) {
				const float *from = padded + y * line + x * shape->channels;

				for (unsigned tap = 0; tap < 3; tap++, col += three, from += line)
					memcpy(col, from, three * sizeof(float));
			}
		}
	}
}

FOR_EACH_CPU void skew_surroundings_back(const struct skew_shape *shape, const float *col, float *padded)
{
	const size_t side = shape->side, line = (side + 2) * shape->channels, three = 3 * (size_t)shape->channels;

	for (unsigned image = 0; image < shape->images; image++, padded += (side + 2) * line) {
		for (size_t y = 0; y < side; y++) {
			for (size_t x = 0; x < side; x++) {
				float *to = padded + y * line + x * shape->channels;

				for (unsigned tap = 0; tap < 3; tap++, col += three, to += line)
					for (size_t i = 0; i < three; i++)
						to[i] += col[i];
			}
		}
	}
}

/* ---- pooling ---- */

/* Where the four pixels of an output pixel are, and that pixel. */
struct pool_at {
	size_t four[4], out;
};

INLINE struct pool_at pool_at(const struct skew_shape *shape, bool padded, unsigned image, unsigned y, unsigned x)
{
	const size_t side = shape->side, channels = shape->channels, half = side / 2, border = padded ? 1 : 0;
	const size_t out_side = half + 2 * border;
	const size_t first = ((image * side + 2 * y) * side + 2 * x) * channels;

	return (struct pool_at){
		{first, first + channels, first + side * channels, first + (side + 1) * channels},
		((image * out_side + y + border) * out_side + x + border) * channels,
	};
}

INLINE float larger(float a, float b)
{
	return a > b ? a : b;
}

/* value where `keep`, else 0: by bits, for a branch would keep the compiler from using vectors. */
INLINE float kept(float value, bool keep)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	bits &= -(uint32_t)keep;
	memcpy(&value, &bits, sizeof(bits));
	return value;
}

INLINE void pool_pixel(const float *x, const struct pool_at *at, unsigned channels, float *out)
{
	const float *a = x + at->four[0], *b = x + at->four[1], *c = x + at->four[2], *d = x + at->four[3];
	float *restrict o = out + at->out;

	for (unsigned i = 0; i < channels; i++)
		o[i] = larger(larger(larger(a[i], b[i]), larger(c[i], d[i])), 0);
}

INLINE void pool_pixel_back(const float *x, const struct pool_at *at, unsigned channels, const float *d_out, float *d_x)
{
	const float *a = x + at->four[0], *b = x + at->four[1], *c = x + at->four[2], *d = x + at->four[3];
	float *restrict d_a = d_x + at->four[0], *restrict d_b = d_x + at->four[1], *restrict d_c = d_x + at->four[2],
			*restrict d_d = d_x + at->four[3];
	const float *o = d_out + at->out;

	for (unsigned i = 0; i < channels; i++) {
		const float most = larger(larger(a[i], b[i]), larger(c[i], d[i]));
		const float of_a = kept(o[i], most > 0), of_b = kept(of_a, a[i] != most),
			    of_c = kept(of_b, b[i] != most), of_d = kept(of_c, c[i] != most);

		d_a[i] = kept(of_a, a[i] == most);
		d_b[i] = kept(of_b, b[i] == most);
		d_c[i] = kept(of_c, c[i] == most);
		d_d[i] = of_d;
	}
}

FOR_EACH_CPU void skew_pool(const struct skew_shape *shape, const float *x, bool padded, float *out)
{
	for (unsigned image = 0; image < shape->images; image++) {
		for (unsigned y = 0; y < shape->side / 2; y++) {
			for (unsigned column = 0; column < shape->side / 2; column++) {
				const struct pool_at at = pool_at(shape, padded, image, y, column);

				pool_pixel(x, &at, shape->channels, out);
			}
		}
	}
}

FOR_EACH_CPU void skew_pool_back(
	const struct skew_shape *shape, const float *x, bool padded, const float *d_out, float *d_x)
{
	if (shape->side % 2)
		memset(d_x, 0, sizeof(float) * shape->images * shape->side * shape->side * shape->channels);
	for (unsigned image = 0; image < shape->images; image++) {
		for (unsigned y = 0; y < shape->side / 2; y++) {
			for (unsigned column = 0; column < shape->side / 2; column++) {
				const struct pool_at at = pool_at(shape, padded, image, y, column);

				pool_pixel_back(x, &at, shape->channels, d_out, d_x);
			}
		}
	}
}

/* ---- by channel ---- */

FOR_EACH_CPU void skew_column_sums(const float *x, size_t rows, unsigned channels, float *sums)
{
	for (unsigned base = 0; base < channels; base += LANES) {
		float s[LANES] = {0};

		for (size_t row = 0; row < rows; row++)
			for (unsigned i = 0; i < LANES; i++)
				s[i] += x[row * channels + base + i];
		memcpy(sums + base, s, sizeof(s));
	}
}

FOR_EACH_CPU void skew_column_squares(const float *x, size_t rows, unsigned channels, const float *mean, float *sums)
{
	for (unsigned base = 0; base < channels; base += LANES) {
		float s[LANES] = {0}, m[LANES];

		memcpy(m, mean + base, sizeof(m));
		for (size_t row = 0; row < rows; row++) {
			for (unsigned i = 0; i < LANES; i++) {
				const float off = x[row * channels + base + i] - m[i];

				s[i] += off * off;
			}
		}
		memcpy(sums + base, s, sizeof(s));
	}
}

FOR_EACH_CPU void skew_column_products(
	const float *d, const float *x, size_t rows, unsigned channels, const float *mean, float *sums)
{
	for (unsigned base = 0; base < channels; base += LANES) {
		float s[LANES] = {0}, m[LANES];

		memcpy(m, mean + base, sizeof(m));
		for (size_t row = 0; row < rows; row++)
			for (unsigned i = 0; i < LANES; i++)
				s[i] += d[row * channels + base + i] * (x[row * channels + base + i] - m[i]);
		memcpy(sums + base, s, sizeof(s));
	}
}

FOR_EACH_CPU void skew_affine(
	const float *x, size_t rows, unsigned channels, const float *scale, const float *shift, float *out)
{
	for (unsigned base = 0; base < channels; base += LANES) {
		float a[LANES], b[LANES];

		memcpy(a, scale + base, sizeof(a));
		memcpy(b, shift + base, sizeof(b));
		for (size_t row = 0; row < rows; row++)
			for (unsigned i = 0; i < LANES; i++)
				out[row * channels + base + i] = a[i] * x[row * channels + base + i] + b[i];
	}
}

FOR_EACH_CPU void skew_affine_back(
	float *d, const float *x, size_t rows, unsigned channels, const float *p, const float *q, const float *r)
{
	for (unsigned base = 0; base < channels; base += LANES) {
		float a[LANES], b[LANES], c[LANES];

		memcpy(a, p + base, sizeof(a));
		memcpy(b, q + base, sizeof(b));
		memcpy(c, r + base, sizeof(c));
		for (size_t row = 0; row < rows; row++) {
			float *to = d + row * channels + base;

			for (unsigned i = 0; i < LANES; i++)
				to[i] = a[i] * to[i] + b[i] * x[row * channels + base + i] + c[i];
		}
	}
}
