/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control session's streams over loopback TCP, who the peer is, and frames over a stream that is cut anywhere.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/cmocka_shim.h"
#include "tests/unit/gate.h"
#include "tests/unit/libc_rig.h"
#include "transport/sock.h"
#include "transport/stream.h"

/* --- over TCP ---------------------------------------------------------------------------------- */

struct ends {
	int listen_fd;
	uint16_t port;
	char bound[80];
	struct stream *near, *far; /* the dialler's, the box's */
};

static uint16_t port_of(const char *bound)
{
	unsigned long port = strtoul(strrchr(bound, ':') + 1, NULL, 10);

	assert_in_range(port, 1, 65535);
	return (uint16_t)port;
}

static void listen_on(struct ends *ends, const char *host)
{
	struct err e = {0};

	assert_int_equal(stream_listen_tcp(host, 0, NULL, &ends->listen_fd, ends->bound, sizeof(ends->bound), &e), 0);
	ends->port = port_of(ends->bound);
}

static void wait_for(int fd, short events)
{
	struct pollfd p = {.fd = fd, .events = events};

	assert_int_equal(poll(&p, 1, 60000), 1);
}

static void connect_ends(struct ends *ends, const char *host)
{
	struct err e = {0};

	assert_int_equal(stream_dial_tcp(host, ends->port, NULL, &ends->near, &e), 0);
	wait_for(ends->listen_fd, POLLIN);
	assert_int_equal(stream_accept_tcp(ends->listen_fd, &ends->far), 0);
}

static void close_ends(struct ends *ends)
{
	ends->near->ops->close(ends->near);
	ends->far->ops->close(ends->far);
	close(ends->listen_fd);
}

static void assert_carries(struct stream *from, struct stream *to, const char *text)
{
	char buf[64] = {0};

	wait_for(from->ops->fd(from), POLLOUT);
	assert_int_equal(from->ops->write(from, text, strlen(text)), strlen(text));
	wait_for(to->ops->fd(to), POLLIN);
	assert_int_equal(to->ops->read(to, buf, sizeof(buf)), strlen(text));
	assert_string_equal(buf, text);
}

static void try_host(const char *listen_host, const char *dial_host, const char *bound_prefix, const char *peer_prefix)
{
	struct ends ends;
	char byte;

	listen_on(&ends, listen_host);
	assert_memory_equal(ends.bound, bound_prefix, strlen(bound_prefix));
	assert_int_equal(stream_accept_tcp(ends.listen_fd, &ends.far), -EAGAIN);
	connect_ends(&ends, dial_host);
	assert_memory_equal(ends.far->peer, peer_prefix, strlen(peer_prefix));
	assert_int_equal(ends.far->peer_is_local, 1);
	assert_int_equal(ends.far->peer_uid, getuid());
	assert_int_equal(ends.near->ops->read(ends.near, &byte, 1), -EAGAIN);
	assert_carries(ends.near, ends.far, "up");
	assert_carries(ends.far, ends.near, "down");
	close_ends(&ends);
}

static void test_ipv4(void **state)
{
	try_host("127.0.0.1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:");
	try_host("0.0.0.0", "127.0.0.2", "*:", "127.0.0.1:");
}

static int has_ipv6(void)
{
	struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int fd = socket(AF_INET6, SOCK_STREAM, 0);
	int rc = bind(fd, (struct sockaddr *)&loopback, sizeof(loopback));

	close(fd);
	return rc == 0;
}

static void test_ipv6(void **state)
{
	if (!has_ipv6())
		skip_because("no IPv6 on loopback here");
	try_host("::1", "::1", "[::1]:", "[::1]:");
}

/* "" listens for both families; "localhost" is tried with all its addresses. */
static void test_any_and_names(void **state)
{
	try_host("", "127.0.0.1", "*:", "127.0.0.1:");
	if (has_ipv6())
		try_host("", "::1", "*:", "[::1]:");
	try_host("127.0.0.1", "localhost", "127.0.0.1:", "127.0.0.1:");
}

