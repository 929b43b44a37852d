/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of options: name, type, bounds and help of each, and how a value is read and written. Inside of config
 * only.
 */
#ifndef PHUB_CONTROL_CONFIG_OPTIONS_H
#define PHUB_CONTROL_CONFIG_OPTIONS_H

#include "phub/control/config.h"

#define OPTION_TEXT_BYTES 8192u /* of a value, at most */

enum option_type {
	OPTION_LISTEN, /* list of host:port */
	OPTION_STRING, /* one word that fits its field */
	OPTION_WORDS,  /* some of them */
	OPTION_LIST,   /* likewise, with commas between them, or a list of YAML */
	OPTION_PORTS,  /* "first-last", or "any" */
	OPTION_NAMES,  /* list of transports */
	OPTION_CORES,  /* "auto", a count, or a list of CPUs */
	OPTION_CHOICE, /* one of `choices` */
	OPTION_NUMBER,
	OPTION_POWER,  /* bytes, a power of two */
	OPTION_BYTES,  /* "8GiB"; 0 as "auto" */
	OPTION_RATE,   /* likewise, a second; 0 as "none" */
	OPTION_SWITCH, /* true or false */
	OPTION_FILE,   /* a path, of a secret */
	OPTION_ENV,    /* the name of an environment variable, of a secret */
	OPTION_JOBS,   /* list of mappings */
};

struct option {
	const char *name;
	enum option_type type;
	size_t offset; /* of the field in the struct it belongs to */
	size_t bytes;  /* of the field */
	uint64_t min, max;
	const char *choices[7]; /* OPTION_CHOICE: NULL-terminated, in the order of its enum */
	const char *fallback;   /* the default, as text */
	const char *help;
};

extern const struct option option_table[]; /* of struct config */
extern const unsigned option_count;
extern const struct option option_job_table[]; /* of struct config_job */
extern const unsigned option_job_count;

/* By name, or NULL. */
const struct option *option_find(const struct option *table, unsigned count, const char *name);

/* Reads `text` into the field of `base`; a list with commas, or as YAML has it, in brackets. 0, or -EINVAL with "NAME:
 * 'text' is ...; allowed: ..." in `e`. */
int option_read(const struct option *option, void *base, const char *text, struct err *e);

/* Writes the field's value as option_read() takes it. */
void option_write(const struct option *option, const void *base, char *out, size_t bytes);

/* What is allowed, in words. */
void option_allowed(const struct option *option, char *out, size_t bytes);

/* Is the value a list, in YAML? */
bool option_is_list(const struct option *option);

/* Zeroes and frees. */
void config_wipe_secret(struct config_secret *secret);

/* Puts FILE:LINE before what is wrong with one of two options: the first that the file has set. Returns its code. */
int config_at(const struct config *config, const char *one, const char *other, struct err *e);

/* ---- config_racks.c ---- */

/* Reads the rack file, finds this box in it, and its uplink where none is set. No file: nothing. */
int config_finish_racks(struct config *config, struct err *e);

/* What to write in place of `name`, which is no option: the nearest names first; of a short table all of them. */
void option_suggest(const struct option *table, unsigned count, const char *name, char *out, size_t bytes);

#endif
