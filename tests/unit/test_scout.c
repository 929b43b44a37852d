/* SPDX-License-Identifier: Apache-2.0 */
/* The controller of theta: what it takes for a better one, what it makes of bad reports, and that all decide the same.
 */
#include "client/scout/scout.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SITES = 5, THETAS = 6 };

/* A made-up world: the looser, the fewer bytes and the more loss, the more so the more skew. */
static const double grid[THETAS] = {1, 2, 5, 10, 20, 50};

static double loss_at(double theta, double skew)
{
	return fmin(0.9, skew * 0.01 * theta);
}

static uint64_t bytes_at(double theta, const struct scout_config *c)
{
	return (uint64_t)((double)c->model_bytes * c->period / theta);
}

static struct scout_config config_of(enum scout_policy policy)
{
	struct scout_config c;

	scout_defaults(&c);
	c.policy = policy;
	memcpy(c.thetas, grid, sizeof(grid));
	c.theta_count = THETAS;
	c.first = 2;
	c.model_bytes = 1000;
	c.seed = 7;
	return c;
}

static void scout_of(struct scout *s, enum scout_policy policy)
{
	struct scout_config c = config_of(policy);
	struct err e;

	assert_int_equal(scout_init(s, &c, &e), 0);
}

static struct scout_decision window(struct scout *s, double skew)
{
	struct scout_report reports[SITES];
	struct scout_decision decision;
	double theta = scout_theta(s);

	for (unsigned i = 0; i < SITES; i++)
		reports[i] = (struct scout_report){.home = 0.95,
			.away = 0.95 - loss_at(theta, skew),
			.samples = 100,
			.bytes = bytes_at(theta, &s->config)};
	assert_int_equal(scout_observe(s, reports, SITES, &decision), 0);
	return decision;
}

static double cost_at(double theta, double skew)
{
	return 50 * fmax(0, loss_at(theta, skew) - 0.05) + 1 / theta;
}

static unsigned cheapest(double skew)
{
	unsigned best = 0;

	for (unsigned i = 1; i < THETAS; i++)
		best = cost_at(grid[i], skew) < cost_at(grid[best], skew) ? i : best;
	return best;
}

static void test_costs(void **state)
{
	struct scout_decision d;
	struct scout s;

	scout_of(&s, SCOUT_HILL);
	d = window(&s, 2); /* at theta 5: loses 0.1 */
	assert_float_equal(d.loss, 0.1, 1e-12);
	assert_float_equal(d.bytes, 200, 1e-12);
	assert_float_equal(d.cost, 50 * 0.05 + 0.2, 1e-9);
	assert_int_equal(d.believed, SITES);
	assert_int_equal(d.action, SCOUT_TIGHTENS);
	assert_non_null(strstr(d.reason, "what theta 2 costs is not known yet"));
	assert_true(d.theta == 2 && scout_theta(&s) == 2);
	assert_int_equal(s.bytes, SITES * 100000);
	assert_int_equal(s.bytes_travel, SITES * 1000);
}

static unsigned below_100(uint64_t *chance)
{
	*chance = *chance * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(*chance >> 33) % 100;
}

/* The interval leaves out the true loss in no more than about 5 of 100 windows, and is no wider than it needs to be;
 * what exchanges and losses were is told by each policy, and forgotten. */
