/* SPDX-License-Identifier: Apache-2.0
 *
 * Vector primitives for AVX2 with F16C, eight floats wide; the kernels themselves are in kernels_simd.h. Compiled with
 * -mavx2 -mf16c: nothing here may run before dispatch.c has asked the machine.
 */
#include <immintrin.h>

#include "aggregation/kernels.h"

#define SIMD_TABLE kernels_avx2
#define SIMD_NAME  "avx2"
#define SIMD_ISA   ISA_AVX2
#define SIMD_WIDTH 8

/*
 * Bytes ahead. Beyond the caches (Emerald Rapids, share of the roofline with 2 sources, `phub bench kernels`): bf16 sum
 * 81 % at 512, 89 % at 1024, 91 % at 2048; fetching into the second-level cache alone is slower. With all in that cache
 * any prefetch costs some percent.
 */
#define SIMD_PREFETCH 2048

typedef __m256 vec;

static inline vec simd_load_f32(const void *src)
{
	return _mm256_loadu_ps(src);
}

static inline vec simd_load_f16(const void *src)
{
	return _mm256_cvtph_ps(_mm_loadu_si128(src));
}

static inline vec simd_load_bf16(const void *src)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(src)), 16));
}

static inline void simd_unpack_bf16(const void *src, vec *a, vec *b)
{
	*a = simd_load_bf16(src);
	*b = simd_load_bf16((const __m128i *)src + 1);
}

static inline void simd_store_f32(void *dst, vec value)
{
	_mm256_storeu_ps(dst, value);
}

static inline __m256i simd_pack_f16(vec a, vec b)
{
	enum { nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };

	return _mm256_set_m128i(_mm256_cvtps_ph(b, nearest), _mm256_cvtps_ph(a, nearest));
}

/* The upper halves of the result are the bf16 of what is no NaN, as convert_f32_to_bf16() rounds. */
static inline __m256i simd_round_bf16(vec value)
{
	__m256i bits = _mm256_castps_si256(value);
	__m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));

	return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

static inline __m256i simd_quiet_bf16(vec value, __m256i rounded)
{
	__m256i quiet = _mm256_or_si256(_mm256_castps_si256(value), _mm256_set1_epi32(0x00400000));
	__m256 is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);

	return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan));
}

/* NaNs are rare: one look at both vectors. */
static inline __m256i simd_pack_bf16(vec a, vec b)
{
	__m256i first = simd_round_bf16(a), second = simd_round_bf16(b);

	if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0, 0)) {
		first = simd_quiet_bf16(a, first);
		second = simd_quiet_bf16(b, second);
	}
	first = _mm256_packus_epi32(_mm256_srli_epi32(first, 16), _mm256_srli_epi32(second, 16));
	return _mm256_permute4x64_epi64(first, 0xd8);
}

static inline void simd_store_pair(void *dst, __m256i halves)
{
	_mm256_storeu_si256(dst, halves);
}

static inline void simd_stream_f32(void *dst, vec value)
{
	_mm256_stream_ps(dst, value);
}

static inline void simd_stream_pair(void *dst, __m256i halves)
{
	_mm256_stream_si256(dst, halves);
}

static inline void simd_stream_end(void)
{
	_mm_sfence();
}

static inline vec simd_set(float value)
{
	return _mm256_set1_ps(value);
}

static inline vec simd_add(vec a, vec b)
{
	return _mm256_add_ps(a, b);
}

static inline vec simd_mul(vec a, vec b)
{
	return _mm256_mul_ps(a, b);
}

static inline vec simd_div(vec a, vec b)
{
	return _mm256_div_ps(a, b);
}

static inline vec simd_sqrt(vec a)
{
	return _mm256_sqrt_ps(a);
}

#include "aggregation/kernels_simd.h"
