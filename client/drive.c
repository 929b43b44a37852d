/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driving and sleeping. Why a caller polls itself: a round of a small key takes a few microseconds over shared
 * memory, a hand-off to another thread costs that again. Why sched_yield() between empty polls: where workers
 * outnumber processors, whoever is waited for may need this one.
 */
#include "client/drive.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "client/client.h"
#include "client/handle.h"
#include "phub/base/clock.h"

enum {
	DRIVE_SPIN_MIN_US = 20,
	DRIVE_SPIN_US = 50,
	DRIVE_SPIN_MAX_US = 200,
	DRIVE_SLEPT_LONG = 4, /* times the spin before it */
	DRIVE_NAP_MS = 4,     /* the thread takes over when no caller has driven for so long */
	DRIVE_THREAD_SPIN_US = 20,
	DRIVE_BLIND_US = 1000,    /* how often to look where nothing can wake us, */
	DRIVE_BLIND_DATA_US = 50, /* and rounds run */
	DRIVE_ONCE_MAX = 64,      /* rounds of progress in one phub_progress() */
};

enum drive_watched { WATCH_CONTROL, WATCH_DATA, WATCH_WAKE, WATCH_COUNT };

/* ---- life ---- */

void drive_init(struct drive *d)
{
	pthread_condattr_t attr;

	memset(d, 0, sizeof(*d));
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&d->changed, &attr);
	pthread_condattr_destroy(&attr);
	d->spin_ns = DRIVE_SPIN_US * NS_PER_US;
	d->wake_driver = -1;
	d->wake_thread = -1;
	d->watch = -1;
	for (unsigned i = 0; i < WATCH_COUNT; i++)
		d->watched[i] = -1;
}

int drive_open(struct drive *d, struct err *e)
{
	d->wake_driver = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	d->wake_thread = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (d->wake_driver < 0 || d->wake_thread < 0)
		return err_set(e, -errno, "cannot make an eventfd: %s; raise `ulimit -n`", strerror(errno));
	return 0;
}

static void drive_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void drive_forget(struct drive *d)
{
	drive_close(&d->wake_driver);
	drive_close(&d->wake_thread);
	drive_close(&d->watch);
}

void drive_fini(struct drive *d)
{
	drive_forget(d);
	pthread_cond_destroy(&d->changed);
}

void drive_lock(phub_t *p)
{
	if (pthread_mutex_trylock(&p->lock) == 0)
		return;
	atomic_fetch_add_explicit(&p->drive.contenders, 1, memory_order_relaxed);
	pthread_mutex_lock(&p->lock);
	atomic_fetch_sub_explicit(&p->drive.contenders, 1, memory_order_relaxed);
}

void drive_unlock(phub_t *p)
{
	pthread_mutex_unlock(&p->lock);
}

/* Lets others at the handle for a moment, and at the processor. */
static void drive_yield(phub_t *p)
{
	drive_unlock(p);
	sched_yield();
	drive_lock(p);
}

/* ---- waking ---- */

static void drive_ring(int fd)
{
	const uint64_t one = 1;

	if (fd >= 0 && write(fd, &one, sizeof(one)) < 0)
		return; /* it is ringing already */
}

static void drive_hush(int fd)
{
	uint64_t count;

	if (fd >= 0 && read(fd, &count, sizeof(count)) < 0)
		return;
}

void drive_hand_over(phub_t *p)
{
	struct drive *d = &p->drive;

	if (d->waiting)
		pthread_cond_broadcast(&d->changed);
	/* What the sleeping driver was to be woken by may have been taken away by this call. */
	if (d->driver_sleeps) {
		d->driver_sleeps = false;
		drive_ring(d->wake_driver);
	}
	if (d->watch >= 0)
		drive_watch(p); /* likewise the caller's event loop */
	if (d->driving || d->thread_state == DRIVE_THREAD_NONE || d->thread_state == DRIVE_THREAD_AWAKE)
		return;
	if (!p->running || p->exchange.open_keys == 0)
		return;
	if (d->thread_state == DRIVE_THREAD_NAPS && !p->exchange.backlog)
		return;
	d->driven_ns = p->env.now(p->env.ctx);
	d->thread_wanted = p->exchange.backlog;
	d->thread_state = DRIVE_THREAD_AWAKE;
	drive_ring(d->wake_thread);
}

/* ---- sleeping ---- */

static struct timespec drive_timespec(uint64_t ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
}

/*
 * The fd of the data path: armed when rounds run. -EAGAIN: something came meanwhile. -1: there is none; *blind_ns, if
 * not 0: and it would be needed, so that we must look again by then.
 */
static int drive_data_fd(phub_t *p, uint64_t *blind_ns)
{
	struct exchange *x = &p->exchange;
	int fd = -1;

	*blind_ns = 0;
	if (p->running)
		fd = x->group.queue->ops->arm(x->group.queue);
	else if (x->connecting && x->transport)
		fd = x->transport->ops->fd(x->transport);
	else
		return -1;
	if (fd == -EAGAIN)
		return fd;
	if (fd >= 0)
		return fd;
	*blind_ns = (p->running ? DRIVE_BLIND_DATA_US : DRIVE_BLIND_US) * NS_PER_US;
	return -1;
}

