/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A site at a job, or with `loop` all sites of one in this process, whose sum is a loop: the two must agree bit for
 * bit. Data are targets that differ from site to site. Lines of JSON as things happen; the last one is the result.
 *
 * Usage: skewed URL|loop NAME=VALUE...
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/phub.h"
#include "client/scout/mean.h"
#include "client/scout/options.h"
#include "client/scout/scout.h"
#include "client/scout/site.h"
#include "client/scout/square.h"
#include "phub/base/mix.h"
#include "tests/system/words.h"

enum { TENSORS = 3, ELEMENTS = 1300, SITES_MAX = 8, BATCH = 500 };

static const uint32_t sizes[TENSORS] = {1000, 290, 10}; /* the last one is not trained */

struct skewed {
	struct phub_options job;
	struct phub_site_options options;
	struct phub_scout_options scout;
	struct phub_hyper hyper;
	double thetas[8];
	unsigned steps, rank, world;
	uint64_t samples[SITES_MAX];
	unsigned die_at, die_try, pause_ms, lazy_ms, theta_at, score_at;
	double theta_then;
	unsigned lies;  /* bits of ranks whose evaluate() counts more right than there are */
	unsigned fails; /* bits of ranks whose evaluate() has none */
	unsigned blind; /* likewise, takes what is no number for right, and tells no loss */
	/* The step in which ranks of these bits get a weight that is no number; and once more, 0: not. */
	unsigned nan_at, nans, nan_again;
	/* Its model does well with its own site's statistics alone, as one with batch normalization does. */
	unsigned norm;
	bool flush, verbose;
	unsigned finish; /* ms after the last step; 0: not */
	unsigned save_at;
	const char *save, *load; /* files: the weights, then the site's state */
};

/* Of one site. */
struct place {
	const struct skewed *run;
	unsigned rank;
	float weights[ELEMENTS], gradient[ELEMENTS];
	float middle[ELEMENTS]; /* loop: weights in the middle of an interval, which are tried */
	const float *gradients[TENSORS];
	struct site_tensor tensors[TENSORS];
	struct site site;
	uint64_t told, began;
	double loss;               /* of the last mini-batch */
	double batches, levels[2]; /* for scout+, as phub_site has them */
	uint64_t trained;
	uint64_t travelled; /* loop: bytes that were shown to be tried */
};

/* -1 .. 1 */
static float noise(uint64_t a, uint64_t b, uint64_t c)
{
	return (float)((double)(mix_64(a ^ mix_64(b ^ mix_64(c))) >> 40) * 0x1p-23 - 1);
}

static float pull = 1; /* how far targets differ */

static float target(unsigned rank, uint32_t i)
{
	return 3 * noise(7, 0, i) + 2 * pull * noise(8, rank, i);
}

static void place_init(struct place *p, const struct skewed *run, unsigned rank, unsigned first)
{
	float *at = p->weights;

	*p = (struct place){.run = run, .rank = rank};
	for (uint32_t i = 0; i < ELEMENTS; i++)
		p->weights[i] = noise(9, first, i);
	for (unsigned t = 0; t < TENSORS; t++) {
		p->tensors[t] = (struct site_tensor){at, sizes[t], t + 1 < TENSORS};
		p->gradients[t] = t + 1 < TENSORS ? p->gradient + (at - p->weights) : NULL;
		at += sizes[t];
	}
}

static void place_learn(struct place *p, uint64_t step)
{
	if ((step == p->run->nan_at || (p->run->nan_again && step == p->run->nan_again)) && p->run->nans >> p->rank & 1)
		p->weights[0] = NAN;
	for (uint32_t i = 0; i < ELEMENTS - sizes[TENSORS - 1]; i++)
		p->gradient[i] = p->weights[i] - target(p->rank, i) + noise(step, p->rank, i);
	p->loss = 0;
	for (uint32_t i = 0; i < sizes[0]; i++)
		p->loss += fabs((double)p->gradient[i]) * BATCH / sizes[0];
	for (uint32_t i = ELEMENTS - sizes[TENSORS - 1]; i < ELEMENTS; i++) /* the model's own */
		p->weights[i] = 0.9f * p->weights[i] +
				0.1f * (p->weights[i - 100] + (p->run->norm ? noise(10, p->rank, i) : 0));
}

