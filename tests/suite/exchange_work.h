/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a crew exchanges, and what must come of it: gradients that depend on (rank, round, key, index), and a serial run
 * with the scalar kernels, rank after rank, of the same sums and steps on whole keys. A worker is a member that
 * pushes such gradients and compares every element of every result.
 */
#ifndef PHUB_TESTS_SUITE_EXCHANGE_WORK_H
#define PHUB_TESTS_SUITE_EXCHANGE_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "aggregation/convert.h"
#include "aggregation/optimizer.h"
#include "tests/suite/exchange_rig.h"

enum { WORK_KEYS_MAX = 12, WORK_GROUPS_MAX = 3, WORK_ROUNDS_MAX = 12 };

struct shape {
	uint32_t elements;
	enum dtype dtype;
	unsigned group;
	bool alone;
};

enum values {
	VALUES_INTEGERS, /* sums are exact in every order and type */
	VALUES_UNEVEN,   /* the last bits of sums tell the order of the additions */
};

/* Where a worker keeps gradients and results. */
enum placing {
	PLACING_APART,      /* src and dst are malloc'ed */
	PLACING_SAME,       /* dst is src */
	PLACING_REGISTERED, /* likewise, after phub_mem_register() */
	PLACING_ALLOC,      /* phub_alloc() */
	PLACING_MIXED,      /* every key another way */
};

/* What rank 1 does wrong in the last round: whoever compares must notice. */
enum plant {
	PLANT_NONE,
	PLANT_STALE,   /* pushes the gradients of the round before */
	PLANT_SWAPPED, /* its first two chunks have changed places */
	PLANT_DOUBLED, /* one chunk of it counts twice */
};

struct work {
	unsigned world, rounds, key_count;
	struct shape keys[WORK_KEYS_MAX];
	uint64_t seed;
	enum values values;
	enum placing placing;
	enum plant plant;
	enum phub_optimizer optimizer;
	unsigned group_count; /* of an optimizer's job; 0: 1 */
	bool scheduled;       /* another learning rate every round */
	bool mean, reproducible;
	unsigned chunk_bytes;
	/* Bits of keys that are PHUB_KEY_SPARSE: of their elements all, a tenth, a thousandth or none are not zero, by
	 * round; also -0, and, without an optimizer, NaN. Their sums begin with 0. */
	unsigned sparse;
};

/* Hyper-parameters of a group in a round: every group has its own learning rate and weight decay. */
void work_hyper(const struct work *w, unsigned group, uint64_t round, struct phub_hyper *out);

/* The payload of a rank, of the key's dtype. */
void work_fill(const struct work *w, unsigned rank, uint64_t round, unsigned key, void *out);
size_t work_bytes(const struct work *w, unsigned key);

/* Serial results of all rounds, made before the crew runs; read by all of it. */
struct ledger {
	const struct work *work;
	void *results[WORK_KEYS_MAX][WORK_ROUNDS_MAX + 1]; /* of the key's dtype; round 0: the first weights */
};

void ledger_open(struct ledger *ledger, const struct work *w);
void ledger_close(struct ledger *ledger);

/* The first element of `got` that is not the serial run's, bit by bit, or -1. */
int64_t ledger_check(const struct ledger *ledger, unsigned key, uint64_t round, const void *got);
/* As ledger_check(), against what `root` broadcasts. */
int64_t work_check_broadcast(const struct work *w, unsigned root, uint64_t round, unsigned key, const void *got);

/* A member at this work. */
struct worker {
	struct member *me;
	const struct work *work;
	const struct ledger *ledger;
	struct worker_key {
		enum placing placing;
		void *src, *dst;  /* dst NULL: the result is the library's */
		const void *got;  /* where the result will be */
		bool registered;  /* phub_mem_register() took src */
		bool src_is_lent; /* the library's memory */
	} keys[WORK_KEYS_MAX];
	unsigned wrong; /* keys whose result was not the serial run's, when one was planted */
};

/* Connects, names the keys, starts, takes memory. */
void worker_open(struct worker *worker, struct member *me, const struct ledger *ledger);
/* The steps of it: names keys and starts; takes memory. */
void worker_start(struct worker *worker, const struct ledger *ledger);
/* Rank 0's weights go to all and are compared. */
void worker_weights(struct worker *worker);
/* Sets hyper-parameters when they are scheduled, pushes all keys in an order of its own, waits, compares. */
void worker_round(struct worker *worker, uint64_t round);
/* `root` broadcasts every key. */
void worker_broadcast(struct worker *worker, unsigned root, uint64_t round);
/* Gives the memory back; the handle stays. */
void worker_forget(struct worker *worker);
/* worker_forget(), leave and close. */
void worker_close(struct worker *worker);

/* All of it: weights when there is an optimizer, then the rounds. For crew_run() with a struct ledger. */
void worker_script(struct member *me);

/* Opens a ledger, runs worker_script() on a crew, closes the ledger. */
void work_run(struct stage *stage, const struct work *w);
/* Likewise with sums alone, and a broadcast before each round, by one rank after the other, and after the last. */
void work_run_broadcasts(struct stage *stage, const struct work *w);

#endif
