/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device of DPDK with its queues, and the ports on it; and the table that the program finds. Control
 * thread.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <net/if.h>
#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_flow.h>
#include <rte_malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/dpdk_internal.h"
#include "transport/wire.h"

/* Drivers that have read a packet, from virtual addresses, when tx_burst() returns. */
static const char *const nic_copiers[] = {"net_af_packet", "net_memif", "net_tap", "net_null", "net_pcap"};

/* Keeps them, and hands them over within this process: as a NIC does, to tests. */
static const char nic_keeper[] = "net_ring";

static bool nic_copies(const char *driver)
{
	for (size_t i = 0; i < sizeof(nic_copiers) / sizeof(nic_copiers[0]); i++)
		if (strcmp(nic_copiers[i], driver) == 0)
			return true;
	return false;
}

/* The device's name for EAL: "net_memif0" of "net_memif0,role=client". */
static void nic_name(const struct dpdk_spec *spec, char out[DPDK_DEVICE_MAX])
{
	snprintf(out, DPDK_DEVICE_MAX, "%.*s", (int)strcspn(spec->device, ","), spec->device);
}

/* A number among the device's own arguments, or `otherwise`. */
static unsigned long nic_argument(const struct dpdk_spec *spec, const char *name, unsigned long otherwise)
{
	const char *at = strstr(spec->device, name);

	return at ? strtoul(at + strlen(name), NULL, 10) : otherwise;
}

/* ---- addresses ---- */

static int nic_kernel_address(struct dpdk_nic *nic, unsigned index, struct err *e)
{
	struct ifreq request = {0};
	struct sockaddr_in address;
	int rc = 0, fd;

	if (index == 0 || !if_indextoname(index, request.ifr_name))
		return err_set(e, -EADDRNOTAVAIL,
			"DPDK port \"%s\": the kernel has no interface of it: give it an address, as in "
			"\"%s@10.0.0.1/24\"",
			nic->spec.device, nic->spec.device);
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return err_set(e, -errno, "DPDK port \"%s\": no socket", nic->spec.device);
	if (ioctl(fd, SIOCGIFADDR, &request) < 0)
		rc = -errno;
	memcpy(&address, &request.ifr_addr, sizeof(address));
	nic->ip = ntohl(address.sin_addr.s_addr);
	if (rc == 0 && ioctl(fd, SIOCGIFNETMASK, &request) < 0)
		rc = -errno;
	memcpy(&address, &request.ifr_netmask, sizeof(address));
	nic->mask = ntohl(address.sin_addr.s_addr);
	close(fd);
	if (rc < 0)
		return err_set(e, rc,
			"DPDK port \"%s\": the interface %s has no IPv4 address: give it one, here or in the kernel",
			nic->spec.device, request.ifr_name);
	memcpy(nic->kernel_interface, request.ifr_name, sizeof(nic->kernel_interface));
	nic->kernel_ip = true;
	return 0;
}

/* Does the kernel's interface of that device have the address, too, as its first or another one? */
static bool nic_is_kernels(struct dpdk_nic *nic, unsigned index)
{
	struct ifaddrs *all = NULL;
	char name[IF_NAMESIZE];
	bool found = false;

	if (index == 0 || !if_indextoname(index, name) || getifaddrs(&all) < 0)
		return false;
	for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
		const struct sockaddr_in *address = (const void *)i->ifa_addr;

		found = address && address->sin_family == AF_INET && address->sin_addr.s_addr == htonl(nic->ip) &&
			strcmp(i->ifa_name, name) == 0;
	}
	freeifaddrs(all);
	if (found)
		memcpy(nic->kernel_interface, name, sizeof(nic->kernel_interface));
	return found;
}

static int nic_address(struct dpdk_nic *nic, const struct rte_eth_dev_info *info, struct err *e)
{
	/* The kernel's end of a tap is the peer. */
	unsigned index = strcmp(info->driver_name, "net_tap") == 0 ? 0 : info->if_index;

	nic->gateway = nic->spec.gateway;
	if (!nic->spec.ip)
		return nic_kernel_address(nic, index, e);
	nic->ip = nic->spec.ip;
	nic->mask = ~UINT32_C(0) << (32 - nic->spec.prefix);
	nic->kernel_ip = nic_is_kernels(nic, index);
	return 0;
}

