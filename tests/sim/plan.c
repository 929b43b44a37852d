/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a seed decides of a world.
 */
#include "client/phub.h"
#include "tests/sim/world.h"

static uint32_t world_draw(uint64_t *random, uint32_t first, uint32_t last)
{
	return first + (uint32_t)(oracle_random(random) % (last - first + 1));
}

/* Half of the worlds have four workers; the others as many as may be, or one alone. */
static unsigned world_draw_workers(uint64_t seed)
{
	uint64_t r = seed * 0x9e3779b97f4a7c15ull + 37; /* apart: worlds of four stay what they were */

	return world_draw(&r, 0, 1) ? 4 : world_draw(&r, 1, WORLD_WORKERS_MAX);
}

/* How many of them close a round, where not all do. */
static unsigned world_draw_quorum(uint64_t *random, unsigned workers)
{
	return world_draw(random, 1, workers > 1 ? workers - 1 : 1);
}

void world_plan_datagrams(struct world_plan *plan)
{
	static const uint32_t sizes[] = {1472, 8972, LOOP_DATAGRAM_MAX}, paths[] = {0, 1232, 1452};
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 7;

	if (plan->datagrams)
		return;
	plan->datagrams = true;
	plan->net.lossy = world_draw(&r, 0, 7) > 0;
	plan->net.drop = world_draw(&r, 0, 20) / 100.0;
	plan->net.corrupt = world_draw(&r, 0, 1) ? world_draw(&r, 0, 5) / 100.0 : 0;
	plan->net.datagram_max = sizes[world_draw(&r, 0, 2)];
	plan->net.path_max = world_draw(&r, 0, 2) ? 0 : paths[world_draw(&r, 1, 2)];
	plan->net.pipe_bytes_max = world_draw(&r, 0, 2) ? 0 : 16 * WORLD_CHUNK_BYTES;
}

void world_plan_encrypt(struct world_plan *plan)
{
	plan->encrypt = true;
}

void world_plan_invite(struct world_plan *plan)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 29;

	plan->guests = world_draw(&r, 1, WORLD_GUESTS_MAX);
}

void world_plan_guest(const struct world_plan *plan, struct world_plan *guest)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 31;

	world_plan_draw(oracle_random(&r), guest);
	guest->workers = plan->guests;
	guest->guests = 0;
	guest->cores = plan->cores;
	guest->window = plan->window;
	guest->hold_max = plan->hold_max;
	guest->sync = SYNC_BSP;
	guest->rounds = world_draw(&r, 2, 12);
	guest->net = plan->net;
	guest->encrypt = plan->encrypt;
	guest->datagrams = plan->datagrams;
	guest->mourned = false;
	guest->breaks = 0;
}

/* In half of the worlds whose membership changes, and whose box lives; who comes may do so while it does. */
static void world_plan_rest(struct world_plan *plan)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 73; /* apart */

	if (world_plan_dies(plan) || world_draw(&r, 0, 1))
		return;
	plan->rest_ns = 1000ull * (world_draw(&r, 0, 1) ? world_draw(&r, 50, 500) : world_draw(&r, 500, 5000));
	plan->return_max_ns = world_draw(&r, 0, 1) ? 2 * plan->rest_ns : plan->return_max_ns;
}

/* Sums do not depend on the order of arrival. */
static void world_plan_vary(struct world_plan *plan, uint64_t *r)
{
	plan->mourned = false;
	plan->lockstep = false;
	plan->rounds = world_draw(r, 3, 8);
	plan->values = plan->reproducible ? plan->values : ORACLE_INTEGERS;
	plan->slow = world_draw(r, 0, 2) ? 0 : world_draw(r, 1, 2);
	plan->slow_ns = 1000 * world_draw(r, 10, 3000);
}

