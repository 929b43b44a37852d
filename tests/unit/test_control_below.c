/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box above, as boxes below and workers see it: who is where, what starts, and who is told what when something is
 * wrong.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/scene_rig.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/control/job.h"
#include "phub/control/job_below.h"

enum { NUMBERS = 3000 };

static void box_join(struct rig *rig, struct actor *a, unsigned host)
{
	static const char *const at[] = {"10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3"};

	actor_dial(rig, a, host);
	a->below = true;
	a->at = at[host % 4];
	assert_true(actor_join(a, "wide", 0, WORLD, NULL));
}

static void worker_join(struct rig *rig, struct actor *a, unsigned host, uint32_t rank)
{
	actor_enter(rig, a, host, "wide", rank, WORLD);
}

/* The worker is rank 0; box[0] is below. */
static void top_open(struct scene *s)
{
	scene_begin(s, 2, 0, NULL);
	scene_join(s, 0, 0, WORLD);
	box_join(&s->rig, &s->box[0], 2);
}

/* ---- it starts ---- */

static void top_start_as(struct scene *s, const struct rig_job *job)
{
	const uint32_t some[] = {2, 3}, all[] = {1, 2, 3};

	top_open(s);
	actor_gather(&s->box[0], some, 2, 1, 0);
	actor_table(&s->box[0], job, 1, NUMBERS);
	actor_table(&s->worker[0], job, 1, NUMBERS);
	rig_wait(&s->rig, 1500);
	assert_int_equal(rig_job(&s->rig)->state, JOB_FORMING);
	actor_hear(&s->worker[0]);
	assert_non_null(strstr(s->worker[0].notice, "waits to start for rank 1 of 4"));
	actor_gather(&s->box[0], all, 3, 2, 0);
	rig_wait(&s->rig, 10);
	assert_int_equal(rig_job(&s->rig)->state, JOB_RUNNING);
}

static void top_start(struct scene *s)
{
	top_start_as(s, &plain);
}

static void test_starts(void **state)
{
	struct scene s;

	top_start(&s);
	assert_int_equal(actor_hear(&s.box[0]), PHUB__CONTROL__MESSAGE_START);
	assert_int_equal(s.box[0].last->start->rank, WORLD); /* behind all ranks */
	assert_int_equal(s.box[0].last->start->gathered, 2);
	assert_int_equal(actor_hear(&s.worker[0]), PHUB__CONTROL__MESSAGE_START);
	assert_int_equal(s.worker[0].last->start->rank, 0);
	assert_int_equal(rig_job(&s.rig)->generation->spec.boxes, 1);
	assert_int_equal(rig_job(&s.rig)->generation->spec.root, 0);
	/* Both must come to a barrier, and leave. */
	actor_barrier(&s.worker[0], 1);
	rig_wait(&s.rig, 1500);
	actor_hear(&s.worker[0]);
	assert_non_null(strstr(s.worker[0].notice, "the barrier waits for ranks 1-3 of 4"));
	actor_barrier(&s.box[0], 1);
	assert_int_equal(actor_hear(&s.box[0]), PHUB__CONTROL__MESSAGE_BARRIER_DONE);
	assert_int_equal(actor_hear(&s.worker[0]), PHUB__CONTROL__MESSAGE_BARRIER_DONE);
	actor_leave(&s.box[0]);
	assert_int_equal(actor_hear(&s.box[0]), PHUB__CONTROL__MESSAGE_LEFT);
	actor_leave(&s.worker[0]);
	assert_int_equal(actor_hear(&s.worker[0]), PHUB__CONTROL__MESSAGE_LEFT);
	scene_close(&s);
}

