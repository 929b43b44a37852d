/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One checkpoint on its way to disk. A piece that cannot be written is given up, as long as parity makes up for it.
 */
#include "phub/control/checkpoint_writer.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/crc.h"
#include "phub/control/checkpoint_format.h"
#include "phub/control/checkpoint_parity.h"
#include "phub/control/checkpoint_piece.h"
#include "transport/le.h"

struct writer_piece {
	struct checkpoint_piece file;
	uint32_t *crcs; /* [chunk_count] of its stripes */
	bool lost;
};

struct checkpoint_writer {
	struct checkpoint_head head;
	char dir[CHECKPOINT_DIR_BYTES];
	const uint8_t *meta;
	const struct snapshot_chunk *chunks;
	uint32_t next;
	uint32_t *crcs; /* [chunk_count] */
	struct checkpoint_progress *progress;
	struct checkpoint_parity *parity;
	uint8_t *stripes; /* [k + m][largest] */
	struct writer_piece pieces[CHECKPOINT_TARGETS_MAX];
	unsigned piece_count, lost_count;
	struct err lost; /* those that were given up, by the last one's code */
	uint64_t started_ns, due_ns;
	enum checkpoint_plant plant;
	/* checkpoint_writer_finish() */
	uint8_t *table;
	size_t table_bytes;
	unsigned sealed; /* pieces that have their table */
	bool finished;
};

/* The checkpoint goes on without this piece: 0, or, when it cannot, the reason. */
static int writer_lose(struct checkpoint_writer *w, struct writer_piece *p, int error, struct err *e)
{
	struct err why;

	err_set(&why, -error, "cannot %s in %s: %s", p->file.doing, p->file.target, strerror(error));
	checkpoint_piece_close(&p->file, false);
	p->lost = true;
	if (w->lost_count++ > 0)
		err_set(&why, -error, "%.240s; %.240s", w->lost.text, why.text);
	w->lost = why;
	return w->lost_count > w->head.m
		       ? err_set(e, -error, "%u of %u targets: %s", w->lost_count, w->piece_count, why.text)
		       : 0;
}

/* ---- its speed ---- */

static bool writer_stopped(const struct checkpoint_writer *w)
{
	return w->progress && atomic_load_explicit(&w->progress->stop, memory_order_relaxed);
}

static int writer_cancel(const struct checkpoint_writer *w, struct err *e)
{
	return err_set(e, -ECANCELED, "the checkpoint of job '%s' was stopped", w->head.job);
}

/* Counts what went out, and when more may: -ECANCELED when it was stopped. */
static int writer_count(struct checkpoint_writer *w, struct err *e)
{
	struct checkpoint_progress *progress = w->progress;
	uint64_t bytes = 0;

	if (!progress)
		return 0;
	for (unsigned i = 0; i < w->piece_count; i++)
		bytes += w->pieces[i].file.given;
	atomic_store_explicit(&progress->written, bytes, memory_order_relaxed);
	if (progress->bytes_per_s)
		w->due_ns = w->started_ns + (uint64_t)((double)bytes * 1e9 / (double)progress->bytes_per_s);
	return writer_stopped(w) ? writer_cancel(w, e) : 0;
}

uint64_t checkpoint_writer_due(const struct checkpoint_writer *w)
{
	return w->due_ns;
}

/* ---- begin ---- */

/* Later than all that are there, or were: the clock may have been set back. */
static int writer_written_ms(const struct checkpoint_place *place, uint64_t wanted_ms,
	struct checkpoint_progress *progress, uint64_t *written_ms, struct err *e)
{
	struct disk *disk = checkpoint_disk(place);
	struct checkpoint_entry *entries;
	unsigned count;
	int rc = checkpoint_list(place, &entries, &count, e);

