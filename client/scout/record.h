/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The decision log of a run: lines of JSON, one for the run, one for each window, one for the end, and one for each
 * site that is lost, leaves or comes, as `phub scout` reads them. Here they are formatted, into the caller's memory.
 * Pure; any thread; never blocks.
 *
 * Numbers are written so that reading them gives the same bits; NaN and infinities, for which JSON has no word, are
 * null. A seed above 2^53 is text of digits. Text that is not UTF-8 has U+FFFD where it is not. Readers ignore fields
 * that they do not know.
 */
#ifndef PHUB_CLIENT_SCOUT_RECORD_H
#define PHUB_CLIENT_SCOUT_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/scout/scout.h"
#include "client/scout/site.h"

#define RECORD_VERSION 1

/* The first line. Zeroed is a start; `scout` is needed: of a run whose theta stays, SCOUT_FIXED and that theta. */
struct record_run {
	enum site_algorithm algorithm;
	const struct scout_config *scout; /* policy, thetas, period, model_bytes, seed and what costs weigh */
	uint64_t bsp_bytes; /* that BSP says at a step: not what is not trained; 0, or the model's: left out */
	unsigned sites, rank;
	uint64_t id;                /* names the run among others, below 2^53; 0: left out */
	const char *job;            /* NULL: left out */
	const char *transport;      /* of the writer's payload: nothing is coded over shm; NULL: left out */
	const char *const *tensors; /* names; NULL: left out */
	unsigned tensor_count;
	const double *shadow; /* thetas that are counted beside the run's own; NULL: none */
	unsigned shadow_count;
	const char *link; /* the class of link that its sites talk over; NULL: left out */
	/* Of the sites within its own; NULL: there are none: */
	const struct site_config *within;
	const char *within_link; /* NULL: left out */
};

/* What a site would have sent at another theta. */
struct record_shadow {
	double theta;
	double bytes; /* in this window */
};

/* A window's line. record_decision_init() makes all that may be unknown so. Its "interval" is that of "gain" where
 * there is one, else of "AL"; "seen" is decision.seen, of a window in which exchanges were heard: what scout+ would
 * want to know. */
struct record_decision {
	uint64_t t;                     /* steps of the run so far */
	double theta;                   /* of the window that is over */
	struct scout_decision decision; /* what followed of it */
	enum price_unit unit;           /* of costs; bytes, and what was spent of them, are left out */
	uint64_t samples;               /* that the reports which were believed count */
	unsigned sites;                 /* that were asked */
	const double *r;                /* [tensor_count] over the window's exchanges; NULL: left out */
	unsigned tensor_count;
	double bytes, bytes_travel;    /* sent in the window, mean of sites: in exchanges; to try models elsewhere */
	double bytes_total, bytes_bsp; /* since the start: all of both; what BSP would have sent */
	double bytes_within;           /* in the window, by the sites within: over other links; NaN: left out */
	/* What the cost weighs of `bytes` and `bytes_within`, where a window has more steps than a period, or fewer: as
	 * many as in one period; NaN: all, and left out. */
	double bytes_cost, bytes_within_cost;
	double train_loss;                  /* of the window, nats; NaN: not known */
	double accuracy, score_loss;        /* of the averaged model; both NaN: left out */
	const struct record_shadow *shadow; /* NULL: left out */
	unsigned shadow_count;
};

/* The last line. */
struct record_end {
	uint64_t t;
	/* Mean of sites, in bytes (times `sites` of the run: what all have sent), as far as windows and the last
	 * exchange tell; for what was since then the writer's own stands; NaN: not known, as all that follows may be.
	 * In exchanges and of models, as papers count; on the wire payload of all kinds. */
	double bytes, bytes_travel, bytes_wire;
	double theta, accuracy, loss, seconds;
	double bytes_within;   /* as in a window's line, since the start; 0: left out */
	unsigned rank;         /* of the writer */
	unsigned sites;        /* that were there at last: of these the score is; 0: not known, and left out */
	uint64_t broken_since; /* the step after which the writer's model was no numbers to the end; 0: left out */
};

/* Unknown: how sites align, the interval, bytes_bsp, bytes_within, what the cost weighs of bytes, the training loss and
 * the score. The rest is 0. */
void record_decision_init(struct record_decision *decision);

/*
 * Each writes a line with its newline and a NUL behind it to out[room], as far as that goes, and returns how long the
 * line is: from `room` on it was too long, and what is in `out` is no line. `out` may be NULL when room is 0.
 */
size_t record_run(const struct record_run *run, char *out, size_t room);
size_t record_decision(const struct record_decision *decision, char *out, size_t room);
size_t record_end(const struct record_end *end, char *out, size_t room);
/* Between the others: what training goes on with, and should be known. `rank` from 1 on; 0, or NULL: left out. `all`:
 * models of all sites are no numbers from here on. */
size_t record_warning(
	uint64_t t, unsigned rank, const char *tensor, bool all, const char *text, char *out, size_t room);

/* Likewise: who is there changes; or who writes the log, from there on. */
struct record_site {
	uint64_t t;    /* steps of the run, as the first round without it, or with it, landed */
	unsigned rank; /* of the site */
	/* "lost", "left", "came"; "writes": what its end says of bytes is since step `since`; "restarted": likewise,
	 * and sites go on from what they saved after step t: what stands above of later ones was lost. */
	const char *action;
	unsigned sites; /* from then on */
	uint64_t since; /* of the last two alone */
	const char *reason;
};

size_t record_site(const struct record_site *site, char *out, size_t room);

/* What the first line of a log of run `id` begins with; returns how long that is. */
#define RECORD_HEAD_BYTES 64u

size_t record_head(uint64_t id, char out[RECORD_HEAD_BYTES]);

/* What is enough for one number, as it is written in a line; the NUL included. */
#define RECORD_NUMBER_BYTES 32u

/* The shortest decimal that reads back as the same double, whatever the locale; or "null". */
void record_number(double value, char out[RECORD_NUMBER_BYTES]);

#endif
