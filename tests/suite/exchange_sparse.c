/* SPDX-License-Identifier: Apache-2.0 */
/* Keys whose zeros do not travel: the same bits as if they did, and fewer bytes. */
#include "tests/suite/exchange_cases.h"
#include "tests/suite/exchange_work.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* Beside dense ones of the same type and group, which share no chunk with them. */
#define KEYS                                  \
	.key_count = 9, .sparse = 0x1d7,      \
	.keys = {                             \
		{700, DTYPE_F32, 0, false},   \
		{33, DTYPE_F32, 0, false},    \
		{40000, DTYPE_F32, 0, false}, \
		{300, DTYPE_F32, 0, false},   \
		{20001, DTYPE_F16, 0, false}, \
		{64, DTYPE_F16, 0, false},    \
		{9000, DTYPE_BF16, 0, false}, \
		{1, DTYPE_F32, 0, true},      \
		{8192, DTYPE_F32, 0, true},   \
	}

static void sparse_sums(void **state)
{
	work_run(*state, &(struct work){.world = 2, .rounds = 4, .seed = 21, KEYS});
	work_run(*state,
		&(struct work){
			.world = 4, .rounds = 4, .seed = 22, .chunk_bytes = 4096, .placing = PLACING_MIXED, KEYS});
	work_run(*state,
		&(struct work){.world = 3, .rounds = 4, .seed = 23, .mean = true, .placing = PLACING_SAME, KEYS});
	work_run(*state, &(struct work){.world = 1, .rounds = 4, .seed = 24, KEYS});
}

static void sparse_sums_in_a_fixed_order(void **state)
{
	work_run(*state, &(struct work){.world = 4,
				 .rounds = 4,
				 .seed = 25,
				 .values = VALUES_UNEVEN,
				 .reproducible = true,
				 .placing = PLACING_MIXED,
				 KEYS});
}

/* Weights that are zero stay so where no gradient ever was: their coding is shorter, too, at times. */
static void sparse_steps(void **state)
{
	work_run(*state, &(struct work){.world = 2, .rounds = 4, .seed = 26, .optimizer = PHUB_SGD, KEYS});
	work_run(*state, &(struct work){.world = 3,
				 .rounds = 4,
				 .seed = 27,
				 .optimizer = PHUB_ADAM,
				 .values = VALUES_UNEVEN,
				 .reproducible = true,
				 KEYS});
}

/* ---- broadcasts between sums ---- */

static void sparse_broadcasts(void **state)
{
	work_run_broadcasts(*state, &(struct work){.world = 3, .rounds = 4, .seed = 28, KEYS});
}

/* ---- each push a step ---- */

enum { STEP_ELEMENTS = 20000, STEP_ROUNDS = 6 };

/* The sum of all gradients is in the weights, whatever the order was. */
static void steps_script(struct member *me)
{
	static float data[CREW_MAX][STEP_ELEMENTS], result[CREW_MAX][STEP_ELEMENTS];
	float *src = data[me->rank], *dst = result[me->rank];
	struct phub_hyper hyper;
	struct phub_options o;

	member_options(me, &o);
	phub_hyper_init(PHUB_SGD, &hyper);
	hyper.lr = 1;
	o.optimizer = PHUB_SGD;
	o.sync = *(const enum phub_sync *)me->arg;
	o.staleness = 1;
	o.groups = &hyper;
	o.group_count = 1;
	if (member_connect(me, &o) < 0)
		member_fail(me, __FILE__, __LINE__, "connect: %s", me->refusal);
	EXPECT_RC(me, phub_key(me->phub, "table", PHUB_F32, STEP_ELEMENTS, 0, PHUB_KEY_SPARSE), 0);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	memset(src, 0, sizeof(data[0]));
	EXPECT_RC(me, phub_broadcast(me->phub, 0, src, 0), 0);
	EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), 0);
	memset(src, 0, sizeof(data[0]));
	for (unsigned i = me->rank; i < STEP_ELEMENTS; i += 97)
		src[i] = -1;
	for (unsigned round = 1; round <= STEP_ROUNDS; round++) {
		EXPECT_RC(me, phub_push_pull(me->phub, 0, src, dst, 0), 0);
		EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), 0);
		for (unsigned i = 0; i < STEP_ELEMENTS; i++)
			EXPECT(me, i % 97 == me->rank   ? dst[i] == (float)round
				   : i % 97 < me->world ? dst[i] >= 0 && dst[i] <= STEP_ROUNDS
							: dst[i] == 0);
	}
	member_leave(me);
}

static void sparse_pushes_step_one_by_one(void **state)
{
	static const enum phub_sync ssp = PHUB_SSP, async = PHUB_ASYNC;

	crew_run(*state, 3, steps_script, &ssp);
	crew_run(*state, 3, steps_script, &async);
}

/* ---- bytes ---- */

enum { BYTES_ELEMENTS = 1 << 20, BYTES_EVERY = 1000 };

