/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a datagram of the exchange costs in transport dpdk where the device costs next to nothing: TSC cycles a packet,
 * one line of JSON. Sent: reliable_next(), the port's room() and send(), and flush(), to net_null. Received: the port's
 * receive() and reliable_input() at a box, from a net_ring that leads back to its own port; and receive() alone from
 * net_null, whose frames are zeros and are dropped.
 *
 * Usage: dpdk_cycles [SEAL [ROUNDS]]      SEAL: gmac, crc, none (all); callgrind counts rounds of one SEAL
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/clock.h"
#include "phub/base/mem.h"
#include "transport/dpdk.h"
#include "transport/reliable.h"

enum {
	CHUNK = 32 << 10,
	CHUNKS = 64,
	ROUNDS = 20000,
	WARM = 200, /* rounds that are not counted: the window grows */
	JOB = 7,
};

struct bench {
	const struct dpdk_plugin *plugin;
	enum seal_kind seal;
	struct conn heads[2]; /* of worker and box */
	struct conn_spec specs[2];
	struct span spans[CHUNKS];
	struct sink sinks[CHUNKS];
	struct reliable *ends[2];
	struct reliable_conn *conns[2];
	uint8_t *payload;
	uint32_t seq;
	uint64_t now_ns;
	uint64_t sent, sent_cycles, came, came_cycles;
};

enum { WORKER, BOX };

static uint64_t cycles_now(void)
{
#ifdef __x86_64__
	return __builtin_ia32_rdtsc();
#else
	return clock_now_ns();
#endif
}

static void die(const char *what, const char *why)
{
	fprintf(stderr, "dpdk_cycles: %s: %s\n", what, why);
	exit(1);
}

static void host_log(enum log_level level, const char *line)
{
	if (level == LOG_LEVEL_ERROR)
		fprintf(stderr, "%s\n", line);
}

/* ---- two ends of a connection ---- */

static struct seal *bench_seal(const struct bench *b, bool from_box)
{
	static const uint8_t key[PROOF_KEY] = {1};
	static const struct proof_datagram of = {.nonce = {2}};
	struct seal *seal = NULL;
	struct err e = {0};

	if (seal_create(b->seal, key, &of, from_box, &seal, &e) < 0)
		die("a seal", e.text);
	return seal;
}

static void bench_open(struct bench *b)
{
	const uint32_t names[2] = {1000, 2000};

	for (unsigned i = 0; i < CHUNKS; i++)
		b->spans[i] = (struct span){.offset = (uint64_t)i * CHUNK, .bytes = CHUNK};
	for (int i = 0; i < 2; i++) {
		const struct reliable_config config = {.conns_max = 1, .room_bytes = 4 << 20, .is_box = i == BOX};
		struct reliable_conn_config conn = {
			.conn = &b->heads[i],
			.here = names[i],
			.there = names[!i],
			.spec = &b->specs[i],
			.seal_here = bench_seal(b, i == WORKER),
			.seal_there = bench_seal(b, i == BOX),
			.datagram_max = 1472,
		};

		b->specs[i] = (struct conn_spec){.chunk_count = CHUNKS,
			.spans = b->spans,
			.sinks = i == WORKER ? b->sinks : NULL,
			.payload_max = CHUNK,
			.window = 64,
			.parts = i == BOX,
			.job = JOB};
		if (reliable_create(&config, &b->ends[i]) < 0 ||
			reliable_conn_create(&config, &conn, &b->conns[i]) < 0 ||
			reliable_add(b->ends[i], b->conns[i]) < 0)
			die("a connection", "out of memory");
	}
	b->seq = 1;
	b->now_ns = clock_now_ns();
}

static void bench_close(struct bench *b)
{
	for (int i = 0; i < 2; i++) {
		reliable_remove(b->ends[i], b->conns[i]);
		reliable_conn_destroy(b->conns[i]);
		reliable_destroy(b->ends[i]);
	}
}

