/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What phub topo says of this machine, as tables and as JSON.
 */
#include "phub/cli/topo.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "phub/cli/output.h"

const char *topo_vendor(uint16_t vendor)
{
	static const struct {
		uint16_t id;
		const char *name;
	} known[] = {{0x10de, "NVIDIA"}, {0x1002, "AMD"}, {0x8086, "Intel"}, {0x1da3, "Habana"}, {0x1d0f, "Amazon"},
		{0x1a03, "ASPEED"}, {0x102b, "Matrox"}, {0x1234, "QEMU"}, {0x1af4, "virtio"}, {0x15ad, "VMware"}};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i].id == vendor)
			return known[i].name;
	return "";
}

static const char *topo_gpu_kind(uint32_t class)
{
	return class == 0x1200 ? "accelerator" : class == 0x0302 ? "3D" : class == 0x0300 ? "VGA" : "display";
}

static void topo_cell_mbit(struct output_table *table, uint32_t mbit)
{
	output_cell(table, mbit ? "%.1f" : "-", mbit / 1000.0);
}

static void topo_cell_above(struct output_table *table, const struct host *h, const struct host_pci *pci)
{
	output_cell(table, "%s",
		pci->above != HOST_NONE ? h->switches[pci->above].address
		: pci->root[0]          ? "root"
					: "-");
}

static void topo_print_switches(const struct host *h)
{
	struct output_table table = {.heads = {"switch", "node", "PCIe Gbit/s", "below"}, .align = "lrrl"};

	for (unsigned i = 0; i < h->switch_count; i++) {
		const struct host_switch *s = &h->switches[i];

		output_cell(&table, "%s", s->address);
		output_cell(&table, s->node < 0 ? "-" : "%d", s->node);
		topo_cell_mbit(&table, s->link_mbit);
		output_cell(&table, "%s", s->above == HOST_NONE ? "root" : h->switches[s->above].address);
	}
	if (h->switch_count)
		output_table_print(&table);
}

/* The NICs that are nearest to a GPU, when some are nearer than others. */
static void topo_cell_nearest(struct output_table *table, const struct host *h, const struct host_gpu *gpu)
{
	enum host_near best = HOST_NEAR_UNKNOWN;
	char text[256] = "-";
	size_t at = 0;

	for (unsigned i = 0; i < h->nic_count; i++) {
		enum host_near near = host_near(h, &gpu->pci, gpu->node, &h->nics[i].pci, h->nics[i].node);

		if (h->nics[i].physical && near < best)
			best = near;
	}
	for (unsigned i = 0; i < h->nic_count && best < HOST_NEAR_FAR && at < sizeof(text); i++)
		if (h->nics[i].physical && host_near(h, &gpu->pci, gpu->node, &h->nics[i].pci, h->nics[i].node) == best)
			at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", at ? "," : "", h->nics[i].name);
	output_cell(table, at ? "%s (%s)" : "%s", text, host_near_name(best));
}

static void topo_print_gpus(const struct host *h)
{
	struct output_table table = {
		.heads = {"gpu", "id", "vendor", "kind", "node", "PCIe Gbit/s", "below", "nearest NIC"},
		.align = "llllrrll"};

	for (unsigned i = 0; i < h->gpu_count; i++) {
		const struct host_gpu *gpu = &h->gpus[i];

		output_cell(&table, "%s", gpu->pci.address);
		output_cell(&table, "%04x:%04x", gpu->vendor, gpu->device);
		output_cell(&table, "%s", *topo_vendor(gpu->vendor) ? topo_vendor(gpu->vendor) : "-");
		output_cell(&table, "%s", topo_gpu_kind(gpu->class));
		output_cell(&table, gpu->node < 0 ? "-" : "%d", gpu->node);
		topo_cell_mbit(&table, gpu->pci.path_mbit);
		topo_cell_above(&table, h, &gpu->pci);
		topo_cell_nearest(&table, h, gpu);
	}
	if (h->gpu_count)
		output_table_print(&table);
}

