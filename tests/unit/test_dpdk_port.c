/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The port of transport dpdk, on devices that are made of software: memif (two ports, joined), a ring back to itself,
 * null, and af_packet over a veth pair whose other end is the kernel's. The last needs root, in a network namespace of
 * this program's own.
 */
#include <errno.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/base/mem.h"
#include "phub/base/stats.h"
#include "tests/suite/transport_rig.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/dpdk_rig.h"

enum { BYTES = 1300, WAIT_MS = 3000 };

static const struct dpdk_plugin *plugin;
static bool may_net; /* a namespace of our own, with rights in it */

/* A message is but a count of who reads it. */
static int reading;

static void message_hold(struct reliable_message *m)
{
	++*(int *)m;
}

static void message_let(struct reliable *r, struct reliable_message *m)
{
	--*(int *)m;
}

static int warnings;

static void message_log(enum log_level level, const char *line)
{
	warnings += level == LOG_LEVEL_WARN;
	if (getenv("PHUB_LOG") || level == LOG_LEVEL_ERROR)
		fprintf(stderr, "%s\n", line);
}

static const struct dpdk_host host = {
	.log = message_log, .hold = message_hold, .let = message_let, .drop_name = dpdk_drop_name};

static struct dpdk_nic *nic_open_at(const char *spec, unsigned queues, const int *nodes)
{
	struct dpdk_nic_config config = {.queues = queues, .nodes = nodes};
	struct dpdk_nic *nic = NULL;
	struct err e = {0};

	assert_int_equal(dpdk_spec_parse(spec, &config.spec, &e), 0);
	if (plugin->open(&host, &config, &nic, &e) < 0)
		fail_msg("%s: %s", spec, e.text);
	return nic;
}

static struct dpdk_nic *nic_open_queues(const char *spec, unsigned queues)
{
	return nic_open_at(spec, queues, NULL);
}

static const struct dpdk_counters *count_of(const struct datagram_port *p)
{
	return plugin->counters(p);
}

/* As it is told outside. */
static uint64_t counted(const struct datagram_port *p, const char *what)
{
	const char *name;
	uint64_t value;

	for (unsigned i = 0; (name = p->ops->count(p, i, &value)); i++)
		if (strcmp(name, what) == 0)
			return value;
	fail_msg("nobody counts %s", what);
	return 0;
}

/* 0 when it went, else what room() said. */
static int say(struct datagram_port *p, const struct datagram_address *to, const char *head, const void *rest,
	uint32_t rest_bytes, bool flush)
{
	struct reliable_outgoing out = {0};
	int rc = p->ops->room(p, to, &out);

	if (rc == 0) {
		out.head_bytes = (uint32_t)strlen(head);
		memcpy(out.head, head, out.head_bytes);
		out.rest = rest;
		out.rest_bytes = rest_bytes;
		out.message = rest_bytes ? (struct reliable_message *)(void *)&reading : NULL;
		p->ops->send(p, NULL, &out);
	}
	if (flush)
		p->ops->flush(p);
	return rc;
}

/* What comes at `p` while `other` does its part, too: one datagram, or none in time. */
static bool hear(struct datagram_port *p, struct datagram_port *other, struct datagram_in *in, int ms)
{
	uint64_t until = clock_now_ns() + (uint64_t)ms * NS_PER_MS;
	struct datagram_in others[4];

	do {
		unsigned count = p->ops->receive(p, in, 1);

		p->ops->flush(p);
		if (count)
			return true;
		if (other) {
			other->ops->receive(other, others, 4);
			other->ops->flush(other);
		}
		sched_yield();
	} while (clock_now_ns() < until);
	return false;
}

/* As a reliable protocol would: until it comes, or not in time. */
static bool say_until_heard(
	struct datagram_port *from, const struct datagram_address *to, struct datagram_port *at, struct datagram_in *in)
{
	uint8_t payload[BYTES];

