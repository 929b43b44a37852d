/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chunk and its rounds: who has come, and the sum so far; commit.h has the end of a round. A shard is the part of a
 * job that one core owns: its chunks, the links to the job's workers and the memory for sums. Every function here is
 * called by the owning core alone (that is what makes locks unnecessary) and none blocks, allocates, logs or makes a
 * system call.
 *
 * A round of a chunk:
 *
 *      collecting ---- each contributor's payload is held, staged or added; the last one commits:
 *          |           one pass reads sum, held payloads, weights and state, writes weights, state and result
 *          v
 *      committed  ---- the result is replied to all contributors; the next round collects
 *
 * A payload may come in parts (parts.c), which are added one by one; it has come when the last of them has.
 * Where the job is mirrored, the replies wait for the standby box (replica.c).
 * A commit that lacks something (hyper-parameters still in the mail, a reply of the previous round still being sent
 * from the result) is parked and tried again when that comes. With sync ssp or async there is nothing to collect:
 * each push is a step (stepwise.c).
 */
#ifndef PHUB_CHUNK_H
#define PHUB_CHUNK_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/base/trace.h"
#include "phub/fair.h"
#include "phub/hyper.h"
#include "phub/mailbox.h"
#include "phub/spec.h"
#include "transport/transport.h"

struct crypt;
struct kernels;
struct lease;
struct sealing;
struct shard;
struct snapshot;
struct uplink;

/* What became of a contributor's payload in the round that is being collected. */
enum arrival_state {
	ARRIVAL_NONE,    /* has not come yet */
	ARRIVAL_PARTIAL, /* some parts of it are in chunk->sum: still missing */
	ARRIVAL_SUMMED,  /* is in chunk->sum */
	ARRIVAL_HELD,    /* lies in a transport's slot, which is kept until the commit */
	ARRIVAL_STAGED,  /* was copied, because the order of the sum is fixed and it came early */
	ARRIVAL_EMPTY,   /* a pull: takes part in a broadcast without bringing anything */
	ARRIVAL_PARKED,  /* stepwise: a push that waits for its hyper-parameters, in its own result row */
};

/* One contributor of one chunk. */
struct arrival {
	const void *payload; /* HELD, STAGED */
	void *slot;          /* HELD: what the transport wants back */
	uint64_t round;      /* stepwise: the last round this rank pushed */
	uint32_t hyper;      /* the version its push named */
	uint32_t ahead;      /* rounds after its own that its result is of (quorum); mirror: further answers due */
	uint32_t count;      /* gradients in its payload */
	uint32_t seq;        /* PARTIAL: of the message whose parts are taken */
	uint32_t bytes;      /* PARTIAL: so many of them have come; mirror: arrays of an image that have */
	uint8_t state;       /* enum arrival_state */
	uint8_t sends;       /* replies to this rank that its queue still reads from */
	bool due;            /* its reply waits in the link's heap */
	bool owed;           /* ssp: its answer waits for slower ranks */
	uint16_t priority;   /* of its push, for the reply */
	uint8_t serial;      /* low bits of link.serial when this rank's last message about the chunk came, */
	uint8_t answered;    /* and when its last result went */
	uint64_t from;       /* the first round that it takes part in; MEMBERS_NEVER: it was lost (members.h) */
};

/* What a round is: all contributors must agree. */
enum round_kind { ROUND_OPEN, ROUND_GRADIENT, ROUND_BROADCAST };

