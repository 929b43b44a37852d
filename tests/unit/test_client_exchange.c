/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds of libphub against the fake box, over the network in memory: sums, copies, memory in place, shared chunks,
 * priorities, loss, misbehaving boxes, and what a wait says when it runs out of time.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/fake_box.h"

#include <stddef.h>
#include <stdint.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MS 1000000ull

enum { BIG = 5000, SMALL = 100, CHUNK_FLOATS = 1024 };

struct rig {
	struct loop_net *net;
	struct fake_box box;
	struct fake_site sites[FAKE_WORLD_MAX];
	phub_t *workers[FAKE_WORLD_MAX];
	uint32_t world;
};

struct rig_plan {
	uint32_t world, cores, window;
	bool lossy;
	enum phub_optimizer optimizer;
	uint64_t seed;
};

static void rig_step(struct rig *r)
{
	uint64_t next, step = loop_net_now(r->net) + MS / 2;

	for (uint32_t i = 0; i < r->world; i++) {
		if (r->workers[i])
			client_progress(r->workers[i], loop_net_now(r->net));
	}
	fake_box_step(&r->box);
	next = loop_net_next(r->net);
	loop_net_advance(r->net, next < step ? next : step);
}

static void rig_run(struct rig *r, uint64_t ns)
{
	uint64_t end = loop_net_now(r->net) + ns;

	while (loop_net_now(r->net) < end)
		rig_step(r);
}

static void rig_open(struct rig *r, const struct rig_plan *plan)
{
	struct loop_plan net = {
		.seed = plan->seed + 1,
		.hosts = 8,
		.delay_min_ns = 1000,
		.delay_max_ns = 100000,
		.lossy = plan->lossy,
		.drop = 0.05,
		.duplicate = 0.05,
		.reorder = 0.1,
		.late = 0.2,
		.sent_late = 0.2,
		.late_max_ns = 200000,
		.split = 0.2,
		.poison = true,
	};

	memset(r, 0, sizeof(*r));
	r->net = loop_net_create(&net);
	r->world = plan->world;
	fake_box_open(&r->box, r->net, plan->world, plan->cores ? plan->cores : 2);
	r->box.window = plan->window ? plan->window : 4;
	r->box.optimizer = plan->optimizer != PHUB_NONE;
	for (uint32_t i = 0; i < plan->world; i++) {
		struct phub_options o;
		struct err e;

		phub_options_init(&o);
		o.rank = (int)i;
		o.world = (int)plan->world;
		o.optimizer = plan->optimizer;
		fake_site_init(&r->sites[i], r->net, i + 1, 0);
		assert_int_equal(client_open("phub://box/demo", &o, &r->sites[i].env, &r->workers[i], &e), 0);
	}
	rig_run(r, 20 * MS);
}

/* Key 0 is large, 1 and 2 share a chunk, 3 has one of its own. */
static void rig_start(struct rig *r)
{
	struct err e;

	for (uint32_t i = 0; i < r->world; i++) {
		assert_int_equal(phub_key(r->workers[i], "big", PHUB_F32, BIG, 0, 0), 0);
		assert_int_equal(phub_key(r->workers[i], "left", PHUB_F32, SMALL, 0, 0), 1);
		assert_int_equal(phub_key(r->workers[i], "right", PHUB_F32, SMALL, 0, 0), 2);
		assert_int_equal(phub_key(r->workers[i], "alone", PHUB_F32, SMALL, 0, PHUB_KEY_ALONE), 3);
		assert_int_equal(client_start_begin(r->workers[i], &e), 0);
	}
	rig_run(r, 20 * MS);
	for (uint32_t i = 0; i < r->world; i++)
		assert_int_equal(client_started(r->workers[i]), 0);
}

static void rig_begin(struct rig *r, const struct rig_plan *plan)
{
	rig_open(r, plan);
	rig_start(r);
}

static void rig_finish(struct rig *r, int key)
{
	for (int step = 0; step < 100000; step++) {
		uint32_t idle = 0;

		for (uint32_t i = 0; i < r->world; i++)
			idle += client_idle(r->workers[i], key) == 1;
		if (idle == r->world)
			return;
		rig_step(r);
	}
	fail_msg("the round does not end");
}

