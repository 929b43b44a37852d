/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of libphub-dpdk.so share. dpdk.c is the port that datagrams leave by, dpdk_rx.c what comes in, both of
 * the owning core; dpdk_arp.c who has which address (any core); dpdk_init.c devices and queues, dpdk_eal.c the process'
 * EAL, dpdk_memory.c what a device reads from (control thread), dpdk_steer.c how a device steers. Included by these
 * alone.
 */
#ifndef PHUB_TRANSPORT_DPDK_INTERNAL_H
#define PHUB_TRANSPORT_DPDK_INTERNAL_H

#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_ip.h>
#include <rte_mbuf.h>
#include <rte_ring.h>
#include <rte_spinlock.h>
#include <rte_udp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#undef NS_PER_S /* DPDK has one, too */
#include "phub/base/clock.h"
#include "phub/base/cpu.h"
#include "phub/base/list.h"
#include "phub/base/mem.h"
#include "transport/dpdk.h"

enum {
	DPDK_HEADERS = 14 + 20 + 8, /* Ethernet, IPv4, UDP */
	DPDK_DESCRIPTORS = 1024,
	DPDK_TX_MAX = 64,       /* packets that wait for flush() */
	DPDK_STEER_RING = 1024, /* of packets that another core handed over */
	DPDK_SPARE = 32,        /* packets that a port takes out of a pool at a time */
	DPDK_CACHE = 128,       /* of a mempool, for each core */
	DPDK_ATTACH_MIN = 256,  /* bytes: less is copied sooner than attached */
	DPDK_WAITING = 16,      /* packets that wait for ARP, */
	DPDK_WAITING_MS = 200,  /* and for how long */
	DPDK_ARP_ENTRIES = 1024,
	DPDK_ARP_PROBES = 8,
	DPDK_REGIONS_MAX = 64,    /* of jobs' memory that a device reads from */
	DPDK_RECLAIM_US = 2000,   /* so long a device is waited for that still reads what a connection sent */
	DPDK_LINK_MS = 10,        /* the link is looked at as often as that, when a device takes nothing */
	DPDK_PAGE_ROOM = 0x10000, /* no room of a packet's: of a pool whose packets have a page each */
	DPDK_XDP_SLOTS = 2048,    /* of the rings of XDP's sockets, by default */
	/* Bytes of a page that no IPv4 packet can have: heads of the pool's, DPDK's and XDP's, and Ethernet's. */
	DPDK_XDP_HEADS = 64 + 128 + RTE_PKTMBUF_HEADROOM + 256 + RTE_ETHER_HDR_LEN,
};

/* Who has an address: written under the lock, read without. */
struct dpdk_neighbour {
	_Atomic uint32_t ip;      /* 0: free */
	_Atomic uint64_t mac;     /* 0: not known yet */
	_Atomic uint64_t seen_ns; /* when it said so */
	_Atomic uint64_t asked_ns;
};

/* Memory that the device may read: changed under the lock. */
struct dpdk_region {
	void *base; /* NULL: free */
	size_t bytes;
	unsigned uses; /* connections */
	bool mapped;   /* else it is copied */
};

struct dpdk_port;

struct dpdk_nic {
	struct dpdk_host host;
	struct dpdk_spec spec;
	uint16_t id;     /* of ethdev */
	bool probed;     /* it is ours to remove */
	bool kernel_ip;  /* the address is that of a kernel's interface, which must not answer */
	bool memory;     /* no wire: what one end sends is what the other gets */
	bool isolated;   /* what no rule names stays with the kernel */
	bool keeps;      /* it has packets for longer than tx_burst() takes */
	bool attaches;   /* payloads are read where they lie: */
	bool maps;       /* later on, and only from `regions`; else any address, within tx_burst() */
	bool map_told;   /* that something could not be mapped */
	bool offload_ip; /* the device computes checksums */
	bool offload_udp;
	bool xdp; /* net_af_xdp: packets lie in the kernel's memory for XDP */
	bool quiet;
	enum dpdk_steering steering;
	int node;
	char kernel_interface[16];
	struct rte_ether_addr mac;
	uint32_t ip, mask, gateway; /* host byte order */
	uint16_t mtu;
	uint16_t port_base;
	uint16_t queues; /* that may be opened */
	uint16_t rx_queues, tx_queues;
	uint16_t rx_descriptors, tx_descriptors;
	struct rte_mempool *rx_pools[DPDK_QUEUES_MAX]; /* [0] alone where cores have no receive queues of their own */
	int holders[DPDK_QUEUES_MAX];                  /* kernel's sockets that keep UDP ports quiet, or -1 */
	int nodes[DPDK_QUEUES_MAX];                    /* of those who own the queues; or MEM_NODE_ANY */
	rte_spinlock_t *tx_locks;                      /* where ports share the device's transmit queues; else NULL */
	struct dpdk_port *_Atomic ports[DPDK_QUEUES_MAX];
	rte_spinlock_t region_lock;
	_Atomic uint64_t region_changes; /* 0: there never was a region */
	unsigned region_count;
	struct dpdk_region regions[DPDK_REGIONS_MAX];
	struct rte_mempool *pools[3 * DPDK_QUEUES_MAX]; /* a device may have packets of a port that was closed */
	unsigned pool_count;
	rte_spinlock_t arp_lock;
	_Atomic bool conflict_told; /* that somebody else has our address */
	struct dpdk_neighbour neighbours[DPDK_ARP_ENTRIES];
};

