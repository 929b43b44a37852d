/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds begin and land here; what is in those of a kind stands in course_sync.c and course_window.c.
 */
#include "client/scout/course.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/api.h"
#include "client/handle.h"
#include "client/scout/mean.h"
#include "client/scout/square.h"
#include "phub/base/clock.h"

enum { COURSE_PRIORITY_MAX = 65535 };

/* ---- memory ---- */

/* Numbers and pointers first, then floats. */
static int course_memory(struct phub_site *s, struct err *e)
{
	size_t all = s->site.elements, slots = course_slots(s), tensors = s->config.tensor_count, floats, head;
	const bool travels = course_travels(s);
	uint32_t largest = 0;

	for (unsigned t = 0; t < tensors; t++)
		largest = s->tensors[t].elements > largest ? s->tensors[t].elements : largest;
	floats = (travels ? 4 : 3) * all + largest + 2 * slots;
	head = s->world * (sizeof(*s->reports) + sizeof(*s->present.samples)) +
	       tensors * (sizeof(*s->model) + 4 * sizeof(double)) + s->world * sizeof(*s->present.ranks);
	s->block = all < PTRDIFF_MAX / 8 / sizeof(float) ? calloc(1, head + floats * sizeof(float)) : NULL;
	if (!s->block)
		return err_set(e, -ENOMEM, "%s: no memory for %zu floats of a site", s->phub->session.who, floats);
	s->reports = s->block;
	s->present.samples = (uint64_t *)(s->reports + s->world);
	s->model = (const float **)(s->present.samples + s->world);
	s->align.offered = (double *)(s->model + tensors);
	s->align.said = s->align.offered + tensors;
	s->align.heard = s->align.said + tensors;
	s->align.r = s->align.heard + tensors;
	s->present.ranks = (uint32_t *)(s->align.r + tensors);
	s->offers = (float *)(s->present.ranks + s->world);
	s->sums = s->offers + all;
	s->scratch = s->sums + all;
	s->zeros = s->scratch + all;
	s->slots_out = s->zeros + largest;
	s->slots_in = s->slots_out + slots;
	s->window.midway.weights = travels ? s->slots_in + slots : NULL;
	return 0;
}

int course_init(struct phub_site *s, struct err *e)
{
	int rc;

	s->config.tensors = s->tensors;
	if (s->scouted) {
		uint64_t bytes = 0;

		s->scout_config.plus.statistics = false;
		for (unsigned t = 0; t < s->config.tensor_count; t++) {
			bytes += (uint64_t)s->tensors[t].elements * SITE_VALUE_BYTES;
			s->scout_config.plus.statistics |= !s->tensors[t].trained;
		}
		if (s->scout_config.model_bytes == 0)
			s->scout_config.model_bytes = bytes;
		rc = scout_init(&s->scout, &s->scout_config, e);
		if (rc < 0)
			return rc;
		s->config.theta = scout_theta(&s->scout);
		s->window.levels[0] = s->window.levels[1] = NAN;
	}
	rc = site_init(&s->site, &s->config, e);
	if (rc == 0)
		rc = course_log_shadow(s, e);
	if (rc == 0)
		rc = course_memory(s, e);
	if (rc < 0) {
		shadow_fini(&s->shadow);
		site_fini(&s->site);
	}
	return rc;
}

void course_fini(struct phub_site *s)
{
	shadow_fini(&s->shadow);
	site_fini(&s->site);
	free(s->block);
	s->block = NULL;
}

uint32_t course_slots(const struct phub_site *s)
{
	return slots_floats(s->world, course_tells(s) ? s->config.tensor_count : 0);
}

bool course_tells(const struct phub_site *s)
{
	return s->scouted || mean_bytes(&s->site) > 0;
}

unsigned course_key_flags(const struct phub_site *s)
{
	bool sparse = s->config.algorithm == SITE_GAIA || s->config.algorithm == SITE_DGC;

	return sparse || (s->scouted && s->may_lose) ? PHUB_KEY_SPARSE : 0;
}

float *course_at(const struct phub_site *s, float *array, unsigned t)
{
	return array + s->site.offset[t];
}

