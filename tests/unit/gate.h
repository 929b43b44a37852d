/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gate at which other threads wait until the test opens it. While it is shut, what they do has not happened: a test
 * asserts the order of events, and no time. A gate that is shut for a minute fails the program.
 */
#ifndef TESTS_UNIT_GATE_H
#define TESTS_UNIT_GATE_H

#include <dirent.h>
#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { GATE_PATIENCE_S = 60 };

struct gate {
	sem_t came, open;
	atomic_uint passed; /* threads that are through */
};

static inline void gate_init(struct gate *g)
{
	sem_init(&g->came, 0, 0);
	sem_init(&g->open, 0, 0);
	atomic_init(&g->passed, 0);
}

static inline void gate_take(sem_t *sem, const char *what)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += GATE_PATIENCE_S;
	while (sem_timedwait(sem, &until) < 0) {
		if (errno == EINTR)
			continue;
		fprintf(stderr, "gate: %s for %d s\n", what, GATE_PATIENCE_S);
		abort();
	}
}

/* Other threads: until the gate is opened for one more. */
static inline void gate_pass(struct gate *g)
{
	sem_post(&g->came);
	gate_take(&g->open, "nobody opened it");
	atomic_fetch_add(&g->passed, 1);
}

/* The test: until one more has come to the gate. */
static inline void gate_await(struct gate *g)
{
	gate_take(&g->came, "nobody came");
}

/* The test: one more may pass. */
static inline void gate_open(struct gate *g)
{
	sem_post(&g->open);
}

/* Threads of this process: those that have ended are not among them, and hold nothing any more. */
static inline unsigned gate_threads(void)
{
	DIR *dir = opendir("/proc/self/task");
	unsigned count = 0;

	if (!dir)
		abort();
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

#endif
