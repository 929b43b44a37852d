/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a job's checkpoints are taken, and what a job begins with that had some. The cores copy (phub/snapshot.h), a
 * thread reads and writes (keeper.h), this decides: one checkpoint at a time, so often that rounds are slower by no
 * more than the box allows.
 *
 *      idle -> asking     the cores say which round each chunk collects
 *           -> taking     they copy; the thread writes what is copied, in the order of the chunks
 *           -> writing    all is copied; the thread writes what is left
 */
#include "phub/control/job.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/base/stats.h"
#include "phub/control/box.h"
#include "phub/control/keeper.h"
#include "phub/control/session.h"

#define CHECKPOINT_AHEAD_MAX 4096u /* rounds that a snapshot is planned ahead at most */
#define CHECKPOINT_TAKING_NS (60 * NS_PER_S)
#define CHECKPOINT_RETRY_NS  (10 * NS_PER_S) /* after one that failed */
#define CHECKPOINT_TELL_NS   (60 * NS_PER_S) /* failures are logged this often */
#define CHECKPOINT_WAIT_NS   NS_PER_S        /* so long a job waits for a disk without a word */
#define KEEPER_APART_OVER    4.0             /* intervals, about, that what comes between two is a mean of */

/* ---- failures ---- */

static void keeper_give_up(struct job *job, const char *why)
{
	struct keeper *k = job->keeper;
	uint64_t now_ns = job->control->now_ns;

	if (now_ns - k->told_ns >= CHECKPOINT_TELL_NS || k->told_ns == 0) {
		k->told_ns = now_ns;
		log_warn("job '%s': no checkpoint: %s; the job goes on, and it is tried again in %u s", job->name, why,
			(unsigned)(CHECKPOINT_RETRY_NS / NS_PER_S));
	}
	k->failed_ns = now_ns;
	snprintf(k->failure, sizeof(k->failure), "%s", why);
	k->retry_ns = now_ns + CHECKPOINT_RETRY_NS;
	k->state = KEEPER_IDLE;
	keeper_drop_arena(k);
}

/* ---- taking one ---- */

static void keeper_send(struct job *job, enum mail_kind kind)
{
	struct keeper *k = job->keeper;
	const struct mail mail = {.kind = kind, .snapshot = &k->snapshot};

	k->cores_left = generation_post(job->generation, job->control->box, &mail);
}

static void keeper_ask(struct job *job)
{
	struct keeper *k = job->keeper;

	if (keeper_take_arena(k, job->generation) < 0) {
		keeper_give_up(job, "there is no memory for a copy of its weights and state; raise memory_max");
		return;
	}
	k->state = KEEPER_ASKING;
	k->begun_ns = job->control->now_ns;
	keeper_send(job, MAIL_ROUNDS);
}

/*
 * From which round on each chunk is taken. A little ahead where rounds are quicker than mail; where each push is a
 * step, any time is right. A key that does not go along with the others, and has not moved since it was asked last, is
 * taken as it is, all of its chunks: it is exchanged no more, and would never come to a round ahead.
 */
static uint64_t keeper_plan(struct job *job)
{
	struct keeper *k = job->keeper;
	uint64_t ahead = spec_stepwise(&job->generation->spec) ? 0 : k->ahead;
	uint64_t furthest = job_level_rounds(&job->generation->spec.plan, k->snapshot.rounds);

	for (uint32_t i = 0; i < k->snapshot.chunk_count; i++) {
		uint64_t round = k->snapshot.rounds[i];
		bool idle = round < furthest && round == k->seen[i];

		k->seen[i] = round;
		k->snapshot.chunks[i].before = round + (idle ? 0 : ahead);
	}
	return furthest + ahead;
}

