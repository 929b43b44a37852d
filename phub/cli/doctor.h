/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Findings of phub doctor: what was looked at, how it is, and what to type. doctor.c looks at this machine,
 * doctor_box.c at a box.
 */
#ifndef PHUB_CLI_DOCTOR_H
#define PHUB_CLI_DOCTOR_H

#include <stdbool.h>

enum doctor_state { DOCTOR_OK, DOCTOR_WARN, DOCTOR_FAIL };

struct doctor {
	bool json, quiet;
	unsigned counts[3];   /* by state */
	unsigned rdma_usable; /* ports of this machine */
};

/* Prints one finding. `cure` is what to type or do, NULL when there is nothing to be done. */
void doctor_say(struct doctor *d, const char *what, enum doctor_state state, const char *cure, const char *format, ...)
	__attribute__((format(printf, 5, 6)));

/* Does a box answer at this address, how fast, and can its data ports be reached? `named`: it has to. */
void doctor_check_box(struct doctor *d, const char *address, bool named);

#endif