static void topo_print_nics(const struct host *h)
{
	struct output_table nics = {
		.heads = {"nic", "node", "Gbit/s", "state", "pci", "PCIe Gbit/s", "below"}, .align = "lrrllrl"};

	for (unsigned i = 0; i < h->nic_count; i++) {
		const struct host_nic *nic = &h->nics[i];

		output_cell(&nics, "%s", nic->name);
		output_cell(&nics, nic->node < 0 ? "-" : "%d", nic->node);
		topo_cell_mbit(&nics, nic->speed_mbit);
		output_cell(&nics, "%s%s", nic->up ? "up" : "down", nic->physical ? "" : ", virtual");
		output_cell(&nics, "%s", nic->pci.address[0] ? nic->pci.address : "-");
		topo_cell_mbit(&nics, nic->pci.path_mbit);
		topo_cell_above(&nics, h, &nic->pci);
	}
	if (h->nic_count)
		output_table_print(&nics);
	for (unsigned i = 0; i < h->nic_count; i++) {
		uint32_t sum = host_nic_excess(h, i);

		if (sum)
			printf("%s: its ports carry %.1f Gbit/s, PCIe %.1f at %s\n  -> a slot of more lanes, or a "
			       "newer "
			       "generation; some slots are narrower than they look (lspci -vv, LnkSta)\n",
				h->nics[i].name, sum / 1000.0, h->nics[i].pci.path_mbit / 1000.0,
				h->nics[i].pci.narrow);
	}
}

static void topo_print_nodes(const struct host *h)
{
	char text[32];

	printf("%u CPU%s on %u NUMA node%s, last-level cache %s, huge pages %" PRIu64 " free of %" PRIu64 "\n",
		h->cpu_count, h->cpu_count == 1 ? "" : "s", h->node_count, h->node_count == 1 ? "" : "s",
		output_bytes(h->llc_bytes, text), h->huge_2m_free, h->huge_2m_total);
	for (unsigned n = 0; n < h->node_count; n++) {
		printf("node %d: %s, CPUs", h->nodes[n].id, output_bytes(h->nodes[n].memory_bytes, text));
		for (unsigned c = 0; c < h->cpu_count; c++) {
			if (h->cpus[c].node == h->nodes[n].id)
				printf(" %d", h->cpus[c].id);
		}
		puts("");
	}
}

static void topo_print_port(struct output_table *table, const struct rdma_port *p)
{
	char name[RDMA_NAME_BYTES];

	output_cell(table, "%s", rdma_port_name(p, name));
	output_cell(table, "%s", p->interface[0] ? p->interface : "-");
	output_cell(table, p->node < 0 ? "-" : "%d", p->node);
	output_cell(table, "%s", p->kind[0] ? p->kind : "-");
	output_cell(table, "%.1f", (double)p->rate_mbps / 1000.0);
	output_cell(table, "%u", p->mtu);
	output_cell(table, "%s", p->state[0] ? p->state : "-");
	output_cell(table, p->gid_index < 0 ? "-" : "@%d", p->gid_index);
	output_cell(table, "%s", p->gid[0] ? p->gid : "-");
}

static void topo_print_ports(const struct topo *t)
{
	struct output_table table = {
		.heads = {"rdma", "nic", "node", "kind", "Gbit/s", "MTU", "state", "", "GID"}, .align = "llrlrrlrl"};

	if (t->port_count == 0)
		puts("no RDMA device");
	else if (t->port_count == -ENOSYS)
		puts("this build knows no RDMA devices: it was made without libibverbs");
	else if (t->port_count < 0)
		printf("RDMA devices cannot be listed: %s\n", strerror(-t->port_count));
	if (t->port_count <= 0)
		return;
	for (int i = 0; i < t->port_count; i++)
		topo_print_port(&table, &t->ports[i]);
	output_table_print(&table);
	for (int i = 0; i < t->port_count; i++) {
		const struct rdma_port *p = &t->ports[i];
		char name[RDMA_NAME_BYTES];

		if (!p->usable)
			printf("%s cannot be used: %s\n  -> %s\n", rdma_port_name(p, name), p->why, p->cure);
	}
}

void topo_print_host(const struct topo *t)
{
	topo_print_nodes(&t->host);
	topo_print_nics(&t->host);
	topo_print_switches(&t->host);
	topo_print_gpus(&t->host);
	topo_print_ports(t);
}

