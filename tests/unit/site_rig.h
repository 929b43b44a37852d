/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sites of one process for tests of client/scout: a small model of three tensors at each, gradients from a seed, and
 * the exchange as a loop over arrays.
 */
#ifndef TESTS_UNIT_SITE_RIG_H
#define TESTS_UNIT_SITE_RIG_H

#include <stdint.h>

#include "client/scout/site.h"

enum { RIG_SITES = 4, RIG_TENSORS = 3, RIG_ELEMENTS = 96 };

/* Two trained tensors and one that is not: 60, 7 and 29 elements. */
extern const uint32_t rig_elements[RIG_TENSORS];
extern const size_t rig_offset[RIG_TENSORS];
enum { RIG_TRAINED = 67 };

struct site_rig {
	unsigned count;
	struct site sites[RIG_SITES];
	float weights[RIG_SITES][RIG_ELEMENTS];
	float gradients[RIG_SITES][RIG_ELEMENTS];
	float offers[RIG_SITES][RIG_ELEMENTS]; /* of the last exchange */
	float sums[RIG_ELEMENTS];
	double said[RIG_SITES][RIG_ELEMENTS]; /* all of the offers so far */
	uint64_t seed;
};

/* `config` without tensors; shares[k], or NULL: all alike. The first weights are small whole numbers. */
void rig_init(
	struct site_rig *rig, unsigned count, const struct site_config *config, const double *shares, uint64_t seed);
void rig_fini(struct site_rig *rig);

uint64_t rig_random(struct site_rig *rig);
/* -8 .. 8, whole. */
float rig_whole(struct site_rig *rig);
/* -1 .. 1 */
float rig_real(struct site_rig *rig);

/* Fills gradients[k], whole or not, and steps site k along them. */
void rig_step(struct site_rig *rig, unsigned k, bool whole, double rate);

/* All offer, all accept the sum. */
void rig_exchange(struct site_rig *rig);

/* Fails the test unless all sites have the same bits of the tensors that they exchange. */
void rig_assert_equal(const struct site_rig *rig);

#endif
