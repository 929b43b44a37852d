/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of the decision log: whole JSON, exact numbers, whatever the text, the locale and the room. */
#include "client/scout/record.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <float.h>
#include <jansson.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 8192 };

static struct scout_config config_of(enum scout_policy policy)
{
	struct scout_config c;

	scout_defaults(&c);
	c.policy = policy;
	c.thetas[0] = 0.1;
	c.thetas[1] = 1.0 / 3;
	c.theta_count = 2;
	c.first = 1;
	c.schedule[0] = 0.3;
	c.schedule_count = 1;
	c.model_bytes = 30760;
	c.seed = 7;
	return c;
}

/* The line is one, and JSON. */
static json_t *parsed(const char *line, size_t length)
{
	json_error_t e;
	json_t *j;

	assert_int_equal(strlen(line), length);
	assert_ptr_equal(strchr(line, '\n'), line + length - 1);
	j = json_loads(line, JSON_REJECT_DUPLICATES, &e);
	if (!j)
		fail_msg("%s: %s", e.text, line);
	return j;
}

static const char *text_of(const json_t *j, const char *name)
{
	return json_string_value(json_object_get(j, name));
}

static double number_of(const json_t *j, const char *name)
{
	assert_true(json_is_number(json_object_get(j, name)));
	return json_number_value(json_object_get(j, name));
}

static void test_a_run_has_what_its_decisions_hang_on(void **state)
{
	const char *const tensors[] = {"conv1.weight", "fc.bias"};
	const double shadow[] = {0.1, 1.0 / 3};
	struct scout_config c = config_of(SCOUT_HILL);
	struct record_run run = {.algorithm = SITE_GAIA,
		.scout = &c,
		.bsp_bytes = 30000,
		.sites = 5,
		.rank = 2,
		.job = "a \"job\"\n",
		.transport = "shm",
		.tensors = tensors,
		.tensor_count = 2,
		.shadow = shadow,
		.shadow_count = 2};
	char line[ROOM] = "";
	json_t *j = parsed(line, record_run(&run, line, sizeof(line)));

	assert_true(number_of(j, "model_bytes") == 30760 && number_of(j, "bsp_bytes") == 30000);
	assert_string_equal(text_of(j, "scout"), "run");
	assert_int_equal(number_of(j, "version"), RECORD_VERSION);
	assert_string_equal(text_of(j, "algorithm"), "gaia");
	assert_string_equal(text_of(j, "policy"), "hill");
	assert_string_equal(text_of(j, "job"), "a \"job\"\n");
	assert_string_equal(text_of(j, "transport"), "shm");
	assert_true(json_number_value(json_array_get(json_object_get(j, "thetas"), 1)) == 1.0 / 3);
	assert_true(number_of(j, "first") == 1.0 / 3);
	assert_null(json_object_get(j, "schedule"));
	assert_string_equal(json_string_value(json_array_get(json_object_get(j, "tensors"), 1)), "fc.bias");
	assert_int_equal(json_array_size(json_object_get(j, "shadow")), 2);
	assert_true(number_of(j, "sigma") == 0.05);
	assert_int_equal(number_of(j, "seed"), 7);
	json_decref(j);
	assert_null(json_object_get(j, "ease"));
	c.seed = UINT64_MAX;
	run = (struct record_run){.scout = &c, .sites = 1};
	j = parsed(line, record_run(&run, line, sizeof(line)));
	assert_string_equal(text_of(j, "seed"), "18446744073709551615");
	assert_null(json_object_get(j, "job"));
	assert_null(json_object_get(j, "transport"));
	assert_null(json_object_get(j, "tensors"));
	assert_null(json_object_get(j, "shadow"));
	json_decref(j);
	c = config_of(SCOUT_PLUS);
	c.plus.ease = 1.5;
	c.plus.passes = 41;
	c.plus.bound = 0.25;
	run = (struct record_run){.scout = &c, .sites = 1};
	j = parsed(line, record_run(&run, line, sizeof(line)));
	assert_true(number_of(j, "ease") == 1.5 && number_of(j, "passes") == 41 && number_of(j, "drift") == 0.25);
	assert_true(number_of(j, "guard") == 0.5 && number_of(j, "probes") == 0.02);
	json_decref(j);
}

