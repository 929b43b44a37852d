/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was lost, and sent, over time.
 */
#include <math.h>

#include "phub/cli/scout_panel.h"
#include "phub/cli/svg.h"

enum { TIME_HEIGHT = 200 };

#define TIME_MEGABYTE 1e6
#define TIME_INK      "#666666" /* of what is of any run */

/* Those that have one of these fields. Returns how many. */
static unsigned time_shown(
	const struct panel_page *page, const char *const *fields, unsigned count, bool shown[ARGS_WORDS_MAX])
{
	unsigned rows = 0;

	for (unsigned l = 0; l < page->count; l++) {
		shown[l] = false;
		for (unsigned i = 0; i < count; i++)
			shown[l] = shown[l] || panel_log_has(&page->logs[l], fields[i]);
		rows += shown[l];
	}
	return rows;
}

/* ---- accuracy lost on other sites' data ---- */

/* In points; that of scout+ is not of accuracy. */
static double time_interval(const json_t *w, unsigned end)
{
	return isnan(scout_log_number(w, "gain")) ? 100 * scout_log_element(w, "interval", end) : NAN;
}

/* Of a run that looks at it; NaN: it has no AL, or does not say. */
static double time_sigma(const struct scout_log *log)
{
	return panel_log_has(log, "AL") ? 100 * scout_log_number(log->run, "sigma") : NAN;
}

static void time_accuracy_lost(const struct chart *c, const struct scout_log *log, const char *colour)
{
	const double sigma = time_sigma(log);
	double from = NAN, last = NAN;

	chart_segment(c, c->x_low, sigma, c->x_high, sigma, PANEL_GREY, "5 4");
	for (unsigned i = 0; i < log->count; i++) {
		const json_t *w = scout_log_window(log, i);
		double t = scout_log_number(w, "t"), loss = 100 * scout_log_number(w, "AL");

		chart_segment(c, from, last, t, loss, colour, NULL);
		chart_segment(c, t, time_interval(w, 0), t, time_interval(w, 1), colour, NULL);
		if (!isnan(loss))
			svg_dot(c->file, chart_at_x(c, t), chart_at_y(c, loss), 2.5, colour);
		from = t;
		last = loss;
	}
}

/* As they are drawn: bars. */
static void time_name_bars(const struct chart *c, unsigned row)
{
	const double x = c->x + c->width + 27, y = c->y + 6 + row * PANEL_ROW;

	svg_line(c->file, x, y - 5, x, y + 5, TIME_INK, 1.6, NULL);
	panel_label(c, row, 44, "interval of 95 %");
}

void panel_accuracy_lost(struct panel_page *page)
{
	static const char *const fields[] = {"AL"};
	bool shown[ARGS_WORDS_MAX], borne = false, bars = false;
	unsigned row = time_shown(page, fields, 1, shown);
	struct chart c;

	if (row == 0)
		return;
	c = panel_begin(page, TIME_HEIGHT, row + 3);
	chart_widen(&c, NAN, 0);
	for (unsigned l = 0; l < page->count; l++) {
		chart_widen(&c, NAN, time_sigma(&page->logs[l]));
		borne = borne || !isnan(time_sigma(&page->logs[l]));
		for (unsigned i = 0; i < page->logs[l].count; i++) {
			const json_t *w = scout_log_window(&page->logs[l], i);

			chart_widen(&c, NAN, 100 * scout_log_number(w, "AL"));
			for (unsigned end = 0; end < 2; end++)
				chart_widen(&c, NAN, time_interval(w, end));
			bars = bars || time_interval(w, 0) < time_interval(w, 1);
		}
	}
	chart_settle(&c);
	panel_frame_steps(&c, page, "Accuracy lost on other sites' data (AL)", "points of accuracy", true);
	for (unsigned l = 0; l < page->count; l++)
		time_accuracy_lost(&c, &page->logs[l], chart_colour(l));
	row = panel_legend(page, &c, shown) + 1;
	if (borne)
		panel_name(&c, row++, PANEL_GREY, "5 4", "sigma: what is borne");
	if (bars)
		time_name_bars(&c, row);
}

