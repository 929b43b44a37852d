/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub scout explain: why theta changed, in words, from what the log says was seen.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "phub/cli/args.h"
#include "phub/cli/cli.h"
#include "phub/cli/output.h"
#include "phub/cli/scout.h"
#include "phub/cli/scout_log.h"

enum { EXPLAIN_SITE_BYTES = 320 };

#define EXPLAIN_STEP_MAX UINT64_C(999999999999999) /* as logs have them */

struct explain {
	struct scout_log log;
	struct scout_config config;
	bool costs; /* the log says what they weigh */
};

static double explain_number(const struct explain *x, unsigned window, const char *field)
{
	return scout_log_number(scout_log_window(&x->log, window), field);
}

/* Of accuracy, in points; "unknown". */
static const char *explain_points(double loss, char text[32])
{
	if (isnan(loss))
		snprintf(text, 32, "unknown");
	else
		snprintf(text, 32, "%.1f points", fabs(loss) < 0.0005 ? 0 : 100 * loss); /* not -0.0 */
	return text;
}

/* ---- one window ---- */

static void explain_what(const struct explain *x, unsigned i)
{
	const json_t *w = scout_log_window(&x->log, i);
	double from = scout_log_number(w, "t") - scout_log_steps(&x->log, i), theta = scout_log_number(w, "theta"),
	       next = scout_log_number(w, "next");

	printf("%s, step %.0f (steps %.0f to %.0f, at theta %g): it %s", x->log.name, scout_log_number(w, "t"),
		from + 1, scout_log_number(w, "t"), theta,
		*scout_log_text(w, "action") ? scout_log_text(w, "action") : "decides");
	if (next == theta)
		printf(", and theta is %g from here on too.\n", next);
	else
		printf(", to theta %g.\n", next);
	if (scout_log_missing(&x->log, i))
		printf("  gap     the lines of %" PRIu64 " window%s just before this one are missing in the log\n",
			scout_log_missing(&x->log, i), scout_log_missing(&x->log, i) == 1 ? "" : "s");
	printf("  why     %s\n", *scout_log_text(w, "reason") ? scout_log_text(w, "reason") : "the log does not say");
}

/* No model has travelled, as nothing follows of what it would lose where theta is fixed. */
static bool explain_stands(const struct explain *x, const json_t *w)
{
	return x->config.policy == SCOUT_FIXED && isnan(scout_log_number(w, "AL"));
}

static void explain_loss(const struct explain *x, const json_t *w)
{
	double loss = scout_log_number(w, "AL"), low = scout_log_element(w, "interval", 0),
	       high = scout_log_element(w, "interval", 1);
	char text[32];

	printf("accuracy lost on other sites' data: %s", explain_points(loss, text));
	if (low == high)
		printf(" (exactly: models are one)");
	else if (!isnan(low) && !isnan(high))
		printf(" (between %.1f and %.1f)", 100 * low, 100 * high);
	if (x->costs && !isnan(loss))
		printf(", %s the %.1f that are borne", loss > x->config.sigma ? "above" : "within",
			100 * x->config.sigma);
}

/* Where the window before was at the same theta, r is beside what it was there. */
static void explain_r(const struct explain *x, unsigned i)
{
	const double r = explain_number(x, i, "r_all");

	if (isnan(r))
		printf("how sites align is not known");
	else
		printf("sites align by r = %.4f", r);
	if (isnan(r) || i == 0 || explain_number(x, i - 1, "theta") != explain_number(x, i, "theta"))
		return;
	if (!isnan(explain_number(x, i - 1, "r_all")) && !scout_log_missing(&x->log, i))
		printf(" (in the window before by %.4f)", explain_number(x, i - 1, "r_all"));
}

