/* SPDX-License-Identifier: Apache-2.0
 *
 * Vector primitives for 64-bit Arm, four floats wide; the kernels themselves are in kernels_simd.h. All of it is part
 * of the base architecture (half-precision conversion included), so there is nothing to ask the machine.
 */
#include <arm_neon.h>
#include <string.h>

#include "aggregation/kernels.h"

#define SIMD_TABLE    kernels_neon
#define SIMD_NAME     "neon"
#define SIMD_ISA      ISA_NEON
#define SIMD_WIDTH    4
#define SIMD_PREFETCH 0 /* not measured yet on a real machine */

typedef float32x4_t vec;

/* vld1 wants typed pointers; bytes keep unaligned arrays legal C and compile to the same loads. */
static inline vec simd_load_f32(const void *src)
{
	return vreinterpretq_f32_u8(vld1q_u8(src));
}

static inline vec simd_load_f16(const void *src)
{
	return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(src)));
}

static inline void simd_unpack_bf16(const void *src, vec *a, vec *b)
{
	uint16x8_t words = vreinterpretq_u16_u8(vld1q_u8(src));

	*a = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(words), 16));
	*b = vreinterpretq_f32_u32(vshll_high_n_u16(words, 16));
}

static inline void simd_store_f32(void *dst, vec value)
{
	vst1q_u8(dst, vreinterpretq_u8_f32(value));
}

static inline uint8x16_t simd_pack_f16(vec a, vec b)
{
	return vreinterpretq_u8_f16(vcvt_high_f16_f32(vcvt_f16_f32(a), b));
}

/* The upper halves of the result are the bf16. As convert_f32_to_bf16(). */
static inline uint32x4_t simd_round_bf16(vec value)
{
	uint32x4_t bits = vreinterpretq_u32_f32(value);
	uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
	uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
	uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x00400000));
	uint32x4_t is_number = vceqq_f32(value, value);

	return vbslq_u32(is_number, rounded, quiet);
}

static inline uint8x16_t simd_pack_bf16(vec a, vec b)
{
	return vreinterpretq_u8_u16(vshrn_high_n_u32(vshrn_n_u32(simd_round_bf16(a), 16), simd_round_bf16(b), 16));
}

static inline void simd_store_pair(void *dst, uint8x16_t halves)
{
	vst1q_u8(dst, halves);
}

/* There is no intrinsic for non-temporal stores, and no machine here to measure them on: plain ones. */
static inline void simd_stream_f32(void *dst, vec value)
{
	simd_store_f32(dst, value);
}

static inline void simd_stream_pair(void *dst, uint8x16_t halves)
{
	simd_store_pair(dst, halves);
}

static inline void simd_stream_end(void)
{
}

static inline vec simd_set(float value)
{
	return vdupq_n_f32(value);
}

static inline vec simd_add(vec a, vec b)
{
	return vaddq_f32(a, b);
}

static inline vec simd_mul(vec a, vec b)
{
	return vmulq_f32(a, b);
}

static inline vec simd_div(vec a, vec b)
{
	return vdivq_f32(a, b);
}

static inline vec simd_sqrt(vec a)
{
	return vsqrtq_f32(a);
}

#include "aggregation/kernels_simd.h"
