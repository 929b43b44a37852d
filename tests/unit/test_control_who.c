/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is missing: what a core tells of its open rounds, what control makes of that, and what it answers to who asks.
 * And what it tells who comes in a lost rank's place.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/control_rig.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/control/job.h"
#include "phub/control/job_below.h"
#include "phub/control/peers.h"
#include "phub/control/session.h"

static void crew_open(struct rig *rig, struct actor *a, uint32_t world, unsigned cores)
{
	rig_open(rig, cores, NULL);
	for (uint32_t i = 0; i < world; i++) {
		actor_enter(rig, &a[i], i + 1, "demo", i, world);
	}
}

static void crew_close(struct rig *rig, struct actor *a, uint32_t world)
{
	for (uint32_t i = 0; i < world; i++)
		actor_hang_up(&a[i]);
	rig_expect_empty(rig);
	rig_close(rig);
}

/* A job that only hears what cores tell, and asks the one that it has. */
struct told {
	struct member members[70];
	struct config config;
	struct control control;
	struct box box;
	struct chunk_span span;
	struct table table;
	uint16_t core_of_chunk, way;
	struct shard shard, *shards[1];
	struct generation generation;
	struct job job;
};

static struct told *told_open(void)
{
	struct told *t = calloc(1, sizeof(*t));

	t->control = (struct control){.config = &t->config, .box = &t->box, .job_count = 1, .now_ns = 1};
	t->job = (struct job){.control = &t->control,
		.state = JOB_RUNNING,
		.id = 7,
		.ranks = 70,
		.world = 70,
		.members = t->members,
		.generation = &t->generation};
	t->control.jobs = &t->job;
	t->shards[0] = &t->shard;
	t->generation.detaching = true;
	t->generation.table = &t->table;
	t->generation.core_of_chunk = &t->core_of_chunk;
	t->generation.store.shards = t->shards;
	t->generation.spec.id = 7;
	t->generation.spec.way_of_chunk = &t->way;
	t->generation.spec.plan.chunk_count = 1;
	t->generation.spec.plan.chunks = &t->span;
	assert_int_equal(mailbox_create(4, &t->box.posts[0].inbox), 0);
	return t;
}

static void told_close(struct told *t)
{
	mailbox_destroy(t->box.posts[0].inbox);
	free(t);
}

/* Also of many ranks, one that has left is blamed only when it is the one that is missing, and still is when the core
 * is asked again: what that told may be from before its last push. */
static void test_stall_blames_who_is_missing(void **state)
{
	struct mail mail = {.kind = MAIL_STALLED, .job = 7, .round = 3, .value = 1, .missing[1] = 1 << 5}, asked;
	struct told *t = told_open();
	struct job *job = &t->job;

	job->left = 1;
	t->members[68].left = true;
	job_mail(&t->control, &mail); /* rank 69 is missing, and connected */
	assert_int_equal(job->state, JOB_RUNNING);
	assert_non_null(strstr(job->waiting, "waits for rank 69"));
	assert_int_equal(mailbox_receive(t->box.posts[0].inbox, &asked), -EAGAIN);
	mail.value = 3;
	mail.missing[1] = 7 << 3;
	t->members[68].left = false;
	job_mail(&t->control, &mail);
	assert_non_null(strstr(job->waiting, "waits for ranks 67-69"));
	mail.value = -1; /* another one is over, and then this one: nothing is waited for any more */
	mail.round = 2;
	job_mail(&t->control, &mail);
	assert_int_not_equal(job->waiting_ns, 0);
	mail.round = 3;
	job_mail(&t->control, &mail);
	assert_int_equal(job->waiting_ns, 0);
	t->members[68].left = true;
	for (int i = 0; i < 3; i++) {
		mail.value = 3;
		job_mail(&t->control, &mail);
		assert_int_equal(job->state, JOB_RUNNING);
		assert_int_equal(mailbox_receive(t->box.posts[0].inbox, &asked), 0);
		assert_int_equal(asked.kind, MAIL_WHO);
		assert_int_equal(asked.round, 3);
		asked.kind = MAIL_MISSING;
		asked.value = i ? 2 : -1; /* it is complete by now; or others are missing; or it is still that one */
		asked.missing[1] = i == 2 ? 7 << 3 : 5 << 3;
		job_mail(&t->control, &asked);
		assert_int_equal(job->state, i == 2 ? JOB_ENDING : JOB_RUNNING);
	}
	told_close(t);
}