/* Rank 0 is below: its first weights come by the box. */
static void test_root_is_below(void **state)
{
	const uint32_t ranks[] = {0, 1, 2};
	struct scene s = {.rig = {0}};

	rig_open(&s.rig, 1, NULL);
	worker_join(&s.rig, &s.worker[0], 1, 3);
	box_join(&s.rig, &s.box[0], 2);
	actor_table(&s.worker[0], &plain, 1, NUMBERS);
	actor_gather(&s.box[0], ranks, 3, 1, DTYPE_BF16);
	actor_table(&s.box[0], &plain, 1, NUMBERS);
	rig_wait(&s.rig, 10);
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	assert_int_equal(rig_job(&s.rig)->generation->spec.root, rig_job(&s.rig)->world);
	assert_int_equal(rig_job(&s.rig)->generation->spec.lift, DTYPE_BF16);
	scene_close(&s);
}

/* ---- it is lost, or has lost ---- */

/* Before the start its ranks are free again: one of them comes here. */
static void test_gone_before_the_start(void **state)
{
	const uint32_t ranks[] = {1, 2};
	struct scene s;

	top_open(&s);
	actor_gather(&s.box[0], ranks, 2, 1, 0);
	actor_table(&s.box[0], &plain, 1, NUMBERS);
	rig_wait(&s.rig, 10);
	actor_dial(&s.rig, &s.box[1], 3);
	assert_false(actor_join(&s.box[1], "wide", 1, WORLD, NULL));
	actor_expect(&s.box[1], ERROR_OF(TAKEN), "rank 1 of job 'wide' is at another box");
	actor_hang_up(&s.box[1]);
	actor_hang_up(&s.box[0]);
	rig_wait(&s.rig, 10);
	worker_join(&s.rig, &s.box[1], 3, 1);
	box_join(&s.rig, &s.box[0], 2); /* in the place of the one before */
	assert_int_equal(rig_job(&s.rig)->world, WORLD + 1);
	scene_close(&s);
}

static void test_lost(void **state)
{
	struct scene s;

	top_start(&s);
	actor_hang_up(&s.box[0]);
	memset(&s.box[0], 0, sizeof(s.box[0]));
	rig_wait(&s.rig, 10);
	actor_expect(&s.worker[0], ERROR_OF(LOST), "(ranks 1-3) was lost");
	assert_int_equal(s.worker[0].error_rank, -1);
	scene_close(&s);
}

/* What it is told itself, which it reads when it goes on, is of itself. */
static void test_silent(void **state)
{
	struct scene s;

	top_start(&s);
	for (unsigned i = 0; i < 60 && s.box[0].error_code == 0; i++) {
		rig_wait(&s.rig, 1000);
		actor_heartbeat(&s.worker[0]);
		actor_hear(&s.box[0]);
	}
	actor_expect(&s.box[0], ERROR_OF(LOST), "nothing was heard of box 10.0.0.2:7077 for ");
	actor_expect(&s.worker[0], ERROR_OF(LOST), "(ranks 1-3) was lost: it was silent for ");
	scene_close(&s);
}

static void say_failure(struct actor *box, uint32_t code, int32_t rank, const char *text)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Leave leave = PHUB__LEAVE__INIT;
	Phub__Error error = PHUB__ERROR__INIT;

	error.code = code;
	error.rank = rank;
	error.text = (char *)(uintptr_t)text;
	leave.error = &error;
	control.message_case = PHUB__CONTROL__MESSAGE_LEAVE;
	control.leave = &leave;
	actor_say(box, &control);
}

/* What a box below says of the job's end is told on; its numbers are not believed, and its text is made safe. */
static void test_failed_below(void **state)
{
	static const struct {
		uint32_t code;
		int32_t rank;
		const char *text;
		int told_code, told_rank;
		const char *told;
	} cases[] = {
		{ERROR_OF(LOST), 2, "rank 2 (there) was lost", ERROR_OF(LOST), 2,
			"rank 2 (there) was lost (told by box "},
		{ERROR_OF(NAN), 9, "a\nb", ERROR_OF(NAN), -1, "a?b (told by box "},
		{0, -7, "", ERROR_OF(LOST), -1, "(told by box "},
		{ERROR_OF(LOST), 1, "x (told by box y)", ERROR_OF(LOST), 1, "x (told by box y)"},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct scene s;

		top_start(&s);
		say_failure(&s.box[0], cases[i].code, cases[i].rank, cases[i].text);
		rig_wait(&s.rig, 10);
		actor_expect(&s.worker[0], cases[i].told_code, cases[i].told);
		assert_int_equal(s.worker[0].error_rank, cases[i].told_rank);
		assert_true(strstr(s.worker[0].error, "told by") == strrchr(s.worker[0].error, '(') + 1);
		scene_close(&s);
	}
}

