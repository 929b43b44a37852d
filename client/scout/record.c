/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of JSON by hand: libphub carries no parser, and what it writes is little.
 */
#include "client/scout/record.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A line as it grows; its length goes on where the room ends. */
struct line {
	char *out;
	size_t room, length;
	bool more; /* a comma goes first */
};

static void line_add(struct line *l, const char *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++, l->length++)
		if (l->length + 1 < l->room)
			l->out[l->length] = bytes[i];
}

static void line_put(struct line *l, const char *text)
{
	line_add(l, text, strlen(text));
}

static size_t line_end(struct line *l)
{
	line_put(l, "}\n");
	if (l->room > 0)
		l->out[l->length < l->room ? l->length : l->room - 1] = '\0';
	return l->length;
}

/* ---- numbers ---- */

/* A locale's decimal point may be any character, of more than one byte too. */
static void number_point(char *text)
{
	char *to = text;

	for (const char *at = text; *at; at++) {
		if (strchr("0123456789+-e", *at))
			*to++ = *at;
		else if (to > text && to[-1] != '.')
			*to++ = '.';
	}
	*to = '\0';
}

void record_number(double value, char out[RECORD_NUMBER_BYTES])
{
	int digits = 15;

	if (!isfinite(value)) {
		snprintf(out, RECORD_NUMBER_BYTES, "null");
		return;
	}
	do
		snprintf(out, RECORD_NUMBER_BYTES, "%.*g", digits, value);
	while (digits++ < 17 && strtod(out, NULL) != value);
	number_point(out);
	if (value == 0 && signbit(value))
		snprintf(out, RECORD_NUMBER_BYTES, "-0.0"); /* "-0" is read as a whole number, which has no sign */
}

static void line_double(struct line *l, double value)
{
	char text[RECORD_NUMBER_BYTES];

	record_number(value, text);
	line_put(l, text);
}

static void line_whole(struct line *l, uint64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, value);
	line_put(l, text);
}

/* ---- text ---- */

/* How many bytes the character at `text` has; 0: it is not UTF-8. */
static unsigned text_character(const unsigned char *text)
{
	const unsigned char c = text[0];
	unsigned more = c < 0x80                ? 0
			: c >= 0xc2 && c < 0xe0 ? 1
			: c >= 0xe0 && c < 0xf0 ? 2
			: c >= 0xf0 && c < 0xf5 ? 3
						: 4;

	for (unsigned i = 1; i <= more; i++) {
		if (more == 4 || (text[i] & 0xc0) != 0x80)
			return 0;
	}
	/* Too long for what they are, surrogates, and beyond U+10FFFF. */
	if ((c == 0xe0 && text[1] < 0xa0) || (c == 0xed && text[1] > 0x9f) || (c == 0xf0 && text[1] < 0x90) ||
		(c == 0xf4 && text[1] > 0x8f))
		return 0;
	return more + 1;
}

static void line_text(struct line *l, const char *text)
{
	line_put(l, "\"");
	while (*text) {
		unsigned bytes = text_character((const unsigned char *)text);
		char escaped[8];

		if (bytes == 0) {
			line_put(l, "\\ufffd");
		} else if (*text == '"' || *text == '\\') {
			line_put(l, "\\");
			line_add(l, text, 1);
		} else if ((unsigned char)*text < 0x20 || *text == 0x7f) {
			snprintf(escaped, sizeof(escaped), "\\u%04x", (unsigned)(unsigned char)*text);
			line_put(l, escaped);
		} else {
			line_add(l, text, bytes);
		}
		text += bytes ? bytes : 1;
	}
	line_put(l, "\"");
}

/* ---- fields ---- */

/* Names are ours, and need no escapes. */
static void field_name(struct line *l, const char *name)
{
	line_put(l, l->more ? ",\"" : "\"");
	line_put(l, name);
	line_put(l, "\":");
	l->more = true;
}

static void field_double(struct line *l, const char *name, double value)
{
	field_name(l, name);
	line_double(l, value);
}

