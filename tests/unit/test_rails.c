/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ports connections take: the paper's box of 2 nodes x 14 cores x 10 ports, ports of other networks, nodes that
 * nobody knows, and properties of whatever a seed makes up.
 */
#include "tests/unit/cmocka_shim.h"
#include "transport/rails.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NODES = 2, CORES = 14, PORTS = 10, FAR = 21 };

static struct rails_port port(unsigned net, unsigned host, uint8_t distance)
{
	struct rails_port p = {.gid = {[10] = 0xff, [11] = 0xff, [12] = 10, [14] = (uint8_t)net, [15] = (uint8_t)host},
		.distance = distance};

	return p;
}

/* As a core of `node` sees it; `nets`: each port has a network of its own. */
static void paper_box(unsigned node, bool nets, struct rails_port out[PORTS])
{
	for (unsigned i = 0; i < PORTS; i++)
		out[i] = port(nets ? i : 0, i, i / (PORTS / NODES) == node ? RAILS_NEAR : FAR);
}

static void one_network_of_the_papers_box(void **state)
{
	const struct rails_port worker = port(0, 200, RAILS_NEAR);
	unsigned uses[PORTS] = {0};
	struct rails_port box[PORTS];
	struct rails_pair pairs[RAILS_MAX];

	for (unsigned core = 0; core < NODES * CORES; core++) {
		uint8_t chosen[RAILS_MAX];

		paper_box(core / CORES, false, box);
		assert_int_equal(rails_choose(&worker, 1, box, PORTS, NULL, core, pairs), RAILS_MAX);
		assert_int_equal(rails_of_core(box, PORTS, core, chosen), RAILS_MAX);
		for (unsigned r = 0; r < RAILS_MAX; r++) {
			assert_int_equal(pairs[r].box / (PORTS / NODES), core / CORES);
			assert_int_equal(pairs[r].box, chosen[r]);
			for (unsigned k = 0; k < r; k++)
				assert_int_not_equal(pairs[k].box, pairs[r].box);
			uses[pairs[r].box]++;
		}
	}
	for (unsigned i = 0; i < PORTS; i++)
		assert_in_range(uses[i], CORES * RAILS_MAX / 5, CORES * RAILS_MAX / 5 + 1);
}

/* Workers have one port each, in the network of one of the box's: a core takes the way there is, near or not. */
static void ten_networks_of_the_papers_box(void **state)
{
	struct rails_port box[PORTS];
	struct rails_pair pairs[RAILS_MAX];

	for (unsigned core = 0; core < NODES * CORES; core++) {
		paper_box(core / CORES, true, box);
		for (unsigned net = 0; net < PORTS; net++) {
			const struct rails_port worker = port(net, 200, RAILS_NEAR);

			assert_int_equal(rails_choose(&worker, 1, box, PORTS, NULL, core, pairs), 1);
			assert_int_equal(pairs[0].box, net);
			assert_int_equal(pairs[0].worker, 0);
		}
	}
}

/* A worker with a port in a network of each node: cores take the one of theirs. */
static void a_worker_in_two_networks(void **state)
{
	const struct rails_port worker[] = {port(7, 200, RAILS_NEAR), port(2, 200, RAILS_NEAR)};
	struct rails_port box[PORTS];
	struct rails_pair pairs[RAILS_MAX];

	for (unsigned core = 0; core < NODES * CORES; core++) {
		paper_box(core / CORES, true, box);
		assert_int_equal(rails_choose(worker, 2, box, PORTS, NULL, core, pairs), 1);
		assert_int_equal(pairs[0].box, core < CORES ? 2 : 7);
		assert_int_equal(pairs[0].worker, core < CORES ? 1 : 0);
	}
}

static void the_workers_own_side(void **state)
{
	struct rails_port worker[] = {port(0, 200, FAR), port(0, 201, RAILS_NEAR), port(0, 202, RAILS_NEAR)};
	const struct rails_port box[] = {port(0, 1, RAILS_NEAR)};
	struct rails_pair pairs[RAILS_MAX];

	assert_int_equal(rails_choose(worker, 3, box, 1, NULL, 0, pairs), 2);
	assert_int_equal(pairs[0].worker + pairs[1].worker, 3);
	/* What is near is in a network that the box is not in. */
	worker[1] = worker[2] = port(9, 201, RAILS_NEAR);
	assert_int_equal(rails_choose(worker, 3, box, 1, NULL, 0, pairs), 1);
	assert_int_equal(pairs[0].worker, 0);
}

