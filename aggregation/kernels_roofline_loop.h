/* SPDX-License-Identifier: Apache-2.0
 *
 * The copy loop, written once. kernels_roofline.c defines ROOFLINE_TARGET, ROOFLINE_VEC, ROOFLINE_UNROLL and the macros
 * ROOFLINE_{NAME,ZERO,LOAD,OR,STORE,STREAM,HIDE}, and includes this file for each instruction set.
 */
#ifndef ROOFLINE_VEC
#error "kernels_roofline.c includes this file"
#endif

#define ROOFLINE_STEP (ROOFLINE_UNROLL * sizeof(ROOFLINE_VEC))

/* One array that is rewritten in place. Values are hidden, or the compiler sees that nothing changes. */
static inline __attribute__((always_inline)) ROOFLINE_TARGET void ROOFLINE_NAME(rewrite)(
	unsigned char *at, int stream, size_t ahead)
{
	ROOFLINE_VEC v[ROOFLINE_UNROLL];

	for (size_t u = 0; u < ROOFLINE_UNROLL; u++) {
		if (ahead && u * sizeof(v[u]) % 64 == 0)
			__builtin_prefetch(at + u * sizeof(v[u]) + ahead);
		v[u] = ROOFLINE_LOAD(at + u * sizeof(v[u]));
		ROOFLINE_HIDE(v[u]);
	}
	for (size_t u = 0; u < ROOFLINE_UNROLL; u++) {
		if (stream)
			ROOFLINE_STREAM(at + u * sizeof(v[u]), v[u]);
		else
			ROOFLINE_STORE(at + u * sizeof(v[u]), v[u]);
	}
}

static inline __attribute__((always_inline)) ROOFLINE_TARGET void ROOFLINE_NAME(read)(
	const unsigned char *at, ROOFLINE_VEC sum[ROOFLINE_UNROLL], size_t ahead)
{
	for (size_t u = 0; u < ROOFLINE_UNROLL; u++) {
		if (ahead && u * sizeof(ROOFLINE_VEC) % 64 == 0)
			__builtin_prefetch(at + u * sizeof(ROOFLINE_VEC) + ahead);
		sum[u] = ROOFLINE_OR(sum[u], ROOFLINE_LOAD(at + u * sizeof(ROOFLINE_VEC)));
	}
}

static inline __attribute__((always_inline)) ROOFLINE_TARGET void ROOFLINE_NAME(write)(
	unsigned char *at, const ROOFLINE_VEC sum[ROOFLINE_UNROLL], int stream, size_t ahead)
{
	for (size_t u = 0; u < ROOFLINE_UNROLL; u++) {
		if (stream)
			ROOFLINE_STREAM(at + u * sizeof(ROOFLINE_VEC), sum[u]);
		else
			ROOFLINE_STORE(at + u * sizeof(ROOFLINE_VEC), sum[u]);
		if (ahead && !stream && u * sizeof(ROOFLINE_VEC) % 64 == 0)
			__builtin_prefetch(at + u * sizeof(ROOFLINE_VEC) + ahead, 1);
	}
}

static inline __attribute__((always_inline)) ROOFLINE_TARGET void ROOFLINE_NAME(loop)(
	const struct roofline_args *args, int stream, size_t ahead)
{
	const struct roofline_args a = *args;

	for (size_t i = 0; i < a.bytes; i += ROOFLINE_STEP) {
		ROOFLINE_VEC sum[ROOFLINE_UNROLL];

		for (size_t u = 0; u < ROOFLINE_UNROLL; u++)
			sum[u] = ROOFLINE_ZERO();
		for (size_t s = 0; s < a.src_count; s++)
			ROOFLINE_NAME(read)((const unsigned char *)a.src[s] + i, sum, ahead);
		for (size_t u = 0; u < ROOFLINE_UNROLL; u++)
			ROOFLINE_HIDE(sum[u]); /* what nobody stores was read all the same */
		for (size_t s = 0; s < a.inout_count; s++) {
			for (size_t at = i * a.inout_width; at < (i + ROOFLINE_STEP) * a.inout_width;
				at += ROOFLINE_STEP)
				ROOFLINE_NAME(rewrite)((unsigned char *)a.inout[s] + at, stream, ahead);
		}
		for (size_t s = 0; s < a.out_count; s++) {
			for (size_t at = i * a.out_width; at < (i + ROOFLINE_STEP) * a.out_width; at += ROOFLINE_STEP)
				ROOFLINE_NAME(write)((unsigned char *)a.out[s] + at, sum, stream, ahead);
		}
	}
}

static ROOFLINE_TARGET void ROOFLINE_NAME(cached)(const struct roofline_args *args)
{
	ROOFLINE_NAME(loop)(args, 0, 0);
}

static ROOFLINE_TARGET void ROOFLINE_NAME(prefetched)(const struct roofline_args *args)
{
	ROOFLINE_NAME(loop)(args, 0, ROOFLINE_AHEAD);
}

#ifdef ROOFLINE_FENCE
static ROOFLINE_TARGET void ROOFLINE_NAME(streamed)(const struct roofline_args *args)
{
	ROOFLINE_NAME(loop)(args, 1, 0);
	ROOFLINE_FENCE();
}

static ROOFLINE_TARGET void ROOFLINE_NAME(streamed_prefetched)(const struct roofline_args *args)
{
	ROOFLINE_NAME(loop)(args, 1, ROOFLINE_AHEAD);
	ROOFLINE_FENCE();
}
#endif

#undef ROOFLINE_STEP
#undef ROOFLINE_VEC
#undef ROOFLINE_UNROLL
#undef ROOFLINE_TARGET
#undef ROOFLINE_NAME
#undef ROOFLINE_ZERO
#undef ROOFLINE_LOAD
#undef ROOFLINE_OR
#undef ROOFLINE_STORE
#undef ROOFLINE_STREAM
#undef ROOFLINE_HIDE
