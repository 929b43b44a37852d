/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a box as a process: a thread per core, and control in an epoll of its own. The only place where control sleeps
 * and looks at the clock.
 */
#include "phub/control/box.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/control/announce.h"
#include "phub/control/hostbox.h"
#include "phub/control/session.h"

enum {
	BOX_EVENTS = 256,
	BOX_STOP_MS = 5000, /* shards and errors have so long to get home */
	BOX_JOIN_US = 200,  /* between two looks at whether a core has ended */
};

struct box_threads {
	pthread_t thread[CONFIG_CORES_MAX];
	unsigned count;
};

static int box_watch(struct box *box, int fd, struct control_watch *watch)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = watch};

	if (epoll_ctl(box->control.epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 && errno != EEXIST)
		return -errno;
	return 0;
}

/* What box_run() is told from outside. */
struct box_orders {
	int stop_fd, hup_fd;
	struct control_watch stop, hup, workers;
	struct hostbox *hostbox; /* NULL: it is not one of a host that its workers started */
};

static int box_watch_all(struct box *box, struct box_orders *o, struct err *e)
{
	int rc = 0;

	box->control.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (box->control.epoll_fd < 0)
		return err_set(e, -errno, "epoll_create1: %s; raise `ulimit -n`", strerror(errno));
	if (o->stop_fd >= 0)
		rc = box_watch(box, o->stop_fd, &o->stop);
	if (rc == 0 && o->hup_fd >= 0)
		rc = box_watch(box, o->hup_fd, &o->hup);
	for (unsigned i = 0; rc == 0 && i < box->listener_count; i++)
		rc = box_watch(box, box->listeners[i].fd, &box->listeners[i].watch);
	for (unsigned i = 0; rc == 0 && i < box->transport_count; i++)
		if (box->transports[i].fd >= 0)
			rc = box_watch(box, box->transports[i].fd, &box->transports[i].watch);
	if (rc == 0 && box->announce)
		rc = box_watch(box, box->env.announce->fd(box->announce), NULL);
	if (rc == 0 && box->config->hostbox_fd)
		return hostbox_open((int)box->config->hostbox_fd, box->listeners[0].bound,
			box->config->hostbox_linger_ms * NS_PER_MS, box->control.epoll_fd, &o->workers, clock_now_ns(),
			&o->hostbox, e);
	if (rc < 0)
		err_set(e, rc, "cannot watch the box's sockets: %s; raise `ulimit -n`", strerror(-rc));
	return rc;
}

