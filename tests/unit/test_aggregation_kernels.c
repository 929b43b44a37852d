/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels: the base kernels against loops written here, and every table that this machine runs against the base one,
 * bit for bit (any NaN equals any NaN), at every length 0..1024, unaligned, with awkward values, writing nothing
 * outside its arrays.
 */
#include "tests/unit/test_aggregation.h"

#define LENGTH_MAX   1024
#define SOURCES_MAX  6
#define MARGIN       64 /* bytes around an array: room to shift it, and a canary */
#define BUFFER_BYTES (MARGIN + LENGTH_MAX * 4 + MARGIN)

static unsigned char sources[SOURCES_MAX][BUFFER_BYTES], accumulator[BUFFER_BYTES];

/* The arrays that a call writes, once for the base kernel and once for the one under test. */
enum { OUT, WEIGHT, STATE0, STATE1, WRITTEN };
static _Alignas(64) unsigned char written[2][WRITTEN][BUFFER_BYTES];

/* Values, plain or special, are drawn once; arrays are cut out of these pools. Drawing anew took most of the time. */
#define POOL_LENGTH 16384
static unsigned char pools[2][DTYPE_COUNT][POOL_LENGTH * 4];

static int pools_setup(void **state)
{
	struct random r = {42};

	for (int special = 0; special < 2; special++) {
		for (unsigned d = 0; d < DTYPE_COUNT; d++)
			random_fill(&r, pools[special][d], (enum dtype)d, POOL_LENGTH, special);
	}
	return 0;
}

static void pools_fill(struct random *r, void *dst, enum dtype dtype, size_t count, int special)
{
	size_t begin = random_below(r, POOL_LENGTH - LENGTH_MAX);

	memcpy(dst, pools[special][dtype] + begin * dtype_size(dtype), count * dtype_size(dtype));
}

static float *floats(unsigned char *at)
{
	return (float *)(void *)at;
}

/* One drawn call: lengths, shifts, dtypes and which arrays there are. */
struct draw {
	size_t count, src_count;
	enum dtype in, out;
	int has_acc;
	enum stores stores;
	float scale;
	size_t shift[SOURCES_MAX + 1 + WRITTEN];
	const void *src[SOURCES_MAX];
};

static void draw_call(struct random *r, struct draw *d, size_t count, enum dtype in, enum dtype out, int special)
{
	static const float scales[] = {1.0f, 1.0f, 0.25f, 1.0f / 3, -0.5f};

	*d = (struct draw){.count = count, .in = in, .out = out};
	d->has_acc = (int)random_below(r, 2);
	d->stores = random_below(r, 2) ? STORES_STREAMED : STORES_CACHED;
	d->src_count = random_below(r, SOURCES_MAX + 1);
	if (!d->has_acc && d->src_count == 0)
		d->src_count = 1;
	d->scale = scales[random_below(r, sizeof(scales) / sizeof(scales[0]))];
	for (size_t i = 0; i < sizeof(d->shift) / sizeof(d->shift[0]); i++)
		d->shift[i] = random_below(r, 3) ? random_below(r, MARGIN) : 0;
	for (size_t s = 0; s < SOURCES_MAX; s++) {
		pools_fill(r, sources[s] + d->shift[s], in, count, special);
		d->src[s] = sources[s] + d->shift[s];
	}
	pools_fill(r, accumulator + d->shift[SOURCES_MAX], DTYPE_F32, count, special);
	for (int a = 0; a < WRITTEN; a++) {
		memset(written[0][a], 0xa5, BUFFER_BYTES);
		pools_fill(r, written[0][a] + d->shift[SOURCES_MAX + 1 + a], DTYPE_F32, count, special);
		memcpy(written[1][a], written[0][a], BUFFER_BYTES);
	}
}

static unsigned char *draw_array(const struct draw *d, int side, int array)
{
	return written[side][array] + d->shift[SOURCES_MAX + 1 + array];
}