static void rig_close(struct rig *r)
{
	for (uint32_t i = 0; i < r->world; i++) {
		if (r->workers[i])
			client_close(r->workers[i]);
	}
	fake_box_close(&r->box);
	loop_net_destroy(r->net);
}

/* ---- data: small integers, so that sums are exact ---- */

static float value(uint32_t rank, uint64_t round, uint32_t index)
{
	return (float)((rank + 1) * 1000 + round * 10 + index % 7);
}

static float sum(uint32_t world, uint64_t round, uint32_t index)
{
	float s = 0;

	for (uint32_t rank = 0; rank < world; rank++)
		s += value(rank, round, index);
	return s;
}

static void fill(float *data, uint32_t count, uint32_t rank, uint64_t round)
{
	for (uint32_t i = 0; i < count; i++)
		data[i] = value(rank, round, i);
}

static void expect_sum(const float *data, uint32_t count, uint32_t world, uint64_t round)
{
	for (uint32_t i = 0; i < count; i++) {
		if (data[i] != sum(world, round, i))
			fail_msg("element %u of round %llu is %g, not %g", i, (unsigned long long)round,
				(double)data[i], (double)sum(world, round, i));
	}
}

static struct phub_stats stats_of(phub_t *p)
{
	struct phub_stats s = {.size = sizeof(s)};

	assert_int_equal(phub_stats(p, &s), 0);
	return s;
}

/* ---- sums ---- */

static void rounds_of_big_keys(const struct rig_plan *plan)
{
	static float data[FAKE_WORLD_MAX][BIG];
	struct rig r;

	rig_begin(&r, plan);
	for (uint64_t round = 1; round <= 10; round++) {
		for (uint32_t i = 0; i < plan->world; i++) {
			fill(data[i], BIG, i, round);
			assert_int_equal(phub_push_pull(r.workers[i], 0, data[i], data[i], 3), 0);
			assert_int_equal(phub_push_pull(r.workers[i], 0, data[i], data[i], 3), -EBUSY);
		}
		rig_finish(&r, 0);
		for (uint32_t i = 0; i < plan->world; i++)
			expect_sum(data[i], BIG, plan->world, round);
	}
	assert_int_equal(stats_of(r.workers[0]).rounds, 10);
	assert_int_equal(stats_of(r.workers[0]).pushed_bytes, 10 * BIG * 4);
	assert_int_equal(stats_of(r.workers[0]).pulled_bytes, 10 * BIG * 4);
	assert_int_equal(stats_of(r.workers[0]).copied_bytes, plan->lossy ? 20 * BIG * 4 : 0);
	if (!plan->lossy)
		assert_int_equal(stats_of(r.workers[0]).resent, 0);
	rig_close(&r);
}

static void sums(void **state)
{
	rounds_of_big_keys(&(struct rig_plan){.world = 1});
	rounds_of_big_keys(&(struct rig_plan){.world = 3, .cores = 3, .window = 1});
	rounds_of_big_keys(&(struct rig_plan){.world = 4, .cores = 1});
}

static void sums_over_a_lossy_network(void **state)
{
	for (uint64_t seed = 0; seed < 20; seed++)
		rounds_of_big_keys(&(struct rig_plan){.world = 3, .window = 2, .lossy = true, .seed = seed});
}

