/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds a generation step by step; each step is checked before the next takes anything, and what was taken is undone
 * in reverse when one fails.
 */
#include "phub/control/generation.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/log.h"
#include "phub/base/stats.h"
#include "phub/control/box.h"
#include "phub/control/job.h"
#include "phub/control/job_below.h"
#include "phub/control/parent.h"
#include "phub/control/peers.h"
#include "phub/sealing.h"
#include "phub/control/standby.h"
#include "phub/mirror.h"
#include "phub/uplink.h"

#define GENERATION_EPOCH      1u
#define GENERATION_PAGE       4096u
#define GENERATION_LINE       64u
#define GENERATION_AHEAD      20u /* a 20th of a second */
#define GENERATION_WINDOW_MIN 2u

/*
 * Slots of a worker at each core. Measured with 4 workers, 1 core and 2 processors: 8 to 32 take the same CPU time in
 * copies and sums, and with more of them the processes wait for each other less often.
 */
#define GENERATION_SLOTS_MAX   32u
#define GENERATION_SLOTS_MIN   8u
#define GENERATION_SLOTS_SHARE 4u /* all slots together take at most this part of what the chunks take */

static bool generation_is_mapped(const char *transport)
{
	return strcmp(transport, "shm") == 0;
}

struct generation_link *generation_link(struct generation *g, uint32_t rank, uint32_t core)
{
	return &g->links[(size_t)rank * g->spec.core_count + core];
}

/* Chunks, before any memory is taken for them: a key table of some bytes can ask for a lot. */
static int generation_plan(struct generation *g, const struct job *job, struct err *e)
{
	const struct table *t = job->reference;
	struct chunk_size size;
	struct err why;
	int rc = chunking_size(t->keys, t->key_count, t->chunk_bytes, &size, &why);

	if (rc == 0 && size.chunk_count > GENERATION_CHUNKS_MAX)
		return err_set(e, -E2BIG, "%u chunks of %u bytes, and a job has at most %u; choose larger chunk_bytes",
			size.chunk_count, t->chunk_bytes, GENERATION_CHUNKS_MAX);
	if (rc == 0 && size.region_bytes > job->control->config->memory_max)
		return err_set(e, -ENOMEM,
			"needs more than %" PRIu64 " bytes in the box, and memory_max there is %" PRIu64,
			size.region_bytes, job->control->config->memory_max);
	if (rc == 0)
		rc = chunking_plan(t->keys, t->key_count, t->chunk_bytes, &g->spec.plan, &why);
	if (rc < 0)
		return err_set(e, rc, "%s", why.text);
	return 0;
}

/* Has each chunk room in a message as fp32, whatever the workers push? So sums go to other boxes. */
static bool generation_fits_sums(const struct generation *g)
{
	const struct chunk_plan *plan = &g->spec.plan;

	for (uint32_t i = 0; i < plan->chunk_count; i++)
		if (plan->chunks[i].bytes / chunking_dtype_bytes(plan->chunks[i].dtype) >
			(WIRE_PAYLOAD_MAX - WIRE_TRAILER_BYTES) / sizeof(float))
			return false;
	return true;
}

/* Does the box have a standby, and can it have this job? */
static bool generation_has_standby(const struct generation *g, const struct job *job)
{
	const struct box *box = job->control->box;

	return box->outlets.count > 0 && box->config->standby[0] && !job->mirror && !job_is_spread(job) &&
	       !spec_stepwise(&g->spec) && generation_fits_sums(g);
}

/* Other boxes take part. */
static int generation_spread(struct generation *g, struct job *job, struct err *e)
{
	int rc = job_below_check(&g->spec, e);

	if (rc < 0)
		return rc;
	if (!generation_fits_sums(g))
		return err_set(e, -E2BIG,
			"a chunk of it, as fp32, is more than a message between boxes may have; choose smaller "
			"chunk_bytes");
	g->spec.world = job->world;
	g->spec.boxes = job->world - job->ranks;
	g->spec.lift = job->lift;
	g->spec.root = job->members[0].elsewhere ? job->world : 0;
	if (job->parent)
		return parent_place(job, &g->spec, e);
	return job->peers ? peers_place(job, &g->spec, e) : 0;
}

static uint64_t generation_pages(uint64_t bytes)
{
	return (bytes + GENERATION_PAGE - 1) / GENERATION_PAGE * GENERATION_PAGE;
}

