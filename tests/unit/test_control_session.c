/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: who is let in, who is refused with which words, and that nonsense ends the session that sent it and nothing
 * else.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/control_rig.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/reliable.h"

static void test_welcome(void **state)
{
	struct rig rig;
	struct actor a;

	rig_open(&rig, 2, NULL);
	actor_enter(&rig, &a, 1, "demo", 0, 2);
	assert_int_equal(a.last->welcome->cores, 2);
	assert_int_equal(a.last->welcome->chunk_bytes, 32768);
	assert_int_equal(a.last->welcome->lost_ms, 10000);
	assert_int_equal(a.last->welcome->n_addresses, 1);
	assert_string_equal(a.last->welcome->addresses[0]->transport, "loop");
	actor_hang_up(&a);
	assert_int_equal(rig.box->control.session_count, 0);
	assert_int_equal(rig.box->control.job_count, 0);
	rig_close(&rig);
}

static void test_version(void **state)
{
	struct rig rig;
	struct actor a;
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Hello hello = PHUB__HELLO__INIT;
	uint8_t nonce[PROOF_NONCE] = {0};

	rig_open(&rig, 1, NULL);
	actor_dial(&rig, &a, 1);
	hello.version = 9;
	hello.version_min = 7;
	hello.job = (char *)(uintptr_t) "demo";
	hello.world = 1;
	hello.nonce.data = nonce;
	hello.nonce.len = sizeof(nonce);
	control.message_case = PHUB__CONTROL__MESSAGE_HELLO;
	control.hello = &hello;
	actor_say(&a, &control);
	actor_expect(&a, ERROR_OF(VERSION), "versions 7 to 9");
	assert_non_null(strstr(a.error, "speaks protocol version 1"));
	actor_hang_up(&a);
	rig_close(&rig);
}

static void test_names_and_ranks(void **state)
{
	static const struct {
		const char *job;
		uint32_t rank, world;
		int code;
		const char *words;
	} cases[] = {
		{"", 0, 1, ERROR_OF(NO_JOB), "no name for a job"},
		{"a b", 0, 1, ERROR_OF(NO_JOB), "no name for a job"},
		{"a/b", 0, 1, ERROR_OF(NO_JOB), "no name for a job"},
		{"0123456789012345678901234567890123456789012345678901234567890123", 0, 1, ERROR_OF(NO_JOB), "no name"},
		{"demo", 2, 2, ERROR_OF(RANK), "job 'demo': rank 2 of a world of 2 is out of range"},
		{"demo", 0, 0, ERROR_OF(RANK), "out of range"},
		{"demo", 0, 5000, ERROR_OF(RANK), "out of range"},
	};
	struct rig rig;
	struct actor a;

	rig_open(&rig, 1, NULL);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		actor_dial(&rig, &a, 1);
		assert_false(actor_join(&a, cases[i].job, cases[i].rank, cases[i].world, NULL));
		actor_expect(&a, cases[i].code, cases[i].words);
		actor_hang_up(&a);
	}
	assert_int_equal(rig.box->control.session_count, 0);
	assert_int_equal(rig.box->control.strangers_refused, sizeof(cases) / sizeof(cases[0]));
	rig_close(&rig);
}

static void test_taken_and_world(void **state)
{
	struct rig rig;
	struct actor a, b;

	rig_open(&rig, 1, NULL);
	actor_enter(&rig, &a, 1, "demo", 1, 3);
	actor_dial(&rig, &b, 2);
	assert_false(actor_join(&b, "demo", 1, 3, NULL));
	actor_expect(&b, ERROR_OF(TAKEN), "rank 1 of job 'demo' is taken by ");
	actor_hang_up(&b);
	actor_dial(&rig, &b, 2);
	assert_false(actor_join(&b, "demo", 2, 4, NULL));
	actor_expect(&b, ERROR_OF(MISMATCH), "job 'demo' has a world of 3, rank 2 says 4");
	actor_hang_up(&b);
	actor_hear(&a);
	assert_int_equal(a.error_code, 0);
	/* The rank is free again once it is gone. */
	actor_hang_up(&a);
	actor_enter(&rig, &b, 2, "demo", 1, 3);
	actor_hang_up(&b);
	rig_close(&rig);
}