	for (unsigned i = 0; i < BYTES; i++)
		payload[i] = (uint8_t)(i * 7);
	for (int tries = 0; tries < WAIT_MS / 20; tries++) {
		say(from, to, "head", payload, BYTES, true);
		if (!hear(at, from, in, 20))
			continue;
		assert_int_equal(in->length, 4 + BYTES);
		assert_memory_equal(in->bytes, "head", 4);
		assert_memory_equal(in->bytes + 4, payload, BYTES);
		return true;
	}
	return false;
}

static void test_errors(void **state)
{
	struct dpdk_nic_config config = {.queues = 1};
	struct dpdk_nic *nic = NULL;
	struct err e = {0};

	assert_int_equal(dpdk_spec_parse("net_nothing0@10.0.0.1/24", &config.spec, &e), 0);
	assert_true(plugin->open(&host, &config, &nic, &e) < 0);
	assert_non_null(strstr(e.text, "net_nothing0"));
	assert_int_equal(dpdk_spec_parse("net_null0", &config.spec, &e), 0);
	assert_int_equal(plugin->open(&host, &config, &nic, &e), -EADDRNOTAVAIL);
	assert_non_null(strstr(e.text, "give it an address"));
	config.queues = 65;
	assert_int_equal(plugin->open(&host, &config, &nic, &e), -EINVAL);
	config.queues = 2;
	config.port_first = config.port_last = 7000;
	assert_int_equal(plugin->open(&host, &config, &nic, &e), -EADDRINUSE);
}

/* ---- memif ---- */

static unsigned memif_serial;

/* A socket for each: the driver gives back the server's after a while. */
static struct dpdk_nic *memif_box(unsigned queues)
{
	char spec[128];

	memif_serial++;
	snprintf(spec, sizeof(spec), "net_memif0,role=server,socket=phub-test-%d-%u@10.9.0.1/24", getpid(),
		memif_serial);
	return nic_open_queues(spec, queues);
}

static struct dpdk_nic *memif_worker(void)
{
	char spec[128];

	snprintf(spec, sizeof(spec), "net_memif1,role=client,socket=phub-test-%d-%u@10.9.0.2/24", getpid(),
		memif_serial);
	return nic_open_queues(spec, 1);
}

/* The driver's own thread must have seen that one end is gone before the other goes, or it frees twice. */
static void memif_close(struct dpdk_nic *nic)
{
	plugin->close(nic);
	usleep(50000);
}

static void test_memif(void **state)
{
	struct dpdk_nic *box_nic = memif_box(1), *worker_nic = memif_worker();
	struct datagram_port *box = dpdk_rig_port(plugin, box_nic, 0), *worker = dpdk_rig_port(plugin, worker_nic, 0);
	struct datagram_address from;
	struct dpdk_facts facts;
	struct datagram_in in;
	bool heard = false;

	plugin->facts(box_nic, &facts);
	assert_string_equal(facts.driver, "net_memif");
	assert_int_equal(facts.steering, DPDK_STEER_ONE);
	assert_true(facts.attaches);
	assert_int_equal(worker->datagram_max, 1472);
	/* Nobody is known there yet: asked, and heard of the answer. */
	reading = 0;
	from = box->address;
	memset(from.mac, 0, sizeof(from.mac));
	for (int tries = 0; tries < WAIT_MS / 300 && !heard;
		tries++) { /* it waits for 200 ms; the other end may be late */
		assert_int_equal(say(worker, &from, "waits", NULL, 0, true), 0);
		heard = hear(box, worker, &in, 300);
	}
	assert_true(heard);
	assert_memory_equal(in.bytes, "waits", 5);
	from.ip.s6_addr[15] = 77; /* nobody */
	for (int i = 0; i < 16; i++)
		assert_int_equal(say(worker, &from, "nobody", NULL, 0, true), 0);
	assert_int_equal(say(worker, &from, "nobody", NULL, 0, true), -EHOSTUNREACH);
	from.ip.s6_addr[13]++; /* in another network, and there is no gateway */
	assert_int_equal(say(worker, &from, "nobody", NULL, 0, true), -EHOSTUNREACH);
	from.ip = box->address.ip;
	assert_true(say_until_heard(worker, &from, box, &in));
	assert_true(count_of(worker)->asked >= 1);
	assert_true(count_of(box)->answered >= 1);
	assert_true(count_of(worker)->attached >= 1);
	assert_int_equal(count_of(worker)->copied, 0);
	assert_int_equal(in.from.port, worker->address.port);
	assert_memory_equal(&in.from.ip, &worker->address.ip, 16);
	assert_memory_equal(in.from.mac, worker->address.mac, 6);
	/* And back to where it came from, with nothing to be asked. */
	from = in.from;
	assert_true(say_until_heard(box, &from, worker, &in));
	assert_int_equal(count_of(box)->asked, 0);
	box->ops->reclaim(box, NULL, NULL);
	assert_int_equal(reading, 0);
	assert_int_equal(box->ops->arm(box, 0), -ENOTSUP);
	box->ops->close(box);
	worker->ops->close(worker);
	memif_close(worker_nic);
	memif_close(box_nic);
}

