/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of a disk in memory, and which of them fail. */
#include "tests/sim/storage.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/oracle.h"
#include "tests/sim/storage_medium.h"

/* ---- what fails ---- */

static bool storage_chance(struct storage *s, double p)
{
	return p > 0 && !s->calm && (double)(oracle_random(&s->random) >> 11) * 0x1p-53 < p;
}

enum storage_kind { STORAGE_READS, STORAGE_WRITES, STORAGE_ASKS };

static struct mount *mount_of(struct disk *d)
{
	return (struct mount *)d;
}

/* Each call passes by here: 0, or why it fails. */
static int storage_call(struct mount *m, int target, enum storage_kind kind)
{
	struct storage *s = m->storage;
	double fail = kind == STORAGE_READS ? s->plan.fail_read : kind == STORAGE_WRITES ? s->plan.fail : 0;

	s->stats.calls++;
	if (m->left == 0)
		m->failed = true;
	else if (m->left != UINT64_MAX)
		m->left--;
	if (m->failed || (target >= 0 && s->hidden >> target & 1))
		return -EIO;
	if (!storage_chance(s, fail))
		return 0;
	if (kind == STORAGE_READS)
		s->stats.refused_reads++;
	else
		s->stats.refused++;
	return -EIO;
}

static int storage_room(struct storage *s, const struct node *n, uint64_t bytes)
{
	uint64_t more = bytes > n->now.count ? bytes - n->now.count : 0;

	if ((s->plan.bytes_max && storage_used(s, n->target) + more > s->plan.bytes_max) ||
		storage_chance(s, s->plan.full)) {
		s->stats.refused++;
		return -ENOSPC;
	}
	return 0;
}

/* ---- calls ---- */

static int storage_open(struct mount *m, struct node *n)
{
	struct storage *s = m->storage;

	for (int i = 0; i < STORAGE_FDS; i++) {
		if (s->fds[i])
			continue;
		s->fds[i] = n;
		s->openers[i] = m->number;
		return i;
	}
	return -EMFILE;
}

static struct node *storage_root(const struct storage *s, const char *path)
{
	unsigned target = (unsigned)(path[1] - '0');

	return path[0] == '/' && target < s->plan.targets && !(s->hidden >> target & 1) ? s->roots[target] : NULL;
}

static struct node *storage_at(const struct storage *s, int at, const char *name)
{
	struct entry *e;

	if (at < 0)
		return storage_root(s, name);
	if (!name)
		return s->fds[at];
	e = storage_find(s->fds[at]->names, name);
	return e ? e->node : NULL;
}

static int storage_target(const struct storage *s, int at)
{
	return at < 0 ? -1 : (int)s->fds[at]->target;
}

static int storage_open_dir(struct disk *d, int at, const char *name)
{
	struct mount *m = mount_of(d);
	struct storage *s = m->storage;
	int rc = storage_call(m, storage_target(s, at), STORAGE_READS);
	struct node *n = rc == 0 ? storage_at(s, at, name) : NULL;

	if (rc < 0)
		return rc;
	return !n ? -ENOENT : !n->is_dir ? -ENOTDIR : storage_open(m, n);
}

static int storage_open_file(struct disk *d, int at, const char *name)
{
	struct mount *m = mount_of(d);
	struct storage *s = m->storage;
	int rc = storage_call(m, storage_target(s, at), STORAGE_READS);
	struct node *n = rc == 0 ? storage_at(s, at, name) : NULL;

	if (rc < 0)
		return rc;
	return n ? storage_open(m, n) : -ENOENT;
}

static int storage_make(struct mount *m, int at, const char *name, bool is_dir, struct node **out)
{
	struct storage *s = m->storage;
	int rc = storage_call(m, storage_target(s, at), STORAGE_WRITES);

	if (rc == 0 && storage_at(s, at, name))
		rc = -EEXIST;
	if (rc == 0 && storage_chance(s, s->plan.full)) {
		s->stats.refused++;
		rc = -ENOSPC;
	}
	if (rc < 0)
		return rc;
	*out = storage_node(s, s->fds[at]->target, is_dir);
	(*out)->writer = m->number;
	storage_change(m, s->fds[at], "", name, *out);
	return 0;
}

static int storage_make_dir(struct disk *d, int at, const char *name)
{
	struct node *n;

	return storage_make(mount_of(d), at, name, true, &n);
}

static int storage_make_file(struct disk *d, int at, const char *name, bool direct)
{
	struct mount *m = mount_of(d);
	struct storage *s = m->storage;
	struct node *n;
	int rc = direct && s->plan.buffered ? -EINVAL : storage_make(m, at, name, false, &n);

	if (rc < 0)
		return rc;
	n->direct = direct;
	return storage_open(m, n);
}

