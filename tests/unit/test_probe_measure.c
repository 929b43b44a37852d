/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What phub topo probe makes of the answers of probes, which are made up here: pairs, racks' uplinks and streams of
 * which nothing came are errors that name them; a pair that starves beside others is none.
 */
#include "phub/cli/probe.h"

#include "tests/unit/cmocka_shim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "phub/base/clock.h"

enum { MEMBERS = 2, RATE = 1000000 };

/* One after the other is called at the same port: a is member 0, b member 1. */
static struct fake {
	struct probe_token token;
	struct probe p;
	pthread_t threads[MEMBERS];
	int fds[MEMBERS];
	unsigned starve_first[MEMBERS], starve_last[MEMBERS]; /* runs in which nothing comes from the member, from 1 */
} fake;

static uint64_t deadline(void)
{
	return clock_now_ns() + 20 * NS_PER_S;
}

static void *answer(void *arg)
{
	unsigned member = (unsigned)(uintptr_t)arg, run = 0, flows = 0;
	int fd = fake.fds[member];
	struct probe_message m;

	if (probe_accept(fd, &fake.token, deadline()) == 0 && probe_receive(fd, &m, deadline()) == 0)
		while (probe_receive(fd, &m, deadline()) == 0) {
			struct probe_message result = {.type = PROBE_RESULT, .values = {5000, 5000, 5000}};

			if (m.type == PROBE_PREPARE)
				flows++;
			if (m.type == PROBE_GO) {
				run++;
				result.values[0] =
					run >= fake.starve_first[member] && run <= fake.starve_last[member] ? 0 : RATE;
			}
			for (; m.type == PROBE_GO && flows > 1; flows--)
				probe_send(fd, &result, deadline());
			if (m.type == PROBE_GO)
				flows = 0;
			probe_send(fd, &result, deadline());
		}
	close(fd);
	return NULL;
}

static void *take(void *arg)
{
	int listen_fd = (int)(intptr_t)arg;

	for (unsigned i = 0; i < MEMBERS; i++) {
		struct sockaddr_storage peer;

		do {
			assert_int_equal(probe_wait(listen_fd, POLLIN, deadline()), 0);
			fake.fds[i] = sock_accept(listen_fd, &peer);
		} while (fake.fds[i] == -EAGAIN);
		assert_true(fake.fds[i] >= 0);
		assert_int_equal(pthread_create(&fake.threads[i], NULL, answer, (void *)(uintptr_t)i), 0);
	}
	return NULL;
}

/* Two racks of one member. */
static int measure(unsigned streams, struct err *e)
{
	struct sockaddr_in own;
	socklen_t bytes = sizeof(own);
	pthread_t taker;
	int listen_fd, rc;

	fake.token = (struct probe_token){.bytes = "of the probes", .length = 13};
	fake.p = (struct probe){.count = MEMBERS, .token = fake.token, .streams = streams, .given = true};
	fake.p.measure_ns = 100 * NS_PER_MS;
	fake.p.rack_count = MEMBERS;
	for (unsigned i = 0; i < MEMBERS; i++) {
		snprintf(fake.p.members[i].name, sizeof(fake.p.members[i].name), "%c", 'a' + (int)i);
		memcpy(fake.p.members[i].host, "127.0.0.1", 10);
		fake.p.rack[i] = i;
	}
	assert_int_equal(sock_listen("127.0.0.1", 0, 0, NULL, &listen_fd, e), 0);
	assert_int_equal(getsockname(listen_fd, (struct sockaddr *)&own, &bytes), 0);
	fake.p.port = ntohs(own.sin_port);
	assert_int_equal(pthread_create(&taker, NULL, take, (void *)(intptr_t)listen_fd), 0);
	assert_int_equal(probe_open(&fake.p, e), 0);
	pthread_join(taker, NULL);
	rc = probe_measure(&fake.p, e);
	probe_close(&fake.p, false);
	for (unsigned i = 0; i < MEMBERS; i++)
		pthread_join(fake.threads[i], NULL);
	close(listen_fd);
	return rc;
}

static void starve(unsigned member, unsigned first, unsigned last)
{
	memset(fake.starve_first, 0, sizeof(fake.starve_first));
	memset(fake.starve_last, 0, sizeof(fake.starve_last));
	fake.starve_first[member] = first;
	fake.starve_last[member] = last;
}

static void refused(unsigned streams, const char *which)
{
	struct err e = {.text = ""};

	assert_int_equal(measure(streams, &e), -EIO);
	if (strncmp(e.text, which, strlen(which)) != 0)
		fail_msg("%s", e.text);
	assert_non_null(strstr(e.text, " in 0.1 s, or less than 1 Kbit/s"));
}

static void test_all_is_measured(void **state)
{
	struct err e;

	starve(0, 1, 0);
	assert_int_equal(measure(1, &e), 0);
	assert_true(fake.p.facts.alone[0][1] == RATE && fake.p.facts.together[1][0] == RATE);
	assert_true(fake.p.out[0] == RATE && fake.p.in[1] == RATE);
}

static void test_nothing_comes_alone(void **state)
{
	starve(1, 1, 1);
	refused(1, "nothing came from b to a");
	starve(0, 1, 100);
	refused(0, "nothing came from a to b"); /* by any number of streams */
}

/* Alone once, together three times, then the fans: two runs of each; its rack's uplink is the 7th run, out, of the one
 * and of the other. */
static void test_nothing_crosses_an_uplink(void **state)
{
	starve(0, 7, 7);
	refused(1, "nothing came from the rack of a to the others");
	starve(1, 7, 7);
	refused(1, "nothing came from the others to the rack of a");
}

static void test_a_pair_starves_beside_others(void **state)
{
	struct err e;

	starve(0, 2, 4);
	assert_int_equal(measure(1, &e), 0);
	assert_true(fake.p.facts.alone[0][1] == RATE && fake.p.facts.together[0][1] == 1);
}

TEST_PROGRAM(test_probe_measure)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_is_measured),
		cmocka_unit_test(test_nothing_comes_alone),
		cmocka_unit_test(test_nothing_crosses_an_uplink),
		cmocka_unit_test(test_a_pair_starves_beside_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
