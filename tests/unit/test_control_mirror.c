/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A standby, as boxes see it: copies are made, kept and thrown away; whoever may not do what he asks for is told why,
 * and nothing is left of it.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/mirror_rig.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregation/convert.h"

/* ---- refused ---- */

static void expect_no_move(struct standby *s, uint32_t rank, uint32_t world, const char *text)
{
	struct actor a;

	assert_int_equal(actor_move(&s->rig, &a, 4, rank, world), ERROR_OF(NO_JOB));
	actor_expect(&a, ERROR_OF(NO_JOB), text);
	actor_hang_up(&a);
}

static void test_no_move(void **state)
{
	struct mirror_shape other = mirror_plain;
	struct standby s;
	struct actor a;

	standby_open(&s, &mirror_plain, NULL);
	expect_no_move(&s, 0, 2, "there is no copy of it");
	feed_mirror(&s.rig, &s.box, "job", &s.shape, s.g);
	/* First weights of most chunks are there. */
	for (uint32_t i = 1; i < s.chunks; i++)
		mirror_image(&s.box, s.g, i);
	expect_no_move(&s, 0, 2, "not whole yet");
	/* A worker that comes to the wrong box. */
	actor_dial(&s.rig, &a, 4);
	assert_false(actor_join(&a, "job", 0, 2, NULL));
	actor_expect(&a, ERROR_OF(NO_JOB), "runs at box 10.0.0.1:7077, of which this is the standby");
	actor_hang_up(&a);
	/* The box says that it is whole, and it is not. */
	mirror_say_state(&s.box.a, true, NULL, 0, 0);
	expect_no_move(&s, 0, 3, "another world");
	for (uint32_t rank = 0; rank < MIRROR_WORLD; rank++)
		feed_join(&s.rig, &s.moved[rank], "job", rank, true, &s.shape);
	rig_wait(&s.rig, 100);
	actor_expect(&s.moved[0].a, ERROR_OF(NO_JOB), "not whole, though its box said so");
	feed_close(&s.moved[0]);
	feed_close(&s.moved[1]);
	feed_close(&s.box);
	/* Workers with another table than their box knew. */
	standby_mirror(&s);
	other.mean = false;
	for (uint32_t rank = 0; rank < MIRROR_WORLD; rank++)
		feed_join(&s.rig, &s.moved[rank], "job", rank, true, &other);
	rig_wait(&s.rig, 100);
	actor_expect(&s.moved[1].a, ERROR_OF(MISMATCH), "reduce differs");
	feed_close(&s.moved[0]);
	feed_close(&s.moved[1]);
	/* It is there as it was; its box ends it while one waits. */
	feed_join(&s.rig, &s.moved[0], "job", 0, true, &s.shape);
	actor_leave(&s.box.a);
	assert_int_equal(actor_hear(&s.box.a), PHUB__CONTROL__MESSAGE_LEFT);
	actor_expect(&s.moved[0].a, ERROR_OF(NO_JOB), "its copy is no more");
	feed_close(&s.moved[0]);
	feed_close(&s.box);
	standby_close(&s);
}

/* A box of which something does not fit: it is told, and its copy is gone. */
static void expect_no_mirror(struct standby *s, const struct mirror_shape *shape, int code, const char *text)
{
	struct actor a;

	actor_dial(&s->rig, &a, 9);
	a.mirror = true;
	assert_true(actor_join(&a, "job", 0, 1, NULL));
	mirror_say_mirror(&a, shape, s->g);
	mirror_say_keys(&a, shape);
	actor_expect(&a, code, text);
	actor_hang_up(&a);
	rig_wait(&s->rig, 100);
	assert_null(mirror_job(&s->rig, "job", true));
}

