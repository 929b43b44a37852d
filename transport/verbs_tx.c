/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns messages into work requests: which rail, which pieces, where to, and whether to ask for the completion. Owner
 * of the queue; the device hears of them at the next flush().
 */
#include "transport/verbs_internal.h"

#include <arpa/inet.h>
#include <errno.h>

#include "phub/base/stats.h"
#include "transport/le.h"

uint32_t verbs_rail_index(const struct verbs_conn *c, uint32_t chunk)
{
	return c->rail_of && chunk < c->spec->chunk_count ? c->rail_of[chunk] : 0;
}

static bool verbs_rail_full(const struct verbs_rail *r)
{
	return r->tail - r->reclaimed >= VERBS_SEND_SLOTS || r->tail - r->reported >= VERBS_SEND_SLOTS;
}

static bool verbs_region_holds(const struct verbs_region *r, uintptr_t from, uint32_t bytes)
{
	return from >= r->from && from < r->to && bytes <= r->to - from;
}

/* The worker's memory that holds all of this, or NULL. They are few; apart, the list is not for this thread. */
static const struct verbs_region *verbs_region_of(const struct verbs_conn *c, const void *addr, uint32_t bytes)
{
	const struct verbs_region *r = c->verbs->apart ? NULL : c->verbs->regions;

	for (uint32_t i = 0; i < c->memory_count; i++)
		if (verbs_region_holds(c->memory[i], (uintptr_t)addr, bytes))
			return c->memory[i];
	while (r && !verbs_region_holds(r, (uintptr_t)addr, bytes))
		r = r->next;
	return r;
}

/* Prepares message `r->tail`: one work request, its pieces, whether it is to tell of its end. */
static struct ibv_send_wr *verbs_prepare(struct verbs_rail *r, unsigned which, enum ibv_wr_opcode opcode, uint32_t imm)
{
	uint32_t at = 2 * (r->tail % VERBS_SEND_SLOTS) + which;
	struct ibv_send_wr *wr = &r->wrs[at];

	*wr = (struct ibv_send_wr){
		.wr_id = verbs_wr_id(&r->slots[r->tail % VERBS_SEND_SLOTS], VERBS_SEND),
		.sg_list = &r->sges[at],
		.opcode = opcode,
		.imm_data = htonl(imm),
	};
	return wr;
}

/* Completes the message: counts it, and asks for its completion when it is time. */
static void verbs_sent(
	struct verbs_queue *q, struct verbs_rail *r, struct ibv_send_wr *last, uint32_t bytes, void *cookie)
{
	struct verbs_conn *c = r->conn;
	struct verbs_slot *slot = &r->slots[r->tail % VERBS_SEND_SLOTS];

	slot->cookie = cookie;
	slot->index = r->tail;
	slot->bytes = bytes;
	c->unsent += bytes;
	r->tail++;
	r->unsignalled++;
	r->unsignalled_bytes += bytes;
	/* With one rail, whoever meets the bound has a completion on its way that frees half of it. */
	if (r->unsignalled >= VERBS_SIGNAL_EVERY || r->unsignalled_bytes >= c->unsent_max / 4) {
		last->send_flags |= IBV_SEND_SIGNALED;
		verbs_signalled(q, r);
	}
	stats_add(&q->queue.counters.messages, 1);
	if (list_alone(&c->ring))
		list_append(&q->dirty, &c->ring);
}

static uint8_t *verbs_trailer(const struct verbs_rail *r)
{
	return r->trailers + (size_t)(r->tail % VERBS_SEND_SLOTS) * VERBS_TRAILER_BYTES;
}

static void verbs_piece(struct ibv_send_wr *wr, const void *addr, uint32_t bytes, uint32_t lkey)
{
	wr->sg_list[wr->num_sge++] = (struct ibv_sge){.addr = (uintptr_t)addr, .length = bytes, .lkey = lkey};
}

static int verbs_send_push(
	struct verbs_queue *q, struct verbs_conn *c, const struct wire_header *h, const void *payload, void *cookie)
{
	struct verbs_rail *r = &c->rails[verbs_rail_index(c, h->chunk)];
	const struct sink *sink = &c->spec->sinks[h->chunk];
	const struct verbs_region *from = NULL, *to = NULL;
	struct verbs_asked *asked = &c->asked[h->chunk];
	bool small = h->length + VERBS_TRAILER_BYTES <= r->inline_max;
	uint8_t *trailer = verbs_trailer(r);
	struct ibv_send_wr *wr;

