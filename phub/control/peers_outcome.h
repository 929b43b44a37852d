/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a change of homes (peers_move.h) goes, and how it ended, for the operator who asked for it: at the top box, from
 * its beginning to that of the next one, or to the job's end. Control thread; nothing blocks.
 */
#ifndef PHUB_CONTROL_PEERS_OUTCOME_H
#define PHUB_CONTROL_PEERS_OUTCOME_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/control/peers.h"

/* Chunks that go from one box to another; `bytes` of their gradients. */
struct peers_flow {
	uint16_t from, to;
	uint32_t chunks;
	uint64_t bytes;
};

struct peers_outcome {
	uint32_t number;             /* of the change */
	uint32_t chunks;             /* that get other homes... */
	uint64_t bytes;              /* ...their gradients', */
	uint64_t carried;            /* and weights and optimizer state, which go there */
	uint64_t begun_ns, ended_ns; /* 0: it is under way */
	bool moved;
	char why[ERR_TEXT_MAX]; /* they keep their homes */
	unsigned flow_count;
	struct peers_flow flows[];
};

/* One begins, at the top box: job->peers->outcome is about it. 0 or -ENOMEM. */
int peers_outcome_begin(const struct job *job);
/* It is over. `why` NULL: they have their new homes. The first word counts. */
void peers_outcome_end(struct peers *p, const char *why);
/* In a word: "holding", "carrying", "switching" or "resuming", then "moved" or "kept". */
const char *peers_outcome_stage(const struct peers *p);
/* Boxes that are done with its stage; the first that is not, in *waits_for, or NULL. */
unsigned peers_outcome_done(const struct peers *p, const char **waits_for);

#endif
