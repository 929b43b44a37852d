/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp transport's cold half: addresses, strangers (silent, slow, hostile, too many, late), refusals, the worker's
 * side of a box that misbehaves, and running out of file descriptors.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "tests/unit/cmocka_shim.h"
#include "tests/unit/tcp_rig.h"
#include "transport/rate.h"
#include "transport/sock.h"
#include "transport/tcp_internal.h"

static int accept_once(struct tcp_rig *rig, uint64_t now_ns)
{
	struct hello hello;

	return rig->box->ops->accept(rig->box, now_ns, &hello);
}

/* Drives the box until so many strangers were refused in all, and so many hung up by themselves. */
static void expect_ends(struct tcp_rig *rig, uint64_t refused, uint64_t gone)
{
	uint64_t end = clock_now_ns() + 5 * NS_PER_S;

	while (rig->box->strangers_refused < refused || rig->box->strangers_gone < gone) {
		assert_int_equal(accept_once(rig, clock_now_ns()), -EAGAIN);
		assert_true(clock_now_ns() < end);
	}
	assert_int_equal(rig->box->strangers_refused, refused);
	assert_int_equal(rig->box->strangers_gone, gone);
}

static void drop_both(struct tcp_rig *rig, struct conn *box, struct conn *worker)
{
	rig->box_queue->ops->drop(rig->box_queue, box);
	rig->worker_queue->ops->drop(rig->worker_queue, worker);
}

static void assert_ended(int fd)
{
	uint8_t bytes[256];

	while (recv(fd, bytes, sizeof(bytes), 0) > 0)
		;
	close(fd);
}

/* --- addresses --------------------------------------------------------------------------------- */

static struct transport *transport_new(const struct transport_config *config)
{
	struct transport *t = NULL;
	struct err e = {0};

	if (transport_tcp.open(config, &t, &e) < 0)
		fail_msg("%s", e.text);
	return t;
}

static void test_ports(void **state)
{
	struct transport_config config = {0};
	struct transport *first;
	struct transport *second;
	struct transport *third;
	char address[128];
	char other[128];
	struct err e = {0};
	uint16_t port = 0;

	/* Two free ports side by side, from the kernel's choice upwards. */
	for (int i = 0; i < 100 && !port; i++) {
		int fd[2] = {-1, -1};
		struct sockaddr_in bound = {0};
		socklen_t bytes = sizeof(bound);

		assert_int_equal(sock_listen("127.0.0.1", 0, 0, NULL, &fd[0], &e), 0);
		assert_int_equal(getsockname(fd[0], (struct sockaddr *)&bound, &bytes), 0);
		port = ntohs(bound.sin_port);
		if (port == 65535 ||
			sock_listen("127.0.0.1", (uint16_t)(port + 1), (uint16_t)(port + 1), NULL, &fd[1], &e) < 0)
			port = 0;
		close(fd[0]);
		if (fd[1] >= 0)
			close(fd[1]);
	}
	assert_int_not_equal(port, 0);
	config.port_first = port;
	config.port_last = (uint16_t)(port + 1);
	first = transport_new(&config);
	second = transport_new(&config);
	third = transport_new(&config);
	assert_int_equal(first->ops->listen(first, "127.0.0.1", address, sizeof(address), &e), 0);
	snprintf(other, sizeof(other), "127.0.0.1:%u", port);
	assert_string_equal(address, other);
	assert_int_equal(second->ops->listen(second, "127.0.0.1", address, sizeof(address), &e), 0);
	snprintf(other, sizeof(other), "127.0.0.1:%u", port + 1u);
	assert_string_equal(address, other);
	assert_int_equal(third->ops->listen(third, "127.0.0.1", address, sizeof(address), &e), -EADDRINUSE);
	assert_non_null(strstr(e.text, "taken"));
	assert_int_equal(first->ops->listen(first, "127.0.0.1", address, sizeof(address), &e), -EALREADY);
	first->ops->close(first);
	second->ops->close(second);
	third->ops->close(third);
	config.port_last = (uint16_t)(port - 1);
	first = transport_new(&config);
	assert_int_equal(first->ops->listen(first, "127.0.0.1", address, sizeof(address), &e), -EINVAL);
	first->ops->close(first);
}

