/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The locks of a box's checkpoint targets, where it has them not from its start on but while it is a root: that two
 * boxes have the same targets is meant there. Disks are waited for in threads, one for each target, as the mount of a
 * server that is gone answers nobody, and can be waited for by nobody else. A thread that hangs stays, one for each
 * target at most; what it gets when nobody wants it any more is given back. Control thread; nothing blocks.
 */
#ifndef PHUB_CONTROL_TARGETS_H
#define PHUB_CONTROL_TARGETS_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/clock.h"
#include "phub/base/err.h"
#include "phub/control/checkpoint.h"

#define TARGETS_RETRY_NS (250 * NS_PER_MS) /* from one try of a target that cannot be locked to the next */
#define TARGETS_SLOW_NS  (2 * NS_PER_S)    /* a target that does not answer for so long is done without, by parity */
#define TARGETS_LATE_NS  (10 * NS_PER_S)   /* between tries of one that was done without */
#define TARGETS_LOOK_NS  (5 * NS_PER_S)    /* what was seen of one is true for so long */

#define TARGETS_WHO_BYTES 160

struct disk;
struct target;

struct targets {
	struct disk *disk;
	bool by_hand; /* there are no threads: control does it */
	char *text, who[TARGETS_WHO_BYTES];
	struct checkpoint_place place;
	struct target *targets; /* [place.target_count] */
	bool wanted;            /* since: */
	uint64_t since_ns;
	bool held; /* all of them, or all but so many as parity makes up for */
	uint64_t now_ns;
};

/*
 * Of directories with commas between them, on a disk (NULL: the machine's) that, with all that it leads to, outlives
 * the process's threads. `who`: where this box can be asked, for others to see. By hand: there are no threads, and what
 * it calls does not block. 0 or -ENOMEM.
 */
int targets_init(
	struct targets *t, const char *list, unsigned parity, const char *who, struct disk *disk, bool by_hand);

/*
 * Wants them. To be called again and again until it is 0: they are locked for this process; those that are not, as many
 * as parity makes up for, are told in the log. -EAGAIN: some have not answered yet; -EBUSY: another box has one; or
 * -ENOLCK: more than parity makes up for cannot be locked. With a text in `e` that names the first of them and says
 * what to do. What can be locked is, meanwhile, and the others are tried anew.
 */
int targets_take(struct targets *t, uint64_t now_ns, struct err *e);
/* Does not want them any more: they are given back, in any state; nothing here writes there any more. */
void targets_give(struct targets *t);
/* Has some of them? */
bool targets_has(const struct targets *t);
/* How they are, each one thing of these. */
struct targets_report {
	unsigned count;
	unsigned locked;        /* by this process */
	unsigned free;          /* ...as they could be; when it was looked (targets_look()) */
	unsigned taken;         /* by another box */
	unsigned failed;        /* they cannot be locked */
	unsigned silent;        /* they have not answered */
	char why[ERR_TEXT_MAX]; /* the first that failed or is silent, and why; "": there is none */
};

/* While they are not wanted: begins to try whether they could be locked, each for a moment. Told when it is known. */
void targets_look(struct targets *t, uint64_t now_ns);
void targets_describe(const struct targets *t, struct targets_report *out);
/* To be called now and then: takes those that came late, gives back those that came too late. */
void targets_step(struct targets *t, uint64_t now_ns);
/* Gives them back; threads that hang keep what they need. One that was zeroed is allowed. */
void targets_fini(struct targets *t);

#endif
