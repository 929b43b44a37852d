/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub plan: what is known of a machine's speed, from measuring it here or from files of JSON lines that `phub plan
 * --calibrate` and `phub bench kernels --json` print.
 */
#ifndef PHUB_CLI_PLAN_FACTS_H
#define PHUB_CLI_PLAN_FACTS_H

#include "aggregation/optimizer.h"
#include "phub/base/err.h"
#include "topology/plan_costs.h"

enum { PLAN_KERNELS_MAX = 1024, PLAN_MACHINE_BYTES = 96 };

struct plan_kernel_fact {
	char name[32]; /* as phub bench kernels has it */
	struct plan_kernel_point point;
};

struct plan_facts {
	char machine[PLAN_MACHINE_BYTES]; /* "" when no file said it */
	double memory_gb_s;               /* 0: not known */
	struct plan_kernel_fact kernels[PLAN_KERNELS_MAX];
	unsigned kernel_count;
	bool has_costs[PLAN_TRANSPORT_COUNT];
	struct plan_costs costs[PLAN_TRANSPORT_COUNT];
};

/* What a kernel is called by optimizer and type on the wire. f16 and bf16 have sums of their own; their steps are
 * f32's. */
const char *plan_facts_sum_name(uint8_t dtype);
const char *plan_facts_step_name(enum optimizer_kind optimizer);

/* Adds the lines of a file; what was there of the same kind is replaced. 0, or a negative errno with file and line in
 * *e. */
int plan_facts_read(const char *path, struct plan_facts *f, struct err *e);

/* Adds one rate; the fastest of one kernel and number of workers stays. -ENOSPC when there are too many. */
int plan_facts_add_kernel(struct plan_facts *f, const char *name, unsigned workers, double gb_s);

/* The kernel that a job of this kind runs. -ENOENT with *e when a rate that it needs is not there. */
int plan_facts_kernel(const struct plan_facts *f, enum optimizer_kind optimizer, uint8_t dtype, struct plan_kernel *out,
	struct err *e);

/* All of it as JSON lines, on stdout. */
bool plan_facts_print(const struct plan_facts *f);

#endif
