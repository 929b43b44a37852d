/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub bench aggregation: ways of summing the workers' gradients on several cores, without any transport, beside each
 * other: PHub's own microtests (SoCC'18). The ways take turns on the same arrays, and the medians are compared; what
 * they do is in sweep.c and sweep_turn.c.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregation/dispatch.h"
#include "phub/cli/args.h"
#include "phub/cli/cli.h"
#include "phub/cli/models.h"
#include "phub/cli/output.h"
#include "phub/cli/sweep.h"

enum { AGGREGATION_WAYS_MAX = 16, AGGREGATION_ROUNDS_MAX = 1000, AGGREGATION_ALL = 2 };

static const char *const aggregation_hows[] = {"tall", "wide", "all", NULL};
static const char *const aggregation_adds[] = {"held", "arriving", "all", NULL};
static const char *const aggregation_stores[] = {"cached", "streamed", "all", NULL};
static const char *const aggregation_passes[] = {"fused", "separate"};

struct aggregation_way {
	struct sweep_way way;
	struct sweep_took took[AGGREGATION_ROUNDS_MAX];
	uint64_t errors;
	/* of all turns: wall time, and CPU time of the cores */
	double p50_ms, min_ms, max_ms, cpu_ms;
};

struct aggregation {
	int how, adds, stores;
	bool fused, separate, json, plant;
	const char *optimizer_name, *model_name;
	enum optimizer_kind optimizer;
	uint64_t workers, cores, bytes, keys, chunk, rounds;
	struct model model;
	struct sweep sweep;
	unsigned way_count;
	struct aggregation_way ways[AGGREGATION_WAYS_MAX];
};

/* ---- which ways ---- */

static bool aggregation_wants(int option, int value)
{
	return option == AGGREGATION_ALL || option == value;
}

static bool aggregation_wants_pass(const struct aggregation *a, int pass)
{
	return pass == SWEEP_SEPARATE ? a->separate : a->fused || !a->separate;
}

/* Streamed stores are there for one pass over held gradients: the others read soon what they have written. */
static bool aggregation_is_possible(const struct sweep_way *way)
{
	return way->stores == SWEEP_CACHED || (way->adds == SWEEP_HELD && way->pass == SWEEP_FUSED);
}

static void aggregation_list_ways(struct aggregation *a)
{
	for (unsigned i = 0; i < AGGREGATION_WAYS_MAX; i++) {
		struct sweep_way way = {
			.adds = i / 8 % 2 ? SWEEP_ARRIVING : SWEEP_HELD,
			.pass = i / 4 % 2 ? SWEEP_SEPARATE : SWEEP_FUSED,
			.stores = i / 2 % 2 ? SWEEP_STREAMED : SWEEP_CACHED,
			.how = i % 2 ? SWEEP_WIDE : SWEEP_TALL,
		};

		if (aggregation_wants(a->how, way.how) && aggregation_wants(a->adds, way.adds) &&
			aggregation_wants_pass(a, way.pass) && aggregation_wants(a->stores, way.stores) &&
			aggregation_is_possible(&way))
			a->ways[a->way_count++].way = way;
	}
}

/* ---- turns ---- */

/* A turn that is not timed, with its results compared. */
static int aggregation_check(struct aggregation *a, struct aggregation_way *w, struct err *e)
{
	struct sweep_took took;
	const char *key = "?";
	uint64_t wrong;
	int rc;

	sweep_poison(&a->sweep);
	rc = sweep_turn(&a->sweep, &w->way, &took, e);
	if (rc < 0)
		return rc;
	wrong = sweep_check(&a->sweep, &key);
	w->errors += wrong;
	if (wrong)
		output_error("%s, %s, %s, %s: %" PRIu64 " numbers are not those of a serial calculation, first in %s",
			aggregation_hows[w->way.how], aggregation_adds[w->way.adds], aggregation_passes[w->way.pass],
			aggregation_stores[w->way.stores], wrong, key);
	return 0;
}

static int aggregation_check_all(struct aggregation *a, struct err *e)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < a->way_count; i++)
		rc = aggregation_check(a, &a->ways[i], e);
	return rc;
}

