/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums and images on their way to the standby. What is to be sent stands in a line, a chunk at most once, and goes as
 * far as credit and connection let it; images join the line only when it is empty, so that sums never wait for long.
 */
#include "phub/uplink.h"

#include "aggregation/convert.h"
#include "aggregation/kernels.h"
#include "aggregation/optimizer.h"
#include "phub/base/stats.h"
#include "phub/core.h"
#include "phub/mailbox.h"
#include "transport/crypt.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
	UPLINK_TICK_BYTES = 512 << 10, /* of images, in one tick */
	UPLINK_TICK_CHUNKS = 4096,     /* that are looked at */
};

static struct uplink_chunk *uplink_of(const struct shard *shard, const struct chunk *chunk)
{
	return &shard->uplink->chunks[chunk_local(shard, chunk)];
}

/* Has nobody had anything of it yet? Then the standby's chunk is like it from the beginning. */
static bool uplink_is_new(const struct chunk *chunk, const struct shard *shard)
{
	return chunk->round == (shard->spec->optimizer == OPTIMIZER_NONE ? 1 : 0);
}

/* ---- telling control: what does not fit its mailbox is told at a later tick ---- */

static struct mail uplink_mail(const struct uplink *up, enum mail_kind kind)
{
	return (struct mail){
		.kind = kind,
		.core = up->shard->core,
		.shard = up->shard,
		.job = up->shard->spec->id,
		.generation = up->shard->spec->generation,
		.detail = up->serial,
	};
}

static void uplink_tell_whole(struct uplink *up)
{
	struct mail mail = uplink_mail(up, MAIL_UPLINK_WHOLE);

	up->whole_untold = mailbox_send(up->shard->control, &mail) < 0;
}

static void uplink_tell_end(struct uplink *up)
{
	struct mail mail = uplink_mail(up, MAIL_UPLINK_ENDED);

	mail.value = up->end_error;
	memcpy(mail.text, up->end_text, sizeof(mail.text));
	up->end_untold = mailbox_send(up->shard->control, &mail) < 0;
}

/* ---- the end ---- */

/* Nothing is out any more. `answer`: who waits gets the results. */
static void uplink_forget(struct uplink *up, bool answer)
{
	struct shard *shard = up->shard;

	up->line_count = 0;
	up->whole_untold = false;
	stats_add(&up->counters.results, up->counters.messages - up->counters.results);
	for (uint32_t i = 0; i < shard->chunk_count; i++) {
		struct uplink_chunk *u = &up->chunks[i];
		bool out = u->stage == UPLINK_OUT;

		u->stage = UPLINK_NONE;
		u->had = false;
		u->lies = 0;
		u->sends = 0;
		u->results = 0;
		if (!out)
			continue;
		up->out--;
		if (answer)
			chunk_landed(&shard->chunks[i], shard, u->written);
		else
			shard->chunks[i].lifted = false;
	}
}

static void uplink_end(struct uplink *up, int error, const char *why)
{
	snprintf(up->end_text, sizeof(up->end_text), "%s", why ? why : "");
	up->end_error = error;
	up->queue->ops->drop(up->queue, up->conn);
	up->conn = NULL;
	uplink_forget(up, true);
	uplink_tell_end(up);
}

void uplink_close(struct shard *shard, uint64_t serial)
{
	struct uplink *up = shard->uplink;

	if (up && up->conn && up->serial == serial)
		uplink_end(up, 0, NULL);
}

void uplink_drop(struct shard *shard)
{
	struct uplink *up = shard->uplink;

	up->end_untold = false;
	if (!up->conn)
		return;
	up->queue->ops->drop(up->queue, up->conn);
	up->conn = NULL;
	uplink_forget(up, false);
}

void uplink_leave(struct shard *shard)
{
	shard->failed = true;
	if (shard->uplink)
		uplink_drop(shard);
}

/* ---- what goes out ---- */

static const void *uplink_payload(const struct uplink *up, uint32_t local)
{
	const struct uplink_chunk *u = &up->chunks[local];
	const struct chunk *chunk = &up->shard->chunks[local];

	if (!u->image)
		return u->lift;
	if (u->next > 0)
		return chunk->state[u->next - 1];
	if (up->shard->spec->optimizer != OPTIMIZER_NONE)
		return chunk->weight;
	return chunk->dtype == DTYPE_F32 ? (const void *)chunk->result : u->lift;
}

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

