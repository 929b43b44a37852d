/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blow falls some turns after the copy is whole, or, now and then, at any time before.
 */
#include "tests/sim/twin.h"

#include "aggregation/dispatch.h"
#include "client/call.h"
#include "phub/control/job_mirror.h"
#include "phub/control/standby.h"
#include "tests/sim/worker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	TWIN_BREAK_STEPS = 200, /* a connection between the boxes breaks once in so many turns, at most */
	TWIN_MEND_STEPS = 20,   /* ... where that is so only when the copy is whole */
	TWIN_KEEP_MS = 60000,
};

#define TWIN_MEND_NS 3000000000ull /* a copy whose connections broke is whole again within that */

/* ---- the first box as a client of the second ---- */

unsigned twin_endpoint(const char *host)
{
	return strcmp(host, "twin") == 0 ? TWIN_HOST : WORLD_BOX_HOST;
}

static int twin_dial(void *ctx, const char *host, uint16_t port, struct stream **out, struct err *e)
{
	struct world *w = ctx;
	unsigned from = w->plan->below ? TWIN_HOST : WORLD_BOX_HOST;
	int rc = loop_stream_dial(loop_net_host(w->net, from), twin_endpoint(host), port, out);

	return rc < 0 ? err_set(e, rc, "dial: %d", rc) : 0;
}

static int twin_dial_back(void *ctx, const char *host, uint16_t port, struct stream **out, struct err *e)
{
	struct world *w = ctx;
	int rc = loop_stream_dial(loop_net_host(w->net, WORLD_BOX_HOST), twin_endpoint(host), port, out);

	return rc < 0 ? err_set(e, rc, "dial: %d", rc) : 0;
}

static uint64_t twin_now(void *ctx)
{
	return loop_net_now(((struct world *)ctx)->net);
}

static int twin_accept(void *arg, struct stream **out)
{
	return loop_stream_accept(((struct world *)arg)->twin.listener, out);
}

/* ---- making it ---- */

static int twin_configure_second(struct world *w, struct err *e)
{
	struct twin *t = &w->twin;
	char text[64];
	int rc;

	config_init(&t->config);
	snprintf(text, sizeof(text), "cores=%u", w->plan->below ? w->plan->below_cores : w->plan->cores);
	rc = config_set(&t->config, text, e);
	snprintf(text, sizeof(text), "window=%u", w->plan->window);
	if (rc == 0)
		rc = config_set(&t->config, text, e);
	snprintf(text, sizeof(text), "standby_keep_ms=%d", TWIN_KEEP_MS);
	if (rc == 0)
		rc = config_set(&t->config, text, e);
	if (rc == 0 && w->plan->encrypt)
		rc = config_set(&t->config, "create=secret", e);
	if (rc == 0 && w->plan->encrypt)
		rc = config_set(&t->config, "create_secret_env=PHUB_SIM_SECRET", e);
	snprintf(text, sizeof(text), "uplink=box:%d", WORLD_CONTROL_PORT);
	if (rc == 0 && w->plan->below)
		rc = config_set(&t->config, text, e);
	if (rc == 0 && w->plan->below) /* as below */
		rc = config_set(&t->config, "listen=127.0.0.1:1", e);
	snprintf(text, sizeof(text), "advertise=twin:%d", WORLD_CONTROL_PORT);
	if (rc == 0)
		rc = config_set(&t->config, text, e);
	return rc == 0 ? config_finish(&t->config, e) : rc;
}

int twin_configure(struct world *w, struct err *e)
{
	char text[64];
	int rc;

	snprintf(text, sizeof(text), "hierarchy=%s", world_hierarchies[w->plan->hierarchy]);
	if (w->plan->below) {
		rc = config_set(&w->config, text, e);
		return rc == 0 ? twin_configure_second(w, e) : rc;
	}
	if (w->plan->strike == STRIKE_NONE)
		return 0;
	snprintf(text, sizeof(text), "standby=twin:%d", WORLD_CONTROL_PORT);
	rc = config_set(&w->config, text, e);
	if (rc == 0) /* at another port, the twin is no other name of this box, and nobody has to look it up */
		rc = config_set(&w->config, "listen=127.0.0.1:1", e);
	return rc == 0 ? twin_configure_second(w, e) : rc;
}