/* --- names that take their time ---------------------------------------------------------------- */

static struct gate gate;

/* "slow.test" is 127.0.0.1 once the gate is open, "none.test" unknown after a moment. */
static int slow_lookup(const char **host, const struct addrinfo *hints)
{
	int numeric = hints && hints->ai_flags & AI_NUMERICHOST;

	if (*host && !numeric && strcmp(*host, "slow.test") == 0) {
		gate_pass(&gate);
		*host = "127.0.0.1";
	} else if (*host && !numeric && strcmp(*host, "none.test") == 0) {
		usleep(50000);
		return EAI_NONAME;
	}
	return 0;
}

/* Neither the dial nor reads and writes wait for the name; what fd() says wakes, and then it is a stream as any. */
static void test_slow_name(void **state)
{
	struct ends ends;
	struct err e = {0};
	struct pollfd busy;
	char byte = 0;

	gate_init(&gate);
	listen_on(&ends, "127.0.0.1");
	assert_int_equal(stream_dial_tcp_later("slow.test", ends.port, NULL, &ends.near, &e), 0);
	assert_int_equal(ends.near->why.code, -EINPROGRESS);
	assert_non_null(strstr(ends.near->why.text, "slow.test"));
	assert_int_equal(ends.near->ops->read(ends.near, &byte, 1), -EAGAIN);
	assert_int_equal(ends.near->ops->write(ends.near, &byte, 1), -EAGAIN);
	busy = (struct pollfd){.fd = ends.near->ops->fd(ends.near), .events = POLLIN | POLLOUT};
	gate_await(&gate);
	assert_int_equal(poll(&busy, 1, 0), 0);
	assert_int_equal(atomic_load(&gate.passed), 0);
	gate_open(&gate);
	wait_for(busy.fd, POLLIN | POLLOUT);
	assert_int_equal(ends.near->ops->read(ends.near, &byte, 1), -EAGAIN);
	assert_int_equal(ends.near->why.code, 0);
	wait_for(ends.listen_fd, POLLIN);
	assert_int_equal(stream_accept_tcp(ends.listen_fd, &ends.far), 0);
	assert_carries(ends.near, ends.far, "up");
	assert_carries(ends.far, ends.near, "down");
	close_ends(&ends);
}

/* close() leaves the thread alone with what it holds. The test waits for the thread's end, so that a leak would be
 * seen. */
static void test_slow_name_closed(void **state)
{
	struct stream *s;
	struct err e = {0};
	unsigned threads = gate_threads();

	gate_init(&gate);
	assert_int_equal(stream_dial_tcp_later("slow.test", 1, NULL, &s, &e), 0);
	gate_await(&gate);
	s->ops->close(s);
	assert_int_equal(atomic_load(&gate.passed), 0);
	gate_open(&gate);
	while (atomic_load(&gate.passed) == 0 || gate_threads() > threads)
		usleep(1000);
	assert_int_equal(atomic_load(&gate.passed), 1);
}

static void test_unknown_name(void **state)
{
	char longest[SOCK_HOST_BYTES + 1];
	struct stream *s;
	struct err e = {0};
	char byte = 0;

	assert_int_equal(stream_dial_tcp_later("none.test", 1, NULL, &s, &e), 0);
	wait_for(s->ops->fd(s), POLLIN);
	assert_int_equal(s->ops->read(s, &byte, 1), -ENOENT);
	assert_int_equal(s->ops->write(s, &byte, 1), -ENOENT);
	assert_int_equal(s->why.code, -ENOENT);
	assert_non_null(strstr(s->why.text, "cannot look up host \"none.test\""));
	s->ops->close(s);
	memset(longest, 'a', SOCK_HOST_BYTES);
	longest[SOCK_HOST_BYTES] = '\0';
	assert_int_equal(stream_dial_tcp_later(longest, 1, NULL, &s, &e), -EINVAL);
	/* An address needs no thread: it is a socket at once, and a wrong interface is told at once. */
	assert_int_equal(stream_dial_tcp_later("127.0.0.1", 1, "nosuch0", &s, &e), -ENODEV);
}