static void field_whole(struct line *l, const char *name, uint64_t value)
{
	field_name(l, name);
	line_whole(l, value);
}

static void field_text(struct line *l, const char *name, const char *text)
{
	field_name(l, name);
	line_text(l, text);
}

/* Readers hold numbers in a double, or in 63 bits: what is beyond goes as text. */
static void field_seed(struct line *l, const char *name, uint64_t seed)
{
	char text[24];

	if (seed <= UINT64_C(1) << 53) {
		field_whole(l, name, seed);
		return;
	}
	snprintf(text, sizeof(text), "%" PRIu64, seed);
	field_text(l, name, text);
}

static void field_doubles(struct line *l, const char *name, const double *values, unsigned count)
{
	field_name(l, name);
	line_put(l, "[");
	for (unsigned i = 0; i < count; i++) {
		line_put(l, i ? "," : "");
		line_double(l, values[i]);
	}
	line_put(l, "]");
}

static struct line line_begin(char *out, size_t room)
{
	struct line l = {.out = out, .room = room};

	line_put(&l, "{");
	return l;
}

/* ---- lines ---- */

static void run_costs(struct line *l, const struct scout_config *c)
{
	field_double(l, "lambda_loss", c->lambda_loss);
	field_double(l, "lambda_bytes", c->lambda_bytes);
	field_double(l, "sigma", c->sigma);
	field_double(l, "temperature", c->temperature);
	field_double(l, "cooling", c->cooling);
	field_whole(l, "memory", c->memory);
	field_whole(l, "patience", c->patience);
	field_double(l, "trim", c->trim);
	if (c->policy == SCOUT_PLUS) {
		field_double(l, "gain", c->plus.sigma);
		field_double(l, "worth", c->plus.worth);
		field_whole(l, "tries", c->plus.tries);
		field_name(l, "statistics");
		line_put(l, c->plus.statistics ? "true" : "false");
		field_double(l, "ease", c->plus.ease);
		field_whole(l, "passes", c->plus.passes);
		field_double(l, "guard", c->plus.guard);
		field_double(l, "drift", c->plus.bound);
		field_double(l, "probes", c->plus.bytes_part);
	}
	if (c->price.unit == PRICE_BYTES)
		return;
	field_text(l, "unit", price_unit_name(c->price.unit));
	field_double(l, "rate", c->price.link.rate);
	field_double(l, "latency", c->price.link.latency);
	field_double(l, "price", c->price.link.money);
	field_double(l, "rate_within", c->price.within.rate);
	field_double(l, "latency_within", c->price.within.latency);
	field_double(l, "price_within", c->price.within.money);
}

static void run_within(struct line *l, const struct record_run *run)
{
	field_name(l, "within");
	line_put(l, "{");
	l->more = false;
	field_text(l, "algorithm", site_algorithm_name(run->within->algorithm));
	field_double(l, "theta", run->within->theta);
	if (run->within_link)
		field_text(l, "link", run->within_link);
	line_put(l, "}");
	l->more = true;
}

size_t record_run(const struct record_run *run, char *out, size_t room)
{
	const struct scout_config *c = run->scout;
	struct line l = line_begin(out, room);
	bool replays = c->policy == SCOUT_REPLAY;

	field_text(&l, "scout", "run");
	field_whole(&l, "version", RECORD_VERSION);
	if (run->id > 0)
		field_whole(&l, "id", run->id);
	field_text(&l, "algorithm", site_algorithm_name(run->algorithm));
	field_text(&l, "policy", scout_policy_name(c->policy));
	field_doubles(&l, "thetas", c->thetas, c->theta_count);
	field_double(&l, "first", replays ? c->schedule[0] : c->thetas[c->first]);
	if (replays)
		field_doubles(&l, "schedule", c->schedule, c->schedule_count);
	field_whole(&l, "period", c->period);
	field_whole(&l, "sites", run->sites);
	field_whole(&l, "model_bytes", c->model_bytes);
	if (run->bsp_bytes > 0 && run->bsp_bytes != c->model_bytes)
		field_whole(&l, "bsp_bytes", run->bsp_bytes);
	field_seed(&l, "seed", c->seed);
	field_whole(&l, "rank", run->rank);
	run_costs(&l, c);
	if (run->job)
		field_text(&l, "job", run->job);
	if (run->transport)
		field_text(&l, "transport", run->transport);
	if (run->link)
		field_text(&l, "link", run->link);
	if (run->within)
		run_within(&l, run);
	if (run->tensors) {
		field_name(&l, "tensors");
		line_put(&l, "[");
		for (unsigned i = 0; i < run->tensor_count; i++) {
			line_put(&l, i ? "," : "");
			line_text(&l, run->tensors[i]);
		}
		line_put(&l, "]");
	}
	if (run->shadow)
		field_doubles(&l, "shadow", run->shadow, run->shadow_count);
	return line_end(&l);
}

