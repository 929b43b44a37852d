/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/control/checkpoint_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/crc.h"
#include "phub/control/checkpoint_scan.h"
#include "transport/le.h"

/* ---- tables ---- */

struct checkpoint_row checkpoint_reader_row(const struct checkpoint_reader *r, uint32_t chunk)
{
	struct checkpoint_row row;

	checkpoint_format_get_row(r->table + checkpoint_format_rows_at(&r->head) - CHECKPOINT_BLOCK +
					  (uint64_t)chunk * CHECKPOINT_ROW_BYTES,
		&row);
	return row;
}

/* Meta and rows of one piece, if the checksum says so. */
static int reader_load_table(struct checkpoint_reader *r, int fd, struct err *e)
{
	uint64_t bytes = checkpoint_format_stripes_at(&r->head) - CHECKPOINT_BLOCK;
	uint8_t *table = malloc(bytes + 1);
	int rc;

	if (!table)
		return err_set(e, -ENOMEM, "no memory for the table of a checkpoint of job '%s'", r->head.job);
	rc = disk_read_all(r->disk, fd, table, bytes, CHECKPOINT_BLOCK);
	if (rc == 0 && crc_32c(0, table, bytes) == r->head.table_crc) {
		r->table = table;
		return 0;
	}
	free(table);
	return err_set(e, rc ? rc : -EBADMSG, "its table %s", rc ? "cannot be read" : "has a wrong checksum");
}

/* Where each stripe lies; a table that is not what its header says is of no use. */
static int reader_lay_out(struct checkpoint_reader *r, struct err *e)
{
	uint64_t at = 0;

	r->offsets = calloc(r->head.chunk_count + 1, sizeof(*r->offsets));
	if (!r->offsets)
		return err_set(e, -ENOMEM, "no memory for a checkpoint of job '%s'", r->head.job);
	for (uint32_t i = 0; i < r->head.chunk_count; i++) {
		struct checkpoint_row row = checkpoint_reader_row(r, i);
		uint32_t stripe;

		if (row.bytes == 0 || row.bytes > CHECKPOINT_CHUNK_MAX)
			return err_set(
				e, -EBADMSG, "chunk %" PRIu32 " has %" PRIu32 " bytes in its table", i, row.bytes);
		stripe = checkpoint_format_stripe(row.bytes, r->head.k);
		r->largest = stripe > r->largest ? stripe : r->largest;
		r->offsets[i] = checkpoint_format_data_at(&r->head) + at;
		at += stripe;
	}
	if (at != r->head.data_bytes)
		return err_set(e, -EBADMSG, "its chunks do not have the bytes that its header says");
	return 0;
}

/* ---- pieces ---- */

static int reader_load_crcs(struct checkpoint_reader *r, int fd, const struct checkpoint_head *h, struct err *e)
{
	uint64_t bytes = (uint64_t)h->chunk_count * sizeof(uint32_t);
	uint32_t *crcs = malloc(bytes + 1);
	int rc;

	if (!crcs)
		return err_set(e, -ENOMEM, "no memory for a checkpoint of job '%s'", h->job);
	rc = disk_read_all(r->disk, fd, crcs, bytes, checkpoint_format_stripes_at(h));
	if (rc < 0 || crc_32c(0, crcs, bytes) != h->stripes_crc) {
		free(crcs);
		return err_set(e, rc ? rc : -EBADMSG, "its checksums %s", rc ? "cannot be read" : "are damaged");
	}
	for (uint32_t i = 0; i < h->chunk_count; i++)
		crcs[i] = le_get32((const uint8_t *)&crcs[i]);
	r->crcs[h->piece] = crcs;
	return 0;
}

/* The first file with a good table says what the others must be. */
static int reader_begin(struct checkpoint_reader *r, int fd, const struct checkpoint_file *f, struct err *e)
{
	struct checkpoint_head before = r->head;
	int rc = checkpoint_format_load(r->disk, fd, before.job, f->round, f->id, f->piece, &r->head, e);

	if (rc == 0)
		rc = reader_load_table(r, fd, e);
	if (rc < 0)
		r->head = before;
	return rc;
}

