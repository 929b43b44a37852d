/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One run of the study: sites with partitions of their own train one model together, in one process and one thread, and
 * the averaged model is scored. BSP and FedAvg, whose arithmetic is short enough to stand here.
 *
 * Gradients are means, over a batch and over sites (the prototype of SkewScout summed those of sites): so all
 * algorithms learn at the same effective rate. A run follows from its configuration bit for bit.
 */
#ifndef TESTS_BENCH_SKEW_TRAIN_H
#define TESTS_BENCH_SKEW_TRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "tests/bench/skew_data.h"
#include "tests/bench/skew_model.h"
#include "tests/bench/skew_partition.h"

/*
 * BSP: every step, one momentum step on the mean of gradients; running statistics stay with their site.
 * FedAvg: sites step by themselves, and every `period` steps weights and running statistics are averaged; momentum
 * stays.
 */
enum skew_algorithm { SKEW_BSP, SKEW_FEDAVG };

enum { SKEW_PHASES_MAX = 8 };

/* From `step` on, the data is skewed by label by `percent`. */
struct skew_phase {
	unsigned step;
	double percent;
};

struct skew_train_config {
	enum skew_algorithm algorithm;
	enum skew_norm norm;
	unsigned period; /* FedAvg: steps between averages, at least 1 */
	unsigned steps, batch;
	double rate, momentum, decay;       /* decay: of weights */
	double late;                        /* from this part of the steps on, the rate is a tenth; 1: never */
	bool weighted;                      /* sites count by their samples; else all that have any are alike */
	struct skew_partition_config split; /* its seed is the run's */
	struct skew_phase phases[SKEW_PHASES_MAX];
	unsigned phase_count; /* 0: split.percent all the time; steps must rise */
};

/* What the pilot used: K=5, batch 20, 1,500 steps, SGD 0.9, decay 5e-4, rate 0.05, a tenth of it after 75 %. */
struct skew_train_config skew_train_defaults(void);

struct skew_result {
	struct skew_score score; /* of the averaged model */
	double training_loss;    /* nats, mean over the last tenth of the steps, all sites */
	uint64_t bytes;          /* that one site sent: 4 for each weight or gradient, whatever came back */
	uint64_t hash;           /* FNV-1a of the averaged weights */
};

/*
 * Trains on `data->train` and scores on `set`. Computes for seconds; any thread. 0; -EINVAL with the reason in `e`: no
 * steps, a batch beyond 1 .. SKEW_BATCH_MAX, a period of 0, a number that is not finite or below 0, phases that do not
 * rise, what skew_partition_init() refuses, sites that all have nothing; -ENOMEM.
 */
int skew_train(const struct skew_train_config *config, const struct skew_data *data, const struct skew_set *set,
	struct skew_result *result, struct err *e);

#endif
