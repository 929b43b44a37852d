/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions for a change of homes (peers_move.h) alone: in a chain a box lifts to the next one, but what belongs to a
 * chunk goes from its old home straight to the new one, whichever that is. They are made before a box holds, and end
 * when all has been carried. At their other end nothing is lifted by them: data connections are refused.
 * A box that has not done with the last one of them is busy, and asked again. Control thread; nothing blocks.
 */
#ifndef PHUB_CONTROL_PEERS_ROUTES_H
#define PHUB_CONTROL_PEERS_ROUTES_H

#include "phub/base/err.h"
#include "phub/control/peers.h"

/* Those that job->peers->move needs, and no uplink has. 0 or -ENOMEM. */
int peers_routes_take(struct job *job, struct err *e);
/* Moves them on. 0 when all are there; -EAGAIN; or why one is not, or was lost, in `e`. */
int peers_routes_step(struct job *job, struct err *e);
/* By what to carry to this box; NULL: there is nothing now. */
struct box_call *peers_route(const struct job *job, unsigned box);
/* Ends them: what was said goes out. */
void peers_routes_end(struct control *c, struct peers_move *m);

#endif