static void test_tells(void **state)
{
	struct scout_report reports[SITES];
	struct scout_decision d;
	uint64_t chance = 7;
	unsigned out = 0;
	struct scout s;

	scout_of(&s, SCOUT_FIXED);
	for (unsigned w = 0; w < 2000; w++) {
		for (unsigned i = 0; i < SITES; i++) {
			unsigned home = 0, away = 0;

			for (unsigned k = 0; k < 100; k++) {
				home += below_100(&chance) < 90;
				away += below_100(&chance) < 80;
			}
			reports[i] = (struct scout_report){
				.home = home / 100.0, .away = away / 100.0, .samples = 100, .trained = 10, .train = i};
		}
		scout_hear(&s, 2, 0.5, 0.2, 0.1);
		assert_int_equal(scout_observe(&s, reports, SITES, &d), 0);
		assert_true(d.r == 0.25 && d.seen.exchanges == 1 && d.seen.sites == 5 && d.seen.train == 2);
		out += fabs(d.loss - 0.1) > d.radius;
	}
	assert_in_range(out, 50, 120);
	assert_true(d.radius < 0.06);
	reports[0].samples = reports[1].samples = reports[2].samples = 0;
	assert_int_equal(scout_observe(&s, reports, SITES, &d), 0);
	assert_true(isinf(d.radius) && isnan(d.r) && d.seen.exchanges == 0);
}

/* It finds the cheapest of any skew, and stays there. */
static void test_climbs(void **state)
{
	static const double skews[] = {0.07, 2, 0, 10, 0.4};
	struct scout s;

	for (unsigned i = 0; i < sizeof(skews) / sizeof(skews[0]); i++) {
		scout_of(&s, SCOUT_HILL);
		for (unsigned k = 0; k < 20; k++)
			window(&s, skews[i]);
		for (unsigned k = 0; k < 3; k++) {
			assert_int_equal(s.index, cheapest(skews[i]));
			assert_int_equal(window(&s, skews[i]).action, SCOUT_STAYS);
		}
	}
}

/* The data drift: what a theta cost once is forgotten, so that it finds the next cheapest, and is there most of the
 * time. */
static void test_drift(void **state)
{
	static const double skews[] = {0.07, 2, 0, 10, 0.4};
	struct scout_config c = config_of(SCOUT_HILL);
	struct scout s;
	struct err e;

	c.memory = 10;
	assert_int_equal(scout_init(&s, &c, &e), 0);
	for (unsigned i = 0; i < sizeof(skews) / sizeof(skews[0]); i++) {
		unsigned there = 0;

		for (unsigned k = 0; k < 60; k++)
			window(&s, skews[i]);
		for (unsigned k = 0; k < 60; k++) {
			there += s.index == cheapest(skews[i]);
			window(&s, skews[i]);
		}
		assert_true(there >= 40);
	}
}

/* Annealing ends at the cheapest; while it is hot it moves to dearer ones as often as its odds say. */
static void test_wanders(void **state)
{
	struct scout_decision d;
	unsigned dearer = 0, looked = 0;
	struct scout s;

	scout_of(&s, SCOUT_ANNEALING);
	for (unsigned i = 0; i < 300; i++)
		d = window(&s, 1);
	assert_int_equal(s.index, cheapest(1));
	assert_int_equal(d.action, SCOUT_STAYS);

	scout_of(&s, SCOUT_STOCHASTIC);
	s.config.theta_count = 2;
	s.config.first = s.index = 0;
	s.config.lambda_loss = 0;
	for (unsigned i = 0; i < 20000; i++) { /* costs 1 and 1/2 */
		unsigned before = s.index;

		d = window(&s, 0);
		looked += before == 1;
		dearer += before == 1 && s.index == 0;
	}
	assert_true(looked > 8000);
	assert_float_equal((double)dearer / looked, 1 / (1 + exp(0.5)), 0.02);
}

/* All that have the same reports decide the same; by another seed others. */
static void test_replicas(void **state)
{
	enum scout_policy policies[] = {SCOUT_HILL, SCOUT_STOCHASTIC, SCOUT_ANNEALING};
	unsigned differ = 0;

	for (unsigned p = 0; p < 3; p++) {
		struct scout one, other, third;
		struct scout_config c = config_of(policies[p]);
		struct err e;

		c.temperature = 5;
		assert_int_equal(scout_init(&one, &c, &e), 0);
		assert_int_equal(scout_init(&other, &c, &e), 0);
		c.seed = 8;
		assert_int_equal(scout_init(&third, &c, &e), 0);
		for (unsigned i = 0; i < 100; i++) {
			struct scout_decision a = window(&one, i % 7), b = window(&other, i % 7);

			assert_memory_equal(&a, &b, sizeof(a));
			assert_int_equal(scout_host(&one, 0, SITES), scout_host(&other, 0, SITES));
			window(&third, i % 7);
			differ += one.index != third.index;
		}
	}
	assert_true(differ > 20);
}