static void test_interface(void **state)
{
	struct ends ends = {0};
	struct err e = {0};
	int fd;

	assert_int_equal(
		stream_listen_tcp("127.0.0.1", 0, "nosuch0", &fd, ends.bound, sizeof(ends.bound), &e), -ENODEV);
	assert_non_null(strstr(e.text, "nosuch0"));
	assert_int_equal(stream_dial_tcp("127.0.0.1", 1, "nosuch0", &ends.near, &e), -ENODEV);
	assert_non_null(strstr(e.text, "nosuch0"));
	assert_int_equal(
		stream_listen_tcp("127.0.0.1", 0, "lo", &ends.listen_fd, ends.bound, sizeof(ends.bound), &e), 0);
	ends.port = port_of(ends.bound);
	assert_int_equal(stream_dial_tcp("127.0.0.1", ends.port, "lo", &ends.near, &e), 0);
	wait_for(ends.listen_fd, POLLIN);
	assert_int_equal(stream_accept_tcp(ends.listen_fd, &ends.far), 0);
	assert_int_equal(ends.far->peer_uid, getuid());
	assert_carries(ends.near, ends.far, "through lo");
	close_ends(&ends);
}

static void test_listen_errors(void **state)
{
	struct ends ends;
	struct err e = {0};
	char bound[80];
	int fd;

	listen_on(&ends, "127.0.0.1");
	assert_int_equal(stream_listen_tcp("127.0.0.1", ends.port, NULL, &fd, bound, sizeof(bound), &e), -EADDRINUSE);
	assert_non_null(strstr(e.text, "taken"));
	assert_int_equal(stream_listen_tcp("192.0.2.1", 0, NULL, &fd, bound, sizeof(bound), &e), -EADDRNOTAVAIL);
	assert_true(stream_listen_tcp("no such host", 0, NULL, &fd, bound, sizeof(bound), &e) < 0);
	assert_non_null(strstr(e.text, "no such host"));
	assert_true(stream_dial_tcp("no such host", 1, NULL, &ends.near, &e) < 0);
	close(ends.listen_fd);
	assert_int_equal(stream_accept_tcp(-1, &ends.far), -EBADF);
}

/* A refused connection is told by reads and writes, again and again. */
static void test_refused(void **state)
{
	struct ends ends;
	struct err e = {0};
	char byte = 0;

	listen_on(&ends, "127.0.0.1");
	close(ends.listen_fd);
	if (stream_dial_tcp("127.0.0.1", ends.port, NULL, &ends.near, &e) < 0)
		fail_msg("%s", e.text);
	wait_for(ends.near->ops->fd(ends.near), POLLIN);
	assert_int_equal(ends.near->ops->read(ends.near, &byte, 1), -ECONNREFUSED);
	assert_int_equal(ends.near->ops->read(ends.near, &byte, 1), -ECONNREFUSED);
	assert_int_equal(ends.near->ops->write(ends.near, &byte, 1), -ECONNREFUSED);
	ends.near->ops->close(ends.near);
}

static void test_end_of_stream(void **state)
{
	struct ends ends;
	char byte = 0;
	ssize_t n;

	listen_on(&ends, "127.0.0.1");
	connect_ends(&ends, "127.0.0.1");
	assert_carries(ends.near, ends.far, "last words");
	ends.near->ops->close(ends.near);
	wait_for(ends.far->ops->fd(ends.far), POLLIN);
	assert_int_equal(ends.far->ops->read(ends.far, &byte, 1), 0);
	/* The first write makes the peer's host answer with a reset; a later one finds the stream gone. */
	for (int i = 0; i < 100; i++) {
		n = ends.far->ops->write(ends.far, &byte, 1);
		if (n < 0)
			break;
		poll(NULL, 0, 1);
	}
	assert_true(n == -EPIPE || n == -ECONNRESET);
	ends.far->ops->close(ends.far);
	close(ends.listen_fd);
}