int twin_open(struct world *w, struct box_env *env, struct err *e)
{
	struct box_env mine = *env, *calls;
	struct twin *t = &w->twin;
	char text[64];
	int rc;

	if (!world_plan_twins(w->plan))
		return 0;
	t->state = w->plan->below ? TWIN_BELOW : TWIN_STANDS;
	t->random = w->plan->seed * 77 + 5;
	t->client = (struct client_env){.dial = twin_dial,
		.now = twin_now,
		.ctx = w,
		.transports = env->transports,
		.config.loop = loop_net_host(w->net, w->plan->below ? TWIN_HOST : WORLD_BOX_HOST)};
	t->back = t->client;
	t->back.dial = twin_dial_back;
	t->back.config.loop = loop_net_host(w->net, WORLD_BOX_HOST);
	calls = w->plan->below ? &mine : env;
	calls->calls = &client_call_ops;
	calls->calls_arg = &t->client;
	if (w->plan->hierarchy) {
		env->calls = &client_call_ops;
		env->calls_arg = &t->back;
	}
	rc = loop_stream_listen(loop_net_host(w->net, TWIN_HOST), WORLD_CONTROL_PORT, &t->listener);
	mine.loop = loop_net_host(w->net, TWIN_HOST);
	mine.accept = twin_accept;
	mine.plant = w->plan->below && env->plant >= SHARD_PLANT_UNCOUNTED ? env->plant : SHARD_PLANT_NONE;
	if (rc == 0)
		rc = dispatch_from_env(&mine.kernels, text, sizeof(text));
	t->env = mine;
	return rc == 0 ? box_create(&t->config, &mine, loop_net_now(w->net), &t->box, e) : rc;
}

void twin_close(struct world *w)
{
	struct twin *t = &w->twin;

	if (t->box)
		box_destroy(t->box, loop_net_now(w->net));
	if (t->other)
		box_destroy(t->other, loop_net_now(w->net));
	if (t->listener)
		loop_stream_unlisten(t->listener);
	if (world_plan_twins(w->plan))
		config_fini(&t->config);
}

/* ---- what happens ---- */

/* Is what any worker has got at the standby, too? */
static bool twin_is_whole(struct world *w)
{
	struct job *copy = job_find_mirror(&w->twin.box->control, "sim");
	struct job *job = job_find(&w->box->control, "sim");
	struct standby_report report;
	bool whole =
		copy && copy->mirror->whole && job && standby_describe(job, &report) && report.state == STANDBY_WHOLE;

	w->twin.unnoticed = w->twin.unnoticed && whole;
	return whole && !w->twin.unnoticed;
}

/* From now on the second box is the world's. */
static void twin_change_places(struct world *w)
{
	struct twin *t = &w->twin;

	t->other = w->box;
	w->box = t->box;
	t->box = NULL;
	w->box_host = TWIN_HOST;
}

static void twin_cut(struct world *w, bool on)
{
	if (!w->plan->apart)
		loop_net_partition(w->net, WORLD_BOX_HOST, TWIN_HOST, on);
	for (unsigned rank = 0; rank < w->plan->workers; rank++)
		loop_net_partition(w->net, WORLD_BOX_HOST, w->workers[rank].host->endpoint, on);
}

static void twin_strike(struct world *w)
{
	struct twin *t = &w->twin;

	t->whole = twin_is_whole(w);
	world_heal(w); /* no datagrams are lost for a while after a blow */
	if (w->plan->strike == STRIKE_STANDBY) {
		loop_net_kill(w->net, TWIN_HOST);
		t->whole = true; /* it must not be felt */
		t->dead = true;
		t->state = TWIN_ALONE;
	} else if (w->plan->strike == STRIKE_KILL) {
		loop_net_kill(w->net, WORLD_BOX_HOST);
		twin_change_places(w);
		t->dead = true;
		t->state = TWIN_ALONE;
	} else {
		twin_cut(w, true);
		twin_change_places(w);
		t->state = TWIN_CUT;
	}
	w->result->struck++;
	w->result->whole += t->whole;
}