/* ---- it goes on without ---- */

static const struct rig_job waits = {.generation = 1, .lost = LOST_WAIT};

static void expect_members(struct actor *a, uint32_t present, size_t lost, size_t came)
{
	assert_int_equal(actor_hear(a), PHUB__CONTROL__MESSAGE_MEMBERS);
	assert_int_equal(a->last->members->present, present);
	assert_int_equal(a->last->members->n_lost, lost);
	assert_int_equal(a->last->members->n_came, came);
}

static void box_comes(struct scene *s, unsigned host, const struct rig_job *job, const uint32_t *ranks, size_t count)
{
	memset(&s->box[0], 0, sizeof(s->box[0]));
	box_join(&s->rig, &s->box[0], host);
	actor_gather(&s->box[0], ranks, count, 1, 0);
	actor_table(&s->box[0], job, 1, NUMBERS);
	rig_wait(&s->rig, 10);
}

/* The box dies: its ranks are lost, and those that another brings take part again. */
static void test_shrinks(void **state)
{
	const uint32_t two[] = {1, 3};
	struct scene s;

	top_start_as(&s, &shrinks);
	actor_hang_up(&s.box[0]);
	rig_wait(&s.rig, 10);
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	expect_members(&s.worker[0], 1, 3, 0);
	box_comes(&s, 3, &shrinks, two, 2);
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	assert_false(rig_job(&s.rig)->members[WORLD].gone); /* in the place of the one before */
	expect_members(&s.worker[0], 3, 1, 0);              /* rank 2 is nowhere */
	assert_int_equal(job_count_somewhere(rig_job(&s.rig)), 3);
	/* So it may come here, and then not there. */
	worker_join(&s.rig, &s.box[1], 4, 2);
	actor_table(&s.box[1], &shrinks, 1, NUMBERS);
	rig_wait(&s.rig, 10);
	assert_int_equal(actor_hear(&s.box[1]), PHUB__CONTROL__MESSAGE_START);
	assert_true(s.box[1].last->start->joined);
	assert_int_equal(job_count_somewhere(rig_job(&s.rig)), 4);
	actor_gather(&s.box[0], (const uint32_t[]){1, 2, 3}, 3, 2, 0);
	rig_wait(&s.rig, 10);
	actor_expect(&s.box[0], ERROR_OF(TAKEN), "rank 2 is at loop:4");
	assert_int_equal(job_count_somewhere(rig_job(&s.rig)), 2);
	scene_close(&s);
}

/* Its Start says where the job is, which place it has, and whom it has named. */
static void test_joins(void **state)
{
	const uint32_t ranks[] = {1, 2, 3};
	struct scene s;

	top_start_as(&s, &shrinks);
	actor_barrier(&s.worker[0], 1);
	actor_barrier(&s.box[0], 1);
	rig_wait(&s.rig, 10);
	actor_hang_up(&s.box[0]);
	rig_wait(&s.rig, 10);
	box_comes(&s, 2, &shrinks, ranks, 3);
	actor_hear(&s.box[0]); /* the last is that all are here */
	assert_int_equal(rig_job(&s.rig)->members[WORLD].gathered, 1);
	assert_int_equal(rig_job(&s.rig)->members[WORLD].barrier, 1);
	assert_false(rig_job(&s.rig)->members[WORLD].gone);
	assert_int_equal(job_count_somewhere(rig_job(&s.rig)), WORLD);
	actor_barrier(&s.worker[0], 2); /* waits for the new one, too */
	rig_wait(&s.rig, 10);
	assert_int_equal(rig_job(&s.rig)->barrier, 1);
	actor_barrier(&s.box[0], 2);
	rig_wait(&s.rig, 10);
	assert_int_equal(rig_job(&s.rig)->barrier, 2);
	scene_close(&s);
}

