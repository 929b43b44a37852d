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
#include <unistd.h>

#include "aggregation/dispatch.h"
#include "aggregation/kernels_roofline.h"
#include "phub/base/clock.h"
#include "phub/base/mem.h"
#include "phub/cli/args.h"
#include "phub/cli/cli.h"
#include "phub/cli/kernel_cases.h"
#include "phub/cli/output.h"
#include "phub/cli/trial.h"
#include "topology/discover.h"

enum {
	KERNELS_CHUNK_BYTES = 32 << 10,
	KERNELS_COPIES_MAX = 16,
	KERNELS_REPEATS_MAX = 15,
	KERNELS_TRIAL = 3,    /* runs of every copy, to find the fastest two */
	KERNELS_WINDOWS = 16, /* a timed run in memory goes over one, the next run over the next one */
	KERNELS_TRIES = 4,    /* before a ratio that cannot be is believed */
};

#define KERNELS_WARM_BYTES (32u << 20) /* that one timed pass in cache goes over */
#define KERNELS_RATIO_MAX  1.05

struct kernels_bench {
	bool json, quick, once;
	int isa;    /* index of kernels_isas */
	int stores; /* of kernels_stores_names */
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
	enum stores stores; /* of the result */
	unsigned sources, arrays;
	bool cold;
	unsigned char *base;
	size_t array_bytes, chunk_bytes; /* of a source; a wider array has a multiple */
	size_t offset[KERNEL_ARRAYS_MAX];
	unsigned width[KERNEL_ARRAYS_MAX + 1]; /* 0 behind the last array */
	size_t at, window_bytes;               /* where the next timed run begins, and how far it goes */
	unsigned passes;                       /* over the window, in one timed run */
};

struct kernels_result {
	double kernel, roofline; /* GB of gradient a second, medians */
	double slowest, fastest; /* of the kernel's runs */
	const char *copy;
};

enum { KERNELS_ISA_AUTO, KERNELS_ISA_ALL }; /* else a name */
static const char *const kernels_isas[] = {"auto", "all", "base", "avx2", "avx512", "neon", NULL};

enum { KERNELS_STORES_AUTO, KERNELS_STORES_CACHED, KERNELS_STORES_STREAMED };
static const char *const kernels_stores_names[] = {"auto", "cached", "streamed", NULL};

static void kernels_call_copy(const struct kernels_walk *w, const struct roofline_copy *copy, void *const *arrays)
{
	unsigned inout = w->sources, out = inout + kernel_case_inout(w->c);

	copy->run(&(struct roofline_args){
		.src = (const void *const *)arrays,
		.src_count = w->sources,
		.inout = arrays + inout,
		.inout_count = out - inout,
		.inout_width = w->width[inout],
		.out = arrays + out,
		.out_count = w->arrays - out,
		.out_width = w->width[out],
		.bytes = w->chunk_bytes,
	});
}

static void kernels_arrays_at(const struct kernels_walk *w, size_t at, void **arrays)
{
	for (unsigned a = 0; a < w->arrays; a++)
		arrays[a] = w->base + w->offset[a] + at * w->width[a];
}

/* One timed run of the kernel, or of a copy when there is one: gradient GB/s. */
static double kernels_time(struct kernels_walk *w, const struct roofline_copy *copy)
{
	uint64_t begin_ns = clock_thread_cpu_ns(), spent_ns;

	for (unsigned pass = 0; pass < w->passes; pass++) {
		for (size_t at = w->at; at < w->at + w->window_bytes; at += w->chunk_bytes) {
			void *arrays[KERNEL_ARRAYS_MAX];

			kernels_arrays_at(w, at, arrays);
			if (copy)
				kernels_call_copy(w, copy, arrays);
			else
				kernel_case_call(w->c, w->kernels, w->stores, w->sources, arrays, w->chunk_bytes);
		}
	}
	spent_ns = clock_thread_cpu_ns() - begin_ns;
	w->at = (w->at + w->window_bytes) % w->array_bytes;
	return (double)w->passes * (double)w->window_bytes * w->sources / (double)(spent_ns ? spent_ns : 1);
}

