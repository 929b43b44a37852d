/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An uplink is a connection of a shard to a core of another box, where it is what a worker's is: control makes it, and
 * the core polls it in a queue of its own, of a transport that loses nothing. This file carries: what a chunk has for
 * the other box stands in a line, a chunk at most once, and goes as far as credit and connection let it; each message
 * is answered by a RESULT of its chunk and round. What the messages are is the business of who uses it (struct
 * uplink_use): lift.h, to the box above; replica.h, to a standby.
 *
 * In a job that is encrypted (transport/crypt.h) all of that is, too: what is sent lies sealed in memory of its own as
 * long as the queue reads it, and a RESULT counts only with the trailer that the other box alone can make: nobody on
 * the way has this box believe that a round is there.
 *
 * When the membership changes above (members.h), the epoch of that box's messages rises, and it has dropped what it had
 * of open rounds: sums that are not answered are sent again, as a worker does with its pushes. One that was committed
 * there before has a RESULT on its way, and its repetition is dropped as such.
 *
 * Where the transport can (transport_ops.reconnects), a connection that breaks is made anew by control, as a worker's
 * is, and sums that were on their way go once more: the other box drops what it has, and answers what it had answered.
 *
 * Owning core only; nothing blocks, allocates or logs.
 */
#ifndef PHUB_UPLINK_H
#define PHUB_UPLINK_H

#include <stdbool.h>
#include <stdint.h>

#include "phub/chunk.h"
#include "transport/proof.h"
#include "transport/transport.h"

struct core;
struct uplink;

/* What control knows of a connection before the core has it. Control's; unchanged until MAIL_UPLINK_ENDED or
 * MAIL_DETACHED came. */
struct uplink_spec {
	struct conn_spec conn;
	uint32_t job, generation, epoch; /* as the other box's Start says */
	uint32_t rank;                   /* that headers name */
	/* Encrypted: of what is sent, and of what is answered. */
	uint8_t push_key[PROOF_KEY], result_key[PROOF_KEY];
};

enum uplink_stage {
	UPLINK_NONE,  /* the other box does not have this chunk */
	UPLINK_OUT,   /* messages about it are on their way: chunk->lifted */
	UPLINK_READY, /* the other box has it, as it is */
};

/* What is on its way of one chunk. */
struct uplink_chunk {
	uint32_t local;       /* its place in the shard */
	uint32_t index;       /* in the shard of the other box: that headers name */
	float *lift;          /* [elements] the sum that is sent... */
	const void *sum;      /* ...which lies there, or where the other box reads it (uplink_room()) */
	uint8_t *code;        /* of a sparse chunk: room for the sum as it is coded, in coded_bytes */
	uint8_t *sealed;      /* encrypted: the message that is sent, as it goes over the wire */
	uint64_t opened;      /* encrypted: the counter of its last result */
	uint64_t round;       /* UPLINK_OUT: that the messages name */
	uint64_t there;       /* the round that the other box collects, when all that was sent is acknowledged */
	uint32_t gradients;   /* in the sum */
	uint32_t hyper;       /* that the messages name */
	uint32_t coded_bytes; /* 0: the sum goes as it is */
	uint8_t stage;        /* enum uplink_stage */
	uint8_t next, end;    /* messages of it that are to be sent: the replica's arrays, or the sum as 0 of 1 */
	uint8_t lies;         /* encrypted: 1 + the message that lies in `sealed`; 0: none */
	uint8_t sends;        /* that the queue still reads from */
	uint8_t results;      /* that are not acknowledged */
	uint8_t type;         /* of a lift: enum wire_type of the message */
	bool lined;           /* it has a place in the line */
	bool again;           /* what was sent of it is sent once more, and answered once */
	/* Of a replica. */
	bool had;     /* the standby had it at some time */
	bool image;   /* what is out are arrays */
	bool written; /* the result rows of those who are to be answered are written */
};

struct uplink_counters {   /* read by control with relaxed loads */
	uint64_t bytes;    /* of payload sent */
	uint64_t messages; /* sent... */
	uint64_t results;  /* ...and acknowledged */
};

