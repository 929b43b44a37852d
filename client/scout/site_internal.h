/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each algorithm fills in; site.c alone calls it, having checked everything.
 */
#ifndef PHUB_CLIENT_SCOUT_SITE_INTERNAL_H
#define PHUB_CLIENT_SCOUT_SITE_INTERNAL_H

#include "client/scout/site.h"

enum site_array { SITE_RESIDUAL = 1, SITE_VELOCITY = 2, SITE_ANCHOR = 4 };

struct site_ops {
	const char *name;
	unsigned arrays; /* of enum site_array */
	bool untrained;  /* exchanges what is not trained as well */
	bool (*theta_valid)(double theta);
	const char *thetas; /* which are, in words */
	/* Before the tensors of a step: what gradients are multiplied by. NULL: 1. */
	double (*scale)(const struct site *site, const float *const *gradients);
	/* A trained tensor's step. */
	void (*step)(struct site *site, unsigned t, const float *gradient, double scale);
	/* Steps from one exchange to the next. NULL: 1. */
	uint64_t (*interval)(const struct site *site);
	/* Writes `out`. Returns how many values the papers would count, the tensor's elements when it goes whole. */
	uint32_t (*offer)(struct site *site, unsigned t, float *out);
	void (*accept)(struct site *site, unsigned t, const float *sum);
};

extern const struct site_ops site_bsp, site_gaia, site_local, site_dgc;

#endif
