/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What messages call a box below: its name and where others reach it, whatever its connection comes from; and what
 * sites say of their options.
 */
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/scene_rig.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "phub/control/job.h"
#include "phub/control/job_below.h"

enum { NUMBERS = 3000 };

/* The worker is rank 0. `at` NULL: the box does not say where it is. */
static void named_open(struct scene *s, const char *at, const char *name)
{
	scene_begin(s, 2, 0, NULL);
	scene_join(s, 0, 0, WORLD);
	actor_dial(&s->rig, &s->box[0], 2);
	s->box[0].below = true;
	s->box[0].at = at;
	s->box[0].name = name;
	assert_true(actor_join(&s->box[0], "wide", 0, WORLD, NULL));
}

static void expect_name(struct scene *s, const char *name)
{
	char text[300];

	assert_non_null(s->rig.box->control.jobs);
	assert_string_equal(job_member_name(s->rig.box->control.jobs, WORLD, text, sizeof(text)), name);
}

/* A refusal is about a box: its place among the members is nobody's rank. */
static void test_refused(void **state)
{
	const struct rig_job other = {.generation = 1, .transport = "pigeon"};
	const uint32_t ranks[] = {1, 2, 3};
	struct scene s;

	named_open(&s, "10.0.0.2", "B");
	expect_name(&s, "box 'B' at 10.0.0.2:7077"); /* before its Gather */
	actor_gather(&s.box[0], ranks, 3, 1, 0);
	actor_table(&s.box[0], &other, 1, NUMBERS);
	actor_expect(&s.box[0], ERROR_OF(UNSUPPORTED),
		"does not offer transport pigeon, which box 'B' at 10.0.0.2:7077 asks for");
	assert_null(strstr(s.box[0].error, "rank"));
	assert_int_equal(s.box[0].error_rank, -1);
	scene_close(&s);
}

/* Nor is it in what a job fails by. */
static void test_differs(void **state)
{
	const struct rig_job job = {.generation = 1};
	const uint32_t ranks[] = {1, 2, 3};
	struct scene s;

	named_open(&s, "10.0.0.2", NULL);
	actor_gather(&s.box[0], ranks, 3, 1, 0);
	actor_table(&s.box[0], &job, 1, NUMBERS);
	actor_table(&s.worker[0], &job, 1, NUMBERS);
	rig_wait(&s.rig, 10);
	actor_barrier(&s.worker[0], 2);
	actor_barrier(&s.box[0], 1);
	actor_expect(&s.worker[0], ERROR_OF(MISMATCH),
		"rank 0 is at its barrier 2 and box 10.0.0.2:7077 (ranks 1-3) at its 1; all ranks");
	scene_close(&s);
}

/* One of an older release says where it is with its Gather alone; until then it is known by its host. */
static void test_older(void **state)
{
	const uint32_t ranks[] = {2, 3};
	struct scene s;

	named_open(&s, NULL, NULL);
	expect_name(&s, "box loop");
	s.box[0].at = "fd77::2";
	s.box[0].name = "B\n";
	actor_gather(&s.box[0], ranks, 2, 1, 0);
	rig_wait(&s.rig, 10);
	expect_name(&s, "box 'B?' at [fd77::2]:7077 (ranks 2, 3)");
	scene_close(&s);
}

static void say_paused(struct scene *s, unsigned paused, const char *why)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Heartbeat heartbeat = PHUB__HEARTBEAT__INIT;

	heartbeat.paused = paused;
	heartbeat.why = (char *)(uintptr_t)why;
	control.message_case = PHUB__CONTROL__MESSAGE_HEARTBEAT;
	control.heartbeat = &heartbeat;
	actor_say(&s->box[0], &control);
	rig_wait(&s->rig, 10);
}

/* It is paused there: that is kept, made safe, until it says that it goes on; other heartbeats say nothing of it. */
static void test_paused(void **state)
{
	const uint32_t ranks[] = {1, 2, 3};
	char text[300];
	struct scene s;

	named_open(&s, "10.0.0.2", "B");
	actor_gather(&s.box[0], ranks, 3, 1, 0);
	for (unsigned i = 0; i < 2; i++) {
		say_paused(&s, 2, i ? "" : "somebody\npaused it");
		say_paused(&s, 0, "");
		job_describe_paused_below(s.rig.box->control.jobs, text, sizeof(text));
		assert_string_equal(
			text, i ? "it is paused at box 'B' at 10.0.0.2:7077 (ranks 1-3): paused"
				: "it is paused at box 'B' at 10.0.0.2:7077 (ranks 1-3): somebody?paused it");
		say_paused(&s, 1, "");
		job_describe_paused_below(s.rig.box->control.jobs, text, sizeof(text));
		assert_string_equal(text, "");
	}
	scene_close(&s);
}

