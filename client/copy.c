/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefetchers of processors stop at the end of a page, and a store to a line that is in no cache waits for it to be
 * read. Asking for the lines of both sides a page ahead keeps more of them on their way: copying a warm chunk to cold
 * memory takes 10.6 ms per 100 MB, where memcpy() takes 16.5 and non-temporal stores 16 to 20, cold to warm 10.9 (11.9,
 * 21); two cores at once take no longer (Xeon 8259CL at 2.5 GHz, two cores of a virtual machine, pages of 4 KiB).
 */
#include "client/copy.h"

#include <string.h>

enum {
	COPY_PLAIN = 8192, /* up to so many bytes there is nothing to gain */
	COPY_BLOCK = 512,
	COPY_AHEAD = 4096,
	COPY_LINE = 64,
};

void copy_cold(void *dst, const void *src, size_t bytes)
{
	unsigned char *to = dst;
	const unsigned char *from = src;

	if (bytes > COPY_PLAIN) {
		for (; bytes >= COPY_BLOCK; to += COPY_BLOCK, from += COPY_BLOCK, bytes -= COPY_BLOCK) {
			for (size_t at = 0; at < COPY_BLOCK; at += COPY_LINE) {
				/* Beyond the end it is the next chunk more often than not, and harmless if not. */
				__builtin_prefetch(to + COPY_AHEAD + at, 1);
				__builtin_prefetch(from + COPY_AHEAD + at, 0);
			}
			memcpy(to, from, COPY_BLOCK);
		}
	}
	memcpy(to, from, bytes);
}
