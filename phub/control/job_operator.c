/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an operator does to a job: pauses it and lets it go on, drains it, or ends it. Its workers hear who, and why.
 */
#include "phub/control/job.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "phub/base/log.h"
#include "phub/base/ranks.h"
#include "phub/control/box.h"
#include "phub/control/calls.h"
#include "phub/control/job_below.h"
#include "phub/control/job_mirror.h"
#include "phub/control/parent.h"
#include "phub/control/peers_move.h"
#include "phub/control/session.h"
#include "phub/control/standby.h"

#define JOB_LOST_MAX 16u /* ranks that are named */

static const char *const job_commands[] = {"pause", "resume", "drain", "evict", "rebalance", NULL};

bool job_operator_knows(const char *command)
{
	for (unsigned i = 0; job_commands[i]; i++)
		if (strcmp(job_commands[i], command) == 0)
			return true;
	return false;
}

void job_keep_reason(struct job *job, const char *reason)
{
	snprintf(job->reason, sizeof(job->reason), "%s", reason);
	for (char *at = job->reason; *at; at++)
		*at = isprint((unsigned char)*at) ? *at : '?';
}

static void job_pause(struct job *job, bool paused)
{
	bool doubt = !job->parent && job->control->above.doubt_ns;
	const struct mail mail = {.kind = MAIL_PAUSE, .value = paused || doubt};

	job->paused = paused;
	if (job->state == JOB_RUNNING)
		generation_post(job->generation, job->control->box, &mail);
	standby_members(job);
}

/* "; rank 2 is lost: rounds that need it wait" where a job waits for others in their place; how long yet. */
static void job_describe_lost(const struct job *job, char *out, size_t bytes)
{
	uint32_t ranks[JOB_LOST_MAX], known = 0, count = 0;
	uint64_t first_ns = UINT64_MAX, ends_ns;
	char list[80];

	out[0] = '\0';
	if (job->state != JOB_RUNNING || job->generation->spec.lost != LOST_WAIT)
		return;
	for (uint32_t i = 0; i < job->ranks; i++) {
		if (!job_is_lost(job, i))
			continue;
		if (known < JOB_LOST_MAX)
			ranks[known++] = i;
		count++;
		first_ns = job_gone_ns(job, i) < first_ns ? job_gone_ns(job, i) : first_ns;
	}
	if (count == 0)
		return;
	ends_ns = first_ns + job_wait_ns(job);
	ranks_write(ranks, known, count, list, sizeof(list));
	snprintf(out, bytes, "; rank%s %s %s lost, and the job ends in %.0f s if no other comes", count == 1 ? "" : "s",
		list, count == 1 ? "is" : "are",
		ends_ns > job->control->now_ns ? (double)(ends_ns - job->control->now_ns) / 1e9 : 0);
}

void job_end_drained(struct job *job)
{
	bool lost = job_count_somewhere(job) < job->ranks && job->generation && job->generation->spec.lost == LOST_WAIT;

	job_fail(job, PHUB__ERROR_CODE__ERROR_OPERATOR, -1,
		"the box's operator drained it%s%s; the rounds that were open are done%s, and no more are begun",
		job->reason[0] ? ": " : "", job->reason,
		lost ? ", but for those that wait for a worker that was lost" : "");
}

static void job_drain(struct job *job)
{
	job->draining = true;
	standby_members(job);
	if (job->state == JOB_RUNNING)
		job_members_drain(job);
	else /* between two key tables, or before the first, no round is open */
		job_end_drained(job);
}

/* ---- over several boxes ---- */

void job_hear_paused(struct session *s, const Phub__Heartbeat *message)
{
	struct job *job = s->job;
	struct member *m = &job->members[s->rank];
	char who[240];

	job_member_name(job, s->rank, who, sizeof(who));
	m->paused[0] = '\0';
	if (message->paused > 1)
		job_below_copy(m->paused, sizeof(m->paused), message->why && *message->why ? message->why : "paused");
	log_info("job '%s': at %s %s", job->name, who, m->paused[0] ? m->paused : "it goes on");
}

void job_describe_paused_below(const struct job *job, char *out, size_t bytes)
{
	char who[240];

	out[0] = '\0';
	for (uint32_t i = job->ranks; !out[0] && i < job->world; i++)
		if (job->members[i].session && job->members[i].paused[0])
			snprintf(out, bytes, "it is paused at %s: %s", job_member_name(job, i, who, sizeof(who)),
				job->members[i].paused);
}

/* The box above, where rounds wait for those here, hears that they will not come. One of an older release does not
 * understand it, and answers as any other heartbeat. */
