/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The study's model beside one in float64 that is written for nothing but to be read: the loss, and gradients beside
 * central differences of that loss.
 */
#include "tests/bench/skew_model.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/skew_random.h"

enum { IMAGES = 3, POOL = 6, PROBES = 24, ELEMENTS_MAX = 21000 };

#define STEP 1e-6 /* of a central difference */

static const enum skew_norm norms[] = {SKEW_NORM_NONE, SKEW_NORM_BATCH, SKEW_NORM_GROUP};
static const unsigned sides[] = {14, 28};

static struct skew_set set; /* random, of POOL images */
static float images[POOL * 28 * 28];
static uint8_t labels[POOL] = {3, 9, 0, 3, 7, 1};
static const uint32_t samples[IMAGES] = {4, 1, 2};

static struct skew_model model;
static struct skew_scratch *scratch;
static float weights[ELEMENTS_MAX], gradient[ELEMENTS_MAX];

/* ---- the model in float64 ---- */

static double exact[ELEMENTS_MAX];
static double before[IMAGES * 28 * 28 * 32], after[IMAGES * 28 * 28 * 32];

/* What is outside an image is 0. */
static double at_pixel(const double *x, int side, unsigned channels, int py, int px, unsigned c)
{
	if (py < 0 || px < 0 || py >= side || px >= side)
		return 0;
	return x[((size_t)py * (size_t)side + (size_t)px) * channels + c];
}

/* before -> after */
static void exact_convolve(unsigned side, unsigned inputs, unsigned outputs, const double *w)
{
	for (unsigned i = 0; i < IMAGES * side * side; i++) {
		const double *image = before + (size_t)(i / side / side) * side * side * inputs;
		const int y = (int)(i / side % side), x = (int)(i % side);
		double *out = after + (size_t)i * outputs;

		for (unsigned o = 0; o < outputs; o++)
			out[o] = 0;
		for (unsigned k = 0; k < 9 * inputs; k++) {
			const int tap = (int)(k / inputs);
			const double value =
				at_pixel(image, (int)side, inputs, y + tap / 3 - 1, x + tap % 3 - 1, k % inputs);

			for (unsigned o = 0; o < outputs; o++)
				out[o] += value * w[k * outputs + o];
		}
	}
}

/* Mean and variance of a value's group: of its channel over all images, or of half the channels of its image. */
static void exact_statistics(
	unsigned pixels, unsigned channels, unsigned image, unsigned c, double *mean, double *variance)
{
	const bool batch = model.norm == SKEW_NORM_BATCH;
	const unsigned from = batch ? 0 : image * pixels, rows = batch ? IMAGES * pixels : pixels;
	const unsigned width = batch ? 1 : channels / 2, first = c / width * width;
	double sum = 0, squares = 0;

	for (unsigned r = from; r < from + rows; r++) {
		for (unsigned i = first; i < first + width; i++) {
			sum += after[r * channels + i];
			squares += after[r * channels + i] * after[r * channels + i];
		}
	}
	*mean = sum / (rows * width);
	*variance = squares / (rows * width) - *mean * *mean;
}

/* In place. The statistics of a whole group are found once, at its first channel. */
static void exact_norm(unsigned l, unsigned side, unsigned channels, bool training)
{
	const unsigned pixels = side * side;
	static double normed[IMAGES * 28 * 28 * 32];
	double mean = 0, variance = 1;

	for (unsigned image = 0; image < IMAGES; image++) {
		for (unsigned c = 0; c < channels; c++) {
			double scale = 1;

			if (model.norm == SKEW_NORM_BATCH && !training) {
				mean = exact[model.mean[l] + c];
				variance = exact[model.variance[l] + c];
			} else if (model.norm == SKEW_NORM_BATCH ||
				   (model.norm == SKEW_NORM_GROUP && c % (channels / 2) == 0)) {
				exact_statistics(pixels, channels, image, c, &mean, &variance);
			}
			if (model.norm != SKEW_NORM_NONE)
				scale = exact[model.scale[l] + c] / sqrt(variance + 1e-5);
			for (unsigned r = image * pixels; r < (image + 1) * pixels; r++)
				normed[r * channels + c] =
					(after[r * channels + c] - mean) * scale + exact[model.shift[l] + c];
		}
	}
	memcpy(after, normed, sizeof(double) * IMAGES * pixels * channels);
}

/* after -> before, of half the side */
static void exact_pool(unsigned side, unsigned channels)
{
	const unsigned half = side / 2;

	for (unsigned i = 0; i < IMAGES * half * half * channels; i++) {
		const unsigned c = i % channels, x = i / channels % half, y = i / channels / half % half;
		const unsigned image = i / channels / half / half;
		double most = 0;

		for (unsigned f = 0; f < 4; f++) {
			const size_t row = (image * side + 2 * y + f / 2) * side + 2 * x + f % 2;

			most = fmax(most, after[row * channels + c]);
		}
		before[i] = most;
	}
}