/* ---- losses ---- */

enum time_loss { TIME_TRAINED, TIME_TRIED, TIME_SCORED, TIME_LOSSES };

static const struct {
	const char *dash, *name;
} time_losses[TIME_LOSSES] = {
	[TIME_TRAINED] = {NULL, "in training, at sites"},
	[TIME_TRIED] = {"2 3", "averaged model, at sites"},
	[TIME_SCORED] = {"5 4", "averaged model, held out"},
};

/* What the mean model lost at sites as this window ended: the line of the next one has it. */
static double time_tried(const struct scout_log *log, unsigned window)
{
	const json_t *seen = json_object_get(scout_log_window(log, window + 1), "seen");

	if (scout_log_missing(log, window + 1) || !(scout_log_number(seen, "tried") > 0))
		return NAN;
	return scout_log_number(seen, "after");
}

static double time_loss(const struct scout_log *log, unsigned window, enum time_loss which)
{
	if (which == TIME_TRIED)
		return time_tried(log, window);
	if (which == TIME_TRAINED)
		return panel_number(log, window, "train_loss");
	return scout_log_number(json_object_get(scout_log_window(log, window), "score"), "loss");
}

/* Of the averaged model as the run ended, where that is not what the last window says. */
static double time_last_score(const struct panel_page *page, unsigned log)
{
	const struct scout_log *own = &page->logs[log];
	const bool said = own->count > 0 && panel_number(own, own->count - 1, "t") >= (double)page->totals[log].t &&
			  !isnan(time_loss(own, own->count - 1, TIME_SCORED));

	return own->end && !said ? page->totals[log].loss : NAN;
}

static bool time_has_loss(const struct panel_page *page, unsigned log, enum time_loss which)
{
	for (unsigned i = 0; i < page->logs[log].count; i++)
		if (!isnan(time_loss(&page->logs[log], i, which)))
			return true;
	return which == TIME_SCORED && !isnan(time_last_score(page, log));
}

/* From one value to the next; where there is none before, a dot. */
static void time_step(
	const struct chart *c, double from, double last, double t, double now, const char *colour, const char *dash)
{
	chart_segment(c, from, last, t, now, colour, dash);
	if (isnan(last) && !isnan(now))
		svg_dot(c->file, chart_at_x(c, t), chart_at_y(c, now), 2, colour);
}

static void time_draw_loss(const struct chart *c, const struct panel_page *page, unsigned log, enum time_loss which)
{
	const struct scout_log *own = &page->logs[log];
	double from = NAN, last = NAN;

	for (unsigned i = 0; i < own->count; i++) {
		const double t = panel_number(own, i, "t"), now = time_loss(own, i, which);

		time_step(c, from, last, t, now, chart_colour(log), time_losses[which].dash);
		from = t;
		last = now;
	}
	if (which == TIME_SCORED)
		time_step(c, from, last, (double)page->totals[log].t, time_last_score(page, log), chart_colour(log),
			time_losses[which].dash);
}

/* As they are drawn: from a dot on. */
static void time_name_loss(const struct chart *c, unsigned row, enum time_loss which)
{
	panel_name(c, row, TIME_INK, time_losses[which].dash, time_losses[which].name);
	svg_dot(c->file, c->x + c->width + 16, c->y + 6 + row * PANEL_ROW, 2, TIME_INK);
}

/* Is there any, of a run that has windows? Then also of those which have none. */
static bool time_has_losses(const struct panel_page *page)
{
	for (unsigned l = 0; l < page->count; l++)
		for (unsigned k = 0; page->logs[l].count > 0 && k < TIME_LOSSES; k++)
			if (time_has_loss(page, l, (enum time_loss)k))
				return true;
	return false;
}

