/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Datagrams through kernel sockets, many at a time: what goes to one peer in datagrams of one size is handed over as
 * one that the kernel or the network card cuts (UDP_SEGMENT), gathered from heads and payloads where they lie; what the
 * kernel has joined (UDP_GRO) is looked at piece by piece. Owner of the queue.
 */
#include "transport/udp_internal.h"

#include <assert.h>
#include <errno.h>
#include <linux/sock_diag.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "phub/base/clock.h"
#include "phub/base/stats.h"

static struct udp_port *udp_of(struct datagram_port *p)
{
	return (struct udp_port *)p;
}

/* ---- receiving ---- */

static void udp_read(struct udp_port *u)
{
	int n;

	for (unsigned i = 0; i < UDP_MESSAGES; i++) {
		u->in_messages[i].msg_hdr.msg_namelen = sizeof(u->in_from[i]);
		u->in_messages[i].msg_hdr.msg_controllen = sizeof(u->in_control[i]);
	}
	/* Errors that ICMP brought come out of here too; each is told once. */
	n = recvmmsg(u->fd, u->in_messages, UDP_MESSAGES, MSG_DONTWAIT, NULL);
	u->at = 0;
	u->skip = 0;
	u->came = n > 0 ? (unsigned)n : 0;
}

/* The size of the datagrams that were joined to this message, but for the last; 0: it is one. */
static uint32_t udp_piece(struct msghdr *m)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		int size;

		if (c->cmsg_level != SOL_UDP || c->cmsg_type != UDP_GRO)
			continue;
		memcpy(&size, CMSG_DATA(c), sizeof(size));
		return size > 0 ? (uint32_t)size : 0;
	}
	return 0;
}

static unsigned udp_receive(struct datagram_port *p, struct datagram_in *in, unsigned max)
{
	struct udp_port *u = udp_of(p);
	unsigned n = 0;

	if (u->at == u->came)
		udp_read(u);
	while (n < max && u->at < u->came) {
		struct mmsghdr *m = &u->in_messages[u->at];
		uint32_t left = m->msg_len - u->skip, piece = udp_piece(&m->msg_hdr);

		piece = piece > 0 && piece < left ? piece : left;
		stats_add(&u->counters.joined, piece < m->msg_len);
		in[n].bytes = (const uint8_t *)u->in_iov[u->at].iov_base + u->skip;
		in[n].length = piece;
		in[n++].from = datagram_address_of(&u->in_from[u->at]);
		u->skip += piece;
		if (piece < left)
			continue;
		u->at++;
		u->skip = 0;
	}
	return n;
}

/* ---- sending ---- */

static void udp_out_end(struct udp_port *u, struct udp_out *o)
{
	if (o->message)
		reliable_let(u->reliable, o->message);
	o->message = NULL;
}

static int udp_room(struct datagram_port *p, const struct datagram_address *to, struct reliable_outgoing *out)
{
	struct udp_port *u = udp_of(p);

	if (!u->six && !IN6_IS_ADDR_V4MAPPED(&to->ip))
		return -EHOSTUNREACH;
	if (u->count == UDP_OUTS && u->first > 0) {
		memmove(u->outs, u->outs + u->first, (u->count - u->first) * sizeof(u->outs[0]));
		u->count -= u->first;
		u->first = 0;
	}
	if (u->count == UDP_OUTS)
		return -EAGAIN;
	u->outs[u->count].to = *to;
	out->head = u->outs[u->count].head;
	return 0;
}

static void udp_send(struct datagram_port *p, struct reliable *r, const struct reliable_outgoing *out)
{
	static const uint8_t zeros[WIRE_DATAGRAM_MAX];
	struct udp_port *u = udp_of(p);
	struct udp_out *o = &u->outs[u->count++];

	assert(out->head == o->head);
	u->reliable = r;
	o->head_bytes = out->head_bytes;
	o->rest_bytes = out->rest_bytes;
	o->rest = out->rest ? out->rest : zeros;
	o->message = out->message;
	o->conn = out->conn;
	o->alone = out->alone;
	if (o->message)
		reliable_hold(o->message);
}

static bool udp_same_way(const struct datagram_address *a, const struct datagram_address *b)
{
	return a->port == b->port && a->scope == b->scope && memcmp(&a->ip, &b->ip, sizeof(a->ip)) == 0;
}

static uint32_t udp_out_bytes(const struct udp_out *o)
{
	return o->head_bytes + o->rest_bytes;
}

/* How many of those that wait, from `at` on, can go as one: all of one size, but the last may be smaller. */
static unsigned udp_join(const struct udp_port *u, unsigned at)
{
	uint32_t size = udp_out_bytes(&u->outs[at]), sum = size;
	unsigned n = 1;

	while (u->cuts && !u->outs[at].alone && n < UDP_SEGMENTS && at + n < u->count) {
		const struct udp_out *o = &u->outs[at + n];
		uint32_t bytes = udp_out_bytes(o);

		if (o->alone || bytes > size || sum + bytes > UDP_CUT_BYTES || !udp_same_way(&o->to, &u->outs[at].to))
			break;
		sum += bytes;
		n++;
		if (bytes < size)
			break;
	}
	return n;
}

