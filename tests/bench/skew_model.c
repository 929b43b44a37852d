/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A convolution is a matrix product over the surroundings of pixels, kept from forward to backward.
 *
 * Both norms are one piece of arithmetic: rows (pixels of an image, or of the batch) fall into segments with statistics
 * of their own, channels into groups that share them. Group: a segment is an image, 2 groups. Batch: one segment, a
 * group for each channel.
 */
#include "tests/bench/skew_model.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/skew_kernels.h"
#include "tests/bench/skew_random.h"

enum {
	CHANNELS_MAX = 32,
	LINEAR = SKEW_LANES, /* columns of the last layer while it is computed; of these SKEW_CLASSES are there */
	GROUPS = 2,
	TAPS = 9,
};

#define EPSILON  1e-5f
#define MOMENTUM 0.1f /* of running statistics: how much of a new one comes in */

static const unsigned model_channels[SKEW_LAYERS] = {16, 32};

struct layer {
	struct skew_shape shape;     /* of what comes out of the convolution; images: batch_max */
	unsigned inputs;             /* channels that go in */
	float *padded, *d_padded;    /* what goes in, and its gradient */
	float *col, *d_col;          /* surroundings, and their gradient (of one image) */
	float *conv, *normed, *grad; /* after the convolution, after the norm; the gradient of either */
	float *turned;               /* the weights, turned: outputs x (taps x inputs) */
	float *mean, *inverse;       /* segments x channels; inverse: 1 / deviation */
};

struct skew_scratch {
	struct layer layers[SKEW_LAYERS];
	unsigned batch_max, features;
	float *pooled, *d_pooled;                    /* what goes into the last layer */
	float *linear, *linear_turned, *linear_grad; /* its weights, features x LINEAR, and LINEAR x features */
	float *logits;                               /* batch x LINEAR; then their gradient */
	float *memory;
};

/* ---- shape and weights ---- */

static uint32_t model_add(struct skew_model *model, const char *name, uint32_t elements, bool trained)
{
	const uint32_t offset = model->elements;

	model->tensors[model->tensor_count++] = (struct skew_tensor){name, offset, elements, trained};
	model->elements += elements;
	if (trained)
		model->trained = model->elements;
	return offset;
}

static unsigned model_features(const struct skew_model *model)
{
	return (model->side / 4) * (model->side / 4) * model_channels[SKEW_LAYERS - 1];
}

int skew_model_init(struct skew_model *model, enum skew_norm norm, unsigned side, struct err *e)
{
	static const char *const names[SKEW_LAYERS][6] = {
		{"conv1.weight", "conv1.bias", "norm1.scale", "norm1.shift", "norm1.mean", "norm1.variance"},
		{"conv2.weight", "conv2.bias", "norm2.scale", "norm2.shift", "norm2.mean", "norm2.variance"},
	};
	struct skew_model made = {.norm = norm, .side = side};
	unsigned inputs = 1;

	if (side != 14 && side != 28)
		return err_set(e, -EINVAL, "a model for images of side %u: use 14 or 28", side);
	if (norm != SKEW_NORM_NONE && norm != SKEW_NORM_BATCH && norm != SKEW_NORM_GROUP)
		return err_set(e, -EINVAL, "norm %d is none of none, batch, group", (int)norm);
	for (unsigned l = 0; l < SKEW_LAYERS; l++) {
		const unsigned channels = model_channels[l];

		made.conv[l] = model_add(&made, names[l][0], TAPS * inputs * channels, true);
		if (norm != SKEW_NORM_NONE)
			made.scale[l] = model_add(&made, names[l][2], channels, true);
		made.shift[l] = model_add(&made, names[l][norm == SKEW_NORM_NONE ? 1 : 3], channels, true);
		inputs = channels;
	}
	made.linear = model_add(&made, "linear.weight", model_features(&made) * SKEW_CLASSES, true);
	made.bias = model_add(&made, "linear.bias", SKEW_CLASSES, true);
	for (unsigned l = 0; norm == SKEW_NORM_BATCH && l < SKEW_LAYERS; l++) {
		made.mean[l] = model_add(&made, names[l][4], model_channels[l], false);
		made.variance[l] = model_add(&made, names[l][5], model_channels[l], false);
	}
	*model = made;
	return 0;
}

