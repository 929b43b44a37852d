/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A phubd of one's own, as a child process: started on a free port, ended by SIGTERM, and gone when this process goes.
 */
#ifndef PHUB_CLI_BOX_PROCESS_H
#define PHUB_CLI_BOX_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "phub/base/err.h"

enum { BOX_SETTINGS_MAX = 32, BOX_SETTING_BYTES = 2112, BOX_ADDRESS_BYTES = 128 };

struct box_settings {
	const char *phubd;                             /* path, or NULL: beside this program, else on $PATH */
	const char *config;                            /* file, or NULL */
	char set[BOX_SETTINGS_MAX][BOX_SETTING_BYTES]; /* "key=value" */
	unsigned count;
	bool heard; /* what it writes to stderr is for box_process_hear(), and does not go to ours */
};

struct box_process {
	pid_t pid; /* 0: none runs */
	int out_fd;
	int said_fd;                     /* what it has written to stderr, in memory; -1: that is ours */
	off_t heard;                     /* bytes of it */
	char address[BOX_ADDRESS_BYTES]; /* "127.0.0.1:40123" */
};

/* Adds an option of the box. 0, or -ENOSPC. */
int box_settings_add(struct box_settings *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Starts it and waits until it has said where it listens. 0 or a negative errno with what to do in `e`; then all that
 * it has said is on our stderr. */
int box_process_start(const struct box_settings *settings, struct box_process *out, struct err *e);

/* 0 while it runs; -ECHILD with how it ended in `e`, and then it needs no stop. */
int box_process_check(struct box_process *box, struct err *e);

/* SIGTERM, and SIGKILL when it does not obey within ten seconds. 0 when it ended with 0, else -ECHILD. */
int box_process_stop(struct box_process *box, struct err *e);

/* What it has written to stderr since, at most `bytes` of it; how many, 0: nothing more. Never blocks; also after its
 * end. */
size_t box_process_hear(struct box_process *box, char *out, size_t bytes);

/* Nothing is heard of it any more. After its end; again is fine. */
void box_process_forget(struct box_process *box);

/* Memory of the process that devices may reach; 0: none, or not known. */
uint64_t box_process_pinned_bytes(pid_t pid);

/* CPU time of a process so far, user and system, of all its threads. 0 when there is none. Any process. */
uint64_t box_process_cpu_ns(pid_t pid);

#endif