static socklen_t udp_address(const struct udp_port *u, const struct datagram_address *to, struct sockaddr_storage *out)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(to->port)};
	struct sockaddr_in6 in6 = {
		.sin6_family = AF_INET6, .sin6_port = htons(to->port), .sin6_addr = to->ip, .sin6_scope_id = to->scope};

	if (u->six) {
		memcpy(out, &in6, sizeof(in6));
		return sizeof(in6);
	}
	memcpy(&in.sin_addr, to->ip.s6_addr + 12, 4);
	memcpy(out, &in, sizeof(in));
	return sizeof(in);
}

/* Lists `count` datagrams as one message. Returns the number of vectors. */
static unsigned udp_list(struct udp_port *u, unsigned number, unsigned at, unsigned count, struct iovec *iov)
{
	struct msghdr *m = &u->out_messages[number].msg_hdr;
	unsigned n = 0;

	for (unsigned i = at; i < at + count; i++) {
		struct udp_out *o = &u->outs[i];

		iov[n++] = (struct iovec){o->head, o->head_bytes};
		if (o->rest_bytes) /* iovec is not const because it serves reading too; sendmmsg() only reads */
			iov[n++] = (struct iovec){(void *)(uintptr_t)o->rest, o->rest_bytes};
	}
	*m = (struct msghdr){.msg_name = &u->out_to[number], .msg_iov = iov, .msg_iovlen = n};
	m->msg_namelen = udp_address(u, &u->outs[at].to, &u->out_to[number]);
	u->out_datagrams[number] = count;
	if (count > 1) {
		uint16_t size = (uint16_t)udp_out_bytes(&u->outs[at]);
		struct cmsghdr *c = &u->out_control[number].head;

		m->msg_control = c;
		m->msg_controllen = CMSG_SPACE(sizeof(size));
		*c = (struct cmsghdr){
			.cmsg_level = SOL_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(sizeof(size))};
		memcpy(CMSG_DATA(c), &size, sizeof(size));
		stats_add(&u->counters.cut, count);
	}
	return n;
}

/* The first `count` of those that wait are done with. */
static void udp_done(struct udp_port *u, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		udp_out_end(u, &u->outs[u->first + i]);
	u->first += count;
	if (u->first == u->count)
		u->first = u->count = 0;
}

/* The kernel refused the first message. False: it is full, nothing more goes now. */
static bool udp_refused(struct udp_port *u, int error)
{
	switch (error) {
	case EINTR:
		return true;
	case EAGAIN:
		stats_add(&u->counters.blocked, 1);
		return false;
	case EIO:
	case EINVAL:
		/*
		 * It will not cut on this way: no checksums in hardware, IPsec, an old kernel. One by one, then, to
		 * all; but it may have been for one peer, or for a while.
		 */
		if (u->out_datagrams[0] > 1) {
			stats_add(&u->counters.uncut, 1);
			u->cuts = false;
			u->uncut_ns = clock_now_ns();
			return true;
		}
		break;
	default:
		break;
	}
	/* No route, no host, a network that is down, too large: as if it was lost on the way. */
	stats_add(&u->counters.lost, u->out_datagrams[0]);
	udp_done(u, u->out_datagrams[0]);
	return true;
}

static void udp_flush(struct datagram_port *p)
{
	struct udp_port *u = udp_of(p);

	if (u->uncut_ns && p->now_ns > u->uncut_ns + UDP_AGAIN_MS * NS_PER_MS) {
		u->cuts = true;
		u->uncut_ns = 0;
	}
	while (u->first < u->count) {
		unsigned messages = 0, vectors = 0, datagrams = 0;
		int sent;

		for (unsigned at = u->first; messages < UDP_MESSAGES && at < u->count; messages++) {
			unsigned count = udp_join(u, at);

			vectors += udp_list(u, messages, at, count, u->out_iov + vectors);
			at += count;
		}
		sent = sendmmsg(u->fd, u->out_messages, messages, MSG_DONTWAIT | MSG_NOSIGNAL);
		u->counters.calls++;
		if (sent < 0) {
			if (!udp_refused(u, errno))
				return;
			continue;
		}
		for (int i = 0; i < sent; i++)
			datagrams += u->out_datagrams[i];
		udp_done(u, datagrams);
	}
}

/* Those of this connection wait no more. */
static void udp_reclaim(struct datagram_port *p, struct reliable *r, const struct reliable_conn *c)
{
	struct udp_port *u = udp_of(p);
	unsigned kept = u->first;

	(void)r;
	for (unsigned i = u->first; i < u->count; i++) {
		if (u->outs[i].conn == c)
			udp_out_end(u, &u->outs[i]);
		else if (kept++ != i)
			u->outs[kept - 1] = u->outs[i];
	}
	u->count = kept;
	if (u->first == u->count)
		u->first = u->count = 0;
}

/* ---- sleeping and the end ---- */

