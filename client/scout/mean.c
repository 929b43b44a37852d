/* SPDX-License-Identifier: Apache-2.0 */
#include "client/scout/mean.h"

#include <string.h>

#include "client/scout/finite.h"

uint64_t mean_bytes(const struct site *site)
{
	uint64_t bytes = 0;

	for (unsigned t = 0; t < site->config.tensor_count; t++)
		bytes += site_exchanges(site, t) ? 0 : (uint64_t)site->tensors[t].elements * SITE_VALUE_BYTES;
	return bytes;
}

double mean_show(const struct site *site, unsigned t, float *out)
{
	const struct site_tensor *tensor = &site->tensors[t];
	const float share = (float)site->config.share;

	if (!(share > 0) || !finite_all(tensor->weights, tensor->elements)) {
		memset(out, 0, tensor->elements * sizeof(*out));
		return 0;
	}
	for (uint32_t i = 0; i < tensor->elements; i++)
		out[i] = share * tensor->weights[i];
	return share;
}

const float *mean_tensor(const struct site *site, unsigned t, const float *sum, double shares, float *room)
{
	const struct site_tensor *tensor = &site->tensors[t];

	if (site_exchanges(site, t)) {
		if (site->config.algorithm != SITE_GAIA)
			return tensor->weights;
		site_common(site, t, room);
		return room;
	}
	if (!(shares > 0))
		return tensor->weights;
	for (uint32_t i = 0; i < tensor->elements; i++)
		room[i] = (float)(sum[i] / shares);
	return room;
}
