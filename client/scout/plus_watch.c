/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each series is one of sequence.h's watches.
 */
#include "client/scout/plus_watch.h"

#include <math.h>
#include <stdbool.h>

/* Windows at a new theta or rate of learning that are not watched: the first has both rates, and models settle in the
 * second: at 80 and 100 % of skew what they move at theta 2 had left its level after three (seeds 100 to 102). */
enum { PLUS_CALM = 2 };

/* A series goes on until the rate of learning is so many times the one that it began with, or as small a part. */
#define PLUS_ALIKE 2

void plus_watch_begin(struct plus_watch *watch)
{
	watch->alignment = watch->moves = watch->loss = (struct watch){0};
}

void plus_watch_rest(struct plus_watch *watch)
{
	watch->calm = PLUS_CALM;
}

/* Is it another rate than that of the series, by more than PLUS_ALIKE? */
static bool plus_watch_rates_differ(double a, double b)
{
	const bool unknown = isnan(a) && isnan(b);

	return a != b && !unknown && !(a > 0 && b > 0 && a < b * PLUS_ALIKE && b < a * PLUS_ALIKE);
}

/* Sites move by the rate, which may fall a little in each window. */
static double plus_watch_moves(const struct plus_window *w)
{
	const double rate = w->rate > 0 ? w->rate : 1;

	return exact_log(w->said / w->exchanges) - 2 * exact_log(rate);
}

enum plus_series plus_watch_drift(struct plus_watch *watch, const struct plus_config *c, const struct plus_window *w,
	const struct plus_past *past, double r)
{
	enum watch_alarm alignment = WATCH_QUIET, moves = WATCH_QUIET, loss = WATCH_QUIET;

	if (plus_watch_rates_differ(w->rate, watch->rate)) {
		plus_watch_begin(watch);
		plus_watch_rest(watch);
		watch->rate = w->rate;
	}
	if (watch->calm > 0) {
		watch->calm--;
		return PLUS_NONE;
	}
	if (!(c->bound > 0))
		return PLUS_NONE;
	if (r > 0) {
		alignment = watch_add(&watch->alignment, exact_log(r), c->slack, c->bound);
		moves = watch_add(&watch->moves, plus_watch_moves(w), c->slack_moves, c->bound);
	}
	if (!plus_past_compares(past))
		watch->loss = (struct watch){0};
	if (w->after > 0 && isfinite(w->after))
		loss = watch_add(&watch->loss, exact_log(w->after), c->slack, c->bound);
	if (alignment != WATCH_QUIET)
		return PLUS_ALIGNMENT;
	if (moves == WATCH_RISEN)
		return PLUS_MOVES;
	return loss == WATCH_RISEN ? PLUS_LOSS : PLUS_NONE;
}
