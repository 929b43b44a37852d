/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of snapshots, chunk by chunk as cores copy them, and of other checkpoints.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <time.h>

#include "phub/base/clock.h"
#include "phub/control/checkpoint.h"
#include "phub/control/checkpoint_parity.h"
#include "phub/control/checkpoint_writer.h"

/* ---- where they go ---- */

int checkpoint_list_targets(struct checkpoint_place *place, char *text)
{
	char *rest = NULL;

	for (char *t = strtok_r(text, ",", &rest); t; t = strtok_r(NULL, ",", &rest)) {
		t += strspn(t, " ");
		for (size_t length = strlen(t); length && t[length - 1] == ' '; length--)
			t[length - 1] = '\0';
		if (place->target_count == CHECKPOINT_TARGETS_MAX)
			return -E2BIG;
		place->targets[place->target_count++] = t;
	}
	return 0;
}

int checkpoint_check_count(unsigned target_count, unsigned parity, struct err *e)
{
	if (target_count < 1 || target_count > CHECKPOINT_TARGETS_MAX)
		return err_set(e, -EINVAL, "a checkpoint in %u directories; allowed are 1 to %u", target_count,
			CHECKPOINT_TARGETS_MAX);
	if (parity >= target_count)
		return err_set(e, -EINVAL, "a parity of %u in %u director%s; at least one must be left for data",
			parity, target_count, target_count == 1 ? "y" : "ies");
	if (parity == 0 && target_count > 1)
		return err_set(e, -EINVAL,
			"a checkpoint in %u directories without parity: the loss of any would lose it; "
			"give one directory, or a parity",
			target_count);
	return checkpoint_parity_check(parity, e);
}

int checkpoint_check_twins(const struct checkpoint_place *place, struct err *e)
{
	struct disk *disk = checkpoint_disk(place);
	struct disk_stat st[CHECKPOINT_TARGETS_MAX];

	for (unsigned i = 0; i < place->target_count; i++) {
		if (disk->ops->stat(disk, -1, place->targets[i], &st[i]) < 0)
			st[i].inode = 0;
		for (unsigned j = 0; j < i && st[i].inode; j++)
			if (st[i].inode == st[j].inode && st[i].device == st[j].device)
				return err_set(e, -EINVAL, "%s and %s are the same directory; each piece needs its own",
					place->targets[j], place->targets[i]);
	}
	return 0;
}

/* What to do about a target that cannot be written. */
static const char *write_advice(int error)
{
	switch (error) {
	case ENOENT:
		return "make that directory, or mount its disk";
	case ENOTDIR:
		return "name a directory";
	case EACCES:
	case EPERM:
		return "give it to the user that phubd runs as";
	case ENOSPC:
	case EDQUOT:
		return "make room there";
	case EROFS:
		return "mount it to be written; where systemd runs phubd, add ReadWritePaths= to its unit";
	default:
		return "look at that disk";
	}
}

/* A disk may have room for a name, and for nothing in it. */
static int write_try_bytes(struct disk *disk, int fd)
{
	static const uint8_t zeros[4096];
	int rc = disk->ops->reserve(disk, fd, sizeof(zeros));

	if (rc < 0 && rc != -EOPNOTSUPP)
		return rc;
	rc = disk_write_all(disk, fd, zeros, sizeof(zeros), 0);
	return rc < 0 ? rc : disk->ops->sync(disk, fd);
}

static int write_try_target(struct disk *disk, const char *target)
{
	int dir = disk->ops->open_dir(disk, -1, target), fd, rc, error;
	char name[32];
	uint64_t id;

	if (dir < 0)
		return dir;
	rc = disk->ops->random(disk, &id);
	snprintf(name, sizeof(name), ".phub.%016" PRIx64, id);
	fd = rc < 0 ? rc : disk->ops->make_file(disk, dir, name, false);
	if (fd >= 0) {
		rc = write_try_bytes(disk, fd);
		disk->ops->close(disk, fd);
		error = disk->ops->remove(disk, dir, name);
		rc = rc < 0 ? rc : error;
	} else {
		rc = fd;
	}
	disk->ops->close(disk, dir);
	return rc;
}

