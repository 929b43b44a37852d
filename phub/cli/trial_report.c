/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the workers' clocks to the numbers that are printed.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "phub/cli/trial.h"
#include "phub/cli/output.h"

static int report_compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

void trial_sort(uint64_t *times, size_t count)
{
	qsort(times, count, sizeof(*times), report_compare);
}

static int report_compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double trial_median(double *values, unsigned count)
{
	qsort(values, count, sizeof(*values), report_compare_doubles);
	return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

double trial_percentile_ms(const uint64_t *sorted, size_t count, double percent)
{
	size_t rank = (size_t)ceil(percent / 100 * (double)count);

	return (double)sorted[rank ? rank - 1 : 0] / 1e6;
}

/*
 * Time of all timed stretches together: each from the first worker's beginning to the last worker's end. The monotonic
 * clock is one for all processes.
 */
static uint64_t report_elapsed_ns(const struct trial_plan *p, const struct trial_shared *s)
{
	uint64_t elapsed_ns = 0, begin_ns = 0, end_ns = 0;

	for (unsigned round = p->warmup; round < p->warmup + p->rounds; round++) {
		if (trial_is_fresh(p, round)) {
			elapsed_ns += end_ns - begin_ns;
			begin_ns = UINT64_MAX;
			end_ns = 0;
		}
		for (unsigned w = 0; w < p->workers; w++) {
			const struct trial_time *t = &trial_times(p, s, w)[round];

			begin_ns = t->begin_ns < begin_ns ? t->begin_ns : begin_ns;
			end_ns = t->end_ns > end_ns ? t->end_ns : end_ns;
		}
	}
	return elapsed_ns + (end_ns - begin_ns);
}

static void report_add_work(struct trial_work_done *to, const struct trial_work_done *from)
{
	to->chunks += from->chunks;
	to->posts += from->posts;
	to->doorbells += from->doorbells;
	to->signalled += from->signalled;
	to->registrations += from->registrations;
}

static void report_print_work(const char *who, const struct trial_work_done *d)
{
	if (d->posts == 0 || d->chunks == 0)
		return;
	printf("  %-20s %10.2f posts and %.2f doorbells a chunk, 1 completion for %.1f posts\n", who,
		(double)d->posts / (double)d->chunks, (double)d->doorbells / (double)d->chunks,
		d->signalled ? (double)d->posts / (double)d->signalled : 0.0);
}

static void report_json_device(json_t *line, const char *who, const struct trial_work_done *d)
{
	char name[64];

	if (!d->posts || !d->chunks)
		return;
	snprintf(name, sizeof(name), "%s_posts_per_chunk", who);
	json_object_set_new(line, name, json_real((double)d->posts / (double)d->chunks));
	snprintf(name, sizeof(name), "%s_doorbells_per_chunk", who);
	json_object_set_new(line, name, json_real((double)d->doorbells / (double)d->chunks));
	if (!d->signalled)
		return;
	snprintf(name, sizeof(name), "%s_posts_per_completion", who);
	json_object_set_new(line, name, json_real((double)d->posts / (double)d->signalled));
}

/*
 * Added to the line of a run that is encrypted, or over RDMA. A box that does not tell a stranger what it did leaves
 * its part out.
 */
static json_t *report_json_work(json_t *line, const struct trial_plan *p, const struct trial_numbers *n)
{
	const struct trial_work_done *w = &n->worker_device;

	if (line && p->encrypt)
		json_object_set_new(line, "encrypt", json_true());
	if (!line || !w->posts)
		return line;
	report_json_device(line, "worker", w);
	report_json_device(line, "box", &n->box_device);
	json_object_set_new(line, "registrations_per_worker", json_real((double)w->registrations / p->workers));
	if (n->box_pinned_bytes)
		json_object_set_new(line, "box_pinned_bytes", json_integer((json_int_t)n->box_pinned_bytes));
	return line;
}

int trial_count(const struct trial_plan *p, const struct trial_shared *s, struct trial_numbers *out)
{
	size_t count = (size_t)p->workers * p->rounds, at = 0;
	uint64_t *took = calloc(count, sizeof(*took));
	uint64_t copied = 0, pushed = 0, cpu_ns = s->box_cpu_ns;
	double elapsed_s = (double)report_elapsed_ns(p, s) / 1e9;

	if (!took)
		return -ENOMEM;
	*out = (struct trial_numbers){0};
	for (unsigned w = 0; w < p->workers; w++) {
		const struct trial_time *times = trial_times(p, s, w) + p->warmup;

		for (unsigned r = 0; r < p->rounds; r++)
			took[at++] = times[r].end_ns - times[r].begin_ns;
		out->errors += s->outcomes[w].wrong + (s->outcomes[w].failed_ns != 0);
		out->checked += s->outcomes[w].checked;
		copied += s->outcomes[w].copied_bytes;
		pushed += s->outcomes[w].pushed_bytes;
		cpu_ns += s->outcomes[w].cpu_ns;
		report_add_work(&out->worker_device, &s->outcomes[w].device);
	}
	trial_sort(took, count);
	out->p50_ms = trial_percentile_ms(took, count, 50);
	out->p99_ms = trial_percentile_ms(took, count, 99);
	free(took);
	out->rounds_per_s = p->rounds / elapsed_s;
	out->gb_per_s_worker = (double)p->bytes * out->rounds_per_s / 1e9;
	out->box_cpu_s_per_gb = (double)s->box_cpu_ns / ((double)p->bytes * p->workers * p->rounds);
	out->cpu_s_per_gb = (double)cpu_ns / ((double)p->bytes * p->workers * p->rounds);
	report_add_work(&out->box_device, &s->box_device);
	out->box_device.chunks = out->worker_device.chunks;
	out->box_pinned_bytes = s->box_pinned_bytes;
	out->copies = pushed ? (double)copied / (double)pushed : 0;
	return 0;
}

bool trial_print(const struct trial_plan *p, const struct trial_numbers *n, bool json)
{
	const char *mode = p->mode == TRIAL_COPY ? "copy" : "zero-copy";
	char bytes[32];

	if (json)
		return output_json(report_json_work(
			json_pack("{s:s, s:s, s:s, s:i, s:I, s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "bench",
				"exchange", "transport", p->transport, "mode", mode, "workers", (int)p->workers,
				"bytes", (json_int_t)p->bytes, "optimizer", optimizer_kind_name(p->optimizer), "rounds",
				(int)p->rounds, "rounds_per_s", n->rounds_per_s, "p50_ms", n->p50_ms, "p99_ms",
				n->p99_ms, "gb_per_s_worker", n->gb_per_s_worker, "box_cpu_s_per_gb",
				n->box_cpu_s_per_gb, "cpu_s_per_gb", n->cpu_s_per_gb, "errors", (json_int_t)n->errors),
			p, n));
	printf("%s, %s%s, workers %u, keys %zu of %s together, optimizer %s\n", p->transport, mode,
		p->encrypt ? ", encrypted" : "", p->workers, p->model.count, output_bytes(p->bytes, bytes),
		optimizer_kind_name(p->optimizer));
	printf("  rounds a second      %10.2f   (%u rounds)\n", n->rounds_per_s, p->rounds);
	printf("  round, p50           %10.3f ms\n", n->p50_ms);
	printf("  round, p99           %10.3f ms\n", n->p99_ms);
	printf("  each worker          %10.3f GB/s up, and as much down\n", n->gb_per_s_worker);
	printf("  box CPU              %10.3f s per GB of gradients\n", n->box_cpu_s_per_gb);
	printf("  box and workers CPU  %10.3f s per GB of gradients\n", n->cpu_s_per_gb);
	printf("  copies               %10.2f bytes by libphub per gradient byte\n", n->copies);
	report_print_work("workers' devices", &n->worker_device);
	report_print_work("box's devices", &n->box_device);
	if (n->box_pinned_bytes)
		printf("  box's pinned memory  %10.1f MB\n", (double)n->box_pinned_bytes / 1e6);
	if (n->worker_device.registrations)
		printf("  registrations        %10.1f regions of memory a worker\n",
			(double)n->worker_device.registrations / p->workers);
	printf("  checked              %10" PRIu64 " pieces of results, %" PRIu64 " wrong\n", n->checked, n->errors);
	return true;
}
