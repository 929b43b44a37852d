/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/control/checkpoint_piece.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE_BUFFER_BYTES = 1 << 20 };

void checkpoint_piece_init(struct checkpoint_piece *p, const char *target, const char *dir, const char *name)
{
	*p = (struct checkpoint_piece){.target = target, .dir = dir, .target_fd = -1, .dir_fd = -1, .fd = -1};
	memcpy(p->name, name, strlen(name) + 1);
	memcpy(p->part, name, strlen(name));
	memcpy(p->part + strlen(name), ".part", sizeof(".part"));
}

static int piece_open_dir(struct checkpoint_piece *p)
{
	p->doing = "open the directory";
	p->target_fd = open(p->target, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (p->target_fd < 0)
		return errno;
	p->doing = "make the job's directory";
	if (mkdirat(p->target_fd, p->dir, 0700) == 0)
		p->made_dir = true;
	else if (errno != EEXIST)
		return errno;
	p->doing = "open the job's directory";
	p->dir_fd = openat(p->target_fd, p->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (p->dir_fd < 0)
		return errno;
	p->doing = "sync the directory";
	return p->made_dir && fsync(p->target_fd) < 0 ? errno : 0;
}

static int piece_make_file(struct checkpoint_piece *p, uint64_t file_bytes)
{
	int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;

	p->doing = "make a file";
	p->direct = true;
	p->fd = openat(p->dir_fd, p->part, flags | O_DIRECT, 0600);
	if (p->fd < 0 && errno == EINVAL) { /* tmpfs. The kernel makes the file before it asks the file system */
		unlinkat(p->dir_fd, p->part, 0);
		p->direct = false;
		p->fd = openat(p->dir_fd, p->part, flags, 0600);
	}
	if (p->fd < 0)
		return errno;
	/* Tells at once whether there is room; not all file systems can. */
	p->doing = "make a file of its size";
	if (fallocate(p->fd, 0, 0, (off_t)file_bytes) < 0 && errno != EOPNOTSUPP && errno != ENOSYS)
		return errno;
	return 0;
}

int checkpoint_piece_open(struct checkpoint_piece *p, uint64_t file_bytes, uint64_t data_at)
{
	int rc = piece_open_dir(p);

	if (rc == 0)
		rc = piece_make_file(p, file_bytes);
	if (rc)
		return rc;
	p->doing = "find memory";
	p->buffer = aligned_alloc(CHECKPOINT_BLOCK, PIECE_BUFFER_BYTES);
	p->at = data_at;
	return p->buffer ? 0 : ENOMEM;
}

static int piece_buffered(struct checkpoint_piece *p)
{
	p->direct = false;
	return fcntl(p->fd, F_SETFL, fcntl(p->fd, F_GETFL) & ~O_DIRECT) < 0 ? errno : 0;
}

int checkpoint_piece_write(struct checkpoint_piece *p, const uint8_t *bytes, size_t count, uint64_t at)
{
	p->doing = "write";
	while (count > 0) {
		ssize_t put = pwrite(p->fd, bytes, count, (off_t)at);
		int rc = put < 0 ? errno : put == 0 ? EIO : 0;

		if (rc == EINTR)
			continue;
		/* The file system took O_DIRECT and did not mean it; or what is left of a short write is not aligned.
		 */
		if (p->direct && (rc == EINVAL || (rc == 0 && put % CHECKPOINT_BLOCK))) {
			int failed = piece_buffered(p);

			if (failed)
				return failed;
			put = rc ? 0 : put;
		} else if (rc) {
			return rc;
		}
		if (!p->direct && put > 0) /* else all of it would wait for the end */
			sync_file_range(p->fd, (off_t)at, put, SYNC_FILE_RANGE_WRITE);
		bytes += put;
		count -= (size_t)put;
		at += (uint64_t)put;
		p->out += (uint64_t)put;
	}
	return 0;
}

int checkpoint_piece_flush(struct checkpoint_piece *p)
{
	size_t bytes = checkpoint_format_round_up(p->used, CHECKPOINT_BLOCK);
	int rc;

	memset(p->buffer + p->used, 0, bytes - p->used);
	rc = checkpoint_piece_write(p, p->buffer, bytes, p->at);
	p->at += bytes;
	p->used = 0;
	return rc;
}

int checkpoint_piece_put(struct checkpoint_piece *p, const void *bytes, uint64_t count)
{
	const uint8_t *from = bytes;
	int rc = 0;

	while (count > 0 && rc == 0) {
		uint64_t room = PIECE_BUFFER_BYTES - p->used, some = count < room ? count : room;

		memcpy(p->buffer + p->used, from, some);
		p->used += some;
		from += some;
		count -= some;
		if (p->used == PIECE_BUFFER_BYTES)
			rc = checkpoint_piece_flush(p);
	}
	return rc;
}

int checkpoint_piece_sync(struct checkpoint_piece *p)
{
	p->doing = "sync a file";
	return fdatasync(p->fd) < 0 ? errno : 0;
}

int checkpoint_piece_publish(struct checkpoint_piece *p)
{
	p->doing = "rename a file";
	if (renameat(p->dir_fd, p->part, p->dir_fd, p->name) < 0)
		return errno;
	p->renamed = true;
	p->doing = "sync the job's directory";
	return fsync(p->dir_fd) < 0 ? errno : 0;
}

void checkpoint_piece_close(struct checkpoint_piece *p, bool keep)
{
	if (p->fd >= 0) {
		close(p->fd);
		if (!keep)
			unlinkat(p->dir_fd, p->renamed ? p->name : p->part, 0);
	}
	if (p->dir_fd >= 0)
		close(p->dir_fd);
	if (p->target_fd >= 0) {
		if (p->made_dir && !keep)
			unlinkat(p->target_fd, p->dir, AT_REMOVEDIR);
		close(p->target_fd);
	}
	free(p->buffer);
	p->buffer = NULL;
	p->fd = p->dir_fd = p->target_fd = -1;
}
