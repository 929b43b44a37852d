/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pick: four tiers of CPUs, taken one after the other; within a tier the nodes take turns in proportion to their NICs'
 * rates.
 */
#include "topology/pick.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Best first. A second thread of a core that already polls adds next to nothing, so it comes after a remote core. */
enum pick_tier {
	PICK_NEAR_CORE,
	PICK_FAR_CORE,
	PICK_NEAR_THREAD,
	PICK_FAR_THREAD,
	PICK_TIER_COUNT,
};

struct pick_state {
	const struct host *host;
	unsigned nics[HOST_NIC_COUNT_MAX];  /* that the box serves */
	uint32_t rates[HOST_NIC_COUNT_MAX]; /* of these */
	unsigned nic_count;
	uint64_t node_weight[HOST_NODE_COUNT_MAX]; /* rates of the NICs near the node; 0: far from all of them */
	unsigned node_taken[HOST_NODE_COUNT_MAX];
	unsigned cpu_node[HOST_CPU_COUNT_MAX]; /* index into host->nodes; the first for a node that the host does not
						  list */
	uint8_t tier[HOST_CPU_COUNT_MAX];
	bool taken[HOST_CPU_COUNT_MAX];
};

/* Index of the node with this id, -1 when there is none. */
static int pick_find_node(const struct host *host, int id)
{
	for (unsigned i = 0; i < host->node_count; i++) {
		if (host->nodes[i].id == id)
			return (int)i;
	}
	return -1;
}

static int pick_select_nics(struct pick_state *state, const unsigned *nics, unsigned nic_count, struct err *e)
{
	const struct host *host = state->host;

	if (nic_count > HOST_NIC_COUNT_MAX)
		return err_set(e, -EINVAL, "%u NICs to serve; at most %u are possible", nic_count, HOST_NIC_COUNT_MAX);
	for (unsigned i = 0; i < nic_count; i++) {
		if (nics[i] >= host->nic_count)
			return err_set(e, -EINVAL, "NIC %u does not exist; this host has %u", nics[i], host->nic_count);
		state->nics[state->nic_count++] = nics[i];
	}
	for (unsigned i = 0; nic_count == 0 && i < host->nic_count; i++) {
		if (host->nics[i].up && host->nics[i].physical)
			state->nics[state->nic_count++] = i;
	}
	return 0;
}

static void pick_rate_nics(struct pick_state *state)
{
	uint32_t slowest = UINT32_MAX;

	for (unsigned i = 0; i < state->nic_count; i++) {
		state->rates[i] = state->host->nics[state->nics[i]].speed_mbit;
		slowest = state->rates[i] && state->rates[i] < slowest ? state->rates[i] : slowest;
	}
	for (unsigned i = 0; i < state->nic_count; i++)
		state->rates[i] = state->rates[i] ? state->rates[i] : slowest;
}

/* A NIC whose node nobody knows is near all of them; so is everything when no NIC is served. */
static void pick_weigh_nodes(struct pick_state *state)
{
	for (unsigned i = 0; i < state->nic_count; i++) {
		int node = pick_find_node(state->host, state->host->nics[state->nics[i]].node);

		for (unsigned n = 0; n < state->host->node_count; n++)
			state->node_weight[n] += node < 0 || (unsigned)node == n ? state->rates[i] : 0;
	}
	for (unsigned n = 0; state->nic_count == 0 && n < state->host->node_count; n++)
		state->node_weight[n] = 1;
}

static void pick_sort_tiers(struct pick_state *state)
{
	const struct host *host = state->host;

	for (unsigned i = 0; i < host->cpu_count; i++) {
		int node = pick_find_node(host, host->cpus[i].node);
		bool first = true;

		state->cpu_node[i] = node < 0 ? 0 : (unsigned)node;
		bool near = state->node_weight[state->cpu_node[i]] > 0;
		for (unsigned j = 0; j < i; j++)
			first = first && host->cpus[j].core != host->cpus[i].core;
		if (first)
			state->tier[i] = near ? PICK_NEAR_CORE : PICK_FAR_CORE;
		else
			state->tier[i] = near ? PICK_NEAR_THREAD : PICK_FAR_THREAD;
	}
}

/* The lowest free CPU of a tier on a node, or -1. */
static int pick_free_cpu(const struct pick_state *state, unsigned node, unsigned tier)
{
	for (unsigned i = 0; i < state->host->cpu_count; i++) {
		if (!state->taken[i] && state->tier[i] == tier && state->cpu_node[i] == node)
			return (int)i;
	}
	return -1;
}

/* Take the next CPU of a tier from the node with the fewest cores for its NICs. Returns false when all are taken. */
static bool pick_take(struct pick_state *state, unsigned tier)
{
	int best = -1;
	unsigned best_node = 0;

	for (unsigned node = 0; node < state->host->node_count; node++) {
		int cpu = pick_free_cpu(state, node, tier);
		uint64_t weight = state->node_weight[node] ? state->node_weight[node] : 1;
		uint64_t best_weight = state->node_weight[best_node] ? state->node_weight[best_node] : 1;

		if (cpu < 0)
			continue;
		if (best < 0 ||
			(state->node_taken[node] + 1) * best_weight < (state->node_taken[best_node] + 1) * weight) {
			best = cpu;
			best_node = node;
		}
	}
	if (best < 0)
		return false;
	state->taken[best] = true;
	state->node_taken[best_node]++;
	return true;
}

static void pick_fill_cores(const struct pick_state *state, struct placement_core *cores)
{
	int nic_node[HOST_NIC_COUNT_MAX];
	unsigned count = 0;

	for (unsigned i = 0; i < state->host->cpu_count; i++) {
		if (state->taken[i])
			cores[count++] = (struct placement_core){
				.cpu = state->host->cpus[i].id, .node = state->host->cpus[i].node};
	}
	for (unsigned i = 0; i < state->nic_count; i++) {
		int id = state->host->nics[state->nics[i]].node;

		nic_node[i] = pick_find_node(state->host, id) < 0 ? -1 : id;
	}
	placement_assign_nics(cores, count, nic_node, state->rates, state->nic_count);
	for (unsigned i = 0; i < count; i++) {
		if (cores[i].nic != PLACEMENT_NIC_NONE)
			cores[i].nic = (int)state->nics[cores[i].nic];
	}
}

int topology_pick_cores(const struct host *host, const unsigned *nics, unsigned nic_count, unsigned want,
	struct placement_core *cores, struct err *e)
{
	struct pick_state *state = calloc(1, sizeof(*state));
	unsigned tier = 0;
	int rc;

	if (!state)
		return err_set(e, -ENOMEM, "no memory to choose cores");
	state->host = host;
	rc = pick_select_nics(state, nics, nic_count, e);
	if (rc == 0 && (want == 0 || want > host->cpu_count))
		rc = err_set(e, -EINVAL, "%u cores wanted; this process may run on %u CPUs, so 1 to %u are possible",
			want, host->cpu_count, host->cpu_count);
	if (rc < 0)
		goto free_state;

	pick_rate_nics(state);
	pick_weigh_nodes(state);
	pick_sort_tiers(state);
	for (unsigned taken = 0; taken < want;) {
		if (pick_take(state, tier))
			taken++;
		else
			tier++; /* want <= cpu_count, so some tier has one left */
	}
	pick_fill_cores(state, cores);
free_state:
	free(state);
	return rc;
}
