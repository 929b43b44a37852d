/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The generator of the study on skewed sites: splitmix64, and the distributions that it needs. All that is random there
 * comes from one seed; a stream of its own for each use, so that one more draw in one place moves nothing elsewhere.
 * Pure arithmetic; any thread, a generator by one at a time.
 */
#ifndef TESTS_BENCH_SKEW_RANDOM_H
#define TESTS_BENCH_SKEW_RANDOM_H

#include <stddef.h>
#include <stdint.h>

struct skew_random {
	uint64_t state;
};

/* What a stream is for; `skew_random_init(r, seed, SKEW_FEED, site)`. */
enum skew_stream { SKEW_WEIGHTS, SKEW_PARTITION, SKEW_FEED, SKEW_PROBE };

/* Starts stream `use`, `index` of it, of `seed`. */
void skew_random_init(struct skew_random *r, uint64_t seed, enum skew_stream use, uint64_t index);

uint64_t skew_random_next(struct skew_random *r);

/* 0 <= x < bound, each as likely to within 2^-32; bound from 1 to 2^32 - 1. */
uint32_t skew_random_below(struct skew_random *r, uint32_t bound);

/* 0 < x < 1 */
double skew_random_unit(struct skew_random *r);

/* Mean 0, deviation 1 (Box-Muller). */
double skew_random_normal(struct skew_random *r);

/* Gamma of shape `shape` > 0 and scale 1 (Marsaglia and Tsang, 2000). */
double skew_random_gamma(struct skew_random *r, double shape);

/* Every order of the `count` values as likely (Fisher-Yates). */
void skew_random_shuffle(struct skew_random *r, uint32_t *values, size_t count);

#endif
