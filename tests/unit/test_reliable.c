/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What reliable.h promises, one sentence after another.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cmocka_shim.h"
#include "tests/unit/reliable_log.h"
#include "transport/reliable_internal.h"

static bool pass_no_acks(struct wired *w, const struct wired_packet *p)
{
	return p->bytes[0] != WIRE_ACK;
}

/* ---- sizes ---- */

static void fragments_fit_their_datagrams(void **state)
{
	assert_int_equal(reliable_fragment_for(0), 0);
	assert_int_equal(reliable_fragment_for(WIRE_DATA_BYTES + 63), 0);
	assert_int_equal(reliable_fragment_for(1280 - 48), RELIABLE_FRAGMENT_MIN);
	for (uint32_t bytes = 1; bytes <= WIRE_DATAGRAM_MAX; bytes++) {
		uint32_t fragment = reliable_fragment_for(bytes);

		assert_int_equal(fragment % TRANSPORT_PART_ALIGN, 0);
		assert_true(fragment == 0 || fragment + WIRE_DATA_BYTES <= bytes);
		assert_true(fragment + WIRE_DATA_BYTES + TRANSPORT_PART_ALIGN > bytes);
	}
}

static void nothing_of_a_message_is_sent_before_its_size_is_known(void **state)
{
	struct wired_options o = {.seed = 1};

	wired_begin_with(&o, 1, (const uint32_t[]){100});
	assert_int_equal(reliable_fragment(rig.ends[0].conns[0]), 0);
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 0, 1, NULL), 0);
	assert_null(reliable_turn(rig.ends[0].r));
	wired_probe(&rig);
	wired_run(&rig, MS);
	assert_int_equal(wired_count(WIRED_BOX, EVENT_MESSAGE), 1);
	wired_finish();
}

static void probes_find_what_comes_through(void **state)
{
	struct wired_options o = {.seed = 1, .datagram_max = 9000, .wire = {.path_max = 1500}};
	struct wired_end *worker = &rig.ends[0];

	wired_begin_with(&o, 1, (const uint32_t[]){100000});
	reliable_probe(worker->r, worker->conns[0], 9000, 0, false);
	reliable_probe(worker->r, worker->conns[0], 1400, 0, false);
	reliable_probe(worker->r, worker->conns[0], 1300, 0, false);
	wired_run(&rig, MS);
	assert_int_equal(reliable_probed(worker->conns[0], false), 1400);
	assert_int_equal(reliable_probed(worker->conns[0], true), 0);
	assert_int_equal(reliable_fragment(worker->conns[0]), 0);
	reliable_probe(worker->r, worker->conns[0], 1400, reliable_fragment_for(1400), false);
	wired_run(&rig, MS);
	assert_int_equal(reliable_probed(worker->conns[0], true), 1400);
	assert_int_equal(reliable_fragment(worker->conns[0]), reliable_fragment_for(1400));
	assert_int_equal(reliable_fragment(rig.ends[WIRED_BOX].conns[0]), reliable_fragment_for(1400));
	/* It stays so. */
	reliable_probe(worker->r, worker->conns[0], 1300, reliable_fragment_for(1300), false);
	wired_run(&rig, MS);
	assert_int_equal(reliable_fragment(rig.ends[WIRED_BOX].conns[0]), reliable_fragment_for(1400));
	wired_finish();
}

/* A worker that asks later, datagram by datagram, whether anything comes through, decides nothing by that. */
static void later_probes_change_no_way_of_sending(void **state)
{
	struct wired_end *worker = &rig.ends[0], *box = &rig.ends[WIRED_BOX];
	uint8_t head[RELIABLE_HEAD_BYTES];
	struct reliable_outgoing out = {.head = head};

	wired_begin(0);
	wired_probe(&rig);
	reliable_probe(worker->r, worker->conns[0], 1400, 0, true);
	wired_run(&rig, MS);
	assert_int_equal(wired_send_from(WIRED_BOX, WIRE_RESULT, 0, 1, NULL), 0);
	assert_non_null(reliable_turn(box->r));
	reliable_next(box->r, rig.now, &out);
	assert_non_null(out.message);
	assert_false(out.alone);
	wired_finish();
}