static void test_a_replay_says_its_schedule(void **state)
{
	struct scout_config c = config_of(SCOUT_REPLAY);
	struct record_run run = {.scout = &c, .sites = 2};
	char line[ROOM] = "";
	json_t *j = parsed(line, record_run(&run, line, sizeof(line)));

	assert_true(number_of(j, "first") == 0.3);
	assert_int_equal(json_array_size(json_object_get(j, "schedule")), 1);
	json_decref(j);
}

static void test_what_a_decision_does_not_know_is_null_or_absent(void **state)
{
	struct record_decision d;
	char line[ROOM] = "";
	json_t *j;

	record_decision_init(&d);
	d.decision.loss = d.decision.cost = NAN;
	d.decision.gain = 0.1;
	j = parsed(line, record_decision(&d, line, sizeof(line)));
	assert_true(json_is_null(json_object_get(j, "AL")));
	assert_true(json_is_null(json_object_get(j, "interval"))); /* the other half is not known */
	assert_true(json_is_null(json_object_get(j, "cost")));
	assert_true(json_is_null(json_object_get(j, "bytes_bsp")));
	assert_true(json_is_null(json_object_get(j, "train_loss")));
	assert_true(json_is_null(json_object_get(j, "r_all")));
	assert_null(json_object_get(j, "r"));
	assert_null(json_object_get(j, "pull"));
	assert_null(json_object_get(j, "extra"));
	assert_null(json_object_get(j, "score"));
	assert_null(json_object_get(j, "shadow"));
	json_decref(j);
}

static void assert_interval(const json_t *j, double low, double high)
{
	const json_t *interval = json_object_get(j, "interval");

	assert_int_equal(json_array_size(interval), 2);
	assert_true(json_number_value(json_array_get(interval, 0)) == low);
	assert_true(json_number_value(json_array_get(interval, 1)) == high);
}

/* Of scout+ the interval is that of what talking more would save. */
static void test_a_gain_has_the_interval(void **state)
{
	struct record_decision d;
	char line[ROOM] = "";
	json_t *j;

	record_decision_init(&d);
	d.decision.loss = 0.5;
	d.decision.gain = 0.25;
	d.decision.radius = 0.125;
	d.decision.pull = 7;
	d.decision.extra = 3.5;
	j = parsed(line, record_decision(&d, line, sizeof(line)));
	assert_interval(j, 0.125, 0.375);
	assert_true(number_of(j, "gain") == 0.25 && number_of(j, "pull") == 7 && number_of(j, "extra") == 3.5);
	json_decref(j);
}

static void test_a_decision_says_all_that_it_knows(void **state)
{
	const double r[] = {0.31, NAN};
	const struct record_shadow shadow[] = {{1, 1000}, {20, 50.5}};
	struct record_decision d;
	char line[ROOM] = "";
	json_t *j;

	record_decision_init(&d);
	d.t = 1000;
	d.theta = 20;
	d.decision = (struct scout_decision){.window = 1,
		.theta = 10,
		.action = SCOUT_FALLS_BACK,
		.believed = 4,
		.loss = 0.031,
		.cost = 1.25,
		.radius = 0.041,
		.r = 0.3,
		.pull = NAN,
		.gain = NAN,
		.extra = NAN,
		.reason = "because"};
	d.samples = 2000;
	d.sites = 5;
	d.r = r;
	d.tensor_count = 2;
	d.bytes = 123456;
	d.bytes_travel = 30760;
	d.bytes_total = 300000;
	d.bytes_bsp = 3e7;
	d.train_loss = 0.51;
	d.score_loss = 0.41;
	d.shadow = shadow;
	d.shadow_count = 2;
	j = parsed(line, record_decision(&d, line, sizeof(line)));
	assert_int_equal(number_of(j, "t"), 1000);
	assert_int_equal(number_of(j, "theta"), 20);
	assert_int_equal(number_of(j, "next"), 10);
	assert_int_equal(number_of(j, "n"), 2000);
	assert_int_equal(number_of(j, "believed"), 4);
	assert_true(number_of(j, "AL") == 0.031);
	assert_interval(j, 0.031 - 0.041, 0.031 + 0.041);
	assert_true(number_of(j, "r_all") == 0.3);
	assert_null(json_object_get(j, "gain"));
	assert_true(json_is_null(json_array_get(json_object_get(j, "r"), 1)));
	assert_true(number_of(j, "bytes_bsp") == 3e7);
	assert_string_equal(text_of(j, "action"), "falls back");
	assert_string_equal(text_of(j, "reason"), "because");
	assert_true(json_is_null(json_object_get(json_object_get(j, "score"), "accuracy")));
	assert_true(number_of(json_object_get(j, "score"), "loss") == 0.41);
	assert_true(number_of(json_array_get(json_object_get(j, "shadow"), 1), "bytes") == 50.5);
	json_decref(j);
}

