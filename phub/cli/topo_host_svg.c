/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The picture of a machine: its NUMA nodes side by side, each with its physical cores and below them what hangs from
 * its PCIe roots, behind their switches. With a model: the chunks and bytes of each core of the box, and of each NIC.
 */
#include "phub/cli/topo.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "phub/cli/output.h"
#include "phub/cli/svg.h"

enum {
	DRAW_NODE = 580, /* width of a node */
	DRAW_GAP = 20,
	DRAW_NODES_MAX = 4, /* in a row */
	DRAW_TOP = 64,      /* down to the first row of nodes */
	DRAW_CORES = 7,     /* in a row */
	DRAW_CELL = 78,     /* of a core */
	DRAW_CELL_HIGH = 46,
	DRAW_DEVICES = 2, /* in a row */
	DRAW_DEVICE = 262,
	DRAW_DEVICE_HIGH = 62,
	DRAW_INDENT = 14,
	DRAW_DEPTH_MAX = 4, /* of switches below each other; deeper ones are drawn as if they were here */
	DRAW_END = 34,
};

/* Index of what is below no switch, beside those of the switches. */
#define DRAW_ROOT HOST_NONE

struct draw {
	FILE *file; /* NULL: only measured */
	const struct topo *t;
	const char *model; /* NULL: none */
	struct {
		uint64_t bytes;
		uint32_t chunks;
		unsigned cores;
	} nics[HOST_NIC_COUNT_MAX];
	uint64_t core_most, nic_most; /* bytes */
};

/* Index of the core of the box on this physical core, or -1. */
static int draw_placed(const struct draw *d, const struct host_cpu *cpu)
{
	const struct host *h = &d->t->host;

	for (unsigned i = 0; d->model && i < d->t->cores; i++)
		for (unsigned c = 0; c < h->cpu_count; c++)
			if (h->cpus[c].id == d->t->placed[i].cpu && h->cpus[c].core == cpu->core)
				return (int)i;
	return -1;
}

/* How much of the most it has, as a bar at the bottom. */
static void draw_bar(struct draw *d, unsigned x, unsigned y, unsigned width, uint64_t bytes, uint64_t most)
{
	if (most == 0 || bytes == 0)
		return;
	svg_rect(d->file, x, y, width, 5, "#ffffff", "#d9b36c", 0.5);
	svg_rect(d->file, x, y, (unsigned)((double)width * (double)bytes / (double)most), 5, "#d9822b", "none", 0);
}

static void draw_core(struct draw *d, const struct host_cpu *cpu, unsigned x, unsigned y)
{
	const struct host *h = &d->t->host;
	int core = draw_placed(d, cpu);
	char text[64];
	size_t at = (size_t)snprintf(text, sizeof(text), "cpu ");

	svg_rect(d->file, x, y, DRAW_CELL - 6, DRAW_CELL_HIGH - 6, core < 0 ? "#f1f1f1" : "#fff1d6",
		core < 0 ? "#bbbbbb" : "#d9822b", core < 0 ? 1 : 1.5);
	for (unsigned c = 0; c < h->cpu_count && at < 16; c++)
		if (h->cpus[c].core == cpu->core)
			at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%d", at > 4 ? "," : "", h->cpus[c].id);
	svg_text(d->file, x + 5, y + 12, "small", text);
	if (core < 0)
		return;
	snprintf(text, sizeof(text), "%.4g MB", (double)d->t->placed[core].bytes / 1e6);
	svg_text(d->file, x + 5, y + 22, "small", text);
	snprintf(text, sizeof(text), "%" PRIu32 " chunks", d->t->chunk_count[core]);
	svg_text(d->file, x + 5, y + 32, "small", text);
	draw_bar(d, x + 3, y + DRAW_CELL_HIGH - 12, DRAW_CELL - 12, d->t->placed[core].bytes, d->core_most);
}