static void bytes_script(struct member *me)
{
	static float data[CREW_MAX][BYTES_ELEMENTS];
	float *table = data[me->rank];
	struct phub_stats before = {.size = sizeof(before)}, after = before;
	struct phub_options o;
	uint64_t all = sizeof(data[0]), values = (BYTES_ELEMENTS / BYTES_EVERY + 1) * sizeof(float);

	member_options(me, &o);
	if (member_connect(me, &o) < 0)
		member_fail(me, __FILE__, __LINE__, "connect: %s", me->refusal);
	EXPECT_RC(me, phub_key(me->phub, "table", PHUB_F32, BYTES_ELEMENTS, 0, PHUB_KEY_SPARSE), 0);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	for (unsigned round = 0; round < 2; round++) { /* the same of it is not zero at both: 0.1 %; then all */
		EXPECT_RC(me, phub_stats(me->phub, &before), 0);
		for (unsigned i = 0; i < BYTES_ELEMENTS; i++)
			table[i] = round || i % BYTES_EVERY == 7 ? (float)(1 + me->rank) : 0;
		EXPECT_RC(me, phub_push_pull(me->phub, 0, table, table, 0), 0);
		EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), 0);
		for (unsigned i = 0; i < BYTES_ELEMENTS; i++)
			EXPECT(me, table[i] == (round || i % BYTES_EVERY == 7 ? 3 : 0));
		EXPECT_RC(me, phub_stats(me->phub, &after), 0);
		after.pushed_bytes -= before.pushed_bytes;
		after.pulled_bytes -= before.pulled_bytes;
		if (round || me->crew->stage->scene->mapped) {
			EXPECT(me, after.pushed_bytes == all && after.pulled_bytes == all);
			EXPECT(me, after.coded_pushes == before.coded_pushes);
			EXPECT(me, after.coded_results == before.coded_results);
			continue;
		}
		/* A gap takes two bytes, and a chunk eight. */
		EXPECT(me, after.pushed_bytes > values && after.pushed_bytes < 2 * values);
		EXPECT(me, after.pulled_bytes == after.pushed_bytes);
		EXPECT(me, after.coded_pushes == after.pushes && after.coded_results == after.results);
	}
	member_leave(me);
}

static void zeros_do_not_travel(void **state)
{
	crew_run(*state, 2, bytes_script, NULL);
}

/* ---- what is wrong ---- */

enum { WRONG_ELEMENTS = 30000, WRONG_AT = 12345 };

static void wrong_open(struct member *me, enum phub_nan nan, unsigned flags)
{
	struct phub_options o;

	member_options(me, &o);
	o.nan = nan;
	if (member_connect(me, &o) < 0)
		member_fail(me, __FILE__, __LINE__, "connect: %s", me->refusal);
	EXPECT_RC(me, phub_key(me->phub, "table", PHUB_F32, WRONG_ELEMENTS, 0, flags), 0);
}

static void zero_script(struct member *me)
{
	static float data[CREW_MAX][WRONG_ELEMENTS];
	float *table = data[me->rank];

	wrong_open(me, PHUB_NAN_ZERO, PHUB_KEY_SPARSE);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	memset(table, 0, sizeof(data[0]));
	table[WRONG_AT] = me->rank == 1 ? NAN : 2;
	table[WRONG_AT + 1] = me->rank == 1 ? -INFINITY : -0.0f;
	EXPECT_RC(me, phub_push_pull(me->phub, 0, table, table, 0), 0);
	EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), 0);
	for (unsigned i = 0; i < WRONG_ELEMENTS; i++)
		EXPECT(me, table[i] == (i == WRONG_AT ? 4 : 0) && !signbit(table[i]));
	member_leave(me);
}

static void fail_script(struct member *me)
{
	static float data[CREW_MAX][WRONG_ELEMENTS];
	float *table = data[me->rank];

	wrong_open(me, PHUB_NAN_FAIL, PHUB_KEY_SPARSE);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), 0);
	member_meet(me);
	memset(table, 0, sizeof(data[0]));
	table[3] = 1;
	table[WRONG_AT] = me->rank == 1 ? NAN : 2;
	if (phub_push_pull(me->phub, 0, table, table, 0) == 0)
		EXPECT_RC(me, phub_wait(me->phub, 0, PHUB_TIMEOUT_DEFAULT), -EDOM);
	EXPECT_RC(me, phub_wait(me->phub, 0, 0), -EDOM);
	EXPECT_TEXT(me, "rank 1");
	EXPECT_TEXT(me, "element 12345 of key 'table'");
}

static void nans_of_sparse_keys(void **state)
{
	crew_run(*state, 3, zero_script, NULL);
	crew_run(*state, 2, fail_script, NULL);
}

static void differ_script(struct member *me)
{
	wrong_open(me, PHUB_NAN_PASS, me->rank == 1 ? PHUB_KEY_SPARSE : 0);
	member_meet(me);
	EXPECT_RC(me, phub_start(me->phub, PHUB_TIMEOUT_DEFAULT), -EBADMSG);
	EXPECT_TEXT(me, "key 'table'");
	EXPECT_TEXT(me, "sparse at rank 1, and not at rank 0");
}

static void ranks_agree_on_what_is_sparse(void **state)
{
	crew_run(*state, 2, differ_script, NULL);
}

const struct CMUnitTest exchange_sparse_cases[] = {
	cmocka_unit_test(sparse_sums),
	cmocka_unit_test(sparse_sums_in_a_fixed_order),
	cmocka_unit_test(sparse_steps),
	cmocka_unit_test(sparse_broadcasts),
	cmocka_unit_test(sparse_pushes_step_one_by_one),
	cmocka_unit_test(zeros_do_not_travel),
	cmocka_unit_test(nans_of_sparse_keys),
	cmocka_unit_test(ranks_agree_on_what_is_sparse),
};
const size_t exchange_sparse_count = sizeof(exchange_sparse_cases) / sizeof(exchange_sparse_cases[0]);
