/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control thread's state: sessions, jobs, and the mail to and from the cores. control_step() does what can be done
 * now, without blocking and without a clock, so that the simulation runs the very same objects; control_run.c puts
 * epoll and the clock around it. May allocate.
 */
#ifndef PHUB_CONTROL_CONTROL_H
#define PHUB_CONTROL_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/control/above.h"
#include "phub/control/config.h"
#include "phub/mailbox.h"

struct box;
struct job;
struct keeper;
struct session;
struct job_hyper_table;
struct rate;
struct box_call;

#define CONTROL_TICK_NS 100000000ull /* timers are looked at this often */
#define CONTROL_SOON_NS 1000000ull   /* a transport that is about to have something, this often */
#define CONTROL_GAP_NS \
	1000000000ull /* not stepped for so long: the box itself was stopped, and silence is not the workers' fault */

/* What epoll hands back: which object is ready. */
enum control_ready {
	CONTROL_STOP,
	CONTROL_HUP,
	CONTROL_MAIL,
	CONTROL_LISTENER,
	CONTROL_TRANSPORT,
	CONTROL_SESSION,
	CONTROL_HOSTBOX
};
struct control_watch {
	enum control_ready kind;
	void *object;
};

struct control {
	const struct config *config;
	struct box *box;
	struct mailbox *mail; /* from the cores */
	int epoll_fd;         /* -1: nobody sleeps, everything is tried at every step */
	int64_t uid;          /* ours: peers with it (or 0) over loopback need no secret where config.create says so */
	uint64_t now_ns;      /* of this step */
	uint64_t started_ns;
	uint64_t stepped_ns; /* of the last step */
	uint64_t tick_ns;    /* of the last look at the timers */
	bool again;          /* something was left over: step again before sleeping */
	bool soon;           /* a transport will have something in a moment, of which no fd tells */
	bool accept_paused;  /* out of descriptors: until the next tick */
	uint64_t keep_ns;    /* by hand: when a job's checkpoint has something to do; UINT64_MAX: never */
	bool stopping;
	bool unbalanced; /* a shard came back with slots, credits or completions that do not balance */

	/* List, oldest first: of a worker that ended and the one that takes its place, the end is heard first. */
	struct session *sessions;
	unsigned session_count, stranger_count;        /* strangers: not proved yet */
	uint64_t session_last;                         /* id */
	uint64_t strangers_refused, strangers_limited; /* the latter, of the former: too many had come */
	struct rate *rate;                             /* of those that come */
	uint64_t dropped[DROP_COUNT];                  /* messages of jobs that are over */

	struct job *jobs;               /* list; those that end are in it until their shards are back */
	unsigned job_count;             /* without those that end */
	uint32_t job_last;              /* number on the wire */
	uint64_t memory_used;           /* of config->memory_max, by jobs */
	uint64_t table_bytes;           /* of key tables that are still coming in */
	struct job_hyper_table *tables; /* hyper-parameters on their way to cores */
	struct keeper *keepers;         /* of jobs that are over, whose disks are not done (keeper.h) */
	struct above above;             /* the box that is above this one, if there is one */
	struct box_call *calls;         /* sessions with other boxes, for jobs that are over (calls.h) */
	struct box_call *calls_open;    /* all of these */
	uint64_t call_last;             /* number */
};

/* Does all that can be done now. Returns whether it should be called again at once. */
bool control_step(struct control *c, uint64_t now_ns);

/* When control_step() is due at the latest, when nothing comes in. */
uint64_t control_next(const struct control *c);

/* Begins to go down: every job is told, strangers are closed, shards are called back. */
void control_stop(struct control *c);

/* After control_stop(): is all back, and everybody told (or slow for too long)? */
bool control_stopped(const struct control *c);

/* Frees what is left; after control_stopped(), or when cores no longer run. */
void control_fini(struct control *c);

#endif
