/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libphub takes for a result and what not, when a round is over, what becomes of one whose push cannot be sent,
 * and what a push says of its urgency: one worker against the fake box.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/fake_box.h"
#include "tests/unit/header_add.h"

#include "client/handle.h"

#include <stddef.h>
#include <stdint.h>

#include <errno.h>
#include <string.h>

#define MS 1000000ull

enum { BIG = 5000, SMALL = 100 };

struct rig {
	struct loop_net *net;
	struct fake_box box;
	struct fake_site site;
	phub_t *phub;
};

static unsigned rig_quorum; /* of the job, which has an optimizer then */

static void rig_run(struct rig *r, uint64_t ns)
{
	uint64_t end = loop_net_now(r->net) + ns;

	while (loop_net_now(r->net) < end) {
		uint64_t next, step = loop_net_now(r->net) + MS / 2;

		client_progress(r->phub, loop_net_now(r->net));
		fake_box_step(&r->box);
		next = loop_net_next(r->net);
		loop_net_advance(r->net, next < step ? next : step);
	}
}

/*
 * Key 0 is large, 1 and 2 share a chunk. With a time: messages may get lost (but none does), and that a payload was
 * read is told within it.
 */
static void rig_open_over(struct rig *r, const struct transport_ops *const *transports, uint64_t sent_late_ns)
{
	struct loop_plan net = {.seed = 1,
		.hosts = 4,
		.delay_min_ns = 1000,
		.delay_max_ns = 2000,
		.lossy = sent_late_ns > 0,
		.sent_late = 1,
		.late_max_ns = sent_late_ns};
	struct phub_options o;
	struct err e;

	memset(r, 0, sizeof(*r));
	r->net = loop_net_create(&net);
	fake_box_open(&r->box, r->net, 1, 2);
	phub_options_init(&o);
	o.rank = 0;
	o.world = 1;
	o.quorum = rig_quorum;
	o.optimizer = rig_quorum ? PHUB_SGD : PHUB_NONE;
	r->box.optimizer = rig_quorum > 0;
	fake_site_init(&r->site, r->net, 1, 0);
	if (transports)
		r->site.env.transports = transports;
	if (client_open("phub://box/demo", &o, &r->site.env, &r->phub, &e) < 0)
		fail_msg("%s", e.text);
	rig_run(r, 20 * MS);
	assert_int_equal(phub_key(r->phub, "big", PHUB_F32, BIG, 0, 0), 0);
	assert_int_equal(phub_key(r->phub, "left", PHUB_F32, SMALL, 0, 0), 1);
	assert_int_equal(phub_key(r->phub, "right", PHUB_F32, SMALL, 0, 0), 2);
	assert_int_equal(client_start_begin(r->phub, &e), 0);
	rig_run(r, 20 * MS);
	assert_int_equal(client_started(r->phub), 0);
}

static void rig_open(struct rig *r, uint64_t sent_late_ns)
{
	rig_open_over(r, NULL, sent_late_ns);
}

static void rig_close(struct rig *r)
{
	client_close(r->phub);
	fake_box_close(&r->box);
	loop_net_destroy(r->net);
}

/* ---- a root that is late ---- */

static float given[3][BIG];

/* Two rounds were closed before the result goes out, and what the root gave is not what the box has. */
static void spoil_ahead(struct wire_header *h)
{
	h->hyper = 2;
	memset(given, 0, sizeof(given));
}

/* With a quorum the root, too, goes on from what the box has by then. */
static void a_root_that_is_late(void **state)
{
	static const uint32_t counts[3] = {BIG, SMALL, SMALL};

	rig_quorum = 1;
	for (unsigned lossy = 0; lossy < 2; lossy++) {
		struct rig r;

		rig_open(&r, lossy);
		r.box.spoil = spoil_ahead;
		for (int key = 0; key < 3; key++) {
			for (uint32_t k = 0; k < counts[key]; k++)
				given[key][k] = (float)(k % 5) + 1;
			assert_int_equal(phub_broadcast(r.phub, key, given[key], 0), 0);
		}
		rig_run(&r, 20 * MS);
		assert_int_equal(client_idle(r.phub, PHUB_ALL), 1);
		for (int key = 0; key < 3; key++) {
			assert_true(given[key][counts[key] - 1] == (float)((counts[key] - 1) % 5) + 1);
			assert_int_equal(phub_round(r.phub, key), 3);
		}
		rig_close(&r);
	}
	rig_quorum = 0;
}

