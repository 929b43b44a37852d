/* SPDX-License-Identifier: Apache-2.0 */
#include "client/scout/census.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/api.h"
#include "client/handle.h"
#include "client/scout/course.h"
#include "client/scout/record.h"
#include "phub/base/clock.h"

int census_begin(struct phub_site *s, bool all)
{
	s->census.at = calloc(s->world, sizeof(*s->census.at));
	if (!s->census.at)
		return -ENOMEM;
	for (uint32_t rank = 0; rank < s->world; rank++) {
		struct slot slot;

		slots_get(s->slots_in, rank, &slot);
		s->census.at[rank].there = all || slot.flags & SLOT_HERE;
	}
	return 0;
}

void census_fini(struct phub_site *s)
{
	free(s->census.at);
	s->census.at = NULL;
}

/* ---- lines ---- */

static void census_tell_came(struct phub_site *s, uint32_t rank, unsigned sites)
{
	const struct record_site line = {.t = s->site.counts.steps,
		.rank = rank,
		.action = "came",
		.sites = sites,
		.reason = "it has come, and goes on from the others' weights"};

	course_log_site(s, &line);
}

/* False: the box may yet say why. */
static bool census_tell_gone(struct phub_site *s, uint32_t rank, bool waits)
{
	struct census_site *site = &s->census.at[rank];
	char why[SESSION_WHY_BYTES], text[SESSION_WHY_BYTES + 32];
	struct record_site line = {
		.t = site->steps, .rank = rank, .action = "lost", .sites = site->remaining, .reason = text};
	const enum api_fate fate = api_take_fate(s->phub, rank, why);

	if (fate == API_STAYED && waits)
		return false;
	if (fate == API_LEFT) {
		line.action = "left";
		line.reason = "it has left the job by itself";
	} else if (*why) {
		snprintf(text, sizeof(text), "the box has lost it: %s", why);
	} else {
		line.reason = "it takes part no more, and the box does not say why";
	}
	site->waits = 0;
	course_log_site(s, &line);
	return true;
}

/* ---- rounds ---- */

/* A process that begins, and has made no step, is in the place of one that is there no more; but not where all come
 * back to a box that was lost as they began, and it has missed nothing. */
static bool census_is_new(const struct phub_site *s, const struct slot *slot)
{
	struct slot own;

	slots_get(s->slots_in, s->rank, &own);
	if (own.flags & SLOT_HELLO && slot->exchanges == s->exchanges)
		return false;
	return slot->flags & SLOT_HELLO && (slot->steps == 0 || slot->flags & SLOT_LOADED);
}

static unsigned census_count(const struct phub_site *s)
{
	unsigned count = 0;

	for (uint32_t rank = 0; rank < s->world; rank++)
		count += s->census.at[rank].there;
	return count;
}

/* Who is gone, all of them, before anything is said of how many remain. */
static void census_look(struct phub_site *s)
{
	unsigned remaining;

	for (uint32_t rank = 0; rank < s->world; rank++) {
		struct census_site *site = &s->census.at[rank];
		struct slot slot;

		slots_get(s->slots_in, rank, &slot);
		if (!site->there || (slot.flags & SLOT_HERE && !census_is_new(s, &slot)))
			continue;
		*site = (struct census_site){.waits = CENSUS_WAITS + 1,
			.until_ns = clock_now_ns() + CENSUS_WAITS_MS * 1000000ull,
			.steps = s->site.counts.steps};
	}
	remaining = census_count(s);
	for (uint32_t rank = 0; rank < s->world; rank++)
		if (s->census.at[rank].waits > CENSUS_WAITS)
			s->census.at[rank].remaining = remaining;
}

static bool census_may_wait(const struct census_site *site)
{
	return site->waits > 1 || clock_now_ns() < site->until_ns;
}

void census_take(struct phub_site *s)
{
	if (!s->census.at)
		return;
	census_look(s);
	for (uint32_t rank = 0; rank < s->world; rank++) {
		struct census_site *site = &s->census.at[rank];
		struct slot slot;

		bool comes;

		slots_get(s->slots_in, rank, &slot);
		comes = !site->there && slot.flags & SLOT_HERE && !(slot.flags & SLOT_HELLO);
		if (site->waits > 0 && !census_tell_gone(s, rank, census_may_wait(site) && !comes) && site->waits > 1)
			site->waits--;
		site->there |= comes;
		if (comes)
			census_tell_came(s, rank, census_count(s));
	}
}

void census_end(struct phub_site *s)
{
	for (uint32_t rank = 0; s->census.at && rank < s->world; rank++)
		if (s->census.at[rank].waits > 0)
			census_tell_gone(s, rank, false);
}