/* Takes a file in, when it belongs to the table; its own copy of that may be damaged. */
static int reader_add(struct checkpoint_reader *r, int fd, const struct checkpoint_file *f, struct err *e)
{
	struct checkpoint_head h;
	int rc = checkpoint_format_load(r->disk, fd, r->head.job, f->round, f->id, f->piece, &h, e);

	if (rc == 0 && (h.k != r->head.k || h.m != r->head.m || h.table_crc != r->head.table_crc ||
			       h.chunk_count != r->head.chunk_count || h.meta_bytes != r->head.meta_bytes ||
			       h.data_bytes != r->head.data_bytes))
		rc = err_set(e, -EBADMSG, "it belongs to another checkpoint");
	return rc < 0 ? rc : reader_load_crcs(r, fd, &h, e);
}

static int reader_open_file(struct checkpoint_reader *r, const struct checkpoint_place *place, const char *dir,
	const struct checkpoint_file *f, struct err *e)
{
	int at = checkpoint_scan_open(place, f->target, dir), fd = at, rc;
	char name[CHECKPOINT_NAME_BYTES];
	bool begins = !r->table;
	struct err why = {0};

	checkpoint_format_name(f->round, f->id, f->piece, name);
	if (at >= 0) {
		fd = r->disk->ops->open_file(r->disk, at, name);
		r->disk->ops->close(r->disk, at);
	}
	if (fd < 0)
		rc = err_set(&why, fd, "%s", strerror(-fd));
	else
		rc = r->table ? reader_add(r, fd, f, &why) : reader_begin(r, fd, f, &why);
	if (rc == 0 && begins) {
		r->disk->ops->close(r->disk, fd);
		return 0;
	}
	if (rc == 0) {
		r->disk->ops->read_ahead(r->disk, fd);
		r->fds[f->piece] = fd;
		r->targets[f->piece] = f->target;
		return 0;
	}
	if (fd >= 0)
		r->disk->ops->close(r->disk, fd);
	err_set(&r->last, rc, "%s/%s/%s: %s", place->targets[f->target], dir, name, why.text);
	return rc == -ENOMEM ? err_set(e, rc, "%s", why.text) : 0;
}

static int reader_open_files(
	struct checkpoint_reader *r, const struct checkpoint_place *place, uint64_t round, uint64_t id, struct err *e)
{
	struct checkpoint_files files;
	unsigned seen = 0, good = 0;
	int rc = checkpoint_scan(place, &files, e);

	if (rc < 0)
		return rc;
	/* Twice: one of them for the table, then all. */
	for (unsigned i = 0; i < 2 * files.count && rc == 0; i++) {
		const struct checkpoint_file *f = &files.at[i % files.count];

		if (f->part || f->round != round || f->id != id)
			continue;
		seen++;
		if (i < files.count ? !r->table : r->table && r->fds[f->piece] < 0)
			rc = reader_open_file(r, place, files.dir, f, e);
	}
	checkpoint_scan_fini(&files);
	for (unsigned i = 0; i < CHECKPOINT_TARGETS_MAX; i++)
		good += r->fds[i] >= 0;
	if (rc < 0)
		return rc;
	if (seen == 0)
		return err_set(
			e, -ENOENT, "job '%s' has no checkpoint before round %" PRIu64 " here", place->job, round);
	if (!r->table)
		return err_set(e, -EBADMSG, "the checkpoint of job '%s' before round %" PRIu64 " is lost: %s",
			place->job, round, r->last.text);
	if (good < r->head.k)
		return err_set(e, -EBADMSG,
			"the checkpoint of job '%s' before round %" PRIu64
			" is lost: %u of its files are good, it takes %u%s%s",
			place->job, round, good, r->head.k, r->last.text[0] ? ": " : "", r->last.text);
	return 0;
}

