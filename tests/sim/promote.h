/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worlds whose root an operator promotes (phub/control/promotion.h). The first box and its heir, one of those below it,
 * have the same checkpoint targets, on a disk that outlives both; whichever is the root dies, and is there again before
 * the other was promoted, or after that. The operator asks one that is up when none has been the root for a while; now
 * and then also while one is, which is to be refused; a box may die while it is promoted. What is judged: no two are
 * the root at a time, an epoch only grows, and who comes again is below the one that was promoted since.
 */
#ifndef PHUB_TESTS_SIM_PROMOTE_H
#define PHUB_TESTS_SIM_PROMOTE_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/control/box.h"
#include "phub/control/config.h"
#include "tests/sim/world.h"

struct below_box;
struct world;
struct worker;

enum { PROMOTE_BOXES = 2 /* that may be the root: the first box, and its heir */ };

/* The run of the job at some box, as far as that was seen. */
struct promote_run {
	uint32_t job; /* there */
	uint64_t run;
};

struct promotions {
	uint64_t random;
	bool begun[PROMOTE_BOXES];      /* once at least */
	unsigned reigns[PROMOTE_BOXES]; /* which of all roots it is, or was when it died; 0: it is none */
	unsigned reign;                 /* the last */
	uint64_t epoch;                 /* of that */
	bool blind[PROMOTE_BOXES];      /* it could not see all targets as it began */
	uint64_t look_ns;               /* the operator looks again */
	uint64_t lacks_ns;              /* since when there is none; 0: there is one */
	uint64_t patience_ns;           /* of the operator, with that */
	bool hindered;                  /* disks kept a box from being promoted, or from coming again */
	int asked;                      /* the box that was, and has not answered; -1: none */
	struct promote_run runs[1 + WORLD_BELOW_MAX];
};

/* Before a box is configured further: the first one, or one below the root. */
int promote_configure_root(const struct world *w, struct config *config, struct err *e);
int promote_configure_below(struct world *w, struct config *config, const struct below_box *box, struct err *e);
void promote_init(struct world *w);

/* The disk that it has; NULL: none. */
struct disk *promote_disk(const struct world *w, unsigned number);
/* Of the boxes that may be the root: its number, or -1. */
int promote_number(const struct world *w, const struct below_box *box);
/* A box has begun, as a process does. 0, or it cannot, as its disks fail: it is to be destroyed and begun again. */
int promote_begin(struct world *w, unsigned number, struct box *box, struct err *e);
/* Its process is gone. */
void promote_bury(struct world *w, unsigned number);

/* The box that is the root, whose epoch is *epoch; NULL: none is. */
struct box *promote_root(const struct world *w, uint64_t *epoch);
/* Its number among those that may be it, or -1. */
int promote_root_number(const struct world *w);

/* The operator, and what is judged. Returns how much; and when that is due. */
unsigned promote_step(struct world *w, uint64_t now_ns);
uint64_t promote_due(const struct world *w);

/* The operator does nothing any more. */
void promote_heal(struct world *w);

/* May a worker's session end with these words? */
bool promote_excuses(const struct world *w, const char *text);

/* The run of the job that a worker begins in, which may be with a root that is dead already; 0: it is over. */
uint64_t promote_run(const struct worker *me);

#endif
