/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Discovery on trees that the test writes into a folder of its own: one recorded (a small virtual machine), the others
 * made up (two sockets with hyper-threads and five NICs, no NUMA, odd and missing files); and the choice of cores on
 * the hosts found there. The last test reads the machine it runs on.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* nftw() */
#endif

#include <errno.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/cmocka_shim.h"
#include "topology/discover.h"
#include "topology/pick.h"

static char tree[64];

static int tree_setup(void **state)
{
	snprintf(tree, sizeof(tree), "/tmp/phub-discover-XXXXXX");
	return mkdtemp(tree) ? 0 : -1;
}

static int tree_remove_entry(const char *path, const struct stat *status, int type, struct FTW *ftw)
{
	return remove(path);
}

static int tree_teardown(void **state)
{
	return nftw(tree, tree_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Make all folders above `path`, which begins with the tree. */
static void tree_make_parents(char *path)
{
	for (char *at = path + strlen(tree) + 1; (at = strchr(at, '/')) != NULL; at++) {
		*at = '\0';
		assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
		*at = '/';
	}
}

/* Write a file of the tree; its path is made from format. */
__attribute__((format(printf, 2, 3))) static void tree_write(const char *text, const char *format, ...)
{
	char path[512];
	va_list args;
	int used = snprintf(path, sizeof(path), "%s/", tree);

	va_start(args, format);
	vsnprintf(path + used, sizeof(path) - (size_t)used, format, args);
	va_end(args);
	tree_make_parents(path);

	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fputc('\n', file);
	fclose(file);
}

static void tree_link(const char *target, const char *link)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", tree, link);
	tree_make_parents(path);
	assert_int_equal(symlink(target, path), 0);
}

static void tree_write_cache(int cpu, int index, const char *level, const char *type, const char *size)
{
	tree_write(level, "sys/devices/system/cpu/cpu%d/cache/index%d/level", cpu, index);
	tree_write(type, "sys/devices/system/cpu/cpu%d/cache/index%d/type", cpu, index);
	tree_write(size, "sys/devices/system/cpu/cpu%d/cache/index%d/size", cpu, index);
}

static void tree_write_huge(const char *total, const char *free_pages, const char *dir)
{
	tree_write(total, "%s/hugepages-2048kB/nr_hugepages", dir);
	tree_write(free_pages, "%s/hugepages-2048kB/free_hugepages", dir);
}

/* A NIC below a PCI function of `node`; node NULL: the machine does not say. */
static void tree_write_nic(const char *name, const char *state, const char *speed, const char *node)
{
	tree_write(state, "sys/class/net/%s/operstate", name);
	if (speed)
		tree_write(speed, "sys/class/net/%s/speed", name);
	tree_write("0x15b3", "sys/class/net/%s/device/vendor", name);
	if (node)
		tree_write(node, "sys/class/net/%s/device/numa_node", name);
}

/* As found on a virtual machine of 2 CPUs with a virtio NIC and two intermediate functional blocks. */
static void tree_write_virtual_machine(void)
{
	tree_write("0-1", "sys/devices/system/cpu/online");
	tree_write("0", "sys/devices/system/node/online");
	tree_write("0-1", "sys/devices/system/node/node0/cpulist");
	tree_write(
		"Node 0 MemTotal:        6645976 kB\nNode 0 MemFree:         5869316 kB\nNode 0 HugePages_Total:     0",
		"sys/devices/system/node/node0/meminfo");
	tree_write_huge("0", "0", "sys/devices/system/node/node0/hugepages");
	for (int cpu = 0; cpu < 2; cpu++) {
		tree_write(cpu ? "1" : "0", "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
		tree_write_cache(cpu, 0, "1", "Data", "32K");
		tree_write_cache(cpu, 1, "1", "Instruction", "32K");
		tree_write_cache(cpu, 2, "2", "Unified", "1024K");
		tree_write_cache(cpu, 3, "3", "Unified", "36608K");
	}
	tree_write("-1", "sys/devices/pci0000:00/0000:00:03.0/numa_node");
	tree_write("up", "sys/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0/operstate");
	tree_write("-1", "sys/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0/speed");
	tree_link("../../../virtio2", "sys/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0/device");
	tree_link("../../devices/pci0000:00/0000:00:03.0/virtio2/net/eth0", "sys/class/net/eth0");
	tree_write("down", "sys/class/net/ifb0/operstate");
	tree_write("down", "sys/class/net/ifb1/operstate");
	tree_write("unknown", "sys/class/net/lo/operstate");
}

/* Two sockets of 14 cores with two threads each (0-13 28-41, 14-27 42-55) and five NICs: three on node 0, two on 1. */
static void tree_write_rack_box(bool hyper_threads)
{
	static const char *const nic_nodes[] = {"0", "0", "0", "1", "1"};
	char text[32];
	char name[16];

	tree_write(hyper_threads ? "0-55" : "0-27", "sys/devices/system/cpu/online");
	tree_write("0-1", "sys/devices/system/node/online");
	tree_write(hyper_threads ? "0-13,28-41" : "0-13", "sys/devices/system/node/node0/cpulist");
	tree_write(hyper_threads ? "14-27,42-55" : "14-27", "sys/devices/system/node/node1/cpulist");
	tree_write("Node 0 MemTotal:       65842620 kB", "sys/devices/system/node/node0/meminfo");
	tree_write("Node 1 MemTotal:       66057028 kB", "sys/devices/system/node/node1/meminfo");
	tree_write_huge("1024", "1000", "sys/devices/system/node/node0/hugepages");
	tree_write_huge("512", "512", "sys/devices/system/node/node1/hugepages");
	tree_write_huge("1536", "1512", "sys/kernel/mm/hugepages");
	for (int cpu = 0; cpu < (hyper_threads ? 56 : 28); cpu++) {
		snprintf(text, sizeof(text), hyper_threads ? "%d,%d" : "%d", cpu % 28, cpu % 28 + 28);
		tree_write(text, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
		tree_write_cache(cpu, 0, "3", "Unified", "35M");
	}
	for (int i = 0; i < 5; i++) {
		snprintf(name, sizeof(name), "mlx%d", i);
		tree_write_nic(name, "up", "56000", nic_nodes[i]);
	}
	tree_write_nic("eno1", "down", NULL, "0");
	tree_write("up", "sys/class/net/docker0/operstate");
	tree_write("", "sys/class/net/bonding_masters");
}

/* A device of this class at the end of a way below sys/devices; a link speed of NULL: it tells none. */
static void tree_write_pci(const char *way, const char *class, const char *node, const char *speed, const char *width)
{
	const char *address = strrchr(way, '/') + 1;
	char target[300], link[100];

	tree_write(class, "sys/devices/%s/class", way);
	tree_write("0x15b3", "sys/devices/%s/vendor", way);
	tree_write("0x1017", "sys/devices/%s/device", way);
	tree_write(node, "sys/devices/%s/numa_node", way);
	if (speed && width) {
		tree_write(speed, "sys/devices/%s/current_link_speed", way);
		tree_write(width, "sys/devices/%s/current_link_width", way);
	}
	snprintf(target, sizeof(target), "../../../devices/%s", way);
	snprintf(link, sizeof(link), "sys/bus/pci/devices/%s", address);
	tree_link(target, link);
}

/* A NIC of the function at the end of the way. */
static void tree_write_port(const char *way, const char *name, const char *speed, const char *rdma)
{
	char target[300], link[100];

	tree_write("up", "sys/devices/%s/net/%s/operstate", way, name);
	tree_write(speed, "sys/devices/%s/net/%s/speed", way, name);
	snprintf(link, sizeof(link), "sys/devices/%s/net/%s/device", way, name);
	tree_link("../..", link);
	if (rdma)
		tree_write("RoCE", "sys/devices/%s/infiniband/%s/node_type", way, rdma);
	snprintf(target, sizeof(target), "../../devices/%s/net/%s", way, name);
	snprintf(link, sizeof(link), "sys/class/net/%s", name);
	tree_link(target, link);
}

#define GEN3 "8.0 GT/s PCIe"
#define GEN4 "16.0 GT/s PCIe"
#define SWITCH0                    \
	"pci0000:3a/0000:3a:00.0/" \
	"0000:3b:00.0"
#define SWITCH1                    \
	"pci0000:b2/0000:b2:00.0/" \
	"0000:b3:00.0"

/*
 * Two sockets. On the first a switch with a NIC of two ports and a GPU, and below it one more with a GPU; a GPU on a
 * root port of the same complex. On the second a switch, in a slot of half its lanes, with a NIC and a GPU; a board
 * management controller's VGA.
 */
static void tree_write_gpu_box(void)
{
	tree_write_rack_box(false);
	tree_write_pci("pci0000:3a/0000:3a:00.0", "0x060400", "0", GEN4, "16");
	tree_write_pci(SWITCH0, "0x060400", "0", GEN4, "16");
	tree_write_pci(SWITCH0 "/0000:3c:00.0", "0x060400", "0", GEN4, "16");
	tree_write_pci(SWITCH0 "/0000:3c:00.0/0000:3d:00.0", "0x020000", "0", GEN4, "16");
	tree_write_pci(SWITCH0 "/0000:3c:00.0/0000:3d:00.1", "0x020000", "0", GEN4, "16");
	tree_write_port(SWITCH0 "/0000:3c:00.0/0000:3d:00.0", "rail0", "100000", "mlx5_0");
	tree_write_port(SWITCH0 "/0000:3c:00.0/0000:3d:00.1", "rail1", "200000", "mlx5_1");
	tree_write_pci(SWITCH0 "/0000:3c:08.0", "0x060400", "0", GEN4, "16");
	tree_write_pci(SWITCH0 "/0000:3c:08.0/0000:3e:00.0", "0x030200", "0", "2.5 GT/s PCIe", "16");
	tree_write_pci(SWITCH0 "/0000:3c:10.0", "0x060400", "0", GEN4, "16");
	tree_write_pci(SWITCH0 "/0000:3c:10.0/0000:3f:00.0", "0x060400", "0", GEN4, "8");
	tree_write_pci(SWITCH0 "/0000:3c:10.0/0000:3f:00.0/0000:40:00.0", "0x060400", "0", GEN4, "16");
	tree_write_pci(SWITCH0 "/0000:3c:10.0/0000:3f:00.0/0000:40:00.0/0000:41:00.0", "0x120000", "0", GEN4, "16");
	tree_write_pci("pci0000:3a/0000:3a:02.0", "0x060400", "0", GEN4, "16");
	tree_write_pci("pci0000:3a/0000:3a:02.0/0000:50:00.0", "0x030200", "0", GEN4, "16");
	tree_write_pci("pci0000:b2/0000:b2:00.0", "0x060400", "1", GEN3, "8");
	tree_write_pci(SWITCH1, "0x060400", "1", GEN3, "8");
	tree_write_pci(SWITCH1 "/0000:b4:00.0", "0x060400", "1", GEN3, "16");
	tree_write_pci(SWITCH1 "/0000:b4:00.0/0000:b5:00.0", "0x020000", "1", GEN3, "16");
	tree_write_port(SWITCH1 "/0000:b4:00.0/0000:b5:00.0", "rail2", "100000", NULL);
	tree_write_pci(SWITCH1 "/0000:b4:01.0", "0x060400", "1", GEN3, "16");
	tree_write_pci(SWITCH1 "/0000:b4:01.0/0000:b6:00.0", "0x030200", "1", GEN3, "16");
	tree_write_pci("pci0000:00/0000:00:1f.0", "0x030000", "-1", NULL, NULL);
}

static struct host discover_ok(const unsigned char *mask, unsigned mask_bytes)
{
	struct discover_options options = {.root = tree, .cpu_mask = mask, .cpu_mask_bytes = mask_bytes};
	struct host host;
	struct err e = {0};

	if (discover_host(&options, &host, &e) < 0)
		fail_msg("%s", e.text);
	return host;
}

static void test_recorded_virtual_machine(void **state)
{
	tree_write_virtual_machine();
	struct host host = discover_ok(NULL, 0);

	assert_int_equal(host.node_count, 1);
	assert_int_equal(host.cpu_count, 2);
	assert_int_equal(host.nic_count, 3);
	assert_true(host.nodes[0].memory_bytes == UINT64_C(6645976) * 1024);
	assert_true(host.llc_bytes == 36608 * 1024);
	assert_int_equal(host.cpus[1].id, 1);
	assert_int_equal(host.cpus[1].core, 1);
	assert_string_equal(host.nics[0].name, "eth0");
	assert_true(host.nics[0].up && host.nics[0].physical);
	assert_int_equal(host.nics[0].speed_mbit, 0);
	assert_int_equal(host.nics[0].node, -1);
	assert_string_equal(host.nics[2].name, "ifb1");
	assert_true(!host.nics[2].up && !host.nics[2].physical);
	assert_true(host.huge_2m_total == 0);
}

static void test_rack_box(void **state)
{
	tree_write_rack_box(true);
	struct host host = discover_ok(NULL, 0);

	assert_int_equal(host.node_count, 2);
	assert_int_equal(host.cpu_count, 56);
	assert_int_equal(host.nodes[1].id, 1);
	assert_true(host.nodes[1].memory_bytes == UINT64_C(66057028) * 1024);
	assert_true(host.nodes[0].huge_2m_total == 1024 && host.nodes[0].huge_2m_free == 1000);
	assert_true(host.huge_2m_total == 1536 && host.huge_2m_free == 1512);
	assert_true(host.llc_bytes == 35 << 20);
	for (int cpu = 0; cpu < 56; cpu++) {
		assert_int_equal(host.cpus[cpu].id, cpu);
		assert_int_equal(host.cpus[cpu].core, cpu % 28);
		assert_int_equal(host.cpus[cpu].node, cpu % 28 / 14);
	}
	assert_int_equal(host.nic_count, 7);
	assert_string_equal(host.nics[0].name, "docker0");
	assert_true(host.nics[0].up && !host.nics[0].physical);
	assert_string_equal(host.nics[1].name, "eno1");
	assert_true(!host.nics[1].up && host.nics[1].speed_mbit == 0);
	assert_string_equal(host.nics[6].name, "mlx4");
	assert_int_equal(host.nics[6].node, 1);
	assert_int_equal(host.nics[6].speed_mbit, 56000);
}

static void test_pick_on_the_rack_box(void **state)
{
	struct placement_core cores[29];
	struct err e = {0};

	tree_write_rack_box(false);
	struct host host = discover_ok(NULL, 0);

	/* Five cores: as many on each node as it has NICs, the lowest of each, a NIC each. */
	const int cpus[5] = {0, 1, 2, 14, 15};
	assert_int_equal(topology_pick_cores(&host, NULL, 0, 5, cores, &e), 0);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(cores[i].cpu, cpus[i]);
		assert_int_equal(cores[i].nic, 2 + i);
		assert_int_equal(host.nics[cores[i].nic].node, cores[i].node);
		assert_true(cores[i].bytes == 0);
	}
	assert_int_equal(topology_pick_cores(&host, NULL, 0, 28, cores, &e), 0);
	for (int i = 0; i < 28; i++) {
		assert_int_equal(cores[i].cpu, i);
		assert_int_equal(host.nics[cores[i].nic].node, cores[i].node);
	}
	assert_int_equal(topology_pick_cores(&host, NULL, 0, 29, cores, &e), -EINVAL);
	assert_non_null(strstr(e.text, "1 to 28"));
}

static void test_pick_prefers_the_node_and_whole_cores(void **state)
{
	struct placement_core cores[56];
	struct err e = {0};
	const unsigned nics[1] = {5}; /* mlx3, on node 1 */

	tree_write_rack_box(true);
	struct host host = discover_ok(NULL, 0);

	assert_int_equal(topology_pick_cores(&host, nics, 1, 14, cores, &e), 0);
	for (int i = 0; i < 14; i++) {
		assert_int_equal(cores[i].cpu, 14 + i);
		assert_int_equal(cores[i].nic, 5);
	}
	/* Then the other node's cores, then the second threads near the NIC. */
	assert_int_equal(topology_pick_cores(&host, nics, 1, 30, cores, &e), 0);
	for (int i = 0; i < 28; i++)
		assert_int_equal(cores[i].cpu, i);
	assert_int_equal(cores[28].cpu, 42);
	assert_int_equal(cores[29].cpu, 43);
	assert_int_equal(topology_pick_cores(&host, nics, 1, 56, cores, &e), 0);
	assert_int_equal(cores[55].cpu, 55);
}

static void test_pick_within_a_mask(void **state)
{
	/* 2, 30 (the second thread of 2), 31 (the first allowed one of core 3), 14 */
	unsigned char mask[8] = {1u << 2, 1u << 6, 0, 1u << 6 | 1u << 7};
	struct placement_core cores[4];
	struct err e = {0};

	tree_write_rack_box(true);
	struct host host = discover_ok(mask, sizeof(mask));

	assert_int_equal(host.cpu_count, 4);
	assert_int_equal(topology_pick_cores(&host, NULL, 0, 3, cores, &e), 0);
	assert_int_equal(cores[0].cpu, 2);
	assert_int_equal(cores[1].cpu, 14);
	assert_int_equal(cores[2].cpu, 31);
}

static void test_pick_without_nics(void **state)
{
	struct host host = {.node_count = 2, .cpu_count = 4, .nodes = {{.id = 0}, {.id = 1}}};
	struct placement_core cores[4];
	struct err e = {0};

	for (int i = 0; i < 4; i++)
		host.cpus[i] = (struct host_cpu){.id = i, .core = i, .node = i / 2};
	assert_int_equal(topology_pick_cores(&host, NULL, 0, 2, cores, &e), 0);
	assert_int_equal(cores[0].cpu, 0);
	assert_int_equal(cores[1].cpu, 2);
	assert_int_equal(cores[0].nic, PLACEMENT_NIC_NONE);

	/* A NIC of an unknown node is near all of them. */
	host.nic_count = 1;
	host.nics[0] = (struct host_nic){.name = "eth0", .node = -1, .up = true, .physical = true};
	assert_int_equal(topology_pick_cores(&host, NULL, 0, 2, cores, &e), 0);
	assert_int_equal(cores[1].cpu, 2);
	assert_int_equal(cores[1].nic, 0);
}

/* A NIC of a quarter of the other's rate, on a node of its own, gets a quarter of the cores; one that does not say
 * counts as the slowest. */
static void test_pick_by_rate(void **state)
{
	struct host host = {.node_count = 2, .cpu_count = 16, .nic_count = 3, .nodes = {{.id = 0}, {.id = 1}}};
	struct placement_core cores[5];
	struct err e = {0};
	unsigned per_nic[3] = {0};

	for (int i = 0; i < 16; i++)
		host.cpus[i] = (struct host_cpu){.id = i, .core = i, .node = i / 8};
	host.nics[0] = (struct host_nic){.name = "a", .node = 0, .up = true, .physical = true, .speed_mbit = 100000};
	host.nics[1] = (struct host_nic){.name = "b", .node = 1, .up = true, .physical = true, .speed_mbit = 25000};
	host.nics[2] = (struct host_nic){.name = "c", .node = 1, .up = false, .physical = true};
	assert_int_equal(topology_pick_cores(&host, NULL, 0, 5, cores, &e), 0);
	for (int i = 0; i < 5; i++)
		per_nic[cores[i].nic]++;
	assert_int_equal(per_nic[0], 4);
	assert_int_equal(per_nic[1], 1);
	host.nics[1].speed_mbit = 0;
	host.nics[2] = (struct host_nic){.name = "c", .node = 1, .up = true, .physical = true, .speed_mbit = 25000};
	memset(per_nic, 0, sizeof(per_nic));
	assert_int_equal(topology_pick_cores(&host, NULL, 0, 5, cores, &e), 0);
	for (int i = 0; i < 5; i++)
		per_nic[cores[i].nic]++;
	assert_true(per_nic[0] >= 3 && per_nic[1] == 1);
}

static void test_pick_errors(void **state)
{
	struct host host = {.node_count = 1, .cpu_count = 1, .nic_count = 1};
	struct placement_core core = {.cpu = 77};
	unsigned nics[HOST_NIC_COUNT_MAX + 1] = {1};
	struct err e = {0};

	assert_int_equal(topology_pick_cores(&host, NULL, 0, 0, &core, &e), -EINVAL);
	assert_int_equal(topology_pick_cores(&host, NULL, 0, 2, &core, &e), -EINVAL);
	assert_int_equal(topology_pick_cores(&host, nics, 1, 1, &core, &e), -EINVAL);
	assert_non_null(strstr(e.text, "NIC 1 does not exist"));
	assert_int_equal(topology_pick_cores(&host, nics, HOST_NIC_COUNT_MAX + 1, 1, &core, &e), -EINVAL);
	assert_int_equal(core.cpu, 77);
}

static void test_without_numa(void **state)
{
	tree_write("0,2-3", "sys/devices/system/cpu/online");
	tree_write("MemTotal:        1000 kB\nMemFree: 1 kB", "proc/meminfo");
	tree_write_huge("7", "5", "sys/kernel/mm/hugepages");
	struct host host = discover_ok(NULL, 0);

	assert_int_equal(host.node_count, 1);
	assert_int_equal(host.nodes[0].id, 0);
	assert_true(host.nodes[0].memory_bytes == 1000 * 1024);
	assert_true(host.nodes[0].huge_2m_total == 7 && host.nodes[0].huge_2m_free == 5);
	assert_int_equal(host.cpu_count, 3);
	assert_int_equal(host.cpus[1].id, 2);
	assert_int_equal(host.cpus[1].core, 2);
	assert_int_equal(host.cpus[1].node, 0);
	assert_int_equal(host.nic_count, 0);
	assert_true(host.llc_bytes == 0);
}

static void test_virtio_takes_the_node_of_its_function(void **state)
{
	tree_write_virtual_machine();
	tree_write("0", "sys/devices/pci0000:00/0000:00:03.0/numa_node");
	assert_int_equal(discover_ok(NULL, 0).nics[0].node, 0);
}

static const struct host_nic *nic_named(const struct host *host, const char *name)
{
	for (unsigned i = 0; i < host->nic_count; i++)
		if (strcmp(host->nics[i].name, name) == 0)
			return &host->nics[i];
	fail_msg("no NIC %s", name);
	return NULL;
}

static enum host_near near_of(const struct host *host, const char *nic, unsigned gpu)
{
	const struct host_nic *n = nic_named(host, nic);

	return host_near(host, &n->pci, n->node, &host->gpus[gpu].pci, host->gpus[gpu].node);
}

static void test_gpus_and_switches(void **state)
{
	tree_write_gpu_box();
	struct host host = discover_ok(NULL, 0);
	const struct host_nic *rail0 = nic_named(&host, "rail0");

	assert_int_equal(host.gpu_count, 5);
	assert_string_equal(host.gpus[0].pci.address, "0000:00:1f.0");
	assert_int_equal(host.gpus[0].class, 0x0300);
	assert_int_equal(host.gpus[0].node, -1);
	assert_int_equal(host.gpus[0].pci.path_mbit, 0);
	assert_string_equal(host.gpus[2].pci.address, "0000:41:00.0");
	assert_int_equal(host.gpus[2].class, 0x1200);
	assert_int_equal(host.gpus[2].vendor, 0x15b3);
	assert_int_equal(host.gpus[2].device, 0x1017);
	/* Its own link has 16 lanes, the switch that it hangs from 8. */
	assert_int_equal(host.gpus[2].pci.link_mbit, 252061);
	assert_int_equal(host.gpus[2].pci.path_mbit, 126030);
	assert_string_equal(host.gpus[2].pci.narrow, "0000:3f:00.0");

	assert_int_equal(host.switch_count, 3);
	assert_string_equal(host.switches[rail0->pci.above].address, "0000:3b:00.0");
	assert_int_equal(host.switches[rail0->pci.above].above, HOST_NONE);
	assert_int_equal(host.switches[host.gpus[2].pci.above].above, rail0->pci.above);
	assert_int_equal(host.gpus[3].pci.above, HOST_NONE);
	assert_string_equal(rail0->rdma, "mlx5_0");
	assert_string_equal(rail0->pci.root, "0000:3a");
	assert_int_equal(rail0->node, 0);

	assert_int_equal(near_of(&host, "rail0", 0), HOST_NEAR_UNKNOWN);
	assert_int_equal(near_of(&host, "rail0", 1), HOST_NEAR_SWITCH);
	assert_int_equal(near_of(&host, "rail1", 2), HOST_NEAR_SWITCH);
	assert_int_equal(near_of(&host, "rail0", 3), HOST_NEAR_ROOT);
	assert_int_equal(near_of(&host, "rail0", 4), HOST_NEAR_FAR);
	assert_int_equal(near_of(&host, "rail2", 4), HOST_NEAR_SWITCH);
	assert_int_equal(near_of(&host, "mlx3", 4), HOST_NEAR_NODE);
}

/* A card of two ports whose slot carries one, and one whose switch has half its lanes. */
static void test_slots_slower_than_ports(void **state)
{
	tree_write_gpu_box();
	struct host host = discover_ok(NULL, 0);
	unsigned rail0 = (unsigned)(nic_named(&host, "rail0") - host.nics), rail2 = rail0 + 2;

	assert_int_equal(host.nics[rail0].pci.path_mbit, 252061);
	assert_int_equal(host_nic_excess(&host, rail0), 300000);
	host.nics[rail0 + 1].up = false;
	assert_int_equal(host_nic_excess(&host, rail0), 0);
	assert_int_equal(host.nics[rail2].pci.link_mbit, 126030);
	assert_int_equal(host.nics[rail2].pci.path_mbit, 63015);
	assert_string_equal(host.nics[rail2].pci.narrow, "0000:b3:00.0");
	assert_int_equal(host_nic_excess(&host, rail2), 100000);
	assert_int_equal(host_nic_excess(&host, 2), 0); /* mlx0: not on PCI, as far as is told */
}

static void test_without_pci(void **state)
{
	tree_write_rack_box(false);
	struct host host = discover_ok(NULL, 0);

	assert_int_equal(host.gpu_count, 0);
	assert_int_equal(host.switch_count, 0);
	for (unsigned i = 0; i < host.nic_count; i++) {
		assert_string_equal(host.nics[i].pci.address, "");
		assert_int_equal(host.nics[i].pci.above, HOST_NONE);
	}
}

static void test_hostile_pci(void **state)
{
	char deep[1024] = "pci0000:00";

	tree_write_rack_box(false);
	tree_write("here", "sys/devices/pci0000:00/here");
	/* A link in a circle, one out of the tree, one to nowhere, and names that are no addresses. */
	tree_link("0000:01:00.0", "sys/bus/pci/devices/0000:01:00.0");
	tree_link("/usr", "sys/bus/pci/devices/0000:02:00.0");
	tree_link("../../../devices/pci0000:00/0000:03:00.0", "sys/bus/pci/devices/0000:03:00.0");
	tree_write("0x030000", "sys/bus/pci/devices/0000:04:00.8/class");
	tree_write("0x030000", "sys/bus/pci/devices/0000:04:00.0x/class");
	tree_write("0x030000", "sys/bus/pci/devices/00000000000000000000:04:00.0/class");
	/* Numbers of any size, and a class that is a folder. */
	tree_write_pci("pci0000:00/0000:05:00.0", "0x030000", "99999999999999999999", "1e300 GT/s PCIe", "16");
	tree_write_pci("pci0000:00/0000:06:00.0", "0x030000", "-7", GEN3, "4294967295");
	tree_write_pci("pci0000:00/0000:07:00.0", "0xffffffffffffffff03", "0", "nan GT/s", "16");
	tree_write_pci("pci0000:00/0000:08:00.0", "0x030000", "0", "Unknown", "0");
	tree_write("0", "sys/bus/pci/devices/0000:09:00.0/class/numa_node");
	/* Without a way in sys/devices, as where /sys is not what we know. */
	tree_write("0x030200", "sys/bus/pci/devices/0000:0a:00.0/class");
	/* Deeper than any machine. */
	for (int i = 0; i < 20; i++)
		snprintf(deep + strlen(deep), sizeof(deep) - strlen(deep), "/0000:1%x:%02x.0", i % 16, i % 16);
	tree_write_pci(deep, "0x030200", "0", GEN3, "16");
	/* A NIC whose device is a circle, and one whose device leads out. */
	tree_write("up", "sys/class/net/loop0/operstate");
	tree_link("device", "sys/class/net/loop0/device");
	tree_write("up", "sys/class/net/out0/operstate");
	tree_link("/sys/devices", "sys/class/net/out0/device");
	struct host host = discover_ok(NULL, 0);

	assert_int_equal(host.gpu_count, 5);
	for (unsigned i = 0; i < host.gpu_count; i++) {
		assert_int_equal(host.gpus[i].pci.link_mbit, i == 4 ? 126030 : 0);
		assert_int_equal(host.gpus[i].pci.above, HOST_NONE);
		assert_true(host.gpus[i].node == (i == 2 || i == 4 ? 0 : -1));
	}
	assert_string_equal(host.gpus[2].pci.address, "0000:08:00.0");
	assert_string_equal(host.gpus[3].pci.address, "0000:0a:00.0");
	assert_string_equal(host.gpus[3].pci.root, "");
	assert_int_equal(host.switch_count, 0);
	assert_string_equal(nic_named(&host, "loop0")->pci.address, "");
	assert_string_equal(nic_named(&host, "out0")->pci.address, "");
}

static void test_pci_bounds(void **state)
{
	char way[200];

	tree_write_rack_box(false);
	for (unsigned i = 0; i < HOST_GPU_COUNT_MAX + 6; i++) {
		tree_write("0x060400", "sys/bus/pci/devices/0001:%02x:00.0/class", i);
		snprintf(way, sizeof(way), "pci0000:00/0000:00:00.0/0001:%02x:00.0/0002:%02x:00.0/0003:%02x:00.0", i, i,
			i);
		tree_write_pci(way, "0x030200", "0", GEN3, "16");
	}
	struct host host = discover_ok(NULL, 0);

	assert_int_equal(host.gpu_count, HOST_GPU_COUNT_MAX);
	assert_int_equal(host.switch_count, HOST_SWITCH_MAX);
	assert_string_equal(host.gpus[HOST_GPU_COUNT_MAX - 1].pci.address, "0003:3f:00.0");
}

static void test_odd_files(void **state)
{
	tree_write("0-1,3-2,banana", "sys/devices/system/cpu/online");
	tree_write("0,banana", "sys/devices/system/node/online");
	tree_write("99999999999999999999", "sys/devices/system/node/node0/cpulist");
	tree_write("no numbers", "sys/devices/system/node/node0/meminfo");
	tree_write_huge("-3", "many", "sys/devices/system/node/node0/hugepages");
	tree_write("", "sys/devices/system/cpu/cpu0/topology/thread_siblings_list");
	tree_write_cache(0, 0, "three", "Unified", "8M");
	tree_write_cache(1, 0, "1", "Data", "huge");
	tree_write_nic("eth0", "unknown", "99999999999999999999", "many");
	tree_write("1", "sys/class/net/eth0/carrier");
	tree_write_nic("a-name-of-more-than-thirty-one-characters", "up", NULL, NULL);
	struct host host = discover_ok(NULL, 0);

	assert_int_equal(host.cpu_count, 2);
	assert_int_equal(host.node_count, 1);
	assert_true(host.nodes[0].memory_bytes == 0 && host.nodes[0].huge_2m_total == 0);
	assert_int_equal(host.cpus[0].core, 0);
	assert_true(host.llc_bytes == 0);
	assert_int_equal(host.nic_count, 1);
	assert_true(host.nics[0].up);
	assert_int_equal(host.nics[0].speed_mbit, 0);
	assert_int_equal(host.nics[0].node, -1);
}

static void test_bounds(void **state)
{
	tree_write("0-5000", "sys/devices/system/cpu/online");
	tree_write("0-100", "sys/devices/system/node/online");
	for (int i = 0; i < (int)HOST_NIC_COUNT_MAX + 6; i++) {
		char name[16];

		snprintf(name, sizeof(name), "n%03d", i);
		tree_write_nic(name, "up", "1000", NULL);
	}
	struct host host = discover_ok(NULL, 0);

	assert_int_equal(host.cpu_count, HOST_CPU_COUNT_MAX);
	assert_int_equal(host.node_count, HOST_NODE_COUNT_MAX);
	assert_int_equal(host.nic_count, HOST_NIC_COUNT_MAX);
	assert_string_equal(host.nics[HOST_NIC_COUNT_MAX - 1].name, "n063");
}

static void test_no_cpu(void **state)
{
	const unsigned char mask[1] = {1u << 3};
	struct discover_options options = {.root = tree};
	struct host host = {.cpu_count = 77};
	struct err e = {0};

	/* An empty tree, then one whose CPUs are not those allowed. */
	assert_int_equal(discover_host(&options, &host, &e), -ENOENT);
	tree_write("0-1", "sys/devices/system/cpu/online");
	options.cpu_mask = mask;
	options.cpu_mask_bytes = sizeof(mask);
	assert_int_equal(discover_host(&options, &host, &e), -ENOENT);
	assert_non_null(strstr(e.text, "online and allowed"));
	assert_int_equal(host.cpu_count, 77);
}

static void test_mask_without_sysfs(void **state)
{
	const unsigned char mask[1] = {1u << 3 | 1u << 5};
	struct host host = discover_ok(mask, sizeof(mask));

	assert_int_equal(host.cpu_count, 2);
	assert_int_equal(host.cpus[1].id, 5);
}

static void test_this_machine(void **state)
{
	static struct host host;
	struct placement_core cores[HOST_CPU_COUNT_MAX];
	struct err e = {0};

	assert_int_equal(discover_host(NULL, &host, &e), 0);
	assert_true(host.cpu_count >= 1 && host.node_count >= 1);
	assert_int_equal(topology_pick_cores(&host, NULL, 0, host.cpu_count, cores, &e), 0);
	for (unsigned i = 1; i < host.cpu_count; i++)
		assert_true(cores[i].cpu > cores[i - 1].cpu);
}

#define TREE_TEST(test) cmocka_unit_test_setup_teardown(test, tree_setup, tree_teardown)

TEST_PROGRAM(test_discover)
{
	const struct CMUnitTest tests[] = {
		TREE_TEST(test_recorded_virtual_machine),
		TREE_TEST(test_rack_box),
		TREE_TEST(test_pick_on_the_rack_box),
		TREE_TEST(test_pick_prefers_the_node_and_whole_cores),
		TREE_TEST(test_pick_within_a_mask),
		cmocka_unit_test(test_pick_without_nics),
		cmocka_unit_test(test_pick_by_rate),
		cmocka_unit_test(test_pick_errors),
		TREE_TEST(test_without_numa),
		TREE_TEST(test_virtio_takes_the_node_of_its_function),
		TREE_TEST(test_gpus_and_switches),
		TREE_TEST(test_slots_slower_than_ports),
		TREE_TEST(test_without_pci),
		TREE_TEST(test_hostile_pci),
		TREE_TEST(test_pci_bounds),
		TREE_TEST(test_odd_files),
		TREE_TEST(test_bounds),
		TREE_TEST(test_no_cpu),
		TREE_TEST(test_mask_without_sysfs),
		cmocka_unit_test(test_this_machine),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
