/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a bench: its handle, its memory, what it pushes and how its results are checked. Nothing here
 * waits: trial_worker.c runs one of them in a process, trial_loop.c all of them in one thread.
 */
#ifndef PHUB_CLI_TRIAL_MEMBER_H
#define PHUB_CLI_TRIAL_MEMBER_H

#include "phub/cli/trial.h"
#include "phub/cli/trial_pieces.h"

struct trial_member {
	const struct trial_plan *p;
	struct trial_shared *s;
	struct trial_outcome *outcome;
	unsigned rank;
	const char *address; /* of the box */
	phub_t *phub;
	void *memory;         /* copy: gradients, then results */
	void *weights;        /* while the first ones are on their way */
	void **push;          /* [key] where gradients are written */
	const void **results; /* [key] where results are read */
	struct trial_pieces pieces;
};

/* Keeps the first error, and calls the others off. `why` may be NULL: phub_error(), or the name of `rc`. Returns rc. */
int trial_member_fail(struct trial_member *m, int rc, const char *what, const char *why);

/* The options of this rank; groups are the caller's to free after connecting. 0 or -ENOMEM. */
int trial_member_options(const struct trial_member *m, struct phub_options *options, struct phub_hyper **groups);

/* After connecting. */
int trial_member_name_keys(struct trial_member *m);

/* After the start: memory of the library's, or of our own that it has never seen. */
int trial_member_take_memory(struct trial_member *m);

/* Begins to exchange the first weights, from rank 0 to all; nothing without an optimizer. */
int trial_member_begin_weights(struct trial_member *m);
/* When they have come. */
void trial_member_end_weights(struct trial_member *m);

void trial_member_fill(struct trial_member *m, unsigned round);

/* Pushes one key; a lower priority goes first. */
int trial_member_begin_key(struct trial_member *m, uint32_t key, int priority);

/* Pushes all keys; when they have come back, the round is over. */
int trial_member_begin_round(struct trial_member *m);

/* Compares results with `expected`, after planting what the plan says. */
void trial_member_check(struct trial_member *m, unsigned round);

/* Reads the library's counters, while the handle lives. */
void trial_member_count(struct trial_member *m);

/* After the handle is gone. */
void trial_member_fini(struct trial_member *m);

#endif
