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
#include <unistd.h>

#include "client/scout/record.h"
#include "client/url.h"
#include "phub/cli/args.h"
#include "phub/cli/box_process.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "phub/cli/scout.h"
#include "phub/cli/scout_check.h"
#include "phub/cli/scout_crew.h"
#include "phub/cli/scout_log.h"

/* RUN_GIVEN_NOT: what the command itself says holds. */
enum { RUN_GIVEN_NOT = -1, RUN_LINE_MAX = 1 << 20, RUN_BOX_MS = 5000, RUN_LOST_SHRINK = 1 };

static const char *const run_algorithms[] = {"bsp", "gaia", "local", "dgc", NULL};
static const char *const run_units[] = {"bytes", "seconds", "money", NULL};
static const char *const run_losses[] = {"fail", "shrink", NULL};

struct run_options {
	int algorithm, lost;
	struct scout_given given;
	uint64_t sites, period, seed;
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
	enum scout_check_aside aside; /* what has become of the log of a run before */
	bool ended;                   /* the log has its last line */
	bool measures, fixed;         /* it has a scout+; its theta stays */
	bool weighs;                  /* likewise, and a probe has shown what talking more saves */
	bool trains;                  /* sites say what they lose in training */
	unsigned told;                /* bits of options that were said to have no effect */
	unsigned windows;
	double step;     /* of the last */
	double broken;   /* models are no numbers since then, to the end; NaN: they are */
	double culprit;  /* the rank that the first warning names; NaN: there was none, or it names nobody */
	char tensor[64]; /* that it names */
	bool warned;
	char status[160];
};

/* ---- how far they are ---- */

static void run_take_decision(struct run *run, const json_t *line)
{
	const double loss = scout_log_number(line, "AL"), total = scout_log_number(line, "bytes_total"),
		     within = scout_log_number(line, "bytes_within");
	char text[32], saving[SCOUT_LOG_SAVING_BYTES];
	const size_t room = sizeof(run->status);
	size_t used = (size_t)snprintf(
		run->status, room, "step %.0f, theta %g", scout_log_number(line, "t"), scout_log_number(line, "next"));

	run->windows++;
	run->weighs |= !isnan(scout_log_number(line, "gain"));
	run->trains |= !isnan(scout_log_number(line, "train_loss"));
	run->step = scout_log_number(line, "t");
	if (run->measures && isnan(scout_log_number(line, "pull"))) {
		snprintf(run->status + used, room - used, ", measuring");
		return;
	}
	if (!isnan(loss) && used < room)
		used += (size_t)snprintf(run->status + used, room - used, ", %.1f points lost elsewhere", 100 * loss);
	if (total > 0 && used < room)
		used += (size_t)snprintf(run->status + used, room - used, ", %s",
			scout_log_saving_text(scout_log_number(line, "bytes_bsp") / total, saving));
	if (within >= 0 && within < 1e18 && used < room)
		snprintf(run->status + used, room - used, ", %s within in this window",
			output_bytes((uint64_t)within, text));
}

/* Who has no scout hears nothing of those options that are a scout's, and its log does not have them as they were
 * given. NULL: all that is left to be said, as no window has come. */