/* What scout+ goes by. */
static void explain_pull(const struct explain *x, unsigned i)
{
	const json_t *w = scout_log_window(&x->log, i);
	const double worth = x->config.plus.worth, extra = scout_log_number(w, "extra");
	char text[2][32];
	double r = scout_log_number(w, "r_all"), pull = scout_log_number(w, "pull"), gain = scout_log_number(w, "gain"),
	       low = scout_log_element(w, "interval", 0), high = scout_log_element(w, "interval", 1);

	explain_r(x, i);
	if (!isnan(pull) && isnan(r))
		printf("; they pulled apart %.3g times as much as the noise of a batch when that was last measured",
			pull);
	else if (!isnan(pull) && scout_log_number(w, "sites") != 1)
		printf(", and pull apart %.3g times as much as the noise of a batch", pull);
	if (!isnan(gain))
		printf("; talking more would save a loss of %.4f", gain);
	if (!isnan(gain) && !isnan(low) && !isnan(high))
		printf(" (between %.4f and %.4f)", low, high);
	if (!isnan(gain) && !isnan(extra) && worth > 0)
		printf(", which is worth %s, and costs %s more",
			scout_log_spent_text(x->config.price.unit, gain * worth, text[0]),
			scout_log_spent_text(x->config.price.unit, extra, text[1]));
}

/* What trials of the mean model have said: they are of the window before this one. */
static void explain_trials(const json_t *w)
{
	const json_t *seen = json_object_get(w, "seen");
	const double before = scout_log_number(seen, "before"), after = scout_log_number(seen, "after");

	if (!(scout_log_number(seen, "tried") > 0) || isnan(after))
		return;
	printf("          the mean model, tried on %.0f samples a site, lost ", scout_log_number(seen, "tried"));
	if (!isnan(before))
		printf("%.4f as the window before this one began, and ", before);
	printf("%.4f as it ended\n", after);
}

static void explain_seen(const struct explain *x, unsigned i)
{
	const json_t *w = scout_log_window(&x->log, i);
	const double trained = scout_log_number(w, "train_loss"),
		     accuracy = scout_log_number(json_object_get(w, "score"), "accuracy");

	printf("  seen    ");
	if (x->config.policy == SCOUT_PLUS)
		explain_pull(x, i);
	else if (explain_stands(x, w))
		printf("no model travels where theta is fixed");
	else
		explain_loss(x, w);
	if (!explain_stands(x, w))
		printf("; %.0f of %.0f sites believed", scout_log_number(w, "believed"), scout_log_number(w, "sites"));
	if (scout_log_number(w, "n") > 0)
		printf(", %.0f samples", scout_log_number(w, "n"));
	puts("");
	if (!isnan(trained))
		printf("          training loss %.4f", trained);
	if (!isnan(accuracy))
		printf("%sthe averaged model has %.2f %% right", isnan(trained) ? "          " : "; ", 100 * accuracy);
	if (!isnan(trained) || !isnan(accuracy))
		puts("");
	explain_trials(w);
}

/* "local at theta 1, over rack": the sites within those of the log. False: there are none. */
static bool explain_within(const struct explain *x, char text[128])
{
	const json_t *within = json_object_get(x->log.run, "within");
	const char *link = scout_log_text(within, "link");

	if (within)
		snprintf(text, 128, "%.16s, at theta %g%s%.32s", scout_log_text(within, "algorithm"),
			scout_log_number(within, "theta"), *link ? ", over " : "", link);
	return within != NULL;
}

/* Since the start: who comes later counts anew. NaN: lines of windows are missing. */
static double explain_total(const struct explain *x, unsigned i)
{
	double total = 0;

	if (x->log.since == 0)
		return explain_number(x, i, "bytes_total");
	for (unsigned at = 0; at <= i; at++)
		total += scout_log_missing(&x->log, at) > 0
				 ? NAN
				 : explain_number(x, at, "bytes") + explain_number(x, at, "bytes_travel");
	return total;
}

