/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle of ssp and async: what a box's trace says arrived, in that order, replayed serially; every result that a
 * worker got must be what the replay has at the moment when the policy lets it be answered.
 */
#ifndef PHUB_TESTS_SIM_REPLAY_H
#define PHUB_TESTS_SIM_REPLAY_H

#include "phub/base/trace.h"
#include "tests/sim/world.h"

struct replay {
	const struct world_plan *plan;
	const struct oracle *oracle;
	struct oracle_key *keys[WORLD_KEYS_MAX]; /* for oracle_fill() */
	/* What each worker got: [worker][key][round], of the key's dtype. */
	void **results[WORLD_WORKERS_MAX][WORLD_KEYS_MAX];
	struct optimizer_hyper hyper;
	char text[256]; /* what is wrong */
};

/* Replays the steps that one core traced. Returns how many results were compared, or -1. */
int64_t replay_core(struct replay *r, const struct trace *trace);

#endif
