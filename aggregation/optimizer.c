/* SPDX-License-Identifier: Apache-2.0
 *
 * Names, defaults, checks and per-step scalars of the optimizers; see optimizer.h. The formulas follow PyTorch's
 * torch/optim/{sgd,adagrad,adam,adamw}.py (the single-tensor path).
 */
#include "aggregation/optimizer.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const optimizer_names[OPTIMIZER_COUNT] = {
	[OPTIMIZER_NONE] = "none",
	[OPTIMIZER_SGD] = "sgd",
	[OPTIMIZER_MOMENTUM] = "momentum",
	[OPTIMIZER_NESTEROV] = "nesterov",
	[OPTIMIZER_ADAGRAD] = "adagrad",
	[OPTIMIZER_ADAM] = "adam",
	[OPTIMIZER_ADAMW] = "adamw",
};

#define OPTIMIZER_ALLOWED "none, sgd, momentum, nesterov, adagrad, adam, adamw"

const char *optimizer_kind_name(enum optimizer_kind kind)
{
	return optimizer_kind_valid(kind) ? optimizer_names[kind] : "invalid";
}

int optimizer_kind_parse(const char *name, enum optimizer_kind *kind, char *error, size_t error_size)
{
	static const char *const two_phase[] = {"lars", "lamb", "clip_global_norm"};

	for (unsigned k = 0; k < OPTIMIZER_COUNT; k++) {
		if (strcmp(name, optimizer_names[k]) == 0) {
			*kind = (enum optimizer_kind)k;
			return 0;
		}
	}
	for (size_t i = 0; i < sizeof(two_phase) / sizeof(two_phase[0]); i++) {
		if (strcmp(name, two_phase[i]) == 0) {
			snprintf(error, error_size,
				"optimizer \"%s\" needs two-phase jobs (a norm over all chunks before the first step), "
				"which "
				"are not there yet; use one of: " OPTIMIZER_ALLOWED,
				name);
			return -ENOTSUP;
		}
	}
	snprintf(error, error_size, "unknown optimizer \"%.32s\"; use one of: " OPTIMIZER_ALLOWED, name);
	return -EINVAL;
}

void optimizer_hyper_default(enum optimizer_kind kind, struct optimizer_hyper *hyper)
{
	*hyper = (struct optimizer_hyper){.lr = 0.001, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
	switch (kind) {
	case OPTIMIZER_NONE:
	case OPTIMIZER_SGD:
	case OPTIMIZER_ADAM:
		break;
	case OPTIMIZER_MOMENTUM:
	case OPTIMIZER_NESTEROV:
		hyper->momentum = 0.9;
		break;
	case OPTIMIZER_ADAGRAD:
		hyper->lr = 0.01;
		hyper->eps = 1e-10;
		break;
	case OPTIMIZER_ADAMW:
		hyper->weight_decay = 0.01;
		break;
	}
}

/* A range that a parameter must be in; max is excluded when it is below infinity. */
struct optimizer_range {
	const char *name;
	double value;
	double min, max;
	int min_excluded;
};

static int optimizer_range_check(
	enum optimizer_kind kind, const struct optimizer_range *range, char *error, size_t error_size)
{
	double v = range->value;

	if (isfinite(v) && v < range->max && (range->min_excluded ? v > range->min : v >= range->min))
		return 0;
	if (isinf(range->max))
		snprintf(error, error_size, "optimizer %s: %s is %g, needs a finite number %s %g",
			optimizer_names[kind], range->name, v, range->min_excluded ? ">" : ">=", range->min);
	else
		snprintf(error, error_size, "optimizer %s: %s is %g, needs %s %g and < %g", optimizer_names[kind],
			range->name, v, range->min_excluded ? ">" : ">=", range->min, range->max);
	return -EINVAL;
}

static int optimizer_momentum_check(
	enum optimizer_kind kind, const struct optimizer_hyper *hyper, char *error, size_t error_size)
{
	/* At 0 PyTorch keeps no buffer, and starts one when a schedule raises it: that is sgd, not this kind. */
	struct optimizer_range momentum = {"momentum", hyper->momentum, 0, INFINITY, 1};

	if (optimizer_range_check(kind, &momentum, error, error_size))
		return -EINVAL;
	if (!isfinite(hyper->dampening)) {
		snprintf(error, error_size, "optimizer %s: dampening is %g, needs a finite number",
			optimizer_names[kind], hyper->dampening);
		return -EINVAL;
	}
	if (kind == OPTIMIZER_NESTEROV && hyper->dampening != 0) {
		snprintf(error, error_size, "optimizer nesterov: dampening is %g, needs 0", hyper->dampening);
		return -EINVAL;
	}
	return 0;
}

static int optimizer_adagrad_check(const struct optimizer_hyper *hyper, char *error, size_t error_size)
{
	struct optimizer_range ranges[] = {
		{"lr_decay", hyper->lr_decay, 0, INFINITY, 0},
		{"initial_accumulator_value", hyper->initial_accumulator_value, 0, INFINITY, 0},
		{"eps", hyper->eps, 0, INFINITY, 0},
	};

	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
		if (optimizer_range_check(OPTIMIZER_ADAGRAD, &ranges[i], error, error_size))
			return -EINVAL;
	}
	return 0;
}