static void weights_fill(float *weights, uint32_t count, float value)
{
	for (uint32_t i = 0; i < count; i++)
		weights[i] = value;
}

void skew_model_seed(const struct skew_model *model, uint64_t seed, float *weights)
{
	struct skew_random random;
	unsigned inputs = 1;

	skew_random_init(&random, seed, SKEW_WEIGHTS, 0);
	memset(weights, 0, model->elements * sizeof(float));
	for (unsigned l = 0; l < SKEW_LAYERS; l++) {
		const unsigned channels = model_channels[l];
		const double deviation = sqrt(2.0 / (TAPS * inputs));

		for (uint32_t i = 0; i < TAPS * inputs * channels; i++)
			weights[model->conv[l] + i] = (float)(deviation * skew_random_normal(&random));
		if (model->norm != SKEW_NORM_NONE)
			weights_fill(weights + model->scale[l], channels, 1);
		if (model->norm == SKEW_NORM_BATCH)
			weights_fill(weights + model->variance[l], channels, 1);
		inputs = channels;
	}
	for (uint32_t i = 0; i < model_features(model) * SKEW_CLASSES; i++)
		weights[model->linear + i] = (float)(skew_random_normal(&random) / sqrt((double)model_features(model)));
}

/* ---- scratch ---- */

/* Called twice: with memory NULL it only counts the floats, and every pointer stays NULL. */
static float *scratch_take(struct skew_scratch *s, size_t *used, size_t floats)
{
	float *at = s->memory ? s->memory + *used : NULL;

	*used += (floats + 15) & ~(size_t)15; /* lines of a cache */
	return at;
}

static size_t scratch_lay_out(struct skew_scratch *s, const struct skew_model *model)
{
	const size_t batch = s->batch_max;
	unsigned side = model->side, inputs = 1;
	size_t used = 0;

	for (unsigned l = 0; l < SKEW_LAYERS; l++) {
		struct layer *y = &s->layers[l];
		const size_t pixels = (size_t)side * side, padded = (size_t)(side + 2) * (side + 2) * inputs;
		const unsigned channels = model_channels[l];

		y->shape = (struct skew_shape){s->batch_max, side, channels};
		y->inputs = inputs;
		y->padded = scratch_take(s, &used, batch * padded);
		y->d_padded = scratch_take(s, &used, batch * padded);
		y->col = scratch_take(s, &used, batch * pixels * TAPS * inputs);
		y->d_col = scratch_take(s, &used, pixels * TAPS * inputs);
		y->conv = scratch_take(s, &used, batch * pixels * channels);
		y->normed = scratch_take(s, &used, batch * pixels * channels);
		y->grad = scratch_take(s, &used, batch * pixels * channels);
		y->turned = scratch_take(s, &used, (size_t)TAPS * inputs * channels);
		y->mean = scratch_take(s, &used, batch * channels);
		y->inverse = scratch_take(s, &used, batch * channels);
		inputs = channels;
		side /= 2;
	}
	s->pooled = scratch_take(s, &used, batch * s->features);
	s->d_pooled = scratch_take(s, &used, batch * s->features);
	s->linear = scratch_take(s, &used, (size_t)s->features * LINEAR);
	s->linear_turned = scratch_take(s, &used, (size_t)s->features * LINEAR);
	s->linear_grad = scratch_take(s, &used, (size_t)s->features * LINEAR);
	s->logits = scratch_take(s, &used, batch * LINEAR);
	return used;
}

struct skew_scratch *skew_scratch_create(const struct skew_model *model, unsigned batch_max)
{
	struct skew_scratch *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->batch_max = batch_max;
	s->features = model_features(model);
	s->memory = calloc(scratch_lay_out(s, model), sizeof(float)); /* borders are 0 from here on */
	if (!s->memory) {
		free(s);
		return NULL;
	}
	scratch_lay_out(s, model);
	return s;
}

