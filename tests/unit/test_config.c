/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The config file: what is understood, what is refused with which line and words, and that a dump is read back as it
 * was.
 */
#include "phub/control/config.h"
#include "tests/unit/cmocka_shim.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int parse(struct config *config, const char *text, struct err *e)
{
	config_init(config);
	*e = (struct err){0};
	return config_parse(config, text, strlen(text), "phubd.yaml", e);
}

static void expect_good(const char *text, struct config *config)
{
	struct err e;

	if (parse(config, text, &e) < 0)
		fail_msg("%s", e.text);
}

static void expect_bad(const char *text, const char *words)
{
	struct config config;
	struct err e;
	int rc = parse(&config, text, &e);

	config_fini(&config);
	if (rc >= 0 || !strstr(e.text, words))
		fail_msg("wanted '%s', got %d '%s'", words, rc, e.text);
}

/* Words with commas between them, or a list of YAML; the same either way, and when it was dumped. */
static void test_etcd(void **state)
{
	struct config config;

	expect_good("etcd: [http://a:1, 'b:2']\nbox: b0\n", &config);
	assert_string_equal(config.etcd, "http://a:1,b:2");
	assert_string_equal(config.etcd_prefix, "/phub");
	assert_int_equal(config.etcd_ttl_ms, 10000);
	assert_string_equal(config.box, "b0");
	expect_good("etcd: http://a:1,b:2\n", &config);
	assert_string_equal(config.etcd, "http://a:1,b:2");
	expect_bad(
		"etcd_ttl_ms: 1999\n", "phubd.yaml:1: etcd_ttl_ms: '1999' is out of range; allowed: 2000 to 3600000");
	expect_bad("etcd: {a: b}\n", "phubd.yaml:1: etcd: not a plain value, but a mapping; allowed: a list of words");
}

static void test_defaults(void **state)
{
	struct config config;

	expect_good("", &config);
	assert_int_equal(config.listen_count, 1);
	assert_string_equal(config.listen[0].host, "127.0.0.1");
	assert_int_equal(config.listen[0].port, 7077);
	assert_int_equal(config.transport_count, 2);
	assert_string_equal(config.transports[1], "shm");
	assert_int_equal(config.chunk_bytes, 32768);
	assert_int_equal(config.lost_ms, 10000);
	assert_int_equal(config.create, CONFIG_CREATE_SAME_UID);
	assert_true(config.huge_pages);
	assert_int_equal(config.stores, STORE_RESULTS_AUTO);
	assert_int_equal(config.core_count, 0);
	config_fini(&config);
	expect_good("# nothing but a comment\n", &config);
	config_fini(&config);
}

static void test_values(void **state)
{
	struct config config;

	expect_good("listen: ['127.0.0.1:7000', '[::1]:7001', 'box.local:0', '*:9']\n"
		    "data_ports: 8000-8003\n"
		    "transports: [shm]\n"
		    "cores: [3, 5-7]\n"
		    "poll: busy\n"
		    "memory_max: 8GiB\n"
		    "chunk_bytes: 65536\n"
		    "huge_pages: false\n"
		    "stores: streamed\n"
		    "jobs:\n"
		    "  - name: mnist\n"
		    "    secret_file: /etc/phub/mnist\n"
		    "    world: 4\n"
		    "  - {name: other, memory_max: 1MiB, weight: 3, cores: 2, bandwidth: 1GiB}\n"
		    "  - {name: other.x}\n",
		&config);
	assert_int_equal(config.listen_count, 4);
	assert_string_equal(config.listen[1].host, "::1");
	assert_int_equal(config.listen[1].port, 7001);
	assert_string_equal(config.listen[2].host, "box.local");
	assert_string_equal(config.listen[3].host, "");
	assert_int_equal(config.port_first, 8000);
	assert_int_equal(config.port_last, 8003);
	assert_int_equal(config.transport_count, 1);
	assert_true(config.cores_listed);
	assert_int_equal(config.core_count, 4);
	assert_int_equal(config.cpus[3], 7);
	assert_int_equal(config.poll, CONFIG_POLL_BUSY);
	assert_int_equal(config.memory_max, UINT64_C(8) << 30);
	assert_int_equal(config.chunk_bytes, 65536);
	assert_false(config.huge_pages);
	assert_int_equal(config.stores, STORE_RESULTS_STREAMED);
	assert_int_equal(config.job_count, 3);
	assert_int_equal(config_find_job(&config, "mnist")->world, 4);
	assert_int_equal(config_find_job(&config, "other")->memory_max, 1 << 20);
	assert_int_equal(config_find_job(&config, "other")->weight, 3);
	assert_int_equal(config_find_job(&config, "other")->cores, 2);
	assert_int_equal(config_find_job(&config, "other")->bandwidth, 1 << 30);
	assert_null(config_find_job(&config, "another"));
	assert_null(config_find_job(&config, "othe"));
	assert_ptr_equal(config_find_job(&config, "other.used"), config_find_job(&config, "other"));
	assert_ptr_equal(config_find_job(&config, "other.x"), &config.jobs[2]);
	assert_ptr_equal(config_find_job(&config, "other.x.used"), &config.jobs[2]);
	assert_ptr_equal(config_find_job(&config, "other.xy"), config_find_job(&config, "other"));
	config_fini(&config);
}