	if (rc < 0)
		return rc;
	*written_ms = wanted_ms ? wanted_ms : disk->ops->now_ms(disk);
	if (progress && progress->newest_ms >= *written_ms)
		*written_ms = progress->newest_ms + 1;
	for (unsigned i = 0; i < count; i++)
		if (entries[i].complete && entries[i].written_ms >= *written_ms)
			*written_ms = entries[i].written_ms + 1;
	free(entries);
	if (progress)
		progress->newest_ms = *written_ms;
	return 0;
}

static int writer_fill_head(struct checkpoint_writer *w, const struct checkpoint_place *place,
	const struct checkpoint_table *table, struct err *e)
{
	struct disk *disk = checkpoint_disk(place);
	struct checkpoint_head *h = &w->head;
	uint32_t largest = 0;
	int rc;

	*h = (struct checkpoint_head){.round = table->round,
		.meta_bytes = table->meta_bytes,
		.chunk_count = table->chunk_count,
		.k = place->target_count - place->parity,
		.m = place->parity};
	if (h->chunk_count > CHECKPOINT_CHUNKS_MAX || h->meta_bytes > CHECKPOINT_META_MAX)
		return err_set(e, -EINVAL, "a checkpoint of %" PRIu32 " chunks; allowed are %u", h->chunk_count,
			CHECKPOINT_CHUNKS_MAX);
	for (uint32_t i = 0; i < h->chunk_count; i++) {
		uint64_t bytes = w->chunks[i].bytes;
		uint32_t stripe;

		if (bytes == 0 || bytes > CHECKPOINT_CHUNK_MAX)
			return err_set(e, -EINVAL, "chunk %" PRIu32 " has %" PRIu64 " bytes; allowed are 1 to %u", i,
				bytes, CHECKPOINT_CHUNK_MAX);
		stripe = checkpoint_format_stripe((uint32_t)bytes, h->k);
		largest = stripe > largest ? stripe : largest;
		h->data_bytes += stripe;
	}
	h->file_bytes = checkpoint_format_trailer_at(h) + CHECKPOINT_BLOCK;
	memcpy(h->job, place->job, strlen(place->job) + 1);
	w->stripes = aligned_alloc(64, (size_t)(h->k + h->m) * (largest + 64));
	w->crcs = calloc(h->chunk_count + 1, sizeof(*w->crcs));
	if (!w->stripes || !w->crcs)
		return err_set(e, -ENOMEM, "no memory for a checkpoint of job '%s'", place->job);
	rc = disk->ops->random(disk, &h->id);
	return rc < 0 ? err_set(e, rc, "no random number for a checkpoint: %s", strerror(-rc)) : 0;
}

static int writer_open_pieces(struct checkpoint_writer *w, const struct checkpoint_place *place, struct err *e)
{
	struct disk *disk = checkpoint_disk(place);
	bool threaded = place->target_count > 1 && !disk->serial;
	int rc = 0;

	w->piece_count = place->target_count;
	for (unsigned i = 0; rc == 0 && i < w->piece_count; i++) {
		struct writer_piece *p = &w->pieces[i];
		char name[CHECKPOINT_NAME_BYTES];
		int failed;

		checkpoint_format_name(w->head.round, w->head.id, i, name);
		checkpoint_piece_init(&p->file, disk, place->targets[i], w->dir, name);
		p->crcs = calloc(w->head.chunk_count + 1, sizeof(*p->crcs));
		if (!p->crcs)
			return err_set(e, -ENOMEM, "no memory for a checkpoint of job '%s'", w->head.job);
		failed = checkpoint_piece_open(
			&p->file, w->head.file_bytes, checkpoint_format_data_at(&w->head), threaded);
		if (failed)
			rc = writer_lose(w, p, failed, e);
	}
	return rc;
}

int checkpoint_writer_create(const struct checkpoint_place *place, const struct checkpoint_table *table,
	const struct snapshot_chunk *chunks, struct checkpoint_progress *progress, uint64_t now_ns,
	struct checkpoint_writer **out, struct err *e)
{
	struct checkpoint_writer *w = calloc(1, sizeof(*w));
	int rc;