static void keys_that_share_a_chunk(void **state)
{
	float left[2][SMALL], right[2][SMALL];
	struct rig r;

	rig_begin(&r, &(struct rig_plan){.world = 2});
	for (uint64_t round = 1; round < 5; round++) {
		for (uint32_t i = 0; i < 2; i++) {
			fill(left[i], SMALL, i, round);
			fill(right[i], SMALL, i, round + 100);
			assert_int_equal(phub_push_pull(r.workers[i], 1 + (int)(round & 1),
						 round & 1 ? right[i] : left[i], round & 1 ? right[i] : left[i], 0),
				0);
		}
		rig_run(&r, 10 * MS);
		assert_int_equal(stats_of(r.workers[0]).pushes, round - 1);
		for (uint32_t i = 0; i < 2; i++)
			assert_int_equal(phub_push_pull(r.workers[i], 2 - (int)(round & 1),
						 round & 1 ? left[i] : right[i], round & 1 ? left[i] : right[i], 0),
				0);
		rig_finish(&r, PHUB_ALL);
		for (uint32_t i = 0; i < 2; i++) {
			expect_sum(left[i], SMALL, 2, round);
			expect_sum(right[i], SMALL, 2, round + 100);
		}
	}
	rig_close(&r);
}

/* Results may come before all of the push is sent: where they would overwrite it, it is copied first. */
static void memory_that_overlaps_itself(void **state)
{
	static float data[2][BIG + 1000];
	struct rig r;

	rig_begin(&r, &(struct rig_plan){.world = 2, .window = 1});
	for (uint64_t round = 1; round < 9; round++) {
		unsigned from = round & 1 ? 0 : 1000, to = 1000 - from;

		for (uint32_t i = 0; i < 2; i++) {
			fill(data[i] + from, BIG, i, round);
			assert_int_equal(phub_push_pull(r.workers[i], 0, data[i] + from, data[i] + to, 0), 0);
		}
		rig_finish(&r, 0);
		expect_sum(data[0] + to, BIG, 2, round);
		expect_sum(data[1] + to, BIG, 2, round);
	}
	rig_close(&r);
}

static void halves(void **state)
{
	static float data[BIG], out[BIG];
	struct rig r;

	rig_begin(&r, &(struct rig_plan){.world = 1});
	assert_int_equal(phub_pull(r.workers[0], 0, out, 0), -ENODATA);
	fill(data, BIG, 0, 1);
	assert_int_equal(phub_push(r.workers[0], 0, data, 0), 0);
	rig_finish(&r, 0);
	memset(data, 0, sizeof(data)); /* the result is in the library's memory */
	assert_int_equal(phub_pull(r.workers[0], 0, out, 0), 0);
	expect_sum(out, BIG, 1, 1);
	assert_int_equal(phub_pull(r.workers[0], 0, NULL, 0), -EINVAL);
	rig_close(&r);
}

/* ---- memory ---- */

static void registered_memory_is_not_copied(void **state)
{
	static float data[2][BIG];
	struct rig r;

	rig_begin(&r, &(struct rig_plan){.world = 2});
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(phub_mem_register(r.workers[i], data[i], sizeof(data[i])), 0);
		assert_int_equal(phub_mem_register(r.workers[i], data[i] + 1, 4), -EINVAL);
	}
	for (uint64_t round = 1; round < 4; round++) {
		for (uint32_t i = 0; i < 2; i++) {
			fill(data[i], BIG, i, round);
			assert_int_equal(phub_push_pull(r.workers[i], 0, data[i], data[i], 0), 0);
			assert_int_equal(phub_mem_unregister(r.workers[i], data[i]), -EBUSY);
		}
		rig_finish(&r, 0);
		for (uint32_t i = 0; i < 2; i++)
			expect_sum(data[i], BIG, 2, round);
	}
	assert_int_equal(stats_of(r.workers[0]).copied_bytes, 0);
	assert_int_equal(phub_mem_unregister(r.workers[0], data[0]), 0);
	assert_int_equal(phub_mem_unregister(r.workers[0], data[0]), -EINVAL);
	rig_close(&r);
}

static void the_librarys_memory_is_not_copied(void **state)
{
	const void *result[2];
	void *push[2];
	struct rig r;

	rig_begin(&r, &(struct rig_plan){.world = 2});
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(phub_alloc(r.workers[i], 0, &push[i], &result[i]), 0);
	for (uint64_t round = 1; round < 4; round++) {
		for (uint32_t i = 0; i < 2; i++) {
			fill(push[i], BIG, i, round);
			assert_int_equal(phub_push_pull(r.workers[i], 0, push[i], NULL, 0), 0);
			assert_int_equal(phub_alloc(r.workers[i], 0, NULL, NULL), -EBUSY);
		}
		rig_finish(&r, 0);
		for (uint32_t i = 0; i < 2; i++) {
			fill(push[i], BIG, i, round + 1); /* results are kept apart */
			expect_sum(result[i], BIG, 2, round);
		}
	}
	assert_int_equal(stats_of(r.workers[0]).copied_bytes, 0);
	rig_close(&r);
}