/* ---- connections ---- */

static struct reliable_conn *stranger(uint32_t here, const struct conn_spec *spec, int expected)
{
	struct reliable_conn_config config = {.conn = &rig.ends[WIRED_BOX].heads[1],
		.here = here,
		.there = 1,
		.spec = spec,
		.seal_here = wired_seal(&rig, 0, false),
		.seal_there = wired_seal(&rig, 0, true),
		.datagram_max = 1472};
	struct reliable_conn *c = NULL;

	assert_int_equal(reliable_conn_create(&rig.ends[WIRED_BOX].config, &config, &c), expected);
	if (expected < 0) {
		seal_destroy(config.seal_here);
		seal_destroy(config.seal_there);
	}
	return c;
}

static void names_are_taken_once_and_room_has_an_end(void **state)
{
	struct reliable_conn *same, *other;
	struct reliable *r;

	wired_begin(0);
	r = rig.ends[WIRED_BOX].r;
	same = stranger(wired_name(0, true), &rig.box_specs[0], 0);
	other = stranger(5, &rig.box_specs[0], 0);
	assert_int_equal(reliable_add(r, same), -EEXIST);
	assert_int_equal(reliable_add(r, other), -ENOSPC); /* conns_max is 1 */
	reliable_remove(r, rig.ends[WIRED_BOX].conns[0]);
	assert_int_equal(reliable_add(r, same), 0);
	reliable_remove(r, same);
	assert_int_equal(reliable_add(r, other), 0);
	reliable_remove(r, other);
	reliable_conn_destroy(same);
	reliable_conn_destroy(other);
	reliable_conn_destroy(NULL);
	assert_int_equal(reliable_add(r, rig.ends[WIRED_BOX].conns[0]), 0);
	wired_finish();
}

static void specs_that_cannot_be_served_are_refused(void **state)
{
	struct conn_spec spec;

	wired_begin(0);
	spec = rig.box_specs[0];
	spec.payload_max = WIRE_PAYLOAD_MAX + 1;
	assert_null(stranger(5, &spec, -EINVAL));
	wired_finish();
}

/* ---- sending ---- */

static void what_the_spec_does_not_know_is_not_sent(void **state)
{
	struct wire_header h;

	wired_begin(0);
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 0, 2, NULL), -EINVAL);
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 0, 1, NULL), 0);
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 1, 1, NULL), -EINVAL);
	h = wired_header(WIRE_PULL, 4, 2);
	assert_int_equal(reliable_send(rig.ends[0].r, rig.ends[0].conns[0], &h, NULL, NULL), -EINVAL);
	h = wired_header(WIRE_PUSH, 0, 2);
	h.length = LARGE + 1;
	assert_int_equal(reliable_send(rig.ends[0].r, rig.ends[0].conns[0], &h, payload, NULL), -EINVAL);
	reliable_end(rig.ends[0].r, rig.ends[0].conns[0], -EPROTO, true);
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 1, 2, NULL), -EPIPE);
	wired_finish();
}

static void messages_that_may_be_open_have_a_bound(void **state)
{
	struct wired_options o = {.seed = 1};
	unsigned open = 0;

	wired_begin_with(&o, 1, (const uint32_t[]){100});
	wired_probe(&rig);
	rig.pass = wired_pass_nothing;
	while (wired_send_from(0, WIRE_PULL, 0, open + 1, payload) == 0) {
		assert_true(++open <= RELIABLE_MESSAGES_MAX);
		wired_turn(&rig);
	}
	assert_int_equal(open, RELIABLE_MESSAGES_MAX);
	wired_run(&rig, MS);
	assert_int_equal(wired_count(0, EVENT_WRITABLE), 0);
	rig.pass = NULL;
	wired_run(&rig, 1000 * MS);
	assert_int_equal(wired_count(WIRED_BOX, EVENT_MESSAGE), open);
	assert_int_equal(wired_count(0, EVENT_SENT), open);
	assert_int_equal(wired_count(0, EVENT_WRITABLE), 1);
	assert_int_equal(wired_send_from(0, WIRE_PULL, 0, open + 1, NULL), 0);
	wired_finish();
}

