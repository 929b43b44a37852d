/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints on disk: what was written is read, whatever is lost, torn or damaged, or it is said that it is lost;
 * never a wrong byte.
 */
#include "phub/control/checkpoint.h"
#include "tests/unit/cmocka_shim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/base/crc.h"
#include "phub/control/checkpoint_format.h"
#include "phub/control/checkpoint_meta.h"
#include "tests/unit/checkpoint_rig.h"

#define QUICK "/dev/shm" /* where fdatasync() costs nothing */
#define DISK  "/var/tmp"

static const uint32_t sizes[] = {1, 700, 5000, 64, 63, 65, 4096, 98304, 300000};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

/* ---- what is done again and again ---- */

static uint64_t size_of(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return (uint64_t)st.st_size;
}

static void flip(int fd, uint64_t at)
{
	uint8_t byte;

	assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
}

/* ---- whole ones ---- */

static void test_round_trip(void **state)
{
	static const char *const where[] = {DISK, QUICK};
	struct checkpoint_rig r;

	for (int i = 0; i < 2; i++) {
		checkpoint_rig_open(&r, where[i], 1, 0, "job");
		for (uint32_t count = 0; count <= SIZES; count += count ? SIZES - 1 : 1) {
			checkpoint_rig_chunks(&r, 12 + count, sizes, count, count);
			checkpoint_rig_write(&r);
			checkpoint_rig_expect(&r, 0);
		}
		assert_int_equal(checkpoint_rig_newest(&r).round, 12 + SIZES);
		assert_int_equal(checkpoint_rig_files(&r), 3);
		checkpoint_rig_close(&r);
	}
}

#ifdef PHUB_ISAL
enum { LARGE_TARGETS = 4 };
#else
enum { LARGE_TARGETS = 1 };
#endif

/* Many chunks: the table and the data are more than one write. */
static void test_large(void **state)
{
	enum { COUNT = 20000 };
	struct checkpoint_progress p = {.stop = false};
	struct checkpoint_health health;
	struct checkpoint_table t;
	uint32_t *bytes = calloc(COUNT, sizeof(*bytes));
	struct checkpoint_rig r;
	struct err e;

	checkpoint_rig_open(&r, DISK, LARGE_TARGETS, LARGE_TARGETS > 1, "large");
	for (int i = 0; i < COUNT; i++)
		bytes[i] = 1 + (uint32_t)i % 2000;
	checkpoint_rig_chunks(&r, 1, bytes, COUNT, 5);
	assert_int_equal(checkpoint_write(&r.place, &r.table, &r.snapshot, &p, &e), 0);
	assert_true(p.written == p.total && p.total == checkpoint_rig_newest(&r).bytes);
	checkpoint_rig_expect(&r, 0);
	assert_int_equal(checkpoint_read_table(&r.place, 0, &t, &e), 0);
	assert_int_equal(checkpoint_verify(&r.place, &t, &p, &health, &e), 0);
	assert_true(p.written == p.total);
	assert_int_equal(health.chunks, COUNT);
	assert_int_equal(health.stripes, COUNT * LARGE_TARGETS);
	assert_int_equal(health.stripes_bad + health.chunks_lost + health.pieces_missing, 0);
	p.stop = true;
	assert_int_equal(checkpoint_verify(&r.place, &t, &p, &health, &e), -ECANCELED);
	checkpoint_table_fini(&t);
	checkpoint_rig_close(&r);
	free(bytes);
}

/* ---- parity ---- */

enum damage { REMOVED, CUT, ZEROED, HEADER, TABLE, CHECKSUMS, DATA, TRAILER, FOREIGN, DAMAGES };

