/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Discover, PCI: sysfs names a device by its way down from the root complex, a folder for each bridge on it:
 *
 *      /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:08.0/0000:3d:00.0
 *                   root       root port    switch: its   one of its   device
 *                                           upstream port downstream ports
 *
 * So a bridge below a root port or a downstream port is a switch, and one below a switch is its downstream port. That
 * needs no capability registers, which only root may read.
 */
#include "topology/discover_internal.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PCI_DEPTH_MAX     16u /* bridges above a device; what is deeper is left out */
#define PCI_DEVICES_MAX   65536
#define PCI_CLASS_BRIDGE  0x0604u
#define PCI_CLASS_DISPLAY 0x03u
#define PCI_CLASS_ACCEL   0x1200u

struct pci_way {
	char root[HOST_PCI_BYTES];
	char parts[PCI_DEPTH_MAX + 1][HOST_PCI_BYTES]; /* from the root port to the device */
	unsigned count;
};

/* Hexadecimal digits, at least `min`: how many, or 0. */
static size_t pci_digits(const char *text, size_t min, size_t max)
{
	size_t count = 0;

	while (count < max && isxdigit((unsigned char)text[count]))
		count++;
	return count >= min ? count : 0;
}

/* "0000:3a", at the start of text: its length, or 0. */
static size_t pci_bus_length(const char *text)
{
	size_t domain = pci_digits(text, 4, 8);

	if (!domain || text[domain] != ':' || !pci_digits(text + domain + 1, 2, 2))
		return 0;
	return domain + 3;
}

/* Is all of text an address, "0000:3a:00.0", that fits? */
static bool pci_is_address(const char *text)
{
	size_t at = pci_bus_length(text);

	if (!at || text[at] != ':' || !pci_digits(text + at + 1, 2, 2) || text[at + 3] != '.')
		return false;
	return text[at + 4] >= '0' && text[at + 4] <= '7' && !text[at + 5] && at + 5 < HOST_PCI_BYTES;
}

/* Take the way apart; it begins behind sys/devices. Returns false when no PCI device is on it. */
static bool pci_split(char *path, struct pci_way *way)
{
	char *rest = NULL;

	memset(way, 0, sizeof(*way));
	for (char *part = strtok_r(path, "/", &rest); part; part = strtok_r(NULL, "/", &rest)) {
		size_t bus = strncmp(part, "pci", 3) == 0 ? pci_bus_length(part + 3) : 0;

		/* A root below a device is that of a domain of its own (VMD): the way begins anew. */
		if (bus && !part[3 + bus] && bus < sizeof(way->root)) {
			memcpy(way->root, part + 3, bus + 1);
			way->count = 0;
		} else if (pci_is_address(part)) {
			if (way->count == sizeof(way->parts) / sizeof(way->parts[0]))
				return false;
			snprintf(way->parts[way->count++], HOST_PCI_BYTES, "%s", part);
		}
	}
	return way->count > 0;
}

/* The way to what a link in sysfs leads to. A link that leads out of the tree, or in a circle, leads nowhere. */
static bool pci_find_way(const struct discover *d, const char *link, struct pci_way *way)
{
	char path[PATH_MAX], *real, *base;
	int length = snprintf(path, sizeof(path), "%s/sys/devices", d->root);
	bool found = false;

	if (length < 0 || (size_t)length >= sizeof(path))
		return false;
	base = realpath(path, NULL);
	length = snprintf(path, sizeof(path), "%s/%s", d->root, link);
	real = length > 0 && (size_t)length < sizeof(path) ? realpath(path, NULL) : NULL;
	if (base && real && strncmp(real, base, strlen(base)) == 0)
		found = pci_split(real + strlen(base), way);
	free(base);
	free(real);
	return found;
}

/* A file of a device that has this address. */
static bool pci_read(struct discover *d, const char *address, const char *file)
{
	return discover_read(d, "sys/bus/pci/devices/%s/%s", address, file);
}

/* "0x030200"; 0 when it is not that. */
static uint32_t pci_hex(struct discover *d, const char *address, const char *file)
{
	char *end;
	unsigned long value;

	if (!pci_read(d, address, file) || strncmp(d->text, "0x", 2) != 0)
		return 0;
	value = strtoul(d->text, &end, 16);
	return *end || value > UINT32_MAX ? 0 : (uint32_t)value;
}

static int pci_node(struct discover *d, const char *address)
{
	return pci_read(d, address, "numa_node") ? discover_node_id(d) : -1;
}

/*
 * Rate of the link above a device, each way. "8.0 GT/s PCIe" and lanes: of 10 bits 8 are data up to 5 GT/s, of 130 128
 * from 8 GT/s on, and from 64 GT/s on 242 of 256 bytes of a flit. Headers of packets come off that too, some 5 to 15 %.
 */
static uint32_t pci_link_mbit(struct discover *d, const char *address)
{
	double rate, code;
	int64_t width;
	char *end;

	if (!pci_read(d, address, "current_link_width"))
		return 0;
	width = discover_number(d, 0);
	if (width < 1 || width > 32 || !pci_read(d, address, "current_link_speed"))
		return 0;
	rate = strtod(d->text, &end);
	if (strncmp(end, " GT/s", 5) != 0 || !(rate >= 1) || rate > 1024)
		return 0;
	code = rate < 8 ? 0.8 : rate < 64 ? 128.0 / 130 : 242.0 / 256;
	return (uint32_t)(rate * 1000 * code * (double)width);
}