static struct sum_args draw_sum(const struct draw *d, int side)
{
	return (struct sum_args){
		.src = d->src,
		.src_count = d->src_count,
		.src_dtype = d->in,
		.out_dtype = d->out,
		.acc = d->has_acc ? floats(accumulator + d->shift[SOURCES_MAX]) : NULL,
		.scale = d->scale,
		.count = d->count,
		.out = draw_array(d, side, OUT),
		.stores = side ? d->stores : STORES_CACHED,
	};
}

/* Both sides hold the same elements, and the same bytes elsewhere. */
static void check_written(const struct draw *d, const char *what, const char *name)
{
	for (int a = 0; a < WRITTEN; a++) {
		enum dtype dtype = a == OUT ? d->out : DTYPE_F32;
		size_t begin = d->shift[SOURCES_MAX + 1 + a], end = begin + d->count * dtype_size(dtype);
		ptrdiff_t at = first_difference(draw_array(d, 0, a), draw_array(d, 1, a), dtype, d->count);

		if (at >= 0 || memcmp(written[0][a], written[1][a], begin) != 0 ||
			memcmp(written[0][a] + end, written[1][a] + end, BUFFER_BYTES - end) != 0) {
			printf("%s of %s: array %d differs at %td of %zu; %zu sources of %s to %s, acc %d\n", what,
				name, a, at, d->count, d->src_count, dtype_name(d->in), dtype_name(d->out), d->has_acc);
			fail();
		}
	}
}

typedef void each_call(const struct kernels *kernels, struct random *r, size_t count, enum dtype in, enum dtype out);

/* Calls test for every vector table, length 0..1024, and pair of dtypes, or for one pair per length in turn. */
static void for_each_call(each_call *test, uint64_t seed, int all_pairs)
{
	const struct kernels *kernels;

	for (size_t k = 1; (kernels = dispatch_at(k)); k++) {
		struct random r = {seed};

		printf("%s, seed %llu\n", kernels->name, (unsigned long long)seed);
		for (size_t count = 0; count <= LENGTH_MAX; count++) {
			for (size_t pair = 0; pair < 9; pair++) {
				if (all_pairs || pair == count % 9 || pair == count / 9 % 9)
					test(kernels, &r, count, (enum dtype)(pair / 3), (enum dtype)(pair % 3));
			}
		}
	}
}

static void call_sum(const struct kernels *kernels, struct random *r, size_t count, enum dtype in, enum dtype out)
{
	struct draw d;
	struct sum_args args;

	draw_call(r, &d, count, in, out, 1);
	args = draw_sum(&d, 0);
	kernels_base.sum(&args);
	args = draw_sum(&d, 1);
	kernels->sum(&args);
	check_written(&d, "sum", kernels->name);
}

static void test_sum_equals_base(void **state)
{
	for_each_call(call_sum, 1, 1);
}

static void call_store_add(const struct kernels *kernels, struct random *r, size_t count, enum dtype in, enum dtype out)
{
	struct draw d;

	if (out != DTYPE_F32)
		return;
	draw_call(r, &d, count, in, out, 1);
	kernels_base.store(floats(draw_array(&d, 0, OUT)), d.src[0], in, count);
	kernels->store(floats(draw_array(&d, 1, OUT)), d.src[0], in, count);
	check_written(&d, "store", kernels->name);
	kernels_base.add(floats(draw_array(&d, 0, OUT)), d.src[1], in, count);
	kernels->add(floats(draw_array(&d, 1, OUT)), d.src[1], in, count);
	check_written(&d, "add", kernels->name);
}

static void test_store_and_add_equal_base(void **state)
{
	for_each_call(call_store_add, 2, 1);
}

static struct step_args draw_step(const struct draw *d, int side, const struct optimizer_coef *coef)
{
	struct step_args args = {.sum = draw_sum(d, side), .coef = coef};

	args.weight = floats(draw_array(d, side, WEIGHT));
	args.state[0] = floats(draw_array(d, side, STATE0));
	args.state[1] = floats(draw_array(d, side, STATE1));
	return args;
}

