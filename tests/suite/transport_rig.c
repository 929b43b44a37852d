/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rig of the transport suite: see transport_rig.h. One thread plays control, box cores and workers.
 */
#include "tests/suite/transport_rig.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/dpdk.h"
#include "transport/rdma.h"
#ifdef PHUB_VERBS
#include "transport/verbs_internal.h"
#endif

enum { RIG_POLL_MAX = 64, RIG_ALIGN = 64 };
#define RIG_DEADLINE_NS 20000000000u

static uint64_t rig_clock(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t rig_now(const struct rig *rig)
{
	if (rig->virtual_ns)
		return rig->virtual_ns;
	return (rig->net ? loop_net_now(rig->net) : rig_clock()) + rig->skew_ns;
}

/* What the control session does: takes each side's signals to the other. */
static void rig_carry(struct rig *rig)
{
	struct signal signal;
	unsigned i;

	if (!rig->ops->signal_take)
		return;
	for (i = 0; i < RIG_ENDS; i++)
		while (rig->workers[i] && rig->ops->signal_take(rig->workers[i], &signal) == 0)
			rig->ops->signal_give(rig->box, &signal);
	while (rig->ops->signal_take(rig->box, &signal) == 0) {
		signal.carrier = rig->carrier;
		for (i = 0; i < RIG_ENDS; i++)
			if (rig->workers[i])
				rig->ops->signal_give(rig->workers[i], &signal);
	}
}

void rig_rest(struct rig *rig)
{
	struct timespec ts = {.tv_nsec = 20000};

	rig_carry(rig);
	if (rig->virtual_ns)
		rig->virtual_ns += (uint64_t)ts.tv_nsec;
	if (!rig->net)
		nanosleep(&ts, NULL);
	else if (!loop_net_step(rig->net))
		loop_net_advance(rig->net, loop_net_now(rig->net) + 1000);
}

void rig_deadline_set(struct rig *rig)
{
	rig->deadline_ns = rig_clock() + RIG_DEADLINE_NS;
}

bool rig_deadline_passed(const struct rig *rig)
{
	return rig_clock() > rig->deadline_ns;
}

/* ---- making and ending it ---- */

bool rig_shell(const char *text)
{
	pid_t child = fork();
	int status = 0;

	if (child == 0) {
		execl("/bin/sh", "sh", "-c", text, (char *)NULL);
		_exit(127);
	}
	return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/*
 * dpdk: ends of veth pairs, whose other ends are on a bridge, in a network namespace that ends with this process. The
 * box's is the first.
 */
bool rig_dpdk_make(struct err *e)
{
	const struct dpdk_plugin *plugin;
	char text[512];

	if (dpdk_load(&plugin, e) < 0)
		return false;
	if (unshare(CLONE_NEWNET) < 0)
		return err_set(e, -EPERM, "dpdk: needs root, for a network namespace"), false;
	snprintf(text, sizeof(text),
		"echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6; ip link add phub-br type bridge && "
		"ip link set phub-br up && for i in $(seq 0 %d); do ip link add phub-s$i type veth peer name phub-p$i "
		"&& "
		"ip link set phub-p$i master phub-br up && ip link set phub-s$i up || exit 1; done",
		RIG_ENDS + 2);
	return rig_shell(text) || (err_set(e, -EPERM, "dpdk: no veth pairs on a bridge here"), false);
}

struct transport *rig_transport_open(struct rig *rig, unsigned endpoint)
{
	char port[96];
	struct transport_config config = {
		.queue_conns_max = rig->options.conns_max ? rig->options.conns_max : RIG_LANES,
		.send_bytes_max = rig->options.send_bytes_max ? rig->options.send_bytes_max : 2 << 20,
		.handshake_ms = rig->options.handshake_ms,
		.datagram_mtu = endpoint == 0 ? rig->options.datagram_mtu : 0,
		.dpdk_ports = port,
		.dpdk_eal = "--no-huge -m 768",
		.queue_count = endpoint == 0 ? RIG_ENDS : 1,
		.loop = rig->net ? loop_net_host(rig->net, endpoint) : NULL,
	};
	struct transport *t = NULL;
	struct err e = {0};

	snprintf(port, sizeof(port), "net_af_packet%u,iface=phub-s%u@10.7.0.%u/24,port=%u", endpoint, endpoint,
		endpoint + 1, 7150 + RIG_ENDS * endpoint);
	if (rig->ops->open(&config, &t, &e) < 0)
		fail_msg("%s", e.text);
	assert_non_null(t);
	assert_ptr_equal(t->ops, rig->ops);
	return t;
}

static struct rig_end *rig_end_at(struct rig *rig, struct transport *t, struct rig_end *end)
{
	struct err e = {0};

	if (!end->q) {
		assert_int_equal(rig->ops->queue_create(t, MEM_NODE_ANY, &end->q, &e), 0);
		end->batch = RIG_POLL_MAX;
		end->apart = end->q->datagrams != NULL;
	}
	return end;
}

unsigned rig_rdma_ports(void)
{
	struct rdma_port ports[RDMA_PORTS_MAX];
	int count = rdma_ports_list(ports, RDMA_PORTS_MAX);
	unsigned usable = 0;

	for (int i = 0; i < count && i < RDMA_PORTS_MAX; i++)
		usable += ports[i].usable;
	return usable;
}

struct rig_end *rig_box_end(struct rig *rig, unsigned index)
{
	/* As a box's: one for each core, in their order. */
	for (unsigned i = 0; i < index; i++)
		rig_end_at(rig, rig->box, &rig->box_ends[i]);
	return rig_end_at(rig, rig->box, &rig->box_ends[index]);
}

struct rig_end *rig_worker_end(struct rig *rig, unsigned index)
{
	if (!rig->workers[index])
		rig->workers[index] = rig_transport_open(rig, 1 + index);
	rig_end_at(rig, rig->workers[index], &rig->worker_ends[index]);
	if (rig->fixture->one_sided)
		rig->worker_ends[index].apart = rig_rdma_ports() > 1;
	return &rig->worker_ends[index];
}

static const char *rig_listen_host(const struct fixture *fixture)
{
	bool ip = strcmp(fixture->transport, "shm") != 0 && strcmp(fixture->transport, "loop") != 0;

	return ip ? "127.0.0.1" : "";
}

struct rig *rig_create(const struct fixture *fixture, const struct rig_options *options)
{
	struct rig *rig = calloc(1, sizeof(*rig));
	struct err e = {0};

	assert_non_null(rig);
	rig->fixture = fixture;
	rig->options = *options;
	rig->ops = transport_find(fixture->transport);
	assert_non_null(rig->ops);
	assert_string_equal(rig->ops->name, fixture->transport);
	rig->payload_max = options->payload_max ? options->payload_max : 64 << 10;
	if (strcmp(fixture->transport, "loop") == 0)
		rig->net = loop_net_create(&fixture->plan);
	rig->box = rig_transport_open(rig, 0);
	assert_int_equal(
		rig->ops->listen(rig->box, rig_listen_host(fixture), rig->address, sizeof(rig->address), &e), 0);
	rig_box_end(rig, 0);
	rig_worker_end(rig, 0);
	return rig;
}

static void rig_end_fini(struct rig *rig, struct transport *t, struct rig_end *end)
{
	if (end->q)
		rig->ops->queue_destroy(t, end->q);
	free(end->log);
}

/* Memory that a worker sends from and receives into, where its transport wants to know of it. */
void rig_register(struct lane *lane, void *memory, uint64_t bytes, bool known)
{
	const struct transport_ops *ops = lane->transport->ops;
	struct err e = {0};

	if (!ops->mem_register)
		return;
	if (known)
		assert_int_equal(ops->mem_register(lane->transport, memory, bytes, NULL, &e), 0);
	else
		ops->mem_unregister(lane->transport, memory);
}

static void rig_lane_destroy(struct rig *rig, struct lane *lane)
{
	if (lane->worker && lane->worker->queue)
		rig_drop_worker(lane);
	else if (lane->worker)
		rig->ops->abandon(lane->transport, lane->worker);
	if (lane->box && lane->box->queue)
		rig_drop_box(lane);
	else if (lane->box)
		rig->ops->abandon(rig->box, lane->box);
	if (lane->push.base)
		mem_region_destroy(&lane->push);
	if (lane->result.base)
		mem_region_destroy(&lane->result);
	if (lane->pushes) {
		rig_register(lane, lane->pushes, lane->bytes, false);
		rig_register(lane, lane->wanted, lane->bytes, false);
	}
	free(lane->pushes);
	free(lane->wanted);
	free(lane);
}

void rig_destroy(struct rig *rig)
{
	unsigned i;

	for (i = 0; i < rig->lane_count; i++)
		rig_lane_destroy(rig, rig->lanes[i]);
	for (i = 0; i < RIG_ENDS; i++) {
		rig_end_fini(rig, rig->box, &rig->box_ends[i]);
		rig_end_fini(rig, rig->workers[i], &rig->worker_ends[i]);
		if (rig->workers[i])
			rig->ops->close(rig->workers[i]);
	}
	assert_int_equal(rig->box->slots_lost, 0);
	rig->ops->close(rig->box);
	loop_net_destroy(rig->net);
	free(rig);
}

/* ---- polling ---- */

static bool rig_event_intact(const struct event *event)
{
	const struct wire_header *h = &event->header;

	if (event->type != EVENT_MESSAGE || h->length == 0)
		return true;
	return event->payload && rig_matches(event->payload, h->length, h->rank, h->round, h->chunk);
}

/* Counts what came of a lane at the box. Is it for no log? */
static bool rig_end_count(const struct rig *rig, const struct event *event)
{
	for (unsigned i = 0; i < rig->lane_count; i++) {
		struct lane *lane = rig->lanes[i];
		struct rig_asked *asked = &lane->asked[event->header.chunk % RIG_CHUNKS];

		if (event->type != EVENT_MESSAGE || lane->box != event->conn)
			continue;
		asked->got++;
		if (!asked->hidden || event->header.type != WIRE_PULL)
			return false;
		asked->hidden = false;
		return true;
	}
	return false;
}

static void rig_end_record(struct rig *rig, struct rig_end *end, const struct event *event)
{
	struct record *r;

	if (rig_end_count(rig, event)) {
		if (event->slot)
			end->q->ops->release(end->q, event->slot);
		return;
	}

	if (end->count == end->room) {
		end->room = end->room ? 2 * end->room : 64;
		end->log = realloc(end->log, end->room * sizeof(*end->log));
		assert_non_null(end->log);
	}
	r = &end->log[end->count++];
	*r = (struct record){.type = event->type, .conn = event->conn, .intact = rig_event_intact(event)};
	if (event->type == EVENT_CLOSED) {
		assert_true(!event->why || strlen(event->why) > 0);
		*r = (struct record){
			.type = event->type, .conn = event->conn, .error = event->error, .why = event->why};
	}
	if (event->type == EVENT_SENT)
		r->cookie = event->cookie;
	if (event->type != EVENT_MESSAGE)
		return;
	r->header = event->header;
	r->payload = event->payload;
	if (!event->slot)
		return;
	if (end->keeps && end->kept < end->q->hold_max) {
		r->slot = event->slot;
		end->kept++;
	} else {
		end->q->ops->release(end->q, event->slot);
	}
}

void end_release(struct rig_end *end, unsigned index)
{
	assert_non_null(end->log[index].slot);
	end->q->ops->release(end->q, end->log[index].slot);
	end->log[index].slot = NULL;
	end->kept--;
}

static unsigned rig_end_turn(struct rig *rig, struct rig_end *end)
{
	struct event events[RIG_POLL_MAX];
	unsigned i, n;

	if (!end->q || end->mute)
		return 0;
	memset(events, 0xee, sizeof(events)); /* all that an event says, its transport wrote */
	n = end->q->ops->poll(end->q, rig_now(rig), events, end->batch);
	assert_true(n <= end->batch);
	for (i = 0; i < n; i++)
		rig_end_record(rig, end, &events[i]);
	end->q->ops->flush(end->q);
	return n;
}

void rig_turn(struct rig *rig)
{
	unsigned i, n = 0;

	for (i = 0; i < RIG_ENDS; i++) {
		n += rig_end_turn(rig, &rig->box_ends[i]);
		n += rig_end_turn(rig, &rig->worker_ends[i]);
	}
	if (n == 0)
		rig_rest(rig);
}

void rig_turns(struct rig *rig, unsigned count)
{
	while (count-- > 0)
		rig_turn(rig);
}

const struct record *end_record(
	const struct rig_end *end, enum event_type type, const struct conn *conn, unsigned index)
{
	unsigned i;

	for (i = 0; i < end->count; i++) {
		if (end->log[i].type == type && (!conn || end->log[i].conn == conn) && index-- == 0)
			return &end->log[i];
	}
	return NULL;
}

unsigned end_count(const struct rig_end *end, enum event_type type, const struct conn *conn)
{
	unsigned i, count = 0;

	for (i = 0; i < end->count; i++)
		count += end->log[i].type == type && (!conn || end->log[i].conn == conn);
	return count;
}

/* ---- connections ---- */

uint64_t rig_session(uint32_t rank)
{
	return 0x1122334400000000u + rank;
}

const uint8_t *rig_key(void)
{
	static const uint8_t key[PROOF_KEY] = {1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233};

	return key;
}

/* From two bytes up to the largest that is allowed, odd multiples among them. */
static uint32_t rig_chunk_bytes(const struct rig *rig, uint32_t chunk)
{
	static const uint32_t sizes[] = {2, 4, 62, 64, 66, 1000, 4096, 16384, 32768, 32770};

	if (chunk >= sizeof(sizes) / sizeof(sizes[0]) || sizes[chunk] > rig->payload_max)
		return rig->payload_max;
	return sizes[chunk];
}

static uint32_t rig_chunk_room(const struct rig *rig, uint32_t chunk)
{
	return (rig_chunk_bytes(rig, chunk) + RIG_ALIGN - 1) / RIG_ALIGN * RIG_ALIGN;
}

static void rig_lane_layout(const struct rig *rig, struct lane *lane)
{
	uint64_t offset = 0;
	uint32_t i;

	for (i = 0; i < RIG_CHUNKS; i++) {
		lane->spans[i] = (struct span){offset, rig_chunk_bytes(rig, i)};
		lane->sinks[i] = (struct sink){lane->wanted + offset, lane->spans[i].bytes};
		offset += rig_chunk_room(rig, i);
	}
}

/* A worker that comes back finds the memory that the box made for it before. */
static bool rig_lane_inherit(struct rig *rig, struct lane *lane)
{
	unsigned i;

	for (i = 0; i < rig->lane_count; i++) {
		struct lane *old = rig->lanes[i];

		if (old->rank != lane->rank || old->worker || old->box || !old->result.base)
			continue;
		lane->pushes = old->pushes;
		lane->wanted = old->wanted;
		lane->bytes = old->bytes;
		if (lane->transport != old->transport) {
			rig_register(old, old->pushes, old->bytes, false);
			rig_register(old, old->wanted, old->bytes, false);
			rig_register(lane, lane->pushes, lane->bytes, true);
			rig_register(lane, lane->wanted, lane->bytes, true);
		}
		lane->push = old->push;
		lane->result = old->result;
		old->pushes = old->wanted = NULL;
		old->push = old->result = (struct mem_region){0};
		return true;
	}
	return false;
}

static void rig_lane_memory(const struct rig *rig, struct lane *lane)
{
	unsigned flags = rig->fixture->mapped ? MEM_SHARED : 0;
	struct err e = {0};
	uint64_t bytes = 0;
	uint32_t i;

	for (i = 0; i < RIG_CHUNKS; i++)
		bytes += rig_chunk_room(rig, i);
	lane->pushes = calloc(1, bytes);
	lane->wanted = calloc(1, bytes);
	assert_true(lane->pushes && lane->wanted);
	lane->bytes = bytes;
	rig_register(lane, lane->pushes, bytes, true);
	rig_register(lane, lane->wanted, bytes, true);
	assert_int_equal(mem_region_create(bytes, flags, -1, &lane->result, &e), 0);
	if (rig->fixture->mapped)
		assert_int_equal(mem_region_create(bytes, flags, -1, &lane->push, &e), 0);
}

struct lane *rig_lane(struct rig *rig, struct rig_end *box_end, struct rig_end *worker_end, uint32_t rank)
{
	struct lane *lane = calloc(1, sizeof(*lane));

	assert_non_null(lane);
	assert_true(rig->lane_count < RIG_LANES);
	lane->worker_end = worker_end;
	lane->box_end = box_end;
	lane->transport = rig->workers[worker_end - rig->worker_ends];
	lane->rank = rank;
	lane->rig = rig;
	if (!rig_lane_inherit(rig, lane))
		rig_lane_memory(rig, lane);
	rig_lane_layout(rig, lane);
	rig->lanes[rig->lane_count++] = lane;
	lane->worker_spec = (struct conn_spec){
		.chunk_count = RIG_CHUNKS, .spans = lane->spans, .payload_max = rig->payload_max, .window = RIG_WINDOW};
	lane->box_spec = lane->worker_spec;
	lane->worker_spec.sinks = lane->sinks;
	lane->worker_spec.queue = worker_end->q;
	lane->box_spec.queue = box_end->q;
	lane->box_spec.push = rig->fixture->mapped ? &lane->push : NULL;
	lane->box_spec.result = &lane->result;
	lane->box_spec.job = RIG_JOB;
	lane->box_spec.rank = rank;
	lane->box_spec.key = rig_key();
	return lane;
}

void rig_connect(struct rig *rig, struct lane *lane, const uint8_t *key)
{
	uint32_t core = (uint32_t)(lane->box_end - rig->box_ends);
	struct err e = {0};

	assert_int_equal(rig->ops->connect(lane->transport, rig->address, rig_session(lane->rank), core, key,
				 &lane->worker_spec, &lane->worker, &e),
		0);
	assert_ptr_equal(lane->worker->transport, lane->transport);
	assert_null(lane->worker->queue);
	rig_carry(rig);
}

/* The worker's half of all handshakes that are under way. */
static void rig_established_all(struct rig *rig)
{
	struct err e = {0};
	unsigned i;

	for (i = 0; i < rig->lane_count; i++) {
		struct lane *lane = rig->lanes[i];

		if (lane->worker && !lane->worker->queue)
			(void)rig->ops->established(lane->transport, lane->worker, &e);
	}
}

struct hello rig_hello(struct rig *rig)
{
	struct hello hello;
	int rc;

	rig_deadline_set(rig);
	while ((rc = rig->ops->accept(rig->box, rig_now(rig), &hello)) == -EAGAIN) {
		rig_established_all(rig);
		rig_rest(rig);
		if (rig_deadline_passed(rig))
			fail_msg("%s: no hello came", rig->fixture->label);
	}
	assert_int_equal(rc, 0);
	return hello;
}

int rig_established(struct rig *rig, struct lane *lane)
{
	struct err e = {0};
	struct hello hello;
	int rc;

	rig_deadline_set(rig);
	while ((rc = rig->ops->established(lane->transport, lane->worker, &e)) == -EAGAIN) {
		assert_int_equal(rig->ops->accept(rig->box, rig_now(rig), &hello), -EAGAIN);
		rig_rest(rig);
		if (rig_deadline_passed(rig))
			fail_msg("%s: no welcome came", rig->fixture->label);
	}
	return rc;
}

void rig_admit(struct rig *rig, struct lane *lane)
{
	struct err e = {0};
	struct hello hello;

	rig_connect(rig, lane, rig_key());
	hello = rig_hello(rig);
	assert_int_equal(hello.session, rig_session(lane->rank));
	lane->box = hello.conn;
	assert_int_equal(rig->ops->admit(rig->box, lane->box, &lane->box_spec, &e), 0);
}

void rig_adopt_box(struct lane *lane)
{
	struct queue *q = lane->box_end->q;

	assert_int_equal(q->ops->adopt(q, lane->box, &lane->box_spec), 0);
	assert_ptr_equal(lane->box->queue, q);
}

void rig_adopt_worker(struct lane *lane)
{
	struct queue *q = lane->worker_end->q;

	assert_int_equal(q->ops->adopt(q, lane->worker, &lane->worker_spec), 0);
	assert_ptr_equal(lane->worker->queue, q);
}

struct lane *rig_join(struct rig *rig, struct rig_end *box_end, struct rig_end *worker_end, uint32_t rank)
{
	struct lane *lane = rig_lane(rig, box_end, worker_end, rank);

	rig_admit(rig, lane);
	assert_int_equal(rig_established(rig, lane), 0);
	rig_adopt_box(lane);
	rig_adopt_worker(lane);
	return lane;
}

void rig_drop_worker(struct lane *lane)
{
	lane->worker->queue->ops->drop(lane->worker->queue, lane->worker);
	lane->worker = NULL;
}

void rig_drop_box(struct lane *lane)
{
	lane->box->queue->ops->drop(lane->box->queue, lane->box);
	lane->box = NULL;
}

/* ---- messages ---- */

uint8_t *pair_payload_at(struct lane *lane, uint32_t chunk)
{
	uint8_t *base = lane->worker->push ? lane->worker->push : lane->pushes;

	return base + lane->spans[chunk].offset;
}

uint8_t *pair_result_at(struct lane *lane, uint32_t chunk)
{
	return (uint8_t *)lane->result.base + lane->spans[chunk].offset;
}

/* Neighbours in rank, round, chunk or place differ. */
static uint8_t rig_seed(uint32_t rank, uint64_t round, uint32_t chunk)
{
	uint32_t seed = rank * 7919u + (uint32_t)round * 104729u + chunk * 1299709u;

	return (uint8_t)(seed + (seed >> 8));
}

void rig_fill(uint8_t *at, uint32_t bytes, uint32_t rank, uint64_t round, uint32_t chunk)
{
	uint8_t seed = rig_seed(rank, round, chunk);
	uint32_t i;

	for (i = 0; i < bytes; i++)
		at[i] = (uint8_t)(seed + i * 31u + (i >> 8));
}

bool rig_matches(const uint8_t *at, uint32_t bytes, uint32_t rank, uint64_t round, uint32_t chunk)
{
	uint8_t seed = rig_seed(rank, round, chunk);
	uint32_t i;

	for (i = 0; i < bytes; i++) {
		if (at[i] != (uint8_t)(seed + i * 31u + (i >> 8)))
			return false;
	}
	return true;
}

int pair_send_up(struct lane *lane, struct wire_header *h, const void *payload, void *cookie)
{
	struct queue *q = lane->worker_end->q;
	int rc;

	h->seq = lane->seq + 1;
	rc = q->ops->send(q, lane->worker, h, payload, cookie);
	lane->seq += rc == 0;
	return rc;
}

int pair_push_again(struct lane *lane, uint32_t chunk, uint64_t round, void *cookie)
{
	struct wire_header h = {.type = WIRE_PUSH,
		.length = lane->spans[chunk].bytes,
		.job = RIG_JOB,
		.chunk = chunk,
		.rank = lane->rank,
		.round = round,
		.count = 1};

	lane->asked[chunk].sent++;
	return pair_send_up(lane, &h, pair_payload_at(lane, chunk), cookie);
}

int pair_push(struct lane *lane, uint32_t chunk, uint64_t round, void *cookie)
{
	rig_fill(pair_payload_at(lane, chunk), lane->spans[chunk].bytes, lane->rank, round, chunk);
	return pair_push_again(lane, chunk, round, cookie);
}

/* Before a result of this chunk, where it must answer something: that has come to the box when this returns. */
static void pair_ask(struct lane *lane, uint32_t chunk, uint64_t round)
{
	struct rig_asked *asked = &lane->asked[chunk];
	struct rig_end *box = lane->box_end;
	struct event events[RIG_POLL_MAX];
	unsigned i, n;

	if (!box->q->one_sided)
		return;
	if (asked->sent == asked->used) {
		asked->hidden = true;
		assert_int_equal(pair_pull(lane, chunk, round), 0);
	}
	pair_flush_worker(lane);
	rig_deadline_set(lane->rig);
	while (asked->got == asked->used && !rig_deadline_passed(lane->rig)) {
		n = box->q->ops->poll(box->q, rig_now(lane->rig), events, box->batch);
		for (i = 0; i < n; i++)
			rig_end_record(lane->rig, box, &events[i]);
	}
	assert_true(asked->got > asked->used);
	asked->used = asked->got;
}

int pair_answer_again(struct lane *lane, uint32_t chunk, uint64_t round, void *cookie)
{
	struct wire_header h = {.type = WIRE_RESULT,
		.length = lane->spans[chunk].bytes,
		.chunk = chunk,
		.rank = lane->rank,
		.round = round,
		.count = 1};
	struct queue *q = lane->box_end->q;

	if (lane->worker && lane->worker->queue)
		pair_ask(lane, chunk, round);
	return q->ops->send(q, lane->box, &h, pair_result_at(lane, chunk), cookie);
}

int pair_answer(struct lane *lane, uint32_t chunk, uint64_t round, void *cookie)
{
	rig_fill(pair_result_at(lane, chunk), lane->spans[chunk].bytes, lane->rank, round, chunk);
	return pair_answer_again(lane, chunk, round, cookie);
}

int pair_pull(struct lane *lane, uint32_t chunk, uint64_t round)
{
	struct wire_header h = {.type = WIRE_PULL, .job = RIG_JOB, .chunk = chunk, .rank = lane->rank, .round = round};

	lane->asked[chunk].sent++;
	return pair_send_up(lane, &h, NULL, NULL);
}

int pair_credit(struct lane *lane, uint32_t credit)
{
	struct wire_header h = {.type = WIRE_CREDIT, .rank = lane->rank, .credit = credit};
	struct queue *q = lane->box_end->q;

	return q->ops->send(q, lane->box, &h, NULL, NULL);
}

void pair_flush_worker(struct lane *lane)
{
	lane->worker_end->q->ops->flush(lane->worker_end->q);
}

void pair_flush_box(struct lane *lane)
{
	lane->box_end->q->ops->flush(lane->box_end->q);
}
