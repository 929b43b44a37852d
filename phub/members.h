/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who takes part in a job's rounds. When a rank is lost or comes, control changes the membership in two steps that
 * every core takes:
 *
 *      hold    nothing is committed any more; where a rank was lost the epoch goes up and what was collected is given
 *              back: all that are left push it again. The core writes down which round each chunk collects.
 *      go      control has seen all of these, and has chosen for each key the first round in which the ranks take part
 *              that came (or, where a job waits for a replacement, that are missing): a round that no chunk of the key
 *              has committed, and one for all keys where they go in step. Rounds before it close without them.
 *
 * A round that is lifted to another box (lift.h) is not taken back: who comes takes part after it.
 *
 * So a round of a key has the same contributors in all of its chunks, or lost one while it was being collected: then it
 * is the sum of those who were there at each chunk's commit, and a mean divides by their number.
 *
 * Where each push is a step (ssp, async) nobody's step is taken back, and no step is made between hold and go: what is
 * pushed meanwhile is parked. The first round of who comes is the slowest rank's next one (stepwise.h).
 */
#ifndef PHUB_MEMBERS_H
#define PHUB_MEMBERS_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/chunk.h"

/* In place of a round: does not take part any more. */
#define MEMBERS_NEVER UINT64_MAX

/* One change, of one job. Made and freed by control; between the two steps each core writes what is of its chunks. */
struct members {
	uint32_t epoch;                    /* of the job from now on */
	bool repair;                       /* a rank was lost: its share of open rounds is withdrawn */
	uint64_t lost[MAIL_RANK_WORDS];    /* ranks that take part no more... */
	uint64_t awaited[MAIL_RANK_WORDS]; /* ...or from `from` on, like those that came */
	uint64_t absent[MAIL_RANK_WORDS];  /* ranks that are not here, whether they are awaited or not */
	bool drain;       /* `from`, which stays then, is also the first round that is not committed any more; where a
			     round before that needs one who is absent, the core makes it that round */
	bool firm;        /* with `drain`: other boxes stop at the same rounds, and none is made an earlier one. What
			     nobody pushes here is not waited for */
	uint64_t *rounds; /* [plan.chunk_count] hold: the round that the chunk collects; ssp, async: the next one of the
			     slowest rank */
	uint64_t *from;   /* [plan.chunk_count] go: of those awaited; may be `rounds` itself */
	uint64_t
		lifted; /* hold: the round after the furthest one of which a sum is on its way up; 0: none is; atomic */
	uint32_t hyper; /* hold: the newest version that such a sum names; atomic */
	uint32_t weightless; /* hold: chunks without first weights; atomic */
};

static inline void members_add(uint64_t *ranks, uint32_t rank)
{
	ranks[rank / 64] |= UINT64_C(1) << (rank % 64);
}

static inline void members_remove(uint64_t *ranks, uint32_t rank)
{
	ranks[rank / 64] &= ~(UINT64_C(1) << (rank % 64));
}

static inline bool members_have(const uint64_t *ranks, uint32_t rank)
{
	return ranks[rank / 64] >> (rank % 64) & 1;
}

/* Owning core, of a live shard. Walks all its chunks once. */
void members_hold(struct shard *shard, struct members *m);
/* Commits what has become complete by it. */
void members_go(struct shard *shard, const struct members *m, uint64_t now_ns);

/*
 * Control, before the shard is given to its core: these ranks (bits, as in struct members) take part from these rounds
 * on, one for each chunk of the plan; NULL: never. One walk, however many they are.
 */
void members_await(struct shard *shard, const uint64_t *ranks, const uint64_t *from);

static inline bool members_takes_part(const struct arrival *a, uint64_t round)
{
	return a->from <= round;
}

#endif
