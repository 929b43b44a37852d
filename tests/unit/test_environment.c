/* SPDX-License-Identifier: Apache-2.0 */
/* What the environment says of a site comes before what the program says, and what cannot be is named. */
#include "client/scout/environment.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"PHUB_SCOUT_ALGORITHM", "PHUB_SCOUT_THETA", "PHUB_SCOUT_POLICY",
	"PHUB_SCOUT_THETAS", "PHUB_SCOUT_PERIOD", "PHUB_SCOUT_SIGMA", "PHUB_SCOUT_SEED", "PHUB_SCOUT_GAIN",
	"PHUB_SCOUT_WORTH", "PHUB_SCOUT_EASE", "PHUB_SCOUT_LAMBDA_LOSS", "PHUB_SCOUT_LAMBDA_BYTES", "PHUB_SCOUT_TRIM",
	"PHUB_SCOUT_LOST", "PHUB_SCOUT_REPRODUCIBLE"};

static int clear(void **state)
{
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
	return 0;
}

static struct phub_site_options options_of(const struct phub_scout_options *scout)
{
	struct phub_site_options o;

	phub_site_options_init(&o);
	o.theta = 7;
	o.scout = scout;
	return o;
}

static const double own_thetas[] = {1, 4};

static struct phub_scout_options scout_of(void)
{
	struct phub_scout_options o;

	phub_scout_options_init(&o);
	o.policy = PHUB_SCOUT_STOCHASTIC;
	o.thetas = own_thetas;
	o.theta_count = 2;
	o.first = 1;
	o.lambda_loss = 3;
	o.period = 11;
	return o;
}

static void test_nothing_changes_nothing(void **state)
{
	struct phub_scout_options scout = scout_of();
	struct phub_site_options o = options_of(NULL);
	struct environment room;
	struct err e = {0};

	setenv("PHUB_SCOUT_POLICY", "", 1);
	setenv("PHUB_SCOUT_SIGMA", "0.2", 1); /* of a scout, and there is none */
	assert_int_equal(environment_apply(&o, &room, &e), 0);
	assert_true(o.theta == 7 && o.algorithm == PHUB_SITE_LOCAL && !o.scout);
	clear(NULL);
	o = options_of(&scout);
	assert_int_equal(environment_apply(&o, &room, &e), 0);
	assert_memory_equal(o.scout, &scout, sizeof(scout));
}

static void test_all_of_it(void **state)
{
	struct phub_site_options o = options_of(NULL);
	struct environment room;
	struct err e = {0};

	setenv("PHUB_SCOUT_ALGORITHM", "gaia", 1);
	setenv("PHUB_SCOUT_POLICY", "annealing", 1);
	setenv("PHUB_SCOUT_THETAS", "0,0.05,1e-1", 1);
	setenv("PHUB_SCOUT_THETA", "0.05", 1);
	setenv("PHUB_SCOUT_PERIOD", "50", 1);
	setenv("PHUB_SCOUT_SIGMA", "0.02", 1);
	setenv("PHUB_SCOUT_LAMBDA_LOSS", "20", 1);
	setenv("PHUB_SCOUT_LAMBDA_BYTES", "0.5", 1);
	setenv("PHUB_SCOUT_TRIM", "0.2", 1);
	setenv("PHUB_SCOUT_LOST", "shrink", 1);
	setenv("PHUB_SCOUT_REPRODUCIBLE", "1", 1);
	setenv("PHUB_SCOUT_SEED", "18446744073709551615", 1);
	assert_int_equal(environment_apply(&o, &room, &e), 0);
	assert_int_equal(o.algorithm, PHUB_SITE_GAIA);
	assert_non_null(o.scout);
	assert_int_equal(o.scout->policy, PHUB_SCOUT_ANNEALING);
	assert_int_equal(o.scout->theta_count, 3);
	assert_true(o.scout->thetas[0] == 0 && o.scout->thetas[1] == 0.05 && o.scout->thetas[2] == 0.1);
	assert_int_equal(o.scout->first, 1);
	assert_int_equal(o.scout->period, 50);
	assert_true(o.scout->sigma == 0.02 && o.scout->lambda_loss == 20 && o.scout->lambda_bytes == 0.5);
	assert_true(o.scout->trim == 0.2);
	assert_int_equal(room.lost, PHUB_LOST_SHRINK);
	assert_int_equal(room.reproducible, 1);
	assert_true(o.scout->seed == UINT64_MAX);
}

