/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One generation of a job's key table: the plan of its chunks, where they are placed, their memory, and what each data
 * connection is told about them. Made when all ranks have sent equal tables; gone when the cores have given all shards
 * back. Control thread; may block on memory.
 */
#ifndef PHUB_CONTROL_GENERATION_H
#define PHUB_CONTROL_GENERATION_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/base/mem.h"
#include "phub/control/table.h"
#include "phub/spec.h"
#include "phub/store.h"
#include "transport/transport.h"

#define GENERATION_CHUNKS_MAX 1000000u /* Start must fit a frame */

struct box;
struct job;
struct standby;

/* Memory for other homes of its chunks (phub/rehome.h), until they have them. */
struct generation_ways {
	struct mem_region *regions; /* [core_count] a struct rehome begins each that has chunks */
	uint64_t memory;            /* counted */
};

/* A rank's connection to a core. */
struct generation_link {
	struct conn_spec spec;
	uint8_t key[PROOF_KEY];      /* its session's, which spec names */
	uint8_t push_key[PROOF_KEY]; /* `sealed`: of what it pushes; follows from `key` */
	uint64_t serial;             /* how many were let in; a second one only where one that broke may be made anew */
	uint64_t tried_ns;           /* when one last came to be let in */
	bool sealed;                 /* what goes over it is encrypted */
	bool fresh;                  /* the next connection is that of a rank that comes anew */
	uint64_t ended_ns;           /* since when there is none; 0: there is one, or never was */
};

struct generation {
	struct spec spec;
	struct table *table;   /* what the ranks agreed on; ours */
	uint32_t *chunk_bytes; /* [plan.chunk_count] */
	uint16_t *core_of_chunk;
	struct store store;
	struct mem_region *pushes; /* [world] mapped by workers over shared memory; zero for others */
	uint32_t slot_count;       /* of each mapped worker at each core, behind what belongs to the chunks */
	uint32_t slot_bytes;
	struct generation_link *links; /* [world][core_count] */
	uint32_t window;               /* messages of a connection in flight, at most */
	uint64_t memory;               /* counted in control->memory_used... */
	uint64_t reserved;             /* ...of it, for a mirror's job, should it go on here */
	struct standby *standby;       /* to which it is mirrored; NULL: the box has none */
	unsigned attached;             /* shards that are with the cores */
	uint8_t data_key[PROOF_KEY];   /* spec.encrypt: of its results, drawn for this generation alone */
	bool placed;                   /* its load is in box->placement */
	bool detaching;
	bool hurried; /* the cores were told to let nothing drain */
};

/*
 * Plans, places, admits and takes memory for the job's reference table, which is the generation's on success. 0, or
 * with the reason in `e` -ENOMEM (over memory_max, or the machine's), -EINVAL, -EOVERFLOW, -E2BIG.
 */
int generation_create(struct job *job, struct generation **out, struct err *e);

/* A mirror's job goes on here, and takes what was reserved for it. */
void generation_give_reserved(struct generation *g, struct box *box);

/* Are its results in memory that others can map? */
static inline bool generation_is_shared(const struct generation *g)
{
	return g->store.result.fd >= 0;
}
/*
 * A box comes by this transport, of which nothing was known when the generation was made: what it maps, where it maps
 * anything, is taken and counted. 0, -ENOTSUP (its results are in memory that nobody else can map), or -ENOMEM.
 */
int generation_map(struct job *job, uint32_t rank, const char *transport, struct err *e);

/* Takes and counts it. 0, or -ENOMEM. */
int generation_take_ways(struct job *job, const uint16_t *ways, struct generation_ways *out, struct err *e);
/* The shards have it: frees what they had before. `ways` are the generation's from now on. */
void generation_have_ways(struct job *job, const uint16_t *ways, struct generation_ways *w);
/* They will not. `g` NULL: it is gone, and what was counted with it. */
void generation_drop_ways(struct generation *g, struct box *box, struct generation_ways *w);

/* Gives the shards to the cores. */
void generation_attach(struct generation *g, struct box *box);

/* Sends this to every core that has a shard of it, which `core`, `shard`, `job` and `generation` then name. How many.
 */
unsigned generation_post(const struct generation *g, struct box *box, const struct mail *mail);

/* The rank is gone: its connections end now. */
void generation_unlink(struct generation *g, struct box *box, uint32_t rank);

/*
 * Calls the shards back. They come by MAIL_DETACHED: when the results of committed rounds have reached all who still
 * read, and after drain_ns at the latest, or, `patient`, when none went out for so long. Again with 0: at once.
 */
void generation_detach(struct generation *g, struct box *box, uint64_t drain_ns, bool patient);

/* When no shard is with a core. NULL is allowed. */
void generation_destroy(struct generation *g, struct box *box);

struct generation_link *generation_link(struct generation *g, uint32_t rank, uint32_t core);

/* Pushed bytes and committed chunk rounds, over all cores, so far; and what travelled of sparse keys. */
struct generation_sums {
	uint64_t bytes, rounds;
	struct coding_tally sparse_pushes, sparse_replies;
};
struct generation_sums generation_sums(const struct generation *g);
/* Adds the messages that its cores have dropped so far, by enum shard_drop. */
void generation_add_dropped(const struct generation *g, uint64_t sums[DROP_COUNT]);

#endif
