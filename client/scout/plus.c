/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a window showed is judged first; then the phase says what it means.
 */
#include "client/scout/plus.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>

/*
 * Measured with tests/bench/skew_study (K=5, group normalization, --on valid). At 20, 40, 60, 80 and 100 % of skew by
 * label the pull of steps 40 to 60 is 2.4, 8.5, 20, 39 and 76 (seeds 100 to 105), later about two thirds of it, and the
 * loosest theta of local SGD within a point of BSP about 60, 20, 7, 2.5 and 2 (seed 100); sites that are alike lose a
 * point at 20 to 100. With a theta that is one over pull and own what allows 2 at 80 % allows 8 at 40 %; one over the
 * square of it follows. Points lost are .84 .82 .72 .60 .66 .68 at 0 to 100 % (medians of seeds 100 to 102).
 *
 * With K=10 (seed 100) theta 20, 5, below 2, and 2 are within a point at 20 to 80 %, by pulls of 4.9, 14, 28 and 60,
 * and with K=2 still 100 by pulls of 0 and .3: as loose as the root of 5 / K allows.
 */
static const double plus_reach_local = 18000, plus_own_local = 17;

/*
 * What Gaia says at a looser theta rises for ten windows, as what is kept back fills up: by 2.3 times at theta .2 and
 * 20 or 60 % of skew (seed 100). Where data drift to 100 %, or from there, it is 2.6 and 10 times as much in one
 * window.
 */
static const double plus_slack_local = 0.1, plus_slack_gaia = 0.35;

/* Gaia: .25 at a pull of 2.2, .2 at 19, .02 at 60; what lies between is by the logarithms of both. At 80 % of skew, by
 * pulls of 34 to 54 in steps 40 to 60 and of 26 later, .05 loses 1.04 points, .07 .82 and .1 1.30 (seeds 100 to 102).
 */
static const struct {
	double theta, need;
} plus_steps_gaia[] = {
	{0.01, 0.0067}, {0.02, 0.0075}, {0.05, 0.0098}, {0.1, 0.0186}, {0.2, 0.0228}, {0.3, 0.224}, {1, 4.5}};

/* Steps of a window while it measures: so a pull takes PLUS_PASSES + `settle` of them, however long a period is. */
enum { PLUS_SHORT = 10 };

/* Windows at a new theta or rate of learning that are not watched: the first has both rates, and models settle in the
 * second: at 80 and 100 % of skew what they move at theta 2 had left its level after three (seeds 100 to 102). */
enum { PLUS_CALM = 2 };

/*
 * Of what a trial says beside what sites lost meanwhile: with c the deviation of a sample's loss over its mean, of n
 * samples c / sqrt(n) is chance, the same in all trials, as they are on the same samples, and less in each that is new.
 * c is 1.1 (bsp, without norm and with that by groups, K=2, 3, 5, 10, 40 samples a site, seeds 100 and 101).
 * PLUS_CHANCE is above that, and PLUS_OFF twice as much, which is too little in 2.3 % of runs. With both the odds were
 * nowhere above .1 in these runs, and of batch normalization at 100 % skew 40 after three to five trials from K=3 on.
 */
enum { PLUS_BEARS = 10, PLUS_TRIALS = 2 };

/*
 * With batch normalization at 100 % skew theta 1, 5 and 20 of local SGD, or 0, .1 and .2 of Gaia, end at an accuracy of
 * 75.7, 79.4, 79.8, 78.8 and 79.8 % with K=3, 69.2, 75.0, 75.7, 76.3 and 76.1 with K=5, and 51.6, 65.4, 71.9, 69.9 and
 * 73.4 with K=10 (BSP has the first place of both; 600 steps, seeds 100 and 101).
 */

/* Odds beyond which it looks closer: without cause the second trial alone has to be off by four deviations. And for so
 * many windows at most, as they cost what BSP does: with K=3 and 100 % skew three to five were enough. */
static const double plus_doubt = 0.25;
enum { PLUS_LONG = 6 };

#define PLUS_ROUNDING 1e-3

