/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Association: in which order the numbers of a reproducible sum are added, as a list of ranks in which lists may stand:
 * [[0,1],[2,3]] is (r0 + r1) + (r2 + r3). Without one it is that of the ranks. Boxes that sum for each other as a tree
 * have one by nature: the workers of a box in the order of their ranks, then the sums of the boxes below it. One box
 * that is given the same list makes the same bits.
 *
 * Such sums cannot be made as payloads come: they are held or staged until all of a round are there, and then folded.
 */
#ifndef PHUB_ASSOCIATION_H
#define PHUB_ASSOCIATION_H

#include <stddef.h>
#include <stdint.h>

#include "phub/chunk.h"

#define ASSOCIATION_OPEN       UINT32_MAX
#define ASSOCIATION_CLOSE      (UINT32_MAX - 1)
#define ASSOCIATION_DEPTH_MAX  SPEC_FOLDS_MAX /* lists in each other, the outer one aside */
#define ASSOCIATION_TEXT_BYTES 16384u

struct association {
	uint32_t depth;      /* lists in each other, the outer one aside */
	uint32_t step_count; /* what stands in the outer list: */
	uint32_t steps[];    /* a rank to be added, or a list's beginning or end */
};

/*
 * From text as above, in which 4-7 stands for 4,5,6,7, and blanks for nothing. Each rank of the world must be in it
 * once. 0, and *out is to be given to free(); -EINVAL with what is wrong and where in `e`; -ENOMEM. Any thread.
 */
int association_parse(const char *text, uint32_t world, struct association **out, struct err *e);

/* The same as text in one form: "[[0-3],[4-7]]"; three dots at its end where it does not fit. Returns `out`. */
const char *association_write(const struct association *a, char *out, size_t bytes);

/* Does it take all payloads of a round before the first of them can be added? */
static inline bool association_folds(const struct chunk *chunk, const struct spec *spec)
{
	if (!spec->reproducible || chunk->kind != ROUND_GRADIENT)
		return false;
	/* Where boxes send sums of another type, one pass cannot read them beside what workers push. */
	return spec->association || (spec->boxes > 0 && spec->lift != (enum dtype)chunk->dtype);
}

/* Owning core, as a round commits: puts the sum of all payloads that are there into chunk->sum. */
void association_fold(struct chunk *chunk, struct shard *shard);

#endif
