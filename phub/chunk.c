/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collects the contributions of a round and commits it: the heart of the box. Sums touch each payload once,
 * in cache, on the core that received it; the last arrival's pass also runs the optimizer and writes the result.
 */
#include "phub/chunk.h"

#include "phub/base/stats.h"
#include "aggregation/kernels.h"
#include "phub/link.h"
#include "phub/members.h"
#include "phub/mirror.h"
#include "phub/parts.h"
#include "phub/replica.h"
#include "phub/reply.h"
#include "phub/snapshot.h"
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

static void chunk_stage(struct chunk *chunk, struct shard *shard, struct arrival *a, const void *payload)
{
	uint8_t *stage;

	assert(shard->stage_free > 0); /* admission counted one for every early payload */
	stage = shard->stages[--shard->stage_free];
	memcpy(stage, payload, chunk->bytes);
	a->state = ARRIVAL_STAGED;
	a->payload = stage;
	stats_add(&shard->counters.staged, 1);
}

static void chunk_sum(struct chunk *chunk, struct shard *shard, struct arrival *a, const void *payload)
{
	parts_sum(chunk, shard, payload, 0, chunk->bytes);
	a->state = ARRIVAL_SUMMED;
	chunk->summed++;
	stats_add(&shard->counters.added, 1);
}

/* Takes in a payload that is not the one that commits the round. Returns 1 when its slot is kept. */
static int chunk_absorb(struct chunk *chunk, const struct contribution *c, const void *payload, const void *slot)
{
	struct shard *shard = c->link->shard;
	struct arrival *a = &chunk->arrivals[c->link->rank];
	bool ordered = shard->spec->reproducible && chunk->kind == ROUND_GRADIENT;

	if (c->header->type == WIRE_PULL) {
		a->state = ARRIVAL_EMPTY;
		return 0;
	}
	if (chunk_may_hold(c->link, slot)) {
		chunk_hold(a, c, payload);
		return 1;
	}
	if (ordered && c->link->rank != chunk->summed)
		chunk_stage(chunk, shard, a, payload);
	else
		chunk_sum(chunk, shard, a, payload);
	return 0;
}

/* Applies the job's policy to NaN and infinity. Returns the payload to use, or NULL when the job has failed by it. */
const void *chunk_clean(struct chunk *chunk, const struct contribution *c)
{
	struct shard *shard = c->link->shard;
	enum dtype dtype = (enum dtype)chunk->dtype;
	size_t size, elements;
	ptrdiff_t at;

	if (c->header->type != WIRE_PUSH || shard->spec->nan == NAN_PASS)
		return c->payload;
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

/* ---- the commit ---- */

/* Everything that the commit of a complete round needs, besides the payloads: 0, or -EAGAIN, or -ESTALE. */
static int chunk_ready(const struct chunk *chunk, const struct shard *shard)
{
	const struct optimizer_hyper *hyper;

	if (shard->holds || shard->paused || chunk->lifted ||
		(shard->stops && chunk->round >= shard->stops[chunk->index]))
		return -EAGAIN;
	if (chunk->sends > 0 && !spec_rows(shard->spec))
		return -EAGAIN;
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
static enum stores chunk_stores(const struct chunk *chunk, const struct shard *shard)
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

static uint32_t chunk_gather(const struct chunk *chunk, struct shard *shard)
{
	uint32_t count = 0;

	for (uint32_t rank = 0; rank < shard->spec->world; rank++) {
		const struct arrival *a = &chunk->arrivals[rank];

		if (a->state == ARRIVAL_HELD || a->state == ARRIVAL_STAGED)
			shard->sources[count++] = a->payload;
	}
	return count;
}

static void chunk_set_weights(struct chunk *chunk, struct shard *shard)
{
	const struct spec *spec = shard->spec;
	const struct optimizer_hyper *hyper = &spec->groups[chunk->group];

	convert_to_f32(chunk->weight, chunk->result, (enum dtype)chunk->dtype, chunk->elements);
	for (unsigned i = 0; i < optimizer_state_count(spec->optimizer); i++)
		optimizer_state_init(spec->optimizer, hyper, i, chunk->state[i], chunk->elements);
	chunk->weights = true;
}

static void chunk_commit_broadcast(struct chunk *chunk, struct shard *shard, const struct sum_args *sum)
{
	const struct spec *spec = shard->spec;
	uint32_t rows = spec_rows(spec) ? spec->world : 1;

	/* Copied, not summed with nothing: no bit may change, not even of a signalling NaN. */
	memcpy(chunk->result, sum->src_count > 0 ? sum->src[0] : chunk->sum, chunk->bytes);
	for (uint32_t row = 1; row < rows; row++)
		memcpy(chunk->result + row * spec->plan.region_bytes, chunk->result, chunk->bytes);
	if (spec->optimizer != OPTIMIZER_NONE)
		chunk_set_weights(chunk, shard);
}

static void chunk_commit_gradient(struct chunk *chunk, struct shard *shard, const struct sum_args *sum)
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
	step.coef = chunk_coef(chunk, shard, 0, chunk->hyper);
	chunk->steps++;
	shard->kernels->step(&step);
}

/* Where each rank has a result of its own: writes that of this one, which reads none now. */
static void chunk_write_row(struct chunk *chunk, const struct shard *shard, uint32_t rank)
{
	struct arrival *a = &chunk->arrivals[rank];

	a->ahead = (uint32_t)(chunk->round - 1 - a->round);
	if (spec_rows(shard->spec))
		convert_from_f32(
			stepwise_row(chunk, shard, rank), (enum dtype)chunk->dtype, chunk->weight, chunk->elements);
}

const struct optimizer_coef *chunk_coef(const struct chunk *chunk, struct shard *shard, uint32_t rank, uint32_t version)
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

void chunk_count_needed(struct chunk *chunk, const struct shard *shard)
{
	chunk->needed = 0;
	for (uint32_t rank = 0; rank < shard->spec->world; rank++)
		chunk->needed += members_takes_part(&chunk->arrivals[rank], chunk->round);
}

/* So many make a round. */
static uint32_t chunk_enough(const struct chunk *chunk, const struct shard *shard)
{
	uint32_t quorum = shard->spec->quorum;

	if (shard->plant == SHARD_PLANT_EARLY && chunk->kind == ROUND_GRADIENT && chunk->needed > 1)
		return chunk->needed - 1;
	return quorum > 0 && quorum < chunk->needed && chunk->kind == ROUND_GRADIENT ? quorum : chunk->needed;
}

/* Gives back what an open round kept, and makes the arrivals ready for another. */
static void chunk_release(struct chunk *chunk, struct shard *shard)
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

void chunk_withdraw(struct chunk *chunk, struct shard *shard)
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
	chunk_release(chunk, shard);
	chunk->sum = sum;
	chunk_close(chunk, shard);
}