static void test_refusals(void **state)
{
	expect_bad("window: 64\ncorse: 2\n",
		"phubd.yaml:2: unknown key 'corse'; near it: cores; phubd --dump-config says all");
	expect_bad("checkpoint_target: /x\n", "unknown key 'checkpoint_target'; near it: checkpoint_targets");
	expect_bad("colour: red\n", "unknown key 'colour'; phubd --dump-config says all");
	expect_bad("a-key-that-is-far-longer-than-any-that-there-is-and-than-what-is-looked-at-in-it: 1\n",
		"phubd --dump-config says all");
	expect_bad("window: 64\n\nwindow: 65\n", "phubd.yaml:3: window is given twice");
	expect_bad("window: 1\n", "phubd.yaml:1: window: '1' is out of range; allowed: 2 to 4096");
	expect_bad("window: many\n", "phubd.yaml:1: window: 'many' is not understood; allowed: 2 to 4096");
	expect_bad("window: [3]\n", "phubd.yaml:1: window: not a plain value, but a list; allowed: 2 to 4096");
	expect_bad("poll: {a: b}\n", "phubd.yaml:1: poll: not a plain value, but a mapping; allowed: adaptive, busy");
	expect_bad("window: -1\n", "not understood");
	expect_bad("rdma_dscp: 64\n", "phubd.yaml:1: rdma_dscp: '64' is out of range; allowed: 0 to 63");
	expect_bad("window: 99999999999999999999\n", "out of range");
	expect_bad(
		"chunk_bytes: 5000\n", "chunk_bytes: '5000' is out of range; allowed: powers of two from 4KiB to 2MiB");
	expect_bad("memory_max: 8Gib\n", "like 8GiB");
	expect_bad("standby: a b\n", "standby: 'a b' is not understood; allowed: a word");
	expect_bad("memory_max: 99999999TiB\n", "out of range");
	expect_bad("poll: lazy\n", "poll: 'lazy' is not understood; allowed: adaptive, busy");
	expect_bad("datagram_seal: off\n", "datagram_seal: 'off' is not understood; allowed: gmac, crc, none");
	expect_bad("stores: written\n", "allowed: auto, cached, streamed");
	expect_bad("huge_pages: yes\n", "allowed: true, false");
	expect_bad("transports: [tcp, rfc1149]\n",
		"phubd.yaml:1: transports: 'tcp,rfc1149' is not understood: this build has no transport 'rfc1149'; "
		"allowed: tcp, shm");
	expect_bad("transports: loop\n", "phubd.yaml:1: transports: 'loop' is not understood: this build has no");
	expect_bad(
		"transports: [tcp, [shm]]\n", "transports: item '(a list or mapping)' is no plain word; allowed: tcp,");
	expect_bad("transports: [tcp, tcp]\n", "'tcp' is given twice; allowed: tcp, shm");
	expect_bad("transports: []\n", "transports");
	expect_bad("listen: 127.0.0.1\n", "allowed: 1 to 8 of host:port");
	expect_bad("listen: '::1:7077'\n", "[ipv6]:port");
	expect_bad("listen: 127.0.0.1:70000\n", "out of range");
	expect_bad(
		"listen: ['a:1', 'b']\n", "listen: 'a:1,b' is not understood: see 'b'; allowed: 1 to 8 of host:port");
	expect_bad("data_ports: 9000-8000\n", "out of range");
	expect_bad("cores: 0\n", "out of range");
	expect_bad(
		"cores: [1, 1]\n", "cores: '[1,1]' is not understood: CPU 1 is given twice; allowed: auto, a count of");
	expect_bad("cores: '[1'\n", "the closing bracket is missing");
	expect_bad("cores: [1, 7-5]\n", "out of range: see '7-5'");
	expect_bad("cores: [0-300]\n", "out of range");
	expect_bad("interface: a-name-that-is-too-long\n", "at most 15 characters");
	expect_bad("create_secret_env: A-B\n", "letters, digits and _");
	expect_bad("jobs: 5\n", "phubd.yaml:1: jobs: not a list");
	expect_bad("jobs:\n  - 5\n", "phubd.yaml:2: jobs: an item is no mapping");
	expect_bad("jobs:\n  - {world: 3}\n", "phubd.yaml:2: jobs: name ''");
	expect_bad("jobs:\n  - {name: a/b}\n", "phubd.yaml:2: jobs: name 'a/b'");
	expect_bad("jobs:\n  - {name: a}\n  - {name: b, wordl: 3}\n",
		"phubd.yaml:3: unknown key 'wordl'; allowed: name, secret_file");
	expect_bad("jobs:\n  - {name: a}\n  - {name: a}\n", "phubd.yaml:3: jobs: 'a' is given twice, first in line 2");
	expect_bad("jobs:\n  - {name: a, world: 2000}\n", "world: '2000' is out of range; allowed: 0 to 1024");
	expect_bad("- a\n- b\n", "phubd.yaml:1: not a list of key: value");
	expect_bad("window: 64\n\t- x\n", "phubd.yaml:2: not YAML: ");
	expect_bad("? [a, b]\n: c\n", "unknown key");
}

