/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the environment of a process says of its site, as `phub scout run` sets it. It comes before what the program
 * itself says, so that one script trains in many ways:
 *
 *      PHUB_SCOUT_ALGORITHM   bsp, gaia, local, dgc
 *      PHUB_SCOUT_THETA       the theta; of a scout (fixed, hill, stochastic, annealing): the one that it begins with
 *      PHUB_SCOUT_POLICY      fixed, replay, hill, stochastic, annealing, scout+: a scout, with the
 *                             program's options of one
 *      PHUB_SCOUT_THETAS      likewise; its grid, numbers with commas between, the tightest first, or the schedule to
 *                             replay: 1 to 64
 *      PHUB_SCOUT_PERIOD      of a scout, where there is one, else nothing: steps in a window
 *      PHUB_SCOUT_SEED        likewise
 *      PHUB_SCOUT_SIGMA       likewise, of replay, hill, stochastic and annealing: loss that is borne, 0 to 1; with
 *                             PHUB_SCOUT_LAMBDA_LOSS, LAMBDA_BYTES, what costs weigh
 *      PHUB_SCOUT_GAIN        likewise, of scout+: loss that talking more would have to save, above 0
 *      PHUB_SCOUT_WORTH       likewise, instead of GAIN: what a unit of loss is worth, in the unit of costs; 0: GAIN
 *                             holds
 *      PHUB_SCOUT_EASE        likewise: a factor to how loose theta may be, above 0
 *      PHUB_SCOUT_TRIM        likewise, of all: the part of sites that may lie, 0 to below .5: as much is left out of
 *                             means at either end
 *      PHUB_SCOUT_UNIT        likewise, of all: bytes, seconds, money: what costs are in; with PHUB_SCOUT_RATE,
 *                             LATENCY, PRICE, RATE_WITHIN, LATENCY_WITHIN, PRICE_WITHIN
 *      PHUB_SCOUT_LOST        fail, shrink, wait: what becomes of the site's job when a worker is lost
 *      PHUB_SCOUT_REPRODUCIBLE
 *                             0, 1: the sums of the site's job are made in the order of ranks, so that what is learned,
 *                             and decided, follows from seeds alone, over any transport
 *      PHUB_SCOUT_SHADOW      thetas, with commas between: what rank 0 would send at them goes into its decision log
 *      PHUB_SCOUT_LOG         its decision log, where the program says nothing of one
 *
 * So it speaks of a site that has no class of link. One whose link is "rack" has variables of its own instead:
 * PHUB_SCOUT_RACK_ALGORITHM and so on.
 */
#ifndef PHUB_CLIENT_SCOUT_ENVIRONMENT_H
#define PHUB_CLIENT_SCOUT_ENVIRONMENT_H

#include "client/phub.h"
#include "client/scout/scout.h"
#include "phub/base/err.h"

/* What options point to, as long as they are used. */
struct environment {
	struct phub_scout_options scout;
	double thetas[SCOUT_THETAS_MAX];
	int lost;         /* enum phub_lost, of the job; -1: as it is */
	int reproducible; /* likewise, 0 or 1 */
};

/*
 * Into options of this library's size. Reads the environment, so no other thread may write it. 0; -EINVAL with the
 * variable, what it is and what is allowed in `e`, also for one that the policy does not look at. What values together
 * make is for those who take the options.
 */
int environment_apply(struct phub_site_options *options, struct environment *room, struct err *e);

/* How many thetas PHUB_SCOUT_SHADOW has, to out[SHADOW_THETAS_MAX]; 0: it is not set; -EINVAL as above. `link`: NULL
 * or "": none. */
int environment_shadow(const char *link, double *out, struct err *e);

/* PHUB_SCOUT_LOG; NULL: it is not set. */
const char *environment_log(const char *link);

#endif
