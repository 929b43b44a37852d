/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which addresses are public, to the edges of each network, and what is said about them.
 */
#include <arpa/inet.h>
#include <net/if.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/control/exposure.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/libc_rig.h"

/* This machine has one public address, whatever it has. */
static struct sockaddr_in public = {.sin_family = AF_INET};
static struct ifaddrs list = {.ifa_flags = IFF_UP, .ifa_addr = (struct sockaddr *)&public};

static bool is_public(const char *text)
{
	struct sockaddr_in6 six = {.sin6_family = AF_INET6};
	struct sockaddr_in four = {.sin_family = AF_INET};

	if (inet_pton(AF_INET, text, &four.sin_addr) == 1)
		return exposure_is_public((struct sockaddr *)&four);
	assert_int_equal(inet_pton(AF_INET6, text, &six.sin6_addr), 1);
	return exposure_is_public((struct sockaddr *)&six);
}

static void test_addresses(void **state)
{
	static const char *const own[] = {"127.0.0.1", "127.255.255.255", "10.0.0.0", "10.255.255.255", "172.16.0.0",
		"172.31.255.255", "192.168.0.0", "192.168.255.255", "100.64.0.0", "100.127.255.255", "169.254.1.1",
		"0.0.0.0", "::1", "::", "fe80::1", "fc00::1", "fdff::1", "::ffff:10.1.2.3"};
	static const char *const others[] = {"8.8.8.8", "126.255.255.255", "128.0.0.0", "9.255.255.255", "11.0.0.0",
		"172.15.255.255", "172.32.0.0", "192.167.255.255", "192.169.0.0", "100.63.255.255", "100.128.0.0",
		"203.0.113.7", "2001:db8::1", "fbff::1", "fe00::1", "::ffff:8.8.8.8"};

	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		if (is_public(own[i]))
			fail_msg("%s", own[i]);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if (!is_public(others[i]))
			fail_msg("%s", others[i]);
}

static void describe_both(const char *listen, const char *tls, const char *data, char *out, size_t bytes)
{
	struct config config;
	struct err e;

	config_init(&config);
	assert_int_equal(config_set(&config, listen, &e), 0);
	assert_int_equal(config_set(&config, tls, &e), 0);
	assert_int_equal(config_set(&config, data, &e), 0);
	exposure_describe(&config, out, bytes);
	config_fini(&config);
}

static void describe(const char *listen, const char *tls, char *out, size_t bytes)
{
	describe_both(listen, tls, "data_encryption=off", out, bytes);
}

static void test_text(void **state)
{
	char text[400];

	describe("listen=10.0.0.1:7077,127.0.0.1:7077", "tls=off", text, sizeof(text));
	assert_string_equal(text, "");
	describe("listen=10.0.0.1:7077,[2001:db8::7]:7077", "tls=off", text, sizeof(text));
	assert_non_null(strstr(text, "2001:db8::7 is a public address"));
	assert_non_null(strstr(text, "(tls: off), and reads gradients"));
	assert_non_null(strstr(text, "set tls: require"));
	describe("listen=203.0.113.7:7077", "tls=allow", text, sizeof(text));
	assert_non_null(strstr(text, "(tls: allow)"));
	describe("listen=203.0.113.7:7077", "tls=require", text, sizeof(text));
	assert_null(strstr(text, "control sessions"));
	assert_non_null(strstr(text, "on the way to it reads gradients"));
	assert_null(strstr(text, "set tls"));
	assert_non_null(
		strstr(text, "(data_encryption: off), and over tcp and verbs changes them; set data_encryption"));
	describe_both("listen=203.0.113.7:7077", "tls=require", "data_encryption=allow", text, sizeof(text));
	assert_non_null(strstr(text, "of jobs that do not ask for encryption (data_encryption: allow)"));
	describe_both("listen=203.0.113.7:7077", "tls=off", "data_encryption=require", text, sizeof(text));
	assert_null(strstr(text, "gradients"));
	assert_non_null(strstr(text, "(tls: off); set tls: require"));
	describe_both("listen=203.0.113.7:7077", "tls=require", "data_encryption=require", text, sizeof(text));
	assert_string_equal(text, "");
}

/* However it is written that the box listens at all addresses of its machine. */
static void test_all_addresses(void **state)
{
	static const char *const listens[] = {
		"listen=*:7077", "listen=0.0.0.0:7077", "listen=[::]:7077", "listen=127.0.0.1:7077,0.0.0.0:7078"};
	char text[400];

	for (size_t i = 0; i < sizeof(listens) / sizeof(listens[0]); i++) {
		describe(listens[i], "tls=off", text, sizeof(text));
		if (!strstr(text, "203.0.113.9 is a public address"))
			fail_msg("%s: '%s'", listens[i], text);
	}
}

static void describe_secrets(const char *listen, const char *create, const char *job, char *out, size_t bytes)
{
	struct config config;
	struct err e;

	config_init(&config);
	assert_int_equal(config_set(&config, listen, &e), 0);
	config.create_secret.bytes = (uint8_t *)strdup(create);
	config.create_secret.length = strlen(create);
	config.jobs = calloc(1, sizeof(*config.jobs));
	assert_non_null(config.jobs);
	config.job_count = 1;
	snprintf(config.jobs[0].name, sizeof(config.jobs[0].name), "mnist");
	config.jobs[0].secret.bytes = (uint8_t *)strdup(job);
	config.jobs[0].secret.length = strlen(job);
	exposure_describe_secrets(&config, out, bytes);
	config_fini(&config);
}

static void test_secrets(void **state)
{
	char text[400];

	describe_secrets("listen=127.0.0.1:7077", "a", "b", text, sizeof(text));
	assert_string_equal(text, "");
	describe_secrets("listen=10.0.0.1:7077", "0123456789abcdef", "0123456789abcdef", text, sizeof(text));
	assert_string_equal(text, "");
	describe_secrets("listen=127.0.0.1:7077,10.0.0.1:7077", "hunter2", "0123456789abcdef", text, sizeof(text));
	assert_non_null(strstr(text, "1 secret is short enough to be guessed: create_secret (7 bytes); who"));
	describe_secrets("listen=10.0.0.1:7077", "hunter2", "0123456789abcde", text, sizeof(text));
	assert_non_null(strstr(text, "2 secrets are"));
	assert_non_null(strstr(text, "create_secret (7 bytes), that of job 'mnist' (15 bytes)"));
}

TEST_PROGRAM(test_exposure)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_addresses),
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_all_addresses),
		cmocka_unit_test(test_secrets),
	};

	if (inet_pton(AF_INET, "203.0.113.9", &public.sin_addr) != 1)
		return 1;
	libc_rig_addresses = &list;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
