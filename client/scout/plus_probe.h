/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Probes: what would all sites gain by talking more? And what may be spent to know. Pure; any thread.
 *
 * While theta stays it goes tight for a window now and then. The loss of the mean model before and after that, on the
 * same samples, is beside that of the windows at theta. The means of both have intervals that may be looked at any time
 * (sequence.h). The gain is to be worth `sigma`; or, where a unit of loss has a `worth` in the unit of costs, what it
 * costs: the gain times the worth is beside what the probe's window has cost beyond the one before it.
 *
 * The budgets. Probes are paid out of `bytes_part` of the bytes that were sent since theta first settled, before which
 * there are none. Samples that models are tried on, for probes and for the guard, are at most `work_part` of the
 * computing: where a window's part of that is not enough for a trial, it saves for two, before a window and after it,
 * on the same samples.
 *
 * What a probe is compared with is not what it would have been. A window at theta lasts until the first exchange after
 * a period, theta steps or more, and lowers the loss for longer: so falls are taken by the samples that were trained on
 * in the window, and told for as many as the probe had. What is left says "talking wastes" too often, and rarely more:
 * a probe is one window in about 50 theta, and those at theta are of all the time since the last verdict, in whose
 * beginning the loss fell faster; and what talking for one window leaves behind for those after it is not counted. To
 * pair each probe with the windows just before and after it would end the first, and take twice as many probes until
 * something is certain, where a run of thousands of steps has hardly one; the second no window shows.
 */
#ifndef PHUB_CLIENT_SCOUT_PLUS_PROBE_H
#define PHUB_CLIENT_SCOUT_PLUS_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "client/scout/plus_config.h"
#include "client/scout/plus_window.h"
#include "client/scout/sequence.h"

struct plus_probe {
	/* What windows at theta, and those of probes, lowered the loss by, for each sample trained on; where nobody
	 * says how many these were, for each window: */
	struct sequence usual, probes;
	double samples; /* trained on in the last probe; 0: it is not known */
	double usually; /* spent in the window before the last probe; NaN: there was none; */
	double extra;   /* and by that beyond it */
};

enum plus_worth { PLUS_UNCERTAIN = 0, PLUS_WORTH_IT, PLUS_NOT_WORTH_IT };

/* What was known is of other data, or another theta. */
void plus_probe_forget(struct plus_probe *probe);

/* What is known of the gain, and half of its interval. NaN, and infinite: not known. */
void plus_probe_gain(const struct plus_probe *probe, const struct plus_config *config, double *gain, double *radius);

/* A window says what the one before did to the mean model's loss. Where that was a probe: is it certain by now whether
 * talking more is worth it? Then it forgets, and `gain` and `radius` are what it knew. */
enum plus_worth plus_probe_learn(struct plus_probe *probe, const struct plus_config *config,
	const struct plus_window *window, const struct plus_past *past, double *gain, double *radius);

/* What was spent since theta first settled, of all windows and of probes. */
struct plus_budget {
	double bytes, bytes_probes;
	double trained, tried; /* samples of a site; these since the beginning */
	double each;     /* samples of the last trial, where they were more than was asked for; 0: they were not */
	uint32_t second; /* of the trial that is next, as it belongs to the last one; 0: none does */
};

/* A window, of a probe or not, is over. */
void plus_budget_spend(
	struct plus_budget *budget, const struct plus_window *window, const struct plus_past *past, bool probes);

/* Samples that models may be tried on as a window ends, where so many are wanted; 0: none. */
uint32_t plus_budget_tries(struct plus_budget *budget, const struct plus_config *config, uint32_t samples);

/* May a probe that is as long as this window follow it? */
bool plus_budget_affords_probe(
	const struct plus_budget *budget, const struct plus_config *config, const struct plus_window *window);

#endif
