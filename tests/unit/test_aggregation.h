/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the aggregation layer share: cmocka or its stand-in, a seeded generator, and values that are
 * likely to go wrong (infinities, NaN, signed zeros, subnormals, the largest and smallest numbers of each type).
 */
#ifndef TESTS_UNIT_TEST_AGGREGATION_H
#define TESTS_UNIT_TEST_AGGREGATION_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregation/dispatch.h"
#include "tests/unit/cmocka_shim.h"

struct random {
	uint64_t state;
};

/* splitmix64 */
static inline uint64_t random_next(struct random *r)
{
	uint64_t z = r->state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static inline size_t random_below(struct random *r, size_t bound)
{
	return (size_t)(random_next(r) % bound);
}

/* Roughly normal, mean 0, deviation 1. */
static inline float random_normal(struct random *r)
{
	float sum = 0;

	for (int i = 0; i < 12; i++)
		sum += (float)(random_next(r) >> 40) * 0x1p-24f;
	return sum - 6.0f;
}

static inline float random_special(struct random *r)
{
	static const uint32_t special[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0x7fffffff,
		0xffffffff, 0x7f800001, 0x7fa12345, 0xffc54321, 0x00000001, 0x80000001, 0x007fffff, 0x00800000,
		0x7f7fffff, 0xff7fffff, 0x33000000, 0x33000001, 0x33800000, 0x38800000, 0x387fffff, 0x477fefff,
		0x477ff000, 0x477fe000, 0x3f800000, 0xbf800000, 0x3f808000};

	switch (random_below(r, 4)) {
	case 0:
		return convert_f32_of_bits(special[random_below(r, sizeof(special) / sizeof(special[0]))]);
	case 1:
		return convert_f32_of_bits((uint32_t)random_next(r));
	default:
		return random_normal(r);
	}
}

/* Fills count elements of dtype at a possibly unaligned address; with special, half of them are awkward. */
static inline void random_fill(struct random *r, void *dst, enum dtype dtype, size_t count, int special)
{
	for (size_t i = 0; i < count; i++) {
		float value = special ? random_special(r) : random_normal(r);

		convert_from_f32((unsigned char *)dst + i * dtype_size(dtype), dtype, &value, 1);
		/* Conversion quiets NaN; sometimes put back a signalling one, as a hostile worker might. */
		if (special && dtype != DTYPE_F32 && random_below(r, 50) == 0) {
			uint16_t signalling = dtype == DTYPE_F16 ? 0x7d01 : 0xff81;

			memcpy((unsigned char *)dst + i * 2, &signalling, 2);
		}
	}
}

/* Equal bits, or both NaN. */
static inline int same_f32(float a, float b)
{
	return convert_bits_of_f32(a) == convert_bits_of_f32(b) || (a != a && b != b);
}

/* The first element where two arrays of one dtype differ, or -1. */
static inline ptrdiff_t first_difference(const void *a, const void *b, enum dtype dtype, size_t count)
{
	if (memcmp(a, b, count * dtype_size(dtype)) == 0) /* nearly always, and much faster */
		return -1;
	for (size_t i = 0; i < count; i++) {
		float left, right;

		convert_to_f32(&left, (const unsigned char *)a + i * dtype_size(dtype), dtype, 1);
		convert_to_f32(&right, (const unsigned char *)b + i * dtype_size(dtype), dtype, 1);
		if (!same_f32(left, right))
			return (ptrdiff_t)i;
	}
	return -1;
}

#endif
