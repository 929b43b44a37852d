/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What comes in is judged first, then the cost of the theta that it is at is known, then the policy looks around.
 */
#include "client/scout/scout.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "phub/base/mix.h"

/* ---- numbers ---- */

static uint64_t scout_draw(struct scout *s)
{
	s->random += MIX_STEP;
	return mix_64(s->random);
}

/* 0 .. 1, without 1. */
static double scout_chance(struct scout *s)
{
	return (double)(scout_draw(s) >> 11) * 0x1p-53;
}

/* ---- what it is made of ---- */

void scout_defaults(struct scout_config *config)
{
	*config = (struct scout_config){.policy = SCOUT_HILL,
		.period = 500,
		.lambda_loss = 50,
		.lambda_bytes = 1,
		.sigma = 0.05,
		.temperature = 1,
		.cooling = 0.9,
		.patience = 3};
	plus_defaults(&config->plus);
}

static int scout_check_grid(const struct scout_config *config, struct err *e)
{
	if (config->theta_count == 0 || config->theta_count > SCOUT_THETAS_MAX || config->first >= config->theta_count)
		return err_set(e, -EINVAL, "a grid of %u thetas that begins with number %u; allowed are 1 to %u",
			config->theta_count, config->first, SCOUT_THETAS_MAX);
	for (unsigned i = 0; i < config->theta_count; i++) {
		if (!isfinite(config->thetas[i]))
			return err_set(e, -EINVAL, "theta %u of the grid is not a number", i);
		for (unsigned k = 0; k < i; k++)
			if (config->thetas[k] == config->thetas[i])
				return err_set(e, -EINVAL, "theta %g is in the grid twice", config->thetas[i]);
	}
	for (unsigned i = 2; i < config->theta_count; i++)
		if ((config->thetas[i] > config->thetas[i - 1]) != (config->thetas[1] > config->thetas[0]))
			return err_set(e, -EINVAL,
				"theta %g comes after %g in a grid that %s before that; allowed are thetas that all "
				"rise, or all fall, the tightest first",
				config->thetas[i], config->thetas[i - 1],
				config->thetas[1] > config->thetas[0] ? "rises" : "falls");
	if (config->policy != SCOUT_REPLAY)
		return 0;
	if (config->schedule_count == 0 || config->schedule_count > SCOUT_SCHEDULE_MAX)
		return err_set(e, -EINVAL, "a schedule of %u thetas; allowed are 1 to %u", config->schedule_count,
			SCOUT_SCHEDULE_MAX);
	for (unsigned i = 0; i < config->schedule_count; i++)
		if (!isfinite(config->schedule[i]))
			return err_set(e, -EINVAL, "theta %u of the schedule is not a number", i);
	return 0;
}

static int scout_check(const struct scout_config *config, struct err *e)
{
	const struct {
		const char *name;
		double value;
		bool good;
		const char *allowed;
	} numbers[] = {
		{"lambda_loss", config->lambda_loss, config->lambda_loss >= 0, "0 or more"},
		{"lambda_bytes", config->lambda_bytes, config->lambda_bytes >= 0, "0 or more"},
		{"sigma", config->sigma, config->sigma >= 0 && config->sigma <= 1, "0 to 1"},
		{"temperature", config->temperature, config->temperature > 0, "above 0"},
		{"cooling", config->cooling, config->cooling > 0 && config->cooling <= 1, "above 0, to 1"},
		{"period", config->period, config->period > 0, "1 or more"},
		{"model_bytes", (double)config->model_bytes, config->model_bytes > 0, "1 or more"},
		{"patience", config->patience, config->patience > 0, "1 or more"},
		{"trim", config->trim, config->trim >= 0 && config->trim < 0.5, "0 to below 0.5"},
	};

	if ((unsigned)config->policy >= SCOUT_POLICY_COUNT)
		return err_set(e, -EINVAL, "policy %d does not exist", (int)config->policy);
	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (!numbers[i].good || !isfinite(numbers[i].value))
			return err_set(e, -EINVAL, "%s is %g; allowed: %s", numbers[i].name, numbers[i].value,
				numbers[i].allowed);
	if (price_check(&config->price))
		return err_set(e, -EINVAL, "%s", price_check(&config->price));
	if (config->policy == SCOUT_PLUS && config->theta_count <= SCOUT_THETAS_MAX) {
		const char *wrong = plus_check(&config->plus, config->theta_count);

		if (wrong)
			return err_set(e, -EINVAL, "scout+: %s", wrong);
	}
	return scout_check_grid(config, e);
}

