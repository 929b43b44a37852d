/* SPDX-License-Identifier: Apache-2.0 */
/* Whom a scout believes: one bad site costs one pair, few samples a wide interval, and who is amiss is named. */
#include "client/scout/trust.h"

#include "client/scout/finite.h"
#include "tests/unit/cmocka_shim.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SITES = 5, ROOM = 240 };

/* Each model loses `loss` at the next site. */
static void tell(struct scout_report *reports, unsigned sites, double loss)
{
	for (unsigned i = 0; i < sites; i++)
		reports[i] = (struct scout_report){
			.home = 0.9, .away = 0.9 - loss - 0.001 * i, .samples = 400, .host = (i + 1) % sites + 1};
}

static struct trust weigh(const struct scout_report *reports, unsigned sites)
{
	struct trust trust;

	trust_weigh(reports, sites, 0, &trust);
	return trust;
}

/* The site cannot try models: neither its own nor its guest's. */
static void mute(struct scout_report *reports, unsigned sites, unsigned site)
{
	reports[site].home = NAN;
	reports[(site + sites - 1) % sites].samples = 0;
	reports[(site + sites - 1) % sites].away = 0;
}

/* Of models that are one, with as many right on the same samples, nothing is left to chance: pairs by model, whose
 * samples differ, are theirs by data, where all are known. */
static void test_models_that_are_one(void **state)
{
	struct scout_report reports[SITES];
	double usual;

	for (unsigned i = 0; i < SITES; i++)
		reports[i] = (struct scout_report){.home = 0.9 - 0.1 * i,
			.away = 0.9 - 0.1 * ((i + 1) % SITES),
			.samples = 400,
			.host = (i + 1) % SITES + 1};
	usual = weigh(reports, SITES).radius;
	assert_true(usual > 0.01);
	for (unsigned i = 0; i < SITES; i++) {
		reports[i].alike = true;
		assert_true(weigh(reports, SITES).radius < usual);
		usual = weigh(reports, SITES).radius;
	}
	assert_true(usual == 0 && !weigh(reports, SITES).by_data && fabs(weigh(reports, SITES).loss) < 1e-15);
	reports[1].away += 0.01; /* evaluate() leaves something to chance */
	assert_true(weigh(reports, SITES).radius > 0);
	reports[1].away -= 0.01;
	reports[2].home = NAN; /* whose guest has no pair: the others' are by model, of which one has none by data */
	assert_true(weigh(reports, SITES).radius > 0 && weigh(reports, SITES).believed == SITES - 1);
	mute(reports, SITES, 2);
	assert_true(weigh(reports, SITES).by_data && weigh(reports, SITES).radius == 0);
}

static void test_pairs(void **state)
{
	struct scout_report reports[SITES];
	struct trust trust;
	double plain = 0;

	tell(reports, SITES, 0.1);
	for (unsigned i = 0; i < SITES; i++)
		plain += reports[i].home - reports[i].away;
	trust = weigh(reports, SITES);
	assert_true(trust.loss == plain / SITES && !trust.by_data && trust.believed == SITES && trust.asked == SITES);
	for (unsigned i = 0; i < SITES; i++) {
		tell(reports, SITES, 0.1);
		mute(reports, SITES, i);
		trust = weigh(reports, SITES);
		assert_true(trust.by_data && trust.believed == SITES - 1);
		assert_float_equal(trust.loss, 0.102, 0.0006);
		reports[i].home = 1.5; /* it lies instead */
		assert_true(weigh(reports, SITES).believed == SITES - 1);
		for (unsigned k = 0; k < SITES; k++)
			reports[k].host = 0;
		trust = weigh(reports, SITES);
		assert_true(!trust.by_data && trust.believed == SITES - 2);
	}
}

