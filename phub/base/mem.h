/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory taken at start or when a job is created: whole regions on a NUMA node, on huge pages where there are any, and
 * arenas that cut them up. Nothing here runs on the data path. Control thread unless said otherwise.
 */
#ifndef PHUB_BASE_MEM_H
#define PHUB_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

#include "phub/base/err.h"

#define MEM_NODE_ANY (-1)
#define MEM_NODE_MAX 1023

enum mem_flags {
	MEM_SHARED = 1 << 0,   /* a sealable memfd, to be passed to another process; closed on exec */
	MEM_HUGE = 1 << 1,     /* 2 MiB pages if enough are free, else ordinary ones with MADV_HUGEPAGE */
	MEM_POPULATE = 1 << 2, /* touch every page now instead of at first use */
};

struct mem_region {
	void *base;   /* page aligned; zero when new */
	size_t bytes; /* mapped: what was asked for, rounded up to whole pages */
	int fd;       /* of a shared region, else -1 */
	bool huge;    /* on reserved 2 MiB pages */
	int node;     /* preferred NUMA node or MEM_NODE_ANY */
};

/*
 * The node is preferred, not required: a node that is full must not kill the process at first touch. Blocks while it
 * populates. 0; -EINVAL: no bytes, or no such node; -ENOMEM and what mmap and memfd_create say, with the reason in `e`.
 * `out` is the caller's, to be given to mem_region_destroy().
 */
int mem_region_create(size_t bytes, unsigned flags, int node, struct mem_region *out, struct err *e);

/*
 * No one can change the size of a shared region any more, and no one can unseal it. With `future_write` no one can map
 * it for writing or write() to it from now on either; mappings that exist, such as ours, stay writable. 0, or -EINVAL
 * when the region is not shared, or another negative errno.
 */
int mem_region_seal(const struct mem_region *region, bool future_write);

/*
 * Maps a region that another process made. On success the region owns `fd`, else the caller keeps it. 0; -EPERM: it is
 * not sealed against shrinking, so its maker could kill us by shortening it, or it may not be written; -EINVAL: it has
 * not `bytes` bytes.
 */
int mem_region_attach(int fd, size_t bytes, bool writable, struct mem_region *out, struct err *e);

/* Unmaps and closes; harmless on a region that is all zero or already destroyed. */
void mem_region_destroy(struct mem_region *region);

/* Cuts pieces off a region, never takes one back. Used by one thread at a time. */
struct arena {
	unsigned char *base;
	size_t bytes;
	size_t used;
};

/* The region must outlive the arena and everything that came from it. */
void arena_init(struct arena *arena, const struct mem_region *region);

/*
 * `bytes` at a multiple of `align`, a power of two up to the page size; zero if the region was new. NULL when the arena
 * has not enough left, and then it is as it was. Never blocks.
 */
void *arena_alloc(struct arena *arena, size_t bytes, size_t align);

/* Bytes taken so far, padding included. */
size_t arena_used(const struct arena *arena);

#endif
