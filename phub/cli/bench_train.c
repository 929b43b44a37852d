/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub bench train: replays the layers of a training step, whose times come from a trace, and exchanges for real. Here
 * are the options, the plan made from them and the memory that the workers write to; what happens in them is in
 * replay_*.c.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "phub/cli/args.h"
#include "phub/cli/box_process.h"
#include "phub/cli/cli.h"
#include "phub/cli/models.h"
#include "phub/cli/output.h"
#include "phub/cli/replay.h"
#include "transport/transport.h"

enum { TRAIN_TURNS = 3, TRAIN_ALL = 0, TRAIN_AUTO = 0 };

static const char *const train_transports[] = {"auto", "shm", "tcp", "udp", "verbs", "dpdk", NULL};
static const char *const train_modes[] = {"zero-copy", "copy", NULL};
static const char *const train_dtypes[] = {"f32", "f16", "bf16", NULL};
static const char *const train_hows[] = {"sleep", "spin", NULL};
static const char *const train_schedules[] = {"all", "serial", "backward", "fifo", "priority", NULL};
static const char *const train_plants[] = {"none", "stale", "swapped", "doubled", NULL};

struct train_options {
	int transport, mode, dtype, how, schedule, plant;
	const char *optimizer_name;
	enum optimizer_kind optimizer;
	uint64_t workers, rounds, chunk, compute_ns, world, first_rank, timeout_s;
	const char *trace, *model, *phubd, *config, *box, *job, *timeline;
	struct args_texts set;
	bool json;
};

struct train {
	struct replay_plan plan;
	struct replay_run run;
	struct box_settings settings;
	struct trial_crew crew;
	FILE *timeline;
	bool timeline_is_new, timeline_is_written;
};

/* ---- the plan ---- */

/* All times by one factor, so that together they take so long. */
static void train_scale(struct model_trace *t, uint64_t compute_ns)
{
	uint64_t now_ns = model_trace_compute_ns(t);

	for (size_t i = 0; now_ns && i < t->count; i++) {
		struct model_layer *l = &t->layers[i];

		l->forward_ns = (uint64_t)((double)l->forward_ns / (double)now_ns * (double)compute_ns);
		l->backward_ns = (uint64_t)((double)l->backward_ns / (double)now_ns * (double)compute_ns);
	}
}

static int train_load(const struct train_options *o, struct model_trace *out, struct err *e)
{
	struct model model;
	int rc;

	if (o->trace) {
		rc = models_load_trace(o->trace, out, e);
		if (rc == 0 && o->compute_ns && model_trace_compute_ns(out) == 0) {
			model_trace_destroy(out);
			return err_set(e, -EINVAL, "%s: all times are 0, which cannot be made %.9g ms", o->trace,
				(double)o->compute_ns / 1e6);
		}
		if (rc == 0 && o->compute_ns)
			train_scale(out, o->compute_ns);
		return rc;
	}
	rc = models_load(o->model, &model, e);
	if (rc < 0)
		return rc;
	rc = model_trace_guess(&model, o->compute_ns, out);
	if (rc < 0) {
		model_destroy(&model);
		return err_set(e, rc, "out of memory");
	}
	return 0;
}

static void train_plan_schedules(struct replay_plan *p, const struct train_options *o)
{
	p->schedules[REPLAY_COMPUTE] = p->schedules[REPLAY_EXCHANGE] = true;
	for (enum replay_schedule s = REPLAY_SERIAL; s < REPLAY_SCHEDULES; s++)
		p->schedules[s] = o->schedule == TRAIN_ALL || o->schedule == (int)(1 + s - REPLAY_SERIAL);
	p->rounds = (unsigned)o->rounds;
	p->iterations = p->rounds < TRAIN_TURNS ? p->rounds : (p->rounds + TRAIN_TURNS - 1) / TRAIN_TURNS;
	if (p->timeline && p->iterations < REPLAY_TRACED) /* its block is no longer than the others */
		p->iterations = REPLAY_TRACED;
	p->turns = (p->rounds + p->iterations - 1) / p->iterations;
}

