/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub bench aggregation's ways of adding: all have the bits of the serial calculation, with keys smaller than a core's
 * share, odd tails, and more cores than there are CPUs; and the check sees what goes wrong.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "aggregation/dispatch.h"
#include "phub/cli/sweep.h"
#include "tests/unit/cmocka_shim.h"

static const uint64_t key_elements[] = {1, 3, 15, 16, 17, 1000, 4095, 20000, 7};
enum { KEYS = sizeof(key_elements) / sizeof(key_elements[0]) };

static struct model_tensor tensors[KEYS];
static const struct model model = {.name = "odd", .tensors = tensors, .count = KEYS};

/* On CPUs that there are, some of them more than once. */
static void start(struct sweep *s, enum optimizer_kind optimizer, unsigned workers, unsigned cores)
{
	struct err e;

	for (unsigned k = 0; k < KEYS; k++) {
		memcpy(tensors[k].name, "key", 4);
		tensors[k].name[3] = (char)('0' + k);
		tensors[k].elements = key_elements[k];
	}
	memset(s, 0, sizeof(*s));
	*s = (struct sweep){
		.model = &model, .optimizer = optimizer, .workers = workers, .cores = cores, .chunk_bytes = 4096};
	assert_int_equal(dispatch_select("auto", &s->kernels, NULL, 0), 0);
	assert_int_equal(cpu_list_allowed(&s->cpus), 0);
	for (unsigned i = s->cpus.count; i < cores; i++)
		s->cpus.cpu[i] = s->cpus.cpu[i % s->cpus.count];
	s->cpus.count = s->cpus.count > cores ? s->cpus.count : cores;
	assert_int_equal(sweep_init(s, &e), 0);
}

static uint64_t turn(struct sweep *s, const struct sweep_way *way, struct sweep_took *took)
{
	const char *key = NULL;
	struct err e;
	uint64_t wrong;

	sweep_poison(s);
	assert_int_equal(sweep_turn(s, way, took, &e), 0);
	wrong = sweep_check(s, &key);
	assert_int_equal(wrong != 0, key != NULL);
	return wrong;
}

static void try_ways(struct sweep *s)
{
	for (unsigned i = 0; i < 16; i++) {
		struct sweep_way way = {i & 1 ? SWEEP_WIDE : SWEEP_TALL, i & 2 ? SWEEP_ARRIVING : SWEEP_HELD,
			i & 4 ? SWEEP_SEPARATE : SWEEP_FUSED, i & 8 ? SWEEP_STREAMED : SWEEP_CACHED};
		uint64_t waits = way.how == SWEEP_TALL ? 0 : KEYS * (way.adds == SWEEP_HELD ? 1 : s->workers);
		struct sweep_took took;

		if ((way.stores == SWEEP_STREAMED && (!s->stream || i & 6)) ||
			(way.pass == SWEEP_SEPARATE && s->optimizer == OPTIMIZER_NONE))
			continue;
		waits += way.pass == SWEEP_FUSED ? 0 : way.how == SWEEP_TALL ? 1 : KEYS;
		assert_int_equal(turn(s, &way, &took), 0);
		assert_int_equal(took.waits, waits);
	}
}

static void test_every_way(void **state)
{
	static const enum optimizer_kind optimizers[] = {OPTIMIZER_NONE, OPTIMIZER_NESTEROV, OPTIMIZER_ADAM};
	static struct sweep s;

	for (unsigned i = 0; i < 3; i++) {
		for (unsigned cores = 1; cores <= 4; cores++) {
			start(&s, optimizers[i], i + 1, cores);
			try_ways(&s);
			sweep_fini(&s);
		}
	}
}

static enum stores stores_seen;

static void note_stores(const struct sum_args *args)
{
	stores_seen = args->stores;
	kernels_base.sum(args);
}

/* Sums are streamed by the kernels, not copied. */
static void test_kernels_stream_sums(void **state)
{
	const struct sweep_way ways[] = {{.how = SWEEP_TALL, .stores = SWEEP_CACHED},
		{.how = SWEEP_TALL, .stores = SWEEP_STREAMED}, {.how = SWEEP_WIDE, .stores = SWEEP_STREAMED}};
	struct kernels noting = kernels_base;
	static struct sweep s;
	struct sweep_took took;

	noting.sum = note_stores;
	start(&s, OPTIMIZER_NONE, 2, 1);
	s.kernels = &noting;
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(turn(&s, &ways[i], &took), 0);
		assert_int_equal(stores_seen, ways[i].stores == SWEEP_STREAMED ? STORES_STREAMED : STORES_CACHED);
	}
	sweep_fini(&s);
}

/* What was not written, and what was done twice. */
static void test_check_sees(void **state)
{
	const struct sweep_way tall = {.how = SWEEP_TALL}, wide = {.how = SWEEP_WIDE};
	static struct sweep s;
	struct sweep_took took;
	const char *key = NULL;

	start(&s, OPTIMIZER_NONE, 2, 2);
	assert_int_equal(turn(&s, &tall, &took), 0);
	sweep_poison(&s);
	assert_true(sweep_check(&s, &key) > 0);
	assert_string_equal(key, "key0");
	sweep_fini(&s);
	start(&s, OPTIMIZER_SGD, 2, 2);
	s.plant = true;
	assert_true(turn(&s, &tall, &took) > 0);
	sweep_fini(&s);
	start(&s, OPTIMIZER_SGD, 2, 2);
	s.plant = true;
	assert_int_equal(turn(&s, &wide, &took), key_elements[0]);
	sweep_fini(&s);
}

static void test_too_many_cores(void **state)
{
	struct sweep s = {.model = &model, .workers = 1, .cores = SWEEP_CORES_MAX, .chunk_bytes = 4096};
	struct err e;

	assert_int_equal(cpu_list_allowed(&s.cpus), 0);
	s.cpus.count = 2;
	assert_true(sweep_init(&s, &e) < 0);
	assert_non_null(strstr(e.text, "give --cores 2"));
	sweep_fini(&s);
}

TEST_PROGRAM(test_sweep)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_way),
		cmocka_unit_test(test_kernels_stream_sums),
		cmocka_unit_test(test_check_sees),
		cmocka_unit_test(test_too_many_cores),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
