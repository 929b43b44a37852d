/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub scout run: a box, and sites of it as processes of this machine; what they do about talking comes from the
 * command line, through their environment, and what the scout decides goes into a log.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/scout/record.h"
#include "phub/cli/args.h"
#include "phub/cli/box_process.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "phub/cli/scout.h"
#include "phub/cli/scout_crew.h"
#include "phub/cli/scout_log.h"

/* RUN_GIVEN_NOT: what the command itself says holds. */
enum { RUN_GIVEN_NOT = -1, RUN_LINE_MAX = 1 << 20 };

static const char *const run_algorithms[] = {"bsp", "gaia", "local", "dgc", NULL};
static const char *const run_units[] = {"bytes", "seconds", "money", NULL};

struct run_options {
	int algorithm, policy, unit;
	uint64_t sites, period, seed;
	double theta, sigma, gain, lambda_loss, lambda_bytes, rate, latency, price;
	struct args_reals thetas, shadow;
	const char *box, *job, *out, *phubd;
	struct args_texts set;
	bool json;
};

struct run {
	const struct run_options *options;
	struct scout_crew crew;
	struct box_process box;
	FILE *log; /* as far as it has been read */
	char line[RUN_LINE_MAX];
	size_t length;
	char status[160];
};

/* ---- how far they are ---- */

static void run_take_line(struct run *run)
{
	json_t *line = json_loadb(run->line, run->length, 0, NULL);
	double loss = scout_log_number(line, "AL"), total = scout_log_number(line, "bytes_total"),
	       within = scout_log_number(line, "bytes_within");
	char text[32];
	size_t used;

	if (strcmp(scout_log_text(line, "scout"), "decision") == 0) {
		used = (size_t)snprintf(run->status, sizeof(run->status), "step %.0f, theta %g",
			scout_log_number(line, "t"), scout_log_number(line, "next"));
		if (!isnan(loss) && used < sizeof(run->status))
			used += (size_t)snprintf(run->status + used, sizeof(run->status) - used,
				", %.1f points lost elsewhere", 100 * loss);
		if (total > 0 && used < sizeof(run->status))
			used += (size_t)snprintf(run->status + used, sizeof(run->status) - used,
				", %.1f times fewer bytes than BSP", scout_log_number(line, "bytes_bsp") / total);
		if (within >= 0 && within < 1e18 && used < sizeof(run->status))
			snprintf(run->status + used, sizeof(run->status) - used, ", %s within in this window",
				output_bytes((uint64_t)within, text));
	}
	json_decref(line);
}

/* Reads what the log has more of. A line that is too long is passed over. */
static void run_status(void *context, char *text, size_t bytes)
{
	struct run *run = context;
	int c;

	if (!run->log)
		run->log = fopen(run->options->out, "re");
	while (run->log && (c = getc(run->log)) != EOF) {
		if (c != '\n' && run->length < sizeof(run->line)) {
			run->line[run->length++] = (char)c;
			continue;
		}
		if (c == '\n') {
			if (run->length < sizeof(run->line))
				run_take_line(run);
			run->length = 0;
		}
	}
	if (run->log)
		clearerr(run->log);
	snprintf(text, bytes, "%s", run->status);
}

static int run_check(void *context, struct err *e)
{
	struct run *run = context;

	return run->box.pid ? box_process_check(&run->box, e) : 0;
}

/* ---- the environment ---- */

static bool run_set_reals(struct scout_crew *crew, const char *name, const struct args_reals *list)
{
	char text[SCOUT_CREW_SETTING_BYTES - 64] = "", number[RECORD_NUMBER_BYTES];
	size_t used = 0;

	for (unsigned i = 0; i < list->count; i++) {
		record_number(list->at[i], number);
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i ? "," : "", number);
		if (used >= sizeof(text))
			return false;
	}
	return list->count == 0 || scout_crew_set(crew, "%s=%s", name, text);
}

static bool run_set_real(struct scout_crew *crew, const char *name, double value)
{
	const struct args_reals one = {.count = 1, .at = {value}};

	return isnan(value) || run_set_reals(crew, name, &one);
}

/* The path holds wherever the command goes. */
static bool run_set_log(struct scout_crew *crew, const char *out)
{
	char here[1024];

	if (out[0] == '/')
		return scout_crew_set(crew, "PHUB_SCOUT_LOG=%s", out);
	return getcwd(here, sizeof(here)) && scout_crew_set(crew, "PHUB_SCOUT_LOG=%s/%s", here, out);
}

