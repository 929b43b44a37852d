/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box and a worker of the tcp transport in one thread, and raw sockets beside them. Asserts of cmocka: a failure
 * here fails the test that called.
 */
#include "tests/unit/tcp_rig.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "phub/base/clock.h"
#include "transport/sock.h"

enum { PATIENCE_MS = 5000, QUIET_MS = 30 };

const uint8_t tcp_rig_key[PROOF_KEY] = "a key of thirty-two bytes, known";

static struct transport *rig_transport(const struct transport_config *config)
{
	struct transport_config none = {0};
	struct transport *t = NULL;
	struct err e = {0};

	if (transport_tcp.open(config ? config : &none, &t, &e) < 0)
		fail_msg("%s", e.text);
	return t;
}

void tcp_rig_open(
	struct tcp_rig *rig, const struct transport_config *config, uint32_t chunk_count, uint32_t payload_max)
{
	struct err e = {0};

	memset(rig, 0, sizeof(*rig));
	rig->box = rig_transport(config);
	rig->worker = rig_transport(config);
	assert_int_equal(rig->box->ops->queue_create(rig->box, MEM_NODE_ANY, &rig->box_queue, &e), 0);
	assert_int_equal(rig->worker->ops->queue_create(rig->worker, MEM_NODE_ANY, &rig->worker_queue, &e), 0);
	if (rig->box->ops->listen(rig->box, "127.0.0.1", rig->address, sizeof(rig->address), &e) < 0)
		fail_msg("%s", e.text);
	rig->spans = calloc(chunk_count, sizeof(*rig->spans));
	rig->sinks = calloc(chunk_count, sizeof(*rig->sinks));
	assert_non_null(rig->spans);
	assert_non_null(rig->sinks);
	for (uint32_t i = 0; i < chunk_count; i++) {
		rig->spans[i].offset = (uint64_t)i * payload_max;
		rig->spans[i].bytes = payload_max;
	}
	rig->box_spec.chunk_count = chunk_count;
	rig->box_spec.spans = rig->spans;
	rig->box_spec.payload_max = payload_max;
	rig->worker_spec = rig->box_spec;
}

void tcp_rig_close(struct tcp_rig *rig)
{
	rig->box->ops->queue_destroy(rig->box, rig->box_queue);
	rig->worker->ops->queue_destroy(rig->worker, rig->worker_queue);
	rig->box->ops->close(rig->box);
	rig->worker->ops->close(rig->worker);
	free(rig->spans);
	free(rig->sinks);
}

struct conn *tcp_rig_accept(struct tcp_rig *rig)
{
	uint64_t end = clock_now_ns() + PATIENCE_MS * NS_PER_MS;
	uint8_t mac[PROOF_MAC];
	struct hello hello;

	while (rig->box->ops->accept(rig->box, clock_now_ns(), &hello) < 0) {
		struct pollfd p = {.fd = rig->box->ops->fd(rig->box), .events = POLLIN};

		assert_true(clock_now_ns() < end);
		(void)poll(&p, 1, 10);
	}
	assert_int_equal(proof_data(tcp_rig_key, hello.nonce, hello.session, hello.core, mac), 0);
	assert_true(proof_equal(mac, hello.mac));
	return hello.conn;
}

int tcp_rig_established(struct tcp_rig *rig, struct conn *c, struct err *e)
{
	uint64_t end = clock_now_ns() + PATIENCE_MS * NS_PER_MS;
	int rc;

	while ((rc = rig->worker->ops->established(rig->worker, c, e)) == -EAGAIN) {
		struct pollfd p = {.fd = rig->worker->ops->fd(rig->worker), .events = POLLIN};

		assert_true(clock_now_ns() < end);
		(void)poll(&p, 1, 10);
	}
	return rc;
}

static void rig_admit(struct tcp_rig *rig, struct conn *c)
{
	struct err e = {0};

	assert_int_equal(rig->box->ops->admit(rig->box, c, &rig->box_spec, &e), 0);
	assert_int_equal(rig->box_queue->ops->adopt(rig->box_queue, c, &rig->box_spec), 0);
	assert_ptr_equal(c->queue, rig->box_queue);
}

