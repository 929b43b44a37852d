/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who has which IPv4 address on this link (RFC 826). One table for all cores of a port, because an answer comes to
 * whichever queue the device chooses: written under a lock that is only tried, read without. Only what was asked for,
 * or who asked for us, is learned, and who asked takes nobody's place that is in use; what the table says may be
 * forged, as on any Ethernet, and the seals of datagrams are what tells.
 */
#include <arpa/inet.h>
#include <net/if_arp.h>
#include <rte_arp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "phub/base/stats.h"
#include "transport/dpdk_internal.h"

#define ARP_ASK_NS   (50 * NS_PER_MS) /* at most one request for an address in this time */
#define ARP_FRESH_NS (60 * NS_PER_S)  /* then it is asked again, while the old one still serves */
#define ARP_BYTES    (sizeof(struct rte_ether_hdr) + sizeof(struct rte_arp_hdr))

static uint64_t arp_pack(const struct rte_ether_addr *mac)
{
	uint64_t packed = 0;

	memcpy(&packed, mac->addr_bytes, RTE_ETHER_ADDR_LEN);
	return packed;
}

/* Who may have an entry made, and what may go for it. */
enum arp_make {
	ARP_NONE,
	ARP_ASKER, /* anybody who asks for us: what is free, or of whom nothing was heard for long */
	ARP_OURS,  /* whom we send to: the oldest one, if need be */
};

/* When it was heard of, or asked for, last: a place that is waiting for its answer is in use. */
static uint64_t arp_last(const struct dpdk_neighbour *n)
{
	uint64_t seen = atomic_load_explicit(&n->seen_ns, memory_order_relaxed);
	uint64_t asked = atomic_load_explicit(&n->asked_ns, memory_order_relaxed);

	return seen > asked ? seen : asked;
}

/* The entry of `ip`, or one that is made for it; NULL: none. */
static struct dpdk_neighbour *arp_find(struct dpdk_nic *nic, uint32_t ip, enum arp_make make, uint64_t now_ns)
{
	struct dpdk_neighbour *stale = NULL;
	uint64_t oldest = UINT64_MAX;

	for (unsigned i = 0; i < DPDK_ARP_PROBES; i++) {
		struct dpdk_neighbour *n = &nic->neighbours[(ip + i) % DPDK_ARP_ENTRIES];
		uint32_t has = atomic_load_explicit(&n->ip, memory_order_acquire);
		uint64_t last = has ? arp_last(n) : 0;

		if (has == ip)
			return n;
		if (last >= oldest || (has && make == ARP_ASKER && now_ns <= last + ARP_FRESH_NS))
			continue;
		oldest = last;
		stale = n;
	}
	if (make == ARP_NONE || !stale || !rte_spinlock_trylock(&nic->arp_lock))
		return NULL;
	/* A reader that is in between takes the new address for another's, once: the seal or the peer drops that. */
	atomic_store_explicit(&stale->mac, 0, memory_order_relaxed);
	atomic_store_explicit(&stale->seen_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&stale->asked_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&stale->ip, ip, memory_order_release);
	rte_spinlock_unlock(&nic->arp_lock);
	return stale;
}

static void arp_learn(
	struct dpdk_nic *nic, uint32_t ip, const struct rte_ether_addr *mac, enum arp_make make, uint64_t now_ns)
{
	struct dpdk_neighbour *n;

	if (ip == 0 || ip == nic->ip || !rte_is_valid_assigned_ether_addr(mac))
		return;
	n = arp_find(nic, ip, make, now_ns);
	if (!n)
		return;
	atomic_store_explicit(&n->seen_ns, now_ns, memory_order_relaxed);
	atomic_store_explicit(&n->mac, arp_pack(mac), memory_order_relaxed);
}