static void exchange_one(const char *host, const char *dial_host)
{
	struct transport_config config = {0};
	struct wire_header h = tcp_rig_header(WIRE_PULL, 0, 0, 9);
	struct conn *box;
	struct conn *worker;
	struct tcp_rig rig;
	struct err e = {0};
	const char *port;

	tcp_rig_open(&rig, NULL, 1, 1024);
	rig.box->ops->queue_destroy(rig.box, rig.box_queue);
	rig.box->ops->close(rig.box);
	rig.box = transport_new(&config);
	assert_int_equal(rig.box->ops->queue_create(rig.box, MEM_NODE_ANY, &rig.box_queue, &e), 0);
	if (rig.box->ops->listen(rig.box, host, rig.address, sizeof(rig.address), &e) < 0)
		fail_msg("%s", e.text);
	if (!host[0]) {
		char whole[128];

		assert_int_equal(rig.address[0], '*');
		port = strrchr(rig.address, ':');
		snprintf(whole, sizeof(whole), "%s%s", dial_host, port);
		memcpy(rig.address, whole, sizeof(whole));
	}
	tcp_rig_connect(&rig, &box, &worker);
	assert_int_equal(rig.worker_queue->ops->send(rig.worker_queue, worker, &h, NULL, NULL), 0);
	assert_int_equal(tcp_rig_poll(&rig, rig.worker_queue, 0), 0);
	assert_int_equal(tcp_rig_expect(&rig, rig.box_queue, EVENT_MESSAGE).header.round, 9);
	assert_non_null(strstr(box->peer, strchr(dial_host, ':') ? "[::1]:" : "127.0.0.1:"));
	assert_string_equal(worker->peer, rig.address);
	drop_both(&rig, box, worker);
	tcp_rig_close(&rig);
}

static void test_hosts(void **state)
{
	struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int fd = socket(AF_INET6, SOCK_STREAM, 0);

	exchange_one("127.0.0.1", "127.0.0.1");
	exchange_one("", "127.0.0.1");
	if (bind(fd, (struct sockaddr *)&loopback, sizeof(loopback)) == 0) {
		exchange_one("::1", "[::1]");
		exchange_one("", "[::1]");
	}
	close(fd);
}

/* Both ends of a connection to `host`, of which the other one is bound to `from`. */
static bool is_here(const char *host, const char *from)
{
	struct sockaddr_in to = {.sin_family = AF_INET}, own = {.sin_family = AF_INET};
	socklen_t bytes = sizeof(to);
	int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
	bool here;

	inet_pton(AF_INET, host, &to.sin_addr);
	inet_pton(AF_INET, from, &own.sin_addr);
	assert_int_equal(bind(listener, (struct sockaddr *)&to, bytes), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&to, &bytes), 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof(own)), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, bytes), 0);
	here = sock_peer_is_here(fd);
	close(fd);
	close(listener);
	return here;
}

/* Loopback is here whatever its addresses; what is no connection of the internet is nowhere. */
static void test_here(void **state)
{
	int pair[2];

	assert_true(is_here("127.0.0.1", "0.0.0.0"));
	assert_true(is_here("127.0.0.2", "127.0.0.3"));
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_false(sock_peer_is_here(pair[0]));
	assert_false(sock_peer_is_here(-1));
	close(pair[0]);
	close(pair[1]);
}

static void test_configuration(void **state)
{
	struct transport_config config = {.congestion = "a name that is too long"};
	struct transport *t;
	char address[128];
	struct err e = {0};

	assert_int_equal(transport_tcp.open(&config, &t, &e), -EINVAL);
	assert_non_null(strstr(e.text, "congestion"));
	config.congestion = NULL;
	config.interface = "an interface name that is too long";
	assert_int_equal(transport_tcp.open(&config, &t, &e), -EINVAL);
	assert_non_null(strstr(e.text, "interface"));
	/* An unknown congestion control costs speed, not service. */
	config.congestion = "nosuch";
	config.interface = "nosuch0";
	t = transport_new(&config);
	assert_int_equal(t->ops->listen(t, "127.0.0.1", address, sizeof(address), &e), -ENODEV);
	assert_true(t->ops->fd(t) >= 0);
	assert_int_equal(t->ops->accept(t, 0, &(struct hello){0}), -EAGAIN);
	t->ops->close(t);
}

