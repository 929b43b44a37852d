/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Discover: what its files share. discover.c reads CPUs, nodes and NICs, discover_pci.c what hangs from PCI.
 */
#ifndef PHUB_TOPOLOGY_DISCOVER_INTERNAL_H
#define PHUB_TOPOLOGY_DISCOVER_INTERNAL_H

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>

#include "topology/host.h"

#define DISCOVER_TEXT_BYTES 16384u /* longest file that is read: a node's meminfo, a cpulist with many gaps */

struct discover {
	const char *root; /* "" for "/" */
	struct host *host;
	char text[DISCOVER_TEXT_BYTES]; /* of the file read last */
};

/* Read the file at root/path into d->text, without its last newline. Returns false when that is not possible. */
__attribute__((format(printf, 2, 3))) bool discover_read(struct discover *d, const char *format, ...);

/* The number in d->text, or `unknown` when it holds no number. */
int64_t discover_number(const struct discover *d, int64_t unknown);

/* The NUMA node that d->text says, -1 when it is none. */
int discover_node_id(const struct discover *d);

/* For scandir(). Not alphasort(), whose order depends on the locale. */
int discover_compare_entries(const struct dirent **a, const struct dirent **b);

/* Find GPUs, and where they and the NICs that d->host has already sit. */
void discover_pci(struct discover *d);

#endif
