/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What comes in. Nothing of a datagram is believed before its seal is right, and nothing of a message before all that
 * says where its bytes go is checked.
 */
#include "transport/reliable_internal.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* ---- acknowledgements to come ---- */

/* This number came: in the map of the last ones. */
static void reliable_note(struct reliable_conn *c, uint64_t number, uint64_t now_ns)
{
	uint64_t up = number - c->largest, bit;

	if (number > c->largest) {
		for (unsigned w = WIRE_ACK_WORDS; w-- > 0;) {
			uint64_t words = up / 64, bits = up % 64, value = 0;

			if (w >= words) {
				value = c->below[w - words] << bits;
				if (bits && w > words)
					value |= c->below[w - words - 1] >> (64 - bits);
			}
			c->below[w] = value;
		}
		bit = up - 1;
		if (c->largest && bit < UINT64_C(64) * WIRE_ACK_WORDS)
			c->below[bit / 64] |= UINT64_C(1) << (bit % 64);
		c->largest = number;
		c->largest_ns = now_ns;
		return;
	}
	bit = c->largest - number - 1;
	if (number < c->largest && bit < UINT64_C(64) * WIRE_ACK_WORDS)
		c->below[bit / 64] |= UINT64_C(1) << (bit % 64);
}

static void reliable_count_active(struct reliable *r, struct reliable_conn *c)
{
	if (c->active == r->active_turn)
		return;
	c->active = r->active_turn;
	r->active_count++;
}

/* Acknowledges a DATA: now, or with others in a while. */
static void reliable_acknowledge(struct reliable *r, struct reliable_conn *c, uint64_t number, uint32_t bytes, bool now)
{
	uint64_t at_ns = r->now_ns;

	now = now || number != c->largest + 1;
	reliable_note(c, number, at_ns);
	c->unacked++;
	c->unacked_bytes += bytes;
	if (now || c->unacked >= RELIABLE_ACK_EVERY || 4 * c->unacked_bytes >= reliable_grant(r, c)) {
		c->ack_due = true;
		reliable_wake(c);
	} else if (!c->ack_due && list_alone(&c->delayed)) {
		c->ack_ns = at_ns + RELIABLE_ACK_NS;
		list_append(&r->delayed, &c->delayed);
	}
}

/* ---- messages ---- */

/* May its message be one of this connection? */
static bool reliable_header_fits(const struct reliable *r, const struct reliable_conn *c, const struct wire_header *h)
{
	if (h->length > c->spec->payload_max)
		return false;
	if (h->type != WIRE_CREDIT && h->chunk >= c->spec->chunk_count)
		return false;
	return !r->config.is_box || !c->spec->key || (h->job == c->spec->job && h->rank == c->spec->rank);
}

/* Is this a fragment as they are cut? */
static bool reliable_place_fits(
	const struct reliable_conn *c, const struct wire_header *h, uint32_t offset, uint32_t bytes)
{
	uint32_t left = h->length - offset;

	if (c->fragment == 0)
		return false;
	if (h->length == 0)
		return offset == 0 && bytes == 0;
	return offset < h->length && offset % c->fragment == 0 && bytes == (left < c->fragment ? left : c->fragment);
}

static bool reliable_same(const struct wire_header *a, const struct wire_header *b)
{
	return a->type == b->type && a->length == b->length && a->chunk == b->chunk && a->round == b->round &&
	       a->coded == b->coded;
}

/* The first fragment of a message. 0, or -EPROTO: it does not fit what the worker awaits. */
static int reliable_begin(struct reliable_conn *c, struct reliable_open *o, const struct wire_header *h)
{
	const struct sink *sink = c->spec->sinks && h->type == WIRE_RESULT ? &c->spec->sinks[h->chunk] : NULL;

	if (sink && sink->addr && !sink_fits(sink, h))
		return -EPROTO;
	o->header = *h;
	o->fragments = h->length ? (h->length + c->fragment - 1) / c->fragment : 1;
	o->got = 0;
	o->sink = sink ? sink->addr : NULL;
	memset(o->map, 0, c->map_words * sizeof(*o->map));
	return 0;
}

