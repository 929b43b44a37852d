/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What checkpoint targets say of the root: written whole or not at all, and read where some of them are away, torn,
 * rotten or behind the others.
 */
#include "phub/control/root_file.h"
#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/checkpoint_rig.h"

#define QUICK "/dev/shm" /* where fdatasync() costs nothing */

static const struct root_file two = {.epoch = 2,
	.box = "b2",
	.address = "10.0.0.2:7077",
	.by = "ann@desk (10.0.0.9:1)",
	.written_ms = 1700000000123};

static char *path_of(struct checkpoint_rig *r, unsigned target, const char *name, char path[200])
{
	snprintf(path, 200, "%s/%s", r->paths[target], name);
	return path;
}

static void put(struct checkpoint_rig *r, unsigned target, uint64_t epoch)
{
	struct root_file file = two;
	struct checkpoint_place place = {.target_count = 1, .targets = {r->paths[target]}};
	struct err e;

	file.epoch = epoch;
	assert_int_equal(root_file_write(&place, &file, &e), 0);
}

static size_t slurp(const char *path, char text[2048])
{
	int fd = open(path, O_RDONLY);
	ssize_t got = read(fd, text, 2047);

	assert_true(fd >= 0 && got >= 0);
	close(fd);
	text[got] = '\0';
	return (size_t)got;
}

static void spill(const char *path, const char *text, size_t count)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0 && write(fd, text, count) == (ssize_t)count);
	close(fd);
}

static uint64_t epoch_of(struct checkpoint_rig *r, int rc)
{
	struct root_file file = {.epoch = 77};
	struct err e;

	assert_int_equal(root_file_read(&r->place, &file, &e), rc);
	return file.epoch;
}

/* Nothing is there; then it is there as it was written, and the next in its place. */
static void test_whole(void **state)
{
	struct root_file file, long_one = {.epoch = UINT64_MAX, .tls = true, .written_ms = UINT64_MAX};
	struct checkpoint_rig r;
	struct err e;

	checkpoint_rig_open(&r, QUICK, 1, 0, "j");
	assert_int_equal(root_file_read(&r.place, &file, &e), 0);
	assert_int_equal(file.epoch, 0);
	assert_int_equal(root_file_write(&r.place, &two, &e), 0);
	assert_int_equal(root_file_read(&r.place, &file, &e), 0);
	assert_memory_equal(&file, &two, sizeof(file));
	memset(long_one.box, 'b', sizeof(long_one.box) - 1);
	memset(long_one.address, 'a', sizeof(long_one.address) - 1);
	memset(long_one.by, ' ', sizeof(long_one.by) - 1);
	assert_int_equal(root_file_write(&r.place, &long_one, &e), 0);
	assert_int_equal(root_file_read(&r.place, &file, &e), 0);
	assert_memory_equal(&file, &long_one, sizeof(file));
	checkpoint_rig_close(&r);
}

/* The file with one byte more, less or another: never is it taken for one, nor for none. */
static void test_damaged(void **state)
{
	struct checkpoint_rig r;
	struct root_file file;
	char path[200], text[2048];
	struct err e;
	size_t count;

	checkpoint_rig_open(&r, QUICK, 1, 0, "j");
	put(&r, 0, 2);
	count = slurp(path_of(&r, 0, ROOT_FILE_NAME, path), text);
	for (size_t length = 0; length < count; length++) {
		spill(path, text, length);
		assert_int_equal(root_file_read(&r.place, &file, &e), -EBADMSG);
	}
	for (size_t i = 0; i < count; i++) {
		text[i] ^= 1;
		spill(path, text, count);
		assert_int_equal(root_file_read(&r.place, &file, &e), -EBADMSG);
		text[i] ^= 1;
	}
	text[count] = '\n';
	spill(path, text, count + 1);
	assert_int_equal(root_file_read(&r.place, &file, &e), -EBADMSG);
	assert_non_null(strstr(e.text, "/d0/.phub.root is damaged"));
	assert_non_null(strstr(e.text, "remove it"));
	memset(text, 'x', sizeof(text));
	spill(path, text, sizeof(text));
	assert_int_equal(root_file_read(&r.place, &file, &e), -EBADMSG);
	checkpoint_rig_close(&r);
}

