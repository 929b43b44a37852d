/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane is the worker's connection to one core of the box: which chunks go there, the credits it has, and the pushes
 * that wait for them, most urgent first. Under the handle's lock.
 *
 * Credits are cumulative: the box says up to which message of the connection it has room. What a full lane cannot send
 * stays in a heap, so that a later push with a lower priority number overtakes what is queued.
 */
#ifndef PHUB_CLIENT_LANE_H
#define PHUB_CLIENT_LANE_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"

struct chunk_span;
struct lane;
struct sealed;

#define FLIGHT_NONE UINT32_MAX

/* Where a chunk's round stands. */
enum flight_state {
	FLIGHT_IDLE,    /* no round is open */
	FLIGHT_FILLING, /* some of its keys were pushed, not all */
	FLIGHT_FETCHED, /* complete, but for copies from a GPU that are under way */
	FLIGHT_QUEUED,  /* complete, waits in the lane's heap */
	FLIGHT_SENT,    /* the box has it, or will; its result is awaited */
	FLIGHT_LANDED,  /* the result is here, but the transport still reads the payload, or copies to a GPU run */
};

/* One chunk of the job and its round. */
struct flight {
	uint64_t round;         /* the one that is open, or the next one */
	uint32_t ahead;         /* the result is here: the box has closed so many rounds since (quorum) */
	uint32_t hyper;         /* version of the hyper-parameters that the round wants */
	const uint8_t *payload; /* of the push */
	const uint8_t *src;     /* not NULL: the payload is still the caller's, to be copied when it is sent */
	uint32_t slot;          /* of the lane that the payload lies in, from 1; 0: none */
	uint32_t copies;        /* from or to a GPU, under way, or to be begun with those beside it */
	uint32_t gathered;      /* of the piece that it begins: results that are here and go to a GPU with it */
	struct lane *lane;
	const struct chunk_span *span; /* what of the job it is */
	uint32_t local;                /* index among the lane's chunks */
	uint32_t keys_in;              /* keys of the chunk that were pushed in this round */
	uint32_t sends;                /* the transport reads the payload for so many sends */
	uint32_t coded;                /* sparse: bytes of the push at `payload` as it is coded; 0: it goes as it is */
	uint8_t *code;       /* sparse: where its push is coded; NULL: it goes as it is, and so comes its result */
	uint8_t *landing;    /* sparse: where its result comes to, to be decoded from there */
	uint32_t cell;       /* sealed: of the lane that the push lies in, from 1; 0: in none */
	uint32_t cell_epoch; /* that it was sealed with */
	uint64_t version;    /* sealed: the counter of its last result */
	uint8_t *into;       /* sealed, sparse: where its result is opened or decoded to; NULL: nobody wants it */
	uint16_t priority;
	uint8_t state;         /* enum flight_state */
	uint8_t type;          /* enum wire_type */
	uint8_t tries;         /* lossy: sends of this round */
	bool queued;           /* is in the lane's heap */
	bool copied;           /* when it was sent: counts in the lane's copies_out */
	bool apart;            /* results do not overwrite the push: a key of it was given away by phub_alloc() */
	bool delivers;         /* a key of the round wants its result elsewhere, or kept */
	bool settles;          /* a key of the round has something to settle when it is over */
	uint64_t claims;       /* exchange.claims when its last round was over */
	uint32_t newer, older; /* lossy: local indexes of neighbours among those in state SENT */
	uint64_t sent_ns;
	uint64_t again_ns; /* lossy: when to push it again */
};

enum lane_state {
	LANE_DOWN,       /* no connection */
	LANE_CONNECTING, /* the handshake is under way */
	LANE_UP,         /* in the queue */
	LANE_BROKEN,     /* the connection broke: another will be begun (then CONNECTING again) */
	LANE_LOST,       /* the connection ended; nothing is sent or expected any more */
};

struct lane_item {
	uint64_t order; /* priority, then time of queueing */
	uint32_t local;
};

/* What all lanes of one job share. */
struct lane_group {
	struct queue *queue;
	uint32_t job, generation, epoch, rank;
	bool lossy;   /* pushes may get lost: they are sent again */
	bool cookies; /* payloads lie in memory whose every reader must be known */
	bool unflushed;
	uint64_t pushed_bytes, copied_bytes, pushes, coded, resent;
};

