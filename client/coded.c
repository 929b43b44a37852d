/* SPDX-License-Identifier: Apache-2.0 */
/* See coded.h. */
#include "client/coded.h"

#include "aggregation/sparse.h"
#include "client/exchange.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

static uint32_t coded_elements(const struct chunk_span *span)
{
	return span->bytes / chunking_dtype_bytes(span->dtype);
}

int coded_open(struct coded *c, const struct chunk_plan *plan, struct flight *flights, struct err *e)
{
	uint64_t bytes = 2 * plan->sparse_bytes, offset = 0;
	void *at;

	if (bytes == 0)
		return 0;
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return err_set(e, -ENOMEM, "no address space for %" PRIu64 " bytes of sparse keys: %s", bytes,
			strerror(errno));
	c->memory = at;
	c->bytes = bytes;
	for (uint32_t i = 0; i < plan->chunk_count; i++) {
		if (!plan->chunks[i].sparse)
			continue;
		flights[i].code = c->memory + offset;
		flights[i].landing = c->memory + plan->sparse_bytes + offset;
		offset += chunking_sparse_bytes(&plan->chunks[i]);
	}
	return 0;
}

void coded_close(struct coded *c)
{
	if (c->memory)
		munmap(c->memory, c->bytes);
	*c = (struct coded){0};
}

void coded_push(struct exchange *x, struct flight *f)
{
	const struct chunk_span *span = f->span;

	f->coded = 0;
	if (!f->code || x->mapped || f->type != WIRE_PUSH)
		return;
	f->coded = (uint32_t)sparse_encode(f->code, f->payload, (enum dtype)span->dtype, coded_elements(span));
	if (f->coded == 0)
		return;
	f->payload = f->code;
	x->copied_bytes += f->coded;
}

bool coded_fits(const struct exchange *x, const struct flight *f, const struct wire_header *h, uint32_t trailer)
{
	uint32_t bytes = f->span->bytes + trailer;

	if (h->coded)
		return f->code && !x->mapped && h->length >= SPARSE_HEAD_BYTES + trailer && h->length < bytes;
	return h->length == bytes;
}

int coded_result(
	struct exchange *x, struct flight *f, const struct wire_header *h, uint32_t bytes, const uint8_t **from)
{
	uint8_t *into = x->group.lossy ? f->landing : f->into;
	enum dtype dtype = (enum dtype)f->span->dtype;
	uint32_t elements = coded_elements(f->span);

	if (!f->code || x->mapped || !*from)
		return 0;
	if (h->coded) {
		if (sparse_check(*from, bytes, dtype, elements, NULL) < 0)
			return -EPROTO;
		if (into)
			sparse_decode(into, *from, dtype, elements);
		x->copied_bytes += into ? f->span->bytes : 0;
	} else if (x->group.lossy || *from != f->landing) {
		return 0; /* it is there already, or is copied from where it lies */
	} else if (into) {
		exchange_copy(x, into, *from, bytes);
	}
	*from = into;
	return 0;
}
