/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The study's kernels beside plain loops.
 */
#include "tests/bench/skew_kernels.h"

#include "tests/unit/cmocka_shim.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/skew_random.h"

enum { MOST = 6000 };

static struct skew_random random_;

static float *numbers(size_t count)
{
	float *at = malloc(count * sizeof(*at));

	assert_non_null(at);
	for (size_t i = 0; i < count; i++)
		at[i] = (float)skew_random_normal(&random_);
	return at;
}

static int seed(void **state)
{
	skew_random_init(&random_, 1, SKEW_PROBE, 0);
	return 0;
}

/* ---- the matrix product ---- */

static float product_of(const struct skew_gemm *g, float before, unsigned i, unsigned j)
{
	float sum = g->add ? before : 0;

	for (unsigned p = 0; p < g->k; p++)
		sum += g->a[i * g->a_row + p * g->a_step] * g->b[(size_t)p * g->n + j];
	return sum;
}

/* Bit for bit, of any number of rows, both ways of reading a, from addresses that are aligned to nothing. */
static void test_gemm(void **state)
{
	float *a = numbers(MOST), *b = numbers(MOST), *c = numbers(MOST), *before = numbers(MOST),
	      *base = numbers(MOST);

	for (unsigned i = 0; i < 400; i++) {
		const bool turned = i & 1;
		struct skew_gemm g = {.m = 1 + i % 19, .n = SKEW_LANES * (1 + i % 3), .k = i % 40, .add = i & 2};

		g.a = a + i % 7;
		g.a_row = turned ? 1 : g.k + 3;
		g.a_step = turned ? g.m + 2 : 1;
		g.b = b + i % 5;
		g.c = c + i % 3;
		memcpy(c, before, MOST * sizeof(*c));
		skew_gemm(&g);
		for (unsigned row = 0; row < g.m; row++) {
			for (unsigned j = 0; j < g.n; j++) {
				float want = product_of(&g, before[i % 3 + row * g.n + j], row, j);

				assert_memory_equal(&g.c[row * g.n + j], &want, sizeof(want));
			}
		}
		memcpy(base, before, MOST * sizeof(*base));
		g.c = base + i % 3;
		skew_gemm_base(&g);
		assert_memory_equal(base, c, MOST * sizeof(*c)); /* and neither wrote beyond its end */
	}
	free(a);
	free(b);
	free(c);
	free(before);
	free(base);
}

/* ---- surroundings ---- */

static void test_surroundings(void **state)
{
	static const struct skew_shape shapes[] = {{2, 5, 1}, {3, 4, 16}, {1, 1, 2}};

	for (int s = 0; s < 3; s++) {
		const size_t images = shapes[s].images, side = shapes[s].side, channels = shapes[s].channels;
		const size_t line = (side + 2) * channels, padded_count = images * (side + 2) * line;
		const size_t col_count = images * side * side * 9 * channels;
		float *padded = numbers(padded_count), *col = numbers(col_count), *back = numbers(padded_count);
		double forth = 0, back_sum = 0;

		skew_surroundings(&shapes[s], padded, col);
		for (size_t i = 0; i < col_count; i++) {
			const size_t c = i % channels, tap = i / channels % 9, at = i / channels / 9;
			const size_t x = at % side, y = at / side % side, image = at / side / side;
			const float want =
				padded[(image * (side + 2) + y + tap / 3) * line + (x + tap % 3) * channels + c];

			assert_memory_equal(&col[i], &want, sizeof(want));
		}
		/* What goes back is the transpose: <col, S padded> = <S' col, padded>. */
		memset(back, 0, padded_count * sizeof(*back));
		for (size_t i = 0; i < col_count; i++) {
			const float was = col[i];

			col[i] = (float)skew_random_normal(&random_);
			forth += (double)was * col[i];
		}
		skew_surroundings_back(&shapes[s], col, back);
		for (size_t i = 0; i < padded_count; i++)
			back_sum += (double)back[i] * padded[i];
		assert_true(fabs(forth - back_sum) < 1e-3);
		free(padded);
		free(col);
		free(back);
	}
}

/* ---- pooling ---- */

/* Into which of the four the gradient of a pixel goes: the first of the largest, or none (-1). */
static int pool_winner(const float *four)
{
	int best = 0;

	for (int i = 1; i < 4; i++)
		if (four[i] > four[best])
			best = i;
	return four[best] > 0 ? best : -1;
}

