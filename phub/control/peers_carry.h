/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A change of homes that is under way (peers_move.h), and the part of it that moves bytes: what a chunk's home has of
 * it goes to its next home in pieces, by the session that the one has with the other; what stays at a box goes to the
 * memory of the new layout. The cores have stopped. Control thread; nothing blocks.
 */
#ifndef PHUB_CONTROL_PEERS_CARRY_H
#define PHUB_CONTROL_PEERS_CARRY_H

#include "phub/control/job.h"
#include "phub/control/peers.h"
#include "phub/rehome.h"

enum move_stage {
	MOVE_WAITS,    /* for uplinks to be there, or a change of membership to be over */
	MOVE_HOLDS,    /* its cores are about to hold */
	MOVE_HELD,     /* ... */
	MOVE_STOPS,    /* rounds that are lifted somewhere are done */
	MOVE_CARRIES,  /* none is open: weights and state go to other boxes, and come */
	MOVE_CARRIED,  /* all is where it belongs */
	MOVE_SWITCHES, /* cores take it */
	MOVE_SWITCHED,
	MOVE_RESUMES, /* cores go on */
	MOVE_RESUMED, /* ..., or keep what they have; the top box may not know it of all */
};

struct peers_route;

struct peers_move {
	enum move_stage stage;
	uint32_t number;
	uint64_t begun_ns;
	uint16_t *home, *ways; /* [chunk_count] */
	struct generation_ways memory;
	uint32_t slots[WAYS_BOXES_MAX], slot_count;
	struct peers_route *routes; /* [route_count] (peers_routes.h) */
	unsigned route_count;
	uint64_t *rounds;       /* [chunk_count] this box's; the top box: the furthest of all; 0 where none counts */
	unsigned cores_left;    /* that are not done with the stage */
	uint32_t at;            /* chunks before that are copied, or carried away */
	uint64_t sent;          /* bytes of that one that are */
	uint32_t awaited;       /* chunks that are to come */
	uint32_t moved;         /* chunks that get another home, of all boxes */
	uint64_t moved_bytes;   /* of their gradients */
	char why[ERR_TEXT_MAX]; /* it refuses */
	bool owes;              /* the top box is to hear `says` */
	Phub__RehomeStep says;
	/* The top box. */
	unsigned said;                     /* boxes that are done with the stage: so many, */
	uint64_t who[WAYS_BOXES_MAX / 64]; /* and these */
	bool refused;
	bool given_up;                      /* they keep their homes */
	uint64_t late[WAYS_BOXES_MAX / 64]; /* then: these had not held, and may say it yet */
};

static inline uint32_t carry_count(const struct job *job)
{
	return job->generation->spec.plan.chunk_count;
}

/* Of weights and optimizer state that go with it to this box. */
uint64_t carry_bytes(const struct job *job, uint32_t index, unsigned box);
struct chunk *carry_chunk(const struct job *job, uint32_t index);
/* The place of a chunk in the layout that is about to be. */
struct rehome_chunk *carry_place(const struct job *job, uint32_t index);

/* Copies and carries some. True when all that goes is gone, and all that comes is here. May fail the job. */
bool carry_step(struct job *job);

/* Of which of the boxes is this session? This one: of none. */
unsigned carry_from(const struct session *s);

#endif
