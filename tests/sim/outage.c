/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/outage.h"

#include <errno.h>
#include <string.h>

#include "phub/base/log.h"
#include "phub/control/job.h"
#include "phub/control/keeper.h"
#include "tests/sim/worker.h"

enum {
	OUTAGE_TURNS = 2000,        /* one in so many turns the box dies... */
	OUTAGE_LOADING_TURNS = 4,   /* ...or, while it reads a checkpoint, */
	OUTAGE_LACKING_TURNS = 100, /* ...or a rank is lost */
	OUTAGE_SPARED = 8,
	OUTAGE_HARM_TURNS = 3000,
	OUTAGE_CALLS = 200, /* within so many calls for each target the power fails */
};

#define OUTAGE_STILL_NS 5000000000ull
#define OUTAGE_BEGUN_NS 1000000000ull /* one that does not start is started again */

static unsigned outage_draw(struct world *w, unsigned count)
{
	return (unsigned)(oracle_random(&w->outage.random) % count);
}

/* In most lives of a box it is a call of a disk at which it dies, so that none is spared. */
static void outage_schedule(struct world *w, unsigned number)
{
	if (w->outage.deaths < w->plan->box_deaths && outage_draw(w, w->plan->deaths > 0 ? 2 : 3))
		storage_fail_after(w->outage.storage, number, outage_draw(w, OUTAGE_CALLS * w->plan->disk.targets));
}

/* What the box says of its disks, where nobody else listens. */
static void outage_hear(void *arg, enum log_level level, const char *line)
{
	struct outage *o = arg;

	o->warned += level == LOG_LEVEL_WARN && (strstr(line, "no checkpoint") || strstr(line, "could not be written"));
}

int outage_init(struct world *w)
{
	struct outage *o = &w->outage;

	*o = (struct outage){.random = w->plan->seed * 53 + 7};
	if (!world_plan_dies(w->plan))
		return 0;
	o->storage = storage_create(&w->plan->disk);
	if (!o->storage)
		return -ENOMEM;
	if (!w->trace)
		log_set_sink(outage_hear, o);
	if (!world_plan_promotes(w->plan)) /* else when there is a root */
		outage_schedule(w, 0);
	return 0;
}

/* Some ticks after its only disk was full the box must have said so. */
static void outage_judge(struct world *w)
{
	struct outage *o = &w->outage;
	const struct world_plan *plan = w->plan;
	uint64_t now_ns = loop_net_now(w->net);

	if (w->trace || w->leases.upsets > 0 || !plan->disk.bytes_max || plan->disk.targets > 1 ||
		plan->disk.fail > 0 || o->warned > 0 || o->deaths > 0 || storage_stats(o->storage)->refused == 0)
		return;
	o->refused_ns = o->refused_ns ? o->refused_ns : now_ns;
	if (now_ns > o->refused_ns + 5 * CONTROL_TICK_NS)
		world_fail(w, "the disk was full, and the box did not say so");
}

void outage_fini(struct world *w)
{
	struct outage *o = &w->outage;

	if (o->storage)
		w->result->disk = *storage_stats(o->storage);
	if (o->storage && !w->trace)
		log_set_sink(NULL, NULL);
	storage_destroy(o->storage);
	o->storage = NULL;
}

bool outage_is_over(const struct world *w)
{
	for (unsigned i = 0; i < w->plan->workers; i++)
		if (!worker_is_finished(&w->workers[i]))
			return false;
	return true;
}

uint64_t outage_due(const struct world *w)
{
	return w->outage.storage && !w->box ? w->outage.returns_ns : UINT64_MAX;
}

bool outage_disturbs(const struct worker *me, int code, const char *text)
{
	if (!me->world->outage.storage)
		return false;
	if (me->state == WORKER_STARTING) /* it would come again by itself where it was in the job before */
		return strstr(text, "try again in a moment");
	return me->state == WORKER_JOINING &&
	       (code == -ECONNRESET || code == -EHOSTDOWN || code == -EOWNERDEAD || code == -ESHUTDOWN);
}

/* May it be that a checkpoint cannot be read now? A job may come again, and look for it, while its box lives. */
static bool outage_loses(const struct world *w)
{
	const struct outage *o = &w->outage;
	unsigned there = (unsigned)__builtin_popcount(o->holders & ~o->hidden);

	return (w->plan->deaths > 0 || world_plan_leases(w->plan)) &&
	       (w->plan->disk.fail_read > 0 || there < w->plan->disk.targets - w->plan->parity);
}

