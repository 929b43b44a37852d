/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which box is the root, as an operator has said last (phub promote), for boxes that have the same checkpoint targets:
 * a small file beside the checkpoints, the same in each target, which outlives the boxes.
 *
 *      TARGET/.phub.root      "phub root 1", then the fields below, a line each, and the CRC32C of all before
 *
 * The file with the highest epoch counts. A target that cannot be read says nothing; readers bear that of as many as
 * `parity` allows, and a writer leaves so few without it that those who read the others see it. Written under another
 * name, synced, and renamed once all of that is done everywhere: a full disk changes nothing. Who writes has the locks
 * of the targets. Any thread; all of it blocks.
 */
#ifndef PHUB_CONTROL_ROOT_FILE_H
#define PHUB_CONTROL_ROOT_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/control/checkpoint.h"

#define ROOT_FILE_NAME ".phub.root"

struct root_file {
	uint64_t epoch;      /* 2 and up: 1 is that of a box that nobody promoted; 0: there is no such file */
	char box[64];        /* its name; "": it has none */
	char address[320];   /* host:port where other boxes reach it... */
	bool tls;            /* ...by TLS */
	char by[160];        /* who said so */
	uint64_t written_ms; /* Unix time */
};

/*
 * What counts. 0, or how many targets say nothing, at most as parity allows, with the first of them in `e`; -EBADMSG
 * (a file that is damaged, with what to do) or why they cannot be read: it is more of them. Of `place` the job is not
 * looked at.
 */
int root_file_read(const struct checkpoint_place *place, struct root_file *out, struct err *e);

/*
 * Writes it to all targets. 0, or how many are without it, as above; or -ENOSPC and such: it is more, and nothing was
 * changed, but where a disk failed at the very end.
 */
int root_file_write(const struct checkpoint_place *place, const struct root_file *file, struct err *e);

/*
 * Once more what some say already, by the box that it names, as writing it failed at the very end: those may lose it
 * with their power. As above, but that it may lack in as many targets as readers bear.
 */
int root_file_renew(const struct checkpoint_place *place, const struct root_file *file, struct err *e);

/*
 * For the root that it names, which has the locks, now and then: targets that are there and say less, as a disk was
 * replaced or a file is damaged, get it, that readers find it when the others are gone. How many did, or why the first
 * of them cannot be written.
 */
int root_file_mend(const struct checkpoint_place *place, const struct root_file *file, struct err *e);

#endif
