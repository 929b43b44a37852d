/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of advice, by jansson.
 */
#include "phub/cli/advise_line.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A count; `out` stays as it is where there is none. */
static int line_count(const json_t *object, const char *field, uint64_t *out, struct err *e)
{
	const json_t *value = json_object_get(object, field);

	if (!value)
		return 0;
	if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > INT64_C(1) << 53)
		return err_set(e, -EBADMSG, "%s is no whole number from 0 to 2^53", field);
	*out = (uint64_t)json_integer_value(value);
	return 0;
}

/* {"correct":c,"samples":n}: NaN of none. */
static int line_score(const json_t *line, const char *field, double *accuracy, uint64_t *samples, struct err *e)
{
	const json_t *score = json_object_get(line, field);
	uint64_t correct = 0;
	int rc;

	*accuracy = NAN;
	*samples = 0;
	if (!score || json_is_null(score))
		return 0;
	if (!json_is_object(score))
		return err_set(e, -EBADMSG, "%s is not {\"correct\":C,\"samples\":N}", field);
	rc = line_count(score, "correct", &correct, e);
	if (rc == 0)
		rc = line_count(score, "samples", samples, e);
	if (rc == 0 && correct > *samples)
		rc = err_set(e, -EBADMSG, "%s has more that is correct than samples", field);
	if (rc == 0 && *samples > 0)
		*accuracy = (double)correct / (double)*samples;
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

static int line_take(const json_t *line, unsigned sites, struct advise_line *out, struct err *e)
{
	uint64_t site = UINT64_MAX, home, away;
	int rc;

	if (!json_is_object(line))
		return err_set(e, -EBADMSG, "no object");
	out->step = UINT64_MAX;
	rc = line_count(line, "site", &site, e);
	if (rc == 0 && site >= sites)
		rc = err_set(e, -EBADMSG, "site: needs one of 0 to %u", sites - 1);
	if (rc == 0)
		rc = line_count(line, "step", &out->step, e);
	if (rc == 0 && out->step == UINT64_MAX)
		rc = err_set(e, -EBADMSG, "step is missing");
	if (rc == 0)
		rc = line_count(line, "bytes", &out->report.bytes, e);
	if (rc == 0)
		rc = line_score(line, "home", &out->report.home, &home, e);
	if (rc == 0)
		rc = line_score(line, "away", &out->report.away, &away, e);
	if (rc == 0)
		rc = line_secret(line, out, e);
	if (rc < 0)
		return rc;
	out->site = (unsigned)site;
	out->report.samples = home > 0 ? away : 0;
	return 0;
}

int advise_line_parse(const char *text, size_t length, unsigned sites, struct advise_line *out, struct err *e)
{
	struct advise_line line = {0};
	json_error_t why;
	json_t *json;
	int rc;

	if (length > ADVISE_LINE_MAX)
		return err_set(e, -EBADMSG, "a line has at most %d bytes", ADVISE_LINE_MAX);
	json = json_loadb(text, length, JSON_REJECT_DUPLICATES, &why);
	if (!json)
		return err_set(e, -EBADMSG, "no JSON: %s", why.text);
	rc = line_take(json, sites, &line, e);
	json_decref(json);
	if (rc == 0)
		*out = line;
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
	return line_write(
		json_pack("{s:I, s:f, s:I, s:s, s:s}", "sync_every", (json_int_t)d->theta, "theta", d->theta, "window",
			(json_int_t)d->window, "action", scout_action_name(d->action), "reason", d->reason),
		out);
}

size_t advise_line_error(const char *text, char out[ADVISE_ANSWER_BYTES])
{
	return line_write(json_pack("{s:s%}", "error", text, strnlen(text, 512)), out);
}