int checkpoint_try_targets(const struct checkpoint_place *place, struct err *e)
{
	int rc = checkpoint_check_twins(place, e);
	struct err first = {.code = 0};
	unsigned failed = 0;

	for (unsigned i = 0; rc == 0 && i < place->target_count; i++) {
		int error = -write_try_target(checkpoint_disk(place), place->targets[i]);

		if (!error)
			continue;
		if (failed++ == 0)
			err_set(&first, -error, "no checkpoint can be written to %s: %s; %s", place->targets[i],
				strerror(error), write_advice(error));
	}
	if (failed)
		*e = first;
	return rc < 0 ? rc : failed > place->parity ? first.code : (int)failed;
}

void checkpoint_unlock_targets(struct checkpoint_locks *locks)
{
	for (unsigned i = 0; i < locks->count; i++)
		locks->disk->ops->unlock(locks->disk, locks->fds[i]);
	locks->count = 0;
}

int checkpoint_lock_targets(
	const struct checkpoint_place *place, const char *who, struct checkpoint_locks *out, struct err *e)
{
	struct disk *disk = checkpoint_disk(place);
	int unlocked = 0, rc;

	*out = (struct checkpoint_locks){.disk = disk};
	for (unsigned i = 0; i < place->target_count; i++) {
		rc = disk->ops->lock(disk, place->targets[i], who, &out->fds[out->count]);
		out->count += rc == 0;
		if (rc == -EBUSY) {
			checkpoint_unlock_targets(out);
			return err_set(e, rc,
				"%s is another phubd's, which runs (it has locked %s/.phub.lock), and two would remove "
				"each other's checkpoints; give each box directories of its own, or stop the other",
				place->targets[i], place->targets[i]);
		}
		if (rc < 0 && unlocked++ == 0)
			err_set(e, rc, "%s cannot be locked against another box (%s)", place->targets[i],
				strerror(-rc));
	}
	return unlocked;
}

/* ---- writing ---- */

static bool write_stopped(const struct checkpoint_progress *p)
{
	return p && atomic_load_explicit(&p->stop, memory_order_relaxed);
}

enum {
	WRITE_LOOK_NS = 200000,   /* a chunk that no core has copied yet is looked at this often */
	WRITE_NAP_NS = 100000000, /* so long at most it does not look whether to stop */
};

struct checkpoint_write {
	const struct snapshot *snapshot;
	struct checkpoint_progress *progress;
	const char *job;
	uint32_t next; /* chunk */
	struct checkpoint_writer *writer;
};

int checkpoint_write_begin(const struct checkpoint_place *place, const struct checkpoint_table *table,
	const struct snapshot *snapshot, struct checkpoint_progress *progress, uint64_t now_ns,
	struct checkpoint_write **out, struct err *e)
{
	struct checkpoint_write *w;
	int rc;

	if (table->chunk_count != snapshot->chunk_count)
		return err_set(e, -EINVAL, "a table of %" PRIu32 " chunks with a snapshot of %" PRIu32,
			table->chunk_count, snapshot->chunk_count);
	w = calloc(1, sizeof(*w));
	if (!w)
		return err_set(e, -ENOMEM, "no memory for a checkpoint of job '%s'", place->job);
	*w = (struct checkpoint_write){.snapshot = snapshot, .progress = progress, .job = place->job};
	rc = checkpoint_writer_create(place, table, snapshot->chunks, progress, now_ns, &w->writer, e);
	if (rc < 0)
		free(w);
	else
		*out = w;
	return rc;
}

