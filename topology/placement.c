/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement: chunks sorted by bytes, and one heap of cores per NIC. NICs are few, so the least loaded core is found by
 * looking at the tops of all heaps; that keeps the NIC's own load a tie-breaker without touching every core of the NIC
 * when it grows.
 */
#include "topology/placement.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

/* The cores of one NIC, as a heap of indexes into `cores`: fewest bytes on top, the lower index where equal. */
struct placement_lane {
	int nic;
	uint64_t bytes; /* of all its cores */
	uint16_t *heap;
	unsigned heap_count;
};

/* Working copy: nothing of the caller's is written before the plan stands. */
struct placement_state {
	uint64_t core_bytes[PLACEMENT_CORE_COUNT_MAX];
	uint16_t heap_slots[PLACEMENT_CORE_COUNT_MAX];
	struct placement_lane lanes[PLACEMENT_CORE_COUNT_MAX];
	unsigned lane_count;
};

static bool placement_less(const struct placement_state *state, uint16_t a, uint16_t b)
{
	if (state->core_bytes[a] != state->core_bytes[b])
		return state->core_bytes[a] < state->core_bytes[b];
	return a < b;
}

static void placement_sift_down(const struct placement_state *state, struct placement_lane *lane, unsigned at)
{
	for (;;) {
		unsigned child = 2 * at + 1;

		if (child >= lane->heap_count)
			return;
		if (child + 1 < lane->heap_count && placement_less(state, lane->heap[child + 1], lane->heap[child]))
			child++;
		if (!placement_less(state, lane->heap[child], lane->heap[at]))
			return;

		uint16_t moved = lane->heap[at];
		lane->heap[at] = lane->heap[child];
		lane->heap[child] = moved;
		at = child;
	}
}

static bool placement_nic_seen(const struct placement_core *cores, unsigned count, int nic)
{
	for (unsigned i = 0; i < count; i++) {
		if (cores[i].nic == nic)
			return true;
	}
	return false;
}

/* Group the cores by NIC, in the order in which the NICs first occur. */
static void placement_state_init(struct placement_state *state, const struct placement_core *cores, unsigned core_count)
{
	unsigned slot = 0;

	state->lane_count = 0;
	for (unsigned i = 0; i < core_count; i++)
		state->core_bytes[i] = cores[i].bytes;
	for (unsigned first = 0; first < core_count; first++) {
		if (placement_nic_seen(cores, first, cores[first].nic))
			continue;

		struct placement_lane *lane = &state->lanes[state->lane_count++];
		*lane = (struct placement_lane){.nic = cores[first].nic, .heap = &state->heap_slots[slot]};
		for (unsigned i = first; i < core_count; i++) {
			if (cores[i].nic != lane->nic)
				continue;
			lane->heap[lane->heap_count++] = (uint16_t)i;
			lane->bytes += cores[i].bytes;
		}
		slot += lane->heap_count;
		for (unsigned at = lane->heap_count / 2; at-- > 0;)
			placement_sift_down(state, lane, at);
	}
}

/* Give the least loaded core, of the least loaded NIC where cores are equal, `bytes` more, and say which one it is. */
static uint16_t placement_take(struct placement_state *state, uint32_t bytes)
{
	struct placement_lane *best = &state->lanes[0];

	for (unsigned i = 1; i < state->lane_count; i++) {
		struct placement_lane *lane = &state->lanes[i];
		uint64_t top = state->core_bytes[lane->heap[0]];
		uint64_t best_top = state->core_bytes[best->heap[0]];

		if (top < best_top || (top == best_top && lane->bytes < best->bytes))
			best = lane;
	}

	uint16_t core = best->heap[0];
	state->core_bytes[core] += bytes;
	best->bytes += bytes;
	placement_sift_down(state, best, 0);
	return core;
}

static int placement_compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a;
	uint64_t y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Sort keys: largest chunk first, then in the order of the table. They are unique, so any sort gives one order. */
static uint64_t *placement_order_create(const uint32_t *chunk_bytes, uint32_t chunk_count)
{
	uint64_t *order = calloc(chunk_count, sizeof(*order));
	bool sorted = true;

	if (!order)
		return NULL;
	for (uint32_t i = 0; i < chunk_count; i++) {
		order[i] = (uint64_t)(UINT32_MAX - chunk_bytes[i]) << 32 | i;
		sorted = sorted && (i == 0 || order[i - 1] < order[i]);
	}
	if (!sorted)
		qsort(order, chunk_count, sizeof(*order), placement_compare_u64);
	return order;
}

static int placement_check_loads(
	const uint32_t *chunk_bytes, uint32_t chunk_count, const struct placement_core *cores, unsigned core_count)
{
	uint64_t total = 0;

	for (unsigned i = 0; i < core_count; i++) {
		if (cores[i].bytes > UINT64_MAX - total)
			return -EOVERFLOW;
		total += cores[i].bytes;
	}
	for (uint32_t i = 0; i < chunk_count; i++) {
		if (chunk_bytes[i] > UINT64_MAX - total)
			return -EOVERFLOW;
		total += chunk_bytes[i];
	}
	return 0;
}

