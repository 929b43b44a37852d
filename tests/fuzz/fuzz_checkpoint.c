/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: files of a checkpoint that somebody made up. The input is small and is blown up: what a header says, the table,
 * the data; sizes and checksums are as it has them, or, as its first byte says, made right, so that what lies behind
 * them is reached. Whatever it is, reading ends with the bytes that the checksums are of or with an error.
 *
 *      1 byte    flags: 1 the table's checksum is right, 2 that of the stripes', 4 the sizes, 8 the chunks', 16 as meta
 *      1 byte    k, 1 m, 1 how many pieces there are
 *      8 bytes   chunk_count, meta_bytes: 32 bits each
 *      2 bytes   so many of the rest are the table, the others the data
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "phub/base/crc.h"
#include "phub/control/checkpoint_format.h"
#include "phub/control/checkpoint_meta.h"
#include "transport/le.h"

enum {
	FLAG_TABLE = 1,
	FLAG_STRIPES = 2,
	FLAG_SIZES = 4,
	FLAG_CHUNKS = 8,
	FLAG_META = 16,
	HEAD_BYTES = 14,
	ROUND = 7,
	ID = 0xab,
	FILE_MAX = 1 << 20,
};

static char fuzz_root[] = "/dev/shm/fuzz-checkpoint-XXXXXX";
static char fuzz_dir[64];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

static void fuzz_path(unsigned piece, char out[160])
{
	char name[CHECKPOINT_NAME_BYTES];

	checkpoint_format_name(ROUND, ID, piece, name);
	snprintf(out, 160, "%s/%s", fuzz_dir, name);
}

static void fuzz_remove(void)
{
	for (unsigned i = 0; i < CHECKPOINT_TARGETS_MAX; i++) {
		char path[160];

		fuzz_path(i, path);
		unlink(path);
	}
	rmdir(fuzz_dir);
	rmdir(fuzz_root);
}

static void fuzz_begin(void)
{
	static bool begun;

	if (begun)
		return;
	fuzz_require(mkdtemp(fuzz_root) != NULL);
	snprintf(fuzz_dir, sizeof(fuzz_dir), "%s/job", fuzz_root);
	fuzz_require(mkdir(fuzz_dir, 0700) == 0);
	atexit(fuzz_remove);
	begun = true;
}

struct fuzz_file {
	uint8_t flags;
	struct checkpoint_head head;
	uint8_t *bytes; /* [FILE_MAX + CHECKPOINT_BLOCK] */
};

/* Rows whose sizes are small and whose checksums are right, and how many bytes their stripes take. */
static void fuzz_mend_rows(struct fuzz_file *f)
{
	uint8_t *rows = f->bytes + checkpoint_format_rows_at(&f->head);

	f->head.data_bytes = 0;
	for (uint32_t i = 0; i < f->head.chunk_count; i++) {
		struct checkpoint_row row;

		checkpoint_format_get_row(rows + i * CHECKPOINT_ROW_BYTES, &row);
		row.bytes = 1 + row.bytes % 1000;
		f->head.data_bytes += checkpoint_format_stripe(row.bytes, f->head.k ? f->head.k : 1);
		checkpoint_format_put_row(&row, rows + i * CHECKPOINT_ROW_BYTES);
	}
}

/* The same stripe in each piece; a chunk's checksum is right for k of them. */
static void fuzz_mend_chunks(struct fuzz_file *f)
{
	uint64_t at = checkpoint_format_data_at(&f->head);

	for (uint32_t i = 0; i < f->head.chunk_count; i++) {
		uint8_t *put = f->bytes + checkpoint_format_rows_at(&f->head) + i * CHECKPOINT_ROW_BYTES;
		struct checkpoint_row row;
		uint32_t stripe, left;

		checkpoint_format_get_row(put, &row);
		stripe = checkpoint_format_stripe(row.bytes, f->head.k);
		left = row.bytes;
		row.crc = 0;
		while (left > 0) {
			uint32_t some = left < stripe ? left : stripe;

			row.crc = crc_32c(row.crc, f->bytes + at, some);
			left -= some;
		}
		le_put32(f->bytes + checkpoint_format_stripes_at(&f->head) + (uint64_t)i * 4,
			crc_32c(0, f->bytes + at, stripe));
		checkpoint_format_put_row(&row, put);
		at += stripe;
	}
}