	if (!w)
		return err_set(e, -ENOMEM, "no memory for a checkpoint of job '%s'", place->job);
	w->meta = table->meta;
	w->chunks = chunks;
	w->progress = progress;
	w->plant = place->plant;
	w->started_ns = w->due_ns = now_ns;
	rc = checkpoint_check_count(place->target_count, place->parity, e);
	if (rc == 0)
		rc = checkpoint_check_twins(place, e);
	if (rc == 0)
		rc = checkpoint_format_dir(place->job, w->dir, e);
	if (rc == 0)
		rc = writer_fill_head(w, place, table, e);
	if (rc == 0)
		rc = writer_written_ms(place, table->written_ms, progress, &w->head.written_ms, e);
	if (rc == 0)
		rc = checkpoint_parity_create(w->head.k, w->head.m, &w->parity, e);
	if (rc == 0) {
		if (progress)
			atomic_store_explicit(
				&progress->total, w->head.file_bytes * place->target_count, memory_order_relaxed);
		rc = writer_open_pieces(w, place, e);
	}
	if (rc < 0)
		checkpoint_writer_destroy(w);
	else
		*out = w;
	return rc;
}

/* ---- chunks ---- */

int checkpoint_writer_add(struct checkpoint_writer *w, const void *bytes, struct err *e)
{
	uint64_t count = w->chunks[w->next].bytes;
	uint32_t stripe = checkpoint_format_stripe((uint32_t)count, w->head.k);
	uint8_t *stripes[CHECKPOINT_TARGETS_MAX];
	int rc = 0;

	assert(w->next < w->head.chunk_count);
	for (unsigned i = 0; i < w->piece_count; i++)
		stripes[i] = w->stripes + (size_t)i * stripe;
	memcpy(w->stripes, bytes, count);
	memset(w->stripes + count, 0, (size_t)stripe * w->head.k - count);
	checkpoint_parity_encode(w->parity, stripes, stripe);
	w->crcs[w->next] = crc_32c(0, w->stripes, count);
	for (unsigned i = 0; rc == 0 && i < w->piece_count; i++) {
		struct writer_piece *p = &w->pieces[i];
		int failed;

		if (p->lost)
			continue;
		p->crcs[w->next] = crc_32c(0, stripes[i], stripe);
		failed = checkpoint_piece_put(&p->file, stripes[i], stripe);
		if (failed)
			rc = writer_lose(w, p, failed, e);
	}
	w->next++;
	return rc < 0 ? rc : writer_count(w, e);
}

/* ---- end ---- */

/* Meta and rows, as they stand in every piece, in whole blocks; behind them a piece's own CRCs have room. */
static uint8_t *writer_table(struct checkpoint_writer *w, size_t *bytes)
{
	struct checkpoint_head *h = &w->head;
	uint64_t rows = checkpoint_format_rows_at(h) - CHECKPOINT_BLOCK;
	uint64_t stripes = checkpoint_format_stripes_at(h) - CHECKPOINT_BLOCK;
	uint8_t *table;

	*bytes = checkpoint_format_data_at(h) - CHECKPOINT_BLOCK;
	table = aligned_alloc(CHECKPOINT_BLOCK, *bytes + CHECKPOINT_BLOCK);
	if (!table)
		return NULL;
	memset(table, 0, *bytes);
	if (h->meta_bytes)
		memcpy(table, w->meta, h->meta_bytes);
	for (uint32_t i = 0; i < h->chunk_count; i++) {
		struct checkpoint_row row = {.before = w->chunks[i].before,
			.steps = w->chunks[i].steps,
			.bytes = (uint32_t)w->chunks[i].bytes,
			.crc = w->crcs[i]};

		checkpoint_format_put_row(&row, table + rows + (uint64_t)i * CHECKPOINT_ROW_BYTES);
	}
	h->table_crc = crc_32c(0, table, stripes);
	return table;
}

