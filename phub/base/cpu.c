/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/base/cpu.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CPU_LINE_TEXT = 4096 }; /* bytes of a line of sysfs: it has no more than a page */

/* The kernel's mask may be longer than cpu_set_t, whose 1024 CPUs are fixed in the ABI of libc. */
union cpu_mask {
	cpu_set_t set;
	unsigned char bytes[CPU_COUNT_MAX / 8];
};

int cpu_list_allowed(struct cpu_list *out)
{
	union cpu_mask mask = {.bytes = {0}};
	unsigned count = 0;

	if (sched_getaffinity(0, sizeof(mask), &mask.set) != 0)
		return -errno;
	for (int cpu = 0; cpu < CPU_COUNT_MAX; cpu++) {
		if (CPU_ISSET_S(cpu, sizeof(mask), &mask.set))
			out->cpu[count++] = cpu;
	}
	out->count = count;
	return 0;
}

uint64_t cpu_cache_bytes(void)
{
	long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);

	return bytes > 0 ? (uint64_t)bytes : 0;
}

/* Reads a decimal below CPU_COUNT_MAX and moves *text behind it; -1: there is none. */
static int cpu_parse_number(const char **text)
{
	int value = 0;
	const char *c = *text;

	if (*c < '0' || *c > '9')
		return -1;
	for (; *c >= '0' && *c <= '9'; c++) {
		value = value * 10 + (*c - '0');
		if (value >= CPU_COUNT_MAX)
			return -1;
	}
	*text = c;
	return value;
}

int cpu_list_parse(const char *text, struct cpu_list *out, struct err *e)
{
	unsigned char seen[CPU_COUNT_MAX] = {0};
	struct cpu_list list;
	const char *at = text;

	list.count = 0;
	for (;;) {
		const char *item = at;
		int first = cpu_parse_number(&at);
		int last = first;

		if (first >= 0 && *at == '-') {
			at++;
			last = cpu_parse_number(&at);
		}
		if (first < 0 || last < first || (*at && *at != ','))
			return err_set(e, -EINVAL,
				"CPU list \"%s\": at \"%s\": want numbers below %d and ranges, as in 0-3,8", text, item,
				CPU_COUNT_MAX);
		for (int cpu = first; cpu <= last; cpu++) {
			if (seen[cpu])
				return err_set(e, -EINVAL, "CPU list \"%s\": CPU %d is named twice", text, cpu);
			seen[cpu] = 1;
			list.cpu[list.count++] = cpu;
		}
		if (!*at)
			break;
		at++;
	}
	out->count = list.count;
	memcpy(out->cpu, list.cpu, list.count * sizeof(list.cpu[0]));
	return 0;
}

int cpu_pin_self(int cpu)
{
	union cpu_mask mask = {.bytes = {0}};

	if (cpu < 0 || cpu >= CPU_COUNT_MAX)
		return -EINVAL;
	CPU_SET_S((size_t)cpu, sizeof(mask), &mask.set);
	return -pthread_setaffinity_np(pthread_self(), sizeof(mask), &mask.set);
}

/* A CPU's folder holds a link called node<N>. */
int cpu_node(const char *sysfs, int cpu)
{
	char path[PATH_MAX];
	int node = -ENOENT;

	if (snprintf(path, sizeof(path), "%s/devices/system/cpu/cpu%d", sysfs ? sysfs : "/sys", cpu) >=
		(int)sizeof(path))
		return -ENAMETOOLONG;
	DIR *folder = opendir(path);
	if (!folder)
		return -ENOENT;
	for (struct dirent *entry = readdir(folder); entry && node < 0; entry = readdir(folder)) {
		char rest;

		if (sscanf(entry->d_name, "node%d%c", &node, &rest) != 1 || node < 0)
			node = -ENOENT;
	}
	closedir(folder);
	return node;
}

int cpu_node_allowed(const char *sysfs)
{
	struct cpu_list *allowed = malloc(sizeof(*allowed));
	int node = -ENOENT;

	if (allowed && cpu_list_allowed(allowed) == 0 && allowed->count > 0)
		node = cpu_node(sysfs, allowed->cpu[0]);
	for (unsigned i = 1; node >= 0 && i < allowed->count; i++)
		if (cpu_node(sysfs, allowed->cpu[i]) != node)
			node = -ENOENT;
	free(allowed);
	return node >= 0 ? node : -ENOENT;
}

/* The first line of a file below `sysfs`. False when there is none. */
static bool cpu_read_line(const char *sysfs, const char *file, char *out, int bytes)
{
	char path[PATH_MAX];
	FILE *f;
	bool ok;

	if (snprintf(path, sizeof(path), "%s/devices/system/node/%s", sysfs ? sysfs : "/sys", file) >=
		(int)sizeof(path))
		return false;
	f = fopen(path, "re");
	if (!f)
		return false;
	ok = fgets(out, bytes, f) != NULL;
	fclose(f);
	if (ok)
		out[strcspn(out, "\n")] = '\0';
	return ok;
}

/* A node's file has a number for each node that is online, in order; node numbers may have gaps. */
int cpu_node_distance(const char *sysfs, int from, int to)
{
	struct cpu_list *nodes = malloc(sizeof(*nodes));
	char line[CPU_LINE_TEXT], file[32];
	const char *at = line;
	int distance = -ENOENT;
	struct err e;

	snprintf(file, sizeof(file), "node%d/distance", from);
	if (!nodes || from < 0 || !cpu_read_line(sysfs, "online", line, sizeof(line)) ||
		cpu_list_parse(line, nodes, &e) < 0 || !cpu_read_line(sysfs, file, line, sizeof(line)))
		at = "";
	for (unsigned i = 0; *at && i < nodes->count; i++) {
		int number;

		at += strspn(at, " ");
		number = cpu_parse_number(&at);
		if (number < 0)
			break;
		if (nodes->cpu[i] == to)
			distance = number;
	}
	free(nodes);
	return distance;
}
