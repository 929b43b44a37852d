/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An idx file: a magic number of 4 bytes (0, 0, 8 for bytes, the number of dimensions), the dimensions as big-endian
 * 32-bit numbers, then the bytes. (Described at LeCun's page of MNIST.)
 */
#include "tests/bench/skew_data.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum {
	IDX_BYTES = 8, /* its code of unsigned bytes */
	IDX_DIMENSIONS_MAX = 3,
	RAW = SKEW_SIDE_RAW * SKEW_SIDE_RAW,
	FILE_IMAGES_MAX = 1 << 20, /* a damaged count shall not ask for the machine's memory */
};

/* The bytes of a file of `images` or, without it, of labels. */
struct idx {
	unsigned count;
	uint8_t *bytes;
};

/* ---- files ---- */

static int idx_damaged(struct err *e, const char *path, const char *why)
{
	return err_set(e, -EBADMSG, "%s: %s: install the package dataset-fashion-mnist anew", path, why);
}

static uint32_t idx_number(const uint8_t *at)
{
	return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static bool idx_get(gzFile file, void *to, size_t bytes)
{
	return gzread(file, to, (unsigned)bytes) == (int)bytes;
}

static int idx_read_head(gzFile file, const char *path, bool images, unsigned *count, struct err *e)
{
	const unsigned dimensions = images ? 3 : 1;
	uint8_t head[4 + 4 * IDX_DIMENSIONS_MAX];

	if (!idx_get(file, head, 4 + 4 * dimensions) || gzdirect(file))
		return idx_damaged(e, path, "no gzip, or cut short");
	if (head[0] || head[1] || head[2] != IDX_BYTES || head[3] != dimensions)
		return idx_damaged(e, path, images ? "no idx file of images" : "no idx file of labels");
	if (images && (idx_number(head + 8) != SKEW_SIDE_RAW || idx_number(head + 12) != SKEW_SIDE_RAW))
		return idx_damaged(e, path, "its images are not 28x28");
	*count = idx_number(head + 4);
	if (*count == 0 || *count > FILE_IMAGES_MAX)
		return idx_damaged(e, path, "no images, or more than a million");
	return 0;
}

static int idx_read_body(gzFile file, const char *path, size_t bytes, uint8_t **body, struct err *e)
{
	uint8_t more;

	*body = malloc(bytes);
	if (!*body)
		return err_set(e, -ENOMEM, "%s: no memory for %zu bytes", path, bytes);
	/* gzread() at the end also checks the sum of all bytes. */
	if (idx_get(file, *body, bytes) && gzread(file, &more, 1) == 0)
		return 0;
	free(*body);
	return idx_damaged(e, path, "cut short, too long, or its bytes have changed");
}

static int idx_read(const char *folder, const char *name, bool images, struct idx *idx, struct err *e)
{
	char path[PATH_MAX];
	gzFile file;
	int rc;

	snprintf(path, sizeof(path), "%s/%s.gz", folder, name);
	errno = 0;
	file = gzopen(path, "rb");
	if (!file)
		return err_set(e, errno ? -errno : -ENOMEM, "%s: %s: install the package dataset-fashion-mnist", path,
			strerror(errno ? errno : ENOMEM));
	rc = idx_read_head(file, path, images, &idx->count, e);
	if (rc == 0)
		rc = idx_read_body(file, path, (size_t)idx->count * (images ? RAW : 1), &idx->bytes, e);
	gzclose(file);
	return rc;
}

/* Both files of `part`; on success the caller frees their bytes. */
static int idx_read_part(const char *folder, const char *part, struct idx *images, struct idx *labels, struct err *e)
{
	char name[64];
	int rc;

	snprintf(name, sizeof(name), "%s-images-idx3-ubyte", part);
	rc = idx_read(folder, name, true, images, e);
	if (rc < 0)
		return rc;
	snprintf(name, sizeof(name), "%s-labels-idx1-ubyte", part);
	rc = idx_read(folder, name, false, labels, e);
	if (rc < 0)
		goto free_images;
	if (labels->count != images->count) {
		rc = idx_damaged(e, name, "not a label for each image");
		goto free_labels;
	}
	for (unsigned i = 0; i < labels->count; i++) {
		if (labels->bytes[i] >= SKEW_CLASSES) {
			rc = idx_damaged(e, name, "a class beyond 9");
			goto free_labels;
		}
	}
	return 0;
free_labels:
	free(labels->bytes);
free_images:
	free(images->bytes);
	return rc;
}

/* ---- sets ---- */

static void set_pool(const uint8_t *raw, unsigned side, float *out)
{
	const unsigned by = SKEW_SIDE_RAW / side;

	for (unsigned y = 0; y < side; y++) {
		for (unsigned x = 0; x < side; x++) {
			unsigned sum = 0;

			for (unsigned dy = 0; dy < by; dy++)
				for (unsigned dx = 0; dx < by; dx++)
					sum += raw[(y * by + dy) * SKEW_SIDE_RAW + x * by + dx];
			out[y * side + x] = (float)sum / (float)(by * by);
		}
	}
}

static int set_take(struct skew_set *set, unsigned side, const struct idx *images, const struct idx *labels,
	unsigned from, unsigned count, struct err *e)
{
	const size_t pixels = (size_t)side * side;

	set->count = count;
	set->side = side;
	set->images = calloc(count + 1, pixels * sizeof(float)); /* never of no bytes */
	set->labels = calloc(count + 1, 1);
	if (!set->images || !set->labels)
		return err_set(e, -ENOMEM, "no memory for %u images of %ux%u", count, side, side);
	for (unsigned i = 0; i < count; i++)
		set_pool(images->bytes + (size_t)(from + i) * RAW, side, set->images + i * pixels);
	memcpy(set->labels, labels->bytes + from, count);
	return 0;
}

static int set_measure(const struct skew_set *set, double *mean, double *deviation, struct err *e)
{
	const size_t pixels = (size_t)set->count * set->side * set->side;
	double sum = 0, squares = 0;

	for (size_t i = 0; i < pixels; i++) {
		sum += set->images[i];
		squares += (double)set->images[i] * set->images[i];
	}
	*mean = sum / (double)pixels;
	squares = squares / (double)pixels - *mean * *mean;
	if (squares < 1e-6)
		return err_set(e, -EBADMSG, "the training images are all of one grey");
	*deviation = sqrt(squares);
	return 0;
}

static void set_normalize(struct skew_set *set, double mean, double deviation)
{
	const size_t pixels = (size_t)set->count * set->side * set->side;

	for (size_t i = 0; i < pixels; i++)
		set->images[i] = (float)((set->images[i] - mean) / deviation);
}

/* ---- all of it ---- */

static int data_take_train(
	const struct skew_data_config *config, const char *folder, struct skew_data *data, struct err *e)
{
	struct idx images, labels;
	int rc = idx_read_part(folder, "train", &images, &labels, e);

	if (rc < 0)
		return rc;
	if ((uint64_t)config->train_count + config->valid_count > images.count) {
		rc = err_set(e, -EINVAL, "%u images to train on and %u to validate on: the file has %u",
			config->train_count, config->valid_count, images.count);
		goto out;
	}
	rc = set_take(&data->train, config->side, &images, &labels, 0, config->train_count, e);
	if (rc == 0)
		rc = set_take(&data->valid, config->side, &images, &labels, images.count - config->valid_count,
			config->valid_count, e);
out:
	free(images.bytes);
	free(labels.bytes);
	return rc;
}

static int data_take_test(
	const struct skew_data_config *config, const char *folder, struct skew_data *data, struct err *e)
{
	struct idx images, labels;
	int rc = idx_read_part(folder, "t10k", &images, &labels, e);

	if (rc < 0)
		return rc;
	rc = set_take(&data->test, config->side, &images, &labels, 0, images.count, e);
	free(images.bytes);
	free(labels.bytes);
	return rc;
}

static const char *data_folder(const struct skew_data_config *config)
{
	const char *folder = config->folder ? config->folder : getenv("FASHION_MNIST");

	return folder ? folder : SKEW_FOLDER;
}

int skew_data_load(const struct skew_data_config *config, struct skew_data *data, struct err *e)
{
	const char *folder = data_folder(config);
	struct skew_data found = {0};
	int rc;

	if (config->side != SKEW_SIDE_RAW && config->side != SKEW_SIDE_RAW / 2)
		return err_set(e, -EINVAL, "images of side %u: use 14 or 28", config->side);
	if (config->train_count == 0)
		return err_set(e, -EINVAL, "no images to train on: ask for at least one");
	rc = data_take_train(config, folder, &found, e);
	if (rc == 0)
		rc = data_take_test(config, folder, &found, e);
	if (rc == 0)
		rc = set_measure(&found.train, &found.mean, &found.deviation, e);
	if (rc < 0) {
		skew_data_fini(&found);
		return rc;
	}
	set_normalize(&found.train, found.mean, found.deviation);
	set_normalize(&found.valid, found.mean, found.deviation);
	set_normalize(&found.test, found.mean, found.deviation);
	*data = found;
	return 0;
}

void skew_data_fini(struct skew_data *data)
{
	struct skew_set *sets[] = {&data->train, &data->valid, &data->test};

	for (unsigned i = 0; i < 3; i++) {
		free(sets[i]->images);
		free(sets[i]->labels);
		*sets[i] = (struct skew_set){0};
	}
}