/*
 * The box at which a chunk ends has left the job, as its workers have, and still owes results to this one. Not as soon
 * as its uplink has ended, or when nothing comes for so long that it must be gone: then a round waits for ever.
 */
static void test_who_left_may_owe_results(void **state)
{
	for (int gone = 0; gone < 2; gone++) {
		const struct mail ended = {.kind = MAIL_UPLINK_ENDED, .job = 7, .value = -ESHUTDOWN};
		struct mail mail = {.kind = MAIL_STALLED, .job = 7, .round = 3};
		struct peers *p = calloc(1, sizeof(*p) + 2 * sizeof(p->each[0]));
		struct told *t = told_open();
		struct uplink up = {.chunk_count = 1, .shard = &t->shard};
		struct box_dial dial = {.out = true, .spec.conn.chunk_count = 1};
		uint16_t home = 1;

		*p = (struct peers){.job = &t->job, .kind = WAYS_SHARDED, .count = 2, .home = &home};
		p->each[1] = (struct peer){.all = p,
			.name = "box 10.0.2.1:7077",
			.slot = JOB_AT_OTHER,
			.left = true,
			.target = true,
			.uplinks = {.dials = &dial, .count = 1}};
		t->job.peers = p;
		t->shard.uplinks = &up;
		t->config.lost_ms = 10000;
		for (int i = 0; i < 60; i++) { /* one a second */
			t->control.now_ns += NS_PER_S;
			up.counters.results += i % 14 == 0;
			job_mail(&t->control, &mail);
			assert_int_equal(t->job.state, JOB_RUNNING);
		}
		assert_non_null(strstr(t->job.waiting, "waits for box 10.0.2.1:7077, to which its sum goes"));
		if (gone)
			t->control.now_ns += 16 * NS_PER_S;
		else
			job_mail(&t->control, &ended);
		job_mail(&t->control, &mail);
		assert_int_equal(t->job.state, JOB_ENDING);
		t->job.peers = NULL;
		free(p);
		told_close(t);
	}
}

/* What a core tells of an open round, in a world of more ranks than a word has bits. */
static void test_a_core_names_all_who_are_missing(void **state)
{
	enum { WORLD = 130, CHUNK = 5 };
	static struct arrival arrivals[WORLD];
	static struct link links[WORLD];
	struct spec spec = {.world = WORLD, .name = "wide"};
	struct chunk chunk = {.index = CHUNK, .round = 3, .weights = true, .arrivals = arrivals};
	struct shard shard = {.spec = &spec, .chunk_count = 1, .chunks = &chunk, .links = links};
	struct mail mail = {.kind = MAIL_WHO, .shard = &shard, .chunk = CHUNK, .round = 3, .detail = 77};
	struct core_config config = {.cpu = -1};
	struct core *core;
	struct err e;

	shard.open_oldest = shard.open_newest = 0;
	for (uint32_t i = 0; i < WORLD; i++)
		arrivals[i].state = i == 3 || i == 129 ? ARRIVAL_NONE : i == 64 ? ARRIVAL_PARTIAL : ARRIVAL_SUMMED;
	assert_int_equal(mailbox_create(16, &config.control), 0);
	assert_int_equal(core_create(&config, &core, &e), 0);
	core->shards = &shard;
	core_step(core, 2 * CORE_STALL_NS);
	assert_int_equal(mailbox_send(core->inbox, &mail), 0);
	core_step(core, 2 * CORE_STALL_NS + CORE_TICK_NS);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(mailbox_receive(config.control, &mail), 0);
		assert_int_equal(mail.kind, i ? MAIL_MISSING : MAIL_STALLED);
		assert_int_equal(mail.detail, i ? 77 : 0);
		assert_int_equal(mail.value, 3);
		assert_true(mail.missing[0] == 1 << 3 && mail.missing[1] == 1 && mail.missing[2] == 2);
	}
	mail = (struct mail){.kind = MAIL_WHO, .shard = &shard, .chunk = CHUNK, .round = 2};
	assert_int_equal(mailbox_send(core->inbox, &mail), 0);
	mail.chunk = CHUNK + 1; /* is another core's: nobody is known to be missing */
	mail.round = 3;
	assert_int_equal(mailbox_send(core->inbox, &mail), 0);
	core_step(core, 2 * CORE_STALL_NS + 2 * CORE_TICK_NS);
	assert_int_equal(mailbox_receive(config.control, &mail), 0);
	assert_int_equal(mail.value, -1); /* that round is over */
	assert_int_equal(mailbox_receive(config.control, &mail), 0);
	assert_int_equal(mail.value, 0);
	core->shards = NULL;
	core_destroy(core);
	mailbox_destroy(config.control);
}

