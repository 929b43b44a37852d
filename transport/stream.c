/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control session's byte stream over kernel TCP, and the frames on any stream. Small and rare
 * messages: clarity comes before speed here.
 * Control thread of the box; in libphub whoever drives progress().
 */
#include "transport/stream.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/sock.h"

enum {
	FRAME_HEAD_BYTES = 4,
	FRAME_ROOM_FIRST = 4096,
	FRAME_UNSENT_MAX = 8 << 20,
};

struct stream_tcp {
	struct stream stream;
	int fd;
	int error; /* what ended it: the kernel tells only once */
};

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

	return s->error ? s->error : stream_tcp_result(s, recv(s->fd, buf, bytes, 0));
}

static ssize_t stream_tcp_write(struct stream *head, const void *buf, size_t bytes)
{
	struct stream_tcp *s = (struct stream_tcp *)head;

	return s->error ? s->error : stream_tcp_result(s, send(s->fd, buf, bytes, MSG_NOSIGNAL));
}

static int stream_tcp_fd(struct stream *head)
{
	return ((struct stream_tcp *)head)->fd;
}

static void stream_tcp_close(struct stream *head)
{
	struct stream_tcp *s = (struct stream_tcp *)head;

	/* A forked child may hold the socket too: without this the peer would see no end. */
	(void)shutdown(s->fd, SHUT_RDWR);
	close(s->fd);
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
	s->stream.peer_uid = sock_peer_uid(caller);
	*out = &s->stream;
	return 0;
}

int stream_host_is_loopback(const char *host)
{
	return sock_host_is_loopback(host);
}

/* --- frames ------------------------------------------------------------------------------------ */

static size_t frame_length(const uint8_t *buf)
{
	uint32_t length;

	memcpy(&length, buf, sizeof(length));
	return le32toh(length);
}

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
	if (r->have >= FRAME_HEAD_BYTES && r->have == FRAME_HEAD_BYTES + frame_length(r->buf))
		r->have = 0;
	rc = frame_fill(r, s, FRAME_HEAD_BYTES);
	if (rc < 0)
		return rc;
	length = frame_length(r->buf);
	if (length > FRAME_BYTES_MAX)
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
	free(r->buf);
	memset(r, 0, sizeof(*r));
}

int frame_append(struct frame_writer *w, const uint8_t *frame, size_t bytes)
{
	size_t unsent_max = w->bytes_max ? w->bytes_max : FRAME_UNSENT_MAX;
	uint32_t length = htole32((uint32_t)bytes);
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
	memcpy(w->buf + w->have, &length, sizeof(length));
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
