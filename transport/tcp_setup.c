/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp transport's cold half: opening, listening, connecting, and the handshakes of strangers, of
 * whom none is waited for. Control thread alone. Established connections go to tcp.c, and from then on
 * nothing here touches them.
 */
#include "transport/tcp_internal.h"

#include <assert.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/base/log.h"
#include "transport/rate.h"
#include "transport/sock.h"

enum {
	TCP_ACCEPTS = 64,             /* new sockets in one accept() */
	TCP_PAUSE_NS = 100 * 1000000, /* listening rests so long when the process is out of fds */
	/*
	 * Bytes that the kernel holds without having sent them: enough for two of its largest segments; what comes
	 * later can still be overtaken by what is more urgent.
	 */
	TCP_NOTSENT_BYTES = 128 << 10,
};

struct tcp {
	struct transport transport;
	int epoll_fd;
	int listen_fd;
	unsigned queue_conns_max, send_bytes_max;
	uint64_t handshake_ns;
	uint16_t port_first, port_last;
	char congestion[16];         /* TCP_CA_NAME_MAX */
	char interface[IF_NAMESIZE]; /* "": none */
	struct list_link strangers;  /* handshakes in progress, oldest first */
	struct list_link complete;   /* hellos that accept() has not returned yet */
	unsigned stranger_count;     /* in both */
	struct rate *rate;           /* NULL: none */
	uint64_t listen_again_ns;    /* 0: listening */
};

static const char *tcp_interface(const struct tcp *t)
{
	return t->interface[0] ? t->interface : NULL;
}

/* --- the transport ----------------------------------------------------------------------------- */

static int tcp_copy_name(char *to, size_t bytes, const char *from, const char *what, struct err *e)
{
	int n = snprintf(to, bytes, "%s", from ? from : "");

	if (n < 0 || (size_t)n >= bytes)
		return err_set(e, -EINVAL, "tcp: %s \"%.64s\" is longer than %zu characters", what, from, bytes - 1);
	return 0;
}

static int tcp_configure(struct tcp *t, const struct transport_config *config, struct err *e)
{
	int rc = tcp_copy_name(t->congestion, sizeof(t->congestion), config->congestion ? config->congestion : "cubic",
		"congestion control", e);

	if (rc == 0)
		rc = tcp_copy_name(t->interface, sizeof(t->interface), config->interface, "interface", e);
	if (rc < 0)
		return rc;
	t->queue_conns_max = config->queue_conns_max ? config->queue_conns_max : TCP_QUEUE_CONNS;
	t->send_bytes_max = config->send_bytes_max ? config->send_bytes_max : TCP_SEND_BYTES;
	t->rate = config->rate;
	t->handshake_ns = (config->handshake_ms ? config->handshake_ms : TCP_HANDSHAKE_MS) * NS_PER_MS;
	t->port_first = config->port_first;
	t->port_last = config->port_last ? config->port_last : config->port_first;
	return 0;
}

/* Tells once, here, what every connection would find out: a congestion control that the kernel refuses. */
static void tcp_try_congestion(const struct tcp *t)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int rc;

	if (fd < 0)
		return;
	rc = sock_tune(fd, t->congestion);
	close(fd);
	if (rc < 0)
		log_warn("tcp: the kernel refuses congestion control %s: %s; connections use the host's default. "
			 "`sysctl net.ipv4.tcp_allowed_congestion_control` lists what may be used",
			t->congestion, strerror(-rc));
}

static int tcp_open(const struct transport_config *config, struct transport **out, struct err *e)
{
	struct tcp *t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return err_set(e, -ENOMEM, "tcp: no memory for the transport");
	rc = tcp_configure(t, config, e);
	if (rc < 0) {
		free(t);
		return rc;
	}
	t->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (t->epoll_fd < 0) {
		rc = -errno;
		free(t);
		return err_set(e, rc, "tcp: cannot make an epoll: %s; raise `ulimit -n`", strerror(-rc));
	}
	tcp_try_congestion(t);
	t->transport.ops = &transport_tcp;
	t->listen_fd = -1;
	list_init(&t->strangers);
	list_init(&t->complete);
	*out = &t->transport;
	return 0;
}