/* What it does not name is the program's. */
static void test_beside_the_programs_own(void **state)
{
	struct phub_scout_options scout = scout_of();
	struct phub_site_options o = options_of(&scout);
	struct environment room;
	struct err e = {0};

	setenv("PHUB_SCOUT_THETA", "1", 1);
	assert_int_equal(environment_apply(&o, &room, &e), 0);
	assert_ptr_not_equal(o.scout, &scout);
	assert_int_equal(o.scout->policy, PHUB_SCOUT_STOCHASTIC);
	assert_ptr_equal(o.scout->thetas, own_thetas);
	assert_int_equal(o.scout->first, 0);
	assert_true(o.scout->lambda_loss == 3 && o.scout->period == 11);
	assert_int_equal(scout.first, 1);
	setenv("PHUB_SCOUT_THETAS", "5,6", 1);
	o = options_of(&scout);
	assert_int_equal(environment_apply(&o, &room, &e), -EINVAL);
	assert_string_equal(e.text, "PHUB_SCOUT_THETA='1'; allowed: a theta of the scout's grid: 5, 6");
	unsetenv("PHUB_SCOUT_THETA");
	o = options_of(&scout);
	assert_int_equal(environment_apply(&o, &room, &e), 0);
	assert_int_equal(o.scout->first, 0);
	assert_true(o.scout->thetas[1] == 6);
}

static void test_algorithm_and_theta_alone(void **state)
{
	struct phub_site_options o = options_of(NULL);
	struct environment room;
	struct err e = {0};

	setenv("PHUB_SCOUT_ALGORITHM", "dgc", 1);
	assert_int_equal(environment_apply(&o, &room, &e), 0);
	assert_true(isnan(o.theta)); /* the paper's: 7 was of another algorithm */
	setenv("PHUB_SCOUT_THETA", "0.01", 1);
	assert_int_equal(environment_apply(&o, &room, &e), 0);
	assert_true(o.algorithm == PHUB_SITE_DGC && o.theta == 0.01 && !o.scout);
}

static void test_a_replay_has_a_schedule(void **state)
{
	struct phub_site_options o = options_of(NULL);
	struct environment room;
	struct err e = {0};

	setenv("PHUB_SCOUT_POLICY", "replay", 1);
	setenv("PHUB_SCOUT_THETAS", "4,2,4", 1);
	assert_int_equal(environment_apply(&o, &room, &e), 0);
	assert_int_equal(o.scout->schedule_count, 3);
	assert_true(o.scout->schedule[2] == 4);
	assert_int_equal(o.scout->theta_count, 1);
}

/* What a policy does not look at is refused, with those that do; who has no scout hears nothing of scouts. */
static void test_what_a_policy_does_not_look_at(void **state)
{
	static const struct {
		const char *policy, *name, *others; /* NULL: it looks at it */
	} cases[] = {
		{"scout+", "PHUB_SCOUT_THETA", "fixed, hill, stochastic and annealing"},
		{"replay", "PHUB_SCOUT_THETA", "fixed, hill, stochastic and annealing"},
		{"scout+", "PHUB_SCOUT_SIGMA", "replay, hill, stochastic and annealing"},
		{"fixed", "PHUB_SCOUT_SIGMA", "replay, hill, stochastic and annealing"},
		{"scout+", "PHUB_SCOUT_LAMBDA_LOSS", "replay, hill, stochastic and annealing"},
		{"fixed", "PHUB_SCOUT_LAMBDA_BYTES", "replay, hill, stochastic and annealing"},
		{"hill", "PHUB_SCOUT_GAIN", "scout+"},
		{"scout+", "PHUB_SCOUT_GAIN", NULL},
		{"hill", "PHUB_SCOUT_WORTH", "scout+"},
		{"scout+", "PHUB_SCOUT_WORTH", NULL},
		{"replay", "PHUB_SCOUT_SIGMA", NULL},
		{"fixed", "PHUB_SCOUT_THETA", NULL},
		{"annealing", "PHUB_SCOUT_LAMBDA_LOSS", NULL},
		{"scout+", "PHUB_SCOUT_RATE", NULL},
		{"", "PHUB_SCOUT_GAIN", NULL},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct phub_site_options o = options_of(NULL);
		struct environment room;
		struct err e = {0};
		char wanted[160];
		int rc;

		setenv("PHUB_SCOUT_POLICY", cases[i].policy, 1);
		setenv(cases[i].name, "1", 1);
		rc = environment_apply(&o, &room, &e);
		unsetenv(cases[i].name);
		assert_int_equal(rc, cases[i].others ? -EINVAL : 0);
		if (!cases[i].others)
			continue;
		snprintf(wanted, sizeof(wanted), "%s='1': the policy %s does not look at it; unset it; it is of %s",
			cases[i].name, cases[i].policy, cases[i].others);
		assert_string_equal(e.text, wanted);
	}
}

