/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All sites take turns within a step, on one scratch.
 */
#include "tests/bench/skew_train.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "aggregation/sparse.h"
#include "client/scout/mean.h"
#include "client/scout/midway.h"
#include "client/scout/square.h"
#include "tests/bench/skew_random.h"

/* One of the sites. */
struct place {
	struct skew_feed feed;
	struct site site;
	struct midway midway; /* where models travel */
	float *weights, *gradient;
	const float *gradients[SKEW_TENSORS_MAX]; /* of it, by tensor */
	double share;                             /* of an average; 0 for a site without samples */
	uint64_t told, exchanges;                 /* bytes, by the last window; likewise */
	struct skew_score batches;                /* since then */
	double levels[2];                         /* losses of the mean model after the last two windows; NaN: none */
	uint32_t tried;                           /* samples, for the latter */
};

struct train {
	const struct skew_train_config *config;
	const struct skew_data *data;
	struct skew_model model;
	struct skew_scratch *scratch;
	struct place sites[SKEW_SITES_MAX];
	struct scout scout; /* where there is one */
	struct rival rival; /* likewise */
	uint64_t began;     /* the step that the scout's window began after */
	unsigned phase;     /* how many of the phases have begun */
	uint64_t shown;     /* bytes of a site, for trials of the mean model */
	float *mean;        /* of gradients or weights */
	float *sum, *said;  /* of a tensor */
	float *tried;       /* a model */
	uint8_t *coded;     /* likewise, room to code it in */
	float *memory;
	uint32_t *samples;                /* of a batch, or a probe */
	struct skew_score batch;          /* of this step's batches */
	struct skew_score late;           /* of those in the last tenth */
	double said_square, heard_square; /* in this exchange: see scout_hear() */
	uint64_t early;                   /* bytes in the first fifth of the steps */
	const struct skew_set *set;
};