/* In the private area of an mbuf that a payload is attached to. */
struct dpdk_attached {
	struct rte_mbuf_ext_shared_info shared;
	struct list_link link; /* dpdk_port.reading */
	struct dpdk_port *port;
	struct reliable *reliable;
	struct reliable_message *message; /* NULL: nobody wants to know any more when it is over */
	const struct reliable_conn *conn;
};

/* Packets of a port's pool that it has taken out beforehand. */
struct dpdk_spare {
	struct rte_mempool *pool;
	struct rte_mbuf *free[DPDK_SPARE];
	unsigned count;
};

struct dpdk_port {
	struct datagram_port port;
	struct dpdk_nic *nic;
	unsigned index;
	int holder; /* nic->holders[index] */
	bool receives;
	uint16_t tx_queue;
	bool thread_asked;
	struct dpdk_spare spare_heads, spare_attached;
	struct rte_ring *steered; /* what others received for it; or NULL */
	uint8_t template[DPDK_HEADERS];
	uint16_t template_sum; /* of its IPv4 header, one's complement: a packet adds its length and whom it is to */
	/* Transmit: `next` is what room() gave; pending ones wait for flush(). */
	struct rte_mbuf *next;
	uint32_t next_hop; /* of it, when its MAC is not known yet; else 0 */
	/* Those wait until somebody answers for that address. */
	struct dpdk_waiting {
		struct rte_mbuf *m;
		uint32_t hop;
		uint64_t until_ns;
	} waiting[DPDK_WAITING];
	unsigned waiting_count;
	struct rte_mbuf *pending[DPDK_TX_MAX];
	unsigned pending_count;
	uint64_t down_looked_ns;
	bool down;
	struct rte_mbuf *given[DPDK_DATAGRAMS]; /* by the last receive() */
	unsigned given_count;
	struct list_link reading; /* what the device may still read */
	struct {
		uint64_t changes; /* of nic->region_changes, when this was so: */
		uintptr_t from, to;
	} mapped; /* the region that was asked for last */
	struct dpdk_counters counters;
};

/* ---- dpdk.c ---- */

extern const struct datagram_port_ops dpdk_port_ops;
/* Owner: sends a whole frame of its own soon, or drops it. */
void dpdk_enqueue(struct dpdk_port *p, struct rte_mbuf *m);
/* The calling thread gets caches of its own in EAL's pools. Asked by receive(): a queue polls before it sends. */
void dpdk_register_thread(struct dpdk_port *p);
/* Frees what is under way. Control thread, when the owner has stopped. */
void dpdk_drain(struct dpdk_port *p);

/* ---- dpdk_rx.c ---- */

unsigned dpdk_receive(struct datagram_port *port, struct datagram_in *in, unsigned max);

/* ---- dpdk_arp.c ---- */

/* The next hop of a packet to `ip`; 0: there is none. */
uint32_t dpdk_next_hop(const struct dpdk_nic *nic, uint32_t ip);
/* Its MAC: true; else it was asked for, if that was not just done. */
bool dpdk_resolve(struct dpdk_port *p, uint32_t ip, uint64_t now_ns, struct rte_ether_addr *out);
/* An ARP frame of `bytes` came. Takes it. */
void dpdk_arp_input(struct dpdk_port *p, struct rte_mbuf *m, uint64_t now_ns);

/* ---- dpdk_eal.c ---- */

/* Starts EAL, once, for all ports of the configuration. */
int dpdk_eal_start(const struct dpdk_host *host, const struct dpdk_nic_config *config, struct err *e);
/* The first error that EAL or a driver told since dpdk_eal_start(); "" when none. */
const char *dpdk_eal_said(void);
bool dpdk_eal_huge(void);
/* A pool of packets with a page each, one after the other. NULL, with the reason in rte_errno. */
struct rte_mempool *dpdk_page_pool(const char *name, unsigned count, int node);

/* ---- dpdk_memory.c ---- */

/* As in datagram_class. */
bool dpdk_memory_use(void *owner, void *base, size_t bytes, bool huge);
void dpdk_memory_end(void *owner, void *base);
/* Takes back what is not in use. */
void dpdk_memory_reap(struct dpdk_nic *nic);
/* Owner of the port: may the device read this? */
bool dpdk_memory_has(struct dpdk_port *p, const void *at, size_t bytes);

/* ---- dpdk_steer.c ---- */

/* Before it is configured: leaves to the kernel what is the kernel's, where this driver shares a device with it. */
void dpdk_isolate(struct dpdk_nic *nic, const char *driver);
/* When it has started: rules. Sets nic->steering. 0, or a negative errno with the reason in `e`. */
int dpdk_steer(struct dpdk_nic *nic, struct err *e);

/* ---- dpdk_init.c ---- */

/* Control thread, when the owner has stopped. */
void dpdk_port_destroy(struct dpdk_port *p);

static inline struct dpdk_port *dpdk_port_of(struct datagram_port *p)
{
	return (struct dpdk_port *)(void *)p;
}

#endif
