/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks a message against what its connection was admitted for. Nothing that a header claims is
 * believed: job, rank, generation and epoch are the link's, or the connection ends.
 */
#include "phub/receive.h"

#include "phub/base/stats.h"
#include "phub/chunk.h"
#include "phub/coding.h"
#include "phub/core.h"
#include "phub/link.h"
#include "phub/mirror.h"
#include "phub/reply.h"
#include "phub/sealing.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void receive_touch(struct core *core, struct link *link)
{
	if (link->touched)
		return;
	link->touched = true;
	link->next_touched = core->touched;
	core->touched = link;
}

/* Ends a connection and tells control why (NULL: the error, and the chunk, say it); control decides what that means for
 * the job. */
static void receive_end(struct core *core, struct link *link, int error, bool broken, const char *why, uint32_t chunk)
{
	struct mail mail = {
		.kind = MAIL_LINK_CLOSED,
		.core = core->config.index,
		.shard = link->shard,
		.job = link->shard->spec->id,
		.generation = link->shard->spec->generation,
		.rank = link->rank,
		.chunk = chunk,
		.value = error,
		.detail = link->serial,
		.broken = broken,
	};

	if (why)
		snprintf(mail.text, sizeof(mail.text), "%.60s (%.60s)", why, link->conn->peer);
	link_close(link);
	if (mailbox_send(core->config.control, &mail) < 0) {
		link->end_untold = true;
		link->end_broken = broken;
		link->end_error = error;
		link->end_chunk = chunk;
		memcpy(link->end_text, mail.text, sizeof(link->end_text));
		core->untold++;
	}
}

/* Has it the length that it must have, and a number of gradients that there can be? */
static bool receive_is_whole(
	const struct chunk *chunk, const struct link *link, const struct wire_header *h, uint32_t trailer)
{
	const struct spec *spec = link->shard->spec;
	enum dtype dtype = chunk_payload_dtype(chunk, spec, link->rank, h->type);

	if (h->type == WIRE_PULL)
		return h->length == 0 && h->count == 0;
	if (h->coded ? !coding_takes(chunk, link, h, trailer)
		     : h->length != chunk->elements * (uint32_t)dtype_size(dtype) + trailer)
		return false;
	return h->count == 1 || (h->type == WIRE_PUSH && h->count > 1 && spec_is_box(spec, link->rank));
}

/* Is this what a worker of this link may send? 0, -ESTALE (old: drop it), -ENOENT (no such chunk), or -EPROTO. */
static int receive_check(const struct link *link, const struct wire_header *h)
{
	const struct shard *shard = link->shard;
	const struct spec *spec = shard->spec;
	uint32_t trailer = link->sealed ? WIRE_TRAILER_BYTES : 0;

	if (h->type != WIRE_PUSH && h->type != WIRE_INIT && h->type != WIRE_PULL)
		return -EPROTO;
	if (h->job != spec->id || h->rank != link->name)
		return -EPROTO;
	if (h->chunk >= shard->chunk_count)
		return -ENOENT;
	if (h->generation != spec->generation || (h->epoch != shard->epoch && shard->plant != SHARD_PLANT_EPOCH))
		return wire_after(h->generation, spec->generation) || wire_after(h->epoch, shard->epoch) ? -EPROTO
													 : -ESTALE;
	if (!receive_is_whole(&shard->chunks[h->chunk], link, h, trailer))
		return spec->mirror && mirror_takes(&shard->chunks[h->chunk], h, trailer) ? 0 : -EPROTO;
	return 0;
}

const char *shard_drop_name(enum shard_drop why)
{
	static const char *const names[DROP_COUNT] = {
		[DROP_DUPLICATE] = "duplicate",
		[DROP_EPOCH] = "epoch",
		[DROP_STALE] = "stale",
		[DROP_FAILED] = "failed",
		[DROP_LATE] = "late",
		[DROP_BUSY] = "busy",
		[DROP_FORGED] = "forged",
	};

	return names[why];
}

/* Is it a whole message, or a part such as this job takes? It is our own transport that says what it has. */
static bool receive_fits(const struct link *link, const struct event *e)
{
	uint32_t length = e->header.length;

	if (e->bytes == length)
		return e->offset == 0 && e->last;
	return spec_parts(link->shard->spec) && !e->slot && e->bytes > 0 && e->offset < length &&
	       e->bytes <= length - e->offset && e->offset % TRANSPORT_PART_ALIGN == 0 &&
	       (e->bytes % TRANSPORT_PART_ALIGN == 0 || e->bytes == length - e->offset);
}

/*
 * Opens what is encrypted. 1: it is what its worker sealed. Else 0, where anything may be damaged, doubled or late on
 * its way, or -EBADMSG to end the connection.
 */
