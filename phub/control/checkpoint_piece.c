/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/control/checkpoint_piece.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BUFFER_BYTES = 1 << 20 };

/* A thread that takes steps, one after the other. */
struct checkpoint_hand {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int (*step)(struct checkpoint_piece *p); /* under way; NULL: none */
	int result;                              /* of the last one, until it is asked for */
	bool over;
};

void checkpoint_piece_init(
	struct checkpoint_piece *p, struct disk *disk, const char *target, const char *dir, const char *name)
{
	*p = (struct checkpoint_piece){
		.disk = disk, .target = target, .dir = dir, .target_fd = -1, .dir_fd = -1, .fd = -1};
	memcpy(p->name, name, strlen(name) + 1);
	memcpy(p->part, name, strlen(name));
	memcpy(p->part + strlen(name), ".part", sizeof(".part"));
}

/* ---- its thread ---- */

static void *piece_work(void *arg)
{
	struct checkpoint_piece *p = arg;
	struct checkpoint_hand *hand = p->hand;

	pthread_mutex_lock(&hand->lock);
	for (;;) {
		int (*step)(struct checkpoint_piece *) = hand->step;
		int rc;

		if (!step && hand->over)
			break;
		if (!step) {
			pthread_cond_wait(&hand->changed, &hand->lock);
			continue;
		}
		pthread_mutex_unlock(&hand->lock);
		rc = step(p);
		pthread_mutex_lock(&hand->lock);
		hand->result = rc;
		hand->step = NULL;
		pthread_cond_signal(&hand->changed);
	}
	pthread_mutex_unlock(&hand->lock);
	return NULL;
}

/* Where there can be no thread, the caller does the work. */
static void piece_hire(struct checkpoint_piece *p)
{
	struct checkpoint_hand *hand = calloc(1, sizeof(*hand));

	if (!hand)
		return;
	pthread_mutex_init(&hand->lock, NULL);
	pthread_cond_init(&hand->changed, NULL);
	p->hand = hand;
	if (pthread_create(&hand->thread, NULL, piece_work, p) == 0)
		return;
	pthread_cond_destroy(&hand->changed);
	pthread_mutex_destroy(&hand->lock);
	free(hand);
	p->hand = NULL;
}

static void piece_dismiss(struct checkpoint_piece *p)
{
	struct checkpoint_hand *hand = p->hand;

	if (!hand)
		return;
	pthread_mutex_lock(&hand->lock);
	hand->over = true;
	pthread_cond_signal(&hand->changed);
	pthread_mutex_unlock(&hand->lock);
	pthread_join(hand->thread, NULL);
	pthread_cond_destroy(&hand->changed);
	pthread_mutex_destroy(&hand->lock);
	free(hand);
	p->hand = NULL;
}

int checkpoint_piece_end(struct checkpoint_piece *p)
{
	struct checkpoint_hand *hand = p->hand;
	int rc;

	if (!hand)
		return 0;
	pthread_mutex_lock(&hand->lock);
	while (hand->step)
		pthread_cond_wait(&hand->changed, &hand->lock);
	rc = hand->result;
	hand->result = 0;
	pthread_mutex_unlock(&hand->lock);
	return rc;
}

int checkpoint_piece_begin(struct checkpoint_piece *p, int (*step)(struct checkpoint_piece *p))
{
	int rc = checkpoint_piece_end(p);

	if (rc || !p->hand)
		return rc ? rc : step(p);
	pthread_mutex_lock(&p->hand->lock);
	p->hand->step = step;
	pthread_cond_signal(&p->hand->changed);
	pthread_mutex_unlock(&p->hand->lock);
	return 0;
}

/* ---- begin ---- */

static int piece_open_dir(struct checkpoint_piece *p)
{
	const struct disk_ops *ops = p->disk->ops;
	int rc;

	p->doing = "open the directory";
	p->target_fd = ops->open_dir(p->disk, -1, p->target);
	if (p->target_fd < 0)
		return -p->target_fd;
	p->doing = "make the job's directory";
	rc = ops->make_dir(p->disk, p->target_fd, p->dir);
	if (rc < 0 && rc != -EEXIST)
		return -rc;
	p->made_dir = rc == 0;
	p->doing = "open the job's directory";
	p->dir_fd = ops->open_dir(p->disk, p->target_fd, p->dir);
	if (p->dir_fd < 0)
		return -p->dir_fd;
	/* Also of one that is there: who made it may have failed, or died, before it was synced. */
	p->doing = "sync the directory";
	return -ops->sync_dir(p->disk, p->target_fd);
}