static void keeper_take(struct job *job)
{
	struct keeper *k = job->keeper;
	uint64_t round = keeper_plan(job);

	k->table = (struct checkpoint_table){
		.round = round,
		.meta = k->meta,
		.meta_bytes = k->meta_bytes,
		.chunk_count = k->snapshot.chunk_count,
		.chunks = k->snapshot.chunks,
	};
	k->progress.bytes_per_s = job->control->config->checkpoint_rate;
	atomic_store_explicit(&k->progress.stop, false, memory_order_relaxed);
	k->state = KEEPER_TAKING;
	k->stopped = false;
	k->vain = false;
	keeper_send(job, MAIL_SNAPSHOT);
	if (!keeper_run(k, KEEPER_WRITE))
		atomic_store_explicit(&k->snapshot.missed, true, memory_order_relaxed);
}

void job_snapped(struct job *job, const struct mail *mail)
{
	struct keeper *k = job->keeper;

	if (!k || mail->snapshot != &k->snapshot || --k->cores_left > 0)
		return;
	if (k->state == KEEPER_ASKING) {
		if (job->state == JOB_RUNNING)
			keeper_take(job);
		else
			k->state = KEEPER_IDLE;
		return;
	}
	k->state = KEEPER_WRITING;
}

/* Some targets are without it, or none is any more. */
static void keeper_tell_short(struct job *job)
{
	struct keeper *k = job->keeper;
	uint64_t now_ns = job->control->now_ns;
	unsigned before = k->lacking;

	k->lacking = (unsigned)k->result;
	snprintf(k->lacks, sizeof(k->lacks), "%.*s", (int)sizeof(k->lacks) - 1, k->lacking ? k->error.text : "");
	if (k->lacking && !before)
		k->lacking_ns = now_ns;
	if (before && !k->lacking)
		log_info("job '%s': its checkpoints are in all %u targets again", job->name, k->place.target_count);
	if (!k->lacking || (k->lacking == before && k->told_short_ns && now_ns - k->told_short_ns < CHECKPOINT_TELL_NS))
		return;
	k->told_short_ns = now_ns;
	log_warn("job '%s': %u of %u targets could not be written: %s; parity makes up for it%s, and it is tried again "
		 "with each checkpoint",
		job->name, k->lacking, k->place.target_count, k->error.text,
		k->lacking == k->place.parity ? ", but not for one more" : "");
}

static void keeper_tell_written(const struct job *job)
{
	const struct keeper *k = job->keeper;
	bool small = k->last_bytes < 1u << 20;

	log_info("job '%s': checkpoint before round %" PRIu64 " written: %.1f %s in %.1f ms", job->name, k->last,
		(double)k->last_bytes / (small ? 1u << 10 : 1u << 20), small ? "KiB" : "MiB",
		(double)k->last_took_ns / 1e6);
}

/* The thread is done, and no core refers to the snapshot any more. */
static void keeper_finish(struct job *job)
{
	struct keeper *k = job->keeper;
	bool missed = atomic_load_explicit(&k->snapshot.missed, memory_order_relaxed);

	/* It may be called missed when its last byte was on its way already. */
	missed = missed && !k->vain && (!k->running || k->result < 0);
	keeper_join(k);
	if (missed) { /* rounds were quicker than mail */
		k->ahead = k->ahead ? 2 * k->ahead : 1;
		if (k->ahead > CHECKPOINT_AHEAD_MAX)
			k->ahead = 0;
		k->state = KEEPER_IDLE;
		k->retry_ns = job->control->now_ns;
		keeper_drop_arena(k);
		return;
	}
	if (k->result < 0) {
		keeper_give_up(job, k->error.text);
		return;
	}
	keeper_tell_short(job);
	k->done++;
	k->last = k->table.round;
	k->known = true;
	k->last_ns = (int64_t)k->begun_ns;
	k->last_took_ns = k->task_ns; /* not until a timer looked */
	k->last_bytes = atomic_load_explicit(&k->progress.total, memory_order_relaxed);
	k->retry_ns = 0;
	checkpoint_pace_written(&k->pace, (double)(job->control->now_ns - k->begun_ns) / 1e9);
	keeper_tell_written(job);
	if (k->pruned < 0)
		log_warn("job '%s': old checkpoints stay: %s", job->name, k->prune_error.text);
	k->state = KEEPER_IDLE;
	keeper_drop_arena(k);
}

