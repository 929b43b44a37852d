/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phub topo: what its files share. topo.c places a model, topo_host.c prints the machine, topo_host_svg.c draws it.
 */
#ifndef PHUB_CLI_TOPO_H
#define PHUB_CLI_TOPO_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/cli/topo_racks.h"
#include "topology/host.h"
#include "topology/placement.h"
#include "transport/rdma.h"

struct topo {
	struct topo_racks_options racks;
	bool json;
	const char *sysfs; /* folder of a recorded sys/; NULL: this machine */
	const char *model;
	uint64_t cores, chunk_bytes;
	struct host host;
	struct rdma_port ports[RDMA_PORTS_MAX];
	int port_count; /* or why they are not known, a negative errno */
	struct placement_core placed[PLACEMENT_CORE_COUNT_MAX];
	uint32_t chunk_count[PLACEMENT_CORE_COUNT_MAX];
};

/* Name of the core's NIC, "-" without one. */
const char *topo_nic(const struct topo *t, const struct placement_core *core);

/* A vendor's name, or "". */
const char *topo_vendor(uint16_t vendor);

void topo_print_host(const struct topo *t);
/* False: out of memory. */
bool topo_json_host(const struct topo *t);

/* Draws the machine to racks.svg, with what each core and NIC would have of the model when there is one. */
int topo_draw_host(const struct topo *t, const char *model, struct err *e);

#endif