static void unsent_bytes_have_a_bound(void **state)
{
	struct wired_options o = {.seed = 1, .send_bytes_max = 1000};

	wired_begin_with(&o, 2, (const uint32_t[]){900, 5000});
	wired_probe(&rig);
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 0, 1, payload), 0);
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 1, 2, payload), -EAGAIN);
	wired_run(&rig, MS);
	assert_int_equal(wired_count(0, EVENT_SENT), 1);
	assert_int_equal(wired_count(0, EVENT_WRITABLE), 1);
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 1, 2, payload), 0); /* alone, it may be as large as it likes */
	wired_run(&rig, MS);
	assert_int_equal(wired_count(0, EVENT_SENT), 2);
	wired_finish();
}

static void what_is_on_its_way_is_no_more_than_granted_and_remembered(void **state)
{
	struct wired_options o = {
		.seed = 1, .room_bytes = 64 << 20, .wire = {.delay_min_ns = 200000, .delay_max_ns = 200000}};
	uint64_t bytes = 0, sent = 0;

	wired_begin_with(&o, 1, (const uint32_t[]){WIRE_PAYLOAD_MAX});
	wired_probe(&rig);
	for (uint32_t seq = 1; seq <= 20; seq++) { /* lets it find out that nothing is lost */
		assert_int_equal(wired_send_from(0, WIRE_PUSH, 0, seq, payload), 0);
		wired_run(&rig, 30 * MS);
		wired_event_count = 0;
	}
	rig.pass = wired_pass_nothing;
	sent = wired_counters(0)->sent;
	bytes = wired_counters(0)->sent_bytes;
	for (uint32_t seq = 21; wired_send_from(0, WIRE_PUSH, 0, seq, payload) == 0; seq++)
		wired_send(&rig, 0);
	assert_in_range(wired_counters(0)->sent - sent, RELIABLE_FLIGHT_MAX / 2, RELIABLE_FLIGHT_MAX);
	assert_true(wired_counters(0)->sent_bytes - bytes <= o.room_bytes);
	/* All of it is lost, for very long; and yet it comes. */
	wired_run(&rig, 200000ull * MS);
	rig.pass = NULL;
	rig.event = NULL;
	wired_run(&rig, 2000 * MS);
	rig.event = wired_note;
	assert_int_equal(reliable_due(rig.ends[0].r), UINT64_MAX);
	wired_finish();
}

static void a_little_room_is_enough(void **state)
{
	struct wired_options o = {.seed = 1, .room_bytes = 1, .worker_room_bytes = 1};

	wired_begin_with(&o, 1, (const uint32_t[]){LARGE});
	rig.sinks[0][0] = (struct sink){.addr = sink_memory, .bytes = LARGE};
	wired_probe(&rig);
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 0, 1, payload), 0);
	assert_int_equal(wired_send_from(WIRED_BOX, WIRE_RESULT, 0, 0, payload), 0);
	wired_run(&rig, 1000 * MS);
	assert_true(wired_last(WIRED_BOX, EVENT_MESSAGE)->last);
	assert_memory_equal(sink_memory, payload, LARGE);
	wired_finish();
}

static void those_who_send_at_once_share_the_room(void **state)
{
	enum { WORKERS = 16 };
	struct wired_options o = {.seed = 1,
		.workers = WORKERS,
		.room_bytes = 1 << 20,
		.wire = {.delay_min_ns = 1000000, .delay_max_ns = 1000000}};

	wired_begin_with(&o, 1, (const uint32_t[]){WIRE_PAYLOAD_MAX});
	wired_probe(&rig);
	rig.event = NULL;
	for (unsigned w = 0; w < WORKERS; w++) {
		struct wire_header h = wired_header(WIRE_PUSH, 0, 1);

		h.rank = w;
		assert_int_equal(reliable_send(rig.ends[w].r, rig.ends[w].conns[0 + w], &h, payload, NULL), 0);
	}
	wired_run(&rig, 10 * MS);
	rig.box_bytes_peak = 0; /* now all know of each other */
	wired_run(&rig, 20 * MS);
	assert_in_range(rig.box_bytes_peak, o.room_bytes / 4, o.room_bytes + WORKERS * 1472);
	wired_run(&rig, 1000 * MS);
	for (unsigned w = 0; w < WORKERS; w++)
		assert_int_equal(reliable_due(rig.ends[w].r), UINT64_MAX);
	wired_finish();
}

