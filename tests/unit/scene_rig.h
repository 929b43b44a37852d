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
	/* Behaviour of the played box; the test may set it at any time. */
	uint64_t root;     /* epoch of the root that this box names */
	bool full;         /* messages are refused with -EAGAIN */
	int lost;          /* a negative errno: the box cannot be reached, or no longer */
	int busy;          /* refusals to come: the previous session has not ended */
	bool undecided;    /* a session opens, and is not admitted yet */
	bool silent;       /* set at each call: the host is not among `answers` */
	char answers[400]; /* hosts that answer; "": all hosts */
	char heirs[400];   /* silent hosts that refuse and may be promoted */
	char knows[400];   /* silent hosts that refuse and reach the box above */
	char address[128]; /* of data connections; "": the network's own */
	struct transport *transport;
	/* What the box under test has told the played box. */
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

/* A call to port REHOME_PORT + i reaches beside[i], a call to another port reaches beside[0]. */
extern struct call_peer above, beside[BOXES];
extern const char *upper_names; /* the sibling that the box above names; NULL: none */

struct scene {
	struct rig rig;
	struct actor worker[2], box[BOXES];
	/* Of the operator's last command. */
	char said[200];
	uint32_t number;
	struct err e;
};

/* Starts a box whose calls reach the played boxes, after those are reset. `world` is the size of the job that each call
 * must name; with 0, a call fails the test. */
void scene_begin(struct scene *s, unsigned cores, uint32_t world, const char *const *settings);
/* Admits worker `index` to job "wide". */
void scene_join(struct scene *s, unsigned index, uint32_t rank, uint32_t world);
/* The box above sends a message, and 10 ms pass. */
void above_say(struct scene *s, const Phub__Control *message);
/* Closes all sessions and checks that the box holds nothing any more. */
void scene_close(struct scene *s);

/* ---- below another box: a job of four, of which two workers are here ---- */

/* The start message of the box above; each case makes one field wrong. */
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
/* The message admits the box to a job that is in round 8. */
void said_join(struct said *s);
/* The message starts a sharded job of three boxes: ranks 0 and 1 here, rank 2 beside, rank 3 at the box above. */
void said_exchange(struct said *s);
/* The box above sends the start message. */
void upper_start(struct scene *s, struct said *said);
/* Workers are admitted; data connections to the box above are not accepted. */
void scene_open_with(struct scene *s, const char *const *settings);
void scene_open_below(struct scene *s, const char *uplink);
void scene_open(struct scene *s);
/* Both workers send their key tables, and the box above has what a start needs. */
void scene_tell(struct scene *s, const struct rig_job *job);

/* ---- at the top: a sharded or chained job of three workers, one at each of three boxes ---- */

/* box[0] is unused: the box under test is the top box. Connections between cores count as made. */
extern const struct rig_job rehome_summed, rehome_trained; /* without an optimizer, and with momentum */

/* Brings the job to its first round. */
void rehome_form(struct scene *s, const struct rig_job *job, const char *const *settings);
/* The same with a lost_ms of 8 s, when all other boxes are reached. */
void rehome_open(struct scene *s, const struct rig_job *job, const char *hierarchy);

/* Makes the link of the last box this much slower, and asks the box to rebalance as an operator does. */
int rehome_begin(struct scene *s, double slower);
void rehome_expect_error(struct scene *s, int rc, int wanted, const char *text);
/* A played box says a step; with Held, all its chunks are before `round`. */
void rehome_say(struct scene *s, unsigned box, Phub__RehomeStep step, uint32_t number, uint64_t round);
/* Both played boxes say the step, at round 1. */
void rehome_say_all(struct scene *s, Phub__RehomeStep step, uint32_t number);
/* Checks the last step that both played boxes have heard. */
void rehome_expect_step(struct scene *s, Phub__RehomeStep step, uint32_t number);
/* Plays the steps after Hold, up to Go. */
void rehome_move(struct scene *s, uint32_t number);
/* "moves", or the state of the job. */
const char *rehome_state(const struct scene *s);
/* Checks the outcome and the progress that the operator is told. */
void rehome_expect_outcome(const struct scene *s, uint32_t number, const char *stage, const char *why);
void rehome_expect_stage(const struct scene *s, const char *stage, unsigned done, const char *waits_for);

#endif