static void say_deserted(struct actor *box, const char *text)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Leave leave = PHUB__LEAVE__INIT;
	Phub__Error error = PHUB__ERROR__INIT;

	error.code = ERROR_OF(LOST);
	error.rank = 1;
	error.text = (char *)(uintptr_t)text;
	leave.error = &error;
	leave.bereaved = true;
	control.message_case = PHUB__CONTROL__MESSAGE_LEAVE;
	control.leave = &leave;
	actor_say(box, &control);
}

/* All workers of a box are lost: it says so, and counts as lost; where the job fails by it, it fails. */
static void test_deserted(void **state)
{
	struct scene s;

	top_start_as(&s, &shrinks);
	say_deserted(&s.box[0], "rank 1 (there) was lost");
	rig_wait(&s.rig, 10);
	assert_int_equal(actor_hear(&s.box[0]), PHUB__CONTROL__MESSAGE_LEFT);
	expect_members(&s.worker[0], 1, 3, 0);
	scene_close(&s);
	top_start(&s);
	say_deserted(&s.box[0], "rank 1 (there) was lost");
	rig_wait(&s.rig, 10);
	actor_expect(&s.worker[0], ERROR_OF(LOST), "rank 1 (there) was lost (told by box ");
	scene_close(&s);
}

/* What the box below says of the end of its job ends this one, if it is not that its workers were lost. */
static void test_fails_below(void **state)
{
	struct scene s;

	top_start_as(&s, &shrinks);
	say_failure(&s.box[0], ERROR_OF(LOST), 2, "rank 2 (there) was lost, and no other took its place");
	rig_wait(&s.rig, 10);
	actor_expect(&s.worker[0], ERROR_OF(LOST), "no other took its place (told by box ");
	scene_close(&s);
}

/* The job waits for all who were at the box; who is at another one is not awaited at that. */
static void test_waits(void **state)
{
	const uint32_t one[] = {3}, two[] = {1, 3};
	struct scene s;

	top_start_as(&s, &waits);
	actor_hang_up(&s.box[0]);
	rig_wait(&s.rig, 10);
	box_comes(&s, 3, &waits, one, 1);
	assert_int_not_equal(actor_hear(&s.box[0]), PHUB__CONTROL__MESSAGE_START);
	assert_true(rig_job(&s.rig)->members[WORLD].gone);
	actor_gather(&s.box[0], two, 2, 2, 0);
	rig_wait(&s.rig, 10);
	assert_true(rig_job(&s.rig)->members[WORLD].gone);
	worker_join(&s.rig, &s.box[1], 4, 2);
	actor_table(&s.box[1], &waits, 1, NUMBERS);
	rig_wait(&s.rig, 10);
	assert_false(rig_job(&s.rig)->members[2].gone);
	assert_false(rig_job(&s.rig)->members[WORLD].gone); /* all are somewhere */
	assert_int_equal(job_count_somewhere(rig_job(&s.rig)), WORLD);
	scene_close(&s);
}

static void test_waits_in_vain(void **state)
{
	struct scene s;

	top_start_as(&s, &waits);
	actor_hang_up(&s.box[0]);
	for (unsigned i = 0; i < 310 && s.worker[0].error_code == 0; i++) {
		rig_wait(&s.rig, 1000);
		actor_heartbeat(&s.worker[0]);
		actor_hear(&s.worker[0]);
	}
	actor_expect(&s.worker[0], ERROR_OF(LOST), "(ranks 1-3) was lost, and no other took its place in 300 s");
	scene_close(&s);
}

/* All who were at a box came to others, so that nobody waits for it. Another box comes into its place: it is not late
 * at once, and takes part when it has those who are lost next. */
