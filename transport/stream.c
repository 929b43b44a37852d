/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control session's byte stream over kernel TCP, and the frames on any stream. Small and rare
 * messages: clarity comes before speed here.
 * Control thread of the box; in libphub whoever drives progress(), and a short-lived thread for each name to look up.
 */
#include "transport/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/le.h"
#include "transport/sock.h"

enum {
	FRAME_HEAD_BYTES = 4,
	FRAME_ROOM_FIRST = 4096,
	FRAME_UNSENT_MAX = 8 << 20,
};

/* A name that is being looked up. Held by its stream and by the thread that does it; the last one frees it. */
struct stream_lookup {
	atomic_int refs;
	atomic_bool done; /* released by the thread after fd, rc and why; acquired by the stream */
	int fd;           /* the connection that was begun, or -1 */
	int rc;
	struct err why;
	int wake[2]; /* a pipe, because its reading end is never writable: the hello waits to be written meanwhile */
	uint16_t port;
	bool through;                 /* `interface` is meant */
	char interface[IFNAMSIZ + 1]; /* one more than a name may have: what is too long stays wrong */
	char host[SOCK_HOST_BYTES];
};

struct stream_tcp {
	struct stream stream;
	int fd;    /* -1 during the look-up, and when that failed */
	int error; /* what ended it: the kernel tells only once */
	struct stream_lookup *lookup;
};

static void stream_lookup_put(struct stream_lookup *l)
{
	/* Release: what this side wrote; acquire: what the other wrote, before it is freed. */
	if (atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) != 1)
		return;
	if (l->fd >= 0)
		close(l->fd);
	close(l->wake[0]);
	close(l->wake[1]);
	free(l);
}

static void *stream_lookup_thread(void *arg)
{
	struct stream_lookup *l = arg;
	ssize_t woken;

	l->rc = sock_connect(l->host, l->port, l->through ? l->interface : NULL, &l->fd, &l->why);
	atomic_store_explicit(&l->done, true, memory_order_release);
	woken = write(l->wake[1], "", 1); /* the only byte there ever is: always room */
	(void)woken;
	stream_lookup_put(l);
	return NULL;
}

/* 0 when the socket can be asked, -EAGAIN during the look-up, or what ended the stream. */
static int stream_tcp_ready(struct stream_tcp *s)
{
	struct stream_lookup *l = s->lookup;

	if (!l)
		return s->error;
	if (!atomic_load_explicit(&l->done, memory_order_acquire))
		return -EAGAIN;
	s->fd = l->fd;
	s->error = l->rc;
	s->stream.why = l->why;
	if (l->rc == 0) {
		s->stream.why.code = 0;
		(void)sock_tune(s->fd, NULL);
	}
	l->fd = -1; /* it is the stream's now */
	s->lookup = NULL;
	stream_lookup_put(l);
	return s->error;
}

static ssize_t stream_tcp_result(struct stream_tcp *s, ssize_t n)
{
	if (n >= 0)
		return n;
	if (errno == EAGAIN || errno == EINTR)
		return -EAGAIN;
	s->error = -errno;
	return s->error;
}

static ssize_t stream_tcp_read(struct stream *head, void *buf, size_t bytes)
{
	struct stream_tcp *s = (struct stream_tcp *)head;
	int rc = stream_tcp_ready(s);

	return rc < 0 ? rc : stream_tcp_result(s, recv(s->fd, buf, bytes, 0));
}

static ssize_t stream_tcp_write(struct stream *head, const void *buf, size_t bytes)
{
	struct stream_tcp *s = (struct stream_tcp *)head;
	int rc = stream_tcp_ready(s);

	return rc < 0 ? rc : stream_tcp_result(s, send(s->fd, buf, bytes, MSG_NOSIGNAL));
}

static int stream_tcp_fd(struct stream *head)
{
	const struct stream_tcp *s = (const struct stream_tcp *)head;

	return s->lookup ? s->lookup->wake[0] : s->fd;
}

static void stream_tcp_close(struct stream *head)
{
	struct stream_tcp *s = (struct stream_tcp *)head;

	if (s->lookup)
		stream_lookup_put(s->lookup);
	if (s->fd >= 0) {
		/* A forked child may hold the socket too: without this the peer would see no end. */
		(void)shutdown(s->fd, SHUT_RDWR);
		close(s->fd);
	}
	free(s);
}

static const struct stream_ops stream_tcp_ops = {
	.read = stream_tcp_read,
	.write = stream_tcp_write,
	.fd = stream_tcp_fd,
	.close = stream_tcp_close,
};

