/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What others do to decide when sites that train by themselves (local SGD) average their weights; the study puts its
 * controllers beside them. Each rule has one parameter, theta, which its authors tune; none looks at how labels are
 * skewed.
 *
 *   RIVAL_FDA      averages when the variance of the sites' weights is above theta. With d_k what site k has moved
 *                  since the last average: each step, all sites' mean of |d_k|^2 and of <d_k, x> is formed, two floats
 *                  that each site sends, and the variance is at most mean |d_k|^2 - (mean <d_k, x>)^2. x is the unit
 *                  vector along what the last two averages differ by, a random one before there are two. (Federated
 *                  Dynamic Averaging, the linear variant: Theologitis, Frangias, Anestis, Samoladas, Deligiannakis,
 *                  EDBT'25, arXiv 2405.20988: abstract and the authors' code were read.)
 *   RIVAL_QSR      averages every max(base, floor((theta / rate)^2)) steps, with the rate of the first step after an
 *                  average. (Quadratic Synchronization Rule: Gu, Lyu, Arora, Zhang, Huang, ICLR'24, arXiv 2310.14423:
 *                  abstract and formula were read.)
 *   RIVAL_ADACOMM  averages every tau steps, tau = theta at first. After the first average that is `every` steps or
 *                  more from the last such, with F the training loss of the new common weights, a float that each site
 *                  sends, tau = ceil(sqrt(F / F_0) theta) where that is less than tau, else ceil(tau / 2). F is taken
 *                  from the next mini-batch of each site. (AdaComm: Wang, Joshi, MLSys'19, arXiv 1810.08313: abstract
 *                  read, rules remembered. Its factor for a falling rate is left out: it would have tau rise, which the
 *                  halving rule forbids.)
 *
 * Pure arithmetic; one thread at a time, nothing blocks. The same calls give the same bits.
 */
#ifndef TESTS_BENCH_SKEW_RIVALS_H
#define TESTS_BENCH_SKEW_RIVALS_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"

enum rival_kind { RIVAL_FDA, RIVAL_QSR, RIVAL_ADACOMM };

struct rival_config {
	enum rival_kind kind;
	double theta;      /* above 0; AdaComm: a whole number */
	uint32_t base;     /* QSR: steps, above 0 */
	uint32_t every;    /* AdaComm: steps, above 0 */
	uint32_t elements; /* FDA: of the weights that count, above 0 */
	uint64_t seed;     /* FDA: of the first direction */
};

/* Others read `bytes`. */
struct rival {
	struct rival_config config;
	uint64_t bytes;    /* that a site has sent so far so that the rule could be followed */
	uint64_t since;    /* steps since the last average */
	uint64_t period;   /* QSR, AdaComm: how many there are to be */
	uint64_t taken;    /* AdaComm: steps since F was taken */
	double loss_first; /* AdaComm: F_0; 0: not known yet */
	bool asks;         /* AdaComm: for the loss of the next step */
	float *common;     /* FDA: weights of the last average */
	double *direction; /* FDA: x */
};

/* With the sites' first weights, `elements` of them (FDA; copied). 0, and rival_fini() ends it; with the reason in `e`:
 * -EINVAL for a value outside its limits, -ENOMEM. */
int rival_init(struct rival *rival, const struct rival_config *config, const float *common, struct err *e);

/* All zeros are fine. */
void rival_fini(struct rival *rival);

/* What a site with these weights says of itself, FDA: |d|^2 and <d, x>; of the others nothing, and zeros. */
void rival_state(const struct rival *rival, const float *weights, double state[2]);

/* What a step has shown, as means of the sites. */
struct rival_news {
	double rate, loss; /* of the mini-batches, before the step, in nats */
	double state[2];
};

/* A step is done: is it time to average? */
bool rival_step(struct rival *rival, const struct rival_news *news);

/* The sites have averaged, now or unasked, and these are their weights. */
void rival_averaged(struct rival *rival, const float *common);

/* The rules by themselves. */
double rival_variance(const double state[2]);
uint64_t rival_qsr(double alpha, double rate, uint32_t base);
uint64_t rival_adacomm(double loss_first, double loss, double tau_first, uint64_t tau);

/* "fda", "qsr", "adacomm" */
const char *rival_name(enum rival_kind kind);

#endif
