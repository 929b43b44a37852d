/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What comes in by a port of DPDK: Ethernet, IPv4 and UDP are taken off, ARP and echo requests answered, all else is
 * dropped and counted. The bytes are anybody's. Payloads stay in their mbufs, which are freed at the next receive().
 * Owning core.
 *
 * A UDP checksum that the device has not looked at is not computed: the datagram's seal covers more, and a kernel on
 * the same machine hands frames to af_packet whose checksum nobody has computed yet. (It also hands over what it would
 * let a network card cut into datagrams: that is cut off, counted as runts, and never comes; see "Virtual devices" in
 * deploy/dpdk.md.)
 */
#include <rte_icmp.h>
#include <string.h>

#include "phub/base/stats.h"
#include "transport/dpdk_internal.h"

static void rx_drop(struct dpdk_port *p, struct rte_mbuf *m, enum dpdk_drop why)
{
	stats_add(&p->counters.dropped[why], 1);
	rte_pktmbuf_free(m);
}

/* May a packet come from this address? Not from a group, nobody, or what never leaves a host. */
static bool rx_is_sender(uint32_t ip)
{
	return ip >> 24 != 0 && ip >> 24 != 127 && ip >> 28 < 0xe;
}

/* Would an answer go to a host of our network, or by the gateway? Else somebody has it go where it hurts. */
static bool rx_is_answered(const struct dpdk_nic *nic, uint32_t ip)
{
	uint32_t host = ip & ~nic->mask;

	if ((ip ^ nic->ip) & nic->mask)
		return nic->gateway != 0;
	return ip != nic->ip && (~nic->mask <= 1 || (host != 0 && host != ~nic->mask));
}

/* Turns an echo request into its answer. */
static void rx_echo(struct dpdk_port *p, struct rte_mbuf *m, struct rte_ipv4_hdr *ip, uint32_t bytes)
{
	struct rte_ether_hdr *ether = rte_pktmbuf_mtod(m, struct rte_ether_hdr *);
	struct rte_icmp_hdr *icmp = (void *)(ip + 1);
	uint32_t sum;

	if (bytes < sizeof(*icmp) || icmp->icmp_type != RTE_IP_ICMP_ECHO_REQUEST || icmp->icmp_code != 0 ||
		!rx_is_answered(p->nic, rte_be_to_cpu_32(ip->src_addr))) {
		rx_drop(p, m, DPDK_PROTOCOL);
		return;
	}
	ether->dst_addr = ether->src_addr;
	ether->src_addr = p->nic->mac;
	ip->dst_addr = ip->src_addr;
	ip->src_addr = rte_cpu_to_be_32(p->nic->ip);
	ip->time_to_live = 64;
	ip->hdr_checksum = 0;
	ip->hdr_checksum = rte_ipv4_cksum(ip);
	icmp->icmp_type = RTE_IP_ICMP_ECHO_REPLY;
	/* RFC 1624: the type went from 8 to 0. */
	sum = (uint32_t)icmp->icmp_cksum + RTE_BE16(RTE_IP_ICMP_ECHO_REQUEST << 8);
	icmp->icmp_cksum = (uint16_t)(sum + (sum >> 16));
	rte_pktmbuf_trim(m, (uint16_t)(rte_pktmbuf_data_len(m) - sizeof(*ether) - sizeof(*ip) - bytes));
	m->ol_flags &= RTE_MBUF_F_EXTERNAL | RTE_MBUF_F_INDIRECT; /* where its bytes lie stays so */
	stats_add(&p->counters.answered, 1);
	dpdk_enqueue(p, m);
}

/* The frame's IPv4 header, when it is whole and well-formed and for us; else NULL, and the frame is gone. */
static struct rte_ipv4_hdr *rx_ipv4(struct dpdk_port *p, struct rte_mbuf *m)
{
	const struct rte_ether_hdr *ether = rte_pktmbuf_mtod(m, const struct rte_ether_hdr *);
	struct rte_ipv4_hdr *ip = (void *)(uintptr_t)(ether + 1);
	uint32_t room = rte_pktmbuf_data_len(m) - (uint32_t)sizeof(struct rte_ether_hdr);
	uint64_t found = m->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK;
	enum dpdk_drop why = DPDK_DROPS;

	/* One's complement over all of a header that is whole is 0. */
	if (room < sizeof(*ip))
		why = DPDK_RUNT;
	else if (ip->version_ihl != RTE_IPV4_VHL_DEF || rte_be_to_cpu_16(ip->total_length) < sizeof(*ip))
		why = DPDK_HEADER;
	else if (rte_be_to_cpu_16(ip->total_length) > room)
		why = DPDK_RUNT;
	else if (found == RTE_MBUF_F_RX_IP_CKSUM_BAD ||
		 (found != RTE_MBUF_F_RX_IP_CKSUM_GOOD && rte_ipv4_cksum(ip) != 0))
		why = DPDK_DAMAGED;
	else if (rte_be_to_cpu_16(ip->fragment_offset) & (RTE_IPV4_HDR_MF_FLAG | RTE_IPV4_HDR_OFFSET_MASK))
		why = DPDK_FRAGMENT;
	else if (ip->dst_addr != rte_cpu_to_be_32(p->nic->ip) ||
		 !rte_is_same_ether_addr(&ether->dst_addr, &p->nic->mac))
		why = DPDK_ELSEWHERE;
	else if (!rte_is_unicast_ether_addr(&ether->src_addr) || !rx_is_sender(rte_be_to_cpu_32(ip->src_addr)))
		why = DPDK_HEADER;
	if (why == DPDK_DROPS)
		return ip;
	rx_drop(p, m, why);
	return NULL;
}