static struct stream_tcp *stream_tcp_create(int fd)
{
	struct stream_tcp *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->stream.ops = &stream_tcp_ops;
	s->stream.peer_uid = -1;
	s->fd = fd;
	if (fd >= 0)
		(void)sock_tune(fd, NULL);
	return s;
}

int stream_dial_tcp(const char *host, uint16_t port, const char *interface, struct stream **out, struct err *e)
{
	struct stream_tcp *s;
	int fd;
	int rc = sock_connect(host, port, interface, &fd, e);

	if (rc < 0)
		return rc;
	s = stream_tcp_create(fd);
	if (!s) {
		close(fd);
		return err_set(e, -ENOMEM, "no memory to connect to \"%.128s\" port %u", host, port);
	}
	snprintf(s->stream.peer, sizeof(s->stream.peer), strchr(host, ':') ? "[%.64s]:%u" : "%.64s:%u", host, port);
	*out = &s->stream;
	return 0;
}

/* With both references: the caller's, and that of the thread to come. NULL without memory or descriptors. */
static struct stream_lookup *stream_lookup_create(const char *host, uint16_t port, const char *interface)
{
	struct stream_lookup *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	if (pipe2(l->wake, O_CLOEXEC | O_NONBLOCK) < 0) {
		free(l);
		return NULL;
	}
	atomic_init(&l->refs, 2);
	atomic_init(&l->done, false);
	l->fd = -1;
	l->port = port;
	l->through = interface != NULL;
	snprintf(l->interface, sizeof(l->interface), "%s", interface ? interface : "");
	snprintf(l->host, sizeof(l->host), "%s", host);
	return l;
}

/* Starts the detached thread, which takes none of the program's signals. 0 or a negative errno. */
static int stream_lookup_start(struct stream_lookup *l)
{
	pthread_t thread;
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&thread, NULL, stream_lookup_thread, l);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc == 0)
		pthread_detach(thread);
	return -rc;
}

int stream_dial_tcp_later(const char *host, uint16_t port, const char *interface, struct stream **out, struct err *e)
{
	struct stream_tcp *s;
	int rc;

	if (sock_host_is_numeric(host))
		return stream_dial_tcp(host, port, interface, out, e);
	if (strlen(host) >= SOCK_HOST_BYTES)
		return err_set(e, -EINVAL, "host \"%.64s...\" is longer than a name can be", host);
	s = stream_tcp_create(-1);
	if (!s)
		return err_set(e, -ENOMEM, "no memory to connect to \"%.128s\" port %u", host, port);
	s->lookup = stream_lookup_create(host, port, interface);
	rc = s->lookup ? stream_lookup_start(s->lookup) : -errno;
	if (rc < 0) {
		if (s->lookup)
			stream_lookup_put(s->lookup); /* the thread's */
		stream_tcp_close(&s->stream);
		return err_set(e, rc, "cannot begin to look up host \"%.128s\": %s", host, strerror(-rc));
	}
	snprintf(s->stream.peer, sizeof(s->stream.peer), "%.64s:%u", host, port);
	err_set(&s->stream.why, -EINPROGRESS, "host \"%.128s\" is still being looked up; does its name server answer?",
		host);
	*out = &s->stream;
	return 0;
}

int stream_listen_tcp(
	const char *host, uint16_t port, const char *interface, int *fd, char *bound, size_t bound_bytes, struct err *e)
{
	struct sockaddr_storage address = {0};
	socklen_t bytes = sizeof(address);
	int listening;
	int rc = sock_listen(host, port, port, interface, &listening, e);

	if (rc < 0)
		return rc;
	if (getsockname(listening, (struct sockaddr *)&address, &bytes) < 0) {
		rc = -errno;
		close(listening);
		return err_set(e, rc, "cannot tell the address that is listened on: %s", strerror(-rc));
	}
	sock_format(&address, bound, bound_bytes);
	*fd = listening;
	return 0;
}

int stream_accept_tcp(int fd, struct stream **out)
{
	struct sockaddr_storage peer = {0};
	struct stream_tcp *s;
	int caller = sock_accept(fd, &peer);

	if (caller < 0)
		return caller;
	s = stream_tcp_create(caller);
	if (!s) {
		close(caller);
		return -ENOMEM;
	}
	sock_format(&peer, s->stream.peer, sizeof(s->stream.peer));
	s->stream.peer_is_local = sock_is_loopback((const struct sockaddr *)&peer);
	sock_source(&peer, s->stream.source);
	s->stream.source_known = true;
	s->stream.peer_uid = sock_peer_uid(caller);
	*out = &s->stream;
	return 0;
}

