/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs: forming, comparing tables, starting, failing, leaving, starting anew; and that every wait and every failure
 * names who is meant.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/control_rig.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "phub/control/job.h"

#define WORLD_MAX 4

struct team {
	struct rig rig;
	struct actor a[WORLD_MAX];
	uint32_t world;
};

static void team_open(struct team *t, uint32_t world, unsigned cores, const char *const *settings)
{
	rig_open(&t->rig, cores, settings);
	t->world = world;
	for (uint32_t i = 0; i < world; i++) {
		actor_enter(&t->rig, &t->a[i], i + 1, "demo", i, world);
	}
}

static void team_start(struct team *t, const struct rig_job *job, uint32_t keys, uint64_t elements)
{
	for (uint32_t i = 0; i < t->world; i++)
		actor_table(&t->a[i], job, keys, elements);
	for (uint32_t i = 0; i < t->world; i++)
		if (actor_hear(&t->a[i]) != PHUB__CONTROL__MESSAGE_START)
			fail_msg("rank %u was not started: %s", i, t->a[i].error);
}

/* Everybody hangs up; nothing may be left of the job. */
static void team_close(struct team *t)
{
	for (uint32_t i = 0; i < t->world; i++)
		if (t->a[i].stream)
			actor_hang_up(&t->a[i]);
	rig_turn_control(&t->rig);
	rig_expect_empty(&t->rig);
	rig_close(&t->rig);
}

static void expect_errors(struct team *t, int code, const char *words)
{
	for (uint32_t i = 0; i < t->world; i++)
		if (t->a[i].stream)
			actor_expect(&t->a[i], code, words);
}

static void expect_notice(struct actor *a, const char *words)
{
	actor_hear(a);
	if (!strstr(a->notice, words))
		fail_msg("wanted a notice with '%s', got '%s' (error '%s')", words, a->notice, a->error);
}

static void test_start(void **state)
{
	struct rig_job job = {.generation = 1, .chunk_bytes = 4096};
	const struct generation *running;
	struct team t;

	team_open(&t, 3, 2, NULL);
	team_start(&t, &job, 4, 1024);
	for (uint32_t i = 0; i < 3; i++) {
		const Phub__Start *start = t.a[i].last->start;

		assert_int_equal(start->generation, 1);
		assert_int_equal(start->window, 64);
		assert_int_equal(start->core_of_chunk.len, 4);
		assert_int_equal(start->core_of_chunk.data[0] + start->core_of_chunk.data[1], 1); /* one on each core */
		assert_int_equal(start->result_offset, 0);
	}
	assert_int_equal(t.rig.box->placement[0].bytes, 8192);
	assert_true(t.rig.box->control.memory_used >= 16384);
	running = t.rig.box->control.jobs->generation;
	assert_true(t.rig.box->control.memory_used >= store_bytes(&running->spec) + table_bytes(running->table));
	for (uint32_t i = 0; i < 3; i++) {
		actor_leave(&t.a[i]);
		assert_int_equal(actor_hear(&t.a[i]), PHUB__CONTROL__MESSAGE_LEFT);
	}
	assert_int_equal(t.rig.box->control.job_count, 0);
	team_close(&t);
}

/* Only where a push waits for the others, and not for its turn. */
static void test_who_takes_parts(void **state)
{
	static const struct rig_job jobs[] = {
		{.generation = 1, .optimizer = 1, .lr = 0.1},
		{.generation = 1, .reproducible = true},
		{.generation = 1, .optimizer = 1, .lr = 0.1, .sync = 1},
		{.generation = 1, .optimizer = 1, .lr = 0.1, .sync = 2},
	};

	for (unsigned i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
		struct team t;

		team_open(&t, 2, 1, NULL);
		team_start(&t, &jobs[i], 1, 16);
		for (uint32_t rank = 0; rank < 2; rank++)
			assert_int_equal(
				generation_link(t.rig.box->control.jobs->generation, rank, 0)->spec.parts, i == 0);
		team_close(&t);
	}
}

static void test_keys_in_pieces(void **state)
{
	struct rig_job job = {.generation = 1};
	struct team t;

	team_open(&t, 1, 1, NULL);
	actor_job(&t.a[0], &job, 100);
	actor_keys(&t.a[0], 1, 0, 60, 5);
	assert_int_not_equal(actor_hear(&t.a[0]), PHUB__CONTROL__MESSAGE_START);
	actor_keys(&t.a[0], 1, 60, 40, 5);
	assert_int_equal(actor_hear(&t.a[0]), PHUB__CONTROL__MESSAGE_START);
	actor_leave(&t.a[0]);
	team_close(&t);
}