/* Brings the bytes to where they belong, and says of the event where they are. */
static void reliable_place(struct reliable_conn *c, struct reliable_open *o, uint32_t offset, const uint8_t *from,
	uint32_t bytes, struct event *event)
{
	const struct wire_header *h = &o->header;

	if (c->spec->sinks) {
		if (o->sink != (h->type == WIRE_RESULT ? c->spec->sinks[h->chunk].addr : NULL))
			o->sink = NULL; /* its owner wants it elsewhere, or no more */
		if (o->sink && bytes)
			memcpy((uint8_t *)o->sink + offset, from, bytes);
		event->payload = o->sink;
		return;
	}
	event->payload = bytes ? from : NULL;
	if (!o->buffer || o->fragments == 1)
		return;
	memcpy(o->buffer + offset, from, bytes);
	event->payload = o->buffer;
}

/* It is complete: messages up to the oldest that is not are over. */
static void reliable_complete(struct reliable *r, struct reliable_conn *c, const struct reliable_open *o)
{
	if (o->header.type != WIRE_CREDIT)
		c->answers[o->header.chunk] = o->header.seq;
	for (;;) {
		const struct reliable_open *oldest = &c->in[c->in_base & (c->slots - 1)];

		if (oldest->header.seq != c->in_base || oldest->got < oldest->fragments)
			break;
		c->in_base++;
	}
	if (r->config.is_box)
		c->fence = c->fence_to = c->in_base;
	else if (c->fence != c->in_base && list_alone(&c->fenced))
		list_append(&r->fenced, &c->fenced);
}

/* The peer says that this message of ours about the chunk came. */
static void reliable_answered(struct reliable_conn *c, uint32_t chunk, uint32_t answers)
{
	struct reliable_message *m = answers ? reliable_find(c, answers) : NULL;

	if (!m || m->chunk != chunk || m->next < m->fragments)
		return;
	c->silences = 0;
	reliable_forget(c, m);
	reliable_done(c, m);
	if (c->seq_base != c->seq_next)
		reliable_watch(c, c->r->now_ns);
	reliable_wake(c);
}

static enum reliable_took reliable_take_fragment(struct reliable *r, struct reliable_conn *c, struct reliable_open *o,
	const struct wire_datagram *d, const uint8_t *from, uint32_t bytes, struct event *event)
{
	reliable_set_bit(o->map, d->offset / c->fragment);
	o->got++;
	memset(event, 0, sizeof(*event));
	event->conn = c->conn;
	event->header = o->header;
	reliable_place(c, o, d->offset, from, bytes, event);
	event_whole(event);
	event->last = o->got == o->fragments;
	if (event->last)
		reliable_complete(r, c, o);
	if (c->spec->parts && r->config.is_box) {
		event->offset = d->offset;
		event->bytes = bytes;
		return RELIABLE_MESSAGE;
	}
	if (!event->last || (!r->config.is_box && o->header.type == WIRE_CREDIT))
		return RELIABLE_NOTHING;
	return RELIABLE_MESSAGE;
}

/* A peer that seals what no peer sends is broken, and would send it for ever; without seals it may be anybody. */
static enum reliable_took reliable_refuse(struct reliable *r, struct reliable_conn *c, enum reliable_drop why)
{
	reliable_drop(r, why);
	if (seal_kind(c->seal_here) == SEAL_GMAC && c->fragment > 0)
		reliable_end(r, c, -EPROTO, false);
	return RELIABLE_NOTHING;
}

