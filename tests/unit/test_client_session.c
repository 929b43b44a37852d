/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker's control session against a scripted box: joining, being refused, a box that is late, dead, silent or
 * hostile.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/fake_box.h"

#include <stddef.h>
#include <stdint.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/api.h"
#include "client/handle.h"
#include "client/hear.h"

#define MS 1000000ull

struct rig {
	struct loop_net *net;
	struct fake_box box;
	struct fake_site sites[FAKE_WORLD_MAX];
	phub_t *workers[FAKE_WORLD_MAX];
	uint32_t world;
	bool box_open;
};

static void rig_open(struct rig *r, uint32_t world, bool with_box)
{
	struct loop_plan plan = {.seed = 1, .hosts = 8, .delay_min_ns = 1000, .delay_max_ns = 50000, .split = 0.3};

	memset(r, 0, sizeof(*r));
	r->net = loop_net_create(&plan);
	r->world = world;
	r->box_open = with_box;
	if (with_box)
		fake_box_open(&r->box, r->net, world, 2);
	for (uint32_t i = 0; i < world; i++)
		fake_site_init(&r->sites[i], r->net, i + 1, 0);
}

static void rig_options(const struct rig *r, struct phub_options *o, uint32_t rank)
{
	phub_options_init(o);
	o->rank = (int)rank;
	o->world = (int)r->world;
}

static phub_t *rig_join(struct rig *r, uint32_t rank, const struct phub_options *options)
{
	struct phub_options o;
	struct err e;

	rig_options(r, &o, rank);
	assert_int_equal(
		client_open("phub://box/demo", options ? options : &o, &r->sites[rank].env, &r->workers[rank], &e), 0);
	return r->workers[rank];
}

/* Everybody does what can be done until `ns` have passed. */
static void rig_run(struct rig *r, uint64_t ns)
{
	uint64_t end = loop_net_now(r->net) + ns;

	while (loop_net_now(r->net) < end) {
		uint64_t next = loop_net_next(r->net), step = loop_net_now(r->net) + MS / 10;

		for (uint32_t i = 0; i < r->world; i++) {
			if (r->workers[i])
				client_progress(r->workers[i], loop_net_now(r->net));
		}
		if (r->box_open)
			fake_box_step(&r->box);
		loop_net_advance(r->net, next < step ? next : step);
	}
}

/* Every worker joins with the usual options; the box has the time to answer. */
static void rig_join_all(struct rig *r)
{
	for (uint32_t rank = 0; rank < r->world; rank++)
		rig_join(r, rank, NULL);
	rig_run(r, 10 * MS);
}

static void rig_close(struct rig *r)
{
	for (uint32_t i = 0; i < r->world; i++) {
		if (r->workers[i])
			client_close(r->workers[i]);
	}
	if (r->box_open)
		fake_box_close(&r->box);
	loop_net_destroy(r->net);
}

static void expect_failure(const phub_t *p, int code, const char *says)
{
	const struct err *e = client_failure(p);

	assert_int_equal(e->code, code);
	assert_int_equal(client_joined(p), code);
	if (!strstr(e->text, says))
		fail_msg("\"%s\" does not say \"%s\"", e->text, says);
	if (!strstr(e->text, "job demo rank"))
		fail_msg("\"%s\" does not name job and rank", e->text);
}

/* ---- two boxes in the URL ---- */

static void rig_join_two(struct rig *r, const char *url)
{
	struct phub_options o;
	struct err e;

	rig_options(r, &o, 0);
	assert_int_equal(client_open(url, &o, &r->sites[0].env, &r->workers[0], &e), 0);
}

/* Steps the boxes of both endpoints. */
static void rig_run_two(struct rig *r, struct fake_box *other, uint64_t ns)
{
	uint64_t end = loop_net_now(r->net) + ns;

	while (loop_net_now(r->net) < end) {
		fake_box_step(other);
		rig_run(r, 5 * MS);
	}
}

