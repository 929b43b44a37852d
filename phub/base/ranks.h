/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of ranks for people: of a thousand workers a line has room for few, and those that are missing together often
 * are neighbours (a host, a rack). Pure; the box's notices, libphub's errors and the `phub` command's tables use it.
 */
#ifndef PHUB_BASE_RANKS_H
#define PHUB_BASE_RANKS_H

#include <stddef.h>
#include <stdint.h>

/*
 * Writes `known` ranks in ascending order as "3, 64-70, 99", and " and 12 more" when `count` is above `known` or not
 * all fit into `bytes` (at least 32, with the NUL).
 */
void ranks_write(const uint32_t *ranks, size_t known, size_t count, char *out, size_t bytes);

#endif
