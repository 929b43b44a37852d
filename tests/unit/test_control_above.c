/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box below: what the box above says of a start is checked before cores hear of it; whom it calls, and when it is the
 * root itself.
 */
#include "tests/unit/scene_rig.h"
#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "phub/base/crc.h"
#include "phub/control/job.h"
#include "phub/control/job_below.h"
#include "phub/control/parent.h"
#include "phub/control/promotion.h"
#include "phub/members.h"
#include "topology/ways.h"
#include "transport/call.h"

/* ---- starts ---- */

static void test_joins(void **state)
{
	struct said said;
	struct scene s;

	scene_open(&s);
	scene_tell(&s, &plain);
	said_join(&said);
	upper_start(&s, &said);
	actor_expect(&s.worker[0], 0, "");
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(actor_hear(&s.worker[i]), PHUB__CONTROL__MESSAGE_START);
		assert_true(s.worker[i].last->start->joined);
		assert_int_equal(s.worker[i].last->start->rounds[0], 8);
	}
	scene_close(&s);
}

enum { WINDOW, GENERATION, EXCHANGE, PLACE, NOWHERE, NO_GROUPS, GROUPS, NO_ROUNDS, ROUNDS, ROUND, WRONGS };

static void said_wrongly(struct said *s, int what)
{
	switch (what) {
	case WINDOW:
		s->start.window = 0;
		break;
	case GENERATION:
		said_init(s);
		s->start.generation = 2;
		break;
	case EXCHANGE:
		s->exchange.hierarchy = PHUB__HIERARCHY__HIERARCHY_SHARDED;
		s->start.exchange = &s->exchange;
		break;
	case PLACE:
	case NOWHERE:
		s->start.core_of_chunk.len = what == PLACE ? KEYS - 1 : 0;
		break;
	case NO_GROUPS:
	case GROUPS:
		s->start.n_groups = what == GROUPS ? 2 : 0;
		break;
	case NO_ROUNDS:
	case ROUNDS:
		s->start.n_rounds = what == ROUNDS ? KEYS - 1 : 0;
		break;
	case ROUND:
		s->rounds[0] = MEMBERS_NEVER;
	}
}

/* One that lets in, and then one thing of it is wrong: its workers are told, and the box lives. */
static void test_wrong_starts(void **state)
{
	static const char otherwise[] = "the box above runs it otherwise than its workers here";
	static const struct {
		int code;
		const char *text;
	} cases[WRONGS] = {
		[WINDOW] = {ERROR_OF(LOST), "it grants 0 messages"},
		[GENERATION] = {ERROR_OF(LOST), "it starts generation 2, and 1 is next"},
		[EXCHANGE] = {ERROR_OF(LOST), "it lets us in, and names an exchange, into which nobody is let"},
		[PLACE] = {ERROR_OF(PROTOCOL), "chunks of it, and this one"},
		[NOWHERE] = {ERROR_OF(PROTOCOL), "chunks of it, and this one"},
		[NO_GROUPS] = {ERROR_OF(LOST), otherwise},
		[GROUPS] = {ERROR_OF(LOST), otherwise},
		[NO_ROUNDS] = {ERROR_OF(LOST), otherwise},
		[ROUNDS] = {ERROR_OF(LOST), otherwise},
		[ROUND] = {ERROR_OF(LOST), otherwise},
	};

	for (int i = 0; i < WRONGS; i++) {
		struct said said;
		struct scene s;

		print_message("row %d\n", i);
		scene_open(&s);
		scene_tell(&s, &plain);
		said_join(&said);
		said_wrongly(&said, i);
		upper_start(&s, &said);
		for (unsigned k = 0; k < 2; k++)
			actor_expect(&s.worker[k], cases[i].code, cases[i].text);
		scene_close(&s);
	}
}

