/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bulk synchronous: every gradient goes, every site makes the same step of momentum SGD on the sum.
 */
#include "client/scout/site_internal.h"

#include <string.h>

static bool bsp_theta_valid(double theta)
{
	return theta == 1;
}

static void bsp_step(struct site *site, unsigned t, const float *gradient, double scale)
{
	float *r = site->residual + site->offset[t], share = (float)(site->config.share * scale);

	for (uint32_t i = 0; i < site->tensors[t].elements; i++)
		r[i] += share * gradient[i];
}

static uint32_t bsp_offer(struct site *site, unsigned t, float *out)
{
	size_t bytes = site->tensors[t].elements * sizeof(float);

	memcpy(out, site->residual + site->offset[t], bytes);
	memset(site->residual + site->offset[t], 0, bytes);
	return site->tensors[t].elements;
}

static void bsp_accept(struct site *site, unsigned t, const float *sum)
{
	float *v = site->velocity + site->offset[t], *w = site->tensors[t].weights;
	float m = (float)site->config.momentum, decay = (float)site->config.weight_decay, rate = (float)site->rate;

	/* Nothing is left to say between two steps. */
	for (uint32_t i = 0; i < site->tensors[t].elements && !site->extra; i++) {
		v[i] = m * v[i] + (sum[i] + decay * w[i]);
		w[i] -= rate * v[i];
	}
}

const struct site_ops site_bsp = {
	.name = "bsp",
	.arrays = SITE_RESIDUAL | SITE_VELOCITY,
	.theta_valid = bsp_theta_valid,
	.thetas = "1",
	.step = bsp_step,
	.offer = bsp_offer,
	.accept = bsp_accept,
};