/* The theta that is none of the grid's is named, and the grid, also one that is too long for a message. */
static void test_a_theta_that_is_none(void **state)
{
	char many[512] = "1";
	struct phub_site_options o = options_of(NULL);
	struct environment room;
	struct err e = {0};

	setenv("PHUB_SCOUT_POLICY", "hill", 1);
	setenv("PHUB_SCOUT_THETAS", "1,2.5,10", 1);
	setenv("PHUB_SCOUT_THETA", "3.0", 1);
	assert_int_equal(environment_apply(&o, &room, &e), -EINVAL);
	assert_string_equal(e.text, "PHUB_SCOUT_THETA='3.0'; allowed: a theta of the scout's grid: 1, 2.5, 10");
	for (unsigned i = 1; i < 64; i++)
		snprintf(many + strlen(many), sizeof(many) - strlen(many), ",%u", 1000 + i);
	setenv("PHUB_SCOUT_THETAS", many, 1);
	o = options_of(NULL);
	assert_int_equal(environment_apply(&o, &room, &e), -EINVAL);
	assert_non_null(strstr(e.text, "grid: 1, 1001, 1002, "));
	assert_non_null(strstr(e.text, ", ... 1063"));
	setenv("PHUB_SCOUT_THETAS", "4", 1);
	o = options_of(NULL);
	assert_int_equal(environment_apply(&o, &room, &e), -EINVAL);
	assert_non_null(strstr(e.text, "grid: 4"));
}

/* What loss is worth, and what it must be, are two measures of one thing: the environment's holds, of either; both of
 * it are refused. */
static void test_worth(void **state)
{
	struct phub_scout_options scout = scout_of();
	struct phub_site_options o = options_of(&scout);
	struct environment room;
	struct err e = {0};

	setenv("PHUB_SCOUT_POLICY", "scout+", 1);
	setenv("PHUB_SCOUT_WORTH", "2.5", 1);
	assert_int_equal(environment_apply(&o, &room, &e), 0);
	assert_true(o.scout->worth == 2.5);
	setenv("PHUB_SCOUT_GAIN", "0.1", 1);
	assert_int_equal(environment_apply(&o, &room, &e), -EINVAL);
	assert_string_equal(
		e.text, "PHUB_SCOUT_GAIN='0.1': PHUB_SCOUT_WORTH is set, and holds instead of it; unset one");
	setenv("PHUB_SCOUT_WORTH", "0", 1);
	assert_int_equal(environment_apply(&o, &room, &e), 0);
	unsetenv("PHUB_SCOUT_WORTH");
	o = options_of(&scout);
	scout.worth = 3; /* the program's */
	assert_int_equal(environment_apply(&o, &room, &e), 0);
	assert_true(o.scout->worth == 0 && o.scout->gain == 0.1);
	setenv("PHUB_SCOUT_WORTH", "-1", 1);
	unsetenv("PHUB_SCOUT_GAIN");
	assert_int_equal(environment_apply(&o, &room, &e), -EINVAL);
	assert_string_equal(e.text, "PHUB_SCOUT_WORTH='-1'; allowed: a number from 0 on");
	unsetenv("PHUB_SCOUT_WORTH");
	setenv("PHUB_SCOUT_EASE", "1.5", 1);
	assert_int_equal(environment_apply(&o, &room, &e), 0);
	assert_true(o.scout->ease == 1.5);
}

/* Who says a scout without a size is refused where options are taken, as without an environment. */
static void test_a_scout_without_a_size(void **state)
{
	struct phub_scout_options scout = scout_of();
	struct phub_site_options o = options_of(&scout);
	struct environment room;
	struct err e = {0};

	scout.size = 0;
	setenv("PHUB_SCOUT_PERIOD", "5", 1);
	assert_int_equal(environment_apply(&o, &room, &e), 0);
	assert_ptr_equal(o.scout, &scout);
}

