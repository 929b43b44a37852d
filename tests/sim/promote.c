/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two boxes, the operator, and which of the boxes is the root.
 */
#include "tests/sim/promote.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/control/above.h"
#include "phub/control/calls.h"
#include "phub/control/job.h"
#include "phub/control/parent.h"
#include "phub/control/promotion.h"
#include "tests/sim/outage.h"
#include "tests/sim/worker.h"

#define PROMOTE_LOOK_NS     (1500 * NS_PER_MS) /* the operator looks again within so long, */
#define PROMOTE_AGAIN_NS    (100 * NS_PER_MS)  /* and asks again how it is (phub promote) */
#define PROMOTE_PATIENCE_NS (4 * NS_PER_S)

enum {
	PROMOTE_WRONGLY = 4, /* one in so many looks asks although there is a root, */
	PROMOTE_FATAL = 4,   /* and at one promotion in so many the box dies, */
	PROMOTE_CALLS = 60,  /* within so many calls of its disk */
};

static unsigned promote_draw(struct world *w, unsigned count)
{
	return (unsigned)(oracle_random(&w->promotions.random) % count);
}

/* ---- who may be the root ---- */

static struct below_box *promote_heir(const struct world *w)
{
	return (struct below_box *)&w->below.boxes[w->plan->heir - 1];
}

static struct box *promote_box(const struct world *w, int number)
{
	return number == 0 ? w->box : promote_heir(w)->box;
}

int promote_number(const struct world *w, const struct below_box *box)
{
	return world_plan_promotes(w->plan) && box == promote_heir(w) ? 1 : -1;
}

struct disk *promote_disk(const struct world *w, unsigned number)
{
	return storage_disk(w->outage.storage, number);
}

int promote_root_number(const struct world *w)
{
	for (int i = 0; i < PROMOTE_BOXES; i++)
		if (promote_box(w, i) && above_epoch(&promote_box(w, i)->control))
			return i;
	return -1;
}

struct box *promote_root(const struct world *w, uint64_t *epoch)
{
	int number = promote_root_number(w);
	struct box *box = number < 0 ? NULL : promote_box(w, number);

	*epoch = box ? above_epoch(&box->control) : 0;
	return box;
}

/* ---- making them ---- */

int promote_configure_root(const struct world *w, struct config *config, struct err *e)
{
	char at[64];
	int rc = config_set(config, "listen=127.0.0.1:1", e);

	snprintf(at, sizeof(at), "advertise=box:%d", WORLD_CONTROL_PORT);
	return rc == 0 ? config_set(config, at, e) : rc;
}

int promote_configure_below(struct world *w, struct config *config, const struct below_box *box, struct err *e)
{
	const struct below_box *heir = promote_heir(w);
	char uplink[80];

	if (box == heir)
		snprintf(uplink, sizeof(uplink), "uplink=box:%d", WORLD_CONTROL_PORT);
	else
		snprintf(uplink, sizeof(uplink), "uplink=box:%d,%s:%d", WORLD_CONTROL_PORT, heir->name,
			WORLD_CONTROL_PORT);
	if (box == heir && world_configure_targets(w->plan, config, e) < 0)
		return e->code;
	return config_set(config, uplink, e);
}

void promote_init(struct world *w)
{
	w->promotions = (struct promotions){.random = w->plan->seed * 97 + 11, .asked = -1};
}

/* May that be because disks fail? */
static bool promote_hinders(const struct world *w, int number)
{
	const struct storage_plan *disk = &w->plan->disk;

	return disk->fail > 0 || disk->fail_read > 0 || disk->full > 0 || disk->bytes_max || w->plan->harms > 0 ||
	       storage_has_failed(w->outage.storage, (unsigned)number);
}

int promote_begin(struct world *w, unsigned number, struct box *box, struct err *e)
{
	struct promotions *p = &w->promotions;
	uint64_t refused = storage_stats(w->outage.storage)->refused_reads;
	int rc;

	world_starts = true;
	storage_calm(w->outage.storage, !p->begun[number]);
	rc = promotion_open(box, e);
	storage_calm(w->outage.storage, false);
	world_starts = false;
	p->begun[number] = true;
	p->blind[number] = storage_stats(w->outage.storage)->refused_reads > refused &&
			   (w->outage.harmed || w->outage.hidden); /* more than parity makes up for */
	p->reigns[number] = 0;
	p->hindered = p->hindered || rc < 0;
	if (rc < 0 && !promote_hinders(w, (int)number))
		world_fail(w, "a box does not start: %s", e->text);
	return rc;
}

void promote_bury(struct world *w, unsigned number)
{
	storage_restore(w->outage.storage, number);
	if (w->promotions.asked == (int)number)
		w->promotions.asked = -1;
}

/* ---- the operator ---- */

/* It asks a box. */
static void promote_ask(struct world *w, int number, bool again, uint64_t now_ns)
{
	struct promotions *p = &w->promotions;
	struct control *c = &promote_box(w, number)->control;
	enum promotion_state state;
	struct err e = {0};
	int rc;

	c->now_ns = now_ns;
	rc = promotion_ask(c, "an operator", "", again, &state, &e);
	p->asked = rc == 0 && state == PROMOTION_BEGUN ? number : -1;
	w->result->promotions += rc == 0 && state == PROMOTION_DONE;
	w->result->refused += rc < 0;
	p->hindered = p->hindered || (rc < 0 && rc != -EBUSY);
	if (rc < 0 && rc != -EBUSY && rc != -EIO && !promote_hinders(w, number)) /* EIO: its power was about to fail */
		world_fail(w, "the operator hears from a box: %s", e.text);
	if (rc == 0 && state != PROMOTION_BEGUN && !above_epoch(c))
		world_fail(w, "the operator hears that a box is the root that is none");
}