/* Sleeps until an fd, a timer or `until_ns`; the lock is let go. `with_data`: also until something comes on the data
 * path. */
static void drive_sleep(phub_t *p, int wake, bool with_data, uint64_t until_ns)
{
	struct pollfd fds[WATCH_COUNT] = {{.fd = -1}, {.fd = -1}, {.fd = wake, .events = POLLIN}};
	uint64_t now = p->env.now(p->env.ctx), due = client_due(p), blind_ns = 0;
	bool write = false;
	struct timespec timeout;

	if (with_data)
		fds[WATCH_DATA] = (struct pollfd){.fd = drive_data_fd(p, &blind_ns), .events = POLLIN};
	if (fds[WATCH_DATA].fd == -EAGAIN)
		return;
	fds[WATCH_CONTROL].fd = client_session_fd(&p->session, &write);
	fds[WATCH_CONTROL].events = (short)(POLLIN | (write ? POLLOUT : 0));
	due = until_ns < due ? until_ns : due;
	if (blind_ns && due > now + blind_ns)
		due = now + blind_ns;
	timeout = drive_timespec(due > now ? due - now : 0);

	drive_unlock(p);
	ppoll(fds, WATCH_COUNT, due == UINT64_MAX ? NULL : &timeout, NULL);
	drive_lock(p);
	if (fds[WATCH_WAKE].revents)
		drive_hush(wake);
	if (fds[WATCH_CONTROL].revents)
		p->session.checked_ns = 0; /* read it now */
}

/* Sleeps that end soon should have been polled through; long ones should have begun earlier. */
static void drive_adapt(struct drive *d, uint64_t slept_ns)
{
	if (slept_ns < 2 * d->spin_ns && d->spin_ns < DRIVE_SPIN_MAX_US * NS_PER_US)
		d->spin_ns *= 2;
	else if (slept_ns > DRIVE_SLEPT_LONG * d->spin_ns && d->spin_ns > DRIVE_SPIN_MIN_US * NS_PER_US)
		d->spin_ns /= 2;
}

/* ---- a caller drives ---- */

static int drive_run(phub_t *p, drive_done *done, int arg, uint64_t deadline_ns)
{
	struct drive *d = &p->drive;
	uint64_t idle_ns = 0;

	for (;;) {
		uint64_t now = p->env.now(p->env.ctx);
		unsigned work = client_progress(p, now);
		int rc = done(p, arg);

		d->driven_ns = now;
		if (rc != -EAGAIN)
			return rc;
		if (now >= deadline_ns)
			return -ETIMEDOUT;
		if (work) {
			idle_ns = 0;
			if (d->waiting)
				pthread_cond_broadcast(&d->changed);
			if (atomic_load_explicit(&d->contenders, memory_order_relaxed))
				drive_yield(p);
			continue;
		}
		if (idle_ns == 0)
			idle_ns = now;
		if (now - idle_ns < d->spin_ns) {
			drive_yield(p);
			continue;
		}
		d->driver_sleeps = true;
		drive_sleep(p, d->wake_driver, true, deadline_ns);
		d->driver_sleeps = false;
		drive_adapt(d, p->env.now(p->env.ctx) - now);
		idle_ns = 0;
	}
}

int drive_wait(phub_t *p, drive_done *done, int arg, uint64_t deadline_ns)
{
	struct drive *d = &p->drive;
	int rc = done(p, arg);

	while (rc == -EAGAIN && d->driving) {
		struct timespec until = drive_timespec(deadline_ns);

		if (p->env.now(p->env.ctx) >= deadline_ns)
			return -ETIMEDOUT;
		d->waiting++;
		pthread_cond_timedwait(&d->changed, &p->lock, &until);
		d->waiting--;
		rc = done(p, arg);
	}
	if (rc != -EAGAIN)
		return rc;
	d->driving = true;
	rc = drive_run(p, done, arg, deadline_ns);
	d->driving = false;
	return rc;
}

/* ---- the progress thread ---- */

/* Callers drive, or did a moment ago: it stays out of their way. Returns when to look again; 0: now. */
static uint64_t drive_nap(const phub_t *p, uint64_t now_ns)
{
	const struct drive *d = &p->drive;
	uint64_t last_ns = d->driven_ns > p->exchange.sent_ns ? d->driven_ns : p->exchange.sent_ns;

	if (d->thread_wanted && !d->driving)
		return 0;
	if (d->driving)
		return now_ns + DRIVE_NAP_MS * NS_PER_MS;
	if (now_ns - last_ns < DRIVE_NAP_MS * NS_PER_MS)
		return last_ns + DRIVE_NAP_MS * NS_PER_MS;
	return 0;
}

