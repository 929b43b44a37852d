/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job's memory at the box: one result region that all transports send from (and shared memory maps), and per core
 * a private region with accumulators, weights, state and the shard's tables, on that core's NUMA node. All of it is
 * taken here, when the job starts; nothing is taken later. Control thread; may block.
 */
#ifndef PHUB_STORE_H
#define PHUB_STORE_H

#include <stdint.h>

#include "phub/base/err.h"
#include "phub/base/mem.h"
#include "phub/chunk.h"
#include "phub/spec.h"

struct store {
	struct mem_region result;
	struct mem_region *privates; /* [core_count] */
	struct mem_region *ways;     /* [core_count] spec.rehomes: what follows from where chunks have their homes */
	struct shard **shards;       /* [core_count]; NULL where the core owns no chunk */
	unsigned core_count;
	uint64_t bytes;
};

/*
 * Which results may go past the caches, where workers map them (phub/chunk.c): those of rounds that are more than the
 * core's cache; or, to measure one against the other, none or all.
 */
enum store_results { STORE_RESULTS_AUTO, STORE_RESULTS_CACHED, STORE_RESULTS_STREAMED };

struct store_config {
	const struct kernels *kernels;
	struct mailbox *control;
	const int *core_node; /* [core_count] NUMA node of each core, -1: any */
	bool shared;          /* the result region is a memfd that workers may map */
	bool huge;            /* try huge pages */
	enum store_results results;
};

/* How many bytes store_create() will take: for admission. UINT64_MAX when it does not fit 64 bits. */
uint64_t store_bytes(const struct spec *spec);

/*
 * Takes and lays out everything; shards point into it. spec outlives the store. 0, or -ENOMEM and such with the reason
 * in `e`. What it took is released by store_destroy(), after all shards came back from their cores.
 */
int store_create(const struct spec *spec, const struct store_config *config, struct store *out, struct err *e);
void store_destroy(struct store *store);

/* spec.rehomes: what store_ways_create() will take for this core with these ways. */
uint64_t store_ways_bytes(const struct spec *spec, const uint16_t *ways, unsigned core);
/* Takes and lays out a struct rehome, at the beginning of `out`, of the shard that this core has. 0, or as
 * store_create(). */
int store_ways_create(const struct spec *spec, const uint16_t *ways, const struct store_config *config, unsigned core,
	struct shard *shard, struct mem_region *out, struct err *e);

/* Where the results of `rank` begin in the result region. */
uint64_t store_result_offset(const struct spec *spec, uint32_t rank);

#endif
