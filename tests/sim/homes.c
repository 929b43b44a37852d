/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deaths and cuts of boxes that exchange, and which ends these explain.
 */
#include "tests/sim/homes.h"

#include "phub/control/job.h"
#include "phub/control/job_below.h"
#include "phub/control/peers_move.h"
#include "tests/sim/worker.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define HOMES_SHORT_NS 1500000000ull /* a cut of so long is not felt: boxes say something each second */
#define HOMES_LOST_NS  3000000000ull /* lost_ms (below.c) */
#define HOMES_LONG_NS  12000000000ull
/* From a silence that is noticed to the last error that comes of it: whoever may know more is waited for twice, 1 s. */
#define HOMES_TELL_NS  4000000000ull

void homes_init(struct world *w)
{
	w->homes = (struct homes){.random = w->plan->seed * 91 + 3};
}

static unsigned homes_draw(struct world *w, unsigned count)
{
	return (unsigned)(oracle_random(&w->homes.random) % count);
}

static unsigned homes_count(const struct world *w)
{
	return w->below.count + 1;
}

static unsigned homes_host(const struct world *w, unsigned number)
{
	return number ? w->below.boxes[number - 1].host : (unsigned)WORLD_BOX_HOST;
}

static const char *homes_name(const struct world *w, unsigned number)
{
	return number ? w->below.boxes[number - 1].name : "box";
}

static struct box **homes_box(struct world *w, unsigned number)
{
	return number ? &w->below.boxes[number - 1].box : &w->box;
}

static struct loop_listener **homes_listener(struct world *w, unsigned number)
{
	return number ? &w->below.boxes[number - 1].listener : &w->listener;
}

/* ---- cuts ---- */

static void homes_separate(struct world *w, bool on)
{
	const struct homes *h = &w->homes;

	for (unsigned a = 0; a < homes_count(w); a++) {
		for (unsigned b = 0; b < homes_count(w); b++) {
			if (!(h->from >> a & 1) || !(h->to >> b & 1))
				continue;
			loop_net_deafen(w->net, homes_host(w, a), homes_host(w, b), on);
			if (h->both)
				loop_net_deafen(w->net, homes_host(w, b), homes_host(w, a), on);
		}
	}
}

void homes_heal(struct world *w)
{
	if (!w->homes.from)
		return;
	homes_separate(w, false);
	w->homes.from = 0;
	w->homes.to = 0;
}

/* Some of them against all others; or two, whom all others hear. */
static void homes_draw_sides(struct world *w)
{
	struct homes *h = &w->homes;
	unsigned count = homes_count(w), one, other;

	h->both = homes_draw(w, 3) > 0;
	if (homes_draw(w, 2)) {
		h->from = 1 + homes_draw(w, (1u << count) - 2);
		h->to = ((1u << count) - 1) & ~h->from;
		return;
	}
	one = homes_draw(w, count);
	other = (one + 1 + homes_draw(w, count - 1)) % count;
	h->from = 1u << one;
	h->to = 1u << other;
}

static void homes_cut(struct world *w, uint64_t now_ns)
{
	struct homes *h = &w->homes;
	/* One after the other, such that are not felt could be together. */
	const uint64_t until[] = {HOMES_SHORT_NS - h->short_ns, 2 * HOMES_LOST_NS, HOMES_LONG_NS};
	unsigned length = homes_draw(w, w->plan->below_part == PART_BRIEF ? 1 : 3);
	uint64_t ns = oracle_random(&h->random) % until[length];

	homes_draw_sides(w);
	h->heals_ns = now_ns + ns;
	if (length == 0)
		h->short_ns += ns;
	else
		h->named |= h->from | h->to;
	homes_separate(w, true);
}

/* What is on its way between two of them is lost, and no more comes on these connections: others are made, and nobody
 * hears of it, but who waits for results of one that is done. */
static void homes_break(struct world *w)
{
	unsigned count = homes_count(w), one = homes_draw(w, count);
	unsigned other = (one + 1 + homes_draw(w, count - 1)) % count;

	w->homes.broke |= 1u << one | 1u << other;
	loop_net_break(w->net, homes_host(w, one), homes_host(w, other));
}

/* ---- deaths ---- */

static bool homes_runs(const struct box *box)
{
	for (const struct job *job = box->control.jobs; job; job = job->next)
		if (job->state != JOB_ENDING && job->started > 0)
			return true;
	return false;
}