static int piece_make_file(struct checkpoint_piece *p, uint64_t file_bytes)
{
	const struct disk_ops *ops = p->disk->ops;
	int rc;

	p->doing = "make a file";
	p->direct = true;
	p->fd = ops->make_file(p->disk, p->dir_fd, p->part, true);
	if (p->fd == -EINVAL) {
		p->direct = false;
		p->fd = ops->make_file(p->disk, p->dir_fd, p->part, false);
	}
	if (p->fd < 0)
		return -p->fd;
	/* Tells at once whether there is room; not all file systems can. */
	p->doing = "make a file of its size";
	rc = ops->reserve(p->disk, p->fd, file_bytes);
	return rc == -EOPNOTSUPP ? 0 : -rc;
}

int checkpoint_piece_open(struct checkpoint_piece *p, uint64_t file_bytes, uint64_t data_at, bool threaded)
{
	int rc = piece_open_dir(p);

	if (rc == 0)
		rc = piece_make_file(p, file_bytes);
	if (rc)
		return rc;
	p->doing = "find memory";
	p->at = data_at;
	if (threaded)
		piece_hire(p);
	p->buffers = aligned_alloc(CHECKPOINT_BLOCK, (size_t)PIECE_BUFFER_BYTES * (p->hand ? 2 : 1));
	p->buffer = p->buffers;
	return p->buffer ? 0 : ENOMEM;
}

/* ---- what goes out ---- */

static int piece_buffered(struct checkpoint_piece *p)
{
	p->direct = false;
	return -p->disk->ops->buffer(p->disk, p->fd);
}

/* Writes what is `full`. */
static int piece_write(struct checkpoint_piece *p)
{
	const struct disk_ops *ops = p->disk->ops;
	const uint8_t *bytes = p->full;
	uint64_t at = p->full_at;
	size_t count = p->full_bytes;

	p->doing = "write";
	while (count > 0) {
		ssize_t put = ops->write(p->disk, p->fd, bytes, count, at);
		int rc = put < 0 ? (int)-put : put == 0 ? EIO : 0;

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
			ops->write_behind(p->disk, p->fd, at, (uint64_t)put);
		bytes += put;
		count -= (size_t)put;
		at += (uint64_t)put;
	}
	return 0;
}

static int piece_give(struct checkpoint_piece *p, const uint8_t *bytes, size_t count, uint64_t at)
{
	int rc = checkpoint_piece_end(p);

	if (rc)
		return rc;
	p->full = bytes;
	p->full_bytes = count;
	p->full_at = at;
	p->given += count;
	return checkpoint_piece_begin(p, piece_write);
}

int checkpoint_piece_write(struct checkpoint_piece *p, const uint8_t *bytes, size_t count, uint64_t at)
{
	int rc = piece_give(p, bytes, count, at);

	return rc ? rc : checkpoint_piece_end(p);
}

/* The buffer goes out, and another one is filled. */
static int piece_turn(struct checkpoint_piece *p)
{
	size_t bytes = checkpoint_format_round_up(p->used, CHECKPOINT_BLOCK);
	int rc;

	memset(p->buffer + p->used, 0, bytes - p->used);
	rc = piece_give(p, p->buffer, bytes, p->at);
	if (p->hand)
		p->buffer = p->buffer == p->buffers ? p->buffers + PIECE_BUFFER_BYTES : p->buffers;
	p->at += bytes;
	p->used = 0;
	return rc;
}

int checkpoint_piece_flush(struct checkpoint_piece *p)
{
	int rc = piece_turn(p);

	return rc ? rc : checkpoint_piece_end(p);
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
			rc = piece_turn(p);
	}
	return rc;
}

/* ---- its end ---- */

int checkpoint_piece_sync(struct checkpoint_piece *p)
{
	p->doing = "sync a file";
	return -p->disk->ops->sync(p->disk, p->fd);
}

int checkpoint_piece_publish(struct checkpoint_piece *p)
{
	const struct disk_ops *ops = p->disk->ops;
	int rc;

	p->doing = "rename a file";
	rc = ops->rename(p->disk, p->dir_fd, p->part, p->name);
	if (rc < 0)
		return -rc;
	p->renamed = true;
	p->doing = "sync the job's directory";
	return -ops->sync_dir(p->disk, p->dir_fd);
}

void checkpoint_piece_close(struct checkpoint_piece *p, bool keep)
{
	const struct disk_ops *ops = p->disk->ops;

	piece_dismiss(p);
	if (p->fd >= 0) {
		ops->close(p->disk, p->fd);
		if (!keep)
			ops->remove(p->disk, p->dir_fd, p->renamed ? p->name : p->part);
	}
	if (p->dir_fd >= 0)
		ops->close(p->disk, p->dir_fd);
	if (p->target_fd >= 0) {
		if (p->made_dir && !keep)
			ops->remove_dir(p->disk, p->target_fd, p->dir);
		ops->close(p->disk, p->target_fd);
	}
	free(p->buffers);
	p->buffers = p->buffer = NULL;
	p->fd = p->dir_fd = p->target_fd = -1;
}