/*
 * Where the address is also the kernel's, the kernel would answer what it has no socket for: "port unreachable". This
 * socket takes those datagrams, and its filter throws them away. All are had before any other transport of the box asks
 * for more ports.
 */
static int nic_hold(struct dpdk_nic *nic, unsigned index, struct err *e)
{
	struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
	struct sock_fprog program = {.len = 1, .filter = &nothing};
	uint16_t port = (uint16_t)(nic->port_base + index);
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(nic->ip),
	};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	nic->holders[index] = fd;
	if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0 &&
		bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return 0;
	return err_set(e, -errno,
		"DPDK port \"%s\": UDP port %u of the kernel's address is not to be had: %s; choose others with "
		"data_ports, or ,port=",
		nic->spec.device, port, strerror(errno));
}

static int nic_hold_all(struct dpdk_nic *nic, struct err *e)
{
	int rc = 0;

	for (unsigned i = 0; nic->kernel_ip && i < nic->queues && rc == 0; i++)
		rc = nic_hold(nic, i, e);
	return rc;
}

/* The MAC that was asked for, else the device's if it is one; that of a vdev may be nobody's, or the same for all. */
static int nic_mac(struct dpdk_nic *nic, struct err *e)
{
	struct rte_ether_addr had = {0}, *want = (void *)nic->spec.mac;

	if (rte_eth_macaddr_get(nic->id, &had) == 0 && rte_is_zero_ether_addr(want) &&
		rte_is_valid_assigned_ether_addr(&had)) {
		nic->mac = had;
		return 0;
	}
	nic->mac = *want;
	if (rte_is_zero_ether_addr(want))
		rte_eth_random_addr(nic->mac.addr_bytes);
	/* To the kernel's address comes what has the kernel's MAC. */
	if (rte_eth_dev_default_mac_addr_set(nic->id, &nic->mac) == 0 ||
		(!nic->kernel_ip && rte_eth_promiscuous_enable(nic->id) == 0))
		return 0;
	/* A vdev that filters nothing needs neither. */
	if (rte_is_zero_ether_addr(want) || !rte_is_valid_assigned_ether_addr(&had))
		return 0;
	return err_set(e, -EADDRNOTAVAIL, "DPDK port \"%s\": it takes no other MAC than its own", nic->spec.device);
}

/* Our address, mapped into IPv6. */
static void nic_map(const struct dpdk_nic *nic, struct in6_addr *out)
{
	uint32_t ip = htonl(nic->ip);

	*out = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
	memcpy(&out->s6_addr[12], &ip, sizeof(ip));
}

/* ---- the device ---- */

static struct rte_mempool *nic_pool(
	const char *what, unsigned count, unsigned private_bytes, unsigned room, int node, struct err *e)
{
	static unsigned serial;
	char name[RTE_MEMPOOL_NAMESIZE];
	struct rte_mempool *pool;

	/* A pool of 2^n - 1 uses its memory best. */
	count = rte_align32pow2(count + 1) - 1;
	snprintf(name, sizeof(name), "phub_%s_%u", what, serial++);
	/* The node is preferred: it may have no huge pages, and without them EAL has all on one. */
	for (int socket = node < 0 ? SOCKET_ID_ANY : node;; socket = SOCKET_ID_ANY) {
		if (room == DPDK_PAGE_ROOM)
			pool = dpdk_page_pool(name, count, socket);
		else
			pool = rte_pktmbuf_pool_create(name, count, DPDK_CACHE,
				(uint16_t)RTE_ALIGN_CEIL(private_bytes, RTE_MBUF_PRIV_ALIGN), (uint16_t)room, socket);
		if (pool || socket == SOCKET_ID_ANY)
			break;
	}
	if (!pool)
		err_set(e, -ENOMEM,
			"DPDK: no memory for %u packets of %u bytes: %s; free huge pages, or give EAL more with -m",
			count, room == DPDK_PAGE_ROOM ? (unsigned)getpagesize() : room, rte_strerror(rte_errno));
	return pool;
}

/*
 * A NIC reads a packet after tx_burst(), from bus addresses: of memory that was mapped for it, and only where these are
 * the virtual ones; and whoever sends must be the one who hears that it is done, with a queue of its own.
 */