static int tcp_queue_create(struct transport *head, int node, struct queue **out, struct err *e)
{
	struct tcp *t = (struct tcp *)head;
	struct tcp_queue *q;
	void *memory;
	int rc;

	(void)node; /* its owner touches what it reads into first */
	if (posix_memalign(&memory, 64, sizeof(*q)) != 0)
		return err_set(e, -ENOMEM, "tcp: no memory for a queue");
	q = memory;
	memset(q, 0, sizeof(*q));
	q->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (q->epoll_fd < 0) {
		rc = -errno;
		free(q);
		return err_set(e, rc, "tcp: cannot make an epoll: %s; raise `ulimit -n`", strerror(-rc));
	}
	q->queue.ops = &tcp_queue_ops;
	q->queue.anywhere = true;
	q->conns_max = t->queue_conns_max;
	q->send_bytes_max = t->send_bytes_max;
	list_init(&q->ready);
	list_init(&q->dirty);
	list_init(&q->report);
	*out = &q->queue;
	return 0;
}

static void tcp_queue_destroy(struct transport *head, struct queue *queue)
{
	struct tcp_queue *q = (struct tcp_queue *)queue;

	(void)head;
	assert(q->conns == 0);
	close(q->epoll_fd);
	free(q);
}

/* --- connections before adoption --------------------------------------------------------------- */

static struct tcp_conn *tcp_conn_create(struct tcp *t, int fd, bool is_box)
{
	struct tcp_conn *c = calloc(1, sizeof(*c));
	int notsent = TCP_NOTSENT_BYTES;

	if (!c)
		return NULL;
	c->conn.transport = &t->transport;
	c->fd = fd;
	c->state = is_box ? TCP_SHAKING : TCP_CONNECTING;
	c->is_box = is_box;
	list_init(&c->ready);
	list_init(&c->dirty);
	list_init(&c->report);
	/* A refused congestion control leaves the host's default: slower, but right. */
	(void)sock_tune(fd, t->congestion);
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &notsent, sizeof(notsent));
	return c;
}

/* What tcp.epoll_fd watches a connection for; 0: nothing any more. */
static int tcp_conn_watch(struct tcp *t, struct tcp_conn *c, int op, uint32_t events)
{
	struct epoll_event interest = {.events = events, .data.ptr = c};

	return epoll_ctl(t->epoll_fd, op, c->fd, &interest) < 0 ? -errno : 0;
}

/* Sends what the handshake has to say. 0 when all went out, -EAGAIN, or why the connection is over. */
static int tcp_shake_send(struct tcp_conn *c)
{
	for (;;) {
		size_t bytes;
		const uint8_t *out = handshake_output(&c->handshake, &bytes);
		ssize_t n;

		if (bytes == 0)
			return 0;
		n = send(c->fd, out, bytes, MSG_NOSIGNAL);
		if (n >= 0)
			handshake_sent(&c->handshake, (size_t)n);
		else if (errno != EINTR)
			return -errno;
	}
}

/* Reads the message that the handshake waits for, and no byte more. 0 when it wants none, -EAGAIN, or why it is over.
 */
static int tcp_shake_receive(struct tcp_conn *c)
{
	uint8_t in[HANDSHAKE_BYTES_MAX];
	size_t wants;

	while ((wants = handshake_wants(&c->handshake)) > 0) {
		ssize_t n = recv(c->fd, in, wants, 0);
		int rc = 0;

		if (n == 0)
			return -ECONNRESET;
		if (n > 0)
			rc = handshake_input(&c->handshake, in, (size_t)n);
		else if (errno != EINTR)
			rc = -errno;
		if (rc < 0)
			return rc;
		rc = tcp_shake_send(c);
		if (rc < 0)
			return rc;
	}
	return c->handshake.error;
}

/* Moves the handshake's bytes as far as they go. 0, or why the connection is over. */
static int tcp_conn_shake(struct tcp_conn *c)
{
	int rc = tcp_shake_send(c);

	if (rc == 0)
		rc = tcp_shake_receive(c);
	return rc == -EAGAIN ? 0 : rc;
}

static void tcp_stranger_count(struct tcp *t, int error)
{
	if (handshake_hung_up(error))
		t->transport.strangers_gone++;
	else
		t->transport.strangers_refused++;
}

/* Ends a stranger, or a hello that was not returned yet. `error`: its own, or why it is not wanted. */
static void tcp_stranger_end(struct tcp *t, struct tcp_conn *c, int error)
{
	list_remove(&c->ready);
	t->stranger_count--;
	tcp_stranger_count(t, error);
	tcp_conn_free(c);
}

/* --- the box's end ----------------------------------------------------------------------------- */

