/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Discover: small readers of sysfs files, each of which takes a missing or odd file for "unknown", put together into
 * struct host. Everything read is bounded and checked: a container's sysfs may be partial, and tests make up trees.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity() */
#endif

#include "topology/discover.h"
#include "topology/discover_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DISCOVER_MASK_LONGS      (8192u / (8 * sizeof(unsigned long)))
#define DISCOVER_CACHE_INDEX_MAX 16u

/* A set of ids 0 .. HOST_CPU_COUNT_MAX - 1; higher ones are left out. */
struct discover_set {
	bool has[HOST_CPU_COUNT_MAX];
	unsigned count;
};

bool discover_read(struct discover *d, const char *format, ...)
{
	char path[PATH_MAX];
	va_list args;
	int used = snprintf(path, sizeof(path), "%s/", d->root);

	d->text[0] = '\0';
	if (used < 0 || (size_t)used >= sizeof(path))
		return false;
	va_start(args, format);
	int length = vsnprintf(path + used, sizeof(path) - (size_t)used, format, args);
	va_end(args);
	if (length < 0 || (size_t)length >= sizeof(path) - (size_t)used)
		return false;

	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t have = 0;
	ssize_t got = -1;
	if (fd < 0)
		return false;
	while (have < sizeof(d->text) - 1 && (got = read(fd, d->text + have, sizeof(d->text) - 1 - have)) > 0)
		have += (size_t)got;
	close(fd);
	d->text[have] = '\0';
	if (have > 0 && d->text[have - 1] == '\n')
		d->text[have - 1] = '\0';
	return got == 0 && have > 0; /* got > 0: longer than anything that we expect */
}

int64_t discover_number(const struct discover *d, int64_t unknown)
{
	char *end;

	errno = 0;
	long long value = strtoll(d->text, &end, 10);
	return end == d->text || errno != 0 ? unknown : value;
}

/* The kernel's lists: "0-3,8,10-11". Odd text ends the list. */
static void discover_parse_list(const char *text, struct discover_set *set)
{
	memset(set, 0, sizeof(*set));
	while (*text >= '0' && *text <= '9') {
		char *end;
		unsigned long first = strtoul(text, &end, 10);
		unsigned long last = first;

		if (*end == '-' && end[1] >= '0' && end[1] <= '9')
			last = strtoul(end + 1, &end, 10);
		for (unsigned long id = first; id <= last && id < HOST_CPU_COUNT_MAX; id++) {
			set->count += !set->has[id];
			set->has[id] = true;
		}
		if (*end != ',')
			return;
		text = end + 1;
	}
}

static int discover_first(const struct discover_set *set, int unknown)
{
	for (int id = 0; id < (int)HOST_CPU_COUNT_MAX; id++) {
		if (set->has[id])
			return id;
	}
	return unknown;
}

static void discover_from_mask(const unsigned char *mask, size_t mask_bytes, struct discover_set *set)
{
	memset(set, 0, sizeof(*set));
	for (unsigned id = 0; id < HOST_CPU_COUNT_MAX && id / 8 < mask_bytes; id++) {
		set->has[id] = mask[id / 8] >> id % 8 & 1;
		set->count += set->has[id];
	}
}

/* Ask the scheduler. Returns false when it does not say. */
static bool discover_affinity(struct discover_set *set)
{
	unsigned long mask[DISCOVER_MASK_LONGS] = {0};
	unsigned char bytes[HOST_CPU_COUNT_MAX / 8] = {0};

	if (sched_getaffinity(0, sizeof(mask), (cpu_set_t *)mask) < 0)
		return false;
	for (unsigned id = 0; id < HOST_CPU_COUNT_MAX; id++) {
		unsigned long word = mask[id / (8 * sizeof(word))];

		if (word >> id % (8 * sizeof(word)) & 1)
			bytes[id / 8] |= (unsigned char)(1u << id % 8);
	}
	discover_from_mask(bytes, sizeof(bytes), set);
	return true;
}

/* The CPUs that are online and allowed; those of the mask alone where sysfs does not say what is online. */
static void discover_allowed(
	struct discover *d, const struct discover_options *options, bool real, struct discover_set *allowed)
{
	struct discover_set online;
	bool limited = true;

	if (options->cpu_mask)
		discover_from_mask(options->cpu_mask, options->cpu_mask_bytes, allowed);
	else
		limited = real && discover_affinity(allowed);
	if (discover_read(d, "sys/devices/system/cpu/online"))
		discover_parse_list(d->text, &online);
	else if (limited)
		online = *allowed;
	else
		memset(&online, 0, sizeof(online));
	if (!limited)
		*allowed = online;
	allowed->count = 0;
	for (unsigned id = 0; id < HOST_CPU_COUNT_MAX; id++) {
		allowed->has[id] = allowed->has[id] && online.has[id];
		allowed->count += allowed->has[id];
	}
}

