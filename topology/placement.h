/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement: which core of the box owns which chunk. Longest-processing-time first by bytes (Graham 1969: the fullest
 * core ends within 4/3 - 1/(3m) of the best possible), from the load that live jobs already put on the cores; equal
 * cores are taken by the least loaded NIC, then by index, so that neighbouring chunks of equal size land on different
 * cores and NICs. Pure and deterministic: the box plans at job creation, `phub topo` prints the same plan.
 */
#ifndef PHUB_TOPOLOGY_PLACEMENT_H
#define PHUB_TOPOLOGY_PLACEMENT_H

#include <stdint.h>

#define PLACEMENT_CORE_COUNT_MAX 1024u
#define PLACEMENT_NIC_COUNT_MAX  64u
#define PLACEMENT_NIC_NONE       (-1)

/* A core of the box and what it carries. */
struct placement_core {
	int cpu;        /* as the kernel numbers it */
	int node;       /* its NUMA node */
	int nic;        /* index of the NIC whose queues it polls, or PLACEMENT_NIC_NONE */
	uint64_t bytes; /* load already there, in chunk bytes of all live jobs */
};

/* How even a load is: mean_bytes <= max_bytes; imbalance is max/mean, 1 when even and 1 when there is no load. */
struct placement_balance {
	uint64_t bytes_min;
	uint64_t bytes_max;
	double bytes_mean;
	double imbalance;
};

/* Give each chunk a core: core_of_chunk[i] is an index into `cores`. On success cores[].bytes includes the new chunks;
 * on failure nothing is written. Any thread; allocates 8 bytes a chunk, does not block. O(n log n).
 * Returns 0, -EINVAL (no cores, or more than PLACEMENT_CORE_COUNT_MAX), -EOVERFLOW (loads sum beyond 64 bits) or
 * -ENOMEM. */
int placement_lpt(const uint32_t *chunk_bytes, uint32_t chunk_count, struct placement_core *cores, unsigned core_count,
	uint16_t *core_of_chunk);

/* Chunks go to the cores that another box chose: counts them. Any thread. 0, or -ERANGE (names a core that is not
 * there) or -EOVERFLOW, and nothing is changed. */
int placement_load(const uint32_t *chunk_bytes, uint32_t chunk_count, struct placement_core *cores, unsigned core_count,
	const uint16_t *core_of_chunk);

/* Take a job's chunks off the cores again; the counterpart of both when the job ends. Any thread. */
void placement_unload(const uint32_t *chunk_bytes, uint32_t chunk_count, struct placement_core *cores,
	unsigned core_count, const uint16_t *core_of_chunk);

/* How evenly the bytes lie on the cores. Any thread. With 0 cores all fields are 0 and imbalance is 1. */
struct placement_balance placement_core_balance(const struct placement_core *cores, unsigned core_count);

/* The same over the NICs that occur in `cores` (PLACEMENT_NIC_NONE counts as one). Any thread. */
struct placement_balance placement_nic_balance(const struct placement_core *cores, unsigned core_count);

/* Say which NIC each core polls: of those on its own NUMA node the one with the fewest cores for its rate so far,
 * lowest index first; on a node without NICs, of all of them. nic_node[i] is the node of NIC i, -1 when unknown (any
 * node's core counts as near); nic_rate[i] is in whatever unit, above 0; NULL: all have the same. With 0 NICs every
 * core gets PLACEMENT_NIC_NONE. Returns 0, or -EINVAL and writes nothing when there are more than
 * PLACEMENT_NIC_COUNT_MAX. Any thread. */
int placement_assign_nics(struct placement_core *cores, unsigned core_count, const int *nic_node,
	const uint32_t *nic_rate, unsigned nic_count);

#endif
