/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job that begins with its checkpoint: what befalls it while that is read, and when it cannot be.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/control_rig.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "phub/control/checkpoint_format.h"
#include "phub/control/checkpoint_meta.h"
#include "phub/control/job.h"
#include "tests/unit/checkpoint_rig.h"

enum { WORLD = 3, KEYS = 4 };

static const struct rig_job adam = {.generation = 1, .optimizer = 5, .lr = 0.1};

struct stage {
	const struct rig_job *job;      /* NULL: adam */
	uint32_t world, keys, elements; /* 0: WORLD, KEYS, 100 */
	struct rig rig;
	struct actor a[WORLD];
	struct checkpoint_rig disk;
	char targets[400], parity[32];
	bool threads;
};

static void stage_join(struct stage *s)
{
	uint32_t world = s->world ? s->world : WORLD;

	for (uint32_t i = 0; i < world; i++) {
		actor_enter(&s->rig, &s->a[i], i + 1, "demo", i, world);
	}
	for (uint32_t i = 0; i < world; i++)
		actor_table(
			&s->a[i], s->job ? s->job : &adam, s->keys ? s->keys : KEYS, s->elements ? s->elements : 100);
}

static void stage_open(struct stage *s, struct disk *disk)
{
	const char *settings[] = {s->targets, s->parity, NULL};

	rig_open(&s->rig, 1, settings);
	s->rig.box->env.disk = disk;
	s->rig.box->env.by_hand = !s->threads;
	stage_join(s);
}

static void stage_close(struct stage *s)
{
	for (uint32_t i = 0; i < WORLD; i++)
		if (s->a[i].stream)
			actor_hang_up(&s->a[i]);
	rig_turn_control(&s->rig);
	rig_expect_empty(&s->rig);
	rig_close(&s->rig);
}

