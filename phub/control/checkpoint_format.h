/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of a checkpoint's files (checkpoint.h says which) and their names; shared by those who write, read and list
 * them. Pure but for checkpoint_format_load(); any thread.
 */
#ifndef PHUB_CONTROL_CHECKPOINT_FORMAT_H
#define PHUB_CONTROL_CHECKPOINT_FORMAT_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/control/checkpoint.h"

#define CHECKPOINT_BLOCK      4096u
#define CHECKPOINT_NAME_BYTES 64u /* of a file's name */
#define CHECKPOINT_DIR_BYTES  (3 * CHECKPOINT_JOB_BYTES_MAX + 1)

/* What the header says. */
struct checkpoint_head {
	uint64_t id, round, written_ms;
	uint64_t file_bytes;
	uint64_t meta_bytes;
	uint64_t data_bytes; /* all stripes of this piece */
	uint32_t chunk_count;
	uint32_t k, m, piece;
	uint32_t table_crc;   /* of meta and rows: the same in all pieces */
	uint32_t stripes_crc; /* of the CRCs of this piece's stripes */
	char job[CHECKPOINT_JOB_BYTES_MAX + 1];
};

/* One chunk in the table. */
struct checkpoint_row {
	uint64_t before, steps;
	uint32_t bytes, crc;
};
enum { CHECKPOINT_ROW_BYTES = 24 };

static inline uint64_t checkpoint_format_round_up(uint64_t bytes, uint64_t to)
{
	return (bytes + to - 1) / to * to;
}

/* Bytes of each of the k stripes of a chunk. */
static inline uint32_t checkpoint_format_stripe(uint32_t bytes, uint32_t k)
{
	return (uint32_t)checkpoint_format_round_up((bytes + k - 1) / k, 64);
}

/* Where the parts begin: the table's meta at CHECKPOINT_BLOCK. */
uint64_t checkpoint_format_rows_at(const struct checkpoint_head *h);
uint64_t checkpoint_format_stripes_at(const struct checkpoint_head *h);
uint64_t checkpoint_format_data_at(const struct checkpoint_head *h);
uint64_t checkpoint_format_trailer_at(const struct checkpoint_head *h);

void checkpoint_format_put_head(const struct checkpoint_head *h, uint8_t block[CHECKPOINT_BLOCK]);
/* 0, or -EBADMSG: not ours, damaged, or of sizes that are not allowed or do not fit each other. */
int checkpoint_format_get_head(const uint8_t block[CHECKPOINT_BLOCK], struct checkpoint_head *h, struct err *e);
void checkpoint_format_put_trailer(const struct checkpoint_head *h, uint8_t block[CHECKPOINT_BLOCK]);
bool checkpoint_format_is_trailer(const struct checkpoint_head *h, const uint8_t block[CHECKPOINT_BLOCK]);
void checkpoint_format_put_row(const struct checkpoint_row *r, uint8_t out[CHECKPOINT_ROW_BYTES]);
void checkpoint_format_get_row(const uint8_t in[CHECKPOINT_ROW_BYTES], struct checkpoint_row *r);

/* Header and trailer of an open file whose name says this: 0, or -EBADMSG (not whole, not what its name says), -EIO. */
int checkpoint_format_load(struct disk *disk, int fd, const char *job, uint64_t round, uint64_t id, unsigned piece,
	struct checkpoint_head *h, struct err *e);

/* "12.00000000000000ab.3.phub" */
void checkpoint_format_name(uint64_t round, uint64_t id, unsigned piece, char out[CHECKPOINT_NAME_BYTES]);
/* The reverse; *part: it ends in ".part". False: no name of ours. */
bool checkpoint_format_parse(const char *name, uint64_t *round, uint64_t *id, unsigned *piece, bool *part);

/* A job's directory: its name, with what a file name should not have as %XX. 0, -EINVAL (empty), or -ENAMETOOLONG. */
int checkpoint_format_dir(const char *job, char out[CHECKPOINT_DIR_BYTES], struct err *e);
/* The reverse. False: no such directory is ours. */
bool checkpoint_format_job(const char *dir, char out[CHECKPOINT_JOB_BYTES_MAX + 1]);

#endif
