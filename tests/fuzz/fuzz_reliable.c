/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: a box's and a worker's end with messages between them, and datagrams that anybody made, lost, doubled or
 * changed: without a seal, so that all behind it is reached. No event lies outside its message or chunk, no byte is
 * delivered twice, a message is complete once and with all its bytes, and each that was sent is reported at most once.
 *
 * The input: a byte of switches, then steps of a byte and what they take.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/reliable.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
	FUZZ_CHUNKS = 4,
	FUZZ_PAYLOAD_MAX = 5000,
	FUZZ_DATAGRAM_MAX = 1500,
	FUZZ_FRAGMENT = 1344, /* reliable_fragment_for(FUZZ_DATAGRAM_MAX) */
	FUZZ_PIECES = FUZZ_PAYLOAD_MAX / RELIABLE_FRAGMENT_MIN + 1,
	FUZZ_MESSAGES = 256, /* of either end, that are remembered */
	FUZZ_STEPS = 400,
	FUZZ_EVENTS = 8,
	FUZZ_NAME = 7,
	FUZZ_WAY = 1,
};

static const uint32_t fuzz_lengths[FUZZ_CHUNKS] = {1, FUZZ_FRAGMENT, 3000, FUZZ_PAYLOAD_MAX};

/* What came of a message: with a seq of its own there is one entry for each. */
struct fuzz_message {
	uint32_t seq, got;
	bool whole, seen;
	bool pieces[FUZZ_PIECES];
};

struct fuzz_end {
	struct conn conn;
	struct conn_spec spec;
	struct reliable_config config;
	struct reliable *r;
	struct reliable_conn *c;
	struct sink sinks[FUZZ_CHUNKS];
	bool parts; /* its messages come in parts */
	bool closed;
	uint32_t seq;                 /* that it sent last */
	bool reported[FUZZ_MESSAGES]; /* SENT, by seq */
	struct fuzz_message came[FUZZ_MESSAGES];
};

struct fuzz_world {
	struct fuzz_end box, worker;
	uint64_t now_ns;
	const uint8_t *at, *end; /* of the input */
};

static uint8_t fuzz_payload[FUZZ_PAYLOAD_MAX];
static volatile uint8_t fuzz_read; /* payloads are read to the last byte, for the sanitizer to see */

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

static uint32_t fuzz_take(struct fuzz_world *w, unsigned bytes)
{
	uint32_t value = 0;

	for (unsigned i = 0; i < bytes; i++)
		value = value << 8 | (w->at < w->end ? *w->at++ : 0);
	return value;
}

/* ---- what comes ---- */

static struct fuzz_message *fuzz_message(struct fuzz_end *e, uint32_t seq)
{
	struct fuzz_message *m = &e->came[seq % FUZZ_MESSAGES];

	if (!m->seen || m->seq != seq)
		*m = (struct fuzz_message){.seq = seq, .seen = true};
	return m;
}

static void fuzz_check_bytes(struct fuzz_end *e, const struct event *event)
{
	const struct wire_header *h = &event->header;
	const uint8_t *payload = event->payload;

	fuzz_require(event->offset <= h->length && event->bytes <= h->length - event->offset);
	if (e->spec.sinks && h->type == WIRE_RESULT)
		fuzz_require(payload == e->sinks[h->chunk].addr && h->length == e->sinks[h->chunk].bytes);
	else
		fuzz_require((payload != NULL) == (event->bytes > 0 && !e->spec.sinks));
	for (uint32_t i = 0; payload && i < event->bytes; i++)
		fuzz_read = payload[i];
}

static void fuzz_check_message(struct fuzz_end *e, const struct event *event)
{
	const struct wire_header *h = &event->header;
	struct fuzz_message *m = fuzz_message(e, h->seq);
	uint32_t first = event->offset / FUZZ_FRAGMENT, last = first;

	fuzz_require(!e->closed && event->conn == &e->conn);
	fuzz_require(h->seq != 0 && h->length <= FUZZ_PAYLOAD_MAX);
	fuzz_require(h->type == WIRE_CREDIT || h->chunk < FUZZ_CHUNKS);
	fuzz_check_bytes(e, event);
	fuzz_require(e->parts || (event->offset == 0 && event->bytes == h->length && event->last));
	fuzz_require(event->offset % TRANSPORT_PART_ALIGN == 0);
	if (event->bytes > 0)
		last = (event->offset + event->bytes - 1) / FUZZ_FRAGMENT;
	for (uint32_t i = first; i <= last; i++) {
		fuzz_require(!m->pieces[i]);
		m->pieces[i] = true;
	}
	m->got += event->bytes;
	fuzz_require(!m->whole && event->last == (m->got == h->length));
	m->whole = event->last;
}

