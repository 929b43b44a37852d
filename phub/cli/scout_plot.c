/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub scout plot: pictures of runs. The panels stand below each other, in one SVG; a PNG is made of that by
 * rsvg-convert.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "phub/cli/args.h"
#include "phub/cli/chart.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "phub/cli/scout.h"
#include "phub/cli/scout_log.h"
#include "phub/cli/svg.h"

enum {
	PLOT_WIDTH = 800,
	PLOT_LEFT = 110,
	PLOT_RIGHT = 190, /* the legend's */
	PLOT_PANEL = 200, /* a frame's height */
	PLOT_ABOVE = 44,
	PLOT_BELOW = 56,
	PLOT_ROW = 16,      /* of a heat map, and of a legend */
	PLOT_ROWS_MAX = 40, /* of a heat map */
	PLOT_COLUMNS_MAX = 2000,
	PLOT_STRIPE = 7, /* pixels */
	PLOT_STRIPES = 1 + (PLOT_WIDTH - PLOT_LEFT - PLOT_RIGHT) / PLOT_STRIPE,
	PLOT_EXIT_NO_PROGRAM = 127,
};

#define PLOT_MEGABYTE 1e6
#define PLOT_COOL     100.0 /* of r, below 1/K: as far as 80 % of skew goes at 10 sites */

struct plot {
	FILE *file;
	const struct scout_log *logs;
	unsigned count;
	double thetas[ARGS_REALS_MAX]; /* all there are, rising */
	unsigned theta_count;
	double y; /* where the next panel begins */
};

/* ---- what there is to be seen ---- */

static double plot_number(const struct scout_log *log, unsigned window, const char *field)
{
	return scout_log_number(scout_log_window(log, window), field);
}

static double plot_score(const struct scout_log *log, unsigned window)
{
	return scout_log_number(json_object_get(scout_log_window(log, window), "score"), "loss");
}

/* What the mean model lost at sites as this window ended: the line of the next one has it. */
static double plot_trial(const struct scout_log *log, unsigned window)
{
	const json_t *seen = json_object_get(scout_log_window(log, window + 1), "seen");

	if (scout_log_missing(log, window + 1) || !(scout_log_number(seen, "tried") > 0))
		return NAN;
	return scout_log_number(seen, "after");
}

/* "score" is its loss, "trial" that of plot_trial(). */
static bool plot_log_has(const struct scout_log *log, const char *field)
{
	const bool score = strcmp(field, "score") == 0, trial = strcmp(field, "trial") == 0;

	for (unsigned i = 0; i < log->count; i++)
		if (!isnan(score ? plot_score(log, i) : trial ? plot_trial(log, i) : plot_number(log, i, field)))
			return true;
	return false;
}

static bool plot_has(const struct plot *p, const char *field)
{
	bool has = false;

	for (unsigned l = 0; l < p->count && !has; l++)
		has = plot_log_has(&p->logs[l], field);
	return has;
}

static const char *const plot_losses_fields[] = {"train_loss", "trial", "score", NULL};

static bool plot_has_loss(const struct plot *p)
{
	bool has = false;

	for (unsigned i = 0; plot_losses_fields[i] && !has; i++)
		has = plot_has(p, plot_losses_fields[i]);
	return has;
}

/* How many tensors there is an r of; 0: of none. */
static unsigned plot_tensors(const struct scout_log *log)
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

static unsigned plot_rows(const struct scout_log *log)
{
	const unsigned tensors = plot_tensors(log);

	return tensors < PLOT_ROWS_MAX ? tensors : PLOT_ROWS_MAX;
}

static unsigned plot_accuracies(const struct plot *p)
{
	unsigned count = 0;

	for (unsigned l = 0; l < p->count; l++) {
		struct scout_log_total total = scout_log_total(&p->logs[l]);

		count += !isnan(total.accuracy) && total.bytes > 0;
	}
	return count;
}

static void plot_add_theta(struct plot *p, double theta)
{
	unsigned at = 0;

	while (at < p->theta_count && p->thetas[at] < theta)
		at++;
	if (isnan(theta) || p->theta_count == ARGS_REALS_MAX || (at < p->theta_count && p->thetas[at] == theta))
		return;
	memmove(p->thetas + at + 1, p->thetas + at, (p->theta_count - at) * sizeof(double));
	p->thetas[at] = theta;
	p->theta_count++;
}

