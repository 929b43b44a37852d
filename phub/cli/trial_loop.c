/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns a box and its workers by hand. The network's clock follows the real one, so that heartbeats keep their meaning;
 * it has no delays and loses nothing. The box's CPU time is what its steps took.
 */
#include "phub/cli/trial_loop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "aggregation/dispatch.h"
#include "client/client.h"
#include "phub/base/clock.h"
#include "phub/cli/trial_member.h"
#include "phub/control/box.h"
#include "transport/loop.h"

enum { LOOP_BOX = 0, LOOP_PORT = 7077, LOOP_HOLD_MAX = 1024 };

struct loop_rank {
	struct loop_run *run;
	struct trial_member member;
	struct loop_host *host;
};

struct loop_run {
	const struct trial_plan *p;
	struct trial_shared *s;
	struct loop_net *net;
	struct loop_listener *listener;
	struct config config;
	struct box *box;
	struct loop_rank *ranks; /* [p->workers] */
	uint64_t box_ns;         /* spent in box_step() */
	unsigned expected;       /* rounds that the expected results have gone through */
	struct err *e;
};

static const struct transport_ops *const loop_transports[] = {&transport_loop, NULL};

/* ---- setting up ---- */

static int loop_accept(void *arg, struct stream **out)
{
	return loop_stream_accept(((struct loop_run *)arg)->listener, out);
}

static int loop_dial(void *ctx, const char *host, uint16_t port, struct stream **out, struct err *e)
{
	struct loop_rank *rank = ctx;
	int rc = loop_stream_dial(rank->host, LOOP_BOX, port, out);

	(void)host;
	return rc < 0 ? err_set(e, rc, "the network in memory: %s", strerror(-rc)) : 0;
}

static uint64_t loop_now(void *ctx)
{
	return loop_net_now(((struct loop_rank *)ctx)->run->net);
}

static int loop_configure(struct config *config, const struct box_settings *settings, struct err *e)
{
	int rc = 0;

	config_init(config);
	if (settings->config)
		rc = config_load(config, settings->config, e);
	for (unsigned i = 0; rc == 0 && i < settings->count; i++)
		rc = config_set(config, settings->set[i], e);
	return rc == 0 ? config_finish(config, e) : rc;
}

static int loop_open_box(struct loop_run *run, const struct box_settings *settings)
{
	struct box_env env = {
		.transports = loop_transports,
		.transport_count = 1,
		.loop = loop_net_host(run->net, LOOP_BOX),
		.accept = loop_accept,
		.accept_arg = run,
		.by_hand = true,
	};
	char text[256];
	int rc = loop_stream_listen(env.loop, LOOP_PORT, &run->listener);

	if (rc < 0)
		return err_set(run->e, rc, "the network in memory: %s", strerror(-rc));
	rc = loop_configure(&run->config, settings, run->e);
	if (rc < 0)
		return rc;
	rc = dispatch_from_env(&env.kernels, text, sizeof(text));
	if (rc < 0)
		return err_set(run->e, rc, "%s", text);
	return box_create(&run->config, &env, loop_net_now(run->net), &run->box, run->e);
}

static int loop_open_rank(struct loop_run *run, unsigned rank)
{
	struct loop_rank *r = &run->ranks[rank];
	struct client_env env = {.dial = loop_dial, .now = loop_now, .transports = loop_transports, .ctx = r};
	struct phub_options options;
	struct phub_hyper *groups;
	int rc;

	r->run = run;
	r->host = loop_net_host(run->net, rank + 1);
	r->member = (struct trial_member){.p = run->p, .s = run->s, .outcome = &run->s->outcomes[rank], .rank = rank};
	env.config.loop = r->host;
	rc = trial_member_options(&r->member, &options, &groups);
	if (rc < 0)
		return err_set(run->e, rc, "out of memory");
	options.transport = NULL;
	rc = client_open("phub://box/bench", &options, &env, &r->member.phub, run->e);
	free(groups);
	return rc;
}

