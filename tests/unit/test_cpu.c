/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/base/cpu.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/cmocka_shim.h"

static struct cpu_list list;

static void test_parse(void **state)
{
	static const int wanted[] = {8, 0, 1, 2, 3, 11};
	struct err e;

	assert_int_equal(cpu_list_parse("8,0-3,11", &list, &e), 0);
	assert_int_equal(list.count, 6);
	assert_memory_equal(list.cpu, wanted, sizeof(wanted));
	assert_int_equal(cpu_list_parse("5-5", &list, &e), 0);
	assert_int_equal(list.count, 1);
	assert_int_equal(list.cpu[0], 5);
}

static void test_parse_fills_the_list(void **state)
{
	struct err e;

	assert_int_equal(cpu_list_parse("0-4095", &list, &e), 0);
	assert_int_equal(list.count, CPU_COUNT_MAX);
	assert_int_equal(list.cpu[CPU_COUNT_MAX - 1], CPU_COUNT_MAX - 1);
}

static void test_parse_errors(void **state)
{
	static const char *const bad[] = {"", ",", "1,", ",1", "a", "1-", "-1", "3-1", "1 ", "1-2-3", "0x1", "4096",
		"0-4096", "99999999999999999999", "1,,2", "1;2"};
	struct err e;

	list.count = 77;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		if (cpu_list_parse(bad[i], &list, &e) != -EINVAL)
			fail_msg("\"%s\" was accepted", bad[i]);
		assert_int_equal(list.count, 77);
	}
	assert_int_equal(cpu_list_parse("4,0-2,x", &list, &e), -EINVAL);
	assert_non_null(strstr(e.text, "at \"x\""));
	assert_int_equal(cpu_list_parse("0-3,2", &list, &e), -EINVAL);
	assert_non_null(strstr(e.text, "CPU 2 is named twice"));
}

static void *pin_to_each(void *ctx)
{
	int *where = ctx;

	for (unsigned i = 0; i < list.count; i++) {
		if (cpu_pin_self(list.cpu[i]) == 0)
			where[i] = sched_getcpu();
	}
	return NULL;
}

static void test_pin(void **state)
{
	static int where[CPU_COUNT_MAX];
	pthread_t thread;

	assert_int_equal(cpu_list_allowed(&list), 0);
	assert_true(list.count >= 1);
	memset(where, 0xff, sizeof(where));
	assert_int_equal(pthread_create(&thread, NULL, pin_to_each, where), 0);
	pthread_join(thread, NULL);
	assert_memory_equal(where, list.cpu, list.count * sizeof(where[0]));

	struct cpu_list *now = malloc(sizeof(*now));
	assert_non_null(now);
	assert_int_equal(cpu_list_allowed(now), 0);
	assert_int_equal(now->count, list.count); /* pinning one thread moved no other */
	free(now);
}

static void test_pin_errors(void **state)
{
	assert_int_equal(cpu_pin_self(-1), -EINVAL);
	assert_int_equal(cpu_pin_self(CPU_COUNT_MAX), -EINVAL);
	assert_int_equal(cpu_pin_self(CPU_COUNT_MAX - 1), -EINVAL);
}