static int tcp_listen(struct transport *head, const char *host, char *address, size_t address_bytes, struct err *e)
{
	struct tcp *t = (struct tcp *)head;
	struct epoll_event interest = {.events = EPOLLIN, .data.ptr = NULL};
	struct sockaddr_storage bound = {0};
	socklen_t bytes = sizeof(bound);
	int fd;
	int rc;

	if (t->listen_fd >= 0)
		return err_set(e, -EALREADY, "tcp: this transport listens already");
	rc = sock_listen(host, t->port_first, t->port_last, tcp_interface(t), &fd, e);
	if (rc < 0)
		return rc;
	if (getsockname(fd, (struct sockaddr *)&bound, &bytes) < 0 ||
		epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, fd, &interest) < 0) {
		rc = -errno;
		close(fd);
		return err_set(e, rc, "tcp: cannot watch the listening socket: %s", strerror(-rc));
	}
	t->listen_fd = fd;
	sock_format(&bound, address, address_bytes);
	return 0;
}

/*
 * Who makes room for a newcomer: the oldest of those that come from where he does, so that whoever sends many sends his
 * own away; else the oldest, for who means well is through in milliseconds. NULL: nobody.
 */
static struct tcp_conn *tcp_find_rival(const struct tcp *t, const uint8_t source[16])
{
	for (struct list_link *at = t->strangers.next; at != &t->strangers; at = at->next) {
		struct tcp_conn *c = LIST_OF(at, struct tcp_conn, ready);

		if (memcmp(c->source, source, sizeof(c->source)) == 0)
			return c;
	}
	return list_alone(&t->strangers) ? NULL : LIST_OF(t->strangers.next, struct tcp_conn, ready);
}

/* Before anything is computed or kept for a caller: are there too many? */
static bool tcp_is_limited(struct tcp *t, const struct sockaddr_storage *peer, uint64_t now_ns)
{
	static struct log_limit limit;
	char name[SOCK_ADDRESS_BYTES];
	uint8_t source[16];
	char more[LOG_QUIET_BYTES];
	uint64_t quiet;

	sock_source(peer, source);
	if (!t->rate || rate_take(t->rate, source, now_ns))
		return false;
	t->transport.strangers_refused++;
	t->transport.strangers_limited++;
	sock_format(peer, name, sizeof(name));
	if (log_limit_pass(&limit, now_ns, NS_PER_S, &quiet))
		log_warn("tcp: data connection of %s is closed unheard: too many came at once for handshake_rate or "
			 "handshake_rate_source%s",
			name, log_quiet(quiet, more));
	return true;
}

/* Takes one caller in. */
static int tcp_stranger_begin(struct tcp *t, int fd, const struct sockaddr_storage *peer, uint64_t now_ns)
{
	uint8_t nonce[PROOF_NONCE], source[16];
	struct tcp_conn *c;
	int rc;

	sock_source(peer, source);
	c = t->stranger_count == TCP_STRANGERS_MAX ? tcp_find_rival(t, source) : NULL;
	if (c)
		tcp_stranger_end(t, c, -ENOSPC);
	if (t->stranger_count == TCP_STRANGERS_MAX)
		return -ENOSPC;
	c = tcp_conn_create(t, fd, true);
	if (!c)
		return -ENOMEM;
	sock_format(peer, c->conn.peer, sizeof(c->conn.peer));
	memcpy(c->source, source, sizeof(c->source));
	c->deadline_ns = now_ns + t->handshake_ns;
	rc = proof_nonce(nonce);
	if (rc == 0) {
		handshake_begin_box(&c->handshake, nonce);
		/* Nothing is read here: a hello that came already wakes the epoll, where complete ones are found. */
		rc = tcp_shake_send(c);
	}
	if (rc == 0)
		rc = tcp_conn_watch(t, c, EPOLL_CTL_ADD, EPOLLIN);
	if (rc < 0) {
		c->fd = -1; /* The caller's. */
		tcp_conn_free(c);
		return rc;
	}
	list_append(&t->strangers, &c->ready);
	t->stranger_count++;
	return 0;
}

/* Stops or resumes listening: without fds every epoll_wait() would come back at once, for nothing. */
static void tcp_listen_pause(struct tcp *t, uint64_t until_ns)
{
	struct epoll_event interest = {.events = until_ns ? 0 : EPOLLIN, .data.ptr = NULL};

	t->listen_again_ns = until_ns;
	(void)epoll_ctl(t->epoll_fd, EPOLL_CTL_MOD, t->listen_fd, &interest);
}

