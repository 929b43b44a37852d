/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model of the study on skewed sites: conv3x3x16 - norm - ReLU - pool - conv3x3x32 - norm - ReLU - pool - linear to
 * 10 classes; forward and backward by hand. 7.7 thousand weights for images of 14x14.
 *
 * A model is a shape; weights and gradients are the caller's flat arrays, with a table that says which tensor is where.
 * So an exchange sees keys, and sites of one process share one shape. No I/O, clock, thread or hidden state: the same
 * input gives the same bits.
 */
#ifndef TESTS_BENCH_SKEW_MODEL_H
#define TESTS_BENCH_SKEW_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "tests/bench/skew_data.h"

/*
 * None: a bias stands in for it. Batch: the statistics of a mini-batch when training, running ones (momentum 0.1,
 * unbiased variance, as PyTorch has them) when evaluating. Group: 2 groups of channels, of each image alone.
 */
enum skew_norm { SKEW_NORM_NONE, SKEW_NORM_BATCH, SKEW_NORM_GROUP };

enum { SKEW_TENSORS_MAX = 12, SKEW_LAYERS = 2, SKEW_BATCH_MAX = 1024 };

/*
 * A convolution's weights are [pixel of 3x3][input][output], the last layer's [row][column][channel][class].
 * What is not trained has no gradient: the running statistics, which decentralized training averages with the weights.
 */
struct skew_tensor {
	const char *name; /* as "conv1.weight" */
	uint32_t offset, elements;
	bool trained;
};

struct skew_model {
	enum skew_norm norm;
	unsigned side; /* of the images */
	unsigned tensor_count;
	struct skew_tensor tensors[SKEW_TENSORS_MAX]; /* the trained ones first, without gaps */
	uint32_t trained, elements; /* floats of a gradient; of weights, running statistics included */
	/* Offsets: */
	uint32_t conv[SKEW_LAYERS], scale[SKEW_LAYERS], shift[SKEW_LAYERS], mean[SKEW_LAYERS], variance[SKEW_LAYERS];
	uint32_t linear, bias;
};

/* 0, or -EINVAL with the reason in `e`: a side that is not 14 or 28, a norm that is none. */
int skew_model_init(struct skew_model *model, enum skew_norm norm, unsigned side, struct err *e);

/* First weights, `model->elements` of them: He's normal, scales 1, shifts and biases 0, variances 1. */
void skew_model_seed(const struct skew_model *model, uint64_t seed, float *weights);

/* Room for the activations of `batch_max` samples (1 .. SKEW_BATCH_MAX); for one thread at a time. NULL: out of memory.
 */
struct skew_scratch;
struct skew_scratch *skew_scratch_create(const struct skew_model *model, unsigned batch_max);
void skew_scratch_destroy(struct skew_scratch *scratch);

/* Sums over samples. */
struct skew_score {
	uint32_t count, correct;
	double loss; /* softmax cross entropy in nats; infinite or NaN when weights are */
};

/*
 * One mini-batch: the gradient of the mean loss over the `count` (1 .. batch_max) samples of `set` that are named.
 * Running statistics in `weights` move, nothing else of them. What the batch scored before is added to `score`.
 */
void skew_model_gradient(const struct skew_model *model, struct skew_scratch *scratch, float *weights,
	const struct skew_set *set, const uint32_t *samples, unsigned count, float *gradient, struct skew_score *score);

/* Adds to `score` how the weights do on the `count` samples that are named, or with NULL on the first `count`. */
void skew_model_evaluate(const struct skew_model *model, struct skew_scratch *scratch, const float *weights,
	const struct skew_set *set, const uint32_t *samples, unsigned count, struct skew_score *score);

#endif