/* ---- headers that do not fit ---- */

/* One that fits is taken; none of the others is, and the session ends with a reason. */
static const struct {
	const char *what;
	struct wire_header add;
} spoils[] = {
	{"as it is", {.job = 0}},
	{"a push", {.type = TYPE_ADD(WIRE_RESULT, WIRE_PUSH)}},
	{"another job", {.job = 1}},
	{"the last generation", {.generation = -1u}},
	{"another rank", {.rank = 1}},
	{"a core of two, with six chunks in all, has no fourth", {.chunk = 3}},
	{"the last round", {.round = -UINT64_C(1)}},
	{"an element less", {.length = -4u}},
};
static unsigned spoil_row;

static void spoil_by_row(struct wire_header *h)
{
	if (spoils[spoil_row].add.chunk)
		h->chunk = 0;
	header_add(h, &spoils[spoil_row].add);
}

static void only_the_result_is_taken(void **state)
{
	static float data[BIG];

	for (unsigned i = 0; i < sizeof(spoils) / sizeof(spoils[0]); i++) {
		struct rig r;
		int rc;

		rig_open(&r, 0);
		spoil_row = i;
		r.box.spoil = spoil_by_row;
		assert_int_equal(phub_push_pull(r.phub, 0, data, data, 0), 0);
		rig_run(&r, 700 * MS);
		rc = phub_test(r.phub, 0);
		/* Chunks and lengths the transport itself may know, and then says no more than that it is over. */
		if (i == 0 ? rc != 1 : rc != -EPROTO && rc != -ECONNRESET)
			fail_msg("%s: %d (%s)", spoils[i].what, rc, rc < 0 ? phub_error() : "");
		rig_close(&r);
	}
}

/* Where messages may be damaged on the way they prove nothing: they are dropped, and the right one is waited for. */
static void a_damaged_result_is_dropped(void **state)
{
	float data[SMALL], out[SMALL];

	for (unsigned i = 1; i < sizeof(spoils) / sizeof(spoils[0]); i++) {
		struct rig r;

		print_message("%s\n", spoils[i].what);
		rig_open(&r, MS);
		for (unsigned k = 0; k < SMALL; k++) {
			data[k] = (float)k;
			out[k] = -1;
		}
		spoil_row = i;
		r.box.spoil = spoil_by_row;
		assert_int_equal(phub_push(r.phub, 1, data, 0), 0);
		assert_int_equal(phub_push_pull(r.phub, 2, data, out, 0), 0);
		rig_run(&r, 100 * MS);
		assert_int_equal(phub_test(r.phub, 2), 0);
		assert_true(out[1] == -1);
		r.box.spoil = NULL;
		rig_run(&r, 1000 * MS);
		assert_int_equal(phub_test(r.phub, 2), 1);
		assert_memory_equal(data, out, sizeof(data));
		rig_close(&r);
	}
}

/* ---- the end of a round ---- */

/* The caller's own memory is its own again when the transport has read it, and not only when the result is here. */
static void a_round_ends_when_nothing_is_read(void **state)
{
	static float data[BIG], out[BIG];
	struct phub_stats stats = {.size = sizeof(stats)};
	struct rig r;

	rig_open(&r, 40 * MS);
	assert_int_equal(phub_mem_register(r.phub, data, sizeof(data)), 0);
	for (unsigned i = 0; i < BIG; i++)
		data[i] = (float)i;
	assert_int_equal(phub_push_pull(r.phub, 0, data, out, 0), 0);
	rig_run(&r, MS);
	assert_int_equal(phub_stats(r.phub, &stats), 0);
	assert_int_equal(stats.pulled_bytes, sizeof(data));
	assert_int_equal(client_idle(r.phub, 0), 0);
	assert_int_equal(phub_mem_unregister(r.phub, data), -EBUSY);
	rig_run(&r, 80 * MS);
	assert_int_equal(client_idle(r.phub, 0), 1);
	assert_memory_equal(data, out, sizeof(data));
	assert_int_equal(phub_mem_unregister(r.phub, data), 0);
	rig_close(&r);
}