static void tcp_take_callers(struct tcp *t, uint64_t now_ns)
{
	for (int i = 0; i < TCP_ACCEPTS; i++) {
		struct sockaddr_storage peer = {0};
		int fd = sock_accept(t->listen_fd, &peer);
		int rc;

		if (fd == -EAGAIN)
			return;
		if (fd < 0) {
			tcp_listen_pause(t, now_ns + TCP_PAUSE_NS);
			return;
		}
		if (tcp_is_limited(t, &peer, now_ns)) {
			close(fd);
			continue;
		}
		rc = tcp_stranger_begin(t, fd, &peer, now_ns);
		if (rc < 0) {
			tcp_stranger_count(t, rc);
			close(fd);
		}
	}
}

/* A stranger's socket has something. */
static void tcp_stranger_drive(struct tcp *t, struct tcp_conn *c)
{
	int rc = tcp_conn_shake(c);

	if (rc < 0) {
		tcp_stranger_end(t, c, rc);
		return;
	}
	if (c->handshake.state != HANDSHAKE_AWAIT_ANSWER)
		return;
	(void)tcp_conn_watch(t, c, EPOLL_CTL_DEL, 0);
	list_remove(&c->ready);
	list_append(&t->complete, &c->ready);
}

static void tcp_take_events(struct tcp *t, uint64_t now_ns)
{
	struct epoll_event events[TCP_EVENTS];
	int n = epoll_wait(t->epoll_fd, events, TCP_EVENTS, 0);
	bool callers = false;

	for (int i = 0; i < n; i++) {
		struct tcp_conn *c = events[i].data.ptr;

		if (!c)
			callers = true;
		else if (c->is_box)
			tcp_stranger_drive(t, c);
	}
	/* After the others, because a new caller may end a stranger that `events` still names. */
	if (callers)
		tcp_take_callers(t, now_ns);
	while (!list_alone(&t->strangers) && LIST_OF(t->strangers.next, struct tcp_conn, ready)->deadline_ns <= now_ns)
		tcp_stranger_end(t, LIST_OF(t->strangers.next, struct tcp_conn, ready), -ETIMEDOUT);
}

static int tcp_accept(struct transport *head, uint64_t now_ns, struct hello *out)
{
	struct tcp *t = (struct tcp *)head;
	struct tcp_conn *c;

	if (t->listen_fd < 0)
		return -EAGAIN;
	if (t->listen_again_ns && now_ns >= t->listen_again_ns)
		tcp_listen_pause(t, 0);
	if (list_alone(&t->complete))
		tcp_take_events(t, now_ns);
	if (list_alone(&t->complete))
		return -EAGAIN;
	c = LIST_OF(t->complete.next, struct tcp_conn, ready);
	list_remove(&c->ready);
	t->stranger_count--;
	out->conn = &c->conn;
	out->session = c->handshake.session;
	out->core = c->handshake.core;
	memcpy(out->nonce, c->handshake.nonce, sizeof(out->nonce));
	memcpy(out->mac, c->handshake.mac, sizeof(out->mac));
	return 0;
}

static void tcp_reject(struct transport *head, struct conn *conn, int code)
{
	struct tcp_conn *c = (struct tcp_conn *)conn;

	head->strangers_refused++;
	handshake_answer(&c->handshake, code ? code : ECONNREFUSED);
	(void)tcp_conn_shake(c);
	tcp_conn_free(c);
}

static int tcp_admit(struct transport *head, struct conn *conn, const struct conn_spec *spec, struct err *e)
{
	struct tcp *t = (struct tcp *)head;
	struct tcp_conn *c = (struct tcp_conn *)conn;
	size_t left;
	int rc = tcp_conn_prepare(c, spec, t->send_bytes_max);

	if (rc < 0) {
		err_set(e, rc, "tcp: no buffers of %u bytes for %s: %s", spec->payload_max, conn->peer, strerror(-rc));
		tcp_reject(head, conn, ENOSPC);
		return rc;
	}
	handshake_answer(&c->handshake, 0);
	rc = tcp_conn_shake(c);
	(void)handshake_output(&c->handshake, &left);
	if (rc == 0 && left) /* 16 bytes do not fit into an empty socket: its peer is up to something. */
		rc = -EPIPE;
	if (rc < 0) {
		err_set(e, rc, "tcp: %s went away before it was welcomed: %s", conn->peer, strerror(-rc));
		tcp_conn_free(c);
		return rc;
	}
	c->state = TCP_ADMITTED;
	if (t->rate)
		rate_give_back(t->rate, c->source);
	return 0;
}

