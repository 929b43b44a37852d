/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What sites say of their moves to phub scout advise, made one for scout+: sums of squares, how many sites the mean is
 * of, and the rate of learning. Some may lie, and fewer than half of them decide little. Pure.
 *
 * The mean has moved alike for all: whoever says otherwise lies, so it is what the middle one says, as is of how many
 * exchanges and sites, and the rate. What each has moved itself nobody else knows; it counts as MOVES_FAR times the
 * middle one's at most (of two the higher), or one site would hold theta at the tightest. Honest sites are within that:
 * it is twice as far. It counts by what the site weighs, which nobody else knows either. So who says a weight beyond
 * all would decide by himself how far sites pull apart: a weight counts as MOVES_HEAVY times the middle one's at most,
 * but where it makes theta tighter. Whether it does is taken from
 *
 *      said / sqrt(sites)              said: the mean of what sites have moved, as they weigh; sites: how many they are
 *                                      by that
 *
 * which is not all that theta goes by (plus_reach.h: of each algorithm another power of sites, and what going alone
 * costs), so where the pull is small a heavy weight may loosen it somewhat. Where that is more by weights as they were
 * said, those hold, as of an honest site that has most of the data, which moves as others do. Else those that are
 * heavier count as said above from then on, until they say a weight within that: sites are not others in each window.
 */
#ifndef PHUB_CLI_ADVISE_MOVES_H
#define PHUB_CLI_ADVISE_MOVES_H

#include <stdbool.h>

#include "phub/cli/advise_line.h"

#define MOVES_HEAVY 2
#define MOVES_FAR   4 /* of sums of squares */

/* All zeros, but `rate` is NaN: nothing was said yet. */
struct advise_moves {
	double weights[ADVISE_SITES_MAX]; /* that sites have said last; 0: none has been */
	bool capped[ADVISE_SITES_MAX];    /* they count as MOVES_HEAVY times the middle one's */
	double rate;                      /* of learning, in the last window that said it */
};

/* Of a window. */
struct advise_moved {
	unsigned exchanges; /* 0: fewer than half of the sites say anything, or one has numbers no more, which is then
			       in the sums of all: scout+ is to hear what cannot be true */
	double said, heard, squares; /* as scout_hear_all() has them */
	unsigned heavy;              /* 1 + the first site that was capped; 0: none was, */
	unsigned more;               /* and how many others were */
	unsigned far, farther;       /* likewise of those that count as having moved MOVES_FAR times the middle one's */
};

/* lines[site] of `sites`, 1 to ADVISE_SITES_MAX; NULL: it has not reported. */
void advise_moves_hear(
	struct advise_moves *moves, const struct advise_line *const *lines, unsigned sites, struct advise_moved *moved);

#endif
