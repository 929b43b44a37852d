/* SPDX-License-Identifier: Apache-2.0 */
#include "client/scout/sent.h"

#include "client/handle.h"
#include "client/scout/course.h"
#include "client/scout/within.h"

uint64_t sent_wire(const struct phub_site *s)
{
	struct phub_stats stats = {.size = sizeof(stats)};

	return !s->phub->forked && phub_stats(s->phub, &stats) == 0 ? s->wire_before + stats.pushed_bytes : 0;
}

/* Before the round begins: what of it has gone when its last key begins is the progress thread's affair. */
void sent_put(struct phub_site *s, struct slot *own)
{
	own->bytes = s->site.counts.bytes_paper;
	own->within = within_bytes(s);
	own->wire = s->pushed;
}

void sent_hear(struct phub_site *s)
{
	struct sent all = {0};
	struct slot own;
	unsigned sites = 0;

	slots_get(s->slots_in, s->rank, &own);
	for (uint32_t rank = 0; rank < s->world; rank++) {
		struct slot slot;

		slots_get(s->slots_in, rank, &slot);
		if (!(slot.flags & SLOT_HERE) || slot.flags & SLOT_HELLO)
			continue;
		all.exchanges += (double)slot.bytes;
		all.within += (double)slot.within;
		all.wire += (double)slot.wire;
		sites++;
	}
	if (sites == 0)
		return;
	s->sent = (struct sent){.exchanges = all.exchanges / sites - (double)own.bytes,
		.within = all.within / sites - (double)own.within,
		.wire = all.wire / sites - (double)own.wire};
}
