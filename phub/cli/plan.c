/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub plan: which resource of a box would limit, and at what rate. Here are the options, and what stands in for those
 * that were not given; the arithmetic is topology/plan.c.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregation/convert.h"
#include "phub/base/cpu.h"
#include "phub/cli/args.h"
#include "phub/cli/cli.h"
#include "phub/cli/models.h"
#include "phub/cli/output.h"
#include "phub/cli/plan_facts.h"
#include "phub/cli/plan_job.h"
#include "phub/cli/plan_measure.h"
#include "topology/chunking.h"
#include "topology/discover.h"

enum {
	PLAN_WORKERS_MAX = 100000,
	PLAN_NICS_MAX = 10000,
	PLAN_CPUS_MAX = 100000,
	PLAN_ABOUT_BYTES = 8192,
	PLAN_WORKERS = 4, /* for want of a word */
	PLAN_MTU = 1500,
	PLAN_RUNS = 3
};

#define PLAN_LINK_BYTES_S (25e9 / 8) /* for want of a NIC that tells its rate */
#define PLAN_NOT_GIVEN    UINT64_MAX /* of --frame, which may be 0 */
#define PLAN_RATE_MAX     1e18       /* of anything: what people type is far below, and products stay finite */

static const char *const plan_transports[] = {"shm", "tcp", "udp", "verbs", "dpdk", NULL};
static const char *const plan_dtypes[] = {"f32", "f16", "bf16", NULL};

struct plan_options {
	int transport, dtype;
	uint64_t workers, bytes, keys, chunk, nics, mtu, frame, cores, cpus, sweep, runs;
	const char *model, *optimizer_name, *link, *worker_link, *pcie, *cache_lines, *memory, *core_gbps, *latency_us,
		*compute_ms, *kernels, *costs, *phubd;
	enum optimizer_kind optimizer;
	bool here, calibrate, quick, json;
};

struct plan_run {
	struct plan_options o;
	struct plan_job job;
	struct plan_facts facts;
	struct host host;
	double core_gb_s;
};

/* ---- numbers with units ---- */

static const struct args_unit plan_link_units[] = {{"", 1e9 / 8}, {"Gbit", 1e9 / 8}, {"G", 1e9 / 8},
	{"Gbit/s", 1e9 / 8}, {"Mbit", 1e6 / 8}, {"M", 1e6 / 8}, {"Mbit/s", 1e6 / 8}, {"Tbit", 1e12 / 8},
	{"T", 1e12 / 8}, {"Tbit/s", 1e12 / 8}, {NULL, 0}};
static const struct args_unit plan_memory_units[] = {
	{"", 1e9}, {"GB/s", 1e9}, {"GB", 1e9}, {"G", 1e9}, {"MB/s", 1e6}, {"TB/s", 1e12}, {NULL, 0}};
static const struct args_unit plan_line_units[] = {{"", 1}, {"M", 1e6}, {"G", 1e9}, {NULL, 0}};
static const struct args_unit plan_kernel_units[] = {{"", 1}, {"GB/s", 1}, {NULL, 0}};
static const struct args_unit plan_ms_units[] = {{"", 1e-3}, {"ms", 1e-3}, {"s", 1}, {NULL, 0}};
static const struct args_unit plan_us_units[] = {{"", 1e-6}, {"us", 1e-6}, {"ms", 1e-3}, {NULL, 0}};

/* An option that may be missing: *out is left alone then. Zero is refused unless allowed. */
static int plan_take_number(const struct args_usage *usage, const char *name, const char *text,
	const struct args_unit *units, const char *like, double *out)
{
	if (text && (args_read_decimal(text, units, out) < 0 || *out <= 0 || *out > PLAN_RATE_MAX))
		return args_wrong(usage, "--%s %s: allowed is a number above 0, like %s", name, text, like);
	return ARGS_GO_ON;
}

/* "3x8" */
static int plan_take_pcie(const struct args_usage *usage, const char *text, struct plan_input *in)
{
	char behind;

	if (text && (sscanf(text, "%1ux%2u%c", &in->pcie_gen, &in->pcie_lanes, &behind) != 2 ||
			    !(plan_pcie_bytes_s(in->pcie_gen, in->pcie_lanes) > 0)))
		return args_wrong(usage, "--pcie %s: allowed is GENxLANES, generation 1 to 6, like 3x8", text);
	return ARGS_GO_ON;
}

