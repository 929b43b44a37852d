/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host: what follows from the facts about one machine.
 */
#include "topology/host.h"

#include <string.h>

/* The switch `a` is `b`, or above it. */
static bool host_switch_is_above(const struct host *host, int a, int b)
{
	while (b > a)
		b = host->switches[b].above; /* an index always points to a lower one */
	return a == b;
}

static bool host_share_switch(const struct host *host, int a, int b)
{
	for (; a != HOST_NONE && b != HOST_NONE; a = host->switches[a].above)
		if (host_switch_is_above(host, a, b))
			return true;
	return false;
}

enum host_near host_near(
	const struct host *host, const struct host_pci *a, int a_node, const struct host_pci *b, int b_node)
{
	if (a->address[0] && b->address[0] && host_share_switch(host, a->above, b->above))
		return HOST_NEAR_SWITCH;
	if (a->root[0] && strcmp(a->root, b->root) == 0)
		return HOST_NEAR_ROOT;
	if (a_node < 0 || b_node < 0)
		return HOST_NEAR_UNKNOWN;
	return a_node == b_node ? HOST_NEAR_NODE : HOST_NEAR_FAR;
}

const char *host_near_name(enum host_near near)
{
	static const char *const names[] = {"switch", "root", "node", "far", "unknown"};

	return names[near];
}

/* Without the function's digit. */
static bool host_same_card(const struct host_pci *a, const struct host_pci *b)
{
	size_t bytes = strcspn(a->address, ".");

	return bytes > 0 && strcspn(b->address, ".") == bytes && memcmp(a->address, b->address, bytes) == 0;
}

uint32_t host_nic_excess(const struct host *host, unsigned nic)
{
	const struct host_nic *own = &host->nics[nic];
	uint64_t sum = 0;

	for (unsigned i = 0; i < host->nic_count; i++) {
		const struct host_nic *other = &host->nics[i];

		if (i == nic || (other->up && host_same_card(&own->pci, &other->pci)))
			sum += other->speed_mbit;
	}
	return own->pci.path_mbit > 0 && own->speed_mbit > 0 && sum > own->pci.path_mbit ? (uint32_t)sum : 0;
}
