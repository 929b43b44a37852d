/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums and images on their way to the standby. Images join the line only when it is empty, so that sums never wait for
 * long.
 */
#include "phub/replica.h"

#include "aggregation/convert.h"
#include "aggregation/kernels.h"
#include "aggregation/optimizer.h"
#include "phub/base/stats.h"
#include "phub/commit.h"

enum {
	REPLICA_TICK_BYTES = 512 << 10, /* of images, in one tick */
	REPLICA_TICK_CHUNKS = 4096,     /* that are looked at */
};

static struct uplink_chunk *replica_of(const struct shard *shard, const struct chunk *chunk)
{
	return &shard->replica->chunks[chunk_local(shard, chunk)];
}

/* Has nobody had anything of it yet? Then the standby's chunk is like it from the beginning. */
static bool replica_is_new(const struct chunk *chunk, const struct shard *shard)
{
	return chunk->round == (shard->spec->optimizer == OPTIMIZER_NONE ? 1 : 0);
}

static void replica_tell_whole(struct uplink *up)
{
	struct mail mail = uplink_mail(up, MAIL_UPLINK_WHOLE);

	up->whole_untold = mailbox_send(up->shard->control, &mail) < 0;
}

static void replica_forget(struct uplink *up, bool answer)
{
	struct shard *shard = up->shard;

	up->whole_untold = false;
	for (uint32_t i = 0; i < shard->chunk_count; i++) {
		struct uplink_chunk *u = &up->chunks[i];
		bool out = u->stage == UPLINK_OUT;

		u->stage = UPLINK_NONE;
		u->had = false;
		if (!out)
			continue;
		if (answer)
			commit_landed(&shard->chunks[i], shard, u->written);
		else
			shard->chunks[i].lifted = false;
	}
}

/* ---- what goes out ---- */

static const void *replica_payload(const struct uplink *up, uint32_t at)
{
	const struct uplink_chunk *u = &up->chunks[at];
	const struct chunk *chunk = &up->shard->chunks[at];

	if (!u->image)
		return u->lift;
	if (u->next > 0)
		return chunk->state[u->next - 1];
	if (up->shard->spec->optimizer != OPTIMIZER_NONE)
		return chunk->weight;
	return chunk->dtype == DTYPE_F32 ? (const void *)chunk->result : u->lift;
}

static const void *replica_write(const struct uplink *up, uint32_t at, struct wire_header *h)
{
	const struct uplink_chunk *u = &up->chunks[at];

	h->type = u->image ? WIRE_INIT : WIRE_PUSH;
	h->length = up->shard->chunks[at].elements * (uint32_t)sizeof(float);
	h->count = u->image ? u->next + 1u : u->gradients;
	return replica_payload(up, at);
}

void replica_lift(struct chunk *chunk, struct shard *shard, struct sum_args *sum)
{
	struct uplink_chunk *u = replica_of(shard, chunk);
	struct sum_args lift = *sum;

	if (u->stage != UPLINK_READY)
		return;
	lift.out = u->lift;
	lift.out_dtype = DTYPE_F32;
	lift.scale = 1;
	lift.stores = STORES_CACHED;
	shard->kernels->sum(&lift);
	shard->sources[0] = u->lift;
	sum->src_count = 1;
	sum->src_dtype = DTYPE_F32;
	sum->acc = NULL;
	u->image = false;
	u->written = false;
	u->gradients = chunk->gradients;
	u->hyper = chunk->hyper;
	u->round = chunk->round;
	u->there = chunk->round + 1;
	uplink_queue(shard->replica, chunk_local(shard, chunk), 1);
}

static void replica_send_image(struct uplink *up, struct chunk *chunk)
{
	const struct spec *spec = up->shard->spec;
	struct uplink_chunk *u = replica_of(up->shard, chunk);

	if (spec->optimizer == OPTIMIZER_NONE && chunk->dtype != DTYPE_F32)
		convert_to_f32(u->lift, chunk->result, (enum dtype)chunk->dtype, chunk->elements);
	u->image = true;
	u->hyper = (uint32_t)chunk->steps;
	u->round = chunk->round;
	u->there = chunk->round;
	uplink_queue(up, chunk_local(up->shard, chunk), (uint8_t)(1 + optimizer_state_count(spec->optimizer)));
}

void replica_renew(struct chunk *chunk, struct shard *shard, bool written)
{
	struct uplink_chunk *u = replica_of(shard, chunk);

	if (u->stage != UPLINK_READY || u->there == chunk->round)
		return;
	u->written = written;
	replica_send_image(shard->replica, chunk);
}

static void replica_had(struct uplink *up, struct uplink_chunk *u)
{
	if (u->had)
		return;
	u->had = true;
	if (--up->absent == 0)
		replica_tell_whole(up);
}

/* What the chunk collects may have changed meanwhile (commit_skip()). */
static void replica_landed(struct uplink *up, uint32_t at)
{
	struct uplink_chunk *u = &up->chunks[at];
	struct chunk *chunk = &up->shard->chunks[at];

	replica_had(up, u);
	if (u->there != chunk->round) {
		replica_send_image(up, chunk);
		return;
	}
	commit_landed(chunk, up->shard, u->written);
}

/* ---- images of chunks that the standby does not have ---- */

static void replica_began(struct uplink *up)
{
	up->image_at = 0;
	up->absent = up->shard->chunk_count;
}

/* Returns how many bytes it sends. */
static uint64_t replica_begin_chunk(struct uplink *up, struct chunk *chunk)
{
	struct uplink_chunk *u = replica_of(up->shard, chunk);

	u->written = false;
	if (replica_is_new(chunk, up->shard)) {
		u->stage = UPLINK_READY;
		u->there = chunk->round;
		if (chunk->weights) /* else the first ones are waited for */
			replica_had(up, u);
		return 0;
	}
	replica_send_image(up, chunk);
	return (uint64_t)u->end * chunk->elements * sizeof(float);
}

static bool replica_step(struct uplink *up)
{
	struct shard *shard = up->shard;
	uint64_t bytes = 0;

	if (up->whole_untold)
		replica_tell_whole(up);
	for (uint32_t looked = 0; looked < REPLICA_TICK_CHUNKS && up->image_at < shard->chunk_count; looked++) {
		if (up->line_count > 0 || bytes >= REPLICA_TICK_BYTES)
			return bytes > 0;
		bytes += replica_begin_chunk(up, &shard->chunks[up->image_at++]);
	}
	return up->image_at < shard->chunk_count;
}

const struct uplink_use replica_use = {
	.write = replica_write,
	.landed = replica_landed,
	.began = replica_began,
	.forget = replica_forget,
	.step = replica_step,
};