int checkpoint_write_step(struct checkpoint_write *w, uint64_t now_ns, uint64_t *due_ns, struct err *e)
{
	const struct snapshot *s = w->snapshot;
	int rc;

	*due_ns = checkpoint_writer_due(w->writer);
	if (atomic_load_explicit(&s->missed, memory_order_acquire))
		return err_set(e, -ECANCELED, "the snapshot of job '%s' was missed", w->job);
	if (write_stopped(w->progress))
		return err_set(e, -ECANCELED, "the checkpoint of job '%s' was stopped", w->job);
	if (now_ns < *due_ns)
		return -EAGAIN;
	if (w->next == s->chunk_count) {
		rc = checkpoint_writer_finish(w->writer, e);
	} else if (!atomic_load_explicit(&s->chunks[w->next].copied, memory_order_acquire)) {
		*due_ns = now_ns + WRITE_LOOK_NS;
		return -EAGAIN;
	} else {
		rc = checkpoint_writer_add(w->writer, s->base + s->chunks[w->next].offset, e);
		w->next++;
		rc = rc < 0 ? rc : -EAGAIN;
	}
	*due_ns = checkpoint_writer_due(w->writer);
	return rc;
}

void checkpoint_write_end(struct checkpoint_write *w)
{
	if (!w)
		return;
	checkpoint_writer_destroy(w->writer);
	free(w);
}

/* Until then, or until it is time to look around. */
static void write_nap(uint64_t due_ns)
{
	uint64_t now_ns = clock_now_ns(), ns = due_ns > now_ns ? due_ns - now_ns : 0;
	struct timespec t = {.tv_nsec = (long)(ns < WRITE_NAP_NS ? ns : WRITE_NAP_NS)};

	if (ns > 0)
		nanosleep(&t, NULL);
}

int checkpoint_write(const struct checkpoint_place *place, const struct checkpoint_table *table,
	const struct snapshot *snapshot, struct checkpoint_progress *progress, struct err *e)
{
	struct checkpoint_write *w = NULL;
	uint64_t due_ns;
	int rc = checkpoint_write_begin(place, table, snapshot, progress, clock_now_ns(), &w, e);

	if (rc < 0)
		return rc;
	while ((rc = checkpoint_write_step(w, clock_now_ns(), &due_ns, e)) == -EAGAIN)
		write_nap(due_ns);
	checkpoint_write_end(w);
	return rc;
}

struct write_copy {
	struct checkpoint_writer *writer;
	struct checkpoint_progress *progress;
	struct err *e;
};

/* As its budget wants it. */
static int write_pause(const struct write_copy *copy)
{
	uint64_t due_ns = checkpoint_writer_due(copy->writer);

	while (!write_stopped(copy->progress) && clock_now_ns() < due_ns)
		write_nap(due_ns);
	return write_stopped(copy->progress) ? err_set(copy->e, -ECANCELED, "the copy was stopped") : 0;
}

static int write_take(void *arg, uint32_t chunk, const void *bytes, uint64_t count)
{
	struct write_copy *copy = arg;

	int rc = checkpoint_writer_add(copy->writer, bytes, copy->e);

	(void)chunk;
	(void)count;
	return rc < 0 ? rc : write_pause(copy);
}

int checkpoint_copy(const struct checkpoint_place *from, const struct checkpoint_table *table,
	const struct checkpoint_place *to, struct checkpoint_progress *progress, uint64_t *repaired, struct err *e)
{
	struct checkpoint_table now = *table;
	struct write_copy copy = {.progress = progress, .e = e};
	int rc;

	now.written_ms = 0;
	rc = checkpoint_writer_create(to, &now, table->chunks, progress, clock_now_ns(), &copy.writer, e);
	if (rc == 0)
		rc = checkpoint_read_chunks(from, table, write_take, &copy, repaired, e);
	while (rc == 0 && (rc = checkpoint_writer_finish(copy.writer, e)) == -EAGAIN)
		rc = write_pause(&copy);
	checkpoint_writer_destroy(copy.writer);
	return rc;
}