/* By other statistics than its site's. */
static double place_strange(const struct place *p, const float *statistics)
{
	const uint32_t at = ELEMENTS - sizes[TENSORS - 1];
	double far = 0;

	for (uint32_t i = 0; i < sizes[TENSORS - 1]; i++)
		far += fabs((double)statistics[i] - p->weights[at + i]);
	return p->run->norm * far / sizes[TENSORS - 1];
}

static unsigned tries; /* calls of the next until this process dies */

static int place_evaluate(void *context, const float *const *weights, uint64_t draw, struct phub_score *score)
{
	const struct place *p = context;

	if (p->run->die_try > 0 && --tries == 0)
		raise(SIGKILL);
	if (p->run->fails >> p->rank & 1)
		return -1;
	for (unsigned i = 0; i < 200; i++) {
		uint32_t at = (uint32_t)(mix_64(draw + i) % sizes[0]);
		float wrong = fabsf(weights[0][at] - target(p->rank, at));

		score->correct += p->run->blind >> p->rank & 1 ? !(wrong >= 1) : wrong < 1;
		score->loss += p->run->blind >> p->rank & 1 ? 0 : wrong;
	}
	score->loss += 200 * place_strange(p, weights[TENSORS - 1]);
	score->samples = 200;
	score->correct += p->run->lies >> p->rank & 1 ? 201 : 0;
	return 0;
}

static uint64_t place_hash(const struct place *p, unsigned tensors)
{
	uint64_t hash = 0xcbf29ce484222325ull;
	size_t bytes = 0;

	for (unsigned t = 0; t < tensors; t++)
		bytes += sizes[t] * sizeof(float);
	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ ((const unsigned char *)p->weights)[i]) * 0x100000001b3ull;
	return hash;
}

/* Distance from what all sites' targets have in the middle. */
static double place_error(const struct place *p)
{
	double sum = 0;

	for (uint32_t i = 0; i < sizes[0]; i++)
		sum += fabs((double)p->weights[i] - 3 * (double)noise(7, 0, i));
	return sum / sizes[0];
}

static double rate_at(uint64_t step)
{
	return step < 60 ? 0.05 : 0.01;
}

/* ---- all in one process ---- */

struct loop {
	const struct skewed *run;
	struct place places[SITES_MAX];
	struct scout scout;
	bool scouted;
	unsigned since; /* steps since the last exchange */
};

static bool loop_is_plus(const struct loop *l)
{
	return l->scouted && l->scout.config.policy == SCOUT_PLUS;
}

static uint64_t loop_draw(const struct loop *l, unsigned host)
{
	return mix_64(l->scout.config.seed ^ mix_64(l->scout.window ^ mix_64(host)));
}

static double loop_try(struct loop *l, unsigned site, unsigned host, uint64_t *samples)
{
	struct phub_score score = {0};
	const float *weights[TENSORS];
	int rc = -1;

	for (unsigned t = 0; t < TENSORS; t++)
		weights[t] = l->places[site].middle + (l->places[site].tensors[t].weights - l->places[site].weights);
	if (l->run->samples[host] > 0)
		rc = place_evaluate(&l->places[host], weights, loop_draw(l, host), &score);
	*samples = rc == 0 ? score.samples : 0;
	return rc == 0 ? (double)score.correct / (double)score.samples : NAN;
}

static void loop_report(struct place *p, struct scout_report *report)
{
	report->trained = p->trained;
	report->train = p->batches / (double)p->trained;
	report->tried = isnan(p->levels[1]) ? 0 : 200;
	report->before = p->levels[0];
	report->after = p->levels[1];
	p->trained = 0;
	p->batches = 0;
	p->levels[0] = p->levels[1];
	p->levels[1] = NAN;
}

