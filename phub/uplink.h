/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An uplink carries a shard's committed rounds to the same core of a standby box: what any worker has got, the standby
 * has, too. Only shards of jobs that are mirrored (spec.standby) have one. First the standby gets an image of each
 * chunk; from then on a commit of it is lifted:
 *
 *      the chunk's sum is written to memory of its own, fp32, and sent as a PUSH with `count` gradients in it;
 *      the step runs with that as its only source: the bits are those of the pass that sums and steps at once;
 *      its contributors are answered when the standby's RESULT came. Until then nothing of the chunk is committed.
 *
 * A commit that is broadcast sends a new image in place of a sum. A chunk of which the standby has no image yet commits
 * and answers as if there were no standby. When the connection breaks, all that waits is answered: the standby takes
 * the job over only when all who live have come to it, and then none of them is here. wire.h says what the messages
 * are.
 *
 * In a job that is encrypted (transport/crypt.h) all of that is, too: what is sent lies sealed in memory of its own as
 * long as the queue reads it, and a RESULT counts only with the trailer that the standby alone can make: nobody on the
 * way has the box believe that a round is there.
 *
 * The core is the client here: it polls the connection in a queue of its own, of a transport that loses nothing.
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
struct sum_args;

/* What control knows of a connection before the core has it. Control's; unchanged until MAIL_UPLINK_ENDED or
 * MAIL_DETACHED came. */
struct uplink_spec {
	struct conn_spec conn;
	uint32_t job, generation, epoch; /* as the standby's Start says */
	/* Encrypted: of what is sent, and of what is answered. */
	uint8_t push_key[PROOF_KEY], result_key[PROOF_KEY];
};

enum uplink_stage {
	UPLINK_NONE,  /* the standby does not have this chunk */
	UPLINK_OUT,   /* its sum or arrays are on their way: chunk->lifted */
	UPLINK_READY, /* the standby has it, as it is */
};

struct uplink_chunk {
	float *lift;        /* [elements] the sum that is sent */
	uint8_t *sealed;    /* encrypted: the message that is sent, as it goes over the wire */
	uint64_t opened;    /* encrypted: the counter of its last result */
	uint64_t round;     /* UPLINK_OUT: that the messages name */
	uint64_t there;     /* the round that the standby collects, when all that was sent is acknowledged */
	uint32_t gradients; /* in the sum */
	uint32_t hyper;     /* that the messages name */
	uint8_t stage;      /* enum uplink_stage */
	bool had;           /* the standby had it at some time */
	bool image;         /* what is out are arrays */
	bool written;       /* the result rows of those who are to be answered are written */
	uint8_t next, end;  /* messages of it that are to be sent: arrays, or the sum as 0 of 1 */
	uint8_t lies;       /* encrypted: 1 + the message that lies in `sealed`; 0: none */
	uint8_t sends;      /* that the queue still reads from */
	uint8_t results;    /* that are not acknowledged */
};

struct uplink_counters {   /* read by control with relaxed loads */
	uint64_t bytes;    /* of payload sent */
	uint64_t messages; /* sent... */
	uint64_t results;  /* ...and acknowledged */
};

struct uplink {
	struct shard *shard;
	struct queue *queue; /* NULL: never had a connection */
	struct conn *conn;   /* NULL: there is none */
	const struct uplink_spec *spec;
	uint64_t serial;               /* of the connection: control's */
	struct crypt *sealer, *opener; /* NULL: the job is not encrypted. Control's */
	uint64_t counter;              /* of the last message that was sealed, by whatever connection */
	int spoilt;                    /* why no message can be sealed: the connection ends at the next tick; 0 */
	uint32_t seq, credit;
	struct uplink_chunk *chunks; /* [shard->chunk_count] */
	uint32_t *line;              /* ring of chunks with messages to be sent, each at most once */
	uint32_t line_first, line_count;
	uint32_t absent;               /* chunks that the standby does not have */
	uint32_t image_at;             /* where to look for the next of these */
	uint32_t out;                  /* chunks that are lifted */
	bool whole_untold, end_untold; /* control's mailbox was full: told at a later tick */
	int end_error;
	char end_text[MAIL_TEXT_BYTES];
	struct uplink_counters counters;
};

/*
 * MAIL_UPLINK: takes the connection into the core's queue for uplinks, and sends images, some a tick. MAIL_UPLINK_WHOLE
 * is told when all are there. However it ends, MAIL_UPLINK_ENDED is told once, unless the shard goes home before.
 */
void uplink_open(struct core *core, const struct mail *mail);
/* MAIL_UPLINK_END: ends the connection with this serial, if it is there still. */
void uplink_close(struct shard *shard, uint64_t serial);
/* The shard goes home: the connection ends, and nobody is told or answered. */
void uplink_drop(struct shard *shard);
/* The same, before it does, where the job goes on at the standby: nothing is committed any more that is not there. */
void uplink_leave(struct shard *shard);

/* Polls the queue of uplinks, and does what came. Returns the events. */
unsigned uplink_poll(struct core *core, uint64_t now_ns);

/* At tick, of a shard with an uplink: images, and what was not told. Returns whether more can be done at once. */
bool uplink_step(struct shard *shard);

/*
 * For chunk.c, of a shard with an uplink. Before a commit that steps or sums: if the standby has the chunk, writes the
 * sum, sends it, and makes it the only source.
 */
void uplink_lift(struct chunk *chunk, struct shard *shard, struct sum_args *sum);
/* The round that the chunk collects is another than the standby thinks, by a broadcast or without a commit: if it has
 * the chunk, sends a new image. `written`: as for uplink_chunk. */
void uplink_renew(struct chunk *chunk, struct shard *shard, bool written);

/* Are answers waiting for the standby? */
static inline bool uplink_waits(const struct shard *shard)
{
	return shard->uplink && shard->uplink->out > 0;
}

#endif
