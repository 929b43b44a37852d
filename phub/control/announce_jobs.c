/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The jobs of this box beside what was told of them.
 */
#include "phub/control/announce_jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/control/above.h"
#include "phub/control/control.h"
#include "phub/control/generation.h"
#include "phub/control/job.h"
#include "transport/roster.h"

enum { ANNOUNCE_OPS = 64 }; /* in a transaction; etcd takes 128 unless told otherwise */

struct announce_job {
	char name[SPEC_NAME_BYTES];
	struct roster_job now, told; /* without names */
	uint64_t told_ns;
	bool here;    /* the box has it */
	bool there;   /* etcd has it, perhaps */
	bool known;   /* as `told` says */
	bool pending; /* in the request that is under way */
};

/* Mostly they come in the order of the last time. */
static struct announce_job *announce_find(struct announce_jobs *a, const char *name, unsigned *hint)
{
	for (unsigned i = 0; i < a->count; i++) {
		unsigned at = (*hint + i) % a->count;

		if (strcmp(a->list[at].name, name) != 0)
			continue;
		*hint = at + 1;
		return &a->list[at];
	}
	return NULL;
}

static struct announce_job *announce_add(struct announce_jobs *a, const char *name)
{
	unsigned room = a->room ? a->room * 2 : 16;
	struct announce_job *job;

	if (a->count == a->room) {
		job = realloc(a->list, room * sizeof(*job));
		if (!job)
			return NULL;
		a->list = job;
		a->room = room;
	}
	job = &a->list[a->count++];
	*job = (struct announce_job){.here = true};
	snprintf(job->name, sizeof(job->name), "%s", name);
	return job;
}

/* Those here, and those of a host whose own box is below this one: that is not announced itself. */
static bool announce_counts(const struct job *job, const struct member *m)
{
	return m->session ||
	       (m->elsewhere && m->at < job->world && job->members[m->at].session && job->members[m->at].leaf);
}

static void announce_describe(const struct job *job, struct roster_job *out)
{
	const char *state = job->mirror        ? "mirror"
			    : job->paused      ? "paused"
			    : job->draining    ? "draining"
			    : above_holds(job) ? "held"
					       : job_state_name(job->state);

	*out = (struct roster_job){.world = job->ranks, .round = job->rounds};
	snprintf(out->state, sizeof(out->state), "%s", state);
	for (uint32_t i = 0; i < job->ranks; i++) {
		const struct member *m = &job->members[i];

		out->workers += announce_counts(job, m);
		out->known += m->session || (m->elsewhere && !job_is_lost(job, i));
	}
	if (job->generation && job->state == JOB_RUNNING)
		out->round += generation_sums(job->generation).rounds / job->generation->spec.plan.chunk_count;
}

void announce_jobs_look(struct announce_jobs *a, const struct control *c)
{
	unsigned hint = 0, left = 0;

	for (unsigned i = 0; i < a->count; i++)
		a->list[i].here = false;
	for (const struct job *job = c->jobs; job; job = job->next) {
		struct announce_job *j;

		if (job->state == JOB_ENDING)
			continue;
		j = announce_find(a, job->name, &hint);
		if (!j)
			j = announce_add(a, job->name);
		if (!j)
			break;
		j->here = true;
		announce_describe(job, &j->now);
	}
	for (unsigned i = 0; i < a->count; i++)
		if (a->list[i].here || a->list[i].there)
			a->list[left++] = a->list[i];
	a->count = left;
}

static bool announce_differs(const struct announce_job *j)
{
	return strcmp(j->now.state, j->told.state) != 0 || j->now.workers != j->told.workers ||
	       j->now.known != j->told.known || j->now.world != j->told.world;
}

static bool announce_is_due(const struct announce_jobs *a, const struct announce_job *j, uint64_t now_ns)
{
	if (!j->here)
		return j->there;
	return !j->known || announce_differs(j) ||
	       (j->now.round != j->told.round && now_ns - j->told_ns >= a->again_ns);
}

bool announce_jobs_next(
	struct announce_jobs *a, const char *prefix, const char *box, int64_t lease, uint64_t now_ns, char **request)
{
	static char keys[ANNOUNCE_OPS][ETCD_KEY_BYTES];
	struct etcd_op ops[ANNOUNCE_OPS];
	char *values[ANNOUNCE_OPS];
	unsigned count = 0;
	bool whole = true;

	for (unsigned i = 0; i < a->count && count < ANNOUNCE_OPS; i++) {
		struct announce_job *j = &a->list[i];

		j->pending = announce_is_due(a, j, now_ns);
		if (!j->pending)
			continue;
		values[count] = j->here ? roster_write_job(&j->now) : NULL;
		whole = whole && (!j->here || values[count]) &&
			roster_job_key(prefix, j->name, box, keys[count], sizeof(keys[count]));
		ops[count] = (struct etcd_op){.key = keys[count], .value = values[count], .lease = lease};
		j->told = j->now;
		j->there = true;
		count++;
	}
	if (count == 0)
		return false;
	*request = whole ? etcd_text_txn(ops, count) : NULL;
	for (unsigned i = 0; i < count; i++)
		free(values[i]);
	return true;
}

bool announce_jobs_told(struct announce_jobs *a, uint64_t now_ns)
{
	unsigned left = 0, told = 0;

	for (unsigned i = 0; i < a->count; i++) {
		struct announce_job *j = &a->list[i];

		told += j->pending;
		if (j->pending && !j->here) /* it is gone there, too */
			continue;
		if (j->pending) {
			j->known = true;
			j->told_ns = now_ns;
		}
		j->pending = false;
		a->list[left++] = *j;
	}
	a->count = left;
	return told == ANNOUNCE_OPS;
}

void announce_jobs_forget(struct announce_jobs *a)
{
	for (unsigned i = 0; i < a->count; i++)
		a->list[i].known = a->list[i].pending = false;
}

void announce_jobs_fini(struct announce_jobs *a)
{
	free(a->list);
	*a = (struct announce_jobs){.list = NULL};
}