static void test_size(void **state)
{
	size_t bytes = CONFIG_FILE_BYTES_MAX + 1;
	char *text = malloc(bytes);
	struct config config;
	struct err e = {0};

	memset(text, '#', bytes);
	config_init(&config);
	assert_int_equal(config_parse(&config, text, bytes, "x", &e), -EFBIG);
	assert_int_equal(config_parse(&config, text, bytes - 1, "x", &e), 0);
	config_fini(&config);
	free(text);
}

static void test_set(void **state)
{
	struct config config;
	struct err e = {0};

	config_init(&config);
	assert_int_equal(config_set(&config, "listen=[::1]:0, 127.0.0.1:0", &e), 0);
	assert_int_equal(config.listen_count, 2);
	/* As config_dump() writes it. */
	assert_int_equal(config_set(&config, "listen=['[::1]:0', \"a:1\" , b:2]", &e), 0);
	assert_int_equal(config.listen_count, 3);
	assert_string_equal(config.listen[0].host, "::1");
	assert_string_equal(config.listen[1].host, "a");
	assert_int_equal(config.listen[2].port, 2);
	assert_int_equal(config_set(&config, "listen=[[::1]:7]", &e), 0);
	assert_int_equal(config.listen[0].port, 7);
	assert_int_equal(config_set(&config, "transports=[udp,shm, 'tcp']", &e), 0);
	assert_int_equal(config.transport_count, 3);
	assert_string_equal(config.transports[2], "tcp");
	assert_int_equal(config_set(&config, "etcd=[http://a:1, 'b:2']", &e), 0);
	assert_string_equal(config.etcd, "http://a:1,b:2");
	assert_int_equal(config_set(&config, "uplink=[::1]:7077", &e), 0);
	assert_string_equal(config.uplink, "[::1]:7077");
	assert_int_equal(config_set(&config, "uplink=[]", &e), 0);
	assert_string_equal(config.uplink, "");
	assert_int_equal(config_set(&config, "transports=[]", &e), -EINVAL);
	assert_int_equal(config_set(&config, "transports=[tcp, rfc1149]", &e), -EINVAL);
	assert_non_null(strstr(
		e.text, "transports: '[tcp, rfc1149]' is not understood: this build has no transport 'rfc1149'"));
	assert_int_equal(config_set(&config, "transports=[tcp, shm", &e), -EINVAL);
	assert_non_null(strstr(e.text, "a bracket without the other; allowed: tcp, shm"));
	assert_int_equal(config_set(&config, "cores=[0,1]", &e), 0);
	assert_int_equal(config.core_count, 2);
	assert_int_equal(config_set(&config, "cores=3", &e), 0);
	assert_int_equal(config.core_count, 3);
	assert_false(config.cores_listed);
	assert_int_equal(config_set(&config, "interface=", &e), 0);
	assert_int_equal(config_set(&config, "window", &e), -EINVAL);
	assert_int_equal(config_set(&config, "wind=3", &e), -EINVAL);
	assert_non_null(strstr(e.text, "unknown key 'wind'; near it: window; "));
	assert_int_equal(config_set(&config, "jobs=3", &e), -EINVAL);
	config_fini(&config);
}