/*
 * 2^-7 as f32 and bf16, 1 as f16, anew for every case: nothing denormal, and nothing that an earlier case left behind
 * (a NaN would end a search at once). In the order of the walk: what is in the cache afterwards comes last.
 */
static void kernels_fill(const struct kernels_walk *w)
{
	static const uint32_t value = 0x3c003c00;

	for (size_t at = 0; at < w->array_bytes; at += w->chunk_bytes) {
		void *arrays[KERNEL_ARRAYS_MAX];

		kernels_arrays_at(w, at, arrays);
		for (unsigned a = 0; a < w->arrays; a++) {
			for (size_t i = 0; i < w->chunk_bytes * w->width[a]; i += sizeof(value))
				memcpy((unsigned char *)arrays[a] + i, &value, sizeof(value));
		}
	}
}

/*
 * A sum that is stored is added to next. Streamed, it would be fetched back from memory then: such copies are no
 * measure of it.
 */
static bool kernels_copy_fits(const struct kernels_walk *w, const struct roofline_copy *copy)
{
	return !(copy->streamed && w->c->op == KERNEL_STORE);
}

/* The fastest two copies, best first; those that lost by a lot need no more of the time. */
static void kernels_find_copies(struct kernels_walk *w, const struct roofline_copy *best[2])
{
	double trials[KERNELS_COPIES_MAX][KERNELS_TRIAL] = {{0}}, medians[2] = {0};
	const struct roofline_copy *copy;

	for (unsigned r = 0; r < KERNELS_TRIAL; r++) {
		for (unsigned i = 0; i < KERNELS_COPIES_MAX && (copy = roofline_at(i)); i++) {
			if (kernels_copy_fits(w, copy))
				trials[i][r] = kernels_time(w, copy);
		}
	}
	for (unsigned i = 0; i < KERNELS_COPIES_MAX && (copy = roofline_at(i)); i++) {
		double median = trial_median(trials[i], KERNELS_TRIAL);

		if (median > medians[0]) {
			medians[1] = medians[0];
			best[1] = best[0];
			medians[0] = median;
			best[0] = copy;
		} else if (median > medians[1]) {
			medians[1] = median;
			best[1] = copy;
		}
	}
}

/* Kernel and the fastest copies in turns, all anew: the best of many short trials would be too good. */
static struct kernels_result kernels_measure_once(struct kernels_walk *w, unsigned repeats)
{
	double kernel[KERNELS_REPEATS_MAX] = {0}, copies[2][KERNELS_REPEATS_MAX] = {{0}};
	const struct roofline_copy *best[2] = {NULL, NULL};
	struct kernels_result result = {0};

	kernels_find_copies(w, best);
	for (unsigned r = 0; r < repeats; r++) {
		kernel[r] = kernels_time(w, NULL);
		for (unsigned i = 0; i < 2; i++)
			copies[i][r] = kernels_time(w, best[i]);
	}
	result.kernel = trial_median(kernel, repeats); /* which sorts them */
	result.slowest = kernel[0];
	result.fastest = kernel[repeats - 1];
	for (unsigned i = 0; i < 2; i++) {
		double median = trial_median(copies[i], repeats);

		if (median > result.roofline) {
			result.roofline = median;
			result.copy = best[i]->name;
		}
	}
	return result;
}

/*
 * A kernel cannot be faster than memory: a ratio above the limit is noise, measured again, or a wrong roofline. In
 * cache a copy is no such limit: loops of the same loads and stores differ by some percent.
 */
static struct kernels_result kernels_measure(struct kernels_walk *w, unsigned repeats)
{
	struct kernels_result result = {0};

	kernels_fill(w);
	kernels_time(w, NULL); /* pages, caches, clock rate */
	for (unsigned i = 0; i < KERNELS_TRIES; i++) {
		result = kernels_measure_once(w, repeats);
		if (!w->cold || result.kernel <= result.roofline * KERNELS_RATIO_MAX)
			break;
	}
	return result;
}

