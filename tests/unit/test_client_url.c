/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a worker is told about itself: the box's address, rank and world from launchers, options.
 */
#include <stddef.h>
#include <stdint.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/find.h"
#include "client/launcher.h"
#include "client/settings.h"
#include "client/url.h"
#include "phub/control/job_mirror.h"
#include "tests/unit/cmocka_shim.h"

static const char *const variables[] = {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
	"PMI_RANK", "PMI_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "JOB_COMPLETION_INDEX", "PHUB_HOSTBOX", "PHUB_SECRET",
	"PHUB_SECRET_FILE", "PHUB_RDMA_DSCP", "PHUB_TLS_CA", "PHUB_TLS_PIN"};

static int clean_environment(void **state)
{
	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
		unsetenv(variables[i]);
	return 0;
}

static void good_addresses(void **state)
{
	static const struct {
		const char *text, *host, *job;
		uint16_t port;
		bool tls;
	} cases[] = {
		{"phub://box/demo", "box", "demo", 7077, false},
		{"phubs://box/demo", "box", "demo", 7077, true},
		{"phub://box:9/demo", "box", "demo", 9, false},
		{"phub://10.0.0.1:65535/a.b-c_d", "10.0.0.1", "a.b-c_d", 65535, false},
		{"phub://[::1]/demo", "::1", "demo", 7077, false},
		{"phub://[fe80::1%eth0]:7/x", "fe80::1%eth0", "x", 7, false},
		{"phub://box:9,other/demo", "box", "demo", 9, false},
		{"phub://box/demo?hostbox=auto", "box", "demo", 7077, false},
		{"phubs://[::1]:9/demo?hostbox=none", "::1", "demo", 9, true},
	};
	struct url url;
	struct err e;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(url_parse(cases[i].text, &url, &e), 0);
		assert_string_equal(url.host, cases[i].host);
		assert_string_equal(url.job, cases[i].job);
		assert_int_equal(url.port, cases[i].port);
		assert_int_equal(url.tls, cases[i].tls);
	}
}

static void bad_addresses(void **state)
{
	static const struct {
		const char *text, *says;
	} cases[] = {
		{NULL, "missing"},
		{"", "does not begin"},
		{"http://box/demo", "does not begin"},
		{"phub://box", "job's name is missing"},
		{"phub:///demo", "host is missing"},
		{"phub://box/", "1 to 63"},
		{"phub://box:0/demo", "port"},
		{"phub://box:65536/demo", "port"},
		{"phub://box:/demo", "port"},
		{"phub://box:12x/demo", "port"},
		{"phub://::1/demo", "brackets"},
		{"phub://[::1/demo", "closing bracket"},
		{"phub://[]/demo", "host is missing"},
		{"phub://[::1]x/demo", "port"},
		{"phub://box,/demo", "host is missing"},
		{"phub://,box/demo", "host is missing"},
		{"phub://box,other:x/demo", "port"},
		{"phub://box,other,third/demo", "two boxes"},
		{"phub://box/a/b", "'/'"},
		{"phub://box/?hostbox=auto", "1 to 63"},
		{"phub://box/demo?", "neither hostbox=auto"},
		{"phub://box/demo?hostbox", "neither hostbox=auto"},
		{"phub://box/demo?hostbox=AUTO", "neither hostbox=auto"},
		{"phub://box/demo?hostbox=auto&", "neither hostbox=auto"},
		{"phub://box/a b", "space"},
		{"phub://box/0123456789012345678901234567890123456789012345678901234567890123", "1 to 63"},
	};
	struct url url;
	struct err e;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(url_parse(cases[i].text, &url, &e), -EINVAL);
		if (!strstr(e.text, cases[i].says))
			fail_msg("\"%s\" does not say \"%s\"", e.text, cases[i].says);
		assert_non_null(strstr(e.text, "phub://host"));
	}
}

