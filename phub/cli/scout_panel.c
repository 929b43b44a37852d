/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What panels share: where they stand, legends, and what windows say.
 */
#include "phub/cli/scout_panel.h"

#include <math.h>
#include <string.h>

#include "phub/cli/svg.h"

enum {
	PANEL_ABOVE = 44,
	PANEL_BELOW = 56,
	PANEL_NAME_CHARACTERS = 24, /* that a legend has room for */
};

struct chart panel_begin(struct panel_page *page, double height, unsigned rows)
{
	struct chart c;

	height = fmax(height, rows * PANEL_ROW);
	chart_init(&c, page->file, PANEL_LEFT, page->y + PANEL_ABOVE, PANEL_WIDTH - PANEL_LEFT - PANEL_RIGHT, height);
	page->y += PANEL_ABOVE + height + PANEL_BELOW;
	return c;
}

void panel_frame_steps(struct chart *c, const struct panel_page *page, const char *title, const char *unit, bool ticks)
{
	c->x_low = 0;
	c->x_high = fmax(page->steps, 1);
	chart_frame(c, title, "step", unit, ticks);
}

/* ---- legends ---- */

/* The bytes of so many characters of UTF-8, from the start. */
static size_t panel_first(const char *text, size_t characters)
{
	size_t at = 0;

	for (; text[at]; at++)
		if (((unsigned char)text[at] & 0xc0) != 0x80 && characters-- == 0)
			break;
	return at;
}

static size_t panel_characters(const char *text)
{
	size_t count = 0;

	for (; *text; text++)
		count += ((unsigned char)*text & 0xc0) != 0x80;
	return count;
}

const char *panel_cut(const char *name, unsigned characters, char out[PANEL_CUT_BYTES])
{
	const size_t all = panel_characters(name), head = characters * 3 / 5;

	if (all <= characters)
		snprintf(out, PANEL_CUT_BYTES, "%s", name);
	else
		snprintf(out, PANEL_CUT_BYTES, "%.*s\u2026%s", (int)panel_first(name, head), name,
			name + panel_first(name, all - (characters - head - 1)));
	return out;
}

void panel_label(const struct chart *c, unsigned row, double x, const char *text)
{
	char cut[PANEL_CUT_BYTES];

	svg_label(c->file, c->x + c->width + x, c->y + 9.5 + row * PANEL_ROW, "small", "start", false,
		panel_cut(text, PANEL_NAME_CHARACTERS, cut));
}

void panel_name(const struct chart *c, unsigned row, const char *colour, const char *dash, const char *name)
{
	const double x = c->x + c->width + 16, y = c->y + 6 + row * PANEL_ROW;

	svg_line(c->file, x, y, x + 22, y, colour, 2, dash);
	panel_label(c, row, 44, name);
}

unsigned panel_legend(const struct panel_page *page, const struct chart *c, const bool shown[ARGS_WORDS_MAX])
{
	unsigned row = 0;

	for (unsigned l = 0; l < page->count; l++)
		if (shown[l])
			panel_name(c, row++, chart_colour(l), NULL, page->logs[l].name);
	return row;
}

/* ---- windows ---- */

double panel_number(const struct scout_log *log, unsigned window, const char *field)
{
	return scout_log_number(scout_log_window(log, window), field);
}

bool panel_log_has(const struct scout_log *log, const char *field)
{
	for (unsigned i = 0; i < log->count; i++)
		if (!isnan(panel_number(log, i, field)))
			return true;
	return false;
}

double panel_from(const struct scout_log *log, unsigned window)
{
	return panel_number(log, window, "t") - scout_log_steps(log, window);
}