static void test_emptied_place(void **state)
{
	const uint32_t three[] = {3};
	struct actor late = {.rig = NULL};
	struct scene s;

	top_start_as(&s, &waits);
	actor_hang_up(&s.box[0]);
	for (uint32_t rank = 1; rank < WORLD; rank++) {
		struct actor *a = rank == 1 ? &s.box[1] : rank == 2 ? &late : &s.box[0];

		worker_join(&s.rig, a, 3 + rank, rank);
		actor_table(a, &waits, 1, NUMBERS);
		rig_wait(&s.rig, 10);
	}
	assert_int_equal(job_count_somewhere(rig_job(&s.rig)), WORLD);
	assert_true(rig_job(&s.rig)->members[WORLD].elsewhere);
	for (unsigned i = 0; i < 400; i++) { /* longer than a job waits for anybody */
		rig_wait(&s.rig, 1000);
		actor_heartbeat(&s.worker[0]);
		actor_heartbeat(&s.box[1]);
		actor_heartbeat(&late);
		actor_heartbeat(&s.box[0]);
	}
	actor_hang_up(&s.box[0]); /* rank 3 */
	rig_wait(&s.rig, 10);
	memset(&s.box[0], 0, sizeof(s.box[0]));
	box_join(&s.rig, &s.box[0], 7);
	rig_wait(&s.rig, 1500);
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	actor_gather(&s.box[0], three, 1, 1, 0);
	actor_table(&s.box[0], &waits, 1, NUMBERS);
	rig_wait(&s.rig, 10);
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	assert_false(rig_job(&s.rig)->members[WORLD].gone);
	assert_int_equal(job_count_somewhere(rig_job(&s.rig)), WORLD);
	actor_hang_up(&late);
	scene_close(&s);
}

/* One comes here from a box that was lost, and is lost before it took part: the job waits for all of that box again,
 * and for none but them. */
static void test_newcomer_lost(void **state)
{
	const uint32_t two[] = {1, 3}, all[] = {1, 2, 3};
	struct scene s;

	top_start_as(&s, &waits);
	actor_hang_up(&s.box[0]);
	rig_wait(&s.rig, 10);
	worker_join(&s.rig, &s.box[1], 4, 2);
	s.rig.cores_rest = true; /* they have not answered yet */
	actor_table(&s.box[1], &waits, 1, NUMBERS);
	rig_wait(&s.rig, 10);
	assert_true(rig_job(&s.rig)->members[2].joins);
	actor_hang_up(&s.box[1]);
	rig_wait(&s.rig, 10);
	s.rig.cores_rest = false;
	rig_wait(&s.rig, 10);
	assert_true(rig_job(&s.rig)->members[2].elsewhere);
	assert_int_equal(rig_job(&s.rig)->members[2].at, WORLD);
	assert_false(job_is_somewhere(rig_job(&s.rig), 2));
	box_comes(&s, 3, &waits, two, 2);
	assert_true(rig_job(&s.rig)->members[WORLD].gone);
	actor_gather(&s.box[0], all, 3, 2, 0);
	rig_wait(&s.rig, 10);
	assert_false(rig_job(&s.rig)->members[WORLD].gone);
	assert_int_equal(job_count_somewhere(rig_job(&s.rig)), WORLD);
	scene_close(&s);
}

static void expect_association(const struct scene *s, const char *association)
{
	char *is = job_below_association(rig_job(&s->rig));

	assert_non_null(is);
	assert_string_equal(is, association);
	free(is);
}

/* The order of sums names who is there; a box that has nobody is not in it, and where nobody is, there is none. */
static void test_association(void **state)
{
	static const struct rig_job same = {.generation = 1, .lost = LOST_SHRINK, .reproducible = true};
	struct scene s;

	top_start_as(&s, &same);
	expect_association(&s, "[0,[1,2,3]]");
	actor_gather(&s.box[0], (const uint32_t[]){2}, 1, 3, 0);
	rig_wait(&s.rig, 10);
	actor_gather(&s.box[0], NULL, 0, 4, 0);
	rig_wait(&s.rig, 10);
	actor_leave(&s.worker[0]);
	rig_wait(&s.rig, 10);
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	assert_int_equal(job_below_count(rig_job(&s.rig)), 1);
	expect_association(&s, "");
	scene_close(&s);
}