/* Fewer than half of those with data say nothing. */
static void test_half(void **state)
{
	struct scout_report reports[SITES];
	struct trust trust;

	tell(reports, 2, 0.1);
	mute(reports, 2, 0);
	trust = weigh(reports, 2);
	assert_true(trust.believed == 1 && trust.loss > 0.09);
	tell(reports, SITES, 0.1);
	mute(reports, SITES, 0);
	mute(reports, SITES, 2);
	trust = weigh(reports, SITES);
	assert_true(trust.believed == 3 && trust.loss > 0.09);
	mute(reports, SITES, 4);
	trust = weigh(reports, SITES);
	assert_true(trust.believed == 2 && isnan(trust.loss) && isinf(trust.radius));
	tell(reports, 4, 0.1);
	mute(reports, 4, 1);
	mute(reports, 4, 3);
	reports[4] = (struct scout_report){.unfit = SCOUT_IDLE}; /* has no data: two of four are half */
	trust = weigh(reports, SITES);
	assert_true(trust.asked == 4 && trust.believed == 2 && trust.loss > 0.09);
	for (unsigned i = 0; i < SITES; i++)
		reports[i].unfit = SCOUT_IDLE;
	trust = weigh(reports, SITES);
	assert_true(trust.asked == 0 && trust.believed == 0 && isnan(trust.loss) && !trust.blank);
}

/* Models that are not to be judged are not, at home or away; sites that say nothing are none that have nothing right.
 */
static void test_unfit(void **state)
{
	const unsigned unfit[] = {SCOUT_STRANGE, SCOUT_BROKEN, SCOUT_IDLE, 77};
	struct scout_report reports[SITES];

	for (unsigned i = 0; i < 4; i++) {
		tell(reports, SITES, 0.1);
		reports[2].unfit = unfit[i];
		assert_int_equal(weigh(reports, SITES).believed, SITES - 1);
	}
	tell(reports, SITES, 0.1);
	mute(reports, SITES, 1);
	reports[3].home = reports[3].away = 0; /* all of it is silent; and at home it has no 0 */
	reports[3].samples = 0;
	assert_int_equal(weigh(reports, SITES).believed, 2);
	reports[3].home = 0.5; /* that says something of its guest */
	assert_int_equal(weigh(reports, SITES).believed, 3);
	for (unsigned i = 0; i < SITES; i++)
		reports[i].host = SITES + 7; /* there is no such site */
	assert_int_equal(weigh(reports, SITES).believed, 2);
}

/* Losses without `correct` are no accuracies of 0. */
static void test_blank(void **state)
{
	struct scout_report reports[SITES] = {{0}};
	struct trust trust;

	assert_true(!weigh(reports, SITES).blank);
	for (unsigned i = 0; i < SITES; i++)
		reports[i].samples = 400;
	trust = weigh(reports, SITES);
	assert_true(trust.blank && isnan(trust.loss) && trust.believed == SITES);
	reports[3].away = 0.0025; /* one sample */
	trust = weigh(reports, SITES);
	assert_true(!trust.blank && trust.loss < 0);
}

/* Of few samples a pair counts like others, and its noise is in the interval; one class is a pair like others. */
static void test_few_samples(void **state)
{
	struct scout_report reports[SITES];
	double wide, narrow;

	tell(reports, SITES, 0.1);
	narrow = weigh(reports, SITES).radius;
	reports[1].samples = 3;
	reports[1].away = 0;
	wide = weigh(reports, SITES).radius;
	assert_true(narrow < 0.025 && wide > 0.08 && wide < 0.2);
	assert_float_equal(weigh(reports, SITES).loss, (4 * 0.102 + 0.9) / 5, 0.001);
	tell(reports, SITES, 0.1);
	reports[1].away = 0; /* its one class is none of its host's */
	reports[1].home = 1;
	assert_true(weigh(reports, SITES).believed == SITES);
}

static const char *amiss(const struct scout_report *reports, unsigned sites, bool travels)
{
	static char text[ROOM];

	snprintf(text, sizeof(text), "why");
	trust_tell(reports, sites, travels, text, sizeof(text));
	return text;
}

static const char *untried(const struct scout_report *reports, unsigned sites)
{
	static char text[ROOM];

	snprintf(text, sizeof(text), "why");
	trust_tell_untried(reports, sites, text, sizeof(text));
	return text;
}