static void drive_thread_nap(phub_t *p, uint64_t now_ns, uint64_t until_ns)
{
	struct drive *d = &p->drive;
	struct pollfd fd = {.fd = d->wake_thread, .events = POLLIN};
	struct timespec timeout = drive_timespec(until_ns - now_ns);

	d->thread_wanted = false;
	d->thread_state = DRIVE_THREAD_NAPS;
	drive_unlock(p);
	ppoll(&fd, 1, &timeout, NULL);
	drive_lock(p);
	d->thread_state = DRIVE_THREAD_AWAKE;
	if (fd.revents)
		drive_hush(d->wake_thread);
}

static void drive_thread_turn(phub_t *p, uint64_t *busy_ns)
{
	struct drive *d = &p->drive;
	uint64_t now = p->env.now(p->env.ctx), nap = drive_nap(p, now);
	bool rounds;

	if (nap) {
		drive_thread_nap(p, now, nap);
		return;
	}
	if (client_progress(p, now)) {
		*busy_ns = now;
		if (d->waiting)
			pthread_cond_broadcast(&d->changed);
		if (atomic_load_explicit(&d->contenders, memory_order_relaxed))
			drive_yield(p);
		return;
	}
	rounds = p->running && p->exchange.open_keys > 0;
	if (rounds && now - *busy_ns < DRIVE_THREAD_SPIN_US * NS_PER_US) {
		drive_yield(p);
		return;
	}
	d->thread_wanted = false;
	d->thread_state = DRIVE_THREAD_SLEEPS;
	drive_sleep(p, d->wake_thread, rounds, UINT64_MAX);
	d->thread_state = DRIVE_THREAD_AWAKE;
}

static void *drive_thread(void *arg)
{
	phub_t *p = arg;
	uint64_t busy_ns = 0;

	drive_lock(p);
	while (!p->drive.stopping)
		drive_thread_turn(p, &busy_ns);
	drive_unlock(p);
	return NULL;
}

int drive_thread_start(phub_t *p, struct err *e)
{
	sigset_t all, before;
	int rc;

	/* Signals are the application's affair. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	p->drive.thread_state = DRIVE_THREAD_AWAKE;
	rc = pthread_create(&p->drive.thread, NULL, drive_thread, p);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	p->drive.threaded = rc == 0;
	if (rc == 0)
		return 0;
	p->drive.thread_state = DRIVE_THREAD_NONE;
	return err_set(
		e, -rc, "cannot make the progress thread: %s; raise `ulimit -u`, or set no_thread", strerror(rc));
}

void drive_thread_stop(phub_t *p)
{
	if (!p->drive.threaded)
		return;
	drive_lock(p);
	p->drive.stopping = true;
	drive_ring(p->drive.wake_thread);
	drive_unlock(p);
	pthread_join(p->drive.thread, NULL);
	p->drive.threaded = false;
}

/* ---- the caller's event loop ---- */

static void drive_watch_fd(struct drive *d, enum drive_watched which, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events};

	if (d->watched[which] == fd && (fd < 0 || epoll_ctl(d->watch, EPOLL_CTL_MOD, fd, &event) == 0))
		return;
	if (d->watched[which] >= 0)
		epoll_ctl(d->watch, EPOLL_CTL_DEL, d->watched[which], NULL);
	d->watched[which] = fd;
	if (fd >= 0 && epoll_ctl(d->watch, EPOLL_CTL_ADD, fd, &event) < 0)
		d->watched[which] = -1;
}

int drive_watch(phub_t *p)
{
	struct drive *d = &p->drive;
	bool write;
	int fd;

	if (d->watch < 0)
		d->watch = epoll_create1(EPOLL_CLOEXEC);
	if (d->watch < 0)
		return -errno;
	fd = client_session_fd(&p->session, &write);
	drive_watch_fd(d, WATCH_CONTROL, fd, EPOLLIN | (write ? EPOLLOUT : 0u));
	fd = drive_data_fd(p, &d->blind_ns);
	if (fd != -EAGAIN)
		drive_watch_fd(d, WATCH_DATA, fd, EPOLLIN);
	else
		drive_ring(d->wake_driver); /* readable at once: there is work */
	drive_watch_fd(d, WATCH_WAKE, d->wake_driver, EPOLLIN);
	return d->watch;
}

int drive_once(phub_t *p)
{
	struct drive *d = &p->drive;
	uint64_t now = p->env.now(p->env.ctx), due;

	drive_hush(d->wake_driver);
	p->session.checked_ns = 0;
	for (unsigned i = 0; i < DRIVE_ONCE_MAX && client_progress(p, now); i++)
		;
	if (d->watch >= 0)
		drive_watch(p);
	due = client_due(p);
	if (d->blind_ns && due > now + d->blind_ns)
		due = now + d->blind_ns;
	if (due == UINT64_MAX)
		return INT_MAX;
	return clock_timeout_ms(now, due);
}