/* What all show of the last tensor. Returns their shares, as floats add up. */
static float loop_show(struct loop *l, float *sum)
{
	float shown[ELEMENTS] = {0}, shares = 0;

	for (unsigned k = 0; k < l->run->world; k++) {
		const double share = mean_show(&l->places[k].site, TENSORS - 1, k ? shown : sum);

		shares += (float)share;
		l->places[k].travelled += share > 0 ? mean_bytes(&l->places[k].site) : 0;
		for (uint32_t i = 0; k > 0 && i < sizes[TENSORS - 1]; i++)
			sum[i] += shown[i];
	}
	return shares;
}

/* How the mean model does at home, after a window, or the exchange that sites have shown something in. */
static void loop_level(struct loop *l)
{
	const bool shows = !site_exchanges(&l->places[0].site, TENSORS - 1);
	float sum[ELEMENTS], room[TENSORS][ELEMENTS], shares = 0;

	if (l->scout.tries == 0)
		return;
	if (shows)
		shares = loop_show(l, sum);
	for (unsigned k = 0; k < l->run->world; k++) {
		struct place *p = &l->places[k];
		const uint64_t draw = mix_64(l->scout.config.seed ^ mix_64(0 ^ mix_64(p->rank)));
		struct phub_score score = {0};
		const float *weights[TENSORS];

		for (unsigned t = 0; t < TENSORS; t++)
			weights[t] = mean_tensor(&p->site, t, sum, (double)shares, room[t]);
		if (l->run->samples[k] > 0 && place_evaluate(p, weights, draw, &score) == 0)
			p->levels[1] = score.loss / (double)score.samples;
	}
}

/* Is it so that sites show each other the last tensor in the next exchange? */
static bool loop_shows(const struct loop *l)
{
	return loop_is_plus(l) && l->scout.now.exchanges == 0 && !site_exchanges(&l->places[0].site, TENSORS - 1);
}

/* Models travel among sites with data. */
static unsigned loop_host(const struct loop *l, unsigned site)
{
	unsigned ring[SITES_MAX] = {0}, count = 0, turn = 0;

	for (unsigned k = 0; k < l->run->world; k++) {
		turn = k == site ? count : turn;
		if (l->run->samples[k] > 0)
			ring[count++] = k;
	}
	return ring[count > 1 ? scout_host(&l->scout, turn, count) : turn];
}

static void loop_window(struct loop *l, struct scout_report *reports)
{
	for (unsigned k = 0; k < l->run->world; k++) {
		struct place *p = &l->places[k];
		uint64_t unused;

		reports[k] = (struct scout_report){.unfit = SCOUT_IDLE};
		if (l->run->samples[k] > 0)
			reports[k] = (struct scout_report){.host = loop_host(l, k) + 1};
		if (loop_is_plus(l)) {
			loop_report(p, &reports[k]);
			continue;
		}
		reports[k].home = loop_try(l, k, k, &unused);
		if (l->run->samples[k] > 0)
			reports[k].away = loop_try(l, k, loop_host(l, k), &reports[k].samples);
	}
}

static void loop_share(struct loop *l)
{
	uint64_t total = 0;
	unsigned any = 0;

	for (unsigned k = 0; k < l->run->world; k++) {
		total += l->run->samples[k];
		any += l->run->samples[k] > 0;
	}
	for (unsigned k = 0; k < l->run->world; k++)
		site_set_share(&l->places[k].site,
			l->run->options.weighted ? (double)l->run->samples[k] / (double)total
						 : (l->run->samples[k] > 0) / (double)any,
			l->run->world);
}