static void test_bad_tables(void **state)
{
	static const struct {
		struct rig_job job;
		uint32_t key_count, first, keys;
		uint64_t elements;
		int code;
		const char *words;
	} cases[] = {
		{{.generation = 1}, 3, 0, 3, 0, ERROR_OF(UNSUPPORTED),
			"job 'demo' rank 0: key 'k0' (0) has 0 elements"},
		{{.generation = 1}, 0, 0, 0, 1, ERROR_OF(UNSUPPORTED), "the key table is empty"},
		{{.generation = 1}, 2, 0, 3, 1, ERROR_OF(PROTOCOL), "keys 0 to 3 of 2"},
		{{.generation = 1}, 3, 1, 2, 1, ERROR_OF(PROTOCOL), "when key 0 was due"},
		{{.generation = 2}, 3, 0, 3, 1, ERROR_OF(PROTOCOL), "generation 2, when 1 is next"},
		{{.generation = 1}, 9, 0, 9, 1, ERROR_OF(LIMIT), "raise keys_max"},
		{{.generation = 1, .chunk_bytes = 5000}, 3, 0, 3, 1, ERROR_OF(UNSUPPORTED),
			"chunk_bytes 5000; allowed"},
		{{.generation = 1, .optimizer = 17}, 3, 0, 3, 1, ERROR_OF(UNSUPPORTED), "optimizer 17 is unknown"},
		{{.generation = 1, .reduce = 2}, 3, 0, 3, 1, ERROR_OF(UNSUPPORTED), "reduce 2 is unknown"},
		{{.generation = 1, .sync = 3}, 3, 0, 3, 1, ERROR_OF(UNSUPPORTED), "sync 3 is unknown"},
		{{.generation = 1, .sync = 2}, 3, 0, 3, 1, ERROR_OF(UNSUPPORTED), "sync async needs an optimizer"},
		{{.generation = 1, .sync = 1, .optimizer = 1, .lr = 0.1, .reproducible = true}, 3, 0, 3, 1,
			ERROR_OF(UNSUPPORTED), "reproducible needs sync bsp"},
		{{.generation = 1, .optimizer = 1, .lr = -1}, 3, 0, 3, 1, ERROR_OF(UNSUPPORTED), "parameter group 0: "},
		{{.generation = 1, .seal = 3}, 3, 0, 3, 1, ERROR_OF(UNSUPPORTED),
			"seal 3 is unknown; allowed are 0 (gmac)"},
		{{.generation = 1, .seal = -1}, 3, 0, 3, 1, ERROR_OF(UNSUPPORTED), "seal 4294967295 is unknown"},
		{{.generation = 1, .seal = 1}, 3, 0, 3, 1, ERROR_OF(UNSUPPORTED),
			"seal crc is less than the box takes; see its datagram_seal option"},
		{{.generation = 1, .seal = 2}, 3, 0, 3, 1, ERROR_OF(UNSUPPORTED), "seal none is less"},
		{{.generation = 1, .transport = "carrier"}, 3, 0, 3, 1, ERROR_OF(UNSUPPORTED),
			"does not offer transport carrier"},
	};
	static const char *const settings[] = {"keys_max=8", NULL};
	struct team t;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		team_open(&t, 2, 1, settings);
		actor_job(&t.a[0], &cases[i].job, cases[i].key_count);
		if (cases[i].keys)
			actor_keys(&t.a[0], cases[i].job.generation, cases[i].first, cases[i].keys, cases[i].elements);
		actor_expect(&t.a[0], cases[i].code, cases[i].words);
		actor_hear(&t.a[1]);
		assert_int_equal(t.a[1].error_code, 0);
		team_close(&t);
	}
}

