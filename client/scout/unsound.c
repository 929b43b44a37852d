/* SPDX-License-Identifier: Apache-2.0 */
#include "client/scout/unsound.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/handle.h"
#include "client/scout/course.h"
#include "client/scout/finite.h"

enum { UNSOUND_DOUBLINGS_MAX = 20 };

int unsound_init(struct phub_site *s, struct err *e)
{
	s->unsound.told = calloc(s->world, sizeof(*s->unsound.told));
	return s->unsound.told ? 0 : err_set(e, -ENOMEM, "%s: no memory for %u sites", s->phub->session.who, s->world);
}

void unsound_fini(struct phub_site *s)
{
	free(s->unsound.told);
	s->unsound.told = NULL;
}

void unsound_begin(struct phub_site *s)
{
	s->unsound.own = 0;
	s->unsound.steps = s->site.since;
}

/* Where squares are known they say it already. */
void unsound_offer(struct phub_site *s, unsigned t, const float *offer)
{
	const bool known = s->scouted && s->site.config.share > 0;
	const bool sound = known ? isfinite(s->align.offered[t]) : finite_all(offer, s->tensors[t].elements);

	if (!sound && s->unsound.own == 0)
		s->unsound.own = t + 1;
}

/* ---- what is said of it ---- */

/* Of this exchange; at the caller's where the box has the weights. */
struct unsound_heard {
	uint32_t rank, tensor; /* 1 + the first of those that were not named, and 1 + its tensor; 0: none */
	unsigned more;         /* other such */
	bool others_sound;     /* a site beside this one has said numbers alone */
	bool any;              /* one has not, named or not; */
	bool back;             /* of the box: its weights are what is no number */
};

static void unsound_hear(struct phub_site *s, struct unsound_heard *heard)
{
	*heard = (struct unsound_heard){0};
	for (uint32_t rank = 0; rank < s->world; rank++) {
		struct slot slot;

		slots_get(s->slots_in, rank, &slot);
		heard->others_sound |= rank != s->rank && slot.flags & SLOT_HAS && slot.broken == 0;
		heard->any |= slot.broken > 0;
		if (slot.broken == 0 || s->unsound.spread || s->unsound.told[rank])
			continue;
		s->unsound.told[rank] = true;
		if (heard->rank > 0) {
			heard->more++;
			continue;
		}
		heard->rank = rank + 1;
		heard->tensor = slot.broken;
	}
}

static const char *unsound_advice(const struct phub_site *s, bool forlorn)
{
	if (forlorn)
		return "No site has numbers left that others could begin anew with, and training does not come out of "
		       "it: stop, begin again with weights that were saved before, and lower the rate, clip gradients "
		       "or look at the data";
	if (s->phub->settings.nan == PHUB_NAN_ZERO)
		return "It counts as zero (the job's option nan), the others go on without, and what is no number at "
		       "that site is set back; if this comes again look at its data, lower the rate or clip gradients";
	return "It is in all sites' weights now, and training does not come out of it: stop, begin again with weights "
	       "that were saved before, and lower the rate, clip gradients or look at that site's data; the job's "
	       "option nan=zero keeps it out of the others";
}

/* Weights that the box has are said without a rank, as nobody knows it; and so are all sites' that were named. */
static void unsound_tell(struct phub_site *s, const struct unsound_heard *heard, bool forlorn)
{
	struct unsound *u = &s->unsound;
	const uint64_t end = s->site.counts.steps, steps = u->steps;
	const char *name = heard->tensor > 0 && heard->tensor <= s->config.tensor_count
				   ? s->phub->keyring.keys[heard->tensor - 1].name
				   : "?";
	char who[64], when[64];

	if (heard->rank > 0)
		snprintf(who, sizeof(who), "rank %" PRIu32, heard->rank - 1);
	else
		snprintf(who, sizeof(who), "%s", forlorn ? "each site" : "another site");
	if (heard->more > 0)
		snprintf(who + strlen(who), sizeof(who) - strlen(who), " (and %u more)", heard->more);
	if (steps > 1 && end >= steps)
		snprintf(when, sizeof(when), "steps %" PRIu64 " to %" PRIu64, end - steps + 1, end);
	else
		snprintf(when, sizeof(when), "step %" PRIu64, end);
	snprintf(u->text, sizeof(u->text),
		"%s: %s has said what is no number, of tensor '%.100s', after %s: its weights, momentum or gradients "
		"are NaN or infinite. %s",
		s->phub->session.who, who, name, when, unsound_advice(s, forlorn));
	u->fresh = true;
	course_log_warning(s, heard->rank, name, forlorn || s->phub->settings.nan == PHUB_NAN_PASS, u->text);
}

