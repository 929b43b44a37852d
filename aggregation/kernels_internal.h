/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels_*.c files share and nobody else includes: the entry points of the base kernels that finish the
 * last elements of a vector kernel, and the non-finite scan, which compilers vectorize well for each instruction set.
 */
#ifndef AGGREGATION_KERNELS_INTERNAL_H
#define AGGREGATION_KERNELS_INTERNAL_H

#include "aggregation/kernels.h"

/* The kernels of the same name for the elements first..count-1. */
void kernels_base_store_from(float *acc, const void *src, enum dtype src_dtype, size_t count, size_t first);
void kernels_base_add_from(float *acc, const void *src, enum dtype src_dtype, size_t count, size_t first);
void kernels_base_sum_from(const struct sum_args *args, size_t first);
void kernels_base_step_from(const struct step_args *args, size_t first);

#define KERNELS_INLINE static inline __attribute__((always_inline))

/* Address of element index of an array whose elements have size bytes; legal for unaligned arrays. */
KERNELS_INLINE const void *kernels_at(const void *array, size_t index, size_t size)
{
	return (const unsigned char *)array + index * size;
}

KERNELS_INLINE void *kernels_at_mut(void *array, size_t index, size_t size)
{
	return (unsigned char *)array + index * size;
}

/* An element is NaN or infinite when its exponent is all ones. */
static const uint32_t kernels_exponent[DTYPE_COUNT] = {
	[DTYPE_F32] = 0x7f800000u,
	[DTYPE_F16] = 0x7c00u,
	[DTYPE_BF16] = 0x7f80u,
};

/* The scan goes block by block: a block without an early exit vectorizes, and a finite gradient is the usual case. */
#define KERNELS_SCAN_BLOCK 256
#define KERNELS_SCAN_AHEAD 2048 /* bytes; as the vector kernels look ahead */

KERNELS_INLINE size_t kernels_scan32(const unsigned char *src, size_t n)
{
	uint32_t found = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t bits;

		memcpy(&bits, src + i * sizeof(bits), sizeof(bits));
		found |= (bits & 0x7f800000u) == 0x7f800000u;
	}
	return found;
}

KERNELS_INLINE size_t kernels_scan16(const unsigned char *src, size_t n, uint16_t exponent)
{
	uint16_t found = 0;

	for (size_t i = 0; i < n; i++) {
		uint16_t bits;

		memcpy(&bits, src + i * sizeof(bits), sizeof(bits));
		found = (uint16_t)(found | ((bits & exponent) == exponent));
	}
	return found;
}

/* Index of the first non-finite element of a block that has one. */
static inline size_t kernels_scan_locate(const unsigned char *src, enum dtype dtype, size_t n)
{
	uint32_t exponent = kernels_exponent[dtype];
	size_t size = dtype_size(dtype), i;

	for (i = 0; i < n; i++) {
		uint32_t bits = 0;

		if (size == 4) {
			memcpy(&bits, src + i * 4, 4);
		} else {
			uint16_t bits16;

			memcpy(&bits16, src + i * 2, 2);
			bits = bits16;
		}
		if ((bits & exponent) == exponent)
			break;
	}
	return i;
}

KERNELS_INLINE ptrdiff_t kernels_find_nonfinite(const void *src, enum dtype dtype, size_t count)
{
	size_t size = dtype_size(dtype);

	for (size_t i = 0; i < count; i += KERNELS_SCAN_BLOCK) {
		const unsigned char *block = kernels_at(src, i, size);
		size_t n = count - i < KERNELS_SCAN_BLOCK ? count - i : KERNELS_SCAN_BLOCK;
		size_t found;

		for (size_t line = 0; line < KERNELS_SCAN_BLOCK * size; line += 64)
			__builtin_prefetch(block + KERNELS_SCAN_AHEAD + line);
		found = dtype == DTYPE_F32 ? kernels_scan32(block, n)
					   : kernels_scan16(block, n, (uint16_t)kernels_exponent[dtype]);

		if (found)
			return (ptrdiff_t)(i + kernels_scan_locate(block, dtype, n));
	}
	return -1;
}

KERNELS_INLINE size_t kernels_zero32(unsigned char *dst, const unsigned char *src, size_t count)
{
	size_t replaced = 0;

	for (size_t i = 0; i < count; i++) {
		uint32_t bits, bad;

		memcpy(&bits, src + i * sizeof(bits), sizeof(bits));
		bad = (bits & 0x7f800000u) == 0x7f800000u;
		replaced += bad;
		bits &= bad - 1; /* all ones when the element is good */
		memcpy(dst + i * sizeof(bits), &bits, sizeof(bits));
	}
	return replaced;
}

KERNELS_INLINE size_t kernels_zero16(unsigned char *dst, const unsigned char *src, size_t count, uint16_t exponent)
{
	size_t replaced = 0;

	for (size_t i = 0; i < count; i++) {
		uint16_t bits, bad;

		memcpy(&bits, src + i * sizeof(bits), sizeof(bits));
		bad = (bits & exponent) == exponent;
		replaced += bad;
		bits = (uint16_t)(bits & (bad - 1));
		memcpy(dst + i * sizeof(bits), &bits, sizeof(bits));
	}
	return replaced;
}

KERNELS_INLINE size_t kernels_zero_nonfinite(void *dst, const void *src, enum dtype dtype, size_t count)
{
	if (dtype == DTYPE_F32)
		return kernels_zero32(dst, src, count);
	return kernels_zero16(dst, src, count, (uint16_t)kernels_exponent[dtype]);
}

#endif