static enum reliable_took reliable_take_data(struct reliable *r, struct reliable_conn *c, const struct wire_datagram *d,
	const uint8_t *bytes, uint32_t length, struct event *event)
{
	uint32_t size = length - WIRE_DATA_BYTES;
	struct reliable_open *o;
	struct wire_header h;

	/* Of those, all are acknowledged, or have gone again under other numbers: somebody has kept it. */
	if (d->number + 2 * RELIABLE_FLIGHT_MAX < c->largest) {
		reliable_drop(r, RELIABLE_REPEAT);
		return RELIABLE_NOTHING;
	}
	if (wire_decode(bytes + WIRE_DATAGRAM_BYTES, &h) < 0 || !reliable_header_fits(r, c, &h))
		return reliable_refuse(r, c, RELIABLE_HEADER);
	if (!reliable_place_fits(c, &h, d->offset, size))
		return reliable_refuse(r, c, RELIABLE_PLACE);
	if (h.seq - c->fence >= c->slots && !wire_after(c->in_base, h.seq)) {
		reliable_drop(r, RELIABLE_WINDOW);
		return RELIABLE_NOTHING;
	}
	o = &c->in[h.seq & (c->slots - 1)];
	if (wire_after(c->in_base, h.seq) ||
		(o->header.seq == h.seq && reliable_bit(o->map, d->offset / c->fragment))) {
		reliable_acknowledge(r, c, d->number, length, true);
		reliable_drop(r, RELIABLE_REPEAT);
		return RELIABLE_NOTHING;
	}
	if (o->header.seq == h.seq && !reliable_same(&o->header, &h))
		return reliable_refuse(r, c, RELIABLE_HEADER);
	if (o->header.seq != h.seq && reliable_begin(c, o, &h) < 0) {
		reliable_drop(r, RELIABLE_HEADER);
		reliable_end(r, c, -EPROTO, false); /* the two do not agree on the job: transport.h, sink */
		return RELIABLE_NOTHING;
	}
	if (h.type != WIRE_CREDIT)
		reliable_answered(c, h.chunk, d->answers);
	reliable_acknowledge(r, c, d->number, length, false);
	reliable_count_active(r, c);
	return reliable_take_fragment(r, c, o, d, bytes + WIRE_DATA_BYTES, size, event);
}

/* ---- the rest ---- */

/* Nothing of it is believed before its owner says that the peer receives where it came from. */
static enum reliable_took reliable_take_probe(struct reliable_conn *c, const uint8_t *bytes, uint32_t length)
{
	wire_decode_probe(bytes + WIRE_DATAGRAM_BYTES, &c->hello);
	c->hello_bytes = length < c->datagram_max ? length : c->datagram_max;
	return RELIABLE_HELLO;
}

uint64_t reliable_way(const struct reliable_conn *c)
{
	return c->hello.way;
}

void reliable_greet(struct reliable *r, struct reliable_conn *c, uint64_t way)
{
	const struct wire_probe *p = &c->hello;

	assert(c->r == r && r->config.is_box);
	(void)r;
	c->grant = p->grant;
	if (p->fragment && c->fragment == 0 && p->fragment >= RELIABLE_FRAGMENT_MIN &&
		p->fragment % TRANSPORT_PART_ALIGN == 0 && p->fragment <= reliable_fragment_for(c->datagram_max))
		c->fragment = p->fragment;
	c->alone |= p->fragment && p->alone;
	if (c->probe_count < RELIABLE_PROBES_MAX && (!p->fragment || p->fragment == c->fragment))
		c->probes[c->probe_count++] = (struct reliable_probe_item){
			.token = p->token,
			.way = way,
			.bytes = c->hello_bytes,
			.fragment = p->fragment,
			.alone = p->alone,
		};
	reliable_wake(c);
}

/* The box wants to see that this end receives where it sends from: at once, a worker with nothing to ask may be quiet.
 */
static void reliable_show_way(struct reliable *r, struct reliable_conn *c, uint64_t way, uint32_t length)
{
	if (way == 0 || way == c->way)
		return;
	c->way = way;
	reliable_probe(r, c, length, 0, c->alone);
}

