/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Predicted rounds: by hand where that can be done, else what must hold of them whatever the numbers are.
 */
#include "topology/cost.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topology/plan.h"

enum { CHUNKS = 48, CHUNK_BYTES = 32768, MODEL = CHUNKS * CHUNK_BYTES };

#define MBIT (1e6 / 8)

static struct rack rack[RACKS_MAX];
static struct rack_box file_box[RACKS_MAX];
static struct rack_host host[RACKS_MAX];
static struct racks racks = {.racks = rack, .boxes = file_box, .hosts = host};
static struct ways_box boxes[RACKS_MAX];
static int box_of[RACKS_MAX];
static uint32_t chunk_bytes[CHUNKS];
static struct cost_net net;
static struct cost_job job;

/* So many racks with a box and a host each, all alike. */
static void fill(unsigned count, unsigned workers, double uplink, double box, double worker)
{
	racks.rack_count = racks.box_count = racks.host_count = count;
	racks.latency_s = 0;
	for (unsigned i = 0; i < count; i++) {
		rack[i] = (struct rack){.uplink_bytes_s = count > 1 ? uplink * MBIT : 0};
		snprintf(rack[i].name, sizeof(rack[i].name), "r%u", i);
		file_box[i] = (struct rack_box){.rack = i, .rate_bytes_s = box * MBIT};
		snprintf(file_box[i].name, sizeof(file_box[i].name), "b%u", i);
		host[i] = (struct rack_host){.rack = i, .rate_bytes_s = worker * MBIT * workers, .workers = workers};
		box_of[i] = (int)i;
		cost_take_box(&racks, (int)i, i, workers, &boxes[i]);
	}
	for (unsigned i = 0; i < CHUNKS; i++)
		chunk_bytes[i] = CHUNK_BYTES;
	net = (struct cost_net){&racks, boxes, box_of, count, NULL, false};
	job = (struct cost_job){chunk_bytes, NULL, CHUNKS, COST_WINDOW};
}

static const struct cost *predict(void)
{
	static struct cost costs[WAYS_COUNT];
	struct err e;

	if (cost_ways(&net, &job, 0, costs, &e) < 0)
		fail_msg("%s", e.text);
	return costs;
}

static double on_wire(double bytes, double mbit)
{
	return bytes / (mbit * MBIT * plan_wire_efficiency(PLAN_TCP, 1500, PLAN_FRAME_BYTES, CHUNK_BYTES));
}

static void near(double found, double wanted, const char *what)
{
	if (fabs(found - wanted) > 1e-9 + 1e-6 * wanted)
		fail_msg("%s: %.9g s, not %.9g", what, found, wanted);
}

/* Three racks of two workers, uplinks that limit: what section 3.4 counts, and what comes to that. */
static void test_by_hand(void **state)
{
	static const struct {
		enum ways_kind kind;
		double busy, lag,
			hops; /* models that the uplink carries, models that come last; chunks by the uplink */
		unsigned senders;
	} cases[] = {{WAYS_FLAT, 4, COST_LAG * 3, 2, 4}, {WAYS_TREE, 2, COST_LAG, 2, 2},
		{WAYS_SHARDED, 4.0 / 3, 2 * COST_LAG / 3, 2, 2}, {WAYS_CHAIN, 4.0 / 3, 0, 4, 1}};
	const struct cost *costs;
	char text[400];

	fill(3, 2, 40, 1000, 500);
	racks.latency_s = 1e-3;
	for (unsigned i = 0; i < 3; i++)
		rack[i].latency_s = 1e-4;
	costs = predict();
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct cost *c = &costs[cases[i].kind];
		bool flat = cases[i].kind == WAYS_FLAT;

		near(c->busy_s, on_wire(cases[i].busy * MODEL, 40), "busy");
		near(c->lag_s, on_wire(cases[i].lag * MODEL, 40), "lag");
		near(c->fill_s,
			cases[i].hops * (1e-3 + on_wire(CHUNK_BYTES, 40)) +
				(flat ? 0 : 2 * (1e-4 + on_wire(CHUNK_BYTES, 500))),
			"fill");
		near(c->round_s, c->busy_s + c->lag_s + c->fill_s, "sum");
		assert_int_equal(c->limit, COST_UPLINK);
		assert_int_equal(c->senders, cases[i].senders);
	}
	cost_write_choice(&net, costs, WAYS_TREE, text, sizeof(text));
	assert_non_null(strstr(text, "chain: "));
	assert_non_null(strstr(text, " ms a round beside tree "));
	assert_non_null(strstr(text, "; the uplink of r"));
	assert_int_equal(cost_choose(costs, WAYS_FLAT), WAYS_CHAIN);
}