static int uplink_send(struct uplink *up, uint32_t local)
{
	const struct chunk *chunk = &up->shard->chunks[local];
	struct uplink_chunk *u = &up->chunks[local];
	const void *payload = uplink_payload(up, local);
	struct wire_header h = {
		.type = u->image ? WIRE_INIT : WIRE_PUSH,
		.length = chunk->elements * (uint32_t)sizeof(float),
		.job = up->spec->job,
		.generation = up->spec->generation,
		.epoch = up->spec->epoch,
		.chunk = local,
		.round = u->round,
		.hyper = u->hyper,
		.count = u->image ? u->next + 1u : u->gradients,
		.seq = up->seq + 1,
	};
	int rc = up->sealer ? uplink_seal(up, u, &h, &payload) : 0;

	if (rc == 0)
		rc = up->queue->ops->send(up->queue, up->conn, &h, payload, u);
	if (rc < 0)
		return rc;
	up->seq++;
	u->next++;
	u->sends++;
	u->results++;
	stats_add(&up->counters.messages, 1);
	stats_add(&up->counters.bytes, h.length);
	return 0;
}

/* As far as credit and connection go: an event tells when there is more of either. */
static void uplink_pump(struct uplink *up)
{
	while (up->line_count > 0 && !wire_after(up->seq + 1, up->credit)) {
		uint32_t local = up->line[up->line_first];

		if (uplink_send(up, local) < 0)
			return;
		if (up->chunks[local].next < up->chunks[local].end)
			continue;
		up->line_first = up->line_first + 1 < up->shard->chunk_count ? up->line_first + 1 : 0;
		up->line_count--;
	}
}

/* The chunk's messages are made: they go to the end of the line. */
static void uplink_queue(struct uplink *up, struct chunk *chunk, uint8_t count)
{
	struct uplink_chunk *u = uplink_of(up->shard, chunk);
	uint32_t at = up->line_first + up->line_count;

	u->next = 0;
	u->lies = 0;
	u->end = count;
	u->stage = UPLINK_OUT;
	chunk->lifted = true;
	up->out++;
	up->line[at < up->shard->chunk_count ? at : at - up->shard->chunk_count] = chunk_local(up->shard, chunk);
	up->line_count++;
	uplink_pump(up);
}

void uplink_lift(struct chunk *chunk, struct shard *shard, struct sum_args *sum)
{
	struct uplink *up = shard->uplink;
	struct uplink_chunk *u = uplink_of(shard, chunk);
	struct sum_args lift = *sum;

	if (u->stage != UPLINK_READY)
		return;
	lift.out = u->lift;
	lift.out_dtype = DTYPE_F32;
	lift.scale = 1;
	lift.stores = STORES_CACHED;
	shard->kernels->sum(&lift);
	shard->sources[0] = u->lift;
	sum->src_count = 1;
	sum->src_dtype = DTYPE_F32;
	sum->acc = NULL;
	u->image = false;
	u->written = false;
	u->gradients = chunk->gradients;
	u->hyper = chunk->hyper;
	u->round = chunk->round;
	u->there = chunk->round + 1;
	uplink_queue(up, chunk, 1);
}

static void uplink_send_image(struct uplink *up, struct chunk *chunk)
{
	const struct spec *spec = up->shard->spec;
	struct uplink_chunk *u = uplink_of(up->shard, chunk);

	if (spec->optimizer == OPTIMIZER_NONE && chunk->dtype != DTYPE_F32)
		convert_to_f32(u->lift, chunk->result, (enum dtype)chunk->dtype, chunk->elements);
	u->image = true;
	u->hyper = (uint32_t)chunk->steps;
	u->round = chunk->round;
	u->there = chunk->round;
	uplink_queue(up, chunk, (uint8_t)(1 + optimizer_state_count(spec->optimizer)));
}

void uplink_renew(struct chunk *chunk, struct shard *shard, bool written)
{
	struct uplink_chunk *u = uplink_of(shard, chunk);

	if (u->stage != UPLINK_READY || u->there == chunk->round)
		return;
	u->written = written;
	uplink_send_image(shard->uplink, chunk);
}

static void uplink_had(struct uplink *up, struct uplink_chunk *u)
{
	if (u->had)
		return;
	u->had = true;
	if (--up->absent == 0)
		uplink_tell_whole(up);
}