/* Who knows a tenant's secret gets by as a box what the tenant's entry allows, and no more. */
static void test_listed(void **state)
{
	static struct config_job listed[1] = {{.name = "alice", .weight = 3, .bandwidth = 1 << 20}};
	static struct actor a[JOB_BESIDE_MAX + 1];
	static char secret[] = "alicesecret-alicesecret";
	struct standby s;

	standby_open(&s, &mirror_plain, NULL);
	listed[0].secret = (struct config_secret){.bytes = (void *)secret, .length = strlen(secret)};
	s.rig.config.jobs = listed;
	s.rig.config.job_count = 1;
	for (unsigned i = 0; i <= JOB_BESIDE_MAX; i++) {
		char name[32];

		snprintf(name, sizeof(name), "alice.%u", i);
		actor_dial(&s.rig, &a[i], 9);
		a[i].mirror = true;
		assert_int_equal(actor_join(&a[i], name, 0, 1, secret), i < JOB_BESIDE_MAX);
		if (i == JOB_BESIDE_MAX)
			assert_non_null(strstr(a[i].error, "there are 8 beside job 'alice'"));
		if (i > 1)
			continue;
		listed[0].cores = i; /* none; then fewer than its box has it on */
		mirror_say_mirror(&a[i], &mirror_plain, s.g);
		mirror_say_keys(&a[i], &mirror_plain);
		if (i == 0) {
			const struct job *job;

			assert_int_equal(actor_hear(&a[i]), PHUB__CONTROL__MESSAGE_START);
			job = mirror_job(&s.rig, name, true);
			assert_int_equal(job->generation->spec.weight, 3);
			assert_int_equal(job->generation->spec.bandwidth, 2 << 20);
		} else {
			assert_int_equal(actor_hear(&a[i]), PHUB__CONTROL__MESSAGE_ERROR);
			assert_non_null(
				strstr(a[i].error, "on 2 cores, and its entry in the standby's list of jobs allows 1"));
			listed[0].cores = 0;
			actor_hang_up(&a[1]);
			actor_dial(&s.rig, &a[1], 9);
			a[1].mirror = true;
			assert_true(actor_join(&a[1], "alice.1", 0, 1, secret));
		}
	}
	for (unsigned i = 0; i <= JOB_BESIDE_MAX; i++)
		actor_hang_up(&a[i]);
	rig_wait(&s.rig, 100);
	s.rig.config.jobs = NULL;
	s.rig.config.job_count = 0;
	standby_close(&s);
}

static void test_no_mirror(void **state)
{
	struct mirror_shape shape = mirror_plain;
	struct generation wrong;
	uint16_t cores[256];
	struct standby s;
	struct actor a;

	standby_open(&s, &mirror_plain, NULL);
	for (int i = 0; i < 3; i++) {
		actor_dial(&s.rig, &a, 9);
		a.mirror = true;
		a.moves = i == 2;
		assert_false(actor_join(&a, i == 0 ? "steady" : "job", 0, i == 1 ? 2 : 1, NULL));
		assert_int_equal(a.error_code, i == 0 ? ERROR_OF(TAKEN) : ERROR_OF(PROTOCOL));
		actor_hang_up(&a);
	}
	shape.sync = SYNC_ASYNC;
	expect_no_mirror(&s, &shape, ERROR_OF(UNSUPPORTED), "sync async are not mirrored");
	shape = mirror_plain;
	shape.optimizer = (enum optimizer_kind)99;
	expect_no_mirror(&s, &shape, ERROR_OF(UNSUPPORTED), "optimizer 99");
	wrong = *s.g;
	s.g = &wrong;
	wrong.spec.core_count = 3;
	expect_no_mirror(&s, &mirror_plain, ERROR_OF(UNSUPPORTED), "has 3 cores and this standby 2; set cores");
	wrong.spec.core_count = 2;
	wrong.spec.plan.chunk_count--;
	expect_no_mirror(&s, &mirror_plain, ERROR_OF(PROTOCOL), "chunks are placed");
	wrong.spec.plan.chunk_count = 0;
	expect_no_mirror(&s, &mirror_plain, ERROR_OF(LIMIT), "and this one has 0");
	wrong.spec.plan.chunk_count = s.chunks;
	memcpy(cores, wrong.core_of_chunk, s.chunks * sizeof(*cores));
	cores[1] = 2;
	wrong.core_of_chunk = cores;
	expect_no_mirror(&s, &mirror_plain, ERROR_OF(UNSUPPORTED), "cannot be placed on 2 cores");
	standby_close(&s);
}

/* A box that is slow between the two halves of a key table is waited for. */
static void test_slow_table(void **state)
{
	struct standby s;
	struct actor a;

	standby_open(&s, &mirror_plain, NULL);
	s.rig.now_ns += 200 * NS_PER_S; /* the box has been up for some time */
	rig_wait(&s.rig, 20);
	actor_dial(&s.rig, &a, 9);
	a.mirror = true;
	assert_true(actor_join(&a, "job", 0, 1, NULL));
	mirror_say_mirror(&a, &mirror_plain, s.g);
	rig_wait(&s.rig, 1000);
	mirror_say_keys(&a, &mirror_plain);
	assert_int_equal(actor_hear(&a), PHUB__CONTROL__MESSAGE_START);
	actor_hang_up(&a);
	rig_wait(&s.rig, 20);
	standby_close(&s);
}

