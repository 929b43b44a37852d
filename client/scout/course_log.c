/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0's decision log: record.h has the lines, this their numbers and the file.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/handle.h"
#include "client/scout/course.h"
#include "client/scout/environment.h"
#include "client/scout/record.h"
#include "client/scout/within.h"

int course_log_open(struct phub_site *s, const char *path, struct err *e)
{
	const char *wanted = path ? path : environment_log(s->link);

	if (!wanted || !*wanted)
		return 0;
	s->log_usual = !path;
	s->log = open(wanted, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (s->log < 0)
		return err_set(e, -errno, "%s: no decision log can be written to %.200s: %s", s->phub->session.who,
			wanted, strerror(errno));
	return 0;
}

int course_log_shadow(struct phub_site *s, struct err *e)
{
	double thetas[SHADOW_THETAS_MAX];
	int count = s->log < 0 || !s->scouted ? 0 : environment_shadow(s->link, thetas, e);

	return count > 0 ? shadow_init(&s->shadow, &s->site, thetas, (unsigned)count, e) : count;
}

static void log_write(struct phub_site *s, const char *line, size_t bytes)
{
	while (bytes > 0 && s->log_error == 0) {
		ssize_t done = write(s->log, line, bytes);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0) {
			s->log_error = done < 0 ? -errno : -EIO;
			return;
		}
		line += done;
		bytes -= (size_t)done;
	}
}

/* As of a scout that leaves theta as it is. */
static void log_fixed(const struct phub_site *s, struct scout_config *out)
{
	scout_defaults(out);
	out->policy = SCOUT_FIXED;
	out->thetas[0] = s->site.config.theta;
	out->theta_count = 1;
	out->model_bytes = (uint64_t)s->site.elements * SITE_VALUE_BYTES;
}

/* What BSP says at a step: what is not trained it does not exchange. */
static uint64_t log_bsp(const struct phub_site *s)
{
	uint64_t bytes = 0;

	for (unsigned t = 0; t < s->config.tensor_count; t++)
		bytes += s->tensors[t].trained ? (uint64_t)s->tensors[t].elements * SITE_VALUE_BYTES : 0;
	return bytes;
}

/* A pipe or a device has nothing of a run before. */
static bool log_clear(struct phub_site *s)
{
	if (s->site.counts.steps > 0 || ftruncate(s->log, 0) == 0 || errno == EINVAL)
		return true;
	s->log_error = -errno;
	return false;
}

void course_log_run(struct phub_site *s)
{
	struct scout_config fixed;
	struct record_run run = {.algorithm = s->config.algorithm,
		.scout = &s->scout.config,
		.bsp_bytes = log_bsp(s),
		.sites = s->world,
		.rank = s->rank,
		.job = s->phub->settings.url.job,
		.transport = phub_transport(s->phub),
		.tensor_count = s->config.tensor_count,
		.shadow = s->shadow.count > 0 ? s->shadow.theta : NULL,
		.shadow_count = s->shadow.count,
		.link = *s->link ? s->link : NULL,
		.within = s->within ? &s->within->site.config : NULL,
		.within_link = s->within && *s->within->link ? s->within->link : NULL};
	const char **names;
	size_t bytes;
	char *line;

	s->began_ns = s->phub->env.now(s->phub->env.ctx);
	if (s->log < 0 || !log_clear(s))
		return;
	if (!s->scouted) {
		log_fixed(s, &fixed);
		run.scout = &fixed;
	}
	names = calloc(s->config.tensor_count, sizeof(*names));
	for (unsigned t = 0; names && t < s->config.tensor_count; t++)
		names[t] = s->phub->keyring.keys[t].name;
	run.tensors = names;
	bytes = record_run(&run, NULL, 0);
	line = malloc(bytes + 1);
	if (line) {
		record_run(&run, line, bytes + 1);
		log_write(s, line, bytes);
	}
	free(line);
	free(names);
	if (s->slots_key >= 0 && census_begin(s) == 0)
		census_take(s);
}

/* As long as a site has tensors. */
static void log_decision(struct phub_site *s, const struct record_decision *d)
{
	const size_t bytes = record_decision(d, NULL, 0);
	char *line = malloc(bytes + 1);

	if (line) {
		record_decision(d, line, bytes + 1);
		log_write(s, line, bytes);
	}
	free(line);
}

void course_log_warning(struct phub_site *s, uint32_t rank, const char *tensor, bool all, const char *text)
{
	char line[2 * UNSOUND_TEXT_BYTES];
	size_t bytes = record_warning(s->site.counts.steps, rank, tensor, all, text, line, sizeof(line));

	if (s->log >= 0 && bytes < sizeof(line))
		log_write(s, line, bytes);
}