static void actor_who(struct actor *c, Phub__About about, uint64_t round, uint32_t chunk)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Who who = PHUB__WHO__INIT;

	who.about = about;
	who.round = round;
	who.chunk = chunk;
	control.message_case = PHUB__CONTROL__MESSAGE_WHO;
	control.who = &who;
	snprintf(c->notice, sizeof(c->notice), "(none)");
	c->missing_count = 99;
	actor_say(c, &control);
	actor_hear(c);
}

static void expect_who(struct actor *c, uint32_t count, const char *words)
{
	if (c->missing_count != count || !strstr(c->notice, words) || (!*words && *c->notice))
		fail_msg("wanted %u missing and '%s', got %u and '%s'", count, words, c->missing_count, c->notice);
}

/* Whoever asks is told at once; of what he does not wait for, nothing. */
static void test_who_is_missing(void **state)
{
	struct rig rig;
	struct actor a[3];

	crew_open(&rig, a, 3, 2);
	actor_who(&a[0], PHUB__ABOUT__ABOUT_START, 1, UINT32_MAX);
	expect_who(&a[0], 0, "");
	actor_table(&a[0], NULL, 3, 10000);
	actor_who(&a[0], PHUB__ABOUT__ABOUT_START, 1, UINT32_MAX);
	expect_who(&a[0], 2, "waits to start for ranks 1, 2 of 3; 2 of them joined but sent no keys");
	actor_who(&a[0], PHUB__ABOUT__ABOUT_START, 2, UINT32_MAX);
	expect_who(&a[0], 0, "");
	actor_who(&a[0], PHUB__ABOUT__ABOUT_ROUND, 1, 0);
	expect_who(&a[0], 0, "");
	actor_table(&a[1], NULL, 3, 10000);
	actor_table(&a[2], NULL, 3, 10000);
	actor_barrier(&a[1], 1);
	actor_who(&a[1], PHUB__ABOUT__ABOUT_BARRIER, 1, UINT32_MAX);
	expect_who(&a[1], 2, "the barrier waits for ranks 0, 2 of 3");
	actor_who(&a[1], PHUB__ABOUT__ABOUT_BARRIER, 2, UINT32_MAX);
	expect_who(&a[1], 0, "");
	actor_who(&a[0], PHUB__ABOUT__ABOUT_BARRIER, 1, UINT32_MAX);
	expect_who(&a[0], 0, "");
	for (uint32_t chunk = 0; chunk < 3; chunk++) {
		actor_who(&a[0], PHUB__ABOUT__ABOUT_ROUND, 1, chunk);
		expect_who(&a[0], 3, "waits for ranks 0-2");
	}
	actor_who(&a[0], PHUB__ABOUT__ABOUT_ROUND, 0, 0);
	expect_who(&a[0], 0, "is complete, and its result on the way");
	actor_who(&a[0], PHUB__ABOUT__ABOUT_ROUND, 1, 1000);
	expect_who(&a[0], 0, "");
	actor_who(&a[0], (Phub__About)77, 1, 0);
	expect_who(&a[0], 0, "");
	crew_close(&rig, a, 3);
}

