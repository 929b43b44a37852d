/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers in the box: bit by bit against the scalar kernels in bsp; in ssp and async by what is always true. */
#include "tests/suite/exchange_cases.h"
#include "tests/suite/exchange_work.h"

#include <stdlib.h>

/* Three parameter groups, among them small keys that could share a chunk if they were of one group. */
#define GROUPS                                 \
	.group_count = 3, .key_count = 8,      \
	.keys = {                              \
		{500, DTYPE_F32, 0, false},    \
		{30, DTYPE_F32, 1, false},     \
		{30000, DTYPE_F32, 1, false},  \
		{100, DTYPE_F32, 2, false},    \
		{77, DTYPE_F16, 2, false},     \
		{5000, DTYPE_F16, 0, false},   \
		{10000, DTYPE_BF16, 1, false}, \
		{200, DTYPE_F32, 0, true},     \
	}

static void steps_of(struct stage *stage, enum phub_optimizer optimizer)
{
	struct work w = {
		.world = 3, .rounds = 4, .seed = 20 + optimizer, .optimizer = optimizer, .scheduled = true, GROUPS};

	w.placing = (enum placing)(optimizer % (PLACING_MIXED + 1));
	work_run(stage, &w);
	w.world = 2;
	w.scheduled = false;
	w.mean = true;
	w.chunk_bytes = 4096;
	w.placing = PLACING_MIXED;
	work_run(stage, &w);
}

static void steps_of_sgd(void **state)
{
	steps_of(*state, PHUB_SGD);
}

static void steps_of_momentum(void **state)
{
	steps_of(*state, PHUB_MOMENTUM);
}

static void steps_of_nesterov(void **state)
{
	steps_of(*state, PHUB_NESTEROV);
}

static void steps_of_adagrad(void **state)
{
	steps_of(*state, PHUB_ADAGRAD);
}

static void steps_of_adam(void **state)
{
	steps_of(*state, PHUB_ADAM);
}

static void steps_of_adamw(void **state)
{
	steps_of(*state, PHUB_ADAMW);
}

/* ---- ssp, async: every rank has a gradient and a learning rate that never change ---- */

enum { LOOSE_ELEMENTS = 20000, LOOSE_SMALL = 40, LOOSE_ROUNDS = 8, LOOSE_WEIGHT = 1000 };

struct loose {
	enum phub_sync sync;
	unsigned staleness;
};

/* What one round of a rank takes from every weight: a multiple of 1/4. */
static float loose_stride(unsigned rank)
{
	return (float)(1 + rank) * (rank == 1 ? 0.5f : 0.25f);
}

static void loose_join(struct member *me)
{
	const struct loose *loose = me->arg;
	struct phub_hyper hyper;
	struct phub_options o;

	phub_hyper_init(PHUB_SGD, &hyper);
	hyper.lr = 0.25;
	member_options(me, &o);
	o.optimizer = PHUB_SGD;
	o.sync = loose->sync;
	o.staleness = loose->staleness;
	o.groups = &hyper;
	o.group_count = 1;
	EXPECT_RC(me, member_connect(me, &o), 0);
	EXPECT_RC(me, phub_key(me->phub, "large", PHUB_F32, LOOSE_ELEMENTS, 0, 0), 0);
	EXPECT_RC(me, phub_key(me->phub, "small", PHUB_F32, LOOSE_SMALL, 0, PHUB_KEY_ALONE), 1);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	hyper.lr = 0.5;
	if (me->rank == 1) /* each rank has hyper-parameters of its own here */
		EXPECT_RC(me, phub_set_hyper(me->phub, 0, &hyper), 0);
}

static void loose_exchange(struct member *me, float *large, float *small, float gradient)
{
	for (unsigned i = 0; i < LOOSE_ELEMENTS; i++)
		large[i] = gradient;
	for (unsigned i = 0; i < LOOSE_SMALL; i++)
		small[i] = gradient;
	EXPECT_RC(me, phub_push_pull(me->phub, 0, large, large, 1), 0);
	EXPECT_RC(me, phub_push_pull(me->phub, 1, small, small, 0), 0);
	EXPECT_RC(me, phub_wait(me->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT), 0);
}

