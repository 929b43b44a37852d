/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How several jobs shared a box: rounds of each while all of them ran, and what is printed of it.
 */
#include <inttypes.h>
#include <stdio.h>

#include "phub/cli/output.h"
#include "phub/cli/trial.h"

struct jobs_window {
	uint64_t begin_ns, end_ns;
};

/* When the workers of a job were in this round. */
static struct jobs_window jobs_round(const struct trial_plan *p, const struct trial_shared *s, unsigned round)
{
	struct jobs_window w = {.begin_ns = UINT64_MAX};

	for (unsigned rank = 0; rank < p->workers; rank++) {
		const struct trial_time *t = &trial_times(p, s, rank)[round];

		w.begin_ns = t->begin_ns < w.begin_ns ? t->begin_ns : w.begin_ns;
		w.end_ns = t->end_ns > w.end_ns ? t->end_ns : w.end_ns;
	}
	return w;
}

/* Rounds first..last of all jobs: when all of them were in there. Empty: never. */
static struct jobs_window jobs_common(
	const struct trial_plan *p, struct trial_shared *const *jobs, unsigned first, unsigned last)
{
	struct jobs_window common = {.end_ns = UINT64_MAX};

	for (unsigned job = 0; job < p->jobs; job++) {
		uint64_t begin_ns = jobs_round(p, jobs[job], first).begin_ns;
		uint64_t end_ns = jobs_round(p, jobs[job], last).end_ns;

		common.begin_ns = begin_ns > common.begin_ns ? begin_ns : common.begin_ns;
		common.end_ns = end_ns < common.end_ns ? end_ns : common.end_ns;
	}
	return common;
}

/* The part of a round that lies in the window. */
static double jobs_part(struct jobs_window round, struct jobs_window window)
{
	uint64_t begin_ns = round.begin_ns > window.begin_ns ? round.begin_ns : window.begin_ns;
	uint64_t end_ns = round.end_ns < window.end_ns ? round.end_ns : window.end_ns;

	if (begin_ns >= end_ns)
		return 0;
	return (double)(end_ns - begin_ns) / (double)(round.end_ns - round.begin_ns);
}

static double jobs_share_stretch(
	const struct trial_plan *p, struct trial_shared *const *jobs, unsigned first, unsigned last, double *rounds)
{
	struct jobs_window common = jobs_common(p, jobs, first, last);

	if (common.begin_ns >= common.end_ns)
		return 0;
	for (unsigned job = 0; job < p->jobs; job++) {
		for (unsigned round = first; round <= last; round++)
			rounds[job] += jobs_part(jobs_round(p, jobs[job], round), common);
	}
	return (double)(common.end_ns - common.begin_ns) / 1e9;
}

double trial_share(const struct trial_plan *p, struct trial_shared *const *jobs, double *rounds)
{
	unsigned count = p->warmup + p->rounds, first = p->warmup;
	double seconds = 0;

	for (unsigned job = 0; job < p->jobs; job++)
		rounds[job] = 0;
	for (unsigned round = p->warmup; round < count; round++) {
		if (round + 1 < count && !trial_is_fresh(p, round + 1))
			continue;
		seconds += jobs_share_stretch(p, jobs, first, round, rounds);
		first = round + 1;
	}
	return seconds;
}

/* ---- printing ---- */

struct jobs_all {
	double rounds_per_s, share_min, share_max, box_cpu_s_per_gb, cpu_s_per_gb;
	uint64_t errors;
};

static bool jobs_print_one(const struct trial_plan *p, unsigned job, const struct trial_numbers *n, double rate,
	double share, struct output_table *table)
{
	if (!table)
		return output_json(json_pack("{s:s, s:i, s:i, s:s, s:i, s:I, s:f, s:f, s:f, s:f, s:I}", "bench",
			"exchange job", "job", (int)job, "jobs", (int)p->jobs, "transport", p->transport, "workers",
			(int)p->workers, "bytes", (json_int_t)p->bytes, "rounds_per_s", rate, "share", share, "p50_ms",
			n->p50_ms, "p99_ms", n->p99_ms, "errors", (json_int_t)n->errors));
	output_cell(table, "%u", job);
	output_cell(table, "%.2f", rate);
	output_cell(table, "%.3f", share);
	output_cell(table, "%.3f", n->p50_ms);
	output_cell(table, "%.3f", n->p99_ms);
	output_cell(table, "%" PRIu64, n->errors);
	return true;
}

