/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collects the contributions of a round: the heart of the box. Sums touch each payload once, in cache, on the core that
 * received it; what the last arrival brings goes straight into the pass that commits (commit.c).
 */
#include "phub/chunk.h"

#include "phub/base/stats.h"
#include "aggregation/kernels.h"
#include "aggregation/sparse.h"
#include "phub/association.h"
#include "phub/coding.h"
#include "phub/commit.h"
#include "phub/link.h"
#include "phub/members.h"
#include "phub/mirror.h"
#include "phub/parts.h"
#include "phub/reply.h"
#include "phub/stepwise.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

/* ---- the list of open chunks, oldest first: what a stall is told from ---- */

void chunk_open(struct chunk *chunk, struct shard *shard, uint64_t now_ns)
{
	uint32_t me = chunk_local(shard, chunk);

	chunk->opened_ns = now_ns;
	chunk->older = shard->open_newest;
	chunk->newer = CHUNK_NONE;
	if (shard->open_newest == CHUNK_NONE)
		shard->open_oldest = me;
	else
		shard->chunks[shard->open_newest].newer = me;
	shard->open_newest = me;
}

void chunk_close(struct chunk *chunk, struct shard *shard)
{
	if (chunk->older == CHUNK_NONE)
		shard->open_oldest = chunk->newer;
	else
		shard->chunks[chunk->older].newer = chunk->newer;
	if (chunk->newer == CHUNK_NONE)
		shard->open_newest = chunk->older;
	else
		shard->chunks[chunk->newer].older = chunk->older;
	chunk->older = CHUNK_NONE;
	chunk->newer = CHUNK_NONE;
}

void chunk_fail(struct chunk *chunk, const struct link *link, enum shard_failure what, uint64_t round, uint64_t detail)
{
	struct shard *shard = link->shard;
	struct mail mail = {
		.kind = MAIL_FAILED,
		.core = shard->core,
		.shard = shard,
		.job = shard->spec->id,
		.generation = shard->spec->generation,
		.rank = link->rank,
		.chunk = chunk->index,
		.round = round,
		.value = what,
		.detail = detail,
	};

	if (shard->failed)
		return;
	shard->failed = true;
	shard->failure = mail;
	shard->failure_untold = mailbox_send(shard->control, &mail) < 0;
}

/* ---- what happens to one payload ---- */

/* Holding must leave the worker a credit, and the transport its slots: it is an optimization, never a right. */
static bool chunk_may_hold(const struct link *link, const void *slot)
{
	const struct queue *q = link->queue;

	if (!slot)
		return false;
	return q->hold_max == UINT_MAX || (q->held < q->hold_max && link->held + 1 < link->window);
}

static void chunk_hold(struct arrival *a, const struct contribution *c, const void *payload)
{
	a->state = ARRIVAL_HELD;
	a->payload = payload;
	a->slot = c->slot;
	c->link->held++;
	c->link->queue->held++;
	stats_add(&c->link->shard->counters.held, 1);
	stats_add(&c->link->shard->counters.slots_kept, 1);
}

static void chunk_stage(struct chunk *chunk, const struct contribution *c, const void *payload, enum dtype dtype)
{
	struct shard *shard = c->link->shard;
	struct arrival *a = &chunk->arrivals[c->link->rank];
	uint8_t *stage;

	assert(shard->stage_free > 0); /* admission counted one for every early payload */
	stage = shard->stages[--shard->stage_free];
	if (c->header->coded)
		sparse_decode(stage, payload, dtype, chunk->elements);
	else
		memcpy(stage, payload, chunk->elements * dtype_size(dtype));
	a->state = ARRIVAL_STAGED;
	a->payload = stage;
	stats_add(&shard->counters.staged, 1);
}

static void chunk_sum(struct chunk *chunk, const struct contribution *c, const void *payload, enum dtype dtype)
{
	struct shard *shard = c->link->shard;

	if (c->header->coded)
		sparse_add(chunk->sum, payload, dtype, chunk->elements);
	else if (dtype == (enum dtype)chunk->dtype)
		parts_sum(chunk, shard, payload, 0, chunk->bytes);
	else
		parts_sum_as(chunk, shard, payload, dtype);
	chunk->arrivals[c->link->rank].state = ARRIVAL_SUMMED;
	chunk->summed++;
	stats_add(&shard->counters.added, 1);
}

/* Must it wait for others, as the order of the sum is fixed? */
static bool chunk_waits(const struct chunk *chunk, const struct shard *shard, uint32_t rank)
{
	return chunk->kind == ROUND_GRADIENT && (rank != chunk->summed || association_folds(chunk, shard->spec));
}

