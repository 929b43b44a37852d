/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One simulated job: a box and its workers on the loop network, in one thread and in virtual time, from one seed. The
 * box, the cores, the control plane and libphub are the product's own objects. In many worlds the box has another job
 * beside it, the guest, of bsp and with values of its own: whatever befalls the first, it is to get what its own
 * serial run has, bit for bit, and so is the first.
 */
#ifndef PHUB_TESTS_SIM_WORLD_H
#define PHUB_TESTS_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "phub/chunk.h"
#include "phub/spec.h"
#include "tests/sim/oracle.h"
#include "tests/sim/storage.h"
#include "transport/loop.h"

#define WORLD_WORKERS_MAX 8
#define WORLD_GUESTS_MAX  3  /* workers of the second job */
#define WORLD_BELOW_MAX   4  /* boxes below the first */
#define WORLD_HOSTS       96 /* where there are any */
#define WORLD_KEYS_MAX    24
#define WORLD_ROUNDS_MAX  16
#define WORLD_CHUNK_BYTES 4096
#define WORLD_SECRET      "of all worlds" /* where they are encrypted */

/* What is wrong on purpose: each checker must find it. */
enum world_plant { PLANT_NONE, PLANT_STALE, PLANT_SWAPPED, PLANT_DOUBLED };

/* What befalls the boxes of a world with two. */
enum world_strike { STRIKE_NONE, STRIKE_KILL, STRIKE_CUT, STRIKE_STANDBY };

/* What befalls boxes below: they die, are cut off, or either; or are cut off for no longer than is not felt. */
enum world_part { PART_NEVER, PART_DEATH, PART_CUT, PART_ANY, PART_BRIEF };

/* By enum config_hierarchy, as the option has it. */
extern const char *const world_hierarchies[4];

/* A box below others. Numbers of boxes: 0 is the root, 1 the first one below. */
struct world_below {
	unsigned above;   /* below which one it is: the root, or one with a lower number */
	unsigned sibling; /* where its workers go when it dies, in worlds where they do */
	unsigned cores;
};

/* Everything a seed decides. */
struct world_plan {
	uint64_t seed;
	unsigned workers, cores;
	unsigned key_count;
	uint32_t elements[WORLD_KEYS_MAX];
	enum dtype dtypes[WORLD_KEYS_MAX];
	bool alone[WORLD_KEYS_MAX];
	bool sparse[WORLD_KEYS_MAX];
	unsigned rounds;
	unsigned window;
	unsigned hold_max;
	bool reproducible, mean, registered, lockstep;
	bool in_step; /* all keys step by step, as training does; so does lockstep, with a schedule of rates */
	bool same;    /* the result is written over the gradient */
	enum optimizer_kind optimizer;
	enum spec_sync sync;
	unsigned staleness;
	enum oracle_values values;
	struct loop_plan net;
	bool encrypt;   /* what they carry is encrypted */
	bool datagrams; /* the data connections are messages over datagrams */
	/*
	 * bsp: a rank that has all its results dies instead of leaving; what it has, all others must get, and then hear
	 * of its end.
	 */
	bool mourned;
	unsigned mortal; /* that rank */
	unsigned breaks; /* so often a worker's data connections break, and are made anew */
	/* Ranks come and go (fate.h), or rounds close without some of them: judged by the census. */
	enum spec_lost lost;
	unsigned quorum;
	unsigned deaths;        /* at most so many; none in a job that would end by it, and not come again */
	uint64_t return_max_ns; /* from a death until another worker comes */
	unsigned wait_ms;
	uint64_t rest_ns; /* cores rest, for so long at least (rest.h); 0: they do not */
	/* The box dies and is made anew, and its jobs have checkpoints on disks that fail (outage.h): targets > 0. */
	unsigned box_deaths;
	uint64_t away_max_ns; /* from a death until it is there again */
	bool leaves;          /* workers leave as soon as they are done, also while the box may yet die */
	unsigned parity, keep, every;
	uint64_t rate; /* 0: none */
	struct storage_plan disk;
	unsigned harms; /* so often stored files rot, or a target goes */
	/* Bytes of control sessions are changed, late or lost, or do not pass for a while. */
	bool mangled;
	bool cruel;       /* also more targets at a time than parity makes up for */
	unsigned slow;    /* ranks below this pause before they push, */
	uint64_t slow_ns; /* up to so long */
	/* There is a second box, the standby of the first, and one of them dies or is cut off (twin.h). */
	enum world_strike strike;
	unsigned strike_steps; /* that happens once in so many turns */
	bool apart;            /* cut off: from its workers, but not from the standby */
	bool hasty;            /* ... also before the copy is whole */
	unsigned twin_breaks;  /* so often connections between the boxes break */
	bool mended;           /* ... once the copy was whole, which it must be again before anything is struck */
	/* There are so many boxes below the first (below.h); 0: there are none. */
	unsigned below;
	struct world_below boxes[WORLD_BELOW_MAX];
	unsigned at[WORLD_WORKERS_MAX]; /* the box of each rank */
	unsigned hierarchy;             /* of them: enum config_hierarchy */
	/* While rounds run, one turn in below_steps, something befalls one of them; at most so often. */
	enum world_part below_part;
	unsigned below_steps, below_parts;
	/* All of them exchange, sharded or a chain, and any of them may be struck, the root, too (homes.h). */
	bool homes;
	unsigned rebalances; /* so often, at most, they are to be other chunks' */
	bool one_way;        /* cuts may be of one way alone */
	bool resume;         /* workers go to the sibling of a box that dies, or come again to theirs */
	/* The root is that by a lease (lease.h): so often, one turn in so many, it stands still or is cut off from
	 * etcd; 0: it is the root for good. */
	unsigned upsets, upset_steps;
	uint64_t ttl_ms;
	unsigned heir;   /* the box below that stands for the root, too, or may be promoted; 0: none does */
	bool promotes;   /* an operator does that (promote.h) */
	unsigned guests; /* workers of a second job; 0: there is none */
	enum world_plant plant;
	enum shard_plant bug; /* of the box */
};

