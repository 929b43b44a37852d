/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a job's checkpoints are made with: the files' side of job_checkpoint.c. All that touches a disk is a task, which
 * a thread does, or, in a box that is turned by hand, control in steps: control never waits for a disk. A job that ends
 * while its keeper is at a task leaves it to control, with all that the task reads and writes; it goes when the task is
 * over, however long that takes. Until then no keeper of a job of that name begins one: two are never at the same
 * files.
 *
 * Whose checkpoints these are is said by the job's name alone. Who may be in a job of that name may go on from them,
 * and by that read the weights, and writes those that push them out: what stands before that is the secret that a job
 * of this name takes. Jobs that are listed with a secret_file of their own are safe from all others; those that are not
 * listed share create_secret, or the user over loopback, and so whoever knows it may come under the name of one that is
 * away. Then only another job by mistake is kept out: by what must fit (table_continues()).
 */
#ifndef PHUB_CONTROL_KEEPER_H
#define PHUB_CONTROL_KEEPER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "phub/base/mem.h"
#include "phub/control/checkpoint.h"
#include "phub/control/job.h"
#include "phub/control/table.h"

enum keeper_state { KEEPER_IDLE, KEEPER_ASKING, KEEPER_TAKING, KEEPER_WRITING, KEEPER_READING };

enum keeper_task {
	KEEPER_WRITE, /* the snapshot; then marks and old checkpoints go */
	KEEPER_READ,  /* the newest checkpoint that can be read and fits */
	KEEPER_MARK,  /* the job's training is finished */
};

/*
 * Result of KEEPER_READ: there is none to go on from. Not where there is one that the job does not fit: new ones would
 * push it out, and with it what another job was, or what a wrong option made of this one. Not where one may be in
 * targets that cannot be looked into: that is an error, or a disk that is not mounted yet would cost the job all that
 * it was.
 */
enum { KEEPER_ANEW = 1 };

/* A job's checkpoints: what is under way, and what was learnt. */
struct keeper {
	struct control *control;
	struct keeper *next; /* of control's, when its job has left it */
	char job[SPEC_NAME_BYTES];
	enum keeper_state state;
	struct checkpoint_place place;
	char *targets; /* place.targets point into it */
	unsigned keep; /* so many stay */
	struct checkpoint_pace pace;
	struct snapshot snapshot;
	struct mem_region arena;
	uint64_t counted; /* of control->memory_used */
	uint8_t *meta;
	uint64_t meta_bytes;
	unsigned cores_left; /* that have not answered */
	bool stopped;        /* the cores were told to give it up */
	bool vain;           /* ...because it was already refused by the disk */
	uint64_t ahead;      /* rounds: more after each that was missed */
	uint64_t *seen;      /* [seen_count] of chunks, the rounds of their keys when these were asked last; 0: never */
	uint32_t seen_count;
	uint64_t rounds; /* of the job, when the last one was taken */
	double apart;    /* rounds from one to the next, of the last few; 0: there was none, or it failed */
	double sampled;  /* rounds, at the last sample */
	uint64_t sampled_ns;
	bool touched; /* a checkpoint was under way since */
	uint64_t begun_ns, retry_ns, told_ns, told_short_ns;
	uint64_t done;     /* checkpoints that are on disk... */
	unsigned restored; /* ...and that it goes on from */
	uint64_t last;     /* the round of the newest, */
	bool known;        /* if there is one, */
	int64_t last_ns;   /* when it was taken: may lie before the box began, */
	uint64_t last_bytes, last_took_ns;
	uint64_t failed_ns;  /* when one failed last, */
	char failure[200];   /* and why */
	unsigned lacking;    /* targets that the newest is not in, */
	uint64_t lacking_ns; /* since when some are away, */
	char lacks[400];     /* and why */
	bool mark;           /* once it is left, it marks the end */
	uint64_t tell_ns;    /* when it is told that it waits, or is waited for */

	/* The task. What is below is the thread's while it runs, and not over. */
	enum keeper_task task;
	pthread_t thread;
	bool running, by_hand;
	uint64_t task_ns; /* when it began; over: how long it took */
	uint64_t due_ns;  /* by hand: of the next step */
	_Atomic bool over;
	int result, pruned;
	struct err error, prune_error;
	struct checkpoint_progress progress;
	struct checkpoint_table table;
	bool table_read; /* it is to be given back */
	struct checkpoint_write *writing;
	struct checkpoint_reading *reading;
	struct generation *into;          /* KEEPER_READ: the job's, or its own when it is left */
	bool unfit;                       /* the one before `trying` is of another job, by `error` */
	struct table_changes changes;     /* in what the job differs from the one that it goes on from */
	struct checkpoint_entry *entries; /* [entry_count] that are there, the newest first; NULL: not looked yet */
	unsigned entry_count, entry;      /* entry: the next to try */
	struct checkpoint_absent absent;  /* targets of which nobody knows what they hold */
	uint64_t trying;                  /* the round of the one before that */
	int failed;                       /* 0, or why some that is whole could not be read */
	int bare;                         /* ... and it may be whole with what is on disks that are not mounted */
	uint64_t *from;                   /* [chunk_count] what it read: the round that each chunk begins with */
	uint64_t repaired;
	bool hasty; /* for tests: it goes on a round too early */
};

/* 0, with NULL where the job has no checkpoints: the box has no targets, or the job no weights. Or -ENOMEM. */
int keeper_create(struct job *job, struct keeper **out);

/* A place for each chunk of the generation. 0 or -ENOMEM. Drop: also what was taken in part, or nothing. */
int keeper_take_arena(struct keeper *k, const struct generation *g);
void keeper_drop_arena(struct keeper *k);

/* Is a keeper of another job of this name not done yet? */
bool keeper_waits(const struct keeper *k, const struct job *job);
/* Begins a task. False: there is no thread for it. */
bool keeper_run(struct keeper *k, enum keeper_task task);
/* Of what runs. */
bool keeper_is_over(const struct keeper *k);
/* When it is over: `result` and what goes with it are ours. */
void keeper_join(struct keeper *k);
void keeper_drop_table(struct keeper *k);

#endif
