/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box: cores, the transports' queues that they poll, and the control thread's state. The product runs it with
 * box_run(); the simulation and tests give it loop streams and the loop transport and turn it by hand with box_step(),
 * in one thread and in virtual time.
 */
#ifndef PHUB_CONTROL_BOX_H
#define PHUB_CONTROL_BOX_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/control/checkpoint.h"
#include "phub/control/config.h"
#include "phub/control/control.h"
#include "phub/control/outlet.h"
#include "phub/control/post.h"
#include "phub/control/targets.h"
#include "phub/core.h"
#include "topology/placement.h"
#include "transport/stream.h"
#include "transport/transport.h"

struct announce;
struct announce_ops;
struct disk;
struct kernels;
struct promotion;
struct call_ops;
struct stream_tls;

#define BOX_ADDRESS_BYTES 128

/* What is brought from outside. */
struct box_env {
	const struct kernels *kernels;
	/* NULL: those that config->transports names. */
	const struct transport_ops *const *transports;
	unsigned transport_count;
	struct loop_host *loop; /* handed to the transports; for loop alone */
	/* The next control stream, or -EAGAIN. NULL: TCP listeners at config->listen. */
	int (*accept)(void *arg, struct stream **out);
	void *accept_arg;
	/* How other boxes are called (transport/call.h), and what open() takes; NULL: none is. */
	const struct call_ops *calls;
	void *calls_arg;
	const struct announce_ops
		*announce; /* how the box is announced (announce.h), where options say so; NULL: not */
	/* By which leases are counted (clock_outside_ns()); NULL: time is what each step is given. Any thread. */
	uint64_t (*lease_clock)(void);
	bool by_hand;      /* cores are stepped by the caller: not pinned, the machine is not looked at; no threads */
	struct disk *disk; /* of checkpoints, which outlives the box's threads; NULL: the machine's */
	bool plant_leak;   /* for tests: see core.h */
	unsigned plant;    /* for tests: enum shard_plant */
};

/* An address of the control sessions. */
struct box_listener {
	struct control_watch watch;
	int fd;
	char bound[BOX_ADDRESS_BYTES];
};

/* A way that gradients come in. */
struct box_transport {
	struct control_watch watch;
	struct transport *transport;
	bool ready; /* accept() may have something; always looked at when there is no fd */
	int fd;
	char address[CONFIG_LISTEN_MAX][BOX_ADDRESS_BYTES]; /* per listener: what workers that came by it connect to */
};

struct box {
	const struct config *config;
	struct box_env env;
	struct control control;
	struct rate *data_rate; /* of strangers at data ports */
	unsigned core_count;
	struct core *cores[CONFIG_CORES_MAX];
	int core_node[CONFIG_CORES_MAX];
	struct placement_core placement[CONFIG_CORES_MAX]; /* with the load of live jobs */
	struct post posts[CONFIG_CORES_MAX];               /* mail to each core */
	struct queue *queues[CONFIG_CORES_MAX][CONFIG_TRANSPORTS_MAX];
	struct outlets outlets;    /* to other boxes */
	struct racks racks;        /* as read anew; no boxes: as the config has it */
	unsigned racks_box;        /* which of them this is */
	struct stream_tls *tls;    /* of control sessions, or NULL */
	struct announce *announce; /* NULL: it is not announced */
	struct checkpoint_locks
		locks;          /* of its checkpoint targets, as long as none is above it (promotion.h); or, where */
	struct targets targets; /* it stands for a root in etcd, while it is that */
	struct promotion *promotion; /* NULL: an operator cannot promote it */
	struct err ended;            /* why it goes down by itself; code 0: it does not */
	char exposed[480];           /* what is plain at a public address, and what to do; "": none of that */
	unsigned listener_count;
	struct box_listener listeners[CONFIG_LISTEN_MAX];
	unsigned transport_count;
	struct box_transport transports[CONFIG_TRANSPORTS_MAX];
};

/*
 * Opens transports and listeners and makes the cores; nothing runs yet. `config` was finished (config_finish()) and
 * outlives the box; so do env's pointers. Control thread; may block. 0 or a negative errno with what to do in `e`.
 */
int box_create(
	const struct config *config, const struct box_env *env, uint64_t now_ns, struct box **out, struct err *e);

/*
 * Is what the options name there on this machine: CPUs, interface, addresses? Ports are not tried: another box may have
 * them. Blocks on names. 0 or a negative errno with what to do in `e`.
 */
int box_check(const struct config *config, struct err *e);

/*
 * Can checkpoints be written where the options say, by this process as it is now: to be asked once it is the user that
 * it becomes. `strict`: to all of the targets, and no more is asked: a box that runs may have them. Else it is for a
 * start: some may fail that parity makes up for, which is logged, and they are locked for `box` until it ends, or is
 * below another, but not by one that stands for a root in etcd (targets.h). Of those that cannot be locked, for another
 * reason than that another box has them, the log warns.
 * A full disk fails no start: what it has may be gone on from. Blocks on disks. `box`: that starts, on whose disk they
 * are, or NULL: the machine's, and nothing is locked. 0 or a negative errno with what to do in `e`; -EBUSY: another box
 * has them.
 */
int box_check_targets(const struct config *config, struct box *box, bool strict, struct err *e);

/*
 * Turns control and every core once. Does not block. Returns whether something is left to be done at this very time.
 * A caller that wants to choose the order calls control_step(&box->control, now) and core_step(box->cores[i], now)
 * itself.
 */
bool box_step(struct box *box, uint64_t now_ns);

/* When the next step is due at the latest, when nothing comes in. */
uint64_t box_next(const struct box *box);

/*
 * Runs cores in threads of their own and control in this one until `stop_fd` is readable, then goes down in good order.
 * Afterwards no thread is left. 0 or a negative errno. `hup_fd`: a signalfd of SIGHUP, or -1. When a process sent that,
 * the certificate is read anew (box_reload()); when the kernel did, whose terminal was closed, the box goes down. So it
 * does when box->ended says why, which is then the error.
 */
int box_run(struct box *box, int stop_fd, int hup_fd, struct err *e);

/*
 * Reads certificate and key anew: sessions that come from now on are shown them, those that are there go on. Likewise
 * the rack file, by which jobs that start from now on choose their homes. What is not good is logged, and the old
 * stays. Control thread; blocks on the files.
 */
void box_reload(struct box *box);

/* The rack file as last read, and which of its boxes this is; NULL: there is none. */
const struct racks *box_racks(const struct box *box, unsigned *self);

/*
 * Frees everything; workers that are still connected are told and cut off. `now_ns` as in the last step. By the thread
 * that made it, when no core runs in a thread of its own.
 */
void box_destroy(struct box *box, uint64_t now_ns);

/* Have slots, replies and credits of all jobs balanced so far? To be asked before box_destroy(), after the last job
 * ended. */
bool box_balanced(const struct box *box);

/* "127.0.0.1:7077 (tcp, shm), 2 cores": for the first line that phubd prints. */
void box_describe(const struct box *box, char *out, size_t bytes);

#endif