void skew_scratch_destroy(struct skew_scratch *scratch)
{
	if (!scratch)
		return;
	free(scratch->memory);
	free(scratch);
}

/* ---- norms ---- */

/* Rows of the batch in segments, channels in groups. */
struct norm {
	size_t segments, rows; /* rows of a segment */
	unsigned channels, group;
	size_t count; /* values that share statistics */
};

static struct norm norm_of(enum skew_norm kind, const struct layer *layer, unsigned images)
{
	const size_t pixels = (size_t)layer->shape.side * layer->shape.side;
	struct norm n = {.channels = layer->shape.channels};

	n.segments = kind == SKEW_NORM_GROUP ? images : 1;
	n.rows = kind == SKEW_NORM_GROUP ? pixels : pixels * images;
	n.group = kind == SKEW_NORM_GROUP ? n.channels / GROUPS : 1;
	n.count = n.rows * n.group;
	return n;
}

/* Sums by channel become, for each of a group, `by` times the group's sum. */
static void norm_share(const struct norm *n, float *sums, float by)
{
	for (unsigned c = 0; c < n->channels; c += n->group) {
		float sum = 0;

		for (unsigned i = 0; i < n->group; i++)
			sum += sums[c + i];
		for (unsigned i = 0; i < n->group; i++)
			sums[c + i] = sum * by;
	}
}

static void norm_apply(const struct norm *n, const float *x, const float *mean, const float *inverse,
	const float *scale, const float *shift, float *out)
{
	float a[CHANNELS_MAX], b[CHANNELS_MAX];

	for (unsigned c = 0; c < n->channels; c++) {
		a[c] = inverse[c] * scale[c];
		b[c] = shift[c] - mean[c] * a[c];
	}
	skew_affine(x, n->rows, n->channels, a, b, out);
}

static void norm_run(
	const struct norm *n, const float *mean, const float *variance, float *run_mean, float *run_variance)
{
	const float unbiased = n->count > 1 ? (float)n->count / (float)(n->count - 1) : 1;

	for (unsigned c = 0; c < n->channels; c++) {
		run_mean[c] += MOMENTUM * (mean[c] - run_mean[c]);
		run_variance[c] += MOMENTUM * (variance[c] * unbiased - run_variance[c]);
	}
}

/* Statistics of what came out of the convolution, and the norm with them. `run`: weights whose running statistics move.
 */
static void norm_train(
	const struct skew_model *model, unsigned l, struct layer *y, unsigned images, const float *weights, float *run)
{
	const struct norm n = norm_of(model->norm, y, images);

	for (size_t s = 0; s < n.segments; s++) {
		const size_t at = s * n.rows * n.channels;
		float *mean = y->mean + s * n.channels, *inverse = y->inverse + s * n.channels;

		skew_column_sums(y->conv + at, n.rows, n.channels, mean);
		norm_share(&n, mean, 1 / (float)n.count);
		skew_column_squares(y->conv + at, n.rows, n.channels, mean, inverse);
		norm_share(&n, inverse, 1 / (float)n.count);
		if (run && model->norm == SKEW_NORM_BATCH)
			norm_run(&n, mean, inverse, run + model->mean[l], run + model->variance[l]);
		for (unsigned c = 0; c < n.channels; c++)
			inverse[c] = 1 / sqrtf(inverse[c] + EPSILON);
		norm_apply(&n, y->conv + at, mean, inverse, weights + model->scale[l], weights + model->shift[l],
			y->normed + at);
	}
}

static void norm_evaluate(
	const struct skew_model *model, unsigned l, struct layer *y, unsigned images, const float *weights)
{
	const struct norm n = norm_of(model->norm, y, images);

	for (unsigned c = 0; c < n.channels; c++)
		y->inverse[c] = 1 / sqrtf(weights[model->variance[l] + c] + EPSILON);
	norm_apply(&n, y->conv, weights + model->mean[l], y->inverse, weights + model->scale[l],
		weights + model->shift[l], y->normed);
}

