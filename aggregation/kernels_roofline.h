/* SPDX-License-Identifier: Apache-2.0
 *
 * What memory allows: copies that read and write the same arrays as a kernel and compute nothing, for benches to stand
 * beside it. The roofline of a kernel is the fastest of them on this machine; nothing on the data path calls them.
 */
#ifndef AGGREGATION_KERNELS_ROOFLINE_H
#define AGGREGATION_KERNELS_ROOFLINE_H

#include <stddef.h>

#define ROOFLINE_BLOCK 512 /* bytes: arrays are so aligned, and whole numbers of it */

/*
 * Arrays aligned to 64 that do not overlap: each of src of `bytes`, of the others width times as many (1 or 2: fp32
 * beside halves). Their values do not matter and inout[] keeps its own.
 */
struct roofline_args {
	const void *const *src; /* read */
	size_t src_count;
	void *const *inout; /* read, and written where it was read */
	size_t inout_count;
	size_t inout_width;
	void *const *out; /* written */
	size_t out_count;
	size_t out_width;
	size_t bytes;
};

struct roofline_copy {
	const char *name; /* "avx512 nt prefetch" */
	int streamed;     /* stores go past the caches: "nt" */
	void (*run)(const struct roofline_args *args);
};

/* The copies that this machine can run: index 0, 1, ... until NULL. Any thread. */
const struct roofline_copy *roofline_at(size_t index);

#endif
