/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Theta over time. What is called so is a number of steps, a threshold, or a part of a gradient: each kind has a panel
 * of its own, with the thetas of its runs' grids, one above the other, whatever lies between them.
 */
#include <math.h>
#include <string.h>

#include "phub/cli/scout_panel.h"
#include "phub/cli/svg.h"

enum {
	THETA_HEIGHT = 200,
	THETA_TICKS = 14,
	THETA_STRIPE = 7, /* pixels */
	THETA_STRIPES = 1 + (PANEL_WIDTH - PANEL_LEFT - PANEL_RIGHT) / THETA_STRIPE,
};

static const struct theta_kind {
	const char *title, *unit;
	enum site_algorithm algorithms[2];
} theta_kinds[] = {
	{"Theta: steps between exchanges", "steps", {SITE_LOCAL, SITE_BSP}},
	{"Theta: Gaia's significance threshold", "part of a weight", {SITE_GAIA, SITE_GAIA}},
	{"Theta: DGC's density", "part of a gradient", {SITE_DGC, SITE_DGC}},
	{"Theta", "theta", {SITE_ALGORITHM_COUNT, SITE_ALGORITHM_COUNT}},
};

enum { THETA_KINDS = sizeof(theta_kinds) / sizeof(theta_kinds[0]) };

struct theta_panel {
	const struct panel_page *page;
	struct chart chart;
	bool shown[ARGS_WORDS_MAX];
	double thetas[ARGS_REALS_MAX]; /* all there are, rising */
	unsigned count;
	double stripes[ARGS_WORDS_MAX][THETA_STRIPES]; /* where runs are in the middle of each; NaN: nowhere */
};

/* ---- what runs were at ---- */

/* A run's windows, and what is behind the last of them. */
static unsigned theta_stretches(const struct panel_page *page, unsigned log)
{
	const unsigned count = page->logs[log].count;
	const double last = count ? panel_number(&page->logs[log], count - 1, "t") : 0;

	return count + ((double)page->totals[log].t > last);
}

static double theta_begin(const struct panel_page *page, unsigned log, unsigned i)
{
	const struct scout_log *own = &page->logs[log];

	if (i < own->count)
		return panel_from(own, i);
	return i ? panel_number(own, i - 1, "t") : 0;
}

static double theta_end(const struct panel_page *page, unsigned log, unsigned i)
{
	return i < page->logs[log].count ? panel_number(&page->logs[log], i, "t") : (double)page->totals[log].t;
}

static double theta_of(const struct panel_page *page, unsigned log, unsigned i)
{
	return i < page->logs[log].count ? panel_number(&page->logs[log], i, "theta") : page->totals[log].theta;
}

/* ---- rows ---- */

static void theta_add(struct theta_panel *p, double theta)
{
	unsigned at = 0;

	while (at < p->count && p->thetas[at] < theta)
		at++;
	if (isnan(theta) || p->count == ARGS_REALS_MAX || (at < p->count && p->thetas[at] == theta))
		return;
	memmove(p->thetas + at + 1, p->thetas + at, (p->count - at) * sizeof(double));
	p->thetas[at] = theta;
	p->count++;
}

static void theta_find(struct theta_panel *p)
{
	for (unsigned l = 0; l < p->page->count; l++) {
		const struct scout_log *log = &p->page->logs[l];

		for (unsigned i = 0; p->shown[l] && i < scout_log_elements(log->run, "thetas"); i++)
			theta_add(p, scout_log_element(log->run, "thetas", i));
		for (unsigned i = 0; p->shown[l] && i < theta_stretches(p->page, l); i++)
			theta_add(p, theta_of(p->page, l, i));
	}
}

static double theta_row(const struct theta_panel *p, double theta)
{
	for (unsigned i = 0; i < p->count; i++)
		if (p->thetas[i] == theta)
			return i;
	return NAN;
}

/* ---- stripes: runs at one theta have them by turns, so that each is where it is, and none hides another ---- */