/* In half of the cases with all that is in its rack. */
static void homes_die(struct world *w, unsigned number, uint64_t now_ns)
{
	struct homes *h = &w->homes;
	struct box **box = homes_box(w, number);
	struct loop_listener **listener = homes_listener(w, number);
	bool all = homes_draw(w, 2) == 0;

	for (unsigned rank = 0; rank < w->plan->workers && all; rank++) {
		struct worker *me = &w->workers[rank];

		if (w->plan->at[rank] != number || worker_is_gone(me))
			continue;
		worker_kill(me);
		w->result->died++;
	}
	if (homes_runs(*box))
		h->ends_ns = now_ns + HOMES_LOST_NS + HOMES_TELL_NS;
	h->named |= 1u << number;
	h->dead |= 1u << number;
	h->last = number;
	loop_net_kill(w->net, homes_host(w, number));
	box_destroy(*box, now_ns);
	loop_stream_unlisten(*listener);
	*box = NULL;
	*listener = NULL;
	w->result->homes_died++;
}

/* ---- other homes ---- */

enum { HOMES_REBALANCE_TURNS = 15, HOMES_MOVING_TURNS = 4, HOMES_RATES = 8 };

static double homes_rate(struct world *w)
{
	return 1e8 * (1 + homes_draw(w, HOMES_RATES));
}

void homes_write_racks(struct world *w)
{
	struct err e = {0};
	char text[1024] = "racks:\n";

	for (unsigned i = 0; i < homes_count(w); i++) {
		size_t at = strlen(text);

		snprintf(text + at, sizeof(text) - at,
			"  - name: r%u\n    uplink: 1Gbit\n    boxes:\n"
			"      - {name: b%u, address: '%s:%d', rate: 1Gbit}\n",
			i, i, homes_name(w, i), WORLD_CONTROL_PORT);
	}
	if (racks_parse(text, strlen(text), "racks", &w->config.racks, &e) < 0)
		world_fail(w, "rack file: %s", e.text);
}

/* The rack file has other rates. */
static bool homes_rebalance(struct world *w, struct job *job)
{
	struct racks *racks = &w->config.racks;
	struct err e = {0};
	char said[200];
	int rc;

	for (unsigned i = 0; i < racks->box_count; i++) {
		racks->boxes[i].rate_bytes_s = homes_rate(w);
		racks->racks[i].uplink_bytes_s = racks->boxes[i].rate_bytes_s;
	}
	rc = peers_move_begin(job, said, sizeof(said), NULL, &e);
	if (rc < 0 && rc != -EBUSY)
		world_fail(w, "rebalance: %s", e.text);
	return rc == 0 && peers_moves(job);
}

static unsigned homes_move(struct world *w)
{
	struct homes *h = &w->homes;
	struct job *job = world_job(w);
	bool moves = job && peers_moves(job);

	w->result->homes_moved += h->moves && !moves && job && job->state == JOB_RUNNING;
	h->moves = moves;
	if (moves || !job || job->state != JOB_RUNNING || !job->peers || h->rebalances == w->plan->rebalances ||
		homes_draw(w, HOMES_REBALANCE_TURNS))
		return 0;
	h->moves = homes_rebalance(w, job);
	h->rebalances += h->moves;
	w->result->homes_moves += h->moves;
	return 1;
}

/* ---- what happens ---- */

static unsigned homes_strike(struct world *w, uint64_t now_ns)
{
	const struct world_plan *plan = w->plan;
	struct homes *h = &w->homes;
	bool dies = plan->below_part == PART_DEATH || plan->below_part == PART_ANY;

	if (h->parts == plan->below_parts || h->from || h->dead || (h->parts == 0 && !below_all_started(w)) ||
		homes_draw(w, h->moves ? (unsigned)HOMES_MOVING_TURNS : plan->below_steps))
		return 0;
	h->parts++;
	if (plan->below_part == PART_ANY)
		dies = homes_draw(w, 2);
	if (dies) {
		homes_die(w, homes_draw(w, homes_count(w)), now_ns);
		return 1;
	}
	if (plan->below_part != PART_BRIEF && homes_draw(w, 3) == 0)
		homes_break(w);
	else
		homes_cut(w, now_ns);
	w->result->homes_cut++;
	return 1;
}