static void test_mismatch(void **state)
{
	static const struct {
		struct rig_job first, second;
		uint32_t keys[2];
		uint64_t elements[2];
		const char *words;
	} cases[] = {
		{{.generation = 1}, {.generation = 1}, {3, 3}, {7, 8},
			"job 'demo': key 'k0' (0) differs: rank 0 has 7 elements, rank 1 has 8"},
		{{.generation = 1}, {.generation = 1}, {3, 2}, {7, 7},
			"key 'k2' (2) is missing at rank 1, which has 2 keys; rank 0 has 3"},
		{{.generation = 1}, {.generation = 1}, {2, 3}, {7, 7},
			"key 'k2' (2) is missing at rank 0, which has 2 keys; rank 1 has 3"},
		{{.generation = 1, .reduce = 1}, {.generation = 1}, {3, 3}, {7, 7},
			"reduce differs: rank 0 says mean, rank 1 says sum"},
		{{.generation = 1, .optimizer = 2, .lr = 1}, {.generation = 1, .optimizer = 3, .lr = 1}, {3, 3}, {7, 7},
			"optimizer differs: rank 0 says momentum, rank 1 says nesterov"},
		{{.generation = 1, .optimizer = 2, .lr = 0.5}, {.generation = 1, .optimizer = 2, .lr = 0.25}, {3, 3},
			{7, 7}, "lr of parameter group 0 differs: rank 0 says 0.5, rank 1 says 0.25"},
		{{.generation = 1, .chunk_bytes = 4096}, {.generation = 1}, {3, 3}, {7, 7},
			"chunk_bytes differs: rank 0 says 4096, box 127.0.0.1:7077 has 32768 (rank 1 names none); set "
			"it alike"},
		{{.generation = 1, .chunk_bytes = 4096}, {.generation = 1, .chunk_bytes = 8192}, {3, 3}, {7, 7},
			"chunk_bytes differs: rank 0 says 4096, rank 1 says 8192"},
		{{.generation = 1, .seal = 1}, {.generation = 1}, {3, 3}, {7, 7},
			"seal differs: rank 0 says crc, rank 1 says gmac"},
	};
	static const char *const settings[] = {"datagram_seal=none", NULL};
	struct team t;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		team_open(&t, 3, 1, settings);
		actor_table(&t.a[0], &cases[i].first, cases[i].keys[0], cases[i].elements[0]);
		actor_table(&t.a[1], &cases[i].second, cases[i].keys[1], cases[i].elements[1]);
		expect_errors(&t, ERROR_OF(MISMATCH), cases[i].words);
		assert_null(job_find(&t.rig.box->control, "demo"));
		team_close(&t);
	}
}

/* What differs is told when all are here: a rank that comes late must not form a new job and wait in it. */
static void test_mismatch_waits_for_all(void **state)
{
	struct rig_job job = {.generation = 1};
	struct team t;

	rig_open(&t.rig, 1, NULL);
	t.world = 3;
	for (uint32_t i = 0; i < 2; i++) {
		actor_enter(&t.rig, &t.a[i], i + 1, "demo", i, 3);
		actor_table(&t.a[i], &job, 2, 5 + i);
	}
	actor_hear(&t.a[0]);
	assert_int_equal(t.a[0].error_code, 0);
	actor_enter(&t.rig, &t.a[2], 3, "demo", 2, 3);
	actor_table(&t.a[2], &job, 2, 5);
	expect_errors(&t, ERROR_OF(MISMATCH), "key 'k0' (0) differs: rank 0 has 5 elements, rank 1 has 6");
	team_close(&t);
}

static void test_mismatch_does_not_wait_for_ever(void **state)
{
	struct rig_job job = {.generation = 1};
	struct team t;

	rig_open(&t.rig, 1, NULL);
	t.world = 2;
	for (uint32_t i = 0; i < 2; i++) {
		actor_enter(&t.rig, &t.a[i], i + 1, "demo", i, 3);
		actor_table(&t.a[i], &job, 2, 5 + i);
	}
	for (int i = 0; i < 11; i++) {
		rig_wait(&t.rig, 1000);
		for (uint32_t k = 0; k < 2; k++)
			actor_heartbeat(&t.a[k]);
	}
	expect_errors(&t, ERROR_OF(MISMATCH), "key 'k0' (0) differs");
	team_close(&t);
}

