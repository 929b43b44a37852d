/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections over datagrams, by udp on loopback: which datagrams come through, ways that are silent, and what
 * strangers send. Calls of sendmmsg() go through here, to lose what is too large for a way.
 *
 * waits: for ways that are silent
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "tests/suite/transport_rig.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/libc_rig.h"
#include "transport/datagram_internal.h"
#include "transport/reliable_internal.h"
#include "transport/udp_internal.h"

static const struct fixture udp = {.label = "udp", .transport = "udp"};

/* ---- a narrow way ---- */

static size_t narrow; /* larger datagrams are lost; 0: none */

static int narrow_sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
	for (unsigned i = 0; i < count; i++) {
		const struct msghdr *m = &messages[i].msg_hdr;
		size_t bytes = m->msg_iov[0].iov_len + (m->msg_iovlen > 1 ? m->msg_iov[1].iov_len : 0);

		if (narrow && bytes > narrow)
			continue;
		if (syscall(SYS_sendmmsg, fd, messages + i, 1, flags) < 0)
			return i > 0 ? (int)i : -1;
	}
	return (int)count;
}

/* ---- a rig with one connection ---- */

static struct rig *rig;
static struct lane *lane;
static struct rig_end *box, *worker;

static void begin(const struct rig_options *options)
{
	rig = rig_create(&udp, options);
	box = rig_box_end(rig, 0);
	worker = rig_worker_end(rig, 0);
	lane = rig_join(rig, box, worker, 1);
}

static uint32_t fragment_of(const struct conn *conn)
{
	return reliable_fragment(((const struct datagram_conn *)conn)->reliable);
}

static const struct reliable_counters *counters_of(const struct rig_end *end)
{
	return reliable_counters(((const struct datagram_queue *)end->q)->reliable);
}

/* A push and its answer, of the largest chunk. */
static void exchange(uint64_t round)
{
	box->count = worker->count = 0;
	assert_int_equal(pair_push(lane, RIG_CHUNKS - 1, round, NULL), 0);
	RIG_UNTIL(rig, end_count(box, EVENT_MESSAGE, lane->box) == 1);
	assert_int_equal(pair_answer(lane, RIG_CHUNKS - 1, round, NULL), 0);
	RIG_UNTIL(rig, end_count(worker, EVENT_MESSAGE, lane->worker) == 1);
	assert_true(end_record(box, EVENT_MESSAGE, NULL, 0)->intact);
	assert_true(end_record(worker, EVENT_MESSAGE, NULL, 0)->intact);
}

/* ---- what comes through ---- */

static void datagrams_are_as_large_as_both_allow(void **state)
{
	static const unsigned mtus[] = {0, 9000, 4200, 1500, 1280};

	for (unsigned i = 0; i < sizeof(mtus) / sizeof(mtus[0]); i++) {
		const struct rig_options options = {.datagram_mtu = mtus[i]};
		uint32_t bytes = mtus[i] ? mtus[i] - UDP_HEADERS_V4 : WIRE_DATAGRAM_MAX;

		begin(&options);
		exchange(1);
		assert_int_equal(fragment_of(lane->worker), reliable_fragment_for(bytes));
		assert_int_equal(fragment_of(lane->box), reliable_fragment_for(bytes));
		rig_destroy(rig);
	}
}

/* Links may carry what something between them does not. */
static void a_narrow_way_is_found(void **state)
{
	static const size_t ways[] = {8972, 1472, 1252};
	static const uint32_t fragments[] = {8832, 1344, 1088};

	for (unsigned i = 0; i < 3; i++) {
		begin(&(struct rig_options){0});
		narrow = ways[i];
		exchange(1);
		assert_int_equal(fragment_of(lane->worker), fragments[i]);
		assert_int_equal(fragment_of(lane->box), fragments[i]);
		narrow = 0;
		rig_destroy(rig);
	}
}

static void a_silent_way_ends_with_words(void **state)
{
	const struct rig_options options = {.handshake_ms = 200};
	const struct record *r;

	begin(&options);
	narrow = 1;
	assert_int_equal(pair_push(lane, 5, 1, lane), 0);
	RIG_UNTIL(rig, end_count(worker, EVENT_CLOSED, lane->worker) == 1);
	r = end_record(worker, EVENT_CLOSED, NULL, 0);
	assert_int_equal(r->error, -ETIMEDOUT);
	assert_non_null(r->why);
	assert_non_null(strstr(r->why, "firewall"));
	assert_int_equal(box->count, 0);
	narrow = 0;
	rig_destroy(rig);
}