static void explain_sent(const struct explain *x, unsigned i)
{
	const json_t *w = scout_log_window(&x->log, i);
	double total = explain_total(x, i), bsp = scout_log_number(w, "bytes_bsp"),
	       travel = scout_log_number(w, "bytes_travel");
	char sent[32], travelled[32], all[32], text[128], saving[SCOUT_LOG_SAVING_BYTES];

	printf("  sent    %s a site in exchanges", scout_log_bytes_text(scout_log_number(w, "bytes"), sent));
	if (!(travel == 0 && (x->config.policy == SCOUT_PLUS || x->config.policy == SCOUT_FIXED)))
		printf(", %s in %s that travelled", scout_log_bytes_text(travel, travelled),
			x->config.policy == SCOUT_PLUS ? "statistics" : "models");
	if (total > 0)
		printf("; %s since the start", scout_log_bytes_text(total, all));
	if (total > 0 && bsp > 0)
		printf(", %s", scout_log_saving_text(bsp / total, saving));
	puts("");
	if (!explain_within(x, text) || !(scout_log_number(w, "bytes_within") >= 0))
		return;
	total = 0;
	for (unsigned at = 0; at <= i; at++)
		total += explain_number(x, at, "bytes_within");
	printf("          %s a site in exchanges within, %s since the start: %s\n",
		scout_log_bytes_text(scout_log_number(w, "bytes_within"), sent), scout_log_bytes_text(total, all),
		text);
}

/* In the unit of costs, where that is not bytes: all of this window, which the lines above do not say. */
static void explain_spent(const struct explain *x, unsigned i, const char *label)
{
	double total = 0, spent = scout_log_spent(&x->log, i), travel = scout_log_spent_travel(&x->log, i);
	char text[32];

	if (isnan(spent))
		return;
	for (unsigned at = 0; at <= i; at++)
		total += fmax(scout_log_spent(&x->log, at), 0) + fmax(scout_log_spent_travel(&x->log, at), 0);
	printf("  %-7s %s a site in exchanges of this window", label,
		scout_log_spent_text(x->config.price.unit, spent, text));
	if (travel > 0)
		printf(", %s in what travelled", scout_log_spent_text(x->config.price.unit, travel, text));
	printf(", %s since the start\n", scout_log_spent_text(x->config.price.unit, total, text));
}

static void explain_cost(const struct explain *x, unsigned i)
{
	const json_t *w = scout_log_window(&x->log, i);
	double cost = scout_log_number(w, "cost"), loss = scout_log_number(w, "AL");
	const struct scout_config *c = &x->config;
	double within = scout_log_weighed(w, "bytes_within"), spent = scout_log_number(w, "spent");
	double bytes = scout_log_weighed(w, "bytes") + (isnan(within) ? 0 : within);
	double model = price_of(c->price.unit, &c->price.link, (double)c->model_bytes, 1);

	if (x->config.policy == SCOUT_PLUS || explain_stands(x, w)) { /* it weighs none */
		explain_spent(x, i, "cost");
		return;
	}
	if (isnan(cost)) {
		puts("  cost    unknown: too few reports could be believed");
		return;
	}
	printf("  cost    %.4g", cost);
	if (x->costs && !isnan(loss) && c->price.unit == PRICE_BYTES)
		printf(" = %g max(0, %.4f - %g) + %g of %.4g models a step", c->lambda_loss, loss, c->sigma,
			c->lambda_bytes, bytes / c->period / (double)c->model_bytes);
	else if (x->costs && !isnan(loss))
		printf(" = %g max(0, %.4f - %g) + %g of %.4g models' %s a step: %.4g of %.4g", c->lambda_loss, loss,
			c->sigma, c->lambda_bytes, spent / model, price_unit_name(c->price.unit), spent, model);
	puts("");
	explain_spent(x, i, "");
}

/* What is known of a theta by a window in which it was tried. */
static double explain_known(const struct explain *x, unsigned at)
{
	return explain_number(x, at, x->config.policy == SCOUT_PLUS ? "r_all" : "cost");
}

/* The window before `i`, or `i` itself, in which a theta was last tried, of those by which it is known what that is
 * like; where there is none of these, of all; -1: none. */