static void test_never_comes(void **state)
{
	struct team t;

	rig_open(&t.rig, 1, NULL);
	t.world = 2;
	for (uint32_t i = 0; i < 2; i++) {
		actor_enter(&t.rig, &t.a[i], i + 1, "demo", i, 4);
	}
	actor_table(&t.a[0], NULL, 1, 1);
	rig_wait(&t.rig, 1500);
	expect_notice(&t.a[0], "job 'demo' waits to start for ranks 1-3 of 4; 1 of them joined but sent no keys");
	assert_int_equal(t.a[0].missing_count, 3);
	assert_int_equal(t.a[0].missing[0], 1);
	assert_int_equal(t.a[0].missing[2], 3);
	/* The one that waits goes away and comes again: nobody notices. */
	actor_hang_up(&t.a[0]);
	actor_enter(&t.rig, &t.a[0], 1, "demo", 0, 4);
	actor_hear(&t.a[1]);
	assert_int_equal(t.a[1].error_code, 0);
	team_close(&t);
}

static void test_lost(void **state)
{
	struct team t, u;

	team_open(&t, 3, 2, NULL);
	team_start(&t, NULL, 3, 100);
	actor_hang_up(&t.a[1]);
	expect_errors(&t, ERROR_OF(LOST), "job 'demo': rank 1 (");
	assert_non_null(strstr(t.a[0].error, "was lost: its control session ended without a leave"));
	assert_int_equal(t.a[0].error_rank, 1);
	/* The name is free while the others still read what happened. */
	u.rig = t.rig;
	for (uint32_t i = 0; i < 2; i++) {
		actor_enter(&t.rig, &u.a[i], 5 + i, "demo", i, 2);
		actor_table(&u.a[i], NULL, 2, 10);
	}
	assert_int_equal(actor_hear(&u.a[0]), PHUB__CONTROL__MESSAGE_START);
	actor_hang_up(&u.a[0]);
	actor_hang_up(&u.a[1]);
	team_close(&t);
}

static void test_silent(void **state)
{
	struct team t;

	team_open(&t, 3, 1, NULL);
	team_start(&t, NULL, 1, 100);
	for (int i = 0; i < 30; i++) {
		rig_wait(&t.rig, 100);
		actor_heartbeat(&t.a[0]);
		actor_heartbeat(&t.a[2]);
	}
	expect_notice(&t.a[0], "rank 1 (");
	assert_non_null(strstr(t.a[0].notice, "silent for 2."));
	assert_non_null(strstr(t.a[0].notice, "; declared lost in "));
	assert_int_equal(t.a[0].error_code, 0);
	/* It says something: all is well, and everybody hears of it. */
	actor_heartbeat(&t.a[1]);
	expect_notice(&t.a[0], "is heard again");
	for (int i = 0; i < 110; i++) {
		rig_wait(&t.rig, 100);
		actor_heartbeat(&t.a[0]);
		actor_heartbeat(&t.a[2]);
	}
	actor_expect(&t.a[0], ERROR_OF(LOST), "was lost: it was silent for 10.");
	actor_expect(&t.a[2], ERROR_OF(LOST), "rank 1 (");
	/* Its own words begin with the box's name: they must not read as if that was silent. */
	actor_expect(&t.a[1], ERROR_OF(LOST), "rank 1: nothing was heard of this worker for 10.");
	team_close(&t);
}

/* The box itself was stopped: everybody was silent, and nobody is to blame. */
static void test_box_was_stopped(void **state)
{
	struct team t;

	team_open(&t, 2, 1, NULL);
	team_start(&t, NULL, 1, 100);
	t.rig.now_ns += 60000000000ull;
	rig_turn_control(&t.rig);
	rig_wait(&t.rig, 1000);
	actor_hear(&t.a[0]);
	assert_int_equal(t.a[0].error_code, 0);
	team_close(&t);
}

static void test_memory_limit(void **state)
{
	static const char *const settings[] = {"memory_max=4MiB", NULL};
	struct rig_job job = {.generation = 1};
	struct team t;

	team_open(&t, 2, 1, settings);
	for (uint32_t i = 0; i < 2; i++)
		actor_table(&t.a[i], &job, 1, 1 << 19); /* 2 MiB of result and as much of sums, and tables */
	expect_errors(&t, ERROR_OF(LIMIT), "job 'demo': needs ");
	assert_non_null(strstr(t.a[0].error, "bytes in the box and 4194304 are available"));
	team_close(&t);

	/* 5 GiB: refused before its chunks take any memory; and more bytes than there are. */
	for (int i = 0; i < 2; i++) {
		uint64_t elements = i ? UINT64_C(1) << 63 : UINT64_C(5) << 28;

		team_open(&t, 1, 1, settings);
		actor_table(&t.a[0], &job, 1, elements);
		expect_errors(&t, ERROR_OF(LIMIT), "its largest key is 'k0' with ");
		team_close(&t);
	}
}

