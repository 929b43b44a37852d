/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network in memory: what the plan of faults does to messages, that a seed decides
 * everything, and that a payload rewritten before SENT is found out. What every transport has to do
 * is in tests/suite/test_transport.c; streams are in test_loop_stream.c.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/err.h"
#include "tests/unit/cmocka_shim.h"
#include "transport/loop.h"
#include "transport/transport.h"

enum { WORLD_CHUNKS = 8, WORLD_BYTES = 256, WORLD_EVENTS = 64 };

static const uint8_t KEY[PROOF_KEY] = {7, 1, 4};

/* A box on host 0 and a worker on host 1, one connection, one queue each. */
struct world {
	struct loop_net *net;
	struct transport *box_transport, *worker_transport;
	struct queue *box_queue, *worker_queue;
	struct conn *box, *worker;
	struct span spans[WORLD_CHUNKS];
	struct sink sinks[WORLD_CHUNKS];
	struct conn_spec box_spec, worker_spec;
	uint8_t gradient[WORLD_CHUNKS][WORLD_BYTES];
	uint8_t results[WORLD_CHUNKS][WORLD_BYTES];
};

static struct transport *world_open(struct loop_net *net, unsigned endpoint)
{
	struct transport_config config = {.queue_conns_max = 4, .loop = loop_net_host(net, endpoint)};
	struct transport *t = NULL;
	struct err e = {0};

	assert_int_equal(transport_loop.open(&config, &t, &e), 0);
	return t;
}

static void world_join(struct world *w)
{
	char address[LOOP_ADDRESS_BYTES];
	struct err e = {0};
	struct hello hello;
	int admitted = 0;

	assert_int_equal(transport_loop.listen(w->box_transport, "", address, sizeof(address), &e), 0);
	assert_int_equal(transport_loop.connect(w->worker_transport, address, 9, 0, KEY, NULL, &w->worker, &e), 0);
	while (transport_loop.established(w->worker_transport, w->worker, &e) == -EAGAIN) {
		if (transport_loop.accept(w->box_transport, loop_net_now(w->net), &hello) == 0) {
			w->box = hello.conn;
			assert_int_equal(transport_loop.admit(w->box_transport, w->box, &w->box_spec, &e), 0);
			admitted++;
		}
		loop_net_step(w->net);
	}
	assert_int_equal(admitted, 1);
	assert_int_equal(w->box_queue->ops->adopt(w->box_queue, w->box, &w->box_spec), 0);
	assert_int_equal(w->worker_queue->ops->adopt(w->worker_queue, w->worker, &w->worker_spec), 0);
}

static struct world *world_create_on(struct loop_net *net)
{
	struct world *w = calloc(1, sizeof(*w));
	struct err e = {0};
	unsigned i;

	assert_non_null(w);
	w->net = net;
	for (i = 0; i < WORLD_CHUNKS; i++) {
		w->spans[i] = (struct span){i * WORLD_BYTES, WORLD_BYTES};
		w->sinks[i] = (struct sink){w->results[i], WORLD_BYTES};
	}
	w->box_spec = (struct conn_spec){
		.chunk_count = WORLD_CHUNKS, .spans = w->spans, .payload_max = WORLD_BYTES, .window = 64};
	w->worker_spec = w->box_spec;
	w->worker_spec.sinks = w->sinks;
	w->box_transport = world_open(w->net, 0);
	w->worker_transport = world_open(w->net, 1);
	assert_int_equal(transport_loop.queue_create(w->box_transport, MEM_NODE_ANY, &w->box_queue, &e), 0);
	assert_int_equal(transport_loop.queue_create(w->worker_transport, MEM_NODE_ANY, &w->worker_queue, &e), 0);
	world_join(w);
	return w;
}

static struct world *world_create(const struct loop_plan *plan)
{
	struct loop_net *net = loop_net_create(plan);

	assert_non_null(net);
	return world_create_on(net);
}

static void world_destroy(struct world *w)
{
	if (w->box)
		w->box_queue->ops->drop(w->box_queue, w->box);
	if (w->worker)
		w->worker_queue->ops->drop(w->worker_queue, w->worker);
	transport_loop.queue_destroy(w->box_transport, w->box_queue);
	transport_loop.queue_destroy(w->worker_transport, w->worker_queue);
	transport_loop.close(w->box_transport);
	transport_loop.close(w->worker_transport);
	loop_net_destroy(w->net);
	free(w);
}

