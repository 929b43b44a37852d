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
#include "phub/control/box.h"

static const char *const job_commands[] = {"pause", "resume", "drain", "evict", NULL};

bool job_operator_knows(const char *command)
{
	for (unsigned i = 0; job_commands[i]; i++)
		if (strcmp(job_commands[i], command) == 0)
			return true;
	return false;
}

void job_operator_describe(const struct job *job, char *out, size_t bytes)
{
	out[0] = '\0';
	if (job->paused || job->draining)
		snprintf(out, bytes, "the box's operator %s it%s%s", job->paused ? "paused" : "drains",
			job->reason[0] ? ": " : "", job->reason);
}

/* It goes to logs and terminals. */
static void job_keep_reason(struct job *job, const char *reason)
{
	snprintf(job->reason, sizeof(job->reason), "%s", reason);
	for (char *at = job->reason; *at; at++)
		*at = isprint((unsigned char)*at) ? *at : '?';
}

static void job_pause(struct job *job, bool paused)
{
	const struct mail mail = {.kind = MAIL_PAUSE, .value = paused};

	job->paused = paused;
	if (job->state == JOB_RUNNING)
		generation_post(job->generation, job->control->box, &mail);
}

static void job_end_drained(struct job *job)
{
	job_fail(job, PHUB__ERROR_CODE__ERROR_OPERATOR, -1,
		"the box's operator drained it%s%s; the rounds that were open are done, and no more are begun",
		job->reason[0] ? ": " : "", job->reason);
}

static void job_drain(struct job *job)
{
	job->draining = true;
	if (job->state == JOB_RUNNING)
		job_members_drain(job);
	else /* between two key tables, or before the first, no round is open */
		job_end_drained(job);
}

void job_drained(struct job *job)
{
	if (job->draining && --job->drain_left == 0)
		job_end_drained(job);
}

int job_operate(struct control *c, const char *command, const char *name, const char *reason, struct err *e)
{
	struct job *job = job_find(c, name);
	bool pause = strcmp(command, "pause") == 0, resume = strcmp(command, "resume") == 0;
	bool drain = strcmp(command, "drain") == 0;

	if (!job)
		return err_set(e, -ENOENT, "no job '%.63s' is here; see phub jobs", name);
	if (!pause && !resume && !drain && !reason[0])
		return err_set(e, -EINVAL, "evict needs a reason, which its workers are told");
	if (resume && !job->paused)
		return err_set(e, -EINVAL, "job '%s' is not paused", job->name);
	if (pause && job->paused)
		return err_set(e, -EBUSY, "job '%s' is paused already", job->name);
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