static char *dump(const struct config *config)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	assert_non_null(out);
	config_dump(config, out);
	fclose(out);
	return text;
}

static void test_dump_is_read_back(void **state)
{
	struct config config, again;
	char *first, *second;

	expect_good("listen: ['127.0.0.1:7000', '[::1]:7001', '*:9']\ncores: [0, 5-6]\nmemory_max: 3000000000\n"
		    "interface: \"eth'0\"\ndata_ports: any\ncreate: never\n"
		    "create_secret_file: '/a path: with # in it'\njobs:\n  - {name: \"a'b\", secret_env: X_1, world: "
		    "7}\n  - {name: true}\n",
		&config);
	first = dump(&config);
	expect_good(first, &again);
	second = dump(&again);
	assert_string_equal(first, second);
	assert_string_equal(again.create_secret.file, "/a path: with # in it");
	assert_int_equal(again.memory_max, 3000000000u);
	free(first);
	free(second);
	config_fini(&config);
	config_fini(&again);
}

/* ---- what is checked once all is set ---- */

static void expect_finish(const char *text, const char *words)
{
	struct config config;
	struct err e;
	int rc;

	expect_good(text, &config);
	e = (struct err){0};
	rc = config_finish(&config, &e);
	if (words ? rc >= 0 || !strstr(e.text, words) : rc < 0)
		fail_msg("wanted '%s', got %d '%s'", words ? words : "success", rc, e.text);
	if (rc == 0) {
		assert_true(config.core_count >= 1);
		assert_true(config.memory_max > 0);
	}
	config_fini(&config);
}

