/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Headers, trailers, rows and names of checkpoints. Numbers are little-endian.
 */
#include "phub/control/checkpoint_format.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/crc.h"
#include "transport/le.h"

static const char format_magic[8] = "PHUBCKPT";
static const char format_end[8] = "PHUBCEND";

enum {
	FORMAT_CRC_AT = CHECKPOINT_BLOCK - 4,
	FORMAT_JOB_AT = 128,
};

/* ---- where things are ---- */

uint64_t checkpoint_format_rows_at(const struct checkpoint_head *h)
{
	return CHECKPOINT_BLOCK + checkpoint_format_round_up(h->meta_bytes, 8);
}

uint64_t checkpoint_format_stripes_at(const struct checkpoint_head *h)
{
	return checkpoint_format_rows_at(h) + (uint64_t)h->chunk_count * CHECKPOINT_ROW_BYTES;
}

uint64_t checkpoint_format_data_at(const struct checkpoint_head *h)
{
	return checkpoint_format_round_up(
		checkpoint_format_stripes_at(h) + (uint64_t)h->chunk_count * sizeof(uint32_t), CHECKPOINT_BLOCK);
}

uint64_t checkpoint_format_trailer_at(const struct checkpoint_head *h)
{
	return checkpoint_format_data_at(h) + checkpoint_format_round_up(h->data_bytes, CHECKPOINT_BLOCK);
}

/* ---- header and trailer ---- */

void checkpoint_format_put_head(const struct checkpoint_head *h, uint8_t block[CHECKPOINT_BLOCK])
{
	memset(block, 0, CHECKPOINT_BLOCK);
	memcpy(block, format_magic, sizeof(format_magic));
	le_put32(block + 8, CHECKPOINT_VERSION);
	le_put32(block + 12, h->chunk_count);
	le_put64(block + 16, h->id);
	le_put64(block + 24, h->round);
	le_put64(block + 32, h->written_ms / 1000);
	le_put64(block + 40, h->file_bytes);
	le_put64(block + 48, h->meta_bytes);
	le_put64(block + 56, h->data_bytes);
	le_put32(block + 64, h->k);
	le_put32(block + 68, h->m);
	le_put32(block + 72, h->piece);
	le_put32(block + 76, h->table_crc);
	le_put32(block + 80, h->stripes_crc);
	le_put32(block + 84, (uint32_t)(h->written_ms % 1000));
	memcpy(block + FORMAT_JOB_AT, h->job, strlen(h->job));
	le_put32(block + FORMAT_CRC_AT, crc_32c(0, block, FORMAT_CRC_AT));
}

static bool format_sizes_fit(const struct checkpoint_head *h)
{
	return h->chunk_count <= CHECKPOINT_CHUNKS_MAX && h->meta_bytes <= CHECKPOINT_META_MAX &&
	       h->data_bytes <= (uint64_t)CHECKPOINT_CHUNKS_MAX * CHECKPOINT_CHUNK_MAX && h->k >= 1 &&
	       h->k <= CHECKPOINT_TARGETS_MAX && h->m <= CHECKPOINT_TARGETS_MAX - h->k && h->piece < h->k + h->m &&
	       h->file_bytes == checkpoint_format_trailer_at(h) + CHECKPOINT_BLOCK;
}

int checkpoint_format_get_head(const uint8_t block[CHECKPOINT_BLOCK], struct checkpoint_head *h, struct err *e)
{
	uint32_t version = le_get32(block + 8), ms = le_get32(block + 84);
	uint64_t written_s = le_get64(block + 32);

	if (memcmp(block, format_magic, sizeof(format_magic)) != 0)
		return err_set(e, -EBADMSG, "it does not begin as a checkpoint does");
	if (crc_32c(0, block, FORMAT_CRC_AT) != le_get32(block + FORMAT_CRC_AT))
		return err_set(e, -EBADMSG, "its header has a wrong checksum");
	if (version != CHECKPOINT_VERSION)
		return err_set(e, -EBADMSG, "it is of version %" PRIu32 ", this program reads %d", version,
			CHECKPOINT_VERSION);
	*h = (struct checkpoint_head){
		.chunk_count = le_get32(block + 12),
		.id = le_get64(block + 16),
		.round = le_get64(block + 24),
		.written_ms = written_s * 1000 + ms,
		.file_bytes = le_get64(block + 40),
		.meta_bytes = le_get64(block + 48),
		.data_bytes = le_get64(block + 56),
		.k = le_get32(block + 64),
		.m = le_get32(block + 68),
		.piece = le_get32(block + 72),
		.table_crc = le_get32(block + 76),
		.stripes_crc = le_get32(block + 80),
	};
	memcpy(h->job, block + FORMAT_JOB_AT, CHECKPOINT_JOB_BYTES_MAX);
	if (written_s > CHECKPOINT_TIME_MAX / 1000 || ms > 999)
		return err_set(e, -EBADMSG, "it says that it was written at no time");
	if (!format_sizes_fit(h))
		return err_set(e, -EBADMSG, "the sizes in its header do not fit each other");
	return 0;
}

void checkpoint_format_put_trailer(const struct checkpoint_head *h, uint8_t block[CHECKPOINT_BLOCK])
{
	uint8_t head[CHECKPOINT_BLOCK];

	checkpoint_format_put_head(h, head);
	memset(block, 0, CHECKPOINT_BLOCK);
	memcpy(block, format_end, sizeof(format_end));
	le_put64(block + 8, h->id);
	memcpy(block + 16, head + FORMAT_CRC_AT, 4);
	le_put32(block + 20, h->table_crc);
	le_put32(block + 24, h->stripes_crc);
	le_put32(block + FORMAT_CRC_AT, crc_32c(0, block, FORMAT_CRC_AT));
}

