/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a core must know of a job: made by the control thread when all ranks have agreed, then
 * constant until the job's shards are detached. Any thread may read it.
 */
#ifndef PHUB_SPEC_H
#define PHUB_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "aggregation/convert.h"
#include "aggregation/optimizer.h"
#include "phub/base/err.h"
#include "topology/chunking.h"
#include "transport/seal.h"
#include "transport/wire.h"

#define SPEC_NAME_BYTES 64
#define SPEC_GROUPS_MAX 256u
#define SPEC_FOLDS_MAX  8u         /* lists in each other, in an association */
#define SPEC_HOME       UINT16_MAX /* in place of an uplink: rounds of this chunk end here */

enum spec_sync { SYNC_BSP, SYNC_SSP, SYNC_ASYNC };
enum spec_nan { NAN_PASS, NAN_ZERO, NAN_FAIL };
/* When a rank is lost: the job ends, goes on with those left, or waits for another in its place. */
enum spec_lost { LOST_FAIL, LOST_SHRINK, LOST_WAIT };

struct association;

struct spec {
	char name[SPEC_NAME_BYTES];
	uint32_t id;         /* on the wire */
	uint32_t world;      /* 1 .. WIRE_WORLD_MAX */
	uint32_t generation; /* of the key table */
	uint32_t epoch;      /* of the membership at the start; a shard has its own since */
	enum optimizer_kind optimizer;
	bool mean; /* divide sums by the gradients in them */
	enum spec_sync sync;
	uint32_t staleness;                    /* rounds, for SYNC_SSP */
	bool reproducible;                     /* sums in rank order... */
	const struct association *association; /* ...or in this one, which is the key table's; NULL: there is none */
	enum spec_nan nan;
	enum spec_lost lost;
	uint32_t
		quorum; /* bsp: a round closes when so many have pushed it, and later pushes are dropped; 0: all must */
	enum seal_kind seal; /* of its datagrams */
	bool encrypt;        /* what leaves the host is encrypted (sealing.h) */
	uint32_t weight;     /* its share of a core beside other jobs; 0: 1 */
	uint64_t bandwidth;  /* bytes a second that its workers may push, all together; 0: no bound */
	bool standby;        /* its committed rounds go to a standby box before their results go out (replica.h) */
	bool mirror;         /* it is the copy of another box's job (mirror.h): that box is its one worker */
	/*
	 * Where there are boxes below or above this one (lift.h). The last `boxes` of the contributors are boxes: what
	 * they push are sums of type `lift`.
	 */
	uint32_t boxes;
	enum dtype lift;
	uint32_t root;         /* the contributor whose first weights they are; `world`: none of this box's workers */
	const uint32_t *names; /* [world] the rank that each one's headers name; NULL: its number here */
	const uint16_t *way_of_chunk; /* [plan.chunk_count] which uplink its sum takes, or SPEC_HOME; NULL: none */
	uint32_t way_count;
	bool rehomes; /* ways of its chunks may change while it runs (rehome.h) */
	uint32_t group_count;
	struct optimizer_hyper groups[SPEC_GROUPS_MAX]; /* version 0 of the table */
	struct chunk_plan plan;                         /* the job's chunks; owned by whoever made the spec */
	const uint16_t *core_of_chunk;                  /* [plan.chunk_count] */
	unsigned core_count;                            /* cores of the box */
};

/* Do pushes step the weights one by one (ssp, async), rather than wait for each other (bsp)? */
static inline bool spec_stepwise(const struct spec *s)
{
	return s->sync != SYNC_BSP;
}

/* Is this contributor a box, rather than a worker? */
static inline bool spec_is_box(const struct spec *s, uint32_t contributor)
{
	return contributor >= s->world - s->boxes;
}

/* Sums between boxes, in memory that both map: a chunk has so many times the room that it has among the workers'. */
uint32_t spec_lift_scale(const struct spec *s);

/* The uplink that this chunk's sums take, or SPEC_HOME. */
static inline uint16_t spec_way(const struct spec *s, uint32_t chunk)
{
	return s->way_of_chunk ? s->way_of_chunk[chunk] : SPEC_HOME;
}

/* Has each rank a result of its own? Where one may read an old result while others are ahead. */
static inline bool spec_rows(const struct spec *s)
{
	return spec_stepwise(s) || s->quorum > 0;
}

/*
 * Can pushes be summed in the parts that they come in? Where each is a step, waits for its turn, may come too late,
 * may be a sum already, has to be opened, or may be coded (coding.h), it comes whole.
 */
static inline bool spec_parts(const struct spec *s)
{
	return s->sync == SYNC_BSP && !s->reproducible && !s->quorum && !s->encrypt && !s->mirror && s->boxes == 0 &&
	       s->plan.sparse_bytes == 0;
}

/*
 * Is this a job that the box can run? Looks at all but the plan; its numbers may come straight from the wire. 0, or
 * -EINVAL or -ENOTSUP with what is wrong and what is allowed in `e`. Any thread.
 */
int spec_check(const struct spec *s, struct err *e);

/* Are these hyper-parameters in range for the optimizer? 0, or -EINVAL with group, parameter and range in `e`. */
int spec_hyper_check(enum optimizer_kind kind, uint32_t group, const struct optimizer_hyper *hyper, struct err *e);

/*
 * The first hyper-parameter in which two groups differ, with both values; NULL when they are equal. `at`: 0, and again
 * as it was left for the next one; NULL: the first will do.
 */
const char *spec_hyper_differs(
	const struct optimizer_hyper *a, const struct optimizer_hyper *b, unsigned *at, double *in_a, double *in_b);

/* Names for messages: "?" for unknown numbers. */
const char *spec_optimizer_name(unsigned kind);
const char *spec_sync_name(unsigned sync);
const char *spec_nan_name(unsigned nan);
const char *spec_lost_name(unsigned lost);

#endif
