/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host: the facts about one machine that placement needs, as plain data. discover.c fills it from sysfs, tests and
 * rack files fill it by hand, pick.c plans with it.
 */
#ifndef PHUB_TOPOLOGY_HOST_H
#define PHUB_TOPOLOGY_HOST_H

#include <stdbool.h>
#include <stdint.h>

#define HOST_NODE_COUNT_MAX 64u
#define HOST_CPU_COUNT_MAX  1024u
#define HOST_NIC_COUNT_MAX  64u
#define HOST_NIC_NAME_BYTES 32u

struct host_node {
	int id;                 /* as the kernel numbers it */
	uint64_t memory_bytes;  /* 0 when unknown */
	uint64_t huge_2m_total; /* pages of 2 MiB */
	uint64_t huge_2m_free;
};

struct host_cpu {
	int id;   /* as the kernel numbers it; only CPUs this process may run on */
	int node; /* id of its NUMA node */
	int core; /* lowest CPU id among its hyper-threads: two CPUs with equal `core` share a physical core */
};

struct host_nic {
	char name[HOST_NIC_NAME_BYTES];
	int node;            /* id of its NUMA node, -1 when the machine does not say */
	uint32_t speed_mbit; /* 0 when unknown */
	bool up;
	bool physical; /* backed by a device (PCI, virtio, ...), not a bridge, tunnel or veth */
};

struct host {
	struct host_node nodes[HOST_NODE_COUNT_MAX]; /* ascending id, at least one */
	struct host_cpu cpus[HOST_CPU_COUNT_MAX];    /* ascending id, at least one */
	struct host_nic nics[HOST_NIC_COUNT_MAX];    /* ascending name, without lo */
	unsigned node_count;
	unsigned cpu_count;
	unsigned nic_count;
	uint64_t llc_bytes;     /* of one last-level cache, 0 when unknown */
	uint64_t huge_2m_total; /* whole machine */
	uint64_t huge_2m_free;
};

#endif