int stream_host_is_loopback(const char *host)
{
	return sock_host_is_loopback(host);
}

int stream_host_is_heard(const char *own, const char *host)
{
	return sock_host_is_heard(own, host);
}

/* --- frames ------------------------------------------------------------------------------------ */

/* Makes room for `need` bytes, by doubling and never more than they: an announced length alone costs no memory. */
static int frame_reserve(uint8_t **buf, size_t *room, size_t have, size_t need)
{
	size_t more = *room < FRAME_ROOM_FIRST ? FRAME_ROOM_FIRST : *room;
	uint8_t *bigger;

	if (have < *room)
		return 0;
	if (*room >= FRAME_ROOM_FIRST)
		more *= 2;
	if (more > need && need > FRAME_ROOM_FIRST)
		more = need;
	bigger = realloc(*buf, more);
	if (!bigger)
		return -ENOMEM;
	*buf = bigger;
	*room = more;
	return 0;
}

/* Reads until `need` bytes are there. 0, -EAGAIN, -EPIPE when the stream ended, or its error. */
static int frame_fill(struct frame_reader *r, struct stream *s, size_t need)
{
	while (r->have < need) {
		size_t want;
		ssize_t n;

		if (frame_reserve(&r->buf, &r->room, r->have, need) < 0)
			return -ENOMEM;
		want = (need < r->room ? need : r->room) - r->have;
		n = s->ops->read(s, r->buf + r->have, want);
		if (n < 0)
			return (int)n;
		if (n == 0)
			return -EPIPE;
		r->have += (size_t)n;
	}
	return 0;
}

int frame_read(struct frame_reader *r, struct stream *s, const uint8_t **frame, size_t *bytes)
{
	size_t length;
	int rc;

	/* Nothing is read past a frame, so a whole one in the buffer is what the last call returned. */
	if (r->have >= FRAME_HEAD_BYTES && r->have - FRAME_HEAD_BYTES == le_get32(r->buf))
		r->have = 0;
	rc = frame_fill(r, s, FRAME_HEAD_BYTES);
	if (rc < 0)
		return rc;
	length = le_get32(r->buf);
	if (length > (r->bytes_max ? r->bytes_max : FRAME_BYTES_MAX))
		return -EMSGSIZE;
	if (length == 0)
		return -EPIPE;
	rc = frame_fill(r, s, FRAME_HEAD_BYTES + length);
	if (rc < 0)
		return rc;
	*frame = r->buf + FRAME_HEAD_BYTES;
	*bytes = length;
	return 0;
}

void frame_reader_fini(struct frame_reader *r)
{
	size_t bytes_max = r->bytes_max;

	free(r->buf);
	memset(r, 0, sizeof(*r));
	r->bytes_max = bytes_max;
}

int frame_append(struct frame_writer *w, const uint8_t *frame, size_t bytes)
{
	size_t unsent_max = w->bytes_max ? w->bytes_max : FRAME_UNSENT_MAX;
	size_t whole = FRAME_HEAD_BYTES + bytes;

	if (bytes == 0 || bytes > FRAME_BYTES_MAX)
		return -EMSGSIZE;
	if (w->have - w->sent + whole > unsent_max)
		return -ENOBUFS;
	if (w->room - w->have < whole && w->sent) {
		memmove(w->buf, w->buf + w->sent, w->have - w->sent);
		w->have -= w->sent;
		w->sent = 0;
	}
	if (w->room - w->have < whole) {
		size_t room = 2 * w->room > w->have + whole ? 2 * w->room : w->have + whole;
		uint8_t *bigger = realloc(w->buf, room);

		if (!bigger)
			return -ENOMEM;
		w->buf = bigger;
		w->room = room;
	}
	le_put32(w->buf + w->have, (uint32_t)bytes);
	memcpy(w->buf + w->have + FRAME_HEAD_BYTES, frame, bytes);
	w->have += whole;
	return 0;
}

int frame_flush(struct frame_writer *w, struct stream *s)
{
	while (w->sent < w->have) {
		ssize_t n = s->ops->write(s, w->buf + w->sent, w->have - w->sent);

		if (n < 0)
			return (int)n;
		if (n == 0)
			return -EAGAIN;
		w->sent += (size_t)n;
	}
	w->have = 0;
	w->sent = 0;
	return 0;
}

void frame_writer_fini(struct frame_writer *w)
{
	size_t bytes_max = w->bytes_max;

	free(w->buf);
	memset(w, 0, sizeof(*w));
	w->bytes_max = bytes_max;
}