static enum reliable_took reliable_take_probed(
	struct reliable *r, struct reliable_conn *c, const uint8_t *bytes, uint32_t length)
{
	struct wire_probe p;

	wire_decode_probe(bytes + WIRE_DATAGRAM_BYTES, &p);
	c->grant = p.grant;
	reliable_show_way(r, c, p.way, length);
	if (r->now_ns > p.token)
		reliable_measure(c, r->now_ns - p.token);
	if (!p.fragment) {
		c->probed = length > c->probed ? length : c->probed;
		return RELIABLE_NOTHING;
	}
	if (p.fragment % TRANSPORT_PART_ALIGN == 0 && p.fragment >= RELIABLE_FRAGMENT_MIN &&
		p.fragment <= reliable_fragment_for(c->datagram_max) && c->fragment == 0) {
		c->fragment = p.fragment;
		c->alone = p.alone;
		c->decided = length;
		reliable_wake(c);
	}
	return RELIABLE_NOTHING;
}

static struct reliable_conn *reliable_named(const struct reliable *r, uint32_t name)
{
	struct reliable_conn *c = r->names[name % RELIABLE_NAMES];

	while (c && c->here != name)
		c = c->next_named;
	return c && !c->closed ? c : NULL;
}

/* Is this datagram of a connection here, whole, and its peer's? */
static struct reliable_conn *reliable_check(
	struct reliable *r, const uint8_t *bytes, size_t length, struct wire_datagram *d)
{
	struct reliable_conn *c;
	int rc = wire_decode_datagram(bytes, length, d);

	if (rc < 0) {
		reliable_drop(r, rc == -EMSGSIZE ? RELIABLE_RUNT : RELIABLE_FOREIGN);
		return NULL;
	}
	c = reliable_named(r, d->conn);
	if (!c) {
		reliable_drop(r, RELIABLE_STRANGER);
		return NULL;
	}
	if (!seal_check(c->seal_here, d->number, bytes, length)) {
		reliable_drop(r, RELIABLE_FORGED);
		return NULL;
	}
	stats_add(&r->counters.came, 1);
	stats_add(&r->counters.came_bytes, length);
	c->heard_ns = r->now_ns;
	return c;
}

enum reliable_took reliable_input(struct reliable *r, uint64_t now_ns, const uint8_t *bytes, size_t length,
	struct event *event, struct conn **conn)
{
	struct wire_datagram d;
	struct reliable_conn *c;
	struct wire_ack ack;

	r->now_ns = now_ns;
	reliable_lift_fences(r);
	c = reliable_check(r, bytes, length, &d);
	if (!c)
		return RELIABLE_NOTHING;
	*conn = c->conn;
	if (d.kind != WIRE_DATA) {
		/* Older ones say nothing new; somebody may have kept them. */
		if (d.number <= c->largest_other) {
			reliable_drop(r, RELIABLE_REPEAT);
			return RELIABLE_NOTHING;
		}
		c->largest_other = d.number;
	}
	switch (d.kind) {
	case WIRE_DATA:
		return reliable_take_data(r, c, &d, bytes, (uint32_t)length, event);
	case WIRE_ACK:
		wire_decode_ack(bytes + WIRE_DATAGRAM_BYTES, &ack);
		reliable_acked(c, &ack, now_ns);
		return RELIABLE_NOTHING;
	case WIRE_PROBE:
		if (r->config.is_box)
			return reliable_take_probe(c, bytes, (uint32_t)length);
		break;
	case WIRE_PROBED:
		if (!r->config.is_box)
			return reliable_take_probed(r, c, bytes, (uint32_t)length);
		break;
	case WIRE_END:
		reliable_end(r, c, 0, false);
		return RELIABLE_NOTHING;
	}
	reliable_drop(r, RELIABLE_FOREIGN);
	return RELIABLE_NOTHING;
}