static void norm_bias(
	const struct skew_model *model, unsigned l, struct layer *y, unsigned images, const float *weights)
{
	const struct norm n = norm_of(model->norm, y, images);
	float ones[CHANNELS_MAX];

	weights_fill(ones, n.channels, 1);
	skew_affine(y->conv, n.rows, n.channels, ones, weights + model->shift[l], y->normed);
}

/*
 * With xn = (x - mean) * inverse and g = scale * d, over the N values that share statistics:
 * d_x = inverse * (g - sum(g) / N - xn * sum(g * xn) / N)   (Ioffe and Szegedy 2015, section 3)
 * In place: y->grad.
 */
static void norm_back_segment(
	const struct norm *n, struct layer *y, size_t s, const float *scale, float *d_scale, float *d_shift)
{
	const size_t at = s * n->rows * n->channels;
	const float *mean = y->mean + s * n->channels, *inverse = y->inverse + s * n->channels;
	float sums[CHANNELS_MAX], products[CHANNELS_MAX], p[CHANNELS_MAX], q[CHANNELS_MAX], r[CHANNELS_MAX];

	skew_column_sums(y->grad + at, n->rows, n->channels, sums);
	skew_column_products(y->grad + at, y->conv + at, n->rows, n->channels, mean, products);
	for (unsigned c = 0; c < n->channels; c++) {
		products[c] *= inverse[c];
		d_shift[c] += sums[c];
		d_scale[c] += products[c];
		sums[c] *= scale[c];
		products[c] *= scale[c];
	}
	norm_share(n, sums, 1 / (float)n->count);
	norm_share(n, products, 1 / (float)n->count);
	for (unsigned c = 0; c < n->channels; c++) {
		p[c] = inverse[c] * scale[c];
		q[c] = -inverse[c] * inverse[c] * products[c];
		r[c] = -inverse[c] * sums[c] - q[c] * mean[c];
	}
	skew_affine_back(y->grad + at, y->conv + at, n->rows, n->channels, p, q, r);
}

static void norm_back(const struct skew_model *model, unsigned l, struct layer *y, unsigned images,
	const float *weights, float *gradient)
{
	const struct norm n = norm_of(model->norm, y, images);

	if (model->norm == SKEW_NORM_NONE) {
		skew_column_sums(y->grad, n.rows, n.channels, gradient + model->shift[l]);
		return;
	}
	memset(gradient + model->scale[l], 0, n.channels * sizeof(float));
	memset(gradient + model->shift[l], 0, n.channels * sizeof(float));
	for (size_t s = 0; s < n.segments; s++)
		norm_back_segment(
			&n, y, s, weights + model->scale[l], gradient + model->scale[l], gradient + model->shift[l]);
}

/* ---- forward ---- */

static void input_copy(struct layer *y, unsigned at, const float *image)
{
	const size_t side = y->shape.side;
	float *to = y->padded + at * (side + 2) * (side + 2) + (side + 2) + 1;

	for (size_t line = 0; line < side; line++)
		memcpy(to + line * (side + 2), image + line * side, side * sizeof(float));
}

static void layer_convolve(const struct layer *y, unsigned images, const float *weights)
{
	const struct skew_shape in = {images, y->shape.side, y->inputs};

	skew_surroundings(&in, y->padded, y->col);
	skew_gemm(&(struct skew_gemm){
		.m = images * y->shape.side * y->shape.side,
		.n = y->shape.channels,
		.k = TAPS * y->inputs,
		.a = y->col,
		.a_row = (size_t)TAPS * y->inputs,
		.a_step = 1,
		.b = weights,
		.c = y->conv,
	});
}