/* Were there more targets, hidden or with a read that failed, than parity makes up for? */
static bool outage_blinds(const struct world *w)
{
	const struct outage *o = &w->outage;
	uint64_t dark = (unsigned)__builtin_popcount(o->hidden);

	return o->storage && dark + storage_stats(o->storage)->refused_reads > w->plan->parity;
}

bool outage_excuses(const struct world *w, const char *text)
{
	if ((w->plan->deaths > 0 || w->plan->below) && w->result->ended > 0 && strstr(text, "it was not back within"))
		return true;                                           /* others gave up before */
	if (strstr(text, "cannot be looked into") && outage_blinds(w)) /* before any checkpoint, too */
		return true;
	if (promote_excuses(w, text) || lease_excuses(w, text))
		return true;
	if (w->outage.left && (strstr(text, "ranks that had left before do not come again") ||
				      strstr(text, "only rank 0 brings first weights"))) /* others are done */
		return true;
	if (!w->outage.lost && !outage_loses(w))
		return false;
	if (strstr(text, "none of its checkpoints can be read") || /* again and again */
		strstr(text, "is not whole, and it is not begun anew") || strstr(text, "have no directory of this job"))
		return true;
	if (w->plan->deaths > 0 && strstr(text, "it was not back within")) /* and all that time */
		return true;
	return w->result->ended > 0 && strstr(text, "was lost"); /* another one, which had heard that for too long */
}

/* ---- harm ---- */

static bool outage_may_harm(const struct world *w, unsigned target)
{
	uint32_t harmed = w->outage.harmed | w->outage.hidden | 1u << target;

	return w->plan->cruel || (unsigned)__builtin_popcount(harmed) <= w->plan->parity;
}

/* Is there less left of the newest than it takes? */
static void outage_note_loss(struct world *w)
{
	struct outage *o = &w->outage;
	unsigned there = (unsigned)__builtin_popcount(o->holders & ~o->hidden);

	o->lost = o->lost || w->plan->disk.fail_read > 0 || there < w->plan->disk.targets - w->plan->parity;
}

/* All targets are there. */
static void outage_show(struct world *w)
{
	for (unsigned i = 0; i < w->plan->disk.targets; i++)
		storage_hide(w->outage.storage, i, false);
	w->outage.hidden = 0;
}

static void outage_harm(struct world *w)
{
	struct outage *o = &w->outage;
	unsigned target = outage_draw(w, w->plan->disk.targets);
	unsigned how = outage_draw(w, 6);

	if (o->hidden && outage_draw(w, 2)) {
		outage_show(w);
		return;
	}
	if (o->harms == w->plan->harms || !outage_may_harm(w, target))
		return;
	o->harms++;
	o->harmed_ns = loop_net_now(w->net);
	w->result->harmed++;
	if (how == 0) {
		storage_hide(o->storage, target, true);
		o->hidden |= 1u << target;
		o->hidings++;
		return;
	}
	if (how == 1)
		storage_wipe(o->storage, target);
	else if (!storage_rot(o->storage, target))
		return;
	o->harmed |= 1u << target;
	o->holders &= ~(1u << target);
}

/* ---- death and return ---- */

/* Not in the first start, which workers do not survive. */
static bool outage_may_kill(const struct world *w)
{
	for (unsigned i = 0; i < w->plan->workers; i++)
		if (w->workers[i].state == WORKER_JOINING && w->workers[i].life == 0)
			return false;
	return w->outage.deaths < w->plan->box_deaths && !outage_is_over(w);
}

/* One in so many turns it dies. */
static unsigned outage_turns(const struct world *w)
{
	const struct job *job = world_job(w);

	if (job && job->state == JOB_LOADING)
		return OUTAGE_LOADING_TURNS;
	for (unsigned i = 0; i < w->plan->workers && w->plan->deaths > 0 && job; i++)
		if (w->workers[i].state == WORKER_DEAD)
			return OUTAGE_LACKING_TURNS;
	return OUTAGE_TURNS;
}

