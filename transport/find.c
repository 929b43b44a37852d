/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transports by name: the one place that knows them all. Any thread.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "transport/rdma.h"
#include "transport/transport.h"

static const struct transport_ops *const transport_list[] = {
	&transport_tcp,
	&transport_shm,
	&transport_loop,
	&transport_udp,
	&transport_dpdk,
#ifdef PHUB_VERBS
	&transport_verbs,
#endif
};

#ifndef PHUB_VERBS
int rdma_ports_list(struct rdma_port *out, unsigned max)
{
	(void)out;
	(void)max;
	return -ENOSYS;
}

int rdma_check_limit(uint64_t bytes, struct err *e)
{
	(void)bytes;
	(void)e;
	return 0;
}
#endif

const char *rdma_port_name(const struct rdma_port *p, char out[RDMA_NAME_BYTES])
{
	snprintf(out, RDMA_NAME_BYTES, p->port ? "%s:%u" : "%s", p->device, p->port);
	return out;
}

const struct transport_ops *transport_find(const char *name)
{
	for (size_t i = 0; i < sizeof(transport_list) / sizeof(transport_list[0]); i++)
		if (strcmp(transport_list[i]->name, name) == 0)
			return transport_list[i];
	return NULL;
}