static void linear_forward(
	const struct skew_model *model, struct skew_scratch *s, const float *weights, unsigned images)
{
	for (unsigned f = 0; f < s->features; f++)
		memcpy(s->linear + (size_t)f * LINEAR, weights + model->linear + (size_t)f * SKEW_CLASSES,
			SKEW_CLASSES * sizeof(float));
	for (unsigned i = 0; i < images; i++)
		memcpy(s->logits + (size_t)i * LINEAR, weights + model->bias, SKEW_CLASSES * sizeof(float));
	skew_gemm(&(struct skew_gemm){
		.m = images,
		.n = LINEAR,
		.k = s->features,
		.a = s->pooled,
		.a_row = s->features,
		.a_step = 1,
		.b = s->linear,
		.c = s->logits,
		.add = true,
	});
}

/* `run`: as for norm_train(); NULL with `training` false: evaluation. */
static void model_forward(
	const struct skew_model *model, struct skew_scratch *s, const float *weights, float *run, unsigned images)
{
	for (unsigned l = 0; l < SKEW_LAYERS; l++) {
		struct layer *y = &s->layers[l];
		const struct skew_shape shape = {images, y->shape.side, y->shape.channels};
		const bool last = l == SKEW_LAYERS - 1;

		layer_convolve(y, images, weights + model->conv[l]);
		if (model->norm == SKEW_NORM_NONE)
			norm_bias(model, l, y, images, weights);
		else if (model->norm == SKEW_NORM_BATCH && !run)
			norm_evaluate(model, l, y, images, weights);
		else
			norm_train(model, l, y, images, weights, run);
		skew_pool(&shape, y->normed, !last, last ? s->pooled : s->layers[l + 1].padded);
	}
	linear_forward(model, s, weights, images);
}

/* The loss of one sample and, with `by` above 0, `by` times its gradient in place of the logits. */
static void logits_score(float *logits, unsigned label, float by, struct skew_score *score)
{
	double exponents[SKEW_CLASSES], sum = 0;
	unsigned best = 0;

	for (unsigned c = 1; c < SKEW_CLASSES; c++)
		if (logits[c] > logits[best])
			best = c;
	for (unsigned c = 0; c < SKEW_CLASSES; c++) {
		exponents[c] = exp((double)logits[c] - logits[best]);
		sum += exponents[c];
	}
	score->count++;
	score->correct += best == label;
	score->loss += log(sum) + logits[best] - logits[label];
	for (unsigned c = 0; by > 0 && c < SKEW_CLASSES; c++)
		logits[c] = (float)(by * (exponents[c] / sum - (c == label)));
}

/* ---- backward ---- */

static void linear_back(const struct skew_model *model, struct skew_scratch *s, unsigned images, float *gradient)
{
	float bias[LINEAR];

	skew_gemm(&(struct skew_gemm){
		.m = s->features,
		.n = LINEAR,
		.k = images,
		.a = s->pooled,
		.a_row = 1,
		.a_step = s->features,
		.b = s->logits,
		.c = s->linear_grad,
	});
	for (unsigned f = 0; f < s->features; f++) {
		memcpy(gradient + model->linear + (size_t)f * SKEW_CLASSES, s->linear_grad + (size_t)f * LINEAR,
			SKEW_CLASSES * sizeof(float));
		for (unsigned c = 0; c < SKEW_CLASSES; c++)
			s->linear_turned[(size_t)c * s->features + f] = s->linear[(size_t)f * LINEAR + c];
	}
	skew_column_sums(s->logits, images, LINEAR, bias);
	memcpy(gradient + model->bias, bias, SKEW_CLASSES * sizeof(float));
	skew_gemm(&(struct skew_gemm){
		.m = images,
		.n = s->features,
		.k = SKEW_CLASSES,
		.a = s->logits,
		.a_row = LINEAR,
		.a_step = 1,
		.b = s->linear_turned,
		.c = s->d_pooled,
	});
}

