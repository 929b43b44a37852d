/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One checkpoint that is being read: its pieces, where they are, and its chunks out of any k stripes that are good. One
 * thread.
 */
#ifndef PHUB_CONTROL_CHECKPOINT_READER_H
#define PHUB_CONTROL_CHECKPOINT_READER_H

#include "phub/control/checkpoint_format.h"
#include "phub/control/checkpoint_parity.h"

struct checkpoint_reader {
	struct disk *disk;
	enum checkpoint_plant plant;
	struct checkpoint_head head;              /* of all pieces, but for which one it is */
	int fds[CHECKPOINT_TARGETS_MAX];          /* by piece; -1: it is missing */
	unsigned targets[CHECKPOINT_TARGETS_MAX]; /* by piece: where it is */
	uint32_t *crcs[CHECKPOINT_TARGETS_MAX];   /* [chunk_count] of its stripes */
	uint8_t *table;                           /* meta and rows */
	uint64_t *offsets;                        /* [chunk_count] of stripes in each file */
	uint32_t largest;                         /* stripe */
	struct checkpoint_parity *parity;
	uint8_t *stripes; /* [k + m][largest] */
	struct err last;  /* why a piece is missing, of some piece */
};

/* What reading a chunk found. */
struct checkpoint_read {
	const uint8_t *bytes; /* until the next one */
	unsigned bad;         /* stripes that are not there or wrong, of those that were looked at... */
	uint32_t bad_pieces;  /* ...by piece, a bit each */
	unsigned repaired;
};

/* Opens the pieces. 0, or -EBADMSG (fewer than k are good), -ENOENT, -ENOMEM. */
int checkpoint_reader_create(const struct checkpoint_place *place, uint64_t round, uint64_t id,
	struct checkpoint_reader **out, struct err *e);
void checkpoint_reader_destroy(struct checkpoint_reader *r);

/* Which of the pieces that are open have a table that is damaged, a bit each: the others' do for them. */
uint32_t checkpoint_reader_bad_tables(const struct checkpoint_reader *r);

/* The chunk's line in the table. */
struct checkpoint_row checkpoint_reader_row(const struct checkpoint_reader *r, uint32_t chunk);
/* The chunk itself; with `all` every stripe is looked at, else as many as it takes. 0, or -EBADMSG: it is lost. */
int checkpoint_reader_chunk(
	struct checkpoint_reader *r, uint32_t chunk, bool all, struct checkpoint_read *out, struct err *e);

#endif
