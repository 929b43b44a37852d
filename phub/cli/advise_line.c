/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of advice, by jansson.
 */
#include "phub/cli/advise_line.h"

#include <errno.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A count; `out` stays as it is where there is none. */
static int line_count(const json_t *object, const char *field, uint64_t *out, struct err *e)
{
	const json_t *value = json_object_get(object, field);
	const double real = json_number_value(value);
	const bool good = json_is_integer(value)
				  ? json_integer_value(value) >= 0 && json_integer_value(value) <= INT64_C(1) << 53
				  : real >= 0 && real <= 0x1p53 && floor(real) == real;

	if (!value)
		return 0;
	if (!json_is_number(value) || !good)
		return err_set(e, -EBADMSG, "%s is no whole number from 0 to 2^53", field);
	*out = json_is_integer(value) ? (uint64_t)json_integer_value(value) : (uint64_t)real;
	return 0;
}

/* {"correct":c,"samples":n}: NaN of none; so is an accuracy that is no number, which says nothing of weights. */
static int line_score(const json_t *line, const char *field, double *accuracy, uint64_t *samples, struct err *e)
{
	const json_t *score = json_object_get(line, field);
	const bool none = json_is_null(json_object_get(score, "correct"));
	uint64_t correct = 0;
	int rc;

	*accuracy = NAN;
	*samples = 0;
	if (!score || json_is_null(score))
		return 0;
	if (!json_is_object(score))
		return err_set(e, -EBADMSG, "%s is not {\"correct\":C,\"samples\":N}", field);
	rc = none ? 0 : line_count(score, "correct", &correct, e);
	if (rc == 0)
		rc = line_count(score, "samples", samples, e);
	if (rc == 0 && correct > *samples)
		rc = err_set(e, -EBADMSG, "%s has more that is correct than samples", field);
	if (rc == 0 && *samples > 0 && !none)
		*accuracy = (double)correct / (double)*samples;
	return rc;
}

/* A number of at least `least`, or null, which is NaN and `none`; both stay as they are where there is neither. */
static int line_real(const json_t *object, const char *field, double least, double *out, bool *none, struct err *e)
{
	const json_t *value = json_object_get(object, field);

	if (!value)
		return 0;
	if (json_is_null(value)) {
		*none = true;
		*out = NAN;
		return 0;
	}
	if (!json_is_number(value) || !(json_number_value(value) >= least) || !isfinite(json_number_value(value)))
		return err_set(e, -EBADMSG, "%s is no number%s", field, least == 0 ? " from 0 on" : "");
	*out = json_number_value(value);
	return 0;
}

/* {"loss":sum,"samples":n}: NaN of none; so is a loss that is no number, and `broken`. */
static int line_loss(
	const json_t *line, const char *field, double *mean, uint64_t *samples, bool *broken, struct err *e)
{
	const json_t *loss = json_object_get(line, field);
	double sum = NAN;
	bool none = false;
	int rc;

	*mean = NAN;
	*samples = 0;
	if (!loss || json_is_null(loss))
		return 0;
	if (!json_is_object(loss))
		return err_set(e, -EBADMSG, "%s is not {\"loss\":L,\"samples\":N}", field);
	rc = line_real(loss, "loss", -DBL_MAX, &sum, &none, e);
	if (rc == 0)
		rc = line_count(loss, "samples", samples, e);
	if (rc == 0 && none) {
		*broken |= *samples > 0;
		*samples = 0;
	}
	if (rc == 0 && isnan(sum) != (*samples == 0))
		rc = err_set(e, -EBADMSG, "%s has a loss without samples, or samples without a loss", field);
	if (rc == 0 && *samples > 0)
		*mean = sum / (double)*samples;
	return rc;
}

