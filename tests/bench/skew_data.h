/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fashion-MNIST for the study on skewed sites: read from the package's idx files, pooled, normalized, split.
 *
 * What is validated on never overlaps what is trained on; parameters are fixed on `valid`, and `test` is for results
 * alone.
 */
#ifndef TESTS_BENCH_SKEW_DATA_H
#define TESTS_BENCH_SKEW_DATA_H

#include <stdint.h>

#include "phub/base/err.h"

#define SKEW_FOLDER "/usr/share/datasets/fashion-mnist" /* of Debian's dataset-fashion-mnist */

enum { SKEW_CLASSES = 10, SKEW_SIDE_RAW = 28 };

/* Images of side x side floats, one after the other, and the class of each. */
struct skew_set {
	unsigned count, side;
	float *images;
	uint8_t *labels;
};

struct skew_data {
	struct skew_set train, valid, test;
	double mean, deviation; /* of the pixels of `train` before they were normalized, 0 to 255 */
};

struct skew_data_config {
	const char *folder;   /* of the four .gz files; NULL: the environment's FASHION_MNIST, else SKEW_FOLDER */
	unsigned side;        /* 14: the mean of each 2x2 pixels; 28: as they are */
	unsigned train_count; /* the first so many images of the training file; at least 1 */
	unsigned valid_count; /* its last so many; may be 0 */
};

/*
 * Reads and prepares all three sets; every pixel is then (p - mean) / deviation. Blocks on files; one thread at a time.
 * 0, and `data` is the caller's to end by skew_data_fini(); or, with the file's name and the reason in `e`, and nothing
 * kept:
 *   -EINVAL   another side, no training images, or more images asked for than the training file has
 *   -EBADMSG  a file is damaged: not gzip, cut short, too long, another magic number, images that are not 28x28, a
 * class beyond 9, not a label for each image, no images, training images that are all of one grey -ENOMEM what open()
 * says otherwise, as -ENOENT for a missing file
 */
int skew_data_load(const struct skew_data_config *config, struct skew_data *data, struct err *e);

/* Frees the sets; all zeros are fine. */
void skew_data_fini(struct skew_data *data);

#endif
