/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub plan: measures this machine: rates of kernels, bandwidth of memory, and what exchanges cost its CPUs.
 */
#ifndef PHUB_CLI_PLAN_MEASURE_H
#define PHUB_CLI_PLAN_MEASURE_H

#include <stdbool.h>

#include "aggregation/kernels_roofline.h"
#include "phub/cli/plan_facts.h"
#include "topology/host.h"

enum { PLAN_COPY_SOURCES = 4 };

struct plan_measure {
	const struct host *host;
	const char *phubd; /* NULL: as phub bench exchange finds it */
	unsigned runs;     /* of each exchange; medians count */
	bool quick;        /* a sixteenth of the bytes, and one look at each kernel: for a first impression */
};

/* Name and CPUs of this machine. */
void plan_measure_machine(const struct plan_measure *m, struct plan_facts *f);

/* Adds the cold rates of the kernels that a job of this kind runs; of all kernels when optimizer is OPTIMIZER_COUNT.
 * About half a second each. 0 or a negative errno. */
int plan_measure_kernels(
	const struct plan_measure *m, unsigned optimizer, uint8_t dtype, struct plan_facts *f, struct err *e);

/* One pass of a copy over arrays of so many bytes, a multiple of 32 KiB, one behind the other at `base`: reads
 * PLAN_COPY_SOURCES of them and writes the next. Returns the bytes to and from memory: what goes through the caches has
 * its line read before it is written, what is streamed has not. */
uint64_t plan_measure_copy(const struct roofline_copy *copy, unsigned char *base, size_t array_bytes);

/* Fills f->memory_gb_s with what the fastest copy moves on all CPUs at once. */
int plan_measure_memory(const struct plan_measure *m, struct plan_facts *f, struct err *e);

/* Fills the costs of a transport from four exchanges on this machine. The kernels of an all-reduce must be in f. */
int plan_measure_exchanges(
	const struct plan_measure *m, enum plan_transport transport, struct plan_facts *f, struct err *e);

#endif