/*
 * Answers those who have pushed the round that is committed, or, before they take part, asked for its weights.
 * `written`: their rows have it. Not while the standby does not have the round: then they are answered when it has.
 */
static void chunk_answer(struct chunk *chunk, struct shard *shard, bool written)
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
			chunk_write_row(chunk, shard, rank);
		reply_result(chunk, &shard->links[rank]);
	}
}

void chunk_skip(struct chunk *chunk, struct shard *shard)
{
	uint64_t next = MEMBERS_NEVER;

	for (uint32_t rank = 0; rank < shard->spec->world; rank++)
		if (chunk->arrivals[rank].from < next)
			next = chunk->arrivals[rank].from;
	if (chunk->needed > 0 || next == MEMBERS_NEVER)
		return;
	stats_set(&chunk->round, next);
	chunk_count_needed(chunk, shard);
	if (shard->uplink)
		replica_renew(chunk, shard, false);
	chunk_answer(chunk, shard, false);
}

static void chunk_commit(struct chunk *chunk, struct shard *shard)
{
	struct sum_args sum = {
		.src = shard->sources,
		.src_count = chunk_gather(chunk, shard),
		.src_dtype = (enum dtype)chunk->dtype,
		.out_dtype = (enum dtype)chunk->dtype,
		.acc = chunk->sum,
		.scale = shard->spec->mean ? (float)(1.0 / chunk->gradients) : 1,
		.count = chunk->elements,
		.out = chunk->result,
		.stores = chunk_stores(chunk, shard),
	};
	bool broadcast = chunk->kind == ROUND_BROADCAST;

	assert(!chunk->sum || chunk->stored == chunk->bytes); /* each payload in it is all there */
	if (shard->snapshot)
		snapshot_before_commit(chunk, shard);
	if (shard->uplink && !broadcast)
		replica_lift(chunk, shard, &sum);
	if (broadcast)
		chunk_commit_broadcast(chunk, shard, &sum);
	else
		chunk_commit_gradient(chunk, shard, &sum);
	stats_add(&shard->counters.rounds, 1);
	for (uint32_t rank = 0; rank < shard->spec->world; rank++) {
		struct arrival *a = &chunk->arrivals[rank];

		a->owed |= a->state != ARRIVAL_NONE;
		if (a->owed)
			a->round = chunk->round;
	}
	chunk_release(chunk, shard);
	chunk_close(chunk, shard);
	stats_add(&chunk->round, 1);
	if (shard->stops && chunk->round == shard->stops[chunk->index])
		shard->stop_left--;
	chunk_count_needed(chunk, shard);
	if (shard->uplink && broadcast)
		replica_renew(chunk, shard, true);
	chunk_answer(chunk, shard, broadcast);
	if (broadcast && spec_stepwise(shard->spec))
		stepwise_begin(chunk, shard);
}

static void chunk_park(struct chunk *chunk, struct shard *shard)
{
	chunk->parked = true;
	shard->parked_count++;
	stats_add(&shard->counters.parked, 1);
}

/*
 * The last contribution: if nothing lacks, its payload goes straight from where it lies into the pass that commits.
 * Returns 1 when its slot is kept: only if the commit was parked.
 */
