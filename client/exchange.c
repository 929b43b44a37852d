/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds. Where a payload lies:
 *
 *   mapped transports   in the box's region, at the chunk's offset, or, when one key has the chunk for itself, in a
 *                       slot that its lane copies it to when it sends it; results in the result region
 *   others, in place    memory of the caller (registered, where the transport wants that), when the key has its chunks
 *                       for itself
 *   others              the arena; a result overwrites the push that it answers, unless phub_alloc() gave the key away
 *
 * Memory of a GPU that the transport cannot reach by itself counts as the caller's that has to be copied, by the GPU: a
 * chunk is sent when its payload is here, and its round is over when its result is there.
 *
 * A lossy transport has no sinks: its results are copied from the event, after their round was checked, because an old
 * one may come at any time.
 */
#include "client/exchange.h"

#include "client/copy.h"
#include "phub/base/clock.h"
#include "transport/wire.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
	EXCHANGE_BATCH = 32,       /* events per poll */
	EXCHANGE_FLUSH_CHUNKS = 4, /* while a large key is pushed, the box works on its first chunks already */
	EXCHANGE_PRIORITY_MAX = 65535,
	/*
	 * Four times as much is moved in a round: a cache of a core holds it no longer. 64 KB are 20 % slower as if
	 * they were cold, 1 MB 5 % faster.
	 */
	EXCHANGE_COLD_BYTES = 512 << 10,
	EXCHANGE_LOOK_US = 20, /* copies from and to a GPU are asked so often for their end, by whoever sleeps */
};

/* The part of the key that lies in the chunk: where in either, and how long. */
struct exchange_part {
	uint64_t in_key, in_region;
	uint64_t bytes;
};

static struct exchange_part exchange_part(const struct key *key, const struct chunk_span *span)
{
	uint64_t from = key->offset > span->offset ? key->offset : span->offset;
	uint64_t key_end = key->offset + key->bytes, span_end = span->offset + span->bytes;

	return (struct exchange_part){
		.in_key = from - key->offset,
		.in_region = from,
		.bytes = (key_end < span_end ? key_end : span_end) - from,
	};
}

/* ---- the end of rounds ---- */

bool exchange_is_open(const struct exchange *x, const struct key *key)
{
	if (x->open_keys == 0)
		return false;
	if (key->chunk_count > 1)
		return key->chunks_left > 0;
	return key->round == (uint32_t)x->flights[key->chunk_first].round;
}

bool exchange_is_unclaimed(const struct exchange *x, const struct key *key)
{
	if (key->claimed || key->given_up || exchange_is_open(x, key))
		return false;
	for (uint32_t i = 0; i < key->chunk_count; i++) {
		if (x->flights[key->chunk_first + i].claims == x->claims)
			return true;
	}
	return false;
}

static void exchange_free_ranges(struct key *key)
{
	if (key->src_range)
		key->src_range->uses--;
	if (key->dst_range)
		key->dst_range->uses--;
	key->src_range = NULL;
	key->dst_range = NULL;
}

void exchange_give_up_key(struct exchange *x, struct key *key)
{
	exchange_free_ranges(key);
	key->given_up = true;
	key->chunks_left = 0;
	key->round--;
	x->open_keys--;
}

static void exchange_settle_key(struct key *key)
{
	if (key->type != WIRE_PUSH)
		key->weights = true;
	exchange_free_ranges(key);
}

/*
 * Who came too late for a quorum has the weights after later rounds, and goes on from there: with all chunks of a key
 * from one round, which every one of them has come to.
 */
static void exchange_skip(struct exchange *x, const struct key *key)
{
	struct flight *first = &x->flights[key->chunk_first];
	uint32_t ahead = first->ahead;

	for (uint32_t i = 1; i < key->chunk_count; i++)
		if (first[i].ahead < ahead)
			ahead = first[i].ahead;
	for (uint32_t i = 0; i < key->chunk_count; i++)
		first[i].round += ahead;
}