/* ---- what becomes of it ---- */

static void unsound_mend(struct phub_site *s, bool others_sound)
{
	struct unsound *u = &s->unsound;

	if (site_mend(&s->site)) {
		u->own = 0;
		return;
	}
	if (!others_sound || s->at_box || s->exchanges < u->again)
		return;
	u->returns = true;
	u->again = s->exchanges +
		   (UINT64_C(2) << (u->returned < UNSOUND_DOUBLINGS_MAX ? u->returned : UNSOUND_DOUBLINGS_MAX));
	u->returned++;
}

static bool unsound_came_back(struct phub_site *s, uint32_t *tensor)
{
	for (unsigned t = 0; t < s->config.tensor_count; t++) {
		if (site_exchanges(&s->site, t) && !finite_all(course_at(s, s->sums, t), s->tensors[t].elements)) {
			*tensor = t + 1;
			return true;
		}
	}
	return false;
}

/* Where the box has the weights. */
static void unsound_hear_box(struct phub_site *s, struct unsound_heard *heard)
{
	struct unsound *u = &s->unsound;

	*heard = (struct unsound_heard){.any = u->own > 0};
	if (u->spread)
		return;
	if (u->own > 0) {
		heard->tensor = u->own;
		heard->rank = u->told[s->rank] ? 0 : s->rank + 1;
		u->told[s->rank] = true;
	}
	if (heard->rank == 0 && unsound_came_back(s, &heard->tensor))
		heard->any = heard->back = true;
}

/* Gaia may say numbers alone for a while where its weights are none. */
static bool unsound_is_mended(const struct phub_site *s)
{
	for (unsigned t = 0; t < s->config.tensor_count; t++)
		if ((s->tensors[t].trained || site_exchanges(&s->site, t)) &&
			!finite_all(s->tensors[t].weights, s->tensors[t].elements))
			return false;
	return true;
}

static void unsound_date(struct phub_site *s, bool broken)
{
	struct unsound *u = &s->unsound;

	if (broken && u->since == 0)
		u->since = s->site.counts.steps;
	else if (!broken && u->since > 0 && unsound_is_mended(s))
		u->since = 0;
}

void unsound_land(struct phub_site *s)
{
	const bool passes = s->phub->settings.nan == PHUB_NAN_PASS;
	struct unsound *u = &s->unsound;
	struct unsound_heard heard;
	bool forlorn;

	if (s->at_box)
		unsound_hear_box(s, &heard);
	else
		unsound_hear(s, &heard);
	if (!passes && u->own > 0)
		unsound_mend(s, heard.others_sound);
	forlorn = !passes && u->own > 0 && !s->at_box && !heard.others_sound;
	if (forlorn && heard.tensor == 0)
		heard.tensor = u->own;
	if (heard.rank > 0 || heard.back || (forlorn && !u->forlorn))
		unsound_tell(s, &heard, forlorn);
	u->forlorn |= forlorn;
	u->spread |= passes && heard.tensor > 0;
	unsound_date(s, passes ? heard.any : u->own > 0);
}

/* Not where models travel, in rounds of which each has one sender where nobody may come, nor where reports go. */
void unsound_due(struct phub_site *s)
{
	if (!s->unsound.returns || s->window.open)
		return;
	s->unsound.returns = false;
	s->unsound.own = 0;
	s->hello = true;
	s->has = false;
}

uint64_t unsound_since(const struct phub_site *s)
{
	const uint64_t within = s->within ? s->within->unsound.since : 0, own = s->unsound.since;

	return within > 0 && (own == 0 || within < own) ? within : own;
}

const char *unsound_text(struct phub_site *s)
{
	if (s->within && s->within->unsound.fresh)
		s = s->within;
	if (!s->unsound.fresh)
		return NULL;
	s->unsound.fresh = false;
	return s->unsound.text;
}
