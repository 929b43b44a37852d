/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libphub needs from the world outside: a way to reach the box, transports, the time. The product fills it in
 * env_product(); a simulation brings streams and a transport in memory and a virtual clock.
 */
#ifndef PHUB_CLIENT_ENV_H
#define PHUB_CLIENT_ENV_H

#include <stdint.h>

#include "client/settings.h"
#include "transport/stream.h"
#include "transport/transport.h"

struct client_env {
	/* Begins a control connection, as stream_dial_tcp_later() does. */
	int (*dial)(void *ctx, const char *host, uint16_t port, struct stream **out, struct err *e);
	/* Monotonic time in ns. */
	uint64_t (*now)(void *ctx);
	/*
	 * NULL-terminated, best first; the last one of those that need not be asked for by name is taken without asking
	 * whether it reaches the box.
	 */
	const struct transport_ops *const *transports;
	struct transport_config config;
	int node;  /* NUMA node that the process is on, or MEM_NODE_ANY */
	void *ctx; /* of dial() and now() */
};

/* TCP control sessions, shared memory and tcp for data, CLOCK_MONOTONIC. `settings` (or NULL) outlive the handle. */
void env_product(struct client_env *env, const struct settings *settings);

#endif
