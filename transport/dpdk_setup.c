/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dpdk transport: its port, by the plugin, under what all transports over datagrams have in common. Control thread.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/log.h"
#include "transport/dpdk.h"

enum { DPDK_UDP_HEADERS = 28 }; /* IPv4, UDP */

struct dpdk {
	const struct dpdk_plugin *plugin;
	struct dpdk_nic *nic;
	uint32_t datagram_max; /* 0: the link's */
};

static void dpdk_log(enum log_level level, const char *line)
{
	log_write(level, "dpdk: %s", line);
}

static const struct dpdk_host dpdk_host = {.log = dpdk_log, .hold = reliable_hold, .let = reliable_let};

static int dpdk_port_open(
	void *owner, unsigned queue_index, int node, const char *host, struct datagram_port **out, struct err *e)
{
	struct dpdk *d = owner;
	int rc = d->plugin->port_open(d->nic, queue_index, node, host, out, e);

	if (rc == 0 && d->datagram_max && d->datagram_max < (*out)->datagram_max)
		(*out)->datagram_max = d->datagram_max;
	return rc;
}

static int dpdk_route(
	void *owner, const struct datagram_address *peer, struct datagram_address *own, uint32_t *datagram_max)
{
	struct dpdk *d = owner;
	uint16_t port = own->port;
	int rc = d->plugin->route(d->nic, peer, own, datagram_max);

	own->port = port;
	if (rc == 0 && d->datagram_max && d->datagram_max < *datagram_max)
		*datagram_max = d->datagram_max;
	return rc;
}

static void dpdk_fini(void *owner)
{
	struct dpdk *d = owner;

	d->plugin->close(d->nic);
	free(d);
}

static const struct datagram_class dpdk_class = {
	.ops = &transport_dpdk,
	.port_open = dpdk_port_open,
	.fini = dpdk_fini,
	.route = dpdk_route,
};

/* What an operator wants to know of the device. */
static void dpdk_tell(const struct dpdk *d, const struct dpdk_nic_config *config)
{
	static const char *const steering[] = {
		[DPDK_STEER_ONE] = "one queue",
		[DPDK_STEER_FLOW] = "rte_flow steers",
		[DPDK_STEER_SOFT] = "no rte_flow: cores hand datagrams to each other",
	};
	struct dpdk_facts f;
	char ip[INET_ADDRSTRLEN] = "?";

	d->plugin->facts(d->nic, &f);
	inet_ntop(AF_INET, &f.address.ip.s6_addr[12], ip, sizeof(ip));
	log_info("dpdk: %s (%s) is %s, %02x:%02x:%02x:%02x:%02x:%02x, MTU %u, link %s; UDP ports %u-%u; %s; payloads "
		 "are %s; %s pages",
		config->spec.device, f.driver, ip, f.address.mac[0], f.address.mac[1], f.address.mac[2],
		f.address.mac[3], f.address.mac[4], f.address.mac[5], f.mtu, f.up ? "up" : "down", f.address.port,
		f.address.port + config->queues - 1, steering[f.steering],
		f.attaches ? "sent from where they lie" : "copied", f.huge ? "huge" : "no huge");
}

static int dpdk_open(const struct transport_config *config, struct transport **out, struct err *e)
{
	struct dpdk_nic_config nic = {
		.eal = config->dpdk_eal,
		.queues = config->queue_count ? config->queue_count : 1,
		.port_first = config->port_first,
		.port_last = config->port_last,
		.quiet = config->quiet,
	};
	struct dpdk *d;
	int rc;

	if (!config->dpdk_ports || !config->dpdk_ports[0])
		return err_set(e, -EDESTADDRREQ,
			"transport dpdk needs a port: the box's dpdk_ports, a worker's PHUB_DPDK, like "
			"0000:3b:00.0@10.0.0.1/24 or net_af_packet0,iface=eth1@10.0.0.1/24");
	rc = dpdk_spec_parse(config->dpdk_ports, &nic.spec, e);
	if (rc < 0)
		return rc;
	if (nic.spec.port) {
		nic.port_first = nic.spec.port;
		nic.port_last = 0;
	}
	d = calloc(1, sizeof(*d));
	if (!d)
		return err_set(e, -ENOMEM, "dpdk: no memory for the transport");
	if (config->datagram_mtu > DPDK_UDP_HEADERS)
		d->datagram_max = config->datagram_mtu - DPDK_UDP_HEADERS;
	rc = dpdk_load(&d->plugin, e);
	if (rc == 0)
		rc = d->plugin->open(&dpdk_host, &nic, &d->nic, e);
	if (rc < 0) {
		free(d);
		return rc;
	}
	rc = datagram_open(&dpdk_class, d, config, out, e);
	if (rc < 0)
		dpdk_fini(d);
	else if (!config->quiet)
		dpdk_tell(d, &nic);
	return rc;
}

const struct transport_ops transport_dpdk = {
	.name = "dpdk",
	.by_name = true,
	.open = dpdk_open,
	DATAGRAM_OPS,
};
