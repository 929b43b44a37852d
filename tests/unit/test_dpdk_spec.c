/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ports of DPDK are named, and what they need: dpdk_spec.c, which every build has.
 */
#include <errno.h>
#include <linux/capability.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/cmocka_shim.h"
#include "transport/dpdk.h"

static void test_spec(void **state)
{
	static const char *const wrong[] = {"", "@10.0.0.1/24", "net_x@10.0.0.1", "net_x@10.0.0.1/33",
		"net_x@10.0.0.1/0", "net_x@10.0.0/24", "net_x@224.0.0.1/24",
		"net_x@10.0.0.1/24,gw=", "net_x@gw=10.0.0.1", "net_x@mac=01:02", "net_x@mac=01:00:00:00:00:01",
		"net_x@mac=02:00:00:00:00:01x", "net_x@mtu=9x", "net_x@mtu=100", "net_x@port=0", "net_x@port=65536",
		"net_x@port=-1", "net_x@what", "net_a@10.0.0.1/24 net_b@10.0.0.2/24", "net_a net_b", "net_a;net_b"};
	struct dpdk_spec s;
	struct err e;

	assert_int_equal(dpdk_spec_parse("net_memif0,role=server", &s, &e), 0);
	assert_string_equal(s.device, "net_memif0,role=server");
	assert_int_equal(s.ip, 0);
	assert_int_equal(
		dpdk_spec_parse(
			"0000:3b:00.0@10.1.2.3/20,gw=10.1.0.1,mac=02:00:00:00:00:0f,mtu=9000,port=7200", &s, &e),
		0);
	assert_string_equal(s.device, "0000:3b:00.0");
	assert_int_equal(s.ip, 0x0a010203);
	assert_int_equal(s.prefix, 20);
	assert_int_equal(s.gateway, 0x0a010001);
	assert_int_equal(s.mac[5], 15);
	assert_int_equal(s.mtu, 9000);
	assert_int_equal(s.port, 7200);
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		if (dpdk_spec_parse(wrong[i], &s, &e) != -EINVAL)
			fail_msg("\"%s\" was taken", wrong[i]);
}

/* Well-formed, and nothing that could work: refused, with what is wrong. */
static void test_impossible(void **state)
{
	static const struct {
		const char *text, *why;
	} wrong[] = {
		{"net_x@127.0.0.1/8", "never leaves"},
		{"net_x@0.1.2.3/8", "none of ADDRESS"},
		{"net_x@10.0.0.0/24", "address of its network"},
		{"net_x@10.0.0.255/24", "of all hosts in it"},
		{"net_x@10.0.1.255/23", "of all hosts in it"},
		{"net_x@10.0.0.1/24,10.0.1.1/24", "\"10.0.1.1/24\" is its second address"},
		{"net_x@10.0.0.1/24,gw=10.0.0.1", "its gateway is itself"},
		{"net_x@10.0.0.1/24,gw=10.0.1.1", "no host of its network"},
		{"net_x@10.0.0.1/24,gw=10.0.0.255", "no host of its network"},
		{"net_a@10.0.0.1/24;net_b@10.0.0.1/24", "have one address"},
		{"net_a@10.0.0.1/24;net_c;net_b@10.0.0.2/24", "in a network of its own"},
		{"net_a@10.0.0.1/24;net_b@10.0.3.2/16", "in a network of its own"},
	};
	static const char *const good[] = {"net_x@10.0.0.255/23", "net_x@10.0.0.0/31", "net_x@10.0.0.1/32",
		"net_x@10.0.0.1/24,gw=10.0.0.254", "net_a@10.0.0.1/25;net_b@10.0.0.129/25"};
	struct dpdk_spec s[DPDK_PORTS_MAX];
	struct err e;

	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		if (dpdk_specs_parse(wrong[i].text, s, &e) != -EINVAL)
			fail_msg("\"%s\" was taken", wrong[i].text);
		if (!strstr(e.text, wrong[i].why))
			fail_msg("%s: no word of \"%s\"", e.text, wrong[i].why);
	}
	for (unsigned i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		if (dpdk_specs_parse(good[i], s, &e) < 0)
			fail_msg("%s", e.text);
}

static void test_specs(void **state)
{
	static const char *const wrong[] = {"", " ; ", "net_a@10.0.0.1/24,net_b@10.0.1.1/24",
		"net_a@10.0.0.1/24;;@10.0.1.1/24", "net_a;net_a", "net_a b;net_c", "1;2;3;4;5;6;7;8;9;a;b;c;d;e;f;g;h"};
	struct dpdk_spec s[DPDK_PORTS_MAX];
	struct err e;

	assert_int_equal(dpdk_specs_parse("net_a@10.0.0.1/24", s, &e), 1);
	assert_int_equal(dpdk_specs_parse(" net_a,x=1@10.0.0.1/24 ;  net_b@10.0.1.1/24,mtu=9000; net_c;", s, &e), 3);
	assert_string_equal(s[0].device, "net_a,x=1");
	assert_int_equal(s[0].ip, 0x0a000001);
	assert_int_equal(s[1].ip, 0x0a000101);
	assert_int_equal(s[1].mtu, 9000);
	assert_string_equal(s[2].device, "net_c");
	assert_int_equal(dpdk_specs_parse("1;2;3;4;5;6;7;8;9;a;b;c;d;e;f;g", s, &e), DPDK_PORTS_MAX);
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		if (dpdk_specs_parse(wrong[i], s, &e) != -EINVAL)
			fail_msg("\"%s\" was taken", wrong[i]);
}

/* Which rights are missing; in a child, which gives up those that it has. */
static void test_lacks(void **state)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {0};
	char lacks[DPDK_LACKS_BYTES];
	pid_t child;
	int status;

	assert_false(dpdk_lacks("net_memif0,role=server", lacks));
	assert_false(dpdk_lacks("0000:3b:00.0", lacks));
	child = fork();
	if (child == 0) {
		if (syscall(SYS_capset, &head, data) < 0)
			_exit(1);
		if (!dpdk_lacks("net_af_packet0,iface=e0", lacks) || strcmp(lacks, "CAP_NET_RAW") != 0)
			_exit(2);
		if (!dpdk_lacks("net_af_xdp0", lacks) ||
			strcmp(lacks, "CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN") != 0)
			_exit(3);
		_exit(dpdk_lacks("net_memif0", lacks) ? 4 : 0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

TEST_PROGRAM(test_dpdk_spec)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_spec), cmocka_unit_test(test_impossible),
		cmocka_unit_test(test_specs), cmocka_unit_test(test_lacks)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
