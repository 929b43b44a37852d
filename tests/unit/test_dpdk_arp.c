/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What transport dpdk believes of who has which address, and whose pings it answers: frames, by hand, at the kernel's
 * end of a tap. Needs root,
 * and takes a network namespace of its own.
 */
#include <arpa/inet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/base/mem.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/dpdk_rig.h"
#include "transport/dpdk.h"

enum { ARP_BYTES = 42, WAIT_MS = 1000, PLACES = 8 };

static const struct dpdk_plugin *plugin;
static struct dpdk_nic *nic;
static struct datagram_port *port;
static int raw = -1, warnings;
static char warning[256];

static void on_log(enum log_level level, const char *line)
{
	if (level != LOG_LEVEL_WARN || !strstr(line, "our address"))
		return;
	warnings++;
	snprintf(warning, sizeof(warning), "%s", line);
}

static void on_message(struct reliable_message *m)
{
}

static void on_let(struct reliable *r, struct reliable_message *m)
{
}

static const struct dpdk_host host = {.log = on_log, .hold = on_message, .let = on_let, .drop_name = dpdk_drop_name};

static int begin_as(const char *spec)
{
	struct dpdk_nic_config config = {.queues = 1};
	struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
	struct err e = {0};

	warnings = 0;
	assert_int_equal(dpdk_spec_parse(spec, &config.spec, &e), 0);
	if (plugin->open(&host, &config, &nic, &e) < 0)
		fail_msg("%s", e.text);
	if (plugin->port_open(nic, 0, MEM_NODE_ANY, "", &port, &e) < 0)
		fail_msg("%s", e.text);
	raw = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons(ETH_P_ALL));
	at.sll_ifindex = (int)if_nametoindex("phub-arp");
	assert_int_equal(bind(raw, (struct sockaddr *)&at, sizeof(at)), 0);
	return 0;
}

/* A network of 2^16 addresses. */
static int begin(void **state)
{
	return begin_as("net_tap0,iface=phub-arp@10.8.0.1/16");
}

static int begin_gateway(void **state)
{
	return begin_as("net_tap0,iface=phub-arp@10.8.0.1/16,gw=10.8.0.254");
}

static int end(void **state)
{
	close(raw);
	port->ops->close(port);
	plugin->close(nic);
	return 0;
}

static const struct dpdk_counters *counters(void)
{
	return plugin->counters(port);
}

/* 10.8.high.low says it is at 02::low, and asks for (or, with op 2, answers) the port's address. */
static void arp(unsigned op, uint8_t high, uint8_t low, uint8_t mac)
{
	uint8_t frame[ARP_BYTES] = {0};
	uint8_t sender[10] = {2, 0, 0, 0, 0, mac, 10, 8, high, low};

	memset(frame, 0xff, 6);
	memcpy(frame + 6, sender, 6);
	put16(frame + 12, ETHERTYPE_ARP);
	memcpy(frame + 14, "\x00\x01\x08\x00\x06\x04", 6);
	put16(frame + 20, op);
	memcpy(frame + 22, sender, 10);
	memcpy(frame + 38, "\x0a\x08\x00\x01", 4);
	assert_int_equal(send(raw, frame, sizeof(frame), 0), sizeof(frame));
}

/* Until `*counter` has risen to this. */
static bool poll_until(const uint64_t *counter, uint64_t value)
{
	uint64_t until_ns = clock_now_ns() + WAIT_MS * NS_PER_MS;
	struct datagram_in in[4];

	while (*counter < value && clock_now_ns() < until_ns) {
		port->ops->receive(port, in, 4);
		port->ops->flush(port);
	}
	return *counter >= value;
}

/* A datagram to 10.8.high.low. Is it known where that is? */
static bool knows(uint8_t high, uint8_t low)
{
	struct datagram_address to = port->address;
	struct reliable_outgoing out = {.head_bytes = 4};
	uint64_t asked = counters()->asked, sent = counters()->sent;

	memset(to.mac, 0, sizeof(to.mac));
	to.ip.s6_addr[14] = high;
	to.ip.s6_addr[15] = low;
	port->now_ns = clock_now_ns();
	if (port->ops->room(port, &to, &out) < 0)
		return false;
	memcpy(out.head, "head", 4);
	port->ops->send(port, NULL, &out);
	port->ops->flush(port);
	return counters()->asked == asked && counters()->sent > sent;
}

