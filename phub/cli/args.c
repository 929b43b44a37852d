/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a command line by its table of options, and prints the table as --help.
 */
#include "phub/cli/args.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "phub/base/suggest.h"

int args_wrong(const struct args_usage *usage, const char *format, ...)
{
	char text[1536];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	output_error(
		"%s%s %s --help", text, text[0] && text[strlen(text) - 1] == '?' ? " See" : "; see", usage->command);
	return CLI_USAGE;
}

int args_check_settings(const struct args_usage *usage, const struct args_texts *settings)
{
	for (unsigned i = 0; i < settings->count; i++) {
		if (!strchr(settings->at[i], '=') || settings->at[i][0] == '=')
			return args_wrong(usage, "--set %s: allowed is KEY=VALUE, like cores=2", settings->at[i]);
	}
	return ARGS_GO_ON;
}

/* ---- values ---- */

/* Decimal digits alone: strtoull() would take a sign and blanks. Sets *end behind them. */
static int args_read_number(const char *text, const char **end, uint64_t *out)
{
	char *behind;

	if (!isdigit((unsigned char)*text))
		return -EINVAL;
	errno = 0;
	*out = strtoull(text, &behind, 10);
	*end = behind;
	return errno ? -ERANGE : 0;
}

/* How many bytes the unit has; 0: it is none. */
static uint64_t args_unit_bytes(const char *unit)
{
	static const struct {
		const char *name;
		uint64_t bytes;
	} units[] = {{"", 1}, {"B", 1}, {"K", 1000}, {"M", 1000000}, {"G", 1000000000}, {"KB", 1000}, {"MB", 1000000},
		{"GB", 1000000000}, {"T", UINT64_C(1000000000000)}, {"TB", UINT64_C(1000000000000)}, {"KiB", 1 << 10},
		{"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", UINT64_C(1) << 40}};

	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (strcasecmp(unit, units[i].name) == 0)
			return units[i].bytes;
	return 0;
}

int args_read_bytes(const char *text, uint64_t *out)
{
	const char *end;
	uint64_t number, unit;

	if (args_read_number(text, &end, &number) < 0)
		return -EINVAL;
	unit = args_unit_bytes(end);
	return unit == 0 || __builtin_mul_overflow(number, unit, out) ? -EINVAL : 0;
}

int args_read_decimal(const char *text, const struct args_unit *units, double *out)
{
	char *end;
	double value = strtod(text, &end);

	/* strtod() takes signs, blanks, exponents, hexadecimals and infinities too. */
	if (end == text || strspn(text, "0123456789.") != (size_t)(end - text))
		return -EINVAL;
	while (units->name && strcasecmp(units->name, end) != 0)
		units++;
	if (!units->name || !isfinite(value * units->factor))
		return -EINVAL;
	*out = value * units->factor;
	return 0;
}

static int args_set_ms(const struct args_usage *u, const struct args_option *o, const char *text)
{
	static const struct args_unit units[] = {{"", 1e6}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};
	double ns;

	if (args_read_decimal(text, units, &ns) < 0 || ns < 1 || ns > (double)o->max * 1e6)
		return args_wrong(u, "--%s %s: allowed are milliseconds above 0, to %" PRIu64 ", like 54 or 6.496",
			o->name, text, o->max);
	*(uint64_t *)o->target = (uint64_t)(ns + 0.5);
	return ARGS_GO_ON;
}

static int args_set_seconds(const struct args_usage *u, const struct args_option *o, const char *text)
{
	static const struct args_unit units[] = {{"", 1e9}, {"s", 1e9}, {"ms", 1e6}, {NULL, 0}};
	double ns;

	if (args_read_decimal(text, units, &ns) < 0 || ns < (double)o->min * 1e6 || ns > (double)o->max * 1e6)
		return args_wrong(u, "--%s %s: allowed are seconds from %g to %g, like 1.5 or 300ms", o->name, text,
			(double)o->min / 1e3, (double)o->max / 1e3);
	*(uint64_t *)o->target = (uint64_t)(ns + 0.5);
	return ARGS_GO_ON;
}

