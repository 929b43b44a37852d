/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker with a site in a site: tight in its rack, loose across racks. Gradients are whole numbers of rank, step and
 * place, so that all sums are exact; `plain` computes by loops over doubles what all weights are in the end, of local
 * SGD at both, and knows nothing of sites. Lines of JSON; the last one is the result.
 *
 * Usage: racked RACK_URL|plain ACROSS_URL NAME=VALUE...
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/phub.h"
#include "tests/system/words.h"

enum { TENSORS = 3, ELEMENTS = 50000, WORKERS_MAX = 8 };

static const uint32_t sizes[TENSORS] = {49000, 900, 100}; /* the last one is not trained */

struct racked {
	struct phub_options rack_job, job;
	struct phub_site_options within, around;
	struct phub_scout_options scout;
	double thetas[8];
	unsigned steps, workers; /* in a rack; all racks have as many */
	unsigned hold, finish, lazy_ms, no_thread, theta_at, die_at, pause_ms;
	double theta_then, rack_then;
};

static float weights[ELEMENTS], gradient[ELEMENTS];

/* -4 .. 4 */
static float whole(unsigned rank, uint64_t step, uint32_t i)
{
	uint64_t x = step * 1000003 + rank * 7919 + i;

	x *= 0x9e3779b97f4a7c15ull;
	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9ull;
	return (float)((x >> 33) % 9) - 4;
}

static uint64_t hash_of(const float *values, size_t count)
{
	uint64_t hash = 0xcbf29ce484222325ull;

	for (size_t i = 0; i < count; i++) {
		float value = values[i] == 0 ? 0 : values[i]; /* -0 is 0 */
		uint32_t bits;

		memcpy(&bits, &value, sizeof(bits));
		hash = (hash ^ bits) * 0x100000001b3ull;
	}
	return hash;
}

/* ---- plainly ---- */

struct plain {
	double w[WORKERS_MAX], common[WORKERS_MAX]; /* of a worker; of a rack */
};

static void plain_in_racks(struct plain *p, unsigned racks, unsigned workers)
{
	for (unsigned rack = 0; rack < racks; rack++) {
		double sum = 0;

		for (unsigned k = 0; k < workers; k++)
			sum += p->w[rack * workers + k];
		p->common[rack] = sum / workers;
		for (unsigned k = 0; k < workers; k++)
			p->w[rack * workers + k] = p->common[rack];
	}
}

static void plain_across(struct plain *p, unsigned racks, unsigned workers)
{
	double mean = 0;

	for (unsigned rack = 0; rack < racks; rack++)
		mean += p->common[rack] / racks;
	for (unsigned rack = 0; rack < racks; rack++) {
		for (unsigned k = 0; k < workers; k++)
			p->w[rack * workers + k] += mean - p->common[rack];
		p->common[rack] = mean;
	}
}

/* Element by element, as they have nothing to do with each other. */
static int plain_run(const struct racked *run)
{
	static float out[WORKERS_MAX][ELEMENTS];
	unsigned world = (unsigned)run->job.world, racks = world / run->workers;

	for (uint32_t i = 0; i < ELEMENTS; i++) {
		struct plain p;
		double theta = run->around.theta, rack_theta = run->within.theta;
		unsigned since = 0, since_rack = 0;

		for (unsigned k = 0; k < WORKERS_MAX; k++)
			p.w[k] = p.common[k] = whole(0, 999, i);
		for (unsigned step = 0; step < run->steps; step++) {
			theta = run->theta_at && step == run->theta_at ? run->theta_then : theta;
			rack_theta = run->theta_at && step == run->theta_at ? run->rack_then : rack_theta;
			for (unsigned k = 0; k < world && i < ELEMENTS - sizes[TENSORS - 1]; k++)
				p.w[k] -= whole(k, step, i);
			if (++since_rack >= rack_theta) {
				plain_in_racks(&p, racks, run->workers);
				since_rack = 0;
			}
			if (++since >= theta) {
				plain_across(&p, racks, run->workers);
				since = 0;
			}
		}
		if (run->finish) {
			plain_in_racks(&p, racks, run->workers);
			plain_across(&p, racks, run->workers);
		}
		for (unsigned k = 0; k < world; k++)
			out[k][i] = (float)p.w[k];
	}
	for (unsigned k = 0; k < world; k++)
		printf("{\"event\":\"end\",\"rank\":%u,\"hash\":\"%016" PRIx64 "\"}\n", k, hash_of(out[k], ELEMENTS));
	return 0;
}

/* ---- at boxes ---- */