/* Of a mean of nothing; a mean of pulls with it is a number still. */
#define PLUS_PULL_MOST 1e9

/* A series goes on until the rate of learning is so many times the one that it began with, or as small a part. */
#define PLUS_ALIKE 2

void plus_defaults(struct plus_config *config)
{
	*config = (struct plus_config){.power = 1,
		.settle = 20,
		.sigma = 0.02,
		.alpha = 0.05,
		.slack = 0.1,
		.slack_moves = plus_slack_local,
		.bound = 0.5,
		.bytes_part = 0.02,
		.work_part = 0.03,
		.tries = 200,
		.guard = 0.5,
		.statistics = true};
}

static double plus_need_gaia(double theta)
{
	const unsigned last = sizeof(plus_steps_gaia) / sizeof(plus_steps_gaia[0]) - 1;
	unsigned i = 0;
	double part, from, to;

	if (theta <= plus_steps_gaia[0].theta)
		return plus_steps_gaia[0].need;
	while (i + 1 < last && theta > plus_steps_gaia[i + 1].theta)
		i++;
	from = exact_log(plus_steps_gaia[i].need);
	to = exact_log(plus_steps_gaia[i + 1].need);
	part = exact_log(theta / plus_steps_gaia[i].theta) /
	       exact_log(plus_steps_gaia[i + 1].theta / plus_steps_gaia[i].theta);
	return exact_exp(from + part * (to - from));
}

int plus_needs(struct plus_config *config, enum site_algorithm algorithm, const double *thetas, unsigned count)
{
	const double all[SITE_ALGORITHM_COUNT] = {[SITE_BSP] = 1, [SITE_GAIA] = 0, [SITE_LOCAL] = 1};

	if (algorithm == SITE_DGC)
		return -ENOTSUP;
	if ((unsigned)algorithm >= SITE_ALGORITHM_COUNT || count == 0 || thetas[0] != all[algorithm])
		return -EINVAL;
	config->own = algorithm == SITE_LOCAL ? plus_own_local : 0;
	config->each_step = algorithm != SITE_LOCAL;
	config->power = algorithm == SITE_LOCAL ? 2 : 1;
	config->by_rate = algorithm == SITE_LOCAL; /* Gaia's threshold itself goes by the rate */
	config->slack_moves = algorithm == SITE_GAIA ? plus_slack_gaia : plus_slack_local;
	for (unsigned i = 0; i < count && i < PLUS_THETAS_MAX; i++) {
		double need = algorithm == SITE_LOCAL  ? thetas[i] / plus_reach_local
			      : algorithm == SITE_GAIA ? plus_need_gaia(thetas[i])
						       : 0;

		config->need[i] = i ? need : 0;
		config->says[i] = algorithm == SITE_LOCAL ? 1 / thetas[i] : i == 0;
	}
	return 0;
}

const char *plus_check(const struct plus_config *c, unsigned count)
{
	const struct {
		const char *wrong;
		double value;
		bool good;
	} numbers[] = {
		{"settle needs to be a number above 0", c->settle, c->settle > 0},
		{"gain needs to be a number above 0", c->sigma, c->sigma > 0},
		{"worth needs to be a number from 0 on; with 0 gain holds", c->worth, c->worth >= 0},
		{"alpha needs to be above 0 and below 1", c->alpha, c->alpha > 0 && c->alpha < 1},
		{"slack needs to be a number above 0", c->slack, c->slack > 0},
		{"bound needs to be a number above 0", c->bound, c->bound > 0},
		{"bytes_part needs to be 0 to 1", c->bytes_part, c->bytes_part >= 0 && c->bytes_part <= 1},
		{"work_part needs to be 0 to 1", c->work_part, c->work_part >= 0 && c->work_part <= 1},
		{"guard needs to be a number above 0", c->guard, c->guard > 0},
		{"own needs to be a number from 0 on", c->own, c->own >= 0},
		{"power needs to be 1 or 2", c->power, c->power == 1 || c->power == 2},
		{"slack_moves needs to be a number above 0", c->slack_moves, c->slack_moves > 0},
		{"the need of the first theta has to be 0", c->need[0], c->need[0] == 0},
	};

	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (!numbers[i].good || !isfinite(numbers[i].value))
			return numbers[i].wrong;
	for (unsigned i = 1; i < count; i++)
		if (!(c->need[i] >= c->need[i - 1]))
			return "the need of a theta that is looser has to be no less than of one before";
	return NULL;
}