/* A worker dies and is started again at once: the box may hear of both in one step. */
static void test_place_of_the_dead(void **state)
{
	struct rig rig;
	struct actor a, b;

	rig_open(&rig, 1, NULL);
	actor_enter(&rig, &a, 1, "demo", 0, 1);
	actor_dial(&rig, &b, 2);
	actor_hello(&b, "demo", 0, 1);
	assert_int_equal(actor_hear(&b), PHUB__CONTROL__MESSAGE_CHALLENGE);
	a.stream->ops->close(a.stream);
	a.stream = NULL;
	actor_prove(&b, "demo", 0, 1, NULL);
	assert_true(actor_welcomed(&b));
	actor_hang_up(&a);
	actor_hang_up(&b);
	rig_close(&rig);
}

/* A secret in the environment, as create_secret_env and admin_secret_env name it. */
static void test_secret(void **state)
{
	static const char *const settings[] = {"create=secret", "create_secret_env=PHUB_TEST_SECRET", NULL};
	struct rig rig;
	struct actor a;

	setenv("PHUB_TEST_SECRET", "open sesame", 1);
	rig_open(&rig, 1, settings);
	actor_dial(&rig, &a, 1);
	assert_false(actor_join(&a, "demo", 0, 1, "open barley"));
	actor_expect(&a, ERROR_OF(DENIED), "job 'demo': wrong secret");
	actor_hang_up(&a);
	actor_dial(&rig, &a, 1);
	assert_false(actor_join(&a, "demo", 0, 1, NULL));
	actor_expect(&a, ERROR_OF(DENIED), "wrong secret");
	actor_hang_up(&a);
	actor_dial(&rig, &a, 1);
	assert_true(actor_join(&a, "demo", 0, 1, "open sesame"));
	actor_hang_up(&a);
	rig_close(&rig);
}

/* A box that looks for the root, and has the secret, is no stranger where it does not find it; whatever else is wrong
 * there, it is to look elsewhere. */
static void test_looks_for_root(void **state)
{
	static const char *const settings[] = {
		"create=secret", "create_secret_env=PHUB_TEST_SECRET", "uplink=127.0.0.1:9", NULL};
	static const char *const ours[] = {"uplink=127.0.0.1:9", NULL};
	static const struct {
		const char *const *settings;
		const char *secret, *words;
		uint64_t least, strangers;
	} cases[] = {
		{settings, "open sesame", "it is no root", 1, 0},
		{settings, "open barley", "have different secrets", 1, 1},
		{ours, NULL, "only the box's own user over loopback may create one", 1, 1},
		{NULL, NULL, "the root of epoch 2 or a later one is looked for, and this one is of epoch 1", 2, 0},
	};
	struct rig rig;
	struct actor a;

	setenv("PHUB_TEST_SECRET", "open sesame", 1);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		rig_open(&rig, 1, cases[i].settings);
		loop_net_host(rig.net, 2)->remote = cases[i].settings == ours;
		actor_dial(&rig, &a, 2);
		a.below = true;
		a.least = cases[i].least;
		assert_false(actor_join(&a, "demo", 0, 2, cases[i].secret));
		actor_expect(&a, ERROR_OF(BUSY), cases[i].words);
		assert_null(strstr(a.error, "127.0.0.1:9")); /* which it does not know to be the root */
		actor_hang_up(&a);
		assert_int_equal(rig.box->control.strangers_refused, cases[i].strangers);
		assert_int_equal(rig.box->control.stranger_count, 0);
		rig_close(&rig);
	}
}

static void test_strangers_from_elsewhere(void **state)
{
	struct rig rig;
	struct actor a, b;

	rig_open(&rig, 1, NULL);
	loop_net_host(rig.net, 2)->remote = true;
	loop_net_host(rig.net, 3)->uid = (int64_t)getuid() + 1;
	for (unsigned host = 2; host <= 3; host++) {
		actor_dial(&rig, &a, host);
		assert_false(actor_join(&a, "demo", 0, 1, NULL));
		actor_expect(&a, ERROR_OF(NO_JOB), "only the box's own user over loopback may create one");
		actor_hang_up(&a);
		actor_dial(&rig, &a, host);
		assert_false(actor_join_admin(&a, NULL));
		actor_expect(&a, ERROR_OF(DENIED), "admin_secret_file");
		actor_hang_up(&a);
	}
	/* Nor may they join what this user has made. */
	actor_enter(&rig, &b, 1, "demo", 0, 2);
	actor_dial(&rig, &a, 2);
	assert_false(actor_join(&a, "demo", 1, 2, NULL));
	actor_expect(&a, ERROR_OF(DENIED), "has no secret");
	actor_hang_up(&a);
	actor_hang_up(&b);
	rig_close(&rig);
}

