/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How those who come get what the others have: the common weights first, with all that goes by number, then what else
 * is alike at all sites.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/api.h"
#include "client/handle.h"
#include "client/scout/course.h"
#include "client/scout/finite.h"
#include "client/scout/site_saved.h"
#include "phub/base/crc.h"

/* ---- what is sent ---- */

/* What all sites have alike beside the weights; NULL: no more. */
static float *sync_array(const struct phub_site *s, unsigned stage)
{
	if (stage > OUTER_STATE_MAX)
		return NULL;
	if (s->config.algorithm == SITE_BSP)
		return stage == 1 ? s->site.velocity : NULL;
	return s->site.outer[stage - 1];
}

/* Of floats as they are in a sum: 0 has no sign there, a NaN may have other bits, or, as infinity, count as zero. */
static uint32_t sync_check(const struct phub_site *s, const float *values, size_t count)
{
	const bool zero = s->phub->settings.nan == PHUB_NAN_ZERO;
	uint32_t crc = 0;

	for (size_t i = 0; i < count; i++) {
		uint32_t bits = 0;

		if (zero && !finite_all(&values[i], 1))
			bits = 0;
		else if (isnan(values[i]))
			bits = 0x7fc00000;
		else if (values[i] != 0)
			memcpy(&bits, &values[i], sizeof(bits));
		crc = crc_32c(crc, &bits, sizeof(bits));
	}
	return crc;
}

static void sync_news(const struct phub_site *s)
{
	struct slots_news news = {.theta = s->site.config.theta,
		.window = s->window.began,
		.run = s->log.run,
		.since = s->site.since,
		.rate = s->site.rate};

	if (s->scouted)
		scout_save(&s->scout, news.scout);
	slots_put_news(s->slots_out, s->world, &news);
}

/* What tells options that all have alike from others. The box compares them, and says which differ, unless one on the
 * way is older. What theta has become is not among them, as all take that of `root`. */
static uint64_t sync_terms(const struct phub_site *s)
{
	const char *text = s->phub->settings.sites;

	return UINT64_C(1) << 32 | crc_32c(0, text, strlen(text));
}

int course_sync_begin(struct phub_site *s, struct slot *own)
{
	const bool sends = s->sync.root == s->rank, loaded = s->restored && s->sync.stage == 0;
	const uint32_t state = loaded ? site_saved_check(s) : 0;
	const float *array = s->sync.stage > 0 ? sync_array(s, s->sync.stage) : NULL;
	int rc = 0;

	for (unsigned t = 0; t < s->config.tensor_count && sends; t++) {
		float *out = course_at(s, s->scratch, t);

		if (array)
			memcpy(out, array + s->site.offset[t], s->tensors[t].elements * sizeof(*out));
		else
			site_common(&s->site, t, out);
	}
	if (sends)
		own->check = sync_check(s, s->scratch, s->site.elements);
	if (loaded)
		own->check = state;
	if (sends && s->sync.stage == 0)
		sync_news(s);
	own->terms = s->sync.stage == 0 ? sync_terms(s) : 0;
	for (unsigned t = 0; t < s->config.tensor_count && rc == 0; t++)
		rc = course_push(s, t, sends ? course_at(s, s->scratch, t) : s->zeros);
	return rc;
}

/* ---- what is agreed on ---- */

int course_sync_agrees(const struct phub_site *s)
{
	const uint64_t own = sync_terms(s);
	struct slot slot;
	bool begins;

	if (!s->sync.takes || s->sync.stage > 0)
		return 0;
	slots_get(s->slots_in, s->sync.root, &slot);
	begins = !(slot.flags & SLOT_HAS) || slot.flags & SLOT_LOADED;
	for (uint32_t rank = begins ? 0 : s->sync.root; rank < (begins ? s->world : s->sync.root + 1); rank++) {
		slots_get(s->slots_in, rank, &slot);
		if (slot.terms == 0 || slot.terms == own)
			continue;
		return err_set(api_last_error(), -EBADMSG,
			"%s: the site of rank %" PRIu32
			" has other options (outer optimizer, scout, weights and the like), and a box on the way is "
			"too old to say which; all sites of a job say the same",
			s->phub->session.who, rank);
	}
	return 0;
}

