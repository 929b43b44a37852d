/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replies: one header per contributor over one shared result buffer. A binary heap per link keeps what its
 * connection has no room for; each chunk is in it at most once, so it never grows beyond the shard's chunks.
 */
#include "phub/reply.h"

#include "phub/base/stats.h"
#include "phub/coding.h"
#include "phub/link.h"
#include "phub/sealing.h"
#include "phub/mirror.h"
#include "phub/stepwise.h"

#include <assert.h>
#include <errno.h>

/* ---- the heap: smallest (priority, chunk) first ---- */

static void reply_heap_push(struct link *link, uint64_t item)
{
	uint32_t at = link->reply_count++;

	assert(link->reply_count <= link->shard->chunk_count);
	while (at > 0 && link->replies[(at - 1) / 2] > item) {
		link->replies[at] = link->replies[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	link->replies[at] = item;
}

static void reply_heap_pop(struct link *link)
{
	uint64_t item = link->replies[--link->reply_count];
	uint32_t at = 0, child;

	for (child = 1; child < link->reply_count; child = 2 * at + 1) {
		if (child + 1 < link->reply_count && link->replies[child + 1] < link->replies[child])
			child++;
		if (link->replies[child] >= item)
			break;
		link->replies[at] = link->replies[child];
		at = child;
	}
	link->replies[at] = item;
}

/* ---- sending ---- */

static void reply_header(const struct link *link, struct wire_header *h)
{
	const struct spec *spec = link->shard->spec;

	*h = (struct wire_header){
		.job = spec->id,
		.generation = spec->generation,
		.epoch = link->shard->epoch,
		.rank = link->name,
		.credit = link_credit(link),
	};
}

static int reply_send(struct chunk *chunk, struct link *link)
{
	struct shard *shard = link->shard;
	struct arrival *a = &chunk->arrivals[link->rank];
	bool rows = spec_rows(shard->spec);
	const uint8_t *payload;
	struct wire_header h;
	int rc = 0;

	reply_header(link, &h);
	h.type = WIRE_RESULT;
	h.length = chunk->answer_bytes;
	h.chunk = chunk_local(shard, chunk);
	h.round = a->round;
	/* With a quorum: so many rounds were closed since, and the weights are those after them. */
	h.hyper = shard->spec->quorum ? a->ahead : a->hyper;
	h.count = 1;
	h.priority = a->priority;
	payload = rows ? stepwise_row(chunk, shard, link->rank) : chunk->result;
	if (chunk->coded)
		payload = coding_result(chunk, link, &h);
	if (link->sealed) {
		payload = sealing_result(chunk, link, &h, payload, &rc);
		if (rc == -EIO)
			chunk_fail(chunk, link, SHARD_FAIL_SEALING, h.round, 0);
		if (!payload)
			return rc;
	}
	rc = link->queue->ops->send(link->queue, link->conn, &h, payload, chunk);
	if (rc < 0)
		return rc;
	a->answered = (uint8_t)link->serial;
	a->sends++;
	chunk->sends++;
	link->sends++;
	stats_add(&shard->counters.sends, 1);
	stats_add(&shard->counters.replies, 1);
	if (chunk->sparse)
		coding_sent(chunk, link, &h);
	link->credit_told = h.credit;
	link->credit_due = false;
	return 0;
}

void reply_result(struct chunk *chunk, struct link *link)
{
	struct arrival *a = &chunk->arrivals[link->rank];

	if (link->sealed)
		sealing_renew(chunk, link);
	if (!link->conn || a->due)
		return; /* gone; or in the heap already: what is sent from there is the newest round */
	if (a->serial != (uint8_t)link->serial)
		return; /* pushed by a connection that broke: it comes again by this one, and is answered then */
	if (link->reply_count == 0 && reply_send(chunk, link) != -EAGAIN)
		return; /* sent; or the connection is closing, which its event will tell */
	a->due = true;
	reply_heap_push(link, (uint64_t)a->priority << 32 | chunk_local(link->shard, chunk));
}

void reply_writable(struct link *link)
{
	while (link->reply_count > 0) {
		struct chunk *chunk = &link->shard->chunks[(uint32_t)link->replies[0]];

		if (reply_send(chunk, link) == -EAGAIN)
			return;
		if (link->shard->spec->mirror && mirror_owes(&chunk->arrivals[link->rank]))
			continue;
		chunk->arrivals[link->rank].due = false;
		reply_heap_pop(link);
	}
}

void reply_credit(struct link *link)
{
	uint32_t credit, news;
	struct wire_header h;

	if (!link->conn)
		return;
	credit = link_credit(link);
	news = credit - link->credit_told;
	if (news == 0 && link->credit_told == link->seq_max)
		fair_withhold(link);
	if (!link->credit_due && (news == 0 || (news < link->window / 2 && link->credit_told != link->seq_max)))
		return;
	reply_header(link, &h);
	h.type = WIRE_CREDIT;
	if (link->queue->ops->send(link->queue, link->conn, &h, NULL, NULL) < 0) {
		link->credit_due = true; /* no room now: the next reply or EVENT_WRITABLE carries it */
		return;
	}
	link->credit_told = credit;
	link->credit_due = false;
}

int reply_finish(struct link *link)
{
	struct wire_header h;

	reply_header(link, &h);
	h.type = WIRE_CREDIT;
	h.round = WIRE_FINISHED;
	return link->queue->ops->send(link->queue, link->conn, &h, NULL, NULL);
}