static void test_out_of_order(void **state)
{
	struct rig rig;
	struct actor a;

	rig_open(&rig, 1, NULL);
	actor_dial(&rig, &a, 1);
	actor_barrier(&a, 1);
	actor_expect(&a, ERROR_OF(PROTOCOL), "instead of hello");
	actor_hang_up(&a);
	actor_dial(&rig, &a, 1);
	actor_hello(&a, "demo", 0, 1);
	actor_hello(&a, "demo", 0, 1);
	actor_expect(&a, ERROR_OF(PROTOCOL), "instead of a proof");
	actor_hang_up(&a);
	actor_enter(&rig, &a, 1, "demo", 0, 1);
	actor_hyper(&a, 1, 0.1);
	actor_expect(&a, ERROR_OF(PROTOCOL), "job 'demo' rank 0: hyper-parameters when the job does not run");
	actor_hang_up(&a);
	assert_int_equal(rig.box->control.session_count, 0);
	rig_close(&rig);
}

static void test_rubbish(void **state)
{
	static const uint8_t huge[] = {0xff, 0xff, 0xff, 0x7f, 1, 2, 3};
	static const uint8_t broken[] = {3, 0, 0, 0, 0xff, 0xff, 0xff};
	static const uint8_t empty[] = {0, 0, 0, 0};
	struct rig rig;
	struct actor a, good;

	rig_open(&rig, 1, NULL);
	actor_enter(&rig, &good, 1, "demo", 0, 2);
	actor_dial(&rig, &a, 2);
	actor_say_bytes(&a, huge, sizeof(huge));
	actor_expect(&a, ERROR_OF(PROTOCOL), "a frame of more than");
	actor_hang_up(&a);
	actor_dial(&rig, &a, 2);
	actor_say_bytes(&a, broken, sizeof(broken));
	actor_expect(&a, ERROR_OF(PROTOCOL), "that is no message");
	actor_hang_up(&a);
	actor_dial(&rig, &a, 2);
	actor_say_bytes(&a, empty, sizeof(empty));
	actor_hear(&a);
	assert_true(a.closed);
	actor_hang_up(&a);
	actor_dial(&rig, &a, 2);
	actor_say_bytes(&a, "\0", 1);
	actor_hang_up(&a);
	assert_int_equal(rig.box->control.session_count, 1);
	actor_hear(&good);
	assert_int_equal(good.error_code, 0);
	actor_hang_up(&good);
	rig_close(&rig);
}

/* A frame may hold many small messages, each of which costs memory. */
static void test_costly_frame(void **state)
{
	enum { KEYS = 500000 };
	uint8_t *frame = malloc(KEYS * 2 + 16);
	struct rig rig;
	struct actor a;
	size_t at = 4;

	rig_open(&rig, 1, NULL);
	actor_enter(&rig, &a, 1, "demo", 0, 1);
	frame[at++] = 6 << 3 | 2; /* keys */
	frame[at++] = ((KEYS * 2) & 0x7f) | 0x80;
	frame[at++] = (((KEYS * 2) >> 7) & 0x7f) | 0x80;
	frame[at++] = (KEYS * 2) >> 14;
	for (size_t i = 0; i < KEYS; i++) {
		frame[at++] = 3 << 3 | 2; /* an empty key */
		frame[at++] = 0;
	}
	for (unsigned i = 0; i < 4; i++)
		frame[i] = (uint8_t)((at - 4) >> (8 * i));
	actor_say_bytes(&a, frame, at);
	actor_expect(&a, ERROR_OF(PROTOCOL), "that is no message");
	actor_hang_up(&a);
	free(frame);
	rig_close(&rig);
}

static void test_handshake_deadline(void **state)
{
	struct rig rig;
	struct actor a, b;

	rig_open(&rig, 1, NULL);
	actor_dial(&rig, &a, 1);
	actor_dial(&rig, &b, 2);
	actor_hello(&b, "demo", 0, 1);
	rig_wait(&rig, 4800);
	actor_hear(&a);
	assert_int_equal(a.error_code, 0);
	rig_wait(&rig, 400);
	actor_expect(&a, ERROR_OF(BUSY), "not proved within the box's handshake_ms of 5000; try again in a moment");
	actor_expect(&b, ERROR_OF(BUSY), "not proved within the box's handshake_ms of 5000; try again in a moment");
	rig_wait(&rig, 5200); /* done, but they do not hang up */
	assert_int_equal(rig.box->control.session_count, 0);
	actor_hang_up(&a);
	actor_hang_up(&b);
	rig_close(&rig);
}