/* It starts with ranks that have changed since: it hears that, and is called again, and workers wait. */
static void test_starts_too_early(void **state)
{
	struct said said;
	struct scene s;

	scene_open(&s);
	scene_tell(&s, &plain);
	said_init(&said);
	said.start.gathered++;
	upper_start(&s, &said);
	assert_int_equal(rig_job(&s.rig)->state, JOB_FORMING);
	assert_non_null(strstr(above.left, "ranks came or went as it started"));
	above.keys = 0;
	rig_wait(&s.rig, 300);
	assert_int_equal(above.opened, 2);
	assert_int_equal(above.keys, KEYS);
	said_init(&said);
	upper_start(&s, &said);
	actor_expect(&s.worker[0], 0, "");
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	scene_close(&s);
}

/* Who has sent its table goes, and the box above may have started the job by that: it hears why it does not run here.
 */
static void test_goes_too_early(void **state)
{
	struct scene s;

	scene_open(&s);
	scene_tell(&s, &plain);
	for (unsigned i = 0; i < 2; i++)
		actor_hang_up(&s.worker[i]);
	rig_wait(&s.rig, 10);
	assert_non_null(strstr(above.left, "ranks went as it started"));
	scene_close(&s);
}

/* ---- a box beside ---- */

static void beat(struct scene *s, unsigned seconds)
{
	for (unsigned i = 0; i < seconds && s->worker[1].error_code == 0; i++) {
		rig_wait(&s->rig, 1000);
		for (unsigned k = 0; k < 2; k++) {
			if (s->worker[k].rig && s->worker[k].stream)
				actor_heartbeat(&s->worker[k]);
			actor_hear(&s->worker[k]);
		}
	}
}

/* It takes a connection, and says nothing by it: it is lost like one that says nothing any more. */
static void test_beside_is_silent(void **state)
{
	struct said said;
	struct scene s;

	scene_open(&s);
	scene_tell(&s, &plain);
	said_exchange(&said);
	upper_start(&s, &said);
	actor_expect(&s.worker[1], 0, "");
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	assert_int_equal(beside[0].opened, 1);
	beat(&s, 9);
	actor_expect(&s.worker[1], 0, "");
	beat(&s, 4);
	actor_expect(&s.worker[1], ERROR_OF(LOST),
		"box 10.1.1.2:7077, to which chunks of it are lifted, cannot be reached from here: it has not answered "
		"for 1");
	scene_close(&s);
}

/* A job that comes again may start without some of its ranks, who may come to this box with boxes of theirs. */
static void test_places_for_later(void **state)
{
	struct said said;
	struct scene s;

	scene_open(&s);
	scene_tell(&s, &again);
	said_init(&said);
	upper_start(&s, &said);
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	assert_int_equal(rig_job(&s.rig)->world, WORLD + WORLD);
	scene_close(&s);
}

/* A table that replaces the first one starts among those who are in it: nobody is let in by that. */
static void test_joins_twice(void **state)
{
	static const struct rig_job next = {.generation = 2};
	struct said said;
	struct scene s;

	scene_open(&s);
	scene_tell(&s, &plain);
	said_init(&said);
	upper_start(&s, &said);
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	scene_tell(&s, &next);
	said_join(&said);
	upper_start(&s, &said);
	for (unsigned k = 0; k < 2; k++)
		actor_expect(&s.worker[k], ERROR_OF(LOST), "it lets us in, and we run");
	scene_close(&s);
}

/* Its data connections are let in by nobody, and not refused: they are not waited for for ever. */
static void test_dial_ends_in_time(void **state)
{
	const unsigned patience_ms = 5000 + 10000; /* handshake_ms and lost_ms */
	struct said said;
	struct scene s;

	scene_open(&s);
	scene_tell(&s, &plain);
	said_init(&said);
	upper_start(&s, &said);
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	for (unsigned waited = 0; waited < patience_ms + 2000; waited += 500) {
		for (unsigned i = 0; i < 2; i++)
			actor_heartbeat(&s.worker[i]);
		if (waited == patience_ms - 500)
			actor_expect(&s.worker[0], 0, "");
		rig_wait(&s.rig, 500);
	}
	for (unsigned i = 0; i < 2; i++)
		actor_expect(&s.worker[i], ERROR_OF(LOST), "its data connections were not made within 15000 ms");
	scene_close(&s);
}

/* The box above lets its connection in, and takes it into its queue. */
static struct conn *upper_adopt(struct scene *s, struct queue *queue)
{
	struct hello hello;
	struct err e;

