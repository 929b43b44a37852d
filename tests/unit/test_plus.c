/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scout+ in worlds whose pull is known: where it goes, how soon it sees that they have changed, what it spends on
 * probes, and what it makes of numbers that cannot be true.
 */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "client/scout/plus.h"
#include "tests/unit/chance.h"
#include "tests/unit/cmocka_shim.h"

enum { SITES = 5, PERIOD = 25, MODEL = 1000 };

static const double grid[] = {1, 2, 5, 10, 20, 50, 100};

#define THETAS (sizeof(grid) / sizeof(grid[0]))

/* ---- a world ---- */

struct world {
	struct plus_config config;
	struct plus plus;
	unsigned index;
	double pull;  /* the true one */
	double noise; /* of log r */
	double rate;
	double sites;       /* how many there are; 0: SITES */
	double moves;       /* factor to how far sites move; 0: 1 */
	double waste;       /* loss that a window at any but the tightest theta leaves behind */
	double price;       /* of a byte */
	double floor;       /* of a window's cost */
	const double *over; /* [THETAS] what theta adds to that; NULL: the price of its bytes */
	bool tells;         /* losses */
	double level; /* of the mean model's loss, and as it was tried before and after the window before; NaN: it was
			 not */
	double levels[2];
	uint32_t tried; /* samples, for the latter */
	unsigned turns;
	unsigned batch; /* samples of a step */
	double falls;   /* loss that a step lowers, */
	double fell;    /* and all have */
	unsigned lasts; /* times as long as a tight one is a window at any other theta; 0: as long */
	unsigned each;  /* of a trial, whatever is asked for; 0: as asked */
	unsigned steps; /* of all windows */
	double bytes, bytes_probe;
	struct plus_verdict verdict;
};

static void world_init(struct world *w, double pull)
{
	*w = (struct world){.pull = pull, .rate = 0.1, .batch = 20, .level = 1, .levels = {NAN, NAN}};
	plus_defaults(&w->config);
	assert_int_equal(plus_needs(&w->config, SITE_LOCAL, grid, THETAS), 0);
	assert_null(plus_check(&w->config, THETAS));
	plus_init(&w->plus);
}

/* What need() is beside. */
static double felt(const struct world *w, double pull)
{
	const double all = pull + w->config.own;

	assert_int_equal(w->config.power, 2);
	return all * all * sqrt(SITES);
}

/* As gradients and noise are: r falls short of 1 / K by the pull, and less so the longer sites go alone. */
static void world_show(struct world *w, struct plus_window *now)
{
	const double theta = grid[w->index], alone = w->pull / sqrt(theta), sites = w->sites > 0 ? w->sites : SITES;
	const unsigned steps = plus_span(&w->plus, PERIOD);
	const unsigned lasts = steps * (w->index > 0 && w->lasts > 0 ? w->lasts : 1);

	w->steps += steps;
	w->fell += w->falls * lasts;
	*now = (struct plus_window){.exchanges = theta > steps ? 1 : (unsigned)(steps / theta),
		.sites = sites,
		.rate = w->rate,
		.bytes = MODEL * steps / theta,
		.bytes_bsp = MODEL * steps,
		.train = NAN,
		.before = NAN,
		.after = NAN,
		.trained = (double)w->batch * lasts};
	now->floor = w->floor;
	now->spent = w->floor + (w->over ? w->over[w->index] : w->price * MODEL * PERIOD / theta);
	now->said = (1 + w->pull) * theta * now->exchanges * (w->moves > 0 ? w->moves : 1);
	now->heard = now->said / (sites * (1 + alone)) * exp(w->noise * normal());
	if (!w->tells)
		return;
	now->before = w->levels[0];
	now->after = w->levels[1];
	now->tried = isnan(w->levels[1]) ? 0 : w->each ? w->each : w->tried;
}

/* After the window: what a loose one leaves behind a tight one makes good. */
static void world_try(struct world *w, bool was_tight)
{
	w->level = (was_tight ? 1 : 1 + w->waste) - w->fell;
	w->levels[0] = w->levels[1];
	w->levels[1] = w->tells && w->verdict.tries > 0 ? w->level + 0.001 * normal() : NAN;
	w->tried = w->verdict.tries;
}