/* Keys that share a chunk begin and end their rounds with it: to count its round ends theirs. */
static void exchange_close_flight(struct exchange *x, struct flight *f)
{
	const struct chunk_span *span = f->span;
	struct key *keys = &x->keyring->keys[span->key_first];
	uint32_t count = span->key_count;

	f->state = FLIGHT_IDLE;
	f->round++;
	f->keys_in = 0;
	f->claims = x->claims;
	if (x->given_up || (keys->chunk_count > 1 && --keys->chunks_left > 0))
		return;
	if (x->quorum)
		exchange_skip(x, keys);
	for (uint32_t i = 0; f->settles && i < count; i++)
		exchange_settle_key(&keys[i]);
	x->rounds += count;
	x->open_keys -= count;
}

/* The result is here: the round is over when nothing is read or written for it any more. */
static void exchange_settle_flight(struct exchange *x, struct flight *f)
{
	if (f->state == FLIGHT_LANDED && f->sends == 0 && f->copies == 0)
		exchange_close_flight(x, f);
}

void exchange_settle_lane(struct exchange *x, struct lane *lane)
{
	for (uint32_t i = 0; i < lane->count; i++)
		exchange_settle_flight(x, lane->flights[i]);
}

/* Where messages may be damaged on the way, a bad one proves nothing. */
static int exchange_broken(struct exchange *x, const struct lane *lane, const char *what)
{
	if (x->group.lossy) {
		x->dropped++;
		return 0;
	}
	if (x->failure.code == 0)
		err_set(&x->failure, -EPROTO, "the box's core %" PRIu32 " (%s) broke the protocol: %s", lane->core,
			lane->conn ? lane->conn->peer : "?", what);
	return -EPROTO;
}

/* ---- results ---- */

void exchange_copy(struct exchange *x, uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	if (x->keyring->plan.region_bytes >= EXCHANGE_COLD_BYTES)
		copy_cold(to, from, bytes);
	else
		memcpy(to, from, bytes);
	x->copied_bytes += bytes;
}

/*
 * The chunk's result, which lies in the library's memory, goes to a GPU: many small copies take it far longer than what
 * is in them, so with those of the chunks beside it, once all of a piece are here. They come in any order.
 */
static void exchange_store(struct exchange *x, struct flight *f, const struct key *key)
{
	uint32_t chunk_bytes = x->keyring->plan.chunk_bytes;
	uint32_t piece_chunks = chunk_bytes < DEVICE_PIECE_BYTES ? DEVICE_PIECE_BYTES / chunk_bytes : 1;
	uint32_t most = key->overlaps ? key->chunk_count : piece_chunks; /* with the last, all of src was copied */
	uint32_t at = (uint32_t)(f - x->flights) - key->chunk_first, first = at - at % most;
	uint32_t count = key->chunk_count - first < most ? key->chunk_count - first : most;
	struct flight *piece = &x->flights[key->chunk_first + first];

	f->copies++;
	if (++piece->gathered < count)
		return;
	piece->gathered = 0;
	for (uint32_t i = 0; i < count; i++) {
		struct exchange_part part = exchange_part(key, piece[i].span);

		x->copied_bytes += part.bytes;
		device_store(&x->devices, key->dst_device, key->dst + part.in_key,
			exchange_result_base(x, &piece[i]) + part.in_region, part.bytes, key, &piece[i]);
	}
}

/*
 * Brings a result from where it came to where its keys want it. A GPU reads it later: from where it stays, which is
 * what a lossy transport's is kept for.
 */
static void exchange_deliver(struct exchange *x, struct flight *f, const uint8_t *from)
{
	const struct chunk_span *span = f->span;
	const struct key *keys = &x->keyring->keys[span->key_first];
	bool keep = false;

	if (!f->delivers)
		return;
	for (uint32_t i = 0; i < span->key_count && x->group.lossy; i++)
		keep = keep || keys[i].landed || keys[i].dst_device;
	if (keep) {
		uint8_t *kept = (uint8_t *)(uintptr_t)exchange_result_base(x, f) + span->offset;

		exchange_copy(x, kept, from, span->bytes);
		from = kept;
	}
	for (uint32_t i = 0; i < span->key_count; i++) {
		struct exchange_part part = exchange_part(&keys[i], span);
		const uint8_t *at = from + (part.in_region - span->offset);

		if (!keys[i].dst || keys[i].dst_in_place)
			continue;
		assert(!keys[i].dst_device || at == exchange_result_base(x, f) + part.in_region);
		if (keys[i].dst_device)
			exchange_store(x, f, &keys[i]);
		else
			exchange_copy(x, keys[i].dst + part.in_key, at, part.bytes);
	}
}