int scout_init(struct scout *scout, const struct scout_config *config, struct err *e)
{
	int rc = scout_check(config, e);

	if (rc < 0)
		return rc;
	*scout = (struct scout){.config = *config,
		.index = config->policy == SCOUT_PLUS ? 0 : config->first,
		.random = mix_64(config->seed)};
	plus_init(&scout->plus);
	return 0;
}

static unsigned scout_place(const struct scout *s)
{
	return s->window < s->config.schedule_count ? (unsigned)s->window : s->config.schedule_count - 1;
}

double scout_theta(const struct scout *scout)
{
	if (scout->config.policy == SCOUT_REPLAY)
		return scout->config.schedule[scout_place(scout)];
	return scout->config.thetas[scout->index];
}

unsigned scout_host(const struct scout *scout, unsigned site, unsigned sites)
{
	uint64_t r = mix_64(scout->config.seed ^ mix_64(scout->window));

	return (unsigned)((site + 1 + r % (sites - 1)) % sites);
}

/* ---- what a window says ---- */

/* What cannot be true costs nothing. */
static double scout_spent(const struct price *price, const struct scout_report *report)
{
	double own = price_of(price->unit, &price->link, (double)report->bytes, report->exchanges);
	double within = price_of(price->unit, &price->within, (double)report->within, report->exchanges_within);

	return (own >= 0 && isfinite(own) ? own : 0) + (within >= 0 && isfinite(within) ? within : 0);
}

/* Of that, what no theta of scout+ changes. In bytes alone nothing: classes of links are told apart by their price. */
static double scout_floor(const struct scout_config *c, const struct scout_report *report)
{
	const enum price_unit unit = c->price.unit;
	double own = c->plus.each_step ? price_of(unit, &c->price.link, 0, report->exchanges) : 0;
	double floor = own + price_of(unit, &c->price.within, (double)report->within, report->exchanges_within);

	return unit != PRICE_BYTES && floor >= 0 && isfinite(floor) ? floor : 0;
}

/* What a silent site has sent nobody knows: it is in no mean of that. */
static bool scout_spoke(const struct scout_report *r)
{
	return r->bytes > 0 || r->within > 0 || r->exchanges > 0 || r->exchanges_within > 0 || r->samples > 0 ||
	       r->trained > 0 || r->tried > 0;
}

/* Loss, bytes and how many were believed; counts what was sent. */
static void scout_weigh(struct scout *s, const struct scout_report *reports, unsigned sites, struct trust *trust,
	struct scout_decision *decision)
{
	const bool travels = s->config.policy != SCOUT_PLUS;
	const struct price *price = &s->config.price;
	double bytes = 0, spent = 0;
	unsigned spoke = 0;

	trust_weigh(reports, sites, s->config.trim, trust);
	for (unsigned i = 0; i < sites; i++)
		spoke += scout_spoke(&reports[i]);
	spoke = spoke > 0 ? spoke : 1;
	for (unsigned i = 0; i < sites; i++) {
		bytes += (double)reports[i].bytes;
		spent += scout_spent(price, &reports[i]);
		s->now.floor += scout_floor(&s->config, &reports[i]) / spoke;
		s->bytes += reports[i].bytes;
		s->bytes_travel += travels && reports[i].samples > 0 ? s->config.model_bytes : 0;
	}
	decision->bytes = bytes / spoke / s->config.period;
	s->now.spent = spent / spoke;
	decision->spent = spent / spoke / s->config.period;
	decision->believed = trust->believed;
	decision->loss = trust->loss;
	decision->cost = s->config.lambda_loss * fmax(0, decision->loss - s->config.sigma) +
			 s->config.lambda_bytes * decision->spent /
				 price_of(price->unit, &price->link, (double)s->config.model_bytes, 1);
	if (isnan(decision->loss))
		decision->cost = NAN;
	else if (travels)
		decision->radius = trust->radius;
}

