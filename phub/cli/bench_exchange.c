/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub bench exchange: starts a box and workers as processes of this machine, lets them exchange, and prints what it
 * took. Here are the options and the plan made from them; the rest is in trial_*.c.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "aggregation/convert.h"
#include "phub/base/cpu.h"
#include "phub/cli/args.h"
#include "phub/cli/box_process.h"
#include "phub/cli/cli.h"
#include "phub/cli/models.h"
#include "phub/cli/output.h"
#include "phub/cli/trial.h"
#include "phub/cli/trial_crew.h"
#include "phub/cli/trial_loop.h"
#include "transport/transport.h"

enum { EXCHANGE_LOOP = 5 }; /* index in exchange_transports */
enum { EXCHANGE_SECRET_BYTES = 16, EXCHANGE_NETNS_MAX = 200, EXCHANGE_PORTS_MAX = 16 };

/* Variable of the environment that hands the secret to the box. */
#define EXCHANGE_SECRET_ENV "PHUB_BENCH_SECRET"

static const char *const exchange_transports[] = {"shm", "tcp", "udp", "verbs", "dpdk", "loop", NULL};
static const char *const exchange_modes[] = {"zero-copy", "copy", NULL};
static const char *const exchange_checks[] = {"first-last", "all", NULL};
static const char *const exchange_plants[] = {"none", "stale", "swapped", "doubled", NULL};
static const char *const exchange_dtypes[] = {"f32", "f16", "bf16", NULL};
static const char *const exchange_seals[] = {"gmac", "crc", "none", NULL};
static const char *const exchange_polls[] = {"adaptive", "busy", NULL};

struct exchange_options {
	int transport, mode, check, plant, dtype, seal, poll;
	const char *optimizer_name;
	enum optimizer_kind optimizer;
	uint64_t workers, jobs, rounds, cores, keys, bytes, chunk, timeout_s;
	const char *model, *phubd, *config, *listen, *worker_netns, *worker_cpus;
	struct cpu_list cpus; /* of worker_cpus */
	struct args_texts set;
	bool json, reproducible, encrypt;
};

struct exchange_run {
	struct trial_plan plan;
	char secret[2 * EXCHANGE_SECRET_BYTES + 1]; /* of a box that strangers may reach, or of encrypted jobs */
	struct box_settings settings;
	struct trial_crew crew;
};

/* ---- the plan ---- */

static int exchange_load_model(const struct exchange_options *o, struct model *out, struct err *e)
{
	uint8_t dtype = (uint8_t)(o->dtype < 0 ? DTYPE_F32 : o->dtype);
	int rc = o->model ? models_load(o->model, out, e) : models_make(o->bytes, o->keys, dtype, out, e);

	if (rc == 0 && o->model && o->dtype >= 0) {
		for (size_t i = 0; i < out->count; i++)
			out->tensors[i].dtype = (uint8_t)o->dtype;
	}
	return rc;
}

static int exchange_plan_init(struct trial_plan *p, const struct exchange_options *o, struct err *e)
{
	int rc;

	*p = (struct trial_plan){
		.transport = exchange_transports[o->transport],
		.worker_netns = o->worker_netns,
		.worker_cpus = o->worker_cpus ? &o->cpus : NULL,
		.mode = (enum trial_mode)o->mode,
		.check = (enum trial_check)o->check,
		.plant = (enum trial_plant)o->plant,
		.optimizer = o->optimizer,
		.reproducible = o->reproducible,
		.seal = o->seal,
		.encrypt = o->encrypt,
		.workers = (unsigned)o->workers,
		.jobs = (unsigned)o->jobs,
		.rounds = (unsigned)o->rounds,
		.warmup = TRIAL_WARMUP,
		.chunk_bytes = o->chunk,
		.timeout_ms = (int)o->timeout_s * 1000,
	};
	phub_hyper_init((enum phub_optimizer)p->optimizer, &p->hyper);
	rc = exchange_load_model(o, &p->model, e);
	if (rc < 0)
		return rc;
	return trial_plan_keys(p, e);
}

