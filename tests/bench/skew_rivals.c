/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules, and what they need to remember between two averages.
 */
#include "tests/bench/skew_rivals.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/skew_random.h"

#define PERIOD_MAX 1000000000u /* longer than any run */

/* ---- the rules ---- */

double rival_variance(const double state[2])
{
	return state[0] - state[1] * state[1];
}

uint64_t rival_qsr(double alpha, double rate, uint32_t base)
{
	const double steps = floor(alpha / rate * (alpha / rate));

	if (!(steps < PERIOD_MAX)) /* a rate of 0, too */
		return PERIOD_MAX;
	return steps > base ? (uint64_t)steps : base;
}

uint64_t rival_adacomm(double loss_first, double loss, double tau_first, uint64_t tau)
{
	const double wanted = ceil(sqrt(loss / loss_first) * tau_first);

	if (wanted >= 1 && wanted < (double)tau)
		return (uint64_t)wanted;
	return (tau + 1) / 2;
}

const char *rival_name(enum rival_kind kind)
{
	static const char *const names[] = {"fda", "qsr", "adacomm"};

	return names[kind];
}

/* ---- begin and end ---- */

static int rival_check(const struct rival_config *c, struct err *e)
{
	if (!(c->theta > 0 && c->theta <= PERIOD_MAX))
		return err_set(e, -EINVAL, "%s with a theta of %g: it is to be above 0", rival_name(c->kind), c->theta);
	if (c->kind == RIVAL_ADACOMM && c->theta != floor(c->theta))
		return err_set(e, -EINVAL, "adacomm with a theta of %g: it is to be a whole number", c->theta);
	if ((c->kind == RIVAL_FDA && c->elements == 0) || (c->kind == RIVAL_QSR && c->base == 0) ||
		(c->kind == RIVAL_ADACOMM && c->every == 0))
		return err_set(e, -EINVAL, "%s with elements, base or every of 0", rival_name(c->kind));
	return 0;
}

/* Scales it to norm 1; one that is all zeros, or not finite, stays. */
static void rival_direct(struct rival *rival)
{
	double square = 0;

	for (uint32_t i = 0; i < rival->config.elements; i++)
		square += rival->direction[i] * rival->direction[i];
	for (uint32_t i = 0; square > 0 && i < rival->config.elements; i++)
		rival->direction[i] /= sqrt(square);
}

static int rival_init_fda(struct rival *rival, const float *common, struct err *e)
{
	const uint32_t elements = rival->config.elements;
	struct skew_random r;

	rival->common = malloc(elements * sizeof(*rival->common));
	rival->direction = malloc(elements * sizeof(*rival->direction));
	if (!rival->common || !rival->direction) {
		rival_fini(rival);
		return err_set(e, -ENOMEM, "fda: no memory for %u weights", elements);
	}
	memcpy(rival->common, common, elements * sizeof(*common));
	skew_random_init(&r, rival->config.seed, SKEW_PROBE, UINT32_MAX); /* no window comes that far */
	for (uint32_t i = 0; i < elements; i++)
		rival->direction[i] = skew_random_normal(&r);
	rival_direct(rival);
	return 0;
}

int rival_init(struct rival *rival, const struct rival_config *config, const float *common, struct err *e)
{
	const int rc = rival_check(config, e);

	if (rc < 0)
		return rc;
	*rival = (struct rival){.config = *config};
	if (config->kind == RIVAL_ADACOMM)
		rival->period = (uint64_t)config->theta;
	return config->kind == RIVAL_FDA ? rival_init_fda(rival, common, e) : 0;
}

void rival_fini(struct rival *rival)
{
	free(rival->common);
	free(rival->direction);
	*rival = (struct rival){0};
}

/* ---- a step ---- */

void rival_state(const struct rival *rival, const float *weights, double state[2])
{
	state[0] = state[1] = 0;
	for (uint32_t i = 0; rival->config.kind == RIVAL_FDA && i < rival->config.elements; i++) {
		const double moved = (double)weights[i] - rival->common[i];

		state[0] += moved * moved;
		state[1] += moved * rival->direction[i];
	}
}

static void rival_adapt(struct rival *rival, double loss)
{
	if (rival->loss_first == 0)
		rival->loss_first = loss;
	else
		rival->period = rival_adacomm(rival->loss_first, loss, rival->config.theta, rival->period);
	rival->asks = false;
	rival->taken = 0;
	rival->bytes += sizeof(float);
}

bool rival_step(struct rival *rival, const struct rival_news *news)
{
	rival->since++;
	switch (rival->config.kind) {
	case RIVAL_FDA:
		rival->bytes += 2 * sizeof(float);
		return rival_variance(news->state) > rival->config.theta;
	case RIVAL_QSR:
		if (rival->since == 1)
			rival->period = rival_qsr(rival->config.theta, news->rate, rival->config.base);
		break;
	case RIVAL_ADACOMM:
		if (rival->asks || rival->loss_first == 0)
			rival_adapt(rival, news->loss);
		rival->taken++;
		break;
	}
	return rival->since >= rival->period;
}

void rival_averaged(struct rival *rival, const float *common)
{
	const uint32_t elements = rival->config.elements;

	rival->since = 0;
	rival->asks = rival->config.kind == RIVAL_ADACOMM && rival->taken >= rival->config.every;
	if (rival->config.kind != RIVAL_FDA || memcmp(rival->common, common, elements * sizeof(*common)) == 0)
		return;
	for (uint32_t i = 0; i < elements; i++)
		rival->direction[i] = (double)common[i] - rival->common[i];
	rival_direct(rival);
	memcpy(rival->common, common, elements * sizeof(*common));
}