static void nic_reads_later(struct dpdk_nic *nic, const struct rte_eth_dev_info *info)
{
	bool kept = strcmp(rte_bus_name(rte_dev_bus(info->device)), "pci") == 0 ||
		    strcmp(info->driver_name, nic_keeper) == 0;

	if (!kept || !(info->tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) || nic->tx_queues < nic->queues ||
		rte_eal_iova_mode() == RTE_IOVA_PA)
		return;
	nic->attaches = nic->maps = true;
}

static int nic_configure(struct dpdk_nic *nic, const struct rte_eth_dev_info *info, struct err *e)
{
	uint16_t most;
	uint64_t have = info->tx_offload_capa;
	struct rte_eth_conf conf = {
		.rxmode.mtu = nic->spec.mtu,
		.rxmode.offloads =
			info->rx_offload_capa & (RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM),
		.txmode.offloads = have & (RTE_ETH_TX_OFFLOAD_MULTI_SEGS | RTE_ETH_TX_OFFLOAD_IPV4_CKSUM |
						  RTE_ETH_TX_OFFLOAD_UDP_CKSUM),
	};
	int rc;

	/* Of memif's queues those work that the other end has, too, and a worker has one. */
	most = strcmp(info->driver_name, "net_memif") == 0 ? 1 : nic->queues;
	nic->rx_queues = RTE_MIN(most, info->max_rx_queues);
	nic->tx_queues = RTE_MIN(most, info->max_tx_queues);
	nic->offload_ip = have & RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
	nic->offload_udp = have & RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
	nic->xdp = strcmp(info->driver_name, "net_af_xdp") == 0;
	nic->memory = strcmp(info->driver_name, "net_memif") == 0 || strcmp(info->driver_name, nic_keeper) == 0;
	/* A driver that copies, in software, would compute checksums in software, too. */
	nic->keeps = !nic_copies(info->driver_name);
	if (!nic->keeps) {
		nic->offload_ip = nic->offload_udp = false;
		conf.txmode.offloads &= RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
		conf.rxmode.offloads = 0;
		nic->attaches = (have & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) && !strstr(nic->spec.device, "zero-copy=yes");
	}
	nic_reads_later(nic, info);
	rc = rte_eth_dev_configure(nic->id, nic->rx_queues, nic->tx_queues, &conf);
	if (rc == 0)
		rc = rte_eth_dev_adjust_nb_rx_tx_desc(nic->id, &nic->rx_descriptors, &nic->tx_descriptors);
	if (rc == 0)
		rc = rte_eth_dev_get_mtu(nic->id, &nic->mtu);
	if (rc < 0)
		return err_set(e, rc, "DPDK port \"%s\": it cannot be configured with %u queues and an MTU of %u: %s",
			nic->spec.device, nic->queues, nic->spec.mtu, dpdk_eal_said());
	return 0;
}

/* Bytes that a packet to receive into has room for, with its headroom. */
static unsigned nic_room(const struct dpdk_nic *nic)
{
	unsigned room = RTE_ALIGN_CEIL(RTE_PKTMBUF_HEADROOM + nic->mtu + RTE_ETHER_HDR_LEN + RTE_VLAN_HLEN, 64);

	return RTE_MAX(room, (unsigned)RTE_MBUF_DEFAULT_BUF_SIZE);
}

/*
 * A pool for each core on its node, where cores have receive queues of their own: they free what they received. Else
 * one for all, on the device's.
 */
static int nic_receive_pools(struct dpdk_nic *nic, struct err *e)
{
	unsigned room = nic->xdp ? DPDK_PAGE_ROOM : nic_room(nic);
	unsigned queue = nic->rx_descriptors + 2u * DPDK_DATAGRAMS, user = 2u * DPDK_CACHE;
	bool each = nic->queues > 1 && nic->rx_queues == nic->queues;

	/* As many as its rings hold lie ready to be received into, and what is sent is copied to as many more. */
	queue += nic->xdp ? 2u * DPDK_XDP_SLOTS : 0;
	/* Where rules are refused, they hand over what they received, too. */
	user += nic->queues > 1 ? DPDK_STEER_RING : 0;
	for (uint16_t i = 0; i < nic->rx_queues; i++) {
		int node = nic->nodes[i] == MEM_NODE_ANY ? nic->node : nic->nodes[i];

		if (each)
			nic->rx_pools[i] = nic_pool("rx", queue + user, 0, room, node, e);
		else if (i == 0)
			nic->rx_pools[i] =
				nic_pool("rx", nic->rx_queues * queue + nic->queues * user, 0, room, nic->node, e);
		else
			nic->rx_pools[i] = nic->rx_pools[0];
		if (!nic->rx_pools[i])
			return -ENOMEM;
	}
	return 0;
}