/* ---- what sites say ---- */

/* With a key. */
static int make_table_of(const char *sites, const char *key_name, struct table **out, struct err *e)
{
	Phub__Job job = PHUB__JOB__INIT;
	Phub__Hypers hypers = PHUB__HYPERS__INIT, *groups[] = {&hypers};
	Phub__Keys keys = PHUB__KEYS__INIT;
	Phub__Key key = PHUB__KEY__INIT, *list[] = {&key};
	int rc;

	job.generation = 1;
	job.groups = groups;
	job.n_groups = 1;
	job.key_count = 1;
	job.sites = (char *)(uintptr_t)sites;
	key.name = (char *)(uintptr_t)key_name;
	key.elements = 4;
	keys.keys = list;
	keys.n_keys = 1;
	rc = table_create(&job, 2, 32768, 8, out, e);
	return rc < 0 ? rc : table_add(*out, &keys, e);
}

static int make_table(const char *sites, struct table **out, struct err *e)
{
	return make_table_of(sites, "w", out, e);
}

static void test_sites_said(void **state)
{
	char longest[TABLE_SITES_BYTES + 1];
	struct table *t = NULL;
	struct err e;

	memset(longest, 'a', sizeof(longest));
	longest[TABLE_SITES_BYTES] = '\0';
	assert_int_equal(make_table(longest, &t, &e), -EINVAL);
	assert_non_null(strstr(e.text, "what sites do is over 2047 characters"));
	assert_int_equal(make_table("lo\ncal", &t, &e), -EINVAL);
	assert_non_null(strstr(e.text, "or not printable"));
	longest[TABLE_SITES_BYTES - 1] = '\0';
	assert_int_equal(make_table(longest, &t, &e), 0);
	table_destroy(t);
}

#define MANY "1,2,4,8,16,32,64,128,256,512,1024,2048,4096,8192,1,"

/* Ranks are told of the first option that differs; a job that goes on from a checkpoint, of all. */
static void test_sites_differ(void **state)
{
	static const struct {
		const char *a, *b, *error, *change;
	} cases[] = {
		{"gaia", "local", "algorithm of sites differs: rank 0 says gaia, rank 1 says local",
			"algorithm of sites was gaia and is local"},
		{"local with a scout; clip=0", "",
			"algorithm of sites differs: rank 0 says local with a scout, rank 1 says none",
			"algorithm of sites was local with a scout and is none"},
		{"", "local; clip=1", "algorithm of sites differs: rank 0 says none, rank 1 says local", ""},
		{"bsp; clip=0; momentum=.9", "bsp; clip=0; momentum=0",
			"momentum of sites differs: rank 0 says .9, rank 1 says 0",
			"momentum of sites was .9 and is 0"},
		{"bsp; clip=0; momentum=.9", "bsp; clip=1", "clip of sites differs: rank 0 says 0, rank 1 says 1",
			"clip of sites was 0 and is 1, momentum of sites was .9 and is none"},
		{"bsp; a=1; b=2", "bsp; b=3; c=4; a=1", "b of sites differs: rank 0 says 2, rank 1 says 3",
			"b of sites was 2 and is 3, c of sites was none and is 4"},
		{"bsp; clip=none; momentum=.9", "bsp; clip=none; momentum=0",
			"momentum of sites differs: rank 0 says .9, rank 1 says 0",
			"momentum of sites was .9 and is 0"},
		{"bsp; clip=1", "bsp; decay=1", "clip of sites differs: rank 0 says 1, rank 1 says none",
			"clip of sites was 1 and is none, decay of sites was none and is 1"},
		{"bsp; clip=none", "bsp; x", "clip of sites differs: rank 0 says none, rank 1 says none",
			"clip of sites was none and is none, x of sites was none and is yes"},
		{"bsp; thetas=" MANY "1", "bsp; thetas=" MANY "2",
			"thetas of sites differs: rank 0 says " MANY "1, rank 1 says " MANY "2",
			"thetas of sites was " MANY "1 and is " MANY "2"},
		{"bsp; thetas=" MANY MANY "1", "bsp; thetas=" MANY MANY "2",
			"thetas of sites differs: rank 0 says " MANY "1,2,4,8,1... (11b09c71), rank 1 says " MANY
			"1,2,4,8,1... (02e06f85)",
			"thetas of sites was " MANY "1,2,4,8,1... (11b09c71) and is " MANY "1,2,4,8,1... (02e06f85)"},
		{MANY "1", MANY "2", "algorithm of sites differs: rank 0 says " MANY "1, rank 1 says " MANY "2",
			"algorithm of sites was " MANY "1 and is " MANY "2"},
		{"bsp; =; ;;x; none=none;", "bsp; =; ;;x; none=none;", "", ""},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct table_changes changes;
		struct table *a, *b;
		struct err e = {0};
		int rc;

		assert_int_equal(make_table(cases[i].a, &a, &e), 0);
		assert_int_equal(make_table(cases[i].b, &b, &e), 0);
		rc = table_compare(&(struct table_side){.table = a, .rank = 0},
			&(struct table_side){.table = b, .rank = 1}, false, &e);
		assert_int_equal(rc, cases[i].error[0] ? -EBADMSG : 0);
		assert_string_equal(e.text, cases[i].error);
		assert_int_equal(table_continues(a, b, &changes, &e), 0);
		assert_string_equal(changes.text, cases[i].change);
		table_destroy(a);
		table_destroy(b);
	}
}

