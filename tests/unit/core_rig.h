/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A core with one job of two workers that is stepped by hand, for test_core.c, test_detach.c and test_receive.c: its
 * queue hands over the events that the test wrote, and takes as much as the test says.
 */
#ifndef PHUB_TESTS_UNIT_CORE_RIG_H
#define PHUB_TESTS_UNIT_CORE_RIG_H

#include "phub/core.h"
#include "phub/sealing.h"
#include "phub/store.h"

enum { STAND_WORLD = 2, STAND_ELEMENTS = 48, STAND_SENT_MAX = 64, STAND_EVENTS_MAX = 16 };

/* The queue. Credits that finish nothing are not remembered in `sent`. */
struct script {
	struct queue queue;
	struct conn conns[STAND_WORLD];
	bool dropped[STAND_WORLD];
	unsigned room[STAND_WORLD]; /* sends before -EAGAIN */
	struct event events[STAND_EVENTS_MAX];
	unsigned event_count;
	struct wire_header sent[STAND_SENT_MAX];
	const uint8_t *payloads[STAND_SENT_MAX];
	unsigned sent_count;
	unsigned released; /* slots */
	/* EVENT_SENT does not come by itself: these wait for the test. */
	bool unacknowledged;
	struct event kept[STAND_EVENTS_MAX];
	unsigned kept_count;
};

struct stand {
	struct script script;
	struct spec spec;
	struct chunk_key *keys;
	uint16_t *core_of_chunk;
	struct store store;
	struct shard *shard;
	struct core *core;
	struct mailbox *control;
	struct conn_spec conn_spec;
	uint8_t (*push_keys)[PROOF_KEY]; /* NULL: plain */
	uint64_t links;                  /* connections so far */
	uint32_t seq[STAND_WORLD];
	uint64_t now;
	float data[STAND_ELEMENTS];
};

/* Job 7, generation 3, epoch 1: `chunks` chunks that are summed; both workers are connected, with a window of 8. */
struct stand *stand_open(uint32_t chunks, unsigned hold_max, bool lossy);
/* The same, of keys that are sparse. */
struct stand *stand_open_sparse(uint32_t chunks, unsigned hold_max);
/* The same, and what goes over the links is encrypted: results with `data_key`, pushes with push_keys[rank]. */
struct stand *stand_open_encrypted(uint32_t chunks, unsigned hold_max, bool lossy, const uint8_t data_key[PROOF_KEY],
	uint8_t (*push_keys)[PROOF_KEY]);
/* Connects the rank, anew. */
void stand_link(struct stand *s, uint32_t rank);
/* The shard must be home. */
void stand_close(struct stand *s);

/* Mail to the core, of the job. */
void stand_mail(struct stand *s, struct mail mail);
/* An event for the next step; a message that an honest worker sends, to be spoilt. */
void stand_event(struct stand *s, uint32_t rank, enum event_type type);
struct event *stand_message(struct stand *s, uint32_t rank, uint32_t chunk, uint64_t round, bool slot);
/* The message comes in parts: this event is one of them. */
void stand_part(struct event *e, uint32_t offset, uint32_t bytes, bool last);
/* A push of round 1 comes, and is handled. `slot`: it may be held. */
void stand_push(struct stand *s, uint32_t rank, uint32_t chunk, bool slot);
void stand_steps(struct stand *s, unsigned count);

/* Messages of this kind that this rank was sent. */
unsigned stand_sent(const struct stand *s, uint32_t rank, enum wire_type type, uint32_t epoch);
/* Is it home? Its books must balance. */
bool stand_is_home(struct stand *s);

#endif