bool course_plus(const struct phub_site *s)
{
	return s->scouted && s->scout.config.policy == SCOUT_PLUS;
}

bool course_travels(const struct phub_site *s)
{
	return s->scouted && s->scout.config.policy != SCOUT_PLUS && s->scout.config.policy != SCOUT_FIXED;
}

/* ---- who is there ---- */

/* Of those that have samples, or by these; where nobody has any all are alike. */
double course_share(const struct phub_site *s, unsigned place)
{
	const uint64_t mine = s->present.samples[place];
	unsigned with_any = 0;
	double total = 0; /* whatever they say that they have */

	for (unsigned i = 0; i < s->present.count; i++) {
		total += (double)s->present.samples[i];
		with_any += s->present.samples[i] > 0;
	}
	if (total == 0)
		return 1.0 / s->present.count;
	return s->weighted ? (double)mine / total : (mine > 0) / (double)with_any;
}

void course_count(struct phub_site *s)
{
	double share = 0;

	s->present.count = 0;
	for (uint32_t rank = 0; rank < s->world; rank++) {
		struct slot slot;

		slots_get(s->slots_in, rank, &slot);
		if (!(slot.flags & SLOT_HERE) || slot.flags & SLOT_HELLO)
			continue;
		s->present.ranks[s->present.count] = rank;
		s->present.samples[s->present.count++] = slot.samples;
	}
	for (unsigned i = 0; i < s->present.count; i++)
		share = s->present.ranks[i] == s->rank ? course_share(s, i) : share;
	if (s->present.count > 0)
		site_set_share(&s->site, share, s->present.count);
}

static bool course_heard_hello(const struct phub_site *s)
{
	struct slot slot;

	for (uint32_t rank = 0; rank < s->world; rank++) {
		slots_get(s->slots_in, rank, &slot);
		if (slot.flags & SLOT_HELLO)
			return true;
	}
	return false;
}

/* ---- rounds ---- */

int course_push(struct phub_site *s, unsigned t, const float *from)
{
	int priority = t < COURSE_PRIORITY_MAX ? (int)t : COURSE_PRIORITY_MAX;

	return phub_push_pull(s->phub, (int)t, from, course_at(s, s->sums, t), priority);
}

static int course_hello_begin(struct phub_site *s)
{
	int rc = 0;

	for (unsigned t = 0; t < s->config.tensor_count && rc == 0; t++)
		rc = course_push(s, t, s->zeros);
	return rc;
}

static void course_offer(struct phub_site *s)
{
	const double share = s->site.config.share;
	uint64_t before = s->site.counts.bytes_paper;

	s->align.offered_all = 0;
	s->window.shows = window_shows(s);
	unsound_begin(s);
	for (unsigned t = 0; t < s->config.tensor_count; t++) {
		float *offer = course_at(s, s->offers, t);

		if (!site_exchanges(&s->site, t)) {
			window_show(s, t);
			continue;
		}
		site_offer(&s->site, t, offer);
		s->align.offered[t] = s->scouted && share > 0 ? square_of(offer, s->tensors[t].elements) / share : 0;
		unsound_offer(s, t, offer);
		s->align.offered_all += s->tensors[t].trained ? s->align.offered[t] : 0;
	}
	s->offered = true;
	s->offered_bytes = s->site.counts.bytes_paper - before;
}

static int course_exchange_begin(struct phub_site *s)
{
	int rc = 0;

	if (s->window.open && !s->window.tried)
		window_try(s);
	if (!s->offered)
		course_offer(s);
	for (unsigned t = 0; t < s->config.tensor_count && rc == 0; t++)
		rc = course_push(s, t, course_at(s, s->offers, t));
	return rc;
}

/* Who takes part in this exchange by a step, as 1 + its rank; 0: nobody. */
static uint32_t course_lags(const struct phub_site *s)
{
	for (uint32_t rank = 0; rank < s->world && s->slots_key >= 0; rank++) {
		struct slot slot;

		slots_get(s->slots_in, rank, &slot);
		if (slot.flags & SLOT_HERE && !(slot.flags & (SLOT_HELLO | SLOT_FINISH)))
			return rank + 1;
	}
	return 0;
}

