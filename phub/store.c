/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes and lays out a job's memory. One walk over the same list of pieces counts the bytes and, with a base
 * address, places them, so that admission and layout cannot disagree.
 */
#include "phub/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "phub/association.h"
#include "phub/base/cpu.h"
#include "phub/coding.h"
#include "phub/lift.h"
#include "phub/parts.h"
#include "phub/rehome.h"
#include "phub/replica.h"
#include "phub/sealing.h"

#define STORE_ALIGN       64u
#define STORE_CHUNK_ALIGN 4096u

/* A cursor over a region: counts when base is NULL. */
struct cursor {
	uint8_t *base;
	uint64_t used;
};

static uint64_t store_align(uint64_t bytes, uint64_t align)
{
	return (bytes + align - 1) / align * align;
}

static void *store_take(struct cursor *at, uint64_t bytes, uint64_t align)
{
	void *piece;

	at->used = store_align(at->used, align);
	piece = at->base ? at->base + at->used : NULL;
	if (__builtin_add_overflow(at->used, bytes, &at->used) || at->used > UINT64_MAX / 2)
		at->used = UINT64_MAX / 2;
	return piece;
}

/* What a core owns of the plan. */
struct share {
	unsigned core;
	uint32_t chunk_count;
	uint64_t bytes;     /* of all its chunks, on the wire */
	uint32_t bytes_max; /* of a chunk on the wire */
	uint32_t elements_max;
};

static uint32_t store_elements(const struct chunk_span *span)
{
	return span->bytes / (uint32_t)dtype_size((enum dtype)span->dtype);
}

static struct share store_share(const struct spec *spec, unsigned core)
{
	struct share share = {.core = core};

	for (uint32_t i = 0; i < spec->plan.chunk_count; i++) {
		const struct chunk_span *span = &spec->plan.chunks[i];

		if (spec->core_of_chunk[i] != core)
			continue;
		share.chunk_count++;
		share.bytes += span->bytes;
		if (span->bytes > share.bytes_max)
			share.bytes_max = span->bytes;
		if (store_elements(span) > share.elements_max)
			share.elements_max = store_elements(span);
	}
	return share;
}

/* Are the master weights the result itself? Then there is no second copy, and a step writes them once. */
static bool store_weight_is_result(const struct spec *spec, const struct chunk_span *span)
{
	return !spec_rows(spec) && span->dtype == DTYPE_F32;
}

/* Staging buffers: all payloads of a chunk but one may come early, or all where none is added as it comes. */
static uint64_t store_stages(const struct spec *spec, const struct share *share)
{
	bool apart = spec->association || spec->boxes > 0;

	return spec->reproducible ? (uint64_t)share->chunk_count * (spec->world - !apart) : 0;
}

static uint64_t store_stage_bytes(const struct spec *spec, const struct share *share)
{
	uint64_t bytes = spec->boxes > 0 ? share->elements_max * dtype_size(spec->lift) : 0;

	return store_align(bytes > share->bytes_max ? bytes : share->bytes_max, STORE_ALIGN);
}

/* The results of all ranks that have their own. */
static uint64_t store_row_bytes(const struct spec *spec)
{
	uint64_t rows = spec_rows(spec) ? spec->world : 1;
	uint64_t bytes;

	return __builtin_mul_overflow(rows, spec->plan.region_bytes, &bytes) ? UINT64_MAX / 2 : bytes;
}

