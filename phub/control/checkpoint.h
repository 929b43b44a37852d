/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of jobs on disk: files that are whole or not there, with a checksum for each chunk, over one directory or
 * several of which some may be lost. This is the files' side: it knows no job, core or network. One thread writes those
 * of a job; any thread reads. All of it may block and allocate.
 *
 * On disk. A checkpoint of job J before round R is a file in each target:
 *
 *      TARGET/J/R.ID.K.phub    piece K of it, K from 0; ID: 16 hexadecimal digits, random, the same in all pieces
 *
 *      header    4096 bytes: magic, version, job, ID, sizes, k and m, which piece this is, CRC32C of all that
 *      table     `meta`; for each chunk its round, steps, bytes and CRC32C; CRC32C of this piece's stripe of each chunk
 *      data      this piece's stripe of each chunk. A chunk is k stripes and m of parity (Reed-Solomon of ISA-L): any k
 *                of them make all. With one target k is 1 and m is 0, and the stripe is the chunk
 *      trailer   4096 bytes: ID and checksums of header and table once more: a file without it is torn
 *
 * Sizes are multiples of 4096, stripes of 64. Pieces are written to R.ID.K.phub.part with O_DIRECT (buffered where the
 * file system has none), the table last, then fdatasync() of all, rename of all, fsync() of the directories. An ID is
 * never written twice, so a checkpoint of a round that is there already replaces nothing while it is half there itself.
 * Any piece may lie in any target. Readers trust nothing: lengths, offsets and checksums come before what they cover.
 */
#ifndef PHUB_CONTROL_CHECKPOINT_H
#define PHUB_CONTROL_CHECKPOINT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/control/disk.h"
#include "phub/snapshot.h"

#define CHECKPOINT_TARGETS_MAX   32u
#define CHECKPOINT_VERSION       1
#define CHECKPOINT_JOB_BYTES_MAX 255u
#define CHECKPOINT_CHUNKS_MAX    1000000u     /* as GENERATION_CHUNKS_MAX */
#define CHECKPOINT_CHUNK_MAX     (64u << 20)  /* bytes: more than 2 MiB of bf16 with two arrays of state take */
#define CHECKPOINT_META_MAX      (1ull << 30) /* bytes */
#define CHECKPOINT_TIME_MAX      (1ull << 48) /* ms of Unix time */

/* What is wrong on purpose: the simulation must find it. */
enum checkpoint_plant {
	CHECKPOINT_PLANT_NONE,
	CHECKPOINT_PLANT_UNSYNCED,  /* a file gets its name before its bytes are on disk */
	CHECKPOINT_PLANT_UNCHECKED, /* what is read is not compared with its checksum */
};

/* Where checkpoints of a job go. */
struct checkpoint_place {
	const char *targets[CHECKPOINT_TARGETS_MAX]; /* directories, which exist */
	unsigned target_count;                       /* k + m; readers take any number */
	unsigned parity;             /* m: so many targets may be lost; 0: one target. Readers find out */
	const char *job;             /* its name; what no file name may have is written as %XX */
	struct disk *disk;           /* where the targets are; NULL: the machine's */
	enum checkpoint_plant plant; /* for tests */
};

static inline struct disk *checkpoint_disk(const struct checkpoint_place *place)
{
	return place->disk ? place->disk : disk_machine();
}

/* Fills targets and target_count from directories with commas between them: `text` is cut up, and stays put. 0 or
 * -E2BIG.
 */
int checkpoint_list_targets(struct checkpoint_place *place, char *text);
/* Can so many targets bear so much parity, by their numbers alone? 0, -ENOTSUP, or -EINVAL. */
int checkpoint_check_count(unsigned target_count, unsigned parity, struct err *e);
/*
 * Can this process write to each of them now, and are they different directories? Makes a file and removes it; blocks.
 * 0; how many cannot be written, at most m, with the first of them in `e`: checkpoints do without; or what is wrong.
 */