static int chunk_complete(struct chunk *chunk, const struct contribution *c, const void *payload, const void *slot)
{
	struct shard *shard = c->link->shard;
	struct arrival *a = &chunk->arrivals[c->link->rank];
	int rc = chunk_ready(chunk, shard);
	int kept;

	if (rc == -ESTALE) {
		chunk_fail(chunk, c->link, SHARD_FAIL_HYPER_OLD, chunk->round, chunk->hyper);
		return 0;
	}
	if (rc == -EAGAIN) {
		kept = chunk_absorb(chunk, c, payload, slot);
		chunk_park(chunk, shard);
		return kept;
	}
	if (c->header->type == WIRE_PULL) {
		a->state = ARRIVAL_EMPTY;
	} else {
		a->state = ARRIVAL_HELD; /* for the length of this call, without a slot */
		a->payload = payload;
		a->slot = NULL;
	}
	chunk_commit(chunk, shard);
	return 0;
}

void chunk_full(struct chunk *chunk, const struct link *link)
{
	struct shard *shard = link->shard;
	int rc = chunk_ready(chunk, shard);

	if (rc == -ESTALE)
		chunk_fail(chunk, link, SHARD_FAIL_HYPER_OLD, chunk->round, chunk->hyper);
	else if (rc == -EAGAIN)
		chunk_park(chunk, shard);
	else
		chunk_commit(chunk, shard);
}

void chunk_check(struct chunk *chunk, struct shard *shard)
{
	if (chunk->parked && chunk->arrived < chunk_enough(chunk, shard)) {
		chunk->parked = false; /* somebody is needed who was not when it was complete */
		shard->parked_count--;
	}
	if (chunk->kind != ROUND_OPEN && !chunk->parked && chunk->arrived >= chunk_enough(chunk, shard))
		chunk_full(chunk, &shard->links[0]);
}

static void chunk_retry_one(struct chunk *chunk, struct shard *shard)
{
	int rc = chunk_ready(chunk, shard);

	if (rc == -EAGAIN)
		return;
	chunk->parked = false;
	shard->parked_count--;
	if (chunk->arrived < chunk_enough(chunk, shard))
		return; /* a rank came meanwhile, and takes part in this round */
	if (rc < 0)
		chunk_fail(chunk, &shard->links[0], SHARD_FAIL_HYPER_OLD, chunk->round, chunk->hyper);
	else
		chunk_commit(chunk, shard);
}

void chunk_landed(struct chunk *chunk, struct shard *shard, bool written)
{
	chunk->lifted = false;
	if (shard->plant != SHARD_PLANT_UNLIFTED)
		chunk_answer(chunk, shard, written);
	if (chunk->parked && !shard->failed)
		chunk_retry_one(chunk, shard);
}

void chunk_retry(struct shard *shard, uint64_t now_ns)
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
			chunk_retry_one(chunk, shard);
	}
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
		chunk_retry_one(chunk, shard);
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
	chunk->gradients--; /* a worker's payload counts as one: receive.c */
	chunk->arrived--;
	if (chunk->parked && chunk->arrived < chunk_enough(chunk, shard)) { /* with a quorum others may be enough */
		chunk->parked = false;
		shard->parked_count--;
	}
	if (chunk->arrived > 0 || chunk->sum)
		return; /* others have come, or parts of theirs */
	chunk_close(chunk, shard);
	chunk->gradients = 0; /* a box's payload is of several */
	chunk->kind = ROUND_OPEN;
}

/* ---- admission of one contribution ---- */

void chunk_answer_again(struct chunk *chunk, struct link *link, uint64_t round)
{
	const struct arrival *a = &chunk->arrivals[link->rank];
	bool own = spec_rows(link->shard->spec) && chunk->weights;
	bool lost = link->queue->lossy || (link->again && a->answered != (uint8_t)link->serial);

	if (!lost || (own ? round != a->round : round + 1 != chunk->round))
		return;
	if (own && a->from == round + 1)
		return; /* comes to a job that has failed meanwhile: what its row has is of who was here before it */
	if (a->state == ARRIVAL_NONE && !a->owed && !a->due && a->sends == 0)
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
	enum wire_type type = c->header->type;
	enum round_kind kind = type == WIRE_PUSH ? ROUND_GRADIENT : ROUND_BROADCAST;

	if (kind == ROUND_GRADIENT && !chunk->weights)
		return SHARD_FAIL_NO_WEIGHTS;
	if (kind == ROUND_BROADCAST && optimizer && (chunk->weights || (type == WIRE_INIT) != (c->link->rank == 0)))
		return SHARD_FAIL_KIND;
	if (type == WIRE_PULL && chunk->arrived + 1 == chunk->needed && chunk->gradients == 0)
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
	}
	a->priority = c->header->priority;
	a->hyper = c->header->hyper;
	chunk->gradients += c->header->type == WIRE_PULL ? 0 : c->header->count;
}

/* What has come whole: adds, keeps or commits it. Returns 1 when its slot is kept. */
static int chunk_take(struct chunk *chunk, const struct contribution *c, const void *payload)
{
	void *slot = payload == c->payload ? c->slot : NULL; /* a cleaned copy cannot be held */

	chunk->arrived++;
	if (chunk->arrived == chunk_enough(chunk, c->link->shard))
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
		chunk_answer(chunk, shard, false);
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
	chunk_answer(chunk, shard, false);
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
