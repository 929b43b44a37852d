/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was measured, by which command, and the numbers that follow of it.
 */
#include "client/scout/plus_config.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>

#include "client/scout/sequence.h"

/*
 * Measured with tests/bench/skew_study (K=5, group normalization, --on valid). At 20, 40, 60, 80 and 100 % of skew by
 * label the pull of steps 40 to 60 is 2.4, 8.5, 20, 39 and 76 (seeds 100 to 105), later about two thirds of it, and the
 * loosest theta of local SGD within a point of BSP about 60, 20, 7, 2.5 and 2 (seed 100); sites that are alike lose a
 * point at 20 to 100. With a theta that is one over pull and own what allows 2 at 80 % allows 8 at 40 %; one over the
 * square of it follows. Points lost are .84 .82 .72 .60 .66 .68 at 0 to 100 % (medians of seeds 100 to 102).
 *
 * With K=10 (seed 100) theta 20, 5, below 2, and 2 are within a point at 20 to 80 %, by pulls of 4.9, 14, 28 and 60,
 * and with K=2 still 100 by pulls of 0 and .3: as loose as the root of 5 / K allows.
 */
static const double plus_reach_local = 18000, plus_own_local = 17;

/*
 * What Gaia says at a looser theta rises for ten windows, as what is kept back fills up: by 2.3 times at theta .2 and
 * 20 or 60 % of skew (seed 100). Where data drift to 100 %, or from there, it is 2.6 and 10 times as much in one
 * window.
 */
static const double plus_slack_local = 0.1, plus_slack_gaia = 0.35;

/* Gaia: .25 at a pull of 2.2, .2 at 19, .02 at 60; what lies between is by the logarithms of both. At 80 % of skew, by
 * pulls of 34 to 54 in steps 40 to 60 and of 26 later, .05 loses 1.04 points, .07 .82 and .1 1.30 (seeds 100 to 102).
 * Sites that are alike lose about a point at .3, and with K=10 at .11; there .1 does still at 60 % of skew, by a pull
 * of 41, and at 80 %, by 79, what 5 sites with half of that do. Points lost with K=10 are .04 .18 .44 .62 1.02 .24 at 0
 * to 100 %, with K=2 -.02 .68 .56 .16 .22 1.38 (medians of seeds 100 to 102).
 */
static const double plus_loosest_gaia = 0.3;
static const struct {
	double theta, need;
} plus_steps_gaia[] = {
	{0.01, 0.0067}, {0.02, 0.0075}, {0.05, 0.0098}, {0.1, 0.0186}, {0.2, 0.0228}, {0.3, 0.224}, {1, 4.5}};

void plus_defaults(struct plus_config *config)
{
	*config = (struct plus_config){.power = 1,
		.ease = 1,
		.passes = PLUS_PASSES,
		.settle = 20,
		.sigma = 0.02,
		.alpha = 0.05,
		.slack = 0.1,
		.slack_moves = plus_slack_local,
		.bound = 0.5,
		.bytes_part = 0.02,
		.work_part = 0.03,
		.tries = 200,
		.guard = 0.5,
		.statistics = true};
}

static double plus_need_gaia(double theta)
{
	const unsigned last = sizeof(plus_steps_gaia) / sizeof(plus_steps_gaia[0]) - 1;
	unsigned i = 0;
	double part, from, to;

	if (theta <= plus_steps_gaia[0].theta)
		return plus_steps_gaia[0].need;
	while (i + 1 < last && theta > plus_steps_gaia[i + 1].theta)
		i++;
	from = exact_log(plus_steps_gaia[i].need);
	to = exact_log(plus_steps_gaia[i + 1].need);
	part = exact_log(theta / plus_steps_gaia[i].theta) /
	       exact_log(plus_steps_gaia[i + 1].theta / plus_steps_gaia[i].theta);
	return exact_exp(from + part * (to - from));
}

int plus_needs(struct plus_config *config, enum site_algorithm algorithm, const double *thetas, unsigned count)
{
	const double all[SITE_ALGORITHM_COUNT] = {[SITE_BSP] = 1, [SITE_GAIA] = 0, [SITE_LOCAL] = 1};

	if (algorithm == SITE_DGC)
		return -ENOTSUP;
	if ((unsigned)algorithm >= SITE_ALGORITHM_COUNT || count == 0 || thetas[0] != all[algorithm])
		return -EINVAL;
	config->own = algorithm == SITE_LOCAL ? plus_own_local : 0;
	config->each_step = algorithm != SITE_LOCAL;
	config->power = algorithm == SITE_LOCAL ? 2 : 1;
	config->by_share = algorithm == SITE_GAIA;
	config->by_rate = algorithm == SITE_LOCAL; /* Gaia's threshold itself goes by the rate */
	config->slack_moves = algorithm == SITE_GAIA ? plus_slack_gaia : plus_slack_local;
	for (unsigned i = 0; i < count && i < PLUS_THETAS_MAX; i++) {
		double need = algorithm == SITE_LOCAL  ? thetas[i] / plus_reach_local
			      : algorithm == SITE_GAIA ? plus_need_gaia(thetas[i])
						       : 0;

		config->need[i] = i ? need : 0;
		config->keeps[i] = algorithm == SITE_GAIA ? thetas[i] / plus_loosest_gaia : 0;
		config->says[i] = algorithm == SITE_LOCAL ? 1 / thetas[i] : i == 0;
	}
	return 0;
}

const char *plus_check(const struct plus_config *c, unsigned count)
{
	const struct {
		const char *wrong;
		double value;
		bool good;
	} numbers[] = {
		{"ease needs to be a number above 0", c->ease, c->ease > 0},
		{"settle needs to be a number above 0", c->settle, c->settle > 0},
		{"gain needs to be a number above 0", c->sigma, c->sigma > 0},
		{"worth needs to be a number from 0 on; with 0 gain holds", c->worth, c->worth >= 0},
		{"alpha needs to be above 0 and below 1", c->alpha, c->alpha > 0 && c->alpha < 1},
		{"slack needs to be a number above 0", c->slack, c->slack > 0},
		{"drift needs to be a number from 0 on; 0: it is not looked at", c->bound, c->bound >= 0},
		{"probes needs to be 0 to 1", c->bytes_part, c->bytes_part >= 0 && c->bytes_part <= 1},
		{"work_part needs to be 0 to 1", c->work_part, c->work_part >= 0 && c->work_part <= 1},
		{"guard needs to be a number above 0", c->guard, c->guard > 0},
		{"own needs to be a number from 0 on", c->own, c->own >= 0},
		{"power needs to be 1 or 2", c->power, c->power == 1 || c->power == 2},
		{"slack_moves needs to be a number above 0", c->slack_moves, c->slack_moves > 0},
		{"the need of the first theta has to be 0", c->need[0], c->need[0] == 0},
	};

	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (!numbers[i].good || !isfinite(numbers[i].value))
			return numbers[i].wrong;
	for (unsigned i = 1; i < count; i++)
		if (!(c->need[i] >= c->need[i - 1]))
			return "the need of a theta that is looser has to be no less than of one before";
	return NULL;
}
