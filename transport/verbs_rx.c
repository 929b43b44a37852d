/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What came: checks each message against the queue pair that it came by, derives the header of a result that has none,
 * and brings messages of several rails into the order in which they were sent. Owner of the queue.
 */
#include "transport/verbs_internal.h"

#include <errno.h>

#include "transport/le.h"

/* The peer broke the protocol: what it still says is not listened to. */
static int verbs_broken(struct verbs_queue *q, struct verbs_conn *c, const char *why)
{
	c->deaf = true;
	verbs_end(q, c, -EPROTO, why);
	return -EPROTO;
}

/* Where a message lies: in its slot, or, written, in the worker's buffer for the chunk; NULL: in no such. */
static const uint8_t *verbs_payload(const struct verbs_conn *c, const struct verbs_recv *v)
{
	if (!v->written || !c->fixed_at)
		return (const uint8_t *)(uintptr_t)v->sge.addr;
	if (v->imm >= c->spec->chunk_count || v->bytes > c->spec->spans[v->imm].bytes + VERBS_TRAILER_BYTES)
		return NULL;
	return (const uint8_t *)c->fixed.base + c->fixed_at[v->imm];
}

/* A worker's message: header, landing, order. 0, or -EPROTO. */
static int verbs_parse_push(
	struct verbs_queue *q, struct verbs_conn *c, const struct verbs_recv *v, struct event *event)
{
	const uint8_t *payload = verbs_payload(c, v), *trailer;
	struct wire_header *h = &event->header;

	if (!payload || v->written != (c->fixed_at != NULL) || v->bytes < VERBS_TRAILER_BYTES)
		return verbs_broken(q, c, "a message without a header");
	trailer = payload + v->bytes - VERBS_TRAILER_BYTES;
	if (wire_decode(trailer, h) < 0 || h->length != v->bytes - VERBS_TRAILER_BYTES || h->type == WIRE_RESULT ||
		h->type == WIRE_CREDIT || h->length > c->spec->payload_max)
		return verbs_broken(q, c, "a malformed header");
	if (h->chunk >= c->spec->chunk_count || h->chunk != v->imm || le_get32(trailer + 84) != 0 ||
		&c->rails[verbs_rail_index(c, h->chunk)] != v->rail)
		return verbs_broken(q, c, "an immediate of another chunk or queue pair");
	event->payload = h->length ? payload : NULL;
	return 0;
}

/* What the result of this message will be derived from. */
static void verbs_note_asked(struct verbs_conn *c, const struct verbs_recv *v, const struct wire_header *h)
{
	const uint8_t *trailer = verbs_payload(c, v) + v->bytes - VERBS_TRAILER_BYTES;
	struct verbs_asked *asked = &c->asked[h->chunk];

	asked->round = h->round;
	asked->hyper = h->hyper;
	asked->priority = h->priority;
	asked->addr = le_get64(trailer + 64);
	asked->rkey = le_get32(trailer + 72);
	asked->bytes = le_get32(trailer + 76);
	asked->open = true;
	c->last.job = h->job;
	c->last.generation = h->generation;
	c->last.epoch = h->epoch;
	c->last.rank = h->rank;
}

/* The credit whose low bits these are, nearest to what was heard last. */
static uint32_t verbs_credit(const struct verbs_conn *c, uint32_t low)
{
	uint32_t bits = 32 - c->chunk_bits;
	int32_t apart;

	if (bits == 0)
		return c->credit;
	apart = (int32_t)((low - c->credit) << c->chunk_bits) >> c->chunk_bits;
	return c->credit + (uint32_t)apart;
}

static void *verbs_landed(const struct verbs_conn *c, uint32_t chunk)
{
	const struct verbs_asked *asked = &c->asked[chunk];

	return asked->bytes && c->spec->sinks[chunk].addr == asked->sink ? asked->sink : NULL;
}

/* A result whose header the worker knows. */
static int verbs_parse_written(
	struct verbs_queue *q, struct verbs_conn *c, const struct verbs_recv *v, struct event *event)
{
	uint32_t chunk = c->chunk_bits < 32 ? v->imm & ((UINT32_C(1) << c->chunk_bits) - 1) : v->imm;
	struct verbs_asked *asked;

	if (chunk >= c->spec->chunk_count || !c->asked[chunk].open)
		return verbs_broken(q, c, "a result that nobody asked for");
	asked = &c->asked[chunk];
	if (v->bytes != asked->bytes)
		return verbs_broken(q, c, "a result of another length than its chunk");
	event->header = (struct wire_header){
		.type = WIRE_RESULT,
		.length = c->spec->spans[chunk].bytes,
		.job = c->last.job,
		.generation = c->last.generation,
		.epoch = c->last.epoch,
		.chunk = chunk,
		.rank = c->last.rank,
		.round = asked->round,
		.hyper = asked->hyper,
		.count = 1,
		.credit = verbs_credit(c, c->chunk_bits < 32 ? v->imm >> c->chunk_bits : 0),
		.priority = asked->priority,
	};
	return 0;
}

static int verbs_parse_spelled(
	struct verbs_queue *q, struct verbs_conn *c, const struct verbs_recv *v, struct event *event)
{
	struct wire_header *h = &event->header;

