/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Homes and loads of chunks across boxes: every way ends, homes are even, and what uplinks carry is what the paper's
 * formulae say.
 */
#include "topology/ways.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNKS = 600, CHUNK_BYTES = 32768 };

static uint32_t chunk_bytes[CHUNKS];
static uint16_t home[CHUNKS];
static struct ways_box boxes[WAYS_BOXES_MAX];

static void fill(unsigned count, bool unequal)
{
	for (unsigned i = 0; i < count; i++)
		boxes[i] = (struct ways_box){.rack = i,
			.workers = unequal ? 1 + i % 5 : 4,
			.rate_bytes_s = unequal ? 1e9 * (1 + i % 3) : 1e9};
	for (uint32_t i = 0; i < CHUNKS; i++)
		chunk_bytes[i] = unequal ? 64 + i * 997 % CHUNK_BYTES / 4 * 4 : CHUNK_BYTES;
}

static struct ways plan(enum ways_kind kind, unsigned count, unsigned root)
{
	struct err e;

	assert_int_equal(ways_homes(kind, boxes, count, root, chunk_bytes, CHUNKS, home, &e), 0);
	return (struct ways){
		.kind = kind, .root = root, .box_count = count, .boxes = boxes, .chunk_count = CHUNKS, .home = home};
}

/* From each box a chunk gets home in fewer steps than there are boxes, and is never at a box twice. */
static void test_ways_end(void **state)
{
	fill(9, false);
	for (unsigned kind = WAYS_TREE; kind < WAYS_COUNT; kind++)
		for (unsigned count = 1; count < 9; count++)
			for (unsigned end = 0; end < count; end++)
				for (unsigned box = 0; box < count; box++) {
					unsigned at = box, steps = 0, below = 0;

					for (; at != end; steps++)
						at = ways_next((enum ways_kind)kind, count, end, at);
					assert_true(steps < count && (kind == WAYS_CHAIN || steps <= 1));
					for (unsigned other = 0; other < count; other++)
						below += ways_is_below(
							(enum ways_kind)kind, boxes, count, end, other, box);
					assert_true(kind != WAYS_CHAIN || below <= 1);
				}
}

/* Who has workers is awaited on all of its way home, and nobody waits for a box that has nothing to lift. */
static void check_sources(enum ways_kind kind, unsigned count, unsigned end)
{
	bool lifts[8] = {false};

	for (unsigned box = 0; box < count; box++)
		for (unsigned at = box; boxes[box].workers > 0 && at != end; at = ways_next(kind, count, end, at))
			lifts[at] = true;
	for (unsigned box = 0; box < count; box++)
		for (unsigned other = 0; other < count; other++)
			assert_int_equal(ways_is_below(kind, boxes, count, end, other, box),
				lifts[other] && ways_next(kind, count, end, other) == box);
}

static void test_boxes_without_workers(void **state)
{
	for (unsigned kind = WAYS_TREE; kind < WAYS_COUNT; kind++)
		for (unsigned count = 1; count < 9; count++)
			for (unsigned has = 1; has < 1u << count; has++) {
				fill(count, false);
				for (unsigned box = 0; box < count; box++)
					boxes[box].workers = has >> box & 1;
				for (unsigned end = 0; end < count; end++)
					check_sources((enum ways_kind)kind, count, end);
			}
}

/* Each box is home of a share of the bytes that goes with its rate. */
static void test_homes_are_even(void **state)
{
	for (unsigned count = 1; count < 17; count++) {
		uint64_t bytes[WAYS_BOXES_MAX] = {0}, all = 0;
		double rates = 0;

		fill(count, true);
		plan(WAYS_SHARDED, count, 0);
		for (uint32_t i = 0; i < CHUNKS; i++) {
			assert_true(home[i] < count);
			bytes[home[i]] += chunk_bytes[i];
			all += chunk_bytes[i];
		}
		for (unsigned i = 0; i < count; i++)
			rates += boxes[i].rate_bytes_s;
		for (unsigned i = 0; i < count; i++) {
			double share = (double)all * boxes[i].rate_bytes_s / rates;

			assert_true((double)bytes[i] < share + CHUNK_BYTES && (double)bytes[i] > share - CHUNK_BYTES);
		}
	}
}

