/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One key, two boxes that may have it, and who asks for it.
 */
#include "tests/sim/lease.h"

#include <stdio.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/stats.h"
#include "phub/control/above.h"
#include "phub/control/calls.h"
#include "phub/control/job.h"
#include "phub/control/parent.h"
#include "tests/sim/rest.h"
#include "tests/sim/worker.h"

#define LEASE_PATIENCE_NS (30 * NS_PER_S)   /* so long workers try to get to their job again */
#define LEASE_ASK_NS      (500 * NS_PER_MS) /* boxes ask etcd as often */

enum { LEASE_TURNS = 40 /* a core may run so many turns before control does */ };

static unsigned lease_draw(struct world *w, unsigned count)
{
	return (unsigned)(oracle_random(&w->leases.random) % count);
}

/* ---- who stands for the root ---- */

static struct box *lease_box(const struct world *w, int number)
{
	if (number == 0)
		return w->box;
	return number == 1 && w->plan->heir ? w->below.boxes[w->plan->heir - 1].box : NULL;
}

static int lease_number(const struct world *w, const struct box *box)
{
	for (int i = 0; i < LEASE_BOXES; i++)
		if (box && box == lease_box(w, i))
			return i;
	return -1;
}

static struct above_place lease_place(const struct world *w)
{
	struct above_place place = {.at.port = WORLD_CONTROL_PORT, .epoch = w->leases.epoch};
	const char *name = w->leases.holder == 0 ? "box" : w->below.boxes[w->plan->heir - 1].name;

	snprintf(place.box, sizeof(place.box), "%s", name);
	snprintf(place.at.host, sizeof(place.at.host), "%s", name);
	return place;
}

struct box *lease_root(const struct world *w, uint64_t *epoch)
{
	struct box *box = lease_box(w, w->leases.holder);

	*epoch = w->leases.epoch;
	return box && box->control.above.epoch == *epoch ? box : NULL;
}

static const struct job *lease_job(const struct box *box, uint32_t id)
{
	const struct job *job = box ? box->control.jobs : NULL;

	while (job && job->id != id)
		job = job->next;
	return job;
}

/* Of the job `id` at the first box, or one below: from box to box up to the root. 0: one of them is dead. */
static uint64_t lease_run_at(const struct world *w, const struct below_box *at, uint32_t id)
{
	for (;;) {
		unsigned host;

		const struct box *box = at ? at->box : w->box;
		const struct job *job = lease_job(box, id);

		if (!job)
			return 0;
		if (!job->parent)
			return box->control.above.epoch << 32 | job->id;
		id = parent_place_there(job).job;
		if (box->control.above.place.epoch)
			return box->control.above.place.epoch << 32 | id;
		host = below_endpoint(
			w, box->control.above.place.at.host); /* it may be at the sibling of the one above */
		at = host == WORLD_BOX_HOST ? NULL : &w->below.boxes[host - BELOW_HOST];
	}
}

static void lease_note_runs(struct world *w)
{
	for (unsigned i = 0; i < w->below.count; i++) {
		const struct below_box *at = &w->below.boxes[i];
		const struct job *job = at->box ? at->box->control.jobs : NULL;

		for (; job; job = job->next) {
			bool is_new = job->started && job->parent && job->id > w->leases.runs[i].job;
			uint64_t run = is_new ? lease_run_at(w, at, job->id) : 0;

			if (run) {
				w->leases.runs[i].job = job->id;
				w->leases.runs[i].run = run;
			}
		}
		if (!at->box)
			w->leases.runs[i].job = 0;
	}
}

uint64_t lease_run(const struct worker *me)
{
	const struct world *w = me->world;
	unsigned host = below_endpoint(w, me->phub->session.at.host);
	const struct below_box *at = host == WORLD_BOX_HOST ? NULL : &w->below.boxes[host - BELOW_HOST];
	uint64_t run = lease_run_at(w, at, me->phub->session.start.job);

	if (run == 0 && at && w->leases.runs[host - BELOW_HOST].job == me->phub->session.start.job)
		run = w->leases.runs[host - BELOW_HOST].run;
	return run;
}

int lease_configure_below(const struct world *w, struct config *config, struct err *e)
{
	char ttl[40];
	int rc;

	snprintf(ttl, sizeof(ttl), "etcd_ttl_ms=%llu", (unsigned long long)w->plan->ttl_ms);
	rc = config_set(config, "uplink=etcd:top", e);
	if (rc == 0)
		rc = config_set(config, "etcd=http://127.0.0.1:2379", e);
	return rc == 0 ? config_set(config, ttl, e) : rc;
}

int lease_configure_root(const struct world *w, struct config *config, struct err *e)
{
	int rc = lease_configure_below(w, config, e);

	return rc == 0 ? config_set(config, "root=top", e) : rc;
}

void lease_init(struct world *w)
{
	w->leases = (struct leases){
		.random = w->plan->seed * 91 + 3, .holder = -1, .still = -1, .deaf = -1, .woken = -1, .revision = 7};
}