static unsigned world_turn(struct world *w)
{
	struct plus_window now;
	const bool probes = w->plus.phase == PLUS_PROBES, tight = w->index == 0;

	world_show(w, &now);
	if (grid[w->index] > PERIOD && w->turns++ % 2)
		now = (struct plus_window){.train = NAN, .before = NAN, .after = NAN};
	w->bytes += now.bytes;
	w->bytes_probe += probes ? now.bytes : 0;
	w->index = plus_next(&w->plus, &w->config, &now, w->index, THETAS, 3, &w->verdict);
	world_try(w, tight);
	return w->index;
}

static unsigned world_settle(struct world *w)
{
	for (unsigned i = 0; i < 30; i++)
		world_turn(w);
	assert_int_equal(w->plus.phase, PLUS_STAYS);
	return w->index;
}

/* It goes to the loosest theta that the pull allows: further, the less sites pull apart. */
static void test_settles(void **state)
{
	static const double pulls[] = {0, 1, 4, 20, 50, 1000};
	unsigned before = THETAS - 1;

	for (unsigned i = 0; i < sizeof(pulls) / sizeof(pulls[0]); i++) {
		struct world w;
		unsigned at;

		world_init(&w, pulls[i]);
		at = world_settle(&w);
		assert_true(at <= before);
		assert_true(at == 0 || w.config.need[at] * felt(&w, pulls[i]) <= 1.0001);
		assert_true(at + 1 == THETAS || w.config.need[at + 1] * felt(&w, pulls[i]) > 0.999);
		assert_true(fabs(w.plus.reach.pull - pulls[i]) <= 1e-9 * (1 + pulls[i]));
		before = at;
	}
	assert_int_equal(before, 0);
}

/* Sixty steps at the tightest, in short windows, then half of the way that is left in each. */
static void test_course(void **state)
{
	static const unsigned course[] = {0, 0, 0, 0, 0, 2, 3, 4, 4, 4, 4};
	struct world w;

	world_init(&w, 0);
	assert_int_equal(plus_span(&w.plus, 5), 5);
	for (unsigned i = 0; i < sizeof(course) / sizeof(course[0]); i++) {
		assert_int_equal(w.steps, i < 6 ? 10 * i : 60 + PERIOD * (i - 6));
		assert_int_equal(world_turn(&w), course[i]);
	}
	assert_int_equal(w.verdict.cause, PLUS_THERE);
}

/* Whose windows are longer measures in as few exchanges, in whole windows. */
static void test_long_windows(void **state)
{
	struct plus_window now = {
		.exchanges = 500, .sites = SITES, .rate = 0.1, .train = NAN, .before = NAN, .after = NAN};
	struct world w;

	world_init(&w, 0);
	now.said = 500;
	now.heard = 100;
	assert_int_equal(plus_next(&w.plus, &w.config, &now, 0, THETAS, 3, &w.verdict), 0);
	assert_true(isnan(w.plus.reach.pull));
	assert_int_equal(plus_next(&w.plus, &w.config, &now, 0, THETAS, 3, &w.verdict), 2);
	assert_true(w.plus.reach.pull == 0);
}

/* A rate of learning that falls lets local SGD be looser by its root, and no other; one that rises again, or beyond the
 * one that it was measured at, does not. */
static void test_rate(void **state)
{
	struct plus_config gaia;

	assert_int_equal(plus_needs(&gaia, SITE_GAIA, (const double[]){0, 0.1, 0.2}, 3), 0);
	for (unsigned run = 0; run < 2; run++) {
		const double pull = 20;
		struct world w;
		unsigned before, at;

		world_init(&w, pull);
		if (run == 1)
			w.config.by_rate = gaia.by_rate;
		before = world_settle(&w);
		w.rate = 0.01;
		world_turn(&w);
		assert_int_equal(w.verdict.cause, run == 0 ? PLUS_SLOWER : PLUS_THERE);
		at = world_settle(&w);
		assert_true(run == 0 ? at > before : at == before);
		assert_true(run == 1 || w.config.need[at] * felt(&w, pull) <= sqrt(10));
		assert_true(run == 1 || at + 1 == THETAS || w.config.need[at + 1] * felt(&w, pull) > sqrt(10));
		w.rate = 0.1;
		assert_int_equal(world_settle(&w), before);
		w.rate = 1;
		assert_int_equal(world_settle(&w), before);
	}
}