static void more_ports_at_one_end(void **state)
{
	struct rails_port worker[6], box[2];
	struct rails_pair pairs[RAILS_MAX];
	unsigned uses[6] = {0}, ends[2];

	for (unsigned i = 0; i < 6; i++)
		worker[i] = port(0, 200 + i, RAILS_NEAR);
	box[0] = port(0, 1, RAILS_NEAR);
	box[1] = port(0, 2, RAILS_NEAR);
	for (uint32_t core = 0; core < 6; core++) {
		memset(ends, 0, sizeof(ends));
		assert_int_equal(rails_choose(worker, 6, box, 2, NULL, core, pairs), RAILS_MAX);
		for (unsigned r = 0; r < RAILS_MAX; r++) {
			uses[pairs[r].worker]++;
			ends[pairs[r].box]++;
		}
		assert_int_equal(ends[0], 2);
		assert_int_equal(ends[1], 2);
	}
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(uses[i], RAILS_MAX);
}

/* Two networks, of which one has more of the box's ports: both of the worker's are used. */
static void uneven_networks(void **state)
{
	const struct rails_port worker[] = {port(0, 200, RAILS_NEAR), port(1, 200, RAILS_NEAR)};
	const struct rails_port box[] = {port(0, 1, RAILS_NEAR), port(0, 2, RAILS_NEAR), port(1, 1, RAILS_NEAR)};
	struct rails_pair pairs[RAILS_MAX];

	for (uint32_t core = 0; core < 9; core++) {
		unsigned seen = 0;

		assert_int_equal(rails_choose(worker, 2, box, 3, NULL, core, pairs), 3);
		for (unsigned r = 0; r < 3; r++) {
			assert_int_equal(pairs[r].worker, pairs[r].box == 2);
			seen |= 1u << pairs[r].box;
		}
		assert_int_equal(seen, 7);
	}
}

/* Without nodes all ports are near, and cores spread over all of them. */
static void nodes_that_nobody_knows(void **state)
{
	const struct rails_port worker = port(0, 200, rails_distance(NULL, -1, 3));
	unsigned uses[PORTS] = {0};
	struct rails_port box[PORTS];
	struct rails_pair pairs[RAILS_MAX];

	for (unsigned i = 0; i < PORTS; i++)
		box[i] = port(0, i, rails_distance(NULL, 1, -1));
	for (uint32_t core = 0; core < PORTS; core++) {
		assert_int_equal(rails_choose(&worker, 1, box, PORTS, NULL, core, pairs), RAILS_MAX);
		for (unsigned r = 0; r < RAILS_MAX; r++)
			uses[pairs[r].box]++;
	}
	for (unsigned i = 0; i < PORTS; i++)
		assert_int_equal(uses[i], RAILS_MAX);
	/* One whose node is not known is as near as those of the core's own. */
	paper_box(0, false, box);
	box[9].distance = RAILS_NEAR;
	assert_int_equal(rails_choose(&worker, 1, box, PORTS, NULL, 5, pairs), RAILS_MAX);
	assert_int_equal(pairs[0].box, 9);
}

/* A router may lie between: then the way whose network looks most like it. */
static void no_common_network(void **state)
{
	const struct rails_port worker = port(3, 200, RAILS_NEAR);
	struct rails_port box[] = {port(1, 1, RAILS_NEAR), port(2, 1, FAR)};
	struct rails_pair pairs[RAILS_MAX];

	assert_int_equal(rails_choose(&worker, 1, box, 2, NULL, 0, pairs), 1);
	assert_int_equal(pairs[0].box, 0);
	box[0].gid[12] = 172;
	assert_int_equal(rails_choose(&worker, 1, box, 2, NULL, 0, pairs), 1);
	assert_int_equal(pairs[0].box, 1);
}