void course_log_site(struct phub_site *s, const struct record_site *site)
{
	char line[512];
	const size_t bytes = record_site(site, line, sizeof(line));

	if (s->log >= 0 && bytes < sizeof(line))
		log_write(s, line, bytes);
}

static double log_accuracy(const struct phub_score *score)
{
	return score->samples > 0 && score->correct <= score->samples ? (double)score->correct / (double)score->samples
								      : NAN;
}

static double log_loss(const struct phub_score *score)
{
	return score->samples > 0 ? score->loss / (double)score->samples : NAN;
}

/* What was sent, and what the cost weighs of it. */
static void log_bytes(struct phub_site *s, struct record_decision *d)
{
	double cost = 0, within = 0;

	for (unsigned i = 0; i < s->present_count; i++) {
		d->samples += s->reports[i].samples;
		cost += (double)s->reports[i].bytes / s->present_count;
		within += (double)s->reports[i].within / s->present_count;
	}
	d->bytes = s->window.sent;
	d->bytes_travel =
		(double)s->window.travelled * (double)s->scout.config.model_bytes / s->present_count + s->window.shown;
	d->bytes_cost = cost != d->bytes ? cost : NAN;
	if (s->within) {
		d->bytes_within = s->window.sent_within;
		d->bytes_within_cost = within != d->bytes_within ? within : NAN;
	}
	s->logged_bytes += d->bytes;
	s->logged_travel += d->bytes_travel;
	s->logged_within += s->window.sent_within;
	d->bytes_total = s->logged_bytes + s->logged_travel;
	d->bytes_bsp = (double)log_bsp(s) * (double)d->t;
}

void course_log_decision(struct phub_site *s, double theta)
{
	struct record_shadow shadow[SHADOW_THETAS_MAX];
	struct record_decision d;

	if (s->log < 0)
		return;
	record_decision_init(&d);
	d.t = s->site.counts.steps;
	d.theta = theta;
	d.decision = s->decision;
	d.unit = s->scout.config.price.unit;
	d.sites = s->present_count;
	d.r = s->r;
	d.tensor_count = s->config.tensor_count;
	d.train_loss = s->decision.seen.train;
	log_bytes(s, &d);
	if (s->scored) {
		d.accuracy = log_accuracy(&s->score);
		d.score_loss = log_loss(&s->score);
		s->scored = false;
	}
	for (unsigned i = 0; i < s->shadow.count; i++) {
		shadow[i] =
			(struct record_shadow){s->shadow.theta[i], (double)(s->shadow.bytes[i] - s->logged_shadow[i])};
		s->logged_shadow[i] = s->shadow.bytes[i];
	}
	d.shadow = s->shadow.count > 0 ? shadow : NULL;
	d.shadow_count = s->shadow.count;
	log_decision(s, &d);
}

/* The mean of sites, by windows, of which lost sites are part, and since the last one by this site's own; without
 * windows by the last exchange. */
static double log_sent(const struct phub_site *s)
{
	const double others = s->windows == 0 ? s->sent.exchanges : 0;

	return s->logged_bytes + (double)(s->site.counts.bytes_paper - s->window.told) + others;
}

static double log_within(const struct phub_site *s)
{
	const double others = s->windows == 0 ? s->sent.within : 0;

	return s->logged_within + (double)(within_bytes(s) - s->window.told_within) + others;
}

static void log_end(struct phub_site *s)
{
	const uint64_t wire = sent_wire(s);
	struct record_end end = {.t = s->site.counts.steps,
		.bytes = log_sent(s),
		.bytes_travel = s->logged_travel + s->window.shown,
		.bytes_wire = wire > 0 ? (double)wire + s->sent.wire : NAN,
		.theta = s->site.config.theta,
		.accuracy = log_accuracy(&s->score),
		.loss = log_loss(&s->score),
		.seconds = s->stepped_ns ? (double)(s->stepped_ns - s->began_ns) * 1e-9 : NAN,
		.bytes_within = log_within(s),
		.sites = s->present_count,
		.broken_since = unsound_since(s)};
	char line[1024];
	size_t bytes;

	bytes = record_end(&end, line, sizeof(line));
	if (bytes < sizeof(line))
		log_write(s, line, bytes);
}

void course_log_close(struct phub_site *s)
{
	if (s->log < 0)
		return;
	census_end(s);
	if (s->begun)
		log_end(s);
	census_fini(s);
	close(s->log);
	s->log = -1;
}

void course_log_yield(struct phub_site *s, const struct phub_site *around)
{
	if (s->log < 0 || s->scouted || !s->log_usual || strcmp(s->link, around->link) != 0)
		return;
	census_fini(s);
	close(s->log);
	s->log = -1;
}