/* From one end to the other, by memory: probes, and acknowledgements. */
static void bench_carry(struct bench *b, int from)
{
	uint8_t bytes[2048];
	struct reliable_outgoing out = {.head = bytes};
	struct event event;
	struct conn *conn;

	while (reliable_turn(b->ends[from])) {
		reliable_next(b->ends[from], b->now_ns, &out);
		if (out.rest_bytes)
			memcpy(bytes + out.head_bytes, out.rest, out.rest_bytes);
		if (reliable_input(b->ends[!from], b->now_ns, bytes, out.head_bytes + out.rest_bytes, &event, &conn) ==
			RELIABLE_HELLO)
			reliable_greet(b->ends[!from], b->conns[!from], 1);
	}
}

/* The trial, as datagram.c does it. */
static void bench_agree(struct bench *b)
{
	for (int decided = 0; decided < 2; decided++) {
		reliable_probe(
			b->ends[WORKER], b->conns[WORKER], 1472, decided ? reliable_fragment_for(1472) : 0, false);
		bench_carry(b, WORKER);
		b->now_ns += 1000;
		bench_carry(b, BOX);
	}
	if (reliable_fragment(b->conns[WORKER]) == 0 || reliable_fragment(b->conns[BOX]) == 0)
		die("the trial", "no fragment was agreed on");
}

/* ---- one round ---- */

static void bench_queue(struct bench *b)
{
	for (;; b->seq++) {
		const struct wire_header header = {.type = WIRE_PUSH,
			.length = CHUNK,
			.job = JOB,
			.generation = 1,
			.epoch = 1,
			.chunk = b->seq % CHUNKS,
			.round = 1,
			.count = 1,
			.seq = b->seq};

		if (reliable_send(b->ends[WORKER], b->conns[WORKER], &header, b->payload, NULL) < 0)
			return;
	}
}

static void bench_send(struct bench *b, struct datagram_port *p)
{
	struct datagram_address to = p->address;
	struct reliable_outgoing out;
	uint64_t begin = cycles_now(), count = 0;

	while (count < DPDK_DATAGRAMS && reliable_turn(b->ends[WORKER])) {
		if (p->ops->room(p, &to, &out) < 0)
			break;
		reliable_next(b->ends[WORKER], b->now_ns, &out);
		p->ops->send(p, b->ends[WORKER], &out);
		count++;
	}
	p->ops->flush(p);
	b->sent_cycles += cycles_now() - begin;
	b->sent += count;
}

static void bench_receive(struct bench *b, struct datagram_port *p)
{
	struct datagram_in in[DPDK_DATAGRAMS];
	uint64_t begin = cycles_now();
	unsigned count = p->ops->receive(p, in, DPDK_DATAGRAMS);
	struct event event;
	struct conn *conn;

	for (unsigned i = 0; i < count; i++)
		reliable_input(b->ends[BOX], b->now_ns, in[i].bytes, in[i].length, &event, &conn);
	b->came_cycles += cycles_now() - begin;
	b->came += count;
	p->ops->receive(p, in, 0); /* lets go of what was lent, as the next receive() would */
}

/* What net_null has swallowed is acknowledged all the same: by a peer that says that it has all up to there. */
static void bench_pretend(struct bench *b, uint64_t number)
{
	static uint64_t others;
	const struct wire_datagram d = {.kind = WIRE_ACK, .conn = 1000, .number = WIRE_NUMBER_OTHER + 1000 + others++};
	struct wire_ack ack = {.largest = number, .grant = 4 << 20, .below = {~0ull, ~0ull, ~0ull, ~0ull}};
	static struct seal *seal;
	static enum seal_kind kind;
	uint8_t bytes[WIRE_ACK_BYTES];
	struct event event;
	struct conn *conn;

	if (kind != b->seal) {
		seal_destroy(seal);
		seal = bench_seal(b, true);
		kind = b->seal;
	}
	wire_encode_datagram(&d, bytes);
	wire_encode_ack(&ack, bytes + WIRE_DATAGRAM_BYTES);
	if (seal_make(seal, d.number, bytes, sizeof(bytes), NULL, 0) < 0)
		die("a seal", "not made");
	reliable_input(b->ends[WORKER], b->now_ns, bytes, sizeof(bytes), &event, &conn);
}

