/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker process of phub bench train: joins, runs the blocks of all schedules, checks sums behind each, leaves.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "phub/base/clock.h"
#include "phub/cli/replay.h"
#include "phub/cli/trial_worker.h"

enum { REPLAY_LOOK_NS = 50000 }; /* between two looks at the keys in flight, for the timeline */
enum { REPLAY_PRIORITY_MAX = 65535 };

struct replay {
	struct trial_member member;
	const struct replay_plan *p;
	struct replay_shared *shared;
	unsigned local;
	struct replay_compute compute;
	unsigned round;                         /* data rounds begun */
	unsigned expected;                      /* data rounds that the expected results have gone through */
	unsigned done;                          /* iterations, for the progress bar */
	struct replay_event *events;            /* [layer] of this iteration, or NULL */
	_Atomic(struct replay_event *) *flying; /* [key] of the round in flight; whoever takes it out notes its end */
	_Atomic bool watching;
};

/* ---- the timeline's watch over keys in flight ---- */

static void replay_land(struct replay *r, uint32_t key, struct replay_event *event)
{
	/* Before the exchange of pointers: afterwards the other thread may already have noted what follows. */
	uint64_t now_ns = clock_now_ns();

	if (event && atomic_compare_exchange_strong_explicit(
			     &r->flying[key], &event, NULL, memory_order_acq_rel, memory_order_relaxed))
		event->done_ns = now_ns;
}

static void *replay_watch(void *arg)
{
	struct replay *r = arg;
	size_t count = r->p->trial.model.count;

	while (atomic_load_explicit(&r->watching, memory_order_acquire)) {
		for (uint32_t key = 0; key < count; key++) {
			struct replay_event *event = atomic_load_explicit(&r->flying[key], memory_order_acquire);

			if (event && phub_test(r->member.phub, (int)key) == 1)
				replay_land(r, key, event);
		}
		nanosleep(&(struct timespec){.tv_nsec = REPLAY_LOOK_NS}, NULL);
	}
	return NULL;
}

/* ---- a layer ---- */

static int replay_push(struct replay *r, size_t layer, int priority)
{
	struct trial_member *m = &r->member;
	uint32_t key = r->p->trace.layers[layer].tensor;
	struct replay_event *event = r->events ? &r->events[layer] : NULL;
	int rc;

	if (key == MODEL_TRACE_NO_TENSOR)
		return 0;
	if (event)
		event->push_ns = clock_now_ns();
	rc = trial_member_begin_key(m, key, priority);
	if (rc == 0 && event)
		atomic_store_explicit(&r->flying[key], event, memory_order_release);
	return rc;
}

/* Until the layer's key is back. */
static int replay_await(struct replay *r, size_t layer)
{
	struct trial_member *m = &r->member;
	uint32_t key = r->p->trace.layers[layer].tensor;
	struct replay_time *time = r->events ? &r->events[layer].wait : NULL;
	int rc;

	if (key == MODEL_TRACE_NO_TENSOR)
		return 0;
	if (phub_test(m->phub, (int)key) != 1) {
		if (time)
			time->begin_ns = clock_now_ns();
		rc = phub_wait(m->phub, (int)key, PHUB_TIMEOUT_DEFAULT);
		if (rc < 0)
			return trial_member_fail(m, rc, "exchanging", NULL);
		replay_compute_resume(&r->compute);
		if (time)
			time->end_ns = clock_now_ns();
	}
	if (r->flying)
		replay_land(r, key, atomic_load_explicit(&r->flying[key], memory_order_acquire));
	return 0;
}

static void replay_compute_layer(struct replay *r, struct replay_time *time, uint64_t ns)
{
	if (time)
		time->begin_ns = clock_now_ns();
	replay_compute_for(&r->compute, ns);
	if (time)
		time->end_ns = clock_now_ns();
}

/* ---- an iteration ---- */

static int replay_priority(enum replay_schedule schedule, size_t layer)
{
	if (schedule == REPLAY_FIFO)
		return 0;
	return layer < REPLAY_PRIORITY_MAX ? (int)layer : REPLAY_PRIORITY_MAX;
}

static int replay_await_all(struct replay *r)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < r->p->trace.count; i++)
		rc = replay_await(r, i);
	return rc;
}

static int replay_forward(struct replay *r, enum replay_schedule schedule)
{
	bool waits = schedule == REPLAY_FIFO || schedule == REPLAY_PRIORITY;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < r->p->trace.count; i++) {
		if (waits)
			rc = replay_await(r, i);
		if (rc == 0)
			replay_compute_layer(
				r, r->events ? &r->events[i].forward : NULL, r->p->trace.layers[i].forward_ns);
	}
	return rc;
}

static int replay_backward(struct replay *r, enum replay_schedule schedule)
{
	bool pushes = schedule >= REPLAY_BACKWARD;
	int rc = 0;

	for (size_t i = r->p->trace.count; rc == 0 && i-- > 0;) {
		replay_compute_layer(r, r->events ? &r->events[i].backward : NULL, r->p->trace.layers[i].backward_ns);
		if (pushes)
			rc = replay_push(r, i, replay_priority(schedule, i));
	}
	return rc;
}