/* Do rounds stand still? The death of its box would be a cure. */
static bool outage_heals(struct world *w)
{
	const struct job *job = world_job(w);
	struct outage *o = &w->outage;

	if (!job || job->state != JOB_RUNNING || o->results != w->result->rounds_checked) {
		o->results = w->result->rounds_checked;
		o->results_ns = loop_net_now(w->net);
	}
	return w->plan->deaths > 0 && loop_net_now(w->net) > o->results_ns + OUTAGE_STILL_NS;
}

static bool outage_strikes(struct world *w, unsigned number)
{
	bool failed = storage_has_failed(w->outage.storage, number);

	if (outage_heals(w) || !outage_may_kill(w)) {
		if (failed)
			storage_resume(w->outage.storage, number);
		return false;
	}
	/* Most of those whose workers die, too, live until there is something to go on from. */
	if (!failed && (w->plan->deaths > 0 || w->plan->below) && w->outage.newest == 0 &&
		outage_draw(w, OUTAGE_SPARED))
		return false;
	return failed || outage_draw(w, outage_turns(w)) == 0;
}

/* Files of the newest are gone because one after it was written, which nobody saw before the box died? Then that is it.
 */
static void outage_note_newer(struct world *w)
{
	struct outage *o = &w->outage;

	if (!(o->holders & ~o->hidden & ~storage_holders(o->storage, o->newest)))
		return;
	for (uint64_t round = o->newest + 1; round <= WORLD_ROUNDS_MAX + 1; round++) {
		uint32_t holders = storage_holders(o->storage, round);

		if ((unsigned)__builtin_popcount(holders) < w->plan->disk.targets - w->plan->parity)
			continue;
		o->newest = round;
		o->holders = holders & ~o->harmed; /* what of it was harmed before it was noted, too */
	}
}

/* The first box's process is gone. */
static void outage_bury(struct world *w, uint64_t away_ns)
{
	loop_net_kill(w->net, WORLD_BOX_HOST);
	storage_fail_after(w->outage.storage, 0, 0);
	box_destroy(w->box, loop_net_now(w->net));
	loop_stream_unlisten(w->listener);
	w->box = NULL;
	w->listener = NULL;
	w->outage.returns_ns = loop_net_now(w->net) + away_ns;
	promote_bury(w, 0);
}

static void outage_kill(struct world *w, unsigned number)
{
	struct outage *o = &w->outage;
	uint64_t away_ns = oracle_random(&o->random) % (w->plan->away_max_ns + 1);

	if (number == 0)
		outage_bury(w, away_ns);
	else
		below_kill(w, &w->below.boxes[w->plan->heir - 1], away_ns);
	o->deaths++;
	w->result->box_died++;
	outage_note_newer(w);
}

void outage_meet(struct world *w, unsigned number)
{
	struct outage *o = &w->outage;

	o->job = 0;
	o->refused_reads = storage_stats(o->storage)->refused_reads;
	outage_schedule(w, number);
}

static void outage_return(struct world *w)
{
	struct err e = {0};

	for (unsigned i = outage_draw(w, 3); i > 0; i--)
		outage_harm(w);
	outage_note_loss(w);
	loop_net_revive(w->net, WORLD_BOX_HOST);
	if (world_open_box(w, &e) == 0) {
		if (!world_plan_promotes(w->plan)) /* else it may not be the root */
			outage_meet(w, 0);
	} else if (world_plan_promotes(w->plan)) { /* its disks are seen to */
		outage_show(w);
		outage_bury(w, OUTAGE_BEGUN_NS);
	} else {
		world_fail(w, "no box in its place: %s", e.text);
	}
}

/* ---- what is seen of checkpoints ---- */

/* What the job began with, as soon as it runs. */
static void outage_check_begin(struct world *w, const struct job *job)
{
	struct outage *o = &w->outage;
	unsigned there = (unsigned)__builtin_popcount(o->holders & ~o->hidden);
	bool disturbed = storage_stats(o->storage)->refused_reads > o->refused_reads;
	/* In good order, it may be, for those who were left, with boxes below: then another one begins. */
	bool ended = w->plan->below && o->left;
	uint64_t round;

	o->kept = job_kept(job, &round);
	if (o->kept == 0)
		round = 0;
	w->result->restored += o->kept > 0;
	w->result->anew += o->kept == 0;
	if (round < o->newest && there >= w->plan->disk.targets - w->plan->parity && !disturbed && !ended)
		world_fail(w,
			"the job goes on from round %llu; a checkpoint before round %llu was written, and %u of %u "
			"targets still have it (parity %u)",
			(unsigned long long)round, (unsigned long long)o->newest, there, w->plan->disk.targets,
			w->plan->parity);
	o->newest = round;
	o->holders = storage_holders(o->storage, round) & ~o->harmed;
	o->blind = disturbed;
}

