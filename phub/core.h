/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A core: a pinned polling thread that owns queues, shards and memory, and runs each message to completion: poll,
 * receive, reply, flush, tick. Only core_run() (or a simulation that calls core_step() itself) touches what it
 * owns.
 */
#ifndef PHUB_CORE_H
#define PHUB_CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/base/trace.h"
#include "phub/chunk.h"
#include "phub/lease.h"
#include "phub/mailbox.h"
#include "transport/transport.h"

#define CORE_QUEUES_MAX  8
#define CORE_UPLINKS_MAX 2
#define CORE_BATCH       64            /* events per poll */
#define CORE_STALL_NS    1000000000ull /* a round that is open this long is told to control, once as often */
#define CORE_TICK_NS     1000000ull    /* mail is read at least this often under load */

enum core_poll { CORE_BUSY, CORE_ADAPTIVE };

struct core_config {
	unsigned index;
	int cpu; /* to pin to, -1: not pinned */
	enum core_poll poll;
	uint64_t spin_ns;        /* adaptive: poll and yield this long before sleeping; 0: default 50 us */
	struct mailbox *control; /* where this core's mail to control goes */
	unsigned trace_events;   /* size of the trace ring; 0: none */
	uint64_t (*clock)(void); /* of core.lease; NULL: the time of its steps */
	enum shard_plant plant;
	bool plant_leak; /* for tests: a slot of every shard is lost, so that the books cannot balance */
};

struct core_counters { /* one cache-line group, written by the core, read by control with relaxed loads */
	uint64_t polls, events, batches, sleeps;
	uint64_t busy_ns;         /* time in steps that handled events */
	uint64_t protocol_errors; /* connections closed for what they sent */
};

struct core {
	struct core_config config;
	struct queue *queues[CORE_QUEUES_MAX];
	unsigned queue_count;
	struct queue *uplinks[CORE_UPLINKS_MAX]; /* whose connections lead to other boxes (uplink.h) */
	unsigned uplink_count;
	struct mailbox *inbox;
	struct shard *shards; /* list */
	struct fair fair;
	struct lease lease;   /* shards that are `leased` commit while it lasts */
	struct link *touched; /* links to be looked after at the end of the batch */
	uint64_t tick_ns;
	unsigned untold; /* ended links that did not fit into control's mailbox */
	bool owes_mail;  /* `owed` did not fit either: no more mail is read before it does */
	struct mail owed;
	bool stopping;
	int epoll_fd; /* adaptive: where it sleeps */
	bool blind;   /* adaptive: a queue of it cannot wake it */
	uint64_t nap_ns;
	struct trace trace;
	struct event events[CORE_BATCH];
	struct core_counters counters;
};

/* Control thread, before the core runs. The queues are made and destroyed by the caller. 0 or a negative errno. */
int core_create(const struct core_config *config, struct core **out, struct err *e);
int core_add_queue(struct core *core, struct queue *queue);
/* Likewise, of a transport that was opened to connect, a queue of its uplinks; CORE_UPLINKS_MAX of them at most. */
void core_add_uplinks(struct core *core, struct queue *queue);
/* After core_run() returned (or the last step). All shards were detached. */
void core_destroy(struct core *core);

/*
 * One turn: poll every queue, receive, reply, flush; tick when due. Returns the events and mails handled. Never
 * sleeps.
 */
unsigned core_step(struct core *core, uint64_t now_ns);

/* The thread's body: pins itself, steps, and sleeps as config->poll says, until MAIL_STOP. `core` is a struct core. */
void *core_run(void *core);

/*
 * Do slots, replies and credits of a shard balance? 0, or -EBADE with the account in `e`. For a shard that is being
 * detached, after its links were dropped; also for tests.
 */
int core_balance(const struct shard *shard, struct err *e);

#endif