static void plot_find_thetas(struct plot *p)
{
	for (unsigned l = 0; l < p->count; l++) {
		const struct scout_log *log = &p->logs[l];

		for (unsigned i = 0; log->count > 0 && i < scout_log_elements(log->run, "thetas"); i++)
			plot_add_theta(p, scout_log_element(log->run, "thetas", i));
		for (unsigned i = 0; i < log->count; i++)
			plot_add_theta(p, plot_number(log, i, "theta"));
	}
}

/* ---- panels ---- */

static struct chart plot_begin(struct plot *p, double height)
{
	struct chart c;

	chart_init(&c, p->file, PLOT_LEFT, p->y + PLOT_ABOVE, PLOT_WIDTH - PLOT_LEFT - PLOT_RIGHT, height);
	p->y += PLOT_ABOVE + height + PLOT_BELOW;
	return c;
}

static void plot_name(const struct chart *c, unsigned row, const char *colour, const char *dash, const char *name)
{
	double x = c->x + c->width + 16, y = c->y + 6 + row * PLOT_ROW;
	char text[32];

	/* By bytes: a name that is cut in the middle of a character is cut before it. */
	snprintf(text, sizeof(text), "%s", name);
	for (size_t at = strlen(text); at == sizeof(text) - 1 && at > 0 && (text[at - 1] & 0x80); at--)
		text[at - 1] = '\0';
	svg_line(c->file, x, y, x + 22, y, colour, 2, dash);
	svg_label(c->file, x + 28, y + 3.5, "small", "start", false, text);
}

/* Names of the logs that have one of these fields, as many as there is room for. NULL ends them. */
static unsigned plot_legend(const struct plot *p, const struct chart *c, unsigned reserved, const char *const *fields)
{
	unsigned most = (unsigned)(c->height / PLOT_ROW) - reserved, row = 0;

	for (unsigned l = 0; l < p->count && row < most; l++) {
		const char *const *field = fields;

		while (*field && !plot_log_has(&p->logs[l], *field))
			field++;
		if (*field)
			plot_name(c, row++, chart_colour(l), NULL, p->logs[l].name);
	}
	return row;
}

/* From one value to the next; where there is none before, a dot. */
static void plot_step(
	const struct chart *c, double from, double last, double t, double now, const char *colour, const char *dash)
{
	chart_segment(c, from, last, t, now, colour, dash);
	if (isnan(last) && !isnan(now))
		svg_dot(c->file, chart_at_x(c, t), chart_at_y(c, now), 2, colour);
}

static double plot_place(const struct plot *p, double theta)
{
	for (unsigned i = 0; i < p->theta_count; i++)
		if (p->thetas[i] == theta)
			return i;
	return NAN;
}

/* Where runs are, in the middle of each stripe of the chart; NaN: a run has ended. */
struct plot_stripes {
	double at[ARGS_WORDS_MAX][PLOT_STRIPES];
};

static void plot_find_stripes(const struct plot *p, const struct chart *c, struct plot_stripes *stripes)
{
	for (unsigned l = 0; l < p->count; l++) {
		const struct scout_log *log = &p->logs[l];
		unsigned window = 0;

		for (unsigned s = 0; s < PLOT_STRIPES; s++) {
			double t = c->x_low + (c->x_high - c->x_low) * (s + 0.5) * PLOT_STRIPE / c->width;

			while (window < log->count && plot_number(log, window, "t") < t)
				window++;
			stripes->at[l][s] =
				window < log->count ? plot_place(p, plot_number(log, window, "theta")) : NAN;
		}
	}
}

/* Runs at one theta have stripes by turns: each is where it is, and none hides another. */
static bool plot_turn(
	const struct plot *p, const struct plot_stripes *stripes, unsigned log, unsigned stripe, double at)
{
	unsigned all = 0, before = 0;

	for (unsigned l = 0; l < p->count; l++) {
		all += stripes->at[l][stripe] == at;
		before += l < log && stripes->at[l][stripe] == at;
	}
	return stripes->at[log][stripe] != at || stripe % all == before;
}