/* Where the bytes of a result are now; NULL: they went where they belong, or nobody wants them. */
static const uint8_t *exchange_find_result(const struct exchange *x, const struct flight *f, const struct event *event)
{
	const struct lane *lane = f->lane;

	if (x->mapped || x->group.lossy || x->encrypted)
		return event->payload;
	return lane->sinks[f->local].addr;
}

/* Opens a result, at *from: then that is where it is. 0 or -EBADMSG. */
static int exchange_open(struct exchange *x, struct flight *f, const struct wire_header *header, const uint8_t **from)
{
	uint8_t *into = x->group.lossy ? NULL : header->coded ? f->landing : f->into;
	int rc = *from ? sealed_result(&x->sealed, f, header, (uint8_t *)(uintptr_t)*from, into) : -EBADMSG;

	if (!x->group.lossy)
		*from = into;
	if (rc == 0)
		x->copied_bytes += header->length - WIRE_TRAILER_BYTES;
	return rc;
}

static int exchange_take_result(struct exchange *x, struct lane *lane, const struct event *event)
{
	const struct wire_header *h = &event->header;
	uint32_t trailer = x->encrypted ? WIRE_TRAILER_BYTES : 0;
	const struct chunk_span *span;
	const uint8_t *from;
	struct flight *f;

	if (h->chunk >= lane->count)
		return exchange_broken(x, lane, "a result of a chunk that it does not have");
	f = lane->flights[h->chunk];
	span = f->span;
	if (f->state != FLIGHT_SENT || h->round != f->round)
		return exchange_broken(x, lane, "a result of a round that is not open");
	from = exchange_find_result(x, f, event);
	if (!coded_fits(x, f, h, trailer) || (x->group.lossy && !from))
		return exchange_broken(x, lane, "a result of another length than its chunk");
	if (x->mapped && from != exchange_result_base(x, f) + span->offset)
		return exchange_broken(x, lane, "a result that lies elsewhere than agreed");
	if (x->encrypted && exchange_open(x, f, h, &from) < 0) {
		x->dropped += x->group.lossy;
		return x->group.lossy ? 0 : -EBADMSG;
	}
	if (coded_result(x, f, h, h->length - trailer, &from) < 0)
		return exchange_broken(x, lane, "a result that is malformed as it is coded");
	f->ahead = x->quorum ? h->hyper : 0;
	lane_answered(lane, f);
	if (from)
		exchange_deliver(x, f, from);
	lane->sinks[f->local].addr = NULL;
	x->results++;
	x->coded_results += h->coded;
	x->pulled_bytes += h->length - trailer;
	f->state = FLIGHT_LANDED;
	exchange_settle_flight(x, f);
	return 0;
}

/* The job is over, and the control session says why: all results that the box committed came before. */
static bool exchange_take_finish(struct exchange *x, struct lane *lane, const struct wire_header *h, uint64_t now_ns)
{
	if (h->type != WIRE_CREDIT || h->round != WIRE_FINISHED || x->group.lossy)
		return false;
	lane->finished = true;
	if (x->lost_ns == 0)
		x->lost_ns = now_ns ? now_ns : 1;
	return true;
}

static int exchange_take_message(struct exchange *x, struct lane *lane, const struct event *event, uint64_t now_ns)
{
	const struct wire_header *h = &event->header;

	if (h->job != x->group.job || h->generation != x->group.generation)
		return exchange_broken(x, lane, "a message of another job or key table");
	if (exchange_take_finish(x, lane, h, now_ns))
		return 0;
	/* What was committed before a change of membership is as good after it. */
	if (wire_after(h->epoch, lane->epoch))
		lane_raise(lane, h->epoch);
	lane_grant(lane, h->credit);
	lane->broke_ns = 0;
	if (h->type == WIRE_CREDIT || x->given_up)
		return 0;
	if (h->type != WIRE_RESULT || h->rank != x->group.rank)
		return exchange_broken(x, lane, "a message that no worker expects");
	return exchange_take_result(x, lane, event);
}

