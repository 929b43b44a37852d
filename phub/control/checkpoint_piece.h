/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One file of a checkpoint on its way into one target. Each call that can fail returns 0 or a positive errno, and then
 * `doing` says what it was at. Called by one thread; blocks. A piece may have a thread of its own, so that several
 * targets write at the same time: what was put is written while more is put, and the error of a write is returned by a
 * later call.
 */
#ifndef PHUB_CONTROL_CHECKPOINT_PIECE_H
#define PHUB_CONTROL_CHECKPOINT_PIECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/control/checkpoint_format.h"
#include "phub/control/disk.h"

struct checkpoint_hand; /* the thread of a piece */

struct checkpoint_piece {
	struct disk *disk;
	const char *target;
	const char *dir; /* the job's, in the target */
	const char *doing;
	int target_fd, dir_fd, fd; /* -1: none */
	bool made_dir, direct, renamed;
	struct checkpoint_hand *hand; /* NULL: the caller writes */
	uint8_t *buffers;             /* one, or two with a thread */
	uint8_t *buffer;              /* that is being filled, of what goes out in one write */
	size_t used;
	uint64_t at;    /* of the buffer, in the file */
	uint64_t given; /* bytes written, or handed to the thread */
	/* What is being written, by whoever writes. */
	const uint8_t *full;
	size_t full_bytes;
	uint64_t full_at;
	char name[CHECKPOINT_NAME_BYTES], part[CHECKPOINT_NAME_BYTES];
};

/* Nothing is open yet: fit for checkpoint_piece_close(). */
void checkpoint_piece_init(
	struct checkpoint_piece *p, struct disk *disk, const char *target, const char *dir, const char *name);
/*
 * Makes NAME.part, with room for file_bytes where the file system can say so. What is put begins at data_at. With
 * `threaded` it gets a thread if there can be one.
 */
int checkpoint_piece_open(struct checkpoint_piece *p, uint64_t file_bytes, uint64_t data_at, bool threaded);
/* Bytes behind those before, by way of the buffer. */
int checkpoint_piece_put(struct checkpoint_piece *p, const void *bytes, uint64_t count);
/* The last of them, filled up with zeros to a whole block; all of it is written. */
int checkpoint_piece_flush(struct checkpoint_piece *p);
/* Whole blocks at their place; `bytes` at a multiple of a block, as `buffer` is when it was flushed. */
int checkpoint_piece_write(struct checkpoint_piece *p, const uint8_t *bytes, size_t count, uint64_t at);
/* Steps that several pieces may take at the same time. To be given to checkpoint_piece_begin(). */
int checkpoint_piece_sync(struct checkpoint_piece *p);
/* Gives it its name. */
int checkpoint_piece_publish(struct checkpoint_piece *p);
/* Begins a step when the one before is over, whose error comes first: then it is not begun. */
int checkpoint_piece_begin(struct checkpoint_piece *p, int (*step)(struct checkpoint_piece *p));
/* Waits for what was begun: its result, once. */
int checkpoint_piece_end(struct checkpoint_piece *p);
/* With `keep` it stays; else it goes, and the job's directory if it was made for it. Again: nothing. */
void checkpoint_piece_close(struct checkpoint_piece *p, bool keep);

#endif
