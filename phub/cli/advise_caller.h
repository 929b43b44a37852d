/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who has called phub scout advise: a connection, the line it is saying, and what it has not read yet. One thread, and
 * nothing blocks.
 */
#ifndef PHUB_CLI_ADVISE_CALLER_H
#define PHUB_CLI_ADVISE_CALLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/cli/advise_line.h"

enum {
	ADVISE_BOUND_BYTES = 128,     /* an address */
	ADVISE_CALLER_MS = 10000,     /* for a whole line, and to read something */
	ADVISE_KEPT_BYTES = 64 << 20, /* at most, of what all callers have not read yet */
};

struct advise_caller {
	int fd;          /* -1: none, and all else is 0 */
	uint64_t end_ns; /* when it must have said something whole; CLOCK_NEVER: when it likes */
	bool ended;      /* it says no more, but may hear what it has asked for */
	unsigned owed;   /* reports on this window, which are answered with the decision */
	char *out;       /* what it has not read yet, or NULL; */
	size_t out_have, out_room;
	size_t *kept;        /* the sum of all callers' room */
	uint64_t out_end_ns; /* when it must have read some */
	size_t have;
	char line[ADVISE_LINE_MAX + 1];
};

/* HOST:PORT, where port 0 is any that is free, or unix:PATH? */
bool advise_caller_may_listen(const char *where);

/*
 * A socket that callers come to, and what it is `bound` to. unix:PATH is of this user alone; one that is left of a
 * server that has gone is removed, one that still answers is not. Without a `secret` HOST is to be this machine. 0;
 * -EINVAL: the path is too long, or `where` is none of these; -EADDRINUSE; -EACCES: it can be reached from elsewhere;
 * errors of socket(2), bind(2) and of names. *fd is the caller's to close, also after an error, where it is not below
 * 0.
 */
int advise_caller_listen(const char *where, bool secret, int *fd, char bound[ADVISE_BOUND_BYTES], struct err *e);

/* One that has come. *kept, which is 0 before the first, is of all callers, and outlives them. */
void advise_caller_open(struct advise_caller *c, int fd, size_t *kept);
void advise_caller_drop(struct advise_caller *c);

/* Has it been told all, and says no more? */
bool advise_caller_is_done(const struct advise_caller *c);

/* The next time that something is to happen; CLOCK_NEVER: none. */
uint64_t advise_caller_next_ns(const struct advise_caller *c);

/* What does not go at once is kept, up to `most` bytes, and ADVISE_KEPT_BYTES for all. Who has gone, or does not read
 * what it asked for, is dropped; the latter is told on stderr where it is for the others' sake. */
void advise_caller_send(struct advise_caller *c, const char *text, size_t length, size_t most);
/* Its socket takes more: what was kept goes. */
void advise_caller_flush(struct advise_caller *c);

#endif
