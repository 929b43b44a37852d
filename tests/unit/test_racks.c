/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rack file: what a good one says, and which line a bad one is told to be wrong in.
 */
#include "topology/racks.h"

#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char good[] = "latency: 50us\n"
			   "racks:\n"
			   "  - name: r0\n"
			   "    uplink: 50Gbit\n"
			   "    latency: 10us\n"
			   "    boxes:\n"
			   "      - name: box0\n"
			   "        address: 10.0.0.1:7077\n"
			   "        rate: 100Gbit\n"
			   "        cores: 8\n"
			   "        sibling: box1\n"
			   "    hosts:\n"
			   "      - {name: h0, rate: 25Gbit, workers: 4}\n"
			   "      - {name: h1, rate: 500Mbit}\n"
			   "  - name: r1\n"
			   "    oversubscription: 4\n"
			   "    boxes:\n"
			   "      - {name: box1, address: '[::1]:7078', rate: 10Gbit}\n"
			   "    hosts:\n"
			   "      - {name: h2, rate: 30Gbit, workers: 2}\n";

static bool near(double a, double b)
{
	return a > b * 0.999999 && a < b * 1.000001;
}

static void test_good(void **state)
{
	struct racks r;
	struct err e;

	assert_int_equal(racks_parse(good, sizeof(good) - 1, "good", &r, &e), 0);
	assert_int_equal(r.rack_count, 2);
	assert_int_equal(r.box_count, 2);
	assert_int_equal(r.host_count, 3);
	assert_true(near(r.latency_s, 50e-6));
	assert_true(near(r.racks[0].uplink_bytes_s, 50e9 / 8) && near(r.racks[0].latency_s, 10e-6));
	assert_true(near(r.racks[1].uplink_bytes_s, 40e9 / 8 / 4) && r.racks[1].latency_s == 0);
	assert_string_equal(r.boxes[0].host, "10.0.0.1");
	assert_string_equal(r.boxes[1].host, "::1");
	assert_int_equal(r.boxes[1].port, 7078);
	assert_int_equal(r.boxes[0].sibling, 1);
	assert_int_equal(r.boxes[1].sibling, RACKS_NONE);
	assert_int_equal(r.boxes[0].cores, 8);
	assert_int_equal(r.boxes[1].rack, 1);
	assert_true(near(r.hosts[1].rate_bytes_s, 500e6 / 8));
	assert_int_equal(r.hosts[1].workers, 1);
	assert_int_equal(racks_workers(&r, 0), 5);
	assert_int_equal(racks_workers(&r, 1), 2);
	assert_int_equal(racks_find_box(&r, "box1"), 1);
	assert_int_equal(racks_find_box(&r, "h0"), RACKS_NONE);
	racks_fini(&r);
	racks_fini(&r);
}

/* One rack needs no uplink. */
static void test_least(void **state)
{
	static const char text[] = "racks: [{name: r, boxes: [{name: b, address: 'h:1', rate: 1Kbit}]}]";
	struct racks r;
	struct err e;

	assert_int_equal(racks_parse(text, sizeof(text) - 1, "least", &r, &e), 0);
	assert_true(r.racks[0].uplink_bytes_s == 0 && r.host_count == 0 && r.boxes[0].rate_bytes_s == 125);
	racks_fini(&r);
}

/* `good` with one piece of it replaced. */
static void replaced(const char *from, const char *to, const char *says)
{
	const char *at = strstr(good, from);
	char text[2 * sizeof(good)];
	struct racks r;
	struct err e = {0};

	assert_non_null(at);
	snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
	assert_int_equal(racks_parse(text, strlen(text), "bad", &r, &e), -EINVAL);
	if (!strstr(e.text, says))
		fail_msg("'%s' is told as '%s', not '%s'", to, e.text, says);
}

