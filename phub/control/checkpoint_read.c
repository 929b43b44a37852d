/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints as their readers want them: which one, its table, its chunks, and whether all of it is good.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "phub/control/checkpoint_reader.h"

/* ---- tables ---- */

static int read_fill_table(const struct checkpoint_reader *r, struct checkpoint_table *out)
{
	struct checkpoint_table t = {
		.round = r->head.round,
		.written_ms = r->head.written_ms,
		.meta_bytes = r->head.meta_bytes,
		.chunk_count = r->head.chunk_count,
		.id = r->head.id,
		.k = r->head.k,
		.m = r->head.m,
	};
	uint8_t *meta = malloc(t.meta_bytes + 1);
	uint64_t offset = 0;

	t.chunks = calloc(t.chunk_count + 1, sizeof(*t.chunks));
	t.meta = meta;
	if (!meta || !t.chunks) {
		checkpoint_table_fini(&t);
		return -ENOMEM;
	}
	memcpy(meta, r->table, t.meta_bytes);
	for (uint32_t i = 0; i < t.chunk_count; i++) {
		struct checkpoint_row row = checkpoint_reader_row(r, i);
		struct snapshot_chunk *c = &t.chunks[i];

		c->before = row.before;
		c->steps = row.steps;
		c->bytes = row.bytes;
		c->offset = offset;
		offset += checkpoint_format_round_up(row.bytes, CHECKPOINT_BLOCK);
	}
	*out = t;
	return 0;
}

int checkpoint_read_entry(const struct checkpoint_place *place, const struct checkpoint_entry *entry,
	struct checkpoint_table *out, struct err *e)
{
	struct checkpoint_reader *r;
	int rc = checkpoint_reader_create(place, entry->round, entry->id, &r, e);

	if (rc < 0)
		return rc;
	rc = read_fill_table(r, out);
	checkpoint_reader_destroy(r);
	return rc < 0 ? err_set(e, rc, "no memory for a checkpoint of job '%s'", place->job) : 0;
}

/* None can be read, of which this one is the newest. */
static int read_tell_short(const struct checkpoint_place *place, const struct checkpoint_entry *entry, struct err *e)
{
	if (entry->wanted == 0)
		return err_set(e, -ENOENT,
			"job '%s' has no checkpoint here that can be read: that before round %" PRIu64 " is torn",
			place->job, entry->round);
	return err_set(e, -ENOENT,
		"job '%s' has no checkpoint here that can be read: of that before round %" PRIu64
		" %u of %u files are here, and %u are needed; name the other directories, too",
		place->job, entry->round, entry->pieces, entry->wanted + entry->parity, entry->wanted);
}

int checkpoint_read_table(
	const struct checkpoint_place *place, uint64_t round, struct checkpoint_table *out, struct err *e)
{
	struct checkpoint_entry *entries, *found = NULL, *torn = NULL;
	unsigned count;
	int rc = checkpoint_list(place, &entries, &count, e);

	if (rc < 0)
		return rc;
	for (unsigned i = 0; i < count && !found; i++) {
		if (round && entries[i].round != round)
			continue;
		found = entries[i].complete ? &entries[i] : NULL;
		torn = torn ? torn : &entries[i];
	}
	if (found || (torn && round))
		rc = checkpoint_read_entry(place, found ? found : torn, out, e);
	else if (round)
		rc = err_set(e, -ENOENT, "job '%s' has no checkpoint before round %" PRIu64 " here", place->job, round);
	else
		rc = torn ? read_tell_short(place, torn, e)
			  : err_set(e, -ENOENT, "job '%s' has no checkpoint here", place->job);
	free(entries);
	return rc;
}

void checkpoint_table_fini(struct checkpoint_table *t)
{
	free((uint8_t *)(uintptr_t)t->meta);
	free(t->chunks);
	t->meta = NULL;
	t->chunks = NULL;
}

/* ---- chunks ---- */

static int read_open(const struct checkpoint_place *place, const struct checkpoint_table *table,
	struct checkpoint_reader **out, struct err *e)
{
	int rc = checkpoint_reader_create(place, table->round, table->id, out, e);

	if (rc < 0 || (*out)->head.chunk_count == table->chunk_count)
		return rc;
	checkpoint_reader_destroy(*out);
	return err_set(e, -EBADMSG, "the checkpoint of job '%s' has changed since its table was read", place->job);
}

struct checkpoint_reading {
	struct checkpoint_reader *reader;
	uint32_t next; /* chunk */
	uint64_t repaired;
};

