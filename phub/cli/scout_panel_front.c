/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes against accuracy, a mark for each run, and the Pareto front of the oracle: of those whose theta was fixed.
 * Where none was, or one, it is that of all.
 */
#include <math.h>

#include "phub/cli/scout_panel.h"
#include "phub/cli/svg.h"

enum { FRONT_HEIGHT = 200 };

static double front_sent(const struct scout_log_total *total)
{
	return total->bytes + (isnan(total->travel) ? 0 : total->travel);
}

static bool front_knows(const struct scout_log_total *total)
{
	return !isnan(total->accuracy) && front_sent(total) > 0;
}

static bool front_has_oracle(const struct panel_page *page)
{
	unsigned fixed = 0;

	for (unsigned l = 0; l < page->count; l++)
		fixed += front_knows(&page->totals[l]) && page->totals[l].fixed;
	return fixed > 1;
}

/* From left to right: as good as the best that sent no more. False: it is a point. */
static bool front_line(const struct panel_page *page, const struct chart *c)
{
	bool (*const is_on)(const struct scout_log_total *, unsigned, unsigned) =
		front_has_oracle(page) ? scout_log_on_oracle : scout_log_on_front;
	const struct scout_log_total *totals = page->totals;
	double x = NAN, y = NAN;
	bool drawn = false;

	for (;;) {
		int next = -1;

		for (unsigned l = 0; l < page->count; l++)
			if (is_on(totals, page->count, l) && (isnan(x) || front_sent(&totals[l]) > x) &&
				(next < 0 || front_sent(&totals[l]) < front_sent(&totals[next])))
				next = (int)l;
		if (next < 0)
			return drawn;
		drawn = !isnan(x);
		chart_segment(c, x, y, front_sent(&totals[next]), y, PANEL_GREY, "5 4");
		chart_segment(c, front_sent(&totals[next]), y, front_sent(&totals[next]), 100 * totals[next].accuracy,
			PANEL_GREY, "5 4");
		x = front_sent(&totals[next]);
		y = 100 * totals[next].accuracy;
	}
}

/* Where colours come again, other shapes. */
static void front_mark(const struct chart *c, unsigned log, double x, double y)
{
	const char *colour = chart_colour(log);
	unsigned shape = log / CHART_COLOURS % 3;

	if (shape == 1) {
		svg_block(c->file, x - 4, y - 4, 8, 8, colour);
		return;
	}
	svg_dot(c->file, x, y, 5, colour);
	if (shape == 2)
		svg_dot(c->file, x, y, 2.5, "#ffffff");
}

static void front_label(const struct chart *c, unsigned row, const char *text)
{
	svg_label(c->file, c->x + c->width + 16, c->y + 9.5 + row * PANEL_ROW, "small", "start", false, text);
}

/* In two rows, as a picture goes where what is said beside it does not. */
static void front_name_unlike(const struct panel_page *page, const struct chart *c, unsigned row)
{
	struct scout_log_unlike unlike = {false};
	char text[SCOUT_LOG_UNLIKE_BYTES];
	int first = -1;

	for (unsigned l = 0; l < page->count; l++) {
		if (!front_knows(&page->totals[l]))
			continue;
		first = first < 0 ? (int)l : first;
		scout_log_differ(page->logs, page->totals, (unsigned)first, l, &unlike);
	}
	if (!*scout_log_unlike_text(&unlike, text))
		return;
	front_label(c, row, "Take care: these differ in");
	front_label(c, row + 1, text);
}

void panel_front(struct panel_page *page)
{
	struct chart c;
	unsigned row = 0;
	bool line;

	for (unsigned l = 0; l < page->count; l++)
		row += front_knows(&page->totals[l]);
	if (row < 2)
		return;
	c = panel_begin(page, FRONT_HEIGHT, row + 5);
	c.x_log = true;
	c.x_unit = CHART_BYTES;
	for (unsigned l = 0; l < page->count; l++)
		if (front_knows(&page->totals[l]))
			chart_widen(&c, front_sent(&page->totals[l]), 100 * page->totals[l].accuracy);
	chart_settle(&c);
	chart_frame(&c, "Bytes against accuracy", "sent by a site in the run, models that travelled included",
		"accuracy, %", true);
	line = front_line(page, &c);
	row = 0;
	for (unsigned l = 0; l < page->count; l++) {
		if (!front_knows(&page->totals[l]))
			continue;
		front_mark(&c, l, chart_at_x(&c, front_sent(&page->totals[l])),
			chart_at_y(&c, 100 * page->totals[l].accuracy));
		front_mark(&c, l, c.x + c.width + 27, c.y + 6 + row * PANEL_ROW);
		panel_label(&c, row++, 44, page->logs[l].name);
	}
	if (line)
		panel_name(&c, row++, PANEL_GREY, "5 4",
			front_has_oracle(page) ? "oracle's Pareto front" : "Pareto front of these");
	front_name_unlike(page, &c, row + 1);
}
