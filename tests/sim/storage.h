/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A disk in memory for checkpoints in simulation (phub/control/disk.h): directories "/0", "/1", ..., each a disk of its
 * own, that a seed lets fail, and that several machines may have mounted. What one of them has not synced when its
 * power fails is lost, kept or torn. One thread.
 */
#ifndef PHUB_TESTS_SIM_STORAGE_H
#define PHUB_TESTS_SIM_STORAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/control/disk.h"

#define STORAGE_TARGETS_MAX 6
#define STORAGE_MOUNTS      2 /* machines that have it mounted */

struct storage;

struct storage_plan {
	uint64_t seed;
	unsigned targets;
	bool buffered;      /* the file systems have no direct writes */
	double fail;        /* so often a call that writes fails, */
	double fail_read;   /* and one that reads */
	double full;        /* so often one that needs room finds none */
	uint64_t bytes_max; /* of each target; 0: no limit */
};

struct storage_stats {
	uint64_t calls;
	uint64_t refused, refused_reads; /* that failed because the plan says so, or for want of room */
	uint64_t torn;                   /* files that a loss of power left in pieces */
	uint64_t undone;                 /* changes of directories that it undid */
	uint64_t bytes_peak;             /* in all files together */
};

/* NULL: no memory. */
struct storage *storage_create(const struct storage_plan *plan);
void storage_destroy(struct storage *s);

/* Of a machine that has mounted it. It outlives that. */
struct disk *storage_disk(struct storage *s, unsigned mount);
const struct storage_stats *storage_stats(const struct storage *s);

/* The time of day follows the net's. */
void storage_advance(struct storage *s, uint64_t now_ns);

/* The power of a machine fails at its call after so many: from there on all its calls fail, and change nothing. 0: at
 * once. */
void storage_fail_after(struct storage *s, unsigned mount, uint64_t calls);
bool storage_has_failed(const struct storage *s, unsigned mount);
/* It is there again: what it had not synced is what chance left of it, no descriptor of it is open, and it has no lock.
 */
void storage_restore(struct storage *s, unsigned mount);
/* It was not the power: nothing was lost but the calls that failed. */
void storage_resume(struct storage *s, unsigned mount);

/* For a while no call fails by chance. */
void storage_calm(struct storage *s, bool calm);

/* Some bits in one of a target's files that have their names turn over. Returns whether there was such a file. */
bool storage_rot(struct storage *s, unsigned target);
/* All that a target has goes. */
void storage_wipe(struct storage *s, unsigned target);
/* A target is not there, or is again. */
void storage_hide(struct storage *s, unsigned target, bool hidden);

/* The targets (a mask) that have a file, under its name, of a checkpoint before this round: of the one that has most.
 */
uint32_t storage_holders(const struct storage *s, uint64_t round);
/* How many files a target has that have their names, and of any kind. */
unsigned storage_named(const struct storage *s, unsigned target, unsigned *all);

#endif
