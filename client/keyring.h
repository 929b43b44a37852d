/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker's keys: their names and shapes, the chunks they are cut into, and the library's own memory for payloads.
 * Under the handle's lock.
 */
#ifndef PHUB_CLIENT_KEYRING_H
#define PHUB_CLIENT_KEYRING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/phub.h"
#include "phub/base/err.h"
#include "topology/chunking.h"

struct device;
struct range;

#define KEYRING_NAME_MAX 255u

/* A key, and its round when it has one in flight. */
struct key {
	char *name;
	uint64_t bytes;
	uint64_t offset; /* in the region; after keyring_plan() as the next two */
	uint32_t chunk_first, chunk_count;
	uint32_t chunks_left; /* of the round in flight, where the key has several chunks */
	uint32_t round;       /* low bits of its last one; a chunk that is still in that round has it open */
	bool claimed;         /* somebody has asked for the end of its last round */
	bool given_up;        /* its last round never was done */
	bool apart;           /* phub_alloc() gave it away: its results do not overwrite its pushes */
	bool weights;         /* its first weights are in the box */
	bool landed;          /* the last result lies in the library's memory */
	bool overlaps;        /* results are written to where payloads of other chunks lie */
	bool src_in_place;    /* the transport reads payloads straight from src */
	bool dst_in_place;    /* and writes results straight to dst */
	uint8_t type;         /* enum wire_type of the round */
	uint8_t *dst;         /* where the caller wants the result, or NULL */
	struct range *src_range, *dst_range;    /* registered memory that the round uses, or NULL */
	struct device *src_device, *dst_device; /* src or dst is a GPU's and is copied from or to there; or NULL */
};

struct keyring {
	struct key *keys;         /* [count] */
	struct chunk_key *shapes; /* [count] as chunking wants them */
	uint32_t count, room;
	uint32_t *index; /* [index_room] a hash table of names: key + 1, or 0 */
	uint32_t index_room;
	struct chunk_plan plan; /* chunk_count 0: not planned */
	uint8_t *arena;         /* pushes, where the transport maps no memory of its own; NULL: not needed yet */
	uint8_t *results;       /* results of keys that are `apart`, likewise */
};

/* Appends a key. Its index, or -EINVAL (naming the key), -EOVERFLOW, -ENOMEM. `who` names job and rank in messages. */
int keyring_add(struct keyring *k, const char *who, const char *name, const struct chunk_key *shape, struct err *e);

/* The first key of this name, or -1. */
int keyring_find(const struct keyring *k, const char *name);

/* Cuts the keys into chunks of chunk_bytes. 0, or the errors of chunking_plan(). */
int keyring_plan(struct keyring *k, uint32_t chunk_bytes, struct err *e);

/* Takes (only address space until it is touched) the memory for pushes or results. 0 or -ENOMEM. */
int keyring_take_arena(struct keyring *k, struct err *e);
int keyring_take_results(struct keyring *k, struct err *e);

/* Gives back plan and memory; the keys stay. */
void keyring_unplan(struct keyring *k);

/* Forgets everything. */
void keyring_clear(struct keyring *k);

/* No key has a round in flight, or weights, any more. */
void keyring_forget_rounds(struct keyring *k);

#endif