/* Of the sums, in the order in which a site adds them up: by tensors, then by ranks. */
static void loop_hear(struct loop *l, const double *said, double heard, double rate)
{
	double all = 0, squares = 0;

	for (unsigned k = 0; k < l->run->world; k++) {
		const double share = l->places[k].site.config.share;

		all += said[k];
		squares += share * share;
	}
	scout_hear(&l->scout, all, heard, squares, rate);
}

/* Before the model has seen the next mini-batch. */
static void loop_keep(const struct loop *l, struct place *p)
{
	const bool local = l->run->options.algorithm == PHUB_SITE_LOCAL;

	if (l->since == (local ? (unsigned)p->site.config.theta : 1) / 2)
		memcpy(p->middle, p->weights, sizeof(p->middle));
}

/* Sums by the order of ranks. */
static void loop_exchange(struct loop *l, double rate)
{
	static float sum[ELEMENTS], said[ELEMENTS];
	double squares[SITES_MAX] = {0}, heard = 0;

	for (unsigned t = 0; t < TENSORS; t++) {
		const bool trained = l->places[0].tensors[t].trained;

		if (!site_exchanges(&l->places[0].site, t))
			continue;
		for (unsigned k = 0; k < l->run->world; k++) {
			const double share = l->places[k].site.config.share;

			site_offer(&l->places[k].site, t, k ? said : sum);
			squares[k] += trained && share > 0 ? square_of(k ? said : sum, sizes[t]) / share : 0;
			for (uint32_t i = 0; k > 0 && i < sizes[t]; i++)
				sum[i] += said[i];
		}
		heard += trained ? square_of(sum, sizes[t]) : 0;
		for (unsigned k = 0; k < l->run->world; k++)
			site_accept(&l->places[k].site, t, sum);
	}
	if (loop_is_plus(l))
		loop_hear(l, squares, heard, rate);
}

static void loop_decide(struct loop *l, struct scout_report *reports)
{
	struct scout_decision decision;

	for (unsigned k = 0; k < l->run->world; k++) {
		struct place *p = &l->places[k];
		uint64_t steps = p->site.counts.steps - p->began, bytes = p->site.counts.bytes_paper - p->told;

		reports[k].bytes = steps == l->scout.config.period
					   ? bytes
					   : (uint64_t)((double)bytes * l->scout.config.period / (double)steps);
		p->told = p->site.counts.bytes_paper;
		p->began = p->site.counts.steps;
	}
	scout_observe(&l->scout, reports, l->run->world, &decision);
	for (unsigned k = 0; k < l->run->world; k++)
		site_set_theta(&l->places[k].site, decision.theta);
	if (loop_is_plus(l) && site_exchanges(&l->places[0].site, TENSORS - 1))
		loop_level(l);
}

static int loop_run(const struct skewed *run)
{
	static struct loop l;
	struct err e;
	int rc = 0;

	l.run = run;
	if (run->options.scout) {
		const enum site_algorithm algorithm = (enum site_algorithm)run->options.algorithm;
		struct scout_config config;

		l.scouted = true;
		options_scout(run->options.scout, &algorithm, &config, &e);
		config.model_bytes = ELEMENTS * sizeof(float);
		rc = scout_init(&l.scout, &config, &e);
	}
	for (unsigned k = 0; k < run->world && rc == 0; k++) {
		struct site_config config;

		place_init(&l.places[k], run, k, 0);
		l.places[k].levels[0] = l.places[k].levels[1] = NAN;
		options_site_config(&run->options, &config);
		config.tensors = l.places[k].tensors;
		config.tensor_count = TENSORS;
		config.theta = l.scouted ? scout_theta(&l.scout) : config.theta;
		rc = site_init(&l.places[k].site, &config, &e);
	}
	if (rc < 0)
		return fprintf(stderr, "%s\n", e.text), 2;
	loop_share(&l);
	for (unsigned step = 0; step < run->steps; step++) {
		struct scout_report reports[SITES_MAX];
		bool window, shows;

		for (unsigned k = 0; k < run->world; k++) {
			if (step == run->theta_at && run->theta_at)
				site_set_theta(&l.places[k].site, run->theta_then);
			loop_keep(&l, &l.places[k]);
			place_learn(&l.places[k], step);
			l.places[k].batches += l.places[k].loss;
			l.places[k].trained += BATCH;
			site_step(&l.places[k].site, run->samples[k] ? l.places[k].gradients : NULL, rate_at(step));
		}
		l.since++;
		if (!site_due(&l.places[0].site))
			continue;
		l.since = 0;
		window = l.scouted && step + 1 - l.places[0].began >= l.scout.config.period;
		if (window)
			loop_window(&l, reports);
		shows = loop_shows(&l);
		loop_exchange(&l, rate_at(step));
		if (shows)
			loop_level(&l);
		if (window)
			loop_decide(&l, reports);
	}
	for (unsigned k = 0; k < run->world; k++)
		printf("{\"event\":\"end\",\"rank\":%u,\"hash\":\"%016" PRIx64 "\",\"theta\":%g,\"bytes\":%" PRIu64
		       ",\"shown\":%" PRIu64 ",\"windows\":%" PRIu64 "}\n",
			k, place_hash(&l.places[k], TENSORS), l.places[k].site.config.theta,
			l.places[k].site.counts.bytes_paper, l.places[k].travelled, l.scout.window);
	return 0;
}