/* A neighbour's result that landed before the chunk was given away is not lost. */
static void giving_away_keeps_results(void **state)
{
	float data[SMALL], out[SMALL];
	struct rig r;

	rig_begin(&r, &(struct rig_plan){.world = 1});
	fill(data, SMALL, 0, 1);
	assert_int_equal(phub_push(r.workers[0], 1, data, 0), 0);
	assert_int_equal(phub_push(r.workers[0], 2, data, 0), 0);
	rig_finish(&r, PHUB_ALL);
	assert_int_equal(phub_alloc(r.workers[0], 1, NULL, NULL), 0);
	assert_int_equal(phub_pull(r.workers[0], 2, out, 0), 0);
	expect_sum(out, SMALL, 1, 1);
	rig_close(&r);
}

/* ---- broadcast ---- */

static void broadcasts(void **state)
{
	static float data[3][BIG];
	struct rig r;

	rig_begin(&r, &(struct rig_plan){.world = 3});
	for (unsigned root = 0; root < 3; root++) {
		for (uint32_t i = 0; i < 3; i++) {
			fill(data[i], BIG, i, root);
			assert_int_equal(phub_broadcast(r.workers[i], 0, data[i], root), 0);
		}
		rig_finish(&r, 0);
		for (uint32_t i = 0; i < 3; i++) {
			for (uint32_t k = 0; k < BIG; k++)
				assert_true(data[i][k] == value(root, root, k));
		}
	}
	assert_int_equal(phub_broadcast(r.workers[0], 0, data[0], 3), -EINVAL);
	assert_int_equal(phub_broadcast(r.workers[0], 0, NULL, 0), -EINVAL);
	rig_close(&r);
}

static void first_weights(void **state)
{
	static float data[2][BIG];
	struct rig r;

	rig_begin(&r, &(struct rig_plan){.world = 2, .optimizer = PHUB_SGD});
	assert_int_equal(phub_push_pull(r.workers[0], 0, data[0], data[0], 0), -ENODATA);
	assert_non_null(strstr(phub_error(), "phub_broadcast()"));
	assert_int_equal(phub_broadcast(r.workers[0], 0, data[0], 1), -EINVAL);
	for (uint32_t i = 0; i < 2; i++) {
		for (uint32_t k = 0; k < BIG; k++)
			data[i][k] = i == 0 ? (float)(k % 5) : -1;
		assert_int_equal(phub_broadcast(r.workers[i], 0, data[i], 0), 0);
	}
	rig_finish(&r, 0);
	assert_true(data[1][7] == 2);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(phub_broadcast(r.workers[i], 0, data[i], 0), -EINVAL);
		fill(data[i], BIG, i, 1);
		assert_int_equal(phub_push_pull(r.workers[i], 0, data[i], data[i], 0), 0);
	}
	rig_finish(&r, 0);
	for (uint32_t k = 0; k < BIG; k++)
		assert_true(data[1][k] == (float)(k % 5) - sum(2, 1, k));
	rig_close(&r);
}

static void neighbours_must_do_the_same(void **state)
{
	float data[SMALL] = {0};
	struct rig r;

	rig_begin(&r, &(struct rig_plan){.world = 1});
	assert_int_equal(phub_push(r.workers[0], 1, data, 0), 0);
	assert_int_equal(phub_broadcast(r.workers[0], 2, data, 0), -EINVAL);
	assert_non_null(strstr(phub_error(), "'left'"));
	assert_non_null(strstr(phub_error(), "PHUB_KEY_ALONE"));
	rig_close(&r);
}

