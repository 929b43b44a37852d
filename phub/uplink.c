/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The line of an uplink, its connection, and what is sealed.
 */
#include "phub/uplink.h"

#include "phub/base/stats.h"
#include "phub/core.h"
#include "phub/mailbox.h"
#include "transport/crypt.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- telling control: what does not fit its mailbox is told at a later tick ---- */

struct mail uplink_mail(const struct uplink *up, enum mail_kind kind)
{
	return (struct mail){
		.kind = kind,
		.core = up->shard->core,
		.shard = up->shard,
		.rank = (uint32_t)(up - up->shard->uplinks),
		.job = up->shard->spec->id,
		.generation = up->shard->spec->generation,
		.detail = up->serial,
	};
}

static void uplink_tell_end(struct uplink *up)
{
	struct mail mail = uplink_mail(up, MAIL_UPLINK_ENDED);

	mail.value = up->end_error;
	mail.broken = up->broken;
	mail.answered = up->answered;
	memcpy(mail.text, up->end_text, sizeof(mail.text));
	up->end_untold = mailbox_send(up->shard->control, &mail) < 0;
}

/* ---- the end ---- */

/* No connection has anything of it. */
static void uplink_clear(struct uplink *up)
{
	up->line_count = 0;
	stats_add(&up->counters.results, up->counters.messages - up->counters.results);
	for (uint32_t i = 0; i < up->chunk_count; i++) {
		up->chunks[i].lies = 0;
		up->chunks[i].lined = false;
		up->chunks[i].again = false;
		up->chunks[i].next = 0;
		up->chunks[i].sends = 0;
		up->chunks[i].results = 0;
	}
}

/* Nothing is out any more. `answer`: who waits gets the results. */
static void uplink_forget(struct uplink *up, bool answer)
{
	up->out = 0;
	up->broken = false;
	uplink_clear(up);
	up->use->forget(up, answer);
}

/* `broken`: the way to the other box did. */
static void uplink_end(struct uplink *up, int error, const char *why, bool broken)
{
	bool again = broken && up->use->repeats && !up->shard->failed && up->conn->transport->ops->reconnects;

	snprintf(up->end_text, sizeof(up->end_text), "%s", why ? why : "");
	up->end_error = error;
	up->queue->ops->drop(up->queue, up->conn);
	up->conn = NULL;
	up->answered = up->counters.results != up->answers;
	if (again)
		uplink_clear(up);
	else
		uplink_forget(up, true);
	up->broken = again;
	uplink_tell_end(up);
}

void uplink_close(struct shard *shard, uint32_t number, uint64_t serial, bool broken)
{
	struct uplink *up = &shard->uplinks[number];

	if (number < shard->uplink_count && up->conn && up->serial == serial)
		uplink_end(up, broken ? -ECONNRESET : 0, NULL, broken);
}

void uplink_drop(struct shard *shard)
{
	for (uint32_t i = 0; i < shard->uplink_count; i++) {
		struct uplink *up = &shard->uplinks[i];

		up->end_untold = false;
		if (!up->conn && !up->broken)
			continue;
		if (up->conn)
			up->queue->ops->drop(up->queue, up->conn);
		up->conn = NULL;
		uplink_forget(up, false);
	}
}

void uplink_leave(struct shard *shard)
{
	shard->failed = true;
	uplink_drop(shard);
}

/* ---- what goes out ---- */

/* 0, or -EAGAIN while the queue reads what lies there. Nothing is sealed twice because there was no room for it. */
static int uplink_seal(struct uplink *up, struct uplink_chunk *u, struct wire_header *h, const void **payload)
{
	int rc = 0;

	if (u->sends > 0)
		return -EAGAIN;
	h->length += WIRE_TRAILER_BYTES;
	if (u->lies != u->next + 1)
		rc = crypt_seal(up->sealer, h, up->shard->core, ++up->counter, *payload, u->sealed);
	u->lies = rc < 0 ? 0 : u->next + 1;
	up->spoilt = rc;
	*payload = u->sealed;
	return rc;
}

/* What was made before there was a connection lies elsewhere. */
static const void *uplink_map(struct uplink *up, uint32_t at, const void *payload, uint32_t bytes)
{
	void *room = uplink_room(up, at);

	if (payload && payload != room)
		memcpy(room, payload, bytes);
	return payload ? room : NULL;
}

static int uplink_send(struct uplink *up, uint32_t at)
{
	struct uplink_chunk *u = &up->chunks[at];
	struct wire_header h = {
		.job = up->spec->job,
		.generation = up->spec->generation,
		.epoch = up->epoch,
		.chunk = u->index,
		.rank = up->spec->rank,
		.round = u->round,
		.hyper = u->hyper,
		.seq = up->seq + 1,
	};
	const void *payload = up->use->write(up, at, &h);
	int rc = up->sealer ? uplink_seal(up, u, &h, &payload) : 0;

	if (rc == 0 && up->conn->push)
		payload = uplink_map(up, at, payload, h.length);
	if (rc == 0)
		rc = up->queue->ops->send(up->queue, up->conn, &h, payload, u);
	if (rc < 0)
		return rc;
	up->seq++;
	u->next++;
	u->sends++;
	u->results += !u->again;
	u->again = false;
	stats_add(&up->counters.messages, 1);
	stats_add(&up->counters.bytes, h.length);
	return 0;
}