static void fuzz_check_event(struct fuzz_end *e, const struct event *event)
{
	if (event->type == EVENT_MESSAGE) {
		fuzz_check_message(e, event);
	} else if (event->type == EVENT_SENT) {
		uintptr_t seq = (uintptr_t)event->cookie;

		fuzz_require(!e->closed && seq > 0 && seq <= e->seq && !e->reported[seq % FUZZ_MESSAGES]);
		e->reported[seq % FUZZ_MESSAGES] = true;
	} else if (event->type == EVENT_CLOSED) {
		fuzz_require(!e->closed);
		e->closed = true;
	} else {
		fuzz_require(event->type == EVENT_WRITABLE && !e->closed);
	}
}

static void fuzz_report(struct fuzz_end *e)
{
	struct event events[FUZZ_EVENTS];
	unsigned count;

	do {
		count = reliable_report(e->r, events, FUZZ_EVENTS);
		for (unsigned i = 0; i < count; i++)
			fuzz_check_event(e, &events[i]);
	} while (count == FUZZ_EVENTS);
}

/* Who has not shown that it receives is asked back, with no more bytes than came. */
static void fuzz_hear_probe(struct fuzz_world *w, struct fuzz_end *box, size_t length)
{
	uint8_t head[RELIABLE_HEAD_BYTES], datagram[FUZZ_DATAGRAM_MAX] = {0};
	struct reliable_outgoing out = {.head = head};
	uint32_t fragment = reliable_fragment(box->c);
	struct conn *conn = NULL;
	struct event event;

	fuzz_require(box == &w->box);
	if (reliable_way(box->c) == FUZZ_WAY) {
		reliable_greet(box->r, box->c, FUZZ_WAY);
		return;
	}
	reliable_ask_back(box->r, box->c, w->now_ns, FUZZ_WAY, &out);
	fuzz_require(out.head_bytes + out.rest_bytes <= length && reliable_fragment(box->c) == fragment);
	memcpy(datagram, head, out.head_bytes);
	length = out.head_bytes + out.rest_bytes;
	fuzz_require(reliable_input(w->worker.r, w->now_ns, datagram, length, &event, &conn) == RELIABLE_NOTHING);
	fuzz_report(&w->worker);
}

static void fuzz_input(struct fuzz_world *w, struct fuzz_end *e, const uint8_t *bytes, size_t length)
{
	uint8_t *exact = malloc(length ? length : 1);
	struct conn *conn = NULL;
	struct event event;
	enum reliable_took took;

	fuzz_require(exact != NULL);
	if (length)
		memcpy(exact, bytes, length);
	took = reliable_input(e->r, w->now_ns, exact, length, &event, &conn);
	fuzz_report(e);
	fuzz_require(took == RELIABLE_NOTHING || conn == &e->conn);
	if (took == RELIABLE_HELLO)
		fuzz_hear_probe(w, e, length);
	if (took == RELIABLE_MESSAGE) {
		fuzz_require(event.type == EVENT_MESSAGE);
		fuzz_check_event(e, &event);
	}
	free(exact);
}

/* ---- what is done ---- */

static void fuzz_send(struct fuzz_world *w, struct fuzz_end *e)
{
	uint32_t chunk = fuzz_take(w, 1) % (FUZZ_CHUNKS + 1);
	struct wire_header h = {.job = 1, .generation = 1, .epoch = 1, .count = 1, .round = 1, .seq = e->seq + 1};

	if (e->seq + 1 == FUZZ_MESSAGES)
		return;
	h.type = e->config.is_box ? WIRE_RESULT : WIRE_PUSH;
	if (chunk == FUZZ_CHUNKS)
		h.type = e->config.is_box ? WIRE_CREDIT : WIRE_PULL;
	h.chunk = chunk % FUZZ_CHUNKS;
	h.length = chunk == FUZZ_CHUNKS ? 0 : fuzz_lengths[chunk];
	if (reliable_send(e->r, e->c, &h, h.length ? fuzz_payload : NULL, (void *)(uintptr_t)(e->seq + 1)) == 0)
		e->seq++;
}

