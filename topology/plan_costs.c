/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines through measured points, and the costs that this project has measured.
 */
#include "topology/plan_costs.h"

#include <errno.h>
#include <math.h>

#define COSTS_FP32_BYTES 4.0 /* sums, weights and state are fp32, whatever the wire has */

static const char *const costs_transports[PLAN_TRANSPORT_COUNT] = {"shm", "tcp", "udp", "verbs", "dpdk"};

const char *plan_transport_name(enum plan_transport transport)
{
	return costs_transports[transport];
}

double plan_once_bytes(unsigned wire_bytes, bool optimizer, unsigned state_count, bool streamed)
{
	double wide = COSTS_FP32_BYTES / wire_bytes;
	double result = streamed ? 1 : 2; /* through the caches it is first read for ownership */

	/* fp32 weights are the result; others have one beside. */
	if (!optimizer)
		return result;
	return 2 * wide * (1 + state_count) + (wire_bytes == COSTS_FP32_BYTES ? 0 : result);
}

int plan_kernel_fit(const struct plan_kernel_point *points, size_t count, double once_bytes, struct plan_kernel *out)
{
	double x_sum = 0, y_sum = 0, spread = 0, slope = 0;

	if (count == 0)
		return -EINVAL;
	for (size_t i = 0; i < count; i++) {
		if (points[i].workers == 0 || !(points[i].gb_s > 0) || !isfinite(points[i].gb_s))
			return -EINVAL;
		x_sum += 1.0 / points[i].workers;
		y_sum += 1 / points[i].gb_s;
	}
	for (size_t i = 0; i < count; i++) {
		double x = 1.0 / points[i].workers - x_sum / (double)count;

		spread += x * x;
		slope += x * (1 / points[i].gb_s - y_sum / (double)count);
	}
	if (spread > 1e-12) {
		slope /= spread;
		slope = slope > 0 ? slope : 0;
		/* More of it than there is time would make arrivals cost less than nothing. */
		slope = slope < y_sum / x_sum ? slope : y_sum / x_sum;
		*out = (struct plan_kernel){.arrival_ns = (y_sum - slope * x_sum) / (double)count, .once_ns = slope};
	} else {
		double arrival = y_sum / ((double)count + once_bytes * x_sum);

		*out = (struct plan_kernel){.arrival_ns = arrival, .once_ns = once_bytes * arrival};
	}
	return 0;
}

double plan_kernel_ns(const struct plan_kernel *kernel, unsigned workers)
{
	return kernel->arrival_ns + kernel->once_ns / workers;
}

double plan_side_ns(const struct plan_side *side, uint64_t bytes, uint64_t keys, uint64_t chunks)
{
	return side->byte_ns +
	       (side->round_ns + side->key_ns * (double)keys + side->message_ns * (double)chunks) / (double)bytes;
}

static double costs_or_zero(double value)
{
	return value > 0 ? value : 0;
}

/* ns per gradient byte that the points show on one side, with the kernel's own already taken off. */
struct costs_seen {
	double large, fine, keyed, tiny;
};

static void costs_fit_side(const struct plan_cost_points *p, struct costs_seen seen, struct plan_side *side)
{
	double large = 1.0 / (double)p->large.chunk_bytes, fine = 1.0 / (double)p->fine.chunk_bytes;
	double tiny_bytes = (double)p->tiny.bytes;

	*side = (struct plan_side){.message_ns = costs_or_zero((seen.fine - seen.large) / (fine - large))};
	side->byte_ns = seen.large - side->message_ns * large;
	if (side->byte_ns < 0) {
		/* The small chunks cost so much that nothing is left for bytes: the usual ones are believed. */
		side->byte_ns = 0;
		side->message_ns = costs_or_zero(seen.large / large);
	}
	side->key_ns = costs_or_zero(
		(seen.keyed - seen.large) * (double)p->keyed.bytes / (double)(p->keyed.keys - p->large.keys));
	side->round_ns = costs_or_zero(
		(seen.tiny - side->byte_ns) * tiny_bytes - side->message_ns - side->key_ns * (double)p->tiny.keys);
}

int plan_costs_fit(const struct plan_cost_points *p, const struct plan_kernel *kernel, struct plan_costs *out)
{
	double kernel_ns;

	if (p->large.workers == 0 || p->large.bytes == 0 || p->tiny.bytes == 0 || p->fine.chunk_bytes == 0 ||
		p->fine.chunk_bytes >= p->large.chunk_bytes || p->keyed.keys <= p->large.keys)
		return -EINVAL;
	kernel_ns = plan_kernel_ns(kernel, p->large.workers);
	costs_fit_side(p,
		(struct costs_seen){.large = p->large.box_ns - kernel_ns,
			.fine = p->fine.box_ns - kernel_ns,
			.keyed = p->large.box_ns - kernel_ns,
			.tiny = p->tiny.box_ns - kernel_ns},
		&out->box);
	costs_fit_side(p,
		(struct costs_seen){.large = p->large.worker_ns,
			.fine = p->fine.worker_ns,
			.keyed = p->keyed.worker_ns,
			.tiny = p->tiny.worker_ns},
		&out->worker);
	return 0;
}

/* ---- what was measured ---- */

const char plan_costs_machine[] = "2 CPUs of a virtual machine (Intel Xeon, Emerald Rapids)";

/* phub plan --calibrate, rounded: of the machine above. Anew when a transport changes. */
bool plan_costs_default(enum plan_transport transport, struct plan_costs *out)
{
	static const struct plan_costs measured[] = {
		[PLAN_SHM] = {.box = {.round_ns = 250, .message_ns = 270, .byte_ns = 0.002},
			.worker = {.round_ns = 1900, .key_ns = 380, .message_ns = 240}},
		[PLAN_TCP] = {.box = {.round_ns = 1900, .message_ns = 590, .byte_ns = 0.30},
			.worker = {.round_ns = 5200, .message_ns = 2300, .byte_ns = 0.41}},
	};

	*out = (struct plan_costs){.box = {.round_ns = 0}};
	if (transport > PLAN_TCP)
		return false;
	*out = measured[transport];
	return true;
}