/* "MemTotal: 6645976 kB" somewhere in a meminfo; 0 when it is not there. */
static uint64_t discover_memory(const struct discover *d)
{
	const char *at = strstr(d->text, "MemTotal:");

	return at ? strtoull(at + strlen("MemTotal:"), NULL, 10) * 1024 : 0;
}

static uint64_t discover_pages(struct discover *d, const char *dir, const char *file)
{
	if (!discover_read(d, "%s/hugepages-2048kB/%s", dir, file))
		return 0;

	int64_t pages = discover_number(d, 0);
	return pages > 0 ? (uint64_t)pages : 0;
}

static void discover_node(struct discover *d, int id, struct host_node *node)
{
	char dir[64];

	*node = (struct host_node){.id = id};
	if (discover_read(d, "sys/devices/system/node/node%d/meminfo", id))
		node->memory_bytes = discover_memory(d);
	snprintf(dir, sizeof(dir), "sys/devices/system/node/node%d/hugepages", id);
	node->huge_2m_total = discover_pages(d, dir, "nr_hugepages");
	node->huge_2m_free = discover_pages(d, dir, "free_hugepages");
}

/* Fill the nodes, and node_of_cpu where a node claims a CPU. */
static void discover_nodes(struct discover *d, int node_of_cpu[HOST_CPU_COUNT_MAX])
{
	struct host *host = d->host;
	struct discover_set nodes = {.count = 0};
	struct discover_set cpus;

	if (discover_read(d, "sys/devices/system/node/online"))
		discover_parse_list(d->text, &nodes);
	for (int id = 0; id < (int)HOST_CPU_COUNT_MAX && host->node_count < HOST_NODE_COUNT_MAX; id++) {
		if (!nodes.has[id])
			continue;
		discover_node(d, id, &host->nodes[host->node_count++]);
		if (!discover_read(d, "sys/devices/system/node/node%d/cpulist", id))
			continue;
		discover_parse_list(d->text, &cpus);
		for (unsigned cpu = 0; cpu < HOST_CPU_COUNT_MAX; cpu++) {
			if (cpus.has[cpu])
				node_of_cpu[cpu] = id;
		}
	}
	host->huge_2m_total = discover_pages(d, "sys/kernel/mm/hugepages", "nr_hugepages");
	host->huge_2m_free = discover_pages(d, "sys/kernel/mm/hugepages", "free_hugepages");
	if (host->node_count > 0)
		return;

	/* A kernel without NUMA: one node that has all there is. */
	host->nodes[0] = (struct host_node){.huge_2m_total = host->huge_2m_total, .huge_2m_free = host->huge_2m_free};
	host->node_count = 1;
	if (discover_read(d, "proc/meminfo"))
		host->nodes[0].memory_bytes = discover_memory(d);
}

/* "36608K", as cacheinfo writes it; 0 when it does not. */
static uint64_t discover_size(const struct discover *d)
{
	char *end;
	uint64_t size = strtoull(d->text, &end, 10);

	if (*end == 'K')
		return size << 10;
	return *end == 'M' ? size << 20 : size;
}

/* Bytes of the last-level cache that a CPU sees, 0 when unknown. */
static uint64_t discover_llc(struct discover *d, int cpu)
{
	char dir[64];
	int64_t best_level = 0;
	uint64_t bytes = 0;

	for (unsigned index = 0; index < DISCOVER_CACHE_INDEX_MAX; index++) {
		snprintf(dir, sizeof(dir), "sys/devices/system/cpu/cpu%d/cache/index%u", cpu, index);
		if (!discover_read(d, "%s/level", dir))
			break;

		int64_t level = discover_number(d, 0);
		if (level <= best_level || !discover_read(d, "%s/type", dir) || strcmp(d->text, "Instruction") == 0)
			continue;
		if (discover_read(d, "%s/size", dir)) {
			best_level = level;
			bytes = discover_size(d);
		}
	}
	return bytes;
}

static void discover_cpus(
	struct discover *d, const struct discover_set *allowed, const int node_of_cpu[HOST_CPU_COUNT_MAX])
{
	struct host *host = d->host;
	struct discover_set siblings;