/* ---- what no box says ---- */

static void say_simple(struct actor *a, int what)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Mirror mirror = PHUB__MIRROR__INIT;
	Phub__Barrier barrier = PHUB__BARRIER__INIT;
	Phub__MirrorTaken taken = PHUB__MIRROR_TAKEN__INIT;
	const uint32_t lost[] = {MIRROR_WORLD};

	switch (what) {
	case 0:
		control.message_case = PHUB__CONTROL__MESSAGE_MIRROR;
		control.mirror = &mirror;
		actor_say(a, &control);
		break;
	case 1:
		control.message_case = PHUB__CONTROL__MESSAGE_BARRIER;
		control.barrier = &barrier;
		actor_say(a, &control);
		break;
	case 2:
		control.message_case = PHUB__CONTROL__MESSAGE_MIRROR_TAKEN;
		control.mirror_taken = &taken;
		actor_say(a, &control);
		break;
	case 3:
		mirror_say_job(a, &mirror_plain);
		break;
	case 4:
		mirror_say_keys(a, &mirror_plain);
		break;
	case 5:
		actor_hyper(a, 3, 0.1);
		break;
	case 6:
		actor_hyper(a, 1, -0.1);
		break;
	default:
		mirror_say_state(a, true, lost, 1, 0);
		break;
	}
}

static void test_hostile_sessions(void **state)
{
	struct standby s;
	struct actor a;

	standby_open(&s, &mirror_plain, NULL);
	/* In the wrong order; then after a good start. */
	for (int what = 0; what < 8; what++) {
		actor_dial(&s.rig, &a, 9);
		a.mirror = true;
		assert_true(actor_join(&a, "job", 0, 1, NULL));
		say_simple(&a, what);
		actor_hear(&a);
		assert_int_equal(a.error_code, ERROR_OF(PROTOCOL));
		actor_hang_up(&a);
		rig_wait(&s.rig, 20);
		assert_null(mirror_job(&s.rig, "job", true));
		feed_mirror(&s.rig, &s.box, "job", &mirror_plain, s.g);
		say_simple(&s.box.a, what);
		actor_hear(&s.box.a);
		assert_int_equal(s.box.a.error_code, what == 7 ? ERROR_OF(RANK) : ERROR_OF(PROTOCOL));
		feed_close(&s.box);
		rig_wait(&s.rig, 20);
		assert_null(mirror_job(&s.rig, "job", true));
	}
	/* Barriers go on. */
	standby_mirror(&s);
	mirror_say_state(&s.box.a, true, NULL, 0, 5);
	mirror_say_state(&s.box.a, true, NULL, 0, 4);
	actor_expect(&s.box.a, ERROR_OF(PROTOCOL), "goes back behind its barrier");
	feed_close(&s.box);
	assert_true(mirror_job(&s.rig, "job", true)->mirror->whole);
	standby_mirror(&s); /* takes its place */
	actor_leave(&s.box.a);
	feed_close(&s.box);
	standby_close(&s);
}

static void test_hostile_data(void **state)
{
	static const struct {
		struct wire_header h;
		const char *text;
	} wrong[] = {
		{{.type = WIRE_PULL}, "Protocol error"},
		{{.type = WIRE_PUSH, .round = 1, .count = 0}, "Protocol error"},
		{{.type = WIRE_PUSH, .round = 9, .count = 2}, "Protocol error"},
		{{.type = WIRE_INIT, .round = 9, .count = 2}, "Protocol error"},
		{{.type = WIRE_INIT, .round = 9, .count = 3}, "Protocol error"},
		{{.type = WIRE_INIT, .round = UINT64_MAX, .count = 1}, "Protocol error"},
	};
	static float zeros[MIRROR_ELEMENTS_MAX];
	struct standby s;

	standby_open(&s, &mirror_plain, NULL);
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		standby_mirror(&s);
		feed_send(&s.box, 0, &wrong[i].h, zeros);
		feed_turn(&s.box);
		assert_true(s.box.ended);
		actor_expect(&s.box.a, ERROR_OF(PROTOCOL), wrong[i].text);
		feed_close(&s.box);
	}
	/* A sum of what it has no image of. */
	feed_mirror(&s.rig, &s.box, "job", &mirror_plain, s.g);
	feed_send(&s.box, 0, &(struct wire_header){.type = WIRE_PUSH, .count = 2}, zeros);
	rig_wait(&s.rig, 100);
	actor_expect(&s.box.a, ERROR_OF(PROTOCOL), "fits no round");
	feed_close(&s.box);
	rig_wait(&s.rig, 100);
	assert_null(mirror_job(&s.rig, "job", true));
	standby_close(&s);
}