/* ---- refused ---- */

static void expect_no_box(struct scene *s, uint32_t rank, uint32_t world, int code, const char *text)
{
	s->box[1].below = true;
	assert_false(actor_join(&s->box[1], "wide", rank, world, NULL));
	actor_expect(&s->box[1], code, text);
	actor_hang_up(&s->box[1]);
	memset(&s->box[1], 0, sizeof(s->box[1]));
}

/* A rank that is at another box may be lost there, where jobs go on without: then it is to ask again. */
static void test_rank_is_below(void **state)
{
	struct scene s;

	for (unsigned i = 0; i < 2; i++) {
		top_start_as(&s, i ? &shrinks : &plain);
		actor_dial(&s.rig, &s.box[1], 3);
		assert_false(actor_join(&s.box[1], "wide", 2, WORLD, NULL));
		actor_expect(&s.box[1], i ? ERROR_OF(BUSY) : ERROR_OF(TAKEN), "rank 2 of job 'wide' is at another box");
		scene_close(&s);
	}
}

static void test_no_box(void **state)
{
	struct scene s;

	top_start(&s);
	actor_dial(&s.rig, &s.box[1], 3);
	expect_no_box(&s, 0, WORLD, ERROR_OF(BUSY), "it runs here already, without that box");
	actor_dial(&s.rig, &s.box[1], 3);
	expect_no_box(&s, 0, WORLD + 1, ERROR_OF(MISMATCH), "has a world of 4 here");
	actor_dial(&s.rig, &s.box[1], 3);
	expect_no_box(&s, 1, WORLD, ERROR_OF(PROTOCOL), "hello of an administrator");
	actor_dial(&s.rig, &s.box[1], 3);
	s.box[1].mirror = true;
	expect_no_box(&s, 0, 1, ERROR_OF(PROTOCOL), "hello of an administrator");
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	scene_close(&s);
}

/* Gatherings that cannot be, each by a box that is there, or by a worker. */
static void test_wrong_gatherings(void **state)
{
	const uint32_t beyond[] = {1, WORLD}, here[] = {0}, mine[] = {1};
	struct scene s;

	top_open(&s);
	actor_gather(&s.worker[0], mine, 1, 1, 0);
	actor_expect(&s.worker[0], ERROR_OF(PROTOCOL), "a gathering of ranks by a worker");
	actor_gather(&s.box[0], beyond, 2, 1, 0);
	actor_expect(&s.box[0], ERROR_OF(PROTOCOL), "a gathering of rank 4 of 4");
	scene_close(&s);
	top_open(&s);
	actor_gather(&s.box[0], here, 1, 1, 0);
	actor_expect(&s.box[0], ERROR_OF(TAKEN), "rank 0 is at box 10.0.0.2:7077 and at loop:1");
	actor_expect(&s.worker[0], ERROR_OF(TAKEN), "give every worker its own rank");
	scene_close(&s);
	top_open(&s);
	box_join(&s.rig, &s.box[1], 3);
	actor_gather(&s.box[0], mine, 1, 1, 0);
	actor_gather(&s.box[1], mine, 1, 1, 0);
	actor_expect(&s.box[1], ERROR_OF(TAKEN), "rank 1 is at box 10.0.0.3:7077 and at box 10.0.0.2:7077 (rank 1)");
	scene_close(&s);
	top_open(&s);
	box_join(&s.rig, &s.box[1], 3);
	actor_gather(&s.box[0], mine, 1, 1, DTYPE_BF16);
	actor_gather(&s.box[1], NULL, 0, 1, DTYPE_F32);
	actor_expect(&s.box[1], ERROR_OF(MISMATCH),
		"box 10.0.0.3:7077 sends its sums as f32, and box 10.0.0.2:7077 as bf16");
	scene_close(&s);
	top_open(&s);
	actor_gather(&s.box[0], NULL, 0, 1, 77);
	actor_expect(&s.box[0], ERROR_OF(MISMATCH), "sends its sums as");
	scene_close(&s);
	/* And one when it is too late: its ranks changed as the job was started. */
	top_start(&s);
	actor_gather(&s.box[0], mine, 1, 3, 0);
	rig_wait(&s.rig, 10);
	actor_expect(&s.box[0], ERROR_OF(LOST), "ranks came or went as it started");
	actor_expect(&s.worker[0], ERROR_OF(LOST), "was lost: ranks came or went as it started");
	scene_close(&s);
}