static void test_connect_errors(void **state)
{
	struct tcp_rig rig;
	struct conn *c;
	struct err e = {0};
	char closed[128];

	tcp_rig_open(&rig, NULL, 1, 1024);
	assert_int_equal(rig.worker->ops->connect(rig.worker, "nonsense", 7, 2, tcp_rig_key, NULL, &c, &e), -EINVAL);
	assert_int_equal(rig.worker->ops->connect(rig.worker, "*:7101", 7, 2, tcp_rig_key, NULL, &c, &e), -EINVAL);
	memcpy(closed, rig.address, sizeof(closed));
	rig.box->ops->queue_destroy(rig.box, rig.box_queue);
	rig.box->ops->close(rig.box);
	rig.box = transport_new(&(struct transport_config){0});
	assert_int_equal(rig.box->ops->queue_create(rig.box, MEM_NODE_ANY, &rig.box_queue, &e), 0);
	assert_int_equal(rig.worker->ops->connect(rig.worker, closed, 7, 2, tcp_rig_key, NULL, &c, &e), 0);
	assert_int_equal(tcp_rig_established(&rig, c, &e), -ECONNREFUSED);
	assert_non_null(strstr(e.text, closed));
	/* It says so again, and is the caller's to free. */
	assert_int_equal(rig.worker->ops->established(rig.worker, c, &e), -ECONNREFUSED);
	rig.worker->ops->abandon(rig.worker, c);
	tcp_rig_close(&rig);
}

/* --- strangers --------------------------------------------------------------------------------- */

static void test_stranger_talks_nonsense(void **state)
{
	uint8_t bytes[HANDSHAKE_HELLO_BYTES];
	uint64_t seed = 1;
	struct conn *box;
	struct conn *worker;
	struct tcp_rig rig;
	int fd;

	tcp_rig_open(&rig, NULL, 1, 1024);
	for (unsigned i = 0; i < 20; i++) {
		for (size_t at = 0; at < sizeof(bytes); at++)
			bytes[at] = (uint8_t)tcp_rig_random(&seed);
		fd = tcp_rig_dial(&rig);
		if (i % 2)
			(void)accept_once(&rig, clock_now_ns());
		tcp_rig_write(fd, bytes, sizeof(bytes));
		expect_ends(&rig, i + 1, 0);
		assert_ended(fd);
	}
	fd = tcp_rig_dial(&rig);
	close(fd);
	expect_ends(&rig, 20, 1);
	tcp_rig_connect(&rig, &box, &worker);
	drop_both(&rig, box, worker);
	tcp_rig_close(&rig);
}

/* A stranger dials, is accepted, and has the hello of a worker that knows the key; the socket. */
static int stranger_dial(struct tcp_rig *rig, uint8_t hello[HANDSHAKE_HELLO_BYTES])
{
	uint8_t nonce[HANDSHAKE_NONCE_BYTES];
	struct handshake shake;
	const uint8_t *output;
	size_t n;
	int fd = tcp_rig_dial(rig);

	assert_int_equal(accept_once(rig, clock_now_ns()), -EAGAIN);
	handshake_begin_worker(&shake, 7, 2, tcp_rig_key);
	tcp_rig_read(fd, nonce, sizeof(nonce));
	assert_int_equal(handshake_input(&shake, nonce, sizeof(nonce)), 0);
	output = handshake_output(&shake, &n);
	assert_int_equal(n, HANDSHAKE_HELLO_BYTES);
	memcpy(hello, output, n);
	return fd;
}

/* More than the hello, in one go: what follows is not lost, and is judged as messages. */
static void test_stranger_is_hasty(void **state)
{
	struct wire_header h = tcp_rig_header(WIRE_PULL, 0, 0, 5);
	uint8_t bytes[HANDSHAKE_HELLO_BYTES + WIRE_HEADER_BYTES];
	struct tcp_rig rig;
	struct conn *c;
	struct err e = {0};
	int fd;

	tcp_rig_open(&rig, NULL, 1, 1024);
	fd = stranger_dial(&rig, bytes);
	wire_encode(&h, bytes + HANDSHAKE_HELLO_BYTES);
	tcp_rig_write(fd, bytes, sizeof(bytes));
	c = tcp_rig_accept(&rig);
	assert_int_equal(rig.box->ops->admit(rig.box, c, &rig.box_spec, &e), 0);
	assert_int_equal(rig.box_queue->ops->adopt(rig.box_queue, c, &rig.box_spec), 0);
	assert_int_equal(tcp_rig_expect(&rig, rig.box_queue, EVENT_MESSAGE).header.round, 5);
	rig.box_queue->ops->drop(rig.box_queue, c);
	close(fd);
	tcp_rig_close(&rig);
}