static int line_moves(const json_t *line, struct advise_line *out, bool *broken, struct err *e)
{
	const json_t *moves = json_object_get(line, "moves");
	uint64_t exchanges = 0, averaged = ADVISE_SITES_MAX;
	bool none = false;
	int rc;

	if (!moves || json_is_null(moves))
		return 0;
	out->said = out->heard = NAN;
	if (!json_is_object(moves))
		return err_set(e, -EBADMSG, "moves is not {\"exchanges\":N,\"said\":X,\"heard\":Y}");
	rc = line_count(moves, "exchanges", &exchanges, e);
	if (rc == 0)
		rc = line_real(moves, "said", 0, &out->said, &none, e);
	if (rc == 0)
		rc = line_real(moves, "heard", 0, &out->heard, &none, e);
	if (rc == 0)
		rc = line_count(moves, "sites", &averaged, e);
	if (rc == 0 && (averaged == 0 || averaged > ADVISE_SITES_MAX))
		rc = err_set(e, -EBADMSG, "moves: a mean is of 1 to %d sites", ADVISE_SITES_MAX);
	if (rc == 0 && (exchanges > ADVISE_EXCHANGES_MAX || (!none && (isnan(out->said) || isnan(out->heard)))))
		rc = err_set(
			e, -EBADMSG, "moves: needs said, heard, and exchanges of at most %d", ADVISE_EXCHANGES_MAX);
	out->exchanges = none ? 0 : (unsigned)exchanges;
	out->averaged = json_object_get(moves, "sites") ? (unsigned)averaged : 0;
	*broken |= none;
	return rc;
}

/* What scout+ wants to know. */
static int line_plus(const json_t *line, struct advise_line *out, struct err *e)
{
	struct scout_report *report = &out->report;
	bool broken = false, none = false, unknown = false;
	uint64_t earlier;
	int rc = line_moves(line, out, &broken, e);

	if (rc == 0)
		rc = line_real(line, "weight", 0, &out->weight, &none, e);
	if (rc == 0 && none)
		rc = err_set(e, -EBADMSG, "weight is no number from 0 on");
	if (rc == 0 && out->weight == 0)
		rc = err_set(e, -EBADMSG, "weight is 0: a site without one is not in the mean, and has not moved");
	if (rc == 0)
		rc = line_real(line, "rate", 0, &out->rate, &unknown, e);
	if (rc == 0)
		rc = line_loss(line, "train", &report->train, &report->trained, &broken, e);
	if (rc == 0)
		rc = line_loss(line, "before", &report->before, &earlier, &unknown, e);
	if (rc == 0)
		rc = line_loss(line, "after", &report->after, &report->tried, &unknown, e);
	report->unfit = broken ? SCOUT_BROKEN : report->unfit;
	return rc;
}

static int line_secret(const json_t *line, struct advise_line *out, struct err *e)
{
	const json_t *secret = json_object_get(line, "secret");

	if (!secret)
		return 0;
	if (!json_is_string(secret) || json_string_length(secret) >= sizeof(out->secret) ||
		strlen(json_string_value(secret)) != json_string_length(secret))
		return err_set(e, -EBADMSG, "secret is no text of less than %d bytes", ADVISE_SECRET_BYTES);
	memcpy(out->secret, json_string_value(secret), json_string_length(secret) + 1);
	return 0;
}

/* Whose it is. */
static int line_take_sender(const json_t *line, unsigned sites, struct advise_line *out, struct err *e)
{
	uint64_t site = UINT64_MAX;
	int rc;

	if (!json_is_object(line))
		return err_set(e, -EBADMSG, "no object");
	rc = line_count(line, "site", &site, e);
	if (rc == 0 && site >= sites)
		rc = err_set(e, -EBADMSG, "site: needs one of 0 to %u", sites - 1);
	if (rc == 0)
		rc = line_secret(line, out, e);
	out->site = (unsigned)site;
	return rc;
}

