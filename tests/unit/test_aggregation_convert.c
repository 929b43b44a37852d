/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions between fp32, fp16 and bf16: every 16-bit value, every rounding boundary, many random numbers, against
 * a reference in double; and the names of the types.
 */
#include <errno.h>
#include <math.h>

#include "tests/unit/test_aggregation.h"

/* A 16-bit float as a double, from the definition of the format. */
static double reference_value(uint16_t bits, int exponent_bits, int mantissa_bits)
{
	int bias = (1 << (exponent_bits - 1)) - 1;
	int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
	int mantissa = bits & ((1 << mantissa_bits) - 1);
	double value;

	if (exponent == (1 << exponent_bits) - 1)
		value = mantissa ? (double)NAN : (double)INFINITY;
	else if (exponent == 0)
		value = ldexp(mantissa, 1 - bias - mantissa_bits);
	else
		value = ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
	return bits & 0x8000 ? -value : value;
}

/* Rounds to the nearest representable number, ties to even, in double, where every step is exact. */
static uint16_t reference_round(float value, int exponent_bits, int mantissa_bits)
{
	int bias = (1 << (exponent_bits - 1)) - 1;
	uint16_t sign = signbit(value) ? 0x8000 : 0;
	uint16_t infinity = (uint16_t)(((1 << exponent_bits) - 1) << mantissa_bits);
	double magnitude = fabs((double)value), units;
	int exponent;

	if (isinf(value))
		return sign | infinity;
	frexp(magnitude, &exponent);
	exponent -= 1; /* magnitude is in [2^exponent, 2^(exponent+1)) */
	if (exponent < 1 - bias || magnitude == 0)
		exponent = 1 - bias;
	units = rint(ldexp(magnitude, mantissa_bits - exponent));
	if (units >= ldexp(1, mantissa_bits + 1)) {
		units /= 2;
		exponent++;
	}
	if (exponent > bias)
		return sign | infinity;
	if (units < ldexp(1, mantissa_bits)) /* subnormal or zero */
		return (uint16_t)(sign | (uint16_t)units);
	return (uint16_t)(sign | (exponent + bias) << mantissa_bits | ((uint16_t)units & ((1 << mantissa_bits) - 1)));
}

static void check_narrow(float value)
{
	uint16_t half = convert_f32_to_f16(value), brain = convert_f32_to_bf16(value);
	uint16_t half_wanted, brain_wanted;
	uint32_t bits = convert_bits_of_f32(value);

	if (isnan(value)) {
		/* Quiet, same sign, upper payload kept. */
		assert_int_equal(half, (bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x1ff));
		assert_int_equal(brain, bits >> 16 | 0x40);
		return;
	}
	half_wanted = reference_round(value, 5, 10);
	brain_wanted = reference_round(value, 8, 7);
	if (half != half_wanted || brain != brain_wanted)
		printf("value %a (%08x): f16 %04x, bf16 %04x\n", (double)value, bits, half, brain);
	assert_int_equal(half, half_wanted);
	assert_int_equal(brain, brain_wanted);
}

/* value and the fp32 numbers next to it, both signs. */
static void check_around(float value)
{
	uint32_t bits = convert_bits_of_f32(value);

	for (uint32_t near = bits > 2 ? bits - 2 : 0; near <= bits + 2; near++) {
		check_narrow(convert_f32_of_bits(near & 0x7fffffff));
		check_narrow(convert_f32_of_bits(near | 0x80000000));
	}
}

static void test_every_f16_widens(void **state)
{
	for (uint32_t h = 0; h < 65536; h++) {
		float value = convert_f16_to_f32((uint16_t)h);
		double expected = reference_value((uint16_t)h, 5, 10);

		if (isnan(expected)) {
			assert_int_equal(
				convert_bits_of_f32(value), (h & 0x8000) << 16 | 0x7fc00000 | (h & 0x3ff) << 13);
			continue;
		}
		assert_true((double)value == expected && !signbit(value) == !signbit(expected));
		assert_int_equal(convert_f32_to_f16(value), h);
	}
}

static void test_every_bf16_widens(void **state)
{
	for (uint32_t b = 0; b < 65536; b++) {
		float value = convert_bf16_to_f32((uint16_t)b);
		double expected = reference_value((uint16_t)b, 8, 7);

		assert_int_equal(convert_bits_of_f32(value), b << 16);
		if (isnan(expected))
			continue;
		assert_true((double)value == expected);
		assert_int_equal(convert_f32_to_bf16(value), b);
	}
}

/* Each number of the narrow types, the middle between it and the next one, and their neighbours in fp32. */
static void test_every_boundary_narrows(void **state)
{
	for (uint32_t h = 0; h < 0x7c00; h++) {
		uint32_t next =
			h + 1 == 0x7c00 ? 0x47800000 : convert_bits_of_f32(convert_f16_to_f32((uint16_t)(h + 1)));
		double low = convert_f16_to_f32((uint16_t)h), high = convert_f32_of_bits(next);

		check_around((float)low);
		check_around((float)((low + high) / 2));
	}
	for (uint32_t b = 0; b < 0x7f80; b++) {
		check_around(convert_f32_of_bits(b << 16));
		check_around(convert_f32_of_bits(b << 16 | 0x8000));
	}
	check_around(65504.0f);
	check_around(65520.0f);
	check_around(0x1p-25f);
}

