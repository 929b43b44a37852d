/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chart in a picture: a frame with two axes, ticks at round numbers, and lines in it. For phub scout plot.
 */
#ifndef PHUB_CLI_CHART_H
#define PHUB_CLI_CHART_H

#include <stdbool.h>
#include <stdio.h>

enum chart_unit { CHART_PLAIN = 0, CHART_BYTES = 1 };

struct chart {
	FILE *file;
	double x, y, width, height; /* of the frame, in pixels */
	double x_low, x_high;       /* values at its edges; chart_widen() */
	double y_low, y_high;
	bool x_log; /* decimal logarithms; values above 0 */
	enum chart_unit x_unit;
};

/* An empty range. */
void chart_init(struct chart *c, FILE *file, double x, double y, double width, double height);

/* A value that is to be seen; NaN: none. */
void chart_widen(struct chart *c, double x, double y);

/* Room around what is to be seen, and some where that is one value. */
void chart_settle(struct chart *c);

double chart_at_x(const struct chart *c, double value);
double chart_at_y(const struct chart *c, double value);

/* Frame, title, names of the axes; ticks of both, but for those of y where the caller draws its own. */
void chart_frame(const struct chart *c, const char *title, const char *x_name, const char *y_name, bool y_ticks);

/* One tick of the y axis, with a line across. */
void chart_tick_y(const struct chart *c, double value, const char *text);

/* From one value to the next: nothing where one is NaN. */
void chart_segment(
	const struct chart *c, double x1, double y1, double x2, double y2, const char *colour, const char *dash);

enum { CHART_COLOURS = 7 };

/* Colours that people with any sight can tell apart (Okabe and Ito, without yellow), again from the start. */
const char *chart_colour(unsigned i);

/* From dark blue, 0, over green to yellow, 1 (viridis). */
void chart_heat(double value, char out[8]);

#endif