static void keeper_stop(struct job *job)
{
	const struct mail mail = {.kind = MAIL_SNAPSHOT};
	struct keeper *k = job->keeper;

	k->stopped = true;
	atomic_store_explicit(&k->snapshot.missed, true, memory_order_relaxed);
	generation_post(job->generation, job->control->box, &mail);
}

static void keeper_watch_taking(struct job *job)
{
	struct keeper *k = job->keeper;

	if (k->state != KEEPER_TAKING || k->stopped)
		return;
	/* The disk has refused it: nobody waits for the rest of the copy before that is said. */
	k->vain = k->running && keeper_is_over(k) && k->result < 0 &&
		  !atomic_load_explicit(&k->snapshot.missed, memory_order_relaxed);
	if (k->vain) {
		keeper_stop(job);
		return;
	}
	/* Some chunk does not come to its round: its key is exchanged seldom, or all stand still. */
	if (job->control->now_ns - k->begun_ns <= CHECKPOINT_TAKING_NS)
		return;
	log_info("job '%s': no checkpoint before round %" PRIu64 ": a key was not exchanged for %.0f s; the next one "
		 "takes it as it is",
		job->name, k->table.round, (double)CHECKPOINT_TAKING_NS / 1e9);
	keeper_stop(job);
}

/* ---- how often ---- */

static uint64_t keeper_rounds(const struct job *job)
{
	return generation_sums(job->generation).rounds / job->generation->spec.plan.chunk_count;
}

/*
 * Control looks at its timers ten times a second: many quick rounds are a sample, and a slow one is many looks. What is
 * taken and written between two looks counts, too: it is over soon, and not free.
 */
static void keeper_sample(struct job *job)
{
	struct keeper *k = job->keeper;
	uint64_t now_ns = job->control->now_ns;
	double rounds = (double)generation_sums(job->generation).rounds / job->generation->spec.plan.chunk_count;

	k->touched = k->touched || k->state != KEEPER_IDLE;
	if (k->sampled_ns && rounds - k->sampled < 1)
		return;
	if (k->sampled_ns)
		checkpoint_pace_round(
			&k->pace, rounds - k->sampled, (double)(now_ns - k->sampled_ns) / 1e9, k->touched);
	k->sampled = rounds;
	k->sampled_ns = now_ns;
	k->touched = false;
}

/* 0: when enough was measured without one. */
static uint64_t keeper_every(const struct job *job)
{
	uint64_t every = job->control->config->checkpoint_every;

	return every ? every : job->keeper->pace.interval;
}

static bool keeper_is_due(const struct job *job, uint64_t rounds)
{
	const struct keeper *k = job->keeper;
	uint64_t every = job->control->config->checkpoint_every;

	if (k->state != KEEPER_IDLE || job->control->now_ns < k->retry_ns || job->change || keeper_waits(k, job))
		return false;
	if (k->retry_ns && rounds > 0)
		return true; /* the last one failed */
	return every ? rounds >= k->rounds + every : checkpoint_pace_due(&k->pace, rounds - k->rounds);
}

/* A mean of the last few, as one interval in which the workers paused says little. */
static void keeper_measure_apart(struct keeper *k, uint64_t rounds)
{
	double apart = (double)(rounds - k->rounds);

	if (k->done == 0 || k->retry_ns)
		k->apart = 0;
	else
		k->apart = k->apart > 0 ? k->apart + (apart - k->apart) / KEEPER_APART_OVER : apart;
}

void job_keep_tick(struct job *job)
{
	struct keeper *k = job->keeper;
	uint64_t rounds;

	if (!k || job->state != JOB_RUNNING)
		return;
	rounds = keeper_rounds(job);
	keeper_sample(job);
	keeper_watch_taking(job);
	if (k->state == KEEPER_WRITING && (!k->running || keeper_is_over(k)))
		keeper_finish(job);
	if (!keeper_is_due(job, rounds))
		return;
	keeper_measure_apart(k, rounds);
	k->rounds = rounds;
	keeper_ask(job);
}

