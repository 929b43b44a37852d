/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes old checkpoints away, and what a crash left of new ones.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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
	uint64_t newest_s; /* of complete ones */
};

static bool prune_is_old(const void *arg, const struct checkpoint_file *file)
{
	const struct prune *p = arg;
	unsigned newer = 0;

	if (file->part)
		return file->changed_s < p->newest_s;
	for (unsigned i = 0; i < p->count; i++) {
		const struct checkpoint_entry *entry = &p->entries[i];

		if (entry->round == file->round && entry->id == file->id)
			return entry->complete ? newer >= p->keep : !entry->unread && entry->written_s <= p->newest_s;
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
		p.newest_s = entries[i].written_s;
	}
	if (any)
		rc = prune_files(place, prune_is_old, &p, e);
	free(entries);
	return rc;
}

/* ---- the mark of a job that ended in good order ---- */

static const char prune_mark[] = "finished";

void checkpoint_set_finished(const struct checkpoint_place *place, bool finished)
{
	struct disk *disk = checkpoint_disk(place);
	char dir[CHECKPOINT_DIR_BYTES];
	struct err e;

	if (checkpoint_format_dir(place->job, dir, &e) < 0)
		return;
	for (unsigned i = 0; i < place->target_count; i++) {
		int at = checkpoint_scan_open(place, i, dir), fd;

		if (at < 0)
			continue;
		if (finished) {
			fd = disk->ops->make_file(disk, at, prune_mark, false);
			if (fd >= 0)
				disk->ops->close(disk, fd);
		} else {
			disk->ops->remove(disk, at, prune_mark);
		}
		disk->ops->sync_dir(disk, at);
		disk->ops->close(disk, at);
	}
}

bool checkpoint_is_finished(const struct checkpoint_place *place)
{
	struct disk *disk = checkpoint_disk(place);
	char dir[CHECKPOINT_DIR_BYTES];
	struct disk_stat st;
	bool found = false;
	struct err e;

	if (checkpoint_format_dir(place->job, dir, &e) < 0)
		return false;
	for (unsigned i = 0; i < place->target_count && !found; i++) {
		int at = checkpoint_scan_open(place, i, dir);

		if (at < 0)
			continue;
		found = disk->ops->stat(disk, at, prune_mark, &st) == 0;
		disk->ops->close(disk, at);
	}
	return found;
}
