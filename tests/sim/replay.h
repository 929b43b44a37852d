/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle of ssp and async: what a box's trace says arrived, in that order, replayed serially; every result that a
 * worker got must be what the replay has at the moment when the policy lets it be answered. The trace also says from
 * which round on ranks take part that were lost or came, chunk by chunk, and when one that comes is given the weights.
 */
#ifndef PHUB_TESTS_SIM_REPLAY_H
#define PHUB_TESTS_SIM_REPLAY_H

#include "phub/base/trace.h"
#include "tests/sim/fate.h"
#include "tests/sim/world.h"

/* One life of a rank, as it saw itself. */
struct replay_life {
	bool begun, whole; /* it took part; to its end */
	uint64_t begun_ns; /* a step since then is this life's, until another begins */
	/* [key][round] what it got, of the key's dtype; of its first round: the weights that it began with. */
	void **results[WORLD_KEYS_MAX];
};

struct replay {
	const struct world_plan *plan;
	const struct oracle *oracle;
	struct oracle_key *keys[WORLD_KEYS_MAX]; /* for oracle_fill() */
	struct replay_life (*lives)[FATE_LIVES]; /* [worker] */
	struct optimizer_hyper hyper;
	char text[256]; /* what is wrong */
};

/* Replays the steps that one core traced. Returns how many results were compared, or -1. */
int64_t replay_core(struct replay *r, const struct trace *trace);

/* Frees what was kept of all lives. */
void replay_forget(struct replay_life (*lives)[FATE_LIVES]);

#endif
