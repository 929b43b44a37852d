/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the workers' clocks to what is printed: every schedule beside computing alone and exchanging alone.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "phub/cli/output.h"
#include "phub/cli/replay.h"

struct replay_numbers {
	double p50_ms, p99_ms, min_ms, max_ms, per_s;
};

static const char *const report_names[] = {"compute", "exchange", "serial", "backward", "fifo", "priority"};
static const char *const report_titles[] = {"compute alone", "exchange alone", "serial: no overlap",
	"backward: overlaps backward", "fifo: overlaps forward too", "priority: front layers first"};

const char *replay_schedule_name(enum replay_schedule schedule)
{
	return report_names[schedule];
}

/* Iterations of all workers of one schedule. */
static int report_count(const struct replay_plan *p, const struct replay_shared *s, enum replay_schedule schedule,
	struct replay_numbers *out)
{
	size_t each = p->rounds, count = each * p->trial.workers;
	uint64_t *took = calloc(count, sizeof(*took));
	double sum_ms = 0;

	if (!took)
		return -ENOMEM;
	for (unsigned w = 0; w < p->trial.workers; w++) {
		const struct replay_time *times = replay_times(p, s, schedule, w);

		for (size_t i = 0; i < each; i++) {
			took[w * each + i] = times[i].end_ns - times[i].begin_ns;
			sum_ms += (double)took[w * each + i] / 1e6;
		}
	}
	trial_sort(took, count);
	*out = (struct replay_numbers){
		.p50_ms = trial_percentile_ms(took, count, 50),
		.p99_ms = trial_percentile_ms(took, count, 99),
		.min_ms = (double)took[0] / 1e6,
		.max_ms = (double)took[count - 1] / 1e6,
		.per_s = 1000 * (double)count / sum_ms,
	};
	free(took);
	return 0;
}

/* The part of the exchange that costs no time. */
static double report_hidden(double exposed_ms, double exchange_ms)
{
	double hidden = exchange_ms > 0 ? 1 - exposed_ms / exchange_ms : 0;

	return hidden < 0 ? 0 : hidden > 1 ? 1 : hidden;
}

static bool report_json(const struct replay_plan *p, const struct replay_shared *s, enum replay_schedule schedule,
	const struct replay_numbers *all, uint64_t errors)
{
	const struct replay_numbers *n = &all[schedule];
	double exposed_ms = n->p50_ms - all[REPLAY_COMPUTE].p50_ms;
	json_t *line = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:I, s:s, s:i}", "bench", "train",
		"trace", p->trial.model.name, "schedule", report_names[schedule], "transport", s->transport, "mode",
		p->trial.mode == TRIAL_COPY ? "copy" : "zero-copy", "compute", p->how == REPLAY_SPIN ? "spin" : "sleep",
		"workers", (int)trial_world(&p->trial), "layers", (int)p->trace.count, "keys",
		(int)p->trial.model.count, "bytes", (json_int_t)p->trial.bytes, "optimizer",
		optimizer_kind_name(p->trial.optimizer), "rounds", (int)p->rounds);
	json_t *rest = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:I}", "iterations_per_s", n->per_s,
		"p50_ms", n->p50_ms, "p99_ms", n->p99_ms, "min_ms", n->min_ms, "max_ms", n->max_ms, "trace_ms",
		(double)model_trace_compute_ns(&p->trace) / 1e6, "exposed_ms",
		schedule >= REPLAY_SERIAL ? json_real(exposed_ms) : json_null(), "hidden",
		schedule >= REPLAY_SERIAL ? json_real(report_hidden(exposed_ms, all[REPLAY_EXCHANGE].p50_ms))
					  : json_null(),
		"errors", (json_int_t)errors);

	if (line && rest)
		json_object_update(line, rest);
	json_decref(rest);
	return output_json(line);
}

static void report_row(struct output_table *table, enum replay_schedule schedule, const struct replay_numbers *all)
{
	const struct replay_numbers *n = &all[schedule];
	double exposed_ms = n->p50_ms - all[REPLAY_COMPUTE].p50_ms;

	output_cell(table, "%s", report_titles[schedule]);
	output_cell(table, "%.3f", n->p50_ms);
	output_cell(table, "%.3f", n->p99_ms);
	output_cell(table, "%.3f..%.3f", n->min_ms, n->max_ms);
	output_cell(table, "%.2f", n->per_s);
	if (schedule < REPLAY_SERIAL) {
		output_cell(table, "-");
		output_cell(table, "-");
		return;
	}
	output_cell(table, "%.3f", exposed_ms);
	output_cell(table, "%.0f %%", 100 * report_hidden(exposed_ms, all[REPLAY_EXCHANGE].p50_ms));
}

static void report_head(const struct replay_plan *p, const struct replay_shared *s)
{
	char bytes[32];

	printf("%s: layers %zu, keys %zu of %s together, computes for %.3f ms (%s)\n", p->trial.model.name,
		p->trace.count, p->trial.model.count, output_bytes(p->trial.bytes, bytes),
		(double)model_trace_compute_ns(&p->trace) / 1e6, p->how == REPLAY_SPIN ? "spinning" : "sleeping");
	printf("%s, %s, workers %u, optimizer %s, %u iterations of each\n\n", s->transport,
		p->trial.mode == TRIAL_COPY ? "copy" : "zero-copy", trial_world(&p->trial),
		optimizer_kind_name(p->trial.optimizer), p->rounds);
}

bool replay_print(const struct replay_plan *p, const struct replay_run *run, const struct trial_shared *s, bool json)
{
	struct output_table table = {
		.heads = {"iteration", "p50 ms", "p99 ms", "min..max ms", "a second", "exposed ms", "hidden"},
		.align = "lrrrrrr",
	};
	struct replay_numbers all[REPLAY_SCHEDULES] = {{0}};
	uint64_t wrong = 0, checked = 0;
	bool ok = true;

	for (unsigned w = 0; w < p->trial.workers; w++) {
		wrong += s->outcomes[w].wrong;
		checked += s->outcomes[w].checked;
	}
	for (enum replay_schedule i = 0; i < REPLAY_SCHEDULES; i++) {
		if (p->schedules[i] && report_count(p, run->shared, i, &all[i]) < 0) {
			output_error("out of memory");
			return false;
		}
	}
	if (!json)
		report_head(p, run->shared);
	for (enum replay_schedule i = 0; ok && i < REPLAY_SCHEDULES; i++) {
		if (p->schedules[i] && json)
			ok = report_json(p, run->shared, i, all, wrong);
		else if (p->schedules[i])
			report_row(&table, i, all);
	}
	if (json)
		return ok;
	output_table_print(&table);
	printf("\nchecked %" PRIu64 " pieces of results, %" PRIu64 " wrong\n", checked, wrong);
	return true;
}