/* ---- order ---- */

static void urgent_keys_overtake(void **state)
{
	static float big[BIG];
	float small[SMALL];
	struct rig r;
	bool overtook = false;

	rig_begin(&r, &(struct rig_plan){.world = 1, .cores = 1, .window = 1});
	assert_int_equal(phub_push(r.workers[0], 0, big, 9), 0);
	assert_int_equal(phub_push(r.workers[0], 3, small, 0), 0);
	rig_finish(&r, PHUB_ALL);
	assert_int_equal(r.box.order_count, 6);
	assert_int_equal(r.box.order[0], 0);
	overtook = r.box.order[1] == 6;
	assert_true(overtook);
	rig_close(&r);
}

/* ---- hyper-parameters ---- */

static void hyper_parameters_travel_before_their_round(void **state)
{
	struct phub_hyper hyper;
	float data[SMALL] = {0};
	struct rig r;

	rig_open(&r, &(struct rig_plan){.world = 1});
	phub_hyper_init(PHUB_SGD, &hyper);
	hyper.lr = 7;
	assert_int_equal(phub_set_hyper(r.workers[0], 0, &hyper), 0);
	rig_start(&r);
	assert_true(r.box.workers[0].lr == 7); /* part of the table itself */
	for (int i = 1; i < 4; i++) {
		hyper.lr = 10 * i;
		assert_int_equal(phub_set_hyper(r.workers[0], 0, &hyper), 0);
		assert_int_equal(phub_set_hyper(r.workers[0], 0, &hyper), 0);
		assert_int_equal(phub_push(r.workers[0], 3, data, 0), 0);
		rig_finish(&r, 3);
		rig_run(&r, MS);
		assert_int_equal(r.box.workers[0].hyper, i);
		assert_true(r.box.workers[0].lr == 10 * i);
	}
	assert_int_equal(phub_set_hyper(r.workers[0], 1, &hyper), -EINVAL);
	hyper.lr = -1;
	assert_int_equal(phub_set_hyper(r.workers[0], 0, &hyper), -EINVAL);
	rig_close(&r);
}

/* ---- new key tables ---- */

static void a_thousand_key_tables(void **state)
{
	float data[2][SMALL];
	struct rig r;
	struct err e;

	rig_begin(&r, &(struct rig_plan){.world = 2});
	for (uint32_t table = 0; table < 1000; table++) {
		uint64_t elements = 1 + table % SMALL;

		for (uint32_t i = 0; i < 2; i++) {
			assert_int_equal(phub_rekey(r.workers[i]), 0);
			assert_int_equal(phub_key(r.workers[i], "w", PHUB_F32, elements, 0, 0), 0);
			assert_int_equal(client_start_begin(r.workers[i], &e), 0);
		}
		while (client_started(r.workers[0]) || client_started(r.workers[1]))
			rig_step(&r);
		for (uint32_t i = 0; i < 2; i++) {
			fill(data[i], (uint32_t)elements, i, table);
			assert_int_equal(phub_push_pull(r.workers[i], 0, data[i], data[i], 0), 0);
			assert_int_equal(phub_rekey(r.workers[i]), -EBUSY);
		}
		rig_finish(&r, 0);
		expect_sum(data[1], (uint32_t)elements, 2, table);
	}
	assert_int_equal(stats_of(r.workers[0]).rounds, 1000);
	rig_close(&r);
}

/* ---- when things go wrong ---- */

static void expect_end(struct rig *r, int code, const char *says)
{
	assert_int_equal(phub_test(r->workers[0], PHUB_ALL), code);
	if (!strstr(phub_error(), says))
		fail_msg("\"%s\" does not say \"%s\"", phub_error(), says);
}

static void results_that_nobody_asked_for(void **state)
{
	static float data[BIG];

	for (int i = 0; i < 2; i++) {
		struct rig r;

		rig_open(&r, &(struct rig_plan){.world = 1});
		rig_start(&r);
		r.box.wrong_round = i == 0;
		r.box.doubled = i == 1;
		assert_int_equal(phub_push_pull(r.workers[0], 0, data, data, 0), 0);
		rig_run(&r, 50 * MS);
		expect_end(&r, -EPROTO, "broke the protocol");
		rig_close(&r);
	}
}