void record_decision_init(struct record_decision *decision)
{
	*decision = (struct record_decision){
		.decision = {.r = NAN, .pull = NAN, .gain = NAN, .extra = NAN, .radius = INFINITY},
		.bytes_bsp = NAN,
		.bytes_within = NAN,
		.bytes_cost = NAN,
		.bytes_within_cost = NAN,
		.train_loss = NAN,
		.accuracy = NAN,
		.score_loss = NAN};
}

static void decision_interval(struct line *l, const struct scout_decision *d)
{
	const double middle = isnan(d->gain) ? d->loss : d->gain, ends[] = {middle - d->radius, middle + d->radius};

	if (isfinite(ends[0]) && isfinite(ends[1])) {
		field_doubles(l, "interval", ends, 2);
		return;
	}
	field_name(l, "interval");
	line_put(l, "null");
}

/* Of scout+ alone. */
static void decision_pull(struct line *l, const struct scout_decision *d)
{
	if (!isnan(d->pull))
		field_double(l, "pull", d->pull);
	if (!isnan(d->gain))
		field_double(l, "gain", d->gain);
	if (!isnan(d->extra))
		field_double(l, "extra", d->extra);
}

/* What scout+ goes by: sums over exchanges, and means over sites. */
static void decision_seen(struct line *l, const struct plus_window *seen)
{
	field_name(l, "seen");
	line_put(l, "{");
	l->more = false;
	field_whole(l, "exchanges", seen->exchanges);
	field_double(l, "said", seen->said);
	field_double(l, "heard", seen->heard);
	field_double(l, "sites", seen->sites);
	field_double(l, "rate", seen->rate);
	field_double(l, "trained", seen->trained);
	field_double(l, "tried", seen->tried);
	field_double(l, "train", seen->train);
	field_double(l, "before", seen->before);
	field_double(l, "after", seen->after);
	line_put(l, "}");
	l->more = true;
}

static void decision_bytes(struct line *l, const struct record_decision *d)
{
	field_double(l, "bytes", d->bytes);
	field_double(l, "bytes_travel", d->bytes_travel);
	field_double(l, "bytes_total", d->bytes_total);
	field_double(l, "bytes_bsp", d->bytes_bsp);
	if (!isnan(d->bytes_within))
		field_double(l, "bytes_within", d->bytes_within);
	if (!isnan(d->bytes_cost))
		field_double(l, "bytes_cost", d->bytes_cost);
	if (!isnan(d->bytes_within_cost))
		field_double(l, "bytes_within_cost", d->bytes_within_cost);
}

static void decision_shadow(struct line *l, const struct record_decision *d)
{
	field_name(l, "shadow");
	line_put(l, "[");
	for (unsigned i = 0; i < d->shadow_count; i++) {
		line_put(l, i ? ",{" : "{");
		l->more = false;
		field_double(l, "theta", d->shadow[i].theta);
		field_double(l, "bytes", d->shadow[i].bytes);
		line_put(l, "}");
	}
	line_put(l, "]");
	l->more = true;
}