static void test_limits(void **state)
{
	static const char *const settings[] = {"sessions_max=3", "jobs_max=1", NULL};
	struct rig rig;
	struct actor a[4];

	rig_open(&rig, 1, settings);
	for (unsigned i = 0; i < 4; i++)
		actor_dial(&rig, &a[i], i + 1);
	actor_expect(&a[3], ERROR_OF(LIMIT), "raise sessions_max");
	actor_hang_up(&a[3]);
	assert_true(actor_join(&a[0], "one", 0, 2, NULL));
	assert_true(actor_join(&a[1], "one", 1, 2, NULL));
	assert_false(actor_join(&a[2], "two", 0, 2, NULL));
	actor_expect(&a[2], ERROR_OF(LIMIT), "raise jobs_max");
	for (unsigned i = 0; i < 3; i++)
		actor_hang_up(&a[i]);
	rig_close(&rig);
}

/* Ranks of one job declare more keys than they send: then another job still has room for its own, and in the end
 * theirs. */
static void test_tables_of_a_tenant(void **state)
{
	static const char *const settings[] = {"memory_max=1MiB", NULL};
	static const struct rig_job plain = {.generation = 1};
	static struct actor greedy[64], other;
	unsigned count = 0;
	struct rig rig;

	rig_open(&rig, 1, settings);
	for (; count < 64; count++) {
		actor_enter(&rig, &greedy[count], 2, "greedy", count, 64);
		actor_job(&greedy[count], &plain, 65);
		actor_keys(&greedy[count], 1, 0, 64, 10);
		actor_hear(&greedy[count]);
		if (greedy[count].error_code)
			break;
	}
	assert_true(count > 2 && count < 64);
	assert_non_null(strstr(greedy[count].error, "no room for more keys"));
	assert_true(rig.box->control.table_bytes <= (1u << 20) / 8);
	actor_enter(&rig, &other, 3, "other", 0, 1);
	actor_table(&other, NULL, 60, 10);
	assert_int_equal(actor_hear(&other), PHUB__CONTROL__MESSAGE_START);
	for (unsigned s = 0; s < 125; s++) {
		for (unsigned i = 0; i < count; i++)
			actor_heartbeat(&greedy[i]);
		actor_heartbeat(&other);
		rig_wait(&rig, 1000);
	}
	actor_hear(&greedy[0]);
	assert_non_null(strstr(greedy[0].error, "its key table has not come in 120 s"));
	actor_hear(&other);
	assert_int_equal(other.error_code, 0);
	for (unsigned i = 0; i <= count; i++)
		actor_hang_up(&greedy[i]);
	actor_leave(&other);
	rig_wait(&rig, 1000);
	assert_int_equal(rig.box->control.table_bytes, 0);
	actor_hang_up(&other);
	rig_close(&rig);
}

static void test_slow_reader(void **state)
{
	static const char *const settings[] = {"lost_ms=3600000", NULL};
	struct rig rig;
	struct actor a;

	rig_open(&rig, 1, settings);
	actor_enter(&rig, &a, 1, "demo", 0, 2);
	/* Every heartbeat is answered, and no answer is read. */
	for (int i = 0; i < 1500000 && rig.box->control.session_count > 0; i++) {
		uint8_t frame[] = {2, 0, 0, 0, 11 << 3 | 2, 0};

		if (a.stream->ops->write(a.stream, frame, sizeof(frame)) == -EAGAIN || i % 1000 == 0)
			rig_turn_control(&rig);
	}
	assert_int_equal(rig.box->control.session_count, 0);
	actor_hang_up(&a);
	rig_close(&rig);
}