/* ---- one at a box ---- */

static void told(const struct place *p, phub_site_t *site, const char *event, int rc)
{
	struct phub_site_state s = {.size = sizeof(s)};
	struct phub_scout_decision d = {.size = sizeof(d)};
	char error[512], distance[32] = "null", there[64] = "";
	uint32_t ranks[SITES_MAX];
	const int sites = phub_site_ranks(site, ranks, SITES_MAX);

	if (isfinite(place_error(p)))
		snprintf(distance, sizeof(distance), "%g", place_error(p));
	snprintf(error, sizeof(error), "%s", rc < 0 ? phub_error() : "");
	for (char *c = error; *c; c++)
		*c = *c == '"' ? '\'' : *c;
	for (int i = 0; i < sites; i++)
		snprintf(there + strlen(there), sizeof(there) - strlen(there), "%s%" PRIu32, i ? "," : "", ranks[i]);
	phub_site_state(site, &s);
	if (phub_site_decision(site, &d) < 0)
		d.action = 0;
	printf("{\"event\":\"%s\",\"rank\":%u,\"rc\":%d,\"error\":\"%s\",\"steps\":%" PRIu64 ",\"exchanges\":%" PRIu64
	       ",\"theta\":%g,\"share\":%.17g,\"sites\":%u,\"bytes\":%" PRIu64 ",\"bytes_travel\":%" PRIu64
	       ",\"bytes_wire\":%" PRIu64 ",\"windows\":%" PRIu64 ",\"action\":%d,\"believed\":%u,\"reason\":\"%s\""
	       ",\"hash\":\"%016" PRIx64 "\",\"trained\":\"%016" PRIx64
	       "\",\"distance\":%s,\"log_error\":%d,\"broken_since\":%" PRIu64 ",\"ranks\":[%s]}\n",
		event, p->rank, rc, error, s.steps, s.exchanges, s.theta, s.share, s.sites, s.bytes, s.bytes_travel,
		s.bytes_wire, s.windows, (int)d.action, d.believed, d.reason, place_hash(p, TENSORS),
		place_hash(p, TENSORS - 1), distance, s.log_error, s.broken_since, there);
	fflush(stdout);
}

static void warned(const struct place *p, phub_site_t *site)
{
	for (const char *text = phub_site_warning(site); text; text = phub_site_warning(site)) {
		printf("{\"event\":\"warning\",\"rank\":%u,\"text\":\"%s\"}\n", p->rank, text);
		fflush(stdout);
	}
}

