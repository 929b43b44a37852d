/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Barriers: a rank waits until all have come to theirs. Allowed from joining to leaving.
 */
#include "phub/control/job.h"

#include "phub/control/job_below.h"
#include "phub/control/parent.h"
#include "phub/control/session.h"
#include "phub/control/standby.h"

/* Everybody has come: all must have come to the same one. */
static void job_open_barrier(struct job *job)
{
	uint32_t first = job_first_live(job);
	uint64_t id = job->members[first].barrier;
	char who[240], other[240];

	for (uint32_t i = first + 1; i < job->world; i++) {
		if (job_is_let_go(job, i) || job->members[i].barrier == id)
			continue;
		job_fail(job, PHUB__ERROR_CODE__ERROR_MISMATCH, (int)i,
			"%s is at its barrier %llu and %s at its %llu; all ranks must make the same calls",
			job_member_word(job, first, who, sizeof(who)), (unsigned long long)id,
			job_member_word(job, i, other, sizeof(other)), (unsigned long long)job->members[i].barrier);
		return;
	}
	if (!standby_barrier(job, id) || !parent_barrier(job, id))
		return; /* who moves there after this must not wait for those who have passed it */
	job->barrier = id;
	for (uint32_t i = 0; i < job->world && job->state != JOB_ENDING; i++) {
		if (!job->members[i].session)
			continue;
		job->members[i].waits = false;
		session_write_barrier_done(job->members[i].session, id);
	}
}

void job_barrier_recount(struct job *job)
{
	uint32_t waiting = 0;

	for (uint32_t i = 0; i < job->world; i++) {
		if (!job->members[i].waits && !job_is_let_go(job, i))
			return;
		waiting += job->members[i].waits;
	}
	if (waiting > 0)
		job_open_barrier(job);
}

void job_hear_barrier(struct session *s, uint64_t id)
{
	struct job *job = s->job;
	struct member *m = &job->members[s->rank];
	char who[240];

	if (m->waits || id <= m->barrier) {
		session_refuse(s, PHUB__ERROR_CODE__ERROR_PROTOCOL, "barrier %llu after barrier %llu",
			(unsigned long long)id, (unsigned long long)m->barrier);
		return;
	}
	if (job_is_spread(job) && !job->generation) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_UNSUPPORTED, (int)s->rank,
			"%s waits at a barrier before the job has started: not yet in jobs whose workers are at "
			"several boxes",
			job_member_word(job, s->rank, who, sizeof(who)));
		return;
	}
	m->waits = true;
	m->barrier = id;
	m->waits_ns = s->control->now_ns;
	if (job->left > 0) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, -1, "%s waits at a barrier, and others have left",
			job_member_word(job, s->rank, who, sizeof(who)));
		return;
	}
	job_barrier_recount(job);
}
