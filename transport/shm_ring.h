/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rings of a shared-memory connection: how they lie in memory that both ends may write, and the end of them
 * that trusts nothing it reads there. One memfd per connection holds a lane of entries in either direction; an entry
 * is the 64-byte wire header, so it is one cache line. Payloads never go through a lane.
 * Called by the owner of the connection's queue; pure but for the shared words. No system calls.
 *
 *      page 0         two shm_control: what the box alone writes, what the worker alone writes
 *      up, down       capacity entries each: worker -> box, box -> worker
 *      up_places      capacity x 8 bytes: where the payload of the worker's entry lies: in which slot; 0: at the
 *                     chunk's own place in the push region
 *      down_places    capacity x 8 bytes: where the payload of the box's entry lies: its offset in the result region
 *
 * Indices run freely over 2^32; entry i lies at i mod capacity. Each end keeps its own indices to itself, publishes
 * them, and never reads them back: memory that the peer can write is an input and nothing else.
 *
 * Sleeping without losing a wake-up: who is about to sleep stores `armed`, then reads the peer's indices once more;
 * who publishes an index stores it, then reads the peer's `armed`. All four accesses are sequentially consistent,
 * so there is one order of them in which either the sleeper's store comes before the publisher's load (and the bell
 * is rung) or the publisher's store before the sleeper's load (and it does not sleep). The bell stays rung until
 * the sleeper has polled, so it does not matter whether it comes before or after the epoll_wait().
 */
#ifndef PHUB_TRANSPORT_SHM_RING_H
#define PHUB_TRANSPORT_SHM_RING_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/transport.h"
#include "transport/wire.h"

enum {
	SHM_RING_CAPACITY_MIN = 16,
	SHM_RING_CAPACITY_MAX = 1024,
	SHM_RING_PAGE = 4096,
};

/* Where all indices begin: they wrap soon, so that a mistake there does not wait for 2^32 messages. */
#define SHM_RING_FIRST (UINT32_MAX - 40)

/* Bits of `armed`: what the sleeper wants to be woken for. */
enum {
	SHM_ARMED_DATA = 1, /* an entry for it */
	SHM_ARMED_ROOM = 2, /* room in its own lane */
};

/*
 * One end's words, each on two cache lines of its own (the prefetcher fetches lines in pairs). Written by that end
 * alone, but for `armed`, which the peer clears when it rings the bell, so that it rings once.
 */
struct shm_control {
	_Alignas(128) _Atomic uint32_t tail;  /* entries published by this end */
	_Alignas(128) _Atomic uint32_t head;  /* entries consumed by this end */
	_Alignas(128) _Atomic uint32_t armed; /* this end is about to sleep */
	_Atomic uint32_t bye;                 /* this end ended the connection in good order */
};

enum shm_side { SHM_BOX = 0, SHM_WORKER = 1 };

struct shm_entry {
	_Alignas(64) _Atomic uint64_t words[WIRE_HEADER_BYTES / 8];
};

/* One end of both lanes. All indices in it are this end's own. */
struct shm_ring {
	/* consuming */
	struct shm_control *peer;
	struct shm_entry *in;
	_Atomic uint64_t *in_places;
	uint32_t mask;
	uint32_t head; /* next entry to read */
	uint32_t head_published;
	uint32_t tail_seen; /* of the peer, when last read; checked */
	bool last_seen;     /* the peer is gone: read no further than tail_seen */
	/* producing */
	struct shm_control *own;
	struct shm_entry *out;
	_Atomic uint64_t *out_places;
	uint32_t tail; /* next entry to write */
	uint32_t tail_published;
	uint32_t head_seen; /* of the peer, when last read; checked */
};

/*
 * The lane size for a connection: a power of two that holds the window and two results per chunk, within the
 * limits.
 */
uint32_t shm_ring_capacity(uint32_t window, uint32_t chunk_count);

/* Is it a power of two within the limits? */
bool shm_ring_capacity_valid(uint32_t capacity);