static void test_what_cannot_be(void **state)
{
	static const struct {
		const char *name, *value, *why;
	} cases[] = {
		{"PHUB_SCOUT_ALGORITHM", "fedavg", "PHUB_SCOUT_ALGORITHM='fedavg'; allowed: bsp, gaia, local, dgc"},
		{"PHUB_SCOUT_POLICY", "climb",
			"PHUB_SCOUT_POLICY='climb'; allowed: fixed, replay, hill, stochastic, annealing"},
		{"PHUB_SCOUT_THETAS", "1,,2",
			"PHUB_SCOUT_THETAS='1,,2'; allowed: up to 64 numbers with commas between"},
		{"PHUB_SCOUT_THETAS", "1,2,", "allowed: up to 64"},
		{"PHUB_SCOUT_THETAS", "1, 2", "allowed: up to 64"},
		{"PHUB_SCOUT_THETAS", "inf", "allowed: up to 64"},
		{"PHUB_SCOUT_THETA", "1,2", "PHUB_SCOUT_THETA='1,2'; allowed: 1 number"},
		{"PHUB_SCOUT_THETA", "x", "allowed: 1 number"},
		{"PHUB_SCOUT_PERIOD", "0", "PHUB_SCOUT_PERIOD='0'; allowed: 1 to 4294967295"},
		{"PHUB_SCOUT_PERIOD", "4294967296", "allowed: 1 to"},
		{"PHUB_SCOUT_SEED", "-1", "PHUB_SCOUT_SEED='-1'; allowed: 0 to"},
		{"PHUB_SCOUT_SEED", "18446744073709551616", "allowed: 0 to"},
		{"PHUB_SCOUT_SIGMA", "nan", "allowed: 1 number"},
		{"PHUB_SCOUT_SIGMA", "1.5", "PHUB_SCOUT_SIGMA='1.5'; allowed: 0 to 1"},
		{"PHUB_SCOUT_GAIN", "0", "PHUB_SCOUT_GAIN='0'; allowed: a number above 0"},
		{"PHUB_SCOUT_EASE", "0", "PHUB_SCOUT_EASE='0'; allowed: a number above 0"},
		{"PHUB_SCOUT_LAMBDA_LOSS", "-1", "PHUB_SCOUT_LAMBDA_LOSS='-1'; allowed: a number from 0 on"},
		{"PHUB_SCOUT_LOST", "go", "PHUB_SCOUT_LOST='go'; allowed: fail, shrink, wait"},
		{"PHUB_SCOUT_REPRODUCIBLE", "yes", "PHUB_SCOUT_REPRODUCIBLE='yes'; allowed: 0 to 1"},
		{"PHUB_SCOUT_TRIM", "0.5", "PHUB_SCOUT_TRIM='0.5'; allowed: a number from 0 to below 0.5"},
		{"PHUB_SCOUT_TRIM", "-0.1", "allowed: a number from 0 to below 0.5"},
		{"PHUB_SCOUT_TRIM", "0,1", "PHUB_SCOUT_TRIM='0,1'; allowed: 1 number"},
	};
	char many[1024] = "1";

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct phub_scout_options scout = scout_of();
		struct phub_site_options o = options_of(&scout);
		struct environment room;
		struct err e = {0};

		clear(NULL);
		setenv(cases[i].name, cases[i].value, 1);
		assert_int_equal(environment_apply(&o, &room, &e), -EINVAL);
		if (!strstr(e.text, cases[i].why))
			fail_msg("%s, not %s", e.text, cases[i].why);
	}
	clear(NULL);
	for (unsigned i = 0; i < 64; i++)
		memcpy(many + strlen(many), ",1", 3);
	setenv("PHUB_SCOUT_THETAS", many, 1);
	{
		struct phub_site_options o = options_of(NULL);
		struct environment room;
		struct err e = {0};

		assert_int_equal(environment_apply(&o, &room, &e), -EINVAL);
	}
}

