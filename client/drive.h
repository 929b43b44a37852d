/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who drives progress, and when it sleeps. A caller that waits drives the handle itself: it polls, yields for a bounded
 * time, then sleeps until something comes; no thread stands between it and the box. Other callers that wait
 * meanwhile sleep on a condition. The progress thread drives only while no caller does: it keeps the session alive, and
 * moves rounds that were begun and are not waited for yet.
 */
#ifndef PHUB_CLIENT_DRIVE_H
#define PHUB_CLIENT_DRIVE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/phub.h"
#include "phub/base/err.h"

enum drive_thread_state {
	DRIVE_THREAD_NONE,
	DRIVE_THREAD_AWAKE,  /* is driving, or looks around within microseconds */
	DRIVE_THREAD_NAPS,   /* callers drive: it looks again in a few milliseconds */
	DRIVE_THREAD_SLEEPS, /* until its fds or timers wake it */
};

struct drive {
	atomic_uint contenders;       /* callers that want the lock: the driver lets them in (relaxed: a hint) */
	pthread_cond_t changed;       /* something happened, or nobody drives */
	unsigned waiting;             /* callers that sleep on it */
	bool driving;                 /* a caller drives */
	bool driver_sleeps;           /* it is asleep, with the queue armed */
	int wake_driver, wake_thread; /* eventfds; -1: not made */
	uint64_t spin_ns;             /* how long the driver polls before it sleeps; adapts */
	uint64_t driven_ns;           /* when a caller drove last; what it began to send is in exchange.sent_ns */
	bool threaded;                /* there is a progress thread; constant while it runs */
	pthread_t thread;
	enum drive_thread_state thread_state;
	bool thread_wanted; /* pushes wait that could not be sent at once */
	bool stopping;
	int watch;         /* phub_fd()'s epoll set; -1: not asked for */
	uint64_t blind_ns; /* watched, and nothing would wake it when something comes: look again by then */
	int watched[3];    /* what is in it: control, data, wake; -1: nothing */
};

/* What a wait waits for: 0 or an error ends it, -EAGAIN does not. */
typedef int drive_done(const phub_t *p, int arg);

void drive_init(struct drive *d);
void drive_fini(struct drive *d);

/* Makes the fds that waiting needs. 0 or a negative errno. */
int drive_open(struct drive *d, struct err *e);

/* The handle's lock. Any thread. */
void drive_lock(phub_t *p);
void drive_unlock(phub_t *p);

/* Under the lock, which is let go meanwhile: until done() or the deadline (-ETIMEDOUT). A deadline in the past: one
 * try. */
int drive_wait(phub_t *p, drive_done *done, int arg, uint64_t deadline_ns);

/* Under the lock, at the end of a call that may have moved something: wakes whoever has to know. */
void drive_hand_over(phub_t *p);

/* The progress thread. Stopping is done without the lock, and waits for it to end. */
int drive_thread_start(phub_t *p, struct err *e);
void drive_thread_stop(phub_t *p);

/* For callers with an event loop, under the lock. The fd, or a negative errno; ms until something is due. */
int drive_watch(phub_t *p);
int drive_once(phub_t *p);

/* A forked child's copy: closes its fds. */
void drive_forget(struct drive *d);

#endif