/* The bytes of the link that limits are those that are counted chunk by chunk. */
static void test_bytes(void **state)
{
	for (unsigned count = 2; count < 9; count++) {
		const struct cost *costs;
		uint16_t home[CHUNKS];

		fill(count, 2, 10, 1000, 1000);
		costs = predict();
		assert_int_equal(costs[WAYS_SHARDED].bytes, costs[WAYS_CHAIN].bytes);
		for (unsigned kind = 0; kind < WAYS_COUNT; kind++) {
			const struct ways w = {(enum ways_kind)kind, 0, count, boxes, CHUNKS, home};
			struct ways_load uplinks[RACKS_MAX] = {{0}};
			uint64_t most = 0;
			struct err e;

			assert_int_equal(ways_homes(w.kind, boxes, count, 0, chunk_bytes, CHUNKS, home, &e), 0);
			ways_add_loads(&w, chunk_bytes, NULL, NULL, uplinks);
			for (unsigned i = 0; i < count; i++) {
				most = uplinks[i].in > most ? uplinks[i].in : most;
				most = uplinks[i].out > most ? uplinks[i].out : most;
			}
			assert_int_equal(costs[kind].bytes, most);
		}
	}
}

/* A link that carries a rack's sum up and its results down has one sender each way, or as many as there are homes. */
static void test_senders_of_results(void **state)
{
	static uint32_t lifts[CHUNKS];
	const struct cost *costs;

	for (unsigned slow = 1; slow < 3; slow++) {
		fill(3, 2, 500, 1000, 500);
		rack[slow].uplink_bytes_s = 20 * MBIT;
		costs = predict();
		assert_int_equal(costs[WAYS_TREE].limit, COST_UPLINK);
		assert_int_equal(costs[WAYS_TREE].index, slow);
		assert_int_equal(costs[WAYS_TREE].senders, 1);
	}
	/* Sums go up as half of their bytes, and a rack that is the home of nothing gets results from both that are. */
	for (unsigned i = 0; i < CHUNKS; i++)
		lifts[i] = CHUNK_BYTES / 2;
	job.lift_bytes = lifts;
	rack[2].uplink_bytes_s = 0.001 * MBIT;
	costs = predict();
	assert_true(costs[WAYS_SHARDED].in);
	assert_int_equal(costs[WAYS_SHARDED].index, 2);
	assert_int_equal(costs[WAYS_SHARDED].senders, 2);
}

static void test_one_box(void **state)
{
	const struct cost *costs;

	fill(1, 3, 0, 100, 50);
	costs = predict();
	for (unsigned kind = 1; kind < WAYS_COUNT; kind++)
		near(costs[kind].round_s, costs[WAYS_FLAT].round_s, "one box, any way");
	near(costs[WAYS_FLAT].busy_s, on_wire(3.0 * MODEL, 100), "three workers");
	assert_int_equal(cost_choose(costs, WAYS_TREE), WAYS_TREE);
}

