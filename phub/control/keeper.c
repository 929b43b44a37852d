/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/control/keeper.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/control/box.h"
#include "phub/control/checkpoint_meta.h"

#define KEEPER_ALIGN         4096u
#define KEEPER_SOON_NS       (100 * NS_PER_MS) /* so long a job that begins is looked after more often than timers */
#define KEEPER_TELL_NS       (10 * NS_PER_S)   /* a disk is slow... */
#define KEEPER_TELL_AGAIN_NS (60 * NS_PER_S)   /* ...and still is */
#define KEEPER_END_NS        (10 * NS_PER_S)   /* so long a box that goes down waits for its disks */
#define KEEPER_LOOK_NS       NS_PER_MS

/* ---- set up ---- */

static enum checkpoint_plant keeper_plant(unsigned plant)
{
	return plant == SHARD_PLANT_UNSYNCED    ? CHECKPOINT_PLANT_UNSYNCED
	       : plant == SHARD_PLANT_UNCHECKED ? CHECKPOINT_PLANT_UNCHECKED
						: CHECKPOINT_PLANT_NONE;
}

/* A job has checkpoints where the box has a place for them, and weights to write. */
int keeper_create(struct job *job, struct keeper **out)
{
	const struct box_env *env = &job->control->box->env;
	const struct config *config = job->control->config;
	struct keeper *k;

	*out = NULL;
	if (!config->checkpoint_targets[0] || job->generation->spec.optimizer == OPTIMIZER_NONE)
		return 0;
	k = calloc(1, sizeof(*k));
	if (!k)
		return -ENOMEM;
	k->control = job->control;
	memcpy(k->job, job->name, sizeof(k->job));
	k->place.parity = (unsigned)config->checkpoint_parity;
	k->place.job = k->job;
	k->keep = (unsigned)config->checkpoint_keep;
	k->place.disk = env->disk;
	k->place.plant = keeper_plant(env->plant);
	k->hasty = env->plant == SHARD_PLANT_HASTY;
	k->by_hand = env->by_hand;
	k->arena.fd = -1;
	checkpoint_pace_init(&k->pace, (double)config->checkpoint_overhead / 1000.0);
	k->targets = strdup(config->checkpoint_targets);
	/* Which targets there can be was seen when the options were read. */
	if (!k->targets || checkpoint_list_targets(&k->place, k->targets) < 0 ||
		checkpoint_meta_pack(job->generation->table, NULL, &k->meta, &k->meta_bytes, NULL) < 0) {
		free(k->targets);
		free(k);
		return -ENOMEM;
	}
	*out = k;
	return 0;
}

void keeper_drop_arena(struct keeper *k)
{
	if (k->arena.base)
		mem_region_destroy(&k->arena);
	k->arena = (struct mem_region){.fd = -1};
	k->control->memory_used -= k->counted;
	k->counted = 0;
	free(k->snapshot.chunks);
	free(k->snapshot.rounds);
	k->snapshot = (struct snapshot){0};
}

int keeper_take_arena(struct keeper *k, const struct generation *g)
{
	const struct spec *spec = &g->spec;
	struct control *c = k->control;
	struct snapshot *s = &k->snapshot;
	struct err e;

	*s = (struct snapshot){.job = spec->id, .generation = spec->generation, .chunk_count = spec->plan.chunk_count};
	s->chunks = calloc(s->chunk_count, sizeof(*s->chunks));
	s->rounds = calloc(s->chunk_count, sizeof(*s->rounds));
	if (k->seen_count != s->chunk_count) {
		free(k->seen);
		k->seen = calloc(s->chunk_count, sizeof(*k->seen));
		k->seen_count = k->seen ? s->chunk_count : 0;
	}
	if (!s->chunks || !s->rounds || !k->seen)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->chunk_count; i++) {
		const struct chunk_span *span = &spec->plan.chunks[i];
		uint32_t elements = span->bytes / chunking_dtype_bytes(span->dtype);

		s->chunks[i].offset = s->bytes;
		s->chunks[i].bytes = snapshot_chunk_bytes(spec, elements);
		s->bytes += (s->chunks[i].bytes + KEEPER_ALIGN - 1) / KEEPER_ALIGN * KEEPER_ALIGN;
	}
	if (s->bytes > c->config->memory_max - c->memory_used ||
		mem_region_create(s->bytes, 0, MEM_NODE_ANY, &k->arena, &e) < 0)
		return -ENOMEM;
	k->counted = s->bytes;
	c->memory_used += k->counted;
	s->base = k->arena.base;
	atomic_store_explicit(&s->left, s->chunk_count, memory_order_relaxed);
	return 0;
}

