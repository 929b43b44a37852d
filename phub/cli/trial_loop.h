/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same exchange without processes: a box and all workers in one thread over the network in memory. It measures the
 * code of box and library alone, and nothing waits.
 */
#ifndef PHUB_CLI_TRIAL_LOOP_H
#define PHUB_CLI_TRIAL_LOOP_H

#include "phub/cli/box_process.h"
#include "phub/cli/trial.h"

/* Runs the plan with a box of these settings. 0, or a negative errno: a rank's error in its outcome, any other in `e`.
 */
int trial_loop(const struct trial_plan *p, struct trial_shared *s, const struct box_settings *settings, struct err *e);

#endif