static void told(const struct racked *run, phub_site_t *within, phub_site_t *around, const char *event, int rc)
{
	struct phub_site_state rack = {.size = sizeof(rack)}, s = rack;
	struct phub_scout_decision d = {.size = sizeof(d)};
	char error[512];

	snprintf(error, sizeof(error), "%s", rc < 0 ? phub_error() : "");
	for (char *c = error; *c; c++)
		*c = *c == '"' ? '\'' : *c;
	phub_site_state(within, &rack);
	phub_site_state(around, &s);
	if (phub_site_decision(around, &d) < 0)
		d.cost = NAN;
	printf("{\"event\":\"%s\",\"rank\":%d,\"rc\":%d,\"error\":\"%s\",\"steps\":%" PRIu64 ",\"exchanges\":%" PRIu64
	       ",\"theta\":%g,\"sites\":%u,\"bytes\":%" PRIu64 ",\"bytes_within\":%" PRIu64 ",\"windows\":%" PRIu64
	       ",\"rack_steps\":%" PRIu64 ",\"rack_exchanges\":%" PRIu64 ",\"rack_bytes\":%" PRIu64
	       ",\"rack_sites\":%u,\"hash\":\"%016" PRIx64 "\"}\n",
		event, run->job.rank, rc, error, s.steps, s.exchanges, s.theta, s.sites, s.bytes, s.bytes_within,
		s.windows, rack.steps, rack.exchanges, rack.bytes, rack.sites, hash_of(weights, ELEMENTS));
	fflush(stdout);
}

/* A box that was lost is waited for. */
static int patiently(const struct racked *run, phub_site_t *within, phub_site_t *around, int rc)
{
	for (unsigned turn = 0; (rc == -ETIMEDOUT || rc == -ESTALE) && turn < 6000; turn++) {
		const bool stale = rc == -ESTALE;

		if (stale || turn % 500 == 499)
			told(run, within, around, stale ? "stale" : "waits", rc);
		rc = stale ? phub_site_resume(around, 10) : phub_site_wait(around, 10);
	}
	return rc;
}

static int train(const struct racked *run, phub_site_t *within, phub_site_t *around)
{
	const float *gradients[TENSORS] = {gradient, gradient + sizes[0], NULL};
	uint64_t exchanges = 0;
	int rc = 0;

	for (unsigned step = 0; step < run->steps && rc == 0; step++) {
		struct phub_site_state s = {.size = sizeof(s)};

		if (run->die_at && step == run->die_at)
			abort();
		if (run->theta_at && step == run->theta_at) {
			rc = phub_site_set_theta(around, run->theta_then);
			if (rc == 0)
				rc = phub_site_set_theta(within, run->rack_then);
		}
		for (uint32_t i = 0; i < ELEMENTS - sizes[TENSORS - 1]; i++)
			gradient[i] = whole((unsigned)run->job.rank, step, i);
		if (rc == 0)
			rc = phub_site_step(
				around, gradients, 1, run->lazy_ms ? (int)run->lazy_ms : PHUB_TIMEOUT_DEFAULT);
		rc = patiently(run, within, around, rc);
		words_nap(run->pause_ms);
		phub_site_state(around, &s);
		if (s.exchanges != exchanges)
			told(run, within, around, "exchange", 0);
		exchanges = s.exchanges;
	}
	return rc;
}

static int evaluate(void *context, const float *const *model, uint64_t draw, struct phub_score *score)
{
	score->samples = 100;
	score->correct = isfinite(model[0][0]) ? 90 : 0;
	return 0;
}

static int start(phub_t *rack, phub_t *across, struct racked *run, phub_site_t **within, phub_site_t **around)
{
	static const char *const names[TENSORS] = {"weight", "bias", "statistics"};
	uint32_t at = 0;
	int rc = phub_site_open(rack, &run->within, within);

	for (unsigned t = 0; t < TENSORS && rc >= 0; at += sizes[t++])
		rc = phub_site_tensor(*within, names[t], weights + at, sizes[t], t + 1 < TENSORS);
	if (rc >= 0)
		rc = phub_site_start(*within, PHUB_TIMEOUT_DEFAULT);
	run->around.within = *within;
	if (rc == 0)
		rc = phub_site_open(across, &run->around, around);
	return rc == 0 ? phub_site_start(*around, PHUB_TIMEOUT_DEFAULT) : rc;
}

