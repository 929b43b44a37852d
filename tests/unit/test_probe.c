/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Racks from matrices that are made up: two and three racks, by rates and by latency, noise, a slow host, one rack,
 * what makes no groups; and the rack file, written and read back.
 */
#include "topology/probe.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topology/racks.h"

#define NEAR_S 10e-6

static struct probe_facts facts;
static struct probe_split splits[PROBE_BY_COUNT];
static uint32_t noise;

/* 1 to 1 + share */
static double noisy(double share)
{
	noise = noise * 1664525u + 1013904223u;
	return 1 + share * (noise >> 8) / (double)(1 << 24);
}

/* `racks` racks of `each`, dealt in turn; far pairs at these factors of near ones. */
static void fill(unsigned racks, unsigned each, double latency, double alone, double together)
{
	memset(&facts, 0, sizeof(facts));
	facts.count = racks * each;
	noise = 1;
	for (unsigned i = 0; i < facts.count; i++)
		for (unsigned j = 0; j < facts.count; j++) {
			bool far = i % racks != j % racks;

			if (i == j)
				continue;
			facts.latency_s[i][j] = NEAR_S * (far ? latency : 1) * noisy(0.2);
			facts.alone[i][j] = 1e9 * (far ? alone : 1) / noisy(0.08);
			facts.together[i][j] = 1e9 * (far ? together : 1) / noisy(0.08);
		}
}

static int told(void)
{
	for (int by = 0; by < PROBE_BY_COUNT; by++)
		probe_split(&facts, (enum probe_by)by, &splits[by]);
	return probe_choose(splits);
}

static void is_dealt(int by, unsigned racks)
{
	assert_true(by >= 0);
	assert_int_equal(splits[by].rack_count, racks);
	for (unsigned i = 0; i < facts.count; i++)
		assert_int_equal(splits[by].rack[i], i % racks);
}

static void test_each_matrix(void **state)
{
	fill(2, 2, 1, 1, 0.5);
	assert_int_equal(told(), PROBE_BY_TOGETHER);
	is_dealt(PROBE_BY_TOGETHER, 2);
	assert_true(splits[PROBE_BY_TOGETHER].gap > 1.6 && splits[PROBE_BY_TOGETHER].gap < 2.2);
	assert_true(!splits[PROBE_BY_ALONE].told && !splits[PROBE_BY_LATENCY].told);
	fill(3, 4, 1, 0.5, 0.5);
	assert_int_equal(told(), PROBE_BY_TOGETHER);
	is_dealt(PROBE_BY_ALONE, 3);
	fill(3, 2, 3, 1, 1);
	assert_int_equal(told(), PROBE_BY_LATENCY);
	is_dealt(PROBE_BY_LATENCY, 3);
	fill(8, 8, 3, 1, 0.25);
	assert_int_equal(told(), PROBE_BY_TOGETHER);
	is_dealt(PROBE_BY_TOGETHER, 8);
	assert_true(probe_same(&splits[PROBE_BY_TOGETHER], &splits[PROBE_BY_LATENCY], facts.count));
}

static void test_nothing_separates(void **state)
{
	fill(2, 3, 1.2, 0.9, 0.85);
	assert_int_equal(told(), -1);
	for (int by = 0; by < PROBE_BY_COUNT; by++) {
		assert_true(!splits[by].told && !splits[by].mixed);
		assert_int_equal(splits[by].rack_count, 1);
		assert_int_equal(splits[by].rack[5], 0);
	}
	/* A wide gap of latencies that are short: what a scheduler does. */
	fill(2, 2, 1, 1, 1);
	for (unsigned i = 0; i < 4; i++)
		for (unsigned j = 0; j < 4; j++)
			facts.latency_s[i][j] = i % 2 == j % 2 ? 1e-6 : 2.5e-6;
	assert_int_equal(told(), -1);
	/* Two members, none, and one of whom nothing is known. */
	fill(1, 2, 1, 1, 1);
	assert_int_equal(told(), -1);
	fill(1, 0, 1, 1, 1);
	assert_int_equal(told(), -1);
	fill(2, 2, 3, 0.5, 0.5);
	facts.together[0][3] = facts.alone[0][3] = 0;
	assert_int_equal(told(), PROBE_BY_LATENCY);
	facts.latency_s[0][3] = facts.latency_s[3][0] = 0;
	assert_int_equal(told(), -1);
}