static int train_plan(struct replay_plan *p, const struct train_options *o, struct err *e)
{
	int rc;

	p->trial = (struct trial_plan){
		.transport = train_transports[o->transport],
		.mode = (enum trial_mode)o->mode,
		.check = TRIAL_ALL,
		.plant = (enum trial_plant)o->plant,
		.optimizer = o->optimizer,
		.workers = (unsigned)o->workers,
		.jobs = 1,
		.world = (unsigned)o->world,
		.chunk_bytes = o->chunk,
		.timeout_ms = (int)o->timeout_s * 1000,
	};
	p->how = (enum replay_how)o->how;
	p->rank_first = (unsigned)o->first_rank;
	p->timeline = o->timeline;
	phub_hyper_init((enum phub_optimizer)o->optimizer, &p->trial.hyper);
	train_plan_schedules(p, o);
	rc = train_load(o, &p->trace, e);
	if (rc < 0)
		return rc;
	p->trial.model = p->trace.model;
	p->trace.model = (struct model){.count = 0};
	for (size_t i = 0; o->dtype >= 0 && i < p->trial.model.count; i++)
		p->trial.model.tensors[i].dtype = (uint8_t)o->dtype;
	p->trial.block = 1 + p->iterations;
	replay_count(p, &p->trial.rounds);
	return trial_plan_keys(&p->trial, e);
}

unsigned replay_count(const struct replay_plan *p, unsigned *rounds)
{
	unsigned block = 1 + p->iterations, all = 0, blocks = 1; /* one to warm up */
	unsigned shown = p->timeline ? 1 + REPLAY_TRACED : 0;

	for (enum replay_schedule s = 0; s < REPLAY_SCHEDULES; s++)
		all += p->schedules[s];
	*rounds = (blocks + p->turns * (all - p->schedules[REPLAY_COMPUTE])) * block + shown;
	return (blocks + p->turns * all) * block + shown;
}

enum replay_schedule replay_last(const struct replay_plan *p)
{
	enum replay_schedule last = REPLAY_PRIORITY;

	while (last > 0 && !p->schedules[last])
		last--;
	return last;
}

/* ---- what workers write ---- */

struct replay_time *replay_times(
	const struct replay_plan *p, const struct replay_shared *s, enum replay_schedule schedule, unsigned local)
{
	return s->times + ((size_t)schedule * p->trial.workers + local) * p->turns * p->iterations;
}

struct replay_event *replay_events(
	const struct replay_plan *p, const struct replay_shared *s, unsigned local, unsigned iteration)
{
	return s->events + ((size_t)local * REPLAY_TRACED + iteration) * p->trace.count;
}

static int train_share(const struct replay_plan *p, struct replay_shared **out, struct err *e)
{
	size_t times = (size_t)REPLAY_SCHEDULES * p->trial.workers * p->turns * p->iterations;
	size_t events = p->timeline ? (size_t)p->trial.workers * REPLAY_TRACED * p->trace.count : 0;
	size_t bytes = sizeof(struct replay_shared) + times * sizeof(struct replay_time) +
		       events * sizeof(struct replay_event);
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct replay_shared *s = base;

	if (base == MAP_FAILED)
		return err_set(e, -ENOMEM, "no %zu MB of memory for the times; take fewer --rounds", bytes / 1000000);
	s->bytes = bytes;
	s->times = (struct replay_time *)(void *)(s + 1);
	s->events = (struct replay_event *)(void *)(s->times + times);
	*out = s;
	return 0;
}

/* ---- running ---- */

static void train_fill_settings(struct box_settings *settings, const struct train_options *o)
{
	settings->phubd = o->phubd;
	settings->config = o->config;
	box_settings_add(settings, "log_level=warn");
	for (unsigned i = 0; i < o->set.count; i++)
		box_settings_add(settings, "%s", o->set.at[i]);
	box_settings_add(settings, "listen=127.0.0.1:0");
	box_settings_add(settings, "data_ports=any");
	if (o->transport != TRAIN_AUTO)
		box_settings_add(settings, "transports=%s", train_transports[o->transport]);
}

