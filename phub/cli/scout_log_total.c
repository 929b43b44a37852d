/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of what decision logs say, and runs beside each other by these.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "phub/cli/scout_log.h"

/* ---- of one run ---- */

static double log_or_none(double value)
{
	return isnan(value) ? 0 : value;
}

/* Up to which step windows are summed; what came later its end has, where there is one. */
static double log_summed(const struct scout_log *log)
{
	return log->end && !isnan(log->since) ? log->since : INFINITY;
}

bool scout_log_knows_sent(const struct scout_log *log)
{
	const double to = log_summed(log), last = scout_log_number(log->end, "t");
	double t = 0;

	for (unsigned i = 0; i < log->count && t < to; i++) {
		if (scout_log_missing(log, i) > 0)
			return false;
		t = scout_log_number(scout_log_window(log, i), "t");
	}
	return !log->end || t >= fmin(to, last); /* who came in the middle of a window counts what all say of it */
}

/* NaN: neither windows nor the end have it. */
static double log_sum(const struct scout_log *log, const char *field)
{
	const double to = log_summed(log), end = isfinite(to) ? scout_log_number(log->end, field) : NAN;
	double sum = NAN;

	for (unsigned i = 0; i < log->count; i++) {
		const json_t *w = scout_log_window(log, i);
		const double one = scout_log_number(w, "t") <= to ? scout_log_number(w, field) : NAN;

		if (!isnan(one))
			sum = one + log_or_none(sum);
	}
	return isnan(end) ? sum : end + log_or_none(sum);
}

/* How often sites exchange in so many steps, in which each sends so many bytes. */
static double log_exchanges(const struct scout_log *log, const char *algorithm, double steps, double bytes)
{
	return strcmp(algorithm, "local") == 0 ? bytes / scout_log_number(log->run, "model_bytes") : steps;
}

/* Of what the whole run has sent in exchanges: by windows, and for what is in none by its bytes and steps. */
static double log_spent(const struct scout_log *log, const struct scout_log_total *total)
{
	const struct price price = scout_log_price(log);
	const char *inside = scout_log_text(json_object_get(log->run, "within"), "algorithm");
	double spent = 0, bytes = total->bytes, within = total->within, steps = (double)total->t;

	if (price.unit == PRICE_BYTES || !scout_log_knows_sent(log))
		return NAN;
	for (unsigned i = 0; i < log->count; i++) {
		const json_t *w = scout_log_window(log, i);

		spent += scout_log_spent(log, i) + log_or_none(scout_log_spent_travel(log, i));
		bytes -= log_or_none(scout_log_number(w, "bytes"));
		within -= log_or_none(scout_log_number(w, "bytes_within"));
		steps -= scout_log_steps(log, i);
	}
	if (bytes > 0)
		spent += price_of(price.unit, &price.link, bytes,
			log_exchanges(log, scout_log_text(log->run, "algorithm"), steps, bytes));
	if (within > 0)
		spent += price_of(price.unit, &price.within, within, log_exchanges(log, inside, steps, within));
	return spent;
}

/* Of a log that has no end, or one of before this was said, as far as its lines tell. */
static double log_sites(const struct scout_log *log)
{
	const size_t count = json_array_size(log->sites);
	const double sites = scout_log_number(log->end, "sites");

	return isnan(sites) && count > 0 ? scout_log_number(json_array_get(log->sites, count - 1), "sites") : sites;
}

/* What was sent, where it is known of the whole run. */
static void log_take_sent(const struct scout_log *log, struct scout_log_total *total)
{
	if (!scout_log_knows_sent(log)) {
		total->bytes = total->travel = total->within = NAN;
		return;
	}
	total->bytes = log->count || log->end ? log_sum(log, "bytes") : 0;
	total->travel = log->count || log->end ? log_sum(log, "bytes_travel") : 0;
	total->within = log_sum(log, "bytes_within");
}

struct scout_log_total scout_log_total(const struct scout_log *log)
{
	const json_t *last = log->count ? scout_log_window(log, log->count - 1) : NULL, *end = log->end;
	const json_t *score = end ? end : json_object_get(last, "score");
	struct scout_log_total total = {
		.wire = scout_log_number(end, "bytes_wire"), .seconds = scout_log_number(end, "seconds")};
	double t = scout_log_number(end ? end : last, "t"), bsp = scout_log_number(last, "bytes_bsp");

