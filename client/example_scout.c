/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often should sites with skewed data talk? A scout decides, for those with a transport of their own. Four sites
 * learn on which side of a line points lie, each from a part of the plane, and average their weights every theta steps.
 * Here they are arrays, and all talking is a loop; elsewhere each site is a process with a scout of its own, gives it
 * the same numbers as all the others do, and decides the same.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include <phub.h>

#define CHECK(call)     \
	if ((call) < 0) \
	return fprintf(stderr, "example_scout: %s\n", phub_error()), 1

enum { SITES = 4, WEIGHTS = 3, PERIOD = 100, WINDOWS = 10, SAMPLES = 200 };

static const double rate = 0.1;

struct site {
	float w[WEIGHTS];
	unsigned chance;
};

static float noise(unsigned *state) /* -1 .. 1 */
{
	*state = *state * 1664525u + 1013904223u;
	return (float)(int)*state / 2147483648.0f;
}

/* A point of a site's data, and its label; sites' parts of the plane lie side by side. */
static bool sample(unsigned site, unsigned *chance, float x[WEIGHTS])
{
	x[0] = 0.5f * noise(chance) + (float)site - 1.5f;
	x[1] = 2 * noise(chance);
	x[2] = 1;
	return x[0] + x[1] > 0.2f;
}

static float score(const float w[WEIGHTS], const float x[WEIGHTS])
{
	return w[0] * x[0] + w[1] * x[1] + w[2] * x[2];
}

static void train(struct site *s, unsigned site)
{
	float x[WEIGHTS], wrong = sample(site, &s->chance, x);

	wrong -= 1 / (1 + expf(-score(s->w, x)));
	for (unsigned i = 0; i < WEIGHTS; i++)
		s->w[i] += (float)rate * wrong * x[i];
}

/* What part of samples of a site's data the model gets right; of one draw they are the same for all that are tried. */
static double accuracy(const float w[WEIGHTS], unsigned site, unsigned draw)
{
	unsigned right = 0;
	float x[WEIGHTS];

	for (unsigned i = 0; i < SAMPLES; i++)
		right += sample(site, &draw, x) == (score(w, x) > 0);
	return (double)right / SAMPLES;
}

/* Averages the weights, and says how far sites, and their mean, have moved since all had `common`. */
static void average(struct site sites[SITES], float common[WEIGHTS], double *said, double *heard)
{
	*said = *heard = 0;
	for (unsigned i = 0; i < WEIGHTS; i++) {
		double mean = 0;

		for (unsigned k = 0; k < SITES; k++) {
			const double moved = sites[k].w[i] - common[i];

			*said += moved * moved / SITES;
			mean += moved / SITES;
		}
		*heard += mean * mean;
		common[i] += (float)mean;
		for (unsigned k = 0; k < SITES; k++)
			sites[k].w[i] = common[i];
	}
}

/* What each site says of the window: how its model does at home, and where it travelled to. */
static int report(phub_scout_t *scout, const struct site sites[SITES], unsigned window, unsigned exchanges,
	struct phub_scout_report reports[SITES])
{
	for (unsigned k = 0; k < SITES; k++) {
		const int host = phub_scout_host(scout, k, SITES);

		CHECK(host);
		reports[k] = (struct phub_scout_report){.size = sizeof(reports[k]),
			.home = accuracy(sites[k].w, k, window * SITES + k),
			.away = accuracy(sites[k].w, (unsigned)host, window * SITES + (unsigned)host),
			.samples = SAMPLES,
			.bytes = exchanges * sizeof(sites[k].w),
			.exchanges = exchanges};
	}
	return 0;
}

int main(void)
{
	const double thetas[] = {1, 2, 5, 10, 25, 50}; /* the one that talks most first */
	struct phub_scout_options options;
	struct site sites[SITES] = {{{0}, 1}, {{0}, 2}, {{0}, 3}, {{0}, 4}};
	float common[WEIGHTS] = {0};
	phub_scout_t *scout;

	phub_scout_options_init(&options);
	options.thetas = thetas;
	options.theta_count = sizeof(thetas) / sizeof(thetas[0]);
	options.first = options.theta_count - 1;
	options.sigma = 0.01; /* accuracy that may be lost */
	options.period = PERIOD;
	options.model_bytes = sizeof(common);
	CHECK(phub_scout_create(&options, &scout));
	for (unsigned window = 0; window < WINDOWS; window++) {
		const unsigned theta = (unsigned)phub_scout_theta(scout);
		struct phub_scout_decision decision = {.size = sizeof(decision)};
		struct phub_scout_report reports[SITES];
		double said, heard;

		for (unsigned step = 1; step <= PERIOD; step++) {
			/* In the middle of the last interval: see phub_site_step(). */
			if (step - 1 == PERIOD - theta + theta / 2 &&
				report(scout, sites, window, PERIOD / theta, reports) != 0)
				return 1;
			for (unsigned k = 0; k < SITES; k++)
				train(&sites[k], k);
			if (step % theta)
				continue;
			average(sites, common, &said, &heard);
			CHECK(phub_scout_hear(
				scout, said, heard, 1.0 / SITES, rate)); /* each site's part is 1 / SITES */
		}
		CHECK(phub_scout_observe(scout, reports, SITES));
		CHECK(phub_scout_decide(scout, &decision));
		CHECK(phub_scout_apply(scout));
		printf("theta %u: lost %.3f, r %.2f, %.1f bytes a step; %g is next: %s\n", theta, decision.loss,
			decision.r, decision.bytes, decision.theta, decision.reason);
	}
	for (unsigned k = 0; k < SITES; k++)
		printf("site %u: the common weights are right on %.0f %%\n", k, 100 * accuracy(common, k, k));
	phub_scout_destroy(scout);
	return 0;
}