static void test_hyper(void **state)
{
	struct rig_job job = {.generation = 1, .optimizer = 1, .lr = 0.5};
	struct team t;

	team_open(&t, 2, 2, NULL);
	team_start(&t, &job, 4, 10000);
	actor_hyper(&t.a[0], 1, 0.25);
	actor_hyper(&t.a[0], 2, 0.125);
	actor_hyper(&t.a[1], 1, 0.25);
	rig_turn_control(&t.rig);
	assert_null(t.rig.box->control.tables); /* both cores have taken version 1 */
	for (unsigned core = 0; core < 2; core++)
		assert_int_equal(t.rig.box->control.jobs->generation->store.shards[core]->hypers.newest[0], 1);
	actor_hyper(&t.a[1], 2, 0.0625);
	expect_errors(&t, ERROR_OF(MISMATCH), "lr of parameter group 0 differs: rank 0 says 0.125, rank 1 says 0.0625");
	team_close(&t);

	team_open(&t, 2, 1, NULL);
	team_start(&t, &job, 1, 10);
	actor_hyper(&t.a[0], 2, 0.25);
	actor_expect(&t.a[0], ERROR_OF(PROTOCOL), "when version 1 with 1 groups is next");
	actor_expect(&t.a[1], ERROR_OF(LOST), "rank 0 (");
	team_close(&t);

	team_open(&t, 2, 1, NULL);
	team_start(&t, &job, 1, 10);
	for (uint32_t i = 0; i <= JOB_HYPER_PENDING_MAX; i++)
		actor_hyper(&t.a[0], 1 + i, 0.25);
	expect_errors(&t, ERROR_OF(LIMIT), "rank 0 has changed its hyper-parameters 256 times more than another");
	team_close(&t);
}

static void test_hyper_stepwise(void **state)
{
	struct rig_job job = {.generation = 1, .optimizer = 1, .lr = 0.5, .sync = 2};
	struct team t;

	team_open(&t, 2, 1, NULL);
	team_start(&t, &job, 1, 16);
	assert_int_equal(t.a[0].last->start->result_offset, 0);
	assert_int_equal(t.a[1].last->start->result_offset, 64);
	actor_hyper(&t.a[1], 1, 0.25);
	rig_turn_control(&t.rig);
	assert_int_equal(t.rig.box->control.jobs->generation->store.shards[0]->hypers.newest[0], 0);
	assert_int_equal(t.rig.box->control.jobs->generation->store.shards[0]->hypers.newest[1], 1);
	team_close(&t);
}

/* Says it without giving the box a turn. */
static void say_hyper(struct actor *a, uint32_t version)
{
	Phub__Hypers hypers = PHUB__HYPERS__INIT, *groups[] = {&hypers};
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Hyper message = PHUB__HYPER__INIT;
	uint8_t frame[256] = {0};
	size_t bytes;

	hypers.lr = 0.25;
	message.version = version;
	message.groups = groups;
	message.n_groups = 1;
	control.message_case = PHUB__CONTROL__MESSAGE_HYPER;
	control.hyper = &message;
	bytes = phub__control__get_packed_size(&control);
	assert_true(bytes < 256 - 4);
	frame[0] = (uint8_t)bytes;
	phub__control__pack(&control, frame + 4);
	assert_int_equal(a->stream->ops->write(a->stream, frame, bytes + 4), bytes + 4);
}

/* A rank that sends versions faster than cores take them is not read for a while: mail and memory are bounded. */
static void test_hyper_flood(void **state)
{
	struct rig_job job = {.generation = 1, .optimizer = 1, .lr = 0.5, .sync = 2};
	struct team t;
	struct job *running;

	team_open(&t, 2, 1, NULL);
	team_start(&t, &job, 1, 16);
	running = t.rig.box->control.jobs;
	for (uint32_t i = 1; i <= 3 * JOB_HYPER_SENT_MAX; i++)
		say_hyper(&t.a[1], i);
	for (int i = 0; i < 8; i++) {
		loop_net_advance(t.rig.net, t.rig.now_ns);
		control_step(&t.rig.box->control, t.rig.now_ns);
	}
	assert_int_equal(running->hyper_sent, JOB_HYPER_SENT_MAX);
	assert_int_equal(running->members[1].hyper, JOB_HYPER_SENT_MAX);
	rig_turn_control(&t.rig);
	assert_int_equal(running->hyper_sent, 0);
	assert_int_equal(running->generation->store.shards[0]->hypers.newest[1], 3 * JOB_HYPER_SENT_MAX);
	team_close(&t);
}