static int explain_tried(const struct explain *x, unsigned i, double theta)
{
	int last = -1;

	for (int at = (int)i; at >= 0; at--) {
		if (explain_number(x, (unsigned)at, "theta") != theta)
			continue;
		if (!isnan(explain_known(x, (unsigned)at)))
			return at;
		last = last < 0 ? at : last;
	}
	return last;
}

/* What it was like at a theta, in the window `at`. */
static void explain_like(const struct explain *x, unsigned at)
{
	const char *which = x->config.policy == SCOUT_PLUS ? "r" : "cost";
	char text[32];

	if (isnan(explain_known(x, at)))
		printf("%s not known, sent %s, at step %.0f", which,
			scout_log_bytes_text(explain_number(x, at, "bytes"), text), explain_number(x, at, "t"));
	else if (x->config.policy == SCOUT_PLUS)
		printf("r %.4f, sent %s, at step %.0f", explain_number(x, at, "r_all"),
			scout_log_bytes_text(explain_number(x, at, "bytes"), text), explain_number(x, at, "t"));
	else
		printf("cost %.4g, lost %s, at step %.0f", explain_number(x, at, "cost"),
			explain_points(explain_number(x, at, "AL"), text), explain_number(x, at, "t"));
}

/* Of the grid, from `g` on: the last of those that were not tried, and that it does not go to, in a row. */
static unsigned explain_untried(const struct explain *x, unsigned i, unsigned g)
{
	const double next = explain_number(x, i, "next");

	while (g + 1 < x->config.theta_count && x->config.thetas[g] != next && x->config.thetas[g + 1] != next &&
		explain_tried(x, i, x->config.thetas[g + 1]) < 0)
		g++;
	return g;
}

static void explain_others(const struct explain *x, unsigned i)
{
	const double was = explain_number(x, i, "theta"), next = explain_number(x, i, "next");

	for (unsigned g = 0; g < x->config.theta_count; g++) {
		const double theta = x->config.thetas[g];
		const int at = explain_tried(x, i, theta);
		const unsigned last = at < 0 ? explain_untried(x, i, g) : g;
		char text[64];

		snprintf(text, sizeof(text), last > g ? "%g to %g" : "%g", theta, x->config.thetas[last]);
		printf("  %s theta %-9s ", g ? "       " : "thetas ", text);
		g = last;
		if (at < 0)
			printf("not tried");
		else
			explain_like(x, (unsigned)at);
		if (theta == was && theta == next)
			puts("  <- stays here");
		else
			puts(theta == was ? "  <- was here" : theta == next ? "  <- goes here" : "");
	}
}

static void explain_alignment(const struct explain *x, unsigned i)
{
	const json_t *w = scout_log_window(&x->log, i);
	unsigned count = scout_log_elements(w, "r"), least = 0;
	double sum = 0, sites = scout_log_number(w, "sites"), all = scout_log_number(w, "r_all");
	const char *name;
	unsigned known = 0;

	for (unsigned t = 0; t < count; t++) {
		double r = scout_log_element(w, "r", t);

		if (isnan(r))
			continue;
		if (known == 0 || r < scout_log_element(w, "r", least))
			least = t;
		sum += r;
		known++;
	}
	if (known == 0)
		return;
	name = json_string_value(json_array_get(json_object_get(x->log.run, "tensors"), least));
	printf("  r       %.3f, %s %u tensors; least in %s: %.3f. 1 is sites that agree, %.3f (1/K) what they have by "
	       "chance\n",
		isnan(all) ? sum / known : all, isnan(all) ? "the mean of" : "over all of", known,
		name ? name : "a tensor without a name", scout_log_element(w, "r", least),
		1 / (sites >= 1 ? sites : scout_log_number(x->log.run, "sites")));
}

/* Of Gaia they are estimates. */
static void explain_shadow(const struct explain *x, unsigned i)
{
	const json_t *shadow = json_object_get(scout_log_window(&x->log, i), "shadow");
	const char *about = scout_log_algorithm(&x->log) == SITE_GAIA ? "about " : "";
	char text[32];

	for (unsigned s = 0; s < json_array_size(shadow); s++) {
		const json_t *one = json_array_get(shadow, s);

		printf("%s theta %g: %s%s", s ? ";" : "  shadow  would have sent in this window, a site, at",
			scout_log_number(one, "theta"), about,
			scout_log_bytes_text(scout_log_number(one, "bytes"), text));
	}
	if (json_array_size(shadow) > 0)
		puts("");
}

