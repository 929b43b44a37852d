/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pass over all that has come: it sums, runs the optimizer and writes the result.
 */
#include "phub/commit.h"

#include "aggregation/kernels.h"
#include "phub/association.h"
#include "phub/base/stats.h"
#include "phub/coding.h"
#include "phub/lease.h"
#include "phub/lift.h"
#include "phub/link.h"
#include "phub/members.h"
#include "phub/parts.h"
#include "phub/replica.h"
#include "phub/reply.h"
#include "phub/snapshot.h"
#include "phub/stepwise.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

bool commit_is_late(const struct shard *shard)
{
	if (!shard->lease || !lease_is_over(shard->lease) || shard->plant == SHARD_PLANT_BEYOND)
		return false;
	shard->lease->missed = true;
	return true;
}

int commit_ready(const struct chunk *chunk, const struct shard *shard)
{
	const struct optimizer_hyper *hyper;

	if (shard->holds || shard->paused || chunk->lifted || commit_is_late(shard) ||
		(shard->stops && chunk->round >= shard->stops[chunk->index]))
		return -EAGAIN;
	if (chunk->sends > 0 && !spec_rows(shard->spec))
		return -EAGAIN;
	if (chunk->way != SPEC_HOME)
		return 0; /* what the step needs is asked for where it is made */
	if (shard->spec->optimizer == OPTIMIZER_NONE || chunk->kind == ROUND_BROADCAST)
		return 0; /* first weights take what the job was created with, as torch.optim's constructors do */
	return hypers_get(&shard->hypers, 0, chunk->hyper, chunk->group, &hyper);
}

/*
 * Does the result go past the caches? When workers map it (then their payloads stay put too), so that the reply does
 * not read it on this core, and a round is more than the core's cache holds, so that it would not stay there. Measured
 * with `phub bench exchange --transport shm --workers 4 --set stores=streamed` against `--set stores=cached`, 2 MiB of
 * second-level cache for each of 2 cores: box CPU per GB 0.83 of it at 1 MB and at 100 MB (zero-copy), 1.09 at 256 KB;
 * over tcp, whose send reads the result, 1.06 at 1 MB, 1.09 at 100 MB when it was tried.
 */
static enum stores commit_stores(const struct chunk *chunk, const struct shard *shard)
{
	if (!shard->beyond_cache || (const void *)chunk->weight == chunk->result)
		return STORES_CACHED;
	for (uint32_t rank = 0; rank < shard->spec->world; rank++) {
		const struct queue *q = shard->links[rank].queue;

		if (!q || q->hold_max != UINT_MAX)
			return STORES_CACHED;
	}
	return STORES_STREAMED;
}

static uint32_t commit_gather(const struct chunk *chunk, struct shard *shard)
{
	uint32_t count = 0;

	for (uint32_t rank = 0; rank < shard->spec->world; rank++) {
		const struct arrival *a = &chunk->arrivals[rank];

		if (a->state == ARRIVAL_HELD || a->state == ARRIVAL_STAGED)
			shard->sources[count++] = a->payload;
	}
	return count;
}

static void commit_set_weights(struct chunk *chunk, struct shard *shard)
{
	const struct spec *spec = shard->spec;
	const struct optimizer_hyper *hyper = &spec->groups[chunk->group];

	convert_to_f32(chunk->weight, chunk->result, (enum dtype)chunk->dtype, chunk->elements);
	for (unsigned i = 0; i < optimizer_state_count(spec->optimizer); i++)
		optimizer_state_init(spec->optimizer, hyper, i, chunk->state[i], chunk->elements);
	chunk->weights = true;
}

static void commit_broadcast(struct chunk *chunk, struct shard *shard, const struct sum_args *sum)
{
	const struct spec *spec = shard->spec;
	uint32_t rows = spec_rows(spec) ? spec->world : 1;

	/* Copied, not summed with nothing: no bit may change, not even of a signalling NaN. */
	memcpy(chunk->result, sum->src_count > 0 ? sum->src[0] : chunk->sum, chunk->bytes);
	for (uint32_t row = 1; row < rows; row++)
		memcpy(chunk->result + row * spec->plan.region_bytes, chunk->result, chunk->bytes);
	if (spec->optimizer != OPTIMIZER_NONE)
		commit_set_weights(chunk, shard);
}

static void commit_gradient(struct chunk *chunk, struct shard *shard, const struct sum_args *sum)
{
	struct step_args step = {.sum = *sum, .weight = chunk->weight};

	if (shard->spec->optimizer == OPTIMIZER_NONE) {
		shard->kernels->sum(sum);
		return;
	}
	if (spec_rows(shard->spec)) {
		step.sum.out = chunk->weight;
		step.sum.out_dtype = DTYPE_F32;
	}
	memcpy(step.state, chunk->state, sizeof(step.state));
	step.coef = commit_coef(chunk, shard, 0, chunk->hyper);
	chunk->steps++;
	shard->kernels->step(&step);
}