static void test_finish(void **state)
{
	expect_finish("", NULL);
	expect_finish("listen: ['[::1]:0', '127.0.0.2:0']\n", NULL);
	expect_finish("listen: '0.0.0.0:7077'\n",
		"0.0.0.0 is not loopback, and create: same-uid needs no secret; set create: secret");
	expect_finish("listen: ['127.0.0.1:1', '*:7077']\n", "listen: * is not loopback");
	expect_finish("listen: '0.0.0.0:7077'\ncreate: never\njobs: [{name: a}]\n",
		"job 'a' has no secret; give it a secret_file");
	expect_finish("standby: 'box2:7077'\n", NULL);
	expect_finish("standby: 'phubs://[::1]:7077'\nstandby_advertise: 'box2.example:7077'\n", NULL);
	expect_finish("standby: box2\n", "standby: 'box2' is not understood; allowed: host:port or phubs://host:port");
	expect_finish("standby: '*:7077'\n", "is not understood");
	expect_finish("standby: 'box2:0'\n", "is not understood");
	expect_finish("standby_advertise: 'box2:7077'\n",
		"phubd.yaml:1: standby_advertise: 'box2:7077' without a standby; set standby to the box");
	expect_finish("window: 64\nbox: a/b\n", "phubd.yaml:2: box: 'a/b'; allowed: printable characters");
	expect_finish("etcd_prefix: a/\n", "phubd.yaml:1: etcd_prefix: 'a/'; allowed: what keys begin with");
	expect_finish("standby: '127.0.0.1:7077'\n", "phubd.yaml:1: standby: '127.0.0.1:7077' is this box itself");
	expect_finish("standby: 'phubs://localhost:7077'\n", "is this box itself, which listens there; name another");
	expect_finish("standby: '[::ffff:127.0.0.1]:7077'\n", "is this box itself");
	expect_finish("listen: ['127.0.0.2:9', '127.0.0.3:0']\nstandby: '127.0.0.2:9'\n", "phubd.yaml:2: standby: '");
	expect_finish("listen: '127.0.0.2:9'\nstandby: '127.0.0.3:9'\n", NULL);
	expect_finish("listen: '127.0.0.2:9'\nstandby: '127.0.0.2:10'\n", NULL);
	expect_finish("listen: 'nowhere.invalid:77'\nstandby: 'nowhere.invalid:77'\n", "is this box itself");
	expect_finish("standby: 'nowhere.invalid:7077'\n", NULL);
	expect_finish(
		"standby: 'box2:7077'\nstandby_advertise: 'box2'\n", "standby_advertise: 'box2' is not understood");
	expect_finish("checkpoint_targets: /a\n", NULL);
	expect_finish("checkpoint_targets: '/a, /b'\ncheckpoint_parity: 1\n", NULL);
	expect_finish("checkpoint_targets: relative/x\n",
		"phubd.yaml:1: checkpoint_targets: 'relative/x' is no path from the root; write /like/this");
	expect_finish("window: 64\ncheckpoint_targets: '/a, /b'\n",
		"phubd.yaml:2: checkpoint_targets: a checkpoint in 2 directories without parity: the loss of any");
	expect_finish("checkpoint_targets: /a\ncheckpoint_parity: 1\n",
		"checkpoint_targets: a parity of 1 in 1 directory; at least one must be left for data");
	expect_finish("checkpoint_targets: '/a,/a'\ncheckpoint_parity: 1\n", "'/a' is given twice");
	expect_finish("checkpoint_targets: ' '\n", "checkpoint_targets: '' is no path from the root");
	expect_finish("checkpoint_targets: ','\n", "a checkpoint in 0 directories; allowed are 1 to 32");
	expect_finish(
		"checkpoint_targets: /a,/b,/c,/d,/e,/f,/g,/h,/i,/j,/k,/l,/m,/n,/o,/p,/q,/r,/s,/t,/u,/v,/w,/x,/y,/z,"
		"/0,/1,/2,/3,/4,/5,/6\ncheckpoint_parity: 1\n",
		"a checkpoint in 33 directories; allowed are 1 to 32");
	expect_finish("checkpoint_parity: 1\n", "phubd.yaml:1: checkpoint_parity: 1 without checkpoint_targets");
	expect_finish("create: never\n", "create: never needs a list of jobs");
	expect_finish("create: secret\n", "create: secret needs create_secret_file");
	expect_finish("heartbeat_ms: 2000\n", "heartbeat_ms 2000 is not below warn_ms 2000");
	expect_finish("warn_ms: 10000\n", "warn_ms 10000 is not below lost_ms 10000");
	expect_finish(
		"create: secret\ncreate_secret_env: PHUB_TEST_NO_SUCH\n", "the environment has no PHUB_TEST_NO_SUCH");
	expect_finish("create: secret\ncreate_secret_file: /nowhere/x\n", "/nowhere/x: ");
	expect_finish("memory_max: 900TiB\n",
		"memory_max: '900TiB' is more than this machine or container has; allowed: auto ");
	expect_finish("memory_max: 1MiB\n", NULL);
	expect_finish("memory_max: 64MiB\nrdma_slots_memory: 64MiB\n", NULL);
	expect_finish("memory_max: 64MiB\nrdma_slots_memory: 65MiB\n",
		"rdma_slots_memory 65MiB is more than memory_max 64MiB");
	expect_finish("admin_secret_file: /x\nadmin_secret_env: Y\n", "give one");
}