struct lane {
	struct lane_group *group;
	enum lane_state state;
	int error;     /* LANE_LOST, LANE_BROKEN */
	char why[200]; /* likewise, what the transport said of it, or "" */
	/* Reconnecting. */
	uint64_t broke_ns;   /* since when nothing came although connections were made; 0: all is well */
	uint64_t opened_ns;  /* when the connection that is there was made */
	uint64_t dialled_ns; /* LANE_CONNECTING, for the first time: since when; 0: nobody has looked yet */
	uint64_t redial_ns;  /* LANE_BROKEN: when to begin another; LANE_CONNECTING: when to look at it again */
	uint8_t redials;     /* since broke_ns */
	bool untold;         /* that it broke: the box is not told yet */
	bool finished;       /* the box has said that no result comes any more */
	uint32_t core;
	uint32_t epoch; /* of the membership, as this core knows it */
	struct conn *conn;
	uint8_t *push; /* what the transport has mapped, or NULL; outlives the connection */
	const uint8_t *result;
	struct conn_spec spec;
	uint32_t count;          /* chunks */
	uint32_t *chunks;        /* [count] index in the job's plan */
	struct span *spans;      /* [count] of payloads, without trailers */
	struct span *wires;      /* [count] sealed: as the transport sees them */
	struct sink *sinks;      /* [count] */
	struct flight **flights; /* [count] */
	uint32_t seq;            /* messages sent */
	uint32_t credit;         /* messages that may be sent, cumulative */
	bool full;               /* the transport has no room until EVENT_WRITABLE */
	struct lane_item *heap;  /* [heap_count], room for count */
	uint32_t heap_count;
	uint64_t order;
	/*
	 * Payloads that are copied when they are sent. They go into slots: few, so that what is written there is read
	 * from a cache, and used again once the chunk's result is here. So no more than copies_max of them are
	 * out. Workers that push in different orders could wait for each other like this for ever: when nothing was
	 * answered for a while, copies_max doubles, and what finds no slot is copied to the chunk's own place. When
	 * all are answered it is the number of slots again.
	 */
	uint32_t *slots_free; /* [slots_free_count] numbers from 1, room for conn->slot_count */
	uint32_t slots_free_count;
	uint32_t copies_out, copies_max;
	bool more;         /* lane_pump() has stopped where it might have gone on */
	uint64_t stuck_ns; /* since when copies_max keeps a push back and none of these was answered; 0: it does not */
	uint32_t sent_oldest, sent_newest; /* lossy: list of flights in state SENT */
	uint64_t again_ns;                 /* lossy: the earliest again_ns of that list, or earlier */
	uint64_t starved_ns; /* lossy: since when, or since which probe, credit is lacking; 0: it is not */
	uint8_t probes;      /* since credit came last */
	/* Where what it carries is encrypted (sealed.h); else NULL. */
	struct sealed *sealed;
	uint8_t *cells;       /* [cell_count], of cell_bytes each: pushes as they are sent */
	uint32_t *cells_free; /* [cells_free_count] numbers from 1 */
	uint32_t cell_count, cell_bytes, cells_free_count;
};

/* For `count` chunks. 0 or -ENOMEM. */
int lane_init(struct lane *lane, struct lane_group *group, uint32_t core, uint32_t count);
/* The connection, if there was one, is gone. */
void lane_fini(struct lane *lane);

/* The connection is in the queue: `window` messages may go. 0 or -ENOMEM. */
int lane_open(struct lane *lane, uint32_t window);

/* Are payloads of this lane better copied when they are sent, by setting flight.src? */
bool lane_stages(const struct lane *lane);

/* Drops the connection: the transport touches nothing any more. Queued pushes are forgotten. */
void lane_drop(struct lane *lane);

/*
 * Drops the connection, which broke: the transport touches nothing any more. What is not answered is pushed by the next
 * one, from payloads and to sinks that stay where they are.
 */
void lane_rest(struct lane *lane);

/* The box's core has another membership: what it has not answered is pushed again, for it has given back what it had.
 */
void lane_raise(struct lane *lane, uint32_t epoch);

/* Keeps what the transport says of the end of the connection that is still there. NULL: nothing. */
void lane_note(struct lane *lane, const char *why);

/* Queues the push of a flight in state QUEUED, or once more in state SENT. */
void lane_push(struct lane *lane, struct flight *flight);

/* Sends what credit, transport and time allow. Returns how many; they go out at the queue's next flush(). */
unsigned lane_pump(struct lane *lane, uint64_t now_ns);

/* The box grants messages up to `credit`. */
void lane_grant(struct lane *lane, uint32_t credit);

/* The transport reads a send of this flight no more. */
void lane_read(struct lane *lane, struct flight *flight);

/* The result of this flight is here: it is not pushed again. */
void lane_answered(struct lane *lane, struct flight *flight);

/* May something still come by it that a flight waits for? */
bool lane_awaits(const struct lane *lane);

/* Lossy: queues again what was not answered in time. */
void lane_tick(struct lane *lane, uint64_t now_ns);

/* When lane_tick() or lane_pump() will do something by themselves; UINT64_MAX: never. */
uint64_t lane_due(const struct lane *lane);

#endif
