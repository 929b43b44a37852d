/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What befalls boxes that exchange (phub/control/peers.h): the root of a world and those right below it (below.h), each
 * of which is the home of some chunks. Any of them dies, the root, too; nothing passes between some of them, both ways
 * or one, or what is on its way is lost. A cut that is shorter than the silence that boxes bear must not be felt. With
 * a box its chunks' homes are lost: the job ends everywhere, soon, with an error that names the box. The operator
 * says rebalance, in whose midst these things happen as well: who has a result has that of all others.
 * Boxes have numbers as plans have them: 0 is the root.
 */
#ifndef PHUB_TESTS_SIM_HOMES_H
#define PHUB_TESTS_SIM_HOMES_H

#include <stdbool.h>
#include <stdint.h>

struct world;

struct homes {
	uint64_t random;
	unsigned parts; /* so often something befell them */
	/* Nothing passes from these (bits: their numbers) to those, or, if `both`, between them. 0: all is well. */
	uint32_t from, to;
	bool both;
	uint64_t heals_ns;
	uint64_t short_ns;   /* cuts that are not to be felt, together */
	unsigned rebalances; /* so often the operator has said so, */
	bool moves;          /* and chunks are about to get other homes */
	uint32_t dead;       /* for good */
	uint32_t named;      /* that errors may name, for what befell them */
	uint32_t broke;   /* of these, whose data connections broke: what they owed is lost, and they may have left */
	unsigned last;    /* that died, in the job, of which nobody is to be left by then: */
	uint64_t ends_ns; /* 0: none did */
};

void homes_init(struct world *w);
/* Before the root is made: its rack file, by which it gives homes to chunks. */
void homes_write_racks(struct world *w);

/* What happens to them now. Returns how much. */
unsigned homes_step(struct world *w, uint64_t now_ns);
/* When that may be; UINT64_MAX: never. */
uint64_t homes_due(const struct world *w);
void homes_heal(struct world *w);

/* For so long a worker waits at most for a result, or an error. */
uint64_t homes_wait_ns(const struct world *w);
/* May a worker's session end with these words? They name a box that was struck, or who was lost without whom the job
 * does not go on. */
bool homes_excuses(const struct world *w, const char *text);

#endif
