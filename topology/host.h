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
#define HOST_GPU_COUNT_MAX  64u
#define HOST_SWITCH_MAX     64u
#define HOST_PCI_BYTES      16u /* "0000:3b:00.0", and domains of five digits */
#define HOST_NONE           (-1)

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

/* Where a device sits on PCI. */
struct host_pci {
	char address[HOST_PCI_BYTES]; /* "" when it is not on PCI, or nobody says */
	char root[HOST_PCI_BYTES];    /* root complex that it hangs from, as "0000:3a"; "" when nobody says */
	int above;                    /* index of the switch right above it, or HOST_NONE: it sits on a root port */
	uint32_t link_mbit;           /* of its own link each way, as trained, after line coding; 0 when unknown */
	uint32_t path_mbit;           /* the least of all links from it up to the root; 0 when unknown */
	char narrow[HOST_PCI_BYTES];  /* the device whose link that is */
};

/* A PCIe switch with a NIC or GPU below it. */
struct host_switch {
	char address[HOST_PCI_BYTES]; /* of its upstream port */
	char root[HOST_PCI_BYTES];
	int above;          /* index of the switch that it hangs from, or HOST_NONE; always less than its own */
	int node;           /* -1 when the machine does not say */
	uint32_t link_mbit; /* of its upstream link; 0 when unknown */
};

/* A display controller or an accelerator: what a board management controller shows is one too; see `class`. */
struct host_gpu {
	struct host_pci pci;
	uint32_t class; /* of PCI, its upper 16 bits: 0x0300 VGA, 0x0302 3D, 0x0380 display, 0x1200 accelerator */
	uint16_t vendor;
	uint16_t device;
	int node;
};

struct host_nic {
	char name[HOST_NIC_NAME_BYTES];
	char rdma[HOST_NIC_NAME_BYTES]; /* first RDMA device of the same function, "" when sysfs names none */
	struct host_pci pci;
	int node;            /* id of its NUMA node, -1 when the machine does not say */
	uint32_t speed_mbit; /* 0 when unknown */
	bool up;
	bool physical; /* backed by a device (PCI, virtio, ...), not a bridge, tunnel or veth */
};

struct host {
	struct host_node nodes[HOST_NODE_COUNT_MAX]; /* ascending id, at least one */
	struct host_cpu cpus[HOST_CPU_COUNT_MAX];    /* ascending id, at least one */
	struct host_nic nics[HOST_NIC_COUNT_MAX];    /* ascending name, without lo */
	struct host_gpu gpus[HOST_GPU_COUNT_MAX];    /* ascending PCI address */
	struct host_switch switches[HOST_SWITCH_MAX];
	unsigned node_count;
	unsigned cpu_count;
	unsigned nic_count;
	unsigned gpu_count;
	unsigned switch_count;
	uint64_t llc_bytes;     /* of one last-level cache, 0 when unknown */
	uint64_t huge_2m_total; /* whole machine */
	uint64_t huge_2m_free;
};

/* How far two devices are from each other, nearest first. */
enum host_near {
	HOST_NEAR_SWITCH, /* a PCIe switch joins them: what they send each other never reaches the CPU */
	HOST_NEAR_ROOT,   /* one root complex */
	HOST_NEAR_NODE,   /* one NUMA node */
	HOST_NEAR_FAR,    /* across nodes */
	HOST_NEAR_UNKNOWN
};

/* Pure; any thread. */
enum host_near host_near(
	const struct host *host, const struct host_pci *a, int a_node, const struct host_pci *b, int b_node);
const char *host_near_name(enum host_near near);

/*
 * What all ports of the NIC's card that are up could carry together, when that is more than the PCIe links above it do:
 * in Mbit/s, else 0 (also when one of both is unknown). Ports of one card are functions of one device.
 */
uint32_t host_nic_excess(const struct host *host, unsigned nic);

#endif
