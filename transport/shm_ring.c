/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rings of a shared-memory connection, one end of them. Entries go through relaxed 64-bit atomics: they are
 * ordered by the indices, and the compiler may neither split a copy into two reads nor read a field twice, whatever
 * the peer does to the memory meanwhile.
 */
#include "transport/shm_ring.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

_Static_assert(sizeof(struct shm_entry) == WIRE_HEADER_BYTES, "an entry is a header");
_Static_assert(2 * sizeof(struct shm_control) <= SHM_RING_PAGE, "the control words fit a page");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2, "atomics work across processes");

uint32_t shm_ring_capacity(uint32_t window, uint32_t chunk_count)
{
	uint32_t wanted = chunk_count > SHM_RING_CAPACITY_MAX / 2 ? SHM_RING_CAPACITY_MAX : 2 * chunk_count;
	uint32_t capacity = SHM_RING_CAPACITY_MIN;

	if (wanted < window)
		wanted = window;
	while (capacity < wanted && capacity < SHM_RING_CAPACITY_MAX)
		capacity *= 2;
	return capacity;
}

bool shm_ring_capacity_valid(uint32_t capacity)
{
	return capacity >= SHM_RING_CAPACITY_MIN && capacity <= SHM_RING_CAPACITY_MAX && !(capacity & (capacity - 1));
}

size_t shm_ring_bytes(uint32_t capacity)
{
	size_t bytes = SHM_RING_PAGE + (size_t)capacity * 2 * (sizeof(struct shm_entry) + sizeof(uint64_t));

	return (bytes + SHM_RING_PAGE - 1) & ~(size_t)(SHM_RING_PAGE - 1);
}

void shm_ring_format(void *memory)
{
	struct shm_control *control = memory;

	for (int side = 0; side < 2; side++) {
		atomic_store_explicit(&control[side].tail, SHM_RING_FIRST, memory_order_relaxed);
		atomic_store_explicit(&control[side].head, SHM_RING_FIRST, memory_order_relaxed);
	}
}

void shm_ring_attach(struct shm_ring *r, void *memory, uint32_t capacity, enum shm_side side)
{
	struct shm_control *control = memory;
	struct shm_entry *up = (struct shm_entry *)((char *)memory + SHM_RING_PAGE);
	struct shm_entry *down = up + capacity;
	_Atomic uint64_t *up_places = (_Atomic uint64_t *)(down + capacity);
	_Atomic uint64_t *down_places = up_places + capacity;

	assert(shm_ring_capacity_valid(capacity));
	memset(r, 0, sizeof(*r));
	r->own = &control[side];
	r->peer = &control[side == SHM_BOX ? SHM_WORKER : SHM_BOX];
	r->in = side == SHM_BOX ? up : down;
	r->out = side == SHM_BOX ? down : up;
	r->in_places = side == SHM_BOX ? up_places : down_places;
	r->out_places = side == SHM_BOX ? down_places : up_places;
	r->mask = capacity - 1;
	r->head = r->head_published = r->tail_seen = SHM_RING_FIRST;
	r->tail = r->tail_published = r->head_seen = SHM_RING_FIRST;
}

static uint32_t shm_ring_capacity_of(const struct shm_ring *r)
{
	return r->mask + 1;
}

int shm_ring_room(struct shm_ring *r)
{
	uint32_t head;

	if (r->tail - r->head_seen < shm_ring_capacity_of(r))
		return 1;
	/* acquire, with the consumer's store in shm_ring_give_back(): it has read the entries we are to overwrite. */
	head = atomic_load_explicit(&r->peer->head, memory_order_acquire);
	/* It can have taken no more than was published, and takes nothing back. */
	if (head - r->head_seen > r->tail_published - r->head_seen)
		return -EPROTO;
	r->head_seen = head;
	return r->tail - head < shm_ring_capacity_of(r);
}

int shm_ring_put(struct shm_ring *r, const struct wire_header *header, uint64_t place)
{
	uint64_t words[WIRE_HEADER_BYTES / 8];
	uint32_t at = r->tail & r->mask;
	int rc = shm_ring_room(r);

	if (rc <= 0)
		return rc < 0 ? rc : -EAGAIN;
	wire_encode(header, (uint8_t *)words);
	for (unsigned i = 0; i < WIRE_HEADER_BYTES / 8; i++)
		atomic_store_explicit(&r->out[at].words[i], words[i], memory_order_relaxed);
	atomic_store_explicit(&r->out_places[at], place, memory_order_relaxed);
	r->tail++;
	return 0;
}

