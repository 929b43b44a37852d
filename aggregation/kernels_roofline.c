/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop of kernels_roofline_loop.h for plain vectors of 16 bytes, AVX2 and AVX-512, with cached and non-temporal
 * stores, with and without prefetch. Targets are named function by function: the file itself runs on any machine.
 */
#include "aggregation/kernels_roofline.h"

#include <stdint.h>

/* Bytes; as far as the kernels themselves look ahead. */
#define ROOFLINE_AHEAD 2048

#if defined(__x86_64__)
#include <immintrin.h>
#define ROOFLINE_FENCE _mm_sfence

#define ROOFLINE_TARGET
#define ROOFLINE_VEC           __m128i
#define ROOFLINE_UNROLL        8
#define ROOFLINE_NAME(part)    roofline_plain_##part
#define ROOFLINE_ZERO          _mm_setzero_si128
#define ROOFLINE_LOAD(at)      _mm_loadu_si128((const __m128i *)(const void *)(at))
#define ROOFLINE_OR            _mm_or_si128
#define ROOFLINE_STORE(at, v)  _mm_store_si128((__m128i *)(void *)(at), v)
#define ROOFLINE_STREAM(at, v) _mm_stream_si128((__m128i *)(void *)(at), v)
#define ROOFLINE_HIDE(v)       __asm__ volatile("" : "+x"(v))
#include "aggregation/kernels_roofline_loop.h"

#define ROOFLINE_TARGET        __attribute__((target("avx2")))
#define ROOFLINE_VEC           __m256i
#define ROOFLINE_UNROLL        8
#define ROOFLINE_NAME(part)    roofline_avx2_##part
#define ROOFLINE_ZERO          _mm256_setzero_si256
#define ROOFLINE_LOAD(at)      _mm256_loadu_si256((const __m256i *)(const void *)(at))
#define ROOFLINE_OR            _mm256_or_si256
#define ROOFLINE_STORE(at, v)  _mm256_store_si256((__m256i *)(void *)(at), v)
#define ROOFLINE_STREAM(at, v) _mm256_stream_si256((__m256i *)(void *)(at), v)
#define ROOFLINE_HIDE(v)       __asm__ volatile("" : "+x"(v))
#include "aggregation/kernels_roofline_loop.h"

#define ROOFLINE_TARGET        __attribute__((target("avx512f")))
#define ROOFLINE_VEC           __m512i
#define ROOFLINE_UNROLL        8
#define ROOFLINE_NAME(part)    roofline_avx512_##part
#define ROOFLINE_ZERO          _mm512_setzero_si512
#define ROOFLINE_LOAD(at)      _mm512_loadu_si512(at)
#define ROOFLINE_OR            _mm512_or_si512
#define ROOFLINE_STORE(at, v)  _mm512_store_si512(at, v)
#define ROOFLINE_STREAM(at, v) _mm512_stream_si512((__m512i *)(void *)(at), v)
#define ROOFLINE_HIDE(v)       __asm__ volatile("" : "+v"(v))
#include "aggregation/kernels_roofline_loop.h"

#define ROOFLINE_ALL(isa, name)                                                                 \
	{name, 0, roofline_##isa##_cached}, {name " prefetch", 0, roofline_##isa##_prefetched}, \
		{name " nt", 1, roofline_##isa##_streamed},                                     \
	{                                                                                       \
		name " nt prefetch", 1, roofline_##isa##_streamed_prefetched                    \
	}

static const struct roofline_copy roofline_copies[] = {
	ROOFLINE_ALL(plain, "plain"),
	ROOFLINE_ALL(avx2, "avx2"),
	ROOFLINE_ALL(avx512, "avx512"),
};

/* How many of them: they stand in the order of what they need. */
static size_t roofline_count(void)
{
	if (!__builtin_cpu_supports("avx2"))
		return 4;
	return __builtin_cpu_supports("avx512f") ? 12 : 8;
}

#else

typedef uint64_t roofline_vec __attribute__((vector_size(16)));

#define ROOFLINE_TARGET
#define ROOFLINE_VEC          roofline_vec
#define ROOFLINE_UNROLL       8
#define ROOFLINE_NAME(part)   roofline_plain_##part
#define ROOFLINE_ZERO()       ((roofline_vec){0, 0})
#define ROOFLINE_LOAD(at)     (*(const roofline_vec *)(const void *)(at))
#define ROOFLINE_OR(a, b)     ((a) | (b))
#define ROOFLINE_STORE(at, v) (*(roofline_vec *)(void *)(at) = (v))
#define ROOFLINE_STREAM       ROOFLINE_STORE
#if defined(__aarch64__)
#define ROOFLINE_HIDE(v) __asm__ volatile("" : "+w"(v))
#else
#define ROOFLINE_HIDE(v) __asm__ volatile("" : "+m"(v))
#endif
#include "aggregation/kernels_roofline_loop.h"

static const struct roofline_copy roofline_copies[] = {
	{"plain", 0, roofline_plain_cached},
	{"plain prefetch", 0, roofline_plain_prefetched},
};

static size_t roofline_count(void)
{
	return 2;
}

#endif

const struct roofline_copy *roofline_at(size_t index)
{
	return index < roofline_count() ? &roofline_copies[index] : NULL;
}