/* ---- who was there ---- */

/* "site 1: 2 of 3 remain; why" */
static const char *explain_site(const struct explain *x, const json_t *site, char text[EXPLAIN_SITE_BYTES])
{
	const double all = scout_log_number(x->log.run, "sites"), now = scout_log_number(site, "sites");

	snprintf(text, EXPLAIN_SITE_BYTES, "site %.0f; %.0f of %.0f are there: %.240s", scout_log_number(site, "rank"),
		now, all, scout_log_text(site, "reason"));
	return text;
}

/* In this window. */
static void explain_sites(const struct explain *x, unsigned i)
{
	const double to = explain_number(x, i, "t"), from = to - scout_log_steps(&x->log, i);
	char text[EXPLAIN_SITE_BYTES];

	for (unsigned k = 0; k < json_array_size(x->log.sites); k++) {
		const json_t *site = json_array_get(x->log.sites, k);
		const double t = scout_log_number(site, "t");

		if (t > from && t <= to)
			printf("  %-7s at step %.0f %s\n", scout_log_text(site, "action"), t,
				explain_site(x, site, text));
	}
}

static void explain_window(const struct explain *x, unsigned i)
{
	explain_what(x, i);
	explain_sites(x, i);
	explain_seen(x, i);
	explain_sent(x, i);
	explain_cost(x, i);
	if (!explain_stands(x, scout_log_window(&x->log, i)))
		explain_others(x, i);
	explain_alignment(x, i);
	explain_shadow(x, i);
}

/* ---- all changes ---- */

static bool explain_changes(const struct explain *x, unsigned i)
{
	return explain_number(x, i, "theta") != explain_number(x, i, "next");
}

static bool explain_acts(const struct explain *x, unsigned i, enum scout_action action)
{
	return strcmp(scout_log_text(scout_log_window(&x->log, i), "action"), scout_action_name(action)) == 0;
}

/* What is worth a line: changes, where too few reports came to change anything by, and the first window of those in
 * which it sees what no theta mends. */
static bool explain_tells(const struct explain *x, unsigned i)
{
	const bool cannot = explain_acts(x, i, SCOUT_CANNOT) && (i == 0 || !explain_acts(x, i - 1, SCOUT_CANNOT));

	return explain_changes(x, i) || cannot || explain_acts(x, i, SCOUT_FALLS_BACK);
}

static void explain_cell(struct output_table *table, double value)
{
	if (isnan(value))
		output_cell(table, "-");
	else
		output_cell(table, "%.4g", value);
}

static void explain_row(const struct explain *x, unsigned i, struct output_table *table)
{
	const bool pulls = x->config.policy == SCOUT_PLUS;
	const enum price_unit unit = x->config.price.unit;
	const json_t *w = scout_log_window(&x->log, i);
	char text[32];

	output_cell(table, "%.0f", scout_log_number(w, "t"));
	output_cell(table, "%.0f", scout_log_steps(&x->log, i));
	output_cell(table, "%g", scout_log_number(w, "theta"));
	output_cell(table, "%g", scout_log_number(w, "next"));
	output_cell(table, "%s", scout_log_text(w, "action"));
	explain_cell(table, pulls ? scout_log_number(w, "r_all") : 100 * scout_log_number(w, "AL"));
	explain_cell(table, scout_log_number(w, pulls ? "pull" : "cost"));
	output_cell(table, "%s",
		unit == PRICE_BYTES ? scout_log_bytes_text(scout_log_number(w, "bytes"), text)
				    : scout_log_spent_text(unit, scout_log_spent(&x->log, i), text));
	output_cell(table, "%s", scout_log_text(w, "reason"));
}

