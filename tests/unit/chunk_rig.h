/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job on one core without a network, for test_chunk.c, test_parts.c and test_reply.c: pushes are handed over one by
 * one, and a fake queue records what the core replies and takes as much as the test says.
 */
#ifndef PHUB_TESTS_UNIT_CHUNK_RIG_H
#define PHUB_TESTS_UNIT_CHUNK_RIG_H

#include "phub/chunk.h"
#include "phub/mailbox.h"
#include "phub/store.h"

enum { BENCH_WORLD_MAX = 8, BENCH_CHUNKS_MAX = 8, CHUNK_ELEMENTS = 1024, SENT_MAX = 256 };

struct sent {
	struct conn *conn;
	struct wire_header header;
	const void *payload;
	void *cookie;
};

/* The queue: remembers. */
struct fake {
	struct queue queue;
	struct conn conns[BENCH_WORLD_MAX];
	struct sent sent[SENT_MAX];
	unsigned sent_count;
	unsigned room; /* sends before -EAGAIN */
	unsigned released;
};

/* bench_new() says: one chunk of fp32, one parameter group with bench_sgd, a window of 4. What else a test wants is set
 * before bench_open(). */
struct bench {
	struct fake fake;
	struct spec spec;
	struct chunk_key keys[BENCH_CHUNKS_MAX]; /* a chunk each; `group` is the test's */
	uint32_t chunk_count;
	uint32_t elements; /* of each chunk */
	enum dtype dtype;
	uint16_t core_of_chunk[BENCH_CHUNKS_MAX];
	enum store_results results; /* how the store is made */
	struct store store;
	struct shard *shard;
	struct chunk *chunk; /* what is pushed to */
	struct mailbox *control;
	struct conn_spec conn_spec;
	uint32_t seq[BENCH_WORLD_MAX];
	uint16_t priority; /* of the next pushes */
	uint64_t now;
	float data[BENCH_WORLD_MAX][CHUNK_ELEMENTS]; /* payloads, whatever the dtype */
};

/* Plain sgd with a learning rate of 0.5: version 0 of group 0. */
extern const struct optimizer_hyper bench_sgd;

struct bench *bench_new(void);
void bench_open(struct bench *b, uint32_t world, unsigned hold_max);
/* Checks that slots and replies balance. */
void bench_close(struct bench *b);

/* One contribution of data[rank], of which a slot may be kept: what chunk_add() says. */
int bench_push(struct bench *b, uint32_t rank, enum wire_type type, uint64_t round, uint32_t hyper, bool slot);
/* So many bytes at this offset of a message with this seq, of which `last` is the last part: the same. */
struct part {
	uint32_t rank, seq, offset, bytes;
	bool last;
};
int bench_part(struct bench *b, enum wire_type type, uint64_t round, const struct part *part);
void bench_push_all(struct bench *b, uint64_t round, uint32_t hyper, bool slot);
/* Completes all that was sent, as a queue would at its next poll. */
void bench_complete(struct bench *b);

/* Gives every rank other data in each round. */
void bench_fill(struct bench *b, uint64_t round);
/* Gives all chunks data[0] as their first weights. */
void bench_set_weights(struct bench *b);
/* Opens a job with SGD and gives it first weights; returns element 4 of them. */
float bench_open_sgd(struct bench *b, uint32_t world);

/* Element i: of the sum over all ranks, of the chunk's result, of the k-th payload that was sent. */
float bench_sum(const struct bench *b, uint32_t i);
float bench_result(const struct bench *b, uint32_t i);
float bench_sent(const struct bench *b, unsigned k, uint32_t i);

/* The next mail to control. */
struct mail bench_mail(struct bench *b);
/* A table of one group; the caller frees it. */
struct hyper_table *bench_table(uint32_t rank, uint32_t version, double lr);

#endif
