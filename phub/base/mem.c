/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/base/mem.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/mempolicy.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MEM_HUGE_BYTES ((size_t)2 << 20)
#define MEM_HUGE_SHIFT 21

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_HUGE_SHIFT
#define MFD_HUGE_SHIFT 26
#endif

static const struct mem_region mem_region_none = {.fd = -1, .node = MEM_NODE_ANY};

static size_t mem_page_bytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

static int mem_open_shared(size_t bytes, bool huge)
{
	unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;

	if (huge)
		flags |= MFD_HUGETLB | MEM_HUGE_SHIFT << MFD_HUGE_SHIFT;
	int fd = memfd_create("phub", flags);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) != 0) {
		int ret = -errno;
		close(fd);
		return ret;
	}
	return fd;
}

/* One attempt, on 2 MiB pages or on ordinary ones. */
static int mem_map(size_t bytes, bool shared, bool huge, struct mem_region *out)
{
	size_t unit = huge ? MEM_HUGE_BYTES : mem_page_bytes();
	struct mem_region region = mem_region_none;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;

	if (__builtin_add_overflow(bytes, unit - 1, &region.bytes) || region.bytes > PTRDIFF_MAX)
		return -ENOMEM;
	region.bytes -= region.bytes % unit;
	region.huge = huge;
	if (shared) {
		flags = MAP_SHARED;
		region.fd = mem_open_shared(region.bytes, huge);
		if (region.fd < 0)
			return region.fd;
	} else if (huge) {
		flags |= MAP_HUGETLB | MEM_HUGE_SHIFT << MAP_HUGE_SHIFT;
	}
	/* Huge pages are reserved here, so a shortage shows now and not as SIGBUS at first touch. */
	region.base = mmap(NULL, region.bytes, PROT_READ | PROT_WRITE, flags, region.fd, 0);
	if (region.base == MAP_FAILED) {
		int ret = -errno;
		if (region.fd >= 0)
			close(region.fd);
		return ret;
	}
	*out = region;
	return 0;
}

/* By system call: all that libnuma would add here is the library. */
static int mem_prefer_node(struct mem_region *region, int node)
{
	unsigned long mask[(MEM_NODE_MAX + 1) / (8 * sizeof(unsigned long))] = {0};
	unsigned bits = 8 * sizeof(mask[0]);

	mask[(unsigned)node / bits] = 1ul << (unsigned)node % bits;
	/* The kernel reads one bit less than it is told. */
	if (syscall(SYS_mbind, region->base, region->bytes, MPOL_PREFERRED, mask, MEM_NODE_MAX + 2ul, 0) == 0) {
		region->node = node;
		return 0;
	}
	/* ENOSYS: a kernel without NUMA has node 0 alone, and all memory is on it. */
	return errno == ENOSYS && node == 0 ? 0 : -errno;
}

/* Takes every page now: a shortage is an error here, not SIGBUS in round 10,000. */
static int mem_populate(const struct mem_region *region)
{
	unsigned char *base = region->base;

	if (madvise(base, region->bytes, MADV_POPULATE_WRITE) == 0)
		return 0;
	if (errno != EINVAL)
		return -errno;
	/* Linux before 5.14. */
	for (size_t at = 0; at < region->bytes; at += mem_page_bytes())
		*(volatile unsigned char *)(base + at) = 0;
	return 0;
}

/* Order matters: pages that are touched before the node is set come from this thread's node. */
static int mem_settle(struct mem_region *region, unsigned flags, int node)
{
	int ret = node == MEM_NODE_ANY ? 0 : mem_prefer_node(region, node);

	if (flags & MEM_HUGE && !region->huge)
		madvise(region->base, region->bytes,
			MADV_HUGEPAGE); /* a wish: where it is refused, only speed is lost */
	if (ret == 0 && flags & MEM_POPULATE)
		ret = mem_populate(region);
	return ret;
}

int mem_region_create(size_t bytes, unsigned flags, int node, struct mem_region *out, struct err *e)
{
	struct mem_region region;
	int ret = -ENOMEM;

	if (bytes == 0)
		return err_set(e, -EINVAL, "memory region of 0 bytes");
	if (node != MEM_NODE_ANY && (node < 0 || node > MEM_NODE_MAX))
		return err_set(
			e, -EINVAL, "NUMA node %d: want 0 to %d, or %d for any", node, MEM_NODE_MAX, MEM_NODE_ANY);
	if (flags & MEM_HUGE)
		ret = mem_map(bytes, flags & MEM_SHARED, true, &region);
	if (ret < 0)
		ret = mem_map(bytes, flags & MEM_SHARED, false, &region);
	if (ret < 0)
		return err_set(e, ret, "memory region of %zu bytes: %s", bytes, strerror(-ret));
	ret = mem_settle(&region, flags, node);
	if (ret < 0) {
		mem_region_destroy(&region);
		return err_set(e, ret, "memory region of %zu bytes on NUMA node %d: %s", bytes, node, strerror(-ret));
	}
	*out = region;
	return 0;
}

int mem_region_seal(const struct mem_region *region, bool future_write)
{
	int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

	if (region->fd < 0)
		return -EINVAL;
	if (future_write)
		seals |= F_SEAL_FUTURE_WRITE;
	return fcntl(region->fd, F_ADD_SEALS, seals) == 0 ? 0 : -errno;
}

int mem_region_attach(int fd, size_t bytes, bool writable, struct mem_region *out, struct err *e)
{
	struct mem_region region = {.bytes = bytes, .fd = fd, .node = MEM_NODE_ANY};
	struct stat stat;

	int seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return err_set(e, -EPERM, "shared memory (fd %d) is not sealed against shrinking", fd);
	if (fstat(fd, &stat) != 0)
		return err_set(e, -errno, "shared memory (fd %d): %s", fd, strerror(errno));
	if (bytes == 0 || stat.st_size < 0 || (uintmax_t)stat.st_size != bytes)
		return err_set(
			e, -EINVAL, "shared memory (fd %d) has %jd bytes, not %zu", fd, (intmax_t)stat.st_size, bytes);
	region.huge = stat.st_blksize == (blksize_t)MEM_HUGE_BYTES;
	region.base = mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
	if (region.base == MAP_FAILED)
		return err_set(e, -errno, "shared memory (fd %d), %zu bytes: %s", fd, bytes, strerror(errno));
	*out = region;
	return 0;
}

void mem_region_destroy(struct mem_region *region)
{
	if (!region->base)
		return;
	munmap(region->base, region->bytes);
	if (region->fd >= 0)
		close(region->fd);
	*region = mem_region_none;
}

void arena_init(struct arena *arena, const struct mem_region *region)
{
	*arena = (struct arena){.base = region->base, .bytes = region->bytes};
}

void *arena_alloc(struct arena *arena, size_t bytes, size_t align)
{
	assert(align != 0 && (align & (align - 1)) == 0 && align <= mem_page_bytes());

	size_t padding = -arena->used & (align - 1);
	size_t left = arena->bytes - arena->used;
	if (padding > left || bytes > left - padding)
		return NULL;
	void *piece = arena->base + arena->used + padding;
	arena->used += padding + bytes;
	return piece;
}

size_t arena_used(const struct arena *arena)
{
	return arena->used;
}