static void call_step(const struct kernels *kernels, struct random *r, size_t count, enum dtype in, enum dtype out)
{
	for (unsigned kind = OPTIMIZER_SGD; kind < OPTIMIZER_COUNT; kind++) {
		struct optimizer_hyper hyper;
		struct optimizer_coef coef;
		struct step_args args;
		struct draw d;

		optimizer_hyper_default((enum optimizer_kind)kind, &hyper);
		hyper.weight_decay = random_below(r, 2) ? 0.01 : 0;
		hyper.dampening = kind == OPTIMIZER_MOMENTUM ? 0.25 : 0;
		optimizer_prepare((enum optimizer_kind)kind, &hyper, 1 + random_below(r, 3), &coef);
		draw_call(r, &d, count, in, out, (int)random_below(r, 2));
		for (int side = 0; side < 2; side++) {
			const struct kernels *table = side ? kernels : &kernels_base;

			args = draw_step(&d, side, &coef);
			if (out == DTYPE_F32 && count % 2)
				args.sum.out = args.weight;
			table->step(&args);
		}
		check_written(&d, optimizer_kind_name((enum optimizer_kind)kind), kernels->name);
	}
}

static void test_step_equals_base(void **state)
{
	for_each_call(call_step, 3, 0);
}

static void call_nonfinite(const struct kernels *kernels, struct random *r, size_t count, enum dtype in, enum dtype out)
{
	struct draw d;
	size_t replaced, bad = 0;

	if (out != DTYPE_F32)
		return;
	draw_call(r, &d, count, in, in, (int)random_below(r, 2));
	assert_int_equal(
		kernels->find_nonfinite(d.src[0], in, count), kernels_base.find_nonfinite(d.src[0], in, count));
	replaced = kernels_base.zero_nonfinite(draw_array(&d, 0, OUT), d.src[0], in, count);
	assert_int_equal(kernels->zero_nonfinite(draw_array(&d, 1, OUT), d.src[0], in, count), replaced);
	check_written(&d, "zero_nonfinite", kernels->name);
	for (size_t i = 0; i < count; i++) {
		float value;

		convert_to_f32(&value, (const unsigned char *)d.src[0] + i * dtype_size(in), in, 1);
		bad += !(value - value == 0);
	}
	assert_int_equal(replaced, bad);
	assert_int_equal(kernels->find_nonfinite(draw_array(&d, 1, OUT), in, count), -1);
}

static void test_nonfinite_equals_base(void **state)
{
	for_each_call(call_nonfinite, 4, 1);
}

/* A single NaN or infinity is found wherever it is, and nothing else is changed. */
static void test_nonfinite_position(void **state)
{
	static const uint32_t bad[DTYPE_COUNT][4] = {
		{0x7f800000, 0xff800000, 0x7f800001, 0xffffffff},
		{0x7c00, 0xfc00, 0x7c01, 0xffff},
		{0x7f80, 0xff80, 0x7f81, 0xffff},
	};
	const struct kernels *kernels;

	for (size_t k = 0; (kernels = dispatch_at(k)); k++) {
		for (unsigned d = 0; d < DTYPE_COUNT; d++) {
			size_t size = dtype_size((enum dtype)d);

			for (size_t at = 0; at < 700; at += at < 40 ? 1 : 37) {
				unsigned char *array = sources[0] + 1, *copy = sources[1] + 1;

				memset(array, 0x3c, 700 * size);
				memcpy(array + at * size, &bad[d][at % 4], size); /* little-endian, as the wire is */
				assert_int_equal(kernels->find_nonfinite(array, (enum dtype)d, 700), at);
				assert_int_equal(kernels->find_nonfinite(array, (enum dtype)d, at), -1);
				memcpy(copy, array, 700 * size);
				assert_int_equal(kernels->zero_nonfinite(copy, copy, (enum dtype)d, 700), 1);
				memset(array + at * size, 0, size);
				assert_true(memcmp(array, copy, 700 * size) == 0);
			}
		}
	}
}

