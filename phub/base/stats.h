/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers that one thread writes while others read them: counters, and histograms of latencies. Writing costs a plain
 * load and store; a reader may see a counter before another that was written first. Never blocks.
 */
#ifndef PHUB_BASE_STATS_H
#define PHUB_BASE_STATS_H

#include <stdint.h>

/*
 * The counter's one writer. Relaxed, paired with stats_read(): no torn value is ever read, nothing else is ordered. Not
 * an atomic addition, which would lock the line for a contention that does not exist.
 */
static inline void stats_add(uint64_t *counter, uint64_t amount)
{
	__atomic_store_n(counter, *counter + amount, __ATOMIC_RELAXED);
}

/* The same for a value that does not only grow. */
static inline void stats_set(uint64_t *value, uint64_t to)
{
	__atomic_store_n(value, to, __ATOMIC_RELAXED);
}

/* Any thread. */
static inline uint64_t stats_read(const uint64_t *counter)
{
	return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

/*
 * Log-linear, as HdrHistogram has it: below 64 every value has its bucket, above that every power of two is cut into
 * 32, so a bucket is at most 1/32 of its values wide. All of 64 bits, 15 KiB, no allocation.
 */
#define STATS_HISTOGRAM_SUB_BITS 5
#define STATS_HISTOGRAM_BUCKETS  ((64 - STATS_HISTOGRAM_SUB_BITS + 1) << STATS_HISTOGRAM_SUB_BITS)

struct stats_histogram {
	uint64_t buckets[STATS_HISTOGRAM_BUCKETS];
	uint64_t sum; /* wraps */
	uint64_t max;
};

/* The histogram's one writer. */
void stats_histogram_init(struct stats_histogram *h);
void stats_histogram_add(struct stats_histogram *h, uint64_t value);

/*
 * Adds `from`, which may be written meanwhile: a value that comes just then is in the sum or in the buckets or in both.
 * `into` belongs to the caller.
 */
void stats_histogram_merge(struct stats_histogram *into, const struct stats_histogram *from);

/* Any thread; best on a merged copy, where these agree with each other. */
uint64_t stats_histogram_count(const struct stats_histogram *h);
double stats_histogram_mean(const struct stats_histogram *h); /* 0 when empty */

/*
 * A value that `percent` of all values (0..100) do not exceed, too high by at most 1/32 and never above the maximum; 0
 * when empty. 0 asks for the smallest value, 100 for the largest, which is exact.
 */
uint64_t stats_histogram_percentile(const struct stats_histogram *h, double percent);

#endif
