/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/rails.h"

#include <string.h>

#include "phub/base/cpu.h"

enum {
	RAILS_FAR = 20,      /* another node, when the kernel does not say how far it is */
	RAILS_IPV4_NET = 15, /* bytes of a GID that ports of one IPv4 network have in common, more or less */
	RAILS_NET = 8,
};

uint8_t rails_distance(const char *sysfs, int node, int port_node)
{
	int distance;

	if (node < 0 || port_node < 0 || node == port_node)
		return RAILS_NEAR;
	distance = cpu_node_distance(sysfs, node, port_node);
	if (distance < 0)
		return RAILS_FAR;
	return distance < RAILS_NEAR ? RAILS_NEAR : distance > UINT8_MAX ? UINT8_MAX : (uint8_t)distance;
}

/* How much of their network two ports have in common: RAILS_IPV4_NET when it is all. */
static unsigned rails_alike(const uint8_t *a, const uint8_t *b)
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
	unsigned whole = memcmp(a, mapped, sizeof(mapped)) == 0 ? RAILS_IPV4_NET : RAILS_NET;
	unsigned same = 0;

	while (same < whole && a[same] == b[same])
		same++;
	return same == whole ? RAILS_IPV4_NET : same;
}

bool rails_same_network(const uint8_t *a, const uint8_t *b)
{
	return rails_alike(a, b) == RAILS_IPV4_NET;
}

unsigned rails_of_core(const struct rails_port *box, unsigned count, uint32_t core, uint8_t out[RAILS_MAX])
{
	uint8_t near[RAILS_PORTS_MAX], least = UINT8_MAX;
	unsigned found = 0, wanted;

	count = count < RAILS_PORTS_MAX ? count : RAILS_PORTS_MAX;
	for (unsigned i = 0; i < count; i++)
		least = box[i].distance && box[i].distance < least ? box[i].distance : least;
	for (unsigned i = 0; i < count; i++)
		if (box[i].distance == least)
			near[found++] = (uint8_t)i;
	wanted = found < RAILS_MAX ? found : RAILS_MAX;
	for (unsigned i = 0; i < wanted; i++)
		out[i] = near[(core + i) % found];
	return wanted;
}

/* What is the best that a pair of ports can be? The lower the better. */
static uint32_t rails_rank(const struct rails_port *worker, const struct rails_port *box, bool shunned)
{
	uint32_t down = worker->distance == 0 || box->distance == 0;

	return down << 28 | (RAILS_IPV4_NET - rails_alike(worker->gid, box->gid)) << 20 | (uint32_t)shunned << 16 |
	       (uint32_t)box->distance << 8 | worker->distance;
}

/* What is left to choose from, and how often each port was taken; the pairs are at least as many as the ports of either
 * end. */
struct rails_table {
	bool fits[RAILS_PORTS_MAX][RAILS_PORTS_MAX]; /* worker's, box's; not taken yet */
	/* Places in the order in which this core takes them; of those that fit at all. */
	uint8_t worker_turn[RAILS_PORTS_MAX], box_turn[RAILS_PORTS_MAX];
	uint8_t worker_uses[RAILS_PORTS_MAX], box_uses[RAILS_PORTS_MAX];
};

/* Numbers those that are used, beginning at the one whose turn it is at this core. Returns how many they are. */
static unsigned rails_take_turns(const bool *used, unsigned count, uint32_t core, uint8_t *turn)
{
	unsigned found = 0, at = 0;

	for (unsigned i = 0; i < count; i++)
		found += used[i];
	for (unsigned i = 0; i < count; i++)
		if (used[i])
			turn[i] = (uint8_t)((at++ + found - core % found) % found);
	return found;
}

/* Keeps the pairs of the best rank. Returns how many rails they are worth. */
static unsigned rails_fill(struct rails_table *t, const struct rails_port *worker, unsigned worker_count,
	const struct rails_port *box, unsigned box_count, rails_shunned shunned, uint32_t core)
{
	bool of_worker[RAILS_PORTS_MAX] = {false}, of_box[RAILS_PORTS_MAX] = {false};
	uint32_t rank[RAILS_PORTS_MAX][RAILS_PORTS_MAX], best = UINT32_MAX;
	unsigned workers, boxes;

	for (unsigned i = 0; i < worker_count; i++) {
		for (unsigned k = 0; k < box_count; k++) {
			rank[i][k] = rails_rank(&worker[i], &box[k], shunned && shunned[i][k]);
			best = rank[i][k] < best ? rank[i][k] : best;
		}
	}
	for (unsigned i = 0; i < worker_count; i++) {
		for (unsigned k = 0; k < box_count; k++) {
			t->fits[i][k] = rank[i][k] == best;
			of_worker[i] = of_worker[i] || t->fits[i][k];
			of_box[k] = of_box[k] || t->fits[i][k];
		}
	}
	workers = rails_take_turns(of_worker, worker_count, core, t->worker_turn);
	boxes = rails_take_turns(of_box, box_count, core, t->box_turn);
	return workers > boxes ? workers : boxes;
}

static uint32_t rails_order(const struct rails_table *t, unsigned i, unsigned k)
{
	return (uint32_t)t->box_uses[k] << 24 | (uint32_t)t->worker_uses[i] << 16 | (uint32_t)t->box_turn[k] << 8 |
	       t->worker_turn[i];
}

unsigned rails_choose(const struct rails_port *worker, unsigned worker_count, const struct rails_port *box,
	unsigned box_count, rails_shunned shunned, uint32_t core, struct rails_pair out[RAILS_MAX])
{
	struct rails_table t = {.worker_uses = {0}};
	unsigned wanted = rails_fill(&t, worker, worker_count, box, box_count, shunned, core);

	wanted = wanted < RAILS_MAX ? wanted : RAILS_MAX;
	for (unsigned rail = 0; rail < wanted; rail++) {
		uint32_t best = UINT32_MAX;

		for (unsigned i = 0; i < worker_count; i++) {
			for (unsigned k = 0; k < box_count; k++) {
				if (!t.fits[i][k] || rails_order(&t, i, k) >= best)
					continue;
				best = rails_order(&t, i, k);
				out[rail] = (struct rails_pair){.worker = (uint8_t)i, .box = (uint8_t)k};
			}
		}
		t.fits[out[rail].worker][out[rail].box] = false;
		t.worker_uses[out[rail].worker]++;
		t.box_uses[out[rail].box]++;
	}
	return wanted;
}
