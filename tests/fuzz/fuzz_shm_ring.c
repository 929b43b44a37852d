/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz: any sequence of writes by a peer into the memory of a ring, between and under the reads and writes of this
 * end. Whatever is taken is well-formed and, once checked against the chunk table and the slots, lies within the
 * region, at its chunk's place or in a slot; this end
 * never believes more entries to be there than the ring can hold, and takes nothing that was published after the
 * peer's end.
 *
 * Input: a byte that chooses capacity and side, then operations: a byte, and what it needs.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/shm_parcel.h"
#include "transport/shm_ring.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_CHUNKS = 3, FUZZ_REGION = 6400 };

static const struct span fuzz_spans[FUZZ_CHUNKS] = {{0, 64}, {64, 1000}, {2048, 2048}};
static const struct shm_slots fuzz_slots = {.offset = 4096, .count = 2, .bytes = 1152}; /* the last chunk fits none */

struct fuzz {
	const uint8_t *data;
	size_t left;
	_Alignas(SHM_RING_PAGE) uint8_t memory[64 * 1024];
	uint32_t capacity;
	struct shm_ring ring;
	uint32_t unread; /* upper bound of what may still be taken after the peer's end */
	int ended;
};

static void fuzz_require(int condition)
{
	if (!condition)
		abort();
}

/* The next bytes of the input; zeros when it has run out. */
static void fuzz_bytes(struct fuzz *f, void *out, size_t bytes)
{
	size_t have = bytes < f->left ? bytes : f->left;

	memset(out, 0, bytes);
	memcpy(out, f->data, have);
	f->data += have;
	f->left -= have;
}

static uint32_t fuzz_u32(struct fuzz *f)
{
	uint32_t value;

	fuzz_bytes(f, &value, sizeof(value));
	return value;
}

static uint8_t fuzz_u8(struct fuzz *f)
{
	uint8_t value;

	fuzz_bytes(f, &value, sizeof(value));
	return value;
}

static void fuzz_peer_writes_entry(struct fuzz *f, int well_formed)
{
	uint8_t *at = (uint8_t *)&f->ring.in[fuzz_u8(f) & (f->capacity - 1)];
	struct wire_header header = {.count = 1};

	if (!well_formed) {
		fuzz_bytes(f, at, WIRE_HEADER_BYTES);
		return;
	}
	header.type = (enum wire_type)(1 + fuzz_u8(f) % 5);
	header.chunk = fuzz_u8(f) % (FUZZ_CHUNKS + 1);
	if (header.type != WIRE_PULL && header.type != WIRE_CREDIT)
		header.length = header.chunk < FUZZ_CHUNKS ? fuzz_spans[header.chunk].bytes + fuzz_u8(f) % 2 : 1;
	header.round = fuzz_u32(f);
	wire_encode(&header, at);
	/* One byte of it may be anything. */
	at[fuzz_u8(f) % WIRE_HEADER_BYTES] ^= fuzz_u8(f);
}

/* A slot that is there, or nearly, or anything. */
static void fuzz_peer_names_place(struct fuzz *f)
{
	_Atomic uint64_t *at = &f->ring.in_places[fuzz_u8(f) & (f->capacity - 1)];
	uint8_t choice = fuzz_u8(f);

	if (choice & 1)
		atomic_store(at, choice / 2 % (fuzz_slots.count + 2));
	else
		atomic_store(at, (uint64_t)fuzz_u32(f) << 32 | fuzz_u32(f));
}