/* Two of four sites say nothing: what the others have sent is what a site sends. */
static void test_silent_bytes(void **state)
{
	const struct scout_report one = {.home = 0.9, .away = 0.9, .samples = 100, .bytes = 2000};
	const struct scout_report reports[4] = {one, {.bytes = 0}, one, {.bytes = 0}};
	struct scout_decision d;
	struct scout s;

	scout_of(&s, SCOUT_HILL);
	assert_int_equal(scout_observe(&s, reports, 4, &d), 0);
	assert_true(d.bytes * s.config.period == 2000 && d.spent == d.bytes);
	assert_non_null(strstr(d.reason, "; of what models get right at site 1 nothing is known, nor of 1 more"));
	assert_int_equal(scout_observe(&s, reports, 3, &d), 0);
	assert_non_null(strstr(d.reason, "; of what models get right at site 1 nothing is known"));
	assert_null(strstr(d.reason, "more"));
}

/* The authors' trace, window by window, whatever is reported; and fixed is fixed. */
static void test_replay(void **state)
{
	static const double trace[] = {
		.30, .15, .10, .05, .05, .10, .10, .05, .05, .05, .05, .10, .10, .15, .15, .20, .25, .30};
	struct scout_config c = config_of(SCOUT_REPLAY);
	struct scout_decision d;
	struct scout s;
	struct err e;

	memcpy(c.schedule, trace, sizeof(trace));
	c.schedule_count = 18;
	c.thetas[0] = 0;
	assert_int_equal(scout_init(&s, &c, &e), 0);
	for (unsigned i = 0; i < 25; i++) {
		assert_true(scout_theta(&s) == trace[i < 18 ? i : 17]);
		d = window(&s, 3);
		assert_true(d.theta == scout_theta(&s));
		if (i == 0)
			assert_int_equal(d.action, SCOUT_TIGHTENS);
		if (i == 16)
			assert_int_equal(d.action, SCOUT_LOOSENS);
	}
	c.falls = true; /* DGC: the tightest is the largest */
	assert_int_equal(scout_init(&s, &c, &e), 0);
	for (unsigned i = 0; i < 17; i++) {
		d = window(&s, 3);
		if (i == 0)
			assert_int_equal(d.action, SCOUT_LOOSENS);
		if (i == 16)
			assert_int_equal(d.action, SCOUT_TIGHTENS);
	}
	scout_of(&s, SCOUT_FIXED);
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(window(&s, 10).action, SCOUT_STAYS);
	assert_true(scout_theta(&s) == 5);
}

/* Each has one guest, and none its own model; the distance changes. */
static void test_travels(void **state)
{
	unsigned moved = 0, last = 0;
	struct scout s;

	scout_of(&s, SCOUT_HILL);
	for (unsigned sites = 2; sites <= 12; sites++) {
		for (s.window = 0; s.window < 50; s.window++) {
			unsigned guests = 0;

			for (unsigned i = 0; i < sites; i++) {
				unsigned host = scout_host(&s, i, sites);

				assert_true(host < sites && host != i);
				guests |= 1u << host;
			}
			assert_int_equal(guests, (1u << sites) - 1);
			moved += sites > 3 && scout_host(&s, 0, sites) != last;
			last = scout_host(&s, 0, sites);
		}
	}
	assert_true(moved > 200);
}

