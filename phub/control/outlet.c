/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opened with the box, chosen with each call.
 */
#include "phub/control/outlet.h"

#include <errno.h>
#include <stdio.h>

#include "phub/base/log.h"
#include "phub/control/box.h"
#include "phub/control/calls.h"

/* What workers come by, where the ports of it are to be shared. NULL: they are not. */
static struct transport *outlet_beside(const struct box *box, const char *name)
{
	for (unsigned i = 0; strcmp(name, "dpdk") == 0 && i < box->transport_count; i++)
		if (strcmp(box->transports[i].transport->ops->name, name) == 0)
			return box->transports[i].transport;
	return NULL;
}

static int outlet_open(struct box *box, const char *name, struct transport **out, struct err *e)
{
	const struct config *config = box->config;
	bool spread = !config->standby[0];
	const struct transport_ops *ops = box->env.transports ? box->env.transports[0] : transport_find(name);
	const struct transport_config transport = {
		.queue_conns_max = config->jobs_max * (spread ? CONFIG_CORES_MAX : 1),
		.congestion = config->congestion[0] ? config->congestion : NULL,
		.interface = config->interface[0] ? config->interface : NULL,
		.rdma = config->rdma[0] ? config->rdma : NULL,
		.rdma_dscp = (unsigned)config->rdma_dscp,
		.pinned_bytes = config->memory_max,
		.loop = box->env.loop,
		.handshake_ms = (unsigned)config->handshake_ms,
		.datagram_mtu = (unsigned)config->datagram_mtu,
		.port_first = config->port_first,
		.port_last = config->port_last,
		.dpdk_ports = config->dpdk_ports[0] ? config->dpdk_ports : NULL,
		.dpdk_eal = config->dpdk_eal[0] ? config->dpdk_eal : NULL,
		.beside = outlet_beside(box, name),
		.queue_count = box->core_count,
		.queue_nodes = box->core_node,
		.apart = true,
	};
	struct err why;
	int rc;

	if (!ops)
		return err_set(e, -ENOTSUP, "uplink_transport: %s is not built in", name);
	rc = ops->open(&transport, out, &why);
	return rc < 0 ? err_set(e, rc, "uplink_transport: %s", why.text) : 0;
}

static int outlets_take(struct box *box, const char *const *names, unsigned count, struct err *e)
{
	struct outlets *o = &box->outlets;

	if (count > 1 && box->env.transports) /* there is one */
		count = 1;
	for (unsigned i = 0; i < count; i++) {
		int rc = outlet_open(box, names[i], &o->each[o->count].transport, e);

		if (rc == 0) {
			o->count++;
			continue;
		}
		if (i + 1 == count)
			return rc;
		log_warn("%s; uplinks go by %s", e->text, names[i + 1]);
		snprintf(o->lacks, sizeof(o->lacks), "%.*s", (int)sizeof(o->lacks) - 1, e->text);
	}
	if (count > 0 && box->config->uplink_transport == CONFIG_UPLINK_AUTO && !config_uses(box->config, "verbs"))
		snprintf(o->lacks, sizeof(o->lacks), "verbs is not among this box's transports");
	return 0;
}

int outlets_open(struct box *box, struct err *e)
{
	const char *names[OUTLET_MAX];
	unsigned count = box->env.calls ? config_uplink_names(box->config, names, OUTLET_MAX) : 0;

	return outlets_take(box, names, count, e);
}

int outlets_open_up(struct box *box, struct err *e)
{
	const char *names[OUTLET_MAX];
	int rc;

	if (box->outlets.count > 0)
		return 0;
	rc = outlets_take(box, names, config_ways_up(box->config, names, OUTLET_MAX), e);
	for (unsigned i = 0; rc == 0 && i < box->core_count; i++)
		rc = outlets_queue(box, i, e);
	return rc;
}

int outlets_queue(struct box *box, unsigned core, struct err *e)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < box->outlets.count; i++) {
		struct outlet *o = &box->outlets.each[i];

		rc = o->transport->ops->queue_create(o->transport, box->core_node[core], &o->queues[core], e);
		if (rc == 0)
			core_add_uplinks(box->cores[core], o->queues[core]);
	}
	return rc;
}

void outlets_close_queues(struct box *box, unsigned core)
{
	for (unsigned i = 0; i < box->outlets.count; i++) {
		struct outlet *o = &box->outlets.each[i];

		if (o->queues[core])
			o->transport->ops->queue_destroy(o->transport, o->queues[core]);
	}
}

void outlets_close(struct box *box)
{
	for (unsigned i = 0; i < box->outlets.count; i++)
		box->outlets.each[i].transport->ops->close(box->outlets.each[i].transport);
}

const struct outlet *outlet_choose(const struct box *box, const struct box_call *call, char *why, size_t bytes)
{
	const struct outlets *o = &box->outlets;
	bool here = box_call_is_here(call);

	snprintf(why, bytes, "%s", o->lacks);
	for (unsigned i = 0; i + 1 < o->count; i++) {
		struct transport *t = o->each[i].transport;
		bool mapped = strcmp(t->ops->name, "shm") == 0;
		struct err e;

		if (mapped && !here) /* an address there may be somebody else's here */
			continue;
		if (mapped && call->unmapped[0]) {
			snprintf(why, bytes, "%.*s", (int)bytes - 1, call->unmapped);
			continue;
		}
		if (box_call_reaches(call, t, &e) < 0) {
			snprintf(why, bytes, "%.*s", (int)bytes - 1, e.text);
			continue;
		}
		if (mapped)
			why[0] = '\0';
		return &o->each[i];
	}
	return &o->each[o->count - 1];
}