/* Who uses it. `at` is the chunk's place in up->chunks. */
struct uplink_use {
	/* Message number `next` of the chunk: returns its payload, and sets type, length and count of the header. */
	const void *(*write)(const struct uplink *up, uint32_t at, struct wire_header *h);
	/* A RESULT that the chunk waits for, with what it carries. 0, or -EPROTO: that cannot be. NULL: it carries
	 * nothing. */
	int (*take)(struct uplink *up, uint32_t at, const struct event *e);
	/* All messages of the chunk are answered, and no queue reads them: it is UPLINK_READY. */
	void (*landed)(struct uplink *up, uint32_t at);
	/* There is a new connection. */
	void (*began)(struct uplink *up);
	/* The connection is gone, and nothing is out any more. `answer`: who waits gets results. */
	void (*forget)(struct uplink *up, bool answer);
	/* At tick, while there is a connection. Returns whether more can be done at once. */
	bool (*step)(struct uplink *up);
	/* What is out is sent again when the other box's epoch rises, or by another connection: messages of one a chunk
	 */
	bool repeats;
};

struct uplink {
	struct shard *shard;
	const struct uplink_use *use;
	struct queue *queue; /* NULL: never had a connection */
	struct conn *conn;   /* NULL: there is none */
	const struct uplink_spec *spec;
	uint64_t serial;               /* of the connection: control's */
	uint32_t epoch;                /* of the other box's membership */
	struct crypt *sealer, *opener; /* NULL: the job is not encrypted. Control's */
	uint64_t counter;              /* of the last message that was sealed, by whatever connection */
	int spoilt;                    /* why no message can be sealed: the connection ends at the next tick; 0 */
	uint32_t seq, credit;
	uint32_t chunk_count;
	struct uplink_chunk *chunks; /* [chunk_count] in the order of the plan */
	uint32_t *line;              /* [chunk_count] ring of those with messages to be sent, each at most once */
	uint32_t line_first, line_count;
	uint32_t out;    /* chunks that are lifted */
	bool broken;     /* its connection broke: what is out waits for another */
	bool answered;   /* by the one that ended last a result had come */
	bool end_untold; /* control's mailbox was full: told at a later tick */
	int end_error;
	char end_text[MAIL_TEXT_BYTES];
	struct uplink_counters counters;
	uint64_t answers; /* so many of the results were there when the connection came */
	/* Of a replica. */
	uint32_t absent;   /* chunks that the standby does not have */
	uint32_t image_at; /* where to look for the next of these */
	bool whole_untold; /* as end_untold */
};

/*
 * MAIL_UPLINK: takes the connection into the queue that it names, of this core's for uplinks. However it ends,
 * MAIL_UPLINK_ENDED is told once, unless the shard goes home before. Less than 0: it was not taken, is control's again,
 * and nothing was told.
 */
int uplink_open(const struct mail *mail);
/* MAIL_UPLINK_END: ends the connection of this uplink with this serial, if it is there still. `broken`: the other end
 * says that it broke. */
void uplink_close(struct shard *shard, uint32_t number, uint64_t serial, bool broken);
/* The shard goes home: the connections end, and nobody is told or answered. */
void uplink_drop(struct shard *shard);
/* The same, before it does, where the job goes on at the standby: nothing is committed any more that is not there. */
void uplink_leave(struct shard *shard);

/* Polls a queue of uplinks, and does what came. Returns the events. */
unsigned uplink_poll(struct core *core, struct queue *queue, uint64_t now_ns);

/* At tick, of a shard with uplinks: what was not told, and their uses' steps. Returns whether more can be done at once.
 */
bool uplink_step(struct shard *shard);

/* ---- for who uses it ---- */

/* `count` messages of the chunk are made: it goes to the end of the line, and is lifted until they are answered. */
void uplink_queue(struct uplink *up, uint32_t at, uint8_t count);
/*
 * Where the sum of this chunk is made: `lift`, or, where the memory that the other box reads is mapped, there. It stays
 * as it is until the round is answered.
 */
static inline float *uplink_room(const struct uplink *up, uint32_t at)
{
	const struct uplink_chunk *u = &up->chunks[at];

	if (!up->conn || !up->conn->push)
		return u->lift;
	return (float *)(void *)((uint8_t *)up->conn->push + up->spec->conn.spans[u->index].offset);
}
/* Mail to control about this connection. */
struct mail uplink_mail(const struct uplink *up, enum mail_kind kind);

/*
 * Are answers to this link waiting for other boxes? Boxes that lift to each other, both of which drain, would wait for
 * each other's end if all that is out were meant. Walks what there is of it. What is on its way to the standby is
 * everybody's.
 */
bool uplink_waits(const struct shard *shard, const struct link *link);

#endif
