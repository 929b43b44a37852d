/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One box of a hierarchy with its workers, and the boxes around it, which the test plays: the sessions that this box
 * opens to them are a table of functions here, and the sessions that they open to it are actors. Over control_rig.h's
 * network; one thread, and time moves by rig_wait() alone. The box may stand below another one (scene_open()), at the
 * top of a job of three boxes (rehome_open()), or where the test begins it (scene_begin()).
 */
#ifndef TESTS_UNIT_SCENE_RIG_H
#define TESTS_UNIT_SCENE_RIG_H

#include "phub/control/job.h"
#include "phub/control/job_below.h"
#include "phub/control/peers_carry.h"
#include "phub/control/peers_move.h"
#include "phub/control/peers_outcome.h"
#include "tests/unit/control_rig.h"
#include "transport/call.h"

#define STEP(name) PHUB__REHOME_STEP__REHOME_##name

enum { BOXES = 3, ELEMENTS = 8192, ABOVE_HOST = 9, ABOVE_JOB = 77, WORLD = 4, KEYS = 3 };
enum { REHOME_WORLD = 3, REHOME_KEYS = 12, REHOME_PORT = 7100 };

/* ---- played boxes ---- */

struct call_peer {
	unsigned opened, closed; /* sessions */
	void (*hear)(void *arg, const Phub__Control *message);
	void *arg;
	/* What it does; the test sets it, at any time. */
	uint64_t root;     /* its epoch */
	bool full;         /* it has no room for more */
	int lost;          /* a negative errno: it cannot be reached, or no longer */
	int busy;          /* so often it refuses, for it has not done with the session before */
	bool undecided;    /* it lets nobody in yet */
	bool silent;       /* nobody is there, but who is named below */
	char answers[400]; /* hosts that answer; "": all */
	char heirs[400];   /* who of those that do not say that they may be promoted, */
	char knows[400];   /* and that they are with the box above them */
	char address[128]; /* of its data connections; "": nobody listens */
	struct transport *transport;
	/* What it was told. */
	char called[400];    /* "HOST>=LEAST ", one after the other */
	uint32_t gathered;   /* the number of the last Gather, */
	uint32_t ranks;      /* that it named, */
	bool resumes;        /* and whether they were in the job before */
	uint32_t generation; /* of the newest table */
	uint32_t keys;       /* of it */
	char left[200];      /* the error of its Leave */
	uint32_t carried;    /* Carry messages */
	unsigned said;       /* Rehome messages; the last one's: */
	Phub__RehomeStep step;
	uint32_t number;
	uint64_t round;
	char why[400];
	/* The table's own. */
	bool promotable, reaches;
	uint8_t key[PROOF_KEY];
};

/* beside[i] is that of port REHOME_PORT + i, beside[0] that of any other port. */
extern struct call_peer above, beside[BOXES];
extern const char *upper_names; /* whom the box above says to be its sibling; NULL: nobody */

struct scene {
	struct rig rig;
	struct actor worker[2], box[BOXES];
	/* Of the operator's last command. */
	char said[200];
	uint32_t number;
	struct err e;
};

/* A box whose sessions lead to the played boxes, all of which are as new. `world`: the size of the job that it tells
 * them; 0: it must call nobody. */
void scene_begin(struct scene *s, unsigned cores, uint32_t world, const char *const *settings);
/* Worker `index` of job "wide" is let in. */
void scene_join(struct scene *s, unsigned index, uint32_t rank, uint32_t world);
/* The box above says so, and 10 ms pass. */
void above_say(struct scene *s, const Phub__Control *message);
/* Everybody hangs up; nothing may be left. */
void scene_close(struct scene *s);

/* ---- below another box: a job of four, of which two workers are here ---- */

/* What the box above says of the start; each case makes one thing of it wrong. */
struct said {
	Phub__Start start;
	Phub__Exchange exchange;
	Phub__ExchangeBox boxes[BOXES], *each[BOXES];
	uint32_t ranks[WORLD];
	Phub__Hypers hypers, *groups[2];
	uint8_t cores[64];
	uint64_t rounds[8];
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
/* The box above says it. */
void upper_start(struct scene *s, struct said *said);
/* Its workers are let in; data connections to the box above are let in by nobody. */
void scene_open_with(struct scene *s, const char *const *settings);
void scene_open_below(struct scene *s, const char *uplink);
void scene_open(struct scene *s);
/* Both have sent their tables, and the box above has all that it starts by. */
void scene_tell(struct scene *s, const struct rig_job *job);

/* ---- at the top: a sharded or chained job of three workers, one at each of three boxes ---- */

/* box[0] is not there: it is the top box. Connections between cores are not made: it counts as if they were. */
extern const struct rig_job rehome_summed, rehome_trained; /* of which the last one has momentum */

/* The job runs. */
void rehome_form(struct scene *s, const struct rig_job *job, const char *const *settings);
/* ... with lost_ms of 8 s, and all others are reached. */
void rehome_open(struct scene *s, const struct rig_job *job, const char *hierarchy);

/* The link of the last box is this much slower than the others now, and the operator says so. */
int rehome_begin(struct scene *s, double slower);
void rehome_expect_error(struct scene *s, int rc, int wanted, const char *text);
/* A box says a step; Held: all its chunks are before `round`. */
void rehome_say(struct scene *s, unsigned box, Phub__RehomeStep step, uint32_t number, uint64_t round);
/* Both do, of round 1. */
void rehome_say_all(struct scene *s, Phub__RehomeStep step, uint32_t number);
/* The last that both have heard. */
void rehome_expect_step(struct scene *s, Phub__RehomeStep step, uint32_t number);
/* From Hold, which was said, to Go, which both have heard. */
void rehome_move(struct scene *s, uint32_t number);
/* "moves", or the job's. */
const char *rehome_state(const struct scene *s);
/* How it ended, as the operator hears it, and how far it is. */
void rehome_expect_outcome(const struct scene *s, uint32_t number, const char *stage, const char *why);
void rehome_expect_stage(const struct scene *s, const char *stage, unsigned done, const char *waits_for);

#endif
