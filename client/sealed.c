/* SPDX-License-Identifier: Apache-2.0 */
/* See sealed.h. */
#include "client/sealed.h"

#include "client/copy.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SEALED_LINE = 64 };

/* ---- life ---- */

/* Cells are as many as messages may be in flight, or as chunks. */
static size_t sealed_measure(struct lane *lane, uint32_t window)
{
	uint32_t largest = 0;

	for (uint32_t i = 0; i < lane->count; i++)
		largest = lane->spans[i].bytes > largest ? lane->spans[i].bytes : largest;
	lane->cell_bytes = (largest + WIRE_TRAILER_BYTES + SEALED_LINE - 1) / SEALED_LINE * SEALED_LINE;
	lane->cell_count = window < lane->count ? window : lane->count;
	return (size_t)lane->cell_count * lane->cell_bytes;
}

static int sealed_map(struct sealed *s, const struct chunk_plan *plan, struct lane *lanes, uint32_t lane_count,
	uint32_t window, struct err *e)
{
	size_t bytes = plan->region_bytes + (size_t)plan->chunk_count * WIRE_TRAILER_BYTES, cells = bytes;
	void *at;

	for (uint32_t i = 0; i < lane_count; i++)
		bytes += sealed_measure(&lanes[i], window);
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return err_set(
			e, -ENOMEM, "no address space for %zu bytes of encrypted keys: %s", bytes, strerror(errno));
	s->memory = at;
	s->bytes = bytes;
	for (uint32_t i = 0; i < lane_count; i++) {
		struct lane *lane = &lanes[i];

		lane->cells = s->memory + cells;
		cells += (size_t)lane->cell_count * lane->cell_bytes;
		lane->cells_free = calloc(lane->cell_count, sizeof(*lane->cells_free));
		if (!lane->cells_free)
			return err_set(e, -ENOMEM, "no memory to encrypt %u pushes at a time", lane->cell_count);
		lane->sealed = s;
		sealed_reset(lane);
	}
	return 0;
}

static int sealed_take_keys(struct sealed *s, const uint8_t *session_key, const uint8_t *data_key)
{
	uint8_t key[PROOF_KEY];
	int rc = proof_push_key(session_key, key);

	if (rc == 0 && (crypt_take_key(s->pushes, key) < 0 || crypt_take_key(s->results, data_key) < 0))
		rc = -EIO;
	explicit_bzero(key, sizeof(key));
	return rc;
}

int sealed_open(struct sealed *s, const uint8_t *session_key, const uint8_t *data_key, const struct chunk_plan *plan,
	struct lane *lanes, uint32_t lane_count, uint32_t window, struct err *e)
{
	int rc = crypt_create(false, &s->pushes, e);

	if (rc == 0)
		rc = crypt_create(true, &s->results, e);
	if (rc < 0)
		return rc;
	if (sealed_take_keys(s, session_key, data_key) < 0)
		return err_set(e, -EIO, "libcrypto takes no key");
	return sealed_map(s, plan, lanes, lane_count, window, e);
}

int sealed_move(
	struct sealed *s, const uint8_t *session_key, const uint8_t *data_key, struct lane *lanes, uint32_t lane_count)
{
	for (uint32_t i = 0; i < lane_count; i++) {
		sealed_reset(&lanes[i]);
		for (uint32_t k = 0; k < lanes[i].count; k++)
			lanes[i].flights[k]->version = 0;
	}
	return sealed_take_keys(s, session_key, data_key);
}

void sealed_close(struct sealed *s)
{
	if (s->memory)
		munmap(s->memory, s->bytes);
	crypt_destroy(s->pushes);
	crypt_destroy(s->results);
	memset(s, 0, sizeof(*s));
}

/* ---- pushes ---- */

void sealed_reset(struct lane *lane)
{
	if (!lane->sealed)
		return;
	for (uint32_t i = 0; i < lane->cell_count; i++)
		lane->cells_free[i] = lane->cell_count - i;
	lane->cells_free_count = lane->cell_count;
	for (uint32_t i = 0; i < lane->count; i++)
		if (lane->flights[i])
			lane->flights[i]->cell = 0;
}

bool sealed_may(const struct lane *lane, const struct flight *f)
{
	return f->sends == 0 && (f->cell || lane->cells_free_count > 0);
}

int sealed_push(struct lane *lane, struct flight *f, struct wire_header *header, const uint8_t **out)
{
	struct sealed *s = lane->sealed;
	bool there = f->cell && f->cell_epoch == header->epoch;
	uint8_t *cell;

	assert(sealed_may(lane, f));
	if (!f->cell)
		f->cell = lane->cells_free[--lane->cells_free_count];
	cell = lane->cells + (size_t)(f->cell - 1) * lane->cell_bytes;
	header->length += WIRE_TRAILER_BYTES;
	*out = cell;
	if (there)
		return 0;
	f->cell_epoch = header->epoch;
	lane->group->copied_bytes += header->length - WIRE_TRAILER_BYTES;
	return crypt_seal(s->pushes, header, lane->core, ++*s->counter, f->payload, cell);
}

void sealed_free(struct lane *lane, struct flight *f)
{
	if (!f->cell || f->sends > 0)
		return;
	lane->cells_free[lane->cells_free_count++] = f->cell;
	f->cell = 0;
}

/* ---- results ---- */

static bool sealed_overlaps(const uint8_t *a, const uint8_t *b, uint32_t bytes)
{
	uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;

	return (x < y ? y - x : x - y) < bytes;
}

int sealed_result(
	const struct sealed *s, struct flight *f, const struct wire_header *header, uint8_t *from, uint8_t *into)
{
	struct wire_header bound = crypt_result(header, s->own);
	uint32_t bytes = header->length - WIRE_TRAILER_BYTES;
	uint64_t counter = crypt_counter(from, header->length);
	bool aside = !into || (f->type != WIRE_PULL && sealed_overlaps(into, f->payload, bytes));

	if (counter <= f->version || crypt_open(s->results, &bound, f->lane->core, from, aside ? from : into) < 0)
		return -EBADMSG;
	f->version = counter;
	if (aside && into)
		copy_cold(into, from, bytes);
	return 0;
}