/* What is down is left alone while anything is up, in another network or far away; else it is as good as any. */
static void ports_that_are_down(void **state)
{
	struct rails_port worker[] = {port(1, 200, RAILS_NEAR), port(2, 200, FAR)};
	struct rails_port box[] = {port(1, 1, RAILS_NEAR), port(1, 2, RAILS_NEAR), port(2, 1, FAR)};
	struct rails_pair pairs[RAILS_MAX];
	uint8_t chosen[RAILS_MAX];

	assert_int_equal(rails_choose(worker, 2, box, 3, NULL, 0, pairs), 2);
	box[0].distance = 0;
	assert_int_equal(rails_choose(worker, 2, box, 3, NULL, 0, pairs), 1);
	assert_int_equal(pairs[0].box, 1);
	assert_int_equal(pairs[0].worker, 0);
	assert_int_equal(rails_of_core(box, 3, 0, chosen), 1);
	assert_int_equal(chosen[0], 1);
	worker[0].distance = 0;
	assert_int_equal(rails_choose(worker, 2, box, 3, NULL, 0, pairs), 1);
	assert_int_equal(pairs[0].box, 2);
	assert_int_equal(pairs[0].worker, 1);
	worker[1].distance = 0;
	assert_int_equal(rails_choose(worker, 2, box, 3, NULL, 0, pairs), 1);
	assert_int_equal(pairs[0].worker, 0);
	assert_int_not_equal(pairs[0].box, 2);
}

/* A pair that led nowhere is left alone while another is there in a network of both. */
static void pairs_that_led_nowhere(void **state)
{
	const struct rails_port worker[] = {port(1, 200, RAILS_NEAR), port(2, 200, FAR)};
	const struct rails_port box[] = {port(1, 1, RAILS_NEAR), port(1, 2, FAR), port(2, 1, FAR)};
	bool shunned[2][RAILS_PORTS_MAX] = {{true}};
	struct rails_pair pairs[RAILS_MAX];

	assert_int_equal(rails_choose(worker, 2, box, 3, NULL, 0, pairs), 1);
	assert_int_equal(pairs[0].box, 0);
	assert_int_equal(rails_choose(worker, 2, box, 3, shunned, 0, pairs), 1);
	assert_int_equal(pairs[0].worker, 0);
	assert_int_equal(pairs[0].box, 1);
	shunned[0][1] = true;
	assert_int_equal(rails_choose(worker, 2, box, 3, shunned, 0, pairs), 1);
	assert_int_equal(pairs[0].worker, 1);
	assert_int_equal(pairs[0].box, 2);
	shunned[1][2] = true; /* not two different networks */
	assert_int_equal(rails_choose(worker, 2, box, 3, shunned, 0, pairs), 1);
	assert_int_equal(pairs[0].box, 0);
}

static void networks(void **state)
{
	const uint8_t six[] = {0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 9, 9}, other[] = {0x20, 1, 0xd, 0xb8, 0, 1, 0, 1};
	struct rails_port a = port(1, 1, 0), b = port(1, 2, 0);

	assert_true(rails_same_network(a.gid, b.gid));
	b = port(2, 1, 0);
	assert_false(rails_same_network(a.gid, b.gid));
	memset(a.gid, 0, sizeof(a.gid));
	memcpy(a.gid, six, sizeof(six));
	b = a;
	b.gid[9] = 1;
	assert_true(rails_same_network(a.gid, b.gid));
	memcpy(b.gid, other, sizeof(other));
	assert_false(rails_same_network(a.gid, b.gid));
}

