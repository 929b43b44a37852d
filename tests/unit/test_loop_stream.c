/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The streams of the network in memory: bytes in order however they are cut, dialling and accepting,
 * bounds, partitions, deaths and distances.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "tests/unit/cmocka_shim.h"
#include "transport/loop.h"

static void pump(struct loop_net *net, struct stream *from, struct stream *to, const uint8_t *data, size_t bytes)
{
	size_t sent = 0, got = 0;
	uint8_t part[4096];

	while (got < bytes) {
		ssize_t n = sent < bytes ? from->ops->write(from, data + sent, bytes - sent) : 0;

		if (n > 0)
			sent += (size_t)n;
		else
			assert_true(n == 0 || n == -EAGAIN);
		loop_net_step(net);
		n = to->ops->read(to, part, sizeof(part));
		if (n == -EAGAIN)
			continue;
		assert_true(n > 0 && (size_t)n <= bytes - got);
		assert_memory_equal(part, data + got, (size_t)n);
		got += (size_t)n;
	}
}

/* Of what is written one bit may turn over; a stream may break, which both ends see behind what came before. */
static void streams_go_wrong_as_planned(void **state)
{
	const struct loop_plan plan = {.seed = 5, .stream_corrupt = 1, .stream_late = 1, .stream_late_ns = 1000};
	struct loop_net *net = loop_net_create(&plan);
	uint8_t sent[64] = {0}, got[64];
	unsigned bits = 0;
	struct stream *a, *b;

	assert_int_equal(loop_stream_pair(loop_net_host(net, 0), loop_net_host(net, 1), &a, &b), 0);
	assert_int_equal(a->ops->write(a, sent, sizeof(sent)), sizeof(sent));
	loop_net_partition_streams(net, 1, 0, true);
	loop_net_advance(net, 5000);
	assert_int_equal(b->ops->read(b, got, sizeof(got)), -EAGAIN);
	loop_net_partition_streams(net, 1, 0, false);
	loop_net_advance(net, 6000);
	assert_int_equal(b->ops->read(b, got, sizeof(got)), sizeof(got));
	for (unsigned i = 0; i < sizeof(got); i++)
		bits += (unsigned)__builtin_popcount(got[i]);
	assert_int_equal(bits, 1);
	a->ops->close(a);
	b->ops->close(b);
	loop_net_destroy(net);
}

static void streams_break_as_planned(void **state)
{
	const struct loop_plan plan = {.seed = 5, .stream_break = 1};
	struct loop_net *net = loop_net_create(&plan);
	struct stream *a, *b;
	uint8_t byte = 7;

	assert_int_equal(loop_stream_pair(loop_net_host(net, 0), loop_net_host(net, 1), &a, &b), 0);
	assert_int_equal(a->ops->write(a, &byte, 1), 1);
	assert_int_equal(a->ops->write(a, &byte, 1), 1);
	loop_net_advance(net, 1000);
	assert_int_equal(b->ops->read(b, &byte, 1), 1);
	assert_int_equal(b->ops->read(b, &byte, 1), -ECONNRESET);
	assert_int_equal(a->ops->read(a, &byte, 1), -ECONNRESET);
	assert_int_equal(a->ops->write(a, &byte, 1), -EPIPE);
	a->ops->close(a);
	b->ops->close(b);
	loop_net_destroy(net);
}

static void streams_carry_bytes_in_order_however_they_are_cut(void **state)
{
	const struct loop_plan plan = {.seed = 13, .split = 0.9, .delay_min_ns = 1, .delay_max_ns = 100};
	struct loop_net *net = loop_net_create(&plan);
	struct stream *a, *b;
	uint8_t data[20000], byte;
	unsigned i;

	for (i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 31 + i / 256);
	assert_int_equal(loop_stream_pair(loop_net_host(net, 0), loop_net_host(net, 1), &a, &b), 0);
	assert_int_equal(a->ops->fd(a), -1);
	assert_string_equal(a->peer, "loop:1");
	pump(net, a, b, data, sizeof(data));
	pump(net, b, a, data, sizeof(data));
	a->ops->close(a);
	assert_int_equal(b->ops->read(b, &byte, 1), -EAGAIN);
	while (loop_net_step(net))
		;
	assert_int_equal(b->ops->read(b, &byte, 1), 0);
	assert_int_equal(b->ops->write(b, &byte, 1), -EPIPE);
	b->ops->close(b);
	loop_net_destroy(net);
}