/* Does the peer sleep, waiting for one of `bits`? Then it is to be rung, once. */
static bool shm_ring_peer_sleeps(struct shm_ring *r, uint32_t bits)
{
	if (!(atomic_load_explicit(&r->peer->armed, memory_order_seq_cst) & bits))
		return false;
	/*
	 * If the peer woke by itself and armed again since, this wipes out its second arming; but the bell that we
	 * ring next, before we publish anything else, wakes it for that, too.
	 */
	atomic_store_explicit(&r->peer->armed, 0, memory_order_relaxed);
	return true;
}

bool shm_ring_publish(struct shm_ring *r)
{
	if (r->tail == r->tail_published)
		return false;
	r->tail_published = r->tail;
	/* seq_cst: releases the entries to shm_ring_take(), and comes before the look at `armed` (see the header). */
	atomic_store_explicit(&r->own->tail, r->tail, memory_order_seq_cst);
	return shm_ring_peer_sleeps(r, SHM_ARMED_DATA);
}

/* Reads the peer's tail into tail_seen. 0 or -EPROTO. */
static int shm_ring_look(struct shm_ring *r, memory_order order)
{
	/* at least acquire, with the producer's store in shm_ring_publish(): the entries before it are written. */
	uint32_t tail = atomic_load_explicit(&r->peer->tail, order);

	/* A tail that went back shows up as a huge distance, too: what lies before head cannot come again. */
	if (tail - r->head > shm_ring_capacity_of(r) || tail - r->head < r->tail_seen - r->head)
		return -EPROTO;
	r->tail_seen = tail;
	return 0;
}

int shm_ring_take(struct shm_ring *r, struct wire_header *header, uint64_t *place)
{
	uint64_t words[WIRE_HEADER_BYTES / 8];
	uint32_t at = r->head & r->mask;
	int rc;

	if (r->head == r->tail_seen) {
		if (r->last_seen)
			return 0;
		rc = shm_ring_look(r, memory_order_acquire);
		if (rc < 0)
			return rc;
		if (r->head == r->tail_seen)
			return 0;
	}
	for (unsigned i = 0; i < WIRE_HEADER_BYTES / 8; i++)
		words[i] = atomic_load_explicit(&r->in[at].words[i], memory_order_relaxed);
	*place = atomic_load_explicit(&r->in_places[at], memory_order_relaxed);
	r->head++;
	rc = wire_decode((const uint8_t *)words, header);
	return rc < 0 ? rc : 1;
}

bool shm_ring_give_back(struct shm_ring *r)
{
	if (r->head - r->head_published < shm_ring_capacity_of(r) / 4)
		return false;
	r->head_published = r->head;
	/* seq_cst: our reads of the entries come before it, the look at `armed` after it. */
	atomic_store_explicit(&r->own->head, r->head, memory_order_seq_cst);
	return shm_ring_peer_sleeps(r, SHM_ARMED_ROOM);
}

void shm_ring_arm(struct shm_ring *r, uint32_t bits)
{
	atomic_store_explicit(&r->own->armed, bits, memory_order_seq_cst);
}

void shm_ring_disarm(struct shm_ring *r)
{
	atomic_store_explicit(&r->own->armed, 0, memory_order_relaxed);
}

bool shm_ring_quiet(const struct shm_ring *r, uint32_t bits)
{
	if (r->head != r->tail_seen)
		return false;
	if ((bits & SHM_ARMED_DATA) && !r->last_seen &&
		atomic_load_explicit(&r->peer->tail, memory_order_seq_cst) != r->tail_seen)
		return false;
	if ((bits & SHM_ARMED_ROOM) && atomic_load_explicit(&r->peer->head, memory_order_seq_cst) != r->head_seen)
		return false;
	return true;
}

int shm_ring_close_peer(struct shm_ring *r)
{
	int rc = r->last_seen ? 0 : shm_ring_look(r, memory_order_acquire);

	r->last_seen = true;
	return rc;
}

void shm_ring_say_bye(struct shm_ring *r)
{
	atomic_store_explicit(&r->own->bye, 1, memory_order_release);
}

bool shm_ring_peer_said_bye(const struct shm_ring *r)
{
	return atomic_load_explicit(&r->peer->bye, memory_order_acquire) != 0;
}