/* A box has died: is anybody left after that? Who comes in another's place hears of it when it is there. */
static void homes_judge(struct world *w, uint64_t now_ns)
{
	const struct homes *h = &w->homes;

	if (!h->ends_ns || now_ns <= h->ends_ns)
		return;
	for (unsigned rank = 0; rank < w->plan->workers; rank++) {
		const struct worker *me = &w->workers[rank];

		if (!worker_is_gone(me) && me->state >= WORKER_RUNNING)
			world_fail_late(w, "%s has died, and rank %u is in state %d %.1f s after that",
				homes_name(w, h->last), rank, (int)me->state,
				(double)(now_ns - h->ends_ns + HOMES_LOST_NS + HOMES_TELL_NS) / 1e9);
	}
}

unsigned homes_step(struct world *w, uint64_t now_ns)
{
	struct homes *h = &w->homes;

	homes_judge(w, now_ns);
	if (h->from && now_ns >= h->heals_ns) {
		homes_heal(w);
		return 1;
	}
	if (w->plan->below_part && homes_strike(w, now_ns))
		return 1;
	return w->plan->rebalances ? homes_move(w) : 0;
}

uint64_t homes_due(const struct world *w)
{
	return w->homes.from ? w->homes.heals_ns : UINT64_MAX;
}

/* ---- ends ---- */

uint64_t homes_wait_ns(const struct world *w)
{
	const struct world_plan *plan = w->plan;
	uint64_t ns = HOMES_LOST_NS + HOMES_TELL_NS + plan->below_parts * HOMES_SHORT_NS;

	if (plan->lost == LOST_WAIT)
		ns += (w->result->died + 1) * plan->wait_ms * 1000000ull;
	return ns;
}

static bool homes_says_lost(const char *text)
{
	static const char *const words[] = {
		" was lost", "counts as lost", " ended the session", "has been silent", "cannot be reached from here"};

	for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strstr(text, words[i]))
			return true;
	return false;
}

/* Is this rank lost, and all others at its box? Then so is the box. */
static bool homes_is_last(const struct world *w, unsigned rank)
{
	if (w->fate.ranks[rank].died_ns[0] == 0)
		return false;
	for (unsigned i = 0; i < w->plan->workers; i++) {
		const struct worker *me = &w->workers[i];
		bool comes = me->life > 0 && me->state < WORKER_RUNNING;

		if (w->plan->at[i] == w->plan->at[rank] && !worker_is_gone(me) && !comes)
			return false;
	}
	return true;
}

/* Ranks were lost, and nobody has what it takes to go on. */
static bool homes_excuses_ranks(const struct world *w, const char *text)
{
	char name[32];

	/* One box has ended the job for that, and who does not hear of it because of a cut takes it for lost. */
	if (w->result->died > 0 && w->homes.parts > 0 && strstr(text, "control session ended without a leave"))
		return true;
	if (w->result->died > 0 &&
		(strstr(text, "ranks came or went as it started") || strstr(text, "ranks went as it started")))
		return true;
	if (w->plan->lost == LOST_FAIL || w->result->died == 0)
		return false;
	if (strstr(text, "all of its workers were lost"))
		return true;
	if (w->result->came > 0 && strstr(text, "which has left; all ranks must do the same rounds"))
		return true; /* who came wants rounds that the others are done with */
	if (strstr(text, "all that had to push") || strstr(text, "first weights") ||
		strstr(text, "all that have set the hyper-parameters"))
		return true;
	for (unsigned rank = 0; rank < w->plan->workers; rank++) {
		snprintf(name, sizeof(name), "rank %u (", rank);
		if (strstr(text, name) && strstr(text, " was lost") && homes_is_last(w, rank))
			return true;
	}
	return false;
}

bool homes_excuses(const struct world *w, const char *text)
{
	const char *said = strstr(text, "job 'sim': "), *told;
	char head[ERR_TEXT_MAX], name[64];

	/* Neither whom the worker has it from nor whom that has it from is who was lost. */
	snprintf(head, sizeof(head), "%s", said ? said : text);
	told = strstr(head, JOB_TOLD);
	if (told)
		head[told - head] = '\0';
	for (unsigned number = 0; number < homes_count(w); number++) {
		snprintf(name, sizeof(name), "%s:%d", homes_name(w, number), WORLD_CONTROL_PORT);
		if (!strstr(head, name))
			continue;
		if (w->homes.named >> number & 1 && homes_says_lost(head))
			return true;
		if (w->homes.broke >> number & 1 && strstr(head, "which has left"))
			return true;
	}
	return homes_excuses_ranks(w, head);
}