/* A connection that broke is told; one that ended in good order is not: a Leave may follow. */
static void test_link_ends(void **state)
{
	struct mail mail = {.kind = MAIL_LINK_CLOSED, .value = -ETIMEDOUT, .detail = 1, .broken = true};
	struct standby s;
	struct job *job;

	standby_open(&s, &mirror_plain, NULL);
	standby_mirror(&s);
	job = mirror_job(&s.rig, "job", true);
	mail.job = job->id;
	mail.generation = job->generation->spec.generation;
	mail.value = 0;
	mail.broken = false;
	job_mail(&s.rig.box->control, &mail);
	rig_wait(&s.rig, 50);
	actor_hear(&s.box.a);
	assert_int_equal(s.box.a.error_code, 0);
	mail.value = -ETIMEDOUT;
	mail.broken = true;
	job_mail(&s.rig.box->control, &mail);
	actor_expect(&s.box.a, ERROR_OF(LOST), "its data connection to core 0 ended");
	feed_close(&s.box);
	assert_true(job->mirror->lost_ns > 0);
	standby_mirror(&s);
	actor_leave(&s.box.a);
	feed_close(&s.box);
	standby_close(&s);
}

/* ---- how long, and how much ---- */

static void test_kept(void **state)
{
	static const char *const settings[] = {"standby_keep_ms=5000", NULL};
	char text[400];
	struct standby s;

	standby_open(&s, &mirror_plain, settings);
	/* In part: of no use to anybody. */
	feed_mirror(&s.rig, &s.box, "job", &mirror_plain, s.g);
	mirror_image(&s.box, s.g, 0);
	job_mirror_describe(mirror_job(&s.rig, "job", true), text, sizeof(text));
	assert_non_null(strstr(text, "a growing copy"));
	feed_close(&s.box);
	rig_wait(&s.rig, 100);
	assert_null(mirror_job(&s.rig, "job", true));
	/* Silent, then lost; kept, then gone. */
	standby_mirror(&s);
	for (int i = 0; i < 20; i++) {
		bool there = mirror_job(&s.rig, "job", true) != NULL;

		assert_int_equal(there, i < 15);
		if (i == 12) {
			job_mirror_describe(mirror_job(&s.rig, "job", true), text, sizeof(text));
			assert_non_null(strstr(text, "kept for 3 s more"));
		}
		rig_wait(&s.rig, 1000);
		actor_heartbeat(&s.steady[0].a);
		actor_heartbeat(&s.steady[1].a);
	}
	actor_expect(&s.box.a, ERROR_OF(LOST), "nothing was heard of the mirroring box");
	feed_close(&s.box);
	standby_close(&s);
}

static void test_evict(void **state)
{
	struct standby s;
	struct err e;

	standby_open(&s, &mirror_plain, NULL);
	standby_mirror(&s);
	assert_int_equal(job_operate(&s.rig.box->control, "pause", "job", "", NULL, 0, NULL, &e), -EBUSY);
	assert_int_equal(job_operate(&s.rig.box->control, "evict", "job", "", NULL, 0, NULL, &e), -EINVAL);
	assert_int_equal(job_operate(&s.rig.box->control, "evict", "job", "no room", NULL, 0, NULL, &e), 0);
	actor_expect(&s.box.a, ERROR_OF(OPERATOR), "no room");
	feed_close(&s.box);
	standby_close(&s);
}

/* What an encrypted job's box sends is what it sealed, in the order in which it did. */
static void test_forged(void **state)
{
	static float zeros[MIRROR_ELEMENTS_MAX];
	struct mirror_shape shape = mirror_plain;
	const struct wire_header h = {.type = WIRE_INIT, .round = 9, .count = 1};
	struct standby s;

	shape.encrypt = true;
	standby_open(&s, &shape, mirror_secret);
	for (int i = 0; i < 3; i++) {
		standby_mirror(&s);
		if (i == 0) { /* in clear */
			crypt_destroy(s.box.sealer);
			s.box.sealer = NULL;
		} else if (i == 1) { /* with another key */
			assert_int_equal(crypt_take_key(s.box.sealer, (const uint8_t[PROOF_KEY]){1}), 1);
		} else { /* said before */
			s.box.counter = 0;
		}
		feed_send(&s.box, 0, &h, zeros);
		feed_turn(&s.box);
		assert_true(s.box.ended);
		actor_hear(&s.box.a);
		assert_int_not_equal(s.box.a.error_code, 0);
		feed_close(&s.box);
		rig_wait(&s.rig, 100);
	}
	standby_mirror(&s); /* in the place of the last, which is kept */
	actor_leave(&s.box.a);
	feed_close(&s.box);
	standby_close(&s);
}

