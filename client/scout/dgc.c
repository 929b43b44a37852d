/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deep gradient compression: the largest elements of an accumulator of momentum go; what has not gone waits in it.
 *
 * The k largest are found by counting, eleven bits of the magnitude at a time: three sweeps, no memory, no order among
 * equals but their index. The bits of a float without its sign rise with it, and those of NaN are above infinity.
 */
#include "client/scout/site_internal.h"

#include <math.h>
#include <string.h>

enum { DGC_DIGIT_BITS = 11, DGC_DIGITS = 1 << DGC_DIGIT_BITS, DGC_STAGES = 4 };

/* Where the k largest end: all above `magnitude`, and the first `equals` that have it. */
struct dgc_cut {
	uint32_t magnitude, equals;
};

static bool dgc_theta_valid(double theta)
{
	return theta > 0 && theta <= 1;
}

static double dgc_scale(const struct site *site, const float *const *gradients)
{
	double square = 0, share = site->config.share, norm, most;

	if (site->config.clip == 0)
		return 1;
	for (unsigned t = 0; t < site->config.tensor_count; t++) {
		for (uint32_t i = 0; site->tensors[t].trained && i < site->tensors[t].elements; i++)
			square += (double)gradients[t][i] * gradients[t][i];
	}
	norm = share * sqrt(square);
	most = site->config.clip / sqrt(site->config.sites);
	return norm > most ? most / norm : 1;
}

static void dgc_step(struct site *site, unsigned t, const float *gradient, double scale)
{
	float *r = site->residual + site->offset[t], *v = site->velocity + site->offset[t];
	float m = (float)site->config.momentum, share = (float)(site->config.share * scale);

	for (uint32_t i = 0; i < site->tensors[t].elements; i++) {
		v[i] = m * v[i] + share * gradient[i];
		r[i] += v[i];
	}
}

/* What is kept of a tensor: theta, and in the warm-up a quarter, a sixteenth, ... where that is more. */
static uint32_t dgc_kept(const struct site *site, uint32_t elements)
{
	double kept = site->config.theta;
	/* The exchange that belongs to step n, counted from 1. */
	uint64_t before = site->counts.steps ? site->counts.steps - 1 : 0;
	uint64_t stage = site->config.warmup ? before / site->config.warmup : DGC_STAGES;

	if (stage < DGC_STAGES)
		kept = fmax(kept, ldexp(1, -2 * ((int)stage + 1)));
	if (site->flushing)
		kept = 1;
	/* So that .07 of 100 is 7, though .07 * 100 is above it. */
	return (uint32_t)fmin(ceil(kept * elements * (1 - 1e-12)), elements);
}

static uint32_t dgc_magnitude(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits & 0x7fffffffu;
}

static struct dgc_cut dgc_find_cut(const float *r, uint32_t elements, uint32_t k)
{
	struct dgc_cut cut = {.magnitude = 0, .equals = k};
	uint32_t known = 0; /* the bits that are decided */

	for (int shift = 2 * DGC_DIGIT_BITS; shift >= 0; shift -= DGC_DIGIT_BITS) {
		uint32_t counts[DGC_DIGITS] = {0}, digit = DGC_DIGITS - 1;

		for (uint32_t i = 0; i < elements; i++) {
			uint32_t magnitude = dgc_magnitude(r[i]);

			if ((magnitude & known) == cut.magnitude)
				counts[magnitude >> shift & (DGC_DIGITS - 1)]++;
		}
		while (digit > 0 && counts[digit] < cut.equals)
			cut.equals -= counts[digit--];
		cut.magnitude |= digit << shift;
		known |= (uint32_t)(DGC_DIGITS - 1) << shift;
	}
	return cut;
}

static uint32_t dgc_offer(struct site *site, unsigned t, float *out)
{
	float *r = site->residual + site->offset[t], *v = site->velocity + site->offset[t];
	uint32_t elements = site->tensors[t].elements, count = 0;
	struct dgc_cut cut = dgc_find_cut(r, elements, dgc_kept(site, elements));

	for (uint32_t i = 0; i < elements; i++) {
		uint32_t magnitude = dgc_magnitude(r[i]);
		bool said = magnitude > cut.magnitude;

		if (magnitude == cut.magnitude && cut.equals > 0) {
			cut.equals--;
			said = magnitude > 0;
		}
		out[i] = said ? r[i] : 0;
		if (!said)
			continue;
		r[i] = 0;
		v[i] = 0;
		count++;
	}
	return count;
}

static void dgc_accept(struct site *site, unsigned t, const float *sum)
{
	float *w = site->tensors[t].weights;
	float rate = (float)site->rate, decay = site->extra ? 0 : (float)site->config.weight_decay;

	for (uint32_t i = 0; i < site->tensors[t].elements; i++)
		w[i] -= rate * (sum[i] + decay * w[i]);
}

const struct site_ops site_dgc = {
	.name = "dgc",
	.arrays = SITE_RESIDUAL | SITE_VELOCITY,
	.theta_valid = dgc_theta_valid,
	.thetas = "the part of elements that go, above 0 to 1",
	.scale = dgc_scale,
	.step = dgc_step,
	.offer = dgc_offer,
	.accept = dgc_accept,
};