/* What the box is told beside the file: the same for a process and for one in this thread. */
static void exchange_fill_settings(struct box_settings *settings, const struct exchange_options *o)
{
	settings->phubd = o->phubd;
	settings->config = o->config;
	box_settings_add(settings, "log_level=warn");
	if (o->poll >= 0)
		box_settings_add(settings, "poll=%s", exchange_polls[o->poll]);
	if (o->cores)
		box_settings_add(settings, "cores=%" PRIu64, o->cores);
	if (o->seal)
		box_settings_add(settings, "datagram_seal=%s", exchange_seals[o->seal]);
	if (o->transport != EXCHANGE_LOOP) {
		box_settings_add(settings, "data_ports=any");
		box_settings_add(settings, "transports=%s", exchange_transports[o->transport]);
	}
	for (unsigned i = 0; i < o->set.count; i++)
		box_settings_add(settings, "%s", o->set.at[i]);
}

/* ---- what came of it ---- */

static bool exchange_print(const struct exchange_run *run, bool json)
{
	struct trial_numbers numbers;

	if (run->plan.jobs > 1)
		return trial_print_jobs(&run->plan, run->crew.shared, json);
	if (trial_count(&run->plan, run->crew.shared[0], &numbers) < 0) {
		output_error("out of memory");
		return false;
	}
	return trial_print(&run->plan, &numbers, json);
}

static int exchange_conclude(const struct exchange_run *run, bool json)
{
	enum trial_verdict verdict = trial_crew_judge(&run->crew);

	if (verdict == TRIAL_BROKEN)
		return CLI_FAILED;
	return exchange_print(run, json) && verdict == TRIAL_GOOD ? CLI_DONE : CLI_FAILED;
}

/* ---- running ---- */

static int exchange_work(const struct trial_crew *crew, unsigned job, unsigned local, const char *job_name)
{
	return trial_work(crew->plan, crew->shared[job], local, crew->box.address, job_name, crew->box.pid);
}

/* Who names an address may name one that strangers reach: then a secret keeps them out. Encryption needs one too. */
static int exchange_set_secret(struct exchange_run *run, const struct exchange_options *o, struct err *e)
{
	unsigned char random[EXCHANGE_SECRET_BYTES];

	if (!o->listen && !o->encrypt)
		return 0;
	if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
		return err_set(e, -errno, "no random bytes for a secret: %s", strerror(errno));
	for (unsigned i = 0; i < sizeof(random); i++)
		snprintf(run->secret + 2 * (size_t)i, 3, "%02x", random[i]);
	if (setenv(EXCHANGE_SECRET_ENV, run->secret, 1) < 0)
		return err_set(e, -errno, "out of memory");
	run->plan.secret = run->secret;
	box_settings_add(&run->settings, "create=secret");
	box_settings_add(&run->settings, "create_secret_env=%s", EXCHANGE_SECRET_ENV);
	return 0;
}

static void exchange_set_address(struct exchange_run *run, const struct exchange_options *o)
{
	/* An IPv6 address may come without brackets: no port is asked for. */
	box_settings_add(&run->settings,
		o->listen && strchr(o->listen, ':') && o->listen[0] != '[' ? "listen=[%s]:0" : "listen=%s:0",
		o->listen ? o->listen : "127.0.0.1");
}

static bool exchange_sets(const struct exchange_options *o, const char *name)
{
	for (unsigned i = 0; i < o->set.count; i++)
		if (strncmp(o->set.at[i], name, strlen(name)) == 0)
			return true;
	return false;
}

/* Workers need no device: each has a memif to the box, and a network for the two of them. */
static int exchange_set_ports(struct exchange_run *run, const struct exchange_options *o, struct err *e)
{
	char port[128], ports[EXCHANGE_PORTS_MAX * 96];
	size_t at = 0;

	if (strcmp(run->plan.transport, "dpdk") != 0)
		return 0;
	if (getenv("PHUB_DPDK"))
		return o->config || exchange_sets(o, "dpdk_ports=")
			       ? 0
			       : err_set(e, -EDESTADDRREQ,
					 "transport dpdk: PHUB_DPDK names a port for workers; give --set "
					 "dpdk_ports=... for "
					 "the box, too, or unset PHUB_DPDK for a memif between them");
	if (o->workers > EXCHANGE_PORTS_MAX || o->jobs > 1)
		return err_set(e, -EDESTADDRREQ,
			"transport dpdk: more than %d workers, or jobs, need ports of their own; give --set "
			"dpdk_ports=... for the box, and PHUB_DPDK in the environment for workers, where {} is the "
			"rank",
			EXCHANGE_PORTS_MAX);
	snprintf(port, sizeof(port), "net_memif0,role=client,socket=phub-bench-%d-{}@10.77.{}.2/24", (int)getpid());
	if (setenv("PHUB_DPDK", port, 1) < 0)
		return err_set(e, -errno, "out of memory");
	for (unsigned i = 0; i < o->workers; i++)
		at += (size_t)snprintf(ports + at, sizeof(ports) - at,
			"%snet_memif%u,role=server,socket=phub-bench-%d-%u@10.77.%u.1/24", i ? ";" : "", i,
			(int)getpid(), i, i);
	box_settings_add(&run->settings, "dpdk_ports=%s", ports);
	return 0;
}