/* Data drift: it is tight within two exchanges, and where it belongs within five more windows; to both sides. Noise
 * alone, and another rate of learning, are no drift. */
static void test_drift(void **state)
{
	chance_seed = 3;
	for (unsigned run = 0; run < 80; run++) {
		const double from = run & 1 ? 0 : 40, to = run & 1 ? 40 : 1;
		struct world w;
		unsigned late = 0, at;

		world_init(&w, from);
		w.config.by_rate = false;
		w.config.bytes_part = 0;
		w.noise = 0.1;
		w.rate = run < 40 ? w.rate : NAN; /* nobody says it */
		at = world_settle(&w);
		for (unsigned i = 0; i < 60; i++) {
			w.rate = run >= 40 ? NAN : i < 30 ? 0.1 : 0.01;
			if (world_turn(&w) != at)
				fail_msg("run %u: theta moved in window %u, because of %u", run, i, w.verdict.cause);
		}
		w.pull = to;
		while (w.index != 0 && w.plus.phase != PLUS_MEASURES && late < 10) {
			world_turn(&w);
			late++;
		}
		assert_true(late <= 4);
		for (w.steps = 0; w.steps < 5 * PERIOD;)
			world_turn(&w);
		assert_true(w.config.need[w.index] * felt(&w, to) <= 1.3);
		assert_true(w.index + 2 >= THETAS || w.config.need[w.index + 2] * felt(&w, to) > 1);
	}
}

/* Sites that come, or are lost, are others, and no drift: r is by how many they are. It measures them anew at once, and
 * that all are alike it finds again. One of many, which hardly weighs, is no reason. */
static void test_others(void **state)
{
	for (unsigned run = 0; run < 2; run++) {
		struct world w;
		unsigned at;

		world_init(&w, 1);
		w.config.bytes_part = 0;
		at = world_settle(&w);
		w.sites = SITES * 0.97;
		assert_int_equal(world_turn(&w), at);
		w.sites = run == 0 ? SITES - 1 : SITES + 1;
		assert_int_equal(world_turn(&w), 0);
		assert_int_equal(w.verdict.cause, PLUS_OTHERS);
		for (unsigned i = 0; i < 60; i++) {
			world_turn(&w);
			assert_true(w.verdict.cause != PLUS_DRIFTED && w.verdict.cause != PLUS_OTHERS);
		}
		assert_true(fabs(w.plus.reach.pull - 1) < 1e-9);
	}
}

/* As training goes on sites move less at the same rate: that is no drift; more is. Which series it was is said. */
static void test_moves(void **state)
{
	struct world w;
	unsigned at;

	world_init(&w, 20);
	w.config.bytes_part = 0;
	at = world_settle(&w);
	w.moves = 1;
	for (unsigned i = 0; i < 60; i++) {
		w.moves *= 0.98;
		assert_int_equal(world_turn(&w), at);
	}
	w.moves *= 4;
	while (world_turn(&w) == at)
		assert_int_equal(w.verdict.drifts, PLUS_NONE);
	assert_int_equal(w.verdict.cause, PLUS_DRIFTED);
	assert_int_equal(w.verdict.drifts, PLUS_MOVES);
}

/* What Gaia keeps back fills up, as it was measured (plus_config.c): that is no drift. In local SGD twice as much is,
 * on the way to it. Data that do drift move it 2.6 times as far, at once. */