void world_plan_elastic(struct world_plan *plan)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 11, apart = plan->seed * 0x9e3779b97f4a7c15ull + 41;

	world_plan_vary(plan, &r);
	plan->lost = world_draw(&r, 0, 1) ? LOST_SHRINK : LOST_WAIT;
	if (world_draw(&apart, 0, 5) == 0)
		plan->lost = LOST_FAIL;
	plan->deaths = world_draw(&r, 1, 4);
	plan->return_max_ns = 1000000ull * (world_draw(&r, 0, 1) ? world_draw(&r, 0, 20) : world_draw(&r, 20, 2000));
	world_plan_rest(plan);
	plan->wait_ms = world_draw(&r, 500, 3000);
	/* The schedule of rates goes on where it is for who comes. */
	plan->lockstep = plan->optimizer != OPTIMIZER_NONE && world_draw(&r, 0, 2) == 0;
	if (plan->sync != SYNC_BSP) { /* the replay knows no schedule */
		plan->lockstep = false;
		return;
	}
	if (plan->optimizer != OPTIMIZER_NONE && !plan->lockstep && !plan->reproducible && world_draw(&r, 0, 2) == 0)
		plan->quorum = world_draw_quorum(&r, plan->workers);
}

void world_plan_stepwise(struct world_plan *plan)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 17;

	if (plan->optimizer == OPTIMIZER_NONE)
		plan->optimizer = (enum optimizer_kind)world_draw(&r, 1, 6);
	plan->sync = world_draw(&r, 0, 2) ? SYNC_SSP : SYNC_ASYNC;
	plan->staleness = plan->sync == SYNC_SSP ? world_draw(&r, 0, 2) : 0;
	plan->reproducible = false;
	plan->mean = false;
	plan->values = ORACLE_INTEGERS;
	for (unsigned i = 0; i < plan->key_count; i++)
		plan->alone[i] = true;
	world_plan_elastic(plan);
}

void world_plan_quorum(struct world_plan *plan)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 13;

	world_plan_vary(plan, &r);
	plan->sync = SYNC_BSP;
	plan->reproducible = false;
	plan->values = ORACLE_INTEGERS;
	if (plan->optimizer == OPTIMIZER_NONE)
		plan->optimizer = (enum optimizer_kind)world_draw(&r, 1, 6);
	plan->quorum = world_draw_quorum(&r, plan->workers);
	plan->slow = world_draw(&r, 1, 3);
}

void world_plan_standby(struct world_plan *plan)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 17;
	static const unsigned steps[] = {5, 50, 500};

	plan->sync = SYNC_BSP;
	plan->mourned = false;
	plan->rounds = world_draw(&r, 3, 10);
	plan->net.lossy = plan->datagrams && plan->net.lossy;
	plan->strike = (enum world_strike)(STRIKE_KILL + world_draw(&r, 0, 4) % 3);
	plan->strike_steps = steps[world_draw(&r, 0, 2)];
	plan->hasty = world_draw(&r, 0, 4) == 0;
	plan->twin_breaks = world_draw(&r, 0, 3) == 0;
	plan->apart = world_draw(&r, 0, 2) == 0;
	if (world_draw(&r, 0, 3) == 0)
		world_plan_quorum(plan);
	plan->mended = plan->twin_breaks && world_draw(&r, 0, 1);
	if (plan->mended) { /* who waits a second before it is tried again needs a job that lasts */
		plan->hasty = false;
		plan->rounds = world_draw(&r, 6, 10);
		plan->slow = plan->workers;
		plan->slow_ns = 1000000ull * world_draw(&r, 500, 1500);
	}
}

/* In two of three worlds at several boxes ranks die and come, at either box, and so does the one below. */
static void world_plan_spread_elastic(struct world_plan *plan)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 43; /* apart: the others stay what they were */

	plan->lost = (enum spec_lost)world_draw(&r, LOST_FAIL, LOST_WAIT);
	if (plan->lost == LOST_FAIL)
		return;
	world_plan_vary(plan, &r);
	plan->values = ORACLE_INTEGERS;
	plan->deaths = world_draw(&r, 0, 4);
	plan->return_max_ns = 1000000ull * (world_draw(&r, 0, 1) ? world_draw(&r, 0, 20) : world_draw(&r, 20, 2000));
	world_plan_rest(plan);
	plan->wait_ms = world_draw(&r, 500, 3000);
	plan->below_steps *= 1 + world_draw(&r, 0, 3);
	plan->in_step = true; /* else two that come at once, at two boxes, may wait for each other */
	plan->lockstep = plan->optimizer != OPTIMIZER_NONE && world_draw(&r, 0, 2) == 0;
}

