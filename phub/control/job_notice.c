/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is missing, about once a second to all who wait: nobody hangs in silence. Also the timers of a job: broken data
 * connections that nothing has explained, samples for rates.
 */
#include "phub/control/job.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/control/session.h"

#define JOB_MISSING_MAX 64u /* ranks that a Notice names */

struct job_missing {
	uint32_t ranks[JOB_MISSING_MAX];
	uint32_t known, count;
};

void job_list_ranks(const uint32_t *ranks, uint32_t known, uint32_t count, char *out, size_t bytes)
{
	size_t at = 0;
	uint32_t i = 0;

	out[0] = '\0';
	for (; i < known && i < 16 && at < bytes; i++)
		at += (size_t)snprintf(out + at, bytes - at, "%s%u", i ? ", " : "", ranks[i]);
	if (i < count && at < bytes)
		snprintf(out + at, bytes - at, " and %u more", count - i);
}

static void job_miss(struct job_missing *m, uint32_t rank)
{
	if (m->known < JOB_MISSING_MAX)
		m->ranks[m->known++] = rank;
	m->count++;
}

static void job_write_notice(
	struct session *s, uint64_t round, uint32_t chunk, const struct job_missing *missing, const char *text)
{
	Phub__Control control = PHUB__CONTROL__INIT;
	Phub__Notice notice = PHUB__NOTICE__INIT;

	notice.round = round;
	notice.chunk = chunk;
	notice.text = (char *)(uintptr_t)text;
	if (missing) {
		notice.missing = (uint32_t *)(uintptr_t)missing->ranks;
		notice.n_missing = missing->known;
		notice.missing_count = missing->count;
	}
	control.message_case = PHUB__CONTROL__MESSAGE_NOTICE;
	control.notice = &notice;
	session_write(s, &control);
}

/* Tells every rank but one (or none: UINT32_MAX). A write that fails may end the job. */
static void job_notice_all(struct job *job, uint32_t except, uint64_t round, uint32_t chunk,
	const struct job_missing *missing, const char *text)
{
	for (uint32_t i = 0; i < job->world && job->state != JOB_ENDING; i++)
		if (i != except && job->members[i].session)
			job_write_notice(job->members[i].session, round, chunk, missing, text);
}

void job_tell_silent(struct session *s, uint64_t silent_ms)
{
	struct job *job = s->job;
	const struct config *config = s->control->config;
	char text[256];

	snprintf(text, sizeof(text), "rank %u (%s) silent for %.1f s; declared lost in %.1f s", s->rank,
		s->stream->peer, (double)silent_ms / 1e3, (double)(config->lost_ms - silent_ms) / 1e3);
	log_warn("job '%s': %s", job->name, text);
	job_notice_all(job, s->rank, 0, UINT32_MAX, NULL, text);
}

void job_tell_heard(struct session *s)
{
	char text[160];

	snprintf(text, sizeof(text), "rank %u (%s) is heard again", s->rank, s->stream->peer);
	log_info("job '%s': %s", s->job->name, text);
	job_notice_all(s->job, s->rank, 0, UINT32_MAX, NULL, text);
}

/* ---- waiting for the start, or at a barrier ---- */

static void job_notice_start(struct job *job)
{
	uint64_t now_ns = job->control->now_ns;
	struct job_missing missing = {.count = 0};
	uint32_t here = 0;
	char ranks[160], text[1024];

	if (job->tabled == 0 || job->state == JOB_REKEYING)
		return;
	for (uint32_t i = 0; i < job->world; i++) {
		if (!job->members[i].tabled) {
			here += job->members[i].session != NULL;
			job_miss(&missing, i);
		}
	}
	job_list_ranks(missing.ranks, missing.known, missing.count, ranks, sizeof(ranks));
	snprintf(text, sizeof(text),
		"job '%s' waits to start for rank%s %s of %u; %u of them joined but sent no keys%s%s", job->name,
		missing.count == 1 ? "" : "s", ranks, job->world, here, job->mismatch.code ? "; it will fail: " : "",
		job->mismatch.code ? job->mismatch.text : "");
	for (uint32_t i = 0; i < job->world && job->state != JOB_ENDING; i++) {
		const struct member *m = &job->members[i];

		if (m->session && m->tabled && now_ns - m->waits_ns >= JOB_NOTICE_NS)
			job_write_notice(m->session, 0, UINT32_MAX, &missing, text);
	}
}

static void job_notice_barrier(struct job *job)
{
	uint64_t now_ns = job->control->now_ns;
	struct job_missing missing = {.count = 0};
	char ranks[160], text[400];

	for (uint32_t i = 0; i < job->world; i++)
		if (!job->members[i].waits)
			job_miss(&missing, i);
	if (missing.count == job->world)
		return;
	job_list_ranks(missing.ranks, missing.known, missing.count, ranks, sizeof(ranks));
	snprintf(text, sizeof(text), "job '%s': the barrier waits for rank%s %s of %u", job->name,
		missing.count == 1 ? "" : "s", ranks, job->world);
	for (uint32_t i = 0; i < job->world && job->state != JOB_ENDING; i++) {
		const struct member *m = &job->members[i];

		if (m->session && m->waits && now_ns - m->waits_ns >= JOB_NOTICE_NS)
			job_write_notice(m->session, 0, UINT32_MAX, &missing, text);
	}
}