/* What an earlier run wrote there is lost only now. */
static int train_write_timeline(struct train *t, const struct train_options *o)
{
	struct err e = {0};
	int rc = ftruncate(fileno(t->timeline), 0) < 0 && errno != EINVAL ? -errno : 0; /* EINVAL: not a file */

	t->timeline_is_written = true;
	if (rc < 0)
		err_set(&e, rc, "%s", strerror(-rc));
	else if (replay_timeline_write(&t->plan, t->run.shared, t->timeline, &e) == 0)
		return 0;
	output_error("%s: the timeline could not be written: %s", o->timeline, e.text);
	return -EIO;
}

static int train_conclude(struct train *t, const struct train_options *o)
{
	enum trial_verdict verdict = trial_crew_judge(&t->crew);
	bool ok;

	if (verdict == TRIAL_BROKEN)
		return CLI_FAILED;
	ok = replay_print(&t->plan, &t->run, t->crew.shared[0], o->json);
	if (ok && o->timeline && !o->json)
		replay_timeline_draw(&t->plan, t->run.shared);
	if (ok && o->timeline)
		ok = train_write_timeline(t, o) == 0;
	return ok && verdict == TRIAL_GOOD ? CLI_DONE : CLI_FAILED;
}

static int train_run(struct train *t, const struct train_options *o)
{
	struct trial_crew *crew = &t->crew;
	unsigned rounds;

	t->run.plan = &t->plan;
	crew->work = replay_work;
	crew->arg = &t->run;
	crew->steps = replay_count(&t->plan, &rounds);
	if (o->job)
		snprintf(crew->name, sizeof(crew->name), "%s", o->job);
	else
		snprintf(crew->name, sizeof(crew->name), "train-%d", (int)getpid());
	if (o->box)
		snprintf(crew->box.address, sizeof(crew->box.address), "%s", o->box);
	else
		train_fill_settings(&t->settings, o);
	trial_crew_run(crew, o->box ? NULL : &t->settings);
	return train_conclude(t, o);
}

static int train_open_timeline(struct train *t, const struct train_options *o, struct err *e)
{
	if (!o->timeline)
		return 0;
	t->timeline_is_new = access(o->timeline, F_OK) < 0;
	t->timeline = fopen(o->timeline, "ae"); /* says now whether it can be written, and leaves what is there */
	if (!t->timeline)
		return err_set(
			e, -errno, "%s: %s; give --timeline a file that can be written", o->timeline, strerror(errno));
	return 0;
}

static void train_close_timeline(const struct train *t, const struct train_options *o)
{
	if (!t->timeline)
		return;
	fclose(t->timeline);
	if (t->timeline_is_new && !t->timeline_is_written)
		unlink(o->timeline);
}

static int train_go(const struct train_options *o)
{
	struct train *t = calloc(1, sizeof(*t));
	struct err e = {0};
	int rc = CLI_FAILED;

	if (!t) {
		output_error("out of memory");
		return CLI_FAILED;
	}
	if (train_plan(&t->plan, o, &e) < 0 || trial_crew_init(&t->crew, &t->plan.trial, &e) < 0 ||
		train_share(&t->plan, &t->run.shared, &e) < 0 || train_open_timeline(t, o, &e) < 0)
		output_error("%s", e.text);
	else
		rc = train_run(t, o);
	train_close_timeline(t, o);
	if (t->run.shared)
		munmap(t->run.shared, t->run.shared->bytes);
	trial_crew_fini(&t->crew);
	trial_plan_fini(&t->plan.trial);
	model_trace_destroy(&t->plan.trace);
	free(t);
	return rc;
}

/* ---- options ---- */