const char *const world_hierarchies[4] = {"tree", "sharded", "chain", "auto"};

/* What is encrypted is not spread. Sums of sums are those of the serial run where they are exact. */
static void world_plan_several(struct world_plan *plan)
{
	plan->sync = SYNC_BSP;
	plan->encrypt = false;
	plan->values = plan->optimizer == OPTIMIZER_NONE ? plan->values : ORACLE_INTEGERS;
	plan->reproducible = plan->reproducible && plan->values == ORACLE_INTEGERS;
	for (unsigned k = 0; k < plan->key_count; k++) /* what comes early is kept in the key's own type */
		plan->reproducible = plan->reproducible && plan->dtypes[k] == DTYPE_F32;
	plan->net.lossy = false; /* boxes speak by what loses nothing */
	plan->net.corrupt = 0;
	plan->net.hosts = WORLD_HOSTS;
	plan->datagrams = false;
}

void world_plan_spread(struct world_plan *plan)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 19;
	uint32_t below;

	world_plan_several(plan);
	plan->workers = plan->workers > 1 ? plan->workers : 2;
	plan->mortal %= plan->workers;
	below = (uint32_t)world_draw(&r, 1, (1u << plan->workers) - 1);
	for (unsigned rank = 0; rank < plan->workers; rank++)
		plan->at[rank] = below >> rank & 1;
	plan->below = 1;
	plan->boxes[0].cores = (unsigned)world_draw(&r, 1, 4);
	plan->hierarchy = (unsigned)world_draw(&r, 0, 3);
	plan->below_part = world_draw(&r, 0, 2) ? PART_NEVER : (enum world_part)world_draw(&r, PART_DEATH, PART_CUT);
	plan->below_parts = 1;
	plan->below_steps = (unsigned)world_draw(&r, 10, 300);
	world_plan_spread_elastic(plan);
}

/* Whoever loses this box goes to its sibling: that is itself not below it. */
static void world_draw_sibling(struct world_plan *plan, unsigned box, uint64_t *r)
{
	unsigned sibling = world_draw(r, 0, plan->below), above = sibling;

	while (above && above != box + 1)
		above = plan->boxes[above - 1].above;
	plan->boxes[box].sibling = above ? 0 : sibling;
}

/* Two boxes below the root, or more; in half of the worlds some below others. All have a sibling, for who needs one. */
static void world_plan_tree(struct world_plan *plan, uint64_t *r)
{
	bool deep = world_draw(r, 0, 1);

	plan->below = world_draw(r, 2, WORLD_BELOW_MAX);
	plan->workers = world_draw(r, plan->below, WORLD_WORKERS_MAX);
	plan->mortal %= plan->workers;
	for (unsigned i = 0; i < plan->below; i++) {
		plan->boxes[i].above = deep ? world_draw(r, 0, i) : 0;
		plan->boxes[i].cores = world_draw(r, 1, 3);
	}
	for (unsigned i = 0; i < plan->below; i++)
		world_draw_sibling(plan, i, r);
	for (unsigned rank = 0; rank < plan->workers; rank++)
		plan->at[rank] = world_draw(r, 0, plan->below);
	plan->at[world_draw(r, 0, plan->workers - 1)] = plan->below; /* the last one has somebody */
}

void world_plan_racks(struct world_plan *plan)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 47;
	static const unsigned steps[] = {20, 100, 400};

	world_plan_several(plan);
	world_plan_tree(plan, &r);
	plan->hierarchy = world_draw(&r, 0, 1) ? 0 : (unsigned)world_draw(&r, 1, 3);
	plan->below_part = world_draw(&r, 0, 3) ? (enum world_part)world_draw(&r, PART_DEATH, PART_BRIEF) : PART_NEVER;
	plan->below_parts = world_draw(&r, 1, 3);
	plan->below_steps = steps[world_draw(&r, 0, 2)];
	plan->one_way = world_draw(&r, 0, 1);
	/* What is owed to who is left comes by connections that are there. */
	plan->mourned = plan->mourned && (plan->below_part == PART_NEVER || plan->below_part == PART_BRIEF);
	world_plan_spread_elastic(plan);
	if (plan->lost == LOST_FAIL)
		return;
	plan->resume = !plan->hierarchy && world_draw(&r, 0, 1);
	plan->deaths = world_draw(&r, 0, 2) ? 0 : plan->deaths;
}