/* The other end goes and comes back: what is sent meanwhile is lost, nobody waits, no payload stays held. */
static void test_memif_link(void **state)
{
	struct dpdk_nic *box_nic = memif_box(1), *worker_nic = memif_worker();
	struct datagram_port *box = dpdk_rig_port(plugin, box_nic, 0), *worker = dpdk_rig_port(plugin, worker_nic, 0);
	struct datagram_address to = worker->address;
	uint8_t payload[BYTES] = {0};
	struct datagram_in in;

	reading = 0;
	assert_true(say_until_heard(box, &to, worker, &in));
	worker->ops->close(worker);
	memif_close(worker_nic);
	for (int i = 0; i < 2000; i++) {
		assert_int_not_equal(say(box, &to, "head", payload, BYTES, true), -EHOSTUNREACH);
		usleep(20);
	}
	assert_true(count_of(box)->lost > 0);
	/* 64 at most wait; with the connection's end they are let go. */
	box->ops->reclaim(box, NULL, NULL);
	assert_int_equal(reading, 0);
	worker_nic = memif_worker();
	worker = dpdk_rig_port(plugin, worker_nic, 0);
	to = worker->address; /* its MAC is another one */
	assert_true(say_until_heard(box, &to, worker, &in));
	box->ops->close(box);
	worker->ops->close(worker);
	memif_close(worker_nic);
	memif_close(box_nic);
}

/* Two queues on a device with one: who receives hands over, and both send through it. */
static void test_memif_steered(void **state)
{
	struct dpdk_nic *box_nic = memif_box(2), *worker_nic = memif_worker();
	struct datagram_port *first = dpdk_rig_port(plugin, box_nic, 0), *second = dpdk_rig_port(plugin, box_nic, 1);
	struct datagram_port *worker = dpdk_rig_port(plugin, worker_nic, 0);
	struct datagram_address to = second->address;
	struct dpdk_facts facts;
	struct datagram_in in;
	bool heard = false;

	plugin->facts(box_nic, &facts);
	assert_int_equal(facts.steering, DPDK_STEER_SOFT);
	assert_int_equal(facts.rx_queues, 1);
	assert_int_equal(to.port, first->address.port + 1);
	for (int tries = 0; tries < WAIT_MS / 20 && !heard; tries++) {
		say(worker, &to, "second", NULL, 0, true);
		heard = hear(second, first, &in, 20);
	}
	assert_true(heard);
	assert_memory_equal(in.bytes, "second", 6);
	assert_true(count_of(first)->steered >= 1);
	assert_int_equal(count_of(first)->came, 0);
	to = in.from;
	assert_true(say_until_heard(second, &to, worker, &in));
	assert_int_equal(in.from.port, second->address.port);
	/* A port that is nobody's. */
	to = second->address;
	to.port++;
	assert_int_equal(say(worker, &to, "third", NULL, 0, true), 0);
	assert_false(hear(first, second, &in, 50));
	assert_int_equal(count_of(first)->dropped[DPDK_NO_QUEUE], 1);
	assert_int_equal(counted(first, "no_queue"), 1);
	assert_int_equal(counted(first, "steered"), count_of(first)->steered);
	assert_int_equal(counted(second, "came"), count_of(second)->came);
	first->ops->close(first);
	second->ops->close(second);
	worker->ops->close(worker);
	memif_close(worker_nic);
	memif_close(box_nic);
}