/* The shard's tables. */
static void store_place_tables(
	const struct spec *spec, const struct share *share, struct cursor *at, struct shard *shard)
{
	uint64_t chunks = share->chunk_count, world = spec->world;
	uint32_t hyper_ranks = spec_stepwise(spec) ? spec->world : 1;
	uint64_t *replies;

	shard->chunks = store_take(at, chunks * sizeof(struct chunk), STORE_ALIGN);
	shard->spans = store_take(at, chunks * sizeof(struct span), STORE_ALIGN);
	shard->lift_spans = store_take(at, chunks * sizeof(struct span), STORE_ALIGN);
	shard->links = store_take(at, world * sizeof(struct link), STORE_ALIGN);
	shard->sums = store_take(at, chunks * sizeof(float *), STORE_ALIGN);
	shard->stages = store_take(at, store_stages(spec, share) * sizeof(uint8_t *), STORE_ALIGN);
	shard->maps = spec_parts(spec) ? store_take(at, chunks * sizeof(uint64_t *), STORE_ALIGN) : NULL;
	shard->sources = store_take(at, world * sizeof(void *), STORE_ALIGN);
	shard->scratch = store_take(at, share->bytes_max, STORE_ALIGN);
	for (uint32_t i = 0; spec->association && i < spec->association->depth; i++)
		shard->folds[i] = store_take(at, (uint64_t)share->elements_max * sizeof(float), STORE_ALIGN);
	replies = store_take(at, world * chunks * sizeof(*replies), STORE_ALIGN);
	shard->hypers.newest = store_take(at, hypers_bytes(hyper_ranks, spec->group_count), STORE_ALIGN);
	if (!at->base)
		return;
	hypers_init(&shard->hypers, shard->hypers.newest, hyper_ranks, spec->group_count, spec->groups);
	for (uint32_t rank = 0; rank < spec->world; rank++) {
		shard->links[rank] = (struct link){.shard = shard,
			.rank = rank,
			.name = spec->names ? spec->names[rank] : rank,
			.replies = replies + rank * chunks};
	}
}

static void store_place_sealing(
	const struct spec *spec, const struct share *share, struct cursor *at, struct shard *shard)
{
	uint64_t chunks = share->chunk_count;
	struct sealing s = {
		.offset = store_row_bytes(spec),
		.row_bytes = spec->plan.region_bytes + (uint64_t)WIRE_TRAILER_BYTES * spec->plan.chunk_count,
	};

	if (!spec->encrypt)
		return;
	/* All zero, as the region comes. */
	s.sealed = store_take(at, chunks * sizeof(*s.sealed), STORE_ALIGN);
	s.lengths = store_take(at, chunks * sizeof(*s.lengths), STORE_ALIGN);
	s.opened = store_take(at, chunks * spec->world * sizeof(*s.opened), STORE_ALIGN);
	s.rows = store_take(at, chunks * spec->world, STORE_ALIGN);
	s.spans = store_take(at, chunks * sizeof(*s.spans), STORE_ALIGN);
	shard->sealing = store_take(at, sizeof(s), STORE_ALIGN);
	if (at->base)
		*shard->sealing = s;
}

/* Of a chunk's sum that is sent. */
static uint64_t store_lift_bytes(const struct share *share)
{
	return store_align((uint64_t)share->elements_max * sizeof(float), STORE_ALIGN);
}

/* Likewise, and behind it of the same sum as it is coded, where any is: to a standby none is. */
static uint64_t store_lift_room(const struct spec *spec, const struct share *share)
{
	return store_lift_bytes(share) << (spec->plan.sparse_bytes > 0 && spec->way_count > 0);
}

/* Equal buffers are counted at once: there may be as many as chunks times ranks, and the control thread counts them. */
static void store_place_buffers(
	const struct spec *spec, const struct share *share, struct cursor *at, struct shard *shard)
{
	uint64_t stages = store_stages(spec, share);
	uint64_t sum_bytes = store_align((uint64_t)share->elements_max * sizeof(float), STORE_CHUNK_ALIGN);
	uint64_t stage_bytes = store_stage_bytes(spec, share);
	uint8_t *sum = store_take(at, share->chunk_count * sum_bytes, STORE_CHUNK_ALIGN);
	uint8_t *stage = store_take(at, stages * stage_bytes, STORE_ALIGN);
	uint64_t map_bytes = store_align(parts_map_words(share->bytes_max) * sizeof(uint64_t), STORE_ALIGN);
	uint8_t *map = spec_parts(spec) ? store_take(at, share->chunk_count * map_bytes, STORE_ALIGN) : NULL;

	if (spec->rehomes) {
		shard->lift_bytes = store_lift_room(spec, share);
		shard->lifts = store_take(at, share->chunk_count * shard->lift_bytes, STORE_CHUNK_ALIGN);
	}
	if (!at->base)
		return;
	for (uint32_t i = 0; i < share->chunk_count; i++)
		shard->sums[i] = (float *)(void *)(sum + i * sum_bytes);
	for (uint64_t i = 0; i < stages; i++)
		shard->stages[i] = stage + i * stage_bytes;
	for (uint32_t i = 0; map && i < share->chunk_count; i++)
		shard->maps[i] = (uint64_t *)(void *)(map + i * map_bytes);
}