static bool run_set_all(struct run *run)
{
	const struct run_options *o = run->options;
	struct scout_crew *crew = &run->crew;
	bool good = run_set_log(crew, o->out);

	good = good && (o->box ? scout_crew_set(crew, "PHUB_URL=%s", o->box)
			       : scout_crew_set(crew, "PHUB_URL=phub://%s/%s", run->box.address, o->job));
	if (o->algorithm != RUN_GIVEN_NOT)
		good = good && scout_crew_set(crew, "PHUB_SCOUT_ALGORITHM=%s", run_algorithms[o->algorithm]);
	if (o->policy != RUN_GIVEN_NOT)
		good = good && scout_crew_set(crew, "PHUB_SCOUT_POLICY=%s", scout_policies[o->policy]);
	if (o->period)
		good = good && scout_crew_set(crew, "PHUB_SCOUT_PERIOD=%" PRIu64, o->period);
	if (o->seed != UINT64_MAX)
		good = good && scout_crew_set(crew, "PHUB_SCOUT_SEED=%" PRIu64, o->seed);
	if (o->unit != RUN_GIVEN_NOT)
		good = good && scout_crew_set(crew, "PHUB_SCOUT_UNIT=%s", run_units[o->unit]);
	return good && run_set_real(crew, "PHUB_SCOUT_RATE", o->rate) &&
	       run_set_real(crew, "PHUB_SCOUT_LATENCY", o->latency) &&
	       run_set_real(crew, "PHUB_SCOUT_PRICE", o->price) && run_set_real(crew, "PHUB_SCOUT_THETA", o->theta) &&
	       run_set_real(crew, "PHUB_SCOUT_SIGMA", o->sigma) && run_set_real(crew, "PHUB_SCOUT_GAIN", o->gain) &&
	       run_set_real(crew, "PHUB_SCOUT_LAMBDA_LOSS", o->lambda_loss) &&
	       run_set_real(crew, "PHUB_SCOUT_LAMBDA_BYTES", o->lambda_bytes) &&
	       run_set_reals(crew, "PHUB_SCOUT_THETAS", &o->thetas) &&
	       run_set_reals(crew, "PHUB_SCOUT_SHADOW", &o->shadow);
}

/* ---- the run ---- */

static int run_conclude(const struct run_options *o)
{
	const char *words[] = {"compare", o->json ? "--json" : o->out, o->json ? o->out : NULL, NULL};

	if (access(o->out, R_OK) < 0) {
		output_error("all sites have ended well, and none has written %s: the log is written by sites of "
			     "libphub that have a scout, where PHUB_SCOUT_LOG says",
			o->out);
		return CLI_FAILED;
	}
	return scout_compare_run(o->json ? 3 : 2, (char **)(uintptr_t)words);
}

static int run_start_box(struct run *run, struct err *e)
{
	struct box_settings *settings = calloc(1, sizeof(*settings));
	int rc;

	if (!settings)
		return err_set(e, -ENOMEM, "out of memory");
	settings->phubd = run->options->phubd;
	box_settings_add(settings, "log_level=warn");
	box_settings_add(settings, "listen=127.0.0.1:0");
	box_settings_add(settings, "data_ports=any");
	for (unsigned i = 0; i < run->options->set.count; i++)
		box_settings_add(settings, "%s", run->options->set.at[i]);
	rc = box_process_start(settings, &run->box, e);
	free(settings);
	return rc;
}

/* The log of a run before goes; a device, or a link, stays. */
static int run_clear(const char *out)
{
	struct stat status;

	if (lstat(out, &status) == 0 && !S_ISREG(status.st_mode)) {
		output_error("cannot write %s: what is there is no regular file; --out wants the name of one", out);
		return -EINVAL;
	}
	if (unlink(out) < 0 && errno != ENOENT) {
		output_error("cannot write %s: %s", out, strerror(errno));
		return -EIO;
	}
	return 0;
}

static int run_go(struct run *run, const char *const *command)
{
	const struct run_options *o = run->options;
	struct err e = {0}, end = {0};

	if (run_clear(o->out) < 0)
		return CLI_FAILED;
	run->crew.command = command;
	run->crew.sites = (unsigned)o->sites;
	run->crew.status = run_status;
	run->crew.check = run_check;
	run->crew.context = run;
	if (o->box || run_start_box(run, &e) == 0) {
		if (!run_set_all(run))
			err_set(&e, -EINVAL, "what is given is too long for the environment");
		else
			scout_crew_run(&run->crew, &e);
	}
	if (box_process_stop(&run->box, &end) < 0 && !e.code)
		e = end;
	if (run->log)
		fclose(run->log);
	if (e.code)
		output_error("%s", e.text);
	return e.code ? CLI_FAILED : run_conclude(o);
}

