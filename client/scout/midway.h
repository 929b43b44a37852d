/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The phase of model traveling: which of its models a site tries at home, and sends to be tried elsewhere.
 *
 * What an accuracy loss means is decided by when it is read. Just before an exchange it has a step of each site's own
 * in it even where sites talk at each step, and then no theta brings it below sigma; just after one all models of local
 * SGD are equal, and it is 0 whatever theta. So it is read in the middle: of the interval whose exchange ends the
 * window, the model after floor(interval / 2) of its steps. Of an interval of one step (BSP, Gaia, DGC, local SGD at
 * theta 1) that is the one that the exchange before has left, and on which the next mini-batch is computed. So at the
 * tightest theta all models are equal, and AL is 0 but for the samples; those of Gaia differ by what was not
 * significant. (Those of BSP and DGC are equal at any time: sums alone move them. So of DGC AL says nothing of theta,
 * and the policies that go by it are refused: options_needs(). What it may show are statistics that each site has of
 * its own, as of batch normalization, which no theta mends.)
 *
 * Models travel when the exchange is due. So each site keeps a copy of its own as the middle passes. One that was not
 * there then, or has other weights since (it came, or comes back, in the interval) has none, and its model is tried as
 * it is. The copy is of one interval; a state that is saved in the middle of one has it.
 *
 * Pure; the site's thread.
 */
#ifndef PHUB_CLIENT_SCOUT_MIDWAY_H
#define PHUB_CLIENT_SCOUT_MIDWAY_H

#include <stdbool.h>
#include <stdint.h>

#include "client/scout/site.h"

/* All zeros: nothing is kept. */
struct midway {
	float *weights; /* [site.elements] at the places of the site's arrays, the caller's; NULL: no model is tried */
	bool kept;      /* false again with the window's end, by the caller */
};

/*
 * Between two steps, with no exchange on its way: is this the middle, not kept yet, of an interval that ends a window?
 * That it does when its exchange comes after step `end` of the run or later.
 */
bool midway_due(const struct midway *m, const struct site *site, uint64_t end);

/* All tensors as they are now. */
void midway_keep(struct midway *m, const struct site *site);

/* Tensor `t` of the model that is tried. */
float *midway_tensor(const struct midway *m, const struct site *site, unsigned t);

#endif
