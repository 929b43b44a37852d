/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sites of one process for tests of client/scout.
 */
#include "tests/unit/site_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "phub/base/mix.h"

const uint32_t rig_elements[RIG_TENSORS] = {60, 7, 29};
const size_t rig_offset[RIG_TENSORS] = {0, 60, 67};

uint64_t rig_random(struct site_rig *rig)
{
	return mix_next(&rig->seed);
}

float rig_whole(struct site_rig *rig)
{
	return (float)(rig_random(rig) % 17) - 8;
}

float rig_real(struct site_rig *rig)
{
	return (float)(int32_t)(rig_random(rig) >> 32) / 2147483648.0f;
}

void rig_init(
	struct site_rig *rig, unsigned count, const struct site_config *config, const double *shares, uint64_t seed)
{
	memset(rig, 0, sizeof(*rig));
	rig->count = count;
	rig->seed = seed;
	for (unsigned i = 0; i < RIG_ELEMENTS; i++)
		rig->weights[0][i] = rig_whole(rig);
	for (unsigned k = 0; k < count; k++) {
		struct site_config own = *config;
		struct site_tensor tensors[RIG_TENSORS];
		struct err e;

		memcpy(rig->weights[k], rig->weights[0], sizeof(rig->weights[k]));
		for (unsigned t = 0; t < RIG_TENSORS; t++)
			tensors[t] = (struct site_tensor){rig->weights[k] + rig_offset[t], rig_elements[t], t < 2};
		own.tensors = tensors;
		own.tensor_count = RIG_TENSORS;
		own.sites = count;
		own.share = shares ? shares[k] : 1.0 / count;
		assert_int_equal(site_init(&rig->sites[k], &own, &e), 0);
	}
}

void rig_fini(struct site_rig *rig)
{
	for (unsigned k = 0; k < rig->count; k++)
		site_fini(&rig->sites[k]);
}

void rig_step(struct site_rig *rig, unsigned k, bool whole, double rate)
{
	const float *gradients[RIG_TENSORS] = {rig->gradients[k], rig->gradients[k] + rig_offset[1], NULL};

	for (unsigned i = 0; i < RIG_TRAINED; i++)
		rig->gradients[k][i] = whole ? rig_whole(rig) : rig_real(rig);
	assert_int_equal(site_step(&rig->sites[k], gradients, rate), 0);
}

void rig_exchange(struct site_rig *rig)
{
	memset(rig->sums, 0, sizeof(rig->sums));
	memset(rig->offers, 0, sizeof(rig->offers));
	for (unsigned t = 0; t < RIG_TENSORS; t++) {
		for (unsigned k = 0; k < rig->count && site_exchanges(&rig->sites[k], t); k++) {
			float *offer = rig->offers[k] + rig_offset[t];

			assert_int_equal(site_offer(&rig->sites[k], t, offer), 0);
			for (unsigned i = 0; i < rig_elements[t]; i++) {
				rig->sums[rig_offset[t] + i] += offer[i];
				rig->said[k][rig_offset[t] + i] += offer[i];
			}
		}
		for (unsigned k = 0; k < rig->count && site_exchanges(&rig->sites[k], t); k++)
			assert_int_equal(site_accept(&rig->sites[k], t, rig->sums + rig_offset[t]), 0);
	}
}

void rig_assert_equal(const struct site_rig *rig)
{
	for (unsigned k = 1; k < rig->count; k++) {
		for (unsigned t = 0; t < RIG_TENSORS; t++) {
			if (site_exchanges(&rig->sites[k], t))
				assert_memory_equal(rig->weights[k] + rig_offset[t], rig->weights[0] + rig_offset[t],
					rig_elements[t] * sizeof(float));
		}
	}
}
