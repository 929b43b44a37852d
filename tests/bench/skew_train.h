/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One run of the study: sites with partitions of their own train one model together, in one process and one thread, and
 * the averaged model is scored. What a site does, says and hears is the library's (client/scout/site.h), and so is the
 * controller that may set theta meanwhile (client/scout/scout.h); the sum over sites is a loop here, where else a box
 * is.
 *
 * Gradients are means, over a batch and over sites (the prototype of SkewScout summed those of sites): so all
 * algorithms learn at the same effective rate. A run follows from its configuration bit for bit.
 */
#ifndef TESTS_BENCH_SKEW_TRAIN_H
#define TESTS_BENCH_SKEW_TRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "client/scout/scout.h"
#include "client/scout/site.h"
#include "phub/base/err.h"
#include "tests/bench/skew_data.h"
#include "tests/bench/skew_log.h"
#include "tests/bench/skew_model.h"
#include "tests/bench/skew_partition.h"
#include "tests/bench/skew_rivals.h"

enum { SKEW_PHASES_MAX = 8 };

/* From `step` on, the data is skewed by label by `percent`. */
struct skew_phase {
	unsigned step;
	double percent;
};

struct skew_train_config {
	enum site_algorithm algorithm;
	double theta; /* as the algorithm has it; local: steps between averages */
	enum skew_norm norm;
	unsigned steps, batch;
	double rate, momentum, decay;       /* decay: of weights */
	double late;                        /* from this part of the steps on, the rate is a tenth; 1: never */
	struct outer_config outer;          /* local */
	double clip;                        /* dgc */
	uint32_t warmup;                    /* dgc: steps in a stage */
	bool weighted;                      /* sites count by their samples; else all that have any are alike */
	struct skew_partition_config split; /* its seed is the run's */
	struct skew_phase phases[SKEW_PHASES_MAX];
	unsigned phase_count; /* 0: split.percent all the time; steps must rise */
	/*
	 * NULL: theta stays. Else it sets theta from its grid, as windows end: with the first exchange after each of
	 * its periods, scout+'s with the period itself. Each site's model, that of midway.h, is tried on `probe`
	 * samples at home and at scout_host(), the same for all who are tried there; of scout+ the mean model. `tell`,
	 * if any, hears each decision, after how many steps of the run it came, and at which theta the window was that
	 * is over. model_bytes is set here.
	 */
	const struct scout_config *scout;
	unsigned probe;
	void (*tell)(void *context, unsigned steps, double theta, const struct scout_decision *decision);
	void *context;
	/* NULL, or the rule by which local SGD averages in place of theta, and once more at the end. elements and seed
	 * are set here. */
	const struct rival_config *rival;
	struct skew_log *log; /* NULL, or where the run is told, with the averaged model's score at each window */
};

/* What the pilot used: K=5, batch 20, 1,500 steps, SGD 0.9, decay 5e-4, rate 0.05, a tenth of it after 75 %; theta 1,
 * DGC's clipping 1 and stages of 100 steps; probes of 400. */
struct skew_train_config skew_train_defaults(void);

struct skew_result {
	struct skew_score score; /* of the averaged model */
	double training_loss;    /* nats, mean over the last tenth of the steps, all sites */
	uint64_t bytes; /* that one site sent, the mean: as the papers count them, a rival's rule included; whatever
			 * came back
			 */
	uint64_t bytes_early;  /* of them in the first fifth of the steps */
	uint64_t bytes_wire;   /* likewise, as chunks coded by aggregation/sparse.h where that is shorter */
	uint64_t bytes_travel; /* likewise, of what travelled to be tried */
	uint64_t exchanges;
	double theta;  /* at the end; the rival's */
	uint64_t hash; /* FNV-1a of the averaged weights */
};

/*
 * Trains on `data->train` and scores on `set`. Computes for seconds; any thread. 0; -EINVAL with the reason in `e`: no
 * steps, a batch beyond 1 .. SKEW_BATCH_MAX, a probe that is not, a rate, momentum, decay or late that is not finite or
 * below 0, phases that do not rise, what skew_partition_init(), site_init() or scout_init() refuse, sites that all have
 * nothing, a grid with a theta that the algorithm cannot have, a rival of a scout or of another algorithm than local,
 * what rival_init() and skew_log_begin() refuse; -ENOMEM.
 */
int skew_train(const struct skew_train_config *config, const struct skew_data *data, const struct skew_set *set,
	struct skew_result *result, struct err *e);

#endif