/* Somebody at each box below. The first key has chunks for all of them. */
static void world_plan_exchange(struct world_plan *plan, uint64_t *r)
{
	unsigned first;

	plan->homes = true;
	plan->hierarchy = world_draw(r, 1, 2);
	plan->below = world_draw(r, 1, 3);
	plan->workers = world_draw(r, plan->below + 1, WORLD_WORKERS_MAX);
	plan->mortal %= plan->workers;
	for (unsigned rank = 0; rank < plan->workers; rank++)
		plan->at[rank] = world_draw(r, 0, plan->below);
	first = world_draw(r, 0, plan->workers - 1);
	for (unsigned i = 0; i < plan->below; i++) {
		plan->boxes[i].cores = world_draw(r, 1, 3);
		plan->at[(first + i) % plan->workers] = i + 1;
	}
	plan->elements[0] = world_draw(r, 3000, 8000);
}

void world_plan_homes(struct world_plan *plan)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 61;
	static const unsigned steps[] = {20, 100, 400};

	world_plan_several(plan);
	plan->values = ORACLE_INTEGERS;
	world_plan_exchange(plan, &r);
	plan->below_part = world_draw(&r, 0, 4) ? (enum world_part)world_draw(&r, PART_DEATH, PART_BRIEF) : PART_NEVER;
	plan->below_parts = world_draw(&r, 1, 3);
	plan->below_steps = steps[world_draw(&r, 0, 2)];
	plan->mourned = plan->mourned && (plan->below_part == PART_NEVER || plan->below_part == PART_BRIEF);
	world_plan_spread_elastic(plan);
	if (world_draw(&r, 0, 1))
		plan->rebalances = world_draw(&r, 1, 3);
	if (plan->lost != LOST_FAIL || world_draw(&r, 0, 3))
		return;
	world_plan_vary(plan, &r);
	plan->values = ORACLE_INTEGERS;
	plan->in_step = true;
	plan->deaths = 1;
}

static void world_plan_disk(struct world_plan *plan, uint64_t *r)
{
	plan->disk = (struct storage_plan){.seed = plan->seed, .targets = 1};
#ifdef PHUB_ISAL
	plan->disk.targets = world_draw(r, 0, 2) ? world_draw(r, 2, 4) : 1;
	plan->parity = plan->disk.targets > 1 ? world_draw(r, 1, plan->disk.targets - 1) : 0;
#endif
	plan->disk.buffered = world_draw(r, 0, 2) == 0;
	plan->disk.fail = world_draw(r, 0, 2) ? 0 : world_draw(r, 1, 50) / 1000.0;
	plan->disk.fail_read = world_draw(r, 0, 3) ? 0 : world_draw(r, 1, 30) / 1000.0;
	plan->disk.full = world_draw(r, 0, 3) ? 0 : world_draw(r, 1, 50) / 1000.0;
	plan->disk.bytes_max = world_draw(r, 0, 5) ? 0 : 1024 * world_draw(r, 40, 400);
	plan->keep = world_draw(r, 1, 3);
	plan->every = world_draw(r, 0, 3);
	plan->rate = world_draw(r, 0, 1) ? 0 : 1024 * world_draw(r, 1024, 8192);
	plan->harms = world_draw(r, 0, 1) ? world_draw(r, 1, 4) : 0;
	plan->cruel = world_draw(r, 0, 3) == 0;
}

void world_plan_durable(struct world_plan *plan)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 17;

	plan->sync = SYNC_BSP;
	plan->mourned = false;
	plan->rounds = world_draw(&r, 6, WORLD_ROUNDS_MAX - 1);
	if (world_draw(&r, 0, 7) && plan->optimizer == OPTIMIZER_NONE)
		plan->optimizer = (enum optimizer_kind)world_draw(&r, 1, 6);
	plan->lockstep = plan->optimizer != OPTIMIZER_NONE && world_draw(&r, 0, 1);
	plan->values = plan->reproducible ? plan->values : ORACLE_INTEGERS;
	plan->slow = plan->workers;
	plan->slow_ns = 1000000ull * world_draw(&r, 20, 300);
	plan->box_deaths = world_draw(&r, 1, 4);
	plan->away_max_ns = 1000000ull * (world_draw(&r, 0, 1) ? world_draw(&r, 0, 20) : world_draw(&r, 20, 3000));
	world_plan_disk(plan, &r);
	plan->leaves = world_draw(&r, 0, 7) == 0;
}

