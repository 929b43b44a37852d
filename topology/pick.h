/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pick: which CPUs of a host become cores of the box. Pure and deterministic; called at start and by `phub topo`.
 */
#ifndef PHUB_TOPOLOGY_PICK_H
#define PHUB_TOPOLOGY_PICK_H

#include "phub/base/err.h"
#include "topology/host.h"
#include "topology/placement.h"

/* Choose `want` CPUs, best first: physical cores on a node of a served NIC, other physical cores, second hyper-threads
 * near, the rest. Within each kind the nodes take turns in proportion to their NICs' rates as the links have them now
 * (one that does not say counts as the slowest that does), lowest CPU first. nics[] holds indexes into host->nics; with
 * nic_count 0 the box serves those that are up and physical, and with none of those (loopback) all nodes are equal. A
 * NIC of unknown node is near all nodes. Fills cores[0 .. want - 1], ascending CPU, bytes 0, `nic` an index into
 * host->nics as placement_assign_nics() spreads them, or PLACEMENT_NIC_NONE. Returns 0; -EINVAL with *e (want is 0 or
 * more than the allowed CPUs, a NIC index out of range); -ENOMEM. On failure `cores` is untouched. Any thread;
 * allocates for the time of the call. */
int topology_pick_cores(const struct host *host, const unsigned *nics, unsigned nic_count, unsigned want,
	struct placement_core *cores, struct err *e);

#endif
