/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scout+'s guard, where the mean model loses a little more than sites' own at each trial: evidence that adds up, the
 * sooner the more sites there are; how often it is wrong; what becomes of theta meanwhile, and how many samples it asks
 * for.
 */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "client/scout/plus.h"
#include "tests/unit/chance.h"
#include "tests/unit/cmocka_shim.h"

enum { PERIOD = 50, BATCH = 20, NEVER = 1 << 20 };

static const double grid[] = {1, 2, 5, 10, 20, 50, 100};

#define THETAS (sizeof(grid) / sizeof(grid[0]))

/* ---- evidence ---- */

/* The number at which odds are `enough`, of at most so many of this mean. */
static unsigned certain_at(double mean, unsigned most, double enough)
{
	struct evidence e = {0};

	for (unsigned i = 1; i <= most; i++) {
		evidence_add(&e, mean + normal(), enough);
		if (e.odds >= enough)
			return i;
	}
	return NEVER;
}

/* Looked at after each of 300 numbers, it is certain in no more than alpha of 2,000 runs where there is nothing, at the
 * very edge of it, and in all where there is; later of less. */
static void test_evidence(void **state)
{
	unsigned wrong = 0, right = 0, soon = 0;

	chance_seed = 1;
	for (unsigned run = 0; run < 2000; run++) {
		wrong += certain_at(0, 300, 40) != NEVER;
		right += certain_at(1, 100, 40) != NEVER;
		soon += certain_at(3, 6, 40) != NEVER;
	}
	if (wrong > 2000 / 40 || right < 1990 || soon < 1990)
		fail_msg("%u of 2000 runs without cause, %u and %u with one", wrong, right, soon);
}

/* It may begin at any number; one is no more than it may be, NaN is none, and enough is enough. */
static void test_evidence_begins(void **state)
{
	struct evidence e = {0}, other;

	evidence_add(&e, NAN, 40);
	assert_true(e.count == 0 && e.odds == 0);
	evidence_add(&e, 1e9, 40);
	assert_true(e.count == 1 && fabs(e.odds - exp(1.5) / 2) < 1e-9);
	other = e;
	evidence_add(&e, 2, 40);
	assert_true(fabs(e.odds - (other.odds + 1. / 6) * exp(1.5)) < 1e-9);
	for (unsigned i = 0; i < 10; i++)
		evidence_add(&e, 2, 40);
	assert_true(e.odds == 40);
	evidence_add(&e, -2, 40);
	evidence_add(&e, -2, 40);
	assert_true(e.odds < 1);
	for (unsigned i = 0; i < 100; i++)
		evidence_add(&e, -5, 40);
	for (unsigned i = 0; i < 12; i++)
		evidence_add(&e, 2, 40);
	assert_true(e.odds == 40);
}

/* ---- sites ---- */

/* Of a loss of one half: `drifted` is what the mean model loses beyond sites' own where they go alone for long,
 * `beyond` what it does even where they do not. What samples are off by is the same in all trials. */
struct sites {
	struct plus_config config;
	struct plus plus;
	struct plus_verdict verdict;
	unsigned count, index, windows;
	unsigned thetas;
	double pull, beyond, drifted, noise, off;
	double after;
	uint32_t tried;
};

static void sites_init(struct sites *s, unsigned count, double pull, unsigned thetas)
{
	*s = (struct sites){.count = count, .pull = pull, .thetas = thetas, .after = NAN, .noise = 0.7};
	plus_defaults(&s->config);
	assert_int_equal(plus_needs(&s->config, SITE_LOCAL, grid, thetas), 0);
	plus_init(&s->plus);
}

static unsigned sites_turn(struct sites *s)
{
	const unsigned steps = plus_span(&s->plus, PERIOD), was = s->index;
	const double root = sqrt((double)s->count), theta = grid[was], own = was ? 0.3 : 0.5;
	const struct plus_window now = {.exchanges = theta > steps ? 1 : (unsigned)(steps / theta),
		.said = 1 + s->pull,
		.heard = (1 + s->pull) / (s->count * (1 + s->pull / sqrt(theta))),
		.sites = s->count,
		.rate = 0.1,
		.bytes = 1000 * steps / theta,
		.bytes_bsp = 1000.0 * steps,
		.train = own,
		.before = NAN,
		.after = s->after,
		.trained = (double)BATCH * steps,
		.tried = isnan(s->after) ? 0 : s->tried};

	s->windows++;
	s->index = plus_next(&s->plus, &s->config, &now, was, s->thetas, 3, &s->verdict);
	s->tried = s->verdict.tries;
	s->after = s->tried == 0 ? NAN
				 : 0.5 + s->beyond + (was ? s->drifted : 0) +
					   0.5 * (s->off + s->noise * normal()) / (root * sqrt(s->tried));
	return s->index;
}