/* Waits as long as it takes, in turns; a box that was lost is waited for. */
static int patiently(const struct place *p, phub_site_t *site, int rc)
{
	for (unsigned turn = 0; (rc == -ETIMEDOUT || rc == -ESTALE) && turn < 600; turn++) {
		bool stale = rc == -ESTALE;

		if (stale)
			told(p, site, "stale", rc);
		rc = stale ? phub_site_resume(site, 100) : phub_site_wait(site, 100);
	}
	return rc;
}

/* Weights, then the state, to a file that is whole or not there. */
static int site_save(const struct place *p, phub_site_t *site)
{
	const int64_t bytes = phub_site_save(site, NULL, 0);
	uint8_t *state = bytes > 0 ? malloc((size_t)bytes) : NULL;
	char path[512];
	FILE *file;
	int rc = -1;

	snprintf(path, sizeof(path), "%s.new", p->run->save);
	file = fopen(path, "wbe");
	if (file && state && phub_site_save(site, state, (size_t)bytes) == bytes &&
		phub_site_save(site, state, (size_t)bytes - 1) == -ENOSPC &&
		fwrite(p->weights, sizeof(p->weights), 1, file) == 1 && fwrite(state, (size_t)bytes, 1, file) == 1 &&
		fclose(file) == 0)
		rc = rename(path, p->run->save);
	free(state);
	told(p, site, "saved", rc);
	return rc;
}

static int site_load(struct place *p, phub_site_t *site)
{
	static uint8_t state[1 << 20];
	FILE *file = fopen(p->run->load, "rbe");
	size_t bytes = 0;

	if (file && fread(p->weights, sizeof(p->weights), 1, file) == 1)
		bytes = fread(state, 1, sizeof(state), file);
	if (file)
		fclose(file);
	return phub_site_load(site, state, bytes);
}

static int site_train(struct place *p, phub_site_t *site)
{
	const struct skewed *run = p->run;
	struct phub_site_state state = {.size = sizeof(state)};
	uint64_t exchanges = 0;
	int rc = 0;

	for (;;) {
		phub_site_state(site, &state);
		if (run->verbose && state.exchanges != exchanges)
			told(p, site, "exchange", 0);
		exchanges = state.exchanges;
		if (state.steps == run->save_at && run->save_at && site_save(p, site) < 0)
			return -EIO;
		if (state.steps >= run->steps) {
			if (run->save_at == run->steps) /* until it is told to */
				getchar();
			return 0;
		}
		if (state.steps == run->die_at && run->die_at)
			raise(SIGKILL);
		if (state.steps == run->theta_at && run->theta_at)
			rc = phub_site_set_theta(site, run->theta_then);
		if (state.steps == run->score_at && run->score_at)
			rc = phub_site_score(site, &(struct phub_score){400, 300, 80});
		if (run->flush && state.steps + 1 == run->steps)
			rc = phub_site_flush(site);
		/* Where one is awaited there is time for it to come, however slow this machine is. */
		words_nap(state.sites > 0 && state.sites < run->world ? 20 * run->pause_ms : run->pause_ms);
		place_learn(p, state.steps);
		if (rc == 0)
			rc = phub_site_loss(site, p->loss, BATCH);
		if (rc == 0)
			rc = phub_site_step(site, run->samples[p->rank] ? p->gradients : NULL, rate_at(state.steps),
				run->lazy_ms ? (int)run->lazy_ms : PHUB_TIMEOUT_DEFAULT);
		rc = patiently(p, site, rc);
		warned(p, site);
		if (rc < 0)
			return rc;
	}
}

static int site_start(struct place *p, phub_site_t *site)
{
	static const char *const names[TENSORS] = {"weight", "bias", "statistics"};
	unsigned count = p->run->options.outer == PHUB_OUTER_BOX ? TENSORS - 1 : TENSORS;
	int rc = 0;

	for (unsigned t = 0; t < count && rc >= 0; t++)
		rc = phub_site_tensor(
			site, names[t], p->tensors[t].weights, p->tensors[t].elements, p->tensors[t].trained);
	if (rc >= 0 && p->run->load)
		rc = site_load(p, site);
	if (rc >= 0)
		rc = phub_site_start(site, 100);
	for (unsigned turn = 0; rc == -ETIMEDOUT && turn < 600; turn++)
		rc = phub_site_start(site, 100);
	return rc;
}

