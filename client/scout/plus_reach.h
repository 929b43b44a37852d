/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How loose theta may be: as far as sites pull apart allows, and no looser than is cheaper. Pure; any thread.
 *
 * Pull. With d_k what site k says over its share and S = sum share_k d_k, r = ||S||^2 / sum share_k ||d_k||^2 over all
 * tensors. Where sites talk at each step, d_k is a gradient: the common one (soon small) plus the noise of its batch,
 * of square n, plus the pull of its own data, of square s. With K sites of one weight r is then 1 / (K (1 + s/n)), so
 *
 *      pull = s / n = 1 / (K r) - 1
 *
 * is 0 for sites with one distribution, however many they are, and rises with skew; in the course of a run it falls by
 * about half. The grid begins with the theta at which sites say all at each step: local SGD's 1, Gaia's 0. What talking
 * rarely costs is that models drift along s, where the noise of the mean, n / K, would have moved them anyway: so theta
 * may be as loose as
 *
 *      need(theta) <= ease / ((pull + own)^power sqrt(K))
 *
 * with need() rising with looseness, and `own`, what going alone costs sites that are alike, in units of pull; these
 * and `power` of each algorithm (plus_needs()). `ease` is the configuration's, 1, times what probes and the guard make
 * of it. Where models drift by what they step (`by_rate`), they drift less by a lower rate of learning, and theta may
 * be looser by the root of how far it has fallen since the pull was measured.
 *
 * Gaia's sites step by their share alone of what they find (`by_share`) while others have not heard of it: along s /
 * K^2 in square, beside the noise of the mean. What is felt is then pull / K, and in place of the root above stands,
 * with need() as measured of PLUS_SITES sites, PLUS_SITES^1.5 / K. Of sites that are alike nothing pulls; there what
 * all keep back limits theta (`keeps`), and that falls with their number by K^1.5, as was found of 5 and 10.
 *
 * Cost. The pull says how loose theta may be; looser is not always cheaper. Some of what a window costs is the same
 * whatever theta (`floor`): in seconds the latency of Gaia's exchanges, one at each step, and in seconds or money all
 * that sites within spend. Where a theta costs no more than PLUS_NEAR of that beyond it, none that is looser can be
 * cheaper by more, and would only lose accuracy: so of the thetas that are allowed it is the tightest of these. Of
 * local SGD it is known at once what each costs (`says`); of Gaia a theta must be tried, so with a floor it loosens by
 * one theta in a window, and by one more where what was kept back has filled up, and is no longer so cheap. A floor of
 * 0, as of bytes alone, changes nothing.
 */
#ifndef PHUB_CLIENT_SCOUT_PLUS_REACH_H
#define PHUB_CLIENT_SCOUT_PLUS_REACH_H

#include <stdbool.h>

#include "client/scout/plus_config.h"
#include "client/scout/plus_window.h"

#define PLUS_NEAR  0.03
#define PLUS_SITES 5.0 /* that needs were measured of */

struct plus_reach {
	double pull;       /* a mean; NaN: not measured */
	unsigned measured; /* pulls that it is of; 0: the next one begins it anew */
	double sites;      /* that it was measured of, */
	double rate;       /* and of learning, then */
	double ease;       /* what probes and the guard have made of 1 */
	unsigned enough;   /* index beyond which no theta is cheaper; PLUS_THETAS_MAX: it is not known */
};

/* The pull of a window at the tightest theta, whose r is this, goes into the mean; the later ones of a pull that is
 * known for an eighth at least, as it changes. */
void plus_reach_measure(struct plus_reach *reach, const struct plus_window *window, double r);
void plus_reach_renew(struct plus_reach *reach, const struct plus_window *window, double r);

/* Are sites others than those whose pull was measured, by so much that r alone would look like drift? */
bool plus_reach_others(
	const struct plus_reach *reach, const struct plus_config *config, const struct plus_window *window);

/* The window at theta `index`, of `count`, has cost this: finds out beyond which none is cheaper. False: beyond none
 * that was looked at. */
bool plus_reach_weigh(struct plus_reach *reach, const struct plus_config *config, const struct plus_window *window,
	unsigned index, unsigned count);

/* Is what a looser theta costs known only when it was tried, and worth knowing? */
bool plus_reach_by_one(const struct plus_config *config, const struct plus_window *window, unsigned count);

/* Index of the loosest theta, of `count`, that is allowed at this rate of learning; NaN: at that of the pull. */
unsigned plus_reach_allows(
	const struct plus_reach *reach, const struct plus_config *config, double rate, unsigned count);

#endif