/* Of targets that differ the highest counts; as many may say nothing as parity allows. */
static void test_targets_differ(void **state)
{
	char path[200];
	struct checkpoint_rig r;
	struct root_file file;
	struct err e;

	checkpoint_rig_open(&r, QUICK, 3, 1, "j");
	put(&r, 1, 3);
	assert_int_equal(epoch_of(&r, 0), 3);
	put(&r, 2, 7);
	put(&r, 0, 5);
	assert_int_equal(epoch_of(&r, 0), 7);
	spill(path_of(&r, 0, ROOT_FILE_NAME, path), "phub root 1\n", 12);
	assert_int_equal(epoch_of(&r, 1), 7);
	spill(path_of(&r, 2, ROOT_FILE_NAME, path), "", 0);
	assert_int_equal(root_file_read(&r.place, &file, &e), -EBADMSG);
	put(&r, 2, 8);
	r.place.targets[1] = "/nowhere/at/all";
	assert_int_equal(root_file_read(&r.place, &file, &e), -EBADMSG); /* that, and the damaged one, are two */
	put(&r, 0, 6);
	assert_int_equal(epoch_of(&r, 1), 8);
	r.place.parity = 0;
	assert_int_equal(root_file_read(&r.place, &file, &e), -ENOENT);
	checkpoint_rig_close(&r);
}

/* ---- a disk that does not do everything ---- */

struct faulty {
	struct disk disk;
	struct disk_ops ops;
	const char *target; /* there: */
	int full_dir;       /* as it was opened; -1: it was not */
	int error;          /* of what is written, or renamed */
	bool renames, halves;
	int last;
};

static int faulty_open_dir(struct disk *d, int at, const char *name)
{
	struct faulty *f = (struct faulty *)d;
	int fd = disk_machine()->ops->open_dir(disk_machine(), at, name);

	if (strcmp(name, f->target) == 0)
		f->full_dir = fd;
	else if (fd == f->full_dir) /* that was closed */
		f->full_dir = -1;
	return fd;
}

static int faulty_make_file(struct disk *d, int at, const char *name, bool direct)
{
	struct faulty *f = (struct faulty *)d;

	f->last = at;
	return disk_machine()->ops->make_file(disk_machine(), at, name, direct);
}

static ssize_t faulty_write(struct disk *d, int fd, const void *from, size_t count, uint64_t at)
{
	struct faulty *f = (struct faulty *)d;

	if (f->last == f->full_dir && !f->renames && !f->halves)
		return f->error;
	return disk_machine()->ops->write(
		disk_machine(), fd, from, f->last == f->full_dir && f->halves ? count / 2 : count, at);
}

static int faulty_rename(struct disk *d, int at, const char *from, const char *to)
{
	struct faulty *f = (struct faulty *)d;

	return at == f->full_dir && f->renames ? f->error : disk_machine()->ops->rename(disk_machine(), at, from, to);
}

static struct faulty faulty_open(struct checkpoint_rig *r, unsigned target, int error)
{
	struct faulty f = {.ops = *disk_machine()->ops, .target = r->paths[target], .full_dir = -1, .error = error};

	f.ops.open_dir = faulty_open_dir;
	f.ops.make_file = faulty_make_file;
	f.ops.write = faulty_write;
	f.ops.rename = faulty_rename;
	return f;
}

static bool is_there(struct checkpoint_rig *r, unsigned target, const char *name)
{
	char path[200];

	return access(path_of(r, target, name, path), F_OK) == 0;
}

/* A full disk: nothing is changed anywhere, and no half of a file is left. With parity the others have it. */
static void test_full(void **state)
{
	struct root_file file = two;
	struct checkpoint_rig r;
	struct faulty f;
	struct err e;

	checkpoint_rig_open(&r, QUICK, 3, 1, "j");
	for (unsigned i = 0; i < 3; i++)
		put(&r, i, 2);
	file.epoch = 3;
	for (unsigned halves = 0; halves < 2; halves++) {
		f = faulty_open(&r, 1, -ENOSPC);
		f.disk.ops = &f.ops;
		f.halves = halves;
		r.place.disk = &f.disk;
		r.place.parity = 0;
		assert_int_equal(root_file_write(&r.place, &file, &e), -ENOSPC);
		assert_non_null(strstr(e.text, "/d1/.phub.root cannot be written: No space left on device"));
		r.place.disk = NULL;
		assert_int_equal(epoch_of(&r, 0), 2);
		for (unsigned i = 0; i < 3; i++)
			assert_false(is_there(&r, i, ROOT_FILE_NAME ".part"));
	}
	f.full_dir = -1;
	r.place.disk = &f.disk;
	r.place.parity = 1;
	assert_int_equal(root_file_write(&r.place, &file, &e), 1);
	r.place.disk = NULL;
	assert_int_equal(epoch_of(&r, 0), 3);
	file.epoch = 4; /* it cannot be put into place where that is one of one */
	f.full_dir = -1;
	f.halves = false;
	f.renames = true;
	f.error = -EROFS;
	r.place = (struct checkpoint_place){.target_count = 1, .targets = {r.paths[1]}, .disk = &f.disk};
	assert_int_equal(root_file_write(&r.place, &file, &e), -EROFS);
	checkpoint_rig_close(&r);
}

