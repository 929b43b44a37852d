/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One suite for every transport: the contract of transport/transport.h, slot by slot. A new transport
 * gets a row in the table below and nothing else. Run one row, or some cases of it, with
 * `test_transport shm` and `test_transport shm '*drop*'`.
 * vm: -m 2048 -- verbs
 * vm: -m 2048 -w 2 -- verbs
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/suite/transport_cases.h"
#include "tests/suite/transport_rig.h"

static const struct fixture fixtures[] = {
	{.label = "loop", .transport = "loop", .plan = {.seed = 1, .poison = true}},
	{.label = "loop-slow",
		.transport = "loop",
		.plan = {.seed = 2,
			.delay_min_ns = 1000,
			.delay_max_ns = 50000,
			.late = 0.5,
			.sent_late = 0.5,
			.late_max_ns = 100000,
			.hold_max = 2,
			.poison = true}},
	{.label = "loop-hold", .transport = "loop", .plan = {.seed = 3, .hold_max = 12, .poison = true}},
	{.label = "tcp", .transport = "tcp"},
	{.label = "udp", .transport = "udp"},
	{.label = "dpdk", .transport = "dpdk"},
	{.label = "shm", .transport = "shm", .mapped = true},
	{.label = "verbs", .transport = "verbs", .one_sided = true},
};

enum { FIXTURES = sizeof(fixtures) / sizeof(fixtures[0]) };

static const struct fixture *fixture_now;

static int fixture_give(void **state)
{
	/* The cases read it only. */
	*state = (void *)(uintptr_t)fixture_now;
	return 0;
}

static int run_fixture(const struct fixture *fixture)
{
	size_t count = transport_handshake_count + transport_message_count + transport_queue_count;
	struct CMUnitTest *cases = calloc(count, sizeof(*cases));
	struct CMUnitTest *at = cases;
	int failed;

	if (!cases)
		return 1;
	memcpy(at, transport_handshake_cases, transport_handshake_count * sizeof(*at));
	at += transport_handshake_count;
	memcpy(at, transport_message_cases, transport_message_count * sizeof(*at));
	at += transport_message_count;
	memcpy(at, transport_queue_cases, transport_queue_count * sizeof(*at));
	fixture_now = fixture;
	failed = _cmocka_run_group_tests(fixture->label, cases, count, fixture_give, NULL);
	free(cases);
	return failed;
}

int main(int argc, char **argv)
{
	unsigned i, ran = 0;
	struct err e;
	int failed = 0;

	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	for (i = 0; i < FIXTURES; i++) {
		if (argc > 1 && strcmp(argv[1], fixtures[i].label) != 0)
			continue;
		if (!transport_find(fixtures[i].transport)) {
			printf("skipped: %s: this build has no transport \"%s\"\n", fixtures[i].label,
				fixtures[i].transport);
			continue;
		}
		if (fixtures[i].one_sided && rig_rdma_ports() == 0) {
			printf("skipped: %s: no RDMA device here\n", fixtures[i].label);
			continue;
		}
		if (strcmp(fixtures[i].transport, "dpdk") == 0 && !rig_dpdk_make(&e)) {
			printf("skipped: %s: %s\n", fixtures[i].label, e.text);
			continue;
		}
		failed += run_fixture(&fixtures[i]);
		ran++;
	}
	if (ran == 0)
		return 77;
	return failed ? 1 : 0;
}
