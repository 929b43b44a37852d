/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine's file systems, whose descriptors are the kernel's; and what all disks have in common.
 */
#include "phub/control/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int disk_result(int rc)
{
	return rc < 0 ? -errno : rc;
}

static int disk_open_dir(struct disk *d, int at, const char *name)
{
	(void)d;
	return disk_result(at < 0 ? open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
				  : openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

static int disk_make_dir(struct disk *d, int at, const char *name)
{
	(void)d;
	return disk_result(mkdirat(at, name, 0700));
}

static int disk_open_file(struct disk *d, int at, const char *name)
{
	(void)d;
	return disk_result(openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
}

static int disk_make_file(struct disk *d, int at, const char *name, bool direct)
{
	int fd = openat(at, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | (direct ? O_DIRECT : 0), 0600), error;

	(void)d;
	if (fd >= 0)
		return fd;
	error = errno;
	if (direct && error == EINVAL) /* tmpfs. The kernel makes the file before it asks the file system */
		unlinkat(at, name, 0);
	return -error;
}

static int disk_reserve(struct disk *d, int fd, uint64_t bytes)
{
	int rc = disk_result(fallocate(fd, 0, 0, (off_t)bytes));

	(void)d;
	return rc == -ENOSYS ? -EOPNOTSUPP : rc;
}

static ssize_t disk_read(struct disk *d, int fd, void *to, size_t count, uint64_t at)
{
	ssize_t got;

	(void)d;
	do
		got = pread(fd, to, count, (off_t)at);
	while (got < 0 && errno == EINTR);
	return got < 0 ? -errno : got;
}

static ssize_t disk_write(struct disk *d, int fd, const void *from, size_t count, uint64_t at)
{
	ssize_t put;

	(void)d;
	do
		put = pwrite(fd, from, count, (off_t)at);
	while (put < 0 && errno == EINTR);
	return put < 0 ? -errno : put;
}

static int disk_buffer(struct disk *d, int fd)
{
	(void)d;
	return disk_result(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT));
}

static void disk_write_behind(struct disk *d, int fd, uint64_t at, uint64_t count)
{
	(void)d;
	sync_file_range(fd, (off_t)at, (off_t)count, SYNC_FILE_RANGE_WRITE);
}

static void disk_read_ahead(struct disk *d, int fd)
{
	(void)d;
	posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
}

/* A file's size was reserved before, so that its data are all there is to sync. */
static int disk_sync(struct disk *d, int fd)
{
	(void)d;
	return disk_result(fdatasync(fd));
}

static int disk_sync_dir(struct disk *d, int fd)
{
	(void)d;
	return disk_result(fsync(fd));
}

static int disk_rename(struct disk *d, int at, const char *from, const char *to)
{
	(void)d;
	return disk_result(renameat(at, from, at, to));
}

static int disk_remove(struct disk *d, int at, const char *name)
{
	(void)d;
	return disk_result(unlinkat(at, name, 0));
}

static int disk_remove_dir(struct disk *d, int at, const char *name)
{
	(void)d;
	return disk_result(unlinkat(at, name, AT_REMOVEDIR));
}

static int disk_stat(struct disk *d, int at, const char *name, struct disk_stat *out)
{
	struct stat st;
	int rc = disk_result(!name ? fstat(at, &st) : fstatat(at < 0 ? AT_FDCWD : at, name, &st, 0));

	(void)d;
	if (rc == 0)
		*out = (struct disk_stat){
			.bytes = (uint64_t)st.st_size,
			.changed_s = (uint64_t)st.st_mtime,
			.device = st.st_dev,
			.inode = st.st_ino,
			.is_file = S_ISREG(st.st_mode),
		};
	return rc;
}

static int disk_list(struct disk *d, int fd, int (*take)(void *arg, const char *name), void *arg)
{
	int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0; /* fd's place in it stays */
	DIR *dir = own >= 0 ? fdopendir(own) : NULL;

	(void)d;
	if (!dir) {
		rc = -errno;
		if (own >= 0)
			close(own);
		return rc;
	}
	for (struct dirent *entry = readdir(dir); entry && rc == 0; entry = readdir(dir))
		rc = take(arg, entry->d_name);
	closedir(dir);
	return rc;
}

static void disk_close(struct disk *d, int fd)
{
	(void)d;
	close(fd);
}

static int disk_lock(struct disk *d, const char *dir, const char *who, int *lock)
{
	int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd, rc;

	(void)d;
	if (at < 0)
		return -errno;
	/* Not the directory itself: over NFS a lock takes a file that is open for writing. */
	fd = disk_result(openat(at, ".phub.lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
	close(at);
	if (fd < 0)
		return fd;
	rc = disk_result(flock(fd, LOCK_EX | LOCK_NB));
	if (rc == 0) { /* `fd` stays open: a disk that does not answer is written until the process is gone */
		if (ftruncate(fd, 0) == 0)
			(void)!pwrite(fd, who, strlen(who), 0); /* a full disk: then it says nothing */
		*lock = fd;
		return 0;
	}
	close(fd);
	return rc == -EWOULDBLOCK ? -EBUSY : rc == -ENOSYS || rc == -ENOLCK || rc == -EINVAL ? -EOPNOTSUPP : rc;
}

static void disk_unlock(struct disk *d, int lock)
{
	disk_close(d, lock);
}

static bool disk_is_locked(struct disk *d, const char *dir, char *who, size_t bytes)
{
	int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int fd = at < 0 ? -1 : openat(at, ".phub.lock", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	bool locked = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
	ssize_t got = locked ? pread(fd, who, bytes - 1, 0) : 0;

	(void)d;
	who[got > 0 ? got : 0] = '\0';
	if (fd >= 0)
		close(fd);
	if (at >= 0)
		close(at);
	return locked;
}

static uint64_t disk_now_ms(struct disk *d)
{
	struct timespec now;

	(void)d;
	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static int disk_random(struct disk *d, uint64_t *out)
{
	ssize_t got = getrandom(out, sizeof(*out), 0);

	(void)d;
	return got == sizeof(*out) ? 0 : got < 0 ? -errno : -EIO;
}

int disk_read_all(struct disk *d, int fd, void *to, uint64_t count, uint64_t at)
{
	uint8_t *p = to;

	while (count > 0) {
		ssize_t got = d->ops->read(d, fd, p, count, at);

		if (got <= 0)
			return got < 0 ? (int)got : -EBADMSG;
		p += got;
		count -= (uint64_t)got;
		at += (uint64_t)got;
	}
	return 0;
}

int disk_write_all(struct disk *d, int fd, const void *from, uint64_t count, uint64_t at)
{
	const uint8_t *p = from;

	while (count > 0) {
		ssize_t put = d->ops->write(d, fd, p, count, at);

		if (put <= 0)
			return put < 0 ? (int)put : -ENOSPC;
		p += put;
		count -= (uint64_t)put;
		at += (uint64_t)put;
	}
	return 0;
}

struct disk *disk_machine(void)
{
	static const struct disk_ops ops = {
		.open_dir = disk_open_dir,
		.make_dir = disk_make_dir,
		.open_file = disk_open_file,
		.make_file = disk_make_file,
		.reserve = disk_reserve,
		.read = disk_read,
		.write = disk_write,
		.buffer = disk_buffer,
		.write_behind = disk_write_behind,
		.read_ahead = disk_read_ahead,
		.sync = disk_sync,
		.sync_dir = disk_sync_dir,
		.rename = disk_rename,
		.remove = disk_remove,
		.remove_dir = disk_remove_dir,
		.stat = disk_stat,
		.list = disk_list,
		.close = disk_close,
		.lock = disk_lock,
		.unlock = disk_unlock,
		.is_locked = disk_is_locked,
		.now_ms = disk_now_ms,
		.random = disk_random,
	};
	static struct disk machine = {.ops = &ops};

	return &machine;
}
