/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which checkpoints there are, and which go.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "phub/control/checkpoint_scan.h"

/* ---- files ---- */

int checkpoint_scan_open(const struct checkpoint_place *place, unsigned target, const char *dir)
{
	struct disk *disk = checkpoint_disk(place);
	int at = disk->ops->open_dir(disk, -1, place->targets[target]), fd;

	if (at < 0)
		return at;
	fd = disk->ops->open_dir(disk, at, dir);
	disk->ops->close(disk, at);
	return fd;
}

static struct checkpoint_file *scan_add(struct checkpoint_files *f)
{
	if (f->count == f->room) {
		unsigned room = f->room ? f->room * 2 : 32;
		void *grown = realloc(f->at, room * sizeof(*f->at));

		if (!grown)
			return NULL;
		f->at = grown;
		f->room = room;
	}
	return &f->at[f->count++];
}

/* One directory that is being read. */
struct scan {
	const struct checkpoint_place *place;
	struct checkpoint_files *files;
	unsigned target;
	int dir;
};

/* Looks into one that has a name of ours. */
static void scan_look(const struct scan *scan, const char *name, struct checkpoint_file *file)
{
	struct disk *disk = checkpoint_disk(scan->place);
	int fd = disk->ops->open_file(disk, scan->dir, name);
	struct disk_stat st;
	int rc;

	file->unread = fd < 0 && fd != -ENOENT;
	if (fd < 0)
		return;
	rc = disk->ops->stat(disk, fd, NULL, &st);
	file->unread = rc < 0;
	if (rc == 0 && st.is_file) {
		file->bytes = st.bytes;
		file->changed_s = st.changed_s;
		rc = file->part ? 0
				: checkpoint_format_load(disk, fd, scan->place->job, file->round, file->id, file->piece,
					  &file->head, NULL);
		file->good = !file->part && rc == 0;
		file->unread = rc < 0 && rc != -EBADMSG;
	}
	disk->ops->close(disk, fd);
}

static int scan_take(void *arg, const char *name)
{
	const struct scan *scan = arg;
	struct checkpoint_file found = {.target = scan->target}, *file;

	if (!checkpoint_format_parse(name, &found.round, &found.id, &found.piece, &found.part))
		return 0;
	file = scan_add(scan->files);
	if (!file)
		return -ENOMEM;
	scan_look(scan, name, &found);
	*file = found;
	return 0;
}

/* It is not empty for all we know. */
static void scan_miss(const struct scan *scan, int rc)
{
	struct checkpoint_absent *absent = &scan->files->absent;

	if (absent->count++ == 0)
		err_set(&absent->why, rc, "%s: %s", scan->place->targets[scan->target], strerror(-rc));
}

static void scan_note_bare(const struct scan *scan)
{
	struct checkpoint_absent *absent = &scan->files->absent;

	if (absent->bare++ == 0)
		absent->first_bare = scan->place->targets[scan->target];
}

/* The job's directory, or -ENOENT where the target has none. */
static int scan_open(const struct scan *scan)
{
	struct disk *disk = checkpoint_disk(scan->place);
	int at = disk->ops->open_dir(disk, -1, scan->place->targets[scan->target]), fd;

	if (at < 0) {
		scan_miss(scan, at);
		return at;
	}
	fd = disk->ops->open_dir(disk, at, scan->files->dir);
	disk->ops->close(disk, at);
	if (fd == -ENOENT)
		scan_note_bare(scan);
	else if (fd < 0)
		scan_miss(scan, fd);
	return fd;
}

static int scan_target(const struct checkpoint_place *place, unsigned target, struct checkpoint_files *f, struct err *e)
{
	struct scan scan = {.place = place, .files = f, .target = target};
	struct disk *disk = checkpoint_disk(place);
	int rc;

	scan.dir = scan_open(&scan);
	if (scan.dir < 0)
		return 0;
	rc = disk->ops->list(disk, scan.dir, scan_take, &scan);
	disk->ops->close(disk, scan.dir);
	if (rc < 0)
		scan_miss(&scan, rc);
	return rc == -ENOMEM ? err_set(e, rc, "no memory for the list of checkpoints of job '%s'", place->job) : 0;
}

static int scan_compare(const void *a, const void *b)
{
	const struct checkpoint_file *x = a, *y = b;

	if (x->round != y->round)
		return x->round < y->round ? -1 : 1;
	if (x->id != y->id)
		return x->id < y->id ? -1 : 1;
	if (x->part != y->part) /* else it would part the others */
		return x->part ? 1 : -1;
	if (x->piece != y->piece)
		return x->piece < y->piece ? -1 : 1;
	return (x->target > y->target) - (x->target < y->target);
}

int checkpoint_scan(const struct checkpoint_place *place, struct checkpoint_files *out, struct err *e)
{
	int rc;

	*out = (struct checkpoint_files){0};
	rc = checkpoint_format_dir(place->job, out->dir, e);
	for (unsigned i = 0; rc == 0 && i < place->target_count; i++)
		rc = scan_target(place, i, out, e);
	if (rc < 0)
		checkpoint_scan_fini(out);
	else if (out->count > 0)
		qsort(out->at, out->count, sizeof(*out->at), scan_compare);
	return rc;
}

void checkpoint_scan_fini(struct checkpoint_files *f)
{
	free(f->at);
	f->at = NULL;
	f->count = f->room = 0;
}

/* ---- checkpoints ---- */

