/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub bench aggregation, what its parts share: the arrays, the ways of going over them, and threads that do it.
 * sweep.c takes memory and checks results; sweep_turn.c goes once over everything, on all cores; the options and the
 * numbers are in bench_aggregation.c.
 *
 * A turn adds the gradients of all workers and, with an optimizer, takes one step. Gradients stay the same; weights and
 * state go on from turn to turn, whatever the way: all ways have the same bits.
 */
#ifndef PHUB_CLI_SWEEP_H
#define PHUB_CLI_SWEEP_H

#include <stdbool.h>
#include <stdint.h>

#include "aggregation/kernels.h"
#include "aggregation/kernels_roofline.h"
#include "phub/base/cpu.h"
#include "phub/base/err.h"
#include "phub/base/mem.h"
#include "topology/chunking.h"
#include "topology/model.h"

enum { SWEEP_WORKERS_MAX = 64, SWEEP_CORES_MAX = 256 };

/* Tall: each core has chunks of its own. Wide: all cores share each key, and wait for each other behind it. */
enum sweep_how { SWEEP_TALL, SWEEP_WIDE };
/* Held: one pass over all gradients, as from shared memory. Arriving: one gradient after the other, as from sockets. */
enum sweep_adds { SWEEP_HELD, SWEEP_ARRIVING };
/* Fused: the optimizer takes the sum out of registers. Separate: the sums of all keys go to memory first. */
enum sweep_pass { SWEEP_FUSED, SWEEP_SEPARATE };
/* How what comes out is written: through the caches, or past them: sums by the kernels' own streamed stores, weights
 * and state, which the kernels rewrite in place, by copying them out. */
enum sweep_stores { SWEEP_CACHED, SWEEP_STREAMED };

struct sweep_way {
	enum sweep_how how;
	enum sweep_adds adds;
	enum sweep_pass pass;
	enum sweep_stores stores;
};

struct sweep {
	/* set by the caller */
	const struct model *model; /* f32 */
	const struct kernels *kernels;
	enum optimizer_kind optimizer;
	unsigned workers, cores;
	uint32_t chunk_bytes;
	bool plant;           /* the next turn does one chunk twice: the check must see it */
	struct cpu_list cpus; /* cpus.cpu[core] is where it runs; empty: all that this process may use */
	/* set by sweep_init() */
	struct chunk_plan plan; /* chunks and keys, and where they begin */
	uint16_t *core_of;      /* [plan.chunk_count] as the box places them */
	uint64_t *key_elements; /* [plan.key_count] */
	struct optimizer_hyper hyper;
	const struct roofline_copy *stream; /* NULL: this machine has no such stores */
	struct mem_region memory;
	float *source[SWEEP_WORKERS_MAX];
	float *weight; /* without an optimizer: the sums */
	float *state[OPTIMIZER_STATE_MAX];
	float *sum; /* of what has arrived, or of the first of two passes */
	float *expected_weight, *expected_state[OPTIMIZER_STATE_MAX];
	uint64_t steps, checked_steps; /* taken; taken by the expected ones */
};

/* What one turn took. */
struct sweep_took {
	uint64_t wall_ns; /* from the first core's begin to the last core's end */
	uint64_t cpu_ns;  /* of all cores, waiting included */
	uint64_t waits;   /* how often all cores waited for each other */
};

/* Takes memory and fills it. 0, or a negative errno with the reason in `e`; then sweep_fini() is the caller's still. */
int sweep_init(struct sweep *s, struct err *e);
void sweep_fini(struct sweep *s);

/* One turn, on `cores` pinned threads of its own. Blocks until it is over. 0, or a negative errno with `e`. */
int sweep_turn(struct sweep *s, const struct sweep_way *way, struct sweep_took *took, struct err *e);

/* Before a turn whose results are checked: what is not written will be seen. */
void sweep_poison(struct sweep *s);

/* Replays the steps since the last check serially, with the kernels' specification, and compares every bit. Returns how
 * many elements differ; *first receives the key of the first. */
uint64_t sweep_check(struct sweep *s, const char **first);

/* ---- arithmetic on elements first.. of the region, by any thread; no two at the same elements ---- */

/* All of a fused turn with held gradients, or one gradient's part of an arriving one (`worker`), or the step alone. */
void sweep_held(const struct sweep *s, const struct sweep_way *way, const struct optimizer_coef *coef, uint64_t first,
	uint64_t count);
void sweep_arrival(const struct sweep *s, const struct sweep_way *way, const struct optimizer_coef *coef,
	unsigned worker, uint64_t first, uint64_t count);
void sweep_step(const struct sweep *s, const struct optimizer_coef *coef, uint64_t first, uint64_t count);

#endif
