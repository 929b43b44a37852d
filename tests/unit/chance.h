/* SPDX-License-Identifier: Apache-2.0 */
/* Chance that is the same on each machine, for tests of what is decided by it: `chance_seed` begins it. */
#ifndef PHUB_TESTS_CHANCE_H
#define PHUB_TESTS_CHANCE_H

#include <stdint.h>

static uint64_t chance_seed;

/* 0 to below 1. */
static inline double chance(void)
{
	chance_seed = chance_seed * 6364136223846793005u + 1442695040888963407u;
	return (double)(chance_seed >> 11) * 0x1p-53;
}

/* Mean 0 and deviation 1. */
static inline double normal(void)
{
	double sum = -6;

	for (unsigned i = 0; i < 12; i++)
		sum += chance();
	return sum;
}

#endif