/* Who begins data connections without end costs others nothing: its session ends. */
static void test_signals(void **state)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Signal signal = PHUB__SIGNAL__INIT;
	struct rig rig;
	struct actor a;

	control.message_case = PHUB__CONTROL__MESSAGE_SIGNAL;
	control.signal = &signal;
	rig_open(&rig, 1, NULL);
	actor_enter(&rig, &a, 1, "demo", 0, 1);
	for (int i = 0; i < 256; i++)
		actor_say(&a, &control);
	actor_hear(&a);
	assert_int_equal(a.error_code, 0);
	rig_wait(&rig, 1000);
	for (int i = 0; i < 64; i++)
		actor_say(&a, &control);
	actor_hear(&a);
	assert_int_equal(a.error_code, 0);
	actor_say(&a, &control);
	actor_expect(&a, ERROR_OF(PROTOCOL), "more signals than 64 a second");
	actor_hang_up(&a);
	rig_turn_control(&rig);
	rig_close(&rig);
}

static void test_admin(void **state)
{
	static const char *const settings[] = {"admin_secret_env=PHUB_TEST_SECRET", NULL};
	struct rig rig;
	struct actor a, admin;

	setenv("PHUB_TEST_SECRET", "open sesame", 1);
	rig_open(&rig, 2, settings);
	actor_enter(&rig, &a, 1, "demo", 1, 3);
	actor_dial(&rig, &admin, 2);
	assert_true(actor_join_admin(&admin, NULL));
	actor_ask(&admin, "jobs");
	assert_int_equal(actor_hear(&admin), PHUB__CONTROL__MESSAGE_ADMIN_REPLY);
	const Phub__AdminReply *reply = admin.last->admin_reply;
	assert_int_equal(reply->n_cores, 2);
	assert_int_equal(reply->cores[1]->datagrams->n_dropped, RELIABLE_DROPS);
	assert_string_equal(reply->cores[1]->datagrams->dropped[RELIABLE_FORGED]->why, "forged");
	assert_int_equal(reply->cores[1]->datagrams->dropped[RELIABLE_FORGED]->count, 0);
	assert_int_equal(reply->n_jobs, 1);
	assert_string_equal(reply->jobs[0]->name, "demo");
	assert_string_equal(reply->jobs[0]->state, "forming");
	assert_int_equal(reply->jobs[0]->n_workers, 1);
	assert_int_equal(reply->jobs[0]->workers[0]->rank, 1);
	assert_int_equal(reply->jobs[0]->n_missing, 2);
	assert_int_equal(reply->jobs[0]->missing[1], 2);
	assert_string_equal(reply->jobs[0]->waiting, "1 of 3 ranks joined, 0 sent their keys");
	actor_ask(&admin, "shutdown");
	actor_hear(&admin);
	assert_string_equal(admin.last->admin_reply->error,
		"unknown command; allowed: jobs, status, root, pause, resume, drain, evict, rebalance, promote");
	actor_hang_up(&admin);
	loop_net_host(rig.net, 2)->remote = true;
	actor_dial(&rig, &admin, 2);
	assert_true(actor_join_admin(&admin, "open sesame"));
	actor_hang_up(&admin);
	actor_hang_up(&a);
	rig_close(&rig);
}

static void test_shutdown(void **state)
{
	struct rig rig;
	struct actor a, b;

	rig_open(&rig, 1, NULL);
	actor_enter(&rig, &a, 1, "demo", 0, 2);
	control_stop(&rig.box->control);
	rig_turn_control(&rig);
	actor_expect(&a, ERROR_OF(SHUTDOWN), "the box is going down");
	actor_dial(&rig, &b, 2);
	actor_expect(&b, ERROR_OF(SHUTDOWN), "the box is going down");
	assert_true(control_stopped(&rig.box->control));
	actor_hang_up(&a);
	actor_hang_up(&b);
	rig_close(&rig);
}

TEST_PROGRAM(test_control_session)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_welcome),
		cmocka_unit_test(test_version),
		cmocka_unit_test(test_names_and_ranks),
		cmocka_unit_test(test_taken_and_world),
		cmocka_unit_test(test_place_of_the_dead),
		cmocka_unit_test(test_secret),
		cmocka_unit_test(test_looks_for_root),
		cmocka_unit_test(test_strangers_from_elsewhere),
		cmocka_unit_test(test_out_of_order),
		cmocka_unit_test(test_rubbish),
		cmocka_unit_test(test_costly_frame),
		cmocka_unit_test(test_handshake_deadline),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_tables_of_a_tenant),
		cmocka_unit_test(test_slow_reader),
		cmocka_unit_test(test_signals),
		cmocka_unit_test(test_admin),
		cmocka_unit_test(test_shutdown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