/* Whatever is added or slows down never makes a round shorter. */
static void test_never_faster(void **state)
{
	struct cost before[WAYS_COUNT];

	for (unsigned count = 2; count < 12; count++) {
		fill(count, 2, 40, 100, 50);
		memcpy(before, predict(), sizeof(before));
		fill(count + 1, 2, 40, 100, 50);
		assert_true(predict()[WAYS_TREE].round_s >= before[WAYS_TREE].round_s);
		assert_true(predict()[WAYS_FLAT].round_s >= before[WAYS_FLAT].round_s);
		fill(count, 3, 40, 100, 50);
		for (unsigned kind = 0; kind < WAYS_COUNT; kind++)
			assert_true(predict()[kind].round_s >= before[kind].round_s);
		fill(count, 2, 30, 100, 50);
		for (unsigned kind = 0; kind < WAYS_COUNT; kind++)
			assert_true(predict()[kind].round_s >= before[kind].round_s);
		fill(count, 2, 40, 100, 50);
		host[count - 1].rate_bytes_s = 2 * MBIT; /* for two workers */
		for (unsigned kind = 0; kind < WAYS_COUNT; kind++)
			assert_true(predict()[kind].round_s > before[kind].round_s);
		assert_int_equal(predict()[WAYS_CHAIN].limit, COST_HOST);
		assert_int_equal(predict()[WAYS_CHAIN].index, count - 1);
	}
}

/* Nobody gets ahead by more than a window: of a large model little is left of the lag. */
static void test_window(void **state)
{
	double lag;

	fill(4, 2, 40, 1000, 500);
	lag = predict()[WAYS_TREE].lag_s;
	job.window = 4;
	near(predict()[WAYS_TREE].lag_s, on_wire(2.0 * 4 * CHUNK_BYTES, 40), "four chunks, of two others");
	assert_true(predict()[WAYS_TREE].lag_s < lag);
}

/* A link that has less is given less, and what goes by it takes less time than if it were not known. */
static void test_degraded(void **state)
{
	uint16_t even[CHUNKS];
	struct cost blind;
	struct err e;

	fill(3, 1, 1000, 100, 1000);
	assert_int_equal(ways_homes(WAYS_SHARDED, boxes, 3, 0, chunk_bytes, CHUNKS, even, &e), 0);
	rack[2].uplink_bytes_s = 20 * MBIT;
	near(cost_home_rate(&racks, &boxes[2]), 20 * MBIT, "its uplink has less");
	near(cost_home_rate(&racks, &boxes[1]), 100 * MBIT, "its own link has less");
	assert_int_equal(cost_round(&net, &job, WAYS_SHARDED, 0, even, &blind, &e), 0);
	assert_true(predict()[WAYS_SHARDED].round_s < blind.round_s);
	assert_int_equal(predict()[WAYS_SHARDED].index, 2);
}

/* Boxes that the file does not have are as good as the default says, each in a rack of its own. */
static void test_no_file(void **state)
{
	const struct cost *costs;
	char text[400];

	fill(4, 1, 40, 100, 50);
	net.racks = NULL;
	for (unsigned i = 0; i < 4; i++) {
		box_of[i] = RACKS_NONE;
		cost_take_box(NULL, RACKS_NONE, i, 1, &boxes[i]);
	}
	costs = predict();
	near(costs[WAYS_TREE].busy_s, on_wire(4.0 * MODEL, COST_RATE_BYTES_S / MBIT), "a worker and three boxes");
	assert_int_equal(cost_choose(costs, WAYS_TREE), WAYS_CHAIN);
	cost_write_choice(&net, costs, WAYS_TREE, text, sizeof(text));
	assert_non_null(strstr(text, "; the link of box "));
	net.names = (const char *const[]){"this box", "box 10.0.0.2:7077", "box 10.0.0.3:7077", "box 10.0.0.4:7077"};
	cost_write_limit(&net, &(struct cost){.limit = COST_BOX, .index = 1}, text, sizeof(text));
	assert_string_equal(text, "the link of box 10.0.0.2:7077");
	net.names = NULL;
}