static void test_write_would_block(void **state)
{
	static char block[65536];
	struct ends ends;
	ssize_t n = 0;

	listen_on(&ends, "127.0.0.1");
	connect_ends(&ends, "127.0.0.1");
	for (int i = 0; i < 10000 && n >= 0; i++)
		n = ends.near->ops->write(ends.near, block, sizeof(block));
	assert_int_equal(n, -EAGAIN);
	close_ends(&ends);
}

/* Of a peer that is gone the kernel would print uid 0. */
static void test_uid_of_closed_peer(void **state)
{
	struct ends ends;
	struct err e = {0};

	listen_on(&ends, "127.0.0.1");
	assert_int_equal(stream_dial_tcp("127.0.0.1", ends.port, NULL, &ends.near, &e), 0);
	wait_for(ends.listen_fd, POLLIN);
	ends.near->ops->close(ends.near);
	assert_int_equal(stream_accept_tcp(ends.listen_fd, &ends.far), 0);
	assert_int_equal(ends.far->peer_uid, -1);
	ends.far->ops->close(ends.far);
	close(ends.listen_fd);
}

/* A network namespace of this process's own, with a loopback device that is up. */
static int enter_own_network(void)
{
	struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
	int fd, rc;

	if (unshare(CLONE_NEWNET) < 0)
		return -errno;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	rc = ioctl(fd, SIOCSIFFLAGS, &lo) < 0 ? -errno : 0;
	close(fd);
	return rc;
}

/* Exit status of the child that asks among very many sockets in TIME_WAIT: 0 when it was told its own uid. */
static int ask_among(int count)
{
	struct ends ends;
	bool told = true;

	if (enter_own_network() < 0)
		return 77;
	listen_on(&ends, "0.0.0.0");
	for (int i = 0; i < count; i++) {
		struct sockaddr_in to = {
			.sin_family = AF_INET,
			.sin_port = htons(ends.port),
			.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (unsigned)i % 4),
		};
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		int far = -1;

		if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0)
			far = accept(ends.listen_fd, NULL, NULL);
		if (far < 0)
			return 1;
		close(fd);
		close(far);
	}
	for (int i = 0; i < 16 && told; i++) {
		struct ends one = ends;
		char host[32];

		snprintf(host, sizeof(host), "127.0.0.%d", i + 1);
		connect_ends(&one, host);
		told = one.far->peer_uid == getuid();
		one.near->ops->close(one.near);
		one.far->ops->close(one.far);
	}
	return told ? 0 : 2;
}