/* Takes in a payload that is not the one that commits the round. Returns 1 when its slot is kept. */
static int chunk_absorb(struct chunk *chunk, const struct contribution *c, const void *payload, const void *slot)
{
	struct shard *shard = c->link->shard;
	struct arrival *a = &chunk->arrivals[c->link->rank];
	enum dtype dtype = chunk_payload_dtype(chunk, shard->spec, c->link->rank, c->header->type);

	if (c->header->type == WIRE_PULL) {
		a->state = ARRIVAL_EMPTY;
		return 0;
	}
	if (dtype == (enum dtype)chunk->dtype && !c->header->coded && chunk_may_hold(c->link, slot)) {
		chunk_hold(a, c, payload);
		return 1;
	}
	if (shard->spec->reproducible && chunk_waits(chunk, shard, c->link->rank))
		chunk_stage(chunk, c, payload, dtype);
	else
		chunk_sum(chunk, c, payload, dtype);
	return 0;
}

/* Applies the job's policy to NaN and infinity. Returns the payload to use, or NULL when the job has failed by it. */
const void *chunk_clean(struct chunk *chunk, const struct contribution *c)
{
	struct shard *shard = c->link->shard;
	enum dtype dtype = (enum dtype)chunk->dtype;
	size_t size, elements;
	ptrdiff_t at;

	if (c->header->coded)
		return coding_clean(chunk, c);
	if (c->header->type != WIRE_PUSH || shard->spec->nan == NAN_PASS || spec_is_box(shard->spec, c->link->rank))
		return c->payload; /* of a sum the box below has looked at what is in it */
	size = dtype_size(dtype);
	elements = c->bytes / size;
	at = shard->kernels->find_nonfinite(c->payload, dtype, elements);
	if (at < 0)
		return c->payload;
	if (shard->spec->nan == NAN_FAIL) {
		chunk_fail(chunk, c->link, SHARD_FAIL_NAN, c->header->round, c->offset / size + (uint64_t)at);
		return NULL;
	}
	stats_add(&shard->counters.nonfinite,
		shard->kernels->zero_nonfinite(shard->scratch, c->payload, dtype, elements));
	return shard->scratch;
}

/* ---- what comes of links ---- */

struct chunk *chunk_find(const struct shard *shard, uint32_t index)
{
	uint32_t low = 0, high = shard->chunk_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (shard->chunks[middle].index < index)
			low = middle + 1;
		else
			high = middle;
	}
	return low < shard->chunk_count && shard->chunks[low].index == index ? &shard->chunks[low] : NULL;
}

/*
 * The last contribution: if nothing lacks, its payload goes straight from where it lies into the pass that commits.
 * Returns 1 when its slot is kept: only if the commit was parked.
 */
static int chunk_complete(struct chunk *chunk, const struct contribution *c, const void *payload, const void *slot)
{
	struct shard *shard = c->link->shard;
	struct arrival *a = &chunk->arrivals[c->link->rank];
	int rc = commit_ready(chunk, shard);
	int kept;

	if (rc == -ESTALE) {
		chunk_fail(chunk, c->link, SHARD_FAIL_HYPER_OLD, chunk->round, chunk->hyper);
		return 0;
	}
	if (rc == -EAGAIN) {
		kept = chunk_absorb(chunk, c, payload, slot);
		commit_park(chunk, shard);
		return kept;
	}
	if (c->header->coded ||
		chunk_payload_dtype(chunk, shard->spec, c->link->rank, c->header->type) != (enum dtype)chunk->dtype) {
		chunk_absorb(chunk, c, payload, NULL);
		commit_round(chunk, shard);
		return 0;
	}
	if (c->header->type == WIRE_PULL) {
		a->state = ARRIVAL_EMPTY;
	} else {
		a->state = ARRIVAL_HELD; /* for the length of this call, without a slot */
		a->payload = payload;
		a->slot = NULL;
	}
	commit_round(chunk, shard);
	return 0;
}

void chunk_sent(struct chunk *chunk, struct link *link, uint64_t now_ns)
{
	struct shard *shard = link->shard;
	struct arrival *a = &chunk->arrivals[link->rank];

	(void)now_ns;
	assert(a->sends > 0 && chunk->sends > 0);
	a->sends--;
	chunk->sends--;
	link->sends--;
	stats_add(&shard->counters.sends_done, 1);
	if (chunk->parked && chunk->sends == 0 && !shard->failed && !(spec_stepwise(shard->spec) && chunk->weights))
		commit_retry_one(chunk, shard);
	/* A result that could not be sealed while another was read. */
	for (uint32_t rank = 0; shard->sealing && chunk->sends == 0 && rank < shard->spec->world; rank++)
		if (chunk->arrivals[rank].due && shard->links[rank].conn)
			reply_writable(&shard->links[rank]);
}