/* ---- steps of boxes ---- */

bool lease_rests(const struct world *w, const struct box *box)
{
	return world_plan_leases(w->plan) && w->leases.still >= 0 && lease_number(w, box) == w->leases.still;
}

/* Of jobs that end here. */
static uint64_t lease_rounds(const struct box *box)
{
	uint64_t rounds = 0;

	for (const struct job *job = box->control.jobs; job; job = job->next) {
		const struct generation *g = job->generation;

		for (unsigned core = 0; g && !job->parent && core < g->spec.core_count; core++)
			if (g->store.shards[core])
				rounds += stats_read(&g->store.shards[core]->counters.rounds);
	}
	return rounds;
}

bool lease_turn(struct world *w, struct box *box, uint64_t now_ns)
{
	struct leases *l = &w->leases;
	int number = world_plan_leases(w->plan) ? lease_number(w, box) : -1;
	uint64_t rounds;
	bool again = false;

	if (number < 0)
		return rest_turn(w, box, now_ns);
	if (l->still == number)
		return false;
	if (l->woken != number || l->turns == 0)
		again = control_step(&box->control, now_ns);
	else if (--l->turns == 0)
		again = true;
	rounds = lease_rounds(box);
	for (unsigned i = 0; i < box->core_count; i++)
		again = core_step(box->cores[i], now_ns) > 0 || again;
	if (now_ns >= l->until_ns[number] && lease_rounds(box) > rounds)
		world_fail(w, "a root committed %llu rounds of chunks %.3f s beyond its lease",
			(unsigned long long)(lease_rounds(box) - rounds), (double)(now_ns - l->until_ns[number]) / 1e9);
	return again || (l->woken == number && l->turns > 0);
}

/* ---- etcd ---- */

/* Does it run, and reach etcd? */
static struct box *lease_hears(const struct world *w, int number)
{
	return number == w->leases.still || number == w->leases.deaf ? NULL : lease_box(w, number);
}

/* It counts from when it asks; a part of the time is not used (campaign.c). */
static uint64_t lease_worth(const struct world *w, uint64_t now_ns)
{
	return now_ns + w->plan->ttl_ms * NS_PER_MS * 3 / 4;
}

static void lease_extend_key(struct world *w, uint64_t now_ns)
{
	struct leases *l = &w->leases;

	l->expires_ns = now_ns + w->plan->ttl_ms * NS_PER_MS;
	l->renew_ns = now_ns + w->plan->ttl_ms * NS_PER_MS / 3;
	l->until_ns[l->holder] = lease_worth(w, now_ns);
}

static unsigned lease_renew(struct world *w, uint64_t now_ns)
{
	struct leases *l = &w->leases;
	uint64_t epoch;
	struct box *box = lease_root(w, &epoch);

	if (!box || !lease_hears(w, l->holder) || now_ns < l->renew_ns)
		return 0;
	lease_extend_key(w, now_ns);
	box->control.now_ns = now_ns;
	above_renew(&box->control, l->until_ns[l->holder]);
	return 1;
}

static void lease_claim(struct world *w, int number, uint64_t now_ns)
{
	struct leases *l = &w->leases;
	struct control *c = &lease_box(w, number)->control;
	struct err e;

	l->holder = number;
	l->epoch = ++l->revision;
	lease_extend_key(w, now_ns);
	w->result->promoted += l->epoch > 8;
	if (above_assume(c, l->epoch, l->until_ns[number], &e) == 0)
		return;
	if (!w->outage.hidden && !(w->outage.storage && storage_has_failed(w->outage.storage, 0)))
		world_fail(w, "a box is to be the root, and is not: %s", e.text);
	l->shut = l->shut || w->outage.hidden;
	above_decline(c); /* it stands for it again, when its disks are there */
	l->holder = -1;
}

/* One that may be the root hears what etcd has. */
static void lease_hear(struct world *w, int number, uint64_t now_ns)
{
	struct leases *l = &w->leases;
	struct box *box = lease_hears(w, number);
	struct above_place place;
	struct control *c;

	if (!box)
		return;
	c = &box->control;
	c->now_ns = now_ns;
	if (l->holder < 0 && above_is_root(c) && c->above.epoch == l->epoch && lease_draw(w, 2)) {
		l->holder = number; /* nobody was it since, and it takes the key again */
		lease_extend_key(w, now_ns);
		above_renew(c, l->until_ns[number]);
		w->result->regained++;
		return;
	}
	if (l->holder >= 0)
		place = lease_place(w);
	if (above_is_root(c) && (l->holder != number || c->above.epoch != l->epoch)) {
		l->until_ns[number] = 0;
		above_depose(c, l->holder >= 0 ? &place : NULL, "its lease in etcd ran out");
	}
	if (l->holder < 0)
		lease_claim(w, number, now_ns);
	else if (l->holder != number)
		above_found(c, &place);
}

