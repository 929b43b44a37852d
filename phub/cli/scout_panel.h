/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Panels of a picture of runs, one below the other, for phub scout plot. Each draws what logs know, and nothing where
 * they do not. All that are over time have one axis of steps, so that what stands below each other was at once.
 */
#ifndef PHUB_CLI_SCOUT_PANEL_H
#define PHUB_CLI_SCOUT_PANEL_H

#include <stdbool.h>
#include <stdio.h>

#include "phub/cli/args.h"
#include "phub/cli/chart.h"
#include "phub/cli/scout_log.h"

enum {
	PANEL_WIDTH = 800, /* of the picture, in pixels */
	PANEL_LEFT = 110,
	PANEL_RIGHT = 190, /* the legend's */
	PANEL_ROW = 16,    /* of a legend, and of a heat map */
};

#define PANEL_GREY "#888888"

struct panel_page {
	FILE *file;
	const struct scout_log *logs;
	unsigned count;
	struct scout_log_total totals[ARGS_WORDS_MAX];
	double steps; /* the last of any run */
	double y;     /* where the next panel begins; 0: there is none yet */
};

/* ---- the panels ---- */

/* One for each kind of theta: steps are no thresholds, and no parts of a gradient. */
void panel_thetas(struct panel_page *page);
void panel_accuracy_lost(struct panel_page *page);
void panel_losses(struct panel_page *page);
/* Where sites have others within. */
void panel_links(struct panel_page *page);
/* Bytes against accuracy, of those whose accuracy is known, where these are two or more. */
void panel_front(struct panel_page *page);
/* How what sites say agrees, of one log. */
void panel_heat(struct panel_page *page, unsigned log);

/* ---- what they share ---- */

/* A chart of at least so many pixels, and so high that a legend of `rows` has room. */
struct chart panel_begin(struct panel_page *page, double height, unsigned rows);
/* Its frame, over time. */
void panel_frame_steps(struct chart *c, const struct panel_page *page, const char *title, const char *unit, bool ticks);

/* One row of a legend. */
void panel_name(const struct chart *c, unsigned row, const char *colour, const char *dash, const char *name);
/* A name of at most so many characters: one that is longer lacks its middle. Returns `out`. */
enum { PANEL_CUT_BYTES = 128 };
const char *panel_cut(const char *name, unsigned characters, char out[PANEL_CUT_BYTES]);
/* What is a row's label, cut to the room that there is. */
void panel_label(const struct chart *c, unsigned row, double x, const char *text);
/* The names of those logs that are shown, in their colours. Returns how many. */
unsigned panel_legend(const struct panel_page *page, const struct chart *c, const bool shown[ARGS_WORDS_MAX]);

/* A window's field. */
double panel_number(const struct scout_log *log, unsigned window, const char *field);
/* Has any window of it? */
bool panel_log_has(const struct scout_log *log, const char *field);
/* The step that the window before ended with, or this one began with where that is missing. */
double panel_from(const struct scout_log *log, unsigned window);

#endif