/* --- the worker's end -------------------------------------------------------------------------- */

static int tcp_connect(struct transport *head, const char *address, uint64_t session, uint32_t core, const uint8_t *key,
	const struct conn_spec *spec, struct conn **out, struct err *e)
{
	struct tcp *t = (struct tcp *)head;
	char host[SOCK_HOST_BYTES];
	struct tcp_conn *c;
	uint16_t port;
	int fd;
	int rc;

	(void)spec;
	if (sock_split(address, host, &port) < 0 || strcmp(host, "*") == 0)
		return err_set(e, -EINVAL, "tcp: \"%.128s\" is no address; give host:port or [host]:port", address);
	rc = sock_connect(host, port, tcp_interface(t), &fd, e);
	if (rc < 0)
		return rc;
	c = tcp_conn_create(t, fd, false);
	if (!c) {
		close(fd);
		return err_set(e, -ENOMEM, "tcp: no memory to connect to %.128s", address);
	}
	rc = tcp_conn_watch(t, c, EPOLL_CTL_ADD, EPOLLOUT);
	if (rc < 0) {
		tcp_conn_free(c);
		return err_set(e, rc, "tcp: cannot watch the connection to %.128s: %s", address, strerror(-rc));
	}
	snprintf(c->conn.peer, sizeof(c->conn.peer), "%s", address);
	handshake_begin_worker(&c->handshake, session, core, key);
	*out = &c->conn;
	return 0;
}

static int tcp_established(struct transport *head, struct conn *conn, struct err *e)
{
	struct tcp *t = (struct tcp *)head;
	struct tcp_conn *c = (struct tcp_conn *)conn;
	int rc = 0;

	if (c->state == TCP_ADMITTED)
		return 0;
	if (c->state == TCP_CLOSED)
		return err_set(
			e, c->error, "tcp: the connection to %s has failed: %s", conn->peer, strerror(-c->error));
	if (c->state == TCP_CONNECTING) {
		rc = sock_connected(c->fd);
		if (rc == -EAGAIN)
			return rc;
		if (rc == 0) {
			c->state = TCP_SHAKING;
			rc = tcp_conn_watch(t, c, EPOLL_CTL_MOD, EPOLLIN);
		}
	}
	if (rc == 0)
		rc = tcp_conn_shake(c);
	if (rc == 0 && c->handshake.state != HANDSHAKE_DONE)
		return -EAGAIN;
	(void)tcp_conn_watch(t, c, EPOLL_CTL_DEL, 0);
	c->state = rc == 0 ? TCP_ADMITTED : TCP_CLOSED;
	if (rc == 0)
		return 0;
	c->error = rc;
	return err_set(e, rc, "tcp: no data connection to %s: %s", conn->peer, strerror(-rc));
}

static void tcp_abandon(struct transport *head, struct conn *conn)
{
	struct tcp *t = (struct tcp *)head;
	struct tcp_conn *c = (struct tcp_conn *)conn;

	assert(!conn->queue);
	if (!c->is_box && (c->state == TCP_CONNECTING || c->state == TCP_SHAKING))
		(void)tcp_conn_watch(t, c, EPOLL_CTL_DEL, 0);
	tcp_conn_free(c);
}

static int tcp_fd(struct transport *head)
{
	return ((struct tcp *)head)->epoll_fd;
}

static void tcp_close(struct transport *head)
{
	struct tcp *t = (struct tcp *)head;

	while (!list_alone(&t->strangers))
		tcp_stranger_end(t, LIST_OF(t->strangers.next, struct tcp_conn, ready), -ESHUTDOWN);
	while (!list_alone(&t->complete))
		tcp_stranger_end(t, LIST_OF(t->complete.next, struct tcp_conn, ready), -ESHUTDOWN);
	if (t->listen_fd >= 0)
		close(t->listen_fd);
	close(t->epoll_fd);
	free(t);
}

const struct transport_ops transport_tcp = {
	.name = "tcp",
	.open = tcp_open,
	.queue_create = tcp_queue_create,
	.queue_destroy = tcp_queue_destroy,
	.listen = tcp_listen,
	.accept = tcp_accept,
	.admit = tcp_admit,
	.reject = tcp_reject,
	.connect = tcp_connect,
	.established = tcp_established,
	.abandon = tcp_abandon,
	.fd = tcp_fd,
	.close = tcp_close,
};