size_t record_decision(const struct record_decision *d, char *out, size_t room)
{
	struct line l = line_begin(out, room);

	field_text(&l, "scout", "decision");
	field_whole(&l, "t", d->t);
	field_whole(&l, "window", d->decision.window);
	field_double(&l, "theta", d->theta);
	field_double(&l, "next", d->decision.theta);
	field_whole(&l, "n", d->samples);
	field_whole(&l, "believed", d->decision.believed);
	field_whole(&l, "sites", d->sites);
	field_double(&l, "AL", d->decision.loss);
	decision_interval(&l, &d->decision);
	decision_pull(&l, &d->decision);
	field_double(&l, "r_all", d->decision.r);
	if (d->r)
		field_doubles(&l, "r", d->r, d->tensor_count);
	decision_bytes(&l, d);
	field_double(&l, "cost", d->decision.cost);
	if (d->unit != PRICE_BYTES) {
		field_text(&l, "unit", price_unit_name(d->unit));
		field_double(&l, "spent", d->decision.spent);
	}
	field_text(&l, "action", scout_action_name(d->decision.action));
	field_text(&l, "reason", d->decision.reason);
	field_double(&l, "train_loss", d->train_loss);
	if (isfinite(d->accuracy) || isfinite(d->score_loss)) {
		field_name(&l, "score");
		line_put(&l, "{");
		l.more = false;
		field_double(&l, "accuracy", d->accuracy);
		field_double(&l, "loss", d->score_loss);
		line_put(&l, "}");
	}
	if (d->decision.seen.exchanges > 0)
		decision_seen(&l, &d->decision.seen);
	if (d->shadow)
		decision_shadow(&l, d);
	return line_end(&l);
}

size_t record_end(const struct record_end *end, char *out, size_t room)
{
	struct line l = line_begin(out, room);

	field_text(&l, "scout", "end");
	field_whole(&l, "t", end->t);
	field_double(&l, "bytes", end->bytes);
	field_double(&l, "bytes_travel", end->bytes_travel);
	field_double(&l, "bytes_wire", end->bytes_wire);
	if (end->bytes_within > 0)
		field_double(&l, "bytes_within", end->bytes_within);
	field_double(&l, "theta", end->theta);
	field_double(&l, "accuracy", end->accuracy);
	field_double(&l, "loss", end->loss);
	field_double(&l, "seconds", end->seconds);
	field_whole(&l, "rank", end->rank);
	if (end->sites > 0)
		field_whole(&l, "sites", end->sites);
	if (end->broken_since > 0)
		field_whole(&l, "broken_since", end->broken_since);
	return line_end(&l);
}

size_t record_site(const struct record_site *site, char *out, size_t room)
{
	struct line l = line_begin(out, room);

	field_text(&l, "scout", "site");
	field_whole(&l, "t", site->t);
	field_whole(&l, "rank", site->rank);
	field_text(&l, "action", site->action);
	field_whole(&l, "sites", site->sites);
	if (strcmp(site->action, "writes") == 0 || strcmp(site->action, "restarted") == 0)
		field_whole(&l, "since", site->since);
	field_text(&l, "reason", site->reason);
	return line_end(&l);
}

size_t record_head(uint64_t id, char out[RECORD_HEAD_BYTES])
{
	struct line l = line_begin(out, RECORD_HEAD_BYTES);

	field_text(&l, "scout", "run");
	field_whole(&l, "version", RECORD_VERSION);
	field_whole(&l, "id", id);
	line_put(&l, ",");
	return l.length;
}

size_t record_warning(uint64_t t, unsigned rank, const char *tensor, bool all, const char *text, char *out, size_t room)
{
	struct line l = line_begin(out, room);

	field_text(&l, "scout", "warning");
	field_whole(&l, "t", t);
	if (rank > 0)
		field_whole(&l, "rank", rank - 1);
	if (tensor)
		field_text(&l, "tensor", tensor);
	if (all) {
		field_name(&l, "all");
		line_put(&l, "true");
	}
	field_text(&l, "text", text);
	return line_end(&l);
}