/* Not up, silent, or without the job: then the other one's turn comes, but not before it had time to come up. */
static void another_box_is_tried(void **state)
{
	for (int i = 0; i < 4; i++) {
		struct fake_box other;
		struct rig r;

		rig_open(&r, 1, i > 0);
		fake_box_open_at(&other, r.net, 6, 1, 2);
		r.box.deaf = i == 1;
		r.box.error_code = i == 2 ? PHUB__ERROR_CODE__ERROR_NO_JOB : 0;
		rig_join_two(&r, i < 3 ? "phub://host0,host6:7077/demo" : "phub://host0/demo");
		if (i == 3)
			r.box.error_code = PHUB__ERROR_CODE__ERROR_NO_JOB;
		rig_run_two(&r, &other, 1900 * MS);
		assert_int_equal(client_joined(r.workers[0]), i < 3 ? -EAGAIN : -ENOENT);
		rig_run_two(&r, &other, 1500 * MS);
		assert_int_equal(client_joined(r.workers[0]), i < 3 ? 0 : -ENOENT);
		if (i < 3)
			assert_string_equal(r.workers[0]->session.box, "host6:7077");
		client_close(r.workers[0]);
		r.workers[0] = NULL;
		fake_box_close(&other);
		rig_close(&r);
	}
}

/* Neither is there at first: they are tried in turns. */
static void boxes_are_tried_in_turns(void **state)
{
	struct rig r;

	rig_open(&r, 1, false);
	rig_join_two(&r, "phub://host0,host6/demo");
	rig_run(&r, 3000 * MS);
	assert_string_equal(r.workers[0]->session.box, "host6:7077");
	fake_box_open(&r.box, r.net, 1, 2);
	r.box_open = true;
	rig_run(&r, 3000 * MS);
	assert_int_equal(client_joined(r.workers[0]), 0);
	assert_string_equal(r.workers[0]->session.box, "host0:7077");
	rig_close(&r);
}

static void joining(void **state)
{
	struct rig r;

	rig_open(&r, 2, true);
	rig_join(&r, 0, NULL);
	rig_join(&r, 1, NULL);
	assert_int_equal(client_joined(r.workers[0]), -EAGAIN);
	rig_run(&r, 10 * MS);
	assert_int_equal(client_joined(r.workers[0]), 0);
	assert_int_equal(client_joined(r.workers[1]), 0);
	rig_close(&r);
}

static void a_box_that_comes_late(void **state)
{
	enum client_session_state before = SESSION_DIALLING;
	unsigned tries = 0;
	struct rig r;
	char text[300];

	rig_open(&r, 1, false);
	loop_net_delay(r.net, 0, 1, MS, MS);
	rig_join(&r, 0, NULL);
	rig_run(&r, 500 * MS);
	/* Whoever asks while the next try is under way hears the same. */
	for (uint32_t i = 0; i < 25000; i++) {
		const struct client_session *s = &r.workers[0]->session;

		tries += s->state == SESSION_HELLO && before == SESSION_DIALLING;
		before = s->state;
		assert_true(client_session_unreachable(s));
		client_explain(r.workers[0], PHUB_ALL, loop_net_now(r.net), text, sizeof(text));
		assert_non_null(strstr(text, "is phubd running there?"));
		rig_run(&r, MS / 10);
	}
	assert_true(tries > 2);
	assert_int_equal(client_joined(r.workers[0]), -EAGAIN);
	fake_box_open(&r.box, r.net, 1, 1);
	r.box_open = true;
	rig_run(&r, 600 * MS);
	assert_int_equal(client_joined(r.workers[0]), 0);
	rig_close(&r);
}

static void secrets(void **state)
{
	struct phub_options o;
	struct rig r;

	rig_open(&r, 3, true);
	r.box.secret = "open sesame";
	for (uint32_t i = 0; i < 3; i++) {
		rig_options(&r, &o, i);
		o.secret = i == 0 ? "open sesame" : i == 1 ? "open barley" : NULL;
		rig_join(&r, i, &o);
	}
	rig_run(&r, 10 * MS);
	assert_int_equal(client_joined(r.workers[0]), 0);
	expect_failure(r.workers[1], -EACCES, "wrong secret");
	expect_failure(r.workers[2], -EACCES, "PHUB_SECRET");
	rig_close(&r);
}

static void a_secret_that_the_box_does_not_know(void **state)
{
	struct phub_options o;
	struct rig r;

	rig_open(&r, 1, true);
	rig_options(&r, &o, 0);
	o.secret = "mine";
	rig_join(&r, 0, &o);
	rig_run(&r, 10 * MS);
	expect_failure(r.workers[0], -EACCES, "knows no secret");
	rig_close(&r);
}