/* ---- what was saved ---- */

/* Of those who have loaded a state, the first, and how many they are, and others. False: of a job that runs already. */
struct sync_loaded {
	struct slot first;
	uint32_t rank;
	unsigned loaded, bare;
	uint32_t bare_rank; /* the first of these */
};

static bool sync_count(const struct phub_site *s, struct sync_loaded *all)
{
	*all = (struct sync_loaded){0};
	for (uint32_t rank = 0; rank < s->world; rank++) {
		struct slot slot;

		slots_get(s->slots_in, rank, &slot);
		if (slot.flags & SLOT_HAS && !(slot.flags & SLOT_LOADED))
			return false;
		if (slot.flags && !(slot.flags & SLOT_LOADED) && all->bare++ == 0)
			all->bare_rank = rank;
		if (!(slot.flags & SLOT_LOADED))
			continue;
		if (all->loaded++ > 0)
			continue;
		all->first = slot;
		all->rank = rank;
	}
	return all->loaded > 0;
}

static int sync_compare(const struct phub_site *s, const struct sync_loaded *all)
{
	struct err *e = api_last_error();

	for (uint32_t rank = all->rank; rank < s->world; rank++) {
		struct slot slot;

		slots_get(s->slots_in, rank, &slot);
		if (!(slot.flags & SLOT_LOADED))
			continue;
		if (slot.steps != all->first.steps)
			return err_set(e, -EBADMSG,
				"%s: rank %" PRIu32 " has loaded a state of step %" PRIu64 ", and rank %" PRIu32
				" one of step %" PRIu64 "; all load what they saved after the same step",
				s->phub->session.who, all->rank, all->first.steps, rank, slot.steps);
		if (slot.check != all->first.check || slot.exchanges != all->first.exchanges)
			return err_set(e, -EBADMSG,
				"%s: the states that ranks %" PRIu32 " and %" PRIu32 " have loaded are both of step "
				"%" PRIu64 ", and of two runs: what all sites have alike is not",
				s->phub->session.who, all->rank, rank, slot.steps);
	}
	return 0;
}

int course_sync_goes_on(struct phub_site *s)
{
	struct sync_loaded all;
	int rc;

	if (!s->sync.takes || s->sync.stage > 0 || !sync_count(s, &all))
		return 0;
	rc = sync_compare(s, &all);
	if (rc == 0 && s->within && all.bare > 0)
		rc = err_set(api_last_error(), -EBADMSG,
			"%s: %u of %u sites have loaded a state; with a site within all do, or none",
			s->phub->session.who, all.loaded, all.loaded + all.bare);
	if (rc < 0)
		return rc;
	if (s->restored) {
		s->sync.takes = s->restored = false;
	} else { /* it has no state, but the job goes on where they do */
		s->goes_on = true;
		s->log.since = all.first.steps;
	}
	s->log.bare = all.bare;
	s->log.bare_rank = all.bare_rank;
	s->sync.due = all.bare > 0;
	s->sync.root = all.rank;
	return 1;
}

/* ---- what is taken ---- */

/* Of who was at the last exchange: an offer of which the sender has the sum has been said, another is still to be. */
static void sync_settle(struct phub_site *s, const struct slot *root)
{
	for (unsigned t = 0; t < s->config.tensor_count && s->offered && root->exchanges > s->exchanges; t++)
		if (site_exchanges(&s->site, t))
			site_accept(&s->site, t, course_at(s, s->offers, t));
	if (root->exchanges > s->exchanges) {
		s->offered = s->pending = s->finishes = s->window.open = s->window.shows = false;
		window_said(s);
	}
	course_withdraw(s);
}