static void draw_nic(struct draw *d, unsigned index, unsigned x, unsigned y)
{
	const struct host_nic *nic = &d->t->host.nics[index];
	uint32_t excess = host_nic_excess(&d->t->host, index);
	char text[128], bytes[32];

	svg_rect(d->file, x, y, DRAW_DEVICE - 10, DRAW_DEVICE_HIGH - 8, nic->up ? "#e8f1ff" : "#f4f4f4",
		excess    ? "#cc2222"
		: nic->up ? "#3b73b9"
			  : "#aaaaaa",
		excess ? 2.5 : 1.5);
	snprintf(text, sizeof(text), "%s", nic->name);
	if (nic->speed_mbit)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "  %.4g Gbit/s", nic->speed_mbit / 1000.0);
	if (!nic->up)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "  (down)");
	svg_text(d->file, x + 8, y + 16, "name", text);
	snprintf(text, sizeof(text), "%s%s%s", nic->pci.address[0] ? nic->pci.address : "not on PCI, as far as is told",
		nic->rdma[0] ? "  " : "", nic->rdma);
	if (nic->pci.path_mbit)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "  PCIe %.4g Gbit/s%s",
			nic->pci.path_mbit / 1000.0, excess ? ": too slow" : "");
	svg_text(d->file, x + 8, y + 30, "small", text);
	if (!d->model || !d->nics[index].cores)
		return;
	snprintf(text, sizeof(text), "%u core%s, %" PRIu32 " chunks, %s", d->nics[index].cores,
		d->nics[index].cores == 1 ? "" : "s", d->nics[index].chunks, output_bytes(d->nics[index].bytes, bytes));
	svg_text(d->file, x + 8, y + 42, "small", text);
	draw_bar(d, x + 4, y + DRAW_DEVICE_HIGH - 15, DRAW_DEVICE - 18, d->nics[index].bytes, d->nic_most);
}

static void draw_gpu(struct draw *d, const struct host_gpu *gpu, unsigned x, unsigned y)
{
	const char *vendor = topo_vendor(gpu->vendor);
	char text[128];

	svg_rect(d->file, x, y, DRAW_DEVICE - 10, DRAW_DEVICE_HIGH - 8, "#e9f7e6", "#4c9a3f", 1.5);
	snprintf(text, sizeof(text), "%s%s%s  %04x:%04x",
		gpu->class == 0x1200                           ? "accelerator"
		: gpu->class == 0x0302 || gpu->class == 0x0380 ? "GPU"
							       : "display",
		*vendor ? "  " : "", vendor, gpu->vendor, gpu->device);
	svg_text(d->file, x + 8, y + 16, "name", text);
	snprintf(text, sizeof(text), "%s", gpu->pci.address);
	if (gpu->pci.path_mbit)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "  PCIe %.4g Gbit/s",
			gpu->pci.path_mbit / 1000.0);
	svg_text(d->file, x + 8, y + 30, "small", text);
}

/* The node that a device is drawn in: one of unknown node in the first, when there is no other. */
static bool draw_is_of(const struct draw *d, int node, int id)
{
	const struct host *h = &d->t->host;

	for (unsigned i = 0; i < h->node_count && h->node_count > 1; i++)
		if (h->nodes[i].id == node)
			return node == id;
	return id == (h->node_count > 1 ? -1 : h->nodes[0].id);
}

/* The NICs, then the GPUs right below a switch, or below none, of this node. Returns where they end. */
static unsigned draw_devices(struct draw *d, int above, int id, unsigned x, unsigned y)
{
	const struct host *h = &d->t->host;
	unsigned count = 0;

	for (unsigned i = 0; i < h->nic_count + h->gpu_count; i++) {
		bool nic = i < h->nic_count;
		unsigned gpu = i - h->nic_count;
		const struct host_pci *pci = nic ? &h->nics[i].pci : &h->gpus[gpu].pci;
		unsigned left = x + count % DRAW_DEVICES * DRAW_DEVICE,
			 top = y + count / DRAW_DEVICES * DRAW_DEVICE_HIGH;

		if (pci->above != above || (nic && !h->nics[i].physical) ||
			(above == DRAW_ROOT && !draw_is_of(d, nic ? h->nics[i].node : h->gpus[gpu].node, id)))
			continue;
		count++;
		if (d->file && nic)
			draw_nic(d, i, left, top);
		else if (d->file)
			draw_gpu(d, &h->gpus[gpu], left, top);
	}
	return y + (count + DRAW_DEVICES - 1) / DRAW_DEVICES * DRAW_DEVICE_HIGH;
}

