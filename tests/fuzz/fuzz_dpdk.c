/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: what comes in by a port of DPDK, which is anybody's: Ethernet, ARP, IPv4, UDP, ICMP. The input is up to 16
 * frames, each after a byte of what a device says of it and 16 bits of its length. A frame lies in memory of exactly
 * its size, so that a sanitizer sees reads behind its end. Only what is whole comes out as a datagram, answers are no
 * longer than what they answer, and no packet is lost or freed twice.
 *
 * EAL runs without devices: frames come by the ring with which cores hand them over.
 */
#include <rte_eal.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <stdlib.h>
#include <string.h>

#include "transport/dpdk_internal.h"

enum {
	FRAMES = 16,
	SAYS_SPLIT = 1,  /* in two segments */
	SAYS_SUM = 2,    /* the sum of its IPv4 header is made right */
	SAYS_IP_BAD = 4, /* the device has looked: */
	SAYS_IP_GOOD = 8,
	SAYS_UDP_BAD = 16,
};

#define FUZZ_IP 0x0a080001u /* 10.8.0.1 */

static struct rte_mempool *pool;
static struct rte_ring *ring;
static uint32_t answerable; /* bytes of the frame that is looked at */
static const struct rte_ether_addr fuzz_mac = {{2, 0, 0, 0, 0, 1}};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

/* ---- what dpdk.c would be ---- */

void dpdk_enqueue(struct dpdk_port *p, struct rte_mbuf *m)
{
	const struct rte_ether_hdr *ether = rte_pktmbuf_mtod(m, const struct rte_ether_hdr *);

	fuzz_require(rte_pktmbuf_data_len(m) == rte_pktmbuf_pkt_len(m) && rte_pktmbuf_data_len(m) <= answerable);
	fuzz_require(rte_pktmbuf_data_len(m) >= DPDK_HEADERS);
	fuzz_require(rte_is_same_ether_addr(&ether->src_addr, &p->nic->mac));
	rte_pktmbuf_free(m);
}

void dpdk_register_thread(struct dpdk_port *p)
{
}

static void fuzz_log(enum log_level level, const char *line)
{
	fuzz_require(strlen(line) > 0);
}

/* ---- frames ---- */

static void fuzz_begin(void)
{
	char *arguments[] = {"fuzz", "--no-pci", "--no-huge", "--no-shconf", "--no-telemetry", "-m", "32", "--lcores",
		"0@0", "--log-level=error"};

	fuzz_require(rte_eal_init(10, arguments) >= 0);
	pool = rte_pktmbuf_pool_create(
		"fuzz", 4 * FRAMES - 1, 0, 0, RTE_PKTMBUF_HEADROOM + DPDK_HEADERS, SOCKET_ID_ANY);
	ring = rte_ring_create("fuzz", 4 * FRAMES, SOCKET_ID_ANY, 0);
	fuzz_require(pool && ring);
}

static void fuzz_free(void *addr, void *opaque)
{
	free(addr);
	free(opaque);
}

/* A segment of just these bytes. */
static struct rte_mbuf *fuzz_segment(const uint8_t *bytes, uint16_t length)
{
	struct rte_mbuf_ext_shared_info *shared = malloc(sizeof(*shared));
	struct rte_mbuf *m = rte_pktmbuf_alloc(pool);
	uint8_t *copy = malloc(length ? length : 1);

	fuzz_require(m && copy && shared);
	memcpy(copy, bytes, length);
	*shared = (struct rte_mbuf_ext_shared_info){.free_cb = fuzz_free, .fcb_opaque = shared};
	rte_mbuf_ext_refcnt_set(shared, 1);
	rte_pktmbuf_attach_extbuf(m, copy, RTE_BAD_IOVA, length, shared);
	m->data_len = length;
	m->pkt_len = length;
	return m;
}

static struct rte_mbuf *fuzz_frame(uint8_t says, const uint8_t *bytes, uint16_t length)
{
	uint16_t first = says & SAYS_SPLIT ? length / 2 : length;
	struct rte_mbuf *m = fuzz_segment(bytes, first);
	struct rte_ipv4_hdr *ip = rte_pktmbuf_mtod_offset(m, struct rte_ipv4_hdr *, RTE_ETHER_HDR_LEN);

	if (says & SAYS_SUM && first >= RTE_ETHER_HDR_LEN + sizeof(*ip) && ip->version_ihl == RTE_IPV4_VHL_DEF) {
		ip->hdr_checksum = 0;
		ip->hdr_checksum = rte_ipv4_cksum(ip);
	}
	if (says & SAYS_SPLIT)
		fuzz_require(rte_pktmbuf_chain(m, fuzz_segment(bytes + first, length - first)) == 0);
	m->ol_flags |= says & SAYS_IP_BAD ? RTE_MBUF_F_RX_IP_CKSUM_BAD : 0;
	m->ol_flags |= says & SAYS_IP_GOOD ? RTE_MBUF_F_RX_IP_CKSUM_GOOD : 0;
	m->ol_flags |= says & SAYS_UDP_BAD ? RTE_MBUF_F_RX_L4_CKSUM_BAD : 0;
	answerable = length;
	return m;
}

/* One frame after the other: what an answer may have is known. */
static void fuzz_receive(struct dpdk_port *p, struct rte_mbuf *m)
{
	struct datagram_in in;
	unsigned count;

	fuzz_require(rte_ring_enqueue(ring, m) == 0);
	count = dpdk_receive(&p->port, &in, 1);
	if (count == 0)
		return;
	fuzz_require(count == 1 && in.length + DPDK_HEADERS <= answerable && in.from.ip.s6_addr[10] == 0xff);
	for (uint32_t i = 0; i < in.length; i++)
		(void)*(const volatile uint8_t *)&in.bytes[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct dpdk_nic nic;
	struct dpdk_port p = {.nic = &nic, .holder = -1, .port.address.port = 7100};
	struct rte_ether_addr mac;

	if (!pool)
		fuzz_begin();
	p.steered = ring;
	p.spare_heads.pool = pool;
	memset(&nic, 0, sizeof(nic));
	nic.ip = FUZZ_IP;
	nic.mask = 0xffffff00u;
	nic.mac = fuzz_mac;
	nic.port_base = 7100;
	nic.host.log = fuzz_log;
	for (unsigned i = 0; i < FRAMES && size >= 3; i++) {
		uint8_t says = data[0];
		size_t length = data[1] | (size_t)data[2] << 8;

		data += 3;
		size -= 3;
		length = length < size ? length : size;
		fuzz_receive(&p, fuzz_frame(says, data, (uint16_t)length));
		data += length;
		size -= length;
	}
	answerable = DPDK_HEADERS; /* a request of its own */
	for (unsigned i = 1; i < 8; i++)
		if (dpdk_resolve(&p, FUZZ_IP + i, clock_now_ns(), &mac))
			fuzz_require(rte_is_valid_assigned_ether_addr(&mac));
	rte_pktmbuf_free_bulk(p.given, p.given_count);
	fuzz_require(rte_mempool_avail_count(pool) == 4 * FRAMES - 1 && rte_ring_empty(ring));
	return 0;
}