/* Those from `next` on that are of no later step than `t`. Returns the one after them. */
static unsigned explain_rows_of_sites(const struct explain *x, unsigned next, double t, struct output_table *table)
{
	for (; next < json_array_size(x->log.sites); next++) {
		const json_t *site = json_array_get(x->log.sites, next);
		char text[EXPLAIN_SITE_BYTES];

		if (scout_log_number(site, "t") > t)
			break;
		output_cell(table, "%.0f", scout_log_number(site, "t"));
		for (unsigned i = 0; i < 3; i++)
			output_cell(table, "-");
		output_cell(table, "%s", scout_log_text(site, "action"));
		for (unsigned i = 0; i < 3; i++)
			output_cell(table, "-");
		output_cell(table, "%s", explain_site(x, site, text));
	}
	return next;
}

/* What columns have; `sent` is that of what was sent. */
static void explain_legend(const struct explain *x, const char *sent)
{
	if (x->config.policy == SCOUT_PLUS)
		printf("r: how far what sites say agrees: 1 is all of it, %.3g (1/K) what they have by chance, less "
		       "that they\n"
		       "cancel out; pull: how far their data pull sites apart, in noises of a batch, as it was last "
		       "measured:\n"
		       "0 is not at all;\n",
			1 / scout_log_number(x->log.run, "sites"));
	else
		puts("AL: accuracy that models lost on other sites' data; cost: of that and of what was sent, see --at "
		     "STEP;");
	printf("%s: of a site, for exchanges in the window of so many steps that ends there (the mean of sites,\n"
	       "without what travelled).\n",
		sent);
}

static void explain_table(const struct explain *x)
{
	const bool pulls = x->config.policy == SCOUT_PLUS;
	struct output_table table = {
		.heads = {"step", "steps", "theta", "to", "action", pulls ? "r" : "AL points", pulls ? "pull" : "cost",
			x->config.price.unit == PRICE_BYTES ? "bytes" : "spent", "reason"},
		.align = "rrrrlrrrl"};
	unsigned site = 0;

	for (unsigned i = 0; i < x->log.count; i++) {
		if (!explain_tells(x, i))
			continue;
		site = explain_rows_of_sites(x, site, explain_number(x, i, "t"), &table);
		explain_row(x, i, &table);
	}
	explain_rows_of_sites(x, site, INFINITY, &table);
	output_table_print(&table);
	if (x->log.count > 0)
		explain_legend(x, table.heads[7]);
}

/* Has a window of scout+ held what talking more would save against what that costs? */
static bool explain_weighs(const struct explain *x)
{
	for (unsigned i = 0; i < x->log.count; i++)
		if (!isnan(explain_number(x, i, "gain")))
			return true;
	return false;
}

static bool explain_trains(const struct explain *x)
{
	for (unsigned i = 0; i < x->log.count; i++)
		if (!isnan(explain_number(x, i, "train_loss")))
			return true;
	return false;
}

/* How it ended, or that it has not. */
static void explain_end(const struct explain *x, const struct scout_log_total *total)
{
	const double all = scout_log_number(x->log.run, "sites");
	char text[64] = "", saving[SCOUT_LOG_SAVING_BYTES];

	if (total->sites < all)
		snprintf(text, sizeof(text), " with %.0f of %.0f sites", total->sites, all);
	printf("%s at step %" PRIu64 "%s, theta %g", x->log.end ? "It ended" : "The log ends early,", total->t, text,
		total->theta);
	if (!isnan(scout_log_saving(total)))
		printf(", with %s", scout_log_saving_text(scout_log_saving(total), saving));
	if (!isnan(total->spent))
		printf(", %s spent", scout_log_spent_text(x->config.price.unit, total->spent, text));
	if (!isnan(total->accuracy))
		printf(", %.2f %% right", 100 * total->accuracy);
	puts(". --at STEP says more of one window.");
	if (!x->log.end)
		puts("Take care: it has no last line: the run goes on, was broken off, or who wrote it was lost, and "
		     "no other site has gone on with it here.");
	if (x->config.policy == SCOUT_PLUS && x->config.plus.worth > 0 && !explain_weighs(x))
		printf("Take care: what a unit of loss is worth (%g) has decided nothing: in these %u windows no probe "
		       "has shown yet what talking more saves.\n",
			x->config.plus.worth, x->log.count);
	if (x->config.policy == SCOUT_PLUS && x->log.count > 0 && !explain_trains(x))
		puts("Take care: " SCOUT_LOG_UNTRAINED ".");
	if (!isnan(total->broken))
		printf("Take care: models are no numbers since step %.0f.\n", total->broken);
}