static void test_fills(void **state)
{
	static const double said[] = {
		-2.5, -2.28, -2.13, -1.93, -1.87, -1.8, -1.74, -1.66, -1.59, -1.72, -1.72, -1.67, -1.56};
	struct plus_config gaia;

	assert_int_equal(plus_needs(&gaia, SITE_GAIA, (const double[]){0, 0.1, 0.2}, 3), 0);
	for (unsigned run = 0; run < 2; run++) {
		struct world w;
		unsigned at = 0, i = 0;

		world_init(&w, 20);
		if (run == 0)
			w.config.slack_moves = gaia.slack_moves;
		while (w.plus.phase != PLUS_STAYS)
			at = world_turn(&w);
		for (; i < sizeof(said) / sizeof(said[0]) && w.index == at; i++) {
			w.moves = exp(run == 0 ? said[i] : 2 * said[i]);
			world_turn(&w);
		}
		assert_true((w.index == at) == (run == 0));
		w.moves *= 2.6;
		assert_int_equal(run == 0 ? world_turn(&w) : 0, 0);
	}
}

/* Probes never cost more than their part of what was sent, nor trials more than theirs of the computing; and there are
 * some. */
static void test_budgets(void **state)
{
	struct world w;

	chance_seed = 4;
	world_init(&w, 10);
	w.tells = true;
	while (!w.plus.settled)
		world_turn(&w);
	assert_true(w.bytes > 0 && w.plus.budget.bytes == 0); /* what it took to settle pays for no probe */
	world_settle(&w);
	w.bytes = w.bytes_probe = 0;
	for (unsigned i = 0; i < 20000; i++) {
		world_turn(&w);
		assert_true(w.plus.budget.bytes_probes <= w.config.bytes_part * w.plus.budget.bytes);
		assert_true(w.plus.budget.tried <= 3 * w.config.work_part * w.plus.budget.trained);
	}
	assert_true(w.bytes_probe > w.config.bytes_part * w.bytes / 2);
	assert_true(w.plus.budget.tried > w.config.work_part * w.plus.budget.trained);
	w.each = 2 * w.config.tries; /* who tries more than is asked for has fewer trials */
	for (unsigned i = 0; i < 20000; i++) {
		world_turn(&w);
		assert_true(w.plus.budget.tried <= 3 * w.config.work_part * w.plus.budget.trained || i < 20);
	}
	assert_true(w.plus.budget.tried > w.config.work_part * w.plus.budget.trained);
	w.config.bytes_part = 0;
	for (unsigned i = 0; i < 1000; i++) {
		world_turn(&w);
		assert_int_not_equal(w.verdict.cause, PLUS_PROBE);
	}
}

/* The first two trials are of few samples, and come as soon as these may be spent; all others are of as many as there
 * are to be, so that probes are as certain as ever. */
static void test_first_trials(void **state)
{
	struct world w;
	unsigned trials = 0, last = 0;

	chance_seed = 4;
	world_init(&w, 10);
	w.tells = true;
	for (unsigned i = 0; i < 200; i++) {
		world_turn(&w);
		if (w.verdict.tries == 0)
			continue;
		assert_int_equal(w.verdict.tries, trials < 2 ? PLUS_FEW : w.config.tries);
		assert_true(trials == 0 ? w.steps == 50 : trials > 1 || i == last + 1);
		last = i;
		trials++;
	}
	assert_true(trials > 20);
	world_init(&w, 10); /* where that is no more than all */
	w.tells = true;
	w.config.tries = 30;
	for (unsigned i = 0; i < 20; i++) {
		world_turn(&w);
		assert_true(w.verdict.tries == 0 || w.verdict.tries == 30);
	}
}

/* What few samples say is not compared with what many do: neither by probes, nor by the watch of the loss. */
static void test_few_and_many(void **state)
{
	unsigned few = 0, many = 0;
	struct world w;

	chance_seed = 4;
	world_init(&w, 10);
	w.batch = 200;
	assert_true(world_settle(&w) > 0); /* nobody has tried a model yet */
	w.tells = true;
	for (unsigned i = 0; i < 12; i++) {
		assert_true(world_turn(&w) > 0);
		few += w.verdict.tries == PLUS_FEW;
		many += w.verdict.tries == w.config.tries;
		w.levels[1] += w.verdict.tries == PLUS_FEW ? 3 : 0;
	}
	assert_true(few == 2 && many == 10);
	assert_true(w.plus.probe.usual.count > 8 && fabs(w.plus.probe.usual.mean) < 0.005);
	assert_true(w.plus.watch.loss.count > 8 && fabs(w.plus.watch.loss.mean) < 0.005);
}

