/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: any bytes, cut anywhere, as what a peer sends on an established tcp connection, with and without sinks. A
 * socket pair stands in for TCP. The first byte chooses sinks and the size of the pieces; 0xff bytes at a cut clear
 * the sinks, as their owner may between two polls. What is yielded lies where the contract says, and all of it is
 * readable (the sanitizer looks).
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/tcp_internal.h"

enum { CHUNKS = 4, PAYLOAD_MAX = 5000, EVENTS = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct transport *fuzz_transport;
static struct queue *fuzz_queue;
static uint8_t fuzz_target[CHUNKS][PAYLOAD_MAX];
static volatile uint8_t fuzz_eye;

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

static void fuzz_setup(void)
{
	struct transport_config config = {0};
	struct err e;

	fuzz_require(transport_tcp.open(&config, &fuzz_transport, &e) == 0);
	fuzz_require(transport_tcp.queue_create(fuzz_transport, MEM_NODE_ANY, &fuzz_queue, &e) == 0);
}

static struct tcp_conn *fuzz_conn(int fd)
{
	struct tcp_conn *c = calloc(1, sizeof(*c));

	fuzz_require(c != NULL);
	c->fd = fd;
	c->state = TCP_ADMITTED;
	list_init(&c->ready);
	list_init(&c->dirty);
	list_init(&c->report);
	return c;
}

static void fuzz_look(const struct event *event, const struct conn_spec *spec)
{
	const uint8_t *payload = event->payload;
	const struct wire_header *h = &event->header;

	fuzz_require(h->length <= PAYLOAD_MAX && event->slot == NULL);
	if (spec->sinks && h->type == WIRE_RESULT) {
		fuzz_require(h->chunk < CHUNKS);
		fuzz_require(payload == NULL ||
			     (payload == spec->sinks[h->chunk].addr && sink_fits(&spec->sinks[h->chunk], h)));
	} else {
		fuzz_require((payload == NULL) == (h->length == 0) && (uintptr_t)payload % 64 == 0);
	}
	for (uint32_t i = 0; payload && i < h->length; i++)
		fuzz_eye = payload[i];
}

/* Polls until nothing comes. Returns whether the connection is over. */
static int fuzz_poll(const struct conn_spec *spec)
{
	struct event events[EVENTS];
	unsigned n;

	do {
		n = fuzz_queue->ops->poll(fuzz_queue, 0, events, EVENTS);
		for (unsigned i = 0; i < n; i++) {
			if (events[i].type == EVENT_CLOSED)
				return 1;
			fuzz_require(events[i].type == EVENT_MESSAGE);
			fuzz_look(&events[i], spec);
		}
	} while (n || fuzz_queue->ops->arm(fuzz_queue) < 0);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct sink sinks[CHUNKS];
	struct conn_spec spec = {.chunk_count = CHUNKS, .payload_max = PAYLOAD_MAX};
	struct tcp_conn *c;
	size_t step;
	int over = 0;
	int fd[2];

	if (!fuzz_queue)
		fuzz_setup();
	if (size == 0 || size > 60000 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) < 0)
		return 0;
	for (unsigned i = 0; i < CHUNKS; i++)
		sinks[i] = (struct sink){.addr = fuzz_target[i], .bytes = i ? i * 100 : PAYLOAD_MAX};
	if (data[0] & 1)
		spec.sinks = sinks;
	step = 1 + (data[0] >> 1) * (size_t)37;
	c = fuzz_conn(fd[0]);
	fuzz_require(fuzz_queue->ops->adopt(fuzz_queue, &c->conn, &spec) == 0);
	for (data++, size--; size && !over; data += step, size -= step) {
		if (step > size)
			step = size;
		for (unsigned i = 0; data[0] == 0xff && i < CHUNKS; i++)
			sinks[i].addr = NULL;
		fuzz_require(send(fd[1], data, step, MSG_NOSIGNAL) == (ssize_t)step);
		over = fuzz_poll(&spec);
	}
	close(fd[1]);
	fuzz_require(over || fuzz_poll(&spec));
	fuzz_queue->ops->drop(fuzz_queue, &c->conn);
	return 0;
}