void plus_init(struct plus *plus)
{
	*plus = (struct plus){.phase = PLUS_MEASURES,
		.pull = NAN,
		.ease = 1,
		.rate = NAN,
		.rate_at = NAN,
		.beyond = NAN,
		.beyond_tight = NAN,
		.train = NAN,
		.usually = NAN,
		.extra = NAN,
		.enough = PLUS_THETAS_MAX};
}

uint32_t plus_span(const struct plus *plus, uint32_t period)
{
	const bool goes_on = plus->mean == PLUS_SOUND || plus->mean == PLUS_HOPELESS;
	const bool measures = plus->phase == PLUS_MEASURES && goes_on;

	return measures && period > PLUS_SHORT ? PLUS_SHORT : period;
}

/* ---- what the window says ---- */

double plus_alignment(double said, double heard)
{
	const double r = heard / said;

	return said > 0 && isfinite(said) && r >= 0 && r <= 1 + PLUS_ROUNDING ? fmin(1, r) : NAN;
}

/* Some of the mean is the common gradient's, and chance may have r above 1 / K: then there is none to be seen. */
static double plus_pull_of(double r, double sites)
{
	return r * sites < 1 ? fmin(1 / (r * sites) - 1, PLUS_PULL_MOST) : 0;
}

/* How much looser theta may be at this rate than at that at which the pull was measured; one that is not known is the
 * same. */
static double plus_slower(const struct plus *p, const struct plus_config *c, double rate)
{
	return c->by_rate && rate > 0 && rate < p->rate_at ? sqrt(p->rate_at / rate) : 1;
}

/* Which thetas are cheaper than others: see plus.h. */
static void plus_weigh(
	struct plus *p, const struct plus_config *c, const struct plus_window *w, unsigned index, unsigned count)
{
	const double over = w->spent - w->floor;
	const bool known = c->says[count - 1] > 0;

	p->slowly = w->floor > 0 && !known;
	for (unsigned i = 0; w->floor > 0 && i < count; i++) {
		const bool told = c->says[i] > 0 && c->says[index] > 0;

		if (i != index && !told)
			continue;
		if ((i == index ? over : over * c->says[i] / c->says[index]) > PLUS_NEAR * w->floor)
			continue;
		p->enough = i;
		if (p->phase == PLUS_LOOSENS && p->target > i)
			p->target = i;
		return;
	}
	if (known || index >= p->enough)
		p->enough = PLUS_THETAS_MAX;
}

/* At this rate, and as far as looser is cheaper. */
static unsigned plus_allowed(const struct plus *p, const struct plus_config *c, double rate, unsigned count)
{
	const double pull = p->pull + c->own;
	const double felt = (c->power == 2 ? pull * pull : pull) * sqrt(p->sites) / plus_slower(p, c, rate);
	const double have = felt > 0 ? p->ease / felt : INFINITY;
	unsigned index = 0;

	while (index + 1 < count && c->need[index + 1] <= have)
		index++;
	return index < p->enough ? index : p->enough;
}

static void plus_enter(struct plus *p, enum plus_phase phase)
{
	p->phase = phase;
	p->passed = p->counted = 0;
	p->alignment = p->moves = p->loss = (struct watch){0};
}

static void plus_account(struct plus *p, const struct plus_window *w)
{
	p->bytes += w->bytes;
	p->bytes_probe += p->phase == PLUS_PROBES ? w->bytes : 0;
	p->trained += w->trained > 0 ? w->trained : 0;
	p->tried += w->tried > 0 ? w->tried : 0;
	if (w->tried > 0)
		p->each = w->tried > p->asked ? w->tried : 0;
}

/* Is there work left for two trials of so many samples, before a window and after it? One that is tried is about a
 * third of one that is trained on: forward, and not backward. */