/* Where slots begin in the memory that a worker maps. */
static uint64_t generation_slot_offset(const struct generation *g, uint32_t core)
{
	uint64_t region = generation_pages(g->spec.plan.region_bytes);

	return region + (uint64_t)core * g->slot_count * g->slot_bytes;
}

/* What a worker, or a box below or beside, maps to write to. */
static uint64_t generation_push_bytes(const struct generation *g, uint32_t rank)
{
	if (spec_is_box(&g->spec, rank))
		return generation_pages(g->spec.plan.region_bytes * spec_lift_scale(&g->spec));
	return generation_pages(generation_slot_offset(g, g->spec.core_count));
}

/*
 * A worker that copies what it pushes uses a few slots of each core over and over: they stay in a cache, where the core
 * reads them. What is not much larger than its slots would be stays there anyway.
 */
static void generation_choose_slots(struct generation *g)
{
	uint32_t scale = g->spec.boxes > 0 ? spec_lift_scale(&g->spec) : 1; /* a link's largest payload */
	uint64_t fit;

	for (uint32_t i = 0; i < g->spec.plan.chunk_count; i++)
		if (g->chunk_bytes[i] * scale > g->slot_bytes)
			g->slot_bytes = g->chunk_bytes[i] * scale;
	g->slot_bytes = (g->slot_bytes + GENERATION_LINE - 1) / GENERATION_LINE * GENERATION_LINE;
	fit = g->spec.plan.region_bytes / GENERATION_SLOTS_SHARE / g->slot_bytes / g->spec.core_count;
	if (fit >= GENERATION_SLOTS_MIN)
		g->slot_count = fit < GENERATION_SLOTS_MAX ? (uint32_t)fit : GENERATION_SLOTS_MAX;
}

/* Core numbers by load, the least first; equal ones in their order. */
static void generation_sort_cores(const struct box *box, unsigned *order)
{
	for (unsigned i = 0; i < box->core_count; i++) {
		unsigned at = i;

		for (; at > 0 && box->placement[order[at - 1]].bytes > box->placement[i].bytes; at--)
			order[at] = order[at - 1];
		order[at] = i;
	}
}

/* Places the chunks on the `most` cores that carry least. */
static int generation_place_on(struct generation *g, struct box *box, unsigned most)
{
	struct placement_core some[CONFIG_CORES_MAX];
	unsigned order[CONFIG_CORES_MAX];
	int rc;

	generation_sort_cores(box, order);
	for (unsigned i = 0; i < most; i++)
		some[i] = box->placement[order[i]];
	rc = placement_lpt(g->chunk_bytes, g->spec.plan.chunk_count, some, most, g->core_of_chunk);
	if (rc < 0)
		return rc;
	for (unsigned i = 0; i < most; i++)
		box->placement[order[i]].bytes = some[i].bytes;
	for (uint32_t i = 0; i < g->spec.plan.chunk_count; i++)
		g->core_of_chunk[i] = (uint16_t)order[g->core_of_chunk[i]];
	return 0;
}

/* On how many cores another box placed it. */
static unsigned generation_placed_on(const struct job *job)
{
	bool used[UINT16_MAX + 1] = {false};
	unsigned count = 0;

	for (uint32_t i = 0; i < job->placement_count; i++) {
		count += !used[job->placement[i]];
		used[job->placement[i]] = true;
	}
	return count;
}

/* As the box chose whose job it was; on no more cores than its entry here has. */
static int generation_place_as(
	struct generation *g, const struct job *job, struct box *box, unsigned cores, struct err *e)
{
	uint32_t count = g->spec.plan.chunk_count;

	if (job->placement_count != count)
		return err_set(
			e, -EPROTO, "%u chunks are placed, and the key table has %u", job->placement_count, count);
	if (cores && generation_placed_on(job) > cores)
		return err_set(e, -EPROTO,
			"its box has it on %u cores, and its entry in the standby's list of jobs allows %u; give both "
			"boxes the same list",
			generation_placed_on(job), cores);
	memcpy(g->core_of_chunk, job->placement, count * sizeof(*g->core_of_chunk));
	return placement_load(g->chunk_bytes, count, box->placement, box->core_count, g->core_of_chunk);
}