/* Where each rank has a result of its own: writes that of this one, which reads none now. */
static void commit_write_row(struct chunk *chunk, const struct shard *shard, uint32_t rank)
{
	struct arrival *a = &chunk->arrivals[rank];

	a->ahead = (uint32_t)(chunk->round - 1 - a->round);
	if (spec_rows(shard->spec))
		convert_from_f32(
			stepwise_row(chunk, shard, rank), (enum dtype)chunk->dtype, chunk->weight, chunk->elements);
}

const struct optimizer_coef *commit_coef(
	const struct chunk *chunk, struct shard *shard, uint32_t rank, uint32_t version)
{
	struct coef_cache *cache = &shard->coef;
	const struct optimizer_hyper *hyper = NULL;

	if (cache->valid && cache->rank == rank && cache->version == version && cache->group == chunk->group &&
		cache->step == chunk->steps + 1)
		return &cache->coef;
	hypers_get(&shard->hypers, rank, version, chunk->group, &hyper);
	assert(hyper);
	optimizer_prepare(shard->spec->optimizer, hyper, chunk->steps + 1, &cache->coef);
	cache->rank = rank;
	cache->version = version;
	cache->group = chunk->group;
	cache->step = chunk->steps + 1;
	cache->valid = true;
	return &cache->coef;
}

void commit_count_needed(struct chunk *chunk, const struct shard *shard)
{
	chunk->needed = 0;
	for (uint32_t rank = 0; rank < shard->spec->world; rank++)
		chunk->needed += members_takes_part(&chunk->arrivals[rank], chunk->round);
}

uint32_t commit_enough(const struct chunk *chunk, const struct shard *shard)
{
	uint32_t quorum = shard->spec->quorum;

	if (shard->plant == SHARD_PLANT_EARLY && chunk->kind == ROUND_GRADIENT && chunk->needed > 1)
		return chunk->needed - 1;
	return quorum > 0 && quorum < chunk->needed && chunk->kind == ROUND_GRADIENT ? quorum : chunk->needed;
}

/* Gives back what an open round kept, and makes the arrivals ready for another. */
static void commit_release(struct chunk *chunk, struct shard *shard)
{
	for (uint32_t rank = 0; rank < shard->spec->world; rank++) {
		struct arrival *a = &chunk->arrivals[rank];

		if (a->state == ARRIVAL_HELD && a->slot)
			link_release(&shard->links[rank], a->slot);
		else if (a->state == ARRIVAL_STAGED)
			shard->stages[shard->stage_free++] = (uint8_t *)(uintptr_t)a->payload;
		a->state = ARRIVAL_NONE;
		a->payload = NULL;
		a->slot = NULL;
	}
	parts_release(chunk, shard);
	chunk->summed = 0;
	chunk->arrived = 0;
	chunk->gradients = 0;
	chunk->kind = ROUND_OPEN;
}

void commit_withdraw(struct chunk *chunk, struct shard *shard)
{
	float *sum = NULL;

	if (chunk->kind == ROUND_OPEN)
		return;
	/* Planted: what has values for a whole payload stays, so that the next commit takes it for its own. */
	if (shard->plant == SHARD_PLANT_WITHDRAWN && chunk->kind == ROUND_GRADIENT && chunk->stored == chunk->bytes)
		sum = chunk->sum;
	if (chunk->parked) {
		chunk->parked = false;
		shard->parked_count--;
	}
	if (sum)
		chunk->sum = NULL; /* is not given back */
	commit_release(chunk, shard);
	chunk->sum = sum;
	chunk_close(chunk, shard);
}

void commit_answer(struct chunk *chunk, struct shard *shard, bool written)
{
	if (chunk->lifted && shard->plant != SHARD_PLANT_UNLIFTED)
		return;
	if (shard->plant == SHARD_PLANT_NEIGHBOUR && shard->next && shard->next->chunks[0].bytes >= chunk->bytes)
		memcpy(chunk->result, shard->next->chunks[0].result, chunk->bytes);
	for (uint32_t rank = 0; rank < shard->spec->world; rank++) {
		struct arrival *a = &chunk->arrivals[rank];

		if (!a->owed || !members_takes_part(a, chunk->round))
			continue;
		a->owed = false;
		if (!written)
			commit_write_row(chunk, shard, rank);
		reply_result(chunk, &shard->links[rank]);
	}
}

void commit_skip(struct chunk *chunk, struct shard *shard)
{
	uint64_t next = MEMBERS_NEVER;

	for (uint32_t rank = 0; rank < shard->spec->world; rank++)
		if (chunk->arrivals[rank].from < next)
			next = chunk->arrivals[rank].from;
	if (chunk->needed > 0 || next == MEMBERS_NEVER || chunk_is_up(chunk))
		return;
	if (chunk->way != SPEC_HOME) { /* the other box waits for them */
		chunk_fail(chunk, &shard->links[0], SHARD_FAIL_ALONE, chunk->round, 0);
		return;
	}
	stats_set(&chunk->round, next);
	commit_count_needed(chunk, shard);
	if (shard->replica)
		replica_renew(chunk, shard, false);
	commit_answer(chunk, shard, false);
}