static void expect_hostbox(const char *url, const char *variable, bool wanted)
{
	struct settings s;
	struct err e = {0};

	if (variable)
		setenv("PHUB_HOSTBOX", variable, 1);
	else
		unsetenv("PHUB_HOSTBOX");
	if (settings_init(&s, url, NULL, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(s.hostbox, wanted);
	assert_string_equal(s.url.job, "demo");
	settings_fini(&s);
}

/* The URL's word goes before the environment's. */
static void hostbox(void **state)
{
	struct settings s;
	struct err e;

	expect_hostbox("phub://box/demo", NULL, false);
	expect_hostbox("phub://box/demo", "", false);
	expect_hostbox("phub://box/demo", "none", false);
	expect_hostbox("phub://box/demo", "auto", true);
	expect_hostbox("phub://box/demo?hostbox=none", "auto", false);
	expect_hostbox("phub://box/demo?hostbox=auto", "none", true);
	expect_hostbox("phub://box/demo?hostbox=auto", NULL, true);
	assert_int_equal(settings_init(&s, "phub://a,b/demo?hostbox=auto", NULL, &e), -ENOTSUP);
	assert_non_null(strstr(e.text, "a second box in the URL"));
	setenv("PHUB_HOSTBOX", "1", 1);
	assert_int_equal(settings_init(&s, "phub://box/demo", NULL, &e), -EINVAL);
	assert_non_null(strstr(e.text, "PHUB_HOSTBOX='1'; allowed: auto, none"));
}

static void two_boxes(void **state)
{
	struct url_box box;
	struct url url;
	struct err e;

	assert_int_equal(url_parse("phub://box/demo", &url, &e), 0);
	assert_string_equal(url.other.host, "");
	assert_int_equal(url_parse("phub://[::1]:8,other:9/demo", &url, &e), 0);
	assert_string_equal(url.host, "::1");
	assert_int_equal(url.port, 8);
	assert_string_equal(url.other.host, "other");
	assert_int_equal(url.other.port, 9);
	assert_string_equal(url.job, "demo");
	assert_int_equal(url_parse("phub://a,b/demo", &url, &e), 0);
	assert_int_equal(url.port, 7077);
	assert_int_equal(url.other.port, 7077);

	assert_int_equal(url_parse_box("[::2]:5", &box, &e), 0);
	assert_string_equal(box.host, "::2");
	assert_int_equal(box.port, 5);
	assert_int_equal(url_parse_box("10.0.0.2", &box, &e), 0);
	assert_int_equal(box.port, 7077);
	assert_int_equal(url_parse_box("", &box, &e), -EINVAL);
	assert_int_equal(url_parse_box("box:0", &box, &e), -EINVAL);
	assert_non_null(strstr(e.text, "box:0"));
}

static void discover(int rank, int world, int expected_rank, int expected_world)
{
	struct err e;

	assert_int_equal(launcher_discover(&rank, &world, &e), 0);
	assert_int_equal(rank, expected_rank);
	assert_int_equal(world, expected_world);
}

static void launchers(void **state)
{
	struct err e;
	int rank = -1, world = -1;

	discover(-1, -1, 0, 1);
	discover(2, 3, 2, 3);
	setenv("SLURM_PROCID", "5", 1);
	setenv("SLURM_NTASKS", "6", 1);
	discover(-1, -1, 5, 6);
	setenv("OMPI_COMM_WORLD_RANK", "3", 1);
	discover(-1, -1, 5, 6); /* a whole pair goes before half of one */
	setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
	discover(-1, -1, 3, 4);
	unsetenv("OMPI_COMM_WORLD_SIZE");
	setenv("PMI_RANK", "2", 1);
	setenv("PMI_SIZE", "7", 1);
	discover(-1, -1, 2, 7);
	setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
	discover(-1, -1, 3, 4);
	setenv("JOB_COMPLETION_INDEX", "1", 1);
	discover(-1, -1, 3, 4); /* it has no world of its own */
	setenv("WORLD_SIZE", "2", 1);
	discover(-1, -1, 1, 2);
	setenv("RANK", "0", 1); /* torchrun in an indexed Job */
	discover(-1, -1, 0, 2);
	setenv("RANK", "1", 1);
	discover(-1, -1, 1, 2);
	discover(0, -1, 0, 2);
	discover(-1, 9, 1, 9);
	discover(7, 8, 7, 8);
	setenv("RANK", "one", 1);
	assert_int_equal(launcher_discover(&rank, &world, &e), -EINVAL);
	assert_non_null(strstr(e.text, "RANK='one'"));
	setenv("RANK", "", 1);
	assert_int_equal(launcher_discover(&rank, &world, &e), -EINVAL);
	setenv("RANK", "-1", 1);
	assert_int_equal(launcher_discover(&rank, &world, &e), -EINVAL);
	setenv("RANK", "1", 1);
	setenv("WORLD_SIZE", "2x", 1);
	rank = -1;
	assert_int_equal(launcher_discover(&rank, &world, &e), -EINVAL);
	assert_non_null(strstr(e.text, "WORLD_SIZE='2x'"));
}

/* What Python asks. */
static void launched(void **state)
{
	int rank = 7, world = 7;

	assert_int_equal(phub_launched(&rank, &world), 0);
	assert_true(rank == 0 && world == 1);
	setenv("PMI_RANK", "3", 1);
	assert_int_equal(phub_launched(&rank, &world), -EINVAL);
	assert_non_null(strstr(phub_error(), "PMI_RANK is set but PMI_SIZE is not"));
	assert_true(rank == 0 && world == 1);
	setenv("PMI_SIZE", "4", 1);
	assert_int_equal(phub_launched(&rank, &world), 0);
	assert_true(rank == 3 && world == 4);
	assert_int_equal(phub_launched(NULL, &world), -EINVAL);
}

static void ranks_without_launcher(void **state)
{
	struct err e;
	int rank = -1, world = 4;

	assert_int_equal(launcher_discover(&rank, &world, &e), -EINVAL);
	rank = 1;
	world = -1;
	assert_int_equal(launcher_discover(&rank, &world, &e), -EINVAL);
}

static void refuse_half(const char *set, const char *missing, const char *value)
{
	struct err e = {0};
	int rank = -1, world = -1;
	char text[128];

	clean_environment(NULL);
	setenv(set, value, 1);
	assert_int_equal(launcher_discover(&rank, &world, &e), -EINVAL);
	snprintf(text, sizeof(text), "%s is set but %s is not; set both", set, missing);
	if (!strstr(e.text, text))
		fail_msg("\"%s\" does not say \"%s\"", e.text, text);
	assert_true(rank == -1 && world == -1);
	discover(0, 1, 0, 1);
	discover(2, 3, 2, 3);
	discover(-1, 1, 0, 1);
	rank = 0;
	assert_int_equal(launcher_discover(&rank, &world, &e), -EINVAL);
	rank = -1;
	world = 2;
	assert_int_equal(launcher_discover(&rank, &world, &e), -EINVAL);
}

static void half_set_launchers(void **state)
{
	for (size_t i = 0; i < 8; i += 2) {
		refuse_half(variables[i], variables[i + 1], "2");
		refuse_half(variables[i + 1], variables[i], "4");
	}
	refuse_half("RANK", "WORLD_SIZE", "0");
	refuse_half("WORLD_SIZE", "RANK", "1");
	refuse_half("JOB_COMPLETION_INDEX", "WORLD_SIZE", "0");
	clean_environment(NULL);
	setenv("SLURM_PROCID", "0", 1); /* sbatch without --ntasks */
	discover(-1, -1, 0, 1);
	clean_environment(NULL);
	setenv("SLURM_NTASKS", "1", 1); /* salloc's shell */
	discover(-1, -1, 0, 1);
}

static void expect_settings(const struct phub_options *o, int code, const char *says)
{
	struct settings s;
	struct err e = {0};

	assert_int_equal(settings_init(&s, "phub://box/demo", o, &e), code);
	if (code == 0)
		settings_fini(&s);
	else if (!strstr(e.text, says))
		fail_msg("\"%s\" does not say \"%s\"", e.text, says);
}

static void options(void **state)
{
	struct phub_hyper hyper;
	struct phub_options o;

	expect_settings(NULL, 0, "");
	phub_options_init(&o);
	expect_settings(&o, 0, "");
	o.rank = 4;
	o.world = 4;
	expect_settings(&o, -ERANGE, "rank 4 is outside a world of 4");
	o.world = 2000;
	expect_settings(&o, -ERANGE, "1024");
	phub_options_init(&o);
	o.seal = (enum phub_seal)3;
	expect_settings(&o, -EINVAL, "seal 3 is not one of its enumeration");
	o.seal = PHUB_SEAL_NONE;
	expect_settings(&o, 0, "");
	o.sync = PHUB_ASYNC;
	expect_settings(&o, -EINVAL, "async needs an optimizer");
	o.optimizer = PHUB_ADAM;
	expect_settings(&o, 0, "");
	o.chunk_bytes = 5000;
	expect_settings(&o, -EINVAL, "powers of two");
	o.chunk_bytes = 65536;
	phub_hyper_init(PHUB_ADAM, &hyper);
	o.groups = &hyper;
	o.group_count = 0;
	expect_settings(&o, -EINVAL, "parameter groups");
	o.group_count = 1;
	expect_settings(&o, 0, "");
	hyper.beta1 = 1;
	expect_settings(&o, -EINVAL, "beta1");
	hyper.beta1 = 0.9;
	hyper.lr = -1;
	expect_settings(&o, -EINVAL, "lr");
	o.size = 0;
	expect_settings(&o, -EINVAL, "phub_options_init");
}

/* A program that was compiled when the options had fewer fields gets the defaults of the others. */
static void dscp(void **state)
{
	static const char *const wrong[] = {"64", "-1", "0x1a", "26 ", "cs3", "99999999999999999999"};
	struct settings s;
	struct err e;

	setenv("PHUB_RDMA_DSCP", "26", 1);
	assert_int_equal(settings_init(&s, "phub://box/demo", NULL, &e), 0);
	assert_int_equal(s.rdma_dscp, 26);
	settings_fini(&s);
	setenv("PHUB_RDMA_DSCP", "", 1);
	expect_settings(NULL, 0, "");
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		setenv("PHUB_RDMA_DSCP", wrong[i], 1);
		expect_settings(NULL, -EINVAL, "is no DSCP; allowed: 0 to 63");
	}
}

static void older_options(void **state)
{
	struct phub_options o;
	struct settings s;
	struct err e;

	phub_options_init(&o);
	o.size = offsetof(struct phub_options, timeout_ms);
	o.timeout_ms = -77;
	assert_int_equal(settings_init(&s, "phub://box/demo", &o, &e), 0);
	assert_int_equal(s.timeout_ms, 30000);
	/* The standby's word, which names who has not come, must come before the library's own end. */
	assert_true(s.move_ms * UINT64_C(1000000) >= MIRROR_MOVE_NS + UINT64_C(10000000000));
	settings_fini(&s);
}

static void secrets(void **state)
{
	char path[] = "/tmp/phub-secret-XXXXXX";
	int fd = mkstemp(path);
	struct phub_options o;
	struct settings s;
	struct err e;

	assert_true(fd >= 0 && write(fd, "from file\n", 10) == 10);
	close(fd);
	phub_options_init(&o);
	setenv("PHUB_SECRET_FILE", path, 1);
	assert_int_equal(settings_init(&s, "phub://box/demo", &o, &e), 0);
	assert_string_equal(s.secret, "from file");
	settings_fini(&s);
	/* As the box: what everybody can read is no secret. */
	assert_int_equal(chmod(path, 0644), 0);
	assert_int_equal(settings_init(&s, "phub://box/demo", &o, &e), -EACCES);
	assert_non_null(strstr(e.text, "PHUB_SECRET_FILE: /tmp/phub-secret-"));
	assert_non_null(strstr(e.text, "type chmod 600 /tmp/phub-secret-"));
	setenv("PHUB_SECRET", "from environment", 1);
	assert_int_equal(settings_init(&s, "phub://box/demo", &o, &e), 0);
	assert_string_equal(s.secret, "from environment");
	settings_fini(&s);
	o.secret = "from options";
	assert_int_equal(settings_init(&s, "phub://box/demo", &o, &e), 0);
	assert_string_equal(s.secret, "from options");
	settings_fini(&s);
	unsetenv("PHUB_SECRET");
	o.secret = NULL;
	unlink(path);
	assert_int_equal(settings_init(&s, "phub://box/demo", &o, &e), -ENOENT);
	assert_non_null(strstr(e.text, path));
}

static void expect_no_etcd(const char *url, const char *words)
{
	char out[FIND_URL_BYTES];
	struct err e = {0};

	assert_true(find_is_wanted(url));
	assert_int_equal(find_check(url, &e), -EINVAL);
	assert_int_equal(find_url(url, 0, out, &e), -EINVAL);
	if (!strstr(e.text, words))
		fail_msg("wanted '%s' in '%s'", words, e.text);
}

static void by_etcd(void **state)
{
	assert_false(find_is_wanted(NULL) || find_is_wanted("phub://box/job") || find_is_wanted("phub+etcd:/h/j"));
	unsetenv("PHUB_ETCD");
	expect_no_etcd("phub+etcd:///job", "names no etcd, and PHUB_ETCD is not set");
	expect_no_etcd("phub+etcd://h", "use phub+etcd://host[:port]");
	expect_no_etcd("phubs+etcd://h/", "use phub+etcd://host[:port]");
	expect_no_etcd("phub+etcd://h/a/b", "use phub+etcd://host[:port]");
}

TEST_PROGRAM(test_client_url)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(good_addresses),
		cmocka_unit_test(two_boxes),
		cmocka_unit_test(bad_addresses),
		cmocka_unit_test_setup_teardown(hostbox, clean_environment, clean_environment),
		cmocka_unit_test(by_etcd),
		cmocka_unit_test_setup(launchers, clean_environment),
		cmocka_unit_test_setup_teardown(launched, clean_environment, clean_environment),
		cmocka_unit_test_setup(ranks_without_launcher, clean_environment),
		cmocka_unit_test_setup_teardown(half_set_launchers, clean_environment, clean_environment),
		cmocka_unit_test_setup(options, clean_environment),
		cmocka_unit_test_setup_teardown(dscp, clean_environment, clean_environment),
		cmocka_unit_test_setup(older_options, clean_environment),
		cmocka_unit_test_setup_teardown(secrets, clean_environment, clean_environment),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
