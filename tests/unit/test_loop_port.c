/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Datagrams on the network in memory: each of them arrives, or is lost, doubled, reordered or damaged as the plan says
 * and as is counted; bounds, partitions and deaths.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"
#include "transport/loop.h"

enum { BATCH = 8, BYTES = 100 };

static struct loop_net *net;
static struct loop_port *one, *other;

static void begin(const struct loop_plan *plan)
{
	net = loop_net_create(plan);
	assert_non_null(net);
	assert_int_equal(loop_port_bind(loop_net_host(net, 0), 0, &one), 0);
	assert_int_equal(loop_port_bind(loop_net_host(net, 1), 7, &other), 0);
	assert_int_equal(loop_port_number(other), 7);
}

static void end(void)
{
	loop_port_close(one);
	loop_port_close(other);
	loop_net_destroy(net);
}

/* Its number, and then what follows from that. */
static void post(uint32_t number)
{
	uint8_t rest[BYTES - 4];

	memset(rest, (int)(number % 251), sizeof(rest));
	loop_port_send(one, 1, 7, &number, 4, rest, sizeof(rest));
}

static uint32_t number_of(const struct loop_datagram *in)
{
	uint32_t number;

	assert_int_equal(in->length, BYTES);
	memcpy(&number, in->bytes, 4);
	for (unsigned i = 4; i < BYTES; i++)
		assert_int_equal(in->bytes[i], number % 251);
	return number;
}

/* All that come until nothing more does; how many, and those out of order. */
static unsigned drain(unsigned *earlier)
{
	struct loop_datagram in[BATCH];
	uint32_t last = 0;
	unsigned total = 0, count;

	*earlier = 0;
	do {
		while ((count = loop_port_receive(other, in, BATCH)) > 0) {
			for (unsigned i = 0; i < count; i++) {
				uint32_t number = number_of(&in[i]);

				*earlier += number < last;
				last = number > last ? number : last;
			}
			total += count;
		}
	} while (loop_net_step(net));
	return total;
}

static void datagrams_arrive_whole_and_say_from_where(void **state)
{
	const struct loop_plan plan = {.seed = 1, .delay_min_ns = 10, .delay_max_ns = 20, .poison = true};
	struct loop_datagram in[BATCH];

	begin(&plan);
	loop_port_send(one, 1, 7, "head", 4, " and rest", 9);
	loop_port_send(one, 1, 7, NULL, 0, NULL, 0);
	assert_int_equal(loop_port_receive(other, in, BATCH), 0);
	loop_net_advance(net, 20);
	assert_int_equal(loop_port_receive(other, in, 1), 1);
	assert_int_equal(in[0].length, 13);
	assert_memory_equal(in[0].bytes, "head and rest", 13);
	assert_int_equal(in[0].endpoint, 0);
	assert_int_equal(in[0].port, loop_port_number(one));
	assert_int_equal(loop_port_receive(other, in, BATCH), 1);
	assert_int_equal(in[0].length, 0);
	/* Back, to the port it came from. */
	loop_port_send(other, in[0].endpoint, in[0].port, "back", 4, NULL, 0);
	loop_net_advance(net, 40);
	assert_int_equal(loop_port_receive(one, in, BATCH), 1);
	assert_int_equal(in[0].port, 7);
	assert_int_equal(loop_net_stats(net)->delivered, 3);
	end();
}

static void ports_are_taken_once(void **state)
{
	const struct loop_plan plan = {.seed = 2};
	struct loop_port *again;

	begin(&plan);
	assert_int_equal(loop_port_bind(loop_net_host(net, 1), 7, &again), -EADDRINUSE);
	assert_int_equal(loop_port_bind(loop_net_host(net, 2), 7, &again), 0);
	loop_port_close(again);
	loop_net_kill(net, 2);
	assert_int_equal(loop_port_bind(loop_net_host(net, 2), 7, &again), -ENETDOWN);
	loop_net_revive(net, 2);
	assert_int_equal(loop_port_bind(loop_net_host(net, 2), 7, &again), 0);
	loop_port_close(again);
	end();
}

static void what_goes_wrong_is_counted(void **state)
{
	const struct loop_plan plan = {.seed = 3,
		.delay_min_ns = 10,
		.delay_max_ns = 1000,
		.lossy = true,
		.drop = 0.2,
		.duplicate = 0.1,
		.reorder = 0.1,
		.poison = true};
	const struct loop_stats *stats;
	unsigned got, earlier;

	begin(&plan);
	for (uint32_t i = 1; i <= 10000; i++)
		post(i);
	got = drain(&earlier);
	stats = loop_net_stats(net);
	assert_int_equal(stats->sent, 10000);
	assert_int_equal(stats->delivered, got);
	assert_int_equal(got, 10000 + stats->duplicated - stats->dropped);
	assert_in_range(stats->dropped, 2000, 2400); /* a fifth, of the doubles too */
	assert_in_range(stats->duplicated, 900, 1100);
	assert_true(earlier > 500 && stats->reordered > 500);
	end();
}

