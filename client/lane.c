/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pushes on their way to one core. Each chunk is in the heap at most once, so that heap and lists are as large as the
 * lane's share of the job and nothing is allocated after lane_open().
 */
#include "client/lane.h"

#include "client/copy.h"
#include "client/sealed.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	LANE_AGAIN_MS = 20, /* a lossy push is sent again after this, then twice that, ... */
	LANE_AGAIN_DOUBLINGS = 5,
	LANE_STUCK_MS = 1,     /* so long nothing is answered before more payloads are copied */
	LANE_COPIES_BATCH = 4, /* in one lane_pump(): the box works on the first ones already */
};

int lane_init(struct lane *lane, struct lane_group *group, uint32_t core, uint32_t count)
{
	*lane = (struct lane){
		.group = group,
		.core = core,
		.epoch = group->epoch,
		.count = count,
		.chunks = calloc(count, sizeof(*lane->chunks)),
		.spans = calloc(count, sizeof(*lane->spans)),
		.wires = calloc(count, sizeof(*lane->wires)),
		.sinks = calloc(count, sizeof(*lane->sinks)),
		.flights = calloc(count, sizeof(*lane->flights)),
		.heap = calloc(count, sizeof(*lane->heap)),
		.sent_oldest = FLIGHT_NONE,
		.sent_newest = FLIGHT_NONE,
		.again_ns = UINT64_MAX,
	};
	if (lane->chunks && lane->spans && lane->wires && lane->sinks && lane->flights && lane->heap)
		return 0;
	lane_fini(lane);
	return -ENOMEM;
}

void lane_fini(struct lane *lane)
{
	assert(!lane->conn);
	free(lane->chunks);
	free(lane->spans);
	free(lane->wires);
	free(lane->cells_free);
	free(lane->sinks);
	free(lane->flights);
	free(lane->heap);
	free(lane->slots_free);
	memset(lane, 0, sizeof(*lane));
}

int lane_open(struct lane *lane, uint32_t window)
{
	uint32_t count = lane->conn->slot_count;

	free(lane->slots_free);
	lane->slots_free = NULL;
	if (count > 0) {
		lane->slots_free = calloc(count, sizeof(*lane->slots_free));
		if (!lane->slots_free)
			return -ENOMEM;
		for (uint32_t i = 0; i < count; i++)
			lane->slots_free[i] = count - i;
	}
	lane->slots_free_count = count;
	lane->copies_max = count;
	lane->state = LANE_UP;
	lane->why[0] = '\0';
	lane->full = false;
	lane->seq = 0;
	lane->credit = window;
	return 0;
}

bool lane_stages(const struct lane *lane)
{
	return lane->state == LANE_UP && lane->conn->slot_count > 0;
}

static void lane_unplug(struct lane *lane)
{
	struct conn *conn = lane->conn;

	if (!conn)
		return;
	if (conn->queue)
		conn->queue->ops->drop(conn->queue, conn);
	else
		conn->transport->ops->abandon(conn->transport, conn);
	lane->conn = NULL;
}

void lane_note(struct lane *lane, const char *why)
{
	if (why && lane->conn)
		snprintf(lane->why, sizeof(lane->why), "%.110s, %.80s", why, lane->conn->peer);
}

void lane_drop(struct lane *lane)
{
	for (uint32_t i = 0; i < lane->count; i++)
		lane->sinks[i].addr = NULL;
	lane_unplug(lane);
	if (lane->state != LANE_LOST)
		lane->state = LANE_DOWN;
	sealed_reset(lane);
	lane->heap_count = 0;
	lane->sent_oldest = FLIGHT_NONE;
	lane->sent_newest = FLIGHT_NONE;
	lane->again_ns = UINT64_MAX;
	lane->starved_ns = 0;
}

/* ---- the heap: the smallest order first ---- */