/* A way that is silent for a while does not end what goes over it. */
static void silence_later_ends_nothing(void **state)
{
	const struct rig_options options = {.handshake_ms = 100};

	begin(&options);
	exchange(1);
	narrow = 1;
	assert_int_equal(pair_push(lane, 5, 2, NULL), 0);
	for (unsigned i = 0; i < 20; i++) {
		rig_turns(rig, 100);
		usleep(20000);
	}
	assert_int_equal(end_count(box, EVENT_MESSAGE, lane->box), 1);
	narrow = 0;
	RIG_UNTIL(rig, end_count(box, EVENT_MESSAGE, lane->box) == 2);
	exchange(3);
	rig_destroy(rig);
}

/* Turns for so long, or until the worker's connection is closed, in virtual time. */
static void look_for(uint64_t ms)
{
	uint64_t until_ns = rig_now(rig) + ms * NS_PER_MS;

	while (rig_now(rig) < until_ns && end_count(worker, EVENT_CLOSED, lane->worker) == 0) {
		rig->virtual_ns += 20 * NS_PER_MS;
		rig_turns(rig, 10);
	}
}

/* Not before both have had their time: neither a wire that is out for less, nor one who does not look, ends it. */
static void silence_for_too_long_ends_with_words(void **state)
{
	uint64_t began_ns, took_ms;
	const struct record *r;

	begin(&(struct rig_options){0});
	exchange(1);
	rig->virtual_ns = clock_now_ns() + 3600 * NS_PER_S;
	exchange(2);
	lane->worker_spec.silent_ns = 3200 * NS_PER_MS;
	narrow = 1;
	look_for(1600);
	rig->virtual_ns += 4 * NS_PER_S; /* nobody looks */
	rig_turns(rig, 10);
	narrow = 0;
	exchange(3);
	assert_int_equal(end_count(worker, EVENT_CLOSED, lane->worker), 0);
	narrow = 1;
	began_ns = rig_now(rig);
	look_for(60000);
	took_ms = (rig_now(rig) - began_ns) / NS_PER_MS;
	assert_in_range(took_ms, 3200, 3800);
	r = end_record(worker, EVENT_CLOSED, NULL, 0);
	assert_int_equal(r->error, -ETIMEDOUT);
	assert_non_null(r->why);
	assert_non_null(strstr(r->why, "UDP comes through no more"));
	assert_non_null(strstr(r->why, "data_ports"));
	narrow = 0;
	rig_destroy(rig);
}

static void nowhere_is_an_error_at_once(void **state)
{
	struct err e = {0};
	struct conn *c;
	int rc;

	begin(&(struct rig_options){0});
	rc = rig->ops->connect(lane->transport, "[2001:db8::1]:9", 1, 0, rig_key(), &lane->worker_spec, &c, &e);
	if (rc == 0)
		rig->ops->abandon(lane->transport, c); /* there is a route here */
	else
		assert_true(e.text[0]);
	rc = rig->ops->connect(lane->transport, "127.0.0.1", 1, 0, rig_key(), &lane->worker_spec, &c, &e);
	assert_int_equal(rc, -EINVAL);
	rig_destroy(rig);
}

/* Cores are counted by queues: a dial for another one takes no room. */
static void a_core_that_is_none_is_refused(void **state)
{
	static const uint32_t cores[] = {2, 3, UINT32_MAX};
	const struct datagram *t;
	struct err e = {0};

	begin(&(struct rig_options){0});
	rig_box_end(rig, 1);
	t = (const struct datagram *)rig->box;
	for (unsigned i = 0; i < 3; i++) {
		struct lane *more = rig_lane(rig, box, worker, 2 + i);

		assert_int_equal(rig->ops->connect(more->transport, rig->address, rig_session(2 + i), cores[i],
					 rig_key(), &more->worker_spec, &more->worker, &e),
			0);
		assert_int_equal(rig_established(rig, more), -ERANGE);
		assert_int_equal(t->stranger_count, 0);
		assert_int_equal(rig->box->strangers_refused, i + 1);
	}
	rig_destroy(rig);
}