bool checkpoint_format_is_trailer(const struct checkpoint_head *h, const uint8_t block[CHECKPOINT_BLOCK])
{
	uint8_t wanted[CHECKPOINT_BLOCK];

	checkpoint_format_put_trailer(h, wanted);
	return memcmp(block, wanted, CHECKPOINT_BLOCK) == 0;
}

static int format_read_block(struct disk *disk, int fd, uint64_t at, uint8_t block[CHECKPOINT_BLOCK], struct err *e)
{
	int rc = disk_read_all(disk, fd, block, CHECKPOINT_BLOCK, at);

	return rc == 0 ? 0 : err_set(e, rc, "%s", rc == -EBADMSG ? "it is cut short" : strerror(-rc));
}

int checkpoint_format_load(struct disk *disk, int fd, const char *job, uint64_t round, uint64_t id, unsigned piece,
	struct checkpoint_head *h, struct err *e)
{
	uint8_t block[CHECKPOINT_BLOCK];
	struct disk_stat st;
	int rc = format_read_block(disk, fd, 0, block, e);

	if (rc == 0)
		rc = checkpoint_format_get_head(block, h, e);
	if (rc < 0)
		return rc;
	if (strcmp(h->job, job) != 0 || h->round != round || h->id != id || h->piece != piece)
		return err_set(e, -EBADMSG, "its header is that of another file: '%.64s' round %" PRIu64 " piece %u",
			h->job, h->round, h->piece);
	rc = disk->ops->stat(disk, fd, NULL, &st);
	if (rc < 0)
		return err_set(e, rc, "%s", strerror(-rc));
	if (st.bytes != h->file_bytes)
		return err_set(e, -EBADMSG, "it has %" PRIu64 " bytes instead of %" PRIu64, st.bytes, h->file_bytes);
	rc = format_read_block(disk, fd, checkpoint_format_trailer_at(h), block, e);
	if (rc == 0 && !checkpoint_format_is_trailer(h, block))
		rc = err_set(e, -EBADMSG, "its trailer is not there: it was not written to the end");
	return rc;
}

/* ---- rows ---- */

void checkpoint_format_put_row(const struct checkpoint_row *r, uint8_t out[CHECKPOINT_ROW_BYTES])
{
	le_put64(out, r->before);
	le_put64(out + 8, r->steps);
	le_put32(out + 16, r->bytes);
	le_put32(out + 20, r->crc);
}

void checkpoint_format_get_row(const uint8_t in[CHECKPOINT_ROW_BYTES], struct checkpoint_row *r)
{
	*r = (struct checkpoint_row){
		.before = le_get64(in),
		.steps = le_get64(in + 8),
		.bytes = le_get32(in + 16),
		.crc = le_get32(in + 20),
	};
}

/* ---- names ---- */

void checkpoint_format_name(uint64_t round, uint64_t id, unsigned piece, char out[CHECKPOINT_NAME_BYTES])
{
	snprintf(out, CHECKPOINT_NAME_BYTES, "%" PRIu64 ".%016" PRIx64 ".%u.phub", round, id, piece);
}

bool checkpoint_format_parse(const char *name, uint64_t *round, uint64_t *id, unsigned *piece, bool *part)
{
	char again[CHECKPOINT_NAME_BYTES], end;
	size_t length;

	/* What sscanf() lets pass besides, the comparison does not. */
	if (sscanf(name, "%20" SCNu64 ".%16" SCNx64 ".%2u.phu%c", round, id, piece, &end) != 4)
		return false;
	checkpoint_format_name(*round, *id, *piece, again);
	length = strlen(again);
	if (strncmp(name, again, length) != 0)
		return false;
	*part = strcmp(name + length, ".part") == 0;
	return (!name[length] || *part) && *piece < CHECKPOINT_TARGETS_MAX;
}

int checkpoint_format_dir(const char *job, char out[CHECKPOINT_DIR_BYTES], struct err *e)
{
	size_t length = strlen(job), at = 0;

	if (length == 0)
		return err_set(e, -EINVAL, "a checkpoint of a job without a name");
	if (length > CHECKPOINT_JOB_BYTES_MAX)
		return err_set(e, -ENAMETOOLONG, "the name of job '%.64s...' is longer than %u bytes", job,
			CHECKPOINT_JOB_BYTES_MAX);
	for (size_t i = 0; i < length; i++) {
		unsigned char c = (unsigned char)job[i];

		if (isalnum(c) || c == '-' || c == '_' || (c == '.' && i > 0))
			out[at++] = (char)c;
		else
			at += (size_t)snprintf(out + at, CHECKPOINT_DIR_BYTES - at, "%%%02X", c);
	}
	out[at] = '\0';
	if (at > NAME_MAX)
		return err_set(e, -ENAMETOOLONG, "job '%.64s...' has a name that no directory can have", job);
	return 0;
}

bool checkpoint_format_job(const char *dir, char out[CHECKPOINT_JOB_BYTES_MAX + 1])
{
	char again[CHECKPOINT_DIR_BYTES];
	size_t at = 0;

	for (const char *c = dir; *c; c++, at++) {
		unsigned value = (unsigned char)*c;

		if (at == CHECKPOINT_JOB_BYTES_MAX)
			return false;
		if (*c == '%') {
			if (sscanf(c + 1, "%2X", &value) != 1 || value == 0 || !c[2])
				return false;
			c += 2;
		}
		out[at] = (char)value;
	}
	out[at] = '\0';
	return at > 0 && checkpoint_format_dir(out, again, NULL) == 0 && strcmp(again, dir) == 0;
}
