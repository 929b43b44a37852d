/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes old checkpoints away, and what a crash left of new ones.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/crc.h"
#include "phub/control/checkpoint_scan.h"

static int prune_file(
	const struct checkpoint_place *place, const char *dir, const struct checkpoint_file *f, struct err *e)
{
	struct disk *disk = checkpoint_disk(place);
	int fd = checkpoint_scan_open(place, f->target, dir), rc = fd;
	char name[CHECKPOINT_NAME_BYTES];

	checkpoint_format_name(f->round, f->id, f->piece, name);
	if (f->part)
		memcpy(name + strlen(name), ".part", sizeof(".part"));
	if (fd >= 0) {
		rc = disk->ops->remove(disk, fd, name);
		disk->ops->close(disk, fd);
	}
	if (rc == 0 || (fd >= 0 && rc == -ENOENT))
		return 0;
	return err_set(e, rc, "cannot remove %s/%s/%s: %s", place->targets[f->target], dir, name, strerror(-rc));
}

/* All files for which `goes` says so; goes on behind errors and returns the first. */
static int prune_files(const struct checkpoint_place *place,
	bool (*goes)(const void *arg, const struct checkpoint_file *file), const void *arg, struct err *e)
{
	struct checkpoint_files files;
	int rc = checkpoint_scan(place, &files, e), failed;

	if (rc < 0)
		return rc;
	for (unsigned i = 0; i < files.count; i++) {
		if (!goes(arg, &files.at[i]))
			continue;
		failed = prune_file(place, files.dir, &files.at[i], rc ? NULL : e);
		rc = rc ? rc : failed;
	}
	checkpoint_scan_fini(&files);
	return rc;
}

static bool prune_is_entry(const void *arg, const struct checkpoint_file *file)
{
	const struct checkpoint_entry *entry = arg;

	return !file->part && file->round == entry->round && file->id == entry->id;
}

int checkpoint_remove(const struct checkpoint_place *place, const struct checkpoint_entry *entry, struct err *e)
{
	return prune_files(place, prune_is_entry, entry, e);
}

struct prune {
	const struct checkpoint_entry *entries;
	unsigned count, keep;
	uint64_t newest_ms; /* of complete ones */
};

static bool prune_is_old(const void *arg, const struct checkpoint_file *file)
{
	const struct prune *p = arg;
	unsigned newer = 0;

	if (file->part)
		return file->changed_s * 1000 < p->newest_ms;
	for (unsigned i = 0; i < p->count; i++) {
		const struct checkpoint_entry *entry = &p->entries[i];

		if (entry->round == file->round && entry->id == file->id)
			return entry->complete ? newer >= p->keep : !entry->unread && entry->written_ms <= p->newest_ms;
		newer += entry->complete;
	}
	return false; /* it came meanwhile */
}

int checkpoint_prune(const struct checkpoint_place *place, unsigned keep, struct err *e)
{
	struct checkpoint_entry *entries;
	struct prune p = {.keep = keep};
	bool any = false;
	int rc;

	if (keep == 0)
		return err_set(e, -EINVAL, "0 checkpoints to keep; at least 1 must be");
	rc = checkpoint_list(place, &entries, &p.count, e);
	if (rc < 0)
		return rc;
	p.entries = entries;
	for (unsigned i = 0; i < p.count && !any; i++) {
		any = entries[i].complete;
		p.newest_ms = entries[i].written_ms;
	}
	if (any)
		rc = prune_files(place, prune_is_old, &p, e);
	free(entries);
	return rc;
}

/* ---- the mark of a job that ended in good order ---- */

/*
 * "ROUND.ID MILLISECONDS CRC32C" and a newline. It gets its name when it is whole, in place of an older one. One that
 * cannot be read or is damaged is none: to go on from checkpoints loses nothing.
 */
static const char prune_mark[] = "finished", prune_mark_part[] = "finished.part";

enum { PRUNE_MARK_BYTES = 96 };

struct prune_mark {
	uint64_t round, id, written_ms;
};

static size_t prune_put_mark(const struct prune_mark *m, char out[PRUNE_MARK_BYTES])
{
	int at = snprintf(out, PRUNE_MARK_BYTES, "%" PRIu64 ".%016" PRIx64 " %" PRIu64, m->round, m->id, m->written_ms);

	at += snprintf(out + at, PRUNE_MARK_BYTES - (size_t)at, " %08" PRIx32 "\n", crc_32c(0, out, (size_t)at));
	return (size_t)at;
}

static bool prune_get_mark(const char *text, struct prune_mark *m)
{
	char again[PRUNE_MARK_BYTES];

	/* What sscanf() lets pass besides, the comparison does not. */
	if (sscanf(text, "%20" SCNu64 ".%16" SCNx64 " %20" SCNu64, &m->round, &m->id, &m->written_ms) != 3)
		return false;
	prune_put_mark(m, again);
	return strcmp(text, again) == 0;
}