	for (int id = 0; id < (int)HOST_CPU_COUNT_MAX; id++) {
		if (!allowed->has[id])
			continue;

		struct host_cpu *cpu = &host->cpus[host->cpu_count++];
		*cpu = (struct host_cpu){.id = id, .core = id};
		cpu->node = node_of_cpu[id] >= 0 ? node_of_cpu[id] : host->nodes[0].id;
		if (discover_read(d, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", id)) {
			discover_parse_list(d->text, &siblings);
			cpu->core = discover_first(&siblings, id);
		}
		uint64_t llc_bytes = discover_llc(d, id);
		if (llc_bytes > host->llc_bytes)
			host->llc_bytes = llc_bytes;
	}
}

int discover_node_id(const struct discover *d)
{
	int64_t node = discover_number(d, -1);

	return node >= 0 && node < (int64_t)HOST_CPU_COUNT_MAX ? (int)node : -1;
}

/* A virtio NIC's device has no node of its own, but the PCI function above it has. */
static int discover_nic_node(struct discover *d, const char *name)
{
	if (!discover_read(d, "sys/class/net/%s/device/numa_node", name) &&
		!discover_read(d, "sys/class/net/%s/device/../numa_node", name))
		return -1;
	return discover_node_id(d);
}

/* Read one entry of sys/class/net. Returns false when it is no interface (bonding_masters, say). */
static bool discover_nic(struct discover *d, const char *name, struct host_nic *nic)
{
	char path[PATH_MAX];
	struct stat status;

	*nic = (struct host_nic){.node = -1, .pci = {.above = HOST_NONE}};
	if (strcmp(name, "lo") == 0 || strlen(name) >= sizeof(nic->name))
		return false;
	if (!discover_read(d, "sys/class/net/%s/operstate", name))
		return false;
	memcpy(nic->name, name, strlen(name) + 1);
	nic->up = strcmp(d->text, "up") == 0;
	/* Drivers that do not report a state are up while they have a carrier. */
	if (strcmp(d->text, "unknown") == 0 && discover_read(d, "sys/class/net/%s/carrier", name))
		nic->up = discover_number(d, 0) == 1;
	if (discover_read(d, "sys/class/net/%s/speed", name)) {
		int64_t speed = discover_number(d, 0);

		nic->speed_mbit = speed > 0 && speed < INT32_MAX ? (uint32_t)speed : 0;
	}
	int length = snprintf(path, sizeof(path), "%s/sys/class/net/%s/device", d->root, name);
	nic->physical = length > 0 && (size_t)length < sizeof(path) && stat(path, &status) == 0;
	if (nic->physical)
		nic->node = discover_nic_node(d, name);
	return true;
}

int discover_compare_entries(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static void discover_nics(struct discover *d)
{
	char path[PATH_MAX];
	struct dirent **entries = NULL;
	struct host *host = d->host;
	int length = snprintf(path, sizeof(path), "%s/sys/class/net", d->root);
	int count = length > 0 && (size_t)length < sizeof(path)
			    ? scandir(path, &entries, NULL, discover_compare_entries)
			    : 0;

	for (int i = 0; i < count; i++) {
		bool room = host->nic_count < HOST_NIC_COUNT_MAX && entries[i]->d_name[0] != '.';

		if (room && discover_nic(d, entries[i]->d_name, &host->nics[host->nic_count]))
			host->nic_count++;
		free(entries[i]);
	}
	free(entries);
}

int discover_host(const struct discover_options *options, struct host *out, struct err *e)
{
	static const struct discover_options nothing;
	const struct discover_options *wanted = options ? options : &nothing;
	bool real = !wanted->root || strcmp(wanted->root, "/") == 0;
	struct discover *d = calloc(1, sizeof(*d));
	struct host *host = calloc(1, sizeof(*host));
	struct discover_set allowed;
	int node_of_cpu[HOST_CPU_COUNT_MAX];
	int rc = 0;

	if (!d || !host) {
		rc = err_set(e, -ENOMEM, "no memory to read the host's topology");
		goto free_host;
	}
	d->root = real ? "" : wanted->root;
	d->host = host;
	memset(node_of_cpu, -1, sizeof(node_of_cpu));
	discover_allowed(d, wanted, real, &allowed);
	if (allowed.count == 0) {
		rc = err_set(e, -ENOENT,
			"no CPU that is online and allowed in %s/sys/devices/system/cpu/online; check the CPU mask",
			d->root);
		goto free_host;
	}
	discover_nodes(d, node_of_cpu);
	discover_cpus(d, &allowed, node_of_cpu);
	discover_nics(d);
	discover_pci(d);
	*out = *host;
free_host:
	free(host);
	free(d);
	return rc;
}