static void test_barrier(void **state)
{
	struct team t;

	team_open(&t, 3, 1, NULL);
	actor_barrier(&t.a[0], 1);
	actor_barrier(&t.a[2], 1);
	rig_wait(&t.rig, 1500);
	expect_notice(&t.a[0], "job 'demo': the barrier waits for rank 1 of 3");
	assert_int_equal(t.a[2].missing_count, 0);
	actor_barrier(&t.a[1], 1);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(actor_hear(&t.a[i]), PHUB__CONTROL__MESSAGE_BARRIER_DONE);
	actor_barrier(&t.a[0], 2);
	actor_barrier(&t.a[1], 3);
	actor_barrier(&t.a[2], 2);
	expect_errors(&t, ERROR_OF(MISMATCH), "rank 0 is at its barrier 2 and rank 1 at its 3");
	team_close(&t);
}

static void test_leave_while_others_wait(void **state)
{
	struct team t;

	team_open(&t, 2, 1, NULL);
	team_start(&t, NULL, 1, 1);
	actor_barrier(&t.a[0], 1);
	actor_leave(&t.a[1]);
	assert_int_equal(actor_hear(&t.a[1]), PHUB__CONTROL__MESSAGE_LEFT);
	actor_expect(&t.a[0], ERROR_OF(LOST), "left while others wait for it");
	team_close(&t);

	team_open(&t, 2, 1, NULL);
	team_start(&t, NULL, 1, 1);
	actor_leave(&t.a[1]);
	actor_barrier(&t.a[0], 1);
	actor_expect(&t.a[0], ERROR_OF(LOST), "others have left");
	team_close(&t);
}

static void test_rekey(void **state)
{
	struct rig_job job = {.generation = 1};
	struct team t;

	team_open(&t, 2, 2, NULL);
	for (; job.generation <= 20; job.generation++) {
		team_start(&t, &job, 1 + job.generation % 3, 1000 * job.generation);
		assert_int_equal(t.a[0].last->start->generation, job.generation);
	}
	actor_table(&t.a[0], &job, 1, 1);
	actor_table(&t.a[0], &job, 1, 1);
	actor_expect(&t.a[0], ERROR_OF(PROTOCOL), "a second key table");
	actor_expect(&t.a[1], ERROR_OF(LOST), "rank 0 (");
	team_close(&t);
}

static void test_data_connections(void **state)
{
	static const char *const settings[] = {"datagram_seal=crc", NULL};
	struct rig_job job = {.generation = 1, .chunk_bytes = 4096, .seal = 1};
	uint8_t wrong[PROOF_KEY] = {1};
	struct conn *conn, *second;
	const struct conn_spec *spec;
	struct actor stranger;
	struct team t;

	team_open(&t, 2, 2, settings);
	assert_int_equal(actor_connect(&t.a[0], 0, t.a[0].key, &conn), -ENOENT); /* nothing runs yet */
	transport_loop.abandon(t.a[0].transport, conn);
	team_start(&t, &job, 2, 1024);
	assert_int_equal(actor_connect(&t.a[0], 0, wrong, &conn), -EACCES);
	transport_loop.abandon(t.a[0].transport, conn);
	assert_int_equal(actor_connect(&t.a[0], 2, t.a[0].key, &conn), -ERANGE);
	transport_loop.abandon(t.a[0].transport, conn);
	stranger = t.a[0];
	stranger.session = 4711;
	assert_int_equal(actor_connect(&stranger, 0, t.a[0].key, &conn), -ENOENT);
	transport_loop.abandon(t.a[0].transport, conn);
	stranger.session = t.a[1].session; /* another's session, one's own key */
	assert_int_equal(actor_connect(&stranger, 0, t.a[0].key, &conn), -EACCES);
	transport_loop.abandon(t.a[0].transport, conn);
	assert_int_equal(actor_connect(&t.a[0], 0, t.a[0].key, &conn), 0);
	spec = &generation_link(t.rig.box->control.jobs->generation, 0, 0)->spec;
	assert_int_equal(spec->job, t.rig.box->control.jobs->id);
	assert_int_equal(spec->seal, SEAL_CRC);
	assert_memory_equal(spec->key, t.a[0].key, PROOF_KEY);
	assert_int_equal(generation_link(t.rig.box->control.jobs->generation, 1, 1)->spec.rank, 1);
	assert_int_equal(actor_connect(&t.a[0], 0, t.a[0].key, &second), -EALREADY);
	transport_loop.abandon(t.a[0].transport, second);
	actor_hear(&t.a[1]);
	assert_int_equal(t.a[1].error_code, 0);
	/* The connection ends, and nothing explains it. */
	transport_loop.abandon(t.a[0].transport, conn);
	for (int i = 0; i < 105; i++) {
		rig_wait(&t.rig, 100);
		actor_heartbeat(&t.a[0]);
		actor_heartbeat(&t.a[1]);
	}
	actor_expect(&t.a[1], ERROR_OF(LOST), "was lost: its loop connection to core 0 ");
	team_close(&t);
}