/* What probes find in the long run moves theta, although the pull is the same: also where a window's part of the
 * computing is not enough for a trial. */
static void test_probes(void **state)
{
	for (unsigned run = 0; run < 4; run++) {
		const bool wasteful = run % 2 == 0;
		struct world w;
		unsigned at, seen = 0;

		chance_seed = 5;
		world_init(&w, 10);
		w.tells = true;
		w.batch = run < 2 ? 20 : 100;
		w.waste = wasteful ? 0.1 : 0;
		at = world_settle(&w);
		for (unsigned i = 0; i < 30000 && !seen; i++) {
			world_turn(&w);
			seen = w.verdict.cause == (wasteful ? PLUS_GAINS : PLUS_WASTES);
			assert_true(w.verdict.cause != (wasteful ? PLUS_WASTES : PLUS_GAINS));
		}
		assert_true(seen);
		assert_true(wasteful ? w.plus.reach.ease == 0.5 : w.plus.reach.ease == 1.25);
		assert_true(wasteful ? w.index < at : w.index >= at);
	}
}

/* A window at a theta that outlasts the period lowers the loss for longer, which is no gain of not talking. */
static void test_probes_of_long_windows(void **state)
{
	struct world w;

	chance_seed = 7;
	world_init(&w, 2);
	w.tells = true;
	w.waste = 0.04;
	w.falls = 0.001;
	w.lasts = 2;
	world_settle(&w);
	w.config.bytes_part = 0.3;
	for (unsigned i = 0; i < 30000 && w.verdict.cause != PLUS_GAINS && w.verdict.cause != PLUS_WASTES; i++)
		world_turn(&w);
	assert_int_equal(w.verdict.cause, PLUS_GAINS);
	assert_true(fabs(w.verdict.gain - w.waste) < w.waste / 2 + 0.01);
}

/* By its worth, a loss of .1 in a window is more than what a probe costs, or less, and how much loss it is says
 * nothing: 19 of 20 models at theta 20. */
static void test_worth(void **state)
{
	const double costs = 0.01 * MODEL * PERIOD * (1 - 1 / 20.0);

	for (unsigned run = 0; run < 4; run++) {
		const bool pays = run % 2 == 0;
		struct world w;
		unsigned at;

		chance_seed = 6;
		world_init(&w, 2);
		w.config.sigma = run < 2 ? 0.01 : 10;
		w.config.worth = costs / (pays ? 0.05 : 0.2);
		w.price = 0.01;
		w.floor = 7;
		w.tells = true;
		w.waste = 0.1;
		at = world_settle(&w);
		assert_true(grid[at] == 20 && isnan(w.verdict.extra));
		w.config.bytes_part = 0.3;
		for (unsigned i = 0; i < 30000 && w.verdict.cause != PLUS_GAINS && w.verdict.cause != PLUS_WASTES; i++)
			world_turn(&w);
		assert_int_equal(w.verdict.cause, pays ? PLUS_GAINS : PLUS_WASTES);
		assert_true(fabs(w.verdict.extra - costs) < 1e-9);
		assert_true(pays ? w.verdict.gain - w.verdict.radius > 0.05 : w.verdict.gain + w.verdict.radius < 0.2);
		assert_true(pays ? w.plus.reach.ease == 0.5 && w.index < at : w.plus.reach.ease == 1.25);
	}
}

/* Gaia with latency: it tries one theta in a window, and stays at the first that costs next to nothing but that; goes
 * on where it turns out to cost more; and is not tighter for windows that are dearer at the tightest. */