	rig_wait(&s->rig, 10);
	if (above.transport->ops->accept(above.transport, s->rig.now_ns, &hello) < 0)
		return NULL;
	assert_int_equal(above.transport->ops->admit(above.transport, hello.conn, NULL, &e), 0);
	assert_int_equal(queue->ops->adopt(queue, hello.conn, NULL), 0);
	rig_wait(&s->rig, 10);
	return hello.conn;
}

/* For so long its connection is made, and breaks at once. */
static void upper_flaps(struct scene *s, struct queue *queue, struct conn **conn, unsigned seconds)
{
	struct event events[4];

	for (unsigned i = 0; i < 2 * seconds && *conn; i++) {
		loop_net_break(s->rig.net, ABOVE_HOST, RIG_BOX_HOST);
		queue->ops->poll(queue, s->rig.now_ns, events, 4);
		queue->ops->drop(queue, *conn);
		*conn = upper_adopt(s, queue);
		rig_wait(&s->rig, 480);
		for (unsigned k = 0; k < 2; k++)
			actor_heartbeat(&s->worker[k]);
	}
}

/* The job runs, lifted by a connection to a queue there. */
static struct conn *upper_carries(struct scene *s, struct queue **queue)
{
	struct said said;
	struct err e;

	scene_open(s);
	scene_tell(s, &plain);
	said_init(&said);
	upper_start(s, &said);
	assert_int_equal(above.transport->ops->queue_create(above.transport, MEM_NODE_ANY, queue, &e), 0);
	return upper_adopt(s, *queue);
}

/* One that is made anew, and breaks at once, is so for lost_ms from the first time on; but when it has held for long,
 * it is the first time again. */
static void test_breaks_again_and_again(void **state)
{
	struct queue *queue;
	struct conn *conn;
	struct scene s;

	conn = upper_carries(&s, &queue);
	assert_non_null(conn);
	upper_flaps(&s, queue, &conn, 8);
	beat(&s, 16);
	upper_flaps(&s, queue, &conn, 8);
	actor_expect(&s.worker[0], 0, "");
	assert_int_equal(rig_job(&s.rig)->reconnects, 32);
	upper_flaps(&s, queue, &conn, 4);
	beat(&s, 3); /* it might have said why */
	for (unsigned i = 0; i < 2; i++)
		actor_expect(&s.worker[i], ERROR_OF(LOST),
			"box above (uplink 10.1.1.1:7077) was lost: the uplink of core 0 to its core 0 broke again "
			"and again, and no result came between: ");
	if (conn)
		queue->ops->drop(queue, conn);
	above.transport->ops->queue_destroy(above.transport, queue);
	scene_close(&s);
}

static int refuse(struct queue *q, struct conn *c, const struct conn_spec *spec)
{
	return -ENOMEM;
}

/* A core that does not take the one that was made anew is given another. */
static void test_is_not_taken(void **state)
{
	const struct queue_ops *ops;
	struct queue_ops refusing;
	struct queue *queue, *up;
	struct conn *conn;
	struct scene s;

	conn = upper_carries(&s, &queue);
	up = s.rig.box->cores[0]->uplinks[0];
	ops = up->ops;
	refusing = *ops;
	refusing.adopt = refuse;
	up->ops = &refusing;
	upper_flaps(&s, queue, &conn, 1);
	up->ops = ops;
	upper_flaps(&s, queue, &conn, 1);
	beat(&s, 12);
	actor_expect(&s.worker[0], 0, "");
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	if (conn)
		queue->ops->drop(queue, conn);
	above.transport->ops->queue_destroy(above.transport, queue);
	scene_close(&s);
}

/* ---- who is above ---- */

static void box_comes(struct scene *s, uint32_t rank)
{
	memset(&s->box[0], 0, sizeof(s->box[0]));
	actor_dial(&s->rig, &s->box[0], 5);
	s->box[0].below = true;
	assert_true(actor_join(&s->box[0], "wide", 0, WORLD, NULL));
	actor_gather(&s->box[0], &rank, 1, 1, 0);
	rig_wait(&s->rig, 10);
}

