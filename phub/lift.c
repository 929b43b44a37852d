/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums on their way up, and results on their way down.
 */
#include "phub/lift.h"

#include "aggregation/kernels.h"
#include "aggregation/sparse.h"
#include "phub/coding.h"
#include "phub/commit.h"
#include "phub/link.h"
#include "phub/members.h"
#include "phub/parts.h"

#include <errno.h>
#include <string.h>

/* All that is kept of what came is in the sum now. */
static void lift_release(struct chunk *chunk, struct shard *shard)
{
	for (uint32_t rank = 0; rank < shard->spec->world; rank++) {
		struct arrival *a = &chunk->arrivals[rank];

		if (a->state == ARRIVAL_HELD && a->slot)
			link_release(&shard->links[rank], a->slot);
		else if (a->state == ARRIVAL_STAGED)
			shard->stages[shard->stage_free++] = (uint8_t *)(uintptr_t)a->payload;
		if (a->state == ARRIVAL_HELD || a->state == ARRIVAL_STAGED)
			a->state = ARRIVAL_SUMMED;
		a->payload = NULL;
		a->slot = NULL;
	}
	parts_release(chunk, shard);
}

/* Returns what the message is. */
static enum wire_type lift_write_sum(
	const struct chunk *chunk, struct shard *shard, const struct sum_args *sum, float *lift)
{
	struct sum_args args = *sum;

	if (chunk->kind == ROUND_GRADIENT) {
		args.out = lift;
		args.out_dtype = shard->spec->lift;
		args.scale = 1;
		args.stores = STORES_CACHED;
		shard->kernels->sum(&args);
		return WIRE_PUSH;
	}
	if (chunk->gradients == 0)
		return WIRE_PULL;
	memcpy(lift, sum->src_count > 0 ? sum->src[0] : chunk->sum, chunk->bytes); /* no bit may change */
	return WIRE_INIT;
}

/* Nobody reads what is coded where the other box maps the sum. */
static void lift_code(const struct uplink *up, struct uplink_chunk *u)
{
	const struct chunk *chunk = &up->shard->chunks[u->local];

	u->coded_bytes = 0;
	if (chunk->sparse && u->type == WIRE_PUSH && !(up->conn && up->conn->push))
		u->coded_bytes = (uint32_t)sparse_encode(u->code, u->sum, up->shard->spec->lift, chunk->elements);
}

void lift_round(struct chunk *chunk, struct shard *shard, const struct sum_args *sum)
{
	struct uplink *up = &shard->uplinks[(shard->replica != NULL) + chunk->way];
	struct uplink_chunk *u = &up->chunks[chunk->way_at];

	u->sum = uplink_room(up, chunk->way_at);
	u->type = (uint8_t)lift_write_sum(chunk, shard, sum, (float *)(uintptr_t)u->sum);
	u->gradients = u->type == WIRE_PUSH ? chunk->gradients : u->type == WIRE_INIT;
	if (u->type == WIRE_PUSH && shard->plant == SHARD_PLANT_MISCOUNTED)
		u->gradients = chunk->arrived;
	u->hyper = chunk->hyper;
	u->round = chunk->round;
	lift_code(up, u);
	lift_release(chunk, shard);
	uplink_queue(up, chunk->way_at, 1);
}

void lift_join(struct shard *shard, const uint64_t *from, uint64_t now_ns)
{
	for (uint32_t i = 0; i < shard->chunk_count; i++) {
		struct chunk *chunk = &shard->chunks[i];
		struct uplink *up = &shard->uplinks[(shard->replica != NULL) + chunk->way];
		uint64_t first = from[chunk->index];

		for (uint32_t rank = 0; rank < shard->spec->world; rank++)
			if (chunk->arrivals[rank].from != MEMBERS_NEVER)
				chunk->arrivals[rank].from = first;
		if (first > chunk->round) {
			chunk->round = first - 1;
			chunk_open(chunk, shard, now_ns);
			chunk->kind = ROUND_BROADCAST;
			up->chunks[chunk->way_at].type = WIRE_PULL;
			up->chunks[chunk->way_at].round = chunk->round;
			up->chunks[chunk->way_at].gradients = 0;
			uplink_queue(up, chunk->way_at, 1);
		}
		commit_count_needed(chunk, shard);
	}
}

static const void *lift_write(const struct uplink *up, uint32_t at, struct wire_header *h)
{
	const struct uplink_chunk *u = &up->chunks[at];
	const struct chunk *chunk = &up->shard->chunks[u->local];

	h->type = (enum wire_type)u->type;
	h->count = u->gradients && up->shard->plant == SHARD_PLANT_UNCOUNTED ? 1 : u->gradients;
	if (h->type == WIRE_PUSH)
		h->length = chunk->elements * (uint32_t)dtype_size(up->shard->spec->lift);
	else
		h->length = h->type == WIRE_INIT ? chunk->bytes : 0;
	if (u->coded_bytes > 0 && h->type == WIRE_PUSH && !up->conn->push) {
		h->length = u->coded_bytes;
		h->coded = true;
		return u->code;
	}
	return h->length > 0 ? u->sum : NULL;
}

/* The transport has put it where it belongs, unless it has no sinks. */
static int lift_take(struct uplink *up, uint32_t at, const struct event *e)
{
	struct chunk *chunk = &up->shard->chunks[up->chunks[at].local];

	if (e->header.coded)
		return coding_land(chunk, &e->header, e->payload);
	if (e->header.length != chunk->bytes)
		return -EPROTO;
	if (e->payload && e->payload != chunk->result)
		memcpy(chunk->result, e->payload, chunk->bytes);
	return 0;
}

static void lift_landed(struct uplink *up, uint32_t at)
{
	commit_land(&up->shard->chunks[up->chunks[at].local], up->shard);
}

static void lift_began(struct uplink *up)
{
	struct sink *sinks = up->spec->conn.sinks;

	if (sinks) /* of chunks that take other ways now */
		memset(sinks, 0, up->spec->conn.chunk_count * sizeof(*sinks));
	for (uint32_t at = 0; at < up->chunk_count; at++) {
		const struct uplink_chunk *u = &up->chunks[at];
		const struct chunk *chunk = &up->shard->chunks[u->local];

		if (sinks)
			sinks[u->index] = (struct sink){chunk->coded ? chunk->coded : chunk->result, chunk->bytes};
	}
}

/* Control ends the job, or has what was out come again: nobody is answered with half of a result. */
static void lift_forget(struct uplink *up, bool answer)
{
	for (uint32_t at = 0; at < up->chunk_count; at++) {
		struct uplink_chunk *u = &up->chunks[at];
		struct chunk *chunk = &up->shard->chunks[u->local];
		bool out = u->stage == UPLINK_OUT && u->type == WIRE_PUSH;

		u->stage = UPLINK_READY;
		if (!answer || !out || up->shard->plant != SHARD_PLANT_ALONE || chunk->dtype != up->shard->spec->lift)
			continue;
		memcpy(chunk->result, u->sum, chunk->bytes);
		commit_land(chunk, up->shard);
	}
}

static bool lift_step(struct uplink *up)
{
	(void)up;
	return false;
}

const struct uplink_use lift_use = {
	.write = lift_write,
	.take = lift_take,
	.landed = lift_landed,
	.began = lift_began,
	.forget = lift_forget,
	.step = lift_step,
	.repeats = true,
};
