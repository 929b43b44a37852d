/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of snapshots, chunk by chunk as cores copy them, and of other checkpoints.
 */
#include <errno.h>
#include <inttypes.h>
#include <time.h>

#include "phub/base/clock.h"
#include "phub/control/checkpoint.h"
#include "phub/control/checkpoint_writer.h"

static bool write_stopped(const struct checkpoint_progress *p)
{
	return p && atomic_load_explicit(&p->stop, memory_order_relaxed);
}

/* Until the core has copied it. */
static int write_await(
	const struct snapshot *s, uint32_t chunk, const char *job, const struct checkpoint_progress *p, struct err *e)
{
	static const struct timespec pause = {.tv_nsec = 200 * (long)NS_PER_US};

	for (;;) {
		if (atomic_load_explicit(&s->missed, memory_order_acquire))
			return err_set(e, -ECANCELED, "the snapshot of job '%s' was missed", job);
		if (write_stopped(p))
			return err_set(e, -ECANCELED, "the checkpoint of job '%s' was stopped", job);
		if (atomic_load_explicit(&s->chunks[chunk].copied, memory_order_acquire))
			return 0;
		nanosleep(&pause, NULL);
	}
}

int checkpoint_write(const struct checkpoint_place *place, const struct checkpoint_table *table,
	const struct snapshot *snapshot, struct checkpoint_progress *progress, struct err *e)
{
	struct checkpoint_writer *w = NULL;
	int rc;

	if (table->chunk_count != snapshot->chunk_count)
		return err_set(e, -EINVAL, "a table of %" PRIu32 " chunks with a snapshot of %" PRIu32,
			table->chunk_count, snapshot->chunk_count);
	rc = checkpoint_writer_create(place, table, snapshot->chunks, progress, &w, e);
	for (uint32_t i = 0; rc == 0 && i < snapshot->chunk_count; i++) {
		rc = write_await(snapshot, i, place->job, progress, e);
		if (rc == 0)
			rc = checkpoint_writer_add(w, snapshot->base + snapshot->chunks[i].offset, e);
	}
	if (rc == 0)
		rc = checkpoint_writer_finish(w, e);
	checkpoint_writer_destroy(w);
	return rc;
}

struct write_copy {
	struct checkpoint_writer *writer;
	struct err *e;
};

static int write_take(void *arg, uint32_t chunk, const void *bytes, uint64_t count)
{
	struct write_copy *copy = arg;

	(void)chunk;
	(void)count;
	return checkpoint_writer_add(copy->writer, bytes, copy->e);
}

int checkpoint_copy(const struct checkpoint_place *from, const struct checkpoint_table *table,
	const struct checkpoint_place *to, struct checkpoint_progress *progress, uint64_t *repaired, struct err *e)
{
	struct checkpoint_table now = *table;
	struct write_copy copy = {.e = e};
	int rc;

	now.written_s = 0;
	rc = checkpoint_writer_create(to, &now, table->chunks, progress, &copy.writer, e);
	if (rc == 0)
		rc = checkpoint_read_chunks(from, table, write_take, &copy, repaired, e);
	if (rc == 0)
		rc = checkpoint_writer_finish(copy.writer, e);
	checkpoint_writer_destroy(copy.writer);
	return rc;
}
