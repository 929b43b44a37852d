/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trial is of the model as it was at the end of the window before, and beside what sites lost in that.
 */
#include "client/scout/plus_guard.h"

#include <math.h>
#include <stdint.h>

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

static double plus_guard_certain(const struct plus_config *c)
{
	return 2 / c->alpha;
}

/* A trial where sites talked at each step is evidence, beside what sites lost on their own in that window, when the
 * model was no better than at its end. Is there a new one? */
static bool plus_guard_weigh(
	struct plus_guard *g, const struct plus_config *c, const struct plus_window *w, const struct plus_past *past)
{
	const double chance = past->train / sqrt(w->tried * w->sites);
	const double beyond = w->after - past->train - c->guard / PLUS_BEARS - PLUS_OFF * chance;

	if (past->index > 0 || !isfinite(beyond) || !(chance > 0))
		return false;
	if (c->statistics)
		evidence_add(&g->tight, beyond / (PLUS_CHANCE * chance), plus_guard_certain(c));
	g->beyond_tight = w->after - past->train;
	g->tried_tight = w->tried;
	return true;
}

/* Sites' own models do well on what they are trained on; does the mean of them? */
static void plus_guard_compare(struct plus_guard *g, const struct plus_config *c, const struct plus_window *w)
{
	const double most = g->mean == PLUS_SUSPECT || g->mean == PLUS_HOPELESS ? c->guard / 2 : c->guard;

	if (isnan(w->after))
		return;
	g->beyond = w->after - w->train;
	g->apart = g->beyond > most && w->after > 2 * w->train ? g->apart + 1 : 0;
}

/* What a window says of the mean model. */
struct plus_trial {
	bool tight;   /* sites talked at each step in the window before, at whose end it was tried */
	bool sound;   /* it was, then */
	bool silent;  /* nobody tries it any more */
	bool weighed; /* there is new evidence */
	bool certain; /* of which it is certain that it is hopeless, */
	bool doubts;  /* or not excluded */
	bool waited;  /* for that, long enough */
};

/* It is the drift of models, which the tightest theta ends, or else what no theta mends: trials at the tightest tell.
 * Or it does a little worse each time, where it is tight, until that is no chance. */
static enum plus_mean plus_guard_verdict(const struct plus_guard *g, const struct plus_trial *t)
{
	const bool suspect_is_sound = g->mean == PLUS_SUSPECT && t->sound, apart = g->apart > 1;

	if (g->mean == PLUS_HOPELESS && !t->tight)
		return t->silent ? PLUS_SOUND : PLUS_HOPELESS; /* of drift beside that nothing is known */
	if (apart && !t->tight)
		return PLUS_SUSPECT;
	if (apart || (t->weighed && t->certain))
		return PLUS_HOPELESS;
	if (t->weighed && t->doubts && g->doubted == 0 && (g->mean == PLUS_SOUND || suspect_is_sound))
		return PLUS_DOUBTFUL;
	if (t->silent || t->waited || suspect_is_sound || (t->sound && !t->doubts))
		return PLUS_SOUND;
	return g->mean;
}

void plus_guard_judge(
	struct plus_guard *g, const struct plus_config *c, const struct plus_window *w, const struct plus_past *past)
{
	struct plus_trial t = {.tight = past->index == 0, .silent = past->asked > 0 && !(w->tried > 0)};
	enum plus_mean mean;

	t.weighed = plus_guard_weigh(g, c, w, past);
	t.certain = g->tight.odds >= plus_guard_certain(c);
	t.doubts = g->tight.count >= PLUS_TRIALS && g->tight.odds >= plus_doubt;
	t.waited = g->mean == PLUS_DOUBTFUL && ++g->doubted >= PLUS_LONG;
	plus_guard_compare(g, c, w);
	t.sound = !isnan(w->after) && t.tight && g->apart == 0;
	mean = plus_guard_verdict(g, &t);
	if (!t.tight && (g->mean == PLUS_HOPELESS || g->apart > 1))
		g->apart = 0; /* it counts trials at the tightest from now on */
	g->mean = mean;
	g->doubted = t.doubts ? g->doubted : 0;
}

bool plus_guard_hurries(const struct plus_guard *g, const struct plus_config *c, bool first)
{
	const bool told = g->mean == PLUS_DOUBTFUL || g->mean == PLUS_HOPELESS;
	const bool fine = told && g->tried_tight > PLUS_FEW; /* what has shown on more alone */

	return !fine && (g->mean != PLUS_SOUND || first || g->beyond > c->guard / 2);
}