static int line_take(const json_t *line, struct advise_line *out, struct err *e)
{
	uint64_t home, away;
	int rc;

	out->step = UINT64_MAX;
	out->weight = 1;
	out->rate = NAN;
	rc = line_count(line, "step", &out->step, e);
	if (rc == 0 && out->step == UINT64_MAX)
		rc = err_set(e, -EBADMSG, "step is missing");
	if (rc == 0)
		rc = line_count(line, "bytes", &out->report.bytes, e);
	if (rc == 0)
		rc = line_score(line, "home", &out->report.home, &home, e);
	if (rc == 0)
		rc = line_score(line, "away", &out->report.away, &away, e);
	if (isnan(out->report.home) || isnan(out->report.away))
		out->report.home = out->report.away = NAN; /* of half a pair nothing is known, and that is said */
	out->report.unfit = SCOUT_FIT;
	if (rc == 0)
		rc = line_plus(line, out, e);
	if (rc < 0)
		return -EINVAL;
	out->report.samples = home > 0 ? away : 0;
	return 0;
}

/* With null in place of numbers that JSON does not have, outside of texts; returns its length. */
static size_t line_write_null(const char *text, size_t length, char *out)
{
	static const char *const names[] = {"-Infinity", "Infinity", "NaN"};
	bool quoted = false;
	size_t to = 0;

	for (size_t i = 0; i < length;) {
		size_t gone = 0;

		for (unsigned n = 0; n < 3 && !quoted && gone == 0; n++)
			if (length - i >= strlen(names[n]) && memcmp(text + i, names[n], strlen(names[n])) == 0)
				gone = strlen(names[n]);
		if (gone > 0) {
			memcpy(out + to, "null", 4);
			to += 4;
			i += gone;
			continue;
		}
		quoted ^= text[i] == '"';
		if (quoted && text[i] == '\\' && i + 1 < length)
			out[to++] = text[i++];
		out[to++] = text[i++];
	}
	return to;
}

int advise_line_parse(const char *text, size_t length, unsigned sites, struct advise_line *out, struct err *e)
{
	char plain[ADVISE_LINE_MAX / 3 * 4 + 4]; /* of NaN alone */
	struct advise_line line = {0};
	json_error_t why;
	json_t *json;
	int rc;

	if (length > ADVISE_LINE_MAX)
		return err_set(e, -EBADMSG, "a line has at most %d bytes", ADVISE_LINE_MAX);
	json = json_loadb(plain, line_write_null(text, length, plain), JSON_REJECT_DUPLICATES, &why);
	if (!json)
		return err_set(e, -EBADMSG, "no JSON: %s", why.text);
	rc = line_take_sender(json, sites, &line, e);
	if (rc == 0)
		rc = line_take(json, &line, e);
	json_decref(json);
	if (rc == 0)
		*out = line;
	else if (rc == -EINVAL)
		*out = (struct advise_line){.site = line.site, .step = line.step};
	if (rc == -EINVAL)
		memcpy(out->secret, line.secret, sizeof(out->secret));
	return rc;
}

static size_t line_write(json_t *json, char out[ADVISE_ANSWER_BYTES])
{
	size_t length = json ? json_dumpb(json, out, ADVISE_ANSWER_BYTES - 1, JSON_COMPACT) : 0;

	json_decref(json);
	if (length == 0 || length > ADVISE_ANSWER_BYTES - 1) /* memory is short: the texts are */
		length = (size_t)snprintf(out, ADVISE_ANSWER_BYTES, "{\"error\":\"out of memory\"}");
	out[length] = '\n';
	return length + 1;
}

size_t advise_line_answer(const struct scout_decision *d, char out[ADVISE_ANSWER_BYTES])
{
	return line_write(json_pack("{s:I, s:f, s:I, s:I, s:s, s:s}", "sync_every", (json_int_t)d->theta, "theta",
				  d->theta, "window", (json_int_t)d->window, "tries", (json_int_t)d->tries, "action",
				  scout_action_name(d->action), "reason", d->reason),
		out);
}

size_t advise_line_error(const char *text, char out[ADVISE_ANSWER_BYTES])
{
	return line_write(json_pack("{s:s%}", "error", text, strnlen(text, 512)), out);
}