static void write_text(const char *root, const char *path, const char *text)
{
	char whole[128];
	FILE *f;

	snprintf(whole, sizeof(whole), "%s%s", root, path);
	f = fopen(whole, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void distances_of_the_kernel(void **state)
{
	static const char *const folders[] = {"", "/devices", "/devices/system", "/devices/system/node",
		"/devices/system/node/node0", "/devices/system/node/node1"};
	static const char *const files[][2] = {{"/devices/system/node/online", "0-1\n"},
		{"/devices/system/node/node0/distance", "10 32\n"}, {"/devices/system/node/node1/distance", "300 4\n"}};
	char root[] = "/tmp/phub-test-rails-XXXXXX", path[128];

	assert_non_null(mkdtemp(root));
	for (unsigned i = 1; i < 6; i++) {
		snprintf(path, sizeof(path), "%s%s", root, folders[i]);
		assert_int_equal(mkdir(path, 0755), 0);
	}
	assert_int_equal(rails_distance(root, 0, 1), 20);
	for (unsigned i = 0; i < 3; i++)
		write_text(root, files[i][0], files[i][1]);
	assert_int_equal(rails_distance(root, 0, 0), RAILS_NEAR);
	assert_int_equal(rails_distance(root, 0, 1), 32);
	assert_int_equal(rails_distance(root, 1, 0), 255);
	assert_int_equal(rails_distance(root, 0, 5), 20);
	assert_int_equal(rails_distance(root, -1, 1), RAILS_NEAR);
	assert_int_equal(rails_distance(root, 0, -1), RAILS_NEAR);
	for (unsigned i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s%s", root, files[i][0]);
		assert_int_equal(unlink(path), 0);
	}
	for (unsigned i = 6; i-- > 0;) {
		snprintf(path, sizeof(path), "%s%s", root, folders[i]);
		assert_int_equal(rmdir(path), 0);
	}
}

static uint64_t random_next(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

/* No way twice, none that could be nearer, and nothing in another network while there is one in this. */
static void whatever_there_is(void **state)
{
	uint64_t seed = 20260;

	print_message("seed %" PRIu64 "\n", seed);
	for (unsigned turn = 0; turn < 20000; turn++) {
		struct rails_port worker[RAILS_PORTS_MAX], box[RAILS_PORTS_MAX];
		unsigned workers = 1 + (unsigned)(random_next(&seed) % RAILS_PORTS_MAX);
		unsigned boxes = 1 + (unsigned)(random_next(&seed) % RAILS_PORTS_MAX), nets = 1 + turn % 5, count;
		struct rails_pair pairs[RAILS_MAX];
		unsigned least = UINT8_MAX;

		for (unsigned i = 0; i < workers; i++)
			worker[i] =
				port((unsigned)random_next(&seed) % nets, i, (uint8_t)(10 + random_next(&seed) % 3));
		for (unsigned k = 0; k < boxes; k++)
			box[k] = port((unsigned)random_next(&seed) % nets, k, (uint8_t)(10 + random_next(&seed) % 3));
		count = rails_choose(worker, workers, box, boxes, NULL, (uint32_t)random_next(&seed), pairs);
		assert_in_range(count, 1, RAILS_MAX);
		for (unsigned i = 0; i < workers; i++)
			for (unsigned k = 0; k < boxes; k++)
				if (rails_same_network(worker[i].gid, box[k].gid) && box[k].distance < least)
					least = box[k].distance;
		for (unsigned r = 0; r < count; r++) {
			assert_true(pairs[r].worker < workers && pairs[r].box < boxes);
			if (least < UINT8_MAX) {
				assert_true(rails_same_network(worker[pairs[r].worker].gid, box[pairs[r].box].gid));
				assert_int_equal(box[pairs[r].box].distance, least);
			}
			for (unsigned s = 0; s < r; s++)
				assert_int_not_equal(memcmp(&pairs[s], &pairs[r], sizeof(pairs[r])), 0);
		}
	}
}

TEST_PROGRAM(test_rails)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_network_of_the_papers_box),
		cmocka_unit_test(ten_networks_of_the_papers_box),
		cmocka_unit_test(a_worker_in_two_networks),
		cmocka_unit_test(the_workers_own_side),
		cmocka_unit_test(more_ports_at_one_end),
		cmocka_unit_test(uneven_networks),
		cmocka_unit_test(nodes_that_nobody_knows),
		cmocka_unit_test(no_common_network),
		cmocka_unit_test(ports_that_are_down),
		cmocka_unit_test(pairs_that_led_nowhere),
		cmocka_unit_test(networks),
		cmocka_unit_test(distances_of_the_kernel),
		cmocka_unit_test(whatever_there_is),
	};

	return cmocka_run_group_tests_name("rails", tests, NULL, NULL);
}