static void make_folder(const char *root, const char *path)
{
	char whole[PATH_MAX];

	assert_true(snprintf(whole, sizeof(whole), "%s%s", root, path) < (int)sizeof(whole));
	for (char *slash = strchr(whole + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(whole, 0755);
		*slash = '/';
	}
	assert_int_equal(mkdir(whole, 0755), 0);
}

static void remove_folder(const char *root, const char *path)
{
	char whole[PATH_MAX];

	assert_true(snprintf(whole, sizeof(whole), "%s%s", root, path) < (int)sizeof(whole));
	while (strlen(whole) >= strlen(root) && rmdir(whole) == 0)
		*strrchr(whole, '/') = '\0';
}

static void test_node(void **state)
{
	static const char *const folders[] = {"/devices/system/cpu/cpu0/node0", "/devices/system/cpu/cpu14/node1",
		"/devices/system/cpu/cpu14/cache", "/devices/system/cpu/cpu15/node-1",
		"/devices/system/cpu/cpu15/node2x", "/devices/system/cpu/cpu15/nodes"};
	char root[] = "/tmp/phub-test-cpu-XXXXXX";

	assert_non_null(mkdtemp(root));
	for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
		make_folder(root, folders[i]);
	assert_int_equal(cpu_node(root, 0), 0);
	assert_int_equal(cpu_node(root, 14), 1);
	assert_int_equal(cpu_node(root, 15), -ENOENT);
	assert_int_equal(cpu_node(root, 1), -ENOENT);
	for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
		remove_folder(root, folders[i]);
	assert_int_not_equal(access(root, F_OK), 0);
	assert_int_equal(cpu_node(NULL, CPU_COUNT_MAX), -ENOENT);
}

static void write_file(const char *root, const char *path, const char *text)
{
	char whole[PATH_MAX];
	FILE *f;

	assert_true(snprintf(whole, sizeof(whole), "%s%s", root, path) < (int)sizeof(whole));
	f = fopen(whole, "w");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static void remove_file(const char *root, const char *path)
{
	char whole[PATH_MAX];

	assert_true(snprintf(whole, sizeof(whole), "%s%s", root, path) < (int)sizeof(whole));
	assert_int_equal(unlink(whole), 0);
}

/* Three nodes with a gap in their numbers; what is missing or odd is not known. */
static void test_node_distance(void **state)
{
	char root[] = "/tmp/phub-test-cpu-XXXXXX";

	assert_non_null(mkdtemp(root));
	make_folder(root, "/devices/system/node/node0");
	make_folder(root, "/devices/system/node/node2");
	assert_int_equal(cpu_node_distance(root, 0, 2), -ENOENT);
	write_file(root, "/devices/system/node/online", "0,2-3\n");
	assert_int_equal(cpu_node_distance(root, 0, 2), -ENOENT);
	write_file(root, "/devices/system/node/node0/distance", "10 21 31\n");
	write_file(root, "/devices/system/node/node2/distance", "21 10 x\n");
	assert_int_equal(cpu_node_distance(root, 0, 0), 10);
	assert_int_equal(cpu_node_distance(root, 0, 2), 21);
	assert_int_equal(cpu_node_distance(root, 0, 3), 31);
	assert_int_equal(cpu_node_distance(root, 0, 1), -ENOENT);
	assert_int_equal(cpu_node_distance(root, 0, -1), -ENOENT);
	assert_int_equal(cpu_node_distance(root, 2, 2), 10);
	assert_int_equal(cpu_node_distance(root, 2, 3), -ENOENT);
	assert_int_equal(cpu_node_distance(root, 3, 0), -ENOENT);
	assert_int_equal(cpu_node_distance(root, -1, 0), -ENOENT);
	remove_file(root, "/devices/system/node/node0/distance");
	remove_file(root, "/devices/system/node/node2/distance");
	remove_file(root, "/devices/system/node/online");
	remove_folder(root, "/devices/system/node/node2");
	remove_folder(root, "/devices/system/node/node0");
	assert_int_not_equal(access(root, F_OK), 0);
}

/* All CPUs of this process on one node, then one of them elsewhere. */
static void test_node_allowed(void **state)
{
	char root[] = "/tmp/phub-test-cpu-XXXXXX", folder[64];

	assert_int_equal(cpu_list_allowed(&list), 0);
	assert_non_null(mkdtemp(root));
	assert_int_equal(cpu_node_allowed(root), -ENOENT);
	for (unsigned i = 0; i < list.count; i++) {
		snprintf(folder, sizeof(folder), "/devices/system/cpu/cpu%d/node3", list.cpu[i]);
		make_folder(root, folder);
	}
	assert_int_equal(cpu_node_allowed(root), 3);
	snprintf(folder, sizeof(folder), "/devices/system/cpu/cpu%d/node3", list.cpu[list.count - 1]);
	remove_folder(root, folder);
	assert_int_equal(cpu_node_allowed(root), -ENOENT);
	if (list.count > 1) {
		snprintf(folder, sizeof(folder), "/devices/system/cpu/cpu%d/node4", list.cpu[list.count - 1]);
		make_folder(root, folder);
		assert_int_equal(cpu_node_allowed(root), -ENOENT);
		remove_folder(root, folder);
	}
	for (unsigned i = 0; i + 1 < list.count; i++) {
		snprintf(folder, sizeof(folder), "/devices/system/cpu/cpu%d/node3", list.cpu[i]);
		remove_folder(root, folder);
	}
	assert_int_not_equal(access(root, F_OK), 0);
}

TEST_PROGRAM(test_cpu)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parse),
		cmocka_unit_test(test_parse_fills_the_list),
		cmocka_unit_test(test_parse_errors),
		cmocka_unit_test(test_pin),
		cmocka_unit_test(test_pin_errors),
		cmocka_unit_test(test_node),
		cmocka_unit_test(test_node_distance),
		cmocka_unit_test(test_node_allowed),
	};

	return cmocka_run_group_tests_name("cpu", tests, NULL, NULL);
}