	if (h->length)
		from = verbs_region_of(c, payload, h->length);
	small = small && !(from && from->foreign); /* what goes inline is copied by the processor */
	if (sink->addr)
		to = verbs_region_of(c, sink->addr, sink->bytes);
	if ((h->length && !small && !from) || (sink->addr && !to))
		return -EINVAL;
	wire_encode(h, trailer);
	le_put64(trailer + 64, (uintptr_t)sink->addr);
	le_put32(trailer + 72, to ? to->mr[r->device_index]->rkey : 0);
	le_put32(trailer + 76, to ? sink->bytes : 0);
	le_put32(trailer + 80, c->order_out++);
	le_put32(trailer + 84, 0);
	wr = verbs_prepare(r, 0, c->fixed_base ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND_WITH_IMM, h->chunk);
	if (c->fixed_base) {
		wr->wr.rdma.remote_addr = c->fixed_base + c->fixed_at[h->chunk];
		wr->wr.rdma.rkey = r->fixed_rkey;
	}
	verbs_prepare(r, 1, 0, 0)->opcode = 0;
	if (h->length)
		verbs_piece(wr, payload, h->length, from ? from->mr[r->device_index]->lkey : 0);
	verbs_piece(wr, trailer, VERBS_TRAILER_BYTES, r->small_mr->lkey);
	if (small)
		wr->send_flags |= IBV_SEND_INLINE;
	*asked = (struct verbs_asked){.round = h->round,
		.sink = sink->addr,
		.bytes = to ? sink->bytes : 0,
		.hyper = h->hyper,
		.priority = h->priority,
		.sent = r->tail + 1,
		.open = true};
	c->last = *h;
	verbs_sent(q, r, wr, VERBS_TRAILER_BYTES + h->length, cookie);
	return 0;
}

/* Will the worker come to this header by itself? */
static bool verbs_derives(const struct verbs_conn *c, const struct verbs_asked *asked, const struct wire_header *h)
{
	uint32_t credit_bits = 32 - c->chunk_bits;

	return h->length == c->spec->spans[h->chunk].bytes && (asked->bytes == 0 || asked->bytes == h->length) &&
	       h->round == asked->round && h->hyper == asked->hyper && h->priority == asked->priority &&
	       h->count == 1 && h->seq == 0 && h->rank == c->last.rank && h->job == c->last.job &&
	       h->generation == c->last.generation && h->epoch == c->last.epoch && credit_bits > 1 &&
	       h->credit - c->credit < UINT32_C(1) << (credit_bits - 1);
}

/* A header in full, by a message of its own. */
static struct ibv_send_wr *verbs_spell(
	struct verbs_conn *c, struct verbs_rail *r, unsigned which, const struct wire_header *h)
{
	uint8_t *trailer = verbs_trailer(r);
	struct ibv_send_wr *wr = verbs_prepare(r, which, IBV_WR_SEND, 0);

	wire_encode(h, trailer);
	le_put32(trailer + 64, c->order_out++);
	le_put32(trailer + 68, 0);
	verbs_piece(wr, trailer, VERBS_SPELLED_BYTES, r->small_mr->lkey);
	if (VERBS_SPELLED_BYTES <= r->inline_max)
		wr->send_flags |= IBV_SEND_INLINE;
	return wr;
}

static void verbs_write_to(struct verbs_conn *c, struct verbs_rail *r, struct ibv_send_wr *wr,
	const struct verbs_asked *asked, const void *payload, uint32_t bytes)
{
	if (asked->bytes == 0)
		return;
	verbs_piece(wr, payload, bytes, c->result->mr[r->device_index]->lkey);
	wr->wr.rdma.remote_addr = asked->addr;
	wr->wr.rdma.rkey = asked->rkey;
	if (bytes <= r->inline_max)
		wr->send_flags |= IBV_SEND_INLINE;
}

static int verbs_send_result(
	struct verbs_queue *q, struct verbs_conn *c, const struct wire_header *h, const void *payload, void *cookie)
{
	struct verbs_rail *r = &c->rails[verbs_rail_index(c, h->chunk)];
	struct verbs_asked *asked = &c->asked[h->chunk];
	uintptr_t from = (uintptr_t)payload;
	struct ibv_send_wr *wr;