static int generation_place(struct generation *g, const struct job *job, struct box *box, unsigned cores, struct err *e)
{
	uint32_t count = g->spec.plan.chunk_count;
	int rc;

	g->chunk_bytes = malloc(count * sizeof(*g->chunk_bytes));
	g->core_of_chunk = malloc(count * sizeof(*g->core_of_chunk));
	if (!g->chunk_bytes || !g->core_of_chunk)
		return err_set(e, -ENOMEM, "no memory to place %u chunks", count);
	for (uint32_t i = 0; i < count; i++)
		g->chunk_bytes[i] = g->spec.plan.chunks[i].bytes;
	if (job->placement)
		rc = generation_place_as(g, job, box, cores, e);
	else if (cores && cores < box->core_count)
		rc = generation_place_on(g, box, cores);
	else
		rc = placement_lpt(g->chunk_bytes, count, box->placement, box->core_count, g->core_of_chunk);
	if (rc < 0)
		return rc == -EPROTO ? rc
				     : err_set(e, rc, "%u chunks cannot be placed on %u cores", count, box->core_count);
	g->placed = true;
	g->spec.core_of_chunk = g->core_of_chunk;
	g->spec.core_count = box->core_count;
	generation_choose_slots(g);
	return 0;
}

/* What all that are mapped take; UINT64_MAX: more than can be. */
static uint64_t generation_mapped_bytes(const struct generation *g, const struct job *job)
{
	uint64_t bytes = 0;

	for (uint32_t rank = 0; rank < job->world; rank++)
		if (generation_is_mapped(job->members[rank].transport) &&
			__builtin_add_overflow(bytes, generation_push_bytes(g, rank), &bytes))
			return UINT64_MAX;
	return bytes;
}

/* What control itself keeps of it: many small keys with long names are more than their gradients. */
static uint64_t generation_table_bytes(const struct generation *g, const struct job *job)
{
	const struct chunk_plan *plan = &g->spec.plan;

	return table_bytes(job->reference) +
	       plan->chunk_count * (sizeof(*plan->chunks) + sizeof(*g->chunk_bytes) + sizeof(*g->core_of_chunk)) +
	       plan->key_count * (sizeof(*plan->key_offset) + sizeof(*plan->key_chunk));
}

/* It is a copy of another box's job, of which each chunk is kept as fp32. */
static int generation_make_mirror(struct generation *g, const struct job *job, struct err *e)
{
	g->reserved = store_bytes(&g->spec);
	if (__builtin_add_overflow(g->reserved, generation_table_bytes(g, job), &g->reserved))
		g->reserved = UINT64_MAX;
	g->spec.bandwidth *= 2; /* fp32, where its workers may push half of that */
	if (mirror_spec(&g->spec) < 0)
		return err_set(e, -EINVAL,
			"chunks of %u bytes in half precision are too large for a standby, which keeps them as fp32; "
			"choose "
			"chunk_bytes of at most %u for the job",
			g->spec.plan.chunk_bytes, CHUNKING_CHUNK_BYTES_MAX / 2);
	return 0;
}

/* What its entry in the operator's list leaves it: of that memory the jobs beside it have some, or it is beside them.
 */
static uint64_t generation_quota(const struct job *job, const struct config_job *listed)
{
	const struct control *c = job->control;
	uint64_t left = listed->memory_max;

	for (const struct job *other = c->jobs; other; other = other->next)
		if (other->generation && strcmp(other->name, job->name) != 0 &&
			config_find_job(c->config, other->name) == listed)
			left -= other->generation->memory < left ? other->generation->memory : left;
	return left;
}

/* Is there room for it? Counts it. */
static int generation_admit(struct generation *g, const struct job *job, struct err *e)
{
	struct control *c = job->control;
	const struct config_job *listed = config_find_job(c->config, job->name);
	uint64_t limit = c->config->memory_max, need = store_bytes(&g->spec), room;

	if (need == UINT64_MAX || __builtin_add_overflow(need, g->reserved, &need) ||
		__builtin_add_overflow(need, generation_mapped_bytes(g, job), &need) ||
		__builtin_add_overflow(need, generation_table_bytes(g, job), &need))
		need = UINT64_MAX;
	room = limit - c->memory_used;
	if (listed && listed->memory_max && generation_quota(job, listed) < room)
		room = generation_quota(job, listed);
	if (need > room)
		return err_set(e, -ENOMEM,
			"needs %" PRIu64 " bytes in the box and %" PRIu64 " are available (memory_max %" PRIu64
			", %" PRIu64 " taken by other jobs); raise memory_max%s, or make the job smaller",
			need, room, limit, c->memory_used,
			listed && listed->memory_max ? " of box and job, which the jobs beside it share" : "");
	c->memory_used += need;
	g->memory = need;
	return 0;
}

