/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a window showed is judged first; then the phase says what it means.
 */
#include "client/scout/plus.h"

#include <math.h>

/* Steps of a window while it measures: so a pull takes `passes` + `settle` of them, however long a period is. */
enum { PLUS_SHORT = 10 };

#define PLUS_ROUNDING 1e-3

/* A window that is over, as all decisions see it. */
struct plus_over {
	const struct plus_config *c;
	const struct plus_window *w;
	double r;
	unsigned index, count; /* its theta was `index`, of `count` */
};

void plus_init(struct plus *plus)
{
	*plus = (struct plus){.phase = PLUS_MEASURES,
		.past = {.train = NAN},
		.reach = {.pull = NAN, .ease = 1, .rate = NAN, .enough = PLUS_THETAS_MAX},
		.watch = {.rate = NAN},
		.probe = {.usually = NAN, .extra = NAN},
		.guard = {.beyond = NAN, .beyond_tight = NAN}};
}

/* Does the guard wait for what trials at the tightest theta say? */
static bool plus_waits(const struct plus *p)
{
	return p->guard.mean == PLUS_SUSPECT || p->guard.mean == PLUS_DOUBTFUL;
}

uint32_t plus_span(const struct plus *p, uint32_t period)
{
	return p->phase == PLUS_MEASURES && !plus_waits(p) && period > PLUS_SHORT ? PLUS_SHORT : period;
}

double plus_alignment(double said, double heard)
{
	const double r = heard / said;

	return said > 0 && isfinite(said) && r >= 0 && r <= 1 + PLUS_ROUNDING ? fmin(1, r) : NAN;
}

/* ---- phases: each returns the index that is next ---- */

/* Its target is what is allowed now. Is that another than before? */
static bool plus_aim(struct plus *p, const struct plus_over *o)
{
	const unsigned before = p->target;

	p->target = plus_reach_allows(&p->reach, o->c, o->w->rate, o->count);
	return p->target != before;
}

static void plus_enter(struct plus *p, enum plus_phase phase)
{
	p->phase = phase;
	p->passed = p->counted = 0;
	plus_watch_begin(&p->watch);
}

/* Half of the way that is left, rounded up, or one theta of it; at once where it is tighter. */
static unsigned plus_toward(const struct plus *p, const struct plus_over *o)
{
	const unsigned half = (p->target - o->index + 1) / 2;
	const bool by_one = plus_reach_by_one(o->c, o->w, o->count);

	return p->target > o->index ? o->index + (by_one ? 1 : half) : p->target;
}

static unsigned plus_go(struct plus *p, const struct plus_over *o, struct plus_verdict *v, enum plus_cause cause)
{
	const unsigned next = plus_toward(p, o);

	v->cause = cause;
	plus_enter(p, next == p->target ? PLUS_STAYS : PLUS_LOOSENS);
	if (p->phase == PLUS_LOOSENS)
		return next;
	plus_watch_rest(&p->watch);
	if (!p->settled)
		p->budget.bytes = p->budget.bytes_probes = 0;
	p->settled = true;
	return next;
}

/* To the target where that is tighter, else one theta toward it. */
static unsigned plus_turn(struct plus *p, unsigned index)
{
	plus_enter(p, PLUS_STAYS);
	return p->target < index ? p->target : index + 1;
}

static unsigned plus_measure(struct plus *p, const struct plus_over *o, struct plus_verdict *v)
{
	v->cause = PLUS_FIRST;
	if (p->passed < o->c->passes) {
		p->passed += o->w->exchanges;
		return 0;
	}
	plus_reach_measure(&p->reach, o->w, o->r);
	p->counted += o->w->exchanges;
	if (p->counted < o->c->settle)
		return 0;
	plus_aim(p, o);
	return plus_go(p, o, v, PLUS_MEASURED);
}

static unsigned plus_measure_anew(struct plus *p, struct plus_verdict *v, enum plus_cause cause)
{
	v->cause = cause;
	p->reach.measured = 0;
	plus_probe_forget(&p->probe);
	plus_enter(p, PLUS_MEASURES);
	return 0;
}

