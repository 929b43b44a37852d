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

	(void)state;
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

	(void)state;
	assert_int_equal(cpu_list_parse("0-4095", &list, &e), 0);
	assert_int_equal(list.count, CPU_COUNT_MAX);
	assert_int_equal(list.cpu[CPU_COUNT_MAX - 1], CPU_COUNT_MAX - 1);
}

static void test_parse_errors(void **state)
{
	static const char *const bad[] = {"", ",", "1,", ",1", "a", "1-", "-1", "3-1", "1 ", "1-2-3", "0x1", "4096",
		"0-4096", "99999999999999999999", "1,,2", "1;2"};
	struct err e;

	(void)state;
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

	(void)state;
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
	(void)state;
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

	(void)state;
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parse),
		cmocka_unit_test(test_parse_fills_the_list),
		cmocka_unit_test(test_parse_errors),
		cmocka_unit_test(test_pin),
		cmocka_unit_test(test_pin_errors),
		cmocka_unit_test(test_node),
	};

	return cmocka_run_group_tests_name("cpu", tests, NULL, NULL);
}