static bool scout_knows(const struct scout *s, unsigned index)
{
	return s->tried[index] > 0 && (s->config.memory == 0 || s->window - s->tried[index] < s->config.memory);
}

/* ---- policies: the index that is next, with the reason ---- */

static unsigned scout_explain(struct scout_decision *decision, unsigned index, const char *reason)
{
	snprintf(decision->reason, sizeof(decision->reason), "%s", reason);
	return index;
}

static unsigned scout_try(const struct scout *s, struct scout_decision *decision, unsigned index)
{
	snprintf(decision->reason, sizeof(decision->reason), "what theta %g costs is not known yet",
		s->config.thetas[index]);
	return index;
}

static unsigned scout_move(const struct scout *s, struct scout_decision *decision, unsigned index, const char *why)
{
	snprintf(decision->reason, sizeof(decision->reason), "theta %g has cost %.4g, and this one costs %.4g%s",
		s->config.thetas[index], s->cost[index], s->cost[s->index], why);
	return index;
}

static unsigned scout_climb(const struct scout *s, struct scout_decision *decision)
{
	bool tighter = s->index > 0, looser = s->index + 1 < s->config.theta_count;
	bool knows_tighter = tighter && scout_knows(s, s->index - 1), loses = decision->loss > s->config.sigma;
	bool knows_looser = looser && scout_knows(s, s->index + 1);
	unsigned best = s->index;

	if (tighter && !knows_tighter && loses)
		return scout_try(s, decision, s->index - 1);
	if (looser && !knows_looser && (!loses || !tighter || s->cost[s->index - 1] >= s->cost[s->index]))
		return scout_try(s, decision, s->index + 1);
	if (knows_tighter && s->cost[s->index - 1] < s->cost[best])
		best = s->index - 1;
	if (knows_looser && s->cost[s->index + 1] < s->cost[best])
		best = s->index + 1;
	if (best != s->index)
		return scout_move(s, decision, best, "");
	return scout_explain(decision, best, "no theta beside is known to be cheaper");
}

/* One beside, if there is any. */
static unsigned scout_draw_beside(struct scout *s)
{
	bool tighter = s->index > 0, looser = s->index + 1 < s->config.theta_count;
	bool up = scout_draw(s) & 1; /* drawn in any case: the next draws do not depend on it */

	if (!tighter && !looser)
		return s->index;
	return looser && (up || !tighter) ? s->index + 1 : s->index - 1;
}

/* By the same multiplications on each machine. */
static double scout_temperature(const struct scout *s)
{
	double t = s->config.temperature;
	bool cools = s->config.policy == SCOUT_ANNEALING && s->config.cooling < 1;

	for (uint64_t i = 0; cools && i < s->window && t > 0; i++)
		t *= s->config.cooling;
	return t;
}

/* The probability of a move to one that costs so much more, or less. */
static double scout_odds(const struct scout *s, double worse)
{
	double t = scout_temperature(s), e = exact_exp(-fabs(worse) / t);

	if (s->config.policy == SCOUT_ANNEALING)
		return worse < 0 ? 1 : e;
	return worse < 0 ? 1 / (1 + e) : e / (1 + e);
}

