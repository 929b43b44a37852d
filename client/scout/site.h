/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A site of decentralized training: what it does with each mini-batch's gradient, when it talks, what it says, and what
 * it makes of the answer. One interface over BSP, Gaia, local SGD (FedAvg, FedOpt, DiLoCo) and DGC; theta says how
 * much is said. Pure arithmetic on fp32: no I/O, clock, thread or hidden state, and no memory taken after site_init().
 * The same calls give the same bits. A site belongs to one thread at a time; nothing here blocks.
 *
 *      site_step(site, gradients, rate)           the weights move, where the algorithm says so
 *      if (site_due(site))
 *          for each tensor t that site_exchanges()
 *              site_offer(site, t, out)           dense, zeros where nothing is said; it leaves the residual
 *              ... the sum over all sites, own included: a round of a job at a box, or a loop over arrays ...
 *              site_accept(site, t, sum)
 *
 * Gradients are means over a mini-batch, and `share` is this site's part of the whole (1 / sites, or n_k / sum n; all
 * shares sum to 1), so that algorithms compare at one effective learning rate. It is multiplied in before the sum.
 *
 * With g the gradient, w the weights, m the momentum, c the weight decay, per element:
 *   SITE_BSP    says share g. The sum S: g' = S + c w; v = m v + g'; w -= rate v, alike at all sites. Theta is 1.
 *   SITE_GAIA   v = m v + (g + c w); u = -rate share v; w += u; r += u. Says r where |r| > T |w|, T = theta *
 *               rate / rate_first (w = 0: always), and w += S - own. Where that would take more bytes (12 an element,
 *               see below) than the whole tensor, all of r is said. Theta >= 0: the threshold T0. (Hsieh et al.,
 *               NSDI'17, section 4.2; the tensor as a whole as in the code of SkewScout's authors.)
 *   SITE_LOCAL  v = m v + (g + c w); w -= rate v. Every theta steps says share (w - a), a the last common weights, and
 *               w = a = outer(a, S), see outer.h. Momentum stays local. Theta: a whole number >= 1, Iter_local.
 *               (McMahan et al., AISTATS'17.) With OUTER_BOX it says share (a - w) and the answer is not S but w.
 *   SITE_DGC    g' = share g, scaled down so that its norm over all tensors is at most clip / sqrt(sites).
 *               v = m v + g'; r += v. Says of each tensor the ceil(theta n) elements of r that are largest by
 *               magnitude (of equals the first; NaN is largest), never a zero, and v = 0 there. w -= rate (S + c w).
 *               The weights are one at all sites, whatever theta.
 *               0 < theta <= 1; in stage s = 0, 1, 2, 3 of the warm-up, `warmup` steps each, at least 4^-(s+1).
 *               (Lin et al., ICLR'18, algorithms 1 and 4, sections 3.1 to 3.3.)
 *
 * The ledger: what was said plus the residual r is all updates (share g; u; share (w - a); v), bit-exact where these
 * are integers and every sum fits fp32, else within 1 ulp of the residual (local: of the weight) per update, also when
 * theta, share or the number of sites change between any two calls. What is said takes r as it is and leaves 0, so no
 * rounding is in between.
 *
 * Joining: the caller writes the others' weights into the tensors, between two exchanges, then site_join(); of BSP
 * their momentum, too, into site->velocity, or steps would differ from then on. Leaving:
 * site_flush() before the last exchange, and all of the residual is said in it. Of a site that goes without, the
 * residual is lost: the others never had it, and their weights stay as consistent as before. The shares of those that
 * stay change by site_set_share(); what they hold in r (BSP, Gaia, DGC) or v (DGC) keeps the share that it was made
 * with, and local SGD has one share for all that it says in an exchange: the one at its offer.
 */
#ifndef PHUB_CLIENT_SCOUT_SITE_H
#define PHUB_CLIENT_SCOUT_SITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/scout/outer.h"
#include "phub/base/err.h"

enum site_algorithm { SITE_BSP = 0, SITE_GAIA = 1, SITE_LOCAL = 2, SITE_DGC = 3 };

#define SITE_ALGORITHM_COUNT 4
#define SITE_TENSORS_MAX     65536u
#define SITE_LOCAL_STEPS_MAX 1000000000.0

/* Bytes as the papers count them: a value, and the index of one that goes alone. */
#define SITE_VALUE_BYTES 4u
#define SITE_INDEX_BYTES 8u

/*
 * Weights are the caller's and outlive the site, which writes them in step, accept and nowhere else. What is not
 * trained has no gradient (running statistics: the model writes them): local SGD averages it, whatever the outer
 * optimizer, and with the others it stays at its site.
 */
struct site_tensor {
	float *weights;
	uint32_t elements;
	bool trained;
};

/* What `elements` values, many of them 0, take on the wire. */
typedef uint64_t site_wire_bytes(void *context, const float *values, uint32_t elements);

struct site_config {
	enum site_algorithm algorithm;
	const struct site_tensor *tensors; /* copied */
	unsigned tensor_count;             /* 1 .. SITE_TENSORS_MAX, of at least one element each */
	double theta;
	double share; /* 0 .. 1 */
	unsigned sites;
	double momentum;           /* [0, 1) */
	double weight_decay;       /* >= 0 */
	double rate_first;         /* Gaia: the learning rate that theta is for, above 0 */
	struct outer_config outer; /* local */
	double clip;               /* DGC: of the mean gradient's norm; 0: none */
	uint32_t warmup;           /* DGC: steps in a stage; 0: no warm-up */
	site_wire_bytes *wire;     /* or NULL: nobody counts */
	void *wire_context;
};

struct site_counts {
	uint64_t steps;       /* of the run: site_join() sets it */
	uint64_t exchanges;   /* ended ones */
	uint64_t values;      /* that were said, not counting zeros; the whole tensor where that went */
	uint64_t bytes_paper; /* 12 a value, or 4 an element of the tensor where that is less; BSP and local: the latter
			       */
	uint64_t bytes_wire;  /* by config.wire */
};

struct site_ops;

/* Others read `counts`, `residual` and what is before; only the functions below write. */
struct site {
	const struct site_ops *ops;
	struct site_config config;   /* theta, share and sites as they are now */
	struct site_tensor *tensors; /* one block holds these and all below */
	size_t *offset;              /* of a tensor in each array */
	size_t elements;
	struct site_counts counts;
	float *residual; /* r; not local */
	float *velocity; /* v */
	float *anchor;   /* local: a; Gaia: what was said last */
	float *outer[OUTER_STATE_MAX];
	uint8_t *phase;     /* of each tensor in the exchange */
	unsigned exchanged; /* tensors that site_exchanges() */
	unsigned open;      /* of them, offered, sum not come */
	unsigned accepted;  /* of them, in this exchange */
	uint64_t since;     /* steps since the last exchange ended */
	double rate;        /* of the last step */
	bool flushing;
	bool extra; /* site_extra() */
	void *block;
};

/*
 * 0, and the site takes its weights as they are for the common ones; site_fini() ends it. With the reason in `e`:
 * -EINVAL   a value that is not within its limits above (NaN neither)
 * -ENOMEM
 */
int site_init(struct site *site, const struct site_config *config, struct err *e);

/* All zeros are fine. */
void site_fini(struct site *site);

/*
 * A mini-batch: gradients[t] for each tensor that is trained, else not read. NULL: this site had no samples; the step
 * and the rate count, and nothing moves or is added. `rate` must be the same at all sites. 0; -EINVAL for a rate that
 * is not finite or below 0 and a gradient that is missing; -EBUSY from the first offer of an exchange to its last
 * accept: and nothing has changed. Gradients are not checked for NaN: what comes in is said.
 */
int site_step(struct site *site, const float *const *gradients, double rate);

/* Steps from one exchange to the next, as theta asks for it: theta of local SGD, 1 of all others. */
uint64_t site_interval(const struct site *site);

/*
 * Does theta ask for an exchange now? All sites that made the same steps with the same theta are due together. It only
 * advises: one may offer without (a slow site at the others' call, one that joins), and not offer when due.
 */
bool site_due(const struct site *site);

/* Does tensor `t` take part in exchanges? Those that do must all be offered and accepted in each. */
bool site_exchanges(const struct site *site, unsigned t);

/*
 * Writes what is said of tensor `t` to `out` (as many floats as it has elements, not the weights). 0; -ENOENT for one
 * that does not take part; -EALREADY when it was offered in this exchange: and nothing has changed.
 */
int site_offer(struct site *site, unsigned t, float *out);

/*
 * Takes the sum of all offers of tensor `t`, or of OUTER_BOX and a trained one the new weights; after the last tensor
 * the exchange is over. `sum` may be what site_offer() wrote. 0; -ENOENT as above; -EPERM when it is not offered.
 */
int site_accept(struct site *site, unsigned t, const float *sum);

/*
 * The sum will not come: puts what site_offer() wrote back into the residual, exactly, so that the tensor can be
 * offered again. Bytes stay counted; DGC's momentum stays 0 where it was zeroed. 0, -ENOENT, -EPERM as site_accept().
 */
int site_withdraw(struct site *site, unsigned t, const float *offered);

/* From the next call on. 0; -EINVAL, and it stays as it was; -EBUSY as site_step(). */
int site_set_theta(struct site *site, double theta);
int site_set_share(struct site *site, double share, unsigned sites);

/* Is `theta` one that `algorithm` can have? */
bool site_theta_valid(enum site_algorithm algorithm, double theta);
/* Which those are, for who gave another one: "a whole number of steps, 1 to 10^9". Of one that is none: "none". */
const char *site_thetas(enum site_algorithm algorithm);

/* An exchange is due, and says all of the residual. 0; -EBUSY as site_step(). */
int site_flush(struct site *site);

/*
 * Before the first accept of an exchange, at all sites alike: where there was no step since the last one the sum moves
 * the weights, and no optimizer makes a step of it: BSP's momentum, weight decay, an outer one.
 */
void site_extra(struct site *site);

/*
 * Begins anew with the weights as they are in the tensors, at step `steps` of the run: residual and momentum are 0.
 * The outer state too: with one, the others' is to be copied into site->outer[] (site->elements floats each). 0; -EBUSY
 * as site_step().
 */
int site_join(struct site *site, uint64_t steps);

/* Goes on at step `steps` of the run, where an exchange is over: residual and momentum stay. 0; -EBUSY. */
int site_advance(struct site *site, uint64_t steps);

/*
 * Of a site that has said what is no number where that counts as zero, between two exchanges: the others have nothing
 * of it, so its residual and momentum are 0 from now on where they are no numbers, else local SGD and Gaia, whose
 * momentum stays at home, would say it for ever. BSP and DGC come out by themselves: what they said is 0 afterwards.
 * Are all weights numbers that are trained or exchanged? Of local SGD they are; with others (Gaia moves them at once)
 * nobody here knows what they should be, and site_join() takes the others'. false also as site_step() is -EBUSY.
 */
bool site_mend(struct site *site);

/*
 * What tensor `t` has in common with those of the other sites, to `out`: its weights without what this site has moved
 * by itself and not said yet (Gaia, local). Others hold the same: the same bits, but for Gaia, whose roundings differ.
 */
void site_common(const struct site *site, unsigned t, float *out);

/* The others have these common weights, and not its own: tensor `t` has them now, and what this site has moved by
 * itself on top, where that is a number. 0; -EBUSY as site_step(); -EINVAL: there is no such tensor. */
int site_rebase(struct site *site, unsigned t, const float *common);

/* The squared norm of what is still to be said of tensor `t`, in float64: 0 for one that does not exist. */
double site_residual_square(const struct site *site, unsigned t);

/* "bsp", "gaia", "local", "dgc"; "invalid". */
const char *site_algorithm_name(enum site_algorithm algorithm);

#endif
