/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who dies in a world, and when; who comes in its place; and which ends of others that explains. It decides only: the
 * world does it.
 */
#ifndef PHUB_TESTS_SIM_FATE_H
#define PHUB_TESTS_SIM_FATE_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/world.h"

#define FATE_LIVES 8 /* of one rank, of which so many take the place of one that died: */
#define FATE_HEIRS 4

struct fate {
	const struct world_plan *plan;
	uint64_t random;
	unsigned deaths; /* so far */
	unsigned again;  /* of these, so many follow at once */
	struct {
		unsigned life; /* the one it is in, or was in last */
		bool dead;
		uint64_t died_ns[FATE_LIVES]; /* 0: it did not */
		uint64_t returns_ns;          /* UINT64_MAX: nobody comes in its place */
	} ranks[WORLD_WORKERS_MAX];
};

void fate_init(struct fate *f, const struct world_plan *plan);

/* What the job is at: that decides how likely it is that somebody dies. */
enum fate_time {
	FATE_RUNS,
	FATE_CHANGES, /* its membership does, or its chunks get other homes */
	FATE_LACKS,   /* it has no box, or does not run there yet */
};

/* The rank that dies now, of those that are alive (a mask), or -1. */
int fate_strike(struct fate *f, unsigned alive, enum fate_time time, uint64_t now_ns);

/* This rank dies now, for what befalls its box; somebody comes in its place if it has a life left. */
void fate_lose(struct fate *f, unsigned rank, uint64_t now_ns);

/* Will somebody come in the place of this rank, which is dead? */
bool fate_awaits(const struct fate *f, unsigned rank);

/* When somebody comes; UINT64_MAX: nobody does any more. The rank that comes now, in its next life, or -1. */
uint64_t fate_due(const struct fate *f);
int fate_return(struct fate *f, uint64_t now_ns);

/* It came too early, and was refused: it dies once more, and tries again a little later. */
void fate_postpone(struct fate *f, unsigned rank, uint64_t now_ns);

/* It lost its box, and is to go on in another life, which is told. */
unsigned fate_renew(struct fate *f, unsigned rank, uint64_t now_ns);

/* Nobody comes any more. */
void fate_end(struct fate *f);

/* Is this rank in a list of them, as boxes write it ("1-3, 5 of 8")? */
bool fate_lists(const char *list, unsigned rank);

/* Is this how a worker's session may end? `began`: somebody who lives was in the job when it ran. */
bool fate_excuses(const struct fate *f, int code, const char *text, bool began, uint64_t now_ns);

#endif
