/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The top box of a sharded or chained job of three workers, one at each of three boxes, of which the test plays the
 * other two: what they say by their sessions, and what it says by its own with them. Connections between cores are not
 * made: it counts as if they were. Over control_rig.h's network.
 */
#ifndef TESTS_UNIT_REHOME_RIG_H
#define TESTS_UNIT_REHOME_RIG_H

#include "phub/control/job.h"
#include "phub/control/job_below.h"
#include "phub/control/peers_carry.h"
#include "phub/control/peers_move.h"
#include "phub/control/peers_outcome.h"
#include "tests/unit/control_rig.h"
#include "transport/call.h"

#define STEP(name) PHUB__REHOME_STEP__REHOME_##name

enum { REHOME_BOXES = 3, REHOME_WORLD = 3, REHOME_KEYS = 12, REHOME_ELEMENTS = 8192, REHOME_PORT = 7100 };

/* The session by which the top box lifts, or carries, to another. */
struct call_peer {
	bool full; /* it has no room for more */
	int lost;  /* a negative errno: it cannot be reached, or no longer */
	int busy;  /* so often it refuses, for it has not done with the session before */
	uint32_t carried;
	void (*hear)(void *arg, const Phub__Control *message);
	void *arg;
	uint8_t key[PROOF_KEY];
};
extern struct call_peer rehome_played[REHOME_BOXES];

struct rehome_scene {
	struct rig rig;
	struct actor worker, box[REHOME_BOXES]; /* of which the first is not there: it is the top box */
	char said[200];
	uint32_t number;
	struct err e;
};

extern const struct rig_job rehome_summed, rehome_trained; /* of which the last one has momentum */

/* The job runs. */
void rehome_form(struct rehome_scene *s, const struct rig_job *job, const char *const *settings);
/* ... with lost_ms of 8 s, and all others are reached. */
void rehome_open(struct rehome_scene *s, const struct rig_job *job, const char *hierarchy);
/* Nothing is left of it. */
void rehome_close(struct rehome_scene *s);

/* The link of the last box is this much slower than the others now, and the operator says so. */
int rehome_begin(struct rehome_scene *s, double slower);
void rehome_expect_error(struct rehome_scene *s, int rc, int wanted, const char *text);
/* A box says a step; Held: all its chunks are before `round`. */
void rehome_say(struct rehome_scene *s, unsigned box, Phub__RehomeStep step, uint32_t number, uint64_t round);
/* Both do, of round 1. */
void rehome_say_all(struct rehome_scene *s, Phub__RehomeStep step, uint32_t number);
/* The last that both have heard. */
void rehome_expect_step(struct rehome_scene *s, Phub__RehomeStep step, uint32_t number);
/* From Hold, which was said, to Go, which both have heard. */
void rehome_move(struct rehome_scene *s, uint32_t number);
/* "moves", or the job's. */
const char *rehome_state(const struct rehome_scene *s);
/* How it ended, as the operator hears it, and how far it is. */
void rehome_expect_outcome(const struct rehome_scene *s, uint32_t number, const char *stage, const char *why);
void rehome_expect_stage(const struct rehome_scene *s, const char *stage, unsigned done, const char *waits_for);

#endif