/* Lays the input out as a file, as far as its sizes allow. */
static bool fuzz_make(struct fuzz_file *f, const uint8_t *data, size_t size)
{
	size_t table = le_get16(data + 12), rest = size - HEAD_BYTES;

	f->flags = data[0];
	f->head = (struct checkpoint_head){.id = ID,
		.round = ROUND,
		.written_ms = 1,
		.k = data[1],
		.m = data[2],
		.chunk_count = le_get32(data + 4),
		.meta_bytes = le_get32(data + 8),
		.job = "job"};
	if (f->flags & FLAG_SIZES) {
		f->head.k = 1 + f->head.k % 4;
		f->head.m %= 4;
		f->head.chunk_count %= 64;
		f->head.meta_bytes %= 2000;
	}
	table = table < rest ? table : rest;
	if (checkpoint_format_data_at(&f->head) > FILE_MAX / 2)
		return false;
	memcpy(f->bytes + CHECKPOINT_BLOCK, data + HEAD_BYTES, table);
	if (f->flags & FLAG_SIZES)
		fuzz_mend_rows(f);
	if (checkpoint_format_trailer_at(&f->head) > FILE_MAX)
		return false;
	data += HEAD_BYTES + table;
	rest -= table;
	memcpy(f->bytes + checkpoint_format_data_at(&f->head), data,
		rest < f->head.data_bytes ? rest : f->head.data_bytes);
	if ((f->flags & FLAG_SIZES) && (f->flags & FLAG_CHUNKS))
		fuzz_mend_chunks(f);
	f->head.file_bytes = checkpoint_format_trailer_at(&f->head) + CHECKPOINT_BLOCK;
	return true;
}

static void fuzz_write(struct fuzz_file *f, unsigned pieces)
{
	uint64_t stripes = checkpoint_format_stripes_at(&f->head);

	if (f->flags & FLAG_TABLE)
		f->head.table_crc = crc_32c(0, f->bytes + CHECKPOINT_BLOCK, stripes - CHECKPOINT_BLOCK);
	if (f->flags & FLAG_STRIPES)
		f->head.stripes_crc = crc_32c(0, f->bytes + stripes, (size_t)f->head.chunk_count * 4);
	for (unsigned i = 0; i < pieces; i++) {
		char path[160];
		int fd;

		f->head.piece = i;
		checkpoint_format_put_head(&f->head, f->bytes);
		checkpoint_format_put_trailer(&f->head, f->bytes + checkpoint_format_trailer_at(&f->head));
		fuzz_path(i, path);
		fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		fuzz_require(fd >= 0);
		fuzz_require(write(fd, f->bytes, f->head.file_bytes) == (ssize_t)f->head.file_bytes);
		close(fd);
	}
}

/* Adds up what came, so that it is read. */
static int fuzz_take(void *arg, uint32_t chunk, const void *bytes, uint64_t count)
{
	uint32_t *sum = arg;

	*sum = crc_32c(*sum, bytes, count);
	return 0;
}

static void fuzz_read(void)
{
	struct checkpoint_place place = {.targets = {fuzz_root}, .target_count = 1, .job = "job"};
	struct checkpoint_health health;
	struct checkpoint_table t;
	struct chunk_plan plan;
	struct table *keys;
	struct err e;
	uint32_t sum = 0;
	unsigned arrays;
	int rc, verified;

	if (checkpoint_read_table(&place, ROUND, &t, &e) < 0)
		return;
	rc = checkpoint_read_chunks(&place, &t, fuzz_take, &sum, NULL, &e);
	verified = checkpoint_verify(&place, &t, NULL, &health, &e);
	fuzz_require((rc == 0) == (verified == 0) && (rc == 0) == (health.chunks_lost == 0));
	if (checkpoint_meta_unpack(t.meta, t.meta_bytes, &keys, &e) == 0) {
		if (checkpoint_meta_plan(keys, &t, &plan, &arrays, &e) == 0)
			chunking_plan_fini(&plan);
		table_destroy(keys);
	}
	checkpoint_table_fini(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_file f;
	struct table *keys;
	struct err e;

	if (size < HEAD_BYTES)
		return 0;
	if (data[0] & FLAG_META) {
		if (checkpoint_meta_unpack(data + 1, size - 1, &keys, &e) == 0)
			table_destroy(keys);
		return 0;
	}
	fuzz_begin();
	f.bytes = calloc(1, FILE_MAX + CHECKPOINT_BLOCK);
	fuzz_require(f.bytes != NULL);
	if (fuzz_make(&f, data, size)) {
		fuzz_write(&f, data[3] % (CHECKPOINT_TARGETS_MAX + 1));
		fuzz_read();
	}
	free(f.bytes);
	for (unsigned i = 0; i < data[3] % (CHECKPOINT_TARGETS_MAX + 1); i++) {
		char path[160];

		fuzz_path(i, path);
		unlink(path);
	}
	return 0;
}
