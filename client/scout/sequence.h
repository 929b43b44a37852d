/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers that are looked at while they come in: a mean with an interval that holds at all times, evidence that adds up
 * until it is certain, and a watch for the moment at which a series leaves its level. The same numbers in the same
 * order give the same bits on each machine. No I/O, clock or memory; one thread at a time.
 */
#ifndef PHUB_CLIENT_SCOUT_SEQUENCE_H
#define PHUB_CLIENT_SCOUT_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

/* e^x, and the natural logarithm of x > 0, which the C library does not give with the same bits everywhere. Within
 * 1e-12 of them, relative to the result or to 1. exact_exp() is 0 below -700 and infinite above 700; exact_log() of 0
 * is -infinity, of what is below 0 or NaN is NaN. */
double exact_exp(double x);
double exact_log(double x);

/* Welford's mean and sum of squared deviations. All zeros: nothing yet. */
struct sequence {
	uint64_t count;
	double mean, spread;
};

void sequence_add(struct sequence *s, double x);

/* Infinite with fewer than two numbers. */
double sequence_deviation(const struct sequence *s);

/*
 * With probability 1 - alpha, |mean - the true mean| is below this at all counts at once, so that one may look after
 * each number and stop when one likes: exactly so where numbers are normal, of whatever deviation, and from the first
 * on (Student's t with a normal prior on the mean in deviations: Wang, Ramdas, Anytime-valid t-tests and confidence
 * sequences for Gaussian means with unknown variance, 2023); of numbers that are far from normal it holds less the
 * fewer there are. Narrowest at about `best` numbers; infinite as long as there are too few to say anything (of 16 and
 * .025: below six).
 */
double sequence_radius(const struct sequence *s, double alpha, uint64_t best);

/*
 * Is the mean of a series above 0, from some number on? Each number, in units of its own deviation, is a likelihood
 * ratio: of a mean of 1 beside one of 0, e^(x - 1/2). `odds` is the sum over all numbers that it may have begun with,
 * number j weighing 1 / (j (j + 1)), of the product of those since: an e-process (Shin, Ramdas, Rinaldo: E-detectors,
 * 2022, with weights in place of a rate). Where no mean is above 0, whatever was before it, and chance no wilder than
 * normal, odds are ever 1 / alpha or more with a probability of alpha at most, so that one may look after each number.
 * One number alone says little: it counts for EVIDENCE_MOST at most. All zeros: nothing yet.
 */
#define EVIDENCE_MOST 2.0

struct evidence {
	uint64_t count;
	double odds;
};

/* Odds above `enough` are `enough`, so that numbers which say otherwise are heard soon. Of NaN nothing is added. */
void evidence_add(struct evidence *evidence, double x, double enough);

/*
 * Page and Hinkley's test, to both sides: has a series left the level that it had? Each number less its mean is added
 * up, less `slack`; what that has risen from its least by more than `bound` raises the alarm. In units of the series.
 * The mean is that of WATCH_MEMORY numbers or so, for a level may change slowly: that is no alarm. And of a series
 * whose numbers differ from one to the next `slack` is their deviation at least, and `bound` WATCH_FAR of it, so that
 * chance raises one in some ten thousand numbers. The first few, whose deviation is not known, are beside `slack` and
 * `bound` alone, so that what changes soon is seen: of 100 numbers with a slack of .1 and a bound of .5 chance raises
 * one in 2 % of series where the deviation is .2, and in 12 % where it is .3.
 *
 * What spares most of these was tried, and costs more. With the deviation of the two numbers before, while models
 * settle, they are 6 %; but of changes by .8 that begin in the second number, where the deviation is .1, 73 % are seen
 * and not 85. With those two in the mean as well, and a deviation that is expected and counts as three numbers, they
 * are 4 %, and more changes are seen; but at full skew r has a trend of its own, and that raises alarms: in 7 of 36
 * runs whose data do not drift, and not in 2. All zeros: nothing yet.
 */
struct watch {
	uint64_t count;
	double mean, up, down;
	double last, spread; /* the number before; and half of the squares of differences, their mean */
};

#define WATCH_MEMORY 16
#define WATCH_SPREAD 32 /* likewise, of the deviation */
#define WATCH_KNOWN  4  /* numbers before which the deviation is not known, and counts as 0 */
#define WATCH_FAR    6.0
#define WATCH_ODD \
	9.0 /* a square counts as so many times their mean at most, or slack's: so a jump does not hide itself */

enum watch_alarm { WATCH_QUIET = 0, WATCH_RISEN = 1, WATCH_FALLEN = 2 };

enum watch_alarm watch_add(struct watch *w, double x, double slack, double bound);

#endif