static int prune_write_mark(struct disk *disk, int dir, const struct prune_mark *m)
{
	char text[PRUNE_MARK_BYTES];
	size_t bytes = prune_put_mark(m, text);
	int fd, rc;

	disk->ops->remove(disk, dir, prune_mark_part);
	fd = disk->ops->make_file(disk, dir, prune_mark_part, false);
	if (fd < 0)
		return fd;
	rc = disk_write_all(disk, fd, text, bytes, 0);
	if (rc == 0)
		rc = disk->ops->sync(disk, fd);
	disk->ops->close(disk, fd);
	if (rc == 0)
		rc = disk->ops->rename(disk, dir, prune_mark_part, prune_mark);
	if (rc < 0)
		disk->ops->remove(disk, dir, prune_mark_part);
	return rc;
}

static bool prune_read_mark(struct disk *disk, int dir, struct prune_mark *m)
{
	int fd = disk->ops->open_file(disk, dir, prune_mark);
	char text[PRUNE_MARK_BYTES];
	ssize_t got;

	if (fd < 0)
		return false;
	got = disk->ops->read(disk, fd, text, sizeof(text) - 1, 0);
	disk->ops->close(disk, fd);
	text[got > 0 ? got : 0] = '\0';
	return got > 0 && prune_get_mark(text, m);
}

/* `each`: 0 when it changed something that is to outlive a crash. */
static void prune_each_target(
	const struct checkpoint_place *place, int (*each)(struct disk *disk, int dir, void *arg), void *arg)
{
	struct disk *disk = checkpoint_disk(place);
	char dir[CHECKPOINT_DIR_BYTES];

	if (checkpoint_format_dir(place->job, dir, NULL) < 0)
		return;
	for (unsigned i = 0; i < place->target_count; i++) {
		int at = checkpoint_scan_open(place, i, dir);

		if (at < 0)
			continue;
		if (each(disk, at, arg) == 0)
			disk->ops->sync_dir(disk, at);
		disk->ops->close(disk, at);
	}
}

static int prune_mark_target(struct disk *disk, int dir, void *arg)
{
	return prune_write_mark(disk, dir, arg);
}

static int prune_unmark_target(struct disk *disk, int dir, void *arg)
{
	(void)arg;
	return disk->ops->remove(disk, dir, prune_mark);
}

static int prune_look_target(struct disk *disk, int dir, void *arg)
{
	uint64_t *newest_ms = arg;
	struct prune_mark m;

	if (prune_read_mark(disk, dir, &m) && m.written_ms > *newest_ms)
		*newest_ms = m.written_ms;
	return 1;
}

static const struct checkpoint_entry *prune_newest(const struct checkpoint_entry *entries, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (entries[i].complete)
			return &entries[i];
	return NULL;
}

void checkpoint_mark(const struct checkpoint_place *place, uint64_t newest_ms)
{
	struct prune_mark mark = {.written_ms = newest_ms};
	const struct checkpoint_entry *newest;
	struct checkpoint_entry *entries;
	unsigned count;

	if (checkpoint_list(place, &entries, &count, NULL) < 0)
		return;
	newest = prune_newest(entries, count);
	if (newest)
		mark = (struct prune_mark){
			newest->round, newest->id, newest->written_ms > newest_ms ? newest->written_ms : newest_ms};
	free(entries);
	prune_each_target(place, prune_mark_target, &mark);
}

static bool prune_is_any(const void *arg, const struct checkpoint_file *file)
{
	(void)arg;
	(void)file;
	return true;
}

static int prune_forget_target(struct disk *disk, int dir, void *arg)
{
	(void)arg;
	disk->ops->remove(disk, dir, prune_mark_part);
	disk->ops->remove(disk, dir, prune_mark);
	return 0;
}

int checkpoint_remove_all(const struct checkpoint_place *place, struct err *e)
{
	struct disk *disk = checkpoint_disk(place);
	char dir[CHECKPOINT_DIR_BYTES];
	int rc = prune_files(place, prune_is_any, NULL, e);

	if (rc < 0)
		return rc;
	prune_each_target(place, prune_forget_target, NULL);
	(void)checkpoint_format_dir(place->job, dir, NULL); /* prune_files() has done it before */
	for (unsigned i = 0; i < place->target_count; i++) {
		int at = disk->ops->open_dir(disk, -1, place->targets[i]);

		if (at < 0)
			continue;
		disk->ops->remove_dir(disk, at, dir);
		disk->ops->close(disk, at);
	}
	return 0;
}

void checkpoint_unmark(const struct checkpoint_place *place)
{
	prune_each_target(place, prune_unmark_target, NULL);
}

bool checkpoint_is_finished(const struct checkpoint_place *place, const struct checkpoint_entry *entries,
	unsigned count, uint64_t *marked_ms)
{
	const struct checkpoint_entry *newest = prune_newest(entries, count);

	*marked_ms = 0;
	prune_each_target(place, prune_look_target, marked_ms);
	return *marked_ms > 0 && (!newest || newest->written_ms <= *marked_ms);
}
