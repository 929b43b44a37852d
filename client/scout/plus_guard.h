/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard of scout+: is the mean model sound? Pure; any thread.
 *
 * Where sites' own losses (train) are small and the mean model's, tried on the same data, are not (beyond `guard`, and
 * twice as large, in two trials in a row), models have drifted apart: it is suspect, and theta the tightest, until
 * trials there say that the mean model is sound. When even the tightest theta does not help, it is hopeless: models as
 * they are evaluated are not those that were trained: batch normalization, whose running statistics are those of no
 * site. Talking more makes that worse, not better (plus_guard.c), so theta is what it would be without, until a trial
 * at the tightest says that the mean model is sound again: no more than half as far beyond.
 *
 * The mean of few sites loses less, and for good. So trials where sites talk at each step, beside what sites lost in
 * the window before that on their own, are evidence that adds up (sequence.h): each counts by what the mean model loses
 * beyond a tenth of `guard` and what few samples may be off by, as all trials are on the same ones (PLUS_OFF), in units
 * of what chance does (PLUS_CHANCE), both by the root of how many samples all sites have tried. When after two trials
 * or more the odds are a quarter, it is in doubt, and theta the tightest, for six windows at most, until they are less,
 * or 2 / alpha: that is certain, and it is hopeless, until they are less than a quarter. Of `alpha` the other half is
 * for the samples. What loses less than a tenth of `guard` it never tells. Of a model all of which is trained
 * (`statistics` false) that mean is the sites' own model where they talk at each step: there is nothing to add up, no
 * doubt, and what loses more even there, beyond `guard`, is tried on other data, or in another way, than trained.
 *
 * What it looks for shows on few samples: so are the first two trials (PLUS_FEW each), which come the sooner for it,
 * and those where the last one was beyond half of `guard`.
 */
#ifndef PHUB_CLIENT_SCOUT_PLUS_GUARD_H
#define PHUB_CLIENT_SCOUT_PLUS_GUARD_H

#include <stdbool.h>

#include "client/scout/plus_config.h"
#include "client/scout/plus_window.h"
#include "client/scout/sequence.h"

#define PLUS_FEW    40u
#define PLUS_OFF    3.0 /* in losses of a sample, as its deviation is; see plus_guard.c */
#define PLUS_CHANCE 1.5

/* What it makes of the mean model. */
enum plus_mean { PLUS_SOUND = 0, PLUS_SUSPECT = 1, PLUS_HOPELESS = 2, PLUS_DOUBTFUL = 3 };

struct plus_guard {
	enum plus_mean mean;
	unsigned apart;        /* trials in a row that are against it */
	double beyond;         /* loss of the mean model beyond sites' own, when it was tried last; NaN: it was not */
	struct evidence tight; /* of trials where sites talk at each step; */
	double beyond_tight;   /* as `beyond`, of the last of them; NaN: there was none; */
	double tried_tight;    /* and its samples */
	unsigned doubted;      /* windows in doubt, since it was not */
};

/* A window, which may have a trial: `mean` is what it makes of that. */
void plus_guard_judge(struct plus_guard *guard, const struct plus_config *config, const struct plus_window *window,
	const struct plus_past *past);

/* Are few samples enough for the next trial, the `first` one or another, so that it comes the sooner? */
bool plus_guard_hurries(const struct plus_guard *guard, const struct plus_config *config, bool first);

#endif