static void test_bad(void **state)
{
	replaced("latency: 50us", "latency: 50", "bad:1: latency: '50' is not understood; allowed: like 20us");
	replaced("latency: 50us", "latency: -50us", "bad:1: latency");
	replaced("latency: 50us", "latency: [50us]", "bad:1: latency: '(a list or mapping)'");
	replaced("latency: 50us", "latency: 0us",
		"bad:1: latency: '0us' is not understood; allowed: like 20us or 1.5ms");
	replaced("latency: 50us", "delay: 50us", "bad:1: the file has no key 'delay'; allowed: latency, racks");
	replaced("latency: 50us", "latncy: 50us", "bad:1: the file has no key 'latncy'; did you mean latency?");
	replaced("50Gbit", "1e-9Kbit", "bad:4: uplink: '1e-9Kbit' is not understood");
	replaced("50Gbit", "1001Tbit", "bad:4: uplink");
	replaced("oversubscription: 4", "oversubscription: 4:1", "bad:16: oversubscription: '4:1'");
	replaced("oversubscription: 4", "oversubscription: 1e-9", "bad:16: oversubscription");
	replaced("10.0.0.1:7077", "'10.0.0.1 b:7077'", "bad:8: address");
	replaced("10.0.0.1:7077", "'a,b:7077'", "bad:8: address");
	replaced("50Gbit", "50GB", "bad:4: uplink: '50GB' is not understood; allowed: like 100Gbit");
	replaced("50Gbit", "0Gbit", "bad:4: uplink");
	replaced("50Gbit", "nanGbit", "bad:4: uplink");
	replaced("50Gbit", "1e30Tbit", "bad:4: uplink");
	replaced("    uplink: 50Gbit\n", "", "bad:3: rack 'r0' says neither uplink (a rate) nor oversubscription");
	replaced("    uplink: 50Gbit\n", "    uplink: 50Gbit\n    oversubscription: 2\n",
		"bad:5: oversubscription beside uplink");
	replaced("oversubscription: 4", "oversubscription: much", "bad:16: oversubscription: 'much'");
	replaced("10.0.0.1:7077", "10.0.0.1", "bad:8: address: '10.0.0.1' is not understood; allowed: HOST:PORT");
	replaced("10.0.0.1:7077", "10.0.0.1:70777", "bad:8: address");
	replaced("10.0.0.1:7077", "::1:7077", "bad:8: address");
	replaced("10.0.0.1:7077", "'[::1]:7078'", "bad:18: box 'box1' has the address of box 'box0', in line 7");
	replaced("        rate: 100Gbit\n", "", "bad:7: a box lacks 'rate'");
	replaced("cores: 8", "cores: 0", "bad:10: cores: '0' is not understood; allowed: 1 to 1024");
	replaced("cores: 8", "cores: 8.5", "bad:10: cores");
	replaced("cores: 8", "name: box7", "bad:10: name is given twice, first in line 7");
	replaced("sibling: box1", "sibling: box7", "bad:11: sibling: 'box7' is no box of this file");
	replaced("sibling: box1", "sibling: box0", "bad:11: sibling: 'box0' is the box itself");
	replaced("workers: 4", "workers: many", "bad:13: workers: 'many' is not understood; allowed: 1 to 1024");
	replaced("workers: 4", "gpus: 4", "bad:13: a host has no key 'gpus'");
	replaced("name: h1", "name: h0", "bad:14: there is a host 'h0' in line 13 already");
	replaced("name: r1", "name: r0", "bad:15: there is a rack 'r0' in line 3 already");
	replaced("name: box1", "name: box0", "there is a box 'box0' in line 7 already");
	replaced("name: r1", "name: 'r 1'", "bad:15: name: 'r 1' is not understood");
	replaced("name: r1", "name: \"r\\0\"", "bad:15: name: '(a NUL)'");
	replaced("      - {name: box1, address: '[::1]:7078', rate: 10Gbit}\n", "      []\n",
		"bad:15: rack 'r1' has no box");
	replaced("      - {name: box1, address: '[::1]:7078', rate: 10Gbit}\n", "      box1\n",
		"bad:18: boxes is no list");
	replaced("      - {name: box1, address: '[::1]:7078', rate: 10Gbit}\n", "      - box1\n",
		"bad:18: a box is no mapping");
	replaced("latency: 50us\n", "latency: [50us\n", "bad:2: ");
}

/* The file that is good, and more behind it. */
static void test_second_document(void **state)
{
	static const char *const more[] = {"---\nracks: []\n", "---\na: [\n", "...\n", "---\n"};
	static const char *const says[] = {
		"a second document begins", "did not find", NULL, "a second document begins"};
	char text[2 * sizeof(good)];
	struct racks r;
	struct err e = {0};

	for (unsigned i = 0; i < sizeof(more) / sizeof(*more); i++) {
		int length = snprintf(text, sizeof(text), "%s%s", good, more[i]);

		assert_int_equal(racks_parse(text, (size_t)length, "f", &r, &e), says[i] ? -EINVAL : 0);
		if (says[i])
			assert_non_null(strstr(e.text, says[i]));
		else
			racks_fini(&r);
	}
}

static void test_too_many(void **state)
{
	const size_t room = 64u << 10;
	char *text = malloc(room);
	struct racks r;
	struct err e = {0};
	size_t at = 0;

	assert_non_null(text);
	at += (size_t)snprintf(text, room, "racks:\n");
	for (unsigned i = 0; i <= RACKS_MAX; i++)
		at += (size_t)snprintf(text + at, room - at,
			"  - {name: r%u, uplink: 1Gbit, boxes: [{name: b%u, address: 'h%u:1', rate: 1Gbit}]}\n", i, i,
			i);
	assert_int_equal(racks_parse(text, at, "f", &r, &e), -EINVAL);
	assert_non_null(strstr(e.text, "f:258: more than 256 racks"));
	free(text);
}

static void test_whole_files(void **state)
{
	static const char *const texts[] = {"", "- a", "racks: []", "latency: 1us", "\xff\xfe\x00", "a: &a [*a]"};
	struct racks r;
	struct err e;

	for (unsigned i = 0; i < sizeof(texts) / sizeof(*texts); i++)
		assert_int_equal(racks_parse(texts[i], strlen(texts[i]), "f", &r, &e), -EINVAL);
	assert_int_equal(racks_read("/nonexistent/racks.yaml", &r, &e), -ENOENT);
	assert_int_equal(racks_read("/", &r, &e), -EIO);
}

static void test_read(void **state)
{
	char path[] = "/tmp/test-racks-XXXXXX";
	int fd = mkstemp(path);
	struct racks r;
	struct err e;

	assert_true(fd >= 0 && write(fd, good, sizeof(good) - 1) == sizeof(good) - 1);
	assert_int_equal(racks_read(path, &r, &e), 0);
	assert_int_equal(r.host_count, 3);
	racks_fini(&r);
	close(fd);
	unlink(path);
}

TEST_PROGRAM(test_racks)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_least),
		cmocka_unit_test(test_bad),
		cmocka_unit_test(test_second_document),
		cmocka_unit_test(test_too_many),
		cmocka_unit_test(test_whole_files),
		cmocka_unit_test(test_read),
	};

	return cmocka_run_group_tests_name("racks", tests, NULL, NULL);
}