/* A box below says that it has a rank which is at the box above: before the job starts here it is to ask again, as that
 * rank may be lost there; after that it is refused. The job does not notice. */
static void test_rank_is_above(void **state)
{
	struct said said;
	struct scene s;

	scene_open(&s);
	actor_table(&s.worker[0], &shrinks, KEYS, ELEMENTS);
	rig_wait(&s.rig, 10);
	assert_int_equal(above.keys, KEYS);
	said_join(&said);
	upper_start(&s, &said);
	assert_int_equal(rig_job(&s.rig)->state, JOB_FORMING); /* the second one's table has not come */
	assert_int_equal(rig_job(&s.rig)->members[2].at, JOB_AT_OTHER);
	box_comes(&s, 2);
	actor_expect(&s.box[0], ERROR_OF(BUSY), "rank 2 is at a box above this one, or below that");
	actor_hang_up(&s.box[0]);
	actor_table(&s.worker[1], &shrinks, KEYS, ELEMENTS);
	rig_wait(&s.rig, 10);
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	box_comes(&s, 3); /* into the place that it had */
	actor_expect(&s.box[0], ERROR_OF(TAKEN), "rank 3 is at another box; give every worker its own rank");
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	assert_int_equal(job_count_somewhere(rig_job(&s.rig)), WORLD);
	for (unsigned k = 0; k < 2; k++) {
		actor_hear(&s.worker[k]);
		assert_int_equal(s.worker[k].error_code, 0);
	}
	scene_close(&s);
}

/* Whom a round waits for at the box above, this one tells in its own words where that is here; what it cannot be about
 * is passed on as it came. */
static void test_notices(void **state)
{
	static const struct {
		uint32_t chunk, rank;
		const char *passed, *kept;
	} cases[] = {
		{KEYS, 1, "it says so", ""},
		{0, WORLD, "it says so", ""},
		{0, 2, "it says so", "it says so"},
		{0, 1, "round 8 of key 'k0' waits for rank 1 (loop:", "round 8 of key 'k0' waits for rank 1 (loop:"},
	};
	char text[] = "it says so";
	struct said said;
	struct scene s;

	scene_open(&s);
	scene_tell(&s, &plain);
	said_join(&said);
	upper_start(&s, &said);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct job *job = s.rig.box->control.jobs;
		uint32_t rank = cases[i].rank;
		Phub__Notice notice = PHUB__NOTICE__INIT;

		notice.round = 8;
		notice.chunk = cases[i].chunk;
		notice.missing = &rank;
		notice.n_missing = notice.missing_count = 1;
		notice.text = text;
		job_pass_notice(job, &notice);
		rig_wait(&s.rig, 10);
		actor_hear(&s.worker[0]);
		assert_non_null(strstr(s.worker[0].notice, cases[i].passed));
		assert_int_equal(s.worker[0].missing[0], cases[i].rank);
		assert_true(strncmp(job->waiting, cases[i].kept, strlen(cases[i].kept)) == 0);
		assert_true(cases[i].kept[0] || !job->waiting[0]);
	}
	scene_close(&s);
}

/* ---- this box is the root ---- */

static void expect_lease(const struct rig *rig, uint64_t until_ns)
{
	for (unsigned i = 0; i < rig->box->core_count; i++)
		assert_int_equal(rig->box->cores[i]->lease.until_ns, until_ns);
}