struct skew_train_config skew_train_defaults(void)
{
	return (struct skew_train_config){
		.algorithm = SITE_BSP,
		.theta = 1,
		.outer = {.kind = OUTER_AVERAGE},
		.clip = 1,
		.warmup = 100,
		.probe = 400,
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
	if (c->scout && c->probe == 0)
		return err_set(e, -EINVAL, "a probe of no samples");
	for (unsigned i = 0; c->scout && i < c->scout->theta_count && i < SCOUT_THETAS_MAX; i++)
		if (!site_theta_valid(c->algorithm, c->scout->thetas[i]))
			return err_set(e, -EINVAL, "theta %g is none of %s's", c->scout->thetas[i],
				site_algorithm_name(c->algorithm));
	if (c->rival && (c->scout || c->algorithm != SITE_LOCAL))
		return err_set(e, -EINVAL, "a rival decides when local SGD averages: no other algorithm, and no scout");
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

static bool train_is_plus(const struct train *t)
{
	return t->config->scout && t->config->scout->policy == SCOUT_PLUS;
}

/* Do models travel? */
static bool train_travels(const struct train *t)
{
	return t->config->scout && !train_is_plus(t);
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

/* As a box would: in chunks of 32 KiB, each in the shorter form, with a header. */
static uint64_t train_wire(void *context, const float *values, uint32_t elements)
{
	enum { CHUNK = 8192, HEADER = 40 };
	const struct train *t = context;
	uint64_t bytes = 0;

	for (uint32_t at = 0; at < elements; at += CHUNK) {
		const uint32_t count = elements - at < CHUNK ? elements - at : CHUNK;
		const size_t coded = sparse_encode(t->coded, values + at, DTYPE_F32, count);

		bytes += HEADER + (coded ? coded : count * sizeof(float));
	}
	return bytes;
}

static int train_settle(struct train *t, unsigned k, struct err *e)
{
	const struct skew_train_config *c = t->config;
	struct place *place = &t->sites[k];
	struct site_tensor tensors[SKEW_TENSORS_MAX];
	const struct site_config config = {.algorithm = c->algorithm,
		.tensors = tensors,
		.tensor_count = t->model.tensor_count,
		.theta = c->scout ? scout_theta(&t->scout) : c->theta,
		.share = place->share,
		.sites = c->split.sites,
		.momentum = c->momentum,
		.weight_decay = c->decay,
		.rate_first = c->rate,
		.outer = c->outer,
		.clip = c->clip,
		.warmup = c->warmup,
		.wire = train_wire,
		.wire_context = t};

	for (unsigned i = 0; i < t->model.tensor_count; i++) {
		const struct skew_tensor *tensor = &t->model.tensors[i];

		tensors[i] = (struct site_tensor){place->weights + tensor->offset, tensor->elements, tensor->trained};
		place->gradients[i] = place->gradient + tensor->offset;
	}
	return site_init(&place->site, &config, e);
}

static int train_room(struct train *t, struct err *e)
{
	const unsigned sites = t->config->split.sites;
	const size_t floats = t->model.elements;
	const unsigned batch = t->config->batch, probe = t->config->probe;
	unsigned samples = batch > probe ? batch : probe;

	if (train_is_plus(t) && samples < t->scout.config.plus.tries)
		samples = t->scout.config.plus.tries;

	t->scratch = skew_scratch_create(&t->model, batch);
	t->samples = calloc(samples, sizeof(*t->samples));
	t->memory = calloc(((train_travels(t) ? 3 : 2) * sites + 4) * floats, sizeof(*t->memory));
	t->coded = malloc(floats * sizeof(float));
	if (!t->scratch || !t->samples || !t->memory || !t->coded)
		return err_set(e, -ENOMEM, "no memory for %u sites", sites);
	t->mean = t->memory;
	t->sum = t->memory + floats;
	t->said = t->memory + 2 * floats;
	t->tried = t->memory + 3 * floats;
	for (unsigned k = 0; k < sites; k++) {
		t->sites[k].weights = t->memory + (2 * k + 4) * floats;
		t->sites[k].gradient = t->memory + (2 * k + 5) * floats;
		if (train_travels(t))
			t->sites[k].midway.weights = t->memory + (2 * sites + 4 + k) * floats;
		t->sites[k].levels[0] = t->sites[k].levels[1] = NAN;
		skew_model_seed(&t->model, t->config->split.seed, t->sites[k].weights);
	}
	return 0;
}

/* Of a run without a scout: as one whose theta is fixed. */
static bool train_has_statistics(const struct train *t)
{
	return t->model.trained < t->model.elements;
}

static int train_tell_run(struct train *t, struct err *e)
{
	const struct skew_train_config *c = t->config;
	const struct site *sites[SKEW_SITES_MAX];
	struct scout_config scout;

	scout_defaults(&scout);
	scout.policy = SCOUT_FIXED;
	scout.thetas[0] = c->theta;
	scout.theta_count = 1;
	scout.seed = c->split.seed;
	if (c->scout)
		scout = *c->scout;
	scout.model_bytes = t->model.elements * sizeof(float);
	scout.plus.statistics = train_has_statistics(t);
	for (unsigned k = 0; k < c->split.sites; k++)
		sites[k] = &t->sites[k].site;
	return skew_log_begin(c->log,
		&(struct record_run){.algorithm = c->algorithm, .scout = &scout, .sites = c->split.sites}, &t->model,
		sites, e);
}

static int train_open(struct train *t, struct err *e)
{
	int rc = skew_model_init(&t->model, t->config->norm, t->data->train.side, e);

	if (rc == 0)
		rc = train_deal(t, t->config->split.percent, true, e); /* checks the number of sites too */
	if (rc == 0 && t->config->scout) {
		struct scout_config scout = *t->config->scout;

		scout.model_bytes = t->model.elements * sizeof(float);
		scout.plus.statistics = train_has_statistics(t);
		if (train_is_plus(t))
			rc = plus_needs(&scout.plus, t->config->algorithm, scout.thetas, scout.theta_count);
		if (rc < 0)
			return err_set(
				e, rc, "scout+ has no such grid of %s", site_algorithm_name(t->config->algorithm));
		rc = scout_init(&t->scout, &scout, e);
	}
	if (rc == 0)
		rc = train_room(t, e);
	for (unsigned k = 0; rc == 0 && k < t->config->split.sites; k++)
		rc = train_settle(t, k, e);
	if (rc == 0 && t->config->rival) {
		struct rival_config rival = *t->config->rival;

		rival.elements = t->model.trained;
		rival.seed = t->config->split.seed;
		rc = rival_init(&t->rival, &rival, t->sites[0].weights, e);
	}
	return rc == 0 && t->config->log ? train_tell_run(t, e) : rc;
}

static void train_close(struct train *t)
{
	for (unsigned k = 0; k < SKEW_SITES_MAX; k++) {
		skew_feed_fini(&t->sites[k].feed);
		site_fini(&t->sites[k].site);
	}
	rival_fini(&t->rival);
	if (t->config->log)
		skew_log_fini(t->config->log);
	skew_scratch_destroy(t->scratch);
	free(t->samples);
	free(t->coded);
	free(t->memory);
}

/* ---- a step ---- */

/* t->mean becomes the mean of the sites' weights, by their shares. */
static void train_average(struct train *t)
{
	memset(t->mean, 0, t->model.elements * sizeof(float));
	for (unsigned k = 0; k < t->config->split.sites; k++) {
		const float share = (float)t->sites[k].share;

		for (uint32_t i = 0; share > 0 && i < t->model.elements; i++)
			t->mean[i] += share * t->sites[k].weights[i];
	}
}

static void train_add(struct skew_score *to, const struct skew_score *score)
{
	to->count += score->count;
	to->correct += score->correct;
	to->loss += score->loss;
}

/* A gradient for each site that has samples, and what it makes of that. */
static int train_step(struct train *t, unsigned step, double rate)
{
	int rc = 0;

	t->batch = (struct skew_score){0};
	for (unsigned k = 0; rc == 0 && k < t->config->split.sites; k++) {
		struct place *place = &t->sites[k];
		const bool any = skew_feed_next(&place->feed, t->config->batch, t->samples) > 0;
		struct skew_score score = {0};

		if (midway_due(&place->midway, &place->site, t->began + scout_span(&t->scout)))
			midway_keep(&place->midway, &place->site);
		if (any)
			skew_model_gradient(&t->model, t->scratch, place->weights, &t->data->train, t->samples,
				t->config->batch, place->gradient, &score);
		train_add(&t->batch, &score);
		train_add(&place->batches, &score);
		rc = site_step(&place->site, any ? place->gradients : NULL, rate);
		if (t->config->log)
			skew_log_step(t->config->log, k, &place->site, any ? place->gradients : NULL);
	}
	if (t->config->log)
		skew_log_loss(t->config->log, t->batch.loss, t->batch.count);
	if (step >= t->config->steps - (t->config->steps + 9) / 10)
		train_add(&t->late, &t->batch);
	return rc;
}

/* Is it time to talk? */
static bool train_due(struct train *t, unsigned step, double rate)
{
	struct rival_news news = {.rate = rate, .loss = t->batch.loss / t->batch.count};

	if (!t->config->rival)
		return site_due(&t->sites[0].site);
	for (unsigned k = 0; k < t->config->split.sites; k++) {
		double state[2];

		rival_state(&t->rival, t->sites[k].weights, state);
		news.state[0] += t->sites[k].share * state[0];
		news.state[1] += t->sites[k].share * state[1];
	}
	return rival_step(&t->rival, &news) || step + 1 == t->config->steps;
}

/* The paper's policies decide nothing by it, and a log tells of it. */
static bool train_listens(const struct train *t)
{
	return train_is_plus(t) || (t->config->scout && t->config->log);
}

/* What all say of a tensor is summed, and all hear it. */
static int train_exchange_tensor(struct train *t, unsigned tensor)
{
	const uint32_t elements = t->model.tensors[tensor].elements;
	const bool listens = train_listens(t) && t->model.tensors[tensor].trained;
	int rc = 0;

	memset(t->sum, 0, elements * sizeof(float));
	for (unsigned k = 0; rc == 0 && k < t->config->split.sites; k++) {
		rc = site_offer(&t->sites[k].site, tensor, t->said);
		for (uint32_t i = 0; rc == 0 && i < elements; i++)
			t->sum[i] += t->said[i];
		if (t->config->log)
			skew_log_said(t->config->log, tensor, t->said, elements, t->sites[k].share);
		if (listens && t->sites[k].share > 0)
			t->said_square += square_of(t->said, elements) / t->sites[k].share;
	}
	if (t->config->log)
		skew_log_heard(t->config->log, tensor, t->sum, elements);
	if (listens)
		t->heard_square += square_of(t->sum, elements);
	for (unsigned k = 0; rc == 0 && k < t->config->split.sites; k++)
		rc = site_accept(&t->sites[k].site, tensor, t->sum);
	return rc;
}

static int train_exchange(struct train *t, double rate)
{
	double squares = 0;
	int rc = 0;

	t->said_square = t->heard_square = 0;
	for (unsigned i = 0; rc == 0 && i < t->model.tensor_count; i++)
		if (site_exchanges(&t->sites[0].site, i))
			rc = train_exchange_tensor(t, i);
	if (rc == 0 && t->config->rival)
		rival_averaged(&t->rival, t->sites[0].weights);
	for (unsigned k = 0; k < t->config->split.sites; k++)
		squares += t->sites[k].share * t->sites[k].share;
	if (train_listens(t))
		scout_hear(&t->scout, t->said_square, t->heard_square, squares, rate);
	return rc;
}

/* ---- windows of the controller ---- */

/* How a model does on `count` samples of the site at `host`, the same for one `draw`. */
static struct skew_score train_try(struct train *t, const float *model, unsigned host, unsigned count, uint64_t draw)
{
	const struct skew_feed *feed = &t->sites[host].feed;
	struct skew_score score = {0};
	struct skew_random r;

	skew_random_init(&r, t->config->split.seed, SKEW_PROBE, draw * SKEW_SITES_MAX + host);
	for (unsigned i = 0; i < count; i++)
		t->samples[i] = feed->order[skew_random_below(&r, feed->count)];
	skew_model_evaluate(&t->model, t->scratch, model, &t->data->train, t->samples, count, &score);
	return score;
}

/* That one site has sent in exchanges so far, the mean. */
static double train_sent(const struct train *t)
{
	uint64_t bytes = 0;

	for (unsigned k = 0; k < t->config->split.sites; k++)
		bytes += t->sites[k].site.counts.bytes_paper;
	return (double)bytes / t->config->split.sites;
}

/* Likewise, of what travels to be tried. */
static uint64_t train_travelled(const struct train *t)
{
	return t->scout.bytes_travel / t->config->split.sites + t->shown;
}

static void train_tell_window(struct train *t, unsigned step, double theta, const struct scout_decision *decision)
{
	struct skew_log_window window = {.step = step + 1, .theta = theta, .decision = decision};
	struct skew_score score = {0};

	train_average(t);
	skew_model_evaluate(&t->model, t->scratch, t->mean, t->set, NULL, t->set->count, &score);
	window.samples = (uint64_t)decision->believed * t->config->probe;
	window.bytes = train_sent(t);
	window.bytes_cost = decision->bytes * t->scout.config.period;
	window.bytes_travel = (double)train_travelled(t);
	window.accuracy = (double)score.correct / score.count;
	window.loss = score.loss / score.count;
	skew_log_window(t->config->log, &window);
}

/* The paper's: the model travels. */
static void train_report(struct train *t, unsigned k, struct scout_report *report)
{
	const unsigned sites = t->config->split.sites, host = sites > 1 ? scout_host(&t->scout, k, sites) : k;
	const float *model = midway_tensor(&t->sites[k].midway, &t->sites[k].site, 0); /* the others follow it */
	const unsigned probe = t->config->probe;

	assert(t->sites[k].midway.kept); /* theta changes with a window alone, and nobody comes */
	t->sites[k].midway.kept = false;
	if (t->sites[k].feed.count == 0 || t->sites[host].feed.count == 0)
		return;
	report->home = (double)train_try(t, model, k, probe, t->scout.window).correct / probe;
	report->away = (double)train_try(t, model, host, probe, t->scout.window).correct / probe;
	report->samples = probe;
}

/* That of scout+: what the window before did to the mean model. */
static void train_report_plus(struct place *place, struct scout_report *report)
{
	report->tried = isnan(place->levels[1]) ? 0 : place->tried;
	report->before = place->levels[0];
	report->after = place->levels[1];
	place->levels[0] = place->levels[1];
	place->levels[1] = NAN;
}

/* Parts of the mean of what is not exchanged, to t->mean. Returns the shares of who shows it. */
static double train_show(struct train *t, unsigned tensor)
{
	const struct skew_tensor *of = &t->model.tensors[tensor];
	double shares = 0;

	memset(t->mean + of->offset, 0, of->elements * sizeof(float));
	for (unsigned k = 0; k < t->config->split.sites; k++) {
		shares += mean_show(&t->sites[k].site, tensor, t->said);
		for (uint32_t i = 0; i < of->elements; i++)
			t->mean[of->offset + i] += t->said[i];
	}
	return shares;
}

/* The mean model, as a site has it, to t->tried. */
static void train_take_mean(struct train *t, unsigned k, const double *shares)
{
	for (unsigned i = 0; i < t->model.tensor_count; i++) {
		const struct skew_tensor *of = &t->model.tensors[i];
		float *room = t->tried + of->offset;
		const float *at = mean_tensor(&t->sites[k].site, i, t->mean + of->offset, shares[i], room);

		if (at != room)
			memcpy(room, at, of->elements * sizeof(float));
	}
}

/* How it does at home, where there has just been an exchange. */
static void train_level(struct train *t)
{
	const uint32_t tries = t->scout.tries;
	double shares[SKEW_TENSORS_MAX] = {0};

	for (unsigned i = 0; i < t->model.tensor_count; i++)
		if (!site_exchanges(&t->sites[0].site, i))
			shares[i] = train_show(t, i);
	t->shown += mean_bytes(&t->sites[0].site);
	for (unsigned k = 0; k < t->config->split.sites; k++) {
		if (t->sites[k].feed.count == 0)
			continue;
		train_take_mean(t, k, shares);
		t->sites[k].levels[1] = train_try(t, t->tried, k, tries, 0).loss / tries;
		t->sites[k].tried = tries;
	}
}

/* After a window, or where sites have to show each other something, in the exchange after that. */
static bool train_levels(const struct train *t, bool shows)
{
	return train_is_plus(t) && t->scout.tries > 0 && (mean_bytes(&t->sites[0].site) > 0) == shows;
}

/* What a site says of the window, which took so many steps: of one that was longer than a period, or shorter, for one.
 */
static void train_say(struct train *t, unsigned k, uint64_t steps, struct scout_report *report)
{
	struct place *place = &t->sites[k];
	const uint64_t bytes = place->site.counts.bytes_paper - place->told, period = t->scout.config.period;
	const uint64_t exchanges = place->site.counts.exchanges - place->exchanges;

	*report = (struct scout_report){
		.bytes = steps == period ? bytes : (uint64_t)((double)bytes * (double)period / (double)steps),
		.exchanges = (double)exchanges * (double)period / (double)steps,
		.trained = place->batches.count,
		.train = place->batches.loss / place->batches.count};
	place->told += bytes;
	place->exchanges += exchanges;
	place->batches = (struct skew_score){0};
	if (train_is_plus(t))
		train_report_plus(place, report);
	else
		train_report(t, k, report);
}

/* `due`: an exchange has just been. */
static int train_window(struct train *t, unsigned step, bool due)
{
	const uint64_t steps = step + 1 - t->began;
	const double theta = scout_theta(&t->scout);
	struct scout_report reports[SKEW_SITES_MAX] = {0};
	const unsigned sites = t->config->split.sites;
	struct scout_decision decision;
	int rc;

	if (steps < scout_span(&t->scout) || !due)
		return 0;
	t->began = step + 1;
	for (unsigned k = 0; k < sites; k++)
		train_say(t, k, steps, &reports[k]);
	rc = scout_observe(&t->scout, reports, sites, &decision);
	for (unsigned k = 0; rc == 0 && k < sites; k++)
		rc = site_set_theta(&t->sites[k].site, decision.theta);
	if (rc == 0 && train_levels(t, false))
		train_level(t);
	if (rc == 0 && t->config->tell)
		t->config->tell(t->config->context, step + 1, theta, &decision);
	if (rc == 0 && t->config->log)
		train_tell_window(t, step, theta, &decision);
	return rc;
}

/* And for a rival's rule. */
static uint64_t train_bytes(const struct train *t)
{
	return (uint64_t)train_sent(t) + t->rival.bytes;
}

static int train_talk(struct train *t, unsigned step, double rate)
{
	const bool due = train_due(t, step, rate);
	const bool shows = due && t->scout.now.exchanges == 0 && train_levels(t, true);
	int rc = 0;

	if (due)
		rc = train_exchange(t, rate);
	if (rc == 0 && shows)
		train_level(t);
	if (rc == 0 && t->config->scout)
		rc = train_window(t, step, due);
	if (step + 1 == t->config->steps / 5)
		t->early = train_bytes(t);
	return rc;
}

static int train_steps(struct train *t, struct err *e)
{
	const struct skew_train_config *c = t->config;

	for (unsigned step = 0; step < c->steps; step++) {
		const double rate = step < c->late * c->steps ? c->rate : c->rate / 10;
		int rc = train_drift(t, step, e);

		if (rc < 0)
			return rc;
		rc = train_step(t, step, rate);
		if (rc == 0)
			rc = train_talk(t, step, rate);
		if (rc < 0)
			return err_set(e, rc, "step %u of a site: %s", step, strerror(-rc));
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

static void train_count(const struct train *t, struct skew_result *result)
{
	const unsigned sites = t->config->split.sites;

	*result = (struct skew_result){.training_loss = t->late.loss / t->late.count,
		.exchanges = t->sites[0].site.counts.exchanges,
		.theta = t->config->rival ? t->rival.config.theta : t->sites[0].site.config.theta,
		.bytes_travel = train_travelled(t)};
	for (unsigned k = 0; k < sites; k++)
		result->bytes_wire += t->sites[k].site.counts.bytes_wire;
	result->bytes = train_bytes(t);
	result->bytes_early = t->early;
	result->bytes_wire = result->bytes_wire / sites + t->rival.bytes;
}

int skew_train(const struct skew_train_config *config, const struct skew_data *data, const struct skew_set *set,
	struct skew_result *result, struct err *e)
{
	struct train t = {.config = config, .data = data, .set = set};
	int rc = train_check(config, e);

	if (rc < 0)
		return rc;
	rc = train_open(&t, e);
	if (rc == 0)
		rc = train_steps(&t, e);
	if (rc == 0) {
		train_count(&t, result);
		train_average(&t);
		skew_model_evaluate(&t.model, t.scratch, t.mean, set, NULL, set->count, &result->score);
		result->hash = train_hash(&t);
	}
	train_close(&t);
	return rc;
}