static const char racks_text[] =
	"racks:\n"
	"  - {name: r0, uplink: 100Mbit, boxes: [{name: a, address: '127.0.0.1:7077', rate: 1Gbit}]}\n"
	"  - {name: r1, uplink: 100Mbit, boxes: [{name: b, address: '127.0.0.2:7078', rate: 1Gbit},\n"
	"     {name: c, address: 'localhost:7079', rate: 1Gbit},\n"
	"     {name: d, address: 'd.example:7080', rate: 1Gbit, sibling: b},\n"
	"     {name: e, address: '127.0.0.1:7079', rate: 1Gbit}]}\n";

/* `words`: of the error, or what config_describe_racks() says behind the file; `uplink`: what then is. */
static void expect_racks(const char *path, const char *options, const char *words, const char *uplink)
{
	struct config config;
	char text[512], told[1024];
	struct err e = {0};
	int rc;

	snprintf(text, sizeof(text), "racks: %s\n%s", path, options);
	expect_good(text, &config);
	rc = config_finish(&config, &e);
	config_describe_racks(&config, told, sizeof(told));
	if (!strstr(rc < 0 ? e.text : told, words) || (rc < 0) != !uplink)
		fail_msg("of '%s' wanted '%s', got %d '%s'", options, words, rc, rc < 0 ? e.text : told);
	if (uplink)
		assert_string_equal(config.uplink, uplink);
	config_fini(&config);
}

/* Which box of the rack file this one is, and so which is above it. */
static void test_racks(void **state)
{
	char path[] = "/tmp/phub-test-racks-XXXXXX";
	int fd = mkstemp(path);

	assert_int_equal(write(fd, racks_text, sizeof(racks_text) - 1), sizeof(racks_text) - 1);
	expect_racks(path, "", "box a of rack r0 in ", "");
	expect_racks(path, "", "; no box is above it", "");
	expect_racks(path, "listen: '127.0.0.2:7078'\n", "box b of rack r1 in", "127.0.0.1:7077");
	expect_racks(path, "listen: '127.0.0.2:7078'\n", "is 127.0.0.1:7077, the first of the file", "127.0.0.1:7077");
	expect_racks(
		path, "listen: '127.0.0.2:7078'\nuplink: 'top.example:9'\n", "box b of rack r1 in", "top.example:9");
	expect_racks(path, "listen: '127.0.0.1:9999'\nadvertise: 'd.example:7080'\n", "box d of", "127.0.0.1:7077");
	expect_racks(path, "listen: '127.0.0.1:9999'\nbox: c\n", "box c of rack r1 in", "127.0.0.1:7077");
	expect_racks(path, "listen: '127.0.0.1:9999'\nbox: d\n", "; its workers go to 127.0.0.2:7078 when it dies",
		"127.0.0.1:7077");
	expect_racks(path, "listen: '127.0.0.1:9999'\n", "phubd.yaml:1: racks: no box of ", NULL);
	expect_racks(path, "listen: '127.0.0.1:9999'\n",
		"has the address and port where this one listens; set box to the name of this one (a, b, c, d, e)",
		NULL);
	expect_racks(path, "advertise: 'x.example:7077'\n", "has the address of advertise", NULL);
	expect_racks(path, "listen: '127.0.0.1:7079'\n", "boxes 'c' and 'e' of ", NULL);
	expect_racks(
		path, "listen: '127.0.0.1:7079'\n", "are both at addresses of this one; set box to its name", NULL);
	expect_racks(path, "box: f\n", "phubd.yaml:2: box: 'f' is no box of ", NULL);
	expect_racks(path, "box: f\n", "; allowed: a, b, c, d, e", NULL);
	expect_racks(path, "listen: '127.0.0.2:7078'\nhierarchy: chain\n",
		"has another above it (the first of the rack file)", NULL);
	expect_racks("/nowhere/racks.yaml", "", "phubd.yaml:1: racks: /nowhere/racks.yaml: No such file", NULL);
	expect_finish("box: a\n", "phubd.yaml:1: box: 'a' without a rack file or etcd; set racks or etcd");
	assert_int_equal(write(fd, "bad: 1\n", 7), 7);
	expect_racks(path, "", ":7: the file has no key 'bad'", NULL);
	close(fd);
	unlink(path);
}