static void explain_summary(const struct explain *x)
{
	struct scout_log_total total = scout_log_total(&x->log);
	unsigned changes = 0, told = 0, few = 0, cannot = 0;
	char text[32], within[128];

	for (unsigned i = 0; i < x->log.count; i++) {
		told += explain_tells(x, i);
		changes += explain_changes(x, i);
		few += explain_acts(x, i, SCOUT_FALLS_BACK) && !explain_changes(x, i);
		cannot += explain_acts(x, i, SCOUT_CANNOT);
	}
	printf("%s: %s, policy %s, %.0f sites; %u window%s, theta changed in %u", x->log.name,
		scout_log_text(x->log.run, "algorithm"), scout_log_text(x->log.run, "policy"),
		scout_log_number(x->log.run, "sites"), x->log.count, x->log.count == 1 ? "" : "s", changes);
	if (few > 0)
		printf("; in %u more too few reports came, and it stayed", few);
	if (cannot > 0)
		printf("; in %u it said that no theta helps, and what does", cannot);
	puts(".");
	if (explain_within(x, within))
		printf("Sites are within these: %s%s%s.\n", within, isnan(total.within) ? "" : "; a site sent there ",
			isnan(total.within) ? "" : scout_log_bytes_text(total.within, text));
	if (told > 0 || json_array_size(x->log.sites) > 0)
		explain_table(x);
	explain_end(x, &total);
}

/* ---- which ---- */

/* The step that a window begins with. */
static double explain_first(const struct explain *x, unsigned i)
{
	return explain_number(x, i, "t") - scout_log_steps(&x->log, i) + 1;
}

/* The window that step `at` belongs to; -1, having said which steps have one: none. */
static int explain_find(const struct explain *x, uint64_t at)
{
	const double step = (double)at, last = explain_number(x, x->log.count - 1, "t");
	unsigned i = 0;
	char gap[96] = "";

	while (i < x->log.count && explain_number(x, i, "t") < step)
		i++;
	if (i < x->log.count && step >= explain_first(x, i))
		return (int)i;
	if (i > 0 && i < x->log.count)
		snprintf(gap, sizeof(gap), ", but of %.0f to %.0f, whose lines are missing",
			explain_number(x, i - 1, "t") + 1, explain_first(x, i) - 1);
	else if (i == x->log.count && step <= scout_log_number(x->log.end, "t"))
		snprintf(gap, sizeof(gap), ", as the run ended at step %.0f, before the window of step %.0f on did",
			scout_log_number(x->log.end, "t"), last + 1);
	output_error("%s: no window has step %" PRIu64 "; --at takes a step of %.0f to %.0f%s", x->log.path, at,
		explain_first(x, 0), last, gap);
	return -1;
}

static json_t *explain_tried_json(const struct explain *x, unsigned at)
{
	const json_t *w = scout_log_window(&x->log, at);

	return json_pack("{s:O, s:O, s:O?, s:O?, s:O?}", "theta", json_object_get(w, "theta"), "t",
		json_object_get(w, "t"), "cost", json_object_get(w, "cost"), "AL", json_object_get(w, "AL"), "r_all",
		json_object_get(w, "r_all"));
}

