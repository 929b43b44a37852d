/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loops of one line each; what is the same for all elements is rounded to fp32 once before them.
 */
#include "client/scout/outer.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>

struct outer_config outer_defaults(enum outer_kind kind)
{
	struct outer_config config = {.kind = kind, .rate = 1, .beta1 = 0.9, .beta2 = 0.99, .tau = 1e-3};

	if (kind == OUTER_NESTEROV)
		config.rate = 0.7;
	if (kind == OUTER_ADAGRAD || kind == OUTER_ADAM || kind == OUTER_YOGI)
		config.rate = 0.1;
	if (kind == OUTER_ADAGRAD)
		config.beta1 = 0;
	return config;
}

static bool outer_fraction(double x)
{
	return x >= 0 && x < 1;
}

static bool outer_positive(double x)
{
	return x > 0 && isfinite(x);
}

int outer_check(const struct outer_config *config)
{
	if ((unsigned)config->kind >= OUTER_COUNT)
		return -EINVAL;
	if (config->kind == OUTER_AVERAGE || config->kind == OUTER_BOX)
		return 0;
	if (!outer_positive(config->rate) || !outer_fraction(config->beta1))
		return -EINVAL;
	if (outer_state_count(config->kind) == 2 && (!outer_fraction(config->beta2) || !outer_positive(config->tau)))
		return -EINVAL;
	return 0;
}

unsigned outer_state_count(enum outer_kind kind)
{
	switch (kind) {
	case OUTER_MOMENTUM:
	case OUTER_NESTEROV:
		return 1;
	case OUTER_ADAGRAD:
	case OUTER_ADAM:
	case OUTER_YOGI:
		return 2;
	default:
		return 0;
	}
}

void outer_reset(const struct outer_config *config, float *const *state, size_t count)
{
	unsigned arrays = outer_state_count(config->kind);

	for (unsigned s = 0; s < arrays; s++) {
		float first = s == 1 ? (float)(config->tau * config->tau) : 0;

		for (size_t i = 0; i < count; i++)
			state[s][i] = first;
	}
}

static void outer_second(const struct outer_config *config, float *s1, const float *d, size_t count)
{
	float keep = (float)config->beta2, gain = (float)(1 - config->beta2);

	for (size_t i = 0; i < count; i++) {
		float square = d[i] * d[i];

		if (config->kind == OUTER_ADAGRAD)
			s1[i] += square;
		else if (config->kind == OUTER_ADAM)
			s1[i] = keep * s1[i] + gain * square;
		else if (s1[i] > square)
			s1[i] -= gain * square;
		else if (s1[i] < square)
			s1[i] += gain * square;
	}
}

static void outer_adaptive(
	const struct outer_config *config, float *x, const float *d, float *const *state, size_t count)
{
	float rate = (float)config->rate, tau = (float)config->tau;
	float keep = (float)config->beta1, gain = (float)(1 - config->beta1);
	float *s0 = state[0], *s1 = state[1];

	outer_second(config, s1, d, count);
	for (size_t i = 0; i < count; i++) {
		s0[i] = keep * s0[i] + gain * d[i];
		x[i] += rate * s0[i] / (sqrtf(s1[i]) + tau);
	}
}

static void outer_momentum(
	const struct outer_config *config, float *x, const float *d, float *const *state, size_t count)
{
	float rate = (float)config->rate, beta = (float)config->beta1;
	bool nesterov = config->kind == OUTER_NESTEROV;
	float *s0 = state[0];

	for (size_t i = 0; i < count; i++) {
		s0[i] = beta * s0[i] + d[i];
		x[i] += rate * (nesterov ? d[i] + beta * s0[i] : s0[i]);
	}
}

void outer_step(const struct outer_config *config, float *x, const float *d, float *const *state, size_t count)
{
	switch (outer_state_count(config->kind)) {
	case 0:
		for (size_t i = 0; i < count; i++)
			x[i] += d[i];
		break;
	case 1:
		outer_momentum(config, x, d, state, count);
		break;
	default:
		outer_adaptive(config, x, d, state, count);
	}
}

const char *outer_name(enum outer_kind kind)
{
	static const char *const names[OUTER_COUNT] = {
		"average", "box", "momentum", "nesterov", "adagrad", "adam", "yogi"};

	return (unsigned)kind < OUTER_COUNT ? names[kind] : "invalid";
}