static int storage_reserve(struct disk *d, int fd, uint64_t bytes)
{
	struct mount *m = mount_of(d);
	struct storage *s = m->storage;
	struct node *n = s->fds[fd];
	int rc = storage_call(m, storage_target(s, fd), STORAGE_WRITES);

	if (rc == 0 && s->plan.buffered && oracle_random(&s->random) % 2)
		rc = -EOPNOTSUPP;
	if (rc == 0)
		rc = storage_room(s, n, bytes);
	if (rc == 0 && bytes > n->now.count)
		storage_resize(&n->now, bytes);
	n->writer = rc == 0 ? m->number : n->writer;
	return rc;
}

static ssize_t storage_read(struct disk *d, int fd, void *to, size_t count, uint64_t at)
{
	struct mount *m = mount_of(d);
	struct storage *s = m->storage;
	const struct node *n = s->fds[fd];
	int rc = storage_call(m, storage_target(s, fd), STORAGE_READS);

	if (rc < 0)
		return rc;
	if (at >= n->now.count)
		return 0;
	count = count < n->now.count - at ? count : n->now.count - at;
	if (count > 1 && oracle_random(&s->random) % 16 == 0)
		count = 1 + oracle_random(&s->random) % (count - 1);
	memcpy(to, n->now.at + at, count);
	return (ssize_t)count;
}

static ssize_t storage_write(struct disk *d, int fd, const void *from, size_t count, uint64_t at)
{
	struct mount *m = mount_of(d);
	struct storage *s = m->storage;
	struct node *n = s->fds[fd];
	int rc = storage_call(m, storage_target(s, fd), STORAGE_WRITES);

	if (rc == 0 && n->direct && (at % STORAGE_BLOCK || count % STORAGE_BLOCK))
		rc = -EINVAL;
	if (rc == 0)
		rc = storage_room(s, n, at + count);
	if (rc < 0)
		return rc;
	if (count > 1 && oracle_random(&s->random) % 16 == 0)
		count = 1 + oracle_random(&s->random) % (count - 1);
	if (at + count > n->now.count)
		storage_resize(&n->now, at + count);
	memcpy(n->now.at + at, from, count);
	n->writer = m->number;
	n->changed_s = d->ops->now_ms(d) / 1000;
	return (ssize_t)count;
}

static int storage_buffer(struct disk *d, int fd)
{
	struct mount *m = mount_of(d);
	struct storage *s = m->storage;
	int rc = storage_call(m, storage_target(s, fd), STORAGE_ASKS);

	if (rc == 0)
		s->fds[fd]->direct = false;
	return rc;
}

static void storage_write_behind(struct disk *d, int fd, uint64_t at, uint64_t count)
{
}

static void storage_read_ahead(struct disk *d, int fd)
{
}

static int storage_sync(struct disk *d, int fd)
{
	struct mount *m = mount_of(d);
	struct storage *s = m->storage;
	struct node *n = s->fds[fd];
	int rc = storage_call(m, storage_target(s, fd), STORAGE_WRITES);

	if (rc < 0)
		return rc;
	storage_resize(&n->safe, n->now.count);
	memcpy(n->safe.at, n->now.at, n->now.count);
	return 0;
}

static int storage_sync_dir(struct disk *d, int fd)
{
	struct mount *m = mount_of(d);
	struct storage *s = m->storage;
	struct node *n = s->fds[fd];
	int rc = storage_call(m, storage_target(s, fd), STORAGE_WRITES);

	if (rc < 0)
		return rc;
	*n->safe_names = *n->names;
	n->change_count = 0;
	storage_sweep(s);
	return 0;
}

static int storage_rename(struct disk *d, int at, const char *from, const char *to)
{
	struct mount *m = mount_of(d);
	struct storage *s = m->storage;
	int rc = storage_call(m, storage_target(s, at), STORAGE_WRITES);
	struct node *n = rc == 0 ? storage_at(s, at, from) : NULL;

	if (rc < 0)
		return rc;
	if (!n)
		return -ENOENT;
	storage_change(m, s->fds[at], from, to, n);
	return 0;
}

static int storage_unlink(struct mount *m, int at, const char *name, bool is_dir)
{
	struct storage *s = m->storage;
	int rc = storage_call(m, storage_target(s, at), STORAGE_WRITES);
	struct node *n = rc == 0 ? storage_at(s, at, name) : NULL;

	if (rc < 0)
		return rc;
	if (!n)
		return -ENOENT;
	if (n->is_dir != is_dir)
		return is_dir ? -ENOTDIR : -EISDIR;
	if (is_dir && n->names->count > 0)
		return -ENOTEMPTY;
	storage_change(m, s->fds[at], name, "", n);
	return 0;
}

static int storage_remove(struct disk *d, int at, const char *name)
{
	return storage_unlink(mount_of(d), at, name, false);
}

static int storage_remove_dir(struct disk *d, int at, const char *name)
{
	return storage_unlink(mount_of(d), at, name, true);
}

