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

static int twin_dial(void *ctx, const char *host, uint16_t port, struct stream **out, struct err *e)
{
	struct world *w = ctx;
	int rc = loop_stream_dial(loop_net_host(w->net, WORLD_BOX_HOST), world_endpoint(w, host), port, out);

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
	snprintf(text, sizeof(text), "cores=%u", w->plan->cores);
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
	snprintf(text, sizeof(text), "advertise=twin:%d", WORLD_CONTROL_PORT);
	if (rc == 0)
		rc = config_set(&t->config, text, e);
	return rc == 0 ? config_finish(&t->config, e) : rc;
}

int twin_configure(struct world *w, struct err *e)
{
	char text[64];
	int rc;

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
	struct box_env mine = *env;
	struct twin *t = &w->twin;
	char text[64];
	int rc;

	if (w->plan->strike == STRIKE_NONE)
		return 0;
	t->state = TWIN_STANDS;
	t->random = w->plan->seed * 77 + 5;
	t->client = (struct client_env){.dial = twin_dial,
		.now = twin_now,
		.ctx = w,
		.transports = env->transports,
		.config.loop = loop_net_host(w->net, WORLD_BOX_HOST)};
	env->calls = &client_call_ops;
	env->calls_arg = &t->client;
	rc = loop_stream_listen(loop_net_host(w->net, TWIN_HOST), WORLD_CONTROL_PORT, &t->listener);
	mine.loop = loop_net_host(w->net, TWIN_HOST);
	mine.accept = twin_accept;
	mine.plant = SHARD_PLANT_NONE;
	if (rc == 0)
		rc = dispatch_from_env(&mine.kernels, text, sizeof(text));
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
	if (t->state != TWIN_NONE)
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

static unsigned twin_fate(struct world *w, uint64_t now_ns)
{
	struct twin *t = &w->twin;

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
		return UINT64_MAX;
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

bool twin_excuses(const struct world *w, const char *text)
{
	const char *why = strstr(text, "does not go on with the job: ");

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