int checkpoint_reader_create(const struct checkpoint_place *place, uint64_t round, uint64_t id,
	struct checkpoint_reader **out, struct err *e)
{
	struct checkpoint_reader *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return err_set(e, -ENOMEM, "no memory for a checkpoint of job '%s'", place->job);
	r->disk = checkpoint_disk(place);
	r->plant = place->plant;
	for (unsigned i = 0; i < CHECKPOINT_TARGETS_MAX; i++)
		r->fds[i] = -1;
	memcpy(r->head.job, place->job, strnlen(place->job, CHECKPOINT_JOB_BYTES_MAX));
	rc = reader_open_files(r, place, round, id, e);
	if (rc == 0)
		rc = reader_lay_out(r, e);
	if (rc == 0)
		rc = checkpoint_parity_create(r->head.k, r->head.m, &r->parity, e);
	if (rc == 0) {
		r->stripes = aligned_alloc(64, (size_t)(r->head.k + r->head.m) * (r->largest + 64));
		if (!r->stripes)
			rc = err_set(e, -ENOMEM, "no memory for a checkpoint of job '%s'", place->job);
	}
	if (rc < 0)
		checkpoint_reader_destroy(r);
	else
		*out = r;
	return rc;
}

void checkpoint_reader_destroy(struct checkpoint_reader *r)
{
	if (!r)
		return;
	for (unsigned i = 0; i < CHECKPOINT_TARGETS_MAX; i++) {
		if (r->fds[i] >= 0)
			r->disk->ops->close(r->disk, r->fds[i]);
		free(r->crcs[i]);
	}
	checkpoint_parity_destroy(r->parity);
	free(r->table);
	free(r->offsets);
	free(r->stripes);
	free(r);
}

uint32_t checkpoint_reader_bad_tables(const struct checkpoint_reader *r)
{
	struct checkpoint_reader again = {.disk = r->disk, .head = r->head};
	uint32_t bad = 0;

	for (unsigned i = 0; i < CHECKPOINT_TARGETS_MAX; i++) {
		if (r->fds[i] < 0)
			continue;
		bad |= (uint32_t)(reader_load_table(&again, r->fds[i], NULL) < 0) << i;
		free(again.table);
		again.table = NULL;
	}
	return bad;
}

/* ---- chunks ---- */

static bool reader_stripe(struct checkpoint_reader *r, uint32_t chunk, unsigned piece, uint8_t *to, uint32_t bytes)
{
	if (r->fds[piece] < 0 || disk_read_all(r->disk, r->fds[piece], to, bytes, r->offsets[chunk]) < 0)
		return false;
	return r->plant == CHECKPOINT_PLANT_UNCHECKED || crc_32c(0, to, bytes) == r->crcs[piece][chunk];
}

int checkpoint_reader_chunk(
	struct checkpoint_reader *r, uint32_t chunk, bool all, struct checkpoint_read *out, struct err *e)
{
	struct checkpoint_row row = checkpoint_reader_row(r, chunk);
	uint32_t k = r->head.k, count = k + r->head.m, bytes = checkpoint_format_stripe(row.bytes, k), good = 0;
	uint32_t data = k == 32 ? UINT32_MAX : (1u << k) - 1;
	uint8_t *stripes[CHECKPOINT_TARGETS_MAX];
	unsigned have = 0;
	int rc;

	*out = (struct checkpoint_read){.bytes = r->stripes};
	for (unsigned i = 0; i < count && (all || have < k); i++) {
		stripes[i] = r->stripes + (size_t)i * bytes;
		if (reader_stripe(r, chunk, i, stripes[i], bytes)) {
			good |= 1u << i;
			have++;
		} else {
			out->bad++;
			out->bad_pieces |= UINT32_C(1) << i;
		}
	}
	if (have < k)
		return err_set(e, -EBADMSG, "chunk %" PRIu32 " is lost: %u of its %u stripes are good, it takes %u",
			chunk, have, count, k);
	if ((good & data) != data) {
		rc = checkpoint_parity_check(r->head.m, e);
		if (rc < 0)
			return rc;
		checkpoint_parity_rebuild(r->parity, stripes, bytes, good);
		out->repaired = k - (unsigned)__builtin_popcount(good & data);
	}
	if (r->plant != CHECKPOINT_PLANT_UNCHECKED && crc_32c(0, r->stripes, row.bytes) != row.crc)
		return err_set(
			e, -EBADMSG, "chunk %" PRIu32 " is lost: its stripes are good and do not make it", chunk);
	return 0;
}
