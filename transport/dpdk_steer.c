/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a device of DPDK gives each core what is for it: by rules (rte_flow), or not at all; and what it leaves to the
 * kernel. Written after reading drivers of DPDK 22.11; only that rules are refused was tried, by net_tap and others,
 * for want of a NIC. Control thread.
 */
#include <rte_flow.h>
#include <string.h>

#include "transport/dpdk_internal.h"

/*
 * The kernel keeps such a device, and while it is open everything for its MAC leaves the kernel, SSH too; but in
 * isolated mode only what rules say.
 */
static const char *const steer_bifurcated[] = {"mlx5", "net_mlx4"};

static int steer_rule(const struct dpdk_nic *nic, const struct rte_flow_item *pattern, uint16_t queue)
{
	const struct rte_flow_attr attr = {.ingress = 1};
	const struct rte_flow_action_queue to = {.index = queue};
	const struct rte_flow_action actions[] = {
		{.type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &to},
		{.type = RTE_FLOW_ACTION_TYPE_END},
	};
	struct rte_flow_error why;
	int rc = rte_flow_validate(nic->id, &attr, pattern, actions, &why);

	if (rc < 0)
		return rc;
	return rte_flow_create(nic->id, &attr, pattern, actions, &why) ? 0 : -EIO;
}

/* What is for this UDP port. In isolated mode the kernel keeps that of its other addresses. */
static int steer_port(const struct dpdk_nic *nic, uint16_t udp_port, bool protocol, uint16_t queue)
{
	struct rte_flow_item_ipv4 ip = {
		.hdr.next_proto_id = protocol ? IPPROTO_UDP : 0,
		.hdr.dst_addr = nic->isolated ? rte_cpu_to_be_32(nic->ip) : 0,
	};
	struct rte_flow_item_ipv4 ip_mask = {
		.hdr.next_proto_id = protocol ? 0xff : 0,
		.hdr.dst_addr = nic->isolated ? RTE_BE32(UINT32_MAX) : 0,
	};
	struct rte_flow_item_udp udp = {.hdr.dst_port = rte_cpu_to_be_16(udp_port)};
	struct rte_flow_item_udp mask = {.hdr.dst_port = RTE_BE16(0xffff)};
	bool all = !protocol && !nic->isolated;
	const struct rte_flow_item pattern[] = {
		{.type = RTE_FLOW_ITEM_TYPE_ETH},
		{.type = RTE_FLOW_ITEM_TYPE_IPV4, .spec = all ? NULL : &ip, .mask = all ? NULL : &ip_mask},
		{.type = RTE_FLOW_ITEM_TYPE_UDP, .spec = &udp, .mask = &mask},
		{.type = RTE_FLOW_ITEM_TYPE_END},
	};

	return steer_rule(nic, pattern, queue);
}

/*
 * ARP for our address, and echo requests; where the address is the kernel's, it answers both. A device that cannot tell
 * whose ARP it is gives us all of it, and the kernel none.
 */
static int steer_neighbours(struct dpdk_nic *nic)
{
	struct rte_flow_item_arp_eth_ipv4 arp = {.tpa = rte_cpu_to_be_32(nic->ip)};
	struct rte_flow_item_arp_eth_ipv4 arp_mask = {.tpa = RTE_BE32(UINT32_MAX)};
	struct rte_flow_item_eth ether = {.type = RTE_BE16(RTE_ETHER_TYPE_ARP)};
	struct rte_flow_item_eth ether_mask = {.type = RTE_BE16(0xffff)};
	struct rte_flow_item_ipv4 ip = {.hdr.next_proto_id = IPPROTO_ICMP, .hdr.dst_addr = rte_cpu_to_be_32(nic->ip)};
	struct rte_flow_item_ipv4 ip_mask = {.hdr.next_proto_id = 0xff, .hdr.dst_addr = RTE_BE32(UINT32_MAX)};
	const struct rte_flow_item ours[] = {
		{.type = RTE_FLOW_ITEM_TYPE_ETH},
		{.type = RTE_FLOW_ITEM_TYPE_ARP_ETH_IPV4, .spec = &arp, .mask = &arp_mask},
		{.type = RTE_FLOW_ITEM_TYPE_END},
	};
	const struct rte_flow_item all[] = {
		{.type = RTE_FLOW_ITEM_TYPE_ETH, .spec = &ether, .mask = &ether_mask},
		{.type = RTE_FLOW_ITEM_TYPE_END},
	};
	const struct rte_flow_item echo[] = {
		{.type = RTE_FLOW_ITEM_TYPE_ETH},
		{.type = RTE_FLOW_ITEM_TYPE_IPV4, .spec = &ip, .mask = &ip_mask},
		{.type = RTE_FLOW_ITEM_TYPE_END},
	};
	int rc;

	if (nic->kernel_ip)
		return 0;
	(void)steer_rule(nic, echo, 0); /* nobody needs it but who looks for us */
	rc = steer_rule(nic, ours, 0);
	if (rc < 0) {
		rc = steer_rule(nic, all, 0);
		if (rc == 0)
			nic->host.log(LOG_LEVEL_WARN,
				"the kernel hears no ARP on this interface any more: leave the address out of the "
				"port, so that the kernel's serves");
	}
	return rc;
}

/*
 * A rule for each queue. Without one, what comes goes to queue 0, so that that needs none: bnxt refuses it. Masks are
 * exact or none; ixgbe would let TCP pass with the protocol left open, i40e takes none.
 */
static int steer_ports(const struct dpdk_nic *nic, bool protocol)
{
	struct rte_flow_error why;
	int rc = 0;

	for (uint16_t i = 0; i < nic->queues && rc == 0; i++) {
		rc = steer_port(nic, (uint16_t)(nic->port_base + i), protocol, i < nic->rx_queues ? i : 0);
		if (i == 0 && !nic->isolated && nic->queues > 1)
			rc = 0;
	}
	if (rc < 0)
		rte_flow_flush(nic->id, &why);
	return rc;
}

void dpdk_isolate(struct dpdk_nic *nic, const char *driver)
{
	struct rte_flow_error why;

	for (size_t i = 0; i < RTE_DIM(steer_bifurcated); i++) {
		if (strncmp(driver, steer_bifurcated[i], strlen(steer_bifurcated[i])) != 0)
			continue;
		nic->isolated = rte_flow_isolate(nic->id, 1, &why) == 0;
		if (!nic->isolated)
			nic->host.log(LOG_LEVEL_WARN,
				"all that is sent to this interface leaves the kernel now: it takes no isolated mode");
	}
}

int dpdk_steer(struct dpdk_nic *nic, struct err *e)
{
	int rc;

	nic->steering = nic->queues == 1 ? DPDK_STEER_ONE : DPDK_STEER_SOFT;
	if (!nic->isolated && (nic->queues == 1 || nic->rx_queues < nic->queues))
		return 0;
	rc = steer_ports(nic, true);
	if (rc < 0)
		rc = steer_ports(nic, false);
	if (rc == 0 && nic->rx_queues >= nic->queues && nic->queues > 1)
		nic->steering = DPDK_STEER_FLOW;
	if (!nic->isolated)
		return 0;
	if (rc == 0)
		rc = steer_neighbours(nic);
	if (rc < 0)
		return err_set(e, rc, "DPDK port \"%s\": in isolated mode it takes no rules: %s", nic->spec.device,
			dpdk_eal_said());
	return 0;
}
