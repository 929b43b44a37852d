/* SPDX-License-Identifier: Apache-2.0 */
#include "client/scout/trust.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TRUST_NORMAL     1.959964 /* so many deviations to each side hold 95 % */
#define TRUST_MEDIAN     1.4826   /* a normal deviation by the median distance */
#define TRUST_OUT_LEAST  0.2
#define TRUST_OUT_MANY   6.0
#define TRUST_OUT_AMONG  4u
#define TRUST_TEXT_BYTES 160u

/* ---- pairs ---- */

struct pair {
	double home, away;
	uint64_t samples;
	unsigned by; /* the place of who stands for it */
	bool exact;  /* of one model, on the same samples */
};

static bool trust_may_be(double accuracy)
{
	return accuracy >= 0 && accuracy <= 1;
}

/* Of the model of the site at `place`, or by the data where it was tried. False: it is not believed. */
static bool trust_pair(
	const struct scout_report *reports, unsigned sites, unsigned place, bool by_data, struct pair *pair)
{
	const struct scout_report *model = &reports[place], *home = model;

	if (by_data) {
		if (model->host == 0 || model->host > sites)
			return false;
		home = &reports[model->host - 1];
		if (home->home == 0 && home->samples == 0)
			return false;
	}
	*pair = (struct pair){home->home, model->away, model->samples, by_data ? model->host - 1 : place,
		by_data && model->alike && home->home == model->away};
	return model->samples > 0 && model->unfit == SCOUT_FIT && trust_may_be(pair->home) && trust_may_be(pair->away);
}

static unsigned trust_count(const struct scout_report *reports, unsigned sites, bool by_data)
{
	unsigned count = 0;
	struct pair pair;

	for (unsigned i = 0; i < sites; i++)
		count += trust_pair(reports, sites, i, by_data, &pair);
	return count;
}

/* The variance of a difference of two accuracies, each with a sample that is right and one that is not in addition. */
static double trust_variance(const struct pair *pair)
{
	const double n = (double)pair->samples, home = (pair->home * n + 1) / (n + 2),
		     away = (pair->away * n + 1) / (n + 2);

	return (home * (1 - home) + away * (1 - away)) / (n + 2);
}

/* Shell's sort: no memory, and few enough. */
static void trust_sort(double *values, unsigned count)
{
	for (unsigned gap = count / 2; gap > 0; gap /= 2)
		for (unsigned i = gap; i < count; i++) {
			const double value = values[i];
			unsigned k = i;

			for (; k >= gap && values[k - gap] > value; k -= gap)
				values[k] = values[k - gap];
			values[k] = value;
		}
}

double trust_mean(double *values, unsigned count, double trim)
{
	const unsigned out = (unsigned)(trim * count);
	double sum = 0;

	if (trim > 0)
		trust_sort(values, count);
	for (unsigned i = out; i < count - out; i++)
		sum += values[i];
	return sum / (count - 2 * out);
}

void trust_weigh(const struct scout_report *reports, unsigned sites, double trim, struct trust *trust)
{
	double losses[SCOUT_SITES_MAX], variance = 0, right = 0;
	unsigned by_data, by_model;
	struct pair pair;
	bool all;

	*trust = (struct trust){.loss = NAN, .radius = INFINITY};
	for (unsigned i = 0; i < sites; i++)
		trust->asked += reports[i].unfit != SCOUT_IDLE;
	by_data = trust_count(reports, sites, true);
	by_model = trust_count(reports, sites, false);
	trust->by_data = trim > 0 ? by_data >= by_model : by_data > by_model;
	all = by_data == trust->asked && by_model == trust->asked;
	for (unsigned i = 0; i < sites; i++) {
		if (!trust_pair(reports, sites, i, trust->by_data, &pair))
			continue;
		losses[trust->believed++] = pair.home - pair.away;
		right += pair.home + pair.away;
		if (all)
			trust_pair(reports, sites, i, true, &pair);
		variance += pair.exact ? 0 : trust_variance(&pair);
	}
	trust->blank = trust->believed > 0 && right == 0;
	if (trust->blank || trust->believed == 0 || 2 * trust->believed < trust->asked)
		return;
	trust->loss = trust_mean(losses, trust->believed, trim);
	trust->radius = TRUST_NORMAL * sqrt(variance) / trust->believed;
}