int checkpoint_try_targets(const struct checkpoint_place *place, struct err *e);
/*
 * Takes the targets for this process until it ends (disk.h), or until they are given back: two boxes would remove
 * each other's checkpoints. 0; how many could not be locked, for another reason than that somebody has them, with the
 * first in `e`; or -EBUSY with the target that another box has, and what to do: then none is. `who`: where this box can
 * be asked, for others to see.
 */
struct checkpoint_locks {
	struct disk *disk;
	int fds[CHECKPOINT_TARGETS_MAX];
	unsigned count;
};
int checkpoint_lock_targets(
	const struct checkpoint_place *place, const char *who, struct checkpoint_locks *out, struct err *e);
void checkpoint_unlock_targets(struct checkpoint_locks *locks);

/* What is in a checkpoint besides the chunks' bytes. `meta` is the caller's (checkpoint_meta.h). */
struct checkpoint_table {
	uint64_t round;      /* the first that is not in it: the furthest of all keys */
	uint64_t written_ms; /* of Unix time; 0: now. Made later than that of all others of the job that are there */
	const uint8_t *meta;
	uint64_t meta_bytes;
	uint32_t chunk_count;
	struct snapshot_chunk *chunks; /* before, steps, bytes; offset in a snapshot's arena. Not looked at by
					* checkpoint_write() */
	uint64_t id;                   /* set by checkpoint_read_table() */
	unsigned k, m;                 /* likewise */
};

/* What the thread that writes or verifies may be told meanwhile, and tells. */
struct checkpoint_progress {
	_Atomic bool stop;               /* give up: -ECANCELED */
	uint64_t bytes_per_s;            /* budget, of all targets together; 0: none */
	_Atomic uint64_t written, total; /* bytes, of all targets together */
	/*
	 * Set by the writer at its beginning: when it says that it wrote. What stands there is earlier for sure, though
	 * the one that said it cannot be read just now: the newest must never be taken for an old one.
	 */
	uint64_t newest_ms;
};

/*
 * Writes a snapshot as its chunks become copied, in their order. 0; or how many targets, at most m, could not be
 * written, the first of them in `e`: the checkpoint is good without. Or -ECANCELED (stopped, or the snapshot was
 * missed), -EINVAL, -ENOTSUP (parity in a build without ISA-L), -ENOSPC, -EIO and such with the target in `e`: then
 * nothing new is there. Old checkpoints stay. `progress` may be NULL. A limit on file sizes (RLIMIT_FSIZE) is -EFBIG
 * if the process ignores SIGXFSZ.
 */
int checkpoint_write(const struct checkpoint_place *place, const struct checkpoint_table *table,
	const struct snapshot *snapshot, struct checkpoint_progress *progress, struct err *e);

/*
 * The same in steps, where there is no thread for it. Begin: as above, but for what comes later; `now_ns` of any clock.
 * Each step does a little, and blocks no longer than the disk: -EAGAIN, call again at *due_ns (or before, to no avail),
 * else its end. End, whatever was the result: what is not finished goes; NULL is allowed. What was given stays put
 * until then.
 */
struct checkpoint_write;
int checkpoint_write_begin(const struct checkpoint_place *place, const struct checkpoint_table *table,
	const struct snapshot *snapshot, struct checkpoint_progress *progress, uint64_t now_ns,
	struct checkpoint_write **out, struct err *e);
int checkpoint_write_step(struct checkpoint_write *w, uint64_t now_ns, uint64_t *due_ns, struct err *e);
void checkpoint_write_end(struct checkpoint_write *w);

/* One checkpoint that is there. */
struct checkpoint_entry {
	uint64_t round;
	uint64_t id;
	uint64_t written_ms;     /* of a torn one: when its file was changed last */
	uint64_t bytes;          /* of all its pieces */
	unsigned pieces, wanted; /* whole ones found, and needed at least (k); wanted 0: not known, no header is good */
	unsigned parity;
	bool complete; /* by headers and trailers; the chunks' checksums are not looked at */
	bool unread;   /* some of its files could not be looked at: it may be complete */
};