static void damage_is_one_bit(void **state)
{
	const struct loop_plan plan = {.seed = 4, .corrupt = 0.5};
	unsigned damaged = 0, places = 0, total = 0, count;
	struct loop_datagram in[BATCH];
	bool seen[BYTES] = {false};

	begin(&plan);
	for (unsigned i = 0; i < 4000; i++) {
		static const uint8_t zeros[BYTES];

		loop_port_send(one, 1, 7, zeros, 40, zeros + 40, BYTES - 40);
	}
	loop_net_advance(net, 1);
	while ((count = loop_port_receive(other, in, BATCH)) > 0) {
		total += count;
		for (unsigned i = 0; i < count; i++) {
			unsigned bits = 0;

			for (unsigned b = 0; b < BYTES; b++) {
				bits += (unsigned)__builtin_popcount(in[i].bytes[b]);
				places += in[i].bytes[b] && !seen[b];
				seen[b] |= in[i].bytes[b] != 0;
			}
			assert_true(bits <= 1);
			damaged += bits;
		}
	}
	assert_int_equal(total, 4000);
	assert_int_equal(damaged, loop_net_stats(net)->corrupted);
	assert_in_range(damaged, 1800, 2200);
	assert_int_equal(places, BYTES);
	end();
}

static void bounds_lose_and_nobody_waits(void **state)
{
	const struct loop_plan plan = {.seed = 5, .pipe_bytes_max = 10 * BYTES, .path_max = BYTES};
	unsigned earlier;

	begin(&plan);
	for (uint32_t i = 1; i <= 25; i++)
		post(i);
	loop_net_advance(net, 1);
	assert_int_equal(loop_net_stats(net)->overflowed, 15);
	assert_int_equal(drain(&earlier), 10);
	post(26);                                        /* there is room again */
	loop_port_send(one, 1, 7, "x", 1, &plan, BYTES); /* too large for the path */
	loop_port_send(one, 1, 8, "x", 1, NULL, 0);      /* nobody's */
	assert_int_equal(drain(&earlier), 1);
	assert_int_equal(loop_net_stats(net)->dropped, 2);
	end();
}

static void partitions_lose_them_and_the_dead_are_silent(void **state)
{
	const struct loop_plan plan = {.seed = 6, .delay_min_ns = 10, .delay_max_ns = 10};
	unsigned earlier;

	begin(&plan);
	post(1);
	loop_net_partition(net, 0, 1, true);
	post(2);
	assert_int_equal(drain(&earlier), 0);
	loop_net_partition(net, 0, 1, false);
	assert_int_equal(drain(&earlier), 0);
	post(3);
	loop_net_kill(net, 0);
	post(4);
	assert_int_equal(drain(&earlier), 1); /* what was on the way arrives */
	loop_net_revive(net, 0);
	post(5); /* the port is the dead one's */
	assert_int_equal(drain(&earlier), 0);
	loop_net_kill(net, 1);
	loop_port_close(one);
	assert_int_equal(loop_port_bind(loop_net_host(net, 0), 0, &one), 0);
	post(6);
	assert_int_equal(drain(&earlier), 0);
	end();
}

static void count_wake(void *user)
{
	++*(unsigned *)user;
}

static void a_port_wakes_its_owner(void **state)
{
	const struct loop_plan plan = {.seed = 7};
	unsigned woken = 0;

	begin(&plan);
	loop_port_wake(one, 50, count_wake, &woken);
	loop_port_wake(one, 70, count_wake, &woken);
	loop_port_wake(other, 80, count_wake, &woken);
	assert_int_equal(loop_net_next(net), 50);
	loop_net_advance(net, 49);
	assert_int_equal(woken, 0);
	loop_net_advance(net, 60);
	assert_int_equal(woken, 1);
	loop_net_kill(net, 1);
	loop_net_advance(net, 100);
	assert_int_equal(woken, 2);
	loop_port_wake(one, 150, count_wake, &woken);
	loop_port_close(one);
	loop_net_advance(net, 200);
	assert_int_equal(woken, 2);
	loop_port_close(other);
	loop_net_destroy(net);
}

TEST_PROGRAM(test_loop_port)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(datagrams_arrive_whole_and_say_from_where),
		cmocka_unit_test(ports_are_taken_once),
		cmocka_unit_test(what_goes_wrong_is_counted),
		cmocka_unit_test(damage_is_one_bit),
		cmocka_unit_test(bounds_lose_and_nobody_waits),
		cmocka_unit_test(partitions_lose_them_and_the_dead_are_silent),
		cmocka_unit_test(a_port_wakes_its_owner),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
