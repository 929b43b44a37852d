/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp transport's receive buffer: a few messages long at the box, so that a busy stream costs less than a system
 * call a message, and few enough that they are summed out of L2. Results go straight to their sinks.
 * Owning core; tcp.c decides when to read, and what ends a connection.
 */
#include "transport/tcp_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

/*
 * Where the payload of the current message goes. A sink's owner may have taken it back, or given it to another
 * round, since the last poll: then the rest is thrown away.
 */
static int tcp_rx_aim(struct tcp_rx *rx, const struct conn_spec *spec)
{
	const struct sink *sink;

	if (rx->header.chunk >= spec->chunk_count)
		return -EPROTO;
	sink = &spec->sinks[rx->header.chunk];
	if (sink->addr && !sink_fits(sink, &rx->header))
		return -EPROTO;
	rx->sink = sink->addr;
	return 0;
}

void tcp_rx_aim_again(struct tcp_rx *rx, const struct conn_spec *spec)
{
	const struct sink *sink = rx->header.chunk < spec->chunk_count ? &spec->sinks[rx->header.chunk] : NULL;

	if (!sink || sink->addr != rx->sink || !sink_fits(sink, &rx->header))
		rx->sink = NULL;
}

/* The unparsed bytes begin with a whole header. */
static int tcp_rx_header(struct tcp_rx *rx, const struct conn_spec *spec)
{
	int rc = wire_decode(rx->buf + rx->start, &rx->header);

	if (rc < 0)
		return rc;
	if (rx->header.length > rx->payload_max)
		return -EMSGSIZE;
	rx->start += WIRE_HEADER_BYTES;
	rx->known = true;
	rx->direct = spec->sinks && rx->header.type == WIRE_RESULT;
	rx->sunk = 0;
	return rx->direct ? tcp_rx_aim(rx, spec) : 0;
}

/*
 * Payloads in the buffer begin on a cache line. After small ones of odd lengths this one may not: then it moves back
 * into the place of its header, which is decoded.
 */
static uint8_t *tcp_rx_align(struct tcp_rx *rx)
{
	uint32_t aligned = rx->start & ~(uint32_t)(WIRE_HEADER_BYTES - 1);

	if (aligned != rx->start)
		memmove(rx->buf + aligned, rx->buf + rx->start, rx->header.length);
	return rx->buf + aligned;
}

/* Is the payload of the current message all here? Then `*payload` is where it lies. */
static bool tcp_rx_payload(struct tcp_rx *rx, const void **payload)
{
	uint32_t have = rx->end - rx->start;
	uint32_t rest = rx->header.length - rx->sunk;
	uint32_t take = have < rest ? have : rest;

	if (!rx->direct) {
		if (take < rest)
			return false;
		*payload = rest ? tcp_rx_align(rx) : NULL;
		rx->start += rest;
		return true;
	}
	if (rx->sink && take)
		memcpy(rx->sink + rx->sunk, rx->buf + rx->start, take);
	rx->start += take;
	rx->sunk += take;
	*payload = rx->sink;
	return take == rest;
}

unsigned tcp_rx_parse(struct tcp_conn *c, struct event *events, unsigned max, int *error)
{
	struct tcp_rx *rx = &c->rx;
	unsigned n = 0;

	while (n < max) {
		struct event *event = &events[n];

		if (!rx->known) {
			if (rx->end - rx->start < WIRE_HEADER_BYTES)
				break;
			*error = tcp_rx_header(rx, c->spec);
			if (*error < 0)
				break;
		}
		if (!tcp_rx_payload(rx, &event->payload))
			break;
		event->error = 0;
		event->conn = &c->conn;
		event->header = rx->header;
		event_whole(event);
		event->slot = NULL;
		event->cookie = NULL;
		rx->last = rx->header.length;
		rx->known = false;
		n++;
	}
	return n;
}

/* Moves the unparsed bytes to the front when what is still to come would not fit behind them. */
static void tcp_rx_compact(struct tcp_rx *rx)
{
	uint32_t have = rx->end - rx->start;
	uint32_t whole = WIRE_HEADER_BYTES + (rx->known ? rx->header.length : rx->payload_max + WIRE_HEADER_BYTES);

	if (have && rx->start + whole <= rx->room && rx->start % WIRE_HEADER_BYTES == 0)
		return;
	if (have)
		memmove(rx->buf, rx->buf + rx->start, have);
	rx->start = 0;
	rx->end = have;
}

/* Where payloads belong in sinks they are read there: no more is read ahead than would be cheap to copy. */
static uint32_t tcp_rx_want_sinks(const struct tcp_rx *rx, uint32_t have)
{
	uint32_t length = rx->known ? rx->header.length : rx->last;
	uint32_t want = WIRE_HEADER_BYTES;

	if (rx->known && !(rx->direct && rx->sink))
		want += rx->header.length - rx->sunk;
	want -= have;
	return length <= TCP_SMALL && want < TCP_READ_AHEAD_SINK ? TCP_READ_AHEAD_SINK : want;
}

/*
 * How many bytes to read into the buffer. Several messages a read, which end with a header when all are as long as the
 * last one: then nothing has to be moved before the next read.
 */
static uint32_t tcp_rx_want(const struct tcp_rx *rx, bool sinks)
{
	uint32_t have = rx->end - rx->start;
	uint32_t room = rx->room - rx->end;
	uint32_t one = WIRE_HEADER_BYTES + (rx->known ? rx->header.length : rx->last);
	uint32_t want;

	if (sinks)
		want = tcp_rx_want_sinks(rx, have);
	else
		want = one + (rx->known ? 0 : WIRE_HEADER_BYTES) - have;
	if (!sinks && want < room)
		want += (room - want) / one * one;
	return want < room ? want : room;
}

int tcp_rx_fill(struct tcp_conn *c)
{
	struct tcp_rx *rx = &c->rx;
	struct iovec iov[2];
	uint32_t sink_bytes = 0;
	ssize_t got;

	tcp_rx_compact(rx);
	if (rx->known && rx->direct && rx->sink)
		sink_bytes = rx->header.length - rx->sunk;
	iov[0].iov_base = sink_bytes ? rx->sink + rx->sunk : NULL;
	iov[0].iov_len = sink_bytes;
	iov[1].iov_base = rx->buf + rx->end;
	iov[1].iov_len = tcp_rx_want(rx, c->spec->sinks != NULL);
	if (sink_bytes)
		got = readv(c->fd, iov, 2);
	else
		got = recv(c->fd, iov[1].iov_base, iov[1].iov_len, 0);
	if (got <= 0) {
		if (got == 0)
			return -ESHUTDOWN;
		return errno == EINTR ? 1 : -errno;
	}
	if ((size_t)got < sink_bytes) {
		rx->sunk += (uint32_t)got;
		return c->hung_up;
	}
	rx->sunk += sink_bytes;
	rx->end += (uint32_t)got - sink_bytes;
	/* A short read has emptied the socket; an end that epoll already told of would not be told again. */
	return (size_t)got == sink_bytes + iov[1].iov_len || c->hung_up;
}