	if (!asked->open || from < c->result->from || from > c->result->to || h->length > c->result->to - from)
		return -EINVAL;
	if (verbs_derives(c, asked, h)) {
		wr = verbs_prepare(r, 0, IBV_WR_RDMA_WRITE_WITH_IMM,
			(c->chunk_bits < 32 ? h->credit << c->chunk_bits : 0) | h->chunk);
		verbs_write_to(c, r, wr, asked, payload, asked->bytes);
		verbs_prepare(r, 1, 0, 0)->opcode = 0;
		c->order_out++;
	} else if (h->length > 0 && (asked->bytes == h->length || (h->coded && h->length < asked->bytes))) {
		wr = verbs_prepare(r, 0, IBV_WR_RDMA_WRITE, 0);
		verbs_write_to(c, r, wr, asked, payload, h->length);
		wr = verbs_spell(c, r, 1, h);
	} else {
		/* Nowhere to write it to: the worker judges. */
		wr = verbs_spell(c, r, 0, h);
		verbs_prepare(r, 1, 0, 0)->opcode = 0;
	}
	asked->open = false;
	asked->sent = r->tail + 1;
	c->credit = h->credit;
	verbs_sent(q, r, wr, VERBS_SPELLED_BYTES + h->length, cookie);
	return 0;
}

static int verbs_send_grant(struct verbs_queue *q, struct verbs_conn *c, const struct wire_header *h, void *cookie)
{
	struct verbs_rail *r = &c->rails[0];
	struct ibv_send_wr *wr = verbs_spell(c, r, 0, h);

	verbs_prepare(r, 1, 0, 0)->opcode = 0;
	c->credit = h->credit;
	verbs_sent(q, r, wr, VERBS_SPELLED_BYTES, cookie);
	return 0;
}

/*
 * No room now. When no completion is on its way that makes some, one is asked for: each rail may have a quarter of the
 * bound out that none was asked for, or the message may need nearly all of it.
 */
static int verbs_no_room(struct verbs_queue *q, struct verbs_conn *c, uint64_t bytes)
{
	uint64_t silent = 0;

	for (uint32_t i = 0; i < c->rail_count; i++)
		silent += c->rails[i].unsignalled_bytes;
	c->wanted = true;
	c->pressed = silent > c->unsent_max / 2 || (silent && silent + bytes > c->unsent_max);
	if (c->pressed && list_alone(&c->ring))
		list_append(&q->dirty, &c->ring);
	return -EAGAIN;
}

int verbs_send(
	struct queue *head, struct conn *conn, const struct wire_header *header, const void *payload, void *cookie)
{
	struct verbs_queue *q = (struct verbs_queue *)head;
	struct verbs_conn *c = (struct verbs_conn *)conn;
	uint64_t bytes = VERBS_TRAILER_BYTES + (uint64_t)header->length;

	if (c->state != VERBS_OPEN)
		return -EPIPE;
	if (header->type != WIRE_CREDIT && header->chunk >= c->spec->chunk_count)
		return -EINVAL;
	/* A message larger than the bound goes when nothing else waits. */
	if (verbs_rail_full(&c->rails[verbs_rail_index(c, header->chunk)]) ||
		(c->unsent && c->unsent + bytes > c->unsent_max))
		return verbs_no_room(q, c, bytes);
	if (!c->is_box)
		return verbs_send_push(q, c, header, payload, cookie);
	return header->type == WIRE_CREDIT ? verbs_send_grant(q, c, header, cookie)
					   : verbs_send_result(q, c, header, payload, cookie);
}

/*
 * Is a nudge under way, and the device, or the peer's, still at it after so long? A peer that is there answers in
 * seconds at the most, one that is not is known by an error. Our own process may have been stopped meanwhile, with the
 * completion there: it is looked for again.
 */
static void verbs_rail_judge(struct verbs_queue *q, struct verbs_rail *r)
{
	if (q->now_ns - r->nudged_ns < VERBS_STUCK_NS)
		return;
	verbs_collect(q);
	if (r->nudging)
		verbs_end(q, r->conn, -EIO, "the device does not answer");
}

/*
 * Asks for the completion of what went before, and whether the peer is there at all, by a message of no bytes: a write
 * costs the worker nothing; nobody writes to the box, so there it takes a slot for a moment.
 */
void verbs_rail_nudge(struct verbs_queue *q, struct verbs_rail *r)
{
	struct ibv_send_wr wr = {.wr_id = verbs_wr_id(r, VERBS_NUDGE),
		.opcode = r->conn->is_box ? IBV_WR_RDMA_WRITE : IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	int rc;

	if (r->nudging) {
		verbs_rail_judge(q, r);
		return;
	}
	r->nudging = true;
	r->nudged_ns = q->now_ns;
	r->nudged = r->rung;
	r->unsignalled = 0;
	r->unsignalled_bytes = 0;
	stats_add(&q->queue.counters.nudges, 1);
	stats_add(&q->queue.counters.posts, 1);
	stats_add(&q->queue.counters.signalled, 1);
	stats_add(&q->queue.counters.doorbells, 1);
	rc = ibv_post_send(r->qp, &wr, &bad);
	if (rc != 0)
		verbs_end(q, r->conn, rc < 0 ? rc : -rc, "the device takes no more work");
}
