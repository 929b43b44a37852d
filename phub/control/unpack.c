/* SPDX-License-Identifier: Apache-2.0 */
#include "phub/control/unpack.h"

#include <stdlib.h>

struct unpack_budget {
	size_t left;
};

/* What the allocator itself adds to a piece. */
enum { UNPACK_OVERHEAD = 16 };

static void *unpack_alloc(void *arg, size_t bytes)
{
	struct unpack_budget *budget = arg;

	if (bytes > budget->left || bytes + UNPACK_OVERHEAD > budget->left)
		return NULL;
	budget->left -= bytes + UNPACK_OVERHEAD;
	return malloc(bytes);
}

static void unpack_release(void *arg, void *piece)
{
	(void)arg;
	free(piece);
}

Phub__Control *unpack_control(const uint8_t *frame, size_t bytes)
{
	struct unpack_budget budget = {UNPACK_BYTES_MAX};
	ProtobufCAllocator allocator = {.alloc = unpack_alloc, .free = unpack_release, .allocator_data = &budget};

	return phub__control__unpack(&allocator, bytes, frame);
}

void unpack_free(Phub__Control *message)
{
	struct unpack_budget budget = {0};
	ProtobufCAllocator allocator = {.alloc = unpack_alloc, .free = unpack_release, .allocator_data = &budget};

	phub__control__free_unpacked(message, &allocator);
}

Phub__Start *unpack_copy_start(const Phub__Start *m)
{
	size_t bytes = phub__start__get_packed_size(m);
	uint8_t *packed = malloc(bytes + 1);
	Phub__Start *copy = NULL;

	if (packed) {
		phub__start__pack(m, packed);
		copy = phub__start__unpack(NULL, bytes, packed);
	}
	free(packed);
	return copy;
}