static int exchange_run_processes(struct exchange_run *run, const struct exchange_options *o)
{
	struct trial_crew *crew = &run->crew;

	crew->work = exchange_work;
	crew->steps = run->plan.warmup + run->plan.rounds;
	snprintf(crew->name, sizeof(crew->name), "bench-%d", (int)getpid());
	exchange_set_address(run, o);
	if (exchange_set_secret(run, o, &crew->trouble) == 0 && exchange_set_ports(run, o, &crew->trouble) == 0)
		trial_crew_run(crew, &run->settings);
	return exchange_conclude(run, o->json);
}

static int exchange_run_loop(struct exchange_run *run, const struct exchange_options *o)
{
	struct err e = {0};

	if (exchange_set_secret(run, o, &e) < 0 || trial_loop(&run->plan, run->crew.shared[0], &run->settings, &e) < 0)
		run->crew.trouble = e;
	return exchange_conclude(run, o->json);
}

static int exchange_go(const struct exchange_options *o)
{
	struct exchange_run *run = calloc(1, sizeof(*run));
	struct err e = {0};
	int rc = CLI_FAILED;

	if (!run) {
		output_error("out of memory");
		return CLI_FAILED;
	}
	exchange_fill_settings(&run->settings, o);
	if (exchange_plan_init(&run->plan, o, &e) < 0 || trial_crew_init(&run->crew, &run->plan, &e) < 0)
		output_error("%s", e.text);
	else if (o->transport == EXCHANGE_LOOP)
		rc = exchange_run_loop(run, o);
	else
		rc = exchange_run_processes(run, o);
	trial_crew_fini(&run->crew);
	trial_plan_fini(&run->plan);
	free(run);
	return rc;
}

/* ---- options ---- */

static bool exchange_is_datagrams(const struct exchange_options *o)
{
	return strcmp(exchange_transports[o->transport], "udp") == 0 ||
	       strcmp(exchange_transports[o->transport], "dpdk") == 0;
}