/* ---- a ring, and nothing ---- */

/* What a device keeps beyond tx_burst() is copied for it. */
static void test_ring(void **state)
{
	struct dpdk_nic *nic = nic_open_queues("net_ring0@10.9.0.1/24", 1);
	struct datagram_port *p = dpdk_rig_port(plugin, nic, 0);
	struct datagram_in in[DPDK_DATAGRAMS];
	struct dpdk_facts facts;
	uint8_t payload[BYTES] = {0};
	char head[16];

	reading = 0;
	plugin->facts(nic, &facts);
	assert_true(facts.maps);
	assert_int_equal(facts.mapped, 0);
	for (int i = 0; i < 40; i++) {
		snprintf(head, sizeof(head), "%03d", i);
		assert_int_equal(say(p, &p->address, head, payload, BYTES, false), 0);
	}
	assert_int_equal(reading, 0);
	p->ops->flush(p);
	assert_int_equal(p->ops->receive(p, in, DPDK_DATAGRAMS), DPDK_DATAGRAMS);
	assert_memory_equal(in[31].bytes, "031", 3);
	assert_int_equal(p->ops->receive(p, in, DPDK_DATAGRAMS), 8);
	assert_memory_equal(in[7].bytes, "039", 3);
	assert_int_equal(count_of(p)->copied, 40);
	assert_int_equal(p->ops->receive(p, in, DPDK_DATAGRAMS), 0);
	p->ops->close(p);
	plugin->close(nic);
}

static unsigned mapped_of(struct dpdk_nic *nic)
{
	struct dpdk_facts facts;

	plugin->facts(nic, &facts);
	return facts.mapped;
}

/* What lies in memory that was mapped is read there, by and by; what is beside it is copied. */
static void test_ring_mapped(void **state)
{
	enum { HALF = 1 << 20 };
	struct dpdk_nic *nic = nic_open_queues("net_ring0@10.9.0.1/24", 1);
	struct datagram_port *p = dpdk_rig_port(plugin, nic, 0);
	struct datagram_in in[DPDK_DATAGRAMS];
	struct mem_region region = {0};
	struct err e;
	uint8_t *at, *other;

	reading = warnings = 0;
	assert_int_equal(mem_region_create(2 * HALF, 0, MEM_NODE_ANY, &region, &e), 0);
	at = region.base;
	other = at + HALF;
	memset(at, 7, region.bytes);
	/* Two connections. */
	assert_true(plugin->memory_use(nic, at, HALF, false));
	assert_true(plugin->memory_use(nic, at, HALF, false));
	assert_int_equal(mapped_of(nic), 1);
	/* What EAL does not take is copied, and told, once. */
	assert_true(plugin->memory_use(nic, other + 1, 4096, false));
	assert_true(plugin->memory_use(nic, other + 2, 4096, false));
	assert_int_equal(mapped_of(nic), 1);
	assert_int_equal(warnings, 1);
	assert_int_equal(say(p, &p->address, "first", at, BYTES, false), 0);
	assert_int_equal(say(p, &p->address, "last", other - BYTES, BYTES, false), 0);
	assert_int_equal(count_of(p)->attached, 2);
	assert_int_equal(say(p, &p->address, "across", other - 1, BYTES, false), 0);
	assert_int_equal(say(p, &p->address, "beside", other + 1, BYTES, false), 0);
	assert_int_equal(count_of(p)->attached, 2);
	assert_int_equal(count_of(p)->copied, 2);
	p->ops->flush(p);
	assert_int_equal(reading, 2); /* the device has them */
	assert_int_equal(p->ops->receive(p, in, DPDK_DATAGRAMS), 4);
	for (int i = 0; i < 4; i++)
		assert_memory_equal(in[i].bytes + in[i].length - BYTES, at, BYTES);
	assert_int_equal(reading, 0);
	/* Who goes does not wait for ever for a device that keeps what it has. */
	assert_int_equal(say(p, &p->address, "kept", at, BYTES, true), 0);
	assert_int_equal(reading, 1);
	p->ops->reclaim(p, NULL, NULL);
	assert_int_equal(reading, 0);
	assert_int_equal(p->ops->receive(p, in, DPDK_DATAGRAMS), 1);
	assert_int_equal(reading, 0);
	/* One of two goes; then the other, and what nobody uses is taken back when the next one comes. */
	plugin->memory_end(nic, at);
	assert_int_equal(say(p, &p->address, "still", at, BYTES, true), 0);
	assert_int_equal(count_of(p)->attached, 4);
	plugin->memory_end(nic, at);
	plugin->memory_end(nic, other + 1);
	plugin->memory_end(nic, other + 2);
	assert_true(plugin->memory_use(nic, other, HALF, false));
	assert_int_equal(mapped_of(nic), 1);
	assert_int_equal(say(p, &p->address, "no more", at, BYTES, true), 0);
	assert_int_equal(count_of(p)->attached, 4);
	assert_int_equal(say(p, &p->address, "but this", other, BYTES, true), 0);
	assert_int_equal(count_of(p)->attached, 5);
	plugin->memory_end(nic, other);
	p->ops->close(p);
	assert_int_equal(reading, 2); /* the port's end tells nobody: reclaim() did, before */
	plugin->close(nic);
	mem_region_destroy(&region);
}