/* Asking without end: a core has one question of each at a time. */
static void test_who_is_bounded(void **state)
{
	struct mail mail;
	struct rig rig;
	struct actor a[3];

	crew_open(&rig, a, 2, 1);
	for (uint32_t i = 0; i < 2; i++)
		actor_table(&a[i], NULL, 1, 10);
	for (int i = 0; i < 100; i++) {
		struct session *s = session_find(&rig.box->control, a[0].session);
		Phub__Who who = PHUB__WHO__INIT;

		who.round = 1;
		job_hear_who(s, &who);
	}
	assert_int_equal(mailbox_receive(rig.box->cores[0]->inbox, &mail), 0);
	assert_int_equal(mail.kind, MAIL_WHO);
	assert_int_equal(mailbox_receive(rig.box->cores[0]->inbox, &mail), -EAGAIN);
	crew_close(&rig, a, 2);
}

/* Where each rank sets hyper-parameters of its own: it goes on behind the lost one's versions, with the newest values.
 */
static void test_hyper_of_who_comes(void **state)
{
	struct rig_job job = {.generation = 1, .optimizer = 1, .lr = 0.5, .sync = 2, .lost = 1};
	const Phub__Start *start;
	const uint32_t *newest;
	struct actor a[2];
	struct rig rig;

	crew_open(&rig, a, 2, 1);
	for (uint32_t i = 0; i < 2; i++)
		actor_table(&a[i], &job, 1, 16);
	newest = rig.box->control.jobs->generation->store.shards[0]->hypers.newest;
	actor_hyper(&a[1], 1, 0.25);
	actor_hyper(&a[1], 2, 0.125);
	actor_hyper(&a[0], 1, 0.0625);
	actor_hang_up(&a[1]);
	rig_turn_control(&rig);
	actor_enter(&rig, &a[1], 9, "demo", 1, 2);
	actor_table(&a[1], &job, 1, 16);
	assert_int_equal(actor_hear(&a[1]), PHUB__CONTROL__MESSAGE_START);
	start = a[1].last->start;
	assert_true(start->joined);
	assert_int_equal(start->hyper, 3);
	assert_true(start->groups[0]->lr == 0.0625);
	assert_int_equal(newest[1], 3);
	actor_hyper(&a[1], 4, 0.03125);
	rig_turn_control(&rig);
	assert_int_equal(newest[1], 4);
	assert_int_equal(newest[0], 1);
	for (uint32_t i = 0; i < 2; i++)
		actor_hang_up(&a[i]);
	rig_turn_control(&rig);
	assert_null(rig.box->control.jobs);
	rig_close(&rig);
}

/* The last that is here has come in a lost rank's place, and is gone before it took part: with it the job ends. */
static void test_a_newcomer_is_the_last(void **state)
{
	const struct rig_job shrinks = {.generation = 1, .lost = LOST_SHRINK};

	for (int leaves = 0; leaves < 2; leaves++) { /* the one before it was lost, or left */
		struct actor a[3] = {{0}};
		struct rig rig;

		crew_open(&rig, a, 2, 1);
		for (int i = 0; i < 2; i++)
			actor_table(&a[i], &shrinks, 1, 1000);
		rig_wait(&rig, 10);
		assert_int_equal(actor_hear(&a[0]), PHUB__CONTROL__MESSAGE_START);
		actor_hang_up(&a[1]);
		actor_enter(&rig, &a[2], 3, "demo", 1, 2);
		if (leaves)
			actor_leave(&a[0]);
		else
			actor_hang_up(&a[0]);
		rig_wait(&rig, 10);
		assert_int_equal(rig.box->control.job_count, 1);
		actor_hang_up(&a[2]);
		rig_wait(&rig, 6000);
		assert_int_equal(rig.box->control.job_count, 0);
		crew_close(&rig, a, leaves ? 1 : 0); /* the others have hung up */
	}
}