/* As far as credit and connection go: an event tells when there is more of either. What comes to the line when the
 * connection has ended stays there until control ends the job. */
static void uplink_pump(struct uplink *up)
{
	while (up->conn && up->line_count > 0 && !wire_after(up->seq + 1, up->credit)) {
		uint32_t at = up->line[up->line_first];
		struct uplink_chunk *u = &up->chunks[at];
		bool due = u->stage == UPLINK_OUT && u->next < u->end; /* it may have been answered meanwhile */

		if (due && uplink_send(up, at) < 0)
			return;
		if (due && u->next < u->end)
			continue;
		u->lined = false;
		up->line_first = up->line_first + 1 < up->chunk_count ? up->line_first + 1 : 0;
		up->line_count--;
	}
}

static void uplink_line(struct uplink *up, uint32_t at)
{
	uint32_t last = up->line_first + up->line_count;

	if (up->chunks[at].lined)
		return;
	up->chunks[at].lined = true;
	up->line[last < up->chunk_count ? last : last - up->chunk_count] = at;
	up->line_count++;
}

void uplink_queue(struct uplink *up, uint32_t at, uint8_t count)
{
	struct uplink_chunk *u = &up->chunks[at];

	u->next = 0;
	u->lies = 0;
	u->end = count;
	u->stage = UPLINK_OUT;
	up->shard->chunks[u->local].lifted = true;
	up->out++;
	uplink_line(up, at);
	uplink_pump(up);
}

/* The membership has changed there: what was sent and not answered is nowhere, or answered soon. */
static void uplink_raise(struct uplink *up, uint32_t epoch)
{
	bool repeats = up->use->repeats && up->shard->plant != SHARD_PLANT_UNREPEATED;

	up->epoch = epoch;
	for (uint32_t at = 0; at < up->chunk_count && repeats; at++) {
		struct uplink_chunk *u = &up->chunks[at];

		if (u->stage != UPLINK_OUT || u->results == 0)
			continue;
		u->again = true;
		u->next = 0;
		u->lies = 0;
		uplink_line(up, at);
	}
}

static void uplink_check(struct uplink *up, struct uplink_chunk *u)
{
	if (u->stage != UPLINK_OUT || u->results > 0 || u->sends > 0 || u->next < u->end)
		return;
	up->out--;
	u->stage = UPLINK_READY;
	up->use->landed(up, (uint32_t)(u - up->chunks));
}

bool uplink_step(struct shard *shard)
{
	bool more = false;

	for (uint32_t i = 0; i < shard->uplink_count; i++) {
		struct uplink *up = &shard->uplinks[i];

		if (up->end_untold)
			uplink_tell_end(up);
		if (up->conn && up->spoilt)
			uplink_end(up, up->spoilt, "libcrypto encrypts nothing", false);
		more = (up->conn && up->use->step(up)) || more;
	}
	return more;
}

/* Of another key than the last one's no counter was seen. 0 or -EIO. */
static int uplink_take_keys(struct uplink *up)
{
	int rc;

	up->spoilt = 0;
	if (!up->sealer)
		return 0;
	if (crypt_take_key(up->sealer, up->spec->push_key) < 0)
		return -EIO;
	rc = crypt_take_key(up->opener, up->spec->result_key);
	for (uint32_t i = 0; rc > 0 && i < up->chunk_count; i++)
		up->chunks[i].opened = 0;
	return rc < 0 ? rc : 0;
}

int uplink_open(const struct mail *mail)
{
	struct uplink *up = &mail->shard->uplinks[mail->rank];
	struct queue *queue = mail->uplink->conn.queue;
	int rc;

	up->spec = mail->uplink;
	up->serial = mail->detail;
	if (!up->broken || wire_after(up->spec->epoch, up->epoch)) /* it may have risen since the start */
		up->epoch = up->spec->epoch;
	up->end_untold = false;
	rc = uplink_take_keys(up);
	if (rc == 0)
		rc = queue->ops->adopt(queue, mail->conn, &up->spec->conn);
	if (rc < 0)
		return rc;
	up->queue = queue;
	up->conn = mail->conn;
	up->conn->user = up;
	up->seq = 0;
	up->credit = up->spec->conn.window;
	up->answers = up->counters.results;
	up->line_first = up->broken ? up->line_first : 0;
	up->use->began(up);
	for (uint32_t at = 0; up->broken && at < up->chunk_count; at++)
		if (up->chunks[at].stage == UPLINK_OUT)
			uplink_line(up, at);
	up->broken = false;
	uplink_pump(up);
	return 0;
}