void keeper_drop_table(struct keeper *k)
{
	if (k->table_read)
		checkpoint_table_fini(&k->table);
	k->table_read = false;
}

/* What it reads into is its own by now, or nobody's. */
static void keeper_destroy(struct keeper *k)
{
	keeper_drop_table(k);
	keeper_drop_arena(k);
	generation_destroy(k->into, k->control->box);
	free(k->meta);
	free(k->seen);
	free(k->from);
	free(k->entries);
	free(k->targets);
	free(k);
}

/* ---- reading: the thread ---- */

/* Each chunk goes to where its core will have it. The shards are still ours. */
static int keeper_load(void *arg, uint32_t index, const void *bytes, uint64_t count)
{
	struct keeper *k = arg;
	struct generation *g = k->into;
	struct shard *shard = g->store.shards[g->core_of_chunk[index]];
	struct chunk *chunk = chunk_find(shard, index);

	if (!chunk || count != snapshot_chunk_bytes(&g->spec, chunk->elements))
		return -EBADMSG;
	snapshot_restore(chunk, shard, bytes, k->table.chunks[index].before - k->hasty, k->table.chunks[index].steps);
	return 0;
}

/*
 * Can the job go on from the checkpoint whose table is there? 0; -EBADMSG: it is of another; or what is there says
 * nothing that can be read.
 */
static int keeper_fits(struct keeper *k)
{
	const struct generation *g = k->into;
	struct table *t;
	int rc = checkpoint_meta_unpack(k->table.meta, k->table.meta_bytes, &t, &k->error);

	if (rc < 0)
		return rc;
	rc = table_continues(t, g->table, &k->changes, &k->error);
	if (rc == 0 && k->table.chunk_count != g->spec.plan.chunk_count)
		rc = err_set(&k->error, -EBADMSG, "the checkpoint has %u chunks, this job %u", k->table.chunk_count,
			g->spec.plan.chunk_count);
	k->unfit = rc < 0;
	table_destroy(t);
	return rc;
}

/* What there is. -EAGAIN: some of it may be gone on from. */
static int keeper_look(struct keeper *k)
{
	int rc = checkpoint_list_there(&k->place, &k->entries, &k->entry_count, &k->absent, &k->error);
	uint64_t marked_ms;

	if (rc < 0)
		return rc == -ENOMEM ? rc : KEEPER_ANEW; /* a name that no directory has */
	/* Those that cannot be read say nothing of when they were written: each may be one later than the others. */
	k->progress.newest_ms = k->entry_count > 0 ? k->entries[0].written_ms + k->entry_count : 0;
	if (checkpoint_is_finished(&k->place, k->entries, k->entry_count, &marked_ms)) {
		log_info(
			"job '%s' begins anew: the one before ended in good order (its checkpoints are there)", k->job);
		rc = KEEPER_ANEW;
	} else {
		rc = -EAGAIN;
	}
	if (k->progress.newest_ms < marked_ms)
		k->progress.newest_ms = marked_ms;
	return rc;
}

static void keeper_tell_unread(struct keeper *k, int rc)
{
	k->failed = rc;
	log_warn("job '%s': its checkpoint before round %" PRIu64 " cannot be read: %s", k->job, k->trying,
		k->error.text);
}