/* ---- what it begins with ---- */

/* As soon as no other keeper is at its files. */
static void keeper_read(struct job *job)
{
	struct keeper *k = job->keeper;

	if (keeper_waits(k, job)) {
		if (job->control->now_ns >= k->tell_ns)
			log_warn("job '%s' waits for the disk, where the checkpoint of the one before is still being "
				 "written; then it begins",
				job->name);
		if (job->control->now_ns >= k->tell_ns)
			k->tell_ns = job->control->now_ns + CHECKPOINT_TELL_NS;
		return;
	}
	k->begun_ns = job->control->now_ns;
	if (!keeper_run(k, KEEPER_READ))
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1,
			"the box has no thread to look for its checkpoints; raise `ulimit -u` there");
}

bool job_restore(struct job *job)
{
	bool reads = job->started <= 1 && !job->takes; /* a new key table begins with new weights; a mirror has some */
	struct keeper *k;

	job_keep_forget(job);
	if (keeper_create(job, &job->keeper) < 0) {
		if (reads)
			job->control->again = true; /* job_restored() refuses it */
		else
			log_warn("job '%s' goes on without checkpoints: there is no memory to keep them", job->name);
		return reads;
	}
	k = job->keeper;
	if (!k || !reads)
		return false;
	k->state = KEEPER_READING;
	k->into = job->generation;
	k->begun_ns = job->control->now_ns;
	k->tell_ns = k->begun_ns + CHECKPOINT_WAIT_NS;
	job->control->again = true; /* job_restored() begins */
	return true;
}

static int keeper_set_rounds(struct job *job, const uint64_t **from)
{
	struct keeper *k = job->keeper;

	k->from = calloc(k->table.chunk_count, sizeof(*k->from));
	for (uint32_t i = 0; k->from && i < k->table.chunk_count; i++)
		k->from[i] = k->table.chunks[i].before - k->hasty;
	keeper_drop_table(k);
	if (!k->from) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1, "no memory in the box to go on from its checkpoint");
		return -ENOMEM;
	}
	*from = k->from;
	return 0;
}

static void job_refuse_anew(struct job *job)
{
	const struct keeper *k = job->keeper;

	if (k->unfit)
		job_fail(job, PHUB__ERROR_CODE__ERROR_MISMATCH, -1,
			"it cannot go on from its checkpoint before round %" PRIu64
			", and is not begun anew over it: %s. Start it as it was, or under another name; or remove its "
			"checkpoints, at the box: phub checkpoint rm --job '%s' %s",
			k->trying, k->error.text, job->name,
			k->place.target_count > 1 ? "DIR..." : k->place.targets[0]);
	else if (k->absent.count > 0)
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1,
			"none of its checkpoints can be read, and it is not begun anew over them: %s. See that these "
			"are there and mounted and begin again; to begin anew, take "
			"them out of checkpoint_targets, or make them as empty directories",
			k->error.text);
	else if (k->bare)
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1,
			"its checkpoint before round %" PRIu64
			" is not whole, and it is not begun anew over what is there: %s. Mount what is missing and "
			"begin again; or give it up, at the box: phub checkpoint rm --job '%s' DIR...",
			k->trying, k->error.text, job->name);
	else
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1,
			"none of its checkpoints can be read, the one before round %" PRIu64
			" last: %s. Repair one (phub checkpoint restore), or move them away to begin anew",
			k->trying, k->error.text);
}