/* ---- other homes ---- */

/* What went from where to where, of those that had these homes. */
struct moves {
	unsigned chunks, flow[WAYS_BOXES_MAX][WAYS_BOXES_MAX];
	uint64_t bytes, out[WAYS_BOXES_MAX]; /* that left each */
};

static void rehome(unsigned count, struct moves *m)
{
	static uint16_t before[CHUNKS];
	struct err e;

	memset(m, 0, sizeof(*m));
	memcpy(before, home, sizeof(home));
	assert_int_equal(ways_rehome(boxes, count, chunk_bytes, CHUNKS, home, &e), 0);
	for (uint32_t i = 0; i < CHUNKS; i++) {
		assert_true(home[i] < count);
		if (home[i] == before[i])
			continue;
		m->chunks++;
		m->flow[before[i]][home[i]]++;
		m->bytes += chunk_bytes[i];
		m->out[before[i]] += chunk_bytes[i];
	}
}

/* Three boxes with 200 chunks each, and the first one's link has a tenth of its rate: 600 / 21 are its share then. */
static void test_slower_box_gives(void **state)
{
	static struct moves m;

	fill(3, false);
	plan(WAYS_SHARDED, 3, 0);
	boxes[0].rate_bytes_s /= 10;
	rehome(3, &m);
	assert_int_equal(m.flow[0][1], 86);
	assert_int_equal(m.flow[0][2], 86);
	assert_int_equal(m.chunks, 172);
	rehome(3, &m);
	assert_int_equal(m.chunks, 0);
	/* And back. */
	boxes[0].rate_bytes_s *= 10;
	rehome(3, &m);
	assert_int_equal(m.flow[1][0], 86);
	assert_int_equal(m.flow[2][0], 86);
	assert_int_equal(m.chunks, 172);
	/* All slower, none slower than others. */
	for (unsigned i = 0; i < 3; i++)
		boxes[i].rate_bytes_s /= 7;
	rehome(3, &m);
	assert_int_equal(m.chunks, 0);
}

/* Sizes as keys leave them: a link is slower, then as it was. Chunks leave that box alone, and come back to it alone.
 */
static void test_others_keep_theirs(void **state)
{
	static struct moves m;

	for (unsigned count = 2; count < 9; count++) {
		fill(count, false);
		for (uint32_t i = 19; i < CHUNKS; i += 20)
			chunk_bytes[i] = 64 + i * 997 % CHUNK_BYTES / 4 * 4;
		plan(WAYS_SHARDED, count, 0);
		for (unsigned turn = 0; turn < 2; turn++) {
			boxes[count - 1].rate_bytes_s = turn ? 1e9 : 2e8;
			rehome(count, &m);
			assert_true(m.chunks > 0);
			for (unsigned i = 0; i < count; i++)
				for (unsigned k = 0; k < count; k++)
					assert_true(m.flow[i][k] == 0 || (turn ? k : i) == count - 1);
		}
	}
}

/* Of how many bytes is each the home? Returns when the last one is done with them. */
static double count_homes(unsigned count, const uint16_t *at, uint64_t bytes[WAYS_BOXES_MAX])
{
	double last = 0;

	memset(bytes, 0, WAYS_BOXES_MAX * sizeof(bytes[0]));
	for (uint32_t i = 0; i < CHUNKS; i++)
		bytes[at[i]] += chunk_bytes[i];
	for (unsigned i = 0; i < count; i++)
		last = (double)bytes[i] / boxes[i].rate_bytes_s > last ? (double)bytes[i] / boxes[i].rate_bytes_s
								       : last;
	return last;
}

/* Of these homes, what is at each beyond its share. Returns that of all. */
static double count_over(unsigned count, const uint64_t *bytes, double *over)
{
	double all = 0, rates = 0, sum = 0;

	for (unsigned i = 0; i < count; i++) {
		all += (double)bytes[i];
		rates += boxes[i].rate_bytes_s;
	}
	for (unsigned i = 0; i < count; i++) {
		over[i] = (double)bytes[i] - all * boxes[i].rate_bytes_s / rates;
		over[i] = over[i] > 0 ? over[i] : 0;
		sum += over[i];
	}
	return sum;
}