/*
 * All of a job's, the one that was written last first; *count of them in *out, which the caller frees. Torn ones are
 * among them. Targets that cannot be read count as empty. 0 or -ENOMEM.
 */
int checkpoint_list(
	const struct checkpoint_place *place, struct checkpoint_entry **out, unsigned *count, struct err *e);

/*
 * Targets of which nobody knows what they hold: that could not be looked into (not there, not mounted whole, not ours);
 * and that are bare, without a directory of the job, as every target gets one before its first checkpoint is there:
 * those of disks that are not mounted, or new ones.
 */
struct checkpoint_absent {
	unsigned count;
	struct err why; /* of the first */
	unsigned bare;
	const char *first_bare; /* one of place.targets */
};

/* The same, and which targets had nothing to be listed. */
int checkpoint_list_there(const struct checkpoint_place *place, struct checkpoint_entry **out, unsigned *count,
	struct checkpoint_absent *absent, struct err *e);

/* The names of jobs that have files in `targets`, ascending; each of them and the array are the caller's to free. */
int checkpoint_list_jobs(
	const char *const *targets, unsigned target_count, char ***out, unsigned *count, struct err *e);

/*
 * Reads the table of the checkpoint before `round` (0: any), the last written of those that are complete. 0, -ENOENT
 * (none), or -EBADMSG with what is wrong. What it took is given back by checkpoint_table_fini().
 */
int checkpoint_read_table(
	const struct checkpoint_place *place, uint64_t round, struct checkpoint_table *out, struct err *e);
/* The same for one of a list. */
int checkpoint_read_entry(const struct checkpoint_place *place, const struct checkpoint_entry *entry,
	struct checkpoint_table *out, struct err *e);
void checkpoint_table_fini(struct checkpoint_table *t);

/*
 * Reads the chunks, repairs what parity can, and gives each to `take` in order: none that its checksum does not vouch
 * for. 0, -EBADMSG with what is lost, or what `take` returned when that is not 0. `repaired`: stripes that parity made
 * anew, or NULL.
 */
int checkpoint_read_chunks(const struct checkpoint_place *place, const struct checkpoint_table *table,
	int (*take)(void *arg, uint32_t chunk, const void *bytes, uint64_t count), void *arg, uint64_t *repaired,
	struct err *e);

/* The same in steps: each reads a chunk. -EAGAIN: call again; else its end. End: NULL is allowed. */
struct checkpoint_reading;
int checkpoint_reading_begin(const struct checkpoint_place *place, const struct checkpoint_table *table,
	struct checkpoint_reading **out, struct err *e);
int checkpoint_reading_step(struct checkpoint_reading *r,
	int (*take)(void *arg, uint32_t chunk, const void *bytes, uint64_t count), void *arg, struct err *e);
void checkpoint_reading_end(struct checkpoint_reading *r, uint64_t *repaired);

/* How a checkpoint is. */
struct checkpoint_health {
	uint64_t chunks, chunks_lost;  /* of which fewer than k stripes are good */
	uint64_t stripes, stripes_bad; /* those that should be there; missing, short, or with a wrong checksum */
	unsigned pieces_missing;       /* whole files: not there, or no good header or trailer */
	unsigned tables_bad;           /* of the others: the table of any piece does for all */
	struct {
		bool has;                  /* a whole file of it */
		bool table_bad;            /* of that */
		uint64_t stripes_bad;      /* in that */
	} targets[CHECKPOINT_TARGETS_MAX]; /* as in the place */
};

/* Looks at every checksum, parity's too. 0, -EBADMSG with the first chunk that is lost in `e`, or -ECANCELED. */
int checkpoint_verify(const struct checkpoint_place *place, const struct checkpoint_table *table,
	struct checkpoint_progress *progress, struct checkpoint_health *out, struct err *e);