static int plan_take_numbers(const struct args_usage *usage, struct plan_run *run)
{
	const struct plan_options *o = &run->o;
	struct plan_input *in = &run->job.input;
	int rc =
		plan_take_number(usage, "link", o->link, plan_link_units, "56Gbit, 100G or 500Mbit", &in->link_bytes_s);

	if (rc == ARGS_GO_ON)
		rc = plan_take_number(usage, "worker-link", o->worker_link, plan_link_units, "56Gbit, 100G or 500Mbit",
			&in->worker_link_bytes_s);
	if (rc == ARGS_GO_ON)
		rc = plan_take_number(
			usage, "memory-bandwidth", o->memory, plan_memory_units, "120GB/s", &in->memory_bytes_s);
	if (rc == ARGS_GO_ON)
		rc = plan_take_number(
			usage, "cache-lines", o->cache_lines, plan_line_units, "1370M", &in->cache_lines_s);
	if (rc == ARGS_GO_ON)
		rc = plan_take_number(usage, "core-gbps", o->core_gbps, plan_kernel_units, "11.2", &run->core_gb_s);
	if (rc == ARGS_GO_ON)
		rc = plan_take_number(usage, "latency-us", o->latency_us, plan_us_units, "10", &in->latency_s);
	if (rc == ARGS_GO_ON)
		rc = plan_take_number(usage, "compute-ms", o->compute_ms, plan_ms_units, "54", &in->compute_s);
	return rc == ARGS_GO_ON ? plan_take_pcie(usage, o->pcie, in) : rc;
}

/* ---- what stands in ---- */

/* Counts the chunks as box and workers will cut them. Of --bytes (no model) the keys are as equal as can be. */
static int plan_fill_chunks(struct plan_input *in, const struct model *m, struct err *e)
{
	struct chunk_key *keys = calloc(in->keys, sizeof(*keys));
	uint64_t elements = in->bytes / in->wire_bytes;
	struct chunk_size size;
	int rc;

	if (!keys)
		return err_set(e, -ENOMEM, "out of memory");
	for (uint64_t k = 0; k < in->keys; k++) {
		keys[k].elements = m ? m->tensors[k].elements : elements / in->keys + (k < elements % in->keys);
		keys[k].dtype = in->wire_bytes == 2 ? CHUNK_F16 : CHUNK_F32;
		keys[k].group = m ? m->tensors[k].group : 0;
	}
	rc = chunking_size(keys, (uint32_t)in->keys, (uint32_t)in->chunk_bytes, &size, e);
	if (rc == 0)
		in->chunks = size.chunk_count;
	free(keys);
	return rc;
}

static int plan_fill_model(struct plan_run *run, struct err *e)
{
	const struct plan_options *o = &run->o;
	struct plan_input *in = &run->job.input;
	struct model m;
	int rc;

	run->job.dtype = (uint8_t)(o->dtype < 0 ? DTYPE_F32 : o->dtype);
	in->wire_bytes = (unsigned)dtype_size((enum dtype)run->job.dtype);
	if (o->bytes) {
		snprintf(run->job.model, sizeof(run->job.model), "bytes");
		in->bytes = o->bytes;
		in->keys = o->keys;
		return plan_fill_chunks(in, NULL, e);
	}
	rc = models_load(o->model ? o->model : "resnet-50", &m, e);
	if (rc < 0)
		return rc;
	if (!o->model)
		plan_job_note(&run->job, "ResNet-50 (--model NAME, --bytes B)");
	/* A CSV may have types of its own: the plan takes elements of one. */
	if (o->dtype < 0) {
		run->job.dtype = m.tensors[0].dtype;
		in->wire_bytes = (unsigned)dtype_size((enum dtype)run->job.dtype);
	}
	for (size_t i = 0; o->dtype < 0 && i < m.count; i++) {
		if (m.tensors[i].dtype != run->job.dtype) {
			plan_job_note(&run->job, "all tensors %s, as the first of %s (--dtype)",
				dtype_name((enum dtype)run->job.dtype), m.name);
			break;
		}
	}
	snprintf(run->job.model, sizeof(run->job.model), "%s", m.name);
	in->bytes = model_elements(&m) * in->wire_bytes;
	in->keys = m.count;
	rc = plan_fill_chunks(in, &m, e);
	model_destroy(&m);
	return rc;
}

