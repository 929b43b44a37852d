/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker for the system tests: one rank of a job, driven by arguments, that knows what every result must be. It links
 * libphub.a and includes client/phub.h alone, as a user's program does; it prints one JSON object a line.
 */
#ifndef TESTS_SYSTEM_WORKER_H
#define TESTS_SYSTEM_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/phub.h"

/*
 * Test data repeat after this many elements, so that what a key of any size must hold is told by one short table. A
 * prime, so that no chunk (a power of two of elements) looks like a neighbour.
 */
#define WORKER_PERIOD 4093u
#define WORKER_KEYS   4096u
#define WORKER_NEVER  UINT64_MAX

struct worker_key {
	char name[260];
	uint64_t elements;
	enum phub_dtype dtype;
	unsigned flags;
	size_t bytes;
	void *src;          /* what is pushed */
	void *dst;          /* where the result is copied to; NULL when it is read in place */
	const void *result; /* where it is read */
	float *before;      /* what the last round gave, where that is needed to check the next */
};

/* A wrong chunk in the results, planted where they have arrived: the check must find it. */
enum worker_plant { PLANT_NOTHING, PLANT_STALE, PLANT_SWAPPED, PLANT_DOUBLED };

struct worker_options {
	const char *url;
	struct phub_options phub;
	struct phub_hyper hyper;
	enum phub_dtype dtype; /* of keys that do not name one */
	struct worker_key *keys;
	unsigned key_count;
	uint64_t rounds;    /* after the first weights; WORKER_NEVER: until standard input ends at some rank */
	bool normals;       /* data are random normals, not small integers */
	unsigned one_in;    /* of so many values of a gradient one is not zero; 0: all may be */
	bool alloc;         /* exchange in phub_alloc()'s memory */
	bool registered;    /* ...or in malloc'ed memory that phub_mem_register() knows */
	bool check;         /* results are compared with what they must be */
	bool census;        /* no optimizer, fp32: sums tell who is in them, and nobody knows that beforehand */
	unsigned schedule;  /* which learning rates: 0 is the same in every round */
	bool front;         /* push from the last key to the first, and see that the first comes back first */
	bool back;          /* the same the other way round: the last key is the urgent one, and pushed last */
	bool flat;          /* no priorities: all keys have the same */
	bool barrier;       /* meet before the rounds */
	uint64_t lag_ms;    /* before the last push of a round */
	uint64_t delay_ms;  /* before connecting */
	uint64_t pause_us;  /* between rounds */
	uint64_t report_ms; /* between events of progress; 0: none */
	int wait_ms;        /* of one wait; when it ran out, its text is printed and it is done again... */
	int patience_ms;    /* ...until so much time has passed */
	unsigned tables;    /* key tables, one after the other, with so many rounds each */
	bool some;          /* ranks may be lost and come: a chunk's sum is that of some of them */
	bool settle;        /* at the end a round without gradients, behind barriers: the weights that all steps gave */
	/* Ways to misbehave. Rounds count from 1. */
	bool no_start;     /* joins and sends no keys until standard input ends */
	bool no_weights;   /* an optimizer, and no broadcast */
	bool idle;         /* starts, and does nothing until standard input ends */
	bool no_leave;     /* exits without a word */
	uint64_t watch_ms; /* at its end: how long to look whether the memory that it exchanged in is still touched */
	uint64_t stop_at;  /* SIGSTOP to itself before this round */
	uint64_t die_at;   /* SIGKILL */
	uint64_t skip_at;  /* leaves before this round */
	uint64_t nan_at;   /* an element is NaN (or infinite) in this round */
	uint64_t look_at;  /* the result of that element in this round is told */
	unsigned nan_key;
	uint64_t nan_element;
	bool infinite;
	enum worker_plant plant; /* at every round from 2 on */
};

/* Reads "name=value" arguments. Prints what is wrong and returns false. */
bool worker_options_parse(struct worker_options *o, int argc, char **argv);

/* ---- worker_data.c: what is pushed, and what must come back ---- */

/* One period of what all keys hold, in the box's fp32. Key `k`'s element i is at (i + worker_phase(k)) % WORKER_PERIOD.
 */
struct worker_oracle {
	const struct worker_options *options;
	float gradient[WORKER_PERIOD]; /* sum or mean of all ranks in this round, in rank order */
	float slack[WORKER_PERIOD];    /* how far off a sum in another order may be; 0: not at all */
	float weight[WORKER_PERIOD];
	float state[2][WORKER_PERIOD];
	uint64_t steps;
};

unsigned worker_phase(unsigned key);
size_t worker_dtype_bytes(enum phub_dtype dtype);

/* The first weights. */
void worker_oracle_init(struct worker_oracle *oracle, const struct worker_options *options);
/* What round `round` must give; `hyper` as it was set for it. */
void worker_oracle_round(struct worker_oracle *oracle, uint64_t round, const struct phub_hyper *hyper);

/* One period of a rank's gradient in whole numbers. */
void worker_integers(uint32_t rank, uint64_t round, float out[WORKER_PERIOD]);
/* Writes this rank's gradient of `round`, or the first weights. */
void worker_fill(const struct worker_options *o, unsigned key, uint64_t round, void *out);
void worker_fill_weights(const struct worker_oracle *oracle, unsigned key, void *out);

/* How many elements of the key's result differ from the oracle. */
uint64_t worker_check(const struct worker_oracle *oracle, unsigned key, const void *result);

/* ---- worker_some.c: jobs in which a sum may lack ranks ---- */

/*
 * The result of a round in which ranks came or went: every chunk must be the sum of some ranks (of at most
 * WORKER_SOME_WORLD, in whole numbers, without optimizer or with sgd of rate 1 over f32). How many elements are of no
 * ranks, and how many runs of the same ranks there are above the number of chunks. Keeps the result for the next round;
 * `round` 0 does nothing else.
 */
#define WORKER_SOME_WORLD 6u
uint64_t worker_check_some(const struct worker_options *o, unsigned key, uint64_t round, const void *result);

/* Whatever order the steps were taken in: the weights after `rounds` rounds of all ranks, with sgd of rate 1. */
void worker_oracle_total(struct worker_oracle *oracle, uint64_t rounds);
/*
 * In a job whose ranks come and go: every rank pushes a bit of its own, times what element and round say. The check
 * returns how many elements are no such sum, or one without this rank, and takes from `ranks` those that lack
 * somewhere.
 */
void worker_fill_bits(const struct worker_options *o, unsigned key, uint64_t round, void *out);
uint64_t worker_check_bits(
	const struct worker_options *o, unsigned key, uint64_t round, const void *result, unsigned *ranks);

/* Spoils the result of a key of at least two chunks. */
void worker_plant(const struct worker_options *o, struct worker_key *key);

/* FNV-1a over the bytes, going on from `digest`. */
uint64_t worker_digest(uint64_t digest, const void *data, size_t bytes);

/* One optimizer step over n elements, serially, in the order of operations that the box promises. */
void worker_step(enum phub_optimizer kind, const struct phub_hyper *hyper, uint64_t step, const float *gradient,
	float *weight, float *state0, float *state1, size_t n);

/* fp32 to the type and back, to nearest even. */
void worker_narrow(enum phub_dtype dtype, const float *from, void *to, size_t n);
float worker_widen(enum phub_dtype dtype, const void *from, size_t index);

#endif