void panel_losses(struct panel_page *page)
{
	bool shown[ARGS_WORDS_MAX], has[TIME_LOSSES] = {false};
	unsigned row = 0;
	struct chart c;

	for (unsigned l = 0; l < page->count; l++) {
		shown[l] = false;
		for (unsigned k = 0; k < TIME_LOSSES; k++) {
			const bool own = time_has_loss(page, l, (enum time_loss)k);

			shown[l] = shown[l] || own;
			has[k] = has[k] || own;
		}
		row += shown[l];
	}
	if (!time_has_losses(page))
		return;
	c = panel_begin(page, TIME_HEIGHT, row + 1 + TIME_LOSSES);
	for (unsigned l = 0; l < page->count; l++) {
		chart_widen(&c, NAN, time_last_score(page, l));
		for (unsigned i = 0; i < page->logs[l].count; i++)
			for (unsigned k = 0; k < TIME_LOSSES; k++)
				chart_widen(&c, NAN, time_loss(&page->logs[l], i, (enum time_loss)k));
	}
	chart_settle(&c);
	panel_frame_steps(&c, page, "Loss", "nats", true);
	for (unsigned l = 0; l < page->count; l++)
		for (unsigned k = 0; k < TIME_LOSSES; k++)
			time_draw_loss(&c, page, l, (enum time_loss)k);
	row = panel_legend(page, &c, shown) + 1;
	for (unsigned k = 0; k < TIME_LOSSES; k++)
		if (has[k])
			time_name_loss(&c, row++, (enum time_loss)k);
}

/* ---- bytes by class of links ---- */

static double time_or_none(double bytes)
{
	return isnan(bytes) ? 0 : bytes;
}

/* Of a window. */
static double time_sent(const struct scout_log *log, unsigned window, bool within)
{
	if (within)
		return panel_number(log, window, "bytes_within");
	return panel_number(log, window, "bytes") + time_or_none(panel_number(log, window, "bytes_travel"));
}

/* To the end of the run. */
static double time_sent_all(const struct scout_log_total *total, bool within)
{
	return within ? total->within : total->bytes + time_or_none(total->travel);
}

static void time_draw_sent(const struct chart *c, const struct panel_page *page, unsigned log, bool within)
{
	const char *dash = within ? "5 4" : NULL;
	double from = 0, sum = 0;

	for (unsigned i = 0; i < page->logs[log].count; i++) {
		const double t = panel_number(&page->logs[log], i, "t"), more = time_sent(&page->logs[log], i, within);

		chart_segment(c, from, sum / TIME_MEGABYTE, t, (sum + more) / TIME_MEGABYTE, chart_colour(log), dash);
		from = t;
		sum += time_or_none(more);
	}
	if ((double)page->totals[log].t > from && page->logs[log].count > 0)
		chart_segment(c, from, sum / TIME_MEGABYTE, (double)page->totals[log].t,
			time_sent_all(&page->totals[log], within) / TIME_MEGABYTE, chart_colour(log), dash);
}

void panel_links(struct panel_page *page)
{
	static const char *const fields[] = {"bytes", "bytes_within"};
	bool shown[ARGS_WORDS_MAX];
	unsigned row;
	struct chart c;

	if (time_shown(page, fields + 1, 1, shown) == 0)
		return;
	row = time_shown(page, fields, 2, shown);
	c = panel_begin(page, TIME_HEIGHT, row + 3);
	chart_widen(&c, NAN, 0);
	for (unsigned l = 0; l < page->count; l++)
		for (unsigned k = 0; shown[l] && k < 2; k++)
			chart_widen(&c, NAN, time_sent_all(&page->totals[l], k) / TIME_MEGABYTE);
	chart_settle(&c);
	panel_frame_steps(&c, page, "Bytes, by class of links", "MB a site", true);
	for (unsigned l = 0; l < page->count; l++)
		for (unsigned k = 0; k < 2; k++)
			time_draw_sent(&c, page, l, k);
	row = panel_legend(page, &c, shown) + 1;
	panel_name(&c, row, TIME_INK, NULL, "between these sites");
	panel_name(&c, row + 1, TIME_INK, "5 4", "within them");
}
