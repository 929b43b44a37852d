/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub bench train, what its parts share: the plan, and what workers write down. Parent and options: bench_train.c; a
 * worker's life: replay_worker.c; computing without a model: replay_compute.c; the numbers: replay_report.c; the
 * picture of single iterations: replay_timeline.c. Processes, memory and checks of sums are those of every bench
 * (trial_*.c).
 *
 * A run is a row of blocks. A block is some iterations of one schedule without a pause between them; the first is not
 * measured, because nothing is in flight before it. Blocks of the schedules take turns, so that a machine that changes
 * its pace changes it for all.
 */
#ifndef PHUB_CLI_REPLAY_H
#define PHUB_CLI_REPLAY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "phub/base/err.h"
#include "phub/cli/trial.h"
#include "phub/cli/trial_crew.h"
#include "topology/model_trace.h"

/* What waits for what. */
enum replay_schedule {
	REPLAY_COMPUTE,  /* no exchange */
	REPLAY_EXCHANGE, /* no computing */
	REPLAY_SERIAL,   /* all keys go when backward has ended, and are waited for */
	REPLAY_BACKWARD, /* a key goes when its layer's backward has ended; all are waited for behind the last */
	REPLAY_FIFO,     /* the same, but a layer's forward waits for its own key alone */
	REPLAY_PRIORITY, /* the same, and front layers overtake */
	REPLAY_SCHEDULES,
};

enum replay_how { REPLAY_SLEEP, REPLAY_SPIN };

enum { REPLAY_TRACED = 2 }; /* iterations of the timeline: the last shows what the one before it left behind */

/* Constant after the fork. */
struct replay_plan {
	struct trial_plan trial;
	struct model_trace trace; /* its model is in `trial` */
	enum replay_how how;
	bool schedules[REPLAY_SCHEDULES];
	unsigned rounds;            /* measured iterations of a schedule, the first of turns x iterations */
	unsigned turns, iterations; /* blocks are equally long: iterations at the end of the last may be too many */
	unsigned rank_first;
	bool timeline;
};

struct replay_time {
	uint64_t begin_ns, end_ns;
};

/* One layer in one iteration; 0: did not happen. A key's round is seen to end some 50 us late. */
struct replay_event {
	struct replay_time wait, forward, backward;
	uint64_t push_ns, done_ns;
};

/* Written by the workers, each its own part; read by the parent when they have ended. */
struct replay_shared {
	char transport[16];          /* rank_first's */
	struct replay_time *times;   /* [schedule][worker][turns * iterations] */
	struct replay_event *events; /* [worker][REPLAY_TRACED][layer] */
	size_t bytes;
};

/* What a crew's `arg` points to. */
struct replay_run {
	const struct replay_plan *plan;
	struct replay_shared *shared;
};

struct replay_time *replay_times(
	const struct replay_plan *p, const struct replay_shared *s, enum replay_schedule schedule, unsigned local);
struct replay_event *replay_events(
	const struct replay_plan *p, const struct replay_shared *s, unsigned local, unsigned iteration);

const char *replay_schedule_name(enum replay_schedule schedule);

/* The last schedule of the plan: the one that a timeline shows. */
enum replay_schedule replay_last(const struct replay_plan *p);

/* Iterations of all blocks; `rounds`: those of them that exchange. */
unsigned replay_count(const struct replay_plan *p, unsigned *rounds);

/* ---- replay_worker.c ---- */

/* A worker's whole life, in its own process. Returns its exit code. */
int replay_work(const struct trial_crew *crew, unsigned job, unsigned local, const char *job_name);

/* ---- replay_compute.c ---- */

/* Stands in for computing. Owned by one thread. */
struct replay_compute {
	enum replay_how how;
	uint64_t ready_ns; /* sleep: when what was computed last is done */
	uint64_t over_ns;  /* spin: burned too much, last time */
};

void replay_compute_init(struct replay_compute *c, enum replay_how how);

/* Computes for so long. Sleep: an accelerator does, which goes on while its host pushes. Spin: burns CPU time of this
 * thread. */
void replay_compute_for(struct replay_compute *c, uint64_t ns);

/* Nothing was computed up to now: something had to be waited for. */
void replay_compute_resume(struct replay_compute *c);

/* ---- replay_report.c ---- */

/* Prints all schedules, as a table or a line of JSON each. */
bool replay_print(const struct replay_plan *p, const struct replay_run *run, const struct trial_shared *s, bool json);

/* ---- replay_timeline.c ---- */

/* Writes Chrome's trace-event JSON of all workers. 0 or a negative errno. */
int replay_timeline_write(const struct replay_plan *p, const struct replay_shared *s, FILE *file, struct err *e);

/* Draws the last iteration of the first worker. */
void replay_timeline_draw(const struct replay_plan *p, const struct replay_shared *s);

#endif
