/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker's way from a box that is lost to the box's standby, which has all that any worker has got: the control
 * session is made anew there while the rounds rest, and then they go on. Under the handle's lock.
 */
#ifndef PHUB_CLIENT_MOVE_H
#define PHUB_CLIENT_MOVE_H

#include <stdbool.h>
#include <stdint.h>

#include "client/phub.h"
#include "client/url.h"
#include "phub/base/err.h"

/* Versions of the hyper-parameters that are kept: the box keeps as many (HYPER_VERSIONS). */
#define MOVE_HYPERS 64u

struct move {
	uint64_t until_ns;       /* not 0: on the way; so long that is tried */
	struct url_box to;       /* the standby */
	struct err loss;         /* what ended the session before */
	struct phub_hyper *told; /* [MOVE_HYPERS][group_count] the versions that the box was told last; NULL: none */
	uint64_t count;          /* moves that are done */
};

/*
 * The next step, when there is one: where the session is over because the box is lost, sets out for its standby. False:
 * the session is over, and stays so.
 */
bool move_step(phub_t *p, uint64_t now_ns);

/*
 * The box has said that it goes down, and what it still sends is awaited. A call that begins something has no time for
 * that: where the job goes on at the standby, it sets out for there now, and what did not come is asked for there.
 */
void move_now(phub_t *p, uint64_t now_ns);

/* When move_step() has something to do by itself; UINT64_MAX: never. */
uint64_t move_due(const phub_t *p);

/* The box is to know this version of the hyper-parameters, settings.groups: now, or when the move is done. */
void move_tell_hyper(phub_t *p, uint32_t version);

void move_fini(struct move *m);

#endif