/* What the home of a chunk has of it: master weights, unless they are the result, and state. */
static void store_place_home(const struct spec *spec, uint32_t index, struct cursor *at, float **weight, float **state)
{
	const struct chunk_span *span = &spec->plan.chunks[index];
	uint64_t floats = (uint64_t)store_elements(span) * sizeof(float);

	if (spec->optimizer == OPTIMIZER_NONE)
		return;
	if (!store_weight_is_result(spec, span))
		*weight = store_take(at, floats, STORE_ALIGN);
	for (unsigned i = 0; i < optimizer_state_count(spec->optimizer); i++)
		state[i] = store_take(at, floats, STORE_ALIGN);
}

static void store_place_chunk(const struct spec *spec, uint32_t index, struct cursor *at, struct chunk *chunk,
	uint8_t *result, uint8_t *coded)
{
	const struct chunk_span *span = &spec->plan.chunks[index];
	struct arrival *arrivals = store_take(at, spec->world * sizeof(struct arrival), STORE_ALIGN);
	float *weight = NULL, *state[OPTIMIZER_STATE_MAX] = {NULL};
	bool steps = !spec->rehomes && spec_way(spec, index) == SPEC_HOME;

	if (steps)
		store_place_home(spec, index, at, &weight, state);
	if (!chunk)
		return;
	*chunk = (struct chunk){
		.round = spec->optimizer == OPTIMIZER_NONE ? 1 : 0,
		.index = index,
		.elements = store_elements(span),
		.bytes = span->bytes,
		.answer_bytes = spec->mirror ? 0 : span->bytes,
		.group = span->group,
		.dtype = span->dtype,
		.weights = spec->optimizer == OPTIMIZER_NONE,
		.sparse = span->sparse,
		.coded = coded,
		.older = CHUNK_NONE,
		.newer = CHUNK_NONE,
		.needed = spec->world,
		.way = spec->rehomes ? SPEC_HOME : spec_way(spec, index),
		.result = result + span->offset,
		.arrivals = arrivals,
	};
	if (steps && spec->optimizer != OPTIMIZER_NONE)
		chunk->weight = weight ? weight : (float *)(void *)chunk->result;
	coding_renew(chunk);
	memcpy(chunk->state, state, sizeof(state));
}

/* One uplink of so many chunks: a buffer for what is sent of each, unless the shard has them, and for what is sealed.
 */
static void store_place_uplink(
	const struct spec *spec, const struct share *share, uint32_t chunks, struct cursor *at, struct uplink *up)
{
	struct uplink_chunk *each = store_take(at, chunks * sizeof(*each), STORE_ALIGN);
	uint32_t *line = store_take(at, chunks * sizeof(*line), STORE_ALIGN);
	uint64_t lift_bytes = store_lift_room(spec, share), code_at = store_lift_bytes(share);
	uint8_t *lift = spec->rehomes ? NULL : store_take(at, chunks * lift_bytes, STORE_CHUNK_ALIGN);
	uint64_t sealed_bytes = store_lift_bytes(share) + WIRE_TRAILER_BYTES;
	uint8_t *sealed = spec->encrypt ? store_take(at, chunks * sealed_bytes, STORE_ALIGN) : NULL;

	if (!at->base)
		return;
	*up = (struct uplink){.chunk_count = chunks, .chunks = each, .line = line};
	for (uint32_t i = 0; i < chunks; i++)
		each[i] = (struct uplink_chunk){.lift = lift ? (float *)(void *)(lift + i * lift_bytes) : NULL,
			.code = lift && code_at < lift_bytes ? lift + i * lift_bytes + code_at : NULL,
			.sealed = sealed ? sealed + i * sealed_bytes : NULL};
}

