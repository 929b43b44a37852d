/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes one checkpoint, chunk by chunk: what checkpoint_write() and checkpoint_copy() have in common. One thread.
 */
#ifndef PHUB_CONTROL_CHECKPOINT_WRITER_H
#define PHUB_CONTROL_CHECKPOINT_WRITER_H

#include "phub/control/checkpoint.h"

struct checkpoint_writer;

/*
 * Begins a checkpoint: of `table` round, written_s and meta are taken, of the chunks only `bytes`. Place, chunks and
 * progress (or NULL) stay the caller's and in place until the end. 0, or the errors of checkpoint_write().
 */
int checkpoint_writer_create(const struct checkpoint_place *place, const struct checkpoint_table *table,
	const struct snapshot_chunk *chunks, struct checkpoint_progress *progress, struct checkpoint_writer **out,
	struct err *e);
/* The next chunk, whose `before` and `steps` are final now. Waits as the budget wants it. */
int checkpoint_writer_add(struct checkpoint_writer *w, const void *bytes, struct err *e);
/* All chunks are in: makes it visible. 0, or how many targets are without, with the first of them in `e`; or errors. */
int checkpoint_writer_finish(struct checkpoint_writer *w, struct err *e);
/* Removes what was not finished. NULL is allowed. */
void checkpoint_writer_destroy(struct checkpoint_writer *w);

#endif