/* What cannot be over several boxes yet. */
static void test_not_spread(void **state)
{
	const uint32_t ranks[] = {1, 2, 3};
	static const struct {
		struct rig_job job;
		const char *text;
	} cases[] = {
		{{.generation = 1, .optimizer = OPTIMIZER_SGD, .sync = SYNC_ASYNC, .lr = 0.1},
			"sync ssp and async: not yet"},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct scene s;

		top_open(&s);
		actor_gather(&s.box[0], ranks, 3, 1, 0);
		actor_table(&s.box[0], &cases[i].job, 1, NUMBERS);
		actor_table(&s.worker[0], &cases[i].job, 1, NUMBERS);
		rig_wait(&s.rig, 10);
		actor_expect(&s.box[0], ERROR_OF(UNSUPPORTED), cases[i].text);
		actor_expect(&s.worker[0], ERROR_OF(UNSUPPORTED), cases[i].text);
		scene_close(&s);
	}
	for (unsigned who = 0; who < 2; who++) {
		struct scene s;

		top_open(&s);
		actor_barrier(who ? &s.box[0] : &s.worker[0], 1);
		rig_wait(&s.rig, 10);
		actor_expect(&s.worker[0], ERROR_OF(UNSUPPORTED), "at a barrier before the job has started");
		scene_close(&s);
	}
}

/* ---- it comes again ---- */

static void wait_alive(struct scene *s, unsigned ms)
{
	struct actor *all[] = {&s->worker[0], &s->box[0], &s->box[1]};

	for (unsigned waited = 0; waited < ms; waited += 500) {
		rig_wait(&s->rig, 500);
		for (unsigned i = 0; i < 3; i++)
			if (all[i]->rig)
				actor_heartbeat(all[i]);
	}
}

/* A job that ran before begins without those who have not come again, of whom no box has said anything yet: they are
 * let in when they come with boxes of theirs. */
static void test_places_for_later(void **state)
{
	const uint32_t some[] = {2, 3}, one[] = {1};
	struct scene s = {.rig = {0}};

	rig_open(&s.rig, 2, NULL);
	worker_join(&s.rig, &s.worker[0], 1, 0);
	actor_table(&s.worker[0], &again, 1, NUMBERS);
	wait_alive(&s, 11000);
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	box_comes(&s, 2, &again, some, 2);
	assert_int_equal(job_count_somewhere(rig_job(&s.rig)), WORLD - 1);
	box_join(&s.rig, &s.box[1], 3);
	actor_gather(&s.box[1], one, 1, 1, 0);
	actor_table(&s.box[1], &again, 1, NUMBERS);
	rig_wait(&s.rig, 10);
	assert_int_equal(job_count_somewhere(rig_job(&s.rig)), WORLD);
	scene_close(&s);
}

