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
 * Bytes ahead. Beyond the caches (Emerald Rapids, share of the roofline with 2 sources, `phub bench kernels`): bf16 sum
 * 81 % at 512, 89 % at 1024, 91 % at 2048; fetching into the second-level cache alone is slower. With all in that cache
 * any prefetch costs some percent.
 */
#define SIMD_PREFETCH 2048

typedef __m512 vec;

static inline vec simd_load_f32(const void *src)
{
	return _mm512_loadu_ps(src);
}

static inline vec simd_load_f16(const void *src)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256(src));
}

/* Each word into the upper half of its element: one instruction a vector, where widening and shifting are two. */
static inline void simd_unpack_bf16(const void *src, vec *a, vec *b)
{
	const __m512i first = _mm512_set_epi16(
		15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0, 7, 0, 6, 0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 0, 0);
	const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
	__m512i words = _mm512_loadu_si512(src);

	*a = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, first, words));
	*b = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, second, words));
}

static inline void simd_store_f32(void *dst, vec value)
{
	_mm512_storeu_ps(dst, value);
}

static inline __m512i simd_pack_f16(vec a, vec b)
{
	enum { nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };

	return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(a, nearest)), _mm512_cvtps_ph(b, nearest), 1);
}

/* The upper halves of the result are the bf16 of what is no NaN, as convert_f32_to_bf16() rounds. */
static inline __m512i simd_round_bf16(vec value)
{
	__m512i bits = _mm512_castps_si512(value);
	__m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));

	return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
}

static inline __m512i simd_quiet_bf16(vec value, __m512i rounded)
{
	__mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);

	return _mm512_mask_or_epi32(rounded, is_nan, _mm512_castps_si512(value), _mm512_set1_epi32(0x00400000));
}

/* NaNs are rare: one look at both vectors. AVX512_BF16's own conversion flushes subnormals, so it is no substitute. */
static inline __m512i simd_pack_bf16(vec a, vec b)
{
	const __m512i order = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26,
		24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
	__m512i first = simd_round_bf16(a), second = simd_round_bf16(b);

	if (__builtin_expect(_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0, 0)) {
		first = simd_quiet_bf16(a, first);
		second = simd_quiet_bf16(b, second);
	}
	/* Words of both in turns by one shift and a blend, then in order by one permutation. */
	first = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(first, 16), second);
	return _mm512_permutexvar_epi16(order, first);
}

static inline void simd_store_pair(void *dst, __m512i halves)
{
	_mm512_storeu_si512(dst, halves);
}

static inline void simd_stream_f32(void *dst, vec value)
{
	_mm512_stream_ps(dst, value);
}

static inline void simd_stream_pair(void *dst, __m512i halves)
{
	_mm512_stream_si512(dst, halves);
}

static inline void simd_stream_end(void)
{
	_mm_sfence();
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
