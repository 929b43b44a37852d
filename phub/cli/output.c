/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors, tables, JSON lines and progress bars.
 */
#include "phub/cli/output.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "phub/base/clock.h"

static void output_say(const char *format, va_list arguments)
{
	char text[2048];

	vsnprintf(text, sizeof(text), format, arguments);
	for (char *c = text; *c; c++) {
		if (iscntrl((unsigned char)*c))
			*c = '?';
	}
	fflush(stdout);
	fprintf(stderr, "phub: %s\n", text);
}

void output_error(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	output_say(format, arguments);
	va_end(arguments);
}

void output_note(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	output_say(format, arguments);
	va_end(arguments);
}

unsigned output_character(const char *text)
{
	const unsigned char *at = (const unsigned char *)text;
	const unsigned more = at[0] < 0x80                    ? 0
			      : at[0] >= 0xc2 && at[0] < 0xe0 ? 1
			      : at[0] >= 0xe0 && at[0] < 0xf0 ? 2
			      : at[0] >= 0xf0 && at[0] < 0xf5 ? 3
							      : 4;

	for (unsigned i = 1; i <= more; i++)
		if (more == 4 || (at[i] & 0xc0) != 0x80)
			return 0;
	/* Too long for what they are, surrogates, and beyond U+10FFFF. */
	if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) || (at[0] == 0xf0 && at[1] < 0x90) ||
		(at[0] == 0xf4 && at[1] > 0x8f))
		return 0;
	return more + 1;
}

json_t *output_name(const char *text)
{
	static const char none[] = "\ufffd";
	char *out = malloc(strlen(text) * (sizeof(none) - 1) + 1), *at = out;
	json_t *string;

	if (!out)
		return NULL;
	while (*text) {
		const unsigned bytes = output_character(text);

		at = mempcpy(at, bytes ? text : none, bytes ? bytes : sizeof(none) - 1);
		text += bytes ? bytes : 1;
	}
	*at = '\0';
	string = json_string(out);
	free(out);
	return string;
}

bool output_json(json_t *object)
{
	char *line = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;

	json_decref(object);
	if (!line) {
		output_error("could not write a line of JSON: out of memory");
		return false;
	}
	puts(line);
	fflush(stdout);
	free(line);
	return true;
}

/* ---- tables ---- */

void output_cell(struct output_table *t, const char *format, ...)
{
	va_list arguments;
	char *text;
	int length;

	if (t->count == t->room) {
		unsigned room = t->room ? t->room * 2 : 64;
		char **cells = realloc(t->cells, room * sizeof(*cells));

		if (!cells)
			return;
		t->cells = cells;
		t->room = room;
	}
	va_start(arguments, format);
	length = vasprintf(&text, format, arguments);
	va_end(arguments);
	t->cells[t->count++] = length < 0 ? NULL : text;
}

static const char *output_text(const char *cell)
{
	return cell ? cell : "?";
}

static void output_padded(const char *text, size_t width, char align, bool last)
{
	int pad = (int)(width - strlen(text));

	if (align == 'r')
		printf("%*s%s", pad, "", text);
	else
		printf("%s%*s", text, last ? 0 : pad, "");
	fputs(last ? "\n" : "  ", stdout);
}

void output_table_print(struct output_table *t)
{
	size_t width[OUTPUT_COLUMNS_MAX];
	unsigned columns = 0;

	for (; t->heads[columns]; columns++)
		width[columns] = strlen(t->heads[columns]);
	for (unsigned i = 0; i < t->count; i++) {
		size_t length = strlen(output_text(t->cells[i]));

		width[i % columns] = length > width[i % columns] ? length : width[i % columns];
	}
	for (unsigned c = 0; c < columns; c++)
		output_padded(t->heads[c], width[c], t->align[c], c + 1 == columns);
	for (unsigned i = 0; i < t->count; i++) {
		unsigned c = i % columns;

		output_padded(output_text(t->cells[i]), width[c], t->align[c], c + 1 == columns);
		free(t->cells[i]);
	}
	free(t->cells);
	t->cells = NULL;
	t->count = t->room = 0;
	fflush(stdout);
}

const char *output_rate(double bytes_s, char text[32])
{
	static const char *const units[] = {"Kbit", "Mbit", "Gbit", "Tbit"};
	double value = bytes_s * 8 / 1e3;
	unsigned unit = 0;

	for (; value >= 999.95 && unit < 3; unit++)
		value /= 1e3;
	snprintf(text, 32, "%.4g %s", value, units[unit]);
	return text;
}

const char *output_bytes(uint64_t bytes, char text[32])
{
	static const char *const binary[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	static const char *const decimal[] = {"B", "KB", "MB", "GB", "TB"};
	double value = (double)bytes;
	unsigned unit = 0;

	for (; unit < 4 && bytes && bytes % 1024 == 0; unit++)
		bytes /= 1024;
	if (unit > 0 && bytes < 10000) {
		snprintf(text, 32, "%" PRIu64 " %s", bytes, binary[unit]);
		return text;
	}
	for (unit = 0; unit < 4 && value >= 1000; unit++)
		value /= 1000;
	snprintf(text, 32, unit ? "%.1f %s" : "%.0f %s", value, decimal[unit]);
	return text;
}

/* ---- progress ---- */

void output_progress_update(struct output_progress *p, uint64_t done, uint64_t total)
{
	enum { BAR_WIDTH = 40 };
	uint64_t now_ns = clock_now_ns();
	int full = total ? (int)(done * BAR_WIDTH / total) : 0;

	if (!isatty(STDERR_FILENO) || (p->shown && now_ns - p->drawn_ns < 100 * NS_PER_MS))
		return;
	full = full > BAR_WIDTH ? BAR_WIDTH : full;
	fprintf(stderr, "\r%-20.60s [%.*s%*s] %" PRIu64 "/%" PRIu64 "\033[K", p->label, full,
		"########################################", BAR_WIDTH - full, "", done, total);
	p->drawn_ns = now_ns;
	p->shown = true;
}

void output_progress_end(struct output_progress *p)
{
	if (p->shown)
		fputs("\r\033[K", stderr);
	p->shown = false;
}
