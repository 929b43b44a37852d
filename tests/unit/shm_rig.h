/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box and workers on the shared-memory transport, for test_shm.c and test_shm_hostile.c: in one thread, in two,
 * or in forked processes. A failed REQUIRE() aborts, because cmocka's assertions are of no use in a child or a
 * thread.
 */
#ifndef PHUB_TESTS_UNIT_SHM_RIG_H
#define PHUB_TESTS_UNIT_SHM_RIG_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "phub/base/mem.h"
#include "transport/transport.h"

#define REQUIRE(condition)                                                                                   \
	do {                                                                                                 \
		if (!(condition)) {                                                                          \
			fprintf(stderr, "%s:%d: %s: false: %s\n", __FILE__, __LINE__, __func__, #condition); \
			abort();                                                                             \
		}                                                                                            \
	} while (0)

enum { SHM_RIG_CHUNKS = 4, SHM_RIG_CHUNK_BYTES = 1024, SHM_RIG_BASE = 8192 };
/* Behind the places of the pushes. */
enum { SHM_RIG_SLOT_OFFSET = 4224, SHM_RIG_SLOTS = 3, SHM_RIG_SLOT_BYTES = 1088 };

/* The box: results of the (only) rank lie SHM_RIG_BASE behind the pushes' places. */
struct shm_box {
	struct transport *t;
	struct queue *q;
	char address[128];
	struct mem_region push, result;
	struct span spans[SHM_RIG_CHUNKS];
	struct conn_spec spec;
};

struct shm_worker {
	struct transport *t;
	struct queue *q;
	struct conn *c;
	struct span spans[SHM_RIG_CHUNKS];
	struct conn_spec spec;
};

extern const uint8_t shm_rig_key[PROOF_KEY];

void shm_box_open(struct shm_box *b, uint32_t window);
void shm_box_close(struct shm_box *b);
/* Waits (5 s) for the next hello, checks its proof, and returns it. */
struct hello shm_box_hello(struct shm_box *b, uint64_t session);
/* Waits for it, admits and adopts it. */
struct conn *shm_box_take(struct shm_box *b, uint64_t session);

/* Opens a transport and a queue, and begins to connect. */
void shm_worker_open(struct shm_worker *w, const char *address, uint64_t session);
/* The same, as a box does that is a worker of another. */
void shm_worker_open_apart(struct shm_worker *w, const char *address, uint64_t session);
/* Waits (5 s) until established() says something; returns it. */
int shm_worker_established(struct shm_worker *w);
/* Waits until it is welcomed, and adopts. */
void shm_worker_adopt(struct shm_worker *w);
void shm_worker_close(struct shm_worker *w);

/* Connects w->t once more, up to the welcome; w->c and the returned end of the box are not adopted. */
struct conn *shm_rig_meet(struct shm_box *b, struct shm_worker *w, uint64_t session);
/* Opens the worker, connects, and adopts both ends. Returns the box's. */
struct conn *shm_rig_join(struct shm_box *b, struct shm_worker *w, uint64_t session);

/* One poll with the clock of the machine. */
unsigned shm_rig_poll(struct queue *q, struct event *events, unsigned max);
/* Polls until an event comes; aborts after 5 s. */
struct event shm_rig_await(struct queue *q);
/* Polls a few times; nothing may come. */
void shm_rig_silence(struct queue *q);
/* The same, sleeping in arm()'s fd. */
struct event shm_rig_sleep(struct queue *q);

struct wire_header shm_rig_push_header(uint32_t chunk, uint64_t round);
struct wire_header shm_rig_result_header(uint32_t chunk, uint64_t round);
/* Where they lie. */
uint8_t *shm_rig_slot_at(const struct shm_worker *w, uint32_t slot); /* from 1 */
uint8_t *shm_rig_push_at(const struct shm_worker *w, uint32_t chunk);
uint8_t *shm_rig_result_at(const struct shm_box *b, uint32_t chunk);
/* Fill with a pattern of round and chunk, and send; no flush. What send() says. */
int shm_rig_push(struct shm_worker *w, uint32_t chunk, uint64_t round, void *cookie);
/* The same, from a slot. */
int shm_rig_push_slot(struct shm_worker *w, uint32_t slot, uint32_t chunk, uint64_t round);
int shm_rig_result(struct shm_box *b, struct conn *c, uint32_t chunk, uint64_t round, void *cookie);
/* Is it the pattern? */
int shm_rig_matches(const void *payload, uint32_t chunk, uint64_t round);

/* Reaps a child, and requires that it ended well, or by `signal` if that is not 0. */
void shm_rig_reap(pid_t pid, int signal);

#endif
