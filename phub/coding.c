/* SPDX-License-Identifier: Apache-2.0 */
/* See coding.h. */
#include "phub/coding.h"

#include "aggregation/kernels.h"
#include "aggregation/sparse.h"
#include "phub/base/stats.h"
#include "phub/link.h"
#include "phub/parts.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#define CODING_UNKNOWN UINT32_MAX /* chunk->coded_bytes: nobody has looked; 0: no shorter than the result itself */

uint64_t coding_bytes(const struct spec *spec)
{
	return spec_rows(spec) || spec->mirror ? 0 : spec->plan.sparse_bytes;
}

/* ---- pushes ---- */

bool coding_takes(const struct chunk *chunk, const struct link *link, const struct wire_header *h, uint32_t trailer)
{
	enum dtype dtype = chunk_payload_dtype(chunk, link->shard->spec, link->rank, h->type);

	return chunk->sparse && h->type == WIRE_PUSH && !link_is_mapped(link) &&
	       h->length >= SPARSE_HEAD_BYTES + trailer &&
	       h->length < chunk->elements * (uint32_t)dtype_size(dtype) + trailer;
}

static void coding_count(
	struct coding_tally *tally, const struct link *link, bool coded, uint32_t bytes, uint32_t whole)
{
	if (link_is_mapped(link))
		return;
	stats_add(&tally->coded, coded);
	stats_add(&tally->bytes, bytes);
	stats_add(&tally->whole, whole);
}

int coding_receive(const struct chunk *chunk, const struct link *link, const struct event *e)
{
	const struct wire_header *h = &e->header;
	enum dtype dtype = chunk_payload_dtype(chunk, link->shard->spec, link->rank, h->type);
	uint32_t whole = h->coded ? chunk->elements * (uint32_t)dtype_size(dtype) : e->bytes;

	if (h->coded && sparse_check(e->payload, e->bytes, dtype, chunk->elements, NULL) < 0)
		return -EILSEQ;
	coding_count(&link->shard->counters.sparse_pushes, link, h->coded, e->bytes, whole);
	return 0;
}

/* Zeroes what is not finite, in a copy. */
static const void *coding_zero(struct shard *shard, const struct contribution *c, enum dtype dtype)
{
	size_t count;
	const uint8_t *values = sparse_values(c->payload, &count);
	ptrdiff_t at = values - (const uint8_t *)c->payload;

	memcpy(shard->scratch, c->payload, c->bytes);
	stats_add(
		&shard->counters.nonfinite, shard->kernels->zero_nonfinite(shard->scratch + at, values, dtype, count));
	return shard->scratch;
}

static const void *coding_fail(struct chunk *chunk, const struct contribution *c, enum dtype dtype)
{
	struct shard *shard = c->link->shard;

	sparse_decode(shard->scratch, c->payload, dtype, chunk->elements); /* which of the chunk's elements it is */
	chunk_fail(chunk, c->link, SHARD_FAIL_NAN, c->header->round,
		(uint64_t)shard->kernels->find_nonfinite(shard->scratch, dtype, chunk->elements));
	return NULL;
}

const void *coding_clean(struct chunk *chunk, const struct contribution *c)
{
	struct shard *shard = c->link->shard;
	enum dtype dtype = (enum dtype)chunk->dtype;
	bool looks = shard->spec->nan != NAN_PASS && !spec_is_box(shard->spec, c->link->rank);
	size_t count;
	const void *values = sparse_values(c->payload, &count);
	bool bad = looks && shard->kernels->find_nonfinite(values, dtype, count) >= 0;

	if (bad && shard->spec->nan == NAN_FAIL)
		return coding_fail(chunk, c, dtype);
	if (!spec_stepwise(shard->spec))
		return bad ? coding_zero(shard, c, dtype) : c->payload;
	sparse_decode(shard->scratch, c->payload, dtype, chunk->elements);
	if (bad)
		stats_add(&shard->counters.nonfinite,
			shard->kernels->zero_nonfinite(shard->scratch, shard->scratch, dtype, chunk->elements));
	return shard->scratch;
}

void coding_begin(struct chunk *chunk, struct shard *shard)
{
	if (chunk->sum)
		return;
	parts_take(chunk, shard, true);
	memset(chunk->sum, 0, chunk->elements * sizeof(*chunk->sum));
	chunk->stored = chunk->bytes;
}

/* ---- results ---- */

void coding_renew(struct chunk *chunk)
{
	chunk->coded_bytes = CODING_UNKNOWN;
}

const uint8_t *coding_result(struct chunk *chunk, const struct link *link, struct wire_header *header)
{
	/* While it is on its way from above, that lands where it would be coded. */
	if (link_is_mapped(link) || chunk_is_up(chunk))
		return chunk->result;
	if (chunk->coded_bytes == CODING_UNKNOWN)
		chunk->coded_bytes =
			(uint32_t)sparse_encode(chunk->coded, chunk->result, (enum dtype)chunk->dtype, chunk->elements);
	if (chunk->coded_bytes == 0)
		return chunk->result;
	header->length = chunk->coded_bytes;
	header->coded = true;
	return chunk->coded;
}

void coding_sent(const struct chunk *chunk, const struct link *link, const struct wire_header *h)
{
	coding_count(&link->shard->counters.sparse_replies, link, h->coded,
		h->length - (link->sealed ? WIRE_TRAILER_BYTES : 0), chunk->answer_bytes);
}

int coding_land(struct chunk *chunk, const struct wire_header *h, const void *payload)
{
	enum dtype dtype = (enum dtype)chunk->dtype;

	if (!chunk->coded || !payload || h->length >= chunk->bytes)
		return -EPROTO;
	if (payload != chunk->coded)
		memcpy(chunk->coded, payload, h->length);
	if (sparse_check(chunk->coded, h->length, dtype, chunk->elements, NULL) < 0)
		return -EPROTO;
	sparse_decode(chunk->result, chunk->coded, dtype, chunk->elements);
	chunk->coded_bytes = h->length;
	return 0;
}
