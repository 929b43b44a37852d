/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a window: models travel, are tried, reports come with the exchange, and the scout decides.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/handle.h"
#include "client/scout/course.h"
#include "client/scout/finite.h"
#include "client/scout/mean.h"
#include "client/scout/square.h"
#include "client/scout/within.h"
#include "phub/base/mix.h"

/* ---- where models go ---- */

/* Sites with data: among them models travel. */
static unsigned window_ring(const struct phub_site *s)
{
	unsigned count = 0;

	for (unsigned i = 0; i < s->present.count; i++)
		count += s->present.samples[i] > 0;
	return count;
}

/* The place in `present` of one of them. */
static unsigned window_place(const struct phub_site *s, unsigned turn)
{
	unsigned place = 0;

	while (s->present.samples[place] == 0 || turn-- > 0)
		place++;
	return place;
}

/* Where the model of one of them goes. Alone, a site is its own host. */
static unsigned window_host(const struct phub_site *s, unsigned turn)
{
	const unsigned ring = window_ring(s);

	return window_place(s, ring > 1 ? scout_host(&s->scout, turn, ring) : turn);
}

void window_keep(struct phub_site *s)
{
	struct midway *m = &s->window.midway;

	if (!s->scouted || !midway_due(m, &s->site, s->window.began + scout_span(&s->scout)))
		return;
	within_take(s);
	midway_keep(m, &s->site);
}

void window_begin(struct phub_site *s)
{
	struct window *w = &s->window;

	w->open = true;
	w->tried = w->hosts = false;
	w->travelled = 0;
	w->travels = window_ring(s) > 1 && course_travels(s) ? window_ring(s) : 0;
}

/* Where no one can be lost alone nobody else has to push anything. */
int window_travel_begin(struct phub_site *s)
{
	uint32_t rank = s->present.ranks[window_place(s, s->window.travelled)];
	int rc = 0;

	for (unsigned t = 0; t < s->config.tensor_count && rc == 0; t++) {
		float *own = midway_tensor(&s->window.midway, &s->site, t);
		float *sum = course_at(s, s->sums, t);

		if (s->may_lose)
			rc = course_push(s, t, rank == s->rank ? own : s->zeros);
		else
			rc = phub_broadcast(s->phub, (int)t, rank == s->rank ? own : sum, rank);
	}
	return rc;
}

void window_travel_land(struct phub_site *s)
{
	unsigned turn = s->window.travelled++;
	uint32_t rank = s->present.ranks[window_place(s, turn)];

	if (rank == s->rank)
		s->bytes_travel += s->site.elements * SITE_VALUE_BYTES;
	if (s->present.ranks[window_host(s, turn)] != s->rank)
		return;
	memcpy(s->scratch, s->sums, s->site.elements * sizeof(float));
	s->window.hosts = true;
	s->window.guest_rank = rank;
}

/* ---- what is tried ---- */

/* One for all who are tried here in this window; scout+ compares from window to window, so there it is always one. */
static uint64_t window_draw(const struct phub_site *s)
{
	const uint64_t window = course_plus(s) ? 0 : s->scout.window;

	return mix_64(s->scout.config.seed ^ mix_64(window ^ mix_64(s->rank)));
}

/* The model that is looked at next: `array`, all tensors', or NULL: this site's own. */
static void window_take(struct phub_site *s, float *array)
{
	for (unsigned t = 0; t < s->config.tensor_count; t++)
		s->model[t] = array ? course_at(s, array, t) : s->tensors[t].weights;
}

/* The mean model, where shown as this exchange has it. */
static void window_take_mean(struct phub_site *s)
{
	for (unsigned t = 0; t < s->config.tensor_count; t++)
		s->model[t] = mean_tensor(&s->site, t, course_at(s, s->sums, t),
			slots_get_said(s->slots_in, s->world, t), course_at(s, s->scratch, t));
}

/* Has it numbers alone? What is neither trained nor exchanged is the model's own affair: a mask may be infinite. */
static bool window_sound(const struct phub_site *s)
{
	for (unsigned t = 0; t < s->config.tensor_count; t++) {
		const bool counts = s->tensors[t].trained || site_exchanges(&s->site, t);

		if (counts && !finite_all(s->model[t], s->tensors[t].elements))
			return false;
	}
	return true;
}

/* How it does here; without samples where that is not known. */
static struct phub_score window_score(struct phub_site *s, uint64_t wanted)
{
	struct phub_score score = {.samples = wanted};

	if (s->samples == 0 || !s->evaluate || !window_sound(s) ||
		s->evaluate(s->context, s->model, window_draw(s), &score) != 0 ||
		!isfinite(score.loss)) /* whatever it gets right by chance */
		score.samples = 0;
	if (score.samples > 0 && score.samples < PHUB_SITE_SAMPLES_LEAST) {
		s->window.few = s->window.few > 0 ? s->window.few : score.samples;
		score.samples = 0;
	}
	return score;
}

