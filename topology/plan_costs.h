/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan's CPU costs: what an exchange costs the box's cores and the workers' CPUs, as lines through measured points.
 * Pure arithmetic: `phub plan` measures or reads the points.
 */
#ifndef TOPOLOGY_PLAN_COSTS_H
#define TOPOLOGY_PLAN_COSTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum plan_transport { PLAN_SHM, PLAN_TCP, PLAN_UDP, PLAN_VERBS, PLAN_DPDK, PLAN_TRANSPORT_COUNT };

/* A pass that sums N gradients and steps costs arrival_ns + once_ns / N for each of their bytes: `once` is what happens
 * once per parameter, whatever the number of workers. */
struct plan_kernel {
	double arrival_ns, once_ns;
};

/* CPU of one side, sums not included. */
struct plan_side {
	double round_ns;   /* per worker and exchange */
	double key_ns;     /* per worker, exchange and key; of workers alone, the box knows chunks only */
	double message_ns; /* per chunk of a worker: its push, and the result that answers it */
	double byte_ns;    /* per gradient byte: it comes in, and a result byte goes out */
};

struct plan_costs {
	struct plan_side box, worker;
};

/* Rate of a kernel with so many workers, in gradient bytes a nanosecond, which is GB/s. */
struct plan_kernel_point {
	unsigned workers;
	double gb_s;
};

/* CPU nanoseconds per gradient byte of one measured exchange. */
struct plan_cost_point {
	unsigned workers;
	uint64_t bytes, keys, chunk_bytes;
	double box_ns, worker_ns;
};

/* The four exchanges that tell the costs of a transport, with the same number of workers. */
struct plan_cost_points {
	struct plan_cost_point large; /* many bytes in one key, usual chunks */
	struct plan_cost_point fine;  /* the same in smaller chunks */
	struct plan_cost_point keyed; /* as large, in many keys */
	struct plan_cost_point tiny;  /* one chunk */
};

/* The line through the points by least squares, in 1 / workers. One point alone, or several of one number of workers,
 * is split by memory traffic: once_bytes read and written per parameter byte, against one read per arrival. Returns 0,
 * or -EINVAL for no points, no workers or a rate that is not above 0. */
int plan_kernel_fit(const struct plan_kernel_point *points, size_t count, double once_bytes, struct plan_kernel *out);

double plan_kernel_ns(const struct plan_kernel *kernel, unsigned workers);

/* The costs that give the four points their times, none below 0: message from large and fine, key from large and keyed,
 * byte from large, round from tiny. -EINVAL when the points are not of such kinds (equal chunks, equal keys). */
int plan_costs_fit(const struct plan_cost_points *points, const struct plan_kernel *kernel, struct plan_costs *out);

/* Bytes read and written once per parameter byte of the wire, by a pass that sums and steps: see plan.h. `streamed`: a
 * result that is no fp32 weight is written past the caches. */
double plan_once_bytes(unsigned wire_bytes, bool optimizer, unsigned state_count, bool streamed);

/* ns per gradient byte on one side, without the kernel. */
double plan_side_ns(const struct plan_side *side, uint64_t bytes, uint64_t keys, uint64_t chunks);

/* "shm", "tcp", ... */
const char *plan_transport_name(enum plan_transport transport);

/* Costs that were measured on the machine that plan_costs_machine names, for want of others: false when nobody has
 * measured this transport. */
extern const char plan_costs_machine[];
bool plan_costs_default(enum plan_transport transport, struct plan_costs *out);

#endif