/* Targets are away: what they may hold, so that nothing is begun over it. */
static int keeper_miss(struct keeper *k)
{
	return err_set(&k->error, -EIO, "%u of %u checkpoint_targets cannot be looked into (%s)", k->absent.count,
		k->place.target_count, k->absent.why.text);
}

/* Whose rest may be on disks that are not there is not begun anew over. */
static void keeper_tell_torn(struct keeper *k, const struct checkpoint_entry *entry)
{
	unsigned missing = k->absent.count + k->absent.bare;

	log_warn("job '%s': its checkpoint before round %" PRIu64 " %s: %u of its %u files are good", k->job,
		entry->round, entry->unread ? "cannot be read" : "is not whole", entry->pieces,
		entry->wanted ? entry->wanted : 1);
	if (entry->unread)
		k->failed = err_set(&k->error, -EIO, "its files cannot be read");
	else if (missing == 0 || entry->pieces + missing < entry->wanted)
		return;
	else if (k->absent.count > 0)
		k->failed = keeper_miss(k);
	else
		k->bare = k->failed = err_set(&k->error, -EIO,
			"%u of %u checkpoint_targets have no directory of this job, %s first, as if no disk were "
			"mounted there",
			k->absent.bare, k->place.target_count, k->absent.first_bare);
	k->trying = entry->round;
}

/* Nothing that is there is of use. Of a checkpoint that was
 * written to all targets some files are in those that are there, unless more are away than parity makes up for. */
static int keeper_find_none(struct keeper *k)
{
	if (k->failed < 0)
		return k->failed;
	if (k->absent.count > k->place.parity)
		return keeper_miss(k);
	if (k->absent.count > 0)
		log_warn("job '%s' begins anew: no checkpoint is in the targets that are there; %u of %u cannot be "
			 "looked into (%s)",
			k->job, k->absent.count, k->place.target_count, k->absent.why.text);
	else if (k->entry_count > 0) /* and each was told of */
		log_warn("job '%s' begins anew: no checkpoint of it is whole, of %u", k->job, k->entry_count);
	else
		log_info("job '%s' begins anew: there is no checkpoint to go on from in %s%s", k->job,
			k->place.targets[0], k->place.target_count > 1 ? " and the other targets" : "");
	return KEEPER_ANEW;
}

/* Begins with the newest that was not tried yet, or finds that it is of no use: -EAGAIN. Else there is none. */
static int keeper_read_next(struct keeper *k)
{
	const struct checkpoint_entry *entry = &k->entries[k->entry];
	int rc;

	if (k->entry == k->entry_count)
		return keeper_find_none(k);
	k->entry++;
	if (entry->complete)
		k->trying = entry->round;
	if (!entry->complete) {
		keeper_tell_torn(k, entry);
		return -EAGAIN;
	}
	rc = checkpoint_read_entry(&k->place, entry, &k->table, &k->error);
	k->table_read = rc == 0;
	if (rc == 0)
		rc = keeper_fits(k);
	if (k->unfit) /* an older one may fit; but to go on from that would be to take this one for void */
		return rc;
	if (rc == 0)
		rc = checkpoint_reading_begin(&k->place, &k->table, &k->reading, &k->error);
	if (rc < 0) {
		keeper_tell_unread(k, rc);
		keeper_drop_table(k);
	}
	return -EAGAIN;
}

/* -EAGAIN; 0: `into` has it; KEEPER_ANEW; or an error, and some might be there. */
static int keeper_read_step(struct keeper *k)
{
	int rc;

	if (atomic_load_explicit(&k->progress.stop, memory_order_relaxed))
		return err_set(&k->error, -ECANCELED, "the job ended");
	if (!k->entries)
		return keeper_look(k);
	if (!k->reading)
		return keeper_read_next(k);
	rc = checkpoint_reading_step(k->reading, keeper_load, k, &k->error);
	if (rc == -EAGAIN)
		return rc;
	checkpoint_reading_end(k->reading, &k->repaired);
	k->reading = NULL;
	if (rc == 0)
		return 0;
	keeper_tell_unread(k, rc);
	keeper_drop_table(k);
	return -EAGAIN;
}