static void bench_rounds(struct bench *b, struct datagram_port *p, bool comes_back, unsigned rounds)
{
	uint64_t number = 0;

	for (unsigned i = 0; i < rounds + WARM; i++) {
		uint64_t before = b->sent;

		if (i == WARM)
			b->sent = b->sent_cycles = b->came = b->came_cycles = before = 0;
		b->now_ns += 20000;
		bench_queue(b);
		bench_send(b, p);
		number += b->sent - before;
		if (comes_back) {
			bench_receive(b, p);
			reliable_tick(b->ends[BOX], b->now_ns + NS_PER_MS);
			bench_carry(b, BOX);
		} else {
			bench_pretend(b, number);
		}
	}
	if (b->sent == 0 || (comes_back && b->came != b->sent))
		die("the exchange", "not all that was sent came");
}

/* ---- what is printed ---- */

static struct datagram_port *port_of(const struct dpdk_plugin *plugin, const char *text, struct dpdk_nic **nic)
{
	static const struct dpdk_host host = {.log = host_log, .hold = reliable_hold, .let = reliable_let};
	struct dpdk_nic_config config = {.queues = 1, .quiet = true};
	struct datagram_port *p = NULL;
	struct err e = {0};

	if (dpdk_spec_parse(text, &config.spec, &e) < 0 || plugin->open(&host, &config, nic, &e) < 0 ||
		plugin->port_open(*nic, 0, MEM_NODE_ANY, "", &p, &e) < 0)
		die(text, e.text);
	return p;
}

static void measure(const struct dpdk_plugin *plugin, enum seal_kind seal, bool comes_back, unsigned rounds)
{
	struct bench b = {.plugin = plugin, .seal = seal, .payload = aligned_alloc(64, CHUNK)};
	struct dpdk_nic *nic = NULL;
	struct datagram_port *p =
		port_of(plugin, comes_back ? "net_ring0@10.9.0.1/24" : "net_null0,no-rx=1@10.9.0.1/24", &nic);
	const char *to = comes_back ? "net_ring" : "net_null";

	if (!b.payload)
		die("memory", strerror(ENOMEM));
	memset(b.payload, 1, CHUNK);
	bench_open(&b);
	bench_agree(&b);
	bench_rounds(&b, p, comes_back, rounds);
	printf(", \"phub, seal %s, sent to %s\": %.0f", seal_name(seal), to, (double)b.sent_cycles / (double)b.sent);
	if (comes_back)
		printf(", \"phub, seal %s, received from %s\": %.0f", seal_name(seal), to,
			(double)b.came_cycles / (double)b.came);
	bench_close(&b);
	free(b.payload);
	p->ops->close(p);
	plugin->close(nic);
}

/* Frames of zeros: what the device, and their end, cost. */
static void measure_dropped(const struct dpdk_plugin *plugin, unsigned rounds)
{
	struct dpdk_nic *nic = NULL;
	struct datagram_port *p = port_of(plugin, "net_null1,size=1500@10.9.0.1/24", &nic);
	struct datagram_in in[DPDK_DATAGRAMS];
	uint64_t begin = cycles_now();

	for (unsigned i = 0; i < rounds; i++)
		p->ops->receive(p, in, DPDK_DATAGRAMS);
	printf("\"phub, frames of zeros from net_null, dropped\": %.0f",
		(double)(cycles_now() - begin) / (double)plugin->counters(p)->dropped[DPDK_FOREIGN]);
	p->ops->close(p);
	plugin->close(nic);
}

int main(int argc, char **argv)
{
	unsigned rounds = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : ROUNDS;
	const struct dpdk_plugin *plugin;
	struct err e;

	if (dpdk_load(&plugin, &e) < 0)
		die("DPDK", e.text);
	printf("{");
	measure_dropped(plugin, rounds);
	for (enum seal_kind seal = SEAL_GMAC; seal <= SEAL_NONE; seal++) {
		if (argc > 1 && strcmp(argv[1], seal_name(seal)) != 0)
			continue;
		measure(plugin, seal, false, rounds);
		measure(plugin, seal, true, rounds);
	}
	printf("}\n");
	return 0;
}
