/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is the root where no etcd says so: the box without one above it, until it has died and an operator promotes
 * another (phub promote) that has the same checkpoint targets. That box takes their locks, which nobody gets while the
 * old root lives, writes a higher epoch and its own address into them (root_file.h), and is the root then (above.h),
 * also when it comes again. Who has the targets looks there: at start, and every two seconds, on a thread of its own,
 * as disks may stand still. A root that finds a higher epoch there than its own is none any more: it goes below that
 * one, at once, or, where it was started without a way up, when it is started again; until then it ends. Others find
 * the new root by the list of their uplink. Disks may fail in the midst of that, and are replaced: a box that the
 * targets name, and that is not the root, becomes it, and the root writes its word to targets that lack it.
 *
 * That no two roots commit rounds of one job does not hang on the locks alone: a job starts with all its ranks, and
 * these have left the one root when it starts at the other.
 *
 * A job is not promoted: it ends, and its workers go on from its checkpoint (resume). Control thread; but for
 * promotion_open() nothing blocks.
 */
#ifndef PHUB_CONTROL_PROMOTION_H
#define PHUB_CONTROL_PROMOTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"

struct box;
struct control;
struct promotion;
struct root_file;
struct session;

enum promotion_state {
	PROMOTION_BEGUN, /* under way; ask again */
	PROMOTION_DONE,  /* it is the root, since it was asked to be */
	PROMOTION_ROOT,  /* it was that before */
};

/*
 * At start, once the process is the user that it stays: looks who is the root, by the targets, and takes their locks
 * where it is this box: all but as many as parity makes up for. Where nobody was promoted yet, those that can be had: a
 * file system may have no locks, of which the log warns, and on which nobody is promoted. One that is no root any more
 * is below it from now on. A box without targets, or with `root` or its uplink in etcd, is what its options say, and
 * its targets are as box_check_targets() has them; below another it locks none, as it writes no checkpoints. 0 or a
 * negative errno with what to do in `e`: -EBUSY (another box has the locks, and is not known to be the root), -ENOLCK
 * (it was promoted, and too many cannot be locked), -EBADMSG (a file is damaged), -EDESTADDRREQ (another is the root,
 * and nothing says where), -ENOTSUP (likewise, and this one has a standby).
 */
int promotion_open(struct box *box, struct err *e);

/*
 * The operator's command, who `who` is, that reached this box at `typed` ("host:port", ""). `again`: only how it is. 0
 * with how it is in *state, where another's is under way how that is, or a refusal: -EPERM (etcd decides; a host's own
 * box; no checkpoint targets), -EBUSY (the box above is up; the locks are taken), -EDESTADDRREQ (where do others reach
 * it?), -ENOENT (`again`, and nothing was asked for), -ESHUTDOWN, or what the disks say.
 */
int promotion_ask(
	struct control *c, const char *who, const char *typed, bool again, enum promotion_state *state, struct err *e);
/* What the targets say, as this box read or wrote it last; NULL: nothing. */
const struct root_file *promotion_file(const struct control *c);

/* In each step, after the jobs; and when it is due. */
void promotion_step(struct control *c);
uint64_t promotion_next(const struct control *c);
/* Waits for its thread, for a moment: a disk that stands still keeps what it has. */
void promotion_close(struct box *box);

#endif
