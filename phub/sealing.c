/* SPDX-License-Identifier: Apache-2.0 */
/* See sealing.h. */
#include "phub/sealing.h"

#include "phub/base/stats.h"
#include "phub/stepwise.h"

#include <errno.h>
#include <string.h>

uint64_t sealing_bytes(const struct spec *spec)
{
	uint64_t rows = spec_rows(spec) ? spec->world : 1;
	uint64_t row = (uint64_t)WIRE_TRAILER_BYTES * spec->plan.chunk_count, bytes;

	if (!spec->encrypt)
		return 0;
	if (!spec->mirror)
		row += spec->plan.region_bytes;
	return __builtin_mul_overflow(rows, row, &bytes) ? UINT64_MAX / 2 : bytes;
}

void sealing_link(struct link *link, const uint8_t key[PROOF_KEY])
{
	const struct shard *shard = link->shard;

	link->sealed = key != NULL;
	if (!key || crypt_take_key(link->opener, key) <= 0)
		return; /* without a key it opens nothing, and the connection will end */
	for (uint32_t i = 0; i < shard->chunk_count; i++)
		shard->sealing->opened[(uint64_t)i * shard->spec->world + link->rank] = 0;
}

int sealing_open(struct link *link, struct event *event)
{
	const struct shard *shard = link->shard;
	struct wire_header *h = &event->header;
	uint64_t *opened = &shard->sealing->opened[(uint64_t)h->chunk * shard->spec->world + link->rank];
	/* Not mapped, so that it is ours: transport.h. */
	uint8_t *payload = (uint8_t *)(uintptr_t)event->payload;
	uint64_t counter = crypt_counter(payload, h->length);

	if (counter <= *opened)
		return -EALREADY;
	if (crypt_open(link->opener, h, shard->core, payload, payload) < 0)
		return -EBADMSG;
	*opened = counter;
	h->length -= WIRE_TRAILER_BYTES;
	event->bytes = h->length;
	return 0;
}

void sealing_renew(const struct chunk *chunk, const struct link *link)
{
	const struct shard *shard = link->shard;

	shard->sealing->rows[(uint64_t)chunk_local(shard, chunk) * shard->spec->world + link->rank] = false;
}

/* Does a queue read the chunk's results? What is out on links that ended is not settled at once (link_sweep()). */
static bool sealing_is_read(const struct chunk *chunk, const struct shard *shard)
{
	for (uint32_t rank = 0; chunk->sends > 0 && rank < shard->spec->world; rank++)
		if (chunk->arrivals[rank].sends > 0 && shard->links[rank].conn)
			return true;
	return false;
}

static int sealing_seal(struct shard *shard, const struct wire_header *bound, const uint8_t *plain, uint8_t *to)
{
	struct sealing *s = shard->sealing;

	return crypt_seal(s->results, bound, shard->core, ++s->counter, plain, to);
}

/* Of a mirror's answers there are the trailers alone. */
static uint8_t *sealing_place(const struct chunk *chunk, const struct shard *shard, uint32_t row)
{
	const struct sealing *s = shard->sealing;
	uint64_t trailers = s->offset + (uint64_t)chunk->index * WIRE_TRAILER_BYTES;

	if (shard->spec->mirror)
		return chunk->result - shard->spec->plan.chunks[chunk->index].offset + trailers;
	return chunk->result + trailers + row * s->row_bytes;
}

const uint8_t *sealing_result(
	const struct chunk *chunk, const struct link *link, struct wire_header *header, const uint8_t *plain, int *rc)
{
	struct shard *shard = link->shard;
	struct sealing *s = shard->sealing;
	bool own = spec_rows(shard->spec);
	uint32_t row = own ? link->rank : 0, local = chunk_local(shard, chunk);
	uint8_t *to = sealing_place(chunk, shard, row);
	uint8_t *is_sealed = &s->rows[(uint64_t)local * shard->spec->world + row];
	struct wire_header bound;

	if (!shard->spec->mirror && !own && s->sealed[local] == header->round + 1) {
		header->length = s->lengths[local] + WIRE_TRAILER_BYTES;
		header->coded = s->lengths[local] < chunk->answer_bytes;
		return to;
	}
	header->length += WIRE_TRAILER_BYTES;
	if (!shard->spec->mirror && own && *is_sealed)
		return to;
	bound = crypt_result(header, own);
	*rc = !own && sealing_is_read(chunk, shard) ? -EAGAIN : sealing_seal(shard, &bound, plain, to);
	if (*rc < 0)
		return NULL;
	*is_sealed = true;
	s->sealed[local] = header->round + 1;
	s->lengths[local] = header->length - WIRE_TRAILER_BYTES;
	return to;
}