static unsigned draw_switch(struct draw *d, unsigned index, unsigned x, unsigned y)
{
	const struct host_switch *s = &d->t->host.switches[index];
	unsigned depth = 0, bottom;
	char text[160];

	for (int i = s->above; i != HOST_NONE && depth < DRAW_DEPTH_MAX; i = d->t->host.switches[i].above)
		depth++;
	x += depth * DRAW_INDENT;
	if (d->file) {
		FILE *file = d->file;

		d->file = NULL;
		bottom = draw_devices(d, (int)index, -1, x + 8, y + 24);
		d->file = file;
		svg_rect(d->file, x, y, DRAW_DEVICES * DRAW_DEVICE + 8 - depth * DRAW_INDENT / 2, bottom - y, "#fbf7ff",
			"#8a6fb3", 1.5);
		snprintf(text, sizeof(text), "PCIe switch %s", s->address);
		if (s->above != HOST_NONE)
			snprintf(text + strlen(text), sizeof(text) - strlen(text), ", below %s",
				d->t->host.switches[s->above].address);
		if (s->link_mbit)
			snprintf(text + strlen(text), sizeof(text) - strlen(text), ", %.4g Gbit/s up",
				s->link_mbit / 1000.0);
		svg_text(d->file, x + 8, y + 16, "name", text);
	}
	return draw_devices(d, (int)index, -1, x + 8, y + 24) + 8;
}

/* A node, or with -1 what belongs to none. Returns where it ends. */
static unsigned draw_node_inside(struct draw *d, int id, unsigned x, unsigned y)
{
	const struct host *h = &d->t->host;
	unsigned count = 0;

	for (unsigned i = 0; i < h->cpu_count; i++) {
		bool first = h->cpus[i].node == id;

		for (unsigned j = 0; first && j < i; j++)
			first = h->cpus[j].core != h->cpus[i].core;
		if (!first)
			continue;
		if (d->file)
			draw_core(d, &h->cpus[i], x + count % DRAW_CORES * DRAW_CELL,
				y + count / DRAW_CORES * DRAW_CELL_HIGH);
		count++;
	}
	y += (count + DRAW_CORES - 1) / DRAW_CORES * DRAW_CELL_HIGH + (count ? 8 : 0);
	y = draw_devices(d, DRAW_ROOT, id, x, y);
	for (unsigned i = 0; i < h->switch_count; i++)
		if (draw_is_of(d, h->switches[i].node, id))
			y = draw_switch(d, i, x, y);
	return y;
}

static unsigned draw_node(struct draw *d, unsigned index, unsigned x, unsigned y, unsigned height)
{
	const struct host *h = &d->t->host;
	const struct host_node *node = index < h->node_count ? &h->nodes[index] : NULL;
	char text[128] = "of no known node", bytes[32];

	if (d->file) {
		svg_rect(d->file, x, y, DRAW_NODE, height, "#fafafa", "#888888", 1);
		if (node)
			snprintf(text, sizeof(text), "node %d", node->id);
		svg_text(d->file, x + 14, y + 22, "title", text);
		if (node && node->memory_bytes) {
			snprintf(text, sizeof(text), "%s memory, %" PRIu64 " of %" PRIu64 " huge pages free",
				output_bytes(node->memory_bytes, bytes), node->huge_2m_free, node->huge_2m_total);
			svg_text(d->file, x + 90, y + 22, "name", text);
		}
	}
	return draw_node_inside(d, node ? node->id : -1, x + 18, y + 34) + 8 - y;
}