/* What is left of its data, then the table, trailer and header. */
static int writer_piece_finish(struct checkpoint_writer *w, struct writer_piece *p, uint8_t *table, size_t bytes)
{
	struct checkpoint_head head = w->head;
	uint8_t *crcs = table + checkpoint_format_stripes_at(&head) - CHECKPOINT_BLOCK;
	int rc = checkpoint_piece_flush(&p->file);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < head.chunk_count; i++)
		le_put32(crcs + (size_t)i * 4, p->crcs[i]);
	head.piece = (uint32_t)(p - w->pieces);
	head.stripes_crc = crc_32c(0, crcs, (size_t)head.chunk_count * 4);
	rc = checkpoint_piece_write(&p->file, table, bytes, CHECKPOINT_BLOCK);
	if (rc == 0) {
		checkpoint_format_put_trailer(&head, p->file.buffer);
		rc = checkpoint_piece_write(
			&p->file, p->file.buffer, CHECKPOINT_BLOCK, checkpoint_format_trailer_at(&head));
	}
	if (rc == 0) {
		checkpoint_format_put_head(&head, p->file.buffer);
		rc = checkpoint_piece_write(&p->file, p->file.buffer, CHECKPOINT_BLOCK, 0);
	}
	return rc;
}

/* One step of all pieces that are left, at the same time where they have threads. */
static int writer_each(struct checkpoint_writer *w, int (*step)(struct checkpoint_piece *p), struct err *e)
{
	int failed[CHECKPOINT_TARGETS_MAX], rc = 0;

	for (unsigned i = 0; i < w->piece_count; i++)
		failed[i] = w->pieces[i].lost ? 0 : checkpoint_piece_begin(&w->pieces[i].file, step);
	for (unsigned i = 0; i < w->piece_count; i++) {
		struct writer_piece *p = &w->pieces[i];

		if (!p->lost && !failed[i])
			failed[i] = checkpoint_piece_end(&p->file);
		if (failed[i] && rc == 0)
			rc = writer_lose(w, p, failed[i], e);
	}
	return rc;
}

/* The next piece gets its table. */
static int writer_seal(struct checkpoint_writer *w, struct err *e)
{
	struct writer_piece *p = &w->pieces[w->sealed++];
	int failed;

	if (!w->table)
		w->table = writer_table(w, &w->table_bytes);
	if (!w->table)
		return err_set(e, -ENOMEM, "no memory for a checkpoint of job '%s'", w->head.job);
	failed = p->lost ? 0 : writer_piece_finish(w, p, w->table, w->table_bytes);
	return failed ? writer_lose(w, p, failed, e) : writer_count(w, e);
}

int checkpoint_writer_finish(struct checkpoint_writer *w, struct err *e)
{
	int rc = 0;

	assert(w->next == w->head.chunk_count);
	if (w->sealed < w->piece_count) {
		rc = writer_seal(w, e);
		return rc < 0 ? rc : -EAGAIN;
	}
	/* All are on disk before any can be seen. */
	if (w->plant != CHECKPOINT_PLANT_UNSYNCED)
		rc = writer_each(w, checkpoint_piece_sync, e);
	if (rc == 0 && writer_stopped(w))
		rc = writer_cancel(w, e);
	if (rc == 0)
		rc = writer_each(w, checkpoint_piece_publish, e);
	if (rc < 0)
		return rc;
	w->finished = true;
	if (w->lost_count)
		err_set(e, w->lost.code, "%s", w->lost.text);
	return (int)w->lost_count;
}

void checkpoint_writer_destroy(struct checkpoint_writer *w)
{
	if (!w)
		return;
	for (unsigned i = 0; i < w->piece_count; i++) {
		if (w->pieces[i].file.target)
			checkpoint_piece_close(&w->pieces[i].file, w->finished);
		free(w->pieces[i].crcs);
	}
	checkpoint_parity_destroy(w->parity);
	free(w->table);
	free(w->stripes);
	free(w->crcs);
	free(w);
}