/* The bound of what waits, and what a packet costs where the device costs nothing. */
static void test_null(void **state)
{
	enum { ROUNDS = 20000, BATCH = 32 };
	/* Nodes that have no memory, or are none: what there is is taken from elsewhere. */
	struct dpdk_nic *nic = nic_open_at("net_null0,no-rx=1@10.9.0.1/24", 2, (const int[]){7, 0});
	struct datagram_port *p = dpdk_rig_port(plugin, nic, 0);
	struct datagram_in in[DPDK_DATAGRAMS];
	uint8_t payload[BYTES] = {0};
	uint64_t begin = clock_thread_cpu_ns(), sent, empty;

	reading = 0;
	for (int i = 0; i < ROUNDS; i++) {
		for (int k = 0; k < BATCH; k++)
			assert_int_equal(say(p, &p->address, "head", payload, BYTES, k == BATCH - 1), 0);
	}
	sent = clock_thread_cpu_ns();
	assert_int_equal(reading, 0);
	assert_int_equal(count_of(p)->sent, ROUNDS * BATCH);
	assert_int_equal(count_of(p)->copied, ROUNDS * BATCH); /* the driver offers no packets in pieces */
	for (int i = 0; i < ROUNDS; i++)
		assert_int_equal(p->ops->receive(p, in, DPDK_DATAGRAMS), 0);
	empty = clock_thread_cpu_ns();
	print_message("null: %.1f ns a datagram sent, %.1f ns an empty receive()\n",
		(double)(sent - begin) / ROUNDS / BATCH, (double)(empty - sent) / ROUNDS);
	p->ops->close(p);
	plugin->close(nic);
}

/* ---- af_packet, and the kernel at the other end ---- */

static void command(const char *text)
{
	if (!rig_shell(text))
		fail_msg("failed: %s", text);
}

static int veth_setup(void **state)
{
	return dpdk_rig_veth() ? 0 : -1;
}

static int veth_drop(void **state)
{
	command("ip link del phub-a");
	return 0;
}

/* Both ways; the kernel finds us by ARP, and we it. */
static void talk(struct datagram_port *p, int fd, uint16_t port)
{
	struct datagram_address to = p->address;
	uint8_t payload[BYTES], got[BYTES + 8];
	struct datagram_in in;
	ssize_t bytes = -1;

	for (unsigned i = 0; i < BYTES; i++)
		payload[i] = (uint8_t)(i * 13);
	dpdk_rig_say(fd, p, "hello");
	assert_true(hear(p, NULL, &in, WAIT_MS));
	assert_int_equal(in.length, 5);
	assert_memory_equal(in.bytes, "hello", 5);
	assert_int_equal(in.from.port, port);
	/* Not by the MAC that it came from. */
	memcpy(&to.ip, &in.from.ip, sizeof(to.ip));
	memset(to.mac, 0, sizeof(to.mac));
	to.port = port;
	for (int tries = 0; tries < WAIT_MS / 20 && bytes < 0; tries++) {
		say(p, &to, "head", payload, BYTES, true);
		bytes = dpdk_rig_hear(fd, p, got, sizeof(got), 20);
	}
	assert_int_equal(bytes, 4 + BYTES);
	assert_memory_equal(got, "head", 4);
	assert_memory_equal(got + 4, payload, BYTES);
	assert_int_equal(reading, 0);
}