/* What cannot be true is no report; of too few it goes to what was safe, then to what is safest, and comes back. */
static void test_bad_reports(void **state)
{
	struct scout_report bad[SITES];
	struct scout_decision d;
	struct scout s;
	unsigned safe;

	scout_of(&s, SCOUT_HILL);
	for (unsigned i = 0; i < 30; i++)
		window(&s, 0.4);
	safe = s.index;
	assert_true(safe > 0 && s.held[safe]);
	for (unsigned i = 0; i < SITES; i++)
		bad[i] = (struct scout_report){.home = 0.9, .away = 0.9, .samples = 10, .bytes = 1};
	bad[0].home = NAN;
	bad[1].away = -0.1;
	assert_int_equal(scout_observe(&s, bad, SITES, &d), 0);
	assert_int_equal(d.believed, 3);
	assert_float_equal(d.loss, 0, 1e-12);
	assert_int_not_equal(d.action, SCOUT_FALLS_BACK);

	scout_of(&s, SCOUT_HILL);
	for (unsigned i = 0; i < 30; i++)
		window(&s, 0.4);
	bad[2].away = 1.5;
	{
		struct scout fresh;

		scout_of(&fresh, SCOUT_HILL);
		assert_int_equal(scout_observe(&fresh, bad, SITES, &d), 0);
		assert_int_equal(fresh.index, 0);
		assert_non_null(strstr(d.reason, "the tightest theta, as none was safe yet"));
	}
	for (unsigned i = 1; i <= 4; i++) {
		assert_int_equal(scout_observe(&s, bad, SITES, &d), 0);
		assert_int_equal(d.believed, 2);
		assert_true(isnan(d.loss) && isnan(d.cost));
		assert_int_equal(d.action, SCOUT_FALLS_BACK);
		assert_int_equal(s.index, i < s.config.patience ? safe : 0);
		assert_non_null(strstr(d.reason, i < s.config.patience ? "that was safe" : "the tightest theta"));
		assert_non_null(strstr(d.reason, i == 1 ? "in 1 window that said" : "windows in a row that said"));
	}
	for (unsigned i = 0; i < 30; i++)
		d = window(&s, 0.4);
	assert_int_equal(s.index, safe);
	assert_int_equal(s.silent, 0);
	for (unsigned i = 0; i < SITES; i++)
		bad[i] = (struct scout_report){.home = 1, .away = 1, .samples = 0};
	assert_int_equal(scout_observe(&s, bad, SITES, &d), 0); /* no site has said anything */
	assert_int_equal(d.believed, 0);
	assert_int_equal(d.action, SCOUT_FALLS_BACK);
	assert_int_equal(scout_observe(&s, bad, 0, &d), -EINVAL);
	assert_int_equal(scout_observe(&s, bad, SCOUT_SITES_MAX + 1, &d), -EINVAL);
}

/* Where accuracies are not told it says so at once, and does not take them for no loss; who is amiss is in the reason.
 */
static void test_says_why(void **state)
{
	struct scout_report blank[SITES] = {{0}};
	struct scout_decision d;
	struct scout s;

	for (unsigned i = 0; i < SITES; i++)
		blank[i].samples = 100;
	scout_of(&s, SCOUT_HILL);
	assert_int_equal(scout_observe(&s, blank, SITES, &d), 0);
	assert_true(d.action == SCOUT_FALLS_BACK && d.theta == 1 && isnan(d.loss));
	assert_non_null(strstr(d.reason, "policy hill needs evaluate() to count `correct`, scout+ does not"));
	blank[3].unfit = SCOUT_BROKEN;
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(scout_observe(&s, blank, SITES, &d), 0);
	assert_non_null(strstr(d.reason, "the tightest theta, until they do; site 3 has weights, gradients or losses"));
	scout_of(&s, SCOUT_FIXED);
	assert_int_equal(scout_observe(&s, blank, SITES, &d), 0);
	assert_string_equal(d.reason, "theta is fixed; site 3 has weights, gradients or losses that are no numbers");
}