static void names_tell_nothing(void **state)
{
	uint32_t names[16];

	begin(&(struct rig_options){0});
	for (unsigned i = 0; i < 16; i++) {
		struct lane *more = rig_join(rig, box, worker, 2 + i);

		names[i] = ((struct datagram_conn *)more->box)->here;
		for (unsigned k = 0; k < i; k++)
			assert_true(names[i] != names[k] && names[i] != names[k] + 1);
	}
	rig_destroy(rig);
}

/* ---- loss ---- */

/* The kernel loses a part of what comes in here. */
static void lose(const struct rig_end *end, double part)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_RANDOM)),
		BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (uint32_t)(part * UINT32_MAX), 1, 0),
		BPF_STMT(BPF_RET | BPF_K, 0),
		BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
	};
	const struct sock_fprog program = {.len = 4, .filter = code};
	struct udp_port *port = (struct udp_port *)((struct datagram_queue *)end->q)->port;

	assert_int_equal(setsockopt(port->fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
}

static void check_loss(double part, bool cuts)
{
	const struct rig_options options = {.datagram_mtu = 1500};
	unsigned resent;

	begin(&options);
	lose(box, part);
	lose(worker, part);
	((struct udp_port *)((struct datagram_queue *)box->q)->port)->cuts = cuts;
	((struct udp_port *)((struct datagram_queue *)worker->q)->port)->cuts = cuts;
	for (uint64_t round = 1; round <= 100; round++)
		exchange(round);
	resent = (unsigned)(counters_of(box)->resent + counters_of(worker)->resent);
	/* 100 rounds of 49 datagrams each way */
	assert_true(resent > 9800 * part / 2);
	rig_destroy(rig);
}

static void lost_datagrams_are_sent_again(void **state)
{
	check_loss(0.01, false);
	check_loss(0.2, false);
}

/* What the kernel cuts late is lost as a whole: dozens in a row. */
static void lost_trains_are_sent_again(void **state)
{
	check_loss(0.1, true);
}

/* ---- strangers ---- */

static int stranger;

/* From a port that is nobody's. */
static void throw_at(const struct rig_end *end, const void *bytes, size_t count)
{
	const struct datagram_port *port = ((const struct datagram_queue *)end->q)->port;
	const struct sockaddr_in to = {.sin_family = AF_INET,
		.sin_port = htons(port->address.port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	assert_int_equal(sendto(stranger, bytes, count, 0, (const struct sockaddr *)&to, sizeof(to)), count);
}

static void begin_with_stranger(void)
{
	begin(&(struct rig_options){0});
	exchange(1);
	box->count = worker->count = 0;
	stranger = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_true(stranger >= 0);
}

static void end_with_stranger(void)
{
	/* Nothing came of it, and nobody went away. */
	rig_turns(rig, 20);
	assert_int_equal(box->count + worker->count, 0);
	exchange(2);
	close(stranger);
	rig_destroy(rig);
}

static void expect_dropped(const struct rig_end *end, enum reliable_drop why, uint64_t count)
{
	RIG_UNTIL(rig, counters_of(end)->dropped[why] >= count);
	assert_int_equal(counters_of(end)->dropped[why], count);
}

static void runts_and_rubbish_are_counted(void **state)
{
	static const uint8_t rubbish[2000] = {0xff, 1};

	begin_with_stranger();
	throw_at(box, "", 0);
	throw_at(box, rubbish, 1);
	throw_at(box, rubbish, WIRE_DATAGRAM_BYTES - 1);
	expect_dropped(box, RELIABLE_RUNT, 3);
	throw_at(box, rubbish, sizeof(rubbish));
	throw_at(worker, rubbish, sizeof(rubbish));
	expect_dropped(box, RELIABLE_FOREIGN, 1);
	expect_dropped(worker, RELIABLE_FOREIGN, 1);
	end_with_stranger();
}

/* Every kind, well-formed, with nobody's name and with the connection's, but no seal. */
static void forgeries_are_counted(void **state)
{
	static const struct {
		enum wire_kind kind;
		size_t bytes;
	} kinds[] = {{WIRE_DATA, WIRE_DATA_BYTES + 64}, {WIRE_ACK, WIRE_ACK_BYTES}, {WIRE_PROBE, 500},
		{WIRE_PROBED, 500}, {WIRE_END, WIRE_DATAGRAM_BYTES}};
	const struct datagram_address *peer;
	uint16_t port;

	begin_with_stranger();
	peer = &((struct datagram_conn *)lane->box)->peer;
	port = peer->port;
	for (unsigned i = 0; i < 5; i++) {
		struct wire_datagram d = {.kind = kinds[i].kind, .conn = ((struct datagram_conn *)lane->box)->here};
		uint8_t bytes[500] = {0};

		d.number = d.kind == WIRE_DATA ? 1000 : WIRE_NUMBER_OTHER + 1000;
		wire_encode_datagram(&d, bytes);
		throw_at(box, bytes, kinds[i].bytes);
		expect_dropped(box, RELIABLE_FORGED, i + 1);
		d.conn++;
		wire_encode_datagram(&d, bytes);
		throw_at(box, bytes, kinds[i].bytes);
		expect_dropped(box, RELIABLE_STRANGER, i + 1);
	}
	assert_int_equal(peer->port, port);
	end_with_stranger();
}

/* ---- where the worker is ---- */

/* A worker's probe, its seal right, but from the stranger's port: `way` is what it brings back. */
static void probe_from_elsewhere(uint64_t way, uint32_t fragment, size_t bytes)
{
	struct reliable_conn *c = ((struct datagram_conn *)lane->worker)->reliable;
	struct wire_datagram d = {.kind = WIRE_PROBE, .conn = c->there, .number = c->number_other++};
	uint8_t datagram[2000] = {0};

	wire_encode_datagram(&d, datagram);
	wire_encode_probe(&(struct wire_probe){.token = 1, .fragment = fragment, .grant = 1 << 20, .way = way},
		datagram + WIRE_DATAGRAM_BYTES);
	assert_int_equal(seal_make(c->seal_there, d.number, datagram, WIRE_PROBE_BYTES, datagram + WIRE_PROBE_BYTES,
				 bytes - WIRE_PROBE_BYTES),
		0);
	throw_at(box, datagram, bytes);
}

/* The box looks, and answers there with one PROBED, no larger than `most`, that decides nothing: its way. */
static uint64_t asked_back(size_t most)
{
	struct event events[8];
	struct wire_datagram d;
	struct wire_probe p;
	uint8_t datagram[2000];
	ssize_t bytes = -1;

	for (unsigned i = 0; bytes < 0 && i < 1000; i++) {
		assert_int_equal(box->q->ops->poll(box->q, rig_now(rig), events, 8), 0);
		bytes = recv(stranger, datagram, sizeof(datagram), MSG_DONTWAIT);
	}
	assert_in_range(bytes, WIRE_PROBE_BYTES, most);
	assert_int_equal(wire_decode_datagram(datagram, (size_t)bytes, &d), 0);
	assert_int_equal(d.kind, WIRE_PROBED);
	wire_decode_probe(datagram + WIRE_DATAGRAM_BYTES, &p);
	assert_int_equal(p.fragment, 0);
	assert_true(p.way != 0);
	return p.way;
}

static void nothing_came_elsewhere(void)
{
	uint8_t datagram[2000];

	assert_int_equal(recv(stranger, datagram, sizeof(datagram), MSG_DONTWAIT), -1);
}

/* Who has a key can write any address into a probe: the box goes there when it is seen to receive, and no sooner. */
static void a_worker_is_followed_where_it_receives(void **state)
{
	const struct datagram_conn *c;
	uint16_t port;
	uint64_t way;

	begin_with_stranger();
	c = (const struct datagram_conn *)lane->box;
	port = c->peer.port;
	probe_from_elsewhere(0, 0, 700);
	way = asked_back(700);
	probe_from_elsewhere(way + 1, 0, WIRE_PROBE_BYTES);
	assert_int_equal(asked_back(WIRE_PROBE_BYTES), way);
	assert_int_equal(c->peer.port, port);
	exchange(2);
	nothing_came_elsewhere();
	probe_from_elsewhere(way, 0, 700);
	assert_int_equal(asked_back(700), way);
	assert_true(c->peer.port != port);
	/* The worker hears nothing, asks, is asked back, and shows where it is. */
	exchange(3);
	assert_int_equal(c->peer.port, port);
	close(stranger);
	rig_destroy(rig);
}

/* Also before anything was agreed on: then there is nowhere that the box sends to. */
static void a_box_that_was_shown_nothing_sends_nothing(void **state)
{
	const uint32_t fragment = reliable_fragment_for(1400);
	const struct datagram_conn *c;
	uint64_t way;

	begin(&(struct rig_options){0});
	c = (const struct datagram_conn *)lane->box;
	stranger = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	probe_from_elsewhere(0, fragment, 1400);
	way = asked_back(1400);
	assert_int_equal(fragment_of(lane->box), 0);
	assert_false(c->shown);
	assert_int_equal(pair_answer(lane, 5, 1, NULL), 0);
	box->q->ops->flush(box->q);
	nothing_came_elsewhere();
	assert_int_equal(counters_of(box)->sent, 1);
	probe_from_elsewhere(way, 0, 1400);
	assert_int_equal(asked_back(1400), way);
	assert_true(c->shown);
	assert_int_equal(counters_of(box)->sent, 2);
	close(stranger);
	rig_destroy(rig);
}

/* The other queue's port is the wrong one. */
static void another_queue_knows_nothing_of_it(void **state)
{
	struct wire_datagram d = {.kind = WIRE_END, .number = WIRE_NUMBER_OTHER + 1000};
	struct rig_end *second;
	uint8_t bytes[WIRE_DATAGRAM_BYTES];

	begin_with_stranger();
	second = rig_box_end(rig, 1);
	d.conn = ((struct datagram_conn *)lane->box)->here;
	wire_encode_datagram(&d, bytes);
	throw_at(second, bytes, sizeof(bytes));
	expect_dropped(second, RELIABLE_STRANGER, 1);
	end_with_stranger();
}

/* However much comes of it, one poll() looks at so much and no more; and the exchange goes on. */
static void a_flood_is_taken_in_pieces(void **state)
{
	static const uint8_t rubbish[200] = {0xff};
	struct event events[64];
	uint64_t before, after;

	begin_with_stranger();
	for (unsigned i = 0; i < 3000; i++)
		throw_at(box, rubbish, sizeof(rubbish));
	for (unsigned i = 0; i < 5; i++) {
		before = counters_of(box)->dropped[RELIABLE_FOREIGN];
		assert_int_equal(box->q->ops->poll(box->q, rig_now(rig), events, 64), 0);
		after = counters_of(box)->dropped[RELIABLE_FOREIGN];
		assert_in_range(after - before, 1, DATAGRAM_RECEIVES * DATAGRAM_BATCH);
	}
	for (uint64_t round = 2; round < 12; round++) {
		for (unsigned i = 0; i < 300; i++)
			throw_at(round % 2 ? box : worker, rubbish, sizeof(rubbish));
		exchange(round);
	}
	close(stranger);
	rig_destroy(rig);
}

TEST_PROGRAM(test_datagram)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(datagrams_are_as_large_as_both_allow),
		cmocka_unit_test(a_narrow_way_is_found),
		cmocka_unit_test(a_silent_way_ends_with_words),
		cmocka_unit_test(silence_later_ends_nothing),
		cmocka_unit_test(silence_for_too_long_ends_with_words),
		cmocka_unit_test(nowhere_is_an_error_at_once),
		cmocka_unit_test(a_core_that_is_none_is_refused),
		cmocka_unit_test(names_tell_nothing),
		cmocka_unit_test(lost_datagrams_are_sent_again),
		cmocka_unit_test(lost_trains_are_sent_again),
		cmocka_unit_test(runts_and_rubbish_are_counted),
		cmocka_unit_test(forgeries_are_counted),
		cmocka_unit_test(a_worker_is_followed_where_it_receives),
		cmocka_unit_test(a_box_that_was_shown_nothing_sends_nothing),
		cmocka_unit_test(another_queue_knows_nothing_of_it),
		cmocka_unit_test(a_flood_is_taken_in_pieces),
	};

	libc_rig_sendmmsg = narrow_sendmmsg;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