static bool plus_affords(const struct plus *p, const struct plus_config *c, uint32_t samples)
{
	return p->tried + 2 * fmax(samples, p->each) <= 3 * c->work_part * p->trained;
}

/* Few where the guard wants to know soon, but what has shown on more alone; a probe wants all. */
static uint32_t plus_samples(const struct plus *p, const struct plus_config *c)
{
	const bool told = p->mean == PLUS_DOUBTFUL || p->mean == PLUS_HOPELESS;
	const bool fine = told && p->tried_tight > PLUS_FEW;
	const bool guards = !fine && (p->mean != PLUS_SOUND || !(p->tried > 0) || p->beyond > c->guard / 2);

	return guards && p->phase != PLUS_PROBES && c->tries > PLUS_FEW ? PLUS_FEW : c->tries;
}

/* One trial alone says little: to what was tried before a window belongs what is tried after it. */
static uint32_t plus_tries(struct plus *p, const struct plus_config *c)
{
	const uint32_t second = p->second, samples = plus_samples(p, c);

	p->second = second == 0 && plus_affords(p, c, samples) ? samples : 0;
	return second > 0 ? second : p->second;
}

/* Was the mean model tried on the same samples, before the window before this one and after it? */
static bool plus_compares(const struct plus *p)
{
	return p->before == p->asked || p->before == 0 || p->asked == 0;
}

/* One whose gain nobody can see is not worth it, but where nobody ever will. */
static bool plus_may_probe(const struct plus *p, const struct plus_config *c, const struct plus_window *w)
{
	const bool seen = !(p->trained > 0) || (p->second == 0 && plus_affords(p, c, c->tries));

	return seen && p->bytes_probe + w->bytes_bsp <= c->bytes_part * p->bytes;
}

/* Is it another rate than that of the series, by more than PLUS_ALIKE? */
static bool plus_rates_differ(double a, double b)
{
	const bool unknown = isnan(a) && isnan(b);

	return a != b && !unknown && !(a > 0 && b > 0 && a < b * PLUS_ALIKE && b < a * PLUS_ALIKE);
}

/* Which of the series leaves its level, if one does? Sites move by the rate, which may fall a little in each window. */
static enum plus_series plus_drifts(
	struct plus *p, const struct plus_config *c, const struct plus_window *w, struct plus_verdict *v)
{
	const double rate = w->rate > 0 ? w->rate : 1;
	const double moves = exact_log(w->said / w->exchanges) - 2 * exact_log(rate);
	enum watch_alarm alignment = WATCH_QUIET, moved = WATCH_QUIET, lost = WATCH_QUIET;

	if (plus_rates_differ(w->rate, p->rate)) {
		p->alignment = p->moves = p->loss = (struct watch){0};
		p->calm = PLUS_CALM;
		p->rate = w->rate;
	}
	if (p->calm > 0) {
		p->calm--;
		return PLUS_NONE;
	}
	if (v->r > 0) {
		alignment = watch_add(&p->alignment, exact_log(v->r), c->slack, c->bound);
		moved = watch_add(&p->moves, moves, c->slack_moves, c->bound);
	}
	if (!plus_compares(p))
		p->loss = (struct watch){0};
	if (w->after > 0 && isfinite(w->after))
		lost = watch_add(&p->loss, exact_log(w->after), c->slack, c->bound);
	if (alignment != WATCH_QUIET)
		return PLUS_ALIGNMENT;
	if (moved == WATCH_RISEN)
		return PLUS_MOVES;
	return lost == WATCH_RISEN ? PLUS_LOSS : PLUS_NONE;
}

/* Are sites others than those whose pull was measured, by so much that r alone would look like drift? */
static bool plus_sites_differ(const struct plus *p, const struct plus_config *c, const struct plus_window *w)
{
	return p->measured > 0 && fabs(exact_log(w->sites / p->sites)) > c->slack / 2;
}

/* ---- phases: each returns the index that is next ---- */