struct world_result {
	uint64_t rounds_checked; /* results of keys, over all workers */
	unsigned owed;           /* workers that lacked results when the mortal one died */
	uint64_t reconnects;     /* connections that were made anew */
	uint64_t coded;          /* pushes and results of sparse keys that went without their zeros */
	uint64_t virtual_ns;
	unsigned died, came, ended; /* workers: that died; in their place; that were told of the job's end */
	uint64_t judged, given_up;  /* rounds of chunks that the census explained, or had too many explanations for */
	uint64_t late;              /* pushes whose round a quorum had closed */
	unsigned struck, whole;     /* worlds with two boxes of which one was struck; that had a whole copy then */
	unsigned below, deep;       /* worlds with boxes below the root; three and more; three levels */
	unsigned several;
	unsigned parted, cut;        /* boxes below that died; racks that were cut off */
	unsigned one_way;            /* of one way alone, of these */
	unsigned healed;             /* cuts that did */
	unsigned resumed;            /* workers that went on after their box was lost */
	unsigned roots;              /* roots with boxes below that died */
	unsigned upset, outrun;      /* roots by a lease that were upset; for longer than that lasts */
	unsigned promoted, regained; /* roots anew after that; roots that were it still */
	unsigned promotions;         /* by an operator; */
	unsigned refused;            /* ...or not */
	uint64_t moves;              /* of workers, to the standby */
	unsigned box_died;
	unsigned restored, anew; /* jobs that went on from a checkpoint, or did not, after that */
	uint64_t kept;           /* checkpoints written */
	unsigned harmed;
	unsigned mangled;      /* workers whose sessions ended by that */
	unsigned guests;       /* worlds with a second job, */
	uint64_t guest_rounds; /* results of its keys, over all its workers */
	/* Worlds with boxes that exchange; such boxes that died; so often they were cut off. */
	unsigned homes, homes_died, homes_cut;
	unsigned homes_moves, homes_moved; /* changes of homes that began, that were done */
	struct storage_stats disk;
	struct loop_stats net;
	char text[512]; /* why it failed */
};