/* Lines of who was there, as the log has them, as explain_rows_of_sites(). */
static unsigned explain_json_sites(const struct explain *x, unsigned next, double t, bool *good)
{
	for (; next < json_array_size(x->log.sites); next++) {
		const json_t *site = json_array_get(x->log.sites, next);
		json_t *line;

		if (scout_log_number(site, "t") > t)
			break;
		line = json_deep_copy(site);
		if (line)
			json_object_set_new(line, "log", output_name(x->log.path));
		*good = output_json(line) && *good;
	}
	return next;
}

static bool explain_json(const struct explain *x, unsigned i)
{
	json_t *line = json_deep_copy(scout_log_window(&x->log, i)), *tried = json_array();

	for (unsigned g = 0; tried && g < x->config.theta_count; g++) {
		int at = explain_tried(x, i, x->config.thetas[g]);

		if (at >= 0)
			json_array_append_new(tried, explain_tried_json(x, (unsigned)at));
	}
	if (line && tried) {
		json_object_set_new(line, "log", output_name(x->log.path));
		json_object_set_new(line, "missing", json_integer((json_int_t)x->log.missing));
		json_object_set_new(line, "missing_before", json_integer((json_int_t)scout_log_missing(&x->log, i)));
		json_object_set(line, "tried", tried);
	}
	json_decref(tried);
	return output_json(line);
}

/* All that the table has, in its order. */
static bool explain_json_all(const struct explain *x)
{
	unsigned site = 0;
	bool good = true;

	for (unsigned i = 0; i < x->log.count; i++) {
		if (!explain_tells(x, i))
			continue;
		site = explain_json_sites(x, site, explain_number(x, i, "t"), &good);
		good = explain_json(x, i) && good;
	}
	explain_json_sites(x, site, INFINITY, &good);
	return good;
}

static int explain_print(struct explain *x, bool one, uint64_t at, bool json)
{
	int window = 0;
	bool good = true;

	if (x->log.count == 0 && (one || json_array_size(x->log.sites) == 0)) {
		output_error("%s: no decision in it: the run had no scout (--policy makes one), or no window has ended "
			     "yet; phub scout compare tells what it sent",
			x->log.path);
		return CLI_FAILED;
	}
	if (one)
		window = explain_find(x, at);
	if (window < 0)
		return CLI_FAILED;
	if (!json && one)
		explain_window(x, (unsigned)window);
	else if (!json)
		explain_summary(x);
	else if (one)
		good = explain_json(x, (unsigned)window);
	else
		good = explain_json_all(x);
	return good ? CLI_DONE : CLI_FAILED;
}

int scout_explain_run(int argc, char **argv)
{
	uint64_t at = UINT64_MAX;
	bool json = false;
	const struct args_option options[] = {
		{"at", "STEP", "all that is known of the window that this step belongs to", ARGS_NUMBER, &at, 0,
			EXPLAIN_STEP_MAX, NULL},
		{"json", NULL, "a line of JSON for each decision, and change of sites, that it speaks of", ARGS_FLAG,
			&json, 0, 0, NULL},
		{.name = NULL},
	};
	const struct args_usage usage = {.command = "phub scout explain",
		.words = "LOG",
		.about = "Why theta changed, from the decision log of a run: all changes, and sites that were lost,\n"
			 "left or came; or with --at one window: what was seen, what was sent, what each theta has "
			 "cost\n"
			 "when it was last tried. - is standard input.\n",
		.examples = "  phub scout explain run.jsonl --at 1500\n",
		.words_max = 1,
		.options = options};
	struct args_words words;
	struct err e = {0};
	struct explain x = {0};
	int rc = args_parse(&usage, argc, argv, &words);

	if (rc != ARGS_GO_ON)
		return rc;
	if (words.count == 0)
		return args_wrong(&usage, "which log?");
	if (!scout_log_open(words.at[0], &x.log))
		return CLI_FAILED;
	x.costs = !isnan(scout_log_number(x.log.run, "sigma"));
	if (scout_log_config(&x.log, &x.config, &e) < 0) {
		output_error("%s", e.text);
		rc = CLI_FAILED;
	} else {
		rc = explain_print(&x, at != UINT64_MAX, at, json);
	}
	scout_log_free(&x.log);
	return rc;
}