static void run_note_idle(struct run *run, const json_t *head)
{
	const struct run_options *o = run->options;
	const struct {
		const char *name;
		bool given, heard;
	} options[] = {
		{"period", o->period > 0, (double)o->period == scout_log_number(head, "period")},
		{"sigma", !isnan(o->given.sigma), o->given.sigma == scout_log_number(head, "sigma")},
		{"lambda-loss", !isnan(o->given.lambda_loss),
			o->given.lambda_loss == scout_log_number(head, "lambda_loss")},
		{"lambda-bytes", !isnan(o->given.lambda_bytes),
			o->given.lambda_bytes == scout_log_number(head, "lambda_bytes")},
		{"gain", !isnan(o->given.gain), o->given.gain == scout_log_number(head, "gain")},
		{"worth", !isnan(o->given.worth), o->given.worth == scout_log_number(head, "worth")},
		{"ease", !isnan(o->given.ease), o->given.ease == scout_log_number(head, "ease")},
		{"trim", !isnan(o->given.trim), o->given.trim == scout_log_number(head, "trim")},
		{"seed", o->seed != UINT64_MAX,
			*scout_log_text(head, "seed") || (double)o->seed == scout_log_number(head, "seed")},
		{"unit", o->given.unit != RUN_GIVEN_NOT, o->given.unit == PRICE_BYTES || *scout_log_text(head, "unit")},
		{"shadow", o->shadow.count > 0, scout_log_elements(head, "shadow") > 0},
	};

	if (o->given.policy != RUN_GIVEN_NOT) /* they have one */
		return;
	for (unsigned i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		if (!options[i].given || (head && options[i].heard) || run->told & 1u << i)
			continue;
		run->told |= 1u << i;
		scout_crew_note(&run->crew,
			"--%s is of windows of a scout, and %s has none; --policy makes one (fixed: theta stays)",
			options[i].name, o->out);
	}
}

static void run_take_head(struct run *run, const json_t *line)
{
	run->measures = strcmp(scout_log_text(line, "policy"), scout_policy_name(SCOUT_PLUS)) == 0;
	run->fixed = strcmp(scout_log_text(line, "policy"), scout_policy_name(SCOUT_FIXED)) == 0;
	if (run->measures)
		snprintf(run->status, sizeof(run->status), "measuring");
	if (run->fixed)
		run_note_idle(run, line);
	run->crew.may_lose = run->options->lost == RUN_LOST_SHRINK;
}

static void run_take_line(struct run *run)
{
	json_t *line = json_loadb(run->line, run->length, 0, NULL);
	const char *kind = scout_log_text(line, "scout");

	if (strcmp(kind, "decision") == 0)
		run_take_decision(run, line);
	if (strcmp(kind, "run") == 0)
		run_take_head(run, line);
	if (strcmp(kind, "warning") == 0 && !run->warned) {
		run->warned = true;
		run->culprit = scout_log_number(line, "rank");
		snprintf(run->tensor, sizeof(run->tensor), "%s", scout_log_text(line, "tensor"));
	}
	if (strcmp(kind, "warning") == 0 && json_is_true(json_object_get(line, "all")) && isnan(run->broken))
		run->broken = scout_log_number(line, "t"); /* the last line knows better, if it comes */
	run->ended = strcmp(kind, "end") == 0;
	if (run->ended)
		run->broken = scout_log_number(line, "broken_since");
	json_decref(line);
}

/* Reads what the log has more of. A line that is too long is passed over. */
static void run_read(struct run *run)
{
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
}

static void run_status(void *context, char *text, size_t bytes)
{
	struct run *run = context;

	run_read(run);
	snprintf(text, bytes, "%s", run->status);
}

/* What the box has said, which stands before what follows of it. */
static void run_hear_box(struct run *run)
{
	char text[4096];
	size_t length;

	while ((length = box_process_hear(&run->box, text, sizeof(text))) > 0)
		scout_crew_pass(&run->crew, text, length);
}

