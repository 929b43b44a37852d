/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader of Fashion-MNIST, on small files of its own: what it makes of good ones, and what it says of damaged ones.
 */
#include "tests/bench/skew_data.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { TRAIN = 30, TEST = 10, RAW = 28 * 28 };

static const char *const names[] = {
	"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};

/* The four files, as bytes, before a test damages one. */
static struct {
	uint8_t bytes[16 + TRAIN * RAW + 8];
	size_t used;
} files[4];

static char folder[] = "/tmp/test_skew_data.XXXXXX";

static uint8_t pixel(unsigned image, unsigned at)
{
	return (uint8_t)((image * 37 + at * 11 + (at / 28) * 5) % 251);
}

static uint8_t class_of(unsigned image)
{
	return (uint8_t)(image * 7 % 10);
}

static void put_number(int file, uint32_t value)
{
	for (int shift = 24; shift >= 0; shift -= 8)
		files[file].bytes[files[file].used++] = (uint8_t)(value >> shift);
}

static void fill(int file, unsigned count)
{
	files[file].used = 0;
	put_number(file, file % 2 ? 0x801 : 0x803);
	put_number(file, count);
	if (file % 2 == 0) {
		put_number(file, 28);
		put_number(file, 28);
	}
	for (unsigned i = 0; i < count; i++) {
		if (file % 2)
			files[file].bytes[files[file].used++] = class_of(i);
		for (unsigned at = 0; file % 2 == 0 && at < RAW; at++)
			files[file].bytes[files[file].used++] = pixel(i, at);
	}
}

static const char *path_of(int file)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%s.gz", folder, names[file]);
	return path;
}

static void save(int file)
{
	gzFile to = gzopen(path_of(file), "wb1");

	assert_non_null(to);
	assert_int_equal(gzwrite(to, files[file].bytes, (unsigned)files[file].used), files[file].used);
	assert_int_equal(gzclose(to), Z_OK);
}

/* As raw bytes, no gzip. */
static void save_raw(int file, const void *bytes, size_t count)
{
	FILE *to = fopen(path_of(file), "wb");

	assert_non_null(to);
	assert_int_equal(fwrite(bytes, 1, count, to), count);
	assert_int_equal(fclose(to), 0);
}

static int fresh(void **state)
{
	for (int file = 0; file < 4; file++) {
		fill(file, file < 2 ? TRAIN : TEST);
		save(file);
	}
	return 0;
}

static int make_folder(void **state)
{
	return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
	for (int file = 0; file < 4; file++)
		unlink(path_of(file));
	return rmdir(folder);
}

static const struct skew_data_config good = {.folder = folder, .side = 14, .train_count = 20, .valid_count = 10};

/* Loading fails with `code`, its text holds `text`, and nothing is written. */
static void refused_as(const struct skew_data_config *config, int code, const char *text)
{
	struct skew_data data = {.mean = 42};
	struct err e = {0};

	assert_int_equal(skew_data_load(config, &data, &e), code);
	if (!strstr(e.text, text))
		fail_msg("\"%s\" does not say \"%s\"", e.text, text);
	assert_true(data.mean == 42 && !data.train.images);
}

static void refused(int code, const char *text)
{
	refused_as(&good, code, text);
}

/* ---- good files ---- */

static double raw_pooled(unsigned image, unsigned side, unsigned y, unsigned x)
{
	double sum = 0;
	unsigned by = 28 / side;

	for (unsigned i = 0; i < by * by; i++)
		sum += pixel(image, (y * by + i / by) * 28 + x * by + i % by);
	return sum / (by * by);
}

static void check_set(const struct skew_data *data, const struct skew_set *set, unsigned from, unsigned count)
{
	assert_int_equal(set->count, count);
	for (unsigned i = 0; i < count; i++) {
		assert_int_equal(set->labels[i], class_of(from + i));
		for (unsigned at = 0; at < set->side * set->side; at++) {
			double want = raw_pooled(from + i, set->side, at / set->side, at % set->side);
			double found = set->images[i * set->side * set->side + at] * data->deviation + data->mean;

			if (fabs(found - want) > 1e-3)
				fail_msg("image %u, pixel %u: %g, not %g", i, at, found, want);
		}
	}
}

static void test_sets(void **state)
{
	static const unsigned sides[] = {14, 28};

	for (int s = 0; s < 2; s++) {
		struct skew_data_config config = good;
		struct skew_data data;
		double sum = 0, squares = 0;
		struct err e = {0};
		size_t pixels;

		config.side = sides[s];
		if (skew_data_load(&config, &data, &e) < 0)
			fail_msg("%s", e.text);
		check_set(&data, &data.train, 0, 20);
		check_set(&data, &data.valid, 20, 10);
		check_set(&data, &data.test, 0, TEST);
		pixels = 20ul * sides[s] * sides[s];
		for (size_t i = 0; i < pixels; i++) {
			sum += data.train.images[i];
			squares += data.train.images[i] * data.train.images[i];
		}
		assert_true(fabs(sum / (double)pixels) < 1e-5);
		assert_true(fabs(squares / (double)pixels - 1) < 1e-4);
		skew_data_fini(&data);
		assert_null(data.train.images);
		skew_data_fini(&data);
	}
}

