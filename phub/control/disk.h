/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What checkpoints want of a file system, as a table: the machine's, and in the simulation one in memory that loses
 * power. It is as narrow as the writers and readers of checkpoints are: files are made once, written with offsets,
 * synced, renamed inside their directory, and read again.
 *
 * Each slot returns 0, a descriptor or a count, or a negative errno, and leaves errno alone. All may block. They may be
 * called by any thread, by several at once unless the disk is `serial`. Descriptors are the disk's own, 0 or more, and
 * the caller's to close.
 */
#ifndef PHUB_CONTROL_DISK_H
#define PHUB_CONTROL_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct disk;

struct disk_stat {
	uint64_t bytes;
	uint64_t changed_s; /* Unix time */
	uint64_t device, inode;
	bool is_file;
};

struct disk_ops {
	/* A directory in an open one; with `at` -1 `name` is a path. No symbolic link, but for a path. */
	int (*open_dir)(struct disk *d, int at, const char *name);
	/* -EEXIST: it is there. */
	int (*make_dir)(struct disk *d, int at, const char *name);
	/* To read. Never waits for a writer, as a pipe of that name would. */
	int (*open_file)(struct disk *d, int at, const char *name);
	/*
	 * To write; -EEXIST: it is there. With `direct` what is written by whole blocks passes no cache; -EINVAL: the
	 * file system has no such thing, and no file was made.
	 */
	int (*make_file)(struct disk *d, int at, const char *name, bool direct);
	/* Gives it its size, and room for that: -ENOSPC; -EOPNOTSUPP: it cannot say. */
	int (*reserve)(struct disk *d, int fd, uint64_t bytes);
	/* May do less than it was asked for. 0 of a read: the file ends there. */
	ssize_t (*read)(struct disk *d, int fd, void *to, size_t count, uint64_t at);
	ssize_t (*write)(struct disk *d, int fd, const void *from, size_t count, uint64_t at);
	/* From now on writes pass the cache, and need not be whole blocks. */
	int (*buffer)(struct disk *d, int fd);
	/* Hints: these bytes may go out already; all of it will be read in order. */
	void (*write_behind)(struct disk *d, int fd, uint64_t at, uint64_t count);
	void (*read_ahead)(struct disk *d, int fd);
	/* A file's bytes, a directory's names: what there is now outlives a crash. */
	int (*sync)(struct disk *d, int fd);
	int (*sync_dir)(struct disk *d, int fd);
	/* What had the name `to` has none any more. */
	int (*rename)(struct disk *d, int at, const char *from, const char *to);
	int (*remove)(struct disk *d, int at, const char *name);
	int (*remove_dir)(struct disk *d, int at, const char *name);
	/* What has this name (a path with `at` -1), or, without a name, what is open. */
	int (*stat)(struct disk *d, int at, const char *name, struct disk_stat *out);
	/* Each name in a directory, in any order, until `take` returns something else than 0: that is returned. */
	int (*list)(struct disk *d, int fd, int (*take)(void *arg, const char *name), void *arg);
	void (*close)(struct disk *d, int fd);
	/*
	 * For this process alone: the lock of a directory, the file .phub.lock in it, until the process ends or gives
	 * *lock back. Over network mounts that can lock, for all their machines. -EBUSY: another process has it;
	 * -EOPNOTSUPP: the file system has no locks. The file then says `who`.
	 */
	int (*lock)(struct disk *d, const char *dir, const char *who, int *lock);
	void (*unlock)(struct disk *d, int lock);
	/* Has another process that lock? Then what it says there, of at most `bytes`. */
	bool (*is_locked)(struct disk *d, const char *dir, char *who, size_t bytes);
	/* Milliseconds of Unix time, and 64 bits that nobody had before. */
	uint64_t (*now_ms)(struct disk *d);
	int (*random)(struct disk *d, uint64_t *out);
};

struct disk {
	const struct disk_ops *ops;
	bool serial; /* for one thread alone */
};

/* All of it: 0, -EBADMSG when the file ends before, or as read() has it. */
int disk_read_all(struct disk *d, int fd, void *to, uint64_t count, uint64_t at);

/* All of it: 0, -ENOSPC when there is room for no more of it, or as write() has it. */
int disk_write_all(struct disk *d, int fd, const void *from, uint64_t count, uint64_t at);

/* The machine's own. */
struct disk *disk_machine(void);

#endif