/* ---- what comes ---- */

static void a_box_sees_parts_and_a_worker_whole_messages(void **state)
{
	uint32_t bytes = 0;

	wired_begin(1000);
	rig.sinks[0][2] = (struct sink){.addr = sink_memory, .bytes = LARGE};
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 2, 1, &rig), 0);
	wired_run(&rig, 10 * MS);
	for (unsigned i = 0; i < wired_event_count; i++) {
		const struct event *e = &wired_events[i];

		if (wired_who_saw[i] != WIRED_BOX)
			continue;
		assert_int_equal(e->type, EVENT_MESSAGE);
		assert_ptr_equal(e->conn, &rig.ends[WIRED_BOX].heads[0]);
		assert_int_equal(e->header.length, LARGE);
		assert_int_equal(e->header.seq, 1);
		bytes += e->bytes;
		assert_int_equal(e->last, bytes == LARGE);
	}
	assert_int_equal(bytes, LARGE);
	assert_int_equal(wired_count(0, EVENT_SENT), 1);
	assert_ptr_equal(wired_last(0, EVENT_SENT)->cookie, &rig);
	assert_int_equal(wired_send_from(WIRED_BOX, WIRE_RESULT, 2, 0, NULL), 0);
	wired_run(&rig, 10 * MS);
	assert_int_equal(wired_count(0, EVENT_MESSAGE), 1);
	assert_ptr_equal(wired_last(0, EVENT_MESSAGE)->payload, sink_memory);
	assert_int_equal(wired_last(0, EVENT_MESSAGE)->bytes, LARGE);
	assert_memory_equal(sink_memory, payload, LARGE);
	assert_int_equal(wired_count(WIRED_BOX, EVENT_SENT), 0); /* no cookie */
	assert_int_equal(wired_counters(0)->resent + wired_counters(WIRED_BOX)->resent, 0);
	assert_in_range(reliable_round_trip(rig.ends[0].conns[0]), 1000, 1000000);
	wired_finish();
}

static void a_box_can_have_messages_whole(void **state)
{
	struct wired_options o = {.seed = 1};

	/* The spec is read when the connection is made. */
	wired_begin_with(&o, 2, (const uint32_t[]){LARGE, 100});
	reliable_remove(rig.ends[WIRED_BOX].r, rig.ends[WIRED_BOX].conns[0]);
	reliable_conn_destroy(rig.ends[WIRED_BOX].conns[0]);
	rig.box_specs[0].parts = false;
	{
		struct reliable_conn_config config = {.conn = &rig.ends[WIRED_BOX].heads[0],
			.here = wired_name(0, true),
			.there = wired_name(0, false),
			.spec = &rig.box_specs[0],
			.seal_here = wired_seal(&rig, 0, false),
			.seal_there = wired_seal(&rig, 0, true),
			.datagram_max = 1472};
		struct wired_end *box = &rig.ends[WIRED_BOX];

		assert_int_equal(reliable_conn_create(&box->config, &config, &box->conns[0]), 0);
		assert_int_equal(reliable_add(box->r, box->conns[0]), 0);
	}
	wired_probe(&rig);
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 0, 1, NULL), 0);
	while (wired_count(WIRED_BOX, EVENT_MESSAGE) == 0)
		if (!wired_turn(&rig))
			wired_advance(&rig, MS);
	assert_int_equal(wired_last(WIRED_BOX, EVENT_MESSAGE)->bytes, LARGE);
	assert_memory_equal(wired_last(WIRED_BOX, EVENT_MESSAGE)->payload, payload, LARGE);
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 1, 2, NULL), 0);
	wired_run(&rig, MS);
	assert_int_equal(wired_count(WIRED_BOX, EVENT_MESSAGE), 2);
	wired_finish();
}