/* A host of a tenth of the rate is as near to those of its rack as they are to each other. */
static void test_slow_host(void **state)
{
	fill(2, 3, 1, 0.5, 0.3);
	for (unsigned i = 0; i < facts.count; i++)
		if (i != 4)
			facts.alone[4][i] = facts.alone[i][4] = facts.together[4][i] = facts.together[i][4] =
				1e8 * (i % 2 ? 0.4 : 1);
	assert_int_equal(told(), PROBE_BY_TOGETHER);
	is_dealt(PROBE_BY_TOGETHER, 2);
	is_dealt(PROBE_BY_ALONE, 2);
	assert_true(probe_out(&facts, 4) == 1e8 && probe_in(&facts, 4) == 1e8 && probe_out(&facts, 0) > 9e8);
}

/* One host near to both racks: there is a gap, and no groups. The next matrix is asked. */
static void test_no_groups(void **state)
{
	fill(2, 3, 3, 0.5, 0.5);
	for (unsigned i = 1; i < facts.count; i++)
		facts.together[0][i] = facts.together[i][0] = facts.alone[0][i] = facts.alone[i][0] = 1e9;
	assert_int_equal(told(), PROBE_BY_LATENCY);
	assert_true(splits[PROBE_BY_TOGETHER].mixed && !splits[PROBE_BY_TOGETHER].told);
	is_dealt(PROBE_BY_LATENCY, 2);
}

/* Rows of racks: of two gaps that make groups, the wider one. */
static void test_two_gaps(void **state)
{
	fill(4, 2, 2, 1, 1);
	for (unsigned i = 0; i < facts.count; i++)
		for (unsigned j = 0; j < facts.count; j++)
			if (i % 2 != j % 2)
				facts.latency_s[i][j] = 200e-6;
	assert_int_equal(told(), PROBE_BY_LATENCY);
	is_dealt(PROBE_BY_LATENCY, 2);
}

static void test_spread(void **state)
{
	const unsigned rack[] = {0, 0, 1};

	memset(&facts, 0, sizeof(facts));
	facts.count = 3;
	facts.latency_s[0][1] = 7e-6;
	facts.latency_s[1][0] = 5e-6;
	facts.latency_s[0][2] = 20e-6;
	facts.latency_s[2][1] = 30e-6;
	struct probe_spread within = probe_latency(&facts, rack, 0), between = probe_latency(&facts, rack, -1);
	assert_int_equal(within.count, 1);
	assert_true(within.median == 5e-6);
	assert_int_equal(between.count, 2);
	assert_true(between.least == 20e-6 && between.most == 30e-6);
	assert_int_equal(probe_latency(&facts, rack, 1).count, 0);
}

/* ---- the file ---- */

static const char *note(void *arg, unsigned index)
{
	return arg;
}

static void written(const struct racks *r, const struct racks_notes *notes, char **text)
{
	size_t bytes;
	FILE *file = open_memstream(text, &bytes);

	assert_non_null(file);
	assert_int_equal(racks_write(r, notes, file), 0);
	fclose(file);
}

