/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a job's checkpoints are taken, and what a job begins with that had some. The cores copy (phub/snapshot.h), a
 * thread writes (checkpoint.h), this decides: one checkpoint at a time, so often that rounds are slower by no more than
 * the box allows. In a box that is turned by hand control writes and reads itself, a little in each of its steps.
 *
 *      idle -> asking     the cores say which round each chunk collects
 *           -> taking     they copy; the thread writes what is copied, in the order of the chunks
 *           -> writing    all is copied; the thread writes what is left
 */
#include "phub/control/job.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "phub/base/mem.h"
#include "phub/base/stats.h"
#include "phub/control/box.h"
#include "phub/control/checkpoint.h"
#include "phub/control/checkpoint_meta.h"
#include "phub/control/session.h"

#define CHECKPOINT_ALIGN     4096u
#define CHECKPOINT_AHEAD_MAX 4096u /* rounds that a snapshot is planned ahead at most */
#define CHECKPOINT_TAKING_NS (60 * NS_PER_S)
#define CHECKPOINT_RETRY_NS  (10 * NS_PER_S) /* after one that failed */
#define CHECKPOINT_TELL_NS   (60 * NS_PER_S) /* failures are logged this often */

enum keeper_state { KEEPER_IDLE, KEEPER_ASKING, KEEPER_TAKING, KEEPER_WRITING, KEEPER_READING };

/* A job's checkpoints: what is under way, and what was learnt. */
struct keeper {
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
	uint64_t ahead;      /* rounds: more after each that was missed */
	uint64_t rounds;     /* of the job, when the last one was taken */
	double sampled;      /* rounds, at the last sample */
	uint64_t sampled_ns;
	bool touched; /* a checkpoint was under way since */
	uint64_t begun_ns, retry_ns, told_ns;
	uint64_t done;     /* checkpoints that are on disk... */
	unsigned restored; /* ...and that it goes on from */
	uint64_t last;     /* the round of the newest, */
	bool known;        /* if there is one, */
	int64_t last_ns;   /* when it was taken: may lie before the box began, */
	uint64_t last_bytes, last_took_ns;
	uint64_t failed_ns; /* when one failed last, */
	char failure[200];  /* and why */
	/* The thread, or, by hand, what is done in steps. */
	pthread_t thread;
	bool running, by_hand;
	struct checkpoint_write *writing;
	struct checkpoint_reading *reading;
	uint64_t due_ns; /* of the next step */
	_Atomic bool over;
	int result, pruned;
	struct err error, prune_error;
	struct checkpoint_progress progress;
	struct checkpoint_table table;
	struct generation *into;          /* KEEPER_READING */
	struct checkpoint_entry *entries; /* [entry_count] that are there, the newest first */
	unsigned entry_count, entry;      /* entry: the next to try */
	uint64_t *from;                   /* [chunk_count] what it read: the round that each chunk begins with */
	uint64_t repaired;
	bool hasty; /* for tests: it goes on a round too early */
};

/* ---- set up ---- */

/* Comma-separated, as the configuration has it. */
static int keeper_list_targets(struct keeper *k, const char *targets)
{
	char *rest = NULL;

	k->targets = strdup(targets);
	if (!k->targets)
		return -ENOMEM;
	for (char *t = strtok_r(k->targets, ",", &rest); t; t = strtok_r(NULL, ",", &rest)) {
		while (*t == ' ')
			t++;
		if (k->place.target_count == CHECKPOINT_TARGETS_MAX)
			return -E2BIG;
		k->place.targets[k->place.target_count++] = t;
	}
	return 0;
}

static enum checkpoint_plant keeper_plant(unsigned plant)
{
	return plant == SHARD_PLANT_UNSYNCED    ? CHECKPOINT_PLANT_UNSYNCED
	       : plant == SHARD_PLANT_UNCHECKED ? CHECKPOINT_PLANT_UNCHECKED
						: CHECKPOINT_PLANT_NONE;
}

/* A job has checkpoints where the box has a place for them, and weights to write. */
static struct keeper *keeper_create(struct job *job)
{
	const struct box_env *env = &job->control->box->env;
	const struct config *config = job->control->config;
	struct keeper *k;
	struct err e;

