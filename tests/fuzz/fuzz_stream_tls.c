/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: TLS around a control session (transport/stream_tls.h), both ends of it. A worker's end and a box's are real and
 * talk over two ways in memory; the input says what they write, what arrives when, and what is done to it on its way:
 * changed, cut out, made up, ended. Or one end alone hears nothing but the input. Whatever comes: what a sealed end
 * reads is what the other wrote, from its first byte on; neither end goes round in circles, says what it must not, or
 * leaks.
 *
 *      1 byte    flags: 1 the worker's end is there, 2 the box's, 4 the worker knows an authority instead of a pin,
 *                8 pieces are written and read in small parts
 *      then      operations: 1 byte (operation % 8, and 8: the box's side), 1 byte n, and for some n bytes
 */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "transport/stream_tls.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/rand.h>

enum {
	FLAG_WORKER = 1,
	FLAG_BOX = 2,
	FLAG_CA = 4,
	FLAG_SMALL = 8,
	WAY_BYTES = 1 << 17,
	SAID_BYTES = 1 << 16,
	CALLS_MAX = 20000, /* of read() and write() below, in one input */
};

enum fuzz_op { OP_READ, OP_WRITE, OP_CARRY, OP_FLIP, OP_CUT, OP_INSERT, OP_END, OP_CARRY_ALL };

/* What one end has sent and the other may read. */
struct fuzz_way {
	uint8_t bytes[WAY_BYTES];
	size_t have, open, got; /* sent, let through, and read */
	bool ended;
};

struct fuzz_inner {
	struct stream stream;
	struct fuzz_way *in, *out;
};

struct fuzz_end {
	struct fuzz_inner inner;
	struct stream *tls;
	uint8_t said[SAID_BYTES]; /* plain */
	size_t said_have, heard;  /* heard: so much of what the other said */
	bool over;
};

static struct fuzz_way fuzz_ways[2]; /* to the box, to the worker */
static struct fuzz_end fuzz_ends[2]; /* worker, box */
static struct stream_tls *fuzz_box, *fuzz_by_pin, *fuzz_by_ca;
static unsigned fuzz_calls;
static bool fuzz_small;
static uint64_t fuzz_random;

/* Of nobody, valid for a hundred years. */
static const char fuzz_cert[] = "-----BEGIN CERTIFICATE-----\n"
				"MIIBiTCCAS+gAwIBAgIUS92pLQF6udqGOvvxuI68SfHh9W8wCgYIKoZIzj0EAwIw\n"
				"DjEMMAoGA1UEAwwDYm94MCAXDTI2MTEyMjE3MjQ0NVoYDzIxMjYxMDI5MTcyNDQ1\n"
				"WjAOMQwwCgYDVQQDDANib3gwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQY0B+3\n"
				"DW9txEfdtCx2w+RAiLG2l7ge8IqhowQ2wl1D4uEFML8iS6LmOM1ZsGeMKqXWTsvg\n"
				"7FzVMEWOV7EQWa1Ko2kwZzAdBgNVHQ4EFgQUkXUzFSHqsRh9c3pjnIYmlBFYkZow\n"
				"HwYDVR0jBBgwFoAUkXUzFSHqsRh9c3pjnIYmlBFYkZowDwYDVR0TAQH/BAUwAwEB\n"
				"/zAUBgNVHREEDTALggNib3iHBH8AAAEwCgYIKoZIzj0EAwIDSAAwRQIgPlsfikLN\n"
				"VYarVusjCAsL5PEiAvNUjHd+MEUus8RSkDoCIQDr06vXItluQi9J3VCdQ6r2tH5k\n"
				"VV1kJZ7OG7l00QDwPQ==\n"
				"-----END CERTIFICATE-----\n";
static const char fuzz_key[] = "-----BEGIN PRIVATE KEY-----\n"
			       "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQghlrx0RV6Ij9WpOde\n"
			       "jdOi0x+04JlvZb0fdi9DIoDv6T6hRANCAAQY0B+3DW9txEfdtCx2w+RAiLG2l7ge\n"
			       "8IqhowQ2wl1D4uEFML8iS6LmOM1ZsGeMKqXWTsvg7FzVMEWOV7EQWa1K\n"
			       "-----END PRIVATE KEY-----\n";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

/* ---- the same random numbers for the same input ---- */

static int fuzz_rand_bytes(unsigned char *buf, int count)
{
	for (int i = 0; i < count; i++) {
		fuzz_random = fuzz_random * 6364136223846793005ull + 1442695040888963407ull;
		buf[i] = (unsigned char)(fuzz_random >> 56);
	}
	return 1;
}

static int fuzz_rand_status(void)
{
	return 1;
}

static void fuzz_put(char path[64], const char *name, const char *text)
{
	FILE *f;

	snprintf(path, 64, "/dev/shm/fuzz-tls-%d-%s", (int)getpid(), name);
	f = fopen(path, "we");
	fuzz_require(f && fchmod(fileno(f), 0600) == 0);
	fuzz_require(fputs(text, f) >= 0 && fclose(f) == 0);
}

static void fuzz_begin(void)
{
	static const RAND_METHOD method = {
		.bytes = fuzz_rand_bytes, .pseudorand = fuzz_rand_bytes, .status = fuzz_rand_status};
	char cert[64], key[64], pin[STREAM_TLS_PIN_TEXT];
	struct err e;

	if (fuzz_box)
		return;
	fuzz_require(RAND_set_rand_method(&method) == 1);
	fuzz_put(cert, "cert", fuzz_cert);
	fuzz_put(key, "key", fuzz_key);
	fuzz_require(stream_tls_box(cert, key, &fuzz_box, &e) == 0);
	stream_tls_pin(fuzz_box, pin);
	fuzz_require(stream_tls_worker(NULL, pin, &fuzz_by_pin, &e) == 0);
	fuzz_require(stream_tls_worker(cert, NULL, &fuzz_by_ca, &e) == 0);
	unlink(cert);
	unlink(key);
}

/* ---- the streams below ---- */

static ssize_t fuzz_inner_read(struct stream *s, void *buf, size_t bytes)
{
	struct fuzz_way *way = ((struct fuzz_inner *)s)->in;
	size_t n = way->open - way->got;

	fuzz_require(++fuzz_calls < CALLS_MAX);
	if (n == 0)
		return way->ended && way->open == way->have ? 0 : -EAGAIN;
	n = n < bytes ? n : bytes;
	n = fuzz_small && n > 7 ? 7 : n;
	memcpy(buf, way->bytes + way->got, n);
	way->got += n;
	return (ssize_t)n;
}

static ssize_t fuzz_inner_write(struct stream *s, const void *buf, size_t bytes)
{
	struct fuzz_way *way = ((struct fuzz_inner *)s)->out;
	size_t n = WAY_BYTES - way->have;

	fuzz_require(++fuzz_calls < CALLS_MAX);
	if (way->ended)
		return -EPIPE;
	n = n < bytes ? n : bytes;
	n = fuzz_small && n > 11 ? 11 : n;
	if (n == 0)
		return -EAGAIN;
	memcpy(way->bytes + way->have, buf, n);
	way->have += n;
	return (ssize_t)n;
}

static int fuzz_inner_fd(struct stream *s)
{
	return -1;
}

static void fuzz_inner_close(struct stream *s)
{
	((struct fuzz_inner *)s)->in = NULL;
}

static const struct stream_ops fuzz_inner_ops = {fuzz_inner_read, fuzz_inner_write, fuzz_inner_fd, fuzz_inner_close};

/* ---- the two ends ---- */

static void fuzz_open(unsigned which, unsigned flags)
{
	struct fuzz_end *end = &fuzz_ends[which];

	end->inner = (struct fuzz_inner){
		.stream = {.ops = &fuzz_inner_ops}, .in = &fuzz_ways[!which], .out = &fuzz_ways[which]};
	end->said_have = end->heard = 0;
	end->over = false;
	end->tls = NULL;
	if (!(flags & (which ? FLAG_BOX : FLAG_WORKER)))
		return;
	if (which)
		fuzz_require(stream_tls_accept(fuzz_box, &end->inner.stream, &end->tls) == 0);
	else
		fuzz_require(stream_tls_dial(flags & FLAG_CA ? fuzz_by_ca : fuzz_by_pin, "box", &end->inner.stream,
				     &end->tls) == 0);
}

/* What an end says of itself. */
static void fuzz_check(unsigned which, ssize_t rc)
{
	struct fuzz_end *end = &fuzz_ends[which];
	const struct stream *s = end->tls;

	if (rc < 0 && rc != -EAGAIN) {
		fuzz_require(rc == -EPROTO || rc == -EACCES || rc == -EPIPE);
		fuzz_require(rc == -EPIPE || s->why.code == rc);
	}
	fuzz_require(!s->sealed || !s->joining);
	if (which == 0) /* it never falls back to plain */
		fuzz_require(s->sealed || end->heard == 0);
}

static void fuzz_read(unsigned which, size_t bytes)
{
	struct fuzz_end *end = &fuzz_ends[which], *other = &fuzz_ends[!which];
	uint8_t buf[512];
	ssize_t n;

	if (!end->tls)
		return;
	n = end->tls->ops->read(end->tls, buf, 1 + bytes);
	fuzz_check(which, n);
	end->over = end->over || n == 0;
	if (n <= 0)
		return;
	fuzz_require(!end->over && (size_t)n <= 1 + bytes);
	/* Both ends are real: nobody but them can have said it. */
	if (end->tls->sealed && other->tls) {
		fuzz_require(end->heard + (size_t)n <= other->said_have);
		fuzz_require(memcmp(buf, other->said + end->heard, (size_t)n) == 0);
	}
	/* A box hears a plain session as it came. */
	if (!end->tls->sealed)
		fuzz_require(memcmp(buf, end->inner.in->bytes + end->heard, (size_t)n) == 0);
	end->heard += (size_t)n;
}

static void fuzz_write(unsigned which, const uint8_t *bytes, size_t count)
{
	struct fuzz_end *end = &fuzz_ends[which];
	ssize_t n;

	if (!end->tls || count > SAID_BYTES - end->said_have)
		return;
	n = end->tls->ops->write(end->tls, bytes, count);
	fuzz_check(which, n);
	if (n > 0) {
		fuzz_require((size_t)n <= count);
		memcpy(end->said + end->said_have, bytes, (size_t)n);
		end->said_have += (size_t)n;
	}
}

/* ---- between them ---- */

static void fuzz_carry(struct fuzz_way *way, size_t bytes)
{
	size_t n = way->have - way->open;

	way->open += n < bytes ? n : bytes;
}

static void fuzz_cut(struct fuzz_way *way, size_t at, size_t count)
{
	size_t under_way = way->have - way->open;

	if (at >= under_way)
		return;
	count = count < under_way - at ? count : under_way - at;
	memmove(way->bytes + way->open + at, way->bytes + way->open + at + count, under_way - at - count);
	way->have -= count;
}

static void fuzz_insert(struct fuzz_way *way, const uint8_t *bytes, size_t count)
{
	if (way->ended || count > WAY_BYTES - way->have)
		return;
	memmove(way->bytes + way->open + count, way->bytes + way->open, way->have - way->open);
	memcpy(way->bytes + way->open, bytes, count);
	way->have += count;
}

/* Both in turn until nothing moves: the handshake, most of the time. */
static void fuzz_settle(void)
{
	for (size_t moved = 1, before = 0; moved != before;) {
		before = moved;
		for (unsigned which = 0; which < 2; which++) {
			fuzz_carry(&fuzz_ways[which], WAY_BYTES);
			fuzz_read(!which, 255);
			fuzz_write(!which, NULL, 0);
		}
		moved = fuzz_ways[0].have + fuzz_ways[1].have + fuzz_ways[0].got + fuzz_ways[1].got +
			fuzz_ends[0].heard + fuzz_ends[1].heard;
	}
}

/* One operation; returns how many bytes of the input it took. */
static size_t fuzz_operate(const uint8_t *data, size_t size)
{
	enum fuzz_op op = (enum fuzz_op)(data[0] % 8);
	unsigned which = (data[0] & 8) != 0;
	struct fuzz_way *way = &fuzz_ways[which];
	size_t n = data[1], left = size - 2, bytes = n < left ? n : left;

	switch (op) {
	case OP_READ:
		fuzz_read(which, n);
		return 2;
	case OP_WRITE:
		fuzz_write(which, data + 2, bytes);
		return 2 + bytes;
	case OP_CARRY:
		fuzz_carry(way, n);
		return 2;
	case OP_FLIP:
		if (way->open + n < way->have)
			way->bytes[way->open + n] ^= (uint8_t)(1u << (data[0] >> 5));
		return 2;
	case OP_CUT:
		fuzz_cut(way, n, 1 + (size_t)(data[0] >> 4));
		return 2;
	case OP_INSERT:
		fuzz_insert(way, data + 2, bytes);
		return 2 + bytes;
	case OP_END:
		way->ended = true;
		return 2;
	case OP_CARRY_ALL:
		fuzz_settle();
		return 2;
	}
	return 2;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	unsigned flags;

	if (size < 1)
		return 0;
	fuzz_begin();
	flags = data[0];
	fuzz_random = 1;
	fuzz_calls = 0;
	fuzz_small = flags & FLAG_SMALL;
	for (unsigned i = 0; i < 2; i++) {
		fuzz_ways[i].have = fuzz_ways[i].open = fuzz_ways[i].got = 0;
		fuzz_ways[i].ended = false;
	}
	fuzz_open(0, flags);
	fuzz_open(1, flags);
	data++;
	size--;
	for (unsigned ops = 0; size >= 2 && ops < 200; ops++) {
		size_t took = fuzz_operate(data, size);

		data += took;
		size -= took;
	}
	fuzz_settle();
	for (unsigned i = 0; i < 2; i++) {
		if (!fuzz_ends[i].tls)
			continue;
		fuzz_ends[i].tls->ops->close(fuzz_ends[i].tls);
		fuzz_require(!fuzz_ends[i].inner.in); /* closed with it */
	}
	return 0;
}