static void a_box_that_cannot_prove_itself(void **state)
{
	struct rig r;

	rig_open(&r, 1, true);
	r.box.wrong_mac = true;
	rig_join_all(&r);
	expect_failure(r.workers[0], -EACCES, "not the box");
	rig_close(&r);
}

static void every_error_code(void **state)
{
	static const struct {
		uint32_t code;
		int expected;
	} cases[] = {
		{PHUB__ERROR_CODE__ERROR_VERSION, -EPROTONOSUPPORT},
		{PHUB__ERROR_CODE__ERROR_DENIED, -EACCES},
		{PHUB__ERROR_CODE__ERROR_NO_JOB, -ENOENT},
		{PHUB__ERROR_CODE__ERROR_RANK, -ERANGE},
		{PHUB__ERROR_CODE__ERROR_TAKEN, -EADDRINUSE},
		{PHUB__ERROR_CODE__ERROR_MISMATCH, -EBADMSG},
		{PHUB__ERROR_CODE__ERROR_LIMIT, -ENOMEM},
		{PHUB__ERROR_CODE__ERROR_PROTOCOL, -EPROTO},
		{PHUB__ERROR_CODE__ERROR_LOST, -EOWNERDEAD},
		{PHUB__ERROR_CODE__ERROR_NAN, -EDOM},
		{PHUB__ERROR_CODE__ERROR_NO_WEIGHTS, -ENODATA},
		{PHUB__ERROR_CODE__ERROR_UNSUPPORTED, -ENOTSUP},
		{PHUB__ERROR_CODE__ERROR_SHUTDOWN, -ESHUTDOWN},
		{4711, -EREMOTEIO},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct rig r;

		rig_open(&r, 1, true);
		r.box.error_code = cases[i].code;
		rig_join_all(&r);
		expect_failure(r.workers[0], cases[i].expected, "as told, taken or not");
		rig_close(&r);
	}
}

/* The box was too busy for this worker, or this worker too slow for the box: it tries again, at any time before it is
 * in. */
static void a_busy_box(void **state)
{
	struct rig r;

	for (int late = 0; late < 2; late++) {
		rig_open(&r, 1, true);
		r.box.error_code = PHUB__ERROR_CODE__ERROR_BUSY;
		r.box.error_late = late;
		rig_join_all(&r);
		assert_int_equal(client_joined(r.workers[0]), -EAGAIN);
		assert_non_null(strstr(r.workers[0]->session.trouble.text, "as told, taken or not"));
		r.box.error_code = 0;
		rig_run(&r, 1000 * MS);
		assert_int_equal(client_joined(r.workers[0]), 0);
		rig_close(&r);
	}
}

static void a_silent_box(void **state)
{
	struct rig r;

	rig_open(&r, 1, true);
	rig_join(&r, 0, NULL);
	rig_run(&r, 20000 * MS); /* heartbeats are answered: nothing happens */
	assert_int_equal(client_joined(r.workers[0]), 0);
	r.box.deaf = true;
	rig_run(&r, 4000 * MS);
	assert_int_equal(client_joined(r.workers[0]), 0);
	rig_run(&r, 3000 * MS);
	expect_failure(r.workers[0], -EHOSTDOWN, "silent for 5.");
	rig_close(&r);
}

/* Not the box was silent, but this process stopped: its clock jumps. */
static void a_worker_that_was_stopped(void **state)
{
	struct rig r;

	rig_open(&r, 1, true);
	rig_join(&r, 0, NULL);
	rig_run(&r, 700 * MS);
	fake_box_step(&r.box);
	loop_net_advance(r.net, loop_net_now(r.net) + 60000 * MS);
	rig_run(&r, 1000 * MS);
	assert_int_equal(client_joined(r.workers[0]), 0);
	rig_close(&r);
}

static void a_box_that_dies(void **state)
{
	struct rig r;

	rig_open(&r, 1, true);
	rig_join_all(&r);
	fake_box_hang_up(&r.box, 0);
	rig_run(&r, 10 * MS);
	expect_failure(r.workers[0], -ECONNRESET, "box box:7077");
	rig_close(&r);
}