static int world_push(struct world *w, unsigned chunk, uint64_t round, void *cookie)
{
	struct wire_header h = {
		.type = WIRE_PUSH, .length = WORLD_BYTES, .chunk = chunk, .round = round, .rank = 1, .count = 1};

	return w->worker_queue->ops->send(w->worker_queue, w->worker, &h, w->gradient[chunk], cookie);
}

static int world_answer(struct world *w, unsigned chunk, uint64_t round, const void *result)
{
	struct wire_header h = {
		.type = WIRE_RESULT, .length = WORLD_BYTES, .chunk = chunk, .round = round, .rank = 1, .count = 1};

	return w->box_queue->ops->send(w->box_queue, w->box, &h, result, NULL);
}

static unsigned world_poll(struct world *w, struct queue *q, struct event *events)
{
	return q->ops->poll(q, loop_net_now(w->net), events, WORLD_EVENTS);
}

/* Runs to the end, without anybody polling. */
static void world_settle(struct world *w)
{
	while (loop_net_step(w->net))
		;
}

static void fill(uint8_t *at, uint8_t value)
{
	memset(at, value, WORLD_BYTES);
}

static int all(const uint8_t *at, uint8_t value)
{
	unsigned i;

	for (i = 0; i < WORLD_BYTES; i++) {
		if (at[i] != value)
			return 0;
	}
	return 1;
}

/* ---- the plan ---- */

static void drop_of_one_loses_all(void **state)
{
	const struct loop_plan plan = {.seed = 1, .lossy = true, .drop = 1.0};
	struct world *w = world_create(&plan);
	struct event events[WORLD_EVENTS];
	int cookie;

	assert_true(w->worker_queue->lossy);
	assert_int_equal(world_push(w, 0, 1, &cookie), 0);
	w->worker_queue->ops->flush(w->worker_queue);
	world_settle(w);
	assert_int_equal(world_poll(w, w->box_queue, events), 0);
	assert_int_equal(world_poll(w, w->worker_queue, events), 1);
	assert_int_equal(events[0].type, EVENT_SENT);
	assert_int_equal(loop_net_stats(w->net)->dropped, 1);
	world_destroy(w);
}

static void probabilities_spare_pairs_that_are_not_lossy(void **state)
{
	const struct loop_plan plan = {.seed = 1, .drop = 1.0, .duplicate = 1.0, .reorder = 1.0};
	struct world *w = world_create(&plan);
	struct event events[WORLD_EVENTS];
	unsigned i;

	assert_false(w->worker_queue->lossy);
	for (i = 0; i < WORLD_CHUNKS; i++)
		assert_int_equal(world_push(w, i, 1, NULL), 0);
	w->worker_queue->ops->flush(w->worker_queue);
	assert_int_equal(world_poll(w, w->box_queue, events), WORLD_CHUNKS);
	for (i = 0; i < WORLD_CHUNKS; i++)
		assert_int_equal(events[i].header.chunk, i);
	world_destroy(w);
}

static void a_single_pair_can_be_lossy(void **state)
{
	const struct loop_plan plan = {.seed = 1, .drop = 1.0};
	struct loop_net *net = loop_net_create(&plan);
	struct event events[WORLD_EVENTS];
	struct world *w;

	loop_net_lossy(net, 1, 0, true);
	w = world_create_on(net);
	assert_true(w->box_queue->lossy);
	assert_true(w->worker_queue->lossy);
	assert_int_equal(world_push(w, 0, 1, NULL), 0);
	w->worker_queue->ops->flush(w->worker_queue);
	world_settle(w);
	assert_int_equal(world_poll(w, w->box_queue, events), 0);
	world_destroy(w);
}

static void duplicates_come_twice_with_equal_bytes(void **state)
{
	const struct loop_plan plan = {.seed = 2, .lossy = true, .duplicate = 1.0, .delay_max_ns = 100};
	struct world *w = world_create(&plan);
	struct event events[WORLD_EVENTS];

	fill(w->gradient[3], 9);
	assert_int_equal(world_push(w, 3, 1, NULL), 0);
	w->worker_queue->ops->flush(w->worker_queue);
	world_settle(w);
	assert_int_equal(world_poll(w, w->box_queue, events), 2);
	assert_int_equal(events[0].header.chunk, 3);
	assert_int_equal(events[1].header.chunk, 3);
	assert_true(all(events[0].payload, 9) && all(events[1].payload, 9));
	world_destroy(w);
}