static void sync_take_weights(struct phub_site *s, const struct slot *root)
{
	const bool means = s->means && root->exchanges > s->exchanges; /* all have them of all tensors */

	if (!s->has || root->exchanges > s->exchanges)
		s->window.midway.kept = false; /* it was of weights, or an interval, that are no more */
	sync_settle(s, root);
	for (unsigned t = 0; t < s->config.tensor_count; t++) {
		const float *common = course_at(s, s->sums, t);

		if (!s->has || (means && !site_exchanges(&s->site, t)))
			memcpy(s->tensors[t].weights, common, s->tensors[t].elements * sizeof(*common));
		else if (site_exchanges(&s->site, t))
			site_rebase(&s->site, t, common);
	}
	s->means &= !means;
	if (!s->has)
		site_join(&s->site, root->steps);
	else if (s->restored) /* what it has not said it goes on to have to say */
		site_advance(&s->site, root->steps);
	if (s->restored)
		s->goes_on = false; /* the job ran already */
	if (!s->has || s->restored) {
		shadow_join(&s->shadow);
		s->pending = root->flags & SLOT_PENDING;
		s->window.open = root->flags & SLOT_WINDOW;
		s->window.strange = root->flags & SLOT_HAS; /* else all begin */
		s->window.infected = s->sync.root != s->rank && !finite_all(s->sums, s->site.elements);
		s->unsound.spread |= s->window.infected;
	}
	s->half |= s->has && root->exchanges > s->exchanges;
	s->exchanges = root->exchanges;
}

/* Theta, the window and the scout. False: they are none. */
static bool sync_take_news(struct phub_site *s, const struct slots_news *news)
{
	struct err e;

	if (site_set_theta(&s->site, news->theta) < 0)
		return false;
	s->window.began = news->window;
	if (!s->has || s->restored) { /* it exchanges when the others do */
		s->site.since = news->since;
		s->site.rate = news->rate;
	}
	s->log.run = news->run;
	return !s->scouted || scout_load(&s->scout, news->scout, sizeof(news->scout), &e) == 0;
}

static bool sync_has_common(const struct phub_site *s)
{
	for (unsigned t = 0; t < s->config.tensor_count; t++) {
		const float *sum = course_at(s, s->sums, t);
		float *own = course_at(s, s->scratch, t);

		site_common(&s->site, t, own);
		for (uint32_t i = 0; site_exchanges(&s->site, t) && i < s->tensors[t].elements; i++)
			if (sum[i] != own[i] && !isnan(own[i]))
				return false;
	}
	return true;
}

/* Is it of the interval in which the others still are? They may have gone on from what all have saved when it lost the
 * box. Then it has what they have, and makes the steps to the next exchange that they make. Of Gaia what is common
 * differs by roundings. */
static bool sync_stands(const struct phub_site *s, const struct slot *root, const struct slots_news *news)
{
	return s->restored && news->run == s->log.run && root->exchanges == s->exchanges &&
	       root->steps >= s->site.counts.steps && (s->config.algorithm == SITE_GAIA || sync_has_common(s));
}

static void sync_take(struct phub_site *s)
{
	struct slots_news news;
	struct slot root;

	slots_get(s->slots_in, s->sync.root, &root);
	if (!(root.flags & SLOT_HERE) || root.check != sync_check(s, s->sums, s->site.elements) ||
		(s->sync.stage == 0 && !slots_get_news(s->slots_in, s->world, &news))) {
		s->sync.damaged = true; /* it is lost, or was in the middle of this round */
		return;
	}
	if (s->sync.stage == 0) {
		if (sync_stands(s, &root, &news))
			return;
		sync_take_weights(s, &root);
		if (!sync_take_news(s, &news))
			s->sync.damaged = true;
		return;
	}
	memcpy(sync_array(s, s->sync.stage), s->sums, s->site.elements * sizeof(float));
}

/* The sender's bytes, and the mean of sites, where the log has that. */
static void sync_count_even(struct phub_site *s)
{
	const uint64_t bytes = s->site.elements * SITE_VALUE_BYTES, own = s->sync.root == s->rank ? bytes : 0;
	const double mean = (double)bytes / (s->present.count ? s->present.count : 1);

	s->evens = false;
	s->site.counts.bytes_paper += own;
	s->site.counts.values += own / SITE_VALUE_BYTES;
	if (s->windows == 0) {
		s->sent.exchanges += mean - (double)own;
	} else { /* theta is not to blame */
		s->window.told += own;
		s->log.bytes += mean;
	}
}