static bool pass_first_half(struct wired *w, const struct wired_packet *p)
{
	struct wire_datagram d;

	return wire_decode_datagram(p->bytes, p->length, &d) == 0 && d.offset < LARGE / 2;
}

static void results_go_where_they_are_wanted_or_nowhere(void **state)
{
	wired_begin(1000);
	/* Nowhere, and too late for this one. */
	assert_int_equal(wired_send_from(WIRED_BOX, WIRE_RESULT, 2, 0, payload), 0);
	wired_send(&rig, WIRED_BOX);
	rig.now += 1000;
	wired_poll(&rig, 0);
	rig.sinks[0][2] = (struct sink){.addr = sink_memory, .bytes = LARGE};
	wired_run(&rig, 10 * MS);
	assert_int_equal(wired_count(0, EVENT_MESSAGE), 1);
	assert_null(wired_last(0, EVENT_MESSAGE)->payload);
	assert_int_equal(wired_last(0, EVENT_MESSAGE)->header.length, LARGE);
	/* Taken away while it comes. */
	rig.pass = pass_first_half;
	assert_int_equal(wired_send_from(WIRED_BOX, WIRE_RESULT, 2, 0, payload), 0);
	wired_send(&rig, WIRED_BOX);
	rig.now += 1000;
	wired_poll(&rig, 0);
	assert_memory_equal(sink_memory, payload, 1000);
	rig.sinks[0][2].addr = NULL;
	rig.pass = NULL;
	memset(sink_memory, 0, LARGE);
	wired_run(&rig, 10 * MS);
	assert_null(wired_last(0, EVENT_MESSAGE)->payload);
	for (unsigned i = 0; i < LARGE; i++)
		assert_int_equal(sink_memory[i], 0);
	/* Of another length than is wanted. */
	rig.sinks[0][1] = (struct sink){.addr = sink_memory, .bytes = 4999};
	assert_int_equal(wired_send_from(WIRED_BOX, WIRE_RESULT, 1, 0, NULL), 0);
	wired_run(&rig, 10 * MS);
	assert_int_equal(wired_count(0, EVENT_MESSAGE), 2);
	assert_int_equal(wired_last(0, EVENT_CLOSED)->error, -EPROTO);
	assert_false(wired_last(0, EVENT_CLOSED)->broken);
	wired_finish();
}

static bool pass_without_first(struct wired *w, const struct wired_packet *p)
{
	return w->put > 1; /* counted before this is asked */
}

static void credits_come_after_all_that_was_sent_before(void **state)
{
	wired_begin(1000);
	rig.put = 0;
	rig.pass = pass_without_first;
	assert_int_equal(wired_send_from(WIRED_BOX, WIRE_RESULT, 1, 0, payload), 0); /* lacks its first fragment */
	assert_int_equal(wired_send_from(WIRED_BOX, WIRE_CREDIT, 0, 0, NULL), 0);
	assert_int_equal(wired_send_from(WIRED_BOX, WIRE_RESULT, 0, 0, payload), 0);
	wired_run(&rig, 100 * MS);
	assert_int_equal(wired_event_count, 3 + 2);
	assert_int_equal(wired_events[0].header.chunk, 0); /* overtakes */
	assert_int_equal(wired_events[0].header.type, WIRE_RESULT);
	assert_int_equal(wired_count(0, EVENT_MESSAGE), 3);
	assert_int_equal(wired_last(0, EVENT_MESSAGE)->header.type, WIRE_CREDIT);
	wired_finish();
}

/* ---- loss ---- */

