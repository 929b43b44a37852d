/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells others that this box is up, where, and with which jobs, for as long as it lives. Nothing depends on it: where
 * it cannot be told, that is logged, and tried again. A table of calls, so that a box which is not to be announced (the
 * simulation's) has none of it. Control thread; nothing blocks, but open().
 */
#ifndef PHUB_CONTROL_ANNOUNCE_H
#define PHUB_CONTROL_ANNOUNCE_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/control/config.h"

struct announce;
struct box;

struct announce_ops {
	/* Of a box that listens. 0, or a negative errno with what to do in `e`. */
	int (*open)(struct box *box, uint64_t now_ns, struct announce **out, struct err *e);
	/* Readable: step() is due. */
	int (*fd)(const struct announce *a);
	void (*step)(struct announce *a, uint64_t now_ns);
	/* When step() is due at the latest. */
	uint64_t (*next)(const struct announce *a);
	/* The box goes down: what was told is taken back, in a second at most. */
	void (*stop)(struct announce *a, uint64_t now_ns);
	bool (*stopped)(const struct announce *a);
	/* In any state. */
	void (*close)(struct announce *a);
};

/*
 * To etcd, where config->etcd names one: a lease, and under it the keys of transport/roster.h. The box's own is written
 * at once; of jobs, what has changed but for the round once a second at most, and that twice in the lease's time. When
 * the lease is over, as after a long time without etcd, all is written anew under another.
 */
extern const struct announce_ops announce_etcd;

/* Are the options about etcd good, and is libcurl there? 0, or a negative errno with what to do in `e`. */
int announce_check(const struct config *config, struct err *e);

#endif
