/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The outer optimizer of sites that train by themselves and exchange what they learned: a step from the last common
 * weights along the mean of what the sites moved. Each site makes it by itself, from the same sum and state: so all
 * have the same bits. Pure arithmetic in fp32; any thread, never blocks, no memory of its own.
 *
 * With d the sum over sites of share * (weights - anchor), x the anchor, s0 and s1 the state, `rate` the outer rate:
 *   OUTER_AVERAGE   x += d                               FedAvg (McMahan et al., AISTATS'17, algorithm 1)
 *   OUTER_BOX       not here: the box's optimizer takes -d for a gradient and its answer is x
 *   OUTER_MOMENTUM  s0 = beta1 s0 + d; x += rate s0      FedAvgM (Hsu et al., 2019, section 4.3)
 *   OUTER_NESTEROV  s0 = beta1 s0 + d; x += rate (d + beta1 s0)    DiLoCo (Douillard et al., 2023, algorithm 1)
 *   the others      s0 = beta1 s0 + (1 - beta1) d; x += rate s0 / (sqrt(s1) + tau), without bias correction, after
 *   OUTER_ADAGRAD   s1 = s1 + d^2                        FedAdagrad, FedAdam, FedYogi (Reddi et al., ICLR'21,
 *   OUTER_ADAM      s1 = beta2 s1 + (1 - beta2) d^2      algorithm 2); s1 begins at tau^2
 *   OUTER_YOGI      s1 = s1 - (1 - beta2) d^2 sign(s1 - d^2)
 */
#ifndef PHUB_CLIENT_SCOUT_OUTER_H
#define PHUB_CLIENT_SCOUT_OUTER_H

#include <stddef.h>

enum outer_kind {
	OUTER_AVERAGE = 0,
	OUTER_BOX = 1,
	OUTER_MOMENTUM = 2,
	OUTER_NESTEROV = 3,
	OUTER_ADAGRAD = 4,
	OUTER_ADAM = 5,
	OUTER_YOGI = 6,
};

#define OUTER_COUNT     7
#define OUTER_STATE_MAX 2

/* A kind ignores what it does not have. */
struct outer_config {
	enum outer_kind kind;
	double rate;
	double beta1; /* also the momentum of the first two */
	double beta2;
	double tau;
};

/* The papers' own: DiLoCo .7 and .9; FedAvgM 1 and .9; the adaptive ones rate .1, beta1 .9 (adagrad 0), beta2 .99, tau
 * .001. */
struct outer_config outer_defaults(enum outer_kind kind);

/* 0, or -EINVAL: no kind, rate not above 0, a beta outside [0, 1), tau not above 0, or a number that is not finite. */
int outer_check(const struct outer_config *config);

/* How many arrays of state, each as long as the weights: 0, 1 or 2. */
unsigned outer_state_count(enum outer_kind kind);

/* The state before the first step. `state` has outer_state_count() arrays of `count` floats. */
void outer_reset(const struct outer_config *config, float *const *state, size_t count);

/* One step of `count` weights `x` along `d`. Not for OUTER_BOX. */
void outer_step(const struct outer_config *config, float *x, const float *d, float *const *state, size_t count);

/* "average", "box", "momentum", "nesterov", "adagrad", "adam", "yogi"; "invalid". */
const char *outer_name(enum outer_kind kind);

#endif