static json_t *topo_json_ports(const struct topo *t)
{
	json_t *ports = json_array();

	for (int i = 0; i < t->port_count; i++) {
		const struct rdma_port *p = &t->ports[i];

		json_array_append_new(
			ports, json_pack("{s:s, s:i, s:s, s:i, s:s, s:I, s:i, s:s, s:i, s:s, s:b, s:s?, s:s?}",
				       "device", p->device, "port", (int)p->port, "nic", p->interface, "node", p->node,
				       "kind", p->kind, "mbit_per_s", (json_int_t)p->rate_mbps, "mtu", (int)p->mtu,
				       "state", p->state, "gid_index", p->gid_index, "gid", p->gid, "usable", p->usable,
				       "why", p->usable ? NULL : p->why, "do", p->usable ? NULL : p->cure));
	}
	return ports;
}

static json_t *topo_json_nics(const struct host *h)
{
	json_t *nics = json_array();

	for (unsigned i = 0; i < h->nic_count; i++) {
		const struct host_nic *n = &h->nics[i];

		json_array_append_new(
			nics, json_pack("{s:s, s:i, s:i, s:b, s:b, s:s, s:s, s:s, s:i, s:i, s:s, s:i}", "nic", n->name,
				      "node", n->node, "mbit_per_s", (int)n->speed_mbit, "up", n->up, "physical",
				      n->physical, "rdma", n->rdma, "pci", n->pci.address, "root", n->pci.root,
				      "pcie_mbit_per_s", (int)n->pci.path_mbit, "switch", n->pci.above, "narrow",
				      n->pci.narrow, "excess_mbit_per_s", (int)host_nic_excess(h, i)));
	}
	return nics;
}

static json_t *topo_json_switches(const struct host *h)
{
	json_t *switches = json_array();

	for (unsigned i = 0; i < h->switch_count; i++) {
		const struct host_switch *s = &h->switches[i];

		json_array_append_new(
			switches, json_pack("{s:s, s:s, s:i, s:i, s:i}", "pci", s->address, "root", s->root, "switch",
					  s->above, "node", s->node, "pcie_mbit_per_s", (int)s->link_mbit));
	}
	return switches;
}

static json_t *topo_json_gpus(const struct host *h)
{
	json_t *gpus = json_array();

	for (unsigned i = 0; i < h->gpu_count; i++) {
		const struct host_gpu *g = &h->gpus[i];
		json_t *near = json_object();

		for (unsigned nic = 0; nic < h->nic_count; nic++)
			if (h->nics[nic].physical)
				json_object_set_new(near, h->nics[nic].name,
					json_string(host_near_name(
						host_near(h, &g->pci, g->node, &h->nics[nic].pci, h->nics[nic].node))));
		json_array_append_new(gpus,
			json_pack("{s:s, s:s, s:i, s:i, s:s, s:i, s:i, s:i, s:s, s:o}", "pci", g->pci.address, "root",
				g->pci.root, "vendor", (int)g->vendor, "device", (int)g->device, "kind",
				topo_gpu_kind(g->class), "node", g->node, "pcie_mbit_per_s", (int)g->pci.path_mbit,
				"switch", g->pci.above, "narrow", g->pci.narrow, "near", near));
	}
	return gpus;
}

bool topo_json_host(const struct topo *t)
{
	const struct host *h = &t->host;
	json_t *cpus = json_array();

	for (unsigned i = 0; i < h->cpu_count; i++)
		json_array_append_new(cpus, json_pack("{s:i, s:i, s:i}", "cpu", h->cpus[i].id, "node", h->cpus[i].node,
						    "core", h->cpus[i].core));
	return output_json(json_pack("{s:s, s:i, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "topo", "host", "nodes",
		(int)h->node_count, "llc_bytes", (json_int_t)h->llc_bytes, "huge_2m_total",
		(json_int_t)h->huge_2m_total, "huge_2m_free", (json_int_t)h->huge_2m_free, "cpus", cpus, "nics",
		topo_json_nics(h), "switches", topo_json_switches(h), "gpus", topo_json_gpus(h), "rdma",
		topo_json_ports(t)));
}