static void arp_fill(const struct dpdk_nic *nic, void *frame, uint16_t op, const struct rte_ether_addr *to, uint32_t ip)
{
	struct rte_ether_hdr *ether = frame;
	struct rte_arp_hdr *arp = (void *)(ether + 1);

	ether->src_addr = nic->mac;
	ether->dst_addr = *to;
	ether->ether_type = RTE_BE16(RTE_ETHER_TYPE_ARP);
	arp->arp_hardware = RTE_BE16(RTE_ARP_HRD_ETHER);
	arp->arp_protocol = RTE_BE16(RTE_ETHER_TYPE_IPV4);
	arp->arp_hlen = RTE_ETHER_ADDR_LEN;
	arp->arp_plen = 4;
	arp->arp_opcode = rte_cpu_to_be_16(op);
	arp->arp_data.arp_sha = nic->mac;
	arp->arp_data.arp_sip = rte_cpu_to_be_32(nic->ip);
	if (op == RTE_ARP_OP_REPLY)
		arp->arp_data.arp_tha = *to;
	else
		memset(&arp->arp_data.arp_tha, 0, RTE_ETHER_ADDR_LEN);
	arp->arp_data.arp_tip = rte_cpu_to_be_32(ip);
}

/*
 * Where the address is the kernel's, and answers to it may come to the kernel alone: it is asked what it knows, and,
 * where that is nothing, given something to send there. Two system calls, at most every 50 ms.
 */
static bool arp_ask_kernel(struct dpdk_port *p, uint32_t ip, struct dpdk_neighbour *n, uint64_t now_ns)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(ip)};
	struct arpreq request = {0};
	struct rte_ether_addr mac;

	memcpy(&request.arp_pa, &to, sizeof(to));
	memcpy(request.arp_dev, p->nic->kernel_interface, sizeof(request.arp_dev));
	if (ioctl(p->holder, SIOCGARP, &request) < 0 || !(request.arp_flags & ATF_COM)) {
		(void)sendto(p->holder, "", 0, MSG_DONTWAIT, (struct sockaddr *)&to, sizeof(to));
		return false;
	}
	memcpy(mac.addr_bytes, request.arp_ha.sa_data, sizeof(mac.addr_bytes));
	if (!rte_is_valid_assigned_ether_addr(&mac))
		return false;
	atomic_store_explicit(&n->seen_ns, now_ns, memory_order_relaxed);
	atomic_store_explicit(&n->mac, arp_pack(&mac), memory_order_relaxed);
	return true;
}

static void arp_ask(struct dpdk_port *p, uint32_t ip)
{
	static const struct rte_ether_addr all = {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}};
	struct rte_mbuf *m = rte_pktmbuf_alloc(p->spare_heads.pool);
	void *frame = m ? rte_pktmbuf_append(m, ARP_BYTES) : NULL;

	if (!frame) {
		rte_pktmbuf_free(m);
		return;
	}
	arp_fill(p->nic, frame, RTE_ARP_OP_REQUEST, &all, ip);
	stats_add(&p->counters.asked, 1);
	dpdk_enqueue(p, m);
}

uint32_t dpdk_next_hop(const struct dpdk_nic *nic, uint32_t ip)
{
	if (((ip ^ nic->ip) & nic->mask) == 0)
		return ip;
	return nic->gateway;
}

bool dpdk_resolve(struct dpdk_port *p, uint32_t ip, uint64_t now_ns, struct rte_ether_addr *out)
{
	struct dpdk_neighbour *n = arp_find(p->nic, ip, ARP_OURS, now_ns);
	uint64_t mac, asked;

	if (!n)
		return false;
	mac = atomic_load_explicit(&n->mac, memory_order_relaxed);
	asked = atomic_load_explicit(&n->asked_ns, memory_order_relaxed);
	if (mac == 0 || now_ns - atomic_load_explicit(&n->seen_ns, memory_order_relaxed) > ARP_FRESH_NS) {
		/* Of several cores that find this one asks, and losing that race costs a request. */
		if (now_ns - asked >= ARP_ASK_NS && atomic_compare_exchange_strong_explicit(&n->asked_ns, &asked,
							    now_ns, memory_order_relaxed, memory_order_relaxed)) {
			if (p->holder >= 0 && arp_ask_kernel(p, ip, n, now_ns))
				mac = atomic_load_explicit(&n->mac, memory_order_relaxed);
			else
				arp_ask(p, ip);
		}
	}
	memcpy(out->addr_bytes, &mac, RTE_ETHER_ADDR_LEN);
	return mac != 0;
}