/* One byte at a time; meanwhile others come and go. */
static void test_stranger_is_slow(void **state)
{
	uint8_t hello[HANDSHAKE_HELLO_BYTES];
	struct conn *box;
	struct conn *worker;
	struct tcp_rig rig;
	struct conn *c;
	int fd;

	tcp_rig_open(&rig, NULL, 1, 1024);
	fd = stranger_dial(&rig, hello);
	for (size_t i = 0; i < sizeof(hello); i++) {
		assert_int_equal(accept_once(&rig, clock_now_ns()), -EAGAIN);
		tcp_rig_connect(&rig, &box, &worker);
		drop_both(&rig, box, worker);
		tcp_rig_write(fd, hello + i, 1);
	}
	c = tcp_rig_accept(&rig);
	rig.box->ops->abandon(rig.box, c);
	assert_ended(fd);
	assert_int_equal(rig.box->strangers_refused, 0);
	tcp_rig_close(&rig);
}

/* The deadline is by the caller's clock, and the default 5 s. */
static void late(unsigned handshake_ms, uint64_t deadline_ms)
{
	struct transport_config config = {.handshake_ms = handshake_ms};
	const uint64_t start = 1000 * NS_PER_S;
	struct tcp_rig rig;
	int fd[3];

	tcp_rig_open(&rig, &config, 1, 1024);
	for (int i = 0; i < 3; i++) {
		fd[i] = tcp_rig_dial(&rig);
		assert_int_equal(accept_once(&rig, start + (uint64_t)i * NS_PER_MS), -EAGAIN);
	}
	tcp_rig_write(fd[1], "PHHS", 4);
	assert_int_equal(accept_once(&rig, start + deadline_ms * NS_PER_MS - 1), -EAGAIN);
	assert_int_equal(rig.box->strangers_refused, 0);
	assert_int_equal(accept_once(&rig, start + deadline_ms * NS_PER_MS), -EAGAIN);
	assert_int_equal(rig.box->strangers_refused, 1);
	assert_int_equal(accept_once(&rig, start + (deadline_ms + 2) * NS_PER_MS), -EAGAIN);
	assert_int_equal(rig.box->strangers_refused, 3);
	for (int i = 0; i < 3; i++)
		assert_ended(fd[i]);
	tcp_rig_close(&rig);
}

static void test_stranger_is_late(void **state)
{
	late(0, TCP_HANDSHAKE_MS);
	late(20, 20);
}

/* The oldest of too many goes; who means well is served in the midst of them. */
static void test_too_many_strangers(void **state)
{
	enum { SURPLUS = 40 };
	int fd[TCP_STRANGERS_MAX + SURPLUS];
	struct conn *box;
	struct conn *worker;
	struct tcp_rig rig;

	tcp_rig_open(&rig, NULL, 1, 1024);
	for (int i = 0; i < TCP_STRANGERS_MAX + SURPLUS; i++) {
		fd[i] = tcp_rig_dial(&rig);
		assert_int_equal(accept_once(&rig, clock_now_ns()), -EAGAIN);
	}
	expect_ends(&rig, SURPLUS, 0);
	for (int i = 0; i < SURPLUS; i++)
		assert_ended(fd[i]);
	tcp_rig_connect(&rig, &box, &worker);
	assert_int_equal(rig.box->strangers_refused, SURPLUS + 1);
	assert_ended(fd[SURPLUS]);
	drop_both(&rig, box, worker);
	for (int i = SURPLUS + 1; i < TCP_STRANGERS_MAX + SURPLUS; i++)
		close(fd[i]);
	expect_ends(&rig, SURPLUS + 1, TCP_STRANGERS_MAX - 1);
	tcp_rig_close(&rig);
}

