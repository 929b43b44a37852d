/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a job in all targets, as they are found: what list, read and prune go by. Any thread; blocks.
 */
#ifndef PHUB_CONTROL_CHECKPOINT_SCAN_H
#define PHUB_CONTROL_CHECKPOINT_SCAN_H

#include "phub/control/checkpoint_format.h"

struct checkpoint_file {
	uint64_t round, id;
	uint64_t bytes, changed_s;
	unsigned piece, target;
	bool part;                   /* of one that is being written, or never was */
	bool good;                   /* header and trailer are */
	bool unread;                 /* it could not be looked at, which says nothing of it */
	struct checkpoint_head head; /* of a good one */
};

struct checkpoint_files {
	struct checkpoint_file *at; /* by round, id, part and piece */
	unsigned count, room;
	char dir[CHECKPOINT_DIR_BYTES]; /* the job's, in each target */
	struct checkpoint_absent absent;
};

/* 0, or -EINVAL (the job's name), -ENOMEM. Targets that cannot be read count as empty, and as absent. */
int checkpoint_scan(const struct checkpoint_place *place, struct checkpoint_files *out, struct err *e);
void checkpoint_scan_fini(struct checkpoint_files *f);

/* Opens the job's directory in a target: a descriptor of its disk, or a negative errno. */
int checkpoint_scan_open(const struct checkpoint_place *place, unsigned target, const char *dir);

#endif