/* After the end of a session the caller's memory may be gone: nothing is written any more. */
static void nothing_is_touched_after_the_end(void **state)
{
	float *data = malloc(BIG * sizeof(float));
	struct rig r;

	rig_begin(&r, &(struct rig_plan){.world = 2});
	assert_int_equal(phub_mem_register(r.workers[0], data, BIG * sizeof(float)), 0);
	fill(data, BIG, 0, 1);
	assert_int_equal(phub_push_pull(r.workers[0], 0, data, data, 0), 0);
	rig_step(&r);
	fake_box_error(&r.box, 0, PHUB__ERROR_CODE__ERROR_LOST, "rank 1 was lost");
	rig_run(&r, 20 * MS);
	fake_box_finish(&r.box, 0);
	rig_run(&r, 20 * MS);
	expect_end(&r, -EOWNERDEAD, "rank 1 was lost");
	free(data);
	rig_run(&r, 20 * MS);
	assert_int_equal(phub_push(r.workers[0], 3, &r, 0), -EOWNERDEAD);
	assert_int_equal(phub_wait(r.workers[0], 0, 0), -EOWNERDEAD);
	rig_close(&r);
}

/* The control session and the lanes race: a round that the box committed is done, whatever is heard first. */
static void what_was_committed_still_arrives(void **state)
{
	static float data[2][BIG], small[SMALL];
	struct rig r;

	for (int late = 0; late < 2; late++) {
		rig_open(&r, &(struct rig_plan){.world = 2});
		rig_start(&r);
		for (uint32_t i = 0; i < 2; i++) {
			fill(data[i], BIG, i, 1);
			assert_int_equal(phub_push_pull(r.workers[i], 0, data[i], data[i], 0), 0);
		}
		assert_int_equal(phub_push_pull(r.workers[0], 3, small, small, 0), 0);
		if (late) /* else the error is there before any result is */
			rig_finish(&r, 0);
		fake_box_error(&r.box, 0, PHUB__ERROR_CODE__ERROR_LOST, "rank 1 was lost");
		rig_run(&r, 20 * MS);
		assert_int_equal(client_failure(r.workers[0])->code, 0);
		assert_int_equal(phub_test(r.workers[0], 3), 0);
		assert_int_equal(phub_push(r.workers[0], 1, small, 0), -EOWNERDEAD);
		fake_box_finish(&r.box, 0);
		rig_run(&r, 20 * MS);
		assert_int_equal(client_failure(r.workers[0])->code, -EOWNERDEAD);
		assert_int_equal(phub_wait(r.workers[0], PHUB_ALL, 0), -EOWNERDEAD);
		assert_int_equal(phub_wait(r.workers[0], 3, 0), -EOWNERDEAD);
		assert_int_equal(phub_wait(r.workers[0], 0, 0), 0);
		expect_sum(data[0], BIG, 2, 1);
		assert_int_equal(phub_wait(r.workers[0], 0, 0), -EOWNERDEAD);
		rig_close(&r);
	}
}

/* A box that says neither more nor that there is no more is not waited for longer than for a silent one. */
static void a_verdict_does_not_wait_for_ever(void **state)
{
	static float data[BIG];
	struct rig r;

	for (int leave = 0; leave < 2; leave++) {
		rig_open(&r, &(struct rig_plan){.world = 2});
		rig_start(&r);
		assert_int_equal(phub_push_pull(r.workers[0], 0, data, data, 0), 0);
		fake_box_error(&r.box, 0, PHUB__ERROR_CODE__ERROR_LOST, "rank 1 was lost");
		rig_run(&r, 4900 * MS);
		assert_int_equal(phub_test(r.workers[0], 0), 0);
		if (leave)
			assert_int_equal(phub_leave(r.workers[0], 0), -EOWNERDEAD);
		rig_run(&r, leave ? MS : 200 * MS);
		expect_end(&r, -EOWNERDEAD, "rank 1 was lost");
		rig_close(&r);
	}
}

