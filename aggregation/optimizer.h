/* SPDX-License-Identifier: Apache-2.0
 *
 * The optimizers that a box can run: names, hyper-parameters, and the few scalars that one step of one chunk needs.
 *
 * The semantics are PyTorch's (torch.optim.SGD, Adagrad, Adam, AdamW), on fp32 master weights and fp32 state. The
 * element-wise arithmetic is in the `step` kernels (kernels.h); here are only scalars. Not supported, and not
 * expressible: amsgrad, sparse gradients. `maximize` is a negative step_args.sum.scale.
 * All functions: any thread, never block, no state of their own.
 */
#ifndef AGGREGATION_OPTIMIZER_H
#define AGGREGATION_OPTIMIZER_H

#include <stddef.h>
#include <stdint.h>

/* The numbers go on the wire and into checkpoints; they never change. */
enum optimizer_kind {
	OPTIMIZER_NONE = 0,     /* the box is an all-reduce: the result is the scaled sum */
	OPTIMIZER_SGD = 1,      /* SGD(momentum=0) */
	OPTIMIZER_MOMENTUM = 2, /* SGD(momentum>0, nesterov=False); state 0: momentum buffer */
	OPTIMIZER_NESTEROV = 3, /* SGD(momentum>0, nesterov=True); state 0: momentum buffer */
	OPTIMIZER_ADAGRAD = 4,  /* Adagrad; state 0: sum of squares */
	OPTIMIZER_ADAM = 5,     /* Adam, L2 weight decay; state 0: exp_avg, state 1: exp_avg_sq */
	OPTIMIZER_ADAMW = 6,    /* AdamW, decoupled weight decay; same state */
};

#define OPTIMIZER_COUNT     7
#define OPTIMIZER_STATE_MAX 2

/* Hyper-parameters of one parameter group; PyTorch's names. A kind ignores those that it does not have. */
struct optimizer_hyper {
	double lr;
	double momentum;  /* momentum, nesterov */
	double dampening; /* momentum */
	double weight_decay;
	double lr_decay;                  /* adagrad */
	double initial_accumulator_value; /* adagrad; read once, by optimizer_state_init() */
	double beta1, beta2;              /* adam, adamw */
	double eps;                       /* adagrad, adam, adamw */
};

/*
 * What one step needs beyond the arrays: computed in double by optimizer_prepare(), then rounded to fp32 once. With
 * g the scaled sum of the gradients, w the weight, s0 and s1 the state, all in fp32 and in this order:
 *   all but adamw  if (weight_decay != 0) g = g + weight_decay * w
 *   sgd            w = w + rate * g
 *   momentum       s0 = first ? g : decay0 * s0 + gain0 * g;  w = w + rate * s0
 *   nesterov       s0 as momentum;  w = w + rate * (g + decay0 * s0)
 *   adagrad        s0 = s0 + g * g;  w = w + (rate * g) / (sqrt(s0) + eps)
 *   adam           s0 = decay0 * s0 + gain0 * g;  s1 = decay1 * s1 + (gain1 * g) * g
 *                  w = w + (rate * s0) / (correct1 * sqrt(s1) + eps)
 *   adamw          w = shrink * w, then as adam
 */
struct optimizer_coef {
	enum optimizer_kind kind;
	int first;          /* 1 at step 1: momentum and nesterov take the gradient as their buffer, as PyTorch does */
	float rate;         /* the negated step size, bias correction 1 and lr_decay included */
	float weight_decay; /* L2; 0 for adamw */
	float shrink;       /* adamw: 1 - lr * weight_decay */
	float decay0, gain0;
	float decay1, gain1;
	float correct1; /* 1 / sqrt(1 - beta2^step) */
	float eps;
};

/* "none", "sgd", ...; "invalid" for a number that is not a kind. */
const char *optimizer_kind_name(enum optimizer_kind kind);

/* True for a number that is one of enum optimizer_kind; for input from network, file or user. */
static inline int optimizer_kind_valid(unsigned kind)
{
	return kind < OPTIMIZER_COUNT;
}

/*
 * Reads a name. 0; -EINVAL for an unknown name, -ENOTSUP for lars, lamb and clip_global_norm, which need a vote of all
 * chunks before the first step. On failure, error (at most error_size bytes, always terminated) lists what is allowed;
 * it is left alone when error_size is 0.
 */
int optimizer_kind_parse(const char *name, enum optimizer_kind *kind, char *error, size_t error_size);

/* PyTorch's defaults. Where it has none: SGD's lr is 0.001 (as in torch 2), momentum 0.9 for those that need one. */
void optimizer_hyper_default(enum optimizer_kind kind, struct optimizer_hyper *hyper);

/*
 * Checks values that came from a user. 0, or -EINVAL with a text in error that names the parameter, its value and
 * the range (as above). An invalid kind is -EINVAL too.
 */
int optimizer_hyper_check(
	enum optimizer_kind kind, const struct optimizer_hyper *hyper, char *error, size_t error_size);

/* Number of fp32 state arrays, each as long as the weights: 0, 1 or 2. */
unsigned optimizer_state_count(enum optimizer_kind kind);

/*
 * Fills state array `index` (< optimizer_state_count()) of count elements with its value before step 1: 0, or
 * initial_accumulator_value for adagrad.
 */
void optimizer_state_init(
	enum optimizer_kind kind, const struct optimizer_hyper *hyper, unsigned index, float *state, size_t count);

/*
 * The scalars of one step. step counts from 1 for each parameter (bias correction, lr_decay, first momentum buffer);
 * hyper must have passed optimizer_hyper_check(). Costs two pow() for adam and adamw, about 0.1 us: once per chunk
 * is cheap, once per round and group is cheaper. kind must not be OPTIMIZER_NONE.
 */
void optimizer_prepare(
	enum optimizer_kind kind, const struct optimizer_hyper *hyper, uint64_t step, struct optimizer_coef *coef);

#endif