/* Index of the switch, which is added when it is new and there is room; `above` when there is none. */
static int pci_switch(struct discover *d, const struct pci_way *way, const char *address, int above)
{
	struct host *host = d->host;
	struct host_switch *s;

	for (unsigned i = 0; i < host->switch_count; i++)
		if (strcmp(host->switches[i].address, address) == 0)
			return (int)i;
	if (host->switch_count == HOST_SWITCH_MAX)
		return above;
	s = &host->switches[host->switch_count];
	*s = (struct host_switch){.above = above, .node = pci_node(d, address), .link_mbit = pci_link_mbit(d, address)};
	memcpy(s->address, address, sizeof(s->address));
	memcpy(s->root, way->root, sizeof(s->root));
	return (int)host->switch_count++;
}

/* Fill in where the device at the end of the way sits, and the switches above it. */
static void pci_place(struct discover *d, const struct pci_way *way, struct host_pci *pci)
{
	const char *own = way->parts[way->count - 1];
	bool below_switch = false; /* the bridge before was a switch's upstream port */

	*pci = (struct host_pci){.above = HOST_NONE, .link_mbit = pci_link_mbit(d, own)};
	memcpy(pci->address, own, sizeof(pci->address));
	memcpy(pci->root, way->root, sizeof(pci->root));
	for (unsigned i = 1; i + 1 < way->count; i++) {
		below_switch = !below_switch && pci_hex(d, way->parts[i], "class") >> 8 == PCI_CLASS_BRIDGE;
		if (below_switch)
			pci->above = pci_switch(d, way, way->parts[i], pci->above);
	}
	/* A port's link is the one below it, so that of a virtual function, which tells none, is its port's. */
	for (unsigned i = way->count; i-- > 0;) {
		uint32_t mbit = pci_link_mbit(d, way->parts[i]);

		if (mbit == 0 || (pci->path_mbit > 0 && mbit >= pci->path_mbit))
			continue;
		pci->path_mbit = mbit;
		memcpy(pci->narrow, way->parts[i], sizeof(pci->narrow));
	}
}

static void pci_place_nic(struct discover *d, struct host_nic *nic)
{
	char path[PATH_MAX], link[64 + HOST_NIC_NAME_BYTES];
	struct dirent **entries = NULL;
	struct pci_way way;
	int length, count;

	snprintf(link, sizeof(link), "sys/class/net/%s/device", nic->name);
	if (nic->physical && pci_find_way(d, link, &way))
		pci_place(d, &way, &nic->pci);
	length = snprintf(path, sizeof(path), "%s/%s/infiniband", d->root, link);
	count = length > 0 && (size_t)length < sizeof(path) ? scandir(path, &entries, NULL, discover_compare_entries)
							    : 0;
	for (int i = 0; i < count; i++) {
		size_t bytes = strlen(entries[i]->d_name);

		if (entries[i]->d_name[0] != '.' && !nic->rdma[0] && bytes < sizeof(nic->rdma))
			memcpy(nic->rdma, entries[i]->d_name, bytes + 1);
		free(entries[i]);
	}
	free(entries);
}

static void pci_take_gpu(struct discover *d, const char *address)
{
	struct host *host = d->host;
	uint32_t class = pci_hex(d, address, "class") >> 8;
	char link[32 + HOST_PCI_BYTES];
	struct pci_way way;
	struct host_gpu *gpu;

	if ((class >> 8 != PCI_CLASS_DISPLAY && class != PCI_CLASS_ACCEL) || host->gpu_count == HOST_GPU_COUNT_MAX)
		return;
	gpu = &host->gpus[host->gpu_count++];
	*gpu = (struct host_gpu){.class = class,
		.vendor = (uint16_t)pci_hex(d, address, "vendor"),
		.device = (uint16_t)pci_hex(d, address, "device"),
		.node = pci_node(d, address)};
	snprintf(link, sizeof(link), "sys/bus/pci/devices/%.*s", (int)HOST_PCI_BYTES - 1, address);
	/* Without a way in sys/devices its address is all that is known. */
	if (!pci_find_way(d, link, &way) || strcmp(way.parts[way.count - 1], address) != 0) {
		memset(&way, 0, sizeof(way));
		snprintf(way.parts[way.count++], HOST_PCI_BYTES, "%.*s", (int)HOST_PCI_BYTES - 1, address);
	}
	pci_place(d, &way, &gpu->pci);
}

void discover_pci(struct discover *d)
{
	char path[PATH_MAX];
	struct dirent **entries = NULL;
	int length = snprintf(path, sizeof(path), "%s/sys/bus/pci/devices", d->root);
	int count = length > 0 && (size_t)length < sizeof(path)
			    ? scandir(path, &entries, NULL, discover_compare_entries)
			    : 0;

	for (unsigned i = 0; i < d->host->nic_count; i++)
		pci_place_nic(d, &d->host->nics[i]);
	for (int i = 0; i < count; i++) {
		if (i < PCI_DEVICES_MAX && pci_is_address(entries[i]->d_name))
			pci_take_gpu(d, entries[i]->d_name);
		free(entries[i]);
	}
	free(entries);
}
