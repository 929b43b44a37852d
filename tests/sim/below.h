/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The boxes below a world's first one, which is their root: each lifts to that, or to another of them, and has workers
 * of its own. Boxes die, and come again or do not; racks are cut off from all others, both ways or one, and are not any
 * more: a cut that is shorter than the silence that boxes bear must not be felt, and after a longer one nobody may have
 * another result of a round than others had. Workers die with their box, or go to its sibling. What they get is judged
 * where it comes (worker.c).
 */
#ifndef PHUB_TESTS_SIM_BELOW_H
#define PHUB_TESTS_SIM_BELOW_H

#include <stdbool.h>
#include <stdint.h>

#include "client/env.h"
#include "phub/control/box.h"
#include "phub/control/config.h"
#include "tests/sim/world.h"
#include "transport/loop.h"

enum { BELOW_HOST = 80 /* the first of them: behind those of all lives of workers */ };

struct worker;

/* Which way a cut is. */
enum below_way {
	BELOW_BOTH,
	BELOW_DEAF, /* the rack hears nothing of the others, who hear it; */
	BELOW_MUTE, /* or they nothing of it */
};

struct below_box {
	struct world *world;
	char name[16]; /* as a host: where workers and other boxes dial */
	unsigned host;
	const struct below_box *above;   /* NULL: the root */
	const struct below_box *sibling; /* where its workers go when it dies; NULL: to the root, if anywhere */
	struct box *box;                 /* NULL: it is dead */
	struct config config;
	struct box_env env;
	struct client_env client; /* as which it calls others */
	struct loop_listener *listener;
	uint64_t returns_ns; /* it is dead until then; 0: it is not dead, or for good */
	uint64_t cut_ns;     /* it was cut off then, the last time */
	bool struck;         /* it was, so that it was felt: it died, or was cut off for long */
};

struct below {
	unsigned count; /* 0: this world has none */
	struct below_box boxes[WORLD_BELOW_MAX];
	struct client_env root; /* as which the root calls others, where it does */
	uint64_t random;
	unsigned parts;              /* so often something befell them */
	const struct below_box *cut; /* its rack, and those below it, hear nothing of all others; NULL: none is */
	enum below_way way;          /* ... which way */
	uint64_t heals_ns;
	uint64_t cuts_ns; /* since then there was one cut after the other, too close for what they broke to be mended */
	uint64_t run;     /* of the root's job, the last that was seen */
};

/* Before the root is made, whose configuration it is; and whenever it is made, for its environment. */
int below_configure(struct world *w, struct err *e);
void below_prepare(struct world *w, struct box_env *root);
/* Makes them all, like the root's `env`. */
int below_open(struct world *w, const struct box_env *root, struct err *e);
void below_close(struct world *w);

/* One dies, and is there again after so long. */
void below_kill(struct world *w, struct below_box *box, uint64_t away_ns);

/* What happens to them, and what they do. Returns how much. */
unsigned below_step(struct world *w, uint64_t now_ns);
/* When they have something to do by themselves; UINT64_MAX: never. */
uint64_t below_due(struct world *w);

/* The host with this name: of a box below, or of the root. */
unsigned below_endpoint(const struct world *w, const char *name);
/* Where this life of a rank comes; NULL: to the root. */
struct below_box *below_choose(struct world *w, unsigned rank, unsigned life);
/* The host that a worker has is in the rack of its first box: it is cut off with it. */
void below_house(struct world *w, const struct worker *me);
/* Which run of the job begins, or goes on, now? */
uint64_t below_run(struct world *w);
/* And that a worker begins in. */
uint64_t below_run_of(const struct worker *me);

/* Have all workers that live been started? */
bool below_all_started(const struct world *w);
/* Did it come too early, or to a box that the job has no place for yet? */
bool below_disturbs(const struct worker *me, const char *text);
/* May a worker's session end with these words? */
bool below_excuses(const struct world *w, const char *text);

/* What worlds like this there were is counted. */
void below_tell(const struct world *w);
/* All workers are gone: is anything left of these boxes' jobs, or do books not balance? NULL: no. */
const char *below_settled(struct world *w);

#endif
