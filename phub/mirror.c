/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images of chunks at a standby, and what becomes of them when the job goes on there.
 */
#include "phub/mirror.h"

#include <errno.h>
#include <string.h>

#include "aggregation/convert.h"
#include "aggregation/optimizer.h"
#include "phub/base/stats.h"
#include "phub/coding.h"
#include "phub/reply.h"
#include "phub/stepwise.h"

/* Answers that a box may leave unread for a chunk: two images of it. More is a flood. */
#define MIRROR_ANSWERS_MAX (2 * (1 + OPTIMIZER_STATE_MAX))

int mirror_spec(struct spec *spec)
{
	if (chunking_widen(&spec->plan) < 0)
		return -EMSGSIZE;
	for (uint32_t i = 0; i < spec->plan.chunk_count; i++)
		spec->plan.chunks[i].sparse = false; /* what comes are sums and images */
	spec->plan.sparse_bytes = 0;
	spec->mirror = true;
	spec->world = 1;
	/* All that has been done with what came from the workers before it was summed. */
	spec->reproducible = false;
	spec->association = NULL;
	spec->nan = NAN_PASS;
	spec->quorum = 0;
	spec->lost = LOST_FAIL;
	return 0;
}

bool mirror_takes(const struct chunk *chunk, const struct wire_header *h, uint32_t trailer)
{
	return h->type != WIRE_PULL && !h->coded && h->length == chunk->bytes + trailer && h->count > 0;
}

/* Which of the chunk's arrays is it? NULL: there is none such. */
static float *mirror_array(const struct chunk *chunk, const struct shard *shard, unsigned index)
{
	if (index > optimizer_state_count(shard->spec->optimizer))
		return NULL;
	if (index > 0)
		return chunk->state[index - 1];
	return chunk->weight ? chunk->weight : (float *)(void *)chunk->result;
}

/* Arrays come in their order, and all of one image name the same round and step. */
static bool mirror_fits(const struct chunk *chunk, const struct arrival *a, const struct wire_header *h)
{
	if (chunk->kind != ROUND_OPEN || h->round == 0 || h->round > UINT64_MAX / 2 || h->round < chunk->round)
		return false;
	if (h->count == 1)
		return true;
	return h->count == a->bytes + 1 && h->round == a->round && h->hyper == a->hyper;
}

static void mirror_answer(struct chunk *chunk, struct link *link)
{
	struct arrival *a = &chunk->arrivals[link->rank];

	if (a->due)
		a->ahead++;
	else
		reply_result(chunk, link);
}

bool mirror_owes(struct arrival *a)
{
	if (a->ahead == 0)
		return false;
	a->ahead--;
	return true;
}

int mirror_add(struct chunk *chunk, const struct contribution *c)
{
	const struct wire_header *h = c->header;
	struct shard *shard = c->link->shard;
	struct arrival *a = &chunk->arrivals[c->link->rank];
	float *array = mirror_array(chunk, shard, h->count - 1);

	if (h->type != WIRE_INIT || !array || !mirror_fits(chunk, a, h) ||
		a->sends + a->due + a->ahead >= MIRROR_ANSWERS_MAX)
		return -EPROTO;
	/* An image at the step that the chunk is at changes its round alone: meanwhile it is as good as it was. */
	if (h->count == 1)
		chunk->weights = chunk->weights && h->hyper == chunk->steps;
	memcpy(array, c->payload, chunk->bytes);
	a->bytes = h->count;
	a->round = h->round;
	a->hyper = h->hyper;
	a->priority = h->priority;
	if (a->bytes == 1 + optimizer_state_count(shard->spec->optimizer)) {
		chunk->weights = true;
		stats_set(&chunk->round, h->round);
		chunk->steps = h->hyper;
		a->bytes = 0;
	}
	mirror_answer(chunk, c->link);
	return 0;
}

bool mirror_is_whole(const struct shard *shard)
{
	for (uint32_t i = 0; i < shard->chunk_count; i++)
		if (!shard->chunks[i].weights)
			return false;
	return true;
}

void mirror_restore(struct chunk *chunk, struct shard *shard, const struct chunk *mirror)
{
	const struct spec *spec = shard->spec;
	size_t bytes = chunk->elements * sizeof(float);
	const float *from = mirror->weight ? mirror->weight : (const float *)(const void *)mirror->result;

	if (chunk->weight)
		memcpy(chunk->weight, from, bytes);
	for (unsigned i = 0; i < optimizer_state_count(spec->optimizer); i++)
		memcpy(chunk->state[i], mirror->state[i], bytes);
	if (!spec_rows(spec) && (const void *)chunk->weight != chunk->result)
		convert_from_f32(chunk->result, (enum dtype)chunk->dtype, from, chunk->elements);
	coding_renew(chunk);
	chunk->weights = true;
	chunk->steps = mirror->steps;
	chunk->round = mirror->round;
	/* With a quorum a rank may be rounds behind, also behind the first weights, and is answered with those of
	 * today.
	 */
	for (uint32_t rank = 0; rank < spec->world; rank++) {
		struct arrival *a = &chunk->arrivals[rank];

		a->round = spec->quorum ? 0 : mirror->round - 1;
		if (!spec_rows(spec))
			continue;
		a->ahead = (uint32_t)(mirror->round - 1 - a->round);
		convert_from_f32(
			stepwise_row(chunk, shard, rank), (enum dtype)chunk->dtype, chunk->weight, chunk->elements);
	}
}
