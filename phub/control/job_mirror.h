/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A standby's side of a mirrored job (transport/control.proto, between a box and its standby). The copy is a job of its
 * own kind, with the box as its one worker (phub/mirror.h is its data path); workers neither see nor join it.
 *
 *      a box says Hello.mirror, Mirror, Keys --> the copy is made, placed as at the box, and fed
 *      the box leaves: its job is over ------------------------------> the copy goes
 *      the box leaves, for it has lost workers ----------------------> a whole copy is kept for a moment: they may come
 *      the box is lost ------> a whole copy is kept for standby_keep_ms, another goes
 *      workers say Hello.moves -> a job of the name forms; when all who live have sent their tables:
 *                                 the box is told (MirrorTaken), the copy's shards come back, the job gets what is in
 *                                 them, and goes on: Start.moved
 *
 * All means all, whatever the job's policy: a rank that does not come may be dead, or still be at a box that is alive
 * and cut off from here. That more than half of the ranks have come does not tell the one from the other, and those
 * left at the box could go on there meanwhile: when a box loses its standby it goes on alone (standby_break()), and
 * answers what it held back for want of the standby's acknowledgement; a job that shrinks then goes on with however few
 * it has left. So no silence of this end stops it, and there would be two jobs of one name, each with answered rounds
 * that the other does not have. MirrorTaken stops it, but only where it can still be heard; a stopped box that goes on
 * later may answer rounds before it hears of anything. To go on with most of them would be sound only if a box without
 * its standby held its rounds back until half of the ranks that the standby knows of are known to be with it, which
 * takes a clock that both trust (a lease), and would make every job wait when its standby dies. Hence: when not all
 * come within MIRROR_MOVE_NS the move fails, by name, and the copy stays for standby_keep_ms.
 *
 * A box that comes again makes a new copy, and a whole one that was kept goes: the box may have lost this end alone,
 * and be further on, or have been started again and begun the job anew, or from a checkpoint, which costs the rounds
 * since. Start says what round the copy was at, and a box that has not mirrored the job before warns of that in its
 * log, as this end does. It is not refused: its workers have gone on with it by then, and what is kept here is of no
 * use to them.
 *
 * Everything that a box says is as untrusted as what a worker says: it has proved the job's secret, no more.
 * Control thread; nothing blocks.
 */
#ifndef PHUB_CONTROL_JOB_MIRROR_H
#define PHUB_CONTROL_JOB_MIRROR_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/control/job.h"

/* Start must fit a frame with one byte of placement and one of rounds for each chunk. */
#define MIRROR_CHUNKS_MAX 500000u
#define MIRROR_BOX_BYTES  128u
/* All workers must have come so long after the first, or 3 times lost_ms if that is more (job_move_wait_ns()). */
#define MIRROR_MOVE_NS    30000000000ull
/* Copied in one step: 10 to 20 ms. */
#define MIRROR_TAKE_BYTES (64u << 20)

/* What a job that is a copy has besides. */
struct mirror {
	uint32_t world;                       /* of the job itself */
	char box[MIRROR_BOX_BYTES];           /* what its box calls itself */
	bool whole;                           /* the box says so: all images came */
	uint64_t lost[MAIL_RANK_WORDS];       /* ranks that take no part any more */
	uint64_t left[MAIL_RANK_WORDS];       /* ranks that left in good order */
	uint64_t unfinished[MAIL_RANK_WORDS]; /* of those: before the training was finished */
	uint64_t barrier;                     /* the last one that was passed */
	bool paused, draining;                /* by the box's operator, */
	char reason[JOB_REASON_BYTES];        /* for this */
	uint64_t since_ns;                    /* when it was made */
	uint64_t lost_ns;                     /* since when the box is gone, or has lost workers; 0: it is here */
	uint64_t keep_ms;                     /* then: so long it is kept */
	uint64_t before; /* the round that it was at that was kept here when its box came again with the job; 0: none
			    was */
	bool bereaved;   /* then: the box says that it has lost workers */
	uint32_t hyper_first, hyper_count;
	struct optimizer_hyper *hypers; /* [hyper_count][groups] versions with which it begins */
	struct job *taker;              /* that goes on from it; NULL: none */
	uint32_t taken;                 /* chunks that it has */
};

/* The copy of the job of this name that is kept here, and not taken yet; NULL when there is none. */
struct job *job_find_mirror(struct control *c, const char *name);

/* ---- job_mirror.c ---- */

/* Makes the session the box of a copy; one that was there of this name goes. 0, or a negative errno after refusing it.
 */
int job_mirror_join(struct session *s);
/* Whatever the box of a copy says. */
void job_mirror_hear(struct session *s, const Phub__Control *m);
/* Its session is gone, without leaving or in good order: then the job is over, unless the box has lost workers of it,
 * who may come here. */
void job_mirror_lost(struct job *job, const char *why);
void job_mirror_left(struct job *job);
/* Memory of others is free again: makes what waited for some. */
void job_mirror_start(struct job *job);
/* A core tells of a connection that ended, or of what no box sends. */
void job_mirror_mail(struct job *job, const struct mail *mail);
void job_mirror_tick(struct job *job);
/* It ends, and so does what waits for it. `why` is logged, and told, with `code`, to its box. */
void job_mirror_end(struct job *job, Phub__ErrorCode code, const char *why);
/* What it waits for, as people read it: "for box ..., of whose job this is the whole copy". */
void job_mirror_describe(const struct job *job, char *out, size_t bytes);
/* What it has besides a job is freed. */
void job_mirror_forget(struct job *job);

/* ---- job_move.c ---- */

/* May this worker, which says that it moves, join `job` (of its name; NULL: there is none)? False when it was refused.
 */
bool job_move_admits(struct session *s, const struct job *job);
/* A job was made for those that move. */
void job_move_begin(struct job *job);
/* Who is lost at their box is not waited for. */
void job_move_recount(struct job *job);
/* All tables are there. */
void job_move_take(struct job *job);
/* The copy's shards are all back. */
void job_move_taken(struct job *mirror);
/* The job's own generation is made: what is in the copy goes there, some in each step. */
void job_move_fill(struct job *job);
void job_move_step(struct control *c);
/* All workers must have come so long after the first. */
uint64_t job_move_wait_ns(const struct control *c);
/* Fails the job when not all have come in time. */
void job_move_tick(struct job *job);
/* A rank is lost while the copy becomes the job's: one of a job that goes on without it is so from the beginning.
 * False: that is not how it is. */
bool job_move_loses(struct job *job, struct member *m, const char *why);
/* It has ended. */
void job_move_forget(struct job *job);

#endif