static void fuzz_take(struct fuzz *f)
{
	struct wire_header header = {0};
	uint64_t place = 0, offset = 0;
	int rc;

	rc = shm_ring_take(&f->ring, &header, &place);
	fuzz_require(rc <= 1 && f->ring.tail_seen - f->ring.head <= f->capacity);
	if (rc == 0)
		return;
	if (f->ended) {
		fuzz_require(rc == -EPROTO || f->unread > 0);
		if (f->unread)
			f->unread--;
	}
	if (rc < 0)
		return;
	fuzz_require(header.type >= WIRE_PUSH && header.type <= WIRE_CREDIT && header.length <= WIRE_PAYLOAD_MAX);
	if (!shm_ring_chunk_ok(&header, fuzz_spans, FUZZ_CHUNKS, false) || header.length == 0)
		return;
	if (shm_ring_find(&fuzz_slots, &header, fuzz_spans, place, &offset) < 0)
		return;
	fuzz_require(offset + header.length <= FUZZ_REGION);
	if (place == 0)
		fuzz_require(offset == fuzz_spans[header.chunk].offset);
	else
		fuzz_require(offset >= fuzz_slots.offset && header.length <= fuzz_slots.bytes);
}

static void fuzz_put(struct fuzz *f)
{
	struct wire_header header = {.type = WIRE_CREDIT, .credit = 1};

	if (shm_ring_put(&f->ring, &header, fuzz_u8(f)) == 0)
		fuzz_require(f->ring.tail - f->ring.head_seen <= f->capacity);
	else
		fuzz_require(f->ring.tail - f->ring.head_seen == f->capacity);
}

static void fuzz_close_peer(struct fuzz *f)
{
	(void)shm_ring_close_peer(&f->ring);
	if (!f->ended)
		f->unread = f->ring.tail_seen - f->ring.head;
	f->ended = 1;
	fuzz_require(f->ring.tail_seen - f->ring.head <= f->capacity);
}

static void fuzz_step(struct fuzz *f)
{
	_Atomic uint32_t *words = (_Atomic uint32_t *)(void *)f->memory;

	switch (fuzz_u8(f) % 11) {
	case 0:
		fuzz_peer_writes_entry(f, 0);
		break;
	case 1:
		fuzz_peer_writes_entry(f, 1);
		break;
	case 2: /* the peer's indices, by a little */
		atomic_fetch_add(&f->ring.peer->tail, fuzz_u8(f) % 20);
		break;
	case 3:
		atomic_fetch_add(&f->ring.peer->head, fuzz_u8(f) % 20);
		break;
	case 10:
		fuzz_peer_names_place(f);
		break;
	case 4: /* any control word, ours among them, to anything */
		atomic_store(&words[fuzz_u8(f)], fuzz_u32(f));
		break;
	case 5:
		fuzz_put(f);
		break;
	case 6:
		(void)shm_ring_publish(&f->ring);
		break;
	case 7:
		shm_ring_arm(&f->ring, SHM_ARMED_DATA);
		(void)shm_ring_quiet(&f->ring, SHM_ARMED_DATA | SHM_ARMED_ROOM);
		(void)shm_ring_room(&f->ring);
		break;
	case 8:
		if (fuzz_u8(f) == 255)
			fuzz_close_peer(f);
		(void)shm_ring_give_back(&f->ring);
		break;
	default:
		fuzz_take(f);
		break;
	}
}

static void fuzz_parcel(const uint8_t *data, size_t size)
{
	uint8_t again[SHM_PARCEL_BYTES];
	struct shm_parcel parcel;

	if (size < SHM_PARCEL_BYTES || shm_parcel_decode(data, &parcel) < 0)
		return;
	fuzz_require(shm_slots_fit(&parcel.slots, parcel.push_bytes));
	fuzz_require(shm_ring_capacity_valid(parcel.capacity) && parcel.ring_bytes == shm_ring_bytes(parcel.capacity));
	shm_parcel_encode(&parcel, again);
	fuzz_require(memcmp(again, data, SHM_PARCEL_BYTES) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct fuzz f;
	uint8_t choice;

	fuzz_parcel(data, size);
	memset(&f, 0, sizeof(f));
	f.data = data;
	f.left = size;
	choice = fuzz_u8(&f);
	f.capacity = 16u << (choice & 3);
	fuzz_require(shm_ring_bytes(f.capacity) <= sizeof(f.memory));
	shm_ring_format(f.memory);
	shm_ring_attach(&f.ring, f.memory, f.capacity, choice & 4 ? SHM_BOX : SHM_WORKER);
	while (f.left)
		fuzz_step(&f);
	return 0;
}