static int train_check_place(const struct args_usage *usage, const struct train_options *o)
{
	if (o->box && (o->phubd || o->config || o->set.count))
		return args_wrong(
			usage, "--phubd, --config and --set are for a box that this command starts; --box runs");
	if (o->world && !(o->box && o->job))
		return args_wrong(usage, "--world needs --box HOST:PORT and --job NAME, the same on every machine");
	if (o->first_rank && !o->world)
		return args_wrong(usage, "--first-rank needs --world");
	if (o->world && o->first_rank + o->workers > o->world)
		return args_wrong(usage,
			"%" PRIu64 " workers from rank %" PRIu64 " on do not fit in --world %" PRIu64 "", o->workers,
			o->first_rank, o->world);
	if (o->job && !o->box)
		return args_wrong(usage, "--job names a job of a box that runs: give --box HOST:PORT too");
	if (o->job && strlen(o->job) >= TRIAL_NAME_BYTES)
		return args_wrong(usage, "--job: allowed are names of up to %d characters", TRIAL_NAME_BYTES - 1);
	if (o->box && strlen(o->box) >= BOX_ADDRESS_BYTES)
		return args_wrong(usage, "--box: allowed is HOST:PORT of up to %d characters", BOX_ADDRESS_BYTES - 1);
	return args_check_settings(usage, &o->set);
}

static int train_check(const struct args_usage *usage, struct train_options *o)
{
	const char *transport = train_transports[o->transport];
	char text[256];

	if (o->optimizer_name && optimizer_kind_parse(o->optimizer_name, &o->optimizer, text, sizeof(text)) < 0)
		return args_wrong(usage, "--optimizer: %s", text);
	if (!o->trace == !o->model)
		return args_wrong(usage, "give either --trace FILE.csv, or --model NAME and --compute-ms T");
	if (o->model && !o->compute_ns)
		return args_wrong(
			usage, "--model has no times: give --compute-ms, of one iteration forward and backward");
	if (o->model && models_check(usage, o->model) != ARGS_GO_ON)
		return CLI_USAGE;
	if (train_check_place(usage, o) != ARGS_GO_ON)
		return CLI_USAGE;
	if (o->transport != TRAIN_AUTO && !transport_find(transport)) {
		output_error("transport %s is not in this build; use shm or tcp", transport);
		return CLI_FAILED;
	}
	return ARGS_GO_ON;
}

static const char train_about[] =
	"Predicts a model's iteration time: computes as long as a trace says, layer by layer, and exchanges for real.\n"
	"Workers push a layer's key when its backward has ended, last layer first, and wait for it before its next\n"
	"forward. Shown side by side:\n"
	"\n"
	"  compute    no exchange                       exchange   no computing\n"
	"  serial     all keys go behind backward       backward   keys go as their layers end, all are waited for\n"
	"  fifo       and forward waits key by key      priority   and front layers overtake on the way\n"
	"\n"
	"An iteration is one forward and backward of one worker with its waits; p50 and p99 are over the iterations "
	"of\n"
	"all workers. The first of a row without pauses is not counted. Exposed is p50 less that of computing alone;\n"
	"hidden is the share of exchange's p50 that is not exposed. Sums are checked behind each row, outside of the\n"
	"measured time, and a wrong one fails the run.\n"
	"\n"
	"A trace is a CSV. Its first line names the columns: name,forward_ms,backward_ms,elements and, when wanted, "
	"dtype\n"
	"and group; bytes may stand for elements. One line a layer, in forward order; 0 elements: no parameters. "
	"Lines\n"
	"that begin with # are skipped. phub.torch.record_trace() writes one. --model instead of it is a first guess:\n"
	"a third of --compute-ms is forward, and all tensors of two or more dimensions take the same time.\n"
	"\n"
	"sleep stands for an accelerator: this machine's CPUs are free. spin burns the trace's times as CPU time of "
	"one\n"
	"thread a worker, for training on CPUs; what it does not have is a real layer's use of memory and caches.\n";

static const char train_examples[] =
	"  phub bench train --trace deploy/demo/trace.csv --compute spin --workers 2\n"
	"  phub bench train --model resnet-50 --compute-ms 120 --transport tcp --workers 4 --optimizer nesterov\n"
	"  phub bench train --trace my.csv --schedule priority --timeline my.json\n"
	"  on each of 8 hosts, K from 0 to 7:\n"
	"  phub bench train --trace my.csv --box box1:7077 --job try --world 8 --first-rank K --workers 1\n";