static void test_near(void **state)
{
	static const double over[THETAS] = {50, 40, 20, 2.9, 1, 0.5, 0.2}, more[THETAS] = {50, 40, 20, 4, 2, 0.5, 0.2};
	struct world w;

	world_init(&w, 0);
	w.config.own = 0;
	memset(w.config.says, 0, sizeof(w.config.says));
	w.config.says[0] = 1;
	w.config.each_step = true;
	w.config.bytes_part = 0;
	w.floor = 100;
	w.over = over;
	for (unsigned i = 0; i < 6; i++)
		world_turn(&w);
	for (unsigned i = 1; i <= 3; i++, world_turn(&w))
		assert_int_equal(w.index, i);
	assert_int_equal(w.index, 3);
	assert_true(w.plus.phase == PLUS_STAYS && w.verdict.enough);
	assert_int_equal(world_settle(&w), 3);
	w.over = more;
	world_turn(&w);
	assert_int_equal(w.verdict.cause, PLUS_CHEAPER);
	assert_int_equal(w.index, 4);
	w.over = over; /* nobody tries a theta again that was too dear */
	assert_int_equal(world_settle(&w), 4);
	assert_true(w.verdict.enough && w.plus.reach.enough == 4);
	w.config.bytes_part = 1;
	for (unsigned i = 0; i < 60 && w.verdict.cause != PLUS_PROBE; i++)
		world_turn(&w);
	assert_int_equal(w.verdict.cause, PLUS_PROBE);
	assert_int_equal(world_turn(&w), 4); /* though the probe was dear */
	w.floor = 0;                         /* looser is always cheaper, and at once */
	w.config.bytes_part = 0;
	world_turn(&w);
	assert_int_equal(w.verdict.cause, PLUS_CHEAPER);
	assert_int_equal(world_settle(&w), THETAS - 1);
	assert_false(w.verdict.enough);
	w.pull = 60; /* the pull may always be what holds it */
	w.floor = 100;
	for (unsigned i = 0; i < 10 && w.plus.phase != PLUS_MEASURES; i++)
		world_turn(&w);
	assert_int_equal(world_settle(&w), 1);
	assert_false(w.verdict.enough);
}

/* Local SGD beside sites within that spend as much: what each theta costs is known, and the tightest that is cheap is
 * found by halves. Where even the tightest is, it stays there; where all are dear, nothing changes. */
static void test_near_local(void **state)
{
	static const struct {
		double floor, theta;
	} cases[] = {{0, 100}, {1, 100}, {1000, 50}, {5000, 10}, {10000, 5}, {20000, 2}, {40000, 1}};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct world w;
		unsigned windows = 0;

		world_init(&w, 0);
		w.config.own = 0;
		w.config.bytes_part = 0;
		w.price = 0.04; /* 1000 a window at theta 1 */
		w.floor = cases[i].floor;
		while (w.plus.phase != PLUS_STAYS && windows++ < 20)
			world_turn(&w);
		assert_true(windows <= 8);
		if (grid[w.index] != cases[i].theta)
			fail_msg("floor %g: theta %g", cases[i].floor, grid[w.index]);
		assert_true(grid[world_settle(&w)] == cases[i].theta);
		assert_true(w.verdict.enough == (cases[i].floor >= 1000));
	}
}

/* What cannot be true: theta stays, then it is the tightest; and the pull is as it was. */
static void test_blind(void **state)
{
	const struct plus_window bad[] = {
		{.exchanges = 1, .said = NAN, .heard = 1, .sites = 5},
		{.exchanges = 1, .said = 0, .heard = 0, .sites = 5},
		{.exchanges = 1, .said = 1, .heard = -1, .sites = 5},
		{.exchanges = 1, .said = INFINITY, .heard = 1, .sites = 5},
		{.exchanges = 1, .said = 1, .heard = NAN, .sites = 5},
		{.exchanges = 1, .said = 1, .heard = 1.01, .sites = 5}, /* somebody says less than it said */
		{.exchanges = 1, .said = 1, .heard = 0.5, .sites = NAN},
		{.exchanges = 1, .said = 1, .heard = 0.5, .sites = 0},
	};
	struct world w;

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		unsigned at;

		world_init(&w, 10);
		at = world_settle(&w);
		assert_true(at > 0);
		for (unsigned k = 0; k < 3; k++) {
			w.index = plus_next(&w.plus, &w.config, &bad[i], w.index, THETAS, 3, &w.verdict);
			assert_int_equal(w.verdict.cause, PLUS_BLIND);
			assert_int_equal(w.index, k < 2 ? at : 0);
		}
		assert_true(fabs(w.plus.reach.pull - 10) < 1e-9);
	}
}

