/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All sites take turns within a step, on one scratch.
 */
#include "tests/bench/skew_train.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct site {
	struct skew_feed feed;
	float *weights, *velocity, *gradient;
	double share; /* of an average; 0 for a site without samples */
};

struct train {
	const struct skew_train_config *config;
	const struct skew_data *data;
	struct skew_model model;
	struct skew_scratch *scratch;
	struct site sites[SKEW_SITES_MAX];
	unsigned phase; /* how many of the phases have begun */
	float *mean;    /* of gradients or weights */
	float *memory;
	uint32_t *samples;      /* of a batch */
	struct skew_score late; /* of batches in the last tenth */
	uint64_t bytes;
};

struct skew_train_config skew_train_defaults(void)
{
	return (struct skew_train_config){
		.period = 20,
		.steps = 1500,
		.batch = 20,
		.rate = 0.05,
		.momentum = 0.9,
		.decay = 5e-4,
		.late = 0.75,
		.split = {.sites = 5},
	};
}

static int train_check(const struct skew_train_config *c, struct err *e)
{
	const double numbers[] = {c->rate, c->momentum, c->decay, c->late};

	if (c->steps == 0 || c->batch == 0 || c->batch > SKEW_BATCH_MAX)
		return err_set(e, -EINVAL, "%u steps of batch %u: use at least one step, and 1 to %d samples", c->steps,
			c->batch, SKEW_BATCH_MAX);
	if (c->algorithm == SKEW_FEDAVG && c->period == 0)
		return err_set(e, -EINVAL, "a period of 0 steps: use at least 1");
	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (!(numbers[i] >= 0 && isfinite(numbers[i])))
			return err_set(
				e, -EINVAL, "rate, momentum, decay and late must be 0 or more, not %g", numbers[i]);
	if (c->phase_count > 0 && c->split.kind != SKEW_BY_LABEL)
		return err_set(e, -EINVAL, "phases are of skew by label, not by Dirichlet");
	if (c->phase_count > SKEW_PHASES_MAX)
		return err_set(e, -EINVAL, "%u phases: at most %d", c->phase_count, SKEW_PHASES_MAX);
	for (unsigned i = 1; i < c->phase_count; i++)
		if (c->phases[i].step <= c->phases[i - 1].step)
			return err_set(e, -EINVAL, "phase %u begins at step %u, not after the one before", i,
				c->phases[i].step);
	return 0;
}

/* ---- who holds what ---- */

static int train_share(struct train *t, const struct skew_partition *partition, struct err *e)
{
	const unsigned sites = t->config->split.sites;
	uint64_t with_any = 0, samples = 0;

	for (unsigned k = 0; k < sites; k++) {
		const uint32_t count = skew_partition_count(partition, k);

		with_any += count > 0;
		samples += count;
	}
	if (samples == 0)
		return err_set(e, -EINVAL, "no site has samples");
	for (unsigned k = 0; k < sites; k++) {
		const uint32_t count = skew_partition_count(partition, k);

		t->sites[k].share =
			t->config->weighted ? (double)count / (double)samples : (count > 0) / (double)with_any;
	}
	return 0;
}

/* Deals the samples out, at the start (`first`) or when a phase begins. */
static int train_deal(struct train *t, double percent, bool first, struct err *e)
{
	struct skew_partition_config split = t->config->split;
	struct skew_partition partition;
	int rc;

	split.percent = percent;
	rc = skew_partition_init(&partition, &split, t->data->train.labels, t->data->train.count, e);
	if (rc < 0)
		return rc;
	rc = train_share(t, &partition, e);
	for (unsigned k = 0; rc == 0 && k < split.sites; k++) {
		struct skew_feed *feed = &t->sites[k].feed;

		rc = first ? skew_feed_init(feed, &partition, k, split.seed) : skew_feed_move(feed, &partition, k);
		if (rc < 0)
			err_set(e, rc, "no memory for the samples of site %u", k);
	}
	skew_partition_fini(&partition);
	return rc;
}

static int train_drift(struct train *t, unsigned step, struct err *e)
{
	if (t->phase == t->config->phase_count || t->config->phases[t->phase].step != step)
		return 0;
	return train_deal(t, t->config->phases[t->phase++].percent, false, e);
}

/* ---- begin and end ---- */

static int train_open(struct train *t, struct err *e)
{
	const unsigned sites = t->config->split.sites;
	size_t floats;
	int rc = skew_model_init(&t->model, t->config->norm, t->data->train.side, e);

	if (rc < 0)
		return rc;
	rc = train_deal(t, t->config->split.percent, true, e); /* checks the number of sites too */
	if (rc < 0)
		return rc;
	floats = t->model.elements;
	t->scratch = skew_scratch_create(&t->model, t->config->batch);
	t->samples = calloc(t->config->batch, sizeof(*t->samples));
	t->memory = calloc((3 * sites + 1) * floats, sizeof(*t->memory));
	if (!t->scratch || !t->samples || !t->memory)
		return err_set(e, -ENOMEM, "no memory for %u sites", sites);
	t->mean = t->memory;
	for (unsigned k = 0; k < sites; k++) {
		t->sites[k].weights = t->memory + (3 * k + 1) * floats;
		t->sites[k].velocity = t->memory + (3 * k + 2) * floats;
		t->sites[k].gradient = t->memory + (3 * k + 3) * floats;
		skew_model_seed(&t->model, t->config->split.seed, t->sites[k].weights);
	}
	return 0;
}