static int aggregation_measure(struct aggregation *a, struct err *e)
{
	struct output_progress progress = {.label = "aggregation"};
	int rc = aggregation_check_all(a, e); /* and warms up */

	for (unsigned round = 0; rc == 0 && round < a->rounds; round++) {
		for (unsigned i = 0; rc == 0 && i < a->way_count; i++)
			rc = sweep_turn(&a->sweep, &a->ways[i].way, &a->ways[i].took[round], e);
		output_progress_update(&progress, round + 1, a->rounds);
	}
	output_progress_end(&progress);
	a->sweep.plant = a->plant;
	return rc < 0 ? rc : aggregation_check_all(a, e);
}

/* ---- numbers ---- */

static int aggregation_compare(const void *x, const void *y)
{
	const struct sweep_took *a = x, *b = y;

	return (a->wall_ns > b->wall_ns) - (a->wall_ns < b->wall_ns);
}

static void aggregation_count(struct aggregation_way *w, unsigned rounds)
{
	qsort(w->took, rounds, sizeof(w->took[0]), aggregation_compare);
	w->min_ms = (double)w->took[0].wall_ns / 1e6;
	w->p50_ms = (double)(w->took[(rounds - 1) / 2].wall_ns + w->took[rounds / 2].wall_ns) / 2e6;
	w->max_ms = (double)w->took[rounds - 1].wall_ns / 1e6;
	for (unsigned i = 0; i < rounds; i++)
		w->cpu_ms += (double)w->took[i].cpu_ns / 1e6 / rounds;
}

static bool aggregation_print_json(const struct aggregation *a, const struct aggregation_way *w, double bytes)
{
	return output_json(json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:I, s:I, s:i, s:i, s:f, s:f, s:f, "
				     "s:f, s:f, s:I, s:I}",
		"bench", "aggregation", "how", aggregation_hows[w->way.how], "adds", aggregation_adds[w->way.adds],
		"pass", aggregation_passes[w->way.pass], "stores", aggregation_stores[w->way.stores], "model",
		a->model.name, "optimizer", optimizer_kind_name(a->optimizer), "workers", (int)a->workers, "cores",
		(int)a->sweep.cores, "bytes", (json_int_t)a->sweep.plan.payload_bytes, "chunk", (json_int_t)a->chunk,
		"keys", (int)a->sweep.plan.key_count, "rounds", (int)a->rounds, "p50_ms", w->p50_ms, "min_ms",
		w->min_ms, "max_ms", w->max_ms, "gb_per_s", bytes / w->p50_ms / 1e6, "cpu_s_per_gb",
		w->cpu_ms * 1e6 / bytes, "waits", (json_int_t)w->took[0].waits, "errors", (json_int_t)w->errors));
}

static void aggregation_print_table(const struct aggregation *a, double bytes)
{
	struct output_table table = {.heads = {"how", "adds", "pass", "stores", "p50 ms", "min", "max", "GB/s",
					     "CPU s/GB", "waits", "speed"},
		.align = "llllrrrrrrr"};
	char text[32];

	printf("%s: %" PRIu32 " keys of %s together, %" PRIu64 " workers, %u cores, optimizer %s, kernels %s\n",
		a->model.name, a->sweep.plan.key_count, output_bytes(a->sweep.plan.payload_bytes, text), a->workers,
		a->sweep.cores, optimizer_kind_name(a->optimizer), a->sweep.kernels->name);
	for (unsigned i = 0; i < a->way_count; i++) {
		const struct aggregation_way *w = &a->ways[i];

		output_cell(&table, "%s", aggregation_hows[w->way.how]);
		output_cell(&table, "%s", aggregation_adds[w->way.adds]);
		output_cell(&table, "%s", aggregation_passes[w->way.pass]);
		output_cell(&table, "%s", aggregation_stores[w->way.stores]);
		output_cell(&table, "%.3f", w->p50_ms);
		output_cell(&table, "%.3f", w->min_ms);
		output_cell(&table, "%.3f", w->max_ms);
		output_cell(&table, "%.2f", bytes / w->p50_ms / 1e6);
		output_cell(&table, "%.3f", w->cpu_ms * 1e6 / bytes);
		output_cell(&table, "%" PRIu64, w->took[0].waits);
		output_cell(&table, "%.2fx", a->ways[0].p50_ms / w->p50_ms);
	}
	output_table_print(&table);
}