void chunk_forget(struct chunk *chunk, const struct link *link)
{
	struct shard *shard = link->shard;
	struct arrival *a = &chunk->arrivals[link->rank];

	assert(a->state == ARRIVAL_HELD && chunk->arrived > 0);
	a->state = ARRIVAL_NONE;
	a->payload = NULL;
	chunk->gradients -= a->count;
	chunk->arrived--;
	if (chunk->parked && chunk->arrived < commit_enough(chunk, shard)) { /* with a quorum others may be enough */
		chunk->parked = false;
		shard->parked_count--;
	}
	if (chunk->arrived > 0 || (chunk->sum && !chunk->sparse))
		return;              /* others have come, or parts of theirs */
	parts_release(chunk, shard); /* a sparse one's is there from the beginning */
	chunk_close(chunk, shard);
	chunk->kind = ROUND_OPEN;
}

/* ---- admission of one contribution ---- */

void chunk_answer_again(struct chunk *chunk, struct link *link, uint64_t round)
{
	struct arrival *a = &chunk->arrivals[link->rank];
	bool own = spec_rows(link->shard->spec) && chunk->weights;
	bool lost = link->queue->lossy || (link->again && a->answered != (uint8_t)link->serial);

	if (!lost || (own ? round != a->round : round + 1 != chunk->round))
		return;
	if (own && a->from == round + 1)
		return; /* comes to a job that has failed meanwhile: what its row has is of who was here before it */
	if (a->state != ARRIVAL_NONE || a->owed || a->due || a->sends > 0)
		return;
	a->round = round; /* it may have come for that one, and have had no part in it */
	reply_result(chunk, link);
}

/*
 * A contribution for a round that is committed, or a second one for this round: dropped, or answered again if it
 * may be lost.
 */
static int chunk_repeat(struct chunk *chunk, const struct contribution *c)
{
	struct shard *shard = c->link->shard;

	if (!c->last)
		return 0; /* with the last of its parts */
	if (c->header->round == chunk->round || c->header->round + 1 == chunk->round)
		stats_add(&shard->counters.dropped[DROP_DUPLICATE], 1);
	else
		stats_add(&shard->counters.dropped[DROP_STALE], 1);
	c->link->credit_due = c->link->queue->lossy;
	chunk_answer_again(chunk, c->link, c->header->round);
	return 0;
}

/* Does this contribution fit the round? 0, or the failure that it is. */
static int chunk_judge(const struct chunk *chunk, const struct contribution *c)
{
	const struct shard *shard = c->link->shard;
	bool optimizer = shard->spec->optimizer != OPTIMIZER_NONE;
	bool box = spec_is_box(shard->spec, c->link->rank);
	enum wire_type type = c->header->type;
	enum round_kind kind = type == WIRE_PUSH ? ROUND_GRADIENT : ROUND_BROADCAST;

	if (kind == ROUND_GRADIENT && !chunk->weights)
		return SHARD_FAIL_NO_WEIGHTS;
	if (kind == ROUND_BROADCAST && optimizer && chunk->weights)
		return SHARD_FAIL_KIND;
	if (kind == ROUND_BROADCAST && optimizer && !box && (type == WIRE_INIT) != (c->link->rank == shard->spec->root))
		return SHARD_FAIL_KIND;
	if (type == WIRE_PULL && chunk->arrived + 1 == chunk->needed && chunk->gradients == 0 &&
		chunk->way == SPEC_HOME)
		return SHARD_FAIL_KIND; /* nobody is the root: also where one alone is needed */
	if (chunk->kind == ROUND_OPEN)
		return 0;
	if (chunk->kind != kind)
		return SHARD_FAIL_KIND;
	if (kind == ROUND_GRADIENT)
		return c->header->hyper == chunk->hyper ? 0 : SHARD_FAIL_HYPER;
	return type == WIRE_INIT && chunk->gradients > 0 ? SHARD_FAIL_KIND : 0;
}

/* A contribution that belongs to the round: its first part, or all of it. */
static void chunk_begin(struct chunk *chunk, const struct contribution *c)
{
	struct arrival *a = &chunk->arrivals[c->link->rank];

	if (chunk->kind == ROUND_OPEN) {
		chunk_open(chunk, c->link->shard, c->now_ns);
		chunk->kind = c->header->type == WIRE_PUSH ? ROUND_GRADIENT : ROUND_BROADCAST;
		chunk->hyper = c->header->hyper;
		if (chunk->sparse && chunk->kind == ROUND_GRADIENT && !association_folds(chunk, c->link->shard->spec))
			coding_begin(chunk, c->link->shard);
	}
	a->priority = c->header->priority;
	a->hyper = c->header->hyper;
	a->count = c->header->type == WIRE_PULL ? 0 : c->header->count;
	chunk->gradients += a->count;
}

