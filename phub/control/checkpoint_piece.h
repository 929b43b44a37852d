/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One file of a checkpoint on its way into one target. Each call that can fail returns 0 or a positive errno, and then
 * `doing` says what it was at. One thread; blocks.
 */
#ifndef PHUB_CONTROL_CHECKPOINT_PIECE_H
#define PHUB_CONTROL_CHECKPOINT_PIECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/control/checkpoint_format.h"

struct checkpoint_piece {
	const char *target;
	const char *dir; /* the job's, in the target */
	const char *doing;
	int target_fd, dir_fd, fd; /* -1: none */
	bool made_dir, direct, renamed;
	uint8_t *buffer; /* of what goes out in one write */
	size_t used;
	uint64_t at;  /* of the buffer, in the file */
	uint64_t out; /* bytes written */
	char name[CHECKPOINT_NAME_BYTES], part[CHECKPOINT_NAME_BYTES];
};

/* Nothing is open yet: fit for checkpoint_piece_close(). */
void checkpoint_piece_init(struct checkpoint_piece *p, const char *target, const char *dir, const char *name);
/* Makes NAME.part, with room for file_bytes where the file system can say so. What is put begins at data_at. */
int checkpoint_piece_open(struct checkpoint_piece *p, uint64_t file_bytes, uint64_t data_at);
/* Bytes behind those before, by way of the buffer. */
int checkpoint_piece_put(struct checkpoint_piece *p, const void *bytes, uint64_t count);
/* The last of them, filled up with zeros to a whole block. */
int checkpoint_piece_flush(struct checkpoint_piece *p);
/* Whole blocks at their place; `bytes` at a multiple of a block, as `buffer` is when it was flushed. */
int checkpoint_piece_write(struct checkpoint_piece *p, const uint8_t *bytes, size_t count, uint64_t at);
int checkpoint_piece_sync(struct checkpoint_piece *p);
/* Gives it its name. */
int checkpoint_piece_publish(struct checkpoint_piece *p);
/* With `keep` it stays; else it goes, and the job's directory if it was made for it. Again: nothing. */
void checkpoint_piece_close(struct checkpoint_piece *p, bool keep);

#endif
