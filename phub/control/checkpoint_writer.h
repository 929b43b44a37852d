/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes one checkpoint, chunk by chunk: what checkpoint_write() and checkpoint_copy() have in common. One thread.
 */
#ifndef PHUB_CONTROL_CHECKPOINT_WRITER_H
#define PHUB_CONTROL_CHECKPOINT_WRITER_H

#include "phub/control/checkpoint.h"

struct checkpoint_writer;

/* The same directory twice would be lost at once: -EINVAL. */
int checkpoint_check_twins(const struct checkpoint_place *place, struct err *e);

/*
 * Begins a checkpoint: of `table` round, written_ms and meta are taken, of the chunks only `bytes`. Place, chunks and
 * progress (or NULL) stay the caller's and in place until the end. `now_ns`: of any clock, from which its budget
 * counts. 0, or the errors of checkpoint_write().
 */
int checkpoint_writer_create(const struct checkpoint_place *place, const struct checkpoint_table *table,
	const struct snapshot_chunk *chunks, struct checkpoint_progress *progress, uint64_t now_ns,
	struct checkpoint_writer **out, struct err *e);
/* The next chunk, whose `before` and `steps` are final now; -ECANCELED when it was stopped. */
int checkpoint_writer_add(struct checkpoint_writer *w, const void *bytes, struct err *e);
/* When the budget lets the next call go out: by the clock of `now_ns`. */
uint64_t checkpoint_writer_due(const struct checkpoint_writer *w);
/*
 * All chunks are in: makes it visible, in steps: -EAGAIN, call again; 0, or how many targets are without, with the
 * first of them in `e`; or errors.
 */
int checkpoint_writer_finish(struct checkpoint_writer *w, struct err *e);
/* Removes what was not finished. NULL is allowed. */
void checkpoint_writer_destroy(struct checkpoint_writer *w);

#endif