static void test_the_end(void **state)
{
	struct record_end end = {.t = 1500,
		.bytes = 1e6,
		.bytes_travel = 0,
		.bytes_wire = NAN,
		.theta = 10,
		.accuracy = 0.861,
		.loss = INFINITY,
		.seconds = NAN,
		.rank = 1,
		.broken_since = 0};
	char line[ROOM] = "";
	json_t *j = parsed(line, record_end(&end, line, sizeof(line)));

	assert_string_equal(text_of(j, "scout"), "end");
	assert_true(number_of(j, "accuracy") == 0.861);
	assert_true(json_is_null(json_object_get(j, "loss")));
	assert_true(json_is_null(json_object_get(j, "bytes_wire")));
	assert_null(json_object_get(j, "broken_since"));
	assert_null(json_object_get(j, "sites"));
	assert_true(number_of(j, "rank") == 1);
	json_decref(j);
	end.sites = 2;
	end.broken_since = 36;
	j = parsed(line, record_end(&end, line, sizeof(line)));
	assert_true(number_of(j, "broken_since") == 36 && number_of(j, "sites") == 2);
	json_decref(j);
}

static void test_a_warning(void **state)
{
	char line[ROOM] = "";
	json_t *j = parsed(line, record_warning(40, 2, "a \"w\"", true, "rank 1", line, sizeof(line)));

	assert_string_equal(text_of(j, "scout"), "warning");
	assert_string_equal(text_of(j, "tensor"), "a \"w\"");
	assert_string_equal(text_of(j, "text"), "rank 1");
	assert_true(number_of(j, "t") == 40 && number_of(j, "rank") == 1);
	assert_true(json_is_true(json_object_get(j, "all")));
	json_decref(j);
	j = parsed(line, record_warning(40, 0, NULL, false, "?", line, sizeof(line)));
	assert_null(json_object_get(j, "rank"));
	assert_null(json_object_get(j, "all"));
	assert_null(json_object_get(j, "tensor"));
	json_decref(j);
	assert_int_equal(record_warning(1, 0, NULL, false, "?", NULL, 0),
		strlen("{\"scout\":\"warning\",\"t\":1,\"text\":\"?\"}\n"));
}

static void test_a_site(void **state)
{
	struct record_site site = {.t = 61, .rank = 1, .action = "lost", .sites = 2, .reason = "it was \"silent\""};
	char line[ROOM] = "";
	json_t *j = parsed(line, record_site(&site, line, sizeof(line)));

	assert_string_equal(text_of(j, "scout"), "site");
	assert_string_equal(text_of(j, "action"), "lost");
	assert_string_equal(text_of(j, "reason"), "it was \"silent\"");
	assert_true(number_of(j, "t") == 61 && number_of(j, "rank") == 1 && number_of(j, "sites") == 2);
	assert_null(json_object_get(j, "since"));
	json_decref(j);
	assert_true(record_site(&site, NULL, 0) == strlen(line));
	site = (struct record_site){.t = 61, .rank = 1, .action = "writes", .sites = 2, .since = 60, .reason = "?"};
	j = parsed(line, record_site(&site, line, sizeof(line)));
	assert_true(number_of(j, "since") == 60);
	json_decref(j);
}

static void assert_exact(double value)
{
	char text[RECORD_NUMBER_BYTES], wrapped[RECORD_NUMBER_BYTES + 2];
	json_t *j;
	double back;

	record_number(value, text);
	assert_true(strlen(text) < RECORD_NUMBER_BYTES - 1);
	snprintf(wrapped, sizeof(wrapped), "[%s]", text);
	j = json_loads(wrapped, 0, NULL);
	assert_non_null(j);
	back = json_number_value(json_array_get(j, 0));
	if (memcmp(&back, &value, sizeof(back)) != 0)
		fail_msg("%a became %s, which is %a", value, text, back);
	json_decref(j);
}

