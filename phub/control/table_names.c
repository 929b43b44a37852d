/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds a name that a table has twice while its keys come in, in one look-up a key: a hash table of key numbers. The
 * names are a stranger's choice and the control thread serves all jobs, so the hash is SipHash-1-3 with a key that
 * nobody outside knows: names that collide cannot be made up.
 */
#include "phub/control/table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/proof.h"

static uint64_t table_rotate(uint64_t x, unsigned bits)
{
	return x << bits | x >> (64 - bits);
}

static void table_sip_round(uint64_t v[4])
{
	v[0] += v[1];
	v[2] += v[3];
	v[1] = table_rotate(v[1], 13) ^ v[0];
	v[3] = table_rotate(v[3], 16) ^ v[2];
	v[0] = table_rotate(v[0], 32) + v[3];
	v[2] += v[1];
	v[1] = table_rotate(v[1], 17) ^ v[2];
	v[3] = table_rotate(v[3], 21) ^ v[0];
	v[2] = table_rotate(v[2], 32);
}

/* Aumasson and Bernstein, SipHash: a fast short-input PRF (2012), with one and three rounds. */
static uint64_t table_hash(const uint64_t seed[2], const char *name)
{
	uint64_t v[4] = {seed[0] ^ 0x736f6d6570736575u, seed[1] ^ 0x646f72616e646f6du, seed[0] ^ 0x6c7967656e657261u,
		seed[1] ^ 0x7465646279746573u};
	size_t length = strlen(name), at = 0;
	uint64_t word;

	for (; length - at >= sizeof(word); at += sizeof(word)) {
		memcpy(&word, name + at, sizeof(word));
		v[3] ^= word;
		table_sip_round(v);
		v[0] ^= word;
	}
	word = 0;
	memcpy(&word, name + at, length - at);
	word |= (uint64_t)length << 56;
	v[3] ^= word;
	table_sip_round(v);
	v[0] ^= word;
	v[2] ^= 0xff;
	for (int i = 0; i < 3; i++)
		table_sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The place of the name: that of the key of this name, or a free one. */
static uint32_t *table_name_place(const struct table *t, const char *name)
{
	uint32_t mask = t->index_room - 1, at = (uint32_t)table_hash(t->index_seed, name) & mask;

	while (t->index[at] && strcmp(table_key_name(t, t->index[at] - 1), name) != 0)
		at = (at + 1) & mask;
	return &t->index[at];
}

/* Keeps half of it free. */
static int table_grow_index(struct table *t)
{
	uint32_t room = t->index_room ? 2 * t->index_room : 128;
	uint32_t *index;

	if (t->index_room / 2 > t->key_have)
		return 0;
	_Static_assert(sizeof(t->index_seed) == PROOF_NONCE, "a nonce is a seed");
	if (!t->index && proof_nonce((uint8_t *)t->index_seed) < 0)
		return -ENOMEM;
	index = calloc(room, sizeof(*index));
	if (!index)
		return -ENOMEM;
	free(t->index);
	t->index = index;
	t->index_room = room;
	for (uint32_t i = 0; i < t->key_have; i++)
		*table_name_place(t, table_key_name(t, i)) = i + 1;
	return 0;
}

int table_name_find(struct table *t, const char *name, uint32_t *key)
{
	uint32_t *place;

	if (table_grow_index(t) < 0)
		return -ENOMEM;
	place = table_name_place(t, name);
	if (*place) {
		*key = *place - 1;
		return 1;
	}
	*place = t->key_have + 1;
	return 0;
}

void table_forget_names(struct table *t)
{
	free(t->index);
	t->index = NULL;
	t->index_room = 0;
}
