/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way from a port to a peer's: over Ethernet an address has to be asked for, and where nobody answers that takes
 * seconds. So each connection is given a thread for it, for as long as it takes; control and callers go on meanwhile.
 * What is found stays with the kernel, so that bringing queue pairs up asks nobody. Control thread, but for that one.
 */
#include "transport/verbs_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum {
	PATH_THREADS_MAX = 1024,
	PATH_STACK_BYTES = 256 << 10,
};

/* One search. The thread's until it is `done`; then the connection's, or, when that is gone, the thread frees it. */
struct verbs_path {
	struct verbs *verbs;
	bool done, forsaken; /* under verbs.lock */
	uint32_t count;
	struct {
		struct ibv_pd *pd;
		struct ibv_ah_attr attr;
		struct ibv_ah *ah;
		int error;
	} ways[VERBS_RAILS_MAX];
};

static void verbs_path_free(struct verbs_path *p)
{
	for (uint32_t i = 0; i < p->count; i++)
		if (p->ways[i].ah)
			ibv_destroy_ah(p->ways[i].ah);
	free(p);
}

/* How many ways were found. */
static uint32_t verbs_path_try(struct verbs_path *p)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < p->count; i++) {
		errno = 0;
		p->ways[i].ah = ibv_create_ah(p->ways[i].pd, &p->ways[i].attr);
		/* Libraries say this in several ways. */
		p->ways[i].error = p->ways[i].ah ? 0 : errno == ENOMEM ? -ENOMEM : -EHOSTUNREACH;
		found += p->ways[i].ah != NULL;
	}
	return found;
}

/*
 * The kernel asks once, and gives up a second later: so one ARP packet that got lost would end a job. And it does not
 * even ask when somebody else's question for the same address is about to fail. On a busy host an answer may take
 * seconds, too. So it is tried for three quarters of the time a handshake has, the rest of which is to say that there
 * is no way.
 */
static void verbs_path_search(struct verbs_path *p)
{
	struct verbs *v = p->verbs;
	uint64_t until_ns = clock_now_ns() + v->handshake_ns / 4 * 3;
	bool forsaken = false;

	while (!forsaken && verbs_path_try(p) == 0 && clock_now_ns() < until_ns) { /* one way is enough to go on */
		pthread_mutex_lock(&v->lock);
		forsaken = p->forsaken;
		pthread_mutex_unlock(&v->lock);
	}
}

static void *verbs_path_run(void *arg)
{
	struct verbs_path *p = arg;
	struct verbs *v = p->verbs;
	bool forsaken;

	verbs_path_search(p);
	pthread_mutex_lock(&v->lock);
	p->done = true;
	forsaken = p->forsaken;
	pthread_mutex_unlock(&v->lock);
	if (forsaken)
		verbs_path_free(p);
	/* The last thing: then the devices may be closed. */
	pthread_mutex_lock(&v->lock);
	v->path_threads--;
	pthread_cond_broadcast(&v->path_ended);
	pthread_mutex_unlock(&v->lock);
	return NULL;
}

static int verbs_path_start(struct verbs_path *p)
{
	struct verbs *v = p->verbs;
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all, before;
	int rc = -EAGAIN;

	pthread_mutex_lock(&v->lock);
	if (v->path_threads < PATH_THREADS_MAX) {
		v->path_threads++;
		rc = 0;
	}
	pthread_mutex_unlock(&v->lock);
	if (rc < 0)
		return rc;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, PATH_STACK_BYTES);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(&thread, &attr, verbs_path_run, p);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	if (rc == 0)
		return 0;
	pthread_mutex_lock(&v->lock);
	v->path_threads--;
	pthread_mutex_unlock(&v->lock);
	return rc;
}

int verbs_path_begin(struct verbs_conn *c)
{
	struct verbs *v = c->verbs;
	struct verbs_path *p = calloc(1, sizeof(*p));
	int rc;

	if (!p)
		return -ENOMEM;
	p->verbs = v;
	p->count = c->rail_count;
	for (uint32_t i = 0; i < c->rail_count; i++) {
		p->ways[i].pd = c->rails[i].device->pd;
		p->ways[i].attr = verbs_rail_path(&c->rails[i]);
	}
	rc = verbs_path_start(p);
	if (rc < 0) {
		free(p);
		return rc;
	}
	c->path = p;
	v->paths++;
	v->transport.soon = true;
	return 0;
}

/* The connection has nothing to do with its search any more. */
static void verbs_path_leave(struct verbs_conn *c)
{
	c->path = NULL;
	c->verbs->paths--;
	c->verbs->transport.soon = c->verbs->paths > 0;
}

int verbs_path_take(struct verbs_conn *c, int errors[VERBS_RAILS_MAX])
{
	struct verbs_path *p = c->path;
	bool done;

	pthread_mutex_lock(&c->verbs->lock);
	done = p->done;
	pthread_mutex_unlock(&c->verbs->lock);
	if (!done)
		return -EAGAIN;
	for (uint32_t i = 0; i < p->count; i++) {
		c->rails[i].ah = p->ways[i].ah;
		errors[i] = p->ways[i].error;
	}
	verbs_path_leave(c);
	free(p);
	return 0;
}

void verbs_path_forsake(struct verbs_conn *c)
{
	struct verbs_path *p = c->path;
	bool done;

	if (!p)
		return;
	pthread_mutex_lock(&c->verbs->lock);
	p->forsaken = true;
	done = p->done;
	pthread_mutex_unlock(&c->verbs->lock);
	verbs_path_leave(c);
	if (done)
		verbs_path_free(p);
}

void verbs_paths_wait(struct verbs *v)
{
	pthread_mutex_lock(&v->lock);
	while (v->path_threads > 0)
		pthread_cond_wait(&v->path_ended, &v->lock);
	pthread_mutex_unlock(&v->lock);
}