/* ---- a transport that cannot send ---- */

static struct queue_ops broken_queue_ops;

static int broken_send(
	struct queue *q, struct conn *c, const struct wire_header *header, const void *payload, void *cookie)
{
	return -EIO;
}

static int broken_queue_create(struct transport *t, int node, struct queue **out, struct err *e)
{
	int rc = transport_loop.queue_create(t, node, out, e);

	if (rc == 0) {
		broken_queue_ops = *(*out)->ops;
		broken_queue_ops.send = broken_send;
		(*out)->ops = &broken_queue_ops;
	}
	return rc;
}

/* The connection is still there and no event tells of its end: what send() said ends the session, by name and soon. */
static void a_send_that_fails_ends_the_session(void **state)
{
	struct transport_ops broken = transport_loop;
	const struct transport_ops *const transports[] = {&broken, NULL};
	static float data[BIG];
	struct rig r;

	broken.queue_create = broken_queue_create;
	rig_open_over(&r, transports, 0);
	assert_int_equal(phub_push_pull(r.phub, 0, data, data, 0), 0);
	rig_run(&r, 700 * MS);
	assert_int_equal(phub_test(r.phub, 0), -ECONNRESET);
	assert_non_null(strstr(phub_error(), "to its core "));
	assert_non_null(strstr(phub_error(), strerror(EIO)));
	rig_close(&r);
}

/* ---- urgency ---- */

static unsigned priority_of(struct rig *r, int left, int right)
{
	static float data[SMALL];

	assert_int_equal(phub_push(r->phub, 1, data, left), 0);
	assert_int_equal(phub_push(r->phub, 2, data, right), 0);
	rig_run(r, 10 * MS);
	assert_int_equal(client_idle(r->phub, PHUB_ALL), 1);
	return r->box.last.priority;
}

/* A chunk is as urgent as the most urgent of its keys, in each round anew; what a header cannot say is cut. */
static void a_chunk_is_as_urgent_as_its_keys(void **state)
{
	struct rig r;

	rig_open(&r, 0);
	assert_int_equal(priority_of(&r, 9, 4), 4);
	assert_int_equal(priority_of(&r, 5, 8), 5);
	assert_int_equal(priority_of(&r, 300, 200), 200);
	assert_int_equal(priority_of(&r, 3, -1), 0);
	assert_int_equal(priority_of(&r, 65535, 1 << 20), 65535);
	assert_int_equal(priority_of(&r, 1 << 20, 1 << 16), 65535);
	rig_close(&r);
}

/* ---- leaving ---- */

/* A connection that broke is not made anew, and nobody is woken for it. */
static void leaving_with_a_broken_connection(void **state)
{
	struct rig r;

	rig_open(&r, 0);
	r.box.deaf = true;
	for (unsigned i = 0; i < 2; i++) { /* the second time it pauses before it tries */
		loop_net_break(r.net, 0, 1);
		rig_run(&r, MS);
	}
	assert_true(r.phub->exchange.broken > 0);
	client_leave_begin(r.phub);
	for (unsigned i = 0; i < 100; i++) {
		rig_run(&r, 10 * MS);
		assert_true(client_due(r.phub) > loop_net_now(r.net));
	}
	assert_int_equal(client_left(r.phub), -EAGAIN);
	rig_close(&r);
}

TEST_PROGRAM(test_client_results)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_root_that_is_late),
		cmocka_unit_test(only_the_result_is_taken),
		cmocka_unit_test(a_damaged_result_is_dropped),
		cmocka_unit_test(a_round_ends_when_nothing_is_read),
		cmocka_unit_test(a_send_that_fails_ends_the_session),
		cmocka_unit_test(a_chunk_is_as_urgent_as_its_keys),
		cmocka_unit_test(leaving_with_a_broken_connection),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
