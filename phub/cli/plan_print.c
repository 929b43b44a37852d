/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan as a table for people, or as JSON lines.
 */
#include "phub/cli/plan_job.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "aggregation/convert.h"
#include "phub/cli/output.h"

enum { PRINT_BAR = 40, PRINT_STEPS_MAX = 32 };

void plan_job_note(struct plan_job *job, const char *format, ...)
{
	va_list arguments;

	if (job->note_count == PLAN_NOTES_MAX)
		return;
	va_start(arguments, format);
	vsnprintf(job->notes[job->note_count++], PLAN_NOTE_BYTES, format, arguments);
	va_end(arguments);
}

/* ---- JSON ---- */

static const char *print_unit(enum plan_resource_kind kind)
{
	if (kind == PLAN_CACHE_LINES)
		return "lines";
	return kind == PLAN_CORES || kind == PLAN_WORKER_CPU || kind == PLAN_SHARED_CPUS ? "cpu_s" : "bytes";
}

static bool print_json_resources(const struct plan_result *r)
{
	bool ok = true;

	for (int i = 0; ok && i < PLAN_RESOURCE_COUNT; i++) {
		const struct plan_resource *resource = &r->resources[i];
		enum plan_resource_kind kind = (enum plan_resource_kind)i;

		if (resource->used)
			ok = output_json(json_pack("{s:s, s:s, s:s, s:f, s:f, s:f, s:b}", "plan", "resource",
				"resource", plan_resource_name(kind), "unit", print_unit(kind), "capacity_per_s",
				resource->capacity, "demand_per_byte", resource->demand, "exchanges_per_s",
				1 / resource->exchange_s, "limit", i == (int)r->limit));
	}
	return ok;
}

static json_t *print_json_notes(const struct plan_job *job)
{
	json_t *notes = json_array();

	for (unsigned i = 0; i < job->note_count; i++)
		json_array_append_new(notes, json_string(job->notes[i]));
	return notes;
}

static bool print_json(const struct plan_job *job, const struct plan_result *r)
{
	const struct plan_input *in = &job->input;
	json_t *line = json_pack("{s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
		"plan", "exchange", "model", job->model, "transport", plan_transport_name(in->transport), "optimizer",
		optimizer_kind_name(job->optimizer), "workers", (int)in->workers, "bytes", (json_int_t)in->bytes,
		"keys", (json_int_t)in->keys, "chunks", (json_int_t)r->chunks, "limit", plan_resource_name(r->limit),
		"exchanges_per_s", 1 / r->exchange_s, "all_per_s", in->workers / r->exchange_s, "exchange_ms",
		1e3 * r->exchange_s, "gb_per_s_worker", r->worker_bytes_s / 1e9, "wire_efficiency", r->wire_efficiency,
		"box_cpu_s_per_gb", 1e9 * plan_box_demand(in), "cpu_s_per_gb",
		1e9 * (plan_box_demand(in) + plan_worker_demand(in)));

	if (line && r->second >= 0)
		json_object_set_new(
			line, "second", json_string(plan_resource_name((enum plan_resource_kind)r->second)));
	if (line && r->ring_s > 0)
		json_object_set_new(line, "ring_ms", json_real(1e3 * r->ring_s));
	if (line && in->compute_s > 0) {
		json_object_set_new(line, "iteration_best_ms", json_real(1e3 * r->iteration_best_s));
		json_object_set_new(line, "iteration_worst_ms", json_real(1e3 * r->iteration_worst_s));
	}
	if (line)
		json_object_set_new(line, "assumed", print_json_notes(job));
	return print_json_resources(r) && output_json(line);
}

/* ---- text ---- */

/* Three digits that count, with what follows. */
static const char *print_number(double value, const char *unit, char text[48])
{
	const char *prefix = "";

	if (value >= 1e9) {
		value /= 1e9;
		prefix = "G";
	} else if (value >= 1e6) {
		value /= 1e6;
		prefix = "M";
	}
	snprintf(text, 48, "%.*f %s%s", value >= 100 ? 0 : value >= 10 ? 1 : 2, value, prefix, unit);
	return text;
}

static void print_resource(struct output_table *t, const struct plan_result *r, enum plan_resource_kind kind)
{
	const struct plan_resource *resource = &r->resources[kind];
	char text[48];

	output_cell(t, "%s", plan_resource_name(kind));
	if (strcmp(print_unit(kind), "cpu_s") == 0) {
		output_cell(t, "%.4g %s", resource->capacity, resource->capacity == 1 ? "CPU" : "CPUs");
		output_cell(t, "%.4f ns", resource->demand * 1e9);
	} else {
		const char *unit = kind == PLAN_CACHE_LINES ? "lines" : "B";
		char per_second[16];

		snprintf(per_second, sizeof(per_second), "%s/s", unit);
		output_cell(t, "%s", print_number(resource->capacity, per_second, text));
		output_cell(t, "%.4f %s", resource->demand, unit);
	}
	output_cell(t, "%.4g", 1 / resource->exchange_s);
	output_cell(t, "%.0f %%", 100 * resource->exchange_s / r->exchange_s);
	output_cell(t, "%s", kind == r->limit ? "<- limits" : "");
}

