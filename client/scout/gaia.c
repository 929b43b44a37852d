/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gaia: a site moves by its own update at once; the others hear of an element when what they have not heard of it is
 * significant beside its weight.
 */
#include "client/scout/site_internal.h"

#include <math.h>
#include <string.h>

static bool gaia_theta_valid(double theta)
{
	return theta >= 0 && isfinite(theta);
}

static void gaia_step(struct site *site, unsigned t, const float *gradient, double scale)
{
	float *r = site->residual + site->offset[t], *v = site->velocity + site->offset[t];
	float *w = site->tensors[t].weights;
	float m = (float)site->config.momentum, decay = (float)site->config.weight_decay;
	float rate = (float)(site->rate * site->config.share * scale);

	for (uint32_t i = 0; i < site->tensors[t].elements; i++) {
		float u;

		v[i] = m * v[i] + (gradient[i] + decay * w[i]);
		u = -rate * v[i];
		w[i] += u;
		r[i] += u;
	}
}

/* So written that NaN is significant: it is not kept from those whom it concerns. */
static bool gaia_significant(float r, float w, float threshold)
{
	return !(fabsf(r) <= threshold * fabsf(w));
}

static uint32_t gaia_offer(struct site *site, unsigned t, float *out)
{
	const struct site_tensor *tensor = &site->tensors[t];
	float *r = site->residual + site->offset[t];
	float threshold = (float)(site->config.theta * site->rate / site->config.rate_first);
	uint32_t count = 0;
	bool whole;

	for (uint32_t i = 0; i < tensor->elements; i++)
		count += gaia_significant(r[i], tensor->weights[i], threshold);
	whole = site->flushing ||
		(uint64_t)count * (SITE_INDEX_BYTES + SITE_VALUE_BYTES) > (uint64_t)tensor->elements * SITE_VALUE_BYTES;
	for (uint32_t i = 0; i < tensor->elements; i++) {
		bool said = whole || gaia_significant(r[i], tensor->weights[i], threshold);

		out[i] = said ? r[i] : 0;
		r[i] = said ? 0 : r[i];
	}
	memcpy(site->anchor + site->offset[t], out, tensor->elements * sizeof(*out));
	return whole ? tensor->elements : count;
}

static void gaia_accept(struct site *site, unsigned t, const float *sum)
{
	const float *own = site->anchor + site->offset[t];
	float *w = site->tensors[t].weights;

	for (uint32_t i = 0; i < site->tensors[t].elements; i++)
		w[i] += sum[i] - own[i];
}

const struct site_ops site_gaia = {
	.name = "gaia",
	.arrays = SITE_RESIDUAL | SITE_VELOCITY | SITE_ANCHOR,
	.theta_valid = gaia_theta_valid,
	.thetas = "a threshold, 0 or more",
	.step = gaia_step,
	.offer = gaia_offer,
	.accept = gaia_accept,
};