static int run_at(struct racked *run, const char *rack_url, const char *url)
{
	phub_site_t *within = NULL, *around = NULL;
	phub_t *rack, *across;
	int rc;

	for (uint32_t i = 0; i < ELEMENTS; i++) /* rank 0's are those that count */
		weights[i] = whole((unsigned)run->job.rank, 999, i);
	rc = phub_connect(rack_url, &run->rack_job, &rack);
	if (rc == 0)
		rc = phub_connect(url, &run->job, &across);
	if (rc == 0)
		rc = start(rack, across, run, &within, &around);
	if (rc < 0)
		return fprintf(stderr, "%s\n", phub_error()), 1;
	told(run, within, around, "start", 0);
	rc = train(run, within, around);
	if (rc == 0 && run->finish)
		rc = patiently(run, within, around,
			phub_site_finish(around, run->lazy_ms ? (int)run->lazy_ms : PHUB_TIMEOUT_DEFAULT));
	told(run, within, around, run->hold ? "trained" : "end", rc);
	if (run->hold)
		words_nap(60000);
	if (rc == 0) {
		phub_leave(across, PHUB_TIMEOUT_DEFAULT);
		phub_leave(rack, PHUB_TIMEOUT_DEFAULT);
	}
	phub_site_close(around);
	phub_site_close(within);
	phub_close(across);
	phub_close(rack);
	return rc < 0;
}

/* ---- arguments ---- */

static bool take_number(struct racked *run, const char *name, const char *value)
{
	const struct {
		const char *name;
		unsigned *to;
	} fields[] = {{"steps", &run->steps}, {"workers", &run->workers}, {"hold", &run->hold},
		{"finish", &run->finish}, {"lazy_ms", &run->lazy_ms}, {"no_thread", &run->no_thread},
		{"theta_at", &run->theta_at}, {"die_at", &run->die_at}, {"period", &run->scout.period},
		{"pause_ms", &run->pause_ms}, {"resume_ms", &run->job.resume_ms},
		{"rack_resume_ms", &run->rack_job.resume_ms}};

	for (unsigned i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		if (strcmp(fields[i].name, name) == 0) {
			*fields[i].to = (unsigned)strtoul(value, NULL, 0);
			return true;
		}
	}
	return false;
}

static bool take(struct racked *run, const char *name, const char *value)
{
	double number = strtod(value, NULL);

	if (strcmp(name, "rank") == 0)
		run->job.rank = (int)number;
	else if (strcmp(name, "world") == 0)
		run->job.world = (int)number;
	else if (strcmp(name, "lost") == 0)
		run->job.lost = *value == 's' ? PHUB_LOST_SHRINK : PHUB_LOST_FAIL;
	else if (strcmp(name, "transport") == 0)
		run->job.transport = run->rack_job.transport = value;
	else if (strcmp(name, "theta") == 0)
		run->around.theta = number;
	else if (strcmp(name, "outer") == 0)
		run->around.outer = (enum phub_site_outer)WORDS_PICK(value, words_outers);
	else if (strcmp(name, "log") == 0)
		run->around.log = value;
	else if (strcmp(name, "link") == 0) /* both have this one; "": none */
		run->around.link = run->within.link = *value ? value : NULL;
	else if (strcmp(name, "rack_algorithm") == 0)
		run->within.algorithm = (enum phub_site_algorithm)WORDS_PICK(value, words_algorithms);
	else if (strcmp(name, "rack_theta") == 0)
		run->within.theta = number;
	else if (strcmp(name, "theta_then") == 0)
		run->theta_then = number;
	else if (strcmp(name, "rack_then") == 0)
		run->rack_then = number;
	else if (strcmp(name, "thetas") == 0)
		run->scout.theta_count = words_numbers(value, run->thetas, 8);
	else
		return take_number(run, name, value);
	return true;
}

int main(int argc, char **argv)
{
	static struct racked run = {.steps = 40, .workers = 2};

	phub_options_init(&run.job);
	phub_options_init(&run.rack_job);
	phub_site_options_init(&run.around);
	phub_site_options_init(&run.within);
	phub_scout_options_init(&run.scout);
	run.rack_job.here = true;
	run.around.momentum = run.within.momentum = 0;
	run.within.link = "rack";
	run.around.link = "across";
	run.around.evaluate = evaluate;
	run.scout.thetas = run.thetas;
	run.job.world = 4;
	for (int i = 3; i < argc; i++) {
		char *value = strchr(argv[i], '=');

		if (value)
			*value++ = 0;
		if (!value || !take(&run, argv[i], value))
			return fprintf(stderr, "racked: what is %s?\n", argv[i]), 2;
	}
	if (argc < 3 || run.job.world > WORKERS_MAX || run.workers < 1)
		return fprintf(stderr, "usage: racked RACK_URL|plain ACROSS_URL NAME=VALUE...\n"), 2;
	run.job.no_thread = run.no_thread;
	run.rack_job.rank = run.job.rank % (int)run.workers;
	run.rack_job.world = (int)run.workers;
	if (run.scout.theta_count > 0)
		run.around.scout = &run.scout;
	return strcmp(argv[1], "plain") == 0 ? plain_run(&run) : run_at(&run, argv[1], argv[2]);
}
