/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numbers that scout+ goes by, with those that were measured for each algorithm. Pure; any thread.
 */
#ifndef PHUB_CLIENT_SCOUT_PLUS_CONFIG_H
#define PHUB_CLIENT_SCOUT_PLUS_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "client/scout/site.h"

#define PLUS_THETAS_MAX 64u
#define PLUS_PASSES     40u /* unless the caller says otherwise */

struct plus_config {
	/* Of the algorithm and its grid, which plus_needs() fills in; plus_reach.h has what they are for: */
	double need[PLUS_THETAS_MAX];  /* by theta: 0 for the first, and rising */
	double own;                    /* in units of pull, 0 or more */
	unsigned power;                /* 1 or 2 */
	bool by_rate;                  /* models drift by what they step */
	bool by_share;                 /* they step by their share of what their site finds */
	double keeps[PLUS_THETAS_MAX]; /* by theta: beside the most that sites which are alike may keep back; 0: nothing
					*/
	double says[PLUS_THETAS_MAX];  /* what a theta costs beyond the floor, beside the first, 1; 0: not known yet */
	bool each_step;                /* sites exchange at each step, whatever theta */

	double ease;     /* of all algorithms: how loose theta may be beside that; above 0 */
	unsigned passes; /* exchanges at the tightest theta that are not counted, */
	unsigned settle; /* and those that a pull is measured in after them, above 0 */

	/* Watches (plus_watch.h), in natural logarithms, above 0: */
	double slack;       /* of r, and of the mean model's loss; */
	double slack_moves; /* of how far sites move, which plus_needs() fills in; */
	double bound;       /* of all; 0: nothing is watched */

	/* Probes, and what they may spend (plus_probe.h): */
	double sigma;      /* loss, in the unit of the reports, that talking more may be worth; above 0 */
	double worth;      /* of a unit of loss, in that of costs; 0: sigma holds, else it is not looked at */
	double alpha;      /* of the intervals, 0 .. 1; the guard's, too */
	double bytes_part; /* of what is sent, 0 .. 1 */
	double work_part;  /* of computing, likewise */
	uint32_t tries;    /* samples that a site tries its models on in a window, when there is work left */

	/* The guard (plus_guard.h): */
	double guard;    /* loss of the mean model beyond the sites' own that is no skew's; above 0 */
	bool statistics; /* the model has what is not trained, or it is not known */
};

/* What was measured, and found on validation data, as plus_config.c has it; the grid's part is plus_needs()'s to fill
 * in. */
void plus_defaults(struct plus_config *config);

/*
 * The part of an algorithm's grid, as was measured. BSP: theta 1 alone, which needs nothing. 0; -EINVAL: the grid does
 * not begin with the theta that says all at each step; -ENOTSUP: of DGC nothing was measured, and the caller may fill
 * them by measurements.
 */
int plus_needs(struct plus_config *config, enum site_algorithm algorithm, const double *thetas, unsigned count);

/* NULL, or which of the numbers is outside its limits, and these. */
const char *plus_check(const struct plus_config *config, unsigned count);

#endif