	if (v->bytes != VERBS_SPELLED_BYTES || wire_decode((const uint8_t *)(uintptr_t)v->sge.addr, h) < 0 ||
		(h->type != WIRE_RESULT && h->type != WIRE_CREDIT))
		return verbs_broken(q, c, "a malformed header");
	if (h->type == WIRE_CREDIT)
		return 0;
	if (h->chunk >= c->spec->chunk_count || !c->asked[h->chunk].open)
		return verbs_broken(q, c, "a result that nobody asked for");
	if (!sink_fits(&c->spec->sinks[h->chunk], h))
		return verbs_broken(q, c, "a result of another length than its chunk");
	return 0;
}

/* Must it wait for messages that took another rail? */
static bool verbs_is_early(const struct verbs_conn *c, const struct verbs_recv *v)
{
	const uint8_t *at = verbs_payload(c, v);

	if (c->rail_count == 1)
		return false;
	if (c->is_box)
		return at && v->bytes >= VERBS_TRAILER_BYTES &&
		       wire_after(le_get32(at + v->bytes - VERBS_TRAILER_BYTES + 80), c->order_in);
	return !v->written && v->bytes == VERBS_SPELLED_BYTES && wire_after(le_get32(at + 64), c->order_in);
}

/* Everything that the peer had before it sent this is done. */
static void verbs_imply(struct verbs_queue *q, struct verbs_conn *c, uint32_t chunk)
{
	struct verbs_rail *r = &c->rails[verbs_rail_index(c, chunk)];
	uint32_t sent = c->asked[chunk].sent;

	/* 0 before the first; never ahead of what the device was given. */
	if (sent && !wire_after(sent, r->rung))
		verbs_done(q, r, sent);
}

/*
 * Tells of one message, after the completions that it implies. False: there is no room for all of this now. The message
 * is out of the inbox by then, or still its first.
 */
static bool verbs_tell(struct verbs_queue *q, struct verbs_recv *v, struct event *events, unsigned max, unsigned *n)
{
	struct verbs_conn *c = v->rail->conn;
	struct event event = {.conn = &c->conn};
	int rc;

	if (c->deaf) {
		rc = -EPROTO;
	} else if (c->is_box) {
		rc = verbs_parse_push(q, c, v, &event);
	} else {
		rc = v->written ? verbs_parse_written(q, c, v, &event) : verbs_parse_spelled(q, c, v, &event);
	}
	if (rc == 0) {
		if (event.header.type != WIRE_CREDIT)
			verbs_imply(q, c, event.header.chunk);
		if (!verbs_report(c, events, max, n) && *n == max)
			return false;
		if (*n == max)
			return false;
	}
	c->inbox--;
	c->order_in++;
	if (rc < 0) {
		verbs_give_back(q, v);
		return true;
	}
	event_whole(&event);
	if (c->is_box) {
		verbs_note_asked(c, v, &event.header);
		event.slot = v;
	} else {
		c->credit = event.header.credit;
		if (event.header.type == WIRE_RESULT) {
			event.payload = verbs_landed(c, event.header.chunk);
			c->asked[event.header.chunk].open = false;
		}
		verbs_give_back(q, v);
		if (list_alone(&c->ring) && c->state == VERBS_OPEN)
			list_append(&q->dirty, &c->ring); /* for its receives */
	}
	events[(*n)++] = event;
	return true;
}

/*
 * Puts a message aside until those that were sent before it have come. At the box it lies in a slot of the job: the
 * owner, which counts credits, does not know of it yet, and a worker may not have more under way than its window.
 */
static void verbs_keep_early(struct verbs_queue *q, struct verbs_conn *c, struct verbs_recv *v)
{
	v->next = c->early;
	c->early = v;
	c->early_count++;
	if (c->is_box && c->early_count > c->spec->window)
		(void)verbs_broken(q, c, "more messages before their turn than it may send");
}

/* Those put aside whose turn it is go back to the front of the inbox. */
static void verbs_recall_early(struct verbs_queue *q, struct verbs_conn *c)
{
	for (struct verbs_recv **at = &c->early; *at; at = &(*at)->next) {
		struct verbs_recv *v = *at;

		if (verbs_is_early(c, v))
			continue;
		*at = v->next;
		c->early_count--;
		v->next = q->inbox_first;
		if (!q->inbox_first)
			q->inbox_last = v;
		q->inbox_first = v;
		return;
	}
}

unsigned verbs_tell_all(struct verbs_queue *q, struct event *events, unsigned max, unsigned n)
{
	while (q->inbox_first && n < max) {
		struct verbs_recv *v = q->inbox_first,
				  *next = v->next; /* its own is another list's once it is given back */
		struct verbs_conn *c = v->rail->conn;

		if (c->is_box && v->bytes == 0) { /* a nudge */
			q->inbox_first = next;
			c->inbox--;
			verbs_give_back(q, v);
			continue;
		}
		if (!c->deaf && verbs_is_early(c, v)) {
			q->inbox_first = next;
			verbs_keep_early(q, c, v);
			continue;
		}
		if (!verbs_tell(q, v, events, max, &n))
			break;
		q->inbox_first = next;
		if (c->early)
			verbs_recall_early(q, c);
	}
	return n;
}
