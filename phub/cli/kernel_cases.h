/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels that `phub bench kernels` measures: what each reads and writes, and one call of it on a chunk.
 */
#ifndef PHUB_CLI_KERNEL_CASES_H
#define PHUB_CLI_KERNEL_CASES_H

#include <stdbool.h>
#include <stddef.h>

#include "aggregation/kernels.h"

enum { KERNEL_SOURCES_MAX = 64, KERNEL_ARRAYS_MAX = KERNEL_SOURCES_MAX + 1 + OPTIMIZER_STATE_MAX };

enum kernel_op { KERNEL_SUM, KERNEL_STEP, KERNEL_STORE, KERNEL_ADD, KERNEL_SCAN, KERNEL_ZERO };

struct kernel_case {
	const char *name;
	enum kernel_op op;
	enum dtype dtype; /* of sources and result */
	enum optimizer_kind optimizer;
	bool one_source; /* takes a single gradient, whatever the number of workers */
	bool quick;      /* one of those that stand for the others */
};

/* NULL-named at its end. */
extern const struct kernel_case kernel_cases[];

/* How many arrays it rewrites in place (weights, state, accumulator), and writes only. */
unsigned kernel_case_inout(const struct kernel_case *c);
unsigned kernel_case_out(const struct kernel_case *c);

/* How many times the bytes of a source an array has: sums, weights and state are fp32 whatever the sources are. */
unsigned kernel_case_width(const struct kernel_case *c, unsigned sources, unsigned array);

/* Can its result be streamed past the caches? Not what is rewritten in place, and not a sum that is added to next. */
bool kernel_case_streams(const struct kernel_case *c);

/* One chunk: arrays[] are the sources, then those rewritten, then those written. */
void kernel_case_call(const struct kernel_case *c, const struct kernels *kernels, enum stores stores, unsigned sources,
	void *const *arrays, size_t bytes);

#endif