/* In two of three of these worlds ranks die and come, too, before, while and after the root is away. */
static void world_plan_rooted_elastic(struct world_plan *plan)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 59; /* apart: the others stay what they were */

	plan->lost = (enum spec_lost)world_draw(&r, LOST_FAIL, LOST_WAIT);
	if (plan->lost == LOST_FAIL)
		return;
	world_plan_vary(plan, &r);
	plan->rounds = world_draw(&r, 4, 12);
	plan->slow = plan->workers;
	plan->slow_ns = 1000000ull * world_draw(&r, 20, 300);
	plan->every = world_draw(&r, 1, 3);
	plan->values = ORACLE_INTEGERS;
	plan->deaths = world_draw(&r, 0, 1) ? world_draw(&r, 1, 3) : 0;
	plan->return_max_ns = 1000000ull * (world_draw(&r, 0, 1) ? world_draw(&r, 0, 20) : world_draw(&r, 20, 2000));
	plan->wait_ms = world_draw(&r, 500, 3000);
	plan->in_step = true; /* else two that come at once, at two boxes, may wait for each other */
	plan->lockstep = plan->optimizer != OPTIMIZER_NONE && world_draw(&r, 0, 2) == 0;
	if (world_draw(&r, 0, 1))
		plan->below_part = (enum world_part)world_draw(&r, PART_DEATH, PART_BRIEF);
	plan->resume = world_draw(&r, 0, 1);
}

void world_plan_rooted(struct world_plan *plan)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 53;

	world_plan_durable(plan);
	world_plan_several(plan);
	world_plan_tree(plan, &r);
	plan->slow = plan->workers;
	plan->box_deaths = world_draw(&r, 1, 2);
	plan->below_part = world_draw(&r, 0, 2) ? PART_NEVER : PART_BRIEF;
	plan->below_parts = 2;
	plan->below_steps = 300;
	plan->one_way = world_draw(&r, 0, 1);
	world_plan_rooted_elastic(plan);
}

/* One of the boxes right below the root. */
static unsigned world_draw_heir(const struct world_plan *plan, uint64_t *r)
{
	unsigned tops = 0, at;

	for (unsigned i = 0; i < plan->below; i++)
		tops += plan->boxes[i].above == 0;
	at = world_draw(r, 1, tops);
	for (unsigned i = 0;; i++)
		if (plan->boxes[i].above == 0 && --at == 0)
			return i + 1;
}

void world_plan_promoted(struct world_plan *plan)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 67;

	world_plan_rooted(plan);
	plan->hierarchy = 0;
	plan->promotes = true;
	plan->resume = true;
	plan->heir = world_draw_heir(plan, &r);
	plan->boxes[plan->heir - 1].sibling = 0;
	plan->cruel = false; /* else the disks may forget who was promoted */
	plan->box_deaths = world_draw(&r, 1, 3);
	plan->away_max_ns = 1000000ull * (world_draw(&r, 0, 3) ? world_draw(&r, 1000, 12000) : world_draw(&r, 0, 20));
}

void world_plan_leased(struct world_plan *plan)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 61;

	world_plan_rooted(plan);
	plan->hierarchy = 0;
	plan->upsets = world_draw(&r, 1, 3);
	plan->upset_steps = world_draw(&r, 50, 1000);
	plan->ttl_ms = 1000 * world_draw(&r, 2, 5);
	plan->box_deaths = world_draw(&r, 0, 2) ? 0 : 1;
	if (world_draw(&r, 0, 1))
		return;
	/* Another one has no part in the root's disks: where that is the root the job begins anew. */
	plan->disk = (struct storage_plan){.targets = 0};
	plan->box_deaths = 0;
	plan->harms = 0;
	plan->resume = true;
	plan->heir = world_draw_heir(plan, &r);
}