/* The base sum against the plainest loop: left to right, then one multiplication, then one rounding. */
static void test_base_sum_is_left_to_right(void **state)
{
	struct random r = {5};

	for (size_t round = 0; round < 2000; round++) {
		struct draw d;
		struct sum_args args;

		draw_call(&r, &d, random_below(&r, 200), (enum dtype)(round % 3), (enum dtype)(round / 3 % 3), 1);
		args = draw_sum(&d, 0);
		kernels_base.sum(&args);
		for (size_t i = 0; i < d.count; i++) {
			size_t s = d.has_acc ? 0 : 1;
			float sum, term;

			if (d.has_acc)
				memcpy(&sum, accumulator + d.shift[SOURCES_MAX] + 4 * i, 4);
			else
				convert_to_f32(&sum, (const unsigned char *)d.src[0] + i * dtype_size(d.in), d.in, 1);
			for (; s < d.src_count; s++) {
				convert_to_f32(&term, (const unsigned char *)d.src[s] + i * dtype_size(d.in), d.in, 1);
				sum += term;
			}
			sum *= d.scale;
			convert_from_f32(draw_array(&d, 1, OUT) + i * dtype_size(d.out), d.out, &sum, 1);
		}
		check_written(&d, "base sum", "base");
	}
}

/* Payloads held and summed in one pass, added one by one, or folded half-way, give the same bits. */
static void test_holding_changes_no_bit(void **state)
{
	struct random r = {6};
	const struct kernels *kernels;

	for (size_t k = 0; (kernels = dispatch_at(k)); k++) {
		for (size_t count = 0; count < 300; count++) {
			struct sum_args args;
			struct draw d;
			float *one, *two, *three;

			draw_call(&r, &d, count, (enum dtype)(count % 3), DTYPE_F32, 0);
			d.has_acc = 0;
			d.src_count = 5;
			d.scale = 1;
			args = draw_sum(&d, 0);
			kernels->sum(&args);
			one = floats(draw_array(&d, 0, OUT));

			two = floats(draw_array(&d, 1, OUT));
			kernels->store(two, d.src[0], d.in, count);
			for (size_t s = 1; s < 5; s++)
				kernels->add(two, d.src[s], d.in, count);
			assert_true(count == 0 || memcmp(one, two, 4 * count) == 0);

			three = floats(draw_array(&d, 1, WEIGHT));
			kernels->store(three, d.src[0], d.in, count);
			args.acc = three;
			args.out = three;
			args.src = d.src + 1;
			args.src_count = 2;
			kernels->sum(&args); /* fold */
			args.src = d.src + 3;
			kernels->sum(&args);
			assert_true(count == 0 || memcmp(one, three, 4 * count) == 0);

			args.src = NULL; /* convert alone */
			args.src_count = 0;
			args.out = two;
			kernels->sum(&args);
			assert_true(count == 0 || memcmp(one, two, 4 * count) == 0);
		}
	}
}

/* out may be one of the sources. */
static void test_sum_into_a_source(void **state)
{
	struct random r = {9};
	const struct kernels *kernels;

	for (size_t k = 0; (kernels = dispatch_at(k)); k++) {
		for (size_t count = 0; count < 300; count++) {
			enum dtype dtype = (enum dtype)(count % 3);
			struct sum_args args;
			struct draw d;

			draw_call(&r, &d, count, dtype, dtype, 0);
			d.src_count = 4;
			args = draw_sum(&d, 0);
			kernels->sum(&args);
			args.out = sources[2] + d.shift[2];
			kernels->sum(&args);
			assert_int_equal(first_difference(args.out, draw_array(&d, 0, OUT), dtype, count), -1);
		}
	}
}

TEST_PROGRAM(test_aggregation_kernels)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_base_sum_is_left_to_right),
		cmocka_unit_test(test_sum_equals_base),
		cmocka_unit_test(test_store_and_add_equal_base),
		cmocka_unit_test(test_step_equals_base),
		cmocka_unit_test(test_nonfinite_equals_base),
		cmocka_unit_test(test_nonfinite_position),
		cmocka_unit_test(test_holding_changes_no_bit),
		cmocka_unit_test(test_sum_into_a_source),
	};

	return cmocka_run_group_tests(tests, pools_setup, NULL);
}