static int nic_start(struct dpdk_nic *nic, struct err *e)
{
	int rc = nic_receive_pools(nic, e);

	if (rc < 0)
		return rc;
	for (uint16_t i = 0; i < nic->rx_queues && rc == 0; i++)
		rc = rte_eth_rx_queue_setup(
			nic->id, i, nic->rx_descriptors, (unsigned)nic->node, NULL, nic->rx_pools[i]);
	for (uint16_t i = 0; i < nic->tx_queues && rc == 0; i++)
		rc = rte_eth_tx_queue_setup(nic->id, i, nic->tx_descriptors, (unsigned)nic->node, NULL);
	if (rc == 0)
		rc = rte_eth_dev_start(nic->id);
	if (rc < 0)
		return err_set(e, rc, "DPDK port \"%s\": it does not start: %s", nic->spec.device, dpdk_eal_said());
	return 0;
}

/* Asked before it is configured: EAL's own words for this name no way out. */
static int nic_check_mtu(const struct dpdk_nic *nic, const struct rte_eth_dev_info *info, struct err *e)
{
	unsigned page = (unsigned)getpagesize(), most = info->max_mtu;

	/* Of a driver that names no MTU, as ethdev reckons it. */
	if (most == 0 || most == UINT16_MAX)
		most = info->max_rx_pktlen - (RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN);
	if (strcmp(info->driver_name, "net_af_xdp") == 0)
		most = RTE_MIN(most, page - DPDK_XDP_HEADS);
	if (nic->spec.mtu <= most)
		return 0;
	return err_set(e, -EMSGSIZE,
		"DPDK port \"%s\": its MTU may be %u at most with driver %s, not %u: say less with ,mtu= or take "
		"another "
		"driver (deploy/dpdk.md, MTU)",
		nic->spec.device, most, info->driver_name, nic->spec.mtu);
}

/* Frames of af_packet's ring must hold what comes, or it is cut off; larger ones, packets cannot hold. */
static int nic_check_frames(const struct dpdk_nic *nic, const char *driver, struct err *e)
{
	unsigned long frame = nic_argument(&nic->spec, "framesz=", 2048);

	if (strcmp(driver, "net_af_packet") != 0 ||
		(frame >= nic->mtu + 128u && frame <= nic_room(nic) - RTE_PKTMBUF_HEADROOM))
		return 0;
	return err_set(e, -EMSGSIZE,
		"DPDK port \"%s\": framesz=%lu is too %s for an MTU of %u: leave framesz= and blocksz= out",
		nic->spec.device, frame, frame < nic->mtu + 128u ? "small" : "large", nic->mtu);
}

static int nic_probe(struct dpdk_nic *nic, struct rte_eth_dev_info *info, struct err *e)
{
	char name[DPDK_DEVICE_MAX];
	int rc;

	nic_name(&nic->spec, name);
	if (rte_eth_dev_get_port_by_name(name, &nic->id) < 0) {
		rc = rte_dev_probe(nic->spec.device);
		if (rc < 0)
			return err_set(e, rc, "DPDK port \"%s\": there is no such device, or it cannot be taken: %s",
				nic->spec.device, dpdk_eal_said()[0] ? dpdk_eal_said() : rte_strerror(-rc));
		nic->probed = true;
		if (rte_eth_dev_get_port_by_name(name, &nic->id) < 0)
			return err_set(e, -ENODEV, "DPDK port \"%s\": it is no network device", nic->spec.device);
	} else {
		/* By another transport, or by the user's own EAL arguments: neither is ours. */
		return err_set(e, -EBUSY, "DPDK port \"%s\" is in use by this process", nic->spec.device);
	}
	rc = rte_eth_dev_info_get(nic->id, info);
	if (rc < 0)
		return err_set(e, rc, "DPDK port \"%s\": it says nothing of itself", nic->spec.device);
	nic->node = rte_eth_dev_socket_id(nic->id);
	return 0;
}

