/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data connections of a box below: by what they may come, when the way is not good enough for a box though it is for a
 * worker. The transport is the loop, under another's name and with another's flaws.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/scene_rig.h"

#include <errno.h>
#include <stddef.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "phub/control/job.h"

enum { PAIR = 2, NUMBERS = 100 };

static struct transport_ops flawed;
static const struct transport_ops *real;

/* A job of a worker here and one below, which runs. */
static void door_open(struct scene *s, const char *name)
{
	static const struct rig_job job = {.generation = 1};
	const uint32_t rank = 1;
	struct job *running;

	scene_begin(s, 1, 0, NULL);
	real = s->rig.box->transports[0].transport->ops;
	flawed = *real;
	flawed.name = name;
	scene_join(s, 0, 0, PAIR);
	actor_dial(&s->rig, &s->box[0], 2);
	s->box[0].below = true;
	assert_true(actor_join(&s->box[0], "wide", 0, PAIR, NULL));
	actor_gather(&s->box[0], &rank, 1, 1, 0);
	actor_table(&s->box[0], &job, 1, NUMBERS);
	actor_table(&s->worker[0], &job, 1, NUMBERS);
	rig_wait(&s->rig, 10);
	running = s->rig.box->control.jobs;
	assert_non_null(running);
	assert_int_equal(running->state, JOB_RUNNING);
	for (uint32_t i = 0; i < running->world; i++) /* each has picked it */
		snprintf(running->members[i].transport, sizeof(running->members[i].transport), "%s", name);
	s->rig.box->transports[0].transport->ops = &flawed;
}

static void door_close(struct scene *s)
{
	s->rig.box->transports[0].transport->ops = real;
	scene_close(s);
}

static int connect_as(struct actor *a)
{
	struct conn *conn;
	int rc = actor_connect(a, 0, a->key, &conn);

	a->transport->ops->abandon(a->transport, conn);
	return rc;
}

/* Where workers push into places that are as large as what they push. */
static void test_fixed_places(void **state)
{
	struct scene s;

	door_open(&s, "verbs");
	s.rig.config.rdma_pushes = CONFIG_PUSHES_FIXED;
	assert_int_equal(connect_as(&s.box[0]), -ECONNREFUSED);
	assert_int_equal(connect_as(&s.worker[0]), 0);
	door_close(&s);

	door_open(&s, "verbs");
	assert_int_equal(connect_as(&s.box[0]), 0);
	door_close(&s);

	door_open(&s, "tcp"); /* which has none */
	s.rig.config.rdma_pushes = CONFIG_PUSHES_FIXED;
	assert_int_equal(connect_as(&s.box[0]), 0);
	door_close(&s);
}

/* What loses messages; and memory that both sides would look into, of a job that began without. */
static void test_not_plain(void **state)
{
	const struct job *job;
	struct queue *q;
	uint64_t used;
	struct scene s;

	door_open(&s, "loop");
	q = s.rig.box->queues[0][0];
	q->lossy = true;
	assert_int_equal(connect_as(&s.box[0]), -ECONNREFUSED);
	assert_int_equal(connect_as(&s.worker[0]), 0);
	q->lossy = false;
	door_close(&s);

	door_open(&s, "shm");
	q = s.rig.box->queues[0][0];
	q->hold_max = UINT_MAX;
	job = s.rig.box->control.jobs;
	used = s.rig.box->control.memory_used;
	assert_int_equal(connect_as(&s.box[0]), -ECONNREFUSED);
	assert_null(job->generation->pushes[job->world - 1].base);
	assert_int_equal(s.rig.box->control.memory_used, used);
	q->hold_max = 0;
	door_close(&s);
}

/* Another than it has picked; a box may see at this point only that what it has picked does not do. */
static void test_not_picked(void **state)
{
	struct scene s;

	door_open(&s, "tcp");
	flawed.name = "udp";
	assert_int_equal(connect_as(&s.worker[0]), -ECONNREFUSED);
	assert_int_equal(connect_as(&s.box[0]), 0);
	door_close(&s);
}

/* A box that goes down lets nobody in. */
static void test_goes_down(void **state)
{
	struct scene s;

	door_open(&s, "loop");
	s.rig.box->control.stopping = true;
	assert_int_equal(connect_as(&s.worker[0]), -ESHUTDOWN);
	s.rig.box->control.stopping = false;
	door_close(&s);
}

TEST_PROGRAM(test_door)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fixed_places),
		cmocka_unit_test(test_not_plain),
		cmocka_unit_test(test_not_picked),
		cmocka_unit_test(test_goes_down),
	};

	return cmocka_run_group_tests_name("door", tests, NULL, NULL);
}
