/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cost: how long a round takes, way by way (topology/ways.h), by what the links of a rack file carry. After PHub,
 * section 3.4, which compares what a rack's core sums with what its uplink carries, and PLink (MLSys'20), which
 * measures a network to choose the groups that sum first. What is counted here:
 *
 *      busy   the time of the link that is busy longest: bytes with headers, each way by itself, of everything that
 *             shares it; links of boxes, uplinks, and links of workers, of which the slowest counts
 *      lag    where n senders' shares of the same sums meet on that link, some get ahead (a flow that is there already
 *             has a full queue's worth more than one that comes), by COST_LAG of what each sends, but no further than
 *             the window lets them; what is behind comes when the others are done, and its results go out last, to
 *             all others but one. Likewise where one box's shares for several homes (sharded) leave by that link: a
 *             home waits for the last of those who send to it, each of whom serves some other home first
 *
 *      fill   a chunk is stored and forwarded whole at each box: the longest way of one, up and down, each hop at the
 *             rate of its slowest link, with its latency
 *
 * What boxes' and workers' CPUs take is not in it: `phub plan` has that. Pure. Any thread; cost_round() allocates and
 * frees.
 */
#ifndef PHUB_TOPOLOGY_COST_H
#define PHUB_TOPOLOGY_COST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "topology/racks.h"
#include "topology/ways.h"

/*
 * The one number that is fitted, by least squares of the logarithm over all ways on eleven emulated racks of 2 to 8,
 * 1:1 to 8:1: tests/bench/model_check.py, ROWS=fit, has them, and says what would fit best.
 */
#define COST_LAG          0.34
/* A way that is slower by less than this is as good: then the simpler one is taken, in the order of enum ways_kind. */
#define COST_SAME         0.03
/* A box that the rack file does not have, or where there is no file: */
#define COST_RATE_BYTES_S (10e9 / 8)
#define COST_WINDOW       64u /* chunks in flight on a connection, where nobody says */

/* What is between the boxes of a job. A box's rack is that of the file, or cost_no_rack() of the box. */
struct cost_net {
	const struct racks *racks; /* NULL: no file */
	const struct ways_box *boxes;
	const int *box_of; /* [box_count] which of the file's each is, or RACKS_NONE */
	unsigned box_count;
	const char *const *names; /* [box_count] for messages, of those that the file does not have; NULL: by number */
	bool host_sums;           /* the workers of a host are summed there, so that its link carries one gradient */
};

struct cost_job {
	const uint32_t *chunk_bytes;
	const uint32_t *lift_bytes; /* of each chunk's sum between boxes; NULL: as many */
	uint32_t chunk_count;
	uint32_t window; /* chunks that a connection may have in flight */
};

/* The part of what is on a link that is payload of TCP. */
double cost_payload(void);

#define COST_LIMIT_BYTES 200

enum cost_link { COST_BOX, COST_UPLINK, COST_HOST };

struct cost {
	double round_s; /* the sum of the parts: */
	double busy_s, lag_s, fill_s;
	enum cost_link limit; /* the link with the largest busy_s + lag_s, */
	unsigned index;       /* which box of the net, host of the file, or rack (as in ways_box) has it, */
	bool in;              /* in this direction, */
	unsigned senders;     /* so many's shares meet there, or, where it carries results alone, so many send these, */
	uint64_t bytes;       /* with this payload */
};

/* The rack of a box that is in none of the file. */
static inline unsigned cost_no_rack(unsigned box)
{
	return RACKS_MAX + box;
}

/* Fills a box of a net: with the file's rates, or the default ones. */
void cost_take_box(const struct racks *racks, int box_of, unsigned number, unsigned workers, struct ways_box *out);
/* Likewise one that the file does not have, as if it were linked as well as one that it has: in a rack of its own with
 * such an uplink. Without a file as above. */
void cost_take_stranger(const struct racks *racks, int like, unsigned number, unsigned workers, struct ways_box *out);
/* Bytes a second that a box is to be given homes by: of its links, or of its rack's uplink where that has less. */
double cost_home_rate(const struct racks *racks, const struct ways_box *box);

/* One round of these homes. 0, -EINVAL (what ways_homes() refuses) or -ENOMEM. */
int cost_round(const struct cost_net *net, const struct cost_job *job, enum ways_kind kind, unsigned root,
	const uint16_t *home, struct cost *out, struct err *e);
/* All ways, each with the homes that it has by cost_home_rate(). Likewise. */
int cost_ways(const struct cost_net *net, const struct cost_job *job, unsigned root, struct cost out[WAYS_COUNT],
	struct err *e);

/* The best from `first` on: a box that chooses has its workers already, and so begins with tree. */
enum ways_kind cost_choose(const struct cost costs[WAYS_COUNT], enum ways_kind first);

#define COST_MS_BYTES 32
/* In ms, with four digits or all before the point. Returns `out`. */
const char *cost_ms(double seconds, char out[COST_MS_BYTES]);

/* "the uplink of r0", "the link of box 10.0.0.4:7077 (not in the rack file)"; COST_LIMIT_BYTES hold any, whose names
 * have up to 159. */
void cost_write_limit(const struct cost_net *net, const struct cost *cost, char *out, size_t bytes);
/* "chain: 412 ms a round beside tree 1144 (the uplink of r0), sharded 625; the link of b1 limits", which is not told of
 * a way twice; and before that, where another is shorter by less than COST_SAME, that this counts as equal. */
void cost_write_choice(
	const struct cost_net *net, const struct cost costs[WAYS_COUNT], enum ways_kind first, char *out, size_t bytes);

#endif