static void theta_find_stripes(struct theta_panel *p, unsigned log)
{
	const unsigned stretches = p->shown[log] ? theta_stretches(p->page, log) : 0;
	const struct chart *c = &p->chart;
	unsigned i = 0;

	for (unsigned s = 0; s < THETA_STRIPES; s++) {
		const double t = c->x_low + (c->x_high - c->x_low) * (s + 0.5) * THETA_STRIPE / c->width;

		while (i < stretches && theta_end(p->page, log, i) < t)
			i++;
		p->stripes[log][s] = i < stretches && theta_begin(p->page, log, i) <= t
					     ? theta_row(p, theta_of(p->page, log, i))
					     : NAN;
	}
}

static bool theta_turn(const struct theta_panel *p, unsigned log, unsigned stripe, double row)
{
	unsigned all = 0, before = 0;

	for (unsigned l = 0; l < p->page->count; l++) {
		all += p->stripes[l][stripe] == row;
		before += l < log && p->stripes[l][stripe] == row;
	}
	return p->stripes[log][stripe] != row || stripe % all == before;
}

static void theta_stays(const struct theta_panel *p, unsigned log, double from, double to, double row)
{
	const struct chart *c = &p->chart;
	const double x = chart_at_x(c, from), end = chart_at_x(c, to), y = chart_at_y(c, row);
	unsigned first = (unsigned)fmax(0, (x - c->x) / THETA_STRIPE);
	double begin = NAN;

	for (unsigned s = first; s < THETA_STRIPES && c->x + s * THETA_STRIPE < end; s++) {
		const double edge = fmax(x, c->x + s * THETA_STRIPE);
		const bool turn = theta_turn(p, log, s, row);

		if (turn && isnan(begin))
			begin = edge;
		if (!turn && !isnan(begin)) {
			svg_line(c->file, begin, y, edge, y, chart_colour(log), 1.6, NULL);
			begin = NAN;
		}
	}
	if (!isnan(begin))
		svg_line(c->file, begin, y, end, y, chart_colour(log), 1.6, NULL);
}

/* ---- the panel ---- */

static void theta_ticks(const struct theta_panel *p)
{
	const unsigned every = 1 + p->count / THETA_TICKS;

	for (unsigned i = 0; i < p->count; i += every) {
		char text[32];

		snprintf(text, sizeof(text), "%g", p->thetas[i]);
		chart_tick_y(&p->chart, i, text);
	}
}

static void theta_run(const struct theta_panel *p, unsigned log)
{
	double begin = 0, before = 0, last = NAN;

	for (unsigned i = 0; i < theta_stretches(p->page, log); i++) {
		const double from = theta_begin(p->page, log, i), row = theta_row(p, theta_of(p->page, log, i));

		if (row != last || from > before) {
			if (!isnan(last))
				theta_stays(p, log, begin, before, last);
			if (from <= before)
				chart_segment(&p->chart, from, last, from, row, chart_colour(log), NULL);
			begin = from;
		}
		before = theta_end(p->page, log, i);
		last = row;
	}
	if (!isnan(last))
		theta_stays(p, log, begin, before, last);
}

static void theta_panel(struct panel_page *page, const struct theta_kind *kind)
{
	struct theta_panel p = {.page = page};
	unsigned rows = 0;
	bool any = false;

	for (unsigned l = 0; l < page->count; l++) {
		const enum site_algorithm algorithm = scout_log_algorithm(&page->logs[l]);

		p.shown[l] = algorithm == kind->algorithms[0] || algorithm == kind->algorithms[1];
		any = any || (p.shown[l] && page->logs[l].count > 0);
		rows += p.shown[l];
	}
	if (!any)
		return;
	p.chart = panel_begin(page, THETA_HEIGHT, rows);
	theta_find(&p);
	p.chart.y_low = -0.5;
	p.chart.y_high = p.count - 0.5;
	panel_frame_steps(&p.chart, page, kind->title, kind->unit, false);
	theta_ticks(&p);
	for (unsigned l = 0; l < page->count; l++)
		theta_find_stripes(&p, l);
	for (unsigned l = 0; l < page->count; l++)
		if (p.shown[l])
			theta_run(&p, l);
	panel_legend(page, &p.chart, p.shown);
}

void panel_thetas(struct panel_page *page)
{
	for (unsigned i = 0; i < THETA_KINDS; i++)
		theta_panel(page, &theta_kinds[i]);
}