void exchange_raise(struct exchange *x, uint32_t epoch)
{
	x->group.epoch = epoch;
	for (uint32_t i = 0; i < x->lane_count; i++)
		if (wire_after(epoch, x->lanes[i].epoch))
			lane_raise(&x->lanes[i], epoch);
	x->backlog = true;
}

/* ---- events ---- */

void exchange_lose(struct exchange *x, struct lane *lane, int error, const char *why, uint64_t now_ns)
{
	if (lane->state == LANE_LOST && !lane->conn)
		return;
	lane_note(lane, why);
	lane_rest(lane); /* not drop: its rounds may go on at a standby */
	lane->state = LANE_LOST;
	lane->error = error;
	if (x->lost_ns == 0)
		x->lost_ns = now_ns ? now_ns : 1;
	exchange_settle_lane(x, lane);
}

static void exchange_forged(struct exchange *x, struct lane *lane, uint64_t now_ns)
{
	static const char why[] = "a result was forged or changed on its way, or said again";

	if (!exchange_break(x, lane, -ECONNABORTED, why, now_ns))
		exchange_lose(x, lane, -ECONNABORTED, why, now_ns);
}

static void exchange_take_event(struct exchange *x, const struct event *event, uint64_t now_ns)
{
	struct lane *lane = event->conn->user;
	struct flight *f;
	int rc;

	switch (event->type) {
	case EVENT_MESSAGE:
		rc = exchange_take_message(x, lane, event, now_ns);
		if (event->slot)
			x->group.queue->ops->release(x->group.queue, event->slot);
		if (rc == -EBADMSG) /* the box did not send that: another connection may do better */
			exchange_forged(x, lane, now_ns);
		else if (rc < 0)
			exchange_lose(x, lane, rc, NULL, now_ns);
		break;
	case EVENT_SENT:
		f = event->cookie;
		lane_read(lane, f);
		exchange_settle_flight(x, f);
		break;
	case EVENT_WRITABLE:
		lane->full = false;
		break;
	case EVENT_CLOSED:
		if (!event->broken || !exchange_break(x, lane, event->error, event->why, now_ns))
			exchange_lose(x, lane, event->error, event->why, now_ns);
		break;
	}
}

/* Events of a lane that ended earlier in the batch name a connection that is gone: they are not looked at. */
static bool exchange_knows(const struct exchange *x, const struct conn *conn)
{
	for (uint32_t i = 0; i < x->lane_count; i++) {
		if (x->lanes[i].conn == conn)
			return true;
	}
	return false;
}

static unsigned exchange_poll(struct exchange *x, uint64_t now_ns)
{
	struct event events[EXCHANGE_BATCH];
	unsigned count = x->group.queue->ops->poll(x->group.queue, now_ns, events, EXCHANGE_BATCH);

	for (unsigned i = 0; i < count; i++) {
		if ((x->lost_ns == 0 && x->breaks == 0) || exchange_knows(x, events[i].conn))
			exchange_take_event(x, &events[i], now_ns);
	}
	return count;
}

/* The payload is where the transport takes it from. */
static void exchange_queue(struct exchange *x, struct flight *f, uint64_t now_ns)
{
	coded_push(x, f);
	f->state = FLIGHT_QUEUED;
	lane_push(f->lane, f);
	x->sent_ns = now_ns;
}

/* What GPUs have copied: payloads go to their lanes, rounds are over. */
static unsigned exchange_poll_devices(struct exchange *x, uint64_t now_ns)
{
	unsigned count = 0;
	struct flight *f;

	if (x->devices.copies == 0)
		return 0;
	for (; (f = devices_done(&x->devices)); count++) {
		if (--f->copies == 0 && f->state == FLIGHT_FETCHED)
			exchange_queue(x, f, now_ns);
		exchange_settle_flight(x, f);
	}
	devices_flush(&x->devices);
	x->look_ns = now_ns + EXCHANGE_LOOK_US * NS_PER_US;
	if (x->devices.failure.code && x->failure.code == 0)
		x->failure = x->devices.failure;
	return count;
}