static void leaving(void **state)
{
	struct rig r;

	rig_open(&r, 1, true);
	rig_join_all(&r);
	client_leave_begin(r.workers[0]);
	assert_int_equal(client_left(r.workers[0]), -EAGAIN);
	rig_run(&r, 10 * MS);
	assert_int_equal(client_left(r.workers[0]), 0);
	assert_true(r.box.workers[0].left);
	assert_int_equal(client_failure(r.workers[0])->code, -ESHUTDOWN);
	rig_close(&r);
}

static void barriers(void **state)
{
	struct rig r;

	rig_open(&r, 2, true);
	rig_join_all(&r);
	for (int i = 0; i < 3; i++) {
		client_barrier_begin(r.workers[0]);
		client_barrier_begin(r.workers[0]); /* asking again is the same barrier */
		rig_run(&r, 10 * MS);
		assert_int_equal(client_barrier_passed(r.workers[0]), -EAGAIN);
		client_barrier_begin(r.workers[1]);
		rig_run(&r, 10 * MS);
		client_barrier_begin(r.workers[0]); /* passed meanwhile: that is the one it asks for */
		assert_int_equal(client_barrier_passed(r.workers[0]), 0);
		assert_int_equal(client_barrier_passed(r.workers[1]), 0);
		client_barrier_end(r.workers[0]);
		client_barrier_end(r.workers[1]);
	}
	rig_close(&r);
}

/* ---- a box that says what it must not ---- */

typedef void say_fn(struct fake_box *b);

static void say_noise(struct fake_box *b)
{
	fake_box_say_bytes(b, 0, "\xff\xff\xff\xff\xff\xff\xff", 7);
}

/* The message's pointers, of whatever type, lie in one place. */
static void say_message(struct fake_box *b, Phub__Control__MessageCase what, void *message)
{
	Phub__Control c = PHUB__CONTROL__INIT;

	c.message_case = what;
	c.hello = message;
	fake_box_say(b, 0, &c);
}

static void say_challenge(struct fake_box *b)
{
	Phub__Challenge m = PHUB__CHALLENGE__INIT;

	say_message(b, PHUB__CONTROL__MESSAGE_CHALLENGE, &m);
}

static void say_welcome(struct fake_box *b)
{
	Phub__Welcome m = PHUB__WELCOME__INIT;

	say_message(b, PHUB__CONTROL__MESSAGE_WELCOME, &m);
}

static void say_start(struct fake_box *b)
{
	Phub__Start m = PHUB__START__INIT;

	say_message(b, PHUB__CONTROL__MESSAGE_START, &m);
}

static void say_barrier_done(struct fake_box *b)
{
	Phub__BarrierDone m = PHUB__BARRIER_DONE__INIT;

	m.id = 9;
	say_message(b, PHUB__CONTROL__MESSAGE_BARRIER_DONE, &m);
}

static void say_left(struct fake_box *b)
{
	Phub__Left m = PHUB__LEFT__INIT;

	say_message(b, PHUB__CONTROL__MESSAGE_LEFT, &m);
}

static void say_hello(struct fake_box *b)
{
	Phub__Hello m = PHUB__HELLO__INIT;

	say_message(b, PHUB__CONTROL__MESSAGE_HELLO, &m);
}

static void say_huge_frame(struct fake_box *b)
{
	/* As a web server would: its first letters are a length of a gigabyte. */
	b->workers[0].stream->ops->write(b->workers[0].stream, "HTTP/1.1 400 Bad Request\r\n\r\n", 28);
}

/* Each of them ends the session of a worker: one that has joined, or (a deaf box) one that is not through yet. */
static void check_broken(say_fn *const says[], size_t count, bool deaf)
{
	for (size_t i = 0; i < count; i++) {
		struct rig r;

		rig_open(&r, 1, true);
		r.box.deaf = deaf;
		rig_join_all(&r);
		says[i](&r.box);
		rig_run(&r, 10 * MS);
		expect_failure(r.workers[0], -EPROTO, "box");
		rig_close(&r);
	}
}

static void broken_protocol(void **state)
{
	static say_fn *const says[] = {say_noise, say_challenge, say_welcome, say_start, say_barrier_done, say_left,
		say_hello, say_huge_frame};

	check_broken(says, sizeof(says) / sizeof(says[0]), false);
}

static void early_messages(void **state)
{
	static say_fn *const says[] = {say_noise, say_welcome, say_start, say_left};

	check_broken(says, sizeof(says) / sizeof(says[0]), true);
}