static int aggregation_report(struct aggregation *a)
{
	double bytes = (double)a->sweep.plan.payload_bytes * (double)a->workers;
	uint64_t errors = 0;
	bool ok = true;

	for (unsigned i = 0; i < a->way_count; i++) {
		aggregation_count(&a->ways[i], (unsigned)a->rounds);
		errors += a->ways[i].errors;
		if (a->json)
			ok = ok && aggregation_print_json(a, &a->ways[i], bytes);
	}
	if (!a->json)
		aggregation_print_table(a, bytes);
	return ok && !errors ? CLI_DONE : CLI_FAILED;
}

/* ---- the run ---- */

static int aggregation_load_model(struct aggregation *a, struct err *e)
{
	int rc;

	if (!a->model_name)
		return models_make(a->bytes, a->keys, CHUNK_F32, &a->model, e);
	rc = models_load(a->model_name, &a->model, e);
	for (size_t i = 0; rc == 0 && i < a->model.count; i++)
		a->model.tensors[i].dtype = CHUNK_F32; /* as sums and weights are, whatever is on the wire */
	return rc;
}

static int aggregation_go(struct aggregation *a)
{
	char text[256];
	struct err e = {0};
	int rc = aggregation_load_model(a, &e);

	a->sweep = (struct sweep){
		.model = &a->model,
		.optimizer = a->optimizer,
		.workers = (unsigned)a->workers,
		.cores = (unsigned)a->cores,
		.chunk_bytes = (uint32_t)a->chunk,
	};
	if (rc == 0 && (rc = dispatch_from_env(&a->sweep.kernels, text, sizeof(text))) < 0)
		err_set(&e, rc, "%s", text);
	if (rc == 0)
		rc = sweep_init(&a->sweep, &e);
	if (rc == 0 && !a->sweep.stream && a->stores != SWEEP_CACHED)
		rc = err_set(&e, -ENOTSUP, "this machine has no streamed stores; leave --stores away");
	if (rc == 0)
		rc = aggregation_measure(a, &e);
	if (rc < 0)
		output_error("%s", e.text);
	rc = rc < 0 ? CLI_FAILED : aggregation_report(a);
	sweep_fini(&a->sweep);
	model_destroy(&a->model);
	return rc;
}

/* ---- options ---- */

static int aggregation_check_options(const struct args_usage *usage, struct aggregation *a)
{
	char text[256];

	if (optimizer_kind_parse(a->optimizer_name, &a->optimizer, text, sizeof(text)) < 0)
		return args_wrong(usage, "--optimizer: %s", text);
	if (a->bytes && a->model_name)
		return args_wrong(usage, "give either --bytes or --model");
	if (a->model_name && a->keys != 1)
		return args_wrong(usage, "--keys belongs to --bytes; a model has keys of its own");
	if (a->bytes && (a->bytes % sizeof(float) || a->bytes / sizeof(float) < a->keys))
		return args_wrong(usage, "%" PRIu64 " bytes cannot be %" PRIu64 " keys of f32; take a multiple of %zu",
			a->bytes, a->keys, sizeof(float) * (size_t)a->keys);
	if (a->separate && a->optimizer == OPTIMIZER_NONE)
		return args_wrong(usage, "--separate needs an optimizer to be separate from; give --optimizer");
	if (!a->bytes && !a->model_name)
		a->model_name = "resnet-18";
	if (a->model_name && models_check(usage, a->model_name) != ARGS_GO_ON)
		return CLI_USAGE;
	aggregation_list_ways(a);
	if (!a->way_count)
		return args_wrong(usage, "--stores streamed goes with held gradients and a fused optimizer only");
	return ARGS_GO_ON;
}