/* The next datagram of one end: to the other as it is, or lost, doubled or changed. False: there is none. */
static bool fuzz_carry(struct fuzz_world *w, struct fuzz_end *from, struct fuzz_end *to, unsigned how)
{
	uint8_t head[RELIABLE_HEAD_BYTES], datagram[FUZZ_DATAGRAM_MAX];
	struct reliable_outgoing out = {.head = head};
	size_t length, at;

	if (from->closed || !reliable_turn(from->r))
		return false;
	reliable_next(from->r, w->now_ns, &out);
	length = out.head_bytes + out.rest_bytes;
	fuzz_require(out.to == &from->conn && length <= FUZZ_DATAGRAM_MAX);
	memcpy(datagram, head, out.head_bytes);
	if (out.rest_bytes)
		memcpy(datagram + out.head_bytes, out.rest, out.rest_bytes);
	if (how == 1)
		return true;
	if (how == 2)
		fuzz_input(w, to, datagram, length);
	if (how == 3) {
		at = fuzz_take(w, 1) % length;
		datagram[at] ^= (uint8_t)fuzz_take(w, 1);
	}
	fuzz_input(w, to, datagram, length);
	return true;
}

/* A message's header, place and size as they could be, or nearly. Returns the bytes of the datagram. */
static size_t fuzz_forge_data(struct fuzz_world *w, struct wire_datagram *d, uint8_t type, uint8_t *header)
{
	struct wire_header h = {.job = 1, .generation = 1, .epoch = 1, .count = 1};
	uint32_t place, size;

	h.type = (enum wire_type)(1 + type % 5);
	h.seq = fuzz_take(w, 1);
	h.chunk = fuzz_take(w, 1) % (2 * FUZZ_CHUNKS);
	h.length = fuzz_take(w, 2);
	if (h.length < FUZZ_CHUNKS)
		h.length = fuzz_lengths[h.length];
	d->answers = fuzz_take(w, 1);
	place = fuzz_take(w, 1);
	d->offset = place < 128 ? place % 8 * FUZZ_FRAGMENT : (place - 128) * TRANSPORT_PART_ALIGN;
	size = fuzz_take(w, 2);
	if (size & 0x8000)
		size = FUZZ_FRAGMENT;
	else if (size & 0x4000)
		size = h.length - d->offset;
	wire_encode(&h, header);
	return WIRE_DATA_BYTES + size % FUZZ_PAYLOAD_MAX;
}

/* A datagram whose fields are the input's. */
static void fuzz_forge(struct fuzz_world *w, struct fuzz_end *to)
{
	uint8_t datagram[WIRE_DATA_BYTES + FUZZ_PAYLOAD_MAX] = {0};
	uint8_t what = (uint8_t)fuzz_take(w, 1);
	struct wire_datagram d = {.kind = (enum wire_kind)(1 + what % 5), .conn = FUZZ_NAME};
	size_t length = WIRE_DATAGRAM_BYTES;

	d.number = fuzz_take(w, 1) + 1 + (d.kind == WIRE_DATA ? 0 : WIRE_NUMBER_OTHER);
	if (d.kind == WIRE_DATA) {
		length = fuzz_forge_data(w, &d, what / 5, datagram + WIRE_DATAGRAM_BYTES);
	} else if (d.kind == WIRE_ACK) {
		wire_encode_ack(&(struct wire_ack){.largest = fuzz_take(w, 1),
					.below = {fuzz_take(w, 2), fuzz_take(w, 1)},
					.grant = fuzz_take(w, 2),
					.delay_us = fuzz_take(w, 2)},
			datagram + WIRE_DATAGRAM_BYTES);
		length = WIRE_ACK_BYTES;
	} else if (d.kind != WIRE_END) {
		wire_encode_probe(&(struct wire_probe){.token = fuzz_take(w, 2),
					  .fragment = fuzz_take(w, 1) * TRANSPORT_PART_ALIGN,
					  .grant = fuzz_take(w, 2),
					  .way = what / 5 % 2 * FUZZ_WAY},
			datagram + WIRE_DATAGRAM_BYTES);
		length = WIRE_PROBE_BYTES + fuzz_take(w, 2) % FUZZ_PAYLOAD_MAX;
	}
	wire_encode_datagram(&d, datagram);
	fuzz_input(w, to, datagram, length);
}

static void fuzz_raw(struct fuzz_world *w, struct fuzz_end *to)
{
	size_t length = fuzz_take(w, 1), left = (size_t)(w->end - w->at);

	if (length > left)
		length = left;
	fuzz_input(w, to, w->at, length);
	w->at += length;
}