/* However many sockets the host remembers, one is found. */
static void test_uid_among_many(void **state)
{
	pid_t child;
	int status;

	child = fork();
	if (child == 0)
		_exit(ask_among(40000));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		skip_because("needs root, for a network namespace");
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* Another user's socket shows that user. Needs root to become somebody else. */
static void test_uid_of_another_user(void **state)
{
	struct ends ends;
	pid_t child;
	int status;

	if (getuid() != 0)
		skip_because("needs root");
	listen_on(&ends, "127.0.0.1");
	child = fork();
	if (child == 0) {
		struct err e;
		char byte;

		if (setuid(65534) < 0 || stream_dial_tcp("127.0.0.1", ends.port, NULL, &ends.near, &e) < 0)
			_exit(1);
		while (ends.near->ops->read(ends.near, &byte, 1) == -EAGAIN)
			poll(NULL, 0, 1);
		_exit(0);
	}
	wait_for(ends.listen_fd, POLLIN);
	assert_int_equal(stream_accept_tcp(ends.listen_fd, &ends.far), 0);
	assert_int_equal(ends.far->peer_uid, 65534);
	ends.far->ops->close(ends.far);
	close(ends.listen_fd);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void test_loopback_names(void **state)
{
	assert_int_equal(stream_host_is_loopback("127.0.0.1"), 1);
	assert_int_equal(stream_host_is_loopback("127.200.3.4"), 1);
	assert_int_equal(stream_host_is_loopback("::1"), 1);
	assert_int_equal(stream_host_is_loopback("::ffff:127.0.0.1"), 1);
	assert_int_equal(stream_host_is_loopback("localhost"), 1);
	assert_int_equal(stream_host_is_loopback(""), 0);
	assert_int_equal(stream_host_is_loopback("0.0.0.0"), 0);
	assert_int_equal(stream_host_is_loopback("::"), 0);
	assert_int_equal(stream_host_is_loopback("128.0.0.1"), 0);
	assert_int_equal(stream_host_is_heard("127.0.0.1", "127.0.0.1"), 1);
	assert_int_equal(stream_host_is_heard("127.0.0.1", "::ffff:127.0.0.1"), 1);
	assert_int_equal(stream_host_is_heard("127.0.0.1", "127.0.0.2"), 0);
	assert_int_equal(stream_host_is_heard("", "127.0.0.2"), 1);
	assert_int_equal(stream_host_is_heard("0.0.0.0", "127.0.0.2"), 1);
	assert_int_equal(stream_host_is_heard("", "192.0.2.1"), 0); /* TEST-NET-1 is nobody's */
	assert_true(stream_host_is_heard("", "nowhere.invalid") < 0);
	assert_true(stream_host_is_heard("nowhere.invalid", "127.0.0.1") < 0);
	assert_int_equal(stream_host_is_loopback("::ffff:10.0.0.1"), 0);
	assert_true(stream_host_is_loopback("no such host") < 0);
}

static void test_split(void **state)
{
	static const char *const wrong[] = {
		"",
		":",
		"host",
		"host:",
		":1",
		"host:0",
		"host:65536",
		"host:-1",
		"host:+1",
		"host: 1",
		"host:1x",
		"::1:5",
		"[::1]",
		"[::1:5",
		"::1]:5",
		"[]:5",
		"[:5",
		"host:99999999999999999999",
	};
	char host[SOCK_HOST_BYTES];
	char longest[300];
	uint16_t port;

	assert_int_equal(sock_split("127.0.0.1:7101", host, &port), 0);
	assert_string_equal(host, "127.0.0.1");
	assert_int_equal(port, 7101);
	assert_int_equal(sock_split("[fe80::1%eth0]:65535", host, &port), 0);
	assert_string_equal(host, "fe80::1%eth0");
	assert_int_equal(port, 65535);
	assert_int_equal(sock_split("*:1", host, &port), 0);
	assert_string_equal(host, "*");
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_int_equal(sock_split(wrong[i], host, &port), -EINVAL);
	memset(longest, 'a', sizeof(longest));
	memcpy(longest + SOCK_HOST_BYTES - 1, ":1", 3);
	assert_int_equal(sock_split(longest, host, &port), 0);
	longest[SOCK_HOST_BYTES - 1] = 'a';
	memcpy(longest + SOCK_HOST_BYTES, ":1", 3);
	assert_int_equal(sock_split(longest, host, &port), -EINVAL);
}

static void test_tune(void **state)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(sock_tune(fd, NULL), 0);
	assert_int_equal(sock_tune(fd, "nosuchcontrol"), -ENOENT);
	close(fd);
}

/* --- frames, over a stream that is cut at will ------------------------------------------------- */

struct cut {
	struct stream stream;
	uint8_t bytes[3 << 20];
	size_t have, taken; /* written to it, read from it */
	size_t step;        /* most bytes of one read() or write() */
	size_t room;        /* further bytes that write() takes before -EAGAIN */
	int error;          /* of an empty read(): -EAGAIN, 0 for the end, ... */
};

static ssize_t cut_read(struct stream *head, void *buf, size_t bytes)
{
	struct cut *cut = (struct cut *)head;

	if (cut->taken == cut->have)
		return cut->error;
	if (bytes > cut->step)
		bytes = cut->step;
	if (bytes > cut->have - cut->taken)
		bytes = cut->have - cut->taken;
	memcpy(buf, cut->bytes + cut->taken, bytes);
	cut->taken += bytes;
	return (ssize_t)bytes;
}

static ssize_t cut_write(struct stream *head, const void *buf, size_t bytes)
{
	struct cut *cut = (struct cut *)head;

	if (cut->error != -EAGAIN)
		return cut->error;
	if (cut->room == 0)
		return -EAGAIN;
	if (bytes > cut->step)
		bytes = cut->step;
	if (bytes > cut->room)
		bytes = cut->room;
	memcpy(cut->bytes + cut->have, buf, bytes);
	cut->have += bytes;
	cut->room -= bytes;
	return (ssize_t)bytes;
}

static const struct stream_ops cut_ops = {.read = cut_read, .write = cut_write};

static struct cut *cut_new(size_t step)
{
	struct cut *cut = calloc(1, sizeof(*cut));

	assert_non_null(cut);
	cut->stream.ops = &cut_ops;
	cut->step = step;
	cut->room = sizeof(cut->bytes);
	cut->error = -EAGAIN;
	return cut;
}

static uint8_t *pattern_new(size_t bytes, unsigned seed)
{
	uint8_t *p = malloc(bytes);

	assert_non_null(p);
	for (size_t i = 0; i < bytes; i++)
		p[i] = (uint8_t)(i * 7 + i / 251 + seed);
	return p;
}

static void frames_with_step(size_t step, size_t largest)
{
	const size_t sizes[] = {1, 3, 4, 5, 4091, 4092, 4093, 100, largest, 2};
	const size_t count = sizeof(sizes) / sizeof(sizes[0]);
	struct cut *cut = cut_new(step);
	struct frame_writer w = {0};
	struct frame_reader r = {0};
	const uint8_t *frame;
	size_t bytes;

	for (size_t i = 0; i < count; i++) {
		uint8_t *p = pattern_new(sizes[i], (unsigned)i);

		assert_int_equal(frame_append(&w, p, sizes[i]), 0);
		free(p);
	}
	assert_int_equal(frame_flush(&w, &cut->stream), 0);
	for (size_t i = 0; i < count; i++) {
		uint8_t *p = pattern_new(sizes[i], (unsigned)i);

		assert_int_equal(frame_read(&r, &cut->stream, &frame, &bytes), 0);
		assert_int_equal(bytes, sizes[i]);
		assert_memory_equal(frame, p, bytes);
		free(p);
	}
	assert_int_equal(frame_read(&r, &cut->stream, &frame, &bytes), -EAGAIN);
	assert_true(r.room <= FRAME_BYTES_MAX + 4);
	frame_reader_fini(&r);
	frame_writer_fini(&w);
	free(cut);
}

static void test_frames(void **state)
{
	frames_with_step(1, 70000);
	frames_with_step(7, 70000);
	frames_with_step(4096, FRAME_BYTES_MAX);
	frames_with_step(SIZE_MAX, FRAME_BYTES_MAX);
}

/* -EAGAIN at every byte of a frame, and it goes on where it was. */
static void test_frame_comes_slowly(void **state)
{
	struct cut *cut = cut_new(SIZE_MAX);
	struct frame_reader r = {0};
	const uint8_t *frame;
	size_t bytes;

	memcpy(cut->bytes, "\3\0\0\0abc\2\0\0\0de", 13);
	for (cut->have = 0; cut->have < 7; cut->have++)
		assert_int_equal(frame_read(&r, &cut->stream, &frame, &bytes), -EAGAIN);
	assert_int_equal(frame_read(&r, &cut->stream, &frame, &bytes), 0);
	assert_int_equal(bytes, 3);
	assert_memory_equal(frame, "abc", 3);
	for (; cut->have < 13; cut->have++)
		assert_int_equal(frame_read(&r, &cut->stream, &frame, &bytes), -EAGAIN);
	assert_int_equal(frame_read(&r, &cut->stream, &frame, &bytes), 0);
	assert_memory_equal(frame, "de", 2);
	frame_reader_fini(&r);
	free(cut);
}

static int read_bytes(const void *data, size_t have, int error)
{
	struct cut *cut = cut_new(SIZE_MAX);
	struct frame_reader r = {0};
	const uint8_t *frame;
	size_t bytes;
	int rc;

	memcpy(cut->bytes, data, have);
	cut->have = have;
	cut->error = error;
	rc = frame_read(&r, &cut->stream, &frame, &bytes);
	/* An announced length alone costs no memory. */
	assert_true(r.room <= 8192);
	frame_reader_fini(&r);
	free(cut);
	return rc;
}

static void test_frame_read_errors(void **state)
{
	assert_int_equal(read_bytes("\1\0\20\0", 4, -EAGAIN), -EMSGSIZE); /* FRAME_BYTES_MAX + 1 */
	assert_int_equal(read_bytes("\0\0\20\0", 4, -EAGAIN), -EAGAIN);
	assert_int_equal(read_bytes("\377\377\377\377", 4, -EAGAIN), -EMSGSIZE);
	assert_int_equal(read_bytes("\0\0\0\0", 4, -EAGAIN), -EPIPE);
	assert_int_equal(read_bytes("", 0, 0), -EPIPE);
	assert_int_equal(read_bytes("\5\0", 2, 0), -EPIPE);
	assert_int_equal(read_bytes("\5\0\0\0abcd", 8, 0), -EPIPE);
	assert_int_equal(read_bytes("\5\0\0\0abcd", 8, -ECONNRESET), -ECONNRESET);
}

static void test_frame_write_bounds(void **state)
{
	struct cut *cut = cut_new(SIZE_MAX);
	struct frame_writer w = {.bytes_max = 100};
	static uint8_t big[FRAME_BYTES_MAX + 1];

	assert_int_equal(frame_append(&w, big, 0), -EMSGSIZE);
	assert_int_equal(frame_append(&w, big, sizeof(big)), -EMSGSIZE);
	assert_int_equal(frame_append(&w, big, 46), 0);
	assert_int_equal(frame_append(&w, big, 46), 0);
	assert_int_equal(frame_append(&w, big, 1), -ENOBUFS);
	/* What went out makes room. */
	cut->room = 50;
	assert_int_equal(frame_flush(&w, &cut->stream), -EAGAIN);
	assert_int_equal(frame_append(&w, big, 46), 0);
	assert_int_equal(frame_append(&w, big, 1), -ENOBUFS);
	cut->room = 1000;
	assert_int_equal(frame_flush(&w, &cut->stream), 0);
	assert_int_equal(cut->have, 150);
	cut->error = -EPIPE;
	assert_int_equal(frame_flush(&w, &cut->stream), 0);
	assert_int_equal(frame_append(&w, big, 1), 0);
	assert_int_equal(frame_flush(&w, &cut->stream), -EPIPE);
	frame_writer_fini(&w);
	/* The default bound. */
	w.bytes_max = 0;
	for (int i = 0; i < 7; i++)
		assert_int_equal(frame_append(&w, big, FRAME_BYTES_MAX), 0);
	assert_int_equal(frame_append(&w, big, FRAME_BYTES_MAX), -ENOBUFS);
	frame_writer_fini(&w);
	free(cut);
}

TEST_PROGRAM(test_stream)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ipv4),
		cmocka_unit_test(test_ipv6),
		cmocka_unit_test(test_any_and_names),
		cmocka_unit_test(test_slow_name),
		cmocka_unit_test(test_slow_name_closed),
		cmocka_unit_test(test_unknown_name),
		cmocka_unit_test(test_interface),
		cmocka_unit_test(test_listen_errors),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_end_of_stream),
		cmocka_unit_test(test_write_would_block),
		cmocka_unit_test(test_uid_of_closed_peer),
		cmocka_unit_test(test_uid_among_many),
		cmocka_unit_test(test_uid_of_another_user),
		cmocka_unit_test(test_loopback_names),
		cmocka_unit_test(test_split),
		cmocka_unit_test(test_tune),
		cmocka_unit_test(test_frames),
		cmocka_unit_test(test_frame_comes_slowly),
		cmocka_unit_test(test_frame_read_errors),
		cmocka_unit_test(test_frame_write_bounds),
	};

	libc_rig_lookup = slow_lookup;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
