/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub boxes: which boxes are up, by etcd or by a rack file.
 */
#ifndef PHUB_CLI_BOXES_H
#define PHUB_CLI_BOXES_H

#include <stdbool.h>
#include <stdint.h>

struct boxes_options {
	bool json, watch;
	const char *etcd, *prefix; /* NULL etcd: */
	const char *racks;         /* path of a rack file */
	uint64_t timeout_ms;       /* of an answer */
	uint64_t interval_ms;      /* between two looks at the boxes of a rack file */
};

/* "14:03:59 " for lines about what changes; "" in JSON. */
const char *boxes_clock(const struct boxes_options *o, char out[16]);
/* Has Ctrl-C been pressed, or has who reads gone? */
bool boxes_stopped(void);

/* How many workers of a job are there, as `phub jobs` has it: "4/8" where all that the box knows of are at it, "8/8 (4
 * here)"; "4 of 8 here" while it is `low`, a box that the one above has not told of the others. Returns `out`. */
#define BOXES_WORKERS_BYTES 80u
const char *boxes_workers(uint64_t here, uint64_t known, uint64_t world, bool low, char out[BOXES_WORKERS_BYTES]);

/* Exit codes. */
int boxes_of_etcd(const struct boxes_options *o);
int boxes_of_racks(const struct boxes_options *o);

#endif
