/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decision logs, line by line.
 */
#include "phub/cli/scout_log.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/cli/args.h"
#include "phub/cli/output.h"
#include "phub/cli/scout_check.h"

/* ---- fields ---- */

double scout_log_number(const json_t *line, const char *field)
{
	const json_t *value = json_object_get(line, field);

	return json_is_number(value) ? json_number_value(value) : NAN;
}

const char *scout_log_text(const json_t *line, const char *field)
{
	const char *text = json_string_value(json_object_get(line, field));

	return text ? text : "";
}

double scout_log_element(const json_t *line, const char *field, unsigned i)
{
	const json_t *value = json_array_get(json_object_get(line, field), i);

	return json_is_number(value) ? json_number_value(value) : NAN;
}

unsigned scout_log_elements(const json_t *line, const char *field)
{
	return (unsigned)json_array_size(json_object_get(line, field));
}

const json_t *scout_log_window(const struct scout_log *log, unsigned i)
{
	return json_array_get(log->windows, i);
}

double scout_log_weighed(const json_t *window, const char *field)
{
	char name[64];
	double part;

	snprintf(name, sizeof(name), "%s_cost", field);
	part = scout_log_number(window, name);
	return isnan(part) ? scout_log_number(window, field) : part;
}

uint64_t scout_log_missing(const struct scout_log *log, unsigned window)
{
	const double before = window ? scout_log_number(scout_log_window(log, window - 1), "window") : -1;
	const double gap = scout_log_number(scout_log_window(log, window), "window") - before - 1;

	return gap >= 1 && gap < 1e15 ? (uint64_t)gap : 0;
}

double scout_log_steps(const struct scout_log *log, unsigned window)
{
	const double before = window ? scout_log_number(scout_log_window(log, window - 1), "t") : 0;
	const double steps = scout_log_number(scout_log_window(log, window), "t") - before;

	return scout_log_missing(log, window) ? fmin(steps, scout_log_number(log->run, "period")) : steps;
}

double scout_log_spent(const struct scout_log *log, unsigned window)
{
	return scout_log_number(scout_log_window(log, window), "spent") * scout_log_steps(log, window);
}

double scout_log_travel_cost(
	const struct scout_log *log, unsigned window, const struct price *price, double bytes, bool models)
{
	const double model = scout_log_number(log->run, "model_bytes");
	const double sites = scout_log_number(scout_log_window(log, window), "sites");

	if (price->unit == PRICE_BYTES)
		return NAN;
	if (price->unit == PRICE_SECONDS && models)
		return bytes * sites / model * price_of(price->unit, &price->link, model, 1);
	return price_of(price->unit, &price->link, bytes, 0);
}

double scout_log_spent_travel(const struct scout_log *log, unsigned window)
{
	const struct price price = scout_log_price(log);
	const bool models = strcmp(scout_log_text(log->run, "policy"), scout_policy_name(SCOUT_PLUS)) != 0;

	return scout_log_travel_cost(
		log, window, &price, scout_log_number(scout_log_window(log, window), "bytes_travel"), models);
}

