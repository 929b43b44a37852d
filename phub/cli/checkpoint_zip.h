/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of an .npz: a zip (APPNOTE 6.3, zip64 throughout, so that no size is too large) of .npy files (format 1.0)
 * that are stored as they are. Pure.
 */
#ifndef PHUB_CLI_CHECKPOINT_ZIP_H
#define PHUB_CLI_CHECKPOINT_ZIP_H

#include <stdbool.h>
#include <stdint.h>

enum {
	CHECKPOINT_ARRAY_NAME_BYTES = 288, /* a key's 255, ".state0", NUL */
	CHECKPOINT_NPY_BYTES = 128,        /* in front of the data of an .npy */
	CHECKPOINT_ZIP_LOCAL_MAX = 30 + CHECKPOINT_ARRAY_NAME_BYTES + 4 + 20,
};

/* A flat array of fp32 in a file. */
struct checkpoint_array {
	char name[CHECKPOINT_ARRAY_NAME_BYTES];
	bool left_out;
	uint64_t elements;
	uint64_t at;       /* of its data in the file */
	uint64_t entry_at; /* zip: of its local header */
	uint32_t crc;      /* zip: of the .npy */
};

/* Places an array at `at`: where the next one goes. */
uint64_t checkpoint_zip_place(struct checkpoint_array *a, uint64_t at);
/* What stands before the data, which begins at a->at. */
void checkpoint_zip_npy(const struct checkpoint_array *a, uint8_t out[CHECKPOINT_NPY_BYTES]);
/* The local header, at a->entry_at: its bytes. */
uint64_t checkpoint_zip_local(const struct checkpoint_array *a, uint8_t out[CHECKPOINT_ZIP_LOCAL_MAX]);
/* The directory behind them all, to be freed; NULL: no memory. */
uint8_t *checkpoint_zip_end(const struct checkpoint_array *arrays, uint64_t count, uint64_t *at, uint64_t *bytes);

#endif
