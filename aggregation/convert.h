/* SPDX-License-Identifier: Apache-2.0
 *
 * The element types of a gradient on the wire, and the conversions between them.
 *
 * The scalar functions are the specification that every vector kernel matches bit for bit. They use integer
 * arithmetic where hardware could flush subnormals, so that they are right even in a process that set
 * flush-to-zero. The bulk functions serve the client and tests; the data path converts inside its kernels
 * (kernels.h), where the conversion costs no extra pass. All functions: any thread, never block, no state.
 */
#ifndef AGGREGATION_CONVERT_H
#define AGGREGATION_CONVERT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The numbers go on the wire and into checkpoints; they never change. */
enum dtype {
	DTYPE_F32 = 0,
	DTYPE_F16 = 1,  /* IEEE 754 binary16 */
	DTYPE_BF16 = 2, /* upper half of binary32 */
};

#define DTYPE_COUNT 3

/* True for a number that is one of enum dtype; for input from network, file or user. */
static inline int dtype_valid(unsigned dtype)
{
	return dtype < DTYPE_COUNT;
}

/* Bytes per element: 4 or 2. The dtype must be valid. */
static inline size_t dtype_size(enum dtype dtype)
{
	return dtype == DTYPE_F32 ? 4 : 2;
}

/* "f32", "f16", "bf16"; "invalid" for any other number. */
const char *dtype_name(enum dtype dtype);

/*
 * Reads a name: f32/fp32/float32/float, f16/fp16/float16/half, bf16/bfloat16.
 * 0, or -EINVAL for an unknown name.
 */
int dtype_parse(const char *name, enum dtype *dtype);

static inline uint32_t convert_bits_of_f32(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static inline float convert_f32_of_bits(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/*
 * Exact for every input; a NaN keeps sign and payload and becomes quiet. All cases are computed and one is selected,
 * here and below, so that compilers vectorize loops over it.
 */
static inline float convert_f16_to_f32(uint16_t half)
{
	uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
	uint32_t magnitude = half & 0x7fffu;
	/* Zero or subnormal: a whole number of 2^-24, exact and normal in fp32. */
	uint32_t small = convert_bits_of_f32((float)(int32_t)magnitude * 0x1p-24f);
	uint32_t normal = (magnitude << 13) + (112u << 23); /* exponent bias 15 -> 127 */
	uint32_t special = normal + (112u << 23);           /* exponent 31 -> 255 */
	uint32_t bits = magnitude < 0x0400u ? small : normal;

	bits = magnitude >= 0x7c00u ? special : bits;
	bits = magnitude > 0x7c00u ? bits | 0x00400000u : bits;
	return convert_f32_of_bits(bits | sign);
}

/*
 * Rounds to nearest, ties to even; from 65520 on to infinity; subnormal results are kept. A NaN keeps its sign
 * and the upper nine bits of its payload and becomes quiet (what x86's VCVTPS2PH and Arm's FCVTN do).
 */
static inline uint16_t convert_f32_to_f16(float value)
{
	uint32_t bits = convert_bits_of_f32(value);
	uint32_t sign = bits >> 16 & 0x8000u;
	uint32_t magnitude = bits & 0x7fffffffu;
	/* Below 2^-14: adding 0.5, whose last place is 2^-24, rounds for us. */
	uint32_t small = convert_bits_of_f32(convert_f32_of_bits(magnitude) + 0.5f) - 0x3f000000u;
	/* Below 65536: a carry out of the mantissa rounds up, to infinity if need be. */
	uint32_t normal = (magnitude - (112u << 23) + 0x0fffu + (magnitude >> 13 & 1u)) >> 13;
	uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x03ffu);
	uint32_t half = magnitude < 0x38800000u ? small : normal;

	half = magnitude >= 0x47800000u ? 0x7c00u : half;
	half = magnitude > 0x7f800000u ? nan : half;
	return (uint16_t)(sign | half);
}

/* Exact; a signalling NaN stays signalling (no bit changes) until arithmetic touches it. */
static inline float convert_bf16_to_f32(uint16_t brain)
{
	return convert_f32_of_bits((uint32_t)brain << 16);
}

/* Rounds to nearest, ties to even; subnormals are kept; a NaN keeps sign and upper payload and becomes quiet. */
static inline uint16_t convert_f32_to_bf16(float value)
{
	uint32_t bits = convert_bits_of_f32(value);
	uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
	uint32_t nan = bits >> 16 | 0x0040u;

	return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/*
 * dst[i] = src[i] as fp32 for i in 0..count-1. src may be unaligned; the two must not overlap, except that
 * dst == src is allowed when the dtype is DTYPE_F32.
 */
void convert_to_f32(float *dst, const void *src, enum dtype src_dtype, size_t count);

/* dst[i] = src[i] rounded to dst_dtype; same rules. */
void convert_from_f32(void *dst, enum dtype dst_dtype, const float *src, size_t count);

#endif