static int args_set_number(const struct args_usage *u, const struct args_option *o, const char *text)
{
	const char *end = text;
	uint64_t number;
	int rc = o->type == ARGS_NUMBER ? args_read_number(text, &end, &number) : args_read_bytes(text, &number);

	if (o->type == ARGS_POWER && (rc < 0 || number < o->min || number > o->max || (number & (number - 1))))
		return args_wrong(u, "--%s %s: allowed are powers of two from %" PRIu64 " to %" PRIu64 ", like 64KiB",
			o->name, text, o->min, o->max);
	if (rc < 0 || (o->type == ARGS_NUMBER && *end) || number < o->min || number > o->max)
		return args_wrong(u, "--%s %s: allowed is %" PRIu64 " to %" PRIu64 "%s", o->name, text, o->min, o->max,
			o->type == ARGS_BYTES ? " bytes, like 100MB or 64KiB, with units up to TB and TiB" : "");
	*(uint64_t *)o->target = number;
	return ARGS_GO_ON;
}

static int args_set_list(const struct args_usage *u, const struct args_option *o, const char *text)
{
	struct args_list list = {0};
	const char *at = text;

	for (;;) {
		uint64_t number;

		if (list.count == ARGS_LIST_MAX || args_read_number(at, &at, &number) < 0 || number < o->min ||
			number > o->max || (*at && *at != ','))
			return args_wrong(u,
				"--%s %s: allowed are up to %d numbers of %" PRIu64 " to %" PRIu64 ", like 2,4,8",
				o->name, text, ARGS_LIST_MAX, o->min, o->max);
		list.at[list.count++] = number;
		if (!*at++)
			break;
	}
	*(struct args_list *)o->target = list;
	return ARGS_GO_ON;
}

/* A number from 0 on at the beginning of the text, like 0.05 or 1e6: strtod() takes signs, blanks, hexadecimals and
 * infinities too. Sets *end behind it. */
static int args_read_real(const char *text, char **end, double *out)
{
	*out = strtod(text, end);
	return *end == text || !isdigit((unsigned char)text[*text == '.']) || !isfinite(*out) ||
			       memchr(text, 'x', (size_t)(*end - text))
		       ? -EINVAL
		       : 0;
}

static int args_set_size(const struct args_usage *u, const struct args_option *o, const char *text)
{
	double number;
	char *end;

	if (args_read_real(text, &end, &number) < 0 || args_unit_bytes(end) == 0 ||
		!isfinite(number * (double)args_unit_bytes(end)))
		return args_wrong(u,
			"--%s %s: allowed are bytes, like 1500000, 1.5MB or 64KiB, with units up to TB and TiB",
			o->name, text);
	*(double *)o->target = number * (double)args_unit_bytes(end);
	return ARGS_GO_ON;
}

static int args_set_reals(const struct args_usage *u, const struct args_option *o, const char *text)
{
	struct args_reals list = {0};
	const char *at = text;

	for (;;) {
		double number;
		char *end;

		if (list.count == ARGS_REALS_MAX || args_read_real(at, &end, &number) < 0 || (*end && *end != ',') ||
			(*end && o->type == ARGS_REAL) || (o->max > 0 && number > (double)o->max))
			break;
		list.at[list.count++] = number;
		at = end + 1;
		if (*end)
			continue;
		if (o->type == ARGS_REAL)
			*(double *)o->target = number;
		else
			*(struct args_reals *)o->target = list;
		return ARGS_GO_ON;
	}
	if (o->type == ARGS_REAL && o->max > 0)
		return args_wrong(
			u, "--%s %s: allowed is a number from 0 to %" PRIu64 ", like 0.05", o->name, text, o->max);
	if (o->type == ARGS_REAL)
		return args_wrong(u, "--%s %s: allowed is a number from 0 on, like 0.05", o->name, text);
	return args_wrong(
		u, "--%s %s: allowed are up to %d numbers from 0 on, like 0,0.05,0.1", o->name, text, ARGS_REALS_MAX);
}

static int args_set_choice(const struct args_usage *u, const struct args_option *o, const char *text)
{
	struct suggest near = {.word = text};
	char allowed[256] = "";
	size_t used = 0;

	for (int i = 0; o->choices[i]; i++) {
		if (strcmp(o->choices[i], text) == 0) {
			*(int *)o->target = i;
			return ARGS_GO_ON;
		}
		suggest_offer(&near, o->choices[i]);
		if (used < sizeof(allowed))
			used += (size_t)snprintf(
				allowed + used, sizeof(allowed) - used, "%s%s", i ? ", " : "", o->choices[i]);
	}
	if (near.best)
		return args_wrong(u, "--%s %s: did you mean %s? Allowed: %s", o->name, text, near.best, allowed);
	return args_wrong(u, "--%s %s: allowed: %s", o->name, text, allowed);
}