/* Bytes of the memory that holds the rings. */
size_t shm_ring_bytes(uint32_t capacity);

/* Box: makes zeroed memory into empty rings, before anybody else sees it. */
void shm_ring_format(void *memory);

/* Looks at the rings from one end. */
void shm_ring_attach(struct shm_ring *r, void *memory, uint32_t capacity, enum shm_side side);

/*
 * Writes the next entry; nobody sees it before shm_ring_publish(). 0, -EAGAIN (the lane is full), or -EPROTO (the
 * peer's index is impossible).
 */
int shm_ring_put(struct shm_ring *r, const struct wire_header *header, uint64_t place);

/* Shows the peer all that was put. True when it sleeps and its bell must be rung. */
bool shm_ring_publish(struct shm_ring *r);

/*
 * Takes the next entry: copies it out, then decodes the copy, and never reads it again. 1 with `header` and
 * `place` (not checked: that needs to know the region), 0 when there is none, -EPROTO when the peer's index is
 * impossible, or wire_decode()'s error.
 */
int shm_ring_take(struct shm_ring *r, struct wire_header *header, uint64_t *place);

/*
 * Tells the peer, once in a quarter lane, how far the entries were taken. True when it sleeps waiting for room and
 * its bell must be rung. A producer that waits for room sees a full lane, so there are always three quarters left
 * to be taken: it is never forgotten.
 */
bool shm_ring_give_back(struct shm_ring *r);

/* Is there room to put an entry? 1, 0, or -EPROTO. */
int shm_ring_room(struct shm_ring *r);

/* Before sleeping: asks to be woken; `bits` as above. Then shm_ring_quiet() decides whether to sleep. */
void shm_ring_arm(struct shm_ring *r, uint32_t bits);
void shm_ring_disarm(struct shm_ring *r);

/* After arming: has the peer published nothing that `bits` asks for? */
bool shm_ring_quiet(const struct shm_ring *r, uint32_t bits);

/* The peer is gone: what it published until now may still be taken, what it writes later is ignored. 0 or -EPROTO. */
int shm_ring_close_peer(struct shm_ring *r);

/* Says that this end ends the connection in good order; and whether the peer said so. */
void shm_ring_say_bye(struct shm_ring *r);
bool shm_ring_peer_said_bye(const struct shm_ring *r);

/*
 * Is this message about a chunk that exists, as long as the chunk is? With shm_ring_find() the whole bound of what a
 * peer can make this end read.
 */
static inline bool shm_ring_chunk_ok(
	const struct wire_header *header, const struct span *spans, uint32_t chunk_count, bool shorter)
{
	if (header->type == WIRE_CREDIT)
		return true;
	if (header->chunk >= chunk_count)
		return false;
	if (header->length == 0 || header->length == spans[header->chunk].bytes)
		return true;
	return shorter && header->length < spans[header->chunk].bytes;
}

/*
 * Where a worker's payload lies in the push region is not the worker's to say: at its chunk's place, or in the slot
 * that it names by number, of those that the connection has. 0 with `offset`, or -EPROTO: no such slot, or it is too
 * small. The header has passed shm_ring_chunk_ok() and has a payload.
 */
struct shm_slots {
	uint64_t offset; /* of the first, in the push region */
	uint32_t count, bytes;
};

static inline int shm_ring_find(const struct shm_slots *slots, const struct wire_header *header,
	const struct span *spans, uint64_t place, uint64_t *offset)
{
	if (place > slots->count || (place > 0 && header->length > slots->bytes))
		return -EPROTO;
	*offset = place ? slots->offset + (place - 1) * slots->bytes : spans[header->chunk].offset;
	return 0;
}

/* Do they lie within a region of `bytes`? No slots are all zero. */
static inline bool shm_slots_fit(const struct shm_slots *slots, uint64_t bytes)
{
	if (slots->count == 0)
		return slots->offset == 0 && slots->bytes == 0;
	return slots->bytes > 0 && slots->offset <= bytes &&
	       (uint64_t)slots->count * slots->bytes <= bytes - slots->offset;
}

#endif