static void streams_dial_listen_accept(void **state)
{
	const struct loop_plan plan = {.seed = 14, .delay_min_ns = 10, .delay_max_ns = 10};
	struct loop_net *net = loop_net_create(&plan);
	struct loop_host *box = loop_net_host(net, 0), *worker = loop_net_host(net, 1);
	struct loop_listener *l, *again;
	struct stream *near, *far, *refused;
	uint8_t byte = 1;

	worker->uid = 1234;
	box->remote = true;
	assert_int_equal(loop_stream_listen(box, 7077, &l), 0);
	assert_int_equal(loop_listener_port(l), 7077);
	assert_int_equal(loop_stream_listen(box, 7077, &again), -EADDRINUSE);
	assert_int_equal(loop_stream_dial(worker, 0, 7077, &near), 0);
	assert_int_equal(loop_stream_dial(worker, 0, 7078, &refused), 0);
	assert_int_equal(near->ops->write(near, &byte, 1), -EAGAIN);
	assert_int_equal(loop_stream_accept(l, &far), -EAGAIN);
	loop_net_advance(net, 10);
	assert_int_equal(loop_stream_accept(l, &far), 0);
	assert_int_equal(far->peer_uid, 1234);
	assert_int_equal(far->peer_is_local, 1);
	assert_int_equal(near->peer_uid, -1);
	assert_int_equal(near->peer_is_local, 0);
	assert_int_equal(near->ops->write(near, &byte, 1), -EAGAIN);
	assert_int_equal(near->ops->read(near, &byte, 1), -EAGAIN);
	loop_net_advance(net, 20);
	assert_int_equal(refused->ops->read(refused, &byte, 1), -ECONNREFUSED);
	pump(net, near, far, &byte, 1);
	refused->ops->close(refused);
	near->ops->close(near);
	far->ops->close(far);
	loop_stream_unlisten(l);
	loop_net_destroy(net);
}

static void streams_are_bounded_and_stall_in_partitions(void **state)
{
	const struct loop_plan plan = {.seed = 15};
	struct loop_net *net = loop_net_create(&plan);
	uint8_t *data = calloc(1, 2 * LOOP_STREAM_BYTES);
	struct stream *a, *b;

	assert_int_equal(loop_stream_pair(loop_net_host(net, 0), loop_net_host(net, 1), &a, &b), 0);
	loop_net_partition(net, 0, 1, true);
	assert_int_equal(a->ops->write(a, data, 2 * LOOP_STREAM_BYTES), LOOP_STREAM_BYTES);
	assert_int_equal(a->ops->write(a, data, 1), -EAGAIN);
	while (loop_net_step(net))
		;
	assert_int_equal(b->ops->read(b, data, 10), -EAGAIN);
	loop_net_partition(net, 0, 1, false);
	while (loop_net_step(net))
		;
	assert_int_equal(b->ops->read(b, data, 2 * LOOP_STREAM_BYTES), LOOP_STREAM_BYTES);
	assert_int_equal(a->ops->write(a, data, 1), 1);
	a->ops->close(a);
	b->ops->close(b);
	free(data);
	loop_net_destroy(net);
}