/* ---- what is amiss ---- */

static unsigned trust_called(const struct scout_report *reports, unsigned place)
{
	return reports[place].called ? reports[place].called - 1 : place;
}

/* All of it, or nothing. */
static void trust_append(char *text, size_t room, const char *more)
{
	const size_t length = strlen(text);

	if (length + strlen(more) < room)
		memcpy(text + length, more, strlen(more) + 1);
}

/* What is said of a site of which `is`, and of how many more. */
struct trust_words {
	bool (*is)(const struct scout_report *report);
	const char *before, *after, *others;
};

/* Of `most` sites at most; of more it is nothing that stands out. */
static void trust_tell_sites(const struct scout_report *reports, unsigned sites, const struct trust_words *words,
	unsigned most, char *text, size_t room)
{
	char more[TRUST_TEXT_BYTES], others[48] = "";
	unsigned count = 0, first = 0;

	for (unsigned i = sites; i-- > 0;)
		if (words->is(&reports[i])) {
			count++;
			first = i;
		}
	if (count == 0 || count > most)
		return;
	if (count > 1)
		snprintf(others, sizeof(others), ", %s %u more", words->others, count - 1);
	snprintf(more, sizeof(more), "; %s %u %s%s", words->before, trust_called(reports, first), words->after, others);
	trust_append(text, room, more);
}

static bool trust_is_broken(const struct scout_report *r)
{
	return r->unfit == SCOUT_BROKEN;
}

static const struct trust_words trust_broken = {
	trust_is_broken, "site", "has weights, gradients or losses that are no numbers", "and so have"};

static bool trust_is_unheard(const struct scout_report *r)
{
	return r->unfit == SCOUT_UNHEARD;
}

static const struct trust_words trust_unheard = {trust_is_unheard, "site", "has not reported", "nor have"};

/* Who says at home, who says away; NaN is said by nobody. */
static void trust_tell_liar(const struct scout_report *reports, unsigned sites, char *text, size_t room)
{
	char more[TRUST_TEXT_BYTES];

	for (unsigned i = 0; i < sites; i++) {
		const struct scout_report *r = &reports[i];
		const bool home = !isnan(r->home) && !trust_may_be(r->home);
		const bool away = r->samples > 0 && !isnan(r->away) && !trust_may_be(r->away);

		if (!home && !away)
			continue;
		snprintf(more, sizeof(more), "; site %u says an accuracy of %.3g",
			trust_called(reports, home || r->host == 0 || r->host > sites ? i : r->host - 1),
			home ? r->home : r->away);
		trust_append(text, room, more);
		return;
	}
}

