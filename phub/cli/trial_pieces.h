/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker's results as its checker sees them: pieces of about a chunk. Here a wrong piece can be planted, by which
 * tests show that the checker would see one.
 */
#ifndef PHUB_CLI_TRIAL_PIECES_H
#define PHUB_CLI_TRIAL_PIECES_H

#include "phub/cli/trial.h"

enum { PIECE_BYTES = 32 << 10 };

struct trial_piece {
	const void *at;
	uint64_t first; /* index of its first element among all */
	uint64_t count;
	uint32_t key;
};

struct trial_pieces {
	struct trial_piece *all;
	uint64_t count;
	unsigned char saved[PIECE_BYTES];   /* the first piece as it was when it was saved */
	unsigned char planted[PIECE_BYTES]; /* what stands in for the first piece */
};

/* results[key] is where the results of a key lie. 0 or -ENOMEM. */
int trial_pieces_init(struct trial_pieces *pieces, const struct trial_plan *p, const void *const *results);
void trial_pieces_fini(struct trial_pieces *pieces);

/* Remembers the first piece, to be planted as a stale one. */
void trial_pieces_save(struct trial_pieces *pieces, const struct trial_plan *p);

/* Puts the wrong result of p->plant in; `round` is the fresh round whose gradients `rank` has pushed. */
void trial_pieces_plant(struct trial_pieces *pieces, const struct trial_plan *p, unsigned rank, unsigned round);

/* Compares all; says in `outcome` how many are wrong and which is the first. */
void trial_pieces_check(const struct trial_pieces *pieces, const struct trial_plan *p, const struct trial_shared *s,
	unsigned rank, unsigned round, struct trial_outcome *outcome);

#endif