static void plot_theta_stays(const struct plot *p, const struct chart *c, const struct plot_stripes *stripes,
	unsigned log, double from, double to, double at)
{
	const double x = chart_at_x(c, from), end = chart_at_x(c, to), y = chart_at_y(c, at);
	unsigned first = (unsigned)fmax(0, (x - c->x) / PLOT_STRIPE);
	double begin = NAN;

	for (unsigned s = first; s < PLOT_STRIPES && c->x + s * PLOT_STRIPE < end; s++) {
		const double edge = fmax(x, c->x + s * PLOT_STRIPE);
		const bool turn = plot_turn(p, stripes, log, s, at);

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

static void plot_theta(struct plot *p)
{
	struct plot_stripes stripes;
	struct chart c = plot_begin(p, PLOT_PANEL);
	unsigned every = 1 + p->theta_count / 14;

	chart_widen(&c, 0, 0);
	for (unsigned l = 0; l < p->count; l++)
		for (unsigned i = 0; i < p->logs[l].count; i++)
			chart_widen(&c, plot_number(&p->logs[l], i, "t"), NAN);
	chart_settle(&c);
	c.y_low = -0.5;
	c.y_high = p->theta_count - 0.5;
	chart_frame(&c, "Theta", "step", "theta", false);
	for (unsigned i = 0; i < p->theta_count; i += every) {
		char text[32];

		snprintf(text, sizeof(text), "%g", p->thetas[i]);
		chart_tick_y(&c, i, text);
	}
	plot_find_stripes(p, &c, &stripes);
	for (unsigned l = 0; l < p->count; l++) {
		double from = 0, last = NAN;

		for (unsigned i = 0; i < p->logs[l].count; i++) {
			double t = plot_number(&p->logs[l], i, "t");
			double at = plot_place(p, plot_number(&p->logs[l], i, "theta"));

			if (last != at)
				chart_segment(&c, from, last, from, at, chart_colour(l), NULL);
			if (!isnan(at))
				plot_theta_stays(p, &c, &stripes, l, from, t, at);
			from = t;
			last = at;
		}
	}
	plot_legend(p, &c, 0, (const char *const[]){"theta", NULL});
}

/* In points; that of scout+ is not of accuracy. */
static double plot_interval(const json_t *w, unsigned end)
{
	return isnan(scout_log_number(w, "gain")) ? 100 * scout_log_element(w, "interval", end) : NAN;
}

/* Of a run that looks at it; NaN: it has no AL, or does not say. */
static double plot_sigma(const struct scout_log *log)
{
	return plot_log_has(log, "AL") ? 100 * scout_log_number(log->run, "sigma") : NAN;
}

static void plot_loss_of_accuracy(struct plot *p)
{
	struct chart c = plot_begin(p, PLOT_PANEL);
	bool borne = false;
	unsigned row;

	chart_widen(&c, 0, 0);
	for (unsigned l = 0; l < p->count; l++) {
		chart_widen(&c, NAN, plot_sigma(&p->logs[l]));
		borne = borne || !isnan(plot_sigma(&p->logs[l]));
		for (unsigned i = 0; i < p->logs[l].count; i++) {
			const json_t *w = scout_log_window(&p->logs[l], i);

			chart_widen(&c, scout_log_number(w, "t"), 100 * scout_log_number(w, "AL"));
			chart_widen(&c, NAN, plot_interval(w, 0));
			chart_widen(&c, NAN, plot_interval(w, 1));
		}
	}
	chart_settle(&c);
	chart_frame(&c, "Accuracy lost on other sites' data (AL)", "step", "points of accuracy", true);
	for (unsigned l = 0; l < p->count; l++) {
		double from = NAN, last = NAN, sigma = plot_sigma(&p->logs[l]);

		chart_segment(&c, c.x_low, sigma, c.x_high, sigma, "#888888", "5 4");

		for (unsigned i = 0; i < p->logs[l].count; i++) {
			const json_t *w = scout_log_window(&p->logs[l], i);
			double t = scout_log_number(w, "t"), loss = 100 * scout_log_number(w, "AL");

			chart_segment(&c, from, last, t, loss, chart_colour(l), NULL);
			chart_segment(&c, t, plot_interval(w, 0), t, plot_interval(w, 1), chart_colour(l), NULL);
			if (!isnan(loss))
				svg_dot(c.file, chart_at_x(&c, t), chart_at_y(&c, loss), 2.5, chart_colour(l));
			from = t;
			last = loss;
		}
	}
	row = plot_legend(p, &c, 1, (const char *const[]){"AL", NULL});
	if (borne)
		plot_name(&c, row, "#888888", "5 4", "sigma: what is borne");
}

static void plot_losses(struct plot *p)
{
	struct chart c = plot_begin(p, PLOT_PANEL);
	unsigned row;

	chart_widen(&c, 0, NAN);
	for (unsigned l = 0; l < p->count; l++) {
		for (unsigned i = 0; i < p->logs[l].count; i++) {
			chart_widen(&c, plot_number(&p->logs[l], i, "t"), plot_number(&p->logs[l], i, "train_loss"));
			chart_widen(&c, NAN, plot_score(&p->logs[l], i));
			chart_widen(&c, NAN, plot_trial(&p->logs[l], i));
		}
	}
	chart_settle(&c);
	chart_frame(&c, "Loss", "step", "nats", true);
	for (unsigned l = 0; l < p->count; l++) {
		double from = NAN, trained = NAN, scored = NAN, tried = NAN;

		for (unsigned i = 0; i < p->logs[l].count; i++) {
			double t = plot_number(&p->logs[l], i, "t"), now = plot_number(&p->logs[l], i, "train_loss"),
			       score = plot_score(&p->logs[l], i), trial = plot_trial(&p->logs[l], i);

			plot_step(&c, from, trained, t, now, chart_colour(l), NULL);
			plot_step(&c, from, scored, t, score, chart_colour(l), "5 4");
			plot_step(&c, from, tried, t, trial, chart_colour(l), "2 3");
			from = t;
			trained = now;
			scored = score;
			tried = trial;
		}
	}
	row = plot_legend(p, &c, 4, plot_losses_fields) + 1;
	if (plot_has(p, "train_loss"))
		plot_name(&c, row++, "#666666", NULL, "in training, at the sites");
	if (plot_has(p, "trial"))
		plot_name(&c, row++, "#666666", "2 3", "averaged model, there");
	if (plot_has(p, "score"))
		plot_name(&c, row, "#666666", "5 4", "averaged model, held out");
}

/* Sums over windows; where sites have others within. */
static double plot_spent(const struct scout_log *log, unsigned window, bool within)
{
	double travel = plot_number(log, window, "bytes_travel");

	if (within)
		return plot_number(log, window, "bytes_within") / PLOT_MEGABYTE;
	return (plot_number(log, window, "bytes") + (isnan(travel) ? 0 : travel)) / PLOT_MEGABYTE;
}

static void plot_spent_line(const struct chart *c, const struct plot *p, unsigned l, bool within)
{
	double from = 0, sum = 0;

	for (unsigned i = 0; i < p->logs[l].count; i++) {
		double t = plot_number(&p->logs[l], i, "t"), more = plot_spent(&p->logs[l], i, within);

		chart_segment(c, from, sum, t, sum + more, chart_colour(l), within ? "5 4" : NULL);
		from = t;
		sum += isnan(more) ? 0 : more;
	}
}

static void plot_links(struct plot *p)
{
	struct chart c = plot_begin(p, PLOT_PANEL);
	unsigned row;

	chart_widen(&c, 0, 0);
	for (unsigned l = 0; l < p->count; l++) {
		double sums[2] = {0, 0};

		for (unsigned i = 0; i < p->logs[l].count; i++) {
			for (unsigned k = 0; k < 2; k++)
				sums[k] += fmax(plot_spent(&p->logs[l], i, k), 0);
			chart_widen(&c, plot_number(&p->logs[l], i, "t"), fmax(sums[0], sums[1]));
		}
	}
	chart_settle(&c);
	chart_frame(&c, "Bytes, by class of links", "step", "MB a site", true);
	for (unsigned l = 0; l < p->count; l++) {
		plot_spent_line(&c, p, l, false);
		plot_spent_line(&c, p, l, true);
	}
	row = plot_legend(p, &c, 3, (const char *const[]){"bytes", "bytes_within", NULL}) + 1;
	plot_name(&c, row, "#666666", NULL, "between these sites");
	plot_name(&c, row + 1, "#666666", "5 4", "within them");
}

/* By its logarithm, from PLOT_COOL below 1/K, 0, to 1, 1: sites that are alike have 1/K, those with skewed data less.
 */
static double plot_warmth(double r, double sites)
{
	return r > 0 ? 1 + log(r) / log(PLOT_COOL * sites) : 0;
}

/* The scale beside a heat map, with 1/K marked. */
static void plot_scale(const struct chart *c, double sites)
{
	enum { STEPS = 40 };
	double x = c->x + c->width + 24, height = fmin(c->height, 140);
	char text[48], colour[8];

	for (unsigned i = 0; i < STEPS; i++) {
		chart_heat(1 - (i + 0.5) / STEPS, colour);
		svg_block(c->file, x, c->y + height * i / STEPS, 14, height / STEPS + 0.3, colour);
	}
	svg_label(c->file, x + 20, c->y + 8, "small", "start", false, "1: sites agree");
	if (sites > 1) {
		double y = c->y + height * (1 - plot_warmth(1 / sites, sites));

		snprintf(text, sizeof(text), "%.2g: by chance (1/K)", 1 / sites);
		svg_line(c->file, x - 3, y, x + 17, y, "#222222", 1, NULL);
		svg_label(c->file, x + 20, y + 3.5, "small", "start", false, text);
	}
	snprintf(text, sizeof(text), "%.2g: they cancel out", 1 / (PLOT_COOL * sites));
	svg_label(c->file, x + 20, c->y + height, "small", "start", false, text);
}

static void plot_heat_row(const struct plot *p, const struct chart *c, const struct scout_log *log, unsigned t)
{
	const char *name = json_string_value(json_array_get(json_object_get(log->run, "tensors"), t));
	const double sites = scout_log_number(log->run, "sites");
	double from = 0, y = c->y + t * PLOT_ROW;
	unsigned every = 1 + log->count / PLOT_COLUMNS_MAX;
	char text[20];

	snprintf(text, sizeof(text), "%s", name ? name : "");
	if (!name)
		snprintf(text, sizeof(text), "tensor %u", t);
	svg_label(p->file, c->x - 7, y + PLOT_ROW / 2.0 + 3.5, "small", "end", false, text);
	for (unsigned i = 0; i < log->count; i += every) {
		double r = scout_log_element(scout_log_window(log, i), "r", t), to = plot_number(log, i, "t");
		char colour[8] = "#dddddd";

		if (!isnan(r))
			chart_heat(plot_warmth(r, sites), colour);
		svg_block(p->file, chart_at_x(c, from), y, chart_at_x(c, to) - chart_at_x(c, from) + 0.3, PLOT_ROW - 1,
			colour);
		from = to;
	}
}

static void plot_heat(struct plot *p, const struct scout_log *log)
{
	const unsigned tensors = plot_tensors(log), rows = plot_rows(log);
	struct chart c = plot_begin(p, fmax(rows * PLOT_ROW, 60));
	char title[160], first[32] = "";

	if (rows < tensors)
		snprintf(first, sizeof(first), " (the first %u of %u)", rows, tensors);
	chart_widen(&c, 0, 0);
	chart_widen(&c, plot_number(log, log->count - 1, "t"), 1);
	chart_settle(&c);
	snprintf(title, sizeof(title), "Alignment r of what sites say, per tensor%s: %s", first, log->name);
	chart_frame(&c, title, "step", "", false);
	for (unsigned t = 0; t < rows; t++)
		plot_heat_row(p, &c, log, t);
	plot_scale(&c, scout_log_number(log->run, "sites"));
}

static double plot_sent(const struct scout_log_total *total)
{
	return total->bytes + (isnan(total->travel) ? 0 : total->travel);
}

/* From left to right along the front: as good as the best that sent no more. False: it is a point. */
static bool plot_front_line(const struct plot *p, const struct chart *c, const struct scout_log_total *totals)
{
	double x = NAN, y = NAN;
	bool drawn = false;

	for (;;) {
		int next = -1;

		for (unsigned l = 0; l < p->count; l++)
			if (scout_log_on_front(totals, p->count, l) && (isnan(x) || plot_sent(&totals[l]) > x) &&
				(next < 0 || plot_sent(&totals[l]) < plot_sent(&totals[next])))
				next = (int)l;
		if (next < 0)
			return drawn;
		drawn = !isnan(x);
		chart_segment(c, x, y, plot_sent(&totals[next]), y, "#888888", "5 4");
		chart_segment(c, plot_sent(&totals[next]), y, plot_sent(&totals[next]), 100 * totals[next].accuracy,
			"#888888", "5 4");
		x = plot_sent(&totals[next]);
		y = 100 * totals[next].accuracy;
	}
}

/* Where colours come again, other shapes. */
static void plot_mark(const struct chart *c, unsigned log, double x, double y)
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

static void plot_front(struct plot *p)
{
	struct scout_log_total totals[ARGS_WORDS_MAX];
	struct chart c = plot_begin(p, fmax(PLOT_PANEL, (p->count + 2) * PLOT_ROW));
	unsigned row = 0;
	bool line;

	c.x_log = true;
	c.x_unit = CHART_BYTES;
	for (unsigned l = 0; l < p->count; l++) {
		totals[l] = scout_log_total(&p->logs[l]);
		if (plot_sent(&totals[l]) > 0)
			chart_widen(&c, plot_sent(&totals[l]), 100 * totals[l].accuracy);
	}
	chart_settle(&c);
	chart_frame(&c, "Bytes against accuracy", "sent by a site in the run, models that travelled included",
		"accuracy, %", true);
	line = plot_front_line(p, &c, totals);
	for (unsigned l = 0; l < p->count; l++) {
		double x, y;

		if (isnan(totals[l].accuracy) || !(plot_sent(&totals[l]) > 0))
			continue;
		x = chart_at_x(&c, plot_sent(&totals[l]));
		y = chart_at_y(&c, 100 * totals[l].accuracy);
		plot_mark(&c, l, x, y);
		plot_mark(&c, l, c.x + c.width + 27, c.y + 6 + row * PLOT_ROW);
		svg_label(c.file, c.x + c.width + 44, c.y + 9.5 + row * PLOT_ROW, "small", "start", false,
			p->logs[l].name);
		row++;
	}
	if (line)
		plot_name(&c, row, "#888888", "5 4", "Pareto front of these");
}

/* ---- the picture ---- */

static double plot_height(const struct plot *p)
{
	double height = 0, panel = PLOT_ABOVE + PLOT_PANEL + PLOT_BELOW;

	height += (p->theta_count > 0 ? panel : 0) + (plot_has(p, "AL") ? panel : 0) + (plot_has_loss(p) ? panel : 0) +
		  (plot_has(p, "bytes_within") ? panel : 0);
	for (unsigned l = 0; l < p->count; l++) {
		const unsigned rows = plot_rows(&p->logs[l]);

		height += rows > 0 ? PLOT_ABOVE + PLOT_BELOW + fmax(rows * PLOT_ROW, 60) : 0;
	}
	if (plot_accuracies(p) > 1)
		height += PLOT_ABOVE + PLOT_BELOW + fmax(PLOT_PANEL, (p->count + 2) * PLOT_ROW);
	return height;
}

static int plot_draw(struct plot *p, const char *path, struct err *e)
{
	struct beside place;
	double height;

	plot_find_thetas(p);
	height = plot_height(p);
	if (height <= 0)
		return err_set(
			e, -ENODATA, "nothing to be drawn: no windows, and no two runs of which the accuracy is known");
	p->file = svg_open(path, PLOT_WIDTH, (unsigned)height, &place, e);
	if (!p->file)
		return e->code;
	if (p->theta_count > 0)
		plot_theta(p);
	if (plot_has(p, "AL"))
		plot_loss_of_accuracy(p);
	if (plot_has_loss(p))
		plot_losses(p);
	if (plot_has(p, "bytes_within"))
		plot_links(p);
	if (plot_accuracies(p) > 1)
		plot_front(p);
	for (unsigned l = 0; l < p->count; l++)
		if (plot_rows(&p->logs[l]) > 0)
			plot_heat(p, &p->logs[l]);
	return svg_close(p->file, &place, e);
}

/* Twice the pixels: 800 is little in print. */
static int plot_convert(const char *svg, const struct beside *png, struct err *e)
{
	const char *const argv[] = {"rsvg-convert", "--zoom", "2", "--output", png->part, svg, NULL};
	int status = 0;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid < 0)
		return err_set(e, -errno, "could not fork: %s", strerror(errno));
	if (pid == 0) {
		execvp(argv[0], (char *const *)(uintptr_t)argv);
		_exit(PLOT_EXIT_NO_PROGRAM);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFEXITED(status) && WEXITSTATUS(status) == PLOT_EXIT_NO_PROGRAM)
		return err_set(e, -ENOENT, "a PNG needs rsvg-convert: apt install librsvg2-bin, or write an .svg");
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		return err_set(e, -EIO, "rsvg-convert could not write %s; its own message says why", png->path);
	return 0;
}

static int plot_write(struct plot *p, const char *out, struct err *e)
{
	size_t length = strlen(out);
	char path[PATH_MAX + 16];
	struct beside place;
	int rc;

	if (length < 4 || strcmp(out + length - 4, ".png") != 0)
		return plot_draw(p, out, e);
	rc = beside_begin(out, &place, e);
	if (rc < 0)
		return rc;
	snprintf(path, sizeof(path), "%s.%d.svg", place.to, (int)getpid());
	rc = plot_draw(p, path, e);
	if (rc == 0)
		rc = plot_convert(path, &place, e);
	unlink(path);
	if (rc == 0)
		return beside_end(&place, true, e);
	beside_end(&place, false, NULL);
	return rc;
}

static bool plot_is_picture(const char *out)
{
	size_t length = strlen(out);

	return length > 4 && length < 4000 &&
	       (strcmp(out + length - 4, ".svg") == 0 || strcmp(out + length - 4, ".png") == 0);
}

int scout_plot_run(int argc, char **argv)
{
	const char *out = NULL;
	const struct args_option options[] = {
		{"out", "FILE", "the picture: FILE.svg, or FILE.png, which needs rsvg-convert (librsvg2-bin)",
			ARGS_TEXT, &out, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {.command = "phub scout plot",
		.words = "LOG...",
		.about = "A picture of runs, by their decision logs: theta, accuracy lost on other sites' data and "
			 "losses over\n"
			 "time; bytes by class of links, where sites have others within; of several runs, bytes "
			 "against accuracy with\nthe Pareto front; the alignment r of each tensor.\n"
			 "What the logs do not know is left out. - is standard input.\n",
		.examples = "  phub scout plot --out run.svg run.jsonl\n"
			    "  phub scout plot --out all.png bsp.jsonl hill.jsonl local-*.jsonl\n",
		.words_max = ARGS_WORDS_MAX,
		.options = options};
	struct scout_log logs[ARGS_WORDS_MAX];
	struct plot p = {.logs = logs};
	struct args_words words;
	struct err e = {0};
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc != ARGS_GO_ON)
		return rc;
	if (words.count == 0)
		return args_wrong(&usage, "which logs?");
	if (!out || !plot_is_picture(out))
		return args_wrong(&usage, "--out %s: a picture is FILE.svg or FILE.png", out ? out : "is missing");
	while (p.count < words.count && scout_log_open(words.at[p.count], &logs[p.count]))
		p.count++;
	rc = CLI_FAILED;
	if (p.count == words.count) {
		rc = plot_write(&p, out, &e) < 0 ? CLI_FAILED : CLI_DONE;
		if (rc == CLI_FAILED)
			output_error("%s", e.text);
	}
	for (unsigned i = 0; i < p.count; i++)
		scout_log_free(&logs[i]);
	return rc;
}
