/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys as the caller named them. Regions are mapped without reserve: a chunk that is exchanged in place from the
 * caller's memory never touches its part of the arena, so that it costs nothing.
 */
#include "client/keyring.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int keyring_check(
	const char *who, uint32_t index, const char *name, const struct chunk_key *shape, struct err *e)
{
	uint32_t element_bytes = chunking_dtype_bytes(shape->dtype);

	if (!name || !*name || strlen(name) > KEYRING_NAME_MAX)
		return err_set(
			e, -EINVAL, "%s: key %" PRIu32 " needs a name of 1 to %u bytes", who, index, KEYRING_NAME_MAX);
	if (element_bytes == 0)
		return err_set(e, -EINVAL, "%s: key '%s' has element type %u; allowed are f32, f16 and bf16", who, name,
			shape->dtype);
	if (shape->elements == 0)
		return err_set(e, -EINVAL, "%s: key '%s' has 0 elements; leave empty tensors out", who, name);
	if (shape->elements > (uint64_t)INT64_MAX / element_bytes)
		return err_set(e, -EOVERFLOW, "%s: key '%s' has %" PRIu64 " elements, more than memory can have", who,
			name, shape->elements);
	return 0;
}

static int keyring_grow(struct keyring *k)
{
	uint32_t room = k->room ? 2 * k->room : 64;
	struct chunk_key *shapes;
	struct key *keys;

	if (k->room > UINT32_MAX / 4)
		return -ENOMEM;
	keys = realloc(k->keys, room * sizeof(*keys));
	if (!keys)
		return -ENOMEM;
	k->keys = keys;
	shapes = realloc(k->shapes, room * sizeof(*shapes));
	if (!shapes)
		return -ENOMEM;
	k->shapes = shapes;
	k->room = room;
	return 0;
}

/* FNV-1a: names come from the program itself, so nobody picks ones that collide. */
static uint32_t keyring_hash(const char *name)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
	return (uint32_t)(hash ^ hash >> 32);
}

/* The place of the name in the index: that of the key of this name, or a free one. */
static uint32_t *keyring_place(const struct keyring *k, const char *name)
{
	uint32_t at = keyring_hash(name) & (k->index_room - 1);

	while (k->index[at] && strcmp(k->keys[k->index[at] - 1].name, name) != 0)
		at = (at + 1) & (k->index_room - 1);
	return &k->index[at];
}

/* Keeps at least half of the index free. */
static int keyring_grow_index(struct keyring *k)
{
	uint32_t room = k->room * 2;
	uint32_t *index;

	if (k->index_room >= room)
		return 0;
	index = calloc(room, sizeof(*index));
	if (!index)
		return -ENOMEM;
	free(k->index);
	k->index = index;
	k->index_room = room;
	for (uint32_t i = 0; i < k->count; i++)
		*keyring_place(k, k->keys[i].name) = i + 1;
	return 0;
}

int keyring_find(const struct keyring *k, const char *name)
{
	return k->index ? (int)*keyring_place(k, name) - 1 : -1;
}

int keyring_add(struct keyring *k, const char *who, const char *name, const struct chunk_key *shape, struct err *e)
{
	int rc = keyring_check(who, k->count, name, shape, e);
	uint32_t *place;
	char *copy;

	if (rc < 0)
		return rc;
	if (k->count == INT_MAX || (k->count == k->room && keyring_grow(k) < 0) || keyring_grow_index(k) < 0)
		return err_set(e, -ENOMEM, "%s: no memory for key '%s'", who, name);
	copy = strdup(name);
	if (!copy)
		return err_set(e, -ENOMEM, "%s: no memory for key '%s'", who, name);
	place = keyring_place(k, name);
	if (!*place)
		*place = k->count + 1;
	k->keys[k->count] = (struct key){
		.name = copy,
		.bytes = shape->elements * chunking_dtype_bytes(shape->dtype),
	};
	k->shapes[k->count] = *shape;
	return (int)k->count++;
}

int keyring_plan(struct keyring *k, uint32_t chunk_bytes, struct err *e)
{
	struct chunk_plan plan;
	int rc = chunking_plan(k->shapes, k->count, chunk_bytes, &plan, e);

	if (rc < 0)
		return rc;
	keyring_unplan(k);
	k->plan = plan;
	for (uint32_t i = 0; i < k->count; i++) {
		k->keys[i].offset = plan.key_offset[i];
		k->keys[i].chunk_first = plan.key_chunk[i];
		k->keys[i].chunk_count = chunking_key_chunk_count(&plan, k->shapes[i].elements, k->shapes[i].dtype);
	}
	return 0;
}

static int keyring_map(uint64_t bytes, uint8_t **out, struct err *e)
{
	void *at;

	if (*out)
		return 0;
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return err_set(
			e, -ENOMEM, "no address space for %" PRIu64 " bytes of keys: %s", bytes, strerror(errno));
	*out = at;
	return 0;
}

int keyring_take_arena(struct keyring *k, struct err *e)
{
	return keyring_map(k->plan.region_bytes, &k->arena, e);
}

int keyring_take_results(struct keyring *k, struct err *e)
{
	return keyring_map(k->plan.region_bytes, &k->results, e);
}

void keyring_unplan(struct keyring *k)
{
	if (k->arena)
		munmap(k->arena, k->plan.region_bytes);
	if (k->results)
		munmap(k->results, k->plan.region_bytes);
	k->arena = NULL;
	k->results = NULL;
	chunking_plan_fini(&k->plan);
}

void keyring_forget_rounds(struct keyring *k)
{
	for (uint32_t i = 0; i < k->count; i++) {
		struct key *key = &k->keys[i];

		key->chunks_left = 0;
		key->claimed = false;
		key->given_up = false;
		key->weights = false;
		key->landed = false;
	}
}

void keyring_clear(struct keyring *k)
{
	keyring_unplan(k);
	for (uint32_t i = 0; i < k->count; i++)
		free(k->keys[i].name);
	free(k->keys);
	free(k->shapes);
	free(k->index);
	memset(k, 0, sizeof(*k));
}