static void test_splits(void **state)
{
	struct skew_data_config config = good;
	struct skew_data data;
	struct err e = {0};

	config.valid_count = 0;
	config.train_count = TRAIN;
	assert_int_equal(skew_data_load(&config, &data, &e), 0);
	check_set(&data, &data.train, 0, TRAIN);
	assert_int_equal(data.valid.count, 0);
	skew_data_fini(&data);
}

static void test_environment(void **state)
{
	struct skew_data_config config = good;
	struct skew_data data;
	struct err e = {0};

	config.folder = NULL;
	assert_int_equal(setenv("FASHION_MNIST", folder, 1), 0);
	assert_int_equal(skew_data_load(&config, &data, &e), 0);
	assert_int_equal(data.test.count, TEST);
	skew_data_fini(&data);
	assert_int_equal(unsetenv("FASHION_MNIST"), 0);
}

/* ---- what is asked for ---- */

static void test_asked(void **state)
{
	struct skew_data_config config = good;

	config.side = 7;
	refused_as(&config, -EINVAL, "use 14 or 28");
	config = good;
	config.train_count = 0;
	refused_as(&config, -EINVAL, "at least one");
	config = good;
	config.train_count = TRAIN - 9;
	refused_as(&config, -EINVAL, "the file has 30");
	config.train_count = UINT32_MAX;
	refused_as(&config, -EINVAL, "the file has 30");
}

/* ---- damage ---- */

static void test_missing(void **state)
{
	struct skew_data_config config = good;

	for (int file = 0; file < 4; file++) {
		fresh(state);
		assert_int_equal(unlink(path_of(file)), 0);
		refused(-ENOENT, names[file]);
		refused(-ENOENT, "dataset-fashion-mnist");
	}
	fresh(state);
	config.folder = path_of(0);
	refused_as(&config, -ENOTDIR, "dataset-fashion-mnist");
}

static void test_no_gzip(void **state)
{
	for (int file = 0; file < 4; file++) {
		fresh(state);
		save_raw(file, files[file].bytes, files[file].used);
		refused(-EBADMSG, names[file]);
		save_raw(file, "", 0);
		refused(-EBADMSG, names[file]);
	}
}

/* The bytes that are packed, and the packed bytes. */
static void test_short(void **state)
{
	static uint8_t packed[sizeof(files[0].bytes)];

	for (int file = 0; file < 4; file++) {
		static const size_t cuts[] = {1, 3, 9};
		FILE *from;
		size_t used;

		for (int cut = 0; cut < 3; cut++) {
			fresh(state);
			files[file].used -= cut < 2 ? cuts[cut] : files[file].used - cuts[cut] + 2;
			save(file);
			refused(-EBADMSG, names[file]);
		}
		fresh(state);
		from = fopen(path_of(file), "rb");
		assert_non_null(from);
		used = fread(packed, 1, sizeof(packed), from);
		fclose(from);
		save_raw(file, packed, used - 12);
		refused(-EBADMSG, names[file]);
		save_raw(file, packed, 15);
		refused(-EBADMSG, names[file]);
		packed[used - 6] ^= 1; /* the sum of all bytes */
		save_raw(file, packed, used);
		refused(-EBADMSG, names[file]);
	}
}

static void test_long(void **state)
{
	for (int file = 0; file < 4; file++) {
		fresh(state);
		files[file].bytes[files[file].used++] = 0;
		save(file);
		refused(-EBADMSG, "too long");
	}
}

static void test_heads(void **state)
{
	for (int file = 0; file < 4; file++) {
		for (int at = 0; at < 4; at++) { /* the magic number */
			fresh(state);
			files[file].bytes[at] ^= 2;
			save(file);
			refused(-EBADMSG, file % 2 ? "no idx file of labels" : "no idx file of images");
		}
		fresh(state);
		memset(files[file].bytes + 4, 0, 4); /* how many */
		save(file);
		refused(-EBADMSG, "no images");
		memset(files[file].bytes + 4, 255, 4);
		save(file);
		refused(-EBADMSG, "more than a million");
		if (file % 2)
			continue;
		for (int at = 11; at < 16; at += 4) {
			fresh(state);
			files[file].bytes[at] = 14;
			save(file);
			refused(-EBADMSG, "not 28x28");
		}
	}
}

static void test_contents(void **state)
{
	for (int file = 0; file < 4; file += 2) {
		fresh(state);
		fill(file + 1, 9);
		save(file + 1);
		refused(-EBADMSG, "not a label for each image");
		fresh(state);
		files[file + 1].bytes[8 + 3] = 10;
		save(file + 1);
		refused(-EBADMSG, "a class beyond 9");
	}
	fresh(state);
	memset(files[0].bytes + 16, 80, TRAIN * RAW);
	save(0);
	refused(-EBADMSG, "one grey");
}

TEST_PROGRAM(test_skew_data)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_sets, fresh),
		cmocka_unit_test_setup(test_splits, fresh),
		cmocka_unit_test_setup(test_environment, fresh),
		cmocka_unit_test_setup(test_asked, fresh),
		cmocka_unit_test(test_missing),
		cmocka_unit_test(test_no_gzip),
		cmocka_unit_test(test_short),
		cmocka_unit_test(test_long),
		cmocka_unit_test(test_heads),
		cmocka_unit_test(test_contents),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