/* Three sites whose mean model loses more than theirs, as far as doubt. */
static void sites_in_doubt(struct sites *s)
{
	sites_init(s, 3, 3, THETAS);
	s->beyond = 0.3;
	while (s->verdict.cause != PLUS_DOUBTS && s->windows < 20)
		sites_turn(s);
	assert_int_equal(s->verdict.cause, PLUS_DOUBTS);
}

/* The window in which it says that no theta helps, of at most so many. */
static unsigned sites_told(struct sites *s, unsigned most)
{
	while (s->windows < most) {
		sites_turn(s);
		if (s->verdict.cause == PLUS_NORM)
			return s->windows;
	}
	return NEVER;
}

/* Sites that talk at each step: what ten show soon two show later, and five in between; of what is too small for two
 * even that is too late. Each loses less than the guard is against in two trials. */
static void test_few_sites(void **state)
{
	static const unsigned counts[] = {10, 5, 3, 2};
	unsigned before = 0;

	for (unsigned i = 0; i < 4; i++) {
		unsigned at = 0;

		chance_seed = 3;
		for (unsigned run = 0; run < 50; run++) {
			struct sites s;

			sites_init(&s, counts[i], 0, 1);
			s.beyond = 0.3;
			at += sites_told(&s, 200);
		}
		if (at >= 50 * 200 || at <= before)
			fail_msg("%u sites: window %u, %u of more", counts[i], at / 50, before / 50);
		before = at;
	}
}

/* Nothing is told, nor in doubt for long, where nothing is to be told: where samples are off by one deviation or two,
 * and the mean model loses no more than a tenth of the guard. */
static void test_silent(void **state)
{
	unsigned told = 0;

	chance_seed = 4;
	for (unsigned run = 0; run < 400; run++) {
		struct sites s;

		sites_init(&s, 2 + run % 9, run % 2 ? 0 : 30, run % 2 ? 1 : THETAS);
		s.beyond = s.config.guard / 10;
		s.off = 1.5 * normal();
		told += sites_told(&s, 200) != NEVER;
	}
	if (told > 400 / 20)
		fail_msg("%u of 400 runs", told);
}

/* All of the model is trained: what is tried on other data loses as much more at each trial, and that is no doubt. */
static void test_no_statistics(void **state)
{
	for (unsigned statistics = 0; statistics < 2; statistics++) {
		unsigned doubts = 0, told = 0;
		struct sites s;

		chance_seed = 5;
		sites_init(&s, 3, 3, THETAS);
		s.config.statistics = statistics;
		s.beyond = 0.2;
		while (s.windows < 60) {
			sites_turn(&s);
			doubts += s.verdict.cause == PLUS_DOUBTS;
			told += s.verdict.cause == PLUS_NORM;
		}
		assert_true((doubts > 0) == statistics && (statistics || told == 0) && s.index > 0);
		s.beyond = 2; /* it is said once it is far, as ever */
		for (told = 0; s.windows < 120; told += s.verdict.cause == PLUS_NORM)
			sites_turn(&s);
		assert_true(told > 0);
	}
}

/* Of local SGD: in doubt it goes tight at once, and asks for few samples, until that is certain, which does not make it
 * any less loose. */
static void test_doubts(void **state)
{
	struct sites s;
	unsigned doubts = 0;

	chance_seed = 5;
	sites_in_doubt(&s);
	assert_int_equal(s.verdict.cause, PLUS_DOUBTS);
	assert_int_equal(s.plus.guard.tight.count, 2);
	assert_int_equal(s.index, 0);
	assert_int_equal(plus_span(&s.plus, PERIOD), PERIOD);
	while (s.verdict.cause == PLUS_DOUBTS && doubts++ < 20) {
		assert_int_equal(sites_turn(&s), 0);
		assert_int_equal(s.verdict.tries, PLUS_FEW);
	}
	assert_true(doubts > 1 && doubts <= 6);
	assert_int_equal(s.verdict.cause, PLUS_NORM);
	for (unsigned i = 0; i < 20; i++)
		sites_turn(&s);
	assert_true(s.verdict.cause == PLUS_NORM && s.plus.reach.ease == 1);
	assert_true(s.index > 0);                         /* as the pull allows: talking more is no help */
	assert_true(fabs(s.verdict.beyond - 0.3) < 0.15); /* not what it is at that theta */
	s.beyond = 0;                                     /* data are others */
	s.pull = 6;
	for (unsigned i = 0; i < 40; i++)
		sites_turn(&s);
	assert_true(s.plus.guard.mean == PLUS_SOUND && s.index > 0 && s.plus.reach.ease == 1);
}

/* What was chance goes away by itself; and what shows at loose thetas alone is no evidence: that is the drift of
 * models. */