/* What the window before did to the mean model's loss; of a probe, is it certain by now? */
static void plus_learn(struct plus *p, const struct plus_over *o, struct plus_verdict *v)
{
	switch (plus_probe_learn(&p->probe, o->c, o->w, &p->past, &v->gain, &v->radius)) {
	case PLUS_WORTH_IT:
		p->reach.ease /= 2;
		v->cause = PLUS_GAINS;
		break;
	case PLUS_NOT_WORTH_IT:
		p->reach.ease *= 1.25;
		v->cause = PLUS_WASTES;
		break;
	case PLUS_UNCERTAIN:
		break;
	}
}

static unsigned plus_begin_probe(struct plus *p, const struct plus_over *o, struct plus_verdict *v)
{
	p->back = o->index;
	p->probe.usually = o->w->spent;
	v->cause = PLUS_PROBE;
	p->phase = PLUS_PROBES; /* the watches wait */
	return 0;
}

static unsigned plus_end_probe(struct plus *p, const struct plus_over *o, struct plus_verdict *v)
{
	v->cause = PLUS_PROBE_OVER;
	p->probe.extra = o->w->spent - p->probe.usually;
	plus_reach_renew(&p->reach, o->w, o->r);
	plus_aim(p, o);
	p->phase = PLUS_STAYS;
	return p->target == p->back ? p->back : plus_turn(p, p->back);
}

/* Nothing is tighter: each window measures. */
static unsigned plus_stay_tightest(struct plus *p, const struct plus_over *o, struct plus_verdict *v)
{
	plus_reach_renew(&p->reach, o->w, o->r);
	plus_aim(p, o);
	return p->target > 0 ? plus_go(p, o, v, PLUS_MEASURED) : 0;
}

static unsigned plus_stay(struct plus *p, const struct plus_over *o, struct plus_verdict *v)
{
	v->drifts = plus_watch_drift(&p->watch, o->c, o->w, &p->past, o->r);
	if (v->drifts != PLUS_NONE)
		return plus_measure_anew(p, v, PLUS_DRIFTED);
	if (plus_aim(p, o))
		return plus_go(p, o, v, PLUS_SLOWER);
	plus_learn(p, o, v);
	if (v->cause != PLUS_THERE) {
		plus_aim(p, o);
		if (p->target != o->index)
			return plus_turn(p, o->index);
	}
	if (o->index == 0)
		return plus_stay_tightest(p, o, v);
	return plus_budget_affords_probe(&p->budget, o->c, o->w) ? plus_begin_probe(p, o, v) : o->index;
}

static unsigned plus_by_phase(struct plus *p, const struct plus_over *o, struct plus_verdict *v)
{
	p->blind = 0;
	if (plus_reach_weigh(&p->reach, o->c, o->w, o->index, o->count) && p->phase == PLUS_LOOSENS &&
		p->target > p->reach.enough)
		p->target = p->reach.enough;
	if (plus_reach_others(&p->reach, o->c, o->w))
		return plus_measure_anew(p, v, PLUS_OTHERS);
	switch (p->phase) {
	case PLUS_MEASURES:
		return plus_measure(p, o, v);
	case PLUS_LOOSENS:
		return plus_go(p, o, v, PLUS_ON_ITS_WAY);
	case PLUS_STAYS:
		return plus_stay(p, o, v);
	case PLUS_PROBES:
		break;
	}
	return plus_end_probe(p, o, v);
}

/* ---- before phases ---- */

/* While it is not known whether the mean model is sound theta is the tightest; then the pull is measured anew, and less
 * is made of it where another theta was the cause. */
static unsigned plus_part(struct plus *p, enum plus_mean before, struct plus_verdict *v)
{
	if (before == PLUS_SOUND) {
		p->reach.ease /= p->guard.mean == PLUS_SUSPECT ? 2 : 1;
		plus_measure_anew(p, v, PLUS_APART);
	}
	v->cause = before == PLUS_SOUND ? PLUS_APART : PLUS_WAITS;
	if (p->guard.mean == PLUS_DOUBTFUL)
		v->cause = PLUS_DOUBTS;
	return 0;
}