/* The box's text reaches terminals and logs: control characters do not. */
static void texts_are_made_safe(void **state)
{
	struct rig r;

	rig_open(&r, 1, true);
	rig_join_all(&r);
	fake_box_error(&r.box, 0, PHUB__ERROR_CODE__ERROR_LOST, "a\033[2Jb\nc");
	rig_run(&r, 10 * MS);
	expect_failure(r.workers[0], -EOWNERDEAD, "a?[2Jb?c");
	rig_close(&r);
}

/* Who went, and why, as the box says it, is told once; of ranks that cannot be nothing is kept. */
static void who_went(void **state)
{
	uint32_t lost[] = {1, 3, 5000, 2}, left[] = {3, UINT32_MAX}, one[] = {1}, many[2 * SESSION_WHYS];
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Members members = PHUB__MEMBERS__INIT;
	char why[SESSION_WHY_BYTES], silent[] = "it was\nsilent", broken[] = "it broke", *whys[] = {broken, silent};
	uint32_t whys_of[] = {1, UINT32_MAX, 0, 0}, first[2 * SESSION_WHYS] = {0};
	struct rig r;

	rig_open(&r, 1, true);
	rig_join_all(&r);
	control.message_case = PHUB__CONTROL__MESSAGE_MEMBERS;
	control.members = &members;
	members.lost = lost;
	members.why = whys_of;
	members.n_lost = members.n_why = 4;
	members.left = left;
	members.whys = whys;
	members.n_left = members.n_whys = 2;
	assert_int_equal(api_take_fate(r.workers[0], 1, why), API_STAYED);
	fake_box_say(&r.box, 0, &control);
	rig_run(&r, 10 * MS);
	assert_int_equal(api_take_fate(r.workers[0], 1, why), API_LOST);
	assert_string_equal(why, "it was?silent");
	assert_int_equal(api_take_fate(r.workers[0], 2, why), API_LOST);
	assert_string_equal(why, "it broke");
	assert_int_equal(api_take_fate(r.workers[0], 3, why), API_LEFT);
	assert_string_equal(why, "");
	assert_int_equal(api_take_fate(r.workers[0], 0, why), API_STAYED);
	assert_int_equal(api_take_fate(r.workers[0], 5000, why), API_STAYED);
	assert_int_equal(api_take_fate(r.workers[0], 1, why), API_STAYED);
	fake_box_say(&r.box, 0, &control);
	members = (Phub__Members)PHUB__MEMBERS__INIT;
	members.lost = members.left = one;
	members.n_lost = members.n_left = 1;
	fake_box_say(&r.box, 0, &control);
	rig_run(&r, 10 * MS);
	assert_int_equal(api_take_fate(r.workers[0], 1, why), API_LEFT);
	assert_int_equal(api_take_fate(r.workers[0], 3, why), API_LEFT);
	members.whys = &whys[1]; /* one after the other, and none asks in between */
	members.why = first;
	members.n_whys = members.n_why = 1;
	for (members.n_left = 0; one[0] <= 2; whys[1] = broken, one[0]++)
		fake_box_say(&r.box, 0, &control);
	rig_run(&r, 10 * MS);
	assert_int_equal(api_take_fate(r.workers[0], 1, why), API_LOST);
	assert_string_equal(why, "it was?silent");
	assert_int_equal(api_take_fate(r.workers[0], 2, why), API_LOST);
	assert_string_equal(why, "it broke");
	for (uint32_t i = 0; i < 2 * SESSION_WHYS; i++)
		many[i] = i;
	members.lost = many;
	members.left = &many[SESSION_WHYS + 3]; /* who left takes no room */
	members.n_left = SESSION_WHYS - 3;
	members.n_lost = members.n_why = 2 * SESSION_WHYS;
	fake_box_say(&r.box, 0, &control);
	rig_run(&r, 10 * MS);
	for (uint32_t i = 0; i < 2 * SESSION_WHYS; i++) {
		assert_int_equal(api_take_fate(r.workers[0], i, why), i < SESSION_WHYS + 3 ? API_LOST : API_LEFT);
		assert_string_equal(why, i < 3 || i >= SESSION_WHYS + 3 ? "" : "it broke"); /* others have no room */
	}
	rig_close(&r);
}

/* ---- the key table ---- */

