/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and writes the list, control thread; and adds by it, owning core.
 */
#include "phub/association.h"

#include "aggregation/kernels.h"
#include "phub/coding.h"
#include "phub/parts.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASSOCIATION_FORM "; a list of all ranks, in which lists may stand, as [[0-3],[4-7]]"

/* ---- as text ---- */

struct reader {
	const char *text, *at;
	uint32_t world, ranks; /* so many of them were named */
	uint32_t depth;        /* lists that are open here */
	bool filled;           /* something stands in the innermost one, */
	bool comma;            /* and a comma behind it */
	uint64_t seen[WIRE_WORLD_MAX / 64];
	struct association *a;
	size_t room;
};

static int reader_fail(const struct reader *r, const char *what, struct err *e)
{
	return err_set(e, -EINVAL, "association: %s at character %td of '%.60s'" ASSOCIATION_FORM, what,
		r->at - r->text + 1, r->text);
}

static int reader_step(struct reader *r, uint32_t step, struct err *e)
{
	struct association *grown;

	if (r->a->step_count == r->room) {
		r->room = 2 * r->room + 64;
		grown = realloc(r->a, sizeof(*grown) + r->room * sizeof(grown->steps[0]));
		if (!grown)
			return err_set(e, -ENOMEM, "no memory for an association of %u ranks", r->world);
		r->a = grown;
	}
	r->a->steps[r->a->step_count++] = step;
	return 0;
}

static int reader_number(struct reader *r, uint32_t *out, struct err *e)
{
	uint64_t number = 0;

	if (!isdigit((unsigned char)*r->at))
		return reader_fail(r, "no rank", e);
	for (; isdigit((unsigned char)*r->at) && number <= UINT32_MAX; r->at++)
		number = 10 * number + (uint64_t)(*r->at - '0');
	if (number >= r->world)
		return err_set(e, -EINVAL, "association: rank %" PRIu64 " of a world of %u" ASSOCIATION_FORM, number,
			r->world);
	*out = (uint32_t)number;
	return 0;
}

/* "4" or "4-7". */
static int reader_ranks(struct reader *r, struct err *e)
{
	uint32_t first, last;
	int rc = reader_number(r, &first, e);

	last = first;
	if (rc == 0 && *r->at == '-') {
		r->at++;
		rc = reader_number(r, &last, e);
	}
	if (rc == 0 && last < first)
		rc = reader_fail(r, "a range that goes down", e);
	for (uint32_t rank = first; rc == 0 && rank <= last; rank++) {
		if (r->seen[rank / 64] >> (rank % 64) & 1)
			return err_set(e, -EINVAL, "association: rank %u is in it twice" ASSOCIATION_FORM, rank);
		r->seen[rank / 64] |= UINT64_C(1) << (rank % 64);
		r->ranks++;
		rc = reader_step(r, rank, e);
	}
	return rc;
}

/* What stands at the place of an element: ranks or the beginning of a list. */
static int reader_element(struct reader *r, struct err *e)
{
	int rc;

	if (r->filled && !r->comma)
		return reader_fail(r, "a comma is missing", e);
	r->comma = false;
	if (*r->at != '[') {
		r->filled = true;
		return reader_ranks(r, e);
	}
	if (r->depth > ASSOCIATION_DEPTH_MAX)
		return reader_fail(r, "more than 8 lists in each other", e);
	rc = reader_step(r, ASSOCIATION_OPEN, e);
	r->at++;
	r->depth++;
	if (r->depth - 1 > r->a->depth)
		r->a->depth = r->depth - 1;
	r->filled = false;
	return rc;
}

static int reader_close(struct reader *r, struct err *e)
{
	if (!r->filled || r->comma)
		return reader_fail(r, r->comma ? "nothing behind a comma" : "an empty list", e);
	r->at++;
	r->depth--;
	return r->depth > 0 ? reader_step(r, ASSOCIATION_CLOSE, e) : 0;
}

/* The outer list is open. */
static int reader_run(struct reader *r, struct err *e)
{
	int rc = 0;

	while (rc == 0 && r->depth > 0) {
		if (!*r->at)
			return reader_fail(r, "a list without an end", e);
		if (*r->at == ' ' || *r->at == '\t') {
			r->at++;
		} else if (*r->at == ',') {
			if (!r->filled || r->comma)
				return reader_fail(r, "nothing before a comma", e);
			r->comma = true;
			r->at++;
		} else {
			rc = *r->at == ']' ? reader_close(r, e) : reader_element(r, e);
		}
	}
	if (rc < 0)
		return rc;
	if (*r->at)
		return reader_fail(r, "more than one list", e);
	for (uint32_t rank = 0; rank < r->world; rank++)
		if (!(r->seen[rank / 64] >> (rank % 64) & 1))
			return err_set(e, -EINVAL, "association: rank %u is missing" ASSOCIATION_FORM, rank);
	return 0;
}