	if (!config->checkpoint_targets[0] || job->generation->spec.optimizer == OPTIMIZER_NONE)
		return NULL;
	k = calloc(1, sizeof(*k));
	if (!k)
		return NULL;
	k->place.parity = (unsigned)config->checkpoint_parity;
	k->place.job = job->name;
	k->keep = (unsigned)config->checkpoint_keep;
	k->place.disk = env->disk;
	k->place.plant = keeper_plant(env->plant);
	k->hasty = env->plant == SHARD_PLANT_HASTY;
	k->by_hand = env->by_hand;
	k->arena.fd = -1;
	checkpoint_pace_init(&k->pace, (double)config->checkpoint_overhead / 1000.0);
	if (keeper_list_targets(k, config->checkpoint_targets) < 0 ||
		checkpoint_meta_pack(job->generation->table, NULL, &k->meta, &k->meta_bytes, &e) < 0) {
		free(k->targets);
		free(k);
		return NULL;
	}
	return k;
}

static void keeper_drop_arena(struct job *job)
{
	struct keeper *k = job->keeper;

	if (k->arena.base)
		mem_region_destroy(&k->arena);
	k->arena = (struct mem_region){.fd = -1};
	job->control->memory_used -= k->counted;
	k->counted = 0;
	free(k->snapshot.chunks);
	free(k->snapshot.rounds);
	k->snapshot = (struct snapshot){0};
}

/* A place for each chunk. 0 or -ENOMEM. */
static int keeper_take_arena(struct job *job)
{
	struct keeper *k = job->keeper;
	const struct spec *spec = &job->generation->spec;
	struct control *c = job->control;
	struct snapshot *s = &k->snapshot;
	struct err e;

	*s = (struct snapshot){.job = job->id, .generation = spec->generation, .chunk_count = spec->plan.chunk_count};
	s->chunks = calloc(s->chunk_count, sizeof(*s->chunks));
	s->rounds = calloc(s->chunk_count, sizeof(*s->rounds));
	if (!s->chunks || !s->rounds)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->chunk_count; i++) {
		const struct chunk_span *span = &spec->plan.chunks[i];
		uint32_t elements = span->bytes / chunking_dtype_bytes(span->dtype);

		s->chunks[i].offset = s->bytes;
		s->chunks[i].bytes = snapshot_chunk_bytes(spec, elements);
		s->bytes += (s->chunks[i].bytes + CHECKPOINT_ALIGN - 1) / CHECKPOINT_ALIGN * CHECKPOINT_ALIGN;
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
	keeper_drop_arena(job);
}

/* ---- the thread ---- */

/* What a disk does slowly is no work for control: marks and old checkpoints go as soon as the new one is there. */
static void keeper_tidy(struct keeper *k)
{
	if (k->result < 0)
		return;
	checkpoint_set_finished(&k->place, false);
	k->pruned = checkpoint_prune(&k->place, k->keep, &k->prune_error);
}

static void *keeper_write(void *arg)
{
	struct keeper *k = arg;

	k->result = checkpoint_write(&k->place, &k->table, &k->snapshot, &k->progress, &k->error);
	keeper_tidy(k);
	atomic_store_explicit(&k->over, true, memory_order_release);
	return NULL;
}

/* By hand: what a thread would begin with. */
static void keeper_begin(struct keeper *k, bool writes, uint64_t now_ns)
{
	k->running = true;
	k->due_ns = now_ns;
	if (writes)
		k->result = checkpoint_write_begin(
			&k->place, &k->table, &k->snapshot, &k->progress, now_ns, &k->writing, &k->error);
	else
		k->result = checkpoint_reading_begin(&k->place, &k->table, &k->reading, &k->error);
	atomic_store_explicit(&k->over, k->result < 0, memory_order_relaxed);
}

static bool keeper_run(struct job *job, void *(*body)(void *))
{
	struct keeper *k = job->keeper;

	atomic_store_explicit(&k->over, false, memory_order_relaxed);
	k->error = (struct err){0};
	if (k->by_hand)
		keeper_begin(k, body == keeper_write, job->control->now_ns);
	else
		k->running = pthread_create(&k->thread, NULL, body, k) == 0;
	return k->running;
}

static void keeper_join(struct keeper *k)
{
	if (k->running && !k->by_hand)
		pthread_join(k->thread, NULL);
	checkpoint_write_end(k->writing);
	checkpoint_reading_end(k->reading, k->reading ? &k->repaired : NULL);
	k->writing = NULL;
	k->reading = NULL;
	k->running = false;
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

	if (keeper_take_arena(job) < 0) {
		keeper_give_up(job, "there is no memory for a copy of its weights and state; raise memory_max");
		return;
	}
	k->state = KEEPER_ASKING;
	k->begun_ns = job->control->now_ns;
	keeper_send(job, MAIL_ROUNDS);
}