static void pool_case(const struct skew_shape *shape, bool padded)
{
	const size_t side = shape->side, channels = shape->channels, half = side / 2, border = padded ? 1 : 0;
	const size_t in = shape->images * side * side * channels;
	const size_t out = shape->images * (half + 2 * border) * (half + 2 * border) * channels;
	float *x = numbers(in), *d_x = numbers(in), *want = calloc(in, sizeof(*want)), *pooled = numbers(out),
	      *d_out = numbers(out);

	for (size_t i = 0; i < in; i++) /* few values, so that many are equal, and zeros */
		x[i] = (float)((int)(x[i] * 1.5f));
	skew_pool(shape, x, padded, pooled);
	skew_pool_back(shape, x, padded, d_out, d_x);
	for (size_t i = 0; i < shape->images * half * half * channels; i++) {
		const size_t c = i % channels, px = i / channels % half, py = i / channels / half % half;
		const size_t image = i / channels / half / half;
		const size_t first = ((image * side + 2 * py) * side + 2 * px) * channels + c;
		const size_t at[] = {first, first + channels, first + side * channels, first + (side + 1) * channels};
		const size_t o =
			((image * (half + 2 * border) + py + border) * (half + 2 * border) + px + border) * channels +
			c;
		const float four[] = {x[at[0]], x[at[1]], x[at[2]], x[at[3]]};
		const int winner = pool_winner(four);

		assert_true(pooled[o] == (winner < 0 ? 0 : four[winner]));
		if (winner >= 0)
			want[at[winner]] = d_out[o];
	}
	for (size_t i = 0; i < in; i++)
		assert_true(d_x[i] == want[i]);
	free(x);
	free(d_x);
	free(want);
	free(pooled);
	free(d_out);
}

static void test_pool(void **state)
{
	static const struct skew_shape shapes[] = {{2, 14, 16}, {3, 7, 32}, {1, 2, 16}};

	for (int s = 0; s < 3; s++) {
		pool_case(&shapes[s], false);
		pool_case(&shapes[s], true);
	}
}

/* ---- by channel ---- */

static void test_columns(void **state)
{
	enum { ROWS = 77, CHANNELS = 32 };
	float *x = numbers(ROWS * CHANNELS), *d = numbers(ROWS * CHANNELS), *mean = numbers(CHANNELS),
	      *scale = numbers(CHANNELS), *shift = numbers(CHANNELS), *out = numbers(ROWS * CHANNELS);
	float sums[CHANNELS], squares[CHANNELS], products[CHANNELS];

	skew_column_sums(x, ROWS, CHANNELS, sums);
	skew_column_squares(x, ROWS, CHANNELS, mean, squares);
	skew_column_products(d, x, ROWS, CHANNELS, mean, products);
	for (unsigned c = 0; c < CHANNELS; c++) {
		double sum = 0, square = 0, product = 0;

		for (unsigned r = 0; r < ROWS; r++) {
			const double off = (double)x[r * CHANNELS + c] - mean[c];

			sum += x[r * CHANNELS + c];
			square += off * off;
			product += d[r * CHANNELS + c] * off;
		}
		assert_true(fabs(sums[c] - sum) < 1e-4);
		assert_true(fabs(squares[c] - square) < 1e-3);
		assert_true(fabs(products[c] - product) < 1e-3);
	}
	skew_affine(x, ROWS, CHANNELS, scale, shift, out);
	for (unsigned i = 0; i < ROWS * CHANNELS; i++)
		assert_true(fabsf(out[i] - (scale[i % CHANNELS] * x[i] + shift[i % CHANNELS])) < 1e-5f);
	memcpy(out, d, ROWS * CHANNELS * sizeof(*d));
	skew_affine_back(out, x, ROWS, CHANNELS, scale, shift, mean);
	for (unsigned i = 0; i < ROWS * CHANNELS; i++)
		assert_true(fabsf(out[i] - (scale[i % CHANNELS] * d[i] + shift[i % CHANNELS] * x[i] +
						   mean[i % CHANNELS])) < 1e-5f);
	free(x);
	free(d);
	free(mean);
	free(scale);
	free(shift);
	free(out);
}

TEST_PROGRAM(test_skew_kernels)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gemm),
		cmocka_unit_test(test_surroundings),
		cmocka_unit_test(test_pool),
		cmocka_unit_test(test_columns),
	};

	return cmocka_run_group_tests(tests, seed, NULL);
}
