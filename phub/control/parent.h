/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The box above (above.h): for each job that has workers here a session with it, as one member of the job
 * there, and from the start on an uplink (phub/lift.h) to each core there that has chunks of the job.
 *
 *      dialling   it is being reached; again and again, as long as the job forms
 *      telling    it is told the key table, and whom we have as they come (Gather)
 *      started    it has said Start: all of the world are somewhere. The job starts here likewise, placed as there
 *      connecting uplinks are being made; what is pushed meanwhile waits
 *      lifting    sums go up, results come down
 *
 * Hyper-parameters and barriers go up when all here and below have come to them. When it is lost, or an uplink is, the
 * job ends here; it goes on there, without the workers here, where it may (lost: shrink and wait). A job that forms
 * here while it runs there comes to it like a worker that was lost and is replaced: it takes part from a round on that
 * the box above has chosen, for all who are here by then. Who is here it says again each time that it changes, and is
 * told who is not anywhere. Control thread; nothing blocks.
 */
#ifndef PHUB_CONTROL_PARENT_H
#define PHUB_CONTROL_PARENT_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/control/calls.h"
#include "phub/control/control.h"
#include "phub/mailbox.h"
#include "transport/control.pb-c.h"

struct generation;
struct job;
struct optimizer_hyper;
struct parent;
struct spec;

enum parent_state { PARENT_DIALLING, PARENT_TELLING, PARENT_STARTED, PARENT_CONNECTING, PARENT_LIFTING };

struct parent_report {
	enum parent_state state;
	uint64_t bytes;     /* sent up in this generation */
	const char *why;    /* why the last try to reach it failed; "": it did not */
	const char *advice; /* ...and what an operator may do about it; "": that is not known */
	const char *by;     /* the transport of its uplinks, or "" ... */
	const char *by_why; /* ...and why it is no better one, or "" */
};

/* On how many cores of this box the job can be. */
unsigned parent_cores(const struct job *job);
const char *parent_state_name(enum parent_state state);

/* The first key table of a job is here, and the box has one above. No memory fails the job. */
void parent_begin(struct job *job);
/* Tables came or went: it is told. */
void parent_changed(struct job *job);
/* The table that was told is nobody's any more: all is begun anew. */
void parent_anew(struct job *job);
/* The box above is elsewhere: as long as the job forms it is tried there. `other`: it is another root, as this says,
 * and a job that is with the old one ends. A job without a box above is allowed. */
void parent_moved(struct job *job, const char *other);
/* This box is the root now: a job that waits for one above goes on without, others end. Likewise. */
void parent_promoted(struct job *job);
/* Has it started the generation that is next here? */
bool parent_has_started(const struct job *job);

/*
 * The job came to one that runs above: takes over how that is, and returns the rounds that chunks begin with, one for
 * each, until its next start. NULL: it starts with all others, or, without memory, has failed.
 */
const uint64_t *parent_join(struct job *job);

/* Where chunks go, of a plan that was made: fills job->placement and the spec's ways, which last until the next
 * generation is placed, or the job's end. 0, -EPROTO (it has other chunks), -ENOMEM. */
int parent_place(struct job *job, struct spec *spec, struct err *e);
/* The shards are with the cores: uplinks are made. */
void parent_connect(struct job *job);

/* Its session, while there is one, and our place in its job, by its last Start. */
struct box_call *parent_call(const struct job *job);
struct box_place parent_place_there(const struct job *job);

/* All here are at barrier `id`: false when it is to be opened only when job_barrier_recount() is called again. */
bool parent_barrier(struct job *job, uint64_t id);
/* All here have named this version. */
void parent_hyper(struct job *job, uint32_t version, const struct optimizer_hyper *groups);
/* Why the job ends, to be told by parent_end(). */
void parent_blame(struct job *job, Phub__ErrorCode code, int rank, const char *text);
/* The job is over here: it is left. */
void parent_end(struct job *job);
/* No shard is with a core any more: frees it. A job without one is allowed. */
void parent_forget(struct job *job);

/* MAIL_UPLINK_ENDED, of this job. */
void parent_mail(struct job *job, const struct mail *mail);
/* Moves all on. */
void parent_step(struct control *c);
/* For `phub jobs`; false: it has none. */
bool parent_describe(const struct job *job, struct parent_report *out);

#endif