/* The NICs that are up and of a device; those of the most common rate would be better, the slowest is safe. */
static void plan_fill_links(struct plan_run *run)
{
	struct plan_input *in = &run->job.input;
	unsigned count = 0, slowest_mbit = UINT32_MAX;

	for (unsigned i = 0; i < run->host.nic_count; i++) {
		const struct host_nic *nic = &run->host.nics[i];

		if (!nic->up || !nic->physical || !nic->speed_mbit)
			continue;
		count++;
		slowest_mbit = nic->speed_mbit < slowest_mbit ? nic->speed_mbit : slowest_mbit;
	}
	if (!in->nics && !(in->link_bytes_s > 0) && count)
		plan_job_note(
			&run->job, "this machine's NICs: %u of %g Gbit/s (--nics, --link)", count, slowest_mbit / 1e3);
	else if (!(in->link_bytes_s > 0))
		plan_job_note(&run->job,
			count ? "links of %g Gbit/s, as this machine's (--link)"
			      : "links of %g Gbit/s, as this machine does not tell its own (--link)",
			count ? slowest_mbit / 1e3 : PLAN_LINK_BYTES_S * 8 / 1e9);
	if (!(in->link_bytes_s > 0))
		in->link_bytes_s = count ? slowest_mbit * 1e6 / 8 : PLAN_LINK_BYTES_S;
	if (!in->nics)
		in->nics = count ? count : 1;
	if (!(in->worker_link_bytes_s > 0))
		in->worker_link_bytes_s = in->link_bytes_s;
}

static void plan_fill_cpus(struct plan_run *run)
{
	struct plan_input *in = &run->job.input;
	unsigned cpus = run->host.cpu_count;

	if (!in->cores) {
		in->cores = cpus > 1 ? cpus / 2 : 1;
		plan_job_note(&run->job, "cores that poll: %u, half of the CPUs here (--cores)", in->cores);
	}
	in->cache_bytes = cpu_cache_bytes();
	if (in->chunks < in->cores)
		plan_job_note(
			&run->job, "%" PRIu64 " of %u cores have work: a chunk belongs to one", in->chunks, in->cores);
	if (in->chunks < in->nics)
		plan_job_note(&run->job, "%" PRIu64 " of %u NICs have work: a chunk takes one", in->chunks, in->nics);
	if (run->o.here || in->transport == PLAN_SHM) {
		in->cpus_here = run->o.cpus ? (unsigned)run->o.cpus : cpus;
		plan_job_note(&run->job, "of memory the box's reads and writes alone, not those of workers on it");
	}
}

static int plan_fill_kernel(struct plan_run *run, const struct plan_measure *measure, struct err *e)
{
	struct plan_job *job = &run->job;
	struct plan_input *in = &job->input;
	int rc = 0;

	if (run->core_gb_s > 0) {
		struct plan_kernel_point point = {.workers = in->workers, .gb_s = run->core_gb_s};

		rc = plan_kernel_fit(&point, 1,
			plan_once_bytes(in->wire_bytes, in->optimizer, in->state_count, plan_streams(in)), &in->kernel);
		return rc < 0 ? err_set(e, rc, "--core-gbps: no such rate") : 0;
	}
	if (!run->facts.kernel_count && !run->o.kernels) {
		rc = plan_measure_kernels(measure, job->optimizer, job->dtype, &run->facts, e);
		plan_job_note(job, "cores as fast as one here, measured just now (--kernels, --core-gbps)");
	}
	return rc < 0 ? rc : plan_facts_kernel(&run->facts, job->optimizer, job->dtype, &in->kernel, e);
}