static int replay_iterate(struct replay *r, enum replay_schedule schedule)
{
	bool together = schedule == REPLAY_EXCHANGE || schedule == REPLAY_SERIAL;
	int rc = 0;

	if (schedule != REPLAY_EXCHANGE && (rc = replay_forward(r, schedule)) == 0)
		rc = replay_backward(r, schedule);
	for (size_t i = 0; together && rc == 0 && i < r->p->trace.count; i++)
		rc = replay_push(r, i, replay_priority(schedule, i));
	if (rc == 0 && (together || schedule == REPLAY_BACKWARD))
		rc = replay_await_all(r);
	return rc;
}

/* ---- a block ---- */

/* Everybody has new gradients and begins at once. */
static int replay_begin_block(struct replay *r, enum replay_schedule schedule)
{
	struct trial_member *m = &r->member;
	int rc;

	if (schedule != REPLAY_COMPUTE)
		trial_member_fill(m, r->round);
	rc = phub_barrier(m->phub, PHUB_TIMEOUT_DEFAULT);
	if (rc < 0)
		return trial_member_fail(m, rc, "barrier", NULL);
	rc = trial_meet(m->p, m->s);
	replay_compute_init(&r->compute, r->p->how);
	return rc;
}

/* Every worker works out its share of what must have come, then all compare all. */
static int replay_end_block(struct replay *r, enum replay_schedule schedule)
{
	struct trial_member *m = &r->member;
	int rc;

	if (schedule == REPLAY_COMPUTE)
		return 0;
	trial_expect(m->p, m->s, r->local, r->expected, r->round - 1);
	r->expected = r->round;
	rc = trial_meet(m->p, m->s);
	if (rc < 0)
		return rc;
	trial_member_check(m, r->round - 1);
	if (r->round < m->p->rounds)
		trial_pieces_save(&m->pieces, m->p);
	return 0;
}

/* Iterations without a pause, of which those behind the first are written to `times`, unless it is NULL; `events` are
 * written for the last ones. */
static int replay_run_block(struct replay *r, enum replay_schedule schedule, unsigned count, struct replay_time *times,
	struct replay_event *events)
{
	uint64_t begin_ns, end_ns;
	int rc = replay_begin_block(r, schedule);

	begin_ns = clock_now_ns();
	for (unsigned i = 0; rc == 0 && i < count; i++) {
		if (events && i + REPLAY_TRACED >= count)
			r->events = events + (i + REPLAY_TRACED - count) * r->p->trace.count;
		r->round += schedule != REPLAY_COMPUTE;
		rc = replay_iterate(r, schedule);
		end_ns = clock_now_ns();
		if (times && i > 0)
			times[i - 1] = (struct replay_time){begin_ns, end_ns};
		begin_ns = end_ns;
		r->done++;
		if (r->local == 0)
			atomic_store_explicit(&r->member.s->round, r->done, memory_order_relaxed);
	}
	r->events = NULL;
	if (rc == 0)
		rc = replay_await_all(r);
	return rc == 0 ? replay_end_block(r, schedule) : rc;
}

static int replay_run_timeline(struct replay *r)
{
	struct replay_event *events = replay_events(r->p, r->shared, r->local, 0);
	pthread_t watch;
	int rc;

	r->flying = calloc(r->p->trial.model.count, sizeof(*r->flying));
	if (!r->flying)
		return trial_member_fail(&r->member, -ENOMEM, "timeline", "out of memory");
	atomic_store_explicit(&r->watching, true, memory_order_relaxed);
	rc = -pthread_create(&watch, NULL, replay_watch, r);
	if (rc < 0) {
		free(r->flying);
		return trial_member_fail(&r->member, rc, "timeline", strerror(-rc));
	}
	rc = replay_run_block(r, replay_last(r->p), 1 + REPLAY_TRACED, NULL, events);
	atomic_store_explicit(&r->watching, false, memory_order_release);
	pthread_join(watch, NULL);
	free(r->flying);
	r->flying = NULL;
	return rc;
}

static int replay_run_all(struct replay *r)
{
	const struct replay_plan *p = r->p;
	unsigned count = 1 + p->iterations;
	int rc;

	trial_expect_begin(&p->trial, r->member.s, r->local);
	rc = replay_run_block(r, REPLAY_EXCHANGE, count, NULL, NULL); /* warms up */
	for (unsigned turn = 0; turn < p->turns; turn++) {
		for (enum replay_schedule s = 0; rc == 0 && s < REPLAY_SCHEDULES; s++) {
			struct replay_time *times = replay_times(p, r->shared, s, r->local) + turn * p->iterations;

			if (p->schedules[s])
				rc = replay_run_block(r, s, count, times, NULL);
		}
	}
	return rc == 0 && p->timeline ? replay_run_timeline(r) : rc;
}

int replay_work(const struct trial_crew *crew, unsigned job, unsigned local, const char *job_name)
{
	const struct replay_run *run = crew->arg;
	struct replay r = {
		.member = {.p = crew->plan,
			.s = crew->shared[job],
			.outcome = &crew->shared[job]->outcomes[local],
			.rank = run->plan->rank_first + local},
		.p = run->plan,
		.shared = run->shared,
		.local = local,
	};
	int rc = trial_worker_join(&r.member, crew->box.address, job_name);

	if (rc == 0 && local == 0)
		snprintf(run->shared->transport, sizeof(run->shared->transport), "%s", phub_transport(r.member.phub));
	prctl(PR_SET_TIMERSLACK, 1); /* of this thread; the library's has its own by now */
	if (rc == 0)
		rc = trial_worker_prepare(&r.member);
	if (rc == 0)
		rc = replay_run_all(&r);
	return trial_worker_end(&r.member, rc);
}
