/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps in order of arrival. A push whose hyper-parameters are still in the mail waits in its own result row, which is
 * free by then, so that parking costs no memory.
 */
#include "phub/stepwise.h"

#include "phub/base/stats.h"
#include "aggregation/kernels.h"
#include "phub/commit.h"
#include "phub/members.h"
#include "phub/reply.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

uint8_t *stepwise_row(const struct chunk *chunk, const struct shard *shard, uint32_t rank)
{
	return chunk->result + rank * shard->spec->plan.region_bytes;
}

uint64_t stepwise_slowest(const struct chunk *chunk, const struct shard *shard)
{
	uint64_t slowest = UINT64_MAX;

	for (uint32_t rank = 0; rank < shard->spec->world; rank++) {
		const struct arrival *a = &chunk->arrivals[rank];

		if (a->from != MEMBERS_NEVER && a->round < slowest)
			slowest = a->round;
	}
	return slowest == UINT64_MAX ? chunk->round - 1 : slowest;
}

bool stepwise_missing(const struct chunk *chunk, const struct shard *shard, uint32_t rank)
{
	uint64_t needed = 0;

	for (uint32_t other = 0; other < shard->spec->world; other++) {
		const struct arrival *a = &chunk->arrivals[other];

		if (a->owed && a->round > shard->spec->staleness && a->round - shard->spec->staleness > needed)
			needed = a->round - shard->spec->staleness;
	}
	return chunk->arrivals[rank].from != MEMBERS_NEVER && chunk->arrivals[rank].round < needed;
}

/* What a step needs beside its payload: 0, -EAGAIN or -ESTALE. */
static int stepwise_ready(const struct chunk *chunk, const struct shard *shard, uint32_t rank)
{
	const struct optimizer_hyper *hyper;

	if (shard->holds || shard->paused || commit_is_late(shard))
		return -EAGAIN;
	return hypers_get(&shard->hypers, rank, chunk->arrivals[rank].hyper, chunk->group, &hyper);
}

/* `arrived` counts what is open in a stepwise chunk: answers owed and pushes parked. */
static void stepwise_open(struct chunk *chunk, struct shard *shard, uint64_t now_ns)
{
	if (chunk->arrived++ == 0)
		chunk_open(chunk, shard, now_ns);
}

static void stepwise_close(struct chunk *chunk, struct shard *shard)
{
	if (--chunk->arrived == 0)
		chunk_close(chunk, shard);
}

/* Answers all whose turn has come: with the weights as they are now. */
void stepwise_answer(struct chunk *chunk, struct shard *shard)
{
	uint64_t slowest = stepwise_slowest(chunk, shard);

	for (uint32_t rank = 0; rank < shard->spec->world; rank++) {
		struct arrival *a = &chunk->arrivals[rank];

		if (!a->owed || a->round > slowest + shard->spec->staleness)
			continue;
		convert_from_f32(
			stepwise_row(chunk, shard, rank), (enum dtype)chunk->dtype, chunk->weight, chunk->elements);
		a->owed = false;
		stepwise_close(chunk, shard);
		reply_result(chunk, &shard->links[rank]);
	}
}

void stepwise_begin(struct chunk *chunk, struct shard *shard)
{
	for (uint32_t rank = 0; rank < shard->spec->world; rank++) {
		struct arrival *a = &chunk->arrivals[rank];

		if (a->from == MEMBERS_NEVER)
			continue;
		a->round = a->from > 0 ? a->from - 1 : 0;
		if (!a->owed)
			continue;
		a->owed = false;
		reply_result(chunk, &shard->links[rank]);
	}
}

void stepwise_withdraw(struct chunk *chunk, struct shard *shard, uint32_t rank)
{
	struct arrival *a = &chunk->arrivals[rank];

	if (a->state == ARRIVAL_PARKED) {
		a->state = ARRIVAL_NONE;
		stepwise_close(chunk, shard);
	}
	if (a->owed) {
		a->owed = false;
		stepwise_close(chunk, shard);
	}
	for (uint32_t other = 0; other < shard->spec->world; other++)
		if (chunk->arrivals[other].state == ARRIVAL_PARKED)
			return;
	shard->parked_count -= chunk->parked;
	chunk->parked = false;
}