void world_plan_resumed(struct world_plan *plan)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 23;
	static const enum spec_lost lost[] = {LOST_SHRINK, LOST_SHRINK, LOST_WAIT, LOST_WAIT, LOST_FAIL};

	world_plan_durable(plan);
	world_plan_elastic(plan);
	plan->lost = lost[world_draw(&r, 0, 4)];
	plan->quorum = plan->lost == LOST_FAIL ? 0 : plan->quorum;
	plan->rounds = world_draw(&r, 4, 12);
	plan->slow = plan->workers;
	plan->slow_ns = 1000000ull * world_draw(&r, 20, 300);
	plan->every = world_draw(&r, 1, 3);
}

void world_plan_mangled(struct world_plan *plan)
{
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 19;

	plan->mangled = true;
	plan->mourned = false;
	plan->net.stream_corrupt = world_draw(&r, 0, 2) ? 0 : world_draw(&r, 1, 40) / 1000.0;
	if (plan->workers ==
		1) /* what it says of its job is compared with nobody's: only TLS sees that it was changed */
		plan->net.stream_corrupt = 0;
	plan->net.stream_break = world_draw(&r, 0, 2) ? 0 : world_draw(&r, 1, 40) / 1000.0;
	plan->net.stream_late = world_draw(&r, 0, 1) ? 0 : world_draw(&r, 1, 100) / 100.0;
	plan->net.stream_late_ns =
		1000000ull * (world_draw(&r, 0, 1) ? world_draw(&r, 1, 50) : world_draw(&r, 50, 3000));
	plan->breaks = plan->breaks ? plan->breaks : world_draw(&r, 0, 4);
}

struct optimizer_hyper world_plan_hyper(const struct world_plan *plan, uint64_t round)
{
	struct optimizer_hyper hyper;

	optimizer_hyper_default(plan->optimizer, &hyper);
	hyper.lr = plan->lockstep ? 0.01 / (double)(1 + round) : 0.01;
	hyper.weight_decay = 0.001;
	return hyper;
}

void world_plan_draw(uint64_t seed, struct world_plan *plan)
{
	static const unsigned cores[] = {1, 2, 4};
	uint64_t r = seed * 0x2545f4914f6cdd1dull + 1;

	*plan = (struct world_plan){.seed = seed, .workers = world_draw_workers(seed)};
	plan->cores = cores[world_draw(&r, 0, 2)];
	plan->key_count = world_draw(&r, 1, 10);
	plan->rounds = world_draw(&r, 2, 5);
	plan->window = world_draw(&r, 2, 6);
	plan->hold_max = 2;
	plan->reproducible = world_draw(&r, 0, 3) == 0;
	plan->mean = world_draw(&r, 0, 2) == 0;
	plan->registered = world_draw(&r, 0, 1);
	plan->same = world_draw(&r, 0, 2) == 0;
	plan->optimizer = world_draw(&r, 0, 1) ? OPTIMIZER_NONE : (enum optimizer_kind)world_draw(&r, 1, 6);
	if (plan->optimizer != OPTIMIZER_NONE && world_draw(&r, 0, 1)) {
		plan->sync = world_draw(&r, 0, 1) ? SYNC_SSP : SYNC_ASYNC;
		plan->staleness = plan->sync == SYNC_SSP ? world_draw(&r, 0, 2) : 0;
		plan->reproducible = false;
		plan->mean = false;
	}
	plan->lockstep = plan->optimizer != OPTIMIZER_NONE && plan->sync == SYNC_BSP && world_draw(&r, 0, 1);
	plan->values = plan->reproducible || (plan->optimizer == OPTIMIZER_NONE && world_draw(&r, 0, 2) == 0)
			       ? ORACLE_NORMALS
			       : ORACLE_INTEGERS;
	for (unsigned i = 0; i < plan->key_count; i++) {
		plan->elements[i] = world_draw(&r, 0, 3) ? world_draw(&r, 1, 700) : world_draw(&r, 1000, 5000);
		plan->dtypes[i] = world_draw(&r, 0, 2) ? DTYPE_F32 : (enum dtype)world_draw(&r, 1, 2);
		plan->alone[i] = world_draw(&r, 0, 2) == 0 || plan->sync != SYNC_BSP; /* the replay goes by keys */
	}
	plan->net = (struct loop_plan){
		.seed = seed,
		.delay_min_ns = 1000,
		.delay_max_ns = 1000 * world_draw(&r, 2, 200),
		.lossy = true,
		.drop = world_draw(&r, 0, 10) / 100.0,
		.duplicate = world_draw(&r, 0, 10) / 100.0,
		.reorder = world_draw(&r, 0, 20) / 100.0,
		.late = 0.2,
		.sent_late = 0.2,
		.late_max_ns = 50000,
		.split = 0.2,
		.hold_max = plan->hold_max,
		.poison = true,
	};
	plan->mourned = plan->sync == SYNC_BSP && world_draw(&r, 0, 2) == 0;
	plan->mortal = world_draw(&r, 0, plan->workers - 1);
	/* Without losses there are no repetitions either: then all hangs on the order of the ends. */
	if (plan->mourned && world_draw(&r, 0, 1)) {
		plan->net.lossy = false;
		plan->net.pipe_bytes_max = world_draw(&r, 0, 1) ? 0 : 2 * WORLD_CHUNK_BYTES;
	}
	/* What is repeated then must count once, where nothing else is ever repeated and where much is. */
	if (!plan->mourned && world_draw(&r, 0, 1)) {
		plan->breaks = world_draw(&r, 1, 6);
		plan->net.lossy = world_draw(&r, 0, 3) == 0;
	}
	if (world_draw(&r, 0, 2) == 0)
		world_plan_datagrams(plan);
	r = seed * 0x9e3779b97f4a7c15ull + 17; /* apart: worlds without it stay what they were */
	plan->encrypt = world_draw(&r, 0, 3) == 0;
	if (world_draw(&r, 0, 1))
		world_plan_invite(plan);
	r = seed * 0x9e3779b97f4a7c15ull + 79; /* likewise */
	if (world_draw(&r, 0, 2) == 0)
		for (unsigned i = 0; i < WORLD_KEYS_MAX; i++)
			plan->sparse[i] = world_draw(&r, 0, 1);
}

