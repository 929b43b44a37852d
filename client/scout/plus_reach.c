/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What allows how much was measured: plus_config.c.
 */
#include "client/scout/plus_reach.h"

#include <math.h>

#include "client/scout/sequence.h"

/* Of a mean of nothing; a mean of pulls with it is a number still. */
#define PLUS_PULL_MOST 1e9

/* Shares are sums of parts that are rounded. */
#define PLUS_ROUNDS 1e-9

/* Pulls that the mean of one that is known is of, at most. */
enum { PLUS_PULLS = 8 };

/* ---- pull ---- */

/* Some of the mean is the common gradient's, and chance may have r above 1 / K: then there is none to be seen. */
static double plus_reach_pull(double r, double sites)
{
	return r * sites < 1 ? fmin(1 / (r * sites) - 1, PLUS_PULL_MOST) : 0;
}

void plus_reach_measure(struct plus_reach *reach, const struct plus_window *w, double r)
{
	const double pull = plus_reach_pull(r, w->sites);

	reach->measured++;
	reach->rate = w->rate;
	reach->sites = w->sites;
	reach->pull = reach->measured == 1 ? pull : reach->pull + (pull - reach->pull) / reach->measured;
}

void plus_reach_renew(struct plus_reach *reach, const struct plus_window *w, double r)
{
	reach->measured = reach->measured < PLUS_PULLS ? reach->measured : PLUS_PULLS - 1;
	plus_reach_measure(reach, w, r);
}

bool plus_reach_others(const struct plus_reach *reach, const struct plus_config *c, const struct plus_window *w)
{
	return reach->measured > 0 && fabs(exact_log(w->sites / reach->sites)) > c->slack / 2;
}

/* ---- cost ---- */

static bool plus_reach_knows_costs(const struct plus_config *c, unsigned count)
{
	return c->says[count - 1] > 0;
}

bool plus_reach_by_one(const struct plus_config *c, const struct plus_window *w, unsigned count)
{
	return w->floor > 0 && !plus_reach_knows_costs(c, count);
}

bool plus_reach_weigh(struct plus_reach *reach, const struct plus_config *c, const struct plus_window *w,
	unsigned index, unsigned count)
{
	const double over = w->spent - w->floor;

	for (unsigned i = 0; w->floor > 0 && i < count; i++) {
		const bool told = c->says[i] > 0 && c->says[index] > 0;

		if (i != index && !told)
			continue;
		if ((i == index ? over : over * c->says[i] / c->says[index]) > PLUS_NEAR * w->floor)
			continue;
		reach->enough = i;
		return true;
	}
	if (plus_reach_knows_costs(c, count) || index >= reach->enough)
		reach->enough = PLUS_THETAS_MAX;
	return false;
}

/* ---- both ---- */

/* How much looser theta may be at this rate than at that at which the pull was measured; one that is not known is the
 * same. */
static double plus_reach_slower(const struct plus_reach *reach, const struct plus_config *c, double rate)
{
	return c->by_rate && rate > 0 && rate < reach->rate ? sqrt(reach->rate / rate) : 1;
}

unsigned plus_reach_allows(const struct plus_reach *reach, const struct plus_config *c, double rate, unsigned count)
{
	const double pull = reach->pull + c->own, ease = c->ease * reach->ease, fewer = PLUS_SITES / reach->sites;
	const double by_sites = c->by_share ? sqrt(PLUS_SITES) * fewer : sqrt(reach->sites);
	const double felt = (c->power == 2 ? pull * pull : pull) * by_sites / plus_reach_slower(reach, c, rate);
	const double have = felt > 0 ? ease / felt : INFINITY, keeps = ease * fewer * sqrt(fewer) * (1 + PLUS_ROUNDS);
	unsigned index = 0;

	while (index + 1 < count && c->need[index + 1] <= have && c->keeps[index + 1] <= keeps)
		index++;
	return index < reach->enough ? index : reach->enough;
}