/* Is there anything that belongs to no node, and is drawn on its own? */
static bool draw_has_stray(const struct draw *d)
{
	struct draw measured = {.t = d->t};

	return d->t->host.node_count > 1 && draw_node_inside(&measured, -1, 0, 0) > 0;
}

/* All rows of nodes. Returns where they end. */
static unsigned draw_nodes(struct draw *d, unsigned count, unsigned columns)
{
	FILE *file = d->file;
	unsigned y = DRAW_TOP;

	for (unsigned first = 0; first < count; first += columns) {
		unsigned last = first + columns < count ? first + columns : count, height = 0;

		d->file = NULL;
		for (unsigned i = first; i < last; i++) {
			unsigned own = draw_node(d, i, 0, 0, 0);

			height = own > height ? own : height;
		}
		d->file = file;
		for (unsigned i = first; file && i < last; i++)
			draw_node(d, i, DRAW_GAP + (i - first) * (DRAW_NODE + DRAW_GAP), y, height);
		y += height + DRAW_GAP;
	}
	return y;
}

static void draw_texts(struct draw *d, unsigned height)
{
	const struct host *h = &d->t->host;
	uint64_t bytes = 0;
	char text[300], one[32];

	snprintf(text, sizeof(text), "%u CPUs on %u NUMA node%s", h->cpu_count, h->node_count,
		h->node_count == 1 ? "" : "s");
	if (h->llc_bytes)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), ", last-level cache %s",
			output_bytes(h->llc_bytes, one));
	svg_text(d->file, DRAW_GAP, 28, "title", text);
	if (!d->model) {
		svg_text(d->file, DRAW_GAP, 48, "name",
			"Each grey cell is a physical core with its hyper-threads. --model NAME lays chunks and bytes "
			"over it.");
		return;
	}
	for (unsigned i = 0; i < d->t->cores; i++)
		bytes += d->t->placed[i].bytes;
	snprintf(text, sizeof(text), "%s, %s in chunks of %s on %" PRIu64 " core%s of a box", d->model,
		output_bytes(bytes, one), output_bytes(d->t->chunk_bytes, (char[32]){0}), d->t->cores,
		d->t->cores == 1 ? "" : "s");
	svg_text(d->file, DRAW_GAP, 48, "name", text);
	svg_text(d->file, DRAW_GAP, height - 30, "small",
		"Orange: cores that a box here picks, and what each sums of one worker's gradient.");
	svg_text(d->file, DRAW_GAP, height - 16, "small",
		"Of a NIC: what its cores exchange. Bars are relative to the fullest core and NIC.");
}

int topo_draw_host(const struct topo *t, const char *model, struct err *e)
{
	struct draw d = {.t = t, .model = model};
	unsigned count = t->host.node_count, columns, height;
	struct beside place;

	for (unsigned i = 0; model && i < t->cores; i++) {
		const struct placement_core *c = &t->placed[i];

		d.core_most = c->bytes > d.core_most ? c->bytes : d.core_most;
		if (c->nic == PLACEMENT_NIC_NONE)
			continue;
		d.nics[c->nic].bytes += c->bytes;
		d.nics[c->nic].chunks += t->chunk_count[i];
		d.nics[c->nic].cores++;
		if (d.nics[c->nic].bytes > d.nic_most)
			d.nic_most = d.nics[c->nic].bytes;
	}
	count += draw_has_stray(&d);
	columns = count < DRAW_NODES_MAX ? count : DRAW_NODES_MAX;
	height = draw_nodes(&d, count, columns) + DRAW_END;
	d.file = svg_open(t->racks.svg, DRAW_GAP + columns * (DRAW_NODE + DRAW_GAP), height, &place, e);
	if (!d.file)
		return e->code;
	draw_nodes(&d, count, columns);
	draw_texts(&d, height);
	return svg_close(d.file, &place, e);
}