/* Half of the way that is left, rounded up, or one theta of it; at once where it is tighter. */
static unsigned plus_toward(const struct plus *p, unsigned index)
{
	const unsigned half = (p->target - index + 1) / 2;

	return p->target > index ? index + (p->slowly ? 1 : half) : p->target;
}

static unsigned plus_go(struct plus *p, unsigned index, struct plus_verdict *v, enum plus_cause cause)
{
	const unsigned next = plus_toward(p, index);

	v->cause = cause;
	plus_enter(p, next == p->target ? PLUS_STAYS : PLUS_LOOSENS);
	if (p->phase == PLUS_STAYS)
		p->calm = PLUS_CALM;
	if (p->phase == PLUS_STAYS && !p->settled) {
		p->settled = true;
		p->bytes = p->bytes_probe = 0;
	}
	return next;
}

static void plus_take_pull(struct plus *p, const struct plus_window *w, double r)
{
	const double pull = plus_pull_of(r, w->sites);

	p->measured++;
	p->rate_at = w->rate;
	p->sites = w->sites;
	p->pull = p->measured == 1 ? pull : p->pull + (pull - p->pull) / p->measured;
}

static unsigned plus_measure(struct plus *p, const struct plus_config *c, const struct plus_window *w, double r,
	unsigned count, struct plus_verdict *v)
{
	v->cause = PLUS_FIRST;
	if (p->passed < PLUS_PASSES) {
		p->passed += w->exchanges;
		return 0;
	}
	plus_take_pull(p, w, r);
	p->counted += w->exchanges;
	if (p->counted < c->settle)
		return 0;
	p->target = plus_allowed(p, c, w->rate, count);
	return plus_go(p, 0, v, PLUS_MEASURED);
}

static unsigned plus_measure_anew(struct plus *p, struct plus_verdict *v, enum plus_cause cause)
{
	v->cause = cause;
	p->measured = 0;
	p->usual = p->probes = (struct sequence){0};
	plus_enter(p, PLUS_MEASURES);
	return 0;
}

/* The interval of the difference is no wider than both. */
static void plus_gain(const struct plus *p, const struct plus_config *c, struct plus_verdict *v)
{
	const double as_long = p->probed > 0 ? p->probed : 1;

	v->gain = p->probes.count && p->usual.count ? as_long * (p->probes.mean - p->usual.mean) : NAN;
	v->radius = as_long *
		    (sequence_radius(&p->probes, c->alpha / 2, 16) + sequence_radius(&p->usual, c->alpha / 2, 64));
}

/* What the window before did to the mean model's loss; of a probe, is it certain by now? */
static void plus_learn(struct plus *p, const struct plus_config *c, const struct plus_window *w, struct plus_verdict *v)
{
	const double fell = w->before - w->after, least = c->worth > 0 ? p->extra / c->worth : c->sigma;

	if (!isfinite(fell) || !plus_compares(p) || (p->last != PLUS_STAYS && p->last != PLUS_PROBES))
		return;
	sequence_add(p->last == PLUS_PROBES ? &p->probes : &p->usual, p->work > 0 ? fell / p->work : fell);
	if (p->last != PLUS_PROBES)
		return;
	p->probed = p->work;
	plus_gain(p, c, v);
	if (v->gain - v->radius > least) {
		p->ease /= 2;
		v->cause = PLUS_GAINS;
	} else if (v->gain + v->radius < least) {
		p->ease *= 1.25;
		v->cause = PLUS_WASTES;
	}
	if (v->cause != PLUS_THERE)
		p->usual = p->probes = (struct sequence){0};
}

/* To the target where that is tighter, else one theta toward it. */
static unsigned plus_turn(struct plus *p, unsigned index)
{
	plus_enter(p, PLUS_STAYS);
	return p->target < index ? p->target : index + 1;
}

static unsigned plus_probe(struct plus *p, const struct plus_config *c, const struct plus_window *w, double r,
	unsigned count, struct plus_verdict *v)
{
	v->cause = PLUS_PROBE_OVER;
	p->extra = w->spent - p->usually;
	p->measured = p->measured < 8 ? p->measured : 7;
	plus_take_pull(p, w, r);
	p->target = plus_allowed(p, c, w->rate, count);
	p->phase = PLUS_STAYS;
	return p->target == p->back ? p->back : plus_turn(p, p->back);
}