/* Ranks of a box that was lost come again with more boxes than there were: there is a place for each. */
static void test_places_for_more(void **state)
{
	const uint32_t one[] = {1}, two[] = {2}, three[] = {3};
	const uint32_t *ranks[] = {one, two, three};
	struct actor more[3];
	struct scene s;

	top_start_as(&s, &shrinks);
	actor_hang_up(&s.box[0]);
	rig_wait(&s.rig, 10);
	for (unsigned i = 0; i < 3; i++) {
		memset(&more[i], 0, sizeof(more[i]));
		box_join(&s.rig, &more[i], 3 + i);
		actor_gather(&more[i], ranks[i], 1, 1, 0);
		actor_table(&more[i], &shrinks, 1, NUMBERS);
		rig_wait(&s.rig, 10);
	}
	assert_int_equal(job_count_somewhere(rig_job(&s.rig)), WORLD);
	for (unsigned i = 0; i < 3; i++)
		actor_hang_up(&more[i]);
	scene_close(&s);
}

/* So it does where some have come with a box, and others have not. */
static void test_begins_without_some(void **state)
{
	uint32_t one[] = {2};
	const uint32_t more[] = {2, 3};
	Phub__Gather gather = PHUB__GATHER__INIT;
	struct scene s;

	top_open(&s);
	gather.number = 1;
	gather.ranks = one;
	gather.n_ranks = 1;
	gather.resumes = true; /* those of the box were in it */
	job_below_gather(rig_job(&s.rig)->members[WORLD].session, &gather);
	actor_table(&s.box[0], &shrinks, 1, NUMBERS);
	actor_table(&s.worker[0], &shrinks, 1, NUMBERS);
	wait_alive(&s, 9000);
	assert_int_equal(rig_job(&s.rig)->state, JOB_FORMING);
	wait_alive(&s, 2000);
	assert_int_equal(rig_job(&s.rig)->state, JOB_RUNNING);
	assert_int_equal(job_count_somewhere(rig_job(&s.rig)), 2);
	actor_gather(&s.box[0], more, 2, 2, 0);
	worker_join(&s.rig, &s.box[1], 4, 1);
	actor_table(&s.box[1], &shrinks, 1, NUMBERS);
	rig_wait(&s.rig, 10);
	assert_int_equal(job_count_somewhere(rig_job(&s.rig)), WORLD);
	scene_close(&s);
}

/* Ranks of a box change while the job reads its checkpoint: the box sees that by the Start, and what it said is not
 * wrong. */
static void test_gathers_late(void **state)
{
	Phub__Gather gather = PHUB__GATHER__INIT;
	struct scene s;

	top_start(&s);
	gather.number = 3;
	s.rig.box->control.jobs->state = JOB_LOADING;
	job_below_gather(rig_job(&s.rig)->members[WORLD].session, &gather);
	s.rig.box->control.jobs->state = JOB_RUNNING;
	actor_hear(&s.box[0]);
	assert_int_equal(s.box[0].error_code, 0);
	assert_int_equal(rig_job(&s.rig)->members[WORLD].gathered, 2);
	scene_close(&s);
}

TEST_PROGRAM(test_control_below)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_starts),
		cmocka_unit_test(test_root_is_below),
		cmocka_unit_test(test_gone_before_the_start),
		cmocka_unit_test(test_lost),
		cmocka_unit_test(test_silent),
		cmocka_unit_test(test_failed_below),
		cmocka_unit_test(test_shrinks),
		cmocka_unit_test(test_joins),
		cmocka_unit_test(test_deserted),
		cmocka_unit_test(test_fails_below),
		cmocka_unit_test(test_waits),
		cmocka_unit_test(test_waits_in_vain),
		cmocka_unit_test(test_emptied_place),
		cmocka_unit_test(test_newcomer_lost),
		cmocka_unit_test(test_association),
		cmocka_unit_test(test_rank_is_below),
		cmocka_unit_test(test_no_box),
		cmocka_unit_test(test_wrong_gatherings),
		cmocka_unit_test(test_not_spread),
		cmocka_unit_test(test_places_for_later),
		cmocka_unit_test(test_places_for_more),
		cmocka_unit_test(test_begins_without_some),
		cmocka_unit_test(test_gathers_late),
	};

	return cmocka_run_group_tests_name("below", tests, NULL, NULL);
}