/* Which chunks are whose: all of them a replica's, and each at most one way's. */
static void store_share_uplinks(const struct spec *spec, struct shard *shard)
{
	struct uplink *ways = shard->uplinks + spec->standby;

	for (uint32_t i = 0; i < shard->uplink_count; i++) {
		shard->uplinks[i].shard = shard;
		shard->uplinks[i].use = spec->standby && i == 0 ? &replica_use : &lift_use;
		shard->uplinks[i].chunk_count = 0;
	}
	for (uint32_t local = 0; local < shard->chunk_count; local++) {
		struct chunk *chunk = &shard->chunks[local];
		struct uplink *up = spec->standby ? shard->uplinks : NULL;

		if (up) {
			up->chunks[up->chunk_count].index = local;
			up->chunks[up->chunk_count++].local = local;
		}
		if (chunk->way == SPEC_HOME)
			continue;
		chunk->way_at = ways[chunk->way].chunk_count++;
		ways[chunk->way].chunks[chunk->way_at].local = local;
	}
	shard->replica = spec->standby ? shard->uplinks : NULL;
}

static uint32_t store_count_way(const struct spec *spec, const uint16_t *ways, const struct share *share, uint32_t way)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < spec->plan.chunk_count; i++)
		count += spec->core_of_chunk[i] == share->core && ways[i] == way;
	return count;
}

/* What of a way's chunks one uplink has when nothing of it moves; else store_place_ways() sees to it. */
static uint32_t store_count_uplink(const struct spec *spec, const struct share *share, uint32_t number)
{
	if (number < spec->standby)
		return share->chunk_count;
	return spec->rehomes ? 0 : store_count_way(spec, spec->way_of_chunk, share, number - spec->standby);
}

static void store_place_uplinks(
	const struct spec *spec, const struct share *share, struct cursor *at, struct shard *shard)
{
	uint32_t count = spec->standby + spec->way_count;
	struct uplink *uplinks = store_take(at, count * sizeof(*uplinks), STORE_ALIGN);

	for (uint32_t i = 0; i < count; i++)
		store_place_uplink(spec, share, store_count_uplink(spec, share, i), at, uplinks ? &uplinks[i] : NULL);
	shard->uplinks = uplinks;
	shard->uplink_count = count;
}

/* Of what goes up as a sum, or as the chunk itself: first weights; and what comes down. */
static struct span store_lift_span(const struct spec *spec, const struct chunk_span *chunk, uint32_t scale)
{
	uint32_t elements = chunk->bytes / chunking_dtype_bytes(chunk->dtype);
	uint32_t sum = elements * (uint32_t)dtype_size(spec->lift);

	return (struct span){.offset = chunk->offset * scale, .bytes = sum > chunk->bytes ? sum : chunk->bytes};
}

/* Places (or, with at->base NULL, counts) all that one core owns; the shard itself comes first. */
static void store_place(const struct spec *spec, const struct share *share, struct cursor *at, uint8_t *result)
{
	struct shard counted = {0};
	struct shard *shard = store_take(at, sizeof(*shard), STORE_ALIGN);
	uint32_t local = 0, scale = spec_lift_scale(spec);
	uint64_t coded = store_row_bytes(spec) + sealing_bytes(spec), codes;
	bool codes_any = coding_bytes(spec) > 0;

	if (!shard)
		shard = &counted;
	store_place_tables(spec, share, at, shard);
	store_place_sealing(spec, share, at, shard);
	for (uint32_t i = 0; i < spec->plan.chunk_count; i++, coded += codes) {
		codes = codes_any ? chunking_sparse_bytes(&spec->plan.chunks[i]) : 0;
		if (spec->core_of_chunk[i] != share->core)
			continue;
		if (at->base)
			shard->spans[local] = (struct span){
				.offset = spec->plan.chunks[i].offset, .bytes = spec->plan.chunks[i].bytes};
		if (at->base)
			shard->lift_spans[local] = store_lift_span(spec, &spec->plan.chunks[i], scale);
		if (at->base && shard->sealing)
			shard->sealing->spans[local] = (struct span){.offset = spec->plan.chunks[i].offset,
				.bytes = spec->plan.chunks[i].bytes + WIRE_TRAILER_BYTES};
		store_place_chunk(spec, i, at, at->base ? &shard->chunks[local] : NULL, result,
			codes > 0 && result ? result + coded : NULL);
		local++;
	}
	store_place_buffers(spec, share, at, shard);
	store_place_uplinks(spec, share, at, shard);
	shard->spec = spec;
	shard->epoch = spec->epoch;
	shard->core = share->core;
	shard->chunk_count = share->chunk_count;
	if (at->base)
		store_share_uplinks(spec, shard);
	fair_init(shard, share->bytes);
	shard->sum_free = share->chunk_count;
	shard->sum_count = share->chunk_count;
	shard->stage_free = (uint32_t)store_stages(spec, share);
	shard->stage_count = shard->stage_free;
	shard->open_oldest = CHUNK_NONE;
	shard->open_newest = CHUNK_NONE;
}