struct chunk {
	uint64_t round; /* the round being collected: all below are committed; stepwise: the slowest rank's next one,
			   when the membership last changed; written by stats_set(), for control reads it */
	uint64_t steps; /* optimizer steps taken */
	uint64_t opened_ns; /* when its first contributor came */
	uint32_t index;     /* in the job's plan */
	uint32_t elements;
	uint32_t bytes;        /* of a payload on the wire */
	uint32_t answer_bytes; /* of a result on the wire: as many, or none in a mirror */
	uint16_t group;        /* parameter group */
	uint8_t dtype;         /* enum dtype, of a payload */
	uint8_t kind;          /* enum round_kind */
	uint32_t arrived;      /* contributors that have come, with all their parts, */
	uint32_t needed;       /* and that must have come for the commit */
	uint32_t gradients;    /* in those contributions and the partial ones: what a mean divides by */
	uint32_t summed; /* contributors whose whole payload is in `sum`; reproducible: ranks below this are; folded:
			    none */
	uint32_t stored; /* bytes of a payload for which `sum` has values; when it has all, `map` says nothing */
	uint32_t sends;  /* replies of the last round that a queue still reads from */
	uint32_t hyper;  /* the version that this round wants */
	bool weights;    /* has first weights, or needs none */
	bool parked;     /* all have come, but the commit lacks something */
	bool sparse;     /* its zeros need not travel (coding.h) */
	bool lifted; /* what was committed goes to the standby: answers and the next commit wait (replica.h); or the sum
			is on its way to the box above (lift.h) */
	uint16_t way;          /* the uplink that its sums take, or SPEC_HOME... */
	uint32_t way_at;       /* ...and its place among the chunks of that */
	uint32_t newer, older; /* neighbours in the shard's list of open chunks, by age; CHUNK_NONE at the ends */
	uint32_t coded_bytes;  /* sparse: of the result, where it lies coded (coding.h) */
	float *sum;      /* fp32 accumulator, from the shard's pool while payloads or parts are in it; else NULL */
	uint64_t *map;   /* with `sum`, where parts may come: which of its blocks have values (parts.h) */
	uint8_t *coded;  /* sparse: where its result lies coded; NULL: it always goes plain */
	uint8_t *result; /* in the job's result region; row r of stepwise jobs is at r * plan.region_bytes */
	float *weight;   /* master weights; the result itself when that is fp32 and bsp; NULL without optimizer */
	float *state[OPTIMIZER_STATE_MAX];
	struct arrival *arrivals; /* [world] */
};

#define CHUNK_NONE UINT32_MAX

/* One worker's connection to this core, for one job. */
struct link {
	struct shard *shard;
	uint32_t rank;
	uint32_t name; /* the rank in its headers */
	struct queue *queue;
	struct conn *conn;    /* NULL when there is none */
	uint32_t window;      /* messages that may be in flight to us */
	uint32_t seq_max;     /* the highest seq that came */
	uint64_t pushes;      /* messages that came; read by control with relaxed loads */
	uint32_t credit_told; /* the highest seq we told the worker it may send */
	uint32_t held;        /* slots kept of this link */
	uint32_t sends;       /* replies that the queue still reads from */
	bool credit_due;      /* tell it even if nothing else goes to it */
	bool touched;         /* in the core's list of links to be looked after at the end of the batch */
	struct link *next_touched;
	bool finished; /* the shard drains, and the worker was told that nothing more comes */
	bool again;    /* its connection replaced one that broke: what it pushes may have come before */
	bool fresh;    /* the next connection is that of a rank that comes anew: nothing it pushes has come before */
	bool moved;    /* the first connection replaces one to another box, of which this shard was a mirror */
	bool sealed;   /* what goes over it is encrypted, either way (sealing.h) */
	struct crypt *opener; /* of what comes; NULL in a job that is not encrypted. Control's */
	uint64_t serial;      /* of its connection: control's */
	bool end_untold;      /* control's mailbox was full: the end of the connection is told at a later tick */
	bool end_broken;
	int end_error;
	uint32_t end_chunk;
	char end_text[MAIL_TEXT_BYTES];
	uint64_t *replies; /* heap of (priority, local chunk) that could not be sent yet */
	uint32_t reply_count;
};

enum shard_failure {
	SHARD_FAIL_NAN = 1,    /* rank pushed NaN or infinity; detail: element in the chunk */
	SHARD_FAIL_NO_WEIGHTS, /* rank pushed a gradient to a chunk without first weights */
	SHARD_FAIL_KIND,       /* rank pushed where others broadcast, or the reverse; two roots; detail: wire type */
	SHARD_FAIL_HYPER,      /* rank names another hyper-parameter version than the others; detail: its version */
	SHARD_FAIL_HYPER_OLD,  /* rank names a version that is no longer kept; detail: the version */
	SHARD_FAIL_SEALING,    /* its result cannot be encrypted */
	SHARD_FAIL_ALONE,      /* all who could push this round to be lifted are lost: others come after it */
};