struct chunk_key world_plan_key(const struct world_plan *plan, unsigned k)
{
	return (struct chunk_key){.elements = plan->elements[k],
		.dtype = (uint8_t)plan->dtypes[k],
		.alone = plan->alone[k],
		.sparse = plan->sparse[k]};
}

unsigned world_plan_key_flags(const struct world_plan *plan, unsigned k)
{
	return (plan->alone[k] ? PHUB_KEY_ALONE : 0) | (plan->sparse[k] ? PHUB_KEY_SPARSE : 0);
}

const char *world_plan_lift(const struct world_plan *plan)
{
	static const char *const types[] = {"f32", "f32", "f16", "bf16"};
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 71;

	return plan->values == ORACLE_INTEGERS ? types[world_draw(&r, 0, 3)] : types[0];
}

static void world_plan_print_boxes(const struct world_plan *p, FILE *out)
{
	static const char *const parts[] = {[PART_DEATH] = "die",
		[PART_CUT] = "are cut off",
		[PART_ANY] = "die or are cut off",
		[PART_BRIEF] = "are cut off briefly"};

	fprintf(out, ", %u boxes below%s, %s:", p->below, p->homes ? ", homes" : "", world_hierarchies[p->hierarchy]);
	for (unsigned i = 0; i < p->below; i++)
		fprintf(out, " %u below %u (sibling %u, %u cores)", i + 1, p->boxes[i].above, p->boxes[i].sibling,
			p->boxes[i].cores);
	fprintf(out, ", sums as %s; ranks at", world_plan_lift(p));
	for (unsigned rank = 0; rank < p->workers; rank++)
		fprintf(out, " %u", p->at[rank]);
	if (p->below_part)
		fprintf(out, ", up to %u %s, one turn in %u", p->below_parts, parts[p->below_part], p->below_steps);
	if (p->rebalances)
		fprintf(out, ", rebalanced up to %u times", p->rebalances);
	if (p->below_part && p->one_way)
		fputs(", also of one way", out);
	if (p->resume)
		fputs(", workers come again", out);
	if (p->promotes)
		fprintf(out, ", an operator promotes its heir %u", p->heir);
	if (world_plan_leases(p))
		fprintf(out, ", the root has a lease of %.0f s, up to %u upsets, one turn in %u, heir %u",
			(double)p->ttl_ms / 1e3, p->upsets, p->upset_steps, p->heir);
}