bool uplink_waits(const struct shard *shard, const struct link *link)
{
	for (uint32_t i = 0; i < shard->uplink_count; i++) {
		const struct uplink *up = &shard->uplinks[i];

		if (!up->conn) /* it is not made anew in a job that ends, also where rounds were complete since then */
			continue;
		if (up == shard->replica && up->out > 0)
			return true;
		for (uint32_t at = 0; up->out > 0 && at < up->chunk_count; at++)
			if (up->chunks[at].stage == UPLINK_OUT &&
				shard->chunks[up->chunks[at].local].arrivals[link->rank].state != ARRIVAL_NONE)
				return true;
	}
	return false;
}

/* ---- what comes ---- */

/* Encrypted: did the other box say this, and not before? 0 or -EBADMSG. */
static int uplink_believe(struct uplink *up, struct uplink_chunk *u, const struct event *e)
{
	struct wire_header bound = crypt_result(&e->header, false);
	uint8_t *trailer = (uint8_t *)(uintptr_t)e->payload;
	uint64_t counter;

	if (!trailer || e->header.length != WIRE_TRAILER_BYTES)
		return -EBADMSG;
	counter = crypt_counter(trailer, WIRE_TRAILER_BYTES);
	if (counter <= u->opened || crypt_open(up->opener, &bound, up->shard->core, trailer, trailer) < 0)
		return -EBADMSG;
	u->opened = counter;
	return 0;
}

/* NULL: the other box has no business with it. */
static struct uplink_chunk *uplink_find(struct uplink *up, uint32_t index)
{
	uint32_t low = 0, high = up->chunk_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (up->chunks[middle].index < index)
			low = middle + 1;
		else
			high = middle;
	}
	return low < up->chunk_count && up->chunks[low].index == index ? &up->chunks[low] : NULL;
}

/* Is it an acknowledgement of what is out? */
static int uplink_message(struct uplink *up, const struct event *e)
{
	const struct wire_header *h = &e->header;
	struct uplink_chunk *u;

	if (h->job != up->spec->job || h->generation != up->spec->generation ||
		(h->type != WIRE_RESULT && h->type != WIRE_CREDIT))
		return -EPROTO;
	if (wire_after(h->credit, up->credit))
		up->credit = h->credit;
	if (wire_after(h->epoch, up->epoch))
		uplink_raise(up, h->epoch);
	if (h->type == WIRE_CREDIT)
		return h->round == WIRE_FINISHED ? -ESHUTDOWN : 0;
	u = uplink_find(up, h->chunk);
	if (!u || u->results == 0 || h->round != u->round)
		return -EPROTO;
	if (up->opener && uplink_believe(up, u, e) < 0)
		return -EBADMSG;
	if (up->use->take && up->use->take(up, (uint32_t)(u - up->chunks), e) < 0)
		return -EPROTO;
	stats_add(&up->counters.results, 1);
	u->results--;
	if (u->again) { /* of the time before: it was not dropped */
		u->again = false;
		u->next = u->end;
	}
	uplink_check(up, u);
	return 0;
}

/* 0, or why the connection ends. */
static int uplink_event(struct uplink *up, const struct event *e)
{
	struct uplink_chunk *u = e->cookie;
	int rc = 0;

	switch (e->type) {
	case EVENT_MESSAGE:
		rc = uplink_message(up, e);
		if (e->slot)
			up->queue->ops->release(up->queue, e->slot);
		break;
	case EVENT_SENT:
		u->sends--;
		uplink_check(up, u);
		break;
	case EVENT_WRITABLE:
		break;
	case EVENT_CLOSED:
		return e->error < 0 ? e->error : -EPIPE;
	}
	if (rc == 0)
		uplink_pump(up);
	return rc;
}

static const char *uplink_why(const struct event *e, int rc)
{
	if (e->type == EVENT_CLOSED)
		return e->why;
	return rc == -EBADMSG ? "an answer was forged or changed on its way, or said again" : NULL;
}

unsigned uplink_poll(struct core *core, struct queue *queue, uint64_t now_ns)
{
	unsigned count = queue->ops->poll(queue, now_ns, core->events, CORE_BATCH);

	for (unsigned i = 0; i < count; i++) {
		struct conn *conn = core->events[i].conn;
		int rc = conn ? uplink_event(conn->user, &core->events[i]) : 0;

		if (rc == 0)
			continue;
		uplink_end(conn->user, rc, uplink_why(&core->events[i], rc),
			core->events[i].type == EVENT_CLOSED && core->events[i].broken);
		for (unsigned later = i + 1; later < count; later++)
			if (core->events[later].conn == conn)
				core->events[later].conn = NULL; /* it is gone, and its slots with it */
	}
	return count;
}
