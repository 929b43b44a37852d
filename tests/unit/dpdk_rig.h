/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests of DPDK's port share: a veth pair phub-a <-> phub-b whose second end is the kernel's, in a network
 * namespace of the program's own, the kernel's socket there, and frames as a peer would send them, made by hand.
 */
#ifndef PHUB_TESTS_DPDK_RIG_H
#define PHUB_TESTS_DPDK_RIG_H

#include <net/ethernet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "transport/datagram.h"
#include "transport/dpdk.h"

#define KERNEL_IP "10.8.0.2" /* of phub-b */
#define OUR_IP    "10.8.0.1"

/* The network namespace must be this program's own. False: there is no such thing here. */
bool dpdk_rig_veth(void);
/* A queue of the device; the test fails without it. */
struct datagram_port *dpdk_rig_port(const struct dpdk_plugin *plugin, struct dpdk_nic *nic, unsigned index);
/* A socket for UDP on KERNEL_IP, and its port. */
int dpdk_rig_socket(uint16_t *port);
/* It sends this to the port. */
void dpdk_rig_say(int fd, const struct datagram_port *p, const char *text);
/* What it hears while the port does its part, as recv(). */
ssize_t dpdk_rig_hear(int fd, struct datagram_port *p, void *out, size_t bytes, int ms);

struct frame {
	uint8_t bytes[256];
	uint32_t length;
};

static inline uint16_t sum_of(const uint8_t *bytes, unsigned count)
{
	uint32_t sum = 0;

	for (unsigned i = 0; i + 1 < count; i += 2)
		sum += (uint32_t)bytes[i] << 8 | bytes[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

static inline void put16(uint8_t *at, uint32_t value)
{
	at[0] = (uint8_t)(value >> 8);
	at[1] = (uint8_t)value;
}

static inline void frame_sum(struct frame *f)
{
	put16(f->bytes + 24, 0);
	put16(f->bytes + 24, sum_of(f->bytes + 14, 20));
}

/* A datagram of 32 bytes for the port, as a good peer sends it. */
static inline struct frame frame_good(const struct datagram_port *p)
{
	struct frame f = {.length = 14 + 20 + 8 + 32};
	uint8_t *ip = f.bytes + 14, *udp = ip + 20;

	memcpy(f.bytes, p->address.mac, 6);
	memcpy(f.bytes + 6, "\x02\x00\x00\x00\x00\x77", 6);
	put16(f.bytes + 12, ETHERTYPE_IP);
	ip[0] = 0x45;
	put16(ip + 2, 20 + 8 + 32);
	ip[8] = 64;
	ip[9] = IPPROTO_UDP;
	memcpy(ip + 12, "\x0a\x08\x00\x07\x0a\x08\x00\x01", 8);
	put16(udp, 999);
	put16(udp + 2, p->address.port);
	put16(udp + 4, 8 + 32);
	frame_sum(&f);
	return f;
}

#endif