/* The driver takes no frame above 1518 bytes, and its ring's must fit our packets: said with a way out, or it runs. */
static void test_frame_sizes(void **state)
{
	static const struct {
		const char *device, *options, *why;
	} cases[] = {
		{"", ",mtu=9000", "its MTU may be 1500 at most with driver net_af_packet, not 9000"},
		{",framesz=16384,blocksz=16384", ",mtu=9000", "its MTU may be 1500 at most"},
		{",framesz=16384,blocksz=16384", "", "framesz=16384 is too large for an MTU of 1500: leave framesz="},
		{",framesz=1024", "", "framesz=1024 is too small for an MTU of 1500"},
		{",framesz=2048,blocksz=16384", ",mtu=1500", NULL},
		{"", "", NULL},
	};

	command("ip link set phub-a mtu 9000; ip link set phub-b mtu 9000");
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct dpdk_nic_config config = {.queues = 1};
		struct dpdk_nic *nic = NULL;
		struct err e = {0};
		char spec[128];

		snprintf(spec, sizeof(spec), "net_af_packet0,iface=phub-a%s@" OUR_IP "/24%s", cases[i].device,
			cases[i].options);
		assert_int_equal(dpdk_spec_parse(spec, &config.spec, &e), 0);
		if (plugin->open(&host, &config, &nic, &e) == 0)
			plugin->close(nic);
		else if (!cases[i].why || !strstr(e.text, cases[i].why))
			fail_msg("%s: %s", spec, e.text);
		if (!nic != !!cases[i].why)
			fail_msg("%s was taken", spec);
	}
}

static void test_kernel(void **state)
{
	struct dpdk_nic *nic;
	struct datagram_port *p;
	struct dpdk_facts facts;
	char got[64];
	uint16_t port;
	int fd;

	nic = nic_open_queues("net_af_packet0,iface=phub-a@" OUR_IP "/24", 1);
	p = dpdk_rig_port(plugin, nic, 0);
	fd = dpdk_rig_socket(&port);
	plugin->facts(nic, &facts);
	assert_string_equal(facts.driver, "net_af_packet");
	assert_true(facts.attaches && facts.up);
	reading = 0;
	talk(p, fd, port);
	assert_true(count_of(p)->answered >= 1);
	assert_true(count_of(p)->attached >= 1);
	/* What the device itself lost: nothing yet, and this driver never says. */
	assert_int_equal(counted(p, "missed") + counted(p, "no_buffer") + counted(p, "damaged_frames"), 0);
	/* The cable is pulled, and put back. */
	command("ip link set phub-b down");
	for (int i = 0; i < 200; i++) {
		struct datagram_address to = p->address;
		uint8_t payload[BYTES] = {0};

		to.port = port;
		say(p, &to, "head", payload, BYTES, true);
		dpdk_rig_hear(fd, p, got, sizeof(got), 1);
	}
	p->ops->reclaim(p, NULL, NULL);
	assert_int_equal(reading, 0);
	command("ip link set phub-b up");
	talk(p, fd, port);
	close(fd);
	p->ops->close(p);
	plugin->close(nic);
}

/* ---- frames that are wrong ---- */