/*
 * A worker whose connection broke makes another one, whether its core has noticed or not, and whether what was out on
 * the first is settled or not; what the core says of the first one later means nothing.
 */
static void test_a_connection_is_made_anew(void **state)
{
	struct mail late = {.kind = MAIL_LINK_CLOSED, .value = -ETIMEDOUT, .detail = 1, .broken = true};
	struct rig_job table = {.generation = 1, .chunk_bytes = 4096};
	struct conn *conn[2];
	struct shard *shard;
	struct job *job;
	struct team t;

	team_open(&t, 2, 1, NULL);
	team_start(&t, &table, 2, 1024);
	job = t.rig.box->control.jobs;
	shard = job->generation->store.shards[0];
	assert_int_equal(actor_connect(&t.a[0], 0, t.a[0].key, &conn[0]), 0);
	rig_wait(&t.rig, 100);
	assert_non_null(shard->links[0].conn);
	assert_int_equal(shard->links[0].serial, 1);
	shard->sweep_left = 1;
	assert_int_equal(actor_connect(&t.a[0], 0, t.a[0].key, &conn[1]), 0);
	rig_wait(&t.rig, 100);
	assert_non_null(shard->links[0].conn);
	assert_int_equal(shard->links[0].serial, 2);
	assert_true(shard->links[0].again);
	assert_int_equal(job->reconnects, 1);

	late.job = job->id;
	late.generation = 1;
	late.shard = shard;
	job_mail(&t.rig.box->control, &late);
	transport_loop.abandon(t.a[0].transport, conn[0]);
	for (int i = 0; i < 105; i++) {
		rig_wait(&t.rig, 100);
		actor_heartbeat(&t.a[0]);
		actor_heartbeat(&t.a[1]);
		actor_hear(&t.a[1]);
	}
	assert_int_equal(t.a[1].error_code, 0);
	transport_loop.abandon(t.a[0].transport, conn[1]);
	team_close(&t);
}

/* A worker that has not noticed the end of its connection is told; one that makes none in its place is lost. */
static void test_a_break_is_told(void **state)
{
	struct mail broke = {
		.kind = MAIL_LINK_CLOSED, .value = -ETIMEDOUT, .detail = 1, .broken = true, .text = "no answer"};
	struct conn *conn;
	struct job *job;
	struct team t;

	team_open(&t, 2, 1, NULL);
	team_start(&t, NULL, 2, 1024);
	job = t.rig.box->control.jobs;
	assert_int_equal(actor_connect(&t.a[0], 0, t.a[0].key, &conn), 0);
	rig_wait(&t.rig, 100);
	broke.job = job->id;
	broke.generation = 1;
	job_mail(&t.rig.box->control, &broke);
	rig_turn_control(&t.rig);
	assert_int_equal(actor_hear(&t.a[0]), PHUB__CONTROL__MESSAGE_BROKEN);
	assert_int_equal(t.a[0].last->broken->core, 0);
	assert_string_equal(t.a[0].last->broken->text, "no answer");
	for (int i = 0; i < 105; i++) {
		rig_wait(&t.rig, 100);
		actor_heartbeat(&t.a[0]);
		actor_heartbeat(&t.a[1]);
	}
	actor_expect(&t.a[1], ERROR_OF(LOST), "its loop connection to core 0 broke: no answer");
	transport_loop.abandon(t.a[0].transport, conn);
	team_close(&t);
}

/*
 * A job that lost a rank is not gone before the others have had time to take what they are owed; who never ends its
 * connection does not keep it for ever, and a box that goes down does not wait.
 */
