/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub bench kernels: what each kernel moves per second, beside what the fastest copy of the same arrays moves. Kernel
 * and copies take turns on the same memory, chunk by chunk as a core of the box goes, and the medians are compared.
 * Time is that of this thread on its CPU: what other programs take away does not count.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "aggregation/dispatch.h"
#include "aggregation/kernels_roofline.h"
#include "phub/base/clock.h"
#include "phub/base/mem.h"
#include "phub/cli/args.h"
#include "phub/cli/cli.h"
#include "phub/cli/kernel_cases.h"
#include "phub/cli/output.h"
#include "topology/discover.h"

enum {
	KERNELS_CHUNK_BYTES = 32 << 10,
	KERNELS_COPIES_MAX = 16,
	KERNELS_REPEATS_MAX = 15,
	KERNELS_TRIES = 4, /* before a ratio that cannot be is believed */
};

#define KERNELS_WARM_BYTES (32u << 20) /* that one timed pass in cache goes over */
#define KERNELS_RATIO_MAX  1.05

struct kernels_bench {
	bool json, quick;
	int isa; /* index of kernels_isas */
	struct args_list workers;
	const char *only;
	unsigned repeats;
	uint64_t cold_bytes; /* footprint of all arrays together */
	uint64_t warm_bytes;
	struct mem_region memory;
	struct output_table table;
	struct output_progress progress;
	unsigned done, total;
	bool failed;
};

/* The arrays of one case and how they are walked. */
struct kernels_walk {
	const struct kernel_case *c;
	const struct kernels *kernels;
	unsigned sources, arrays;
	bool cold;
	unsigned char *base;
	size_t array_bytes, chunk_bytes;
	unsigned passes; /* over all chunks, in one timed run */
};

struct kernels_result {
	double kernel, roofline; /* GB of gradient a second */
	const char *copy;
};

enum { KERNELS_ISA_AUTO, KERNELS_ISA_ALL }; /* else a name */
static const char *const kernels_isas[] = {"auto", "all", "base", "avx2", "avx512", "neon", NULL};

static uint64_t kernels_cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static void kernels_call_copy(const struct kernels_walk *w, const struct roofline_copy *copy, void *const *arrays)
{
	unsigned inout = kernel_case_inout(w->c);

	copy->run(&(struct roofline_args){
		.src = (const void *const *)arrays,
		.src_count = w->sources,
		.inout = arrays + w->sources,
		.inout_count = inout,
		.out = arrays + w->sources + inout,
		.out_count = kernel_case_out(w->c),
		.bytes = w->chunk_bytes,
	});
}

/* One timed run of the kernel, or of a copy when there is one: gradient GB/s. */
static double kernels_time(const struct kernels_walk *w, const struct roofline_copy *copy)
{
	uint64_t begin_ns = kernels_cpu_ns(), spent_ns;

	for (unsigned pass = 0; pass < w->passes; pass++) {
		for (size_t at = 0; at < w->array_bytes; at += w->chunk_bytes) {
			void *arrays[KERNEL_ARRAYS_MAX];

			for (unsigned a = 0; a < w->arrays; a++)
				arrays[a] = w->base + a * w->array_bytes + at;
			if (copy)
				kernels_call_copy(w, copy, arrays);
			else
				kernel_case_call(w->c, w->kernels, w->sources, arrays, w->chunk_bytes);
		}
	}
	spent_ns = kernels_cpu_ns() - begin_ns;
	return (double)w->passes * (double)w->array_bytes * w->sources / (double)(spent_ns ? spent_ns : 1);
}