static void exchange_flush(struct exchange *x)
{
	if (!x->group.unflushed)
		return;
	x->group.queue->ops->flush(x->group.queue);
	x->group.unflushed = false;
}

unsigned exchange_progress(struct exchange *x, uint64_t now_ns)
{
	unsigned count = exchange_poll(x, now_ns);

	count += exchange_poll_devices(x, now_ns);
	if (x->broken > 0)
		count += exchange_mend(x, now_ns);
	x->unpolled = 0;
	x->backlog = x->devices.copies > 0;
	for (uint32_t i = 0; i < x->lane_count; i++) {
		struct lane *lane = &x->lanes[i];

		lane_tick(lane, now_ns);
		if (lane->heap_count > 0)
			count += lane_pump(lane, now_ns);
		if (lane->state == LANE_LOST && lane->conn)
			exchange_lose(x, lane, lane->error, NULL, now_ns);
		x->backlog = x->backlog || lane->heap_count > 0;
	}
	exchange_flush(x);
	return count;
}

uint64_t exchange_due(const struct exchange *x)
{
	uint64_t due = x->devices.copies ? x->look_ns : UINT64_MAX;
	uint64_t mend =
		x->broken > 0 && !x->given_up ? exchange_mend_due(x) : UINT64_MAX; /* who leaves mends nothing */

	due = mend < due ? mend : due;
	for (uint32_t i = 0; (x->group.lossy || x->mapped) && i < x->lane_count; i++) {
		uint64_t lane = lane_due(&x->lanes[i]);

		due = lane < due ? lane : due;
	}
	return due;
}

bool exchange_awaits(const struct exchange *x)
{
	if (x->open_keys > 0 && x->devices.copies > 0 && x->failure.code == 0)
		return true;
	for (uint32_t i = 0; x->open_keys > 0 && i < x->lane_count; i++)
		if (lane_awaits(&x->lanes[i]))
			return true;
	return false;
}

/* ---- the beginning of rounds ---- */

static const char *exchange_kind(uint8_t type)
{
	return type == WIRE_PUSH ? "pushed" : type == WIRE_INIT ? "broadcast from here" : "broadcast from another rank";
}

/* Keys that share a chunk must do the same in a round. */
static int exchange_check_shared(const struct exchange *x, const struct exchange_round *r, struct err *e)
{
	const struct key *key = &x->keyring->keys[r->key];
	const struct flight *f = &x->flights[key->chunk_first];
	const struct chunk_span *span = f->span;
	uint32_t other = span->key_first;

	if (f->state != FLIGHT_FILLING || f->type == r->type)
		return 0;
	while (!exchange_is_open(x, &x->keyring->keys[other]))
		other++;
	return err_set(e, -EINVAL,
		"%s: key '%s' cannot be %s while key '%s', which shares its chunk, is %s; name them with "
		"PHUB_KEY_ALONE",
		x->who, key->name, exchange_kind(r->type), x->keyring->keys[other].name, exchange_kind(f->type));
}

int exchange_check(const struct exchange *x, const struct exchange_round *r, struct err *e)
{
	const struct key *key = &x->keyring->keys[r->key];

	if (exchange_is_open(x, key))
		return err_set(e, -EBUSY, "%s: key '%s' has a round in flight; wait for it first", x->who, key->name);
	if (x->optimizer && r->type == WIRE_PUSH && !key->weights)
		return err_set(e, -ENODATA, "%s: key '%s' has no weights in the box yet; call phub_broadcast() first",
			x->who, key->name);
	if (x->optimizer && r->type != WIRE_PUSH && key->weights) /* they are, or were when this worker came */
		return err_set(e, -EINVAL, "%s: key '%s' has its weights in the box already; they are broadcast once",
			x->who, key->name);
	return exchange_check_shared(x, r, e);
}

