/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spsc is Lamport's queue, with each side keeping a copy of the other's index so that the shared line moves only when
 * the copy says full or empty. mpsc is Vyukov's bounded queue: a sequence number in each slot says whose turn it is.
 * Indexes run on for ever in 64 bits.
 */
#include "phub/base/ring.h"

#include <assert.h>
#include <errno.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "phub/base/cpu.h"

struct ring_spsc {
	/* Constant. */
	uint64_t mask;
	uint32_t entry_bytes;
	unsigned char *entries;
	/* The writer's line. */
	alignas(CPU_LINE_BYTES) _Atomic uint64_t tail; /* entries pushed */
	uint64_t head_seen;
	/* The reader's line. */
	alignas(CPU_LINE_BYTES) _Atomic uint64_t head; /* entries popped */
	uint64_t tail_seen;
};

struct ring_mpsc {
	/* Constant. */
	uint64_t mask;
	uint32_t entry_bytes;
	size_t slot_bytes;
	unsigned char *slots;
	/* The writers' line. */
	alignas(CPU_LINE_BYTES) _Atomic uint64_t tail; /* places taken */
	/* The reader's line. */
	alignas(CPU_LINE_BYTES) uint64_t head; /* entries popped */
};

/* In front of each entry of an mpsc: place p is free when `turn` is p, and holds an entry when it is p + 1. */
struct ring_slot {
	_Atomic uint64_t turn;
	unsigned char entry[];
};

static uint64_t ring_round_up(uint32_t capacity)
{
	uint64_t rounded = 2;

	while (rounded < capacity)
		rounded *= 2;
	return rounded;
}

static int ring_check(uint32_t capacity, uint32_t entry_bytes)
{
	if (capacity == 0 || capacity > RING_CAPACITY_MAX || entry_bytes == 0 || entry_bytes > RING_ENTRY_BYTES_MAX)
		return -EINVAL;
	return 0;
}

/* aligned_alloc() wants a multiple of the alignment. */
static void *ring_take(size_t bytes)
{
	return aligned_alloc(CPU_LINE_BYTES, (bytes + CPU_LINE_BYTES - 1) / CPU_LINE_BYTES * CPU_LINE_BYTES);
}

int ring_spsc_create(uint32_t capacity, uint32_t entry_bytes, struct ring_spsc **out)
{
	int ret = ring_check(capacity, entry_bytes);
	if (ret < 0)
		return ret;
	uint64_t count = ring_round_up(capacity);
	struct ring_spsc *ring = ring_take(sizeof(*ring));
	unsigned char *entries = ring_take(count * entry_bytes);
	if (!ring || !entries) {
		free(ring);
		free(entries);
		return -ENOMEM;
	}
	memset(ring, 0, sizeof(*ring));
	ring->mask = count - 1;
	ring->entry_bytes = entry_bytes;
	ring->entries = entries;
	*out = ring;
	return 0;
}

void ring_spsc_destroy(struct ring_spsc *ring)
{
	if (!ring)
		return;
	free(ring->entries);
	free(ring);
}

uint32_t ring_spsc_capacity(const struct ring_spsc *ring)
{
	return (uint32_t)ring->mask + 1;
}

int ring_spsc_push(struct ring_spsc *ring, const void *entry)
{
	uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed); /* ours */

	if (tail - ring->head_seen > ring->mask) {
		/* Acquire, with the release in pop: the reader has finished with the place that is next. */
		ring->head_seen = atomic_load_explicit(&ring->head, memory_order_acquire);
		if (tail - ring->head_seen > ring->mask)
			return -EAGAIN;
	}
	memcpy(ring->entries + (tail & ring->mask) * ring->entry_bytes, entry, ring->entry_bytes);
	/* Publishes the entry to pop; seq_cst, where release would do, for the sleepers of ring.h. */
	atomic_store_explicit(&ring->tail, tail + 1, memory_order_seq_cst);
	return 0;
}