/* scout+: losses of a model that is broken are not believed, whatever they are. */
static void test_broken_losses(void **state)
{
	struct scout_report reports[SITES];
	struct scout_decision d;
	struct scout s;

	scout_of(&s, SCOUT_FIXED);
	for (unsigned i = 0; i < SITES; i++)
		reports[i] = (struct scout_report){
			.trained = 10, .train = 1, .tried = 10, .before = 2, .after = i == 2 ? 50 : 1};
	assert_int_equal(scout_observe(&s, reports, SITES, &d), 0);
	assert_true(d.seen.after > 10);
	s.config.trim = 0.2;
	assert_int_equal(scout_observe(&s, reports, SITES, &d), 0);
	assert_true(d.seen.after == 1 && d.seen.before == 2);
	s.config.trim = 0;
	reports[2].unfit = SCOUT_BROKEN;
	assert_int_equal(scout_observe(&s, reports, SITES, &d), 0);
	assert_true(d.seen.after == 1 && d.seen.before == 2 && d.seen.train == 1);
	for (unsigned i = 0; i < 3; i++)
		reports[i].unfit = SCOUT_BROKEN;
	assert_int_equal(scout_observe(&s, reports, SITES, &d), 0);
	assert_true(isnan(d.seen.after) && d.seen.train == 1);
	reports[0].unfit = SCOUT_IDLE; /* of four two are half */
	assert_int_equal(scout_observe(&s, reports, SITES, &d), 0);
	assert_true(d.seen.after == 1);
}

