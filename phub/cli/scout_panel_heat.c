/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A heat map of r: a row for each tensor, a column for each window. By its logarithm, from HEAT_COOL below 1/K, 0, to
 * 1, 1: sites that are alike have 1/K, those with skewed data less.
 */
#include <math.h>
#include <string.h>

#include "phub/cli/scout_panel.h"
#include "phub/cli/svg.h"

enum {
	HEAT_ROWS_MAX = 40,
	HEAT_COLUMNS_MAX = 2000,
	HEAT_SCALE_LEAST = 80, /* pixels: four labels */
	HEAT_SCALE_MOST = 140,
	HEAT_STEPS = 40, /* of colour */
	HEAT_NAME_CHARACTERS = 18,
	HEAT_TITLE_CHARACTERS = 32, /* of a run's name in it */
	HEAT_LABEL = 12,
};

#define HEAT_COOL    100.0 /* as far as 80 % of skew goes at 10 sites */
#define HEAT_UNKNOWN "#dddddd"

static double heat_warmth(double r, double sites)
{
	return r > 0 ? 1 + log(r) / log(HEAT_COOL * sites) : 0;
}

/* How many tensors there is an r of; 0: of none. */
static unsigned heat_tensors(const struct scout_log *log)
{
	unsigned most = 0;
	bool any = false;

	for (unsigned i = 0; i < log->count; i++) {
		const unsigned count = scout_log_elements(scout_log_window(log, i), "r");

		most = count > most ? count : most;
		for (unsigned t = 0; t < count && !any; t++)
			any = !isnan(scout_log_element(scout_log_window(log, i), "r", t));
	}
	return any ? most : 0;
}

static void heat_label(const struct chart *c, double x, double y, const char *text)
{
	svg_label(c->file, x + 20, y, "small", "start", false, text);
}

/* The scale beside the map, with 1/K marked; labels do not touch. */
static void heat_scale(const struct chart *c, double sites, bool unknown)
{
	const double x = c->x + c->width + 24;
	const double height = fmin(fmax(c->height, HEAT_SCALE_LEAST), HEAT_SCALE_MOST), end = c->y + height;
	char text[48], colour[8];

	for (unsigned i = 0; i < HEAT_STEPS; i++) {
		chart_heat(1 - (i + 0.5) / HEAT_STEPS, colour);
		svg_block(c->file, x, c->y + height * i / HEAT_STEPS, 14, height / HEAT_STEPS + 0.3, colour);
	}
	heat_label(c, x, c->y + 8, "1: sites agree");
	if (sites > 1) {
		const double y = c->y + height * (1 - heat_warmth(1 / sites, sites));

		snprintf(text, sizeof(text), "%.2g: by chance (1/K)", 1 / sites);
		svg_line(c->file, x - 3, y, x + 17, y, "#222222", 1, NULL);
		heat_label(c, x, fmin(fmax(y + 3.5, c->y + 8 + HEAT_LABEL), end - HEAT_LABEL), text);
	}
	snprintf(text, sizeof(text), "%.2g: they cancel out", 1 / (HEAT_COOL * sites));
	heat_label(c, x, end, text);
	if (unknown) {
		svg_block(c->file, x, end + 8, 14, HEAT_LABEL, HEAT_UNKNOWN);
		heat_label(c, x, end + 18, "not known");
	}
}

static void heat_block(const struct chart *c, double from, double to, double y, const char *colour)
{
	svg_block(
		c->file, chart_at_x(c, from), y, chart_at_x(c, to) - chart_at_x(c, from) + 0.3, PANEL_ROW - 1, colour);
}

static const char *heat_name(const struct scout_log *log, unsigned tensor)
{
	return json_string_value(json_array_get(json_object_get(log->run, "tensors"), tensor));
}

/* How many bytes all names have in common at their start, to the end of a part: what tells them apart has the room. */
static size_t heat_common(const struct scout_log *log)
{
	const char *first = heat_name(log, 0);
	size_t common = first ? strlen(first) : 0;

	for (unsigned t = 1; t < scout_log_elements(log->run, "tensors"); t++) {
		const char *name = heat_name(log, t);
		size_t same = 0;

		while (name && same < common && name[same] == first[same])
			same++;
		common = same;
	}
	while (common > 0 && first[common - 1] != '.')
		common--;
	return common;
}

/* Is something in it not known? */
static bool heat_row(const struct panel_page *page, const struct chart *c, unsigned log, unsigned tensor)
{
	const struct scout_log *own = &page->logs[log];
	const char *name = heat_name(own, tensor);
	const double sites = scout_log_number(own->run, "sites"), end = (double)page->totals[log].t;
	const double y = c->y + tensor * PANEL_ROW;
	const unsigned every = 1 + own->count / HEAT_COLUMNS_MAX;
	double to = 0;
	bool unknown = false;
	char number[32], text[PANEL_CUT_BYTES];

	snprintf(number, sizeof(number), "tensor %u", tensor);
	svg_label(c->file, c->x - 7, y + PANEL_ROW / 2.0 + 3.5, "small", "end", false,
		panel_cut(name ? name + heat_common(own) : number, HEAT_NAME_CHARACTERS, text));
	for (unsigned i = 0; i < own->count; i += every) {
		const double r = scout_log_element(scout_log_window(own, i), "r", tensor);
		const double from = every > 1 ? to : panel_from(own, i);
		char colour[8] = HEAT_UNKNOWN;

		if (!isnan(r))
			chart_heat(heat_warmth(r, sites), colour);
		if (from > to)
			heat_block(c, to, from, y, HEAT_UNKNOWN);
		unknown = unknown || isnan(r) || from > to;
		to = panel_number(own, i, "t");
		heat_block(c, from, to, y, colour);
	}
	if (every == 1 && end > to)
		heat_block(c, to, end, y, HEAT_UNKNOWN);
	return unknown || (every == 1 && end > to);
}

void panel_heat(struct panel_page *page, unsigned log)
{
	const unsigned tensors = heat_tensors(&page->logs[log]);
	const unsigned rows = tensors < HEAT_ROWS_MAX ? tensors : HEAT_ROWS_MAX;
	char title[256], name[PANEL_CUT_BYTES], first[32] = "";
	bool unknown = false;
	struct chart c;

	if (rows == 0)
		return;
	c = panel_begin(page, rows * PANEL_ROW, 0);
	if (rows < HEAT_SCALE_LEAST / PANEL_ROW)
		page->y += HEAT_SCALE_LEAST - rows * PANEL_ROW;
	if (rows < tensors)
		snprintf(first, sizeof(first), " (the first %u of %u)", rows, tensors);
	snprintf(title, sizeof(title), "Alignment r of what sites say, per tensor%s: %s", first,
		panel_cut(page->logs[log].name, HEAT_TITLE_CHARACTERS, name));
	panel_frame_steps(&c, page, title, "", false);
	for (unsigned t = 0; t < rows; t++)
		unknown = heat_row(page, &c, log, t) || unknown;
	heat_scale(&c, scout_log_number(page->logs[log].run, "sites"), unknown);
}
