/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/fate.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
	FATE_TURNS = 60,         /* one in so many turns somebody dies... */
	FATE_CHANGING_TURNS = 4, /* ...or, while the membership changes, */
	FATE_LACKING_TURNS = 25, /* ...or the box is away */
	FATE_RETRY_NS = 20000000,
};
/* A worker that finds the box's verdict behind lost messages, or a connection that has to be given up first. */
#define FATE_LATE_NS 15000000000ull

void fate_init(struct fate *f, const struct world_plan *plan)
{
	*f = (struct fate){.plan = plan, .random = plan->seed * 31 + 5};
	for (unsigned i = 0; i < WORLD_WORKERS_MAX; i++)
		f->ranks[i].returns_ns = UINT64_MAX;
}

static int fate_pick(struct fate *f, unsigned alive)
{
	unsigned ranks[WORLD_WORKERS_MAX], count = 0;

	for (unsigned i = 0; i < f->plan->workers; i++)
		if (alive >> i & 1)
			ranks[count++] = i;
	/* The last one that is left goes along seldom: nobody could repair anything after it. */
	if (count == 0 || (count == 1 && oracle_random(&f->random) % 4))
		return -1;
	return (int)ranks[oracle_random(&f->random) % count];
}

int fate_strike(struct fate *f, unsigned alive, enum fate_time time, uint64_t now_ns)
{
	static const unsigned turns[] = {FATE_TURNS, FATE_CHANGING_TURNS, FATE_LACKING_TURNS};
	int rank;

	if (f->deaths >= f->plan->deaths)
		return -1;
	if (f->again > 0)
		f->again--;
	else if (oracle_random(&f->random) % turns[time])
		return -1;
	rank = fate_pick(f, alive);
	if (rank < 0)
		return -1;
	if (f->again == 0 && oracle_random(&f->random) % 4 == 0)
		f->again = 1;
	f->deaths++;
	f->ranks[rank].dead = true;
	f->ranks[rank].died_ns[f->ranks[rank].life] = now_ns;
	if (f->ranks[rank].life + 1 < FATE_HEIRS && oracle_random(&f->random) % 4)
		f->ranks[rank].returns_ns = now_ns + oracle_random(&f->random) % (f->plan->return_max_ns + 1);
	return rank;
}

void fate_lose(struct fate *f, unsigned rank, uint64_t now_ns)
{
	f->ranks[rank].dead = true;
	f->ranks[rank].died_ns[f->ranks[rank].life] = now_ns;
	if (f->ranks[rank].life + 1 < FATE_HEIRS)
		f->ranks[rank].returns_ns = now_ns + oracle_random(&f->random) % (f->plan->return_max_ns + 1);
}

unsigned fate_renew(struct fate *f, unsigned rank, uint64_t now_ns)
{
	f->ranks[rank].died_ns[f->ranks[rank].life] = now_ns;
	if (f->ranks[rank].life + 1 < FATE_LIVES)
		f->ranks[rank].life++;
	return f->ranks[rank].life;
}

uint64_t fate_due(const struct fate *f)
{
	uint64_t due = UINT64_MAX;

	for (unsigned i = 0; i < f->plan->workers; i++)
		if (f->ranks[i].dead && f->ranks[i].returns_ns < due)
			due = f->ranks[i].returns_ns;
	return due;
}

int fate_return(struct fate *f, uint64_t now_ns)
{
	for (unsigned i = 0; i < f->plan->workers; i++) {
		if (!f->ranks[i].dead || f->ranks[i].returns_ns > now_ns)
			continue;
		f->ranks[i].dead = false;
		f->ranks[i].returns_ns = UINT64_MAX;
		f->ranks[i].life++;
		return (int)i;
	}
	return -1;
}

bool fate_awaits(const struct fate *f, unsigned rank)
{
	return f->ranks[rank].dead && f->ranks[rank].returns_ns != UINT64_MAX;
}

void fate_postpone(struct fate *f, unsigned rank, uint64_t now_ns)
{
	f->ranks[rank].dead = true;
	f->ranks[rank].life--;
	f->ranks[rank].returns_ns = now_ns + FATE_RETRY_NS;
}

void fate_end(struct fate *f)
{
	for (unsigned i = 0; i < f->plan->workers; i++)
		f->ranks[i].returns_ns = UINT64_MAX;
}

bool fate_lists(const char *list, unsigned rank)
{
	unsigned first, last;
	int used;

	for (; sscanf(list, " %u%n", &first, &used) == 1; list += *list == ',') {
		list += used;
		last = first;
		if (sscanf(list, "-%u%n", &last, &used) == 1)
			list += used;
		if (rank >= first && rank <= last)
			return true;
	}
	return false;
}

/* The life that was waited for may be followed by one that took no part yet. */
static bool fate_waited(const struct fate *f, unsigned rank, uint64_t now_ns)
{
	uint64_t wait_ns = f->plan->wait_ms * 1000000ull;

	for (unsigned life = 0; life < FATE_LIVES; life++) {
		uint64_t died_ns = f->ranks[rank].died_ns[life];

		if (died_ns && now_ns >= died_ns + wait_ns && now_ns < died_ns + wait_ns + FATE_LATE_NS)
			return true;
	}
	return false;
}

/* Does a rank stay away without which the job does not begin again? */
static bool fate_lacks(const struct fate *f, bool began)
{
	for (unsigned i = 0; i < f->plan->workers; i++)
		if (f->ranks[i].dead && !fate_awaits(f, i) && (i == 0 || !began || f->plan->lost != LOST_SHRINK))
			return true;
	return false;
}

bool fate_excuses(const struct fate *f, int code, const char *text, bool began, uint64_t now_ns)
{
	if (world_plan_dies(f->plan))
		return strstr(text, "it was not back within") && fate_lacks(f, began);
	for (unsigned i = 0; i < f->plan->workers && code == -EOWNERDEAD; i++) {
		char name[32];

		snprintf(name, sizeof(name), "rank %u (", i);
		if (f->ranks[i].died_ns[0] == 0 || !strstr(text, name))
			continue;
		if (i == 0 && strstr(text, "first weights"))
			return true;
		if (f->plan->lost == LOST_FAIL && strstr(text, "was lost"))
			return true;
		if (f->plan->lost == LOST_WAIT && strstr(text, "no other took its place") && fate_waited(f, i, now_ns))
			return true;
	}
	return false;
}
