/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub plan: what was asked for, with what this machine told where nothing was said, and how it is printed.
 */
#ifndef PHUB_CLI_PLAN_JOB_H
#define PHUB_CLI_PLAN_JOB_H

#include "aggregation/optimizer.h"
#include "topology/plan.h"

enum { PLAN_NOTES_MAX = 12, PLAN_NOTE_BYTES = 200 };

struct plan_job {
	struct plan_input input;
	char model[64];
	enum optimizer_kind optimizer;
	uint8_t dtype;
	unsigned sweep; /* most workers of the sweep; 0: none */
	bool json;
	char notes[PLAN_NOTES_MAX][PLAN_NOTE_BYTES]; /* what was taken for granted */
	unsigned note_count;
};

/* Adds a note; one too many is dropped. */
void plan_job_note(struct plan_job *job, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints the plan, and the sweep when there is one. 0 or -ENOMEM. */
int plan_job_print(const struct plan_job *job, const struct plan_result *result, struct err *e);

#endif
