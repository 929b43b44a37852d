/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shard's side of a change of homes: pointers are exchanged; nothing is copied.
 */
#include "phub/rehome.h"

#include <assert.h>
#include <string.h>

#include "phub/base/stats.h"
#include "phub/commit.h"
#include "phub/members.h"

static void rehome_chunk_apply(struct chunk *chunk, struct shard *shard, const struct rehome *r)
{
	const struct rehome_chunk *to = &r->chunks[chunk_local(shard, chunk)];

	assert(!chunk->lifted);
	chunk->way = to->way;
	chunk->way_at = to->way_at;
	chunk->weight = to->weight;
	memcpy(chunk->state, to->state, sizeof(chunk->state));
	if (to->comes)
		chunk->steps = to->steps;
	chunk->weights = chunk->weights || to->weights;
	if (chunk->round < to->round)
		stats_set(&chunk->round, to->round);
	for (uint32_t i = 0; i < r->slot_count; i++)
		chunk->arrivals[r->slots[i]].from = to->below ? 0 : MEMBERS_NEVER;
	commit_count_needed(chunk, shard);
	commit_check(chunk, shard); /* all may have come, and others lack now; or none does, and it waits for resume */
}

static void rehome_uplink_apply(struct uplink *up, const struct rehome_way *way)
{
	assert(up->out == 0);
	up->chunks = way->chunks;
	up->chunk_count = way->chunk_count;
	up->line = way->line;
	up->line_first = 0;
	up->line_count = 0;
	if (up->conn)
		up->use->began(up);
}

void rehome_apply(struct shard *shard, const struct rehome *r)
{
	for (uint32_t i = 0; i < shard->chunk_count; i++)
		rehome_chunk_apply(&shard->chunks[i], shard, r);
	for (uint32_t i = 0; i < shard->uplink_count; i++)
		rehome_uplink_apply(&shard->uplinks[i], &r->ways[i]);
}

void rehome_resume(struct shard *shard, uint64_t now_ns)
{
	uint32_t next;

	shard->stops = NULL;
	shard->stops_firm = false;
	shard->stop_told = false;
	/* Nobody here may have a part in the round of a chunk that had its home here. While the membership changes,
	 * members_go() sees to that. */
	for (uint32_t i = 0; i < shard->chunk_count && !shard->holds && !shard->failed; i++)
		commit_skip(&shard->chunks[i], shard);
	for (uint32_t i = shard->open_oldest; i != CHUNK_NONE && !shard->failed; i = next) {
		next = shard->chunks[i].newer;
		commit_check(&shard->chunks[i], shard);
	}
	commit_retry(shard, now_ns);
}