static int receive_open(struct link *link, struct event *e)
{
	if (sealing_open(link, e) == 0)
		return 1;
	stats_add(&link->shard->counters.dropped[DROP_FORGED], 1);
	link->credit_due = link->queue->lossy;
	return link->queue->lossy ? 0 : -EBADMSG;
}

static int receive_add(struct link *link, const struct event *e, uint64_t now_ns)
{
	struct shard *shard = link->shard;
	const struct contribution c = {
		.link = link,
		.header = &e->header,
		.payload = e->payload,
		.offset = e->offset,
		.bytes = e->bytes,
		.last = e->last,
		.slot = e->slot,
		.now_ns = now_ns,
	};

	stats_add(&shard->counters.messages, e->last);
	stats_add(&link->pushes, e->last);
	stats_add(&shard->counters.bytes, e->bytes);
	return chunk_add(&shard->chunks[e->header.chunk], &c);
}

/*
 * Returns 1 when the payload's slot is kept, 0 when it may go, -EPROTO, -ENOENT, -EBADMSG or -EILSEQ to end the
 * connection. A message in parts is counted once, with its last one.
 */
static int receive_message(struct link *link, struct event *e, uint64_t now_ns)
{
	struct shard *shard = link->shard;
	int rc = receive_check(link, &e->header);

	fair_charge(shard, e->bytes, e->last);
	if (rc < 0 && rc != -ESTALE)
		return rc;
	if (!receive_fits(link, e) || (e->last && link_count(link, e->header.seq) < 0))
		return -EPROTO;
	if (rc == 0)
		shard->chunks[e->header.chunk].arrivals[link->rank].serial = (uint8_t)link->serial;
	if (rc == -ESTALE || shard->failed) {
		stats_add(&shard->counters.dropped[rc == -ESTALE ? DROP_EPOCH : DROP_FAILED], e->last);
		link->credit_due |= rc == -ESTALE; /* it may not have heard of the new one: it connected later */
		if (rc == 0 && e->last && shard->stage == SHARD_DRAINING)
			chunk_answer_again(&shard->chunks[e->header.chunk], link, e->header.round);
		return 0;
	}
	if (link->sealed && e->bytes > 0) {
		rc = receive_open(link, e);
		if (rc <= 0)
			return rc;
	}
	if (shard->chunks[e->header.chunk].sparse) { /* no other is coded: receive_is_whole() */
		rc = coding_receive(&shard->chunks[e->header.chunk], link, e);
		if (rc < 0)
			return rc;
	}
	return receive_add(link, e, now_ns);
}

/*
 * The connection ends for what came over it. What was changed on the way is not its worker's fault: it may connect
 * again, where it can.
 */
static void receive_spoilt(struct core *core, struct link *link, int rc, uint32_t local)
{
	/* The job's number of the chunk, where the message named one. */
	uint32_t chunk = rc == -EILSEQ ? link->shard->chunks[local].index : CHUNK_NONE;

	if (rc != -EBADMSG)
		receive_end(core, link, rc, false, NULL, chunk);
	else
		receive_end(core, link, rc, link->conn->transport->ops->reconnects,
			"a push was forged or changed on its way, or said again", chunk);
}

/* Returns false when the event ended its connection. */
static bool receive_event(struct core *core, struct queue *queue, struct event *e, uint64_t now_ns)
{
	struct link *link = e->conn->user;
	int rc = 0;

	switch (e->type) {
	case EVENT_MESSAGE:
		rc = receive_message(link, e, now_ns);
		if (rc <= 0 && e->slot)
			queue->ops->release(queue, e->slot);
		if (rc < 0)
			stats_add(&core->counters.protocol_errors, 1);
		break;
	case EVENT_SENT:
		chunk_sent(e->cookie, link, now_ns);
		break;
	case EVENT_WRITABLE:
		reply_writable(link);
		break;
	case EVENT_CLOSED:
		receive_end(core, link, e->error, e->broken, e->why, CHUNK_NONE);
		return false;
	}
	if (rc < 0) {
		receive_spoilt(core, link, rc, e->header.chunk);
		return false;
	}
	receive_touch(core, link);
	return true;
}

void receive_batch(struct core *core, struct queue *queue, struct event *events, unsigned count, uint64_t now_ns)
{
	for (unsigned i = 0; i < count; i++) {
		struct conn *conn = events[i].conn;

		if (!conn || receive_event(core, queue, &events[i], now_ns))
			continue;
		for (unsigned later = i + 1; later < count; later++)
			if (events[later].conn == conn)
				events[later].conn = NULL; /* it is gone, and its slots with it */
	}

	while (core->touched) {
		struct link *link = core->touched;

		core->touched = link->next_touched;
		link->touched = false;
		reply_credit(link);
	}
}