static unsigned scout_wander(struct scout *s, struct scout_decision *decision)
{
	unsigned beside = scout_draw_beside(s);
	double chance = scout_chance(s), worse = s->cost[beside] - s->cost[s->index];

	if (beside == s->index)
		return scout_explain(decision, beside, "there is no other theta");
	if (!scout_knows(s, beside))
		return scout_try(s, decision, beside);
	if (chance < scout_odds(s, worse))
		return scout_move(s, decision, beside, worse < 0 ? "" : "; chance has it so");
	snprintf(decision->reason, sizeof(decision->reason), "theta %g was looked at, and chance was against it",
		s->config.thetas[beside]);
	return s->index;
}

/* The loosest that was safe, or, when that has gone on for long, the tightest. */
static unsigned scout_fall_back(struct scout *s, struct scout_decision *decision, const struct trust *trust)
{
	const char *to = "the tightest theta, as none was safe yet";
	unsigned safe = 0;

	for (unsigned i = 0; i < s->config.theta_count; i++) {
		if (!s->held[i])
			continue;
		safe = i;
		to = "the loosest theta that was safe";
	}
	s->silent++;
	decision->action = SCOUT_FALLS_BACK;
	if (s->silent >= s->config.patience) {
		safe = 0;
		to = "the tightest theta, until they do";
	}
	if (trust->blank)
		snprintf(decision->reason, sizeof(decision->reason),
			"no model gets a sample right, at home or away: policy %s needs evaluate() to count `correct`, "
			"scout+ does not: %s",
			scout_policy_name(s->config.policy), to);
	else
		snprintf(decision->reason, sizeof(decision->reason),
			"of %u sites %u have said what can be true, in %u window%s that said too little: %s",
			trust->asked, trust->believed, s->silent, s->silent == 1 ? "" : "s in a row", to);
	return safe;
}

static unsigned scout_choose(struct scout *s, struct scout_decision *decision)
{
	switch (s->config.policy) {
	case SCOUT_HILL:
		return scout_climb(s, decision);
	case SCOUT_STOCHASTIC:
	case SCOUT_ANNEALING:
		return scout_wander(s, decision);
	case SCOUT_FIXED:
	case SCOUT_REPLAY:
	case SCOUT_PLUS:
		break;
	}
	return scout_explain(
		decision, s->index, s->config.policy == SCOUT_REPLAY ? "the schedule has it so" : "theta is fixed");
}

static enum scout_action scout_direction(unsigned from, unsigned to)
{
	if (from == to)
		return SCOUT_STAYS;
	return to < from ? SCOUT_TIGHTENS : SCOUT_LOOSENS;
}

/* The policies of the paper: by what models lose that travelled, and what was sent. */
static unsigned scout_search(struct scout *s, struct scout_decision *decision, const struct trust *trust)
{
	const bool knows = !isnan(decision->loss), replays = s->config.policy == SCOUT_REPLAY;
	unsigned next;

	if (!knows && !replays && s->config.policy != SCOUT_FIXED)
		return scout_fall_back(s, decision, trust);
	s->silent = 0;
	if (knows && !replays) {
		s->tried[s->index] = s->window + 1;
		s->cost[s->index] = decision->cost;
		s->held[s->index] = decision->loss <= s->config.sigma;
	}
	next = scout_choose(s, decision);
	decision->action = scout_direction(s->index, next);
	return next;
}

/* ---- scout+ ---- */

void scout_hear(struct scout *scout, double said, double heard, double squares, double rate)
{
	scout_hear_all(scout, 1, said, heard, squares, rate);
}

void scout_hear_all(struct scout *scout, unsigned exchanges, double said, double heard, double squares, double rate)
{
	struct plus_window *now = &scout->now;

	now->exchanges += exchanges;
	now->said += said;
	now->heard += heard;
	now->sites = squares > 0 && isfinite(squares) ? 1 / squares : NAN;
	now->rate = rate;
}

enum scout_loss { SCOUT_TRAIN, SCOUT_BEFORE, SCOUT_AFTER, SCOUT_AFTER_BOTH }; /* the last: where `before` is known */