static void test_round_trip(void **state)
{
	struct rack racks[] = {{.name = "r0", .uplink_bytes_s = 123456789, .latency_s = 12.34567e-6},
		{.name = "-odd:#\\\x01{[&*!|>%@`", .uplink_bytes_s = 1.25e11}};
	struct rack_box boxes[] = {
		{.name = "null", .host = "::1", .port = 7077, .rate_bytes_s = 125.5, .cores = 8, .sibling = 1},
		{.name = "~",
			.host = "b.example",
			.port = 65535,
			.rack = 1,
			.rate_bytes_s = 3e9,
			.sibling = RACKS_NONE}};
	struct rack_host hosts[] = {{.name = "h:0", .rate_bytes_s = 1e8, .workers = 4},
		{.name = "1", .rate_bytes_s = 1e9 / 3, .workers = 1}};
	struct racks r = {racks, boxes, hosts, 2, 2, 2, 50e-6}, back;
	const struct racks_notes notes = {"made of\ntwo lines: '", note, note, note, (void *)(uintptr_t) "x: [\n- y"};
	struct err e = {.text = ""};
	char *text = NULL;

	written(&r, &notes, &text);
	if (racks_parse(text, strlen(text), "written", &back, &e) < 0)
		fail_msg("%s in\n%s", e.text, text);
	free(text);
	assert_int_equal(back.rack_count, 2);
	assert_int_equal(back.box_count, 2);
	assert_int_equal(back.host_count, 2);
	assert_true(fabs(back.latency_s - 50e-6) < 1e-12);
	for (int i = 0; i < 2; i++) {
		assert_string_equal(back.racks[i].name, racks[i].name);
		assert_true(fabs(back.racks[i].uplink_bytes_s / racks[i].uplink_bytes_s - 1) < 1e-8);
		assert_true(fabs(back.racks[i].latency_s - racks[i].latency_s) < 1e-13);
		assert_string_equal(back.boxes[i].name, boxes[i].name);
		assert_string_equal(back.boxes[i].host, boxes[i].host);
		assert_int_equal(back.boxes[i].port, boxes[i].port);
		assert_int_equal(back.boxes[i].rack, boxes[i].rack);
		assert_int_equal(back.boxes[i].cores, boxes[i].cores);
		assert_int_equal(back.boxes[i].sibling, boxes[i].sibling);
		assert_true(fabs(back.boxes[i].rate_bytes_s / boxes[i].rate_bytes_s - 1) < 1e-8);
		assert_string_equal(back.hosts[i].name, hosts[i].name);
		assert_int_equal(back.hosts[i].workers, hosts[i].workers);
		assert_true(fabs(back.hosts[i].rate_bytes_s / hosts[i].rate_bytes_s - 1) < 1e-8);
	}
	racks_fini(&back);
}

static void test_write_to_a_full_disk(void **state)
{
	struct rack rack = {.name = "r"};
	struct rack_box box = {.name = "b", .host = "h", .port = 1, .rate_bytes_s = 1e9, .sibling = RACKS_NONE};
	struct racks r = {&rack, &box, NULL, 1, 1, 0, 0};
	FILE *full = fopen("/dev/full", "we");

	assert_non_null(full);
	assert_int_equal(racks_write(&r, NULL, full), -EIO);
	fclose(full);
}

/* No file that racks_parse() would refuse: the least and the most of a rate are read back, what is beyond is not
 * written. */
static void test_write_what_can_be_read(void **state)
{
	const double good[] = {RACKS_RATE_MIN, RACKS_RATE_MAX},
		     bad[] = {0, 1, 0.999 * RACKS_RATE_MIN, 1.001 * RACKS_RATE_MAX};
	struct rack rack = {.name = "r"};
	struct rack_box box = {.name = "b", .host = "h", .port = 1, .sibling = RACKS_NONE};
	struct rack_host host = {.name = "h", .workers = 1};
	struct racks r = {&rack, &box, &host, 1, 1, 1, 0}, back;
	struct err e = {.text = ""};

	for (unsigned i = 0; i < 2; i++) {
		char *text = NULL;

		rack.uplink_bytes_s = box.rate_bytes_s = host.rate_bytes_s = good[i];
		written(&r, NULL, &text);
		if (racks_parse(text, strlen(text), "written", &back, &e) < 0)
			fail_msg("%s in\n%s", e.text, text);
		free(text);
		racks_fini(&back);
	}
	for (unsigned i = 0; i < 3 * 4; i++) {
		char *text = NULL;
		size_t bytes = 0;
		FILE *file = open_memstream(&text, &bytes);

		assert_non_null(file);
		rack.uplink_bytes_s = i % 3 == 0 && bad[i / 3] > 0 ? bad[i / 3] : 1e9; /* 0: it has none */
		box.rate_bytes_s = i % 3 == 1 ? bad[i / 3] : 1e9;
		host.rate_bytes_s = i % 3 == 2 ? bad[i / 3] : 1e9;
		assert_int_equal(racks_write(&r, NULL, file), i == 0 ? 0 : -ERANGE);
		fclose(file);
		assert_int_equal(bytes > 0, i == 0);
		free(text);
	}
}

TEST_PROGRAM(test_probe)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_matrix),
		cmocka_unit_test(test_nothing_separates),
		cmocka_unit_test(test_slow_host),
		cmocka_unit_test(test_no_groups),
		cmocka_unit_test(test_two_gaps),
		cmocka_unit_test(test_spread),
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_write_to_a_full_disk),
		cmocka_unit_test(test_write_what_can_be_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