/* A cut heals when the job goes on at the other side: what the first box still says must not matter. */
static bool twin_heal(struct world *w)
{
	const struct job *job = job_find(&w->box->control, "sim");

	if (w->twin.state != TWIN_CUT || (job && job->state != JOB_RUNNING))
		return false;
	for (unsigned rank = 0; rank < w->plan->workers; rank++)
		if (!worker_is_gone(&w->workers[rank]) && w->workers[rank].phub->session.at.host[0] != 't')
			return false;
	twin_cut(w, false);
	w->twin.state = TWIN_ALONE;
	return true;
}

/* Before that a worker tries to reach the box for as long as its caller has patience. */
static bool twin_all_started(const struct world *w)
{
	for (unsigned rank = 0; rank < w->plan->workers; rank++)
		if (!worker_is_gone(&w->workers[rank]) && w->workers[rank].phub->session.state < SESSION_STARTED)
			return false;
	return true;
}

/* A connection between the boxes breaks, and the copy is whole again soon. Until then: true, nothing is struck. */
static bool twin_mends(struct world *w, uint64_t now_ns)
{
	const struct job *job = job_find(&w->box->control, "sim");
	struct twin *t = &w->twin;
	bool whole = twin_is_whole(w);

	if (!w->plan->mended || !t->whole_ns)
		return w->plan->mended;
	if (whole || !job || job->state != JOB_RUNNING || job->present < job->world)
		t->hale_ns = now_ns;
	if (now_ns >= t->hale_ns + TWIN_MEND_NS)
		world_fail(w, "connections to the standby broke, and %llu s later it does not have the job yet",
			(unsigned long long)(TWIN_MEND_NS / 1000000000));
	return !whole || t->breaks < w->plan->twin_breaks;
}

/* The box below dies, and all who are at it: its rack has no power. Later it has. */
static void twin_die(struct world *w)
{
	struct twin *t = &w->twin;
	uint64_t now_ns = loop_net_now(w->net);

	for (unsigned rank = 0; rank < w->plan->workers; rank++) {
		struct worker *me = &w->workers[rank];

		if (!me->below || worker_is_gone(me))
			continue;
		worker_kill(me);
		fate_lose(&w->fate, rank, now_ns);
		w->result->died++;
	}
	loop_net_kill(w->net, TWIN_HOST);
	box_destroy(t->box, now_ns);
	loop_stream_unlisten(t->listener);
	t->box = NULL;
	t->listener = NULL;
	t->returns_ns = now_ns + 1 + oracle_random(&t->random) % (w->plan->return_max_ns + 1);
}

static void twin_return(struct world *w)
{
	struct twin *t = &w->twin;
	struct err e = {0};

	loop_net_revive(w->net, TWIN_HOST);
	if (loop_stream_listen(loop_net_host(w->net, TWIN_HOST), WORLD_CONTROL_PORT, &t->listener) < 0 ||
		box_create(&t->config, &t->env, loop_net_now(w->net), &t->box, &e) < 0)
		world_fail(w, "no box below in its place: %s", e.text);
	t->returns_ns = 0;
	t->dead = false;
}

/* Where one is below the other, all of a job ends with either, or, where it may, goes on without who is at that. */
static unsigned twin_part(struct world *w)
{
	const struct world_plan *plan = w->plan;
	struct twin *t = &w->twin;

	if (!plan->below_part || t->parted || !twin_all_started(w) || oracle_random(&t->random) % plan->below_steps)
		return 0;
	t->parted = true;
	t->dead = plan->below_part == PART_DEATH;
	w->result->parted++;
	if (t->dead && world_plan_varies(plan)) {
		twin_die(w);
		return 1;
	}
	if (t->dead) {
		loop_net_kill(w->net, TWIN_HOST);
		return 1;
	}
	loop_net_partition(w->net, WORLD_BOX_HOST, TWIN_HOST, true);
	loop_net_partition_streams(w->net, WORLD_BOX_HOST, TWIN_HOST, true);
	return 1;
}