/*
 * After this rank's round r: its own r steps are in, of the others at least what the policy promises, at most what it
 * lets them do. Chunks may differ in how far they are; elements of a key never go back.
 */
static void loose_check(struct member *me, const float *now, float *before, unsigned count, unsigned round)
{
	const struct loose *loose = me->arg;
	unsigned least = 0, most = LOOSE_ROUNDS;
	float low = LOOSE_WEIGHT - loose_stride(me->rank) * (float)round, high = low;

	if (loose->sync == PHUB_SSP) {
		least = round > loose->staleness ? round - loose->staleness : 0;
		most = round + loose->staleness + 1 < most ? round + loose->staleness + 1 : most;
	}
	for (unsigned rank = 0; rank < me->world; rank++) {
		if (rank == me->rank)
			continue;
		low -= loose_stride(rank) * (float)most;
		high -= loose_stride(rank) * (float)least;
	}
	for (unsigned i = 0; i < count; i++) {
		if (!(now[i] >= low && now[i] <= high && now[i] <= before[i]))
			member_fail(me, __FILE__, __LINE__, "round %u: weight %u is %g after %g, not in %g..%g", round,
				i, (double)now[i], (double)before[i], (double)low, (double)high);
		before[i] = now[i];
	}
}

static void loose_script(struct member *me)
{
	float *large = calloc(2 * LOOSE_ELEMENTS, sizeof(float)), *large_before = large + LOOSE_ELEMENTS;
	float small[LOOSE_SMALL], small_before[LOOSE_SMALL];
	float gradient = (float)(1 + me->rank), last = LOOSE_WEIGHT;

	loose_join(me);
	for (unsigned i = 0; i < LOOSE_ELEMENTS; i++)
		large[i] = large_before[i] = LOOSE_WEIGHT;
	for (unsigned i = 0; i < LOOSE_SMALL; i++)
		small[i] = small_before[i] = LOOSE_WEIGHT;
	EXPECT_RC(me, phub_broadcast(me->phub, 0, large, 0), 0);
	EXPECT_RC(me, phub_broadcast(me->phub, 1, small, 0), 0);
	EXPECT_RC(me, phub_wait(me->phub, PHUB_ALL, PHUB_TIMEOUT_DEFAULT), 0);
	for (unsigned round = 1; round <= LOOSE_ROUNDS; round++) {
		if (me->rank == round % 3 && round < 4)
			member_sleep(me, 2); /* somebody is always behind */
		loose_exchange(me, large, small, gradient);
		loose_check(me, large, large_before, LOOSE_ELEMENTS, round);
		loose_check(me, small, small_before, LOOSE_SMALL, round);
	}
	EXPECT_RC(me, phub_barrier(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	loose_exchange(me, large, small, 0);
	for (unsigned rank = 0; rank < me->world; rank++)
		last -= loose_stride(rank) * LOOSE_ROUNDS;
	for (unsigned i = 0; i < LOOSE_ELEMENTS; i++)
		EXPECT(me, large[i] == last);
	for (unsigned i = 0; i < LOOSE_SMALL; i++)
		EXPECT(me, small[i] == last);
	free(large);
	member_leave(me);
}

static void async_loses_no_step(void **state)
{
	crew_run(*state, 3, loose_script, &(struct loose){PHUB_ASYNC, 0});
	crew_run(*state, 1, loose_script, &(struct loose){PHUB_ASYNC, 0});
}

static void ssp_keeps_its_bound(void **state)
{
	crew_run(*state, 3, loose_script, &(struct loose){PHUB_SSP, 1});
	crew_run(*state, 4, loose_script, &(struct loose){PHUB_SSP, 0});
}

const struct CMUnitTest exchange_step_cases[] = {
	cmocka_unit_test(steps_of_sgd),
	cmocka_unit_test(steps_of_momentum),
	cmocka_unit_test(steps_of_nesterov),
	cmocka_unit_test(steps_of_adagrad),
	cmocka_unit_test(steps_of_adam),
	cmocka_unit_test(steps_of_adamw),
	cmocka_unit_test(async_loses_no_step),
	cmocka_unit_test(ssp_keeps_its_bound),
};
const size_t exchange_step_count = sizeof(exchange_step_cases) / sizeof(exchange_step_cases[0]);