/* A report's loss, NaN where it is not believed. */
static double scout_loss(const struct scout_report *r, enum scout_loss which)
{
	const double losses[] = {r->train, r->before, r->after, r->after};
	const bool after = r->tried > 0 && isfinite(r->after);
	const bool said[] = {r->trained > 0 && isfinite(r->train), after && isfinite(r->before), after,
		after && isfinite(r->before)};

	return said[which] && r->unfit != SCOUT_BROKEN ? losses[which] : NAN;
}

/* The mean; NaN: fewer than `least` sites say it. */
static double scout_mean_loss(const struct scout *s, const struct scout_report *reports, unsigned sites,
	enum scout_loss which, unsigned least)
{
	double losses[SCOUT_SITES_MAX];
	unsigned count = 0;

	for (unsigned i = 0; i < sites; i++)
		if (!isnan(scout_loss(&reports[i], which)))
			losses[count++] = scout_loss(&reports[i], which);
	return count > 0 && count >= least ? trust_mean(losses, count, s->config.trim) : NAN;
}

/* Means over those sites that say something which can be true: before and after of the same ones, where enough know
 * both. Samples are those of a site that trains, the mean: a silent one's, and one's without data, are none that could
 * be paid for, and no fewer sites by weight. Returns how many say something. */
static unsigned scout_gather(struct scout *s, const struct scout_report *reports, unsigned sites, unsigned asked)
{
	struct plus_window *now = &s->now;
	const unsigned half = (asked + 1) / 2;
	unsigned believed = 0, with_data = 0;

	for (unsigned i = 0; i < sites; i++)
		with_data += scout_spoke(&reports[i]) && reports[i].unfit != SCOUT_IDLE;
	now->trained = now->tried = 0;
	for (unsigned i = 0; i < sites; i++) {
		now->trained += (double)reports[i].trained / (with_data > 0 ? with_data : 1);
		now->tried += (double)reports[i].tried / (with_data > 0 ? with_data : 1);
		believed +=
			!isnan(scout_loss(&reports[i], SCOUT_TRAIN)) || !isnan(scout_loss(&reports[i], SCOUT_AFTER));
	}
	now->train = scout_mean_loss(s, reports, sites, SCOUT_TRAIN, 1);
	now->before = scout_mean_loss(s, reports, sites, SCOUT_BEFORE, half);
	now->after = scout_mean_loss(s, reports, sites, isnan(now->before) ? SCOUT_AFTER : SCOUT_AFTER_BOTH, half);
	return believed;
}

/* Is it worth what it costs? */
static void scout_say_gain(const struct scout *s, const struct plus_verdict *v, struct scout_decision *d)
{
	const char *but = v->cause == PLUS_WASTES ? "but " : "", *unit = price_unit_name(s->config.price.unit);
	const double worth = s->config.plus.worth;

	if (worth > 0)
		snprintf(d->reason, sizeof(d->reason),
			"probes: talking more would save a loss of %s%.3g, give or take %.2g, in a window: worth %.6g "
			"%s, and costs %.6g more",
			but, v->gain, v->radius, v->gain * worth, unit, v->extra);
	else
		snprintf(d->reason, sizeof(d->reason),
			"probes: talking more would save a loss of %s%.3g, give or take %.2g", but, v->gain, v->radius);
}

static void scout_say_enough(const struct scout *s, struct scout_decision *d)
{
	const size_t used = strlen(d->reason);

	snprintf(d->reason + used, sizeof(d->reason) - used,
		"; no looser one is cheaper by %g %%, as theta does not change %.4g %s of a window's cost",
		100 * PLUS_NEAR, s->now.floor, price_unit_name(s->config.price.unit));
}

