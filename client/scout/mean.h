/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mean model of all sites, as it is after an exchange: what scout+ tries. Of what is exchanged it is what all have
 * in common (site_common()); of Gaia without what each has moved by itself. What is not trained stays at its site over
 * BSP, Gaia and DGC, and a model with another site's running statistics, or with the mean of them, may do quite
 * otherwise there than with its own: that is how batch normalization fails on skewed data. So before such a trial the
 * sites show each other what they have of it, in an exchange, beside what they say; each keeps its own.
 *
 * Pure; the site's thread.
 */
#ifndef PHUB_CLIENT_SCOUT_MEAN_H
#define PHUB_CLIENT_SCOUT_MEAN_H

#include <stdint.h>

#include "client/scout/site.h"

/* What a site shows, as papers count: bytes of all tensors that are not exchanged. 0: exchanges alone tell all. */
uint64_t mean_bytes(const struct site *site);

/*
 * Of a tensor that is not exchanged: writes this site's part of the mean, its weights times its share. Returns the
 * share; or 0, and zeros, where it has none, or has there what is no number (a mask may be infinite): then it says
 * nothing of this tensor, and the mean is that of the others.
 */
double mean_show(const struct site *site, unsigned t, float *out);

/*
 * Tensor `t` of the mean model: in `room`, as long as the tensor, or where it lies already. `sum`: of all sites' parts,
 * where it is not exchanged, and `shares` the sum of theirs; with 0 nobody has shown it, and it is this site's own.
 */
const float *mean_tensor(const struct site *site, unsigned t, const float *sum, double shares, float *room);

#endif
