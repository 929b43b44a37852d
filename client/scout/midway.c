/* SPDX-License-Identifier: Apache-2.0 */
#include "client/scout/midway.h"

#include <string.h>

bool midway_due(const struct midway *m, const struct site *site, uint64_t end)
{
	const uint64_t interval = site_interval(site);

	return m->weights && !m->kept && site->since == interval / 2 &&
	       site->counts.steps + (interval - site->since) >= end;
}

void midway_keep(struct midway *m, const struct site *site)
{
	for (unsigned t = 0; t < site->config.tensor_count; t++)
		memcpy(m->weights + site->offset[t], site->tensors[t].weights,
			site->tensors[t].elements * sizeof(float));
	m->kept = true;
}

float *midway_tensor(const struct midway *m, const struct site *site, unsigned t)
{
	return m->kept ? m->weights + site->offset[t] : site->tensors[t].weights;
}