static void reordered_messages_change_places(void **state)
{
	const struct loop_plan plan = {.seed = 3, .lossy = true, .reorder = 0.5, .delay_max_ns = 10};
	struct world *w = world_create(&plan);
	struct event events[WORLD_EVENTS];
	unsigned i, seen = 0, inversions = 0;

	for (i = 0; i < WORLD_CHUNKS; i++)
		assert_int_equal(world_push(w, i, 1, NULL), 0);
	w->worker_queue->ops->flush(w->worker_queue);
	world_settle(w);
	assert_int_equal(world_poll(w, w->box_queue, events), WORLD_CHUNKS);
	for (i = 0; i < WORLD_CHUNKS; i++) {
		seen |= 1u << events[i].header.chunk;
		inversions += i > 0 && events[i].header.chunk < events[i - 1].header.chunk;
	}
	assert_int_equal(seen, (1u << WORLD_CHUNKS) - 1);
	assert_true(inversions > 0);
	world_destroy(w);
}

static void a_full_pipe_makes_senders_wait(void **state)
{
	const struct loop_plan plan = {.seed = 4, .pipe_bytes_max = 2 * (WORLD_BYTES + WIRE_HEADER_BYTES)};
	struct world *w = world_create(&plan);
	struct event events[WORLD_EVENTS];
	unsigned i, got = 0;

	for (i = 0; i < WORLD_CHUNKS; i++)
		assert_int_equal(world_push(w, i, 1, &w->sinks[i]), 0);
	w->worker_queue->ops->flush(w->worker_queue);
	world_settle(w);
	assert_int_equal(world_poll(w, w->worker_queue, events), 2);
	while ((i = world_poll(w, w->box_queue, events)) > 0) {
		assert_true(i <= 2);
		got += i;
	}
	assert_int_equal(got, WORLD_CHUNKS);
	world_destroy(w);
}

static void a_full_lossy_pipe_loses(void **state)
{
	const struct loop_plan plan = {
		.seed = 4, .lossy = true, .pipe_bytes_max = 2 * (WORLD_BYTES + WIRE_HEADER_BYTES)};
	struct world *w = world_create(&plan);
	struct event events[WORLD_EVENTS];
	unsigned i;

	for (i = 0; i < WORLD_CHUNKS; i++)
		assert_int_equal(world_push(w, i, 1, NULL), 0);
	w->worker_queue->ops->flush(w->worker_queue);
	assert_int_equal(world_poll(w, w->box_queue, events), 2);
	assert_int_equal(loop_net_stats(w->net)->overflowed, WORLD_CHUNKS - 2);
	world_destroy(w);
}

static void a_broken_header_ends_the_connection(void **state)
{
	/* Whichever bit is turned over: the message comes changed, or the connection ends. */
	struct loop_plan plan = {.corrupt = 1.0};
	unsigned closed = 0;

	for (plan.seed = 0; plan.seed < 64; plan.seed++) {
		struct world *w = world_create(&plan);
		struct event events[WORLD_EVENTS];

		assert_int_equal(world_push(w, 0, 1, NULL), 0);
		assert_int_equal(world_push(w, 0, 1, NULL), 0);
		w->worker_queue->ops->flush(w->worker_queue);
		assert_true(world_poll(w, w->box_queue, events) >= 1);
		if (events[0].type == EVENT_CLOSED) {
			assert_true(events[0].error < 0);
			assert_int_equal(world_poll(w, w->box_queue, events), 0);
			closed++;
		}
		world_destroy(w);
	}
	assert_true(closed > 0 && closed < 64);
}

/* ---- the NIC ---- */

static void a_payload_rewritten_before_sent_is_found_out(void **state)
{
	const struct loop_plan plan = {.seed = 5, .late = 1.0, .late_max_ns = 1000};
	struct world *w = world_create(&plan);
	struct event events[WORLD_EVENTS];

	fill(w->gradient[0], 1);
	assert_int_equal(world_push(w, 0, 1, w), 0);
	w->worker_queue->ops->flush(w->worker_queue);
	assert_int_equal(world_poll(w, w->worker_queue, events), 0);
	fill(w->gradient[0], 2);
	world_settle(w);
	assert_int_equal(world_poll(w, w->worker_queue, events), 1);
	assert_int_equal(events[0].type, EVENT_SENT);
	assert_ptr_equal(events[0].cookie, w);
	fill(w->gradient[0], 3);
	assert_int_equal(world_poll(w, w->box_queue, events), 1);
	assert_true(all(events[0].payload, 2));
	world_destroy(w);
}

