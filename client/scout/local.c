/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Local SGD: sites train by themselves for theta steps, then what they moved is averaged, and an outer optimizer makes
 * new common weights of that.
 */
#include "client/scout/site_internal.h"

#include <math.h>
#include <string.h>

static bool local_theta_valid(double theta)
{
	return theta >= 1 && theta <= SITE_LOCAL_STEPS_MAX && theta == floor(theta);
}

static void local_step(struct site *site, unsigned t, const float *gradient, double scale)
{
	float *v = site->velocity + site->offset[t], *w = site->tensors[t].weights;
	float m = (float)site->config.momentum, decay = (float)site->config.weight_decay;
	float rate = (float)(site->rate * scale);

	for (uint32_t i = 0; i < site->tensors[t].elements; i++) {
		v[i] = m * v[i] + (gradient[i] + decay * w[i]);
		w[i] -= rate * v[i];
	}
}

static uint64_t local_interval(const struct site *site)
{
	return (uint64_t)site->config.theta;
}

static bool local_at_box(const struct site *site, unsigned t)
{
	return site->config.outer.kind == OUTER_BOX && site->tensors[t].trained;
}

static uint32_t local_offer(struct site *site, unsigned t, float *out)
{
	const float *a = site->anchor + site->offset[t], *w = site->tensors[t].weights;
	float share = (float)site->config.share;

	if (local_at_box(site, t))
		share = -share;
	for (uint32_t i = 0; i < site->tensors[t].elements; i++)
		out[i] = share * (w[i] - a[i]);
	return site->tensors[t].elements;
}

static void local_accept(struct site *site, unsigned t, const float *sum)
{
	struct outer_config average = {.kind = OUTER_AVERAGE};
	uint32_t elements = site->tensors[t].elements;
	float *a = site->anchor + site->offset[t];
	float *state[OUTER_STATE_MAX] = {NULL};

	for (unsigned s = 0; s < OUTER_STATE_MAX && site->outer[s]; s++)
		state[s] = site->outer[s] + site->offset[t];
	if (local_at_box(site, t))
		memcpy(a, sum, elements * sizeof(*a));
	else
		outer_step(site->tensors[t].trained && !site->extra ? &site->config.outer : &average, a, sum, state,
			elements);
	memcpy(site->tensors[t].weights, a, elements * sizeof(*a));
}

const struct site_ops site_local = {
	.name = "local",
	.arrays = SITE_VELOCITY | SITE_ANCHOR,
	.untrained = true,
	.theta_valid = local_theta_valid,
	.thetas = "a whole number of steps, 1 to 10^9",
	.step = local_step,
	.interval = local_interval,
	.offer = local_offer,
	.accept = local_accept,
};
