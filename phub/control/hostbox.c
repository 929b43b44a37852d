/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is here, by open connections. Those that come get one line, and say nothing.
 */
#include "phub/control/hostbox.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "phub/base/log.h"

enum { HOSTBOX_WORKERS_MAX = 4096, HOSTBOX_ADDRESS_BYTES = 128 };

struct hostbox {
	int listen_fd; /* -1: closed, for it goes down */
	int epoll_fd;
	void *watch;
	uint64_t linger_ns;
	uint64_t empty_ns; /* nobody has been here since */
	unsigned count;
	int workers[HOSTBOX_WORKERS_MAX];
	char address[HOSTBOX_ADDRESS_BYTES]; /* with the line's end */
};

/* ---- before it is a box ---- */

static int hostbox_check_socket(int fd, struct err *e)
{
	int domain = 0, listens = 0;
	socklen_t bytes = sizeof(int);

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_UNIX &&
		getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens) {
		fcntl(fd, F_SETFD, FD_CLOEXEC);
		fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
		return 0;
	}
	return err_set(e, -EINVAL,
		"hostbox_fd: %d is no Unix socket that listens; it is set by workers that have hostbox=auto in their "
		"URL, and 0 for all others",
		fd);
}

int hostbox_detach(int listen_fd, struct err *e)
{
	cpu_set_t all;
	int rc = hostbox_check_socket(listen_fd, e);
	pid_t pid;

	if (rc < 0)
		return rc;
	pid = fork();
	if (pid < 0)
		return err_set(e, -errno, "cannot fork: %s", strerror(errno));
	if (pid > 0)
		_exit(0);
	/* A launcher binds each of its ranks to some CPUs, and this is none of them. The kernel keeps to the cpuset. */
	memset(&all, 0xff, sizeof(all));
	if (sched_setaffinity(0, sizeof(all), &all) < 0)
		log_warn("keeps to the CPUs of the worker that started it: %s", strerror(errno));
	return 0;
}

void hostbox_remove_log(void)
{
	const char *path = getenv("PHUB_HOSTBOX_LOG");
	struct stat ours, there;

	/* Another box of this name may have put its own there, or a wrapper have sent ours elsewhere. */
	if (path && *path && fstat(STDERR_FILENO, &ours) == 0 && stat(path, &there) == 0 &&
		ours.st_dev == there.st_dev && ours.st_ino == there.st_ino && S_ISREG(there.st_mode))
		unlink(path);
}

/* ---- who is here ---- */

static int hostbox_watch(const struct hostbox *h, int fd)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = h->watch};

	return epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

int hostbox_open(int listen_fd, const char *address, uint64_t linger_ns, int epoll_fd, void *watch, uint64_t now_ns,
	struct hostbox **out, struct err *e)
{
	struct hostbox *h = calloc(1, sizeof(*h));
	int rc;

	if (!h)
		return err_set(e, -ENOMEM, "no memory to be the box of a host");
	h->listen_fd = listen_fd;
	h->epoll_fd = epoll_fd;
	h->watch = watch;
	h->linger_ns = linger_ns;
	h->empty_ns = now_ns;
	snprintf(h->address, sizeof(h->address), "%s\n", address);
	rc = hostbox_watch(h, listen_fd);
	if (rc < 0) {
		free(h);
		return err_set(e, rc, "cannot watch hostbox_fd: %s", strerror(-rc));
	}
	*out = h;
	return 0;
}

/* Is it one of this user, or root? Anybody may know the name. */
static bool hostbox_is_ours(int fd)
{
	struct ucred peer = {0};
	socklen_t bytes = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && (peer.uid == geteuid() || peer.uid == 0);
}

static void hostbox_greet(struct hostbox *h, int fd)
{
	ssize_t bytes = (ssize_t)strlen(h->address);

	if (h->count == HOSTBOX_WORKERS_MAX || !hostbox_is_ours(fd) || hostbox_watch(h, fd) < 0 ||
		send(fd, h->address, (size_t)bytes, MSG_DONTWAIT | MSG_NOSIGNAL) != bytes) {
		log_warn("a process of this host is turned away: %s",
			h->count == HOSTBOX_WORKERS_MAX ? "too many are here" : "it is another user's, or has gone");
		close(fd);
		return;
	}
	h->workers[h->count++] = fd;
}

static void hostbox_accept(struct hostbox *h)
{
	int fd;

	while ((fd = accept4(h->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
		hostbox_greet(h, fd);
}

/* Those that have closed, or that say what nobody asked for. */
static void hostbox_forget(struct hostbox *h, uint64_t now_ns)
{
	char byte;

	for (unsigned i = 0; i < h->count;) {
		if (recv(h->workers[i], &byte, 1, MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR)) {
			i++;
			continue;
		}
		close(h->workers[i]);
		h->workers[i] = h->workers[--h->count];
		if (h->count == 0)
			h->empty_ns = now_ns;
	}
}

bool hostbox_step(struct hostbox *h, uint64_t now_ns)
{
	if (!h || h->listen_fd < 0)
		return false;
	hostbox_accept(h);
	hostbox_forget(h, now_ns);
	if (h->count > 0 || now_ns < h->empty_ns + h->linger_ns)
		return false;
	/* Whoever comes at this moment meets the end of it, and begins anew. */
	close(h->listen_fd);
	h->listen_fd = -1;
	log_info("the last worker of this host has gone");
	return true;
}

uint64_t hostbox_next(const struct hostbox *h)
{
	return h && h->listen_fd >= 0 && h->count == 0 ? h->empty_ns + h->linger_ns : UINT64_MAX;
}

void hostbox_close(struct hostbox *h)
{
	if (!h)
		return;
	for (unsigned i = 0; i < h->count; i++)
		close(h->workers[i]);
	if (h->listen_fd >= 0)
		close(h->listen_fd);
	free(h);
}