/* A class of links has variables of its own, and hears of no others. */
static void test_links(void **state)
{
	struct phub_site_options o = options_of(NULL);
	struct environment room;
	struct err e = {0};
	double theta;

	setenv("PHUB_SCOUT_THETA", "3", 1);
	setenv("PHUB_SCOUT_RACK2_THETA", "5", 1);
	o.link = "rack2";
	assert_int_equal(environment_apply(&o, &room, &e), 0);
	assert_true(o.theta == 5);
	o.link = "across";
	o.theta = 7;
	assert_int_equal(environment_apply(&o, &room, &e), 0);
	assert_true(o.theta == 7);
	o.link = NULL;
	assert_int_equal(environment_apply(&o, &room, &e), 0);
	assert_true(o.theta == 3);
	setenv("PHUB_SCOUT_RACK2_THETA", "x", 1);
	o.link = "rack2";
	assert_int_equal(environment_apply(&o, &room, &e), -EINVAL);
	assert_non_null(strstr(e.text, "PHUB_SCOUT_RACK2_THETA='x'"));
	setenv("PHUB_SCOUT_RACK2_SHADOW", "9", 1);
	setenv("PHUB_SCOUT_RACK2_LOG", "here.jsonl", 1);
	assert_int_equal(environment_shadow("rack2", &theta, &e), 1);
	assert_true(theta == 9);
	assert_string_equal(environment_log("rack2"), "here.jsonl");
	assert_null(environment_log("rack"));
	unsetenv("PHUB_SCOUT_RACK2_THETA");
	unsetenv("PHUB_SCOUT_RACK2_SHADOW");
	unsetenv("PHUB_SCOUT_RACK2_LOG");
}

static void test_prices(void **state)
{
	struct phub_scout_options scout = scout_of();
	struct phub_site_options o = options_of(&scout);
	struct environment room;
	struct err e = {0};

	setenv("PHUB_SCOUT_UNIT", "seconds", 1);
	setenv("PHUB_SCOUT_RATE", "1e8", 1);
	setenv("PHUB_SCOUT_LATENCY_WITHIN", "0.5", 1);
	assert_int_equal(environment_apply(&o, &room, &e), 0);
	assert_int_equal(o.scout->unit, PHUB_SCOUT_SECONDS);
	assert_true(o.scout->rate == 1e8 && o.scout->latency_within == 0.5 && o.scout->price == 0);
	setenv("PHUB_SCOUT_UNIT", "hours", 1);
	o = options_of(&scout);
	assert_int_equal(environment_apply(&o, &room, &e), -EINVAL);
	assert_non_null(strstr(e.text, "PHUB_SCOUT_UNIT='hours'; allowed: bytes, seconds, money"));
	setenv("PHUB_SCOUT_UNIT", "", 1);
	setenv("PHUB_SCOUT_RATE", "nan", 1);
	assert_int_equal(environment_apply(&o, &room, &e), -EINVAL);
	assert_non_null(strstr(e.text, "PHUB_SCOUT_RATE='nan'"));
	unsetenv("PHUB_SCOUT_UNIT");
	unsetenv("PHUB_SCOUT_RATE");
	unsetenv("PHUB_SCOUT_LATENCY_WITHIN");
}

static void test_shadows(void **state)
{
	double thetas[64];
	struct err e = {0};

	unsetenv("PHUB_SCOUT_SHADOW");
	assert_int_equal(environment_shadow(NULL, thetas, &e), 0);
	setenv("PHUB_SCOUT_SHADOW", "0.5,20", 1);
	assert_int_equal(environment_shadow(NULL, thetas, &e), 2);
	assert_true(thetas[0] == 0.5 && thetas[1] == 20);
	setenv("PHUB_SCOUT_SHADOW", "a", 1);
	assert_int_equal(environment_shadow(NULL, thetas, &e), -EINVAL);
	unsetenv("PHUB_SCOUT_SHADOW");
}

TEST_PROGRAM(test_environment)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_nothing_changes_nothing, clear, clear),
		cmocka_unit_test_setup_teardown(test_links, clear, clear),
		cmocka_unit_test_setup_teardown(test_prices, clear, clear),
		cmocka_unit_test_setup_teardown(test_all_of_it, clear, clear),
		cmocka_unit_test_setup_teardown(test_beside_the_programs_own, clear, clear),
		cmocka_unit_test_setup_teardown(test_algorithm_and_theta_alone, clear, clear),
		cmocka_unit_test_setup_teardown(test_a_replay_has_a_schedule, clear, clear),
		cmocka_unit_test_setup_teardown(test_a_scout_without_a_size, clear, clear),
		cmocka_unit_test_setup_teardown(test_what_a_policy_does_not_look_at, clear, clear),
		cmocka_unit_test_setup_teardown(test_worth, clear, clear),
		cmocka_unit_test_setup_teardown(test_a_theta_that_is_none, clear, clear),
		cmocka_unit_test_setup_teardown(test_what_cannot_be, clear, clear),
		cmocka_unit_test(test_shadows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
