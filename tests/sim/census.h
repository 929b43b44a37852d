/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle of worlds in which ranks come and go: who is in a round is not known beforehand, so the workers tell the
 * census what they push and what they get, and afterwards each (chunk, round) must have a set of ranks that explains
 * it: the serial sum (mean, step) of what these pushed is, bit for bit, what the first worker got; all others got the
 * same. The box is not asked.
 *
 * A round whose ranks all died before it was committed may have been left out: then it changed nothing.
 *
 * A job that is lost, with its box or without, may come again: then it runs once more. A run begins anew, or with what
 * some run before it had between two rounds; from there on its rounds are its own.
 *
 * Where several sets explain a round (values of a few elements may coincide), all of them are followed.
 */
#ifndef PHUB_TESTS_SIM_CENSUS_H
#define PHUB_TESTS_SIM_CENSUS_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/world.h"
#include "topology/chunking.h"

/* A world that has more of these is wrong: it was not looked at as a whole (census_check()). */
#define CENSUS_ROUNDS (2 * WORLD_ROUNDS_MAX)
#define CENSUS_RUNS   32 /* of the job */
#define CENSUS_SHARES 16 /* of one round: lives of ranks that pushed it */

#define CENSUS_STATES 64 /* that explain a chunk so far; more are not followed, and counted in given_up */

/* What one life of a rank brought to a chunk's round. */
struct census_share {
	unsigned who;     /* worker_who() */
	uint64_t version; /* the round that its values are drawn for */
	uint32_t keys;    /* of the chunk: those that were pushed */
	bool got;         /* the worker got this round's result for it */
};

struct census_round {
	uint8_t *result; /* what was got first, of the whole chunk */
	uint8_t *had;    /* [key_count of the chunk] of which keys */
	struct census_share shares[CENSUS_SHARES];
	unsigned count;
	bool before; /* it was got before any life was over */
};

struct census_run {
	uint64_t id;                 /* later ones have higher ones */
	struct census_round *rounds; /* [chunk_count][CENSUS_ROUNDS] */
};

struct census {
	const struct world_plan *plan;
	const struct oracle *oracle;
	struct oracle_key *keys[WORLD_KEYS_MAX];
	struct chunk_plan chunks;
	struct census_run runs[CENSUS_RUNS];
	unsigned run_count;
	uint64_t dead;             /* lives that are over, as bits of worker_who() */
	bool overdue;              /* somebody waits in vain: who lives and has pushed must be in the sum */
	uint64_t unseen;           /* pushes and results that there was no room for */
	uint64_t judged, given_up; /* rounds of chunks */
	char text[256];            /* what is wrong */
};

/* `keys` and `oracle` stay. 0 or -ENOMEM. */
int census_init(
	struct census *c, const struct world_plan *plan, const struct oracle *oracle, struct oracle_key *const *keys);
void census_close(struct census *c);

/*
 * This life of a rank pushes a key in this run of the job: its values, as drawn for `version`, go into this round of
 * one of the key's chunks.
 */
void census_push(struct census *c, uint64_t run, unsigned who, uint32_t chunk, uint64_t round, uint64_t version);

/*
 * It got this round's result of the chunk in `got`, the memory of the whole key; `share`: for its own push of that
 * round. False: others got something else, and `text` says so.
 */
bool census_got(struct census *c, uint64_t run, unsigned who, unsigned key, uint32_t chunk, uint64_t round,
	const void *got, bool share);

/* Looks for the sets. False: a round has none, or not all of them were seen. */
bool census_check(struct census *c);

#endif