static int exchange_check_options(const struct args_usage *usage, struct exchange_options *o)
{
	uint8_t dtype = (uint8_t)(o->dtype < 0 ? DTYPE_F32 : o->dtype);
	const char *transport;
	char text[256];
	struct err e;

	if (o->optimizer_name && optimizer_kind_parse(o->optimizer_name, &o->optimizer, text, sizeof(text)) < 0)
		return args_wrong(usage, "--optimizer: %s", text);
	if (o->transport < 0)
		return args_wrong(usage, "which transport? Give --transport shm or tcp");
	if (!o->bytes == !o->model)
		return args_wrong(usage, "give either --bytes or --model");
	if (o->model && o->keys != 1)
		return args_wrong(usage, "--keys belongs to --bytes; a model has keys of its own");
	if (o->bytes && (o->bytes % dtype_size(dtype) || o->bytes / dtype_size(dtype) < o->keys))
		return args_wrong(usage,
			"%" PRIu64 " bytes cannot be %" PRIu64 " keys of %s; take a multiple of %zu bytes", o->bytes,
			o->keys, dtype_name(dtype), dtype_size(dtype) * (size_t)o->keys);
	if (o->workers * o->jobs > TRIAL_WORKERS_MAX)
		return args_wrong(usage, "%" PRIu64 " jobs of %" PRIu64 " workers are more than %d workers", o->jobs,
			o->workers, TRIAL_WORKERS_MAX);
	if (o->jobs > 1 && o->transport == EXCHANGE_LOOP)
		return args_wrong(usage, "--jobs needs processes; take --transport shm or tcp");
	if (args_check_settings(usage, &o->set) != ARGS_GO_ON)
		return CLI_USAGE;
	if (o->transport == EXCHANGE_LOOP && (o->listen || o->worker_netns || o->worker_cpus))
		return args_wrong(usage, "--listen, --worker-netns and --worker-cpus need processes; loop has none");
	if (o->worker_cpus && cpu_list_parse(o->worker_cpus, &o->cpus, &e) < 0)
		return args_wrong(usage, "--worker-cpus: %s", e.text);
	if (o->worker_netns && !o->listen)
		return args_wrong(usage, "--worker-netns needs --listen with an address that workers reach from there");
	if (o->worker_netns && (strchr(o->worker_netns, '/') || strlen(o->worker_netns) > EXCHANGE_NETNS_MAX))
		return args_wrong(usage, "--worker-netns: allowed is a name of `ip netns`, like worker{}");
	if (o->seal >= 0 && !exchange_is_datagrams(o))
		return args_wrong(usage, "--seal is for datagrams: it belongs to --transport udp and dpdk");
	o->seal = o->seal < 0 ? 0 : o->seal;
	if (o->plant && o->rounds < 2)
		return args_wrong(usage, "--plant needs --rounds of at least 2");
	if (o->model && models_check(usage, o->model) != ARGS_GO_ON)
		return CLI_USAGE;
	transport = exchange_transports[o->transport];
	if (!transport_find(transport)) {
		output_error("transport %s is not in this build; use shm, tcp or loop", transport);
		return CLI_FAILED;
	}
	return ARGS_GO_ON;
}

static const char exchange_about[] =
	"Starts a box (phubd) and N workers on this machine, exchanges R rounds, and prints rounds a second, time per\n"
	"round, GB/s per worker each way, and CPU seconds (of the box; of box and workers) per GB of gradients "
	"pushed.\n"
	"\n"
	"A worker's round lasts from its first push to the end of its wait; p50 and p99 are over the rounds of all\n"
	"workers. Two rounds of warming up are not counted. Gradients depend on rank, round and index; the first and "
	"the\n"
	"last round (--check all: every one) are compared bit by bit with a serial calculation, outside of the "
	"measured\n"
	"time, and a wrong result fails the run. GB are 1e9 bytes.\n"
	"\n"
	"The box starts in the network namespace of this command, on the address --listen. With --worker-netns each\n"
	"worker enters one of its own (`ip netns add`), so that bytes take the links between them. With --worker-cpus\n"
	"workers keep to those CPUs, with all their threads; --set cores=[LIST] is the same for the box's cores.\n"
	"Over dpdk each worker has a memif to the box, or what --set dpdk_ports=... and PHUB_DPDK say, where {} is "
	"the\n"
	"rank, as in net_af_packet0,iface=w{}@10.0.0.1{}/24.\n"
	"\n"
	"With --jobs all jobs begin together. Each job's rate is counted while all of them run, and its share is that\n"
	"rate beside the mean of all jobs: 1 is a fair share.\n";

static const char exchange_examples[] =
	"  phub bench exchange --transport shm --workers 4 --bytes 100MB\n"
	"  phub bench exchange --transport tcp --workers 8 --model resnet-50 --optimizer nesterov --check all\n"
	"  phub bench exchange --transport tcp --workers 2 --jobs 8 --bytes 16MB\n"
	"  phub bench exchange --transport shm --workers 2 --bytes 4KB --rounds 1000 --json\n"
	"  ip netns exec box phub bench exchange --transport tcp --workers 2 --bytes 32MB --listen 10.0.0.1 "
	"--worker-netns worker{}\n";