/* The keys of a plan as both ends name them. */
struct chunk_key world_plan_key(const struct world_plan *plan, unsigned k);
unsigned world_plan_key_flags(const struct world_plan *plan, unsigned k);

/* Is the job one whose rounds do not always have all ranks? */
static inline bool world_plan_varies(const struct world_plan *plan)
{
	return plan->lost != LOST_FAIL || plan->quorum > 0 || plan->deaths > 0;
}

/* Is its box one that dies? */
static inline bool world_plan_dies(const struct world_plan *plan)
{
	return plan->disk.targets > 0;
}

/* Has its box a standby, or others below? */
static inline bool world_plan_twins(const struct world_plan *plan)
{
	return plan->strike != STRIKE_NONE || plan->below;
}

/* Do workers whose box is lost, or ends their job, come again by themselves? */
static inline bool world_plan_resumes(const struct world_plan *plan)
{
	return world_plan_dies(plan) || plan->resume;
}

/* Is the root that by a lease? */
static inline bool world_plan_leases(const struct world_plan *plan)
{
	return plan->upsets > 0;
}

/* Is another box the root when an operator says so? */
static inline bool world_plan_promotes(const struct world_plan *plan)
{
	return plan->promotes;
}

/* May the job come again, so that all must do once more what some have done? */
static inline bool world_plan_repeats(const struct world_plan *plan)
{
	return world_plan_dies(plan) || world_plan_leases(plan);
}

/* Has its box a second job? Not where what befalls the box, or control sessions, would befall that as well. */
static inline bool world_plan_shares(const struct world_plan *plan)
{
	return plan->guests > 0 && !world_plan_dies(plan) && !world_plan_twins(plan) && !plan->mangled;
}

/* As what boxes send sums to each other (uplink_type): in any of these types these are exact, where they are of small
 * integers. */
const char *world_plan_lift(const struct world_plan *plan);

/* The schedule: every round another learning rate, or none. */
struct optimizer_hyper world_plan_hyper(const struct world_plan *plan, uint64_t round);

/* Draws a plan. */
void world_plan_draw(uint64_t seed, struct world_plan *plan);
/* The same one with datagrams, if it has none yet; the seed decides their losses and sizes, too. */
void world_plan_datagrams(struct world_plan *plan);
/* The same one, encrypted. */
void world_plan_encrypt(struct world_plan *plan);
/* The same one with a second job, if its box lives; and the plan of that job. */
void world_plan_invite(struct world_plan *plan);
void world_plan_guest(const struct world_plan *plan, struct world_plan *guest);
/* The same one with ranks that die and come, or with a quorum. */
void world_plan_elastic(struct world_plan *plan);
void world_plan_quorum(struct world_plan *plan);
/* Of ssp or async, with ranks that die and come. */
void world_plan_stepwise(struct world_plan *plan);
/* The same one with a second box. */
void world_plan_standby(struct world_plan *plan);
/* The same one with a second box below the first, and workers at both; or with several of them. */
void world_plan_spread(struct world_plan *plan);
void world_plan_racks(struct world_plan *plan);
/* ... which are the homes of its chunks. */
void world_plan_homes(struct world_plan *plan);
/* The same one with several boxes of which the root dies, and goes on from its checkpoints. */
void world_plan_rooted(struct world_plan *plan);
/* ... or is the root by a lease. */
void world_plan_leased(struct world_plan *plan);
/* ... or is promoted by an operator. */
void world_plan_promoted(struct world_plan *plan);
/* The same one with control sessions that go wrong. */
void world_plan_mangled(struct world_plan *plan);
/* The same one with a box that dies, and checkpoints. */
void world_plan_durable(struct world_plan *plan);
/* ... and workers that do as well. */
void world_plan_resumed(struct world_plan *plan);
void world_plan_print(const struct world_plan *plan, FILE *out);

/* A box starts now: it may look names up, and finds no addresses. */
extern bool world_starts;

/* Runs it. 0, or -1 with the reason in result->text. `trace`: NULL or where every message is told. */
int world_run(const struct world_plan *plan, FILE *trace, struct world_result *result);

#endif
