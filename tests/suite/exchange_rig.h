/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole box and its workers in one process. On tcp and shm the box runs as phubd does, with a thread per core, and
 * every worker is a thread that calls libphub. On loop nothing runs by itself: workers are threads of which one at a
 * time may go on, control and cores are turned by hand once all have had their turn, and time is virtual. The scripts
 * of the workers are the same on all.
 */
#ifndef PHUB_TESTS_SUITE_EXCHANGE_RIG_H
#define PHUB_TESTS_SUITE_EXCHANGE_RIG_H

#include <pthread.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/phub.h"
#include "phub/control/box.h"
#include "transport/loop.h"

enum { CREW_MAX = 8, STAGE_TIMEOUT_MS = 30000 };

#ifdef __SANITIZE_THREAD__
#define STAGE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define STAGE_TSAN 1
#endif
#endif
#ifndef STAGE_TSAN
#define STAGE_TSAN 0
#endif

/* One row of the suite: where the box is met, and by how many cores it is served. */
struct scene {
	const char *label;
	const char *transport;
	unsigned cores;
	bool mapped;           /* payloads lie in memory of the box: phub_mem_register() is of no use */
	bool one_sided;        /* they are moved without copies where phub_mem_register() was called, and there alone */
	bool encrypt;          /* by jobs that all have the suite's secret */
	bool core_cases;       /* also the cases that are the same however many cores there are */
	struct loop_plan plan; /* loop: its network */
};

/* The box of a row: its cases share it, under job names of their own. */
struct stage {
	const struct scene *scene;
	struct config config;
	struct box *box;
	char url[BOX_ADDRESS_BYTES + 8]; /* "phub://127.0.0.1:4242" */
	unsigned jobs;                   /* names given out */
	bool threads;                    /* the box and the workers run by themselves */

	/* with threads */
	pthread_t thread;
	int stop_fd;
	int rc; /* of box_run() */
	struct err error;

	/* loop */
	struct loop_net *net;
	struct loop_listener *listener;
	uint64_t moved; /* what the network had carried at the last turn */
	unsigned quiet; /* turns since then */
};

/* `overrides`: NULL, or "key=value" of the config, NULL-terminated. Does not return when it cannot. */
void stage_open(struct stage *stage, const struct scene *scene, const char *const *overrides);

/* Stops the box. Fails the test unless all jobs have ended and slots, replies and credits balance. */
void stage_close(struct stage *stage);

struct crew;

/* One worker. Its script runs in a thread of its own; nobody else looks at it. */
struct member {
	struct crew *crew;
	unsigned rank, world;
	phub_t *phub;
	const void *arg;    /* the case's, the same for all */
	char refusal[512];  /* why member_connect() failed */
	jmp_buf end;        /* a failed check leaves the script from any depth */
	pthread_cond_t due; /* loop: it is this member's turn */
};

typedef void crew_script(struct member *me);

struct crew {
	struct stage *stage;
	char url[BOX_ADDRESS_BYTES + 64]; /* of the job */
	unsigned world;
	crew_script *script;
	struct member members[CREW_MAX];
	pthread_mutex_t lock; /* of what follows */
	unsigned turn;        /* loop: whose turn it is; the box comes behind the last member */
	bool done[CREW_MAX];  /* loop: its script is over */
	pthread_cond_t box_due;
	unsigned waiting, meetings; /* member_meet() */
	pthread_cond_t met;
	bool failed;
	char text[1024]; /* the first failure */
};

/* Runs the script once per rank, all at once, on a job of its own. A failed check fails the calling test. */
void crew_run(struct stage *stage, unsigned world, crew_script *script, const void *arg);

/* ---- for scripts ---- */

/* Defaults for this rank, on the row's transport. */
void member_options(const struct member *me, struct phub_options *options);
/* phub_connect(), or its like on loop. What it returns; me->phub is set when that is 0. */
int member_connect(struct member *me, const struct phub_options *options);
/* The same, to another handle: of another rank, or another job (NULL: the crew's). */
int member_connect_to(struct member *me, const char *job, const struct phub_options *options, phub_t **out);
/* Leaves in good order and closes. */
void member_leave(struct member *me);
/* Closes without leaving, as a worker that dies. */
void member_drop(struct member *me);
/* Waits until every member is here; no part of the box. */
void member_meet(struct member *me);
/* Lets time pass. */
void member_sleep(struct member *me, unsigned ms);

void member_fail(struct member *me, const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 4, 5), noreturn));

#define EXPECT(me, condition)                                                                                         \
	do {                                                                                                          \
		if (!(condition))                                                                                     \
			member_fail(me, __FILE__, __LINE__, "not so: %s (last error: %s)", #condition, phub_error()); \
	} while (0)

/* A call that returns `want`. */
#define EXPECT_RC(me, call, want)                                                                             \
	do {                                                                                                  \
		int expect_rc = (call);                                                                       \
		if (expect_rc != (want))                                                                      \
			member_fail(me, __FILE__, __LINE__, "%s is %d, not %d: %s", #call, expect_rc, (want), \
				phub_error());                                                                \
	} while (0)

/* The text of the last error names this. */
#define EXPECT_TEXT(me, word) member_expect_text(me, __FILE__, __LINE__, word)
void member_expect_text(struct member *me, const char *file, int line, const char *word);

#endif