/* Injects it at the kernel's end, and looks at what it was counted as; DPDK_DROPS: taken. */
static void inject(int raw, struct datagram_port *p, const struct frame *f, enum dpdk_drop why, const char *what)
{
	uint64_t before = why < DPDK_DROPS ? count_of(p)->dropped[why] : 0;
	struct datagram_in in;
	bool heard;

	assert_int_equal(send(raw, f->bytes, f->length, 0), f->length);
	heard = hear(p, NULL, &in, why < DPDK_DROPS ? 30 : WAIT_MS);
	if (heard != (why == DPDK_DROPS))
		fail_msg("%s: %s", what, heard ? "taken" : "not taken");
	if (why < DPDK_DROPS && count_of(p)->dropped[why] != before + 1)
		fail_msg("%s: not counted as %s", what, dpdk_drop_name(why));
}

static const struct wrong {
	const char *what;
	uint32_t at; /* 16 bits there: */
	uint32_t value;
	uint32_t length; /* of the frame; 0: all */
	enum dpdk_drop why;
	bool keep_sum;
} wrongs[] = {
	{"as it should be", 0, 0, 0, DPDK_DROPS, false},
	{"padded", 16, 20 + 8 + 30, 0, DPDK_RUNT, false},
	{"IPv6", 12, ETHERTYPE_IPV6, 0, DPDK_FOREIGN, false},
	{"VLAN", 12, ETHERTYPE_VLAN, 0, DPDK_FOREIGN, false},
	{"no IPv4 header", 0, 0, 14 + 19, DPDK_RUNT, false},
	{"version 6", 14, 0x6500, 0, DPDK_HEADER, false},
	{"options", 14, 0x4600, 0, DPDK_HEADER, false},
	{"shorter than its header", 16, 19, 0, DPDK_HEADER, false},
	{"longer than the frame", 16, 20 + 8 + 33, 0, DPDK_RUNT, false},
	{"cut off", 0, 0, 14 + 20 + 8 + 31, DPDK_RUNT, false},
	{"more fragments", 20, 0x2000, 0, DPDK_FRAGMENT, false},
	{"a later fragment", 20, 1, 0, DPDK_FRAGMENT, false},
	{"damaged", 18, 0x1234, 0, DPDK_DAMAGED, true},
	{"to another", 32, 0x0009, 0, DPDK_ELSEWHERE, false},
	{"to all", 32, 0x00ff, 0, DPDK_ELSEWHERE, false},
	{"to another's MAC", 2, 0x1234, 0, DPDK_ELSEWHERE, false},
	{"from a group's MAC", 6, 0x0300, 0, DPDK_HEADER, false},
	{"from nobody", 26, 0x0008, 0, DPDK_HEADER, false},
	{"from a group", 26, 0xe008, 0, DPDK_HEADER, false},
	{"from the loopback", 26, 0x7f08, 0, DPDK_HEADER, false},
	{"TCP", 22, 64 << 8 | IPPROTO_TCP, 0, DPDK_PROTOCOL, false},
	{"not an echo request", 22, 64 << 8 | IPPROTO_ICMP, 0, DPDK_PROTOCOL, false},
	{"no UDP header", 16, 20 + 7, 0, DPDK_RUNT, false},
	{"UDP longer than IPv4", 38, 8 + 33, 0, DPDK_RUNT, false},
	{"UDP shorter than its header", 38, 7, 0, DPDK_RUNT, false},
	{"to a port of nobody's", 36, 7151, 0, DPDK_NO_QUEUE, false},
	{"as it should be, still", 0, 0, 0, DPDK_DROPS, false},
};

static int raw_socket(const char *interface)
{
	struct sockaddr_ll at = {.sll_family = AF_PACKET,
		.sll_protocol = htons(ETH_P_ALL),
		.sll_ifindex = (int)if_nametoindex(interface)};
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons(ETH_P_ALL));

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	return fd;
}

static void test_wrong_frames(void **state)
{
	struct dpdk_nic *nic = nic_open_queues("net_tap0,iface=phub-t@" OUR_IP "/24", 1);
	struct datagram_port *p = dpdk_rig_port(plugin, nic, 0);
	int raw = raw_socket("phub-t");

	for (unsigned i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++) {
		const struct wrong *w = &wrongs[i];
		struct frame f = frame_good(p);

		if (w->at)
			put16(f.bytes + w->at, w->value);
		if (w->length)
			f.length = w->length;
		if (!w->keep_sum)
			frame_sum(&f);
		inject(raw, p, &f, w->why, w->what);
	}
	close(raw);
	p->ops->close(p);
	plugin->close(nic);
}