static void what_is_lost_comes_again_before_long(void **state)
{
	wired_begin(1000);
	rig.pass = wired_pass_nothing;
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 0, 1, &rig), 0);
	wired_run(&rig, 500 * MS);
	assert_int_equal(wired_count(WIRED_BOX, EVENT_MESSAGE), 0);
	assert_in_range(wired_counters(0)->resent, 2, 100); /* not too often either */
	assert_in_range(reliable_due(rig.ends[0].r), rig.now, rig.now + 250 * MS);
	rig.pass = NULL;
	wired_run(&rig, 250 * MS);
	assert_int_equal(wired_count(WIRED_BOX, EVENT_MESSAGE), 1);
	assert_int_equal(wired_count(0, EVENT_SENT), 1);
	wired_run(&rig, 250 * MS);
	assert_int_equal(reliable_due(rig.ends[0].r), UINT64_MAX); /* and then nothing more */
	wired_finish();
}

static void one_that_is_lost_is_found_by_those_behind_it(void **state)
{
	wired_begin(1000);
	rig.put = 0;
	rig.pass = pass_without_first;
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 2, 1, &rig), 0);
	wired_run(&rig, MS);
	assert_int_equal(wired_count(0, EVENT_SENT), 1);
	assert_int_equal(wired_counters(0)->lost, 1);
	assert_int_equal(wired_counters(0)->resent, 1);
	wired_finish();
}

static void the_last_one_is_found_by_silence(void **state)
{
	wired_begin(1000);
	rig.put = 0;
	rig.pass = pass_without_first;
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 0, 1, &rig), 0);
	wired_run(&rig, 50 * MS);
	assert_int_equal(wired_count(0, EVENT_SENT), 1);
	assert_int_equal(wired_counters(0)->resent, 1);
	wired_finish();
}

static void sent_comes_with_the_answer_when_acks_are_lost(void **state)
{
	wired_begin(1000);
	rig.pass = pass_no_acks;
	rig.sinks[0][1] = (struct sink){.addr = sink_memory, .bytes = 5000};
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 1, 1, &rig), 0);
	while (wired_event_count == 0 || !wired_events[wired_event_count - 1].last)
		if (!wired_turn(&rig))
			wired_advance(&rig, MS);
	assert_int_equal(wired_send_from(WIRED_BOX, WIRE_RESULT, 1, 0, payload), 0);
	while (wired_count(0, EVENT_MESSAGE) == 0)
		if (!wired_turn(&rig))
			wired_advance(&rig, MS);
	assert_int_equal(wired_count(0, EVENT_SENT), 1);
	assert_int_equal(wired_events[wired_event_count - 1].type, EVENT_MESSAGE);
	assert_int_equal(wired_events[wired_event_count - 2].type, EVENT_SENT);
	/* And the worker's next push says the same to the box. */
	wired_event_count = 0;
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 1, 2, &rig), 0);
	while (wired_count(WIRED_BOX, EVENT_MESSAGE) == 0)
		if (!wired_turn(&rig))
			wired_advance(&rig, MS);
	assert_int_equal(wired_events[0].type, EVENT_SENT);
	assert_ptr_equal(wired_events[0].cookie, payload);
	wired_finish();
}

static void a_pause_is_no_loss(void **state)
{
	wired_begin(100000);
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 2, 1, &rig), 0);
	while (wired_counters(0)->sent < 50)
		if (!wired_turn(&rig))
			wired_advance(&rig, MS);
	/* The worker's thread has something else to do, while the box acknowledges. */
	rig.ends[0].stopped = true;
	wired_run(&rig, 1000 * MS);
	rig.ends[0].stopped = false;
	wired_run(&rig, 100 * MS);
	assert_int_equal(wired_count(0, EVENT_SENT), 1);
	assert_int_equal(wired_counters(0)->lost, 0);
	assert_int_equal(wired_counters(0)->resent, 0);
	wired_finish();
}