static int storage_stat(struct disk *d, int at, const char *name, struct disk_stat *out)
{
	struct mount *m = mount_of(d);
	struct storage *s = m->storage;
	int rc = storage_call(m, storage_target(s, at), STORAGE_READS);
	struct node *n = rc == 0 ? storage_at(s, at, name) : NULL;

	if (rc < 0)
		return rc;
	if (!n)
		return -ENOENT;
	*out = (struct disk_stat){.bytes = n->now.count,
		.changed_s = n->changed_s,
		.device = 1 + n->target,
		.inode = 1 + (uint64_t)(n == s->roots[n->target]),
		.is_file = !n->is_dir};
	return 0;
}

static int storage_list(struct disk *d, int fd, int (*take)(void *arg, const char *name), void *arg)
{
	struct mount *m = mount_of(d);
	struct storage *s = m->storage;
	const struct node *n = s->fds[fd];
	int rc = storage_call(m, storage_target(s, fd), STORAGE_READS);

	for (unsigned i = 0; rc == 0 && i < n->names->count; i++)
		rc = take(arg, n->names->at[i].name);
	return rc;
}

static void storage_close(struct disk *d, int fd)
{
	struct mount *m = mount_of(d);
	struct storage *s = m->storage;

	s->fds[fd] = NULL;
	storage_sweep(s);
}

static int storage_lock(struct disk *d, const char *dir, const char *who, int *lock)
{
	struct mount *m = mount_of(d);
	struct storage *s = m->storage;
	const struct node *n = storage_root(s, dir);

	if (m->failed || !n)
		return -EIO;
	if (s->locks[n->target].held)
		return -EBUSY;
	s->locks[n->target] = (struct lock){.held = true, .mount = m->number};
	snprintf(s->locks[n->target].who, sizeof(s->locks[n->target].who), "%s", who);
	*lock = (int)n->target;
	return 0;
}

static void storage_unlock(struct disk *d, int lock)
{
	mount_of(d)->storage->locks[lock].held = false;
}

static bool storage_is_locked(struct disk *d, const char *dir, char *who, size_t bytes)
{
	const struct storage *s = mount_of(d)->storage;
	const struct node *n = storage_root(s, dir);
	bool held = n && s->locks[n->target].held;

	snprintf(who, bytes, "%s", held ? s->locks[n->target].who : "");
	return held;
}

static uint64_t storage_now_ms(struct disk *d)
{
	return (uint64_t)STORAGE_EPOCH_S * 1000 + mount_of(d)->storage->now_ns / 1000000;
}

static int storage_random(struct disk *d, uint64_t *out)
{
	*out = oracle_random(&mount_of(d)->storage->random);
	return 0;
}

static const struct disk_ops storage_ops = {
	.open_dir = storage_open_dir,
	.make_dir = storage_make_dir,
	.open_file = storage_open_file,
	.make_file = storage_make_file,
	.reserve = storage_reserve,
	.read = storage_read,
	.write = storage_write,
	.buffer = storage_buffer,
	.write_behind = storage_write_behind,
	.read_ahead = storage_read_ahead,
	.sync = storage_sync,
	.sync_dir = storage_sync_dir,
	.rename = storage_rename,
	.remove = storage_remove,
	.remove_dir = storage_remove_dir,
	.stat = storage_stat,
	.list = storage_list,
	.close = storage_close,
	.lock = storage_lock,
	.unlock = storage_unlock,
	.is_locked = storage_is_locked,
	.now_ms = storage_now_ms,
	.random = storage_random,
};

/* ---- for the world ---- */

struct storage *storage_create(const struct storage_plan *plan)
{
	struct storage *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	for (unsigned i = 0; i < STORAGE_MOUNTS; i++)
		s->mounts[i] = (struct mount){
			.disk = {.ops = &storage_ops, .serial = true}, .storage = s, .number = i, .left = UINT64_MAX};
	s->plan = *plan;
	s->random = plan->seed * 77 + 3;
	for (unsigned i = 0; i < plan->targets; i++)
		s->roots[i] = storage_node(s, i, true);
	return s;
}

void storage_destroy(struct storage *s)
{
	struct node *next;

	for (struct node *n = s ? s->nodes : NULL; n; n = next) {
		next = n->next;
		storage_free(n);
	}
	free(s);
}

struct disk *storage_disk(struct storage *s, unsigned mount)
{
	return &s->mounts[mount].disk;
}

const struct storage_stats *storage_stats(const struct storage *s)
{
	return &s->stats;
}

void storage_advance(struct storage *s, uint64_t now_ns)
{
	s->now_ns = now_ns;
}

void storage_fail_after(struct storage *s, unsigned mount, uint64_t calls)
{
	s->mounts[mount].left = calls;
	s->mounts[mount].failed = s->mounts[mount].failed || calls == 0;
}

bool storage_has_failed(const struct storage *s, unsigned mount)
{
	return s->mounts[mount].failed;
}

void storage_calm(struct storage *s, bool calm)
{
	s->calm = calm;
}
