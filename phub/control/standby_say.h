/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a box says to its standby about a job. Inside of standby*.c only: the structs behind standby.h are here. Each
 * returns 0, -EAGAIN (more is unsent than should be kept: again at a later step), or another negative errno.
 */
#ifndef PHUB_CONTROL_STANDBY_SAY_H
#define PHUB_CONTROL_STANDBY_SAY_H

#include "phub/control/generation.h"
#include "phub/control/calls.h"
#include "phub/control/standby.h"

/* A version that rounds may still name. */
struct standby_hypers {
	uint32_t version;
	struct optimizer_hyper groups[];
};

struct standby {
	struct job *job;
	struct control *control;
	struct generation *generation;
	enum standby_state state;
	uint64_t since_ns, begun_ns, retry_ns, backoff_ns;
	uint64_t able_ns; /* when it was WHOLE last, before it broke; 0: never */
	char why[ERR_TEXT_MAX];
	struct box_call *call; /* NULL: there is none */
	bool started;          /* it has said Start: */
	uint32_t job_there, epoch_there, window;
	uint8_t result_key[PROOF_KEY]; /* encrypted: of what it answers */
	bool taken;
	bool bereaved; /* the standby is told so when no core has a shard any more */
	bool broken;   /* a core's connection ended */
	char broken_why[ERR_TEXT_MAX];
	uint32_t keys_said;
	uint32_t hyper_first;                          /* the oldest version that was ever kept; 0: none was */
	uint32_t hyper, hyper_said;                    /* the newest version, and the newest that it knows */
	struct standby_hypers *kept[STANDBY_KEPT_MAX]; /* by version modulo that */
	uint64_t barrier_asked, barrier_echoed;
	bool barrier_waits;                /* for the echo */
	uint64_t state_said, state_echoed; /* numbers of MirrorState */
	bool state_owed;                   /* the job is otherwise than it knows, and there was no room to say so */
	uint64_t serial;                   /* of the connections that cores have, or had last */
	unsigned core_count, shard_count, wholes;
	struct box_dial *dials; /* [core_count] one from each core, to the same there */
};

int standby_say_mirror(struct standby *s);
/* As many keys as should be unsent now. */
int standby_say_keys(struct standby *s);
/* The versions that it does not know yet. */
int standby_say_hypers(struct standby *s);
int standby_say_state(struct standby *s);

#endif