/* Of a job that goes on without, workers hear who was lost, and why, and who has left by itself. */
static void test_who_is_gone_and_why(void **state)
{
	const struct rig_job shrinks = {.generation = 1, .lost = LOST_SHRINK};
	const Phub__Members *told;
	struct actor a[5] = {{0}};
	struct rig rig;
	unsigned lost = 0;

	crew_open(&rig, a, 5, 1);
	for (int i = 0; i < 5; i++)
		actor_table(&a[i], &shrinks, 1, 1000);
	rig_wait(&rig, 10);
	assert_int_equal(actor_hear(&a[0]), PHUB__CONTROL__MESSAGE_START);
	actor_hang_up(&a[1]);
	rig_wait(&rig, 10);
	assert_int_equal(actor_hear(&a[0]), PHUB__CONTROL__MESSAGE_MEMBERS);
	told = a[0].last->members;
	assert_true(told->n_lost == 1 && told->lost[0] == 1 && told->n_left == 0);
	assert_true(told->n_why == 1 && told->why[0] == 0 && told->n_whys == 1);
	assert_non_null(strstr(told->whys[0], "its control session ended without a leave"));
	actor_leave(&a[2]);
	rig_wait(&rig, 10);
	assert_int_equal(actor_hear(&a[0]), PHUB__CONTROL__MESSAGE_MEMBERS);
	told = a[0].last->members;
	assert_true(told->n_lost == 1 && told->lost[0] == 2 && told->n_left == 1 && told->left[0] == 2);
	assert_true(told->n_whys == 0 && told->n_why == 1 && told->why[0] > 0);
	actor_hang_up(&a[2]);
	actor_hang_up(&a[3]); /* two at once */
	actor_hang_up(&a[4]);
	rig_wait(&rig, 10);
	for (; lost < 2; lost += (unsigned)told->n_lost) {
		assert_int_equal(actor_hear(&a[0]), PHUB__CONTROL__MESSAGE_MEMBERS);
		told = a[0].last->members;
		assert_int_equal(told->n_why, told->n_lost);
		for (size_t i = 0; i < told->n_lost; i++)
			assert_true(told->why[i] < told->n_whys && strstr(told->whys[told->why[i]], "without a leave"));
	}
	crew_close(&rig, a, 1);
}

/* Has it been told that it takes part? */
static bool hears_joined(struct actor *c)
{
	return actor_hear(c) == PHUB__CONTROL__MESSAGE_START && c->last->start->joined;
}

/*
 * Another comes while cores are at the change by which a rank is lost: the next change lets it in, whose rounds it then
 * hears. Those of the first are not its own, and what it asked for by them the next would forget.
 */
static void test_comes_before_all_know_of_the_loss(void **state)
{
	const struct rig_job waits = {.generation = 1, .lost = LOST_WAIT};
	struct actor a[3] = {{0}};
	struct control *c;
	struct job *job;
	struct rig rig;

	crew_open(&rig, a, 2, 1);
	for (int i = 0; i < 2; i++)
		actor_table(&a[i], &waits, 1, 1000);
	rig_turn_control(&rig);
	c = &rig.box->control;
	job = c->jobs;
	rig.cores_rest = true;
	actor_hang_up(&a[1]);
	rig_turn_control(&rig);
	assert_non_null(job->change);
	actor_enter(&rig, &a[2], 3, "demo", 1, 2);
	actor_table(&a[2], &waits, 1, 1000);
	rig_turn_control(&rig);
	for (int change = 0; change < 2; change++) {
		assert_int_equal(job->next_change != NULL, change == 0);
		for (int step = 0; step < 2; step++) { /* hold, go */
			assert_non_null(job->change);
			assert_false(hears_joined(&a[2]));
			core_step(rig.box->cores[0], rig.now_ns);
			rig_turn_control(&rig);
		}
	}
	assert_null(job->change);
	assert_true(hears_joined(&a[2]));
	rig.cores_rest = false;
	a[1] = a[2];
	crew_close(&rig, a, 2);
}

TEST_PROGRAM(test_control_who)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stall_blames_who_is_missing),
		cmocka_unit_test(test_who_left_may_owe_results),
		cmocka_unit_test(test_a_newcomer_is_the_last),
		cmocka_unit_test(test_who_is_gone_and_why),
		cmocka_unit_test(test_a_core_names_all_who_are_missing),
		cmocka_unit_test(test_who_is_missing),
		cmocka_unit_test(test_who_is_bounded),
		cmocka_unit_test(test_hyper_of_who_comes),
		cmocka_unit_test(test_comes_before_all_know_of_the_loss),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
