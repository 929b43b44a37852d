/* SPDX-License-Identifier: Apache-2.0
 *
 * Vector primitives for AVX-512, sixteen floats wide; the kernels themselves are in kernels_simd.h. Compiled with
 * -mavx512f -mavx512bw -mavx512vl -mavx512dq: nothing here may run before dispatch.c has asked the machine.
 */
#include <immintrin.h>

#include "aggregation/kernels.h"

#define SIMD_TABLE kernels_avx512
#define SIMD_NAME  "avx512"
#define SIMD_ISA   ISA_AVX512
#define SIMD_WIDTH 16

/*
 * Bytes ahead. On 256 MB of gradients (Cascade Lake, 4 sources) 5 % (sum) to 8 % (adam) faster than no prefetch,
 * 1 source 40 %; with all in L2 it is up to 30 % slower, at 55 GB/s. A distance of 1024 is no better.
 */
#define SIMD_PREFETCH 512

typedef __m512 vec;

static inline vec simd_load_f32(const void *src)
{
	return _mm512_loadu_ps(src);
}

static inline vec simd_load_f16(const void *src)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256(src));
}

static inline vec simd_load_bf16(const void *src)
{
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(src)), 16));
}

static inline void simd_store_f32(void *dst, vec value)
{
	_mm512_storeu_ps(dst, value);
}

static inline void simd_store_f16(void *dst, vec value)
{
	_mm256_storeu_si256(dst, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* As convert_f32_to_bf16(). AVX512_BF16's own conversion flushes subnormals, so it is no substitute. */
static inline void simd_store_bf16(void *dst, vec value)
{
	__m512i bits = _mm512_castps_si512(value);
	__m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
	__m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
	__mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
	__m512i result = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x00400000));

	_mm256_storeu_si256(dst, _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16)));
}

static inline vec simd_set(float value)
{
	return _mm512_set1_ps(value);
}

static inline vec simd_add(vec a, vec b)
{
	return _mm512_add_ps(a, b);
}

static inline vec simd_mul(vec a, vec b)
{
	return _mm512_mul_ps(a, b);
}

static inline vec simd_div(vec a, vec b)
{
	return _mm512_div_ps(a, b);
}

static inline vec simd_sqrt(vec a)
{
	return _mm512_sqrt_ps(a);
}

#include "aggregation/kernels_simd.h"