static int udp_arm(struct datagram_port *p, uint64_t due_ns)
{
	struct udp_port *u = udp_of(p);
	struct itimerspec timer = {.it_value = {(time_t)(due_ns / NS_PER_S), (long)(due_ns % NS_PER_S)}};
	bool waits = u->first < u->count;

	if (u->at < u->came)
		return -EAGAIN;
	if (waits != u->wants_out) {
		struct epoll_event interest = {.events = EPOLLIN | (waits ? EPOLLOUT : 0u)};

		if (epoll_ctl(u->epoll_fd, EPOLL_CTL_MOD, u->fd, &interest) < 0)
			return -EAGAIN;
		u->wants_out = waits;
	}
	/* This also takes back a wake-up of before. */
	if (timerfd_settime(u->timer_fd, TFD_TIMER_ABSTIME, &timer, NULL) < 0)
		return -EAGAIN;
	return u->epoll_fd;
}

static uint64_t udp_now(struct datagram_port *p)
{
	(void)p;
	return clock_now_ns();
}

/*
 * What the kernel threw away before it was read, for want of room in the socket mostly. It says so to whoever asks;
 * with each datagram (SO_RXQ_OVFL) it would cost control data, and say nothing until another one comes.
 */
static uint64_t udp_overflowed(const struct udp_port *u)
{
	uint32_t all[SK_MEMINFO_VARS] = {0};
	socklen_t bytes = sizeof(all);

	return getsockopt(u->fd, SOL_SOCKET, SO_MEMINFO, all, &bytes) < 0 ? 0 : all[SK_MEMINFO_DROPS];
}

/* Names that no other port of a box has: all are told together. */
static const char *udp_count(const struct datagram_port *p, unsigned index, uint64_t *value)
{
	const struct udp_port *u = (const struct udp_port *)(const void *)p;
	const struct udp_counters *n = &u->counters;
	const struct {
		const char *name;
		const uint64_t *at;
	} rows[] = {{"cut", &n->cut}, {"uncut", &n->uncut}, {"refused", &n->lost}, {"joined", &n->joined},
		{"blocked", &n->blocked}};

	if (index == sizeof(rows) / sizeof(rows[0])) {
		*value = udp_overflowed(u);
		return "overflowed";
	}
	if (index > sizeof(rows) / sizeof(rows[0]))
		return NULL;
	*value = stats_read(rows[index].at);
	return rows[index].name;
}

static void udp_close(struct datagram_port *p)
{
	struct udp_port *u = udp_of(p);

	if (u->epoll_fd >= 0)
		close(u->epoll_fd);
	if (u->timer_fd >= 0)
		close(u->timer_fd);
	close(u->fd);
	free(u->memory);
	free(u);
}

static const struct datagram_port_ops udp_port_ops = {
	.receive = udp_receive,
	.room = udp_room,
	.send = udp_send,
	.flush = udp_flush,
	.reclaim = udp_reclaim,
	.arm = udp_arm,
	.now = udp_now,
	.count = udp_count,
	.close = udp_close,
};

/* Where the kernel puts what comes; the rest is set before each read. */
static void udp_prepare_in(struct udp_port *u)
{
	for (unsigned i = 0; i < UDP_MESSAGES; i++) {
		u->in_iov[i] = (struct iovec){u->memory + (size_t)i * UDP_READ_BYTES, UDP_READ_BYTES};
		u->in_messages[i].msg_hdr = (struct msghdr){
			.msg_name = &u->in_from[i],
			.msg_iov = &u->in_iov[i],
			.msg_iovlen = 1,
			.msg_control = &u->in_control[i],
		};
	}
}

static int udp_watch(struct udp_port *u)
{
	struct epoll_event interest = {.events = EPOLLIN};

	u->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	u->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (u->epoll_fd < 0 || u->timer_fd < 0 || epoll_ctl(u->epoll_fd, EPOLL_CTL_ADD, u->fd, &interest) < 0 ||
		epoll_ctl(u->epoll_fd, EPOLL_CTL_ADD, u->timer_fd, &interest) < 0)
		return -errno;
	return 0;
}

int udp_port_create(int fd, struct udp_port **out)
{
	struct sockaddr_storage bound = {0};
	socklen_t bytes = sizeof(bound);
	struct udp_port *u = calloc(1, sizeof(*u));
	int rc;

	if (!u) {
		close(fd);
		return -ENOMEM;
	}
	u->port.ops = &udp_port_ops;
	u->fd = fd;
	u->epoll_fd = u->timer_fd = -1;
	u->memory = aligned_alloc(4096, (size_t)UDP_MESSAGES * UDP_READ_BYTES);
	rc = u->memory ? udp_watch(u) : -ENOMEM;
	if (rc == 0 && getsockname(fd, (struct sockaddr *)&bound, &bytes) < 0)
		rc = -errno;
	if (rc < 0) {
		udp_close(&u->port);
		return rc;
	}
	u->port.address = datagram_address_of(&bound);
	u->port.datagram_max = WIRE_DATAGRAM_MAX;
	u->six = bound.ss_family == AF_INET6;
	u->cuts = true;
	udp_prepare_in(u);
	*out = u;
	return 0;
}