/* What a core's trace tells; the arguments are chunk (in the job's plan), rank, round. */
enum shard_trace {
	TRACE_COMMIT = 1, /* bsp: the round of this chunk is committed; rank: the last that came */
	TRACE_STEP = 2,   /* stepwise: this rank's push is applied; the order of these is the order of the steps */
	TRACE_FROM = 3,   /* the membership has changed: this rank takes part from this round on, or never */
	TRACE_VISIT = 4,  /* stepwise: this rank, which comes, is given the weights as those after this round */
};

/* Why a message was dropped; each has its counter. */
enum shard_drop {
	DROP_DUPLICATE, /* same rank, round and epoch once more */
	DROP_EPOCH,     /* of an older membership or key table */
	DROP_STALE,     /* of a round before the last one */
	DROP_FAILED,    /* of a job that has failed */
	DROP_LATE,      /* of a round that its quorum had closed */
	DROP_BUSY,      /* lossy transports: came while its reply row was still being read; comes again */
	DROP_FORGED,    /* encrypted: not what its worker sealed, or said before; where nothing gets lost its connection
			   ends */
	DROP_COUNT,
};

/* In a word: "duplicate", "forged". */
const char *shard_drop_name(enum shard_drop why);

/* Payload of sparse chunks that went one way over links that map nothing (coding.h). */
struct coding_tally {
	uint64_t coded; /* messages that were */
	uint64_t bytes; /* that travelled, of those and of plain ones, */
	uint64_t whole; /* and of the elements that they say */
};

struct shard_counters { /* read by control with relaxed loads */
	uint64_t messages, bytes;
	uint64_t rounds; /* chunk rounds committed, or steps taken */
	uint64_t replies;
	uint64_t parked;
	uint64_t held, staged, added; /* payloads by what became of them */
	struct coding_tally sparse_pushes, sparse_replies;
	uint64_t nonfinite; /* elements zeroed */
	uint64_t slots_kept, slots_released;
	uint64_t sends, sends_done; /* with a cookie; done: completed or dropped with their link */
	uint64_t dropped[DROP_COUNT];
	uint64_t share_waits; /* turns before which it had spent its share of the core (fair.h) */
	uint64_t quota_ns;    /* for which its bandwidth held credits back */
};

/* For tests: what a core does wrong on purpose, so that it is seen that the simulation finds it. */
enum shard_plant {
	SHARD_PLANT_NONE,
	SHARD_PLANT_DUPLICATE,  /* a push that comes twice is summed twice */
	SHARD_PLANT_EARLY,      /* a round is committed when one contributor lacks */
	SHARD_PLANT_CREDIT,     /* the credit of a slot that was kept is never given back */
	SHARD_PLANT_WITHDRAWN,  /* what was withdrawn stays in the sum */
	SHARD_PLANT_LOST,       /* a rank that was lost is still waited for */
	SHARD_PLANT_EPOCH,      /* pushes of an older membership are taken */
	SHARD_PLANT_NEIGHBOUR,  /* a job is answered with what another has */
	SHARD_PLANT_UNLIFTED,   /* a round is answered before the standby has it */
	SHARD_PLANT_UNCOUNTED,  /* a sum that is lifted counts as one gradient */
	SHARD_PLANT_UNREPEATED, /* it is not sent again when the membership changes above */
	SHARD_PLANT_MISCOUNTED, /* it counts as many gradients as contributors, be these boxes */
	SHARD_PLANT_ALONE,      /* where the uplink ends, it is taken for the result */
	SHARD_PLANT_BEYOND,     /* rounds are committed beyond the lease of a root */
	/* Not of shards: of their checkpoints. */
	SHARD_PLANT_UNSYNCED,  /* a file gets its name before its bytes are on disk */
	SHARD_PLANT_UNCHECKED, /* what is read is not compared with its checksum */
	SHARD_PLANT_HASTY,     /* a job goes on a round too early */
	/* Not of shards either: */
	SHARD_PLANT_UNMENDED,  /* a standby that was lost once is not tried again */
	SHARD_PLANT_IMPATIENT, /* on the way to a chunk's home no box waits for the sum of the one before */
	SHARD_PLANT_MUTE,      /* a box that has lost one beside leaves the top box without a word of it */
	SHARD_PLANT_UNLOCKED,  /* a box is promoted to be the root without the locks of its targets */
	SHARD_PLANT_UNCARRIED, /* a chunk's next home does not take what it had at the one before */
	SHARD_PLANT_COUNT,
};

