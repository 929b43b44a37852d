/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that takes another's place when it is whole, or not at all: it is written under a name beside, and renamed.
 * So what was there outlives a full disk. Control thread; blocks on the folder.
 */
#ifndef PHUB_CLI_BESIDE_H
#define PHUB_CLI_BESIDE_H

#include <limits.h>
#include <stdbool.h>

#include "phub/base/err.h"

struct beside {
	const char *path;    /* as it was given: for messages; the caller's, until the end */
	char to[PATH_MAX];   /* what is replaced: behind links */
	char part[PATH_MAX]; /* where to write; `to` itself where nothing can be beside it */
};

/* Where to write what is to be at `path`. A device, a pipe, and a file of a folder that nothing may be added to are
 * written in place. 0; -ENAMETOOLONG. Nothing is opened: errors of the folder are those of opening `part`. */
int beside_begin(const char *path, struct beside *out, struct err *e);

/* Can a file be written there? What is there stays as it is. 0; as beside_begin(); errors of open(2). */
int beside_try(const char *path, struct err *e);

/* The folder that a file of this name is in, which need not be there. */
void beside_folder(const char *path, char folder[PATH_MAX]);

/* It is closed. Whole: it goes to its place. Else it goes away, and what was there stays. 0, or errors of rename(2),
 * after which it has gone. */
int beside_end(const struct beside *b, bool whole, struct err *e);

#endif