/* By the rates that are known now: as even as anew, and no more is carried than was beyond the shares, but for a chunk
 * of each; nothing goes to where something comes from. A second time nothing moves. */
static void check_rehome(unsigned count, bool unequal)
{
	static struct moves m;
	static uint16_t anew[CHUNKS];
	uint64_t bytes[WAYS_BOXES_MAX];
	double over[WAYS_BOXES_MAX], all, last;
	struct err e;

	count_homes(count, home, bytes);
	all = count_over(count, bytes, over);
	assert_int_equal(ways_homes(WAYS_CHAIN, boxes, count, 0, chunk_bytes, CHUNKS, anew, &e), 0);
	last = count_homes(count, anew, bytes);
	rehome(count, &m);
	assert_true(count_homes(count, home, bytes) <= last * (unequal ? 1.03 : 1.011));
	assert_true((double)m.bytes < all + (double)count * CHUNK_BYTES / 2);
	for (unsigned i = 0; i < count && !unequal; i++) {
		assert_true((double)m.out[i] < over[i] + CHUNK_BYTES);
		for (unsigned k = 0; k < count; k++)
			assert_true(m.flow[i][k] == 0 || m.flow[k][i] == 0);
	}
	rehome(count, &m);
	assert_int_equal(m.chunks, 0);
}

static void test_rates_change(void **state)
{
	static struct moves m;
	uint32_t drawn = 1;

	for (unsigned count = 1; count < 17; count++) {
		for (unsigned unequal = 0; unequal < 2; unequal++) {
			fill(count, unequal);
			plan(WAYS_CHAIN, count, 0);
			rehome(count, &m);
			assert_int_equal(m.chunks, 0); /* those that it would choose are right */
			for (unsigned turn = 0; turn < 40; turn++) {
				drawn = drawn * 1664525u + 1013904223u;
				boxes[(drawn >> 8) % count].rate_bytes_s = 1e8 * (1 + (drawn >> 16) % 20);
				check_rehome(count, unequal);
			}
		}
	}
}

/* One chunk is most of all: it goes where it is done sooner, and the others away from there. */
static void test_large_chunk(void **state)
{
	static const uint32_t large[4] = {100, 10, 10, 10};
	uint16_t at[4] = {0, 1, 1, 1};
	struct err e;

	fill(2, false);
	boxes[0].rate_bytes_s = 8e8;
	assert_int_equal(ways_rehome(boxes, 2, large, 4, at, &e), 0);
	assert_int_equal(at[0], 0);
	boxes[0].rate_bytes_s = 7e8;
	assert_int_equal(ways_rehome(boxes, 2, large, 4, at, &e), 0);
	assert_int_equal(at[0], 1);
	assert_int_equal(at[1] + at[2] + at[3], 0);
}

/* PHub (SoCC'18), section 3.4, of a model of M bytes and K racks of N workers. */
static void test_uplinks(void **state)
{
	const uint64_t m = (uint64_t)CHUNKS * CHUNK_BYTES, n = 4;

	for (unsigned k = 2; k <= 8; k++) {
		for (unsigned kind = 0; kind < WAYS_COUNT; kind++) {
			struct ways_load links[WAYS_BOXES_MAX] = {0}, uplinks[WAYS_BOXES_MAX] = {0};
			struct ways w;

			fill(k, false);
			w = plan((enum ways_kind)kind, k, 0);
			ways_add_loads(&w, chunk_bytes, NULL, links, uplinks);
			for (unsigned i = 0; i < k; i++) {
				uint64_t expected = kind == WAYS_FLAT   ? (i == 0 ? (k - 1) * n * m : n * m)
						    : kind == WAYS_TREE ? (i == 0 ? (k - 1) * m : m)
									: 2 * (k - 1) * m / k;
				uint64_t slack = kind >= WAYS_SHARDED ? 2 * k * (uint64_t)CHUNK_BYTES : 0;

				assert_true(uplinks[i].out <= expected + slack && uplinks[i].out + slack >= expected);
				assert_true(uplinks[i].in <= expected + slack && uplinks[i].in + slack >= expected);
				/* Chunks are all of one size. */
				assert_int_equal(uplinks[i].out, uplinks[i].chunks_out * CHUNK_BYTES);
				assert_int_equal(uplinks[i].in, uplinks[i].chunks_in * CHUNK_BYTES);
				assert_int_equal(links[i].out, links[i].chunks_out * CHUNK_BYTES);
				assert_int_equal(links[i].in, links[i].chunks_in * CHUNK_BYTES);
				/* The box carries its own workers' besides. */
				if (kind != WAYS_FLAT)
					assert_int_equal(links[i].in, uplinks[i].in + n * m);
			}
			if (kind == WAYS_FLAT)
				assert_int_equal(links[0].in, k * n * m);
		}
	}
}