static int plan_fill_costs(struct plan_run *run, const struct plan_measure *measure, struct err *e)
{
	struct plan_job *job = &run->job;
	struct plan_input *in = &job->input;
	int rc = 0;

	if (run->facts.has_costs[in->transport]) {
		in->costs = run->facts.costs[in->transport];
		if (run->facts.machine[0])
			plan_job_note(job, "CPU costs as measured on %s", run->facts.machine);
	} else if (plan_costs_default(in->transport, &in->costs)) {
		plan_job_note(job, "CPU costs of %s as on %s (--costs)", plan_transport_name(in->transport),
			plan_costs_machine);
	} else {
		plan_job_note(job, "no CPU costs of %s but the sums': nobody has measured it (--costs)",
			plan_transport_name(in->transport));
	}
	if (!(in->memory_bytes_s > 0)) {
		if (!(run->facts.memory_gb_s > 0)) {
			rc = plan_measure_memory(measure, &run->facts, e);
			plan_job_note(job, "memory as fast as here, measured just now (--memory-bandwidth)");
		}
		in->memory_bytes_s = run->facts.memory_gb_s * 1e9;
	}
	return rc;
}

/* Gradients, and weights and state or the results. */
static void plan_note_cache(struct plan_run *run)
{
	const struct plan_input *in = &run->job.input;
	double arrays = in->workers + 1.0 + in->state_count * 4.0 / in->wire_bytes;

	if ((double)in->bytes * arrays < (double)run->host.llc_bytes)
		plan_job_note(&run->job, "everything comes from memory; a job as small as this fits into the last "
					 "cache of this machine, and "
					 "may run faster there");
}

static int plan_prepare(struct plan_run *run, struct err *e)
{
	const struct plan_options *o = &run->o;
	struct plan_input *in = &run->job.input;
	struct plan_measure measure = {.host = &run->host};
	int rc = discover_host(NULL, &run->host, e);

	in->transport = (enum plan_transport)o->transport;
	in->workers = (unsigned)o->workers;
	in->nics = (unsigned)o->nics;
	in->cores = (unsigned)o->cores;
	in->mtu = (unsigned)o->mtu;
	in->frame_bytes = (unsigned)o->frame;
	in->chunk_bytes = o->chunk;
	in->optimizer = o->optimizer != OPTIMIZER_NONE;
	in->state_count = optimizer_state_count(o->optimizer);
	run->job.optimizer = o->optimizer;
	run->job.json = o->json;
	run->job.sweep = (unsigned)o->sweep;
	if (rc == 0)
		rc = plan_fill_model(run, e);
	/* Workers on the box go over loopback unless a link is told. */
	if (rc == 0 && in->transport != PLAN_SHM && !(o->here && !o->nics && !o->link))
		plan_fill_links(run);
	if (rc == 0)
		plan_fill_cpus(run);
	if (rc == 0)
		plan_note_cache(run);
	if (rc == 0 && o->costs)
		rc = plan_facts_read(o->costs, &run->facts, e);
	if (rc == 0 && o->kernels)
		rc = plan_facts_read(o->kernels, &run->facts, e);
	if (rc == 0)
		rc = plan_fill_kernel(run, &measure, e);
	return rc < 0 ? rc : plan_fill_costs(run, &measure, e);
}

static int plan_show(struct plan_run *run, struct err *e)
{
	struct plan_result result;
	int rc = plan_prepare(run, e);

	if (rc == 0)
		rc = plan_make(&run->job.input, &result, e);
	return rc < 0 ? rc : plan_job_print(&run->job, &result, e);
}

/* ---- calibration ---- */

static int plan_calibrate(struct plan_run *run, struct err *e)
{
	const struct plan_options *o = &run->o;
	struct plan_measure measure = {.host = &run->host,
		.phubd = o->phubd,
		.runs = o->runs ? (unsigned)o->runs : PLAN_RUNS,
		.quick = o->quick};
	int rc = discover_host(NULL, &run->host, e);

	if (rc == 0 && o->kernels)
		rc = plan_facts_read(o->kernels, &run->facts, e);
	else if (rc == 0)
		rc = plan_measure_kernels(&measure, OPTIMIZER_COUNT, DTYPE_F32, &run->facts, e);
	if (rc == 0)
		rc = plan_measure_memory(&measure, &run->facts, e);
	for (int t = PLAN_SHM; rc == 0 && t <= PLAN_TCP; t++)
		rc = plan_measure_exchanges(&measure, (enum plan_transport)t, &run->facts, e);
	if (rc < 0)
		return rc;
	plan_measure_machine(&measure, &run->facts);
	return plan_facts_print(&run->facts) ? 0 : err_set(e, -ENOMEM, "out of memory");
}