static void lease_tell_below(struct world *w, uint64_t now_ns)
{
	struct above_place place = lease_place(w);

	for (unsigned i = 0; i < w->below.count && w->leases.holder >= 0; i++) {
		struct below_box *box = &w->below.boxes[i];

		if (!box->box || box->above || i + 1 == w->plan->heir)
			continue;
		box->box->control.now_ns = now_ns;
		above_found(&box->box->control, &place);
	}
}

static unsigned lease_ask(struct world *w, uint64_t now_ns)
{
	struct leases *l = &w->leases;
	int first = (int)lease_draw(w, LEASE_BOXES);

	if (now_ns < l->ask_ns)
		return 0;
	l->ask_ns = now_ns + LEASE_ASK_NS;
	for (int i = 0; i < LEASE_BOXES; i++)
		lease_hear(w, (first + i) % LEASE_BOXES, now_ns);
	if (l->holder >= 0)
		lease_tell_below(w, now_ns);
	return 1;
}

/* ---- upsets ---- */

static bool lease_may_upset(const struct world *w)
{
	const struct leases *l = &w->leases;

	if (l->upsets == w->plan->upsets || l->holder < 0 || !lease_box(w, l->holder) || outage_is_over(w))
		return false;
	for (unsigned rank = 0; l->upsets == 0 && rank < w->plan->workers; rank++)
		if (!worker_is_gone(&w->workers[rank]) && w->workers[rank].phub->session.state < SESSION_STARTED)
			return false;
	return true;
}

static unsigned lease_upset(struct world *w, uint64_t now_ns)
{
	struct leases *l = &w->leases;
	uint64_t ttl_ns = w->plan->ttl_ms * NS_PER_MS, ns;
	unsigned length;

	if (l->still >= 0 || l->deaf >= 0 || !lease_may_upset(w) || lease_draw(w, w->plan->upset_steps))
		return 0;
	length = lease_draw(w, 3);
	ns = 1 + oracle_random(&l->random) % (length == 0 ? ttl_ns / 2 : length == 1 ? 2 * ttl_ns : 4 * ttl_ns);
	l->upsets++;
	l->until_well_ns = now_ns + ns;
	w->result->upset++;
	if (l->until_well_ns > l->expires_ns) {
		w->result->outrun++;
		l->outrun_ns = l->until_well_ns;
	}
	if (lease_draw(w, 3))
		l->still = l->holder;
	else
		l->deaf = l->holder;
	return 1;
}

static unsigned lease_recover(struct world *w, uint64_t now_ns)
{
	struct leases *l = &w->leases;

	if (l->woken >= 0 && !lease_box(w, l->woken)) /* it died */
		l->woken = -1;
	if (l->still >= 0 && !lease_box(w, l->still))
		l->still = -1;
	if (l->still < 0 && l->deaf < 0)
		return 0;
	if (now_ns < l->until_well_ns)
		return 0;
	if (l->still >= 0) {
		l->woken = l->still;
		l->turns = lease_draw(w, 2) ? lease_draw(w, LEASE_TURNS) : 0;
	}
	l->still = l->deaf = -1;
	return 1;
}

unsigned lease_step(struct world *w, uint64_t now_ns)
{
	struct leases *l = &w->leases;
	unsigned work;

	if (!world_plan_leases(w->plan))
		return 0;
	lease_note_runs(w);
	work = lease_recover(w, now_ns);
	if (l->woken >= 0 && l->turns > 0) /* cores are first: whoever brings it news is not heard yet */
		return work;
	if (l->holder >= 0 && now_ns >= l->expires_ns)
		l->holder = -1;
	work += lease_renew(w, now_ns);
	work += lease_ask(w, now_ns);
	return work + lease_upset(w, now_ns);
}

uint64_t lease_due(const struct world *w)
{
	const struct leases *l = &w->leases;
	uint64_t due = l->ask_ns, epoch;

	if (!world_plan_leases(w->plan))
		return UINT64_MAX;
	if ((l->still >= 0 || l->deaf >= 0) && l->until_well_ns < due)
		due = l->until_well_ns;
	if (lease_root(w, &epoch) && lease_hears(w, l->holder) && l->renew_ns < due)
		due = l->renew_ns;
	return due;
}

bool lease_excuses(const struct world *w, const char *text)
{
	const struct leases *l = &w->leases;
	bool outrun = l->outrun_ns && loop_net_now(w->net) < l->outrun_ns + LEASE_PATIENCE_NS;

	if (l->shut && strstr(text, "the start waits for") && strstr(text, "it is no root"))
		return true; /* for racks that the root has lost in the start, and who comes again there */
	return (l->shut || outrun) && strstr(text, "it was not back within");
}

void lease_heal(struct world *w)
{
	w->leases.still = w->leases.deaf = -1;
	w->leases.turns = 0;
	w->leases.upsets = w->plan->upsets;
}