static double exact_cross_entropy(unsigned features)
{
	double loss = 0;

	for (unsigned image = 0; image < IMAGES; image++) {
		double logits[SKEW_CLASSES], sum = 0;

		for (unsigned c = 0; c < SKEW_CLASSES; c++) {
			logits[c] = exact[model.bias + c];
			for (unsigned f = 0; f < features; f++)
				logits[c] += before[image * features + f] * exact[model.linear + f * SKEW_CLASSES + c];
			sum += exp(logits[c]);
		}
		loss += log(sum) - logits[labels[samples[image]]];
	}
	return loss / IMAGES;
}

/* The mean loss with the weights in `exact`. */
static double exact_loss(bool training)
{
	static const unsigned channels[] = {16, 32};
	unsigned side = model.side, inputs = 1;

	for (unsigned i = 0; i < IMAGES * side * side; i++)
		before[i] = set.images[samples[i / (side * side)] * side * side + i % (side * side)];
	for (unsigned l = 0; l < 2; l++) {
		exact_convolve(side, inputs, channels[l], exact + model.conv[l]);
		exact_norm(l, side, channels[l], training);
		exact_pool(side, channels[l]);
		inputs = channels[l];
		side /= 2;
	}
	return exact_cross_entropy(side * side * inputs);
}

/* ---- set-up ---- */

/* A model whose small tensors are moved from where they begin, so that no scale is 1 and no shift 0. */
static void make(enum skew_norm norm, unsigned side)
{
	struct skew_random r;
	struct err e = {0};

	if (skew_model_init(&model, norm, side, &e) < 0)
		fail_msg("%s", e.text);
	assert_true(model.elements <= ELEMENTS_MAX);
	scratch = skew_scratch_create(&model, IMAGES);
	assert_non_null(scratch);
	skew_random_init(&r, 1, SKEW_PROBE, 0);
	skew_model_seed(&model, 7, weights);
	for (unsigned i = 0; i < model.tensor_count; i++)
		for (uint32_t j = 0; model.tensors[i].elements <= 32 && j < model.tensors[i].elements; j++)
			weights[model.tensors[i].offset + j] += (float)(0.3 * fabs(skew_random_normal(&r)));
	for (uint32_t i = 0; i < model.elements; i++)
		exact[i] = weights[i];
	set = (struct skew_set){POOL, side, images, labels};
	for (unsigned i = 0; i < POOL * side * side; i++)
		images[i] = (float)skew_random_normal(&r);
}

static void drop(void)
{
	skew_scratch_destroy(scratch);
	scratch = NULL;
}

/* ---- tests ---- */

static void same_loss(const struct skew_score *score, bool training)
{
	const double found = score->loss / IMAGES, want = exact_loss(training);

	assert_int_equal(score->count, IMAGES);
	if (fabs(found - want) > 1e-5 * (1 + want))
		fail_msg("norm %d, side %u: a loss of %.9g, not %.9g", (int)model.norm, model.side, found, want);
}

static void probe(const struct skew_tensor *t, uint32_t element, double largest)
{
	const uint32_t at = t->offset + element;
	const double was = exact[at];
	double up, down, want;

	exact[at] = was + STEP;
	up = exact_loss(true);
	exact[at] = was - STEP;
	down = exact_loss(true);
	exact[at] = was;
	want = (up - down) / (2 * STEP);
	if (fabs(gradient[at] - want) > 5e-5 * largest)
		fail_msg("norm %d: %s[%u]: gradient %.9g, not %.9g (largest %.3g)", (int)model.norm, t->name, element,
			gradient[at], want, largest);
}

/* Of every tensor, all or every so many elements. */
static void test_gradients(void **state)
{
	for (unsigned n = 0; n < 3; n++) {
		struct skew_score score = {0};

		make(norms[n], 14);
		skew_model_gradient(&model, scratch, weights, &set, samples, IMAGES, gradient, &score);
		same_loss(&score, true);
		for (unsigned i = 0; i < model.tensor_count; i++) {
			const struct skew_tensor *t = &model.tensors[i];
			const uint32_t stride = t->elements > 2 * PROBES ? t->elements / PROBES : 1;
			double largest = 1e-6;

			for (uint32_t j = 0; t->trained && j < t->elements; j++)
				largest = fmax(largest, fabs(gradient[t->offset + j]));
			for (uint32_t j = 0; t->trained && j < t->elements; j += stride)
				probe(t, j, largest);
		}
		drop();
	}
}

/* Both sides, all norms, in training and after it. */
static void test_losses(void **state)
{
	for (unsigned i = 0; i < 6; i++) {
		struct skew_score trained = {0}, evaluated = {0};

		make(norms[i % 3], sides[i / 3]);
		skew_model_evaluate(&model, scratch, weights, &set, samples, IMAGES, &evaluated);
		same_loss(&evaluated, false);
		skew_model_gradient(&model, scratch, weights, &set, samples, IMAGES, gradient, &trained);
		same_loss(&trained, true);
		drop();
	}
}