static void stepwise_step(struct chunk *chunk, struct shard *shard, uint32_t rank, const void *payload, uint64_t now_ns)
{
	struct arrival *a = &chunk->arrivals[rank];
	bool async = shard->spec->sync == SYNC_ASYNC;
	struct step_args step = {
		.sum = {.src = &payload,
			.src_count = 1,
			.src_dtype = (enum dtype)chunk->dtype,
			.out_dtype = async ? (enum dtype)chunk->dtype : DTYPE_F32,
			.scale = 1,
			.count = chunk->elements,
			.out = async ? (void *)stepwise_row(chunk, shard, rank) : chunk->weight},
		.weight = chunk->weight,
	};

	memcpy(step.state, chunk->state, sizeof(step.state));
	step.coef = commit_coef(chunk, shard, rank, a->hyper);
	chunk->steps++;
	shard->kernels->step(&step);
	stats_add(&shard->counters.rounds, 1);
	a->round++;
	if (shard->trace)
		trace_add(shard->trace, now_ns, TRACE_STEP, chunk->index, rank, a->round);
	if (async) {
		reply_result(chunk, &shard->links[rank]);
		return;
	}
	a->owed = true;
	stepwise_open(chunk, shard, now_ns);
	stepwise_answer(chunk, shard);
}

static void stepwise_park(struct chunk *chunk, struct shard *shard, uint32_t rank, const void *payload, uint64_t now_ns)
{
	memcpy(stepwise_row(chunk, shard, rank), payload, chunk->bytes);
	chunk->arrivals[rank].state = ARRIVAL_PARKED;
	if (!chunk->parked) {
		chunk->parked = true;
		shard->parked_count++;
	}
	stats_add(&shard->counters.parked, 1);
	stepwise_open(chunk, shard, now_ns);
}

void stepwise_retry(struct chunk *chunk, struct shard *shard, uint64_t now_ns)
{
	bool left = false;

	for (uint32_t rank = 0; rank < shard->spec->world && !shard->failed; rank++) {
		struct arrival *a = &chunk->arrivals[rank];
		int rc;

		if (a->state != ARRIVAL_PARKED)
			continue;
		rc = stepwise_ready(chunk, shard, rank);
		if (rc == -EAGAIN) {
			left = true;
			continue;
		}
		a->state = ARRIVAL_NONE;
		stepwise_close(chunk, shard);
		if (rc < 0)
			chunk_fail(chunk, &shard->links[rank], SHARD_FAIL_HYPER_OLD, a->round + 1, a->hyper);
		else
			stepwise_step(chunk, shard, rank, stepwise_row(chunk, shard, rank), now_ns);
	}
	if (!left && chunk->parked) {
		chunk->parked = false;
		shard->parked_count--;
	}
}

static int stepwise_repeat(struct chunk *chunk, const struct contribution *c)
{
	struct arrival *a = &chunk->arrivals[c->link->rank];
	struct shard *shard = c->link->shard;
	bool same = c->header->round == a->round || a->state == ARRIVAL_PARKED;

	stats_add(&shard->counters.dropped[same ? DROP_DUPLICATE : DROP_STALE], 1);
	c->link->credit_due = c->link->queue->lossy;
	chunk_answer_again(chunk, c->link, c->header->round);
	return 0;
}

int stepwise_add(struct chunk *chunk, const struct contribution *c)
{
	struct shard *shard = c->link->shard;
	uint32_t rank = c->link->rank;
	struct arrival *a = &chunk->arrivals[rank];
	const void *payload;
	int rc;

	if (c->header->type == WIRE_PULL && c->header->round == a->round && a->from == a->round + 1 && !a->owed) {
		/* Comes to a job that runs, before its first step. */
		if (!chunk_visits_anew(a, c->link))
			return 0;
		a->priority = c->header->priority;
		convert_from_f32(
			stepwise_row(chunk, shard, rank), (enum dtype)chunk->dtype, chunk->weight, chunk->elements);
		if (shard->trace)
			trace_add(shard->trace, c->now_ns, TRACE_VISIT, chunk->index, rank, a->round);
		reply_result(chunk, c->link);
		return 0;
	}
	if (c->header->round <= a->round || a->state == ARRIVAL_PARKED)
		return stepwise_repeat(chunk, c);
	if (c->header->type != WIRE_PUSH) {
		chunk_fail(chunk, c->link, SHARD_FAIL_KIND, c->header->round, (uint64_t)c->header->type);
		return 0;
	}
	if (c->header->round > a->round + 1 || a->owed)
		return -EPROTO;
	if (a->sends > 0 || a->due) {
		if (!c->link->queue->lossy)
			return -EPROTO;
		stats_add(&shard->counters.dropped[DROP_BUSY], 1);
		return 0;
	}
	payload = chunk_clean(chunk, c);
	if (!payload)
		return 0;
	a->priority = c->header->priority;
	a->hyper = c->header->hyper;
	rc = stepwise_ready(chunk, shard, rank);
	if (rc == -EAGAIN)
		stepwise_park(chunk, shard, rank, payload, c->now_ns);
	else if (rc < 0)
		chunk_fail(chunk, c->link, SHARD_FAIL_HYPER_OLD, c->header->round, a->hyper);
	else
		stepwise_step(chunk, shard, rank, payload, c->now_ns);
	return 0;
}