/* A list of places that the box above may be at: this box itself may be in it, but at the first. */
static void test_uplinks(void **state)
{
	struct config config;
	struct err e;

	config_init(&config);
	assert_int_equal(
		parse(&config,
			"listen: '127.0.0.1:7077'\nadvertise: 'me.example:1'\n"
			"uplink: ['10.0.0.1:7077', 'phubs://[::2]:9', '127.0.0.1:7077', 'me.example:1', a:5]\n",
			&e),
		0);
	assert_int_equal(config_finish(&config, &e), 0);
	assert_int_equal(config.uplink_count, 3);
	assert_string_equal(config.uplinks[1].at.host, "::2");
	assert_true(!config.uplinks[0].tls && config.uplinks[1].tls && !config.uplinks[2].tls);
	assert_int_equal(config.uplinks[2].at.port, 5);
	config_fini(&config);
	expect_finish("uplink: ['127.0.0.1:7077', 'a:1']\n", "uplink: '127.0.0.1:7077' is this box itself");
	expect_finish("uplink: 'a:1, b'\n", "uplink: 'b' is not understood; allowed: host:port");
	expect_finish("uplink: 'a:1,'\n", "uplink: '' is not understood; allowed: host:port");
	expect_finish("uplink: a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9\n", "phubd.yaml:1: uplink: more than 8 boxes");
}

/* What is registered at start where nobody says: small on a small machine, bounded on a large one. */
static void test_slots(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} cases[] = {{"memory_max: 1MiB\n", 1 << 20}, {"memory_max: 64MiB\n", 4 << 20},
		{"memory_max: 512MiB\n", 16 << 20}, {"memory_max: 512MiB\nrdma_slots_memory: 7MiB\n", 7 << 20}};
	struct config config;
	struct err e;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		expect_good(cases[i].text, &config);
		assert_int_equal(config_finish(&config, &e), 0);
		assert_int_equal(config.rdma_slots_memory, cases[i].bytes);
		config_fini(&config);
	}
}

static void test_secret_files(void **state)
{
	char path[] = "/tmp/phub-test-secret-XXXXXX", text[256];
	int fd = mkstemp(path);
	struct config config;
	struct err e = {0};

	assert_true(fd >= 0);
	snprintf(text, sizeof(text), "listen: '0.0.0.0:0'\ncreate: secret\ncreate_secret_file: %s\n", path);
	expect_finish(text, "the secret has 0 bytes");
	assert_int_equal(write(fd, "open sesame\n", 12), 12);
	expect_good(text, &config);
	assert_int_equal(config_finish(&config, &e), 0);
	assert_int_equal(config.create_secret.length, 11);
	assert_memory_equal(config.create_secret.bytes, "open sesame", 11);
	config_fini(&config);
	assert_int_equal(fchmod(fd, 0644), 0);
	expect_finish(text, "open to every user of this machine; type chmod 600");
	close(fd);
	unlink(path);
}

static void test_names(void **state)
{
	assert_true(config_job_name_valid("resnet50.run-3"));
	assert_false(config_job_name_valid(""));
	assert_false(config_job_name_valid("a b"));
	assert_false(config_job_name_valid("a/b"));
	assert_false(config_job_name_valid("a\n"));
	assert_false(config_job_name_valid("\xc3\xa4"));
}

TEST_PROGRAM(test_config)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_etcd),
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_size),
		cmocka_unit_test(test_set),
		cmocka_unit_test(test_dump_is_read_back),
		cmocka_unit_test(test_finish),
		cmocka_unit_test(test_racks),
		cmocka_unit_test(test_uplinks),
		cmocka_unit_test(test_slots),
		cmocka_unit_test(test_secret_files),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