/* Whatever becomes of its lease, cores know it, and jobs that start under it are theirs to hold. */
static void test_cores_know_the_lease(void **state)
{
	static const char *const settings[] = {"root=top", "etcd=http://127.0.0.1:2379", "etcd_ttl_ms=4000", NULL};
	struct scene s = {.rig = {0}};
	struct control *c;
	struct err e;

	rig_open(&s.rig, 2, settings);
	c = &s.rig.box->control;
	expect_lease(&s.rig, 0);
	assert_int_equal(above_assume(c, 7, s.rig.now_ns, &e), -EAGAIN);
	expect_lease(&s.rig, 0);
	assert_int_equal(above_assume(c, 7, s.rig.now_ns + 1000000000, &e), 0);
	expect_lease(&s.rig, s.rig.now_ns + 1000000000);
	above_renew(c, s.rig.now_ns + 2000000000);
	expect_lease(&s.rig, s.rig.now_ns + 2000000000);
	rig_wait(&s.rig, 2500); /* in doubt */
	expect_lease(&s.rig, 0);
	above_renew(c, s.rig.now_ns + 1000000000);
	expect_lease(&s.rig, s.rig.now_ns + 1000000000);
	actor_enter(&s.rig, &s.worker[0], 1, "alone", 0, 1);
	actor_table(&s.worker[0], &plain, KEYS, ELEMENTS);
	rig_wait(&s.rig, 10);
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	assert_true(rig_job(&s.rig)->generation->store.shards[0]->leased);
	above_doubt(c, "it is a test");
	expect_lease(&s.rig, 0);
	for (unsigned below = 0; below < 2; below++) { /* another root may have gone on with it */
		actor_dial(&s.rig, &s.worker[1], 2 + below);
		s.worker[1].below = below;
		assert_false(actor_join(&s.worker[1], "alone", 0, 1, NULL));
		actor_expect(&s.worker[1], ERROR_OF(BUSY), "lets nobody in until it knows");
		actor_hang_up(&s.worker[1]);
	}
	above_renew(c, s.rig.now_ns + 1000000000);
	above_depose(c, NULL, "it is a test");
	expect_lease(&s.rig, 0);
	actor_hang_up(&s.worker[0]);
	rig_wait(&s.rig, 6000);
	rig_close(&s.rig);
}

/* ---- several that may be the root ---- */

static const char *waits_for(struct scene *s)
{
	static struct parent_report report;

	assert_true(parent_describe(rig_job(&s->rig), &report));
	assert_int_equal(report.state, PARENT_DIALLING);
	return report.why;
}

static void expect_called(const char *called)
{
	assert_string_equal(above.called, called);
	above.called[0] = '\0';
}

/* They are called in turn, at once, and all of them again after a while; all but the first only as a root, and none
 * with a lower epoch than was heard of. */
static void test_turns(void **state)
{
	struct scene s;

	scene_open_below(&s, "uplink=10.1.1.1:7077, phub://10.1.1.2:7078,10.1.1.9:7077,10.1.1.4:7077");
	snprintf(above.answers, sizeof(above.answers), "nobody");
	for (uint32_t i = 0; i < 2; i++)
		actor_table(&s.worker[i], &plain, KEYS, ELEMENTS);
	rig_wait(&s.rig, 100);
	expect_called("10.1.1.1>=0 10.1.1.2>=1 10.1.1.4>=1 ");
	assert_string_equal(waits_for(&s), "10.1.1.1:7077: nobody is there; 10.1.1.2:7078: nobody is there; "
					   "10.1.1.4:7077: nobody is there");
	snprintf(above.answers, sizeof(above.answers), "10.1.1.2");
	above.root = 3;
	rig_wait(&s.rig, 300);
	expect_called("10.1.1.1>=0 10.1.1.2>=1 ");
	assert_int_equal(above.keys, KEYS);
	snprintf(above.answers, sizeof(above.answers), "10.1.1.4");
	above.silent = true;
	above.root = 4;
	rig_wait(&s.rig, 1000);
	expect_called("10.1.1.4>=3 ");
	assert_int_equal(s.rig.box->control.above.seen, 4);
	scene_close(&s);
}

