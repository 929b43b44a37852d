/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be told of RDMA ports without using them, for `phub topo`, `phub doctor` and messages. Where the build has
 * no libibverbs there are none.
 */
#ifndef PHUB_TRANSPORT_RDMA_H
#define PHUB_TRANSPORT_RDMA_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"

#define RDMA_PORTS_MAX 64

struct rdma_port {
	char device[64];
	char interface[16]; /* the network interface of its GID, or "" */
	char kind[16];      /* "RoCE v2", "RoCE v1", "InfiniBand", "iWARP" */
	char state[16];     /* "active", "down", ... */
	char gid[48];       /* as text; "" when none fits */
	int gid_index;      /* chosen: RoCE v2 first, IPv4 before IPv6 before link-local; -1: none */
	unsigned port;      /* from 1; 0: of a device that cannot be opened */
	int node;           /* NUMA node, -1: not known */
	uint64_t rate_mbps;
	unsigned mtu; /* bytes of payload in a packet */
	bool usable;
	char why[96];   /* not usable: why */
	char cure[192]; /* not usable: what to do */
};

#define RDMA_NAME_BYTES 80

/* "DEVICE:PORT", as the option `rdma` takes it. */
const char *rdma_port_name(const struct rdma_port *p, char out[RDMA_NAME_BYTES]);

/*
 * Lists the ports of all devices. Returns how many (at most `max` were written), -ENOSYS (a build without libibverbs),
 * or another negative errno. May open devices; any thread.
 */
int rdma_ports_list(struct rdma_port *out, unsigned max);

/*
 * 0, or -ENOMEM with the number that `ulimit -l` needs, when `bytes` more can certainly not be pinned. Any thread, none
 * that handles chunks.
 */
int rdma_check_limit(uint64_t bytes, struct err *e);

#endif
