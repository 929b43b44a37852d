/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For how long a core may commit rounds of jobs whose box is a root by a lease in etcd (control/above.h). Control holds
 * such jobs when the lease runs out (MAIL_PAUSE); but a box that stood still, stopped or suspended, may run its cores
 * before its control thread sees how late it is, and they have pushes to commit. So each looks at the clock itself, at
 * each commit: a stop may come between any two.
 */
#ifndef PHUB_LEASE_H
#define PHUB_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/stats.h"

struct lease {
	/* Written by control, on a line of its own; read by the core, relaxed: nothing else is ordered by it. */
	_Alignas(64) uint64_t until_ns; /* 0: not at all */
	/* The core's: */
	_Alignas(64) uint64_t step_ns; /* of this step */
	uint64_t (*clock)(void);       /* of until_ns; NULL: steps are given the time */
	bool missed;                   /* a commit waits, for it came too late */
};

/* Control thread. */
static inline void lease_extend(struct lease *l, uint64_t until_ns)
{
	stats_set(&l->until_ns, until_ns);
}

/* The owning core. */
static inline bool lease_is_over(const struct lease *l)
{
	return (l->clock ? l->clock() : l->step_ns) >= stats_read(&l->until_ns);
}

#endif