/* All of the chunk's messages are acknowledged. What it collects may have changed meanwhile (chunk_skip()). */
static void uplink_landed(struct uplink *up, uint32_t local)
{
	struct uplink_chunk *u = &up->chunks[local];
	struct chunk *chunk = &up->shard->chunks[local];

	up->out--;
	u->stage = UPLINK_READY;
	uplink_had(up, u);
	if (u->there != chunk->round) {
		uplink_send_image(up, chunk);
		return;
	}
	chunk_landed(chunk, up->shard, u->written);
}

static void uplink_check(struct uplink *up, struct uplink_chunk *u)
{
	if (u->stage == UPLINK_OUT && u->results == 0 && u->sends == 0 && u->next == u->end)
		uplink_landed(up, (uint32_t)(u - up->chunks));
}

/* ---- images of chunks that the standby does not have ---- */

/* Returns how many bytes it sends. */
static uint64_t uplink_begin(struct uplink *up, struct chunk *chunk)
{
	struct uplink_chunk *u = uplink_of(up->shard, chunk);

	u->written = false;
	if (uplink_is_new(chunk, up->shard)) {
		u->stage = UPLINK_READY;
		u->there = chunk->round;
		if (chunk->weights) /* else the first ones are waited for */
			uplink_had(up, u);
		return 0;
	}
	uplink_send_image(up, chunk);
	return (uint64_t)u->end * chunk->elements * sizeof(float);
}

bool uplink_step(struct shard *shard)
{
	struct uplink *up = shard->uplink;
	uint64_t bytes = 0;

	if (up->end_untold)
		uplink_tell_end(up);
	if (up->conn && up->spoilt)
		uplink_end(up, up->spoilt, "libcrypto encrypts nothing");
	if (!up->conn)
		return false;
	if (up->whole_untold)
		uplink_tell_whole(up);
	for (uint32_t looked = 0; looked < UPLINK_TICK_CHUNKS && up->image_at < shard->chunk_count; looked++) {
		if (up->line_count > 0 || bytes >= UPLINK_TICK_BYTES)
			return bytes > 0;
		bytes += uplink_begin(up, &shard->chunks[up->image_at++]);
	}
	return up->image_at < shard->chunk_count;
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
	for (uint32_t i = 0; rc > 0 && i < up->shard->chunk_count; i++)
		up->chunks[i].opened = 0;
	return rc < 0 ? rc : 0;
}

void uplink_open(struct core *core, const struct mail *mail)
{
	struct shard *shard = mail->shard;
	struct uplink *up = shard->uplink;
	int rc;

	up->spec = mail->uplink;
	up->serial = mail->detail;
	up->end_untold = false;
	rc = uplink_take_keys(up);
	if (rc == 0)
		rc = core->uplinks->ops->adopt(core->uplinks, mail->conn, &up->spec->conn);
	if (rc < 0) {
		mail->conn->transport->ops->abandon(mail->conn->transport, mail->conn);
		up->end_error = rc;
		up->end_text[0] = '\0';
		uplink_tell_end(up);
		return;
	}
	up->queue = core->uplinks;
	up->conn = mail->conn;
	up->conn->user = up;
	up->seq = 0;
	up->credit = up->spec->conn.window;
	up->line_first = 0;
	up->image_at = 0;
	up->absent = shard->chunk_count;
}

/* ---- what comes ---- */

/* Encrypted: did the standby say this, and not before? 0 or -EBADMSG. */
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
	if (h->type == WIRE_CREDIT)
		return h->round == WIRE_FINISHED ? -ESHUTDOWN : 0;
	if (h->chunk >= up->shard->chunk_count)
		return -EPROTO;
	u = &up->chunks[h->chunk];
	if (u->results == 0 || h->round != u->round)
		return -EPROTO;
	if (up->opener && uplink_believe(up, u, e) < 0)
		return -EBADMSG;
	stats_add(&up->counters.results, 1);
	u->results--;
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

unsigned uplink_poll(struct core *core, uint64_t now_ns)
{
	struct queue *queue = core->uplinks;
	unsigned count = queue->ops->poll(queue, now_ns, core->events, CORE_BATCH);

	for (unsigned i = 0; i < count; i++) {
		struct conn *conn = core->events[i].conn;
		int rc = conn ? uplink_event(conn->user, &core->events[i]) : 0;

		if (rc == 0)
			continue;
		uplink_end(conn->user, rc, uplink_why(&core->events[i], rc));
		for (unsigned later = i + 1; later < count; later++)
			if (core->events[later].conn == conn)
				core->events[later].conn = NULL; /* it is gone, and its slots with it */
	}
	return count;
}