static bool jobs_print_all(const struct trial_plan *p, const struct jobs_all *all, bool json)
{
	const char *mode = p->mode == TRIAL_COPY ? "copy" : "zero-copy";
	char bytes[32];

	if (json)
		return output_json(json_pack("{s:s, s:s, s:s, s:i, s:i, s:I, s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:I}",
			"bench", "exchange jobs", "transport", p->transport, "mode", mode, "jobs", (int)p->jobs,
			"workers", (int)p->workers, "bytes", (json_int_t)p->bytes, "optimizer",
			optimizer_kind_name(p->optimizer), "rounds", (int)p->rounds, "rounds_per_s", all->rounds_per_s,
			"share_min", all->share_min, "share_max", all->share_max, "box_cpu_s_per_gb",
			all->box_cpu_s_per_gb, "cpu_s_per_gb", all->cpu_s_per_gb, "errors", (json_int_t)all->errors));
	printf("%s, %s, %u jobs of %u workers, keys %zu of %s together, optimizer %s\n", p->transport, mode, p->jobs,
		p->workers, p->model.count, output_bytes(p->bytes, bytes), optimizer_kind_name(p->optimizer));
	printf("  rounds a second, all jobs  %10.2f\n", all->rounds_per_s);
	printf("  smallest, largest share    %10.3f %10.3f\n", all->share_min, all->share_max);
	printf("  box CPU                    %10.3f s per GB of gradients\n", all->box_cpu_s_per_gb);
	printf("  box and workers CPU        %10.3f s per GB of gradients\n", all->cpu_s_per_gb);
	return true;
}

/*
 * The box's CPU time is one for all jobs, and each job's rank 0 has read it over its own stretches, which begin
 * together: the longest reading holds all jobs.
 */
static void jobs_count_cpu(const struct trial_plan *p, struct trial_shared *const *jobs, struct jobs_all *all)
{
	double bytes = (double)p->bytes * p->workers * p->rounds * p->jobs;
	uint64_t box_ns = 0, cpu_ns = 0;

	for (unsigned job = 0; job < p->jobs; job++) {
		box_ns = jobs[job]->box_cpu_ns > box_ns ? jobs[job]->box_cpu_ns : box_ns;
		for (unsigned w = 0; w < p->workers; w++)
			cpu_ns += jobs[job]->outcomes[w].cpu_ns;
	}
	all->box_cpu_s_per_gb = (double)box_ns / bytes;
	all->cpu_s_per_gb = (double)(box_ns + cpu_ns) / bytes;
}

bool trial_print_jobs(const struct trial_plan *p, struct trial_shared *const *jobs, bool json)
{
	struct output_table table = {
		.heads = {"job", "rounds/s", "share", "p50 ms", "p99 ms", "errors"}, .align = "rrrrrr"};
	double rounds[TRIAL_JOBS_MAX], total = 0, seconds = trial_share(p, jobs, rounds);
	struct jobs_all all = {.share_min = p->jobs};
	bool ok = true;

	for (unsigned job = 0; job < p->jobs; job++)
		total += rounds[job];
	if (total <= 0) {
		output_error("the jobs never ran at the same time; give more --rounds");
		return false;
	}
	all.rounds_per_s = total / seconds;
	for (unsigned job = 0; ok && job < p->jobs; job++) {
		double share = rounds[job] * p->jobs / total;
		struct trial_numbers n;

		if (trial_count(p, jobs[job], &n) < 0) {
			output_error("out of memory");
			return false;
		}
		all.share_min = share < all.share_min ? share : all.share_min;
		all.share_max = share > all.share_max ? share : all.share_max;
		all.errors += n.errors;
		ok = jobs_print_one(p, job, &n, rounds[job] / seconds, share, json ? NULL : &table);
	}
	jobs_count_cpu(p, jobs, &all);
	if (!json)
		output_table_print(&table);
	return ok && jobs_print_all(p, &all, json);
}