/*
 * Writes a checkpoint that is there, repaired, into other targets, or the same: there it is one more. As
 * checkpoint_write(), and -EBADMSG when something is lost.
 */
int checkpoint_copy(const struct checkpoint_place *from, const struct checkpoint_table *table,
	const struct checkpoint_place *to, struct checkpoint_progress *progress, uint64_t *repaired, struct err *e);

/*
 * A job whose training is finished leaves its checkpoints and a mark, a file `finished` beside them in each target: one
 * that comes later with its name does not go on from them. The mark names the newest checkpoint, and when that was
 * written: a target may come back with one of long ago, which says nothing of what was written since. Errors are not
 * told: who cannot write there had no checkpoints.
 */
/* `newest_ms`: the newest was written then or later, whether it can be seen or not. */
void checkpoint_mark(const struct checkpoint_place *place, uint64_t newest_ms);
void checkpoint_unmark(const struct checkpoint_place *place);
/* Among `entries`, all that are there, is the newest complete one as old as a mark, or older? *marked_ms: of the newest
 * mark, or 0. */
bool checkpoint_is_finished(const struct checkpoint_place *place, const struct checkpoint_entry *entries,
	unsigned count, uint64_t *marked_ms);

/* Removes all complete ones but the last `keep` that were written, and what is torn or half written and older than the
 * newest complete one; not what could not be looked at. The thread that writes. 0, -EINVAL (keep is 0), or the first
 * error. */
int checkpoint_prune(const struct checkpoint_place *place, unsigned keep, struct err *e);
/* Removes one of a list. */
int checkpoint_remove(const struct checkpoint_place *place, const struct checkpoint_entry *entry, struct err *e);
/*
 * All of the job: whole and torn ones, what is half written, the mark, and its directories where nothing else is in
 * them. Not while a box writes there. 0, or the first error with the file in `e`: the others are gone all the same.
 */
int checkpoint_remove_all(const struct checkpoint_place *place, struct err *e);

/*
 * How often: after CheckFreq (FAST'21), section 4.4. Pure: what was measured goes in, the interval in rounds comes out,
 * such that rounds are slower by `overhead` (0.035) at most, and a checkpoint is written before the next one is taken.
 */
struct checkpoint_pace {
	double overhead;
	double round_s;                     /* of a round without checkpoints: of samples, the mean of their times... */
	double sample_s, sample_rounds;     /* ...by that of their rounds */
	double snapshot_s;                  /* by which rounds are longer while one is copied and written, together */
	double write_s;                     /* from the snapshot to the end of its file */
	uint64_t interval;                  /* rounds; 0: not known yet, not all of these were measured */
	double extra_s;                     /* of the checkpoint under way, so far */
	uint32_t rounds, snapshots, writes; /* how many are in the means */
	bool snapping;                      /* the last round was one of a checkpoint */
	uint32_t clean;                     /* samples since, without one, */
	double clean_s;                     /* and their time */
};

void checkpoint_pace_init(struct checkpoint_pace *p, double overhead);
/*
 * A sample: so many rounds of the job, not always whole ones, took so long; `snapped`: a snapshot was being copied or
 * written meanwhile. A sample or checkpoint that stood still for other reasons does little harm: it counts as four of
 * the mean at most.
 */
void checkpoint_pace_round(struct checkpoint_pace *p, double rounds, double seconds, bool snapped);
void checkpoint_pace_written(struct checkpoint_pace *p, double seconds);
/* So many rounds after it was begun, is it time for another? */
bool checkpoint_pace_due(const struct checkpoint_pace *p, uint64_t rounds);
/* By how much one checkpoint in so many rounds makes these slower, by what was measured. False: not enough was. */
bool checkpoint_pace_cost(const struct checkpoint_pace *p, uint64_t every, double *cost);

#endif