/* ---- rounds that do not close ---- */

/* A round waits for a rank that has left: it would wait for ever. True when the job has failed by it. */
static bool job_check_left(struct job *job, const struct mail *mail, const char *keys)
{
	for (uint32_t i = 0; i < job->world; i++) {
		const struct member *m = &job->members[i];
		bool named = i < 64 ? (mail->missing >> i) & 1 : i == mail->rank;

		if (!m->left || !named)
			continue;
		job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, (int)i,
			"round %" PRIu64
			" of %s waits for rank %u (%s), which has left; all ranks must do the same rounds",
			mail->round, keys, i, m->peer);
		return true;
	}
	return false;
}

/* "rank 2 (127.0.0.1:4242, silent for 2.1 s)" for one, a list for more. */
static void job_describe_missing(const struct job *job, const struct job_missing *missing, char *out, size_t bytes)
{
	const struct session *s = missing->known == 1 ? job->members[missing->ranks[0]].session : NULL;
	char ranks[160];

	if (missing->count == 1 && s) {
		snprintf(out, bytes, "rank %u (%s, heard of %.1f s ago)", missing->ranks[0], s->stream->peer,
			(double)(job->control->now_ns - s->heard_ns) / 1e9);
		return;
	}
	job_list_ranks(missing->ranks, missing->known, missing->count, ranks, sizeof(ranks));
	snprintf(out, bytes, "ranks %s", ranks);
}

void job_stalled(struct job *job, const struct mail *mail)
{
	struct job_missing missing = {.count = 0};
	char keys[160], who[200], text[400];

	job_chunk_keys(job, mail->chunk, UINT32_MAX, keys, sizeof(keys));
	if (job->left > 0 && job_check_left(job, mail, keys))
		return;
	for (uint32_t i = 0; i < job->world && i < 64; i++)
		if ((mail->missing >> i) & 1)
			job_miss(&missing, i);
	missing.count = (uint32_t)mail->value;
	if (missing.count == 0)
		snprintf(who, sizeof(who), "hyper-parameters or replies");
	else
		job_describe_missing(job, &missing, who, sizeof(who));
	snprintf(text, sizeof(text), "round %" PRIu64 " of %s waits for %s", mail->round, keys, who);
	snprintf(job->waiting, sizeof(job->waiting), "%s", text);
	job->waiting_ns = job->control->now_ns;
	log_debug("job '%s': %s", job->name, text);
	job_notice_all(job, UINT32_MAX, mail->round, mail->chunk, &missing, text);
}

/* ---- timers ---- */

/*
 * A data connection ended and its session lives on: a worker about to leave or to send its next key table ends them
 * first, and one that is in trouble ends its session itself. When nothing has explained it by the deadline, the rank is
 * lost.
 */
static void job_check_links(struct job *job)
{
	const struct control *c = job->control;

	for (uint32_t i = 0; i < job->world && job->state == JOB_RUNNING; i++) {
		struct member *m = &job->members[i];

		if (!m->link_ended_ns || m->left || m->tabled || (m->session && m->session->table))
			continue;
		if (c->now_ns - m->link_ended_ns < c->config->lost_ms * NS_PER_MS)
			continue;
		job_fail(job, PHUB__ERROR_CODE__ERROR_LOST, (int)i,
			"rank %u (%s) was lost: its %s connection to core %u %s%s. The job ends; look at that worker "
			"and the network",
			i, m->peer, m->transport, m->link_core, m->link_error ? "broke: " : "was closed",
			m->link_error ? strerror(-m->link_error) : "");
	}
}

static void job_sample(struct job *job)
{
	const struct control *c = job->control;
	const struct job_sample *last = &job->samples[(job->sample_count + JOB_SAMPLES - 1) % JOB_SAMPLES];
	struct generation_sums sums;

	if (job->sample_count > 0 && c->now_ns - last->at_ns < JOB_SAMPLE_NS)
		return;
	sums = generation_sums(job->generation);
	job->samples[job->sample_count++ % JOB_SAMPLES] = (struct job_sample){c->now_ns, sums.rounds, sums.bytes};
}

void job_tick(struct job *job)
{
	uint64_t now_ns = job->control->now_ns;

	if (job->state == JOB_RUNNING) {
		job_sample(job);
		job_check_links(job);
	}
	if (job->mismatch.code)
		job_try_start(job);
	if (job->state == JOB_ENDING || now_ns - job->noticed_ns < JOB_NOTICE_NS)
		return;
	job->noticed_ns = now_ns;
	job_notice_start(job);
	if (job->state != JOB_ENDING)
		job_notice_barrier(job);
}