/* A window without an exchange says nothing, and is no fault. */
static void test_idle(void **state)
{
	const struct plus_window idle = {.train = NAN, .before = NAN, .after = NAN};
	struct world w;

	world_init(&w, 0);
	world_settle(&w);
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(plus_next(&w.plus, &w.config, &idle, w.index, THETAS, 3, &w.verdict), w.index);
	assert_int_equal(w.verdict.cause, PLUS_THERE);
}

static void test_norm(void **state)
{
	struct world w;
	struct plus_window now;

	world_init(&w, 50);
	for (unsigned i = 0; i < 3; i++) {
		world_show(&w, &now);
		now.train = 0.1;
		now.before = now.after = 1.5;
		w.index = plus_next(&w.plus, &w.config, &now, w.index, THETAS, 3, &w.verdict);
		assert_int_equal(w.index, 0);
		assert_true((w.verdict.cause == PLUS_NORM) == (i > 0));
		assert_true(w.plus.reach.ease == 1); /* it is not theta's */
	}
	for (unsigned i = 0; i < 60; i++) { /* trials are rare */
		world_show(&w, &now);
		w.plus.past.asked = 0;
		assert_int_equal(plus_next(&w.plus, &w.config, &now, w.index, THETAS, 3, &w.verdict), 0);
		assert_true(w.verdict.cause == PLUS_NORM && fabs(w.verdict.beyond - 1.4) < 1e-9);
	}
	world_show(&w, &now); /* less than when it was told, and not sound yet */
	now.train = 0.1;
	now.before = now.after = 0.4;
	plus_next(&w.plus, &w.config, &now, w.index, THETAS, 3, &w.verdict);
	assert_int_equal(w.verdict.cause, PLUS_NORM);
	world_show(&w, &now);
	now.train = 1.4;
	now.before = now.after = 1.5;
	plus_next(&w.plus, &w.config, &now, w.index, THETAS, 3, &w.verdict);
	assert_int_not_equal(w.verdict.cause, PLUS_NORM);
	world_init(&w, 4);
	assert_true(world_settle(&w) > 0);
	for (unsigned i = 0; i < 2; i++) {
		world_show(&w, &now);
		now.train = 0.1;
		now.before = now.after = 1.5;
		w.index = plus_next(&w.plus, &w.config, &now, w.index, THETAS, 3, &w.verdict);
	}
	assert_int_equal(w.verdict.cause, PLUS_APART);
	assert_int_equal(w.index, 0);
	assert_int_equal(w.plus.phase, PLUS_MEASURES);
}

static unsigned part_turn(struct world *w, double train, double after)
{
	struct plus_window now;

	world_show(w, &now);
	now.train = train;
	now.after = after;
	now.tried = isnan(after) ? 0 : 200;
	w->index = plus_next(&w->plus, &w->config, &now, w->index, THETAS, 3, &w->verdict);
	return w->index;
}

/* What is hard to learn is no drift of models: the mean model's loss is no more than twice the sites' own. */
static void test_not_twice(void **state)
{
	struct world w;
	unsigned at;

	world_init(&w, 4);
	at = world_settle(&w);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(part_turn(&w, 1.5, 2.5), at);
	assert_true(w.plus.guard.apart == 0);
}

/* Models that have drifted apart: theta is tight until trials there say that the mean is sound, and less loose after
 * that; of those that never are it says so. Where nobody tries models any more it goes on. */
