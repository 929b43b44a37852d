/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside a world: its workers, which are small scripts over libphub, and what they are compared with.
 */
#ifndef PHUB_TESTS_SIM_WORKER_H
#define PHUB_TESTS_SIM_WORKER_H

#include "client/client.h"
#include "client/handle.h"
#include "phub/control/box.h"
#include "tests/sim/below.h"
#include "tests/sim/census.h"
#include "tests/sim/fate.h"
#include "tests/sim/homes.h"
#include "tests/sim/lease.h"
#include "tests/sim/outage.h"
#include "tests/sim/promote.h"
#include "tests/sim/replay.h"
#include "tests/sim/twin.h"
#include "tests/sim/world.h"

enum { WORLD_BOX_HOST = 0, WORLD_GUEST_HOST = 40 /* the first of them */, WORLD_CONTROL_PORT = 7077 };

enum worker_state {
	WORKER_JOINING,
	WORKER_STARTING,
	WORKER_RUNNING,
	WORKER_RESUMING, /* the box was lost: until it is there again */
	WORKER_LEAVING,
	WORKER_DONE,
	WORKER_DEAD,
};

struct worker_key {
	void *push, *pull;
	uint64_t round; /* in flight or next */
	bool in_flight;
	uint64_t pushed_ns;
	uint32_t epoch; /* the oldest that a core of it was known to be in when it was pushed */
	bool shares;    /* what is in flight goes into a sum, or sets weights */
};

struct worker {
	struct world *world;
	struct loop_host *host;
	phub_t *phub;
	unsigned rank, life;
	const struct below_box *rack; /* whose rack its host is in; NULL: the root's */
	unsigned box;                 /* which of the world's, one after the other, it is with */
	uint64_t run;                 /* of the job, for the census */
	enum worker_state state;
	uint64_t random;
	uint64_t opened_ns;
	uint64_t since_ns; /* that it waits in its state for something else than results */
	uint64_t asked_ns; /* when its call was about to end: who is missing */
	uint64_t pause_ns; /* a slow one pushes nothing before */
	uint64_t round;    /* lockstep, in_step: the round that all keys are in */
	struct worker_key keys[WORLD_KEYS_MAX];
	struct replay_life *record; /* ssp, async: what was got, for the replay; the world's */
};

/* The serial run's results of one key, for every round, as they are first asked for. */
struct history {
	struct oracle_key key;
	uint64_t rounds; /* computed so far; results[round - first] */
	void **results;
	double **exacts;
};

struct world {
	const struct world_plan *plan;
	const char *job;
	unsigned first_host; /* of its workers, on the net */
	struct world *guest; /* the second job: another world on the same net, with the same box; NULL: there is none */
	struct oracle oracle;
	struct loop_net *net;
	struct loop_listener *listener;
	struct config config;
	struct box *box;   /* NULL: it is dead */
	unsigned box_host; /* where that is */
	struct twin twin;
	struct below below;
	struct homes homes;
	struct leases leases;
	struct promotions promotions;
	struct worker workers[WORLD_WORKERS_MAX];
	struct history histories[WORLD_KEYS_MAX];
	struct census census;
	struct replay_life lives[WORLD_WORKERS_MAX][FATE_LIVES];
	struct fate fate;
	struct outage outage;
	struct world_result *result;
	uint64_t random;
	unsigned breaks;
	unsigned deafened;      /* so often no bytes of a control session passed for a while */
	unsigned cut, cut_host; /* endpoint that is cut off from a box, 0: none; until */
	uint64_t heals_ns;
	bool awake;           /* cores rest no more */
	bool failed, overdue; /* it failed because something did not end in time */
	FILE *trace;          /* NULL: it is not told */
};

/* Where a box with this name is. */
unsigned world_endpoint(const struct world *w, const char *host);

/* Who was cut off is no longer. */
void world_heal(struct world *w);

/* What a handle has counted, before it is closed. */
void world_count_handle(struct world *w, const phub_t *phub);

void world_fail(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same where something did not end in time: a wrong sum, if there is one, is the better reason. */
void world_fail_late(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* NULL behind the last. */
const struct transport_ops *const *world_transports(const struct world *w);

/* The job that runs, or NULL. */
struct job *world_job(const struct world *w);
int world_open_box(struct world *w, struct err *e);
/* A box has checkpoint targets, as the plan says. */
int world_configure_targets(const struct world_plan *plan, struct config *config, struct err *e);

/* It has all results that it wants. */
bool worker_is_finished(const struct worker *me);

/* Sets out to join, with what `me` says of itself. */
int worker_open(struct worker *me, struct err *e);

/* Does what can be done now; returns how much that was. */
unsigned worker_step(struct worker *me, uint64_t now_ns);

/* When it wants to take a step although nothing comes; in nobody's past. */
uint64_t worker_due(const struct worker *me);

/* Has the membership changed since this was pushed, so that it may have been sent again? */
bool worker_repeats(const struct worker *me, const struct flight *flight);

/* It takes no more steps. */
bool worker_is_gone(const struct worker *me);

/* Its process is gone, at once. */
void worker_kill(struct worker *me);

void worker_fini(struct worker *me);

#endif