static int loop_open(struct loop_run *run, const struct box_settings *settings)
{
	struct loop_plan plan = {.hosts = run->p->workers + 1, .hold_max = LOOP_HOLD_MAX};
	int rc;

	run->ranks = calloc(run->p->workers, sizeof(*run->ranks));
	run->net = loop_net_create(&plan);
	if (!run->ranks || !run->net)
		return err_set(run->e, -ENOMEM, "out of memory");
	rc = loop_open_box(run, settings);
	for (unsigned rank = 0; rc == 0 && rank < run->p->workers; rank++)
		rc = loop_open_rank(run, rank);
	return rc;
}

static void loop_close(struct loop_run *run)
{
	for (unsigned rank = 0; run->ranks && rank < run->p->workers; rank++) {
		if (run->ranks[rank].member.phub)
			client_close(run->ranks[rank].member.phub);
		trial_member_fini(&run->ranks[rank].member);
	}
	if (run->box)
		box_destroy(run->box, loop_net_now(run->net));
	config_fini(&run->config);
	if (run->listener)
		loop_stream_unlisten(run->listener);
	if (run->net)
		loop_net_destroy(run->net);
	free(run->ranks);
}

/* ---- turning ---- */

static void loop_step(struct loop_run *run)
{
	uint64_t begin_ns = clock_now_ns();

	if (begin_ns > loop_net_now(run->net))
		loop_net_advance(run->net, begin_ns);
	box_step(run->box, begin_ns);
	run->box_ns += clock_now_ns() - begin_ns;
	for (unsigned rank = 0; rank < run->p->workers; rank++)
		client_progress(run->ranks[rank].member.phub, begin_ns);
}

static int loop_is_idle(const phub_t *phub)
{
	int idle = client_idle(phub, PHUB_ALL);

	return idle < 0 ? idle : idle == 1 ? 0 : -EAGAIN;
}

/* Until `done` says 0 for every rank; times[rank], when there are any, get the moment at which it first did. */
static int loop_await(struct loop_run *run, int (*done)(const phub_t *), const char *what, unsigned round, bool timed)
{
	uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), run->p->timeout_ms);
	unsigned left = run->p->workers;
	bool *is_done = calloc(left, sizeof(*is_done));
	int rc = is_done ? 0 : err_set(run->e, -ENOMEM, "out of memory");

	while (rc == 0 && left) {
		loop_step(run);
		for (unsigned rank = 0; rc == 0 && rank < run->p->workers; rank++) {
			struct trial_member *m = &run->ranks[rank].member;
			int now = is_done[rank] ? -EAGAIN : done(m->phub);

			if (now == 0) {
				is_done[rank] = true;
				left--;
				if (timed)
					trial_times(run->p, run->s, rank)[round].end_ns = clock_now_ns();
			} else if (now != -EAGAIN) {
				rc = trial_member_fail(m, now, what, client_failure(m->phub)->text);
			}
		}
		if (rc == 0 && left && clock_now_ns() > deadline_ns)
			rc = err_set(run->e, -ETIMEDOUT, "%s: not done after %d s", what, run->p->timeout_ms / 1000);
	}
	free(is_done);
	return rc;
}

/* One step of the protocol at every rank. */
static int loop_each(struct loop_run *run, int (*begin)(struct trial_member *))
{
	int rc = 0;

	for (unsigned rank = 0; rc == 0 && rank < run->p->workers; rank++)
		rc = begin(&run->ranks[rank].member);
	return rc;
}

static int loop_begin_start(struct trial_member *m)
{
	struct err e;
	int rc = trial_member_name_keys(m);

	if (rc == 0 && (rc = client_start_begin(m->phub, &e)) < 0)
		trial_member_fail(m, rc, "starting", e.text);
	return rc;
}