static void neighbours_that_change_places_are_not_lost(void **state)
{
	struct wired_options o = {
		.seed = 1, .wire = {.delay_min_ns = 20000, .delay_max_ns = 20000, .reorder = 0.3, .reorder_ns = 5000}};

	wired_begin_with(&o, 1, (const uint32_t[]){LARGE});
	wired_probe(&rig);
	for (uint32_t seq = 1; seq <= 10; seq++) {
		assert_int_equal(wired_send_from(0, WIRE_PUSH, 0, seq, &rig), 0);
		wired_run(&rig, 10 * MS);
	}
	assert_int_equal(wired_count(0, EVENT_SENT), 10);
	print_message("reordered: %llu sent, %llu resent\n", (unsigned long long)wired_counters(0)->sent,
		(unsigned long long)wired_counters(0)->resent);
	assert_in_range(wired_counters(0)->resent, 0, wired_counters(0)->sent / 20);
	wired_finish();
}

static struct wired_packet *kept;

static bool keep_first_data(struct wired *w, const struct wired_packet *p)
{
	if (!kept && p->to == WIRED_BOX && p->bytes[0] == WIRE_DATA) {
		kept = malloc(sizeof(*p) + p->length);
		memcpy(kept, p, sizeof(*p) + p->length);
	}
	return true;
}

static void late_fragments_are_acknowledged_and_do_nothing_else(void **state)
{
	uint64_t acks;

	wired_begin(0);
	kept = NULL;
	rig.pass = keep_first_data;
	for (uint32_t seq = 1; seq <= 200; seq++) { /* it is far behind what is open */
		assert_int_equal(wired_send_from(0, WIRE_PUSH, 0, seq, NULL), 0);
		wired_run(&rig, MS);
	}
	wired_event_count = 0;
	acks = wired_counters(WIRED_BOX)->acks;
	assert_int_equal(wired_input(&rig, WIRED_BOX, kept->bytes, kept->length), RELIABLE_NOTHING);
	assert_int_equal(wired_drops(&rig, WIRED_BOX, RELIABLE_REPEAT), 1);
	wired_run(&rig, MS);
	assert_int_equal(wired_counters(WIRED_BOX)->acks, acks + 1);
	assert_int_equal(wired_event_count, 0);
	free(kept);
	wired_finish();
}

/* ---- devices that read late ---- */

static void sent_waits_for_who_still_reads(void **state)
{
	struct reliable_outgoing out;
	uint8_t head[RELIABLE_HEAD_BYTES];
	struct wired_end *worker = &rig.ends[0];

	wired_begin(0);
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 0, 1, &rig), 0);
	assert_non_null(reliable_turn(worker->r));
	out.head = head;
	reliable_next(worker->r, rig.now, &out);
	assert_non_null(out.message);
	assert_ptr_equal(out.rest, payload);
	assert_int_equal(out.rest_bytes, 100);
	assert_false(reliable_is_read(worker->conns[0]));
	reliable_hold(out.message);
	reliable_hold(out.message);
	assert_true(reliable_is_read(worker->conns[0]));
	wired_run(&rig, 100 * MS); /* lost, and sent once more */
	assert_int_equal(wired_count(WIRED_BOX, EVENT_MESSAGE), 1);
	assert_int_equal(wired_count(0, EVENT_SENT), 0);
	reliable_let(worker->r, out.message);
	wired_run(&rig, MS);
	assert_int_equal(wired_count(0, EVENT_SENT), 0);
	reliable_let(worker->r, out.message);
	assert_false(reliable_is_read(worker->conns[0]));
	wired_run(&rig, MS);
	assert_int_equal(wired_count(0, EVENT_SENT), 1);
	wired_finish();
}

/* ---- numbers ---- */

/* 52,000 messages a second are there in a day. */
static void messages_are_counted_on_past_their_last_number(void **state)
{
	const uint32_t last = UINT32_MAX - 1;
	struct reliable_conn *worker, *box;

	wired_begin(0);
	worker = rig.ends[0].conns[0];
	box = rig.ends[WIRED_BOX].conns[0];
	worker->seq_next = worker->seq_base = worker->seq_unsent = last;
	box->in_base = box->fence = box->fence_to = last;
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(wired_send_from(0, WIRE_PUSH, i, last + i, &rig), 0);
	wired_run(&rig, 10 * MS);
	assert_int_equal(wired_count(0, EVENT_SENT), 4);
	assert_int_equal(wired_last(WIRED_BOX, EVENT_MESSAGE)->header.seq, 1);
	assert_true(wired_last(WIRED_BOX, EVENT_MESSAGE)->last);
	wired_finish();
}

