/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers administrators: which jobs run, how fast, who is missing, how the cores are loaded. Control thread.
 */
#ifndef PHUB_CONTROL_ADMIN_H
#define PHUB_CONTROL_ADMIN_H

#include "transport/control.pb-c.h"

#define ADMIN_VERSION "0.1.0"

struct session;

/*
 * Answers "jobs" (with names as arguments: those alone) and "status" (cores alone); others get an error that says what
 * is allowed. What does not fit a frame is left out: workers and the flows of rebalances, beyond so many of all jobs.
 */
void admin_answer(struct session *s, const Phub__AdminRequest *request);

#endif