static struct store_config generation_store(const struct job *job, bool shared)
{
	const struct box *box = job->control->box;

	return (struct store_config){
		.kernels = box->env.kernels,
		.control = job->control->mail,
		.core_node = box->core_node,
		.shared = shared,
		.huge = box->config->huge_pages,
		.results = box->config->stores,
	};
}

/*
 * Never reserved huge pages: a worker could punch a hole, take the last free page, and the box would die.
 */
static int generation_take_push(struct generation *g, uint32_t rank, struct err *e)
{
	int rc = mem_region_create(generation_push_bytes(g, rank), MEM_SHARED, MEM_NODE_ANY, &g->pushes[rank], e);

	if (rc == 0 && mem_region_seal(&g->pushes[rank], false) < 0)
		rc = err_set(e, -EPERM, "cannot seal the memory of rank %u", rank);
	return rc;
}

int generation_map(struct job *job, uint32_t rank, const char *transport, struct err *e)
{
	struct generation *g = job->generation;
	struct control *c = job->control;
	uint64_t bytes;
	int rc;

	if (!generation_is_mapped(transport) || g->pushes[rank].base || !spec_is_box(&g->spec, rank))
		return 0;
	if (!generation_is_shared(g))
		return err_set(e, -ENOTSUP, "the job began without shared memory for boxes");
	bytes = generation_push_bytes(g, rank);
	if (bytes > c->config->memory_max - c->memory_used)
		return err_set(e, -ENOMEM,
			"needs %" PRIu64 " bytes in the box and %" PRIu64 " are available (memory_max %" PRIu64
			"); raise memory_max, or set uplink_transport: tcp there",
			bytes, c->config->memory_max - c->memory_used, c->config->memory_max);
	rc = generation_take_push(g, rank, e);
	if (rc < 0)
		return rc;
	c->memory_used += bytes;
	g->memory += bytes;
	for (uint32_t core = 0; core < g->spec.core_count; core++)
		generation_link(g, rank, core)->spec.push = &g->pushes[rank];
	return 0;
}

/* May others than its workers map its results: boxes beside, which have not said yet? */
static bool generation_may_be_mapped(const struct job *job)
{
	const struct box *box = job->control->box;
	bool may = false;

	for (unsigned i = 0; job->peers && i < box->transport_count; i++)
		may = may || generation_is_mapped(box->transports[i].transport->ops->name);
	return may;
}