/* What the guard makes of the mean model. */
static void scout_say_mean(const struct scout *s, const struct plus_verdict *v, struct scout_decision *d)
{
	const size_t room = sizeof(d->reason);
	char *to = d->reason;

	if (v->cause == PLUS_APART)
		snprintf(to, room,
			"the mean model's loss is %.3g more than the sites' own: models have drifted apart; tight "
			"until that is mended, then it measures anew",
			v->beyond);
	else if (v->cause == PLUS_WAITS)
		snprintf(to, room, "waits until the mean model, tried at the tightest theta, is sound again");
	else if (v->cause == PLUS_DOUBTS)
		snprintf(to, room,
			"the mean model's loss is more than the sites' own even where they talked at each step: tight "
			"until that is certain (odds of %.2g, of %g) or was chance",
			s->plus.guard.tight.odds, 2 / s->config.plus.alpha);
	else if (!s->config.plus.statistics)
		snprintf(to, room,
			"the mean model's loss is %.3g more than the sites' own even where they talk at each step, and "
			"nothing of it is untrained: evaluate() tries other data, or in another way, than is trained; "
			"theta does not mend that",
			v->beyond);
	else
		snprintf(to, room,
			"the mean model's loss is %.3g more than the sites' own even where they talk at each step: "
			"batch normalization by statistics of no site? No theta mends that; group normalization does; "
			"or evaluate() tries other data",
			v->beyond);
}

static void scout_say_all(struct scout_decision *d)
{
	const size_t used = strlen(d->reason);

	snprintf(d->reason + used, sizeof(d->reason) - used, "; it sends what BSP does");
}

static const char *const scout_left[] = {[PLUS_NONE] = "nothing has left its level",
	[PLUS_ALIGNMENT] = "r has left its level",
	[PLUS_MOVES] = "what sites move in an exchange has risen from its level",
	[PLUS_LOSS] = "what the mean model loses has risen from its level"};

/* Sites that weigh as no more: one, but for roundings. */
#define SCOUT_ALONE (1 + 1e-9)

static void scout_say_why(const struct scout *s, const struct plus_verdict *v, struct scout_decision *d)
{
	const struct plus *p = &s->plus;
	const double target = s->config.thetas[p->target];
	const size_t room = sizeof(d->reason);
	const bool alone = s->now.sites <= SCOUT_ALONE;
	char *to = d->reason;

	switch (v->cause) {
	case PLUS_FIRST:
		snprintf(to, room, "measures how far sites pull apart: r is %.4g", v->r);
		break;
	case PLUS_MEASURED:
		if (alone)
			snprintf(to, room, "there is one site alone, and nothing pulls it apart: theta may be %g",
				target);
		else
			snprintf(to, room,
				"sites pull apart %.3g times as much as the noise of a batch, which allows theta %g",
				p->reach.pull, target);
		break;
	case PLUS_ON_ITS_WAY:
		snprintf(to, room, "on its way to theta %g, which the pull of %.3g allows", target, p->reach.pull);
		break;
	case PLUS_SLOWER:
		snprintf(to, room, "at this rate of learning the pull of %.3g allows theta %g", p->reach.pull, target);
		break;
	case PLUS_CHEAPER:
		snprintf(to, room, "by what it costs, and the pull of %.3g, theta is to be %g", p->reach.pull, target);
		break;
	case PLUS_THERE:
		snprintf(to, room, "the pull of %.3g allows this theta, and nothing says that data have drifted",
			p->reach.pull);
		break;
	case PLUS_DRIFTED:
		snprintf(to, room, "%s: data may have drifted, and it measures anew", scout_left[v->drifts]);
		break;
	case PLUS_OTHERS:
		snprintf(to, room,
			"sites are others than those whose pull was measured (they weigh as %.3g that are alike, "
			"now as %.3g): it measures anew",
			p->reach.sites, s->now.sites);
		break;
	case PLUS_GAINS:
	case PLUS_WASTES:
		scout_say_gain(s, v, d);
		break;
	case PLUS_PROBE:
		snprintf(to, room, "a probe, a window long");
		break;
	case PLUS_PROBE_OVER:
		snprintf(to, room, "the probe is over; what probes gain is not certain yet; the pull is %.3g",
			p->reach.pull);
		break;
	case PLUS_BLIND:
		snprintf(to, room, "what exchanges said is missing, or cannot be true, for %u window%s", p->blind,
			p->blind == 1 ? "" : "s in a row");
		break;
	case PLUS_APART:
	case PLUS_WAITS:
	case PLUS_DOUBTS:
	case PLUS_NORM:
		scout_say_mean(s, v, d);
		break;
	}
}