static void test_drain(void **state)
{
	static const char *const settings[][2] = {{NULL}, {"lost_ms=4000", NULL}};
	static const unsigned bound_ms[] = {5000, 4000};

	for (int i = 0; i < 3; i++) {
		struct conn *conn[2];
		struct team t;

		team_open(&t, 2, 1, i < 2 ? settings[i] : NULL);
		team_start(&t, NULL, 2, 1024);
		for (int k = 0; k < 2; k++)
			assert_int_equal(actor_connect(&t.a[k], 0, t.a[k].key, &conn[k]), 0);
		rig_turn_control(&t.rig);
		actor_hang_up(&t.a[1]);
		actor_expect(&t.a[0], ERROR_OF(LOST), "rank 1 (");
		if (i < 2) {
			rig_wait(&t.rig, bound_ms[i] - 200);
			assert_non_null(t.rig.box->control.jobs);
			rig_wait(&t.rig, 400);
		} else {
			assert_non_null(t.rig.box->control.jobs);
			control_stop(&t.rig.box->control);
			rig_turn_control(&t.rig);
		}
		assert_null(t.rig.box->control.jobs);
		for (int k = 0; k < 2; k++)
			transport_loop.abandon(t.a[k].transport, conn[k]);
		team_close(&t);
	}
}

/* Who starts anew at once needs the memory that the job which drains still has, and gets it; a live one keeps its own.
 */
static void test_room_for_the_next(void **state)
{
	static const char *const settings[] = {"memory_max=6MiB", NULL};
	struct conn *conn;
	struct team t, u;

	team_open(&t, 2, 1, settings);
	team_start(&t, NULL, 1, 1 << 19);
	assert_int_equal(actor_connect(&t.a[0], 0, t.a[0].key, &conn), 0);
	u.rig = t.rig;
	for (uint32_t i = 0; i < 2; i++) {
		actor_enter(&t.rig, &u.a[i], 5 + i, "other", i, 2);
		actor_table(&u.a[i], NULL, 1, 1 << 19);
	}
	actor_expect(&u.a[0], ERROR_OF(LIMIT), "job 'other': needs ");
	for (uint32_t i = 0; i < 2; i++)
		actor_hang_up(&u.a[i]);
	actor_hang_up(&t.a[1]);
	actor_expect(&t.a[0], ERROR_OF(LOST), "rank 1 (");
	rig_wait(&t.rig, 1000);
	assert_true(t.rig.box->control.memory_used > 0);
	for (uint32_t i = 0; i < 2; i++) {
		actor_enter(&t.rig, &u.a[i], 5 + i, "demo", i, 2);
		actor_table(&u.a[i], NULL, 1, 1 << 19);
	}
	for (uint32_t i = 0; i < 2; i++)
		if (actor_hear(&u.a[i]) != PHUB__CONTROL__MESSAGE_START)
			fail_msg("rank %u was not started: %s", i, u.a[i].error);
	for (uint32_t i = 0; i < 2; i++)
		actor_hang_up(&u.a[i]);
	transport_loop.abandon(t.a[0].transport, conn);
	team_close(&t);
}

TEST_PROGRAM(test_control_job)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_start),
		cmocka_unit_test(test_who_takes_parts),
		cmocka_unit_test(test_keys_in_pieces),
		cmocka_unit_test(test_bad_tables),
		cmocka_unit_test(test_mismatch),
		cmocka_unit_test(test_mismatch_waits_for_all),
		cmocka_unit_test(test_mismatch_does_not_wait_for_ever),
		cmocka_unit_test(test_never_comes),
		cmocka_unit_test(test_lost),
		cmocka_unit_test(test_drain),
		cmocka_unit_test(test_room_for_the_next),
		cmocka_unit_test(test_silent),
		cmocka_unit_test(test_box_was_stopped),
		cmocka_unit_test(test_memory_limit),
		cmocka_unit_test(test_hyper),
		cmocka_unit_test(test_hyper_stepwise),
		cmocka_unit_test(test_hyper_flood),
		cmocka_unit_test(test_barrier),
		cmocka_unit_test(test_leave_while_others_wait),
		cmocka_unit_test(test_rekey),
		cmocka_unit_test(test_data_connections),
		cmocka_unit_test(test_a_connection_is_made_anew),
		cmocka_unit_test(test_a_break_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
