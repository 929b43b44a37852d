/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan: how many exchanges a second a box can do, on paper. Each resource has a capacity and a demand for every
 * gradient byte that reaches the box; what takes longest for one exchange limits. Pure arithmetic on what the caller
 * found out or was told; `phub plan` calls it, and prints plan_formulae[] as its help. What CPUs cost comes from
 * plan_costs.h.
 */
#ifndef TOPOLOGY_PLAN_H
#define TOPOLOGY_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "topology/plan_costs.h"

#define PLAN_FRAME_BYTES  38u /* Ethernet's, around a packet: header 14, checksum 4, preamble 8, gap 12 */
#define PLAN_HEADER_BYTES 64u /* PHub's, in front of every chunk */
#define PLAN_MTU_MIN      576u
#define PLAN_MTU_MAX      65535u
#define PLAN_LINE_BYTES   64u /* of a cache line */

struct plan_input {
	enum plan_transport transport;
	unsigned workers;
	uint64_t bytes;       /* of a worker's gradient, as on the wire */
	uint64_t keys;        /* tensors */
	uint64_t chunk_bytes; /* of a full chunk */
	uint64_t chunks;      /* of a worker's gradient, as chunking_size() counts; 0: as few as can be */
	unsigned wire_bytes;  /* of an element on the wire: 4, or 2 for f16 and bf16; sums and state have 4 */
	bool optimizer;       /* else the box is an all-reduce */
	unsigned state_count; /* fp32 arrays of the optimizer, beside the weights */

	unsigned nics;              /* of the box; 0: shm, or workers that reach it over loopback */
	double link_bytes_s;        /* of one of the box's NICs, each way, frames included */
	double worker_link_bytes_s; /* of a worker's NIC */
	unsigned mtu, frame_bytes;
	unsigned pcie_gen, pcie_lanes; /* of each NIC; generation 0: not known, no limit */
	double cache_lines_s;  /* that the box's PCIe-to-cache controllers move, both ways together; 0: no limit */
	double memory_bytes_s; /* of the box; 0: no limit */
	uint64_t cache_bytes;  /* of a core's second-level cache, to tell whether results go past it; 0: they do not */
	unsigned cores;        /* that poll */
	unsigned cpus_here;    /* that box and all workers share; 0: workers have machines of their own */
	double latency_s;      /* of one message to the box and its answer, without load */
	double compute_s;      /* of a worker, per exchange; 0: not told */

	struct plan_kernel kernel;
	struct plan_costs costs;
};

enum plan_resource_kind {
	PLAN_BOX_LINKS,
	PLAN_WORKER_LINKS,
	PLAN_PCIE,
	PLAN_CACHE_LINES,
	PLAN_MEMORY,
	PLAN_CORES,
	PLAN_WORKER_CPU,
	PLAN_SHARED_CPUS,
	PLAN_RESOURCE_COUNT,
};

/* What is missing from a plan (a NIC in shared memory, a rate that nobody told) has `used` false and takes no time. */
struct plan_resource {
	bool used;
	double capacity;   /* units a second: bytes; cache lines; CPU seconds. Of the NICs and cores that get chunks */
	double demand;     /* units for each gradient byte of all workers */
	double exchange_s; /* that one exchange of all workers keeps it busy */
};

struct plan_result {
	struct plan_resource resources[PLAN_RESOURCE_COUNT];
	enum plan_resource_kind limit;
	int second; /* the one that limits when `limit` is no longer there; -1: none */
	uint64_t chunks;
	double wire_efficiency;   /* gradient bytes for each byte that a link moves; 1 without links */
	double fill_s;            /* that a chunk takes to pass what does not limit, latency included */
	double exchange_s;        /* of the limit, and fill_s */
	double worker_bytes_s;    /* of each worker, up, and as much down */
	double ring_s;            /* that a ring all-reduce takes on the workers' links alone; 0: there are none */
	double iteration_best_s;  /* computation hides the exchange, or the other way round; 0 without compute_s */
	double iteration_worst_s; /* one after the other */
};

struct plan_formula {
	const char *symbol, *text;
};

/* One line each, NULL-ended; for help texts. */
extern const struct plan_formula plan_formulae[];

const char *plan_resource_name(enum plan_resource_kind kind);

/* What would be bought more of: "cores of the box". */
const char *plan_resource_remedy(enum plan_resource_kind kind);

/* Gradient bytes for each byte on the wire: 1 for shm; a payload's share of its packet and of the 64 bytes in front of
 * a message. 0 when the MTU leaves no room for a payload. */
double plan_wire_efficiency(enum plan_transport transport, unsigned mtu, unsigned frame_bytes, double message_bytes);

/* Bytes a second each way of a slot, encoding taken off and transactions not. 0: no such generation (1 to 6). */
double plan_pcie_bytes_s(unsigned generation, unsigned lanes);

/* Bytes over the slot for each byte of payload: headers of a transaction of 256 bytes. */
double plan_pcie_overhead(void);

/* Chunks, that is messages each way, of a worker's gradient. */
uint64_t plan_chunks(const struct plan_input *in);

/* Do results go past the caches, so that their lines are not read first? See commit_stores() in phub/commit.c. */
bool plan_streams(const struct plan_input *in);

/* Bytes that the box moves to and from DRAM for each gradient byte that reaches it. Of workers on the box nothing. */
double plan_memory_demand(const struct plan_input *in);

/* CPU seconds of the box, and of all workers, for each gradient byte. */
double plan_box_demand(const struct plan_input *in);
double plan_worker_demand(const struct plan_input *in);

/* Fills *out. 0, or -EINVAL with *e naming the number that cannot be: no workers, no bytes, no cores, a rate that is
 * not above 0 where the transport needs one. On failure *out is untouched. Any thread. */
int plan_make(const struct plan_input *in, struct plan_result *out, struct err *e);

#endif