static unsigned twin_fate(struct world *w, uint64_t now_ns)
{
	struct twin *t = &w->twin;

	if (t->state == TWIN_BELOW && t->returns_ns && now_ns >= t->returns_ns) {
		twin_return(w);
		return 1;
	}
	if (t->state == TWIN_BELOW)
		return twin_part(w);

	if (t->state != TWIN_STANDS)
		return twin_heal(w);
	if (!t->whole_ns && twin_is_whole(w))
		t->whole_ns = now_ns ? now_ns : 1;
	if (t->breaks < w->plan->twin_breaks && (t->whole_ns || !w->plan->mended) &&
		oracle_random(&t->random) % (w->plan->mended ? TWIN_MEND_STEPS : TWIN_BREAK_STEPS) == 0) {
		loop_net_break(w->net, WORLD_BOX_HOST, TWIN_HOST);
		t->breaks++;
		t->unnoticed = true;
	}
	if (twin_mends(w, now_ns) || (!t->whole_ns && (!w->plan->hasty || !twin_all_started(w))))
		return 0;
	if (oracle_random(&t->random) % w->plan->strike_steps)
		return 0;
	twin_strike(w);
	return 1;
}

unsigned twin_step(struct world *w, uint64_t now_ns)
{
	struct twin *t = &w->twin;
	struct box *box = t->box ? t->box : t->other;
	unsigned work = 0;

	if (t->state == TWIN_NONE)
		return 0;
	if (!t->dead)
		work = box_step(box, now_ns);
	return work + twin_fate(w, now_ns);
}

uint64_t twin_due(struct world *w)
{
	const struct twin *t = &w->twin;
	const struct box *box = t->box ? t->box : t->other;

	if (t->state == TWIN_NONE || t->dead)
		return t->returns_ns ? t->returns_ns : UINT64_MAX;
	for (unsigned i = 0; i < box->core_count; i++)
		for (unsigned j = 0; j < box->cores[i]->queue_count; j++)
			box->cores[i]->queues[j]->ops->arm(box->cores[i]->queues[j]);
	return box_next(box);
}

bool twin_is_stale(const struct world *w)
{
	return w->twin.state >= TWIN_CUT && !w->twin.whole;
}

static bool twin_misses_one(const struct world *w)
{
	for (unsigned rank = 0; rank < w->plan->workers; rank++)
		if (worker_is_gone(&w->workers[rank]))
			return true;
	return false;
}

bool twin_has(struct world *w, unsigned rank, unsigned life)
{
	const struct twin *t = &w->twin;
	bool first = w->plan->below >> rank & 1;

	if (life == 0 || !w->plan->below || w->plan->hierarchy)
		return first;
	return !t->parted && oracle_random(&w->twin.random) % 2 ? !first
								: first && (!t->parted || !t->dead || t->returns_ns);
}

bool twin_disturbs(const struct worker *me, const char *text)
{
	return me->world->plan->below && (strstr(text, "try again in a moment") || strstr(text, "runs here already"));
}

/* May it be because ranks are lost, and come, in a job at two boxes? */
static bool twin_excuses_loss(const struct world *w, const char *text)
{
	bool some = w->result->died > 0 || w->twin.parted;

	if (!w->plan->below || w->plan->lost == LOST_FAIL || !some)
		return false;
	if (strstr(text, "all that had to push") || strstr(text, "first weights"))
		return true;
	if (w->plan->lost == LOST_WAIT && strstr(text, "no other took its place"))
		return true;
	return w->plan->hierarchy && strstr(text, " was lost"); /* the last of a box, or a box */
}

bool twin_excuses(const struct world *w, const char *text)
{
	const char *why = strstr(text, "does not go on with the job: ");

	if (twin_excuses_loss(w, text))
		return true;
	if (w->twin.parted && (strstr(text, " was lost: ") || strstr(text, "box twin:7077 ended the session")))
		return true;
	if (twin_is_stale(w) && (w->result->ended > 0 || twin_misses_one(w)) && strstr(text, " was lost: "))
		return true; /* another, which had such an end, or all that it wanted from the first box */
	return twin_is_stale(w) && why &&
	       (strstr(why, "there is no copy of it") || strstr(why, "the copy of it is not whole yet") ||
		       strstr(why, "this worker's at ")); /* a round of which the copy knows nothing */
}

const char *twin_settled(struct world *w)
{
	struct twin *t = &w->twin;
	struct box *box = t->box ? t->box : t->other;

	if (t->state == TWIN_CUT)
		twin_cut(w, false);
	if (t->state == TWIN_NONE || t->dead)
		return NULL;
	if (box->control.jobs)
		return "a job of the other box";
	return box_balanced(box) ? NULL : "books of the other box that do not balance";
}