/* As PyTorch's: a tenth of the batch's mean and unbiased variance comes in. Weights stay. */
static void test_running(void **state)
{
	const unsigned pixels = 14 * 14, count = IMAGES * pixels;
	struct skew_score score = {0};

	make(SKEW_NORM_BATCH, 14);
	skew_model_gradient(&model, scratch, weights, &set, samples, IMAGES, gradient, &score);
	for (unsigned i = 0; i < IMAGES * pixels; i++)
		before[i] = set.images[samples[i / pixels] * pixels + i % pixels];
	exact_convolve(14, 1, 16, exact + model.conv[0]);
	for (unsigned c = 0; c < 16; c++) {
		double mean, variance;

		exact_statistics(pixels, 16, 0, c, &mean, &variance);
		mean = 0.9 * exact[model.mean[0] + c] + 0.1 * mean;
		variance = 0.9 * exact[model.variance[0] + c] + 0.1 * variance * count / (count - 1);
		assert_true(fabs(weights[model.mean[0] + c] - mean) < 1e-5);
		assert_true(fabs(weights[model.variance[0] + c] - variance) < 1e-5);
	}
	for (uint32_t i = 0; i < model.trained; i++)
		assert_true(weights[i] == exact[i]);
	drop();
}

/* In parts or at once, by name or in order: the same bits. */
static void test_evaluate(void **state)
{
	static const uint32_t all[POOL] = {0, 1, 2, 3, 4, 5};

	for (unsigned n = 0; n < 3; n++) {
		struct skew_score at_once = {0}, named = {0}, singly = {0};

		make(norms[n], 14);
		skew_model_evaluate(&model, scratch, weights, &set, NULL, POOL, &at_once);
		skew_model_evaluate(&model, scratch, weights, &set, all, POOL, &named);
		for (unsigned i = 0; i < POOL; i++)
			skew_model_evaluate(&model, scratch, weights, &set, all + i, 1, &singly);
		assert_int_equal(at_once.count, POOL);
		assert_memory_equal(&at_once, &named, sizeof(named));
		assert_memory_equal(&at_once, &singly, sizeof(singly));
		for (uint32_t i = 0; i < model.elements; i++)
			assert_true(weights[i] == exact[i]);
		skew_model_evaluate(&model, scratch, weights, &set, NULL, 0, &named);
		assert_int_equal(named.count, POOL);
		drop();
	}
}

/* Offsets without gaps or overlaps, in the order of the table; what is trained first. */
static void test_table(void **state)
{
	static const uint32_t wanted[3][2] = {{7690, 7690}, {7738, 7834}, {7738, 7738}};

	for (unsigned n = 0; n < 3; n++) {
		uint32_t at = 0;
		bool trained = true;

		make(norms[n], 14);
		for (unsigned i = 0; i < model.tensor_count; i++) {
			assert_int_equal(model.tensors[i].offset, at);
			assert_true(trained || !model.tensors[i].trained);
			trained = model.tensors[i].trained;
			at += model.tensors[i].elements;
			assert_int_equal(trained, at <= model.trained);
			for (unsigned j = 0; j < i; j++)
				assert_string_not_equal(model.tensors[i].name, model.tensors[j].name);
		}
		assert_int_equal(model.trained, wanted[n][0]);
		assert_int_equal(model.elements, wanted[n][1]);
		assert_int_equal(model.elements, at);
		drop();
	}
}

/* The same seed gives the same weights, and the same input the same bits, whatever the scratch held. */
static void test_same(void **state)
{
	static float again[ELEMENTS_MAX], other[ELEMENTS_MAX];
	struct skew_score first = {0}, second = {0};

	for (unsigned n = 0; n < 3; n++) {
		make(norms[n], 14);
		memcpy(again, weights, sizeof(again));
		skew_model_gradient(&model, scratch, weights, &set, samples, IMAGES, gradient, &first);
		skew_model_evaluate(&model, scratch, weights, &set, NULL, POOL, &second);
		second = (struct skew_score){0};
		skew_model_gradient(&model, scratch, again, &set, samples, IMAGES, other, &second);
		assert_memory_equal(gradient, other, model.trained * sizeof(float));
		assert_memory_equal(weights, again, model.elements * sizeof(float));
		assert_memory_equal(&first, &second, sizeof(first));
		first = (struct skew_score){0};
		skew_model_seed(&model, 1, weights);
		skew_model_seed(&model, 1, again);
		skew_model_seed(&model, 2, other);
		assert_memory_equal(weights, again, model.elements * sizeof(float));
		assert_true(memcmp(weights, other, model.elements * sizeof(float)) != 0);
		drop();
	}
}

static void test_refused(void **state)
{
	struct skew_model kept = {.side = 42};
	struct err e = {0};

	assert_int_equal(skew_model_init(&kept, SKEW_NORM_GROUP, 15, &e), -EINVAL);
	assert_non_null(strstr(e.text, "use 14 or 28"));
	assert_int_equal(skew_model_init(&kept, (enum skew_norm)3, 14, &e), -EINVAL);
	assert_non_null(strstr(e.text, "norm 3"));
	assert_int_equal(kept.side, 42);
	skew_scratch_destroy(NULL);
}

TEST_PROGRAM(test_skew_model)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gradients),
		cmocka_unit_test(test_losses),
		cmocka_unit_test(test_running),
		cmocka_unit_test(test_evaluate),
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_same),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