int checkpoint_reading_begin(const struct checkpoint_place *place, const struct checkpoint_table *table,
	struct checkpoint_reading **out, struct err *e)
{
	struct checkpoint_reading *r = calloc(1, sizeof(*r));
	int rc = r ? read_open(place, table, &r->reader, e)
		   : err_set(e, -ENOMEM, "no memory for a checkpoint of job '%s'", place->job);

	if (rc < 0)
		free(r);
	else
		*out = r;
	return rc;
}

int checkpoint_reading_step(struct checkpoint_reading *r,
	int (*take)(void *arg, uint32_t chunk, const void *bytes, uint64_t count), void *arg, struct err *e)
{
	struct checkpoint_read read;
	int rc;

	if (r->next == r->reader->head.chunk_count)
		return 0;
	rc = checkpoint_reader_chunk(r->reader, r->next, false, &read, e);
	r->repaired += read.repaired;
	if (rc == 0)
		rc = take(arg, r->next, read.bytes, checkpoint_reader_row(r->reader, r->next).bytes);
	r->next++;
	return rc == 0 ? -EAGAIN : rc;
}

void checkpoint_reading_end(struct checkpoint_reading *r, uint64_t *repaired)
{
	if (repaired)
		*repaired = r ? r->repaired : 0;
	if (r)
		checkpoint_reader_destroy(r->reader);
	free(r);
}

int checkpoint_read_chunks(const struct checkpoint_place *place, const struct checkpoint_table *table,
	int (*take)(void *arg, uint32_t chunk, const void *bytes, uint64_t count), void *arg, uint64_t *repaired,
	struct err *e)
{
	struct checkpoint_reading *r = NULL;
	int rc = checkpoint_reading_begin(place, table, &r, e);

	if (rc < 0)
		return rc;
	while ((rc = checkpoint_reading_step(r, take, arg, e)) == -EAGAIN)
		;
	checkpoint_reading_end(r, repaired);
	return rc;
}

static int read_verify(
	struct checkpoint_reader *r, struct checkpoint_progress *progress, struct checkpoint_health *h, struct err *e)
{
	uint64_t done = 0;
	int rc = 0;

	for (uint32_t i = 0; i < h->chunks; i++) {
		struct checkpoint_read read;
		int lost;

		if (progress && atomic_load_explicit(&progress->stop, memory_order_relaxed))
			return err_set(e, -ECANCELED, "stopped at chunk %" PRIu32, i);
		lost = checkpoint_reader_chunk(r, i, true, &read, rc ? NULL : e);
		h->stripes_bad += read.bad;
		for (unsigned piece = 0; read.bad_pieces && piece < CHECKPOINT_TARGETS_MAX; piece++)
			if (r->fds[piece] >= 0)
				h->targets[r->targets[piece]].stripes_bad += read.bad_pieces >> piece & 1;
		h->chunks_lost += lost < 0;
		rc = rc ? rc : lost;
		done += checkpoint_reader_row(r, i).bytes;
		if (progress)
			atomic_store_explicit(&progress->written, done, memory_order_relaxed);
	}
	return rc;
}

int checkpoint_verify(const struct checkpoint_place *place, const struct checkpoint_table *table,
	struct checkpoint_progress *progress, struct checkpoint_health *out, struct err *e)
{
	struct checkpoint_reader *r;
	uint32_t tables_bad;
	uint64_t total = 0;
	int rc = read_open(place, table, &r, e);

	*out = (struct checkpoint_health){0};
	if (rc < 0)
		return rc;
	out->chunks = table->chunk_count;
	out->stripes = out->chunks * (r->head.k + r->head.m);
	tables_bad = checkpoint_reader_bad_tables(r);
	out->tables_bad = (unsigned)__builtin_popcount(tables_bad);
	for (unsigned i = 0; i < r->head.k + r->head.m; i++) {
		out->pieces_missing += r->fds[i] < 0;
		if (r->fds[i] < 0)
			continue;
		out->targets[r->targets[i]].has = true;
		out->targets[r->targets[i]].table_bad |= tables_bad >> i & 1;
	}
	for (uint32_t i = 0; i < table->chunk_count; i++)
		total += table->chunks[i].bytes;
	if (progress)
		atomic_store_explicit(&progress->total, total, memory_order_relaxed);
	rc = read_verify(r, progress, out, e);
	checkpoint_reader_destroy(r);
	return rc;
}