/* A box that the file does not have costs what one of its racks would: pushes in its rack do not cross its uplink. */
static void test_stranger(void **state)
{
	struct cost known[WAYS_COUNT];
	char text[COST_LIMIT_BYTES];

	for (unsigned count = 2; count < 5; count++) {
		fill(count, 4, 40, 1000, 1000);
		memcpy(known, predict(), sizeof(known));
		for (unsigned i = 1; i < count; i++) {
			box_of[i] = RACKS_NONE;
			cost_take_stranger(&racks, 0, i, 4, &boxes[i]);
			near(cost_home_rate(&racks, &boxes[i]), 40 * MBIT, "homes of a stranger");
		}
		for (unsigned kind = 0; kind < WAYS_COUNT; kind++)
			near(predict()[kind].round_s, known[kind].round_s, ways_name((enum ways_kind)kind));
		cost_write_limit(&net, &predict()[WAYS_TREE], text, sizeof(text));
		assert_string_equal(text, "the uplink of r0");
	}
	net.names = (const char *const[]){"this box", "box 10.0.0.2:7077", "box 10.0.0.3:7077", "box 10.0.0.4:7077"};
	cost_write_limit(&net, &(struct cost){.limit = COST_UPLINK, .index = cost_no_rack(1)}, text, sizeof(text));
	assert_string_equal(text, "the uplink of box 10.0.0.2:7077 (not in the rack file)");
	net.names = NULL;
	cost_take_stranger(&racks, RACKS_NONE, 2, 4, &boxes[2]);
	near(cost_home_rate(&racks, &boxes[2]), COST_RATE_BYTES_S, "like none of the file's");
	cost_take_stranger(NULL, 0, 2, 4, &boxes[2]);
	near(cost_home_rate(NULL, &boxes[2]), COST_RATE_BYTES_S, "no file");
}

/* Of ways that are as good the simpler one. */
static void test_choice(void **state)
{
	struct cost costs[WAYS_COUNT] = {{.round_s = 0.5}, {.round_s = 1.02}, {.round_s = 1.0}, {.round_s = 1.1}};
	char text[400];

	fill(3, 1, 40, 100, 50);
	assert_int_equal(cost_choose(costs, WAYS_TREE), WAYS_TREE);
	cost_write_choice(&net, costs, WAYS_TREE, text, sizeof(text));
	assert_string_equal(text,
		"tree: 1020 ms a round beside sharded 1000, chain 1100 (less than 3 % is no difference, and "
		"the simpler wins); the link of b0 limits");
	costs[WAYS_TREE].round_s = 1.00001; /* told as 1000, as the other is */
	cost_write_choice(&net, costs, WAYS_TREE, text, sizeof(text));
	assert_string_equal(text, "tree: 1000 ms a round beside sharded 1000, chain 1100; the link of b0 limits");
	costs[WAYS_TREE].round_s = 0.99;
	cost_write_choice(&net, costs, WAYS_TREE, text, sizeof(text));
	assert_string_equal(text, "tree: 990 ms a round beside sharded 1000, chain 1100; the link of b0 limits");
	assert_int_equal(cost_choose(costs, WAYS_FLAT), WAYS_FLAT);
	costs[WAYS_TREE].round_s = 1.05;
	assert_int_equal(cost_choose(costs, WAYS_TREE), WAYS_SHARDED);
	costs[WAYS_CHAIN].round_s = 0.9;
	assert_int_equal(cost_choose(costs, WAYS_TREE), WAYS_CHAIN);
}

static void test_refusals(void **state)
{
	struct cost costs[WAYS_COUNT];
	struct err e;

	fill(3, 1, 40, 100, 50);
	assert_int_equal(cost_ways(&net, &job, 3, costs, &e), -EINVAL);
	boxes[1].rate_bytes_s = 0;
	assert_int_equal(cost_ways(&net, &job, 0, costs, &e), -EINVAL);
	assert_non_null(strstr(e.text, "box 1 has links of no rate"));
	net.box_count = 0;
	assert_int_equal(cost_ways(&net, &job, 0, costs, &e), -EINVAL);
}

TEST_PROGRAM(test_cost)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_by_hand),
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_senders_of_results),
		cmocka_unit_test(test_one_box),
		cmocka_unit_test(test_never_faster),
		cmocka_unit_test(test_window),
		cmocka_unit_test(test_degraded),
		cmocka_unit_test(test_no_file),
		cmocka_unit_test(test_stranger),
		cmocka_unit_test(test_choice),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