static void sent_may_come_after_the_result(void **state)
{
	const struct loop_plan plan = {.seed = 6, .lossy = true, .sent_late = 1.0, .late_max_ns = 1000000};
	struct world *w = world_create(&plan);
	struct event events[WORLD_EVENTS];

	assert_int_equal(world_push(w, 0, 1, w), 0);
	w->worker_queue->ops->flush(w->worker_queue);
	assert_int_equal(world_poll(w, w->box_queue, events), 1);
	assert_int_equal(world_answer(w, 0, 1, events[0].payload), 0);
	w->box_queue->ops->flush(w->box_queue);
	assert_int_equal(world_poll(w, w->worker_queue, events), 1);
	assert_int_equal(events[0].type, EVENT_MESSAGE);
	world_settle(w);
	assert_int_equal(world_poll(w, w->worker_queue, events), 1);
	assert_int_equal(events[0].type, EVENT_SENT);
	world_destroy(w);
}

static void nothing_is_read_after_drop(void **state)
{
	const struct loop_plan plan = {.seed = 7, .late = 1.0, .late_max_ns = 1000};
	struct world *w = world_create(&plan);
	struct event events[WORLD_EVENTS];
	struct wire_header h = {.type = WIRE_PUSH, .length = WORLD_BYTES};
	void *payload = malloc(WORLD_BYTES);

	assert_int_equal(w->worker_queue->ops->send(w->worker_queue, w->worker, &h, payload, w), 0);
	w->worker_queue->ops->flush(w->worker_queue);
	w->worker_queue->ops->drop(w->worker_queue, w->worker);
	w->worker = NULL;
	free(payload); /* The address sanitizer sees whoever reads it now. */
	world_settle(w);
	assert_int_equal(world_poll(w, w->worker_queue, events), 0);
	assert_int_equal(world_poll(w, w->box_queue, events), 1);
	assert_int_equal(events[0].type, EVENT_CLOSED);
	world_destroy(w);
}

static void slots_end_at_hold_max_and_poison_shows_late_readers(void **state)
{
	const struct loop_plan plan = {.seed = 8, .hold_max = 2, .poison = true};
	struct world *w = world_create(&plan);
	struct event events[WORLD_EVENTS], more[WORLD_EVENTS];
	unsigned i;

	for (i = 0; i < 4; i++) {
		fill(w->gradient[i], (uint8_t)i);
		assert_int_equal(world_push(w, i, 1, NULL), 0);
	}
	w->worker_queue->ops->flush(w->worker_queue);
	assert_int_equal(world_poll(w, w->box_queue, events), 4);
	assert_non_null(events[0].slot);
	assert_non_null(events[1].slot);
	assert_null(events[2].slot);
	assert_null(events[3].slot);
	assert_int_equal(world_poll(w, w->box_queue, more), 0);
	assert_true(all(events[0].payload, 0) && all(events[1].payload, 1));
	assert_false(all(events[2].payload, 2));
	w->box_queue->ops->release(w->box_queue, events[1].slot);
	assert_false(all(events[1].payload, 1));
	assert_int_equal(world_push(w, 0, 2, NULL), 0);
	w->worker_queue->ops->flush(w->worker_queue);
	assert_int_equal(world_poll(w, w->box_queue, more), 1);
	assert_non_null(more[0].slot);
	world_destroy(w);
}

/* ---- partitions and deaths ---- */

static void a_partition_delays_what_is_reliable(void **state)
{
	const struct loop_plan plan = {.seed = 9, .delay_min_ns = 10, .delay_max_ns = 50};
	struct world *w = world_create(&plan);
	struct event events[WORLD_EVENTS];
	unsigned i;

	for (i = 0; i < 4; i++)
		assert_int_equal(world_push(w, i, 1, NULL), 0);
	w->worker_queue->ops->flush(w->worker_queue);
	loop_net_partition(w->net, 0, 1, true);
	loop_net_advance(w->net, loop_net_now(w->net) + 1000);
	for (; i < WORLD_CHUNKS; i++)
		assert_int_equal(world_push(w, i, 1, NULL), 0);
	w->worker_queue->ops->flush(w->worker_queue);
	world_settle(w);
	assert_int_equal(world_poll(w, w->box_queue, events), 0);
	loop_net_partition(w->net, 1, 0, false);
	world_settle(w);
	assert_int_equal(world_poll(w, w->box_queue, events), WORLD_CHUNKS);
	for (i = 0; i < WORLD_CHUNKS; i++)
		assert_int_equal(events[i].header.chunk, i);
	world_destroy(w);
}

