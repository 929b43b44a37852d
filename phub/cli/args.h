/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of a subcommand: one table of them reads the command line and prints --help. `--name value` and
 * `--name=value` are the same; `--` ends the options; an unknown one is answered with the nearest known one.
 */
#ifndef PHUB_CLI_ARGS_H
#define PHUB_CLI_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ARGS_LIST_MAX = 32, ARGS_WORDS_MAX = 64, ARGS_REALS_MAX = 64 };

enum args_type {
	ARGS_FLAG,    /* bool: takes no value */
	ARGS_TEXT,    /* const char * */
	ARGS_TEXTS,   /* struct args_texts: may be given more than once */
	ARGS_NUMBER,  /* uint64_t, min..max */
	ARGS_BYTES,   /* uint64_t, min..max: "100MB", "64KiB", "4096" */
	ARGS_POWER,   /* uint64_t, min..max: bytes, a power of two */
	ARGS_MS,      /* uint64_t, nanoseconds: milliseconds above 0 to max, "6.496", "120ms", "0.5s" */
	ARGS_SECONDS, /* uint64_t, nanoseconds: seconds, min..max in milliseconds, "1", "0.5s", "300ms" */
	ARGS_CHOICE,  /* int: index in choices */
	ARGS_LIST,    /* struct args_list: numbers with commas, each min..max */
	ARGS_REAL,    /* double: a number from 0 on, or to max where that is above 0, "0.05" */
	ARGS_REALS,   /* struct args_reals: such numbers with commas */
	ARGS_SIZE,    /* double: bytes, such a number with a unit of ARGS_BYTES or none, "1.5MB" */
};

struct args_list {
	unsigned count;
	uint64_t at[ARGS_LIST_MAX];
};

struct args_reals {
	unsigned count;
	double at[ARGS_REALS_MAX];
};

struct args_texts {
	unsigned count;
	const char *at[ARGS_LIST_MAX];
};

struct args_option {
	const char *name;  /* without the dashes; NULL ends the table */
	const char *value; /* what --help calls its value */
	const char *help;  /* NULL: not shown, for tests */
	enum args_type type;
	void *target; /* left alone when the option is not given */
	uint64_t min, max;
	const char *const *choices; /* NULL-terminated */
};

struct args_usage {
	const char *command;  /* "phub bench exchange" */
	const char *words;    /* "[HOST:PORT]", or NULL when it takes none */
	const char *about;    /* what it does: whole lines */
	const char *examples; /* whole lines */
	unsigned words_max;   /* at most ARGS_WORDS_MAX */
	const struct args_option *options;
};

/* What is not an option, in order. */
struct args_words {
	unsigned count;
	const char *at[ARGS_WORDS_MAX];
};

enum { ARGS_GO_ON = -1 };

/* ARGS_GO_ON, or the exit code to end with: CLI_DONE after --help, CLI_USAGE after an error that was printed. */
int args_parse(const struct args_usage *usage, int argc, char **argv, struct args_words *words);

/* Prints "COMMAND: what is wrong; try COMMAND --help" and returns CLI_USAGE. */
int args_wrong(const struct args_usage *usage, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The values of --set: ARGS_GO_ON, or CLI_USAGE after saying which is not KEY=VALUE. */
int args_check_settings(const struct args_usage *usage, const struct args_texts *settings);

struct args_unit {
	const char *name; /* "" for a bare number; NULL ends the table */
	double factor;
};

/* Digits with or without a point, then one of the units, as in "6.496ms": 0, or -EINVAL. */
int args_read_decimal(const char *text, const struct args_unit *units, double *out);

/* "100MB" (1e6), "64KiB" (1024), "4096": 0, or -EINVAL. */
int args_read_bytes(const char *text, uint64_t *out);

#endif