static void test_apart(void **state)
{
	for (unsigned run = 0; run < 3; run++) {
		struct world w;
		unsigned at;

		world_init(&w, 4);
		at = world_settle(&w);
		part_turn(&w, 0.1, 1.5);
		assert_int_equal(part_turn(&w, 0.1, 1.5), 0);
		assert_int_equal(w.verdict.cause, PLUS_APART);
		assert_int_equal(part_turn(&w, 0.1, 1.5), 0); /* tried at the end of the window that was not tight */
		assert_int_equal(w.verdict.cause, PLUS_WAITS);
		for (unsigned i = 0; i < 40; i++) {
			w.plus.past.asked = 0;
			assert_int_equal(part_turn(&w, 0.1, NAN), 0);
			assert_int_equal(w.verdict.cause, PLUS_WAITS);
			assert_int_equal(plus_span(&w.plus, PERIOD), PERIOD);
		}
		w.plus.past.asked = 200;
		part_turn(&w, 0.1, run == 0 ? 0.11 : run == 1 ? NAN : 1.5);
		assert_int_equal(w.verdict.cause, run == 2 ? PLUS_NORM : PLUS_FIRST);
		if (run < 2)
			assert_true(world_settle(&w) < at && w.plus.reach.ease == 0.5);
		else
			assert_true(w.plus.reach.ease == 1); /* it was not theta */
	}
}

/* Who has other data or models says how loose theta may be beside what was measured, when to measure, what is drift,
 * and what probes may cost. */
static void test_options(void **state)
{
	static const double eases[] = {0.25, 1, 4};

	for (unsigned i = 0; i < 3; i++) {
		struct world w;
		unsigned at;

		world_init(&w, 20);
		w.config.ease = eases[i];
		at = world_settle(&w);
		assert_true(w.config.need[at] * felt(&w, 20) <= eases[i] * 1.0001);
		assert_true(at + 1 == THETAS || w.config.need[at + 1] * felt(&w, 20) > eases[i] * 0.999);
		assert_true(w.plus.reach.ease == 1);
	}
	for (unsigned passes = 0; passes <= 200; passes += 50) {
		struct world w;

		world_init(&w, 0);
		w.config.passes = passes;
		while (w.index == 0)
			world_turn(&w);
		assert_int_equal(w.steps, passes + w.config.settle);
	}
	for (unsigned run = 0; run < 2; run++) {
		struct world w;
		unsigned at, drifts = 0;

		world_init(&w, 1);
		w.config.bytes_part = 0;
		w.config.bound = run == 0 ? 0.5 : 0;
		at = world_settle(&w);
		w.pull = 40;
		for (unsigned i = 0; i < 100; i++) {
			world_turn(&w);
			drifts += w.verdict.cause == PLUS_DRIFTED;
			assert_true(w.verdict.cause != PLUS_PROBE);
		}
		assert_true(run == 0 ? drifts > 0 && w.index < at : drifts == 0 && w.index == at);
	}
}

TEST_PROGRAM(test_plus)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_settles),
		cmocka_unit_test(test_course),
		cmocka_unit_test(test_long_windows),
		cmocka_unit_test(test_rate),
		cmocka_unit_test(test_drift),
		cmocka_unit_test(test_others),
		cmocka_unit_test(test_moves),
		cmocka_unit_test(test_fills),
		cmocka_unit_test(test_budgets),
		cmocka_unit_test(test_first_trials),
		cmocka_unit_test(test_few_and_many),
		cmocka_unit_test(test_probes),
		cmocka_unit_test(test_probes_of_long_windows),
		cmocka_unit_test(test_worth),
		cmocka_unit_test(test_near),
		cmocka_unit_test(test_near_local),
		cmocka_unit_test(test_blind),
		cmocka_unit_test(test_idle),
		cmocka_unit_test(test_norm),
		cmocka_unit_test(test_apart),
		cmocka_unit_test(test_not_twice),
		cmocka_unit_test(test_options),
	};

	return cmocka_run_group_tests_name("plus", tests, NULL, NULL);
}