static void fuzz_tick(struct fuzz_world *w)
{
	w->now_ns += (uint64_t)(fuzz_take(w, 1) + 1) * 100000;
	for (int i = 0; i < 2; i++) {
		struct fuzz_end *e = i ? &w->box : &w->worker;

		reliable_tick(e->r, w->now_ns);
		fuzz_report(e);
	}
}

static void fuzz_step(struct fuzz_world *w)
{
	uint8_t step = (uint8_t)fuzz_take(w, 1);
	struct fuzz_end *e = step & 1 ? &w->box : &w->worker, *other = step & 1 ? &w->worker : &w->box;

	switch (step / 2 % 9) {
	case 0:
	case 1:
		fuzz_send(w, e);
		break;
	case 2:
		fuzz_tick(w);
		break;
	case 3:
	case 4:
	case 5:
	case 6:
		fuzz_carry(w, e, other, step / 2 % 9 - 3);
		break;
	case 7:
		fuzz_forge(w, e);
		break;
	default:
		fuzz_raw(w, e);
	}
}

/* ---- the world ---- */

static void fuzz_end_open(struct fuzz_end *e, bool is_box, bool parts, bool sinks)
{
	static const uint8_t key[PROOF_KEY];
	struct reliable_conn_config config = {
		.conn = &e->conn, .here = FUZZ_NAME, .there = FUZZ_NAME, .spec = &e->spec};

	for (int i = 0; sinks && i < FUZZ_CHUNKS; i++) {
		e->sinks[i].bytes = fuzz_lengths[i];
		e->sinks[i].addr = malloc(fuzz_lengths[i]);
		fuzz_require(e->sinks[i].addr != NULL);
	}
	e->parts = parts;
	e->spec = (struct conn_spec){
		.chunk_count = FUZZ_CHUNKS,
		.payload_max = FUZZ_PAYLOAD_MAX,
		.sinks = sinks ? e->sinks : NULL,
		.parts = parts,
		.job = 1,
		.key = key,
		.seal = SEAL_NONE,
	};
	e->config = (struct reliable_config){.conns_max = 1, .room_bytes = 64 << 10, .is_box = is_box};
	config.datagram_max = FUZZ_DATAGRAM_MAX;
	fuzz_require(seal_create(SEAL_NONE, NULL, NULL, is_box, &config.seal_here, NULL) == 0);
	fuzz_require(seal_create(SEAL_NONE, NULL, NULL, is_box, &config.seal_there, NULL) == 0);
	fuzz_require(reliable_create(&e->config, &e->r) == 0);
	fuzz_require(reliable_conn_create(&e->config, &config, &e->c) == 0);
	fuzz_require(reliable_add(e->r, e->c) == 0);
}

static void fuzz_end_close(struct fuzz_end *e)
{
	for (int i = 0; i < FUZZ_CHUNKS; i++)
		free(e->sinks[i].addr);
	reliable_remove(e->r, e->c);
	reliable_conn_destroy(e->c);
	reliable_destroy(e->r);
}

/* They agree on the size of a fragment. */
static void fuzz_greet(struct fuzz_world *w)
{
	for (uint32_t fragment = 0; fragment <= FUZZ_FRAGMENT; fragment += FUZZ_FRAGMENT) {
		reliable_probe(w->worker.r, w->worker.c, FUZZ_DATAGRAM_MAX, fragment, false);
		while (fuzz_carry(w, &w->worker, &w->box, 0) || fuzz_carry(w, &w->box, &w->worker, 0))
			;
	}
	fuzz_require(reliable_fragment(w->worker.c) == FUZZ_FRAGMENT && reliable_fragment(w->box.c) == FUZZ_FRAGMENT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_world *w = calloc(1, sizeof(*w));
	uint8_t switches;

	fuzz_require(w != NULL);
	w->now_ns = 1000000;
	w->at = data;
	w->end = data + size;
	switches = (uint8_t)fuzz_take(w, 1);
	fuzz_end_open(&w->box, true, switches & 1, false);
	fuzz_end_open(&w->worker, false, false, switches & 2);
	fuzz_greet(w);
	for (int i = 0; i < FUZZ_STEPS && w->at < w->end && !w->box.closed && !w->worker.closed; i++)
		fuzz_step(w);
	fuzz_end_close(&w->box);
	fuzz_end_close(&w->worker);
	free(w);
	return 0;
}