/* There is a root, or the operator knows of none and asks for one. */
static void promote_look(struct world *w, uint64_t now_ns)
{
	struct promotions *p = &w->promotions;
	int root = promote_root_number(w), number = (int)promote_draw(w, PROMOTE_BOXES);

	if (root >= 0) {
		p->lacks_ns = 0;
		if (promote_draw(w, PROMOTE_WRONGLY) == 0 && promote_box(w, number))
			promote_ask(w, number, false, now_ns);
		return;
	}
	if (p->lacks_ns == 0) {
		p->lacks_ns = now_ns;
		p->patience_ns = oracle_random(&p->random) % PROMOTE_PATIENCE_NS;
	}
	if (now_ns < p->lacks_ns + p->patience_ns || !promote_box(w, number))
		return;
	if (w->outage.deaths < w->plan->box_deaths && promote_draw(w, PROMOTE_FATAL) == 0)
		storage_fail_after(w->outage.storage, (unsigned)number, promote_draw(w, PROMOTE_CALLS));
	promote_ask(w, number, false, now_ns);
}

static unsigned promote_operate(struct world *w, uint64_t now_ns)
{
	struct promotions *p = &w->promotions;

	if (now_ns < p->look_ns)
		return 0;
	if (p->asked >= 0)
		promote_ask(w, p->asked, true, now_ns);
	else
		promote_look(w, now_ns);
	p->look_ns = now_ns + (p->asked >= 0 ? PROMOTE_AGAIN_NS : oracle_random(&p->random) % PROMOTE_LOOK_NS);
	return 1;
}

/* ---- what is judged ---- */

static void promote_judge(struct world *w)
{
	struct promotions *p = &w->promotions;
	uint64_t epochs[PROMOTE_BOXES] = {0};
	unsigned roots = 0;

	for (int i = 0; i < PROMOTE_BOXES; i++) {
		const struct box *box = promote_box(w, i);

		epochs[i] = box ? above_epoch(&box->control) : 0;
		roots += epochs[i] > 0;
		if (epochs[i] && epochs[i] < p->epoch && !p->blind[i])
			world_fail(w, "a box is the root of epoch %llu, and there was one of epoch %llu",
				(unsigned long long)epochs[i], (unsigned long long)p->epoch);
		p->epoch = epochs[i] > p->epoch ? epochs[i] : p->epoch;
	}
	if (roots > 1)
		world_fail(w, "two boxes are the root, of epochs %llu and %llu", (unsigned long long)epochs[0],
			(unsigned long long)epochs[1]);
}

/* Another box is the root, or in another life: what is seen of its job is seen anew. */
static void promote_note_root(struct world *w)
{
	struct promotions *p = &w->promotions;

	for (unsigned i = 0; i < PROMOTE_BOXES; i++) {
		const struct box *box = promote_box(w, (int)i);

		if (!box || (p->reigns[i] > 0) == (above_epoch(&box->control) > 0))
			continue;
		p->reigns[i] = p->reigns[i] ? 0 : ++p->reign;
		if (p->reigns[i])
			outage_meet(w, i);
	}
}

/* ---- runs of the job ---- */

static const struct job *promote_job(const struct box *box)
{
	const struct job *job = box ? box->control.jobs : NULL;

	while (job && (job->state == JOB_ENDING || job->started == 0))
		job = job->next;
	return job;
}

/* The box that a host is, as runs count them. */
static unsigned promote_index(const struct world *w, const char *host)
{
	unsigned endpoint = below_endpoint(w, host);

	return endpoint == WORLD_BOX_HOST ? 0 : 1 + endpoint - BELOW_HOST;
}

static uint64_t promote_run_at(const struct world *w, unsigned index, uint32_t job)
{
	const struct promotions *p = &w->promotions;
	int number = index == 0 ? 0 : promote_number(w, &w->below.boxes[index - 1]);

	if (number >= 0 && p->reigns[number]) /* also of one that is dead */
		return (uint64_t)p->reigns[number] << 32 | job;
	return p->runs[index].job == job ? p->runs[index].run : 0;
}

static void promote_note_run(struct world *w, unsigned index)
{
	const struct job *job = promote_job(index == 0 ? w->box : w->below.boxes[index - 1].box);
	struct promote_run *r = &w->promotions.runs[index];
	uint32_t above;
	uint64_t run;

	if (index == 0 ? !w->box : !w->below.boxes[index - 1].box)
		*r = (struct promote_run){.job = 0};
	if (!job || !job->parent || r->job == job->id) /* with another root it is another job */
		return;
	above = parent_place_there(job).job;
	run = promote_run_at(w, promote_index(w, job->control->above.place.at.host), above);
	if (above && run)
		*r = (struct promote_run){.job = job->id, .run = run};
}

uint64_t promote_run(const struct worker *me)
{
	return promote_run_at(
		me->world, promote_index(me->world, me->phub->session.at.host), me->phub->session.start.job);
}

/* ---- steps ---- */

unsigned promote_step(struct world *w, uint64_t now_ns)
{
	if (!world_plan_promotes(w->plan))
		return 0;
	promote_judge(w);
	promote_note_root(w);
	for (unsigned level = 0; level < WORLD_BELOW_MAX; level++) /* they know it by those above them */
		for (unsigned i = 0; i <= w->below.count; i++)
			promote_note_run(w, i);
	return promote_operate(w, now_ns);
}

uint64_t promote_due(const struct world *w)
{
	return world_plan_promotes(w->plan) ? w->promotions.look_ns : UINT64_MAX;
}

void promote_heal(struct world *w)
{
	w->promotions.look_ns = UINT64_MAX;
}

bool promote_excuses(const struct world *w, const char *text)
{
	return w->promotions.hindered && strstr(text, "it was not back within");
}
