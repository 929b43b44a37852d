/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks of a job that runs get other homes: `phub jobs rebalance`, at the top box of a sharded or chained job, after
 * the rack file there was read anew. All boxes stop before the same round of each chunk; old homes carry weights and
 * optimizer state to new ones; all switch, and only when all have does any box go on (transport/control.proto has the
 * messages, phub/rehome.h what cores do):
 *
 *      top box     Hold -------- Stop ----------- Switch ------------- Go
 *      each box         Held           Carried             Switched         Resumed
 *
 * Until Stop a box may refuse, for it has no memory, and all must hold in time: else all go on with the homes that they
 * had. The next change, and the next key table, wait until all have said Resumed. A box that is lost ends the job, as
 * at any time (peers.h), and so does one that says what it cannot, or a route between two (peers_routes.h) that breaks
 * once it was made: there is no chunk with two homes, or none. Workers see a pause; they push keys in one order.
 *
 * Control thread; nothing blocks. Memory: each box has what follows from homes twice, while that lasts; messages in
 * flight are bounded by the session's.
 */
#ifndef PHUB_CONTROL_PEERS_MOVE_H
#define PHUB_CONTROL_PEERS_MOVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phub/base/err.h"
#include "phub/control/peers.h"

/*
 * The operator says so, at the top box. 0 with what is begun in `said` and its number in *number (NULL is allowed), or
 * with 0 there that there is nothing to do; -EINVAL (no job whose homes can move, or not this box's to say), -EBUSY
 * (not now: it is paused, drains, is held, waits for a worker, does not run or is not under way at all boxes yet, or
 * moves already) or -ENOMEM with what to do in `e`.
 */
int peers_move_begin(struct job *job, char *said, size_t said_bytes, uint32_t *number, struct err *e);
/* Are homes of it about to change? */
bool peers_moves(const struct job *job);

/* Rehome, at the top box, of one below: refused where it is not next, or holds before rounds at which it cannot be. */
void peers_move_hear(struct session *s, const Phub__Rehome *m);
/* What else the box above says. */
void peers_move_obey(struct job *job, const Phub__Control *m);
/* Carry, of a box that lifts to this one. */
void peers_move_take(struct session *s, const Phub__Carry *m);

/* All cores hold. */
void peers_move_held(struct job *job, const uint64_t *rounds);
/* MAIL_DRAINED: false when it is about something else. */
bool peers_move_stopped(struct job *job);
/* MAIL_REHOMED. */
void peers_move_rehomed(struct job *job, const struct mail *mail);
/* Moves it on. */
void peers_move_step(struct job *job);
/* No shard is with a core any more. */
void peers_move_forget(struct peers *p);

#endif