static void a_large_table(void **state)
{
	enum { KEYS = 30000 };
	struct rig r;
	struct err e;
	char name[200];

	rig_open(&r, 1, true);
	rig_join_all(&r);
	for (int i = 0; i < KEYS; i++) {
		snprintf(name, sizeof(name), "%0150d", i);
		assert_int_equal(phub_key(r.workers[0], name, PHUB_F32, 1 + (uint64_t)i % 7, 0, 0), i);
	}
	assert_int_equal(client_start_begin(r.workers[0], &e), 0);
	rig_run(&r, 100 * MS);
	assert_int_equal(client_started(r.workers[0]), 0);
	assert_int_equal(r.box.workers[0].keys_here, KEYS);
	rig_close(&r);
}

static void keys_that_cannot_be(void **state)
{
	struct rig r;
	struct err e;

	rig_open(&r, 1, true);
	rig_join(&r, 0, NULL);
	assert_int_equal(client_start_begin(r.workers[0], &e), -EINVAL); /* too early */
	rig_run(&r, 10 * MS);
	assert_int_equal(client_start_begin(r.workers[0], &e), -EINVAL);
	assert_non_null(strstr(e.text, "no keys"));
	assert_int_equal(phub_key(r.workers[0], "empty", PHUB_F32, 0, 0, 0), -EINVAL);
	assert_non_null(strstr(phub_error(), "'empty'"));
	assert_int_equal(phub_key(r.workers[0], "w", PHUB_F32, 1, 1, 0), -EINVAL);
	assert_non_null(strstr(phub_error(), "parameter group 1"));
	assert_int_equal(phub_key(r.workers[0], "w", (enum phub_dtype)9, 1, 0, 0), -EINVAL);
	assert_int_equal(phub_key(r.workers[0], "w", PHUB_F32, 1, 0, 8), -EINVAL);
	assert_int_equal(phub_key(r.workers[0], "", PHUB_F32, 1, 0, 0), -EINVAL);
	assert_int_equal(phub_key(r.workers[0], NULL, PHUB_F32, 1, 0, 0), -EINVAL);
	assert_int_equal(phub_key(r.workers[0], "w", PHUB_F32, UINT64_MAX / 2, 0, 0), -EOVERFLOW);
	assert_int_equal(phub_key(r.workers[0], "w", PHUB_F32, 5ull << 28, 0, 0), 0); /* 5 GiB */
	assert_int_equal(client_start_begin(r.workers[0], &e), 0);
	assert_int_equal(phub_key(r.workers[0], "late", PHUB_F32, 1, 0, 0), -EBUSY);
	rig_close(&r);
}

static void placements_that_cannot_be(void **state)
{
	struct err e;

	for (int i = 0; i < 3; i++) {
		struct rig r;

		rig_open(&r, 1, true);
		r.box.wrong_placement = i == 0;
		r.box.short_placement = i == 1;
		r.box.no_lanes = i == 2;
		rig_join_all(&r);
		assert_int_equal(phub_key(r.workers[0], "w", PHUB_F32, 5000, 0, 0), 0);
		assert_int_equal(client_start_begin(r.workers[0], &e), 0);
		/* A refused connection is not told before the box had time to say why. */
		rig_run(&r, i < 2 ? 20 * MS : 600 * MS);
		expect_failure(r.workers[0], i < 2 ? -EPROTO : -EACCES, "");
		rig_close(&r);
	}
}

/* Data connections are begun anew where nobody answers their handshakes, and given up in the end. */
static void handshakes_that_nobody_answers(void **state)
{
	for (int heals = 0; heals < 2; heals++) {
		struct rig r;
		struct err e;
		phub_t *p;

		rig_open(&r, 1, true);
		r.box.deaf_lanes = true;
		rig_join_all(&r);
		p = r.workers[0];
		assert_int_equal(phub_key(p, "w", PHUB_F32, 5000, 0, 0), 0);
		assert_int_equal(client_start_begin(p, &e), 0);
		rig_run(&r, 14000 * MS);
		r.box.deaf_lanes = !heals; /* what the first handshake waits for is never said */
		rig_run(&r, 900 * MS);
		assert_int_equal(client_started(p), -EAGAIN);
		rig_run(&r, 300 * MS);
		assert_int_equal(client_started(p), heals ? 0 : -EAGAIN);
		rig_run(&r, 16000 * MS);
		if (heals)
			assert_int_equal(client_started(p), 0);
		else
			expect_failure(
				p, -ETIMEDOUT, "does not answer the handshake of a data connection to its core 0");
		rig_close(&r);
	}
}