/* Hands a datagram to the core that owns its port. */
static void rx_steer(struct dpdk_port *p, struct rte_mbuf *m, uint16_t udp_port)
{
	unsigned index = (unsigned)(udp_port - p->nic->port_base);
	struct dpdk_port *other = NULL;

	if (udp_port >= p->nic->port_base && index < DPDK_QUEUES_MAX)
		other = atomic_load_explicit(&p->nic->ports[index], memory_order_acquire);
	if (!other || !other->steered)
		rx_drop(p, m, DPDK_NO_QUEUE);
	else if (rte_ring_mp_enqueue(other->steered, m) < 0)
		rx_drop(p, m, DPDK_STEER_FULL);
	else
		stats_add(&p->counters.steered, 1);
}

static void rx_address(struct datagram_address *out, const struct rte_mbuf *m, const struct rte_ipv4_hdr *ip,
	const struct rte_udp_hdr *udp)
{
	const struct rte_ether_hdr *ether = rte_pktmbuf_mtod(m, const struct rte_ether_hdr *);

	out->ip = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
	memcpy(&out->ip.s6_addr[12], &ip->src_addr, 4);
	out->scope = 0;
	out->port = rte_be_to_cpu_16(udp->src_port);
	memcpy(out->mac, ether->src_addr.addr_bytes, RTE_ETHER_ADDR_LEN);
}

/* Is this frame a datagram for this port? Else it is gone. */
static bool rx_take(struct dpdk_port *p, struct rte_mbuf *m, struct datagram_in *in, uint64_t *now_ns)
{
	const struct rte_ether_hdr *ether = rte_pktmbuf_mtod(m, const struct rte_ether_hdr *);
	struct rte_ipv4_hdr *ip;
	const struct rte_udp_hdr *udp;
	uint32_t bytes;

	if (m->nb_segs > 1 && rte_pktmbuf_linearize(m) < 0)
		return rx_drop(p, m, DPDK_SCATTERED), false;
	if (rte_pktmbuf_data_len(m) < sizeof(*ether))
		return rx_drop(p, m, DPDK_RUNT), false;
	if (ether->ether_type == RTE_BE16(RTE_ETHER_TYPE_ARP)) {
		*now_ns = *now_ns ? *now_ns : clock_now_ns();
		return dpdk_arp_input(p, m, *now_ns), false;
	}
	if (ether->ether_type != RTE_BE16(RTE_ETHER_TYPE_IPV4))
		return rx_drop(p, m, DPDK_FOREIGN), false;
	ip = rx_ipv4(p, m);
	if (!ip)
		return false;
	bytes = rte_be_to_cpu_16(ip->total_length) - (uint32_t)sizeof(*ip);
	if (ip->next_proto_id == IPPROTO_ICMP)
		return rx_echo(p, m, ip, bytes), false;
	udp = (const void *)(ip + 1);
	if (ip->next_proto_id != IPPROTO_UDP)
		return rx_drop(p, m, DPDK_PROTOCOL), false;
	if (bytes < sizeof(*udp) || rte_be_to_cpu_16(udp->dgram_len) < sizeof(*udp) ||
		rte_be_to_cpu_16(udp->dgram_len) > bytes)
		return rx_drop(p, m, DPDK_RUNT), false;
	if ((m->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK) == RTE_MBUF_F_RX_L4_CKSUM_BAD)
		return rx_drop(p, m, DPDK_DAMAGED), false;
	if (rte_be_to_cpu_16(udp->dst_port) != p->port.address.port)
		return rx_steer(p, m, rte_be_to_cpu_16(udp->dst_port)), false;
	in->bytes = (const uint8_t *)(udp + 1);
	in->length = rte_be_to_cpu_16(udp->dgram_len) - (uint32_t)sizeof(*udp);
	rx_address(&in->from, m, ip, udp);
	return true;
}

unsigned dpdk_receive(struct datagram_port *port, struct datagram_in *in, unsigned max)
{
	struct dpdk_port *p = dpdk_port_of(port);
	struct rte_mbuf *came[DPDK_DATAGRAMS];
	unsigned count = 0, found = 0, pending = p->pending_count;
	uint64_t now_ns = 0;

	dpdk_register_thread(p);
	rte_pktmbuf_free_bulk(p->given, p->given_count);
	p->given_count = 0;
	if (max > DPDK_DATAGRAMS)
		max = DPDK_DATAGRAMS;
	/* What others handed over has waited longest. */
	if (p->steered)
		count = rte_ring_sc_dequeue_burst(p->steered, (void **)came, max, NULL);
	if (p->receives && count < max)
		count += rte_eth_rx_burst(p->nic->id, (uint16_t)p->index, came + count, (uint16_t)(max - count));
	stats_add(&p->counters.polls, 1);
	stats_add(&p->counters.empty, count == 0);
	for (unsigned i = 0; i < count; i++) {
		if (i + 1 < count)
			rte_prefetch0(rte_pktmbuf_mtod(came[i + 1], void *));
		if (!rx_take(p, came[i], &in[found], &now_ns))
			continue;
		p->given[found++] = came[i];
	}
	p->given_count = found;
	/* Answers of ours wait for nobody's flush(): without ARP nobody sends us what would bring one. */
	if (p->pending_count > pending)
		p->port.ops->flush(port);
	stats_add(&p->counters.came, found);
	p->port.stirred = count > 0;
	return found;
}