/* Does something to a piece; `other` is another checkpoint of the same job, round and sizes. */
static void harm(struct checkpoint_rig *r, const struct checkpoint_entry *entry, const struct checkpoint_entry *other,
	unsigned piece, enum damage how)
{
	int fd = checkpoint_rig_piece(r, entry, piece, O_RDWR), from;
	uint64_t bytes = size_of(fd);
	struct checkpoint_head h;
	uint8_t *copy;

	assert_int_equal(
		checkpoint_format_load(disk_machine(), fd, r->place.job, entry->round, entry->id, piece, &h, NULL), 0);
	switch (how) {
	case REMOVED: {
		char path[256], name[CHECKPOINT_NAME_BYTES];

		checkpoint_format_name(entry->round, entry->id, piece, name);
		snprintf(path, sizeof(path), "%s/%s/%s", r->place.targets[piece], r->place.job, name);
		assert_int_equal(unlink(path), 0);
		break;
	}
	case CUT:
		assert_int_equal(ftruncate(fd, (off_t)(bytes - 1)), 0);
		break;
	case ZEROED:
		assert_int_equal(ftruncate(fd, 0), 0);
		assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
		break;
	case HEADER:
		flip(fd, 3000);
		break;
	case TABLE:
		flip(fd, CHECKPOINT_BLOCK + 3);
		break;
	case CHECKSUMS:
		flip(fd, checkpoint_format_stripes_at(&h));
		break;
	case DATA:
		for (uint64_t at = checkpoint_format_data_at(&h); at < checkpoint_format_trailer_at(&h); at += 64)
			flip(fd, at + 1);
		break;
	case TRAILER:
		flip(fd, bytes - 5);
		break;
	default:
		from = checkpoint_rig_piece(r, other, piece, O_RDONLY);
		copy = malloc(bytes);
		assert_int_equal(pread(from, copy, bytes, 0), bytes);
		assert_int_equal(pwrite(fd, copy, bytes, 0), bytes);
		free(copy);
		close(from);
		break;
	}
	close(fd);
}

static void lose(unsigned k, unsigned m, uint32_t which, enum damage how)
{
	struct checkpoint_entry other, entry;
	struct checkpoint_table t;
	struct checkpoint_health health;
	struct checkpoint_rig r;
	struct err e = {0};
	uint64_t repaired = 0;
	unsigned count = (unsigned)__builtin_popcount(which);
	int rc;

	checkpoint_rig_open(&r, QUICK, k + m, m, "job");
	checkpoint_rig_chunks(&r, 7, sizes, SIZES, 1);
	checkpoint_rig_write(&r);
	other = checkpoint_rig_newest(&r);
	checkpoint_rig_chunks(&r, 7, sizes, SIZES, 2);
	checkpoint_rig_write(&r);
	entry = checkpoint_rig_newest(&r);
	assert_true(entry.id != other.id && entry.written_ms > other.written_ms);
	for (unsigned i = 0; i < k + m; i++)
		if (which >> i & 1)
			harm(&r, &entry, &other, i, how);
	assert_int_equal(checkpoint_remove(&r.place, &other, &e), 0);
	rc = checkpoint_rig_read(&r, &repaired, &e);
	if (count <= m && rc != 0)
		fail_msg("k %u m %u lost %x by %d: %s", k, m, which, how, e.text);
	/* A table is lost when it is in all pieces. */
	if (count > m && rc != -EBADMSG && rc != -ENOENT && (how != TABLE || count == k + m))
		fail_msg("k %u m %u lost %x by %d: %d", k, m, which, how, rc);
	if (count <= m) {
		assert_int_equal(repaired, how == TABLE ? 0 : SIZES * __builtin_popcount(which & ((1u << k) - 1)));
		assert_int_equal(checkpoint_read_table(&r.place, 0, &t, &e), 0);
		assert_int_equal(checkpoint_verify(&r.place, &t, NULL, &health, &e), 0);
		assert_int_equal(health.stripes_bad, how == TABLE ? 0 : SIZES * count);
		assert_int_equal(health.pieces_missing, how == DATA || how == TABLE ? 0 : count);
		assert_int_equal(health.tables_bad, how == TABLE ? count : 0);
		checkpoint_table_fini(&t);
	}
	checkpoint_rig_close(&r);
}