/* Another job runs: this box's first one, or the one before was lost. */
static void outage_check_job(struct world *w, const struct job *job)
{
	struct outage *o = &w->outage;

	if (o->job > 0)
		outage_note_newer(w);
	if (o->deaths > 0 || o->job > 0)
		outage_check_begin(w, job);
	else
		o->kept = 0;
	o->job = job->id;
	o->refused_reads = storage_stats(o->storage)->refused_reads;
}

/* A new one is written: all others but some are gone. */
static void outage_check_kept(struct world *w, const struct job *job, uint64_t round)
{
	struct outage *o = &w->outage;
	const struct storage_stats *stats = storage_stats(o->storage);

	o->newest = round;
	o->holders = storage_holders(o->storage, round);
	w->result->kept++;
	if (o->harms > 0 && (o->harmed_ns >= (uint64_t)job->keeper->last_ns ||
				    loop_net_now(w->net) < o->harmed_ns + 2 * CONTROL_TICK_NS))
		o->holders = 0; /* it was harmed while it was written, or before the box said that it was */
	else if (!o->blind && (unsigned)__builtin_popcount(o->holders) < w->plan->disk.targets - w->plan->parity)
		world_fail(w, "a checkpoint before round %llu is called written, and has %u files",
			(unsigned long long)round, (unsigned)__builtin_popcount(o->holders));
	for (unsigned i = 0; i < w->plan->disk.targets && !stats->refused && !stats->refused_reads && !o->harmed; i++) {
		unsigned all, named = storage_named(o->storage, i, &all);
		unsigned left =
			o->deaths + o->hidings; /* what could not be removed goes with one that is written later */

		if (!(o->hidden >> i & 1) && (named > w->plan->keep + left || all > w->plan->keep + left + o->deaths))
			world_fail(w,
				"%u checkpoints are to be kept, and target %u has %u files of some, and %u in all",
				w->plan->keep, i, named, all);
	}
}

static void outage_watch(struct world *w)
{
	struct outage *o = &w->outage;
	const struct job *job = world_job(w);
	uint64_t round, kept;

	if (!job || job->state != JOB_RUNNING)
		return;
	outage_judge(w);
	if (o->job != job->id)
		outage_check_job(w, job);
	kept = job_kept(job, &round);
	if (kept > o->kept)
		outage_check_kept(w, job, round);
	o->kept = kept;
}

/* The box that may die now, or has: the root, or one that is about to be it. -1: there is none. */
static int outage_victim(const struct world *w)
{
	if (!world_plan_promotes(w->plan))
		return w->box ? 0 : -1;
	for (unsigned i = 0; i < PROMOTE_BOXES; i++)
		if (storage_has_failed(w->outage.storage, i))
			return (int)i;
	return promote_root_number(w);
}

unsigned outage_step(struct world *w)
{
	struct outage *o = &w->outage;
	uint64_t now_ns = loop_net_now(w->net);
	unsigned work;
	int victim;

	if (!o->storage)
		return 0;
	storage_advance(o->storage, now_ns);
	work = promote_step(w, now_ns);
	if (!w->box && now_ns >= o->returns_ns) {
		outage_return(w);
		return 1;
	}
	victim = outage_victim(w);
	if (victim < 0)
		return work;
	if (!storage_has_failed(o->storage, (unsigned)victim)) /* else what it did last is nothing that anybody saw */
		outage_watch(w);
	if (outage_draw(w, OUTAGE_HARM_TURNS) == 0)
		outage_harm(w);
	if (o->job == 0 && o->deaths > 0) /* a box that is back has not read it yet */
		outage_note_loss(w);
	if (!outage_strikes(w, (unsigned)victim))
		return work;
	outage_kill(w, (unsigned)victim);
	return 1;
}
