/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The decision log of a run of the study (client/scout/record.h), with what shadows of other thetas would have sent
 * (client/scout/shadow.h), and the alignment r of each tensor: of what sites say, the part that survives the mean.
 */
#ifndef TESTS_BENCH_SKEW_LOG_H
#define TESTS_BENCH_SKEW_LOG_H

#include <stdio.h>

#include "client/scout/record.h"
#include "client/scout/shadow.h"
#include "tests/bench/skew_model.h"
#include "tests/bench/skew_partition.h"

struct skew_log {
	/* The caller's. */
	FILE *file;
	double thetas[SHADOW_THETAS_MAX]; /* of shadows */
	unsigned theta_count;             /* 0: none */

	struct shadow shadows[SKEW_SITES_MAX];
	double shadow_told[SHADOW_THETAS_MAX], bytes_told, travel_told;
	double said[SKEW_TENSORS_MAX], heard[SKEW_TENSORS_MAX]; /* squared norms, of this window */
	double loss;                                            /* of this window's batches, the sum */
	uint64_t samples;
	unsigned sites, tensors;
	enum price_unit unit; /* of costs */
	uint64_t bsp_bytes;   /* of a step */
};

/* What a window ends with. */
struct skew_log_window {
	uint64_t step;
	double theta; /* of it */
	const struct scout_decision *decision;
	uint64_t samples;
	double bytes, bytes_travel; /* since the start, mean of sites */
	double bytes_cost;          /* of the window, as the cost weighs them: as many as in one period */
	double accuracy, loss;      /* of the averaged model */
};

/* Writes the first line. 0, or what shadow_init() says of a theta, with the reason in `e`; skew_log_fini() either way.
 */
int skew_log_begin(struct skew_log *log, const struct record_run *run, const struct skew_model *model,
	const struct site *const *sites, struct err *e);
void skew_log_fini(struct skew_log *log);

/* Site k has made a step. */
void skew_log_step(struct skew_log *log, unsigned k, const struct site *site, const float *const *gradients);

/* All have; the sum of the losses of this step's samples. */
void skew_log_loss(struct skew_log *log, double loss, uint64_t samples);

/* A site with this share says this of a tensor; and this is the sum of what all say. */
void skew_log_said(struct skew_log *log, unsigned tensor, const float *said, uint32_t elements, double share);
void skew_log_heard(struct skew_log *log, unsigned tensor, const float *sum, uint32_t elements);

void skew_log_window(struct skew_log *log, const struct skew_log_window *window);
void skew_log_end(struct skew_log *log, const struct record_end *end);

#endif