static bool kernels_report(struct kernels_bench *b, const struct kernels_walk *w, const struct kernels_result *r)
{
	const char *cache = w->cold ? "cold" : "warm";
	const char *stores = w->stores == STORES_STREAMED ? "streamed" : "cached";
	double ratio = r->kernel / r->roofline;

	if (w->cold && ratio > KERNELS_RATIO_MAX) {
		b->failed = true;
		output_progress_end(&b->progress);
		output_error("%s %s, %u workers, %s: %.2f GB/s is %.0f %% of the roofline, which must be wrong; run it "
			     "again on "
			     "an idle machine",
			w->c->name, w->kernels->name, w->sources, cache, r->kernel, ratio * 100);
	}
	if (b->json)
		return output_json(json_pack("{s:s, s:s, s:s, s:i, s:s, s:f, s:f, s:s, s:f, s:f}", "bench", "kernel",
			"kernel", w->c->name, "isa", w->kernels->name, "workers", (int)w->sources, "cache", cache,
			"gb_per_s", r->kernel, "roofline_gb_per_s", r->roofline, "stores", stores, "gb_per_s_min",
			r->slowest, "gb_per_s_max", r->fastest));
	output_cell(&b->table, "%s", w->c->name);
	output_cell(&b->table, "%s", w->kernels->name);
	output_cell(&b->table, "%u", w->sources);
	output_cell(&b->table, "%s", cache);
	output_cell(&b->table, "%s", stores);
	output_cell(&b->table, "%.2f", r->kernel);
	output_cell(&b->table, "%.2f..%.2f", r->slowest, r->fastest);
	output_cell(&b->table, "%.2f", r->roofline);
	output_cell(&b->table, "%.0f %%", ratio * 100);
	output_cell(&b->table, "%s", r->copy);
	return true;
}

/* As phub/chunk.c does it for payloads that stay put: what does not stay in the cache anyway goes past it. */
static enum stores kernels_stores(const struct kernels_bench *b, const struct kernel_case *c, bool cold)
{
	bool streamed = b->stores == KERNELS_STORES_AUTO ? cold : b->stores == KERNELS_STORES_STREAMED;

	return streamed && kernel_case_streams(c) ? STORES_STREAMED : STORES_CACHED;
}

static struct kernels_walk kernels_walk_of(const struct kernels_bench *b, const struct kernel_case *c,
	const struct kernels *kernels, unsigned sources, bool cold)
{
	struct kernels_walk w = {
		.c = c,
		.kernels = kernels,
		.sources = sources,
		.arrays = sources + kernel_case_inout(c) + kernel_case_out(c),
		.cold = cold,
		.stores = kernels_stores(b, c, cold),
		.base = b->memory.base,
		.chunk_bytes = KERNELS_CHUNK_BYTES,
		.passes = 1,
	};
	size_t units = 0; /* of a source's bytes, all arrays together */

	for (unsigned a = 0; a < w.arrays; a++)
		units += w.width[a] = kernel_case_width(c, sources, a);
	if (cold) {
		w.window_bytes = (b->cold_bytes / units / KERNELS_WINDOWS / w.chunk_bytes + 1) * w.chunk_bytes;
		w.array_bytes = KERNELS_WINDOWS * w.window_bytes;
	} else {
		while (w.chunk_bytes > ROOFLINE_BLOCK && w.chunk_bytes * units > b->warm_bytes)
			w.chunk_bytes /= 2;
		w.array_bytes = w.window_bytes = w.chunk_bytes;
		w.passes = (unsigned)(KERNELS_WARM_BYTES / (w.array_bytes * units));
	}
	for (unsigned a = 1; a < w.arrays; a++)
		w.offset[a] = w.offset[a - 1] + w.array_bytes * w.width[a - 1];
	return w;
}

/* A function of its own: callgrind's --toggle-collect and --dump-after name it (tests/system/test_instructions.py). */
__attribute__((noinline)) static void kernels_call_once(const struct kernels_walk *w, void *const *arrays)
{
	kernel_case_call(w->c, w->kernels, w->stores, w->sources, arrays, w->chunk_bytes);
}

/* The chunk is as large as ever, whatever the cache: the same work on every machine. */
static bool kernels_run_once(
	struct kernels_bench *b, const struct kernel_case *c, const struct kernels *kernels, unsigned sources)
{
	struct kernels_walk w = kernels_walk_of(b, c, kernels, sources, false);
	void *arrays[KERNEL_ARRAYS_MAX];