static void train_close(struct train *t)
{
	for (unsigned k = 0; k < SKEW_SITES_MAX; k++)
		skew_feed_fini(&t->sites[k].feed);
	skew_scratch_destroy(t->scratch);
	free(t->samples);
	free(t->memory);
}

/* ---- a step ---- */

/* t->mean becomes the mean over sites, by their shares, of the first `count` of their weights or gradients. */
static void train_average(struct train *t, bool of_weights, uint32_t count)
{
	memset(t->mean, 0, count * sizeof(float));
	for (unsigned k = 0; k < t->config->split.sites; k++) {
		const float *values = of_weights ? t->sites[k].weights : t->sites[k].gradient;
		const float share = (float)t->sites[k].share;

		for (uint32_t i = 0; share > 0 && i < count; i++)
			t->mean[i] += share * values[i];
	}
}

/* velocity = momentum * velocity + gradient + decay * weights; weights -= rate * velocity */
static void train_descend(const struct train *t, const float *gradient, double rate, float *velocity, float *weights)
{
	const float momentum = (float)t->config->momentum, decay = (float)t->config->decay, by = (float)rate;

	for (uint32_t i = 0; i < t->model.trained; i++) {
		velocity[i] = momentum * velocity[i] + (gradient[i] + decay * weights[i]);
		weights[i] -= by * velocity[i];
	}
}

/* A gradient for each site that has samples. */
static void train_gradients(struct train *t, unsigned step)
{
	struct skew_score unused = {0};
	const bool late = step >= t->config->steps - (t->config->steps + 9) / 10;

	for (unsigned k = 0; k < t->config->split.sites; k++) {
		struct site *site = &t->sites[k];

		if (skew_feed_next(&site->feed, t->config->batch, t->samples) > 0)
			skew_model_gradient(&t->model, t->scratch, site->weights, &t->data->train, t->samples,
				t->config->batch, site->gradient, late ? &t->late : &unused);
	}
}

static void train_step_bsp(struct train *t, double rate)
{
	const uint32_t trained = t->model.trained;

	train_average(t, false, trained);
	train_descend(t, t->mean, rate, t->sites[0].velocity, t->sites[0].weights);
	for (unsigned k = 1; k < t->config->split.sites; k++)
		memcpy(t->sites[k].weights, t->sites[0].weights, trained * sizeof(float));
	t->bytes += trained * sizeof(float);
}

static void train_step_fedavg(struct train *t, double rate, unsigned step)
{
	for (unsigned k = 0; k < t->config->split.sites; k++)
		if (t->sites[k].feed.count > 0)
			train_descend(t, t->sites[k].gradient, rate, t->sites[k].velocity, t->sites[k].weights);
	if ((step + 1) % t->config->period)
		return;
	train_average(t, true, t->model.elements);
	for (unsigned k = 0; k < t->config->split.sites; k++)
		memcpy(t->sites[k].weights, t->mean, t->model.elements * sizeof(float));
	t->bytes += t->model.elements * sizeof(float);
}

static int train_steps(struct train *t, struct err *e)
{
	const struct skew_train_config *c = t->config;

	for (unsigned step = 0; step < c->steps; step++) {
		const double rate = step < c->late * c->steps ? c->rate : c->rate / 10;
		int rc = train_drift(t, step, e);

		if (rc < 0)
			return rc;
		train_gradients(t, step);
		if (c->algorithm == SKEW_BSP)
			train_step_bsp(t, rate);
		else
			train_step_fedavg(t, rate, step);
	}
	return 0;
}

static uint64_t train_hash(const struct train *t)
{
	const unsigned char *bytes = (const unsigned char *)t->mean;
	uint64_t hash = 0xcbf29ce484222325u;

	for (size_t i = 0; i < t->model.elements * sizeof(float); i++)
		hash = (hash ^ bytes[i]) * 0x100000001b3u;
	return hash;
}

int skew_train(const struct skew_train_config *config, const struct skew_data *data, const struct skew_set *set,
	struct skew_result *result, struct err *e)
{
	struct train t = {.config = config, .data = data};
	int rc = train_check(config, e);

	if (rc < 0)
		return rc;
	rc = train_open(&t, e);
	if (rc == 0)
		rc = train_steps(&t, e);
	if (rc == 0) {
		*result = (struct skew_result){.bytes = t.bytes, .training_loss = t.late.loss / t.late.count};
		train_average(&t, true, t.model.elements);
		skew_model_evaluate(&t.model, t.scratch, t.mean, set, NULL, set->count, &result->score);
		result->hash = train_hash(&t);
	}
	train_close(&t);
	return rc;
}