/* ---- options ---- */

static const char plan_about[] =
	"Says on paper which resource of a box limits, and at what rate: each has a capacity, and a demand for every "
	"byte\n"
	"of gradients that reaches the box. What is not given is taken from this machine, measured in a few seconds, "
	"or\n"
	"assumed and said. Workers have machines of their own unless --here is given or the transport is shm.\n"
	"\n"
	"CPU costs come from measurement. phub plan --calibrate measures kernels, memory and four small exchanges "
	"over\n"
	"shm and over tcp here, in about a minute, and prints lines for --costs FILE: of exchanges with 4 workers, one "
	"of "
	"large\n"
	"chunks, one of small ones, one of many keys and one of a single chunk, from which the costs of a byte, a "
	"message,\n"
	"a key and a round follow.\n"
	"\n"
	"formulae (t: seconds that an exchange of all workers keeps a resource busy):\n";

static void plan_write_about(char *text, size_t bytes)
{
	size_t used = (size_t)snprintf(text, bytes, "%s", plan_about);

	for (const struct plan_formula *f = plan_formulae; f->symbol && used < bytes; f++)
		used += (size_t)snprintf(text + used, bytes - used, "  %-13s %s\n", f->symbol, f->text);
}

static const char plan_examples[] =
	"  phub plan\n"
	"  phub plan --nics 10 --link 56Gbit --pcie 3x8 --transport verbs --mtu 4200 --cores 28 --cache-lines 1370M "
	"\\\n"
	"      --memory-bandwidth 120 --core-gbps 8 --workers 8 --model resnet-18 --optimizer nesterov --sweep 32\n"
	"  phub plan --calibrate >costs.jsonl\n"
	"  phub plan --costs costs.jsonl --transport tcp --here --workers 4 --bytes 100MB --json\n";

static bool plan_is_given(const struct args_option *option)
{
	switch (option->type) {
	case ARGS_FLAG:
		return *(const bool *)option->target;
	case ARGS_TEXT:
		return *(const char *const *)option->target != NULL;
	case ARGS_CHOICE:
		return *(const int *)option->target >= 0;
	default:
		return *(const uint64_t *)option->target != (option->min ? 0 : PLAN_NOT_GIVEN);
	}
}

static bool plan_is_among(const char *name, const char *const *names)
{
	while (*names && strcmp(*names, name) != 0)
		names++;
	return *names != NULL;
}

/* What would have no effect is refused. */
static int plan_check_effect(const struct args_usage *usage, const struct plan_options *o)
{
	static const char *const calibrate[] = {"calibrate", "quick", "runs", "phubd", "kernels", "json", NULL};
	static const char *const links[] = {"nics", "link", "worker-link", "mtu", "frame", "pcie", "cache-lines", NULL};

	for (const struct args_option *option = usage->options; option->name; option++) {
		if (!plan_is_given(option))
			continue;
		if (o->calibrate && !plan_is_among(option->name, calibrate))
			return args_wrong(usage,
				"--%s has no effect with --calibrate, which measures exchanges of its own; give it to "
				"the plan "
				"with --costs",
				option->name);
		if (o->transport == PLAN_SHM && plan_is_among(option->name, links))
			return args_wrong(
				usage, "--%s has no effect with --transport shm: there are no links", option->name);
	}
	return ARGS_GO_ON;
}

static void plan_fill_defaults(struct plan_options *o)
{
	o->transport = o->transport < 0 ? PLAN_TCP : o->transport;
	o->workers = o->workers ? o->workers : PLAN_WORKERS;
	o->keys = o->keys ? o->keys : 1;
	o->chunk = o->chunk ? o->chunk : CHUNKING_CHUNK_BYTES_DEFAULT;
	o->mtu = o->mtu ? o->mtu : PLAN_MTU;
	o->frame = o->frame == PLAN_NOT_GIVEN ? PLAN_FRAME_BYTES : o->frame;
}

