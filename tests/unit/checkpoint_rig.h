/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints for tests: directories that go away again, a job with keys, and snapshots of it whose every value is
 * known.
 */
#ifndef TESTS_UNIT_CHECKPOINT_RIG_H
#define TESTS_UNIT_CHECKPOINT_RIG_H

#include <sys/types.h>

#include "phub/control/checkpoint_meta.h"

struct checkpoint_rig {
	char root[64];
	int pipe;      /* whose other end a process reads: it removes them when this closes, whatever closed it */
	pid_t cleaner; /* that process; 0: none */
	char paths[CHECKPOINT_TARGETS_MAX][96];
	struct checkpoint_place place;
	struct checkpoint_table table;
	struct snapshot snapshot;
};

/* Makes `count` directories under a new one in `where`, for a job of this name. */
void checkpoint_rig_open(struct checkpoint_rig *r, const char *where, unsigned count, unsigned parity, const char *job);
/* Removes them, and frees the snapshot. Where a test does not come to that, they go when its process ends. */
void checkpoint_rig_close(struct checkpoint_rig *r);

/* A snapshot of chunks of these sizes, all copied, with bytes of a seed. Replaces the one before. */
void checkpoint_rig_chunks(
	struct checkpoint_rig *r, uint64_t round, const uint32_t *bytes, uint32_t count, uint32_t seed);
/* A snapshot of a real job, with adam's state: element i of array a (weights, two of state) of key k is
 * checkpoint_rig_value(k, a, i). */
void checkpoint_rig_job(struct checkpoint_rig *r, uint64_t round);
float checkpoint_rig_value(uint32_t key, unsigned array, uint64_t element);

/* Writes the snapshot; fails the test when it cannot. */
void checkpoint_rig_write(struct checkpoint_rig *r);
/* Reads what is there before the snapshot's round, all of it, and compares: 0 or what went wrong. */
int checkpoint_rig_read(struct checkpoint_rig *r, uint64_t *repaired, struct err *e);
/* Must be good, with so many stripes repaired. */
void checkpoint_rig_expect(struct checkpoint_rig *r, uint64_t repaired);
unsigned checkpoint_rig_list(struct checkpoint_rig *r, struct checkpoint_entry **out);
struct checkpoint_entry checkpoint_rig_newest(struct checkpoint_rig *r);
/* How many files the job's directories have, of any kind; or only those of at least so many bytes. */
int checkpoint_rig_files(struct checkpoint_rig *r);
int checkpoint_rig_files_of(struct checkpoint_rig *r, uint64_t bytes_min);
/* Opens one; fails the test when it cannot. */
int checkpoint_rig_piece(struct checkpoint_rig *r, const struct checkpoint_entry *entry, unsigned piece, int flags);

#endif