static void keeper_take(struct job *job)
{
	struct keeper *k = job->keeper;
	uint64_t furthest = job_level_rounds(&job->generation->spec.plan, k->snapshot.rounds);
	/* A little ahead where rounds are quicker than mail; where each push is a step, any time is right. */
	uint64_t ahead = spec_stepwise(&job->generation->spec) ? 0 : k->ahead;

	for (uint32_t i = 0; i < k->snapshot.chunk_count; i++)
		k->snapshot.chunks[i].before = k->snapshot.rounds[i] + ahead;
	k->table = (struct checkpoint_table){
		.round = furthest + ahead,
		.meta = k->meta,
		.meta_bytes = k->meta_bytes,
		.chunk_count = k->snapshot.chunk_count,
		.chunks = k->snapshot.chunks,
	};
	k->progress.bytes_per_s = job->control->config->checkpoint_rate;
	atomic_store_explicit(&k->progress.stop, false, memory_order_relaxed);
	k->state = KEEPER_TAKING;
	k->stopped = false;
	keeper_send(job, MAIL_SNAPSHOT);
	if (!keeper_run(job, keeper_write))
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

/* The thread is done, and no core refers to the snapshot any more. */
static void keeper_finish(struct job *job)
{
	struct keeper *k = job->keeper;
	bool missed = atomic_load_explicit(&k->snapshot.missed, memory_order_relaxed);

	keeper_join(k);
	if (missed) { /* rounds were quicker than mail */
		k->ahead = k->ahead ? 2 * k->ahead : 1;
		if (k->ahead > CHECKPOINT_AHEAD_MAX)
			k->ahead = 0;
		k->state = KEEPER_IDLE;
		k->retry_ns = job->control->now_ns;
		keeper_drop_arena(job);
		return;
	}
	if (k->result < 0) {
		keeper_give_up(job, k->error.text);
		return;
	}
	if (k->result > 0)
		log_warn("job '%s': %d of %u targets could not be written: %s", job->name, k->result,
			k->place.target_count, k->error.text);
	k->done++;
	k->last = k->table.round;
	k->known = true;
	k->last_ns = (int64_t)k->begun_ns;
	k->last_took_ns = job->control->now_ns - k->begun_ns;
	k->last_bytes = atomic_load_explicit(&k->progress.total, memory_order_relaxed);
	k->retry_ns = 0;
	checkpoint_pace_written(&k->pace, (double)(job->control->now_ns - k->begun_ns) / 1e9);
	log_info("job '%s': checkpoint before round %" PRIu64 " written: %.1f MB in %.2f s", job->name, k->last,
		(double)k->snapshot.bytes / 1e6, (double)(job->control->now_ns - k->begun_ns) / 1e9);
	if (k->pruned < 0)
		log_warn("job '%s': old checkpoints stay: %s", job->name, k->prune_error.text);
	k->state = KEEPER_IDLE;
	keeper_drop_arena(job);
}

/* Some chunk does not come to its round: its key is exchanged no more, or seldom. */
static void keeper_stop(struct job *job)
{
	const struct mail mail = {.kind = MAIL_SNAPSHOT};
	struct keeper *k = job->keeper;

	k->stopped = true;
	atomic_store_explicit(&k->snapshot.missed, true, memory_order_relaxed);
	generation_post(job->generation, job->control->box, &mail);
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

	if (k->state != KEEPER_IDLE || job->control->now_ns < k->retry_ns || job->change)
		return false;
	if (k->retry_ns && rounds > 0)
		return true; /* the last one failed */
	return every ? rounds >= k->rounds + every : checkpoint_pace_due(&k->pace, rounds - k->rounds);
}

void job_keep_tick(struct job *job)
{
	struct keeper *k = job->keeper;
	uint64_t rounds;

	if (!k || job->state != JOB_RUNNING)
		return;
	rounds = keeper_rounds(job);
	keeper_sample(job);
	if (k->state == KEEPER_TAKING && !k->stopped && job->control->now_ns - k->begun_ns > CHECKPOINT_TAKING_NS)
		keeper_stop(job);
	if (k->state == KEEPER_WRITING && (!k->running || atomic_load_explicit(&k->over, memory_order_acquire)))
		keeper_finish(job);
	if (!keeper_is_due(job, rounds))
		return;
	k->rounds = rounds;
	keeper_ask(job);
}

/* ---- what it begins with ---- */

/* Each chunk goes to where its core will have it. The shards are still ours. */
static int keeper_load(void *arg, uint32_t index, const void *bytes, uint64_t count)
{
	struct keeper *k = arg;
	struct generation *g = k->into;
	struct shard *shard = g->store.shards[g->core_of_chunk[index]];
	struct chunk *chunk = chunk_find(shard, index);

	if (atomic_load_explicit(&k->progress.stop, memory_order_relaxed))
		return -ECANCELED;
	if (!chunk || count != snapshot_chunk_bytes(&g->spec, chunk->elements))
		return -EBADMSG;
	snapshot_restore(chunk, shard, bytes, k->table.chunks[index].before - k->hasty, k->table.chunks[index].steps);
	return 0;
}

static void *keeper_read(void *arg)
{
	struct keeper *k = arg;

	k->result = checkpoint_read_chunks(&k->place, &k->table, keeper_load, k, &k->repaired, &k->error);
	atomic_store_explicit(&k->over, true, memory_order_release);
	return NULL;
}

static void keeper_step(struct keeper *k, uint64_t now_ns)
{
	int rc;

	if (k->writing)
		rc = checkpoint_write_step(k->writing, now_ns, &k->due_ns, &k->error);
	else
		rc = checkpoint_reading_step(k->reading, keeper_load, k, &k->error);
	if (rc == -EAGAIN)
		return;
	k->result = rc;
	if (k->writing)
		keeper_tidy(k);
	atomic_store_explicit(&k->over, true, memory_order_relaxed);
}

uint64_t job_keep_step(struct control *c)
{
	uint64_t due_ns = UINT64_MAX;

	for (struct job *job = c->jobs; job; job = job->next) {
		struct keeper *k = job->keeper;

		if (!k || !k->by_hand || !k->running || atomic_load_explicit(&k->over, memory_order_relaxed))
			continue;
		if (k->due_ns <= c->now_ns)
			keeper_step(k, c->now_ns);
		if (!atomic_load_explicit(&k->over, memory_order_relaxed) && k->due_ns < due_ns)
			due_ns = k->due_ns;
	}
	return due_ns;
}

/* Has the checkpoint the job's keys and options? */
static int keeper_fits(const struct job *job, struct err *e)
{
	const struct keeper *k = job->keeper;
	const struct generation *g = job->generation;
	struct table *t;
	int rc = checkpoint_meta_unpack(k->table.meta, k->table.meta_bytes, &t, e);

	if (rc < 0)
		return rc;
	t->spec.generation = g->spec.generation;
	t->spec.lost = g->spec.lost; /* what becomes of lost workers may change */
	t->wait_ms = g->table->wait_ms;
	t->spec.seal = g->spec.seal;
	t->spec.encrypt = g->spec.encrypt;
	if (t->spec.world != g->spec.world)
		rc = err_set(e, -EBADMSG, "a world of %u, and now of %u", t->spec.world, g->spec.world);
	else
		rc = table_compare(t, 0, g->table, job_first_live(job), e);
	if (rc == 0 && k->table.chunk_count != g->spec.plan.chunk_count)
		rc = err_set(e, -EBADMSG, "%u chunks, and now %u", k->table.chunk_count, g->spec.plan.chunk_count);
	table_destroy(t);
	return rc;
}

/* Begins to read the newest checkpoint that was not tried yet. False: there is none. */
static bool keeper_read_next(struct job *job)
{
	struct keeper *k = job->keeper;
	struct err e;

	while (k->entry < k->entry_count) {
		const struct checkpoint_entry *entry = &k->entries[k->entry++];

		if (!entry->complete) {
			log_warn("job '%s': its checkpoint before round %" PRIu64 " %s: %u of its %u files are good",
				job->name, entry->round, entry->unread ? "cannot be read" : "is not whole",
				entry->pieces, entry->wanted ? entry->wanted : 1);
			if (entry->unread) {
				k->last = entry->round;
				k->result = err_set(&k->error, -EIO, "its files cannot be read");
			}
			continue;
		}
		k->last = entry->round;
		if (checkpoint_read_entry(&k->place, entry, &k->table, &k->error) < 0) {
			log_warn("job '%s': its checkpoint before round %" PRIu64 " cannot be read: %s", job->name,
				k->last, k->error.text);
			k->result = k->error.code;
			continue;
		}
		if (keeper_fits(job, &e) < 0) {
			log_warn("job '%s' does not go on from the checkpoint before round %" PRIu64
				 ": it is of another (rank 0 of the one before, rank %u of this one): %s. It stays "
				 "until "
				 "new ones take its place",
				job->name, k->last, job_first_live(job), e.text);
			checkpoint_table_fini(&k->table);
			continue;
		}
		k->into = job->generation;
		k->begun_ns = job->control->now_ns;
		atomic_store_explicit(&k->progress.stop, false, memory_order_relaxed);
		if (keeper_run(job, keeper_read)) {
			k->state = KEEPER_READING;
			return true;
		}
		checkpoint_table_fini(&k->table);
	}
	return false;
}

bool job_restore(struct job *job)
{
	struct keeper *k;
	struct err e;

	job_keep_forget(job);
	job->keeper = keeper_create(job);
	k = job->keeper;
	if (!k || job->started > 1 || job->takes) /* a new key table begins with new weights; a mirror has some */
		return false;
	if (checkpoint_is_finished(&k->place)) {
		log_info("job '%s' begins anew: the one before ended in good order (its checkpoints are there)",
			job->name);
		return false;
	}
	if (checkpoint_list(&k->place, &k->entries, &k->entry_count, &e) < 0)
		return false;
	/* Those that cannot be read say nothing of when they were written: each may be a second later than the others.
	 */
	k->progress.newest_s = k->entry_count > 0 ? k->entries[0].written_s + k->entry_count : 0;
	if (keeper_read_next(job))
		return true;
	/* Some are whole, and none could be read: it does not begin anew over them, but fails (job_restored()). */
	if (k->result < 0) {
		k->state = KEEPER_READING;
		atomic_store_explicit(&k->over, true, memory_order_relaxed);
	}
	return k->result < 0;
}

int job_restored(struct job *job, const uint64_t **from)
{
	struct keeper *k = job->keeper;

	if (!atomic_load_explicit(&k->over, memory_order_acquire))
		return -EAGAIN;
	keeper_join(k);
	k->state = KEEPER_IDLE;
	if (k->result < 0) {
		checkpoint_table_fini(&k->table);
		log_warn("job '%s': its checkpoint before round %" PRIu64 " cannot be read: %s", job->name, k->last,
			k->error.text);
		if (keeper_read_next(job))
			return -EAGAIN;
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1,
			"none of its checkpoints can be read, the one before round %" PRIu64
			" last: %s. Repair one (phub checkpoint restore), or move them away to begin anew",
			k->last, k->error.text);
		return -EBADMSG;
	}
	k->restored = 1;
	k->known = true;
	k->last_bytes = k->entries[k->entry - 1].bytes;
	k->last_ns =
		(int64_t)job->control->now_ns - ((int64_t)time(NULL) - (int64_t)k->table.written_s) * (int64_t)NS_PER_S;
	log_info("job '%s' goes on from its checkpoint before round %" PRIu64 " (%.2f s%s)", job->name, k->last,
		(double)(job->control->now_ns - k->begun_ns) / 1e9, k->repaired ? "; parity made up for losses" : "");
	k->from = calloc(k->table.chunk_count, sizeof(*k->from));
	for (uint32_t i = 0; k->from && i < k->table.chunk_count; i++)
		k->from[i] = k->table.chunks[i].before - k->hasty;
	checkpoint_table_fini(&k->table);
	if (!k->from) {
		job_fail(job, PHUB__ERROR_CODE__ERROR_LIMIT, -1, "no memory in the box to go on from its checkpoint");
		return -ENOMEM;
	}
	*from = k->from;
	return 0;
}

/* ---- what the operator sees ---- */

static void keeper_describe_pace(const struct job *job, Phub__CheckpointInfo *out)
{
	const struct keeper *k = job->keeper;
	uint64_t rounds = job->state == JOB_RUNNING ? keeper_rounds(job) : 0, every = keeper_every(job);

	out->fixed = job->control->config->checkpoint_every > 0;
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
		out->took_ms = k->last_took_ns / NS_PER_MS;
	}
	keeper_describe_pace(job, out);
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
	if (job->keeper && job->keeper->done + job->keeper->restored > 0)
		checkpoint_set_finished(&job->keeper->place, true);
}

void job_keep_forget(struct job *job)
{
	struct keeper *k = job->keeper;

	if (!k)
		return;
	atomic_store_explicit(&k->progress.stop, true, memory_order_relaxed);
	atomic_store_explicit(&k->snapshot.missed, true, memory_order_relaxed);
	keeper_join(k);
	if (k->state == KEEPER_READING)
		checkpoint_table_fini(&k->table);
	keeper_drop_arena(job);
	free(k->meta);
	free(k->from);
	free(k->entries);
	free(k->targets);
	free(k);
	job->keeper = NULL;
}