static void job_tell_paused(struct job *job)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Heartbeat heartbeat = PHUB__HEARTBEAT__INIT;
	struct box_call *call = parent_call(job);
	char why[JOB_REASON_BYTES + 400];

	if (!call)
		return;
	if (job->paused)
		job_operator_describe(job, why, sizeof(why));
	else
		job_describe_paused_below(job, why, sizeof(why));
	if ((why[0] != '\0') == job->paused_told)
		return;
	heartbeat.paused = why[0] ? 2 : 1;
	heartbeat.why = why;
	control.message_case = PHUB__CONTROL__MESSAGE_HEARTBEAT;
	control.heartbeat = &heartbeat;
	if (box_call_say(job->control, call, &control) == 0)
		job->paused_told = why[0] != '\0';
}

void job_operator_tick(struct job *job)
{
	if (job->state == JOB_RUNNING)
		job_tell_paused(job);
	if (job->state != JOB_RUNNING || !job->drain_ns || job->control->now_ns < job->drain_ns)
		return;
	job->drain_ns = 0;
	job_members_drain(job);
}

void job_drained(struct job *job)
{
	if (job->draining && --job->drain_left == 0)
		job_end_drained(job);
}

void job_operator_describe(const struct job *job, char *out, size_t bytes)
{
	char lost[160];

	out[0] = '\0';
	if (!job->parent && !job->mirror && job->control->above.doubt_ns) {
		snprintf(out, bytes, "this box's lease in etcd may be over, and another box may be the root '%s'",
			job->control->config->root);
		return;
	}
	if (!job->paused && !job->draining)
		return;
	job_describe_lost(job, lost, sizeof(lost));
	snprintf(out, bytes, "the box's operator %s it%s%s%s", job->paused ? "paused" : "drains",
		job->reason[0] ? ": " : "", job->reason, job->paused ? lost : "");
}

/* A copy of another box's job can be ended, no more. */
static int job_operate_mirror(struct job *job, const char *command, const char *reason, struct err *e)
{
	char why[JOB_REASON_BYTES + 64];

	if (strcmp(command, "evict") != 0)
		return err_set(e, -EBUSY, "job '%s' is the copy of one that runs at box %s; say so there", job->name,
			job->mirror->box);
	if (!reason[0])
		return err_set(e, -EINVAL, "evict needs a reason, which its box is told");
	job_keep_reason(job, reason);
	snprintf(why, sizeof(why), "the standby's operator ended it: %s", job->reason);
	job_mirror_end(job, PHUB__ERROR_CODE__ERROR_OPERATOR, why);
	return 0;
}

int job_operate(struct control *c, const char *command, const char *name, const char *reason, char *said,
	size_t said_bytes, uint32_t *number, struct err *e)
{
	struct job *job = job_find(c, name);
	bool pause = strcmp(command, "pause") == 0, resume = strcmp(command, "resume") == 0;
	bool drain = strcmp(command, "drain") == 0;

	if (!job && job_find_mirror(c, name))
		return job_operate_mirror(job_find_mirror(c, name), command, reason, e);
	if (!job)
		return err_set(e, -ENOENT, "no job '%.63s' is here; see phub jobs", name);
	if (strcmp(command, "rebalance") == 0)
		return peers_move_begin(job, said, said_bytes, number, e);
	if (!pause && !resume && !drain && !reason[0])
		return err_set(e, -EINVAL, "evict needs a reason, which its workers are told");
	if (resume && !job->paused)
		return err_set(e, -EINVAL, "job '%s' is not paused", job->name);
	if (pause && job->paused)
		return err_set(e, -EBUSY, "job '%s' is paused already", job->name);
	if ((pause || drain) && peers_moves(job))
		return err_set(e, -EBUSY, "job '%s' is being rebalanced; try again in a moment", job->name);
	if ((pause || drain) && job->draining)
		return err_set(e, -EBUSY, "job '%s' drains already; evict ends it at once", job->name);
	if (drain && job->paused)
		return err_set(e, -EBUSY, "job '%s' is paused; resume it first, or evict it", job->name);
	log_info("job '%s': the operator says %s%s%.*s", job->name, command, reason[0] ? ": " : "",
		(int)JOB_REASON_BYTES, reason);
	job_keep_reason(job, reason);
	if (pause || resume)
		job_pause(job, pause);
	else if (drain)
		job_drain(job);
	else
		job_fail(job, PHUB__ERROR_CODE__ERROR_OPERATOR, -1, "the box's operator ended it: %s", job->reason);
	return 0;
}
