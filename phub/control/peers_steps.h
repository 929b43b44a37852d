/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one box, the top box or another, does of a change of homes (peers_move.h), step by step, when it is told: it
 * makes what is to be, holds, stops, switches and goes on; weights and state are carried by peers_carry.c. Each step
 * ends with peers_move_done(). Control thread; nothing blocks.
 */
#ifndef PHUB_CONTROL_PEERS_STEPS_H
#define PHUB_CONTROL_PEERS_STEPS_H

#include "phub/control/peers_carry.h"

/* What there is to be: job->peers->move, by the rates that are known. 0, or with the reason in `e`, and nothing left,
 * -ENOMEM. */
int peers_steps_create(struct job *job, uint32_t number, struct err *e);
/* It is over, or never was. NULL `g`: its generation is gone, and what was counted with it. */
void peers_steps_free(struct generation *g, struct peers *p);
/* Does what the top box says. False: that is not what comes next, or no rounds at which this box can stop. */
bool peers_steps_obey(struct job *job, Phub__RehomeStep step, const uint64_t *rounds);
/* Does by itself what comes next, where something does. */
void peers_steps_go_on(struct job *job);

/* peers_move.c: this box is done with this step. */
void peers_move_done(struct job *job, Phub__RehomeStep step);

#endif