static void a_death_resets_streams_and_listeners(void **state)
{
	const struct loop_plan plan = {.seed = 16, .delay_min_ns = 1, .delay_max_ns = 9};
	struct loop_net *net = loop_net_create(&plan);
	struct loop_host *box = loop_net_host(net, 0), *worker = loop_net_host(net, 1);
	struct loop_listener *l, *fresh;
	struct stream *near, *far, *late;
	uint8_t byte = 5;

	assert_int_equal(loop_stream_listen(box, 0, &l), 0);
	assert_int_equal(loop_stream_pair(worker, box, &near, &far), 0);
	assert_int_equal(far->ops->write(far, &byte, 1), 1);
	loop_net_kill(net, 0);
	loop_net_kill(net, 0);
	assert_false(box->up);
	assert_int_equal(box->life, 1);
	assert_int_equal(loop_stream_dial(box, 1, 1, &late), -ENETDOWN);
	assert_int_equal(loop_stream_accept(l, &late), -ENETDOWN);
	assert_int_equal(loop_stream_dial(worker, 0, loop_listener_port(l), &late), 0);
	while (loop_net_step(net))
		;
	assert_int_equal(near->ops->read(near, &byte, 1), 1);
	assert_int_equal(near->ops->read(near, &byte, 1), -ECONNRESET);
	assert_int_equal(late->ops->read(late, &byte, 1), -ECONNREFUSED);
	assert_int_equal(far->ops->read(far, &byte, 1), -ENETDOWN);
	assert_int_equal(far->ops->write(far, &byte, 1), -ENETDOWN);
	loop_net_revive(net, 0);
	assert_int_equal(loop_stream_listen(box, loop_listener_port(l), &fresh), 0);
	loop_stream_unlisten(fresh);
	loop_stream_unlisten(l);
	near->ops->close(near);
	far->ops->close(far);
	late->ops->close(late);
	loop_net_destroy(net);
}

static void callers_not_accepted_are_reset(void **state)
{
	const struct loop_plan plan = {.seed = 17};
	struct loop_net *net = loop_net_create(&plan);
	struct loop_listener *l;
	struct stream *near;
	uint8_t byte = 5;

	assert_int_equal(loop_stream_listen(loop_net_host(net, 0), 1, &l), 0);
	assert_int_equal(loop_stream_dial(loop_net_host(net, 1), 0, 1, &near), 0);
	while (loop_net_step(net))
		;
	assert_int_equal(near->ops->write(near, &byte, 1), 1);
	loop_stream_unlisten(l);
	while (loop_net_step(net))
		;
	assert_int_equal(near->ops->read(near, &byte, 1), -ECONNRESET);
	near->ops->close(near);
	loop_net_destroy(net);
}

static void hosts_can_be_far_from_each_other(void **state)
{
	const struct loop_plan plan = {.seed = 18};
	struct loop_net *net = loop_net_create(&plan);
	struct stream *a, *b;
	uint8_t byte = 5;

	loop_net_delay(net, 2, 1, 5000, 6000);
	assert_int_equal(loop_stream_pair(loop_net_host(net, 1), loop_net_host(net, 2), &a, &b), 0);
	assert_int_equal(loop_net_next(net), UINT64_MAX);
	assert_int_equal(a->ops->write(a, &byte, 1), 1);
	assert_in_range(loop_net_next(net), 5000, 6000);
	loop_net_advance(net, 4999);
	assert_int_equal(b->ops->read(b, &byte, 1), -EAGAIN);
	loop_net_advance(net, 6000);
	assert_int_equal(b->ops->read(b, &byte, 1), 1);
	a->ops->close(a);
	b->ops->close(b);
	loop_net_destroy(net);
}

TEST_PROGRAM(test_loop_stream)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(streams_go_wrong_as_planned),
		cmocka_unit_test(streams_break_as_planned),
		cmocka_unit_test(streams_carry_bytes_in_order_however_they_are_cut),
		cmocka_unit_test(streams_dial_listen_accept),
		cmocka_unit_test(streams_are_bounded_and_stall_in_partitions),
		cmocka_unit_test(a_death_resets_streams_and_listeners),
		cmocka_unit_test(callers_not_accepted_are_reset),
		cmocka_unit_test(hosts_can_be_far_from_each_other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