/* The job runs once, and what it is goes to disk, as before round 7. */
static void stage_write_to(struct stage *s, unsigned count, unsigned parity)
{
	const struct generation *g;
	struct checkpoint_table *t = &s->disk.table;
	struct snapshot snapshot = {0};
	uint8_t *meta;
	size_t at;
	struct err e;

	checkpoint_rig_open(&s->disk, "/dev/shm", count, parity, "demo");
	at = (size_t)snprintf(s->targets, sizeof(s->targets), "checkpoint_targets=");
	for (unsigned i = 0; i < count; i++)
		at += (size_t)snprintf(s->targets + at, sizeof(s->targets) - at, i ? ",%s" : "%s", s->disk.paths[i]);
	snprintf(s->parity, sizeof(s->parity), "checkpoint_parity=%u", parity);
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

static void stage_write(struct stage *s)
{
	stage_write_to(s, 1, 0);
}

static void test_goes_on(void **state)
{
	struct stage s = {0};

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

/* ---- ranks that do not come again ---- */

static void stage_come(struct stage *s, uint32_t rank, uint32_t lost, bool resumes)
{
	struct rig_job job = adam;

	job.lost = lost;
	job.resumes = resumes;
	actor_enter(&s->rig, &s->a[rank], rank + 1, "demo", rank, WORLD);
	actor_table(&s->a[rank], &job, KEYS, 100);
}

/* All but `missing` are here, and say that they are. */
static void stage_wait(struct stage *s, uint32_t missing, unsigned ms)
{
	for (unsigned waited = 0; waited < ms; waited += 100) {
		for (uint32_t i = 0; i < WORLD; i++)
			if (i != missing && s->a[i].stream)
				actor_heartbeat(&s->a[i]);
		rig_wait(&s->rig, 100);
	}
}

static void stage_open_without(struct stage *s, const char *targets, uint32_t missing, uint32_t lost, bool resumes)
{
	const char *settings[] = {"heartbeat_ms=200", "warn_ms=500", "lost_ms=1000", targets, NULL};

	rig_open(&s->rig, 1, settings);
	s->rig.box->env.by_hand = targets != NULL;
	for (uint32_t i = 0; i < WORLD; i++)
		if (i != missing)
			stage_come(s, i, lost, resumes);
	stage_wait(s, missing, 800);
	for (uint32_t i = 0; i < WORLD; i++)
		if (i != missing)
			assert_int_not_equal(actor_hear(&s->a[i]), PHUB__CONTROL__MESSAGE_START);
	stage_wait(s, missing, 1000);
}

/* A job that shrinks comes again without rank 0, which joins it later. */
static void test_without_one(void **state)
{
	struct stage s = {0};

	stage_write(&s);
	stage_open_without(&s, s.targets, 0, LOST_SHRINK, true);
	for (uint32_t i = 1; i < WORLD; i++) {
		assert_int_equal(actor_hear(&s.a[i]), PHUB__CONTROL__MESSAGE_MEMBERS);
		assert_int_equal(s.a[i].last->members->present, 2);
		assert_int_equal(s.a[i].last->members->n_lost, 1);
	}
	stage_come(&s, 0, LOST_SHRINK, true);
	stage_wait(&s, WORLD, 200);
	assert_int_equal(actor_hear(&s.a[0]), PHUB__CONTROL__MESSAGE_START);
	assert_true(s.a[0].last->start->joined);
	assert_int_equal(s.a[0].last->start->rounds[0], 7);
	stage_close(&s);
	checkpoint_rig_close(&s.disk);
}

/* Only rank 0 has weights where there is no checkpoint; another may be missing. */
static void test_without_weights(void **state)
{
	for (uint32_t missing = 0; missing < 2; missing++) {
		struct stage s = {0};

		stage_open_without(&s, NULL, missing, LOST_SHRINK, true);
		assert_int_equal(
			actor_hear(&s.a[2]), missing ? PHUB__CONTROL__MESSAGE_MEMBERS : PHUB__CONTROL__MESSAGE_ERROR);
		if (!missing)
			assert_non_null(strstr(s.a[2].last->error->text, "rank 0 is not here"));
		stage_close(&s);
	}
}

/* Those of other policies wait, and so does one that did not run before. */
static void test_waits_for_all(void **state)
{
	for (unsigned i = 0; i < 3; i++) {
		static const uint32_t lost[] = {LOST_FAIL, LOST_WAIT, LOST_SHRINK};
		struct stage s = {0};

		stage_open_without(&s, NULL, 1, lost[i], lost[i] != LOST_SHRINK);
		assert_int_not_equal(actor_hear(&s.a[2]), PHUB__CONTROL__MESSAGE_START);
		assert_int_equal(s.rig.box->control.jobs->state, JOB_FORMING);
		stage_close(&s);
	}
}

/* ---- a disk that does not answer, and threads that wait for it ---- */

struct gate {
	struct disk disk;
	struct disk_ops ops;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool shut;
	int waiting;
};

static void gate_pass(struct disk *d)
{
	struct gate *g = (struct gate *)d;

	pthread_mutex_lock(&g->lock);
	g->waiting++;
	while (g->shut)
		pthread_cond_wait(&g->changed, &g->lock);
	g->waiting--;
	pthread_mutex_unlock(&g->lock);
}

static ssize_t gate_read(struct disk *d, int fd, void *to, size_t count, uint64_t at)
{
	gate_pass(d);
	return disk_machine()->ops->read(disk_machine(), fd, to, count, at);
}

static int gate_sync(struct disk *d, int fd)
{
	gate_pass(d);
	return disk_machine()->ops->sync(disk_machine(), fd);
}

static void gate_set(struct gate *g, bool shut)
{
	pthread_mutex_lock(&g->lock);
	g->shut = shut;
	pthread_cond_broadcast(&g->changed);
	pthread_mutex_unlock(&g->lock);
}

static void gate_init(struct gate *g, bool shut)
{
	*g = (struct gate){.ops = *disk_machine()->ops, .shut = shut};
	g->disk.ops = &g->ops;
	g->ops.read = gate_read;
	g->ops.sync = gate_sync;
	pthread_mutex_init(&g->lock, NULL);
	pthread_cond_init(&g->changed, NULL);
}

static bool gate_is_waited_for(struct gate *g)
{
	bool some;

	pthread_mutex_lock(&g->lock);
	some = g->waiting > 0;
	pthread_mutex_unlock(&g->lock);
	return some;
}

/* Somebody stands before it. */
static void gate_await(struct stage *s, struct gate *g)
{
	for (int i = 0; i < 10000 && !gate_is_waited_for(g); i++) {
		usleep(1000);
		rig_wait(&s->rig, 10);
	}
	assert_true(gate_is_waited_for(g));
}

/* Threads have their time; `state` -1: until nothing is left of any job. */
static void stage_await(struct stage *s, int state)
{
	struct control *c = &s->rig.box->control;

	for (int i = 0; i < 10000; i++) {
		rig_wait(&s->rig, 10);
		if (state < 0 ? !c->jobs && !c->keepers : c->jobs && (int)c->jobs->state == state)
			return;
		usleep(1000);
	}
	fail_msg("no job came to state %d", state);
}

/* Another job, without checkpoints, begins and ends: control waits for nothing. */
static void stage_pass(struct stage *s)
{
	static const struct rig_job plain = {.generation = 1};
	struct actor other;

	actor_enter(&s->rig, &other, WORLD + 1, "other", 0, 1);
	actor_table(&other, &plain, 1, 10);
	assert_int_equal(actor_hear(&other), PHUB__CONTROL__MESSAGE_START);
	actor_leave(&other);
	assert_int_equal(actor_hear(&other), PHUB__CONTROL__MESSAGE_LEFT);
	actor_hang_up(&other);
}

/* No core has its memory yet: nothing may be told to one. And the disk is still at it when the job is over. */
static void test_lost_meanwhile(void **state)
{
	struct stage s = {0};
	struct gate gate;
	uint64_t taken;

	stage_write(&s);
	gate_init(&gate, true);
	s.threads = true;
	stage_open(&s, &gate.disk);
	gate_await(&s, &gate);
	assert_int_equal(s.rig.box->control.jobs->state, JOB_LOADING);
	stage_pass(&s);
	taken = s.rig.box->control.memory_used;
	actor_hang_up(&s.a[1]);
	rig_wait(&s.rig, 500);
	assert_null(s.rig.box->control.jobs);
	actor_hear(&s.a[0]);
	assert_int_equal(s.a[0].error_code, PHUB__ERROR_CODE__ERROR_LOST);
	assert_non_null(strstr(s.a[0].error, "rank 1 ("));
	/* What it reads into is there, and counted. */
	assert_non_null(s.rig.box->control.keepers);
	assert_int_equal(s.rig.box->control.memory_used, taken);
	stage_pass(&s);
	gate_set(&gate, false);
	stage_await(&s, -1);
	stage_close(&s);
	checkpoint_rig_close(&s.disk);
}

static void stage_hang_up(struct stage *s)
{
	for (uint32_t i = 0; i < WORLD; i++)
		actor_hang_up(&s->a[i]);
}

/* One of the same name meanwhile: it waits, and then has what there is. */
static void test_same_name(void **state)
{
	struct stage s = {0};
	struct gate gate;
	struct keeper *first;

	stage_write(&s);
	gate_init(&gate, true);
	s.threads = true;
	stage_open(&s, &gate.disk);
	gate_await(&s, &gate);
	stage_hang_up(&s);
	rig_wait(&s.rig, 100);
	first = s.rig.box->control.keepers;
	assert_non_null(first);
	stage_join(&s);
	rig_wait(&s.rig, 2000);
	assert_int_equal(s.rig.box->control.jobs->state, JOB_LOADING);
	assert_ptr_equal(s.rig.box->control.keepers, first);
	assert_int_equal(gate.waiting, 1); /* it has not begun */
	gate_set(&gate, false);
	stage_await(&s, JOB_RUNNING);
	assert_int_equal(actor_hear(&s.a[0]), PHUB__CONTROL__MESSAGE_START);
	assert_int_equal(s.a[0].last->start->rounds[0], 7);
	stage_hang_up(&s);
	stage_await(&s, -1);
	stage_close(&s);
	checkpoint_rig_close(&s.disk);
}

/* A job that all leave, but not all with the training finished, is gone on from: whoever leaves last. One that is
 * finished is not, though nothing was written of its last key table. */
static void test_unfinished(void **state)
{
	static const struct rig_job next = {.generation = 2, .optimizer = 5, .lr = 0.1};
	struct stage s = {0};
	struct stat st;
	char path[200];

	stage_write(&s);
	for (uint32_t who = 0; who <= WORLD; who++) {
		stage_open(&s, NULL);
		rig_wait(&s.rig, 500);
		for (uint32_t i = 0; i < WORLD; i++)
			(i == who || who == WORLD ? actor_leave_unfinished : actor_leave)(&s.a[i]);
		stage_close(&s);
		snprintf(path, sizeof(path), "%s/demo/finished", s.disk.paths[0]);
		assert_int_equal(stat(path, &st), -1);
	}
	stage_open(&s, NULL);
	rig_wait(&s.rig, 500);
	assert_int_equal(actor_hear(&s.a[0]), PHUB__CONTROL__MESSAGE_START);
	assert_int_equal(s.a[0].last->start->rounds[0], 7);
	for (uint32_t i = 0; i < WORLD; i++)
		actor_table(&s.a[i], &next, KEYS, 100);
	rig_wait(&s.rig, 500);
	assert_int_equal(s.rig.box->control.jobs->started, 2);
	for (uint32_t i = 0; i < WORLD; i++)
		actor_leave(&s.a[i]);
	stage_close(&s);
	assert_int_equal(stat(path, &st), 0);
	checkpoint_rig_close(&s.disk);
}

/* The mark of its end is as slow, and is there for the next. */
static void test_slow_mark(void **state)
{
	struct stage s = {0};
	struct gate gate;
	struct stat st;
	char path[200];

	stage_write(&s);
	gate_init(&gate, false);
	s.threads = true;
	stage_open(&s, &gate.disk);
	stage_await(&s, JOB_RUNNING);
	gate_set(&gate, true);
	for (uint32_t i = 0; i < WORLD; i++) {
		actor_leave(&s.a[i]);
		actor_hear(&s.a[i]);
	}
	stage_hang_up(&s);
	gate_await(&s, &gate);
	snprintf(path, sizeof(path), "%s/demo/finished", s.disk.paths[0]);
	assert_int_equal(stat(path, &st), -1);
	stage_pass(&s);
	stage_join(&s);
	rig_wait(&s.rig, 500);
	assert_int_equal(s.rig.box->control.jobs->state, JOB_LOADING);
	gate_set(&gate, false);
	stage_await(&s, JOB_RUNNING);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(actor_hear(&s.a[0]), PHUB__CONTROL__MESSAGE_START);
	assert_false(s.a[0].last->start->joined); /* anew */
	stage_hang_up(&s);
	stage_await(&s, -1);
	stage_close(&s);
	checkpoint_rig_close(&s.disk);
}

/* A box that goes down finishes the mark first. */
static void test_down(void **state)
{
	struct stage s = {0};
	struct gate gate;

	stage_write(&s);
	gate_init(&gate, false);
	s.threads = true;
	stage_open(&s, &gate.disk);
	stage_await(&s, JOB_RUNNING);
	for (uint32_t i = 0; i < WORLD; i++)
		actor_leave(&s.a[i]);
	for (uint32_t i = 0; i < WORLD; i++) { /* the box goes with what it has to do */
		s.a[i].stream->ops->close(s.a[i].stream);
		s.a[i].stream = NULL;
		actor_hang_up(&s.a[i]);
	}
	rig_close(&s.rig);
	s.threads = false;
	memset(s.a, 0, sizeof(s.a));
	stage_open(&s, NULL);
	assert_int_equal(actor_hear(&s.a[0]), PHUB__CONTROL__MESSAGE_START);
	assert_false(s.a[0].last->start->joined);
	stage_close(&s);
	checkpoint_rig_close(&s.disk);
}

/* The file is there and whole, and its disk does not give it: the job does not begin anew over it. */
static int refuse_read_at;

static ssize_t refuse_read(struct disk *d, int fd, void *to, size_t count, uint64_t at)
{
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
	expect_unreadable(1); /* its header, as it is found */
	expect_unreadable(5); /* header and trailer were read, and again as it was opened; then its table */
}

/* ---- a job that comes again with other options ---- */

static struct checkpoint_entry *stage_entries(struct stage *s, unsigned *count)
{
	struct checkpoint_entry *entries;
	struct err e;

	assert_int_equal(checkpoint_list(&s->disk.place, &entries, count, &e), 0);
	return entries;
}

static void expect_continued(const struct rig_job *job, uint32_t world)
{
	struct stage s = {0};
	uint32_t count;

	stage_write(&s);
	s.job = job;
	s.world = world;
	stage_open(&s, NULL);
	rig_wait(&s.rig, 500);
	count = world ? world : WORLD;
	for (uint32_t i = 0; i < count; i++) {
		assert_int_equal(actor_hear(&s.a[i]), PHUB__CONTROL__MESSAGE_START);
		assert_true(s.a[i].last->start->joined);
		assert_int_equal(s.a[i].last->start->rounds[0], 7);
		assert_true(fabs(s.a[i].last->start->groups[0]->lr - (job ? job->lr : adam.lr)) < 1e-12);
	}
	stage_close(&s);
	checkpoint_rig_close(&s.disk);
}

static void test_other_options(void **state)
{
	static const struct rig_job lr = {.generation = 1, .optimizer = 5, .lr = 0.25};
	static const struct rig_job rest = {
		.generation = 1, .optimizer = 5, .lr = 0.1, .lost = 1, .reproducible = true};

	expect_continued(&lr, 0);
	expect_continued(&rest, 0);
	expect_continued(NULL, 2);
	expect_continued(NULL, 1);
}

/* Refused with these words, and what is there stays. */
static void expect_refused(const struct rig_job *job, uint32_t keys, uint32_t elements, const char *text)
{
	struct stage s = {0};
	unsigned count;

	stage_write(&s);
	s.job = job;
	s.keys = keys;
	s.elements = elements;
	stage_open(&s, NULL);
	rig_wait(&s.rig, 500);
	for (uint32_t i = 0; i < WORLD; i++) {
		actor_hear(&s.a[i]);
		assert_int_equal(s.a[i].error_code, PHUB__ERROR_CODE__ERROR_MISMATCH);
		if (!strstr(s.a[i].error, text) || !strstr(s.a[i].error, "its checkpoint before round 7") ||
			!strstr(s.a[i].error, "under another name; or remove its checkpoints, at the box: phub "
					      "checkpoint rm --job 'demo' /dev/shm/"))
			fail_msg("no '%s' in '%s'", text, s.a[i].error);
	}
	free(stage_entries(&s, &count));
	assert_int_equal(count, 1);
	stage_close(&s);
	checkpoint_rig_close(&s.disk);
}

static void test_what_cannot_fit(void **state)
{
	static const struct rig_job momentum = {.generation = 1, .optimizer = 2, .lr = 0.1};
	static const struct rig_job async = {.generation = 1, .optimizer = 5, .sync = 2, .lr = 0.1};
	static const struct rig_job small = {.generation = 1, .optimizer = 5, .chunk_bytes = 4096, .lr = 0.1};

	expect_refused(&momentum, 0, 0, "optimizer differs: the checkpoint says adam, this job says momentum");
	expect_refused(&async, 0, 0, "sync differs: the checkpoint says bsp, this job says async");
	expect_refused(&small, 0, 0, "chunk_bytes differs: the checkpoint says ");
	expect_refused(
		NULL, KEYS + 1, 0, "key 'k4' (4) is missing at the checkpoint, which has 4 keys; this job has 5");
	expect_refused(
		NULL, KEYS - 1, 0, "key 'k3' (3) is missing at this job, which has 3 keys; the checkpoint has 4");
	expect_refused(NULL, 0, 90, "key 'k0' (0) differs: the checkpoint has 100 elements, this job has 90");
}

/* ---- no memory ---- */

static bool no_strdup;

/* The C library's, in this program; keepers alone copy the names of targets. */
char *strdup(const char *text)
{
	size_t bytes = strlen(text) + 1;
	char *copy = no_strdup && strstr(text, "/dev/shm/") ? NULL : malloc(bytes);

	if (copy)
		memcpy(copy, text, bytes);
	return copy;
}

static void test_no_memory(void **state)
{
	struct stage s = {0};
	unsigned count;

	stage_write(&s);
	no_strdup = true;
	stage_open(&s, NULL);
	rig_wait(&s.rig, 500);
	no_strdup = false;
	actor_hear(&s.a[0]);
	assert_int_equal(s.a[0].error_code, PHUB__ERROR_CODE__ERROR_LIMIT);
	assert_non_null(strstr(s.a[0].error, "no memory to look for its checkpoints, and does not begin it anew"));
	free(stage_entries(&s, &count));
	assert_int_equal(count, 1);
	stage_close(&s);
	checkpoint_rig_close(&s.disk);
}

/* ---- targets that are away: a disk that is not mounted yet ---- */

static void move_target(struct stage *s, unsigned i, bool away)
{
	char there[128];

	snprintf(there, sizeof(there), "%s.away", s->disk.paths[i]);
	assert_int_equal(away ? rename(s->disk.paths[i], there) : rename(there, s->disk.paths[i]), 0);
}

/* What rank 0 hears when the job is begun with these targets away; then they are there again. */
static void expect_without(struct stage *s, uint32_t away, bool goes_on, const char *text)
{
	for (unsigned i = 0; i < s->disk.place.target_count; i++)
		if (away & 1u << i)
			move_target(s, i, true);
	stage_open(s, NULL);
	rig_wait(&s->rig, 500);
	if (actor_hear(&s->a[0]) == PHUB__CONTROL__MESSAGE_START) {
		assert_true(goes_on);
		assert_true(s->a[0].last->start->joined);
		assert_int_equal(s->a[0].last->start->rounds[0], 7);
	} else {
		assert_false(goes_on);
		assert_int_equal(s->a[0].error_code, PHUB__ERROR_CODE__ERROR_LIMIT);
		if (!strstr(s->a[0].error, text))
			fail_msg("no '%s' in '%s'", text, s->a[0].error);
	}
	stage_close(s);
	for (unsigned i = 0; i < s->disk.place.target_count; i++)
		if (away & 1u << i)
			move_target(s, i, false);
}

static void test_target_away(void **state)
{
	struct stage s = {0};

	stage_write(&s);
	expect_without(&s, 1, false, "1 of 1 checkpoint_targets cannot be looked into");
	expect_without(&s, 0, true, "");
	checkpoint_rig_close(&s.disk);
}

#ifdef PHUB_ISAL
static void test_targets_away(void **state)
{
	struct stage s = {0};
	struct checkpoint_entry newest;
	char path[256], name[CHECKPOINT_NAME_BYTES];

	stage_write_to(&s, 3, 1);
	expect_without(&s, 1u << 1, true, "");
	expect_without(&s, 1u << 0 | 1u << 2, false, "2 of 3 checkpoint_targets cannot be looked into");
	expect_without(&s, 7, false, "3 of 3 checkpoint_targets cannot be looked into");
	/* One file is lost, which parity makes up for: then no target may be away. */
	newest = checkpoint_rig_newest(&s.disk);
	checkpoint_format_name(newest.round, newest.id, 0, name);
	snprintf(path, sizeof(path), "%s/demo/%s", s.disk.paths[0], name);
	assert_int_equal(unlink(path), 0);
	expect_without(&s, 0, true, "");
	expect_without(&s, 1u << 1, false, "1 of 3 checkpoint_targets cannot be looked into");
	checkpoint_rig_close(&s.disk);
}

static void set_job_dir(const struct stage *s, unsigned target, bool there)
{
	char dir[256], was[256];

	snprintf(dir, sizeof(dir), "%s/demo", s->disk.paths[target]);
	snprintf(was, sizeof(was), "%s/was", s->disk.paths[target]);
	assert_int_equal(there ? rename(was, dir) : rename(dir, was), 0);
}

/* Directories that are there and empty, as of disks that are not mounted, may be what the rest of a checkpoint is on.
 */
static void test_targets_bare(void **state)
{
	struct stage s = {0};

	stage_write_to(&s, 3, 1);
	set_job_dir(&s, 1, false);
	expect_without(&s, 0, true, "");
	set_job_dir(&s, 2, false);
	expect_without(&s, 0, false, "2 of 3 checkpoint_targets have no directory of this job");
	set_job_dir(&s, 2, true);
	expect_without(&s, 0, true, "");
	checkpoint_rig_close(&s.disk);
}

/* A new job does not wait for a target that parity makes up for. */
static void test_new_without_a_target(void **state)
{
	struct stage s = {0};

	stage_write_to(&s, 3, 1);
	for (unsigned i = 0; i < 3; i++) {
		char path[160], gone[160];

		snprintf(path, sizeof(path), "%s/demo", s.disk.paths[i]);
		snprintf(gone, sizeof(gone), "%s/was-%u", s.disk.root, i);
		assert_int_equal(rename(path, gone), 0);
	}
	move_target(&s, 2, true);
	stage_open(&s, NULL);
	rig_wait(&s.rig, 500);
	assert_int_equal(actor_hear(&s.a[0]), PHUB__CONTROL__MESSAGE_START);
	assert_false(s.a[0].last->start->joined);
	stage_close(&s);
	checkpoint_rig_close(&s.disk);
}
#endif

TEST_PROGRAM(test_control_loading)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_goes_on),
		cmocka_unit_test(test_without_one),
		cmocka_unit_test(test_without_weights),
		cmocka_unit_test(test_waits_for_all),
		cmocka_unit_test(test_lost_meanwhile),
		cmocka_unit_test(test_same_name),
		cmocka_unit_test(test_unfinished),
		cmocka_unit_test(test_slow_mark),
		cmocka_unit_test(test_down),
		cmocka_unit_test(test_unreadable),
		cmocka_unit_test(test_other_options),
		cmocka_unit_test(test_what_cannot_fit),
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_target_away),
#ifdef PHUB_ISAL
		cmocka_unit_test(test_targets_away),
		cmocka_unit_test(test_targets_bare),
		cmocka_unit_test(test_new_without_a_target),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
