/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chance that comes of numbers: SplitMix64 (Steele, Lea, Flood, OOPSLA'14). No secrets. Pure; any thread.
 */
#ifndef PHUB_BASE_MIX_H
#define PHUB_BASE_MIX_H

#include <stdint.h>

#define MIX_STEP UINT64_C(0x9e3779b97f4a7c15)

/* Any number, well mixed: neighbours are strangers then, and no two are one. */
static inline uint64_t mix_64(uint64_t x)
{
	x += MIX_STEP;
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* The next of a row of draws; any state is one. */
static inline uint64_t mix_next(uint64_t *state)
{
	const uint64_t draw = mix_64(*state);

	*state += MIX_STEP;
	return draw;
}

#endif
