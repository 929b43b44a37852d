/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line of the last HYPER_VERSIONS tables per rank (one line for all ranks in bsp, where they must be
 * equal anyway), addressed by version modulo the line's length.
 */
#include "phub/hyper.h"

#include "transport/wire.h"

#include <errno.h>
#include <string.h>

#define HYPER_ALIGN 64u

static uint64_t hypers_newest_bytes(uint32_t rank_count)
{
	uint64_t bytes = (uint64_t)rank_count * sizeof(uint32_t);

	return (bytes + HYPER_ALIGN - 1) / HYPER_ALIGN * HYPER_ALIGN;
}

uint64_t hypers_bytes(uint32_t rank_count, uint32_t group_count)
{
	return hypers_newest_bytes(rank_count) +
	       (uint64_t)rank_count * HYPER_VERSIONS * group_count * sizeof(struct optimizer_hyper);
}

static struct optimizer_hyper *hypers_line(const struct hypers *h, uint32_t rank, uint32_t version)
{
	return h->groups + ((uint64_t)rank * HYPER_VERSIONS + version % HYPER_VERSIONS) * h->group_count;
}

void hypers_init(
	struct hypers *h, void *memory, uint32_t rank_count, uint32_t group_count, const struct optimizer_hyper *first)
{
	h->group_count = group_count;
	h->rank_count = rank_count;
	h->newest = memory;
	h->groups = (void *)((uint8_t *)memory + hypers_newest_bytes(rank_count));
	for (uint32_t rank = 0; rank < rank_count; rank++) {
		h->newest[rank] = 0;
		memcpy(hypers_line(h, rank, 0), first, group_count * sizeof(*first));
	}
}

void hypers_begin(struct hypers *h, uint32_t version, bool first, const struct optimizer_hyper *groups)
{
	h->newest[0] = version;
	for (uint32_t i = 0; i < (first ? HYPER_VERSIONS : 1); i++)
		memcpy(hypers_line(h, 0, version - i), groups, h->group_count * sizeof(*groups));
}

void hypers_copy(struct hypers *h, const struct hypers *from)
{
	h->newest[0] = from->newest[0];
	memcpy(h->groups, from->groups, (size_t)HYPER_VERSIONS * h->group_count * sizeof(*h->groups));
}

int hypers_take(struct hypers *h, const struct hyper_table *table)
{
	if (table->rank >= h->rank_count || table->group_count != h->group_count ||
		table->version != h->newest[table->rank] + 1)
		return -EPROTO;
	memcpy(hypers_line(h, table->rank, table->version), table->groups, h->group_count * sizeof(table->groups[0]));
	h->newest[table->rank] = table->version;
	return 0;
}

int hypers_get(
	const struct hypers *h, uint32_t rank, uint32_t version, uint32_t group, const struct optimizer_hyper **out)
{
	uint32_t line = h->rank_count == 1 ? 0 : rank;

	if (wire_after(version, h->newest[line]))
		return -EAGAIN;
	if (h->newest[line] - version >= HYPER_VERSIONS)
		return -ESTALE;
	*out = hypers_line(h, line, version) + group;
	return 0;
}
