/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job that begins with its checkpoint: what befalls it while that is read, and when it cannot be.
 */
#include "tests/unit/control_rig.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "phub/control/checkpoint_meta.h"
#include "phub/control/job.h"
#include "tests/unit/checkpoint_rig.h"

enum { WORLD = 3, KEYS = 4 };

static const struct rig_job adam = {.generation = 1, .optimizer = 5, .lr = 0.1};

struct stage {
	struct rig rig;
	struct actor a[WORLD];
	struct checkpoint_rig disk;
	char targets[160];
};

static void stage_open(struct stage *s, struct disk *disk)
{
	const char *settings[] = {s->targets, NULL};

	rig_open(&s->rig, 1, settings);
	s->rig.box->env.disk = disk;
	for (uint32_t i = 0; i < WORLD; i++) {
		actor_dial(&s->rig, &s->a[i], i + 1);
		assert_true(actor_join(&s->a[i], "demo", i, WORLD, NULL));
	}
	for (uint32_t i = 0; i < WORLD; i++)
		actor_table(&s->a[i], &adam, KEYS, 100);
}

static void stage_close(struct stage *s)
{
	for (uint32_t i = 0; i < WORLD; i++)
		if (s->a[i].stream)
			actor_hang_up(&s->a[i]);
	rig_turn_control(&s->rig);
	assert_null(s->rig.box->control.jobs);
	assert_int_equal(s->rig.box->control.memory_used, 0);
	rig_close(&s->rig);
}

/* The job runs once, and what it is goes to disk, as before round 7. */
static void stage_write(struct stage *s)
{
	const struct generation *g;
	struct checkpoint_table *t = &s->disk.table;
	struct snapshot snapshot = {0};
	uint8_t *meta;
	struct err e;

	checkpoint_rig_open(&s->disk, "/dev/shm", 1, 0, "demo");
	snprintf(s->targets, sizeof(s->targets), "checkpoint_targets=%s", s->disk.paths[0]);
	stage_open(s, NULL);
	for (uint32_t i = 0; i < WORLD; i++)
		assert_int_equal(actor_hear(&s->a[i]), PHUB__CONTROL__MESSAGE_START);
	g = s->rig.box->control.jobs->generation;
	assert_int_equal(checkpoint_meta_pack(g->table, NULL, &meta, &t->meta_bytes, &e), 0);
	t->meta = meta;
	t->round = 7;
	t->chunk_count = snapshot.chunk_count = g->spec.plan.chunk_count;
	t->chunks = snapshot.chunks = calloc(t->chunk_count, sizeof(*t->chunks));
	snapshot.base = calloc(1, 1 << 20);
	for (uint32_t i = 0; i < t->chunk_count; i++)
		t->chunks[i] = (struct snapshot_chunk){.before = 7,
			.steps = 6,
			.bytes = snapshot_chunk_bytes(&g->spec, g->spec.plan.chunks[i].bytes / 4),
			.copied = true};
	assert_int_equal(checkpoint_write(&s->disk.place, t, &snapshot, NULL, &e), 0);
	free(snapshot.base);
	stage_close(s);
}

static void test_goes_on(void **state)
{
	struct stage s = {0};

	(void)state;
	stage_write(&s);
	stage_open(&s, NULL);
	rig_wait(&s.rig, 500);
	for (uint32_t i = 0; i < WORLD; i++) {
		assert_int_equal(actor_hear(&s.a[i]), PHUB__CONTROL__MESSAGE_START);
		assert_true(s.a[i].last->start->joined);
		assert_int_equal(s.a[i].last->start->rounds[0], 7);
	}
	stage_close(&s);
	checkpoint_rig_close(&s.disk);
}

/* No core has its memory yet: nothing may be told to one. */
static void test_lost_meanwhile(void **state)
{
	struct stage s = {0};

	(void)state;
	stage_write(&s);
	stage_open(&s, NULL);
	rig_turn_control(&s.rig);
	assert_int_equal(s.rig.box->control.jobs->state, JOB_LOADING);
	actor_hang_up(&s.a[1]);
	rig_wait(&s.rig, 500);
	assert_null(s.rig.box->control.jobs);
	actor_hear(&s.a[0]);
	assert_int_equal(s.a[0].error_code, PHUB__ERROR_CODE__ERROR_LOST);
	assert_non_null(strstr(s.a[0].error, "rank 1 ("));
	stage_close(&s);
	checkpoint_rig_close(&s.disk);
}

/* The file is there and whole, and its disk does not give it: the job does not begin anew over it. */
static int refuse_read_at;

static ssize_t refuse_read(struct disk *d, int fd, void *to, size_t count, uint64_t at)
{
	(void)d;
	if (refuse_read_at > 0 && --refuse_read_at == 0)
		return -EIO;
	return disk_machine()->ops->read(disk_machine(), fd, to, count, at);
}

static void expect_unreadable(int at)
{
	struct disk_ops ops = *disk_machine()->ops;
	struct disk disk = {.ops = &ops};
	struct stage s = {0};

	ops.read = refuse_read;
	stage_write(&s);
	refuse_read_at = at;
	stage_open(&s, &disk);
	rig_wait(&s.rig, 500);
	actor_hear(&s.a[0]);
	assert_int_equal(refuse_read_at, 0);
	assert_int_equal(s.a[0].error_code, PHUB__ERROR_CODE__ERROR_LIMIT);
	assert_non_null(strstr(s.a[0].error, "none of its checkpoints can be read"));
	stage_close(&s);
	checkpoint_rig_close(&s.disk);
}

static void test_unreadable(void **state)
{
	(void)state;
	expect_unreadable(1); /* its header, as it is found */
	expect_unreadable(5); /* header and trailer were read, and again as it was opened; then its table */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_goes_on),
		cmocka_unit_test(test_lost_meanwhile),
		cmocka_unit_test(test_unreadable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
