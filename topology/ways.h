/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ways: how the chunks of a job get from the boxes of several racks to one sum each, and back. A chunk's home is the
 * box that runs its optimizer; every other box sums what its workers push, and lifts that to the next box on the way
 * there; results come back the same way.
 *
 * flat: there is one box, to which all workers of all racks push.
 *
 * tree: one home for all chunks, the root. Each other rack's uplink carries the model once, the root's once for each of
 * them.
 *
 * sharded: each chunk has a home of its own, to which all boxes lift. Each uplink carries 2 (K - 1) / K models.
 *
 * chain: the same homes; a chunk passes from box to box, each adding its share. The same bytes, and no box has more
 * than one below it, at the price of K - 1 hops each way.
 *
 * Pure. Any thread; nothing allocates but ways_homes() and ways_rehome().
 */
#ifndef PHUB_TOPOLOGY_WAYS_H
#define PHUB_TOPOLOGY_WAYS_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"

#define WAYS_BOXES_MAX 256u
#define WAYS_WORTH     0.01 /* of the time of all */

enum ways_kind { WAYS_FLAT, WAYS_TREE, WAYS_SHARDED, WAYS_CHAIN, WAYS_COUNT };

/* A box that takes part, with the workers of its rack. */
struct ways_box {
	unsigned rack;
	unsigned workers;
	double rate_bytes_s;   /* of its links */
	double uplink_bytes_s; /* of its rack's, where that is in no rack file; 0: it does not limit */
};

struct ways {
	enum ways_kind kind;
	unsigned root; /* flat, tree: the home of all chunks */
	unsigned box_count;
	const struct ways_box *boxes;
	uint32_t chunk_count;
	const uint16_t *home; /* [chunk_count] index of a box */
};

/*
 * Bytes of payload that one round moves over a link, each way, and in how many chunks: of each worker, of each box's
 * sum, of each result that one gets. A chunk that crosses for three workers counts three times.
 */
struct ways_load {
	uint64_t out, in;
	uint64_t chunks_out, chunks_in;
};

const char *ways_name(enum ways_kind kind);

/*
 * The home of each chunk. sharded, chain: the largest chunks first, each to the box that would be done with its share
 * soonest at its rate (Graham's rule for machines of unequal speed: at most twice the best possible, and within a chunk
 * of even here, where chunks are small). 0, -EINVAL (no box, too many, a rate that is not above 0, a root that is none)
 * or -ENOMEM.
 */
int ways_homes(enum ways_kind kind, const struct ways_box *boxes, unsigned box_count, unsigned root,
	const uint32_t *chunk_bytes, uint32_t chunk_count, uint16_t *home, struct err *e);

/*
 * sharded, chain: other homes for chunks that have some, by other rates, with as few bytes to carry as that takes. A
 * box with more than its share, by a chunk at least, gives what is beyond it to those with less, the largest chunks
 * first, each to where it would be done soonest. What less than a chunk is beyond it goes where all are done sooner by
 * WAYS_WORTH or more. Homes that ways_homes() chose by these rates stay as they are. 0, -EINVAL (as above, or a home
 * that is none) or -ENOMEM, and nothing is changed.
 */
int ways_rehome(const struct ways_box *boxes, unsigned box_count, const uint32_t *chunk_bytes, uint32_t chunk_count,
	uint16_t *home, struct err *e);

/* The next box on the way from `box` to `home`; `home` itself: the end of the way. Flat: the root. */
static inline unsigned ways_next(enum ways_kind kind, unsigned box_count, unsigned home, unsigned box)
{
	if (kind != WAYS_CHAIN || box == home)
		return home;
	return box + 1 < box_count ? box + 1 : 0;
}

/* Has this box a sum of such chunks to lift: of its own workers, or of some on the way to it? */
bool ways_has_sum(enum ways_kind kind, const struct ways_box *boxes, unsigned box_count, unsigned home, unsigned box);

/* Does `below` lift chunks of this home to `box`? */
static inline bool ways_is_below(enum ways_kind kind, const struct ways_box *boxes, unsigned box_count, unsigned home,
	unsigned below, unsigned box)
{
	return kind != WAYS_FLAT && below != home && ways_next(kind, box_count, home, below) == box &&
	       ways_has_sum(kind, boxes, box_count, home, below);
}

/*
 * Adds what one round moves to the loads of boxes' links and racks' uplinks (NULL: not wanted). `lift_bytes`: of each
 * chunk's sum between boxes, where that is of another type than what workers push; NULL: as many.
 */
void ways_add_loads(const struct ways *w, const uint32_t *chunk_bytes, const uint32_t *lift_bytes,
	struct ways_load *boxes, struct ways_load *uplinks);

#endif