static int loop_begin_leave(struct trial_member *m)
{
	trial_member_count(m);
	client_leave_begin(m->phub);
	return 0;
}

static int loop_join(struct loop_run *run)
{
	int rc = loop_await(run, client_joined, "connecting", 0, false);

	if (rc == 0)
		rc = loop_each(run, loop_begin_start);
	if (rc == 0)
		rc = loop_await(run, client_started, "starting", 0, false);
	if (rc == 0)
		rc = loop_each(run, trial_member_take_memory);
	if (rc == 0)
		rc = loop_each(run, trial_member_begin_weights);
	if (rc == 0)
		rc = loop_await(run, loop_is_idle, "first weights", 0, false);
	for (unsigned rank = 0; rc == 0 && rank < run->p->workers; rank++) {
		trial_member_end_weights(&run->ranks[rank].member);
		trial_expect_begin(run->p, run->s, rank);
	}
	return rc;
}

/* ---- rounds ---- */

static int loop_round(struct loop_run *run, unsigned round)
{
	uint64_t box_ns = run->box_ns, begin_ns, spent_ns;
	int rc = 0;

	for (unsigned rank = 0; trial_is_fresh(run->p, round) && rank < run->p->workers; rank++)
		trial_member_fill(&run->ranks[rank].member, round);
	begin_ns = clock_now_ns();
	for (unsigned rank = 0; rc == 0 && rank < run->p->workers; rank++) {
		trial_times(run->p, run->s, rank)[round].begin_ns = clock_now_ns();
		rc = trial_member_begin_round(&run->ranks[rank].member);
	}
	if (rc == 0)
		rc = loop_await(run, loop_is_idle, "exchanging", round, true);
	spent_ns = clock_now_ns() - begin_ns;
	if (round >= run->p->warmup) {
		run->s->box_cpu_ns += run->box_ns - box_ns;
		run->s->outcomes[0].cpu_ns += spent_ns - (run->box_ns - box_ns);
	}
	return rc;
}

static void loop_check(struct loop_run *run, unsigned round)
{
	for (unsigned rank = 0; rank < run->p->workers; rank++)
		trial_expect(run->p, run->s, rank, run->expected, round);
	run->expected = round + 1;
	for (unsigned rank = 0; rank < run->p->workers; rank++)
		trial_member_check(&run->ranks[rank].member, round);
}

static int loop_run_rounds(struct loop_run *run)
{
	unsigned count = run->p->warmup + run->p->rounds;
	int rc = 0;

	for (unsigned round = 0; rc == 0 && round < count; round++) {
		rc = loop_round(run, round);
		if (rc == 0 && trial_is_checked(run->p, round))
			loop_check(run, round);
		for (unsigned rank = 0; rc == 0 && round + 1 < count && rank < run->p->workers; rank++)
			trial_pieces_save(&run->ranks[rank].member.pieces, run->p);
	}
	return rc;
}

/* The box takes the job down; then its books must balance. */
static int loop_leave(struct loop_run *run)
{
	uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), run->p->timeout_ms);
	int rc = loop_each(run, loop_begin_leave);

	if (rc == 0)
		rc = loop_await(run, client_left, "leaving", 0, false);
	while (rc == 0 && run->box->control.jobs && clock_now_ns() < deadline_ns)
		loop_step(run);
	if (rc == 0 && !box_balanced(run->box))
		rc = err_set(run->e, -EPROTO, "slots, credits or completions of the box did not balance");
	return rc;
}

int trial_loop(const struct trial_plan *p, struct trial_shared *s, const struct box_settings *settings, struct err *e)
{
	struct loop_run run = {.p = p, .s = s, .e = e};
	int rc = loop_open(&run, settings);

	if (rc == 0)
		rc = loop_join(&run);
	if (rc == 0)
		rc = loop_run_rounds(&run);
	if (rc == 0)
		rc = loop_leave(&run);
	loop_close(&run);
	return rc;
}