const char *scout_log_bytes_text(double bytes, char text[32])
{
	static const char *const units[] = {"B", "KB", "MB", "GB", "TB"};
	unsigned unit = 0;

	for (; unit < 4 && bytes >= (unit ? 999.95 : 999.5); unit++)
		bytes /= 1000;
	if (bytes >= 0 && bytes < 1e6)
		snprintf(text, 32, unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
	else
		snprintf(text, 32, "unknown");
	return text;
}

const char *scout_log_spent_text(enum price_unit unit, double spent, char text[32])
{
	static const char *const names[PRICE_UNIT_COUNT] = {
		[PRICE_BYTES] = "B", [PRICE_SECONDS] = "s", [PRICE_MONEY] = "money"};

	if (isnan(spent))
		snprintf(text, 32, "unknown");
	else
		snprintf(text, 32, "%.4g %s", spent, names[unit]);
	return text;
}

json_t *scout_log_value(double value)
{
	if (!isfinite(value))
		return json_null();
	return value == floor(value) && fabs(value) < 1e15 ? json_integer((json_int_t)value) : json_real(value);
}

/* ---- reading ---- */

/* A line that the rest can be read without, as windows that are missing are told of. */
static int log_damaged(const struct scout_log *log, struct err *e, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static int log_damaged(const struct scout_log *log, struct err *e, const char *format, ...)
{
	char what[200];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(what, sizeof(what), format, arguments);
	va_end(arguments);
	return err_set(e, -EBADMSG,
		"%s; a copy without that line (sed %ud) can be read, and where it was a window, that it is missing is "
		"told",
		what, log->line);
}

/* Another site writes from here on: its end knows all where it was there from the start. */
static void log_take_writer(struct scout_log *log, const json_t *line)
{
	log->since = scout_log_number(line, "since");
	log->joined = true;
	log->writer = scout_log_number(line, "rank");
	json_decref(log->end); /* that of who left before the others did */
	log->end = NULL;
}

/* Who goes on in a file of its own says once more what the run is, as do two that were joined. */
static bool log_is_same(const json_t *a, const json_t *b)
{
	static const char *const fields[] = {
		"id", "job", "algorithm", "policy", "thetas", "sites", "model_bytes", "seed"};

	for (unsigned i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		const json_t *of[] = {json_object_get(a, fields[i]), json_object_get(b, fields[i])};

		if (of[0] != of[1] && !json_equal(of[0], of[1]))
			return false;
	}
	return true;
}

static int log_take_run(struct scout_log *log, json_t *line, struct err *e)
{
	double version = scout_log_number(line, "version");

	if (log->run && log_is_same(log->run, line) && (!log->end || json_object_get(line, "id"))) {
		log_take_writer(log, line);
		return 0;
	}
	if (log->run)
		return err_set(e, -EBADMSG,
			"a second run begins; a log is of one: make that line the first of a file of its own");
	if (!(version >= 1 && version < 2))
		return err_set(e, -EBADMSG,
			"a log of version %g; this phub reads version 1: read it with the phub that wrote it", version);
	if (!(scout_log_number(line, "sites") >= 1) || !(scout_log_number(line, "model_bytes") >= 1))
		return err_set(e, -EBADMSG,
			"the run does not say its sites and model_bytes, without which nothing can be summed; take a "
			"log that libphub wrote");
	log->run = json_incref(line);
	log->writer = scout_log_number(line, "rank");
	return 0;
}

/* Where what belongs into a run stands. */
static const char *log_outside(const struct scout_log *log)
{
	return log->run ? "outside of a run, behind its last line: remove what does not belong to that run"
			: "outside of a run, whose first line, {\"scout\":\"run\", ...}, is missing: without it "
			  "nothing can "
			  "be read";
}

/* Did another write it already, before this one went on with the log? */
static bool log_has_window(const struct scout_log *log, const json_t *line)
{
	const double window = scout_log_number(line, "window");

	for (unsigned i = log->joined ? log->count : 0; i-- > 0;)
		if (scout_log_number(scout_log_window(log, i), "window") <= window)
			return scout_log_number(scout_log_window(log, i), "window") == window;
	return false;
}

static int log_take_window(struct scout_log *log, json_t *line, struct err *e)
{
	const json_t *last = log->count ? scout_log_window(log, log->count - 1) : NULL;
	double t = scout_log_number(line, "t");

	if (log_has_window(log, line))
		return 0;
	if (!log->run || log->end)
		return err_set(e, -EBADMSG, "a decision %s", log_outside(log));
	if (!(t >= 0 && t < 1e15) || isnan(scout_log_number(line, "theta")) || isnan(scout_log_number(line, "next")))
		return log_damaged(log, e, "a decision without t, theta or next");
	if (last && t <= scout_log_number(last, "t"))
		return log_damaged(log, e, "step %g comes after step %g: it is of another run, or there twice", t,
			scout_log_number(last, "t"));
	if (log->count == SCOUT_LOG_WINDOWS_MAX)
		return err_set(e, -EBADMSG, "more than %d windows", SCOUT_LOG_WINDOWS_MAX);
	if (json_array_append(log->windows, line) < 0)
		return err_set(e, -ENOMEM, "out of memory");
	log->count++;
	log->missing += scout_log_missing(log, log->count - 1);
	return 0;
}

/* Sites go on from what they saved after step t: what was logged of later ones has not been. */
static void log_take_restart(struct scout_log *log, const json_t *line)
{
	const double t = scout_log_number(line, "t");

	while (log->count > 0 && scout_log_number(scout_log_window(log, log->count - 1), "t") > t) {
		log->missing -= scout_log_missing(log, log->count - 1);
		json_array_remove(log->windows, --log->count);
	}
	for (size_t i = json_array_size(log->sites); i-- > 0;)
		if (scout_log_number(json_array_get(log->sites, i), "t") > t)
			json_array_remove(log->sites, i);
	log_take_writer(log, line);
}

static bool log_is_site(const json_t *line)
{
	return *scout_log_text(line, "action") && !isnan(scout_log_number(line, "t")) &&
	       !isnan(scout_log_number(line, "rank")) && !isnan(scout_log_number(line, "sites"));
}

static bool log_has_site(const struct scout_log *log, const json_t *line)
{
	static const char *const fields[] = {"t", "rank", "action"};

	for (size_t i = 0; i < json_array_size(log->sites); i++) {
		const json_t *one = json_array_get(log->sites, i);
		unsigned alike = 0;

		for (unsigned k = 0; k < 3; k++)
			alike += json_equal(json_object_get(one, fields[k]), json_object_get(line, fields[k]));
		if (alike == 3)
			return true;
	}
	return false;
}

static int log_take_site(struct scout_log *log, json_t *line, struct err *e)
{
	if (!log->run || !log_is_site(line))
		return 0;
	if (strcmp(scout_log_text(line, "action"), "writes") == 0)
		log_take_writer(log, line);
	if (strcmp(scout_log_text(line, "action"), "restarted") == 0)
		log_take_restart(log, line);
	if (log->joined && log_has_site(log, line))
		return 0;
	return json_array_append(log->sites, line) < 0 ? err_set(e, -ENOMEM, "out of memory") : 0;
}

/* Who was thought to be lost, or left before the others, may say how that was for it when another writes already. */
static int log_take_end(struct scout_log *log, json_t *line, struct err *e)
{
	const double rank = scout_log_number(line, "rank");

	if (log->joined && !isnan(rank) && rank != log->writer)
		return 0;
	if (!log->run || log->end)
		return err_set(e, -EBADMSG, "an end %s", log_outside(log));
	log->end = json_incref(line);
	return 0;
}

static int log_take(struct scout_log *log, json_t *line, struct err *e)
{
	const char *kind = scout_log_text(line, "scout");

	if (strcmp(kind, "run") == 0)
		return log_take_run(log, line, e);
	if (strcmp(kind, "decision") == 0)
		return log_take_window(log, line, e);
	if (strcmp(kind, "site") == 0)
		return log_take_site(log, line, e);
	return strcmp(kind, "end") == 0 ? log_take_end(log, line, e) : 0;
}

/* Does another site write from this line on? Then the line before it may not be whole. */
static bool log_is_writer(const json_t *line)
{
	return strcmp(scout_log_text(line, "scout"), "run") == 0 ||
	       strcmp(scout_log_text(line, "action"), "writes") == 0 ||
	       strcmp(scout_log_text(line, "action"), "restarted") == 0;
}

/* Sets *bad where the line is no JSON: an error, unless it is the last of who wrote it. */
static int log_parse(struct scout_log *log, const char *text, size_t length, bool *bad, struct err *e)
{
	const bool after_bad = *bad;
	json_error_t why;
	json_t *line = json_loadb(text, length, 0, &why);
	int rc;

	if (after_bad && !(log->run && line && log_is_writer(line))) {
		json_decref(line);
		return -EBADMSG;
	}
	*bad = !line;
	if (!line && !log->run)
		return err_set(e, -EBADMSG,
			"no JSON (%s): it is no decision log of phub scout, or its first line, without which nothing "
			"can "
			"be read, is damaged",
			why.text);
	if (!line)
		return log_damaged(log, e, "no JSON (%s): the file is damaged there", why.text);
	rc = log_take(log, line, e);
	json_decref(line);
	return rc;
}

/* Why there is no run in what was read. */
static int log_is_none(const struct scout_log *log, struct err *e)
{
	if (log->line == 0)
		return err_set(e, -EBADMSG, "it is empty%s",
			strcmp(log->path, "-") == 0 ? ", or was read to its end before"
						    : ": a run has not begun to write it");
	if (log->cut && log->line == 1)
		return err_set(e, -EBADMSG,
			"its only line is no JSON, or not whole: it is no decision log of phub scout, or one that was "
			"broken off as it began");
	return err_set(e, -EBADMSG, "no line {\"scout\":\"run\", ...}: it is no decision log of phub scout");
}

static int log_read_lines(struct scout_log *log, FILE *file, struct err *e)
{
	unsigned bad_line = 0;
	struct err inner = {0};
	char *text = NULL;
	size_t room = 0;
	ssize_t length;
	int rc = 0;

	while (rc == 0 && (length = getline(&text, &room, file)) >= 0) {
		bool bad = bad_line > 0 && length <= SCOUT_LOG_LINE_MAX;

		log->line++;
		if (length == 1 && text[0] == '\n')
			continue;
		if (length > SCOUT_LOG_LINE_MAX)
			rc = log_damaged(log, &inner, "%zd bytes; a line has at most %d: the file is damaged there",
				length, SCOUT_LOG_LINE_MAX);
		else
			rc = log_parse(log, text, (size_t)length, &bad, &inner);
		if (!bad) /* else it is what the line before says that is not whole */
			bad_line = 0;
		if (rc == -EBADMSG && !bad_line && bad) {
			bad_line = log->line;
			rc = 0;
		}
	}
	free(text);
	if (rc < 0)
		return err_set(e, rc, "line %u: %s", bad_line ? bad_line : log->line, inner.text);
	if (ferror(file))
		return err_set(e, -EIO, "%s", strerror(errno ? errno : EIO));
	log->cut = bad_line > 0;
	return log->run ? 0 : log_is_none(log, e);
}

static void log_name(struct scout_log *log)
{
	const char *job = scout_log_text(log->run, "job"), *slash = strrchr(log->path, '/');
	const char *file = slash ? slash + 1 : log->path;
	size_t length = strlen(file);

	if (length > 6 && strcmp(file + length - 6, ".jsonl") == 0)
		length -= 6;
	if (length > 1 || *file != '-')
		snprintf(log->name, sizeof(log->name), "%.*s", (int)(length < 60 ? length : 60), file);
	else
		snprintf(log->name, sizeof(log->name), "%s", *job ? job : "-");
}

int scout_log_read(const char *path, struct scout_log *out, struct err *e)
{
	bool standard = strcmp(path, "-") == 0;
	FILE *file = standard ? stdin : fopen(path, "re");
	struct err inner = {0};
	int rc;

	*out = (struct scout_log){.path = path, .windows = json_array(), .sites = json_array()};
	if (!file)
		rc = err_set(&inner, -errno, "%s", strerror(errno));
	else
		rc = out->windows && out->sites ? log_read_lines(out, file, &inner)
						: err_set(&inner, -ENOMEM, "out of memory");
	if (file && !standard)
		fclose(file);
	if (rc < 0) {
		scout_log_free(out);
		return err_set(e, rc, "%s: %s", standard ? "standard input" : path, inner.text);
	}
	log_name(out);
	return 0;
}

void scout_log_tell_apart(struct scout_log *logs, unsigned count)
{
	bool alike[ARGS_WORDS_MAX] = {false};

	for (unsigned i = 0; i < count; i++)
		for (unsigned k = 0; k < count; k++)
			alike[i] = alike[i] || (i != k && strcmp(logs[i].name, logs[k].name) == 0);
	for (unsigned i = 0; i < count; i++) {
		const size_t length = strlen(logs[i].path), room = sizeof(logs[i].name) - 1;
		const char *end = logs[i].path + (length > room ? length - room : 0);

		while (((unsigned char)*end & 0xc0) == 0x80) /* in the middle of a character */
			end++;
		if (alike[i])
			snprintf(logs[i].name, sizeof(logs[i].name), "%s", end);
	}
}

void scout_log_free(struct scout_log *log)
{
	json_decref(log->run);
	json_decref(log->windows);
	json_decref(log->sites);
	json_decref(log->end);
	*log = (struct scout_log){0};
}

/* The step that the first window behind a gap ends with. */
static double log_first_gap(const struct scout_log *log)
{
	unsigned i = 0;

	while (i + 1 < log->count && scout_log_missing(log, i) == 0)
		i++;
	return scout_log_number(scout_log_window(log, i), "t");
}

static void log_tell_gap(const struct scout_log *log)
{
	const bool known = scout_log_knows_sent(log);
	const char *sent = known ? "sums are of the whole run" : "what the run has sent is not known";
	const char *part = log->missing && scout_log_missing(log, 0) ? scout_check_part(log->path) : NULL;

	if (part)
		output_note("%s: its run goes on from what is in %s.%s: cat %s.%s %s is the log of all of it",
			log->path, log->path, part, log->path, part, log->path);
	if (log->missing && !(log->since == 0))
		output_note("%s: who wrote it was lost, and came again: windows in between are missing, and %s",
			log->path, sent);
	else if (log->missing)
		output_note("%s: lines of %" PRIu64 " window%s are missing, the first of them before step %.0f, and %s",
			log->path, log->missing, log->missing == 1 ? "" : "s", log_first_gap(log), sent);
	else if (!known && isnan(log->since))
		output_note("%s: who wrote its end came later, and %s", log->path, sent);
	else if (!known)
		output_note("%s: who wrote its end came after step %.0f, no window tells what was sent until then, "
			    "and %s",
			log->path, log->since, sent);
}

bool scout_log_open(const char *path, struct scout_log *out)
{
	struct err e = {0};

	if (scout_log_read(path, out, &e) < 0) {
		output_error("%s", e.text);
		return false;
	}
	if (out->cut)
		output_note("%s: its last line is not whole, and was left out: the run goes on, was broken off, or its "
			    "disk is full",
			path);
	log_tell_gap(out);
	return true;
}

/* ---- the controller's configuration ---- */

static unsigned log_reals(const json_t *line, const char *field, double *out, unsigned most)
{
	unsigned count = scout_log_elements(line, field);

	for (unsigned i = 0; i < count && i < most; i++)
		out[i] = scout_log_element(line, field, i);
	return count;
}

static void log_real(const struct scout_log *log, const char *field, double *out)
{
	double value = scout_log_number(log->run, field);

	*out = isnan(value) ? *out : value;
}

static int log_policy(const char *name, enum scout_policy *out)
{
	for (unsigned i = 0; i < SCOUT_POLICY_COUNT; i++) {
		if (strcmp(name, scout_policy_name((enum scout_policy)i)) == 0) {
			*out = (enum scout_policy)i;
			return 0;
		}
	}
	return -EINVAL;
}

enum site_algorithm scout_log_algorithm(const struct scout_log *log)
{
	unsigned i = 0;

	while (i < SITE_ALGORITHM_COUNT &&
		strcmp(scout_log_text(log->run, "algorithm"), site_algorithm_name((enum site_algorithm)i)) != 0)
		i++;
	return (enum site_algorithm)i;
}

enum price_unit scout_log_unit(const struct scout_log *log)
{
	for (unsigned i = 0; i < PRICE_UNIT_COUNT; i++)
		if (strcmp(scout_log_text(log->run, "unit"), price_unit_name((enum price_unit)i)) == 0)
			return (enum price_unit)i;
	return PRICE_BYTES;
}

struct price scout_log_price(const struct scout_log *log)
{
	struct price price = {.unit = scout_log_unit(log)};

	log_real(log, "rate", &price.link.rate);
	log_real(log, "latency", &price.link.latency);
	log_real(log, "price", &price.link.money);
	log_real(log, "rate_within", &price.within.rate);
	log_real(log, "latency_within", &price.within.latency);
	log_real(log, "price_within", &price.within.money);
	return price;
}

int scout_log_config(const struct scout_log *log, struct scout_config *out, struct err *e)
{
	double first = scout_log_number(log->run, "first"), whole[] = {500, 0, 0, 3, 1, 200, PLUS_PASSES};
	static const char *const names[] = {"period", "memory", "seed", "patience", "model_bytes", "tries", "passes"};

	scout_defaults(out);
	if (log_policy(scout_log_text(log->run, "policy"), &out->policy) < 0)
		out->policy = SCOUT_HILL;
	out->theta_count = log_reals(log->run, "thetas", out->thetas, SCOUT_THETAS_MAX);
	out->schedule_count = log_reals(log->run, "schedule", out->schedule, SCOUT_SCHEDULE_MAX);
	if (out->theta_count == 0 || out->theta_count > SCOUT_THETAS_MAX || out->schedule_count > SCOUT_SCHEDULE_MAX)
		return err_set(e, -EBADMSG,
			"%s: its first line has a grid of %u thetas and a schedule of %u; a run has 1 to %u, and at "
			"most %u: take a log as libphub wrote it",
			log->path, out->theta_count, out->schedule_count, SCOUT_THETAS_MAX, SCOUT_SCHEDULE_MAX);
	for (out->first = 0; out->first + 1 < out->theta_count && out->thetas[out->first] != first;)
		out->first++;
	log_real(log, "lambda_loss", &out->lambda_loss);
	log_real(log, "lambda_bytes", &out->lambda_bytes);
	log_real(log, "sigma", &out->sigma);
	log_real(log, "temperature", &out->temperature);
	log_real(log, "cooling", &out->cooling);
	log_real(log, "trim", &out->trim);
	log_real(log, "gain", &out->plus.sigma);
	log_real(log, "worth", &out->plus.worth);
	log_real(log, "ease", &out->plus.ease);
	log_real(log, "guard", &out->plus.guard);
	log_real(log, "drift", &out->plus.bound);
	log_real(log, "probes", &out->plus.bytes_part);
	out->price = scout_log_price(log);
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		log_real(log, names[i], &whole[i]);
		if (!(whole[i] >= 0 && whole[i] <= (i == 4 ? 1e15 : i == 2 ? 9007199254740992.0 : 4294967295.0)))
			return err_set(e, -EBADMSG,
				"%s: its first line has %s %g, which no run can have: take a log as libphub wrote it",
				log->path, names[i], whole[i]);
	}
	out->period = (uint32_t)whole[0];
	out->memory = (uint32_t)whole[1];
	/* One beyond 2^53 is text. */
	out->seed = whole[2] > 0 ? (uint64_t)whole[2] : strtoull(scout_log_text(log->run, "seed"), NULL, 10);
	out->patience = (unsigned)whole[3];
	out->model_bytes = (uint64_t)whole[4];
	out->plus.tries = (uint32_t)whole[5];
	out->plus.passes = (unsigned)whole[6];
	out->plus.statistics = !json_is_false(json_object_get(log->run, "statistics"));
	return 0;
}
