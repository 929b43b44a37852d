/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement: the 4/3 bound against brute force, determinism, the start from existing load, spreading of neighbours over
 * cores and NICs, and a rack box of 2 nodes x 14 cores x 5 NICs.
 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"
#include "topology/placement.h"

#define CHUNK 32768u

static uint64_t random_next(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

/* The best possible fullest core, by trying all core_count ^ chunk_count placements. */
static uint64_t brute_force(const uint32_t *bytes, uint32_t chunk_count, unsigned core_count)
{
	uint64_t best = UINT64_MAX;
	uint64_t total = 1;

	for (uint32_t i = 0; i < chunk_count; i++)
		total *= core_count;
	for (uint64_t code = 0; code < total; code++) {
		uint64_t load[8] = {0};
		uint64_t most = 0;
		uint64_t rest = code;

		for (uint32_t i = 0; i < chunk_count; i++, rest /= core_count)
			load[rest % core_count] += bytes[i];
		for (unsigned c = 0; c < core_count; c++)
			most = load[c] > most ? load[c] : most;
		best = most < best ? most : best;
	}
	return best;
}

static void test_bound_against_brute_force(void **state)
{
	uint64_t seed = 31337;

	print_message("seed %" PRIu64 "\n", seed);
	for (int round = 0; round < 300; round++) {
		unsigned core_count = 1 + (unsigned)(random_next(&seed) % 4);
		uint32_t chunk_count = 1 + (uint32_t)(random_next(&seed) % 8);
		struct placement_core cores[4] = {{0}};
		uint32_t bytes[8];
		uint16_t core_of[8];

		for (uint32_t i = 0; i < chunk_count; i++)
			bytes[i] = 1 + (uint32_t)(random_next(&seed) % 100);
		assert_int_equal(placement_lpt(bytes, chunk_count, cores, core_count, core_of), 0);

		uint64_t best = brute_force(bytes, chunk_count, core_count);
		uint64_t most = placement_core_balance(cores, core_count).bytes_max;
		/* most / best <= 4/3 - 1/(3m) = (4m - 1) / 3m */
		assert_true(most >= best);
		assert_true(most * 3 * core_count <= best * (4 * core_count - 1));
	}
}

static void test_known_worst_case(void **state)
{
	/* Graham's example for two machines: 3,3,2,2,2 has the best 6 and LPT gives 7 = 7/6 of it. */
	const uint32_t bytes[] = {2, 3, 2, 3, 2};
	struct placement_core cores[2] = {{0}};
	uint16_t core_of[5];

	assert_int_equal(placement_lpt(bytes, 5, cores, 2, core_of), 0);
	assert_true(placement_core_balance(cores, 2).bytes_max == 7);
}

static void test_equal_chunks_spread(void **state)
{
	struct placement_core cores[4] = {{.nic = 0}, {.nic = 0}, {.nic = 1}, {.nic = 1}};
	uint32_t bytes[401];
	uint16_t core_of[401];

	for (int i = 0; i < 401; i++)
		bytes[i] = CHUNK;
	bytes[400] = 12;
	assert_int_equal(placement_lpt(bytes, 401, cores, 4, core_of), 0);
	for (int i = 1; i < 400; i++) {
		assert_int_not_equal(core_of[i], core_of[i - 1]);
		assert_int_not_equal(cores[core_of[i]].nic, cores[core_of[i - 1]].nic);
	}
	for (int i = 4; i < 400; i++)
		assert_int_equal(core_of[i], core_of[i - 4]);
	assert_true(cores[core_of[400]].bytes == 100 * CHUNK + 12);
}

static void test_deterministic(void **state)
{
	uint64_t seed = 4711;
	enum { COUNT = 5000, CORES = 13 };
	uint32_t bytes[COUNT];
	uint16_t first[COUNT];
	uint16_t again[COUNT];

	for (int i = 0; i < COUNT; i++)
		bytes[i] = 4 * (1 + (uint32_t)(random_next(&seed) % 50));
	for (int round = 0; round < 3; round++) {
		struct placement_core cores[CORES] = {{0}};

		for (int c = 0; c < CORES; c++)
			cores[c] =
				(struct placement_core){.cpu = c, .nic = c % 3, .bytes = (uint64_t)(c * 7 % 5) * 100};
		assert_int_equal(placement_lpt(bytes, COUNT, cores, CORES, round ? again : first), 0);
		if (round)
			assert_memory_equal(first, again, sizeof(first));
	}
}

static void test_starts_from_existing_load(void **state)
{
	struct placement_core cores[3] = {{.bytes = 10 * CHUNK}, {.bytes = 0}, {.bytes = 4 * CHUNK}};
	uint32_t bytes[16];
	uint16_t core_of[16];

	for (int i = 0; i < 16; i++)
		bytes[i] = CHUNK;
	assert_int_equal(placement_lpt(bytes, 16, cores, 3, core_of), 0);
	for (int c = 0; c < 3; c++)
		assert_true(cores[c].bytes == 10 * CHUNK);
	for (int i = 0; i < 16; i++)
		assert_int_not_equal(core_of[i], 0);

	/* The job leaves: the load is what it was. */
	placement_unload(bytes, 16, cores, 3, core_of);
	assert_true(cores[0].bytes == 10 * CHUNK && cores[1].bytes == 0 && cores[2].bytes == 4 * CHUNK);
}

static void test_prefers_the_idle_nic(void **state)
{
	/* Cores 0 and 3 are equal, but NIC 0 carries another job's bytes on core 1. */
	struct placement_core cores[4] = {
		{.nic = 0}, {.nic = 0, .bytes = CHUNK}, {.nic = 1, .bytes = CHUNK / 2}, {.nic = 1}};
	const uint32_t bytes[1] = {CHUNK};
	uint16_t core_of[1];

	assert_int_equal(placement_lpt(bytes, 1, cores, 4, core_of), 0);
	assert_int_equal(core_of[0], 3);
}

/* Bytes that a plan for `chunk_count` equal chunks and one tail in seven leaves on 28 cores. */
static void test_rack_box(void **state)
{
	enum { CORES = 28, NICS = 5, COUNT = 3000 };
	const int nic_node[NICS] = {0, 0, 0, 1, 1};
	struct placement_core cores[CORES] = {{0}};
	unsigned per_nic[NICS] = {0};
	uint32_t bytes[COUNT];
	uint16_t core_of[COUNT];
	uint64_t sum[CORES] = {0};

	for (int c = 0; c < CORES; c++)
		cores[c] = (struct placement_core){.cpu = c, .node = c / 14};
	assert_int_equal(placement_assign_nics(cores, CORES, nic_node, NULL, NICS), 0);
	for (int c = 0; c < CORES; c++) {
		assert_int_equal(nic_node[cores[c].nic], cores[c].node);
		per_nic[cores[c].nic]++;
	}
	assert_int_equal(per_nic[0], 5);
	assert_int_equal(per_nic[1], 5);
	assert_int_equal(per_nic[2], 4);
	assert_int_equal(per_nic[3], 7);
	assert_int_equal(per_nic[4], 7);

	for (int i = 0; i < COUNT; i++)
		bytes[i] = i % 7 == 6 ? 4u * (unsigned)(i + 1) : CHUNK;
	assert_int_equal(placement_lpt(bytes, COUNT, cores, CORES, core_of), 0);
	for (int i = 0; i < COUNT; i++)
		sum[core_of[i]] += bytes[i];
	for (int c = 0; c < CORES; c++)
		assert_true(sum[c] == cores[c].bytes);

	struct placement_balance core = placement_core_balance(cores, CORES);
	struct placement_balance nic = placement_nic_balance(cores, CORES);
	assert_true(core.imbalance >= 1.0 && core.imbalance < 1.001);
	/* Seven of 28 cores poll the busiest of five NICs: 7/28 over 1/5. */
	assert_true(nic.imbalance > 1.24 && nic.imbalance < 1.26);
}

static void test_assign_nics(void **state)
{
	struct placement_core cores[6] = {{.node = 0}, {.node = 0}, {.node = 1}, {.node = 1}, {.node = 2}, {.node = 2}};
	const int unknown[2] = {-1, -1};
	const int one_node[2] = {1, 1};
	const int expect_unknown[6] = {0, 1, 0, 1, 0, 1};
	const int many[PLACEMENT_NIC_COUNT_MAX + 1] = {0};

	assert_int_equal(placement_assign_nics(cores, 6, unknown, NULL, 2), 0);
	for (int c = 0; c < 6; c++)
		assert_int_equal(cores[c].nic, expect_unknown[c]);
	assert_int_equal(placement_assign_nics(cores, 6, one_node, NULL, 2), 0);
	for (int c = 0; c < 6; c++)
		assert_int_equal(cores[c].nic, c % 2);
	assert_int_equal(placement_assign_nics(cores, 6, NULL, NULL, 0), 0);
	for (int c = 0; c < 6; c++)
		assert_int_equal(cores[c].nic, PLACEMENT_NIC_NONE);
	assert_int_equal(placement_assign_nics(cores, 6, many, NULL, PLACEMENT_NIC_COUNT_MAX + 1), -EINVAL);
}

/* Of two NICs, one of which has become slow, the other gets the more cores, and so the more chunks. */
static void test_assign_by_rate(void **state)
{
	struct placement_core cores[10] = {{.node = 0}};
	const int node[3] = {-1, -1, -1};
	const uint32_t rate[3] = {25000, 100000, 25000}, even[3] = {7, 7, 7};
	unsigned per_nic[3] = {0};

	assert_int_equal(placement_assign_nics(cores, 6, node, rate, 3), 0);
	for (int c = 0; c < 6; c++)
		per_nic[cores[c].nic]++;
	assert_int_equal(per_nic[0], 1);
	assert_int_equal(per_nic[1], 4);
	assert_int_equal(per_nic[2], 1);
	assert_int_equal(placement_assign_nics(cores, 10, node, even, 3), 0);
	for (int c = 0; c < 10; c++)
		assert_int_equal(cores[c].nic, c % 3);
}

static void test_one_core(void **state)
{
	const uint32_t bytes[4] = {7, 1, CHUNK, 3};
	struct placement_core core = {.nic = PLACEMENT_NIC_NONE, .bytes = 5};
	uint16_t core_of[4] = {9, 9, 9, 9};

	assert_int_equal(placement_lpt(bytes, 4, &core, 1, core_of), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(core_of[i], 0);
	assert_true(core.bytes == CHUNK + 16);
	assert_true(placement_core_balance(&core, 1).imbalance == 1.0);
}

static void test_errors_and_bounds(void **state)
{
	const uint32_t bytes[2] = {CHUNK, CHUNK};
	struct placement_core cores[2] = {{.bytes = UINT64_MAX - CHUNK}, {.bytes = 0}};
	uint16_t core_of[2] = {9, 9};

	assert_int_equal(placement_lpt(bytes, 2, cores, 0, core_of), -EINVAL);
	assert_int_equal(placement_lpt(bytes, 2, cores, PLACEMENT_CORE_COUNT_MAX + 1, core_of), -EINVAL);
	assert_int_equal(placement_lpt(bytes, 2, cores, 2, core_of), -EOVERFLOW);
	cores[1].bytes = UINT64_MAX;
	assert_int_equal(placement_lpt(bytes, 2, cores, 2, core_of), -EOVERFLOW);
	assert_int_equal(core_of[0], 9);
	assert_true(cores[0].bytes == UINT64_MAX - CHUNK);
	cores[1].bytes = 0;
	assert_int_equal(placement_lpt(NULL, 0, cores, 2, NULL), 0);
	assert_int_equal(placement_lpt(bytes, 1, cores, 2, core_of), 0);
	assert_int_equal(core_of[0], 1);
}

static void test_most_cores(void **state)
{
	struct placement_core *cores = calloc(PLACEMENT_CORE_COUNT_MAX, sizeof(*cores));
	uint32_t bytes[2 * PLACEMENT_CORE_COUNT_MAX];
	uint16_t core_of[2 * PLACEMENT_CORE_COUNT_MAX];

	for (unsigned i = 0; i < PLACEMENT_CORE_COUNT_MAX; i++)
		cores[i].nic = (int)i; /* a NIC each: as many lanes as there may be */
	for (unsigned i = 0; i < 2 * PLACEMENT_CORE_COUNT_MAX; i++)
		bytes[i] = CHUNK;
	assert_int_equal(
		placement_lpt(bytes, 2 * PLACEMENT_CORE_COUNT_MAX, cores, PLACEMENT_CORE_COUNT_MAX, core_of), 0);
	assert_true(placement_nic_balance(cores, PLACEMENT_CORE_COUNT_MAX).bytes_max == 2 * CHUNK);
	assert_true(placement_core_balance(cores, PLACEMENT_CORE_COUNT_MAX).bytes_min == 2 * CHUNK);
	free(cores);
}

static void test_balance_of_nothing(void **state)
{
	struct placement_core idle[3] = {{0}};

	assert_true(placement_core_balance(NULL, 0).imbalance == 1.0);
	assert_true(placement_nic_balance(NULL, 0).imbalance == 1.0);
	assert_true(placement_core_balance(idle, 3).imbalance == 1.0);
}

TEST_PROGRAM(test_placement)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bound_against_brute_force),
		cmocka_unit_test(test_known_worst_case),
		cmocka_unit_test(test_equal_chunks_spread),
		cmocka_unit_test(test_deterministic),
		cmocka_unit_test(test_starts_from_existing_load),
		cmocka_unit_test(test_prefers_the_idle_nic),
		cmocka_unit_test(test_rack_box),
		cmocka_unit_test(test_assign_nics),
		cmocka_unit_test(test_assign_by_rate),
		cmocka_unit_test(test_one_core),
		cmocka_unit_test(test_errors_and_bounds),
		cmocka_unit_test(test_most_cores),
		cmocka_unit_test(test_balance_of_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