static int run_check(void *context, struct err *e)
{
	struct run *run = context;

	run_read(run);
	run_hear_box(run);
	if (!run->box.pid || box_process_check(&run->box, e) == 0)
		return 0;
	run_hear_box(run); /* its last words */
	return -ECHILD;
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

static bool run_set_box(struct run *run)
{
	const struct run_options *o = run->options;

	return o->box ? scout_crew_set(&run->crew, "PHUB_URL=%s", o->box)
		      : scout_crew_set(&run->crew, "PHUB_URL=phub://%s/%s", run->box.address, o->job);
}

static bool run_set_scout(const struct run_options *o, struct scout_crew *crew)
{
	bool good = run_set_log(crew, o->out);

	/* What two runs have learned differs by roundings where a sum is made as sites come in. */
	if (!getenv("PHUB_SCOUT_REPRODUCIBLE"))
		good = good && scout_crew_set(crew, "PHUB_SCOUT_REPRODUCIBLE=1");
	if (o->algorithm != RUN_GIVEN_NOT)
		good = good && scout_crew_set(crew, "PHUB_SCOUT_ALGORITHM=%s", run_algorithms[o->algorithm]);
	if (o->given.policy != RUN_GIVEN_NOT)
		good = good && scout_crew_set(crew, "PHUB_SCOUT_POLICY=%s", scout_policies[o->given.policy]);
	if (o->period)
		good = good && scout_crew_set(crew, "PHUB_SCOUT_PERIOD=%" PRIu64, o->period);
	if (o->seed != UINT64_MAX)
		good = good && scout_crew_set(crew, "PHUB_SCOUT_SEED=%" PRIu64, o->seed);
	if (o->lost != RUN_GIVEN_NOT)
		good = good && scout_crew_set(crew, "PHUB_SCOUT_LOST=%s", run_losses[o->lost]);
	if (o->given.unit != RUN_GIVEN_NOT)
		good = good && scout_crew_set(crew, "PHUB_SCOUT_UNIT=%s", run_units[o->given.unit]);
	return good && run_set_reals(crew, "PHUB_SCOUT_THETAS", &o->thetas) &&
	       run_set_reals(crew, "PHUB_SCOUT_SHADOW", &o->shadow);
}

static bool run_set_numbers(const struct scout_given *given, struct scout_crew *crew)
{
	const struct {
		const char *name;
		double value;
	} numbers[] = {{"PHUB_SCOUT_THETA", given->theta}, {"PHUB_SCOUT_SIGMA", given->sigma},
		{"PHUB_SCOUT_GAIN", given->gain}, {"PHUB_SCOUT_WORTH", given->worth}, {"PHUB_SCOUT_EASE", given->ease},
		{"PHUB_SCOUT_LAMBDA_LOSS", given->lambda_loss}, {"PHUB_SCOUT_LAMBDA_BYTES", given->lambda_bytes},
		{"PHUB_SCOUT_TRIM", given->trim}, {"PHUB_SCOUT_RATE", given->rate},
		{"PHUB_SCOUT_LATENCY", given->latency}, {"PHUB_SCOUT_PRICE", given->price}};
	bool good = true;

	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		good = good && run_set_real(crew, numbers[i].name, numbers[i].value);
	return good;
}

/* ---- the run ---- */

/* All sites have ended well, and the log has not. */
static int run_miss_log(const struct run *run, enum scout_check_fate fate)
{
	const char *out = run->options->out;
	struct err e = {0};
	const char *why = scout_check_room(out, &e) < 0 ? strerror(-e.code) : NULL;

	if (fate == SCOUT_CHECK_NONE)
		output_error("all sites have ended well, and none has written %s: sites of libphub write the log, "
			     "where PHUB_SCOUT_LOG says",
			out);
	else if (fate == SCOUT_CHECK_EMPTY)
		output_error("all sites have ended well, and nothing is in %s: %s", out,
			why ? why : "rank 0 has not begun to train, or could not write it");
	else
		output_error("all sites have ended well, and %s could not be written beyond step %.0f%s%s", out,
			run->step, why ? ": " : "", why ? why : "");
	return CLI_FAILED;
}

/* All sites have ended well, with models that are none. */
static int run_is_broken(const struct run *run)
{
	char who[128] = "";

	if (!isnan(run->culprit))
		snprintf(who, sizeof(who), ", which rank %.0f said first, of tensor '%s'", run->culprit, run->tensor);
	output_error("models are no numbers (NaN or infinite) since step %.0f%s: what was trained is lost; begin again "
		     "with weights that were saved before, and lower the rate, clip gradients or look at the data",
		run->broken, who);
	return CLI_FAILED;
}

/* Of a scout+ that hears no losses, or whose bound was given, and has bounded nothing. */
static void run_note_probes(const struct run *run)
{
	const bool worth = !isnan(run->options->given.worth);

	if (run->measures && run->windows > 0 && !run->trains)
		output_note(SCOUT_LOG_UNTRAINED);
	if (!run->measures || run->weighs || (!worth && isnan(run->options->given.gain)))
		return;
	output_note(
		"--%s has decided nothing in these %u windows: no probe has shown yet what talking more saves, and "
		"theta follows how far sites pull apart; a probe is a window at the tightest theta, when 2 %% of the "
		"bytes allow one",
		worth ? "worth" : "gain", run->windows);
}

/* The others have ended well, and the log has not. */
static int run_lacks_writer(const struct run *run)
{
	output_error("site 0, which wrote the log, was lost, and no other has gone on with it: %s ends early, at step "
		     "%.0f, and does not tell how the %u others went on to their end; begin again for a log of the "
		     "whole run",
		run->options->out, run->step, run->crew.sites - run->crew.lost);
	return CLI_FAILED;
}

static int run_conclude(struct run *run, enum scout_check_fate fate)
{
	const struct run_options *o = run->options;
	const char *words[] = {"compare", o->json ? "--json" : o->out, o->json ? o->out : NULL, NULL};
	const bool lost =
		run->crew.writer_lost && !run->ended && (fate == SCOUT_CHECK_CUT || fate == SCOUT_CHECK_LINES);
	const bool full = fate == SCOUT_CHECK_LINES && !run->ended && scout_check_room(o->out, NULL) < 0;
	int rc;

	if (!lost && (fate != SCOUT_CHECK_LINES || full))
		return run_miss_log(run, fate);
	if (!lost && !run->ended)
		output_note("%s has no last line: rank 0 has ended without closing its site", o->out);
	if (run->fixed && run->windows == 0)
		run_note_idle(run, NULL);
	rc = scout_compare_run(o->json ? 3 : 2, (char **)(uintptr_t)words);
	run_note_probes(run);
	if (!isnan(run->broken))
		rc = run_is_broken(run);
	return lost ? run_lacks_writer(run) : rc;
}

/* It was ended: what there is of the log is whole. */
static int run_break_off(const struct run *run)
{
	if (run->windows > 0)
		output_note(
			"%s has %u window%s until then", run->options->out, run->windows, run->windows == 1 ? "" : "s");
	return CLI_SIGNAL + run->crew.signal;
}

/* Where the log is, and what to do with it. */
static void run_tell_log(const struct run *run)
{
	const char *out = run->options->out;

	if (run->windows > 0)
		output_note("the log is %s: phub scout explain %s tells why theta changed, and phub scout plot --out "
			    "FILE.svg %s draws it",
			out, out, out);
	else
		output_note("the log is %s: phub scout compare %s LOG... has it beside other runs", out, out);
}

/* The log that was put aside: of another run, or of what this one has gone on from. */
static void run_tell_before(const struct run *run)
{
	const bool broken = run->aside == SCOUT_CHECK_BROKEN || run->aside == SCOUT_CHECK_JOINED_BROKEN;
	const char *out = run->options->out, *part = scout_check_part(out);

	if (run->aside == SCOUT_CHECK_ALONE)
		return;
	if (part)
		output_note("what this run has logged before is %s.%s: cat %s.%s %s is all of it", out, part, out, part,
			out);
	else if (broken)
		output_note("the log of what was broken off is %s.broken; the log of the run before is %s.before", out,
			out);
	else
		output_note("the log of the run before is %s.before%s", out,
			run->aside == SCOUT_CHECK_REPLACED ? ", where that of an older one was" : "");
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
	settings->heard = true;
	for (unsigned i = 0; i < run->options->set.count; i++) {
		box_settings_add(settings, "%s", run->options->set.at[i]);
		if (strncmp(run->options->set.at[i], "log_level=", 10) == 0)
			settings->heard = false; /* all of it is wanted */
	}
	rc = box_process_start(settings, &run->box, e);
	free(settings);
	return rc;
}

/* Each FILE has one before. */
static void run_put_aside(struct run *run, struct err *e)
{
	const char *out = run->options->out;
	const int rc = scout_check_aside(out, true, e);

	run->aside = rc < 0 ? SCOUT_CHECK_ALONE : (enum scout_check_aside)rc;
	if (rc == SCOUT_CHECK_KEPT)
		output_note(SCOUT_CHECK_KEPT_TEXT, out, out);
	if (rc == SCOUT_CHECK_BROKEN)
		output_note("%s was of a run that was broken off, and is %s.broken now; %s.before, of the run before "
			    "that, stays",
			out, out, out);
}

/* The sites, at a box that is there. */
static int run_sites(struct run *run)
{
	struct err e = {0};

	if (!run_set_box(run))
		err_set(&e, -EINVAL, "what is given is too long for the environment");
	else
		run_put_aside(run, &e);
	if (e.code) {
		output_error("%s", e.text);
		return CLI_FAILED;
	}
	return scout_crew_run(&run->crew, &e) < 0 ? CLI_FAILED : CLI_DONE;
}

/*
 * When a site has failed, and as the box ends, it says what follows of that, at some time: who looks for the reason
 * would find it among that. Where the box itself has not ended well, it is the reason.
 */
static int run_stop_box(struct run *run, int rc)
{
	struct err e = {0};
	bool good;

	if (rc == CLI_DONE)
		run_hear_box(run);
	good = box_process_stop(&run->box, &e) == 0;
	if (!good)
		run_hear_box(run);
	box_process_forget(&run->box);
	if (good || rc != CLI_DONE)
		return rc;
	output_error("%s", e.text);
	return CLI_FAILED;
}

static int run_go(struct run *run)
{
	struct err e = {0};
	enum scout_check_fate fate;
	char text[sizeof(run->status)];
	bool ended;
	int rc;

	run->box.said_fd = -1;
	if (!run->options->box && run_start_box(run, &e) < 0) {
		output_error("%s", e.text);
		return CLI_FAILED;
	}
	run->crew.status = run_status;
	run->crew.check = run_check;
	if (run->options->lost == RUN_LOST_SHRINK)
		run->crew.yet = ". A job begins with all of its sites: --lost shrink holds from there on";
	run->crew.context = run;
	rc = run_sites(run);
	rc = run_stop_box(run, rc);
	run_status(run, text, sizeof(text)); /* the rest of the log */
	if (run->log)
		fclose(run->log);
	fate = scout_check_settle(run->options->out, run->aside);
	ended = rc == CLI_DONE;
	rc = ended ? run_conclude(run, fate) : rc;
	rc = run->crew.signal ? run_break_off(run) : rc;
	if (fate == SCOUT_CHECK_LINES && (rc == CLI_DONE || run->crew.signal))
		run_tell_log(run);
	if ((fate == SCOUT_CHECK_LINES || fate == SCOUT_CHECK_CUT) && (ended || run->crew.signal))
		run_tell_before(run);
	return rc;
}

/* ---- what is wrong before anything starts ---- */

/* What sites look at themselves they would say in as many voices. */
static int run_check_sites(struct run *run, struct err *e)
{
	if (!run_set_scout(run->options, &run->crew) || !run_set_numbers(&run->options->given, &run->crew))
		return err_set(e, -EINVAL, "what is given is too long for the environment");
	for (unsigned i = 0; i < run->crew.setting_count; i++)
		putenv(run->crew.settings[i]); /* theirs is this process's, and more */
	return scout_check_environment(e);
}

static int run_check_world(const struct run *run, struct err *e)
{
	const struct run_options *o = run->options;
	int rc = scout_check_log(o->out, e);

	if (rc == 0)
		rc = scout_check_command(run->crew.command[0], e);
	if (rc == 0 && o->box)
		rc = scout_check_box(o->box, RUN_BOX_MS, e);
	return rc;
}

static int run_check_options(
	const struct args_usage *usage, const struct run_options *o, const struct args_words *words)
{
	struct err e = {0};

	if (words->count == 0)
		return args_wrong(usage, "which command? It stands behind --");
	if (o->box && strncmp(o->box, "phub", 4) != 0)
		return args_wrong(usage, "--box %s: allowed is a URL like phub://host:7077/job", o->box);
	if (o->box && scout_check_url(o->box, &e) < 0)
		return args_wrong(usage, "--box: %s", e.text);
	if (o->box && (o->phubd || o->set.count))
		return args_wrong(
			usage, "--phubd and --set are of a box that is started here, and --box is another one");
	if (!o->job[0] || strlen(o->job) >= URL_JOB_BYTES ||
		strspn(o->job, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != strlen(o->job))
		return args_wrong(usage,
			"--job %s: allowed are 1 to %d letters, digits, points, dashes and underscores", o->job,
			URL_JOB_BYTES - 1);
	return args_check_settings(usage, &o->set);
}

/* Those of a scout. */
static int run_check_scout(const struct args_usage *usage, const struct run_options *o)
{
	struct scout_given given = o->given;
	unsigned first;
	int rc;

	if (given.unit == RUN_GIVEN_NOT)
		given.unit = PRICE_BYTES;
	rc = scout_check_given(usage, &given);
	if (rc == ARGS_GO_ON && given.unit == PRICE_SECONDS && !(given.rate > 0) && !getenv("PHUB_SCOUT_RATE"))
		return args_wrong(usage, "--unit seconds wants --rate: what a link carries in one, above 0");
	if (rc == ARGS_GO_ON && given.unit == PRICE_MONEY && !(given.price > 0) && !getenv("PHUB_SCOUT_PRICE"))
		return args_wrong(usage, "--unit money wants --price: of 10^9 bytes, above 0");
	if (rc == ARGS_GO_ON && o->thetas.count > 0)
		rc = scout_check_theta(usage, given.theta, o->thetas.at, o->thetas.count, &first);
	return rc;
}

static int run_open(const struct args_usage *usage, struct run *run)
{
	const char *out = run->options->out;
	struct err e = {0};
	int rc, lock;

	if (run_check_sites(run, &e) < 0)
		return args_wrong(usage, "%s", e.text);
	if (run_check_world(run, &e) < 0 || scout_check_claim(out, &lock, &e) < 0) {
		output_error("%s", e.text);
		return CLI_FAILED;
	}
	rc = run_go(run);
	scout_check_release(out, lock);
	return rc;
}

/* Too large for the stack; and the environment is in it, to the end of the process. */
static int run_begin(const struct args_usage *usage, const struct run_options *o, const struct args_words *words)
{
	static struct run run;
	static const char *command[ARGS_WORDS_MAX + 1];

	for (unsigned i = 0; i < words->count; i++)
		command[i] = words->at[i];
	run.options = o;
	run.broken = run.culprit = NAN;
	run.crew.command = command;
	run.crew.sites = (unsigned)o->sites;
	return run_open(usage, &run);
}

static const struct run_options run_usual = {.algorithm = RUN_GIVEN_NOT,
	.lost = RUN_GIVEN_NOT,
	.given = SCOUT_GIVEN_NONE,
	.sites = 2,
	.seed = UINT64_MAX,
	.job = "scout",
	.out = "scout.jsonl"};

static const char run_about[] =
	"Starts a box and K processes of COMMAND, which train by sites of libphub, and passes their output on\n"
	"with their numbers. They find RANK, WORLD_SIZE, PHUB_URL and PHUB_SCOUT_LOG in their environment,\n"
	"and PHUB_SCOUT_* of what is given here. When one fails, all are ended; Ctrl-C ends the sites, then\n"
	"the box, with exit code 130. All that can be known to be wrong is said before anything starts. What is\n"
	"not given COMMAND may say itself; else it is as in brackets.\n";

int scout_run_run(int argc, char **argv)
{
	struct run_options o = run_usual;
	struct scout_given *g = &o.given;
	const struct args_option options[] = {
		{"sites", "K", "processes of COMMAND, a site each, 1 to 64 (2)", ARGS_NUMBER, &o.sites, 1,
			SCOUT_CREW_MAX, NULL},
		{"out", "FILE", "the decision log (scout.jsonl); one that is there becomes FILE.before", ARGS_TEXT,
			&o.out, 0, 0, NULL},
		{"algorithm", "NAME", "bsp, gaia, local or dgc", ARGS_CHOICE, &o.algorithm, 0, 0, run_algorithms},
		{"policy", "NAME", "of the scout: fixed, replay, hill, stochastic, annealing or scout+", ARGS_CHOICE,
			&g->policy, 0, 0, scout_policies},
		{"thetas", "A,B,...", "its grid, the tightest first, or of replay its schedule: 1 to 64", ARGS_REALS,
			&o.thetas, 0, 0, NULL},
		{"theta", "THETA", "fixed, hill, stochastic, annealing, or no scout: what it begins with", ARGS_REAL,
			&g->theta, 0, 0, NULL},
		{"period", "STEPS", "in a window (500; scout+: 50, and it measures in the first 60 steps)", ARGS_NUMBER,
			&o.period, 1, UINT32_MAX, NULL},
		{"sigma", "LOSS", "all but fixed and scout+: accuracy that may be lost, 0 to 1 (0.05)", ARGS_REAL,
			&g->sigma, 0, 1, NULL},
		{"lambda-loss", "L", "likewise: what accuracy that is lost beyond sigma costs (50)", ARGS_REAL,
			&g->lambda_loss, 0, 0, NULL},
		{"lambda-bytes", "L", "likewise: what a model's worth of bytes a step costs (1)", ARGS_REAL,
			&g->lambda_bytes, 0, 0, NULL},
		{"gain", "LOSS", "scout+: loss that talking more would have to save (0.02)", ARGS_REAL, &g->gain, 0, 0,
			NULL},
		{"worth", "COST", "scout+, instead: what a unit of loss is worth, in the unit of costs, above 0",
			ARGS_REAL, &g->worth, 0, 0, NULL},
		{"ease", "FACTOR", "scout+: a factor to how loose theta may be, above 0 (1)", ARGS_REAL, &g->ease, 0, 0,
			NULL},
		{"trim", "PART", "of sites that may lie, below 0.5: as much is left out of means at either end (0)",
			ARGS_REAL, &g->trim, 0, 0, NULL},
		{"seed", "N", "of its chances (0)", ARGS_NUMBER, &o.seed, 0, SCOUT_SEED_MAX, NULL},
		{"unit", "NAME", "of costs: bytes, seconds or money (bytes)", ARGS_CHOICE, &g->unit, 0, 0, run_units},
		{"rate", "BYTES", "seconds: what a link carries in one, like 12.5MB", ARGS_SIZE, &g->rate, 0, 0, NULL},
		{"latency", "SECONDS", "seconds: of an exchange, however little it says", ARGS_REAL, &g->latency, 0, 0,
			NULL},
		{"price", "PRICE", "money: of 10^9 bytes", ARGS_REAL, &g->price, 0, 0, NULL},
		{"shadow", "A,B,...", "what these thetas would have sent goes into the log, 1 to 64", ARGS_REALS,
			&o.shadow, 0, 0, NULL},
		{"lost", "NAME", "when one is lost: fail ends all, shrink goes on without it, once all have begun",
			ARGS_CHOICE, &o.lost, 0, 0, run_losses},
		{"box", "URL", "a box that runs, phub://host:port/job, instead of one that is started here", ARGS_TEXT,
			&o.box, 0, 0, NULL},
		{"job", "NAME", "at a box that is started here (scout)", ARGS_TEXT, &o.job, 0, 0, NULL},
		{"phubd", "PATH", "the box's program", ARGS_TEXT, &o.phubd, 0, 0, NULL},
		{"set", "KEY=VALUE",
			"an option of the box, as often as you like; transports=tcp: bytes on the wire, as links carry "
			"them",
			ARGS_TEXTS, &o.set, 0, 0, NULL},
		{"json", NULL, "the end as a line of JSON", ARGS_FLAG, &o.json, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {.command = "phub scout run",
		.words = "-- COMMAND...",
		.about = run_about,
		.examples = "  phub scout run --sites 5 --policy hill --thetas 1,2,5,10,20 --theta 20 -- python3 "
			    "train.py\n",
		.words_max = ARGS_WORDS_MAX,
		.options = options};
	struct args_words words;
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc == ARGS_GO_ON)
		rc = run_check_options(&usage, &o, &words);
	if (rc == ARGS_GO_ON)
		rc = run_check_scout(&usage, &o);
	return rc == ARGS_GO_ON ? run_begin(&usage, &o, &words) : rc;
}
