/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The port of transport dpdk on sockets of XDP's, over a veth pair whose other end is the kernel's: root's, in a
 * network namespace of this program's own.
 */
#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/dpdk_rig.h"

enum { WAIT_MS = 3000 };

static const struct dpdk_plugin *plugin;

static void never_hold(struct reliable_message *m)
{
	fail_msg("nothing is attached: the driver takes whole packets only");
}

static void never_let(struct reliable *r, struct reliable_message *m)
{
	never_hold(m);
}

static void tell(enum log_level level, const char *line)
{
	if (getenv("PHUB_LOG") || level == LOG_LEVEL_ERROR)
		fprintf(stderr, "%s\n", line);
}

static const struct dpdk_host host = {.log = tell, .hold = never_hold, .let = never_let};

static void say(struct datagram_port *p, const struct datagram_address *to, const char *text)
{
	struct reliable_outgoing out = {0};

	assert_int_equal(p->ops->room(p, to, &out), 0);
	out.head_bytes = (uint32_t)strlen(text);
	memcpy(out.head, text, out.head_bytes);
	p->ops->send(p, NULL, &out);
	p->ops->flush(p);
}

/* One datagram at `p`, for which `first` takes from the device what comes; or none in time. */
static bool hear(struct datagram_port *p, struct datagram_port *first, struct datagram_in *in, int ms)
{
	uint64_t until = clock_now_ns() + (uint64_t)ms * NS_PER_MS;
	struct datagram_in none;

	do {
		if (first)
			assert_int_equal(first->ops->receive(first, &none, 1), 0);
		if (p->ops->receive(p, in, 1))
			return true;
		sched_yield();
	} while (clock_now_ns() < until);
	return false;
}

/*
 * All that is sent comes, both ways, while all the memory that XDP has for packets is used in turn: what `other` has
 * not taken yet is held, and packets that lay idle longest come next.
 */
static void xdp_through(struct datagram_port *p, struct datagram_port *other, int fd, const struct datagram_address *to)
{
	enum { ROUNDS = 25, HELD = 800, AT_ONCE = 50 };
	struct datagram_in in;
	uint8_t got[64];
	char text[32];

	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < HELD; i++) {
			snprintf(text, sizeof(text), "%d.%d", round, i);
			dpdk_rig_say(fd, other, text);
			if (i % AT_ONCE == AT_ONCE - 1)
				assert_false(hear(p, NULL, &in, 1));
		}
		for (int i = 0; i < HELD; i++) {
			snprintf(text, sizeof(text), "%d.%d", round, i);
			if (!hear(other, p, &in, WAIT_MS) || in.length != strlen(text) ||
				memcmp(in.bytes, text, in.length) != 0)
				fail_msg("%s did not come", text);
		}
		for (int i = 0; i < AT_ONCE; i++) {
			snprintf(text, sizeof(text), "%d.%d", round, i);
			say(p, to, text);
			if (dpdk_rig_hear(fd, p, got, sizeof(got), WAIT_MS) != (ssize_t)strlen(text) ||
				memcmp(got, text, strlen(text)) != 0)
				fail_msg("the kernel did not get %s", text);
		}
	}
	assert_int_equal(plugin->counters(p)->lost, 0);
}

/* A reason why a port does not open: skips where DPDK was built without the driver. */
static void not_there(const struct err *e)
{
	if (strstr(e->text, "there is no such device"))
		skip_because(e->text);
}

static void test_through(void **state)
{
	struct dpdk_nic_config config = {.queues = 2};
	struct datagram_port *p, *other;
	struct datagram_address to;
	struct dpdk_nic *nic = NULL;
	struct dpdk_facts facts;
	struct datagram_in in;
	struct err e = {0};
	uint16_t port;
	int fd;

	assert_int_equal(dpdk_spec_parse("net_af_xdp0,iface=phub-a@" OUR_IP "/24", &config.spec, &e), 0);
	if (plugin->open(&host, &config, &nic, &e) < 0) {
		not_there(&e);
		fail();
	}
	p = dpdk_rig_port(plugin, nic, 0);
	other = dpdk_rig_port(plugin, nic, 1);
	fd = dpdk_rig_socket(&port);
	plugin->facts(nic, &facts);
	assert_string_equal(facts.driver, "net_af_xdp");
	assert_true(!facts.attaches && facts.up);
	/* The kernel asks for our address, and is told. */
	dpdk_rig_say(fd, p, "hello");
	assert_true(hear(p, NULL, &in, WAIT_MS));
	assert_int_equal(in.from.port, port);
	to = in.from;
	xdp_through(p, other, fd, &to);
	close(fd);
	other->ops->close(other);
	p->ops->close(p);
	plugin->close(nic);
}

static void test_mtu(void **state)
{
	struct dpdk_nic_config config = {.queues = 1};
	struct dpdk_nic *nic = NULL;
	struct err e = {0};

	if (sysconf(_SC_PAGESIZE) != 4096)
		skip_because("pages of another size than 4096 bytes");
	assert_int_equal(dpdk_spec_parse("net_af_xdp0,iface=phub-a@" OUR_IP "/24,mtu=3507", &config.spec, &e), 0);
	if (plugin->open(&host, &config, &nic, &e) != -EMSGSIZE)
		not_there(&e);
	assert_non_null(strstr(e.text, "3506"));
}

TEST_PROGRAM(test_dpdk_xdp)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_through), cmocka_unit_test(test_mtu)};
	int fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
	struct err e;

	if (dpdk_load(&plugin, &e) < 0) {
		printf("%s\n", e.text);
		return 77;
	}
	if (fd < 0) {
		printf("no sockets of XDP's: %s\n", strerror(errno));
		return 77;
	}
	close(fd);
	if (geteuid() != 0 || unshare(CLONE_NEWNET) < 0) {
		printf("only root makes network namespaces\n");
		return 77;
	}
	if (!dpdk_rig_veth()) {
		printf("no veth pair here\n");
		return 77;
	}
	return cmocka_run_group_tests_name("XDP's sockets", tests, NULL, NULL);
}
