/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes time as a layer does that computes.
 *
 * Sleeping: deadlines are chained, so that waking up a little late makes no iteration longer, and the last stretch is
 * spun.
 * Spinning counts CPU time, not time: processes that share a CPU slow each other down as training ones would.
 */
#include <errno.h>
#include <time.h>

#include "phub/base/clock.h"
#include "phub/cli/replay.h"

enum {
	COMPUTE_TAIL_NS = 20000, /* what a sleep may wake up late by */
	COMPUTE_LATE_NS =
		1000000, /* and what of it is made up for: beyond, this machine was busy with something else */
};

void replay_compute_init(struct replay_compute *c, enum replay_how how)
{
	*c = (struct replay_compute){.how = how, .ready_ns = clock_now_ns()};
}

static void compute_sleep_until(uint64_t until_ns)
{
	uint64_t now_ns = clock_now_ns();

	if (now_ns + COMPUTE_TAIL_NS < until_ns) {
		uint64_t wake_ns = until_ns - COMPUTE_TAIL_NS;
		struct timespec wake = {.tv_sec = (time_t)(wake_ns / NS_PER_S), .tv_nsec = (long)(wake_ns % NS_PER_S)};

		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL) == EINTR)
			continue;
	}
	while (clock_now_ns() < until_ns)
		continue;
}

static void compute_spin(struct replay_compute *c, uint64_t ns)
{
	uint64_t begin_ns, spent_ns;

	if (ns <= c->over_ns) {
		c->over_ns -= ns;
		return;
	}
	ns -= c->over_ns;
	begin_ns = clock_thread_cpu_ns();
	do {
		spent_ns = clock_thread_cpu_ns() - begin_ns;
	} while (spent_ns < ns);
	c->over_ns = spent_ns - ns;
}

void replay_compute_for(struct replay_compute *c, uint64_t ns)
{
	uint64_t now_ns;

	if (ns == 0)
		return;
	if (c->how == REPLAY_SPIN) {
		compute_spin(c, ns);
		return;
	}
	now_ns = clock_now_ns();
	if (c->ready_ns + COMPUTE_LATE_NS < now_ns)
		c->ready_ns = now_ns - COMPUTE_LATE_NS;
	c->ready_ns += ns;
	compute_sleep_until(c->ready_ns);
}

void replay_compute_resume(struct replay_compute *c)
{
	uint64_t now_ns = clock_now_ns();

	if (c->ready_ns < now_ns)
		c->ready_ns = now_ns;
}
