/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box below, the box above it that the test plays, and one beside it that says nothing: their sessions are a table of
 * functions here, and data connections are let in by nobody.
 */
#ifndef TESTS_UNIT_ABOVE_RIG_H
#define TESTS_UNIT_ABOVE_RIG_H

#include "phub/control/job.h"
#include "tests/unit/control_rig.h"
#include "transport/call.h"
#include "transport/proof.h"

enum { ABOVE_HOST = 9, ABOVE_JOB = 77, WORLD = 4, KEYS = 3, ELEMENTS = 8192 };

/* The played boxes. */
struct call_peer {
	unsigned opened, closed;
	void (*hear)(void *arg, const Phub__Control *message);
	void *arg;
	uint32_t gathered; /* the number of the last Gather */
	uint32_t ranks;    /* that it named */
	bool resumes;      /* they were in the job before, as it said */
	uint32_t keys;     /* told of the newest table */
	uint32_t generation;
	uint8_t key[PROOF_KEY];
	struct rig *rig;
	struct transport *transport;
	char address[128];
	char left[200]; /* the error of its Leave */
	/* Of several: */
	char called[400];  /* "HOST>=LEAST ", one after the other */
	char answers[400]; /* hosts that do; "": all */
	char heirs[400];   /* who of those that do not say that they may be promoted, */
	char knows[400];   /* and that they are with the box above them */
	bool silent;       /* this one does not */
	bool promotable, reaches;
	bool undecided; /* they let nobody in yet */
	uint64_t root;  /* its epoch */
};

extern struct call_peer above, beside;
extern const char *upper_names; /* whom it says to be its sibling; NULL: nobody */

/* What it says of the start; each case makes one thing of it wrong. */
struct said {
	Phub__Start start;
	Phub__Exchange exchange;
	Phub__ExchangeBox boxes[3], *each[3];
	uint32_t ranks[WORLD];
	Phub__Hypers hypers, *groups[2];
	uint8_t cores[64];
	uint64_t rounds[8];
};

struct scene {
	struct rig rig;
	struct actor worker[2], box;
};

extern const struct rig_job plain;
extern const struct rig_job shrinks;
extern const struct rig_job again;

/* Each key of the table is a chunk. */
void said_init(struct said *s);
/* It lets the box into a job that is in round 8. */
void said_join(struct said *s);
/* It starts a sharded job of three boxes: rank 3 is there, the first two are here, rank 2 is beside. */
void said_exchange(struct said *s);
void upper_start(struct said *s);
void scene_open_with(struct scene *s, const char *const *settings);
void scene_open_below(struct scene *s, const char *uplink);
void scene_open(struct scene *s);
/* Both have sent their tables, and the box above has all that it starts by. */
void scene_tell(struct scene *s, const struct rig_job *job);
void scene_close(struct scene *s);

#endif