/* Lanes end, by the box or by the network, before the reason is heard, which may never be. */
static void the_end_of_lanes_waits_for_its_reason(void **state)
{
	static const struct {
		bool cut, explained;
		int error;
		const char *says;
	} cases[] = {
		{false, false, -ECONNRESET, "closed the connection"},
		{false, true, -EOWNERDEAD, "rank 1 was lost"},
		{true, false, -ECONNRESET, "closed the connection"},
		{true, true, -EOWNERDEAD, "rank 1 was lost"},
	};
	static float data[BIG];

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct rig r;

		print_message("case %u\n", i);
		rig_open(&r, &(struct rig_plan){.world = 2});
		rig_start(&r);
		assert_int_equal(phub_push_pull(r.workers[0], 0, data, data, 0), 0);
		if (cases[i].cut) {
			rig_run(&r, 5 * MS);
			fake_box_cut_lanes(&r.box, 0);
		} else {
			fake_box_finish(&r.box, 0);
		}
		rig_run(&r, 100 * MS);
		assert_int_equal(phub_test(r.workers[0], 0), 0);
		if (cases[i].explained)
			fake_box_error(&r.box, 0, PHUB__ERROR_CODE__ERROR_LOST, "rank 1 was lost");
		rig_run(&r, 600 * MS);
		expect_end(&r, cases[i].error, cases[i].says);
		rig_close(&r);
	}
}

static void leaving_gives_up_what_is_in_flight(void **state)
{
	float *data = malloc(BIG * sizeof(float));
	struct rig r;

	rig_begin(&r, &(struct rig_plan){.world = 2});
	assert_int_equal(phub_mem_register(r.workers[0], data, BIG * sizeof(float)), 0);
	fill(data, BIG, 0, 1);
	assert_int_equal(phub_push_pull(r.workers[0], 0, data, data, 0), 0);
	client_leave_begin(r.workers[0]);
	/* A thread that waits meanwhile is not told that its round is done. */
	assert_int_equal(client_idle(r.workers[0], 0), 0);
	assert_int_equal(client_idle(r.workers[0], PHUB_ALL), 0);
	while (client_left(r.workers[0]) == -EAGAIN)
		rig_step(&r);
	assert_int_equal(phub_wait(r.workers[0], 0, 0), -ESHUTDOWN);
	free(data);
	rig_run(&r, 20 * MS);
	assert_true(r.box.workers[0].left);
	rig_close(&r);
}

static void expect_timeout(struct rig *r, int key, const char *says)
{
	assert_int_equal(phub_wait(r->workers[0], key, 0), -ETIMEDOUT);
	if (!strstr(phub_error(), says))
		fail_msg("\"%s\" does not say \"%s\"", phub_error(), says);
	assert_non_null(strstr(phub_error(), "job demo rank 0"));
}

static void waits_say_what_they_wait_for(void **state)
{
	static float data[BIG];
	struct rig r;

	rig_begin(&r, &(struct rig_plan){.world = 2, .cores = 1, .window = 2});
	assert_int_equal(phub_wait(r.workers[0], 0, 0), 0);
	assert_int_equal(phub_push(r.workers[0], 3, data, 0), 0);
	expect_timeout(&r, 3, "key 'alone' round 1 was sent");
	rig_run(&r, 5 * MS);
	/* Of another wait: not shown. */
	fake_box_notice(&r.box, 0, 6, 2, 1, "another round");
	fake_box_notice(&r.box, 0, UINT32_MAX, 1, 1, "the start");
	rig_run(&r, 5 * MS);
	expect_timeout(&r, 3, "is not answered; the box did not say whom it waits for (");
	fake_box_notice(&r.box, 0, 6, 1, 1, "silent for 3.1 s");
	rig_run(&r, 5 * MS);
	expect_timeout(&r, 3, "key 'alone' round 1 waits for rank 1; the box says: silent for 3.1 s");
	assert_int_equal(phub_push(r.workers[0], 1, data, 0), 0);
	expect_timeout(&r, 1, "own key 'right'");
	r.box.hoard = true;
	assert_int_equal(phub_push(r.workers[0], 0, data, 0), 0);
	rig_run(&r, 5 * MS);
	expect_timeout(&r, PHUB_ALL, "and 2 more keys");
	r.box.hoard = false;
	rig_close(&r);
}