/* ---- ends ---- */

static void ends_are_reported_once(void **state)
{
	wired_begin(0);
	assert_int_equal(wired_send_from(0, WIRE_PUSH, 0, 1, &rig), 0);
	reliable_end(rig.ends[0].r, rig.ends[0].conns[0], -ETIMEDOUT, true);
	reliable_end(rig.ends[0].r, rig.ends[0].conns[0], -EPROTO, false);
	assert_int_equal(reliable_due(rig.ends[0].r), 0);
	wired_run(&rig, 100 * MS);
	assert_int_equal(wired_event_count, 1);
	assert_int_equal(wired_events[0].type, EVENT_CLOSED);
	assert_int_equal(wired_events[0].error, -ETIMEDOUT);
	assert_true(wired_events[0].broken);
	wired_finish();
}

static void a_farewell_closes_the_other_end(void **state)
{
	struct reliable_outgoing out;
	uint8_t head[RELIABLE_HEAD_BYTES];

	wired_begin(0);
	out.head = head;
	reliable_farewell(rig.ends[WIRED_BOX].r, rig.ends[WIRED_BOX].conns[0], &out);
	assert_ptr_equal(out.to, &rig.ends[WIRED_BOX].heads[0]);
	assert_int_equal(out.rest_bytes, 0);
	wired_input(&rig, 0, head, out.head_bytes);
	wired_run(&rig, MS);
	assert_int_equal(wired_count(0, EVENT_CLOSED), 1);
	assert_int_equal(wired_last(0, EVENT_CLOSED)->error, 0);
	assert_int_equal(wired_input(&rig, 0, head, out.head_bytes), RELIABLE_NOTHING);
	wired_run(&rig, MS);
	assert_int_equal(wired_count(0, EVENT_CLOSED), 1);
	wired_finish();
}

TEST_PROGRAM(test_reliable)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fragments_fit_their_datagrams),
		cmocka_unit_test(nothing_of_a_message_is_sent_before_its_size_is_known),
		cmocka_unit_test(probes_find_what_comes_through),
		cmocka_unit_test(later_probes_change_no_way_of_sending),
		cmocka_unit_test(names_are_taken_once_and_room_has_an_end),
		cmocka_unit_test(specs_that_cannot_be_served_are_refused),
		cmocka_unit_test(what_the_spec_does_not_know_is_not_sent),
		cmocka_unit_test(messages_that_may_be_open_have_a_bound),
		cmocka_unit_test(unsent_bytes_have_a_bound),
		cmocka_unit_test(what_is_on_its_way_is_no_more_than_granted_and_remembered),
		cmocka_unit_test(a_little_room_is_enough),
		cmocka_unit_test(those_who_send_at_once_share_the_room),
		cmocka_unit_test(a_box_sees_parts_and_a_worker_whole_messages),
		cmocka_unit_test(a_box_can_have_messages_whole),
		cmocka_unit_test(results_go_where_they_are_wanted_or_nowhere),
		cmocka_unit_test(credits_come_after_all_that_was_sent_before),
		cmocka_unit_test(what_is_lost_comes_again_before_long),
		cmocka_unit_test(one_that_is_lost_is_found_by_those_behind_it),
		cmocka_unit_test(the_last_one_is_found_by_silence),
		cmocka_unit_test(sent_comes_with_the_answer_when_acks_are_lost),
		cmocka_unit_test(a_pause_is_no_loss),
		cmocka_unit_test(neighbours_that_change_places_are_not_lost),
		cmocka_unit_test(late_fragments_are_acknowledged_and_do_nothing_else),
		cmocka_unit_test(sent_waits_for_who_still_reads),
		cmocka_unit_test(messages_are_counted_on_past_their_last_number),
		cmocka_unit_test(ends_are_reported_once),
		cmocka_unit_test(a_farewell_closes_the_other_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
