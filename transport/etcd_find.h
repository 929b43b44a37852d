/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which box a worker goes to, by what etcd knows: what libphub-etcd.so is for, so that libphub itself needs neither
 * JSON nor HTTP.
 */
#ifndef PHUB_TRANSPORT_ETCD_FIND_H
#define PHUB_TRANSPORT_ETCD_FIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"

enum { ETCD_PLUGIN_ABI = 1 };

/* What libphub-etcd.so exports as `phub_etcd_plugin`. */
struct etcd_plugin {
	unsigned abi;
	/*
	 * `urls` as for etcd_config_read(); secret, authorities, prefix and rack are the environment's. Looks again and
	 * again until there is a box that this host can reach, and `address` has its host:port, or until the deadline.
	 * Blocks. 0; -EINVAL, -EACCES: at once; at the deadline -ECONNREFUSED (there is no box), or why etcd cannot be
	 * asked.
	 */
	int (*find)(const char *urls, const char *job, uint64_t deadline_ns, char *address, size_t bytes, bool *tls,
		struct err *e);
};

/* Any thread. 0; -ENOENT: there is no plugin; -ELIBACC, -ELIBBAD: it cannot be loaded, or is another build's. */
int etcd_plugin_load(const struct etcd_plugin **out, struct err *e);

#endif