void course_sync_land(struct phub_site *s)
{
	if (s->sync.takes)
		sync_take(s);
	s->sync.stage++;
	if (sync_array(s, s->sync.stage))
		return;
	s->sync.due = false;
	course_count(s);
	if (s->evens)
		sync_count_even(s);
	if (s->pending && s->window.open) /* those who are there now have other hosts */
		window_begin(s);
	if (!s->sync.takes)
		return;
	s->sync.takes = false;
	s->hello = s->sync.damaged;
	s->half &= s->sync.damaged;
	s->restored &= s->sync.damaged;
	s->has = s->has || !s->sync.damaged;
}

/*
 * Does SLOT's site lead BEST's, so that others take its weights and state? Weights lead no weights, and a later
 * exchange leads an earlier one. At equal counts a site with all state leads a site in mid-sync. Between two whole
 * sites the later exchange of the site around leads: the result of that exchange is already in the weights within.
 */
static bool sync_leads(const struct slot *slot, const struct slot *best)
{
	if ((slot->flags ^ best->flags) & SLOT_HAS)
		return slot->flags & SLOT_HAS;
	if (slot->exchanges != best->exchanges)
		return slot->exchanges > best->exchanges;
	if ((slot->flags ^ best->flags) & SLOT_HALF)
		return best->flags & SLOT_HALF;
	return slot->around > best->around;
}

void course_summon(struct phub_site *s)
{
	struct slot best = {0};

	s->sync.due = true;
	s->sync.stage = 0;
	s->sync.damaged = false;
	for (uint32_t rank = 0; rank < s->world; rank++) {
		struct slot slot;

		slots_get(s->slots_in, rank, &slot);
		if (slot.flags && (!best.flags || sync_leads(&slot, &best))) {
			best = slot;
			s->sync.root = rank;
		}
	}
}

void course_sync_even(struct phub_site *s)
{
	for (unsigned i = s->present.count; i-- > 0;) {
		struct slot slot;

		slots_get(s->slots_in, s->present.ranks[i], &slot);
		if (!(slot.flags & SLOT_HAS))
			continue;
		s->sync = (struct site_sync){.due = true, .takes = true, .root = s->present.ranks[i]};
		s->evens = true;
	}
}

/* ---- where the box has the weights ---- */

int course_fetch_begin(struct phub_site *s)
{
	int rc = 0;

	for (unsigned t = 0; t < s->config.tensor_count && rc == 0; t++) {
		site_common(&s->site, t, course_at(s, s->sums, t));
		rc = phub_broadcast(s->phub, (int)t, course_at(s, s->sums, t), 0);
	}
	return rc;
}

/* What the box's optimizer knew of the exchanges between is lost, whatever the weights are. */
static void sync_tell_behind(struct phub_site *s, uint64_t exchanges)
{
	char has[100] =
		"has no checkpoint, and begins with rank 0's common weights and with an optimizer that knows nothing";

	if (exchanges > 0)
		snprintf(has, sizeof(has), "goes on after %" PRIu64 ", with the weights and the optimizer of then",
			exchanges);
	snprintf(s->behind, sizeof(s->behind),
		"%s: this site was in %" PRIu64 " exchanges, and the box %s: training is not what it would have been "
		"without the break. The box's options checkpoint_targets, and checkpoint_every 1, keep each exchange",
		s->phub->session.who, s->exchanges, has);
	s->tells_behind = true;
}

const char *course_warning(struct phub_site *s)
{
	const bool tells = s->tells_behind;

	s->tells_behind = false;
	return tells ? s->behind : NULL;
}

int course_fetch_land(struct phub_site *s)
{
	int64_t round = phub_round(s->phub, 0);
	uint64_t exchanges = round > 0 ? (uint64_t)round - 1 : 0;

	if (round < 0)
		return (int)round;
	if (exchanges > s->exchanges)
		s->pending = false;
	if (s->has && exchanges < s->exchanges)
		sync_tell_behind(s, exchanges);
	course_withdraw(s);
	for (unsigned t = 0; t < s->config.tensor_count; t++) {
		const float *common = course_at(s, s->sums, t);

		if (s->has)
			site_rebase(&s->site, t, common);
		else
			memcpy(s->tensors[t].weights, common, s->tensors[t].elements * sizeof(*common));
	}
	if (!s->has)
		site_join(&s->site, exchanges * (uint64_t)s->site.config.theta);
	shadow_join(&s->shadow);
	s->exchanges = exchanges;
	s->has = true;
	s->hello = false;
	return 0;
}