	total.t = isnan(t) ? 0 : (uint64_t)t;
	total.sites = log_sites(log);
	total.theta = scout_log_number(end, "theta");
	total.accuracy = scout_log_number(score, "accuracy");
	total.loss = scout_log_number(score, "loss");
	total.broken = scout_log_number(end, "broken_since");
	total.fixed = strcmp(scout_log_text(log->run, "policy"), "fixed") == 0;
	if (!(log->since == 0))
		total.wire = total.seconds = NAN;
	if (!end)
		total.theta = last ? scout_log_number(last, "next") : scout_log_number(log->run, "first");
	log_take_sent(log, &total);
	total.bsp = scout_log_number(log->run, json_object_get(log->run, "bsp_bytes") ? "bsp_bytes" : "model_bytes") *
		    (double)total.t;
	if (last && isfinite(bsp))
		total.bsp = bsp / scout_log_number(last, "t") * (double)total.t;
	total.spent = log_spent(log, &total);
	return total;
}

/* Without travel where the log does not know it: it has none. */
static double log_sent(const struct scout_log_total *total)
{
	return total->bytes + log_or_none(total->travel);
}

double scout_log_saving(const struct scout_log_total *total)
{
	double sent = log_sent(total);

	return sent > 0 ? total->bsp / sent : NAN;
}

/* Two places where one would say too little of what is near 1. */
static void log_times(char text[32], double times)
{
	snprintf(text, 32, "%.*f", times < 1.095 ? 2 : 1, times);
}

const char *scout_log_saving_text(double saving, char text[SCOUT_LOG_SAVING_BYTES])
{
	char times[32];

	log_times(times, saving < 1 ? 1 / saving : saving);
	if (strcmp(times, "1.00") == 0)
		snprintf(text, SCOUT_LOG_SAVING_BYTES, "as many bytes as BSP");
	else if (saving < 1)
		snprintf(text, SCOUT_LOG_SAVING_BYTES, "%s times as many bytes as BSP", times);
	else
		snprintf(text, SCOUT_LOG_SAVING_BYTES, "%s times fewer bytes than BSP", times);
	return text;
}

static bool log_on_front(const struct scout_log_total *totals, unsigned count, unsigned which, bool fixed)
{
	const struct scout_log_total *own = &totals[which];

	if (isnan(own->accuracy) || isnan(log_sent(own)) || own->fixed < fixed)
		return false;
	for (unsigned i = 0; i < count; i++) {
		double sent = log_sent(&totals[i]);

		if (totals[i].fixed >= fixed && sent <= log_sent(own) && totals[i].accuracy >= own->accuracy &&
			(sent < log_sent(own) || totals[i].accuracy > own->accuracy))
			return false;
	}
	return true;
}

bool scout_log_on_front(const struct scout_log_total *totals, unsigned count, unsigned which)
{
	return log_on_front(totals, count, which, false);
}

bool scout_log_on_oracle(const struct scout_log_total *totals, unsigned count, unsigned which)
{
	return log_on_front(totals, count, which, true);
}

void scout_log_differ(const struct scout_log *logs, const struct scout_log_total *totals, unsigned a, unsigned b,
	struct scout_log_unlike *unlike)
{
	const json_t *one = logs[a].run, *other = logs[b].run;

	unlike->steps = unlike->steps || totals[a].t != totals[b].t;
	unlike->sites = unlike->sites || scout_log_number(one, "sites") != scout_log_number(other, "sites");
	unlike->model = unlike->model || scout_log_number(one, "model_bytes") != scout_log_number(other, "model_bytes");
}

const char *scout_log_unlike_text(const struct scout_log_unlike *unlike, char text[SCOUT_LOG_UNLIKE_BYTES])
{
	snprintf(text, SCOUT_LOG_UNLIKE_BYTES, "%s%s%s%s%s", unlike->steps ? "steps" : "",
		unlike->steps && (unlike->sites || unlike->model) ? ", " : "", unlike->sites ? "sites" : "",
		unlike->sites && unlike->model ? ", " : "", unlike->model ? "the model's size" : "");
	return text;
}
