/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of libphub-dpdk.so share. dpdk.c is the port that datagrams leave by, dpdk_rx.c what comes in, both of
 * the owning core; dpdk_arp.c who has which address (any core); dpdk_init.c devices and queues, dpdk_eal.c the process'
 * EAL (control thread). Included by these alone.
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
#include "transport/dpdk.h"

enum {
	DPDK_HEADERS = 14 + 20 + 8, /* Ethernet, IPv4, UDP */
	DPDK_DESCRIPTORS = 1024,
	DPDK_TX_MAX = 64,       /* packets that wait for flush() */
	DPDK_STEER_RING = 1024, /* of packets that another core handed over */
	DPDK_CACHE = 128,       /* of a mempool, for each core */
	DPDK_ATTACH_MIN = 256,  /* bytes: less is copied sooner than attached */
	DPDK_WAITING = 16,      /* packets that wait for ARP, */
	DPDK_WAITING_MS = 200,  /* and for how long */
	DPDK_ARP_ENTRIES = 1024,
	DPDK_ARP_PROBES = 8,
	DPDK_LINK_MS = 10, /* the link is looked at as often as that, when a device takes nothing */
};

/* Who has an address: written under the lock, read without. */
struct dpdk_neighbour {
	_Atomic uint32_t ip;      /* 0: free */
	_Atomic uint64_t mac;     /* 0: not known yet */
	_Atomic uint64_t seen_ns; /* when it said so */
	_Atomic uint64_t asked_ns;
};

struct dpdk_port;

struct dpdk_nic {
	struct dpdk_host host;
	struct dpdk_spec spec;
	uint16_t id;     /* of ethdev */
	bool probed;     /* it is ours to remove */
	bool kernel_ip;  /* the address is that of a kernel's interface, which must not answer */
	bool attaches;   /* multi-segment, and the driver reads virtual addresses within tx_burst() */
	bool offload_ip; /* the device computes checksums */
	bool offload_udp;
	bool quiet;
	enum dpdk_steering steering;
	int node;
	struct rte_ether_addr mac;
	uint32_t ip, mask, gateway; /* host byte order */
	uint16_t mtu;
	uint16_t port_base;
	uint16_t queues; /* that may be opened */
	uint16_t rx_queues, tx_queues;
	uint16_t rx_descriptors, tx_descriptors;
	struct rte_mempool *rx_pool; /* of all receive queues */
	rte_spinlock_t *tx_locks;    /* where ports share the device's transmit queues; else NULL */
	struct dpdk_port *_Atomic ports[DPDK_QUEUES_MAX];
	rte_spinlock_t arp_lock;
	struct dpdk_neighbour neighbours[DPDK_ARP_ENTRIES];
};

/* In the private area of an mbuf that a payload is attached to. */
struct dpdk_attached {
	struct rte_mbuf_ext_shared_info shared;
	struct dpdk_port *port;
	struct reliable *reliable;
	struct reliable_message *message;
	const struct reliable_conn *conn;
};

struct dpdk_port {
	struct datagram_port port;
	struct dpdk_nic *nic;
	unsigned index;
	int holder; /* a kernel's socket that keeps its UDP port quiet, or -1 */
	bool receives;
	uint16_t tx_queue;
	bool thread_asked;
	struct rte_mempool *heads, *attached;
	struct rte_ring *steered; /* what others received for it; or NULL */
	uint8_t template[DPDK_HEADERS];
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
	struct dpdk_counters counters;
};

/* ---- dpdk.c ---- */

extern const struct datagram_port_ops dpdk_port_ops;
/* Owner: sends a whole frame of its own soon, or drops it. */
void dpdk_enqueue(struct dpdk_port *p, struct rte_mbuf *m);
/* The calling thread gets caches of its own in EAL's pools. */
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

/* ---- dpdk_init.c ---- */

/* Control thread, when the owner has stopped. */
void dpdk_port_destroy(struct dpdk_port *p);

static inline struct dpdk_port *dpdk_port_of(struct datagram_port *p)
{
	return (struct dpdk_port *)(void *)p;
}

#endif