static void test_random_narrows(void **state)
{
	struct random r = {20180101};

	for (int i = 0; i < 1000000; i++) {
		uint32_t bits = (uint32_t)random_next(&r);

		check_narrow(convert_f32_of_bits(bits));
		/* The same with an exponent near fp16's range, where random bits rarely land. */
		check_narrow(convert_f32_of_bits((bits & 0x807fffff) | (uint32_t)(96 + random_below(&r, 50)) << 23));
	}
	for (uint32_t payload = 1; payload < 0x800000; payload += 4099)
		check_narrow(convert_f32_of_bits(0x7f800000 | payload));
}

static uint16_t load16(const unsigned char *at)
{
	uint16_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static float load32(const unsigned char *at)
{
	float value;

	memcpy(&value, at, sizeof(value));
	return value;
}

/* Bulk conversions equal the scalar ones at every length and alignment and write nothing past the end. */
static void test_bulk_narrows(void **state)
{
	static unsigned char wide[70 * 4], narrow[70 * 2], copy[70 * 4];
	struct random r = {7};

	for (size_t count = 0; count < 64; count++) {
		size_t shift = count % 5;
		const float *src = (const float *)(const void *)(wide + shift);

		random_fill(&r, wide + shift, DTYPE_F32, count, 1);
		memset(narrow, 0xa5, sizeof(narrow));
		convert_from_f32(narrow + shift, DTYPE_F16, src, count);
		for (size_t i = 0; i < count; i++)
			assert_int_equal(
				load16(narrow + shift + 2 * i), convert_f32_to_f16(load32(wide + shift + 4 * i)));
		convert_from_f32(narrow + shift, DTYPE_BF16, src, count);
		for (size_t i = 0; i < count; i++)
			assert_int_equal(
				load16(narrow + shift + 2 * i), convert_f32_to_bf16(load32(wide + shift + 4 * i)));
		assert_int_equal(narrow[shift + 2 * count], 0xa5);
		memset(copy, 0xa5, sizeof(copy));
		convert_from_f32(copy + shift, DTYPE_F32, src, count);
		assert_true(memcmp(copy + shift, wide + shift, 4 * count) == 0 && copy[shift + 4 * count] == 0xa5);
	}
}

static void test_bulk_widens(void **state)
{
	static unsigned char narrow[70 * 2], wide[70 * 4];
	struct random r = {8};

	for (size_t count = 0; count < 64; count++) {
		size_t shift = count % 5;
		float *dst = (float *)(void *)(wide + shift);

		for (size_t i = 0; i < sizeof(narrow); i++)
			narrow[i] = (unsigned char)random_next(&r);
		memset(wide, 0xa5, sizeof(wide));
		convert_to_f32(dst, narrow + shift, DTYPE_F16, count);
		for (size_t i = 0; i < count; i++)
			assert_true(same_f32(
				load32(wide + shift + 4 * i), convert_f16_to_f32(load16(narrow + shift + 2 * i))));
		convert_to_f32(dst, narrow + shift, DTYPE_BF16, count);
		for (size_t i = 0; i < count; i++)
			assert_true(same_f32(
				load32(wide + shift + 4 * i), convert_bf16_to_f32(load16(narrow + shift + 2 * i))));
		assert_int_equal(wide[shift + 4 * count], 0xa5);
		convert_to_f32(dst, wide + shift, DTYPE_F32, count); /* in place */
		assert_int_equal(wide[shift + 4 * count], 0xa5);
	}
}

static void test_names(void **state)
{
	static const struct {
		const char *name;
		enum dtype dtype;
	} names[] = {
		{"f32", DTYPE_F32},
		{"float32", DTYPE_F32},
		{"f16", DTYPE_F16},
		{"half", DTYPE_F16},
		{"float16", DTYPE_F16},
		{"bf16", DTYPE_BF16},
		{"bfloat16", DTYPE_BF16},
	};
	enum dtype dtype = DTYPE_BF16;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		assert_int_equal(dtype_parse(names[i].name, &dtype), 0);
		assert_int_equal(dtype, names[i].dtype);
		assert_int_equal(dtype_parse(dtype_name(dtype), &dtype), 0);
		assert_int_equal(dtype, names[i].dtype);
	}
	dtype = DTYPE_F16;
	assert_int_equal(dtype_parse("f64", &dtype), -EINVAL);
	assert_int_equal(dtype_parse("", &dtype), -EINVAL);
	assert_int_equal(dtype, DTYPE_F16); /* written only on success */
	assert_string_equal(dtype_name((enum dtype)77), "invalid");
	assert_true(dtype_valid(0) && dtype_valid(2) && !dtype_valid(3));
	assert_int_equal(dtype_size(DTYPE_F32), 4);
	assert_int_equal(dtype_size(DTYPE_F16), 2);
	assert_int_equal(dtype_size(DTYPE_BF16), 2);
}

TEST_PROGRAM(test_aggregation_convert)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_f16_widens),
		cmocka_unit_test(test_every_bf16_widens),
		cmocka_unit_test(test_every_boundary_narrows),
		cmocka_unit_test(test_random_narrows),
		cmocka_unit_test(test_bulk_narrows),
		cmocka_unit_test(test_bulk_widens),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
