/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes of one command, a site each: started with an environment of their own, their output passed on line by line
 * with the site's number before it, and all ended when one fails, or when a signal asks for it. Control thread; blocks.
 */
#ifndef PHUB_CLI_SCOUT_CREW_H
#define PHUB_CLI_SCOUT_CREW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "phub/base/err.h"

enum { SCOUT_CREW_MAX = 64, SCOUT_CREW_LINE = 4096, SCOUT_CREW_SETTINGS_MAX = 32, SCOUT_CREW_SETTING_BYTES = 2048 };

/* What a site has written, as far as its line goes; of stderr all that is held back. */
struct scout_crew_stream {
	int fd; /* -1: ended */
	bool error;
	uint64_t since_ns; /* that it is held back; 0: nothing is */
	size_t length;
	char line[SCOUT_CREW_LINE];
};

struct scout_crew_site {
	pid_t pid; /* 0: ended */
	struct scout_crew_stream streams[2];
};

struct scout_crew {
	const char *const *command; /* NULL-terminated */
	unsigned sites;             /* 1 .. SCOUT_CREW_MAX */
	bool may_lose;   /* who fails is told of, and the others go on, if all have not failed; check() may set it */
	const char *yet; /* behind who has failed where that ends all: why may_lose is not set; NULL: nothing */
	char settings[SCOUT_CREW_SETTINGS_MAX][SCOUT_CREW_SETTING_BYTES]; /* of the environment: NAME=VALUE */
	unsigned setting_count;
	/* A line that tells how far they are, into text; called a few times a second where somebody looks. NULL: none
	 */
	void (*status)(void *context, char *text, size_t bytes);
	/* Asked as often, looked at or not: an error ends all. NULL: none. */
	int (*check)(void *context, struct err *e);
	void *context;

	unsigned lost;    /* sites that failed, and others went on */
	bool writer_lost; /* site 0 among them */
	int signal;       /* that ended it: SIGINT or SIGTERM; 0: none */
	struct scout_crew_site at[SCOUT_CREW_MAX];
	bool told;                   /* a status is on the screen */
	bool wrong;                  /* what went wrong is said */
	int failed;                  /* the first site that has; -1: none */
	char words[SCOUT_CREW_LINE]; /* the last on stderr, of `speaker`; where one has failed, its own */
	size_t words_length;
	unsigned speaker;
	uint64_t spoken_ns;
};

/* Beside RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE. Returns false when it is too long, or one too many. */
bool scout_crew_set(struct scout_crew *crew, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * Until all have ended. 0; or, when none is left and the reason is on stderr, where it stands before what ending the
 * others brings about: -ECHILD: a site failed, and the others were ended (SIGTERM, SIGKILL after three seconds), or had
 * failed before; -EINTR: SIGINT or SIGTERM came, `signal` (again: SIGKILL at once); an error of check(); of the system.
 *
 * stderr is passed on a moment after it was written, and what another has just said after some seconds: when sites fail
 * alike, what one has said the others do not say again, also where each calls itself by its own rank.
 */
int scout_crew_run(struct scout_crew *crew, struct err *e);

/* Text of a process that all need goes to stderr as it is, from within status() and check() or thereafter; likewise. */
void scout_crew_pass(struct scout_crew *crew, const char *text, size_t length);

/* output_note() from within status() and check(): where a line tells how far they are, it goes first. */
void scout_crew_note(struct scout_crew *crew, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