/* All have said all. */
static void course_finished(struct phub_site *s)
{
	for (unsigned t = 0; t < s->config.tensor_count && s->means; t++)
		if (!site_exchanges(&s->site, t))
			mean_tensor(&s->site, t, course_at(s, s->sums, t), slots_get_said(s->slots_in, s->world, t),
				s->tensors[t].weights);
	if (s->config.algorithm == SITE_GAIA)
		course_sync_even(s);
}

static void course_exchange_land(struct phub_site *s)
{
	const bool finishes = s->finishes;

	s->lags = finishes ? course_lags(s) : 0;
	if (finishes && s->lags == 0)
		site_extra(&s->site);
	for (unsigned t = 0; t < s->config.tensor_count; t++)
		if (site_exchanges(&s->site, t))
			site_accept(&s->site, t, course_at(s, s->sums, t));
	s->exchanges++;
	s->offered = s->pending = s->finishes = false;
	unsound_land(s);
	if (s->at_box)
		return;
	sent_hear(s);
	if (s->scouted)
		window_hear(s);
	if (s->window.shows || s->means)
		window_shown(s);
	if (s->window.shows)
		window_see(s);
	if (s->window.open)
		window_land(s);
	course_count(s);
	if (finishes && s->lags == 0)
		course_finished(s);
	s->means = false;
}

void course_withdraw(struct phub_site *s)
{
	if (!s->offered)
		return;
	for (unsigned t = 0; t < s->config.tensor_count; t++)
		if (site_exchanges(&s->site, t))
			site_withdraw(&s->site, t, course_at(s, s->offers, t));
	s->offered = false;
	s->window.told += s->offered_bytes; /* theta is not to blame for what is said twice */
}

enum course_kind course_next(const struct phub_site *s)
{
	if (s->at_box && s->hello)
		return COURSE_FETCH;
	if (s->hello)
		return COURSE_HELLO;
	if (s->sync.due)
		return COURSE_SYNC;
	if (!s->pending)
		return COURSE_REST;
	return s->window.open && s->window.travelled < s->window.travels ? COURSE_TRAVEL : COURSE_EXCHANGE;
}

static unsigned course_flags(const struct phub_site *s, enum course_kind kind)
{
	const bool has = s->has && !s->unsound.own && !(s->restored && kind == COURSE_HELLO);

	return SLOT_HERE | (kind == COURSE_HELLO ? SLOT_HELLO : 0) | (has ? SLOT_HAS : 0) |
	       (s->restored ? SLOT_LOADED : 0) | (s->pending && kind != COURSE_EXCHANGE ? SLOT_PENDING : 0) |
	       (s->pending && s->window.open && kind != COURSE_EXCHANGE ? SLOT_WINDOW : 0) |
	       (s->finishes && kind == COURSE_EXCHANGE ? SLOT_FINISH : 0) | (s->half ? SLOT_HALF : 0) |
	       course_log_flags(s);
}

static int course_begin(struct phub_site *s, enum course_kind kind)
{
	struct slot own = {.flags = course_flags(s, kind),
		.steps = s->site.counts.steps,
		.exchanges = s->exchanges,
		.samples = s->samples,
		.alike = s->within ? s->within->present.count : 1,
		.around = s->around ? s->around->exchanges : 0};
	int rc;

	memset(s->slots_out, 0, course_slots(s) * sizeof(float));
	s->pushed = kind == COURSE_EXCHANGE ? sent_wire(s) : s->pushed;
	if (kind == COURSE_FETCH)
		rc = course_fetch_begin(s);
	else if (kind == COURSE_HELLO)
		rc = course_hello_begin(s);
	else if (kind == COURSE_SYNC)
		rc = course_sync_begin(s, &own);
	else if (kind == COURSE_TRAVEL)
		rc = window_travel_begin(s);
	else
		rc = course_exchange_begin(s);
	if (rc < 0)
		return rc;
	s->flight = kind;
	if (s->slots_key < 0)
		return 0;
	own.said = kind == COURSE_EXCHANGE ? s->align.offered_all : 0;
	own.broken = kind == COURSE_EXCHANGE ? s->unsound.own : 0;
	if (kind == COURSE_EXCHANGE)
		sent_put(s, &own);
	slots_put(s->slots_out, s->rank, &own);
	for (unsigned t = 0; t < s->config.tensor_count && kind == COURSE_EXCHANGE && course_tells(s); t++)
		slots_put_said(s->slots_out, s->world, t, s->align.offered[t]);
	if (kind == COURSE_EXCHANGE && s->window.open)
		window_put(s);
	return phub_push_pull(s->phub, s->slots_key, s->slots_out, s->slots_in, 0);
}

