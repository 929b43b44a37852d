/* SPDX-License-Identifier: Apache-2.0 */
/*
 * splitmix64 and what the study draws with it.
 */
#include "tests/bench/skew_random.h"

#include <math.h>

#include "phub/base/mix.h"

uint64_t skew_random_next(struct skew_random *r)
{
	return mix_next(&r->state);
}

/* Mixed twice: seeds, uses and indexes that are neighbours are strangers then. */
void skew_random_init(struct skew_random *r, uint64_t seed, enum skew_stream use, uint64_t index)
{
	r->state = seed;
	r->state = skew_random_next(r) ^ ((uint64_t)use << 56 | index);
	r->state = skew_random_next(r);
}

uint32_t skew_random_below(struct skew_random *r, uint32_t bound)
{
	return (uint32_t)((skew_random_next(r) >> 32) * bound >> 32);
}

double skew_random_unit(struct skew_random *r)
{
	return ((double)(skew_random_next(r) >> 11) + 0.5) * 0x1p-53;
}

double skew_random_normal(struct skew_random *r)
{
	double radius = sqrt(-2 * log(skew_random_unit(r)));

	return radius * cos(2 * M_PI * skew_random_unit(r));
}

double skew_random_gamma(struct skew_random *r, double shape)
{
	double boost = 1, d, c;

	if (shape < 1) {
		boost = pow(skew_random_unit(r), 1 / shape);
		shape += 1;
	}
	d = shape - 1.0 / 3;
	c = 1 / sqrt(9 * d);
	for (;;) {
		double x = skew_random_normal(r), v = 1 + c * x;

		if (v <= 0)
			continue;
		v = v * v * v;
		if (log(skew_random_unit(r)) < 0.5 * x * x + d - d * v + d * log(v))
			return boost * d * v;
	}
}

void skew_random_shuffle(struct skew_random *r, uint32_t *values, size_t count)
{
	for (size_t i = count; i > 1; i--) {
		size_t other = skew_random_below(r, (uint32_t)i);
		uint32_t value = values[i - 1];

		values[i - 1] = values[other];
		values[other] = value;
	}
}
