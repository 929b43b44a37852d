/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts between two windows, and the lines.
 */
#include "tests/bench/skew_log.h"

#include <math.h>
#include <string.h>

#include "client/scout/plus.h"
#include "client/scout/square.h"

enum { LOG_LINE = 1 << 16 };

int skew_log_begin(struct skew_log *log, const struct record_run *run, const struct skew_model *model,
	const struct site *const *sites, struct err *e)
{
	const char *names[SKEW_TENSORS_MAX];
	char line[LOG_LINE] = "";
	struct record_run own = *run;
	int rc = 0;

	log->sites = run->sites;
	log->unit = run->scout->price.unit;
	log->tensors = model->tensor_count;
	log->bsp_bytes = (uint64_t)model->trained * SITE_VALUE_BYTES;
	for (unsigned i = 0; i < model->tensor_count; i++)
		names[i] = model->tensors[i].name;
	own.tensors = names;
	own.tensor_count = model->tensor_count;
	own.shadow = log->theta_count ? log->thetas : NULL;
	own.shadow_count = log->theta_count;
	for (unsigned k = 0; rc == 0 && log->theta_count > 0 && k < log->sites; k++)
		rc = shadow_init(&log->shadows[k], sites[k], log->thetas, log->theta_count, e);
	if (rc == 0 && record_run(&own, line, sizeof(line)) < sizeof(line))
		fputs(line, log->file);
	return rc;
}

void skew_log_fini(struct skew_log *log)
{
	for (unsigned k = 0; k < log->sites; k++)
		shadow_fini(&log->shadows[k]);
}

void skew_log_step(struct skew_log *log, unsigned k, const struct site *site, const float *const *gradients)
{
	if (log->theta_count > 0)
		shadow_step(&log->shadows[k], site, gradients);
}

void skew_log_loss(struct skew_log *log, double loss, uint64_t samples)
{
	log->loss += loss;
	log->samples += samples;
}

/* With d_k a site's own and p_k its share, it says p_k d_k: r = |sum p_k d_k|^2 / sum p_k |d_k|^2. */
void skew_log_said(struct skew_log *log, unsigned tensor, const float *said, uint32_t elements, double share)
{
	if (share > 0)
		log->said[tensor] += square_of(said, elements) / share;
}

void skew_log_heard(struct skew_log *log, unsigned tensor, const float *sum, uint32_t elements)
{
	log->heard[tensor] += square_of(sum, elements);
}

static void log_shadows(struct skew_log *log, struct record_shadow *out)
{
	for (unsigned i = 0; i < log->theta_count; i++) {
		double bytes = 0;

		for (unsigned k = 0; k < log->sites; k++)
			bytes += (double)log->shadows[k].bytes[i];
		bytes /= log->sites;
		out[i] = (struct record_shadow){log->thetas[i], bytes - log->shadow_told[i]};
		log->shadow_told[i] = bytes;
	}
}

void skew_log_window(struct skew_log *log, const struct skew_log_window *w)
{
	struct record_shadow shadow[SHADOW_THETAS_MAX];
	double r[SKEW_TENSORS_MAX];
	char line[LOG_LINE] = "";
	struct record_decision d;

	for (unsigned i = 0; i < log->tensors; i++)
		r[i] = plus_alignment(log->said[i], log->heard[i]);
	log_shadows(log, shadow);
	record_decision_init(&d);
	d.t = w->step;
	d.theta = w->theta;
	d.decision = *w->decision;
	d.unit = log->unit;
	d.samples = w->samples;
	d.sites = log->sites;
	d.r = r;
	d.tensor_count = log->tensors;
	d.bytes = w->bytes - log->bytes_told;
	if (fabs(w->bytes_cost - d.bytes) >= 1) /* reports are whole numbers */
		d.bytes_cost = w->bytes_cost;
	d.bytes_travel = w->bytes_travel - log->travel_told;
	d.bytes_total = w->bytes + w->bytes_travel;
	d.bytes_bsp = (double)(log->bsp_bytes * w->step);
	d.train_loss = log->samples ? log->loss / (double)log->samples : NAN;
	d.accuracy = w->accuracy;
	d.score_loss = w->loss;
	d.shadow = log->theta_count ? shadow : NULL;
	d.shadow_count = log->theta_count;
	if (record_decision(&d, line, sizeof(line)) < sizeof(line))
		fputs(line, log->file);
	log->bytes_told = w->bytes;
	log->travel_told = w->bytes_travel;
	log->loss = 0;
	log->samples = 0;
	memset(log->said, 0, sizeof(log->said));
	memset(log->heard, 0, sizeof(log->heard));
}

void skew_log_end(struct skew_log *log, const struct record_end *end)
{
	char line[LOG_LINE] = "";

	if (record_end(end, line, sizeof(line)) < sizeof(line))
		fputs(line, log->file);
}