static unsigned scout_follow(struct scout *s, struct scout_decision *d)
{
	struct plus_verdict v;
	unsigned next;

	next = plus_next(&s->plus, &s->config.plus, &s->now, s->index, s->config.theta_count, s->config.patience, &v);
	d->action = scout_direction(s->index, next);
	if (v.cause == PLUS_BLIND)
		d->action = SCOUT_FALLS_BACK;
	if (v.cause == PLUS_NORM)
		d->action = SCOUT_CANNOT;
	scout_say_why(s, &v, d);
	if (v.enough)
		scout_say_enough(s, d);
	if (v.all)
		scout_say_all(d);
	d->pull = v.pull;
	d->gain = v.gain;
	d->extra = v.extra;
	d->radius = v.radius;
	s->tries = d->tries = v.tries;
	return next;
}

/* ---- a window ---- */

uint32_t scout_span(const struct scout *scout)
{
	const uint32_t period = scout->config.period;

	return scout->config.policy == SCOUT_PLUS ? plus_span(&scout->plus, period) : period;
}

static enum scout_action scout_replayed(const struct scout *s, double before, double after)
{
	if (before == after)
		return SCOUT_STAYS;
	return (after < before) != s->config.falls ? SCOUT_TIGHTENS : SCOUT_LOOSENS;
}

int scout_observe(
	struct scout *scout, const struct scout_report *reports, unsigned sites, struct scout_decision *decision)
{
	const bool replays = scout->config.policy == SCOUT_REPLAY, follows = scout->config.policy == SCOUT_PLUS;
	const bool asked = follows && scout->plus.past.asked > 0;
	const double before = scout_theta(scout);
	struct trust trust;
	unsigned told;

	if (sites == 0 || sites > SCOUT_SITES_MAX)
		return -EINVAL;
	*decision = (struct scout_decision){
		.window = scout->window, .r = NAN, .pull = NAN, .gain = NAN, .extra = NAN, .radius = INFINITY};
	scout_weigh(scout, reports, sites, &trust, decision);
	told = scout_gather(scout, reports, sites, trust.asked);
	scout->now.bytes = decision->bytes * scout_span(scout);
	scout->now.bytes_bsp = (double)scout->config.model_bytes * scout_span(scout);
	decision->believed = follows ? told : decision->believed;
	decision->r = plus_alignment(scout->now.said, scout->now.heard);
	decision->seen = scout->now;
	scout->index = follows ? scout_follow(scout, decision) : scout_search(scout, decision, &trust);
	trust_tell(reports, sites, !follows, decision->reason, sizeof(decision->reason));
	if (asked)
		trust_tell_untried(reports, sites, decision->reason, sizeof(decision->reason));
	scout->now = (struct plus_window){0};
	scout->window++;
	decision->theta = scout_theta(scout);
	decision->index = replays ? scout_place(scout) : scout->index;
	if (replays)
		decision->action = scout_replayed(scout, before, decision->theta);
	return 0;
}

/* ---- names ---- */

const char *scout_policy_name(enum scout_policy policy)
{
	static const char *const names[SCOUT_POLICY_COUNT] = {
		"fixed", "replay", "hill", "stochastic", "annealing", "scout+"};

	return (unsigned)policy < SCOUT_POLICY_COUNT ? names[policy] : "invalid";
}

const char *scout_action_name(enum scout_action action)
{
	static const char *const names[] = {"stays", "tightens", "loosens", "falls back", "cannot"};

	return (unsigned)action < sizeof(names) / sizeof(names[0]) ? names[action] : "invalid";
}
