/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/base/stats.h"

#include <string.h>

#define STATS_SUB_COUNT (1u << STATS_HISTOGRAM_SUB_BITS)

static unsigned stats_bucket_of(uint64_t value)
{
	if (value < STATS_SUB_COUNT)
		return (unsigned)value;
	/* The leading bit picks the power of two, the SUB_BITS behind it the part of it. */
	unsigned shift = 63u - (unsigned)__builtin_clzll(value) - STATS_HISTOGRAM_SUB_BITS;

	return shift * STATS_SUB_COUNT + (unsigned)(value >> shift);
}

/* The largest value of a bucket. */
static uint64_t stats_bucket_last(unsigned bucket)
{
	if (bucket < 2 * STATS_SUB_COUNT)
		return bucket;
	unsigned shift = bucket / STATS_SUB_COUNT - 1;
	uint64_t first = (uint64_t)(bucket % STATS_SUB_COUNT + STATS_SUB_COUNT) << shift;

	return first + ((1ull << shift) - 1);
}

void stats_histogram_init(struct stats_histogram *h)
{
	memset(h, 0, sizeof(*h));
}

void stats_histogram_add(struct stats_histogram *h, uint64_t value)
{
	stats_add(&h->buckets[stats_bucket_of(value)], 1);
	stats_add(&h->sum, value);
	if (value > h->max)
		__atomic_store_n(&h->max, value, __ATOMIC_RELAXED); /* with stats_read() in merge */
}

void stats_histogram_merge(struct stats_histogram *into, const struct stats_histogram *from)
{
	for (unsigned i = 0; i < STATS_HISTOGRAM_BUCKETS; i++)
		stats_add(&into->buckets[i], stats_read(&from->buckets[i]));
	stats_add(&into->sum, stats_read(&from->sum));
	uint64_t max = stats_read(&from->max);
	if (max > into->max)
		__atomic_store_n(&into->max, max, __ATOMIC_RELAXED);
}

uint64_t stats_histogram_count(const struct stats_histogram *h)
{
	uint64_t count = 0;

	for (unsigned i = 0; i < STATS_HISTOGRAM_BUCKETS; i++)
		count += stats_read(&h->buckets[i]);
	return count;
}

double stats_histogram_mean(const struct stats_histogram *h)
{
	uint64_t count = stats_histogram_count(h);

	return count ? (double)stats_read(&h->sum) / (double)count : 0;
}

uint64_t stats_histogram_percentile(const struct stats_histogram *h, double percent)
{
	uint64_t count = stats_histogram_count(h);
	uint64_t max = stats_read(&h->max);
	double wanted = (double)count * percent / 100;
	uint64_t seen = 0;

	for (unsigned i = 0; i < STATS_HISTOGRAM_BUCKETS && count; i++) {
		uint64_t here = stats_read(&h->buckets[i]);

		seen += here;
		if (here && (double)seen >= wanted) {
			uint64_t last = stats_bucket_last(i);
			return last < max ? last : max;
		}
	}
	return count ? max : 0;
}