static double trust_median(double *values, unsigned count)
{
	trust_sort(values, count);
	return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* By the median distance from the median; the values are sorted, and then distances. */
static double trust_deviation(double *values, unsigned count, double *median)
{
	*median = trust_median(values, count);
	for (unsigned i = 0; i < count; i++)
		values[i] = fabs(values[i] - *median);
	return TRUST_MEDIAN * trust_median(values, count);
}

/* How far the furthest that stands out is from the median; 0: none does. */
static double trust_find_out(
	const struct scout_report *reports, unsigned sites, bool by_data, struct pair *out, double *median)
{
	double values[SCOUT_SITES_MAX], deviation, furthest = 0;
	unsigned count = 0;
	struct pair pair;

	for (unsigned i = 0; i < sites; i++)
		if (trust_pair(reports, sites, i, by_data, &pair))
			values[count++] = pair.home - pair.away;
	if (count < TRUST_OUT_AMONG)
		return 0;
	deviation = trust_deviation(values, count, median);
	for (unsigned i = 0; i < sites; i++) {
		double far;

		if (!trust_pair(reports, sites, i, by_data, &pair))
			continue;
		far = fabs(pair.home - pair.away - *median);
		if (far <= TRUST_OUT_LEAST || far <= TRUST_OUT_MANY * deviation ||
			far <= TRUST_OUT_MANY * sqrt(trust_variance(&pair)) || far <= furthest)
			continue;
		furthest = far;
		*out = pair;
	}
	return furthest;
}

static bool trust_is_silent(const struct scout_report *r)
{
	return r->unfit == SCOUT_FIT && (isnan(r->home) || (r->home == 0 && r->samples == 0));
}

static const struct trust_words trust_silent = {
	trust_is_silent, "of what models get right at site", "nothing is known", "nor of"};

/* Where most say it: who does not. */
static void trust_tell_silent(const struct scout_report *reports, unsigned sites, char *text, size_t room)
{
	unsigned count = 0;

	for (unsigned i = 0; i < sites; i++)
		count += reports[i].unfit == SCOUT_FIT && !trust_is_silent(&reports[i]);
	trust_tell_sites(reports, sites, &trust_silent, count, text, room);
}

/* By data, where all hosts are known: then a pair is one site's word. */
static void trust_tell_out(const struct scout_report *reports, unsigned sites, char *text, size_t room)
{
	char more[TRUST_TEXT_BYTES];
	bool by_data = true;
	struct pair out = {0};
	double median = 0;

	for (unsigned i = 0; i < sites; i++)
		by_data = by_data && (reports[i].host > 0 || reports[i].samples == 0);
	if (trust_find_out(reports, sites, by_data, &out, &median) == 0)
		return;
	snprintf(more, sizeof(more), "; site %u stands out: %s lose%s %.2f, and the sites' median is %.2f",
		trust_called(reports, out.by), by_data ? "models there" : "its model", by_data ? "" : "s",
		out.home - out.away, median);
	trust_append(text, room, more);
}

/* The loss of the mean model where it was tried; NaN: it was not, or that is no loss. */
static double trust_trial(const struct scout_report *r)
{
	return r->unfit == SCOUT_FIT && r->tried > 0 && isfinite(r->after) ? r->after : NAN;
}

static bool trust_is_untried(const struct scout_report *r)
{
	return r->unfit == SCOUT_FIT && isnan(trust_trial(r));
}

static const struct trust_words trust_untried = {
	trust_is_untried, "of the mean model's loss at site", "nothing is known", "nor of"};

/* Where most have tried the mean model: who has not, and where it does quite otherwise than elsewhere. */
static void trust_tell_trials(const struct scout_report *reports, unsigned sites, char *text, size_t room)
{
	double values[SCOUT_SITES_MAX], median, deviation, furthest = 0;
	char more[TRUST_TEXT_BYTES];
	unsigned count = 0, out = 0;

	for (unsigned i = 0; i < sites; i++)
		if (!isnan(trust_trial(&reports[i])))
			values[count++] = trust_trial(&reports[i]);
	if (count == 0)
		return;
	trust_tell_sites(reports, sites, &trust_untried, count, text, room);
	if (count < TRUST_OUT_AMONG)
		return;
	deviation = trust_deviation(values, count, &median);
	for (unsigned i = 0; i < sites; i++) {
		const double far = fabs(trust_trial(&reports[i]) - median);

		if (!(far > TRUST_OUT_LEAST && far > TRUST_OUT_MANY * deviation && far > furthest))
			continue;
		furthest = far;
		out = i;
	}
	if (furthest == 0)
		return;
	snprintf(more, sizeof(more),
		"; site %u stands out: the mean model's loss is %.3g there, and the sites' median %.3g",
		trust_called(reports, out), reports[out].after, median);
	trust_append(text, room, more);
}

void trust_tell_untried(const struct scout_report *reports, unsigned sites, char *text, size_t room)
{
	unsigned untried = 0;

	for (unsigned i = 0; i < sites; i++) {
		if (!isnan(trust_trial(&reports[i])))
			return;
		untried += trust_is_untried(&reports[i]);
	}
	if (untried > 0)
		trust_append(text, room, "; what the mean model loses is known at no site");
}

void trust_tell(const struct scout_report *reports, unsigned sites, bool travels, char *text, size_t room)
{
	trust_tell_sites(reports, sites, &trust_broken, sites, text, room);
	trust_tell_sites(reports, sites, &trust_unheard, sites, text, room);
	if (!travels) {
		trust_tell_trials(reports, sites, text, room);
		return;
	}
	trust_tell_silent(reports, sites, text, room);
	trust_tell_liar(reports, sites, text, room);
	trust_tell_out(reports, sites, text, room);
}
