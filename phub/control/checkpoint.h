/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of jobs on disk: files that are whole or not there, with a checksum for each chunk, over one directory or
 * several of which some may be lost. This is the files' side: it knows no job, core or network. A thread of the caller's
 * writes; any thread reads.
 *
 * On disk. A checkpoint of job J before round R is a directory entry in each target:
 *
 *      TARGET/J/R.K.phub       piece K of this checkpoint (K from 0; without parity there is one target and one piece)
 *
 *      header    4096 bytes: magic "PHUBCKPT", version, job, sizes, k and m, which piece this is, id of the checkpoint
 *                (random, the same in all pieces), CRC32C of the header
 *      table     what makes the job: spec and keys as in Job and Keys (protobuf), for each chunk its round, steps, bytes
 *                and CRC32C (ISA-L) of its bytes; CRC32C of the table; padded to 4096
 *      data      the chunks' bytes one behind the other, each padded to 4096; or, with m pieces of parity, this piece's
 *                stripe of each chunk (Reed-Solomon of ISA-L: any k of k + m pieces make all); CRC32C of each stripe
 *      trailer   4096 bytes: the header's id once more, CRC32C of all checksums: a file without it is torn
 *
 * Written to R.K.phub.part with O_DIRECT (buffered where the file system has none), fdatasync(), renamed, and the
 * directory fsync()ed. Readers trust nothing: lengths, offsets and checksums are verified before anything is used.
 */
#ifndef PHUB_CONTROL_CHECKPOINT_H
#define PHUB_CONTROL_CHECKPOINT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "phub/base/err.h"
#include "phub/snapshot.h"

#define CHECKPOINT_TARGETS_MAX 32u
#define CHECKPOINT_VERSION     1

/* Where checkpoints of a job go. */
struct checkpoint_place {
	const char *targets[CHECKPOINT_TARGETS_MAX]; /* directories, which exist */
	unsigned target_count;                       /* k + m */
	unsigned parity;                             /* m: so many targets may be lost; 0: one target */
	const char *job;                             /* its name; what no file name may have is written as %XX */
};

/* What is in a checkpoint besides the chunks' bytes. `meta` is the caller's: the job's options and keys. */
struct checkpoint_table {
	uint64_t round;         /* the first that is not in it: the furthest of all keys */
	uint64_t written_s;     /* Unix time */
	const uint8_t *meta;    /* what makes the job; ours to free after checkpoint_read_table() */
	uint64_t meta_bytes;
	uint32_t chunk_count;
	struct snapshot_chunk *chunks; /* before, steps, bytes; offset in a snapshot's arena */
};

/* What the writing thread may be told while it writes, and tells. */
struct checkpoint_progress {
	_Atomic bool stop;              /* give up: -ECANCELED */
	uint64_t bytes_per_s;           /* budget; 0: none */
	_Atomic uint64_t written, total; /* bytes of this piece set */
};

/*
 * Writes a snapshot as its chunks become copied, in their order. 0, or -ECANCELED (stopped, or the snapshot was missed),
 * -ENOSPC, -EIO and such with the target in `e`: then nothing new is there. Old checkpoints stay.
 */
int checkpoint_write(const struct checkpoint_place *place, const struct checkpoint_table *table,
	const struct snapshot *snapshot, struct checkpoint_progress *progress, struct err *e);

/* One checkpoint that is there. */
struct checkpoint_entry {
	uint64_t round;
	uint64_t written_s;
	uint64_t bytes;          /* of all its pieces */
	unsigned pieces, wanted; /* found, and needed at least (k) */
	bool complete;           /* by headers and trailers; the chunks' checksums are not looked at */
};

/* All of a job's, newest first; *count of them in *out, which the caller frees. Torn ones are among them. */
int checkpoint_list(const struct checkpoint_place *place, struct checkpoint_entry **out, unsigned *count, struct err *e);

/*
 * Reads the table of the checkpoint before `round` (0: the newest that is complete). 0, -ENOENT (none), or -EBADMSG with
 * what is wrong. What it took is given back by checkpoint_table_fini().
 */
int checkpoint_read_table(const struct checkpoint_place *place, uint64_t round, struct checkpoint_table *out, struct err *e);
void checkpoint_table_fini(struct checkpoint_table *t);

/*
 * Reads the chunks, repairs what parity can, and gives each to `take` in order. 0, -EBADMSG with what is lost, or what
 * `take` returned when that is not 0. `repaired`: stripes that parity made anew, or NULL.
 */
int checkpoint_read_chunks(const struct checkpoint_place *place, const struct checkpoint_table *table,
	int (*take)(void *arg, uint32_t chunk, const void *bytes, uint64_t count), void *arg, uint64_t *repaired,
	struct err *e);

/* Removes all but the newest `keep` complete ones, and what is torn and older than the newest. */
int checkpoint_prune(const struct checkpoint_place *place, unsigned keep, struct err *e);

/*
 * How often: after CheckFreq. Pure: what was measured goes in, the interval in rounds comes out, such that rounds are
 * slower by `overhead` (0.035) at most, and a checkpoint is written before the next one is taken.
 */
struct checkpoint_pace {
	double overhead;
	double round_s;    /* of a round without checkpoints: a running mean */
	double snapshot_s; /* by which a round with a snapshot is longer */
	double write_s;    /* from the snapshot to the end of its file */
	uint64_t interval; /* rounds; 0: not known yet, nothing was measured */
};
void checkpoint_pace_init(struct checkpoint_pace *p, double overhead);
/* A round of the job took so long; `snapped`: a snapshot was being copied in it. */
void checkpoint_pace_round(struct checkpoint_pace *p, double seconds, bool snapped);
void checkpoint_pace_written(struct checkpoint_pace *p, double seconds);

#endif
