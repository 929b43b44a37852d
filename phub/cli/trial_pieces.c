/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checker's view of results, and what tests plant in it.
 */
#include "phub/cli/trial_pieces.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregation/convert.h"

static uint8_t pieces_dtype(const struct trial_plan *p, const struct trial_piece *piece)
{
	return p->model.tensors[piece->key].dtype;
}

static size_t pieces_bytes(const struct trial_plan *p, const struct trial_piece *piece)
{
	return piece->count * dtype_size(pieces_dtype(p, piece));
}

int trial_pieces_init(struct trial_pieces *pieces, const struct trial_plan *p, const void *const *results)
{
	uint64_t count = 1; /* one more, for a piece that is cut in two */

	for (uint32_t k = 0; k < p->model.count; k++)
		count += 1 + p->model.tensors[k].elements * dtype_size(p->model.tensors[k].dtype) / PIECE_BYTES;
	memset(pieces, 0, sizeof(*pieces));
	pieces->all = calloc(count, sizeof(*pieces->all));
	if (!pieces->all)
		return -ENOMEM;
	for (uint32_t k = 0; k < p->model.count; k++) {
		const struct model_tensor *t = &p->model.tensors[k];
		uint64_t whole = PIECE_BYTES / dtype_size(t->dtype);

		for (uint64_t at = 0; at < t->elements; at += whole)
			pieces->all[pieces->count++] = (struct trial_piece){
				.at = (const unsigned char *)results[k] + at * dtype_size(t->dtype),
				.first = p->key_first[k] + at,
				.count = t->elements - at < whole ? t->elements - at : whole,
				.key = k,
			};
	}
	return 0;
}

void trial_pieces_fini(struct trial_pieces *pieces)
{
	free(pieces->all);
	pieces->all = NULL;
}

void trial_pieces_save(struct trial_pieces *pieces, const struct trial_plan *p)
{
	memcpy(pieces->saved, pieces->all[0].at, pieces_bytes(p, &pieces->all[0]));
}

/* ---- planting ---- */

/* The first two pieces change places; a single one is cut in two before. */
static void pieces_plant_swapped(struct trial_pieces *pieces, const struct trial_plan *p)
{
	struct trial_piece *a = &pieces->all[0], *b = &pieces->all[1];
	const void *at = a->at;

	if (pieces->count == 1) {
		*b = *a;
		a->count /= 2;
		b->count = a->count;
		b->first += a->count;
		b->at = (const unsigned char *)a->at + pieces_bytes(p, a);
		pieces->count = 2;
	}
	a->count = b->count = a->count < b->count ? a->count : b->count;
	a->at = b->at;
	b->at = at;
}

/* The sum as if this rank's gradient had been added twice. */
static void pieces_plant_doubled(struct trial_pieces *pieces, const struct trial_plan *p, unsigned rank, unsigned round)
{
	struct trial_piece *piece = &pieces->all[0];
	uint8_t dtype = pieces_dtype(p, piece);

	trial_fill(rank, round, piece->first, piece->count, dtype, pieces->planted);
	for (uint64_t i = 0; i < piece->count; i++) {
		float sum = trial_value(pieces->planted, i, dtype) + trial_value(piece->at, i, dtype);

		convert_from_f32(pieces->planted + i * dtype_size(dtype), dtype, &sum, 1);
	}
	piece->at = pieces->planted;
}

void trial_pieces_plant(struct trial_pieces *pieces, const struct trial_plan *p, unsigned rank, unsigned round)
{
	switch (p->plant) {
	case TRIAL_PLANT_NONE:
		break;
	case TRIAL_PLANT_STALE:
		pieces->all[0].at = pieces->saved;
		break;
	case TRIAL_PLANT_SWAPPED:
		pieces_plant_swapped(pieces, p);
		break;
	case TRIAL_PLANT_DOUBLED:
		pieces_plant_doubled(pieces, p, rank, round);
		break;
	}
}

/* ---- checking ---- */

void trial_pieces_check(const struct trial_pieces *pieces, const struct trial_plan *p, const struct trial_shared *s,
	unsigned rank, unsigned round, struct trial_outcome *outcome)
{
	for (uint64_t i = 0; i < pieces->count; i++) {
		const struct trial_piece *piece = &pieces->all[i];
		uint8_t dtype = pieces_dtype(p, piece);
		float right;
		int64_t wrong = trial_compare(s, piece->first, piece->count, dtype, piece->at, &right);

		outcome->checked++;
		if (wrong < 0 || outcome->wrong++)
			continue;
		snprintf(outcome->text, sizeof(outcome->text),
			"rank %u, round %u: key %s, element %" PRIu64 " is %.9g, and should be %.9g", rank, round,
			p->model.tensors[piece->key].name, piece->first - p->key_first[piece->key] + (uint64_t)wrong,
			(double)trial_value(piece->at, (uint64_t)wrong, dtype), (double)right);
	}
}