static void test_amiss(void **state)
{
	struct scout_report reports[SITES];

	tell(reports, SITES, 0.1);
	assert_string_equal(amiss(reports, SITES, true), "why");
	reports[3].unfit = SCOUT_BROKEN;
	reports[3].called = 8;
	assert_string_equal(
		amiss(reports, SITES, false), "why; site 7 has weights, gradients or losses that are no numbers");
	reports[1].unfit = SCOUT_BROKEN;
	assert_string_equal(amiss(reports, SITES, true),
		"why; site 1 has weights, gradients or losses that are no numbers, and so have 1 more");
	tell(reports, SITES, 0.1);
	reports[2].away = 1.5; /* its host says */
	assert_string_equal(amiss(reports, SITES, true), "why; site 3 says an accuracy of 1.5");
	assert_string_equal(amiss(reports, SITES, false), "why");
	reports[2].host = 0;
	assert_string_equal(amiss(reports, SITES, true), "why; site 2 says an accuracy of 1.5");
	tell(reports, SITES, 0.1);
	reports[0].home = -INFINITY;
	assert_string_equal(amiss(reports, SITES, true), "why; site 0 says an accuracy of -inf");
	mute(reports, SITES, 0);
	assert_string_equal(amiss(reports, SITES, true), "why; of what models get right at site 0 nothing is known");
	reports[0].unfit = SCOUT_IDLE;
	assert_string_equal(amiss(reports, SITES, true), "why");
	reports[0].unfit = SCOUT_UNHEARD; /* which is said, whatever travels, and not what follows from it */
	assert_string_equal(amiss(reports, SITES, true), "why; site 0 has not reported");
	reports[2].unfit = SCOUT_UNHEARD;
	assert_string_equal(amiss(reports, SITES, false), "why; site 0 has not reported, nor have 1 more");
}

/* One that says 1 at home and 0 away is named, and not its guest. */
static void test_stands_out(void **state)
{
	struct scout_report reports[SITES];

	for (unsigned liar = 0; liar < SITES; liar++) {
		char name[32];

		snprintf(name, sizeof(name), "why; site %u stands out", liar);
		tell(reports, SITES, 0.1);
		reports[liar].home = 1;
		reports[(liar + SITES - 1) % SITES].away = 0;
		assert_non_null(strstr(amiss(reports, SITES, true), name));
		assert_non_null(
			strstr(amiss(reports, SITES, true), ": models there lose 1.00, and the sites' median is 0.10"));
		reports[(liar + SITES - 1) % SITES].samples = 3; /* so few may well be wrong by chance */
		assert_string_equal(amiss(reports, SITES, true), "why");
		for (unsigned i = 0; i < SITES; i++)
			reports[i] = (struct scout_report){.home = 0.9, .away = i == liar ? 0 : 0.8, .samples = 400};
		assert_non_null(strstr(amiss(reports, SITES, true), name)); /* hosts are not known: its model */
	}
	assert_non_null(strstr(amiss(reports, SITES, true), ": its model loses 0.90, and"));
	tell(reports, SITES, 0.1);
	reports[1].home = 0.75; /* -.05 where others lose .1 */
	assert_string_equal(amiss(reports, SITES, true), "why");
	for (unsigned i = 0; i < SITES; i++)
		reports[i].away = 0.2 * i; /* all differ */
	assert_string_equal(amiss(reports, SITES, true), "why");
	tell(reports, 3, 0.1);
	reports[0].away = 0;
	assert_string_equal(amiss(reports, 3, true), "why"); /* who of three is right? */
}

/* scout+: what the mean model loses at each site, as it was tried there. */
static void test_trials(void **state)
{
	struct scout_report reports[SITES];
	const double bad[] = {NAN, INFINITY};

	for (unsigned i = 0; i < SITES; i++)
		reports[i] =
			(struct scout_report){.trained = 1000, .train = 0.3, .tried = 200, .after = 0.3 + 0.05 * i};
	assert_string_equal(amiss(reports, SITES, false), "why");
	assert_string_equal(amiss(reports, SITES, true), "why");
	for (unsigned k = 0; k < 2; k++) {
		reports[1].after = bad[k];
		assert_string_equal(
			amiss(reports, SITES, false), "why; of the mean model's loss at site 1 nothing is known");
	}
	reports[1] = (struct scout_report){.trained = 1000, .train = 0.3, .after = NAN, .called = 8};
	assert_string_equal(amiss(reports, SITES, false), "why; of the mean model's loss at site 7 nothing is known");
	reports[3].tried = 0;
	assert_string_equal(amiss(reports, SITES, false),
		"why; of the mean model's loss at site 7 nothing is known, nor of 1 more");
	reports[1].unfit = SCOUT_STRANGE; /* it came in this window */
	reports[3].unfit = SCOUT_IDLE;
	assert_string_equal(amiss(reports, SITES, false), "why");
	for (unsigned i = 0; i < SITES; i++)
		reports[i] = (struct scout_report){.tried = 0, .after = NAN}; /* there was no time for that */
	assert_string_equal(amiss(reports, SITES, false), "why");
	assert_string_equal(untried(reports, SITES), "why; what the mean model loses is known at no site");
	reports[2] = (struct scout_report){.tried = 200, .after = 0.3};
	assert_string_equal(untried(reports, SITES), "why");
	for (unsigned i = 0; i < SITES; i++)
		reports[i] = (struct scout_report){.unfit = SCOUT_IDLE};
	assert_string_equal(untried(reports, SITES), "why");
	for (unsigned i = 0; i < SITES; i++)
		reports[i] = (struct scout_report){.tried = 200, .after = i == 2 ? 400 : 0.3 + 0.05 * i};
	assert_string_equal(amiss(reports, SITES, false),
		"why; site 2 stands out: the mean model's loss is 400 there, and the sites' median 0.45");
	for (unsigned i = 0; i < SITES; i++)
		reports[i].after = 0.3 * i; /* all differ */
	assert_string_equal(amiss(reports, SITES, false), "why");
	assert_string_equal(amiss(reports, 3, false), "why");
}