static int args_set(const struct args_usage *u, const struct args_option *o, const char *text)
{
	struct args_texts *texts = o->target;

	switch (o->type) {
	case ARGS_FLAG:
		*(bool *)o->target = true;
		return ARGS_GO_ON;
	case ARGS_TEXT:
		*(const char **)o->target = text;
		return ARGS_GO_ON;
	case ARGS_TEXTS:
		if (texts->count == ARGS_LIST_MAX)
			return args_wrong(u, "--%s: at most %d of them", o->name, ARGS_LIST_MAX);
		texts->at[texts->count++] = text;
		return ARGS_GO_ON;
	case ARGS_NUMBER:
	case ARGS_BYTES:
	case ARGS_POWER:
		return args_set_number(u, o, text);
	case ARGS_MS:
		return args_set_ms(u, o, text);
	case ARGS_SECONDS:
		return args_set_seconds(u, o, text);
	case ARGS_LIST:
		return args_set_list(u, o, text);
	case ARGS_REAL:
	case ARGS_REALS:
		return args_set_reals(u, o, text);
	case ARGS_SIZE:
		return args_set_size(u, o, text);
	case ARGS_CHOICE:
		return args_set_choice(u, o, text);
	}
	return ARGS_GO_ON;
}

/* ---- help ---- */

static void args_print_help(const struct args_usage *u)
{
	printf("usage: %s [options]%s%s\n\n%s", u->command, u->words ? " " : "", u->words ? u->words : "", u->about);
	printf("\noptions:\n");
	for (const struct args_option *o = u->options; o->name; o++) {
		char head[64];

		if (!o->help)
			continue;
		snprintf(head, sizeof(head), "--%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
		printf("  %-26s %s\n", head, o->help);
	}
	printf("  %-26s %s\n", "--help", "this text");
	if (u->examples)
		printf("\nexamples:\n%s", u->examples);
	printf("\nExit codes: 0 done, 1 failed, 2 usage.\n");
}

/* ---- the command line ---- */

static const struct args_option *args_find(const struct args_usage *u, const char *name, size_t length)
{
	for (const struct args_option *o = u->options; o->name; o++) {
		if (strncmp(o->name, name, length) == 0 && !o->name[length])
			return o;
	}
	return NULL;
}

static int args_unknown(const struct args_usage *u, const char *typed, size_t length)
{
	char word[64];
	struct suggest near = {.word = word};

	snprintf(word, sizeof(word), "%.*s", (int)(length < 60 ? length : 60), typed);
	for (const struct args_option *o = u->options; o->name; o++) {
		if (o->help)
			suggest_offer(&near, o->name);
	}
	if (near.best)
		return args_wrong(u, "unknown option --%s; did you mean --%s?", word, near.best);
	return args_wrong(u, "unknown option --%s", word);
}

/* One option at argv[*at], whose value may be the next word. */
static int args_take_option(const struct args_usage *u, int argc, char **argv, int *at)
{
	const char *name = argv[*at] + 2, *equals = strchr(name, '=');
	size_t length = equals ? (size_t)(equals - name) : strlen(name);
	const struct args_option *o = args_find(u, name, length);

	if (!o)
		return args_unknown(u, name, length);
	if (o->type == ARGS_FLAG) {
		if (equals)
			return args_wrong(u, "--%s takes no value", o->name);
		return args_set(u, o, NULL);
	}
	if (equals)
		return args_set(u, o, equals + 1);
	if (*at + 1 >= argc)
		return args_wrong(u, "--%s needs a value: %s", o->name, o->value ? o->value : "VALUE");
	return args_set(u, o, argv[++*at]);
}

int args_parse(const struct args_usage *u, int argc, char **argv, struct args_words *words)
{
	bool options = true;

	*words = (struct args_words){0};
	for (int i = 1; i < argc; i++) {
		int rc;

		if (options && strcmp(argv[i], "--") == 0) {
			options = false;
		} else if (options && (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)) {
			args_print_help(u);
			return CLI_DONE;
		} else if (options && strncmp(argv[i], "--", 2) == 0) {
			rc = args_take_option(u, argc, argv, &i);
			if (rc != ARGS_GO_ON)
				return rc;
		} else if (options && argv[i][0] == '-' && argv[i][1]) {
			return args_wrong(u, "unknown option %s; options begin with two dashes", argv[i]);
		} else if (words->count == u->words_max) {
			return args_wrong(u, "'%s' is one word too many", argv[i]);
		} else {
			words->at[words->count++] = argv[i];
		}
	}
	return ARGS_GO_ON;
}
