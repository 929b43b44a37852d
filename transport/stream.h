/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A byte stream for the control session, and the frames on it. Over TCP in the product, over memory
 * in the simulation (loop.h): the sessions at both ends are the same objects in both.
 * Control thread of the box; in libphub whoever drives progress().
 */
#ifndef PHUB_TRANSPORT_STREAM_H
#define PHUB_TRANSPORT_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "phub/base/err.h"

struct stream;

struct stream_ops {
	/* Bytes read, 0 when the peer ended the stream, -EAGAIN when there is nothing now, else -errno. */
	ssize_t (*read)(struct stream *s, void *buf, size_t bytes);
	/* Bytes taken (may be fewer), -EAGAIN when there is no room now, else -errno (-EPIPE: peer gone). 0 bytes: only
	 * what the stream holds itself (`unsent`). */
	ssize_t (*write)(struct stream *s, const void *buf, size_t bytes);
	/* The fd to wait on, or -1: none (in memory). Another one once a name is looked up: ask before each wait. */
	int (*fd)(struct stream *s);
	/* Ends and frees it. */
	void (*close)(struct stream *s);
};

enum { STREAM_CHANNEL_BYTES = 32, STREAM_SOURCE_BYTES = 16 };

struct stream {
	const struct stream_ops *ops;
	char peer[80];     /* for messages */
	int64_t peer_uid;  /* uid of a peer on this very host when it can be told, else -1 */
	int peer_is_local; /* the peer's address is a loopback address */
	/* Where it comes from, as an IPv6 address; not known in memory. */
	uint8_t source[STREAM_SOURCE_BYTES];
	bool source_known;
	struct err
		why; /* -EINPROGRESS: its name is being looked up; else why it failed, where it knows more than errno */
	/* Of TLS (stream_tls.h): */
	bool joining; /* a handshake of its own runs: wait until it is readable, also to write */
	bool unsent;  /* it holds bytes that did not go out: wait until it is writable, and write */
	bool sealed;  /* encrypted, and `channel` tells this connection from all others */
	uint8_t channel[STREAM_CHANNEL_BYTES];
};

/*
 * Begins to connect over TCP to host:port ("::1", names allowed; the look-up of a name may block), through
 * `interface` when it is not NULL. Writes say -EAGAIN until the connection is there, and reads give
 * its error. 0 or a negative errno with the reason in `e`.
 */
int stream_dial_tcp(const char *host, uint16_t port, const char *interface, struct stream **out, struct err *e);

/*
 * The same and never blocks: a thread of its own looks up a name and tries its addresses; an address needs none. Until
 * that has ended reads and writes say -EAGAIN and fd() becomes readable at the end (writable never); a failure is told
 * by reads and writes, its reason is in `why`. close() does not wait for the thread.
 */
int stream_dial_tcp_later(const char *host, uint16_t port, const char *interface, struct stream **out, struct err *e);

/*
 * Listens on host:port ("" for any address, port 0 for a free one). `fd` is non-blocking and the caller's to close;
 * `bound` (at least 80 bytes) receives "127.0.0.1:7077", "[::1]:7077", or "*:7077" for any address. 0 or a negative
 * errno with the reason in `e`.
 */
int stream_listen_tcp(const char *host, uint16_t port, const char *interface, int *fd, char *bound, size_t bound_bytes,
	struct err *e);

/* The next caller, or -EAGAIN, or a negative errno (-EMFILE...). */
int stream_accept_tcp(int fd, struct stream **out);

/* Is the address that `host` names a loopback address? 1, 0, or a negative errno. */
int stream_host_is_loopback(const char *host);
/* As sock_host_is_heard(). */
int stream_host_is_heard(const char *own, const char *host);

/* Frames: a 4-byte little-endian length, then that many bytes. */
enum { FRAME_BYTES_MAX = 1 << 20 };

/* Reads frames off a stream. Zeroed memory is a fresh reader. */
struct frame_reader {
	uint8_t *buf; /* grows up to FRAME_BYTES_MAX + 4, ours */
	size_t have, room;
	size_t bytes_max; /* of a frame; 0: FRAME_BYTES_MAX */
};

/*
 * The next whole frame: 0 with `frame` and `bytes` (valid until the next call), -EAGAIN when it is not all there,
 * -EMSGSIZE when the peer announces more than bytes_max, 0-length and ended streams -EPIPE,
 * -ENOMEM, or the stream's error.
 */
int frame_read(struct frame_reader *r, struct stream *s, const uint8_t **frame, size_t *bytes);
void frame_reader_fini(struct frame_reader *r);

/* Collects frames for a stream that may be slow. Zeroed memory is a fresh writer. */
struct frame_writer {
	uint8_t *buf;
	size_t have, room;
	size_t bytes_max; /* -ENOBUFS above this much unsent; 0: 8 MiB */
	size_t sent;      /* of the first `have` bytes, those that went out */
};

/* Appends one frame. 0, -EMSGSIZE, -ENOBUFS (the peer does not read) or -ENOMEM. */
int frame_append(struct frame_writer *w, const uint8_t *frame, size_t bytes);
/* Sends what there is. 0 when all went out, -EAGAIN when some is left, else the stream's error. */
int frame_flush(struct frame_writer *w, struct stream *s);
void frame_writer_fini(struct frame_writer *w);

#endif
