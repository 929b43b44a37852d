/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the decision logs of scouts (client/scout/record.h has their format) for the subcommands of phub scout. What a
 * log does not know is NaN here. Blocks on the file.
 */
#ifndef PHUB_CLI_SCOUT_LOG_H
#define PHUB_CLI_SCOUT_LOG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/scout/scout.h"
#include "client/scout/site.h"
#include "phub/base/err.h"

enum { SCOUT_LOG_LINE_MAX = 16 << 20, SCOUT_LOG_WINDOWS_MAX = 1000000 };

struct scout_log {
	const char *path;
	char name[64];    /* short: the job's, or the file's */
	json_t *run;      /* the first line */
	json_t *windows;  /* an array of decisions, in order */
	json_t *sites;    /* likewise of who was lost, left or came (record_site()) */
	json_t *end;      /* NULL: the run has not ended, or was cut off */
	unsigned count;   /* of windows */
	uint64_t missing; /* windows that have no line, by the numbers of those that have one */
	unsigned line;    /* how many have been read */
	bool cut;         /* the last line was not whole: it is not here */
	bool joined;      /* its writer was lost, or left, and another has gone on, from `writer` on */
	double since;     /* the last line counts what was sent after this step; 0: all; NaN: it is not known */
	double writer;    /* the rank of who writes; NaN: it is not known */
};

/*
 * 0, and scout_log_free() ends it; lines of others are passed over. With the reason in `e`: an errno of the file;
 * -EBADMSG: a line that is not JSON, but for the last; nothing at all; no first line of a run, or of a version that is
 * not known here, or those of two runs; decisions that lack t, theta or next, or go back in time. "-" is standard
 * input.
 */
int scout_log_read(const char *path, struct scout_log *out, struct err *e);
void scout_log_free(struct scout_log *log);

/* Reads one, prints why not, and tells of a cut, and of windows that are missing. */
bool scout_log_open(const char *path, struct scout_log *out);

/* Those that have one name, as files of one name in other folders, are called by their paths. */
void scout_log_tell_apart(struct scout_log *logs, unsigned count);

const json_t *scout_log_window(const struct scout_log *log, unsigned i);

/* How many windows have no line just before this one. */
uint64_t scout_log_missing(const struct scout_log *log, unsigned window);

/* NaN for what is absent, null or no number; "" likewise for text. */
double scout_log_number(const json_t *line, const char *field);
const char *scout_log_text(const json_t *line, const char *field);
double scout_log_element(const json_t *line, const char *field, unsigned i);
unsigned scout_log_elements(const json_t *line, const char *field);

/* Of a window's `field`, bytes or bytes_within, what the cost weighs: in one that outlasted the period a part, in a
 * shorter one more. */
double scout_log_weighed(const json_t *window, const char *field);

/* What a site has spent on exchanges in a window, the mean, in the unit of the run's costs; NaN: that is bytes, or it
 * is not known. */
double scout_log_spent(const struct scout_log *log, unsigned window);
/* Likewise on what travelled to be tried. */
double scout_log_spent_travel(const struct scout_log *log, unsigned window);
/* What `bytes` a site that travel in this window cost, NaN where that is in bytes. Statistics come with an exchange.
 * `models` go one after another, each in a round that all wait for: in seconds they take those of all. */
double scout_log_travel_cost(
	const struct scout_log *log, unsigned window, const struct price *price, double bytes, bool models);
/* "1.5 MB", "unknown". A mean, and so in decimal units, which columns of them share, and not "4851 KiB" where it
 * happens to be whole. */
const char *scout_log_bytes_text(double bytes, char text[32]);
/* "12.4 s", "0.0019 money", "unknown"; of any unit. */
const char *scout_log_spent_text(enum price_unit unit, double spent, char text[32]);

/* How many steps a window had; where that before it is missing a period at most, which it had as a rule. */
double scout_log_steps(const struct scout_log *log, unsigned window);

/* For a line of JSON: null for what is not known; whole numbers keep all digits. */
json_t *scout_log_value(double value);

/* Of a scout+ that knows no loss of training, in any window. */
#define SCOUT_LOG_UNTRAINED                                                                                      \
	"no site has said what it loses in training (phub_site_loss(), in Python site.lost()), so no model was " \
	"tried: no probe can show what talking more saves, and what no theta mends, as batch normalization, is " \
	"not seen"

/* Of the whole run, by its last line, or by its windows where it has not ended; what was sent by both where who wrote
 * the last line came later. */
struct scout_log_total {
	uint64_t t;
	double bytes, travel; /* mean of sites; NaN: they are not known of all of the run */
	double bsp;           /* what BSP would have sent */
	double within;        /* by the sites within: over other links; NaN: there are none */
	double spent;         /* on both, in the unit of costs; NaN: that is bytes, or it is not known */
	double wire;          /* payload of all kinds, as it travelled, likewise */
	double theta, accuracy, loss, seconds;
	double sites;  /* that were there at the end; NaN: it is not known */
	double broken; /* the step after which models were no numbers to the end; NaN: they were, or it is not known */
	bool fixed;    /* nobody moved its theta */
};

struct scout_log_total scout_log_total(const struct scout_log *log);

/* Is it known what was sent in all of the run, or in so much of it as the log has? False: lines of windows are missing
 * that nothing else tells of, or there is none of what was before who wrote the last line came. */
bool scout_log_knows_sent(const struct scout_log *log);

/* How many times fewer than BSP; NaN where that is not known. */
double scout_log_saving(const struct scout_log_total *total);

#define SCOUT_LOG_SAVING_BYTES 64
#define SCOUT_LOG_UNLIKE_BYTES 64
/* "4.2 times fewer bytes than BSP", "as many bytes as BSP", "1.05 times as many bytes as BSP". Returns `text`. */
const char *scout_log_saving_text(double saving, char text[SCOUT_LOG_SAVING_BYTES]);

/* On the Pareto front of bytes and accuracy: no other one sent no more and was as good, and better in one. */
bool scout_log_on_front(const struct scout_log_total *totals, unsigned count, unsigned which);
/* Likewise on the oracle's: that of runs with a fixed theta alone. */
bool scout_log_on_oracle(const struct scout_log_total *totals, unsigned count, unsigned which);

/* In what runs are not one beside the other. */
struct scout_log_unlike {
	bool steps, sites, model;
};

/* Adds that in which two of them differ. */
void scout_log_differ(const struct scout_log *logs, const struct scout_log_total *totals, unsigned a, unsigned b,
	struct scout_log_unlike *unlike);
/* "steps, sites, the model's size", or fewer; "": in nothing. Returns `text`. */
const char *scout_log_unlike_text(const struct scout_log_unlike *unlike, char text[SCOUT_LOG_UNLIKE_BYTES]);

/* What the run's costs are in, and what its links cost: 0 where the log does not say. */
enum price_unit scout_log_unit(const struct scout_log *log);
struct price scout_log_price(const struct scout_log *log);

/* SITE_ALGORITHM_COUNT: one that is not known here. */
enum site_algorithm scout_log_algorithm(const struct scout_log *log);

/* The controller's configuration that the run had, as far as the line says; the paper's otherwise. 0; -EBADMSG. */
int scout_log_config(const struct scout_log *log, struct scout_config *out, struct err *e);

#endif
