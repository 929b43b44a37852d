/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Axes, ticks and lines.
 */
#include "phub/cli/chart.h"

#include <math.h>
#include <stdint.h>

#include "phub/cli/output.h"
#include "phub/cli/svg.h"

enum {
	CHART_TICKS = 5,
	CHART_DECADES = 5, /* an axis from one end to so many times that has two ticks of 1, 2 and 5 in it at least */
};

#define CHART_INK  "#444444"
#define CHART_GRID "#e4e4e4"

void chart_init(struct chart *c, FILE *file, double x, double y, double width, double height)
{
	*c = (struct chart){.file = file,
		.x = x,
		.y = y,
		.width = width,
		.height = height,
		.x_low = INFINITY,
		.x_high = -INFINITY,
		.y_low = INFINITY,
		.y_high = -INFINITY};
}

void chart_widen(struct chart *c, double x, double y)
{
	if (isfinite(x)) {
		c->x_low = fmin(c->x_low, x);
		c->x_high = fmax(c->x_high, x);
	}
	if (isfinite(y)) {
		c->y_low = fmin(c->y_low, y);
		c->y_high = fmax(c->y_high, y);
	}
}

void chart_settle(struct chart *c)
{
	double room;

	if (c->x_low > c->x_high)
		c->x_low = c->x_high = 1;
	if (c->y_low > c->y_high)
		c->y_low = c->y_high = 0;
	room = c->y_high > c->y_low ? 0.06 * (c->y_high - c->y_low) : fmax(fabs(c->y_low) * 0.1, 0.1);
	c->y_low -= room;
	c->y_high += room;
	if (c->x_log) {
		room = c->x_high > c->x_low ? pow(c->x_high / c->x_low, 0.06) : 2;
		c->x_low /= room;
		c->x_high *= room;
	} else if (c->x_high <= c->x_low) {
		c->x_high = c->x_low + 1;
	}
}

double chart_at_x(const struct chart *c, double value)
{
	if (c->x_log)
		return c->x + c->width * log(value / c->x_low) / log(c->x_high / c->x_low);
	return c->x + c->width * (value - c->x_low) / (c->x_high - c->x_low);
}

double chart_at_y(const struct chart *c, double value)
{
	return c->y + c->height * (c->y_high - value) / (c->y_high - c->y_low);
}

/* 1, 2 or 5 times a power of ten. */
static double chart_step(double range)
{
	double rough = range / CHART_TICKS, power = pow(10, floor(log10(rough))), times = rough / power;

	return power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10);
}

static void chart_tick_x(const struct chart *c, double value)
{
	double x = chart_at_x(c, value);
	char text[32];

	if (c->x_unit == CHART_BYTES)
		output_bytes((uint64_t)value, text);
	else
		snprintf(text, sizeof(text), "%.10g", fabs(value) < 1e-12 ? 0 : value);
	svg_line(c->file, x, c->y, x, c->y + c->height, CHART_GRID, 1, NULL);
	svg_line(c->file, x, c->y + c->height, x, c->y + c->height + 4, CHART_INK, 1, NULL);
	svg_label(c->file, x, c->y + c->height + 16, "small", "middle", false, text);
}

/* 1, 2 and 5 of each power of ten where there is room for them, else 1 alone. */
static void chart_ticks_log(const struct chart *c)
{
	static const double times[] = {1, 2, 5};
	double decades = log10(c->x_high / c->x_low);
	unsigned each = decades < 2.2 ? 3 : 1;

	for (int power = (int)floor(log10(c->x_low)); pow(10, power) <= c->x_high; power++) {
		for (unsigned i = 0; i < each; i++) {
			double value = times[i] * pow(10, power);

			if (value >= c->x_low && value <= c->x_high)
				chart_tick_x(c, value);
		}
	}
}

static void chart_ticks(const struct chart *c, bool y_ticks)
{
	const bool decades = c->x_log && c->x_high / c->x_low >= CHART_DECADES;
	double step = chart_step(c->x_high - c->x_low);

	for (double v = ceil(c->x_low / step) * step; !decades && v <= c->x_high * (1 + 1e-9); v += step)
		chart_tick_x(c, v);
	if (decades)
		chart_ticks_log(c);
	step = chart_step(c->y_high - c->y_low);
	for (double v = ceil(c->y_low / step) * step; y_ticks && v <= c->y_high; v += step) {
		char text[32];

		snprintf(text, sizeof(text), "%.6g", fabs(v) < step * 1e-9 ? 0 : v);
		chart_tick_y(c, v, text);
	}
}

void chart_tick_y(const struct chart *c, double value, const char *text)
{
	double y = chart_at_y(c, value);

	svg_line(c->file, c->x, y, c->x + c->width, y, CHART_GRID, 1, NULL);
	svg_line(c->file, c->x - 4, y, c->x, y, CHART_INK, 1, NULL);
	svg_label(c->file, c->x - 7, y + 3.5, "small", "end", false, text);
}

void chart_frame(const struct chart *c, const char *title, const char *x_name, const char *y_name, bool y_ticks)
{
	chart_ticks(c, y_ticks);
	svg_line(c->file, c->x, c->y, c->x, c->y + c->height, CHART_INK, 1, NULL);
	svg_line(c->file, c->x, c->y + c->height, c->x + c->width, c->y + c->height, CHART_INK, 1, NULL);
	svg_label(c->file, c->x, c->y - 10, "title", "start", false, title);
	svg_label(c->file, c->x + c->width / 2, c->y + c->height + 34, "name", "middle", false, x_name);
	svg_label(c->file, c->x - 54, c->y + c->height / 2, "name", "middle", true, y_name);
}

void chart_segment(
	const struct chart *c, double x1, double y1, double x2, double y2, const char *colour, const char *dash)
{
	if (isfinite(x1) && isfinite(y1) && isfinite(x2) && isfinite(y2))
		svg_line(c->file, chart_at_x(c, x1), chart_at_y(c, y1), chart_at_x(c, x2), chart_at_y(c, y2), colour,
			1.6, dash);
}

const char *chart_colour(unsigned i)
{
	static const char *const colours[CHART_COLOURS] = {
		"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};

	return colours[i % CHART_COLOURS];
}

void chart_heat(double value, char out[8])
{
	static const unsigned char stops[5][3] = {
		{68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}};
	double at = 4 * fmin(fmax(value, 0), 1), rest;
	unsigned i = at < 4 ? (unsigned)at : 3, colour[3];

	rest = at - i;
	for (unsigned k = 0; k < 3; k++)
		colour[k] = (unsigned)(stops[i][k] * (1 - rest) + stops[i + 1][k] * rest + 0.5);
	snprintf(out, 8, "#%02x%02x%02x", colour[0] & 0xff, colour[1] & 0xff, colour[2] & 0xff);
}