int association_parse(const char *text, uint32_t world, struct association **out, struct err *e)
{
	struct reader r = {.text = text, .at = text, .world = world, .depth = 1};
	int rc;

	if (strnlen(text, ASSOCIATION_TEXT_BYTES) == ASSOCIATION_TEXT_BYTES)
		return err_set(e, -EINVAL,
			"association: its text is longer than %u bytes; write 0-7 for 0,1,2,3,4,5,6,7",
			ASSOCIATION_TEXT_BYTES - 1);
	if (*text != '[')
		return reader_fail(&r, "no list", e);
	r.at++;
	r.a = calloc(1, sizeof(*r.a));
	if (!r.a)
		return err_set(e, -ENOMEM, "no memory for an association of %u ranks", world);
	rc = reader_run(&r, e);
	if (rc < 0) {
		free(r.a);
		return rc;
	}
	*out = r.a;
	return 0;
}

/* How many of the steps from this one on are ranks that follow one another. */
static uint32_t association_run(const struct association *a, uint32_t step)
{
	uint32_t end = step + 1;

	while (end < a->step_count && a->steps[end] < ASSOCIATION_CLOSE && a->steps[end] == a->steps[end - 1] + 1)
		end++;
	return end - step;
}

const char *association_write(const struct association *a, char *out, size_t bytes)
{
	size_t at = (size_t)snprintf(out, bytes, "[");
	bool comma = false;

	for (uint32_t i = 0; i < a->step_count && at < bytes; i++) {
		uint32_t step = a->steps[i], run;

		if (step == ASSOCIATION_CLOSE) {
			at += (size_t)snprintf(out + at, bytes - at, "]");
			comma = true;
			continue;
		}
		at += (size_t)snprintf(out + at, bytes - at, "%s", comma ? "," : "");
		comma = step != ASSOCIATION_OPEN;
		if (at >= bytes)
			break;
		if (step == ASSOCIATION_OPEN) {
			at += (size_t)snprintf(out + at, bytes - at, "[");
			continue;
		}
		run = association_run(a, i);
		at += (size_t)snprintf(out + at, bytes - at, run > 2 ? "%u-%u" : "%u", step, step + run - 1);
		i += run > 2 ? run - 1 : 0;
	}
	if (at < bytes)
		at += (size_t)snprintf(out + at, bytes - at, "]");
	if (at >= bytes && bytes > 3)
		memcpy(out + bytes - 4, "...", 4);
	return out;
}

/* ---- as a sum ---- */

/* Adds to the sum of this list; the outer one is the chunk's own accumulator. */
static void fold_add(
	struct chunk *chunk, struct shard *shard, uint32_t level, bool first, const void *payload, enum dtype dtype)
{
	if (level == 0)
		parts_sum_as(chunk, shard, payload, dtype);
	else if (first)
		shard->kernels->store(shard->folds[level - 1], payload, dtype, chunk->elements);
	else
		shard->kernels->add(shard->folds[level - 1], payload, dtype, chunk->elements);
}

static const void *fold_payload(const struct chunk *chunk, uint32_t rank)
{
	const struct arrival *a = &chunk->arrivals[rank];

	return a->state == ARRIVAL_HELD || a->state == ARRIVAL_STAGED ? a->payload : NULL;
}

static void fold_ranks(struct chunk *chunk, struct shard *shard)
{
	for (uint32_t rank = 0; rank < shard->spec->world; rank++)
		if (fold_payload(chunk, rank))
			fold_add(chunk, shard, 0, false, fold_payload(chunk, rank),
				chunk_payload_dtype(chunk, shard->spec, rank, WIRE_PUSH));
}

void association_fold(struct chunk *chunk, struct shard *shard)
{
	const struct association *a = shard->spec->association;
	bool filled[ASSOCIATION_DEPTH_MAX + 1] = {false};
	uint32_t level = 0;

	assert(!chunk->sum);
	if (chunk->sparse)
		coding_begin(chunk, shard);
	if (!a) {
		fold_ranks(chunk, shard);
		return;
	}
	for (uint32_t i = 0; i < a->step_count; i++) {
		const void *payload = a->steps[i] < ASSOCIATION_CLOSE ? fold_payload(chunk, a->steps[i]) : NULL;

		if (a->steps[i] == ASSOCIATION_OPEN) {
			filled[++level] = false;
		} else if (payload) {
			fold_add(chunk, shard, level, !filled[level], payload, (enum dtype)chunk->dtype);
			filled[level] = true;
		} else if (a->steps[i] == ASSOCIATION_CLOSE &&
			   filled[level--]) { /* of ranks that are lost nothing came */
			fold_add(chunk, shard, level, !filled[level], shard->folds[level], DTYPE_F32);
			filled[level] = true;
		}
	}
}