int job_restored(struct job *job, const uint64_t **from)
{
	struct keeper *k = job->keeper;
	int64_t age_ms;

	*from = NULL;
	if (!k) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1,
			"the box has no memory to look for its checkpoints, and does not begin it anew over them; "
			"start "
			"it again when there is some");
		return -ENOMEM;
	}
	if (!k->running) {
		keeper_read(job);
		return -EAGAIN;
	}
	if (!keeper_is_over(k))
		return -EAGAIN;
	keeper_join(k);
	k->state = KEEPER_IDLE;
	k->into = NULL;
	if (k->result == KEEPER_ANEW)
		return 0;
	if (k->result < 0) { /* not anew, over what is there */
		job_refuse_anew(job);
		return -EBADMSG;
	}
	k->restored = 1;
	job->rounds = k->table.round > 0 ? k->table.round - 1 : 0; /* they count from 1 */
	k->known = true;
	k->last = k->table.round;
	k->last_bytes = k->entries[k->entry - 1].bytes;
	age_ms = (int64_t)checkpoint_disk(&k->place)->ops->now_ms(checkpoint_disk(&k->place)) -
		 (int64_t)k->table.written_ms;
	k->last_ns = (int64_t)job->control->now_ns - age_ms * (int64_t)NS_PER_MS;
	log_info("job '%s' goes on from its checkpoint before round %" PRIu64 " (%.2f s%s)", job->name, k->last,
		(double)(job->control->now_ns - k->begun_ns) / 1e9, k->repaired ? "; parity made up for losses" : "");
	if (k->changes.count > 0)
		log_info("job '%s' goes on with other options than its checkpoint has: %s%s", job->name,
			k->changes.text, k->changes.count > TABLE_CHANGES_TOLD ? ", and more" : "");
	return keeper_set_rounds(job, from);
}

/* ---- what the operator sees ---- */

static void keeper_describe_pace(const struct job *job, Phub__CheckpointInfo *out)
{
	const struct keeper *k = job->keeper;
	uint64_t rounds = job->state == JOB_RUNNING ? keeper_rounds(job) : 0, every = keeper_every(job);

	out->fixed = job->control->config->checkpoint_every > 0;
	/* What is wanted, or where quick rounds do not let it come to that (timers, the disk, time to measure) what is.
	 */
	out->wanted = every;
	if (every > 0 && k->apart > (double)every)
		every = (uint64_t)(k->apart + 0.5);
	out->interval = every;
	out->allowed = k->pace.overhead;
	if (rounds < k->rounds + every)
		out->due = k->rounds + every - rounds;
	out->measured = checkpoint_pace_cost(&k->pace, every, &out->overhead);
}

bool job_keep_describe(const struct job *job, Phub__CheckpointInfo *out)
{
	static const char *const states[] = {"idle", "taking", "taking", "writing", "reading"};
	const struct keeper *k = job->keeper;
	int64_t now_ns = (int64_t)job->control->now_ns;

	phub__checkpoint_info__init(out);
	if (!k)
		return false;
	out->doing = (char *)(uintptr_t)states[k->state];
	out->done = k->done;
	out->known = k->known;
	if (k->known) {
		out->round = k->last;
		out->age_ms = now_ns > k->last_ns ? (uint64_t)(now_ns - k->last_ns) / NS_PER_MS : 0;
		out->bytes = k->last_bytes;
		out->took_ms = (k->last_took_ns + NS_PER_MS - 1) / NS_PER_MS;
	}
	keeper_describe_pace(job, out);
	out->lacking = k->lacking;
	out->targets = k->place.target_count;
	out->parity = k->place.parity;
	out->lacking_ms = k->lacking ? (job->control->now_ns - k->lacking_ns) / NS_PER_MS : 0;
	out->lacking_why = (char *)(uintptr_t)k->lacks;
	if (k->failure[0]) {
		out->error = (char *)(uintptr_t)k->failure;
		out->error_ms = (job->control->now_ns - k->failed_ns) / NS_PER_MS;
	}
	return true;
}

uint64_t job_kept(const struct job *job, uint64_t *round)
{
	const struct keeper *k = job->keeper;

	*round = k ? k->last : 0;
	return k ? k->done + k->restored : 0;
}

void job_keep_finished(struct job *job)
{
	struct keeper *k = job->keeper;

	if (k && (job->kept || k->done + k->restored > 0 || k->running)) /* what is being written may be there soon */
		k->mark = true;
}