/* Where a shard stands on its way back to control. */
enum shard_stage {
	SHARD_LIVE,     /* rounds run */
	SHARD_DRAINING, /* no round is committed any more; results of those that were still go out */
	SHARD_CLOSING,  /* all connections are ended; what was out on them is settled, some chunks a turn */
};

/* The scalars of one optimizer step, kept for the other chunks of the same round and group. */
struct coef_cache {
	bool valid;
	uint32_t rank, version, group;
	uint64_t step;
	struct optimizer_coef coef;
};

struct shard {
	const struct spec *spec;
	uint32_t epoch;      /* of the membership */
	bool holds;          /* the membership changes: nothing is committed (members.h) */
	uint8_t plant;       /* enum shard_plant */
	bool paused;         /* the operator holds it: pushes are taken, nothing is committed */
	bool leased;         /* so it is, too, when its box's lease is over; set by control, before a core has it */
	struct lease *lease; /* leased: the core's; else NULL */
	/* The job is drained, or stops for its chunks to get other homes: [plan.chunk_count] the first round that is
	 * not committed any more; control's memory, each entry its chunk's core's. NULL: it is not. */
	uint64_t *stops;
	bool stops_firm;    /* other boxes stop there, too (members.firm) */
	uint32_t stop_left; /* chunks with rounds before that */
	bool stop_told;
	const struct kernels *kernels;
	struct mailbox *control; /* where failures and stalls are told */
	struct trace *trace;     /* the core's, set when it takes the shard */
	unsigned core;
	uint32_t chunk_count;
	struct chunk *chunks;
	struct span *spans;      /* [chunk_count], for conn_spec */
	struct span *lift_spans; /* likewise, of connections to and from boxes */
	struct link *links;      /* [world] */
	struct hypers hypers;
	float **sums;    /* pool of accumulators, last in first out so that they stay in cache */
	uint64_t **maps; /* that go with them; NULL when the job takes no parts */
	uint32_t sum_free, sum_count;
	uint8_t **stages; /* pool of staging buffers (reproducible), likewise */
	uint32_t stage_free, stage_count;
	uint8_t *scratch;             /* one chunk: a payload whose NaNs are zeroed */
	float *folds[SPEC_FOLDS_MAX]; /* likewise: the sums of lists in the association, by depth */
	const void **sources;         /* [world] pointers for one kernel call */
	uint32_t open_oldest, open_newest;
	uint32_t parked_count;
	bool beyond_cache; /* payloads and results of a round are more than the core's cache, or said to be */
	bool retry_due;    /* hyper-parameters came, or a link ended: parked commits are tried again at tick */
	uint64_t stalled_told_ns;
	uint64_t stalled_round; /* that was told last, of the chunk... */
	uint32_t stalled_chunk; /* ...here */
	bool stalled_owed;      /* it is to be told, too, when that is over */
	struct fair_share share;
	struct coef_cache coef;
	struct sealing *sealing; /* NULL: the job is not encrypted */
	/* spec.rehomes: [chunk_count] each of lift_bytes, the sum that is sent of a chunk, whatever way that takes;
	 * else they lie with the ways. NULL */
	uint8_t *lifts;
	uint64_t lift_bytes;
	struct uplink *uplinks; /* to other boxes: the standby, if it has one, then those above (spec.way_count) */
	uint32_t uplink_count;
	struct uplink *replica;    /* the first of them; NULL: the job is not mirrored */
	struct snapshot *snapshot; /* that is being taken (snapshot.h), or NULL */
	uint32_t snap_left, snap_at;
	bool snap_untold; /* control's mailbox was full: told at a later tick */
	int snap_result;
	bool failed;         /* or being detached: pushes are dropped, nothing is committed */
	bool failure_untold; /* control's mailbox was full: told at a later tick */
	struct mail failure;
	enum shard_stage stage;
	/* SHARD_DRAINING: */
	uint64_t drain_until_ns;
	uint64_t drain_more_ns; /* so long from the last reply that went out, of which there were... */
	uint64_t drain_sends;   /* ...so many when that was looked at; 0: no longer than until then */
	uint32_t sweep_at;      /* the chunk that link_sweep() looks at next... */
	uint32_t sweep_left;    /* ...and how many; 0: links that ended have nothing out any more */
	uint32_t sums_used;     /* SHARD_CLOSING: accumulators in use, of the chunks swept so far */
	struct shard *next;     /* of the core */
	struct shard_counters counters;
};