/* The result is written: the next round collects, and this one is answered. */
static void commit_conclude(struct chunk *chunk, struct shard *shard, bool broadcast)
{
	stats_add(&shard->counters.rounds, 1);
	for (uint32_t rank = 0; rank < shard->spec->world; rank++) {
		struct arrival *a = &chunk->arrivals[rank];

		a->owed |= a->state != ARRIVAL_NONE;
		if (a->owed)
			a->round = chunk->round;
	}
	commit_release(chunk, shard);
	chunk_close(chunk, shard);
	stats_add(&chunk->round, 1);
	if (shard->stops && chunk->round == shard->stops[chunk->index])
		shard->stop_left--;
	commit_count_needed(chunk, shard);
	if (shard->replica && broadcast)
		replica_renew(chunk, shard, true);
	commit_answer(chunk, shard, broadcast);
}

void commit_land(struct chunk *chunk, struct shard *shard)
{
	bool broadcast = chunk->kind == ROUND_BROADCAST;

	chunk->lifted = false;
	chunk->weights = chunk->weights || broadcast;
	commit_conclude(chunk, shard, broadcast);
	if (chunk->needed == 0)
		commit_skip(chunk, shard);
}

void commit_round(struct chunk *chunk, struct shard *shard)
{
	struct sum_args sum = {
		.src = shard->sources,
		.src_dtype = (enum dtype)chunk->dtype,
		.out_dtype = (enum dtype)chunk->dtype,
		.scale = shard->spec->mean ? (float)(1.0 / chunk->gradients) : 1,
		.count = chunk->elements,
		.out = chunk->result,
		.stores = commit_stores(chunk, shard),
	};
	bool broadcast = chunk->kind == ROUND_BROADCAST;

	if (association_folds(chunk, shard->spec))
		association_fold(chunk, shard);
	else
		sum.src_count = commit_gather(chunk, shard);
	sum.acc = chunk->sum;
	assert(!chunk->sum || chunk->stored == chunk->bytes); /* each payload in it is all there */
	coding_renew(chunk);
	if (chunk->way != SPEC_HOME) {
		lift_round(chunk, shard, &sum);
		return;
	}
	if (shard->snapshot)
		snapshot_before_commit(chunk, shard);
	if (shard->replica && !broadcast)
		replica_lift(chunk, shard, &sum);
	if (broadcast)
		commit_broadcast(chunk, shard, &sum);
	else
		commit_gradient(chunk, shard, &sum);
	commit_conclude(chunk, shard, broadcast);
	if (broadcast && spec_stepwise(shard->spec))
		stepwise_begin(chunk, shard);
}

void commit_park(struct chunk *chunk, struct shard *shard)
{
	chunk->parked = true;
	shard->parked_count++;
	stats_add(&shard->counters.parked, 1);
}

void commit_full(struct chunk *chunk, const struct link *link)
{
	struct shard *shard = link->shard;
	int rc = commit_ready(chunk, shard);

	if (rc == -ESTALE)
		chunk_fail(chunk, link, SHARD_FAIL_HYPER_OLD, chunk->round, chunk->hyper);
	else if (rc == -EAGAIN)
		commit_park(chunk, shard);
	else
		commit_round(chunk, shard);
}

void commit_check(struct chunk *chunk, struct shard *shard)
{
	if (chunk_is_up(chunk))
		return; /* all have come, and it is on its way */
	if (chunk->parked && chunk->arrived < commit_enough(chunk, shard)) {
		chunk->parked = false; /* somebody is needed who was not when it was complete */
		shard->parked_count--;
	}
	if (chunk->kind != ROUND_OPEN && !chunk->parked && chunk->arrived >= commit_enough(chunk, shard))
		commit_full(chunk, &shard->links[0]);
}

void commit_retry_one(struct chunk *chunk, struct shard *shard)
{
	int rc = commit_ready(chunk, shard);

	if (rc == -EAGAIN)
		return;
	chunk->parked = false;
	shard->parked_count--;
	if (chunk->arrived < commit_enough(chunk, shard))
		return; /* a rank came meanwhile, and takes part in this round */
	if (rc < 0)
		chunk_fail(chunk, &shard->links[0], SHARD_FAIL_HYPER_OLD, chunk->round, chunk->hyper);
	else
		commit_round(chunk, shard);
}

void commit_landed(struct chunk *chunk, struct shard *shard, bool written)
{
	chunk->lifted = false;
	if (shard->plant != SHARD_PLANT_UNLIFTED)
		commit_answer(chunk, shard, written);
	if (chunk->parked && !shard->failed)
		commit_retry_one(chunk, shard);
}

void commit_retry(struct shard *shard, uint64_t now_ns)
{
	uint32_t next;

	for (uint32_t i = shard->open_oldest; i != CHUNK_NONE && shard->parked_count > 0; i = next) {
		struct chunk *chunk = &shard->chunks[i];

		next = chunk->newer;
		if (shard->failed)
			return;
		if (!chunk->parked)
			continue;
		if (spec_stepwise(shard->spec) && chunk->weights)
			stepwise_retry(chunk, shard, now_ns);
		else
			commit_retry_one(chunk, shard);
	}
}