/* An image at a time: its surroundings are in the first cache then. */
static void layer_back_weights(const struct layer *y, unsigned images, float *gradient)
{
	const size_t pixels = (size_t)y->shape.side * y->shape.side, width = (size_t)TAPS * y->inputs;

	for (unsigned image = 0; image < images; image++)
		skew_gemm(&(struct skew_gemm){
			.m = (unsigned)width,
			.n = y->shape.channels,
			.k = (unsigned)pixels,
			.a = y->col + image * pixels * width,
			.a_row = 1,
			.a_step = width,
			.b = y->grad + image * pixels * y->shape.channels,
			.c = gradient,
			.add = image > 0,
		});
}

static void layer_back_input(const struct layer *y, unsigned images, const float *weights)
{
	const struct skew_shape one = {1, y->shape.side, y->inputs};
	const size_t pixels = (size_t)y->shape.side * y->shape.side, width = (size_t)TAPS * y->inputs;
	const size_t padded = (size_t)(y->shape.side + 2) * (y->shape.side + 2) * y->inputs;
	const unsigned channels = y->shape.channels;

	for (size_t i = 0; i < width; i++)
		for (unsigned c = 0; c < channels; c++)
			y->turned[c * width + i] = weights[i * channels + c];
	memset(y->d_padded, 0, images * padded * sizeof(float));
	for (unsigned image = 0; image < images; image++) {
		skew_gemm(&(struct skew_gemm){
			.m = (unsigned)pixels,
			.n = (unsigned)width,
			.k = channels,
			.a = y->grad + image * pixels * channels,
			.a_row = channels,
			.a_step = 1,
			.b = y->turned,
			.c = y->d_col,
		});
		skew_surroundings_back(&one, y->d_col, y->d_padded + image * padded);
	}
}

static void model_back(
	const struct skew_model *model, struct skew_scratch *s, const float *weights, unsigned images, float *gradient)
{
	linear_back(model, s, images, gradient);
	for (int l = SKEW_LAYERS - 1; l >= 0; l--) {
		struct layer *y = &s->layers[l];
		const struct skew_shape shape = {images, y->shape.side, y->shape.channels};
		const bool last = l == SKEW_LAYERS - 1;

		skew_pool_back(&shape, y->normed, !last, last ? s->d_pooled : s->layers[l + 1].d_padded, y->grad);
		norm_back(model, (unsigned)l, y, images, weights, gradient);
		layer_back_weights(y, images, gradient + model->conv[l]);
		if (l > 0) /* images need no gradient */
			layer_back_input(y, images, weights + model->conv[l]);
	}
}

/* ---- both ---- */

void skew_model_gradient(const struct skew_model *model, struct skew_scratch *scratch, float *weights,
	const struct skew_set *set, const uint32_t *samples, unsigned count, float *gradient, struct skew_score *score)
{
	const size_t pixels = (size_t)set->side * set->side;

	for (unsigned i = 0; i < count; i++)
		input_copy(&scratch->layers[0], i, set->images + samples[i] * pixels);
	model_forward(model, scratch, weights, weights, count);
	for (unsigned i = 0; i < count; i++)
		logits_score(scratch->logits + (size_t)i * LINEAR, set->labels[samples[i]], 1 / (float)count, score);
	model_back(model, scratch, weights, count, gradient);
}

void skew_model_evaluate(const struct skew_model *model, struct skew_scratch *scratch, const float *weights,
	const struct skew_set *set, const uint32_t *samples, unsigned count, struct skew_score *score)
{
	const size_t pixels = (size_t)set->side * set->side;

	for (unsigned done = 0; done < count;) {
		const unsigned left = count - done, images = left < scratch->batch_max ? left : scratch->batch_max;

		for (unsigned i = 0; i < images; i++) {
			const unsigned sample = samples ? samples[done + i] : done + i;

			input_copy(&scratch->layers[0], i, set->images + sample * pixels);
		}
		model_forward(model, scratch, weights, NULL, images);
		for (unsigned i = 0; i < images; i++) {
			const unsigned sample = samples ? samples[done + i] : done + i;

			logits_score(scratch->logits + (size_t)i * LINEAR, set->labels[sample], 0, score);
		}
		done += images;
	}
}
