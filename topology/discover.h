/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Discover: read the facts of this machine from sysfs into struct host. The only part of topology that touches the
 * system; the root folder is a parameter, so tests give it recorded and synthetic trees. Called once at start and by
 * `phub topo`. sysfs alone, without libnuma or hwloc: all that a plan needs stands there in a few files of one number,
 * a box needs no library at run time that a minimal container lacks, and a recorded tree is all that a test needs.
 */
#ifndef PHUB_TOPOLOGY_DISCOVER_H
#define PHUB_TOPOLOGY_DISCOVER_H

#include "phub/base/err.h"
#include "topology/host.h"

struct discover_options {
	const char *root; /* folder that holds sys/ and proc/; NULL means "/" */
	/* Bit i % 8 of byte i / 8: CPU i is allowed. NULL: what the scheduler allows, or all under another root. */
	const unsigned char *cpu_mask;
	unsigned cpu_mask_bytes;
};

/* Fill *out. What a machine does not tell is 0 or -1 (a container may hide parts of sysfs), never an error; a machine
 * without NUMA is one node, 0. CPUs, nodes, NICs and GPUs beyond the bounds of struct host are left out, lowest ids and
 * names kept. NULL options are all defaults. Returns 0; -ENOENT with *e when no CPU is both online and allowed;
 * -ENOMEM. On failure *out is untouched. Control thread; blocks on sysfs, allocates for the time of the call. */
int discover_host(const struct discover_options *options, struct host *out, struct err *e);

#endif