/* One liar of five is one pair at either end, whatever it says. */
static void test_trim(void **state)
{
	double values[] = {5, 1, 100, 2, 3, -70};
	struct scout_report reports[SITES];
	struct trust trust;

	assert_true(trust_mean(values, 6, 0.2) == 11.0 / 4 && trust_mean(values, 6, 0.16) == 41.0 / 6);
	assert_true(trust_mean(values, 6, 0.49) == 2.5 && trust_mean(values, 1, 0.49) == -70);
	for (unsigned liar = 0; liar < SITES; liar++)
		for (unsigned i = 0; i < 2; i++) {
			tell(reports, SITES, 0.1);
			reports[liar].home = i;
			reports[(liar + SITES - 1) % SITES].away = 1 - i;
			trust_weigh(reports, SITES, 0, &trust);
			assert_true(fabs(trust.loss - 0.102) > 0.1);
			trust_weigh(reports, SITES, 0.2, &trust);
			assert_true(trust.by_data && fabs(trust.loss - 0.102) < 0.002 && trust.believed == SITES);
		}
}

/* What does not fit into a text is left away. */
static void test_room(void **state)
{
	struct scout_report reports[SITES];
	char text[ROOM];

	tell(reports, SITES, 0.1);
	reports[1].unfit = SCOUT_BROKEN;
	for (size_t room = 5; room <= 80; room++) {
		memset(text, '#', sizeof(text));
		snprintf(text, sizeof(text), "why");
		trust_tell(reports, SITES, true, text, room);
		assert_true(strlen(text) < room && text[room] == '#');
		assert_true(strlen(text) == 3 ||
			    strlen(text) == strlen("why; site 1 has weights, gradients or losses that are no numbers"));
	}
	assert_true(strlen(text) > 3);
}

static void test_finite(void **state)
{
	const float bad[] = {NAN, -NAN, INFINITY, -INFINITY}, good[] = {0, -0.0f, 3e38f, -3e38f, 1e-45f};
	float values[70] = {0};

	assert_true(finite_all(NULL, 0));
	for (unsigned at = 0; at < 70; at++) {
		for (unsigned i = 0; i < 5; i++) {
			values[at] = good[i];
			assert_true(finite_all(values, 70));
		}
		for (unsigned i = 0; i < 4; i++) {
			values[at] = bad[i];
			assert_false(finite_all(values, 70));
			assert_true(finite_all(values, at));
		}
		values[at] = 0;
	}
}

TEST_PROGRAM(test_trust)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pairs),
		cmocka_unit_test(test_models_that_are_one),
		cmocka_unit_test(test_models_that_are_one),
		cmocka_unit_test(test_half),
		cmocka_unit_test(test_unfit),
		cmocka_unit_test(test_blank),
		cmocka_unit_test(test_few_samples),
		cmocka_unit_test(test_amiss),
		cmocka_unit_test(test_stands_out),
		cmocka_unit_test(test_trials),
		cmocka_unit_test(test_trim),
		cmocka_unit_test(test_room),
		cmocka_unit_test(test_finite),
	};

	return cmocka_run_group_tests_name("trust", tests, NULL, NULL);
}