/* Of two targets one of which may be lost, readers may find any one alone: both have it, or none. */
static void test_few(void **state)
{
	struct root_file file = two;
	struct checkpoint_rig r;
	struct err e;

	checkpoint_rig_open(&r, QUICK, 2, 1, "j");
	r.place.targets[1] = "/nowhere/at/all";
	assert_int_equal(root_file_write(&r.place, &file, &e), -ENOENT);
	assert_false(is_there(&r, 0, ROOT_FILE_NAME));
	assert_int_equal(root_file_renew(&r.place, &file, &e), 1); /* of what readers have found, that is enough */
	assert_true(is_there(&r, 0, ROOT_FILE_NAME));
	r.place.parity = 0;
	assert_int_equal(root_file_renew(&r.place, &file, &e), -ENOENT);
	r.place.parity = 1;
	r.place.targets[1] = r.paths[1];
	spill(path_of(&r, 0, ROOT_FILE_NAME ".part", (char[200]){""}), "of one who died over it", 23);
	assert_int_equal(root_file_write(&r.place, &file, &e), 0);
	for (unsigned i = 0; i < 2; i++)
		assert_true(is_there(&r, i, ROOT_FILE_NAME));
	checkpoint_rig_close(&r);
}

/* A disk was replaced, another's file is damaged: the root's word is there again; where one cannot be written, and
 * where one is not there, the others have it. */
static void test_mended(void **state)
{
	struct root_file file = two, is;
	struct checkpoint_rig r;
	struct faulty f;
	char path[200];
	struct err e;

	checkpoint_rig_open(&r, QUICK, 3, 1, "j");
	file.epoch = 3;
	assert_int_equal(root_file_write(&r.place, &file, &e), 0);
	assert_int_equal(root_file_mend(&r.place, &file, &e), 0);
	assert_int_equal(unlink(path_of(&r, 0, ROOT_FILE_NAME, path)), 0);
	put(&r, 1, 2);
	spill(path_of(&r, 2, ROOT_FILE_NAME, path), "phub", 4);
	assert_int_equal(root_file_mend(&r.place, &file, &e), 3);
	assert_int_equal(epoch_of(&r, 0), 3);
	r.place.target_count = 1;
	assert_int_equal(root_file_read(&r.place, &is, &e), 0);
	assert_int_equal(is.epoch, 3);
	assert_string_equal(is.address, file.address);
	r.place.target_count = 3;

	assert_int_equal(unlink(path_of(&r, 0, ROOT_FILE_NAME, path)), 0);
	assert_int_equal(unlink(path_of(&r, 1, ROOT_FILE_NAME, path)), 0);
	f = faulty_open(&r, 0, -ENOSPC);
	f.disk.ops = &f.ops;
	r.place.disk = &f.disk;
	assert_int_equal(root_file_mend(&r.place, &file, &e), -ENOSPC);
	assert_non_null(strstr(e.text, "/d0/.phub.root cannot be written anew: No space left"));
	assert_false(is_there(&r, 0, ROOT_FILE_NAME));
	assert_true(is_there(&r, 1, ROOT_FILE_NAME));
	r.place.disk = NULL;
	r.place.targets[0] = "/nowhere/at/all";
	assert_int_equal(root_file_mend(&r.place, &file, &e), 0);
	checkpoint_rig_close(&r);
}

TEST_PROGRAM(test_root_file)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whole),
		cmocka_unit_test(test_damaged),
		cmocka_unit_test(test_targets_differ),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_few),
		cmocka_unit_test(test_mended),
	};

	return cmocka_run_group_tests_name("root_file", tests, NULL, NULL);
}