static int site_run(const struct skewed *run, const char *url)
{
	static struct place p;
	struct phub_site_options options = run->options;
	phub_site_t *site = NULL;
	phub_t *phub;
	int rc;

	place_init(&p, run, run->rank, run->rank);
	tries = run->die_try;
	rc = phub_connect(url, &run->job, &phub);
	if (rc < 0)
		return fprintf(stderr, "%s\n", phub_error()), 1;
	options.samples = run->samples[run->rank];
	options.evaluate = place_evaluate;
	options.context = &p;
	rc = phub_site_open(phub, &options, &site);
	if (rc == 0)
		rc = site_start(&p, site);
	if (rc < 0)
		return fprintf(stderr, "%s\n", phub_error()), 1;
	told(&p, site, "start", 0);
	warned(&p, site);
	rc = site_train(&p, site);
	if (rc == 0 && run->finish) {
		told(&p, site, "finishes", 0);
		words_nap(run->finish);
		rc = patiently(
			&p, site, phub_site_finish(site, run->lazy_ms ? (int)run->lazy_ms : PHUB_TIMEOUT_DEFAULT));
	}
	if (rc == 0 && run->score_at)
		rc = phub_site_score(site, &(struct phub_score){400, 360, NAN});
	told(&p, site, "end", rc);
	if (rc == 0 && run->save_at == run->steps)
		phub_leave_unfinished(phub, PHUB_TIMEOUT_DEFAULT);
	else if (rc == 0)
		phub_leave(phub, PHUB_TIMEOUT_DEFAULT);
	phub_site_close(site);
	phub_close(phub);
	return rc < 0;
}

/* ---- arguments ---- */

static void take_samples(struct skewed *run, const char *value)
{
	double list[SITES_MAX];
	const unsigned count = words_numbers(value, list, SITES_MAX);

	for (unsigned i = 0; i < SITES_MAX; i++)
		run->samples[i] = count ? (uint64_t)list[i % count] : 1;
}

static bool take_job(struct skewed *run, const char *name, const char *value)
{
	static const char *const lost[] = {"fail", "shrink", "wait"}, *const nans[] = {"pass", "zero", "fail"};
	unsigned number = (unsigned)strtoul(value, NULL, 0);

	if (strcmp(name, "rank") == 0)
		run->job.rank = (int)(run->rank = number);
	else if (strcmp(name, "world") == 0)
		run->job.world = (int)(run->world = number);
	else if (strcmp(name, "lost") == 0)
		run->job.lost = (enum phub_lost)WORDS_PICK(value, lost);
	else if (strcmp(name, "nan") == 0)
		run->job.nan = (enum phub_nan)WORDS_PICK(value, nans);
	else if (strcmp(name, "log") == 0)
		run->options.log = value;
	else if (strcmp(name, "transport") == 0)
		run->job.transport = value;
	else if (strcmp(name, "reproducible") == 0)
		run->job.reproducible = number != 0;
	else if (strcmp(name, "resume_ms") == 0)
		run->job.resume_ms = number;
	else
		return false;
	return true;
}

