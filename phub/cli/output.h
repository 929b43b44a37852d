/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the command speaks: errors as one line on stderr, results as tables for people or as JSON, one object a line, for
 * scripts. Nothing else here prints.
 */
#ifndef PHUB_CLI_OUTPUT_H
#define PHUB_CLI_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* "phub: ..." on stderr; control characters in it are replaced, so that what a peer said cannot drive the terminal. */
void output_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same for what is no error: why nothing happens. */
void output_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* How many bytes of a character of UTF-8 are here: names of files may be anything. 0: it is none. */
unsigned output_character(const char *text);

/* Such a name as a string of JSON, with U+FFFD for each byte that is none. NULL: memory is short. */
json_t *output_name(const char *text);

/* Prints one line and drops the reference. NULL (memory is short) is an error: returns false. */
bool output_json(json_t *object);

enum { OUTPUT_COLUMNS_MAX = 15 };

/* Rows of text that are printed when all widths are known. Zeroed but for `heads` and `align` is empty. */
struct output_table {
	const char *heads[OUTPUT_COLUMNS_MAX + 1]; /* NULL-terminated */
	const char *align;                         /* one of 'l', 'r' a column */
	char **cells;
	unsigned count, room;
};

/* The next cell, row by row. */
void output_cell(struct output_table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints to stdout and empties the table. */
void output_table_print(struct output_table *t);

/* "100.0 MB", "32 KiB" when it is a whole number of those, as people say it. */
const char *output_bytes(uint64_t bytes, char text[32]);

/* "25 Gbit", "47.56 Mbit": of a link, as rack files have it. */
const char *output_rate(double bytes_s, char text[32]);

/* A bar on stderr when that is a terminal, else nothing. `done` of `total`; drawn at most ten times a second. */
struct output_progress {
	const char *label;
	uint64_t drawn_ns;
	bool shown;
};

void output_progress_update(struct output_progress *p, uint64_t done, uint64_t total);
/* Wipes the bar. */
void output_progress_end(struct output_progress *p);

#endif
