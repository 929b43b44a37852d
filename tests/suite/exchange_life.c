/* SPDX-License-Identifier: Apache-2.0 */
/* Key tables that are replaced, barriers, leaving in any order, and coming again under the same name. */
#include "tests/suite/exchange_cases.h"
#include "tests/suite/exchange_work.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

/* ---- key tables ---- */

enum { TABLES = 3 };

struct tables {
	struct work works[TABLES];
	struct ledger ledgers[TABLES];
};

static void rekey_script(struct member *me)
{
	const struct tables *tables = me->arg;
	const struct work *w = &tables->works[0];
	struct worker worker;

	worker_open(&worker, me, &tables->ledgers[0]);
	for (unsigned t = 0; t < TABLES; t++) {
		if (t > 0) {
			worker_forget(&worker);
			EXPECT_RC(me, phub_rekey(me->phub), 0);
			EXPECT_RC(me, phub_push(me->phub, 0, "", 0), -EINVAL);
			worker_start(&worker, &tables->ledgers[t]);
		}
		EXPECT_RC(me, phub_start(me->phub, 0), -EBUSY);
		EXPECT_RC(me, phub_key(me->phub, "late", PHUB_F32, 1, 0, 0), -EBUSY);
		EXPECT_TEXT(me, "'late'");
		if (w->optimizer != PHUB_NONE)
			worker_weights(&worker);
		for (uint64_t round = 1; round <= w->rounds; round++)
			worker_round(&worker, round);
	}
	worker_close(&worker);
}

static void rekey(struct stage *stage, enum phub_optimizer optimizer)
{
	static const struct shape shapes[TABLES][4] = {
		{{100, DTYPE_F32, 0, false}, {20000, DTYPE_F32, 0, false}},
		{{50000, DTYPE_F16, 0, false}, {1, DTYPE_F32, 0, true}, {2, DTYPE_F32, 0, false},
			{3, DTYPE_F32, 0, false}},
		{{100, DTYPE_BF16, 0, false}},
	};
	static const unsigned counts[TABLES] = {2, 4, 1};
	struct tables tables;

	for (unsigned t = 0; t < TABLES; t++) {
		struct work *w = &tables.works[t];

		*w = (struct work){.world = 3,
			.rounds = 2,
			.seed = 60 + t,
			.optimizer = optimizer,
			.scheduled = true,
			.placing = PLACING_MIXED,
			.key_count = counts[t]};
		memcpy(w->keys, shapes[t], sizeof(shapes[t]));
		ledger_open(&tables.ledgers[t], w);
	}
	crew_run(stage, 3, rekey_script, &tables);
	for (unsigned t = 0; t < TABLES; t++)
		ledger_close(&tables.ledgers[t]);
}

static void tables_are_replaced(void **state)
{
	rekey(*state, PHUB_NONE);
}

/* The hyper-parameters stay as they were last set; weights and state are gone. */
static void tables_are_replaced_under_an_optimizer(void **state)
{
	rekey(*state, PHUB_MOMENTUM);
}

/* ---- barriers ---- */

static void life_join(struct member *me)
{
	struct phub_options o;

	member_options(me, &o);
	if (member_connect(me, &o) < 0)
		member_fail(me, __FILE__, __LINE__, "connect: %s", me->refusal);
	EXPECT_RC(me, phub_key(me->phub, "w", PHUB_F32, 10000, 0, 0), 0);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
}

static void life_round(struct member *me, float value)
{
	float data[10000];

	for (unsigned i = 0; i < 10000; i++)
		data[i] = value;
	EXPECT_RC(me, phub_push_pull(me->phub, 0, data, data, 0), 0);
	EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), 0);
	for (unsigned i = 0; i < 10000; i++)
		EXPECT(me, data[i] == value * (float)me->world);
}

