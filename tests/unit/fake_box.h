/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box for libphub's tests: one thread, the network in memory, fp32 sums and broadcasts, and a list of ways to
 * misbehave. It knows of the protocol what a worker must see of it and nothing more.
 */
#ifndef PHUB_TESTS_FAKE_BOX_H
#define PHUB_TESTS_FAKE_BOX_H

#include <stdbool.h>
#include <stdint.h>

#include "client/client.h"
#include "topology/chunking.h"
#include "transport/control.pb-c.h"
#include "transport/crypt.h"
#include "transport/loop.h"
#include "transport/stream.h"
#include "transport/transport.h"

enum { FAKE_WORLD_MAX = 4, FAKE_CORES_MAX = 4, FAKE_PORT = 7077 };

struct fake_worker {
	struct stream *stream;
	struct frame_reader in;
	struct frame_writer out;
	uint8_t client_nonce[PROOF_NONCE], box_nonce[PROOF_NONCE];
	uint8_t key[PROOF_KEY];
	char job[64];
	uint32_t rank;
	uint64_t session;
	uint32_t generation, key_count, keys_here;
	struct chunk_key *keys;
	uint32_t chunk_bytes;
	bool tabled, left, finished;
	uint32_t hyper;  /* last version heard of */
	double lr;       /* of group 0 in it... */
	double table_lr; /* ...and in the job */
	uint64_t barrier;
	struct conn *conns[FAKE_CORES_MAX];
	uint32_t seq[FAKE_CORES_MAX]; /* highest that came */
	unsigned pushes;
	bool moves; /* as it said in its Hello */
	/* Encrypted: of its pushes, and the highest counter at each core. */
	struct crypt *opener;
	uint64_t opened[FAKE_CORES_MAX];
};

struct fake_chunk {
	uint32_t core, local;
	uint64_t round;   /* collecting */
	uint32_t arrived; /* bits of ranks */
	float *sum;
	float *result;
	uint8_t *sealed[FAKE_WORLD_MAX]; /* the result, as each rank got it last */
};

struct fake_box {
	struct loop_net *net;
	struct loop_listener *listener;
	struct transport *transport;
	struct queue *queue;
	char address[LOOP_ADDRESS_BYTES];
	uint32_t world, cores, window;
	uint32_t job, epoch; /* on the wire */
	bool optimizer;      /* rounds begin at 0; a step is weight -= sum */
	const char *standby; /* as the Welcome names it, or NULL */
	/* It is the standby of this box, takes what that one has when all have come, and goes on with it; or NULL. */
	const struct fake_box *origin;
	const char *secret;
	bool encrypt; /* with a key of its own for its results */
	struct crypt *sealer;
	uint64_t sealed;
	struct fake_worker workers[FAKE_WORLD_MAX];
	struct chunk_plan plan;
	struct fake_chunk *chunks;
	struct span *spans[FAKE_CORES_MAX];
	uint32_t *index[FAKE_CORES_MAX]; /* local -> chunk */
	uint32_t counts[FAKE_CORES_MAX];
	struct conn_spec specs[FAKE_CORES_MAX];
	bool started;
	uint32_t starts;
	uint64_t barrier;     /* the last one that was passed */
	uint32_t order[4096]; /* chunks in the order in which rank 0's pushes came */
	unsigned order_count;
	struct wire_header last; /* of these */

	/* Misbehaviour. */
	bool deaf; /* reads nothing from control sessions */
	bool mute; /* answers no heartbeat and no push */
	bool wrong_mac;
	uint32_t error_code;  /* instead of a challenge, */
	bool error_late;      /* or of a welcome */
	bool wrong_placement; /* a core that is not there */
	bool short_placement;
	bool wrong_round;                     /* results of the next round */
	bool doubled;                         /* every result twice */
	void (*spoil)(struct wire_header *h); /* done to every result's header, or NULL */
	bool hoard;                           /* gives no credit back */
	bool no_lanes;                        /* refuses data connections */
	bool deaf_lanes;                      /* neither welcomes nor refuses them: these */
	struct conn *unanswered[16];
	unsigned unanswered_count;
	int64_t rounds_off; /* added to the rounds that a moved worker is told */
	bool moved_away;    /* a moved worker is told another placement */
	bool plain_start;   /* a moved worker is told nothing of that */
};

void fake_box_open(struct fake_box *b, struct loop_net *net, uint32_t world, uint32_t cores);
/* The same at an endpoint that is not 0: a worker dials it as "hostN". */
void fake_box_open_at(struct fake_box *b, struct loop_net *net, unsigned endpoint, uint32_t world, uint32_t cores);
void fake_box_close(struct fake_box *b);
/* Does all that can be done now. */
void fake_box_step(struct fake_box *b);
/* Says something to a worker: packed and framed, sent at the next step. */
void fake_box_say(struct fake_box *b, uint32_t rank, const Phub__Control *message);
void fake_box_say_bytes(struct fake_box *b, uint32_t rank, const void *frame, size_t bytes);
void fake_box_error(struct fake_box *b, uint32_t rank, uint32_t code, const char *text);
/* About a round of a chunk, or, of chunk UINT32_MAX, about the start of generation `round`. */
void fake_box_notice(
	struct fake_box *b, uint32_t rank, uint32_t chunk, uint64_t round, uint32_t missing, const char *text);
/* Tells a worker on all lanes that no result comes any more. */
void fake_box_finish(struct fake_box *b, uint32_t rank);
/* Ends a worker's data connections, or its control session. */
void fake_box_cut_lanes(struct fake_box *b, uint32_t rank);
void fake_box_hang_up(struct fake_box *b, uint32_t rank);

/* A worker's view of the network in memory. */
struct fake_site {
	struct loop_host *host;
	unsigned box; /* its endpoint */
	struct client_env env;
};

void fake_site_init(struct fake_site *site, struct loop_net *net, unsigned endpoint, unsigned box);

#endif