/* What has come whole: adds, keeps or commits it. Returns 1 when its slot is kept. */
static int chunk_take(struct chunk *chunk, const struct contribution *c, const void *payload)
{
	void *slot = payload == c->payload ? c->slot : NULL; /* a cleaned copy cannot be held */

	chunk->arrived++;
	if (chunk->arrived == commit_enough(chunk, c->link->shard))
		return chunk_complete(chunk, c, payload, slot);
	return chunk_absorb(chunk, c, payload, slot);
}

/*
 * Is it of who comes to a job that runs, before its first round? Then it is answered with the weights, or the sum, of
 * the round before: when that is committed, so that its first push does not come too early either.
 */
static bool chunk_is_visit(const struct chunk *chunk, const struct contribution *c)
{
	const struct arrival *a = &chunk->arrivals[c->link->rank];

	return c->header->type == WIRE_PULL && a->from > 0 && c->header->round + 1 == a->from;
}

bool chunk_visits_anew(const struct arrival *a, const struct link *link)
{
	return !a->due && a->sends == 0 && (link->queue->lossy || a->answered != (uint8_t)link->serial);
}

static int chunk_visit(struct chunk *chunk, const struct contribution *c)
{
	struct shard *shard = c->link->shard;
	struct arrival *a = &chunk->arrivals[c->link->rank];

	if (!chunk_visits_anew(a, c->link) || a->state != ARRIVAL_NONE)
		return 0;
	a->priority = c->header->priority;
	a->round = c->header->round;
	a->owed = true;
	if (chunk->round >= a->from)
		commit_answer(chunk, shard, false);
	return 0;
}

/* Its round was closed by the quorum: it has no part in it, and gets the weights of today as the result of its round.
 */
static int chunk_late(struct chunk *chunk, const struct contribution *c)
{
	struct shard *shard = c->link->shard;
	struct arrival *a = &chunk->arrivals[c->link->rank];

	stats_add(&shard->counters.dropped[DROP_LATE], 1);
	a->priority = c->header->priority;
	a->hyper = c->header->hyper;
	a->round = c->header->round;
	a->owed = true;
	commit_answer(chunk, shard, false);
	return 0;
}

/* Where each rank has a result of its own: -EPROTO or 0 when this one came before that may be written; else 1. */
static int chunk_row_free(const struct chunk *chunk, const struct contribution *c)
{
	const struct arrival *a = &chunk->arrivals[c->link->rank];

	if (!spec_rows(c->link->shard->spec) || c->header->round <= a->round || (a->sends == 0 && !a->due))
		return 1;
	if (!c->link->queue->lossy)
		return -EPROTO;
	stats_add(&c->link->shard->counters.dropped[DROP_BUSY], 1);
	return 0;
}

/* For tests: is what came before taken once more? */
static bool chunk_doubles(const struct chunk *chunk, const struct contribution *c)
{
	return c->link->shard->plant == SHARD_PLANT_DUPLICATE && chunk->arrivals[c->link->rank].state == ARRIVAL_SUMMED;
}

int chunk_add(struct chunk *chunk, const struct contribution *c)
{
	const struct arrival *a = &chunk->arrivals[c->link->rank];
	bool part = parts_is(c);
	int failure = 0, more = 0, rc;
	const void *payload;

	if (spec_stepwise(c->link->shard->spec) && chunk->weights)
		return stepwise_add(chunk, c);
	if (c->link->shard->spec->mirror && c->header->type != WIRE_PUSH)
		return mirror_add(chunk, c);
	if (chunk_is_visit(chunk, c))
		return chunk_visit(chunk, c);
	rc = chunk_row_free(chunk, c);
	if (rc <= 0)
		return rc;
	if (c->header->round > chunk->round)
		return c->header->round == 1 && chunk->round == 0
			       ? (chunk_fail(chunk, c->link, SHARD_FAIL_NO_WEIGHTS, 1, 0), 0)
			       : -EPROTO;
	if (part || a->state == ARRIVAL_PARTIAL)
		more = parts_check(chunk, c);
	if (more < 0)
		return more;
	if (!more) {
		if (c->link->shard->spec->quorum && c->header->round < chunk->round && c->header->round > a->round)
			return chunk_late(chunk, c);
		if (c->header->round < chunk->round || (a->state != ARRIVAL_NONE && !chunk_doubles(chunk, c)))
			return chunk_repeat(chunk, c);
		if (!members_takes_part(a, c->header->round))
			return -EPROTO;
		failure = chunk_judge(chunk, c);
	}
	if (failure) {
		chunk_fail(chunk, c->link, (enum shard_failure)failure, c->header->round,
			failure == SHARD_FAIL_HYPER ? c->header->hyper : (uint64_t)c->header->type);
		return 0;
	}
	payload = chunk_clean(chunk, c);
	if (!payload && c->header->type != WIRE_PULL)
		return 0;
	if (!more)
		chunk_begin(chunk, c);
	if (!part)
		return chunk_take(chunk, c, payload);
	parts_add(chunk, c, payload);
	return 0;
}