static void barrier_script(struct member *me)
{
	atomic_uint *count = (atomic_uint *)(uintptr_t)me->arg;

	life_join(me);
	for (unsigned i = 1; i <= 5; i++) {
		if (me->rank == i % me->world)
			member_sleep(me, 3);
		/* Relaxed: the barrier itself orders it. */
		atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
		EXPECT_RC(me, phub_barrier(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
		EXPECT(me, atomic_load_explicit(count, memory_order_relaxed) >= i * me->world);
		if (i % 2)
			life_round(me, (float)i);
	}
	member_leave(me);
}

static void nobody_passes_a_barrier_alone(void **state)
{
	atomic_uint count = 0;

	crew_run(*state, 4, barrier_script, &count);
	assert_int_equal(count, 20);
}

/* Asked for with the last round still under way, and twice. */
static void busy_barrier_script(struct member *me)
{
	static float data[CREW_MAX][10000];

	life_join(me);
	if (me->rank == 0)
		EXPECT_RC(me, phub_barrier(me->phub, 0), -ETIMEDOUT);
	member_meet(me);
	EXPECT_RC(me, phub_push_pull(me->phub, 0, data[me->rank], data[me->rank], 0), 0);
	EXPECT_RC(me, phub_barrier(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), 0);
	member_leave(me);
}

static void a_barrier_may_be_waited_for_again(void **state)
{
	crew_run(*state, 3, busy_barrier_script, NULL);
}

/* ---- leaving ---- */

static void leave_script(struct member *me)
{
	const unsigned *order = me->arg;

	life_join(me);
	life_round(me, 2);
	for (unsigned i = 0; i < me->world; i++) {
		if (order[i] == me->rank) {
			EXPECT_RC(me, phub_leave(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
			EXPECT_RC(me, phub_leave(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
			EXPECT_RC(me, phub_barrier(me->phub, 0), -ESHUTDOWN);
			EXPECT_RC(me, phub_push(me->phub, 0, "", 0), -ESHUTDOWN);
			EXPECT_RC(me, phub_wait(me->phub, PHUB_ALL, 0), -ESHUTDOWN);
		}
		member_meet(me);
	}
}

static void all_may_leave_in_any_order(void **state)
{
	static const unsigned orders[][3] = {{0, 1, 2}, {2, 0, 1}, {1, 2, 0}, {2, 1, 0}};

	for (unsigned i = 0; i < 4; i++)
		crew_run(*state, 3, leave_script, orders[i]);
}

/* With a round in flight that will never be complete: it is given up. */
static void leave_early_script(struct member *me)
{
	static float data[2][10000];

	life_join(me);
	life_round(me, 1);
	if (me->rank == 0)
		EXPECT_RC(me, phub_push_pull(me->phub, 0, data[0], data[0], 0), 0);
	EXPECT_RC(me, phub_leave(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	memset(data[me->rank], 1, sizeof(data[me->rank]));
}

static void leaving_gives_up_what_is_in_flight(void **state)
{
	crew_run(*state, 2, leave_early_script, NULL);
}

/* Nobody pulls the plug on the others: a worker that stays is told when it waits for one that has left. */
static void left_alone_script(struct member *me)
{
	static float data[10000];

	life_join(me);
	if (me->rank == 1)
		EXPECT_RC(me, phub_leave(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	member_meet(me);
	if (me->rank == 0) {
		EXPECT_RC(me, phub_push_pull(me->phub, 0, data, data, 0), 0);
		EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), -EOWNERDEAD);
		EXPECT_TEXT(me, "rank 1");
		EXPECT_RC(me, phub_push(me->phub, 0, data, 0), -EOWNERDEAD);
	}
}

static void who_waits_for_one_that_left_is_told(void **state)
{
	crew_run(*state, 2, left_alone_script, NULL);
}

/* ---- again ---- */

static void again_script(struct member *me)
{
	for (unsigned i = 0; i < 4; i++) {
		life_join(me);
		life_round(me, (float)i);
		if (i == 1)
			member_drop(me); /* dies: the name is free all the same */
		else
			member_leave(me);
		member_meet(me);
	}
}

static void a_name_is_free_at_once(void **state)
{
	crew_run(*state, 3, again_script, NULL);
}

/* Who has its result may die at once: the others get theirs, and hear of the end after that. */
static void bereaved_script(struct member *me)
{
	for (unsigned i = 0; i < 12; i++) {
		life_join(me);
		life_round(me, (float)i);
		if (me->rank != i % me->world)
			EXPECT_RC(me, phub_barrier(me->phub, PHUB_TIMEOUT_DEFAULT), -EOWNERDEAD);
		member_drop(me);
		member_meet(me);
	}
}

static void a_committed_round_outlives_a_worker(void **state)
{
	crew_run(*state, 4, bereaved_script, NULL);
}

static void others_script(struct member *me)
{
	phub_t *other;
	struct phub_options o;

	life_join(me);
	for (unsigned i = 0; i < 3; i++) {
		member_options(me, &o);
		o.rank = 0;
		o.world = 1;
		EXPECT_RC(me, member_connect_to(me, me->rank ? "side-1" : "side-0", &o, &other), 0);
		EXPECT_RC(me, phub_key(other, "w", PHUB_F32, 100, 0, 0), 0);
		if (i > 0)
			EXPECT_RC(me, phub_start(other, PHUB_TIMEOUT_DEFAULT), 0);
		life_round(me, 5);
		phub_close(other);
	}
	member_leave(me);
}

static void jobs_beside_each_other(void **state)
{
	crew_run(*state, 2, others_script, NULL);
}

const struct CMUnitTest exchange_life_cases[] = {
	cmocka_unit_test(tables_are_replaced),
	cmocka_unit_test(tables_are_replaced_under_an_optimizer),
	cmocka_unit_test(nobody_passes_a_barrier_alone),
	cmocka_unit_test(a_barrier_may_be_waited_for_again),
	cmocka_unit_test(all_may_leave_in_any_order),
	cmocka_unit_test(leaving_gives_up_what_is_in_flight),
	cmocka_unit_test(who_waits_for_one_that_left_is_told),
	cmocka_unit_test(a_name_is_free_at_once),
	cmocka_unit_test(a_committed_round_outlives_a_worker),
	cmocka_unit_test(jobs_beside_each_other),
};
const size_t exchange_life_count = sizeof(exchange_life_cases) / sizeof(exchange_life_cases[0]);