const char *window_warning(struct phub_site *s)
{
	struct window *w = s->within && s->within->window.few > 0 ? &s->within->window : &s->window;

	if (w->few == 0 || w->few_told[0])
		return NULL;
	snprintf(w->few_told, sizeof(w->few_told),
		"%s: evaluate() has tried %" PRIu64 " samples, and of fewer than %u nothing leaves a site: what models "
		"lose here is not known. Let it try more",
		s->phub->session.who, w->few, PHUB_SITE_SAMPLES_LEAST);
	return w->few_told;
}

/* NaN: it is not known. */
static double window_accuracy(struct phub_site *s, float *array, uint64_t *samples)
{
	struct phub_score score;

	window_take(s, array);
	score = window_score(s, 0);
	*samples = score.samples;
	return score.samples > 0 ? (double)score.correct / (double)score.samples : NAN;
}

/* So many of a window that lasted longer than a period, or shorter, are as many in one. */
static double window_count(const struct phub_site *s, uint64_t count)
{
	uint64_t steps = s->site.counts.steps - s->window.began;

	return (double)count * (double)s->scout.config.period / (double)steps;
}

/* A window that lasted longer than a period, or shorter, counts for what it said in one. */
static uint64_t window_bytes(const struct phub_site *s, uint64_t bytes)
{
	uint64_t steps = s->site.counts.steps - s->window.began, period = s->scout.config.period;

	return steps == period ? bytes : (uint64_t)((double)bytes * (double)period / (double)steps);
}

/* How the site has trained, and whether its model is sound. */
static void window_trained(struct phub_site *s)
{
	struct window *w = &s->window;
	const bool enough = w->trained >= PHUB_SITE_SAMPLES_LEAST;

	w->said_batches = enough ? w->batches : 0;
	w->said_trained = enough ? w->trained : 0;
	w->home = (struct scout_report){
		.trained = w->said_trained, .train = enough ? w->batches / (double)w->trained : NAN};
	window_take(s, NULL);
	if (window_sound(s))
		w->infected = false;
	else
		w->broken |= !w->infected;
}

/* What scout+ asks for is known already: what the window before made of the mean model. */
static void window_tell(struct window *w)
{
	w->home.tried = isnan(w->levels[1]) ? 0 : w->tried_samples;
	w->home.before = w->levels[0];
	w->home.after = w->levels[1];
}

/* After a window, where there is time for that. */
static void window_level(struct phub_site *s)
{
	struct window *w = &s->window;
	struct phub_score score;

	if (s->scout.tries == 0)
		return;
	window_take_mean(s);
	score = window_score(s, s->scout.tries);
	if (score.correct > score.samples) /* it cannot be: nor need its loss */
		score.samples = 0;
	w->levels[1] = score.samples > 0 ? score.loss / (double)score.samples : NAN;
	w->tried_samples = score.samples;
}

/* Is the guest the model that was tried at home? */
static bool window_is_alike(const struct phub_site *s)
{
	for (unsigned t = 0; t < s->config.tensor_count; t++)
		if (memcmp(midway_tensor(&s->window.midway, &s->site, t), course_at(s, s->scratch, t),
			    s->tensors[t].elements * sizeof(float)) != 0)
			return false;
	return true;
}

/* All sites know alike when that is, and those that come. */
bool window_shows(const struct phub_site *s)
{
	return course_plus(s) && s->scout.tries > 0 && s->scout.now.exchanges == 0 && mean_bytes(&s->site) > 0;
}

void window_show(struct phub_site *s, unsigned t)
{
	float *out = course_at(s, s->offers, t);

	if (s->window.shows || s->means) {
		s->align.offered[t] = mean_show(&s->site, t, out);
		return;
	}
	if (s->align.offered[t] > 0)
		memset(out, 0, s->tensors[t].elements * sizeof(*out));
	s->align.offered[t] = 0;
}

/* The bytes of who has samples; where nobody has, of all. */
void window_shown(struct phub_site *s)
{
	const uint64_t bytes = mean_bytes(&s->site);
	const unsigned ring = window_ring(s);

	s->bytes_travel += s->site.config.share > 0 ? bytes : 0;
	s->window.shown += (double)bytes * (ring > 0 ? ring : s->present.count) / s->present.count;
}

void window_see(struct phub_site *s)
{
	s->window.shows = false;
	window_level(s);
}

void window_try(struct phub_site *s)
{
	struct window *w = &s->window;
	uint64_t samples;

	w->tried = true;
	w->guest = (struct scout_report){0};
	window_trained(s);
	if (course_plus(s)) {
		window_tell(w);
		return;
	}
	if (!course_travels(s))
		return;
	w->home.home = window_accuracy(s, w->midway.kept ? w->midway.weights : NULL, &samples);
	if (w->strange)
		w->home.home = NAN; /* nothing is said of what it would lose */
	if (window_ring(s) <= 1) {
		w->home.away = w->home.home;
		w->home.alike = true;
		w->home.samples = samples;
	}
	if (w->hosts) {
		w->guest.away = window_accuracy(s, s->scratch, &w->guest.samples);
		w->guest.alike = window_is_alike(s);
	}
}