/* Sums of two bytes an element go up, results come down as workers take them; boxes of one rack use no uplink. */
static void test_lifts_and_neighbours(void **state)
{
	struct ways_load uplinks[WAYS_BOXES_MAX] = {0}, links[WAYS_BOXES_MAX] = {0};
	static uint32_t lifts[CHUNKS];
	struct ways w;

	fill(3, false);
	boxes[2].rack = 1;
	for (uint32_t i = 0; i < CHUNKS; i++)
		lifts[i] = CHUNK_BYTES / 2;
	w = plan(WAYS_TREE, 3, 1);
	ways_add_loads(&w, chunk_bytes, lifts, links, uplinks);
	assert_int_equal(uplinks[0].out, (uint64_t)CHUNKS * CHUNK_BYTES / 2);
	assert_int_equal(uplinks[0].in, (uint64_t)CHUNKS * CHUNK_BYTES);
	assert_int_equal(uplinks[1].in, uplinks[0].out);
	assert_int_equal(uplinks[1].out, uplinks[0].in);
	assert_int_equal(links[2].out, (uint64_t)CHUNKS * CHUNK_BYTES * 4 + (uint64_t)CHUNKS * CHUNK_BYTES / 2);
	assert_int_equal(uplinks[0].chunks_out, CHUNKS); /* of half as many bytes */
	assert_int_equal(uplinks[0].chunks_in, CHUNKS);
	assert_int_equal(links[2].chunks_out, CHUNKS * (4 + 1));
	ways_add_loads(&w, chunk_bytes, lifts, NULL, NULL);
}

static void test_refused(void **state)
{
	struct err e;

	fill(3, false);
	assert_int_equal(ways_homes(WAYS_TREE, boxes, 0, 0, chunk_bytes, CHUNKS, home, &e), -EINVAL);
	assert_int_equal(ways_homes(WAYS_TREE, boxes, WAYS_BOXES_MAX + 1, 0, chunk_bytes, CHUNKS, home, &e), -EINVAL);
	assert_int_equal(ways_homes(WAYS_TREE, boxes, 3, 3, chunk_bytes, CHUNKS, home, &e), -EINVAL);
	plan(WAYS_CHAIN, 3, 0);
	home[7] = 3;
	assert_int_equal(ways_rehome(boxes, 3, chunk_bytes, CHUNKS, home, &e), -EINVAL);
	assert_string_equal(e.text, "box 3 is the home of chunk 7; there are 3 boxes");
	boxes[1].rate_bytes_s = 0;
	assert_int_equal(ways_homes(WAYS_CHAIN, boxes, 3, 0, chunk_bytes, CHUNKS, home, &e), -EINVAL);
	assert_int_equal(ways_rehome(boxes, 3, chunk_bytes, CHUNKS, home, &e), -EINVAL);
	assert_string_equal(ways_name(WAYS_CHAIN), "chain");
}

TEST_PROGRAM(test_ways)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ways_end),
		cmocka_unit_test(test_boxes_without_workers),
		cmocka_unit_test(test_homes_are_even),
		cmocka_unit_test(test_slower_box_gives),
		cmocka_unit_test(test_others_keep_theirs),
		cmocka_unit_test(test_rates_change),
		cmocka_unit_test(test_large_chunk),
		cmocka_unit_test(test_uplinks),
		cmocka_unit_test(test_lifts_and_neighbours),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests_name("ways", tests, NULL, NULL);
}
