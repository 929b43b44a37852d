/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world as libphub meets it in production. Called by phub_connect() alone.
 */
#include "client/env.h"

#include <stdlib.h>
#include <time.h>

#include "phub/base/cpu.h"

static const struct transport_ops *const env_transports[] = {
	&transport_shm,
#ifdef PHUB_VERBS
	&transport_verbs,
#endif
	&transport_tcp,
	&transport_udp,
	&transport_dpdk,
	NULL,
};

static int env_dial(void *ctx, const char *host, uint16_t port, struct stream **out, struct err *e)
{
	return stream_dial_tcp_later(host, port, ctx, out, e);
}

static uint64_t env_now(void *ctx)
{
	struct timespec t;

	(void)ctx;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void env_product(struct client_env *env, const struct settings *settings)
{
	const char *interface = settings ? settings->interface : NULL;
	int node = cpu_node_allowed(NULL);

	*env = (struct client_env){
		.dial = env_dial,
		.now = env_now,
		.transports = env_transports,
		.config = {.interface = interface,
			.rdma = getenv("PHUB_RDMA"),
			.rdma_dscp = settings ? settings->rdma_dscp : 0,
			.dpdk_ports = getenv("PHUB_DPDK"),
			.dpdk_eal = getenv("PHUB_DPDK_EAL"),
			.datagram_mtu = settings ? settings->datagram_mtu : 0},
		.node = node >= 0 ? node : MEM_NODE_ANY,
		.ctx = (void *)(uintptr_t)interface,
	};
}