/* A standby that does not encrypt takes no such job, and one that does nothing else takes no other. */
static void test_encrypt_is_agreed(void **state)
{
	static const char *const none[] = {
		"create=secret", "create_secret_env=PHUB_TEST_SECRET", "data_encryption=off", NULL};
	static const char *const all[] = {
		"create=secret", "create_secret_env=PHUB_TEST_SECRET", "data_encryption=require", NULL};
	struct actor a;
	struct rig rig;

	assert_int_equal(setenv("PHUB_TEST_SECRET", MIRROR_SECRET, 1), 0);
	for (int i = 0; i < 2; i++) {
		rig_open(&rig, MIRROR_CORES, i ? all : none);
		actor_dial(&rig, &a, 9);
		a.mirror = true;
		a.encrypt = !i;
		assert_false(actor_join(&a, "job", 0, 1, MIRROR_SECRET));
		actor_expect(&a, i ? ERROR_OF(DENIED) : ERROR_OF(UNSUPPORTED), "set data_encryption: ");
		assert_non_null(strstr(a.error, "allow at the standby"));
		assert_null(strstr(a.error, "PHUB_ENCRYPT")); /* no worker reads it */
		actor_hang_up(&a);
		rig_wait(&rig, 100);
		rig_close(&rig);
	}
}

/* Memory for the copy and for going on from it: both, or a clear word. */
static void test_memory(void **state)
{
	static const char *const jobs[] = {"jobs_max=1", NULL};
	struct mirror_shape shape = mirror_plain;
	uint64_t steady, copy;
	struct standby s;
	struct actor a;

	shape.dtype = DTYPE_F16;
	standby_open(&s, &shape, NULL);
	steady = s.rig.box->control.memory_used;
	standby_mirror(&s);
	copy = s.rig.box->control.memory_used - steady;
	assert_true(copy > steady && copy < 3 * steady);
	actor_leave(&s.box.a);
	feed_close(&s.box);
	rig_wait(&s.rig, 100);
	assert_int_equal(s.rig.box->control.memory_used, steady);
	/* One byte too few. */
	s.rig.config.memory_max = steady + copy - 1;
	expect_no_mirror(&s, &shape, ERROR_OF(LIMIT), "are available");
	s.rig.config.memory_max++;
	standby_mirror(&s);
	/* Another session of the job: the memory of the first is enough for it. */
	feed_close(&s.box);
	standby_mirror(&s);
	feed_close(&s.box);
	s.shape.generation = 1;
	standby_move(&s);
	assert_int_equal(s.rig.box->control.memory_used, 2 * steady);
	standby_check_next(&s, 0);
	standby_close_moved(&s);

	standby_open(&s, &mirror_plain, jobs);
	actor_dial(&s.rig, &a, 9);
	a.mirror = true;
	assert_false(actor_join(&a, "job", 0, 1, NULL));
	actor_expect(&a, ERROR_OF(LIMIT), "raise jobs_max");
	actor_hang_up(&a);
	standby_close(&s);
}

/* The standby goes down. */
static void test_standby_stops(void **state)
{
	struct standby s;

	standby_open(&s, &mirror_plain, NULL);
	standby_mirror(&s);
	feed_join(&s.rig, &s.moved[0], "job", 0, true, &s.shape);
	control_stop(&s.rig.box->control);
	actor_expect(&s.box.a, ERROR_OF(SHUTDOWN), "going down");
	actor_expect(&s.moved[0].a, ERROR_OF(SHUTDOWN), "going down");
	feed_close(&s.box);
	feed_close(&s.moved[0]);
	standby_close(&s);
}

TEST_PROGRAM(test_control_mirror)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_move),
		cmocka_unit_test(test_no_mirror),
		cmocka_unit_test(test_slow_table),
		cmocka_unit_test(test_listed),
		cmocka_unit_test(test_hostile_sessions),
		cmocka_unit_test(test_hostile_data),
		cmocka_unit_test(test_link_ends),
		cmocka_unit_test(test_kept),
		cmocka_unit_test(test_evict),
		cmocka_unit_test(test_forged),
		cmocka_unit_test(test_encrypt_is_agreed),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_standby_stops),
	};

	return cmocka_run_group_tests_name("control_mirror", tests, NULL, NULL);
}