static void lane_heap_push(struct lane *lane, struct lane_item item)
{
	uint32_t at = lane->heap_count++;

	assert(lane->heap_count <= lane->count);
	while (at > 0 && lane->heap[(at - 1) / 2].order > item.order) {
		lane->heap[at] = lane->heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	lane->heap[at] = item;
}

static void lane_heap_pop(struct lane *lane)
{
	struct lane_item item = lane->heap[--lane->heap_count];
	uint32_t at = 0, child;

	for (child = 1; child < lane->heap_count; child = 2 * at + 1) {
		if (child + 1 < lane->heap_count && lane->heap[child + 1].order < lane->heap[child].order)
			child++;
		if (lane->heap[child].order >= item.order)
			break;
		lane->heap[at] = lane->heap[child];
		at = child;
	}
	lane->heap[at] = item;
}

void lane_push(struct lane *lane, struct flight *flight)
{
	/* A copy of the last round's push may still be queued here: it then becomes this one. */
	if (flight->queued)
		return;
	flight->queued = true;
	lane_heap_push(lane, (struct lane_item){
				     .order = (uint64_t)flight->priority << 48 | (lane->order++ & 0xffffffffffffull),
				     .local = flight->local,
			     });
}

void lane_rest(struct lane *lane)
{
	lane_unplug(lane);
	sealed_reset(lane);
	lane->state = LANE_BROKEN;
	lane->starved_ns = 0;
	lane->probes = 0;
	for (uint32_t i = 0; i < lane->count; i++) {
		struct flight *f = lane->flights[i];

		f->sends = 0; /* the transport has forgotten them */
		if (f->state == FLIGHT_SENT)
			lane_push(lane, f);
	}
}

void lane_raise(struct lane *lane, uint32_t epoch)
{
	lane->epoch = epoch;
	for (uint32_t i = 0; i < lane->count && lane->state == LANE_UP; i++)
		if (lane->flights[i]->state == FLIGHT_SENT)
			lane_push(lane, lane->flights[i]);
}

/* ---- lossy transports: what was sent and not answered ---- */

static void lane_list_add(struct lane *lane, struct flight *f)
{
	f->older = lane->sent_newest;
	f->newer = FLIGHT_NONE;
	if (lane->sent_newest == FLIGHT_NONE)
		lane->sent_oldest = f->local;
	else
		lane->flights[lane->sent_newest]->newer = f->local;
	lane->sent_newest = f->local;
}

static void lane_list_remove(struct lane *lane, struct flight *f)
{
	if (f->older == FLIGHT_NONE)
		lane->sent_oldest = f->newer;
	else
		lane->flights[f->older]->newer = f->newer;
	if (f->newer == FLIGHT_NONE)
		lane->sent_newest = f->older;
	else
		lane->flights[f->newer]->older = f->older;
}

static uint64_t lane_patience(uint8_t tries)
{
	unsigned doublings = tries < LANE_AGAIN_DOUBLINGS ? tries : LANE_AGAIN_DOUBLINGS;

	return (uint64_t)LANE_AGAIN_MS * 1000000u << doublings;
}

void lane_answered(struct lane *lane, struct flight *flight)
{
	if (lane->group->lossy)
		lane_list_remove(lane, flight);
	if (lane->sealed)
		sealed_free(lane, flight);
	if (!flight->copied)
		return;
	lane->stuck_ns = 0;
	if (flight->slot)
		lane->slots_free[lane->slots_free_count++] = flight->slot;
	flight->slot = 0;
	flight->copied = false;
	if (--lane->copies_out == 0)
		lane->copies_max = lane->conn->slot_count;
}

void lane_read(struct lane *lane, struct flight *flight)
{
	assert(flight->sends > 0);
	flight->sends--;
	if (lane->sealed)
		sealed_free(lane, flight);
}

bool lane_awaits(const struct lane *lane)
{
	bool settles = false; /* a result came, and only the word is missing that its push is not read any more */

	for (uint32_t i = 0; i < lane->count; i++)
		settles = settles || (lane->flights[i]->state == FLIGHT_LANDED && lane->flights[i]->sends > 0);
	return lane->state == LANE_UP && (settles || !lane->finished);
}

void lane_tick(struct lane *lane, uint64_t now_ns)
{
	uint64_t earliest = UINT64_MAX;

	if (now_ns < lane->again_ns || lane->state != LANE_UP)
		return;
	for (uint32_t i = lane->sent_oldest; i != FLIGHT_NONE; i = lane->flights[i]->newer) {
		struct flight *f = lane->flights[i];

		if (f->queued)
			continue; /* lane_send() sets its time anew */
		if (now_ns >= f->again_ns) {
			/* Not while the transport still reads the send before. */
			if (f->sends == 0)
				lane_push(lane, f);
			else
				f->again_ns = now_ns + lane_patience(0);
		}
		if (!f->queued && f->again_ns < earliest)
			earliest = f->again_ns;
	}
	lane->again_ns = earliest;
}

/* ---- sending ---- */

void lane_grant(struct lane *lane, uint32_t credit)
{
	if (!wire_after(credit, lane->credit))
		return;
	lane->credit = credit;
	lane->starved_ns = 0;
	lane->probes = 0;
}

/* Without credit, one message is let through now and then where the grant itself may have been lost. */
static bool lane_may_send(struct lane *lane, uint64_t now_ns)
{
	if (!wire_after(lane->seq + 1, lane->credit))
		return true;
	if (!lane->group->lossy)
		return false;
	if (lane->starved_ns == 0) {
		lane->starved_ns = now_ns ? now_ns : 1;
		return false;
	}
	if (now_ns - lane->starved_ns < lane_patience(lane->probes))
		return false;
	lane->starved_ns = now_ns;
	if (lane->probes < UINT8_MAX)
		lane->probes++;
	return true;
}

static uint32_t lane_payload_bytes(const struct lane *lane, const struct flight *f)
{
	return f->coded ? f->coded : lane->spans[f->local].bytes;
}

static void lane_sent(struct lane *lane, struct flight *f, uint64_t now_ns)
{
	struct lane_group *group = lane->group;

	lane->seq++;
	if (f->state == FLIGHT_SENT) {
		group->resent++;
	} else {
		f->state = FLIGHT_SENT;
		f->tries = 0;
		group->pushes++;
		group->pushed_bytes += f->type == WIRE_PULL ? 0 : lane_payload_bytes(lane, f);
		group->coded += f->coded > 0;
		if (group->lossy)
			lane_list_add(lane, f);
	}
	f->sent_ns = now_ns;
	if (!group->lossy)
		return;
	f->again_ns = now_ns + lane_patience(f->tries);
	if (f->tries < UINT8_MAX)
		f->tries++;
	if (f->again_ns < lane->again_ns)
		lane->again_ns = f->again_ns;
}

/* May one more payload be copied? */
static bool lane_may_copy(struct lane *lane, uint64_t now_ns)
{
	if (lane->copies_out < lane->copies_max)
		return true;
	if (lane->stuck_ns == 0)
		lane->stuck_ns = now_ns ? now_ns : 1;
	if (now_ns < lane->stuck_ns + LANE_STUCK_MS * 1000000ull)
		return false;
	lane->stuck_ns = now_ns;
	lane->copies_max *= 2;
	return true;
}

/* Copies the payload to where the box reads it. */
static void lane_copy(struct lane *lane, struct flight *f)
{
	const struct span *span = &lane->spans[f->local];
	uint8_t *to = lane->push + span->offset;

	if (lane->slots_free_count > 0) {
		f->slot = lane->slots_free[--lane->slots_free_count];
		to = (uint8_t *)lane->conn->slots + (size_t)(f->slot - 1) * lane->conn->slot_bytes;
	}
	copy_cold(to, f->src, span->bytes);
	f->payload = to;
	f->src = NULL;
	f->copied = true;
	lane->copies_out++;
	lane->group->copied_bytes += span->bytes;
}

static int lane_send(struct lane *lane, struct flight *f, uint64_t now_ns)
{
	struct lane_group *group = lane->group;
	bool payload = f->type != WIRE_PULL;
	const uint8_t *from = payload ? f->payload : NULL;
	struct wire_header header = {
		.type = (enum wire_type)f->type,
		.length = payload ? lane_payload_bytes(lane, f) : 0,
		.job = group->job,
		.generation = group->generation,
		.epoch = lane->epoch,
		.chunk = f->local,
		.rank = group->rank,
		.round = f->round,
		.hyper = f->hyper,
		.count = payload ? 1 : 0,
		.seq = lane->seq + 1,
		.priority = f->priority,
		.coded = f->coded > 0,
	};
	void *cookie = payload && group->cookies ? f : NULL;
	int rc = payload && lane->sealed ? sealed_push(lane, f, &header, &from) : 0;

	if (rc == 0)
		rc = group->queue->ops->send(group->queue, lane->conn, &header, from, cookie);
	if (rc < 0)
		return rc;
	if (cookie)
		f->sends++;
	lane_sent(lane, f, now_ns);
	return 0;
}

/* -EPIPE: the connection is closed, and EVENT_CLOSED tells why. All else is a bug of ours or the transport's. */
static void lane_broke(struct lane *lane, int error)
{
	lane->full = true;
	if (error == -EPIPE)
		return;
	lane->state = LANE_LOST;
	lane->error = error;
}

unsigned lane_pump(struct lane *lane, uint64_t now_ns)
{
	unsigned count = 0, copies = 0;

	lane->more = false;

	while (lane->heap_count > 0 && !lane->full && lane->state == LANE_UP) {
		struct flight *f = lane->flights[lane->heap[0].local];
		int rc;

		/* A result that came meanwhile makes a queued repetition pointless. */
		if (f->state == FLIGHT_QUEUED || f->state == FLIGHT_SENT) {
			if (!lane_may_send(lane, now_ns))
				break;
			if (f->src) {
				lane->more = copies++ == LANE_COPIES_BATCH;
				if (lane->more || !lane_may_copy(lane, now_ns))
					break;
				lane_copy(lane, f);
			}
			if (lane->sealed && !sealed_may(lane, f))
				break;
			rc = lane_send(lane, f, now_ns);
			if (rc == -EAGAIN) {
				lane->full = true;
				break;
			}
			if (rc < 0) {
				lane_broke(lane, rc);
				break;
			}
			count++;
		}
		f->queued = false;
		lane_heap_pop(lane);
	}
	if (count)
		lane->group->unflushed = true;
	return count;
}

static uint64_t lane_copy_due(const struct lane *lane)
{
	if (lane->heap_count == 0)
		return UINT64_MAX;
	if (lane->more)
		return 0;
	return lane->stuck_ns ? lane->stuck_ns + LANE_STUCK_MS * 1000000ull : UINT64_MAX;
}

uint64_t lane_due(const struct lane *lane)
{
	uint64_t due = lane->again_ns;

	if (lane->state != LANE_UP)
		return UINT64_MAX;
	if (!lane->group->lossy)
		return lane_copy_due(lane);
	if (lane->heap_count > 0 && lane->starved_ns && lane->starved_ns + lane_patience(lane->probes) < due)
		due = lane->starved_ns + lane_patience(lane->probes);
	return due;
}
