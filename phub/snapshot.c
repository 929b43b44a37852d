/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies chunks into a snapshot: a bounded number of bytes a tick, and what is about to be overwritten at once.
 */
#include "phub/snapshot.h"

#include <errno.h>
#include <string.h>

#include "aggregation/convert.h"
#include "aggregation/optimizer.h"
#include "phub/base/clock.h"
#include "phub/coding.h"
#include "phub/commit.h"
#include "phub/mailbox.h"
#include "phub/stepwise.h"

enum {
	SNAPSHOT_TICK_BYTES = 128 << 10, /* 10 to 20 us, beside some ticks of a millisecond */
	SNAPSHOT_TICK_CHUNKS = 4096,     /* that are looked at */
};

uint64_t snapshot_chunk_bytes(const struct spec *spec, uint32_t elements)
{
	return (uint64_t)elements * sizeof(float) * (1 + optimizer_state_count(spec->optimizer));
}

static bool snapshot_stepwise(const struct chunk *chunk, const struct shard *shard)
{
	return spec_stepwise(shard->spec) && chunk->weights;
}

static struct snapshot_chunk *snapshot_place(const struct chunk *chunk, const struct shard *shard)
{
	return &shard->snapshot->chunks[chunk->index];
}

static bool snapshot_is_copied(const struct snapshot_chunk *place)
{
	return atomic_load_explicit(&place->copied, memory_order_relaxed);
}

/* Tells control that this shard is done with it, and forgets it. What does not fit its mailbox is told later. */
static void snapshot_done(struct shard *shard, int value)
{
	struct mail mail = {
		.kind = MAIL_SNAPPED,
		.core = shard->core,
		.shard = shard,
		.job = shard->spec->id,
		.generation = shard->spec->generation,
		.snapshot = shard->snapshot,
		.value = value,
	};

	shard->snap_result = value;
	shard->snap_untold = mailbox_send(shard->control, &mail) < 0;
	if (!shard->snap_untold)
		shard->snapshot = NULL;
}

static void snapshot_copy(const struct chunk *chunk, struct shard *shard, struct snapshot_chunk *place)
{
	const struct spec *spec = shard->spec;
	size_t bytes = chunk->elements * sizeof(float);
	uint8_t *to = shard->snapshot->base + place->offset;
	uint64_t begun_ns = clock_now_ns();

	memcpy(to, chunk->weight, bytes);
	for (unsigned i = 0; i < optimizer_state_count(spec->optimizer); i++)
		memcpy(to + (i + 1) * bytes, chunk->state[i], bytes);
	place->steps = chunk->steps;
	atomic_store_explicit(&place->copied, true, memory_order_release);
	atomic_fetch_sub_explicit(&shard->snapshot->left, 1, memory_order_release);
	__atomic_fetch_add(&shard->snapshot->copied_ns, clock_now_ns() - begun_ns, __ATOMIC_RELAXED);
	if (--shard->snap_left == 0)
		snapshot_done(shard, 0);
}

void snapshot_rounds(const struct shard *shard, struct snapshot *s)
{
	for (uint32_t i = 0; i < shard->chunk_count; i++) {
		const struct chunk *chunk = &shard->chunks[i];

		s->rounds[chunk->index] =
			spec_stepwise(shard->spec) ? stepwise_slowest(chunk, shard) + 1 : chunk->round;
	}
}

void snapshot_restore(struct chunk *chunk, struct shard *shard, const void *bytes, uint64_t before, uint64_t steps)
{
	const struct spec *spec = shard->spec;
	size_t size = chunk->elements * sizeof(float);

	memcpy(chunk->weight, bytes, size);
	for (unsigned i = 0; i < optimizer_state_count(spec->optimizer); i++)
		memcpy(chunk->state[i], (const uint8_t *)bytes + (i + 1) * size, size);
	if (!spec_rows(spec) && (const void *)chunk->weight != chunk->result)
		convert_from_f32(chunk->result, (enum dtype)chunk->dtype, chunk->weight, chunk->elements);
	coding_renew(chunk);
	chunk->weights = true;
	chunk->steps = steps;
	chunk->round = before;
	for (uint32_t rank = 0; rank < spec->world; rank++) {
		chunk->arrivals[rank].from = before;
		chunk->arrivals[rank].round = before - 1;
	}
	commit_count_needed(chunk, shard);
}

void snapshot_begin(struct shard *shard, struct snapshot *s)
{
	shard->snapshot = s;
	shard->snap_left = shard->chunk_count;
	shard->snap_at = 0;
	for (uint32_t i = 0; i < shard->chunk_count; i++) {
		const struct chunk *chunk = &shard->chunks[i];

		if (snapshot_stepwise(chunk, shard) ||
			(chunk->weights && chunk->round <= snapshot_place(chunk, shard)->before))
			continue;
		atomic_store_explicit(&s->missed, true, memory_order_relaxed);
		snapshot_done(shard, -ESTALE);
		return;
	}
}

void snapshot_before_commit(struct chunk *chunk, struct shard *shard)
{
	struct snapshot_chunk *place = snapshot_place(chunk, shard);

	if (!shard->snap_untold && chunk->round == place->before && !snapshot_is_copied(place))
		snapshot_copy(chunk, shard, place);
}

bool snapshot_step(struct shard *shard)
{
	uint64_t bytes = 0;

	if (!shard->snapshot)
		return false;
	if (shard->snap_untold) {
		snapshot_done(shard, shard->snap_result);
		return false;
	}
	for (uint32_t looked = 0; looked < SNAPSHOT_TICK_CHUNKS && looked < shard->chunk_count; looked++) {
		const struct chunk *chunk = &shard->chunks[shard->snap_at];
		struct snapshot_chunk *place = snapshot_place(chunk, shard);

		shard->snap_at = shard->snap_at + 1 < shard->chunk_count ? shard->snap_at + 1 : 0;
		if (snapshot_is_copied(place) || (!snapshot_stepwise(chunk, shard) && chunk->round != place->before))
			continue;
		bytes += place->bytes;
		snapshot_copy(chunk, shard, place);
		if (!shard->snapshot || shard->snap_untold)
			return false;
		if (bytes >= SNAPSHOT_TICK_BYTES)
			return true;
	}
	return false;
}

void snapshot_end(struct shard *shard)
{
	if (!shard->snapshot || shard->snap_untold)
		return;
	atomic_store_explicit(&shard->snapshot->missed, true, memory_order_relaxed);
	snapshot_done(shard, -ECANCELED);
}
