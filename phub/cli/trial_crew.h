/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker processes of a bench, as their parent sees them: of one job or several, started, watched together with the
 * box, and ended. What goes wrong ends all of them: a worker's own error, its death, the box's, or a signal to the
 * parent.
 */
#ifndef PHUB_CLI_TRIAL_CREW_H
#define PHUB_CLI_TRIAL_CREW_H

#include <sys/types.h>

#include "phub/base/err.h"
#include "phub/cli/box_process.h"
#include "phub/cli/trial.h"

enum { TRIAL_NAME_BYTES = 64 }; /* as URL_JOB_BYTES */

/* trial_crew_init() makes it ready; the caller then sets the first part. */
struct trial_crew {
	/* A worker's whole life, in its own process: its exit code. `local` counts the workers of one job here. */
	int (*work)(const struct trial_crew *crew, unsigned job, unsigned local, const char *job_name);
	const void *arg;             /* for work() */
	unsigned steps;              /* that the progress bar counts, by the first job's `round` */
	struct box_process box;      /* of a box that is not started here, the address */
	char name[TRIAL_NAME_BYTES]; /* of the job; of several, what stands before their numbers */

	const struct trial_plan *plan;
	struct trial_shared *shared[TRIAL_JOBS_MAX];
	unsigned count;                   /* workers of all jobs; those of one stand together, by rank */
	pid_t workers[TRIAL_WORKERS_MAX]; /* 0: has ended */
	int status[TRIAL_WORKERS_MAX];
	unsigned alive;
	struct err trouble; /* the first that was not a worker's own */
};

enum trial_verdict {
	TRIAL_GOOD,
	TRIAL_WRONG,  /* a result was wrong; the times are there */
	TRIAL_BROKEN, /* somebody failed */
};

/* Takes the shared memory of all jobs, and looks for the workers' network namespaces. The plan stays the caller's. 0 or
 * a negative errno; what was taken is given back by fini in either case. */
int trial_crew_init(struct trial_crew *crew, const struct trial_plan *plan, struct err *e);
void trial_crew_fini(struct trial_crew *crew);

/* Starts a box with these settings (NULL: one runs at box.address) and the workers, waits until all have ended (by
 * themselves, or, when something went wrong, a little later by us), and stops the box. Ctrl-C and SIGTERM are something
 * that went wrong. */
void trial_crew_run(struct trial_crew *crew, const struct box_settings *settings);

/* How it went; prints the error. */
enum trial_verdict trial_crew_judge(const struct trial_crew *crew);

#endif