/* Of a job that begins; not of one that goes on, which the others are further in. */
static void test_sites_so_far(void **state)
{
	static const char *const says[] = {"local; a=1; steps so far=0", "local; a=1; steps so far=33"};
	struct table_side sides[2] = {{.rank = 0}, {.rank = 1}};
	struct table_changes changes;
	struct table *tables[2];
	struct err e = {0};

	for (int i = 0; i < 2; i++) {
		assert_int_equal(make_table(says[i], &tables[i], &e), 0);
		sides[i].table = tables[i];
	}
	assert_int_equal(table_compare(&sides[0], &sides[1], false, &e), -EBADMSG);
	assert_string_equal(e.text, "steps so far of sites differs: rank 0 says 0, rank 1 says 33");
	assert_int_equal(table_compare(&sides[0], &sides[1], true, &e), 0);
	assert_int_equal(table_continues(tables[0], tables[1], &changes, &e), 0);
	assert_string_equal(changes.text, "");
	tables[1]->resumes = true;
	assert_int_equal(table_compare(&sides[0], &sides[1], false, &e), 0);
	for (int i = 0; i < 2; i++)
		table_destroy(tables[i]);
}

/* A site that does not say that it is one is no other: its library, or a box on its way, is older. */
static void test_sites_older(void **state)
{
	static const struct {
		const char *key;
		bool below;
		const char *error;
	} cases[] = {
		{TABLE_SITES_KEY, false,
			"rank 1 does not say what it does as a site, and rank 0 does: its libphub is older; update it"},
		{TABLE_SITES_KEY, true,
			"rank 1 does not say what it does as a site, and rank 0 does: box B, over which it comes, or "
			"its libphub is older; update it"},
		{"w", true,
			"rank 1 does not say what it does as a site, and rank 0 does: it is none, or box B, over "
			"which it comes, or its libphub is older; update it"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct table_side sides[2] = {
			{.rank = 0, .box = "box A"}, {.rank = 1, .box = "box B", .below = cases[i].below}};
		struct table *says, *silent;
		struct err e = {0};

		assert_int_equal(make_table_of("local", cases[i].key, &says, &e), 0);
		assert_int_equal(make_table_of("", cases[i].key, &silent, &e), 0);
		sides[0].table = says;
		sides[1].table = silent;
		assert_int_equal(table_compare(&sides[0], &sides[1], false, &e), -EBADMSG);
		assert_string_equal(e.text, cases[i].error);
		assert_int_equal(table_compare(&sides[1], &sides[0], false, &e), -EBADMSG);
		assert_string_equal(e.text, cases[i].error);
		sides[0].table = silent;
		assert_int_equal(table_compare(&sides[0], &sides[1], false, &e), 0);
		table_destroy(says);
		table_destroy(silent);
	}
}

TEST_PROGRAM(test_control_names)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_differs),
		cmocka_unit_test(test_older),
		cmocka_unit_test(test_paused),
		cmocka_unit_test(test_sites_said),
		cmocka_unit_test(test_sites_differ),
		cmocka_unit_test(test_sites_so_far),
		cmocka_unit_test(test_sites_older),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