void tcp_rig_connect(struct tcp_rig *rig, struct conn **box_end, struct conn **worker_end)
{
	uint64_t end = clock_now_ns() + PATIENCE_MS * NS_PER_MS;
	struct conn *c = NULL;
	struct hello hello;
	struct err e = {0};

	assert_int_equal(rig->worker->ops->connect(rig->worker, rig->address, 7, 2, tcp_rig_key, NULL, &c, &e), 0);
	while (rig->box->ops->accept(rig->box, clock_now_ns(), &hello) < 0) {
		assert_int_equal(rig->worker->ops->established(rig->worker, c, &e), -EAGAIN);
		assert_true(clock_now_ns() < end);
	}
	assert_int_equal(hello.session, 7);
	assert_int_equal(hello.core, 2);
	rig_admit(rig, hello.conn);
	assert_int_equal(tcp_rig_established(rig, c, &e), 0);
	assert_int_equal(rig->worker_queue->ops->adopt(rig->worker_queue, c, &rig->worker_spec), 0);
	*box_end = hello.conn;
	*worker_end = c;
}

/* Small pieces go out at once, or tests would wait for delayed acknowledgements. */
static void rig_no_delay(int fd)
{
	int on = 1;

	assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
}

int tcp_rig_dial(const struct tcp_rig *rig)
{
	return tcp_rig_dial_from(rig, 1);
}

int tcp_rig_dial_from(const struct tcp_rig *rig, uint8_t last)
{
	struct sockaddr_in box = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + last)};
	char host[SOCK_HOST_BYTES];
	uint16_t port;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(sock_split(rig->address, host, &port), 0);
	box.sin_port = htons(port);
	assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof(own)), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&box, sizeof(box)), 0);
	rig_no_delay(fd);
	return fd;
}

int tcp_rig_raw_worker(struct tcp_rig *rig, struct conn **box_end)
{
	uint8_t bytes[HANDSHAKE_BYTES_MAX];
	struct handshake h;
	struct hello hello;
	size_t n;
	int fd = tcp_rig_dial(rig);

	/* The box speaks first, but only inside accept(). */
	assert_int_equal(rig->box->ops->accept(rig->box, clock_now_ns(), &hello), -EAGAIN);
	handshake_begin_worker(&h, 7, 2, tcp_rig_key);
	tcp_rig_read(fd, bytes, HANDSHAKE_NONCE_BYTES);
	assert_int_equal(handshake_input(&h, bytes, HANDSHAKE_NONCE_BYTES), 0);
	tcp_rig_write(fd, handshake_output(&h, &n), HANDSHAKE_HELLO_BYTES);
	*box_end = tcp_rig_accept(rig);
	rig_admit(rig, *box_end);
	tcp_rig_read(fd, bytes, HANDSHAKE_WELCOME_BYTES);
	return fd;
}