static int kernels_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double kernels_median(double *values, unsigned count)
{
	qsort(values, count, sizeof(*values), kernels_compare);
	return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/*
 * 2^-7 as f32 and bf16, 1 as f16, anew for every case: nothing denormal, and nothing that an earlier case left behind
 * (a NaN would end a search at once).
 */
static void kernels_fill(const struct kernels_walk *w)
{
	for (size_t i = 0; i < w->arrays * w->array_bytes; i += 4)
		memcpy(w->base + i, &(uint32_t){0x3c003c00}, 4);
}

static struct kernels_result kernels_measure_once(const struct kernels_walk *w, unsigned repeats)
{
	double kernel[KERNELS_REPEATS_MAX] = {0}, copies[KERNELS_COPIES_MAX][KERNELS_REPEATS_MAX] = {{0}};
	struct kernels_result result = {0};
	const struct roofline_copy *copy;

	kernels_fill(w);
	kernels_time(w, NULL); /* pages, caches, clock rate */
	for (unsigned r = 0; r < repeats; r++) {
		kernel[r] = kernels_time(w, NULL);
		for (unsigned i = 0; i < KERNELS_COPIES_MAX && (copy = roofline_at(i)); i++)
			copies[i][r] = kernels_time(w, copy);
	}
	result.kernel = kernels_median(kernel, repeats);
	for (unsigned i = 0; i < KERNELS_COPIES_MAX && (copy = roofline_at(i)); i++) {
		double median = kernels_median(copies[i], repeats);

		if (median > result.roofline) {
			result.roofline = median;
			result.copy = copy->name;
		}
	}
	return result;
}

/* A kernel cannot be faster than memory: a ratio above the limit is noise, measured again, or a wrong roofline. */
static struct kernels_result kernels_measure(const struct kernels_walk *w, unsigned repeats)
{
	struct kernels_result result = {0};

	for (unsigned i = 0; i < KERNELS_TRIES; i++) {
		result = kernels_measure_once(w, repeats);
		if (result.kernel <= result.roofline * KERNELS_RATIO_MAX)
			break;
	}
	return result;
}

static bool kernels_report(struct kernels_bench *b, const struct kernels_walk *w, const struct kernels_result *r)
{
	const char *cache = w->cold ? "cold" : "warm";
	double ratio = r->kernel / r->roofline;

	if (ratio > KERNELS_RATIO_MAX) {
		b->failed = true;
		output_progress_end(&b->progress);
		output_error("%s %s, %u workers, %s: %.2f GB/s is %.0f %% of the roofline, which must be wrong; run it "
			     "again on "
			     "an idle machine",
			w->c->name, w->kernels->name, w->sources, cache, r->kernel, ratio * 100);
	}
	if (b->json)
		return output_json(json_pack("{s:s, s:s, s:s, s:i, s:s, s:f, s:f}", "bench", "kernel", "kernel",
			w->c->name, "isa", w->kernels->name, "workers", (int)w->sources, "cache", cache, "gb_per_s",
			r->kernel, "roofline_gb_per_s", r->roofline));
	output_cell(&b->table, "%s", w->c->name);
	output_cell(&b->table, "%s", w->kernels->name);
	output_cell(&b->table, "%u", w->sources);
	output_cell(&b->table, "%s", cache);
	output_cell(&b->table, "%.2f", r->kernel);
	output_cell(&b->table, "%.2f", r->roofline);
	output_cell(&b->table, "%.0f %%", ratio * 100);
	output_cell(&b->table, "%s", r->copy);
	return true;
}

static struct kernels_walk kernels_walk_of(const struct kernels_bench *b, const struct kernel_case *c,
	const struct kernels *kernels, unsigned sources, bool cold)
{
	unsigned arrays = sources + kernel_case_inout(c) + kernel_case_out(c);
	struct kernels_walk w = {
		.c = c,
		.kernels = kernels,
		.sources = sources,
		.arrays = arrays,
		.cold = cold,
		.base = b->memory.base,
		.chunk_bytes = KERNELS_CHUNK_BYTES,
		.passes = 1,
	};

	if (cold) {
		w.array_bytes = (b->cold_bytes / arrays / w.chunk_bytes + 1) * w.chunk_bytes;
	} else {
		while (w.chunk_bytes > ROOFLINE_BLOCK && w.chunk_bytes * arrays > b->warm_bytes)
			w.chunk_bytes /= 2;
		w.array_bytes = w.chunk_bytes;
		w.passes = (unsigned)(KERNELS_WARM_BYTES / (w.array_bytes * arrays));
	}
	return w;
}

static bool kernels_run_case(
	struct kernels_bench *b, const struct kernel_case *c, const struct kernels *kernels, unsigned sources)
{
	for (int cold = 0; cold < 2; cold++) {
		struct kernels_walk w = kernels_walk_of(b, c, kernels, sources, cold);
		struct kernels_result result;

		b->progress.label = c->name;
		output_progress_update(&b->progress, b->done++, b->total);
		result = kernels_measure(&w, b->repeats);
		if (!kernels_report(b, &w, &result))
			return false;
	}
	return true;
}

static bool kernels_run_table(struct kernels_bench *b, const struct kernels *kernels)
{
	for (const struct kernel_case *c = kernel_cases; c->name; c++) {
		unsigned counts = c->one_source ? 1 : b->workers.count;

		if (b->only && strcmp(b->only, c->name) != 0)
			continue;
		for (unsigned i = 0; i < counts; i++) {
			if (!kernels_run_case(b, c, kernels, c->one_source ? 1 : (unsigned)b->workers.at[i]))
				return false;
		}
	}
	return true;
}

static unsigned kernels_count_cases(const struct kernels_bench *b)
{
	unsigned count = 0;

	for (const struct kernel_case *c = kernel_cases; c->name; c++) {
		if (!b->only || strcmp(b->only, c->name) == 0)
			count += 2 * (c->one_source ? 1 : b->workers.count);
	}
	return count;
}

static int kernels_prepare(struct kernels_bench *b, struct err *e)
{
	struct host *host = malloc(sizeof(*host));
	long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
	int rc = host ? discover_host(NULL, host, e) : err_set(e, -ENOMEM, "out of memory");

	if (rc == 0) {
		uint64_t llc = host->llc_bytes ? host->llc_bytes : 32u << 20;

		b->cold_bytes = 4 * llc;
		b->warm_bytes = (uint64_t)(l2 > 0 ? l2 : 512 << 10) * 3 / 4;
		/* Each array is rounded up to a chunk, and one chunk more. */
		rc = mem_region_create(b->cold_bytes + (KERNEL_ARRAYS_MAX + 1) * KERNELS_CHUNK_BYTES,
			MEM_HUGE | MEM_POPULATE, MEM_NODE_ANY, &b->memory, e);
	}
	free(host);
	if (rc < 0)
		return rc;
	b->repeats = b->quick ? 5 : 9;
	return 0;
}

static int kernels_run_tables(struct kernels_bench *b)
{
	static const char prefix[] = "PHUB_ISA: ";
	const struct kernels *kernels;
	char error[256];
	bool ok = true;
	int rc;

	if (b->isa == KERNELS_ISA_ALL) {
		unsigned tables = 0;

		while (dispatch_at(tables))
			tables++;
		b->total = kernels_count_cases(b) * tables;
		for (unsigned i = 0; ok && (kernels = dispatch_at(i)); i++)
			ok = kernels_run_table(b, kernels);
	} else {
		rc = b->isa != KERNELS_ISA_AUTO ? dispatch_select(kernels_isas[b->isa], &kernels, error, sizeof(error))
						: dispatch_from_env(&kernels, error, sizeof(error));
		if (rc < 0) {
			/* The error begins with the variable, which is not what was typed. */
			bool typed = b->isa != KERNELS_ISA_AUTO && strncmp(error, prefix, strlen(prefix)) == 0;

			output_error("%s%s", typed ? "--isa: " : "", typed ? error + strlen(prefix) : error);
			return CLI_FAILED;
		}
		b->total = kernels_count_cases(b);
		ok = kernels_run_table(b, kernels);
	}
	output_progress_end(&b->progress);
	if (!b->json)
		output_table_print(&b->table);
	return ok && !b->failed ? CLI_DONE : CLI_FAILED;
}

static int kernels_check_only(const struct args_usage *usage, const char *only)
{
	char names[512] = "";
	size_t used = 0;

	for (const struct kernel_case *c = kernel_cases; c->name; c++) {
		if (!only || strcmp(c->name, only) == 0)
			return ARGS_GO_ON;
		if (used < sizeof(names))
			used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", used ? ", " : "", c->name);
	}
	return args_wrong(usage, "--kernel %s: allowed: %s", only, names);
}

int bench_kernels_run(int argc, char **argv)
{
	struct kernels_bench b = {
		.workers = {.count = 0},
		.table = {.heads = {"kernel", "isa", "workers", "cache", "GB/s", "roofline", "share", "fastest copy"},
			.align = "llrlrrrl"},
	};
	const struct args_option options[] = {
		{"isa", "NAME", "auto (as PHUB_ISA says), all, base, avx2, avx512 or neon", ARGS_CHOICE, &b.isa, 0, 0,
			kernels_isas},
		{"workers", "LIST", "how many gradients are summed (2,4,8,16)", ARGS_LIST, &b.workers, 1,
			KERNEL_SOURCES_MAX, NULL},
		{"kernel", "NAME", "only this one", ARGS_TEXT, &b.only, 0, 0, NULL},
		{"quick", NULL, "4 workers and fewer repetitions: a quarter of a minute", ARGS_FLAG, &b.quick, 0, 0,
			NULL},
		{"json", NULL, "one JSON object a line", ARGS_FLAG, &b.json, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = "phub bench kernels",
		.about = "Measures each kernel on one CPU, in GB of gradients read a second (workers x bytes), warm "
			 "(all in L2) and\n"
			 "cold (4 times the last-level cache), beside the machine's roofline: the fastest of plain, "
			 "AVX2 and\n"
			 "AVX-512 copies of the same arrays, with cached or non-temporal stores, with or without "
			 "prefetch.\n"
			 "Medians of 9 runs, kernel and copies taking turns. A share above 105 % fails: the roofline "
			 "was wrong.\n",
		.examples =
			"  phub bench kernels --quick\n  phub bench kernels --isa all --kernel sum_f32 --workers 4\n",
		.options = options,
	};
	struct args_words words;
	struct err e;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc == ARGS_GO_ON)
		rc = kernels_check_only(&usage, b.only);
	if (rc != ARGS_GO_ON)
		return rc;
	if (!b.workers.count)
		b.workers = b.quick ? (struct args_list){1, {4}} : (struct args_list){4, {2, 4, 8, 16}};
	if (kernels_prepare(&b, &e) < 0) {
		output_error("%s", e.text);
		return CLI_FAILED;
	}
	rc = kernels_run_tables(&b);
	mem_region_destroy(&b.memory);
	return rc;
}