int bench_exchange_run(int argc, char **argv)
{
	struct exchange_options o = {.transport = -1,
		.dtype = -1,
		.poll = -1,
		.seal = -1,
		.workers = 4,
		.jobs = 1,
		.rounds = 50,
		.keys = 1,
		.timeout_s = 60};
	const struct args_option options[] = {
		{"transport", "NAME", "required: shm, tcp, udp, verbs, dpdk, or loop (all in one thread)", ARGS_CHOICE,
			&o.transport, 0, 0, exchange_transports},
		{"workers", "N", "worker processes (4)", ARGS_NUMBER, &o.workers, 1, TRIAL_WORKERS_MAX, NULL},
		{"jobs", "J", "so many jobs at once on the box, each of --workers (1)", ARGS_NUMBER, &o.jobs, 1,
			TRIAL_JOBS_MAX, NULL},
		{"bytes", "B", "exchange so much, like 100MB or 64KiB", ARGS_BYTES, &o.bytes, 2, UINT64_C(1) << 44,
			NULL},
		{"keys", "N", "cut --bytes into so many keys (1)", ARGS_NUMBER, &o.keys, 1, 1000000, NULL},
		{"model", "NAME", "exchange a model's tensors: see phub models; or a FILE.csv", ARGS_TEXT, &o.model, 0,
			0, NULL},
		{"dtype", "NAME", "f32, f16 or bf16 (f32; a CSV says its own)", ARGS_CHOICE, &o.dtype, 0, 0,
			exchange_dtypes},
		{"optimizer", "NAME", "none (all-reduce), sgd, momentum, nesterov, adagrad, adam, adamw", ARGS_TEXT,
			&o.optimizer_name, 0, 0, NULL},
		{"mode", "NAME", "zero-copy (memory of the library's) or copy (malloc in and out)", ARGS_CHOICE,
			&o.mode, 0, 0, exchange_modes},
		{"rounds", "R", "measured rounds (50)", ARGS_NUMBER, &o.rounds, 1, 100000000, NULL},
		{"check", "WHICH", "first-last, or all rounds", ARGS_CHOICE, &o.check, 0, 0, exchange_checks},
		{"chunk", "BYTES", "of a chunk, a power of two (the box's: 32KiB)", ARGS_POWER, &o.chunk, 4096, 2 << 20,
			NULL},
		{"reproducible", NULL, "sums in rank order", ARGS_FLAG, &o.reproducible, 0, 0, NULL},
		{"seal", "NAME", "of udp's and dpdk's datagrams: gmac, crc or none (gmac)", ARGS_CHOICE, &o.seal, 0, 0,
			exchange_seals},
		{"encrypt", NULL, "what leaves the host is encrypted (shm leaves it not)", ARGS_FLAG, &o.encrypt, 0, 0,
			NULL},
		{"cores", "C", "polling cores of the box (as phubd chooses)", ARGS_NUMBER, &o.cores, 1, 256, NULL},
		{"poll", "HOW", "busy or adaptive", ARGS_CHOICE, &o.poll, 0, 0, exchange_polls},
		{"phubd", "PATH", "the box's program (beside this one, else on $PATH)", ARGS_TEXT, &o.phubd, 0, 0,
			NULL},
		{"config", "FILE", "configuration of the box", ARGS_TEXT, &o.config, 0, 0, NULL},
		{"listen", "HOST", "address of the box, with a secret of the run's own (127.0.0.1)", ARGS_TEXT,
			&o.listen, 0, 0, NULL},
		{"worker-netns", "NAME", "network namespace that each worker enters, {} is its rank; as root",
			ARGS_TEXT, &o.worker_netns, 0, 0, NULL},
		{"worker-cpus", "LIST", "CPUs that workers are pinned to, in turn, like 1 or 1-3,5", ARGS_TEXT,
			&o.worker_cpus, 0, 0, NULL},
		{"set", "KEY=VALUE", "one option of the box; may be repeated", ARGS_TEXTS, &o.set, 0, 0, NULL},
		{"timeout", "SECONDS", "that any step may take (60)", ARGS_NUMBER, &o.timeout_s, 1, 86400, NULL},
		{"json", NULL, "one JSON object", ARGS_FLAG, &o.json, 0, 0, NULL},
		{"plant", "WHAT", NULL, ARGS_CHOICE, &o.plant, 0, 0, exchange_plants},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = "phub bench exchange",
		.words = "--transport NAME (--bytes B | --model NAME)",
		.about = exchange_about,
		.examples = exchange_examples,
		.options = options,
	};
	struct args_words words;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc == ARGS_GO_ON)
		rc = exchange_check_options(&usage, &o);
	return rc == ARGS_GO_ON ? exchange_go(&o) : rc;
}