/* When nobody that is called is the root, it is known who may be made it, but where one of them is with the root. */
static void test_advice(void **state)
{
	static const struct {
		const char *uplink, *heirs, *knows, *advice;
	} cases[] = {
		{"10.1.1.1:7077,10.1.1.2:7077,10.1.1.4:7077", "10.1.1.2,10.1.1.4", "",
			"if the root is dead, `phub promote 10.1.1.2:7077` (or 10.1.1.4:7077) makes another box the "
			"root"},
		{"10.1.1.1:7077,10.1.1.2:7077,10.1.1.4:7077", "10.1.1.4", "",
			"if the root is dead, `phub promote 10.1.1.4:7077` makes another box the root"},
		{"10.1.1.1:7077,110.1.1.4:7077,10.1.1.4:7077", "110.1.1.4,10.1.1.4", "",
			"if the root is dead, `phub promote 110.1.1.4:7077` (or 10.1.1.4:7077) makes another box the "
			"root"},
		{"10.1.1.1:7077,10.1.1.2:7077,10.1.1.2:7077", "10.1.1.2", "",
			"if the root is dead, `phub promote 10.1.1.2:7077` makes another box the root"},
		{"10.1.1.1:7077,10.1.1.2:7077,10.1.1.4:7077", "10.1.1.2", "10.1.1.4", ""},
		{"10.1.1.1:7077,10.1.1.2:7077", "", "",
			"if the root is dead, start it again: no box that answers could be promoted (phub promote), "
			"as none has checkpoint_targets"},
		{"10.1.1.1:7077", "", "", ""},
	};
	char uplink[128];
	struct scene s;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *advice;

		snprintf(uplink, sizeof(uplink), "uplink=%s", cases[i].uplink);
		scene_open_below(&s, uplink);
		snprintf(above.answers, sizeof(above.answers), "nobody");
		snprintf(above.heirs, sizeof(above.heirs), "%s", cases[i].heirs);
		snprintf(above.knows, sizeof(above.knows), "%s", cases[i].knows);
		for (uint32_t k = 0; k < 2; k++)
			actor_table(&s.worker[k], &plain, KEYS, ELEMENTS);
		for (unsigned turn = 0; turn < 2; turn++) { /* the same, without a trace of the turn before */
			struct parent_report report;

			rig_wait(&s.rig, turn ? 1000 : 100);
			assert_true(parent_describe(rig_job(&s.rig), &report));
			advice = report.advice;
			assert_string_equal(advice, cases[i].advice);
		}
		above.answers[0] = '\0'; /* it is there again */
		rig_wait(&s.rig, 6000);
		assert_string_equal(s.rig.box->control.above.advice, "");
		scene_close(&s);
	}
}

/* Where there is but one place, whoever is there is followed, also below another; but no root of a lower epoch. */
static void test_stale_root(void **state)
{
	struct scene s;

	scene_open(&s);
	above.root = 3;
	for (uint32_t i = 0; i < 2; i++)
		actor_table(&s.worker[i], &plain, KEYS, ELEMENTS);
	rig_wait(&s.rig, 100);
	assert_int_equal(above.keys, KEYS);
	snprintf(above.answers, sizeof(above.answers), "nobody");
	above.silent = true;
	rig_wait(&s.rig, 100);
	above.answers[0] = '\0';
	above.root = 2;
	rig_wait(&s.rig, 1000);
	assert_non_null(strstr(waits_for(&s), "it is the root of epoch 2, and one of epoch 3 was promoted since"));
	above.root = 0;
	rig_wait(&s.rig, 6000);
	assert_int_equal(above.keys, KEYS);
	scene_close(&s);
}

/* What it is asked while no etcd and no targets are there, and how its epoch is told. */
static void test_promotes_nobody(void **state)
{
	enum promotion_state how;
	struct scene s;
	struct err e;

	scene_open(&s);
	assert_int_equal(above_epoch(&s.rig.box->control), 0);
	assert_int_equal(promotion_ask(&s.rig.box->control, "me", "", false, &how, &e), -EPERM);
	assert_non_null(strstr(e.text, "it has no checkpoint_targets"));
	assert_null(promotion_file(&s.rig.box->control));
	scene_close(&s);
}

/* The one above names its sibling, and dies: that is called, and the two in turn; not where it is this box itself. */
static void test_sibling(void **state)
{
	static const char *const named[] = {"10.1.1.7", "10.1.1.9", NULL};
	struct scene s;

	for (unsigned i = 0; i < 3; i++) {
		upper_names = named[i];
		scene_open(&s);
		scene_tell(&s, &plain);
		assert_string_equal(above.called, "10.1.1.1>=0 ");
		snprintf(above.answers, sizeof(above.answers), "none");
		above.silent = true;
		above.called[0] = '\0';
		rig_wait(&s.rig, 2000);
		assert_memory_equal(above.called, i == 0 ? "10.1.1.7>=0 10.1.1.1>=0 " : "10.1.1.1>=0 10.1.1.1>=0 ", 24);
		assert_null(strstr(above.called, "10.1.1.9"));
		above.answers[0] = '\0';
		above.silent = false;
		scene_close(&s);
	}
	upper_names = NULL;
}