/* A run that was interrupted at any window ends as one that was not; what is not whole is not taken. */
static void test_saved(void **state)
{
	uint8_t saved[SCOUT_SAVED_BYTES];
	struct scout_config c = config_of(SCOUT_STOCHASTIC);
	struct scout one, other;
	struct err e;

	assert_int_equal(scout_init(&one, &c, &e), 0);
	for (unsigned i = 0; i < 40; i++) {
		struct scout_decision a, b;

		assert_int_equal(scout_init(&other, &c, &e), 0);
		scout_save(&one, saved);
		assert_int_equal(scout_load(&other, saved, sizeof(saved), &e), 0);
		a = window(&one, i % 5);
		b = window(&other, i % 5);
		assert_memory_equal(&a, &b, sizeof(a));
		assert_int_equal(one.bytes, other.bytes);
	}
	for (unsigned bit = 0; bit < 8 * sizeof(saved); bit += 7) {
		saved[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_int_equal(scout_load(&other, saved, sizeof(saved), &e), -EBADMSG);
		saved[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	assert_int_equal(scout_load(&other, saved, sizeof(saved) - 1, &e), -EBADMSG);
	c.sigma = 0.06;
	assert_int_equal(scout_init(&other, &c, &e), 0);
	assert_int_equal(scout_load(&other, saved, sizeof(saved), &e), -EINVAL);
	assert_non_null(strstr(e.text, "of a scout with other options (policy, thetas"));
	assert_int_equal(other.window, 0);
	c = config_of(SCOUT_STOCHASTIC);
	c.trim = 0.2;
	assert_int_equal(scout_init(&other, &c, &e), 0);
	assert_int_equal(scout_load(&other, saved, sizeof(saved), &e), -EINVAL);
}

static void expect(struct scout_config c, const char *reason)
{
	struct scout s;
	struct err e;

	assert_int_equal(scout_init(&s, &c, &e), -EINVAL);
	if (!strstr(e.text, reason))
		fail_msg("'%s' instead of '%s'", e.text, reason);
}

#define EXPECT(change, reason)                                 \
	do {                                                   \
		struct scout_config c = config_of(SCOUT_HILL); \
		change;                                        \
		expect(c, reason);                             \
	} while (0)

static void test_limits(void **state)
{
	EXPECT(c.policy = (enum scout_policy)SCOUT_POLICY_COUNT, "policy 6 does not exist");
	EXPECT(c.theta_count = 0, "a grid of 0 thetas");
	EXPECT(c.theta_count = SCOUT_THETAS_MAX + 1, "a grid of 65 thetas");
	EXPECT(c.first = THETAS, "begins with number 6");
	EXPECT(c.thetas[1] = NAN, "theta 1 of the grid is not a number");
	EXPECT(c.thetas[1] = 1, "theta 1 is in the grid twice");
	EXPECT(c.period = 0, "period is 0");
	EXPECT(c.model_bytes = 0, "model_bytes is 0");
	EXPECT(c.lambda_loss = -1, "lambda_loss is -1");
	EXPECT(c.lambda_bytes = INFINITY, "lambda_bytes is inf");
	EXPECT(c.sigma = 1.1, "sigma is 1.1");
	EXPECT(c.sigma = NAN, "sigma is nan");
	EXPECT(c.temperature = 0, "temperature is 0");
	EXPECT(c.cooling = 1.5, "cooling is 1.5; allowed: above 0, to 1");
	EXPECT(c.patience = 0, "patience is 0");
	EXPECT(c.trim = 0.5, "trim is 0.5; allowed: 0 to below 0.5");
	EXPECT(c.trim = -0.1, "trim is -0.1");
	EXPECT(c.trim = NAN, "trim is nan");
	EXPECT(c.policy = SCOUT_REPLAY, "a schedule of 0 thetas");
	EXPECT((c.policy = SCOUT_REPLAY, c.schedule_count = 1, c.schedule[0] = NAN), "theta 0 of the schedule");
}

static void test_names(void **state)
{
	assert_string_equal(scout_policy_name(SCOUT_ANNEALING), "annealing");
	assert_string_equal(scout_policy_name((enum scout_policy)9), "invalid");
	assert_string_equal(scout_action_name(SCOUT_FALLS_BACK), "falls back");
	assert_string_equal(scout_action_name((enum scout_action)9), "invalid");
}

/* At theta 2 sites say a little less than at theta 1, and in twenty times as many exchanges: as Gaia does beside local
 * SGD. */
static struct scout_decision window_often(struct scout *s, unsigned windows)
{
	struct scout_report reports[SITES];
	struct scout_decision decision = {0};

	for (unsigned n = 0; n < windows; n++) {
		const bool often = scout_theta(s) == 2;

		for (unsigned i = 0; i < SITES; i++)
			reports[i] = (struct scout_report){.home = 0.9,
				.away = 0.9,
				.samples = 100,
				.bytes = often ? 24000 : 25000,
				.exchanges = often ? 500 : 25,
				.within = 1000000,
				.exchanges_within = 500};
		assert_int_equal(scout_observe(s, reports, SITES, &decision), 0);
	}
	return decision;
}

static void test_units(void **state)
{
	struct scout_config c = config_of(SCOUT_HILL);
	struct scout_decision d;
	struct scout s;
	struct err e;

	c.theta_count = 2;
	c.first = 0;
	assert_int_equal(scout_init(&s, &c, &e), 0);
	d = window_often(&s, 6);
	assert_true(d.theta == 2 && d.bytes == 48 && d.spent == 48 + 2000);
	assert_true(d.cost == (48 + 2000) / 1000.0);
	c.price = (struct price){.unit = PRICE_SECONDS, .link = {.rate = 1e6, .latency = 0.01}};
	assert_int_equal(scout_init(&s, &c, &e), 0);
	d = window_often(&s, 1); /* at theta 1 */
	assert_true(fabs(d.spent - (25 * 0.01 + 25000 / 1e6) / 500) < 1e-15 && d.bytes == 50);
	assert_true(fabs(d.cost - d.spent / (0.01 + 1000 / 1e6)) < 1e-15);
	d = window_often(&s, 5);
	assert_true(d.theta == 1);
	c.price.link.latency = 0; /* then bytes decide again */
	assert_int_equal(scout_init(&s, &c, &e), 0);
	assert_true(window_often(&s, 6).theta == 2);
	c.price = (struct price){.unit = PRICE_MONEY, .link = {.money = 0.09}, .within = {.money = 0.01}};
	assert_int_equal(scout_init(&s, &c, &e), 0);
	d = window_often(&s, 1);
	assert_true(fabs(d.spent - (50 * 0.09 + 2000 * 0.01) / 1e9) < 1e-20);
	assert_true(fabs(d.cost - d.spent / (1000 * 0.09 / 1e9)) < 1e-12);
}

static void test_bad_prices(void **state)
{
	const double bad[] = {-1, NAN, INFINITY};
	struct scout_config c = config_of(SCOUT_HILL);
	struct scout s;
	struct err e;

	for (unsigned i = 0; i < 3; i++) {
		double *const fields[] = {&c.price.link.rate, &c.price.link.latency, &c.price.link.money,
			&c.price.within.rate, &c.price.within.latency, &c.price.within.money};

		for (unsigned f = 0; f < 6; f++) {
			*fields[f] = bad[i];
			assert_int_equal(scout_init(&s, &c, &e), -EINVAL);
			assert_non_null(strstr(e.text, "numbers of at least 0"));
			*fields[f] = 0;
		}
	}
	c.price.unit = PRICE_SECONDS;
	assert_int_equal(scout_init(&s, &c, &e), -EINVAL);
	assert_non_null(strstr(e.text, "seconds want the link's rate"));
	c.price.unit = PRICE_MONEY;
	assert_int_equal(scout_init(&s, &c, &e), -EINVAL);
	assert_non_null(strstr(e.text, "money want the link's price"));
	c.price.unit = (enum price_unit)3;
	assert_int_equal(scout_init(&s, &c, &e), -EINVAL);
	assert_non_null(strstr(e.text, "bytes, seconds or money"));
	assert_string_equal(price_unit_name(c.price.unit), "invalid");
}

/* Reports of what cannot be true cost nothing, and a state is of one unit. */
static void test_units_of_strange_reports(void **state)
{
	struct scout_config c = config_of(SCOUT_HILL);
	uint8_t saved[SCOUT_SAVED_BYTES];
	struct scout_report reports[2] = {{.home = 1, .away = 1, .samples = 9, .bytes = 1000, .exchanges = NAN},
		{.home = 1, .away = 1, .samples = 9, .exchanges = -5, .exchanges_within = INFINITY}};
	struct scout_decision d;
	struct scout s, other;
	struct err e;

	c.price = (struct price){.unit = PRICE_SECONDS, .link = {.rate = 1, .latency = 1}, .within = {.latency = 1}};
	assert_int_equal(scout_init(&s, &c, &e), 0);
	assert_int_equal(scout_observe(&s, reports, 2, &d), 0);
	assert_true(d.spent == 0 && d.cost == 0);
	scout_save(&s, saved);
	c.price.link.latency = 2;
	assert_int_equal(scout_init(&other, &c, &e), 0);
	assert_int_equal(scout_load(&other, saved, sizeof(saved), &e), -EINVAL);
}

TEST_PROGRAM(test_scout)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_costs),
		cmocka_unit_test(test_tells),
		cmocka_unit_test(test_climbs),
		cmocka_unit_test(test_drift),
		cmocka_unit_test(test_wanders),
		cmocka_unit_test(test_replicas),
		cmocka_unit_test(test_silent_bytes),
		cmocka_unit_test(test_replay),
		cmocka_unit_test(test_travels),
		cmocka_unit_test(test_bad_reports),
		cmocka_unit_test(test_says_why),
		cmocka_unit_test(test_broken_losses),
		cmocka_unit_test(test_saved),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_units),
		cmocka_unit_test(test_bad_prices),
		cmocka_unit_test(test_units_of_strange_reports),
	};

	return cmocka_run_group_tests_name("scout", tests, NULL, NULL);
}