int ring_spsc_pop(struct ring_spsc *ring, void *entry)
{
	uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed); /* ours */

	if (head == ring->tail_seen) {
		/* Acquire, with the store in push: the entry is there. */
		ring->tail_seen = atomic_load_explicit(&ring->tail, memory_order_acquire);
		if (head == ring->tail_seen)
			return -EAGAIN;
	}
	memcpy(entry, ring->entries + (head & ring->mask) * ring->entry_bytes, ring->entry_bytes);
	/* Release, with the acquire in push: we are done with the place. */
	atomic_store_explicit(&ring->head, head + 1, memory_order_release);
	return 0;
}

bool ring_spsc_ready(const struct ring_spsc *ring)
{
	return atomic_load_explicit(&ring->tail, memory_order_seq_cst) !=
	       atomic_load_explicit(&ring->head, memory_order_relaxed);
}

static struct ring_slot *ring_mpsc_slot(const struct ring_mpsc *ring, uint64_t place)
{
	return (struct ring_slot *)(void *)(ring->slots + (place & ring->mask) * ring->slot_bytes);
}

int ring_mpsc_create(uint32_t capacity, uint32_t entry_bytes, struct ring_mpsc **out)
{
	size_t turn_bytes = sizeof(struct ring_slot);

	int ret = ring_check(capacity, entry_bytes);
	if (ret < 0)
		return ret;
	uint64_t count = ring_round_up(capacity);
	size_t slot_bytes = (turn_bytes + entry_bytes + turn_bytes - 1) / turn_bytes * turn_bytes;
	struct ring_mpsc *ring = ring_take(sizeof(*ring));
	unsigned char *slots = ring_take(count * slot_bytes);
	if (!ring || !slots) {
		free(ring);
		free(slots);
		return -ENOMEM;
	}
	memset(ring, 0, sizeof(*ring));
	ring->mask = count - 1;
	ring->entry_bytes = entry_bytes;
	ring->slot_bytes = slot_bytes;
	ring->slots = slots;
	for (uint64_t place = 0; place < count; place++)
		atomic_init(&ring_mpsc_slot(ring, place)->turn, place);
	*out = ring;
	return 0;
}

void ring_mpsc_destroy(struct ring_mpsc *ring)
{
	if (!ring)
		return;
	free(ring->slots);
	free(ring);
}

uint32_t ring_mpsc_capacity(const struct ring_mpsc *ring)
{
	return (uint32_t)ring->mask + 1;
}

int ring_mpsc_push(struct ring_mpsc *ring, const void *entry)
{
	uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
	struct ring_slot *slot;

	for (;;) {
		slot = ring_mpsc_slot(ring, tail);
		/* Acquire, with the release in pop: the reader has finished with the place. */
		uint64_t turn = atomic_load_explicit(&slot->turn, memory_order_acquire);

		if (turn == tail) {
			/* Relaxed: taking a place publishes nothing; the slot's turn does. */
			if (atomic_compare_exchange_weak_explicit(
				    &ring->tail, &tail, tail + 1, memory_order_relaxed, memory_order_relaxed))
				break;
		} else if (turn < tail) {
			return -EAGAIN; /* the entry of one lap ago is still there */
		} else {
			tail = atomic_load_explicit(&ring->tail, memory_order_relaxed); /* another writer was faster */
		}
	}
	memcpy(slot->entry, entry, ring->entry_bytes);
	/* Publishes the entry to pop; seq_cst, where release would do, for the sleepers of ring.h. */
	atomic_store_explicit(&slot->turn, tail + 1, memory_order_seq_cst);
	return 0;
}

int ring_mpsc_pop(struct ring_mpsc *ring, void *entry)
{
	struct ring_slot *slot = ring_mpsc_slot(ring, ring->head);

	/* Acquire, with the store in push: the entry is there. */
	if (atomic_load_explicit(&slot->turn, memory_order_acquire) != ring->head + 1)
		return -EAGAIN;
	memcpy(entry, slot->entry, ring->entry_bytes);
	/* Release, with the acquire in push: the place is free for the next lap. */
	atomic_store_explicit(&slot->turn, ring->head + ring->mask + 1, memory_order_release);
	ring->head++;
	return 0;
}

bool ring_mpsc_ready(const struct ring_mpsc *ring)
{
	const struct ring_slot *slot = ring_mpsc_slot(ring, ring->head);

	return atomic_load_explicit(&slot->turn, memory_order_seq_cst) == ring->head + 1;
}