static const char aggregation_about[] =
	"Adds the gradients of N workers and takes an optimizer's step, on pinned threads, with the kernels of the "
	"box\n"
	"and without any transport, in several ways that take turns on the same arrays:\n"
	"\n"
	"  tall      each core has chunks of its own, placed as the box does, and never waits\n"
	"  wide      all cores share every key, and wait for each other (a spinning barrier) behind it\n"
	"  held      one pass over all N gradients, as from shared memory\n"
	"  arriving  one gradient after the other into a sum in memory, as from sockets; wide waits behind each\n"
	"  fused     the optimizer's step is in the pass of the last gradient\n"
	"  separate  all sums go to memory; when the last is there, the optimizer goes over all of them\n"
	"  cached    sums, or weights and state, are written through the caches\n"
	"  streamed  past the caches (non-temporal stores); fused and held only. Sums (--optimizer none) by the\n"
	"            kernels themselves, as the box does; weights and state, which kernels rewrite in place, are\n"
	"            copied out past the caches from first-level blocks: the box does not do that\n"
	"\n"
	"Prints medians of R turns, GB of gradients a second (workers x bytes), CPU seconds of the cores, and the "
	"speed\n"
	"beside the first line. A first and a last turn of each way are not timed: weights, state and sums are "
	"compared\n"
	"bit by bit with a serial calculation, and a wrong one fails the run.\n";

static const char aggregation_examples[] =
	"  phub bench aggregation --workers 8 --how all --adds arriving\n"
	"  phub bench aggregation --how tall --fused --separate --stores all --optimizer nesterov\n"
	"  phub bench aggregation --bytes 64MB --keys 1000 --how all --cores 2 --json\n";

int bench_aggregation_run(int argc, char **argv)
{
	static struct aggregation a = {
		.how = AGGREGATION_ALL,
		.optimizer_name = "nesterov",
		.workers = 8,
		.keys = 1,
		.chunk = CHUNKING_CHUNK_BYTES_DEFAULT,
		.rounds = 9,
	};
	const struct args_option options[] = {
		{"how", "NAME", "tall, wide or all (all)", ARGS_CHOICE, &a.how, 0, 0, aggregation_hows},
		{"adds", "NAME", "held, arriving or all (held)", ARGS_CHOICE, &a.adds, 0, 0, aggregation_adds},
		{"fused", NULL, "the optimizer in the last gradient's pass (so unless --separate)", ARGS_FLAG, &a.fused,
			0, 0, NULL},
		{"separate", NULL, "the optimizer in a pass of its own; both flags: both", ARGS_FLAG, &a.separate, 0, 0,
			NULL},
		{"stores", "NAME", "cached, streamed or all (cached)", ARGS_CHOICE, &a.stores, 0, 0,
			aggregation_stores},
		{"optimizer", "NAME", "none, sgd, momentum, nesterov, adagrad, adam, adamw (nesterov)", ARGS_TEXT,
			&a.optimizer_name, 0, 0, NULL},
		{"workers", "N", "gradients that are summed (8)", ARGS_NUMBER, &a.workers, 1, SWEEP_WORKERS_MAX, NULL},
		{"cores", "C", "threads, each on a CPU of its own (as many as there are CPUs)", ARGS_NUMBER, &a.cores,
			1, SWEEP_CORES_MAX, NULL},
		{"model", "NAME", "whose tensors (resnet-18): see phub models; or a FILE.csv", ARGS_TEXT, &a.model_name,
			0, 0, NULL},
		{"bytes", "B", "so much instead, like 100MB or 64KiB", ARGS_BYTES, &a.bytes, 4, UINT64_C(1) << 40,
			NULL},
		{"keys", "N", "cut --bytes into so many keys (1)", ARGS_NUMBER, &a.keys, 1, 1000000, NULL},
		{"chunk", "BYTES", "of a chunk, a power of two (32KiB)", ARGS_POWER, &a.chunk, CHUNKING_CHUNK_BYTES_MIN,
			CHUNKING_CHUNK_BYTES_MAX, NULL},
		{"rounds", "R", "timed turns of each way (9)", ARGS_NUMBER, &a.rounds, 1, AGGREGATION_ROUNDS_MAX, NULL},
		{"json", NULL, "one JSON object a line", ARGS_FLAG, &a.json, 0, 0, NULL},
		{"plant", NULL, NULL, ARGS_FLAG, &a.plant, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = "phub bench aggregation",
		.about = aggregation_about,
		.examples = aggregation_examples,
		.options = options,
	};
	struct args_words words;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc == ARGS_GO_ON)
		rc = aggregation_check_options(&usage, &a);
	return rc == ARGS_GO_ON ? aggregation_go(&a) : rc;
}
