/* SPDX-License-Identifier: Apache-2.0
 *
 * Picks the table of kernels once, at start. The caller keeps the pointer; there is no hidden global.
 * All functions: any thread, never block. A table is constant and lives for ever.
 */
#ifndef AGGREGATION_DISPATCH_H
#define AGGREGATION_DISPATCH_H

#include <stddef.h>

#include "aggregation/kernels.h"

/*
 * The table called name ("base", "avx2", "avx512", "neon"), or the best one that this machine and its operating
 * system support when name is NULL, "" or "auto". 0; -EINVAL for an unknown name, -ENOTSUP for one that this machine
 * cannot run. On failure error (at most error_size bytes, always terminated; left alone when error_size is 0) says
 * what is wrong and what is allowed here.
 */
int dispatch_select(const char *name, const struct kernels **kernels, char *error, size_t error_size);

/* dispatch_select() of the environment variable PHUB_ISA. */
int dispatch_from_env(const struct kernels **kernels, char *error, size_t error_size);

/* For tests and benches: what this machine can run, base first, the best last; index 0, 1, ... until NULL. */
const struct kernels *dispatch_at(size_t index);

#endif
