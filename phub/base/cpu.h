/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CPUs as a thread meets them: which it may use, where it runs, on which NUMA node. Planning over whole machines is in
 * topology/; instruction sets are in aggregation/.
 */
#ifndef PHUB_BASE_CPU_H
#define PHUB_BASE_CPU_H

#include <stdint.h>

#include "phub/base/err.h"

#define CPU_COUNT_MAX 4096

/*
 * How far apart fields of different writers stand: two lines of 64 bytes, because the prefetchers of x86 fetch lines in
 * pairs and some Arm machines have lines of 128.
 */
#define CPU_LINE_BYTES 128

struct cpu_list {
	unsigned count;
	int cpu[CPU_COUNT_MAX];
};

/* The CPUs that the calling thread may run on (taskset, cgroup), ascending. Any thread. 0 or a negative errno. */
int cpu_list_allowed(struct cpu_list *out);

/*
 * Reads "0-3,8,10-11" in the order given. 0; -EINVAL when it is empty, malformed, descends, names a CPU twice or one
 * from CPU_COUNT_MAX up; then `e` says where and `out` is as it was. Whether such CPUs exist is not looked at. Any
 * thread; never blocks.
 */
int cpu_list_parse(const char *text, struct cpu_list *out, struct err *e);

/* Binds the calling thread to one CPU. 0; -EINVAL: there is no such CPU, or this process may not use it. */
int cpu_pin_self(int cpu);

/*
 * The NUMA node of a CPU, as told under `sysfs` (NULL: "/sys"; tests give a recorded tree). Control thread; reads
 * files. -ENOENT: that CPU does not exist or the kernel knows no nodes.
 */
int cpu_node(const char *sysfs, int cpu);

/*
 * How far memory and devices of node `to` are from node `from`, as the kernel has it from the firmware: 10 for the same
 * node, more for others, 255 for those that cannot be reached. `sysfs`, thread: likewise. -ENOENT: not known.
 */
int cpu_node_distance(const char *sysfs, int from, int to);

/* The node on which all CPUs lie that the calling thread may run on. `sysfs` likewise. -ENOENT: there is no one such.
 */
int cpu_node_allowed(const char *sysfs);

/* Bytes of the second-level cache, which on every machine of today is a core's own; 0: unknown. Any thread. */
uint64_t cpu_cache_bytes(void);

/* Tells the CPU that this is a polling loop: it saves power, and on x86 avoids a pipeline flush when the loop ends. */
static inline void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield" ::: "memory");
#endif
}

#endif
