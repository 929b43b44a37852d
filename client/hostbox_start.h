/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts the phubd of hostbox.h, as a process that is nobody's child: of a process with threads, by posix_spawn()
 * alone.
 */
#ifndef PHUB_CLIENT_HOSTBOX_START_H
#define PHUB_CLIENT_HOSTBOX_START_H

#include <limits.h>
#include <sys/types.h>

#include "client/settings.h"
#include "phub/base/err.h"

#define HOSTBOX_NAME_BYTES 80

/* Where its log goes; `name` is that of the socket. "": to stderr, as PHUB_LOG asks. */
void hostbox_log_path(const char *name, char out[PATH_MAX]);

/* The last line of a log, by its descriptor (or -1), or "". */
void hostbox_log_last(int fd, char *out, size_t bytes);

/*
 * Starts it with a socket that listens, of which it gets a copy; `s` says what it is for. *pid: what to wait for once
 * the socket was answered or closed by all; phubd has forked by then. *log_fd: its log, the caller's; -1: stderr. 0,
 * -ENOENT (there is none), or why not, in `e`.
 */
int hostbox_start(const struct settings *s, const char *name, int listen_fd, pid_t *pid, int *log_fd, struct err *e);

#endif