/* The cores' threads take no signals: those are for the one that waits for them. */
static int box_start_cores(struct box *box, struct box_threads *threads, struct err *e)
{
	sigset_t all, before;
	int rc = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (unsigned i = 0; rc == 0 && i < box->core_count; i++) {
		rc = -pthread_create(&threads->thread[i], NULL, core_run, box->cores[i]);
		if (rc == 0)
			threads->count++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc < 0 ? err_set(e, rc, "cannot start core %u's thread: %s", threads->count, strerror(-rc)) : 0;
}

static void box_stop_cores(struct box *box, struct box_threads *threads)
{
	for (unsigned i = 0; i < threads->count; i++)
		post_send(&box->posts[i], &(struct mail){.kind = MAIL_STOP, .core = i});
	/* Control goes on meanwhile: a core whose mail to it finds no room reads none and does not end. */
	for (unsigned i = 0; i < threads->count; i++) {
		while (!post_flush(&box->posts[i]) || pthread_tryjoin_np(threads->thread[i], NULL) != 0) {
			control_step(&box->control, clock_now_ns());
			usleep(BOX_JOIN_US);
		}
	}
}

/* Returns whether the kernel sent it. */
static bool box_hear_hup(struct box *box, int fd)
{
	struct signalfd_siginfo info;
	bool reload = false;

	while (read(fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		if (info.ssi_code == SI_KERNEL)
			return true;
		reload = true;
	}
	if (reload)
		box_reload(box);
	return false;
}

/* Marks what epoll says is ready. Returns whether it is time to stop. */
static bool box_mark(struct box *box, const struct box_orders *o, const struct epoll_event *events, int count)
{
	bool stop = false;

	for (int i = 0; i < count; i++) {
		struct control_watch *watch = events[i].data.ptr;

		if (!watch)
			continue; /* mail, and what announces the box: looked at in every step */
		if (watch->kind == CONTROL_STOP)
			stop = true;
		else if (watch->kind == CONTROL_HUP)
			stop = box_hear_hup(box, o->hup_fd) || stop;
		else if (watch->kind == CONTROL_TRANSPORT)
			((struct box_transport *)watch->object)->ready = true;
		else if (watch->kind == CONTROL_SESSION)
			((struct session *)watch->object)->readable = true;
	}
	return stop;
}

/* Listeners that cannot be accepted from would wake us for ever. */
static void box_mute_listeners(struct box *box, bool mute)
{
	for (unsigned i = 0; i < box->listener_count; i++) {
		struct epoll_event event = {.events = mute ? 0 : EPOLLIN, .data.ptr = &box->listeners[i].watch};

		epoll_ctl(box->control.epoll_fd, EPOLL_CTL_MOD, box->listeners[i].fd, &event);
	}
}

/* Sleeps until something is ready or due. Returns whether it is time to stop. */
static bool box_wait(struct box *box, const struct box_orders *o, bool again, uint64_t due_ns)
{
	struct epoll_event events[BOX_EVENTS];
	uint64_t now_ns = clock_now_ns();
	int timeout = again ? 0 : clock_timeout_ms(now_ns, due_ns);
	int fd = mailbox_arm(box->control.mail);
	int count;

	if (fd < 0 || box_watch(box, fd, NULL) < 0)
		timeout = 0;
	count = epoll_wait(box->control.epoll_fd, events, BOX_EVENTS, timeout);
	mailbox_disarm(box->control.mail);
	return count > 0 && box_mark(box, o, events, count);
}

static void box_loop(struct box *box, struct box_threads *threads, const struct box_orders *o)
{
	uint64_t deadline_ns = CLOCK_NEVER;
	bool muted = false, stop;

	for (;;) {
		uint64_t now_ns = clock_now_ns();
		bool again = control_step(&box->control, now_ns);
		uint64_t due_ns = control_next(&box->control), left_ns = hostbox_next(o->hostbox);

		if (muted != box->control.accept_paused) {
			muted = box->control.accept_paused;
			box_mute_listeners(box, muted);
		}
		if (box->control.stopping && (control_stopped(&box->control) || now_ns >= deadline_ns))
			break;
		stop = box_wait(box, o, again, left_ns < due_ns ? left_ns : due_ns);
		stop = hostbox_step(o->hostbox, clock_now_ns()) || stop;
		if (stop && !box->control.stopping) {
			box->control.now_ns = clock_now_ns();
			deadline_ns = box->control.now_ns + BOX_STOP_MS * NS_PER_MS;
			epoll_ctl(box->control.epoll_fd, EPOLL_CTL_DEL, o->stop_fd, NULL); /* it stays readable */
			control_stop(&box->control);
		}
	}
	if (box->control.jobs)
		log_error("cores did not give back all shards within %d ms", BOX_STOP_MS);
	box_stop_cores(box, threads);
	control_step(&box->control, clock_now_ns());
}

int box_run(struct box *box, int stop_fd, int hup_fd, struct err *e)
{
	struct box_orders orders = {
		stop_fd, hup_fd, {CONTROL_STOP, NULL}, {CONTROL_HUP, NULL}, {CONTROL_HOSTBOX, NULL}, NULL};
	struct box_threads threads = {.count = 0};
	int rc = box_watch_all(box, &orders, e);

	if (rc == 0)
		rc = box_start_cores(box, &threads, e);
	if (rc == 0)
		box_loop(box, &threads, &orders);
	else
		box_stop_cores(box, &threads);
	if (rc == 0 && box->ended.code)
		rc = err_set(e, box->ended.code, "%s", box->ended.text);
	hostbox_close(orders.hostbox);
	if (box->control.epoll_fd >= 0)
		close(box->control.epoll_fd);
	box->control.epoll_fd = -1;
	return rc;
}