/*
 * A message, or a part of one, that receive.c has checked: it is of this shard, link and epoch, its length is the
 * chunk's, and the part lies within it.
 */
struct contribution {
	struct link *link;
	const struct wire_header *header;
	const void *payload;
	uint32_t offset, bytes; /* of the message, at `payload`; 0 and all but for a part */
	bool last;              /* with it, all of the message has come */
	void *slot;             /* NULL when the payload may not be kept */
	uint64_t now_ns;
};

/*
 * Takes one contribution. Returns 1 when the payload is kept (its slot is released at the commit), 0 when it may be
 * reused at once: it was summed, staged, or dropped and counted. -EPROTO when no honest worker sends this (a round
 * from the future; parts of one message that differ): the caller closes the connection. A failure of the job is told to
 * control and leaves the shard `failed`.
 */
int chunk_add(struct chunk *chunk, const struct contribution *c);

/* The reply with `cookie` (the chunk) to `link` is no longer read by its queue. */
void chunk_sent(struct chunk *chunk, struct link *link, uint64_t now_ns);

/* A lossy link repeats its push of `round`: if that is committed, its result is sent again unless it is on the way. */
void chunk_answer_again(struct chunk *chunk, struct link *link, uint64_t round);

/* The shard's chunk with this index in the job's plan: they are in its order. NULL: it is not here. */
struct chunk *chunk_find(const struct shard *shard, uint32_t index);
/* A visit comes again when the membership changes: is there no answer on its way, or here, that was not lost? */
bool chunk_visits_anew(const struct arrival *a, const struct link *link);

/*
 * The payload that is held of this link is gone with its connection: as if it had not come, so that no commit reads it.
 */
void chunk_forget(struct chunk *chunk, const struct link *link);

/* Marks the shard failed and tells control. Only the first failure is told. */
void chunk_fail(struct chunk *chunk, const struct link *link, enum shard_failure what, uint64_t round, uint64_t detail);

/* For commit.c and stepwise.c: the list of open chunks, oldest first; a payload after the job's policy on NaN and
 * infinity (NULL: the job has failed by it). */
void chunk_open(struct chunk *chunk, struct shard *shard, uint64_t now_ns);
void chunk_close(struct chunk *chunk, struct shard *shard);
const void *chunk_clean(struct chunk *chunk, const struct contribution *c);

/* What a payload of this contributor is of. */
static inline enum dtype chunk_payload_dtype(
	const struct chunk *chunk, const struct spec *spec, uint32_t rank, enum wire_type type)
{
	return type == WIRE_PUSH && spec_is_box(spec, rank) ? spec->lift : (enum dtype)chunk->dtype;
}

/* Is its sum on the way to another box? All have come to its round, and nothing of that can be taken back here. */
static inline bool chunk_is_up(const struct chunk *chunk)
{
	return chunk->lifted && chunk->way != SPEC_HOME;
}

/* The chunk's index among those of its shard. */
static inline uint32_t chunk_local(const struct shard *shard, const struct chunk *chunk)
{
	return (uint32_t)(chunk - shard->chunks);
}

#endif