static int generation_take(struct generation *g, const struct job *job, struct err *e)
{
	bool mapped = generation_mapped_bytes(g, job) > 0 || generation_may_be_mapped(job);
	const struct store_config config = generation_store(job, mapped);
	int rc = store_create(&g->spec, &config, &g->store, e);

	if (rc < 0)
		return rc;
	/* From here on nobody else can map the results for writing; our own mapping stays as it is. */
	if (mapped && mem_region_seal(&g->store.result, true) < 0)
		return err_set(e, -EPERM, "cannot seal the memory of its results");
	for (uint32_t rank = 0; rank < job->world; rank++) {
		if (!generation_is_mapped(job->members[rank].transport))
			continue;
		rc = generation_take_push(g, rank, e);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* What encryption needs of libcrypto, for each core: one that seals results, one for each rank that opens; to a
 * standby, too. */
static int generation_encrypt_core(const struct generation *g, struct shard *shard, struct err *e)
{
	int rc = crypt_create(false, &shard->sealing->results, e);

	if (rc == 0 && crypt_take_key(shard->sealing->results, g->data_key) < 0)
		rc = err_set(e, -EIO, "libcrypto takes no key");
	for (uint32_t rank = 0; rc == 0 && rank < g->spec.world; rank++)
		rc = crypt_create(true, &shard->links[rank].opener, e);
	if (rc == 0 && shard->replica)
		rc = crypt_create(false, &shard->replica->sealer, e);
	if (rc == 0 && shard->replica)
		rc = crypt_create(true, &shard->replica->opener, e);
	return rc;
}

static int generation_encrypt(struct generation *g, struct err *e)
{
	uint8_t *key = g->data_key;
	int rc = 0;

	_Static_assert(PROOF_KEY == 2 * PROOF_NONCE, "two draws");
	if (!g->spec.encrypt)
		return 0;
	if (proof_nonce(key) < 0 || proof_nonce(key + PROOF_NONCE) < 0)
		return err_set(e, -EIO, "the box has no random numbers");
	for (unsigned core = 0; rc == 0 && core < g->spec.core_count; core++)
		if (g->store.shards[core])
			rc = generation_encrypt_core(g, g->store.shards[core], e);
	return rc;
}

static void generation_forget_keys(struct generation *g)
{
	explicit_bzero(g->data_key, sizeof(g->data_key));
	for (unsigned core = 0; g->store.shards && g->spec.encrypt && core < g->spec.core_count; core++) {
		struct shard *shard = g->store.shards[core];

		if (!shard)
			continue;
		crypt_destroy(shard->sealing->results);
		for (uint32_t rank = 0; rank < g->spec.world; rank++)
			crypt_destroy(shard->links[rank].opener);
		if (!shard->replica)
			continue;
		crypt_destroy(shard->replica->sealer);
		crypt_destroy(shard->replica->opener);
	}
}

/*
 * What its workers have on the way, all together, is at most what its bandwidth carries in so long: that much may come
 * beyond it at the start.
 */
static uint32_t generation_window(const struct generation *g, const struct job *job)
{
	uint32_t window = (uint32_t)job->control->config->window;
	uint64_t message = g->spec.plan.payload_bytes / g->spec.plan.chunk_count + 1;
	uint64_t fit = g->spec.bandwidth / GENERATION_AHEAD / message / job->world / g->spec.core_count;

	if (!g->spec.bandwidth || fit >= window)
		return window;
	return fit < GENERATION_WINDOW_MIN ? GENERATION_WINDOW_MIN : (uint32_t)fit;
}

/* What both ends know of each connection before its first message. */
static void generation_fill_links(struct generation *g, const struct job *job)
{
	uint32_t window = g->window = generation_window(g, job);

	for (uint32_t core = 0; core < g->spec.core_count; core++) {
		const struct shard *shard = g->store.shards[core];
		uint32_t largest = 0;

		if (!shard)
			continue;
		for (uint32_t i = 0; i < shard->chunk_count; i++) {
			uint32_t bytes = g->spec.boxes > 0 ? shard->lift_spans[i].bytes : shard->spans[i].bytes;

			largest = bytes > largest ? bytes : largest;
		}
		for (uint32_t rank = 0; rank < job->world; rank++) {
			struct generation_link *link = generation_link(g, rank, core);
			bool box = spec_is_box(&g->spec, rank);

			link->sealed = g->spec.encrypt && !g->pushes[rank].base;
			link->spec = (struct conn_spec){
				.chunk_count = shard->chunk_count,
				.spans = link->sealed ? shard->sealing->spans
					 : box        ? shard->lift_spans
						      : shard->spans,
				.shorter = box,
				.payload_max = largest + (link->sealed ? WIRE_TRAILER_BYTES : 0),
				.window = window,
				.push = g->pushes[rank].base ? &g->pushes[rank] : NULL,
				.slot_offset = generation_slot_offset(g, core),
				.slot_count = box ? 0 : g->slot_count,
				.slot_bytes = g->slot_bytes,
				.result = &g->store.result,
				.group = shard,
				.group_conns = job->world,
				.parts = spec_parts(&g->spec),
				.job = g->spec.id,
				.rank = rank,
				.seal = g->spec.seal,
			};
		}
	}
}

/* What is too large is usually one key. */
static int generation_blame(const struct table *t, int rc, struct err *e)
{
	uint32_t largest = 0;

	if (rc != -ENOMEM && rc != -E2BIG && rc != -EOVERFLOW)
		return rc;
	for (uint32_t i = 1; i < t->key_count; i++)
		if (t->keys[i].elements > t->keys[largest].elements)
			largest = i;
	return err_set(e, rc, "%s (its largest key is '%.100s' with %" PRIu64 " elements)", e->text,
		table_key_name(t, largest), t->keys[largest].elements);
}

int generation_create(struct job *job, struct generation **out, struct err *e)
{
	struct box *box = job->control->box;
	struct generation *g = calloc(1, sizeof(*g));
	const struct config_job *listed = config_find_job(box->config, job->name);
	int rc = 0;

	if (!g)
		return err_set(e, -ENOMEM, "no memory");
	g->spec = job->reference->spec;
	memcpy(g->spec.name, job->name, sizeof(g->spec.name));
	g->spec.id = job->id;
	g->spec.epoch = GENERATION_EPOCH;
	g->spec.weight = listed ? listed->weight : 1;
	g->spec.bandwidth = listed ? listed->bandwidth : 0;
	g->pushes = calloc(job->world, sizeof(*g->pushes));
	for (uint32_t rank = 0; g->pushes && rank < job->world; rank++)
		g->pushes[rank].fd = -1;
	g->links = calloc((size_t)job->world * box->core_count, sizeof(*g->links));
	if (!g->pushes || !g->links)
		rc = err_set(e, -ENOMEM, "no memory for %u workers' connections", job->world);
	if (rc == 0)
		rc = generation_plan(g, job, e);
	if (rc == 0 && job_is_spread(job))
		rc = generation_spread(g, job, e);
	if (rc == 0)
		g->spec.standby = generation_has_standby(g, job);
	if (rc == 0)
		rc = generation_place(g, job, box, listed ? listed->cores : 0, e);
	if (rc == 0 && job->mirror)
		rc = generation_make_mirror(g, job, e);
	if (rc == 0)
		rc = generation_admit(g, job, e);
	if (rc == 0)
		rc = generation_take(g, job, e);
	if (rc == 0)
		rc = generation_encrypt(g, e);
	if (rc < 0) {
		g->spec.world = g->pushes ? job->world : 0;
		generation_destroy(g, box);
		return generation_blame(job->reference, rc, e);
	}
	generation_fill_links(g, job);
	g->table = job->reference;
	job->reference = NULL;
	*out = g;
	return 0;
}

/* ---- other homes ---- */

static uint64_t generation_ways_bytes(const struct generation *g, const uint16_t *ways)
{
	uint64_t bytes = 0;

	for (unsigned core = 0; core < g->spec.core_count; core++)
		bytes += store_ways_bytes(&g->spec, ways, core);
	return bytes;
}

int generation_take_ways(struct job *job, const uint16_t *ways, struct generation_ways *out, struct err *e)
{
	struct control *c = job->control;
	struct generation *g = job->generation;
	const struct config_job *listed = config_find_job(c->config, job->name);
	const struct store_config config = generation_store(job, false);
	uint64_t need = generation_ways_bytes(g, ways), room = c->config->memory_max - c->memory_used;
	struct generation_ways w = {.regions = calloc(g->spec.core_count, sizeof(*w.regions)), .memory = need};
	int rc = 0;

	if (listed && listed->memory_max && generation_quota(job, listed) < room + g->memory)
		room = generation_quota(job, listed) < g->memory ? 0 : generation_quota(job, listed) - g->memory;
	if (!w.regions || need > room) {
		free(w.regions);
		return err_set(e, -ENOMEM,
			"it needs %" PRIu64 " bytes more while its chunks get other homes, and %" PRIu64
			" are available (memory_max)",
			need, room);
	}
	c->memory_used += need;
	g->memory += need;
	for (unsigned core = 0; rc == 0 && core < g->spec.core_count; core++)
		if (g->store.shards[core])
			rc = store_ways_create(
				&g->spec, ways, &config, core, g->store.shards[core], &w.regions[core], e);
	if (rc < 0)
		generation_drop_ways(g, c->box, &w);
	else
		*out = w;
	return rc;
}

void generation_have_ways(struct job *job, const uint16_t *ways, struct generation_ways *w)
{
	struct generation *g = job->generation;
	struct generation_ways old = {g->store.ways, generation_ways_bytes(g, g->spec.way_of_chunk)};

	g->store.ways = w->regions;
	g->store.bytes += w->memory - old.memory;
	g->spec.way_of_chunk = ways;
	*w = (struct generation_ways){.regions = NULL};
	generation_drop_ways(g, job->control->box, &old);
}

void generation_drop_ways(struct generation *g, struct box *box, struct generation_ways *w)
{
	for (unsigned core = 0; w->regions && core < box->core_count; core++)
		if (w->regions[core].base)
			mem_region_destroy(&w->regions[core]);
	free(w->regions);
	if (g) {
		box->control.memory_used -= w->memory;
		g->memory -= w->memory;
	}
	*w = (struct generation_ways){.regions = NULL};
}

void generation_give_reserved(struct generation *g, struct box *box)
{
	box->control.memory_used -= g->reserved;
	g->memory -= g->reserved;
	g->reserved = 0;
}

void generation_attach(struct generation *g, struct box *box)
{
	for (unsigned core = 0; core < g->spec.core_count; core++) {
		struct mail mail = {.kind = MAIL_ATTACH, .core = core, .shard = g->store.shards[core]};

		if (!mail.shard)
			continue;
		post_send(&box->posts[core], &mail);
		g->attached++;
	}
}

unsigned generation_post(const struct generation *g, struct box *box, const struct mail *mail)
{
	unsigned count = 0;

	for (unsigned core = 0; core < g->spec.core_count; core++) {
		struct mail one = *mail;

		one.core = core;
		one.shard = g->store.shards[core];
		one.job = g->spec.id;
		one.generation = g->spec.generation;
		if (!one.shard)
			continue;
		post_send(&box->posts[core], &one);
		count++;
	}
	return count;
}

void generation_unlink(struct generation *g, struct box *box, uint32_t rank)
{
	/* Shards that no core has yet, or that are on their way back, may be gone before the mail is read. */
	for (unsigned core = 0; core < g->spec.core_count && g->attached > 0 && !g->detaching; core++) {
		struct mail mail = {.kind = MAIL_UNLINK, .core = core, .shard = g->store.shards[core], .rank = rank};

		if (mail.shard)
			post_send(&box->posts[core], &mail);
	}
}

void generation_detach(struct generation *g, struct box *box, uint64_t drain_ns, bool patient)
{
	if (g->attached == 0 || g->hurried || (g->detaching && drain_ns > 0))
		return;
	g->detaching = true;
	g->hurried = drain_ns == 0;
	for (unsigned core = 0; core < g->spec.core_count; core++) {
		struct mail mail = {.kind = MAIL_DETACH,
			.core = core,
			.shard = g->store.shards[core],
			.value = (int64_t)drain_ns,
			.detail = patient};

		if (mail.shard)
			post_send(&box->posts[core], &mail);
	}
}

void generation_destroy(struct generation *g, struct box *box)
{
	if (!g)
		return;
	generation_forget_keys(g);
	standby_destroy(g->standby);
	store_destroy(&g->store);
	for (uint32_t rank = 0; g->pushes && rank < g->spec.world; rank++)
		mem_region_destroy(&g->pushes[rank]);
	if (g->placed)
		placement_unload(
			g->chunk_bytes, g->spec.plan.chunk_count, box->placement, box->core_count, g->core_of_chunk);
	box->control.memory_used -= g->memory;
	chunking_plan_fini(&g->spec.plan);
	table_destroy(g->table);
	free(g->pushes);
	if (g->links)
		explicit_bzero(g->links, (size_t)g->spec.world * box->core_count * sizeof(*g->links));
	free(g->links);
	free(g->chunk_bytes);
	free(g->core_of_chunk);
	free(g);
}

static void generation_add_tally(struct coding_tally *sum, const struct coding_tally *t)
{
	sum->coded += stats_read(&t->coded);
	sum->bytes += stats_read(&t->bytes);
	sum->whole += stats_read(&t->whole);
}

struct generation_sums generation_sums(const struct generation *g)
{
	struct generation_sums sums = {0};

	for (unsigned core = 0; core < g->spec.core_count; core++) {
		const struct shard *shard = g->store.shards[core];

		if (!shard)
			continue;
		sums.bytes += stats_read(&shard->counters.bytes);
		sums.rounds += stats_read(&shard->counters.rounds);
		generation_add_tally(&sums.sparse_pushes, &shard->counters.sparse_pushes);
		generation_add_tally(&sums.sparse_replies, &shard->counters.sparse_replies);
	}
	return sums;
}

void generation_add_dropped(const struct generation *g, uint64_t sums[DROP_COUNT])
{
	for (unsigned core = 0; core < g->spec.core_count; core++) {
		const struct shard *shard = g->store.shards[core];

		for (unsigned why = 0; shard && why < DROP_COUNT; why++)
			sums[why] += stats_read(&shard->counters.dropped[why]);
	}
}