/* Any m pieces, in every way; and one more is too many. */
static void test_any_m(void **state)
{
	static const unsigned shapes[][2] = {
#ifdef PHUB_ISAL
		{1, 1}, {2, 1}, {3, 2}, {1, 3}, {2, 2},
#endif
		{1, 0}};

	for (unsigned s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
		for (uint32_t which = 0; which < 1u << (shapes[s][0] + shapes[s][1]); which++)
			if ((unsigned)__builtin_popcount(which) <= shapes[s][1] + 1)
				for (int how = 0; how < DAMAGES; how++)
					lose(shapes[s][0], shapes[s][1], which, (enum damage)how);
}

#ifdef PHUB_ISAL
/* Every piece is rotten, each in another chunk. */
static void test_rot_everywhere(void **state)
{
	struct checkpoint_entry entry;
	struct checkpoint_head h;
	struct checkpoint_rig r, to;
	struct checkpoint_table t;
	struct checkpoint_health health;
	struct err e = {0};
	uint64_t repaired;

	checkpoint_rig_open(&r, QUICK, 5, 2, "job");
	checkpoint_rig_open(&to, QUICK, 2, 1, "job");
	checkpoint_rig_chunks(&r, 7, sizes, SIZES, 2);
	checkpoint_rig_write(&r);
	entry = checkpoint_rig_newest(&r);
	for (unsigned i = 0; i < 5; i++) {
		int fd = checkpoint_rig_piece(&r, &entry, i, O_RDWR);
		uint64_t at;

		assert_int_equal(checkpoint_format_load(disk_machine(), fd, "job", 7, entry.id, i, &h, NULL), 0);
		at = checkpoint_format_data_at(&h);
		for (unsigned c = 0; c < i; c++)
			at += checkpoint_format_stripe(sizes[c], 3);
		flip(fd, at);
		close(fd);
	}
	checkpoint_rig_expect(&r, 3);
	assert_int_equal(checkpoint_read_table(&r.place, 0, &t, &e), 0);
	assert_int_equal(checkpoint_verify(&r.place, &t, NULL, &health, &e), 0);
	assert_int_equal(health.stripes_bad, 5);
	/* Repaired, elsewhere and in another shape. */
	assert_int_equal(checkpoint_copy(&r.place, &t, &to.place, NULL, &repaired, &e), 0);
	assert_int_equal(repaired, 3);
	checkpoint_table_fini(&t);
	checkpoint_rig_chunks(&to, 7, sizes, SIZES, 2);
	checkpoint_rig_expect(&to, 0);
	checkpoint_rig_close(&to);
	checkpoint_rig_close(&r);
}

/* Pieces may lie anywhere. */
static void test_targets_change_places(void **state)
{
	struct checkpoint_entry entry, *all;
	struct checkpoint_rig r;
	char part[160];
	int fd;

	checkpoint_rig_open(&r, QUICK, 4, 2, "job");
	checkpoint_rig_chunks(&r, 7, sizes, SIZES, 2);
	checkpoint_rig_write(&r);
	r.place.targets[0] = r.paths[3];
	r.place.targets[3] = r.paths[0];
	r.place.targets[1] = "/nowhere";
	r.place.parity = 0;
	checkpoint_rig_expect(&r, SIZES);
	/* One that was not renamed when the box died, between others that were. */
	entry = checkpoint_rig_newest(&r);
	snprintf(part, sizeof(part), "%s/job/7.%016" PRIx64 ".1.phub.part", r.paths[2], entry.id);
	fd = open(part, O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(checkpoint_rig_list(&r, &all), 1);
	assert_int_equal(all[0].pieces, 3);
	free(all);
	r.place.target_count = 0;
	assert_int_equal(checkpoint_rig_read(&r, NULL, NULL), -ENOENT);
	checkpoint_rig_close(&r);
}
#endif

/* ---- torn ---- */

/* How the rest of a file looks that was not written to its end. */
enum tear { TORN_CUT, TORN_ZEROS, TORN_HOLE, TORN_OLD, TEARS };

/* Of a small one, at every sector: it is not read, or as it was. */
static void test_torn(void **state)
{
	static const uint32_t small[] = {1, 700, 5000};
	static uint8_t good[32768], bad[32768];
	struct checkpoint_entry entry;
	struct checkpoint_rig r;
	unsigned read = 0;
	uint64_t bytes;
	int fd;

	checkpoint_rig_open(&r, QUICK, 1, 0, "job");
	checkpoint_rig_chunks(&r, 9, small, 3, 3);
	checkpoint_rig_write(&r);
	entry = checkpoint_rig_newest(&r);
	fd = checkpoint_rig_piece(&r, &entry, 0, O_RDWR);
	bytes = size_of(fd);
	assert_int_equal(pread(fd, good, sizeof(good), 0), bytes);
	for (uint64_t at = 0; at < bytes; at += 512) {
		for (int how = 0; how < TEARS; how++) {
			uint64_t end = how == TORN_HOLE ? at + 512 : bytes;
			struct err e = {0};
			int rc;

			memcpy(bad, good, bytes);
			memset(bad + at, how == TORN_OLD ? 0x5a : 0, end - at);
			assert_int_equal(ftruncate(fd, 0), 0);
			assert_int_equal(
				pwrite(fd, bad, how == TORN_CUT ? at : bytes, 0), how == TORN_CUT ? at : bytes);
			rc = checkpoint_rig_read(&r, NULL, &e);
			if (rc == 0)
				read++;
			else if (rc != -EBADMSG)
				fail_msg("torn at %" PRIu64 " by %d: %d %s", at, how, rc, e.text);
			if (how == TORN_CUT || (how != TORN_HOLE && at < bytes - 3584)) {
				assert_int_equal(rc, -EBADMSG);
				assert_false(checkpoint_rig_newest(&r).complete);
			}
		}
	}
	/* Sectors of nothing but padding: 7 behind the table, 4 behind the data. */
	assert_true(read > 0 && read < 40);
	close(fd);
	checkpoint_rig_close(&r);
}

/* ---- hostile ---- */

/* Writes another header, with a good checksum and trailer, into a good file. */
static void forge(struct checkpoint_rig *r, const struct checkpoint_head *h)
{
	struct checkpoint_entry entry = checkpoint_rig_newest(r);
	uint8_t block[CHECKPOINT_BLOCK];
	struct checkpoint_table t;
	struct err e = {0};
	int fd = checkpoint_rig_piece(r, &entry, 0, O_RDWR), rc;
	uint64_t trailer = size_of(fd) - CHECKPOINT_BLOCK;
	struct checkpoint_head good;

	assert_int_equal(checkpoint_format_load(disk_machine(), fd, "job", 9, entry.id, 0, &good, NULL), 0);
	checkpoint_format_put_head(h, block);
	assert_int_equal(pwrite(fd, block, sizeof(block), 0), sizeof(block));
	checkpoint_format_put_trailer(h, block);
	assert_int_equal(pwrite(fd, block, sizeof(block), (off_t)trailer), sizeof(block));
	rc = checkpoint_read_table(&r->place, 9, &t, &e);
	assert_int_equal(rc, -EBADMSG);
	assert_int_equal(checkpoint_read_table(&r->place, 0, &t, &e) == 0, 0);
	checkpoint_format_put_head(&good, block);
	assert_int_equal(pwrite(fd, block, sizeof(block), 0), sizeof(block));
	checkpoint_format_put_trailer(&good, block);
	assert_int_equal(pwrite(fd, block, sizeof(block), (off_t)trailer), sizeof(block));
	close(fd);
	checkpoint_rig_expect(r, 0);
}

/* All checksums are right but that of a chunk's bytes: it is lost, and told so. */
static void test_hostile_row(void **state)
{
	struct checkpoint_entry entry;
	uint8_t block[CHECKPOINT_BLOCK];
	struct checkpoint_head h;
	struct checkpoint_rig r;
	uint64_t bytes;
	struct err e = {0};
	int fd;

	checkpoint_rig_open(&r, QUICK, 1, 0, "job");
	checkpoint_rig_chunks(&r, 9, sizes, SIZES, 3);
	checkpoint_rig_write(&r);
	entry = checkpoint_rig_newest(&r);
	fd = checkpoint_rig_piece(&r, &entry, 0, O_RDWR);
	assert_int_equal(checkpoint_format_load(disk_machine(), fd, "job", 9, entry.id, 0, &h, NULL), 0);
	flip(fd, checkpoint_format_rows_at(&h) + 3 * CHECKPOINT_ROW_BYTES - 1);
	bytes = checkpoint_format_stripes_at(&h) - CHECKPOINT_BLOCK;
	assert_true(bytes <= sizeof(block));
	assert_int_equal(pread(fd, block, bytes, CHECKPOINT_BLOCK), bytes);
	h.table_crc = crc_32c(0, block, bytes);
	checkpoint_format_put_head(&h, block);
	assert_int_equal(pwrite(fd, block, sizeof(block), 0), sizeof(block));
	checkpoint_format_put_trailer(&h, block);
	assert_int_equal(pwrite(fd, block, sizeof(block), (off_t)checkpoint_format_trailer_at(&h)), sizeof(block));
	close(fd);
	assert_int_equal(checkpoint_rig_read(&r, NULL, &e), -EBADMSG);
	assert_non_null(strstr(e.text, "chunk 2 is lost"));
	checkpoint_rig_close(&r);
}

static void test_hostile_headers(void **state)
{
	struct checkpoint_head good, h;
	struct checkpoint_entry entry;
	struct checkpoint_rig r;
	int fd;

	checkpoint_rig_open(&r, QUICK, 1, 0, "job");
	checkpoint_rig_chunks(&r, 9, sizes, SIZES, 3);
	checkpoint_rig_write(&r);
	entry = checkpoint_rig_newest(&r);
	fd = checkpoint_rig_piece(&r, &entry, 0, O_RDONLY);
	assert_int_equal(checkpoint_format_load(disk_machine(), fd, "job", 9, entry.id, 0, &good, NULL), 0);
	close(fd);
/* clang-format off */
#define FORGE(field, value) do { h = good; h.field = (value); forge(&r, &h); } while (0)
	/* clang-format on */
	FORGE(chunk_count, UINT32_MAX);
	FORGE(chunk_count, CHECKPOINT_CHUNKS_MAX);
	FORGE(chunk_count, SIZES - 1); /* sizes fit, the table's checksum does not */
	FORGE(chunk_count, 0);
	FORGE(meta_bytes, UINT64_MAX);
	FORGE(meta_bytes, UINT64_MAX - 4096);
	FORGE(meta_bytes, CHECKPOINT_META_MAX);
	FORGE(data_bytes, UINT64_MAX);
	FORGE(data_bytes, good.data_bytes - 64);
	FORGE(file_bytes, good.file_bytes + 4096);
	FORGE(k, 0);
	FORGE(k, 2);
	FORGE(k, UINT32_MAX);
	FORGE(m, UINT32_MAX);
	FORGE(m, 32);
	FORGE(written_ms, UINT64_MAX);
	FORGE(piece, 1);
	FORGE(round, 8);
	FORGE(id, good.id + 1);
	FORGE(job[0], 'J');
	FORGE(table_crc, good.table_crc + 1);
	FORGE(stripes_crc, good.stripes_crc + 1);
	checkpoint_rig_close(&r);
}

TEST_PROGRAM(test_checkpoint)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_large),
		cmocka_unit_test(test_any_m),
#ifdef PHUB_ISAL
		cmocka_unit_test(test_rot_everywhere),
		cmocka_unit_test(test_targets_change_places),
#endif
		cmocka_unit_test(test_torn),
		cmocka_unit_test(test_hostile_headers),
		cmocka_unit_test(test_hostile_row),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