int tcp_rig_raw_box(struct tcp_rig *rig, struct conn **worker_end)
{
	static const uint8_t nonce[PROOF_NONCE];
	uint8_t bytes[HANDSHAKE_BYTES_MAX];
	struct sockaddr_storage bound;
	socklen_t bound_bytes = sizeof(bound);
	char address[SOCK_ADDRESS_BYTES];
	struct handshake h;
	struct err e = {0};
	size_t n;
	int listening;
	int fd;

	assert_int_equal(sock_listen("127.0.0.1", 0, 0, NULL, &listening, &e), 0);
	assert_int_equal(getsockname(listening, (struct sockaddr *)&bound, &bound_bytes), 0);
	sock_format(&bound, address, sizeof(address));
	assert_int_equal(rig->worker->ops->connect(rig->worker, address, 7, 2, tcp_rig_key, NULL, worker_end, &e), 0);
	while ((fd = accept(listening, NULL, NULL)) < 0)
		assert_int_equal(errno, EAGAIN);
	close(listening);
	rig_no_delay(fd);
	handshake_begin_box(&h, nonce);
	tcp_rig_write(fd, handshake_output(&h, &n), HANDSHAKE_NONCE_BYTES);
	handshake_sent(&h, HANDSHAKE_NONCE_BYTES);
	do {
		assert_int_equal(rig->worker->ops->established(rig->worker, *worker_end, &e), -EAGAIN);
	} while (recv(fd, bytes, HANDSHAKE_HELLO_BYTES, MSG_DONTWAIT | MSG_PEEK) < HANDSHAKE_HELLO_BYTES);
	tcp_rig_read(fd, bytes, HANDSHAKE_HELLO_BYTES);
	assert_int_equal(handshake_input(&h, bytes, HANDSHAKE_HELLO_BYTES), 0);
	handshake_answer(&h, 0);
	tcp_rig_write(fd, handshake_output(&h, &n), HANDSHAKE_WELCOME_BYTES);
	assert_int_equal(tcp_rig_established(rig, *worker_end, &e), 0);
	assert_int_equal(rig->worker_queue->ops->adopt(rig->worker_queue, *worker_end, &rig->worker_spec), 0);
	return fd;
}

unsigned tcp_rig_poll(struct tcp_rig *rig, struct queue *q, unsigned timeout_ms)
{
	uint64_t end = clock_now_ns() + timeout_ms * NS_PER_MS;
	unsigned n;

	do {
		q->ops->flush(q);
		memset(rig->events, 1, sizeof(rig->events)); /* what an event leaves out is anything */
		n = q->ops->poll(q, clock_now_ns(), rig->events, TCP_RIG_EVENTS);
	} while (n == 0 && clock_now_ns() < end);
	return n;
}

struct event tcp_rig_expect(struct tcp_rig *rig, struct queue *q, enum event_type type)
{
	assert_int_equal(tcp_rig_poll(rig, q, PATIENCE_MS), 1);
	assert_int_equal(rig->events[0].type, type);
	return rig->events[0];
}

void tcp_rig_expect_none(struct tcp_rig *rig, struct queue *q)
{
	assert_int_equal(tcp_rig_poll(rig, q, QUIET_MS), 0);
}

void tcp_rig_expect_closed(struct tcp_rig *rig, struct queue *q, struct conn *c, int error)
{
	struct event event = tcp_rig_expect(rig, q, EVENT_CLOSED);

	assert_false(event.broken);
	struct wire_header h = tcp_rig_header(WIRE_PULL, 0, 0, 0);

	assert_ptr_equal(event.conn, c);
	assert_int_equal(event.error, error);
	assert_int_equal(q->ops->send(q, c, &h, NULL, NULL), -EPIPE);
	tcp_rig_expect_none(rig, q);
}

void tcp_rig_write(int fd, const void *data, size_t bytes)
{
	const uint8_t *at = data;

	while (bytes) {
		ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);

		assert_true(n > 0);
		at += n;
		bytes -= (size_t)n;
	}
}

void tcp_rig_read(int fd, void *data, size_t bytes)
{
	assert_int_equal(recv(fd, data, bytes, MSG_WAITALL), bytes);
}

struct wire_header tcp_rig_header(enum wire_type type, uint32_t chunk, uint32_t length, uint64_t round)
{
	return (struct wire_header){
		.type = type, .chunk = chunk, .length = length, .round = round, .count = 1, .job = 5};
}

uint32_t tcp_rig_random(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return (uint32_t)(*seed >> 20);
}

void tcp_rig_fill(uint8_t *to, size_t bytes, uint64_t salt)
{
	for (size_t i = 0; i < bytes; i++)
		to[i] = (uint8_t)(i + i / 253 + salt * 101 + (salt >> 8));
}

int tcp_rig_holds(const void *at, size_t bytes, uint64_t salt)
{
	const uint8_t *have = at;

	for (size_t i = 0; i < bytes; i++)
		if (have[i] != (uint8_t)(i + i / 253 + salt * 101 + (salt >> 8)))
			return 0;
	return 1;
}