static unsigned plus_stay(struct plus *p, const struct plus_config *c, const struct plus_window *w, double r,
	unsigned index, unsigned count, struct plus_verdict *v)
{
	v->drifts = plus_drifts(p, c, w, v);
	if (v->drifts != PLUS_NONE)
		return plus_measure_anew(p, v, PLUS_DRIFTED);
	if (plus_allowed(p, c, w->rate, count) != p->target) {
		p->target = plus_allowed(p, c, w->rate, count);
		return plus_go(p, index, v, PLUS_SLOWER);
	}
	v->cause = PLUS_THERE;
	plus_learn(p, c, w, v);
	if (v->cause != PLUS_THERE) {
		p->target = plus_allowed(p, c, w->rate, count);
		if (p->target != index)
			return plus_turn(p, index);
	}
	if (index == 0) { /* nothing is tighter: each window measures */
		p->measured = p->measured < 8 ? p->measured : 7;
		plus_take_pull(p, w, r);
		p->target = plus_allowed(p, c, w->rate, count);
		return p->target > 0 ? plus_go(p, 0, v, PLUS_MEASURED) : 0;
	}
	if (!plus_may_probe(p, c, w))
		return index;
	p->back = index;
	p->usually = w->spent;
	v->cause = PLUS_PROBE;
	p->phase = PLUS_PROBES; /* the watches wait */
	return 0;
}

/* A trial where sites talked at each step is evidence, beside what sites lost on their own in that window, when the
 * model was no better than at its end. Is there a new one? */
static bool plus_weigh_trial(struct plus *p, const struct plus_config *c, const struct plus_window *w)
{
	const double chance = p->train / sqrt(w->tried * w->sites);
	const double beyond = w->after - p->train - c->guard / PLUS_BEARS - PLUS_OFF * chance;

	if (p->was > 0 || !isfinite(beyond) || !(chance > 0))
		return false;
	if (c->statistics)
		evidence_add(&p->apart_tight, beyond / (PLUS_CHANCE * chance), 2 / c->alpha);
	p->beyond_tight = w->after - p->train;
	p->tried_tight = w->tried;
	return true;
}

/* Sites' own models do well on what they are trained on; the mean of them does not: for two tries in a row. It is the
 * drift of models, which the tightest theta ends, or else what no theta mends: trials at the tightest tell. Or it does
 * a little worse each time, where it is tight, until that is no chance. */
static void plus_watch_mean(struct plus *p, const struct plus_config *c, const struct plus_window *w)
{
	const bool silent = p->asked > 0 && !(w->tried > 0); /* nobody tries any more */
	const double guard = p->mean == PLUS_SUSPECT || p->mean == PLUS_HOPELESS ? c->guard / 2 : c->guard;
	const bool weighed = plus_weigh_trial(p, c, w);
	const bool doubts = p->apart_tight.count >= PLUS_TRIALS && p->apart_tight.odds >= plus_doubt;
	const bool waited = p->mean == PLUS_DOUBTFUL && ++p->doubted >= PLUS_LONG;
	bool sound, suspect_is_sound;

	if (!isnan(w->after)) {
		p->beyond = w->after - w->train;
		p->apart = p->beyond > guard && w->after > 2 * w->train ? p->apart + 1 : 0;
	}
	sound = !isnan(w->after) && p->was == 0 && p->apart == 0;
	suspect_is_sound = p->mean == PLUS_SUSPECT && sound;
	if (p->mean == PLUS_HOPELESS && p->was > 0) {
		p->apart = 0; /* of drift beside that nothing is known */
		p->mean = silent ? PLUS_SOUND : PLUS_HOPELESS;
	} else if (p->apart > 1 && p->was > 0) {
		p->mean = PLUS_SUSPECT;
		p->apart = 0;
	} else if (p->apart > 1 || (weighed && p->apart_tight.odds >= 2 / c->alpha)) {
		p->mean = PLUS_HOPELESS;
	} else if (weighed && doubts && p->doubted == 0 && (p->mean == PLUS_SOUND || suspect_is_sound)) {
		p->mean = PLUS_DOUBTFUL;
	} else if (silent || waited || suspect_is_sound || (sound && !doubts)) {
		p->mean = PLUS_SOUND;
	}
	p->doubted = doubts ? p->doubted : 0;
}