/* Who sends many sends his own away, and nobody of another address. */
static void test_too_many_of_one_address(void **state)
{
	enum { SURPLUS = 40 };
	int fd[TCP_STRANGERS_MAX + SURPLUS], other;
	struct pollfd p = {.events = POLLIN | POLLRDHUP};
	uint8_t nonce[HANDSHAKE_NONCE_BYTES];
	struct tcp_rig rig;

	tcp_rig_open(&rig, NULL, 1, 1024);
	other = tcp_rig_dial_from(&rig, 3); /* the oldest of all */
	for (int i = 0; i < TCP_STRANGERS_MAX + SURPLUS; i++) {
		fd[i] = tcp_rig_dial_from(&rig, 2);
		assert_int_equal(accept_once(&rig, clock_now_ns()), -EAGAIN);
	}
	expect_ends(&rig, SURPLUS + 1, 0);
	tcp_rig_read(other, nonce, sizeof(nonce));
	p.fd = other;
	assert_int_equal(poll(&p, 1, 0), 0); /* neither ended nor told more */
	for (int i = 0; i < TCP_STRANGERS_MAX + SURPLUS; i++)
		close(fd[i]);
	close(other);
	expect_ends(&rig, SURPLUS + 1, TCP_STRANGERS_MAX);
	tcp_rig_close(&rig);
}

/* Beyond the rate of its address a caller is closed unheard; who was let in does not count, nor do other addresses. */
static void test_rate(void **state)
{
	enum { RATE = 2, BURST = RATE * RATE_BURST_S, CALLERS = 20 };
	struct transport_config config = {.rate = rate_create(0, RATE)};
	uint64_t now_ns = clock_now_ns();
	struct conn *box, *worker;
	int fd[CALLERS], other;
	struct tcp_rig rig;

	tcp_rig_open(&rig, &config, 1, 1024);
	for (int i = 0; i < 2 * BURST; i++) {
		tcp_rig_connect(&rig, &box, &worker);
		drop_both(&rig, box, worker);
	}
	assert_int_equal(rig.box->strangers_limited, 0);
	now_ns += 100 * NS_PER_S;
	for (int i = 0; i < CALLERS; i++) {
		fd[i] = tcp_rig_dial_from(&rig, 2);
		assert_int_equal(accept_once(&rig, now_ns), -EAGAIN);
	}
	assert_int_equal(rig.box->strangers_limited, CALLERS - BURST);
	assert_int_equal(rig.box->strangers_refused, CALLERS - BURST);
	for (int i = BURST; i < CALLERS; i++)
		assert_ended(fd[i]);
	other = tcp_rig_dial_from(&rig, 3);
	assert_int_equal(accept_once(&rig, now_ns), -EAGAIN);
	assert_int_equal(rig.box->strangers_limited, CALLERS - BURST);
	for (int i = 0; i < BURST; i++)
		close(fd[i]);
	close(other);
	tcp_rig_close(&rig);
	rate_destroy(config.rate);
}

