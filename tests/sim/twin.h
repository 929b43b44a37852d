/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second box of a world. It is the standby of the first: the first one dies, or is cut off from all others, or the
 * second one dies, and no round that any worker has got may be lost. What workers get is judged where it comes
 * (worker.c): by nothing but the serial run.
 */
#ifndef PHUB_TESTS_SIM_TWIN_H
#define PHUB_TESTS_SIM_TWIN_H

#include <stdbool.h>
#include <stdint.h>

#include "client/env.h"
#include "phub/control/box.h"
#include "phub/control/config.h"
#include "transport/loop.h"

enum { TWIN_HOST = 60 };

struct world;
struct worker;

enum twin_state {
	TWIN_NONE,   /* this world has none */
	TWIN_STANDS, /* nothing has happened */
	TWIN_CUT,    /* the first box is alone: some workers may not know yet */
	TWIN_ALONE,  /* the other box is dead, or the workers have left it */
};

struct twin {
	enum twin_state state;
	struct box *box;   /* the standby; NULL: it has become the world's */
	struct box *other; /* the box that was the world's, when another has become that */
	bool dead;         /* the one that is not the world's takes no steps any more */
	struct config config;
	struct loop_listener *listener;
	struct client_env client; /* as which the first one calls it */
	uint64_t random;
	bool whole;        /* the copy was, when it was struck: all must go on */
	uint64_t whole_ns; /* since when it was first seen to be; 0: it was not */
	unsigned breaks;   /* of connections between the two, so far */
	bool unnoticed;    /* the last one broke, and both boxes still say that the copy is whole */
	uint64_t hale_ns;  /* when the copy was whole, or nothing could make it so, last */
};

/* The first box's `config` gets what it needs, before it is finished. */
int twin_configure(struct world *w, struct err *e);
/* Before the first box is made, whose `env` gets what it needs. */
int twin_open(struct world *w, struct box_env *env, struct err *e);
void twin_close(struct world *w);

/* What happens to the boxes now, and what the one does that is not the world's. Returns how much. */
unsigned twin_step(struct world *w, uint64_t now_ns);
/* When it has something to do by itself; UINT64_MAX: never. */
uint64_t twin_due(struct world *w);

/* One box was struck while the copy was not whole: workers may lack what they were answered. */
bool twin_is_stale(const struct world *w);
/* May a worker's session end with these words? */
bool twin_excuses(const struct world *w, const char *text);

/* All workers are gone: is anything left of the other box's jobs, or do its books not balance? NULL: no. */
const char *twin_settled(struct world *w);

#endif