static void assert_numbers_are_exact(void)
{
	const double values[] = {0, -0.0, 1, -1, 0.1, 1.0 / 3, 1e15, 123456789012345678.0, 1e19, -1e300, DBL_MAX,
		DBL_MIN, DBL_TRUE_MIN, 0.05, 2.5e-7};
	uint64_t z = 1;

	for (unsigned i = 0; i < sizeof(values) / sizeof(values[0]); i++)
		assert_exact(values[i]);
	for (unsigned i = 0; i < 20000; i++) {
		double value;

		z = z * 6364136223846793005u + 1442695040888963407u;
		memcpy(&value, &z, sizeof(value));
		if (isfinite(value) && fabs(value) < 1e300)
			assert_exact(value);
	}
}

static void test_numbers_are_exact(void **state)
{
	char text[RECORD_NUMBER_BYTES];

	assert_numbers_are_exact();
	record_number(0.1, text);
	assert_string_equal(text, "0.1");
	record_number(-INFINITY, text);
	assert_string_equal(text, "null");
}

static void test_numbers_do_not_know_the_locale(void **state)
{
	static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "ps_AF.UTF-8"};
	char text[RECORD_NUMBER_BYTES];
	unsigned i = 0;

	while (i < sizeof(names) / sizeof(names[0]) && !setlocale(LC_NUMERIC, names[i]))
		i++;
	if (i == sizeof(names) / sizeof(names[0])) {
		skip_because("no locale here has a decimal comma: install a locale such as de_DE.UTF-8");
	}
	record_number(-1.5e-9, text);
	setlocale(LC_NUMERIC, "C");
	assert_string_equal(text, "-1.5e-09");
}

static void assert_text(const char *given, const char *wanted)
{
	struct record_decision d;
	char line[ROOM] = "";
	json_t *j;

	record_decision_init(&d);
	snprintf(d.decision.reason, sizeof(d.decision.reason), "%s", given);
	j = parsed(line, record_decision(&d, line, sizeof(line)));
	assert_string_equal(text_of(j, "reason"), wanted);
	json_decref(j);
}

static void test_any_text_makes_a_line(void **state)
{
	assert_text("plain", "plain");
	assert_text("\"\\\t\n\x01\x7f/", "\"\\\t\n\x01\x7f/");
	assert_text("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
	/* Alone, cut, too long for what they are, surrogates, beyond the last. */
	assert_text("a\x80z", "a\xef\xbf\xbdz");
	assert_text("\xe2\x82", "\xef\xbf\xbd\xef\xbf\xbd");
	assert_text("\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd");
	assert_text("\xe0\x80\xaf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
	assert_text("\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
	assert_text("\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
	assert_text("\xff", "\xef\xbf\xbd");
}

/* Whatever the room, nothing beyond it is written, and the length is that of the whole line. */
static void test_a_line_keeps_to_its_room(void **state)
{
	struct scout_config c = config_of(SCOUT_HILL);
	struct record_run run = {.algorithm = SITE_DGC, .scout = &c, .sites = 3};
	char whole[ROOM] = "", cut[ROOM];
	size_t length = record_run(&run, whole, sizeof(whole));

	assert_int_equal(record_run(&run, NULL, 0), length);
	for (size_t room = 1; room <= length + 1; room++) {
		memset(cut, 'x', sizeof(cut));
		assert_int_equal(record_run(&run, cut, room), length);
		assert_int_equal(strlen(cut), room - 1 < length ? room - 1 : length);
		assert_memory_equal(cut, whole, room - 1);
		assert_int_equal(cut[room], 'x');
	}
}

TEST_PROGRAM(test_record)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_run_has_what_its_decisions_hang_on),
		cmocka_unit_test(test_a_replay_says_its_schedule),
		cmocka_unit_test(test_what_a_decision_does_not_know_is_null_or_absent),
		cmocka_unit_test(test_a_gain_has_the_interval),
		cmocka_unit_test(test_a_decision_says_all_that_it_knows),
		cmocka_unit_test(test_the_end),
		cmocka_unit_test(test_a_warning),
		cmocka_unit_test(test_a_site),
		cmocka_unit_test(test_numbers_are_exact),
		cmocka_unit_test(test_numbers_do_not_know_the_locale),
		cmocka_unit_test(test_any_text_makes_a_line),
		cmocka_unit_test(test_a_line_keeps_to_its_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