/* Those files, of one checkpoint, that are whole and agree with the first that is. */
static void list_entry(const struct checkpoint_file *files, unsigned count, struct checkpoint_entry *entry)
{
	const struct checkpoint_head *first = NULL;
	uint32_t have = 0;

	*entry = (struct checkpoint_entry){.round = files->round, .id = files->id};
	for (unsigned i = 0; i < count; i++) {
		const struct checkpoint_head *h = &files[i].head;

		entry->bytes += files[i].bytes;
		entry->unread = entry->unread || files[i].unread;
		if (!first && files[i].changed_s * 1000 > entry->written_ms)
			entry->written_ms = files[i].changed_s * 1000;
		if (!files[i].good ||
			(first && (h->k != first->k || h->m != first->m || h->table_crc != first->table_crc)))
			continue;
		first = first ? first : h;
		entry->written_ms = first->written_ms;
		have |= 1u << files[i].piece;
	}
	entry->pieces = (unsigned)__builtin_popcount(have);
	entry->wanted = first ? first->k : 0;
	entry->parity = first ? first->m : 0;
	entry->complete = first && entry->pieces >= entry->wanted;
}

static int list_compare(const void *a, const void *b)
{
	const struct checkpoint_entry *x = a, *y = b;

	if (x->written_ms != y->written_ms)
		return x->written_ms > y->written_ms ? -1 : 1;
	if (x->round != y->round)
		return x->round > y->round ? -1 : 1;
	return (x->id < y->id) - (x->id > y->id);
}

/* Files of one checkpoint from *at on: their number. Parts are none of it. */
static unsigned list_group(const struct checkpoint_files *f, unsigned at)
{
	unsigned end = at;

	while (end < f->count && !f->at[end].part && f->at[end].round == f->at[at].round &&
		f->at[end].id == f->at[at].id)
		end++;
	return end - at;
}

int checkpoint_list(const struct checkpoint_place *place, struct checkpoint_entry **out, unsigned *count, struct err *e)
{
	struct checkpoint_absent absent;

	return checkpoint_list_there(place, out, count, &absent, e);
}

int checkpoint_list_there(const struct checkpoint_place *place, struct checkpoint_entry **out, unsigned *count,
	struct checkpoint_absent *absent, struct err *e)
{
	struct checkpoint_files files;
	struct checkpoint_entry *entries;
	unsigned found = 0;
	int rc = checkpoint_scan(place, &files, e);

	if (rc < 0)
		return rc;
	*absent = files.absent;
	entries = calloc(files.count + 1, sizeof(*entries));
	for (unsigned i = 0, some; entries && i < files.count; i += some ? some : 1) {
		some = list_group(&files, i);
		if (some)
			list_entry(&files.at[i], some, &entries[found++]);
	}
	checkpoint_scan_fini(&files);
	if (!entries)
		return err_set(e, -ENOMEM, "no memory for the list of checkpoints of job '%s'", place->job);
	if (found > 0)
		qsort(entries, found, sizeof(*entries), list_compare);
	*out = entries;
	*count = found;
	return 0;
}

/* ---- jobs ---- */

struct list_names {
	char **at;
	unsigned count, room;
};

static int list_name_add(struct list_names *names, const char *name)
{
	for (unsigned i = 0; i < names->count; i++)
		if (strcmp(names->at[i], name) == 0)
			return 0;
	if (names->count == names->room) {
		unsigned room = names->room ? names->room * 2 : 16;
		void *grown = realloc(names->at, room * sizeof(*names->at));

		if (!grown)
			return -ENOMEM;
		names->at = grown;
		names->room = room;
	}
	names->at[names->count] = strdup(name);
	return names->at[names->count] ? (names->count++, 0) : -ENOMEM;
}

static int list_take_ours(void *arg, const char *name)
{
	uint64_t round, id;
	unsigned piece;
	bool part;

	(void)arg;
	return checkpoint_format_parse(name, &round, &id, &piece, &part);
}

/* Does the job's directory hold a file of ours? */
static bool list_is_used(const struct checkpoint_place *place, const char *dir)
{
	struct disk *disk = checkpoint_disk(place);
	int fd = checkpoint_scan_open(place, 0, dir), used;

	if (fd < 0)
		return false;
	used = disk->ops->list(disk, fd, list_take_ours, NULL);
	disk->ops->close(disk, fd);
	return used > 0;
}

struct list_jobs {
	struct checkpoint_place place; /* one target */
	struct list_names *names;
};

static int list_take_job(void *arg, const char *name)
{
	struct list_jobs *jobs = arg;
	char job[CHECKPOINT_JOB_BYTES_MAX + 1];

	return checkpoint_format_job(name, job) && list_is_used(&jobs->place, name) ? list_name_add(jobs->names, job)
										    : 0;
}

static int list_jobs_of(const char *target, struct list_names *names)
{
	struct list_jobs jobs = {.place = {.targets = {target}, .target_count = 1}, .names = names};
	struct disk *disk = checkpoint_disk(&jobs.place);
	int fd = disk->ops->open_dir(disk, -1, target), rc;

	if (fd < 0)
		return 0;
	rc = disk->ops->list(disk, fd, list_take_job, &jobs);
	disk->ops->close(disk, fd);
	return rc == -ENOMEM ? rc : 0;
}

static int list_name_compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int checkpoint_list_jobs(const char *const *targets, unsigned target_count, char ***out, unsigned *count, struct err *e)
{
	struct list_names names = {0};
	int rc = 0;

	for (unsigned i = 0; i < target_count && rc == 0; i++)
		rc = list_jobs_of(targets[i], &names);
	if (rc < 0) {
		while (names.count > 0)
			free(names.at[--names.count]);
		free(names.at);
		return err_set(e, rc, "no memory for the names of jobs");
	}
	if (names.count > 0)
		qsort(names.at, names.count, sizeof(*names.at), list_name_compare);
	*out = names.at;
	*count = names.count;
	return 0;
}
