/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a job's results must be: gradients that depend on (seed, rank, round, key, index), and a serial run of the same
 * sums and optimizer steps on one whole key after another. The oracle uses only the scalar kernels.
 */
#ifndef PHUB_TESTS_SIM_ORACLE_H
#define PHUB_TESTS_SIM_ORACLE_H

#include <stdbool.h>
#include <stdint.h>

#include "aggregation/convert.h"
#include "aggregation/optimizer.h"

enum oracle_values {
	ORACLE_INTEGERS, /* small whole numbers: sums are exact in every order and type */
	ORACLE_NORMALS,  /* sums depend on the order: only for reproducible jobs bit by bit, else within `world` ulp */
};

struct oracle {
	uint64_t seed;
	uint32_t world;
	enum oracle_values values;
	enum optimizer_kind optimizer;
	bool mean;
	uint32_t sparse; /* bits of keys of whose values some, most or all are 0, by round */
};

/* One key's state in the serial run. */
struct oracle_key {
	uint32_t index;
	uint32_t elements;
	enum dtype dtype;
	uint64_t steps;
	float *weight, *state[OPTIMIZER_STATE_MAX]; /* with an optimizer */
	void *expected;                             /* [elements] of dtype: the result of the last round */
	double *exact;                              /* all-reduce of normals: the sum in fp64 */
	float *scratch;                             /* [elements] */
};

/* 0 or -ENOMEM. */
int oracle_key_init(
	const struct oracle *o, struct oracle_key *key, uint32_t index, uint32_t elements, enum dtype dtype);
void oracle_key_fini(struct oracle_key *key);

/* The payload that `rank` pushes in `round`, as the key's dtype. */
void oracle_fill(const struct oracle *o, const struct oracle_key *key, uint32_t rank, uint64_t round, void *out);

/* Round 0 of a job with optimizer: rank 0's values are the weights. */
void oracle_set_weights(const struct oracle *o, struct oracle_key *key, const struct optimizer_hyper *hyper);

/* A round that sums (and steps): fills key->expected. */
void oracle_round(const struct oracle *o, struct oracle_key *key, uint64_t round, const struct optimizer_hyper *hyper);

/* A round in which `root` broadcasts. */
void oracle_broadcast(const struct oracle *o, struct oracle_key *key, uint64_t round, uint32_t root);

/* One worker's push as one step (ssp, async). */
void oracle_step(const struct oracle *o, struct oracle_key *key, uint32_t rank, uint64_t round,
	const struct optimizer_hyper *hyper);

/* The index of the first element of `got` that is wrong, or -1. `exact`: bit by bit. */
int64_t oracle_compare(const struct oracle *o, const struct oracle_key *key, const void *got, bool exact);

/* splitmix64: one step of a small generator that every test can afford. */
uint64_t oracle_random(uint64_t *state);

#endif
