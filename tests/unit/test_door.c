/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data connections of a box below: by what they may come, when the way is not good enough for a box though it is for a
 * worker. The transport is the loop, under another's name and with another's flaws.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/control_rig.h"

#include <errno.h>
#include <stddef.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "phub/control/job.h"

enum { WORLD = 2, ELEMENTS = 100 };

struct scene {
	struct rig rig;
	struct actor worker, box;
	struct transport_ops ops;
	const struct transport_ops *real;
};

/* A job of a worker here and one below, which runs. */
static void scene_open(struct scene *s, const char *name)
{
	static const struct rig_job job = {.generation = 1};
	const uint32_t rank = 1;
	struct job *running;

	memset(s, 0, sizeof(*s));
	rig_open(&s->rig, 1, NULL);
	s->real = s->rig.box->transports[0].transport->ops;
	s->ops = *s->real;
	s->ops.name = name;
	actor_enter(&s->rig, &s->worker, 1, "wide", 0, WORLD);
	actor_dial(&s->rig, &s->box, 2);
	s->box.below = true;
	assert_true(actor_join(&s->box, "wide", 0, WORLD, NULL));
	actor_gather(&s->box, &rank, 1, 1, 0);
	actor_table(&s->box, &job, 1, ELEMENTS);
	actor_table(&s->worker, &job, 1, ELEMENTS);
	rig_wait(&s->rig, 10);
	running = s->rig.box->control.jobs;
	assert_non_null(running);
	assert_int_equal(running->state, JOB_RUNNING);
	for (uint32_t i = 0; i < running->world; i++) /* each has picked it */
		snprintf(running->members[i].transport, sizeof(running->members[i].transport), "%s", name);
	s->rig.box->transports[0].transport->ops = &s->ops;
}

static void scene_close(struct scene *s)
{
	s->rig.box->transports[0].transport->ops = s->real;
	actor_hang_up(&s->worker);
	actor_hang_up(&s->box);
	rig_wait(&s->rig, 6000);
	rig_expect_empty(&s->rig);
	rig_close(&s->rig);
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

	scene_open(&s, "verbs");
	s.rig.config.rdma_pushes = CONFIG_PUSHES_FIXED;
	assert_int_equal(connect_as(&s.box), -ECONNREFUSED);
	assert_int_equal(connect_as(&s.worker), 0);
	scene_close(&s);

	scene_open(&s, "verbs");
	assert_int_equal(connect_as(&s.box), 0);
	scene_close(&s);

	scene_open(&s, "tcp"); /* which has none */
	s.rig.config.rdma_pushes = CONFIG_PUSHES_FIXED;
	assert_int_equal(connect_as(&s.box), 0);
	scene_close(&s);
}

/* What loses messages; and memory that both sides would look into, of a job that began without. */
static void test_not_plain(void **state)
{
	const struct job *job;
	struct queue *q;
	uint64_t used;
	struct scene s;

	scene_open(&s, "loop");
	q = s.rig.box->queues[0][0];
	q->lossy = true;
	assert_int_equal(connect_as(&s.box), -ECONNREFUSED);
	assert_int_equal(connect_as(&s.worker), 0);
	q->lossy = false;
	scene_close(&s);

	scene_open(&s, "shm");
	q = s.rig.box->queues[0][0];
	q->hold_max = UINT_MAX;
	job = s.rig.box->control.jobs;
	used = s.rig.box->control.memory_used;
	assert_int_equal(connect_as(&s.box), -ECONNREFUSED);
	assert_null(job->generation->pushes[job->world - 1].base);
	assert_int_equal(s.rig.box->control.memory_used, used);
	q->hold_max = 0;
	scene_close(&s);
}

/* Another than it has picked; a box may see at this point only that what it has picked does not do. */
static void test_not_picked(void **state)
{
	struct scene s;

	scene_open(&s, "tcp");
	s.ops.name = "udp";
	assert_int_equal(connect_as(&s.worker), -ECONNREFUSED);
	assert_int_equal(connect_as(&s.box), 0);
	scene_close(&s);
}

/* A box that goes down lets nobody in. */
static void test_goes_down(void **state)
{
	struct scene s;

	scene_open(&s, "loop");
	s.rig.box->control.stopping = true;
	assert_int_equal(connect_as(&s.worker), -ESHUTDOWN);
	s.rig.box->control.stopping = false;
	scene_close(&s);
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