/* ---- the thread ---- */

/* Marks and old checkpoints go as soon as the new one is there. */
static void keeper_tidy(struct keeper *k)
{
	if (k->result < 0)
		return;
	checkpoint_unmark(&k->place);
	k->pruned = checkpoint_prune(&k->place, k->keep, &k->prune_error);
}

/* By hand, a checkpoint is written in steps. */
static int keeper_write_step(struct keeper *k, uint64_t now_ns)
{
	int rc;

	if (k->writing)
		return checkpoint_write_step(k->writing, now_ns, &k->due_ns, &k->error);
	rc = checkpoint_write_begin(&k->place, &k->table, &k->snapshot, &k->progress, now_ns, &k->writing, &k->error);
	return rc < 0 ? rc : -EAGAIN;
}

static int keeper_step(struct keeper *k, uint64_t now_ns)
{
	if (k->task == KEEPER_WRITE)
		return keeper_write_step(k, now_ns);
	if (k->task == KEEPER_READ)
		return keeper_read_step(k);
	checkpoint_mark(&k->place, k->progress.newest_ms);
	return 0;
}

static void keeper_end(struct keeper *k, int result, uint64_t now_ns)
{
	k->result = result;
	k->task_ns = now_ns - k->task_ns;
	if (k->task == KEEPER_WRITE)
		keeper_tidy(k);
	atomic_store_explicit(&k->over, true, memory_order_release);
}

static void *keeper_thread(void *arg)
{
	struct keeper *k = arg;
	int rc;

	k->task_ns = clock_now_ns();
	if (k->task == KEEPER_WRITE)
		rc = checkpoint_write(&k->place, &k->table, &k->snapshot, &k->progress, &k->error);
	else
		while ((rc = keeper_step(k, 0)) == -EAGAIN)
			;
	keeper_end(k, rc, clock_now_ns());
	return NULL;
}

bool keeper_run(struct keeper *k, enum keeper_task task)
{
	k->task = task;
	k->error = (struct err){0};
	k->due_ns = k->control->now_ns;
	k->task_ns = k->control->now_ns;
	atomic_store_explicit(&k->over, false, memory_order_relaxed);
	k->running = k->by_hand || pthread_create(&k->thread, NULL, keeper_thread, k) == 0;
	return k->running;
}

bool keeper_is_over(const struct keeper *k)
{
	return atomic_load_explicit(&k->over, memory_order_acquire);
}

void keeper_join(struct keeper *k)
{
	if (k->running && !k->by_hand)
		pthread_join(k->thread, NULL);
	checkpoint_write_end(k->writing);
	checkpoint_reading_end(k->reading, NULL);
	k->writing = NULL;
	k->reading = NULL;
	k->running = false;
}

/* ---- control ---- */

bool keeper_waits(const struct keeper *k, const struct job *job)
{
	for (const struct keeper *other = k->control->keepers; other; other = other->next)
		if (strcmp(other->job, k->job) == 0)
			return true;
	/* One that ends, and whose shards are on their way back, begins nothing but the mark. */
	for (const struct job *other = k->control->jobs; other; other = other->next)
		if (other != job && other->keeper && strcmp(other->name, job->name) == 0 &&
			(other->keeper->mark || (other->keeper->running && !keeper_is_over(other->keeper))))
			return true;
	return false;
}

/* Its job is over, and what it wrote last did not come to the disk: nobody else says so any more. */
static void keeper_tell_left(const struct keeper *k)
{
	if (k->running && k->task == KEEPER_WRITE && k->result < 0 && k->result != -ECANCELED)
		log_warn("job '%s' has ended, and no checkpoint could be written of where it was: %s", k->job,
			k->error.text);
}

