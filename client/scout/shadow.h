/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shadows: what a site would have sent at other thetas, counted beside its run, without a byte of communication.
 *
 *      site_step(site, gradients, rate)
 *      shadow_step(shadow, site, gradients)       before the offers that may follow
 *
 * A shadow of a theta has accumulators of its own, takes the site's own updates, and says, and forgets, what the
 * algorithm would say at that theta, each time that it would; by the algorithm's own code. So
 *
 *   local, BSP  is exact: it is the size of the model, every theta steps;
 *   DGC         is exact but for zeros in the accumulators, which are never said: how many there are depends on theta;
 *   Gaia        is an estimate at thetas that are not the run's: the weights that say what is significant, and the
 *               gradients, are those that the run's theta has led to. It is exact where they do not depend on theta.
 *               They do: what a site has not said yet has moved its own weights, and its next gradients push back. A
 *               shadow looser than the run lacks that push and counts too much, a tighter one too little; no better
 *               estimate is known without gradients at other weights. The further apart the two thetas are and the
 *               more skewed the sites, the worse. Its bytes over those of a real run at the shadow's theta (1,500
 *               steps, K=5, two seeds within .15 of each other):
 *
 *                    skew    run at   shadow of 0.02    of 0.1         of 0.3
 *                    20 %    0        1.17              1.65           1.85
 *                            0.1      0.83              1              1.00
 *                            0.3      0.85              1.02           1
 *                    60 %    0        0.98              2.3            3.3
 *                            0.1      0.63              1              1.3
 *                            0.3      0.60              0.82           1
 *                    100 %   0        0.95              2.0            2.2
 *                            0.1      0.42              1              1.7
 *                            0.3      0.38              0.77           1
 *
 *               So the true bytes of a theta beside the run's are within a factor of 2, and far from it of 3.6, on the
 *               side that is told above; that looser thetas send less the shadows have right.
 *
 * At the run's own theta, while that stays, and exchanges when site_due() says so, all are exact: the same elements.
 * Nothing that travels to be tried (models, and what mean.h has) is in them, as in bytes_paper: no theta changes it.
 *
 * Costs, a theta: Gaia 4 bytes of memory an element and two sweeps a step (add, compare); DGC 8 bytes an element and
 * five sweeps; local and BSP nothing that grows with the model. Once: 4 bytes an element (Gaia) and the largest tensor.
 * Pure arithmetic; no memory after shadow_init(); one thread at a time.
 */
#ifndef PHUB_CLIENT_SCOUT_SHADOW_H
#define PHUB_CLIENT_SCOUT_SHADOW_H

#include <stddef.h>
#include <stdint.h>

#include "client/scout/site.h"
#include "phub/base/err.h"

#define SHADOW_THETAS_MAX 64u

/* Others read `theta` and `bytes`; only the functions below write. */
struct shadow {
	unsigned count;
	double theta[SHADOW_THETAS_MAX];
	uint64_t bytes[SHADOW_THETAS_MAX]; /* as struct site_counts has bytes_paper, since shadow_init() */
	uint64_t since[SHADOW_THETAS_MAX]; /* steps since it last spoke */
	size_t elements;
	float *residual; /* [count][elements]; NULL: the algorithm has none */
	float *velocity; /* likewise; DGC */
	float *anchor;   /* [elements] written, never read; Gaia */
	float *said;     /* [largest tensor] likewise */
	void *block;
};

/* 0; -EINVAL with the reason in `e`: no thetas, more than SHADOW_THETAS_MAX, one that the algorithm cannot have, or one
 * twice. */
int shadow_check(enum site_algorithm algorithm, const double *thetas, unsigned count, struct err *e);

/* Of a site that begins. 0, and shadow_fini() ends it; -EINVAL as shadow_check(); -ENOMEM: with the reason in `e`. */
int shadow_init(struct shadow *shadow, const struct site *site, const double *thetas, unsigned count, struct err *e);

/* All zeros are fine. */
void shadow_fini(struct shadow *shadow);

/* A step was made, with these gradients (NULL: none), which are as they were. The site is that of shadow_init(). */
void shadow_step(struct shadow *shadow, const struct site *site, const float *const *gradients);

/* After site_join(): what was still to be said is nothing. Bytes stay counted. */
void shadow_join(struct shadow *shadow);

#endif