static void nic_destroy(struct dpdk_nic *nic)
{
	struct rte_eth_dev_info info;
	struct rte_flow_error why;

	if (nic->probed && rte_eth_dev_info_get(nic->id, &info) == 0) {
		if (nic->steering == DPDK_STEER_FLOW || nic->isolated)
			rte_flow_flush(nic->id, &why);
		rte_eth_dev_stop(nic->id);
		dpdk_memory_reap(nic);
		if (rte_dev_remove(info.device) < 0)
			rte_eth_dev_close(nic->id);
	}
	for (unsigned i = nic->rx_queues; i-- > 0;)
		if (i == 0 || nic->rx_pools[i] != nic->rx_pools[0])
			rte_mempool_free(nic->rx_pools[i]);
	for (unsigned i = 0; i < nic->pool_count; i++)
		rte_mempool_free(nic->pools[i]);
	for (unsigned i = 0; i < nic->queues; i++)
		if (nic->holders[i] >= 0)
			close(nic->holders[i]);
	rte_free(nic->tx_locks);
	free(nic);
}

static int nic_bring_up(struct dpdk_nic *nic, struct err *e)
{
	struct rte_eth_dev_info info;
	int rc = nic_probe(nic, &info, e);

	if (rc == 0)
		rc = nic_check_mtu(nic, &info, e);
	if (rc == 0)
		rc = nic_address(nic, &info, e);
	if (rc == 0)
		rc = nic_hold_all(nic, e);
	if (rc == 0)
		dpdk_isolate(nic, info.driver_name);
	if (rc == 0)
		rc = nic_configure(nic, &info, e);
	if (rc == 0)
		rc = nic_check_frames(nic, info.driver_name, e);
	if (rc == 0 && nic->tx_queues < nic->queues) {
		nic->tx_locks = rte_zmalloc(NULL, nic->tx_queues * sizeof(*nic->tx_locks), 64);
		rc = nic->tx_locks ? 0 : err_set(e, -ENOMEM, "DPDK: no memory for locks");
	}
	if (rc == 0)
		rc = nic_start(nic, e);
	if (rc == 0)
		rc = nic_mac(nic, e);
	if (rc == 0)
		rc = dpdk_steer(nic, e);
	return rc;
}

static int nic_open(
	const struct dpdk_host *host, const struct dpdk_nic_config *config, struct dpdk_nic **out, struct err *e)
{
	uint16_t base = config->port_first ? config->port_first : DPDK_PORT_DEFAULT;
	struct dpdk_nic *nic;
	int rc;

	if (config->queues == 0 || config->queues > DPDK_QUEUES_MAX)
		return err_set(e, -EINVAL, "DPDK: %u queues; 1 to %d are allowed", config->queues, DPDK_QUEUES_MAX);
	if (base + config->queues - 1 > (config->port_last ? config->port_last : 65535u))
		return err_set(e, -EADDRINUSE,
			"DPDK: %u queues need as many UDP ports from %u on; give more with data_ports, or others with "
			",port=",
			config->queues, base);
	rc = dpdk_eal_start(host, config, e);
	if (rc < 0)
		return rc;
	nic = aligned_alloc(CPU_LINE_BYTES, RTE_ALIGN_CEIL(sizeof(*nic), CPU_LINE_BYTES));
	if (!nic)
		return err_set(e, -ENOMEM, "DPDK: no memory");
	*nic = (struct dpdk_nic){
		.host = *host,
		.spec = config->spec,
		.quiet = config->quiet,
		.queues = (uint16_t)config->queues,
		.port_base = base,
		.rx_descriptors = config->descriptors ? config->descriptors : DPDK_DESCRIPTORS,
		.tx_descriptors = config->descriptors ? config->descriptors : DPDK_DESCRIPTORS,
	};
	for (unsigned i = 0; i < config->queues; i++) {
		nic->nodes[i] = config->nodes ? config->nodes[i] : MEM_NODE_ANY;
		nic->holders[i] = -1;
	}
	rc = nic_bring_up(nic, e);
	if (rc < 0) {
		nic_destroy(nic);
		return rc;
	}
	*out = nic;
	return 0;
}