	kernels_fill(&w);
	kernels_arrays_at(&w, 0, arrays);
	kernels_call_once(&w, arrays);
	if (b->json)
		return output_json(json_pack("{s:s, s:s, s:s, s:i, s:I}", "bench", "kernel_once", "kernel", c->name,
			"isa", kernels->name, "workers", (int)sources, "bytes", (json_int_t)(w.chunk_bytes * sources)));
	output_cell(&b->table, "%s", c->name);
	output_cell(&b->table, "%s", kernels->name);
	output_cell(&b->table, "%u", sources);
	output_cell(&b->table, "%zu", w.chunk_bytes * sources);
	return true;
}

static bool kernels_run_case(
	struct kernels_bench *b, const struct kernel_case *c, const struct kernels *kernels, unsigned sources)
{
	if (b->once)
		return kernels_run_once(b, c, kernels, sources);
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

static bool kernels_wanted(const struct kernels_bench *b, const struct kernel_case *c)
{
	return b->only ? strcmp(b->only, c->name) == 0 : c->quick || !b->quick;
}

static bool kernels_run_table(struct kernels_bench *b, const struct kernels *kernels)
{
	for (const struct kernel_case *c = kernel_cases; c->name; c++) {
		unsigned counts = c->one_source ? 1 : b->workers.count;

		if (!kernels_wanted(b, c))
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
		if (kernels_wanted(b, c))
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

		b->cold_bytes = b->once ? 0 : 4 * llc;
		b->warm_bytes = b->once ? UINT64_MAX : (uint64_t)(l2 > 0 ? l2 : 512 << 10) * 3 / 4;
		/* Each window of each array is rounded up to a chunk. */
		rc = mem_region_create(b->cold_bytes + 2ull * KERNEL_ARRAYS_MAX * KERNELS_WINDOWS * KERNELS_CHUNK_BYTES,
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
	char names[1024] = "";
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
		.table = {.heads = {"kernel", "isa", "workers", "cache", "stores", "GB/s", "min..max", "roofline",
				  "share", "fastest copy"},
			.align = "llrllrrrrl"},
	};
	const struct args_option options[] = {
		{"isa", "NAME", "auto (as PHUB_ISA says), all, base, avx2, avx512 or neon", ARGS_CHOICE, &b.isa, 0, 0,
			kernels_isas},
		{"workers", "LIST", "how many gradients are summed (2,4,8,16)", ARGS_LIST, &b.workers, 1,
			KERNEL_SOURCES_MAX, NULL},
		{"kernel", "NAME", "only this one", ARGS_TEXT, &b.only, 0, 0, NULL},
		{"stores", "HOW", "of results: auto (streamed when cold, as the box does), cached or streamed",
			ARGS_CHOICE, &b.stores, 0, 0, kernels_stores_names},
		{"once", NULL, "call each once on a chunk and time nothing: for counting instructions", ARGS_FLAG,
			&b.once, 0, 0, NULL},
		{"quick", NULL, "half precision only in sums, fewer repetitions: half a minute", ARGS_FLAG, &b.quick, 0,
			0, NULL},
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
			 "prefetch;\n"
			 "for store_*, whose sums are added to next, with cached stores.\n"
			 "Medians of 9 runs (--quick: 5), kernel and copies taking turns, and "
			 "their spread.\n"
			 "A cold share above 105 % fails: the roofline was wrong.\n",
		.examples = "  phub bench kernels --quick\n"
			    "  phub bench kernels --isa all --kernel sum_f32 --workers 4\n"
			    "  phub bench kernels --kernel sum_f32 --stores cached\n",
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
		b.workers = (struct args_list){4, {2, 4, 8, 16}};
	if (b.once)
		b.table = (struct output_table){.heads = {"kernel", "isa", "workers", "bytes"}, .align = "llrr"};
	if (kernels_prepare(&b, &e) < 0) {
		output_error("%s", e.text);
		return CLI_FAILED;
	}
	rc = kernels_run_tables(&b);
	mem_region_destroy(&b.memory);
	return rc;
}