/* As many elements as keys, none cut in two. */
static int plan_check_bytes(const struct args_usage *usage, const struct plan_options *o)
{
	enum dtype dtype = o->dtype < 0 ? DTYPE_F32 : (enum dtype)o->dtype;
	uint64_t size = dtype_size(dtype), keys = o->keys ? o->keys : 1;

	if (o->bytes && (o->bytes % size || o->bytes / size < keys))
		return args_wrong(usage,
			"%" PRIu64 " bytes cannot be %" PRIu64 " %s of %s; take a multiple of %" PRIu64
			", at least %" PRIu64,
			o->bytes, keys, keys == 1 ? "key" : "keys", dtype_name(dtype), size, size * keys);
	return ARGS_GO_ON;
}

static int plan_check_options(const struct args_usage *usage, struct plan_run *run)
{
	struct plan_options *o = &run->o;
	char text[256];
	int rc;

	if (o->optimizer_name && optimizer_kind_parse(o->optimizer_name, &o->optimizer, text, sizeof(text)) < 0)
		return args_wrong(usage, "--optimizer: %s", text);
	if (o->bytes && o->model)
		return args_wrong(usage, "give either --bytes or --model");
	if (o->keys && !o->bytes)
		return args_wrong(usage, "--keys belongs to --bytes; a model has keys of its own");
	if (o->cpus && !o->here && o->transport != PLAN_SHM)
		return args_wrong(usage, "--cpus belongs to --here, or to --transport shm");
	if (!o->calibrate && (o->runs || o->phubd || o->quick))
		return args_wrong(usage, "--quick, --runs and --phubd belong to --calibrate");
	if (o->calibrate && o->costs)
		return args_wrong(usage, "--calibrate makes what --costs reads: give one of them");
	if (o->model && models_check(usage, o->model) != ARGS_GO_ON)
		return CLI_USAGE;
	rc = plan_check_effect(usage, o);
	if (rc == ARGS_GO_ON)
		rc = plan_check_bytes(usage, o);
	plan_fill_defaults(o);
	return rc == ARGS_GO_ON ? plan_take_numbers(usage, run) : rc;
}

static int plan_go(struct plan_run *run)
{
	struct err e = {0};
	int rc = run->o.calibrate ? plan_calibrate(run, &e) : plan_show(run, &e);

	if (rc == 0)
		return CLI_DONE;
	output_error("%s", e.text);
	return CLI_FAILED;
}

