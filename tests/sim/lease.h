/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worlds whose root is that by a lease in etcd (phub/control/above.h). Etcd and what boxes ask it (campaign.h, seek.h)
 * are played here: the root's key goes when its lease has run out, and who stands for the root and hears of that takes
 * it; boxes below hear where the root is. The root stands still, as when it is stopped or its host is suspended, or
 * hears nothing of etcd, for less than its lease or for more; where another box stands for it, that is promoted
 * meanwhile. What is judged: a root commits no round beyond its lease, also where its cores run before its control
 * thread does.
 */
#ifndef PHUB_TESTS_SIM_LEASE_H
#define PHUB_TESTS_SIM_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/control/box.h"
#include "phub/control/config.h"
#include "tests/sim/world.h"

struct world;
struct worker;

enum { LEASE_BOXES = 2 /* that may stand for the root: the first box, and its heir */ };

struct leases {
	uint64_t random;
	uint64_t revision; /* of etcd */
	/* The key, as etcd has it. */
	int holder; /* of LEASE_BOXES; -1: nobody */
	uint64_t epoch;
	uint64_t expires_ns; /* the lease of it */
	uint64_t renew_ns, ask_ns;
	uint64_t until_ns[LEASE_BOXES]; /* as they were told last; 0: they were not */
	unsigned upsets;
	/* The newest job of each box below that knew of its root, and that one's run: also when boxes between are dead.
	 */
	struct {
		uint32_t job;
		uint64_t run;
	} runs[WORLD_BELOW_MAX];
	uint64_t
		outrun_ns; /* a root that had stood still, or was deaf, for longer than its lease was well again then */
	bool shut;         /* nobody could be the root, whose disks were away */
	/* Under way. */
	int still; /* it takes no steps; -1: none */
	int deaf;  /* it hears nothing of etcd; -1: none */
	uint64_t until_well_ns;
	int woken;      /* its cores run before its control thread, */
	unsigned turns; /* for so many turns more */
};

/* To be called before a box is configured further: it may stand for the root; it is below it. */
int lease_configure_root(const struct world *w, struct config *config, struct err *e);
int lease_configure_below(const struct world *w, struct config *config, struct err *e);
void lease_init(struct world *w);

/* As box_step(), of any box. */
bool lease_turn(struct world *w, struct box *box, uint64_t now_ns);
/* Does it take steps? */
bool lease_rests(const struct world *w, const struct box *box);

/* What happens to leases and roots. Returns how much; and when that is due. */
unsigned lease_step(struct world *w, uint64_t now_ns);
uint64_t lease_due(const struct world *w);
/* May it be because there was no root, for so long? */
bool lease_excuses(const struct world *w, const char *text);
/* Nothing is upset any more. */
void lease_heal(struct world *w);

/* The run of the job that a worker begins in, which may be with a root that is none any more; 0: it is over. */
uint64_t lease_run(const struct worker *me);

/* The box that is the root, whose epoch is *epoch; NULL: none is. */
struct box *lease_root(const struct world *w, uint64_t *epoch);

#endif