static bool plus_can_be_true(const struct plus_over *o)
{
	return isfinite(o->r) && o->w->sites >= 1 - PLUS_ROUNDING;
}

/* `before`: what the guard made of the mean model. */
static unsigned plus_decide(
	struct plus *p, const struct plus_over *o, unsigned patience, enum plus_mean before, struct plus_verdict *v)
{
	const unsigned enough = p->reach.enough;
	unsigned next = o->index;

	if (o->w->exchanges > 0 && !plus_can_be_true(o)) {
		v->cause = PLUS_BLIND;
		next = ++p->blind >= patience ? 0 : next;
	} else if (plus_waits(p)) {
		next = plus_part(p, before, v);
	} else if (o->w->exchanges > 0) {
		next = plus_by_phase(p, o, v);
	}
	if (v->cause == PLUS_SLOWER && p->reach.enough != enough)
		v->cause = PLUS_CHEAPER;
	if (p->guard.mean == PLUS_HOPELESS && v->cause != PLUS_BLIND && (next == o->index || before != PLUS_HOPELESS))
		v->cause = PLUS_NORM;
	if (p->guard.mean == PLUS_HOPELESS && before == PLUS_SUSPECT)
		p->reach.ease *= 2; /* it was not theta */
	return next;
}

/* ---- a window ---- */

/* Few where the guard wants to know soon; a probe wants all. */
static uint32_t plus_samples(const struct plus *p, const struct plus_config *c)
{
	const bool first = !(p->budget.tried > 0);
	const bool few = plus_guard_hurries(&p->guard, c, first) && p->phase != PLUS_PROBES && c->tries > PLUS_FEW;

	return few ? PLUS_FEW : c->tries;
}

/* Beside cause, drifts, and what a probe had been certain of. */
static void plus_tell(struct plus *p, const struct plus_over *o, unsigned next, struct plus_verdict *v)
{
	const bool stays = p->phase == PLUS_STAYS;
	const struct plus_window *w = o->w;

	if (isnan(v->gain))
		plus_probe_gain(&p->probe, o->c, &v->gain, &v->radius);
	v->pull = p->reach.pull;
	v->beyond = v->cause == PLUS_NORM && !isnan(p->guard.beyond_tight) ? p->guard.beyond_tight : p->guard.beyond;
	v->extra = p->probe.extra;
	v->enough = stays && next == p->reach.enough && next + 1 < o->count;
	v->all = stays && next == o->index && o->count > 1 && w->bytes >= (1 - PLUS_NEAR) * w->bytes_bsp &&
		 w->bytes_bsp > 0;
	v->tries = plus_budget_tries(&p->budget, o->c, plus_samples(p, o->c));
}

unsigned plus_next(struct plus *p, const struct plus_config *c, const struct plus_window *w, unsigned index,
	unsigned count, unsigned patience, struct plus_verdict *v)
{
	const struct plus_over over = {
		.c = c, .w = w, .r = plus_alignment(w->said, w->heard), .index = index, .count = count};
	const enum plus_phase phase = p->phase;
	const enum plus_mean before = p->guard.mean;
	unsigned next;

	*v = (struct plus_verdict){.r = over.r, .gain = NAN, .radius = INFINITY, .cause = PLUS_THERE};
	plus_guard_judge(&p->guard, c, w, &p->past);
	plus_budget_spend(&p->budget, w, &p->past, phase == PLUS_PROBES);
	next = plus_decide(p, &over, patience, before, v);
	plus_tell(p, &over, next, v);
	p->past = (struct plus_past){.phase = phase,
		.index = index,
		.asked = v->tries,
		.before = p->past.asked,
		.train = w->train,
		.trained = w->trained > 0 ? w->trained : p->past.trained};
	if (w->exchanges > 0 && p->phase != PLUS_STAYS && p->phase != PLUS_PROBES)
		p->watch.rate = w->rate;
	return next;
}
