/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that hold a secret: read alike by the box, by libphub and by the `phub` command.
 */
#ifndef PHUB_BASE_SECRET_H
#define PHUB_BASE_SECRET_H

#include <stddef.h>

#include "phub/base/err.h"

/*
 * Reads at most bytes_max bytes, and drops line ends from the end. 0 with the count in *length, or a negative errno
 * with "FILE: what is wrong" in `e`: -EACCES when every user of this machine may open it. Any thread; may block.
 */
int secret_read_file(const char *file, void *out, size_t bytes_max, size_t *length, struct err *e);

#endif