/* Somebody says that our address is at this MAC (RFC 5227): we keep it, and tell whoever reads logs, once. */
static void arp_check_claim(struct dpdk_port *p, const struct rte_ether_addr *mac)
{
	struct dpdk_nic *nic = p->nic;
	char line[256], ip[INET_ADDRSTRLEN] = "?";
	uint32_t address = htonl(nic->ip);

	if (rte_is_same_ether_addr(mac, &nic->mac) || !rte_is_valid_assigned_ether_addr(mac))
		return;
	stats_add(&p->counters.conflicts, 1);
	if (atomic_exchange_explicit(&nic->conflict_told, true, memory_order_relaxed))
		return;
	inet_ntop(AF_INET, &address, ip, sizeof(ip));
	snprintf(line, sizeof(line),
		"%.64s: " RTE_ETHER_ADDR_PRT_FMT " says that it has our address %s, too; give one of them another",
		nic->spec.device, RTE_ETHER_ADDR_BYTES(mac), ip);
	nic->host.log(LOG_LEVEL_WARN, line);
}

void dpdk_arp_input(struct dpdk_port *p, struct rte_mbuf *m, uint64_t now_ns)
{
	struct dpdk_nic *nic = p->nic;
	struct rte_ether_hdr *ether = rte_pktmbuf_mtod(m, struct rte_ether_hdr *);
	const struct rte_arp_hdr *arp = (void *)(ether + 1);
	struct rte_ether_addr from;
	uint32_t ip;

	if (rte_pktmbuf_data_len(m) < ARP_BYTES || m->nb_segs > 1 || arp->arp_hardware != RTE_BE16(RTE_ARP_HRD_ETHER) ||
		arp->arp_protocol != RTE_BE16(RTE_ETHER_TYPE_IPV4) || arp->arp_hlen != RTE_ETHER_ADDR_LEN ||
		arp->arp_plen != 4) {
		stats_add(&p->counters.dropped[DPDK_RUNT], 1);
		goto drop;
	}
	ip = rte_be_to_cpu_32(arp->arp_data.arp_sip);
	from = arp->arp_data.arp_sha;
	if (ip == nic->ip)
		arp_check_claim(p, &from);
	if (arp->arp_data.arp_tip != rte_cpu_to_be_32(nic->ip)) {
		arp_learn(nic, ip, &from, ARP_NONE, now_ns); /* somebody we know speaks to somebody else */
		stats_add(&p->counters.dropped[DPDK_ELSEWHERE], 1);
		goto drop;
	}
	if (arp->arp_opcode != RTE_BE16(RTE_ARP_OP_REQUEST)) {
		arp_learn(nic, ip, &from, ARP_NONE, now_ns);
		goto drop;
	}
	/* Who asks will send, and wants an answer. A probe for duplicates (RFC 5227) has no address yet. */
	arp_learn(nic, ip, &from, ((ip ^ nic->ip) & nic->mask) == 0 ? ARP_ASKER : ARP_NONE, now_ns);
	if (!rte_is_valid_assigned_ether_addr(&from))
		goto drop;
	rte_pktmbuf_trim(m, (uint16_t)(rte_pktmbuf_data_len(m) - ARP_BYTES));
	arp_fill(nic, ether, RTE_ARP_OP_REPLY, &from, ip);
	stats_add(&p->counters.answered, 1);
	dpdk_enqueue(p, m);
	return;
drop:
	rte_pktmbuf_free(m);
}
