/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a seed decides of a world.
 */
#include "tests/sim/world.h"

static uint32_t world_draw(uint64_t *random, uint32_t first, uint32_t last)
{
	return first + (uint32_t)(oracle_random(random) % (last - first + 1));
}

void world_plan_datagrams(struct world_plan *plan)
{
	static const uint32_t sizes[] = {1472, 8972, LOOP_DATAGRAM_MAX}, paths[] = {0, 1232, 1452};
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 7;

	plan->datagrams = true;
	plan->net.lossy = world_draw(&r, 0, 7) > 0;
	plan->net.drop = world_draw(&r, 0, 20) / 100.0;
	plan->net.corrupt = world_draw(&r, 0, 1) ? world_draw(&r, 0, 5) / 100.0 : 0;
	plan->net.datagram_max = sizes[world_draw(&r, 0, 2)];
	plan->net.path_max = world_draw(&r, 0, 2) ? 0 : paths[world_draw(&r, 1, 2)];
	plan->net.pipe_bytes_max = world_draw(&r, 0, 2) ? 0 : 16 * WORLD_CHUNK_BYTES;
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
	uint64_t r = plan->seed * 0x9e3779b97f4a7c15ull + 11;

	world_plan_vary(plan, &r);
	plan->lost = world_draw(&r, 0, 1) ? LOST_SHRINK : LOST_WAIT;
	plan->deaths = world_draw(&r, 1, 4);
	plan->return_max_ns = 1000000ull * (world_draw(&r, 0, 1) ? world_draw(&r, 0, 20) : world_draw(&r, 20, 2000));
	plan->wait_ms = world_draw(&r, 500, 3000);
	/* The schedule of rates goes on where it is for who comes. */
	plan->lockstep = plan->optimizer != OPTIMIZER_NONE && world_draw(&r, 0, 2) == 0;
	if (plan->sync != SYNC_BSP) { /* the replay knows no schedule */
		plan->lockstep = false;
		return;
	}
	if (plan->optimizer != OPTIMIZER_NONE && !plan->lockstep && !plan->reproducible && world_draw(&r, 0, 2) == 0)
		plan->quorum = world_draw(&r, 1, plan->workers - 1);
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
	plan->quorum = world_draw(&r, 1, plan->workers - 1);
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

	*plan = (struct world_plan){.seed = seed, .workers = 4};
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
	if (p->deaths)
		fprintf(out, ", up to %u deaths, job %s (%u ms)", p->deaths, p->lost == LOST_WAIT ? "waits" : "shrinks",
			p->wait_ms);
	if (p->quorum)
		fprintf(out, ", quorum %u", p->quorum);
	if (p->strike)
		fprintf(out, ", %s one in %u turns%s, %u breaks between the boxes",
			p->strike == STRIKE_KILL  ? "the box dies"
			: p->strike == STRIKE_CUT ? "the box is cut off"
						  : "the standby dies",
			p->strike_steps, p->hasty ? ", soon" : "", p->twin_breaks);
	if (p->slow)
		fprintf(out, ", %u slow by %.1f ms", p->slow, (double)p->slow_ns / 1e6);
	if (p->encrypt)
		fputs(", encrypted", out);
	if (p->datagrams)
		fprintf(out, ", datagrams of %u (%u come through), corrupt %.0f %%", p->net.datagram_max,
			p->net.path_max, p->net.corrupt * 100);
	fputc('\n', out);
}
