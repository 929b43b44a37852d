/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares of a core among the jobs on it: deficit round robin by bytes (Shreedhar and Varghese, SIGCOMM'95). A core runs
 * each message to completion in the order in which its queues yield them, so it cannot choose whose is next; what it
 * chooses is who may send more. So the rounds are of credits:
 *
 *      Each job has a budget. A message costs its bytes and FAIR_MESSAGE for the work that every message is. A turn
 * adds weight * FAIR_QUANTUM to each budget, up to two of these. It is due when no job is awaited any more: one is that
 *      was heard of in this round or the one before, and has not spent a quantum in this one.
 *
 *      While two jobs or more are rivals, the workers of a job may together have so many messages on the way as its
 *      budget pays for, each the same part. When it is spent they have FAIR_LEAST on the way, and when two quanta are
 *      owed, nothing. So a job that sends more than its share runs out first and waits, and one that floods the core
 *      stands behind its own credits and nobody else's.
 *
 *      What was on the way when a budget ran out is a debt, which later turns pay: a job that always has something to
 *      send is never further from its share than a window of each rival's workers and some quanta.
 *
 * A core is never idle for fairness' sake. When a poll finds nothing while a budget is spent, its job is lent some: at
 * first FAIR_LOAN_MIN, then FAIR_LOAN_GROWS times as much, up to FAIR_LOAN_MAX, as long as those that are awaited use
 * less than that meanwhile. What was lent is a debt too; but where some job had more than FAIR_POOR halves of a quantum
 * before those awaited had spent theirs, they could not use it: of its debt one quantum stays, and it keeps the loan.
 * Those silent over a long loan are awaited no more. A job alone has no rival, and owes nothing.
 *
 * What that costs (tests/unit/test_fair.c: 10 GB/s, 50 us from a result to the next push): nothing where each job can
 * use its share; a job beside one that pushes a chunk now and then, or stops and goes, 5 % at most; beside one that
 * uses a fifth of the core, 9 %.
 *
 * A job's bandwidth (spec.h) is a bucket of bytes, filled at tick, that holds credits back in the same way.
 *
 * Owning core alone; no lock, no allocation; of the clock it sees the tick.
 */
#ifndef PHUB_FAIR_H
#define PHUB_FAIR_H

#include <stdbool.h>
#include <stdint.h>

struct core;
struct link;
struct shard;

#define FAIR_QUANTUM    (1u << 20) /* bytes for each turn and unit of weight */
#define FAIR_MESSAGE    2048u      /* a message costs as much as so many bytes more */
#define FAIR_LEAST      (256 << 10)
#define FAIR_LOAN_MIN   (256ll << 10)
#define FAIR_LOAN_MAX   (64ll << 20)
#define FAIR_LOAN_GROWS 8
#define FAIR_POOR       3
#define FAIR_WEIGHT_MAX 1000u
#define FAIR_TICK_NS    1000000ull /* a bucket is filled as often */
#define FAIR_BURST      50u        /* and holds what comes in a 50th of a second, or two messages */

/* A core's side. */
struct fair {
	unsigned rivals;  /* jobs that share it now */
	unsigned awaited; /* those that have not spent their quantum */
	bool due;         /* a turn is */
	bool wanting;     /* some rival has nothing left */
	bool lent;        /* since the last turn */
	int64_t loan;     /* how much at a time */
	int64_t used;     /* by those awaited, since the last turn or loan */
	bool poor;        /* some rival has had far more than its share since the last turn */
	bool dry;         /* by bandwidth: some shard waits for its bucket */
};

/* A shard's side. */
struct fair_share {
	struct fair *fair; /* of the core that has it; NULL: none does */
	uint32_t weight;   /* 1 .. FAIR_WEIGHT_MAX */
	uint32_t message;  /* what its messages cost, on average */
	uint32_t links;    /* with a connection */
	int64_t budget;
	int64_t loan;   /* that it may be in debt for */
	int64_t spent;  /* since the last turn */
	bool heard;     /* since the last turn */
	bool rival;     /* counted in fair->rivals, */
	bool awaited;   /* in fair->awaited */
	bool withheld;  /* some link can send nothing for it */
	uint64_t rate;  /* bytes a second; 0: no bound */
	int64_t tokens; /* in its bucket */
	uint64_t filled_ns;
	bool dry; /* some link waits for the bucket */
};

/* Control, when the shard is made: it owns so many chunks with `bytes` together. */
void fair_init(struct shard *shard, uint64_t bytes);

/* The core takes the shard, and gives it back. */
void fair_join(struct core *core, struct shard *shard);
void fair_leave(struct shard *shard);

/* Bytes of a message of the shard came; `last`: with them the message is all there. */
void fair_charge(struct shard *shard, uint32_t bytes, bool last);

/* So many messages the link may have on the way, at most its window. */
uint32_t fair_window(const struct link *link);

/* The link can send nothing now because of its share or bandwidth: it is seen to when there is more. */
void fair_withhold(const struct link *link);

/* Once a step, before the queues are flushed; `idle`: no queue had anything. */
void fair_step(struct core *core, bool idle);

/* At tick: fills the buckets. */
void fair_tick(struct core *core, uint64_t now_ns);

#endif
