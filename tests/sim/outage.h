/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The box of a world dies and is made anew; its disks fail, rot and go meanwhile. What must be there afterwards is
 * judged here: the newest checkpoint that the box called written, as long as no more targets were harmed than parity
 * makes up for. That its weights are right is seen by the workers.
 */
#ifndef PHUB_TESTS_SIM_OUTAGE_H
#define PHUB_TESTS_SIM_OUTAGE_H

#include <stdbool.h>
#include <stdint.h>

struct world;
struct worker;
struct storage;

struct outage {
	struct storage *storage; /* NULL: this box does not die */
	uint64_t random;
	unsigned deaths, harms, hidings;
	uint64_t results, results_ns; /* that workers had, and since when they have got no more */
	unsigned warned;              /* lines in which the box says that it has no checkpoint, or not all of it */
	uint64_t returns_ns;          /* of the first box, when it is dead */
	uint32_t job;                 /* of the root, that runs: what it began with was looked at; 0: none was */
	uint64_t refused_reads;       /* when the box came, or the job began */
	uint64_t kept;                /* by this job */
	uint64_t newest;              /* round of the newest checkpoint that was called written; 0: none was */
	uint32_t holders;             /* targets that have it */
	uint32_t harmed, hidden;
	uint64_t refused_ns; /* since when the disk is full, as far as was seen; 0: it was not */
	uint64_t harmed_ns;  /* the last time */
	bool blind;          /* not all that was there could be read as the box came: others may be newer */
	bool left;           /* a worker left before all had what they want: it does not come again */
	bool lost;           /* more was lost than parity makes up for */
};

int outage_init(struct world *w);
void outage_fini(struct world *w);

/* What befalls box and disks now. Returns how much. When that is due by itself; UINT64_MAX: never. */
unsigned outage_step(struct world *w);
uint64_t outage_due(const struct world *w);

/* Another box is the root, of those with these disks (promote.h), or the same one again: its job is looked at anew. */
void outage_meet(struct world *w, unsigned number);

/* No box dies any more: all workers have all that they want. */
bool outage_is_over(const struct world *w);

/* May that be the end of a worker that has just come? Its program is started once more. */
bool outage_disturbs(const struct worker *me, int code, const char *text);

/* May a worker's session end with these words? */
bool outage_excuses(const struct world *w, const char *text);

#endif
