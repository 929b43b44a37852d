/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan: every formula against values computed by hand, the fits against points made from known costs, what cannot be,
 * and the largest boxes that may be asked for.
 */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "phub/cli/plan_measure.h"
#include "tests/unit/cmocka_shim.h"
#include "topology/plan.h"
#include "transport/reliable.h"

enum { UDP_IP_BYTES = 28 };

/* Within 1e-5 of what was computed by hand. */
#define assert_near(value, wanted)                                                         \
	do {                                                                               \
		double near_value = (value), near_wanted = (wanted);                       \
		if (!(fabs(near_value - near_wanted) <= 1e-5 * fabs(near_wanted)))         \
			fail_msg("%s is %.9g, not %.9g", #value, near_value, near_wanted); \
	} while (0)

static void test_wire_efficiency(void **state)
{
	const double huge = 1e12; /* no share for the chunk's header */

	assert_near(plan_wire_efficiency(PLAN_TCP, 1500, 38, huge), 1448.0 / 1538);
	assert_near(plan_wire_efficiency(PLAN_TCP, 9000, 38, huge), 8948.0 / 9038);
	assert_near(plan_wire_efficiency(PLAN_TCP, 1500, 14, huge), 1448.0 / 1514);
	assert_near(plan_wire_efficiency(PLAN_UDP, 1500, 38, huge), 1344.0 / 1514);
	assert_near(plan_wire_efficiency(PLAN_DPDK, 9000, 38, huge), 8832.0 / 9002);
	assert_near(plan_wire_efficiency(PLAN_VERBS, 1500, 38, huge), 1024.0 / 1106);
	assert_near(plan_wire_efficiency(PLAN_VERBS, 4200, 38, huge), 4096.0 / 4178);
	assert_near(plan_wire_efficiency(PLAN_VERBS, 9000, 38, huge), 4096.0 / 4178); /* RoCE knows no more */
	/* As much header as chunk halves it. */
	assert_near(plan_wire_efficiency(PLAN_TCP, 1500, 38, 64), 0.4707412);
	assert_near(plan_wire_efficiency(PLAN_TCP, 1500, 38, 32768), 0.9396465);
	assert_near(plan_wire_efficiency(PLAN_SHM, 0, 0, 32768), 1);
	assert_true(plan_wire_efficiency(PLAN_TCP, 52, 38, 32768) == 0);
	assert_true(plan_wire_efficiency(PLAN_VERBS, 20, 38, 32768) == 0);
}

/* What the code sends: topology has numbers of its own, as it knows nothing of transports. */
static void test_wire_of_datagrams(void **state)
{
	for (unsigned mtu = PLAN_MTU_MIN; mtu <= PLAN_MTU_MAX; mtu++) {
		double fragment = reliable_fragment_for(mtu - UDP_IP_BYTES);
		double wanted = fragment / (fragment + WIRE_DATA_BYTES + UDP_IP_BYTES + 38) * 32768 / 32832;

		assert_near(plan_wire_efficiency(PLAN_UDP, mtu, 38, 32768), wanted);
		assert_near(plan_wire_efficiency(PLAN_DPDK, mtu, 38, 32768), wanted);
	}
}

static void test_pcie(void **state)
{
	assert_near(plan_pcie_bytes_s(1, 16), 4e9);
	assert_near(plan_pcie_bytes_s(2, 8), 4e9);
	assert_near(plan_pcie_bytes_s(3, 8), 7.8769231e9);
	assert_near(plan_pcie_bytes_s(4, 16), 31.507692e9);
	assert_near(plan_pcie_bytes_s(5, 16), 63.015385e9);
	assert_near(plan_pcie_bytes_s(6, 16), 118e9);
	assert_true(plan_pcie_bytes_s(0, 16) == 0);
	assert_true(plan_pcie_bytes_s(7, 16) == 0);
	assert_near(plan_pcie_overhead(), 1.09375);
}

/* The small box of most cases: 4 workers of 1 MB in 4 chunks, two cores, sums at 10 GB/s, transport at 10 GB/s, workers
 * at 20 GB/s. */
static struct plan_input small_box(void)
{
	return (struct plan_input){
		.transport = PLAN_SHM,
		.workers = 4,
		.bytes = 1000000,
		.keys = 1,
		.chunk_bytes = 250000,
		.wire_bytes = 4,
		.cores = 2,
		.kernel = {.arrival_ns = 0.1, .once_ns = 0},
		.costs = {.box = {.byte_ns = 0.1}, .worker = {.byte_ns = 0.05}},
	};
}

/* And with one NIC of 1 GB/s, as each worker has. */
static struct plan_input small_tcp_box(void)
{
	struct plan_input in = small_box();

	in.transport = PLAN_TCP;
	in.nics = 1;
	in.link_bytes_s = in.worker_link_bytes_s = 1e9;
	in.mtu = 1500;
	in.frame_bytes = 38;
	return in;
}

static void test_memory(void **state)
{
	struct plan_input in = small_box();

	assert_near(plan_once_bytes(4, false, 0, false), 2);
	assert_near(plan_once_bytes(4, true, 0, false), 2);
	assert_near(plan_once_bytes(4, true, 1, false), 4);
	assert_near(plan_once_bytes(4, true, 2, false), 6);
	assert_near(plan_once_bytes(2, true, 1, false), 10);
	assert_near(plan_once_bytes(2, false, 0, false), 2);
	assert_near(plan_once_bytes(4, false, 0, true), 1);
	assert_near(plan_once_bytes(2, false, 0, true), 1);
	assert_near(plan_once_bytes(2, true, 1, true), 9);
	assert_near(plan_once_bytes(4, true, 1, true), 4); /* fp32 weights are the result, and rewritten in place */
	assert_near(plan_memory_demand(&in), 1.5);
	/* fp32 momentum, 8 workers, slots that stay in cache: half a byte. */
	in.transport = PLAN_VERBS;
	in.workers = 8;
	in.optimizer = true;
	in.state_count = 1;
	assert_near(plan_memory_demand(&in), 0.5);
	in.transport = PLAN_TCP;
	in.state_count = 2;
	assert_near(plan_memory_demand(&in), 4.75);
}

/* 5 arrays of 1 MB on 2 cores: 2.5 MB of each. */
static void test_results_past_caches(void **state)
{
	struct plan_input in = small_box();

	assert_false(plan_streams(&in)); /* a cache that is not known */
	in.cache_bytes = 2499999;
	assert_true(plan_streams(&in));
	assert_near(plan_memory_demand(&in), 1.25);
	in.cache_bytes = 2500000;
	assert_false(plan_streams(&in));
	assert_near(plan_memory_demand(&in), 1.5);
	in.chunk_bytes = 1000000; /* the one chunk's core has all 5 MB */
	assert_true(plan_streams(&in));
	in.transport = PLAN_TCP; /* what a send reads next */
	in.cache_bytes = 1;
	assert_false(plan_streams(&in));
	assert_near(plan_memory_demand(&in), 4.5);
}

static void test_kernel_fit(void **state)
{
	const struct plan_kernel_point two[] = {{2, 10}, {8, 12.5}}, one[] = {{4, 10}}, same[] = {{4, 10}, {4, 10}};
	const struct plan_kernel_point odd[] = {{2, 12.5}, {8, 10}}, steep[] = {{1, 1}, {2, 100}}, none[] = {{0, 1}},
				       still[] = {{1, 0}};
	struct plan_kernel k;

	assert_int_equal(plan_kernel_fit(two, 2, 2, &k), 0);
	assert_near(k.arrival_ns, 0.07333333);
	assert_near(k.once_ns, 0.05333333);
	assert_near(plan_kernel_ns(&k, 4), 0.08666667);
	/* One number of workers: an arrival reads a byte, and 2 of 4 workers' share are read and written once. */
	assert_int_equal(plan_kernel_fit(one, 1, 2, &k), 0);
	assert_near(k.arrival_ns, 0.06666667);
	assert_near(k.once_ns, 0.1333333);
	assert_near(plan_kernel_ns(&k, 4), 0.1);
	assert_int_equal(plan_kernel_fit(same, 2, 2, &k), 0);
	assert_near(plan_kernel_ns(&k, 4), 0.1);
	/* Faster with fewer workers is noise; an arrival that gives time back as well. */
	assert_int_equal(plan_kernel_fit(odd, 2, 2, &k), 0);
	assert_near(k.arrival_ns, 0.09);
	assert_true(k.once_ns == 0);
	assert_int_equal(plan_kernel_fit(steep, 2, 2, &k), 0);
	assert_true(fabs(k.arrival_ns) < 1e-12);
	assert_near(k.once_ns, 0.6733333);
	assert_int_equal(plan_kernel_fit(two, 0, 2, &k), -EINVAL);
	assert_int_equal(plan_kernel_fit(none, 1, 2, &k), -EINVAL);
	assert_int_equal(plan_kernel_fit(still, 1, 2, &k), -EINVAL);
}

/* Points as costs of round 1000, message 500, byte 0.2 (box) and 2000, key 50, 300, 0.05 (worker) make them, and a
 * kernel of 0.1. 1 GB: rounds and the one key vanish in it. */
static struct plan_cost_points known_points(void)
{
	const uint64_t large = 1000000000;

	return (struct plan_cost_points){
		.large = {4, large, 1, 32768, 0.1 + 0.2 + 500.0 / 32768, 0.05 + 300.0 / 32768},
		.fine = {4, large, 1, 4096, 0.1 + 0.2 + 500.0 / 4096, 0.05 + 300.0 / 4096},
		.keyed = {4, large, 1000001, 32768, 0.1 + 0.2 + 500.0 / 32768, 0.05 + 300.0 / 32768 + 50e6 / 1e9},
		.tiny = {4, 1000, 1, 32768, 0.1 + 0.2 + 0.5 + 1.0, 0.05 + 0.3 + 0.05 + 2.0},
	};
}

static void test_costs_fit(void **state)
{
	const struct plan_kernel kernel = {.arrival_ns = 0.08, .once_ns = 0.08};
	struct plan_cost_points p = known_points();
	struct plan_costs c;

	assert_int_equal(plan_costs_fit(&p, &kernel, &c), 0);
	assert_near(c.box.message_ns, 500);
	assert_near(c.box.byte_ns, 0.2);
	assert_near(c.box.round_ns, 1000);
	assert_true(c.box.key_ns == 0);
	assert_near(c.worker.message_ns, 300);
	assert_near(c.worker.key_ns, 50);
	assert_near(c.worker.byte_ns, 0.05);
	assert_near(c.worker.round_ns, 2000);
	/* And back: 1 MB, 3 keys, chunks of 250000. */
	assert_near(plan_side_ns(&c.worker, 1000000, 3, 4), 0.05 + (2000 + 150 + 1200) / 1e6);

	/* Small chunks that cost more than there is: bytes cost nothing, and the usual chunks are believed. */
	p.fine.worker_ns = 1;
	assert_int_equal(plan_costs_fit(&p, &kernel, &c), 0);
	assert_true(c.worker.byte_ns == 0);
	assert_near(c.worker.message_ns, p.large.worker_ns * 32768);
	/* Less than the sums alone: nothing is below 0. */
	p.large.box_ns = p.fine.box_ns = p.tiny.box_ns = 0.05;
	p.keyed.worker_ns = 0;
	assert_int_equal(plan_costs_fit(&p, &kernel, &c), 0);
	assert_true(c.box.byte_ns == 0 && c.box.message_ns == 0 && c.box.round_ns == 0 && c.worker.key_ns == 0);

	p = known_points();
	p.fine.chunk_bytes = p.large.chunk_bytes;
	assert_int_equal(plan_costs_fit(&p, &kernel, &c), -EINVAL);
	p = known_points();
	p.keyed.keys = 1;
	assert_int_equal(plan_costs_fit(&p, &kernel, &c), -EINVAL);
	p = known_points();
	p.tiny.bytes = 0;
	assert_int_equal(plan_costs_fit(&p, &kernel, &c), -EINVAL);
}

static void test_cores_limit(void **state)
{
	struct plan_input in = small_box();
	struct plan_result r;
	struct err e;

	assert_int_equal(plan_make(&in, &r, &e), 0);
	/* 4 MB at 0.2 ns on 2 cores; a worker's 1 MB at 0.05 ns, a quarter of which before the box begins. */
	assert_near(r.resources[PLAN_CORES].exchange_s, 400e-6);
	assert_near(r.resources[PLAN_WORKER_CPU].exchange_s, 50e-6);
	assert_int_equal(r.limit, PLAN_CORES);
	assert_int_equal(r.second, PLAN_WORKER_CPU);
	assert_int_equal(r.chunks, 4);
	assert_near(r.exchange_s, 412.5e-6);
	assert_near(r.worker_bytes_s, 1e6 / 412.5e-6);
	assert_false(r.resources[PLAN_BOX_LINKS].used || r.resources[PLAN_MEMORY].used || r.resources[PLAN_PCIE].used);
	assert_true(r.ring_s == 0 && r.iteration_best_s == 0);

	in.latency_s = 10e-6;
	in.compute_s = 1e-3;
	assert_int_equal(plan_make(&in, &r, &e), 0);
	assert_near(r.exchange_s, 422.5e-6);
	assert_near(r.iteration_best_s, 1e-3);
	assert_near(r.iteration_worst_s, 1422.5e-6);
	in.compute_s = 100e-6;
	assert_int_equal(plan_make(&in, &r, &e), 0);
	assert_near(r.iteration_best_s, 422.5e-6);
}

static void test_messages_rounds_and_keys(void **state)
{
	struct plan_input in = small_box();
	struct plan_result r;
	struct err e;

	in.keys = 10;
	in.costs.box = (struct plan_side){.round_ns = 1000, .key_ns = 1e9, .message_ns = 500, .byte_ns = 0.1};
	in.costs.worker = (struct plan_side){.round_ns = 2000, .key_ns = 50, .message_ns = 300, .byte_ns = 0.05};
	assert_int_equal(plan_make(&in, &r, &e), 0);
	/* The box knows no keys. 4 workers x (1000 + 4 x 500) ns = 12 us more, on 2 cores. */
	assert_near(r.resources[PLAN_CORES].exchange_s, 406e-6);
	assert_near(r.resources[PLAN_WORKER_CPU].exchange_s, 50e-6 + 2000e-9 + 500e-9 + 1200e-9);
	in.bytes = 1000001; /* a fifth chunk */
	assert_int_equal(plan_make(&in, &r, &e), 0);
	assert_int_equal(r.chunks, 5);
}

static void test_shared_cpus(void **state)
{
	struct plan_input in = small_box();
	struct plan_result r;
	struct err e;

	in.cpus_here = 2;
	assert_int_equal(plan_make(&in, &r, &e), 0);
	assert_near(r.resources[PLAN_SHARED_CPUS].exchange_s, 500e-6); /* 4 MB at 0.25 ns on 2 CPUs */
	assert_int_equal(r.limit, PLAN_SHARED_CPUS);
	assert_int_equal(r.second, PLAN_CORES);
	assert_near(r.exchange_s, 500e-6);
	in.transport = PLAN_TCP; /* over loopback */
	assert_int_equal(plan_make(&in, &r, &e), 0);
	assert_false(r.resources[PLAN_BOX_LINKS].used || r.resources[PLAN_WORKER_LINKS].used);
	assert_near(r.wire_efficiency, 1);
	assert_near(r.exchange_s, 500e-6);
	in.transport = PLAN_SHM;
	in.memory_bytes_s = 10e9;
	assert_int_equal(plan_make(&in, &r, &e), 0);
	assert_near(r.resources[PLAN_MEMORY].exchange_s, 600e-6); /* 4 MB x 1.5 at 10 GB/s */
	assert_int_equal(r.limit, PLAN_MEMORY);
}

/* A chunk belongs to one core and one NIC. */
static void test_fewer_chunks_than_units(void **state)
{
	struct plan_input in = small_tcp_box();
	const double e_wire = 1448.0 / 1538 * 250000 / 250064;
	struct plan_result r;
	struct err e;

	in.cores = in.nics = 3; /* 4 chunks: one has 2 */
	in.pcie_gen = 3;
	in.pcie_lanes = 8;
	assert_int_equal(plan_make(&in, &r, &e), 0);
	assert_near(r.resources[PLAN_CORES].exchange_s, 400e-6);
	assert_near(r.resources[PLAN_CORES].capacity, 2);
	assert_near(r.resources[PLAN_BOX_LINKS].exchange_s, 2e-3 / e_wire);
	assert_near(r.resources[PLAN_PCIE].exchange_s, 4e6 * 1.09375 / (2 * 7.8769231e9));
	in.cores = in.nics = 100;
	assert_int_equal(plan_make(&in, &r, &e), 0);
	assert_near(r.resources[PLAN_CORES].exchange_s, 200e-6);
	assert_near(r.resources[PLAN_BOX_LINKS].exchange_s, 1e-3 / e_wire);
	in.chunks = 1; /* whatever a full chunk has */
	assert_int_equal(plan_make(&in, &r, &e), 0);
	assert_near(r.resources[PLAN_CORES].exchange_s, 800e-6);
	assert_near(r.wire_efficiency, 1448.0 / 1538 * 1000000 / 1000064);
	in.chunks = 1000; /* of 1000 bytes: keys that fill no chunk */
	assert_int_equal(plan_make(&in, &r, &e), 0);
	assert_near(r.resources[PLAN_CORES].exchange_s, 8e-6);
	assert_near(r.wire_efficiency, 1448.0 / 1538 * 1000 / 1064);
	assert_int_equal(r.chunks, 1000);
}

static void test_links(void **state)
{
	struct plan_input in = small_tcp_box();
	const double e_wire = 1448.0 / 1538 * 250000 / 250064;
	struct plan_result r;
	struct err e;

	assert_int_equal(plan_make(&in, &r, &e), 0);
	assert_near(r.wire_efficiency, e_wire);
	assert_near(r.resources[PLAN_BOX_LINKS].exchange_s, 4e-3 / e_wire);
	assert_near(r.resources[PLAN_WORKER_LINKS].exchange_s, 1e-3 / e_wire);
	assert_int_equal(r.limit, PLAN_BOX_LINKS);
	assert_int_equal(r.second, PLAN_WORKER_LINKS);
	assert_near(r.ring_s, 1.5e-3 / e_wire);
	/* A chunk's way: the box's links once more, and the workers' with them, cores and worker once; 4 chunks. */
	assert_near(r.exchange_s, 4e-3 / e_wire + (4 * 1e-3 / e_wire + 450e-6) / 4);

	in.nics = 4;
	in.worker_link_bytes_s = 0.5e9;
	assert_int_equal(plan_make(&in, &r, &e), 0);
	assert_near(r.resources[PLAN_BOX_LINKS].exchange_s, 1e-3 / e_wire);
	assert_int_equal(r.limit, PLAN_WORKER_LINKS);
	in.workers = 1;
	assert_int_equal(plan_make(&in, &r, &e), 0);
	assert_true(r.ring_s == 0);
}

static void test_pcie_and_cache_lines(void **state)
{
	struct plan_input in = small_tcp_box();
	struct plan_result r;
	struct err e;

	in.nics = 10;
	in.pcie_gen = 3;
	in.pcie_lanes = 8;
	in.cache_lines_s = 1370e6;
	in.link_bytes_s = in.worker_link_bytes_s = 7e9;
	in.cores = 1000;
	in.workers = 8;
	in.bytes = 46760000;
	in.chunks = 2000; /* as many for each core, and each NIC */
	assert_int_equal(plan_make(&in, &r, &e), 0);
	assert_near(r.resources[PLAN_PCIE].exchange_s, 8 * 46.76e6 * 1.09375 / 78.769231e9);
	assert_near(r.resources[PLAN_CACHE_LINES].exchange_s, 8.5328467e-3);
	assert_int_equal(r.limit, PLAN_CACHE_LINES);
}

static void refused(const struct plan_input *in, const char *word)
{
	struct plan_result r, before;
	struct err e = {0};

	memset(&before, 0x5a, sizeof(before));
	memcpy(&r, &before, sizeof(r));
	assert_int_equal(plan_make(in, &r, &e), -EINVAL);
	if (!strstr(e.text, word))
		fail_msg("'%s' lacks '%s'", e.text, word);
	assert_memory_equal(&r, &before, sizeof(r));
}

#define REFUSED(field, value, word)                        \
	do {                                               \
		struct plan_input wrong = small_tcp_box(); \
		wrong.field = (value);                     \
		refused(&wrong, word);                     \
	} while (0)

static void test_what_cannot_be(void **state)
{
	REFUSED(workers, 0, "no workers");
	REFUSED(bytes, 0, "at least 1 byte");
	REFUSED(chunk_bytes, 0, "at least 1 byte");
	REFUSED(chunks, 1000001, "none can be empty");
	REFUSED(wire_bytes, 8, "2 and 4");
	REFUSED(wire_bytes, 0, "2 and 4");
	REFUSED(cores, 0, "no cores");
	REFUSED(nics, 0, "no NICs");
	REFUSED(link_bytes_s, 0, "above 0");
	REFUSED(link_bytes_s, -1, "above 0");
	REFUSED(link_bytes_s, (double)NAN, "above 0");
	REFUSED(worker_link_bytes_s, (double)INFINITY, "above 0");
	REFUSED(mtu, 40, "MTU of 40");
	REFUSED(pcie_gen, 7, "generation 7");
	REFUSED(pcie_gen, 3, "0 lanes");
	REFUSED(cache_lines_s, -1, "negative");
	REFUSED(memory_bytes_s, (double)NAN, "negative");
	REFUSED(latency_s, -1, "negative");
	REFUSED(compute_s, (double)INFINITY, "negative");
	REFUSED(kernel.arrival_ns, -1, "CPU costs");
	REFUSED(costs.worker.byte_ns, (double)NAN, "CPU costs");
	REFUSED(transport, (enum plan_transport)PLAN_TRANSPORT_COUNT, "transport");
}

static void test_extremes(void **state)
{
	struct plan_input in = small_tcp_box();
	struct plan_result r;
	struct err e;

	in.nics = 10000;
	in.link_bytes_s = in.worker_link_bytes_s = 1e18;
	in.workers = 100000;
	in.bytes = UINT64_C(1) << 44;
	in.keys = 1000000;
	in.chunks = 100000000;
	in.cores = 100000;
	in.memory_bytes_s = 1e18;
	assert_int_equal(plan_make(&in, &r, &e), 0);
	assert_true(isfinite(r.exchange_s) && r.exchange_s > 0);
	/* A worker's 17.6 TB at 0.05 ns; a core has 1 worker's at 0.2 ns. */
	assert_near(r.resources[PLAN_CORES].exchange_s, 17592186044416.0 * 0.2e-9);
	assert_int_equal(r.limit, PLAN_CORES);
	/* The least there can be. */
	in = small_box();
	in.workers = 1;
	in.bytes = 1;
	assert_int_equal(plan_make(&in, &r, &e), 0);
	assert_int_equal(r.chunks, 1);
	assert_near(r.exchange_s, 0.2e-9 + 0.05e-9); /* one after the other, on one core */
	in.costs = (struct plan_costs){.box = {.byte_ns = 0}};
	assert_int_equal(plan_make(&in, &r, &e), 0);
	assert_int_equal(r.second, -1);
}

/* Every copy that stands for what memory allows reads what it says, and writes what it says. */
static void test_copies_write(void **state)
{
	const size_t array_bytes = 64 << 10;
	unsigned char *base = aligned_alloc(4096, (PLAN_COPY_SOURCES + 1) * array_bytes);
	const struct roofline_copy *copy;

	assert_non_null(base);
	for (unsigned i = 0; (copy = roofline_at(i)); i++) {
		unsigned char *out = base + PLAN_COPY_SOURCES * array_bytes;

		for (size_t at = 0; at < PLAN_COPY_SOURCES * array_bytes; at++)
			base[at] = (unsigned char)(1u << at / array_bytes);
		memset(out, 0xff, array_bytes);
		assert_int_equal(plan_measure_copy(copy, base, array_bytes), array_bytes * (copy->streamed ? 5 : 6));
		for (size_t at = 0; at < array_bytes; at++)
			if (out[at] != 0x0f) /* a bit of each source */
				fail_msg("%s: byte %zu is %#x", copy->name, at, out[at]);
	}
	free(base);
}

static void test_names_and_formulae(void **state)
{
	struct plan_costs costs;

	for (int i = 0; i < PLAN_RESOURCE_COUNT; i++) {
		const char *name = plan_resource_name((enum plan_resource_kind)i);
		const struct plan_formula *f = plan_formulae;

		/* What is printed has a line that says how it comes about. */
		while (f->symbol && strcmp(f->symbol, name) != 0)
			f++;
		assert_non_null(f->symbol);
		assert_non_null(plan_resource_remedy((enum plan_resource_kind)i));
	}
	assert_string_equal(plan_transport_name(PLAN_DPDK), "dpdk");
	assert_true(plan_costs_default(PLAN_SHM, &costs));
	assert_true(plan_costs_default(PLAN_TCP, &costs));
	assert_true(costs.box.byte_ns > 0);
	assert_false(plan_costs_default(PLAN_VERBS, &costs));
	assert_true(costs.box.byte_ns == 0 && costs.worker.byte_ns == 0);
}

TEST_PROGRAM(test_plan)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wire_efficiency),
		cmocka_unit_test(test_wire_of_datagrams),
		cmocka_unit_test(test_pcie),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_results_past_caches),
		cmocka_unit_test(test_kernel_fit),
		cmocka_unit_test(test_costs_fit),
		cmocka_unit_test(test_cores_limit),
		cmocka_unit_test(test_messages_rounds_and_keys),
		cmocka_unit_test(test_shared_cpus),
		cmocka_unit_test(test_fewer_chunks_than_units),
		cmocka_unit_test(test_links),
		cmocka_unit_test(test_pcie_and_cache_lines),
		cmocka_unit_test(test_what_cannot_be),
		cmocka_unit_test(test_extremes),
		cmocka_unit_test(test_copies_write),
		cmocka_unit_test(test_names_and_formulae),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