static void one_way_alone_may_be_cut(void **state)
{
	const struct loop_plan plan = {.seed = 9, .delay_min_ns = 10, .delay_max_ns = 50};
	struct world *w = world_create(&plan);
	struct event events[WORLD_EVENTS];

	loop_net_deafen(w->net, 0, 1, true); /* the worker hears nothing */
	assert_int_equal(world_push(w, 0, 1, NULL), 0);
	w->worker_queue->ops->flush(w->worker_queue);
	world_settle(w);
	assert_int_equal(world_poll(w, w->box_queue, events), 1);
	loop_net_deafen(w->net, 1, 0, true);
	assert_int_equal(world_push(w, 1, 1, NULL), 0);
	w->worker_queue->ops->flush(w->worker_queue);
	world_settle(w);
	assert_int_equal(world_poll(w, w->box_queue, events), 0);
	loop_net_deafen(w->net, 0, 1, false); /* the other one is not healed by that */
	world_settle(w);
	assert_int_equal(world_poll(w, w->box_queue, events), 0);
	loop_net_deafen(w->net, 1, 0, false);
	world_settle(w);
	assert_int_equal(world_poll(w, w->box_queue, events), 1);
	assert_int_equal(events[0].header.chunk, 1);
	world_destroy(w);
}

static void a_partition_loses_what_is_lossy(void **state)
{
	const struct loop_plan plan = {.seed = 9, .lossy = true};
	struct world *w = world_create(&plan);
	struct event events[WORLD_EVENTS];

	loop_net_partition(w->net, 0, 1, true);
	assert_int_equal(world_push(w, 0, 1, NULL), 0);
	w->worker_queue->ops->flush(w->worker_queue);
	world_settle(w);
	loop_net_partition(w->net, 0, 1, false);
	world_settle(w);
	assert_int_equal(world_poll(w, w->box_queue, events), 0);
	assert_int_equal(loop_net_stats(w->net)->dropped, 1);
	world_destroy(w);
}

static void a_death_is_seen_after_what_was_on_the_way(void **state)
{
	const struct loop_plan plan = {.seed = 10, .delay_min_ns = 5, .delay_max_ns = 50};
	struct world *w = world_create(&plan);
	struct event events[WORLD_EVENTS];

	assert_int_equal(world_push(w, 0, 1, NULL), 0);
	w->worker_queue->ops->flush(w->worker_queue);
	assert_int_equal(world_push(w, 1, 1, NULL), 0); /* Never flushed: dies with the worker. */
	loop_net_kill(w->net, 1);
	assert_int_equal(world_push(w, 2, 1, NULL), -EPIPE);
	world_settle(w);
	assert_int_equal(world_poll(w, w->box_queue, events), 2);
	assert_int_equal(events[0].type, EVENT_MESSAGE);
	assert_int_equal(events[1].type, EVENT_CLOSED);
	assert_int_equal(events[1].error, -ECONNRESET);
	assert_int_equal(world_poll(w, w->worker_queue, events), 0);
	world_destroy(w);
}

static void the_dead_connect_to_nobody_and_the_revived_do(void **state)
{
	const struct loop_plan plan = {.seed = 11};
	struct world *w = world_create(&plan);
	struct transport_config config = {.loop = loop_net_host(w->net, 1)};
	struct transport *t;
	struct conn *c;
	struct err e;

	loop_net_kill(w->net, 1);
	assert_int_equal(transport_loop.open(&config, &t, &e), -ENETDOWN);
	assert_int_equal(transport_loop.connect(w->worker_transport, "loop:0:1", 9, 0, KEY, NULL, &c, &e), -ENETDOWN);
	loop_net_revive(w->net, 1);
	/* The transport of the life before stays dead. */
	assert_int_equal(transport_loop.connect(w->worker_transport, "loop:0:1", 9, 0, KEY, NULL, &c, &e), -ENETDOWN);
	assert_int_equal(transport_loop.open(&config, &t, &e), 0);
	assert_int_equal(transport_loop.connect(t, "loop:0:1", 9, 0, KEY, NULL, &c, &e), 0);
	assert_int_equal(transport_loop.established(t, c, &e), -ECONNREFUSED);
	transport_loop.abandon(t, c);
	transport_loop.close(t);
	world_destroy(w);
}