/* Who asks for us is known from then on, but takes no place of those who are in use: there are 8 for each address. */
static void askers_take_free_places(void **state)
{
	uint64_t sent;

	for (uint8_t i = 0; i < PLACES; i++) {
		arp(1, (uint8_t)(4 * i), 2, 0x10);
		assert_true(poll_until(&counters()->answered, i + 1u));
	}
	/* All of these begin at the same place of 1024. */
	for (uint8_t i = PLACES; i < 3 * PLACES; i++) {
		arp(1, (uint8_t)(4 * i), 2, 0x10);
		assert_true(poll_until(&counters()->answered, i + 1u));
	}
	for (uint8_t i = 0; i < PLACES; i++)
		assert_true(knows((uint8_t)(4 * i), 2));
	/* Whom we want to reach has one, whoever asked. */
	assert_false(knows(4 * PLACES, 2));
	arp(2, 4 * PLACES, 2, 0x11);
	sent = counters()->sent;
	assert_true(poll_until(&counters()->sent, sent + 1)); /* what waited for that */
	assert_true(knows(4 * PLACES, 2));
}

/* Somebody else has our address: it is counted, and told once. We, and who asks whether it is free, are no such one. */
static void conflicts_are_told(void **state)
{
	arp(1, 0, 2, 0x10);
	arp(1, 0, 1, 0x66);
	arp(2, 0, 1, 0x66);
	assert_true(poll_until(&counters()->conflicts, 2));
	arp(1, 0, 1, 0x67);
	assert_true(poll_until(&counters()->conflicts, 3));
	assert_int_equal(counters()->conflicts, 3);
	assert_int_equal(warnings, 1);
	assert_non_null(strstr(warning, "02:00:00:00:00:66 says that it has our address 10.8.0.1, too"));
	assert_true(knows(0, 2));
}

/* An echo request from 10.high.low.last to this MAC; `counter` counts it. */
static void ping(uint8_t high, uint8_t low, uint8_t last, const uint8_t to[6], const uint64_t *counter)
{
	struct frame f = frame_good(port);
	uint64_t before = *counter;

	memcpy(f.bytes, to, 6);
	f.bytes[23] = IPPROTO_ICMP;
	f.bytes[27] = high;
	f.bytes[28] = low;
	f.bytes[29] = last;
	memset(f.bytes + 34, 0, f.length - 34);
	f.bytes[34] = 8;
	put16(f.bytes + 36, sum_of(f.bytes + 34, f.length - 34));
	frame_sum(&f);
	assert_int_equal(send(raw, f.bytes, f.length, 0), f.length);
	assert_true(poll_until(counter, before + 1));
}

/* Answers go to hosts of our network alone, as there is no gateway, and to who asked us, not all. */
static void pings_are_ours(void **state)
{
	static const uint8_t all[6] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
	const uint64_t *dropped = counters()->dropped;

	ping(8, 0, 7, all, &dropped[DPDK_ELSEWHERE]);
	ping(9, 0, 7, port->address.mac, &dropped[DPDK_PROTOCOL]);
	ping(8, 255, 255, port->address.mac, &dropped[DPDK_PROTOCOL]);
	ping(8, 0, 0, port->address.mac, &dropped[DPDK_PROTOCOL]);
	ping(8, 0, 1, port->address.mac, &dropped[DPDK_PROTOCOL]); /* ourselves */
	assert_int_equal(counters()->answered, 0);
	ping(8, 0, 7, port->address.mac, &counters()->answered);
}

static void pings_by_the_gateway(void **state)
{
	ping(9, 0, 7, port->address.mac, &counters()->answered);
}

TEST_PROGRAM(test_dpdk_arp)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(askers_take_free_places, begin, end),
		cmocka_unit_test_setup_teardown(conflicts_are_told, begin, end),
		cmocka_unit_test_setup_teardown(pings_are_ours, begin, end),
		cmocka_unit_test_setup_teardown(pings_by_the_gateway, begin_gateway, end),
	};
	struct err e;

	if (dpdk_load(&plugin, &e) < 0) {
		printf("%s\n", e.text);
		return 77;
	}
	if (geteuid() != 0 || unshare(CLONE_NEWNET) < 0) {
		printf("without root there is no network namespace\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