/* Where the transport writes the result of a complete chunk. */
static void exchange_aim(struct exchange *x, struct flight *f)
{
	const struct chunk_span *span = f->span;
	const struct key *key = &x->keyring->keys[span->key_first];
	struct sink *sink = &f->lane->sinks[f->local];
	uint8_t *base, *into;

	if (x->mapped || x->group.lossy)
		return;
	if (key->dst_in_place) {
		into = key->dst + (span->offset - key->offset);
	} else {
		base = (uint8_t *)(uintptr_t)exchange_result_base(x, f);
		/* The root of a broadcast has the values already, unless it wants those of later rounds. */
		into = base && (f->type != WIRE_INIT || f->apart || f->delivers) ? base + span->offset : NULL;
	}
	f->into = into;
	if (x->encrypted)
		sink->addr = sealed_place(&x->sealed, &x->keyring->plan, span);
	else
		sink->addr = into && f->landing ? f->landing : into;
}

static void exchange_place(struct exchange *x, struct flight *f, const struct key *key, const struct exchange_round *r)
{
	const struct chunk_span *span = f->span;
	struct exchange_part part = exchange_part(key, span);
	const uint8_t *src = r->src;
	uint8_t *base;

	if (r->type == WIRE_PULL)
		return;
	if (key->src_in_place) {
		f->payload = src + part.in_key;
		return;
	}
	base = exchange_push_base(x, f);
	f->payload = base + span->offset;
	if (src + part.in_key == base + part.in_region)
		return; /* phub_alloc()'s memory */
	if (key->src_device) {
		f->copies++;
		x->copied_bytes += part.bytes;
		device_fetch(
			&x->devices, key->src_device, base + part.in_region, src + part.in_key, part.bytes, key, f);
		return;
	}
	if (x->mapped && span->key_count == 1 && !key->overlaps && lane_stages(f->lane)) {
		f->src = src + part.in_key;
		return;
	}
	exchange_copy(x, base + part.in_region, src + part.in_key, part.bytes);
}

/* All keys of the chunk are in: it goes out, as soon as it may. */
static void exchange_complete(struct exchange *x, struct flight *f, uint64_t now_ns)
{
	f->hyper = x->hyper;
	exchange_aim(x, f);
	if (f->copies) {
		f->state = FLIGHT_FETCHED;
		x->backlog = true;
		return;
	}
	exchange_queue(x, f, now_ns);
	lane_pump(f->lane, now_ns);
	if (f->lane->heap_count > 0)
		x->backlog = true;
	if (++x->unpolled < EXCHANGE_FLUSH_CHUNKS)
		return;
	exchange_progress(x, now_ns);
}

/* One chunk of the key is placed. Is it the last key that the chunk lacked? */
static bool exchange_fill(
	struct exchange *x, struct flight *f, const struct key *key, const struct exchange_round *r, uint16_t priority)
{
	if (f->state == FLIGHT_IDLE) {
		f->state = FLIGHT_FILLING;
		f->type = (uint8_t)r->type;
		f->priority = priority;
		f->delivers = false;
		f->settles = false;
	}
	if (priority < f->priority)
		f->priority = priority;
	if ((key->dst && !key->dst_in_place) || (key->landed && x->group.lossy))
		f->delivers = true;
	if (key->src_range || key->dst_range || r->type != WIRE_PUSH)
		f->settles = true;
	return ++f->keys_in == f->span->key_count;
}

/* Will the result be in the library's memory when the round is over? */
static bool exchange_lands(const struct exchange *x, const struct key *key)
{
	if (x->mapped || key->apart)
		return true;
	if (key->dst_in_place || key->type == WIRE_INIT)
		return false;
	return !key->dst || key->dst_device || !x->group.lossy;
}

/* Would results be written to where payloads lie that were not sent yet? A chunk's own are gone when its result comes.
 */
static bool exchange_overlaps(const struct key *key, const struct exchange_round *r)
{
	uintptr_t src = (uintptr_t)r->src, dst = (uintptr_t)r->dst;

	return src && dst && src != dst && (src < dst ? dst - src : src - dst) < key->bytes;
}