/* ---- what follows from homes that may change ---- */

static void store_rehome_chunk(
	const struct spec *spec, struct rehome *r, uint32_t local, uint16_t way, const struct shard *shard)
{
	struct rehome_chunk *to = &r->chunks[local];
	struct rehome_way *up;

	to->way = way;
	if (way == SPEC_HOME) {
		if (!to->weight && spec->optimizer != OPTIMIZER_NONE)
			to->weight = (float *)(void *)shard->chunks[local].result;
		return;
	}
	up = &r->ways[way];
	to->way_at = up->chunk_count++;
	up->chunks[to->way_at].local = local;
	up->chunks[to->way_at].lift = (float *)(void *)(shard->lifts + local * shard->lift_bytes);
	up->chunks[to->way_at].code = shard->lifts + local * shard->lift_bytes + shard->lift_bytes / 2;
	up->chunks[to->way_at].index = local; /* boxes that exchange have the same chunks on a core */
}

/* `shard` NULL: counts. */
static void store_place_ways(const struct spec *spec, const uint16_t *ways, const struct share *share,
	struct cursor *at, const struct shard *shard)
{
	struct rehome *r = store_take(at, sizeof(*r), STORE_ALIGN);
	struct rehome_chunk *chunks = store_take(at, share->chunk_count * sizeof(*chunks), STORE_ALIGN);
	struct rehome_way *each = store_take(at, spec->way_count * sizeof(*each), STORE_ALIGN);
	uint32_t local = 0;

	for (uint32_t way = 0; way < spec->way_count; way++) {
		struct uplink up = {.chunks = NULL};

		store_place_uplink(spec, share, store_count_way(spec, ways, share, way), at, &up);
		if (r)
			each[way] = (struct rehome_way){.chunks = up.chunks, .line = up.line};
	}
	if (r)
		*r = (struct rehome){.chunks = chunks, .ways = each};
	for (uint32_t i = 0; i < spec->plan.chunk_count; i++) {
		struct rehome_chunk one = {.weight = NULL};

		if (spec->core_of_chunk[i] != share->core)
			continue;
		if (ways[i] == SPEC_HOME)
			store_place_home(spec, i, at, &one.weight, one.state);
		if (r) {
			chunks[local] = one;
			store_rehome_chunk(spec, r, local, ways[i], shard);
		}
		local++;
	}
}

uint64_t store_ways_bytes(const struct spec *spec, const uint16_t *ways, unsigned core)
{
	struct share share = store_share(spec, core);
	struct cursor at = {NULL, 0};

	if (share.chunk_count > 0)
		store_place_ways(spec, ways, &share, &at, NULL);
	return at.used;
}

int store_ways_create(const struct spec *spec, const uint16_t *ways, const struct store_config *config, unsigned core,
	struct shard *shard, struct mem_region *out, struct err *e)
{
	uint64_t bytes = store_ways_bytes(spec, ways, core);
	struct share share = store_share(spec, core);
	struct cursor at;
	int rc = mem_region_create(bytes, config->huge ? MEM_HUGE : 0, config->core_node[core], out, e);

	if (rc < 0)
		return rc;
	at = (struct cursor){out->base, 0};
	store_place_ways(spec, ways, &share, &at, shard);
	return 0;
}

static bool store_beyond_cache(const struct spec *spec, const struct share *share, enum store_results results)
{
	uint64_t cache = cpu_cache_bytes();

	if (results != STORE_RESULTS_AUTO)
		return results == STORE_RESULTS_STREAMED;
	return cache > 0 && share->bytes * (spec->world + 1) > cache;
}

static uint64_t store_private_bytes(const struct spec *spec, const struct share *share)
{
	struct cursor at = {NULL, 0};

	store_place(spec, share, &at, NULL);
	return at.used;
}