/* Before its first start a worker has lost nothing with the box: it comes back, and its caller hears nothing of it. */
static void a_box_is_lost_before_the_start(void **state)
{
	for (int resumes = 0; resumes < 2; resumes++) {
		struct phub_options o;
		struct rig r;
		struct err e;
		phub_t *p;

		rig_open(&r, 1, true);
		rig_options(&r, &o, 0);
		o.resume_ms = resumes ? 20000 : 0;
		p = rig_join(&r, 0, &o);
		rig_run(&r, 20 * MS);
		assert_int_equal(client_joined(p), 0);
		assert_int_equal(phub_key(p, "big", PHUB_F32, 100, 0, 0), 0);
		fake_box_hang_up(&r.box, 0);
		rig_run(&r, 10 * MS);
		assert_int_equal(client_failure(p)->code, resumes ? 0 : -ECONNRESET);
		assert_int_equal(client_joined(p), resumes ? -EAGAIN : -ECONNRESET);
		assert_int_equal(phub_start(p, 0), resumes ? -ETIMEDOUT : -ECONNRESET);
		rig_run(&r, 1000 * MS);
		if (resumes) {
			assert_int_equal(client_joined(p), 0);
			assert_int_equal(phub_key(p, "left", PHUB_F32, 100, 0, 0), 1);
			assert_int_equal(client_start_begin(p, &e), 0);
			rig_run(&r, 20 * MS);
			assert_int_equal(client_started(p), 0);
		}
		rig_close(&r);
	}
}

/* The box is lost: who has all its results may go at once, and who waits for one, or at a barrier, waits for the box.
 */
static void leaving_a_lost_box(void **state)
{
	for (int kind = 0; kind < 3; kind++) {
		struct phub_options o;
		float data[100] = {0};
		struct rig r;
		struct err e;
		phub_t *p;

		rig_open(&r, 1, true);
		rig_options(&r, &o, 0);
		o.resume_ms = 20000;
		p = rig_join(&r, 0, &o);
		rig_run(&r, 20 * MS);
		assert_int_equal(phub_key(p, "big", PHUB_F32, 100, 0, 0), 0);
		assert_int_equal(client_start_begin(p, &e), 0);
		rig_run(&r, 20 * MS);
		assert_int_equal(client_started(p), 0);
		if (kind == 1)
			assert_int_equal(phub_broadcast(p, 0, data, 0), 0);
		if (kind == 2)
			client_barrier_begin(p);
		fake_box_hang_up(&r.box, 0);
		rig_run(&r, 10 * MS);
		assert_int_equal(client_failure(p)->code, -ESTALE);
		assert_int_equal(phub_leave(p, 0), kind ? -ESTALE : 0);
		assert_int_equal(client_failure(p)->code, kind ? -ESTALE : -ESHUTDOWN);
		assert_int_equal(phub_leave(p, 0), kind ? -ESTALE : 0);
		rig_close(&r);
	}
}

TEST_PROGRAM(test_client_session)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(handshakes_that_nobody_answers),
		cmocka_unit_test(a_box_is_lost_before_the_start),
		cmocka_unit_test(leaving_a_lost_box),
		cmocka_unit_test(another_box_is_tried),
		cmocka_unit_test(boxes_are_tried_in_turns),
		cmocka_unit_test(joining),
		cmocka_unit_test(a_box_that_comes_late),
		cmocka_unit_test(secrets),
		cmocka_unit_test(a_secret_that_the_box_does_not_know),
		cmocka_unit_test(a_box_that_cannot_prove_itself),
		cmocka_unit_test(every_error_code),
		cmocka_unit_test(a_busy_box),
		cmocka_unit_test(a_silent_box),
		cmocka_unit_test(a_worker_that_was_stopped),
		cmocka_unit_test(a_box_that_dies),
		cmocka_unit_test(leaving),
		cmocka_unit_test(barriers),
		cmocka_unit_test(broken_protocol),
		cmocka_unit_test(early_messages),
		cmocka_unit_test(texts_are_made_safe),
		cmocka_unit_test(who_went),
		cmocka_unit_test(a_large_table),
		cmocka_unit_test(keys_that_cannot_be),
		cmocka_unit_test(placements_that_cannot_be),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
