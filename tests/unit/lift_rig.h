/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three boxes of one core each that sum for each other, and one that all their workers share; whoever uses it carries
 * their messages, in an order of its own.
 */
#ifndef TESTS_UNIT_LIFT_RIG_H
#define TESTS_UNIT_LIFT_RIG_H

#include "phub/association.h"
#include "phub/core.h"
#include "phub/lift.h"
#include "tests/unit/chunk_rig.h"

enum { BOXES = 3, CHUNKS = 5, PENDING = 256, ROUNDS = 4, JOB = 9, LIFT_EVENTS = 64 };

/* So many workers at each. */
extern const uint32_t rack_workers[BOXES];

enum plan { PLAN_TREE, PLAN_SHARDED, PLAN_CHAIN, PLAN_COUNT };

struct shape {
	enum plan plan;
	enum optimizer_kind optimizer;
	enum dtype dtype, lift;
	bool mean, reproducible, sinks;
	bool rounds;  /* numbers whose sum depends on the order */
	double scale; /* not 0: normals, of this deviation; their sums are held against the bound that lift.h states */
	bool changes; /* now and then the membership of a box does, in mid-round */
	unsigned hold_max;
	uint64_t seed;
};

/* What was sent up, until it is carried. */
struct message {
	unsigned from, to;
	struct wire_header header;
	const void *payload;
	void *cookie;
};

struct place {
	struct rack *rack;
	struct bench *b;
	unsigned number;
	uint16_t way_of_chunk[CHUNKS];
	uint32_t names[BENCH_WORLD_MAX];
	struct core core;
	/* Up: */
	struct queue queue;
	struct conn conns[BOXES];
	struct uplink_spec specs[BOXES];
	struct sink sinks[BOXES][CHUNKS];
	struct event events[LIFT_EVENTS];
	unsigned event_count;
	unsigned room; /* sends before -EAGAIN */
	bool dropped;
	/* Down: what this box's workers got in this round. */
	unsigned got[CHUNKS];
};

struct rack {
	struct shape shape;
	struct place places[BOXES];
	struct bench *flat;
	struct association *association; /* of it */
	struct message pending[PENDING];
	unsigned pending_count;
	uint64_t random, now;
	bool bounded; /* this round */
	double worst; /* of what the bound allows, the largest part that was seen */
};

/* Its contributor that `box` is at `at`. */
uint32_t rack_slot(unsigned at, unsigned box);
/* A worker's numbers of a round, whose sums are exact. */
void fill(struct bench *b, uint32_t slot, uint32_t rank, uint64_t round);
/* Its way to that box has a connection, as at the beginning. */
void place_connect(struct place *p, unsigned to);
/* Freed by one of the two below it, which fail the test unless books balance. */
struct rack *rack_open(const struct shape *shape);
void rack_close(struct rack *r);
/* The same in the middle of a round. */
void rack_drop(struct rack *r);
/* What it polls next from that box; to be filled. */
struct event *place_event(struct place *p, unsigned from, enum event_type type);
/* One of the messages that are under way, but never one before another of its connection. */
void rack_carry_up(struct rack *r);
/* Until nothing is under way. */
void rack_settle(struct rack *r);
/* A worker's message about one chunk, here and at the one box. */
void rack_push(struct rack *r, unsigned box, uint32_t slot, unsigned chunk, enum wire_type type, uint64_t round);
/* Rank 0 is the second box's first worker. */
uint32_t rack_rank(unsigned box, uint32_t slot);
/* A round of all workers at the one box. */
void flat_push(struct rack *r, uint64_t round, bool broadcast);
/* All workers, in any order, with what is carried meanwhile. */
void rack_round(struct rack *r, uint64_t round, bool broadcast);

#endif
