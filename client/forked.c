/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All handles of the process, for the handlers of fork(). They take every handle's lock over the fork, so that the
 * child's copy is whole. What must not happen in a child: epoll_ctl() and writes to rings (shared with the parent),
 * shutdown() of sockets.
 */
#include "client/forked.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/drive.h"
#include "client/handle.h"

static pthread_mutex_t forked_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t forked_once = PTHREAD_ONCE_INIT;
static phub_t *forked_handles;

static void forked_prepare(void)
{
	pthread_mutex_lock(&forked_lock);
	for (phub_t *p = forked_handles; p; p = p->next)
		drive_lock(p);
}

static void forked_parent(void)
{
	for (phub_t *p = forked_handles; p; p = p->next)
		drive_unlock(p);
	pthread_mutex_unlock(&forked_lock);
}

/* Only what may be done between fork() and exec() in a process with threads. */
static void forked_child(void)
{
	for (phub_t *p = forked_handles; p; p = p->next) {
		bool write;
		int fd = p->forked ? -1 : client_session_fd(&p->session, &write);

		if (fd >= 0)
			close(fd);
		if (!p->forked && p->hostbox_fd >= 0)
			close(p->hostbox_fd);
		drive_forget(&p->drive);
		p->forked = true;
		drive_unlock(p);
	}
	pthread_mutex_unlock(&forked_lock);
}

static void forked_install(void)
{
	pthread_atfork(forked_prepare, forked_parent, forked_child);
}

void forked_add(phub_t *p)
{
	pthread_once(&forked_once, forked_install);
	pthread_mutex_lock(&forked_lock);
	p->next = forked_handles;
	forked_handles = p;
	pthread_mutex_unlock(&forked_lock);
}

void forked_remove(phub_t *p)
{
	pthread_mutex_lock(&forked_lock);
	for (phub_t **at = &forked_handles; *at; at = &(*at)->next) {
		if (*at == p) {
			*at = p->next;
			break;
		}
	}
	pthread_mutex_unlock(&forked_lock);
}

/*
 * What the transport and the stream have cannot be freed without telling the box, so the handle stays, in a list: a
 * leak of some kilobytes in the child, told apart from a mistake.
 */
static phub_t *forked_kept;

void forked_close(phub_t *p)
{
	forked_remove(p);
	keyring_clear(&p->keyring);
	ranges_clear(&p->ranges);
	settings_fini(&p->settings);
	free(p->exchange.flights);
	p->exchange.flights = NULL;
	p->next = forked_kept;
	forked_kept = p;
}