static void nonsense_addresses_are_refused(void **state)
{
	static const char *const bad[] = {"", "loop", "loop:", "loop:1", "loop:1:", "loop:1:0", "loop:64:1",
		"loop:1:65536", "loop:1:2x", "127.0.0.1:7077", "loop:-1:2"};
	const struct loop_plan plan = {.seed = 12};
	struct world *w = world_create(&plan);
	struct conn *c;
	struct err e;
	unsigned i;

	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(transport_loop.connect(w->worker_transport, bad[i], 9, 0, KEY, NULL, &c, &e), -EINVAL);
	world_destroy(w);
}

/* ---- replay ---- */

/* One run with everything that chance decides; its trace. The caller frees it. */
static char *run_traced(uint64_t seed, size_t *bytes)
{
	const struct loop_plan plan = {.seed = seed,
		.lossy = true,
		.drop = 0.1,
		.duplicate = 0.1,
		.reorder = 0.2,
		.delay_min_ns = 100,
		.delay_max_ns = 900,
		.late = 0.3,
		.sent_late = 0.3,
		.late_max_ns = 500,
		.hold_max = 2};
	struct world *w = world_create(&plan);
	struct event events[WORLD_EVENTS];
	unsigned i, n, round;
	char *text = NULL;
	FILE *file = open_memstream(&text, bytes);

	assert_non_null(file);
	loop_net_trace(w->net, file);
	for (round = 0; round < 20; round++) {
		for (i = 0; i < WORLD_CHUNKS; i++)
			assert_int_equal(world_push(w, i, round, w), 0);
		w->worker_queue->ops->flush(w->worker_queue);
		world_settle(w);
		n = world_poll(w, w->box_queue, events);
		for (i = 0; i < n; i++) {
			if (events[i].slot)
				w->box_queue->ops->release(w->box_queue, events[i].slot);
		}
		world_poll(w, w->worker_queue, events);
	}
	fclose(file);
	loop_net_trace(w->net, NULL);
	world_destroy(w);
	return text;
}

static void a_seed_decides_everything(void **state)
{
	size_t bytes[3];
	char *one = run_traced(77, &bytes[0]), *same = run_traced(77, &bytes[1]), *other = run_traced(78, &bytes[2]);

	assert_string_equal(one, same);
	assert_string_not_equal(one, other);
	assert_non_null(strstr(one, "lose"));
	assert_non_null(strstr(one, "arrive message push"));
	free(one);
	free(same);
	free(other);
}

TEST_PROGRAM(test_loop)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(drop_of_one_loses_all),
		cmocka_unit_test(probabilities_spare_pairs_that_are_not_lossy),
		cmocka_unit_test(a_single_pair_can_be_lossy),
		cmocka_unit_test(duplicates_come_twice_with_equal_bytes),
		cmocka_unit_test(reordered_messages_change_places),
		cmocka_unit_test(a_full_pipe_makes_senders_wait),
		cmocka_unit_test(a_full_lossy_pipe_loses),
		cmocka_unit_test(a_broken_header_ends_the_connection),
		cmocka_unit_test(a_payload_rewritten_before_sent_is_found_out),
		cmocka_unit_test(sent_may_come_after_the_result),
		cmocka_unit_test(nothing_is_read_after_drop),
		cmocka_unit_test(slots_end_at_hold_max_and_poison_shows_late_readers),
		cmocka_unit_test(a_partition_delays_what_is_reliable),
		cmocka_unit_test(one_way_alone_may_be_cut),
		cmocka_unit_test(a_partition_loses_what_is_lossy),
		cmocka_unit_test(a_death_is_seen_after_what_was_on_the_way),
		cmocka_unit_test(the_dead_connect_to_nobody_and_the_revived_do),
		cmocka_unit_test(nonsense_addresses_are_refused),
		cmocka_unit_test(a_seed_decides_everything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