static void print_head(const struct plan_job *job, const struct plan_result *r)
{
	const struct plan_input *in = &job->input;
	char bytes[32], chunk[32];

	printf("%s: %s of %s in %" PRIu64 " %s and %" PRIu64 " %s of %s%s, %u %s, %s, optimizer %s\n", job->model,
		output_bytes(in->bytes, bytes), dtype_name((enum dtype)job->dtype), in->keys,
		in->keys == 1 ? "key" : "keys", r->chunks, r->chunks == 1 ? "chunk" : "chunks",
		r->chunks * in->chunk_bytes == in->bytes ? "" : "up to ", output_bytes(in->chunk_bytes, chunk),
		in->workers, in->workers == 1 ? "worker" : "workers", plan_transport_name(in->transport),
		optimizer_kind_name(job->optimizer));
	for (unsigned i = 0; i < job->note_count; i++)
		printf("%s %s\n", i ? "        " : "assumed:", job->notes[i]);
	puts("");
}

static void print_second(const struct plan_result *r)
{
	double limit_s = r->resources[r->limit].exchange_s, second_s;

	printf("  to buy next        %s", plan_resource_remedy(r->limit));
	if (r->second < 0) {
		puts("");
		return;
	}
	second_s = r->resources[r->second].exchange_s;
	if (limit_s < 1000 * second_s)
		printf(": %.2f times as much helps, then %s limit\n", limit_s / second_s,
			plan_resource_name((enum plan_resource_kind)r->second));
	else
		puts(": nothing else is near its limit");
}

static void print_compute(const struct plan_input *in, const struct plan_result *r)
{
	if (in->compute_s <= 0)
		return;
	printf("  an iteration       %.4g ms when all of the exchange overlaps with %.4g ms of computing, %.4g ms when "
	       "none does\n",
		1e3 * r->iteration_best_s, 1e3 * in->compute_s, 1e3 * r->iteration_worst_s);
	printf("                     computing %s the exchange\n",
		in->compute_s >= r->exchange_s ? "can hide" : "is too short to hide");
}

static void print_text(const struct plan_job *job, const struct plan_result *r)
{
	struct output_table table = {
		.heads = {"resource", "capacity", "per gradient byte", "exchanges/s", "busy", "", NULL},
		.align = "lrrrrl"};
	const struct plan_input *in = &job->input;

	print_head(job, r);
	for (int i = 0; i < PLAN_RESOURCE_COUNT; i++)
		if (r->resources[i].used)
			print_resource(&table, r, (enum plan_resource_kind)i);
	output_table_print(&table);
	printf("\n  exchanges          %.4g a second by each worker, %.4g by all together\n", 1 / r->exchange_s,
		in->workers / r->exchange_s);
	printf("  one exchange       %.4g ms, %.2g of it for a chunk to pass what does not limit\n",
		1e3 * r->exchange_s, 1e3 * r->fill_s);
	printf("  each worker        %.4g GB/s up, and as much down\n", r->worker_bytes_s / 1e9);
	printf("  CPU                %.4g s of the box, %.4g s of workers per GB of gradients\n",
		1e9 * plan_box_demand(in), 1e9 * plan_worker_demand(in));
	if (r->resources[PLAN_BOX_LINKS].used)
		printf("  on the wire        %.1f %% are gradients\n", 100 * r->wire_efficiency);
	if (r->ring_s > 0)
		printf("  a ring at best     %.4g ms on the same links of the workers: %.2f times as long\n",
			1e3 * r->ring_s, r->ring_s / r->exchange_s);
	print_second(r);
	print_compute(in, r);
}

/* ---- sweep ---- */

/* From 1 to the last, both shown. */
static unsigned print_step(const struct plan_job *job, unsigned i, unsigned count)
{
	return count < 2 ? job->sweep : 1 + (unsigned)((uint64_t)i * (job->sweep - 1) / (count - 1));
}

static int print_sweep(const struct plan_job *job, struct err *e)
{
	unsigned count = job->sweep < PRINT_STEPS_MAX ? job->sweep : PRINT_STEPS_MAX;
	struct output_table table = {
		.heads = {"workers", "each/s", "all/s", "limit", "all together", NULL}, .align = "rrrll"};
	struct plan_input in = job->input;
	struct plan_result r;
	double most = 0;

	for (int pass = 0; pass < 2; pass++) {
		for (unsigned i = 0; i < count; i++) {
			unsigned n = print_step(job, i, count);
			double all;
			int rc;

			in.workers = n;
			rc = plan_make(&in, &r, e);
			if (rc < 0)
				return rc;
			all = n / r.exchange_s;
			if (pass == 0) {
				most = all > most ? all : most;
			} else if (job->json) {
				if (!output_json(json_pack("{s:s, s:i, s:s, s:f, s:f}", "plan", "sweep", "workers",
					    (int)n, "limit", plan_resource_name(r.limit), "exchanges_per_s",
					    1 / r.exchange_s, "all_per_s", all)))
					return -ENOMEM;
			} else {
				output_cell(&table, "%u", n);
				output_cell(&table, "%.4g", 1 / r.exchange_s);
				output_cell(&table, "%.4g", all);
				output_cell(&table, "%s", plan_resource_name(r.limit));
				output_cell(&table, "%.*s", (int)(PRINT_BAR * all / most + 0.5),
					"########################################");
			}
		}
	}
	if (!job->json) {
		puts("");
		output_table_print(&table);
	}
	return 0;
}

int plan_job_print(const struct plan_job *job, const struct plan_result *result, struct err *e)
{
	if (!job->json)
		print_text(job, result);
	else if (!print_json(job, result))
		return err_set(e, -ENOMEM, "out of memory");
	return job->sweep ? print_sweep(job, e) : 0;
}