static int run_check_options(
	const struct args_usage *usage, const struct run_options *o, const struct args_words *words)
{
	if (words->count == 0)
		return args_wrong(usage, "which command? It stands behind --");
	if (o->box && strncmp(o->box, "phub://", 7) != 0)
		return args_wrong(usage, "--box %s: allowed is a URL like phub://host:7077/job", o->box);
	if (o->box && (o->phubd || o->set.count))
		return args_wrong(
			usage, "--phubd and --set are of a box that is started here, and --box is another one");
	if (!o->job[0] ||
		strspn(o->job, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != strlen(o->job))
		return args_wrong(
			usage, "--job %s: allowed are letters, digits, points, dashes and underscores", o->job);
	return args_check_settings(usage, &o->set);
}

/* Too large for the stack. */
static int run_open(const struct run_options *o, const struct args_words *words)
{
	struct run *run = calloc(1, sizeof(*run));
	const char *command[ARGS_WORDS_MAX + 1] = {NULL};
	int rc = CLI_FAILED;

	for (unsigned i = 0; i < words->count; i++)
		command[i] = words->at[i];
	if (run) {
		run->options = o;
		rc = run_go(run, command);
	} else {
		output_error("out of memory");
	}
	free(run);
	return rc;
}

int scout_run_run(int argc, char **argv)
{
	struct run_options o = {.algorithm = RUN_GIVEN_NOT,
		.policy = RUN_GIVEN_NOT,
		.unit = RUN_GIVEN_NOT,
		.rate = NAN,
		.latency = NAN,
		.price = NAN,
		.sites = 2,
		.seed = UINT64_MAX,
		.theta = NAN,
		.sigma = NAN,
		.gain = NAN,
		.lambda_loss = NAN,
		.lambda_bytes = NAN,
		.job = "scout",
		.out = "scout.jsonl"};
	const struct args_option options[] = {
		{"sites", "K", "processes of COMMAND, a site each, 1 to 64 (2)", ARGS_NUMBER, &o.sites, 1,
			SCOUT_CREW_MAX, NULL},
		{"out", "FILE", "the decision log (scout.jsonl)", ARGS_TEXT, &o.out, 0, 0, NULL},
		{"algorithm", "NAME", "bsp, gaia, local or dgc", ARGS_CHOICE, &o.algorithm, 0, 0, run_algorithms},
		{"policy", "NAME", "of the scout: fixed, replay, hill, stochastic, annealing or scout+", ARGS_CHOICE,
			&o.policy, 0, 0, scout_policies},
		{"thetas", "A,B,...", "its grid, the tightest first; replay: its schedule", ARGS_REALS, &o.thetas, 0, 0,
			NULL},
		{"theta", "THETA", "the one that it begins with", ARGS_REAL, &o.theta, 0, 0, NULL},
		{"period", "STEPS", "in a window", ARGS_NUMBER, &o.period, 1, UINT32_MAX, NULL},
		{"sigma", "LOSS", "accuracy that may be lost, 0 to 1", ARGS_REAL, &o.sigma, 0, 0, NULL},
		{"gain", "LOSS", "scout+: loss that talking more would have to save", ARGS_REAL, &o.gain, 0, 0, NULL},
		{"lambda-loss", "L", "what accuracy that is lost beyond sigma costs", ARGS_REAL, &o.lambda_loss, 0, 0,
			NULL},
		{"lambda-bytes", "L", "what a model's worth of bytes a step costs", ARGS_REAL, &o.lambda_bytes, 0, 0,
			NULL},
		{"seed", "N", "of its chances", ARGS_NUMBER, &o.seed, 0, UINT64_MAX - 1, NULL},
		{"unit", "NAME", "of costs: bytes, seconds or money", ARGS_CHOICE, &o.unit, 0, 0, run_units},
		{"rate", "BYTES", "seconds: what a link carries in one", ARGS_REAL, &o.rate, 0, 0, NULL},
		{"latency", "SECONDS", "seconds: of an exchange, however little it says", ARGS_REAL, &o.latency, 0, 0,
			NULL},
		{"price", "PRICE", "money: of 10^9 bytes", ARGS_REAL, &o.price, 0, 0, NULL},
		{"shadow", "A,B,...", "what these thetas would have sent goes into the log", ARGS_REALS, &o.shadow, 0,
			0, NULL},
		{"box", "URL", "a box that runs, phub://host:port/job, instead of one that is started here", ARGS_TEXT,
			&o.box, 0, 0, NULL},
		{"job", "NAME", "at a box that is started here (scout)", ARGS_TEXT, &o.job, 0, 0, NULL},
		{"phubd", "PATH", "the box's program", ARGS_TEXT, &o.phubd, 0, 0, NULL},
		{"set", "KEY=VALUE", "an option of the box; may be given more than once", ARGS_TEXTS, &o.set, 0, 0,
			NULL},
		{"json", NULL, "the end as a line of JSON", ARGS_FLAG, &o.json, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {.command = "phub scout run",
		.words = "-- COMMAND...",
		.about = "Starts a box and K processes of COMMAND, which train by sites of libphub, and passes their "
			 "output on\n"
			 "with their numbers. They find RANK, WORLD_SIZE, PHUB_URL and PHUB_SCOUT_LOG in their "
			 "environment,\n"
			 "and PHUB_SCOUT_* of what is given here. When one fails, all are ended.\n",
		.examples = "  phub scout run --sites 5 --policy hill --thetas 1,2,5,10,20 --theta 20 -- python3 "
			    "train.py\n",
		.words_max = ARGS_WORDS_MAX,
		.options = options};
	struct args_words words;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc == ARGS_GO_ON)
		rc = run_check_options(&usage, &o, &words);
	return rc == ARGS_GO_ON ? run_open(&o, &words) : rc;
}