static void exchange_open_key(struct exchange *x, struct key *key, const struct exchange_round *r)
{
	const struct flight *first = &x->flights[key->chunk_first];
	bool overlaps = exchange_overlaps(key, r);
	bool in_place = first->span->key_count == 1 && !x->mapped && !overlaps;
	/* Who encrypts or codes reads and writes it, not a device. */
	bool anywhere = x->group.queue->anywhere || x->encrypted, reached = !x->encrypted && !first->code;
	bool src_there = r->src_device ? reached && r->src_range && r->src_range->direct : r->src_range || anywhere;
	bool dst_there = r->dst_device ? reached && r->dst_range && r->dst_range->direct : r->dst_range || anywhere;

	key->round = (uint32_t)first->round;
	key->claimed = false;
	key->given_up = false;
	key->type = (uint8_t)r->type;
	key->overlaps = overlaps;
	key->chunks_left = key->chunk_count;
	key->dst = r->dst && r->dst != exchange_result_base(x, first) + key->offset ? r->dst : NULL;
	key->src_in_place = in_place && r->src && src_there;
	key->src_device = key->src_in_place ? NULL : r->src_device;
	key->src_range = key->src_in_place ? r->src_range : NULL;
	key->dst_range = r->dst_range;
	key->dst_in_place = in_place && !x->group.lossy && key->dst && dst_there && !key->apart;
	key->dst_device = key->dst_in_place ? NULL : r->dst_device;
	key->landed = exchange_lands(x, key);
	if (key->src_range)
		key->src_range->uses++;
	if (key->dst_range)
		key->dst_range->uses++;
	x->open_keys++;
}

static uint16_t exchange_priority(int priority)
{
	if (priority < 0)
		return 0;
	return (uint16_t)(priority < EXCHANGE_PRIORITY_MAX ? priority : EXCHANGE_PRIORITY_MAX);
}

/* The library's memory too is registered where the transport wants that, once something of it is used. */
int exchange_register(struct exchange *x, uint8_t *memory, bool *known, struct err *e)
{
	const struct transport_ops *ops = x->transport->ops;
	int rc;

	if (*known || x->mapped || x->encrypted || !ops->mem_register)
		return 0;
	rc = ops->mem_register(x->transport, memory, x->keyring->plan.region_bytes, NULL, e);
	*known = rc == 0;
	return rc;
}

/* What a GPU copies to and from is pinned as a whole: most of it will be used where one key of it is. */
static void exchange_pin(struct exchange *x, const struct key *key)
{
	const struct flight *first = &x->flights[key->chunk_first];
	uint64_t bytes = x->keyring->plan.region_bytes;

	if (key->src_device)
		devices_pin(&x->devices, key->src_device, exchange_push_base(x, first), bytes, false);
	if (key->dst_device)
		devices_pin(&x->devices, key->dst_device, exchange_result_base(x, first), bytes, x->mapped);
}

/*
 * Most of many small keys complete no chunk: they send nothing, and the clock would cost more than all else here. Where
 * results overwrite what is pushed, all of that is copied before the first chunk goes.
 */
int exchange_begin(struct exchange *x, const struct exchange_round *r, struct err *e)
{
	struct key *key = &x->keyring->keys[r->key];
	struct flight *f = &x->flights[key->chunk_first];
	uint16_t priority = exchange_priority(r->priority);
	uint32_t placed = 0;
	uint64_t now_ns = 0;
	int rc = x->mapped ? 0 : keyring_take_arena(x->keyring, e);

	if (rc < 0)
		return rc;
	exchange_open_key(x, key, r);
	if (!(key->src_in_place || r->type == WIRE_PULL) || !key->dst_in_place)
		rc = exchange_register(x, x->keyring->arena, &x->arena_known, e);
	if (rc < 0) {
		exchange_give_up_key(x, key);
		return rc;
	}
	if (key->src_device || key->dst_device)
		exchange_pin(x, key);
	for (; key->overlaps && placed < key->chunk_count; placed++)
		exchange_place(x, &f[placed], key, r);
	for (uint32_t i = 0; i < key->chunk_count; i++) {
		if (i >= placed)
			exchange_place(x, &f[i], key, r);
		if (!exchange_fill(x, &f[i], key, r, priority))
			return 0;
		if (now_ns == 0)
			now_ns = x->env->now(x->env->ctx);
		exchange_complete(x, &f[i], now_ns);
	}
	devices_flush(&x->devices);
	exchange_flush(x);
	return 0;
}