static int plan_parse(struct plan_run *run, int argc, char **argv)
{
	struct plan_options *o = &run->o;
	char about[PLAN_ABOUT_BYTES];
	const struct args_option options[] = {
		{"workers", "N", "of the job (4)", ARGS_NUMBER, &o->workers, 1, PLAN_WORKERS_MAX, NULL},
		{"model", "NAME", "exchange its tensors: see phub models (resnet-50); or a FILE.csv", ARGS_TEXT,
			&o->model, 0, 0, NULL},
		{"bytes", "B", "exchange so much instead, like 100MB", ARGS_BYTES, &o->bytes, 2, UINT64_C(1) << 44,
			NULL},
		{"keys", "N", "cut --bytes into so many keys (1)", ARGS_NUMBER, &o->keys, 1, 1000000, NULL},
		{"dtype", "NAME", "on the wire: f32, f16 or bf16 (f32)", ARGS_CHOICE, &o->dtype, 0, 0, plan_dtypes},
		{"optimizer", "NAME", "none (all-reduce), sgd, momentum, nesterov, adagrad, adam, adamw", ARGS_TEXT,
			&o->optimizer_name, 0, 0, NULL},
		{"chunk", "BYTES", "of a chunk, a power of two (32KiB)", ARGS_POWER, &o->chunk,
			CHUNKING_CHUNK_BYTES_MIN, CHUNKING_CHUNK_BYTES_MAX, NULL},
		{"transport", "NAME", "tcp, shm, udp, verbs or dpdk (tcp)", ARGS_CHOICE, &o->transport, 0, 0,
			plan_transports},
		{"nics", "N", "of the box (as here)", ARGS_NUMBER, &o->nics, 1, PLAN_NICS_MAX, NULL},
		{"link", "RATE", "of each NIC, each way, like 56Gbit, 100G or 500Mbit (as here)", ARGS_TEXT, &o->link,
			0, 0, NULL},
		{"worker-link", "RATE", "of a worker's NIC (as the box's)", ARGS_TEXT, &o->worker_link, 0, 0, NULL},
		{"mtu", "BYTES", "of the links (1500)", ARGS_NUMBER, &o->mtu, PLAN_MTU_MIN, PLAN_MTU_MAX, NULL},
		{"frame", "BYTES", "that a link counts around a packet (38: Ethernet's; 14 as tc counts)", ARGS_NUMBER,
			&o->frame, 0, 1000, NULL},
		{"pcie", "GENxLANES", "of each NIC, like 3x8 (no limit)", ARGS_TEXT, &o->pcie, 0, 0, NULL},
		{"cache-lines", "RATE", "a second, of PCIe-to-cache controllers, like 1370M (no limit)", ARGS_TEXT,
			&o->cache_lines, 0, 0, NULL},
		{"memory-bandwidth", "GB/S", "of the box (measured here)", ARGS_TEXT, &o->memory, 0, 0, NULL},
		{"cores", "C", "of the box that poll (half of the CPUs here)", ARGS_NUMBER, &o->cores, 1, PLAN_CPUS_MAX,
			NULL},
		{"core-gbps", "GB/S", "of gradients that one core sums and steps (measured here)", ARGS_TEXT,
			&o->core_gbps, 0, 0, NULL},
		{"kernels", "FILE", "rates from phub bench kernels --json instead", ARGS_TEXT, &o->kernels, 0, 0, NULL},
		{"costs", "FILE", "CPU costs, rates and memory from phub plan --calibrate", ARGS_TEXT, &o->costs, 0, 0,
			NULL},
		{"here", NULL, "workers run on the box, and share its CPUs", ARGS_FLAG, &o->here, 0, 0, NULL},
		{"cpus", "N", "that they share (as here)", ARGS_NUMBER, &o->cpus, 1, PLAN_CPUS_MAX, NULL},
		{"latency-us", "US", "of a message and its answer on an idle network (0)", ARGS_TEXT, &o->latency_us, 0,
			0, NULL},
		{"compute-ms", "MS", "of a worker per exchange: says whether it hides the exchange", ARGS_TEXT,
			&o->compute_ms, 0, 0, NULL},
		{"sweep", "N", "also with 1 to N workers", ARGS_NUMBER, &o->sweep, 1, PLAN_WORKERS_MAX, NULL},
		{"calibrate", NULL, "measure this machine and print lines for --costs", ARGS_FLAG, &o->calibrate, 0, 0,
			NULL},
		{"quick", NULL, "with --calibrate: a sixteenth of the bytes, for a first impression", ARGS_FLAG,
			&o->quick, 0, 0, NULL},
		{"runs", "N", "with --calibrate: of each exchange, the median counts (3)", ARGS_NUMBER, &o->runs, 1, 15,
			NULL},
		{"phubd", "PATH", "with --calibrate: the box's program (beside this one, else on $PATH)", ARGS_TEXT,
			&o->phubd, 0, 0, NULL},
		{"json", NULL, "a line for each resource, one for the plan, one for each step of the sweep", ARGS_FLAG,
			&o->json, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = "phub plan", .about = about, .examples = plan_examples, .options = options};
	struct args_words words;
	int rc;

	plan_write_about(about, sizeof(about));
	rc = args_parse(&usage, argc, argv, &words);
	return rc == ARGS_GO_ON ? plan_check_options(&usage, run) : rc;
}

int plan_run(int argc, char **argv)
{
	struct plan_run *run = calloc(1, sizeof(*run));
	int rc;

	if (!run) {
		output_error("out of memory");
		return CLI_FAILED;
	}
	run->o = (struct plan_options){.transport = -1, .dtype = -1, .frame = PLAN_NOT_GIVEN};
	rc = plan_parse(run, argc, argv);
	if (rc == ARGS_GO_ON)
		rc = plan_go(run);
	free(run);
	return rc;
}
