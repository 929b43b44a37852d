/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the worker processes of every bench do before and after their rounds. Blocks; failures are kept in the member's
 * outcome.
 */
#ifndef PHUB_CLI_TRIAL_WORKER_H
#define PHUB_CLI_TRIAL_WORKER_H

#include "phub/cli/trial_member.h"

/* Enters the plan's network namespace, connects to the box's job, names the keys and starts together with the others.
 * Before the process's first socket and thread. 0 or a negative errno. */
int trial_worker_join(struct trial_member *m, const char *address, const char *job);

/* Waits for all rounds in flight. */
int trial_worker_wait(struct trial_member *m, const char *what);

/* Takes memory and exchanges the first weights. */
int trial_worker_prepare(struct trial_member *m);

/* Leaves the job in good order when all went well (rc 0), and frees everything. Returns the exit code. */
int trial_worker_end(struct trial_member *m, int rc);

#endif
