/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs whose workers are at several boxes. The members of such a job are, here, all ranks of its world, of which some
 * are elsewhere and gone for good, and behind them a place for each box below, which stands for those ranks whose key
 * tables it has gathered. To cores a box below is a contributor like a worker (spec.boxes). Control thread.
 */
#ifndef PHUB_CONTROL_JOB_BELOW_H
#define PHUB_CONTROL_JOB_BELOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/control/job.h"

struct session;

#define JOB_AT_OTHER UINT32_MAX       /* member.at: at a box that is not below this one */
#define JOB_TOLD     " (told by box " /* behind what another box has said, before that box */

/* Is this the place of a box below? */
static inline bool job_is_box(const struct job *job, uint32_t member)
{
	return member >= job->ranks;
}

/* Are there other boxes than this one in it? */
static inline bool job_is_spread(const struct job *job)
{
	return job->parent || job->world > job->ranks;
}

/* A box comes to take part, before the job starts. 0, or a negative errno after refusing it. */
int job_below_join(struct session *s);
/* Gather: all ranks that it has now, and what it sends sums as. */
void job_below_gather(struct session *s, const Phub__Gather *message);
/* What another box has said, as what may go to logs and terminals. NULL is allowed. */
void job_below_copy(char *out, size_t bytes, const char *text);
/* It leaves because the job has ended there. Where all of its workers were lost, and others may come, it counts as
 * lost, too. */
void job_below_fails(struct session *s, const Phub__Leave *leave);
/* A worker comes to a job that runs, with a rank that was at another box: may it be nowhere now? Then it is here. */
bool job_below_admits(struct job *job, uint32_t rank);
/* A box came in the place of one that was lost: are all here whom it must have, where the job waits for them? */
bool job_below_is_whole(const struct job *job, uint32_t member);
/* Who was awaited at a box is at another now, or may be: boxes for whom nobody waits any more, or who are whole. */
void job_below_review(struct job *job);
/* The box above says who is in the job. */
void job_below_hear_members(struct job *job, const Phub__Members *m);
/* "TEXT", without the "job 'NAME': " that the other box has put before it. */
void job_below_copy_reason(const struct job *job, char *out, size_t bytes, const char *text);
/* One more place, of a box that is not there yet; JOB_AT_OTHER: no room. */
uint32_t job_below_append(struct job *job);
/* Before the first start: boxes by the first of their ranks, however they came, so that sums are made in one order. */
void job_below_sort(struct job *job);
/* Before the first start of a job whose ranks may come and go: they may come with more boxes below than there are now,
 * for which there is no place once it runs; also where there is none now, and this box has one above, is a root that
 * was promoted, or the sibling of one that may die. `again`: it ran before, and none of those may be here yet. */
void job_below_keep_places(struct job *job, bool again);
/* It is gone before the start: so are its ranks. */
void job_below_vacate(struct job *job, uint32_t member);
/* The ranks that are in a table here or below, or take part by one, in `ranks` [job->ranks]; returns how many. */
uint32_t job_below_gathered(const struct job *job, uint32_t *ranks);
/* Was any of the ranks here or below in it when it ran before? */
bool job_below_resumes(const struct job *job);
/* The job starts: who has not been gathered here is at a box above, or below that. */
void job_below_settle(struct job *job);
/* Can a job with these options be at several boxes? 0, or -ENOTSUP with what cannot in `e`. */
int job_below_check(const struct spec *spec, struct err *e);
/* "box 10.0.1.1:7077", or "box 'B' at 10.0.1.1:7077" (names.h), of one below. Returns `out`. */
const char *job_box_name(const struct job *job, uint32_t member, char *out, size_t bytes);
/* "rank 3 (10.0.0.3:5512)", or "box 10.0.1.1:7077 (ranks 4-7)". Returns `out`. */
const char *job_member_name(const struct job *job, uint32_t member, char *out, size_t bytes);
/* "rank 3", or of a box as above: its place among the members is nobody's rank. Returns `out`. */
const char *job_member_word(const struct job *job, uint32_t member, char *out, size_t bytes);
/* Boxes below that are there. */
uint32_t job_below_count(const struct job *job);
/* The order in which this box makes the job's reproducible sums, as a worker may give it to one box alone
 * (phub/association.h); "": they are not, or it does not make all of them, or does not know how boxes below do. To be
 * freed; NULL: no memory. */
char *job_below_association(const struct job *job);
/* Is this rank at that box, or does it come by it? */
bool job_stands_for(const struct job *job, uint32_t member, uint32_t rank);
/* Its rank, to tell of; of a box the first of its ranks. */
uint32_t job_member_rank(const struct job *job, uint32_t member);

#endif
