/* SPDX-License-Identifier: Apache-2.0 */
/* All-reduce: sums and means of every type, broadcasts, fixed order, and that a wrong result does not go unseen. */
#include "tests/suite/exchange_cases.h"
#include "tests/suite/exchange_work.h"

/* Small keys that share chunks, large ones of several chunks, one that is alone; types next to each other. */
#define KEYS                                                   \
	.key_count = 10, .keys = {                             \
				 {700, DTYPE_F32, 0, false},   \
				 {1, DTYPE_F32, 0, false},     \
				 {40000, DTYPE_F32, 0, false}, \
				 {333, DTYPE_F16, 0, false},   \
				 {64, DTYPE_F16, 0, false},    \
				 {20001, DTYPE_F16, 0, false}, \
				 {17, DTYPE_BF16, 0, false},   \
				 {9000, DTYPE_BF16, 0, false}, \
				 {300, DTYPE_F32, 0, true},    \
				 {8192, DTYPE_F32, 0, false},  \
	}

static void sum_of_two(void **state)
{
	work_run(*state, &(struct work){.world = 2, .rounds = 4, .seed = 1, KEYS});
}

static void mean_of_three(void **state)
{
	work_run(*state,
		&(struct work){.world = 3, .rounds = 3, .seed = 2, .mean = true, .placing = PLACING_SAME, KEYS});
}

static void sum_of_four_in_small_chunks(void **state)
{
	work_run(*state,
		&(struct work){
			.world = 4, .rounds = 3, .seed = 3, .chunk_bytes = 4096, .placing = PLACING_MIXED, KEYS});
}

static void sum_of_four_in_large_chunks(void **state)
{
	work_run(*state,
		&(struct work){
			.world = 4, .rounds = 3, .seed = 4, .chunk_bytes = 131072, .placing = PLACING_ALLOC, KEYS});
}

static void world_of_one(void **state)
{
	work_run(*state, &(struct work){.world = 1, .rounds = 3, .seed = 5, KEYS});
	work_run(*state, &(struct work){.world = 1, .rounds = 2, .seed = 5, .mean = true, .reproducible = true, KEYS});
}

/* ---- the order of additions ---- */

/*
 * The serial run adds rank after rank, so two runs that equal it have the same bits. Their keys come in different
 * orders: the timing is never the same twice.
 */
static void reproducible_sums(void **state)
{
	const struct work w = {.world = 4,
		.rounds = 3,
		.seed = 6,
		.values = VALUES_UNEVEN,
		.reproducible = true,
		.placing = PLACING_MIXED,
		KEYS};

	work_run(*state, &w);
	work_run(*state, &w);
}

static void reproducible_means_and_steps(void **state)
{
	struct work w = {
		.world = 3, .rounds = 3, .seed = 7, .values = VALUES_UNEVEN, .reproducible = true, .mean = true, KEYS};

	work_run(*state, &w);
	w.optimizer = PHUB_ADAM;
	work_run(*state, &w);
}

/* The values are such that another order would be seen. */
static void uneven_values_show_their_order(void **state)
{
	const struct work w = {.world = 3, .rounds = 1, .values = VALUES_UNEVEN, KEYS};
	static float a[40000], b[40000], c[40000];
	unsigned differ = 0;

	work_fill(&w, 0, 1, 2, a);
	work_fill(&w, 1, 1, 2, b);
	work_fill(&w, 2, 1, 2, c);
	for (unsigned i = 0; i < 40000; i++)
		differ += (a[i] + b[i]) + c[i] != (c[i] + b[i]) + a[i];
	assert_true(differ > 4000);
}

/* ---- broadcasts between sums ---- */

static void broadcast_from_any_root(void **state)
{
	work_run_broadcasts(*state, &(struct work){.world = 3, .rounds = 3, .seed = 8, KEYS});
}

/* ---- the checker ---- */

static void planted_script(struct member *me)
{
	const struct ledger *ledger = me->arg;
	struct worker worker;

	worker_open(&worker, me, ledger);
	for (uint64_t round = 1; round < ledger->work->rounds; round++)
		worker_round(&worker, round);
	EXPECT(me, worker.wrong == 0);
	worker_round(&worker, ledger->work->rounds);
	EXPECT(me, worker.wrong == ledger->work->key_count);
	worker_close(&worker);
}

static void what_is_planted_is_found(void **state)
{
	for (enum plant plant = PLANT_STALE; plant <= PLANT_DOUBLED; plant++) {
		const struct work w = {.world = 3,
			.rounds = 2,
			.seed = 9,
			.plant = plant,
			.chunk_bytes = 4096,
			.key_count = 4,
			.keys = {{10000, DTYPE_F32, 0, false}, {200, DTYPE_F16, 0, false},
				{30000, DTYPE_BF16, 0, false}, {400, DTYPE_F32, 0, true}}};
		struct ledger ledger;

		ledger_open(&ledger, &w);
		crew_run(*state, w.world, planted_script, &ledger);
		ledger_close(&ledger);
	}
}

const struct CMUnitTest exchange_sum_cases[] = {
	cmocka_unit_test(sum_of_two),
	cmocka_unit_test(mean_of_three),
	cmocka_unit_test(sum_of_four_in_small_chunks),
	cmocka_unit_test(sum_of_four_in_large_chunks),
	cmocka_unit_test(world_of_one),
	cmocka_unit_test(reproducible_sums),
	cmocka_unit_test(reproducible_means_and_steps),
	cmocka_unit_test(uneven_values_show_their_order),
	cmocka_unit_test(broadcast_from_any_root),
	cmocka_unit_test(what_is_planted_is_found),
};
const size_t exchange_sum_count = sizeof(exchange_sum_cases) / sizeof(exchange_sum_cases[0]);