/* While it is not known whether the mean model is sound theta is the tightest; then the pull is measured anew, and less
 * is made of it where another theta was the cause. */
static unsigned plus_part(struct plus *p, enum plus_mean before, struct plus_verdict *v)
{
	if (before == PLUS_SOUND) {
		p->ease /= p->mean == PLUS_SUSPECT ? 2 : 1;
		plus_measure_anew(p, v, PLUS_APART);
	}
	v->cause = before == PLUS_SOUND ? PLUS_APART : PLUS_WAITS;
	if (p->mean == PLUS_DOUBTFUL)
		v->cause = PLUS_DOUBTS;
	return 0;
}

unsigned plus_next(struct plus *p, const struct plus_config *c, const struct plus_window *w, unsigned index,
	unsigned count, unsigned patience, struct plus_verdict *v)
{
	const double r = plus_alignment(w->said, w->heard);
	const enum plus_phase phase = p->phase;
	const enum plus_mean mean = p->mean;
	const unsigned enough = p->enough;
	unsigned next = index;

	plus_watch_mean(p, c, w);
	*v = (struct plus_verdict){.r = r, .gain = NAN, .radius = INFINITY, .cause = PLUS_THERE};
	plus_account(p, w);
	if (!(isfinite(r) && w->sites >= 1 - PLUS_ROUNDING) && w->exchanges > 0) {
		v->cause = PLUS_BLIND;
		next = ++p->blind >= patience ? 0 : next;
	} else if (p->mean == PLUS_SUSPECT || p->mean == PLUS_DOUBTFUL) {
		next = plus_part(p, mean, v);
	} else if (w->exchanges > 0) {
		p->blind = 0;
		plus_weigh(p, c, w, index, count);
		if (plus_sites_differ(p, c, w))
			next = plus_measure_anew(p, v, PLUS_OTHERS);
		else if (p->phase == PLUS_MEASURES)
			next = plus_measure(p, c, w, r, count, v);
		else if (p->phase == PLUS_LOOSENS)
			next = plus_go(p, index, v, PLUS_ON_ITS_WAY);
		else if (p->phase == PLUS_STAYS)
			next = plus_stay(p, c, w, r, index, count, v);
		else
			next = plus_probe(p, c, w, r, count, v);
	}
	if (v->cause == PLUS_SLOWER && p->enough != enough)
		v->cause = PLUS_CHEAPER;
	if (p->mean == PLUS_HOPELESS && v->cause != PLUS_BLIND && (next == index || mean != PLUS_HOPELESS))
		v->cause = PLUS_NORM;
	if (p->mean == PLUS_HOPELESS && mean == PLUS_SUSPECT)
		p->ease *= 2; /* it was not theta */
	if (isnan(v->gain))
		plus_gain(p, c, v);
	p->last = phase;
	p->was = index;
	p->train = w->train;
	p->work = w->trained > 0 ? w->trained : p->work;
	v->pull = p->pull;
	v->beyond = v->cause == PLUS_NORM && !isnan(p->beyond_tight) ? p->beyond_tight : p->beyond;
	v->extra = p->extra;
	v->enough = p->phase == PLUS_STAYS && next == p->enough && next + 1 < count;
	v->all = p->phase == PLUS_STAYS && next == index && count > 1 && w->bytes >= (1 - PLUS_NEAR) * w->bytes_bsp &&
		 w->bytes_bsp > 0;
	v->tries = plus_tries(p, c);
	p->before = p->asked;
	p->asked = v->tries;
	if (w->exchanges > 0 && p->phase != PLUS_STAYS && p->phase != PLUS_PROBES)
		p->rate = w->rate;
	return next;
}