void job_keep_forget(struct job *job)
{
	struct keeper *k = job->keeper;

	if (!k)
		return;
	job->keeper = NULL;
	job->kept = job->kept || k->done + k->restored > 0 || k->running;
	atomic_store_explicit(&k->progress.stop, true, memory_order_relaxed);
	atomic_store_explicit(&k->snapshot.missed, true, memory_order_relaxed);
	if (k->into && k->running && !keeper_is_over(k))
		job->generation = NULL; /* it is being filled: now the keeper's */
	else
		k->into = NULL;
	if (!k->mark && (!k->running || keeper_is_over(k))) {
		keeper_tell_left(k);
		keeper_join(k);
		keeper_destroy(k);
		return;
	}
	k->tell_ns = k->control->now_ns + KEEPER_TELL_NS;
	k->next = k->control->keepers;
	k->control->keepers = k;
}

/* Takes those away that are done. */
static void keeper_reap(struct control *c)
{
	struct keeper **at = &c->keepers, *k;
	bool room = false;

	while ((k = *at)) {
		if (k->running && !keeper_is_over(k)) {
			if (c->now_ns >= k->tell_ns) {
				log_warn(
					"job '%s' has ended, and a disk is still at its last checkpoint; until that is "
					"over its memory is taken, and no job of that name begins",
					k->job);
				k->tell_ns = c->now_ns + KEEPER_TELL_AGAIN_NS;
			}
			at = &k->next;
			continue;
		}
		keeper_tell_left(k);
		keeper_join(k);
		if (k->mark) {
			k->mark = false;
			if (keeper_run(k, KEEPER_MARK))
				continue;
			log_warn("job '%s' ended in good order, and there is no thread to mark that in its checkpoints",
				k->job);
		}
		*at = k->next;
		keeper_destroy(k);
		room = true;
	}
	if (room)
		job_start_waiting(c);
}

/* By hand: a step, if it is time for one. Returns when it is time again. */
static uint64_t keeper_turn(struct keeper *k, uint64_t now_ns)
{
	int rc;

	if (!k->by_hand || !k->running || keeper_is_over(k))
		return UINT64_MAX;
	if (k->due_ns > now_ns)
		return k->due_ns;
	rc = keeper_step(k, now_ns);
	if (rc == -EAGAIN)
		return k->due_ns;
	keeper_end(k, rc, now_ns);
	return now_ns;
}

uint64_t job_keep_step(struct control *c)
{
	uint64_t due_ns = UINT64_MAX, due;

	if (c->keepers)
		keeper_reap(c);
	for (struct job *job = c->jobs; job; job = job->next) {
		if (job->state == JOB_LOADING)
			job_load_tick(job);
		if (job->state == JOB_LOADING && c->now_ns - job->keeper->begun_ns < KEEPER_SOON_NS)
			c->soon = true;
		due = job->keeper ? keeper_turn(job->keeper, c->now_ns) : UINT64_MAX;
		due_ns = due < due_ns ? due : due_ns;
	}
	for (struct keeper *k = c->keepers; k; k = k->next) {
		due = keeper_turn(k, c->now_ns);
		due_ns = due < due_ns ? due : due_ns;
	}
	return due_ns;
}

bool job_keep_holds(const struct control *c)
{
	return c->keepers != NULL;
}

void job_keep_fini(struct control *c)
{
	static const struct timespec pause = {.tv_nsec = KEEPER_LOOK_NS};
	uint64_t until_ns = clock_now_ns() + KEEPER_END_NS;

	keeper_reap(c);
	while (c->keepers && clock_now_ns() < until_ns) {
		for (struct keeper *k = c->keepers; k; k = k->next)
			k->due_ns = c->now_ns;
		(void)job_keep_step(c);
		if (c->keepers && !c->keepers->by_hand)
			nanosleep(&pause, NULL);
	}
	/* Their threads do not end: what they use stays, and goes with the process. */
	for (struct keeper *k = c->keepers; k; k = k->next)
		log_warn("job '%s': a disk did not answer for %u s: its last checkpoint%s", k->job,
			(unsigned)(KEEPER_END_NS / NS_PER_S),
			k->task == KEEPER_MARK || k->mark ? " is not marked as the end of a job in good order"
							  : " is not whole");
	c->keepers = NULL;
}