/* ---- what is said of it ---- */

void window_put(struct phub_site *s)
{
	struct window *w = &s->window;

	w->broken |= !isfinite(s->align.offered_all) && !w->infected;
	w->home.unfit = w->broken ? SCOUT_BROKEN : w->strange ? SCOUT_STRANGE : SCOUT_FIT;
	w->home.bytes = s->site.counts.bytes_paper - w->told;
	w->home.within = within_bytes(s) - w->told_within;
	/* The one that brings this is not over yet. */
	w->home.exchanges = window_count(s, s->site.counts.exchanges + 1 - w->exchanges);
	w->home.exchanges_within = window_count(s, within_exchanges(s) - w->exchanges_within);
	slots_put_report(s->slots_out, s->rank, &w->home);
	if (w->hosts)
		slots_put_report(s->slots_out, w->guest_rank, &w->guest);
}

/* Shares are those that its offers were made with. */
void window_hear(struct phub_site *s)
{
	double said = 0, heard = 0, squares = 0;

	for (unsigned i = 0; i < s->present.count; i++) {
		const double share = course_share(s, i);
		struct slot slot;

		slots_get(s->slots_in, s->present.ranks[i], &slot);
		said += slot.said;
		squares += share * share * slot.alike; /* who says the same counts as one */
	}
	if (!isfinite(s->align.offered_all))
		s->window.broken |= !s->window.infected;
	else if (!isfinite(said))
		s->window.infected = true;
	for (unsigned t = 0; t < s->config.tensor_count; t++) {
		const double square =
			site_exchanges(&s->site, t) ? square_of(course_at(s, s->sums, t), s->tensors[t].elements) : 0;

		s->align.said[t] += site_exchanges(&s->site, t) ? slots_get_said(s->slots_in, s->world, t) : 0;
		s->align.heard[t] += square;
		heard += s->tensors[t].trained ? square : 0;
	}
	scout_hear(&s->scout, said, heard, squares, s->site.rate);
}

static void window_align(struct phub_site *s)
{
	for (unsigned t = 0; t < s->config.tensor_count; t++) {
		s->align.r[t] = plus_alignment(s->align.said[t], s->align.heard[t]);
		s->align.said[t] = s->align.heard[t] = 0;
	}
}

/* What the log has of bytes, and what a cost weighs. */
static void window_weigh(struct phub_site *s)
{
	s->window.sent = s->window.sent_within = 0;
	for (unsigned i = 0; i < s->present.count; i++) {
		struct scout_report *report = &s->reports[i];

		s->window.sent += (double)report->bytes / s->present.count;
		s->window.sent_within += (double)report->within / s->present.count;
		report->bytes = window_bytes(s, report->bytes);
		report->within = window_bytes(s, report->within);
	}
}

/* Of who was lost meanwhile what its host says is not enough: its model may not have come whole. */
static void window_read(struct phub_site *s)
{
	unsigned turn = 0;

	for (unsigned i = 0; i < s->present.count; i++) {
		struct scout_report *report = &s->reports[i];
		struct slot slot;

		slots_get(s->slots_in, s->present.ranks[i], &slot);
		slots_get_report(s->slots_in, s->present.ranks[i], report);
		if (!(slot.flags & SLOT_HERE))
			*report = (struct scout_report){.home = NAN};
		report->called = s->present.ranks[i] + 1;
		if (s->present.samples[i] == 0)
			report->unfit = SCOUT_IDLE;
		else
			report->host = window_host(s, turn++) + 1;
	}
}

void window_said(struct phub_site *s)
{
	struct window *w = &s->window;

	w->batches -= w->said_batches;
	w->trained -= w->said_trained;
	w->said_batches = 0;
	w->said_trained = 0;
}

void window_land(struct phub_site *s)
{
	struct window *w = &s->window;

	window_read(s);
	window_weigh(s);
	w->open = w->tried = w->strange = w->broken = w->midway.kept = false;
	window_said(s);
	w->told = s->site.counts.bytes_paper;
	w->told_within = within_bytes(s);
	w->exchanges = s->site.counts.exchanges;
	w->exchanges_within = within_exchanges(s);
	w->began = s->site.counts.steps;
	scout_observe(&s->scout, s->reports, s->present.count, &s->decision);
	s->windows++;
	window_align(s);
	course_log_decision(s, s->site.config.theta);
	site_set_theta(&s->site, s->decision.theta);
	w->shown = 0;
	w->levels[0] = w->levels[1];
	w->levels[1] = NAN;
	if (course_plus(s) && mean_bytes(&s->site) == 0)
		window_level(s);
}