static int course_land(struct phub_site *s)
{
	enum course_kind kind = s->flight;
	bool heard = s->slots_key >= 0 && course_heard_hello(s);

	s->flight = COURSE_REST;
	if (s->slots_key >= 0)
		course_log_turn(s);
	if (kind == COURSE_FETCH)
		return course_fetch_land(s);
	if (kind == COURSE_EXCHANGE)
		course_exchange_land(s);
	if (kind == COURSE_TRAVEL && !heard)
		window_travel_land(s);
	if (kind == COURSE_SYNC && !heard) {
		int rc = course_sync_agrees(s);

		if (rc == 0)
			rc = course_sync_goes_on(s);
		if (rc < 0)
			return rc;
		if (rc == 0)
			course_sync_land(s);
	}
	if (kind == COURSE_HELLO) {
		s->hello = false;
		s->sync.takes = true;
	}
	if (s->slots_key >= 0)
		census_take(s);
	if (heard)
		course_summon(s);
	return 0;
}

int course_hurt(struct phub_site *s, int rc)
{
	if (rc == -ETIMEDOUT)
		return rc;
	s->flight = COURSE_REST;
	if (rc == -ESTALE) {
		s->stale = true;
		return rc;
	}
	course_withdraw(s);
	s->ended = *api_last_error();
	s->ended.code = rc;
	return rc;
}

/* Until it rests, or until it rests but for exchanges and what goes before them. */
static int course_go(struct phub_site *s, bool settles, uint64_t deadline_ns)
{
	for (;;) {
		const bool flies = s->flight != COURSE_REST;
		const enum course_kind kind = flies ? s->flight : course_next(s);
		int rc;

		if (kind == COURSE_REST || (settles && kind != COURSE_HELLO && kind != COURSE_SYNC))
			return 0;
		if (flies)
			rc = phub_wait(
				s->phub, PHUB_ALL, clock_timeout_ms(s->phub->env.now(s->phub->env.ctx), deadline_ns));
		else
			rc = course_begin(s, kind);
		if (flies && rc == 0)
			rc = course_land(s);
		if (rc < 0)
			return course_hurt(s, rc);
	}
}

int course_run(struct phub_site *s, uint64_t deadline_ns)
{
	int rc = course_go(s, false, deadline_ns);

	if (rc == 0)
		window_keep(s);
	return rc;
}

int course_settle(struct phub_site *s, uint64_t deadline_ns)
{
	return course_go(s, true, deadline_ns);
}

/* ---- steps ---- */

void course_step(struct phub_site *s)
{
	if (!site_due(&s->site))
		return;
	s->pending = true;
	if (s->scouted && s->site.counts.steps - s->window.began >= scout_span(&s->scout))
		window_begin(s);
	unsound_due(s);
}

void course_finish(struct phub_site *s)
{
	const bool shows = mean_bytes(&s->site) > 0;

	if (s->config.algorithm == SITE_LOCAL ? s->site.since == 0 && !s->within
					      : s->config.algorithm == SITE_BSP && !shows)
		return;
	if (s->config.algorithm != SITE_LOCAL)
		site_flush(&s->site);
	s->pending = s->finishes = true;
	s->means = shows;
	unsound_due(s);
}

int course_start(struct phub_site *s)
{
	int64_t round = phub_round(s->phub, s->at_box ? 0 : s->slots_key);

	if (round < 0 && !s->at_box)
		return (int)round;
	s->sync.takes = s->sync.due = !s->at_box && round <= 1; /* of a job that begins all know that */
	s->hello = !s->sync.due;
	return 0;
}

void course_resumed(struct phub_site *s)
{
	s->stale = false;
	s->hello = true;
	s->sync.takes = s->sync.due = s->evens = false;
}