void world_plan_print(const struct world_plan *p, FILE *out)
{
	fprintf(out, "seed %llu: %u workers, %u cores, %u keys, %u rounds, window %u, %u slots, %s%s%s%s%s%s, ",
		(unsigned long long)p->seed, p->workers, p->cores, p->key_count, p->rounds, p->window, p->hold_max,
		optimizer_kind_name(p->optimizer), p->mean ? " mean" : "", p->reproducible ? " reproducible" : "",
		p->registered ? " registered" : "", p->same ? " in place" : "",
		p->mourned && p->lockstep ? " scheduled, mourned"
		: p->mourned              ? " mourned"
		: p->lockstep             ? " scheduled"
		: p->sync == SYNC_SSP     ? " ssp"
		: p->sync == SYNC_ASYNC   ? " async"
					  : "");
	fprintf(out, "%u breaks, %sdrop %.0f %%, double %.0f %%, reorder %.0f %%", p->breaks,
		p->net.lossy ? "" : "reliable; else ", p->net.drop * 100, p->net.duplicate * 100, p->net.reorder * 100);
	if (p->deaths || p->lost != LOST_FAIL)
		fprintf(out, ", up to %u deaths, job %s (%u ms)", p->deaths,
			p->lost == LOST_WAIT     ? "waits"
			: p->lost == LOST_SHRINK ? "shrinks"
						 : "fails",
			p->wait_ms);
	if (p->rest_ns)
		fprintf(out, ", cores rest by %.2f ms", (double)p->rest_ns / 1e6);
	if (p->quorum)
		fprintf(out, ", quorum %u", p->quorum);
	if (p->strike)
		fprintf(out, ", %s one in %u turns%s, %u breaks between the boxes%s",
			p->strike == STRIKE_KILL      ? "the box dies"
			: p->strike == STRIKE_STANDBY ? "the standby dies"
			: p->apart                    ? "the box is cut off from its workers"
						      : "the box is cut off",
			p->strike_steps, p->hasty ? ", soon" : "", p->twin_breaks, p->mended ? ", mended" : "");
	if (p->below)
		world_plan_print_boxes(p, out);
	if (world_plan_shares(p))
		fprintf(out, ", a second job of %u", p->guests);
	if (p->slow)
		fprintf(out, ", %u slow by %.1f ms", p->slow, (double)p->slow_ns / 1e6);
	if (p->encrypt)
		fputs(", encrypted", out);
	for (unsigned k = 0, said = 0; k < p->key_count; k++)
		if (p->sparse[k])
			fprintf(out, "%s %u", said++ ? "" : ", sparse keys:", k);
	if (world_plan_dies(p))
		fprintf(out,
			", the box dies %u times for up to %.1f s%s; checkpoints every %u rounds, %u kept, in %u "
			"targets, "
			"parity %u, %.1f MB/s; calls fail %.1f %%, reads %.1f %%, full %.1f %% or at %llu bytes; %u "
			"harms%s",
			p->box_deaths, (double)p->away_max_ns / 1e9, p->leaves ? ", workers leave meanwhile" : "",
			p->every, p->keep, p->disk.targets, p->parity, (double)p->rate / 1e6, p->disk.fail * 100,
			p->disk.fail_read * 100, p->disk.full * 100, (unsigned long long)p->disk.bytes_max, p->harms,
			p->cruel ? ", cruel" : "");
	if (p->mangled)
		fprintf(out, ", control sessions: corrupt %.1f %%, break %.1f %%, late %.0f %% by up to %.0f ms",
			p->net.stream_corrupt * 100, p->net.stream_break * 100, p->net.stream_late * 100,
			(double)p->net.stream_late_ns / 1e6);
	if (p->datagrams)
		fprintf(out, ", datagrams of %u (%u come through), corrupt %.0f %%", p->net.datagram_max,
			p->net.path_max, p->net.corrupt * 100);
	fputc('\n', out);
}