static void nic_close(void *owner)
{
	nic_destroy(owner);
}

/* ---- ports ---- */

static void port_template(struct dpdk_port *p)
{
	struct rte_ether_hdr *ether = (void *)p->template;
	struct rte_ipv4_hdr *ip = (void *)(ether + 1);
	struct rte_udp_hdr *udp = (void *)(ip + 1);

	ether->src_addr = p->nic->mac;
	ether->ether_type = RTE_BE16(RTE_ETHER_TYPE_IPV4);
	ip->version_ihl = RTE_IPV4_VHL_DEF;
	ip->fragment_offset = RTE_BE16(RTE_IPV4_HDR_DF_FLAG);
	ip->time_to_live = 64;
	ip->next_proto_id = IPPROTO_UDP;
	ip->src_addr = rte_cpu_to_be_32(p->nic->ip);
	udp->src_port = rte_cpu_to_be_16(p->port.address.port);
	p->template_sum = rte_raw_cksum(ip, sizeof(*ip));
}

static int port_pools(struct dpdk_port *p, int node, struct err *e)
{
	struct dpdk_nic *nic = p->nic;
	unsigned count = nic->tx_descriptors + 2u * DPDK_TX_MAX + 2u * DPDK_CACHE + DPDK_SPARE;
	char name[RTE_RING_NAMESIZE];
	static unsigned serial;

	p->spare_heads.pool = nic_pool("tx", count, 0, RTE_PKTMBUF_HEADROOM + RTE_ETHER_HDR_LEN + nic->mtu, node, e);
	if (!p->spare_heads.pool)
		return -ENOMEM;
	if (nic->attaches) {
		p->spare_attached.pool = nic_pool("ext", count, sizeof(struct dpdk_attached), 0, node, e);
		if (!p->spare_attached.pool)
			return -ENOMEM;
	}
	if (nic->steering != DPDK_STEER_SOFT)
		return 0;
	snprintf(name, sizeof(name), "phub_steer_%u", serial++);
	p->steered = rte_ring_create(name, DPDK_STEER_RING, node < 0 ? SOCKET_ID_ANY : node, RING_F_SC_DEQ);
	return p->steered ? 0 : err_set(e, -ENOMEM, "DPDK: no memory for a ring between cores");
}

static void port_give_pool(struct dpdk_nic *nic, struct rte_mempool *pool)
{
	if (nic->keeps && pool && nic->pool_count < RTE_DIM(nic->pools))
		nic->pools[nic->pool_count++] = pool;
	else
		rte_mempool_free(pool);
}

void dpdk_port_destroy(struct dpdk_port *p)
{
	struct rte_mbuf *m;

	atomic_store_explicit(&p->nic->ports[p->index], NULL, memory_order_release);
	dpdk_drain(p);
	while (p->steered && rte_ring_dequeue(p->steered, (void **)&m) == 0)
		rte_pktmbuf_free(m);
	rte_ring_free(p->steered);
	/* Where a device is done when tx_burst() returns, all is back; others may have some for as long as they run. */
	port_give_pool(p->nic, p->spare_heads.pool);
	port_give_pool(p->nic, p->spare_attached.pool);
	free(p);
}

static uint64_t port_room_bytes(const struct dpdk_port *p)
{
	const struct dpdk_nic *nic = p->nic;
	unsigned long waiting = nic_argument(&nic->spec, "framecnt=", nic->rx_descriptors);

	if (strstr(nic->spec.device, "net_af_packet") && !strstr(nic->spec.device, "framecnt="))
		waiting = 512; /* the driver's default */
	waiting = RTE_MIN(waiting, (unsigned long)nic->rx_descriptors) * nic->rx_queues / nic->queues;
	return waiting * p->port.datagram_max;
}

