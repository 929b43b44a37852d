/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process may still do after it gave up the rest, as the kernel tells, each time in a child. As root.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/capability.h>

#include "phub/control/privilege.h"
#include "tests/unit/cmocka_shim.h"

#define BIT(capability) (1ull << (capability))

static uint64_t status_of(const char *name)
{
	FILE *f = fopen("/proc/self/status", "re");
	uint64_t value = UINT64_MAX;
	char line[256];

	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, name, strlen(name)) == 0)
			value = strtoull(line + strlen(name) + 1, NULL, 16);
	if (f)
		fclose(f);
	return value;
}

/* 0, or which of the checks failed. */
static int child(const char *user, const char *transport, const char *uplink, uint64_t kept, const char *words)
{
	struct config config;
	char text[512];
	struct err e;

	config_init(&config);
	snprintf(config.user, sizeof(config.user), "%s", user);
	snprintf(config.transports[0], sizeof(config.transports[0]), "%s", transport);
	config.transport_count = 1;
	if (uplink) {
		snprintf(config.uplink, sizeof(config.uplink), "10.0.0.1:7077");
		config.uplink_transport = strcmp(uplink, "verbs") == 0 ? CONFIG_UPLINK_VERBS : CONFIG_UPLINK_UDP;
	}
	if (privilege_drop(&config, text, sizeof(text), &e) < 0)
		return 1;
	if (!strstr(text, words))
		return 2;
	if (kept != UINT64_MAX && (status_of("CapEff:") != kept || status_of("CapPrm:") != kept))
		return 3;
	if (status_of("NoNewPrivs:") != 1)
		return 4;
	if (user[0] && (setuid(0) == 0 || status_of("CapBnd:") != 0))
		return 5;
	return 0;
}

static void try_child(const char *user, const char *transport, const char *uplink, uint64_t kept, const char *words)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(child(user, transport, uplink, kept, words));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void test_kept(void **state)
{
	if (geteuid() != 0)
		skip_because("needs root");
	try_child("nobody", "tcp", NULL, 0, "user nobody");
	try_child("nobody", "udp", NULL, 0, "no capabilities");
	try_child("nobody", "verbs", NULL, BIT(CAP_IPC_LOCK), "ipc_lock");
	try_child("nobody", "dpdk", NULL, BIT(CAP_IPC_LOCK) | BIT(CAP_NET_RAW) | BIT(CAP_NET_ADMIN), "net_raw");
	try_child("", "tcp", NULL, UINT64_MAX, "all that root may");
	/* By which workers come, and by which other boxes are reached. */
	try_child("nobody", "tcp", "udp", 0, "no capabilities");
	try_child("nobody", "tcp", "verbs", BIT(CAP_IPC_LOCK), "ipc_lock");
}

TEST_PROGRAM(test_privilege)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_kept)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
