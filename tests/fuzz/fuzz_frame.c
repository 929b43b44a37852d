/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: any bytes, cut anywhere, as frames of a control session. The first byte chooses the size of the pieces. Frames
 * come out whole and in order, and memory stays within the bound.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct fuzz_stream {
	struct stream stream;
	const uint8_t *data;
	size_t size, step;
	int rest; /* every other read() finds nothing */
};

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

static ssize_t fuzz_read(struct stream *head, void *buf, size_t bytes)
{
	struct fuzz_stream *s = (struct fuzz_stream *)head;

	s->rest = !s->rest;
	if (s->rest)
		return -EAGAIN;
	if (bytes > s->step)
		bytes = s->step;
	if (bytes > s->size)
		bytes = s->size;
	memcpy(buf, s->data, bytes);
	s->data += bytes;
	s->size -= bytes;
	return (ssize_t)bytes;
}

static const struct stream_ops fuzz_ops = {.read = fuzz_read};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_stream s = {.stream.ops = &fuzz_ops};
	struct frame_reader r = {0};
	const uint8_t *frame;
	size_t bytes;
	int rc;

	if (size == 0)
		return 0;
	s.step = 1 + data[0] * (size_t)16;
	s.data = data + 1;
	s.size = size - 1;
	do {
		rc = frame_read(&r, &s.stream, &frame, &bytes);
		fuzz_require(r.have <= r.room && r.room <= FRAME_BYTES_MAX + 4);
		if (rc == 0) { /* Nothing is read past a frame, so it ends where the stream stands. */
			fuzz_require(bytes >= 1 && bytes <= FRAME_BYTES_MAX);
			fuzz_require(memcmp(frame, s.data - bytes, bytes) == 0);
		}
	} while (rc == 0 || rc == -EAGAIN);
	fuzz_require(rc == -EPIPE || rc == -EMSGSIZE);
	frame_reader_fini(&r);
	return 0;
}