static int nic_port_open(
	void *owner, unsigned queue_index, int node, const char *host, struct datagram_port **out, struct err *e)
{
	struct dpdk_nic *nic = owner;
	struct dpdk_port *p;
	int rc;

	(void)host;
	if (node == MEM_NODE_ANY && queue_index < nic->queues)
		node = nic->nodes[queue_index]; /* a box's first port is opened before its owner is known */
	if (queue_index >= nic->queues || atomic_load_explicit(&nic->ports[queue_index], memory_order_relaxed))
		return err_set(e, -EINVAL, "DPDK port \"%s\" was opened for %u queues", nic->spec.device, nic->queues);
	p = aligned_alloc(CPU_LINE_BYTES, RTE_ALIGN_CEIL(sizeof(*p), CPU_LINE_BYTES));
	if (!p)
		return err_set(e, -ENOMEM, "DPDK: no memory");
	*p = (struct dpdk_port){
		.port.ops = &dpdk_port_ops,
		.port.datagram_max = RTE_MIN(nic->mtu - 28u, WIRE_DATAGRAM_MAX),
		.port.address.port = (uint16_t)(nic->port_base + queue_index),
		/* Nothing in software checks UDP checksums here, and few devices that were tried make them. */
		.port.unchecked = !nic->memory,
		.nic = nic,
		.index = queue_index,
		.holder = nic->holders[queue_index],
		.receives = queue_index < nic->rx_queues,
		.tx_queue = (uint16_t)(queue_index % nic->tx_queues),
	};
	list_init(&p->reading);
	p->port.room_bytes = port_room_bytes(p);
	nic_map(nic, &p->port.address.ip);
	memcpy(p->port.address.mac, nic->mac.addr_bytes, RTE_ETHER_ADDR_LEN);
	port_template(p);
	rc = port_pools(p, node, e);
	if (rc < 0) {
		dpdk_port_destroy(p);
		return rc;
	}
	atomic_store_explicit(&nic->ports[queue_index], p, memory_order_release);
	*out = &p->port;
	return 0;
}

static int nic_route(
	void *owner, const struct datagram_address *peer, struct datagram_address *own, uint32_t *datagram_max)
{
	const struct dpdk_nic *nic = owner;
	uint32_t ip;

	if (!IN6_IS_ADDR_V4MAPPED(&peer->ip))
		return -EAFNOSUPPORT;
	memcpy(&ip, &peer->ip.s6_addr[12], 4);
	if (dpdk_next_hop(nic, ntohl(ip)) == 0)
		return -ENETUNREACH;
	nic_map(nic, &own->ip);
	memcpy(own->mac, nic->mac.addr_bytes, RTE_ETHER_ADDR_LEN);
	*datagram_max = RTE_MIN(nic->mtu - 28u, WIRE_DATAGRAM_MAX);
	return 0;
}

static void nic_facts(struct dpdk_nic *nic, struct dpdk_facts *out)
{
	struct rte_eth_dev_info info;
	struct rte_eth_link link = {0};

	*out = (struct dpdk_facts){
		.steering = nic->steering,
		.rx_queues = nic->rx_queues,
		.tx_queues = nic->tx_queues,
		.attaches = nic->attaches,
		.maps = nic->maps,
		.mapped = nic->region_count,
		.huge = dpdk_eal_huge(),
		.up = rte_eth_link_get_nowait(nic->id, &link) < 0 || link.link_status == RTE_ETH_LINK_UP,
		.mtu = nic->mtu,
		.mask = nic->mask,
		.gateway = nic->gateway != 0,
		.address.port = nic->port_base,
	};
	nic_map(nic, &out->address.ip);
	memcpy(out->address.mac, nic->mac.addr_bytes, RTE_ETHER_ADDR_LEN);
	if (rte_eth_dev_info_get(nic->id, &info) == 0)
		snprintf(out->driver, sizeof(out->driver), "%s", info.driver_name);
}

static const struct dpdk_counters *nic_counters(const struct datagram_port *p)
{
	return &((const struct dpdk_port *)(const void *)p)->counters;
}

extern __attribute__((visibility("default"))) const struct dpdk_plugin phub_dpdk_plugin;
const struct dpdk_plugin phub_dpdk_plugin = {
	.abi = DPDK_ABI,
	.open = nic_open,
	.facts = nic_facts,
	.port_open = nic_port_open,
	.route = nic_route,
	.memory_use = dpdk_memory_use,
	.memory_end = dpdk_memory_end,
	.close = nic_close,
	.counters = nic_counters,
};
