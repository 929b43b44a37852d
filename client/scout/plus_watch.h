/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Have data drifted? While theta stays three series are watched by Page and Hinkley's test (sequence.h): log r, the log
 * of what sites move in an exchange, and that of the mean model's loss. When r has left its level, to either side, or
 * one of the others has risen from it (they fall as training goes on), data have drifted.
 *
 * A rate of learning that changes is no drift: what sites move is taken by it, and series begin anew where it is half
 * or twice what it was. Nor is what models do in the first two windows at a new theta or rate, while they settle: these
 * are not watched. Pure; any thread.
 */
#ifndef PHUB_CLIENT_SCOUT_PLUS_WATCH_H
#define PHUB_CLIENT_SCOUT_PLUS_WATCH_H

#include "client/scout/plus_config.h"
#include "client/scout/plus_window.h"
#include "client/scout/sequence.h"

enum plus_series { PLUS_NONE = 0, PLUS_ALIGNMENT, PLUS_MOVES, PLUS_LOSS };

struct plus_watch {
	struct watch alignment, moves, loss;
	double rate;   /* of learning, that they began with; NaN: it is not known */
	unsigned calm; /* windows to come that are not watched */
};

/* The series begin anew. */
void plus_watch_begin(struct plus_watch *watch);

/* Models settle first, as theta is another. */
void plus_watch_rest(struct plus_watch *watch);

/* A window whose r is this: which of the series has left its level? One, if any has. */
enum plus_series plus_watch_drift(struct plus_watch *watch, const struct plus_config *config,
	const struct plus_window *window, const struct plus_past *past, double r);

#endif