int placement_lpt(const uint32_t *chunk_bytes, uint32_t chunk_count, struct placement_core *cores, unsigned core_count,
	uint16_t *core_of_chunk)
{
	if (core_count == 0 || core_count > PLACEMENT_CORE_COUNT_MAX)
		return -EINVAL;
	int rc = placement_check_loads(chunk_bytes, chunk_count, cores, core_count);
	if (rc < 0 || chunk_count == 0)
		return rc;

	struct placement_state *state = malloc(sizeof(*state));
	uint64_t *order = placement_order_create(chunk_bytes, chunk_count);
	if (!state || !order) {
		rc = -ENOMEM;
		goto free_order;
	}
	placement_state_init(state, cores, core_count);
	for (uint32_t i = 0; i < chunk_count; i++) {
		uint32_t chunk = (uint32_t)order[i];

		core_of_chunk[chunk] = placement_take(state, chunk_bytes[chunk]);
	}
	for (unsigned i = 0; i < core_count; i++)
		cores[i].bytes = state->core_bytes[i];
free_order:
	free(order);
	free(state);
	return rc;
}

int placement_load(const uint32_t *chunk_bytes, uint32_t chunk_count, struct placement_core *cores, unsigned core_count,
	const uint16_t *core_of_chunk)
{
	uint64_t sum = 0, most = 0;

	for (uint32_t i = 0; i < chunk_count; i++) {
		if (core_of_chunk[i] >= core_count)
			return -ERANGE;
		sum += chunk_bytes[i]; /* 2^32 times 2^32 at most */
	}
	for (unsigned core = 0; core < core_count; core++)
		most = cores[core].bytes > most ? cores[core].bytes : most;
	if (most > UINT64_MAX - sum)
		return -EOVERFLOW;
	for (uint32_t i = 0; i < chunk_count; i++)
		cores[core_of_chunk[i]].bytes += chunk_bytes[i];
	return 0;
}

void placement_unload(const uint32_t *chunk_bytes, uint32_t chunk_count, struct placement_core *cores,
	unsigned core_count, const uint16_t *core_of_chunk)
{
	for (uint32_t i = 0; i < chunk_count; i++) {
		assert(core_of_chunk[i] < core_count);
		assert(cores[core_of_chunk[i]].bytes >= chunk_bytes[i]);
		cores[core_of_chunk[i]].bytes -= chunk_bytes[i];
	}
	(void)core_count;
}

/* Add one more load to a running balance; `seen` is how many it holds already. bytes_mean collects the sum. */
static void placement_balance_add(struct placement_balance *balance, uint64_t bytes, unsigned seen)
{
	if (seen == 0 || bytes < balance->bytes_min)
		balance->bytes_min = bytes;
	if (bytes > balance->bytes_max)
		balance->bytes_max = bytes;
	balance->bytes_mean += (double)bytes;
}

static void placement_balance_finish(struct placement_balance *balance, unsigned count)
{
	if (count > 0)
		balance->bytes_mean /= count;
	balance->imbalance = balance->bytes_max > 0 ? (double)balance->bytes_max / balance->bytes_mean : 1.0;
}

struct placement_balance placement_core_balance(const struct placement_core *cores, unsigned core_count)
{
	struct placement_balance balance = {0};

	for (unsigned i = 0; i < core_count; i++)
		placement_balance_add(&balance, cores[i].bytes, i);
	placement_balance_finish(&balance, core_count);
	return balance;
}

struct placement_balance placement_nic_balance(const struct placement_core *cores, unsigned core_count)
{
	struct placement_balance balance = {0};
	unsigned nic_count = 0;

	for (unsigned first = 0; first < core_count; first++) {
		uint64_t bytes = 0;

		if (placement_nic_seen(cores, first, cores[first].nic))
			continue;
		for (unsigned i = first; i < core_count; i++)
			bytes += cores[i].nic == cores[first].nic ? cores[i].bytes : 0;
		placement_balance_add(&balance, bytes, nic_count++);
	}
	placement_balance_finish(&balance, nic_count);
	return balance;
}

/* The NIC that would have the fewest cores for its rate, among those near `node`, or among all; -1: none is near. */
static int placement_choose_nic(
	const int *nic_node, const uint32_t *nic_rate, unsigned nic_count, const unsigned *taken, int node, bool near)
{
	int best = -1;

	for (unsigned i = 0; i < nic_count; i++) {
		if (near && nic_node[i] != node && nic_node[i] != -1)
			continue;
		if (best < 0 || (uint64_t)(taken[i] + 1) * (nic_rate ? nic_rate[best] : 1) <
					(uint64_t)(taken[best] + 1) * (nic_rate ? nic_rate[i] : 1))
			best = (int)i;
	}
	return best;
}

int placement_assign_nics(struct placement_core *cores, unsigned core_count, const int *nic_node,
	const uint32_t *nic_rate, unsigned nic_count)
{
	unsigned taken[PLACEMENT_NIC_COUNT_MAX] = {0};

	if (nic_count > PLACEMENT_NIC_COUNT_MAX)
		return -EINVAL;
	for (unsigned i = 0; i < core_count; i++) {
		int nic = placement_choose_nic(nic_node, nic_rate, nic_count, taken, cores[i].node, true);

		if (nic < 0)
			nic = placement_choose_nic(nic_node, nic_rate, nic_count, taken, cores[i].node, false);
		cores[i].nic = nic; /* PLACEMENT_NIC_NONE when there are none at all */
		if (nic >= 0)
			taken[nic]++;
	}
	return 0;
}