/*
 * The address is the kernel's own: the kernel, which sees each frame too, must not tell the peer that nobody has that
 * port. Before it did, it would ask for the peer's MAC.
 */
static void kernel_address_as(const char *spec)
{
	struct dpdk_nic *nic;
	struct datagram_port *p;
	struct frame f;
	struct datagram_address to;
	uint8_t heard[2048];
	ssize_t bytes;
	int raw;

	command("ip neigh flush dev phub-a");
	nic = nic_open_queues(spec, 1);
	p = dpdk_rig_port(plugin, nic, 0);
	assert_memory_equal(p->address.ip.s6_addr + 12, "\x0a\x08\x00\x01", 4);
	raw = raw_socket("phub-b");
	f = frame_good(p);
	inject(raw, p, &f, DPDK_DROPS, "to the kernel's address");
	usleep(100000);
	while (recv(raw, heard, sizeof(heard), 0) > 0)
		assert_memory_equal(
			heard + 6, f.bytes + 6, 6); /* ours, which a packet socket sees again; none of its */
	/* Whom the kernel knows we know: answers to ARP may come to it alone. */
	command("ip neigh replace 10.8.0.99 lladdr 02:00:00:00:00:99 dev phub-a");
	to = p->address;
	memset(to.mac, 0, sizeof(to.mac));
	to.ip.s6_addr[15] = 99;
	to.port = 9999;
	assert_int_equal(say(p, &to, "known to the kernel", NULL, 0, true), 0);
	do
		bytes = recv(raw, heard, sizeof(heard), 0);
	while (bytes > 0 && (bytes < 42 || memcmp(heard, "\x02\x00\x00\x00\x00\x99", 6) != 0));
	assert_true(bytes > 42);
	assert_memory_equal(heard + 42, "known to the kernel", 19);
	close(raw);
	p->ops->close(p);
	plugin->close(nic);
}

/* Left out, and written out. */
static void test_kernel_address(void **state)
{
	command("ip addr flush dev phub-b && ip addr add 10.8.0.3/24 dev phub-a && ip addr add " OUR_IP
		"/24 dev phub-a");
	kernel_address_as("net_af_packet0,iface=phub-a@" OUR_IP "/24");
	command("ip addr del 10.8.0.3/24 dev phub-a; ip addr replace " OUR_IP "/24 dev phub-a");
	kernel_address_as("net_af_packet0,iface=phub-a");
	kernel_address_as("net_af_packet0,iface=phub-a@" OUR_IP "/24");
}

TEST_PROGRAM(test_dpdk_port)
{
	const struct CMUnitTest kernel[] = {
		cmocka_unit_test_setup_teardown(test_kernel_address, veth_setup, veth_drop),
		cmocka_unit_test_setup_teardown(test_frame_sizes, veth_setup, veth_drop),
		cmocka_unit_test_setup_teardown(test_kernel, veth_setup, veth_drop),
		cmocka_unit_test_setup_teardown(test_wrong_frames, veth_setup, veth_drop),
	};
	const struct CMUnitTest soft[] = {
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_memif),
		cmocka_unit_test(test_memif_link),
		cmocka_unit_test(test_memif_steered),
		cmocka_unit_test(test_ring),
		cmocka_unit_test(test_ring_mapped),
		cmocka_unit_test(test_null),
	};
	struct err e;
	int failed;

	if (dpdk_load(&plugin, &e) < 0) {
		printf("%s\n", e.text);
		return 77;
	}
	may_net = geteuid() == 0 && unshare(CLONE_NEWNET) == 0;
	failed = cmocka_run_group_tests_name("devices of software", soft, NULL, NULL);
	if (!may_net)
		printf("without root there is no network namespace: nothing with the kernel was tried\n");
	return failed + (may_net ? cmocka_run_group_tests_name("with the kernel", kernel, NULL, NULL) : 0);
}