/* Results, and behind them what is sealed of them, and what is coded. */
static uint64_t store_result_bytes(const struct spec *spec)
{
	uint64_t bytes = store_row_bytes(spec);

	if (__builtin_add_overflow(bytes, sealing_bytes(spec), &bytes) ||
		__builtin_add_overflow(bytes, coding_bytes(spec), &bytes) || bytes > UINT64_MAX / 2)
		return UINT64_MAX / 2;
	return bytes;
}

uint64_t store_bytes(const struct spec *spec)
{
	uint64_t bytes = store_result_bytes(spec);

	for (unsigned core = 0; core < spec->core_count; core++) {
		struct share share = store_share(spec, core);

		if (share.chunk_count > 0 && __builtin_add_overflow(bytes, store_private_bytes(spec, &share), &bytes))
			return UINT64_MAX;
		if (spec->rehomes &&
			__builtin_add_overflow(bytes, store_ways_bytes(spec, spec->way_of_chunk, core), &bytes))
			return UINT64_MAX;
	}
	return bytes >= UINT64_MAX / 2 ? UINT64_MAX : bytes;
}

uint64_t store_result_offset(const struct spec *spec, uint32_t rank)
{
	return spec_rows(spec) ? rank * spec->plan.region_bytes : 0;
}

static int store_create_core(
	const struct spec *spec, const struct store_config *config, struct store *store, unsigned core, struct err *e)
{
	struct share share = store_share(spec, core);
	struct mem_region *region = &store->privates[core];
	struct cursor at;
	uint64_t bytes;
	int rc;

	if (share.chunk_count == 0)
		return 0;
	bytes = store_private_bytes(spec, &share);
	rc = mem_region_create(bytes, config->huge ? MEM_HUGE : 0, config->core_node[core], region, e);
	if (rc < 0)
		return rc;
	store->bytes += bytes;
	at = (struct cursor){region->base, 0};
	store_place(spec, &share, &at, store->result.base);
	store->shards[core] = region->base;
	store->shards[core]->kernels = config->kernels;
	store->shards[core]->control = config->control;
	store->shards[core]->beyond_cache = store_beyond_cache(spec, &share, config->results);
	if (!spec->rehomes)
		return 0;
	rc = store_ways_create(spec, spec->way_of_chunk, config, core, store->shards[core], &store->ways[core], e);
	if (rc < 0)
		return rc;
	store->bytes += store_ways_bytes(spec, spec->way_of_chunk, core);
	rehome_apply(store->shards[core], store->ways[core].base);
	return 0;
}

int store_create(const struct spec *spec, const struct store_config *config, struct store *out, struct err *e)
{
	unsigned flags = (config->shared ? MEM_SHARED : 0) | (config->huge ? MEM_HUGE : 0);
	struct store store = {.core_count = spec->core_count};
	int rc;

	store.privates = calloc(spec->core_count, sizeof(*store.privates));
	store.shards = calloc(spec->core_count, sizeof(*store.shards));
	store.ways = calloc(spec->core_count, sizeof(*store.ways));
	if (!store.privates || !store.shards || !store.ways) {
		rc = err_set(e, -ENOMEM, "job %s: no memory for %u cores' tables", spec->name, spec->core_count);
		goto undo;
	}
	rc = mem_region_create(store_result_bytes(spec), flags, -1, &store.result, e);
	if (rc < 0)
		goto undo;
	store.bytes = store_result_bytes(spec);
	for (unsigned core = 0; core < spec->core_count; core++) {
		rc = store_create_core(spec, config, &store, core, e);
		if (rc < 0)
			goto undo;
	}
	*out = store;
	return 0;
undo:
	store_destroy(&store);
	return rc;
}

void store_destroy(struct store *store)
{
	for (unsigned core = 0; store->privates && core < store->core_count; core++)
		if (store->privates[core].base)
			mem_region_destroy(&store->privates[core]);
	for (unsigned core = 0; store->ways && core < store->core_count; core++)
		if (store->ways[core].base)
			mem_region_destroy(&store->ways[core]);
	if (store->result.base)
		mem_region_destroy(&store->result);
	free(store->ways);
	free(store->privates);
	free(store->shards);
	*store = (struct store){0};
}