static bool take_site(struct skewed *run, const char *name, const char *value)
{
	static const char *const policies[] = {"fixed", "replay", "hill", "stochastic", "annealing", "scout+"};
	struct phub_site_options *o = &run->options;
	double number = strtod(value, NULL);

	if (strcmp(name, "algorithm") == 0)
		o->algorithm = (enum phub_site_algorithm)WORDS_PICK(value, words_algorithms);
	else if (strcmp(name, "theta") == 0)
		o->theta = number;
	else if (strcmp(name, "outer") == 0)
		o->outer = (enum phub_site_outer)WORDS_PICK(value, words_outers);
	else if (strcmp(name, "clip") == 0)
		o->clip = number;
	else if (strcmp(name, "warmup") == 0)
		o->warmup = (uint32_t)number;
	else if (strcmp(name, "weighted") == 0)
		o->weighted = number != 0;
	else if (strcmp(name, "samples") == 0)
		take_samples(run, value);
	else if (strcmp(name, "policy") == 0)
		run->scout.policy = (enum phub_scout_policy)WORDS_PICK(value, policies);
	else if (strcmp(name, "thetas") == 0)
		run->scout.theta_count = words_numbers(value, run->thetas, 8);
	else if (strcmp(name, "first") == 0)
		run->scout.first = (unsigned)number;
	else if (strcmp(name, "period") == 0)
		run->scout.period = (uint32_t)number;
	else
		return false;
	return true;
}

static bool take_run(struct skewed *run, const char *name, const char *value)
{
	const struct {
		const char *name;
		unsigned *to;
	} fields[] = {{"steps", &run->steps}, {"die_at", &run->die_at}, {"die_try", &run->die_try},
		{"pause_ms", &run->pause_ms}, {"lazy_ms", &run->lazy_ms}, {"theta_at", &run->theta_at},
		{"score_at", &run->score_at}, {"lies", &run->lies}, {"fails", &run->fails}, {"blind", &run->blind},
		{"nan_at", &run->nan_at}, {"nans", &run->nans}, {"nan_again", &run->nan_again}, {"norm", &run->norm},
		{"finish", &run->finish}, {"save_at", &run->save_at}};

	for (unsigned i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		if (strcmp(fields[i].name, name) == 0) {
			*fields[i].to = (unsigned)strtoul(value, NULL, 0);
			return true;
		}
	}
	if (strcmp(name, "pull") == 0)
		pull = strtof(value, NULL);
	else if (strcmp(name, "theta_then") == 0)
		run->theta_then = strtod(value, NULL);
	else if (strcmp(name, "flush") == 0)
		run->flush = *value != '0';
	else if (strcmp(name, "verbose") == 0)
		run->verbose = *value != '0';
	else if (strcmp(name, "save") == 0)
		run->save = value;
	else if (strcmp(name, "load") == 0)
		run->load = *value ? value : NULL;
	else
		return false;
	return true;
}

int main(int argc, char **argv)
{
	static struct skewed run = {.steps = 100, .world = 1};

	phub_options_init(&run.job);
	phub_site_options_init(&run.options);
	phub_scout_options_init(&run.scout);
	run.job.reproducible = true;
	run.options.weight_decay = 0.01;
	run.options.rate_first = 0.05;
	run.scout.thetas = run.thetas;
	run.scout.seed = 5;
	take_samples(&run, "");
	for (int i = 2; i < argc; i++) {
		char *value = strchr(argv[i], '=');

		if (value)
			*value++ = 0;
		if (!value || !(take_job(&run, argv[i], value) || take_site(&run, argv[i], value) ||
				      take_run(&run, argv[i], value)))
			return fprintf(stderr, "skewed: what is %s?\n", argv[i]), 2;
	}
	if (argc < 2 || run.world < 1 || run.world > SITES_MAX || run.rank >= run.world)
		return fprintf(stderr, "usage: skewed URL|loop NAME=VALUE...\n"), 2;
	if (run.scout.theta_count > 0)
		run.options.scout = &run.scout;
	if (run.options.outer == PHUB_OUTER_BOX) {
		phub_hyper_init(PHUB_NESTEROV, &run.hyper);
		run.hyper.lr = 0.7;
		run.job.optimizer = PHUB_NESTEROV;
		run.job.reduce = PHUB_MEAN;
		run.job.groups = &run.hyper;
		run.job.group_count = 1;
	}
	return strcmp(argv[1], "loop") == 0 ? loop_run(&run) : site_run(&run, argv[1]);
}
