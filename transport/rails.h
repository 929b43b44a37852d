/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ports a connection over RDMA takes: those of the worker's and the box's that lie in one network and are near to
 * the NUMA nodes of those who use them. Pure, but for rails_distance(), which reads what the kernel knows. Any thread.
 */
#ifndef PHUB_TRANSPORT_RAILS_H
#define PHUB_TRANSPORT_RAILS_H

#include <stdbool.h>
#include <stdint.h>

enum {
	RAILS_MAX = 4,        /* of one connection */
	RAILS_PORTS_MAX = 16, /* of one end that are looked at */
	RAILS_GID_BYTES = 16,
	RAILS_NEAR = 10, /* distance of what is on the same node, as the kernel has it */
};

struct rails_port {
	uint8_t gid[RAILS_GID_BYTES];
	uint8_t distance; /* from whoever is to use it; 0: nobody can, it is down at present */
};

/* Indexes of the worker's and the box's port that one rail connects. */
struct rails_pair {
	uint8_t worker, box;
};

/* Pairs of a worker's and a box's port that led nowhere not long ago; NULL: none did. */
typedef const bool (*rails_shunned)[RAILS_PORTS_MAX];

/*
 * How far a port on node `port_node` is from node `node`: the kernel's number, at least RAILS_NEAR. Either may be
 * negative: not known, and then it is near. `sysfs`: as in phub/base/cpu.h.
 */
uint8_t rails_distance(const char *sysfs, int node, int port_node);

/* Do both lie in one network? IPv4: the first three bytes tell; IPv6 and InfiniBand: the first eight. */
bool rails_same_network(const uint8_t *a, const uint8_t *b);

/*
 * Which of a box's ports are meant for core `core`: the nearest ones; where there are more than RAILS_MAX, cores begin
 * at different ones. Returns how many there are in `out`, none where there are no ports.
 */
unsigned rails_of_core(const struct rails_port *box, unsigned count, uint32_t core, uint8_t out[RAILS_MAX]);

/*
 * The pairs of ports for a connection to core `core`. None is down, each in one network, and none shunned, where there
 * are such; of those it takes the nearest to the core, of those the nearest to the worker, and spreads over these: as
 * many pairs as the end with more of them has, RAILS_MAX at most. Returns how many; both counts are 1 to
 * RAILS_PORTS_MAX.
 */
unsigned rails_choose(const struct rails_port *worker, unsigned worker_count, const struct rails_port *box,
	unsigned box_count, rails_shunned shunned, uint32_t core, struct rails_pair out[RAILS_MAX]);

#endif