/* Without file descriptors the box waits a little, serves whom it has, and then takes callers again. */
static void test_out_of_files(void **state)
{
	struct rlimit limit;
	struct rlimit low;
	struct conn *box;
	struct conn *worker;
	struct conn *c;
	struct tcp_rig rig;
	struct err e = {0};
	int top = dup(0);
	struct pollfd p;

	tcp_rig_open(&rig, NULL, 1, 1024);
	tcp_rig_connect(&rig, &box, &worker);
	assert_int_equal(rig.worker->ops->connect(rig.worker, rig.address, 7, 2, tcp_rig_key, NULL, &c, &e), 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	low = limit;
	low.rlim_cur = (rlim_t)top; /* Every fd below it is taken. */
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	p = (struct pollfd){.fd = rig.box->ops->fd(rig.box), .events = POLLIN};
	assert_int_equal(accept_once(&rig, NS_PER_S), -EAGAIN);
	assert_int_equal(accept_once(&rig, NS_PER_S + 1), -EAGAIN);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	/* It does not spin: the caller who waits does not wake the box before the pause is over. */
	assert_int_equal(poll(&p, 1, 0), 0);
	assert_int_equal(accept_once(&rig, NS_PER_S + 2), -EAGAIN);
	assert_int_equal(rig.worker->ops->established(rig.worker, c, &e), -EAGAIN);
	assert_int_equal(accept_once(&rig, 2 * NS_PER_S), -EAGAIN);
	assert_int_equal(rig.worker->ops->established(rig.worker, c, &e), -EAGAIN);
	rig.box->ops->abandon(rig.box, tcp_rig_accept(&rig));
	rig.worker->ops->abandon(rig.worker, c);
	close(top);
	drop_both(&rig, box, worker);
	tcp_rig_close(&rig);
}

/* A transport that closes ends its strangers, whatever they are at. */
static void test_close_with_strangers(void **state)
{
	struct tcp_rig rig;
	struct conn *c[2];
	struct err e = {0};
	int fd;

	tcp_rig_open(&rig, NULL, 1, 1024);
	fd = tcp_rig_dial(&rig);
	for (int i = 0; i < 2; i++)
		assert_int_equal(
			rig.worker->ops->connect(rig.worker, rig.address, 7, 2, tcp_rig_key, NULL, &c[i], &e), 0);
	assert_int_equal(accept_once(&rig, clock_now_ns()), -EAGAIN);
	for (int i = 0; i < 2; i++)
		assert_int_equal(rig.worker->ops->established(rig.worker, c[i], &e), -EAGAIN);
	/* Both hellos are complete; one is handed out. */
	rig.box->ops->abandon(rig.box, tcp_rig_accept(&rig));
	for (int i = 0; i < 2; i++)
		rig.worker->ops->abandon(rig.worker, c[i]);
	tcp_rig_close(&rig);
	assert_ended(fd);
}

/* --- answers ----------------------------------------------------------------------------------- */

static void refused(int code, int error)
{
	struct tcp_rig rig;
	struct conn *c;
	struct err e = {0};

	tcp_rig_open(&rig, NULL, 1, 1024);
	assert_int_equal(rig.worker->ops->connect(rig.worker, rig.address, 7, 2, tcp_rig_key, NULL, &c, &e), 0);
	assert_int_equal(accept_once(&rig, clock_now_ns()), -EAGAIN);
	assert_int_equal(rig.worker->ops->established(rig.worker, c, &e), -EAGAIN);
	rig.box->ops->reject(rig.box, tcp_rig_accept(&rig), code);
	assert_int_equal(rig.box->strangers_refused, 1);
	assert_int_equal(tcp_rig_established(&rig, c, &e), error);
	assert_non_null(strstr(e.text, rig.address));
	rig.worker->ops->abandon(rig.worker, c);
	tcp_rig_close(&rig);
}

static void test_reject(void **state)
{
	refused(EACCES, -EACCES);
	refused(ENOENT, -ENOENT);
	refused(EIO, -ECONNREFUSED);
	refused(0, -ECONNREFUSED);
}

/* A box that cannot serve the spec refuses, and so does one whose peer is gone. */
static void test_admit_errors(void **state)
{
	struct conn_spec too_large;
	struct linger linger = {.l_onoff = 1};
	uint8_t hello[HANDSHAKE_HELLO_BYTES];
	struct tcp_rig rig;
	struct conn *c;
	struct err e = {0};
	int rc;
	int fd;

	tcp_rig_open(&rig, NULL, 1, 1024);
	too_large = rig.box_spec;
	too_large.payload_max = WIRE_PAYLOAD_MAX + 1;
	assert_int_equal(rig.worker->ops->connect(rig.worker, rig.address, 7, 2, tcp_rig_key, NULL, &c, &e), 0);
	assert_int_equal(accept_once(&rig, clock_now_ns()), -EAGAIN);
	assert_int_equal(rig.worker->ops->established(rig.worker, c, &e), -EAGAIN);
	assert_int_equal(rig.box->ops->admit(rig.box, tcp_rig_accept(&rig), &too_large, &e), -EINVAL);
	assert_int_equal(tcp_rig_established(&rig, c, &e), -ENOSPC);
	rig.worker->ops->abandon(rig.worker, c);

	fd = stranger_dial(&rig, hello);
	tcp_rig_write(fd, hello, sizeof(hello));
	c = tcp_rig_accept(&rig);
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	close(fd);
	rc = rig.box->ops->admit(rig.box, c, &rig.box_spec, &e);
	assert_true(rc == -ECONNRESET || rc == -EPIPE);
	tcp_rig_close(&rig);
}

/* --- a box that misbehaves --------------------------------------------------------------------- */

static int bad_box(const void *data, size_t bytes, int hang_up, struct err *e)
{
	struct sockaddr_storage bound;
	socklen_t bound_bytes = sizeof(bound);
	char address[SOCK_ADDRESS_BYTES];
	struct tcp_rig rig;
	struct conn *c;
	int listening;
	int rc;
	int fd;

	tcp_rig_open(&rig, NULL, 1, 1024);
	assert_int_equal(sock_listen("127.0.0.1", 0, 0, NULL, &listening, e), 0);
	assert_int_equal(getsockname(listening, (struct sockaddr *)&bound, &bound_bytes), 0);
	sock_format(&bound, address, sizeof(address));
	assert_int_equal(rig.worker->ops->connect(rig.worker, address, 7, 2, tcp_rig_key, NULL, &c, e), 0);
	while ((fd = accept(listening, NULL, NULL)) < 0)
		assert_int_equal(errno, EAGAIN);
	tcp_rig_write(fd, data, bytes);
	if (hang_up)
		shutdown(fd, SHUT_WR);
	rc = tcp_rig_established(&rig, c, e);
	rig.worker->ops->abandon(rig.worker, c);
	close(fd);
	close(listening);
	tcp_rig_close(&rig);
	return rc;
}

static void test_bad_box(void **state)
{
	static const uint8_t zeros[HANDSHAKE_NONCE_BYTES];
	struct err e = {0};

	assert_int_equal(bad_box("", 0, 1, &e), -ECONNRESET);
	assert_int_equal(bad_box(zeros, sizeof(zeros), 0, &e), -EPROTO);
	assert_int_equal(bad_box("PHHS\2", 5, 1, &e), -ECONNRESET);
	assert_int_equal(bad_box("PHHS\2\1\0\0................", 24, 0, &e), -EPROTONOSUPPORT);
	assert_int_equal(bad_box("PHHS\1\1\0\0................", 24, 1, &e), -ECONNRESET);
	assert_int_equal(bad_box("HTTP/1.1 400 Bad Request\r\n\r\n", 28, 0, &e), -EPROTO);
}

/* abandon() in every state of the worker's end. */
static void test_abandon(void **state)
{
	struct tcp_rig rig;
	struct conn *c;
	struct err e = {0};

	tcp_rig_open(&rig, NULL, 1, 1024);
	assert_int_equal(rig.worker->ops->connect(rig.worker, rig.address, 7, 2, tcp_rig_key, NULL, &c, &e), 0);
	rig.worker->ops->abandon(rig.worker, c);
	expect_ends(&rig, 0, 1);
	assert_int_equal(rig.worker->ops->connect(rig.worker, rig.address, 7, 2, tcp_rig_key, NULL, &c, &e), 0);
	assert_int_equal(accept_once(&rig, clock_now_ns()), -EAGAIN);
	assert_int_equal(rig.worker->ops->established(rig.worker, c, &e), -EAGAIN);
	rig.worker->ops->abandon(rig.worker, c);
	rig.box->ops->abandon(rig.box, tcp_rig_accept(&rig));
	assert_int_equal(rig.worker->ops->connect(rig.worker, rig.address, 7, 2, tcp_rig_key, NULL, &c, &e), 0);
	assert_int_equal(accept_once(&rig, clock_now_ns()), -EAGAIN);
	assert_int_equal(rig.worker->ops->established(rig.worker, c, &e), -EAGAIN);
	{
		struct conn *box = tcp_rig_accept(&rig);

		assert_int_equal(rig.box->ops->admit(rig.box, box, &rig.box_spec, &e), 0);
		assert_int_equal(tcp_rig_established(&rig, c, &e), 0);
		assert_int_equal(rig.worker->ops->established(rig.worker, c, &e), 0);
		rig.worker->ops->abandon(rig.worker, c);
		rig.box->ops->abandon(rig.box, box);
	}
	tcp_rig_close(&rig);
}

TEST_PROGRAM(test_tcp_setup)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ports),
		cmocka_unit_test(test_hosts),
		cmocka_unit_test(test_here),
		cmocka_unit_test(test_configuration),
		cmocka_unit_test(test_connect_errors),
		cmocka_unit_test(test_stranger_talks_nonsense),
		cmocka_unit_test(test_stranger_is_hasty),
		cmocka_unit_test(test_stranger_is_slow),
		cmocka_unit_test(test_stranger_is_late),
		cmocka_unit_test(test_too_many_strangers),
		cmocka_unit_test(test_too_many_of_one_address),
		cmocka_unit_test(test_rate),
		cmocka_unit_test(test_out_of_files),
		cmocka_unit_test(test_close_with_strangers),
		cmocka_unit_test(test_reject),
		cmocka_unit_test(test_admit_errors),
		cmocka_unit_test(test_bad_box),
		cmocka_unit_test(test_abandon),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