static void the_start_says_what_it_waits_for(void **state)
{
	struct rig r;

	rig_open(&r, &(struct rig_plan){.world = 2});
	assert_int_equal(phub_push(r.workers[0], 0, &r, 0), -EINVAL);
	assert_int_equal(phub_key(r.workers[0], "w", PHUB_F32, 10, 0, 0), 0);
	assert_int_equal(phub_push(r.workers[0], 0, &r, 0), -EINVAL);
	assert_int_equal(phub_start(r.workers[0], 0), -ETIMEDOUT);
	rig_run(&r, 5 * MS);
	fake_box_notice(&r.box, 0, UINT32_MAX, 1, 1, "never seen");
	rig_run(&r, 5 * MS);
	assert_int_equal(phub_start(r.workers[0], 0), -ETIMEDOUT);
	assert_non_null(strstr(phub_error(), "the start waits for rank 1; the box says: never seen"));
	assert_int_equal(phub_key(r.workers[1], "w", PHUB_F32, 10, 0, 0), 0);
	assert_int_equal(phub_start(r.workers[1], 0), -ETIMEDOUT);
	rig_run(&r, 20 * MS);
	assert_int_equal(client_started(r.workers[0]), 0);
	assert_int_equal(phub_start(r.workers[0], 0), 0); /* which had timed out, and goes on */
	assert_int_equal(phub_start(r.workers[0], 0), -EBUSY);
	assert_string_equal(phub_transport(r.workers[0]), "loop");
	assert_int_equal(phub_barrier(r.workers[0], 0), -ETIMEDOUT);
	assert_non_null(strstr(phub_error(), "the barrier waits for"));
	assert_int_equal(phub_key(r.workers[0], "late", PHUB_F32, 10, 0, 0), -EBUSY);
	assert_int_equal(phub_push(r.workers[0], 1, &r, 0), -EINVAL);
	assert_int_equal(phub_push(r.workers[0], -1, &r, 0), -EINVAL);
	assert_int_equal(phub_wait(r.workers[0], -2, 0), -EINVAL);
	assert_int_equal(phub_wait(r.workers[0], 0, -7), -EINVAL);
	assert_int_equal(phub_push(r.workers[0], 0, NULL, 0), -EINVAL);
	rig_close(&r);
}

TEST_PROGRAM(test_client_exchange)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sums),
		cmocka_unit_test(sums_over_a_lossy_network),
		cmocka_unit_test(keys_that_share_a_chunk),
		cmocka_unit_test(memory_that_overlaps_itself),
		cmocka_unit_test(halves),
		cmocka_unit_test(registered_memory_is_not_copied),
		cmocka_unit_test(the_librarys_memory_is_not_copied),
		cmocka_unit_test(giving_away_keeps_results),
		cmocka_unit_test(broadcasts),
		cmocka_unit_test(first_weights),
		cmocka_unit_test(neighbours_must_do_the_same),
		cmocka_unit_test(urgent_keys_overtake),
		cmocka_unit_test(hyper_parameters_travel_before_their_round),
		cmocka_unit_test(a_thousand_key_tables),
		cmocka_unit_test(results_that_nobody_asked_for),
		cmocka_unit_test(nothing_is_touched_after_the_end),
		cmocka_unit_test(what_was_committed_still_arrives),
		cmocka_unit_test(a_verdict_does_not_wait_for_ever),
		cmocka_unit_test(the_end_of_lanes_waits_for_its_reason),
		cmocka_unit_test(leaving_gives_up_what_is_in_flight),
		cmocka_unit_test(waits_say_what_they_wait_for),
		cmocka_unit_test(the_start_says_what_it_waits_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