/* The rack file alone says where this box is called, as where it listens at all addresses: it is its own sibling. */
static void test_sibling_by_racks(void **state)
{
	static const char file[] = "racks:\n"
				   "  - {name: r0, uplink: 1Gbit, boxes: [{name: b0, address: '10.1.1.1:7077', rate: "
				   "1Gbit}]}\n"
				   "  - {name: r1, uplink: 1Gbit, boxes: [{name: b1, address: '10.1.1.9:7077', rate: "
				   "1Gbit}]}\n";
	char path[] = "/tmp/phub-racks-XXXXXX", racks[64];
	const char *settings[] = {"uplink=10.1.1.1:7077", racks, "box=b1", NULL};
	int fd = mkstemp(path);
	struct scene s;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, file, sizeof(file) - 1), sizeof(file) - 1);
	close(fd);
	snprintf(racks, sizeof(racks), "racks=%s", path);
	upper_names = "10.1.1.9";
	scene_open_with(&s, settings);
	scene_tell(&s, &plain);
	snprintf(above.answers, sizeof(above.answers), "none");
	above.silent = true;
	above.called[0] = '\0';
	rig_wait(&s.rig, 2000);
	assert_memory_equal(above.called, "10.1.1.1>=0 10.1.1.1>=0 ", 24);
	assert_null(strstr(above.called, "10.1.1.9"));
	above.answers[0] = '\0';
	above.silent = false;
	scene_close(&s);
	upper_names = NULL;
	unlink(path);
}

/* The boxes above two of them die together, and each is the sibling of the other's: none lets the other in while it
 * waits itself to be let in. */
static void test_both_above_die(void **state)
{
	struct scene s;

	upper_names = "10.1.1.7";
	scene_open(&s);
	scene_tell(&s, &plain);
	snprintf(above.answers, sizeof(above.answers), "10.1.1.7");
	above.undecided = true;
	above.silent = true;
	rig_wait(&s.rig, 500);
	assert_true(above_at_sibling(&s.rig.box->control));
	assert_string_equal(waits_for(&s), "");
	actor_dial(&s.rig, &s.box[0], 5);
	s.box[0].below = true;
	assert_false(actor_join(&s.box[0], "wide", 0, WORLD, NULL));
	actor_expect(&s.box[0], ERROR_OF(BUSY),
		"has lost the one above it, and waits itself to be let in by that one's sibling");
	above.undecided = false;
	rig_wait(&s.rig, 500);
	actor_hang_up(&s.box[0]);
	box_comes(&s, 3);
	assert_int_equal(s.box[0].error_code, 0);
	scene_close(&s);
	upper_names = NULL;
}

TEST_PROGRAM(test_control_above)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_joins),
		cmocka_unit_test(test_wrong_starts),
		cmocka_unit_test(test_starts_too_early),
		cmocka_unit_test(test_goes_too_early),
		cmocka_unit_test(test_beside_is_silent),
		cmocka_unit_test(test_places_for_later),
		cmocka_unit_test(test_joins_twice),
		cmocka_unit_test(test_dial_ends_in_time),
		cmocka_unit_test(test_breaks_again_and_again),
		cmocka_unit_test(test_is_not_taken),
		cmocka_unit_test(test_rank_is_above),
		cmocka_unit_test(test_notices),
		cmocka_unit_test(test_cores_know_the_lease),
		cmocka_unit_test(test_turns),
		cmocka_unit_test(test_advice),
		cmocka_unit_test(test_stale_root),
		cmocka_unit_test(test_promotes_nobody),
		cmocka_unit_test(test_sibling),
		cmocka_unit_test(test_sibling_by_racks),
		cmocka_unit_test(test_both_above_die),
	};

	return cmocka_run_group_tests_name("above", tests, NULL, NULL);
}