static int optimizer_adam_check(
	enum optimizer_kind kind, const struct optimizer_hyper *hyper, char *error, size_t error_size)
{
	struct optimizer_range ranges[] = {
		{"beta1", hyper->beta1, 0, 1, 0},
		{"beta2", hyper->beta2, 0, 1, 0},
		{"eps", hyper->eps, 0, INFINITY, 0},
	};

	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
		if (optimizer_range_check(kind, &ranges[i], error, error_size))
			return -EINVAL;
	}
	return 0;
}

int optimizer_hyper_check(enum optimizer_kind kind, const struct optimizer_hyper *hyper, char *error, size_t error_size)
{
	struct optimizer_range lr = {"lr", hyper->lr, 0, INFINITY, 0};
	struct optimizer_range weight_decay = {"weight_decay", hyper->weight_decay, 0, INFINITY, 0};

	if (!optimizer_kind_valid(kind)) {
		snprintf(error, error_size, "optimizer number %u is unknown", (unsigned)kind);
		return -EINVAL;
	}
	if (kind == OPTIMIZER_NONE)
		return 0;
	if (optimizer_range_check(kind, &lr, error, error_size) ||
		optimizer_range_check(kind, &weight_decay, error, error_size))
		return -EINVAL;
	if (kind == OPTIMIZER_MOMENTUM || kind == OPTIMIZER_NESTEROV)
		return optimizer_momentum_check(kind, hyper, error, error_size);
	if (kind == OPTIMIZER_ADAGRAD)
		return optimizer_adagrad_check(hyper, error, error_size);
	if (kind == OPTIMIZER_ADAM || kind == OPTIMIZER_ADAMW)
		return optimizer_adam_check(kind, hyper, error, error_size);
	return 0;
}

unsigned optimizer_state_count(enum optimizer_kind kind)
{
	switch (kind) {
	case OPTIMIZER_NONE:
	case OPTIMIZER_SGD:
		return 0;
	case OPTIMIZER_MOMENTUM:
	case OPTIMIZER_NESTEROV:
	case OPTIMIZER_ADAGRAD:
		return 1;
	case OPTIMIZER_ADAM:
	case OPTIMIZER_ADAMW:
		return 2;
	}
	return 0;
}

void optimizer_state_init(
	enum optimizer_kind kind, const struct optimizer_hyper *hyper, unsigned index, float *state, size_t count)
{
	float value = kind == OPTIMIZER_ADAGRAD ? (float)hyper->initial_accumulator_value : 0.0f;

	assert(index < optimizer_state_count(kind));
	for (size_t i = 0; i < count; i++)
		state[i] = value;
}

static void optimizer_prepare_adam(const struct optimizer_hyper *hyper, uint64_t step, struct optimizer_coef *coef)
{
	double correction1 = 1 - pow(hyper->beta1, (double)step);
	double correction2 = 1 - pow(hyper->beta2, (double)step);

	coef->rate = (float)-(hyper->lr / correction1);
	coef->decay0 = (float)hyper->beta1;
	coef->gain0 = (float)(1 - hyper->beta1);
	coef->decay1 = (float)hyper->beta2;
	coef->gain1 = (float)(1 - hyper->beta2);
	coef->correct1 = (float)(1 / sqrt(correction2));
	coef->eps = (float)hyper->eps;
}

void optimizer_prepare(
	enum optimizer_kind kind, const struct optimizer_hyper *hyper, uint64_t step, struct optimizer_coef *coef)
{
	assert(kind != OPTIMIZER_NONE && step >= 1);
	*coef = (struct optimizer_coef){
		.kind = kind,
		.first = step == 1,
		.rate = (float)-hyper->lr,
		.weight_decay = (float)hyper->weight_decay,
		.shrink = 1.0f,
	};
	switch (kind) {
	case OPTIMIZER_NONE:
	case OPTIMIZER_SGD:
		break;
	case OPTIMIZER_MOMENTUM:
	case OPTIMIZER_NESTEROV:
		coef->decay0 = (float)hyper->momentum;
		coef->gain0 = (float)(1 - hyper->dampening);
		break;
	case OPTIMIZER_ADAGRAD:
		coef->rate = (float)-(hyper->lr / (1 + (double)(step - 1) * hyper->lr_decay));
		coef->eps = (float)hyper->eps;
		break;
	case OPTIMIZER_ADAMW:
		coef->weight_decay = 0.0f;
		coef->shrink = (float)(1 - hyper->lr * hyper->weight_decay);
		optimizer_prepare_adam(hyper, step, coef);
		break;
	case OPTIMIZER_ADAM:
		optimizer_prepare_adam(hyper, step, coef);
		break;
	}
}