static void test_chance(void **state)
{
	struct sites s;

	chance_seed = 6;
	sites_in_doubt(&s);
	s.beyond = 0;
	for (unsigned i = 0; i < 3; i++)
		sites_turn(&s);
	assert_int_equal(s.plus.guard.mean, PLUS_SOUND);
	assert_true(sites_told(&s, 100) == NEVER && s.index > 0);
	sites_init(&s, 3, 3, THETAS);
	s.drifted = 0.1;
	while (s.windows < 100) {
		sites_turn(&s);
		assert_true(s.verdict.cause != PLUS_NORM && s.verdict.cause != PLUS_DOUBTS);
	}
	assert_true(s.index > 0);
}

/* What stays in doubt costs six windows, once. */
static void test_long(void **state)
{
	unsigned doubts = 0;
	struct sites s;

	sites_init(&s, 3, 3, THETAS);
	s.noise = 0;
	s.beyond = 0.22;
	while (s.windows < 100) {
		sites_turn(&s);
		doubts += s.verdict.cause == PLUS_DOUBTS;
		assert_true(s.verdict.cause != PLUS_NORM);
	}
	assert_true(doubts == 6 && s.index > 0 && s.plus.guard.tight.odds > 0.25);
	s.drifted = 0.4; /* nor does it keep what models drift apart by from being over */
	while (s.verdict.cause != PLUS_APART && s.windows < 200)
		sites_turn(&s);
	assert_int_equal(s.verdict.cause, PLUS_APART);
	for (unsigned i = 0; i < 20 && s.plus.guard.mean != PLUS_SOUND; i++)
		sites_turn(&s);
	assert_int_equal(s.plus.guard.mean, PLUS_SOUND);
}

/* Where it takes all samples to see it, few are not asked for. */
static void test_fine(void **state)
{
	unsigned fine = 0;
	struct sites s;

	chance_seed = 7;
	sites_init(&s, 2, 0, 1);
	s.noise = 0.2;
	s.beyond = 0.16;
	for (unsigned told = 0; s.windows < 400 && told < 50; told += s.verdict.cause == PLUS_NORM) {
		sites_turn(&s);
		if (s.plus.guard.mean != PLUS_DOUBTFUL && s.plus.guard.mean != PLUS_HOPELESS)
			continue;
		assert_true(s.verdict.tries != PLUS_FEW);
		fine += s.verdict.tries == s.config.tries;
	}
	assert_true(fine > 10 && s.verdict.cause == PLUS_NORM);
}

/* Sites that say nothing any more, or what cannot be, are no evidence, and in doubt are believed to be sound. */
static void test_nothing(void **state)
{
	struct sites s;

	chance_seed = 5;
	sites_in_doubt(&s);
	for (unsigned i = 0; i < 3; i++) {
		const struct evidence before = s.plus.guard.tight;

		s.after = NAN;
		sites_turn(&s);
		assert_memory_equal(&before, &s.plus.guard.tight, sizeof(before));
	}
	assert_int_equal(s.plus.guard.mean, PLUS_SOUND);
}

/* ---- samples ---- */

/* Where the last trial was not far from what the guard is against the next two are of few samples, too. */
static void test_samples(void **state)
{
	for (unsigned run = 0; run < 2; run++) {
		struct plus_config config;
		struct plus_verdict verdict = {.tries = 0};
		struct plus plus;
		unsigned few = 0;

		plus_defaults(&config);
		assert_int_equal(plus_needs(&config, SITE_LOCAL, grid, 1), 0);
		plus_init(&plus);
		for (unsigned i = 0; i < 40; i++) {
			const struct plus_window now = {.exchanges = 10,
				.said = 10,
				.heard = 2,
				.sites = 5,
				.rate = 0.1,
				.train = 1,
				.before = NAN,
				.after = verdict.tries == 0 ? NAN
					 : run              ? 1.3
							    : 1.1,
				.trained = 1000,
				.tried = verdict.tries};

			plus_next(&plus, &config, &now, 0, 1, 3, &verdict);
			few += verdict.tries == PLUS_FEW;
		}
		assert_true(run ? few > 30 : few == 2);
	}
}

TEST_PROGRAM(test_plus_guard)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_evidence),
		cmocka_unit_test(test_evidence_begins),
		cmocka_unit_test(test_few_sites),
		cmocka_unit_test(test_silent),
		cmocka_unit_test(test_no_statistics),
		cmocka_unit_test(test_doubts),
		cmocka_unit_test(test_chance),
		cmocka_unit_test(test_long),
		cmocka_unit_test(test_fine),
		cmocka_unit_test(test_nothing),
		cmocka_unit_test(test_samples),
	};

	return cmocka_run_group_tests_name("plus_guard", tests, NULL, NULL);
}