int bench_train_run(int argc, char **argv)
{
	struct train_options o = {.dtype = -1, .workers = 2, .rounds = 30, .timeout_s = 60};
	const struct args_option options[] = {
		{"trace", "FILE.csv", "layers with their times", ARGS_TEXT, &o.trace, 0, 0, NULL},
		{"model", "NAME", "a model without times: see phub models; or a FILE.csv of tensors", ARGS_TEXT,
			&o.model, 0, 0, NULL},
		{"compute-ms", "T",
			"milliseconds of one iteration, like 54 or 6.496: for --model, and to scale a trace", ARGS_MS,
			&o.compute_ns, 0, 3600000, NULL},
		{"compute", "HOW", "sleep or spin", ARGS_CHOICE, &o.how, 0, 0, train_hows},
		{"schedule", "NAME", "all, or only serial, backward, fifo or priority", ARGS_CHOICE, &o.schedule, 0, 0,
			train_schedules},
		{"workers", "N", "worker processes (2)", ARGS_NUMBER, &o.workers, 1, TRIAL_WORKERS_MAX, NULL},
		{"transport", "NAME", "auto, shm, tcp, udp, verbs or dpdk", ARGS_CHOICE, &o.transport, 0, 0,
			train_transports},
		{"mode", "NAME", "zero-copy (memory of the library's) or copy (malloc in and out)", ARGS_CHOICE,
			&o.mode, 0, 0, train_modes},
		{"dtype", "NAME", "f32, f16 or bf16 for all layers (as the trace says, else f32)", ARGS_CHOICE,
			&o.dtype, 0, 0, train_dtypes},
		{"optimizer", "NAME", "none (all-reduce), sgd, momentum, nesterov, adagrad, adam, adamw", ARGS_TEXT,
			&o.optimizer_name, 0, 0, NULL},
		{"rounds", "R", "measured iterations of each schedule, in up to three turns (30)", ARGS_NUMBER,
			&o.rounds, 1, 1000000, NULL},
		{"chunk", "BYTES", "of a chunk, a power of two (the box's: 32KiB)", ARGS_POWER, &o.chunk, 4096, 2 << 20,
			NULL},
		{"timeline", "FILE.json", "two iterations of each worker, for ui.perfetto.dev; and a picture",
			ARGS_TEXT, &o.timeline, 0, 0, NULL},
		{"box", "HOST:PORT", "a box that runs (else one is started here)", ARGS_TEXT, &o.box, 0, 0, NULL},
		{"job", "NAME", "with --box: name of the job (one of its own)", ARGS_TEXT, &o.job, 0, 0, NULL},
		{"world", "N", "with --job: workers on all machines, each of which runs this command", ARGS_NUMBER,
			&o.world, 1, 65535, NULL},
		{"first-rank", "K", "with --world: of the workers here (0)", ARGS_NUMBER, &o.first_rank, 0, 65534,
			NULL},
		{"phubd", "PATH", "the box's program (beside this one, else on $PATH)", ARGS_TEXT, &o.phubd, 0, 0,
			NULL},
		{"config", "FILE", "configuration of the box", ARGS_TEXT, &o.config, 0, 0, NULL},
		{"set", "KEY=VALUE", "one option of the box; may be repeated", ARGS_TEXTS, &o.set, 0, 0, NULL},
		{"timeout", "SECONDS", "that any step may take (60)", ARGS_NUMBER, &o.timeout_s, 1, 86400, NULL},
		{"json", NULL, "one JSON object for each schedule", ARGS_FLAG, &o.json, 0, 0, NULL},
		{"plant", "WHAT", NULL, ARGS_CHOICE, &o.plant, 0, 0, train_plants},
		{.name = NULL},
	};
	const struct args_usage usage = {
		.command = "phub bench train",
		.words = "(--trace FILE.csv | --model NAME --compute-ms T)",
		.about = train_about,
		.examples = train_examples,
		.options = options,
	};
	struct args_words words;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc == ARGS_GO_ON)
		rc = train_check(&usage, &o);
	return rc == ARGS_GO_ON ? train_go(&o) : rc;
}
